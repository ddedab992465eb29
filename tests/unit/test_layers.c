// SPDX-License-Identifier: MIT
// Every layer's output and gradients against the double-precision reference, alone and in chains.
#include "common/gradcheck.h"
#include "common/nn_fixture.h"
#include "common/oracle.h"

#include <math.h>
#include <string.h>

TestSuite(layers, .timeout = 60);

// ---- Chains: one description for the module and for its reference ------------------------------

#define DROPOUT_P 0.4
typedef enum kind {
    END,
    LINEAR,
    CONV,
    POOL,
    PADDED_POOL,
    AVG_POOL,
    ADAPTIVE_POOL,
    RELU,
    FLATTEN,
    DROPOUT,
    DROPOUT2D,
    LOG_SOFTMAX
} kind;
typedef struct layer {
    kind kind;
    int64_t in, out; // linear: features; pool: window, stride; adaptive pool: height, width
    iso_conv2d_config conv;
    bool no_bias;
    iso_pool2d_config pool; // padded and average pools, stride given
    int shared;             // 1 + index of the layer that this one is again; 0: a layer of its own
} layer;

typedef struct chain {
    layer layer[12];
    int ndim;
    int64_t shape[4]; // of the input
} chain;

enum { SEED = 3, ROOM = 4096 };
typedef struct values {
    int64_t n, c, h, w; // of two dimensions: h = w = 1
    double data[ROOM];
} values;

static int64_t count_of(const values *x) { return x->n * x->c * x->h * x->w; }

static bool has_parameters(const layer *l) { return l->kind == LINEAR || l->kind == CONV; }

// How many parameters the layers before layer i have: their index in the list of all.
static int parameter_index(const chain *c, int i) {
    if (c->layer[i].shared) i = c->layer[i].shared - 1;
    int index = 0;
    for (int k = 0; k < i; k++)
        if (has_parameters(&c->layer[k]) && !c->layer[k].shared)
            index += c->layer[k].no_bias ? 1 : 2;
    return index;
}

static void conv_reference(const iso_conv2d_config *f, const double *w, const double *b,
                           const values *x, values *y) {
    oracle_conv c = {
        .rows = x->n, .in = x->c, .height = x->h, .width = x->w, .out = f->out_channels};
    for (int i = 0; i < 2; i++) {
        c.kernel[i] = f->kernel_size[i];
        c.stride[i] = f->stride[i] ? f->stride[i] : 1;
        c.padding[i] = f->padding[i];
        c.dilation[i] = f->dilation[i];
    }
    c.groups = f->groups;
    y->c = c.out;
    y->h = oracle_conv_height(&c);
    y->w = oracle_conv_width(&c);
    oracle_conv2d(&c, x->data, w, b, false, y->data);
}

static void pool_reference(const layer *l, const values *x, values *y) {
    static int64_t winner[ROOM];
    oracle_pool p = {.planes = x->n * x->c, .height = x->h, .width = x->w};
    for (int i = 0; i < 2; i++) {
        p.kernel[i] = l->kind == POOL ? l->in : l->pool.kernel_size[i];
        p.stride[i] = l->kind == POOL ? l->out : l->pool.stride[i];
        p.padding[i] = l->pool.padding[i];
    }
    y->h = oracle_pool_height(&p);
    y->w = oracle_pool_width(&p);
    if (l->kind == AVG_POOL)
        oracle_avg_pool(&p, x->data, y->data);
    else
        oracle_max_pool(&p, x->data, y->data, winner);
}

static void adaptive_reference(const layer *l, const values *x, values *y) {
    const oracle_pool p = {.planes = x->n * x->c, .height = x->h, .width = x->w};
    y->h = l->in;
    y->w = l->out;
    oracle_adaptive_avg_pool(&p, (int64_t[]){l->in, l->out}, x->data, y->data);
}

// The mask of the first forward. Every parameter and every dropout before took one stream.
static void dropout_reference(const chain *c, int i, const values *x, values *y) {
    static double mask[ROOM];
    uint64_t stream = (uint64_t)parameter_index(c, i);
    for (int k = 0; k < i; k++)
        stream += c->layer[k].kind == DROPOUT || c->layer[k].kind == DROPOUT2D;
    iso__dropout_draw draw = {.key = iso__philox_key_make(SEED, ISO_RNG_DROPOUT, stream),
                              .number = 1,
                              .p = DROPOUT_P,
                              .channels = c->layer[i].kind == DROPOUT2D};
    oracle_dropout_mask(&draw, x->n, x->c, x->h * x->w, mask);
    for (int64_t k = 0; k < count_of(x); k++) y->data[k] = x->data[k] * mask[k];
}

static void layer_reference(const chain *c, int i, double *const *parameter, const values *x,
                            values *y) {
    const layer *l = &c->layer[i];
    double *const *p = parameter + parameter_index(c, i);
    const double *bias = has_parameters(l) && !l->no_bias ? p[1] : NULL;
    *y = *x;
    switch (l->kind) {
    case LINEAR:
        y->c = l->out;
        oracle_linear(x->n, l->in, l->out, x->data, p[0], bias, false, y->data);
        break;
    case CONV: conv_reference(&l->conv, p[0], bias, x, y); break;
    case POOL:
    case PADDED_POOL:
    case AVG_POOL: pool_reference(l, x, y); break;
    case ADAPTIVE_POOL: adaptive_reference(l, x, y); break;
    case RELU:
        for (int64_t k = 0; k < count_of(x); k++) y->data[k] = fmax(x->data[k], 0);
        break;
    case FLATTEN:
        y->c = count_of(x) / x->n;
        y->h = y->w = 1;
        break;
    case LOG_SOFTMAX: oracle_log_softmax(x->n, x->c, x->data, y->data); break;
    default: dropout_reference(c, i, x, y);
    }
}

static void chain_reference(const void *user, const double *in, double *const *parameter,
                            double *out) {
    const chain *c = user;
    static values x, y;
    x = (values){.n = c->shape[0], .c = c->shape[1], .h = 1, .w = 1};
    if (c->ndim == 4) x.h = c->shape[2], x.w = c->shape[3];
    memcpy(x.data, in, (size_t)count_of(&x) * sizeof(double));
    for (int i = 0; c->layer[i].kind != END; i++) {
        layer_reference(c, i, parameter, &x, &y);
        x = y;
    }
    memcpy(out, x.data, (size_t)count_of(&x) * sizeof(double));
}

// ---- The module of a chain ---------------------------------------------------------------------

static iso_status create_layer(iso_device *device, const layer *l, iso_rng *rng, iso_module **out) {
    iso_conv2d_config conv = l->conv;
    conv.no_bias = l->no_bias;
    switch (l->kind) {
    case LINEAR: return iso_linear_create(device, l->in, l->out, !l->no_bias, rng, out);
    case CONV: return iso_conv2d_create(device, &conv, rng, out);
    case POOL: return iso_max_pool2d_create(device, l->in, l->out, out);
    case PADDED_POOL: return iso_pool2d_create(device, ISO_POOL_MAX, &l->pool, out);
    case AVG_POOL: return iso_pool2d_create(device, ISO_POOL_AVG, &l->pool, out);
    case ADAPTIVE_POOL: return iso_adaptive_avg_pool2d_create(device, l->in, l->out, out);
    case RELU: return iso_relu_create(device, out);
    case FLATTEN: return iso_flatten_create(device, out);
    case DROPOUT: return iso_dropout_create(device, DROPOUT_P, rng, out);
    case DROPOUT2D: return iso_dropout2d_create(device, DROPOUT_P, rng, out);
    default: return iso_log_softmax_create(device, out);
    }
}

static iso_module *create_chain(iso_device *device, const chain *c) {
    iso_rng rng = {.seed = SEED};
    iso_module *model, *module;
    cr_ok(iso_sequential_create(device, &model));
    for (int i = 0; c->layer[i].kind != END; i++) {
        if (c->layer[i].shared)
            module = iso_module_retain(model->child[c->layer[i].shared - 1]);
        else
            cr_ok(create_layer(device, &c->layer[i], &rng, &module));
        cr_ok(iso_sequential_add_take(model, NULL, module));
    }
    return model;
}

static void check_gradients(iso_module *model, const chain *c) {
    gradcheck check = {.module = model, .ndim = c->ndim, .forward = chain_reference, .user = c};
    memcpy(check.shape, c->shape, sizeof(c->shape));
    const char *problem = gradcheck_run(&check);
    cr_assert_null(problem, "%s", problem);
}

static void check_chain(const chain *c) {
    iso_device *device = open_cpu();
    iso_module *model = create_chain(device, c);
    check_gradients(model, c);
    iso_module_destroy(&model);
    close_cpu(&device);
}

#define CHAIN(...) check_chain(&(chain){__VA_ARGS__})
#define CONV_OF(i, o, kh, kw, sh, sw, ph, pw)                                                      \
    {                                                                                              \
        .kind = CONV, .conv = {                                                                    \
            .in_channels = i,                                                                      \
            .out_channels = o,                                                                     \
            .kernel_size = {kh, kw},                                                               \
            .stride = {sh, sw},                                                                    \
            .padding = {ph, pw}                                                                    \
        }                                                                                          \
    }

// ---- Layers alone ------------------------------------------------------------------------------

Test(layers, linear) { CHAIN(.layer = {{LINEAR, 7, 5}}, .ndim = 2, .shape = {4, 7}); }

Test(layers, linear_without_bias) {
    CHAIN(.layer = {{LINEAR, 7, 5, .no_bias = true}}, .ndim = 2, .shape = {4, 7});
}

Test(layers, linear_with_fused_relu) {
    CHAIN(.layer = {{LINEAR, 7, 5}, {RELU}}, .ndim = 2, .shape = {4, 7});
}

Test(layers, conv2d) {
    CHAIN(.layer = {CONV_OF(1, 4, 3, 3, 0, 0, 0, 0)}, .ndim = 4, .shape = {2, 1, 6, 6});
}

Test(layers, conv2d_of_odd_channels) {
    CHAIN(.layer = {CONV_OF(3, 5, 3, 3, 1, 1, 0, 0)}, .ndim = 4, .shape = {2, 3, 5, 5});
}

Test(layers, conv2d_of_more_channels_than_a_block) {
    CHAIN(.layer = {CONV_OF(2, 19, 2, 2, 1, 1, 0, 0), CONV_OF(19, 3, 2, 2, 1, 1, 0, 0)}, .ndim = 4,
          .shape = {2, 2, 4, 4});
}

Test(layers, conv2d_of_many_channels_with_stride_and_padding) {
    CHAIN(.layer = {CONV_OF(9, 10, 3, 2, 2, 1, 1, 2), {RELU}}, .ndim = 4, .shape = {2, 9, 5, 3});
}

Test(layers, conv2d_with_stride_and_padding_not_square) {
    CHAIN(.layer = {CONV_OF(2, 3, 3, 2, 2, 1, 1, 2)}, .ndim = 4, .shape = {2, 2, 7, 4});
}

Test(layers, conv2d_without_bias) {
    layer l = CONV_OF(2, 3, 3, 3, 1, 1, 1, 1);
    l.no_bias = true;
    CHAIN(.layer = {l}, .ndim = 4, .shape = {2, 2, 5, 5});
}

Test(layers, conv2d_with_fused_relu) {
    CHAIN(.layer = {CONV_OF(2, 4, 3, 3, 1, 1, 1, 1), {RELU}}, .ndim = 4, .shape = {2, 2, 5, 5});
}

Test(layers, conv2d_with_dilation) {
    layer l = CONV_OF(2, 3, 3, 2, 1, 2, 1, 2);
    l.conv.dilation[0] = 2, l.conv.dilation[1] = 3;
    CHAIN(.layer = {l}, .ndim = 4, .shape = {2, 2, 7, 6});
}

Test(layers, conv2d_in_groups) {
    layer l = CONV_OF(6, 4, 3, 3, 2, 1, 1, 1);
    l.conv.groups = 2;
    CHAIN(.layer = {l, {RELU}}, .ndim = 4, .shape = {2, 6, 5, 4});
}

Test(layers, conv2d_in_groups_across_blocks) {
    layer first = CONV_OF(2, 18, 1, 1, 1, 1, 0, 0), second = CONV_OF(18, 12, 2, 2, 1, 1, 0, 1);
    second.conv.groups = 3;
    CHAIN(.layer = {first, second}, .ndim = 4, .shape = {2, 2, 3, 4});
}

Test(layers, conv2d_of_each_channel) {
    layer first = CONV_OF(1, 9, 1, 1, 1, 1, 0, 0), second = CONV_OF(9, 9, 3, 3, 1, 1, 2, 2);
    second.conv.groups = 9;
    second.conv.dilation[0] = second.conv.dilation[1] = 2;
    CHAIN(.layer = {first, second, {RELU}}, .ndim = 4, .shape = {2, 1, 4, 5});
}

Test(layers, max_pool2d) { CHAIN(.layer = {{POOL, 2, 2}}, .ndim = 4, .shape = {2, 3, 6, 5}); }

Test(layers, max_pool2d_of_overlapping_windows) {
    CHAIN(.layer = {{POOL, 3, 2}}, .ndim = 4, .shape = {2, 3, 7, 7});
}

#define POOL_OF(k, kh, kw, sh, sw, ph, pw)                                                         \
    {                                                                                              \
        .kind = k, .pool = {.kernel_size = {kh, kw}, .stride = {sh, sw}, .padding = {ph, pw} }     \
    }

Test(layers, max_pool2d_with_padding) {
    CHAIN(.layer = {POOL_OF(PADDED_POOL, 3, 3, 2, 2, 1, 1)}, .ndim = 4, .shape = {2, 3, 7, 6});
    CHAIN(.layer = {CONV_OF(1, 9, 3, 3, 1, 1, 0, 0), POOL_OF(PADDED_POOL, 3, 2, 2, 1, 1, 1)},
          .ndim = 4, .shape = {2, 1, 6, 5});
}

Test(layers, avg_pool2d) {
    CHAIN(.layer = {POOL_OF(AVG_POOL, 2, 3, 2, 1, 1, 0)}, .ndim = 4, .shape = {2, 3, 5, 6});
    CHAIN(.layer = {CONV_OF(1, 9, 3, 3, 1, 1, 0, 0), POOL_OF(AVG_POOL, 3, 3, 2, 2, 1, 1)},
          .ndim = 4, .shape = {2, 1, 6, 7});
}

Test(layers, adaptive_avg_pool2d) {
    CHAIN(.layer = {{ADAPTIVE_POOL, 3, 2}}, .ndim = 4, .shape = {2, 3, 5, 4});
    CHAIN(.layer = {CONV_OF(1, 9, 3, 3, 1, 1, 0, 0),
                    {ADAPTIVE_POOL, 1, 1},
                    {FLATTEN},
                    {LINEAR, 9, 2}},
          .ndim = 4, .shape = {2, 1, 6, 5});
}

Test(layers, relu) { CHAIN(.layer = {{RELU}}, .ndim = 4, .shape = {2, 3, 4, 5}); }

Test(layers, flatten) {
    CHAIN(.layer = {{FLATTEN}, {LINEAR, 24, 3}}, .ndim = 4, .shape = {3, 2, 3, 4});
}

Test(layers, log_softmax) { CHAIN(.layer = {{LOG_SOFTMAX}}, .ndim = 2, .shape = {4, 6}); }

// ---- Layers after a convolution of many channels: there activations may be blocked -------------

Test(layers, relu_that_is_not_fused_after_conv2d) {
    CHAIN(.layer = {CONV_OF(1, 9, 3, 3, 1, 1, 0, 0), {POOL, 2, 1}, {RELU}}, .ndim = 4,
          .shape = {2, 1, 5, 5});
}

Test(layers, max_pool2d_after_conv2d) {
    CHAIN(.layer = {CONV_OF(1, 9, 3, 3, 1, 1, 1, 1), {RELU}, {POOL, 2, 2}}, .ndim = 4,
          .shape = {2, 1, 6, 6});
}

Test(layers, flatten_after_conv2d) {
    CHAIN(.layer = {CONV_OF(1, 9, 3, 3, 1, 1, 0, 0), {FLATTEN}, {LINEAR, 81, 3}}, .ndim = 4,
          .shape = {2, 1, 5, 5});
}

Test(layers, second_relu_in_a_row_is_not_fused) {
    CHAIN(.layer = {{LINEAR, 5, 6}, {RELU}, {RELU}, {LINEAR, 6, 2}}, .ndim = 2, .shape = {3, 5});
}

Test(layers, whole_network) {
    CHAIN(.layer = {CONV_OF(1, 8, 3, 3, 1, 1, 0, 0),
                    {RELU},
                    CONV_OF(8, 11, 3, 3, 1, 1, 0, 0),
                    {RELU},
                    {POOL, 2, 2},
                    {FLATTEN},
                    {LINEAR, 44, 9},
                    {RELU},
                    {LINEAR, 9, 4},
                    {LOG_SOFTMAX}},
          .ndim = 4, .shape = {2, 1, 8, 8});
}

// Buffers move when they grow; whatever points into them must follow.
Test(layers, batch_size_may_change) {
    chain logical = {.layer = {{RELU}, {POOL, 2, 2}, {FLATTEN}, {LINEAR, 8, 3}}, .ndim = 4};
    chain blocked = {.layer = {CONV_OF(2, 9, 3, 3, 1, 1, 1, 1), {POOL, 2, 2}, {FLATTEN}},
                     .ndim = 4};
    iso_device *device = open_cpu();
    iso_module *a = create_chain(device, &logical), *b = create_chain(device, &blocked);
    const int64_t sizes[] = {2, 20, 1};
    for (int i = 0; i < 3; i++) {
        const int64_t shape[4] = {sizes[i], 2, 4, 4};
        memcpy(logical.shape, shape, sizeof(shape));
        memcpy(blocked.shape, shape, sizeof(shape));
        check_gradients(a, &logical);
        check_gradients(b, &blocked);
    }
    iso_module_destroy(&a);
    iso_module_destroy(&b);
    close_cpu(&device);
}

// ---- A layer used twice: its gradient is the sum over its uses ---------------------------------

Test(layers, linear_used_twice) {
    CHAIN(.layer = {{LINEAR, 6, 6}, {LINEAR, 6, 6}, {LINEAR, 6, 6, .shared = 1}}, .ndim = 2,
          .shape = {3, 6});
}

Test(layers, relu_is_fused_at_one_use_of_a_layer_only) {
    CHAIN(.layer = {{LINEAR, 6, 6}, {RELU}, {LINEAR, 6, 6, .shared = 1}}, .ndim = 2,
          .shape = {3, 6});
    CHAIN(.layer = {{LINEAR, 6, 6}, {LINEAR, 6, 6, .shared = 1}, {RELU}}, .ndim = 2,
          .shape = {3, 6});
}

Test(layers, relu_and_flatten_used_twice) {
    CHAIN(.layer = {{RELU},
                    {FLATTEN},
                    {LINEAR, 8, 5},
                    {RELU, .shared = 1},
                    {FLATTEN, .shared = 2},
                    {LINEAR, 5, 3}},
          .ndim = 4, .shape = {3, 2, 2, 2});
}

// ---- Dropout: the mask is drawn by logical index in every layout ----------------------------------

Test(layers, dropout) { CHAIN(.layer = {{DROPOUT}}, .ndim = 4, .shape = {3, 5, 4, 4}); }

Test(layers, dropout_of_rows) {
    CHAIN(.layer = {{DROPOUT}, {LINEAR, 9, 7}, {RELU}, {DROPOUT}, {LINEAR, 7, 2}}, .ndim = 2,
          .shape = {6, 9});
}

Test(layers, dropout2d) { CHAIN(.layer = {{DROPOUT2D}}, .ndim = 4, .shape = {3, 5, 4, 4}); }

Test(layers, dropout_after_conv2d) {
    CHAIN(.layer = {CONV_OF(2, 9, 1, 1, 1, 1, 0, 0), {DROPOUT}}, .ndim = 4, .shape = {3, 2, 4, 4});
}

Test(layers, dropout2d_after_conv2d) {
    CHAIN(.layer = {CONV_OF(2, 9, 1, 1, 1, 1, 0, 0), {DROPOUT2D}}, .ndim = 4,
          .shape = {3, 2, 4, 4});
}
