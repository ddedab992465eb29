// SPDX-License-Identifier: MIT
// Layers, losses and a whole model against the values that PyTorch gives for the same weights and
// inputs.
#include "common/balance.h"
#include "common/fixture.h"

#include <isotherm/optim.h>

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

// Sums of up to 128 float32 products in another order, relative to the largest number of a tensor.
#define TOLERANCE 1e-6

static iso_device *device;

static void setup(void) { cr_assert_eq(iso_device_create("cpu", &device), ISO_OK); }

static void teardown(void) {
    iso_device_destroy(&device);
    balance_check();
}

TestSuite(torch, .timeout = 60, .init = setup, .fini = teardown);

// ---- Layers ---------------------------------------------------------------------------------------

static void load_parameters(fixture *f, const char *prefix, iso_module *module) {
    iso_parameter_list list;
    cr_assert_eq(iso_module_parameters(module, &list), ISO_OK);
    for (int i = 0; i < list.count; i++) {
        iso_tensor *value;
        cr_assert_eq(iso_parameter_value(list.item[i], &value), ISO_OK);
        fixture_load(f, prefix, list.name[i], value);
    }
    iso_parameter_list_destroy(&list);
}

static void compare_gradients(fixture *f, const char *prefix, iso_module *module) {
    iso_parameter_list list;
    cr_assert_eq(iso_module_parameters(module, &list), ISO_OK);
    for (int i = 0; i < list.count; i++) {
        iso_tensor *grad;
        cr_assert_eq(iso_parameter_grad(list.item[i], &grad), ISO_OK);
        fixture_compare(f, prefix, list.name[i], grad, TOLERANCE);
    }
    iso_parameter_list_destroy(&list);
}

// Output, gradient of the input and of the parameters. Takes module.
static void check_layer(const char *name, iso_module *module) {
    fixture *f = fixture_open("layers.txt");
    char gradients[64];
    snprintf(gradients, sizeof(gradients), "%s.grad", name);
    iso_tensor *x = fixture_tensor(f, device, name, "x"), *y, *dx;
    iso_tensor *dy = fixture_tensor(f, device, name, "dy");
    load_parameters(f, name, module);
    cr_assert_eq(iso_module_forward(module, x, &y), ISO_OK, "%s", iso_last_error()->message);
    fixture_compare(f, name, "y", y, TOLERANCE);
    cr_assert_eq(iso_module_backward(module, dy, &dx), ISO_OK, "%s", iso_last_error()->message);
    fixture_compare(f, name, "dx", dx, TOLERANCE);
    compare_gradients(f, gradients, module);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
    iso_module_destroy(&module);
    fixture_close(&f);
}

Test(torch, linear_is_torch_linear) {
    iso_rng rng = {.seed = 1};
    iso_module *module;
    cr_assert_eq(iso_linear_create(device, 7, 5, true, &rng, &module), ISO_OK);
    check_layer("linear", module);
}

static iso_module *new_conv(int64_t in, int64_t out, int64_t kernel, iso_conv2d_config config) {
    iso_rng rng = {.seed = 1};
    iso_module *module;
    config.in_channels = in;
    config.out_channels = out;
    if (kernel) config.kernel_size[0] = config.kernel_size[1] = kernel;
    cr_assert_eq(iso_conv2d_create(device, &config, &rng, &module), ISO_OK);
    return module;
}

Test(torch, conv2d_with_stride_and_uneven_kernel_is_torch_conv2d) {
    check_layer(
        "conv_strided",
        new_conv(3, 4, 0,
                 (iso_conv2d_config){.kernel_size = {3, 2}, .stride = {2, 1}, .padding = {1, 0}}));
}

Test(torch, conv2d_with_padding_is_torch_conv2d) {
    check_layer("conv_padded", new_conv(4, 8, 3, (iso_conv2d_config){.padding = {1, 1}}));
}

Test(torch, max_pool2d_is_torch_max_pool2d_on_ties_too) {
    iso_module *module;
    cr_assert_eq(iso_max_pool2d_create(device, 2, 2, &module), ISO_OK);
    check_layer("pool", module);
}

Test(torch, max_pool2d_with_overlapping_windows_is_torch_max_pool2d) {
    iso_module *module;
    cr_assert_eq(iso_max_pool2d_create(device, 3, 2, &module), ISO_OK);
    check_layer("pool_overlapping", module);
}

Test(torch, relu_is_torch_relu_at_zero_too) {
    iso_module *module;
    cr_assert_eq(iso_relu_create(device, &module), ISO_OK);
    check_layer("relu", module);
}

Test(torch, log_softmax_is_torch_log_softmax) {
    iso_module *module;
    cr_assert_eq(iso_log_softmax_create(device, &module), ISO_OK);
    check_layer("log_softmax", module);
}

// ---- Losses ---------------------------------------------------------------------------------------

#define MAX_LABELS 6

static void get_labels(fixture *f, const char *prefix, int32_t *labels) {
    int64_t count;
    const double *from = fixture_get(f, prefix, "labels", &count);
    cr_assert_leq(count, MAX_LABELS);
    for (int64_t i = 0; i < count; i++) labels[i] = (int32_t)from[i];
}

static void check_loss(const char *name, iso_loss_kind kind) {
    fixture *f = fixture_open("layers.txt");
    iso_tensor *x = fixture_tensor(f, device, name, "x"), *dx;
    iso_loss *loss;
    int32_t labels[MAX_LABELS];
    double value, expected = fixture_get(f, name, "loss", NULL)[0];
    get_labels(f, name, labels);
    cr_assert_eq(iso_loss_create(device, kind, &loss), ISO_OK);
    cr_assert_eq(iso_loss_compute(loss, x, labels, &value, NULL, &dx), ISO_OK);
    cr_assert_float_eq(value, expected, TOLERANCE * expected, "loss is %.9g, not %.9g", value,
                       expected);
    fixture_compare(f, name, "dx", dx, TOLERANCE);
    iso_loss_destroy(&loss);
    iso_tensor_destroy(&x);
    fixture_close(&f);
}

Test(torch, nll_is_torch_nll_loss) { check_loss("nll", ISO_NLL); }
Test(torch, cross_entropy_is_torch_cross_entropy) {
    check_loss("cross_entropy", ISO_CROSS_ENTROPY);
}

// ---- A whole model --------------------------------------------------------------------------------

typedef struct cnn {
    fixture *f;
    iso_module *net;
    iso_loss *loss;
    iso_tensor *x;
    int32_t labels[MAX_LABELS];
} cnn;

static void add(iso_module *net, const char *name, iso_module *layer) {
    cr_assert_eq(iso_sequential_add_take(net, name, layer), ISO_OK);
}

static iso_module *new_linear(int64_t in, int64_t out) {
    iso_rng rng = {.seed = 1};
    iso_module *module;
    cr_assert_eq(iso_linear_create(device, in, out, true, &rng, &module), ISO_OK);
    return module;
}

static iso_module *new_plain(iso_status (*create)(iso_device *, iso_module **)) {
    iso_module *module;
    cr_assert_eq(create(device, &module), ISO_OK);
    return module;
}

static iso_module *new_net(void) {
    iso_module *net = new_plain(iso_sequential_create), *pool;
    cr_assert_eq(iso_max_pool2d_create(device, 2, 2, &pool), ISO_OK);
    add(net, "conv1", new_conv(1, 4, 3, (iso_conv2d_config){0}));
    add(net, "relu1", new_plain(iso_relu_create));
    add(net, "conv2", new_conv(4, 8, 3, (iso_conv2d_config){0}));
    add(net, "relu2", new_plain(iso_relu_create));
    add(net, "pool", pool);
    add(net, "flatten", new_plain(iso_flatten_create));
    add(net, "fc1", new_linear(128, 16));
    add(net, "relu3", new_plain(iso_relu_create));
    add(net, "fc2", new_linear(16, 10));
    add(net, "log_softmax", new_plain(iso_log_softmax_create));
    return net;
}

static cnn cnn_open(void) {
    cnn m = {.f = fixture_open("cnn.txt"), .net = new_net()};
    m.x = fixture_tensor(m.f, device, NULL, "x");
    get_labels(m.f, NULL, m.labels);
    load_parameters(m.f, NULL, m.net);
    cr_assert_eq(iso_loss_create(device, ISO_NLL, &m.loss), ISO_OK);
    return m;
}

static void cnn_close(cnn *m) {
    iso_tensor_destroy(&m->x);
    iso_loss_destroy(&m->loss);
    iso_module_destroy(&m->net);
    fixture_close(&m->f);
}

static double forward_backward(cnn *m, iso_tensor **output) {
    iso_tensor *grad;
    double value;
    cr_assert_eq(iso_module_forward(m->net, m->x, output), ISO_OK, "%s", iso_last_error()->message);
    cr_assert_eq(iso_loss_compute(m->loss, *output, m->labels, &value, NULL, &grad), ISO_OK);
    cr_assert_eq(iso_module_backward(m->net, grad, NULL), ISO_OK, "%s", iso_last_error()->message);
    return value;
}

Test(torch, output_and_gradients_of_a_whole_model_are_torchs) {
    cnn m = cnn_open();
    iso_tensor *output;
    double expected = fixture_get(m.f, NULL, "losses", NULL)[0];
    double value = forward_backward(&m, &output);
    cr_assert_float_eq(value, expected, TOLERANCE * expected, "loss is %.9g, not %.9g", value,
                       expected);
    fixture_compare(m.f, NULL, "output", output, TOLERANCE);
    compare_gradients(m.f, "grad", m.net);
    cnn_close(&m);
}

// Sum and sum of squares.
static void compare_sums(fixture *f, const char *name, iso_parameter *parameter) {
    const double *expected = fixture_get(f, "after5", name, NULL);
    iso_tensor *value;
    void *memory;
    double sum = 0, squares = 0;
    cr_assert_eq(iso_parameter_value(parameter, &value), ISO_OK);
    cr_assert_eq(iso_tensor_map(value, ISO_READ, &memory), ISO_OK);
    for (int64_t i = 0; i < iso_tensor_count(value); i++) {
        double v = ((float *)memory)[i];
        sum += v;
        squares += v * v;
    }
    cr_assert_eq(iso_tensor_unmap(value), ISO_OK);
    cr_assert_float_eq(sum, expected[0], 1e-5, "%s: sum %.9g, not %.9g", name, sum, expected[0]);
    cr_assert_float_eq(squares, expected[1], 1e-5, "%s: sum of squares %.9g, not %.9g", name,
                       squares, expected[1]);
}

Test(torch, five_steps_of_training_are_torchs) {
    cnn m = cnn_open();
    iso_hyper hyper = {.lr = 0.05, .momentum = 0.9};
    iso_optimizer *optimizer;
    iso_parameter_list list;
    iso_tensor *output;
    const double *losses = fixture_get(m.f, NULL, "losses", NULL);
    cr_assert_eq(iso_optimizer_create(ISO_SGD, m.net, &hyper, &optimizer), ISO_OK);
    for (int t = 0; t < 6; t++) {
        iso_optimizer_zero_grad(optimizer);
        double value = forward_backward(&m, &output);
        cr_assert_float_eq(value, losses[t], 5e-6, "loss %d is %.9g, not %.9g", t, value,
                           losses[t]);
        if (t < 5) cr_assert_eq(iso_optimizer_step(optimizer), ISO_OK);
    }
    cr_assert_eq(iso_module_parameters(m.net, &list), ISO_OK);
    for (int i = 0; i < list.count; i++) compare_sums(m.f, list.name[i], list.item[i]);
    iso_parameter_list_destroy(&list);
    iso_optimizer_destroy(&optimizer);
    cnn_close(&m);
}
