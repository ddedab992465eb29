// SPDX-License-Identifier: MIT
// What the report of a sweep predicts for another network, against sums made by hand.
#include "sweep/report_predict.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(report_predict, .timeout = 60);

enum { STEPS = 10, COMPUTE = 20 }; // of a run between two evaluations; ms of a step

static report study = {.target = 0.9, .network = {.rate = 100}};

// The bytes of 2 nodes together that take so long at 100 Mbit/s, with the headers of TCP.
static double bytes_for(double ms) { return ms * 1e5 * 2 / 8 * 1448 / 1514; }

// Steps that compute 20 ms and wait for the exchange of gradients.
static report_point point_of(int number, double wait, double exchange) {
    return (report_point){.step = STEPS * number,
                          .seconds = number * STEPS * (COMPUTE + wait) / 1e3,
                          .between = bytes_for(exchange) * STEPS * number,
                          .wait_ms_per_step = wait,
                          .test_accuracy = 0.5 * number};
}

static report_run run_of(report_point *points, int count, char *settings, double alone) {
    return (report_run){.settings = settings,
                        .nodes = 2,
                        .points = points,
                        .point_count = count,
                        .steps = STEPS * count,
                        .seconds = points[count - 1].seconds,
                        .exchange_alone_ms = alone};
}

static double predicted_seconds(const report *of, const report_run *run) {
    return report_predict(of, run).seconds;
}
static double predicted_target_seconds(const report *of, const report_run *run) {
    return report_predict(of, run).target_seconds;
}

static void assert_near(double got, double want) {
    cr_assert(fabs(got - want) < 1e-9, "%.12g, not %.12g", got, want);
}

Test(report_predict, blocking_waits_for_all_of_it) {
    report_point points[] = {point_of(1, 10, 100), point_of(2, 10, 100)};
    report_run run = run_of(points, 2, "--sync blocking\n", 12);
    assert_near(predicted_seconds(&study, &run), 2 * STEPS * (COMPUTE + 100) / 1e3);
    assert_near(predicted_target_seconds(&study, &run), 2 * STEPS * 0.12);
    points[0].test_accuracy = 0.95;
    assert_near(predicted_target_seconds(&study, &run), STEPS * 0.12);
    points[0].test_accuracy = points[1].test_accuracy = 0.5;
    cr_assert(isnan(predicted_target_seconds(&study, &run)));
}

// Of 40 ms it hid 15. It waited for 5/8 of them: so it could hide 3/8 of the other 5 ms, too. Then
// it waited 1.875 ms longer than for the exchange.
Test(report_predict, lazy_hides_what_it_has_shown) {
    report_point points[] = {point_of(1, 25, 100)};
    report_run run = run_of(points, 1, "--sync lazy\n", 40);
    assert_near(predicted_seconds(&study, &run), STEPS * (COMPUTE + 100 - 16.875 + 1.875) / 1e3);
}

Test(report_predict, lazy_without_waits_may_hide_up_to_all_that_it_computes) {
    report_point points[] = {point_of(1, 0, 100)};
    report_run run = run_of(points, 1, "--sync lazy\n", 5);
    assert_near(predicted_seconds(&study, &run), STEPS * 0.1);
}

Test(report_predict, a_faster_network_gains_nothing) {
    report report_fast = {.network = {.rate = 1e6}};
    report_point points[] = {point_of(1, 25, 100)};
    report_run run = run_of(points, 1, "--sync lazy\n", 40);
    assert_near(predicted_seconds(&report_fast, &run), run.seconds);
}

// One rank exchanges nothing anywhere; what several on a node would send to others is not known.
Test(report_predict, ranks_of_one_node_cannot_be_predicted) {
    report_point points[] = {point_of(1, 25, 0)};
    report_run run = run_of(points, 1, "--sync lazy\n", 40);
    run.nodes = 1;
    run.ranks = 1;
    assert_near(predicted_seconds(&study, &run), run.seconds);
    run.ranks = 2;
    cr_assert(report_is_local(&run) && isnan(predicted_seconds(&study, &run)));
}

// 4 nodes: 4 messages in turn, and half the bytes for each.
Test(report_predict, latency_counts_for_each_message_in_turn) {
    report slow = {.network = {.rate = 100, .latency = 3}};
    report_point points[] = {point_of(1, 10, 100)};
    report_run run = run_of(points, 1, "--sync blocking\n", 12);
    run.nodes = 4;
    assert_near(predicted_seconds(&slow, &run), STEPS * (COMPUTE + 50 + 12) / 1e3);
}

// ---- Exchanges of parameters --------------------------------------------------------------------

// 20 steps with one exchange that takes 130 ms at 100 Mbit/s, sent in step 2.
static double periodic(double age, double period, const char *period_asked, const char *wait_asked,
                       double wait_ms) {
    report_point points[] = {point_of(2, 0, 0)};
    report_sync sync = {.step = 2 + age,
                        .age = age,
                        .wait_ms = wait_ms,
                        .exchange_ms = 30,
                        .period = period,
                        .wait = age,
                        .between = 1000};
    report_run run = run_of(points, 1, "--sync daso\n--policy fixed\n", NAN);
    points[0].parameters = points[0].between = bytes_for(130);
    points[0].wait_ms_per_step = wait_ms / 20;
    points[0].seconds = 0.4 + wait_ms / 1e3;
    run.syncs = &sync;
    run.sync_count = 1;
    strcpy(run.period_requested, period_asked);
    strcpy(run.wait_requested, wait_asked);
    return predicted_seconds(&study, &run);
}

Test(report_predict, exchanges_of_parameters_hide_behind_the_steps_until_the_merge) {
    assert_near(periodic(4, 8, "8", "4", 0), 0.4 + 0.05);
    assert_near(periodic(4, 8, "8", "4", 7), 0.4 + 0.05 + 0.007);
    assert_near(periodic(0, 8, "8", "0", 40), 0.4 + 0.13);
    assert_near(periodic(8, 8, "8", "8", 3), 0.4 + 0.003); // all of it is hidden
}

// An automatic wait grows up to the period; what daso times first takes longer, too.
Test(report_predict, an_automatic_wait_hides_up_to_the_period) {
    double timed = 4 * 0.1;
    assert_near(periodic(4, 6, "6", "auto", 0), 0.4 + 0.01 + timed);
    assert_near(periodic(4, 6, "auto", "auto", 0), 0.4 + timed);
}

// What daso chose at 1000 Mbit/s in a run of 200 steps, and its merges at 200 and 100 Mbit/s.
Test(report_predict, an_automatic_period_is_chosen_again) {
    report_sync syncs[] = {{.step = 30, .age = 11, .period = 17, .wait = 11, .wait_ms = 2.4},
                           {.step = 47, .age = 11, .period = 17, .wait = 11},
                           {.step = 183, .age = 11, .period = 17, .wait = 11},
                           {.step = 198, .age = 0, .wait_ms = 136}};
    report_run run = {
        .settings = "--policy fixed\n--max-period 64\n", .steps = 200, .syncs = syncs};
    run.sync_count = 4;
    strcpy(run.period_requested, "auto");
    strcpy(run.wait_requested, "auto");
    report_sync now[4];
    cr_assert_eq(report_resync(&run, 56.1, 1.5, now), 4);
    assert_near(now[0].step, 60); // sent in step 19, whatever the wait is
    assert_near(now[0].age, 41);
    assert_near(now[0].wait_ms, 0);
    assert_near(now[1].step, 122); // a period of 62 later
    assert_near(now[2].step, 184);
    assert_near(now[3].step, 198);
    cr_assert_eq(report_resync(&run, 112.2, 1.5, now), 4); // wait and period are at most 64
    assert_near(now[0].step, 83);
    assert_near(now[1].step, 147);
    assert_near(now[2].step, 198); // sent in step 147, merged at the end
    assert_near(now[2].age, 51);
    cr_assert_eq(report_resync(&run, 11.2, 1.5, now), -1);
    run.settings = "--policy adaptive\n";
    cr_assert_eq(report_resync(&run, 56.1, 1.5, now), -1);
    run.settings = "--policy fixed\n";
    strcpy(run.period_requested, "11");
    cr_assert_eq(report_resync(&run, 56.1, 1.5, now), -1);
}

// Sent in step 8, to be merged in step 12; the evaluation after step 10 waits for it.
Test(report_predict, an_evaluation_ends_what_is_hidden) {
    report_point points[] = {point_of(1, 0, 0), point_of(2, 0, 0)};
    report_sync sync = {.step = 12, .age = 4, .exchange_ms = 30, .between = 1000};
    report_run run = run_of(points, 2, "--sync daso\n", NAN);
    for (int i = 0; i < 2; i++) points[i].parameters = points[i].between = bytes_for(100);
    points[0].test_accuracy = 1;
    run.syncs = &sync;
    run.sync_count = 1;
    assert_near(predicted_seconds(&study, &run), 0.4 + 0.06);
    assert_near(predicted_target_seconds(&study, &run), 0.2 + 0.06);
}

// In phases that average gradients each step sends 2 (nodes - 1) times the gradients.
Test(report_predict, gradients_of_a_warm_up_count_for_the_steps_that_sent_them) {
    report_point points[] = {point_of(1, 0, 0), point_of(2, 0, 0)};
    report_sync sync = {.step = 15, .age = 8, .exchange_ms = 30, .between = 1000};
    report_run run = run_of(points, 2, "--sync daso\n", NAN);
    run.bytes_per_step = bytes_for(100) / 2;
    points[0].between = bytes_for(200); // of two steps
    points[1].parameters = bytes_for(10);
    points[1].between = bytes_for(210);
    run.syncs = &sync;
    run.sync_count = 1;
    assert_near(predicted_seconds(&study, &run), 0.4 + 2 * 0.08);
}

Test(report_predict, logs_that_lack_numbers_are_not_predicted) {
    report_point points[] = {point_of(1, 10, 100)};
    report_run run = run_of(points, 1, "--sync lazy\n", 12);
    cr_assert(!isnan(predicted_seconds(&study, &run)));
    points[0].between = NAN;
    cr_assert(isnan(predicted_seconds(&study, &run)));
    points[0].between = 1;
    points[0].wait_ms_per_step = NAN;
    run.wait_ms_per_step = NAN;
    cr_assert(isnan(predicted_seconds(&study, &run)));
    run.wait_ms_per_step = 10; // of the whole run
    cr_assert(!isnan(predicted_seconds(&study, &run)));
    cr_assert(isnan(predicted_seconds(&(report){.target = 0.9}, &run)));
}
