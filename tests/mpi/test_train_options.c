// SPDX-License-Identifier: MIT
// Options of the train program that are settings of data_parallel: they arrive there, and do what
// they say.
#include "common/any_device.h"
#include "common/mpi_fixture.h"
#include "common/train_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_train_options, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_train_options, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_train_options, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { IMAGES = 120 };

static train_world world;

#define RUN "--optimizer sgd --schedule constant --momentum 0 "
#define MLP RUN "--model mlp --batch 10 --steps 6 "

// The hash that a run of those options ends with.
static void hash_of(const char *line, char out[17]) {
    train_result result;
    iso_assert_all(train_line(&world, line, NULL, &result));
    memcpy(out, result.hash, 17);
}

// ---- What arrives -----------------------------------------------------------------------------------

static iso_data_parallel_config seen;

static iso_status look(const iso_strategy_context *context, iso_module *module, iso_module **out,
                       void *user) {
    (void)user;
    seen = context->data_parallel;
    return iso_data_parallel_create_take(module, context->comm, &seen, out);
}

static const iso_strategy looking = {.name = "looking", .wrap_module = look};

// The settings with which a run of those options makes its data_parallel.
static const iso_data_parallel_config *settings_of(const char *options) {
    char line[300], hash[17];
    const iso_strategy *known;
    if (iso_strategy_find("looking", &known) < 0) iso_assert_ok(iso_strategy_register(&looking));
    snprintf(line, sizeof(line), "--sync looking %s", options);
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    hash_of(line, hash);
    train_world_close(&world);
    return &seen;
}

// ---- Parameters without a gradient ------------------------------------------------------------------

// The network and, beside it, a layer that no forward uses.
static iso_status forward_first(iso_module *self, iso_call *call, iso_tensor *in,
                                iso_tensor **out) {
    (void)call;
    return iso_module_call(self->child[0], ISO_ACT_NONE, in, out);
}
static iso_status backward_first(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    (void)call;
    return iso_module_call_backward(self->child[0], grad_out, grad_in);
}
static const iso_module_ops first_of_two = {
    .type = "FirstOfTwo", .forward = forward_first, .backward = backward_first};

static iso_status add_idle_layer(iso_module *module, iso_module **out) {
    iso_rng rng = {.seed = 3};
    iso_module *idle, *both = calloc(1, sizeof(*both));
    iso_status status = iso_module_init(both, &first_of_two, module->device);
    if (status >= 0) status = iso_module_add_child_take(both, "used", module);
    if (status >= 0) status = iso_linear_create(module->device, 3, 2, true, &rng, &idle);
    if (status >= 0) status = iso_module_add_child_take(both, "idle", idle);
    *out = both;
    return status;
}

static iso_status wrap_with_idle(const iso_strategy_context *context, iso_module *module,
                                 iso_module **out, void *user) {
    (void)user;
    iso_status status = add_idle_layer(module, &module);
    if (status < 0) return status;
    return iso_data_parallel_create_take(module, context->comm, &context->data_parallel, out);
}

static const iso_strategy idling = {.name = "idling", .wrap_module = wrap_with_idle};

// Without the option the first step would end the job.
static void unused_parameters_are_found(void) {
    char with[17], without[17], idle[17], still[17];
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_ok(iso_strategy_register(&idling));
    hash_of(MLP "--find-unused --sync idling", idle);
    hash_of(MLP "--static-unused --sync idling", still);
    hash_of(MLP "--find-unused", with);
    hash_of(MLP, without);
    iso_assert_all(strcmp(with, without) == 0 && strcmp(with, idle) != 0);
    iso_assert_all(strcmp(still, idle) == 0);
    train_world_close(&world);
}

Test(np1_train_options, unused_parameters_are_found) { unused_parameters_are_found(); }
Test(np3_train_options, unused_parameters_are_found) { unused_parameters_are_found(); }

Test(np2_train_options, finding_unused_parameters_is_an_option) {
    iso_assert_all(!settings_of(MLP)->find_unused_parameters);
    iso_assert_all(settings_of(MLP "--find-unused")->find_unused_parameters);
    iso_assert_all(settings_of(MLP "--static-unused")->static_unused);
}

// ---- Buffers ----------------------------------------------------------------------------------------

Test(np2_train_options, buffers_are_options, .timeout = 120) {
    static const char *const mode[] = {"average", "broadcast", "keep"};
    static const char *const when[] = {"evaluation", "forward", "backward"};
    char line[200];
    for (int i = 0; i < 5; i++) {
        int m = i < 3 ? i : 1, w = i < 3 ? 0 : i - 2;
        snprintf(line, sizeof(line),
                 RUN "--model resnet18 --batch 2 --steps 1 --buffers %s --buffers-when %s", mode[m],
                 when[w]);
        const iso_buffer_config *buffers = &settings_of(line)->buffers;
        iso_assert_all((int)buffers->mode == m && (int)buffers->when == w);
    }
    iso_assert_all(settings_of(MLP)->buffers.mode == ISO_BUFFERS_AVERAGE);
    iso_assert_all(seen.buffers.when == ISO_BUFFERS_AT_EVALUATION);
}

// ---- Averages ---------------------------------------------------------------------------------------

static bool same(const char *a, const char *b) {
    char first[17], second[17];
    hash_of(a, first);
    hash_of(b, second);
    return strcmp(first, second) == 0;
}

// Factors of two change no other bit.
Test(np2_train_options, sums_need_half_the_rate) {
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_all(same(MLP "--average sum --lr 0.03125", MLP "--average post --lr 0.0625"));
    iso_assert_all(!same(MLP "--average sum --lr 0.0625", MLP "--average post --lr 0.0625"));
    iso_assert_all(same(MLP "--average pre", MLP "--average split --split-factor 4"));
    train_world_close(&world);
}

// A third rounds: before the sum and after it.
Test(np3_train_options, averages_divide_when_they_are_told_to) {
    iso_assert_ok(train_world_small(test_comm, IMAGES, &world));
    iso_assert_all(!same(MLP "--average pre", MLP "--average post"));
    iso_assert_all(same(MLP "--average pre", MLP "--average split --split-factor 3"));
    iso_assert_all(same(MLP "--average post", MLP "--average split --split-factor 1"));
    iso_assert_all(same(MLP, MLP "--average post --sync blocking"));
    iso_assert_all(same(MLP "--average pre", MLP "--average pre --sync blocking"));
    train_world_close(&world);
}
