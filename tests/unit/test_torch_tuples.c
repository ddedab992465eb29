// SPDX-License-Identifier: MIT
// Layers of several inputs or outputs against PyTorch in float64: Bilinear, attention to other
// inputs, cat and split.
#include "common/fixture.h"
#include "common/nn_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(torch_tuples, .timeout = 60);

static iso_device *device;
static fixture *golden;
static iso_rng rng;

static double tolerance_of(iso_dtype dtype) { return dtype == ISO_F64 ? 1e-13 : 5e-6; }

// "PREFIX0" and so on.
static const char *name_of(const char *prefix, int i) {
    static char name[16];
    snprintf(name, sizeof(name), "%s%d", prefix, i);
    return name;
}

// One run: a layer in one type and layout, with the arrays of PyTorch whose names begin with
// `name`.
typedef struct run {
    const char *name;
    iso_module *module;
    iso_dtype dtype;
    iso_layout layout; // of inputs and of gradients of outputs
    int inputs, outputs;
} run;

static iso_tensors load_tuple(const run *r, const char *prefix, int count) {
    iso_tensors tuple = {.count = count};
    for (int i = 0; i < count; i++) {
        iso_tensor *x = fixture_tensor_of(golden, device, r->dtype, r->name, name_of(prefix, i)),
                   *to;
        tuple.item[i] = x;
        if (r->layout == ISO_LAYOUT_LOGICAL) continue;
        cr_ok(iso_tensor_create(device, r->dtype, 4, iso_tensor_shape(x), &to));
        cr_ok(iso_tensor_resize(to, 4, iso_tensor_shape(x), r->layout));
        cr_ok(iso_tensor_copy(x, to));
        iso_tensor_destroy(&x);
        tuple.item[i] = to;
    }
    return tuple;
}

static void destroy_tuple(iso_tensors *tuple) {
    for (int i = 0; i < tuple->count; i++) iso_tensor_destroy(&tuple->item[i]);
}

static void compare_outputs(const run *r, const iso_tensors *out) {
    cr_assert_eq(out->count, r->outputs, "%s gives %d outputs", r->name, out->count);
    for (int i = 0; i < out->count; i++)
        fixture_compare(golden, r->name, name_of("y", i), out->item[i], tolerance_of(r->dtype));
}

// Of parameters after `times` backward calls, which added equal gradients.
static void compare_parameters(const run *r, int times) {
    char prefix[64];
    iso_parameter_list list;
    snprintf(prefix, sizeof(prefix), "%s.grad", r->name);
    cr_ok(iso_module_parameters(r->module, &list));
    for (int i = 0; i < list.count; i++) {
        iso_tensor *grad;
        cr_ok(iso_parameter_grad(list.item[i], &grad));
        cr_ok(iso_tensor_scale(grad, 1.0 / times));
        fixture_compare(golden, prefix, list.name[i], grad, tolerance_of(r->dtype));
        cr_ok(iso_tensor_scale(grad, times));
    }
    iso_parameter_list_destroy(&list);
}

// Forward, and backward for the gradients of the inputs that `wanted` has bits of.
static void pass_once(const run *r, const iso_tensors *in, unsigned wanted) {
    iso_tensors out, grad_in, dy = load_tuple(r, "dy", r->outputs);
    cr_ok(iso_module_forward_many(r->module, in, &out));
    compare_outputs(r, &out);
    cr_ok(iso_module_backward_many(r->module, &dy, wanted, &grad_in));
    for (int i = 0; i < r->inputs; i++) {
        cr_assert_eq(grad_in.item[i] != NULL, wanted >> i & 1, "%s: gradient %d", r->name, i);
        if (grad_in.item[i])
            fixture_compare(golden, r->name, name_of("dx", i), grad_in.item[i],
                            tolerance_of(r->dtype));
    }
    destroy_tuple(&dy);
}

// All gradients at once, then those of each input alone, on top of the first.
static void compare_run(const run *r) {
    iso_tensors in = load_tuple(r, "x", r->inputs);
    iso_module_zero_grad(r->module);
    pass_once(r, &in, (1U << r->inputs) - 1);
    compare_parameters(r, 1);
    for (int i = 0; i < r->inputs; i++) pass_once(r, &in, 1U << i);
    compare_parameters(r, 1 + r->inputs);
    destroy_tuple(&in);
}

static void load_parameters(const run *r) {
    iso_parameter_list list;
    cr_ok(iso_module_to(r->module, r->dtype));
    cr_ok(iso_module_parameters(r->module, &list));
    for (int i = 0; i < list.count; i++)
        fixture_load(golden, r->name, list.name[i], list.item[i]->value);
    iso_parameter_list_destroy(&list);
}

// Takes module. image: inputs have 4 dimensions, and may come as from a convolution.
static void check(const char *name, iso_module *module, int inputs, int outputs, bool image) {
    run r = {.name = name, .module = module, .inputs = inputs, .outputs = outputs};
    for (int i = 0; i < 2; i++) {
        r.dtype = i ? ISO_F64 : ISO_F32;
        load_parameters(&r);
        r.layout = ISO_LAYOUT_LOGICAL;
        compare_run(&r);
        r.layout = ISO_LAYOUT_BLOCKED;
        if (image && r.dtype == ISO_F32) compare_run(&r);
    }
    iso_module_destroy(&r.module);
}

// Runs the body on each kernel set.
static void on_each_set(void (*body)(void)) {
    static const char *const sets[] = {"onednn", "cblas", "reference"};
    golden = fixture_open("tuples.txt");
    for (int i = 0; i < 3; i++) {
        setenv("ISO_CPU_KERNELS", sets[i], 1);
        if (iso_device_create("cpu", &device) < 0) continue;
        body();
        close_cpu(&device);
    }
    fixture_close(&golden);
}

// ---- Layers ---------------------------------------------------------------------------------------

static void check_bilinear(const char *name, int64_t in1, int64_t in2, int64_t out, bool bias) {
    iso_module *m;
    cr_ok(iso_bilinear_create(device, in1, in2, out, bias, &rng, &m));
    check(name, m, 2, 1, false);
}

static void bilinears(void) {
    check_bilinear("bilinear", 3, 5, 2, true);
    check_bilinear("bilinear_sequences", 4, 2, 3, false);
    check_bilinear("bilinear_one", 1, 6, 1, true);
}
Test(torch_tuples, bilinear_is_torch_Bilinear) { on_each_set(bilinears); }

static void check_attention(const char *name, int inputs, iso_attention_config config) {
    iso_module *m;
    cr_ok(iso_multihead_attention_create(device, &config, &rng, &m));
    check(name, m, inputs, 1, false);
}

static void attentions(void) {
    check_attention("cross", 2, (iso_attention_config){.embed_dim = 6, .num_heads = 3});
    check_attention("cross_causal", 2,
                    (iso_attention_config){.embed_dim = 8, .num_heads = 2, .causal = true});
    check_attention(
        "cross_causal_long", 2,
        (iso_attention_config){.embed_dim = 4, .num_heads = 2, .causal = true, .no_bias = true});
    check_attention("three", 3, (iso_attention_config){.embed_dim = 6, .num_heads = 2});
    check_attention(
        "three_causal", 3,
        (iso_attention_config){.embed_dim = 4, .num_heads = 1, .causal = true, .no_bias = true});
}
Test(torch_tuples, attention_to_other_inputs_is_torch_MultiheadAttention) {
    on_each_set(attentions);
}

static void check_concat(const char *name, int dim, int inputs) {
    iso_module *m;
    cr_ok(iso_concat_create(device, dim, &m));
    check(name, m, inputs, 1, strcmp(name, "cat_channels") == 0);
}

static void concats(void) {
    check_concat("cat_columns", 1, 3);
    check_concat("cat_last", -1, 2);
    check_concat("cat_rows", 0, 3);
    check_concat("cat_channels", 1, 2);
}
Test(torch_tuples, concat_is_torch_cat) { on_each_set(concats); }

static void check_split(const char *name, int dim, int parts, const int64_t *sizes) {
    iso_module *m;
    cr_ok(iso_split_create(device, dim, parts, sizes, &m));
    check(name, m, 1, parts, strcmp(name, "split_channels") == 0);
}

static void splits(void) {
    check_split("split_columns", 1, 3, (int64_t[]){2, 1, 4});
    check_split("split_rows", -2, 2, (int64_t[]){3, 1});
    check_split("split_channels", 1, 2, (int64_t[]){3, 5});
}
Test(torch_tuples, split_is_torch_split) { on_each_set(splits); }
