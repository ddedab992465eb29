// SPDX-License-Identifier: MIT
// Batch normalisation in either layout. It works strip by strip, so that a strip of channels is
// still in the cache for the second pass.
#include "device/cpu/plain/cpu_real.h"
#include "device/cpu/plain/cpu_strip.h"

typedef iso__strip strip;
typedef iso__strip_plan plan;

#define LANES ISO__LANES
#define CHUNK 256 // cells summed in `real`; sums of chunks are combined in double

// Loops over lanes. The loop should vectorise, not unroll. Results may overwrite arguments.
#define EACH_LANE ISO_CPU_IVDEP _Pragma("GCC unroll 1") for (int c = 0; c < lanes; c++)
#define INLINE    static inline __attribute__((always_inline))

// ---- Coefficients: rows of the workspace, a number for each channel -----------------------------

// y = (x - mean) * scale + shift and dx = dy * scale + (x - mean) * slope + offset. `mean` is the
// rounded mean, so that the difference is exact where it matters. The other coefficients correct
// for the rounding.
enum { MEAN, REST, DEVIATION, SCALE, SHIFT, SLOPE, OFFSET, ROWS };

typedef struct coefficients {
    real row[ROWS][LANES];
} coefficients;

static size_t batch_norm_workspace(iso_device *self, const iso_tensor *x) {
    plan p = iso__strip_plan_of(iso__cpu_of(self), x);
    return (size_t)(ROWS * p.width) * sizeof(real);
}

// Loads the coefficients of a strip: of its channels, or of its one channel in every lane.
static void load_coefficients(const plan *p, const strip *s, const real *workspace,
                              coefficients *k) {
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < s->lanes; c++)
            k->row[r][c] = workspace[r * p->width + s->channel + (s->across ? c : 0)];
}

// ---- Mean and variance --------------------------------------------------------------------------

// Number of values, their mean and the sum of squares of their distances from it, for each lane.
typedef struct moments {
    double count, mean[LANES], squares[LANES];
} moments;

// Puts two sets of values together (Chan, Golub, LeVeque: Updating formulae, 1979).
INLINE void merge_moments(double count_a, double *mean_a, double *squares_a, double count_b,
                          double mean_b, double squares_b) {
    double delta = mean_b - *mean_a, share = count_b / (count_a + count_b);
    *mean_a += delta * share;
    *squares_a += squares_b + delta * delta * count_a * share;
}

// Sums of x - shift and of its square.
INLINE void centred_sums(const int lanes, int64_t stride, int64_t cells, const real *restrict x,
                         const real *restrict shift, real *restrict sum, real *restrict squares) {
    real sum1[LANES] = {0}, squares1[LANES] = {0};
    EACH_LANE sum[c] = squares[c] = 0;
    int64_t i = 0;
    for (; i + 2 <= cells; i += 2, x += 2 * stride) EACH_LANE {
            real a = x[c] - shift[c], b = x[stride + c] - shift[c];
            sum[c] += a;
            sum1[c] += b;
            squares[c] += a * a;
            squares1[c] += b * b;
        }
    for (; i < cells; i++, x += stride) EACH_LANE {
            real a = x[c] - shift[c];
            sum[c] += a;
            squares[c] += a * a;
        }
    EACH_LANE sum[c] += sum1[c];
    EACH_LANE squares[c] += squares1[c];
}

INLINE void plain_sums(const int lanes, int64_t stride, int64_t cells, const real *restrict x,
                       real *restrict sum) {
    real sum1[LANES] = {0}, sum2[LANES] = {0}, sum3[LANES] = {0};
    EACH_LANE sum[c] = 0;
    int64_t i = 0;
    for (; i + 4 <= cells; i += 4, x += 4 * stride) EACH_LANE {
            sum[c] += x[c];
            sum1[c] += x[stride + c];
            sum2[c] += x[2 * stride + c];
            sum3[c] += x[3 * stride + c];
        }
    for (; i < cells; i++, x += stride) EACH_LANE sum[c] += x[c];
    EACH_LANE sum[c] = (sum[c] + sum1[c]) + (sum2[c] + sum3[c]);
}

// Passes over the chunk twice, while it is in the innermost cache. Sums about its rounded mean do
// not cancel.
INLINE void add_chunk(const int lanes, int64_t stride, int64_t cells, const real *x, moments *m) {
    real shift[LANES], sum[LANES], squares[LANES], part = (real)(1 / (double)cells);
    plain_sums(lanes, stride, cells, x, shift);
    EACH_LANE shift[c] *= part;
    centred_sums(lanes, stride, cells, x, shift, sum, squares);
    double n = (double)cells;
    EACH_LANE {
        double rest = (double)sum[c] / n;
        merge_moments(m->count, &m->mean[c], &m->squares[c], n, (double)shift[c] + rest,
                      (double)squares[c] - (double)sum[c] * rest);
    }
    m->count += n;
}

INLINE void add_run(const int lanes, const strip *s, const real *x, moments *m) {
    for (int64_t i = 0; i < s->cells; i += CHUNK)
        add_chunk(lanes, s->stride, s->cells - i < CHUNK ? s->cells - i : CHUNK, x + i * s->stride,
                  m);
}

// Halves the lanes until one is left.
static void join_lanes(moments *m) {
    for (int half = LANES / 2; half > 0; half /= 2, m->count *= 2)
        for (int c = 0; c < half && m->count > 0; c++)
            merge_moments(m->count, &m->mean[c], &m->squares[c], m->count, m->mean[c + half],
                          m->squares[c + half]);
}

ISO_CPU_CLONES static void strip_moments(const strip *s, const real *x, moments *m) {
    moments rest = {0};
    *m = rest;
    for (int64_t r = 0; r < s->runs; r++) {
        const real *run = x + s->first + r * s->step;
        if (s->lanes == 16)
            add_run(16, s, run, m);
        else if (s->lanes == 8)
            add_run(8, s, run, m);
        else
            add_run(s->lanes, s, run, m);
        if (s->rest) add_chunk(1, 1, s->rest, run + s->cells * s->stride, &rest);
    }
    if (s->across) return;
    join_lanes(m);
    if (s->rest)
        merge_moments(m->count, &m->mean[0], &m->squares[0], rest.count, rest.mean[0],
                      rest.squares[0]);
}

// ---- Forward ------------------------------------------------------------------------------------

static double number_or(const iso_tensor *t, int64_t i, double otherwise) {
    return t ? (double)((const real *)t->data)[i] : otherwise;
}

static void update_running(const iso__batch_norm_args *args, int64_t channel, double mean,
                           double unbiased) {
    if (!args->running_mean) return;
    real *m = (real *)args->running_mean->data + channel,
         *v = (real *)args->running_var->data + channel;
    *m = (real)((1 - args->factor) * (double)*m + args->factor * mean);
    *v = (real)((1 - args->factor) * (double)*v + args->factor * unbiased);
}

static void set_coefficients(const plan *p, const iso__batch_norm_args *args, int64_t channel,
                             double mean, double variance, real *workspace) {
    real *k = workspace + channel;
    double deviation = 1 / sqrt(variance + args->eps);
    double scale = deviation * number_or(args->weight, channel, 1);
    real rounded = (real)mean;
    double rest = mean - (double)rounded;
    k[MEAN * p->width] = rounded;
    k[REST * p->width] = (real)rest;
    k[DEVIATION * p->width] = (real)deviation;
    k[SCALE * p->width] = (real)scale;
    k[SHIFT * p->width] = (real)(number_or(args->bias, channel, 0) - rest * scale);
}

static double values_per_channel(const plan *p) {
    return (double)(p->v.rows * p->v.height * p->v.width);
}

// Number of values of a channel over which statistics are.
static double statistics_count(const plan *p, const iso__batch_norm_args *args) {
    return args->moments || args->sums ? args->count : values_per_channel(p);
}

static void strip_coefficients(const plan *p, const iso__batch_norm_args *args, const strip *s,
                               const iso_tensor *x, real *workspace) {
    double n = statistics_count(p, args);
    const double *given = args->moments;
    moments m;
    if (args->batch && !given) strip_moments(s, x->data, &m);
    for (int c = 0; c < s->channels; c++) {
        int64_t channel = s->channel + c;
        double mean = number_or(args->running_mean, channel, 0);
        double variance = number_or(args->running_var, channel, 1);
        if (args->batch) {
            double squares = given ? given[p->v.channels + channel] : m.squares[c];
            if (squares < 0) squares = 0; // a NaN stays one
            mean = given ? given[channel] : m.mean[c];
            variance = squares / n;
            update_running(args, channel, mean, squares / (n - 1));
        }
        set_coefficients(p, args, channel, mean, variance, workspace);
    }
    for (int c = s->channels; s->across && c < s->lanes; c++) // so that what fills a block stays 0
        for (int r = 0; r < ROWS; r++) workspace[r * p->width + s->channel + c] = 0;
}

INLINE real output_of(const coefficients *k, int c, real x) {
    return (x - k->row[MEAN][c]) * k->row[SCALE][c] + k->row[SHIFT][c];
}

INLINE void normalise_lanes(const int lanes, const bool relu, int64_t stride, int64_t cells,
                            const coefficients *restrict k, const real *restrict x,
                            real *restrict y) {
    for (int64_t i = 0; i < cells; i++, x += stride, y += stride) EACH_LANE {
            real v = output_of(k, c, x[c]);
            y[c] = relu && v < 0 ? 0 : v; // a NaN stays one
        }
}

INLINE void normalise_run(const bool relu, const strip *s, const coefficients *k, const real *x,
                          real *y) {
    if (s->lanes == 16)
        normalise_lanes(16, relu, s->stride, s->cells, k, x, y);
    else if (s->lanes == 8)
        normalise_lanes(8, relu, s->stride, s->cells, k, x, y);
    else
        normalise_lanes(s->lanes, relu, s->stride, s->cells, k, x, y);
    int64_t done = s->cells * s->stride;
    if (s->rest) normalise_lanes(s->rest, relu, 0, 1, k, x + done, y + done);
}

ISO_CPU_CLONES static void normalise_strip(const strip *s, bool relu, const coefficients *k,
                                           const real *x, real *y) {
    for (int64_t r = 0; r < s->runs; r++) {
        int64_t at = s->first + r * s->step;
        if (relu)
            normalise_run(true, s, k, x + at, y + at);
        else
            normalise_run(false, s, k, x + at, y + at);
    }
}

static iso_status batch_norm_forward(iso_device *self, const iso__batch_norm_args *args,
                                     const iso_tensor *x, iso_tensor *y, void *workspace) {
    plan p = iso__strip_plan_of(iso__cpu_of(self), x);
    for (int64_t i = 0; i < iso__strip_count(&p); i++) {
        strip s = iso__strip_of(&p, i);
        coefficients k;
        strip_coefficients(&p, args, &s, x, workspace);
        load_coefficients(&p, &s, workspace, &k);
        normalise_strip(&s, args->act == ISO_ACT_RELU, &k, x->data, y->data);
    }
    if (args->batch && args->tracked) ++*(int64_t *)args->tracked->data;
    return ISO_OK;
}

static iso_status batch_norm_moments(iso_device *self, const iso_tensor *x, double *out) {
    plan p = iso__strip_plan_of(iso__cpu_of(self), x);
    for (int64_t i = 0; i < iso__strip_count(&p); i++) {
        strip s = iso__strip_of(&p, i);
        moments m;
        strip_moments(&s, x->data, &m);
        for (int c = 0; c < s.channels; c++) {
            out[s.channel + c] = m.mean[c];
            out[p.v.channels + s.channel + c] = m.squares[c];
        }
    }
    return ISO_OK;
}

// ---- Backward -----------------------------------------------------------------------------------

// Sums of dy (before the activation) and of dy * (x - mean), for each lane.
typedef struct sums {
    double dy[LANES], product[LANES];
} sums;

// Recomputes from x, as forward did, whether the relu let it through. This saves reading y.
INLINE real through(const bool relu, const coefficients *k, int c, real x, real dy) {
    return relu && !(output_of(k, c, x) > 0) ? 0 : dy;
}

INLINE void sum_chunk(const int lanes, const bool relu, int64_t stride, int64_t cells,
                      const coefficients *restrict k, const real *restrict x,
                      const real *restrict dy, sums *restrict to) {
    real sum[LANES] = {0}, product[LANES] = {0}, sum1[LANES] = {0}, product1[LANES] = {0};
    int64_t i = 0;
    for (; i + 2 <= cells; i += 2, x += 2 * stride, dy += 2 * stride) EACH_LANE {
            real a = through(relu, k, c, x[c], dy[c]);
            real b = through(relu, k, c, x[stride + c], dy[stride + c]);
            sum[c] += a;
            sum1[c] += b;
            product[c] += a * (x[c] - k->row[MEAN][c]);
            product1[c] += b * (x[stride + c] - k->row[MEAN][c]);
        }
    for (; i < cells; i++, x += stride, dy += stride) EACH_LANE {
            real a = through(relu, k, c, x[c], dy[c]);
            sum[c] += a;
            product[c] += a * (x[c] - k->row[MEAN][c]);
        }
    EACH_LANE to->dy[c] += (double)(sum[c] + sum1[c]);
    EACH_LANE to->product[c] += (double)(product[c] + product1[c]);
}

INLINE void sum_run(const int lanes, const bool relu, const strip *s, const coefficients *k,
                    const real *x, const real *dy, sums *to) {
    for (int64_t i = 0; i < s->cells; i += CHUNK)
        sum_chunk(lanes, relu, s->stride, s->cells - i < CHUNK ? s->cells - i : CHUNK, k,
                  x + i * s->stride, dy + i * s->stride, to);
    int64_t done = s->cells * s->stride;
    if (s->rest) sum_chunk(s->rest, relu, 0, 1, k, x + done, dy + done, to);
}

INLINE void sum_runs(const bool relu, const strip *s, const coefficients *k, const real *x,
                     const real *dy, sums *to) {
    for (int64_t r = 0; r < s->runs; r++) {
        int64_t at = s->first + r * s->step;
        if (s->lanes == 16)
            sum_run(16, relu, s, k, x + at, dy + at, to);
        else if (s->lanes == 8)
            sum_run(8, relu, s, k, x + at, dy + at, to);
        else
            sum_run(s->lanes, relu, s, k, x + at, dy + at, to);
    }
}

ISO_CPU_CLONES static void strip_sums(const strip *s, bool relu, const coefficients *k,
                                      const real *x, const real *dy, sums *to) {
    *to = (sums){{0}, {0}};
    if (relu)
        sum_runs(true, s, k, x, dy, to);
    else
        sum_runs(false, s, k, x, dy, to);
    for (int c = 1; !s->across && c < LANES; c++) {
        to->dy[0] += to->dy[c];
        to->product[0] += to->product[c];
    }
}

static void add_to(iso_tensor *gradient, bool accumulate, int64_t i, double value) {
    if (!gradient) return;
    real *g = (real *)gradient->data + i;
    *g = (real)(accumulate ? (double)*g + value : value);
}

// With statistics of the batch, dx = scale (dy - mean(dy) - xhat mean(dy xhat)), else scale dy.
static void set_slopes(const plan *p, const iso__batch_norm_args *args, int64_t channel, double dy,
                       double product, real *workspace) {
    real *k = workspace + channel;
    bool batch = args->batch;
    double n = statistics_count(p, args), deviation = (double)k[DEVIATION * p->width];
    double scale = (double)k[SCALE * p->width], rest = (double)k[REST * p->width];
    double slope = batch ? -scale * deviation * deviation * product / n : 0;
    k[SLOPE * p->width] = (real)slope;
    k[OFFSET * p->width] = (real)(batch ? -scale * dy / n - slope * rest : 0);
}

INLINE void gradient(const int lanes, const bool relu, int64_t stride, int64_t cells,
                     const coefficients *restrict k, const real *restrict x, const real *dy,
                     real *dx) {
    for (int64_t i = 0; i < cells; i++, x += stride, dy += stride, dx += stride)
        EACH_LANE dx[c] = through(relu, k, c, x[c], dy[c]) * k->row[SCALE][c] +
                          ((x[c] - k->row[MEAN][c]) * k->row[SLOPE][c] + k->row[OFFSET][c]);
}

INLINE void gradient_run(const bool relu, const strip *s, const coefficients *k, const real *x,
                         const real *dy, real *dx) {
    if (s->lanes == 16)
        gradient(16, relu, s->stride, s->cells, k, x, dy, dx);
    else if (s->lanes == 8)
        gradient(8, relu, s->stride, s->cells, k, x, dy, dx);
    else
        gradient(s->lanes, relu, s->stride, s->cells, k, x, dy, dx);
    int64_t done = s->cells * s->stride;
    if (s->rest) gradient(s->rest, relu, 0, 1, k, x + done, dy + done, dx + done);
}

ISO_CPU_CLONES static void gradient_strip(const strip *s, bool relu, const coefficients *k,
                                          const real *x, const real *dy, real *dx) {
    for (int64_t r = 0; r < s->runs; r++) {
        int64_t at = s->first + r * s->step;
        if (relu)
            gradient_run(true, s, k, x + at, dy + at, dx + at);
        else
            gradient_run(false, s, k, x + at, dy + at, dx + at);
    }
}

// Where the gradients of weight and bias go; NULL: nowhere.
typedef struct targets {
    iso_tensor *dw, *db;
    bool accumulate_w, accumulate_b;
} targets;

// Sums of the strip's channels, and what follows from them.
static void strip_gradients(const plan *p, const strip *s, bool relu, const iso_tensor *x,
                            const iso_tensor *dy, const real *table, const targets *to,
                            double *sum_dy, double *sum_product) {
    coefficients k;
    sums sum;
    load_coefficients(p, s, table, &k);
    strip_sums(s, relu, &k, x->data, dy->data, &sum);
    for (int c = 0; c < s->channels; c++) {
        int64_t at = s->channel + c;
        double product = sum.product[c] - (double)table[REST * p->width + at] * sum.dy[c];
        add_to(to->dw, to->accumulate_w, at, product * (double)table[DEVIATION * p->width + at]);
        add_to(to->db, to->accumulate_b, at, sum.dy[c]);
        sum_dy[c] = sum.dy[c];
        sum_product[c] = product;
    }
}

static iso_status batch_norm_sums(iso_device *self, const iso__batch_norm_args *args,
                                  const iso_tensor *x, const iso_tensor *dy, void *workspace,
                                  iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                  bool accumulate_b, double *out) {
    plan p = iso__strip_plan_of(iso__cpu_of(self), x);
    targets to = {dw, db, accumulate_w, accumulate_b};
    for (int64_t i = 0; i < iso__strip_count(&p); i++) {
        strip s = iso__strip_of(&p, i);
        double *sum = out + s.channel;
        strip_gradients(&p, &s, args->act == ISO_ACT_RELU, x, dy, workspace, &to, sum,
                        sum + p.v.channels);
    }
    return ISO_OK;
}

static iso_status batch_norm_backward(iso_device *self, const iso__batch_norm_args *args,
                                      const iso_tensor *x, const iso_tensor *dy, void *workspace,
                                      iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                      bool accumulate_b, iso_tensor *dx) {
    plan p = iso__strip_plan_of(iso__cpu_of(self), x);
    bool relu = args->act == ISO_ACT_RELU;
    targets to = {dw, db, accumulate_w, accumulate_b};
    for (int64_t i = 0; i < iso__strip_count(&p); i++) {
        strip s = iso__strip_of(&p, i);
        coefficients k;
        double own[2][LANES];
        const double *sum_dy = own[0], *sum_product = own[1];
        if (args->sums)
            sum_product = (sum_dy = args->sums + s.channel) + p.v.channels;
        else
            strip_gradients(&p, &s, relu, x, dy, workspace, &to, own[0], own[1]);
        for (int c = 0; c < s.channels; c++)
            set_slopes(&p, args, s.channel + c, sum_dy[c], sum_product[c], workspace);
        load_coefficients(&p, &s, workspace, &k);
        if (dx) gradient_strip(&s, relu, &k, x->data, dy->data, dx->data);
    }
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_batch_norm)(iso_kernel_ops *ops) {
    ops->batch_norm_workspace = batch_norm_workspace;
    ops->batch_norm_moments = batch_norm_moments;
    ops->batch_norm_forward = batch_norm_forward;
    ops->batch_norm_sums = batch_norm_sums;
    ops->batch_norm_backward = batch_norm_backward;
}
