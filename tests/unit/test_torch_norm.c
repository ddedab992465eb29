// SPDX-License-Identifier: MIT
// Normalisation, activations and residual blocks against the values that PyTorch gives for the same
// weights and inputs: batch norms over several batches with their running statistics, then in
// evaluation; a small ResNet over three steps.
#include "common/any_device.h"
#include "common/balance.h"
#include "common/fixture.h"
#include "common/nn_fixture.h"

#include "tensor/tensor_impl.h"

#include <isotherm/optim.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

// The values were computed in double precision and rounded to float32.
#define TOLERANCE 1e-6
// A gradient that nearly cancels is small beside the numbers it is the difference of.
#define GRADIENT_TOLERANCE 5e-6

static iso_device *device;
static fixture *f;

static void setup(void) { cr_ok(iso_device_create(test_device(), &device)); }

static void teardown(void) {
    iso_device_destroy(&device);
    balance_check();
}

TestSuite(torch_norm, .timeout = 60, .init = setup, .fini = teardown);

// ---- Comparing ----------------------------------------------------------------------------------

static void load_parameters(const char *prefix, iso_module *module) {
    iso_parameter_list list;
    cr_ok(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++) fixture_load(f, prefix, list.name[i], list.item[i]->value);
    iso_parameter_list_destroy(&list);
}

static void compare_gradients(const char *prefix, iso_module *module) {
    iso_parameter_list list;
    iso_tensor *grad;
    cr_ok(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++) {
        cr_ok(iso_parameter_grad(list.item[i], &grad));
        fixture_compare(f, prefix, list.name[i], grad, GRADIENT_TOLERANCE);
    }
    iso_parameter_list_destroy(&list);
}

static void compare_buffers(const char *prefix, iso_module *module) {
    iso_buffer_list list;
    void *memory;
    cr_ok(iso_module_buffers(module, &list));
    for (int i = 0; i < list.count; i++) {
        iso_tensor *value = list.item[i]->value;
        if (iso_tensor_dtype(value) == ISO_F32) {
            fixture_compare(f, prefix, list.name[i], value, GRADIENT_TOLERANCE);
            continue;
        }
        double want = fixture_get(f, prefix, list.name[i], NULL)[0];
        cr_ok(iso_tensor_map(value, ISO_READ, &memory));
        cr_assert_eq(*(int64_t *)memory, (int64_t)want, "%s", list.name[i]);
        cr_ok(iso_tensor_unmap(value));
    }
    iso_buffer_list_destroy(&list);
}

// As a convolution would hand it over.
static iso_tensor *in_layout(iso_tensor *t, iso_layout layout) {
    iso_tensor *to;
    if (iso_tensor_ndim(t) != 4 || layout == ISO_LAYOUT_LOGICAL) return t;
    cr_ok(iso_tensor_create(device, ISO_F32, 4, iso_tensor_shape(t), &to));
    cr_ok(iso_tensor_resize(to, 4, iso_tensor_shape(t), layout));
    cr_ok(iso_tensor_copy(t, to));
    iso_tensor_destroy(&t);
    return to;
}

static void forward_and_compare(const char *name, iso_module *module, iso_tensor *x) {
    iso_tensor *y;
    cr_ok(iso_module_forward(module, x, &y));
    fixture_compare(f, name, "y", y, TOLERANCE);
}

static void run(const char *name, iso_module *module, iso_layout layout) {
    char gradients[64];
    snprintf(gradients, sizeof(gradients), "%s.grad", name);
    iso_tensor *x = in_layout(fixture_tensor(f, device, name, "x"), layout), *dx;
    iso_tensor *dy = in_layout(fixture_tensor(f, device, name, "dy"), layout);
    forward_and_compare(name, module, x);
    iso_module_zero_grad(module);
    cr_ok(iso_module_backward(module, dy, &dx));
    fixture_compare(f, name, "dx", dx, GRADIENT_TOLERANCE);
    compare_gradients(gradients, module);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
}

// ---- Batch norms --------------------------------------------------------------------------------

// In a sequential, so that it can be in evaluation alone: gradients then pass all the same.
static void evaluate(const char *name, iso_module *module, iso_layout layout) {
    char full[64];
    iso_module *root;
    snprintf(full, sizeof(full), "%s.eval", name);
    cr_ok(iso_sequential_create(device, &root));
    cr_ok(iso_sequential_add_take(root, "bn", iso_module_retain(module)));
    cr_ok(iso_module_train(module, false));
    char gradients[80];
    snprintf(gradients, sizeof(gradients), "%s.grad", full);
    iso_tensor *x = in_layout(fixture_tensor(f, device, full, "x"), layout), *dx;
    iso_tensor *dy = in_layout(fixture_tensor(f, device, full, "dy"), layout);
    forward_and_compare(full, root, x);
    iso_module_zero_grad(root);
    cr_ok(iso_module_backward(root, dy, &dx));
    fixture_compare(f, full, "dx", dx, GRADIENT_TOLERANCE);
    compare_gradients(gradients, module);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
    iso_module_destroy(&root);
}

static void check_batch_norm(const char *name, bool two, iso_batch_norm_config config) {
    f = fixture_open("norm.txt");
    for (int layout = 0; layout < (two ? 2 : 1); layout++) {
        iso_module *module;
        char step[64];
        cr_ok((two ? iso_batch_norm2d_create : iso_batch_norm1d_create)(device, &config, &module));
        load_parameters(name, module);
        for (int t = 0; t < 3; t++) {
            snprintf(step, sizeof(step), "%s.%d", name, t);
            run(step, module, (iso_layout)layout);
            snprintf(step, sizeof(step), "%s.after%d", name, t);
            compare_buffers(step, module);
        }
        evaluate(name, module, (iso_layout)layout);
        snprintf(step, sizeof(step), "%s.after2", name);
        compare_buffers(step, module); // which evaluation leaves alone
        iso_module_destroy(&module);
    }
    fixture_close(&f);
}

Test(torch_norm, batch_norm1d_is_torch_batch_norm1d) {
    check_batch_norm("bn1d", false, (iso_batch_norm_config){.num_features = 5});
}
Test(torch_norm, batch_norm1d_of_sequences_is_torch_batch_norm1d) {
    check_batch_norm("bn1d_length", false,
                     (iso_batch_norm_config){.num_features = 3, .eps = 1e-3, .momentum = 0.3});
}
Test(torch_norm, batch_norm2d_is_torch_batch_norm2d_in_both_layouts) {
    check_batch_norm("bn2d", true, (iso_batch_norm_config){.num_features = 9});
}
Test(torch_norm, cumulative_average_is_torch_momentum_none) {
    check_batch_norm("bn2d_cumulative", true,
                     (iso_batch_norm_config){.num_features = 2, .cumulative_average = true});
}
Test(torch_norm, batch_norm_without_affine_is_torchs) {
    check_batch_norm("bn2d_plain", true,
                     (iso_batch_norm_config){.num_features = 2, .no_affine = true});
}
Test(torch_norm, batch_norm_without_running_statistics_is_torchs) {
    check_batch_norm("bn2d_no_statistics", true,
                     (iso_batch_norm_config){.num_features = 2, .no_running_stats = true});
}

// ---- Other layers -------------------------------------------------------------------------------

static void check_layer(const char *name, iso_module *module) {
    f = fixture_open("norm.txt");
    load_parameters(name, module);
    run(name, module, ISO_LAYOUT_LOGICAL);
    run(name, module, ISO_LAYOUT_BLOCKED);
    iso_module_destroy(&module);
    fixture_close(&f);
}

static iso_module *new_layer_norm(iso_layer_norm_config config) {
    iso_module *module;
    cr_ok(iso_layer_norm_create(device, &config, &module));
    return module;
}

Test(torch_norm, layer_norm_is_torch_layer_norm) {
    check_layer("layer_norm",
                new_layer_norm((iso_layer_norm_config){.ndim = 1, .normalized_shape = {7}}));
}
Test(torch_norm, layer_norm_of_images_is_torch_layer_norm_in_both_layouts) {
    check_layer("layer_norm_image", new_layer_norm((iso_layer_norm_config){
                                        .ndim = 3, .normalized_shape = {3, 4, 2}, .eps = 1e-3}));
}
Test(torch_norm, layer_norm_without_affine_is_torchs) {
    check_layer("layer_norm_plain", new_layer_norm((iso_layer_norm_config){
                                        .ndim = 2, .normalized_shape = {4, 2}, .no_affine = true}));
}

static iso_module *made(iso_status status, iso_module *const *module) {
    cr_ok(status);
    return *module;
}

Test(torch_norm, tanh_is_torch_tanh) {
    iso_module *m;
    check_layer("tanh", made(iso_tanh_create(device, &m), &m));
}
Test(torch_norm, sigmoid_is_torch_sigmoid) {
    iso_module *m;
    check_layer("sigmoid", made(iso_sigmoid_create(device, &m), &m));
}
Test(torch_norm, gelu_is_torch_gelu) {
    iso_module *m;
    check_layer("gelu", made(iso_gelu_create(device, false, &m), &m));
}
Test(torch_norm, approximate_gelu_is_torch_gelu_tanh) {
    iso_module *m;
    check_layer("gelu_tanh", made(iso_gelu_create(device, true, &m), &m));
}
Test(torch_norm, silu_is_torch_silu) {
    iso_module *m;
    check_layer("silu", made(iso_silu_create(device, &m), &m));
}
Test(torch_norm, leaky_relu_is_torch_leaky_relu) {
    iso_module *m;
    check_layer("leaky_relu", made(iso_leaky_relu_create(device, 0.2, &m), &m));
}
Test(torch_norm, elu_is_torch_elu) {
    iso_module *m;
    check_layer("elu", made(iso_elu_create(device, 1.5, &m), &m));
}
Test(torch_norm, softmax_is_torch_softmax) {
    iso_module *m;
    check_layer("softmax", made(iso_softmax_create(device, &m), &m));
}

// ---- A ResNet of two blocks ---------------------------------------------------------------------

static iso_rng rng;

static void add(iso_module *to, const char *name, iso_module *layer) {
    cr_ok(iso_sequential_add_take(to, name, layer));
}

static iso_module *new_sequential(void) {
    iso_module *m;
    return made(iso_sequential_create(device, &m), &m);
}

static void add_conv(iso_module *to, const char *name, int64_t in, int64_t out, int64_t kernel,
                     int64_t stride) {
    iso_module *m;
    iso_conv2d_config config = {.in_channels = in,
                                .out_channels = out,
                                .kernel_size = {kernel, kernel},
                                .stride = {stride, stride},
                                .padding = {kernel / 2, kernel / 2},
                                .no_bias = true};
    add(to, name, made(iso_conv2d_create(device, &config, &rng, &m), &m));
}

static void add_norm(iso_module *to, const char *name, int64_t features) {
    iso_module *m;
    iso_batch_norm_config config = {.num_features = features};
    add(to, name, made(iso_batch_norm2d_create(device, &config, &m), &m));
}

static void add_relu(iso_module *to) {
    iso_module *m;
    add(to, "relu", made(iso_relu_create(device, &m), &m));
}

// As torchvision's BasicBlock.
static iso_module *new_block(int64_t in, int64_t out, int64_t stride) {
    iso_module *body = new_sequential(), *shortcut = NULL, *block;
    add_conv(body, "conv1", in, out, 3, stride);
    add_norm(body, "bn1", out);
    add_relu(body);
    add_conv(body, "conv2", out, out, 3, 1);
    add_norm(body, "bn2", out);
    if (stride != 1 || in != out) {
        shortcut = new_sequential();
        add_conv(shortcut, NULL, in, out, 1, stride);
        add_norm(shortcut, NULL, out);
    }
    cr_ok(iso_residual_create_take(device, body, shortcut, true, &block));
    return block;
}

static iso_module *new_resnet(void) {
    iso_module *net = new_sequential(), *m;
    add_conv(net, "conv1", 3, 8, 3, 1);
    add_norm(net, "bn1", 8);
    add_relu(net);
    add(net, "layer1", new_block(8, 8, 1));
    add(net, "layer2", new_block(8, 10, 2));
    add(net, "flatten", made(iso_flatten_create(device, &m), &m));
    add(net, "fc", made(iso_linear_create(device, 90, 4, true, &rng, &m), &m));
    return net;
}

static double train_step(iso_module *net, iso_loss *loss, iso_tensor *x) {
    static const int32_t labels[] = {1, 3, 0, 2};
    iso_tensor *out, *grad;
    double value;
    cr_ok(iso_module_forward(net, x, &out));
    cr_ok(iso_loss_compute(loss, out, labels, &value, NULL, &grad));
    iso_module_zero_grad(net);
    cr_ok(iso_module_backward(net, grad, NULL));
    return value;
}

static void check_resnet(const char *kernels) {
    setenv("ISO_CPU_KERNELS", kernels, 1);
    iso_device_destroy(&device);
    if (iso_device_create(test_device(), &device) < 0) return;
    f = fixture_open("resnet.txt");
    iso_module *net = new_resnet();
    iso_tensor *x = fixture_tensor(f, device, NULL, "x"), *out;
    iso_loss *loss;
    iso_optimizer *optimizer;
    iso_hyper hyper = {.lr = 0.01, .momentum = 0.9};
    const double *losses = fixture_get(f, NULL, "losses", NULL);
    load_parameters(NULL, net);
    cr_ok(iso_loss_create(device, ISO_CROSS_ENTROPY, &loss));
    cr_ok(iso_optimizer_create(ISO_SGD, net, &hyper, &optimizer));
    for (int t = 0; t < 3; t++) {
        double value = train_step(net, loss, x);
        cr_assert_float_eq(value, losses[t], 2e-6 * losses[t], "loss %d is %.9g, not %.9g", t,
                           value, losses[t]);
        if (t == 0) {
            compare_gradients("grad", net);
            compare_buffers("after0", net);
        }
        cr_ok(iso_optimizer_step(optimizer));
    }
    compare_buffers("after2", net);
    cr_ok(iso_module_train(net, false));
    cr_ok(iso_module_forward(net, x, &out));
    fixture_compare(f, NULL, "eval", out, GRADIENT_TOLERANCE);
    iso_optimizer_destroy(&optimizer);
    iso_loss_destroy(&loss);
    iso_tensor_destroy(&x);
    iso_module_destroy(&net);
    fixture_close(&f);
}

Test(torch_norm, three_steps_of_a_resnet_are_torchs) { check_resnet("onednn"); }
Test(torch_norm, three_steps_of_a_resnet_are_torchs_with_plain_kernels) {
    check_resnet("reference");
}
