// SPDX-License-Identifier: MIT
// The container that runs one of its children: values, gradients, wrong numbers, draws, lists.
#include "common/any_device.h"
#include "common/nn_fixture.h"

#include "tensor/tensor_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(choice, .timeout = 60);

enum { ROWS = 3, FEATURES = 4 };

static iso_device *device;

static void open(void) { cr_ok(iso_device_create(test_device(), &device)); }

// A linear of its own for each alternative, then a tanh and a sigmoid.
static iso_module *new_linear(uint64_t seed) {
    iso_rng rng = {.seed = seed};
    iso_module *m;
    cr_ok(iso_linear_create(device, FEATURES, FEATURES, true, &rng, &m));
    return m;
}

static iso_module *new_choice(int linears) {
    iso_module *c, *m;
    cr_ok(iso_choice_create(device, &c));
    for (int i = 0; i < linears; i++)
        cr_ok(iso_choice_add_take(c, NULL, new_linear(10 + (uint64_t)i)));
    cr_ok(iso_tanh_create(device, &m));
    cr_ok(iso_choice_add_take(c, "tanh", m));
    return c;
}

static int chosen(iso_module *c) {
    int index;
    cr_ok(iso_choice_get(c, &index));
    return index;
}

static void set_number(iso_module *c, float number) {
    iso_buffer *buffer;
    void *data;
    cr_ok(iso_module_get_buffer(c, "choice", &buffer));
    cr_ok(iso_tensor_map(buffer->value, ISO_WRITE, &data));
    *(float *)data = number;
    cr_ok(iso_tensor_unmap(buffer->value));
}

// ---- Values and gradients -----------------------------------------------------------------------

// Outputs and gradients of both, to the last bit.
static void runs_as(iso_module *c, iso_module *alone) {
    iso_tensor *x = random_tensor(device, 2, (int64_t[]){ROWS, FEATURES}, 5);
    iso_tensor *y[2], *dx[2], *dy[2];
    iso_module *both[2] = {c, alone};
    for (int i = 0; i < 2; i++) {
        dy[i] = random_tensor(device, 2, (int64_t[]){ROWS, FEATURES}, 6);
        cr_ok(iso_module_forward(both[i], x, &y[i]));
        cr_ok(iso_module_backward(both[i], dy[i], &dx[i]));
    }
    cr_assert(same_values(y[0], y[1]) && same_values(dx[0], dx[1]));
    for (int i = 0; i < 2; i++) iso_tensor_destroy(&dy[i]);
    iso_tensor_destroy(&x);
}

Test(choice, runs_the_alternative_that_it_has) {
    open();
    iso_module *c = new_choice(2);
    cr_assert_eq(chosen(c), 0);
    for (int i = 2; i >= 0; i--) {
        iso_module *alone = i < 2 ? new_linear(10 + (uint64_t)i) : NULL;
        if (!alone) cr_ok(iso_tanh_create(device, &alone));
        cr_ok(iso_choice_set(c, i));
        cr_assert_eq(chosen(c), i);
        runs_as(c, alone);
        for (int k = 0; k < 2; k++) // those of others stay without a gradient
            cr_assert_eq(c->child[k]->parameter[0]->grad_valid, k == i || k > i);
        if (alone->parameter_count > 0)
            cr_assert(same_values(c->child[i]->parameter[0]->grad, alone->parameter[0]->grad));
        iso_module_destroy(&alone);
    }
    iso_module_destroy(&c);
    close_cpu(&device);
}

// A mean of equal numbers may not be whole, but it is near.
Test(choice, keeps_its_number_when_it_is_converted_or_averaged) {
    open();
    iso_module *c = new_choice(2);
    set_number(c, 1.0000002f);
    cr_assert_eq(chosen(c), 1);
    cr_ok(iso_choice_set(c, 2));
    cr_ok(iso_module_to(c, ISO_F64));
    cr_assert_eq(chosen(c), 2);
    cr_ok(iso_choice_set(c, 1));
    cr_assert_eq(chosen(c), 1);
    iso_module_destroy(&c);
    close_cpu(&device);
}

// ---- Wrong use ----------------------------------------------------------------------------------

Test(choice, numbers_without_an_alternative_are_refused) {
    static const float wrong[] = {0.5f, -1, 3, 1e30f, NAN};
    open();
    int index;
    iso_tensor *x = random_tensor(device, 2, (int64_t[]){ROWS, FEATURES}, 5), *y;
    iso_module *c = new_choice(2), *tanh;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        set_number(c, wrong[i]);
        cr_fails(iso_module_forward(c, x, &y), ISO_ERR_STATE, "Choice has the choice ");
        cr_fails(iso_choice_get(c, &index), ISO_ERR_STATE, "and 3 alternatives");
    }
    cr_fails(iso_choice_set(c, 3), ISO_ERR_ARG, "Choice has no alternative 3: it has 3");
    cr_fails(iso_choice_set(c, -1), ISO_ERR_ARG, "no alternative -1");
    cr_ok(iso_tanh_create(device, &tanh));
    cr_fails(iso_choice_set(tanh, 0), ISO_ERR_ARG, "a Tanh is not a Choice");
    cr_fails(iso_choice_get(tanh, &index), ISO_ERR_ARG, "a Tanh is not a Choice");
    cr_fails(iso_choice_add_take(tanh, NULL, new_linear(1)), ISO_ERR_ARG, "is not a Choice");
    iso_module_destroy(&tanh);
    iso_module_destroy(&c);
    cr_ok(iso_choice_create(device, &c));
    cr_fails(iso_module_forward(c, x, &y), ISO_ERR_STATE, "and 0 alternatives");
    iso_module_destroy(&c);
    iso_tensor_destroy(&x);
    close_cpu(&device);
}

// ---- Draws --------------------------------------------------------------------------------------

// Two Choices of 3 and 2 alternatives, one of 1, which cannot change, and a layer.
static iso_module *new_net(iso_module *c[3]) {
    iso_module *net;
    cr_ok(iso_sequential_create(device, &net));
    for (int i = 0; i < 3; i++) {
        cr_ok(iso_sequential_add_take(net, NULL, new_linear(3)));
        cr_ok(iso_sequential_add_take(net, NULL, c[i] = new_choice(2 - i)));
    }
    return net;
}

// Of 6000 draws each Choice gets half, within five standard deviations (194), and each other
// alternative of the first one a half of these.
Test(choice, draws_one_of_the_others_with_equal_chances) {
    open();
    iso_module *c[3], *net = new_net(c);
    int count[2][3] = {{0}};
    uint64_t random = 1;
    for (int i = 0; i < 6000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        cr_ok(iso_choice_set(c[0], 1));
        cr_ok(iso_choice_set(c[1], 1));
        cr_ok(iso_choice_mutate(net, random ^ random >> 29, NULL));
        cr_assert((chosen(c[0]) == 1) != (chosen(c[1]) == 1) && chosen(c[2]) == 0);
        int which = chosen(c[0]) == 1;
        count[which][chosen(c[which])]++;
    }
    cr_assert_eq(count[1][0] + count[0][0] + count[0][2], 6000);
    cr_assert(abs(count[1][0] - 3000) < 194);
    cr_assert(abs(count[0][0] - 1500) < 168 && abs(count[0][2] - 1500) < 168);
    iso_module_destroy(&net);
    close_cpu(&device);
}

Test(choice, ends_of_the_draws_stay_in_range) {
    open();
    iso_module *c[3], *net = new_net(c);
    cr_ok(iso_choice_mutate(net, 0, NULL)); // the first one, and the first of the others
    cr_assert(chosen(c[0]) == 1 && chosen(c[1]) == 0);
    cr_ok(iso_choice_mutate(net, UINT64_MAX, NULL));
    cr_assert(chosen(c[0]) == 1 && chosen(c[1]) == 1);
    cr_ok(iso_choice_mutate(net, (uint64_t)UINT32_MAX << 32, NULL));
    cr_assert(chosen(c[0]) == 2 && chosen(c[1]) == 1);
    cr_fails(iso_choice_mutate(c[2], 7, NULL), ISO_ERR_ARG, "no Choice with two alternatives");
    iso_module_destroy(&net);
    close_cpu(&device);
}

// ---- Lists of layers ----------------------------------------------------------------------------

Test(choice, lists_of_layers_hold_choices) {
    open();
    const iso_layer kernels[] = {
        {.kind = ISO_CONV2D, .out = 3, .size = 3, .padding = 1},
        {.kind = ISO_CONV2D, .out = 3, .size = 5, .padding = 2, .name = "wide"}};
    const iso_layer functions[] = {{.kind = ISO_RELU}, {.kind = ISO_ELU}, {.kind = ISO_TANH}};
    iso_layer list[] = {{.kind = ISO_CHOICE, .alternatives = kernels, .alternative_count = 2},
                        {.kind = ISO_CHOICE, .alternatives = functions, .alternative_count = 3},
                        {.kind = ISO_FLATTEN},
                        {.kind = ISO_LINEAR, .out = 2}};
    iso_rng rng = {.seed = 1};
    iso_parameter *p;
    iso_module *net;
    iso_tensor *x = random_tensor(device, 4, (int64_t[]){2, 2, 6, 6}, 5), *y;
    cr_ok(iso_sequential_build(device, (int64_t[]){2, 6, 6}, list, 4, &rng, &net));
    cr_ok(iso_module_get_parameter(net, "0.0.weight", &p));
    cr_ok(iso_module_get_parameter(net, "0.wide.weight", &p));
    cr_assert_str_eq(net->child[1]->child[1]->ops->type, "ELU");
    for (int i = 0; i < 2; i++) {
        cr_ok(iso_choice_set(net->child[0], i));
        cr_ok(iso_module_forward(net, x, &y));
        cr_assert(y->ndim == 2 && y->shape[1] == 2);
    }
    iso_module_destroy(&net);
    list[0].alternatives = functions, list[0].alternative_count = 0;
    cr_fails(iso_sequential_build(device, (int64_t[]){2, 6, 6}, list, 4, &rng, &net), ISO_ERR_ARG,
             "layer 0, a Choice, has no alternatives");
    const iso_layer fused[] = {kernels[0], {.kind = ISO_LINEAR, .out = 3, .relu = true}};
    list[0].alternatives = fused, list[0].alternative_count = 2;
    cr_fails(iso_sequential_build(device, (int64_t[]){2, 6, 6}, list, 4, &rng, &net), ISO_ERR_ARG,
             "has an alternative 1 with a relu");
    const iso_layer unequal[] = {kernels[0], {.kind = ISO_CONV2D, .out = 3, .size = 3}};
    list[0].alternatives = unequal, list[0].alternative_count = 2;
    cr_fails(iso_sequential_build(device, (int64_t[]){2, 6, 6}, list, 4, &rng, &net), ISO_ERR_SHAPE,
             "layer 0, a Choice, has alternatives of different shapes");
    iso_tensor_destroy(&x);
    close_cpu(&device);
}
