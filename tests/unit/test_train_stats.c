// SPDX-License-Identifier: MIT
// What the train program makes of its metrics.
#include "examples/train/train.h"

#include <criterion/criterion.h>
#include <math.h>

TestSuite(train_stats, .timeout = 60);

// The last one is of a run that printed "-4505 % hidden".
Test(train_stats, hidden_is_a_part_or_not_measurable) {
    static const double table[][3] = {// exchange, wait, hidden
                                      {10, 0, 1},   {10, 2.5, 0.75}, {10, 10, 0},   {10, 11, 0},
                                      {0, 0, NAN},  {0, 3, NAN},     {NAN, 1, NAN}, {10, NAN, NAN},
                                      {-1, 1, NAN}, {0.02, 0.921, 0}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        double hidden = train_hidden(table[i][0], table[i][1]), expected = table[i][2];
        cr_assert(isnan(expected) ? isnan(hidden) : fabs(hidden - expected) < 1e-12, "row %d: %g",
                  (int)i, hidden);
    }
}

Test(train_stats, loss_in_the_end_is_of_an_epoch_or_a_tenth) {
    static const int64_t table[][3] = {// steps, steps of an epoch, last steps
                                       {100, 100, 100}, {250, 100, 100}, {99, 100, 10},
                                       {50, 469, 5},    {1, 469, 1},     {11, 469, 2}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        train_run run = {.steps = table[i][0], .epoch_steps = table[i][1]};
        cr_assert_eq(train_last_steps(&run), table[i][2], "row %d", (int)i);
    }
}

// ---- Stragglers -------------------------------------------------------------------------------------

// Three ranks, two buckets; rank 1 is later by `late` ms from the given bucket on.
static train_straggler find_in(double late, int from, double step_ms) {
    double lag[3][2] = {{7, 5.1}, {7.1, 5}, {6.9, 5}}, wait[3] = {4, 4, 3.8};
    for (int r = 0; r < 3; r++)
        for (int b = from; b < 2; b++) lag[r][b] += r == 1 ? 0 : late;
    if (late > 0) wait[0] += late, wait[2] += late;
    return train_find_straggler(3, 2, &lag[0][0], wait, step_ms);
}

Test(train_stats, the_straggler_is_the_rank_that_is_regularly_late) {
    train_straggler s = find_in(20, 0, 50);
    cr_assert(s.rank == 1 && s.bucket == 0 && fabs(s.late_ms - 20) < 0.5);
    cr_assert(fabs(s.cost_ms - 19.8) < 1e-9, "%g", s.cost_ms);
    s = find_in(20, 1, 50); // one layer takes long
    cr_assert(s.rank == 1 && s.bucket == 1 && fabs(s.late_ms - 20) < 0.5);
}

Test(train_stats, noise_is_no_straggler) {
    cr_assert_eq(find_in(0, 0, 50).rank, -1);
    cr_assert_eq(find_in(4.5, 0, 50).rank, -1, "below a tenth of a step");
    cr_assert_eq(find_in(5.5, 0, 50).rank, 1);
    cr_assert_eq(find_in(0.3, 0, 1).rank, -1, "below half a millisecond");
    double lag[3] = {9, 1, 9}, alike[3] = {2, 4, 4};
    cr_assert_eq(train_find_straggler(3, 1, lag, alike, 10).rank, -1, "nobody waits for it");
    double one = 1;
    cr_assert_eq(train_find_straggler(1, 1, &one, &one, 1).rank, -1);
    double early[3] = {1, 1, 9}, wait[3] = {1, 1, 9}; // early, which keeps nobody waiting
    cr_assert_eq(train_find_straggler(3, 1, early, wait, 10).rank, -1);
}
