// SPDX-License-Identifier: MIT
// The tree of modules: names, parameters, references, what is told to all, and initial values.
#include "common/nn_fixture.h"
#include "nn/nn_impl.h"

#include <math.h>
#include <string.h>

TestSuite(module, .timeout = 60);

static iso_module *new_linear(iso_device *device, int64_t in, int64_t out, uint64_t seed) {
    iso_rng rng = {.seed = seed};
    iso_module *module = NULL;
    cr_ok(iso_linear_create(device, in, out, true, &rng, &module));
    return module;
}

static iso_module *new_sequential(iso_device *device) {
    iso_module *module = NULL;
    cr_ok(iso_sequential_create(device, &module));
    return module;
}

static iso_status hand_through(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)call;
    return iso_module_call(self->child[0], ISO_ACT_NONE, in, out);
}
static const iso_module_ops wrapper_ops = {.type = "Wrapper", .forward = hand_through};

static void expect_names(iso_module *module, int count, const char *const *name) {
    iso_parameter_list list;
    cr_ok(iso_module_parameters(module, &list));
    cr_assert_eq(list.count, count);
    for (int i = 0; i < count; i++) cr_assert_str_eq(list.name[i], name[i]);
    iso_parameter_list_destroy(&list);
    cr_assert_null(list.item);
}

// ---- Names -------------------------------------------------------------------------------------

Test(module, parameters_have_joined_names_in_registration_order) {
    iso_device *device = open_cpu();
    iso_module *model = new_sequential(device), *features = new_sequential(device);
    cr_ok(iso_sequential_add_take(features, "b", new_linear(device, 2, 2, 1)));
    cr_ok(iso_sequential_add_take(features, NULL, new_linear(device, 2, 2, 1)));
    cr_ok(iso_sequential_add_take(model, "features", features));
    cr_ok(iso_sequential_add_take(model, "a", new_linear(device, 2, 3, 1)));
    expect_names(model, 6,
                 (const char *[]){"features.b.weight", "features.b.bias", "features.1.weight",
                                  "features.1.bias", "a.weight", "a.bias"});
    cr_assert_eq(iso_module_parameter_count(model), 6 + 6 + 9);
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(module, shared_module_is_listed_once_under_its_first_name) {
    iso_device *device = open_cpu();
    iso_module *model = new_sequential(device), *shared = new_linear(device, 2, 2, 1);
    cr_ok(iso_sequential_add_take(model, "first", shared));
    cr_ok(iso_sequential_add_take(model, "again", iso_module_retain(shared)));
    expect_names(model, 2, (const char *[]){"first.weight", "first.bias"});
    cr_assert_eq(iso_module_parameter_count(model), 6);
    cr_assert_str_eq(shared->name, "first");
    iso_module_destroy(&model);
    close_cpu(&device);
}

Test(module, wrapper_adds_no_prefix) {
    iso_device *device = open_cpu();
    iso_module *model = new_sequential(device), *wrapper = NULL, *outer = new_sequential(device);
    cr_ok(iso_sequential_add_take(model, "fc", new_linear(device, 2, 2, 1)));
    cr_ok(iso__module_new(sizeof(iso_module), &wrapper_ops, device, &wrapper));
    cr_ok(iso__module_add_wrapped_take(wrapper, model));
    expect_names(wrapper, 2, (const char *[]){"fc.weight", "fc.bias"});
    cr_ok(iso_module_add_child_take(outer, "net", wrapper));
    expect_names(outer, 2, (const char *[]){"net.fc.weight", "net.fc.bias"});
    iso_module_destroy(&outer);
    close_cpu(&device);
}

Test(module, refuses_bad_names_and_drops_the_child) {
    iso_device *device = open_cpu();
    iso_module *model = new_sequential(device);
    cr_ok(iso_sequential_add_take(model, "fc", new_linear(device, 2, 2, 1)));
    const char *bad[] = {"", "a.b", "fc"};
    for (int i = 0; i < 3; i++)
        cr_assert_eq(iso_sequential_add_take(model, bad[i], new_linear(device, 2, 2, 1)),
                     ISO_ERR_ARG);
    int64_t one = 1;
    cr_fails(iso_module_add_parameter(model, "fc", 1, &one, NULL), ISO_ERR_ARG, "\"fc\"");
    cr_assert_eq(model->child_count, 1);
    iso_module_destroy(&model);
    close_cpu(&device); // the refused children are gone
}

Test(module, cannot_be_below_itself) {
    iso_device *device = open_cpu();
    iso_module *outer = new_sequential(device), *inner = new_sequential(device);
    cr_ok(iso_sequential_add_take(outer, "inner", inner));
    cr_fails(iso_sequential_add_take(inner, "outer", iso_module_retain(outer)), ISO_ERR_ARG,
             "below itself");
    iso_module_destroy(&outer);
    close_cpu(&device);
}

Test(module, shared_child_outlives_its_container_with_its_name) {
    iso_device *device = open_cpu();
    iso_module *model = new_sequential(device), *child = new_linear(device, 2, 2, 1);
    cr_ok(iso_sequential_add_take(model, "fc", iso_module_retain(child)));
    iso_module_destroy(&model);
    cr_assert_null(model);
    cr_assert_str_eq(child->name, "fc");
    expect_names(child, 2, (const char *[]){"weight", "bias"});
    iso_module_destroy(&child);
    iso_module_destroy(&child); // NULL by now
    close_cpu(&device);
}

// ---- Access from outside -----------------------------------------------------------------------

static iso_status count_completion(void *user, iso_parameter *parameter) {
    (void)parameter;
    ++*(int *)user;
    return ISO_OK;
}

Test(module, access_completes_what_is_pending_first) {
    iso_device *device = open_cpu();
    iso_module *fc = new_linear(device, 2, 2, 1);
    int completions = 0;
    fc->parameter[0]->complete = count_completion;
    fc->parameter[0]->complete_user = &completions;
    iso_tensor *value, *grad;
    cr_ok(iso_parameter_value(fc->parameter[0], &value));
    cr_assert_eq(completions, 1);
    cr_ok(iso_parameter_grad(fc->parameter[0], &grad));
    cr_assert_eq(completions, 2);
    cr_assert(value == fc->parameter[0]->value && grad == fc->parameter[0]->grad);
    iso_module_destroy(&fc);
    close_cpu(&device);
}

Test(module, gradient_without_backward_reads_as_zeros) {
    iso_device *device = open_cpu();
    iso_module *fc = new_linear(device, 3, 2, 1);
    iso_tensor *grad, *zeros = filled_tensor(device, 2, (int64_t[]){2, 3}, 0);
    cr_ok(iso_tensor_fill(fc->parameter[0]->grad, 7));
    cr_ok(iso_parameter_grad(fc->parameter[0], &grad));
    cr_assert(same_values(grad, zeros));
    iso_tensor_destroy(&zeros);
    iso_module_destroy(&fc);
    close_cpu(&device);
}

Test(module, zero_grad_touches_no_memory) {
    iso_device *device = open_cpu();
    iso_module *model = new_sequential(device), *fc = new_linear(device, 3, 2, 1);
    cr_ok(iso_sequential_add_take(model, "fc", fc));
    iso_tensor *sevens = filled_tensor(device, 2, (int64_t[]){2, 3}, 7);
    cr_ok(iso_tensor_fill(fc->parameter[0]->grad, 7));
    fc->parameter[0]->grad_valid = true;
    iso_module_zero_grad(model);
    cr_assert_not(fc->parameter[0]->grad_valid);
    cr_assert(same_values(fc->parameter[0]->grad, sevens));
    iso_tensor_destroy(&sevens);
    iso_module_destroy(&model);
    close_cpu(&device);
}

// ---- What all are told -------------------------------------------------------------------------

Test(module, training_and_first_row_reach_everything_below) {
    iso_device *device = open_cpu();
    iso_module *model = new_sequential(device), *inner = new_sequential(device);
    iso_module *fc = new_linear(device, 2, 2, 1);
    cr_ok(iso_sequential_add_take(inner, "fc", fc));
    cr_ok(iso_sequential_add_take(model, "inner", inner));
    cr_assert(fc->training);
    cr_ok(iso_module_train(model, false));
    cr_assert(!model->training && !inner->training && !fc->training);
    cr_ok(iso_module_train(model, true));
    cr_assert(model->training && inner->training && fc->training);
    iso_module_set_first_row(model, 96);
    cr_assert(inner->first_row == 96 && fc->first_row == 96);
    iso_module_destroy(&model);
    close_cpu(&device);
}

// ---- Initial values ----------------------------------------------------------------------------

// Element i is word i % 4 of block i / 4 of the stream; weight and bias have a stream each.
Test(module, initial_values_are_uniform_draws_of_philox) {
    iso_device *device = open_cpu();
    iso_rng rng = {.seed = 5, .next_stream = 8};
    iso_module *fc = NULL;
    cr_ok(iso_linear_create(device, 9, 3, true, &rng, &fc));
    cr_assert_eq(rng.next_stream, 10);
    for (uint64_t s = 0; s < 2; s++) {
        iso__philox_key key = iso__philox_key_make(5, ISO_RNG_INIT, 8 + s);
        float *value = tensor_values(fc->parameter[s]->value);
        for (uint32_t i = 0; i < (s ? 3u : 27u); i++) {
            uint32_t draw[4], counter[4] = {i / 4, 0, 0, 0};
            iso__philox(key, counter, draw);
            float want = (2 * iso__uniform(draw[i % 4]) - 1) / 3; // 1 / sqrt(9)
            cr_assert_float_eq(value[i], want, 1e-7);
        }
        free(value);
    }
    iso_module_destroy(&fc);
    close_cpu(&device);
}

// PyTorch: U(-b, b) with b = 1 / sqrt(in_channels * kh * kw), which has variance b^2 / 3.
// Values drawn uniformly between -bound and bound.
static void check_uniform(iso_tensor *tensor, int count, double bound) {
    cr_assert_eq(iso_tensor_count(tensor), count);
    float *value = tensor_values(tensor);
    double sum = 0, squares = 0, largest = 0;
    for (int i = 0; i < count; i++) {
        sum += (double)value[i];
        squares += (double)value[i] * (double)value[i];
        largest = fmax(largest, fabs((double)value[i]));
    }
    cr_assert(largest <= bound && largest > 0.999 * bound);
    cr_assert_float_eq(sum / count, 0, 4 * bound / sqrt(3.0 * count)); // four standard deviations
    cr_assert_float_eq(squares / count / (bound * bound), 1.0 / 3, 0.02);
    free(value);
}

Test(module, conv2d_is_initialised_by_its_fan_in) {
    iso_device *device = open_cpu();
    iso_rng rng = {.seed = 2};
    for (int groups = 1; groups <= 2; groups++) {
        iso_conv2d_config config = {.in_channels = 16,
                                    .out_channels = 64 * groups,
                                    .kernel_size = {3, 3},
                                    .groups = groups};
        iso_module *conv = NULL;
        cr_ok(iso_conv2d_create(device, &config, &rng, &conv));
        check_uniform(conv->parameter[0]->value, 64 * 16 * 9, 1 / sqrt(16.0 / groups * 9));
        iso_module_destroy(&conv);
    }
    close_cpu(&device);
}

Test(module, same_seed_and_order_give_the_same_model) {
    iso_device *device = open_cpu();
    iso_module *a = new_linear(device, 20, 10, 1), *b = new_linear(device, 20, 10, 1);
    iso_module *other = new_linear(device, 20, 10, 2);
    cr_assert(same_values(a->parameter[0]->value, b->parameter[0]->value));
    cr_assert_not(same_values(a->parameter[0]->value, other->parameter[0]->value));
    iso_module_destroy(&a);
    iso_module_destroy(&b);
    iso_module_destroy(&other);
    close_cpu(&device);
}

// ---- Refused configurations --------------------------------------------------------------------

Test(module, layers_refuse_impossible_sizes) {
    iso_device *device = open_cpu();
    iso_rng rng = {.seed = 1};
    iso_module *m = NULL;
    iso_conv2d_config conv = {.in_channels = 1, .out_channels = 1, .kernel_size = {3, 0}};
    cr_fails(iso_linear_create(device, 0, 3, true, &rng, &m), ISO_ERR_ARG, "0 to 3 features");
    cr_fails(iso_conv2d_create(device, &conv, &rng, &m), ISO_ERR_ARG, "kernel size 0");
    cr_fails(iso_max_pool2d_create(device, 2, 0, &m), ISO_ERR_ARG, "stride 0");
    conv = (iso_conv2d_config){6, 8, .kernel_size = {3, 3}, .groups = 4};
    cr_fails(iso_conv2d_create(device, &conv, &rng, &m), ISO_ERR_ARG,
             "6 to 8 channels in 4 groups");
    conv = (iso_conv2d_config){8, 6, .kernel_size = {3, 3}, .groups = 4};
    cr_fails(iso_conv2d_create(device, &conv, &rng, &m), ISO_ERR_ARG,
             "8 to 6 channels in 4 groups");
    conv.groups = -1;
    cr_fails(iso_conv2d_create(device, &conv, &rng, &m), ISO_ERR_ARG, "-1 groups");
    conv = (iso_conv2d_config){8, 6, .kernel_size = {3, 3}, .dilation = {1, -2}};
    cr_fails(iso_conv2d_create(device, &conv, &rng, &m), ISO_ERR_ARG, "dilation -2");
    iso_pool2d_config pool = {.kernel_size = {3, 0}};
    cr_fails(iso_pool2d_create(device, ISO_POOL_AVG, &pool, &m), ISO_ERR_ARG,
             "an AvgPool2d with window 0");
    pool = (iso_pool2d_config){.kernel_size = {4, 3}, .padding = {2, 2}};
    cr_fails(iso_pool2d_create(device, ISO_POOL_MAX, &pool, &m), ISO_ERR_ARG, "at most half");
    cr_fails(iso_pool2d_create(device, (iso_pool_kind)7, &pool, &m), ISO_ERR_ARG, "kind 7");
    cr_fails(iso_adaptive_avg_pool2d_create(device, 2, 0, &m), ISO_ERR_ARG, "2 x 0");
    cr_fails(iso_linear_create(device, 2, 3, true, NULL, &m), ISO_ERR_ARG, "random numbers");
    cr_fails(iso_dropout_create(device, 1, &rng, &m), ISO_ERR_ARG, "probability 1");
    cr_fails(iso_dropout2d_create(device, NAN, &rng, &m), ISO_ERR_ARG, "probability nan");
    cr_assert_null(m);
    close_cpu(&device);
}
