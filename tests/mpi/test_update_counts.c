// SPDX-License-Identifier: MIT
// Parameters that have no gradient in some steps, under data_parallel: optimizers count the updates
// of each, as torch.optim does, however and whenever these are made.
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/unused_fixture.h"
#include "optim/optim_impl.h"
#include "optim/resume/resume_impl.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(np1_update_counts, .init = unused_setup, .fini = unused_teardown, .timeout = 60);
TestSuite(np2_update_counts, .init = unused_setup, .fini = unused_teardown, .timeout = 60);
TestSuite(np3_update_counts, .init = unused_setup, .fini = unused_teardown, .timeout = 60);
TestSuite(np4_update_counts, .init = unused_setup, .fini = unused_teardown, .timeout = 60);

// ---- As torch.optim, in every way of exchanging -----------------------------------------------------

static void run_through(const unused_case *c, iso_comm *comm, iso_sync sync, bool cut,
                        double *out) {
    unused_run r = unused_create(c, comm, sync, cut, ISO_F64);
    unused_train(&r, 0, UNUSED_STEPS);
    unused_values(&r, out);
    unused_destroy(&r);
}

static void is_torchs(void) {
    static const iso_sync sync[] = {ISO_SYNC_LAZY, ISO_SYNC_BLOCKING, ISO_SYNC_EXPLICIT};
    iso_comm *alone;
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    for (int c = 0; c < UNUSED_CASES; c++) {
        double first[BAG_ELEMENTS], got[BAG_ELEMENTS];
        run_through(&unused_cases[c], test_comm, ISO_SYNC_LAZY, false, first);
        unused_check(first, unused_cases[c].name);
        for (int way = 0; way < 6; way++) {
            run_through(&unused_cases[c], test_comm, sync[way % 3], way >= 3, got);
            iso_assert_all(memcmp(first, got, sizeof(got)) == 0);
        }
        if (test_size == 3) continue; // a third of three times a number may be another
        run_through(&unused_cases[c], alone, ISO_SYNC_LAZY, false, got);
        iso_assert_all(memcmp(first, got, sizeof(got)) == 0);
    }
    iso_comm_destroy(&alone);
}

Test(np1_update_counts, unused_parameters_are_updated_as_by_torch) { is_torchs(); }
Test(np2_update_counts, unused_parameters_are_updated_as_by_torch) { is_torchs(); }
Test(np3_update_counts, unused_parameters_are_updated_as_by_torch) { is_torchs(); }
Test(np4_update_counts, unused_parameters_are_updated_as_by_torch) { is_torchs(); }

// ---- Steps that are none ----------------------------------------------------------------------------

// A step that is skipped because gradients are not finite (zero_grad instead of step), and one that
// is refused.
static void others_count_nothing(iso_sync sync) {
    unused_run r = unused_create(&unused_cases[UNUSED_ADAM], test_comm, sync, true, ISO_F64);
    double got[BAG_ELEMENTS];
    unused_train(&r, 0, 6);
    iso_assert_ok(unused_backward(&r, 0));
    iso_optimizer_zero_grad(r.optimizer);
    unused_train(&r, 6, 8);
    iso_status again = iso_optimizer_step(r.optimizer);
    iso_assert_all(again == ISO_ERR_STATE);
    unused_train(&r, 8, UNUSED_STEPS);
    unused_values(&r, got);
    unused_check(got, "adam");
    iso__base_optimizer *core = iso__optimizer_innermost(r.optimizer);
    for (int i = 0; i < BAG_PARAMETERS; i++) {
        int64_t expected = 0;
        for (unused_now.step = 0; unused_now.step < UNUSED_STEPS; unused_now.step++)
            expected += unused_has_gradient(i);
        iso_assert_all(core->slot[i].step == expected);
    }
    iso_assert_all(iso_optimizer_hyper(r.optimizer)->step == UNUSED_STEPS);
    unused_destroy(&r);
}

Test(np1_update_counts, a_step_that_is_skipped_or_refused_counts_nothing) {
    others_count_nothing(ISO_SYNC_LAZY);
}
Test(np2_update_counts, a_step_that_is_skipped_or_refused_counts_nothing) {
    others_count_nothing(ISO_SYNC_LAZY);
    others_count_nothing(ISO_SYNC_BLOCKING);
}

static iso_status fail_update(iso_optimizer *optimizer, int i, const void *gradient, double scale,
                              const iso_hyper *hyper) {
    (void)optimizer, (void)i, (void)gradient, (void)scale, (void)hyper;
    return iso_error_set(ISO_ERR_IO, "the update failed");
}

// A step that has begun counts, although its update fails.
Test(np2_update_counts, a_step_that_fails_counts) {
    unused_run r =
        unused_create(&unused_cases[UNUSED_ADAM], test_comm, ISO_SYNC_BLOCKING, true, ISO_F64);
    iso__base_optimizer *core = iso__optimizer_innermost(r.optimizer);
    const iso_optimizer_ops *healthy = core->base.ops;
    iso__rule failing = *iso__rule_of(core);
    failing.ops.update = fail_update;
    unused_train(&r, 0, 3);
    iso_assert_ok(unused_backward(&r, 3));
    core->base.ops = &failing.ops;
    iso_status status = iso_optimizer_step(r.optimizer);
    core->base.ops = healthy;
    iso_assert_all(status == ISO_ERR_IO && iso_optimizer_hyper(r.optimizer)->step == 4);
    unused_destroy(&r);
}

// What step() saw is what its update uses, whatever is changed before the next forward makes it.
Test(np2_update_counts, a_pending_update_goes_by_its_own_step) {
    unused_run r =
        unused_create(&unused_cases[UNUSED_ADAM], test_comm, ISO_SYNC_LAZY, true, ISO_F64);
    double got[BAG_ELEMENTS];
    iso_hyper *hyper = iso_optimizer_hyper(r.optimizer);
    for (int step = 0; step < UNUSED_STEPS; step++) {
        hyper->lr = unused_cases[UNUSED_ADAM].hyper.lr;
        hyper->beta1 = unused_cases[UNUSED_ADAM].hyper.beta1;
        unused_train(&r, step, step + 1);
        hyper->lr = 77;
        hyper->beta1 = 0.1;
        hyper->step += 3; // as a schedule may be put forward
    }
    unused_values(&r, got);
    unused_check(got, "adam");
    unused_destroy(&r);
}

Test(np2_update_counts, steps_allocate_nothing) {
    unused_run r =
        unused_create(&unused_cases[UNUSED_ADAMW], test_comm, ISO_SYNC_LAZY, true, ISO_F64);
    long long before, after;
    unused_train(&r, 0, 6);
    iso_memory_balance(NULL, NULL, &before);
    unused_train(&r, 6, UNUSED_STEPS);
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before);
    unused_destroy(&r);
}

// ---- Saved state ------------------------------------------------------------------------------------

static iso_state *state_of(unused_run *r) {
    iso_state *state;
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(r->model, r->optimizer, state));
    return state;
}

// Takes from the list what earlier versions did not have.
static void make_old(iso_state *state) {
    int kept = 0;
    iso__array *array = state->array[ISO_STATE_SHARED];
    for (int i = 0; i < state->count[ISO_STATE_SHARED]; i++) {
        if (strstr(array[i].name, "/state.") && strstr(array[i].name, ".step"))
            iso__free((void *)array[i].shape);
        else
            array[kept++] = array[i];
    }
    iso_assert_all(kept == state->count[ISO_STATE_SHARED] - BAG_PARAMETERS);
    state->count[ISO_STATE_SHARED] = kept;
}

static void save(unused_run *r, bool old) {
    iso_state *state = state_of(r);
    if (old) make_old(state);
    iso_assert_ok(iso_resume_save(test_comm, resume_path(), 6, state));
    iso_state_destroy(&state);
}

static void load(unused_run *r) {
    int64_t step = 0;
    iso_state *state = state_of(r);
    iso_assert_ok(iso_resume_load(test_comm, resume_path(), state, &step));
    iso_assert_ok(iso_training_loaded(r->model, r->optimizer));
    iso_assert_all(step == 6);
    iso_state_destroy(&state);
}

// Into a run with another past, in the middle of which updates are pending.
static void goes_on(const unused_case *c) {
    double got[BAG_ELEMENTS];
    unused_run first = unused_create(c, test_comm, ISO_SYNC_LAZY, true, ISO_F64);
    unused_train(&first, 0, 6);
    save(&first, false);
    unused_destroy(&first);
    unused_run second = unused_create(c, test_comm, ISO_SYNC_LAZY, true, ISO_F64);
    unused_train(&second, 8, UNUSED_STEPS);
    load(&second);
    unused_train(&second, 6, UNUSED_STEPS);
    unused_values(&second, got);
    unused_check(got, c->name);
    unused_destroy(&second);
}

static void all_go_on(void) {
    for (int c = 0; c < UNUSED_CASES; c++) goes_on(&unused_cases[c]);
}

Test(np1_update_counts, resumed_runs_go_on_with_the_counts) { all_go_on(); }
Test(np3_update_counts, resumed_runs_go_on_with_the_counts) { all_go_on(); }

// Files without counts are of versions in which all parameters had the count of their group.
Test(np2_update_counts, files_without_counts_mean_those_of_the_groups) {
    unused_run first =
        unused_create(&unused_cases[UNUSED_ADAMW], test_comm, ISO_SYNC_LAZY, false, ISO_F64);
    unused_train(&first, 0, 6);
    iso_optimizer_group_hyper(first.optimizer, 1)->step = 9; // to tell the groups apart
    save(&first, true);
    unused_destroy(&first);
    unused_run second =
        unused_create(&unused_cases[UNUSED_ADAMW], test_comm, ISO_SYNC_LAZY, false, ISO_F64);
    unused_train(&second, 0, 2);
    load(&second);
    iso__base_optimizer *core = iso__optimizer_innermost(second.optimizer);
    for (int i = 0; i < BAG_PARAMETERS; i++)
        iso_assert_all(core->slot[i].step == (strchr("025", '0' + i) ? 9 : 6));
    unused_destroy(&second);
}
