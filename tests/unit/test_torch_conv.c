// SPDX-License-Identifier: MIT
// Convolutions and pooling in f32 and f64 against the values that PyTorch gives in float64.
#include "common/fixture.h"
#include "common/nn_fixture.h"

#include <string.h>

TestSuite(torch_conv, .timeout = 60);

static iso_device *device;
static fixture *golden;

// Of the largest number of a tensor. Winograd is not among the kernels of these sizes.
static double tolerance_of(iso_dtype dtype) { return dtype == ISO_F64 ? 1e-14 : 1e-6; }

typedef void each_parameter(const char *prefix, iso_parameter *parameter, const char *name);

static void load(const char *prefix, iso_parameter *parameter, const char *name) {
    iso_tensor *value;
    cr_ok(iso_parameter_value(parameter, &value));
    fixture_load(golden, prefix, name, value);
}

static void compare(const char *prefix, iso_parameter *parameter, const char *name) {
    iso_tensor *grad;
    char full[64];
    snprintf(full, sizeof(full), "%s.grad", prefix);
    cr_ok(iso_parameter_grad(parameter, &grad));
    fixture_compare(golden, full, name, grad, tolerance_of(iso_tensor_dtype(grad)));
}

static void for_parameters(iso_module *module, const char *prefix, each_parameter *body) {
    iso_parameter_list list;
    cr_ok(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++) body(prefix, list.item[i], list.name[i]);
    iso_parameter_list_destroy(&list);
}

// Output, gradient of the input and of the parameters, in one element type.
static void check_type(const char *name, iso_module *module, iso_dtype dtype) {
    iso_tensor *x = fixture_tensor_of(golden, device, dtype, name, "x"), *y, *dx;
    iso_tensor *dy = fixture_tensor_of(golden, device, dtype, name, "dy");
    cr_ok(iso_module_to(module, dtype));
    for_parameters(module, name, load);
    cr_ok(iso_module_forward(module, x, &y));
    fixture_compare(golden, name, "y", y, tolerance_of(dtype));
    iso_module_zero_grad(module);
    cr_ok(iso_module_backward(module, dy, &dx));
    fixture_compare(golden, name, "dx", dx, tolerance_of(dtype));
    for_parameters(module, name, compare);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
}

static iso_status create_conv(const iso_conv2d_config *config, iso_module **out) {
    iso_rng rng = {.seed = 1};
    return iso_conv2d_create(device, config, &rng, out);
}

static iso_status create_pool(iso_pool_kind kind, iso_pool2d_config config, iso_module **out) {
    return iso_pool2d_create(device, kind, &config, out);
}

static iso_status create_adaptive(int64_t height, int64_t width, iso_module **out) {
    return iso_adaptive_avg_pool2d_create(device, height, width, out);
}

static void check_both(const char *name, iso_status created, iso_module **module) {
    cr_ok(created);
    check_type(name, *module, ISO_F32);
    check_type(name, *module, ISO_F64);
    iso_module_destroy(module);
}

// create is a call that creates `module`.
#define CHECK(name, create)                                                                        \
    do {                                                                                           \
        iso_module *module = NULL;                                                                 \
        device = open_cpu();                                                                       \
        golden = fixture_open("conv_pool.txt");                                                    \
        check_both(name, create, &module);                                                         \
        fixture_close(&golden);                                                                    \
        close_cpu(&device);                                                                        \
    } while (0)
#define CONV(...)       create_conv(&(iso_conv2d_config){__VA_ARGS__}, &module)
#define POOL(kind, ...) create_pool(kind, (iso_pool2d_config){.kernel_size = __VA_ARGS__}, &module)

Test(torch_conv, projection_with_stride) {
    CHECK("projection", CONV(5, 4, .kernel_size = {1, 1}, .stride = {2, 2}, .no_bias = true));
}

Test(torch_conv, dilation) {
    CHECK("dilated", CONV(3, 4, .kernel_size = {3, 2}, .padding = {1, 2}, .dilation = {2, 3}));
}

Test(torch_conv, groups) {
    CHECK("groups",
          CONV(6, 9, .kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .groups = 3));
}

Test(torch_conv, groups_with_dilation) {
    CHECK("groups_dilated", CONV(4, 6, .kernel_size = {2, 3}, .stride = {1, 2}, .padding = {0, 2},
                                 .dilation = {2, 2}, .groups = 2));
}

Test(torch_conv, as_many_groups_as_channels) {
    CHECK("depthwise",
          CONV(18, 18, .kernel_size = {3, 3}, .padding = {2, 2}, .dilation = {2, 2}, .groups = 18));
    CHECK("depthwise_twice",
          CONV(5, 10, .kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .groups = 5));
}

Test(torch_conv, max_pool2d_with_padding) {
    CHECK("max", POOL(ISO_POOL_MAX, {3, 3}, .stride = {2, 2}, .padding = {1, 1}));
    CHECK("max_uneven", POOL(ISO_POOL_MAX, {3, 2}, .stride = {1, 2}, .padding = {0, 1}));
}

Test(torch_conv, avg_pool2d_counts_padding) {
    CHECK("avg", POOL(ISO_POOL_AVG, {2, 2}));
    CHECK("avg_padded", POOL(ISO_POOL_AVG, {3, 3}, .stride = {2, 2}, .padding = {1, 1}));
    CHECK("avg_uneven", POOL(ISO_POOL_AVG, {2, 3}, .stride = {1, 2}, .padding = {1, 0}));
}

Test(torch_conv, adaptive_avg_pool2d) {
    CHECK("global", create_adaptive(1, 1, &module));
    CHECK("adaptive", create_adaptive(3, 2, &module));
    CHECK("adaptive_larger", create_adaptive(5, 7, &module));
}
