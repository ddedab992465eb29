// SPDX-License-Identifier: MIT
// Log-softmax and the losses over [N, K]; small, so plain C with double-precision sums.
#include "device/cpu/plain/cpu_real.h"

// log(sum(exp(x))) without overflow.
static double log_sum_exp(int64_t count, const real *x) {
    real top = x[0];
    for (int64_t i = 1; i < count; i++) top = x[i] > top ? x[i] : top;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += exp((double)x[i] - (double)top);
    return (double)top + log(sum);
}

static int64_t last_dimension(const iso_tensor *x) { return x->shape[x->ndim - 1]; }

static iso_status log_softmax_forward(iso_device *self, const iso_tensor *x, iso_tensor *y) {
    (void)self;
    int64_t k = last_dimension(x);
    for (int64_t n = 0; n < x->count / k; n++) {
        const real *in = (real *)x->data + n * k;
        real *out = (real *)y->data + n * k;
        double norm = log_sum_exp(k, in);
        for (int64_t i = 0; i < k; i++) out[i] = (real)((double)in[i] - norm);
    }
    return ISO_OK;
}

// dx = dy - softmax(x) * sum(dy), with softmax(x) = exp(y).
static iso_status log_softmax_backward(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                       iso_tensor *dx) {
    (void)self;
    int64_t k = last_dimension(y);
    for (int64_t n = 0; n < y->count / k; n++) {
        const real *out = (real *)y->data + n * k, *g = (real *)dy->data + n * k;
        real *to = (real *)dx->data + n * k;
        double sum = 0;
        for (int64_t i = 0; i < k; i++) sum += (double)g[i];
        for (int64_t i = 0; i < k; i++) to[i] = (real)((double)g[i] - exp((double)out[i]) * sum);
    }
    return ISO_OK;
}

// ---- One row of a classifier: returns its loss; gradient of the batch mean, NULL: not wanted ----

// Target distribution t: 1 - s at the label, plus s / K everywhere. As t sums up to 1, the loss is
// log(sum(exp(x))) - sum(t x), its gradient softmax(x) - t.
static double cross_entropy_row(int64_t k, const real *x, int64_t label, double smoothing,
                                double rows, real *grad) {
    double norm = log_sum_exp(k, x), rest = smoothing / (double)k, sum = 0;
    for (int64_t i = 0; smoothing > 0 && i < k; i++) sum += (double)x[i];
    for (int64_t i = 0; grad && i < k; i++) {
        double target = rest + (i == label ? 1 - smoothing : 0);
        grad[i] = (real)((exp((double)x[i] - norm) - target) / rows);
    }
    return norm - (1 - smoothing) * (double)x[label] - rest * sum;
}

static double nll_row(int64_t k, const real *x, int64_t label, double rows, real *grad) {
    for (int64_t i = 0; grad && i < k; i++) grad[i] = (real)(i == label ? -1 / rows : 0);
    return -(double)x[label];
}

// Of an element: the loss, and its derivative by x.
typedef struct term {
    double loss, slope;
} term;

static inline term bce_term(double x, double t) {
    double small = exp(-fabs(x)), near = 1 / (1 + small); // no overflow
    return (term){fmax(x, 0) - x * t + log1p(small), (x >= 0 ? near : small * near) - t};
}

static inline term l1_term(double x, double t) { return (term){fabs(x - t), (x > t) - (x < t)}; }

static inline term huber_term(double x, double t, double delta) {
    double gap = x - t, size = fabs(gap);
    if (size < delta) return (term){gap * gap / 2, gap};
    return (term){delta * (size - delta / 2), gap < 0 ? -delta : gap > 0 ? delta : gap};
}

static inline term element_term(const iso_loss_config *config, double x, double t) {
    switch (config->kind) {
    case ISO_BCE_WITH_LOGITS: return bce_term(x, t);
    case ISO_L1: return l1_term(x, t);
    case ISO_HUBER: return huber_term(x, t, config->delta);
    default: return (term){(x - t) * (x - t), 2 * (x - t)};
    }
}

static double element_row(const iso_loss_config *config, int64_t k, const real *x, int64_t label,
                          double rows, real *grad) {
    double sum = 0;
    for (int64_t i = 0; i < k; i++) {
        term e = element_term(config, (double)x[i], i == label ? 1 : 0);
        sum += e.loss;
        if (grad) grad[i] = (real)(e.slope / ((double)k * rows));
    }
    return sum / (double)k;
}

static double loss_row(const iso_loss_config *config, int64_t k, const real *x, int64_t label,
                       double rows, real *grad) {
    switch (config->kind) {
    case ISO_NLL: return nll_row(k, x, label, rows, grad);
    case ISO_CROSS_ENTROPY:
        return cross_entropy_row(k, x, label, config->label_smoothing, rows, grad);
    default: return element_row(config, k, x, label, rows, grad);
    }
}

static iso_status label_loss(iso_device *self, const iso_loss_config *config,
                             const iso_tensor *output, const int32_t *labels, double result[2],
                             iso_tensor *grad) {
    (void)self;
    int64_t k = last_dimension(output), rows = output->count / k, hits = 0;
    double sum = 0;
    for (int64_t n = 0; n < rows; n++) {
        const real *x = (real *)output->data + n * k;
        int64_t best = 0;
        for (int64_t i = 1; i < k; i++) best = x[i] > x[best] ? i : best;
        hits += best == labels[n];
        sum += loss_row(config, k, x, labels[n], (double)rows,
                        grad ? (real *)grad->data + n * k : NULL);
    }
    result[0] = sum / (double)rows;
    result[1] = (double)hits;
    return ISO_OK;
}

// ---- Of all elements alike ----

// Squared differences of up to LANES elements added to as many sums, so that they run side by side.
#define LANES 8

ISO_CPU_CLONES static double squared_distance(int64_t count, const real *x, const real *t) {
    double partial[LANES] = {0}, sum = 0;
    for (int64_t i = 0; i < count; i += LANES)
        for (int64_t l = 0; l < LANES && i + l < count; l++) {
            double gap = (double)x[i + l] - (double)t[i + l];
            partial[l] += gap * gap;
        }
    for (int l = 0; l < LANES; l++) sum += partial[l];
    return sum;
}

ISO_CPU_CLONES static void mse_gradient(int64_t count, const real *restrict x,
                                        const real *restrict t, real *restrict grad) {
    const double factor = 2 / (double)count;
    for (int64_t i = 0; i < count; i++) grad[i] = (real)(factor * ((double)x[i] - (double)t[i]));
}

static iso_status mse_loss(const iso_tensor *output, const iso_tensor *target, double result[2],
                           iso_tensor *grad) {
    result[0] = squared_distance(output->count, output->data, target->data) / (double)output->count;
    if (grad) mse_gradient(output->count, output->data, target->data, grad->data);
    return ISO_OK;
}

static iso_status target_loss(iso_device *self, const iso_loss_config *config,
                              const iso_tensor *output, const iso_tensor *target, double result[2],
                              iso_tensor *grad) {
    (void)self;
    if (config->kind == ISO_MSE) return mse_loss(output, target, result, grad);
    const real *x = output->data, *t = target->data;
    double sum = 0, count = (double)output->count;
    for (int64_t i = 0; i < output->count; i++) {
        term e = element_term(config, (double)x[i], (double)t[i]);
        sum += e.loss;
        if (grad) ((real *)grad->data)[i] = (real)(e.slope / count);
    }
    result[0] = sum / count;
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_loss)(iso_kernel_ops *ops) {
    ops->log_softmax_forward = log_softmax_forward;
    ops->log_softmax_backward = log_softmax_backward;
    ops->loss = label_loss;
    ops->target_loss = target_loss;
}
