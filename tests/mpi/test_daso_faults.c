// SPDX-License-Identifier: MIT
// What goes wrong under DASO goes wrong on every rank at the same step, and changes no parameter.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/tensor_access.h"

#include "tensor/tensor_impl.h"

#include "comm/comm_state.h"
#include "optim/periodic/periodic.h"

#include <criterion/criterion.h>
#include <isotherm/resume.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np2_daso_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_daso_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_daso_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- Values that are not finite -------------------------------------------------------------------

// Whether the message of the last error names one of these ranks.
static bool names_rank_in(int first, int count) {
    char name[16];
    for (int r = first; r < first + count; r++) {
        snprintf(name, sizeof(name), "rank %d", r);
        if (strstr(iso_last_error()->message, name)) return true;
    }
    return false;
}

// With lr 0 only merges change parameters, and the one that fails must not. The send after step 4
// carries the value, which all ranks of `node` have (or the only rank); its merge, `wait` steps
// later, fails on every rank.
static void fails_everywhere(const daso_case *c, int node, float value) {
    trainer t;
    uint64_t before, after;
    int size = c->daso.unit == ISO_SCOPE_RANK ? 1 : c->ranks_per_node;
    bool here = test_rank / size == node;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    iso_assert_ok(trainer_train(&t, 3));
    iso_assert_ok(daso_drift(&t, 0.001f * (float)(test_rank / size)));
    iso_assert_ok(daso_own_hash(&t, &before));
    for (int step = 3; step < 4 + (int)c->daso.batches_to_wait; step++) {
        bool fails = step == 3 + (int)c->daso.batches_to_wait;
        iso_status status =
            step == 3 ? daso_poisoned_step(&t, step, here, value) : trainer_step(&t, step, NULL);
        iso_assert_all(daso_same_status(status));
        iso_assert_all((status < 0) == fails);
    }
    iso_assert_all(names_rank_in(node * size, size));
    iso_assert_ok(daso_own_hash(&t, &after));
    iso_assert_all(after == before);
    daso_close(&t);
}

static daso_case frozen_case(int ranks_per_node, int64_t wait) {
    daso_case c = daso_case_default(30);
    c.ranks_per_node = ranks_per_node;
    c.train.hyper.lr = c.train.hyper.momentum = 0;
    c.daso.batches_to_wait = wait;
    return c;
}

Test(np2_daso_faults, nan_fails_everywhere) {
    for (int i = 0; i < 4; i++) {
        daso_case c = frozen_case(1, i % 2 ? 2 : 0);
        c.daso.merge = i < 2 ? ISO_MERGE_PROGRESS : ISO_MERGE_HEAT;
        c.daso.wire = i < 2 ? ISO_WIRE_F32 : ISO_WIRE_BF16;
        fails_everywhere(&c, 1, NAN);
        fails_everywhere(&c, 0, INFINITY);
    }
}

Test(np4_daso_faults, nan_fails_everywhere) {
    for (int i = 0; i < 4; i++) {
        daso_case c = frozen_case(2, i % 2 ? 2 : 0);
        if (i >= 2) c.daso.unit = ISO_SCOPE_RANK;
        for (int unit = 0; unit < (i < 2 ? 2 : 4); unit++) fails_everywhere(&c, unit, NAN);
    }
}

Test(np3_daso_faults, nan_fails_everywhere_with_unequal_nodes) {
    daso_case c = frozen_case(2, 2);
    for (int node = 0; node < 2; node++) fails_everywhere(&c, node, NAN);
}

// It is told once, where it was waited for; what is sent later is merged again.
Test(np2_daso_faults, exchange_that_fails_in_complete_is_given_up) {
    trainer t;
    uint64_t before, after;
    iso_daso_stats stats;
    daso_case c = frozen_case(1, 2);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 3));
    iso_assert_ok(daso_own_hash(&t, &before));
    iso_assert_ok(daso_poisoned_step(&t, 3, test_rank == 1, NAN));
    iso_assert_all(iso_daso_complete(t.optimizer) < 0 && names_rank_in(1, 1));
    iso_assert_ok(iso_daso_complete(t.optimizer));
    for (int step = 4; step < 10; step++) iso_assert_ok(trainer_step(&t, step, NULL));
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_ok(daso_own_hash(&t, &after));
    iso_assert_all(stats.syncs == 1 && after == before);
    daso_close(&t);
}

// A rank that no longer fits into f16 is as bad as one that is not finite: nothing is sent instead.
Test(np2_daso_faults, f16_overflow_is_no_silent_infinity) {
    trainer t;
    daso_case c = frozen_case(1, 0);
    c.daso.wire = ISO_WIRE_F16;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 3));
    iso_status status = daso_poisoned_step(&t, 3, test_rank == 1, 1e6f);
    iso_assert_all(daso_same_status(status));
    iso_assert_all(isfinite(daso_swap_last(&t, 0)));
    daso_close(&t);
}

// The loss of one rank: nobody may act upon it.
Test(np2_daso_faults, loss_that_is_not_finite) {
    for (int heat = 0; heat < 2; heat++) {
        trainer t;
        daso_case c = heat ? heat_case_default(5) : daso_case_default(10);
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        iso_assert_all(iso_daso_epoch_loss(t.optimizer, test_rank ? NAN : 1, false) ==
                       ISO_ERR_STATE);
        iso_assert_all(iso_daso_epoch_loss(t.optimizer, INFINITY, true) == ISO_ERR_STATE);
        iso_assert_ok(iso_daso_epoch_loss(t.optimizer, 1, false));
        daso_close(&t);
    }
}

// ---- Memory ---------------------------------------------------------------------------------------

// Of the calls by which the library allocates: the one that fails, counted down to 0; below 0:
// none.
static int calls_to_failure = -1;

void *aligned_alloc(size_t alignment, size_t bytes) {
    void *block;
    if (calls_to_failure >= 0 && calls_to_failure-- == 0) return NULL;
    return posix_memalign(&block, alignment, bytes) == 0 ? block : NULL;
}

// Calls `work` with each allocation of rank 1 failing in turn, and at last with none.
static void survives_each(iso_status (*work)(trainer *), trainer *t) {
    for (int n = 0, more = 1; more; n++) {
        calls_to_failure = test_rank == 1 ? n : -1;
        iso_status status = work(t);
        more = test_rank == 1 && calls_to_failure < 0;
        calls_to_failure = -1;
        iso_assert_all(daso_same_status(status));
        MPI_Allreduce(MPI_IN_PLACE, &more, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        iso_assert_all((status == ISO_ERR_NOMEM) == more);
    }
}

static iso_status show_mean(trainer *t) { return iso_module_train(t->model, false); }

// With an exchange under way, whose mean is kept.
Test(np2_daso_faults, evaluation_without_memory_fails_everywhere) {
    trainer t;
    daso_case c = daso_case_default(30);
    c.ranks_per_node = 1;
    c.daso.batches_to_wait = 2;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 4));
    survives_each(show_mean, &t);
    iso_assert_all(daso_equal(&t));
    iso_assert_ok(iso_module_train(t.model, true));
    for (int step = 4; step < 10; step++) iso_assert_ok(trainer_step(&t, step, NULL));
    daso_close(&t);
}

static iso_status start_over(trainer *t) { return iso_daso_reset(t->optimizer); }

// A reset averages the state of the optimizer, too.
Test(np2_daso_faults, reset_without_memory_fails_everywhere) {
    trainer t;
    daso_case c = daso_case_default(30);
    c.ranks_per_node = 1;
    c.daso.state = ISO_STATE_SYNC_AVERAGE;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 4));
    survives_each(start_over, &t);
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
}

static iso_status list_state(trainer *t) {
    iso_state *state;
    int calls = calls_to_failure;
    calls_to_failure = -1;
    iso_status status = iso_state_create(&state);
    calls_to_failure = calls;
    if (status == ISO_OK) status = iso_training_state(t->model, t->optimizer, state);
    iso_state_destroy(&state);
    return status;
}

Test(np2_daso_faults, save_without_memory_fails_everywhere) {
    trainer t;
    daso_case c = daso_case_default(30);
    c.ranks_per_node = 1;
    c.daso.batches_to_wait = 0; // no mean was kept before
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 4));
    survives_each(list_state, &t);
    daso_close(&t);
}

// ---- Configurations -------------------------------------------------------------------------------

// A tied optimizer for the model of t, as daso wants it.
static iso_status make_inner(trainer *t, iso_optimizer **out) {
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    iso_optimizer *sgd;
    iso_status status = iso_optimizer_create(ISO_SGD, t->model, &hyper, &sgd);
    if (status < 0) return status;
    return iso_dp_optimizer_create_take(sgd, t->model, out);
}

// Refused by every rank, naming the option, and `inner` is gone; also if one rank alone is wrong.
static void refuses(trainer *t, const daso_case *wrong, const daso_case *right,
                    const char *option) {
    for (int alone = 0; alone < 2; alone++) {
        const daso_case *c = alone && test_rank == 0 ? right : wrong;
        iso_optimizer *inner;
        iso_assert_ok(make_inner(t, &inner));
        iso_status status =
            c->heat ? iso_daso_heat_create_take(inner, t->model, &c->heat_config, &inner)
                    : iso_daso_create_take(inner, t->model, &c->daso, &inner);
        const char *message = iso_last_error()->message;
        if (status != ISO_ERR_ARG || !strstr(message, option) || inner)
            fprintf(stderr, "rank %d: %s: status %d, \"%s\"\n", test_rank, option, (int)status,
                    message);
        iso_assert_all(status == ISO_ERR_ARG && !inner && strstr(message, option));
    }
}

#define REFUSES(field, value)                                                                      \
    do {                                                                                           \
        daso_case wrong_ = c;                                                                      \
        wrong_.OPTIONS.field = value;                                                              \
        refuses(&t, &wrong_, &c, #field);                                                          \
    } while (0)

Test(np2_daso_faults, daso_refuses_wrong_options) {
    trainer t;
    daso_case c = daso_case_default(20);
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    c.train.rows = 4;
    iso_assert_ok(trainer_create(&t, test_comm, &c.train));
    iso_optimizer_destroy(&t.optimizer);
#define OPTIONS daso
    REFUSES(total_steps, 0);
    REFUSES(total_steps, -5);
    REFUSES(global_skip, 0);
    REFUSES(max_global_skip, 0);
    REFUSES(batches_to_wait, -2);
    REFUSES(local_skip, 0);
    REFUSES(unit, ISO_SCOPE_WORLD);
    REFUSES(unit, (iso_scope)9);
    REFUSES(merge, (iso_merge)9);
    REFUSES(wire, (iso_wire)77);
    REFUSES(state, (iso_state_sync)9);
    REFUSES(policy, (iso_policy)9);
    REFUSES(max_divergence, NAN);
    REFUSES(stability_level, -1);
    c.daso.warmup_steps = c.daso.cooldown_steps = -1;
    REFUSES(warmup, -0.1);
    REFUSES(warmup, 1.5);
    REFUSES(cooldown, NAN);
    c.daso.policy = ISO_POLICY_CALLBACK;
    c.daso.callback = (iso_daso_callback)abort;
    REFUSES(callback, NULL);
#undef OPTIONS
    trainer_destroy(&t);
}

Test(np2_daso_faults, daso_heat_refuses_wrong_options) {
    trainer t;
    daso_case c = heat_case_default(20);
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    c.train.rows = 4;
    iso_assert_ok(trainer_create(&t, test_comm, &c.train));
    iso_optimizer_destroy(&t.optimizer);
#define OPTIONS heat_config
    REFUSES(total_epochs, 0);
    REFUSES(total_epochs, -1);
    REFUSES(warmup_epochs, -1);
    REFUSES(cooldown_epochs, -1);
    REFUSES(max_global_skips, -1);
    REFUSES(sending_chunk_size, 0);
    REFUSES(sending_chunk_size, -1);
    REFUSES(downcast_type, (iso_dtype)77);
    REFUSES(downcast_type, ISO_F64);
    REFUSES(skip_reduction_factor, 0);
    REFUSES(local_skip_factor, 0);
    REFUSES(last_batch, -2);
#undef OPTIONS
    trainer_destroy(&t);
}

static void expect_disagreement(const daso_case *c, const char *said) {
    trainer t;
    iso_status status = daso_open(&t, MPI_COMM_WORLD, c);
    iso_assert_all(status == ISO_ERR_MISMATCH);
    cr_expect(strstr(iso_last_error()->message, said), "%s", iso_last_error()->message);
    daso_close(&t);
}

// Ranks that want different things cannot train together: all hear of it, nobody hangs.
Test(np2_daso_faults, ranks_with_different_options) {
    daso_case daso = daso_case_default(20), heat = heat_case_default(20);
    daso.daso.global_skip += test_rank;
    expect_disagreement(&daso, "disagree: period is 5 on rank 1 and 4 on rank 0: give");
    heat.heat_config.sending_chunk_size += test_rank;
    expect_disagreement(&heat, "disagree: sending-chunk-size is 10000001 on rank 1 and 10000000 on "
                               "rank 0: give");
}

// A policy compares with these: however little they differ, ranks may decide otherwise.
Test(np2_daso_faults, ranks_with_nearly_the_same_options) {
    daso_case daso = daso_case_default(20), heat = heat_case_default(20);
    daso.daso.max_divergence = 0.05 + 1e-12 * test_rank;
    expect_disagreement(&daso, "disagree: max-divergence is 0.050000000001 on rank 1 and 0.05 on "
                               "rank 0: give");
    heat.heat_config.stability_level = 0.05 + 1e-12 * test_rank;
    expect_disagreement(&heat, "disagree: stability-level is 0.050000000001 on rank 1 and 0.05 on "
                               "rank 0: give");
}

// ---- Other objects --------------------------------------------------------------------------------

Test(np2_daso_faults, other_objects) {
    trainer t;
    iso_daso_stats stats;
    daso_case c = daso_case_default(20), heat = heat_case_default(5);
    c.train.rows = 4;
    iso_assert_ok(trainer_create(&t, test_comm, &c.train));
    iso_assert_all(iso_daso_get_stats(t.optimizer, &stats) == ISO_ERR_ARG);
    iso_assert_all(iso_daso_finish(t.optimizer) == ISO_ERR_ARG);
    iso_assert_all(iso_daso_epoch_loss(t.optimizer, 1, true) == ISO_ERR_ARG);
    iso_assert_all(iso_daso_reset(t.optimizer) == ISO_ERR_ARG);
    iso_assert_all(iso_daso_heat_set_last_batch(t.optimizer, 3) == ISO_ERR_ARG);
    iso_module *net = iso_data_parallel_module(t.model);
    iso_assert_all(iso_daso_create_take(t.optimizer, net, &c.daso, &t.optimizer) == ISO_ERR_ARG);
    iso_assert_all(!t.optimizer);
    iso_assert_ok(make_inner(&t, &t.optimizer));
    iso_assert_all(iso_daso_heat_create_take(t.optimizer, net, &heat.heat_config, &t.optimizer) ==
                   ISO_ERR_ARG);
    trainer_destroy(&t);
}

// An optimizer that is not tied to the module: nothing would be averaged.
Test(np2_daso_faults, optimizer_that_is_not_tied) {
    for (int heat = 0; heat < 2; heat++) {
        trainer t;
        daso_case c = heat ? heat_case_default(5) : daso_case_default(20);
        iso_hyper hyper = iso_hyper_default(ISO_SGD);
        iso_optimizer *sgd;
        c.train.rows = 4;
        iso_assert_ok(trainer_create(&t, test_comm, &c.train));
        iso_optimizer_destroy(&t.optimizer);
        iso_assert_ok(iso_optimizer_create(ISO_SGD, t.model, &hyper, &sgd));
        iso_status status = heat ? iso_daso_heat_create_take(sgd, t.model, &c.heat_config, &sgd)
                                 : iso_daso_create_take(sgd, t.model, &c.daso, &sgd);
        iso_assert_all(status == ISO_ERR_ARG && !sgd);
        trainer_destroy(&t);
    }
}

static void ignore_bias(iso_data_parallel_config *dp) {
    static const char *const names[] = {"conv2.bias"};
    dp->ignore = names;
    dp->ignore_count = 1;
}

// It would average what each rank has of its own.
Test(np2_daso_faults, parameters_that_are_not_exchanged) {
    daso_case c = daso_case_default(20), heat = heat_case_default(5);
    c.train.adjust = heat.train.adjust = ignore_bias;
    iso_assert_all(daso_refused(&c, ISO_ERR_UNSUPPORTED, "\"conv2.bias\" is each rank's own"));
    iso_assert_all(daso_refused(&heat, ISO_ERR_UNSUPPORTED, "\"conv2.bias\" is each rank's own"));
}

// The parameters of the other one would drift apart.
Test(np2_daso_faults, one_of_two_optimizers) {
    daso_case c = daso_case_default(20);
    iso_optimizer *part[2];
    trainer t;
    c.train.rows = 4;
    iso_assert_ok(trainer_create(&t, test_comm, &c.train));
    iso_optimizer_destroy(&t.optimizer);
    const iso_module *net = t.model->child[0];
    for (int i = 0; i < 2; i++) {
        iso_module *layer = net->child[i ? net->child_count - 1 : 0];
        iso_assert_ok(iso_optimizer_create(ISO_SGD, layer, NULL, &part[i]));
        iso_assert_ok(iso_dp_optimizer_create_take(part[i], t.model, &part[i]));
    }
    iso_status status = iso_daso_create_take(part[0], t.model, &c.daso, &part[0]);
    iso_assert_all(status == ISO_ERR_UNSUPPORTED && !part[0]);
    iso_assert_all(strstr(iso_last_error()->message, "the model has 2 optimizers") != NULL);
    iso_optimizer_destroy(&part[1]);
    trainer_destroy(&t);
}

// ---- How long it waits ------------------------------------------------------------------------------

// What the program asked for holds in the communicators of the engine, whatever ISO_TIMEOUT says.
Test(np2_daso_faults, the_time_out_of_the_program_is_kept) {
    daso_case c = daso_case_default(10);
    iso_comm_config patience = {.timeout_s = 77};
    iso_comm *comm;
    trainer t;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, &patience, &comm));
    c.train.rows = 2 * test_size;
    iso_assert_ok(trainer_create(&t, comm, &c.train));
    iso_assert_ok(iso_daso_create_take(t.optimizer, t.model, &c.daso, &t.optimizer));
    const iso__periodic *p = (const iso__periodic *)(void *)t.optimizer; // its first member
    iso_assert_all(p->node->timeout_s == 77 && p->layout->world->timeout_s == 77 &&
                   p->layout->node->timeout_s == 77);
    trainer_destroy(&t);
    iso_comm_destroy(&comm);
}
