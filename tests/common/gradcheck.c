// SPDX-License-Identifier: MIT
// Checks a module's outputs and gradients against a double-precision reference of its forward.
#include "common/gradcheck.h"

#include "common/nn_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define STEP 1e-5 // of the central differences; their error is about 1e-10 in double precision

static double *double_values(iso_tensor *tensor) {
    float *from = tensor_values(tensor);
    int64_t count = iso_tensor_count(tensor);
    double *to = malloc((size_t)count * sizeof(double));
    for (int64_t i = 0; i < count; i++) to[i] = from[i];
    free(from);
    return to;
}

// ---- The check ---------------------------------------------------------------------------------

typedef struct state {
    const gradcheck *check;
    iso_parameter_list list;
    iso_tensor *in, *weight; // the objective is the sum of weight * output
    iso_tensor *out, *grad_in;
    double *x, **parameter, *objective, *y;
    int64_t out_count;
} state;

static char text[768];

static const char *library_error(const char *what) {
    snprintf(text, sizeof(text), "%s failed: %s", what, iso_last_error()->message);
    return text;
}

static const char *compare(const state *s, const char *name, iso_tensor *got_tensor,
                           const double *want) {
    double tolerance = s->check->tolerance > 0 ? s->check->tolerance : 1e-5, largest = 0;
    int64_t count = iso_tensor_count(got_tensor);
    float *got = tensor_values(got_tensor);
    const char *problem = NULL;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < count && !problem; i++) {
        if (fabs(got[i] - want[i]) <= tolerance * fmax(largest, 1e-3)) continue;
        snprintf(text, sizeof(text), "%s[%lld] is %.9g, the reference gives %.9g (largest %.3g)",
                 name, (long long)i, (double)got[i], want[i], largest);
        problem = text;
    }
    free(got);
    return problem;
}

static double evaluate(state *s) {
    s->check->forward(s->check->user, s->x, s->parameter, s->y);
    double sum = 0;
    for (int64_t i = 0; i < s->out_count; i++) sum += s->objective[i] * s->y[i];
    return sum;
}

// Central differences with respect to the `count` numbers at `value`, which the reference reads.
static const char *compare_gradient(state *s, const char *name, iso_tensor *got, double *value) {
    int64_t count = iso_tensor_count(got);
    double *want = malloc((size_t)count * sizeof(double));
    for (int64_t i = 0; i < count; i++) {
        double kept = value[i];
        value[i] = kept + STEP;
        double above = evaluate(s);
        value[i] = kept - STEP;
        want[i] = (above - evaluate(s)) / (2 * STEP);
        value[i] = kept;
    }
    const char *problem = compare(s, name, got, want);
    free(want);
    return problem;
}

// Forward and backward of the module. weight is copied, since backward consumes it.
static const char *run_module(state *s) {
    const gradcheck *c = s->check;
    s->in = random_tensor(c->module->device, c->ndim, c->shape, 11);
    if (iso_module_forward(c->module, s->in, &s->out) < 0) return library_error("forward");
    s->out_count = iso_tensor_count(s->out);
    s->weight =
        random_tensor(c->module->device, iso_tensor_ndim(s->out), iso_tensor_shape(s->out), 12);
    s->x = double_values(s->in);
    s->objective = double_values(s->weight);
    s->y = malloc((size_t)s->out_count * sizeof(double));
    evaluate(s);
    const char *problem = compare(s, "output", s->out, s->y);
    if (problem) return problem;
    iso_module_zero_grad(c->module);
    if (iso_module_backward(c->module, s->weight, &s->grad_in) < 0)
        return library_error("backward");
    return NULL;
}

static const char *check_all(state *s) {
    if (iso_module_parameters(s->check->module, &s->list) < 0)
        return library_error("listing the parameters");
    s->parameter = calloc((size_t)s->list.count + 1, sizeof(double *));
    for (int i = 0; i < s->list.count; i++) s->parameter[i] = double_values(s->list.item[i]->value);
    const char *problem = run_module(s);
    if (!problem) problem = compare_gradient(s, "gradient of the input", s->grad_in, s->x);
    for (int i = 0; i < s->list.count && !problem; i++) {
        iso_parameter *p = s->list.item[i];
        if (p->requires_grad)
            problem = compare_gradient(s, s->list.name[i], p->grad, s->parameter[i]);
    }
    return problem;
}

const char *gradcheck_run(const gradcheck *check) {
    state s = {.check = check};
    const char *problem = check_all(&s);
    for (int i = 0; i < s.list.count && s.parameter; i++) free(s.parameter[i]);
    free(s.parameter);
    free(s.x);
    free(s.y);
    free(s.objective);
    iso_tensor_destroy(&s.in);
    iso_tensor_destroy(&s.weight);
    iso_parameter_list_destroy(&s.list);
    return problem;
}
