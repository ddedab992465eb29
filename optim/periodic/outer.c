// SPDX-License-Identifier: MIT
// The outer optimizers of the library. isotherm/outer.h has their formulas.
#include "optim/periodic/outer_impl.h"

#include <math.h>
#include <string.h>

enum { ANCHOR, MOMENTUM, SQUARES }; // of state

// d is the outer gradient. Elements and numbers have type T, so that the loops vectorise.
#define RULES(T, name, root)                                                                       \
    static void take_mean_##name(const iso_outer *o, const iso_outer_span *s) {                    \
        const T *mean = s->mean, mix = (T)o->mix;                                                  \
        T *x = s->now;                                                                             \
        for (size_t i = 0; i < s->count; i++) x[i] = mean[i] + mix * (x[i] - mean[i]);             \
    }                                                                                              \
    static void keep_share_##name(const iso_outer *o, const iso_outer_span *s) {                   \
        const T *a = s->state[ANCHOR], mix = (T)o->mix;                                            \
        T *x = s->now;                                                                             \
        for (size_t i = 0; i < s->count; i++) x[i] = a[i] + mix * (x[i] - a[i]);                   \
    }                                                                                              \
    static void step_sgd_##name(const iso_outer *o, const iso_outer_span *s, bool nesterov) {      \
        const T *mean = s->mean, lr = (T)o->lr, beta = (T)o->momentum;                             \
        T *a = s->state[ANCHOR], *u = s->state[MOMENTUM];                                          \
        for (size_t i = 0; i < s->count; i++) {                                                    \
            T d = a[i] - mean[i];                                                                  \
            u[i] = beta * u[i] + d;                                                                \
            a[i] -= lr * (nesterov ? d + beta * u[i] : u[i]);                                      \
        }                                                                                          \
    }                                                                                              \
    static void step_slowmo_##name(const iso_outer *o, const iso_outer_span *s) {                  \
        const T *mean = s->mean, g = (T)s->lr, lr = (T)(o->lr * s->lr), beta = (T)o->momentum;     \
        T *a = s->state[ANCHOR], *u = s->state[MOMENTUM];                                          \
        for (size_t i = 0; i < s->count; i++) {                                                    \
            u[i] = beta * u[i] + (a[i] - mean[i]) / g;                                             \
            a[i] -= lr * u[i];                                                                     \
        }                                                                                          \
    }                                                                                              \
    static void step_adam_##name(const iso_outer *o, const iso_outer_span *s) {                    \
        const T *mean = s->mean, beta1 = (T)o->momentum, beta2 = (T)o->beta2, eps = (T)o->eps;     \
        T lr = (T)(o->lr / (1 - pow(o->momentum, (double)s->merges)));                             \
        T scale = (T)(1 / sqrt(1 - pow(o->beta2, (double)s->merges)));                             \
        T *a = s->state[ANCHOR], *u = s->state[MOMENTUM], *v = s->state[SQUARES];                  \
        for (size_t i = 0; i < s->count; i++) {                                                    \
            T d = a[i] - mean[i];                                                                  \
            u[i] = beta1 * u[i] + (1 - beta1) * d;                                                 \
            v[i] = beta2 * v[i] + (1 - beta2) * d * d;                                             \
            a[i] -= lr * u[i] / (root(v[i]) * scale + eps);                                        \
        }                                                                                          \
    }                                                                                              \
    static void pull_##name(const iso_outer *o, const iso_outer_span *s, T *out) {                 \
        const T mix = (T)o->mix, beta = (T)o->momentum, g = (T)s->lr;                              \
        T *x = s->now, *a = s->state[ANCHOR], *u = s->state[MOMENTUM];                             \
        for (size_t i = 0; i < s->count; i++) x[i] += mix * (a[i] - x[i]);                         \
        if (!(g > 0)) {                                                                            \
            memcpy(out, x, s->count * sizeof(T));                                                  \
            return;                                                                                \
        }                                                                                          \
        for (size_t i = 0; i < s->count; i++) {                                                    \
            u[i] = beta * u[i] + (a[i] - x[i]) / g;                                                \
            out[i] = a[i] - g * u[i];                                                              \
        }                                                                                          \
    }                                                                                              \
    static void move_anchor_##name(const iso_outer *o, const iso_outer_span *s) {                  \
        const T *mean = s->mean, lr = (T)o->lr;                                                    \
        T *a = s->state[ANCHOR];                                                                   \
        for (size_t i = 0; i < s->count; i++) a[i] += lr * (mean[i] - a[i]);                       \
    }

RULES(float, f32, sqrtf)
RULES(double, f64, sqrt)

// Calls the function of the elements' type.
#define OF_TYPE(function, span, ...)                                                               \
    ((span)->f64 ? function##_f64(__VA_ARGS__) : function##_f32(__VA_ARGS__))

static void replace_anchor(const iso_outer_span *s) {
    memcpy(s->state[ANCHOR], s->mean, s->count * (s->f64 ? sizeof(double) : sizeof(float)));
}

static void merge_mean(const iso_outer *o, const iso_outer_span *s) { OF_TYPE(take_mean, s, o, s); }

static void merge_sgd(const iso_outer *o, const iso_outer_span *s) {
    OF_TYPE(step_sgd, s, o, s, false);
    OF_TYPE(keep_share, s, o, s);
}

static void merge_nesterov(const iso_outer *o, const iso_outer_span *s) {
    OF_TYPE(step_sgd, s, o, s, true);
    OF_TYPE(keep_share, s, o, s);
}

static void merge_slowmo(const iso_outer *o, const iso_outer_span *s) {
    if (s->lr > 0)
        OF_TYPE(step_slowmo, s, o, s);
    else
        replace_anchor(s);
    OF_TYPE(keep_share, s, o, s);
}

static void merge_adam(const iso_outer *o, const iso_outer_span *s) {
    OF_TYPE(step_adam, s, o, s);
    OF_TYPE(keep_share, s, o, s);
}

static void send_pulled(const iso_outer *o, const iso_outer_span *s, void *out) {
    OF_TYPE(pull, s, o, s, out);
}

static void merge_anchor(const iso_outer *o, const iso_outer_span *s) {
    if (o->lr == 1)
        replace_anchor(s);
    else
        OF_TYPE(move_anchor, s, o, s);
}

const iso_outer iso_outer_mean = {.name = "mean", .replaces = true, .lr = 1, .merge = merge_mean};
const iso_outer iso_outer_sgd = {
    .name = "sgd", .states = 2, .replaces = true, .lr = 1, .momentum = 0.9, .merge = merge_sgd};
const iso_outer iso_outer_nesterov = {.name = "nesterov",
                                      .states = 2,
                                      .replaces = true,
                                      .lr = 0.7,
                                      .momentum = 0.9,
                                      .merge = merge_nesterov};
const iso_outer iso_outer_slowmo = {.name = "slowmo",
                                    .states = 2,
                                    .replaces = true,
                                    .lr = 1,
                                    .momentum = 0.5,
                                    .merge = merge_slowmo};
const iso_outer iso_outer_pull = {.name = "pull",
                                  .states = 2,
                                  .lr = 1,
                                  .momentum = 0.7,
                                  .mix = 0.6,
                                  .send = send_pulled,
                                  .merge = merge_anchor};
const iso_outer iso_outer_adam = {.name = "adam",
                                  .states = 3,
                                  .replaces = true,
                                  .lr = 0.01,
                                  .momentum = 0.9,
                                  .beta2 = 0.99,
                                  .eps = 1e-3,
                                  .merge = merge_adam};

static const iso_outer *const builtin[] = {&iso_outer_mean,   &iso_outer_sgd,  &iso_outer_nesterov,
                                           &iso_outer_slowmo, &iso_outer_pull, &iso_outer_adam};
enum { BUILTIN = sizeof(builtin) / sizeof(builtin[0]) };

iso_status iso_outer_parse(const char *name, const iso_outer **out) {
    for (int i = 0; i < BUILTIN; i++) {
        if (strcmp(name, builtin[i]->name) != 0) continue;
        *out = builtin[i];
        return ISO_OK;
    }
    return ISO_FAIL(
        ISO_ERR_ARG,
        "there is no outer optimizer \"%s\": use mean, sgd, nesterov, slowmo, pull or adam", name);
}

// ---- Checks ---------------------------------------------------------------------------------------

// valid: false for NaN, too.
static iso_status check_number(const iso_outer *o, const char *what, double x, bool valid,
                               const char *limits) {
    ISO_CHECK(valid, ISO_ERR_ARG, "outer optimizer %s: %s is %g, it must be %s", o->name, what, x,
              limits);
    return ISO_OK;
}

iso_status iso__outer_check(const iso_outer *o) {
    ISO_CHECK(o->name && o->name[0] && !strpbrk(o->name, " \n\t/"), ISO_ERR_ARG,
              "an outer optimizer needs a name without spaces and '/'");
    ISO_CHECK(strlen(o->name) < 64, ISO_ERR_ARG,
              "the name of outer optimizer %.20s... has %zu characters: use at most 63", o->name,
              strlen(o->name));
    ISO_CHECK(o->merge, ISO_ERR_ARG, "outer optimizer %s: merge is NULL, set it to a function",
              o->name);
    ISO_CHECK(o->states >= 0 && o->states <= ISO_OUTER_STATES, ISO_ERR_ARG,
              "outer optimizer %s: states is %d, it must be from 0 to %d", o->name, o->states,
              ISO_OUTER_STATES);
    ISO_TRY(check_number(o, "lr", o->lr, o->lr > 0 && o->lr <= 1e6, "above 0, and at most 1e6"));
    ISO_TRY(check_number(o, "momentum", o->momentum, o->momentum >= 0 && o->momentum < 1,
                         "at least 0, and below 1"));
    ISO_TRY(check_number(o, "mix", o->mix, o->mix >= 0 && o->mix <= 1, "from 0 to 1"));
    ISO_TRY(check_number(o, "beta2", o->beta2, o->beta2 >= 0 && o->beta2 < 1,
                         "at least 0, and below 1"));
    return check_number(o, "eps", o->eps, o->eps >= 0 && o->eps <= 1e6, "from 0 to 1e6");
}

int iso__outer_write(const iso_outer *o, char *text, size_t room) {
    return snprintf(text, room,
                    "outer optimizer: %s, %d states, lr %.17g, momentum %.17g, mix %.17g, beta2 "
                    "%.17g, eps %.17g\n",
                    o->name, o->states, o->lr, o->momentum, o->mix, o->beta2, o->eps);
}
