// SPDX-License-Identifier: MIT
// Local SGD with levels: groups of ranks of several sizes average parameters, each with its period.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/tensor_access.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_levels, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_levels, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_levels, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_levels, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np6_levels, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np8_levels, .init = resume_setup, .fini = resume_teardown, .timeout = 120);

enum { STEPS = 22 };

static daso_case case_of(const char *levels, int64_t warmup, int64_t wait) {
    daso_case c = daso_case_default(STEPS);
    c.daso = iso_post_local_sgd_config(STEPS, warmup, 1);
    c.daso.batches_to_wait = wait;
    iso_assert_ok(iso_daso_levels_parse(levels, &c.daso));
    return c;
}

// ---- The model ------------------------------------------------------------------------------------

static void follows_model(const char *levels, int64_t warmup, int64_t wait) {
    trainer t;
    daso_model m;
    double apart = 0;
    iso_daso_stats stats;
    daso_case c = case_of(levels, warmup, wait);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < STEPS; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(model_daso_step(&m, &c.daso, step));
        iso_assert_all(daso_follows(&t, &m, "a step"));
        apart = fmax(apart, model_spread(&m));
    }
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(stats.syncs == m.syncs && stats.global_skip == c.daso.level[0].period);
    iso_assert_all(daso_equal(&t) && (test_size == 1 || apart > 1e-3));
    model_destroy(&m);
    daso_close(&t);
}

static void equals_model(const char *levels) {
    follows_model(levels, 0, 0);
    follows_model(levels, 5, 0);
    follows_model(levels, 0, 1);
    follows_model(levels, 5, 2);
}
Test(np1_levels, equals_model) { equals_model("3:1"); }
Test(np2_levels, equals_model) { equals_model("2:1,5:2"); }
Test(np3_levels, equals_model) { equals_model("2:1,6:3"); }
Test(np4_levels, equals_model) { equals_model("2:2,4:4"); }
Test(np6_levels, equals_model) { equals_model("2:3,4:6"); }
Test(np6_levels, periods_need_not_divide_each_other) { equals_model("2:2,3:3,7:6"); }
Test(np8_levels, three_levels_equal_the_model) { follows_model("4:2,8:4,16:8", 3, 0); }

// HierarchicalModelAverager(OrderedDict([(2, 2), (4, 4)]), warmup_steps=3), as PyTorch's source has
// it: averages are taken at its steps 4, 6, 8..., which are our steps 5, 7, 9...
Test(np4_levels, groups_are_equal_when_pytorch_averages_them) {
    trainer t;
    daso_case c = case_of("2:2,4:4", 3, 0);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int step = 0; step < STEPS; step++) {
        uint64_t own, all[4];
        iso_assert_ok(trainer_step(&t, step, NULL));
        iso_assert_ok(daso_own_hash(&t, &own));
        MPI_Allgather(&own, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, MPI_COMM_WORLD);
        bool world = all[0] == all[1] && all[0] == all[2] && all[0] == all[3];
        bool pairs = all[0] == all[1] && all[2] == all[3];
        bool warm = step < 3, last = step + 1 == STEPS;
        iso_assert_all(world == (warm || last || step % 4 == 0));
        iso_assert_all(pairs == (warm || last || step % 2 == 0));
    }
    daso_close(&t);
}

// ---- Bits -----------------------------------------------------------------------------------------

static uint64_t hash_of(const daso_case *c) {
    uint64_t hash = 0;
    iso_assert_ok(daso_hash(MPI_COMM_WORLD, c, 0, &hash));
    return hash;
}

// One level of all ranks after each step is local SGD with period 1.
static void one_level_is_local_sgd(void) {
    char levels[16];
    snprintf(levels, sizeof(levels), "1:%d", test_size);
    daso_case one = case_of(levels, 0, 0), local = daso_case_default(STEPS);
    local.daso = iso_local_sgd_config(STEPS, 1);
    iso_assert_all(hash_of(&one) == hash_of(&local));
}
Test(np2_levels, one_level_is_local_sgd) { one_level_is_local_sgd(); }
Test(np3_levels, one_level_is_local_sgd) { one_level_is_local_sgd(); }

static void speed_does_not_matter(const char *levels) {
    for (int wire = 0; wire < 3; wire++) {
        daso_case c = case_of(levels, 2, 2);
        c.daso.wire = wire == 0 ? ISO_WIRE_F32 : wire == 1 ? ISO_WIRE_BF16 : ISO_WIRE_INT8;
        uint64_t first = hash_of(&c);
        c.delay_us = 3000;
        iso_assert_all(hash_of(&c) == first);
        iso_daso_config named =
            iso_hierarchical_sgd_config(STEPS, 2, c.daso.level, c.daso.level_count);
        named.batches_to_wait = 2;
        named.wire = c.daso.wire;
        c.daso = named;
        iso_assert_all(hash_of(&c) == first);
    }
}
Test(np3_levels, speed_does_not_matter) { speed_does_not_matter("2:1,4:3"); }
Test(np4_levels, speed_does_not_matter) { speed_does_not_matter("2:2,4:4"); }

// ---- Saved state ----------------------------------------------------------------------------------

// In the warm-up, and with exchanges of each level under way and merged. The heat merge counts the
// ranks of the level.
static void goes_on(const char *levels) {
    for (int wire = 0; wire < 2; wire++) {
        daso_case c = case_of(levels, 3, 2);
        c.daso.wire = wire == 0 ? ISO_WIRE_F32 : ISO_WIRE_BF16;
        c.daso.merge = wire == 0 ? ISO_MERGE_HEAT : ISO_MERGE_PROGRESS;
        uint64_t expected = daso_end_of(&c, 0, STEPS);
        for (int stop = 2; stop < 16; stop += 3)
            iso_assert_all(daso_end_of(&c, stop, STEPS) == expected);
    }
}
Test(np3_levels, goes_on_from_a_saved_state) { goes_on("3:1,6:3"); }
Test(np4_levels, goes_on_from_a_saved_state) { goes_on("4:2,8:4"); }

Test(np4_levels, other_levels_do_not_go_on) {
    static const char *const levels[] = {"2:2,4:4", "2:2,8:4", "2:1,4:2,8:4", "4:4"};
    trainer t;
    daso_case c = case_of(levels[0], 3, 0);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 6));
    iso_assert_ok(daso_exchange_state(&t, 6, true));
    daso_close(&t);
    for (int i = 1; i < 4; i++) {
        c = case_of(levels[i], 3, 0);
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        iso_assert_all(daso_exchange_state(&t, 6, false) == ISO_ERR_MISMATCH);
        daso_close(&t);
    }
}

// ---- Wrong use ------------------------------------------------------------------------------------

Test(np4_levels, wrong_lists_are_refused_in_a_sentence) {
    static const struct {
        const char *levels, *said;
    } bad[] = {
        {"2:2,4:2", "the number of ranks must rise from level to level, and 2 follows 2"},
        {"4:2,2:4", "the period must rise from level to level, and 2 follows 4"},
        {"0:2,2:4",
         "levels 0:2,2:4: the period of a level is 0, but in PERIOD:RANKS both must be at least 1"},
        {"2:0,4:4",
         "the number of ranks of a level is 0, but in PERIOD:RANKS both must be at least 1"},
        {"2:3,4:4", "4 ranks cannot be divided into groups of 3"},
        {"2:1,4:2", "the last level averages over 2 ranks, and there are 4"},
        {"2:2,4:8", "4 ranks cannot be divided into groups of 8"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        daso_case c = case_of(bad[i].levels, 0, 0);
        iso_assert_all(daso_refused(&c, ISO_ERR_ARG, bad[i].said));
    }
    daso_case c = case_of("2:2,4:4", 0, 0);
    c.daso.policy = ISO_POLICY_PLATEAU;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "need unit ISO_SCOPE_RANK, ISO_POLICY_FIXED"));
    c = case_of("2:2,4:4", 0, 3);
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "batches_to_wait 3 is longer than global_skip 2"));
    c.daso = iso_hierarchical_sgd_config(STEPS, 0, NULL, 0);
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "level_count is -1"));
    c = case_of("2:2,4:4", 0, 0);
    c.daso.global_skip = 3;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "global_skip is 3"));
}

Test(np1_levels, texts_that_are_no_levels_are_refused) {
    static const char *const bad[] = {
        "",     "4",    "4:",   ":2",  "4:2,",     "4:2 8:4",
        "-4:2", "4:-2", "4:2x", "a:b", "4:2,,8:4", "1:1,2:1,3:1,4:1,5:1,6:1,7:1,8:1,9:1"};
    iso_daso_config c = ISO_DASO_DEFAULT;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        iso_assert_all(iso_daso_levels_parse(bad[i], &c) == ISO_ERR_ARG && c.level_count == 0);
    iso_assert_ok(iso_daso_levels_parse("4:2+8:4,16:8", &c));
    iso_assert_all(c.level_count == 3 && c.global_skip == 4 && c.level[2].period == 16 &&
                   c.level[2].ranks == 8);
}

Test(np4_levels, ranks_with_other_levels_are_named) {
    daso_case c = case_of(test_rank == 2 ? "2:2,6:4" : "2:2,4:4", 0, 0);
    iso_assert_all(daso_refused(&c, ISO_ERR_MISMATCH, "rank 2"));
}

// A rank of another group fails: every rank is told, and training goes on.
Test(np4_levels, every_rank_is_told_of_a_failure_in_any_group) {
    trainer t;
    iso_parameter_list list;
    daso_case c = case_of("2:2,4:4", 0, 0);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 2));
    iso_assert_ok(iso_data_parallel_finish(t.model));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    float was = 0;
    if (test_rank == 3) was = tensor_swap(list.item[0]->value, 0, NAN);
    iso_status status = trainer_step(&t, 2, NULL); // a mean of pairs
    iso_assert_all(status == ISO_ERR_STATE && strstr(iso_last_error()->message, "rank 3"));
    (void)was;
    iso_parameter_list_destroy(&list);
    daso_close(&t);
}
