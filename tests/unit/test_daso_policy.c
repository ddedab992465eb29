// SPDX-License-Identifier: MIT
// Policies of DASO on simulated runs.
#include "optim/periodic/sync_plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(daso_policy, .timeout = 60);

static iso_daso_config config_of(iso_policy policy, int64_t total, int64_t skip, int64_t wait) {
    iso_daso_config config = ISO_DASO_DEFAULT;
    config.policy = policy;
    config.total_steps = total;
    config.warmup_steps = config.cooldown_steps = 0;
    config.global_skip = skip;
    config.batches_to_wait = wait;
    return config;
}

static iso__policy_state start(const iso_daso_config *config) {
    iso__policy_state s;
    cr_assert_eq(iso__daso_config_check(config, 0), ISO_OK, "%s", iso_last_error()->message);
    iso__policy_init(&s, config);
    return s;
}

// What comes out changed exactly if it says so, is within bounds, and has a reason of one line.
static bool decide(iso__policy_state *s, const iso_daso_config *config,
                   const iso_daso_observation *observed, iso_daso_decision *out) {
    iso_daso_decision before = *out;
    memset(out->reason, 0, sizeof(out->reason));
    bool changed = iso__policy_decide(s, config, observed, out);
    bool differs = out->global_skip != before.global_skip || out->local_skip != before.local_skip ||
                   out->batches_to_wait != before.batches_to_wait;
    cr_assert_eq(changed, differs);
    cr_assert_eq(*out->reason != 0, changed);
    cr_assert(!strchr(out->reason, '\n'));
    cr_assert(out->global_skip >= 1 && out->global_skip <= config->max_global_skip);
    cr_assert(out->global_skip >= out->batches_to_wait && out->batches_to_wait >= 0);
    return changed;
}

// ---- Plateau --------------------------------------------------------------------------------------

static bool end_epoch(iso__policy_state *s, const iso_daso_config *config, int64_t step,
                      double loss, iso_daso_decision *out) {
    iso_daso_observation epoch = {
        .kind = ISO_OBSERVED_EPOCH, .step = step, .total_steps = config->total_steps, .loss = loss};
    return decide(s, config, &epoch, out);
}

static void expect(const iso_daso_decision *d, int64_t skip, int64_t local_skip, int64_t wait) {
    cr_assert(d->global_skip == skip && d->local_skip == local_skip && d->batches_to_wait == wait,
              "(%d, %d, %d)", (int)d->global_skip, (int)d->local_skip, (int)d->batches_to_wait);
}

// HeAT's table of epochs: the same losses give the same skips and waits.
Test(daso_policy, plateau_changes_skip_and_wait_as_heat) {
    iso_daso_config config = config_of(ISO_POLICY_PLATEAU, 400, 4, 1);
    config.max_global_skip = 8;
    iso__policy_state s = start(&config);
    iso_daso_heat_config heat_config = ISO_DASO_HEAT_DEFAULT;
    heat_config.total_epochs = 1000;
    heat_config.warmup_epochs = heat_config.cooldown_epochs = 0;
    iso__heat_schedule heat;
    iso__heat_schedule_init(&heat, &heat_config, 4);
    iso_daso_decision d = {4, 1, 1, ""};
    int changes = 0;
    for (int epoch = 1; epoch < 40; epoch++) {
        char reason[128];
        double loss = epoch % 7 == 0 ? 10.0 / epoch : 10;
        heat.epoch = epoch;
        iso__heat_schedule_epoch_loss(&heat, loss, reason, sizeof(reason));
        changes += end_epoch(&s, &config, epoch * 10, loss, &d);
        expect(&d, heat.global_skip, 1, heat.batches_to_wait);
    }
    cr_assert_gt(changes, 5);
}

Test(daso_policy, plateau_leaves_a_measured_wait) {
    iso_daso_config config = config_of(ISO_POLICY_PLATEAU, 400, 40, -1);
    iso__policy_state s = start(&config);
    iso_daso_decision d = {40, 1, 11, ""};
    const int64_t skip[] = {40, 20, 11, 64, 32, 16, 11, 64};
    for (int epoch = 0; epoch < 3 * 8 - 2; epoch++) {
        end_epoch(&s, &config, epoch, 1, &d);
        expect(&d, skip[epoch / 3], 1, 11);
    }
}

Test(daso_policy, plateau_leaves_blocking_averages_blocking) {
    iso_daso_config config = config_of(ISO_POLICY_PLATEAU, 400, 4, 0);
    iso__policy_state s = start(&config);
    iso_daso_decision d = {4, 1, 0, ""};
    const int64_t skip[] = {4, 2, 1, 64, 32};
    for (int epoch = 0; epoch < 3 * 5 - 2; epoch++) {
        end_epoch(&s, &config, epoch, 1, &d);
        expect(&d, skip[epoch / 3], 1, 0);
    }
}

Test(daso_policy, plateau_keeps_skip_at_or_above_the_wait) {
    iso_daso_config config = config_of(ISO_POLICY_PLATEAU, 400, 6, 5);
    config.local_skip = 4;
    config.max_global_skip = 32;
    iso__policy_state s = start(&config);
    iso_daso_decision d = {6, 4, 5, ""};
    const int64_t expected[][3] = {{6, 4, 5}, {4, 2, 4},  {3, 1, 3},  {2, 1, 2},
                                   {1, 1, 1}, {32, 4, 8}, {16, 2, 7}, {8, 1, 6}};
    for (int epoch = 0; epoch < 3 * 8 - 2; epoch++) {
        const int64_t *now = expected[epoch / 3];
        end_epoch(&s, &config, epoch, 1, &d);
        expect(&d, now[0], now[1], now[2]);
    }
}

// As in HeAT, whose detector gets the losses of cycling epochs only.
Test(daso_policy, plateau_is_not_fed_outside_of_cycling) {
    iso_daso_config config = config_of(ISO_POLICY_PLATEAU, 100, 8, 1);
    config.warmup_steps = 50;
    config.cooldown_steps = 30;
    iso__policy_state s = start(&config);
    iso_daso_decision d = {8, 1, 1, ""};
    for (int64_t step = 0; step < 50; step += 5) cr_assert_not(end_epoch(&s, &config, step, 1, &d));
    cr_assert_eq(s.plateau.last_epoch, 0);
    for (int64_t step = 50; step < 70; step += 5) end_epoch(&s, &config, step, 1, &d);
    cr_assert_eq(s.plateau.last_epoch, 4);
    expect(&d, 4, 1, 1);
    for (int64_t step = 70; step < 100; step++) cr_assert_not(end_epoch(&s, &config, step, 1, &d));
}

Test(daso_policy, plateau_is_fed_by_epochs_only) {
    iso_daso_config config = config_of(ISO_POLICY_PLATEAU, 100, 8, 1);
    iso__policy_state s = start(&config);
    iso_daso_decision d = {8, 1, 1, ""};
    iso_daso_observation o = {.kind = ISO_OBSERVED_SYNC, .step = 5, .loss = NAN};
    for (int i = 0; i < 9; i++) cr_assert_not(decide(&s, &config, &o, &d));
    cr_assert_eq(s.plateau.last_epoch, 0);
}

Test(daso_policy, plateau_says_why) {
    iso_daso_config config = config_of(ISO_POLICY_PLATEAU, 100, 8, 1);
    iso__policy_state s = start(&config);
    iso_daso_decision d = {8, 1, 1, ""};
    for (int i = 0; i < 4; i++) end_epoch(&s, &config, i, 0.5134, &d);
    cr_assert_str_eq(d.reason, "epoch loss 0.5134 on a plateau: wait 1, skip 4");
}

static iso_daso_observation sync_of(double exchange_ms, double step_ms, double divergence) {
    return (iso_daso_observation){.kind = ISO_OBSERVED_SYNC,
                                  .loss = NAN,
                                  .exchange_ms = exchange_ms,
                                  .step_ms = step_ms,
                                  .divergence = divergence};
}

// ---- Rules of the literature ----------------------------------------------------------------------

static int64_t skip_at(iso__policy_state *s, const iso_daso_config *config,
                       const iso_daso_observation *observed, int64_t skip) {
    iso_daso_decision d = {skip, 1, 0, ""};
    decide(s, config, observed, &d);
    return d.global_skip;
}

// int((0.2 / lr)^2), at least 2 and at most 100: by hand.
Test(daso_policy, qsr_follows_the_learning_rate) {
    iso_daso_config config = config_of(ISO_POLICY_QSR, 1000, 2, 0);
    config.max_global_skip = 100;
    iso__policy_state s = start(&config);
    static const double lr[] = {0.4, 0.2, 0.1, 0.07, 0.05, 0.0201, 0.001, 0};
    static const int64_t skip[] = {2, 2, 4, 8, 16, 99, 100, 100};
    for (int i = 0; i < 8; i++) {
        iso_daso_observation sync = {.kind = ISO_OBSERVED_SYNC, .lr = lr[i], .loss = NAN};
        cr_assert_eq(skip_at(&s, &config, &sync, 2), skip[i], "lr %g", lr[i]);
        sync.kind = ISO_OBSERVED_EPOCH;
        cr_assert_eq(skip_at(&s, &config, &sync, 7), 7, "epochs change nothing");
    }
}

// 20 sqrt(lr0 loss / (lr loss0)), rounded up: by hand.
Test(daso_policy, adacomm_follows_the_loss) {
    iso_daso_config config = config_of(ISO_POLICY_ADACOMM, 1000, 20, 0);
    iso__policy_state s = start(&config);
    static const double loss[] = {2, 1, 0.5, 0.02, 0.5, 200},
                        lr[] = {0.1, 0.1, 0.1, 0.1, 0.025, 0.1};
    static const int64_t skip[] = {20, 15, 10, 2, 20, 64};
    for (int i = 0; i < 6; i++) {
        iso_daso_observation epoch = {
            .kind = ISO_OBSERVED_EPOCH, .step = 100 * i, .lr = lr[i], .loss = loss[i]};
        cr_assert_eq(skip_at(&s, &config, &epoch, 20), skip[i], "loss %g", loss[i]);
        epoch.kind = ISO_OBSERVED_SYNC;
        cr_assert_eq(skip_at(&s, &config, &epoch, 7), 7, "rounds change nothing");
    }
}

// ---- Adaptive: an engine without an engine --------------------------------------------------------

// A link and a model: three phases of an exchange are each taken up between steps; divergence grows
// with the steps between sends. What the metrics say of divergence travels with the next exchange.
typedef struct simulation {
    iso_daso_config config;
    iso__daso_schedule schedule;
    iso__policy_state policy;
    iso_daso_decision last;
    double exchange_ms, step_ms, drift; // drift: divergence of one step
    double noise;
    uint64_t random;
    int64_t sent_at, age; // age: of a merge that the policy was not told of; -1: none
    double divergence;    // of the last send, as observed one exchange later
    double told;
    int changes, syncs;
    double worst; // divergence
    int visible;  // merges that had to wait
} simulation;

static double noisy(simulation *m, double value) {
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    double unit = (double)(m->random >> 33) / 2147483648.0 * 2 - 1;
    return value * (1 + m->noise * unit);
}

static int64_t needed(double exchange_ms, double step_ms) {
    return (int64_t)ceil(0.45 * exchange_ms / step_ms) * 2 +
           (int64_t)ceil(0.1 * exchange_ms / step_ms);
}

static void sync(simulation *m, int64_t age) {
    iso_daso_observation observed = {.kind = ISO_OBSERVED_SYNC,
                                     .step = m->schedule.step,
                                     .total_steps = m->config.total_steps,
                                     .loss = NAN,
                                     .exchange_ms = noisy(m, m->exchange_ms),
                                     .step_ms = noisy(m, m->step_ms),
                                     .divergence = m->told};
    m->told = m->divergence;
    m->syncs++;
    m->worst = fmax(m->worst, m->divergence);
    m->visible += age < needed(m->exchange_ms, m->step_ms);
    iso_daso_decision d = {m->schedule.global_skip, m->schedule.local_skip,
                           m->schedule.batches_to_wait, ""};
    if (!decide(&m->policy, &m->config, &observed, &d)) return;
    m->changes++;
    m->last = d;
    iso__daso_schedule_set(&m->schedule, &d);
    cr_assert_eq(m->schedule.global_skip, d.global_skip);
    cr_assert_eq(m->schedule.batches_to_wait, d.batches_to_wait);
}

// The policy is asked where a round begins, of what was merged since the last one began.
static void begin_round(simulation *m, iso__sync_plan *plan) {
    if (m->age >= 0) sync(m, m->age);
    m->age = -1;
    iso__daso_schedule_begin(&m->schedule, plan);
    for (int i = 0; i < plan->count; i++) {
        if (plan->action[i].kind != ISO__SEND) continue;
        m->divergence = noisy(m, m->drift * (double)(m->schedule.step - m->sent_at));
        m->sent_at = m->schedule.step;
    }
}

static void run_syncs(simulation *m, int count) {
    m->changes = m->syncs = m->visible = 0;
    m->worst = 0;
    while (m->syncs < count) {
        iso__sync_plan plan;
        if (m->schedule.begins) begin_round(m, &plan); // the first one
        iso__daso_schedule_step(&m->schedule, &plan);
        cr_assert_eq(m->schedule.phase, ISO__CYCLING);
        for (int i = 0; i < plan.count; i++)
            if (plan.action[i].kind == ISO__MERGE) m->age = plan.action[i].age;
        if (m->schedule.begins) begin_round(m, &plan);
    }
}

static simulation simulate(double exchange_ms, double drift, double noise) {
    simulation m = {.config = config_of(ISO_POLICY_ADAPTIVE, INT64_MAX, 8, 2),
                    .exchange_ms = exchange_ms,
                    .step_ms = 28,
                    .drift = drift,
                    .noise = noise,
                    .age = -1,
                    .random = 11};
    m.policy = start(&m.config);
    iso__daso_schedule_init(&m.schedule, &m.config);
    return m;
}

// Some time later nothing changes any more, exchanges are hidden and divergence is bounded.
static void check_settled(simulation *m) {
    run_syncs(m, 100);
    run_syncs(m, 200);
    cr_assert_eq(m->changes, 0, "still changes: %s", m->last.reason);
    cr_assert_eq(m->visible, 0, "wait %d for %d steps", (int)m->schedule.batches_to_wait,
                 (int)needed(m->exchange_ms, m->step_ms));
    cr_assert_leq(m->schedule.batches_to_wait,
                  2 * needed(m->exchange_ms, m->step_ms) + 4); // not much longer than needed
    cr_assert_leq(m->worst, m->config.max_divergence);
}

// Within a factor of 2 of the largest skip that is allowed.
static void check_skip(const simulation *m) {
    double largest = fmin(m->config.max_divergence / m->drift, (double)m->config.max_global_skip);
    cr_assert((double)m->schedule.global_skip >= largest / 2 - 1, "skip %d of %g",
              (int)m->schedule.global_skip, largest);
}

Test(daso_policy, adaptive_follows_a_link_that_slows_down_and_recovers) {
    simulation m = simulate(100, 0.05 / 40, 0);
    check_settled(&m);
    check_skip(&m);
    int64_t quick = m.schedule.batches_to_wait;
    m.exchange_ms *= 4;
    check_settled(&m);
    int64_t slow = m.schedule.batches_to_wait;
    m.exchange_ms /= 4;
    check_settled(&m);
    cr_assert_geq(slow, 2 * quick);
    cr_assert_leq(m.schedule.batches_to_wait, quick + 2);
}

Test(daso_policy, adaptive_is_not_shaken_by_noise) {
    for (int skip = 12; skip < 64; skip += 5) {
        simulation m = simulate(100, 0.05 / skip, 0.08);
        run_syncs(&m, 100);
        run_syncs(&m, 300);
        cr_assert_leq(m.changes, 1, "%d changes at an allowed skip of %d", m.changes, skip);
        cr_assert_eq(m.visible, 0);
        cr_assert_leq(m.worst, 1.15 * m.config.max_divergence);
        check_skip(&m);
    }
}

Test(daso_policy, adaptive_finds_the_skip_that_divergence_allows) {
    for (double allowed = 8; allowed < 100; allowed *= 1.07) {
        simulation m = simulate(1, 0.05 / allowed, 0);
        m.config.max_divergence = 0.05;
        check_settled(&m);
        check_skip(&m);
    }
}

Test(daso_policy, adaptive_shrinks_in_proportion_and_grows_by_a_half) {
    iso_daso_config config = config_of(ISO_POLICY_ADAPTIVE, 1000, 40, 2);
    const double divergence[] = {0.1, 0.051, 0.049, 0.026, 0.024};
    const int64_t skip[] = {16, 31, 40, 40, 60}; // 40 * 0.8 * 0.05 / 0.1, ...
    for (int i = 0; i < 5; i++) {
        iso__policy_state s = start(&config);
        iso_daso_observation o = sync_of(0, 0, divergence[i]);
        iso_daso_decision d = {40, 1, 2, ""};
        cr_assert_not(decide(&s, &config, &o, &d));
        decide(&s, &config, &o, &d);
        expect(&d, skip[i], 1, 2);
    }
}

// A model that begins to drift apart 5 times as fast, and later calms down.
Test(daso_policy, adaptive_follows_divergence_both_ways) {
    simulation m = simulate(20, 0.05 / 50, 0);
    check_settled(&m);
    int64_t calm = m.schedule.global_skip;
    m.drift *= 5;
    check_settled(&m);
    cr_assert_leq(m.schedule.global_skip, 10);
    m.drift /= 5;
    check_settled(&m);
    cr_assert_geq(m.schedule.global_skip, calm / 2);
    check_skip(&m);
}

// Waiting less than an exchange takes would cost time, and what a merge corrects needs time to
// settle, so there the bound gives way.
Test(daso_policy, adaptive_keeps_skip_above_the_wait_whatever_diverges) {
    simulation m = simulate(300, 0.05 / 3, 0);
    run_syncs(&m, 100);
    run_syncs(&m, 100);
    cr_assert_eq(m.changes, 0);
    cr_assert_eq(m.visible, 0);
    cr_assert_eq(m.schedule.batches_to_wait, 14); // 300 / 28 and 3
    cr_assert_eq(m.schedule.global_skip, 21);
}

Test(daso_policy, adaptive_never_exceeds_max_global_skip) {
    simulation m = simulate(1e7, 1e-9, 0);
    m.config.max_global_skip = 12;
    iso__daso_schedule_init(&m.schedule, &m.config);
    run_syncs(&m, 100);
    cr_assert_eq(m.schedule.batches_to_wait, 12);
    cr_assert_eq(m.schedule.global_skip, 12);
}

Test(daso_policy, adaptive_says_why) {
    iso_daso_config config = config_of(ISO_POLICY_ADAPTIVE, 1000, 8, -1);
    iso__policy_state s = start(&config);
    iso_daso_decision d = {8, 1, 8, ""};
    iso_daso_observation o = sync_of(212, 28.1, 0);
    cr_assert(decide(&s, &config, &o, &d));
    cr_assert_str_eq(d.reason, "exchange 212 ms, step 28.1 ms: wait 11, skip 17");
    o.divergence = 0.0123;
    for (int i = 0; i < 3 + 1; i++) cr_assert_not(decide(&s, &config, &o, &d));
    cr_assert(decide(&s, &config, &o, &d));
    cr_assert_str_eq(d.reason, "divergence 0.0123 of at most 0.05: wait 11, skip 26");
    o.divergence = 0.11;
    for (int i = 0; i < 3 + 1; i++) cr_assert_not(decide(&s, &config, &o, &d));
    o.exchange_ms = 1;
    o.step_ms = 60;
    cr_assert(decide(&s, &config, &o, &d));
    expect(&d, 11, 1, 7);
    cr_assert_str_eq(d.reason, "exchange 149 ms, step 37.7 ms, divergence 0.11 of at most 0.05: "
                               "wait 7, skip 11");
}

Test(daso_policy, adaptive_ignores_what_was_not_measured) {
    iso_daso_config config = config_of(ISO_POLICY_ADAPTIVE, 1000, 8, 2);
    iso__policy_state s = start(&config);
    iso_daso_decision d = {8, 1, 2, ""};
    const double unknown[] = {0, NAN, INFINITY, -1};
    for (int i = 0; i < 40; i++) {
        double v = unknown[i % 4];
        iso_daso_observation o = sync_of(v, 28, v);
        cr_assert_not(decide(&s, &config, &o, &d));
    }
    iso_daso_observation epoch = sync_of(500, 28, 0.5);
    epoch.kind = ISO_OBSERVED_EPOCH;
    for (int i = 0; i < 40; i++) cr_assert_not(decide(&s, &config, &epoch, &d));
}

// 100 ms in steps of 20 need a wait of 8.
Test(daso_policy, adaptive_bears_a_wait_that_is_a_little_too_long) {
    iso_daso_config config = config_of(ISO_POLICY_ADAPTIVE, 1000, 40, 2);
    iso_daso_observation o = sync_of(100, 20, 0);
    const int64_t wait[][2] = {{5, 8}, {7, 8}, {8, 8}, {9, 9}, {10, 10}, {11, 8}, {40, 8}};
    for (int i = 0; i < 7; i++) {
        iso__policy_state s = start(&config);
        iso_daso_decision d = {40, 1, wait[i][0], ""};
        decide(&s, &config, &o, &d);
        expect(&d, 40, 1, wait[i][1]);
    }
}

Test(daso_policy, adaptive_leaves_blocking_averages_blocking) {
    iso_daso_config config = config_of(ISO_POLICY_ADAPTIVE, 1000, 8, 0);
    iso__policy_state s = start(&config);
    iso_daso_decision d = {8, 1, 0, ""};
    iso_daso_observation o = sync_of(212, 28, 0.001);
    for (int i = 0; i < 100; i++) decide(&s, &config, &o, &d);
    expect(&d, 64, 1, 0);
}

// As after saving and loading: the bytes are all there is.
Test(daso_policy, bytes_are_the_whole_state) {
    simulation m = simulate(150, 0.05 / 30, 0.05), copy;
    for (int i = 0; i < 60; i++) {
        run_syncs(&m, 3);
        copy = m;
        memset(&copy.policy, 0x5a, sizeof(copy.policy));
        memcpy(&copy.policy, &m.policy, sizeof(m.policy));
        simulation ahead = m;
        run_syncs(&ahead, 20);
        run_syncs(&copy, 20);
        cr_assert_str_eq(ahead.last.reason, copy.last.reason);
        cr_assert_eq(ahead.schedule.step, copy.schedule.step);
        cr_assert_eq(memcmp(&ahead.policy, &copy.policy, sizeof(copy.policy)), 0);
        m.exchange_ms = i % 20 < 10 ? 150 : 400;
    }
}

Test(daso_policy, fixed_and_callback_decide_nothing) {
    iso_daso_config config = config_of(ISO_POLICY_FIXED, 1000, 8, 2);
    iso__policy_state s = start(&config);
    iso_daso_decision d = {8, 1, 2, ""};
    for (int i = 0; i < 100; i++) {
        iso_daso_observation o = sync_of(500, 10, 0.5);
        config.policy = i % 2 ? ISO_POLICY_FIXED : ISO_POLICY_CALLBACK;
        cr_assert_not(decide(&s, &config, &o, &d));
        cr_assert_not(end_epoch(&s, &config, i, 1, &d));
    }
}
