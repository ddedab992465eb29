// SPDX-License-Identifier: MIT
// ZeRO among the ranks of each node: the same bits as without it, alone and in DASO, whose nodes
// train apart. Compiled for stage 1, and with -DZERO_STAGE=2 or 3 for these stages.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/zero_fixture.h"

#include "optim/optim_impl.h"
#include "parallel/parallel_impl.h"
#include "tensor/tensor_impl.h"

#include <isotherm/clip.h>
#include <isotherm/tournament.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef ZERO_STAGE
#define ZERO_STAGE 1
#endif

TestSuite(np2_zero_nodes, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_zero_nodes, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np6_zero_nodes, .init = resume_setup, .fini = resume_teardown, .timeout = 120);
TestSuite(np4_zero_nodes, .init = resume_setup, .fini = resume_teardown, .timeout = 120);

enum { STEPS = 6, LONG = 17 };

static void share_in_nodes(iso_data_parallel_config *dp) {
    dp->zero = ZERO_STAGE;
    dp->zero_scope = ISO_SCOPE_NODE;
}
static void share_among_all(iso_data_parallel_config *dp) { dp->zero = ZERO_STAGE; }

static void set_nodes(int ranks_per_node) {
    char text[16];
    snprintf(text, sizeof(text), "%d", ranks_per_node);
    setenv("ISO_RANKS_PER_NODE", text, 1);
}

static trainer_config config_of(iso_optimizer_kind kind) {
    trainer_config config = trainer_default();
    config.optimizer = kind;
    if (kind != ISO_SGD) config.hyper = iso_hyper_default(kind);
    return config;
}

// ---- Averages over all ranks, or the node -----------------------------------------------------------

// Of this rank, because nodes may differ. Reading a value completes and, in stage 3, gathers it.
static iso_status hash_values(trainer *t, uint64_t *hash) {
    iso_parameter_list list;
    iso_tensor *value;
    *hash = ISO_HASH_START;
    ISO_TRY(iso_module_parameters(t->model, &list));
    for (int i = 0; i < list.count; i++) {
        void *data;
        ISO_TRY(iso_parameter_value(list.item[i], &value));
        ISO_TRY(iso_tensor_map(value, ISO_READ, &data));
        *hash = iso__hash(*hash, data, (size_t)value->count * iso_dtype_size(value->dtype));
        ISO_TRY(iso_tensor_unmap(value));
    }
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

static uint64_t own_hash_of(const trainer_config *config) {
    trainer t;
    uint64_t hash = 0;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    iso_assert_ok(trainer_train(&t, STEPS));
    iso_assert_ok(hash_values(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

static void equals_plain(trainer_config config) {
    config.adjust = NULL;
    uint64_t plain = own_hash_of(&config);
    config.adjust = share_in_nodes;
    iso_assert_all(own_hash_of(&config) == plain);
}

static void all_optimizers(iso_scope scope, const char *collective) {
    const iso_optimizer_kind kinds[] = {ISO_SGD,     ISO_ADAM,    ISO_ADAMW, ISO_ADADELTA,
                                        ISO_ADAGRAD, ISO_RMSPROP, ISO_NADAM};
    setenv("ISO_NODE_COLLECTIVE", collective, 1);
    for (int i = 0; i < 7; i++) {
        trainer_config config = config_of(kinds[i]);
        config.scope = scope;
        config.sync = i % 3 == 2 ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
        equals_plain(config);
    }
}

static void all_scopes(int ranks_per_node) {
    set_nodes(ranks_per_node);
    all_optimizers(ISO_SCOPE_WORLD, "shm");
    all_optimizers(ISO_SCOPE_NODE, "shm");
    all_optimizers(ISO_SCOPE_WORLD, "mpi");
}
Test(np2_zero_nodes, equals_a_run_without) { all_scopes(1); }
Test(np2_zero_nodes, one_node_equals_a_run_without) { all_scopes(2); }
Test(np4_zero_nodes, equals_a_run_without) { all_scopes(2); }

// All ranks divide, of several nodes. Sums in two levels have one order.
static void divides_among_nodes(void) {
    set_nodes(2);
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    for (int i = 0; i < 4; i++) {
        trainer_config config = config_of(i & 1 ? ISO_ADAM : ISO_SGD);
        config.scope = ISO_SCOPE_WORLD;
        config.sync = i & 2 ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
        uint64_t plain = own_hash_of(&config);
        config.adjust = share_among_all;
        iso_assert_all(own_hash_of(&config) == plain);
        config.adjust = share_in_nodes;
        iso_assert_all(own_hash_of(&config) == plain);
    }
}
Test(np4_zero_nodes, all_ranks_divide) { divides_among_nodes(); }
Test(np6_zero_nodes, all_ranks_divide) { divides_among_nodes(); }

// Two levels of sums, hooks that convert, and pieces of parameters.
Test(np4_zero_nodes, buckets_and_hooks_do_not_matter) {
    const iso_comm_hook *hooks[] = {NULL, &iso_hook_bf16};
    set_nodes(2);
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    for (int i = 0; i < 8; i++) {
        trainer_config config = config_of(ISO_ADAM);
        config.hook = hooks[i & 1];
        config.bucket_mb = i & 2 ? 100 : 0.0005;
        config.piece_mb = i & 4 ? 0.0005 : 0;
        equals_plain(config);
    }
}

static iso__base_optimizer *core_of(trainer *t) { return iso__optimizer_innermost(t->optimizer); }

static int64_t count_state(trainer *t) {
    int64_t count = 0;
    for (int k = 0; k < ISO_OPTIMIZER_STATES; k++)
        if (core_of(t)->state[k]) count += core_of(t)->state[k]->count;
    return count;
}

// Adam's moments of half of the elements, but for what aligns buckets.
Test(np4_zero_nodes, the_ranks_of_a_node_share_the_state) {
    trainer_config config = config_of(ISO_ADAM);
    trainer plain, zero;
    set_nodes(2);
    config.bucket_mb = 100;
    iso_assert_ok(trainer_create(&plain, test_comm, &config));
    config.adjust = share_in_nodes;
    iso_assert_ok(trainer_create(&zero, test_comm, &config));
    int64_t all = count_state(&plain), here = count_state(&zero);
    iso_assert_all(here <= all / 2 + 2 * 16 * (core_of(&zero)->count + 2));
    trainer_destroy(&plain);
    trainer_destroy(&zero);
}

static void clips_alike(double type) {
    trainer_config config = config_of(ISO_SGD);
    trainer t[2];
    double norm[2], difference;
    set_nodes(2);
    iso_assert_ok(trainer_create(&t[0], test_comm, &config));
    config.adjust = share_in_nodes;
    iso_assert_ok(trainer_create(&t[1], test_comm, &config));
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 2; i++) {
            iso_optimizer_zero_grad(t[i].optimizer);
            iso_assert_ok(trainer_backward(&t[i], step));
            iso_assert_ok(iso_clip_grad_norm(t[i].model, 0.05, type, &norm[i]));
            iso_assert_ok(iso_optimizer_step(t[i].optimizer));
        }
        iso_assert_all(norm[0] > 0.05 && fabs(norm[1] / norm[0] - 1) < 1e-6);
    }
    iso_assert_ok(trainer_difference(&t[0], &t[1], &difference));
    iso_assert_all(difference < 1e-6);
    for (int i = 0; i < 2; i++) trainer_destroy(&t[i]);
}
Test(np4_zero_nodes, clips_to_the_norm_of_the_shards_of_a_node) {
    clips_alike(2);
    clips_alike(INFINITY);
}

// The norms of LAMB are added in another order.
Test(np4_zero_nodes, lamb_is_near_a_run_without) {
    trainer_config config = config_of(ISO_LAMB);
    trainer t[2];
    double difference;
    set_nodes(2);
    iso_assert_ok(trainer_create(&t[0], test_comm, &config));
    config.adjust = share_in_nodes;
    iso_assert_ok(trainer_create(&t[1], test_comm, &config));
    for (int i = 0; i < 2; i++) iso_assert_ok(trainer_train(&t[i], STEPS));
    iso_assert_ok(trainer_difference(&t[0], &t[1], &difference));
    iso_assert_all(difference < 1e-5 && daso_equal(&t[1]));
    for (int i = 0; i < 2; i++) trainer_destroy(&t[i]);
}

Test(np4_zero_nodes, state_dicts_are_whole) {
    trainer_config config = config_of(ISO_ADAMW);
    trainer t[2];
    iso_state_dict whole = {0}, gathered = {0};
    set_nodes(2);
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    iso_assert_ok(trainer_create(&t[0], test_comm, &config));
    config.adjust = share_in_nodes;
    iso_assert_ok(trainer_create(&t[1], test_comm, &config));
    for (int i = 0; i < 2; i++) iso_assert_ok(trainer_train(&t[i], STEPS));
    iso_assert_ok(iso_optimizer_state_dict(t[0].optimizer, &whole));
    iso_assert_ok(iso_optimizer_state_dict(t[1].optimizer, &gathered));
    iso_assert_all(zero_same_dicts(&whole, &gathered));
    iso_assert_ok(trainer_step(&t[1], STEPS, NULL));
    iso_assert_ok(iso_optimizer_load_state_dict(t[1].optimizer, &whole, true, NULL));
    iso_state_dict_destroy(&gathered);
    iso_assert_ok(iso_optimizer_state_dict(t[1].optimizer, &gathered));
    iso_assert_all(zero_same_dicts(&whole, &gathered));
    iso_state_dict_destroy(&gathered);
    iso_state_dict_destroy(&whole);
    for (int i = 0; i < 2; i++) trainer_destroy(&t[i]);
}

#if ZERO_STAGE < 3
// ---- DASO -------------------------------------------------------------------------------------------

static daso_case case_of(iso_optimizer_kind kind, int64_t wait, bool phases) {
    daso_case c = daso_case_default(LONG);
    c.ranks_per_node = 2;
    c.train.optimizer = kind;
    if (kind != ISO_SGD) c.train.hyper = iso_hyper_default(kind);
    c.train.hyper.lr = 0.02;
    c.daso.batches_to_wait = wait;
    if (phases) c.daso.warmup_steps = 3, c.daso.cooldown_steps = 4;
    return c;
}

// Both runs on every rank, at the end of each step.
static void daso_equals_plain(daso_case c) {
    trainer t[2];
    uint64_t hash[2];
    bool same = true, differ = false;
    iso_assert_ok(daso_open(&t[0], MPI_COMM_WORLD, &c));
    c.train.adjust = share_in_nodes;
    iso_assert_ok(daso_open(&t[1], MPI_COMM_WORLD, &c));
    for (int step = 0; step < LONG; step++) {
        for (int i = 0; i < 2; i++) {
            iso_assert_ok(trainer_step(&t[i], step, NULL));
            iso_assert_ok(daso_own_hash(&t[i], &hash[i]));
        }
        same = same && hash[0] == hash[1];
        differ = !daso_equal(&t[1]) || differ;
    }
    iso_assert_all(same && differ && daso_equal(&t[1])); // nodes trained apart, and end alike
    for (int i = 0; i < 2; i++) daso_close(&t[i]);
}

// With a cool-down, in which all ranks train together, the state of all nodes becomes one.
Test(np4_zero_nodes, daso_equals_a_run_without) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    daso_equals_plain(case_of(ISO_SGD, 0, false));
    daso_equals_plain(case_of(ISO_SGD, 2, true));
    daso_equals_plain(case_of(ISO_ADAM, 1, true));
    daso_case amsgrad = case_of(ISO_ADAM, 1, true);
    amsgrad.train.hyper.amsgrad = true;
    daso_equals_plain(amsgrad);
    daso_equals_plain(case_of(ISO_NADAM, 0, true));
}

Test(np4_zero_nodes, daso_by_messages_equals_a_run_without) {
    daso_case c = case_of(ISO_ADAMW, 1, true);
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    daso_equals_plain(c);
    c.daso.wire = ISO_WIRE_BF16;
    daso_equals_plain(c);
}

Test(np4_zero_nodes, relatives_of_daso_equal_a_run_without) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    daso_case reset = case_of(ISO_ADAM, 0, false), fragments = case_of(ISO_ADAM, 1, false);
    reset.daso.state = ISO_STATE_SYNC_RESET;
    daso_equals_plain(reset);
    fragments.daso.fragments = 2;
    daso_equals_plain(fragments);
    daso_case outer = case_of(ISO_SGD, 0, false);
    outer.daso.outer = &iso_outer_nesterov;
    daso_equals_plain(outer);
}

// With each rank on a node of its own it has all of its node's state. Three nodes: a mean that is
// added in another order, or multiplied by a third, has other bits.
static void one_rank_a_node(void) {
    daso_case c = case_of(ISO_ADAM, 1, true);
    c.ranks_per_node = 1;
    daso_equals_plain(c);
}
Test(np2_zero_nodes, daso_with_one_rank_a_node_equals_a_run_without) { one_rank_a_node(); }
Test(np3_zero_nodes, daso_on_three_nodes_equals_a_run_without) { one_rank_a_node(); }
Test(np6_zero_nodes, daso_on_three_nodes_equals_a_run_without) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    daso_equals_plain(case_of(ISO_ADAM, 1, true));
}

// Only one rank has the setting that ZeRO does not take, or a setting that is wrong anyway.
Test(np4_zero_nodes, refusals_of_one_rank_reach_all) {
    daso_case c = case_of(ISO_ADAM, 1, false);
    c.train.adjust = share_in_nodes;
    if (test_rank == 1) c.daso.state = ISO_STATE_SYNC_AVERAGE;
    iso_assert_all(daso_refused(&c, ISO_ERR_UNSUPPORTED, "use another state than average"));
    c.daso.state = ISO_STATE_SYNC_KEEP;
    if (test_rank == 2) c.daso.global_skip = 0;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "global_skip"));
}

// ---- Saved state ------------------------------------------------------------------------------------

static uint64_t end_of(daso_case c, int stop, bool before, bool behind) {
    trainer t;
    uint64_t hash = 0;
    c.train.adjust = before ? share_in_nodes : NULL;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, stop));
    iso_assert_ok(daso_exchange_state(&t, stop, true));
    daso_close(&t);
    c.train.adjust = behind ? share_in_nodes : NULL;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, stop % 4));
    iso_assert_ok(daso_exchange_state(&t, stop, false));
    iso_assert_ok(trainer_go_on(&t, stop, LONG));
    iso_assert_ok(daso_own_hash(&t, &hash));
    daso_close(&t);
    return hash;
}

// Also from a run without ZeRO, and to one.
Test(np4_zero_nodes, goes_on_from_a_saved_state) {
    daso_case c = case_of(ISO_ADAM, 2, true);
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    uint64_t whole = daso_end_of(&c, 0, LONG);
    bool same = true;
    for (int stop = 2; stop < LONG; stop += 4) {
        same = end_of(c, stop, true, true) == whole && same;
        same = end_of(c, stop, false, true) == whole && same;
        same = end_of(c, stop, true, false) == whole && same;
    }
    iso_assert_all(same);
}

// Without ZeRO the ranks of a node may be apart when a state is saved, here after a step of two.
Test(np4_zero_nodes, a_state_of_ranks_that_were_apart_is_refused) {
    daso_case c = case_of(ISO_ADAM, 1, false);
    trainer t;
    c.daso.local_skip = 2;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 3));
    iso_assert_ok(daso_exchange_state(&t, 3, true));
    daso_close(&t);
    c.daso.local_skip = 1;
    c.train.adjust = share_in_nodes;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_all(daso_exchange_state(&t, 3, false) == ISO_ERR_MISMATCH &&
                   strstr(iso_last_error()->message, "trained apart"));
    daso_close(&t);
}

#endif
// ---- Wrong use --------------------------------------------------------------------------------------

#if ZERO_STAGE < 3
static iso_status score_nothing(iso_module *model, iso_evaluation *out, void *user) {
    (void)model, (void)user;
    *out = (iso_evaluation){.loss = 1, .samples = 1};
    return ISO_OK;
}

Test(np4_zero_nodes, what_lets_ranks_of_a_node_train_apart_is_refused) {
    const iso_tournament tournament = {.score = score_nothing};
    daso_case all = case_of(ISO_ADAM, 1, false), rank = all, skip = all, state = all, match = all;
    daso_case heat = heat_case_default(4);
    all.train.adjust = share_among_all;
    iso_assert_all(daso_refused(&all, ISO_ERR_UNSUPPORTED, "set zero_scope to ISO_SCOPE_NODE"));
    rank.daso.unit = ISO_SCOPE_RANK;
    skip.daso.local_skip = 2;
    heat.ranks_per_node = 2;
    daso_case *apart[] = {&rank, &skip, &heat};
    for (int i = 0; i < 3; i++) {
        apart[i]->train.adjust = share_in_nodes;
        iso_assert_all(daso_refused(apart[i], ISO_ERR_UNSUPPORTED, "lets them train apart"));
    }
    state.train.adjust = match.train.adjust = share_in_nodes;
    state.daso.state = ISO_STATE_SYNC_AVERAGE;
    iso_assert_all(daso_refused(&state, ISO_ERR_UNSUPPORTED, "use another state than average"));
    match.daso = iso_tournament_config(LONG, 4, &tournament);
    iso_assert_all(daso_refused(&match, ISO_ERR_UNSUPPORTED, "use no ZeRO with it"));
}

#else
Test(np4_zero_nodes, daso_refuses_parameters_that_are_divided) {
    daso_case c = daso_case_default(LONG);
    c.ranks_per_node = 2;
    c.train.adjust = share_in_nodes;
    iso_assert_all(daso_refused(&c, ISO_ERR_UNSUPPORTED, "which ZeRO stage 3 divides"));
}
#endif

static void refuses(trainer_config config, iso_status status, const char *said) {
    trainer t;
    iso_assert_all(trainer_create(&t, test_comm, &config) == status &&
                   strstr(iso_last_error()->message, said));
    trainer_destroy(&t);
}

static void share_in_ranks(iso_data_parallel_config *dp) {
    share_in_nodes(dp);
    dp->zero_scope = ISO_SCOPE_RANK;
}
static void share_as_the_rank_says(iso_data_parallel_config *dp) {
    share_in_nodes(dp);
    if (test_rank == 1) dp->zero_scope = ISO_SCOPE_WORLD;
}

Test(np3_zero_nodes, unequal_nodes_and_other_scopes_are_refused) {
    trainer_config config = config_of(ISO_ADAM);
    set_nodes(2);
    config.adjust = share_in_nodes;
    refuses(config, ISO_ERR_UNSUPPORTED, "needs equally many ranks on each node");
    set_nodes(3);
    config.adjust = share_in_ranks;
    refuses(config, ISO_ERR_ARG, "give ISO_SCOPE_WORLD or ISO_SCOPE_NODE");
    config.adjust = share_as_the_rank_says;
    refuses(config, ISO_ERR_MISMATCH, "zero_scope");
    config.adjust = share_among_all;
    config.scope = ISO_SCOPE_NODE;
    refuses(config, ISO_ERR_UNSUPPORTED, "use scope world with it");
}
