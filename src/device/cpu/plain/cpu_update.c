// SPDX-License-Identifier: MIT
// Optimizer updates: one pass over parameter, gradient and state. Formulas: torch.optim (see
// optim.h). The loops vectorise (see libiso_core_la_CFLAGS in Makefile.am).
#include "device/cpu/plain/cpu_real.h"

ISO_CPU_CLONES static void scale(int64_t count, real factor, real *x) {
    for (int64_t i = 0; i < count; i++) x[i] *= factor;
}

ISO_CPU_CLONES static void sgd_plain(int64_t count, const iso__sgd_args *args,
                                     const real *restrict grad, real *restrict p) {
    const real lr = (real)args->lr, rescale = (real)args->scale, decay = (real)args->weight_decay;
    for (int64_t i = 0; i < count; i++) p[i] -= lr * (grad[i] * rescale + decay * p[i]);
}

// The first update with momentum copies the gradient into the momentum buffer: without dampening,
// and without the buffer's old contents.
ISO_CPU_CLONES static void sgd_momentum(int64_t count, const iso__sgd_args *args,
                                        const real *restrict grad, real *restrict p,
                                        real *restrict momentum) {
    const real lr = (real)args->lr, rescale = (real)args->scale, decay = (real)args->weight_decay;
    const real mu = (real)args->momentum, fresh = args->first ? 1 : 1 - (real)args->dampening;
    const bool first = args->first, nesterov = args->nesterov;
    for (int64_t i = 0; i < count; i++) {
        real g = grad[i] * rescale + decay * p[i];
        real m = (first ? 0 : mu * momentum[i]) + fresh * g;
        momentum[i] = m;
        p[i] -= lr * (nesterov ? g + mu * m : m);
    }
}

ISO_CPU_CLONES static void adam(int64_t count, const iso__adam_args *args,
                                const real *restrict grad, real *restrict p, real *restrict m,
                                real *restrict v) {
    const real rescale = (real)args->scale, eps = (real)args->eps;
    const real step = (real)args->lr / (real)args->correction1;
    const real shrink = args->decoupled ? 1 - (real)args->lr * (real)args->weight_decay : 1;
    const real l2 = args->decoupled ? 0 : (real)args->weight_decay;
    const real beta1 = (real)args->beta1, rest1 = (real)args->rest1, beta2 = (real)args->beta2,
               rest2 = (real)args->rest2, correction = (real)args->correction2_sqrt;
    for (int64_t i = 0; i < count; i++) {
        real g = grad[i] * rescale + l2 * p[i];
        m[i] = beta1 * m[i] + rest1 * g;
        v[i] = beta2 * v[i] + rest2 * g * g;
        p[i] = shrink * p[i] - step * (m[i] / (sqrt(v[i]) / correction + eps));
    }
}

ISO_CPU_CLONES static void amsgrad(int64_t count, const iso__adam_args *args,
                                   const real *restrict grad, real *restrict p, real *restrict m,
                                   real *restrict v, real *restrict most) {
    const real rescale = (real)args->scale, eps = (real)args->eps;
    const real step = (real)args->lr / (real)args->correction1;
    const real shrink = args->decoupled ? 1 - (real)args->lr * (real)args->weight_decay : 1;
    const real l2 = args->decoupled ? 0 : (real)args->weight_decay;
    const real beta1 = (real)args->beta1, rest1 = (real)args->rest1, beta2 = (real)args->beta2,
               rest2 = (real)args->rest2, correction = (real)args->correction2_sqrt;
    for (int64_t i = 0; i < count; i++) {
        real g = grad[i] * rescale + l2 * p[i];
        m[i] = beta1 * m[i] + rest1 * g;
        real square = beta2 * v[i] + rest2 * g * g;
        v[i] = square;
        most[i] = most[i] >= square ? most[i] : square; // a NaN of square is kept
        p[i] = shrink * p[i] - step * (m[i] / (sqrt(most[i]) / correction + eps));
    }
}

ISO_CPU_CLONES static void nadam(int64_t count, const iso__nadam_args *args,
                                 const real *restrict grad, real *restrict p, real *restrict m,
                                 real *restrict v) {
    const real rescale = (real)args->scale, eps = (real)args->eps, decay = (real)args->weight_decay;
    const real beta1 = (real)args->beta1, rest1 = (real)args->rest1, beta2 = (real)args->beta2,
               rest2 = (real)args->rest2, correction = (real)args->correction2;
    const real of_gradient = (real)args->of_gradient, of_moment = (real)args->of_moment;
    for (int64_t i = 0; i < count; i++) {
        real g = grad[i] * rescale + decay * p[i];
        m[i] = beta1 * m[i] + rest1 * g;
        v[i] = beta2 * v[i] + rest2 * g * g;
        p[i] -= (of_gradient * g + of_moment * m[i]) / (sqrt(v[i] / correction) + eps);
    }
}

ISO_CPU_CLONES static void adadelta(int64_t count, const iso__adadelta_args *args,
                                    const real *restrict grad, real *restrict p,
                                    real *restrict square_avg, real *restrict acc_delta) {
    const real lr = (real)args->lr, rescale = (real)args->scale, decay = (real)args->weight_decay;
    const real rho = (real)args->rho, fresh = 1 - rho, eps = (real)args->eps;
    for (int64_t i = 0; i < count; i++) {
        real g = grad[i] * rescale + decay * p[i];
        square_avg[i] = rho * square_avg[i] + fresh * g * g;
        real delta = sqrt(acc_delta[i] + eps) / sqrt(square_avg[i] + eps) * g;
        acc_delta[i] = rho * acc_delta[i] + fresh * delta * delta;
        p[i] -= lr * delta;
    }
}

ISO_CPU_CLONES static void adagrad(int64_t count, const iso__adagrad_args *args,
                                   const real *restrict grad, real *restrict p,
                                   real *restrict sum) {
    const real lr = (real)args->lr, rescale = (real)args->scale, decay = (real)args->weight_decay;
    const real eps = (real)args->eps;
    for (int64_t i = 0; i < count; i++) {
        real g = grad[i] * rescale + decay * p[i];
        sum[i] += g * g;
        p[i] -= lr * (g / (sqrt(sum[i]) + eps));
    }
}

// ---- RMSprop: a loop for each set of buffers -------------------------------------------------------

// Compiled into the four functions below, in which the buffers that are NULL are known.
static inline __attribute__((always_inline)) void
rmsprop_loop(int64_t count, const iso__rmsprop_args *args, const real *restrict grad,
             real *restrict p, real *restrict square_avg, real *restrict grad_avg,
             real *restrict momentum) {
    const real lr = (real)args->lr, rescale = (real)args->scale, decay = (real)args->weight_decay;
    const real alpha = (real)args->alpha, rest = (real)args->rest, eps = (real)args->eps;
    const real mu = (real)args->momentum;
    for (int64_t i = 0; i < count; i++) {
        real g = grad[i] * rescale + decay * p[i];
        real square = alpha * square_avg[i] + rest * g * g;
        square_avg[i] = square;
        if (grad_avg) {
            real mean = alpha * grad_avg[i] + rest * g;
            grad_avg[i] = mean;
            // A variance, which rounding may make negative where gradients hardly change.
            square -= mean * mean;
            square = square < 0 ? 0 : square;
        }
        real step = g / (sqrt(square) + eps);
        if (momentum) step = momentum[i] = mu * momentum[i] + step;
        p[i] -= lr * step;
    }
}

ISO_CPU_CLONES static void rmsprop_plain(int64_t count, const iso__rmsprop_args *args,
                                         const real *grad, real *p, real *square_avg) {
    rmsprop_loop(count, args, grad, p, square_avg, NULL, NULL);
}
ISO_CPU_CLONES static void rmsprop_centered(int64_t count, const iso__rmsprop_args *args,
                                            const real *grad, real *p, real *square_avg,
                                            real *grad_avg) {
    rmsprop_loop(count, args, grad, p, square_avg, grad_avg, NULL);
}
ISO_CPU_CLONES static void rmsprop_momentum(int64_t count, const iso__rmsprop_args *args,
                                            const real *grad, real *p, real *square_avg,
                                            real *momentum) {
    rmsprop_loop(count, args, grad, p, square_avg, NULL, momentum);
}
ISO_CPU_CLONES static void rmsprop_all(int64_t count, const iso__rmsprop_args *args,
                                       const real *grad, real *p, real *square_avg, real *grad_avg,
                                       real *momentum) {
    rmsprop_loop(count, args, grad, p, square_avg, grad_avg, momentum);
}

// ---- LAMB: a pass for the moments and the norms, and one for the update ----------------------------

// Partial sums of a norm: element i goes to number i % LANES on every instruction set.
#define LANES 16

typedef struct lamb_terms {
    real beta1, rest1, beta2, rest2, rescale, eps, decay, correction1, correction2;
} lamb_terms;

static lamb_terms lamb_terms_of(const iso__lamb_args *args) {
    return (lamb_terms){.beta1 = (real)args->beta1,
                        .rest1 = (real)args->rest1,
                        .beta2 = (real)args->beta2,
                        .rest2 = (real)args->rest2,
                        .rescale = (real)args->scale,
                        .eps = (real)args->eps,
                        .decay = (real)args->weight_decay,
                        .correction1 = (real)args->correction1,
                        .correction2 = (real)args->correction2_sqrt};
}

// The same bits in both passes.
static inline __attribute__((always_inline)) real lamb_direction(const lamb_terms *t, real m,
                                                                 real v, real p) {
    return m / t->correction1 / (sqrt(v) / t->correction2 + t->eps) + t->decay * p;
}

static inline __attribute__((always_inline)) void
lamb_block(int64_t count, const lamb_terms *t, const real *restrict grad, const real *restrict p,
           real *restrict m, real *restrict v, double *restrict sum_p, double *restrict sum_u) {
    for (int64_t i = 0; i < count; i++) {
        real g = grad[i] * t->rescale;
        m[i] = t->beta1 * m[i] + t->rest1 * g;
        v[i] = t->beta2 * v[i] + t->rest2 * g * g;
        double u = (double)lamb_direction(t, m[i], v[i], p[i]);
        sum_p[i] += (double)p[i] * (double)p[i];
        sum_u[i] += u * u;
    }
}

// The squares of the norms of the parameter and of the direction.
ISO_CPU_CLONES static void lamb_moments(int64_t count, const lamb_terms *terms, const real *grad,
                                        const real *p, real *m, real *v, double square[2]) {
    const lamb_terms t = *terms;
    double sum_p[LANES] = {0}, sum_u[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        lamb_block(LANES, &t, grad + i, p + i, m + i, v + i, sum_p, sum_u);
    lamb_block(count - i, &t, grad + i, p + i, m + i, v + i, sum_p, sum_u);
    for (int lane = 1; lane < LANES; lane++) {
        sum_p[0] += sum_p[lane];
        sum_u[0] += sum_u[lane];
    }
    square[0] = sum_p[0];
    square[1] = sum_u[0];
}

ISO_CPU_CLONES static void lamb_apply(int64_t count, const lamb_terms *terms, real step,
                                      real *restrict p, const real *restrict m,
                                      const real *restrict v) {
    const lamb_terms t = *terms;
    for (int64_t i = 0; i < count; i++) p[i] -= step * lamb_direction(&t, m[i], v[i], p[i]);
}

// ---- The table -------------------------------------------------------------------------------------

static iso_status update_scale(iso_device *self, int64_t count, double factor, void *x) {
    (void)self;
    scale(count, (real)factor, x);
    return ISO_OK;
}

static iso_status update_sgd(iso_device *self, int64_t count, const iso__sgd_args *args,
                             const void *g, void *p, void *momentum) {
    (void)self;
    if (momentum)
        sgd_momentum(count, args, g, p, momentum);
    else
        sgd_plain(count, args, g, p);
    return ISO_OK;
}

static iso_status update_adam(iso_device *self, int64_t count, const iso__adam_args *args,
                              const void *g, void *p, void *m, void *v, void *most) {
    (void)self;
    if (most)
        amsgrad(count, args, g, p, m, v, most);
    else
        adam(count, args, g, p, m, v);
    return ISO_OK;
}

static iso_status update_nadam(iso_device *self, int64_t count, const iso__nadam_args *args,
                               const void *g, void *p, void *m, void *v) {
    (void)self;
    nadam(count, args, g, p, m, v);
    return ISO_OK;
}

static iso_status update_adadelta(iso_device *self, int64_t count, const iso__adadelta_args *args,
                                  const void *g, void *p, void *square_avg, void *acc_delta) {
    (void)self;
    adadelta(count, args, g, p, square_avg, acc_delta);
    return ISO_OK;
}

static iso_status update_adagrad(iso_device *self, int64_t count, const iso__adagrad_args *args,
                                 const void *g, void *p, void *sum) {
    (void)self;
    adagrad(count, args, g, p, sum);
    return ISO_OK;
}

static iso_status update_rmsprop(iso_device *self, int64_t count, const iso__rmsprop_args *args,
                                 const void *g, void *p, void *square_avg, void *grad_avg,
                                 void *momentum) {
    (void)self;
    if (grad_avg && momentum)
        rmsprop_all(count, args, g, p, square_avg, grad_avg, momentum);
    else if (grad_avg)
        rmsprop_centered(count, args, g, p, square_avg, grad_avg);
    else if (momentum)
        rmsprop_momentum(count, args, g, p, square_avg, momentum);
    else
        rmsprop_plain(count, args, g, p, square_avg);
    return ISO_OK;
}

static iso_status measure_lamb(iso_device *self, int64_t count, const iso__lamb_args *args,
                               const void *g, const void *p, void *m, void *v, double square[2]) {
    (void)self;
    lamb_terms terms = lamb_terms_of(args);
    lamb_moments(count, &terms, g, p, m, v, square);
    return ISO_OK;
}

static iso_status step_lamb(iso_device *self, int64_t count, const iso__lamb_args *args,
                            const double square[2], void *p, const void *m, const void *v) {
    (void)self;
    lamb_terms terms = lamb_terms_of(args);
    double ratio = square[0] > 0 && square[1] > 0 ? sqrt(square[0] / square[1]) : 1;
    lamb_apply(count, &terms, (real)(args->lr * ratio), p, m, v);
    return ISO_OK;
}

static iso_status update_lamb(iso_device *self, int64_t count, const iso__lamb_args *args,
                              const void *g, void *p, void *m, void *v) {
    double square[2];
    ISO_TRY(measure_lamb(self, count, args, g, p, m, v, square));
    return step_lamb(self, count, args, square, p, m, v);
}

void ISO_REAL(iso__cpu_fill_update)(iso_kernel_ops *ops) {
    ops->scale = update_scale;
    ops->sgd = update_sgd;
    ops->adam = update_adam;
    ops->adadelta = update_adadelta;
    ops->adagrad = update_adagrad;
    ops->rmsprop = update_rmsprop;
    ops->lamb = update_lamb;
    ops->lamb_measure = measure_lamb;
    ops->lamb_step = step_lamb;
    ops->nadam = update_nadam;
}
