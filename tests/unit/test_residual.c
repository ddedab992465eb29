// SPDX-License-Identifier: MIT
// The residual container: sums, gradients of both branches, layouts, frozen branches, names.
#include "common/gradcheck.h"
#include "common/nn_fixture.h"
#include "common/oracle.h"

#include "tensor/tensor_impl.h"

#include <math.h>
#include <string.h>

TestSuite(residual, .timeout = 60);

enum { ROWS = 4, FEATURES = 5 };

static iso_device *device;
static iso_rng rng;

static void add(iso_module *net, iso_status made, iso_module **layer) {
    cr_ok(made);
    cr_ok(iso_sequential_add_take(net, NULL, *layer));
}

static iso_module *new_sequential(void) {
    iso_module *net;
    cr_ok(iso_sequential_create(device, &net));
    return net;
}

static iso_module *new_residual(iso_module *body, iso_module *shortcut, bool relu) {
    iso_module *m;
    cr_ok(iso_residual_create_take(device, body, shortcut, relu, &m));
    return m;
}

// linear, relu, linear.
static iso_module *new_body(void) {
    iso_module *body = new_sequential(), *m;
    add(body, iso_linear_create(device, FEATURES, FEATURES, true, &rng, &m), &m);
    add(body, iso_relu_create(device, &m), &m);
    add(body, iso_linear_create(device, FEATURES, FEATURES, true, &rng, &m), &m);
    return body;
}

static iso_module *new_projection(void) {
    iso_module *shortcut = new_sequential(), *m;
    add(shortcut, iso_linear_create(device, FEATURES, FEATURES, true, &rng, &m), &m);
    return shortcut;
}

static void open(void) {
    device = open_cpu();
    rng = (iso_rng){.seed = 4};
}

// ---- Values and gradients against the double-precision reference --------------------------------

typedef struct form {
    bool relu, projection;
    int uses;
} form;

static void reference(const void *user, const double *x, double *const *p, double *y) {
    const form *f = user;
    double in[ROWS * FEATURES], hidden[ROWS * FEATURES], shortcut[ROWS * FEATURES];
    memcpy(in, x, sizeof(in));
    for (int use = 0; use < f->uses; use++) {
        memcpy(shortcut, in, sizeof(in));
        if (f->projection) oracle_linear(ROWS, FEATURES, FEATURES, in, p[4], p[5], false, shortcut);
        oracle_linear(ROWS, FEATURES, FEATURES, in, p[0], p[1], true, hidden);
        oracle_linear(ROWS, FEATURES, FEATURES, hidden, p[2], p[3], false, y);
        for (int i = 0; i < ROWS * FEATURES; i++) {
            y[i] += shortcut[i];
            if (f->relu) y[i] = fmax(y[i], 0);
        }
        memcpy(in, y, sizeof(in));
    }
}

static void check_form(form f) {
    open();
    iso_module *net = new_sequential();
    iso_module *block = new_residual(new_body(), f.projection ? new_projection() : NULL, f.relu);
    for (int use = 0; use < f.uses; use++)
        cr_ok(iso_sequential_add_take(net, NULL, iso_module_retain(block)));
    gradcheck check = {
        .module = net, .ndim = 2, .shape = {ROWS, FEATURES}, .forward = reference, .user = &f};
    const char *problem = gradcheck_run(&check);
    cr_assert_null(problem, "%s", problem);
    iso_module_destroy(&block);
    iso_module_destroy(&net);
    close_cpu(&device);
}

Test(residual, identity) { check_form((form){false, false, 1}); }
Test(residual, identity_with_relu) { check_form((form){true, false, 1}); }
Test(residual, projection) { check_form((form){false, true, 1}); }
Test(residual, projection_with_relu) { check_form((form){true, true, 1}); }
Test(residual, used_twice_its_gradients_are_summed) {
    check_form((form){true, true, 2});
    check_form((form){true, false, 2});
}

// ---- Frozen branches ----------------------------------------------------------------------------

typedef struct gradients {
    float *parameter[6], *input;
} gradients;

static void set_frozen(iso_module *block, bool body, bool shortcut) {
    iso_parameter_list list;
    cr_ok(iso_module_parameters(block, &list));
    for (int i = 0; i < list.count; i++) list.item[i]->requires_grad = !(i < 4 ? body : shortcut);
    iso_parameter_list_destroy(&list);
}

static gradients run(iso_module *block, bool input_wanted) {
    gradients g = {0};
    iso_parameter_list list;
    iso_tensor *x = random_tensor(device, 2, (int64_t[]){ROWS, FEATURES}, 1), *out, *dx;
    iso_tensor *dy = random_tensor(device, 2, (int64_t[]){ROWS, FEATURES}, 2);
    iso_module_zero_grad(block);
    cr_ok(iso_module_forward(block, x, &out));
    cr_ok(iso_module_backward(block, dy, input_wanted ? &dx : NULL));
    if (input_wanted) g.input = tensor_values(dx);
    cr_ok(iso_module_parameters(block, &list));
    for (int i = 0; i < list.count; i++)
        if (list.item[i]->grad_valid) g.parameter[i] = tensor_values(list.item[i]->grad);
    iso_parameter_list_destroy(&list);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
    return g;
}

static void drop(gradients *g) {
    for (int i = 0; i < 6; i++) free(g->parameter[i]);
    free(g->input);
}

Test(residual, frozen_branches_change_no_other_gradient) {
    open();
    iso_module *block = new_residual(new_body(), new_projection(), true);
    gradients all = run(block, true);
    for (int flags = 0; flags < 8; flags++) {
        bool frozen[2] = {flags & 1, flags & 2};
        set_frozen(block, frozen[0], frozen[1]);
        gradients g = run(block, flags & 4);
        for (int i = 0; i < 6; i++) {
            size_t bytes = (i % 2 ? FEATURES : FEATURES * FEATURES) * sizeof(float);
            if (frozen[i < 4 ? 0 : 1])
                cr_assert_null(g.parameter[i]);
            else
                cr_assert(memcmp(g.parameter[i], all.parameter[i], bytes) == 0, "%d, %d", flags, i);
        }
        if (flags & 4) cr_assert(memcmp(g.input, all.input, ROWS * FEATURES * sizeof(float)) == 0);
        drop(&g);
    }
    drop(&all);
    iso_module_destroy(&block);
    close_cpu(&device);
}

// ---- Branches in different layouts --------------------------------------------------------------

static void add_conv(iso_module *net) {
    iso_module *m;
    iso_conv2d_config c = {
        .in_channels = 9, .out_channels = 9, .kernel_size = {3, 3}, .padding = {1, 1}};
    add(net, iso_conv2d_create(device, &c, &rng, &m), &m);
}

// Gives a logical tensor.
static void add_layer_norm(iso_module *net) {
    iso_module *m;
    iso_layer_norm_config c = {.ndim = 2, .normalized_shape = {4, 4}};
    add(net, iso_layer_norm_create(device, &c, &m), &m);
}

static iso_module *new_mixed(bool conv_first, bool conv_body, int shortcut, bool relu) {
    iso_module *net = new_sequential(), *body = new_sequential(), *other = new_sequential();
    if (conv_first) add_conv(net);
    (conv_body ? add_conv : add_layer_norm)(body);
    if (shortcut == 1) add_conv(other);
    if (shortcut == 2) add_layer_norm(other);
    if (shortcut == 0) iso_module_destroy(&other);
    cr_ok(iso_sequential_add_take(net, NULL, new_residual(body, other, relu)));
    return net;
}

// Output, gradient of the input, and sum of the parameters' gradients.
static void run_mixed(const char *kernels, int form, float *result[3]) {
    setenv("ISO_CPU_KERNELS", kernels, 1);
    open();
    iso_module *net = new_mixed(form & 1, form & 2, form / 4 % 3, form / 12);
    int64_t shape[] = {2, 9, 4, 4};
    iso_tensor *x = random_tensor(device, 4, shape, 1), *dy = random_tensor(device, 4, shape, 2);
    iso_tensor *out, *dx;
    iso_parameter_list list;
    cr_ok(iso_module_forward(net, x, &out));
    result[0] = tensor_values(out);
    cr_ok(iso_module_backward(net, dy, &dx));
    result[1] = tensor_values(dx);
    result[2] = calloc(288, sizeof(float));
    cr_ok(iso_module_parameters(net, &list));
    for (int i = 0; i < list.count; i++) {
        float *g = tensor_values(list.item[i]->grad);
        for (int64_t k = 0; k < list.item[i]->grad->count; k++) result[2][(k + i) % 288] += g[k];
        free(g);
    }
    iso_parameter_list_destroy(&list);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&dy);
    iso_module_destroy(&net);
    close_cpu(&device);
}

// The plain kernels know one layout only.
Test(residual, branches_may_have_different_layouts) {
    for (int form = 0; form < 24; form++) {
        float *a[3], *b[3];
        run_mixed("onednn", form, a);
        run_mixed("reference", form, b);
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < 288; i++)
                cr_assert(fabsf(a[k][i] - b[k][i]) <= 3e-5f * (1 + fabsf(b[k][i])),
                          "form %d, result %d: %g is not %g", form, k, (double)a[k][i],
                          (double)b[k][i]);
            free(a[k]);
            free(b[k]);
        }
    }
}

// ---- Names and errors ---------------------------------------------------------------------------

Test(residual, names_are_torchvisions) {
    open();
    static const char *const names[] = {
        "0.weight", "0.bias", "2.weight", "2.bias", "downsample.0.weight", "downsample.0.bias"};
    iso_module *block = new_residual(new_body(), new_projection(), true);
    iso_parameter_list list;
    cr_ok(iso_module_parameters(block, &list));
    cr_assert_eq(list.count, 6);
    for (int i = 0; i < 6; i++) cr_assert_str_eq(list.name[i], names[i]);
    iso_parameter_list_destroy(&list);
    iso_module_destroy(&block);
    close_cpu(&device);
}

Test(residual, branches_of_different_shapes_are_refused) {
    open();
    iso_module *m;
    cr_ok(iso_linear_create(device, FEATURES, 7, true, &rng, &m));
    iso_module *block = new_residual(m, NULL, false);
    iso_tensor *x = random_tensor(device, 2, (int64_t[]){ROWS, FEATURES}, 1), *out;
    cr_fails(iso_module_forward(block, x, &out), ISO_ERR_SHAPE, "projection");
    iso_tensor_destroy(&x);
    iso_module_destroy(&block);
    close_cpu(&device);
}

// Both branches are taken in any case: nothing is left when the device is closed.
Test(residual, refuses_what_it_cannot_name) {
    open();
    iso_module *body = new_sequential(), *m = NULL;
    cr_ok(iso_sequential_add_take(body, "downsample", new_projection()));
    cr_fails(iso_residual_create_take(device, body, new_projection(), false, &m), ISO_ERR_ARG,
             "downsample");
    cr_assert_null(m);
    cr_fails(iso_residual_create_take(device, NULL, new_projection(), false, &m), ISO_ERR_ARG,
             "body");
    close_cpu(&device);
}
