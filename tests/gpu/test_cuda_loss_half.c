// SPDX-License-Identifier: MIT
// Losses of bf16 and f16 on a GPU: those of the same numbers in f32, with gradients that are
// rounded.
#include "common/autocast_fixture.h"
#include "common/balance.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_loss_half, .timeout = 60, .fini = balance_check);

// Of the emulated GPU, where the build has that.
__attribute__((weak)) void emulated_fail_next(const char *function, int error);

enum { LAUNCH_FAILURE = 719 };

static const iso_dtype halves[] = {ISO_BF16, ISO_F16};

// A tensor of f32 with numbers that `half` has, a quarter of them equal to others; and that in
// `half`.
static void make_both(iso_device *device, iso_dtype half, int64_t rows, int64_t k,
                      iso_tensor *both[2]) {
    target on = {.device = device, .dtype = ISO_F32};
    pair x = pair_create(&on, 2, (int64_t[]){rows, k}, ISO_LAYOUT_LOGICAL, 50);
    for (int i = 0; i < 2; i++)
        OK(iso_tensor_create(device, i ? half : ISO_F32, 2, x.t->shape, &both[i]));
    OK(iso_tensor_copy(x.t, both[1]));
    OK(iso_tensor_copy(both[1], both[0]));
    pair_destroy(&x);
}

typedef struct outcome {
    double value;
    int64_t correct;
    iso_tensor *grad; // of the loss
} outcome;

static void check(const outcome *wide, const outcome *low, const char *what) {
    iso_tensor *rounded;
    OK(iso_tensor_create(low->grad->device, low->grad->dtype, 2, wide->grad->shape, &rounded));
    OK(iso_tensor_copy(wide->grad, rounded));
    cr_assert(memcmp(&wide->value, &low->value, sizeof(double)) == 0, "%s: %g, not %g", what,
              low->value, wide->value);
    cr_assert(wide->correct == low->correct, "%s", what);
    cr_assert(wide->grad->dtype == ISO_F32 && iso__is_half(low->grad->dtype));
    cr_assert(same_bits(rounded, low->grad), "%s: gradient", what);
    iso_tensor_destroy(&rounded);
}

static void destroy_all(iso_loss *loss[2], iso_tensor *x[2]) {
    for (int i = 0; i < 2; i++) {
        iso_loss_destroy(&loss[i]);
        iso_tensor_destroy(&x[i]);
    }
}

// Rows for warps and for blocks.
static const int64_t sizes[][2] = {{37, 10}, {3, 1001}};

static void compare_labels(iso_device *device, iso_dtype half, const iso_loss_config *config,
                           const int64_t *size) {
    int32_t labels[37];
    iso_tensor *x[2];
    iso_loss *loss[2];
    outcome o[2];
    make_both(device, half, size[0], size[1], x);
    for (int n = 0; n < 37; n++) labels[n] = (int32_t)(n * 7 % size[1]);
    for (int i = 0; i < 2; i++) {
        OK(iso_loss_create_with(device, config, &loss[i]));
        OK(iso_loss_compute(loss[i], x[i], labels, &o[i].value, &o[i].correct, &o[i].grad));
    }
    cr_assert(o[1].grad->dtype == half);
    check(&o[0], &o[1], "labels");
    destroy_all(loss, x);
}

Test(cuda_loss_half, of_labels_is_that_of_f32) {
    static const iso_loss_config configs[] = {{.kind = ISO_CROSS_ENTROPY},
                                              {.kind = ISO_CROSS_ENTROPY, .label_smoothing = 0.1},
                                              {.kind = ISO_NLL},
                                              {.kind = ISO_MSE}};
    iso_device *device = open_cuda();
    for (int h = 0; h < COUNT(halves); h++)
        for (int c = 0; c < COUNT(configs) * COUNT(sizes); c++)
            compare_labels(device, halves[h], &configs[c % COUNT(configs)],
                           sizes[c / COUNT(configs)]);
    iso_device_destroy(&device);
}

static void compare_targets(iso_device *device, iso_dtype half, bool low_target) {
    iso_tensor *x[2], *targets[2];
    iso_loss *loss[2];
    outcome o[2] = {{.correct = 0}, {.correct = 0}};
    make_both(device, half, 130, 67, x);
    make_both(device, half, 130, 67, targets);
    OK(iso_tensor_scale(targets[0], 0.5)); // other numbers, which 16 bits have too
    OK(iso_tensor_copy(targets[0], targets[1]));
    for (int i = 0; i < 2; i++) OK(iso_loss_create(device, ISO_MSE, &loss[i]));
    for (int i = 0; i < 2; i++)
        OK(iso_loss_compute_tensor(loss[i], x[i], targets[i && low_target], &o[i].value,
                                   &o[i].grad));
    check(&o[0], &o[1], low_target ? "targets of 16 bits" : "targets of f32");
    cr_assert(iso_loss_compute_tensor(loss[0], x[0], targets[1], NULL, NULL) == ISO_ERR_TYPE);
    destroy_all(loss, x);
    iso_tensor_destroy(&targets[0]), iso_tensor_destroy(&targets[1]);
}

Test(cuda_loss_half, of_targets_is_that_of_f32) {
    iso_device *device = open_cuda();
    for (int i = 0; i < 2 * COUNT(halves); i++) compare_targets(device, halves[i / 2], i % 2);
    iso_device_destroy(&device);
}

// Its result is memory of the host, which the GPU may still have to write. The fault meets the wait
// before that memory is freed.
Test(cuda_loss_half, memory_stays_for_a_loss_that_runs_though_the_next_one_failed) {
    if (!emulated_fail_next) cr_skip_test("only the emulated GPU can be made to fail");
    iso_device *device = open_cuda();
    int32_t labels[4] = {0, 1, 2, 3};
    double value;
    iso_tensor *x[2];
    iso_loss *loss[2];
    make_both(device, ISO_F16, 4, 5, x);
    for (int i = 0; i < 2; i++) OK(iso_loss_create(device, ISO_CROSS_ENTROPY, &loss[i]));
    OK(iso_loss_compute(loss[0], x[0], labels, NULL, NULL, NULL));
    labels[3] = 5;
    cr_assert(iso_loss_compute(loss[0], x[0], labels, NULL, NULL, NULL) == ISO_ERR_ARG);
    emulated_fail_next("cudaEventSynchronize", LAUNCH_FAILURE);
    iso_loss_destroy(&loss[0]);
    labels[3] = 3;
    OK(iso_loss_compute(loss[1], x[0], labels, &value, NULL, NULL));
    destroy_all(loss, x);
    iso_device_destroy(&device);
}
