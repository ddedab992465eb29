// SPDX-License-Identifier: MIT
// One parameter in several modules: lists, gradients, names in a state_dict, and what is refused.
#include "common/fixture.h"
#include "common/nn_fixture.h"
#include "nn/nn_impl.h"

#include <isotherm/optim.h>
#include <isotherm/state_dict.h>
#include <string.h>

TestSuite(tie, .timeout = 60);

static iso_device *device;
static iso_module *net; // a, b, c: 8 to 8; out: 8 to 5

static void add_linear(const char *name, int64_t in, int64_t out, bool tanh) {
    iso_rng rng = {.seed = (uint64_t)net->child_count + 1};
    iso_module *m;
    cr_ok(iso_linear_create(device, in, out, true, &rng, &m));
    cr_ok(iso_sequential_add_take(net, name, m));
    if (!tanh) return;
    cr_ok(iso_tanh_create(device, &m));
    cr_ok(iso_sequential_add_take(net, NULL, m));
}

static iso_module *make_net(void) {
    cr_ok(iso_sequential_create(device, &net));
    add_linear("a", 8, 8, true);
    add_linear("b", 8, 8, true);
    add_linear("c", 8, 8, true);
    add_linear("out", 8, 5, false);
    return net;
}

static iso_module *make_tied(void) {
    make_net();
    cr_ok(iso_module_tie(net, "b.weight", net, "a.weight"));
    cr_ok(iso_module_tie(net->child[4], "bias", net->child[0], "bias")); // c and a
    return net;
}

static void expect_names(int count, const char *const *name) {
    iso_parameter_list list;
    cr_ok(iso_module_parameters(net, &list));
    cr_assert_eq(list.count, count);
    for (int i = 0; i < count; i++) cr_assert_str_eq(list.name[i], name[i]);
    iso_parameter_list_destroy(&list);
}

static const char *const tied_names[] = {"a.weight", "a.bias",     "b.bias",
                                         "c.weight", "out.weight", "out.bias"};

// ---- One parameter --------------------------------------------------------------------------------

Test(tie, is_listed_once_under_its_first_name) {
    device = open_cpu();
    make_tied();
    expect_names(6, tied_names);
    cr_assert_eq(iso_module_parameter_count(net), 64 + 8 + 8 + 64 + 40 + 5);
    cr_ok(iso_module_tie(net, "a.weight", net, "b.weight")); // are one already
    cr_ok(iso_module_tie(net, "a.weight", net, "c.weight")); // leaves b with what both had
    expect_names(
        6, (const char *[]){"a.weight", "a.bias", "b.weight", "b.bias", "out.weight", "out.bias"});
    iso_module_destroy(&net);
    close_cpu(&device);
}

Test(tie, modules_are_destroyed_in_any_order) {
    for (int order = 0; order < 6; order++) {
        device = open_cpu();
        iso_module *m[3];
        iso_rng rng = {.seed = 3};
        for (int i = 0; i < 3; i++) cr_ok(iso_linear_create(device, 4, 4, true, &rng, &m[i]));
        cr_ok(iso_module_tie(m[1], "weight", m[0], "weight"));
        cr_ok(iso_module_tie(m[2], "weight", m[1], "weight"));
        cr_assert_eq(m[0]->parameter[0]->references, 3);
        int first = order / 2, second = (first + 1 + order % 2) % 3;
        iso_tensor *kept = iso_tensor_retain(m[3 - first - second]->parameter[0]->value);
        iso_module_destroy(&m[first]);
        iso_module_destroy(&m[second]);
        iso_module *left = m[3 - first - second];
        cr_assert(left->parameter[0]->value == kept && left->parameter[0]->references == 1);
        iso_tensor_destroy(&kept);
        iso_module_destroy(&left);
        close_cpu(&device);
    }
}

// ---- PyTorch's ------------------------------------------------------------------------------------

static void set_start(fixture *golden) {
    iso_parameter_list list;
    cr_ok(iso_module_parameters(net, &list));
    for (int i = 0; i < list.count; i++)
        fixture_load(golden, "start", list.name[i], list.item[i]->value);
    iso_parameter_list_destroy(&list);
}

static iso_tensor *batch_of(fixture *golden, int step, int32_t *labels) {
    iso_tensor *x;
    void *data;
    const double *from = fixture_get(golden, NULL, "x", NULL) + 64 * step;
    const double *label = fixture_get(golden, NULL, "labels", NULL) + 8 * step;
    cr_ok(iso_tensor_create(device, ISO_F64, 2, (int64_t[]){8, 8}, &x));
    cr_ok(iso_tensor_map(x, ISO_WRITE, &data));
    memcpy(data, from, 64 * sizeof(double));
    cr_ok(iso_tensor_unmap(x));
    for (int i = 0; i < 8; i++) labels[i] = (int32_t)label[i];
    return x;
}

static double train_step(fixture *golden, iso_loss *loss, iso_optimizer *optimizer, int step) {
    int32_t labels[8];
    double value;
    iso_tensor *x = batch_of(golden, step, labels), *out, *grad;
    iso_optimizer_zero_grad(optimizer);
    cr_ok(iso_module_forward(net, x, &out));
    cr_ok(iso_loss_compute(loss, out, labels, &value, NULL, &grad));
    cr_ok(iso_module_backward(net, grad, NULL));
    iso_tensor_destroy(&x);
    return value;
}

static void expect_gradients(fixture *golden) {
    iso_parameter_list list;
    cr_ok(iso_module_parameters(net, &list));
    for (int i = 0; i < list.count; i++)
        fixture_compare(golden, "grad", list.name[i], list.item[i]->grad, 1e-13);
    iso_parameter_list_destroy(&list);
}

static const char *const all_names[] = {"a.weight", "a.bias", "b.weight",   "b.bias",
                                        "c.weight", "c.bias", "out.weight", "out.bias"};

// Made f64 after it was tied: both see the new tensors.
Test(tie, trains_as_in_pytorch) {
    device = open_cpu();
    fixture *golden = fixture_open("tied.txt");
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_state_dict dict;
    hyper.lr = 0.1;
    hyper.momentum = 0.9;
    hyper.weight_decay = 0.01;
    make_tied();
    cr_ok(iso_module_to(net, ISO_F64));
    set_start(golden);
    cr_ok(iso_optimizer_create(ISO_SGD, net, &hyper, &optimizer));
    cr_ok(iso_loss_create(device, ISO_CROSS_ENTROPY, &loss));
    for (int step = 0; step < 6; step++) {
        double expected = fixture_get(golden, NULL, "losses", NULL)[step];
        cr_assert_float_eq(train_step(golden, loss, optimizer, step), expected, 1e-13 * expected);
        if (step == 0) expect_gradients(golden);
        cr_ok(iso_optimizer_step(optimizer));
    }
    cr_ok(iso_module_state_dict(net, &dict));
    cr_assert_eq(dict.count, 8);
    for (int i = 0; i < dict.count; i++) {
        cr_assert_str_eq(dict.item[i].name, all_names[i]);
        fixture_compare(golden, "end", dict.item[i].name, dict.item[i].tensor, 1e-13);
    }
    iso_state_dict_destroy(&dict);
    iso_loss_destroy(&loss);
    iso_optimizer_destroy(&optimizer);
    fixture_close(&golden);
    iso_module_destroy(&net);
    close_cpu(&device);
}

// ---- state_dict -----------------------------------------------------------------------------------

static void add_named(iso_state_dict *dict, const char *name, uint64_t seed) {
    int ndim = strstr(name, "weight") ? 2 : 1;
    int64_t rows = strncmp(name, "out", 3) == 0 ? 5 : 8;
    iso_tensor *t = random_tensor(device, ndim, (int64_t[]){rows, 8}, seed);
    cr_ok(iso_state_dict_add(dict, name, t));
    iso_tensor_destroy(&t);
}

// All eight names, but one.
static void load_without(const char *absent, uint64_t expected) {
    iso_state_dict dict = {0};
    iso_tensor *value = random_tensor(device, 2, (int64_t[]){8, 8}, expected);
    for (uint64_t i = 0; i < 8; i++)
        if (strcmp(all_names[i], absent) != 0) add_named(&dict, all_names[i], 10 + i);
    cr_ok(iso_module_load_state_dict(net, &dict, true, NULL));
    cr_assert(same_values(net->child[0]->parameter[0]->value, value));
    iso_tensor_destroy(&value);
    iso_state_dict_destroy(&dict);
}

Test(tie, loads_what_stands_under_any_of_its_names) {
    device = open_cpu();
    make_tied();
    load_without("", 12); // both: the last one, b.weight, as in PyTorch
    load_without("a.weight", 12);
    load_without("b.weight", 10);
    load_without("c.bias", 12);
    iso_state_dict dict = {0};
    for (uint64_t i = 0; i < 8; i++)
        if (i != 0 && i != 2) add_named(&dict, all_names[i], i); // under none
    cr_fails(iso_module_load_state_dict(net, &dict, true, NULL), ISO_ERR_MISMATCH,
             "2 tensors are missing (a.weight, b.weight)");
    iso_state_dict_destroy(&dict);
    iso_module_destroy(&net);
    close_cpu(&device);
}

// ---- What is refused ------------------------------------------------------------------------------

static iso_status no_forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)self;
    (void)call;
    *out = in;
    return ISO_OK;
}

Test(tie, is_refused_where_it_cannot_work) {
    static const iso_module_ops own_ops = {.type = "Own", .forward = no_forward};
    device = open_cpu();
    make_net();
    cr_fails(iso_module_tie(net, "a.weigth", net, "b.weight"), ISO_ERR_ARG, "\"a.weigth\"");
    cr_fails(iso_module_tie(net, "a.weight", net, "bb.weight"), ISO_ERR_ARG, "\"bb.weight\"");
    cr_fails(iso_module_tie(net, "a.weight", net, "out.weight"), ISO_ERR_SHAPE, "[5, 8]");
    cr_fails(iso_module_tie(net, "a.bias", net, "a.weight"), ISO_ERR_ARG, "both would be in one");
    cr_ok(iso_module_to(net->child[0], ISO_F64));
    cr_fails(iso_module_tie(net, "a.weight", net, "b.weight"), ISO_ERR_TYPE, "f64");

    iso_module *own = calloc(1, sizeof(*own));
    iso_parameter *p;
    cr_ok(iso_module_init(own, &own_ops, device));
    cr_ok(iso_module_add_parameter(own, "gain", 2, (int64_t[]){8, 8}, &p));
    cr_fails(iso_module_tie(own, "gain", net, "b.weight"), ISO_ERR_UNSUPPORTED, "`tied`");
    cr_ok(iso_module_tie(net, "b.weight", own, "gain")); // the other way there is no need
    cr_assert(net->child[2]->parameter[0] == p && p->references == 2);
    expect_names(8, all_names); // under the name that it has here
    cr_fails(iso_module_to(net, ISO_F64), ISO_ERR_STATE, "\"weight\" of Linear \"b\" is tied");

    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    iso_optimizer *optimizer;
    cr_ok(iso_optimizer_create(ISO_SGD, net, &hyper, &optimizer));
    cr_fails(iso_module_tie(net, "c.weight", net, "b.weight"), ISO_ERR_STATE, "tie it before");
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&own);
    iso_module_destroy(&net);
    close_cpu(&device);
}

// ---- Layers ---------------------------------------------------------------------------------------

static void run_backward(iso_module *model, iso_tensor *x) {
    iso_tensor *out;
    iso_module_zero_grad(model);
    cr_ok(iso_module_forward(model, x, &out));
    iso_tensor *up = random_tensor(device, iso_tensor_ndim(out), iso_tensor_shape(out), 6);
    cr_ok(iso_module_backward(model, up, NULL));
    iso_tensor_destroy(&up);
}

// What two parameters have in their gradients together; of the first alone when they are one.
static double *gradient_sum(const iso_parameter *p, const iso_parameter *q) {
    double *sum = tensor_doubles(p->grad), *more = tensor_doubles(q->grad);
    for (int64_t k = 0; p != q && k < iso_tensor_count(p->grad); k++) sum[k] += more[k];
    free(more);
    return sum;
}

// Two layers of a kind in a row, with parameters of their own that are equal, and then tied: what
// each got for itself adds up.
static void adds_up(iso_module *first, iso_module *second, int ndim, const int64_t *shape) {
    iso_module *model;
    iso_tensor *x = random_tensor(device, ndim, shape, 5);
    double *expected[2];
    cr_ok(iso_sequential_create(device, &model));
    cr_ok(iso_sequential_add_take(model, "first", first));
    cr_ok(iso_sequential_add_take(model, "second", second));
    for (int i = 0; i < 2; i++)
        cr_ok(iso_tensor_copy(first->parameter[i]->value, second->parameter[i]->value));
    run_backward(model, x);
    for (int i = 0; i < 2; i++)
        expected[i] = gradient_sum(first->parameter[i], second->parameter[i]);
    cr_ok(iso_module_tie(second, "weight", first, "weight"));
    cr_ok(iso_module_tie(first, "bias", second, "bias"));
    run_backward(model, x);
    for (int i = 0; i < 2; i++) {
        double *found = gradient_sum(first->parameter[i], second->parameter[i]);
        for (int64_t k = 0; k < iso_tensor_count(first->parameter[i]->grad); k++)
            cr_assert_float_eq(found[k], expected[i][k], 1e-4, "%s", first->ops->type);
        free(found);
        free(expected[i]);
    }
    iso_tensor_destroy(&x);
    iso_module_destroy(&model);
}

Test(tie, gradients_of_all_layers_add_up) {
    iso_module *m[2];
    iso_rng rng = {.seed = 4};
    iso_conv2d_config conv = {
        .in_channels = 3, .out_channels = 3, .kernel_size = {3, 3}, .padding = {1, 1}};
    iso_batch_norm_config batch = {.num_features = 3};
    iso_layer_norm_config layer = {.ndim = 2, .normalized_shape = {4, 4}};
    const int64_t image[4] = {5, 3, 4, 4}, rows[2] = {5, 6};
    device = open_cpu();
    for (int i = 0; i < 2; i++) cr_ok(iso_linear_create(device, 6, 6, true, &rng, &m[i]));
    adds_up(m[0], m[1], 2, rows);
    for (int i = 0; i < 2; i++) cr_ok(iso_conv2d_create(device, &conv, &rng, &m[i]));
    adds_up(m[0], m[1], 4, image);
    for (int i = 0; i < 2; i++) cr_ok(iso_batch_norm2d_create(device, &batch, &m[i]));
    adds_up(m[0], m[1], 4, image);
    for (int i = 0; i < 2; i++) cr_ok(iso_layer_norm_create(device, &layer, &m[i]));
    adds_up(m[0], m[1], 4, image);
    close_cpu(&device);
}

Test(tie, of_a_frozen_parameter_is_frozen) {
    device = open_cpu();
    make_net();
    net->child[0]->parameter[0]->requires_grad = false;
    cr_ok(iso_module_tie(net, "b.weight", net, "a.weight"));
    iso_tensor *x = random_tensor(device, 2, (int64_t[]){5, 8}, 5);
    run_backward(net, x);
    cr_assert_not(net->child[2]->parameter[0]->grad_valid);
    cr_assert(net->child[2]->parameter[1]->grad_valid);
    iso_tensor_destroy(&x);
    iso_module_destroy(&net);
    close_cpu(&device);
}
