// SPDX-License-Identifier: MIT
// Losses on a GPU: labels of many batches under way at once, rows too long for a warp, ties and
// NaNs; and kernels beside them that the tests of every device leave out. The CPU says what is
// right.
#include "common/balance.h"
#include "common/device_fixture.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_loss, .timeout = 60, .fini = balance_check);

static iso_device *open_cuda(void) {
    iso_device *device;
    if (iso_device_create("cuda", &device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    return device;
}

static iso_device *open_cpu(void) {
    iso_device *device;
    OK(iso_device_create("cpu", &device));
    return device;
}

// Numbers in [-1, 1], a quarter of them equal to others.
static double number(int64_t i) {
    uint32_t bits[4], counter[4] = {(uint32_t)i, 1, 0, 0};
    iso__philox(iso__philox_key_make(2, ISO_RNG_TEST, 0), counter, bits);
    return bits[1] % 4 == 0 ? 0.5 : (double)(2 * iso__uniform(bits[0]) - 1);
}

static iso_tensor *tensor_of(iso_device *device, iso_dtype dtype, int64_t rows, int64_t k,
                             const double *x) {
    iso_tensor *t;
    void *host;
    OK(iso_tensor_create(device, dtype, 2, (int64_t[]){rows, k}, &t));
    OK(iso_tensor_map(t, ISO_WRITE, &host));
    for (int64_t i = 0; i < rows * k; i++) {
        if (dtype == ISO_F64)
            ((double *)host)[i] = x[i];
        else
            ((float *)host)[i] = (float)x[i];
    }
    OK(iso_tensor_unmap(t));
    return t;
}

static void read_tensor(iso_tensor *t, double *x) {
    void *host;
    OK(iso_tensor_map(t, ISO_READ, &host));
    for (int64_t i = 0; i < iso_tensor_count(t); i++)
        x[i] = t->dtype == ISO_F64 ? ((double *)host)[i] : (double)((float *)host)[i];
    OK(iso_tensor_unmap(t));
}

// ---- Against the CPU ------------------------------------------------------------------------------

typedef struct outcome {
    double value, *grad;
    int64_t correct;
} outcome;

typedef struct problem {
    iso_loss_config config;
    iso_dtype dtype;
    int64_t rows, k;
    const double *x;
    const int32_t *labels;
} problem;

static outcome solve(iso_device *device, const problem *p) {
    iso_loss *loss;
    iso_tensor *x = tensor_of(device, p->dtype, p->rows, p->k, p->x), *grad;
    outcome o = {.grad = calloc((size_t)(p->rows * p->k), sizeof(double))};
    OK(iso_loss_create_with(device, &p->config, &loss));
    OK(iso_loss_compute(loss, x, p->labels, &o.value, &o.correct, &grad));
    read_tensor(grad, o.grad);
    iso_tensor_destroy(&x);
    iso_loss_destroy(&loss);
    return o;
}

static bool near(double got, double want, double tolerance) {
    if (isnan(want) || isinf(want)) return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= tolerance * fmax(1, fabs(want));
}

static void compare(iso_device *cuda, iso_device *cpu, const problem *p, const char *what) {
    outcome got = solve(cuda, p), want = solve(cpu, p);
    double tolerance = p->dtype == ISO_F64 ? 1e-14 : 1e-7;
    cr_assert(near(got.value, want.value, 1e-13) && got.correct == want.correct,
              "%s in rows of %lld %s: loss %.17g and %lld correct, not %.17g and %lld", what,
              (long long)p->k, iso_dtype_name(p->dtype), got.value, (long long)got.correct,
              want.value, (long long)want.correct);
    for (int64_t i = 0; i < p->rows * p->k; i++)
        cr_assert(near(got.grad[i], want.grad[i], tolerance), "%s: gradient %lld is %.9g, not %.9g",
                  what, (long long)i, got.grad[i], want.grad[i]);
    free(got.grad);
    free(want.grad);
}

static const iso_dtype types[] = {ISO_F32, ISO_F64};
static const iso_loss_config configs[] = {{.kind = ISO_CROSS_ENTROPY},
                                          {.kind = ISO_CROSS_ENTROPY, .label_smoothing = 0.1},
                                          {.kind = ISO_NLL},
                                          {.kind = ISO_MSE},
                                          {.kind = ISO_BCE_WITH_LOGITS},
                                          {.kind = ISO_L1},
                                          {.kind = ISO_HUBER}};

Test(cuda_loss, long_rows_and_many_rows_are_those_of_the_cpu) {
    static const int64_t sizes[][2] = {{3, 1000}, {20, 257}, {5, 256}, {700, 3}, {1, 1},
                                       {64, 10},  {65, 16},  {32, 17}, {33, 32}};
    iso_device *cuda = open_cuda(), *cpu = open_cpu();
    for (int i = 0; i < COUNT(sizes) * COUNT(configs) * COUNT(types); i++) {
        problem p = {.config = configs[i % COUNT(configs)],
                     .dtype = types[i / COUNT(configs) % COUNT(types)],
                     .rows = sizes[i / COUNT(configs) / COUNT(types)][0],
                     .k = sizes[i / COUNT(configs) / COUNT(types)][1]};
        double *x = malloc((size_t)(p.rows * p.k) * sizeof(double));
        int32_t labels[700];
        for (int64_t k = 0; k < p.rows * p.k; k++) x[k] = 30 * number(k);
        for (int64_t n = 0; n < p.rows; n++) labels[n] = (int32_t)(n * 7 % p.k);
        p.x = x;
        p.labels = labels;
        compare(cuda, cpu, &p, "a batch");
        free(x);
    }
    iso_device_destroy(&cuda);
    iso_device_destroy(&cpu);
}

// One row of zeros, with special numbers at two places.
static const struct {
    const char *what;
    double everywhere;
    int at[2]; // of `special`
    double special;
    int32_t label;
    bool correct;
} rows[] = {
    {"a tie, the first of which is the label", 0, {2, 4}, 1, 2, true},
    {"a tie, the second of which is the label", 0, {2, 4}, 1, 4, false},
    {"numbers that are all equal", 7, {0, 0}, 7, 0, true},
    {"a NaN in front", 0, {0, 0}, NAN, 1, false},
    {"a NaN in front, at the label", 0, {0, 0}, NAN, 0, true},
    {"a NaN at the label", 0, {3, 3}, NAN, 3, false},
    {"a NaN behind the label", 0, {3, 4}, NAN, 0, true},
    {"-infinity everywhere", -INFINITY, {0, 0}, -INFINITY, 0, true},
    {"infinity at the label", 0, {1, 4}, INFINITY, 1, true},
};

Test(cuda_loss, ties_and_nans_are_judged_as_on_the_cpu) {
    iso_device *cuda = open_cuda(), *cpu = open_cpu();
    for (int i = 0; i < COUNT(rows) * 4; i++) {
        double x[1000];
        problem p = {.config = configs[i % 2 * 2], .rows = 1, .k = i / 2 % 2 ? 5 : 1000, .x = x};
        for (int64_t k = 0; k < p.k; k++) x[k] = rows[i / 4].everywhere;
        x[rows[i / 4].at[0]] = x[rows[i / 4].at[1]] = rows[i / 4].special;
        p.labels = &rows[i / 4].label;
        compare(cuda, cpu, &p, rows[i / 4].what);
        outcome o = solve(cuda, &p);
        cr_assert((o.correct == 1) == rows[i / 4].correct, "%s", rows[i / 4].what);
        free(o.grad);
    }
    iso_device_destroy(&cuda);
    iso_device_destroy(&cpu);
}

// ---- Batches under way ----------------------------------------------------------------------------

// More batches than there is room for, and larger ones while smaller ones are under way; the labels
// are gone when the call returns.
Test(cuda_loss, labels_may_change_while_the_device_is_behind) {
    enum { BATCHES = 23, MOST = 4500, K = 3 };
    setenv("ISO_EMULATED_ORDER", "late", 1); // an emulated device then does nothing unless asked
    iso_device *cuda = open_cuda();
    iso_loss *loss[BATCHES];
    iso_tensor *x[BATCHES];
    static double one_hot[MOST * K];
    for (int i = 0; i < MOST * K; i++) one_hot[i] = i % K == 0;
    int64_t size[BATCHES], wanted[BATCHES] = {0}, correct;
    for (int b = 0; b < BATCHES; b++) {
        size[b] = b < 10 ? 1025 : b == 12 ? MOST : b < 18 ? 1000 + 8 * b : 64 + b;
        x[b] = tensor_of(cuda, ISO_F32, size[b], K, one_hot);
        OK(iso_loss_create(cuda, ISO_NLL, &loss[b]));
    }
    for (int b = 0; b < BATCHES; b++) {
        int32_t labels[MOST];
        for (int64_t n = 0; n < size[b]; n++) {
            labels[n] = (int32_t)((n * (b + 1) + b) % 7 % K);
            wanted[b] += labels[n] == 0;
        }
        OK(iso_loss_compute(loss[b], x[b], labels, NULL, NULL, NULL));
        memset(labels, -1, sizeof(labels));
    }
    for (int b = 0; b < BATCHES; b++) {
        double value;
        OK(iso_loss_value(loss[b], &value, &correct));
        cr_assert(correct == wanted[b], "batch %d of %lld rows has %lld correct ones, not %lld", b,
                  (long long)size[b], (long long)correct, (long long)wanted[b]);
        cr_assert_float_eq(value, -(double)wanted[b] / (double)size[b], 1e-15);
        iso_loss_destroy(&loss[b]);
        iso_tensor_destroy(&x[b]);
    }
    iso_device_destroy(&cuda);
}

// ---- Beside the losses ----------------------------------------------------------------------------

// A piece of a weight's gradient is those rows of the whole, up to the order of its sums.
Test(cuda_loss, rows_of_a_gradient_come_from_columns_of_another) {
    enum { ROWS = 5, IN = 13, OUT = 300, FIRST = 37, PIECE = 211 };
    iso_device *cuda = open_cuda();
    double x[ROWS * IN], dy[ROWS * OUT], whole[OUT * IN] = {0}, rows[PIECE * IN] = {0};
    for (int i = 0; i < ROWS * OUT; i++) dy[i] = number(i);
    for (int i = 0; i < ROWS * IN; i++) x[i] = number(i + 5000);
    for (int i = 0; i < COUNT(types) * 2; i++) {
        iso_dtype dtype = types[i / 2];
        const iso_kernel_ops *kernels = cuda->kernels[dtype];
        iso_tensor *a = tensor_of(cuda, dtype, ROWS, IN, x),
                   *b = tensor_of(cuda, dtype, ROWS, OUT, dy);
        iso_tensor *all = tensor_of(cuda, dtype, OUT, IN, whole);
        iso_tensor *part = tensor_of(cuda, dtype, PIECE, IN, rows);
        OK(iso_tensor_fill(all, i % 2));
        OK(iso_tensor_fill(part, i % 2));
        OK(kernels->linear_backward_params(cuda, a, b, all, i % 2, NULL, false));
        OK(kernels->linear_backward_rows(cuda, a, b, FIRST, part, i % 2));
        read_tensor(all, whole), read_tensor(part, rows);
        for (int k = 0; k < PIECE * IN; k++)
            cr_assert(near(rows[k], whole[FIRST * IN + k], dtype == ISO_F64 ? 1e-14 : 1e-6),
                      "number %d is %g, not %g", k, rows[k], whole[FIRST * IN + k]);
        iso_tensor_destroy(&a), iso_tensor_destroy(&b);
        iso_tensor_destroy(&all), iso_tensor_destroy(&part);
    }
    iso_device_destroy(&cuda);
}

// Kernels move 16 bytes at a time only where memory is aligned to that.
Test(cuda_loss, relu_of_memory_that_begins_anywhere) {
    enum { SIZE = 103 };
    iso_device *cuda = open_cuda();
    for (int i = 0; i < COUNT(types); i++) {
        double x[SIZE], y[SIZE];
        for (int k = 0; k < SIZE; k++) x[k] = number(k);
        iso_tensor *t = tensor_of(cuda, types[i], 1, SIZE, x), rest = *t;
        rest.data = (char *)t->data + iso_dtype_size(types[i]);
        rest.count = SIZE - 2;
        OK(cuda->kernels[types[i]]->relu_forward(cuda, &rest, &rest));
        read_tensor(t, y);
        for (int k = 0; k < SIZE; k++)
            cr_assert(y[k] == (k > 0 && k < SIZE - 1 && x[k] < 0 ? 0 : x[k]), "element %d", k);
        iso_tensor_destroy(&t);
    }
    iso_device_destroy(&cuda);
}

// Rows longer than a block's threads take at once, and no multiple of four draws.
Test(cuda_loss, dropout_gives_the_bits_of_the_cpu) {
    enum { ROWS = 3, K = 2051 };
    iso_device *device[2] = {open_cuda(), open_cpu()};
    iso__dropout_draw draw = {.key = iso__philox_key_make(9, ISO_RNG_DROPOUT, 1),
                              .number = 0xfffffffffu,
                              .first_row = 0xfffffffe, // the counter's word wraps around
                              .p = 0.3};
    static double x[ROWS * K], got[2][ROWS * K];
    for (int i = 0; i < ROWS * K; i++) x[i] = i % 50 == 0 ? NAN : number(i);
    for (int i = 0; i < COUNT(types); i++) {
        for (int d = 0; d < 2; d++) {
            iso_tensor *t = tensor_of(device[d], types[i], ROWS, K, x);
            OK(device[d]->kernels[types[i]]->dropout(device[d], &draw, t, t));
            read_tensor(t, got[d]);
            iso_tensor_destroy(&t);
        }
        for (int k = 0; k < ROWS * K; k++)
            cr_assert(isnan(x[k]) ? isnan(got[0][k]) : got[0][k] == got[1][k]);
    }
    for (int d = 0; d < 2; d++) iso_device_destroy(&device[d]);
}
