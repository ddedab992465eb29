// SPDX-License-Identifier: MIT
// The naive double-precision reference of normalisation and activations.
#include "common/oracle_norm.h"

#include <math.h>

void oracle_channel_moments(const oracle_batch_norm *b, const double *x, double *mean,
                            double *variance) {
    int64_t count = b->rows * b->plane;
    for (int64_t c = 0; c < b->channels; c++) {
        long double sum = 0, squares = 0;
        for (int64_t i = 0; i < count; i++)
            sum += x[(i / b->plane * b->channels + c) * b->plane + i % b->plane];
        mean[c] = (double)(sum / count);
        for (int64_t i = 0; i < count; i++) {
            long double d =
                x[(i / b->plane * b->channels + c) * b->plane + i % b->plane] - sum / count;
            squares += d * d;
        }
        variance[c] = (double)(squares / count);
    }
}

static double standardised(const oracle_batch_norm *b, const double *x, const double *mean,
                           const double *variance, int64_t i) {
    int64_t c = i / b->plane % b->channels;
    return (x[i] - mean[c]) / sqrt(variance[c] + b->eps);
}

void oracle_batch_norm_forward(const oracle_batch_norm *b, const double *x, const double *mean,
                               const double *variance, const double *w, const double *bias,
                               double *y) {
    for (int64_t i = 0; i < b->rows * b->channels * b->plane; i++) {
        int64_t c = i / b->plane % b->channels;
        y[i] = standardised(b, x, mean, variance, i) * (w ? w[c] : 1) + (bias ? bias[c] : 0);
        if (b->relu && y[i] < 0) y[i] = 0;
    }
}

// With xhat = (x - mean) / s: dx = w / s (dy - mean(dy) - xhat mean(dy xhat)).
void oracle_batch_norm_backward(const oracle_batch_norm *b, bool batch, const double *x,
                                const double *mean, const double *variance, const double *w,
                                const double *bias, const double *dy, double *dw, double *db,
                                double *dx) {
    int64_t all = b->rows * b->channels * b->plane, count = b->rows * b->plane;
    oracle_batch_norm_forward(b, x, mean, variance, w, bias, dx);
    for (int64_t i = 0; i < all; i++) dx[i] = b->relu && !(dx[i] > 0) ? 0 : dy[i];
    for (int64_t c = 0; c < b->channels; c++) {
        double sum = 0, product = 0, factor = (w ? w[c] : 1) / sqrt(variance[c] + b->eps);
        for (int64_t i = 0; i < all; i++) {
            if (i / b->plane % b->channels != c) continue;
            sum += dx[i];
            product += dx[i] * standardised(b, x, mean, variance, i);
        }
        if (dw) dw[c] += product;
        if (db) db[c] += sum;
        for (int64_t i = 0; i < all; i++) {
            if (i / b->plane % b->channels != c) continue;
            double through = sum + standardised(b, x, mean, variance, i) * product;
            dx[i] = factor * (dx[i] - (batch ? through / (double)count : 0));
        }
    }
}

static void row_moments(int64_t size, const double *x, double *mean, double *variance) {
    oracle_batch_norm row = {.rows = 1, .channels = 1, .plane = size};
    oracle_channel_moments(&row, x, mean, variance);
}

void oracle_layer_norm(int64_t rows, int64_t size, double eps, const double *x, const double *w,
                       const double *b, double *y) {
    for (int64_t r = 0; r < rows; r++) {
        double mean, variance;
        row_moments(size, x + r * size, &mean, &variance);
        for (int64_t i = 0; i < size; i++)
            y[r * size + i] =
                (x[r * size + i] - mean) / sqrt(variance + eps) * (w ? w[i] : 1) + (b ? b[i] : 0);
    }
}

void oracle_layer_norm_backward(int64_t rows, int64_t size, double eps, const double *x,
                                const double *w, const double *dy, double *dw, double *db,
                                double *dx) {
    for (int64_t r = 0; r < rows; r++, x += size, dy += size, dx += size) {
        double mean, variance, sum = 0, product = 0;
        row_moments(size, x, &mean, &variance);
        double s = sqrt(variance + eps);
        for (int64_t i = 0; i < size; i++) {
            double xhat = (x[i] - mean) / s, g = dy[i] * (w ? w[i] : 1);
            if (dw) dw[i] += dy[i] * xhat;
            if (db) db[i] += dy[i];
            sum += g / (double)size;
            product += g * xhat / (double)size;
        }
        for (int64_t i = 0; i < size; i++)
            dx[i] = (dy[i] * (w ? w[i] : 1) - sum - (x[i] - mean) / s * product) / s;
    }
}

void oracle_softmax(int64_t rows, int64_t k, const double *x, double *y) {
    for (int64_t r = 0; r < rows; r++) {
        double top = x[r * k], sum = 0;
        for (int64_t i = 0; i < k; i++) top = fmax(top, x[r * k + i]);
        for (int64_t i = 0; i < k; i++) sum += exp(x[r * k + i] - top);
        for (int64_t i = 0; i < k; i++) y[r * k + i] = exp(x[r * k + i] - top) / sum;
    }
}

void oracle_softmax_backward(int64_t rows, int64_t k, const double *y, const double *dy,
                             double *dx) {
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t i = 0; i < k; i++) sum += dy[r * k + i] * y[r * k + i];
        for (int64_t i = 0; i < k; i++) dx[r * k + i] = y[r * k + i] * (dy[r * k + i] - sum);
    }
}

static double gelu_argument(double x) { return sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

double oracle_unary(iso__unary function, double alpha, double x) {
    switch (function) {
    case ISO__TANH: return tanh(x);
    case ISO__SIGMOID: return 1 / (1 + exp(-x));
    case ISO__GELU: return 0.5 * x * erfc(-x / sqrt(2));
    case ISO__SILU: return x / (1 + exp(-x));
    case ISO__LEAKY_RELU: return x > 0 ? x : alpha * x;
    case ISO__ELU: return x > 0 ? x : alpha * expm1(x);
    default: return 0.5 * x * (1 + tanh(gelu_argument(x)));
    }
}

double oracle_unary_slope(iso__unary function, double alpha, double x) {
    double y = oracle_unary(function, alpha, x), s = 1 / (1 + exp(-x)), t = tanh(gelu_argument(x));
    switch (function) {
    case ISO__TANH: return 1 - y * y;
    case ISO__SIGMOID: return y * (1 - y);
    case ISO__SILU: return s + x * s * (1 - s);
    case ISO__LEAKY_RELU: return x > 0 ? 1 : alpha;
    case ISO__ELU: return x > 0 ? 1 : alpha * exp(x);
    case ISO__GELU: return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    default:
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    }
}
