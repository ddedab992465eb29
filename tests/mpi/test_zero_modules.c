// SPDX-License-Identifier: MIT
// ZeRO stage 2 under data_parallel: results of stage 1, ranks that are late or fail, and what it
// refuses.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/zero_fixture.h"

#include "base/base.h"

#include <isotherm/join.h>
#include <isotherm/layers.h>

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_zero_modules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_zero_modules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_zero_modules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np4_zero_modules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);

// ---- Modules ----------------------------------------------------------------------------------------

Test(np2_zero_modules, equals_stage_1_and_a_run_without) { zero_equals_stage_1(2, 0, 1); }
Test(np3_zero_modules, equals_stage_1_and_a_run_without) { zero_equals_stage_1(2, 0, 1); }
Test(np4_zero_modules, equals_stage_1_and_a_run_without) { zero_equals_stage_1(2, 0, 4); }

Test(np1_zero_modules, alone_a_rank_keeps_everything) {
    cr_assert_eq(zero_hash_of(trainer_default(), 2), zero_hash_of(trainer_default(), 0));
}

// ---- Late ranks -------------------------------------------------------------------------------------

enum { DEEP = 6, WIDE = 1024 };

static iso_status build_deep_mlp(iso_device *device, bool dropout, iso_module **out) {
    iso_rng rng = {.seed = 5};
    iso_module *m;
    char name[8];
    (void)dropout;
    ISO_TRY(iso_sequential_create(device, out));
    ISO_TRY(iso_flatten_create(device, &m));
    ISO_TRY(iso_sequential_add_take(*out, "flatten", m));
    for (int i = 0; i < DEEP; i++) {
        int64_t in = i == 0 ? (int64_t)TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE : WIDE;
        ISO_TRY(
            iso_linear_create(device, in, i == DEEP - 1 ? TRAINER_CLASSES : WIDE, true, &rng, &m));
        snprintf(name, sizeof(name), "fc%d", i);
        ISO_TRY(iso_sequential_add_take(*out, name, m));
    }
    return ISO_OK;
}

// Retries each forward that times out. late: rank 1 sleeps before a backward.
static uint64_t deep_hash(iso_comm *comm, bool late, bool *timed_out) {
    trainer_config config = trainer_default();
    iso_status status = ISO_OK;
    uint64_t hash = 0;
    trainer t;
    config.build = build_deep_mlp;
    config.hyper.lr = 1e-3;
    zero_set_stage(&config, 2);
    iso_assert_ok(trainer_create(&t, comm, &config));
    for (int step = 0; status == ISO_OK && step < 3; step++) { // no verdict meanwhile: ranks meet
        iso_tensor *out, *grad;
        double loss;
        iso_optimizer_zero_grad(t.optimizer);
        while ((status = trainer_forward(&t, step, &out)) == ISO_ERR_TIMEOUT) *timed_out = true;
        if (status == ISO_OK) status = iso_loss_compute(t.loss, out, t.labels, &loss, NULL, &grad);
        if (late && test_rank == 1 && step == 1) usleep(SLOW);
        if (status == ISO_OK) status = iso_module_backward(t.model, grad, NULL);
        if (status == ISO_OK) status = iso_optimizer_step(t.optimizer);
    }
    iso_assert_ok(status);
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

// A late rank does not end a run that retries its forwards.
Test(np2_zero_modules, a_late_rank_does_not_change_bits) {
    bool timed_out = false;
    uint64_t wanted = deep_hash(test_comm, false, &timed_out);
    iso_assert_all(!timed_out);
    iso_comm *comm = test_comm_with_limit(IMPATIENT);
    uint64_t hash = deep_hash(comm, true, &timed_out);
    iso_assert_all(hash == wanted);
    iso_assert_all(timed_out || test_rank == 1);
    iso_comm_destroy(&comm);
}

// A rank that fails before its step is reported at once: no rank waits for its values.
Test(np2_zero_modules, a_join_does_not_wait_for_a_failed_rank) {
    trainer_config config = trainer_default();
    iso_join_config how = {.mode = ISO_JOIN_THROW};
    iso_join *join;
    trainer t;
    config.build = build_deep_mlp;
    config.hyper.lr = 1e-3;
    zero_set_stage(&config, 2);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_join_begin(t.model, &how, &join));
    for (int step = 0; step < 2; step++) {
        iso_assert_ok(iso_join_next(join, t.batch_rows, true));
        iso_optimizer_zero_grad(t.optimizer);
        iso_status status = trainer_backward(&t, step);
        if (status == ISO_OK && (test_rank == 0 || step == 0))
            status = iso_optimizer_step(t.optimizer);
        if (step == 0) iso_assert_ok(status);
    }
    iso_status status = iso_join_next(join, test_rank == 0 ? t.batch_rows : -1, true);
    bool good = status == ISO_ERR_STATE;
    if (test_rank == 1) good = good && iso_optimizer_step(t.optimizer) == ISO_OK; // for the end
    iso_assert_all(good);
    iso_join_end(&join);
    trainer_destroy(&t);
}

// ---- What it refuses --------------------------------------------------------------------------------

Test(np2_zero_modules, other_stages_are_refused) {
    for (int stage = -1; stage <= 4; stage += 5) {
        trainer_config config = trainer_default();
        trainer t = {0};
        zero_set_stage(&config, stage);
        iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_ARG);
        cr_assert(strstr(iso_last_error()->message, "stage"), "%s", iso_last_error()->message);
        trainer_destroy(&t);
    }
}

Test(np2_zero_modules, ranks_must_have_one_stage) {
    trainer_config config = trainer_default();
    trainer t = {0};
    zero_set_stage(&config, test_rank + 1);
    iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_MISMATCH);
    trainer_destroy(&t);
}
