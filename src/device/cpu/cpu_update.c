// Optimizer updates: one pass over parameter, gradient and state. Formulas: torch.optim (see
// optim.h). The loops vectorise (see libiso_core_la_CFLAGS in Makefile.am).
#include "device/cpu/cpu_real.h"

ISO_CPU_CLONES static void scale(int64_t count, real factor, real *x) {
    for (int64_t i = 0; i < count; i++) x[i] *= factor;
}

ISO_CPU_CLONES static void sgd_plain(int64_t count, const iso__sgd_args *args,
                                     const real *restrict grad, real *restrict p) {
    const real lr = (real)args->lr, rescale = (real)args->scale, decay = (real)args->weight_decay;
    for (int64_t i = 0; i < count; i++) p[i] -= lr * (grad[i] * rescale + decay * p[i]);
}

// The first update copies the gradient into the momentum buffer: undampened, and nothing is kept of
// it.
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
                              const void *g, void *p, void *m, void *v) {
    (void)self;
    adam(count, args, g, p, m, v);
    return ISO_OK;
}

static iso_status update_adadelta(iso_device *self, int64_t count, const iso__adadelta_args *args,
                                  const void *g, void *p, void *square_avg, void *acc_delta) {
    (void)self;
    adadelta(count, args, g, p, square_avg, acc_delta);
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_update)(iso_kernel_ops *ops) {
    ops->scale = update_scale;
    ops->sgd = update_sgd;
    ops->adam = update_adam;
    ops->adadelta = update_adadelta;
}
