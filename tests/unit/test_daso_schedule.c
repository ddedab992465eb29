// SPDX-License-Identifier: MIT
// The schedule of DASO, local SGD and post-local SGD: tables worked out by hand, and what must hold
// in any run.
#include "optim/periodic/sync_plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(daso_schedule, .timeout = 60);

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

// ---- Tables ---------------------------------------------------------------------------------------

// "S" send, "M3" merge at age 3, "F" full average, "F+" with state, "A" average of the node, "T"
// time an exchange.
static void text_of(const iso__sync_plan *plan, char *out, size_t room) {
    *out = 0;
    for (int i = 0; i < plan->count; i++) {
        const iso__action *a = &plan->action[i];
        size_t used = strlen(out);
        cr_assert_eq(a->group, ISO__ALL_GROUPS);
        snprintf(out + used, room - used, "%s%c", i > 0 ? " " : "", "SMFABT"[a->kind]);
        used = strlen(out);
        if (a->level > 0) snprintf(out + used, room - used, "%d", a->level);
        used = strlen(out);
        if (a->exchange > 0) snprintf(out + used, room - used, "_%d", a->exchange);
        used = strlen(out);
        if (a->kind == ISO__MERGE) {
            snprintf(out + used, room - used, "%d", (int)a->age);
            cr_assert_eq(a->weight, a->age);
        }
        if (a->state) snprintf(out + used, room - used, "+");
    }
}

typedef struct run {
    iso__daso_schedule s;
    char plans[2000], scopes[200]; // "4 S; 6 M2"; w, n or r for each step's gradients
} run;

// decide: what is decided where a round begins; NULL: nothing.
static void advance(iso__daso_schedule *s, iso__sync_plan *plan,
                    void (*decide)(iso__daso_schedule *s)) {
    iso__sync_plan rest;
    if (s->begins) { // the first round, before the first step
        if (decide) decide(s);
        iso__daso_schedule_begin(s, &rest);
        cr_assert_eq(rest.count, 0);
    }
    iso_scope scope = iso__daso_schedule_scope(s);
    iso__daso_schedule_step(s, plan);
    if (s->begins) {
        cr_assert_eq(plan->next, scope);
        if (decide) decide(s);
        iso__daso_schedule_begin(s, &rest);
        for (int i = 0; i < rest.count; i++) plan->action[plan->count++] = rest.action[i];
        plan->next = rest.next;
    }
    cr_assert_eq(plan->next, iso__daso_schedule_scope(s));
}

static void go_deciding(run *r, int64_t until, void (*decide)(iso__daso_schedule *s)) {
    while (r->s.step < until) {
        iso__sync_plan plan;
        char text[100];
        size_t used = strlen(r->plans);
        r->scopes[r->s.step] = "wnr"[iso__daso_schedule_scope(&r->s)];
        advance(&r->s, &plan, decide);
        text_of(&plan, text, sizeof(text));
        if (plan.count > 0)
            snprintf(r->plans + used, sizeof(r->plans) - used, "%s%d %s", used ? "; " : "",
                     (int)r->s.step, text);
    }
}

static void go(run *r, int64_t until) { go_deciding(r, until, NULL); }

static void expect(const run *r, const char *plans, const char *scopes) {
    cr_assert_str_eq(r->plans, plans, "\n%s\nnot\n%s", r->plans, plans);
    cr_assert_str_eq(r->scopes, scopes, "\n%s\nnot\n%s", r->scopes, scopes);
    cr_assert_not(r->s.pending);
    cr_assert_eq(r->s.phase, ISO__DONE);
}

static void check(iso_daso_config config, const char *plans, const char *scopes) {
    run r = {.s = make(config)};
    go(&r, config.total_steps);
    expect(&r, plans, scopes);
}

Test(daso_schedule, phases_follow_each_other) {
    check(config_of(20, 4, 3, 4, 2), "8 S; 10 M2; 12 S; 14 M2; 16 S; 17 M1 F+",
          "wwwwnnnnnnnnnnnnnwww");
}

Test(daso_schedule, wait_as_long_as_the_skip_merges_before_the_next_send) {
    check(config_of(10, 0, 0, 3, 3), "3 S; 6 M3 S; 9 M3 S; 10 M1 F", "nnnnnnnnnn");
    check(config_of(5, 0, 0, 1, 1), "1 S; 2 M1 S; 3 M1 S; 4 M1 S; 5 M1 F", "nnnnn");
}

Test(daso_schedule, wait_0_is_a_full_average) {
    check(config_of(10, 2, 0, 3, 0), "5 S F; 8 S F; 10 F", "wwnnnnnnnn");
}

Test(daso_schedule, automatic_skip_follows_the_wait) {
    check(config_of(24, 0, 0, -1, 9), "14 S; 23 M9; 24 F", "nnnnnnnnnnnnnnnnnnnnnnnn");
    check(config_of(18, 0, 0, -1, 3), "8 S; 11 M3; 16 S; 18 M2 F", "nnnnnnnnnnnnnnnnnn");
    iso_daso_config config = config_of(8, 0, 0, -1, 0);
    config.max_global_skip = 3;
    config.policy = ISO_POLICY_ADAPTIVE;
    check(config, "3 S F; 6 S F; 8 F", "nnnnnnnn");
}

// "S_1", "M_12": exchange 1, age 2.
static iso_daso_config fragments_of(int64_t total, int fragments, int64_t skip, int64_t wait) {
    iso_daso_config config = config_of(total, 0, 0, skip, wait);
    config.fragments = fragments;
    return config;
}

// torchft sends 1 step before steps 3, 6, 9 and 12, and merges there.
Test(daso_schedule, fragments_take_turns) {
    check(fragments_of(12, 2, 6, 1), "2 S; 3 M1; 5 S_1; 6 M_11; 8 S; 9 M1; 11 S_1; 12 M_11 F",
          "nnnnnnnnnnnn");
    check(fragments_of(7, 2, 6, 0), "3 S F; 6 S_1 F_1; 7 F", "nnnnnnn");
    iso_daso_config config = fragments_of(9, 3, 3, 2);
    config.warmup_steps = config.cooldown_steps = 1;
    check(config, "2 S_2; 3 S; 4 M_22 S_1; 5 M2 S_2; 6 M_12 S; 7 M_22 S_1; 8 M2 M_11 F+",
          "wnnnnnnnw");
}

Test(daso_schedule, wait_longer_than_a_given_skip_is_refused) {
    iso_daso_config config = config_of(12, 0, 0, 4, 5);
    cr_assert_eq(iso__daso_config_check(&config, 0), ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "batches_to_wait 5 is longer than global_skip 4"));
    config.global_skip = -2;
    cr_assert_eq(iso__daso_config_check(&config, 0), ISO_ERR_ARG);
}

Test(daso_schedule, local_sgd_averages_every_period) {
    check(iso_local_sgd_config(9, 4), "4 S F; 8 S F; 9 F", "rrrrrrrrr");
}

Test(daso_schedule, post_local_sgd_begins_with_data_parallel_steps) {
    check(iso_post_local_sgd_config(9, 3, 2), "5 S F; 7 S F; 9 F", "wwwrrrrrr");
}

// HierarchicalModelAverager counts its steps from 0: it averages after our steps 1, 5, 9...; "S2":
// at level 2.
Test(daso_schedule, levels_follow_pytorch) {
    iso_daso_config config = iso_local_sgd_config(20, 1);
    cr_assert_eq(iso_daso_levels_parse("4:2,8:4,16:8", &config), ISO_OK);
    check(config, "1 S2 F; 5 S F; 9 S1 F; 13 S F; 17 S2 F; 20 F", "rrrrrrrrrrrrrrrrrrrr");
    config.warmup_steps = 6;
    config.batches_to_wait = 2;
    check(config, "9 S1; 11 M2; 13 S; 15 M2; 17 S2; 19 M2; 20 F", "wwwwwwrrrrrrrrrrrrrr");
    config.warmup_steps = 8; // PyTorch's step 8, our step 9
    check(config, "9 S1; 11 M2; 13 S; 15 M2; 17 S2; 19 M2; 20 F", "wwwwwwwwrrrrrrrrrrrr");
}

Test(daso_schedule, a_level_that_comes_early_ends_the_wait_of_another) {
    iso_daso_config config = iso_local_sgd_config(9, 1);
    cr_assert_eq(iso_daso_levels_parse("2:2,3:4", &config), ISO_OK);
    config.batches_to_wait = 2;
    check(config, "1 S1; 3 M2 S; 4 M1 S1; 5 M1 S; 7 M2 S1; 9 M2 F", "rrrrrrrrr");
}

// Cycling steps 3 to 14; averaged in the node: every third of them (5, 8, 11, 14), and before
// sends.
Test(daso_schedule, local_skip_averages_the_node_before_sends) {
    iso_daso_config config = config_of(16, 2, 2, 5, 2);
    config.local_skip = 3;
    check(config, "7 A S; 9 M2; 12 A S; 14 M2 A F+", "wwrrnrnnrrnnrnww");
    config.cooldown_steps = 0;
    check(config, "7 A S; 9 M2; 12 A S; 14 M2; 16 A F", "wwrrnrnnrrnnrnrn");
    config.cooldown_steps = 1;
    check(config, "7 A S; 9 M2; 12 A S; 14 M2; 15 A F+", "wwrrnrnnrrnnrnnw");
}

Test(daso_schedule, ranks_alone_have_no_node_to_average) {
    iso_daso_config config = config_of(9, 2, 1, 4, 1);
    config.local_skip = 3;
    config.unit = ISO_SCOPE_RANK;
    check(config, "6 S; 7 M1; 8 F+", "wwrrrrrrw");
}

Test(daso_schedule, skip_beyond_the_end_leaves_the_last_average) {
    check(config_of(6, 0, 0, 100, 3), "6 F", "nnnnnn");
    check(config_of(6, 2, 1, INT64_MAX, 0), "5 F+", "wwnnnw");
    check(config_of(6, 0, 0, 6, 3), "6 F", "nnnnnn");
}

Test(daso_schedule, one_step_is_a_run) {
    check(config_of(1, 0, 0, 1, 1), "1 F", "n");
    check(config_of(1, 0, 0, 1, -1), "1 F", "n");
    check(config_of(1, 1, 0, 1, -1), "1 F", "w");
    check(config_of(1, 0, 1, 1, -1), "", "w");
    iso_daso_config shares = ISO_DASO_DEFAULT;
    shares.total_steps = 1;
    check(shares, "1 F", "w");
}

Test(daso_schedule, cooldown_gives_way_to_warmup) {
    check(config_of(5, 4, 4, 1, 1), "", "wwwww");
    check(config_of(5, 9, 9, 1, 1), "5 F", "wwwww");
    check(config_of(5, 0, 9, 1, -1), "", "wwwww");
}

// ---- Measuring ------------------------------------------------------------------------------------

// As long as an exchange was measured to take, but a skip that was given stays.
// Cycling steps before the send are timed, as they take less time than those of warm-up.
Test(daso_schedule, wait_is_measured_before_the_first_send) {
    for (int64_t wait = 3; wait <= 300; wait *= 10) {
        run r = {.s = make(config_of(20, 3, 2, 4, -1))};
        iso__sync_plan plan;
        go(&r, 5);
        iso__daso_schedule_step(&r.s, &plan);
        cr_assert(plan.count == 1 && plan.action[0].kind == ISO__MEASURE && !r.s.begins);
        iso__daso_schedule_measured(&r.s, wait);
        cr_assert(r.s.global_skip == 4 && r.s.batches_to_wait == (wait < 4 ? wait : 4));
        memcpy(r.scopes, "wwwnnn", 6);
        go(&r, 20);
        expect(&r,
               wait == 3 ? "7 S; 10 M3; 11 S; 14 M3; 15 S; 18 M3 F+"
                         : "7 S; 11 M4 S; 15 M4 S; 18 M3 F+",
               "wwwnnnnnnnnnnnnnnnww");
    }
}

Test(daso_schedule, automatic_skip_is_raised_to_what_is_measured) {
    run r = {.s = make(config_of(40, 3, 2, -1, -1))};
    iso__sync_plan plan;
    go(&r, 9);
    iso__daso_schedule_step(&r.s, &plan); // the send comes after ISO_DASO_AUTO_SKIP steps
    iso__daso_schedule_measured(&r.s, 13);
    cr_assert(r.s.global_skip == 20 && r.s.batches_to_wait == 13);
    memcpy(r.scopes, "wwwnnnnnnn", 10);
    go(&r, 40);
    expect(&r, "11 S; 24 M13; 31 S; 38 M7 F+", "wwwnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnww");
    r.s = make(config_of(40, 3, 2, -1, -1));
    iso__daso_schedule_measured(&r.s, 1000); // max_global_skip
    cr_assert(r.s.global_skip == 64 && r.s.batches_to_wait == 64);
}

Test(daso_schedule, wait_that_nobody_measured_is_the_skip) {
    check(config_of(12, 3, 1, 4, -1), "6 T; 7 S; 11 M4 F+", "wwwnnnnnnnnw");
    check(config_of(6, 3, 1, 1, -1), "4 S; 5 M1 F+", "wwwnnw");
}

// The first step has no time yet, and the send must know the wait.
Test(daso_schedule, without_warmup_two_steps_come_before_measuring) {
    check(config_of(12, 0, 0, 4, -1), "3 T; 4 S; 8 M4 S; 12 M4 F", "nnnnnnnnnnnn");
    check(config_of(8, 1, 0, 3, -1), "3 T; 4 S; 7 M3 S; 8 M1 F", "wnnnnnnn");
    check(config_of(7, 1, 0, 2, -1), "2 T; 3 S; 5 M2 S; 7 M2 F", "wnnnnnn");
    check(config_of(7, 0, 0, 3, -1), "2 T; 3 S; 6 M3 S; 7 M1 F", "nnnnnnn");
}

// Also where there is no step to measure in before the first send.
Test(daso_schedule, short_skip_that_is_given_is_kept) {
    check(config_of(5, 0, 0, 1, -1), "1 S; 2 M1 S; 3 M1 S; 4 M1 S; 5 M1 F", "nnnnn");
    check(config_of(6, 0, 0, 2, -1), "2 S; 4 M2 S; 6 M2 F", "nnnnnn");
    check(config_of(5, 1, 1, 1, -1), "2 S; 3 M1 S; 4 M1 F+", "wnnnw");
    check(config_of(3, 0, 0, 1, -1), "1 S; 2 M1 S; 3 M1 F", "nnn");
}

Test(daso_schedule, wait_set_in_warmup_is_not_measured) {
    run r = {.s = make(config_of(10, 3, 0, 4, -1))};
    go(&r, 1);
    set(&r.s, 3, 1, 2);
    go(&r, 10);
    expect(&r, "6 S; 8 M2; 9 S; 10 M1 F", "wwwnnnnnnn");
}

// ---- Changes --------------------------------------------------------------------------------------

Test(daso_schedule, changes_take_effect_at_the_next_send) {
    run r = {.s = make(config_of(30, 0, 0, 4, 3))};
    go(&r, 5); // an exchange is under way
    set(&r.s, 2, 1, 1);
    go(&r, 11);
    set(&r.s, 6, 1, 0);
    go(&r, 19);
    set(&r.s, 6, 2, 0); // what has been sent at 18 was no local skip's
    go(&r, 30);
    expect(&r, "4 S; 7 M3; 8 S; 9 M1; 10 S; 11 M1; 12 S F; 18 S F; 24 S F; 30 A F",
           "nnnnnnnnnnnnnnnnnnnnnnnnrnrnrn");
}

static void send_more_often(iso__daso_schedule *s) {
    if (s->step == 4) set(s, 2, 1, 0);
    if (s->step == 8) set(s, 3, 2, 2);
    if (s->step == 11) set(s, 5, 1, 1);
}

// What is decided where a round begins is this round's.
Test(daso_schedule, decisions_hold_for_the_round_that_begins) {
    run r = {.s = make(config_of(18, 0, 0, 4, 0))};
    go_deciding(&r, 18, send_more_often);
    expect(&r, "4 S F; 6 S F; 8 S F; 11 A S; 12 M1; 16 S; 17 M1; 18 F", "nnnnnnnnrnnnnnnnnn");
    r = (run){.s = make(config_of(18, 0, 0, 4, 4))};
    go_deciding(&r, 18, send_more_often);
    expect(&r, "4 S F; 6 S F; 8 S F; 11 A S; 12 M1; 16 S; 17 M1; 18 F", "nnnnnnnnrnnnnnnnnn");
    r = (run){.s = make(config_of(10, 2, 0, 4, 1))};
    go_deciding(&r, 10, send_more_often); // at 2 cycling begins
    expect(&r, "6 S; 7 M1; 10 F", "wwnnnnnnnn");
}

static void begin_otherwise(iso__daso_schedule *s) {
    if (s->step == 0 || s->step == 2) set(s, 2, 1, 1);
}

Test(daso_schedule, the_first_round_is_decided_on_too) {
    run r = {.s = make(config_of(6, 0, 0, 4, 4))};
    go_deciding(&r, 6, begin_otherwise);
    expect(&r, "2 S; 3 M1; 4 S; 5 M1; 6 F", "nnnnnn");
    r = (run){.s = make(config_of(7, 2, 0, 4, 4))};
    go_deciding(&r, 7, begin_otherwise);
    expect(&r, "4 S; 5 M1; 6 S; 7 M1 F", "wwnnnnn");
}

// As at the end of an epoch, where a round has just begun.
Test(daso_schedule, changes_hold_for_a_round_without_steps) {
    run r = {.s = make(config_of(16, 0, 0, 4, 3))};
    go(&r, 4);
    set(&r.s, 5, 1, 1);
    go(&r, 9);
    set(&r.s, 2, 1, 0); // what is under way keeps its wait
    go(&r, 16);
    expect(&r, "4 S; 5 M1; 9 S; 10 M1; 11 S F; 13 S F; 15 S F; 16 F", "nnnnnnnnnnnnnnnn");
}

Test(daso_schedule, wait_0_while_an_exchange_is_under_way_merges_it_first) {
    run r = {.s = make(config_of(9, 0, 0, 3, 3))};
    go(&r, 4);
    set(&r.s, 3, 1, 0);
    go(&r, 9);
    expect(&r, "3 S; 6 M3 S F; 9 F", "nnnnnnnnn");
}

Test(daso_schedule, local_skip_ends_with_an_average_of_the_node) {
    iso_daso_config config = config_of(12, 0, 0, 4, 1);
    config.local_skip = 2;
    run r = {.s = make(config)};
    go(&r, 6);
    set(&r.s, 4, 1, 1);
    go(&r, 12);
    expect(&r, "4 A S; 5 M1; 8 A S; 9 M1; 12 F", "rnrnrnrnnnnn");
}

Test(daso_schedule, set_keeps_within_what_the_config_allows) {
    iso_daso_config config = config_of(100, 0, 0, 8, 2);
    config.max_global_skip = 16;
    iso__daso_schedule s = make(config);
    set(&s, 1000, 0, 500);
    cr_assert(s.global_skip == 16 && s.batches_to_wait == 16 && s.local_skip == 1);
    set(&s, -3, 2, 5);
    cr_assert(s.global_skip == 5 && s.batches_to_wait == 5 && s.local_skip == 2);
    set(&s, 7, 1, -1);
    cr_assert(s.global_skip == 7 && s.batches_to_wait == 5 && s.local_skip == 1);
    config.global_skip = 30; // fixed policy: max_global_skip does not bind it
    s = make(config);
    set(&s, 1000, 1, 2);
    cr_assert_eq(s.global_skip, 30);
}

// ---- Shares and waits -----------------------------------------------------------------------------

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}
static int64_t between(uint64_t *state, int64_t low, int64_t high) {
    return low + next_random(state) % (high - low + 1);
}

static void check_phases(int64_t total, double warmup, double cooldown, int64_t expected_warmup,
                         int64_t expected_cooldown) {
    iso_daso_config config = config_of(total, -1, -1, 1, 1);
    config.warmup = warmup;
    config.cooldown = cooldown;
    int64_t got[2];
    iso__daso_phases(&config, &got[0], &got[1]);
    cr_assert_eq(got[0], expected_warmup, "warm-up %d", (int)got[0]);
    cr_assert_eq(got[1], expected_cooldown, "cool-down %d", (int)got[1]);
}

Test(daso_schedule, shares_round_up_to_steps) {
    check_phases(1000, 0.02, 0.02, 20, 20);
    check_phases(100, 0.021, 0, 3, 0);
    check_phases(100, 0.07, 0.14, 7, 14); // their products in doubles are above 7 and 14
    check_phases(10, 0, 1, 0, 10);
    check_phases(10, 0.75, 0.75, 8, 2);
    check_phases(10, 1, 1, 10, 0);
}

// Three phases, each of which is taken up after a whole step.
Test(daso_schedule, wait_covers_three_phases_rounded_up) {
    uint64_t random = 6;
    cr_assert_eq(iso__daso_wait_for(212, 28.1), 11);
    cr_assert_eq(iso__daso_wait_for(0.001, 30), 4);
    for (int i = 0; i < 10000; i++) {
        double step_ms = 1 + (double)between(&random, 0, 1000) / 10, all = 0;
        int64_t needed = 1; // the verdict
        for (int phase = 0; phase < 3; phase++) {
            double ms = (double)between(&random, 0, 3000) / 10;
            all += ms;
            needed += (int64_t)ceil(ms / step_ms);
        }
        int64_t wait = iso__daso_wait_for(all, step_ms);
        if (all > 0) cr_assert_geq(wait, needed, "%g ms in steps of %g ms", all, step_ms);
        cr_assert_leq(wait, needed + 3);
    }
}

Test(daso_schedule, wait_for_the_unknown_is_1) {
    cr_assert_eq(iso__daso_wait_for(0, 10), 1);
    cr_assert_eq(iso__daso_wait_for(10, 0), 1);
    cr_assert_eq(iso__daso_wait_for(-1, -1), 1);
    cr_assert_eq(iso__daso_wait_for(NAN, 10), 1);
    cr_assert_eq(iso__daso_wait_for(10, NAN), 1);
    cr_assert_gt(iso__daso_wait_for(1e300, 1e-300), 1000000);
}

// ---- Checks ---------------------------------------------------------------------------------------

#define REFUSED(member, value, words)                                                              \
    do {                                                                                           \
        iso_daso_config config_ = config_of(10, -1, -1, 8, -1);                                    \
        config_.member = (value);                                                                  \
        cr_assert_eq(iso__daso_config_check(&config_, 0), ISO_ERR_ARG, "%s", words);               \
        cr_assert(strstr(iso_last_error()->message, words), "\"%s\" has not \"%s\"",               \
                  iso_last_error()->message, words);                                               \
    } while (0)

Test(daso_schedule, config_is_refused_by_name) {
    REFUSED(total_steps, 0, "total_steps is 0, it must be 1 or more");
    REFUSED(warmup, -0.1, "warmup is -0.1");
    REFUSED(cooldown, 1.5, "cooldown is 1.5");
    REFUSED(cooldown, NAN, "cooldown is nan");
    REFUSED(warmup_steps, -2, "warmup_steps is -2");
    REFUSED(cooldown_steps, -2, "cooldown_steps is -2");
    REFUSED(global_skip, 0, "global_skip is 0, it must be 1 or more");
    REFUSED(max_global_skip, 0, "max_global_skip is 0");
    REFUSED(batches_to_wait, -2, "batches_to_wait is -2");
    REFUSED(local_skip, 0, "local_skip is 0");
    REFUSED(unit, ISO_SCOPE_WORLD, "unit is scope 0");
    REFUSED(merge, (iso_merge)2, "merge is 2");
    REFUSED(wire, (iso_wire)ISO_F64, "wire is 1, it must be ISO_WIRE_F32");
    REFUSED(state, (iso_state_sync)3, "state is 3");
    REFUSED(policy, (iso_policy)6, "policy is 6");
    REFUSED(policy, ISO_POLICY_CALLBACK, "callback is NULL");
    REFUSED(stability_level, INFINITY, "stability_level is inf");
    REFUSED(max_divergence, 0, "max_divergence is 0");
}

Test(daso_schedule, policies_stay_below_max_global_skip) {
    iso_daso_config config = config_of(10, -1, -1, 100, 1);
    cr_assert_eq(iso__daso_config_check(&config, 0), ISO_OK);
    config.policy = ISO_POLICY_ADAPTIVE;
    cr_assert_eq(iso__daso_config_check(&config, 0), ISO_ERR_ARG);
    config.global_skip = 10;
    config.batches_to_wait = 100;
    cr_assert_eq(iso__daso_config_check(&config, 0), ISO_ERR_ARG);
}

Test(daso_schedule, ready_made_configs_are_plain) {
    iso_daso_config config = iso_post_local_sgd_config(100, 20, 7);
    cr_assert_eq(iso__daso_config_check(&config, 0), ISO_OK);
    cr_assert(config.total_steps == 100 && config.warmup_steps == 20 && config.global_skip == 7);
    cr_assert(config.unit == ISO_SCOPE_RANK && config.wire == ISO_WIRE_F32);
    cr_assert(config.batches_to_wait == 0 && config.cooldown_steps == 0 && config.local_skip == 1);
    cr_assert(config.policy == ISO_POLICY_FIXED && config.state == ISO_STATE_SYNC_KEEP);
    cr_assert_eq(iso_local_sgd_config(100, 7).warmup_steps, 0);
}
