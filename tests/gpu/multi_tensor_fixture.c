// SPDX-License-Identifier: MIT
// What tests of updates that are taken together share.
#include "gpu/multi_tensor_fixture.h"

#include <math.h>

target open_with(iso_dtype dtype, const char *graphs) {
    target on = {.dtype = dtype};
    setenv("ISO_CUDA_GRAPHS", graphs, 1);
    if (iso_device_create("cuda", &on.device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    on.kernels = on.device->kernels[dtype];
    return on;
}
target open_cuda(iso_dtype dtype) { return open_with(dtype, "0"); }

void finish(const target *on) {
    if (on->device->ops->remote) OK(on->device->ops->remote->finish(on->device));
}

long long launches(const target *on) {
    long long count, graphs;
    iso_device_launches(on->device, &count, &graphs);
    return count;
}

const iso__cuda_multi_tensor *multi_tensor_of(const target *on) {
    return &iso__cuda_of(on->device)->multi_tensor;
}

iso__rounded_to rounded_to;

// ---- Rules --------------------------------------------------------------------------------------

iso_status sgd(const target *on, int64_t count, double lr, void *const x[ROLES]) {
    iso__sgd_args a = {.lr = lr, .scale = 0.5, .weight_decay = 0.01, .to = rounded_to};
    return on->kernels->sgd(on->device, count, &a, x[G], x[P], NULL);
}
static iso_status nesterov(const target *on, int64_t count, double lr, void *const x[ROLES]) {
    iso__sgd_args a = {.lr = lr, .scale = 0.5, .momentum = 0.9, .nesterov = true, .to = rounded_to};
    return on->kernels->sgd(on->device, count, &a, x[G], x[P], x[S0]);
}
static iso_status adam_as(const target *on, int64_t count, double lr, void *const x[ROLES],
                          bool decoupled) {
    iso__adam_args a = {.lr = lr,
                        .beta1 = 0.9,
                        .beta2 = 0.99,
                        .eps = 1e-3,
                        .weight_decay = 0.1,
                        .scale = 0.5,
                        .rest1 = 0.1,
                        .rest2 = 0.01,
                        .correction1 = 0.19,
                        .correction2_sqrt = 0.14,
                        .decoupled = decoupled,
                        .to = rounded_to};
    return on->kernels->adam(on->device, count, &a, x[G], x[P], x[S0], x[S1], NULL);
}
iso_status adam(const target *on, int64_t count, double lr, void *const x[ROLES]) {
    return adam_as(on, count, lr, x, false);
}
static iso_status adamw(const target *on, int64_t count, double lr, void *const x[ROLES]) {
    return adam_as(on, count, lr, x, true);
}
static iso_status adadelta(const target *on, int64_t count, double lr, void *const x[ROLES]) {
    iso__adadelta_args a = {.lr = lr, .rho = 0.9, .eps = 1e-3, .scale = 0.5, .to = rounded_to};
    return on->kernels->adadelta(on->device, count, &a, x[G], x[P], x[S0], x[S1]);
}
iso_status adagrad(const target *on, int64_t count, double lr, void *const x[ROLES]) {
    iso__adagrad_args a = {
        .lr = lr, .eps = 1e-3, .scale = 0.5, .weight_decay = 0.1, .to = rounded_to};
    return on->kernels->adagrad(on->device, count, &a, x[G], x[P], x[S0]);
}
static iso_status rmsprop_as(const target *on, int64_t count, double lr, void *const x[ROLES],
                             int variant) {
    iso__rmsprop_args a = {.lr = lr,
                           .alpha = 0.75,
                           .rest = 0.25,
                           .eps = 0.125,
                           .scale = 0.5,
                           .momentum = variant & 1 ? 0.9 : 0,
                           .to = rounded_to};
    return on->kernels->rmsprop(on->device, count, &a, x[G], x[P], x[S0],
                                variant & 2 ? x[S1] : NULL, variant & 1 ? x[S2] : NULL);
}
static iso_status rmsprop(const target *on, int64_t count, double lr, void *const x[ROLES]) {
    return rmsprop_as(on, count, lr, x, 0);
}
static iso_status rmsprop_momentum(const target *on, int64_t count, double lr,
                                   void *const x[ROLES]) {
    return rmsprop_as(on, count, lr, x, 1);
}
static iso_status rmsprop_centered(const target *on, int64_t count, double lr,
                                   void *const x[ROLES]) {
    return rmsprop_as(on, count, lr, x, 2);
}
static iso_status rmsprop_both(const target *on, int64_t count, double lr, void *const x[ROLES]) {
    return rmsprop_as(on, count, lr, x, 3);
}
iso_status scale(const target *on, int64_t count, double lr, void *const x[ROLES]) {
    return on->kernels->scale(on->device, count, lr, x[P]);
}

static iso_status amsgrad(const target *on, int64_t count, double lr, void *const x[ROLES]) {
    iso__adam_args a = {.lr = lr, .beta1 = 0.5, .rest1 = 0.5, .beta2 = 0.5, .rest2 = 0.5};
    a.eps = a.scale = a.correction1 = a.correction2_sqrt = 0.5;
    a.to = rounded_to;
    return on->kernels->adam(on->device, count, &a, x[G], x[P], x[S0], x[S1], x[S2]);
}
static iso_status nadam(const target *on, int64_t count, double lr, void *const x[ROLES]) {
    iso__nadam_args a = {.of_gradient = lr, .of_moment = lr, .beta1 = 0.5, .rest1 = 0.5};
    a.beta2 = a.rest2 = a.eps = a.scale = a.correction2 = 0.5;
    a.to = rounded_to;
    return on->kernels->nadam(on->device, count, &a, x[G], x[P], x[S0], x[S1]);
}

const call rules[RULES] = {sgd,     nesterov,         adam,
                           adamw,   adadelta,         adagrad,
                           rmsprop, rmsprop_momentum, rmsprop_centered,
                           scale,   rmsprop_both,     amsgrad,
                           nadam};

// ---- Memory -------------------------------------------------------------------------------------

memory memory_create(const target *on) {
    memory m;
    for (int role = 0; role < ROLES; role++) {
        void *data;
        OK(iso_tensor_create(on->device, on->dtype, 1, &(int64_t){ELEMENTS}, &m.x[role]));
        OK(iso_tensor_map(m.x[role], ISO_WRITE, &data));
        for (int64_t i = 0; i < ELEMENTS; i++) {
            double value = (double)((i * 7919 + role * 104729) % 10007) / 10007; // [0, 1)
            if (role == G || role == P) value -= 0.5;
            if (role == S1) value *= 0.1; // a mean that leaves a variance
            if (on->dtype == ISO_F64)
                ((double *)data)[i] = value;
            else
                ((float *)data)[i] = (float)value;
        }
        OK(iso_tensor_unmap(m.x[role]));
    }
    return m;
}

void memory_destroy(memory *m) {
    for (int role = 0; role < ROLES; role++) iso_tensor_destroy(&m->x[role]);
}

void locate(const memory *m, int64_t first, int64_t first_g, void *x[ROLES]) {
    for (int role = 0; role < ROLES; role++)
        x[role] = (char *)m->x[role]->data +
                  (size_t)(role == G ? first_g : first) * iso_dtype_size(m->x[role]->dtype);
}

// What no update names is compared too.
void check_same(const memory *a, const memory *b, double tolerance, int rule) {
    for (int role = 0; role < ROLES; role++) {
        void *x, *y;
        OK(iso_tensor_map(a->x[role], ISO_READ, &x));
        OK(iso_tensor_map(b->x[role], ISO_READ, &y));
        bool wide = a->x[role]->dtype == ISO_F64;
        for (int64_t i = 0; i < ELEMENTS; i++) {
            double u = wide ? ((double *)x)[i] : (double)((float *)x)[i];
            double v = wide ? ((double *)y)[i] : (double)((float *)y)[i];
            cr_assert(fabs(u - v) <= tolerance, "rule %d, role %d, element %ld: %.9g, not %.9g",
                      rule, role, (long)i, u, v);
        }
        OK(iso_tensor_unmap(b->x[role]));
        OK(iso_tensor_unmap(a->x[role]));
    }
}

// ---- Series -------------------------------------------------------------------------------------

void run_series(const target *on, const memory *m, const series *s, bool one_by_one) {
    for (int k = 0; k < s->count; k++) {
        void *x[ROLES];
        locate(m, (int64_t)k * s->stride, (int64_t)k * s->stride, x);
        OK(adam(on, s->length, 0.1 / (1 + k % s->rates), x));
        if (one_by_one) finish(on);
    }
}
