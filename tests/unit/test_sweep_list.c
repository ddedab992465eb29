// SPDX-License-Identifier: MIT
// The list of a sweep with several seeds.
#include "sweep/sweep_list.h"

#include "train/train_error.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(sweep_list, .timeout = 60);

static void assert_refused(const char *seeds, const char *why) {
    sweep_list list = {0};
    cr_assert(sweep_list_add(&list, "a: --sync lazy") == ISO_OK);
    cr_assert(sweep_list_seeds(&list, seeds) == ISO_ERR_ARG, "%s", seeds);
    cr_assert(strstr(train_error_text(), why), "%s: %s", seeds, train_error_text());
    cr_assert(list.count == 1);
    sweep_list_free(&list);
}

Test(sweep_list, every_run_is_made_with_each_seed) {
    static const char *const file[] = {"a-seed7", "b-period2-seed7", "b-period4-seed7",
                                       "a-seed0", "b-period2-seed0", "b-period4-seed0"};
    sweep_list list = {0};
    cr_assert(sweep_list_add(&list, "a: --sync lazy") == ISO_OK);
    cr_assert(sweep_list_add(&list, "b: --sync daso --period 2,4") == ISO_OK);
    cr_assert(list.entries[0]->seed == -1 && strcmp(list.entries[0]->file, "a") == 0);
    cr_assert(sweep_list_seeds(&list, "7,0") == ISO_OK);
    cr_assert(list.count == 6);
    for (int i = 0; i < 6; i++) {
        const sweep_entry *entry = list.entries[i];
        cr_assert_str_eq(entry->file, file[i]);
        cr_assert(entry->seed == (i < 3 ? 7 : 0));
        cr_assert_str_eq(entry->words[0], "--sync");
        cr_assert(entry->words[0] == entry->memory, "words are the run's own");
    }
    cr_assert_str_eq(list.entries[4]->words[3], "2");
    sweep_list_free(&list);
}

Test(sweep_list, seeds_are_whole_numbers_each_once) {
    static const char *const wrong[] = {"",
                                        "1,",
                                        ",1",
                                        "1,,2",
                                        "x",
                                        "1.5",
                                        "-1",
                                        "1, 2",
                                        "1;2",
                                        "9000000000000001",
                                        "99999999999999999999"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        assert_refused(wrong[i], "give whole numbers");
    assert_refused("1,2,1", "has 1 twice");
    char many[2000] = "0";
    for (int i = 1; i <= SWEEP_SEEDS; i++)
        snprintf(many + strlen(many), sizeof(many) - strlen(many), ",%d", i);
    assert_refused(many, "more than 256");
}

// Every run is in exactly one shard.
Test(sweep_list, shards_divide_the_runs) {
    for (int shards = 1; shards <= 6; shards++) {
        int made[6] = {0};
        for (int index = 0; index < shards; index++) {
            sweep_list list = {0};
            char shard[16];
            cr_assert(sweep_list_add(&list, "a: --lr 1,2") == ISO_OK);
            cr_assert(sweep_list_seeds(&list, "0,1,2") == ISO_OK);
            snprintf(shard, sizeof(shard), "%d/%d", index, shards);
            cr_assert(sweep_list_shard(&list, shard) == ISO_OK);
            for (int i = 0; i < list.count; i++) {
                const sweep_entry *entry = list.entries[i];
                int number = 2 * (int)entry->seed + (strcmp(entry->name, "a-lr2") == 0);
                cr_assert(number % shards == index);
                made[number]++;
            }
            sweep_list_free(&list);
        }
        for (int i = 0; i < 6; i++) cr_assert(made[i] == 1);
    }
}

Test(sweep_list, wrong_shards_are_refused) {
    static const char *const wrong[] = {"", "1", "2/2", "-1/2", "0/0", "1/2x", "1 of 2", "0/7x"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        sweep_list list = {0};
        cr_assert(sweep_list_add(&list, "a: --lr 1,2") == ISO_OK);
        cr_assert(sweep_list_shard(&list, wrong[i]) == ISO_ERR_ARG, "%s", wrong[i]);
        sweep_list_free(&list);
    }
    sweep_list list = {0};
    cr_assert(sweep_list_add(&list, "a: --lr 1,2") == ISO_OK);
    cr_assert(sweep_list_shard(&list, "2/3") == ISO_ERR_ARG); // has no run
    sweep_list_free(&list);
}

// Commas multiply: 8 options with 4 values each are 65,536 runs.
Test(sweep_list, a_list_that_would_not_end_is_refused) {
    sweep_list list = {0};
    const char line[] =
        "a: --a 1,2,3,4 --b 1,2,3,4 --c 1,2,3,4 --d 1,2,3,4 --e 1,2,3,4 --f 1,2,3,4 "
        "--g 1,2,3,4 --h 1,2,3,4";
    cr_assert(sweep_list_add(&list, line) == ISO_ERR_ARG);
    cr_assert(strstr(train_error_text(), "more than 1024 runs"), "%s", train_error_text());
    sweep_list_free(&list);
}
