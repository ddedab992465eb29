// SPDX-License-Identifier: MIT
// Layer and group normalisation: rows that stay in the innermost cache, with sums in double
// precision.
#include "device/cpu/plain/cpu_real.h"

#include <string.h>

#define LANES     16
#define EACH_LANE _Pragma("GCC unroll 1") for (int c = 0; c < LANES; c++)
#define INLINE    static inline __attribute__((always_inline))

// The sum of value(i) over i < count, side by side, in an order that no instruction set changes.
#define SUM(total, count, value)                                                                   \
    do {                                                                                           \
        double lane_[LANES] = {0};                                                                 \
        int64_t i0_ = 0;                                                                           \
        for (; i0_ + LANES <= (count); i0_ += LANES) EACH_LANE {                                   \
                const int64_t i = i0_ + c;                                                         \
                lane_[c] += (value);                                                               \
            }                                                                                      \
        for (int64_t i = i0_; i < (count); i++) lane_[i - i0_] += (value);                         \
        for (int half_ = LANES / 2; half_ > 0; half_ /= 2)                                         \
            for (int c = 0; c < half_; c++) lane_[c] += lane_[c + half_];                          \
        (total) = lane_[0];                                                                        \
    } while (0)

// What forward keeps of a row: its rounded mean, what rounding cut off, and 1 / deviation.
typedef struct row_statistics {
    real mean, rest, deviation;
} row_statistics;

static row_statistics get_statistics(const iso_tensor *statistics, int64_t row) {
    const real *s = (const real *)statistics->data + row * 3;
    return (row_statistics){s[0], s[1], s[2]};
}

INLINE real standardised_of(const row_statistics *s, real x) {
    return ((x - s->mean) - s->rest) * s->deviation;
}

ISO_CPU_CLONES static row_statistics statistics_of(int64_t size, double eps, const real *x) {
    double sum, squares;
    SUM(sum, size, (double)x[i]);
    double mean = sum / (double)size;
    SUM(squares, size, ((double)x[i] - mean) * ((double)x[i] - mean));
    row_statistics s = {.mean = (real)mean};
    s.rest = (real)(mean - (double)s.mean);
    s.deviation = (real)(1 / sqrt(squares / (double)size + eps));
    return s;
}

ISO_CPU_CLONES static void normalise(int64_t size, row_statistics s, const real *restrict x,
                                     const real *restrict w, const real *restrict b,
                                     real *restrict y) {
    if (!w)
        for (int64_t i = 0; i < size; i++) y[i] = standardised_of(&s, x[i]);
    else
        for (int64_t i = 0; i < size; i++) y[i] = standardised_of(&s, x[i]) * w[i] + b[i];
}

static iso_status layer_norm_forward(iso_device *self, double eps, int64_t size,
                                     const iso_tensor *x, const iso_tensor *w, const iso_tensor *b,
                                     iso_tensor *statistics, iso_tensor *y) {
    (void)self;
    for (int64_t r = 0; r < x->count / size; r++) {
        const real *row = (const real *)x->data + r * size;
        row_statistics s = statistics_of(size, eps, row);
        real *kept = (real *)statistics->data + r * 3;
        kept[0] = s.mean;
        kept[1] = s.rest;
        kept[2] = s.deviation;
        normalise(size, s, row, w ? w->data : NULL, b ? b->data : NULL, (real *)y->data + r * size);
    }
    return ISO_OK;
}

ISO_CPU_CLONES static void add_row(int64_t size, row_statistics s, const real *restrict x,
                                   const real *restrict dy, double *restrict dw,
                                   double *restrict db) {
    for (int64_t i = 0; i < size; i++) dw[i] += (double)(dy[i] * standardised_of(&s, x[i]));
    for (int64_t i = 0; i < size; i++) db[i] += (double)dy[i];
}

static void store_gradient(int64_t size, const double *sum, bool accumulate, iso_tensor *gradient) {
    if (!gradient) return;
    real *g = gradient->data;
    for (int64_t i = 0; i < size; i++) g[i] = (real)(accumulate ? (double)g[i] + sum[i] : sum[i]);
}

static iso_status layer_norm_backward_params(iso_device *self, int64_t size, const iso_tensor *x,
                                             const iso_tensor *dy, const iso_tensor *statistics,
                                             iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                             bool accumulate_b) {
    void *scratch;
    ISO_TRY(iso__cpu_scratch(iso__cpu_of(self), 2 * (size_t)size * sizeof(double), &scratch));
    memset(scratch, 0, 2 * (size_t)size * sizeof(double));
    double *sum = scratch;
    for (int64_t r = 0; r < x->count / size; r++)
        add_row(size, get_statistics(statistics, r), (const real *)x->data + r * size,
                (const real *)dy->data + r * size, sum, sum + size);
    store_gradient(size, sum, accumulate_w, dw);
    store_gradient(size, sum + size, accumulate_b, db);
    return ISO_OK;
}

// dx = (g - mean(g) - xhat mean(g xhat)) / deviation with g = dy w.
ISO_CPU_CLONES static void gradient(int64_t size, row_statistics s, const real *restrict x,
                                    const real *restrict w, const real *dy, real *dx) {
    double sum, product;
    if (w) {
        SUM(sum, size, (double)(dy[i] * w[i]));
        SUM(product, size, (double)(dy[i] * w[i] * standardised_of(&s, x[i])));
    } else {
        SUM(sum, size, (double)dy[i]);
        SUM(product, size, (double)(dy[i] * standardised_of(&s, x[i])));
    }
    real mean = (real)(sum / (double)size), slope = (real)(product / (double)size);
    if (w) {
        ISO_CPU_IVDEP for (int64_t i = 0; i < size; i++) dx[i] =
            (dy[i] * w[i] - mean - standardised_of(&s, x[i]) * slope) * s.deviation;
    } else {
        ISO_CPU_IVDEP for (int64_t i = 0; i < size; i++) dx[i] =
            (dy[i] - mean - standardised_of(&s, x[i]) * slope) * s.deviation;
    }
}

static iso_status layer_norm_backward_input(iso_device *self, int64_t size, const iso_tensor *x,
                                            const iso_tensor *w, const iso_tensor *dy,
                                            const iso_tensor *statistics, iso_tensor *dx) {
    (void)self;
    for (int64_t r = 0; r < x->count / size; r++)
        gradient(size, get_statistics(statistics, r), (const real *)x->data + r * size,
                 w ? w->data : NULL, (const real *)dy->data + r * size,
                 (real *)dx->data + r * size);
    return ISO_OK;
}

// ---- Groups: a row is a group of channels of a sample ----------------------------------------------

typedef struct grouping {
    int64_t rows, channels, plane; // of a row: channels of `plane` elements
    int64_t groups;
} grouping;

static grouping grouping_of(int64_t groups, const iso_tensor *x) {
    grouping g = {.rows = x->shape[0] * groups, .channels = x->shape[1] / groups, .groups = groups};
    g.plane = x->count / (x->shape[0] * x->shape[1]);
    return g;
}

// Weight or bias of channel c of a row.
static real of_channel(const grouping *g, const iso_tensor *p, int64_t row, int64_t c,
                       real otherwise) {
    return p ? ((real *)p->data)[row % g->groups * g->channels + c] : otherwise;
}

ISO_CPU_CLONES static void normalise_channel(int64_t count, row_statistics s, real w, real b,
                                             const real *restrict x, real *restrict y) {
    for (int64_t i = 0; i < count; i++) y[i] = standardised_of(&s, x[i]) * w + b;
}

static iso_status group_norm_forward(iso_device *self, int64_t groups, double eps,
                                     const iso_tensor *x, const iso_tensor *w, const iso_tensor *b,
                                     iso_tensor *statistics, iso_tensor *y) {
    (void)self;
    grouping g = grouping_of(groups, x);
    for (int64_t r = 0; r < g.rows; r++) {
        int64_t first = r * g.channels * g.plane;
        row_statistics s = statistics_of(g.channels * g.plane, eps, (const real *)x->data + first);
        memcpy((real *)statistics->data + r * 3, &s, sizeof(s));
        for (int64_t c = 0; c < g.channels; c++)
            normalise_channel(g.plane, s, of_channel(&g, w, r, c, 1), of_channel(&g, b, r, c, 0),
                              (const real *)x->data + first + c * g.plane,
                              (real *)y->data + first + c * g.plane);
    }
    return ISO_OK;
}

// The sums over a channel of dy and of dy times the standardised input.
ISO_CPU_CLONES static void sum_channel(int64_t count, row_statistics s, const real *x,
                                       const real *dy, double *sum, double *product) {
    SUM(*sum, count, (double)dy[i]);
    SUM(*product, count, (double)(dy[i] * standardised_of(&s, x[i])));
}

static iso_status group_norm_backward_params(iso_device *self, int64_t groups, const iso_tensor *x,
                                             const iso_tensor *dy, const iso_tensor *statistics,
                                             iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                             bool accumulate_b) {
    grouping g = grouping_of(groups, x);
    int64_t channels = g.channels * groups;
    void *scratch;
    ISO_TRY(iso__cpu_scratch(iso__cpu_of(self), 2 * (size_t)channels * sizeof(double), &scratch));
    memset(scratch, 0, 2 * (size_t)channels * sizeof(double));
    double *sum = scratch;
    for (int64_t k = 0; k < g.rows * g.channels; k++) {
        double ones, products;
        sum_channel(g.plane, get_statistics(statistics, k / g.channels),
                    (const real *)x->data + k * g.plane, (const real *)dy->data + k * g.plane,
                    &ones, &products);
        sum[k % channels] += products;
        sum[channels + k % channels] += ones;
    }
    store_gradient(channels, sum, accumulate_w, dw);
    store_gradient(channels, sum + channels, accumulate_b, db);
    return ISO_OK;
}

ISO_CPU_CLONES static void channel_gradient(int64_t count, row_statistics s, real w, real mean,
                                            real slope, const real *x, const real *dy, real *dx) {
    ISO_CPU_IVDEP for (int64_t i = 0; i < count; i++) dx[i] =
        (dy[i] * w - mean - standardised_of(&s, x[i]) * slope) * s.deviation;
}

// As of a row of a layer norm, with the weight of each channel.
static iso_status group_norm_backward_input(iso_device *self, int64_t groups, const iso_tensor *x,
                                            const iso_tensor *w, const iso_tensor *dy,
                                            const iso_tensor *statistics, iso_tensor *dx) {
    (void)self;
    grouping g = grouping_of(groups, x);
    double size = (double)(g.channels * g.plane);
    for (int64_t r = 0; r < g.rows; r++) {
        row_statistics s = get_statistics(statistics, r);
        int64_t first = r * g.channels * g.plane;
        const real *in = (const real *)x->data + first, *grad = (const real *)dy->data + first;
        double sum = 0, product = 0;
        for (int64_t c = 0; c < g.channels; c++) {
            double ones, products, factor = (double)of_channel(&g, w, r, c, 1);
            sum_channel(g.plane, s, in + c * g.plane, grad + c * g.plane, &ones, &products);
            sum += ones * factor;
            product += products * factor;
        }
        for (int64_t c = 0; c < g.channels; c++)
            channel_gradient(g.plane, s, of_channel(&g, w, r, c, 1), (real)(sum / size),
                             (real)(product / size), in + c * g.plane, grad + c * g.plane,
                             (real *)dx->data + first + c * g.plane);
    }
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_layer_norm)(iso_kernel_ops *ops) {
    ops->group_norm_forward = group_norm_forward;
    ops->group_norm_backward_params = group_norm_backward_params;
    ops->group_norm_backward_input = group_norm_backward_input;
    ops->layer_norm_forward = layer_norm_forward;
    ops->layer_norm_backward_params = layer_norm_backward_params;
    ops->layer_norm_backward_input = layer_norm_backward_input;
}
