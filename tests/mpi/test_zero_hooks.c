// SPDX-License-Identifier: MIT
// ZeRO with communication hooks: the bits of a run with the hook and without ZeRO. Compiled for
// stage 1, and with -DZERO_STAGE=2 or 3 for these stages.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include "base/base.h"

#include <isotherm/clip.h>
#include <isotherm/comm_hook.h>
#include <isotherm/join.h>
#include <isotherm/resume.h>

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ZERO_STAGE
#define ZERO_STAGE 1
#endif

TestSuite(np1_zero_hooks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_zero_hooks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_zero_hooks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np4_zero_hooks, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 300);

enum { STEPS = 5, HOOKS = 8 };

static const iso_topk_config tenth = {.ratio = 0.1};
static const iso_powersgd_config low_rank = {.rank = 2, .start = 2, .least_saving = 1};
static iso_comm_hook hooks[HOOKS];

static void make_hooks(void) {
    // With NCCL a run without ZeRO has longer buckets, of which topk keeps other elements.
    if (getenv("ISO_TEST_DEVICE")) setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    const iso_comm_hook *rounded = NULL;
    iso_assert_ok(iso_comm_hook_parse("powersgd+bf16", &rounded));
    hooks[0] = iso_hook_f16;
    hooks[1] = iso_hook_bf16;
    hooks[2] = iso_hook_bf16_feedback;
    hooks[3] = iso_hook_int8;
    hooks[4] = iso_hook_topk(&tenth);
    hooks[5] = iso_hook_powersgd(&low_rank);
    hooks[6] = iso_hook_powersgd(&low_rank);
    hooks[6].wire = rounded->wire;
    hooks[7] = iso_hook_noop;
}

static bool weighs;
static void share_out(iso_data_parallel_config *dp) {
    dp->zero = ZERO_STAGE;
    dp->by_weight = weighs;
}
static void share_nothing(iso_data_parallel_config *dp) { dp->by_weight = weighs; }

static trainer_config config_of(const iso_comm_hook *hook, bool zero) {
    trainer_config config = trainer_default();
    config.optimizer = ISO_ADAM;
    config.hyper = iso_hyper_default(ISO_ADAM);
    config.hook = hook;
    config.adjust = zero ? share_out : share_nothing;
    return config;
}

static uint64_t hash_of(trainer_config config, bool zero) {
    uint64_t hash = 0;
    config.adjust = zero ? share_out : share_nothing;
    iso_assert_ok(trainer_run(test_comm, &config, STEPS, &hash));
    return hash;
}

// ---- The same bits ------------------------------------------------------------------------------------

// Buckets of several sizes, which end in zeros that only ZeRO needs.
static void equals_a_run_without(void) {
    const double buckets[] = {0, 0.002, 100};
    make_hooks();
    for (int h = 0; h + 1 < HOOKS; h++)
        for (int i = 0; i < 3; i++) {
            trainer_config config = config_of(&hooks[h], true);
            config.bucket_mb = buckets[i];
            config.find_unused = i == 1;
            uint64_t plain = hash_of(config, false);
            iso_assert_all(hash_of(config, true) == plain);
            config.sync = ISO_SYNC_BLOCKING;
            iso_assert_all(hash_of(config, true) == hash_of(config, false));
        }
}

Test(np2_zero_hooks, equals_a_run_without_zero) { equals_a_run_without(); }
Test(np3_zero_hooks, equals_a_run_without_zero) { equals_a_run_without(); }
Test(np4_zero_hooks, equals_a_run_without_zero) { equals_a_run_without(); }

// Hooks that round each element give these bits also if parameters are cut.
Test(np3_zero_hooks, pieces_do_not_matter) {
    make_hooks();
    for (int h = 0; h < 3; h++) {
        trainer_config config = config_of(&hooks[h], true);
        config.build = build_wide_mlp;
        uint64_t whole = hash_of(config, false);
        config.piece_mb = 0.01;
        iso_assert_all(hash_of(config, true) == whole);
    }
}

// Alone, no hook runs.
Test(np1_zero_hooks, alone_there_is_nothing_to_share) {
    make_hooks();
    for (int h = 0; h < HOOKS; h++) {
        trainer_config config = config_of(&hooks[h], true);
        iso_assert_all(hash_of(config, true) == hash_of(config, false));
    }
}

// ---- Other orders of calls ----------------------------------------------------------------------------

// Accumulates, drops a backward, and completes what is pending on rank 0 before the step.
static iso_status odd_step(trainer *t, int step, double *norm) {
    iso_optimizer_zero_grad(t->optimizer);
    ISO_TRY(iso_data_parallel_begin_no_sync(t->model));
    ISO_TRY(trainer_backward(t, step + 1));
    if (step % 2) iso_optimizer_zero_grad(t->optimizer);
    ISO_TRY(trainer_backward(t, step + 2));
    ISO_TRY(iso_data_parallel_end_no_sync(t->model));
    ISO_TRY(trainer_backward(t, step));
    if (test_rank == 0 && step != 2) ISO_TRY(iso_data_parallel_finish(t->model));
    if (step == 2) ISO_TRY(iso_clip_grad_norm(t->model, 1e6, 2, norm));
    return iso_optimizer_step(t->optimizer);
}

static uint64_t odd_hash(const iso_comm_hook *hook, bool zero, double *norm) {
    trainer_config config = config_of(hook, zero);
    uint64_t hash = 0;
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    // The ranks agree at the end: in between, one may wait for gradients of the others.
    iso_status status = ISO_OK;
    for (int step = 0; status == ISO_OK && step < STEPS; step++) status = odd_step(&t, step, norm);
    if (status == ISO_OK) status = trainer_hash(&t, &hash);
    iso_assert_ok(status);
    trainer_destroy(&t);
    return hash;
}

static void order_does_not_matter(void) {
    make_hooks();
    for (int h = 2; h < 6; h++) {
        double plain, zero;
        iso_assert_all(odd_hash(&hooks[h], true, &zero) == odd_hash(&hooks[h], false, &plain));
        double off = zero > plain ? zero - plain : plain - zero;
        iso_assert_all(plain > 0 && off < 1e-6 * plain);
    }
}

Test(np2_zero_hooks, order_of_calls_does_not_matter) { order_does_not_matter(); }
Test(np3_zero_hooks, order_of_calls_does_not_matter) { order_does_not_matter(); }

static iso_status step_of(void *user) { return iso_optimizer_step(((trainer *)user)->optimizer); }

static uint64_t joined_hash(const iso_comm_hook *hook, bool zero) {
    trainer_config config = config_of(hook, zero);
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
    }
    iso_join_end(&join);
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

Test(np2_zero_hooks, uneven_inputs_end_alike) {
    make_hooks();
    for (int h = 2; h < 5; h++)
        iso_assert_all(joined_hash(&hooks[h], true) == joined_hash(&hooks[h], false));
}

// ---- Weights ------------------------------------------------------------------------------------------

static uint64_t weighed_hash(const iso_comm_hook *hook, bool zero) {
    trainer_config config = config_of(hook, zero);
    uint64_t hash = 0;
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int step = 0; step < STEPS; step++) {
        iso_optimizer_zero_grad(t.optimizer);
        iso_assert_ok(iso_data_parallel_add_weight(t.model, 1 + (test_rank + step) % 3));
        iso_assert_ok(trainer_backward(&t, step));
        iso_assert_ok(iso_optimizer_step(t.optimizer));
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

Test(np3_zero_hooks, weights_divide_alike) {
    make_hooks();
    weighs = true;
    for (int h = 1; h < 6; h++)
        iso_assert_all(weighed_hash(&hooks[h], true) == weighed_hash(&hooks[h], false));
    weighs = false;
}

// ---- Saved and resumed --------------------------------------------------------------------------------

static void move_state(trainer *t, const char *path, bool load) {
    iso_state *state;
    int64_t step;
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(t->model, t->optimizer, state));
    iso_assert_ok(load ? iso_resume_load(test_comm, path, state, &step)
                       : iso_resume_save(test_comm, path, 2, state));
    if (load) iso_assert_ok(iso_training_loaded(t->model, t->optimizer));
    iso_state_destroy(&state);
}

// The state of a hook is saved with ZeRO, and goes on with it and without.
static void goes_on(const iso_comm_hook *hook) {
    char path[32]; // the programs of the three stages run at the same time
    snprintf(path, sizeof(path), "zero_hooks.%d.saved", ZERO_STAGE);
    trainer_config config = config_of(hook, true);
    uint64_t whole = hash_of(config, false), hash = 0;
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 2));
    move_state(&t, path, false);
    trainer_destroy(&t);
    for (int zero = 0; zero < 2; zero++) {
        config = config_of(hook, zero);
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        move_state(&t, path, true);
        for (int step = 2; step < STEPS; step++) iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(trainer_hash(&t, &hash));
        trainer_destroy(&t);
        iso_assert_all(hash == whole);
    }
    if (test_rank == 0) (void)iso_resume_remove(path);
}

Test(np3_zero_hooks, a_saved_run_goes_on_with_and_without_zero) {
    make_hooks();
    goes_on(&hooks[2]);
    goes_on(&hooks[3]);
    goes_on(&hooks[5]);
}
