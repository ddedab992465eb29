// SPDX-License-Identifier: MIT
// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019): a matrix of gradients travels as the product
// of two thin ones. With M the gradient plus what was left out before:
//
//   phase 0: P = sum over the ranks of M Q, its columns made orthonormal
//   phase 1: Q = mean over the ranks of M' P, with which the next exchange begins
//   result:  P Q'; what is left out is M - P Q'
//
// That is so if the factor of the mean is 1 / ranks. In general M - P Q' / (factor * ranks) is left
// out: each rank's share of the sum that the result is a multiple of.
//
// Tensors that are not matrices, or would hardly shrink, are summed uncompressed in phase 0.
// Batched, the whole bucket is one matrix, as square as possible. Missing elements of the last rows
// count as 0. P and Q are stored column by column. Values that must be equal on all ranks are
// computed from the sums, in the same order of additions on all machines.
#include "exchange/coder.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

#define LANES 16 // partial sums of a dot product

// ---- Vectors ------------------------------------------------------------------------------------------

ISO_CLONES static float dot_product(const float *restrict a, const float *restrict b, size_t n) {
    float lane[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++) lane[k] += a[i + k] * b[i + k];
    for (; i < n; i++) lane[0] += a[i] * b[i];
    for (size_t k = 0; k < LANES; k++) sum += lane[k];
    return sum;
}

ISO_CLONES static void add_multiple(float *restrict to, float factor, const float *restrict x,
                                    size_t n) {
    for (size_t i = 0; i < n; i++) to[i] += factor * x[i];
}

static void scale_vector(float *x, float factor, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] *= factor;
}

// Divides by a power of two, which is exact, so that squares stay finite. A vector that is not
// finite becomes NaN.
static void limit_vector(float *x, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = iso__bits_of(x[i]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    uint32_t exponent = most & 0x7f800000, least = 0x00800000; // of numbers that are not denormal
    float power = iso__float_of(exponent > least ? exponent : least);
    scale_vector(x, exponent == 0x7f800000 ? NAN : 1 / power, n);
}

// Modified Gram-Schmidt. A column that depends on those before it, or is 0, becomes 0.
static void make_orthonormal(float *column, size_t rows, size_t columns) {
    for (size_t k = 0; k < columns; k++) {
        float *x = column + k * rows;
        limit_vector(x, rows);
        float before = dot_product(x, x, rows);
        for (size_t j = 0; j < k; j++) {
            const float *y = column + j * rows;
            add_multiple(x, -dot_product(x, y, rows), y, rows);
        }
        float square = dot_product(x, x, rows);
        // Only rounding errors are left of such a column, so its direction has no meaning.
        bool rest = square <= before * 1e-12f;
        scale_vector(x, rest ? 0 : 1 / sqrtf(square), rows);
    }
}

// ---- Where things lie ---------------------------------------------------------------------------------

// A matrix of the bucket, or a tensor that is not compressed.
typedef struct item {
    size_t offset, count;       // elements of the bucket
    size_t rows, columns, rank; // rank 0: it is not compressed
    float *gradient;
    float *error, *next; // in the state: what was left out, and Q of the next exchange
    float *p, *q;        // in the data of phase 0 (or the values as they are) and of phase 1
} item;

// rows * columns may exceed the count.
static void choose_rank(item *m, const iso_powersgd_config *config) {
    size_t least = m->rows < m->columns ? m->rows : m->columns;
    size_t rank = (size_t)config->rank < least ? (size_t)config->rank : least;
    double sent = (double)(m->rows + m->columns) * (double)rank;
    m->rank = sent * config->least_saving < (double)m->count ? rank : 0;
}

static item describe_item(const iso_comm_hook_tensor *t, const iso_powersgd_config *config) {
    item m = {.offset = t->offset, .count = t->count};
    if (t->row == 0) return m;
    m.rows = t->count / t->row;
    m.columns = t->row;
    choose_rank(&m, config);
    return m;
}

static item describe_batch(const iso_comm_hook_bucket *b, const iso_powersgd_config *config) {
    size_t side = (size_t)sqrt((double)b->count);
    while (side * side < b->count) side++;
    item m = {.count = b->count, .rows = side, .columns = side};
    choose_rank(&m, config);
    return m;
}

// The number of elements of a row. The last rows of a batch may have fewer than the others.
static size_t row_length(const item *m, size_t row) {
    size_t at = row * m->columns;
    if (at >= m->count) return 0;
    return m->count - at < m->columns ? m->count - at : m->columns;
}

// Goes from item to item of a bucket.
typedef struct walk {
    const iso_comm_hook_bucket *bucket;
    const iso_powersgd_config *config;
    int index;
    size_t state, p, q; // floats taken so far
} walk;

static walk begin_walk(const iso_comm_hook_bucket *b, const iso_powersgd_config *config) {
    return (walk){.bucket = b, .config = config};
}

static float *place_at(void *array, size_t offset) {
    return array ? (float *)array + offset : NULL;
}

static bool next_item(walk *w, item *out) {
    const iso_comm_hook_bucket *b = w->bucket;
    bool batched = w->config->batched;
    if (w->index == (batched ? 1 : b->tensor_count)) return false;
    item m =
        batched ? describe_batch(b, w->config) : describe_item(&b->tensor[w->index], w->config);
    bool thin = m.rank > 0;
    w->index++;
    m.gradient = place_at(b->gradient, m.offset);
    m.p = place_at(b->data[0], w->p);
    m.q = place_at(b->data[1], w->q);
    m.error = place_at(b->state, w->state);
    w->state += thin ? m.count : 0;
    m.next = place_at(b->state, w->state);
    w->state += m.columns * m.rank;
    w->p += thin ? m.rows * m.rank : m.count;
    w->q += m.columns * m.rank;
    *out = m;
    return true;
}

static iso_status declare_phases(const iso_comm_hook_bucket *b, iso_comm_hook_plan *plan,
                                 void *user) {
    const iso_powersgd_config *config = user;
    ISO_CHECK(config->rank > 0 && config->least_saving > 0, ISO_ERR_ARG,
              "communication hook powersgd: rank %d and least_saving %g must be above 0",
              config->rank, config->least_saving);
    walk w = begin_walk(b, config);
    item m;
    while (next_item(&w, &m)) continue;
    plan->plain = b->dtype != ISO_F32 || w.q == 0;
    if (plan->plain) return ISO_OK;
    plan->phase_count = 2;
    plan->phase[0] = (iso_comm_phase){ISO_COMM_SUM, w.p, ISO_F32};
    plan->phase[1] = (iso_comm_phase){ISO_COMM_SUM, w.q, ISO_F32};
    plan->state_floats = w.state;
    return ISO_OK;
}

// ---- The steps ----------------------------------------------------------------------------------------

// Draws the first columns of Q, with elements from -1 to 1, and redraws columns that have become 0
// or are not finite.
static void draw_columns(const item *m, uint64_t seed) {
    iso__philox_key key = iso__philox_key_make(seed, ISO_RNG_HOOK, m->offset);
    for (size_t k = 0; k < m->rank; k++) {
        float *column = m->next + k * m->columns;
        float square = dot_product(column, column, m->columns);
        if (square > 0 && isfinite(square)) continue;
        for (size_t i = 0; i < m->columns; i++) {
            uint32_t counter[4] = {(uint32_t)i, (uint32_t)k}, bits[4];
            iso__philox(key, counter, bits);
            column[i] = 2 * iso__uniform(bits[0]) - 1;
        }
    }
}

// P = M Q, where M = gradient * factor + error takes the gradient's place.
static void send_left(const item *m, float factor) {
    make_orthonormal(m->next, m->columns, m->rank);
    for (size_t row = 0; row < m->rows; row++) {
        float *x = m->gradient + row * m->columns;
        size_t n = row_length(m, row);
        scale_vector(x, factor, n);
        add_multiple(x, 1, m->error + row * m->columns, n);
        for (size_t k = 0; k < m->rank; k++)
            m->p[k * m->rows + row] = dot_product(x, m->next + k * m->columns, n);
    }
}

// Q = M' P
static void send_right(const item *m) {
    make_orthonormal(m->p, m->rows, m->rank);
    memset(m->q, 0, m->columns * m->rank * sizeof(float));
    for (size_t row = 0; row < m->rows; row++)
        for (size_t k = 0; k < m->rank; k++)
            add_multiple(m->q + k * m->columns, m->p[k * m->rows + row],
                         m->gradient + row * m->columns, row_length(m, row));
}

// Where a value is not finite, the error becomes 0.
static void keep_error(float *restrict error, const float *restrict result, float share, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float left = error[i] - result[i] * share;
        bool lost = (iso__bits_of(left) & 0x7f800000) == 0x7f800000;
        error[i] = lost ? 0 : left;
    }
}

// The gradient becomes P Q', with Q the sum multiplied by the factor.
static void take_product(const item *m, double factor, int ranks) {
    float share = (float)(1 / (factor * ranks));
    scale_vector(m->q, (float)factor, m->columns * m->rank);
    memcpy(m->next, m->q, m->columns * m->rank * sizeof(float));
    for (size_t row = 0; row < m->rows; row++) {
        float *x = m->gradient + row * m->columns, *error = m->error + row * m->columns;
        size_t n = row_length(m, row);
        memcpy(error, x, n * sizeof(float)); // M
        memset(x, 0, n * sizeof(float));
        for (size_t k = 0; k < m->rank; k++)
            add_multiple(x, m->p[k * m->rows + row], m->q + k * m->columns, n);
        keep_error(error, x, share, n);
    }
}

static void copy_scaled(float *to, const float *from, float factor, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = from[i] * factor;
}

static iso_status run_phase(const iso_comm_hook_bucket *b, int phase, double factor, void *user) {
    const iso_powersgd_config *config = user;
    walk w = begin_walk(b, config);
    item m;
    while (next_item(&w, &m)) {
        size_t count = m.count;
        if (m.rank == 0 && phase == 0) copy_scaled(m.p, m.gradient, (float)factor, count);
        if (m.rank == 0 && phase == 2) copy_scaled(m.gradient, m.p, (float)factor, count);
        if (m.rank == 0) continue;
        if (phase == 0) draw_columns(&m, config->seed);
        if (phase == 0) send_left(&m, (float)factor);
        if (phase == 1) send_right(&m);
        if (phase == 2) take_product(&m, factor, b->ranks);
        if (phase == 2 && config->batched) iso__hook_clear_padding(b, m.error);
    }
    return ISO_OK;
}

static iso_powersgd_config default_powersgd = ISO_POWERSGD_DEFAULT;
#define POWERSGD(label, type)                                                                      \
    {                                                                                              \
        .name = label, .wire = type, .declare = declare_phases, .run = run_phase, .start = 1000,   \
        .user = &default_powersgd, .user_bytes = sizeof(default_powersgd)                          \
    }

const iso_comm_hook iso__hook_powersgd = POWERSGD("powersgd", ISO_F32);
const iso_comm_hook iso__hook_powersgd_bf16 = POWERSGD("powersgd+bf16", ISO_BF16);

iso_comm_hook iso_hook_powersgd(const iso_powersgd_config *config) {
    iso_comm_hook hook = iso__hook_powersgd;
    if (!config) return hook;
    hook.start = config->start;
    hook.user = (void *)(uintptr_t)config;
    return hook;
}
