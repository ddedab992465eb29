// SPDX-License-Identifier: MIT
// Layers of several inputs or outputs in f64: values against loops that follow the formulas,
// gradients against central differences, and cross-attention against PyTorch's self-attention.
#include "common/fixture.h"
#include "common/nn_fixture.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <string.h>

TestSuite(tuple_layers, .timeout = 60);

// The differences have an error of about STEP^2, and of 1e-16 / STEP from rounding.
#define STEP      1e-5
#define TOLERANCE 1e-8

static iso_device *device;
static iso_rng rng;

typedef struct shape {
    int ndim;
    int64_t size[4];
} shape;

// ---- Central differences ------------------------------------------------------------------------

typedef struct tuple_check {
    iso_module *module; // owned
    iso_tensors in, weight;
    iso_parameter_list list;
} tuple_check;

// Sum of weight * output over all outputs.
static double objective(tuple_check *c) {
    iso_tensors out;
    double sum = 0;
    cr_ok(iso_module_forward_many(c->module, &c->in, &out));
    for (int k = 0; k < out.count; k++) {
        double *y = tensor_doubles(out.item[k]), *w = tensor_doubles(c->weight.item[k]);
        for (int64_t i = 0; i < out.item[k]->count; i++) sum += w[i] * y[i];
        free(y), free(w);
    }
    return sum;
}

static void compare(tuple_check *c, const char *what, iso_tensor *of, iso_tensor *gradient) {
    double *g = tensor_doubles(gradient), *x = of->data, largest = 1;
    for (int64_t i = 0; i < of->count; i++) largest = fmax(largest, fabs(g[i]));
    for (int64_t i = 0; i < of->count; i++) {
        double kept = x[i];
        x[i] = kept + STEP;
        double above = objective(c);
        x[i] = kept - STEP;
        double wanted = (above - objective(c)) / (2 * STEP);
        x[i] = kept;
        cr_assert(fabs(g[i] - wanted) <= TOLERANCE * largest,
                  "%s: gradient of %s[%lld] is %.12g, differences give %.12g", c->module->ops->type,
                  what, (long long)i, g[i], wanted);
    }
    free(g);
}

static void compare_all(tuple_check *c) {
    iso_tensors given = {.count = c->weight.count}, grad_in;
    iso_tensor *kept[ISO_MODULE_TENSORS];
    for (int k = 0; k < given.count; k++) {
        iso_tensor *w = c->weight.item[k];
        given.item[k] = random_tensor_of(device, ISO_F64, w->ndim, w->shape, 40 + (uint64_t)k);
    }
    (void)objective(c);
    iso_module_zero_grad(c->module);
    cr_ok(iso_module_backward_many(c->module, &given, ISO_WANT_ALL, &grad_in));
    cr_assert_eq(grad_in.count, c->in.count);
    for (int i = 0; i < grad_in.count; i++) { // forwards to come reuse the originals
        kept[i] = random_tensor_of(device, ISO_F64, c->in.item[i]->ndim, c->in.item[i]->shape, 0);
        cr_ok(iso_tensor_copy(grad_in.item[i], kept[i]));
    }
    for (int i = 0; i < c->in.count; i++) {
        compare(c, "an input", c->in.item[i], kept[i]);
        iso_tensor_destroy(&kept[i]);
    }
    for (int i = 0; i < c->list.count; i++)
        compare(c, c->list.name[i], c->list.item[i]->value, c->list.item[i]->grad);
    for (int k = 0; k < given.count; k++) iso_tensor_destroy(&given.item[k]);
}

// Gives the module random parameters, also where they start as 0.
static void fill_parameters(iso_module *module, iso_parameter_list *list) {
    cr_ok(iso_module_to(module, ISO_F64));
    cr_ok(iso_module_parameters(module, list));
    for (int i = 0; i < list->count; i++) {
        iso_tensor *value = list->item[i]->value;
        iso_tensor *other =
            random_tensor_of(device, ISO_F64, value->ndim, value->shape, 60 + (uint64_t)i);
        cr_ok(iso_tensor_copy(other, value));
        iso_tensor_destroy(&other);
    }
}

static iso_tensors random_inputs(int count, const shape *shapes) {
    iso_tensors in = {.count = count};
    for (int i = 0; i < count; i++)
        in.item[i] =
            random_tensor_of(device, ISO_F64, shapes[i].ndim, shapes[i].size, 20 + (uint64_t)i);
    return in;
}

static void destroy_items(iso_tensors *tuple) {
    for (int i = 0; i < tuple->count; i++) iso_tensor_destroy(&tuple->item[i]);
}

// Takes module.
static void check(iso_module *module, int count, const shape *shapes) {
    tuple_check c = {.module = module, .in = random_inputs(count, shapes)};
    iso_tensors out;
    fill_parameters(module, &c.list);
    cr_ok(iso_module_forward_many(module, &c.in, &out));
    c.weight.count = out.count;
    for (int k = 0; k < out.count; k++)
        c.weight.item[k] = random_tensor_of(device, ISO_F64, out.item[k]->ndim, out.item[k]->shape,
                                            40 + (uint64_t)k);
    compare_all(&c);
    destroy_items(&c.in);
    destroy_items(&c.weight);
    iso_parameter_list_destroy(&c.list);
    iso_module_destroy(&c.module);
}

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

static void bilinears(void) {
    static const shape rows[2] = {{2, {4, 3}}, {2, {4, 5}}};
    static const shape sequences[2] = {{3, {2, 4, 3}}, {3, {2, 4, 5}}};
    for (int bias = 0; bias < 2; bias++) {
        iso_module *m;
        cr_ok(iso_bilinear_create(device, 3, 5, 2, bias, &rng, &m));
        check(m, 2, bias ? rows : sequences);
    }
}
Test(tuple_layers, gradients_of_bilinear) { on_each_set(bilinears); }

static void joins(void) {
    static const shape columns[3] = {{2, {3, 2}}, {2, {3, 4}}, {2, {3, 1}}};
    static const shape planes[2] = {{4, {2, 3, 2, 3}}, {4, {2, 1, 2, 3}}};
    iso_module *m;
    for (int dim = -1; dim <= 1; dim += 2) {
        cr_ok(iso_concat_create(device, dim, &m));
        check(m, 3, columns);
    }
    cr_ok(iso_concat_create(device, 1, &m));
    check(m, 2, planes);
    cr_ok(iso_split_create(device, -2, 2, (int64_t[]){2, 1}, &m));
    check(m, 1, columns); // along the batch
    cr_ok(iso_split_create(device, 1, 3, (int64_t[]){1, 1, 1}, &m));
    check(m, 1, planes);
}
Test(tuple_layers, gradients_of_concat_and_split) { on_each_set(joins); }

static void attentions(void) {
    static const shape in[3] = {{3, {2, 4, 6}}, {3, {2, 5, 6}}, {3, {2, 5, 6}}};
    for (int count = 2; count <= 3; count++)
        for (int causal = 0; causal < 2; causal++) {
            iso_attention_config config = {
                .embed_dim = 6, .num_heads = 3, .causal = causal, .no_bias = causal};
            iso_module *m;
            cr_ok(iso_multihead_attention_create(device, &config, &rng, &m));
            check(m, count, in);
        }
}
Test(tuple_layers, gradients_of_cross_attention) { on_each_set(attentions); }

// Split, a branch for each part, and Bilinear of both.
static void chains(void) {
    static const shape in[1] = {{2, {4, 5}}};
    iso_module *net, *branches, *m;
    cr_ok(iso_sequential_create(device, &net));
    cr_ok(iso_split_create(device, 1, 2, (int64_t[]){3, 2}, &m));
    cr_ok(iso_sequential_add_take(net, "split", m));
    cr_ok(iso_branches_create(device, &branches));
    cr_ok(iso_linear_create(device, 3, 4, true, &rng, &m));
    cr_ok(iso_branches_add_take(branches, "left", m));
    cr_ok(iso_tanh_create(device, &m));
    cr_ok(iso_branches_add_take(branches, "right", m));
    cr_ok(iso_sequential_add_take(net, "towers", branches));
    cr_ok(iso_bilinear_create(device, 4, 2, 3, true, &rng, &m));
    cr_ok(iso_sequential_add_take(net, "join", m));
    check(net, 1, in);
}
Test(tuple_layers, gradients_of_a_chain) { on_each_set(chains); }

// ---- Values -------------------------------------------------------------------------------------

static void expect_near(iso_tensor *tensor, const double *wanted, const char *what) {
    double *y = tensor_doubles(tensor);
    for (int64_t i = 0; i < tensor->count; i++)
        cr_assert(fabs(y[i] - wanted[i]) < 1e-12, "%s[%lld] is %g, not %g", what, (long long)i,
                  y[i], wanted[i]);
    free(y);
}

// Forward of random inputs, which *in gets.
static iso_tensor *run_random(iso_module *module, int count, const shape *shapes,
                              iso_parameter_list *list, iso_tensors *in) {
    iso_tensors out;
    fill_parameters(module, list);
    *in = random_inputs(count, shapes);
    cr_ok(iso_module_forward_many(module, in, &out));
    cr_assert_eq(out.count, 1);
    return out.item[0];
}

static void close_all(iso_module **module, iso_parameter_list *list, iso_tensors *in) {
    destroy_items(in);
    iso_parameter_list_destroy(list);
    iso_module_destroy(module);
    close_cpu(&device);
}

enum { N = 4, I = 3, J = 5, O = 2 };

Test(tuple_layers, bilinear_follows_its_formula) {
    device = open_cpu();
    iso_module *m;
    iso_parameter_list list;
    iso_tensors in;
    double wanted[N * O];
    cr_ok(iso_bilinear_create(device, I, J, O, true, &rng, &m));
    iso_tensor *y = run_random(m, 2, (shape[]){{2, {N, I}}, {2, {N, J}}}, &list, &in);
    const double *a = in.item[0]->data, *b = in.item[1]->data;
    const double *w = list.item[0]->value->data, *bias = list.item[1]->value->data;
    for (int n = 0; n < N; n++)
        for (int o = 0; o < O; o++) {
            double sum = bias[o];
            for (int i = 0; i < I; i++)
                for (int j = 0; j < J; j++)
                    sum += a[n * I + i] * w[(o * I + i) * J + j] * b[n * J + j];
            wanted[n * O + o] = sum;
        }
    expect_near(y, wanted, "y");
    close_all(&m, &list, &in);
}

Test(tuple_layers, split_and_concat_move_values) {
    device = open_cpu();
    iso_module *split, *concat;
    iso_tensors in = random_inputs(1, (shape[]){{3, {2, 5, 3}}}), parts, whole;
    cr_ok(iso_split_create(device, 1, 2, (int64_t[]){2, 3}, &split));
    cr_ok(iso_concat_create(device, 1, &concat));
    cr_ok(iso_module_forward_many(split, &in, &parts));
    cr_assert_eq(parts.count, 2);
    cr_assert_eq(parts.item[1]->shape[1], 3);
    const double *x = in.item[0]->data, *part = parts.item[1]->data;
    for (int n = 0; n < 2; n++)
        for (int k = 0; k < 9; k++) cr_assert_eq(part[n * 9 + k], x[n * 15 + 6 + k]);
    cr_ok(iso_module_forward_many(concat, &parts, &whole));
    cr_assert(same_values(whole.item[0], in.item[0]));
    destroy_items(&in);
    iso_module_destroy(&split);
    iso_module_destroy(&concat);
    close_cpu(&device);
}

enum { L = 4, S = 5, E = 6, HEADS = 2, WIDTH = E / HEADS };

// row . weight[first + o] + bias[first + o]
static double project(const double *row, const double *weight, const double *bias, int o) {
    double sum = bias[o];
    for (int e = 0; e < E; e++) sum += row[e] * weight[o * E + e];
    return sum;
}

// One row of the output before its projection, for a query of one sequence of keys and values.
static void attend(const double *query, const double *keys, const double *values, int seen,
                   const double *w, const double *b, double *row) {
    for (int h = 0; h < HEADS; h++) {
        double weight[S], sum = 0;
        for (int s = 0; s < seen; s++) {
            double dot = 0;
            for (int k = h * WIDTH; k < (h + 1) * WIDTH; k++)
                dot += project(query, w, b, k) * project(keys + s * E, w, b, E + k);
            sum += weight[s] = exp(dot / sqrt(WIDTH));
        }
        for (int k = h * WIDTH; k < (h + 1) * WIDTH; k++) {
            row[k] = 0;
            for (int s = 0; s < seen; s++)
                row[k] += weight[s] / sum * project(values + s * E, w, b, 2 * E + k);
        }
    }
}

static void attention_by_loops(bool causal, int inputs) {
    device = open_cpu();
    iso_attention_config config = {.embed_dim = E, .num_heads = HEADS, .causal = causal};
    iso_module *m;
    iso_parameter_list list;
    iso_tensors in;
    double wanted[2 * L * E], row[E];
    cr_ok(iso_multihead_attention_create(device, &config, &rng, &m));
    static const shape shapes[3] = {{3, {2, L, E}}, {3, {2, S, E}}, {3, {2, S, E}}};
    iso_tensor *y = run_random(m, inputs, shapes, &list, &in);
    const double *x[3], *p[4];
    for (int i = 0; i < 3; i++) x[i] = in.item[i < inputs ? i : inputs - 1]->data;
    for (int i = 0; i < 4; i++) p[i] = list.item[i]->value->data;
    for (int n = 0; n < 2; n++)
        for (int l = 0; l < L; l++) {
            attend(x[0] + (n * L + l) * E, x[1] + n * S * E, x[2] + n * S * E, causal ? l + 1 : S,
                   p[0], p[1], row);
            for (int e = 0; e < E; e++) wanted[(n * L + l) * E + e] = project(row, p[2], p[3], e);
        }
    expect_near(y, wanted, "y");
    close_all(&m, &list, &in);
}

Test(tuple_layers, cross_attention_follows_its_formula) {
    for (int inputs = 2; inputs <= 3; inputs++)
        for (int causal = 0; causal < 2; causal++) attention_by_loops(causal, inputs);
}

// ---- PyTorch ------------------------------------------------------------------------------------

// The golden values of self-attention, with its input given several times: the gradient of the
// input is then the sum of those of the inputs.
static void golden_attention(const char *name, const iso_attention_config *config, int inputs) {
    device = open_cpu();
    fixture *golden = fixture_open("small_layers.txt");
    iso_module *m;
    iso_parameter_list list;
    char grad[64];
    cr_ok(iso_multihead_attention_create(device, config, &rng, &m));
    cr_ok(iso_module_to(m, ISO_F64));
    cr_ok(iso_module_parameters(m, &list));
    for (int i = 0; i < list.count; i++)
        fixture_load(golden, name, list.name[i], list.item[i]->value);
    iso_tensor *x = fixture_tensor_of(golden, device, ISO_F64, name, "x");
    iso_tensor *dy = fixture_tensor_of(golden, device, ISO_F64, name, "dy");
    iso_tensors in = {.count = inputs, .item = {x, x, x}}, out, dx;
    cr_ok(iso_module_forward_many(m, &in, &out));
    fixture_compare(golden, name, "y", out.item[0], 1e-13);
    cr_ok(iso_module_backward_many(m, &(iso_tensors){.count = 1, .item = {dy}}, ISO_WANT_ALL, &dx));
    for (int i = 1; i < inputs; i++)
        for (int64_t k = 0; k < x->count; k++)
            ((double *)dx.item[0]->data)[k] += ((double *)dx.item[i]->data)[k];
    fixture_compare(golden, name, "dx", dx.item[0], 1e-13);
    snprintf(grad, sizeof(grad), "%s.grad", name);
    for (int i = 0; i < list.count; i++)
        fixture_compare(golden, grad, list.name[i], list.item[i]->grad, 1e-13);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
    iso_parameter_list_destroy(&list);
    iso_module_destroy(&m);
    fixture_close(&golden);
    close_cpu(&device);
}

Test(tuple_layers, attention_of_one_tensor_given_several_times_is_torch_MultiheadAttention) {
    for (int inputs = 1; inputs <= 3; inputs++) {
        golden_attention("attention", &(iso_attention_config){.embed_dim = 6, .num_heads = 3},
                         inputs);
        golden_attention("attention_causal",
                         &(iso_attention_config){.embed_dim = 8, .num_heads = 2, .causal = true},
                         inputs);
        golden_attention("attention_plain",
                         &(iso_attention_config){
                             .embed_dim = 4, .num_heads = 1, .causal = true, .no_bias = true},
                         inputs);
    }
}

// ---- What is refused ----------------------------------------------------------------------------

static void expect_misfit(iso_module *m, int count, const shape *shapes, const char *text) {
    iso_tensors in = random_inputs(count, shapes), out;
    cr_ok(iso_module_to(m, ISO_F64));
    cr_fails(iso_module_forward_many(m, &in, &out), ISO_ERR_SHAPE, text);
    destroy_items(&in);
}

Test(tuple_layers, shapes_that_do_not_fit_are_refused) {
    device = open_cpu();
    iso_module *m;
    cr_ok(iso_bilinear_create(device, 3, 5, 2, true, &rng, &m));
    expect_misfit(m, 2, (shape[]){{2, {4, 5}}, {2, {4, 3}}},
                  "Bilinear expects [N, ..., 3] as its first input but got [4, 5]");
    expect_misfit(m, 2, (shape[]){{2, {4, 3}}, {2, {2, 5}}},
                  "Bilinear expects [4, 5] as its second input but got [2, 5]");
    iso_module_destroy(&m);
    cr_ok(iso_concat_create(device, 1, &m));
    expect_misfit(
        m, 2, (shape[]){{2, {4, 5}}, {2, {3, 3}}},
        "Concat expects tensors that differ in dimension 1 only, as [4, 5] but got [3, 3]");
    iso_module_destroy(&m);
    cr_ok(iso_split_create(device, 2, 2, (int64_t[]){2, 2}, &m));
    expect_misfit(m, 1, (shape[]){{2, {4, 5}}}, "Split expects a tensor with a dimension 2");
    expect_misfit(m, 1, (shape[]){{3, {1, 4, 5}}}, "Split expects 4 in dimension 2");
    iso_module_destroy(&m);
    iso_attention_config config = {.embed_dim = 6, .num_heads = 3};
    cr_ok(iso_multihead_attention_create(device, &config, &rng, &m));
    expect_misfit(m, 2, (shape[]){{3, {2, 4, 6}}, {3, {1, 5, 6}}},
                  "MultiheadAttention expects [2, S, 6] as keys and values but got [1, 5, 6]");
    expect_misfit(m, 3, (shape[]){{3, {2, 4, 6}}, {3, {2, 4, 6}}, {3, {2, 5, 6}}},
                  "MultiheadAttention expects [2, 5, 6] as keys but got [2, 4, 6]");
    iso_module_destroy(&m);
    close_cpu(&device);
}

Test(tuple_layers, settings_without_a_meaning_are_refused) {
    device = open_cpu();
    iso_module *m;
    cr_fails(iso_bilinear_create(device, 3, 0, 2, true, &rng, &m), ISO_ERR_ARG, "of 3 and 0 to 2");
    cr_fails(iso_bilinear_create(device, 3, 1, 2, true, NULL, &m), ISO_ERR_ARG, "random numbers");
    cr_fails(iso_concat_create(device, ISO_MAX_DIMS, &m), ISO_ERR_ARG, "a Concat along");
    cr_fails(iso_split_create(device, 1, 9, NULL, &m), ISO_ERR_ARG, "into 9 parts");
    cr_fails(iso_split_create(device, 1, 2, (int64_t[]){1, 0}, &m), ISO_ERR_ARG,
             "part 1 has size 0");
    cr_fails(iso_split_create(device, 1, 2, (int64_t[]){INT64_MAX, 3}, &m), ISO_ERR_ARG,
             "part 0 has size 9223372036854775807");
    close_cpu(&device);
}
