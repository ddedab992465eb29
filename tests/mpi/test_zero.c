// SPDX-License-Identifier: MIT
// ZeRO: the same bits as without it, a share of the state, and what it refuses. Compiled for stage
// 1, and with -DZERO_STAGE=2 or 3 for these stages.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/zero_fixture.h"

#include "optim/optim_impl.h"
#include "tensor/tensor_impl.h"

#include <isotherm/clip.h>
#include <isotherm/daso.h>
#include <isotherm/join.h>
#include <isotherm/state_dict.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef ZERO_STAGE
#define ZERO_STAGE 1
#endif

TestSuite(np1_zero, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_zero, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_zero, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_zero, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 6 };

static void share_out(iso_data_parallel_config *dp) { dp->zero = ZERO_STAGE; }

static trainer_config config_of(iso_optimizer_kind kind, bool zero) {
    trainer_config config = trainer_default();
    config.optimizer = kind;
    if (kind != ISO_SGD) config.hyper = iso_hyper_default(kind);
    config.adjust = zero ? share_out : NULL;
    return config;
}

static uint64_t hash_of(const trainer_config *config) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_run(test_comm, config, STEPS, &hash));
    return hash;
}

// ---- The same bits ----------------------------------------------------------------------------------

static void equals_plain(trainer_config config, const char *collective) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1); // whose sums are in the order of the ranks
    config.adjust = NULL;
    uint64_t plain = hash_of(&config);
    setenv("ISO_NODE_COLLECTIVE", collective, 1);
    config.adjust = share_out;
    iso_assert_all(hash_of(&config) == plain);
}

static void all_optimizers(const char *collective) {
    const iso_optimizer_kind kinds[] = {ISO_SGD,     ISO_ADAM,    ISO_ADAMW, ISO_ADADELTA,
                                        ISO_ADAGRAD, ISO_RMSPROP, ISO_NADAM};
    for (int i = 0; i < 7; i++) equals_plain(config_of(kinds[i], true), collective);
    trainer_config amsgrad = config_of(ISO_ADAM, true);
    amsgrad.hyper.amsgrad = true;
    equals_plain(amsgrad, collective);
}

Test(np2_zero, equals_a_run_without) { all_optimizers("shm"); }
Test(np3_zero, equals_a_run_without) { all_optimizers("shm"); }
Test(np4_zero, equals_a_run_without) { all_optimizers("shm"); }
Test(np2_zero, equals_a_run_without_by_messages) { all_optimizers("mpi"); }
Test(np3_zero, equals_a_run_without_by_messages) { all_optimizers("mpi"); }
Test(np4_zero, equals_a_run_without_by_messages) { all_optimizers("mpi"); }

// Buckets of many sizes, pieces of parameters, and every way to wait.
static void all_settings(const char *collective) {
    const double buckets[] = {0, 0.0005, 100}, pieces[] = {0, 0.0005};
    const iso_sync syncs[] = {ISO_SYNC_LAZY, ISO_SYNC_BLOCKING};
    for (int i = 0; i < 12; i++) {
        trainer_config config = config_of(ISO_ADAM, true);
        config.bucket_mb = buckets[i % 3];
        config.piece_mb = pieces[i / 3 % 2];
        config.sync = syncs[i / 6];
        config.find_unused = i % 2;
        equals_plain(config, collective);
    }
}

Test(np2_zero, buckets_and_pieces_do_not_matter) { all_settings("shm"); }
Test(np3_zero, buckets_and_pieces_do_not_matter) { all_settings("mpi"); }
Test(np4_zero, buckets_and_pieces_do_not_matter) { all_settings("shm"); }

Test(np1_zero, alone_there_is_nothing_to_share) {
    trainer_config plain = config_of(ISO_ADAM, false), zero = config_of(ISO_ADAM, true);
    cr_assert_eq(hash_of(&zero), hash_of(&plain));
}

// Messages are summed in two levels, as shared memory and messages are.
Test(np4_zero, equals_a_run_without_on_two_nodes) {
    trainer_config config = config_of(ISO_ADAMW, false);
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    uint64_t plain = hash_of(&config);
    setenv("ISO_NODE_COLLECTIVE", "auto", 1);
    config.adjust = share_out;
    iso_assert_all(hash_of(&config) == plain);
}

// ---- Other orders of calls --------------------------------------------------------------------------

typedef struct interruption {
    bool accumulate; // two backwards a step, the first inside no_sync
    bool look;       // rank 0 completes what is pending between backward and step
    bool dropped;    // a backward whose gradients are dropped comes before each
} interruption;

static iso_status interrupted_step(trainer *t, int step, const interruption *how) {
    iso_optimizer_zero_grad(t->optimizer);
    if (how->dropped) {
        ISO_TRY(trainer_backward(t, step + 1));
        iso_optimizer_zero_grad(t->optimizer);
    }
    if (how->accumulate) {
        ISO_TRY(iso_data_parallel_begin_no_sync(t->model));
        ISO_TRY(trainer_backward(t, step + 2));
        ISO_TRY(iso_data_parallel_end_no_sync(t->model));
    }
    ISO_TRY(trainer_backward(t, step));
    if (how->look && test_rank == 0) ISO_TRY(iso_data_parallel_finish(t->model));
    return iso_optimizer_step(t->optimizer);
}

static uint64_t interrupted_hash(bool zero, iso_sync sync, const interruption *how) {
    trainer_config config = config_of(ISO_ADAM, zero);
    uint64_t hash = 0;
    trainer t;
    config.sync = sync;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int step = 0; step < STEPS; step++) iso_assert_ok(interrupted_step(&t, step, how));
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

static void interrupted(void) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    for (int i = 0; i < 16; i++) {
        const interruption how = {i & 1, i & 2, i & 4};
        iso_sync sync = i & 8 ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
        iso_assert_all(interrupted_hash(true, sync, &how) == interrupted_hash(false, sync, &how));
    }
}

Test(np2_zero, order_of_calls_does_not_matter) { interrupted(); }
Test(np3_zero, order_of_calls_does_not_matter) { interrupted(); }

Test(np2_zero, a_second_backward_without_a_step_is_refused) {
    trainer_config config = config_of(ISO_ADAM, true);
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_backward(&t, 0));
    iso_assert_all(trainer_backward(&t, 1) == ISO_ERR_STATE);
    cr_assert(strstr(iso_last_error()->message, "no_sync"), "%s", iso_last_error()->message);
    iso_optimizer_zero_grad(t.optimizer);
    trainer_destroy(&t);
}

// ---- Uneven inputs ----------------------------------------------------------------------------------

static iso_status step_of(void *user) { return iso_optimizer_step(((trainer *)user)->optimizer); }

// Ranks have STEPS, STEPS - 2... batches. One that has more looks at its new values, to which the
// others contribute while they wait for it in iso_join_next.
static uint64_t joined_hash(bool zero) {
    trainer_config config = config_of(ISO_ADAM, zero);
    uint64_t hash = 0;
    iso_join *join;
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    const iso_join_config how = {.mode = ISO_JOIN_SHADOW, .step = step_of, .user = &t};
    iso_assert_ok(iso_join_begin(t.model, &how, &join));
    for (int step = 0;; step++) {
        int64_t rows = step < STEPS - 2 * test_rank ? t.batch_rows : 0;
        iso_optimizer_zero_grad(t.optimizer);
        iso_status status = iso_join_next(join, rows, true);
        if (status == ISO_PENDING) break;
        cr_assert(status == ISO_OK, "%s", iso_last_error()->message);
        cr_assert(trainer_backward(&t, step) == ISO_OK, "%s", iso_last_error()->message);
        cr_assert(step_of(&t) == ISO_OK, "%s", iso_last_error()->message);
        cr_assert(iso_data_parallel_finish(t.model) == ISO_OK, "%s", iso_last_error()->message);
    }
    iso_join_end(&join);
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

static void joins_alike(void) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    iso_assert_all(joined_hash(true) == joined_hash(false));
}

Test(np2_zero, uneven_inputs_end_alike) { joins_alike(); }
Test(np3_zero, uneven_inputs_end_alike) { joins_alike(); }

// ---- Explicit averages, and clipping ----------------------------------------------------------------

static iso_status clipped_step(trainer *t, int step, double type, double *norm) {
    iso_optimizer_zero_grad(t->optimizer);
    ISO_TRY(trainer_backward(t, step));
    if (test_rank == 0) ISO_TRY(iso_data_parallel_finish(t->model));
    ISO_TRY(iso_clip_grad_norm(t->model, 0.05, type, norm));
    return iso_optimizer_step(t->optimizer);
}

static void clips_alike(double type) {
    trainer_config plain = config_of(ISO_SGD, false), zero = config_of(ISO_SGD, true);
    trainer a, b;
    double difference = 0, before = 0, after = 0;
    iso_assert_ok(trainer_create(&a, test_comm, &plain));
    iso_assert_ok(trainer_create(&b, test_comm, &zero));
    for (int step = 0; step < STEPS; step++) {
        iso_assert_ok(clipped_step(&a, step, type, &before));
        iso_assert_ok(clipped_step(&b, step, type, &after));
        iso_assert_all(before > 0.05 && fabs(after / before - 1) < 1e-6);
        double lowest = after;
        iso_assert_ok(iso_comm_allreduce_f64(test_comm, &lowest, 1, ISO_MIN));
        iso_assert_all(lowest == after);
    }
    iso_assert_ok(trainer_difference(&a, &b, &difference));
    iso_assert_all(difference < 1e-6);
    trainer_destroy(&a);
    trainer_destroy(&b);
}

Test(np2_zero, clips_to_the_norm_of_all_shards) { clips_alike(2); }
Test(np3_zero, clips_to_the_norm_of_all_shards) { clips_alike(2); }
Test(np3_zero, clips_to_the_largest_of_all_shards) { clips_alike(INFINITY); }

// ---- State ------------------------------------------------------------------------------------------

static iso__base_optimizer *core_of(trainer *t) { return iso__optimizer_innermost(t->optimizer); }

// Adam's moments of 1 / P of the elements, but for what aligns buckets.
static void state_is_shared(void) {
    trainer_config config = config_of(ISO_ADAM, true);
    config.bucket_mb = 100;
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    int64_t here = 0, all = 0;
    for (int i = 0; i < core_of(&t)->count; i++)
        all += core_of(&t)->slot[i].parameter->value->count;
    for (int k = 0; k < 2; k++) here += core_of(&t)->state[k]->count;
    iso_assert_all(here <= 2 * (all / test_size + 16 * (core_of(&t)->count + test_size)));
    int64_t sum = here;
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, &sum, 1, ISO_SUM));
    iso_assert_all(sum >= 2 * all);
    trainer_destroy(&t);
}

Test(np2_zero, each_rank_keeps_its_share_of_state) { state_is_shared(); }
Test(np4_zero, each_rank_keeps_its_share_of_state) { state_is_shared(); }

// A state_dict is the usual one, whoever makes it, and on how many ranks. Training goes on from it.
static void state_moves(iso_optimizer_kind kind, bool amsgrad) {
    trainer_config plain = config_of(kind, false), zero = config_of(kind, true);
    plain.hyper.amsgrad = zero.hyper.amsgrad = amsgrad;
    trainer a, b;
    iso_state_dict whole = {0}, gathered = {0};
    uint64_t one = 0, other = 0;
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    iso_assert_ok(trainer_create(&a, test_comm, &plain));
    iso_assert_ok(trainer_create(&b, test_comm, &zero));
    iso_assert_ok(trainer_train(&a, STEPS));
    iso_assert_ok(trainer_train(&b, STEPS));
    iso_assert_ok(iso_optimizer_state_dict(a.optimizer, &whole));
    iso_assert_ok(iso_optimizer_state_dict(b.optimizer, &gathered));
    iso_assert_all(zero_same_dicts(&whole, &gathered));
    // Other state, and back.
    iso_assert_ok(trainer_step(&b, STEPS, NULL));
    iso_assert_ok(trainer_hash(&b, &one));
    iso_assert_ok(iso_optimizer_load_state_dict(b.optimizer, &whole, true, NULL));
    iso_assert_ok(iso_optimizer_load_state_dict(a.optimizer, &gathered, true, NULL));
    iso_assert_ok(trainer_step(&a, STEPS, NULL));
    iso_assert_ok(trainer_hash(&a, &other));
    iso_assert_all(one == other);
    iso_state_dict_destroy(&gathered);
    iso_assert_ok(trainer_step(&a, STEPS + 1, NULL));
    iso_assert_ok(trainer_step(&b, STEPS + 1, NULL));
    iso_assert_ok(iso_optimizer_state_dict(b.optimizer, &gathered));
    iso_assert_ok(trainer_hash(&b, &one));
    iso_state_dict_destroy(&gathered);
    iso_state_dict_destroy(&whole);
    trainer_destroy(&a);
    trainer_destroy(&b);
}

Test(np2_zero, state_dicts_are_whole) { state_moves(ISO_ADAM, false); }
Test(np3_zero, state_dicts_are_whole) { state_moves(ISO_RMSPROP, false); }
Test(np4_zero, state_dicts_are_whole) { state_moves(ISO_ADAMW, false); }
Test(np3_zero, state_dicts_of_amsgrad_are_whole) { state_moves(ISO_ADAM, true); }
Test(np4_zero, state_dicts_of_nadam_are_whole) { state_moves(ISO_NADAM, false); }

// Of three ranks with ZeRO, two go on with it, and one without.
Test(np3_zero, state_goes_to_other_numbers_of_ranks) {
    trainer_config zero = config_of(ISO_ADAM, true), alone = config_of(ISO_ADAM, false);
    iso_state_dict dict = {0}, again = {0};
    MPI_Comm some;
    iso_comm *comm;
    trainer t, next;
    iso_assert_ok(trainer_create(&t, test_comm, &zero));
    iso_assert_ok(trainer_train(&t, STEPS));
    iso_assert_ok(iso_optimizer_state_dict(t.optimizer, &dict));
    MPI_Comm_split(MPI_COMM_WORLD, test_rank < 2, test_rank, &some);
    iso_assert_ok(iso_comm_create(some, NULL, &comm));
    iso_assert_ok(trainer_create(&next, comm, test_rank < 2 ? &zero : &alone));
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

Test(np2_zero, steps_allocate_nothing) {
    if (getenv("ISO_TEST_DEVICE")) test_mpi_skip("kernels of a GPU may allocate");
    trainer_config config = config_of(ISO_ADAM, true);
    long long before, after;
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 3));
    iso_memory_balance(NULL, NULL, &before);
    iso_assert_ok(trainer_train(&t, 10));
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before);
    trainer_destroy(&t);
}

// ---- What it refuses --------------------------------------------------------------------------------

static void is_refused(const trainer_config *config, iso_status wanted_status, const char *word) {
    trainer t = {0};
    iso_assert_all(trainer_create(&t, test_comm, config) == wanted_status);
    cr_assert(strstr(iso_last_error()->message, word), "%s", iso_last_error()->message);
    trainer_destroy(&t);
}

static void only_here(iso_data_parallel_config *dp) { dp->zero = test_rank == 1 ? ZERO_STAGE : 0; }

Test(np2_zero, what_it_cannot_do_is_refused) {
    trainer_config config = config_of(ISO_ADAM, true);
    config.scope = ISO_SCOPE_NODE;
    is_refused(&config, ISO_ERR_UNSUPPORTED, "node");
    config = config_of(ISO_ADAM, true);
    config.adjust = only_here;
    is_refused(&config, ISO_ERR_MISMATCH, "zero");
}

Test(np2_zero, a_periodic_mode_is_refused) {
    trainer_config config = config_of(ISO_ADAM, true);
    iso_daso_config daso = ISO_DASO_DEFAULT;
    trainer t;
    daso.total_steps = 100;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_all(iso_daso_create_take(t.optimizer, t.model, &daso, &t.optimizer) ==
                   ISO_ERR_UNSUPPORTED);
    cr_assert(strstr(iso_last_error()->message, "ZeRO"), "%s", iso_last_error()->message);
    trainer_destroy(&t);
}
