// SPDX-License-Identifier: MIT
// Uneven inputs, the rules: throw, equalise, disabled, how many reductions, leaving early, ranks
// that fail, and what is refused.
#include "common/daso_fixture.h"
#include "common/join_fixture.h"
#include "common/mpi_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <isotherm/daso.h>
#include <isotherm/sync_batchnorm.h>
#include <isotherm/trace.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_join_rules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_join_rules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_join_rules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_join_rules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Reductions of whole numbers, which only joins make between steps.
static int reductions;

int MPI_Iallreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request) {
    reductions += type == MPI_INT64_T;
    return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

static void set_lengths(uneven *u, int first, int others) {
    for (int r = 0; r < 4; r++) u->batches[r] = r == 0 ? first : others;
}

static bool said(const char *text) {
    bool found = strstr(iso_last_error()->message, text) != NULL;
    if (!found) fprintf(stderr, "rank %d says: %s\n", test_rank, iso_last_error()->message);
    return found;
}

// ---- Throw --------------------------------------------------------------------------------------------

static void throws(int first, int others) {
    uneven u = uneven_default();
    trainer t;
    iso_status status = ISO_OK;
    int steps = 0;
    u.join.mode = ISO_JOIN_THROW;
    set_lengths(&u, first, others);
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_ok(uneven_loop(&t, &u, &status, &steps));
    iso_assert_all(status == ISO_ERR_STATE);
    iso_assert_all(steps == (first < others ? first : others));
    char name[24];
    bool out = u.batches[test_rank] == steps;
    snprintf(name, sizeof(name), "rank %d ran out", out ? test_rank : first < others ? 0 : 1);
    iso_assert_all(said(name));
    bool one = first > others || iso_comm_size(test_comm) == 2; // has more
    const char *more = one ? "while 1 other has more" : "while 3 others have more";
    iso_assert_all(said(out ? more : "while this rank has more"));
    trainer_destroy(&t);
}

Test(np2_join_rules, throw_names_who_ran_out) {
    throws(3, 5);
    throws(5, 3);
    throws(0, 2);
}
Test(np4_join_rules, throw_names_who_ran_out) {
    throws(3, 5);
    throws(5, 3);
}

Test(np3_join_rules, throw_is_content_with_even_data) {
    uneven u = uneven_default();
    trainer t;
    u.join.mode = ISO_JOIN_THROW;
    set_lengths(&u, 3, 3);
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_ok(uneven_train(&t, &u));
    trainer_destroy(&t);
}

// ---- Equalise -----------------------------------------------------------------------------------------

static void equalises(int first, int others) {
    uneven u = uneven_default();
    trainer t, shorter;
    iso_status status = ISO_OK;
    int steps = 0;
    uint64_t hash[2] = {0, 1};
    u.join.mode = ISO_JOIN_EQUALISE;
    set_lengths(&u, first, others);
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_ok(uneven_loop(&t, &u, &status, &steps));
    iso_assert_all(status == ISO_PENDING && steps == (first < others ? first : others));
    iso_assert_ok(trainer_hash(&t, &hash[0]));
    set_lengths(&u, steps, steps);
    u.join.disabled = true;
    iso_assert_ok(uneven_create(&shorter, test_comm, &u));
    iso_assert_ok(uneven_train(&shorter, &u));
    iso_assert_ok(trainer_hash(&shorter, &hash[1]));
    iso_assert_all(hash[0] == hash[1]);
    trainer_destroy(&shorter);
    trainer_destroy(&t);
}

Test(np2_join_rules, equalise_ends_with_the_first) {
    equalises(4, 7);
    equalises(7, 4);
    equalises(0, 3);
}
Test(np3_join_rules, equalise_ends_with_the_first) { equalises(7, 4); }

// Any optimizer will do, as no rank ever goes on alone.
Test(np2_join_rules, equalise_with_daso) {
    uneven u = uneven_default();
    trainer t;
    iso_status status = ISO_OK;
    int steps = 0;
    u.join.mode = ISO_JOIN_EQUALISE;
    set_lengths(&u, 9, 6);
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.total_steps = 6;
    config.warmup_steps = config.cooldown_steps = 0;
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_ok(iso_daso_create_take(t.optimizer, t.model, &config, &t.optimizer));
    iso_assert_ok(uneven_loop(&t, &u, &status, &steps));
    iso_assert_all(status == ISO_PENDING && steps == 6);
    u.join.mode = ISO_JOIN_SHADOW;
    iso_assert_all(uneven_loop(&t, &u, &status, &steps) == ISO_ERR_UNSUPPORTED && said("daso"));
    u.join = (iso_join_config){.mode = ISO_JOIN_THROW, .divisor = ISO_JOIN_SAMPLES};
    iso_assert_all(uneven_loop(&t, &u, &status, &steps) == ISO_ERR_UNSUPPORTED);
    trainer_destroy(&t);
}

// ---- What it costs ------------------------------------------------------------------------------------

// One small reduction before each step, and one more at the end with which all learn that it is.
Test(np3_join_rules, one_reduction_for_each_step) {
    uneven u = uneven_default();
    trainer t;
    iso_join *join;
    set_lengths(&u, 3, 8);
    u.join.mode = ISO_JOIN_EQUALISE;
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_ok(iso_join_begin(t.model, &u.join, &join));
    reductions = 0;
    for (int step = 0; step < 3; step++) {
        iso_assert_ok(iso_join_next(join, 3, true));
        iso_assert_ok(trainer_step(&t, step, NULL));
    }
    iso_assert_all(reductions == 3);
    iso_assert_all(iso_join_next(join, test_rank == 0 ? 0 : 3, true) == ISO_PENDING);
    iso_assert_all(reductions == 4);
    iso_assert_all(iso_join_next(join, 3, true) == ISO_PENDING); // and so it stays
    iso_join_end(&join);
    iso_assert_all(reductions == 4 && join == NULL);
    trainer_destroy(&t);
}

Test(np2_join_rules, disabled_communicates_nothing) {
    uneven u = uneven_default();
    trainer t;
    iso_join *join;
    u.join.disabled = true;
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_ok(iso_join_begin(t.model, &u.join, &join));
    reductions = 0;
    bool right = true;
    for (int step = 0; step < 5 * (1 - test_rank); step++) // rank 1 does not call at all
        right = right && iso_join_next(join, 3, true) == ISO_OK;
    right = right && iso_join_next(join, 0, true) == ISO_PENDING;
    iso_assert_all(right && reductions == 0);
    iso_join_end(&join);
    trainer_destroy(&t);
}

// ---- Errors -------------------------------------------------------------------------------------------

// A rank that cannot read its next batch says so instead of leaving the others waiting.
static void a_rank_fails(int failing) {
    uneven u = uneven_default();
    trainer t;
    iso_join *join;
    iso_join_config config = {.step = NULL};
    char name[32];
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_optimizer_destroy(&t.optimizer); // gradients are averaged all the same, and no step needed
    iso_assert_ok(iso_join_begin(t.model, &config, &join));
    iso_status status = iso_join_next(join, 3, true);
    if (status == ISO_OK) status = trainer_backward(&t, 0);
    iso_assert_ok(status);
    // The last rank is through and shadows; one of the others fails in its third step.
    for (int step = 1; status == ISO_OK; step++) {
        bool through = test_rank == test_size - 1 && test_rank != failing;
        int64_t samples = through ? 0 : test_rank == failing && step == 2 ? -1 : 3;
        iso_module_zero_grad(t.model);
        status = iso_join_next(join, samples, true);
        if (status == ISO_OK) status = trainer_backward(&t, step);
    }
    iso_assert_all(status == ISO_ERR_STATE);
    snprintf(name, sizeof(name), "rank %d reported", failing);
    iso_assert_all(said(test_rank == failing ? "this rank reported" : name));
    iso_join_end(&join);
    iso_assert_ok(trainer_backward(&t, 3)); // the model is in order
    trainer_destroy(&t);
}

Test(np2_join_rules, a_rank_that_fails_is_named) { a_rank_fails(0); }
Test(np3_join_rules, a_rank_that_fails_is_named) { a_rank_fails(1); }

// End is local: a rank on its way out does not wait for the others, and training goes on as if
// there had been no join.
Test(np3_join_rules, end_waits_for_nobody) {
    uneven u = uneven_default();
    trainer t, plain;
    iso_join *join;
    uint64_t hash[2] = {0, 1};
    u.join.divisor = ISO_JOIN_SAMPLES;
    u.join.step = (iso_status(*)(void *))abort;
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_ok(uneven_create(&plain, test_comm, &u));
    iso_assert_ok(iso_join_begin(t.model, &u.join, &join));
    iso_assert_ok(iso_join_next(join, 1 + test_rank, true)); // weights differ now
    if (test_rank == 1) iso_join_end(&join);
    MPI_Barrier(MPI_COMM_WORLD);
    if (test_rank == 0) sleep(1);
    iso_join_end(&join);
    iso_assert_ok(trainer_train(&t, 3));
    iso_assert_ok(trainer_train(&plain, 3));
    iso_assert_ok(trainer_hash(&t, &hash[0]));
    iso_assert_ok(trainer_hash(&plain, &hash[1]));
    iso_assert_all(hash[0] == hash[1]);
    trainer_destroy(&plain);
    trainer_destroy(&t);
}

// The step of the loop fails on every rank in the middle of it.
Test(np2_join_rules, an_error_inside_the_loop) {
    uneven u = uneven_default();
    trainer t;
    iso_status status = ISO_OK;
    int steps = 0;
    uint64_t hash;
    set_lengths(&u, 6, 6);
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_optimizer_hyper(t.optimizer)->lr = -1;
    iso_assert_ok(uneven_loop(&t, &u, &status, &steps));
    iso_assert_all(status == ISO_ERR_ARG && steps == 0);
    iso_optimizer_hyper(t.optimizer)->lr = 0.05;
    set_lengths(&u, 2, 6);
    iso_assert_ok(uneven_train(&t, &u));
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
}

Test(np3_join_rules, ranks_must_agree_whether_to_synchronise) {
    uneven u = uneven_default();
    trainer t;
    iso_join *join;
    u.join.mode = ISO_JOIN_EQUALISE;
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_ok(iso_join_begin(t.model, &u.join, &join));
    iso_assert_all(iso_join_next(join, 2, test_rank != 1) == ISO_ERR_MISMATCH &&
                   said("2 of the 3 ranks"));
    iso_join_end(&join);
    trainer_destroy(&t);
}

// ---- What is refused ------------------------------------------------------------------------------------

static iso_status begin(trainer *t, iso_join_config config) {
    iso_join *join = NULL;
    iso_status status = iso_join_begin(t->model, &config, &join);
    iso_join_end(&join);
    return status;
}

static iso_status no_step(void *user) {
    (void)user;
    return ISO_OK;
}

Test(np2_join_rules, wrong_settings_are_refused_on_all_ranks) {
    uneven u = uneven_default();
    trainer t;
    iso_join *join, *second = NULL;
    iso_join_config good = {.step = no_step}, odd = good;
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_all(begin(&t, (iso_join_config){0}) == ISO_ERR_ARG && said("step function"));
    odd.mode = test_rank == 1 ? (iso_join_mode)7 : ISO_JOIN_SHADOW;
    iso_assert_all(begin(&t, odd) == ISO_ERR_ARG && said("mode 7"));
    odd = good;
    odd.divisor = test_rank == 1 ? ISO_JOIN_EFFECTIVE : ISO_JOIN_INITIAL;
    iso_assert_all(begin(&t, odd) == ISO_ERR_MISMATCH &&
                   said("divisor of the join is effective on rank 1"));
    iso_assert_ok(iso_join_begin(t.model, &good, &join));
    iso_assert_all(iso_join_begin(t.model, &good, &second) == ISO_ERR_STATE && !second);
    iso_join_end(&join);
    iso_assert_ok(begin(&t, good)); // none is left behind
    iso_assert_all(iso_join_begin(iso_data_parallel_module(t.model), &good, &join) == ISO_ERR_ARG);
    trainer_destroy(&t);
}

static iso_status reduce_nothing(const iso_gradient *gradients, int count, iso_comm *comm,
                                 void *user) {
    (void)gradients, (void)count, (void)comm, (void)user;
    return ISO_OK;
}
static void with_reduce(iso_data_parallel_config *dp) { dp->reduce = reduce_nothing; }
static void with_node_scope(iso_data_parallel_config *dp) { dp->scope = ISO_SCOPE_NODE; }

Test(np2_join_rules, what_cannot_be_weighted_is_refused) {
    uneven u = uneven_default();
    trainer t;
    iso_join_config config = {.step = no_step, .divisor = ISO_JOIN_EFFECTIVE};
    u.train.adjust = with_reduce;
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_all(begin(&t, config) == ISO_ERR_UNSUPPORTED && said("reduce function"));
    config.divisor = ISO_JOIN_INITIAL;
    iso_assert_ok(begin(&t, config));
    trainer_destroy(&t);
    u.train.adjust = with_node_scope;
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_all(begin(&t, config) == ISO_ERR_UNSUPPORTED && said("scope"));
    trainer_destroy(&t);
}

// Each rank is a node, and averages alone: where all ranks have data, they are the effective ones.
Test(np2_join_rules, the_effective_ranks_of_a_node_are_its_own) {
    uint64_t hash[2];
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    for (int i = 0; i < 2; i++) {
        uneven u = uneven_default();
        trainer t;
        iso_status ended;
        int steps;
        u.train.adjust = with_node_scope;
        u.batches[0] = 4, u.batches[1] = 6;
        u.join.mode = ISO_JOIN_EQUALISE;
        u.join.divisor = i ? ISO_JOIN_EFFECTIVE : ISO_JOIN_INITIAL;
        iso_assert_ok(uneven_create(&t, test_comm, &u));
        iso_assert_ok(uneven_loop(&t, &u, &ended, &steps));
        iso_assert_all(steps > 1);
        iso_assert_ok(daso_own_hash(&t, &hash[i]));
        trainer_destroy(&t);
    }
    iso_assert_all(hash[0] == hash[1]);
}

static iso_status build_sync_norm(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_batch_norm_config norm = {.num_features = TRAINER_CHANNELS};
    iso_module *m;
    iso_status status = iso_sequential_create(device, out);
    if (status == ISO_OK) status = iso_batch_norm2d_create(device, &norm, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(*out, "norm", m);
    return status == ISO_OK ? iso_sync_batchnorm_convert(*out, test_comm, NULL) : status;
}

Test(np2_join_rules, sync_batchnorm_is_refused_in_shadow_mode) {
    uneven u = uneven_default();
    trainer t;
    iso_join_config config = {.step = no_step};
    u.train.build = build_sync_norm;
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_assert_all(begin(&t, config) == ISO_ERR_UNSUPPORTED && said("\"norm\""));
    config.mode = ISO_JOIN_THROW;
    iso_assert_ok(begin(&t, config));
    trainer_destroy(&t);
}

// ---- Waiting for long -----------------------------------------------------------------------------------

Test(np2_join_rules, a_warning_after_a_thousand_steps) {
    uneven u = uneven_default();
    trainer t;
    char *text = NULL;
    size_t length = 0;
    FILE *log = open_memstream(&text, &length);
    u.train.build = NULL;
    set_lengths(&u, 1010, 0);
    u.accumulate = 1009; // most of them cost nothing
    u.join.divisor = ISO_JOIN_INITIAL;
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_join *join;
    iso_join_config config = {.step = no_step};
    iso_assert_ok(iso_join_begin(t.model, &config, &join));
    iso_log_set_stream(log);
    iso_status status = ISO_OK;
    for (int step = 0; step < 1010 && status == ISO_OK; step++)
        status = iso_join_next(join, test_rank == 0 ? 3 : 0, false);
    if (test_rank == 0) status = iso_join_next(join, 0, false);
    iso_log_set_stream(stderr);
    fclose(log);
    iso_assert_all(status == ISO_PENDING);
    iso_assert_all((strstr(text, "had no data for 1000 steps") != NULL) == (test_rank == 1));
    free(text);
    iso_join_end(&join);
    trainer_destroy(&t);
}
