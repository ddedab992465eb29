// SPDX-License-Identifier: MIT
// The schedule of DASO in runs of any settings: what must hold in all of them.
#include "optim/periodic/sync_plan.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(daso_schedule_runs, .timeout = 60);

static iso_daso_config config_of(int64_t total, int64_t warmup, int64_t cooldown, int64_t skip,
                                 int64_t wait) {
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.total_steps = total;
    config.warmup_steps = warmup;
    config.cooldown_steps = cooldown;
    config.global_skip = skip;
    config.batches_to_wait = wait;
    return config;
}

static iso__daso_schedule make(iso_daso_config config) {
    iso__daso_schedule s;
    cr_assert_eq(iso__daso_config_check(&config, 0), ISO_OK, "%s", iso_last_error()->message);
    iso__daso_schedule_init(&s, &config);
    return s;
}

static void set(iso__daso_schedule *s, int64_t skip, int64_t local_skip, int64_t wait) {
    iso_daso_decision decision = {skip, local_skip, wait, ""};
    iso__daso_schedule_set(s, &decision);
}

// ---- Any run --------------------------------------------------------------------------------------

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}
static int64_t between(uint64_t *state, int64_t low, int64_t high) {
    return low + next_random(state) % (high - low + 1);
}

static iso_daso_config random_config(uint64_t *random) {
    int64_t total = between(random, 1, 60);
    iso_daso_config config =
        config_of(total, between(random, -1, total), between(random, -1, total),
                  between(random, 1, 20), between(random, -1, 12));
    if (config.batches_to_wait > config.global_skip) config.global_skip = -1;
    config.warmup = (double)between(random, 0, 100) / 200;
    config.cooldown = (double)between(random, 0, 100) / 100;
    config.local_skip = between(random, 1, 4);
    config.unit = next_random(random) % 3 ? ISO_SCOPE_NODE : ISO_SCOPE_RANK;
    return config;
}

typedef struct world { // as the plans leave it
    bool pending;
    int64_t sent, due, next_send; // steps
    bool node_differs;            // the ranks of a node
    bool differs;                 // anybody
    int measured, full_with_state, sends;
} world;

static void act(world *w, const iso__daso_schedule *s, const iso__action *a, bool more) {
    switch (a->kind) {
    case ISO__SEND:
        cr_assert(!w->pending && !w->node_differs);
        cr_assert_eq(s->step, w->next_send);
        w->pending = true;
        w->sent = s->step;
        w->due = s->step + (s->batches_to_wait < 0 ? s->global_skip : s->batches_to_wait);
        w->sends++;
        break;
    case ISO__MERGE:
        cr_assert(w->pending);
        cr_assert_eq(a->age, s->step - w->sent);
        cr_assert(s->step == w->due || (s->step < w->due && (more || s->begins)));
        w->pending = false;
        break;
    case ISO__FULL:
        cr_assert(!w->node_differs && (!w->pending || w->due == s->step));
        w->pending = w->differs = false;
        w->full_with_state += a->state;
        break;
    case ISO__NODE_AVERAGE: w->node_differs = false; break;
    case ISO__MEASURE:
        cr_assert(!w->pending && w->sends == 0 && s->batches_to_wait == -1);
        w->measured++;
        break;
    case ISO__NODE_COPY: cr_assert_fail("only HeAT copies within a node");
    }
}

// random NULL: nothing changes.
static void random_change(iso__daso_schedule *s, const iso__sync_plan *plan, uint64_t *random) {
    bool measures = plan->count > 0 && plan->action[plan->count - 1].kind == ISO__MEASURE;
    if (!random || (!measures && next_random(random) % 8 > 0)) return;
    set(s, between(random, 1, 20), between(random, 1, 4), between(random, measures ? 0 : -1, 12));
    cr_assert_geq(s->global_skip, s->batches_to_wait);
}

static void begin_round(world *w, iso__daso_schedule *s) {
    iso__sync_plan plan;
    iso__daso_schedule_begin(s, &plan);
    for (int i = 0; i < plan.count; i++) act(w, s, &plan.action[i], i + 1 < plan.count);
    w->next_send = s->step + s->global_skip;
    cr_assert(s->step > 0 || plan.count == 0);
}

static void step(world *w, iso__daso_schedule *s, iso__sync_plan *plan, iso_scope unit,
                 uint64_t *random) {
    if (s->begins) begin_round(w, s);
    iso_scope scope = iso__daso_schedule_scope(s);
    w->differs |= scope != ISO_SCOPE_WORLD;
    w->node_differs |= scope == ISO_SCOPE_RANK && unit == ISO_SCOPE_NODE;
    if (w->sends == 0) w->next_send = s->next_send;
    // Data-parallel steps only begin from equal replicas.
    if (scope == ISO_SCOPE_WORLD) cr_assert(!w->differs && !w->pending);
    if (scope == ISO_SCOPE_NODE) cr_assert_eq(unit, ISO_SCOPE_NODE);
    iso__daso_schedule_step(s, plan);
    if (scope == ISO_SCOPE_WORLD && s->step < s->total)
        cr_assert(plan->count == 0 || plan->action[0].kind == ISO__MEASURE);
    cr_assert_leq(plan->count, ISO__PLAN_ACTIONS);
    for (int i = 0; i < plan->count; i++) act(w, s, &plan->action[i], i + 1 < plan->count);
    bool begins = s->begins;
    random_change(s, plan, random);
    if (begins) {
        begin_round(w, s);
        if (random) set(s, s->global_skip + 1, s->local_skip, -1); // it begins anew
        w->next_send = s->step + s->global_skip;
    }
    if (s->phase == ISO__CYCLING) cr_assert(!w->pending || s->step < w->due);
    cr_assert_eq(w->pending, s->pending);
}

static void check_run(uint64_t *random, bool changes) {
    iso_daso_config config = random_config(random);
    iso__daso_schedule s = make(config);
    iso__sync_plan plan = {0};
    world w = {0};
    bool cycles = s.total - s.cooldown > s.warmup;
    while (s.phase != ISO__DONE) {
        step(&w, &s, &plan, config.unit, changes ? random : NULL);
    }
    cr_assert_eq(s.step, config.total_steps);
    cr_assert(!w.pending && !w.differs);
    cr_assert_leq(w.measured, config.batches_to_wait < 0);
    cr_assert_eq(w.full_with_state, cycles && s.cooldown > 0);
    if (s.cooldown == 0) cr_assert_eq(plan.action[plan.count - 1].kind, ISO__FULL);
    step(&w, &s, &plan, config.unit, NULL);
    cr_assert_eq(plan.count, 0);
}

Test(daso_schedule_runs, no_run_loses_an_exchange_or_ends_apart) {
    uint64_t random = 3;
    for (int i = 0; i < 4000; i++) check_run(&random, false);
}

Test(daso_schedule_runs, no_change_loses_an_exchange_or_ends_apart) {
    uint64_t random = 4;
    for (int i = 0; i < 4000; i++) check_run(&random, true);
}

// As after saving and loading: the bytes are all there is.
Test(daso_schedule_runs, bytes_are_the_whole_state) {
    uint64_t random = 5;
    for (int i = 0; i < 1000; i++) {
        iso_daso_config config = random_config(&random);
        iso__daso_schedule s = make(config), other = make(config_of(1, 0, 0, 1, 1));
        iso__sync_plan plan, same;
        world w = {0}, same_world;
        for (int64_t k = between(&random, 0, config.total_steps); k > 0; k--)
            step(&w, &s, &plan, config.unit, &random);
        same_world = w;
        unsigned char bytes[sizeof(s)];
        memcpy(bytes, &s, sizeof(bytes));
        memcpy(&other, bytes, sizeof(bytes));
        while (s.step < config.total_steps) {
            step(&w, &s, &plan, config.unit, NULL);
            step(&same_world, &other, &same, config.unit, NULL);
            cr_assert_eq(plan.count, same.count);
            for (int a = 0; a < plan.count; a++)
                cr_assert(plan.action[a].kind == same.action[a].kind &&
                          plan.action[a].age == same.action[a].age &&
                          plan.action[a].state == same.action[a].state);
            cr_assert(plan.next == same.next && w.next_send == same_world.next_send);
            cr_assert(w.pending == same_world.pending && w.due == same_world.due);
        }
    }
}

// Each fragment is sent once in a period, and merged after the wait, whatever the numbers.
Test(daso_schedule_runs, every_fragment_is_sent_once_in_a_period) {
    for (int n = 0; n < 2000; n++) {
        int fragments = 2 + n % 7, period = fragments + n / 7 % 9, wait = n / 63 % (period + 1);
        int sent[8] = {0}, sends[8] = {0};
        iso__sync_plan plan;
        iso_daso_config config = config_of(1000, 0, 0, period, wait);
        config.fragments = fragments;
        iso__daso_schedule s = make(config);
        for (int step = 1; step <= 5 * period; step++) {
            if (s.begins) iso__daso_schedule_begin(&s, &plan);
            iso__daso_schedule_step(&s, &plan);
            for (int i = 0; i < plan.count; i++) {
                const iso__action *a = &plan.action[i];
                if (a->kind == ISO__MERGE) {
                    cr_assert(a->age == wait && step - sent[a->exchange] == wait);
                    continue;
                }
                if (a->kind != ISO__SEND) continue;
                cr_assert(sends[a->exchange]++ == 0 || step - sent[a->exchange] == period);
                sent[a->exchange] = step;
            }
        }
        for (int f = 0; f < fragments; f++) cr_assert(sends[f] == 4 || sends[f] == 5);
    }
}
