// SPDX-License-Identifier: MIT
// Averaging gradients over the world, the node or nobody, and switching between them.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "parallel/parallel_impl.h"
#include "parallel/reducer/reducer_calls.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

TestSuite(np2_scope, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_scope, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_scope, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 20 };

// Whether the ranks of each node have the same parameters, and all ranks.
static void compare(iso_module *model, bool *nodes_equal, bool *all_equal) {
    iso_topology *t;
    uint64_t hash;
    iso_assert_ok(iso_topology_create(test_comm, NULL, &t));
    iso_assert_ok(iso_parameter_hash(model, t->node, &hash, nodes_equal));
    iso_assert_ok(iso_parameter_hash(model, test_comm, &hash, all_equal));
    iso_topology_destroy(&t);
}

static trainer_config node_config(iso_sync sync) {
    trainer_config config = trainer_default();
    config.sync = sync;
    config.scope = ISO_SCOPE_NODE;
    return config;
}

static void nodes_train_apart(iso_sync sync) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    trainer t;
    trainer_config config = node_config(sync);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    bool in_node, in_world;
    compare(t.model, &in_node, &in_world);
    iso_assert_all(in_node && in_world); // parameters start equal on all ranks
    for (int step = 0; step < STEPS; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        if (step % 4 != 3) continue; // comparing completes what is pending
        compare(t.model, &in_node, &in_world);
        iso_assert_all(in_node && !in_world);
    }
    trainer_destroy(&t);
}

Test(np4_scope, nodes_train_apart) { nodes_train_apart(ISO_SYNC_LAZY); }
Test(np4_scope, nodes_train_apart_blocking) { nodes_train_apart(ISO_SYNC_BLOCKING); }

static uint64_t hash_of(trainer *t) {
    uint64_t hash = 0;
    bool equal;
    iso_assert_ok(iso_parameter_hash(t->model, t->comm, &hash, &equal));
    return hash;
}

static uint64_t train(iso_comm *comm, const trainer_config *config) {
    trainer t;
    iso_assert_ok(trainer_create(&t, comm, config));
    iso_assert_ok(trainer_train(&t, STEPS));
    uint64_t hash = hash_of(&t);
    trainer_destroy(&t);
    return hash;
}

Test(np4_scope, a_node_equals_its_ranks_alone_on_the_same_rows) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    trainer_config config = node_config(ISO_SYNC_LAZY);
    uint64_t as_node = train(test_comm, &config);

    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank / 2, test_rank, &half);
    iso_comm *alone;
    iso_assert_ok(iso_comm_create(half, NULL, &alone));
    MPI_Comm_free(&half);
    config = trainer_default();
    config.rows /= 2;
    config.first_row = test_rank / 2 * config.rows;
    uint64_t as_world = train(alone, &config);
    iso_assert_all(as_node == as_world);
    iso_comm_destroy(&alone);
}

static uint64_t train_switching(iso_sync sync) {
    static const iso_scope scopes[] = {ISO_SCOPE_WORLD, ISO_SCOPE_NODE, ISO_SCOPE_RANK,
                                       ISO_SCOPE_WORLD, ISO_SCOPE_RANK, ISO_SCOPE_NODE};
    static const bool node_equal[] = {true, true, false, false, false, false},
                      all_equal[] = {true, false, false, false, false, false};
    trainer t;
    trainer_config config = trainer_default();
    config.sync = sync;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int s = 0, step = 0; s < 6; s++) {
        iso_assert_ok(iso__data_parallel_set_scope(t.model, scopes[s]));
        for (int k = 0; k < 3; k++, step++) iso_assert_ok(trainer_step(&t, step, NULL));
        if (s % 2) continue; // switched from with updates pending
        bool in_node, in_world;
        compare(t.model, &in_node, &in_world);
        iso_assert_all(in_node == node_equal[s] && in_world == all_equal[s]);
    }
    uint64_t hash = hash_of(&t);
    trainer_destroy(&t);
    return hash;
}

Test(np4_scope, switching_gives_the_same_bits_lazy_and_blocking) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    iso_assert_all(train_switching(ISO_SYNC_LAZY) == train_switching(ISO_SYNC_BLOCKING));
}

// ---- Plain arrays: what exactly is averaged ---------------------------------------------------------

enum { COUNT = 100 };
static float value[COUNT];

static iso_status descend(int i, void *gradient, double scale, const void *frozen, void *user) {
    (void)i, (void)frozen, (void)user;
    for (int k = 0; k < COUNT; k++) value[k] -= (float)scale * ((float *)gradient)[k];
    return ISO_OK;
}

static iso_status create(iso_scope scope, iso_sync sync, iso_reducer **out) {
    iso_reducer_param param = {
        .name = "w", .value = value, .count = COUNT, .dtype = ISO_F32, .layer = 0};
    iso_reducer_config config = {.sync = sync, .scope = scope};
    for (int k = 0; k < COUNT; k++) value[k] = test_rank == 0 ? (float)k : -1; // rank 0's hold
    return iso_reducer_create(test_comm, &param, 1, &config, out);
}

static iso_reducer *make_reducer(iso_scope scope) {
    iso_reducer *r = NULL;
    iso_assert_ok(create(scope, ISO_SYNC_LAZY, &r));
    iso_assert_ok(iso_reducer_set_apply(r, descend, 1, NULL));
    return r;
}

// One step with the gradient rank + 1 everywhere; its update stays pending.
static iso_status step(iso_reducer *r) {
    char hyper = 0;
    iso_status status = iso_reducer_param_needed(r, 0);
    iso_reducer_zero_grad(r);
    for (int k = 0; k < COUNT; k++) ((float *)iso_reducer_grad(r, 0))[k] = (float)(test_rank + 1);
    if (status == ISO_OK) status = iso_reducer_grad_ready(r, 0);
    if (status == ISO_OK) status = iso_reducer_step(r, &hyper);
    return status;
}

static bool moved_by(double total) {
    for (int k = 0; k < COUNT; k++)
        if (value[k] != (float)(k - total)) return false;
    return true;
}

// The mean of rank + 1 over ranks [first, last].
static double mean(int first, int last) { return (first + last) / 2.0 + 1; }

static double mean_of(iso_scope scope, int per_node) {
    int first = test_rank / per_node * per_node, last = first + per_node - 1;
    if (last >= test_size) last = test_size - 1;
    return scope == ISO_SCOPE_WORLD  ? mean(0, test_size - 1)
           : scope == ISO_SCOPE_NODE ? mean(first, last)
                                     : mean(test_rank, test_rank);
}

static void averages_over(iso_scope scope) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    iso_reducer *r = make_reducer(scope);
    iso_assert_ok(step(r));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(moved_by(mean_of(scope, 2)));
    iso_reducer_destroy(&r);
}

Test(np4_scope, the_world_is_averaged) { averages_over(ISO_SCOPE_WORLD); }
Test(np4_scope, a_node_is_averaged) { averages_over(ISO_SCOPE_NODE); }
Test(np4_scope, a_rank_alone_is_not_averaged) { averages_over(ISO_SCOPE_RANK); }
Test(np3_scope, nodes_of_unequal_size_are_averaged_each) { averages_over(ISO_SCOPE_NODE); }

// Each pending update still belongs to the scope of its own backward.
Test(np4_scope, switching_completes_what_is_pending) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    iso_reducer *r = make_reducer(ISO_SCOPE_WORLD);
    double total = 0;
    for (int k = 0; k < 9; k++) {
        iso_scope scope = (iso_scope)(k % 3);
        iso_assert_ok(iso__reducer_set_scope(r, scope));
        iso_assert_all(moved_by(total));
        iso_assert_ok(step(r));
        total += mean_of(scope, 2);
    }
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(moved_by(total));
    iso_reducer_destroy(&r);
}

static void expect_no_exchange(iso_scope scope) {
    iso_reducer *r = make_reducer(scope);
    iso_reducer_stats stats;
    for (int k = 0; k < 3; k++) iso_assert_ok(step(r));
    iso_assert_ok(iso_reducer_finish(r));
    iso_reducer_get_stats(r, &stats);
    iso_assert_all(stats.exchange_ms == 0 && stats.wait_ms == 0 && stats.steps == 3);
    iso_assert_all(stats.bytes_per_step == (COUNT * sizeof(float) + 63) / 64 * 64);
    iso_reducer_destroy(&r);
}

Test(np2_scope, one_rank_exchanges_nothing) {
    expect_no_exchange(ISO_SCOPE_RANK);
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    expect_no_exchange(ISO_SCOPE_NODE);
}

Test(np4_scope, steps_in_a_node_allocate_nothing) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    iso_reducer *r = make_reducer(ISO_SCOPE_NODE);
    long long before, after;
    for (int k = 0; k < 3; k++) iso_assert_ok(step(r));
    iso_memory_balance(NULL, NULL, &before);
    for (int k = 0; k < 10; k++) iso_assert_ok(step(r));
    iso_assert_ok(iso_reducer_finish(r));
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(before == after);
    iso_reducer_destroy(&r);
}

Test(np4_scope, an_exchange_of_every_scope_can_be_measured) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    iso_reducer *r = make_reducer(ISO_SCOPE_NODE);
    for (int s = 0; s < 3; s++) {
        double ms = -1;
        iso_assert_ok(iso__reducer_set_scope(r, (iso_scope)s));
        iso_assert_ok(iso_reducer_measure_exchange(r, 3, &ms));
        iso_assert_all(ms >= 0 && ms < 10000);
    }
    iso_reducer_destroy(&r);
}

Test(np3_scope, ranks_that_disagree_are_told) {
    iso_reducer *r = NULL;
    iso_status status =
        create(test_rank == 1 ? ISO_SCOPE_NODE : ISO_SCOPE_WORLD, ISO_SYNC_LAZY, &r);
    iso_assert_all(status == ISO_ERR_MISMATCH && r == NULL);
    const char *said = iso_last_error()->message;
    cr_expect(strstr(said, "ranks disagree: scope is node on rank 1 and world on ranks 0, 2"), "%s",
              said);
}

Test(np2_scope, an_unknown_scope_is_refused) {
    iso_reducer *r = NULL;
    iso_assert_all(create((iso_scope)3, ISO_SYNC_LAZY, &r) == ISO_ERR_ARG && r == NULL);
    iso_assert_ok(create(ISO_SCOPE_WORLD, ISO_SYNC_LAZY, &r));
    iso_assert_all(iso__reducer_set_scope(r, (iso_scope)-1) == ISO_ERR_ARG);
    iso_reducer_destroy(&r);
}

// ---- What a scope needs is made when it is chosen ---------------------------------------------------

// On rank 1 no file of shared memory can be made, or as many as before.
static void leave_room(bool room) {
    static struct rlimit before;
    if (before.rlim_max == 0) getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit none = {.rlim_cur = 1000, .rlim_max = before.rlim_max};
    if (test_rank == 1) setrlimit(RLIMIT_FSIZE, room ? &before : &none);
}

static iso_status create_without_room(iso_scope scope, iso_sync sync, iso_reducer **out) {
    leave_room(false);
    iso_status status = create(scope, sync, out);
    leave_room(true);
    return status;
}

static bool told_of_no_room(iso_status status) {
    const char *said = iso_last_error()->message;
    return status == ISO_ERR_UNSUPPORTED &&
           strstr(said, "ISO_NODE_COLLECTIVE is shm, but there is no room for shared memory");
}

Test(np2_scope, memory_that_no_scope_shares_needs_no_room) {
    static const iso_sync sync[] = {ISO_SYNC_LAZY, ISO_SYNC_NONE};
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    for (int k = 0; k < 2; k++) {
        iso_reducer *r = NULL;
        iso_scope scope = sync[k] == ISO_SYNC_NONE ? ISO_SCOPE_WORLD : ISO_SCOPE_RANK;
        iso_assert_ok(create_without_room(scope, sync[k], &r));
        iso_assert_ok(iso_reducer_set_apply(r, descend, 1, NULL));
        iso_assert_ok(step(r));
        iso_assert_ok(iso_reducer_finish(r));
        iso_assert_all(moved_by(mean_of(ISO_SCOPE_RANK, 2)));
        iso_reducer_destroy(&r);
    }
    iso_reducer *none = NULL;
    iso_assert_all(told_of_no_room(create_without_room(ISO_SCOPE_WORLD, ISO_SYNC_LAZY, &none)));
}

// If one node has no room, sums between nodes go by messages between all ranks, unless shared
// memory is demanded.
Test(np4_scope, sums_between_nodes_need_no_room) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    iso_reducer *r = NULL;
    iso_assert_ok(create_without_room(ISO_SCOPE_WORLD, ISO_SYNC_LAZY, &r));
    iso_assert_ok(iso_reducer_set_apply(r, descend, 1, NULL));
    iso_assert_ok(step(r));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(moved_by(mean_of(ISO_SCOPE_WORLD, 2)));
    iso_reducer_destroy(&r);
    if (iso_comm_progress(test_comm) != ISO_PROGRESS_THREAD) return; // messages anyway
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    iso_assert_all(told_of_no_room(create_without_room(ISO_SCOPE_WORLD, ISO_SYNC_LAZY, &r)));
}

// A scope that cannot be had leaves the one in force; and memory is shared where it lies, with what
// is in it.
Test(np2_scope, memory_is_shared_when_a_scope_needs_it) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    iso_reducer_stats stats;
    iso_reducer *r = make_reducer(ISO_SCOPE_RANK);
    float *gradient = iso_reducer_grad(r, 0);
    iso_assert_ok(step(r));
    leave_room(false);
    iso_status status = iso__reducer_set_scope(r, ISO_SCOPE_NODE);
    leave_room(true);
    iso_assert_all(told_of_no_room(status));
    iso_assert_all(iso__reducer_scope(r) == ISO_SCOPE_RANK);
    iso_assert_ok(step(r));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(moved_by(2 * mean_of(ISO_SCOPE_RANK, 2)));
    iso_assert_ok(iso__reducer_set_scope(r, ISO_SCOPE_NODE));
    iso_assert_all(iso_reducer_grad(r, 0) == gradient &&
                   gradient[COUNT - 1] == (float)test_rank + 1);
    iso_assert_ok(step(r));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(moved_by(2 * mean_of(ISO_SCOPE_RANK, 2) + mean_of(ISO_SCOPE_NODE, 2)));
    iso_reducer_get_stats(r, &stats);
    iso_assert_all(stats.shared_memory);
    iso_reducer_destroy(&r);
}

// Who sets a scope at all goes through scopes later, in the middle of a run.
Test(np4_scope, the_first_choice_makes_what_later_ones_need) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    iso_reducer *r = make_reducer(ISO_SCOPE_WORLD);
    iso_assert_ok(iso__reducer_set_scope(r, ISO_SCOPE_WORLD));
    for (int s = 0; s < 9; s++) {
        long long before, after;
        iso_memory_balance(NULL, NULL, &before);
        iso_assert_ok(iso__reducer_set_scope(r, (iso_scope)(s % 3)));
        iso_memory_balance(NULL, NULL, &after);
        iso_assert_all(before == after);
        iso_assert_ok(step(r));
    }
    iso_reducer_destroy(&r);
}

// ---- The train hook ---------------------------------------------------------------------------------

typedef struct hooked {
    trainer *t;
    int entered, left;
    uint64_t seen; // what the parameters were inside the hook, pending updates or not
    bool fail;
} hooked;

static iso_status on_train(bool training, void *user) {
    hooked *h = user;
    *(training ? &h->left : &h->entered) += 1;
    iso_parameter *const *trainable;
    int count = iso__data_parallel_trainable(h->t->model, &trainable);
    h->seen = ISO_HASH_START;
    for (int i = 0; i < count; i++) // not iso_parameter_value, which would complete them
        h->seen = iso__hash(h->seen, iso_tensor_data(trainable[i]->value), 16);
    return h->fail ? ISO_FAIL(ISO_ERR_STATE, "the hook failed") : ISO_OK;
}

static uint64_t values_seen_from_outside(trainer *t) {
    hooked h = {.t = t};
    (void)on_train(true, &h);
    return h.seen;
}

static void hook_is_called_once_in_each_direction(iso_sync sync) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    trainer t;
    trainer_config config = node_config(sync);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    hooked h = {.t = &t};
    iso__data_parallel_set_train_hook(t.model, on_train, &h);
    iso_assert_ok(iso_module_train(t.model, true)); // it is in training mode already
    iso_assert_ok(trainer_train(&t, 3));
    uint64_t before = values_seen_from_outside(&t);
    iso_assert_all(h.entered == 0 && h.left == 0);
    for (int k = 0; k < 2; k++) iso_assert_ok(iso_module_train(t.model, false));
    iso_assert_all(h.entered == 1 && h.left == 0);
    iso_assert_all((h.seen != before) == (sync == ISO_SYNC_LAZY)); // nothing was pending any more
    iso_assert_ok(iso_data_parallel_finish(t.model));
    iso_assert_all(h.seen == values_seen_from_outside(&t));
    for (int k = 0; k < 2; k++) iso_assert_ok(iso_module_train(t.model, true));
    iso_assert_all(h.entered == 1 && h.left == 1);
    iso__data_parallel_set_train_hook(t.model, NULL, NULL);
    iso_assert_ok(iso_module_train(t.model, false));
    iso_assert_all(h.entered == 1 && iso_data_parallel_comm(t.model) == test_comm);
    trainer_destroy(&t);
}

Test(np4_scope, hook_sees_evaluation_after_pending_updates) {
    hook_is_called_once_in_each_direction(ISO_SYNC_LAZY);
}
Test(np2_scope, hook_sees_evaluation_blocking) {
    hook_is_called_once_in_each_direction(ISO_SYNC_BLOCKING);
}

Test(np2_scope, a_failing_hook_is_reported_and_asked_again) {
    trainer t;
    trainer_config config = trainer_default();
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    hooked h = {.t = &t, .fail = true};
    iso__data_parallel_set_train_hook(t.model, on_train, &h);
    iso_assert_all(iso_module_train(t.model, false) == ISO_ERR_STATE);
    h.fail = false;
    iso_assert_ok(iso_module_train(t.model, false));
    iso_assert_all(h.entered == 2 && h.left == 0);
    h.fail = true;
    iso_assert_all(iso_module_train(t.model, true) == ISO_ERR_STATE);
    h.fail = false;
    iso_assert_ok(iso_module_train(t.model, true));
    iso_assert_all(h.entered == 2 && h.left == 2);
    trainer_destroy(&t);
}
