// A linear layer whose weight is updated in pieces begins its forward before the last one is there.
#include "common/nn_fixture.h"
#include "nn/nn_impl.h"

#include <math.h>
#include <string.h>

TestSuite(linear_pieces, .timeout = 60);

enum { BATCH = 5, IN = 24, OUT = 40, ROWS = 16, PIECES = 3, LAST = OUT - 2 * ROWS };

// The rows of a piece are not numbers until it is needed; when the last one is, the first are
// none any more.
typedef struct late_weight {
    iso_pieces pieces;
    int asked; // pieces so far
    double *value, *right;
} late_weight;

static void copy_rows(late_weight *late, int first, int rows) {
    memcpy(late->value + first * IN, late->right + first * IN,
           (size_t)(rows * IN) * sizeof(double));
}

static iso_status needed(const iso_pieces *pieces, int k) {
    late_weight *late = (late_weight *)pieces;
    cr_assert_eq(k, late->asked++, "pieces come one after the other");
    copy_rows(late, k * ROWS, k < PIECES - 1 ? ROWS : LAST);
    for (int i = 0; k == PIECES - 1 && i < 2 * ROWS * IN; i++) late->value[i] = NAN;
    return ISO_OK;
}

static void make_late(late_weight *late, const iso_tensor *w) {
    const int64_t head[] = {OUT - LAST, IN}, tail[] = {LAST, IN};
    double *data = late->value = w->data;
    cr_assert(late->right = malloc(OUT * IN * sizeof(double)));
    memcpy(late->right, data, OUT * IN * sizeof(double));
    for (int i = 0; i < OUT * IN; i++) data[i] = NAN;
    late->pieces = (iso_pieces){.count = PIECES, .rows = ROWS, .needed = needed};
    cr_ok(iso_tensor_borrow(w->device, ISO_F64, 2, head, data, &late->pieces.value[0]));
    cr_ok(iso_tensor_borrow(w->device, ISO_F64, 2, tail, data + (OUT - LAST) * IN,
                            &late->pieces.value[1]));
}

static void drop_late(late_weight *late) {
    free(late->right);
    for (int part = 0; part < 2; part++) iso_tensor_destroy(&late->pieces.value[part]);
}

static void equals_the_whole(bool bias, iso_activation activation) {
    iso_device *device = open_cpu();
    iso_rng rng = {.seed = 5};
    iso_module *linear;
    iso_tensor *x = random_tensor_of(device, ISO_F64, 2, (int64_t[]){BATCH, IN}, 9), *y;
    cr_ok(iso_linear_create(device, IN, OUT, bias, &rng, &linear));
    cr_ok(iso_module_to(linear, ISO_F64));
    cr_ok(iso_module_call(linear, activation, x, &y));
    double *whole = tensor_doubles(y);
    late_weight late = {.asked = 0};
    make_late(&late, linear->parameter[0]->value);
    linear->parameter[0]->pieces = &late.pieces;
    for (int again = 0; again < 2; again++) { // the second time with what the first one left
        late.asked = 0;
        cr_ok(iso_module_call(linear, activation, x, &y));
        double *in_pieces = tensor_doubles(y);
        for (int i = 0; i < BATCH * OUT; i++)
            cr_assert_float_eq(in_pieces[i], whole[i], 1e-14, "element %d", i);
        cr_assert_eq(late.asked, PIECES);
        free(in_pieces);
    }
    linear->parameter[0]->pieces = NULL;
    free(whole);
    drop_late(&late);
    iso_module_destroy(&linear);
    iso_tensor_destroy(&x);
    close_cpu(&device);
}

Test(linear_pieces, equals_the_whole) { equals_the_whole(true, ISO_ACT_NONE); }
Test(linear_pieces, equals_the_whole_with_relu) { equals_the_whole(true, ISO_ACT_RELU); }
Test(linear_pieces, equals_the_whole_without_bias) { equals_the_whole(false, ISO_ACT_RELU); }
