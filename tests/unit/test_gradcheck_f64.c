// SPDX-License-Identifier: MIT
// Every layer in f64 against central differences of itself.
#include "common/nn_fixture.h"
#include "tensor/tensor_impl.h"

#include <math.h>

TestSuite(gradcheck_f64, .timeout = 60);

// The differences have an error of about STEP^2, and of 1e-16 / STEP from rounding.
#define STEP      1e-5
#define TOLERANCE 1e-8

static iso_device *device;

typedef struct layer_check {
    iso_module *module; // owned
    iso_tensor *in, *weight;
    iso_parameter_list list;
} layer_check;

// The outputs of random layers change from forward to forward.
static void rewind_masks(iso_module *module) {
    module->forward_number = 0;
    for (int i = 0; i < module->child_count; i++) rewind_masks(module->child[i]);
}

// Sum of weight * output.
static double objective(layer_check *c) {
    iso_tensor *out;
    rewind_masks(c->module);
    cr_ok(iso_module_forward(c->module, c->in, &out));
    double *y = tensor_doubles(out), *w = tensor_doubles(c->weight), sum = 0;
    for (int64_t i = 0; i < iso_tensor_count(out); i++) sum += w[i] * y[i];
    free(y), free(w);
    return sum;
}

// `values` are the logical numbers of a parameter or of the input, which the module reads.
static void compare(layer_check *c, const char *what, double *values, const double *gradient,
                    int64_t count) {
    double largest = 1;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(gradient[i]));
    for (int64_t i = 0; i < count; i++) {
        double kept = values[i];
        values[i] = kept + STEP;
        double above = objective(c);
        values[i] = kept - STEP;
        double wanted = (above - objective(c)) / (2 * STEP);
        values[i] = kept;
        cr_assert(fabs(gradient[i] - wanted) <= TOLERANCE * largest,
                  "%s: gradient of %s[%lld] is %.12g, differences give %.12g", c->module->ops->type,
                  what, (long long)i, gradient[i], wanted);
    }
}

static void compare_all(layer_check *c) {
    iso_tensor *grad_in;
    iso_tensor *given = random_tensor_of(device, ISO_F64, c->weight->ndim, c->weight->shape, 12);
    (void)objective(c);
    iso_module_zero_grad(c->module);
    cr_ok(iso_module_backward(c->module, given, &grad_in));
    double *g = tensor_doubles(grad_in);
    compare(c, "the input", c->in->data, g, c->in->count);
    free(g);
    for (int i = 0; i < c->list.count; i++) {
        iso_parameter *p = c->list.item[i];
        g = tensor_doubles(p->grad);
        compare(c, c->list.name[i], p->value->data, g, p->value->count);
        free(g);
    }
    iso_tensor_destroy(&given);
}

// Takes module.
static void check(iso_module *module, int ndim, const int64_t *shape) {
    layer_check c = {.module = module};
    iso_tensor *out;
    cr_ok(iso_module_to(module, ISO_F64));
    cr_ok(iso_module_parameters(module, &c.list));
    c.in = random_tensor_of(device, ISO_F64, ndim, shape, 11);
    cr_ok(iso_module_forward(module, c.in, &out));
    c.weight = random_tensor_of(device, ISO_F64, out->ndim, out->shape, 12);
    compare_all(&c);
    iso_tensor_destroy(&c.in);
    iso_tensor_destroy(&c.weight);
    iso_parameter_list_destroy(&c.list);
    iso_module_destroy(&c.module);
}

// ---- The layers -----------------------------------------------------------------------------------

static const int64_t planes[4] = {2, 4, 5, 6}, rows[2] = {4, 7};
static iso_rng rng;

// Runs the body on each kernel set.
static void on_each_set(void (*body)(void)) {
    static const char *const sets[] = {"onednn", "cblas", "reference"};
    for (int i = 0; i < 3; i++) {
        setenv("ISO_CPU_KERNELS", sets[i], 1);
        if (iso_device_create("cpu", &device) < 0) continue;
        rng = (iso_rng){.seed = 9};
        body();
        close_cpu(&device);
    }
}

static void linear(void) {
    for (int bias = 0; bias < 2; bias++) {
        iso_module *m;
        cr_ok(iso_linear_create(device, 7, 3, bias, &rng, &m));
        check(m, 2, rows);
    }
}
Test(gradcheck_f64, linear) { on_each_set(linear); }

static void conv2d(void) {
    static const iso_conv2d_config configs[] = {
        {4, 3, {3, 3}, {1, 1}, {1, 1}, false, {1, 1}, 1},
        {4, 2, {2, 3}, {2, 1}, {0, 1}, true, {0, 0}, 0},
        {4, 6, {3, 2}, {1, 2}, {2, 0}, false, {2, 1}, 2},
        {4, 4, {3, 3}, {1, 1}, {0, 0}, false, {1, 1}, 4},
    };
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        iso_module *m;
        cr_ok(iso_conv2d_create(device, &configs[i], &rng, &m));
        check(m, 4, planes);
    }
}
Test(gradcheck_f64, conv2d) { on_each_set(conv2d); }

static void pools(void) {
    iso_module *m;
    cr_ok(iso_max_pool2d_create(device, 2, 2, &m));
    check(m, 4, planes);
    iso_pool2d_config c = {.kernel_size = {3, 2}, .stride = {1, 2}, .padding = {1, 1}};
    for (int kind = ISO_POOL_MAX; kind <= ISO_POOL_AVG; kind++) {
        cr_ok(iso_pool2d_create(device, (iso_pool_kind)kind, &c, &m));
        check(m, 4, planes);
    }
    cr_ok(iso_adaptive_avg_pool2d_create(device, 3, 4, &m));
    check(m, 4, planes);
}
Test(gradcheck_f64, pools) { on_each_set(pools); }

static void activations(void) {
    iso_status (*const create[])(iso_device *, iso_module **) = {
        iso_relu_create,    iso_tanh_create,    iso_sigmoid_create, iso_log_softmax_create,
        iso_softmax_create, iso_flatten_create, iso_silu_create};
    iso_module *m;
    for (size_t i = 0; i < sizeof(create) / sizeof(create[0]); i++) {
        cr_ok(create[i](device, &m));
        check(m, 2, rows);
    }
    for (int approximate = 0; approximate < 2; approximate++) {
        cr_ok(iso_gelu_create(device, approximate, &m));
        check(m, 2, rows);
    }
    cr_ok(iso_leaky_relu_create(device, 0.2, &m));
    check(m, 2, rows);
    cr_ok(iso_elu_create(device, 1.5, &m));
    check(m, 2, rows);
}
Test(gradcheck_f64, activations) { on_each_set(activations); }

static void dropouts(void) {
    iso_module *m;
    cr_ok(iso_dropout_create(device, 0.4, &rng, &m));
    check(m, 4, planes);
    cr_ok(iso_dropout2d_create(device, 0.4, &rng, &m));
    check(m, 4, planes);
}
Test(gradcheck_f64, dropouts) { on_each_set(dropouts); }

// Weights and biases that are not those of the start.
static iso_module *vary(iso_module *module) {
    iso_parameter_list list;
    cr_ok(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++) {
        iso_tensor *value = list.item[i]->value;
        iso_tensor *other = random_tensor(device, value->ndim, value->shape, 30 + (uint64_t)i);
        cr_ok(iso_tensor_copy(other, value));
        iso_tensor_destroy(&other);
    }
    iso_parameter_list_destroy(&list);
    return module;
}

static void norms(void) {
    iso_module *m;
    for (int i = 0; i < 4; i++) {
        iso_batch_norm_config b = {
            .num_features = 4, .no_affine = i & 1, .no_running_stats = i & 2};
        cr_ok(iso_batch_norm2d_create(device, &b, &m));
        check(vary(m), 4, planes);
        iso_layer_norm_config l = {.ndim = 2, .normalized_shape = {5, 6}, .no_affine = i & 1};
        cr_ok(iso_layer_norm_create(device, &l, &m));
        check(vary(m), 4, planes);
    }
    cr_ok(iso_batch_norm1d_create(device, &(iso_batch_norm_config){.num_features = 7}, &m));
    check(vary(m), 2, rows);
}
Test(gradcheck_f64, norms) { on_each_set(norms); }

static void add(iso_module *net, iso_status made, iso_module **layer) {
    cr_ok(made);
    cr_ok(iso_sequential_add_take(net, NULL, *layer));
}

// Fused relus, and a projection beside the body.
static void blocks(void) {
    iso_module *body, *shortcut, *m = NULL;
    iso_conv2d_config c = {4, 3, {3, 3}, {1, 1}, {1, 1}, false, {0, 0}, 0};
    iso_conv2d_config again = {3, 3, {3, 3}, {1, 1}, {1, 1}, true, {0, 0}, 0};
    iso_conv2d_config one = {4, 3, {1, 1}, {1, 1}, {0, 0}, true, {0, 0}, 0};
    cr_ok(iso_sequential_create(device, &body));
    add(body, iso_conv2d_create(device, &c, &rng, &m), &m);
    add(body, iso_relu_create(device, &m), &m);
    add(body, iso_conv2d_create(device, &again, &rng, &m), &m);
    add(body, iso_batch_norm2d_create(device, &(iso_batch_norm_config){.num_features = 3}, &m), &m);
    cr_ok(iso_sequential_create(device, &shortcut));
    add(shortcut, iso_conv2d_create(device, &one, &rng, &m), &m);
    cr_ok(iso_residual_create_take(device, body, shortcut, true, &m));
    check(m, 4, planes);
}
Test(gradcheck_f64, blocks) { on_each_set(blocks); }

// ---- Layers of sequences, groups and transposed convolutions ----------------------------------------

static const int64_t sequences[3] = {2, 5, 6};

static void sequence_layers(void) {
    iso_module *net, *m = NULL;
    cr_ok(iso_sequential_create(device, &net));
    add(net, iso_linear_create(device, 6, 4, true, &rng, &m), &m); // with the relu fused into it
    add(net, iso_relu_create(device, &m), &m);
    check(net, 3, sequences);
    for (int causal = 0; causal < 2; causal++) {
        iso_attention_config config = {.embed_dim = 6, .num_heads = 3 - causal, .causal = causal};
        cr_ok(iso_multihead_attention_create(device, &config, &rng, &m));
        check(m, 3, sequences);
    }
    cr_ok(iso_position_embedding_create(device, 7, 6, &rng, &m));
    check(m, 3, sequences);
}
Test(gradcheck_f64, layers_of_sequences) { on_each_set(sequence_layers); }

static void group_norms(void) {
    for (int groups = 1; groups <= 4; groups *= 2) {
        iso_group_norm_config config = {
            .num_groups = groups, .num_channels = 4, .no_affine = groups == 2};
        iso_module *m;
        cr_ok(iso_group_norm_create(device, &config, &m));
        check(vary(m), 4, planes);
    }
}
Test(gradcheck_f64, group_norms) { on_each_set(group_norms); }

static void transposed(void) {
    static const iso_conv_transpose2d_config configs[] = {
        {{4, 3, {3, 3}, {1, 1}, {1, 1}, false, {1, 1}, 1}, {0, 0}},
        {{4, 2, {2, 3}, {2, 1}, {0, 1}, true, {0, 0}, 0}, {1, 0}},
        {{4, 6, {3, 2}, {1, 2}, {2, 0}, false, {2, 1}, 2}, {0, 1}},
    };
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        iso_module *m;
        cr_ok(iso_conv_transpose2d_create(device, &configs[i], &rng, &m));
        check(m, 4, planes);
    }
}
Test(gradcheck_f64, transposed_convolutions) { on_each_set(transposed); }
