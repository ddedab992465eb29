// SPDX-License-Identifier: MIT
// Who meets whom in a tournament, and who wins.
#include "optim/periodic/sync_plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { MOST = 9, TURNS = 400 };

// Partners name each other, and at most one trainer has none.
static void pair_up(int trainers, uint64_t seed, int64_t turn, int partner[MOST]) {
    int order[MOST], alone = 0;
    iso__tournament_pairs(seed, turn, trainers, order, partner);
    for (int i = 0; i < trainers; i++) {
        cr_assert(partner[i] >= 0 && partner[i] < trainers && partner[partner[i]] == i);
        alone += partner[i] == i;
    }
    cr_assert_eq(alone, trainers % 2);
}

Test(tournament_pairs, partners_name_each_other) {
    int partner[MOST];
    for (int trainers = 1; trainers <= MOST; trainers++)
        for (int64_t turn = 0; turn < TURNS; turn++) pair_up(trainers, 3, turn, partner);
}

// Each of the 15 pairs of 6 trainers, and each of 5 that are alone, comes about equally often:
// 80 times in 400 on average, with a standard deviation of 8.
Test(tournament_pairs, every_pair_comes_as_often) {
    int partner[MOST], met[6][6] = {{0}}, alone[5] = {0};
    for (int64_t turn = 0; turn < TURNS; turn++) {
        pair_up(6, 11, turn, partner);
        for (int i = 0; i < 6; i++) met[i][partner[i]]++;
        pair_up(5, 11, turn, partner);
        for (int i = 0; i < 5; i++) alone[i] += partner[i] == i;
    }
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 6; k++)
            cr_assert(i == k ? met[i][k] == 0 : met[i][k] > 40 && met[i][k] < 120, "%d", met[i][k]);
    for (int i = 0; i < 5; i++) cr_assert(alone[i] > 40 && alone[i] < 120);
}

Test(tournament_pairs, seed_and_turn_decide) {
    int a[MOST], b[MOST], equal_turns = 0, equal_seeds = 0;
    for (int64_t turn = 0; turn < TURNS; turn++) {
        pair_up(8, 1, turn, a);
        pair_up(8, 1, turn, b);
        cr_assert(memcmp(a, b, sizeof(int) * 8) == 0);
        pair_up(8, 1, turn + 1, b);
        equal_turns += memcmp(a, b, sizeof(int) * 8) == 0;
        pair_up(8, 2, turn, b);
        equal_seeds += memcmp(a, b, sizeof(int) * 8) == 0;
    }
    cr_assert(equal_turns < 20 && equal_seeds < 20); // 105 pairings are possible
}

Test(tournament_pairs, the_better_model_wins) {
    const struct {
        double theirs, own;
        bool loss, accuracy;
    } row[] = {
        {1, 2, true, false},         {2, 1, false, true},           {1, 1, false, false},
        {NAN, 1, false, false},      {1, NAN, true, true},          {NAN, NAN, false, false},
        {INFINITY, 1, false, false}, {1, INFINITY, true, true},     {-INFINITY, 1, false, false},
        {1, -INFINITY, true, true},  {INFINITY, NAN, false, false}, {-0.0, 0.0, false, false},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        cr_assert_eq(iso__tournament_better(ISO_TOURNAMENT_LOSS, row[i].theirs, row[i].own),
                     row[i].loss, "row %zu", i);
        cr_assert_eq(iso__tournament_better(ISO_TOURNAMENT_ACCURACY, row[i].theirs, row[i].own),
                     row[i].accuracy, "row %zu", i);
    }
}
