// SPDX-License-Identifier: MIT
// ZeRO stage 3 with layers that run several times, in other orders than they are registered, on
// some ranks only, or again inside the backward: the bits of a run without ZeRO.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include "base/base.h"

#include <isotherm/layers.h>

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np2_zero_layers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 300);
TestSuite(np3_zero_layers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 300);

// ---- A module that runs its children as a program says ----------------------------------------------

static const char *program; // 'a' is the first child
static bool recompute;      // its forward runs again in its backward
static bool reads;          // values are read before the forward and the backward of each child

static iso_status run_program(iso_module *self, iso_tensor *in, iso_tensor **out) {
    iso_tensor *value;
    for (const char *p = program; *p; p++) {
        if (reads) ISO_TRY(iso_parameter_value(self->child[1]->parameter[0], &value));
        ISO_TRY(iso_module_call(self->child[*p - 'a'], ISO_ACT_NONE, in, &in));
    }
    *out = in;
    return ISO_OK;
}

static iso_status program_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                  iso_tensor **out) {
    (void)call;
    ISO_TRY(run_program(self, in, out));
    for (int i = 0; recompute && i < self->child_count; i++) self->child[i]->call_depth = 0;
    return ISO_OK;
}

static iso_status program_backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                   iso_tensor **grad_in) {
    iso_tensor *value, *out;
    if (recompute) ISO_TRY(run_program(self, call->in, &out));
    for (size_t k = strlen(program); k-- > 0;) {
        if (reads) ISO_TRY(iso_parameter_value(self->child[0]->parameter[0], &value));
        ISO_TRY(iso_module_call_backward(self->child[program[k] - 'a'], grad_out, &grad_out));
    }
    if (grad_in) *grad_in = grad_out;
    return ISO_OK;
}

static const iso_module_ops program_ops = {
    .type = "Program", .forward = program_forward, .backward = program_backward};

enum { CHILDREN = 5, UNITS = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE };
static bool ties;

static iso_status build_program(iso_device *device, bool dropout, iso_module **out) {
    static const char *const name[CHILDREN] = {"a", "b", "c", "d", "e"};
    iso_rng rng = {.seed = 7};
    iso_module *m, *runs = calloc(1, sizeof(*runs));
    (void)dropout;
    ISO_TRY(iso_module_init(runs, &program_ops, device));
    for (int i = 0; i < CHILDREN; i++) {
        ISO_TRY(iso_linear_create(device, UNITS, UNITS, true, &rng, &m));
        ISO_TRY(iso_module_add_child_take(runs, name[i], m));
    }
    ISO_TRY(iso_sequential_create(device, out));
    ISO_TRY(iso_flatten_create(device, &m));
    ISO_TRY(iso_sequential_add_take(*out, "flatten", m));
    ISO_TRY(iso_sequential_add_take(*out, "program", runs));
    ISO_TRY(iso_linear_create(device, UNITS, TRAINER_CLASSES, true, &rng, &m));
    ISO_TRY(iso_sequential_add_take(*out, "last", m));
    if (ties) ISO_TRY(iso_module_tie(*out, "program.d.weight", *out, "program.a.weight"));
    return ISO_OK;
}

static int stage_now;
static void set_stage(iso_data_parallel_config *dp) { dp->zero = stage_now; }

enum { STEPS = 4 };

// The programs of the steps; a program for rank 0 and one for the others, if they differ.
typedef struct programs {
    const char *first[STEPS], *others[STEPS];
} programs;

static const char *program_of(const programs *all, int step) {
    return test_rank > 0 && all->others[step] ? all->others[step] : all->first[step];
}

static uint64_t hash_of(trainer_config config, int stage, const programs *all) {
    iso_status status = ISO_OK;
    uint64_t hash = 0;
    trainer t;
    config.build = build_program;
    config.adjust = set_stage;
    config.hyper.lr = 1e-3;
    stage_now = stage;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int step = 0; status == ISO_OK && step < STEPS; step++) {
        program = program_of(all, step);
        status = trainer_step(&t, step, NULL);
    }
    iso_assert_ok(status);
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

// A bucket for each layer, for some together, and for all; blocking and lazy; pieces.
static void equals_a_run_without(const programs *all, bool unused) {
    const double buckets[] = {0, 0.3, 100};
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    for (int i = 0; i < 6; i++) {
        trainer_config config = trainer_default();
        config.bucket_mb = buckets[i % 3];
        config.piece_mb = i == 4 ? 0.05 : 0;
        config.sync = i < 3 ? ISO_SYNC_LAZY : ISO_SYNC_BLOCKING;
        config.find_unused = unused;
        uint64_t plain = hash_of(config, 0, all);
        iso_assert_all(hash_of(config, 3, all) == plain);
    }
}

// ---- Programs ---------------------------------------------------------------------------------------

static const programs in_order = {{"abcde", "abcde", "abcde", "abcde"}, {NULL}};
static const programs in_reverse = {{"edcba", "edcba", "edcba", "edcba"}, {NULL}};
static const programs changing = {{"abcde", "ecabd", "dbcea", "abcde"}, {NULL}};
static const programs repeating = {{"abcabcde", "abcabcde", "aabbccdde", "abcdeabcde"}, {NULL}};
// They begin to repeat when earlier forwards have dropped their values.
static const programs repeating_later = {{"abcde", "abcde", "abcdeab", "eabcde"}, {NULL}};
static const programs partly_unused = {{"abcde", "abc", "cde", "a"}, {NULL}};
static const programs on_some_ranks = {{"abcde", "ab", "eb", "abcd"}, {"abcde", "cd", "ac", "e"}};
// Once a forward has repeated a layer, each rank may repeat it as often as it wants.
static const programs in_loops = {{"abcab", "abc", "abcabab", "abcab"},
                                  {"abcab", "abcab", "abc", "abcababab"}};
static const programs in_own_orders = {{"abcde", "abcde", "abcde", "abcde"},
                                       {"abcde", "edcba", "dbcea", "edcba"}};

static void in_all_orders(void) {
    equals_a_run_without(&in_order, false);
    equals_a_run_without(&in_reverse, false);
    equals_a_run_without(&changing, false);
}

Test(np2_zero_layers, layers_may_run_in_any_order) { in_all_orders(); }
Test(np3_zero_layers, layers_may_run_in_any_order) { in_all_orders(); }

Test(np2_zero_layers, layers_may_repeat) { equals_a_run_without(&repeating, false); }
Test(np3_zero_layers, layers_may_repeat) { equals_a_run_without(&repeating_later, false); }
Test(np2_zero_layers, layers_may_begin_to_repeat) { equals_a_run_without(&repeating_later, false); }

Test(np2_zero_layers, layers_may_be_unused) { equals_a_run_without(&partly_unused, true); }
Test(np2_zero_layers, ranks_may_use_different_layers) {
    equals_a_run_without(&on_some_ranks, true);
}
Test(np3_zero_layers, ranks_may_use_different_layers) {
    equals_a_run_without(&on_some_ranks, true);
}

Test(np2_zero_layers, ranks_may_loop_differently) { equals_a_run_without(&in_loops, true); }
Test(np3_zero_layers, ranks_may_use_different_orders) {
    equals_a_run_without(&in_own_orders, true);
}

Test(np2_zero_layers, layers_may_be_tied) {
    ties = true;
    equals_a_run_without(&in_order, false);
    equals_a_run_without(&repeating, false);
}

Test(np3_zero_layers, layers_may_be_recomputed) {
    recompute = true;
    equals_a_run_without(&in_order, false);
    equals_a_run_without(&repeating, false);
}

// All ranks may read values inside a forward and a backward.
Test(np2_zero_layers, layers_may_read_values) {
    reads = true;
    equals_a_run_without(&in_order, false);
    equals_a_run_without(&changing, false);
}

static void create_program(trainer *t, int stage, iso_sync sync) {
    trainer_config config = trainer_default();
    config.build = build_program;
    config.adjust = set_stage;
    config.hyper.lr = 1e-3;
    config.sync = sync;
    stage_now = stage;
    program = "abcde";
    iso_assert_ok(trainer_create(t, test_comm, &config));
}

// ---- A backward that fails --------------------------------------------------------------------------

// A layer of rank 0 gets no gradient, which is an error there. All ranks read values, and skip the
// batch.
static iso_status fail_step(trainer *t, int step) {
    iso_parameter *parameter;
    iso_tensor *value;
    iso_status wanted = test_rank == 0 ? ISO_ERR_STATE : ISO_OK;
    program = test_rank == 0 ? "abce" : "abcde";
    iso_optimizer_zero_grad(t->optimizer);
    iso_status status = trainer_backward(t, step);
    program = "abcde";
    ISO_CHECK(status == wanted, ISO_ERR_STATE, "the backward gave %d", (int)status);
    ISO_TRY(iso_module_get_parameter(t->model, "last.weight", &parameter));
    return iso_parameter_value(parameter, &value);
}

static uint64_t hash_after_failure(int stage) {
    uint64_t hash = 0;
    trainer t;
    create_program(&t, stage, ISO_SYNC_LAZY);
    iso_status status = trainer_go_on(&t, 0, 2);
    if (status == ISO_OK) status = fail_step(&t, 2);
    if (status == ISO_OK) status = trainer_go_on(&t, 3, 5);
    iso_assert_ok(status);
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

Test(np2_zero_layers, values_are_read_after_a_failed_backward) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    iso_assert_all(hash_after_failure(3) == hash_after_failure(0));
}

// ---- Several forwards for a step --------------------------------------------------------------------

static uint64_t accumulated_hash(int stage, iso_sync sync) {
    iso_status status = ISO_OK;
    uint64_t hash = 0;
    trainer t;
    iso_tensor *out;
    create_program(&t, stage, sync);
    for (int step = 0; status == ISO_OK && step < 3; step++) {
        iso_optimizer_zero_grad(t.optimizer);
        status = trainer_forward(&t, step, &out); // without a backward
        if (status == ISO_OK) status = iso_data_parallel_begin_no_sync(t.model);
        if (status == ISO_OK) status = trainer_backward(&t, step + 3);
        if (status == ISO_OK) status = iso_data_parallel_end_no_sync(t.model);
        if (status == ISO_OK) status = trainer_backward(&t, step);
        if (status == ISO_OK) status = iso_optimizer_step(t.optimizer);
    }
    iso_assert_ok(status);
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

Test(np2_zero_layers, backwards_may_be_added) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    iso_assert_all(accumulated_hash(3, ISO_SYNC_LAZY) == accumulated_hash(0, ISO_SYNC_LAZY));
    iso_assert_all(accumulated_hash(3, ISO_SYNC_BLOCKING) == accumulated_hash(0, ISO_SYNC_LAZY));
}
