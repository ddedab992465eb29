// SPDX-License-Identifier: MIT
// Linear layers of sequences, attention, embeddings, group norm, transposed convolutions, and a
// small GPT of them, against PyTorch in float64.
#include "common/fixture.h"
#include "common/gpt_fixture.h"
#include "common/nn_fixture.h"
#include "tensor/tensor_impl.h"

#include <isotherm/optim.h>
#include <math.h>
#include <string.h>

TestSuite(small_layers, .timeout = 60);

static iso_device *device;
static fixture *golden;
static iso_rng rng;

static void open_all(void) {
    device = open_cpu();
    golden = fixture_open("small_layers.txt");
}

static void close_all(void) {
    fixture_close(&golden);
    close_cpu(&device);
}

static double tolerance_of(iso_dtype dtype) { return dtype == ISO_F64 ? 1e-13 : 5e-6; }

static void load_parameters(const char *prefix, iso_module *module) {
    iso_parameter_list list;
    cr_ok(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++)
        fixture_load(golden, prefix, list.name[i], list.item[i]->value);
    iso_parameter_list_destroy(&list);
}

static void compare_gradients(const char *prefix, iso_module *module, double tolerance) {
    char name[64];
    iso_parameter_list list;
    iso_tensor *grad;
    snprintf(name, sizeof(name), "%s.grad", prefix);
    cr_ok(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++) {
        cr_ok(iso_parameter_grad(list.item[i], &grad));
        fixture_compare(golden, name, list.name[i], grad, tolerance);
    }
    iso_parameter_list_destroy(&list);
}

// x in that layout, as a convolution would hand it over.
static iso_tensor *input_in(const char *name, iso_dtype dtype, iso_layout layout) {
    iso_tensor *x = fixture_tensor_of(golden, device, dtype, name, "x"), *to;
    if (layout == ISO_LAYOUT_LOGICAL) return x;
    cr_ok(iso_tensor_create(device, dtype, 4, iso_tensor_shape(x), &to));
    cr_ok(iso_tensor_resize(to, 4, iso_tensor_shape(x), layout));
    cr_ok(iso_tensor_copy(x, to));
    iso_tensor_destroy(&x);
    return to;
}

// Twice, so that gradients are accumulated: the second time on top of the first, which then is the
// half of it.
static void run(const char *name, iso_module *module, iso_dtype dtype, iso_layout layout) {
    double tolerance = tolerance_of(dtype);
    iso_tensor *x = input_in(name, dtype, layout), *y, *dx;
    for (int i = 0; i < 2; i++) {
        iso_tensor *dy = fixture_tensor_of(golden, device, dtype, name, "dy");
        cr_ok(iso_module_forward(module, x, &y));
        fixture_compare(golden, name, "y", y, tolerance);
        cr_ok(iso_module_backward(module, dy, &dx));
        fixture_compare(golden, name, "dx", dx, tolerance);
        if (i == 0) compare_gradients(name, module, tolerance);
        iso_tensor_destroy(&dy);
    }
    iso_parameter_list list;
    cr_ok(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++) cr_ok(iso_tensor_scale(list.item[i]->grad, 0.5));
    iso_parameter_list_destroy(&list);
    compare_gradients(name, module, tolerance);
    iso_tensor_destroy(&x);
}

// Takes what was made, in both types.
static void check(const char *name, iso_status made, iso_module *module, bool image) {
    cr_ok(made);
    for (int i = 0; i < 2; i++) {
        iso_dtype dtype = i ? ISO_F64 : ISO_F32;
        cr_ok(iso_module_to(module, dtype));
        load_parameters(name, module);
        run(name, module, dtype, ISO_LAYOUT_LOGICAL);
        if (!image || i) continue;
        iso_module_zero_grad(module);
        run(name, module, dtype, ISO_LAYOUT_BLOCKED);
    }
    iso_module_destroy(&module);
}

#define CHECK(name, image, create, ...)                                                            \
    do {                                                                                           \
        iso_module *made_ = NULL;                                                                  \
        iso_status status_ = create(device, __VA_ARGS__, &made_);                                  \
        check(name, status_, made_, image);                                                        \
    } while (0)

Test(small_layers, linear_of_sequences_is_torchs) {
    open_all();
    CHECK("linear3d", false, iso_linear_create, 4, 3, true, &rng);
    close_all();
}

Test(small_layers, attention_is_torch_MultiheadAttention) {
    open_all();
    const iso_attention_config all = {.embed_dim = 6, .num_heads = 3};
    const iso_attention_config causal = {.embed_dim = 8, .num_heads = 2, .causal = true};
    const iso_attention_config plain = {
        .embed_dim = 4, .num_heads = 1, .causal = true, .no_bias = true};
    CHECK("attention", false, iso_multihead_attention_create, &all, &rng);
    CHECK("attention_causal", false, iso_multihead_attention_create, &causal, &rng);
    CHECK("attention_plain", false, iso_multihead_attention_create, &plain, &rng);
    close_all();
}

Test(small_layers, group_norm_is_torch_GroupNorm) {
    open_all();
    const iso_group_norm_config image = {.num_groups = 2, .num_channels = 6};
    const iso_group_norm_config row = {.num_groups = 3, .num_channels = 6, .eps = 1e-3};
    const iso_group_norm_config plain = {.num_groups = 4, .num_channels = 4, .no_affine = true};
    CHECK("group_norm", true, iso_group_norm_create, &image);
    CHECK("group_norm_1d", false, iso_group_norm_create, &row);
    CHECK("group_norm_plain", false, iso_group_norm_create, &plain);
    close_all();
}

Test(small_layers, transposed_convolution_is_torch_ConvTranspose2d) {
    open_all();
    const iso_conv_transpose2d_config plain = {
        .conv = {.in_channels = 3, .out_channels = 5, .kernel_size = {3, 3}}};
    const iso_conv_transpose2d_config stride = {.conv = {.in_channels = 4,
                                                         .out_channels = 2,
                                                         .kernel_size = {4, 3},
                                                         .stride = {2, 3},
                                                         .padding = {1, 2}},
                                                .output_padding = {1, 2}};
    const iso_conv_transpose2d_config groups = {.conv = {.in_channels = 4,
                                                         .out_channels = 6,
                                                         .kernel_size = {3, 3},
                                                         .stride = {2, 2},
                                                         .dilation = {2, 2},
                                                         .groups = 2,
                                                         .no_bias = true}};
    const iso_conv_transpose2d_config wide = {
        .conv = {.in_channels = 16, .out_channels = 8, .kernel_size = {2, 2}, .stride = {2, 2}}};
    CHECK("transposed", true, iso_conv_transpose2d_create, &plain, &rng);
    CHECK("transposed_stride", true, iso_conv_transpose2d_create, &stride, &rng);
    CHECK("transposed_groups", true, iso_conv_transpose2d_create, &groups, &rng);
    CHECK("transposed_wide", true, iso_conv_transpose2d_create, &wide, &rng);
    close_all();
}

// ---- Embedding ----------------------------------------------------------------------------------

static iso_tensor *indices_of(const char *prefix, const char *name, iso_dtype dtype) {
    int64_t count;
    const double *from = fixture_get(golden, prefix, name, &count);
    iso_tensor *like = fixture_tensor(golden, device, prefix, name), *x;
    cr_ok(iso_tensor_create(device, dtype, 2, iso_tensor_shape(like), &x));
    for (int64_t i = 0; i < count; i++) {
        if (dtype == ISO_I32)
            ((int32_t *)x->data)[i] = (int32_t)from[i];
        else
            ((int64_t *)x->data)[i] = (int64_t)from[i];
    }
    iso_tensor_destroy(&like);
    return x;
}

static void check_embedding(const char *name, bool padding, iso_dtype dtype, iso_dtype indices) {
    iso_embedding_config config = {
        .num_embeddings = 5, .embedding_dim = 3, .has_padding = padding, .padding_idx = 2};
    iso_module *module;
    iso_tensor *x = indices_of(name, "x", indices), *y;
    iso_tensor *dy = fixture_tensor_of(golden, device, dtype, name, "dy");
    cr_ok(iso_embedding_create(device, &config, &rng, &module));
    cr_ok(iso_module_to(module, dtype));
    load_parameters(name, module);
    cr_ok(iso_module_forward(module, x, &y));
    fixture_compare(golden, name, "y", y, tolerance_of(dtype));
    cr_ok(iso_module_backward(module, dy, NULL));
    compare_gradients(name, module, tolerance_of(dtype));
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
    iso_module_destroy(&module);
}

Test(small_layers, embedding_is_torch_Embedding) {
    open_all();
    for (int i = 0; i < 4; i++) {
        iso_dtype dtype = i & 1 ? ISO_F64 : ISO_F32, indices = i & 2 ? ISO_I64 : ISO_I32;
        check_embedding("embedding", false, dtype, indices);
        check_embedding("embedding_padding", true, dtype, indices);
    }
    close_all();
}

Test(small_layers, padding_row_of_an_embedding_begins_with_zeros) {
    device = open_cpu();
    iso_embedding_config config = {
        .num_embeddings = 4, .embedding_dim = 2, .has_padding = true, .padding_idx = 1};
    iso_module *module;
    cr_ok(iso_embedding_create(device, &config, &rng, &module));
    const float *w = module->parameter[0]->value->data;
    for (int i = 0; i < 8; i++) cr_assert_eq(w[i] == 0, i / 2 == 1, "%d", i);
    iso_module_destroy(&module);
    close_cpu(&device);
}

// ---- A GPT --------------------------------------------------------------------------------------

static void train_gpt(iso_dtype dtype, double tolerance) {
    int64_t count;
    const double *losses = fixture_get(golden, "gpt", "losses", &count), *from;
    iso_module *net;
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_tensor *out, *grad, *x = indices_of("gpt", "x", ISO_I32);
    int32_t labels[4 * GPT_LENGTH];
    from = fixture_get(golden, "gpt", "labels", NULL);
    for (int i = 0; i < 4 * GPT_LENGTH; i++) labels[i] = (int32_t)from[i];
    cr_ok(build_gpt(device, 0, &rng, &net));
    cr_ok(iso_module_to(net, dtype));
    load_parameters("gpt", net);
    iso_hyper hyper = iso_hyper_default(ISO_ADAMW);
    hyper.lr = 0.01;
    cr_ok(iso_optimizer_create(ISO_ADAMW, net, &hyper, &optimizer));
    cr_ok(iso_loss_create(device, ISO_CROSS_ENTROPY, &loss));
    for (int t = 0; t < count; t++) {
        double value;
        cr_ok(iso_module_forward(net, x, &out));
        cr_ok(iso_loss_compute(loss, out, labels, &value, NULL, &grad));
        cr_assert_float_eq(value, losses[t], tolerance * losses[t], "loss %d is %.17g, not %.17g",
                           t, value, losses[t]);
        iso_optimizer_zero_grad(optimizer);
        cr_ok(iso_module_backward(net, grad, NULL));
        if (t == 0) compare_gradients("gpt", net, 10 * tolerance);
        cr_ok(iso_optimizer_step(optimizer));
    }
    cr_assert_lt(losses[count - 1], 0.9 * losses[0], "it learns");
    iso_tensor_destroy(&x);
    iso_loss_destroy(&loss);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&net);
}

Test(small_layers, a_small_gpt_trains_as_in_torch) {
    open_all();
    train_gpt(ISO_F64, 1e-12);
    train_gpt(ISO_F32, 2e-5);
    close_all();
}

// ---- What is refused ----------------------------------------------------------------------------

Test(small_layers, wrong_input_is_refused) {
    device = open_cpu();
    iso_module *net, *linear, *cast;
    iso_tensor *out, *dx, *x, *floats = random_tensor(device, 2, (int64_t[]){2, 3}, 1);
    cr_ok(build_gpt(device, 0, &rng, &net));
    cr_ok(iso_tensor_create(device, ISO_I32, 2, (int64_t[]){2, 3}, &x));
    int32_t *tokens = x->data;
    for (int i = 0; i < 6; i++) tokens[i] = i;
    cr_fails(iso_module_forward(net, floats, &out), ISO_ERR_TYPE,
             "Embedding \"wte\" takes indices, i32 or i64, but got f32");
    cr_ok(iso_linear_create(device, 3, 3, true, &rng, &linear));
    cr_fails(iso_module_forward(linear, x, &out), ISO_ERR_TYPE, "put an Embedding in front");
    cr_ok(iso_relu_create(device, &cast));
    cr_fails(iso_module_forward(cast, x, &out), ISO_ERR_TYPE, "does not take indices");
    cr_ok(iso_module_forward(net, x, &out));
    iso_tensor *g = random_tensor(device, 3, (int64_t[]){2, 3, GPT_VOCABULARY}, 1);
    cr_fails(iso_module_backward(net, g, &dx), ISO_ERR_UNSUPPORTED,
             "Embedding \"wte\" has no gradient with respect to its input");
    tokens[4] = GPT_VOCABULARY;
    cr_fails(iso_module_forward(net, x, &out), ISO_ERR_ARG,
             "element 4 of the input of an Embedding");
    tokens[4] = -1;
    cr_fails(iso_module_forward(net, x, &out), ISO_ERR_ARG, "is -1, which is not in [0, 11)");
    iso_tensor_destroy(&g);
    iso_tensor_destroy(&x);
    cr_ok(iso_tensor_create(device, ISO_I64, 2, (int64_t[]){1, GPT_LENGTH + 1}, &x));
    memset(x->data, 0, (GPT_LENGTH + 1) * sizeof(int64_t));
    cr_fails(iso_module_forward(net, x, &out), ISO_ERR_SHAPE, "with L at most 6 but got [1, 7, 8]");
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&floats);
    iso_module_destroy(&cast);
    iso_module_destroy(&linear);
    iso_module_destroy(&net);
    close_cpu(&device);
}

#define REFUSED(text, create, ...)                                                                 \
    do {                                                                                           \
        cr_fails(create(device, __VA_ARGS__, &module), ISO_ERR_ARG, text);                         \
        cr_assert_null(module);                                                                    \
    } while (0)

Test(small_layers, settings_without_a_meaning_are_refused) {
    device = open_cpu();
    iso_module *module = NULL;
    const iso_embedding_config rows = {.num_embeddings = 0, .embedding_dim = 2};
    const iso_embedding_config padding = {
        .num_embeddings = 3, .embedding_dim = 2, .has_padding = true, .padding_idx = 3};
    const iso_attention_config heads = {.embed_dim = 6, .num_heads = 4};
    const iso_group_norm_config groups = {.num_groups = 4, .num_channels = 6};
    const iso_group_norm_config eps = {.num_groups = 3, .num_channels = 6, .eps = -1};
    iso_conv_transpose2d_config conv = {
        .conv = {.in_channels = 3, .out_channels = 4, .kernel_size = {3, 3}, .stride = {2, 2}},
        .output_padding = {1, 2}};
    REFUSED("0 rows of 2", iso_embedding_create, &rows, &rng);
    REFUSED("padding index 3", iso_embedding_create, &padding, &rng);

    REFUSED("0 positions of 4", iso_position_embedding_create, 0, 4, &rng);
    REFUSED("width 6 with 4 heads", iso_multihead_attention_create, &heads, &rng);
    REFUSED("6 channels in 4 groups", iso_group_norm_create, &groups);
    REFUSED("eps -1", iso_group_norm_create, &eps);
    REFUSED("output padding 2 and stride 2", iso_conv_transpose2d_create, &conv, &rng);
    conv.output_padding[1] = 1;
    conv.conv.groups = 2;
    REFUSED("3 to 4 channels in 2 groups", iso_conv_transpose2d_create, &conv, &rng);
    conv.conv = (iso_conv2d_config){.in_channels = 3, .out_channels = 4};
    REFUSED("kernel size 0", iso_conv_transpose2d_create, &conv, &rng);
    close_cpu(&device);
}
