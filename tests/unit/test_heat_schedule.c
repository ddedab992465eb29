// SPDX-License-Identifier: MIT
// HeAT's DASO schedule against tables of HeAT's state machine, and what must hold in any run.
#include "optim/periodic/sync_plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(heat_schedule, .timeout = 60);

static iso__heat_schedule make(iso_daso_heat_config config, int groups) {
    iso__heat_schedule s;
    cr_assert_eq(iso__heat_config_check(&config), ISO_OK);
    iso__heat_schedule_init(&s, &config, groups);
    return s;
}

static iso_daso_heat_config config_of(int64_t total_epochs, int64_t last_batch) {
    iso_daso_heat_config config = ISO_DASO_HEAT_DEFAULT;
    config.total_epochs = total_epochs;
    config.last_batch = last_batch;
    return config;
}

// ---- Batches --------------------------------------------------------------------------------------

// "S1 M0@2/1 B0 F1": send of group 1, merge of group 0 at age 2 with weight 1, node-local copy from
// local rank 0, full average of group 1.
static void text_of(const iso__sync_plan *plan, char *out, size_t room) {
    *out = 0;
    for (int i = 0; i < plan->count; i++) {
        const iso__action *a = &plan->action[i];
        size_t used = strlen(out);
        cr_assert_not(a->state);
        snprintf(out + used, room - used, "%s%c%d", i > 0 ? " " : "", "SMF?B?"[a->kind],
                 a -> group);
        used = strlen(out);
        if (a->kind == ISO__MERGE)
            snprintf(out + used, room - used, "@%d/%d", (int)a->age, (int)a->weight);
    }
}

typedef struct table {
    int64_t global_skip, local_skip, batches_to_wait;
    int batches;
    const char *plans;      // of the batches that have one, in order
    const char *local_sync; // in the backward of each batch: N (on) or r (off); NULL: always on
} table;

static void check_epoch(iso__heat_schedule *s, const table *t) {
    char all[1000] = "", text[100];
    for (int b = 0; b < t->batches; b++) {
        iso__sync_plan plan;
        char expected = t->local_sync ? t->local_sync[b] : 'N';
        cr_assert_eq(s->local_sync, expected == 'N', "local sync in backward of batch %d", b);
        cr_assert_eq(iso__heat_schedule_step(s, &plan), ISO_OK);
        cr_assert_eq(plan.next, s->local_sync ? ISO_SCOPE_NODE : ISO_SCOPE_RANK);
        text_of(&plan, text, sizeof(text));
        size_t used = strlen(all);
        if (plan.count > 0)
            snprintf(all + used, sizeof(all) - used, "%sb%d %s", used ? "; " : "", b, text);
    }
    cr_assert_str_eq(all, t->plans, "%d groups:\n%s\nnot\n%s", s->groups, all, t->plans);
}

// Groups start again with every epoch, so a second one has the same table.
static void check(const table *t, int groups) {
    iso__heat_schedule s = make(config_of(10, t->batches - 1), groups);
    s.global_skip = t->global_skip;
    s.local_skip = t->local_skip;
    s.batches_to_wait = t->batches_to_wait;
    check_epoch(&s, t);
    check_epoch(&s, t);
    cr_assert_eq(s.epoch, 2);
    cr_assert_eq(s.batch, 0);
}
#define CHECK(groups, ...) check(&(table){__VA_ARGS__}, groups)

Test(heat_schedule, blocking_batches_are_heats_table) {
    CHECK(4, 0, 0, 0, 5, "b0 S0 F0 B0; b1 S1 F1 B1; b2 S2 F2 B2; b3 S3 F3 B3; b4 S0 F0 B0", NULL);
}

Test(heat_schedule, skip_4_wait_1_is_heats_table) {
    CHECK(4, 4, 1, 1, 10,
          "b0 S0; b1 M0@1/1 B0; b4 S1 B0; b5 M1@1/1 B1; b8 S2 B1; b9 S3 M2@1/1 B2 F3 B3", NULL);
}

Test(heat_schedule, skip_2_wait_1_is_heats_table) {
    CHECK(4, 2, 1, 1, 8,
          "b0 S0; b2 S1 M0@2/1 B0; b4 S2 M1@2/1 B1; b6 S3 M2@2/1 B2; b7 S0 M3@1/1 B3 F0 B0", NULL);
}

Test(heat_schedule, skip_1_wait_1_is_heats_table) {
    CHECK(4, 1, 1, 1, 6,
          "b0 S0; b1 S1 M0@1/1 B0; b2 S2 M1@1/1 B1; b3 S3 M2@1/1 B2; b4 S0 M3@1/1 B3; "
          "b5 S1 M0@1/1 B0 F1 B1",
          NULL);
}

Test(heat_schedule, skip_8_local_2_wait_2_is_heats_table) {
    CHECK(4, 8, 2, 2, 20,
          "b0 S0; b2 M0@2/2 B0; b8 S1 B0; b10 M1@2/2 B1; b16 S2 B1; b19 S3 M2@3/2 B2 F3 B3",
          "NNNrNrNrNNNrNrNrNNNN");
}

// By HeAT's rules: off after the merge until before a multiple of local_skip; on while waiting.
Test(heat_schedule, local_skip_begins_when_the_wait_is_over) {
    CHECK(4, 8, 4, 2, 12, "b0 S0; b2 M0@2/2 B0; b8 S1 B0; b11 S2 M1@3/2 B1 F2 B2", "NNNrNrrrNNNN");
    CHECK(4, 8, 5, 5, 14, "b0 S0; b5 M0@5/5 B0; b8 S1 B0; b13 S2 M1@5/5 B1 F2 B2",
          "NNNNNNrrNNNNNN");
}

// The same rules with 1, 2 and 3 leader groups.
Test(heat_schedule, other_group_counts_take_turns) {
    CHECK(3, 0, 0, 0, 4, "b0 S0 F0 B0; b1 S1 F1 B1; b2 S2 F2 B2; b3 S0 F0 B0", NULL);
    CHECK(1, 0, 0, 0, 3, "b0 S0 F0 B0; b1 S0 F0 B0; b2 S0 F0 B0", NULL);
    CHECK(1, 2, 1, 1, 8,
          "b0 S0; b2 S0 M0@2/1 B0; b4 S0 M0@2/1 B0; b6 S0 M0@2/1 B0; b7 S0 M0@1/1 B0 F0 B0", NULL);
    CHECK(2, 4, 1, 1, 10,
          "b0 S0; b1 M0@1/1 B0; b4 S1 B0; b5 M1@1/1 B1; b8 S0 B1; b9 S1 M0@1/1 B0 F1 B1", NULL);
    CHECK(3, 2, 1, 1, 8,
          "b0 S0; b2 S1 M0@2/1 B0; b4 S2 M1@2/1 B1; b6 S0 M2@2/1 B2; b7 S1 M0@1/1 B0 F1 B1", NULL);
    CHECK(3, 8, 2, 2, 20,
          "b0 S0; b2 M0@2/2 B0; b8 S1 B0; b10 M1@2/2 B1; b16 S2 B1; b19 S0 M2@3/2 B2 F0 B0",
          "NNNrNrNrNNNrNrNrNNNN");
}

// The wait is cut off at the end of the epoch: stored as 2 at batch 8, over at batch 9.
Test(heat_schedule, end_of_epoch_cuts_the_wait_off) {
    CHECK(4, 8, 1, 4, 11, "b0 S0; b4 M0@4/4 B0; b8 S1 B0; b9 M1@1/2 B1; b10 S2 B1 F2 B2", NULL);
    CHECK(4, 4, 1, 1, 1, "b0 S0 F0 B0", NULL);
}

// A wait that reaches the next send ends there, at the true age of 4.
Test(heat_schedule, wait_ends_at_the_next_send) {
    CHECK(4, 4, 1, 6, 10, "b0 S0; b4 S1 M0@4/6 B0; b8 S2 M1@4/5 B1; b9 S3 M2@1/1 B2 F3 B3", NULL);
}

// What max_global_skips 2 with local_skip_factor 4 comes to.
Test(heat_schedule, wait_0_averages_without_delay) {
    CHECK(4, 2, 1, 0, 6, "b0 S0 F0 B0; b2 S1 F1 B1; b4 S2 F2 B2; b5 S3 F3 B3", NULL);
}

Test(heat_schedule, step_needs_last_batch) {
    iso__heat_schedule s = make(config_of(3, -1), 2);
    iso__sync_plan plan;
    cr_assert_eq(iso__heat_schedule_step(&s, &plan), ISO_ERR_STATE);
    cr_assert(strstr(iso_last_error()->message, "iso_daso_heat_set_last_batch"));
    s.config.last_batch = 0;
    cr_assert_eq(iso__heat_schedule_step(&s, &plan), ISO_OK);
    cr_assert_eq(s.epoch, 1);
}

Test(heat_schedule, epoch_ends_where_last_batch_has_passed) {
    iso__heat_schedule s = make(config_of(3, 9), 2);
    iso__sync_plan plan;
    for (int i = 0; i < 6; i++) iso__heat_schedule_step(&s, &plan);
    s.config.last_batch = 3;
    cr_assert_eq(iso__heat_schedule_step(&s, &plan), ISO_OK);
    cr_assert(s.epoch == 1 && s.batch == 0);
}

// ---- Epochs ---------------------------------------------------------------------------------------

typedef struct row {
    int first, last;
    int64_t skips[3]; // global_skip, local_skip, batches_to_wait
} row;

static bool end_epoch(iso__heat_schedule *s, double loss) {
    iso__sync_plan plan;
    char reason[128] = "";
    int64_t epoch = s->epoch;
    while (s->epoch == epoch) cr_assert_eq(iso__heat_schedule_step(s, &plan), ISO_OK);
    bool changed = iso__heat_schedule_epoch_loss(s, loss, reason, sizeof(reason));
    cr_assert_eq(changed, *reason != 0, "reason \"%s\"", reason);
    cr_assert(!strchr(reason, '\n'));
    return changed;
}

static void check_epochs(iso_daso_heat_config config, const row *rows) {
    iso__heat_schedule s = make(config, 4);
    for (int64_t epoch = 0; epoch < config.total_epochs; epoch++) {
        while (epoch > rows->last) rows++;
        const int64_t got[3] = {s.global_skip, s.local_skip, s.batches_to_wait};
        cr_assert_arr_eq(got, rows->skips, sizeof(got), "epoch %d has (%d, %d, %d)", (int)epoch,
                         (int)got[0], (int)got[1], (int)got[2]);
        bool changed = end_epoch(&s, 1);
        const int64_t then[3] = {s.global_skip, s.local_skip, s.batches_to_wait};
        cr_assert_eq(changed, memcmp(then, got, sizeof(got)) != 0);
    }
}

Test(heat_schedule, epochs_of_constant_loss_are_heats_table) {
    check_epochs(config_of(40, 3), (const row[]){{0, 3, {0, 0, 0}},
                                                 {4, 6, {4, 1, 1}},
                                                 {7, 9, {2, 1, 1}},
                                                 {10, 12, {1, 1, 1}},
                                                 {13, 15, {8, 2, 2}},
                                                 {16, 18, {4, 1, 1}},
                                                 {19, 21, {2, 1, 1}},
                                                 {22, 24, {1, 1, 1}},
                                                 {25, 27, {8, 2, 2}},
                                                 {28, 30, {4, 1, 1}},
                                                 {31, 33, {2, 1, 1}},
                                                 {34, 35, {1, 1, 1}},
                                                 {36, 39, {0, 0, 0}}});
}

Test(heat_schedule, falling_loss_changes_nothing) {
    iso__heat_schedule s = make(config_of(40, 3), 4);
    for (int epoch = 0; epoch < 35; epoch++) {
        bool changed = end_epoch(&s, pow(0.9, epoch));
        cr_assert_eq(changed, epoch == 3, "epoch %d", epoch);
    }
    cr_assert_eq(s.global_skip, 4);
}

// HeAT's condition for the begin of cycling is never met without warm-up: it stays blocking.
Test(heat_schedule, warmup_0_cycles_after_the_first_epoch) {
    iso_daso_heat_config config = config_of(12, 3);
    config.warmup_epochs = 0;
    config.cooldown_epochs = 1;
    check_epochs(config, (const row[]){{0, 0, {0, 0, 0}},
                                       {1, 3, {4, 1, 1}},
                                       {4, 6, {2, 1, 1}},
                                       {7, 9, {1, 1, 1}},
                                       {10, 10, {8, 2, 2}},
                                       {11, 11, {0, 0, 0}}});
}

// In HeAT: (2,0,0), a remainder of a division by 0, and a wait of -1.
Test(heat_schedule, max_below_local_skip_factor_gives_no_negative_wait) {
    iso_daso_heat_config config = config_of(14, 3);
    config.warmup_epochs = config.cooldown_epochs = 1;
    config.max_global_skips = 2;
    check_epochs(config, (const row[]){{0, 0, {0, 0, 0}},
                                       {1, 3, {2, 1, 1}},
                                       {4, 6, {1, 1, 1}},
                                       {7, 9, {2, 1, 0}},
                                       {10, 12, {1, 1, 1}},
                                       {13, 13, {0, 0, 0}}});
}

// In HeAT the skip becomes 0 and stays there.
Test(heat_schedule, large_reduction_factor_stops_at_1) {
    iso_daso_heat_config config = config_of(11, 3);
    config.warmup_epochs = config.cooldown_epochs = 1;
    config.skip_reduction_factor = 100;
    check_epochs(config, (const row[]){{0, 0, {0, 0, 0}},
                                       {1, 3, {4, 1, 1}},
                                       {4, 6, {1, 1, 1}},
                                       {7, 9, {8, 2, 2}},
                                       {10, 10, {0, 0, 0}}});
}

Test(heat_schedule, max_0_counts_as_1) {
    iso_daso_heat_config config = config_of(11, 3);
    config.warmup_epochs = config.cooldown_epochs = 1;
    config.max_global_skips = 0;
    check_epochs(config,
                 (const row[]){
                     {0, 0, {0, 0, 0}}, {1, 3, {1, 1, 1}}, {4, 9, {1, 1, 0}}, {10, 10, {0, 0, 0}}});
}

Test(heat_schedule, large_max_starts_again_from_it) {
    iso_daso_heat_config config = config_of(24, 3);
    config.warmup_epochs = config.cooldown_epochs = 1;
    config.max_global_skips = 32;
    check_epochs(config, (const row[]){{0, 0, {0, 0, 0}},
                                       {1, 3, {4, 1, 1}},
                                       {4, 6, {2, 1, 1}},
                                       {7, 9, {1, 1, 1}},
                                       {10, 12, {32, 8, 8}},
                                       {13, 15, {16, 4, 7}},
                                       {16, 18, {8, 2, 6}},
                                       {19, 21, {4, 1, 5}},
                                       {22, 22, {2, 1, 4}},
                                       {23, 23, {0, 0, 0}}});
}

Test(heat_schedule, warmup_and_cooldown_longer_than_the_run_never_cycle) {
    iso_daso_heat_config config = config_of(5, 3);
    check_epochs(config, (const row[]){{0, 4, {0, 0, 0}}});
    config.warmup_epochs = 9;
    check_epochs(config, (const row[]){{0, 4, {0, 0, 0}}});
}

Test(heat_schedule, missed_call_at_the_end_of_warmup_is_made_good) {
    iso__heat_schedule s = make(config_of(40, 1), 4);
    iso__sync_plan plan;
    for (int i = 0; i < 2 * 5; i++) cr_assert_eq(iso__heat_schedule_step(&s, &plan), ISO_OK);
    cr_assert_eq(s.global_skip, 0);
    cr_assert(end_epoch(&s, 1));
    cr_assert_eq(s.epoch, 6);
    cr_assert_eq(s.global_skip, 4);
}

Test(heat_schedule, loss_before_the_first_epoch_begins_nothing) {
    iso_daso_heat_config config = config_of(12, 3);
    config.warmup_epochs = 0;
    iso__heat_schedule s = make(config, 4);
    char reason[128];
    cr_assert_not(iso__heat_schedule_epoch_loss(&s, 1, reason, sizeof(reason)));
    cr_assert_eq(s.global_skip, 0);
}

Test(heat_schedule, reasons_name_the_loss_and_what_holds_now) {
    char reason[128];
    iso__heat_schedule s = make(config_of(40, 1), 4);
    s.epoch = 4;
    cr_assert(iso__heat_schedule_epoch_loss(&s, 0.5134, reason, sizeof(reason)));
    cr_assert_str_eq(reason, "loss 0.5134, warm-up is over: wait 1, skip 4");
    for (int i = 0; i < 3; i++) iso__heat_schedule_epoch_loss(&s, 0.52, reason, sizeof(reason));
    cr_assert_str_eq(reason, "loss 0.52, loss on a plateau: wait 1, skip 2");
    s.epoch = 36;
    cr_assert(iso__heat_schedule_epoch_loss(&s, 0.4, reason, sizeof(reason)));
    cr_assert_str_eq(reason, "loss 0.4, cool-down: full average after every batch");
}

// ---- Any run --------------------------------------------------------------------------------------

static int64_t between(uint64_t *state, int64_t low, int64_t high) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)(*state >> 33) % (high - low + 1);
}

static iso_daso_heat_config random_config(uint64_t *random) {
    iso_daso_heat_config config = config_of(between(random, 1, 14), between(random, 0, 20));
    config.warmup_epochs = between(random, 0, 3);
    config.cooldown_epochs = between(random, 0, 3);
    config.max_global_skips = between(random, 0, 20);
    config.skip_reduction_factor = between(random, 1, 5);
    config.local_skip_factor = between(random, 1, 6);
    config.stability_level = (double)between(random, 0, 100) / 100;
    return config;
}

typedef struct under_way {
    bool pending;
    int group;
    int64_t batch; // of the run
} under_way;

// Every send is merged once, by its own group and at its true age, before anything else is sent or
// averaged; what a group got is copied to its node at once.
static void follow(const iso__sync_plan *plan, int64_t batch, under_way *old, under_way *fresh) {
    cr_assert_leq(plan->count, ISO__PLAN_ACTIONS);
    *fresh = (under_way){0};
    for (int i = 0; i < plan->count; i++) {
        const iso__action *a = &plan->action[i];
        bool brings = a->kind == ISO__MERGE || a->kind == ISO__FULL;
        if (brings)
            cr_assert(i + 1 < plan->count && a[1].kind == ISO__NODE_COPY && a[1].group == a->group);
        if (a->kind == ISO__SEND) {
            cr_assert(!fresh->pending);
            *fresh = (under_way){true, a->group, batch};
        } else if (a->kind == ISO__MERGE) {
            cr_assert(old->pending && old->group == a->group);
            cr_assert_eq(a->age, batch - old->batch);
            cr_assert_gt(a->weight, 0);
            old->pending = false;
        } else if (a->kind == ISO__FULL) {
            cr_assert(fresh->pending && fresh->group == a->group && !old->pending);
            fresh->pending = false;
        } else {
            cr_assert_eq(a->kind, ISO__NODE_COPY);
        }
    }
    cr_assert(!fresh->pending || !old->pending);
}

static void run_epoch(iso__heat_schedule *s, int64_t *batch, under_way *old, uint64_t *random) {
    int64_t epoch = s->epoch;
    char reason[128];
    while (s->epoch == epoch) {
        iso__sync_plan plan;
        under_way fresh;
        if (s->batch == s->config.last_batch) cr_assert(s->local_sync);
        cr_assert_eq(iso__heat_schedule_step(s, &plan), ISO_OK);
        follow(&plan, (*batch)++, old, &fresh);
        if (fresh.pending) *old = fresh;
        cr_assert_eq(s->pending, old->pending);
        bool averaged = plan.count > 0 && plan.action[plan.count - 1].kind == ISO__NODE_COPY;
        if (s->global_skip == 0) cr_assert(averaged);
        // Somebody calls it in the middle of an epoch.
        if (between(random, 0, 49) == 0)
            iso__heat_schedule_epoch_loss(s, 1, reason, sizeof(reason));
    }
    cr_assert(!old->pending);
    cr_assert_eq(s->send_group, 0);
    iso__heat_schedule_epoch_loss(s, (double)between(random, 1, 3), reason, sizeof(reason));
    cr_assert_geq(s->batches_to_wait, 0);
    bool cycles = s->epoch >= s->config.warmup_epochs &&
                  s->epoch < s->config.total_epochs - s->config.cooldown_epochs;
    cr_assert_eq(s->global_skip >= 1, cycles);
}

Test(heat_schedule, no_run_loses_an_exchange) {
    uint64_t random = 7;
    for (int run = 0; run < 3000; run++) {
        iso__heat_schedule s = make(random_config(&random), (int)between(&random, 1, 5));
        int64_t batch = 0;
        under_way old = {0};
        while (s.epoch < s.config.total_epochs) run_epoch(&s, &batch, &old, &random);
    }
}

static bool same_plan(const iso__sync_plan *a, const iso__sync_plan *b) {
    char text[2][100];
    text_of(a, text[0], sizeof(text[0]));
    text_of(b, text[1], sizeof(text[1]));
    return a->next == b->next && strcmp(text[0], text[1]) == 0;
}

// As after saving and loading: the bytes are all there is.
Test(heat_schedule, bytes_are_the_whole_state) {
    iso_daso_heat_config config = config_of(30, 12);
    config.warmup_epochs = 1;
    iso__heat_schedule s = make(config, 3);
    for (int stop = 0; stop < 29 * 13; stop++) {
        iso__sync_plan plan, other;
        unsigned char bytes[sizeof(s)];
        memcpy(bytes, &s, sizeof(s));
        iso__heat_schedule copy = make(config_of(1, 0), 1);
        memcpy(&copy, bytes, sizeof(s));
        char reason[2][128] = {"", ""};
        for (int i = 0; i < 30; i++) {
            cr_assert_eq(iso__heat_schedule_step(&s, &plan), ISO_OK);
            cr_assert_eq(iso__heat_schedule_step(&copy, &other), ISO_OK);
            cr_assert(same_plan(&plan, &other));
            if (s.batch != 0) continue;
            bool changed = iso__heat_schedule_epoch_loss(&s, 1, reason[0], sizeof(reason[0]));
            cr_assert_eq(iso__heat_schedule_epoch_loss(&copy, 1, reason[1], sizeof(reason[1])),
                         changed);
            cr_assert_str_eq(reason[0], reason[1]);
        }
        memcpy(&s, bytes, sizeof(s));
        cr_assert_eq(iso__heat_schedule_step(&s, &plan), ISO_OK);
        if (s.batch == 0) iso__heat_schedule_epoch_loss(&s, 1, reason[0], sizeof(reason[0]));
    }
}

Test(heat_schedule, reset_starts_over) {
    iso__heat_schedule s = make(config_of(40, 9), 4), fresh = s;
    iso__sync_plan plan, other;
    for (int epoch = 0; epoch < 12; epoch++) end_epoch(&s, 1);
    for (int i = 0; i < 7; i++) iso__heat_schedule_step(&s, &plan);
    cr_assert(s.global_skip > 0 && s.plateau.best == 1);
    iso__heat_schedule_reset(&s);
    for (int i = 0; i < 25; i++) {
        iso__heat_schedule_step(&s, &plan);
        iso__heat_schedule_step(&fresh, &other);
        cr_assert(same_plan(&plan, &other));
    }
    cr_assert_eq(s.epoch, 2);
    cr_assert(s.plateau.best == INFINITY);
}

// ---- Checks ---------------------------------------------------------------------------------------

static void refused(iso_daso_heat_config config, const char *words) {
    cr_assert_eq(iso__heat_config_check(&config), ISO_ERR_ARG, "%s", words);
    cr_assert(strstr(iso_last_error()->message, words), "\"%s\" has not \"%s\"",
              iso_last_error()->message, words);
}
#define REFUSED(member, value, words)                                                              \
    do {                                                                                           \
        iso_daso_heat_config config_ = config_of(3, 3);                                            \
        config_.member = (value);                                                                  \
        refused(config_, words);                                                                   \
    } while (0)

Test(heat_schedule, config_is_checked_as_in_heat) {
    REFUSED(total_epochs, 0, "total_epochs is 0, it must be 1 or more");
    REFUSED(total_epochs, -3, "total_epochs is -3");
    REFUSED(warmup_epochs, -1, "warmup_epochs is -1, it must be 0 or more");
    REFUSED(cooldown_epochs, -1, "cooldown_epochs is -1");
    REFUSED(max_global_skips, -1, "max_global_skips is -1");
    REFUSED(sending_chunk_size, 0, "sending_chunk_size is 0, it must be 1 or more");
    REFUSED(skip_reduction_factor, 0, "skip_reduction_factor is 0");
    REFUSED(local_skip_factor, -4, "local_skip_factor is -4");
    REFUSED(last_batch, -2, "last_batch is -2");
    REFUSED(stability_level, -0.1, "stability_level is -0.1");
    REFUSED(stability_level, NAN, "stability_level is nan");
    REFUSED(downcast_type, ISO_F64, "downcast_type");
    REFUSED(downcast_type, (iso_dtype)17, "element type 17");
}

Test(heat_schedule, config_takes_the_least_values_of_heat) {
    iso_daso_heat_config config = config_of(1, 0);
    config.warmup_epochs = config.cooldown_epochs = config.max_global_skips = 0;
    config.sending_chunk_size = config.skip_reduction_factor = config.local_skip_factor = 1;
    config.stability_level = 0;
    const iso_dtype types[] = {ISO_BF16, ISO_F16, ISO_F32};
    for (int i = 0; i < 3; i++) {
        config.downcast_type = types[i];
        cr_assert_eq(iso__heat_config_check(&config), ISO_OK);
    }
}
