// SPDX-License-Identifier: MIT
// Losses, and training in f64 with every optimizer, against the values of PyTorch in float64.
#include "common/fixture.h"
#include "common/nn_fixture.h"

#include <isotherm/optim.h>
#include <math.h>
#include <string.h>

TestSuite(torch_types, .timeout = 60);

enum { ROWS = 6 };
static iso_device *device;
static fixture *golden;

static void open_all(void) {
    device = open_cpu();
    golden = fixture_open("types.txt");
}

static void close_all(void) {
    fixture_close(&golden);
    close_cpu(&device);
}

static void get_labels(const char *prefix, const char *name, int32_t *labels) {
    int64_t count;
    const double *from = fixture_get(golden, prefix, name, &count);
    cr_assert_eq(count, ROWS);
    for (int i = 0; i < ROWS; i++) labels[i] = (int32_t)from[i];
}

static double tolerance_of(iso_dtype dtype) { return dtype == ISO_F64 ? 1e-14 : 1e-6; }

// ---- Losses ---------------------------------------------------------------------------------------

static void check(iso_dtype dtype, const char *name, double value, iso_tensor *grad) {
    double expected = fixture_get(golden, name, "loss", NULL)[0];
    cr_assert_eq(iso_tensor_dtype(grad), dtype);
    cr_assert_float_eq(value, expected, tolerance_of(dtype) * expected,
                       "%s: loss is %.17g, not %.17g", name, value, expected);
    fixture_compare(golden, name, "dx", grad, tolerance_of(dtype));
}

static void check_labels(iso_dtype dtype, const char *name, iso_loss_config config) {
    iso_tensor *x = fixture_tensor_of(golden, device, dtype, name, "x"), *grad;
    iso_loss *loss;
    int32_t labels[ROWS];
    double value;
    get_labels(name, "target", labels);
    cr_ok(iso_loss_create_with(device, &config, &loss));
    cr_ok(iso_loss_compute(loss, x, labels, &value, NULL, &grad));
    check(dtype, name, value, grad);
    iso_loss_destroy(&loss);
    iso_tensor_destroy(&x);
}

static void check_targets(iso_dtype dtype, iso_layout layout) {
    iso_tensor *x = fixture_tensor_of(golden, device, dtype, "mse", "x"), *blocked, *grad;
    iso_tensor *target = fixture_tensor_of(golden, device, dtype, "mse", "target");
    iso_loss *loss;
    double value;
    cr_ok(iso_tensor_create(device, dtype, 4, iso_tensor_shape(x), &blocked));
    cr_ok(iso_tensor_resize(blocked, 4, iso_tensor_shape(x), layout));
    cr_ok(iso_tensor_copy(x, blocked));
    cr_ok(iso_loss_create(device, ISO_MSE, &loss));
    cr_ok(iso_loss_compute_tensor(loss, blocked, target, &value, &grad));
    check(dtype, "mse", value, grad);
    iso_loss_destroy(&loss);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&blocked);
    iso_tensor_destroy(&target);
}

Test(torch_types, mse_is_torch_mse_loss) {
    open_all();
    check_targets(ISO_F32, ISO_LAYOUT_LOGICAL);
    check_targets(ISO_F32, ISO_LAYOUT_BLOCKED);
    check_targets(ISO_F64, ISO_LAYOUT_LOGICAL);
    for (int i = 0; i < 2; i++)
        check_labels(i ? ISO_F64 : ISO_F32, "mse_labels", (iso_loss_config){.kind = ISO_MSE});
    close_all();
}

Test(torch_types, label_smoothing_is_torchs) {
    open_all();
    for (int i = 0; i < 2; i++) {
        iso_dtype dtype = i ? ISO_F64 : ISO_F32;
        check_labels(dtype, "smoothing10",
                     (iso_loss_config){.kind = ISO_CROSS_ENTROPY, .label_smoothing = 0.1});
        check_labels(dtype, "smoothing50",
                     (iso_loss_config){.kind = ISO_CROSS_ENTROPY, .label_smoothing = 0.5});
        check_labels(dtype, "smoothing100",
                     (iso_loss_config){.kind = ISO_CROSS_ENTROPY, .label_smoothing = 1});
    }
    close_all();
}

// ---- Training -------------------------------------------------------------------------------------

static void add(iso_module *net, iso_status made, const char *name, iso_module **layer) {
    cr_ok(made);
    cr_ok(iso_sequential_add_take(net, name, *layer));
}

static iso_module *new_net(void) {
    iso_rng rng = {.seed = 5};
    iso_module *net, *m = NULL;
    iso_conv2d_config c = {
        .in_channels = 1, .out_channels = 3, .kernel_size = {3, 3}, .padding = {1, 1}};
    iso_parameter_list list;
    cr_ok(iso_sequential_create(device, &net));
    add(net, iso_conv2d_create(device, &c, &rng, &m), "conv", &m);
    add(net, iso_relu_create(device, &m), "relu", &m);
    add(net, iso_max_pool2d_create(device, 2, 2, &m), "pool", &m);
    add(net, iso_flatten_create(device, &m), "flatten", &m);
    add(net, iso_linear_create(device, 27, 10, true, &rng, &m), "fc", &m);
    cr_ok(iso_module_to(net, ISO_F64));
    cr_ok(iso_module_parameters(net, &list));
    for (int i = 0; i < list.count; i++)
        fixture_load(golden, "train", list.name[i], list.item[i]->value);
    iso_parameter_list_destroy(&list);
    return net;
}

static void check_training(const char *name, iso_module *net, iso_optimizer *optimizer) {
    iso_tensor *x = fixture_tensor_of(golden, device, ISO_F64, "train", "x"), *out, *grad;
    const double *losses = fixture_get(golden, name, "losses", NULL);
    iso_loss *loss;
    iso_parameter_list list;
    int32_t labels[ROWS];
    get_labels("train", "labels", labels);
    cr_ok(iso_loss_create_with(
        device, &(iso_loss_config){.kind = ISO_CROSS_ENTROPY, .label_smoothing = 0.1}, &loss));
    for (int t = 0; t < 8; t++) {
        double value;
        iso_optimizer_zero_grad(optimizer);
        cr_ok(iso_module_forward(net, x, &out));
        cr_ok(iso_loss_compute(loss, out, labels, &value, NULL, &grad));
        cr_assert_float_eq(value, losses[t], 1e-13, "%s: loss %d is %.17g, not %.17g", name, t,
                           value, losses[t]);
        cr_ok(iso_module_backward(net, grad, NULL));
        if (t < 7) cr_ok(iso_optimizer_step(optimizer));
    }
    cr_ok(iso_module_parameters(net, &list));
    for (int i = 0; i < list.count; i++)
        fixture_compare(golden, name, list.name[i], list.item[i]->value, 1e-12);
    iso_parameter_list_destroy(&list);
    iso_tensor_destroy(&x);
    iso_loss_destroy(&loss);
}

static void train(const char *name, iso_optimizer_kind kind, iso_hyper hyper) {
    static const char *const sets[] = {"onednn", "cblas", "reference"};
    for (int i = 0; i < 3; i++) {
        setenv("ISO_CPU_KERNELS", sets[i], 1);
        if (iso_device_create("cpu", &device) < 0) continue;
        golden = fixture_open("types.txt");
        iso_module *net = new_net();
        iso_optimizer *optimizer;
        cr_ok(iso_optimizer_create(kind, net, &hyper, &optimizer));
        check_training(name, net, optimizer);
        iso_optimizer_destroy(&optimizer);
        iso_module_destroy(&net);
        close_all();
    }
}

Test(torch_types, sgd_in_f64_is_torchs) {
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    hyper.lr = 0.05;
    hyper.momentum = 0.9;
    hyper.weight_decay = 0.01;
    train("sgd", ISO_SGD, hyper);
}

Test(torch_types, adam_in_f64_is_torchs) {
    iso_hyper hyper = iso_hyper_default(ISO_ADAM);
    hyper.lr = 0.01;
    train("adam", ISO_ADAM, hyper);
}

Test(torch_types, adamw_in_f64_is_torchs) {
    iso_hyper hyper = iso_hyper_default(ISO_ADAMW);
    hyper.lr = 0.01;
    hyper.weight_decay = 0.1;
    train("adamw", ISO_ADAMW, hyper);
}

Test(torch_types, adadelta_in_f64_is_torchs) {
    train("adadelta", ISO_ADADELTA, iso_hyper_default(ISO_ADADELTA));
}
