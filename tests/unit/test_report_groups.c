// SPDX-License-Identifier: MIT
// Groups of runs that differ in their seed, in the report of a sweep, and their Pareto front.
#include "sweep/report_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(report_groups, .timeout = 60);

enum { MOST = 16 };
static report_run runs[MOST];
static report_point points[MOST];
static report study = {.target = 0.9, .runs = runs};

static char *settings_of(int run, double seed, const char *more) {
    static char text[MOST][200];
    snprintf(text[run], sizeof(text[run]),
             "--model mlp\n--seed %.0f\n--threads 1\n%s\n--data d%d\n2 ranks\n", seed, more, run);
    return text[run];
}

// accuracy: in the end, and of the only evaluation, at 10 seconds.
static report_run *add_run(const char *name, double seed, double accuracy, const char *more) {
    int i = (int)study.count++;
    points[i] = (report_point){.step = 5, .seconds = 10, .test_accuracy = accuracy};
    runs[i] = (report_run){.name = (char *)name,
                           .options = "",
                           .settings = settings_of(i, seed, more),
                           .machine = "box",
                           .seed = seed,
                           .ranks = 2,
                           .nodes = 1,
                           .points = &points[i],
                           .point_count = 1,
                           .test_accuracy = accuracy,
                           .train_loss = NAN,
                           .seconds = 20};
    return &runs[i];
}

static void assert_near(double got, double want) {
    cr_assert(fabs(got - want) < 1e-9, "%.12g, not %.12g", got, want);
}

Test(report_groups, hold_the_runs_that_differ_in_their_seed) {
    report_groups all;
    add_run("slow", 3, 0.85, "--lr 1");
    add_run("fast", 2, 0.95, "--lr 2");
    add_run("slow", 1, 0.81, "--lr 1");
    add_run("fast", 1, 0.91, "--lr 2");
    add_run("slow", 2, 0.83, "--lr 1");
    cr_assert(report_groups_make(&study, &all) == ISO_OK);
    cr_assert(all.count == 2 && all.setup_count == 1);
    const report_group *slow = &all.groups[0], *fast = &all.groups[1];
    cr_assert_str_eq(slow->label, "slow");
    cr_assert(slow->count == 3 && fast->count == 2);
    for (int i = 0; i < 3; i++) cr_assert(slow->runs[i]->seed == i + 1);
    report_stat s = report_group_stat(&all, slow, report_accuracy);
    assert_near(s.mean, 0.83);
    assert_near(s.deviation, 0.02);
    // Only seeds that both have are pairs.
    report_comparison c = report_compare_group(&all, fast, 0);
    cr_assert(c.baseline == slow && c.test.difference.count == 2);
    assert_near(c.test.difference.mean, 0.11);
    cr_assert(report_compare_group(&all, slow, 0).baseline == NULL);
    report_groups_free(&all);
}

// By hand: differences 0.01, 0.02, 0.03 have mean 0.02, deviation 0.01, t = 2 sqrt(3) = 3.4641 and
// p = 1 - t / sqrt(2 + t^2) = 0.07418.
Test(report_groups, are_compared_with_the_chosen_baseline) {
    report_groups all;
    for (int seed = 1; seed <= 3; seed++) {
        add_run("first", seed, 0.7 + 0.05 * seed, "--lr 1");
        add_run("base", seed, 0.8 - 0.05 * seed, "--lr 2");
        add_run("better", seed, 0.8 - 0.05 * seed + 0.01 * seed, "--lr 3");
    }
    study.baseline = "base";
    cr_assert(report_groups_make(&study, &all) == ISO_OK);
    report_comparison c = report_compare_group(&all, &all.groups[2], 0);
    cr_assert(c.baseline == &all.groups[1]);
    assert_near(c.test.difference.mean, 0.02);
    assert_near(c.test.t, 2 * sqrt(3));
    assert_near(c.test.p, 1 - sqrt(12.0 / 14));
    // The other comparison, of "first", counts for Holm.
    double other = report_compare_group(&all, &all.groups[0], 0).test.p;
    assert_near(c.holm, other > c.test.p ? 2 * c.test.p : fmax(2 * other, c.test.p));
    report_groups_free(&all);
}

Test(report_groups, of_other_machines_ranks_or_shared_options_are_other_setups) {
    report_groups all;
    add_run("a", 1, 0.8, "--lr 1");
    add_run("a", 1, 0.8, "--lr 1")->ranks = 4;
    add_run("a", 1, 0.8, "--lr 1")->machine = "other box";
    add_run("a", 1, 0.8, "--lr 1\n--dtype f64");
    add_run("a", 2, 0.8, "--lr 1\n--dtype f32");
    add_run("a", 2, 0.8, "--lr 1");
    cr_assert(report_groups_make(&study, &all) == ISO_OK);
    // An option that only one of the two lists counts unless it has its default, as in run 4.
    cr_assert(all.setup_count == 4 && all.count == 4, "%lld, %lld", (long long)all.setup_count,
              (long long)all.count);
    cr_assert_str_eq(all.groups[0].label, "a [A]");
    cr_assert_str_eq(all.groups[1].label, "a [B]");
    cr_assert_str_eq(all.setups[2].first->machine, "other box");
    cr_assert(report_group_baseline(&all, &all.groups[1]) == NULL);
    report_groups_free(&all);
}

Test(report_groups, of_one_name_and_other_settings_are_numbered) {
    report_groups all;
    add_run("a", 1, 0.8, "--lr 1");
    add_run("a", 1, 0.8, "--lr 2");
    cr_assert(report_groups_make(&study, &all) == ISO_OK);
    cr_assert(all.count == 2 && all.setup_count == 1);
    cr_assert_str_eq(all.groups[1].label, "a #2");
    cr_assert(!report_same_run(&runs[0], &runs[1]));
    runs[1].settings = runs[0].settings;
    cr_assert(report_same_run(&runs[0], &runs[1]));
    runs[1].seed = 2;
    cr_assert(!report_same_run(&runs[0], &runs[1]));
    report_groups_free(&all);
}

Test(report_groups, have_a_time_to_the_target_if_every_seed_reached_it) {
    report_groups all;
    int64_t order[2];
    add_run("half", 1, 0.95, "--lr 1");
    add_run("half", 2, 0.85, "--lr 1");
    add_run("all", 1, 0.91, "--lr 2");
    add_run("all", 2, 0.91, "--lr 2");
    cr_assert(report_groups_make(&study, &all) == ISO_OK);
    cr_assert(report_group_reached(&all, &all.groups[0]) == 1);
    cr_assert(isnan(report_group_stat(&all, &all.groups[0], report_target_seconds).mean));
    assert_near(report_group_stat(&all, &all.groups[1], report_target_seconds).mean, 10);
    report_groups_rank(&all, order);
    cr_assert(order[0] == 1 && order[1] == 0);
    report_groups_free(&all);
}

static void assert_stat(const report_groups *all, report_value value, int64_t count, double mean) {
    report_stat s = report_group_stat(all, &all->groups[0], value);
    cr_assert(s.count == count, "%lld, not %lld", (long long)s.count, (long long)count);
    if (isnan(mean)) cr_assert(isnan(s.mean));
    if (!isnan(mean)) assert_near(s.mean, mean);
}

// Of seeds 1 to 5, 3 failed, 4 failed in an earlier sweep and is to be made again, as is 5.
Test(report_groups, tell_which_seeds_they_lack) {
    report_run left[] = {{.name = "a", .options = "", .seed = 4},
                         {.name = "a", .options = "", .seed = 5},
                         {.name = "b", .options = "", .seed = 5},
                         {.name = "a", .options = "--lr 2", .seed = 5}};
    report_groups all;
    for (int seed = 1; seed <= 5; seed++) add_run("a", seed, 0.9 + seed / 100.0, "--lr 1");
    add_run("b", 1, 0.95, "--lr 2");
    report_run failed[] = {runs[2], runs[3], runs[4]};
    runs[2] = runs[5];
    study.count = 3;
    study.failed = failed;
    study.failed_count = 2;
    cr_assert(report_groups_make(&study, &all) == ISO_OK);
    cr_assert(all.groups[0].count == 2 && all.groups[0].failed == 2 && all.groups[0].left == 0);
    cr_assert_str_eq(all.groups[0].label, "a (2 of 4 seeds)");
    cr_assert_str_eq(all.groups[1].label, "b");
    report_groups_free(&all);
    study.left = left;
    study.left_count = 4;
    cr_assert(report_groups_make(&study, &all) == ISO_OK);
    cr_assert(all.groups[0].failed == 2 && all.groups[0].left == 1);
    cr_assert_str_eq(all.groups[0].label, "a (2 of 5 seeds)");
    cr_assert_str_eq(all.groups[1].label, "b (1 of 2 seeds)");
    cr_assert(report_group_reached(&all, &all.groups[0]) == 2);
    assert_stat(&all, report_accuracy, 2, 0.915);
    assert_stat(&all, report_target_seconds, 2, NAN); // a run that failed did not reach it
    assert_stat(&all, report_target_steps, 2, NAN);
    report_groups_free(&all);
    study.failed_count = 0; // what is not made yet says nothing of the target
    cr_assert(report_groups_make(&study, &all) == ISO_OK);
    assert_stat(&all, report_target_seconds, 2, 10);
    cr_assert_str_eq(all.groups[0].label, "a (2 of 4 seeds)");
    report_groups_free(&all);
}

Test(report_groups, compare_the_seeds_that_both_have) {
    report_groups all;
    for (int seed = 1; seed <= 3; seed++) add_run("a", seed, 0.91 + seed / 100.0, "--lr 1");
    for (int seed = 1; seed <= 3; seed++) add_run("b", seed, 0.93 + seed / 50.0, "--lr 2");
    report_run failed = runs[5];
    study.count = 5;
    study.failed = &failed;
    study.failed_count = 1;
    cr_assert(report_groups_make(&study, &all) == ISO_OK);
    report_comparison c = report_compare_group(&all, &all.groups[1], 0);
    cr_assert(c.seeds == 3 && c.test.difference.count == 2);
    assert_near(c.test.difference.mean, 0.035);
    c = report_compare_group(&all, &all.groups[1], 2); // the time to the target
    cr_assert(c.seeds == 3 && isnan(c.test.difference.mean));
    report_groups_free(&all);
}

Test(report_groups, on_the_pareto_front_are_beaten_by_none) {
    const double cost[] = {3, 1, 2, 2, 4, NAN, 1};
    const double gain[] = {9, 5, 7, 6, 9, 99, 5};
    const bool want[] = {true, true, true, false, false, false, true};
    bool front[7];
    report_pareto_front(cost, gain, 7, front);
    for (int i = 0; i < 7; i++) cr_assert(front[i] == want[i], "point %d", i);
}
