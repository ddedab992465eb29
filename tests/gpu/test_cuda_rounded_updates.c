// SPDX-License-Identifier: MIT
// Updates of parameters of 16 bits: one launch that takes master weights, updates and rounds them
// has the bits of three, and goes together with others.
#include "common/balance.h"
#include "gpu/multi_tensor_fixture.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_rounded_updates, .timeout = 120, .fini = balance_check);

static const iso_dtype halves[] = {ISO_BF16, ISO_F16};
static const int64_t counts[] = {1, 3, 4, 17, 64, 1003, 5, 40000, 2, 255, 256, 257, 1024, 2047};

// ELEMENTS values of 16 bits: the master weights rounded, except for every 7th, which the program
// has changed, and the first, which is NaN.
static iso_tensor *new_values(const target *on, iso_dtype half, const memory *m) {
    iso_tensor *values;
    void *master, *value;
    OK(iso_tensor_create(on->device, half, 1, &(int64_t){ELEMENTS}, &values));
    OK(iso_tensor_map(m->x[P], ISO_READ, &master));
    OK(iso_tensor_map(values, ISO_WRITE, &value));
    for (int i = 0; i < ELEMENTS; i++) {
        double x = (double)((float *)master)[i];
        if (i % 7 == 0) x = i == 0 ? NAN : 1 - x;
        ((uint16_t *)value)[i] = half_nearest(half, x);
    }
    OK(iso_tensor_unmap(values));
    OK(iso_tensor_unmap(m->x[P]));
    return values;
}

static bool same_bits(iso_tensor *a, iso_tensor *b) {
    void *x, *y;
    OK(iso_tensor_map(a, ISO_READ, &x));
    OK(iso_tensor_map(b, ISO_READ, &y));
    bool same = memcmp(x, y, (size_t)a->count * iso_dtype_size(a->dtype)) == 0;
    OK(iso_tensor_unmap(a));
    OK(iso_tensor_unmap(b));
    return same;
}

static uint16_t *value_at(const iso_tensor *values, int64_t first) {
    return (uint16_t *)values->data + first;
}

// fused: in the launch of the rule; else in three calls.
static void update(const target *on, call rule, int64_t count, void *const x[ROLES], iso_dtype half,
                   uint16_t *value, bool fused) {
    const iso_device_ops *ops = on->device->ops;
    if (fused) {
        rounded_to = (iso__rounded_to){value, half};
        OK(rule(on, count, 0.125, x));
        rounded_to = (iso__rounded_to){.value = NULL};
        return;
    }
    OK(ops->take_master(on->device, half, count, value, x[P]));
    OK(rule(on, count, 0.125, x));
    OK(iso__device_convert(on->device, count, ISO_F32, x[P], half, value));
}

// Memory begins everywhere.
static void update_all(const target *on, const memory *m, iso_tensor *values, call rule,
                       bool fused) {
    int64_t first = 0;
    for (int k = 0; k < COUNT(counts); first += counts[k] + 1 + k % 4, k++) {
        void *x[ROLES];
        locate(m, first, first + k % 3, x);
        update(on, rule, counts[k], x, values->dtype, value_at(values, first), fused);
    }
    finish(on);
}

static void compare_rule(const target *on, iso_dtype half, int r) {
    memory a = memory_create(on), b = memory_create(on);
    iso_tensor *u = new_values(on, half, &a), *v = new_values(on, half, &b);
    bool alone = r == RMSPROP_BOTH || r == AMSGRAD; // their arrays fill a segment
    for (int times = 0; times < 2; times++) {
        long long before = launches(on);
        update_all(on, &a, u, rules[r], true);
        cr_assert_eq(launches(on) - before, alone ? 3 * COUNT(counts) : 1, "rule %d", r);
        update_all(on, &b, v, rules[r], false);
    }
    for (int role = 0; role < ROLES; role++)
        cr_assert(same_bits(a.x[role], b.x[role]), "rule %d in %s, role %d", r,
                  iso_dtype_name(half), role);
    cr_assert(same_bits(u, v), "rule %d in %s", r, iso_dtype_name(half));
    iso_tensor_destroy(&u), iso_tensor_destroy(&v);
    memory_destroy(&a), memory_destroy(&b);
}

Test(cuda_rounded_updates, have_the_bits_of_three_calls) {
    target on = open_cuda(ISO_F32);
    for (int h = 0; h < COUNT(halves); h++)
        for (int r = 0; r < RULES; r++)
            if (r != SCALE) compare_rule(&on, halves[h], r);
    iso_device_destroy(&on.device);
}

// `count` parameters of 5 elements, whose values are `step` elements apart; then launches.
static long long update_series(const target *on, int count, int64_t step, int changes) {
    memory m = memory_create(on);
    iso_tensor *values = new_values(on, ISO_BF16, &m);
    long long before = launches(on);
    for (int k = 0; k < count; k++) {
        void *x[ROLES];
        iso_dtype half = halves[changes * k % 2];
        locate(&m, 6 * k, 6 * k, x);
        update(on, adam, 5, x, half, value_at(values, step * k), true);
    }
    finish(on);
    long long taken = launches(on) - before;
    iso_tensor_destroy(&values);
    memory_destroy(&m);
    return taken;
}

Test(cuda_rounded_updates, go_together_unless_they_touch_the_same_values) {
    target on = open_cuda(ISO_F32);
    cr_assert_eq(update_series(&on, 40, 5, 0), 1); // values beside each other
    cr_assert_eq(update_series(&on, 40, 4, 0), 40);
    cr_assert_eq(update_series(&on, 40, 0, 0), 40);
    cr_assert_eq(update_series(&on, 10, 5, 1), 10); // two types in turn: two kernels
    iso_device_destroy(&on.device);
}

// A parameter that comes in pieces is one segment again.
Test(cuda_rounded_updates, pieces_are_one_segment) {
    target on = open_cuda(ISO_F32);
    memory a = memory_create(&on), b = memory_create(&on);
    iso_tensor *u = new_values(&on, ISO_F16, &a), *v = new_values(&on, ISO_F16, &b);
    void *x[ROLES];
    for (int64_t first = 999; first >= 0; first -= 333) {
        locate(&a, first, first, x);
        update(&on, adam, 333, x, ISO_F16, value_at(u, first), true);
        cr_assert(multi_tensor_of(&on)->table.segments == 1);
    }
    locate(&b, 0, 0, x);
    update(&on, adam, 1332, x, ISO_F16, value_at(v, 0), true);
    finish(&on);
    cr_assert(same_bits(u, v) && same_bits(a.x[P], b.x[P]) && same_bits(a.x[S1], b.x[S1]));
    iso_tensor_destroy(&u), iso_tensor_destroy(&v);
    memory_destroy(&a), memory_destroy(&b);
    iso_device_destroy(&on.device);
}
