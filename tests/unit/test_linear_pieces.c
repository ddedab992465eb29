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
