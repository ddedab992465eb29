// SPDX-License-Identifier: MIT
// Running modules: hooks and their order, what backward skips, accumulation, refused calls, no
// allocation.
#include "common/nn_fixture.h"
#include "nn/nn_impl.h"

#include <isotherm/trace.h>
#include <string.h>

TestSuite(dispatch, .timeout = 60);

// ---- Models ------------------------------------------------------------------------------------

static iso_rng rng;

static iso_module *new_linear(iso_device *device, int64_t in, int64_t out) {
    iso_module *module = NULL;
    cr_ok(iso_linear_create(device, in, out, true, &rng, &module));
    return module;
}

static iso_module *new_conv(iso_device *device, int64_t in, int64_t out) {
    iso_conv2d_config c = {.in_channels = in, .out_channels = out, .kernel_size = {3, 3}};
    iso_module *module = NULL;
    cr_ok(iso_conv2d_create(device, &c, &rng, &module));
    return module;
}

static iso_module *new_relu(iso_device *device) {
    iso_module *module = NULL;
    cr_ok(iso_relu_create(device, &module));
    return module;
}

// A sequential of up to four modules, which it takes.
static iso_module *sequence(iso_device *device, iso_module *a, iso_module *b, iso_module *c,
                            iso_module *d) {
    iso_module *model = NULL, *all[] = {a, b, c, d};
    cr_ok(iso_sequential_create(device, &model));
    for (int i = 0; i < 4 && all[i]; i++) cr_ok(iso_sequential_add_take(model, NULL, all[i]));
    return model;
}

static iso_tensor *forward(iso_module *model, iso_tensor *in) {
    iso_tensor *out = NULL;
    cr_ok(iso_module_forward(model, in, &out));
    return out;
}

// Backward of the sum of all outputs; the gradient of the input is not wanted.
static void backward(iso_module *model, iso_tensor *out) {
    iso_tensor *ones = filled_tensor(model->device, iso_tensor_ndim(out), iso_tensor_shape(out), 1);
    cr_ok(iso_module_backward(model, ones, NULL));
    iso_tensor_destroy(&ones);
}

static iso_tensor *weight_gradient(iso_module *layer) { return layer->parameter[0]->grad; }

// ---- Hooks -------------------------------------------------------------------------------------

typedef struct event {
    const iso_module *module;
    bool ready;          // gradient_ready, else before_forward
    bool input_gradient; // whether this layer's last call had one already
} event;
static event events[16];
static int event_count;

static iso_status record(iso_module *module, bool ready) {
    bool had = module->call_capacity > 0 && module->call[0]->grad_in;
    events[event_count++] = (event){.module = module, .ready = ready, .input_gradient = had};
    return ISO_OK;
}

static iso_status on_forward(iso_module *module, iso_tensor *in, void *user) {
    (void)in, (void)user;
    return record(module, false);
}

static iso_status on_ready(iso_module *module, void *user) {
    (void)user;
    return record(module, true);
}

// Once for a module that is used in several places.
static void hook(iso_module *module) {
    iso_module_hooks hooks = {.before_forward = on_forward, .gradient_ready = on_ready};
    if (module->hooks_count == 0) cr_ok(iso_module_add_hooks(module, &hooks, NULL));
    for (int i = 0; i < module->child_count; i++) hook(module->child[i]);
}

static void expect_event(int i, const iso_module *module, bool ready) {
    cr_assert(i < event_count && events[i].module == module && events[i].ready == ready, "event %d",
              i);
}

Test(dispatch, hooks_come_in_the_order_of_the_pass) {
    iso_device *device = open_cpu();
    iso_module *a = new_linear(device, 3, 4), *b = new_linear(device, 4, 2);
    iso_module *model = sequence(device, a, new_relu(device), b, NULL);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 3}, 1);
    hook(a);
    hook(b);
    backward(model, forward(model, in));
    cr_assert_eq(event_count, 4);
    expect_event(0, a, false);
    expect_event(1, b, false);
    expect_event(2, b, true);
    expect_event(3, a, true);
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(dispatch, gradient_leaves_before_the_input_gradient_is_computed) {
    iso_device *device = open_cpu();
    iso_module *a = new_conv(device, 1, 4), *b = new_conv(device, 4, 3);
    iso_module *model = sequence(device, a, b, NULL, NULL);
    iso_tensor *in = random_tensor(device, 4, (int64_t[]){2, 1, 8, 8}, 1);
    cr_ok(iso_module_add_hooks(b, &(iso_module_hooks){.gradient_ready = on_ready}, NULL));
    backward(model, forward(model, in));
    cr_assert_eq(event_count, 1);
    cr_assert_not(events[0].input_gradient);
    cr_assert_not_null(b->call[0]->grad_in); // and it was computed afterwards
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(dispatch, gradient_is_ready_once_after_the_last_use_of_a_shared_layer) {
    iso_device *device = open_cpu();
    iso_module *a = new_linear(device, 4, 4), *b = new_linear(device, 4, 4);
    iso_module *model = sequence(device, a, b, iso_module_retain(a), NULL);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 4}, 1);
    hook(model);
    backward(model, forward(model, in));
    cr_assert_eq(event_count, 6); // forward: the container, a, b, a
    expect_event(4, b, true);
    expect_event(5, a, true);
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(dispatch, forward_hook_fires_in_evaluation_too) {
    iso_device *device = open_cpu();
    iso_module *a = new_linear(device, 4, 4);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 4}, 1);
    hook(a);
    cr_ok(iso_module_train(a, false));
    forward(a, in);
    cr_assert_eq(event_count, 1);
    expect_event(0, a, false);
    cr_ok(iso_module_remove_hooks(a, a->hooks[0].handle));
    forward(a, in);
    cr_assert_eq(event_count, 1);
    iso_tensor_destroy(&in);
    iso_module_destroy(&a);
    close_cpu(&device);
}

static iso_status failing_hook(iso_module *module, iso_tensor *in, void *user) {
    (void)module, (void)in, (void)user;
    return ISO_FAIL(ISO_ERR_TIMEOUT, "the exchange timed out");
}

Test(dispatch, error_of_a_hook_ends_the_pass) {
    iso_device *device = open_cpu();
    iso_module *model = sequence(device, new_linear(device, 4, 4), NULL, NULL, NULL);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 4}, 1), *out;
    iso_module_hooks hooks = {.before_forward = failing_hook};
    cr_ok(iso_module_add_hooks(model->child[0], &hooks, NULL));
    cr_fails(iso_module_forward(model, in, &out), ISO_ERR_TIMEOUT, "timed out");
    cr_fails(iso_module_backward(model, in, NULL), ISO_ERR_STATE, "without a forward");
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}

// ---- Frozen parameters -------------------------------------------------------------------------

Test(dispatch, frozen_parameter_keeps_its_gradient_memory) {
    iso_device *device = open_cpu();
    iso_module *a = new_linear(device, 3, 4);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 3}, 1);
    iso_tensor *sevens = filled_tensor(device, 2, (int64_t[]){4, 3}, 7);
    cr_ok(iso_tensor_fill(weight_gradient(a), 7));
    a->parameter[0]->requires_grad = false;
    hook(a);
    backward(a, forward(a, in));
    cr_assert(same_values(weight_gradient(a), sevens));
    cr_assert(!a->parameter[0]->grad_valid && a->parameter[1]->grad_valid);
    cr_assert(event_count == 2 && events[1].ready); // the bias still trains
    iso_tensor_destroy(&sevens);
    iso_tensor_destroy(&in);
    iso_module_destroy(&a);
    close_cpu(&device);
}

Test(dispatch, frozen_layer_is_never_ready_but_hands_gradients_down) {
    iso_device *device = open_cpu();
    iso_module *a = new_linear(device, 3, 4), *b = new_linear(device, 4, 4);
    iso_module *model = sequence(device, a, b, new_relu(device), new_linear(device, 4, 2));
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 3}, 1);
    backward(model, forward(model, in));
    iso_tensor *before = random_tensor(device, 2, (int64_t[]){4, 3}, 0);
    cr_ok(iso_tensor_copy(weight_gradient(a), before));

    iso_module_zero_grad(model);
    b->parameter[0]->requires_grad = b->parameter[1]->requires_grad = false;
    cr_ok(iso_module_add_hooks(b, &(iso_module_hooks){.gradient_ready = on_ready}, NULL));
    backward(model, forward(model, in));
    cr_assert_eq(event_count, 0);
    cr_assert(
        same_values(weight_gradient(a), before)); // the relu's derivative too was applied in b
    iso_tensor_destroy(&before);
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}

// ---- What backward leaves out ------------------------------------------------------------------

Test(dispatch, input_gradient_of_the_first_layer_is_not_computed) {
    iso_device *device = open_cpu();
    iso_module *conv = new_conv(device, 1, 4), *inner = sequence(device, conv, NULL, NULL, NULL);
    iso_module *model = sequence(device, inner, new_relu(device), new_conv(device, 4, 2), NULL);
    iso_tensor *in = random_tensor(device, 4, (int64_t[]){2, 1, 8, 8}, 1), *grad_in = NULL;
    backward(model, forward(model, in));
    cr_assert_null(conv->call[0]->grad_in);
    cr_assert(conv->parameter[0]->grad_valid);

    iso_tensor *out = forward(model, in);
    iso_tensor *ones = filled_tensor(device, 4, iso_tensor_shape(out), 1);
    cr_ok(iso_module_backward(model, ones, &grad_in)); // unless it is wanted
    cr_assert_eq(grad_in, conv->call[0]->grad_in);
    iso_tensor_destroy(&ones);
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(dispatch, backward_stops_above_frozen_layers_at_the_bottom) {
    iso_device *device = open_cpu();
    iso_module *a = new_linear(device, 3, 4), *b = new_linear(device, 4, 4),
               *c = new_linear(device, 4, 2);
    iso_module *model =
        sequence(device, sequence(device, a, b, NULL, NULL), new_relu(device), c, NULL);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 3}, 1);
    for (int i = 0; i < 2; i++)
        a->parameter[i]->requires_grad = b->parameter[i]->requires_grad = false;
    for (int step = 0; step < 3; step++) backward(model, forward(model, in));
    cr_assert(c->parameter[0]->grad_valid);
    cr_assert(!c->call[0]->grad_in && !b->call[0]->grad_in && !a->call[0]->grad_in);
    cr_assert_eq(a->call_capacity,
                 1); // calls that backward did not reach were dropped by the next forward
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}

// ---- Accumulation ------------------------------------------------------------------------------

static void expect_scaled(iso_tensor *got, const float *base, float factor) {
    float *value = tensor_values(got);
    for (int64_t i = 0; i < iso_tensor_count(got); i++)
        cr_assert_float_eq(value[i], factor * base[i], 1e-5);
    free(value);
}

Test(dispatch, backward_accumulates_until_zero_grad) {
    iso_device *device = open_cpu();
    iso_module *model = sequence(device, new_conv(device, 2, 3), NULL, NULL, NULL);
    iso_tensor *in = random_tensor(device, 4, (int64_t[]){2, 2, 6, 6}, 1);
    iso_tensor *grad = weight_gradient(model->child[0]);
    cr_ok(iso_tensor_fill(grad, 1e6)); // what was there before must not count
    backward(model, forward(model, in));
    float *once = tensor_values(grad);
    backward(model, forward(model, in));
    expect_scaled(grad, once, 2);
    iso_module_zero_grad(model);
    backward(model, forward(model, in));
    expect_scaled(grad, once, 1);
    free(once);
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(dispatch, forward_without_backward_leaves_nothing_behind) {
    iso_device *device = open_cpu();
    iso_module *fc = new_linear(device, 4, 4);
    iso_module *model = sequence(device, fc, iso_module_retain(fc), NULL, NULL);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 4}, 1);
    iso_tensor *other = random_tensor(device, 2, (int64_t[]){7, 4}, 2);
    backward(model, forward(model, in));
    float *want = tensor_values(weight_gradient(fc));
    for (int i = 0; i < 3; i++) forward(model, other);
    iso_module_zero_grad(model);
    backward(model, forward(model, in));
    expect_scaled(weight_gradient(fc), want, 1);
    cr_assert_eq(fc->call_capacity, 2);
    free(want);
    iso_tensor_destroy(&other);
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(dispatch, evaluation_keeps_two_outputs_of_a_layer_used_twice) {
    iso_device *device = open_cpu();
    iso_module *fc = new_linear(device, 4, 4);
    iso_module *model = sequence(device, fc, new_relu(device), iso_module_retain(fc), NULL);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 4}, 1);
    iso_tensor *want = random_tensor(device, 2, (int64_t[]){5, 4}, 2);
    cr_ok(iso_tensor_copy(forward(model, in), want));
    cr_ok(iso_module_train(model, false));
    cr_assert(same_values(forward(model, in), want));
    iso_tensor_destroy(&want);
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}

// ---- Refused calls -----------------------------------------------------------------------------

Test(dispatch, backward_needs_a_training_forward) {
    iso_device *device = open_cpu();
    iso_module *model = sequence(device, new_linear(device, 4, 4), NULL, NULL, NULL);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 4}, 1);
    cr_fails(iso_module_backward(model, in, NULL), ISO_ERR_STATE, "without a forward");
    backward(model, forward(model, in));
    cr_fails(iso_module_backward(model, in, NULL), ISO_ERR_STATE, "without a forward");
    cr_ok(iso_module_train(model, false));
    forward(model, in);
    cr_fails(iso_module_backward(model, in, NULL), ISO_ERR_STATE, "evaluation mode");
    cr_ok(iso_module_train(model, true)); // what counts is the mode at the forward
    cr_fails(iso_module_backward(model, in, NULL), ISO_ERR_STATE, "evaluation mode");
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(dispatch, wrong_shapes_are_refused_by_name) {
    iso_device *device = open_cpu();
    iso_module *model = sequence(device, NULL, NULL, NULL, NULL), *fc = new_linear(device, 36, 4);
    cr_ok(iso_sequential_add_take(model, "conv1", new_conv(device, 1, 1)));
    iso_tensor *no_channel = random_tensor(device, 3, (int64_t[]){64, 28, 28}, 1), *out;
    iso_tensor *small = random_tensor(device, 4, (int64_t[]){4, 1, 2, 28}, 1);
    cr_assert_eq(iso_module_forward(model, no_channel, &out), ISO_ERR_SHAPE);
    cr_assert_str_eq(iso_last_error()->message,
                     "Conv2d \"conv1\" expects [N, 1, H, W] but got [64, 28, 28]");
    cr_fails(iso_module_forward(model, small, &out), ISO_ERR_SHAPE,
             "H at least 3 and W at least 3");
    cr_assert_eq(iso_module_forward(fc, small, &out), ISO_ERR_SHAPE);
    cr_assert_str_eq(iso_last_error()->message,
                     "Linear expects [N, 36] or [N, L, 36] but got [4, 1, 2, 28]");
    iso_tensor_destroy(&no_channel);
    iso_tensor_destroy(&small);
    iso_module_destroy(&fc);
    iso_module_destroy(&model);
    close_cpu(&device);
}

// Takes [1, 2, height, width] and nothing smaller.
static void check_least(iso_device *device, iso_module *module, int64_t height, int64_t width) {
    char words[64];
    snprintf(words, sizeof(words), "H at least %d and W at least %d", (int)height, (int)width);
    for (int less = 0; less < 3; less++) {
        const int64_t shape[4] = {1, 2, height - (less == 1), width - (less == 2)};
        if (shape[2] == 0 || shape[3] == 0) continue; // no such tensor
        iso_tensor *x = random_tensor(device, 4, shape, 1), *out;
        if (less)
            cr_fails(iso_module_forward(module, x, &out), ISO_ERR_SHAPE, words);
        else
            cr_ok(iso_module_forward(module, x, &out));
        iso_tensor_destroy(&x);
    }
    iso_module_destroy(&module);
}

Test(dispatch, images_smaller_than_a_kernel_or_window_are_refused) {
    iso_device *device = open_cpu();
    iso_rng rng = {.seed = 1};
    iso_module *m = NULL;
    iso_conv2d_config conv = {2, 2, .kernel_size = {3, 3}, .padding = {1, 0}, .dilation = {2, 3}};
    iso_pool2d_config pool = {.kernel_size = {5, 3}, .padding = {1, 0}};
    cr_ok(iso_conv2d_create(device, &conv, &rng, &m));
    check_least(device, m, 3, 7);
    cr_ok(iso_pool2d_create(device, ISO_POOL_MAX, &pool, &m));
    check_least(device, m, 3, 3);
    pool.padding[1] = 1;
    cr_ok(iso_pool2d_create(device, ISO_POOL_AVG, &pool, &m));
    check_least(device, m, 3, 1);
    close_cpu(&device);
}

Test(dispatch, wrong_type_device_and_gradient_are_refused) {
    iso_device *device = open_cpu(), *other = NULL;
    cr_ok(iso_device_create("cpu", &other));
    iso_module *fc = new_linear(device, 4, 2);
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 4}, 1), *out, *wide = NULL;
    iso_tensor *elsewhere = random_tensor(other, 2, (int64_t[]){5, 4}, 1);
    cr_ok(iso_tensor_create(device, ISO_F64, 2, (int64_t[]){5, 4}, &wide));
    cr_fails(iso_module_forward(fc, wide, &out), ISO_ERR_TYPE, "f64");
    cr_fails(iso_module_forward(fc, elsewhere, &out), ISO_ERR_ARG, "another");
    forward(fc, in);
    cr_fails(iso_module_backward(fc, in, NULL), ISO_ERR_SHAPE, "[5, 2]");
    iso_tensor_destroy(&in);
    iso_tensor_destroy(&wide);
    iso_tensor_destroy(&elsewhere);
    iso_module_destroy(&fc);
    iso_device_destroy(&other);
    close_cpu(&device);
}

// ---- Cost and trace ----------------------------------------------------------------------------

static iso_module *small_cnn(iso_device *device) {
    iso_module *flatten, *pool, *dropout, *model;
    cr_ok(iso_flatten_create(device, &flatten));
    cr_ok(iso_max_pool2d_create(device, 2, 2, &pool));
    cr_ok(iso_dropout_create(device, 0.25, &rng, &dropout));
    iso_module *fc = new_linear(device, 72, 72);
    iso_module *head = sequence(device, fc, new_relu(device), iso_module_retain(fc), dropout);
    model =
        sequence(device, new_conv(device, 1, 4), new_relu(device), new_conv(device, 4, 8), pool);
    cr_ok(iso_sequential_add_take(model, "flatten", flatten));
    cr_ok(iso_sequential_add_take(model, "head", head));
    return model;
}

// One training step for each batch size and one evaluation.
static void steps(iso_module *model, iso_tensor **batch, iso_loss *loss, const int32_t *labels) {
    for (int i = 0; i < 3; i++) {
        iso_tensor *grad = NULL;
        double value;
        iso_module_zero_grad(model);
        cr_ok(iso_loss_compute(loss, forward(model, batch[i]), labels, &value, NULL, &grad));
        cr_ok(iso_module_backward(model, grad, NULL));
    }
    cr_ok(iso_module_train(model, false));
    forward(model, batch[1]);
    cr_ok(iso_module_train(model, true));
}

Test(dispatch, steps_allocate_and_build_nothing_once_each_batch_size_was_seen) {
    iso_device *device = open_cpu();
    iso_module *model = small_cnn(device);
    iso_loss *loss = NULL;
    cr_ok(iso_loss_create(device, ISO_CROSS_ENTROPY, &loss));
    int32_t labels[16] = {0};
    iso_tensor *batch[3];
    const int64_t size[3] = {16, 5, 9};
    for (int i = 0; i < 3; i++)
        batch[i] = random_tensor(device, 4, (int64_t[]){size[i], 1, 10, 10}, 1);
    steps(model, batch, loss, labels);

    long long allocations[2], primitives = iso_device_primitives_created(device);
    iso_memory_balance(NULL, NULL, &allocations[0]);
    for (int round = 0; round < 3; round++) steps(model, batch, loss, labels);
    iso_memory_balance(NULL, NULL, &allocations[1]);
    cr_assert_eq(allocations[1], allocations[0], "%lld allocations",
                 allocations[1] - allocations[0]);
    cr_assert_eq(iso_device_primitives_created(device), primitives);
    for (int i = 0; i < 3; i++) iso_tensor_destroy(&batch[i]);
    iso_loss_destroy(&loss);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(dispatch, each_layer_is_a_span_in_each_direction) {
    iso_device *device = open_cpu();
    iso_module *model = sequence(device, NULL, NULL, NULL, NULL);
    cr_ok(iso_sequential_add_take(model, "fc1", new_linear(device, 4, 4)));
    cr_ok(iso_sequential_add_take(model, "fc2", new_linear(device, 4, 4)));
    iso_tensor *in = random_tensor(device, 2, (int64_t[]){5, 4}, 1);
    char *text = NULL;
    size_t size;
    cr_ok(iso_trace_start(64));
    backward(model, forward(model, in));
    cr_ok(iso_trace_text(0, &text, &size));
    const char *order[] = {"\"fc1 forward\"", "\"fc2 forward\"", "\"fc2 backward\"",
                           "\"fc1 backward\""};
    const char *at = text;
    for (int i = 0; i < 4; i++) {
        at = strstr(at, order[i]);
        cr_assert_not_null(at, "%s is missing or out of order", order[i]);
    }
    cr_assert_null(strstr(text, "Sequential"));
    iso_trace_free_text(text);
    iso_trace_stop();
    iso_tensor_destroy(&in);
    iso_module_destroy(&model);
    close_cpu(&device);
}
