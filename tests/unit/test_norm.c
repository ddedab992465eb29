// SPDX-License-Identifier: MIT
// Normalisation layers as modules: fusion, shapes, types, and lists of layers.
#include "common/nn_fixture.h"

#include "tensor/tensor_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(norm, .timeout = 60);

static iso_device *device;

static iso_module *new_batch_norm(bool two, int64_t features) {
    iso_module *m;
    iso_batch_norm_config c = {.num_features = features};
    cr_ok((two ? iso_batch_norm2d_create : iso_batch_norm1d_create)(device, &c, &m));
    return m;
}

// Weights and biases that are not those of the start.
static void vary(iso_module *module) {
    for (int i = 0; i < module->parameter_count; i++) {
        iso_tensor *value = module->parameter[i]->value;
        iso_tensor *other = random_tensor(device, value->ndim, value->shape, 30 + (uint64_t)i);
        cr_ok(iso_tensor_copy(other, value));
        iso_tensor_destroy(&other);
    }
}

// ---- Fusion -------------------------------------------------------------------------------------

typedef struct results {
    iso_tensor *out, *dx; // borrowed from the modules
} results;

static results together(iso_module *norm, iso_module *relu, iso_tensor *x, iso_tensor *dy) {
    iso_module *net;
    results r;
    cr_ok(iso_sequential_create(device, &net));
    cr_ok(iso_sequential_add_take(net, NULL, iso_module_retain(norm)));
    cr_ok(iso_sequential_add_take(net, NULL, iso_module_retain(relu)));
    cr_ok(iso_module_forward(net, x, &r.out));
    cr_ok(iso_module_backward(net, dy, &r.dx));
    iso_module_destroy(&net);
    return r;
}

static results apart(iso_module *norm, iso_module *relu, iso_tensor *x, iso_tensor *dy) {
    results r;
    cr_ok(iso_module_forward(norm, x, &r.out));
    cr_ok(iso_module_forward(relu, r.out, &r.out));
    cr_ok(iso_module_backward(relu, dy, &r.dx));
    cr_ok(iso_module_backward(norm, r.dx, &r.dx));
    return r;
}

Test(norm, fused_relu_gives_the_bits_of_a_relu_behind_it) {
    device = open_cpu();
    int64_t shape[] = {3, 11, 5, 6};
    iso_module *norm[2], *relu;
    iso_tensor *x = random_tensor(device, 4, shape, 1), *dy[2];
    results r[2];
    cr_ok(iso_relu_create(device, &relu));
    for (int i = 0; i < 2; i++) {
        norm[i] = new_batch_norm(true, 11);
        vary(norm[i]);
        dy[i] = random_tensor(device, 4, shape, 2);
        r[i] = (i ? apart : together)(norm[i], relu, x, dy[i]);
    }
    cr_assert(same_values(r[0].out, r[1].out) && same_values(r[0].dx, r[1].dx));
    for (int i = 0; i < 2; i++)
        cr_assert(same_values(norm[0]->parameter[i]->grad, norm[1]->parameter[i]->grad));
    iso_tensor_destroy(&x);
    for (int i = 0; i < 2; i++) {
        iso_tensor_destroy(&dy[i]);
        iso_module_destroy(&norm[i]);
    }
    iso_module_destroy(&relu);
    close_cpu(&device);
}

// ---- Shapes -------------------------------------------------------------------------------------

static void refuses(iso_module *module, int ndim, const int64_t *shape, const char *part) {
    iso_tensor *x = random_tensor(device, ndim, shape, 1), *out;
    cr_fails(iso_module_forward(module, x, &out), ISO_ERR_SHAPE, part);
    iso_tensor_destroy(&x);
}

static void takes(iso_module *module, int ndim, const int64_t *shape) {
    iso_tensor *x = random_tensor(device, ndim, shape, 1), *out;
    cr_ok(iso_module_forward(module, x, &out));
    iso_tensor_destroy(&x);
}

Test(norm, shapes_are_those_of_pytorch) {
    device = open_cpu();
    iso_module *one = new_batch_norm(false, 3), *two = new_batch_norm(true, 3);
    refuses(one, 4, (int64_t[]){2, 3, 4, 4}, "[N, 3] or [N, 3, L]");
    refuses(one, 2, (int64_t[]){2, 4}, "[N, 3]");
    refuses(two, 3, (int64_t[]){2, 3, 4}, "[N, 3, H, W]");
    refuses(two, 4, (int64_t[]){2, 5, 4, 4}, "[N, 3, H, W]");
    takes(one, 2, (int64_t[]){2, 3});
    takes(one, 3, (int64_t[]){1, 3, 2});
    iso_module_destroy(&one);
    iso_module_destroy(&two);
    close_cpu(&device);
}

static int64_t batches_counted(const iso_module *norm) {
    void *host;
    cr_ok(iso_tensor_map(norm->buffer[2]->value, ISO_READ, &host));
    int64_t count = *(int64_t *)host;
    cr_ok(iso_tensor_unmap(norm->buffer[2]->value));
    return count;
}

Test(norm, one_value_per_channel_is_refused_in_training_only) {
    device = open_cpu();
    iso_module *two = new_batch_norm(true, 3), *none;
    refuses(two, 4, (int64_t[]){1, 3, 1, 1}, "more than one value per channel");
    cr_assert_eq(batches_counted(two), 0);
    takes(two, 4, (int64_t[]){2, 3, 1, 1});
    cr_assert_eq(batches_counted(two), 1);
    cr_ok(iso_module_train(two, false));
    takes(two, 4, (int64_t[]){1, 3, 1, 1});
    cr_assert_eq(batches_counted(two), 1);
    iso_batch_norm_config c = {.num_features = 3, .no_running_stats = true};
    cr_ok(iso_batch_norm1d_create(device, &c, &none));
    cr_ok(iso_module_train(none, false)); // has only the batch, in evaluation too
    refuses(none, 2, (int64_t[]){1, 3}, "more than one value per channel");
    iso_module_destroy(&two);
    iso_module_destroy(&none);
    close_cpu(&device);
}

Test(norm, layer_norm_names_the_shape_it_wants) {
    device = open_cpu();
    iso_module *m;
    iso_layer_norm_config c = {.ndim = 2, .normalized_shape = {3, 4}};
    cr_ok(iso_layer_norm_create(device, &c, &m));
    refuses(m, 2, (int64_t[]){4, 3}, "[3, 4]");
    refuses(m, 1, (int64_t[]){4}, "[3, 4]");
    takes(m, 2, (int64_t[]){3, 4});
    iso_module_destroy(&m);
    close_cpu(&device);
}

Test(norm, settings_without_a_meaning_are_refused) {
    device = open_cpu();
    iso_module *m;
    iso_batch_norm_config b[] = {
        {.num_features = 0}, {.num_features = 2, .eps = -1}, {.num_features = 2, .momentum = 1.5}};
    for (int i = 0; i < 3; i++)
        cr_fails(iso_batch_norm2d_create(device, &b[i], &m), ISO_ERR_ARG, "BatchNorm2d");
    iso_layer_norm_config l[] = {{.ndim = 0},
                                 {.ndim = ISO_MAX_DIMS + 1},
                                 {.ndim = 1},
                                 {.ndim = 1, .normalized_shape = {2}, .eps = -1}};
    for (int i = 0; i < 4; i++)
        cr_fails(iso_layer_norm_create(device, &l[i], &m), ISO_ERR_ARG, "LayerNorm");
    cr_fails(iso_leaky_relu_create(device, NAN, &m), ISO_ERR_ARG, "LeakyReLU");
    cr_fails(iso_elu_create(device, INFINITY, &m), ISO_ERR_ARG, "ELU");
    close_cpu(&device);
}

// ---- Types, memory, lists -----------------------------------------------------------------------

static double running_mean(const iso_module *norm, int channel) {
    double *values = tensor_doubles(norm->buffer[0]->value), value = values[channel];
    free(values);
    return value;
}

Test(norm, statistics_follow_the_type_of_the_module_and_counts_stay) {
    device = open_cpu();
    iso_module *m = new_batch_norm(true, 3);
    takes(m, 4, (int64_t[]){2, 3, 4, 4});
    double before = running_mean(m, 1);
    cr_ok(iso_module_to(m, ISO_F64));
    cr_assert(m->buffer[0]->value->dtype == ISO_F64 && m->buffer[1]->value->dtype == ISO_F64);
    cr_assert(running_mean(m, 1) == before && before != 0);
    cr_assert(m->buffer[2]->value->dtype == ISO_I64 && batches_counted(m) == 1);
    iso_module_destroy(&m);
    close_cpu(&device);
}

Test(norm, alternating_batches_allocate_nothing) {
    device = open_cpu();
    iso_module *m = new_batch_norm(true, 9);
    iso_tensor *x[2], *dy[2], *out, *dx;
    long long before = 0, after;
    for (int i = 0; i < 2; i++) {
        int64_t shape[] = {3 + i, 9, 4, 4};
        x[i] = random_tensor(device, 4, shape, 1);
        dy[i] = random_tensor(device, 4, shape, 2);
    }
    for (int step = 0; step < 8; step++) {
        if (step == 2) iso_memory_balance(NULL, NULL, &before);
        cr_ok(iso_module_forward(m, x[step % 2], &out));
        cr_ok(iso_module_backward(m, dy[step % 2], &dx));
    }
    iso_memory_balance(NULL, NULL, &after);
    cr_assert_eq(after, before);
    for (int i = 0; i < 2; i++) {
        iso_tensor_destroy(&x[i]);
        iso_tensor_destroy(&dy[i]);
    }
    iso_module_destroy(&m);
    close_cpu(&device);
}

Test(norm, lists_of_layers_hold_norms_and_activations) {
    device = open_cpu();
    static const char *const types[] = {"Conv2d",  "BatchNorm2d", "ReLU",      "LayerNorm", "Tanh",
                                        "Flatten", "BatchNorm1d", "LayerNorm", "Sigmoid",   "GELU",
                                        "SiLU",    "LeakyReLU",   "ELU",       "Linear"};
    const iso_layer layers[] = {{.kind = ISO_CONV2D, .out = 4, .size = 3},
                                {.kind = ISO_BATCH_NORM, .relu = true},
                                {.kind = ISO_LAYER_NORM},
                                {.kind = ISO_TANH},
                                {.kind = ISO_FLATTEN},
                                {.kind = ISO_BATCH_NORM},
                                {.kind = ISO_LAYER_NORM},
                                {.kind = ISO_SIGMOID},
                                {.kind = ISO_GELU},
                                {.kind = ISO_SILU},
                                {.kind = ISO_LEAKY_RELU},
                                {.kind = ISO_ELU},
                                {.kind = ISO_LINEAR, .out = 3}};
    iso_rng rng = {.seed = 1};
    iso_module *net;
    cr_ok(iso_sequential_build(device, (int64_t[]){2, 6, 6}, layers, 13, &rng, &net));
    cr_assert_eq(net->child_count, 14);
    for (int i = 0; i < 14; i++) cr_assert_str_eq(net->child[i]->ops->type, types[i]);
    takes(net, 4, (int64_t[]){3, 2, 6, 6});
    iso_module_destroy(&net);
    close_cpu(&device);
}
