// SPDX-License-Identifier: MIT
// Training in f64 and in both element types at once: the same whatever the mode, the ranks and the
// interruptions.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/types_fixture.h"
#include "nn/nn_impl.h"
#include "parallel/reducer/reducer_impl.h"

#include <isotherm/checkpoint.h>
#include <isotherm/daso.h>

#include <criterion/criterion.h>
#include <string.h>

TestSuite(np1_mixed_types, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_mixed_types, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_mixed_types, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_mixed_types, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

typedef iso_status (*builder)(iso_device *device, bool dropout, iso_module **out);
static const builder builders[] = {build_wide, build_mixed, build_both};
enum { BUILDERS = 3, STEPS = 8 };
static const iso_optimizer_kind kinds[] = {ISO_SGD, ISO_ADAM, ISO_ADADELTA};

static trainer_config config_of(int build, int kind, iso_sync sync) {
    trainer_config config = trainer_default();
    config.build = builders[build];
    config.optimizer = kinds[kind];
    config.hyper = iso_hyper_default(kinds[kind]);
    config.hyper.lr = kind == 0 ? 0.05 : kind == 1 ? 0.003 : 1;
    config.hyper.momentum = kind == 0 ? 0.9 : 0;
    config.dropout = true;
    config.sync = sync;
    return config;
}

static uint64_t hash_after(const trainer_config *config, int steps) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_run(test_comm, config, steps, &hash));
    return hash;
}

// ---- Lazy is blocking -----------------------------------------------------------------------------

static void lazy_is_blocking(void) {
    for (int i = 0; i < BUILDERS; i++)
        for (int bucket = 0; bucket < 3; bucket++) {
            trainer_config lazy = config_of(i, bucket, ISO_SYNC_LAZY);
            lazy.bucket_mb = bucket == 0 ? 0 : bucket == 1 ? 0.002 : 100;
            trainer_config blocking = lazy;
            blocking.sync = ISO_SYNC_BLOCKING;
            uint64_t expected = hash_after(&blocking, STEPS);
            iso_assert_all(hash_after(&lazy, STEPS) == expected);
        }
}
Test(np2_mixed_types, lazy_is_blocking) { lazy_is_blocking(); }
Test(np3_mixed_types, lazy_is_blocking) { lazy_is_blocking(); }

// An update that waits for its layer's forward: the bucket of the other type must be asked for,
// too.
Test(np2_mixed_types, forward_completes_both_types_of_a_layer) {
    trainer_config config = config_of(2, 0, ISO_SYNC_LAZY);
    trainer t;
    iso_tensor *out;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_step(&t, 0, NULL));
    iso_reducer *r = iso_data_parallel_reducer(t.model);
    iso_assert_all(r->layout.bucket_count == 4 && iso__round_is_whole(r->round));
    iso_assert_ok(trainer_forward(&t, 1, &out));
    iso_assert_all(iso__round_is_back(r->round));
    trainer_destroy(&t);
}

// ---- N ranks are one ------------------------------------------------------------------------------

static void equals_one_rank(int build, double tolerance) {
    for (int kind = 0; kind < 3; kind++) {
        trainer_config config = config_of(build, kind, ISO_SYNC_LAZY);
        trainer many, one;
        iso_comm *alone;
        double difference = 1;
        iso_assert_ok(trainer_create(&many, test_comm, &config));
        iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
        iso_assert_ok(trainer_create(&one, alone, &config));
        iso_assert_ok(trainer_train(&many, STEPS));
        iso_assert_ok(trainer_train(&one, STEPS));
        iso_assert_ok(trainer_difference(&many, &one, &difference));
        if (difference >= tolerance) fprintf(stderr, "difference %g, kind %d\n", difference, kind);
        iso_assert_all(difference < tolerance);
        trainer_destroy(&one);
        trainer_destroy(&many);
        iso_comm_destroy(&alone);
    }
}
Test(np2_mixed_types, two_ranks_equal_one_in_f64) { equals_one_rank(0, 1e-12); }
Test(np3_mixed_types, three_ranks_equal_one_in_f64) { equals_one_rank(0, 1e-12); }
Test(np2_mixed_types, two_ranks_equal_one_in_both_types) { equals_one_rank(1, 2e-5); }
Test(np3_mixed_types, three_ranks_equal_one_with_a_layer_of_both) { equals_one_rank(2, 2e-5); }

// Of two numbers the sum is the same in every way of adding them: in the memory that a node shares,
// which adds f32 only, and by MPI.
Test(np2_mixed_types, node_averages_are_world_averages) {
    for (int i = 0; i < BUILDERS; i++) {
        trainer_config config = config_of(i, 0, ISO_SYNC_LAZY);
        uint64_t expected = hash_after(&config, STEPS);
        config.scope = ISO_SCOPE_NODE;
        iso_assert_all(hash_after(&config, STEPS) == expected);
    }
}

// ---- Saving ---------------------------------------------------------------------------------------

static iso_status with_state(trainer *t, bool save, int64_t *step) {
    iso_state *state;
    ISO_TRY(iso_state_create(&state));
    iso_status status = iso_training_state(t->model, t->optimizer, state);
    if (status >= 0)
        status = save ? iso_resume_save(test_comm, resume_path(), *step, state)
                      : iso_resume_load(test_comm, resume_path(), state, step);
    if (status >= 0 && !save) status = iso_training_loaded(t->model, t->optimizer);
    iso_state_destroy(&state);
    return status;
}

static uint64_t interrupted(const trainer_config *config) {
    trainer t;
    uint64_t hash = 0;
    int64_t step = STEPS;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    iso_assert_ok(trainer_train(&t, STEPS));
    iso_assert_ok(with_state(&t, true, &step));
    trainer_destroy(&t);
    iso_assert_ok(trainer_create(&t, test_comm, config));
    iso_assert_ok(trainer_train(&t, 2)); // a past of its own
    iso_assert_ok(with_state(&t, false, &step));
    for (int k = STEPS; k < 2 * STEPS; k++) iso_assert_ok(trainer_step(&t, k, NULL));
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

static void goes_on(void) {
    for (int i = 0; i < BUILDERS; i++)
        for (int kind = 0; kind < 3; kind++) {
            trainer_config config = config_of(i, kind, ISO_SYNC_LAZY);
            uint64_t expected = hash_after(&config, 2 * STEPS);
            iso_assert_all(interrupted(&config) == expected);
        }
}
Test(np1_mixed_types, resumes_with_the_same_bits) { goes_on(); }
Test(np2_mixed_types, resumes_with_the_same_bits) { goes_on(); }
Test(np3_mixed_types, resumes_with_the_same_bits) { goes_on(); }

Test(np2_mixed_types, state_of_another_type_is_refused) {
    trainer t;
    int64_t step = 1;
    trainer_config config = config_of(0, 1, ISO_SYNC_LAZY);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_step(&t, 0, NULL));
    iso_assert_ok(with_state(&t, true, &step));
    trainer_destroy(&t);
    config.build = build_mixed;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_all(with_state(&t, false, &step) == ISO_ERR_MISMATCH);
    const char *message = iso_last_error()->message;
    iso_assert_all(strstr(message, "conv1") && strstr(message, "F64") && strstr(message, "F32"));
    trainer_destroy(&t);
}

// ---- Periodic modes -------------------------------------------------------------------------------

// Statistics in f64, and no parameters of that type.
static iso_status build_f64_statistics(iso_device *device, bool dropout, iso_module **out) {
    iso_batch_norm_config config = {.num_features = TRAINER_CLASSES, .no_affine = true};
    iso_module *cast, *norm;
    iso_status status = build_small_cnn(device, dropout, out);
    if (status >= 0) status = iso_cast_create(device, ISO_F64, &cast);
    if (status >= 0) status = iso_sequential_add_take(*out, "cast", cast);
    if (status >= 0) status = iso_batch_norm1d_create(device, &config, &norm);
    if (status >= 0) status = iso_module_to(norm, ISO_F64);
    return status < 0 ? status : iso_sequential_add_take(*out, "norm", norm);
}

// At the end of a run the replicas are equal again.
static void periodic_trains(builder build, iso_daso_config daso) {
    trainer_config config = trainer_default();
    trainer t;
    iso_optimizer *out = NULL;
    uint64_t hash;
    bool equal;
    config.build = build;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    daso.total_steps = 20;
    iso_assert_ok(iso_daso_create_take(t.optimizer, t.model, &daso, &out));
    t.optimizer = out;
    for (int step = 0; step < 20; step++) iso_assert_ok(trainer_step(&t, step, NULL));
    iso_assert_ok(iso_module_train(t.model, false));
    iso_assert_ok(iso_parameter_hash(t.model, test_comm, &hash, &equal));
    iso_assert_all(equal);
    trainer_destroy(&t);
}

static void periodic_takes_heat(builder build) {
    trainer_config config = trainer_default();
    iso_daso_heat_config heat = ISO_DASO_HEAT_DEFAULT;
    trainer t;
    iso_optimizer *out = NULL;
    config.build = build;
    heat.total_epochs = 12;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_daso_heat_create_take(t.optimizer, t.model, &heat, &out));
    t.optimizer = out;
    trainer_destroy(&t);
}

Test(np2_mixed_types, periodic_modes_train_all_mixtures) {
    static const builder mixture[] = {build_f64_statistics, build_wide, build_mixed, build_both};
    for (int i = 0; i < 4; i++) {
        periodic_trains(mixture[i], ISO_DASO_DEFAULT);
        periodic_trains(mixture[i], iso_local_sgd_config(20, 4));
        periodic_takes_heat(mixture[i]);
    }
}

// ---- What cannot be -------------------------------------------------------------------------------

Test(np2_mixed_types, wrapped_module_keeps_its_type) {
    trainer_config config = trainer_default();
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_module *inside = iso_module_retain(iso_data_parallel_module(t.model));
    iso_assert_all(iso_module_to(t.model, ISO_F64) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "wrapped") != NULL);
    iso_assert_all(iso_module_to(inside, ISO_F64) == ISO_ERR_STATE);
    iso_assert_ok(trainer_step(&t, 0, NULL)); // nothing has changed
    trainer_destroy(&t);
    iso_assert_ok(iso_module_to(inside, ISO_F64));
    iso_module_destroy(&inside);
}

static iso_status build_by_rank(iso_device *device, bool dropout, iso_module **out) {
    return test_rank == 2 ? build_small_cnn(device, dropout, out)
                          : build_wide(device, dropout, out);
}

Test(np3_mixed_types, rank_with_another_type_is_named) {
    trainer t;
    trainer_config config = trainer_default();
    config.build = build_by_rank;
    iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_MISMATCH);
    const char *message = iso_last_error()->message;
    iso_assert_all(strstr(message, "rank 2") && strstr(message, "f32") && strstr(message, "f64"));
    trainer_destroy(&t);
}
