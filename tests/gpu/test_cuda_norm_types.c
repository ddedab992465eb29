// SPDX-License-Identifier: MIT
// Batch normalisation on a GPU in bf16 and channels last, against the double-precision oracle.
#include "common/balance.h"
#include "common/oracle_norm.h"
#include "gpu/stored_fixture.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_norm_types, .timeout = 300, .fini = balance_check);

// What f32 makes of sums and products; rounding to 16 bits comes on top.
#define TOLERANCE 1e-5

static const storing ways[] = {
    {ISO_F32, true, 0},  {ISO_F64, true, 0},   {ISO_BF16, false, 0}, {ISO_BF16, true, 0},
    {ISO_F32, false, 1}, {ISO_BF16, false, 1}, {ISO_BF16, true, 1},  {ISO_F32, true, 2},
    {ISO_F16, false, 0}, {ISO_F16, true, 0},   {ISO_F16, true, 1},
};

typedef struct norm_shape {
    int ndim;
    int64_t shape[4];
} norm_shape;

static const norm_shape shapes[] = {
    {4, {2, 1, 5, 7}}, {4, {3, 3, 5, 3}},  {4, {2, 5, 7, 9}},  {4, {3, 8, 5, 7}},
    {4, {2, 7, 4, 4}}, {4, {5, 24, 8, 4}}, {4, {3, 64, 5, 3}}, {4, {37, 16, 1, 1}},
    {2, {70, 40}},     {2, {9, 5}},        {4, {2, 2, 1, 1}},  {4, {2, 264, 2, 2}},
};

// More values than a block takes: channels alone, a few and many beside each other, planes that
// vectors fill and those they do not.
static const norm_shape long_shapes[] = {
    {4, {6, 8, 37, 41}}, {4, {20, 64, 9, 7}}, {4, {9, 2, 40, 40}}, {4, {9, 3, 37, 41}},
    {2, {4500, 24}},     {4, {30, 72, 6, 6}}, {4, {21, 72, 9, 9}},
};

typedef struct norm_case {
    target on;
    const iso_kernel_ops *kernels;
    iso_dtype real; // of what is no activation
    oracle_batch_norm oracle;
    iso__batch_norm_args args;
    stored x, y, dy, w, b, mean, var, dw, db;
    iso_tensor *tracked;
    double *batch_mean, *batch_var;
    void *workspace;
} norm_case;

// No value is the mean of others: where a relu begins, rounding would decide.
static void take_off_the_grid(stored *x) {
    for (int64_t i = 0; i < x->t->count; i++) x->d[i] += 0.414 * x->d[i] * x->d[i];
    stored_put(x);
}

static norm_case open_case(target on, storing how, const norm_shape *s) {
    int64_t channels = s->shape[1], plane = s->ndim == 4 ? s->shape[2] * s->shape[3] : 1;
    iso_device *device = on.device;
    norm_case p = {.on = on, .kernels = device->kernels[how.dtype]};
    p.real = how.dtype == ISO_F64 ? ISO_F64 : ISO_F32;
    p.oracle = (oracle_batch_norm){s->shape[0], channels, plane, 1e-3, false};
    stored *wide[] = {&p.x, &p.y, &p.dy};
    stored *narrow[] = {&p.w, &p.b, &p.mean, &p.var, &p.dw, &p.db};
    for (int i = 0; i < COUNT(wide); i++)
        *wide[i] = stored_create(device, how, s->ndim, s->shape, 1000);
    for (int i = 0; i < COUNT(narrow); i++) *narrow[i] = stored_1d(device, p.real, channels);
    for (int64_t c = 0; c < channels; c++) p.var.d[c] = 0.25 + (double)(c % 8) / 8;
    stored_put(&p.var);
    take_off_the_grid(&p.x);
    p.batch_mean = calloc((size_t)channels, sizeof(double));
    p.batch_var = calloc((size_t)channels, sizeof(double));
    size_t bytes = p.kernels->batch_norm_workspace(device, p.x.t);
    OK(device->ops->alloc(device, bytes, &p.workspace));
    OK(iso_tensor_create(device, ISO_I64, 0, NULL, &p.tracked));
    OK(iso_tensor_fill(p.tracked, 40));
    return p;
}

static void close_case(norm_case *p) {
    stored *all[] = {&p->x, &p->y, &p->dy, &p->w, &p->b, &p->mean, &p->var, &p->dw, &p->db};
    for (int i = 0; i < COUNT(all); i++) stored_destroy(all[i]);
    iso_tensor_destroy(&p->tracked);
    free(p->batch_mean);
    free(p->batch_var);
    p->on.device->ops->free(p->on.device, p->workspace);
}

enum { BATCH = 1, RELU = 2, AFFINE = 4, RUNNING = 8, ACCUMULATE = 16, NO_DX = 32 };

static void set_flags(norm_case *p, int flags) {
    p->oracle.relu = flags & RELU;
    p->args = (iso__batch_norm_args){.eps = p->oracle.eps,
                                     .factor = 0.3,
                                     .batch = flags & BATCH,
                                     .act = flags & RELU ? ISO_ACT_RELU : ISO_ACT_NONE,
                                     .tracked = p->tracked,
                                     .weight = flags & AFFINE ? p->w.t : NULL,
                                     .bias = flags & AFFINE ? p->b.t : NULL};
    if (p->args.batch && !(flags & RUNNING)) return;
    p->args.running_mean = p->mean.t;
    p->args.running_var = p->var.t;
}

// Statistics that forward uses, of `count` values, and what becomes of the running ones.
static void expect_running(norm_case *p, double count) {
    for (int64_t c = 0; c < p->oracle.channels; c++) {
        if (!p->args.batch) {
            p->batch_mean[c] = p->mean.d[c];
            p->batch_var[c] = p->var.d[c];
        } else if (p->args.running_mean) {
            p->mean.d[c] = 0.7 * p->mean.d[c] + 0.3 * p->batch_mean[c];
            p->var.d[c] = 0.7 * p->var.d[c] + 0.3 * p->batch_var[c] * count / (count - 1);
        }
    }
}

static double values(const norm_case *p) { return (double)(p->oracle.rows * p->oracle.plane); }

static const double *weights(const norm_case *p) { return p->args.weight ? p->w.d : NULL; }
static const double *biases(const norm_case *p) { return p->args.bias ? p->b.d : NULL; }

// A batch counts whether or not its statistics are kept; an evaluation does not.
static void check_count(const norm_case *p) {
    void *host;
    OK(iso_tensor_map(p->tracked, ISO_READ, &host));
    cr_assert_eq(*(int64_t *)host, 40 + p->args.batch);
    OK(iso_tensor_unmap(p->tracked));
    OK(iso_tensor_fill(p->tracked, 40));
}

static void check_forward(norm_case *p, double count) {
    expect_running(p, count);
    OK(p->kernels->batch_norm_forward(p->on.device, &p->args, p->x.t, p->y.t, p->workspace));
    oracle_batch_norm_forward(&p->oracle, p->x.d, p->batch_mean, p->batch_var, weights(p),
                              biases(p), p->y.d);
    stored_check(&p->y, TOLERANCE, "batch norm output");
    stored_check(&p->mean, TOLERANCE, "running mean");
    stored_check(&p->var, TOLERANCE, "running variance");
    check_count(p);
}

// Into dw, db and y.
static void expect_gradients(norm_case *p, bool accumulate) {
    size_t bytes = (size_t)p->oracle.channels * sizeof(double);
    if (!accumulate) memset(p->dw.d, 0, bytes), memset(p->db.d, 0, bytes);
    oracle_batch_norm_backward(&p->oracle, p->args.batch, p->x.d, p->batch_mean, p->batch_var,
                               weights(p), biases(p), p->dy.d, p->dw.d, p->db.d, p->y.d);
}

static void check_backward(norm_case *p, bool accumulate, bool dx) {
    expect_gradients(p, accumulate);
    OK(p->kernels->batch_norm_backward(p->on.device, &p->args, p->x.t, p->dy.t, p->workspace,
                                       p->dw.t, accumulate, p->db.t, accumulate,
                                       dx ? p->y.t : NULL));
    if (dx) stored_check(&p->y, TOLERANCE, "batch norm input gradient");
    stored_check(&p->dw, TOLERANCE, "batch norm weight gradient");
    stored_check(&p->db, TOLERANCE, "batch norm bias gradient");
}

static void check_case(norm_case *p, int flags) {
    set_flags(p, flags);
    oracle_channel_moments(&p->oracle, p->x.d, p->batch_mean, p->batch_var);
    check_forward(p, values(p));
    check_backward(p, flags & ACCUMULATE, !(flags & NO_DX));
}

static void on_each_shape(const norm_shape *list, int count, void (*body)(norm_case *p)) {
    target on = open_gpu();
    for (int i = 0; i < COUNT(ways) * count; i++) {
        norm_case p = open_case(on, ways[i / count], &list[i % count]);
        body(&p);
        close_case(&p);
    }
    iso_device_destroy(&on.device);
}

// ---- Forward and backward -----------------------------------------------------------------------

static void all_flags(norm_case *p) {
    for (int flags = 0; flags < 32; flags += 3) check_case(p, flags);
    check_case(p, BATCH | RELU | AFFINE | NO_DX);
}
Test(cuda_norm_types, every_way_of_storing_matches_the_oracle) {
    on_each_shape(shapes, COUNT(shapes), all_flags);
}

static void some_flags(norm_case *p) {
    check_case(p, BATCH | RELU | AFFINE | RUNNING);
    check_case(p, RELU | AFFINE);
    check_case(p, BATCH | ACCUMULATE | RELU | AFFINE | NO_DX);
}
Test(cuda_norm_types, channels_of_many_values_match_the_oracle) {
    on_each_shape(long_shapes, COUNT(long_shapes), some_flags);
}

static void in_place(norm_case *p) {
    check_case(p, BATCH | RELU | AFFINE | NO_DX);
    OK(p->kernels->batch_norm_backward(p->on.device, &p->args, p->x.t, p->dy.t, p->workspace, NULL,
                                       false, NULL, false, p->dy.t));
    memcpy(p->dy.d, p->y.d, (size_t)p->y.t->count * sizeof(double));
    stored_check(&p->dy, TOLERANCE, "batch norm input gradient in place");
}
Test(cuda_norm_types, a_gradient_may_overwrite_what_it_comes_from) {
    on_each_shape(shapes, COUNT(shapes), in_place);
    on_each_shape(long_shapes, COUNT(long_shapes), in_place);
}

// ---- Statistics of several batches --------------------------------------------------------------

static void check_numbers(const norm_case *p, const double *got, const double *want,
                          const char *what) {
    double tolerance = p->real == ISO_F64 ? 1e-12 : TOLERANCE, largest = 1;
    for (int64_t c = 0; c < p->oracle.channels; c++) largest = fmax(largest, fabs(want[c]));
    for (int64_t c = 0; c < p->oracle.channels; c++)
        cr_assert(fabs(got[c] - want[c]) <= tolerance * largest,
                  "%s of channel %d of %d: %g, not %g", what, (int)c, (int)p->oracle.channels,
                  got[c], want[c]);
}

// Moments are those of x; forward takes others, as of twice as many values.
static void given_moments(norm_case *p, double *numbers) {
    int64_t channels = p->oracle.channels;
    double n = values(p);
    OK(p->kernels->batch_norm_moments(p->on.device, p->x.t, numbers));
    oracle_channel_moments(&p->oracle, p->x.d, p->batch_mean, p->batch_var);
    check_numbers(p, numbers, p->batch_mean, "mean");
    for (int64_t c = 0; c < channels; c++) p->batch_var[c] *= n;
    check_numbers(p, numbers + channels, p->batch_var, "sum of squares");
    for (int64_t c = 0; c < channels; c++) {
        numbers[c] = p->batch_mean[c] += 0.125;
        p->batch_var[c] /= n;
        numbers[channels + c] = 2 * n * (p->batch_var[c] += 0.25);
    }
    p->args.moments = numbers;
    p->args.count = 2 * n;
    check_forward(p, 2 * n);
}

// As if there were three such batches: the same means of gradients come out.
static void given_sums(norm_case *p, double *numbers) {
    int64_t channels = p->oracle.channels;
    expect_gradients(p, true);
    OK(p->kernels->batch_norm_sums(p->on.device, &p->args, p->x.t, p->dy.t, p->workspace, p->dw.t,
                                   true, p->db.t, true, numbers));
    stored_check(&p->dw, TOLERANCE, "weight gradient beside sums");
    stored_check(&p->db, TOLERANCE, "bias gradient beside sums");
    for (int64_t c = 0; c < 2 * channels; c++) numbers[c] *= 3;
    p->args.sums = numbers;
    p->args.count = 3 * values(p);
    OK(p->kernels->batch_norm_backward(p->on.device, &p->args, p->x.t, p->dy.t, p->workspace,
                                       p->dw.t, true, p->db.t, true, p->y.t));
    stored_check(&p->y, TOLERANCE, "input gradient with sums given");
    stored_check(&p->dw, TOLERANCE, "weight gradient that a backward with sums leaves alone");
}

static void several_batches(norm_case *p) {
    double *numbers = calloc(2 * (size_t)p->oracle.channels, sizeof(double));
    set_flags(p, BATCH | RELU | AFFINE | RUNNING);
    given_moments(p, numbers);
    given_sums(p, numbers);
    free(numbers);
}
Test(cuda_norm_types, statistics_of_several_batches_are_taken) {
    on_each_shape(shapes, COUNT(shapes), several_batches);
    on_each_shape(long_shapes, COUNT(long_shapes), several_batches);
}

// ---- Numbers that are hard to sum ---------------------------------------------------------------

// Means far greater than deviations; bf16 has none between 64 and 64.5, f16
// between 512 and 512.5. The first value of a
// channel is far from both.
static void large_means(norm_case *p) {
    for (int64_t i = 0; i < p->x.t->count; i++)
        p->x.d[i] += p->x.t->dtype == ISO_BF16 ? 64 : p->x.t->dtype == ISO_F16 ? 512 : 4000.3;
    for (int64_t c = 0; c < p->oracle.channels; c++) p->x.d[c * p->oracle.plane] = -3;
    stored_put(&p->x);
    set_flags(p, BATCH | AFFINE);
    oracle_channel_moments(&p->oracle, p->x.d, p->batch_mean, p->batch_var);
    OK(p->kernels->batch_norm_forward(p->on.device, &p->args, p->x.t, p->y.t, p->workspace));
    oracle_batch_norm_forward(&p->oracle, p->x.d, p->batch_mean, p->batch_var, weights(p),
                              biases(p), p->y.d);
    stored_check(&p->y, p->real == ISO_F64 ? 1e-3 : TOLERANCE, "output of large means");
}
Test(cuda_norm_types, large_means_lose_nothing) {
    on_each_shape(long_shapes, COUNT(long_shapes), large_means);
}

// Whichever block is done last.
static void repeated(norm_case *p) {
    size_t bytes = (size_t)p->y.t->count * iso_dtype_size(p->y.t->dtype);
    iso_device *device = p->on.device;
    iso_tensor raw = *p->y.t;
    raw.layout = ISO_LAYOUT_LOGICAL;
    char *first = calloc(1, bytes), *again = calloc(1, bytes);
    set_flags(p, BATCH | RELU | AFFINE);
    for (int i = 0; i < 4; i++) {
        OK(p->kernels->batch_norm_forward(device, &p->args, p->x.t, p->y.t, p->workspace));
        OK(p->kernels->batch_norm_backward(device, &p->args, p->x.t, p->dy.t, p->workspace, p->dw.t,
                                           false, p->db.t, false, p->y.t));
        OK(device->ops->to_host(device, &raw, i == 0 ? first : again));
        cr_expect(i == 0 || memcmp(first, again, bytes) == 0, "input gradient, run %d", i);
    }
    free(first);
    free(again);
}
Test(cuda_norm_types, repeating_gives_the_same_bits) {
    on_each_shape(long_shapes, COUNT(long_shapes), repeated);
}

static void with_nan(norm_case *p) {
    set_flags(p, BATCH | RELU);
    int64_t channel = p->oracle.channels / 2, plane = p->oracle.plane;
    p->x.d[channel * plane] = NAN;
    stored_put(&p->x);
    oracle_channel_moments(&p->oracle, p->x.d, p->batch_mean, p->batch_var);
    OK(p->kernels->batch_norm_forward(p->on.device, &p->args, p->x.t, p->y.t, p->workspace));
    oracle_batch_norm_forward(&p->oracle, p->x.d, p->batch_mean, p->batch_var, NULL, NULL, p->y.d);
    int64_t nans = 0;
    for (int64_t i = 0; i < p->y.t->count; i++) nans += isnan(p->y.d[i]) != 0;
    cr_assert(nans == p->oracle.rows * plane);
    stored_check(&p->y, TOLERANCE, "output beside a NaN");
}
Test(cuda_norm_types, a_nan_is_seen_in_its_channel_only) {
    on_each_shape(shapes, COUNT(shapes), with_nan);
    on_each_shape(long_shapes, COUNT(long_shapes), with_nan);
}
