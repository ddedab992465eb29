// SPDX-License-Identifier: MIT
// Hooks on modules: several in one place, what they receive, and how they are removed.
#include "common/nn_fixture.h"
#include "nn/nn_impl.h"

#include <string.h>

TestSuite(module_hooks, .timeout = 60);

static char called[64];

static void note(void *user, char what) {
    size_t length = strlen(called);
    cr_assert_lt(length + 2, sizeof(called));
    called[length] = *(const char *)user;
    called[length + 1] = what;
    called[length + 2] = 0;
}

static iso_tensor *seen_in, *seen_out;

static iso_status before_forward(iso_module *module, iso_tensor *in, void *user) {
    (void)module;
    seen_in = in;
    note(user, 'f');
    return ISO_OK;
}

static iso_status after_forward(iso_module *module, iso_tensor *in, iso_tensor *out, void *user) {
    (void)module;
    cr_assert_eq(in, seen_in);
    seen_out = out;
    note(user, 'F');
    return ISO_OK;
}

static iso_status before_backward(iso_module *module, iso_tensor *grad_out, void *user) {
    cr_assert(iso__tensor_same_shape(grad_out, seen_out));
    cr_assert(!module->parameter[0]->grad_valid);
    note(user, 'b');
    return ISO_OK;
}

static iso_status gradient_ready(iso_module *module, void *user) {
    cr_assert(module->parameter[0]->grad_valid);
    note(user, 'g');
    return ISO_OK;
}

static iso_status after_backward(iso_module *module, iso_tensor *grad_in, void *user) {
    (void)module;
    cr_assert(!grad_in || iso__tensor_same_shape(grad_in, seen_in));
    note(user, grad_in ? 'B' : '-');
    return ISO_OK;
}

static iso_module_hooks hooks_of(const char *name) {
    return (iso_module_hooks){.before_forward = before_forward,
                              .after_forward = after_forward,
                              .before_backward = before_backward,
                              .gradient_ready = gradient_ready,
                              .after_backward = after_backward,
                              .user = (void *)(uintptr_t)name};
}

static iso_module *new_linear(iso_device *device) {
    iso_rng rng = {.seed = 1};
    iso_module *module = NULL;
    cr_ok(iso_linear_create(device, 3, 4, true, &rng, &module));
    return module;
}

static void run(iso_module *module, iso_tensor *in, bool input_gradient) {
    iso_tensor *out = NULL, *grad_in = NULL;
    called[0] = 0;
    iso_module_zero_grad(module);
    cr_ok(iso_module_forward(module, in, &out));
    iso_tensor *ones = filled_tensor(module->device, 2, iso_tensor_shape(out), 1);
    cr_ok(iso_module_backward(module, ones, input_gradient ? &grad_in : NULL));
    iso_tensor_destroy(&ones);
}

Test(module_hooks, several_are_called_in_the_order_in_which_they_were_added) {
    iso_device *device = open_cpu();
    iso_module *linear = new_linear(device);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 3}, 1);
    int handle[2];
    iso_module_hooks first = hooks_of("1"), second = hooks_of("2");
    cr_ok(iso_module_add_hooks(linear, &first, &handle[0]));
    cr_ok(iso_module_add_hooks(linear, &second, &handle[1]));
    run(linear, in, true);
    cr_assert_str_eq(called, "1f2f1F2F1b2b1g2g1B2B");
    cr_assert_eq(seen_in, in);
    cr_ok(iso_module_remove_hooks(linear, handle[0]));
    run(linear, in, false);
    cr_assert_str_eq(called, "2f2F2b2g2-");
    cr_fails(iso_module_remove_hooks(linear, handle[0]), ISO_ERR_ARG, "Linear has no hooks");
    cr_ok(iso_module_add_hooks(linear, &first, &handle[0]));
    run(linear, in, false);
    cr_assert_str_eq(called, "2f1f2F1F2b1b2g1g2-1-");
    cr_ok(iso_module_remove_hooks(linear, handle[1]));
    cr_ok(iso_module_remove_hooks(linear, handle[0]));
    run(linear, in, true);
    cr_assert_str_eq(called, "");
    iso_tensor_destroy(&in);
    iso_module_destroy(&linear);
    close_cpu(&device);
}

static iso_status twice(iso_module *module, iso_tensor *gradient, void *user) {
    (void)module, (void)user;
    return iso_tensor_scale(gradient, 2);
}

// Powers of two scale exactly.
Test(module_hooks, gradients_may_be_changed_in_place) {
    iso_device *device = open_cpu();
    iso_module *plain = new_linear(device), *hooked = new_linear(device);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 3}, 1), *out, *grad_in[2];
    iso_module_hooks hooks = {.before_backward = twice, .after_backward = twice};
    cr_ok(iso_module_add_hooks(hooked, &hooks, NULL));
    for (int i = 0; i < 2; i++) {
        iso_module *module = i ? hooked : plain;
        cr_ok(iso_module_forward(module, in, &out));
        iso_tensor *g = random_tensor(device, 2, (int64_t[]){5, 4}, 2);
        cr_ok(iso_module_backward(module, g, &grad_in[i]));
        iso_tensor_destroy(&g);
    }
    cr_ok(iso_tensor_scale(grad_in[0], 4));
    cr_ok(iso_tensor_scale(plain->parameter[0]->grad, 2));
    cr_assert(same_values(grad_in[0], grad_in[1]));
    cr_assert(same_values(plain->parameter[0]->grad, hooked->parameter[0]->grad));
    iso_tensor_destroy(&in);
    iso_module_destroy(&plain);
    iso_module_destroy(&hooked);
    close_cpu(&device);
}

static iso_status fail_after(iso_module *module, iso_tensor *in, iso_tensor *out, void *user) {
    (void)module, (void)in, (void)out, (void)user;
    return ISO_FAIL(ISO_ERR_TIMEOUT, "after the forward");
}

static iso_status fail_gradient(iso_module *module, iso_tensor *gradient, void *user) {
    (void)module, (void)gradient, (void)user;
    return ISO_FAIL(ISO_ERR_TIMEOUT, "in the backward");
}

Test(module_hooks, errors_end_the_pass) {
    iso_device *device = open_cpu();
    iso_module *linear = new_linear(device);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 3}, 1), *out = NULL;
    iso_tensor *g = random_tensor(device, 2, (int64_t[]){5, 4}, 2);
    int handle;
    cr_ok(iso_module_add_hooks(linear, &(iso_module_hooks){.after_forward = fail_after}, &handle));
    cr_fails(iso_module_forward(linear, in, &out), ISO_ERR_TIMEOUT, "after the forward");
    cr_assert_null(out);
    cr_ok(iso_module_remove_hooks(linear, handle));
    iso_module_hooks failing[] = {{.before_backward = fail_gradient},
                                  {.after_backward = fail_gradient}};
    for (int i = 0; i < 2; i++) {
        cr_ok(iso_module_add_hooks(linear, &failing[i], &handle));
        cr_ok(iso_module_forward(linear, in, &out));
        cr_fails(iso_module_backward(linear, g, NULL), ISO_ERR_TIMEOUT, "in the backward");
        cr_ok(iso_module_remove_hooks(linear, handle));
    }
    iso_tensor_destroy(&g);
    iso_tensor_destroy(&in);
    iso_module_destroy(&linear);
    close_cpu(&device);
}
