// SPDX-License-Identifier: MIT
// Local SGD, with and without levels, against runs of PyTorch's averagers, step by step.
#include "common/daso_fixture.h"
#include "common/fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np3_torch_averagers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_torch_averagers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np8_torch_averagers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);

// Of the recorded runs. Ours are longer, because the last step of a run averages in any case.
enum { STEPS = 24, LONGER = STEPS + 9, MOST_RANKS = 8 };

// Parameters are below 100, and amounts are multiples of 1/16.
#define ROUNDING 1e-4

typedef struct run {
    fixture *golden;
    trainer t;
    const double *amount, *expected; // [STEPS][MOST_RANKS] and [STEPS][ranks]
    float *start;
    int warmup; // steps that add the mean over ranks
} run;

static void open_run(run *r, const char *levels, int recorded_warmup, const iso_daso_config *daso) {
    char name[64];
    int64_t count;
    daso_case c = daso_case_default(LONGER);
    c.daso = *daso;
    c.train.hyper.lr = 0; // the amounts take the place of updates
    snprintf(name, sizeof(name), "%dranks.%s.warmup%d", test_size, levels, recorded_warmup);
    r->warmup = (int)daso->warmup_steps;
    r->golden = fixture_open("averagers.txt");
    r->amount = fixture_get(r->golden, NULL, "amounts", &count);
    iso_assert_all(count == (int64_t)STEPS * MOST_RANKS);
    r->expected = fixture_get(r->golden, NULL, name, &count);
    iso_assert_all(count == (int64_t)STEPS * test_size);
    iso_assert_ok(daso_open(&r->t, MPI_COMM_WORLD, &c));
    iso_assert_all((r->start = daso_values(&r->t, &count)) != NULL);
}

static void close_run(run *r) {
    free(r->start);
    daso_close(&r->t);
    fixture_close(&r->golden);
}

static double take_amount(const run *r, int step) {
    const double *amount = r->amount + step * MOST_RANKS;
    double sum = 0;
    if (step >= r->warmup) return amount[test_rank];
    for (int i = 0; i < test_size; i++) sum += amount[i];
    return sum / test_size;
}

// Element k is where it started plus k mod 7 times PyTorch's number.
static bool is_torchs(run *r, int step) {
    double expected = r->expected[step * test_size + test_rank], worst = 0;
    int64_t count;
    float *now = daso_values(&r->t, &count);
    if (!now) return false;
    for (int64_t k = 0; k < count; k++)
        worst = fmax(worst, fabs(now[k] - (r->start[k] + (double)(k % 7) * expected)));
    free(now);
    if (worst >= ROUNDING)
        fprintf(stderr, "rank %d, step %d: %g from PyTorch's\n", test_rank, step, worst);
    return worst < ROUNDING;
}

static void follow(run *r) {
    for (int step = 0; step < STEPS; step++) {
        iso_assert_ok(daso_drift(&r->t, (float)take_amount(r, step)));
        iso_assert_ok(trainer_step(&r->t, step, NULL));
        iso_assert_all(is_torchs(r, step));
    }
}

// ---- HierarchicalModelAverager ------------------------------------------------------------------

static void follow_levels(const char *levels, int warmup) {
    run r;
    iso_daso_config parsed = ISO_DASO_DEFAULT;
    iso_assert_ok(iso_daso_levels_parse(levels, &parsed));
    iso_daso_config daso =
        iso_hierarchical_sgd_config(LONGER, warmup, parsed.level, parsed.level_count);
    open_run(&r, levels, warmup, &daso);
    follow(&r);
    close_run(&r);
}

Test(np4_torch_averagers, two_levels) {
    follow_levels("2:2,4:4", 0);
    follow_levels("2:2,4:4", 3);
    follow_levels("2:2,4:4", 4);
    follow_levels("1:2,3:4", 0);
    follow_levels("1:2,3:4", 3);
}
Test(np4_torch_averagers, periods_that_do_not_divide_each_other) {
    follow_levels("3:2,4:4", 0);
    follow_levels("3:2,4:4", 5);
}
Test(np4_torch_averagers, a_level_of_one_rank) { follow_levels("1:1,2:2,6:4", 0); }
Test(np3_torch_averagers, a_level_of_one_rank) {
    follow_levels("2:1,3:3", 0);
    follow_levels("2:1,3:3", 2);
}
Test(np8_torch_averagers, three_levels) {
    follow_levels("2:2,3:4,6:8", 0);
    follow_levels("2:2,3:4,6:8", 3);
}

// ---- PeriodicModelAverager ----------------------------------------------------------------------

// PyTorch averages for the first time after the first step on its own, which has the result of a
// step of the warm-up here: a sum of updates is linear. Ours is one step longer.
static void follow_period(int period, int warmup) {
    run r;
    char text[16];
    iso_daso_config daso = iso_post_local_sgd_config(LONGER, warmup + 1, period);
    snprintf(text, sizeof(text), "%d", period);
    open_run(&r, text, warmup, &daso);
    follow(&r);
    close_run(&r);
}

Test(np4_torch_averagers, one_period) {
    follow_period(4, 0);
    follow_period(4, 3);
}
Test(np3_torch_averagers, one_period) {
    follow_period(3, 4);
    follow_period(1, 2);
}
