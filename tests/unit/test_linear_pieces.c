// SPDX-License-Identifier: MIT
// A linear layer whose weight comes in pieces begins its forward before the last one is there.
#include "common/nn_fixture.h"
#include "device/cpu/cpu_impl.h"
#include "nn/nn_impl.h"

#include <math.h>
#include <string.h>

TestSuite(linear_pieces, .timeout = 60);

enum { BATCH = 33, IN = 24, OUT = 40, ROWS = 16, PIECES = 3 };

// The rows of a piece are no numbers until it is needed.
typedef struct late_weight {
    iso_pieces pieces;
    int asked;   // pieces so far
    bool leaves; // what came before the last piece is gone when that one is needed
    size_t row;  // bytes
    char *value, *right;
} late_weight;

static void spoil(late_weight *late, int64_t rows) { memset(late->value, 0xff, rows * late->row); }

static iso_status needed(const iso_pieces *pieces, int k) {
    late_weight *late = (late_weight *)pieces;
    size_t first = (size_t)k * ROWS, rows = k < PIECES - 1 ? ROWS : OUT - first;
    cr_assert_eq(k, late->asked++, "pieces come one after the other, and once");
    if (late->leaves && k == PIECES - 1) spoil(late, 2 * ROWS - 2); // of its group of six are two
    memcpy(late->value + first * late->row, late->right + first * late->row, rows * late->row);
    return ISO_OK;
}

static void make_late(late_weight *late, const iso_tensor *w) {
    *late = (late_weight){.pieces = {.count = PIECES, .rows = ROWS, .needed = needed},
                          .row = IN * iso_dtype_size(w->dtype),
                          .value = w->data};
    cr_assert(late->right = malloc(OUT * late->row));
    memcpy(late->right, w->data, OUT * late->row);
}

typedef struct example {
    iso_device *device;
    iso_module *linear;
    iso_tensor *x;
    late_weight late;
} example;

static void make(example *e, iso_dtype dtype, bool bias) {
    iso_rng rng = {.seed = 5};
    e->device = open_cpu();
    e->x = random_tensor_of(e->device, dtype, 2, (int64_t[]){BATCH, IN}, 9);
    cr_ok(iso_linear_create(e->device, IN, OUT, bias, &rng, &e->linear));
    cr_ok(iso_module_to(e->linear, dtype));
    make_late(&e->late, e->linear->parameter[0]->value);
}

static void drop(example *e) {
    free(e->late.right);
    e->linear->parameter[0]->pieces = NULL;
    iso_module_destroy(&e->linear);
    iso_tensor_destroy(&e->x);
    close_cpu(&e->device);
}

static double *run(example *e, bool in_pieces) {
    iso_tensor *y;
    e->late.asked = 0;
    e->linear->parameter[0]->pieces = in_pieces ? &e->late.pieces : NULL;
    if (in_pieces) spoil(&e->late, OUT);
    cr_ok(iso_module_call(e->linear, ISO_ACT_RELU, e->x, &y));
    cr_assert_eq(e->late.asked, in_pieces ? PIECES : 0);
    return tensor_doubles(y);
}

static void equals_the_whole(example *e) {
    double *whole = run(e, false), *late = run(e, true);
    cr_assert_eq(memcmp(whole, late, BATCH * OUT * sizeof(double)), 0, "bits differ");
    free(whole);
    free(late);
}

Test(linear_pieces, have_the_bits_of_the_whole) {
    for (int i = 0; i < 4; i++) {
        example e;
        make(&e, i & 1 ? ISO_F64 : ISO_F32, i & 2);
        equals_the_whole(&e);
        cr_ok(iso_device_set_threads(e.device, 2));
        equals_the_whole(&e);
        drop(&e);
    }
}

// ---- Backward -----------------------------------------------------------------------------------

typedef struct reports {
    iso_pieces pieces;
    iso_tensor *grad[PIECES];
    char order[8]; // 'b': the bias, or the number of a piece
} reports;

static iso_status piece_ready(const iso_pieces *pieces, int k) {
    char *order = ((reports *)pieces)->order;
    order[strlen(order)] = (char)('0' + k);
    return ISO_OK;
}

static iso_status other_ready(const iso_pieces *pieces, const iso_parameter *other) {
    char *order = ((reports *)pieces)->order;
    cr_assert_str_eq(other->name, "bias");
    order[strlen(order)] = 'b';
    return ISO_OK;
}

static void make_reports(reports *r, const iso_tensor *grad) {
    *r = (reports){.pieces = {.count = PIECES, .rows = ROWS}};
    r->pieces.grad = r->grad;
    r->pieces.ready = piece_ready;
    r->pieces.other_ready = other_ready;
    for (int k = 0; k < PIECES; k++) {
        const int64_t first = k * ROWS, shape[] = {k < PIECES - 1 ? ROWS : OUT - first, IN};
        cr_ok(iso_tensor_borrow(grad->device, grad->dtype, 2, shape,
                                (float *)grad->data + first * IN, &r->grad[k]));
    }
}

static void expect_order(bool bias, const char *order) {
    example e;
    reports r;
    iso_tensor *y, *dy;
    make(&e, ISO_F32, bias);
    iso_parameter *w = e.linear->parameter[0];
    cr_ok(iso_module_call(e.linear, ISO_ACT_NONE, e.x, &y));
    dy = random_tensor_of(e.device, ISO_F32, 2, (int64_t[]){BATCH, OUT}, 4);
    make_reports(&r, w->grad);
    w->pieces = &r.pieces;
    cr_ok(iso_module_call_backward(e.linear, dy, NULL));
    cr_assert_str_eq(r.order, order);
    for (int k = 0; k < PIECES; k++) iso_tensor_destroy(&r.grad[k]);
    iso_tensor_destroy(&dy);
    drop(&e);
}

// The bias leaves with the first piece, which would wait for it.
Test(linear_pieces, are_reported_one_by_one_behind_the_bias) {
    expect_order(true, "b012");
    expect_order(false, "012");
}

// ---- Bits of gradients ------------------------------------------------------------------------------

enum { WIDE = 200, MOST_CUTS = WIDE / 16 + 1 };

static iso_status ignore_piece(const iso_pieces *pieces, int k) {
    (void)pieces, (void)k;
    return ISO_OK;
}
static iso_status ignore_other(const iso_pieces *pieces, const iso_parameter *other) {
    (void)pieces, (void)other;
    return ISO_OK;
}

// Cuts w->grad into pieces of so many rows; 0: not at all. To be ended by uncut.
static void cut(iso_parameter *w, int64_t rows, iso_pieces *pieces, iso_tensor **grad) {
    size_t row = (size_t)WIDE * iso_dtype_size(w->grad->dtype);
    *pieces = (iso_pieces){
        .rows = rows, .grad = grad, .ready = ignore_piece, .other_ready = ignore_other};
    for (int64_t first = 0; rows > 0 && first < WIDE; first += rows) {
        const int64_t shape[] = {WIDE - first < rows ? WIDE - first : rows, WIDE};
        cr_ok(iso_tensor_borrow(w->grad->device, w->grad->dtype, 2, shape,
                                (char *)w->grad->data + (size_t)first * row,
                                &grad[pieces->count++]));
    }
    w->pieces = rows > 0 ? pieces : NULL;
}

static void uncut(iso_parameter *w, const iso_pieces *pieces) {
    for (int k = 0; k < pieces->count; k++) iso_tensor_destroy(&pieces->grad[k]);
    w->pieces = NULL;
}

// With a batch of few rows, as processors without AVX-512 need to differ, and of several.
static void check_gradients(iso_dtype dtype, int64_t batch) {
    static const int64_t rows[] = {16, 48, 80, 96, 112};
    iso_rng rng = {.seed = 5};
    iso_module *linear;
    iso_tensor *y, *dy, *grad[MOST_CUTS];
    iso_pieces pieces;
    iso_device *device = open_cpu();
    iso_tensor *x = random_tensor_of(device, dtype, 2, (int64_t[]){batch, WIDE}, 9);
    cr_ok(iso_linear_create(device, WIDE, WIDE, true, &rng, &linear));
    cr_ok(iso_module_to(linear, dtype));
    iso_parameter *w = linear->parameter[0];
    double *whole = NULL;
    for (int i = -1; i < (int)(sizeof(rows) / sizeof(rows[0])); i++) {
        w->grad_valid = linear->parameter[1]->grad_valid = false;
        dy = random_tensor_of(device, dtype, 2, (int64_t[]){batch, WIDE}, 4);
        cr_ok(iso_module_call(linear, ISO_ACT_NONE, x, &y));
        cut(w, i < 0 ? 0 : rows[i], &pieces, grad);
        cr_ok(iso_module_call_backward(linear, dy, NULL));
        double *got = tensor_doubles(w->grad);
        if (whole)
            cr_assert_eq(memcmp(whole, got, sizeof(double) * WIDE * WIDE), 0,
                         "bits differ in pieces of %d rows", (int)rows[i]);
        else
            whole = got;
        if (got != whole) free(got);
        iso_tensor_destroy(&dy);
        uncut(w, &pieces);
    }
    free(whole);
    iso_module_destroy(&linear);
    iso_tensor_destroy(&x);
    close_cpu(&device);
}

static void check_all_gradients(void) {
    check_gradients(ISO_F32, 4);
    check_gradients(ISO_F32, 33);
    check_gradients(ISO_F64, 4);
}
Test(linear_pieces, gradients_have_the_bits_of_the_whole) { check_all_gradients(); }
Test(linear_pieces, gradients_have_the_bits_of_the_whole_in_plain_c) {
    setenv("ISO_CPU_KERNELS", "reference", 1);
    check_all_gradients();
}

// ---- Forward with AVX-512 -----------------------------------------------------------------------

// Rows that have been used may be anything when the last piece comes.
Test(linear_pieces, are_used_when_they_come) {
    example e;
    make(&e, ISO_F32, true);
    if (!iso__cpu_wide_suits(BATCH, IN, OUT)) {
        drop(&e);
        cr_skip_test("this processor has no AVX-512, and other kernels wait for all pieces");
    }
    e.late.leaves = true;
    equals_the_whole(&e);
    drop(&e);
}
