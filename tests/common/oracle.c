// SPDX-License-Identifier: MIT
// The naive double-precision reference that every device is compared with.
#include "common/oracle.h"

#include <math.h>

void oracle_linear(int64_t rows, int64_t in, int64_t out, const double *x, const double *w,
                   const double *b, bool relu, double *y) {
    for (int64_t n = 0; n < rows; n++)
        for (int64_t o = 0; o < out; o++) {
            double sum = b ? b[o] : 0;
            for (int64_t i = 0; i < in; i++) sum += x[n * in + i] * w[o * in + i];
            y[n * out + o] = relu && sum < 0 ? 0 : sum;
        }
}

void oracle_linear_backward(int64_t rows, int64_t in, int64_t out, const double *x, const double *w,
                            const double *dy, double *dw, double *db, double *dx) {
    for (int64_t n = 0; n < rows; n++)
        for (int64_t o = 0; o < out; o++) {
            double g = dy[n * out + o];
            if (db) db[o] += g;
            for (int64_t i = 0; i < in; i++) {
                if (dw) dw[o * in + i] += g * x[n * in + i];
                if (dx) dx[n * in + i] += g * w[o * in + i];
            }
        }
}

static int64_t at_least_1(int64_t n) { return n ? n : 1; }

static int64_t conv_size(const oracle_conv *c, int axis, int64_t in) {
    int64_t reach = at_least_1(c->dilation[axis]) * (c->kernel[axis] - 1) + 1;
    return (in + 2 * c->padding[axis] - reach) / c->stride[axis] + 1;
}
int64_t oracle_conv_height(const oracle_conv *c) { return conv_size(c, 0, c->height); }
int64_t oracle_conv_width(const oracle_conv *c) { return conv_size(c, 1, c->width); }

// Calls visit for each product: index of x, of w, and of y.
typedef void conv_visit(void *user, int64_t x, int64_t w, int64_t y);
static void walk_conv_output(const oracle_conv *c, int64_t n, int64_t o, int64_t oy, int64_t ox,
                             int64_t y, conv_visit *visit, void *user) {
    int64_t groups = at_least_1(c->groups), seen = c->in / groups;
    int64_t first = o / (c->out / groups) * seen; // of the input channels that o sees
    for (int64_t i = 0; i < seen; i++)
        for (int64_t kh = 0; kh < c->kernel[0]; kh++)
            for (int64_t kw = 0; kw < c->kernel[1]; kw++) {
                int64_t py = oy * c->stride[0] - c->padding[0] + kh * at_least_1(c->dilation[0]),
                        px = ox * c->stride[1] - c->padding[1] + kw * at_least_1(c->dilation[1]);
                if (py < 0 || px < 0 || py >= c->height || px >= c->width) continue;
                visit(user, ((n * c->in + first + i) * c->height + py) * c->width + px,
                      ((o * seen + i) * c->kernel[0] + kh) * c->kernel[1] + kw, y);
            }
}

static void walk_conv(const oracle_conv *c, conv_visit *visit, void *user) {
    int64_t y = 0;
    for (int64_t n = 0; n < c->rows; n++)
        for (int64_t o = 0; o < c->out; o++)
            for (int64_t oy = 0; oy < oracle_conv_height(c); oy++)
                for (int64_t ox = 0; ox < oracle_conv_width(c); ox++)
                    walk_conv_output(c, n, o, oy, ox, y++, visit, user);
}

typedef struct conv_arrays {
    const double *x, *w, *dy;
    double *y, *dw, *dx;
} conv_arrays;

static void visit_forward(void *user, int64_t x, int64_t w, int64_t y) {
    conv_arrays *a = user;
    a->y[y] += a->x[x] * a->w[w];
}

static void visit_backward(void *user, int64_t x, int64_t w, int64_t y) {
    conv_arrays *a = user;
    if (a->dw) a->dw[w] += a->dy[y] * a->x[x];
    if (a->dx) a->dx[x] += a->dy[y] * a->w[w];
}

void oracle_conv2d(const oracle_conv *c, const double *x, const double *w, const double *b,
                   bool relu, double *y) {
    int64_t plane = oracle_conv_height(c) * oracle_conv_width(c), count = c->rows * c->out * plane;
    for (int64_t i = 0; i < count; i++) y[i] = b ? b[i / plane % c->out] : 0;
    walk_conv(c, visit_forward, &(conv_arrays){.x = x, .w = w, .y = y});
    for (int64_t i = 0; relu && i < count; i++) y[i] = y[i] < 0 ? 0 : y[i];
}

void oracle_conv2d_backward(const oracle_conv *c, const double *x, const double *w,
                            const double *dy, double *dw, double *db, double *dx) {
    int64_t plane = oracle_conv_height(c) * oracle_conv_width(c);
    walk_conv(c, visit_backward, &(conv_arrays){.x = x, .w = w, .dy = dy, .dw = dw, .dx = dx});
    for (int64_t i = 0; db && i < c->rows * c->out * plane; i++) db[i / plane % c->out] += dy[i];
}

void oracle_dropout_mask(const iso__dropout_draw *draw, int64_t rows, int64_t channels,
                         int64_t plane, double *mask) {
    for (int64_t i = 0; i < rows * channels * plane; i++) {
        int64_t row = i / (channels * plane), in_row = i % (channels * plane);
        int64_t index = draw->channels ? in_row / plane : in_row;
        uint32_t counter[4] = {(uint32_t)(index / 4), (uint32_t)(draw->first_row + row),
                               (uint32_t)draw->number, (uint32_t)(draw->number >> 32)};
        uint32_t bits[4];
        iso__philox(draw->key, counter, bits);
        mask[i] = (double)iso__uniform(bits[index % 4]) < draw->p ? 0 : 1 / (1 - draw->p);
    }
}

void oracle_log_softmax(int64_t rows, int64_t k, const double *x, double *y) {
    for (int64_t n = 0; n < rows; n++) {
        double top = x[n * k], sum = 0;
        for (int64_t i = 0; i < k; i++) top = fmax(top, x[n * k + i]);
        for (int64_t i = 0; i < k; i++) sum += exp(x[n * k + i] - top);
        for (int64_t i = 0; i < k; i++) y[n * k + i] = x[n * k + i] - top - log(sum);
    }
}

void oracle_log_softmax_backward(int64_t rows, int64_t k, const double *y, const double *dy,
                                 double *dx) {
    for (int64_t n = 0; n < rows; n++) {
        double sum = 0;
        for (int64_t i = 0; i < k; i++) sum += dy[n * k + i];
        for (int64_t i = 0; i < k; i++) dx[n * k + i] = dy[n * k + i] - exp(y[n * k + i]) * sum;
    }
}

void oracle_sgd(const iso__sgd_args *args, double g, double *p, double *momentum) {
    g = g * (double)args->scale + (double)args->weight_decay * *p;
    if (args->momentum != 0) {
        *momentum = args->first
                        ? g
                        : (double)args->momentum * *momentum + (1 - (double)args->dampening) * g;
        g = args->nesterov ? g + (double)args->momentum * *momentum : *momentum;
    }
    *p -= (double)args->lr * g;
}

void oracle_adam(const iso__adam_args *args, double g, double *p, double *m, double *v) {
    double beta1 = (double)args->beta1, beta2 = (double)args->beta2;
    g *= (double)args->scale;
    if (args->decoupled)
        *p *= 1 - (double)args->lr * (double)args->weight_decay;
    else
        g += (double)args->weight_decay * *p;
    *m = beta1 * *m + (double)args->rest1 * g;
    *v = beta2 * *v + (double)args->rest2 * g * g;
    *p -= (double)args->lr / (double)args->correction1 * *m /
          (sqrt(*v) / (double)args->correction2_sqrt + (double)args->eps);
}

void oracle_adadelta(const iso__adadelta_args *args, double g, double *p, double *square_avg,
                     double *acc_delta) {
    double rho = (double)args->rho, eps = (double)args->eps;
    g = g * (double)args->scale + (double)args->weight_decay * *p;
    *square_avg = rho * *square_avg + (1 - rho) * g * g;
    double delta = sqrt(*acc_delta + eps) / sqrt(*square_avg + eps) * g;
    *acc_delta = rho * *acc_delta + (1 - rho) * delta * delta;
    *p -= (double)args->lr * delta;
}
