// SPDX-License-Identifier: MIT
// DataParallel with DataParallelOptimizer on 1 to 4 ranks: lazy = blocking = one rank on the whole
// batch.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/trace.h>
#include <math.h>
#include <string.h>

TestSuite(np1_data_parallel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_data_parallel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_data_parallel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_data_parallel, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static uint64_t hash_after(const trainer_config *config, int steps) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_run(test_comm, config, steps, &hash));
    return hash;
}

// ---- Lazy = blocking, bit for bit -------------------------------------------------------------------

enum { VARIANTS = 10 }; // of optimizers

static trainer_config with_optimizer(int variant) {
    static const iso_optimizer_kind kind[VARIANTS] = {
        ISO_SGD,     ISO_SGD,     ISO_ADAM,    ISO_ADAMW, ISO_ADADELTA,
        ISO_ADAGRAD, ISO_RMSPROP, ISO_RMSPROP, ISO_ADAM,  ISO_NADAM};
    static const double lr[VARIANTS] = {0.05, 0.05,  0.003, 0.003, 1,
                                        0.02, 0.003, 0.003, 0.003, 0.003};
    trainer_config config = trainer_default();
    config.optimizer = kind[variant];
    config.hyper = iso_hyper_default(kind[variant]);
    config.hyper.lr = lr[variant];
    config.hyper.weight_decay = 0.001;
    config.hyper.nesterov = variant == 1;
    config.hyper.lr_decay = variant == 5 ? 0.01 : 0;
    config.hyper.centered = variant == 7;
    config.hyper.amsgrad = variant == 8;
    if (variant == 1 || variant == 7) config.hyper.momentum = 0.9;
    return config;
}

static void lazy_equals_blocking(void) {
    for (int variant = 0; variant < VARIANTS; variant++) {
        trainer_config config = with_optimizer(variant);
        config.dropout = variant % 2 == 0;
        uint64_t start = hash_after(&config, 0), lazy = hash_after(&config, 50);
        config.sync = ISO_SYNC_BLOCKING;
        uint64_t blocking = hash_after(&config, 50);
        iso_assert_all(lazy == blocking && lazy != start);
    }
}

Test(np1_data_parallel, lazy_equals_blocking_for_every_optimizer) { lazy_equals_blocking(); }
Test(np2_data_parallel, lazy_equals_blocking_for_every_optimizer) { lazy_equals_blocking(); }
Test(np3_data_parallel, lazy_equals_blocking_for_every_optimizer) { lazy_equals_blocking(); }
Test(np4_data_parallel, lazy_equals_blocking_for_every_optimizer) { lazy_equals_blocking(); }

// The bucket size changes which sums travel together; Rabenseifner's algorithm gives the same bits
// whole or in parts.
Test(np2_data_parallel, bucket_size_does_not_change_the_bits) {
    trainer_config config = trainer_default();
    uint64_t per_layer = hash_after(&config, 20);
    config.bucket_mb = 100;
    iso_assert_all(hash_after(&config, 20) == per_layer);
}

// ---- N ranks = one rank on the whole batch ----------------------------------------------------------

// The same numbers are summed in another order, so they agree to rounding: 12 rows, 20 steps,
// float.
static void equals_one_rank(bool dropout) {
    trainer_config config = trainer_default();
    config.dropout = dropout;
    trainer many, one;
    iso_comm *alone;
    double difference = 1, step_0 = 1;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    iso_assert_ok(trainer_difference(&many, &one, &step_0));
    iso_assert_ok(trainer_train(&many, 20));
    iso_assert_ok(trainer_train(&one, 20));
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    iso_assert_all(step_0 == 0 && difference < 2e-5);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
}

Test(np2_data_parallel, equals_one_rank_on_the_whole_batch) { equals_one_rank(false); }
Test(np3_data_parallel, equals_one_rank_on_the_whole_batch) { equals_one_rank(false); }
Test(np4_data_parallel, equals_one_rank_on_the_whole_batch) { equals_one_rank(false); }
Test(np3_data_parallel, equals_one_rank_with_dropout) { equals_one_rank(true); }
Test(np4_data_parallel, equals_one_rank_with_dropout) { equals_one_rank(true); }

Test(np2_data_parallel, learns) {
    trainer_config config = trainer_default();
    trainer t;
    double first, last = 0;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_step(&t, 0, &first));
    for (int step = 1; step < 60; step++) iso_assert_ok(trainer_step(&t, step, &last));
    iso_assert_all(last < first / 2);
    trainer_destroy(&t);
}

// ---- Nothing pending is ever lost or seen -----------------------------------------------------------

// What is expected after `steps` steps, from a blocking run.
static uint64_t expected_hash(int steps) {
    trainer_config config = trainer_default();
    config.sync = ISO_SYNC_BLOCKING;
    return hash_after(&config, steps);
}

Test(np2_data_parallel, evaluation_mode_completes_pending_updates) {
    trainer_config config = trainer_default();
    trainer lazy, blocking;
    iso_tensor *out;
    void *data;
    float a[60] = {0}, b[60] = {1};
    iso_assert_ok(trainer_create(&lazy, test_comm, &config));
    config.sync = ISO_SYNC_BLOCKING;
    iso_assert_ok(trainer_create(&blocking, test_comm, &config));
    trainer *t[2] = {&lazy, &blocking};
    float *copy[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        iso_assert_ok(trainer_train(t[i], 3));
        iso_assert_ok(iso_module_train(t[i]->model, false));
        iso_assert_ok(trainer_forward(t[i], 9, &out));
        iso_assert_ok(iso_tensor_map(out, ISO_READ, &data));
        memcpy(copy[i], data, (size_t)iso_tensor_count(out) * sizeof(float));
        iso_assert_ok(iso_tensor_unmap(out));
    }
    iso_assert_all(memcmp(a, b, 30 * sizeof(float)) == 0);
    trainer_destroy(&lazy);
    trainer_destroy(&blocking);
}

Test(np2_data_parallel, parameter_access_completes_pending_updates) {
    uint64_t expected = expected_hash(3), hash = 0;
    trainer_config config = trainer_default();
    trainer t;
    iso_parameter_list list;
    iso_tensor *value;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 2));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    iso_assert_ok(iso_parameter_value(list.item[3],
                                      &value)); // in mid-run: the next step must not be disturbed
    iso_parameter_list_destroy(&list);
    iso_assert_ok(trainer_step(&t, 2, NULL));
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == expected);
    trainer_destroy(&t);
}

Test(np2_data_parallel, destroying_the_optimizer_completes_pending_updates) {
    uint64_t expected = expected_hash(3), hash = 0;
    trainer_config config = trainer_default();
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 3));
    iso_optimizer_destroy(&t.optimizer);
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == expected);
    trainer_destroy(&t);
}

Test(np2_data_parallel, hyperparameters_are_frozen_at_step) {
    uint64_t expected = expected_hash(4), hash = 0;
    trainer_config config = trainer_default();
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_hyper *hyper = iso_optimizer_hyper(t.optimizer);
    for (int step = 0; step < 4; step++) {
        hyper->lr = config.hyper.lr;
        iso_assert_ok(trainer_step(&t, step, NULL));
        hyper->lr = 1e6; // a schedule stepped before the lazy update ran
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == expected);
    trainer_destroy(&t);
}

// What is refused leaves the wrapper that is there as it was.
Test(np2_data_parallel, a_module_is_wrapped_once) {
    uint64_t expected = expected_hash(4), hash = 0;
    trainer_config config = trainer_default();
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_module *outer;
    iso_status status =
        iso_data_parallel_create_take(iso_module_retain(t.model), test_comm, NULL, &outer);
    iso_assert_all(status == ISO_ERR_STATE && !outer);
    iso_assert_all(strstr(iso_last_error()->message, "data-parallel already") != NULL);
    iso_assert_ok(trainer_train(&t, 4));
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == expected);
    trainer_destroy(&t);
}

Test(np2_data_parallel, steps_allocate_nothing) {
    trainer_config config = trainer_default();
    config.dropout = true;
    trainer t;
    long long before, after;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 3));
    iso_memory_balance(NULL, NULL, &before);
    long long primitives = iso_device_primitives_created(t.device);
    iso_assert_ok(trainer_train(&t, 10));
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before && iso_device_primitives_created(t.device) == primitives);
    trainer_destroy(&t);
}

// Start of the first span of this name that began after the trace did, in microseconds; -1: none.
static double span_start(const char *text, const char *category, const char *name) {
    char pattern[128];
    snprintf(pattern, sizeof(pattern), "\"cat\":\"%s\",\"name\":\"%s\",\"ts\":", category, name);
    for (const char *at = strstr(text, pattern); at; at = strstr(at + 1, pattern))
        if (atof(at + strlen(pattern)) >= 0) return atof(at + strlen(pattern));
    return -1;
}

// The order of events that hides the exchange: a layer's gradient leaves while the layers below it
// compute, and is waited for in the next forward. Spans of a step's exchange are written in the
// next step.
Test(np2_data_parallel, gradients_leave_during_backward) {
    trainer_config config = trainer_default();
    trainer t;
    char *text;
    size_t size;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 3));
    iso_assert_ok(iso_data_parallel_finish(t.model));
    iso_assert_ok(iso_trace_start(1000));
    iso_assert_ok(trainer_step(&t, 3, NULL));
    iso_assert_ok(trainer_step(&t, 4, NULL));
    iso_assert_ok(iso_trace_text(test_rank, &text, &size));
    double fc1 = span_start(text, "exchange", "fc1"), conv1 = span_start(text, "exchange", "conv1");
    double backward = span_start(text, "compute", "conv1 backward"),
           wait = span_start(text, "wait", "fc1");
    iso_assert_all(fc1 >= 0 && fc1 < backward);
    iso_assert_all(backward < conv1);
    iso_assert_all(wait > conv1 && span_start(text, "update", "fc1.weight") > wait);
    iso_trace_free_text(text);
    iso_trace_stop();
    trainer_destroy(&t);
}

// ---- Hooks of the program ---------------------------------------------------------------------------

static iso_module *hooked; // the model, retained
static int forwards, backwards;

static iso_status count_forward(iso_module *module, iso_tensor *in, iso_tensor *out, void *user) {
    (void)module, (void)in, (void)out, (void)user;
    forwards++;
    return ISO_OK;
}

static iso_status count_backward(iso_module *module, iso_tensor *grad_in, void *user) {
    (void)module, (void)grad_in, (void)user;
    backwards++;
    return ISO_OK;
}

static const iso_module_hooks counting = {.after_forward = count_forward,
                                          .after_backward = count_backward};

static iso_status build_hooked(iso_device *device, bool dropout, iso_module **out) {
    iso_status status = build_small_cnn(device, dropout, out);
    if (status < 0) return status;
    hooked = iso_module_retain(*out);
    return iso_module_add_hooks(hooked->child[0], &counting, NULL);
}

Test(np2_data_parallel, hooks_of_the_program_stay_beside_those_of_the_wrapper) {
    trainer_config config = trainer_default();
    trainer t;
    uint64_t plain = hash_after(&config, 5), hash;
    config.build = build_hooked;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_module_add_hooks(hooked->child[0], &counting, NULL));
    iso_assert_ok(trainer_train(&t, 5));
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == plain && forwards == 10 && backwards == 10);
    trainer_destroy(&t);
    iso_assert_all(hooked->child[0]->hooks_count == 2 && hooked->child[2]->hooks_count == 0);
    iso_module_destroy(&hooked);
}
