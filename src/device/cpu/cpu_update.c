// Optimizer updates: one pass over parameter, gradient and state. Formulas: torch.optim (see
// optim.h). The loops vectorise (see libiso_core_la_CFLAGS in Makefile.am).
#include "device/cpu/cpu_impl.h"

#include <math.h>

ISO_CPU_CLONES static void scale(int64_t count, float factor, float *x) {
    for (int64_t i = 0; i < count; i++) x[i] *= factor;
}

ISO_CPU_CLONES static void sgd_plain(int64_t count, const iso__sgd_args *args,
                                     const float *restrict grad, float *restrict p) {
    const iso__sgd_args a = *args;
    for (int64_t i = 0; i < count; i++) p[i] -= a.lr * (grad[i] * a.scale + a.weight_decay * p[i]);
}

// The first update copies the gradient into the momentum buffer: undampened, and nothing is kept of
// it.
ISO_CPU_CLONES static void sgd_momentum(int64_t count, const iso__sgd_args *args,
                                        const float *restrict grad, float *restrict p,
                                        float *restrict momentum) {
    const iso__sgd_args a = *args;
    const float fresh = a.first ? 1.0f : 1.0f - a.dampening;
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * a.scale + a.weight_decay * p[i];
        float m = (a.first ? 0.0f : a.momentum * momentum[i]) + fresh * g;
        momentum[i] = m;
        p[i] -= a.lr * (a.nesterov ? g + a.momentum * m : m);
    }
}

ISO_CPU_CLONES static void adam(int64_t count, const iso__adam_args *args,
                                const float *restrict grad, float *restrict p, float *restrict m,
                                float *restrict v) {
    const iso__adam_args a = *args;
    const float step = a.lr / a.correction1,
                shrink = a.decoupled ? 1.0f - a.lr * a.weight_decay : 1.0f;
    const float l2 = a.decoupled ? 0.0f : a.weight_decay;
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * a.scale + l2 * p[i];
        m[i] = a.beta1 * m[i] + a.rest1 * g;
        v[i] = a.beta2 * v[i] + a.rest2 * g * g;
        p[i] = shrink * p[i] - step * (m[i] / (sqrtf(v[i]) / a.correction2_sqrt + a.eps));
    }
}

ISO_CPU_CLONES static void adadelta(int64_t count, const iso__adadelta_args *args,
                                    const float *restrict grad, float *restrict p,
                                    float *restrict square_avg, float *restrict acc_delta) {
    const iso__adadelta_args a = *args;
    const float fresh = 1.0f - a.rho;
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * a.scale + a.weight_decay * p[i];
        square_avg[i] = a.rho * square_avg[i] + fresh * g * g;
        float delta = sqrtf(acc_delta[i] + a.eps) / sqrtf(square_avg[i] + a.eps) * g;
        acc_delta[i] = a.rho * acc_delta[i] + fresh * delta * delta;
        p[i] -= a.lr * delta;
    }
}

static iso_status update_scale(iso_device *self, int64_t count, float factor, float *x) {
    (void)self;
    scale(count, factor, x);
    return ISO_OK;
}

static iso_status update_sgd(iso_device *self, int64_t count, const iso__sgd_args *args,
                             const float *g, float *p, float *momentum) {
    (void)self;
    if (momentum)
        sgd_momentum(count, args, g, p, momentum);
    else
        sgd_plain(count, args, g, p);
    return ISO_OK;
}

static iso_status update_adam(iso_device *self, int64_t count, const iso__adam_args *args,
                              const float *g, float *p, float *m, float *v) {
    (void)self;
    adam(count, args, g, p, m, v);
    return ISO_OK;
}

static iso_status update_adadelta(iso_device *self, int64_t count, const iso__adadelta_args *args,
                                  const float *g, float *p, float *square_avg, float *acc_delta) {
    (void)self;
    adadelta(count, args, g, p, square_avg, acc_delta);
    return ISO_OK;
}

void iso__cpu_fill_update(iso_device_ops *ops) {
    ops->scale = update_scale;
    ops->sgd = update_sgd;
    ops->adam = update_adam;
    ops->adadelta = update_adadelta;
}
