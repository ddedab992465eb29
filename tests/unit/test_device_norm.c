// SPDX-License-Identifier: MIT
// Batch and layer normalisation of every device and set of kernels against the double-precision
// oracle.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "common/oracle_norm.h"

#include <math.h>
#include <string.h>

TestSuite(device_norm, .timeout = 300, .fini = balance_check);

// ---- Batch norm ---------------------------------------------------------------------------------

#define TOLERANCE 1e-5

typedef struct norm_shape {
    int ndim;
    int64_t shape[4];
} norm_shape;

static const norm_shape shapes[] = {
    {4, {3, 16, 5, 7}},   {2, {6, 5}},         {2, {33, 37}},
    {3, {4, 3, 21}},      {4, {2, 10, 3, 3}},  {4, {2, 33, 2, 2}},
    {4, {5, 20, 1, 1}}, // planes of one pixel
    {3, {7, 9, 1}},       {4, {2, 8, 16, 16}}, {4, {3, 3, 4, 4}},
    {4, {1, 17, 20, 20}}, // more cells than a chunk
    {4, {1, 2, 1, 2}},    // two values per channel
};

typedef struct norm_pairs {
    oracle_batch_norm oracle;
    iso__batch_norm_args args;
    pair x, y, dy, w, b, mean, var, dw, db;
    iso_tensor *tracked;
    double *batch_mean, *batch_var;
    void *workspace;
} norm_pairs;

// Replaces x by change(i, x).
static void change_values(norm_pairs *p, double (*change)(const norm_pairs *, int64_t, double)) {
    void *host;
    OK(iso_tensor_map(p->x.t, ISO_READ_WRITE, &host));
    for (int64_t i = 0; i < p->x.t->count; i++) {
        double value = change(p, i, p->x.d[i]);
        if (p->x.t->dtype == ISO_F64)
            p->x.d[i] = ((double *)host)[i] = value;
        else
            p->x.d[i] = (double)(((float *)host)[i] = (float)value);
    }
    OK(iso_tensor_unmap(p->x.t));
}

// No value is the mean of others: where a relu begins, rounding would decide.
static double off_the_grid(const norm_pairs *p, int64_t i, double x) {
    (void)p, (void)i;
    return x + 0.414 * x * x;
}

static norm_pairs norm_create(const target *on, const norm_shape *s, iso_layout layout) {
    if (s->ndim != 4) layout = ISO_LAYOUT_LOGICAL;
    int64_t channels = s->shape[1], plane = 1;
    for (int i = 2; i < s->ndim; i++) plane *= s->shape[i];
    norm_pairs p = {.oracle = {s->shape[0], channels, plane, 1e-3, false},
                    .x = pair_create(on, s->ndim, s->shape, layout, 1000),
                    .y = pair_create(on, s->ndim, s->shape, layout, 1000),
                    .dy = pair_create(on, s->ndim, s->shape, layout, 1000),
                    .w = pair_1d(on, channels),
                    .b = pair_1d(on, channels),
                    .mean = pair_1d(on, channels),
                    .var = pair_1d(on, channels),
                    .dw = pair_1d(on, channels),
                    .db = pair_1d(on, channels)};
    for (int64_t c = 0; c < channels; c++) p.var.d[c] = 0.25 + (double)(c % 8) / 8;
    pair_write(&p.var);
    p.batch_mean = calloc((size_t)channels, sizeof(double));
    p.batch_var = calloc((size_t)channels, sizeof(double));
    OK(on->device->ops->alloc(on->device, on->kernels->batch_norm_workspace(on->device, p.x.t),
                              &p.workspace));
    OK(iso_tensor_create(on->device, ISO_I64, 0, NULL, &p.tracked));
    OK(iso_tensor_fill(p.tracked, 40));
    change_values(&p, off_the_grid);
    return p;
}

static void norm_destroy(const target *on, norm_pairs *p) {
    pair *all[] = {&p->x, &p->y, &p->dy, &p->w, &p->b, &p->mean, &p->var, &p->dw, &p->db};
    for (int i = 0; i < COUNT(all); i++) pair_destroy(all[i]);
    iso_tensor_destroy(&p->tracked);
    free(p->batch_mean);
    free(p->batch_var);
    on->device->ops->free(on->device, p->workspace);
}

// flags: 1 batch statistics, 2 relu, 4 affine, 8 running statistics are updated, 16 accumulate.
static void set_flags(norm_pairs *p, int flags) {
    p->oracle.relu = flags & 2;
    p->args = (iso__batch_norm_args){.eps = p->oracle.eps,
                                     .factor = 0.3,
                                     .batch = flags & 1,
                                     .act = flags & 2 ? ISO_ACT_RELU : ISO_ACT_NONE,
                                     .tracked = p->tracked,
                                     .weight = flags & 4 ? p->w.t : NULL,
                                     .bias = flags & 4 ? p->b.t : NULL};
    if (p->args.batch && !(flags & 8)) return;
    p->args.running_mean = p->mean.t;
    p->args.running_var = p->var.t;
}

static void expect_running(norm_pairs *p, double *mean, double *var) {
    oracle_channel_moments(&p->oracle, p->x.d, p->batch_mean, p->batch_var);
    double n = (double)(p->oracle.rows * p->oracle.plane);
    for (int64_t c = 0; c < p->oracle.channels; c++) {
        if (!p->args.batch) {
            p->batch_mean[c] = mean[c];
            p->batch_var[c] = var[c];
        } else if (p->args.running_mean) {
            mean[c] = 0.7 * mean[c] + 0.3 * p->batch_mean[c];
            var[c] = 0.7 * var[c] + 0.3 * p->batch_var[c] * n / (n - 1);
        }
    }
}

// A batch counts whether or not its statistics are kept; an evaluation does not.
static void check_count(norm_pairs *p) {
    void *host;
    OK(iso_tensor_map(p->tracked, ISO_READ, &host));
    cr_assert_eq(*(int64_t *)host, 40 + p->args.batch);
    OK(iso_tensor_unmap(p->tracked));
    OK(iso_tensor_fill(p->tracked, 40));
}

static void check_case(const target *on, norm_pairs *p, int flags, double tolerance) {
    set_flags(p, flags);
    const double *w = flags & 4 ? p->w.d : NULL, *b = flags & 4 ? p->b.d : NULL;
    expect_running(p, p->mean.d, p->var.d);
    OK(on->kernels->batch_norm_forward(on->device, &p->args, p->x.t, p->y.t, p->workspace));
    oracle_batch_norm_forward(&p->oracle, p->x.d, p->batch_mean, p->batch_var, w, b, p->y.d);
    check_pair(on, &p->y, tolerance, "batch norm output");
    check_pair(on, &p->mean, tolerance, "running mean");
    check_pair(on, &p->var, tolerance, "running variance");
    check_count(p);
    if (!(flags & 16)) zero(&p->dw), zero(&p->db);
    oracle_batch_norm_backward(&p->oracle, p->args.batch, p->x.d, p->batch_mean, p->batch_var, w, b,
                               p->dy.d, p->dw.d, p->db.d, p->y.d);
    OK(on->kernels->batch_norm_backward(on->device, &p->args, p->x.t, p->dy.t, p->workspace,
                                        p->dw.t, flags & 16, p->db.t, flags & 16, p->y.t));
    check_pair(on, &p->y, tolerance, "batch norm input gradient");
    check_pair(on, &p->dw, tolerance, "batch norm weight gradient");
    check_pair(on, &p->db, tolerance, "batch norm bias gradient");
}

static void all_cases(const target *on) {
    for (int i = 0; i < COUNT(shapes); i++)
        for (int flags = 0; flags < 64; flags++) {
            norm_pairs p = norm_create(on, &shapes[i], layouts[flags >> 5]);
            check_case(on, &p, flags & 31, TOLERANCE);
            norm_destroy(on, &p);
        }
}
Test(device_norm, batch_norm_matches_the_oracle) { on_each_target(all_cases); }

static void in_place(const target *on) {
    for (int i = 0; i < COUNT(shapes); i++)
        for (int layout = 0; layout < 2; layout++) {
            norm_pairs p = norm_create(on, &shapes[i], layouts[layout]);
            set_flags(&p, 1 + 2 + 4);
            expect_running(&p, p.mean.d, p.var.d);
            OK(on->kernels->batch_norm_forward(on->device, &p.args, p.x.t, p.y.t, p.workspace));
            oracle_batch_norm_backward(&p.oracle, true, p.x.d, p.batch_mean, p.batch_var, p.w.d,
                                       p.b.d, p.dy.d, NULL, NULL, p.y.d);
            OK(on->kernels->batch_norm_backward(on->device, &p.args, p.x.t, p.dy.t, p.workspace,
                                                NULL, false, NULL, false, p.dy.t));
            memcpy(p.dy.d, p.y.d, (size_t)p.x.t->count * sizeof(double));
            check_pair(on, &p.dy, TOLERANCE, "batch norm input gradient in place");
            norm_destroy(on, &p);
        }
}
Test(device_norm, batch_norm_gradient_may_overwrite_what_it_comes_from) {
    on_each_target(in_place);
}

// Channels of so many values that a device may take parts of them side by side.
static const norm_shape long_shapes[] = {
    {4, {9, 3, 37, 41}}, {2, {1100, 20}}, {3, {1500, 5, 7}}, {3, {2, 2, 9001}}};

static void long_cases(const target *on) {
    static const int flags[] = {2 + 4, 1 + 2 + 4 + 8, 1 + 16};
    for (int i = 0; i < COUNT(long_shapes) * COUNT(flags); i++) {
        norm_pairs p = norm_create(on, &long_shapes[i / COUNT(flags)], layouts[i % 2]);
        check_case(on, &p, flags[i % COUNT(flags)], TOLERANCE);
        norm_destroy(on, &p);
    }
}
Test(device_norm, channels_of_many_values_match_the_oracle) { on_each_target(long_cases); }

// ---- Statistics of several batches --------------------------------------------------------------

// The same numbers as rows of `whole`, from element `first` on.
static void take_rows(const pair *whole, int64_t first, pair *part) {
    void *host;
    OK(iso_tensor_map(part->t, ISO_WRITE, &host));
    for (int64_t i = 0; i < part->t->count; i++) {
        part->d[i] = whole->d[first + i];
        if (part->t->dtype == ISO_F64)
            ((double *)host)[i] = part->d[i];
        else
            ((float *)host)[i] = (float)part->d[i];
    }
    OK(iso_tensor_unmap(part->t));
}

// A batch in two halves, which give their moments and sums, and get those of both.
typedef struct halves {
    norm_pairs whole, half[2];
    int64_t channels;
    double count;     // values of a channel of the whole
    double *given[3]; // of each half, and of both
} halves;

static halves halves_create(const target *on, const norm_shape *s, iso_layout layout) {
    norm_shape small = *s;
    small.shape[0] = s->shape[0] / 2;
    norm_shape both = small;
    both.shape[0] *= 2;
    halves h = {.whole = norm_create(on, &both, layout), .channels = s->shape[1]};
    set_flags(&h.whole, 1 + 2 + 4);
    h.count = (double)(h.whole.oracle.rows * h.whole.oracle.plane);
    for (int i = 0; i < 3; i++) h.given[i] = calloc(2 * (size_t)h.channels, sizeof(double));
    for (int i = 0; i < 2; i++) {
        norm_pairs *p = &h.half[i];
        *p = norm_create(on, &small, layout);
        take_rows(&h.whole.x, i * p->x.t->count, &p->x);
        take_rows(&h.whole.dy, i * p->x.t->count, &p->dy);
        take_rows(&h.whole.w, 0, &p->w);
        take_rows(&h.whole.b, 0, &p->b);
        set_flags(p, 1 + 2 + 4);
        p->args.count = h.count;
    }
    return h;
}

static void halves_destroy(const target *on, halves *h) {
    norm_destroy(on, &h->whole);
    for (int i = 0; i < 2; i++) norm_destroy(on, &h->half[i]);
    for (int i = 0; i < 3; i++) free(h->given[i]);
}

static void share_moments(const target *on, halves *h) {
    for (int i = 0; i < 2; i++)
        OK(on->kernels->batch_norm_moments(on->device, h->half[i].x.t, h->given[i]));
    for (int64_t c = 0; c < h->channels; c++) {
        double mean = (h->given[0][c] + h->given[1][c]) / 2, squares = 0;
        for (int i = 0; i < 2; i++)
            squares += h->given[i][h->channels + c] +
                       h->count / 2 * (h->given[i][c] - mean) * (h->given[i][c] - mean);
        h->given[2][c] = mean;
        h->given[2][h->channels + c] = squares;
    }
}

// Compares what a half has with its rows of the whole.
static void check_rows(const target *on, const halves *h, int i, const char *what) {
    pair *y = &((halves *)h)->half[i].y;
    memcpy(y->d, h->whole.y.d + i * y->t->count, (size_t)y->t->count * sizeof(double));
    check_pair(on, y, TOLERANCE, what);
}

static void forward_halves(const target *on, halves *h) {
    norm_pairs *all = &h->whole;
    expect_running(all, all->mean.d, all->var.d);
    oracle_batch_norm_forward(&all->oracle, all->x.d, all->batch_mean, all->batch_var, all->w.d,
                              all->b.d, all->y.d);
    share_moments(on, h);
    for (int i = 0; i < 2; i++) {
        norm_pairs *p = &h->half[i];
        p->args.moments = h->given[2];
        OK(on->kernels->batch_norm_forward(on->device, &p->args, p->x.t, p->y.t, p->workspace));
        check_rows(on, h, i, "batch norm output with statistics of several batches");
    }
}

// dw and db are left with the sums of both: the second half adds to what the first has.
static void backward_halves(const target *on, halves *h) {
    norm_pairs *all = &h->whole, *first = &h->half[0];
    zero(&first->dw), zero(&first->db);
    oracle_batch_norm_backward(&all->oracle, true, all->x.d, all->batch_mean, all->batch_var,
                               all->w.d, all->b.d, all->dy.d, first->dw.d, first->db.d, all->y.d);
    for (int i = 0; i < 2; i++)
        OK(on->kernels->batch_norm_sums(on->device, &h->half[i].args, h->half[i].x.t,
                                        h->half[i].dy.t, h->half[i].workspace, first->dw.t, i > 0,
                                        first->db.t, i > 0, h->given[i]));
    check_pair(on, &first->dw, TOLERANCE, "weight gradient of several batches");
    check_pair(on, &first->db, TOLERANCE, "bias gradient of several batches");
    for (int64_t c = 0; c < 2 * h->channels; c++) h->given[2][c] = h->given[0][c] + h->given[1][c];
    for (int i = 0; i < 2; i++) {
        norm_pairs *p = &h->half[i];
        p->args.sums = h->given[2];
        OK(on->kernels->batch_norm_backward(on->device, &p->args, p->x.t, p->dy.t, p->workspace,
                                            first->dw.t, true, first->db.t, true, p->y.t));
        check_rows(on, h, i, "batch norm input gradient with sums of several batches");
    }
    check_pair(on, &first->dw, TOLERANCE, "weight gradient that a backward with sums leaves alone");
}

static void in_halves(const target *on) {
    static const norm_shape sizes[] = {{4, {2, 5, 3, 4}}, {2, {8, 301}}, {4, {18, 3, 37, 41}}};
    for (int i = 0; i < COUNT(sizes) * 2; i++) {
        halves h = halves_create(on, &sizes[i / 2], layouts[i % 2]);
        forward_halves(on, &h);
        backward_halves(on, &h);
        halves_destroy(on, &h);
    }
}
Test(device_norm, halves_that_share_their_statistics_are_the_whole_batch) {
    on_each_target(in_halves);
}

// ---- Numbers that are hard to sum ---------------------------------------------------------------

// Channels whose mean is far greater than their deviation, and whose first value is far from both.
static double far_away(const norm_pairs *p, int64_t i, double x) {
    int64_t c = i / p->oracle.plane % p->oracle.channels;
    bool first = i % p->oracle.plane == 0 && i < p->oracle.plane * p->oracle.channels;
    return (first ? -3 : x) + (c % 3 == 0 ? 4000.3 : c % 3 == 1 ? -77777 : 0.001);
}

static void large(const target *on) {
    static const norm_shape sizes[] = {{4, {37, 10, 41, 43}}, {2, {20011, 17}}, {3, {3, 3, 20000}}};
    for (int i = 0; i < COUNT(sizes); i++)
        for (int layout = 0; layout < 2; layout++) {
            norm_pairs p = norm_create(on, &sizes[i], layouts[layout]);
            change_values(&p, far_away);
            set_flags(&p, 1 + 4);
            expect_running(&p, p.mean.d, p.var.d);
            OK(on->kernels->batch_norm_forward(on->device, &p.args, p.x.t, p.y.t, p.workspace));
            oracle_batch_norm_forward(&p.oracle, p.x.d, p.batch_mean, p.batch_var, p.w.d, p.b.d,
                                      p.y.d);
            // In f64 means of 8e4 cost five of sixteen digits.
            check_pair(on, &p.y, on->dtype == ISO_F64 ? 1e-3 : TOLERANCE, "output of large means");
            norm_destroy(on, &p);
        }
}
Test(device_norm, large_means_and_many_values_lose_nothing) { on_each_target(large); }

static void nan_case(const target *on) {
    for (int layout = 0; layout < 2; layout++) {
        norm_pairs p = norm_create(on, &shapes[0], layouts[layout]);
        pair_set(&p.x, 40, NAN); // channel 1
        set_flags(&p, 1 + 2);
        OK(on->kernels->batch_norm_forward(on->device, &p.args, p.x.t, p.y.t, p.workspace));
        void *host;
        OK(iso_tensor_map(p.y.t, ISO_READ, &host));
        for (int64_t i = 0; i < p.y.t->count; i++) {
            double y = on->dtype == ISO_F64 ? ((double *)host)[i] : (double)((float *)host)[i];
            cr_assert(isnan(y) == (i / p.oracle.plane % p.oracle.channels == 1));
        }
        OK(iso_tensor_unmap(p.y.t));
        norm_destroy(on, &p);
    }
}
Test(device_norm, a_nan_is_seen_in_its_channel_only) { on_each_target(nan_case); }

// ---- Layer norm ---------------------------------------------------------------------------------

static void layer_case(const target *on, int64_t rows, int64_t size, int flags) {
    bool affine = flags & 1, accumulate = flags & 2;
    pair x = pair_2d(on, rows, size), y = pair_2d(on, rows, size), dy = pair_2d(on, rows, size);
    target of_parameters = parameter_target(on);
    pair w = pair_1d(&of_parameters, size), b = pair_1d(&of_parameters, size);
    pair dw = pair_1d(&of_parameters, size), db = pair_1d(&of_parameters, size);
    pair statistics = pair_2d(&of_parameters, rows, 3);
    const double *wd = affine ? w.d : NULL;
    OK(on->kernels->layer_norm_forward(on->device, 1e-3, size, x.t, affine ? w.t : NULL,
                                       affine ? b.t : NULL, statistics.t, y.t));
    oracle_layer_norm(rows, size, 1e-3, x.d, wd, affine ? b.d : NULL, y.d);
    check_pair(on, &y, TOLERANCE, "layer norm output");
    if (!accumulate) zero(&dw), zero(&db);
    OK(on->kernels->layer_norm_backward_params(on->device, size, x.t, dy.t, statistics.t, dw.t,
                                               accumulate, db.t, accumulate));
    OK(on->kernels->layer_norm_backward_input(on->device, size, x.t, affine ? w.t : NULL, dy.t,
                                              statistics.t, dy.t));
    oracle_layer_norm_backward(rows, size, 1e-3, x.d, wd, dy.d, dw.d, db.d, y.d);
    memcpy(dy.d, y.d, (size_t)(rows * size) * sizeof(double));
    check_pair(on, &dw, TOLERANCE, "layer norm weight gradient");
    check_pair(on, &db, TOLERANCE, "layer norm bias gradient");
    check_pair(on, &dy, TOLERANCE, "layer norm input gradient in place");
    pair *all[] = {&x, &y, &dy, &w, &b, &dw, &db, &statistics};
    for (int i = 0; i < COUNT(all); i++) pair_destroy(all[i]);
}

static void layer_norms(const target *on) {
    static const int64_t sizes[][2] = {{4, 7}, {3, 16}, {1, 33}, {70, 129}, {2, 5000}, {5, 1}};
    for (int i = 0; i < COUNT(sizes) * 4; i++)
        layer_case(on, sizes[i / 4][0], sizes[i / 4][1], i % 4);
}
Test(device_norm, layer_norm_matches_the_oracle) { on_each_activation_target(layer_norms); }
