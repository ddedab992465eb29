// SPDX-License-Identifier: MIT
// Kernels chosen by time: a choice rules whoever is given it, for any number of rows, and can be
// taken back; bytes that are no choices are refused.
#include "common/balance.h"
#include "device/device_impl.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(tune, .timeout = 60, .fini = balance_check);

#define OK(expr) cr_assert((expr) == ISO_OK, "%s: %s", #expr, iso_last_error()->message)

static iso_device *open_onednn(void) {
    iso_device *device;
    setenv("ISO_CPU_KERNELS", "onednn", 1);
    if (iso_device_create("cpu", &device) != ISO_OK) cr_skip_test("this build has no oneDNN");
    return device;
}

static iso_tensor *random_tensor(iso_device *device, int ndim, const int64_t *shape) {
    iso_tensor *t;
    float *data;
    OK(iso_tensor_create(device, ISO_F32, ndim, shape, &t));
    OK(iso_tensor_map(t, ISO_WRITE, (void **)&data));
    for (int64_t i = 0; i < t->count; i++) data[i] = (float)(i * 7919 % 1009) / 1009 - 0.5f;
    OK(iso_tensor_unmap(t));
    return t;
}

// What a linear forward of so many rows gives, hashed; *kernel: how it was computed.
static uint64_t forward(iso_device *device, int64_t rows, char kernel[64]) {
    iso_tensor *x = random_tensor(device, 2, (int64_t[]){rows, 300});
    iso_tensor *w = random_tensor(device, 2, (int64_t[]){200, 300});
    iso_tensor *y = random_tensor(device, 2, (int64_t[]){rows, 200});
    OK(device->kernels[ISO_F32]->linear_forward(device, x, w, NULL, NULL, ISO_ACT_NONE, y));
    snprintf(kernel, 64, "%s", device->kernel);
    uint64_t hash = iso__hash(ISO_HASH_START, y->data, (size_t)y->count * sizeof(float));
    iso_tensor_destroy(&x), iso_tensor_destroy(&w), iso_tensor_destroy(&y);
    return hash;
}

// The choices of a device that has tuned the forward above, with another one in its place.
static void *other_choices(int64_t other, size_t *bytes) {
    char kernel[64];
    iso_device *device = open_onednn();
    OK(iso_device_tune(device, true));
    forward(device, 64, kernel);
    const void *choices = iso_device_choices(device, bytes);
    cr_assert(choices && *bytes > 0);
    char *copy = malloc(*bytes);
    memcpy(copy, choices, *bytes);
    memcpy(copy + *bytes - sizeof(other), &other, sizeof(other)); // the last number
    iso_device_destroy(&device);
    return copy;
}

Test(tune, devices_with_the_same_choices_compute_the_same_bits_whatever_the_rule_is) {
    char by_rule[64], kernel[2][64];
    int different = 0;
    iso_device *device[] = {open_onednn(), open_onednn()};
    const uint64_t rule = forward(device[0], 64, by_rule);
    for (int64_t other = 0; other < 3; other++) {
        size_t bytes;
        void *choices = other_choices(other, &bytes);
        for (int i = 0; i < 2; i++) OK(iso_device_set_choices(device[i], choices, bytes));
        for (int64_t rows = 64; rows > 20; rows -= 27) // they meet shapes in a different order
            cr_assert(forward(device[0], rows, kernel[0]) == forward(device[1], rows, kernel[1]));
        cr_assert(strcmp(kernel[0], kernel[1]) == 0);
        forward(device[0], 64, kernel[0]);
        different += strcmp(kernel[0], by_rule) != 0;
        free(choices);
    }
    cr_assert(different > 0, "no choice made a difference");
    OK(iso_device_set_choices(device[0], NULL, 0));
    cr_assert(forward(device[0], 64, kernel[0]) == rule);
    cr_assert(strcmp(kernel[0], by_rule) == 0);
    iso_device_destroy(&device[0]);
    iso_device_destroy(&device[1]);
}

Test(tune, nothing_is_chosen_unless_asked_for_and_each_shape_once) {
    char kernel[64];
    size_t bytes, first;
    iso_device *device = open_onednn();
    forward(device, 64, kernel);
    iso_device_choices(device, &bytes);
    cr_assert(bytes == 0);
    OK(iso_device_tune(device, true));
    forward(device, 64, kernel);
    iso_device_choices(device, &first);
    forward(device, 32, kernel);
    iso_device_choices(device, &bytes);
    cr_assert(first > 0 && bytes == first);
    OK(iso_device_tune(device, false));
    iso_device_destroy(&device);
}

Test(tune, gradients_that_are_added_to_are_added_once) {
    iso_device *device = open_onednn();
    const iso_kernel_ops *kernels = device->kernels[ISO_F32];
    iso_tensor *x = random_tensor(device, 2, (int64_t[]){32, 40});
    iso_tensor *dy = random_tensor(device, 2, (int64_t[]){32, 30});
    iso_tensor *dw = random_tensor(device, 2, (int64_t[]){30, 40}), *sum;
    sum = random_tensor(device, 2, (int64_t[]){30, 40});
    OK(iso_tensor_fill(sum, 1));
    OK(kernels->linear_backward_params(device, x, dy, dw, false, NULL, false));
    OK(iso_device_tune(device, true));
    OK(kernels->linear_backward_params(device, x, dy, sum, true, NULL, false));
    for (int64_t i = 0; i < dw->count; i++)
        cr_assert_float_eq(((float *)sum->data)[i], 1 + ((float *)dw->data)[i], 1e-4);
    iso_tensor *all[] = {x, dy, dw, sum};
    for (int i = 0; i < 4; i++) iso_tensor_destroy(&all[i]);
    iso_device_destroy(&device);
}

Test(tune, bytes_that_are_no_choices_are_refused) {
    size_t bytes;
    char *choices = other_choices(99, &bytes);
    iso_device *device = open_onednn();
    cr_assert(iso_device_set_choices(device, choices, bytes - 1) == ISO_ERR_FORMAT);
    cr_assert(iso_device_set_choices(device, choices, bytes) == ISO_ERR_FORMAT);
    iso_device_destroy(&device);
    setenv("ISO_CPU_KERNELS", "reference", 1);
    OK(iso_device_create("cpu", &device));
    cr_assert(iso_device_set_choices(device, choices, bytes) == ISO_ERR_UNSUPPORTED);
    OK(iso_device_tune(device, true));
    OK(iso_device_set_choices(device, NULL, 0));
    iso_device_destroy(&device);
    free(choices);
}
