// SPDX-License-Identifier: MIT
// The losses of the double-precision reference, from their definitions.
#include "common/oracle.h"

#include <math.h>

// -sum(target * log(softmax(row))), or -sum(target * row), or the mean of (row - target)^2.
static double row_loss(iso_loss_kind kind, int64_t k, const double *row, const double *target) {
    double norm = 0, sum = 0;
    for (int64_t i = 0; i < k; i++) norm += exp(row[i]);
    for (int64_t i = 0; i < k; i++) {
        if (kind == ISO_MSE)
            sum += (row[i] - target[i]) * (row[i] - target[i]) / (double)k;
        else
            sum -= target[i] * (kind == ISO_NLL ? row[i] : log(exp(row[i]) / norm));
    }
    return sum;
}

static void row_gradient(iso_loss_kind kind, int64_t k, const double *row, const double *target,
                         double rows, double *grad) {
    double norm = 0;
    for (int64_t i = 0; i < k; i++) norm += exp(row[i]);
    for (int64_t i = 0; i < k; i++) switch (kind) {
        case ISO_MSE: grad[i] = 2 * (row[i] - target[i]) / (double)k / rows; break;
        case ISO_NLL: grad[i] = -target[i] / rows; break;
        default: grad[i] = (exp(row[i]) / norm - target[i]) / rows;
        }
}

double oracle_loss(const iso_loss_config *config, int64_t rows, int64_t k, const double *x,
                   const int32_t *labels, int64_t *correct, double *grad) {
    double sum = 0, target[64];
    *correct = 0;
    for (int64_t n = 0; n < rows; n++) {
        const double *row = x + n * k;
        int64_t best = 0;
        for (int64_t i = 0; i < k; i++) {
            best = row[i] > row[best] ? i : best;
            target[i] = config->label_smoothing / (double)k;
            if (i == labels[n]) target[i] += 1 - config->label_smoothing;
        }
        *correct += best == labels[n];
        sum += row_loss(config->kind, k, row, target);
        row_gradient(config->kind, k, row, target, (double)rows, grad + n * k);
    }
    return sum / (double)rows;
}

double oracle_mse(int64_t count, const double *x, const double *target, double *grad) {
    row_gradient(ISO_MSE, count, x, target, 1, grad);
    return row_loss(ISO_MSE, count, x, target);
}
