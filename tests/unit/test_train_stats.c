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
