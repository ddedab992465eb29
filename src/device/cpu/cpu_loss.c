// Log-softmax and the losses over [N, K]; small, so plain C with double-precision sums.
#include "device/cpu/cpu_real.h"

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

// Gradient of the batch mean in one row: (softmax(x) - onehot) / N, or -onehot / N.
static void loss_gradient(iso_loss_kind kind, int64_t k, const real *x, double norm, int64_t label,
                          double rows, real *grad) {
    for (int64_t i = 0; i < k; i++) {
        double g = kind == ISO_CROSS_ENTROPY ? exp((double)x[i] - norm) : 0;
        grad[i] = (real)((g - (i == label ? 1 : 0)) / rows);
    }
}

static iso_status loss(iso_device *self, iso_loss_kind kind, const iso_tensor *output,
                       const int32_t *labels, double *value, int64_t *correct, iso_tensor *grad) {
    (void)self;
    int64_t rows = output->shape[0], k = output->shape[1], hits = 0;
    double sum = 0;
    for (int64_t n = 0; n < rows; n++) {
        const real *x = (real *)output->data + n * k;
        double norm = kind == ISO_CROSS_ENTROPY ? log_sum_exp(k, x) : 0;
        int64_t best = 0;
        for (int64_t i = 1; i < k; i++) best = x[i] > x[best] ? i : best;
        hits += best == labels[n];
        sum += norm - (double)x[labels[n]];
        if (grad)
            loss_gradient(kind, k, x, norm, labels[n], (double)rows, (real *)grad->data + n * k);
    }
    *value = sum / (double)rows;
    *correct = hits;
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_loss)(iso_kernel_ops *ops) {
    ops->log_softmax_forward = log_softmax_forward;
    ops->log_softmax_backward = log_softmax_backward;
    ops->loss = loss;
}
