// SPDX-License-Identifier: MIT
// Updates that a GPU takes together: the same bits as one by one, and which go together.
#include "common/balance.h"
#include "gpu/multi_tensor_fixture.h"

TestSuite(cuda_multi_tensor, .timeout = 120, .fini = balance_check);

// ---- The same bits ------------------------------------------------------------------------------

// One is larger than all others; they begin everywhere, gradients elsewhere than the rest.
static const int64_t counts[] = {1, 3, 4, 17, 64, 1003, 5, 40000, 2, 255, 256, 257, 1024, 2047};

static void update_all(const target *on, const memory *m, call rule, bool one_by_one) {
    int64_t first = 0;
    for (int k = 0; k < COUNT(counts); first += counts[k] + 1 + k % 4, k++) {
        void *x[ROLES];
        locate(m, first, first + k % 3, x);
        OK(rule(on, counts[k], 0.125, x));
        if (one_by_one) finish(on);
    }
    finish(on);
}

static void same_bits(iso_dtype dtype) {
    target on = open_cuda(dtype), host = {.dtype = dtype};
    OK(iso_device_create("cpu", &host.device));
    host.kernels = host.device->kernels[dtype];
    for (int r = 0; r < COUNT(rules); r++) {
        memory a = memory_create(&on), b = memory_create(&on), c = memory_create(&host);
        for (int times = 1; times <= 2; times++) {
            long long before = launches(&on);
            update_all(&on, &a, rules[r], false);
            cr_assert(launches(&on) == before + 1, "rule %d: %lld launches, not 1", r,
                      launches(&on) - before);
            update_all(&on, &b, rules[r], true);
            cr_assert(launches(&on) == before + 1 + COUNT(counts));
            update_all(&host, &c, rules[r], false);
        }
        check_same(&a, &b, 0, r);
        check_same(&a, &c, dtype == ISO_F64 ? 1e-13 : 1e-5, r);
        memory_destroy(&a), memory_destroy(&b), memory_destroy(&c);
    }
    iso_device_destroy(&on.device);
    iso_device_destroy(&host.device);
}
Test(cuda_multi_tensor, every_rule_gives_the_same_bits_in_f32) { same_bits(ISO_F32); }
Test(cuda_multi_tensor, every_rule_gives_the_same_bits_in_f64) { same_bits(ISO_F64); }

// ---- What goes together -------------------------------------------------------------------------

static void check_series(const series *s) {
    target on = open_cuda(ISO_F32);
    memory a = memory_create(&on), b = memory_create(&on);
    long long before = launches(&on), allocated[2];
    iso_memory_balance(NULL, NULL, &allocated[0]);
    run_series(&on, &a, s, false);
    finish(&on);
    iso_memory_balance(NULL, NULL, &allocated[1]);
    cr_assert(allocated[0] == allocated[1], "an update allocates");
    cr_assert(launches(&on) == before + s->launches, "%lld launches", launches(&on) - before);
    run_series(&on, &b, s, true);
    check_same(&a, &b, 0, 0);
    memory_destroy(&a), memory_destroy(&b);
    iso_device_destroy(&on.device);
}
Test(cuda_multi_tensor, more_than_a_table_holds_takes_more_launches) {
    check_series(&(series){3 * ISO_CUDA_UPDATES + 1, 5, 6, 1, .launches = 4});
}
Test(cuda_multi_tensor, a_table_that_is_just_full_takes_one) {
    check_series(&(series){ISO_CUDA_UPDATES, 5, 6, 1, .launches = 1});
}
Test(cuda_multi_tensor, groups_that_take_turns_go_together) {
    check_series(&(series){40, 5, 6, ISO_CUDA_RULES, .launches = 1});
}
Test(cuda_multi_tensor, of_too_many_groups_some_wait) {
    check_series(&(series){40, 5, 6, ISO_CUDA_RULES + 1, .launches = 10});
}
Test(cuda_multi_tensor, pieces_of_one_parameter_are_one_segment) {
    check_series(&(series){2 * ISO_CUDA_UPDATES, 100, 100, 1, .launches = 1});
}
Test(cuda_multi_tensor, neighbours_of_other_groups_keep_their_numbers) {
    check_series(&(series){40, 100, 100, 2, .launches = 1});
}
// Each touches what the one before it writes.
Test(cuda_multi_tensor, updates_of_the_same_memory_keep_their_order) {
    check_series(&(series){20, 100, 99, 1, .launches = 20});
}
Test(cuda_multi_tensor, the_same_update_may_come_again) {
    check_series(&(series){20, 100, 0, 1, .launches = 20});
}

// From the last piece to the first.
Test(cuda_multi_tensor, pieces_may_come_backwards) {
    target on = open_cuda(ISO_F32);
    memory a = memory_create(&on), b = memory_create(&on);
    void *x[ROLES];
    for (int64_t first = 999; first >= 0; first -= 333) {
        locate(&a, first, first, x);
        OK(adam(&on, 333, 0.1, x));
        cr_assert(multi_tensor_of(&on)->table.segments == 1);
    }
    locate(&b, 0, 0, x);
    OK(adam(&on, 1332, 0.1, x));
    finish(&on);
    check_same(&a, &b, 0, 0);
    memory_destroy(&a), memory_destroy(&b);
    iso_device_destroy(&on.device);
}

// A gradient that an update before writes, and a parameter that one before reads.
Test(cuda_multi_tensor, gradients_count_as_memory_too) {
    target on = open_cuda(ISO_F32);
    memory m = memory_create(&on);
    void *x[ROLES], *y[ROLES];
    locate(&m, 0, 0, x);
    locate(&m, 500, 500, y);
    OK(sgd(&on, 100, 0.1, x));
    y[G] = x[P];
    long long before = launches(&on);
    OK(sgd(&on, 100, 0.1, y));
    cr_assert(launches(&on) == before + 1, "it reads what waits to be written");
    y[P] = y[G];
    y[G] = x[G];
    OK(sgd(&on, 100, 0.1, y)); // writes what the one before reads
    cr_assert(launches(&on) == before + 2, "it writes what waits to be read");
    finish(&on);
    memory_destroy(&m);
    iso_device_destroy(&on.device);
}
