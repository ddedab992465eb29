// SPDX-License-Identifier: MIT
// Every kind of layer under autocast: outputs and gradients are those of f32 up to
// rounding, in the layouts that convolutions give, and the gradients of parameters are f32. With
// parameters of 16 bits they have the same bits.
#include "common/any_device.h"
#include "common/balance.h"
#include "common/nn_fixture.h"
#include "device/device_impl.h"

#include <math.h>
#include <string.h>

TestSuite(autocast_kinds, .timeout = 120, .fini = balance_check);

// A layer, of one or two inputs of a shape. conv: an own convolution before it gives its input the
// blocked layout.
typedef struct kind {
    const char *name;
    iso_status (*create)(iso_device *device, iso_rng *rng, iso_module **out);
    int inputs, ndim;
    int64_t shape[4];
    bool conv;
} kind;

// ---- Layers ---------------------------------------------------------------------------------------

enum { WIDTH = 24 };

static iso_status conv(iso_device *device, iso_rng *rng, iso_module **out) {
    iso_conv2d_config config = {.in_channels = WIDTH,
                                .out_channels = 20,
                                .kernel_size = {3, 3},
                                .stride = {2, 1},
                                .padding = {1, 1},
                                .groups = 4};
    return iso_conv2d_create(device, &config, rng, out);
}
static iso_status transposed(iso_device *device, iso_rng *rng, iso_module **out) {
    iso_conv_transpose2d_config config = {.conv = {.in_channels = WIDTH,
                                                   .out_channels = 5,
                                                   .kernel_size = {3, 3},
                                                   .stride = {2, 2},
                                                   .padding = {1, 1}},
                                          .output_padding = {1, 0}};
    return iso_conv_transpose2d_create(device, &config, rng, out);
}
static iso_status batch_norm(iso_device *device, iso_rng *rng, iso_module **out) {
    (void)rng;
    return iso_batch_norm2d_create(device, &(iso_batch_norm_config){.num_features = WIDTH}, out);
}
static iso_status group_norm(iso_device *device, iso_rng *rng, iso_module **out) {
    iso_group_norm_config config = {.num_groups = 3, .num_channels = WIDTH};
    (void)rng;
    return iso_group_norm_create(device, &config, out);
}
static iso_status layer_norm(iso_device *device, iso_rng *rng, iso_module **out) {
    iso_layer_norm_config config = {.ndim = 1, .normalized_shape = {WIDTH}};
    (void)rng;
    return iso_layer_norm_create(device, &config, out);
}
static iso_status max_pool(iso_device *device, iso_rng *rng, iso_module **out) {
    (void)rng;
    return iso_max_pool2d_create(device, 2, 2, out);
}
static iso_status avg_pool(iso_device *device, iso_rng *rng, iso_module **out) {
    iso_pool2d_config config = {.kernel_size = {3, 2}, .stride = {2, 2}};
    (void)rng;
    return iso_pool2d_create(device, ISO_POOL_AVG, &config, out);
}
static iso_status adaptive(iso_device *device, iso_rng *rng, iso_module **out) {
    (void)rng;
    return iso_adaptive_avg_pool2d_create(device, 3, 2, out);
}
static iso_status silu(iso_device *device, iso_rng *rng, iso_module **out) {
    (void)rng;
    return iso_silu_create(device, out);
}
static iso_status softmax(iso_device *device, iso_rng *rng, iso_module **out) {
    (void)rng;
    return iso_softmax_create(device, out);
}
static iso_status log_softmax(iso_device *device, iso_rng *rng, iso_module **out) {
    (void)rng;
    return iso_log_softmax_create(device, out);
}
static iso_status dropout(iso_device *device, iso_rng *rng, iso_module **out) {
    return iso_dropout2d_create(device, 0.3, rng, out);
}
static iso_status attention(iso_device *device, iso_rng *rng, iso_module **out) {
    iso_attention_config config = {.embed_dim = WIDTH, .num_heads = 4, .causal = true};
    return iso_multihead_attention_create(device, &config, rng, out);
}
static iso_status bilinear(iso_device *device, iso_rng *rng, iso_module **out) {
    return iso_bilinear_create(device, WIDTH, WIDTH, 7, true, rng, out);
}
static iso_status concat(iso_device *device, iso_rng *rng, iso_module **out) {
    (void)rng;
    return iso_concat_create(device, 1, out);
}
static iso_status split(iso_device *device, iso_rng *rng, iso_module **out) {
    (void)rng;
    return iso_split_create(device, 1, 2, (int64_t[]){10, WIDTH - 10}, out);
}

#define IMAGES .ndim = 4, .shape = {3, WIDTH, 7, 6}, .conv = true
#define ROWS   .ndim = 2, .shape = {9, WIDTH}
#define TEXTS  .ndim = 3, .shape = {2, 5, WIDTH}
static const kind kinds[] = {
    {"conv2d", conv, 1, IMAGES},
    {"transposed convolution", transposed, 1, IMAGES},
    {"batch norm", batch_norm, 1, IMAGES},
    {"group norm", group_norm, 1, IMAGES},
    {"layer norm", layer_norm, 1, TEXTS},
    {"max pooling", max_pool, 1, IMAGES},
    {"average pooling", avg_pool, 1, IMAGES},
    {"adaptive average pooling", adaptive, 1, IMAGES},
    {"silu", silu, 1, IMAGES},
    {"softmax", softmax, 1, TEXTS},
    {"log-softmax", log_softmax, 1, ROWS},
    {"dropout", dropout, 1, IMAGES},
    {"attention", attention, 1, TEXTS},
    {"attention of keys", attention, 2, TEXTS},
    {"attention of keys and values", attention, 3, TEXTS},
    {"bilinear", bilinear, 2, ROWS},
    {"concat", concat, 2, .ndim = 4, .shape = {3, WIDTH, 7, 6}},
    {"split", split, 1, IMAGES},
};
#define KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

// GPUs lack some layers.
static bool is_there(iso_device *device, const kind *k) {
    iso_rng rng = {.seed = 5};
    iso_module *layer = NULL;
    iso_status status = k->create(device, &rng, &layer);
    iso_module_destroy(&layer);
    cr_assert(status == ISO_OK || (status == ISO_ERR_UNSUPPORTED && !device->ops->host_memory));
    return status == ISO_OK;
}

static iso_module *new_f32(iso_device *device, const kind *k) {
    iso_rng rng = {.seed = 5};
    iso_module *net, *layer;
    iso_conv2d_config config = {.in_channels = k->shape[1],
                                .out_channels = k->shape[1],
                                .kernel_size = {3, 3},
                                .padding = {1, 1},
                                .no_bias = true}; // its gradient would be 0 before a norm
    cr_ok(iso_sequential_create(device, &net));
    if (k->conv) {
        cr_ok(iso_conv2d_create(device, &config, &rng, &layer));
        cr_ok(iso_sequential_add_take(net, "before", layer));
    }
    cr_ok(k->create(device, &rng, &layer));
    cr_ok(iso_sequential_add_take(net, "layer", layer));
    return net;
}

static iso_module *new_net(iso_device *device, const kind *k, iso_dtype half) {
    iso_module *net = new_f32(device, k);
    if (half != ISO_F32) cr_ok(iso_autocast_create_take(net, half, &net));
    return net;
}

// ---- Comparison -----------------------------------------------------------------------------------

// Largest difference, relative to the largest number.
static double distance(iso_tensor *a, iso_tensor *b) {
    float *x = tensor_values(a), *y = tensor_values(b);
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < iso_tensor_count(a); i++) {
        largest = fmax(largest, fabs((double)x[i]));
        double difference = fabs((double)x[i] - (double)y[i]);
        worst = difference > worst || isnan(difference) ? difference : worst;
    }
    free(x), free(y);
    cr_assert(largest > 0);
    return worst / largest;
}

typedef struct results {
    iso_tensors in, out, dy, dx;
} results;

static results run(iso_device *device, const kind *k, iso_module *net) {
    results r = {.in.count = k->inputs};
    for (int i = 0; i < k->inputs; i++)
        r.in.item[i] = random_tensor(device, k->ndim, k->shape, 20 + (uint64_t)i);
    cr_ok(iso_module_forward_many(net, &r.in, &r.out));
    r.dy.count = r.out.count;
    for (int i = 0; i < r.out.count; i++) {
        const iso_tensor *y = r.out.item[i];
        r.dy.item[i] = random_tensor(device, y->ndim, y->shape, 30 + (uint64_t)i);
    }
    cr_ok(iso_module_backward_many(net, &r.dy, ISO_WANT_ALL, &r.dx));
    return r;
}

static void destroy(results *r) {
    for (int i = 0; i < r->in.count; i++) iso_tensor_destroy(&r->in.item[i]);
    for (int i = 0; i < r->dy.count; i++) iso_tensor_destroy(&r->dy.item[i]);
}

// A few roundings, which small differences of large numbers may make larger.
static double allowed(iso_dtype half) { return half == ISO_BF16 ? 0.03 : 0.03 / 8; }

static double compare(const kind *k, iso_dtype half, const results *a, const results *b,
                      iso_module *x, iso_module *y) {
    iso_parameter_list p, q;
    double worst = 0;
    cr_ok(iso_module_parameters(x, &p));
    cr_ok(iso_module_parameters(y, &q));
    cr_assert_eq(p.count, q.count);
    for (int i = 0; i < a->out.count; i++)
        worst = fmax(worst, distance(a->out.item[i], b->out.item[i]));
    for (int i = 0; i < a->in.count; i++) {
        cr_assert_eq(b->dx.item[i]->dtype, ISO_F32);
        worst = fmax(worst, distance(a->dx.item[i], b->dx.item[i]));
    }
    for (int i = 0; i < p.count; i++) {
        cr_assert_eq(q.item[i]->grad->dtype, ISO_F32);
        worst = fmax(worst, distance(p.item[i]->grad, q.item[i]->grad));
    }
    cr_assert(worst < allowed(half), "%s in %s: off by %g", k->name, iso_dtype_name(half), worst);
    iso_parameter_list_destroy(&p), iso_parameter_list_destroy(&q);
    return worst;
}

static void compare_kinds(iso_device *device, iso_dtype half) {
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];
        if (!is_there(device, k)) continue;
        iso_module *wide = new_net(device, k, ISO_F32), *low = new_net(device, k, half);
        results a = run(device, k, wide), b = run(device, k, low);
        double off = compare(k, half, &a, &b, wide, low);
        cr_assert(off > 0, "%s computes in f32", k->name);
        destroy(&a), destroy(&b);
        iso_module_destroy(&wide), iso_module_destroy(&low);
    }
}

static bool same_bits(iso_tensor *a, iso_tensor *b) {
    float *x = tensor_values(a), *y = tensor_values(b);
    bool same = memcmp(x, y, (size_t)iso_tensor_count(a) * sizeof(float)) == 0;
    free(x), free(y);
    return same;
}

// Parameters that f32 holds, but rounded to 16 bits, or of 16 bits.
static iso_module *new_rounded(iso_device *device, const kind *k, iso_dtype half, iso_dtype type) {
    iso_module *net = new_f32(device, k);
    cr_ok(iso_module_to(net, half));
    cr_ok(iso_module_to(net, type));
    cr_ok(iso_autocast_create_take(net, half, &net));
    return net;
}

static void compare_bits(iso_device *device, iso_dtype half) {
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];
        if (!is_there(device, k)) continue;
        iso_module *wide = new_rounded(device, k, half, ISO_F32);
        iso_module *low = new_rounded(device, k, half, half);
        results a = run(device, k, wide), b = run(device, k, low);
        iso_parameter_list p, q;
        cr_ok(iso_module_parameters(wide, &p));
        cr_ok(iso_module_parameters(low, &q));
        for (int n = 0; n < a.out.count; n++)
            cr_assert(same_bits(a.out.item[n], b.out.item[n]), "output of %s", k->name);
        for (int n = 0; n < a.in.count; n++)
            cr_assert(same_bits(a.dx.item[n], b.dx.item[n]), "gradient of %s", k->name);
        for (int n = 0; n < p.count; n++)
            cr_assert(same_bits(p.item[n]->grad, q.item[n]->grad), "%s: %s", k->name, p.name[n]);
        if (k->conv) cr_assert_eq(q.item[0]->value->dtype, half);
        iso_parameter_list_destroy(&p), iso_parameter_list_destroy(&q);
        destroy(&a), destroy(&b);
        iso_module_destroy(&wide), iso_module_destroy(&low);
    }
}

// On the CPU, each set of kernels.
static void on_each_set(iso_dtype half, void (*body)(iso_device *device, iso_dtype half)) {
    static const char *const sets[] = {"onednn", "cblas", "reference"};
    bool cpu = strcmp(test_device(), "cpu") == 0;
    int ran = 0;
    for (int i = 0; i < (cpu ? 3 : 1); i++) {
        iso_device *device;
        setenv("ISO_CPU_KERNELS", sets[i], 1);
        if (iso_device_create(test_device(), &device) < 0) continue; // not in this build
        body(device, half);
        iso_device_destroy(&device);
        ran++;
    }
    if (!cpu && ran == 0) cr_skip_test("no %s device can be used", test_device());
    cr_assert(ran > 0);
}

Test(autocast_kinds, in_bf16_they_are_near_f32) { on_each_set(ISO_BF16, compare_kinds); }
Test(autocast_kinds, in_f16_they_are_near_f32) { on_each_set(ISO_F16, compare_kinds); }
Test(autocast_kinds, with_parameters_of_bf16_they_have_the_same_bits) {
    on_each_set(ISO_BF16, compare_bits);
}
Test(autocast_kinds, with_parameters_of_f16_they_have_the_same_bits) {
    on_each_set(ISO_F16, compare_bits);
}
