// SPDX-License-Identifier: MIT
// A backward skips what has nothing to train. Modules that are also used elsewhere then undo the
// right calls all the same, and what belongs to no forward is refused.
#include "common/nn_fixture.h"
#include "nn/nn_impl.h"

#include <isotherm/layers.h>
#include <string.h>

TestSuite(skipped_calls, .timeout = 60);

enum { ROWS = 4, WIDTH = 6 };

static iso_device *device;
static iso_rng rng;
static iso_module *made;

static iso_module *take_made(iso_status status) {
    iso_module *module = made;
    cr_ok(status);
    made = NULL;
    return module;
}
#define MADE(create) take_made(create)

static iso_module *new_linear(void) {
    return MADE(iso_linear_create(device, WIDTH, WIDTH, true, &rng, &made));
}

static iso_module *sequence(iso_module *a, iso_module *b) {
    iso_module *model = MADE(iso_sequential_create(device, &made));
    cr_ok(iso_sequential_add_take(model, NULL, a));
    if (b) cr_ok(iso_sequential_add_take(model, NULL, b));
    return model;
}

// The same module, which is used twice, or another one.
static iso_module *again(iso_module *module, bool shared,
                         iso_status (*create)(iso_device *, iso_module **)) {
    return shared ? iso_module_retain(module) : MADE(create(device, &made));
}

static void start(void) {
    device = open_cpu();
    rng = (iso_rng){.seed = 3};
}

static iso_tensor *rows(uint64_t seed) {
    return random_tensor(device, 2, (int64_t[]){ROWS, WIDTH}, seed);
}

static iso_tensor *forward(iso_module *model, iso_tensor *in) {
    iso_tensor *out = NULL;
    cr_ok(iso_module_forward(model, in, &out));
    return out;
}

// The gradients of all parameters of a model that is taken, after a forward and a backward.
typedef struct gradients {
    int count;
    float *of[8];
    size_t elements[8];
} gradients;

static gradients train(iso_module *model) {
    iso_parameter_list list;
    gradients got = {0};
    iso_tensor *x = rows(1), *g = rows(2);
    (void)forward(model, x);
    cr_ok(iso_module_backward(model, g, NULL));
    cr_ok(iso_module_parameters(model, &list));
    for (int i = 0; i < list.count; i++) {
        got.of[i] = tensor_values(list.item[i]->grad);
        got.elements[i] = (size_t)iso_tensor_count(list.item[i]->grad);
    }
    got.count = list.count;
    iso_parameter_list_destroy(&list);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&g);
    iso_module_destroy(&model);
    return got;
}

static void compare(gradients a, gradients b) {
    cr_assert(a.count == b.count && a.count > 0);
    for (int i = 0; i < a.count; i++) {
        cr_assert_eq(memcmp(a.of[i], b.of[i], a.elements[i] * sizeof(float)), 0, "parameter %d", i);
        free(a.of[i]);
        free(b.of[i]);
    }
}

// ---- Modules in two paths -------------------------------------------------------------------------

// The shortcut's tanh is skipped, and comes first in the backward.
static iso_module *residual_of(bool shared, bool trains) {
    rng = (iso_rng){.seed = 3};
    iso_module *residual, *tanh = MADE(iso_tanh_create(device, &made));
    iso_module *shortcut = sequence(again(tanh, shared, iso_tanh_create), NULL);
    iso_module *body = sequence(new_linear(), tanh);
    if (trains) cr_ok(iso_sequential_add_take(shortcut, NULL, new_linear()));
    cr_ok(iso_residual_create_take(device, body, shortcut, false, &residual));
    return residual;
}

Test(skipped_calls, of_a_module_in_both_paths_of_a_residual) {
    start();
    for (int trains = 0; trains < 2; trains++)
        compare(train(residual_of(true, trains)), train(residual_of(false, trains)));
    close_cpu(&device);
}

static iso_status create_gelu(iso_device *on, iso_module **out) {
    return iso_gelu_create(on, false, out);
}

// Two halves of the input: one branch begins with a gelu, the other one ends with it.
static iso_module *towers(bool shared) {
    rng = (iso_rng){.seed = 3};
    iso_module *gelu = MADE(iso_gelu_create(device, false, &made));
    iso_module *other = again(gelu, shared, create_gelu);
    iso_module *branches = MADE(iso_branches_create(device, &made)), *first, *second;
    first = MADE(iso_linear_create(device, WIDTH / 2, WIDTH, true, &rng, &made));
    second = MADE(iso_linear_create(device, WIDTH / 2, WIDTH, true, &rng, &made));
    cr_ok(iso_branches_add_take(branches, "left", sequence(first, gelu)));
    cr_ok(iso_branches_add_take(branches, "right", sequence(other, second)));
    iso_module *net =
        MADE(iso_split_create(device, 1, 2, (int64_t[]){WIDTH / 2, WIDTH / 2}, &made));
    net = sequence(net, branches);
    cr_ok(iso_sequential_add_take(
        net, NULL, MADE(iso_bilinear_create(device, WIDTH, WIDTH, WIDTH, true, &rng, &made))));
    return net;
}

Test(skipped_calls, of_a_module_in_two_branches) {
    start();
    compare(train(towers(true)), train(towers(false)));
    close_cpu(&device);
}

// ---- Calls of other forwards ----------------------------------------------------------------------

Test(skipped_calls, a_forward_of_a_part_ends_the_forward_of_the_whole) {
    start();
    iso_module *part = sequence(new_linear(), MADE(iso_tanh_create(device, &made)));
    iso_module *net = sequence(part, new_linear());
    iso_tensor *x = rows(1), *other = rows(5), *g = rows(2);
    (void)forward(net, x);
    (void)forward(part, other);
    cr_fails(iso_module_backward(net, g, NULL), ISO_ERR_STATE, "without a forward before it");
    (void)forward(net, x);
    cr_ok(iso_module_backward(net, g, NULL));
    // Each by itself, in any order.
    (void)forward(part, x);
    (void)forward(net->child[1], other);
    cr_ok(iso_module_backward(part, g, NULL));
    cr_ok(iso_module_backward(net->child[1], g, NULL));
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&other);
    iso_tensor_destroy(&g);
    iso_module_destroy(&net);
    close_cpu(&device);
}

Test(skipped_calls, a_shortcut_without_its_call_is_refused) {
    start();
    iso_module *net, *shortcut = new_linear();
    cr_ok(iso_residual_create_take(device, new_linear(), shortcut, false, &net));
    iso_tensor *x = rows(1), *g = rows(2);
    (void)forward(net, x);
    (void)forward(shortcut, x);
    cr_ok(iso_module_backward(shortcut, g, NULL));
    cr_fails(iso_module_backward(net, g, NULL), ISO_ERR_STATE, "without a forward before it");
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&g);
    iso_module_destroy(&net);
    close_cpu(&device);
}

static iso_status fail_after(iso_module *module, iso_tensor *in, iso_tensor *out, void *user) {
    (void)module, (void)in, (void)out, (void)user;
    return iso_error_set(ISO_ERR_IO, "the hook failed");
}

Test(skipped_calls, a_forward_whose_hook_failed_has_no_backward) {
    start();
    iso_module *linear = new_linear();
    const iso_module_hooks hooks = {.after_forward = fail_after};
    iso_tensor *x = rows(1), *g = rows(2), *out;
    cr_ok(iso_module_add_hooks(linear, &hooks, NULL));
    cr_fails(iso_module_forward(linear, x, &out), ISO_ERR_IO, "the hook failed");
    cr_fails(iso_module_backward(linear, g, NULL), ISO_ERR_STATE, "without a forward before it");
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&g);
    iso_module_destroy(&linear);
    close_cpu(&device);
}

Test(skipped_calls, a_scalar_cannot_be_flattened) {
    start();
    iso_module *flatten = MADE(iso_flatten_create(device, &made));
    iso_tensor *x = random_tensor(device, 0, NULL, 1), *out;
    cr_fails(iso_module_forward(flatten, x, &out), ISO_ERR_SHAPE, "not a scalar");
    iso_tensor_destroy(&x);
    iso_module_destroy(&flatten);
    close_cpu(&device);
}
