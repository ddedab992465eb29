// SPDX-License-Identifier: MIT
// Every update rule of every device against double precision, wherever its memory begins.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "common/oracle.h"

#include <math.h>
#include <string.h>

TestSuite(device_update, .timeout = 120, .fini = balance_check);

// ---- Rules and their oracles ----------------------------------------------------------------------

enum { STATES = 3, STEPS = 3, GUARD = 5 }; // GUARD: elements on both sides that nobody may touch

// What is updated, and the same in double precision.
typedef struct on_device {
    const void *g;
    void *p, *s[STATES];
} on_device;
typedef struct in_double {
    const double *g;
    double *p, *s[STATES];
} in_double;

typedef struct rule {
    const char *name;
    int variants;
    iso_status (*apply)(const target *on, int64_t count, int variant, int step, const on_device *x);
    void (*oracle)(int64_t count, int variant, int step, const in_double *x);
} rule;

static iso__sgd_args sgd_args(int variant, int step) {
    return (iso__sgd_args){.lr = 0.1f,
                           .scale = 0.25f,
                           .momentum = variant & 1 ? 0.9f : 0,
                           .nesterov = (variant & 3) == 3,
                           .dampening = (variant & 3) == 1 ? 0.3f : 0,
                           .weight_decay = variant & 4 ? 0.01f : 0,
                           .first = step == 1};
}
static iso_status sgd(const target *on, int64_t count, int variant, int step, const on_device *x) {
    iso__sgd_args a = sgd_args(variant, step);
    return on->kernels->sgd(on->device, count, &a, x->g, x->p, a.momentum != 0 ? x->s[0] : NULL);
}
static void sgd_oracle(int64_t count, int variant, int step, const in_double *x) {
    iso__sgd_args a = sgd_args(variant, step);
    for (int64_t i = 0; i < count; i++) oracle_sgd(&a, x->g[i], &x->p[i], &x->s[0][i]);
}

// eps as large as it is because gradient and decay may cancel, up to rounding.
static iso__adam_args adam_args(int variant, int step) {
    return (iso__adam_args){.lr = 0.01f,
                            .beta1 = 0.9f,
                            .beta2 = 0.999f,
                            .eps = 0.0078125f,
                            .scale = 0.5f,
                            .rest1 = 0.1f,
                            .rest2 = 0.001f,
                            .decoupled = variant & 1,
                            .weight_decay = variant & 2 ? 0.1f : 0,
                            .correction1 = (float)(1 - pow(0.9, step)),
                            .correction2_sqrt = (float)sqrt(1 - pow(0.999, step))};
}
static iso_status adam(const target *on, int64_t count, int variant, int step, const on_device *x) {
    iso__adam_args a = adam_args(variant, step);
    return on->kernels->adam(on->device, count, &a, x->g, x->p, x->s[0], x->s[1], NULL);
}
static void adam_oracle(int64_t count, int variant, int step, const in_double *x) {
    iso__adam_args a = adam_args(variant, step);
    for (int64_t i = 0; i < count; i++)
        oracle_adam(&a, x->g[i], &x->p[i], &x->s[0][i], &x->s[1][i]);
}

static iso_status amsgrad(const target *on, int64_t count, int variant, int step,
                          const on_device *x) {
    iso__adam_args a = adam_args(variant, step);
    a.beta2 = a.rest2 = 0.5f; // so that the second moment falls, too
    return on->kernels->adam(on->device, count, &a, x->g, x->p, x->s[0], x->s[1], x->s[2]);
}
static void amsgrad_oracle(int64_t count, int variant, int step, const in_double *x) {
    iso__adam_args a = adam_args(variant, step);
    a.beta2 = a.rest2 = 0.5f;
    for (int64_t i = 0; i < count; i++) {
        double g = x->g[i] * a.scale + (a.decoupled ? 0 : a.weight_decay * x->p[i]);
        x->s[0][i] = a.beta1 * x->s[0][i] + a.rest1 * g;
        x->s[1][i] = a.beta2 * x->s[1][i] + a.rest2 * g * g;
        x->s[2][i] = fmax(x->s[2][i], x->s[1][i]);
        if (a.decoupled) x->p[i] *= 1 - a.lr * a.weight_decay;
        double root = sqrt(x->s[2][i]) / a.correction2_sqrt + a.eps;
        x->p[i] -= a.lr / a.correction1 * x->s[0][i] / root;
    }
}

static iso__nadam_args nadam_args(int variant, int step) {
    return (iso__nadam_args){.of_gradient = 0.01f,
                             .of_moment = 0.02f,
                             .beta1 = 0.5f,
                             .beta2 = 0.75f,
                             .rest1 = 0.5f,
                             .rest2 = 0.25f,
                             .eps = 0.0078125f,
                             .scale = 0.5f,
                             .weight_decay = variant & 1 ? 0.125f : 0,
                             .correction2 = (float)(1 - pow(0.75, step))};
}
static iso_status nadam(const target *on, int64_t count, int variant, int step,
                        const on_device *x) {
    iso__nadam_args a = nadam_args(variant, step);
    return on->kernels->nadam(on->device, count, &a, x->g, x->p, x->s[0], x->s[1]);
}
static void nadam_oracle(int64_t count, int variant, int step, const in_double *x) {
    iso__nadam_args a = nadam_args(variant, step);
    for (int64_t i = 0; i < count; i++) {
        double g = x->g[i] * a.scale + a.weight_decay * x->p[i];
        x->s[0][i] = a.beta1 * x->s[0][i] + a.rest1 * g;
        x->s[1][i] = a.beta2 * x->s[1][i] + a.rest2 * g * g;
        double root = sqrt(x->s[1][i] / a.correction2) + a.eps;
        x->p[i] -= a.of_gradient * g / root + a.of_moment * x->s[0][i] / root;
    }
}

static iso__adadelta_args adadelta_args(int variant) {
    return (iso__adadelta_args){
        .lr = 1, .rho = 0.9f, .eps = 1e-6f, .scale = 0.5f, .weight_decay = variant & 1 ? 0.1f : 0};
}
static iso_status adadelta(const target *on, int64_t count, int variant, int step,
                           const on_device *x) {
    (void)step;
    iso__adadelta_args a = adadelta_args(variant);
    return on->kernels->adadelta(on->device, count, &a, x->g, x->p, x->s[0], x->s[1]);
}
static void adadelta_oracle(int64_t count, int variant, int step, const in_double *x) {
    (void)step;
    iso__adadelta_args a = adadelta_args(variant);
    for (int64_t i = 0; i < count; i++)
        oracle_adadelta(&a, x->g[i], &x->p[i], &x->s[0][i], &x->s[1][i]);
}

static iso__adagrad_args adagrad_args(int variant) {
    return (iso__adagrad_args){
        .lr = 0.05f, .eps = 1e-3f, .scale = 0.5f, .weight_decay = variant & 1 ? 0.1f : 0};
}
static iso_status adagrad(const target *on, int64_t count, int variant, int step,
                          const on_device *x) {
    (void)step;
    iso__adagrad_args a = adagrad_args(variant);
    return on->kernels->adagrad(on->device, count, &a, x->g, x->p, x->s[0]);
}
static void adagrad_oracle(int64_t count, int variant, int step, const in_double *x) {
    (void)step;
    iso__adagrad_args a = adagrad_args(variant);
    for (int64_t i = 0; i < count; i++) {
        double g = x->g[i] * a.scale + a.weight_decay * x->p[i];
        x->s[0][i] += g * g;
        x->p[i] -= a.lr * g / (sqrt(x->s[0][i]) + a.eps);
    }
}

// eps as large as it is because a centered average begins with a variance near zero.
static iso__rmsprop_args rmsprop_args(int variant) {
    return (iso__rmsprop_args){.lr = 0.01f,
                               .alpha = 0.75f,
                               .rest = 0.25f,
                               .eps = 0.125f,
                               .scale = 0.5f,
                               .momentum = variant & 1 ? 0.9f : 0,
                               .weight_decay = variant & 4 ? 0.1f : 0};
}
static iso_status rmsprop(const target *on, int64_t count, int variant, int step,
                          const on_device *x) {
    (void)step;
    iso__rmsprop_args a = rmsprop_args(variant);
    return on->kernels->rmsprop(on->device, count, &a, x->g, x->p, x->s[0],
                                variant & 2 ? x->s[1] : NULL, variant & 1 ? x->s[2] : NULL);
}
static void rmsprop_oracle(int64_t count, int variant, int step, const in_double *x) {
    (void)step;
    iso__rmsprop_args a = rmsprop_args(variant);
    for (int64_t i = 0; i < count; i++) {
        double g = x->g[i] * a.scale + a.weight_decay * x->p[i], mean = 0;
        x->s[0][i] = a.alpha * x->s[0][i] + a.rest * g * g;
        if (variant & 2) mean = x->s[1][i] = a.alpha * x->s[1][i] + a.rest * g;
        double move = g / (sqrt(fmax(x->s[0][i] - mean * mean, 0)) + a.eps);
        if (variant & 1) move = x->s[2][i] = a.momentum * x->s[2][i] + move;
        x->p[i] -= a.lr * move;
    }
}

static iso__lamb_args lamb_args(int variant, int step) {
    return (iso__lamb_args){.lr = 0.0625f,
                            .beta1 = 0.5f,
                            .beta2 = 0.75f,
                            .eps = 0.0078125f,
                            .scale = 0.5f,
                            .rest1 = 0.5f,
                            .rest2 = 0.25f,
                            .weight_decay = variant & 1 ? 0.125f : 0,
                            .correction1 = (float)(1 - pow(0.5, step)),
                            .correction2_sqrt = (float)sqrt(1 - pow(0.75, step))};
}
static iso_status lamb(const target *on, int64_t count, int variant, int step, const on_device *x) {
    iso__lamb_args a = lamb_args(variant, step);
    return on->kernels->lamb(on->device, count, &a, x->g, x->p, x->s[0], x->s[1]);
}
static double lamb_direction(const iso__lamb_args *a, const in_double *x, int64_t i) {
    return x->s[0][i] / a->correction1 / (sqrt(x->s[1][i]) / a->correction2_sqrt + a->eps) +
           a->weight_decay * x->p[i];
}
static void lamb_oracle(int64_t count, int variant, int step, const in_double *x) {
    iso__lamb_args a = lamb_args(variant, step);
    double p = 0, u = 0;
    for (int64_t i = 0; i < count; i++) {
        double g = x->g[i] * a.scale;
        x->s[0][i] = a.beta1 * x->s[0][i] + a.rest1 * g;
        x->s[1][i] = a.beta2 * x->s[1][i] + a.rest2 * g * g;
        p += x->p[i] * x->p[i];
        u += pow(lamb_direction(&a, x, i), 2);
    }
    double ratio = p > 0 && u > 0 ? sqrt(p / u) : 1;
    for (int64_t i = 0; i < count; i++) x->p[i] -= a.lr * ratio * lamb_direction(&a, x, i);
}

// Parts of a layer, as ZeRO cuts it; with variant 1, more than a device keeps numbers of.
static iso_status lamb_in_halves(const target *on, int64_t count, int variant, int step,
                                 const on_device *x) {
    enum { MOST = 260 };
    iso__lamb_args a = lamb_args(variant, step);
    int64_t most = variant & 1 ? MOST : 3, parts = count < most ? count : most;
    size_t size = iso_dtype_size(on->dtype);
    double square[MOST][2], total[2] = {0, 0};
#define AT(array, part) ((char *)(array) + (size_t)(count * (part) / parts) * size)
    for (int64_t k = 0; k < parts; k++)
        ISO_TRY(on->kernels->lamb_measure(on->device, count * (k + 1) / parts - count * k / parts,
                                          &a, AT(x->g, k), AT(x->p, k), AT(x->s[0], k),
                                          AT(x->s[1], k), square[k]));
    if (on->device->ops->remote) ISO_TRY(on->device->ops->remote->collect(on->device));
    for (int64_t k = 0; k < parts; k++) total[0] += square[k][0], total[1] += square[k][1];
    for (int64_t k = 0; k < parts; k++)
        ISO_TRY(on->kernels->lamb_step(on->device, count * (k + 1) / parts - count * k / parts, &a,
                                       total, AT(x->p, k), AT(x->s[0], k), AT(x->s[1], k)));
#undef AT
    return ISO_OK;
}

static iso_status scale(const target *on, int64_t count, int variant, int step,
                        const on_device *x) {
    return on->kernels->scale(on->device, count, variant + 0.25 * step, x->p);
}
static void scale_oracle(int64_t count, int variant, int step, const in_double *x) {
    for (int64_t i = 0; i < count; i++) x->p[i] *= variant + 0.25 * step;
}

static const rule rules[] = {
    {"sgd", 8, sgd, sgd_oracle},
    {"adam", 4, adam, adam_oracle},
    {"adadelta", 2, adadelta, adadelta_oracle},
    {"adagrad", 2, adagrad, adagrad_oracle},
    {"rmsprop", 8, rmsprop, rmsprop_oracle},
    {"lamb", 2, lamb, lamb_oracle},
    {"scale", 2, scale, scale_oracle},
    {"amsgrad", 4, amsgrad, amsgrad_oracle},
    {"nadam", 2, nadam, nadam_oracle},
    {"lamb in halves", 2, lamb_in_halves, lamb_oracle},
};

// ---- Memory ---------------------------------------------------------------------------------------

// Gradient, parameter and state of `count` elements that begin somewhere in their tensors.
typedef struct memory {
    pair g, p, s[STATES];
    int64_t count, first, first_g;
} memory;

static memory memory_create(const target *on, int64_t count, int64_t first, int64_t first_g) {
    int64_t room = count + 2 * GUARD;
    memory m = {.g = pair_1d(on, room),
                .p = pair_1d(on, room),
                .count = count,
                .first = first,
                .first_g = first_g};
    for (int k = 0; k < STATES; k++) {
        m.s[k] = pair_1d(on, room);
        zero(&m.s[k]);
        OK(iso_tensor_fill(m.s[k].t, 0));
    }
    return m;
}

static void memory_destroy(memory *m) {
    pair_destroy(&m->g), pair_destroy(&m->p);
    for (int k = 0; k < STATES; k++) pair_destroy(&m->s[k]);
}

static void *address(const pair *x, int64_t first) {
    return (char *)x->t->data + (size_t)first * iso_dtype_size(x->t->dtype);
}

static void run(const target *on, const rule *r, int variant, memory *m) {
    on_device x = {address(&m->g, m->first_g), address(&m->p, m->first), {NULL}};
    in_double d = {m->g.d + m->first_g, m->p.d + m->first, {NULL}};
    for (int k = 0; k < STATES; k++) {
        x.s[k] = address(&m->s[k], m->first);
        d.s[k] = m->s[k].d + m->first;
    }
    for (int step = 1; step <= STEPS; step++) {
        OK(r->apply(on, m->count, variant, step, &x));
        r->oracle(m->count, variant, step, &d);
    }
}

// ---- Tests ----------------------------------------------------------------------------------------

// From one element over a whole number of packs to more than one block of threads.
static const int64_t counts[] = {1, 3, 4, 17, 64, 1003, 5000};

// Guards are compared too: their doubles have not changed.
static void every_rule(const target *on) {
    int number = 0;
    for (int r = 0; r < COUNT(rules); r++)
        for (int variant = 0; variant < rules[r].variants; variant++)
            for (int c = 0; c < COUNT(counts); c++, number++) {
                memory m = memory_create(on, counts[c], number % 4, number / 4 % 3);
                run(on, &rules[r], variant, &m);
                check_pair(on, &m.p, 4e-6, rules[r].name);
                for (int k = 0; k < STATES; k++) check_pair(on, &m.s[k], 4e-6, "state");
                memory_destroy(&m);
            }
}
Test(device_update, every_rule_matches_the_oracle) { on_each_target(every_rule); }

// As a layer without weights gets them: a ratio of norms that is no number would spread.
static void lamb_of_zeros(const target *on) {
    memory m = memory_create(on, 100, 0, 0);
    zero(&m.p);
    OK(iso_tensor_fill(m.p.t, 0));
    run(on, &rules[5], 0, &m);
    check_pair(on, &m.p, 4e-6, "lamb from zeros");
    memory_destroy(&m);
}
Test(device_update, lamb_bears_parameters_of_zeros) { on_each_target(lamb_of_zeros); }

static void copy_values(const pair *from, int64_t first, pair *to, int64_t first_to, int64_t n) {
    void *source, *target;
    size_t size = iso_dtype_size(from->t->dtype);
    OK(iso_tensor_map(from->t, ISO_READ, &source));
    OK(iso_tensor_map(to->t, ISO_READ_WRITE, &target));
    memcpy((char *)target + (size_t)first_to * size, (char *)source + (size_t)first * size,
           (size_t)n * size);
    OK(iso_tensor_unmap(to->t));
    OK(iso_tensor_unmap(from->t));
}

static void check_same_bits(const memory *a, const memory *b, const char *what) {
    void *x, *y;
    size_t size = iso_dtype_size(a->p.t->dtype);
    OK(iso_tensor_map(a->p.t, ISO_READ, &x));
    OK(iso_tensor_map(b->p.t, ISO_READ, &y));
    cr_assert(memcmp((char *)x + (size_t)a->first * size, (char *)y + (size_t)b->first * size,
                     (size_t)a->count * size) == 0,
              "%s depends on where its memory begins", what);
    OK(iso_tensor_unmap(a->p.t));
    OK(iso_tensor_unmap(b->p.t));
}

// Gradients lie in one arena, wherever the layers before them end.
static void bits_anywhere(const target *on) {
    for (int r = 0; r < COUNT(rules); r++) {
        memory a = memory_create(on, 1003, 0, 0), b = memory_create(on, 1003, 3, 1);
        copy_values(&a.g, 0, &b.g, 1, 1003);
        copy_values(&a.p, 0, &b.p, 3, 1003);
        run(on, &rules[r], rules[r].variants - 1, &a);
        run(on, &rules[r], rules[r].variants - 1, &b);
        check_same_bits(&a, &b, rules[r].name);
        memory_destroy(&a), memory_destroy(&b);
    }
}
Test(device_update, bits_do_not_depend_on_where_memory_begins) { on_each_target(bits_anywhere); }
