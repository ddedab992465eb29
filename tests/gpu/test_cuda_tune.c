// SPDX-License-Identifier: MIT
// Convolutions of a GPU chosen by time: what is chosen is kept, computes the same, and can be given
// to another device.
#include "common/balance.h"
#include "device/cuda/runtime/cuda_impl.h"
#include "gpu/conv_problem.h"

#include <string.h>

TestSuite(cuda_tune, .timeout = 240, .fini = balance_check);

// Of the emulated GPU, where the build has that.
__attribute__((weak)) void emulated_fail_next(const char *function, int error);

enum { NOT_SUPPORTED = 3000 };

static const oracle_conv shape = {6, 16, 9, 8, 24, {3, 3}, {1, 1}, .padding = {1, 1}};

static target open_cuda(void) {
    target on = {.dtype = ISO_F32};
    setenv("ISO_CUDA_CONV", "cudnn", 1);
    if (iso_device_create("cuda", &on.device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    on.kernels = on.device->kernels[ISO_F32];
    if (iso_device_tune(on.device, false) == ISO_OK) return on;
    iso_device_destroy(&on.device);
    cr_skip_test("%s", iso_last_error()->message);
    return on;
}

// Choices of a device that ran the shape forward and backward while it was tuning.
static size_t tune(target *on, char *copy, size_t room) {
    problem p = problem_of(on, &shape);
    size_t bytes;
    OK(iso_device_tune(on->device, true));
    problem_check(on, &p, 1e-4);
    OK(iso_device_tune(on->device, false));
    problem_destroy(&p);
    const void *choices = iso_device_choices(on->device, &bytes);
    cr_assert(bytes > 0 && bytes <= room, "%zu bytes of choices", bytes);
    memcpy(copy, choices, bytes);
    return bytes;
}

Test(cuda_tune, choices_are_made_once_and_go_to_another_device) {
    char mine[4096], again[4096];
    target on = open_cuda();
    size_t bytes = tune(&on, mine, sizeof(mine)), other_bytes;
    cr_expect(tune(&on, again, sizeof(again)) == bytes, "a shape is chosen for once");
    iso_device_destroy(&on.device);

    target other = open_cuda();
    problem p = problem_of(&other, &shape);
    problem_check(&other, &p, 1e-4); // shapes that were seen take choices too
    OK(iso_device_set_choices(other.device, mine, bytes));
    problem_destroy(&p);
    p = problem_of(&other, &shape);
    problem_check(&other, &p, 1e-4);
    problem_destroy(&p);
    const void *theirs = iso_device_choices(other.device, &other_bytes);
    cr_assert(other_bytes == bytes && memcmp(theirs, mine, bytes) == 0);
    OK(iso_device_set_choices(other.device, NULL, 0));
    iso_device_choices(other.device, &other_bytes);
    cr_expect(other_bytes == 0);
    iso_device_destroy(&other.device);
}

// Where bias and relu take a launch of their own, the convolution is chosen without them.
Test(cuda_tune, a_shape_that_is_never_fused_is_chosen_for_too) {
    char fused[4096], plain[4096];
    if (!emulated_fail_next) cr_skip_test("only the emulated GPU can be made to refuse");
    target on = open_cuda();
    size_t bytes = tune(&on, fused, sizeof(fused));
    iso_device_destroy(&on.device);
    on = open_cuda();
    for (int i = 0; i < 16; i++) // more than there are candidates
        emulated_fail_next("cudnnConvolutionBiasActivationForward", NOT_SUPPORTED);
    cr_expect_eq(tune(&on, plain, sizeof(plain)), bytes, "one choice for each direction");
    iso_device_destroy(&on.device);
}

static void run_forward(const target *on, problem *p) {
    OK(on->kernels->conv2d_forward(on->device, &p->config, p->x.t, p->w.t, p->b.t, ISO_ACT_RELU,
                                   p->y.t));
}

static void fill(pair *x, int times) {
    for (int k = 0; k < times; k++) OK(iso_tensor_fill(x->t, k));
}

// What came before the trials is made a graph: of the GPU that it came to.
Test(cuda_tune, another_gpu_may_have_been_in_use_before) {
    enum { TIMES = 4, COMMANDS = 3 };
    if (iso_device_count("cuda") < 2) cr_skip_test("there are no two GPUs");
    target on = open_cuda(), other = {.dtype = ISO_F32};
    OK(iso_device_create("cuda:1", &other.device));
    pair x = pair_1d(&on, 8), y = pair_1d(&other, 8);
    for (int i = 0; i < TIMES; i++) {
        oracle_conv c = shape;
        c.out += i; // of each shape candidates are timed
        problem p = problem_of(&on, &c);
        run_forward(&on, &p);
        OK(on.device->ops->remote->finish(on.device));
        OK(iso_device_tune(on.device, true));
        fill(&x, COMMANDS), fill(&y, 1);
        run_forward(&on, &p);
        OK(iso_device_tune(on.device, false));
        problem_destroy(&p);
    }
    pair_destroy(&x), pair_destroy(&y);
    iso_device_destroy(&on.device), iso_device_destroy(&other.device);
}

Test(cuda_tune, bytes_that_are_no_choices_are_refused) {
    target on = open_cuda();
    cr_assert(iso_device_set_choices(on.device, "x", 1) == ISO_ERR_FORMAT);
    iso_device_destroy(&on.device);
}
