// SPDX-License-Identifier: MIT
// A static set of unused parameters: the first exchange finds it, later ones make no reduction.
#include "common/any_device.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "parallel/reducer/reducer_calls.h"

#include <criterion/criterion.h>
#include <isotherm/reducer.h>
#include <isotherm/resume.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_unused_static, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_unused_static, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_unused_static_resume, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_unused_static, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static void setup_nodes(void) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    test_mpi_setup();
}
TestSuite(np3_unused_static_nodes, .init = setup_nodes, .fini = test_mpi_teardown, .timeout = 60);

// Reductions for the largest number, by which ranks learn what was used.
static int largest;

int MPI_Iallreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request) {
    largest += op == MPI_MAX;
    return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

// ---- A model of arrays ------------------------------------------------------------------------------

// "all" is used by all ranks, "one" by the last rank, "none" by none, "own" is not exchanged and
// used in every other step, "cut" has pieces and is used by all.
enum { ALL, ONE, UNUSED, OWN, CUT, PARAMS, ROW = 16, COUNT = 64 * ROW, STEPS = 6 };
static const char *const names[PARAMS] = {"all", "one", "none", "own", "cut"};
static float value[PARAMS][COUNT];

// An update also subtracts 1, so every update shows.
static iso_status descend(const iso_reducer_update *u) {
    float *x = u->value;
    const float *g = u->gradient;
    for (size_t k = 0; k < u->count; k++) x[k] -= 1 + 0.125f * (g[k] * (float)u->scale);
    return ISO_OK;
}

static iso_reducer *create(iso_sync sync, iso_unused unused, bool zero) {
    iso_reducer_param params[PARAMS];
    iso_reducer_config config = {
        .sync = sync, .unused = unused, .piece_bytes = COUNT, .zero = zero};
    iso_reducer *r;
    for (int i = 0; i < PARAMS; i++) {
        for (int k = 0; k < COUNT; k++) value[i][k] = (float)(i + 1);
        params[i] = (iso_reducer_param){.name = names[i],
                                        .value = value[i],
                                        .count = COUNT,
                                        .row = i == CUT ? ROW : 0,
                                        .layer = i,
                                        .local = i == OWN};
    }
    iso_assert_ok(iso_reducer_create(test_comm, params, PARAMS, &config, &r));
    iso_assert_ok(iso_reducer_set_update(r, descend, 0, NULL));
    return r;
}

static bool uses(int step, int i) {
    return i == ALL || i == CUT || (i == ONE && test_rank == test_size - 1) ||
           (i == OWN && step % 2 == 0);
}

// What differs from `uses` in a step.
typedef struct change {
    int more, less; // a parameter, or -1
} change;
static const change as_ever = {-1, -1};

static iso_status one_step(iso_reducer *r, int step, change c) {
    iso_status status = iso_reducer_finish(r);
    iso_reducer_zero_grad(r);
    for (int i = PARAMS - 1; i >= 0 && status == ISO_OK; i--) {
        if ((!uses(step, i) && i != c.more) || i == c.less) continue;
        for (int k = 0; k < COUNT; k++)
            ((float *)iso_reducer_grad(r, i))[k] = (float)((k + i * step + test_rank) % 9);
        status = iso_reducer_grad_ready(r, i);
    }
    return status == ISO_OK ? iso_reducer_step(r, "") : status;
}

// The values after all steps.
static void train(iso_sync sync, iso_unused unused, bool zero, float out[PARAMS][COUNT]) {
    iso_reducer *r = create(sync, unused, zero);
    largest = 0;
    for (int step = 0; step < STEPS; step++) iso_assert_ok(one_step(r, step, as_ever));
    iso_assert_ok(iso_reducer_finish(r));
    memcpy(out, value, sizeof(value));
    iso_reducer_destroy(&r);
}

static void only_the_first_step_reduces(void) {
    static float expected[PARAMS][COUNT], found[PARAMS][COUNT];
    for (int n = 0; n < 3; n++) {
        iso_sync sync = n == 1 ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
        train(sync, ISO_UNUSED_NEGOTIATE, n == 2, expected);
        iso_assert_all(largest == (test_size > 1 ? STEPS : 0));
        train(sync, ISO_UNUSED_STATIC, n == 2, found);
        iso_assert_all(largest == (test_size > 1 ? 1 : 0));
        iso_assert_all(memcmp(found, expected, sizeof(found)) == 0);
        iso_assert_all(found[UNUSED][7] == UNUSED + 1); // no update
    }
}

Test(np1_unused_static, only_the_first_step_reduces) { only_the_first_step_reduces(); }
Test(np2_unused_static, only_the_first_step_reduces) { only_the_first_step_reduces(); }
Test(np3_unused_static, only_the_first_step_reduces) { only_the_first_step_reduces(); }

// Each scope has a set of its own, which lasts. The last rank is alone on its node.
Test(np3_unused_static_nodes, each_scope_asks_once) {
    iso_reducer *r = create(ISO_SYNC_LAZY, ISO_UNUSED_STATIC, false);
    for (int step = 0; step < STEPS; step++) {
        iso_scope scope = step % 3 == 1 ? ISO_SCOPE_NODE : ISO_SCOPE_WORLD;
        iso_assert_ok(iso__reducer_set_scope(r, scope));
        largest = 0; // a change of scope is an agreement
        iso_assert_ok(one_step(r, step, as_ever));
        iso_assert_all(largest == (step == 0 || (step == 1 && test_rank < 2)));
    }
    iso_assert_ok(iso_reducer_finish(r));
    iso_reducer_destroy(&r);
}

// ---- What does not suit the set -----------------------------------------------------------------------

// In a late step, on the last rank; the others find nothing wrong, and need not wait.
static void refuse(iso_sync sync, change c, const char *word) {
    iso_reducer *r = create(sync, ISO_UNUSED_STATIC, false);
    bool here = test_rank == test_size - 1;
    char rank[32];
    snprintf(rank, sizeof(rank), "on rank %d", test_rank);
    for (int step = 0; step < STEPS; step++) {
        bool odd = here && step == 3;
        iso_status status = one_step(r, step, odd ? c : as_ever);
        iso_assert_all(status == (odd ? ISO_ERR_STATE : ISO_OK));
        const char *said = odd ? iso_last_error()->message : "";
        iso_assert_all(!odd || (strstr(said, word) && strstr(said, rank) &&
                                strstr(said, "ISO_UNUSED_NEGOTIATE")));
    }
    iso_assert_ok(iso_reducer_finish(r));
    iso_reducer_destroy(&r);
}

static void other_use_is_an_error(void) {
    for (int sync = ISO_SYNC_LAZY; sync <= ISO_SYNC_BLOCKING; sync++) {
        refuse((iso_sync)sync, (change){UNUSED, -1}, "\"none\" got a gradient");
        refuse((iso_sync)sync, (change){-1, ALL}, "\"all\" got no gradient");
        refuse((iso_sync)sync, (change){-1, CUT}, "\"cut\" got no gradient");
        refuse((iso_sync)sync, (change){-1, ONE}, "\"one\" got no gradient");
    }
}

Test(np1_unused_static, other_use_is_an_error) { other_use_is_an_error(); }
Test(np2_unused_static, other_use_is_an_error) { other_use_is_an_error(); }
Test(np3_unused_static, other_use_is_an_error) { other_use_is_an_error(); }

// What another rank used, and a rank without a batch.
Test(np3_unused_static, these_are_no_errors) {
    iso_reducer *r = create(ISO_SYNC_LAZY, ISO_UNUSED_STATIC, false);
    iso_assert_ok(one_step(r, 0, as_ever));
    iso_assert_ok(one_step(r, 1, (change){test_rank == 0 ? ONE : -1, -1}));
    if (test_rank == 1) {
        iso_assert_ok(iso_reducer_shadow(r));
        iso_assert_ok(iso_reducer_step(r, ""));
    } else {
        iso_assert_ok(one_step(r, 2, as_ever));
        iso_assert_ok(ISO_OK);
    }
    iso_assert_ok(one_step(r, 3, as_ever));
    iso_assert_ok(iso_reducer_finish(r));
    iso_reducer_destroy(&r);
}

// ---- DataParallel -----------------------------------------------------------------------------------

// fc2.bias is frozen after wrapping, so no rank has its gradient.
static iso_parameter *create_frozen(bool once, trainer *t) {
    trainer_config config = trainer_default();
    config.optimizer = ISO_ADAM;
    config.hyper = iso_hyper_default(ISO_ADAM);
    config.find_unused = !once;
    config.static_unused = once;
    iso_assert_ok(trainer_create(t, test_comm, &config));
    iso_module *net = iso_data_parallel_module(t->model);
    iso_parameter *bias = net->child[net->child_count - 1]->parameter[1];
    bias->requires_grad = false;
    return bias;
}

static uint64_t train_frozen(bool once, int thaws, iso_status *last) {
    trainer t;
    uint64_t hash;
    iso_parameter *bias = create_frozen(once, &t);
    largest = 0;
    iso_assert_ok(trainer_train(&t, 5));
    int reductions = largest;
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(reductions == (once ? 1 : 5));
    if (test_rank < thaws) bias->requires_grad = true;
    iso_optimizer_zero_grad(t.optimizer);
    *last = trainer_backward(&t, 5);
    trainer_destroy(&t);
    return hash;
}

Test(np2_unused_static, data_parallel_equals_negotiating) {
    iso_status status;
    uint64_t expected = train_frozen(false, 0, &status);
    iso_assert_ok(status);
    iso_assert_all(train_frozen(true, 0, &status) == expected);
    iso_assert_ok(status);
    iso_assert_all(train_frozen(true, 1, &status) == expected);
    iso_assert_all(status == (test_rank == 0 ? ISO_ERR_STATE : ISO_OK));
    if (test_rank == 0)
        cr_expect(strstr(iso_last_error()->message, "bias\" got a gradient on rank 0"));
}

static iso_state *state_of(trainer *t) {
    iso_state *state;
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(t->model, t->optimizer, state));
    return state;
}

// A resumed run asks once more, and goes on to the same bits.
Test(np2_unused_static_resume, resumed_run_has_the_same_bits) {
    trainer t;
    uint64_t expected, hash;
    int64_t step;
    create_frozen(true, &t);
    iso_assert_ok(trainer_train(&t, 3));
    iso_state *state = state_of(&t);
    iso_assert_ok(iso_resume_save(test_comm, resume_path(), 3, state));
    iso_state_destroy(&state);
    for (int k = 3; k < 6; k++) iso_assert_ok(trainer_step(&t, k, NULL));
    iso_assert_ok(trainer_hash(&t, &expected));
    trainer_destroy(&t);
    create_frozen(true, &t);
    state = state_of(&t);
    iso_assert_ok(iso_resume_load(test_comm, resume_path(), state, &step));
    iso_state_destroy(&state);
    iso_assert_ok(iso_training_loaded(t.model, t.optimizer));
    largest = 0;
    for (int k = (int)step; k < 6; k++) iso_assert_ok(trainer_step(&t, k, NULL));
    iso_assert_ok(iso_data_parallel_finish(t.model));
    int reductions = largest;
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == expected && reductions == 1);
    trainer_destroy(&t);
}
