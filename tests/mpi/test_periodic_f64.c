// SPDX-License-Identifier: MIT
// Periodic training with parameters of f64 and of both types: they travel and merge in their own
// type.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/types_fixture.h"

#include "optim/resume/resume_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_periodic_f64, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_periodic_f64, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_periodic_f64, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_periodic_f64, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = 24, BATCHES = 4, VARIANTS = 6, HEAT = 5 };
// Of f64 runs: what is left if nothing on the way was rounded to f32.
#define F64_ROUNDING 1e-12

// Runs that between them use every path of the engine.
static daso_case variant(int i) {
    daso_case c = i == HEAT ? heat_case_default(STEPS / BATCHES) : daso_case_default(STEPS);
    c.ranks_per_node = 2;
    c.heat_config.max_global_skips = 4;
    c.heat_config.sending_chunk_size = 100;
    c.daso.warmup_steps = c.daso.cooldown_steps = 3;
    c.daso.global_skip = 5;
    c.daso.batches_to_wait = 3;
    c.daso.wire = i == 0 ? ISO_WIRE_BF16 : ISO_WIRE_F32;
    c.daso.merge = i == 1 ? ISO_MERGE_HEAT : ISO_MERGE_PROGRESS;
    c.daso.state = i == 1   ? ISO_STATE_SYNC_AVERAGE
                   : i == 2 ? ISO_STATE_SYNC_RESET
                            : ISO_STATE_SYNC_KEEP;
    if (i == 2) c.daso.local_skip = 3;
    if (i == 3) c.daso.unit = ISO_SCOPE_RANK;
    if (i == 4) c.daso.batches_to_wait = 0;
    return c;
}

static void open_run(trainer *t, const daso_case *c) {
    iso_assert_ok(daso_open(t, MPI_COMM_WORLD, c));
    if (c->heat) iso_assert_ok(iso_daso_heat_set_last_batch(t->optimizer, BATCHES - 1));
}

// ---- The model in double precision ----------------------------------------------------------------

static void follows_model(const daso_case *c, double most) {
    trainer t;
    daso_model m;
    double apart = 0;
    open_run(&t, c);
    iso_assert_ok(daso_model_open(&m, &t, c));
    for (int step = 0; step < (int)c->daso.total_steps; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_daso_step(&m, &c->daso, step));
        iso_assert_all(daso_follows_within(&t, &m, most, "a step"));
        apart = fmax(apart, model_spread(&m));
    }
    iso_assert_ok(iso_daso_finish(t.optimizer));
    iso_assert_all(daso_equal(&t) && (test_size <= c->ranks_per_node || apart > 1e-3));
    model_destroy(&m);
    daso_close(&t);
}

static void local_sgd_equals_model(void) {
    daso_case c = daso_case_default(22);
    c.daso = iso_local_sgd_config(22, 5);
    c.train.build = build_smooth_wide;
    follows_model(&c, F64_ROUNDING);
    c.train.build = build_smooth_mixed;
    follows_model(&c, DASO_ROUNDING);
}
Test(np1_periodic_f64, local_sgd_equals_model) { local_sgd_equals_model(); }
Test(np2_periodic_f64, local_sgd_equals_model) { local_sgd_equals_model(); }
Test(np3_periodic_f64, local_sgd_equals_model) { local_sgd_equals_model(); }
Test(np4_periodic_f64, local_sgd_equals_model) { local_sgd_equals_model(); }

static void daso_equals_model(void) {
    for (int i = 0; i < HEAT; i++) {
        daso_case c = variant(i);
        c.train.build = build_smooth_wide;
        follows_model(&c, F64_ROUNDING); // with bf16 too, which is for f32
    }
}
Test(np2_periodic_f64, daso_equals_model) { daso_equals_model(); }
Test(np3_periodic_f64, daso_equals_model) { daso_equals_model(); }
Test(np4_periodic_f64, daso_equals_model) { daso_equals_model(); }

static void post_local_equals_model(void) {
    daso_case c = daso_case_default(23);
    c.daso = iso_post_local_sgd_config(23, 6, 5);
    c.train.build = build_smooth_wide;
    c.train.optimizer = ISO_ADAM;
    c.train.hyper = iso_hyper_default(ISO_ADAM);
    c.train.hyper.eps = 1e-4;
    c.daso.state = ISO_STATE_SYNC_AVERAGE;
    follows_model(&c, F64_ROUNDING);
}
Test(np3_periodic_f64, post_local_equals_model) { post_local_equals_model(); }

// ---- Each type as in a run of its own -------------------------------------------------------------

typedef struct values {
    double x[4096];
    bool f64[4096];
    int count;
} values;

static void read_values(trainer *t, values *out) {
    iso_parameter_list list;
    iso_assert_ok(iso_data_parallel_finish(t->model));
    iso_assert_ok(iso_module_parameters(t->model, &list));
    out->count = 0;
    for (int i = 0; i < list.count; i++) {
        iso_tensor *value = list.item[i]->value;
        bool f64 = iso_tensor_dtype(value) == ISO_F64;
        void *data;
        iso_assert_ok(iso_tensor_map(value, ISO_READ, &data));
        for (int64_t k = 0; k < iso_tensor_count(value); k++) {
            out->f64[out->count] = f64;
            out->x[out->count++] = f64 ? ((double *)data)[k] : (double)((float *)data)[k];
        }
        iso_assert_ok(iso_tensor_unmap(value));
    }
    iso_parameter_list_destroy(&list);
}

// Parameters that nothing couples to each other: they drift instead of learning.
static void drift(daso_case c, iso_status (*build)(iso_device *, bool, iso_module **),
                  values *out) {
    trainer t;
    c.train.build = build;
    c.train.hyper.lr = 0;
    open_run(&t, &c);
    for (int step = 0; step < STEPS; step++) {
        iso_assert_ok(daso_drift(&t, 0.013f * (float)(test_rank / 2 + 1) * (float)(step % 5 + 1)));
        iso_assert_ok(trainer_step(&t, step, NULL));
    }
    read_values(&t, out);
    daso_close(&t);
}

static void each_type_is_as_alone(void) {
    static values mixed, f32, f64;
    for (int i = 0; i < VARIANTS; i++) {
        daso_case c = variant(i);
        bool same = true, both[2] = {false, false};
        drift(c, build_smooth_mixed, &mixed);
        drift(c, build_smooth, &f32);
        drift(c, build_smooth_wide, &f64);
        for (int k = 0; k < mixed.count; k++) {
            double alone = mixed.f64[k] ? f64.x[k] : f32.x[k];
            same = same && memcmp(&mixed.x[k], &alone, sizeof(alone)) == 0;
            both[mixed.f64[k]] = true;
        }
        if (!same) fprintf(stderr, "variant %d\n", i);
        iso_assert_all(same && both[0] && both[1]);
    }
}
Test(np1_periodic_f64, each_type_is_as_alone) { each_type_is_as_alone(); }
Test(np2_periodic_f64, each_type_is_as_alone) { each_type_is_as_alone(); }
Test(np3_periodic_f64, each_type_is_as_alone) { each_type_is_as_alone(); }
Test(np4_periodic_f64, each_type_is_as_alone) { each_type_is_as_alone(); }

// ---- Evaluation -----------------------------------------------------------------------------------

// Shows the mean in double precision, and gives every rank its own parameters back.
static void evaluation_shows_the_mean(void) {
    daso_case c = daso_case_default(STEPS);
    c.daso = iso_local_sgd_config(STEPS, 20);
    c.train.build = build_smooth_wide;
    trainer t;
    daso_model m;
    uint64_t before, after;
    double difference = 1;
    open_run(&t, &c);
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < 7; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_daso_step(&m, &c.daso, step));
    }
    iso_assert_ok(daso_own_hash(&t, &before));
    iso_assert_ok(iso_module_train(t.model, false));
    iso_assert_ok(model_difference(&m, -1, t.model, &difference));
    iso_assert_all(difference < F64_ROUNDING && daso_equal(&t));
    iso_assert_ok(iso_module_train(t.model, true));
    iso_assert_ok(daso_own_hash(&t, &after));
    iso_assert_all(before == after);
    model_destroy(&m);
    daso_close(&t);
}
Test(np2_periodic_f64, evaluation_shows_the_mean) { evaluation_shows_the_mean(); }
Test(np3_periodic_f64, evaluation_shows_the_mean) { evaluation_shows_the_mean(); }

// ---- Saved state ----------------------------------------------------------------------------------

static uint64_t end_of(const daso_case *c, int stop) {
    trainer t;
    uint64_t hash = 0;
    open_run(&t, c);
    iso_assert_ok(trainer_go_on(&t, 0, stop));
    if (stop > 0) {
        iso_assert_ok(daso_exchange_state(&t, stop, true));
        daso_close(&t);
        open_run(&t, c);
        iso_assert_ok(trainer_go_on(&t, 0, stop % 3)); // a past of its own
        iso_assert_ok(daso_exchange_state(&t, stop, false));
    }
    iso_assert_ok(trainer_go_on(&t, stop, STEPS));
    iso_assert_ok(daso_own_hash(&t, &hash));
    daso_close(&t);
    return hash;
}

// Stopped with and without an exchange under way.
static void goes_on(void) {
    for (int i = 0; i < VARIANTS; i++)
        for (int mixed = 0; mixed < 2; mixed++) {
            daso_case c = variant(i);
            c.train.build = mixed ? build_smooth_mixed : build_smooth_wide;
            uint64_t expected = end_of(&c, 0);
            for (int stop = 9; stop <= 12; stop += 3) iso_assert_all(end_of(&c, stop) == expected);
        }
}
Test(np2_periodic_f64, goes_on_from_a_saved_state) { goes_on(); }
Test(np3_periodic_f64, goes_on_from_a_saved_state) { goes_on(); }

// What a run of f32 saves is what versions before f64 saved: names, types and sizes.
Test(np2_periodic_f64, f32_runs_save_what_they_saved) {
    static const char *const expected[] = {"daso/numbers", "daso/figures",  "daso/sent",
                                           "daso/mean",    "daso/schedule", "daso/policy",
                                           "daso/reason"};
    static const char *const type[] = {"I64", "F64", "F32", "F32", "U8", "U8", "U8"};
    static const int64_t count[] = {16, 8, 0, 0, 152, 104, 128};
    daso_case c = variant(3);
    trainer t;
    iso_state *state;
    int64_t elements;
    open_run(&t, &c);
    free(daso_values(&t, &elements));
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(t.model, t.optimizer, state));
    int next = 0;
    for (int i = 0; i < state->count[ISO_STATE_OWN]; i++) {
        const iso__array *a = &state->array[ISO_STATE_OWN][i];
        if (strncmp(a->name, "daso/", 5) != 0) continue;
        iso_assert_all(next < 7 && strcmp(a->name, expected[next]) == 0);
        bool same = strcmp(a->dtype, type[next]) == 0 && a->ndim == 1 &&
                    a->shape[0] == (count[next] ? count[next] : elements);
        if (!same) fprintf(stderr, "%s: %s %lld\n", a->name, a->dtype, (long long)a->shape[0]);
        iso_assert_all(same);
        next++;
    }
    iso_assert_all(next == 7);
    iso_state_destroy(&state);
    daso_close(&t);
}

// ---- Wrong use ------------------------------------------------------------------------------------

Test(np2_periodic_f64, ranks_of_different_types_are_named) {
    daso_case c = daso_case_default(STEPS);
    trainer t;
    c.train.build = test_rank == 1 ? build_smooth_mixed : build_smooth;
    iso_status status = daso_open(&t, MPI_COMM_WORLD, &c);
    iso_assert_all(status == ISO_ERR_MISMATCH);
    const char *said = iso_last_error()->message;
    bool named = strstr(said, "fc1") && strstr(said, "f64") && strstr(said, "rank");
    if (!named) fprintf(stderr, "%s\n", said);
    iso_assert_all(named);
    daso_close(&t);
}

Test(np2_periodic_f64, state_of_another_type_is_refused) {
    daso_case c = variant(3);
    trainer t;
    open_run(&t, &c);
    iso_assert_ok(trainer_go_on(&t, 0, 9));
    iso_assert_ok(daso_exchange_state(&t, 9, true));
    daso_close(&t);
    c.train.build = build_smooth_wide;
    open_run(&t, &c);
    iso_assert_all(daso_exchange_state(&t, 9, false) == ISO_ERR_MISMATCH);
    daso_close(&t);
}
