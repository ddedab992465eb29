// SPDX-License-Identifier: MIT
// The losses of the double-precision reference, from their definitions.
#include "common/oracle.h"

#include <math.h>

enum { DELTA = 1 }; // of the Huber loss

static double element_loss(iso_loss_kind kind, double x, double t) {
    double gap = fabs(x - t), sigmoid = 1 / (1 + exp(-x));
    switch (kind) {
    case ISO_BCE_WITH_LOGITS: return -t * log(sigmoid) - (1 - t) * log(1 - sigmoid);
    case ISO_L1: return gap;
    case ISO_HUBER: return gap < DELTA ? gap * gap / 2 : DELTA * (gap - DELTA / 2.0);
    default: return gap * gap;
    }
}

static double element_slope(iso_loss_kind kind, double x, double t) {
    double gap = x - t;
    switch (kind) {
    case ISO_BCE_WITH_LOGITS: return 1 / (1 + exp(-x)) - t;
    case ISO_L1: return gap == 0 ? 0 : gap / fabs(gap);
    case ISO_HUBER: return fabs(gap) < DELTA ? gap : copysign(DELTA, gap);
    default: return 2 * gap;
    }
}

// -sum(target * log(softmax(row))), or -sum(target * row), or the mean of what elements give.
static double row_loss(iso_loss_kind kind, int64_t k, const double *row, const double *target) {
    double norm = 0, sum = 0;
    for (int64_t i = 0; i < k; i++) norm += exp(row[i]);
    for (int64_t i = 0; i < k; i++) {
        if (kind >= ISO_MSE)
            sum += element_loss(kind, row[i], target[i]) / (double)k;
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
        case ISO_CROSS_ENTROPY: grad[i] = (exp(row[i]) / norm - target[i]) / rows; break;
        case ISO_NLL: grad[i] = -target[i] / rows; break;
        default: grad[i] = element_slope(kind, row[i], target[i]) / (double)k / rows;
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

double oracle_target_loss(iso_loss_kind kind, int64_t count, const double *x, const double *target,
                          double *grad) {
    row_gradient(kind, count, x, target, 1, grad);
    return row_loss(kind, count, x, target);
}
