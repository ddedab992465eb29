// SPDX-License-Identifier: MIT
// ZeRO with LAMB, whose steps need the norms of whole parameters. Compiled for stage 1, and with
// -DZERO_STAGE=2 or 3 for these stages.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/zero_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <isotherm/join.h>
#include <isotherm/state_dict.h>

#include <criterion/criterion.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ZERO_STAGE
#define ZERO_STAGE 1
#endif

TestSuite(np1_zero_lamb, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_zero_lamb, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_zero_lamb, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_zero_lamb, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 6 };
// Squares of norms are added shard by shard, in f64. So a step differs by the rounding of a factor
// to f32: at most 6e-8 of a step of 0.01 times a norm, and rounding of the values.
static const double bound = 1e-6;

static bool shares;
static const char *const *own; // a parameter that is not exchanged, or NULL
static void adjust(iso_data_parallel_config *dp) {
    dp->zero = shares ? ZERO_STAGE : 0;
    dp->ignore = own;
    dp->ignore_count = own != NULL;
}

static trainer_config lamb(void) {
    trainer_config config = trainer_default();
    config.optimizer = ISO_LAMB;
    config.hyper = iso_hyper_default(ISO_LAMB);
    config.hyper.lr = 0.01;
    config.adjust = adjust;
    return config;
}

static void make(trainer *t, trainer_config config, bool zero) {
    shares = zero;
    iso_assert_ok(trainer_create(t, test_comm, &config));
}

static uint64_t train(trainer *t, trainer_config config, bool zero) {
    uint64_t hash = 0;
    make(t, config, zero);
    iso_assert_ok(trainer_train(t, STEPS));
    if (!own)
        iso_assert_ok(trainer_hash(t, &hash));
    else
        iso_assert_ok(iso_data_parallel_finish(t->model));
    return hash;
}

static bool are_near(trainer *a, trainer *b) {
    double difference = 1;
    iso_assert_ok(trainer_difference(a, b, &difference));
    if (!(difference <= bound)) fprintf(stderr, "difference %g\n", difference);
    return difference <= bound;
}

// ---- Nearly the same values -----------------------------------------------------------------------------

static void equals_plain(trainer_config config) {
    trainer plain, zero, blocking;
    config.sync = ISO_SYNC_LAZY;
    (void)train(&plain, config, false);
    uint64_t lazy = train(&zero, config, true);
    iso_assert_all(are_near(&plain, &zero));
    config.sync = ISO_SYNC_BLOCKING;
    iso_assert_all(train(&blocking, config, true) == lazy);
    trainer_destroy(&plain);
    trainer_destroy(&zero);
    trainer_destroy(&blocking);
}

// Parameters that lie on several ranks, in several buckets (fc1 in pieces), or on one rank.
static void all_settings(const char *collective) {
    const double buckets[] = {0, 0.0005, 100};
    setenv("ISO_NODE_COLLECTIVE", collective, 1);
    for (int i = 0; i < 6; i++) {
        trainer_config config = lamb();
        config.bucket_mb = buckets[i % 3];
        config.find_unused = i % 2;
        if (i >= 3) config.build = build_wide_mlp;
        if (i >= 3) config.piece_mb = 0.01;
        equals_plain(config);
    }
}

Test(np2_zero_lamb, is_near_a_run_without) { all_settings("shm"); }
Test(np3_zero_lamb, is_near_a_run_without) { all_settings("mpi"); }
Test(np4_zero_lamb, is_near_a_run_without) { all_settings("shm"); }

Test(np3_zero_lamb, is_near_a_run_without_and_with_a_hook) {
    trainer_config config = lamb();
    config.hook = &iso_hook_int8;
    config.bucket_mb = 0.002;
    equals_plain(config);
}

// A parameter that is not exchanged is updated as a whole.
Test(np2_zero_lamb, is_near_a_run_without_beside_parameters_of_one_rank) {
    static const char *const names[] = {"fc1.weight"};
    own = names;
    equals_plain(lamb());
    own = NULL;
}

Test(np1_zero_lamb, alone_it_has_the_same_bits) {
    trainer a, b;
    trainer_config config = lamb();
    config.build = build_wide_mlp;
    config.piece_mb = 0.01;
    cr_assert_eq(train(&a, config, true), train(&b, config, false));
    trainer_destroy(&a);
    trainer_destroy(&b);
}

// ---- Other orders of calls ------------------------------------------------------------------------------

// Gradients that have come back before the step on some ranks, or on all.
static iso_status odd_step(trainer *t, int step, int looks) {
    iso_optimizer_zero_grad(t->optimizer);
    ISO_TRY(iso_data_parallel_begin_no_sync(t->model));
    ISO_TRY(trainer_backward(t, step + 2));
    ISO_TRY(iso_data_parallel_end_no_sync(t->model));
    ISO_TRY(trainer_backward(t, step));
    if (test_rank < looks) ISO_TRY(iso_data_parallel_finish(t->model));
    return iso_optimizer_step(t->optimizer);
}

static uint64_t odd_hash(bool zero, int looks, trainer *t) {
    iso_status status = ISO_OK;
    uint64_t hash = 0;
    trainer_config config = lamb();
    config.build = build_wide_mlp;
    config.piece_mb = 0.01;
    make(t, config, zero);
    for (int step = 0; status == ISO_OK && step < STEPS; step++) status = odd_step(t, step, looks);
    if (status == ISO_OK) status = trainer_hash(t, &hash);
    iso_assert_ok(status);
    return hash;
}

static void order_does_not_matter(void) {
    trainer plain, t;
    odd_hash(false, 0, &plain);
    uint64_t first = odd_hash(true, 0, &t);
    iso_assert_all(are_near(&plain, &t));
    trainer_destroy(&t);
    for (int looks = 1; looks <= test_size; looks++) {
        iso_assert_all(odd_hash(true, looks, &t) == first);
        trainer_destroy(&t);
    }
    trainer_destroy(&plain);
}

Test(np2_zero_lamb, order_of_calls_does_not_matter) { order_does_not_matter(); }
Test(np3_zero_lamb, order_of_calls_does_not_matter) { order_does_not_matter(); }

static iso_status step_of(void *user) { return iso_optimizer_step(((trainer *)user)->optimizer); }

static void join_all(trainer *t) {
    iso_join *join;
    const iso_join_config how = {.mode = ISO_JOIN_SHADOW, .step = step_of, .user = t};
    iso_assert_ok(iso_join_begin(t->model, &how, &join));
    for (int step = 0;; step++) {
        int64_t rows = step < STEPS - 2 * test_rank ? t->batch_rows : 0;
        iso_optimizer_zero_grad(t->optimizer);
        iso_status status = iso_join_next(join, rows, true);
        if (status == ISO_PENDING) break;
        cr_assert(status == ISO_OK, "%s", iso_last_error()->message);
        cr_assert(trainer_backward(t, step) == ISO_OK, "%s", iso_last_error()->message);
        cr_assert(step_of(t) == ISO_OK, "%s", iso_last_error()->message);
    }
    iso_join_end(&join);
    uint64_t hash;
    iso_assert_ok(trainer_hash(t, &hash));
}

Test(np3_zero_lamb, uneven_inputs_end_alike) {
    trainer plain, zero;
    make(&plain, lamb(), false);
    make(&zero, lamb(), true);
    join_all(&plain);
    join_all(&zero);
    iso_assert_all(are_near(&plain, &zero));
    trainer_destroy(&plain);
    trainer_destroy(&zero);
}

// ---- Faults -------------------------------------------------------------------------------------------

// Of the emulated GPU, where the build has that.
__attribute__((weak)) void emulated_fail_next(const char *function, int error);

// The norms of a bucket do not reach the host. Nothing may go on with zeros in their place.
Test(np2_zero_lamb, norms_that_are_lost_are_told_of) {
    trainer t;
    if (!emulated_fail_next || !getenv("ISO_TEST_DEVICE"))
        test_mpi_skip("only the emulated GPU can be made to fail");
    make(&t, lamb(), true);
    iso_assert_ok(trainer_train(&t, 2));
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(trainer_backward(&t, 2));
    iso_assert_ok(iso_optimizer_step(t.optimizer));
    emulated_fail_next("cudaMemcpy", 999 /* cudaErrorUnknown */);
    iso_assert_all(iso_data_parallel_finish(t.model) == ISO_ERR_DEVICE);
    for (int again = 0; again < 2; again++)
        iso_assert_all(iso_data_parallel_finish(t.model) == ISO_ERR_STATE &&
                       strstr(iso_last_error()->message, "norms"));
    trainer_destroy(&t);
}

// ---- State ----------------------------------------------------------------------------------------------

// Of three ranks with ZeRO, two go on with it, and one without.
Test(np3_zero_lamb, state_goes_to_other_numbers_of_ranks) {
    iso_state_dict dict = {0}, again = {0};
    trainer_config config = lamb();
    MPI_Comm some;
    iso_comm *comm;
    trainer t, next;
    (void)train(&t, config, true);
    iso_assert_ok(iso_optimizer_state_dict(t.optimizer, &dict));
    MPI_Comm_split(MPI_COMM_WORLD, test_rank < 2, test_rank, &some);
    iso_assert_ok(iso_comm_create(some, NULL, &comm));
    shares = test_rank < 2;
    iso_assert_ok(trainer_create(&next, comm, &config));
    iso_assert_ok(iso_optimizer_load_state_dict(next.optimizer, &dict, true, NULL));
    iso_assert_ok(iso_optimizer_state_dict(next.optimizer, &again));
    iso_assert_all(zero_same_dicts(&dict, &again));
    iso_state_dict_destroy(&again);
    iso_state_dict_destroy(&dict);
    trainer_destroy(&next);
    trainer_destroy(&t);
    iso_comm_destroy(&comm);
    MPI_Comm_free(&some);
}

// State that was saved with ZeRO goes on without it.
Test(np2_zero_lamb, training_goes_on_from_a_state_dict) {
    iso_state_dict dict = {0}, model = {0};
    trainer zero, plain;
    (void)train(&zero, lamb(), true);
    make(&plain, lamb(), false);
    iso_assert_ok(iso_optimizer_state_dict(zero.optimizer, &dict));
    iso_assert_ok(iso_module_state_dict(zero.model, &model));
    iso_assert_ok(iso_module_load_state_dict(plain.model, &model, true, NULL));
    iso_assert_ok(iso_optimizer_load_state_dict(plain.optimizer, &dict, true, NULL));
    iso_state_dict_destroy(&model);
    iso_state_dict_destroy(&dict);
    iso_assert_ok(trainer_step(&plain, STEPS, NULL));
    iso_assert_ok(trainer_step(&zero, STEPS, NULL));
    iso_assert_all(are_near(&plain, &zero));
    trainer_destroy(&plain);
    trainer_destroy(&zero);
}
