// SPDX-License-Identifier: MIT
// Finding numbers by keys, and arrays that grow.
#include "base/index.h"
#include "common/balance.h"
#include "common/nn_fixture.h"

#include <criterion/criterion.h>

TestSuite(index, .fini = balance_check);

// A key of every number is shared by four of them.
static uint64_t key_of(int number) { return (uint64_t)(number / 4) << 40; }

static int count_found(const iso__index *index, int number) {
    int found = 0, n = 0;
    for (size_t at = 0; (n = iso__index_next(index, key_of(number), &at)) >= 0;) {
        cr_assert_eq(n / 4, number / 4);
        found++;
    }
    return found;
}

Test(index, numbers_are_found_by_keys_that_several_share) {
    enum { COUNT = 4000 };
    iso__index index = {0};
    cr_assert_eq(count_found(&index, 0), 0);
    for (int i = 0; i < COUNT; i++) cr_ok(iso__index_add(&index, key_of(i), i));
    for (int i = 0; i < COUNT; i += 4) cr_assert_eq(count_found(&index, i), 4);
    cr_assert_eq(count_found(&index, COUNT), 0);
    iso__index_free(&index);
}

Test(index, pointers_are_found_once_each) {
    enum { COUNT = 1000 };
    static char place[COUNT];
    iso__index index = {0};
    for (int i = 0; i < COUNT; i++) {
        cr_assert_eq(iso__index_of(&index, &place[i]), -1);
        cr_ok(iso__index_add(&index, iso__pointer_key(&place[i]), i));
    }
    for (int i = 0; i < COUNT; i++) cr_assert_eq(iso__index_of(&index, &place[i]), i);
    iso__index_free(&index);
}

// The memory that is copied when an array grows by one element at a time is linear in its length.
Test(index, an_array_without_a_room_doubles) {
    enum { COUNT = 1000 };
    void *array = NULL;
    long long before, after;
    iso_memory_balance(NULL, NULL, &before);
    for (int i = 0; i < COUNT; i++) {
        cr_ok(iso__grow(&array, i, NULL, sizeof(int)));
        ((int *)array)[i] = i;
    }
    iso_memory_balance(NULL, NULL, &after);
    for (int i = 0; i < COUNT; i++) cr_assert_eq(((int *)array)[i], i);
    cr_assert_eq(after - before, 11); // of 1, 2, 4 ... 1024
    iso__free(array);
}
