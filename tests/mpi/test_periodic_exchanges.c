// SPDX-License-Identifier: MIT
// The engine of periodic synchronisation with its parameters in several exchanges: each behaves as
// if it were alone, whatever else is under way.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"

#include "optim/periodic/periodic.h"
#include "optim/resume/resume_impl.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_periodic_exchanges, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_periodic_exchanges, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_periodic_exchanges, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_periodic_exchanges, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 24, PERIOD = 6 };

// ---- An engine whose parameters drift -------------------------------------------------------------

// Nothing couples one parameter to another, so each exchange can be compared on its own.
typedef struct run {
    trainer t;
    iso__periodic engine;
    int64_t age; // of every merge
    int offset;  // of the sends of exchange 0; exchange k sends k * stride later
    int stride;
} run;

static void open_run(run *r, const iso__periodic_config *config, int per_node) {
    daso_case c = daso_case_default(STEPS);
    char text[16];
    snprintf(text, sizeof(text), "%d", per_node);
    setenv("ISO_RANKS_PER_NODE", text, 1);
    c.train.rows = 2 * test_size;
    memset(&r->engine, 0, sizeof(r->engine));
    iso_assert_ok(trainer_create(&r->t, test_comm, &c.train));
    iso_optimizer *inner = r->t.optimizer;
    r->t.optimizer = NULL;
    iso_assert_ok(iso__periodic_init(&r->engine, inner, r->t.model, config, ISO_OK, ""));
    iso_assert_ok(iso__periodic_set_scope(&r->engine, ISO_SCOPE_NODE));
}

static void close_run(run *r) {
    iso__periodic_destroy(&r->engine);
    trainer_destroy(&r->t);
}

// Another exchange may still be under way when one is sent or merged.
static iso__sync_plan plan_of(const run *r, int step) {
    iso__sync_plan plan = {.next = ISO_SCOPE_NODE};
    for (int k = 0; k < r->engine.exchange_count; k++) {
        int since = step - r->offset - k * r->stride;
        if (since >= (int)r->age && (since - (int)r->age) % PERIOD == 0)
            plan.action[plan.count++] =
                (iso__action){.kind = ISO__MERGE, .exchange = k, .age = r->age, .weight = r->age};
        if (since >= 0 && since % PERIOD == 0)
            plan.action[plan.count++] =
                (iso__action){.kind = ISO__SEND, .exchange = k, .group = ISO__ALL_GROUPS};
    }
    return plan;
}

static iso_status run_step(run *r, int step) {
    iso__sync_plan plan = plan_of(r, step);
    float node = (float)r->engine.layout->node_index;
    ISO_TRY(daso_drift(&r->t, 0.01f * (node + 1) * (float)(step % 5 + 1)));
    return iso__periodic_run(&r->engine, &plan, ISO__PAYLOAD_WIRE);
}

static iso_status run_steps(run *r, int first, int last, bool holds) {
    for (int step = first; step < last; step++) {
        ISO_TRY(run_step(r, step));
        if (holds && step % 4 == 1) ISO_TRY(iso__periodic_hold(&r->engine));
    }
    return ISO_OK;
}

// The parameters that STEPS steps end with, to be freed.
static float *values_of(const iso__periodic_config *config, int per_node, run like, bool holds) {
    static run r;
    int64_t count;
    r.age = like.age, r.offset = like.offset, r.stride = like.stride;
    open_run(&r, config, per_node);
    iso_assert_ok(run_steps(&r, 0, STEPS, holds));
    float *values = daso_values(&r.t, &count);
    iso_assert_all(
        values && count == (int64_t)iso__periodic_flat(&r.engine, 0, r.engine.parameter_count).f32);
    close_run(&r);
    return values;
}

static iso__periodic_config config_of(int exchanges, const iso__codec *wire, iso_merge merge) {
    return (iso__periodic_config){
        .topology = ISO_TOPOLOGY_DEFAULT,
        .wire = {.wire = wire, .differences = wire != &iso__codec_f32},
        .full = {.wire = &iso__codec_f32},
        .merge = merge,
        .state = ISO_STATE_SYNC_KEEP,
        .exchanges = exchanges,
    };
}

// ---- Equivalences ---------------------------------------------------------------------------------

static bool equal_values(const float *a, const float *b, size_t from, size_t count) {
    return memcmp(a + from, b + from, count * sizeof(float)) == 0;
}

static size_t elements_of(const iso__periodic_config *config) {
    static run r;
    open_run(&r, config, 1);
    size_t elements = iso__periodic_flat(&r.engine, 0, r.engine.parameter_count).f32;
    close_run(&r);
    return elements;
}

static void in_step_they_are_one(int per_node, const iso__codec *wire, iso_merge merge) {
    run like = {.age = 2, .offset = 1, .stride = 0};
    iso__periodic_config whole = config_of(0, wire, merge);
    size_t elements = elements_of(&whole);
    float *one = values_of(&whole, per_node, like, false);
    for (int exchanges = 2; exchanges <= 3; exchanges++)
        for (int holds = 0; holds < 2; holds++) {
            iso__periodic_config parts = config_of(exchanges, wire, merge);
            float *several = values_of(&parts, per_node, like, holds);
            iso_assert_all(equal_values(one, several, 0, elements));
            free(several);
        }
    free(one);
}

Test(np1_periodic_exchanges, in_step_they_are_one) {
    in_step_they_are_one(1, &iso__codec_f32, ISO_MERGE_PROGRESS);
}
Test(np2_periodic_exchanges, in_step_they_are_one) {
    in_step_they_are_one(1, &iso__codec_f32, ISO_MERGE_PROGRESS);
    in_step_they_are_one(1, &iso__codec_bf16, ISO_MERGE_HEAT);
}
Test(np3_periodic_exchanges, in_step_they_are_one) {
    in_step_they_are_one(2, &iso__codec_bf16, ISO_MERGE_PROGRESS);
}
Test(np4_periodic_exchanges, in_step_they_are_one) {
    in_step_they_are_one(2, &iso__codec_f32, ISO_MERGE_HEAT);
}

// Where each exchange lies in the flat array.
typedef struct layout {
    size_t offset[3], elements[3];
} layout;

static layout layout_of(const iso__periodic_config *config) {
    static run r;
    layout out;
    open_run(&r, config, 1);
    iso_assert_all(r.engine.exchange_count == 3);
    for (int k = 0; k < 3; k++) {
        out.offset[k] = r.engine.exchange[k].offset;
        out.elements[k] = r.engine.exchange[k].size.f32;
    }
    close_run(&r);
    return out;
}

// Sent at one's own time, while others are under way: as in a run in which all are sent then.
static void each_has_its_own_rhythm(int per_node, const iso__codec *wire) {
    iso__periodic_config parts = config_of(3, wire, ISO_MERGE_PROGRESS);
    iso__periodic_config whole = config_of(1, wire, ISO_MERGE_PROGRESS);
    layout at = layout_of(&parts);
    run like = {.age = 5, .stride = 2}; // up to three under way
    float *several = values_of(&parts, per_node, like, false);
    for (int k = 0; k < 3; k++) {
        run alone = {.age = 5, .offset = 2 * k};
        float *one = values_of(&whole, per_node, alone, false);
        iso_assert_all(equal_values(one, several, at.offset[k], at.elements[k]));
        int other = (k + 1) % 3; // it is no accident
        iso_assert_all(test_size == per_node ||
                       !equal_values(one, several, at.offset[other], at.elements[other]));
        free(one);
    }
    free(several);
}

Test(np2_periodic_exchanges, each_has_its_own_rhythm) {
    each_has_its_own_rhythm(1, &iso__codec_f32);
    each_has_its_own_rhythm(1, &iso__codec_bf16);
}
Test(np4_periodic_exchanges, each_has_its_own_rhythm) {
    each_has_its_own_rhythm(2, &iso__codec_f32);
}

// ---- A saved state --------------------------------------------------------------------------------

static void copy_state(iso__periodic *from, iso__periodic *to) {
    iso_state *source, *target;
    iso_assert_ok(iso_state_create(&source));
    iso_assert_ok(iso_state_create(&target));
    iso_assert_ok(iso__periodic_state(from, source));
    iso_assert_ok(iso__periodic_state(to, target));
    int count = source->count[ISO_STATE_OWN];
    iso_assert_all(count == target->count[ISO_STATE_OWN]);
    for (int i = 0; i < count; i++) {
        const iso__array *a = &source->array[ISO_STATE_OWN][i];
        const iso__array *b = &target->array[ISO_STATE_OWN][i];
        iso_assert_all(strcmp(a->name, b->name) == 0 && iso__array_bytes(a) == iso__array_bytes(b));
        memcpy(b->data, a->data, iso__array_bytes(a));
    }
    iso_state_destroy(&source);
    iso_state_destroy(&target);
    iso_assert_ok(iso__periodic_loaded(to));
}

static void copy_parameters(iso__periodic *from, iso__periodic *to) {
    for (int i = 0; i < from->parameter_count; i++)
        memcpy(to->span[i].data, from->span[i].data, from->span[i].count * sizeof(float));
}

// With one, two and three exchanges under way.
static void a_run_goes_on_from_a_saved_state(const iso__codec *wire) {
    static run first, second;
    iso__periodic_config config = config_of(3, wire, ISO_MERGE_PROGRESS);
    first.age = second.age = 5;
    first.stride = second.stride = 2;
    for (int saved = 7; saved <= 12; saved++) {
        int64_t count;
        open_run(&first, &config, 1);
        open_run(&second, &config, 1);
        iso_assert_ok(run_steps(&first, 0, saved, false));
        copy_state(&first.engine, &second.engine);
        copy_parameters(&first.engine, &second.engine);
        iso_assert_ok(run_steps(&first, saved, STEPS, false));
        iso_assert_ok(run_steps(&second, saved, STEPS, false));
        float *a = daso_values(&first.t, &count), *b = daso_values(&second.t, &count);
        iso_assert_all(a && b && equal_values(a, b, 0, (size_t)count));
        free(a);
        free(b);
        close_run(&second);
        close_run(&first);
    }
}

Test(np2_periodic_exchanges, a_run_goes_on_from_a_saved_state) {
    a_run_goes_on_from_a_saved_state(&iso__codec_f32);
    a_run_goes_on_from_a_saved_state(&iso__codec_bf16);
}

// ---- Wrong use ------------------------------------------------------------------------------------

Test(np2_periodic_exchanges, what_cannot_be_split_is_refused) {
    iso__periodic_config bad[2];
    bad[0] = config_of(1000, ISO_F32, ISO_MERGE_PROGRESS);
    bad[1] = config_of(2, ISO_F32, ISO_MERGE_PROGRESS);
    bad[1].state = ISO_STATE_SYNC_AVERAGE;
    for (int i = 0; i < 2; i++) {
        static run r;
        daso_case c = daso_case_default(STEPS);
        c.train.rows = 2 * test_size;
        memset(&r, 0, sizeof(r));
        iso_assert_ok(trainer_create(&r.t, test_comm, &c.train));
        iso_optimizer *inner = r.t.optimizer;
        r.t.optimizer = NULL;
        iso_status status = iso__periodic_init(&r.engine, inner, r.t.model, &bad[i], ISO_OK, "");
        iso_assert_all(status == (i == 0 ? ISO_ERR_ARG : ISO_ERR_UNSUPPORTED));
        trainer_destroy(&r.t);
    }
}
