// SPDX-License-Identifier: MIT
// Losses: values and gradients from their formulas, counting of correct rows, refused labels.
#include "common/nn_fixture.h"

#include <math.h>
#include <string.h>

TestSuite(loss, .timeout = 60);

enum { ROWS = 6, CLASSES = 5 };
static const int32_t labels[ROWS] = {0, 4, 2, 2, 1, 3};

static iso_loss *new_loss(iso_device *device, iso_loss_kind kind) {
    iso_loss *loss = NULL;
    cr_ok(iso_loss_create(device, kind, &loss));
    return loss;
}

static iso_tensor *tensor_of(iso_device *device, int64_t rows, int64_t columns,
                             const float *values) {
    iso_tensor *t = NULL;
    void *mapped;
    cr_ok(iso_tensor_create(device, ISO_F32, 2, (int64_t[]){rows, columns}, &t));
    cr_ok(iso_tensor_map(t, ISO_WRITE, &mapped));
    memcpy(mapped, values, (size_t)(rows * columns) * sizeof(float));
    cr_ok(iso_tensor_unmap(t));
    return t;
}

// Mean over rows of log(sum(exp(x))) - x[label], in double precision.
static double reference(const double *x) {
    double sum = 0;
    for (int n = 0; n < ROWS; n++) {
        double norm = 0;
        for (int k = 0; k < CLASSES; k++) norm += exp(x[n * CLASSES + k]);
        sum += log(norm) - x[n * CLASSES + labels[n]];
    }
    return sum / ROWS;
}

Test(loss, cross_entropy_matches_its_formula_and_central_differences) {
    iso_device *device = open_cpu();
    iso_loss *loss = new_loss(device, ISO_CROSS_ENTROPY);
    iso_tensor *logits = random_tensor(device, 2, (int64_t[]){ROWS, CLASSES}, 1), *grad;
    double value, x[ROWS * CLASSES];
    cr_ok(iso_loss_compute(loss, logits, labels, &value, NULL, &grad));
    float *in = tensor_values(logits), *got = tensor_values(grad);
    for (int i = 0; i < ROWS * CLASSES; i++) x[i] = (double)in[i];
    cr_assert_float_eq(value, reference(x), 1e-6);
    for (int i = 0; i < ROWS * CLASSES; i++) {
        double kept = x[i], above, below;
        x[i] = kept + 1e-5;
        above = reference(x);
        x[i] = kept - 1e-5;
        below = reference(x);
        x[i] = kept;
        cr_assert_float_eq(got[i], (above - below) / 2e-5, 1e-7);
    }
    free(in);
    free(got);
    iso_tensor_destroy(&logits);
    iso_loss_destroy(&loss);
    close_cpu(&device);
}

Test(loss, log_softmax_and_nll_are_cross_entropy) {
    iso_device *device = open_cpu();
    iso_loss *whole = new_loss(device, ISO_CROSS_ENTROPY), *nll = new_loss(device, ISO_NLL);
    iso_module *softmax = NULL;
    cr_ok(iso_log_softmax_create(device, &softmax));
    iso_tensor *logits = random_tensor(device, 2, (int64_t[]){ROWS, CLASSES}, 2);
    iso_tensor *out, *grad, *want, *grad_in;
    double a, b;
    int64_t right_a, right_b;
    cr_ok(iso_loss_compute(whole, logits, labels, &a, &right_a, &want));
    cr_ok(iso_module_forward(softmax, logits, &out));
    cr_ok(iso_loss_compute(nll, out, labels, &b, &right_b, &grad));
    cr_ok(iso_module_backward(softmax, grad, &grad_in));
    cr_assert_float_eq(a, b, 1e-6);
    cr_assert_eq(right_a, right_b);
    float *x = tensor_values(want), *y = tensor_values(grad_in);
    for (int i = 0; i < ROWS * CLASSES; i++) cr_assert_float_eq(x[i], y[i], 1e-7);
    free(x);
    free(y);
    iso_tensor_destroy(&logits);
    iso_module_destroy(&softmax);
    iso_loss_destroy(&whole);
    iso_loss_destroy(&nll);
    close_cpu(&device);
}

Test(loss, a_value_is_of_the_last_computation_or_refused) {
    static const int32_t wrong[ROWS] = {0, 4, 2, CLASSES, 1, 3};
    iso_device *device = open_cpu();
    iso_loss *loss = new_loss(device, ISO_CROSS_ENTROPY);
    iso_tensor *logits = filled_tensor(device, 2, (int64_t[]){ROWS, CLASSES}, 3);
    double value = -1;
    cr_assert(iso_loss_value(loss, &value, NULL) == ISO_ERR_STATE);
    cr_ok(iso_loss_compute(loss, logits, labels, NULL, NULL, NULL));
    cr_ok(iso_loss_value(loss, &value, NULL));
    cr_assert_float_eq(value, log(CLASSES), 1e-6);
    cr_assert(iso_loss_compute(loss, logits, wrong, NULL, NULL, NULL) == ISO_ERR_ARG);
    cr_assert(iso_loss_value(loss, &value, NULL) == ISO_ERR_STATE);
    iso_tensor_destroy(&logits);
    iso_loss_destroy(&loss);
    iso_device_destroy(&device);
}

Test(loss, equal_logits_give_the_logarithm_of_the_classes) {
    iso_device *device = open_cpu();
    iso_loss *loss = new_loss(device, ISO_CROSS_ENTROPY);
    iso_tensor *logits = filled_tensor(device, 2, (int64_t[]){ROWS, CLASSES}, 3);
    double value;
    cr_ok(iso_loss_compute(loss, logits, labels, &value, NULL, NULL));
    cr_assert_float_eq(value, log(CLASSES), 1e-6);
    iso_tensor_destroy(&logits);
    iso_loss_destroy(&loss);
    close_cpu(&device);
}

Test(loss, large_logits_do_not_overflow) {
    iso_device *device = open_cpu();
    iso_loss *loss = new_loss(device, ISO_CROSS_ENTROPY);
    iso_tensor *logits = tensor_of(device, 2, 2, (float[]){1e4f, -1e4f, 1e4f, -1e4f}), *grad;
    double value;
    cr_ok(iso_loss_compute(loss, logits, (int32_t[]){0, 1}, &value, NULL, &grad));
    cr_assert_float_eq(value, 1e4, 1e-3); // 0 for the first row, 2e4 for the second
    float *g = tensor_values(grad);
    const float want[] = {0, 0, 0.5f, -0.5f};
    for (int i = 0; i < 4; i++) cr_assert_float_eq(g[i], want[i], 1e-7);
    free(g);
    iso_tensor_destroy(&logits);
    iso_loss_destroy(&loss);
    close_cpu(&device);
}

Test(loss, first_of_equal_entries_counts) {
    iso_device *device = open_cpu();
    iso_loss *loss = new_loss(device, ISO_NLL);
    iso_tensor *x = tensor_of(device, 4, 3, (float[]){0, 1, 1, 0, 1, 1, 5, 1, 2, -3, -2, -1});
    double value;
    int64_t correct;
    cr_ok(iso_loss_compute(loss, x, (int32_t[]){1, 2, 0, 2}, &value, &correct, NULL));
    cr_assert_eq(correct, 3);
    cr_assert_float_eq(value, -(1 + 1 + 5 - 1) / 4.0, 1e-6);
    iso_tensor_destroy(&x);
    iso_loss_destroy(&loss);
    close_cpu(&device);
}

Test(loss, label_out_of_range_is_named_with_its_row) {
    iso_device *device = open_cpu();
    iso_loss *loss = new_loss(device, ISO_CROSS_ENTROPY);
    iso_tensor *x = random_tensor(device, 2, (int64_t[]){3, 10}, 1);
    double value = -1;
    cr_fails(iso_loss_compute(loss, x, (int32_t[]){1, 2, 10}, &value, NULL, NULL), ISO_ERR_ARG,
             "label 10 in row 2");
    cr_fails(iso_loss_compute(loss, x, (int32_t[]){1, -1, 3}, &value, NULL, NULL), ISO_ERR_ARG,
             "label -1 in row 1");
    cr_assert_eq(value, -1); // written only on success
    iso_tensor_destroy(&x);
    iso_loss_destroy(&loss);
    close_cpu(&device);
}

Test(loss, refuses_what_is_not_rows_of_classes) {
    iso_device *device = open_cpu();
    iso_loss *loss = new_loss(device, ISO_CROSS_ENTROPY);
    iso_tensor *x = random_tensor(device, 4, (int64_t[]){3, 2, 1, 1}, 1);
    double value;
    cr_fails(iso_loss_compute(loss, x, labels, &value, NULL, NULL), ISO_ERR_SHAPE, "[3, 2, 1, 1]");
    iso_tensor_destroy(&x);
    iso_loss_destroy(&loss);
    close_cpu(&device);
}

Test(loss, gradient_buffer_is_reused) {
    iso_device *device = open_cpu();
    iso_loss *loss = new_loss(device, ISO_CROSS_ENTROPY);
    iso_tensor *large = random_tensor(device, 2, (int64_t[]){ROWS, CLASSES}, 1), *grad[2];
    iso_tensor *small = random_tensor(device, 2, (int64_t[]){2, CLASSES}, 1);
    double value;
    long long before, after;
    cr_ok(iso_loss_compute(loss, large, labels, &value, NULL, &grad[0]));
    iso_memory_balance(NULL, NULL, &before);
    cr_ok(iso_loss_compute(loss, small, labels, &value, NULL, &grad[1]));
    cr_assert_eq(iso_tensor_shape(grad[1])[0], 2);
    cr_ok(iso_loss_compute(loss, large, labels, &value, NULL, &grad[1]));
    iso_memory_balance(NULL, NULL, &after);
    cr_assert_eq(grad[0], grad[1]);
    cr_assert_eq(before, after);
    iso_tensor_destroy(&large);
    iso_tensor_destroy(&small);
    iso_loss_destroy(&loss);
    close_cpu(&device);
}

Test(loss, mean_squared_error_matches_its_formula) {
    iso_device *device = open_cpu();
    iso_loss *loss = new_loss(device, ISO_MSE);
    iso_tensor *x = tensor_of(device, 2, 3, (float[]){1, 2, 3, 4, 5, 6}), *grad;
    iso_tensor *target = tensor_of(device, 2, 3, (float[]){1, 0, 3, 4, 5, 9});
    double value;
    int64_t correct;
    cr_ok(iso_loss_compute_tensor(loss, x, target, &value, &grad));
    cr_assert_float_eq(value, (4 + 9) / 6.0, 1e-15);
    const float want[] = {0, 4 / 6.0f, 0, 0, 0, -1};
    float *got = tensor_values(grad);
    for (int i = 0; i < 6; i++) cr_assert_float_eq(got[i], want[i], 1e-7);
    free(got);
    // The same through labels: 1 at the label.
    cr_ok(iso_loss_compute(loss, x, (int32_t[]){2, 0}, &value, &correct, NULL));
    cr_assert_float_eq(value, (1 + 4 + 4 + 9 + 25 + 36) / 6.0, 1e-14);
    cr_assert_eq(correct, 1);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&target);
    iso_loss_destroy(&loss);
    close_cpu(&device);
}

Test(loss, targets_that_do_not_fit_are_refused) {
    iso_device *device = open_cpu();
    iso_loss *loss = new_loss(device, ISO_MSE), *labelled = new_loss(device, ISO_NLL);
    iso_tensor *x = random_tensor(device, 2, (int64_t[]){3, 4}, 1);
    iso_tensor *turned = random_tensor(device, 2, (int64_t[]){4, 3}, 1);
    iso_tensor *wide = random_tensor_of(device, ISO_F64, 2, (int64_t[]){3, 4}, 1);
    double value = -1;
    cr_fails(iso_loss_compute_tensor(loss, x, turned, &value, NULL), ISO_ERR_SHAPE,
             "of shape [3, 4], its input's, but got [4, 3]");
    cr_fails(iso_loss_compute_tensor(loss, x, wide, &value, NULL), ISO_ERR_TYPE,
             "targets of f32, the type of its input, but got f64");
    cr_fails(iso_loss_compute_tensor(labelled, x, x, &value, NULL), ISO_ERR_ARG, "takes labels");
    cr_assert_eq(value, -1);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&turned);
    iso_tensor_destroy(&wide);
    iso_loss_destroy(&loss);
    iso_loss_destroy(&labelled);
    close_cpu(&device);
}

Test(loss, label_smoothing_is_a_share_and_of_the_cross_entropy) {
    iso_device *device = open_cpu();
    iso_loss *loss = NULL;
    static const iso_loss_config wrong[] = {{.kind = ISO_CROSS_ENTROPY, .label_smoothing = 1.01},
                                            {.kind = ISO_CROSS_ENTROPY, .label_smoothing = -0.1},
                                            {.kind = ISO_CROSS_ENTROPY, .label_smoothing = NAN}};
    for (int i = 0; i < 3; i++)
        cr_fails(iso_loss_create_with(device, &wrong[i], &loss), ISO_ERR_ARG, "from 0 to 1");
    cr_fails(iso_loss_create_with(
                 device, &(iso_loss_config){.kind = ISO_NLL, .label_smoothing = 0.1}, &loss),
             ISO_ERR_ARG, "only the cross entropy");
    cr_fails(iso_loss_create(device, (iso_loss_kind)9, &loss), ISO_ERR_ARG, "kind of loss 9");
    cr_assert_null(loss);
    close_cpu(&device);
}

// With outputs in both layouts.
Test(loss, targets_allocate_nothing_once_seen) {
    iso_device *device = open_cpu();
    iso_loss *loss = new_loss(device, ISO_MSE);
    const int64_t shape[4] = {2, 5, 3, 3};
    iso_tensor *x = random_tensor(device, 4, shape, 1),
               *target = random_tensor(device, 4, shape, 2);
    iso_tensor *blocked = NULL, *grad;
    double value[2];
    long long before, after;
    cr_ok(iso_tensor_create(device, ISO_F32, 4, shape, &blocked));
    cr_ok(iso_tensor_resize(blocked, 4, shape, ISO_LAYOUT_BLOCKED));
    cr_ok(iso_tensor_copy(x, blocked));
    cr_ok(iso_loss_compute_tensor(loss, blocked, target, &value[0], &grad));
    iso_memory_balance(NULL, NULL, &before);
    for (int i = 0; i < 3; i++) {
        cr_ok(iso_loss_compute_tensor(loss, i == 1 ? x : blocked, target, &value[1], &grad));
        cr_assert_eq(value[0], value[1]);
    }
    iso_memory_balance(NULL, NULL, &after);
    cr_assert_eq(before, after);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&target);
    iso_tensor_destroy(&blocked);
    iso_loss_destroy(&loss);
    close_cpu(&device);
}
