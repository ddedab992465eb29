// SPDX-License-Identifier: MIT
// Periodic training with outer optimizers against the formulas of the papers on a serial model, and
// what goes wrong.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/outer_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_outer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_outer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_outer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_outer, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Ranks that train alone, with blocking exchanges.
static daso_case case_of(int64_t steps, int64_t period, const iso_outer *rule) {
    daso_case c = daso_case_default(steps);
    c.daso.unit = ISO_SCOPE_RANK;
    c.daso.global_skip = period;
    c.daso.batches_to_wait = 0;
    c.daso.outer = rule;
    return c;
}

// ---- Equivalences ---------------------------------------------------------------------------------

// What comes after step number `finished`, from 1, on the model.
static void synchronise(outer_model *o, const iso_daso_config *c, int64_t finished) {
    int64_t since = finished - c->warmup_steps, wait = c->batches_to_wait;
    bool round = since % c->global_skip == 0, end = finished == c->total_steps;
    bool ripe = o->sent_at[0] >= 0 && finished - o->sent_at[0] == wait;
    o->age = finished - o->sent_at[0];
    if (o->sent_at[0] >= 0 && (ripe || round || end)) outer_model_merge(o, 0);
    o->age = 0;
    if (round && !(end && wait > 0)) outer_model_send(o, 0, finished);
    if (round && wait == 0) outer_model_merge(o, 0);
    if (end) outer_model_mean(o);
}

// warmup_steps of data parallelism come first.
static void follows_model(const daso_case *c) {
    trainer t;
    daso_model m;
    outer_model o = {0};
    double apart = 0;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    iso_assert_ok(daso_model_open(&m, &t, c));
    for (int step = 0; step < c->daso.total_steps; step++) {
        bool warm = step < c->daso.warmup_steps;
        if (step == c->daso.warmup_steps)
            outer_model_create(&o, &m, c->daso.outer, c->train.hyper.lr);
        o.state = c->daso.state == ISO_STATE_SYNC_AVERAGE;
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_batch(&m, step, warm ? ISO_SCOPE_WORLD : c->daso.unit));
        if (!warm) synchronise(&o, &c->daso, step + 1);
        iso_assert_all(daso_follows(&t, &m, c->daso.outer->name));
        apart = fmax(apart, model_spread(&m));
    }
    iso_assert_all(daso_equal(&t) && (test_size == 1 || apart > 1e-3));
    outer_model_destroy(&o);
    model_destroy(&m);
    daso_close(&t);
}

// All rules, with a last round that is whole, and one that is not.
static void rules_follow_papers(int64_t wait) {
    const iso_outer *rules[] = {&iso_outer_mean,   &iso_outer_sgd,  &iso_outer_nesterov,
                                &iso_outer_slowmo, &iso_outer_pull, &iso_outer_adam};
    for (int i = 0; i < 6; i++) {
        iso_outer rule = *rules[i];
        daso_case c = case_of(i % 2 ? 20 : 22, 4, &rule);
        if (i == 1) rule.lr = 0.6;
        if (wait > 0 && rule.replaces) rule.mix = 0.3;
        c.daso.batches_to_wait = wait;
        follows_model(&c);
    }
}

Test(np1_outer, rules_follow_papers) { rules_follow_papers(0); }
Test(np2_outer, rules_follow_papers) { rules_follow_papers(0); }
Test(np3_outer, rules_follow_papers_while_waiting) { rules_follow_papers(2); }
Test(np4_outer, rules_follow_papers_with_a_whole_round_of_overlap) { rules_follow_papers(4); }

Test(np4_outer, anchor_is_what_the_warm_up_ends_with) {
    daso_case c = case_of(19, 5, &iso_outer_nesterov);
    c.daso.warmup_steps = 4;
    follows_model(&c);
}

// Nodes of two ranks average gradients in between; differences travel from the anchor.
Test(np4_outer, nodes_follow_papers) {
    daso_case c = case_of(22, 4, &iso_outer_slowmo);
    c.ranks_per_node = 2;
    c.daso.unit = ISO_SCOPE_NODE;
    follows_model(&c);
}

// With a wait of 0 the plain mean is local SGD, bit for bit.
Test(np3_outer, mean_is_local_sgd) {
    uint64_t plain, with_mean;
    daso_case c = case_of(23, 5, NULL);
    iso_assert_ok(daso_hash(MPI_COMM_WORLD, &c, 0, &plain));
    c.daso.outer = &iso_outer_mean;
    iso_assert_ok(daso_hash(MPI_COMM_WORLD, &c, 0, &with_mean));
    iso_assert_all(plain == with_mean);
}

// QSR on a learning rate that halves: rounds of (0.02 / 0.01)^2 = 4 steps, then of 16, and a round
// of the outer optimizer ends each.
Test(np2_outer, qsr_stretches_rounds) {
    trainer t;
    iso_daso_stats stats;
    static const int64_t last[] = {4, 8, 24, 40};
    int64_t syncs = 0;
    daso_case c = case_of(40, 2, &iso_outer_nesterov);
    c.daso.policy = ISO_POLICY_QSR;
    c.daso.qsr_alpha = 0.02;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int step = 0; step < 40; step++) {
        iso_optimizer_hyper(t.optimizer)->lr = step < 7 ? 0.01 : 0.005;
        iso_assert_ok(trainer_step(&t, step, NULL));
        if (step + 1 == last[syncs]) syncs++;
        iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
        iso_assert_all(stats.syncs == syncs);
    }
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
}

// ---- Wires ----------------------------------------------------------------------------------------

static float *trained(iso_wire wire, const iso_outer *rule, int64_t *count) {
    trainer t;
    daso_case c = case_of(40, 4, rule);
    c.daso.wire = wire;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 40));
    iso_assert_all(daso_equal(&t));
    float *values = daso_values(&t, count);
    daso_close(&t);
    return values;
}

// Differences from the anchor are as small as what a rank learns in a round, so that rounding them
// costs little, and error feedback returns it.
static void wire_is_close_to_f32(iso_wire wire, const iso_outer *rule, double most) {
    int64_t count;
    double distance = 0, size = 0;
    float *exact = trained(ISO_WIRE_F32, rule, &count), *rounded = trained(wire, rule, &count);
    for (int64_t k = 0; k < count; k++) {
        distance += pow((double)exact[k] - (double)rounded[k], 2);
        size += pow((double)exact[k], 2);
    }
    double relative = sqrt(distance / size);
    if (!(relative > 0 && relative < most)) fprintf(stderr, "%s: %g\n", rule->name, relative);
    iso_assert_all(relative > 0 && relative < most);
    free(exact);
    free(rounded);
}

Test(np2_outer, rounded_differences_are_close) {
    wire_is_close_to_f32(ISO_WIRE_BF16, &iso_outer_nesterov, 2e-3);
    wire_is_close_to_f32(ISO_WIRE_INT8, &iso_outer_nesterov, 2e-3);
    wire_is_close_to_f32(ISO_WIRE_INT8, &iso_outer_slowmo, 2e-3);
    wire_is_close_to_f32(ISO_WIRE_INT8, &iso_outer_pull, 2e-3);
    wire_is_close_to_f32(ISO_WIRE_FP8, &iso_outer_nesterov, 1e-2);
    wire_is_close_to_f32(ISO_WIRE_INT4, &iso_outer_nesterov, 5e-2);
}

// The parameters of a run whose ranks drift apart in the first step and learn nothing later, so
// that only the momentum of the outer optimizer moves them.
static float *coasted(iso_wire wire, int64_t *count) {
    trainer t;
    daso_case c = case_of(12, 2, &iso_outer_nesterov);
    c.daso.wire = wire;
    c.train.hyper.lr = c.train.hyper.momentum = 0;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int step = 0; step < 12; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        if (step == 0) iso_assert_ok(daso_drift(&t, 0.125f * (float)(test_rank + 1)));
    }
    float *values = daso_values(&t, count);
    daso_close(&t);
    return values;
}

// Differences are from the anchor, which momentum moves away from the last mean. Here bf16
// represents those of the first round, and the later ones are zero.
Test(np2_outer, momentum_does_not_travel) {
    int64_t count;
    double worst = 0;
    float *exact = coasted(ISO_WIRE_F32, &count), *rounded = coasted(ISO_WIRE_BF16, &count);
    for (int64_t k = 0; k < count; k++)
        worst = fmax(worst, fabs((double)exact[k] - (double)rounded[k]));
    if (worst > 1e-5) fprintf(stderr, "%g\n", worst);
    iso_assert_all(worst < 1e-5);
    free(exact);
    free(rounded);
}

// ---- State ----------------------------------------------------------------------------------------

// BMUF with average_sync: momentum is averaged with the parameters. After a wait it is merged by
// HeAT's rule, with a rule that sends what it computes, too.
static void state_travels_along(int64_t wait) {
    const iso_outer *rules[] = {&iso_outer_nesterov, wait > 0 ? &iso_outer_pull : &iso_outer_sgd};
    for (int i = 0; i < 2; i++) {
        daso_case c = case_of(14, 4, rules[i]);
        c.daso.batches_to_wait = wait;
        c.daso.state = ISO_STATE_SYNC_AVERAGE;
        follows_model(&c);
    }
}

Test(np2_outer, state_travels_along) {
    state_travels_along(0);
    state_travels_along(2);
}
Test(np3_outer, state_travels_along) { state_travels_along(0); }

// ---- Faults ---------------------------------------------------------------------------------------

static int destroyed;
static void count_destroyed(void *user) { *(int *)user += 1; }

static void refuse(const daso_case *c, iso_status status, const char *words) {
    trainer t;
    iso_outer rule = *c->daso.outer;
    daso_case bad = *c;
    rule.user = &destroyed;
    rule.destroy = count_destroyed;
    bad.daso.outer = &rule;
    destroyed = 0;
    iso_assert_all(daso_open(&t, MPI_COMM_WORLD, &bad) == status);
    bool says = strstr(iso_last_error()->message, words) != NULL;
    if (!says) fprintf(stderr, "says %s\n", iso_last_error()->message);
    iso_assert_all(says && destroyed == 1);
    daso_close(&t);
}

Test(np2_outer, bad_configs_are_refused_everywhere) {
    iso_outer other = iso_outer_nesterov;
    daso_case c = case_of(10, 2, &other);
    other.momentum = test_rank == 1 ? 0.8 : 0.9;
    refuse(&c, ISO_ERR_MISMATCH, "momentum");
    other.momentum = 1;
    refuse(&c, ISO_ERR_ARG, "momentum is 1");
    c.daso.outer = &iso_outer_mean;
    c.daso.level_count = 1;
    c.daso.level[0] = (iso_daso_level){2, 2};
    refuse(&c, ISO_ERR_ARG, "levels average groups of ranks");
    c = case_of(10, 2, &iso_outer_mean);
    c.daso.fragments = 3;
    refuse(&c, ISO_ERR_ARG, "3 fragments need a global_skip of at least 3");
    c.daso.fragments = ISO_DASO_FRAGMENTS + 1;
    refuse(&c, ISO_ERR_ARG, "fragments is 33");
    c = case_of(20, 8, &iso_outer_mean);
    c.daso.fragments = 5;
    c.daso.fragment_order = ISO_FRAGMENT_STRIDES;
    refuse(&c, ISO_ERR_ARG, "4 layers with parameters cannot be divided among 5 fragments");
    c.daso.local_skip = 2;
    refuse(&c, ISO_ERR_ARG, "fragments need");
}

Test(np1_outer, rule_is_destroyed_once) {
    trainer t;
    iso_outer rule = iso_outer_mean;
    daso_case c = case_of(10, 2, &rule);
    rule.user = &destroyed;
    rule.destroy = count_destroyed;
    destroyed = 0;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    cr_assert_eq(destroyed, 0);
    daso_close(&t);
    cr_assert_eq(destroyed, 1);
}

// ---- Fragments ------------------------------------------------------------------------------------

// The layers of build_smooth in strides.
static int *parts_of(const trainer *t, int fragments, int64_t count) {
    iso_parameter_list list;
    int *part = malloc((size_t)count * sizeof(*part));
    int64_t k = 0;
    iso_assert_ok(iso_module_parameters(t->model, &list));
    for (int i = 0; i < list.count; i++) // a weight and a bias each
        for (int64_t j = 0; j < iso_tensor_count(list.item[i]->value); j++)
            part[k++] = i / 2 % fragments;
    iso_parameter_list_destroy(&list);
    return part;
}

static void synchronise_fragments(outer_model *o, const iso_daso_config *c, int64_t finished) {
    int64_t period = c->global_skip, wait = c->batches_to_wait;
    bool end = finished == c->total_steps;
    for (int f = 0; f < c->fragments; f++)
        if (o->sent_at[f] >= 0 && (end || finished - o->sent_at[f] == wait))
            outer_model_merge(o, f);
    for (int f = 0; f < c->fragments; f++) {
        if ((finished + wait - (f + 1) * period / c->fragments) % period != 0) continue;
        if (end && wait > 0) continue;
        outer_model_send(o, f, finished);
        if (wait == 0) outer_model_merge(o, f);
    }
    if (end) outer_model_mean(o);
}

static void fragments_follow_model(const iso_outer *rule, int fragments, int64_t period,
                                   int64_t wait) {
    trainer t;
    daso_model m;
    outer_model o;
    daso_case c = case_of(21, period, rule);
    c.daso.fragments = fragments;
    c.daso.fragment_order = ISO_FRAGMENT_STRIDES;
    c.daso.batches_to_wait = wait;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    outer_model_create(&o, &m, rule, c.train.hyper.lr);
    int *part = parts_of(&t, fragments, m.count);
    o.part = part;
    for (int step = 0; step < 21; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_batch(&m, step, ISO_SCOPE_RANK));
        synchronise_fragments(&o, &c.daso, step + 1);
        iso_assert_all(daso_follows(&t, &m, rule->name));
    }
    iso_assert_all(daso_equal(&t));
    free(part);
    outer_model_destroy(&o);
    model_destroy(&m);
    daso_close(&t);
}

Test(np2_outer, fragments_follow_papers) {
    iso_outer mixed = iso_outer_nesterov;
    mixed.mix = 0.5;
    fragments_follow_model(&mixed, 2, 6, 1);
    fragments_follow_model(&mixed, 3, 5, 0);
}

// Two exchanges in flight at any time, and a fragment that is sent when it has just been merged.
Test(np3_outer, fragments_follow_papers) {
    fragments_follow_model(&iso_outer_adam, 2, 4, 3);
    fragments_follow_model(&iso_outer_pull, 4, 4, 4);
}

// Trajectories of torchft (meta-pytorch/torchft, its regression test of DiLoCo with mocked
// updates): two layers, 2 replicas, start 1, the inner optimizer subtracts 2 in every step, outer
// SGD with lr 2, period 6. The values of a layer after each step.
typedef struct golden {
    int wait;
    double mix, layer[2][16];
} golden;

static const golden torchft[] = {
    {0,
     0,
     {{1, -1, -3, -11, -13, -15, -17, -19, -21, -35, -37, -39, -41, -43, -45, -59},
      {1, -1, -3, -5, -7, -9, -23, -25, -27, -29, -31, -33, -47, -49, -51, -53}}},
    {0,
     0.5,
     {{1, -1, -3, -8, -10, -12, -14, -16, -18, -24.5, -26.5, -28.5, -30.5, -32.5, -34.5, -40.25},
      {1, -1, -3, -5, -7, -9, -17, -19, -21, -23, -25, -27, -32, -34, -36, -38}}},
    {0,
     1,
     {{1, -1, -3, -5, -7, -9, -11, -13, -15, -17, -19, -21, -23, -25, -27, -29},
      {1, -1, -3, -5, -7, -9, -11, -13, -15, -17, -19, -21, -23, -25, -27, -29}}},
    {1,
     0,
     {{1, -1, -3, -7, -9, -11, -13, -15, -17, -27, -29, -31, -33, -35, -37, -47},
      {1, -1, -3, -5, -7, -9, -19, -21, -23, -25, -27, -29, -39, -41, -43, -45}}},
};

// Displacements are proportional to what the inner optimizer subtracts. Element k drifts by
// 0.01 (k mod 7) in every step, where the golden run drifts by -2.
static bool follows_golden(trainer *t, const golden *g, const float *start, int step) {
    int64_t count;
    bool follows = true;
    float *now = daso_values(t, &count);
    int *part = parts_of(t, 2, count);
    for (int64_t k = 0; k < count; k++) {
        double expected =
            (double)start[k] + 0.01 * (double)(k % 7) * (g->layer[part[k]][step] - 1) / -2;
        follows = follows && fabs((double)now[k] - expected) < 1e-5;
    }
    free(part);
    free(now);
    return follows;
}

Test(np2_outer, fragments_follow_torchft) {
    for (int i = 0; i < 4; i++) {
        trainer t;
        int64_t count;
        iso_outer rule = iso_outer_sgd;
        daso_case c = case_of(30, 6, &rule);
        rule.lr = 2;
        rule.momentum = 0;
        rule.mix = torchft[i].mix;
        c.train.hyper.lr = c.train.hyper.momentum = 0;
        c.daso.fragments = 2;
        c.daso.fragment_order = ISO_FRAGMENT_STRIDES;
        c.daso.batches_to_wait = torchft[i].wait;
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        float *start = daso_values(&t, &count);
        for (int step = 1; step < 16; step++) {
            // The first step takes the anchor before it drifts.
            iso_assert_ok(step == 1 ? trainer_step(&t, 0, NULL) : daso_drift(&t, 0.01f));
            iso_assert_ok(step == 1 ? daso_drift(&t, 0.01f) : trainer_step(&t, step, NULL));
            iso_assert_all(follows_golden(&t, &torchft[i], start, step));
        }
        free(start);
        daso_close(&t);
    }
}

// ---- Rules of the caller's own --------------------------------------------------------------------

// Checks what a rule is told: the learning rate of the parameter's group, and which merge it is.
static void watch_merge(const iso_outer *outer, const iso_outer_span *span) {
    bool of_group = span->count == 54 * 16; // the weight of fc1
    int *wrong = outer->user;
    *wrong += span->lr != (of_group ? 0.5 : 0.01) || span->ranks != test_size || span->age != 1;
    *wrong += span->merges < 1 || span->merges > 4 || span->f64;
    wrong[1]++;
}

static bool is_last_weight(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter;
    (void)user;
    return strcmp(name, "fc1.weight") == 0;
}

static iso_status give_it_a_group(iso_optimizer *inner) {
    iso_hyper hyper = *iso_optimizer_hyper(inner);
    hyper.lr = 0.5;
    return iso_optimizer_add_group(inner, &hyper, is_last_weight, NULL, NULL);
}

Test(np2_outer, own_rule_is_told_about_its_parameter) {
    trainer t;
    int wrong[2] = {0, 0};
    iso_outer rule = {.name = "own", .lr = 1, .merge = watch_merge, .user = wrong};
    daso_case c = case_of(16, 4, &rule);
    c.daso.fragments = 2;
    c.daso.fragment_order = ISO_FRAGMENT_STRIDES;
    c.daso.batches_to_wait = 1;
    c.train.prepare = give_it_a_group;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 16));
    iso_assert_all(wrong[0] == 0 && wrong[1] == 4 * 8); // four periods, eight parameters
    daso_close(&t);
}

// A pull leaves ranks with different parameters, also right after a blocking exchange: evaluation
// sees their mean, and training goes on with each rank's own.
Test(np3_outer, evaluation_sees_the_mean) {
    trainer t;
    uint64_t own, again;
    daso_case c = case_of(12, 4, &iso_outer_pull);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 4));
    iso_assert_all(!daso_equal(&t));
    iso_assert_ok(daso_own_hash(&t, &own));
    iso_assert_ok(iso_module_train(t.model, false));
    iso_assert_all(daso_equal(&t));
    iso_assert_ok(iso_module_train(t.model, true));
    iso_assert_ok(daso_own_hash(&t, &again));
    iso_assert_all(own == again && !daso_equal(&t));
    daso_close(&t);
}

// Loading a model after the optimizer was created moves the anchor.
Test(np2_outer, anchor_is_what_the_first_step_finds) {
    trainer t;
    iso_outer still = iso_outer_nesterov;
    int64_t count;
    daso_case c = case_of(4, 2, &still);
    c.train.hyper.lr = c.train.hyper.momentum = 0;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_drift(&t, 1));
    float *before = daso_values(&t, &count);
    iso_assert_ok(trainer_train(&t, 4));
    float *after = daso_values(&t, &count);
    iso_assert_all(memcmp(before, after, (size_t)count * sizeof(float)) == 0);
    free(before);
    free(after);
    daso_close(&t);
}
