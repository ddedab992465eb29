// SPDX-License-Identifier: MIT
// Arrays that hold all layers of a model ([L, ...]), reported and awaited layer by layer; update
// functions that are told what they update; names.
#include "common/mpi_fixture.h"

#include "base/base.h"

#include <isotherm/reducer.h>

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_layer_arrays, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_layer_arrays, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_layer_arrays, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_layer_arrays, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// As a program has it that keeps each tensor of all layers in one array: embedding, L blocks of a
// matrix and a bias (with gaps), head.
enum { L = 3, ROWS = 64, ROW = 16, MATRIX = ROWS * ROW, BIAS = 20, GAP = 24, ENDS = 50, STEPS = 5 };
enum { EMBEDDING, MATRICES, BIASES, HEAD, TENSORS };
enum { PARAMS = 2 + 2 * L, LAYERS = L + 2 };
typedef struct model {
    float embedding[ENDS], matrix[L][MATRIX];
    double bias[L][GAP];
    float head[ENDS];
} model;
static model value, gradient;

// The tensors in an order of no meaning, as arrays of a struct are.
static void list_tensors(iso_reducer_param out[TENSORS]) {
    out[0] = (iso_reducer_param){.name = "head",
                                 .value = value.head,
                                 .gradient = gradient.head,
                                 .count = ENDS,
                                 .dtype = ISO_F32,
                                 .layer = L + 1,
                                 .user = &value.head};
    out[1] = (iso_reducer_param){.name = "bias",
                                 .value = value.bias,
                                 .gradient = gradient.bias,
                                 .count = BIAS,
                                 .dtype = ISO_F64,
                                 .layer = 1,
                                 .layers = L,
                                 .stride = GAP};
    out[2] = (iso_reducer_param){.name = "embedding",
                                 .value = value.embedding,
                                 .gradient = gradient.embedding,
                                 .count = ENDS,
                                 .dtype = ISO_F32};
    out[3] = (iso_reducer_param){.name = "matrix",
                                 .value = value.matrix,
                                 .gradient = gradient.matrix,
                                 .count = MATRIX,
                                 .dtype = ISO_F32,
                                 .layer = 1,
                                 .layers = L,
                                 .row = ROW,
                                 .user = &value.matrix};
}

// The same tensors, one by one in the order of the forward.
static void list_arrays(iso_reducer_param out[PARAMS]) {
    static const char *const name[2][L] = {{"m0", "m1", "m2"}, {"b0", "b1", "b2"}};
    iso_reducer_param tensor[TENSORS];
    list_tensors(tensor);
    out[0] = tensor[2];
    for (int l = 0; l < L; l++) {
        iso_reducer_param *bias = &out[1 + 2 * l], *matrix = &out[2 + 2 * l];
        *bias = tensor[1];
        bias->value = value.bias[l];
        bias->gradient = gradient.bias[l];
        bias->name = name[1][l];
        *matrix = tensor[3];
        matrix->value = value.matrix[l];
        matrix->gradient = gradient.matrix[l];
        matrix->name = name[0][l];
        bias->layer = matrix->layer = 1 + l;
        bias->layers = matrix->layers = 0;
        bias->stride = 0;
    }
    out[PARAMS - 1] = tensor[0];
}

static void start_values(void) {
    memset(&value, 0, sizeof(value));
    for (int k = 0; k < ENDS; k++) value.embedding[k] = value.head[k] = (float)sin(k);
    for (int l = 0; l < L; l++)
        for (int k = 0; k < MATRIX; k++) value.matrix[l][k] = (float)cos(l + k);
}

// ---- Training ---------------------------------------------------------------------------------------

static double slope_of(int rank, int step, int l, int k) {
    return sin(0.3 * rank + 1.7 * step + 0.9 * l + 0.01 * k);
}

static void write_layer(int step, int layer) {
    for (int k = 0; layer == 0 && k < ENDS; k++)
        gradient.embedding[k] = (float)slope_of(test_rank, step, 0, k);
    for (int k = 0; layer == L + 1 && k < ENDS; k++)
        gradient.head[k] = (float)slope_of(test_rank, step, L + 1, k);
    if (layer == 0 || layer == L + 1) return;
    for (int k = 0; k < MATRIX; k++)
        gradient.matrix[layer - 1][k] = (float)slope_of(test_rank, step, layer, k);
    for (int k = 0; k < BIAS; k++)
        gradient.bias[layer - 1][k] = slope_of(test_rank, step, layer, -k);
}

static int wrong_calls; // of update, with a description that does not fit its value

// Whether the description is that of the elements: `user` of a parameter is the array of its
// tensor.
static bool is_told(const iso_reducer_update *u) {
    if (u->user != &value || u->scale != 1) return false;
    const char *at = u->value;
    if (strncmp(u->name, "bias[", 5) == 0 || u->name[0] == 'b')
        return !u->param_user && u->dtype == ISO_F64 && u->first + u->count <= BIAS;
    if (strncmp(u->name, "matrix[", 7) == 0)
        return u->param_user == &value.matrix && u->name[7] == '0' + u->slice &&
               at == (char *)&value.matrix[u->slice][u->first] && u->first + u->count <= MATRIX;
    return u->slice == 0 && u->dtype == ISO_F32;
}

static iso_status update(const iso_reducer_update *u) {
    const double lr = *(const double *)u->hyper;
    if (!is_told(u)) wrong_calls++;
    for (size_t k = 0; k < u->count; k++) {
        if (u->dtype == ISO_F64)
            ((double *)u->value)[k] -= lr * ((const double *)u->gradient)[k];
        else
            ((float *)u->value)[k] -= (float)lr * ((const float *)u->gradient)[k];
    }
    return ISO_OK;
}

static iso_status train_step(iso_reducer *r, int step) {
    const double lr = 0.1;
    iso_status status = ISO_OK;
    for (int l = 0; status == ISO_OK && l < LAYERS; l++) status = iso_reducer_layer_needed(r, l);
    for (int l = LAYERS - 1; status == ISO_OK && l >= 0; l--) {
        write_layer(step, l);
        status = iso_reducer_layer_ready(r, l);
    }
    return status == ISO_OK ? iso_reducer_step(r, &lr) : status;
}

static void train(const iso_reducer_param *param, int count, const iso_reducer_config *config) {
    iso_reducer *r = NULL;
    iso_status status = ISO_OK;
    start_values();
    wrong_calls = 0;
    iso_assert_ok(iso_reducer_create(test_comm, param, count, config, &r));
    iso_assert_ok(iso_reducer_set_update(r, update, sizeof(double), &value));
    for (int step = 0; status == ISO_OK && step < STEPS; step++) status = train_step(r, step);
    if (status == ISO_OK) status = iso_reducer_finish(r);
    iso_assert_ok(status);
    iso_reducer_destroy(&r);
    iso_assert_all(wrong_calls == 0);
}

static void slices_give_the_bits_of_arrays(void) {
    static const iso_reducer_config config[] = {{.sync = ISO_SYNC_LAZY},
                                                {.sync = ISO_SYNC_BLOCKING},
                                                {.sync = ISO_SYNC_LAZY, .piece_bytes = 1024},
                                                {.sync = ISO_SYNC_LAZY, .bucket_bytes = 1 << 20},
                                                {.sync = ISO_SYNC_LAZY, .zero = true}};
    iso_reducer_param tensor[TENSORS], array[PARAMS];
    static model expected;
    list_tensors(tensor);
    list_arrays(array);
    for (int c = 0; c < (int)(sizeof(config) / sizeof(config[0])); c++) {
        // Sums of f64 by messages depend on the sizes of buckets, so the sizes are the same.
        iso_reducer_config other = config[c];
        if (!other.zero) other.sync = ISO_SYNC_BLOCKING;
        train(array, PARAMS, &other);
        expected = value;
        train(tensor, TENSORS, &config[c]);
        iso_assert_all(memcmp(&expected, &value, sizeof(value)) == 0);
    }
}
Test(np1_layer_arrays, slices_give_the_bits_of_arrays) { slices_give_the_bits_of_arrays(); }
Test(np2_layer_arrays, slices_give_the_bits_of_arrays) { slices_give_the_bits_of_arrays(); }
Test(np3_layer_arrays, slices_give_the_bits_of_arrays) { slices_give_the_bits_of_arrays(); }
Test(np4_layer_arrays, slices_give_the_bits_of_arrays) { slices_give_the_bits_of_arrays(); }

// ---- Numbers and names ------------------------------------------------------------------------------

static iso_reducer *create(void) {
    iso_reducer_param tensor[TENSORS];
    iso_reducer *r = NULL;
    list_tensors(tensor);
    iso_assert_ok(iso_reducer_create(test_comm, tensor, TENSORS, NULL, &r));
    return r;
}

Test(np2_layer_arrays, numbers_follow_the_list_and_names_find_them) {
    iso_reducer *r = create();
    cr_expect_eq(iso_reducer_param_count(r), PARAMS);
    cr_expect_eq(iso_reducer_find(r, "head"), 0);
    cr_expect_eq(iso_reducer_find(r, "bias[2]"), 3);
    cr_expect_eq(iso_reducer_find(r, "embedding"), 4);
    cr_expect_eq(iso_reducer_find(r, "matrix[1]"), 6);
    cr_expect_eq(iso_reducer_find(r, "matrix"), -1);
    cr_expect_eq(iso_reducer_grad(r, 6), gradient.matrix[1]);
    cr_expect_eq(iso_reducer_grad(r, 3), gradient.bias[2]);
    iso_reducer_destroy(&r);
}

Test(np2_layer_arrays, buckets_are_in_the_order_of_layers) {
    iso_reducer *r = create();
    char *text;
    iso_assert_ok(iso_reducer_bucket_text(r, &text));
    const char *head = strstr(text, "head"), *third = strstr(text, "matrix[2]"),
               *first = strstr(text, "matrix[0]"), *embedding = strstr(text, "embedding");
    cr_expect(head && head < third && third < first && first < embedding, "%s", text);
    iso_comm_free(text);
    iso_reducer_destroy(&r);
}

Test(np2_layer_arrays, layer_reports_what_is_left) {
    iso_reducer *r = create();
    iso_assert_ok(iso_reducer_layer_ready(r, L + 1));
    iso_assert_ok(iso_reducer_grad_ready(r, iso_reducer_find(r, "bias[2]")));
    iso_assert_ok(iso_reducer_layer_ready(r, L)); // the matrix
    iso_assert_all(iso_reducer_layer_ready(r, L) == ISO_ERR_STATE);
    cr_expect(strstr(iso_last_error()->message, "\"matrix[2]\" was reported ready twice"), "%s",
              iso_last_error()->message);
    for (int l = L - 1; l >= 0; l--) iso_assert_ok(iso_reducer_layer_ready(r, l));
    iso_assert_ok(iso_reducer_finish(r));
    iso_reducer_destroy(&r);
}

static void expect_said(iso_status status, iso_status expected, const char *said) {
    iso_assert_all(status == expected);
    cr_expect(strstr(iso_last_error()->message, said), "%s", iso_last_error()->message);
}

Test(np2_layer_arrays, misuse_is_told) {
    iso_reducer *r = create(), *none = NULL;
    iso_reducer_param tensor[TENSORS];
    expect_said(iso_reducer_layer_ready(r, L + 2), ISO_ERR_ARG, "no layer 5: give a layer");
    expect_said(iso_reducer_layer_needed(r, -1), ISO_ERR_ARG, "here from 0 to 4");
    expect_said(iso_reducer_grad_ready(r, iso_reducer_find(r, "none")), ISO_ERR_ARG,
                "no parameter -1");
    iso_reducer_destroy(&r);
    list_tensors(tensor);
    tensor[1].stride = BIAS - 1;
    expect_said(iso_reducer_create(test_comm, tensor, TENSORS, NULL, &none), ISO_ERR_ARG,
                "give a stride of at least 20");
    tensor[1].stride = SIZE_MAX / 4; // a pointer would wrap
    expect_said(iso_reducer_create(test_comm, tensor, TENSORS, NULL, &none), ISO_ERR_ARG,
                "no array is that long");
    list_tensors(tensor);
    tensor[3].layers = -1;
    expect_said(iso_reducer_create(test_comm, tensor, TENSORS, NULL, &none), ISO_ERR_ARG,
                "\"matrix\" has -1 layers");
    list_tensors(tensor);
    tensor[3].value = (float *)tensor[3].value + MATRIX; // of the bias that follows
    expect_said(iso_reducer_create(test_comm, tensor, TENSORS, NULL, &none), ISO_ERR_ARG,
                "the same array");
    list_tensors(tensor);
    if (test_rank == 1) tensor[3].layers = 2;
    expect_said(iso_reducer_create(test_comm, tensor, TENSORS, NULL, &none), ISO_ERR_MISMATCH,
                "matrix[2]");
}

// ---- Values at creation -----------------------------------------------------------------------------

Test(np2_layer_arrays, values_are_broadcast_or_kept) {
    iso_reducer_param tensor[TENSORS];
    iso_reducer *r = NULL;
    list_tensors(tensor);
    for (int keep = 0; keep < 2; keep++) {
        value.matrix[2][5] = (float)test_rank + 1;
        value.bias[1][BIAS] = test_rank + 1; // in the gap
        iso_assert_ok(iso_reducer_create(test_comm, tensor, TENSORS,
                                         &(iso_reducer_config){.keep_values = keep}, &r));
        iso_assert_all(value.matrix[2][5] == (keep ? (float)test_rank + 1 : 1));
        iso_assert_all(value.bias[1][BIAS] == test_rank + 1);
        iso_reducer_destroy(&r);
    }
    expect_said(iso_reducer_create(test_comm, tensor, TENSORS,
                                   &(iso_reducer_config){.keep_values = test_rank == 1}, &r),
                ISO_ERR_MISMATCH, "keep_values");
}
