// SPDX-License-Identifier: MIT
// Dropout masks: the same for any number of ranks and any layout, right rate, whole channels, none
// in evaluation.
#include "common/nn_fixture.h"
#include "device/device_impl.h"

#include <math.h>

TestSuite(dropout, .timeout = 60);

typedef iso_status (*create)(iso_device *, double, iso_rng *, iso_module **);

static iso_module *new_dropout(iso_device *device, create make, double p, uint64_t seed,
                               uint64_t stream) {
    iso_rng rng = {.seed = seed, .next_stream = stream};
    iso_module *module = NULL;
    cr_ok(make(device, p, &rng, &module));
    cr_assert_eq(rng.next_stream, stream + 1);
    return module;
}

// The factors that the next forward of module applies to rows [first, first + rows) of [.., c, h,
// w].
static float *mask_of(iso_module *module, int64_t first, int64_t rows, int64_t c, int64_t h,
                      int64_t w) {
    iso_tensor *out, *ones = filled_tensor(module->device, 4, (int64_t[]){rows, c, h, w}, 1);
    iso_module_set_first_row(module, first);
    cr_ok(iso_module_forward(module, ones, &out));
    float *mask = tensor_values(out);
    iso_tensor_destroy(&ones);
    return mask;
}

static bool same(const float *a, const float *b, int count) {
    for (int i = 0; i < count; i++)
        if (a[i] != b[i]) return false;
    return true;
}

static void check_ranks(create make) {
    iso_device *device = open_cpu();
    enum { ROWS = 12, ROW = 5 * 3 * 3 };
    iso_module *whole = new_dropout(device, make, 0.5, 7, 2);
    iso_module *rank[3];
    for (int r = 0; r < 3; r++) rank[r] = new_dropout(device, make, 0.5, 7, 2);
    for (int step = 0; step < 3; step++) {
        float *want = mask_of(whole, 0, ROWS, 5, 3, 3);
        for (int r = 0; r < 3; r++) {
            float *part = mask_of(rank[r], r * 4, 4, 5, 3, 3);
            cr_assert(same(part, want + r * 4 * ROW, 4 * ROW), "rank %d, step %d", r, step);
            free(part);
        }
        free(want);
    }
    for (int r = 0; r < 3; r++) iso_module_destroy(&rank[r]);
    iso_module_destroy(&whole);
    close_cpu(&device);
}

Test(dropout, ranks_draw_what_one_rank_draws_on_the_whole_batch) {
    check_ranks(iso_dropout_create);
}

Test(dropout, ranks_draw_the_same_channels_as_one_rank) { check_ranks(iso_dropout2d_create); }

Test(dropout, masks_differ_between_steps_streams_seeds_and_rows) {
    iso_device *device = open_cpu();
    enum { COUNT = 2 * 64 };
    iso_module *a = new_dropout(device, iso_dropout_create, 0.5, 1, 0);
    iso_module *stream = new_dropout(device, iso_dropout_create, 0.5, 1, 1);
    iso_module *seed = new_dropout(device, iso_dropout_create, 0.5, 2, 0);
    float *mask[4] = {mask_of(a, 0, 2, 1, 8, 8), mask_of(a, 0, 2, 1, 8, 8),
                      mask_of(stream, 0, 2, 1, 8, 8), mask_of(seed, 0, 2, 1, 8, 8)};
    for (int i = 0; i < 4; i++) {
        cr_assert_not(same(mask[i], mask[i] + 64, 64), "the rows of mask %d are equal", i);
        for (int k = 0; k < i; k++)
            cr_assert_not(same(mask[i], mask[k], COUNT), "masks %d and %d are equal", i, k);
    }
    for (int i = 0; i < 4; i++) free(mask[i]);
    iso_module_destroy(&a);
    iso_module_destroy(&stream);
    iso_module_destroy(&seed);
    close_cpu(&device);
}

Test(dropout, zeroes_with_probability_p_and_scales_the_rest) {
    iso_device *device = open_cpu();
    enum { COUNT = 16 * 8 * 32 * 32 };
    const double p = 0.3;
    iso_module *dropout = new_dropout(device, iso_dropout_create, p, 3, 0);
    float *mask = mask_of(dropout, 0, 16, 8, 32, 32);
    int zeros = 0;
    for (int i = 0; i < COUNT; i++) {
        zeros += mask[i] == 0;
        cr_assert(mask[i] == 0 || fabs((double)mask[i] - 1 / (1 - p)) < 1e-6);
    }
    double deviation = sqrt(p * (1 - p) / COUNT);
    cr_assert_float_eq((double)zeros / COUNT, p, 4 * deviation);
    free(mask);
    iso_module_destroy(&dropout);
    close_cpu(&device);
}

Test(dropout, channels_are_dropped_as_a_whole) {
    iso_device *device = open_cpu();
    enum { CHANNELS = 50 * 40, PLANE = 3 * 4 };
    iso_module *dropout = new_dropout(device, iso_dropout2d_create, 0.25, 3, 0);
    float *mask = mask_of(dropout, 0, 50, 40, 3, 4);
    int zeros = 0;
    for (int c = 0; c < CHANNELS; c++) {
        zeros += mask[c * PLANE] == 0;
        for (int i = 0; i < PLANE; i++) cr_assert_eq(mask[c * PLANE + i], mask[c * PLANE]);
    }
    cr_assert_float_eq((double)zeros / CHANNELS, 0.25, 4 * sqrt(0.25 * 0.75 / CHANNELS));
    free(mask);
    iso_module_destroy(&dropout);
    close_cpu(&device);
}

// The same input in logical and in the device's own layout; 19 channels leave the last block part
// empty.
static void check_layouts(create make) {
    iso_device *device = open_cpu();
    const int64_t shape[4] = {3, 19, 4, 5};
    iso_module *dropout = new_dropout(device, make, 0.5, 3, 0);
    iso_tensor *logical = random_tensor(device, 4, shape, 1), *blocked = NULL, *out;
    iso_tensor *want = random_tensor(device, 4, shape, 2);
    cr_ok(iso_tensor_create(device, ISO_F32, 4, shape, &blocked));
    cr_ok(iso_tensor_resize(blocked, 4, shape, ISO_LAYOUT_BLOCKED));
    cr_ok(iso_tensor_copy(logical, blocked));
    cr_ok(iso_module_forward(dropout, logical, &out));
    cr_ok(iso_tensor_copy(out, want));
    dropout->forward_number = 0;
    cr_ok(iso_module_forward(dropout, blocked, &out));
    cr_assert_eq(iso_tensor_layout(out), ISO_LAYOUT_BLOCKED);
    cr_assert(same_values(out, want));
    iso_tensor_destroy(&logical);
    iso_tensor_destroy(&blocked);
    iso_tensor_destroy(&want);
    iso_module_destroy(&dropout);
    close_cpu(&device);
}

Test(dropout, mask_is_the_same_in_both_layouts) { check_layouts(iso_dropout_create); }

Test(dropout, channel_mask_is_the_same_in_both_layouts) { check_layouts(iso_dropout2d_create); }

static void check_identity(double p, bool training) {
    iso_device *device = open_cpu();
    iso_module *dropout = new_dropout(device, iso_dropout_create, p, 3, 0), *model = NULL;
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){4, 6}, 1), *out, *grad_in;
    iso_tensor *grad = random_tensor(device, 2, (int64_t[]){4, 6}, 2);
    iso_tensor *want = random_tensor(device, 2, (int64_t[]){4, 6}, 2);
    cr_ok(iso_sequential_create(device, &model));
    cr_ok(iso_sequential_add_take(model, NULL, dropout));
    cr_ok(iso_module_train(dropout, training)); // the model itself keeps training
    cr_ok(iso_module_forward(model, in, &out));
    cr_assert_eq(out, in);
    cr_ok(iso_module_backward(model, grad, &grad_in));
    cr_assert(same_values(grad_in, want));
    iso_tensor_destroy(&in);
    iso_tensor_destroy(&grad);
    iso_tensor_destroy(&want);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(dropout, evaluation_hands_tensors_through) { check_identity(0.5, false); }

Test(dropout, probability_zero_hands_tensors_through) { check_identity(0, true); }

// Otherwise the masks of a training run would depend on how often it was evaluated.
Test(dropout, evaluation_draws_nothing) {
    iso_device *device = open_cpu();
    iso_module *a = new_dropout(device, iso_dropout_create, 0.5, 1, 0);
    iso_module *b = new_dropout(device, iso_dropout_create, 0.5, 1, 0);
    cr_ok(iso_module_train(a, false));
    free(mask_of(a, 0, 2, 1, 8, 8));
    cr_ok(iso_module_train(a, true));
    float *x = mask_of(a, 0, 2, 1, 8, 8), *y = mask_of(b, 0, 2, 1, 8, 8);
    cr_assert(same(x, y, 2 * 64));
    free(x);
    free(y);
    iso_module_destroy(&a);
    iso_module_destroy(&b);
    close_cpu(&device);
}
