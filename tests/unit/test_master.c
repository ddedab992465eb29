// SPDX-License-Identifier: MIT
// Master weights: which of them are taken from 16-bit values, for every value.
#include "common/half_values.h"
#include "optim/optim_impl.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { VALUES = 1 << 16, SPREAD = 25 };

// From values around it, at, just above and just below half of the last place, and far away.
static float near(iso_dtype type, uint32_t value, int k) {
    const uint32_t half = type == ISO_BF16 ? 0x8000 : 0x1000; // of normal f16 numbers
    uint32_t steps = (uint32_t)(k / 5 - 2) * half + (uint32_t)(k % 5 - 2);
    return iso__float_of(iso__bits_of(half_float(type, value)) + steps);
}

static iso_device *cpu;

static void open_cpu(void) { cr_assert(iso_device_create("cpu", &cpu) == ISO_OK); }
static void close_cpu(void) { iso_device_destroy(&cpu); }

TestSuite(master, .init = open_cpu, .fini = close_cpu, .timeout = 60);

static void is_taken_where_rounding_differs(iso_dtype type) {
    uint16_t *value = malloc(VALUES * sizeof(*value));
    float *master = malloc(VALUES * sizeof(*master));
    size_t kept = 0, wrong = 0;
    for (int k = 0; k < SPREAD; k++) {
        for (uint32_t v = 0; v < VALUES; v++) {
            value[v] = (uint16_t)v;
            master[v] = near(type, v, k);
        }
        cr_assert(iso__master_take(cpu, type, VALUES, value, master) == ISO_OK);
        for (uint32_t v = 0; v < VALUES; v++) {
            bool keeps = half_bits(type, near(type, v, k)) == v;
            float expected = keeps ? near(type, v, k) : half_float(type, v);
            kept += keeps;
            wrong += iso__bits_of(master[v]) != iso__bits_of(expected) && expected == expected;
            wrong += expected != expected && master[v] == master[v];
        }
    }
    cr_assert_eq(wrong, 0, "%zu of %d", wrong, SPREAD * VALUES);
    cr_assert(kept > VALUES * SPREAD / 4 && kept < VALUES * SPREAD * 3 / 4);
    free(value);
    free(master);
}
Test(master, bf16_is_taken_where_rounding_differs) { is_taken_where_rounding_differs(ISO_BF16); }
Test(master, f16_is_taken_where_rounding_differs) { is_taken_where_rounding_differs(ISO_F16); }

static void what_was_rounded_is_kept(iso_dtype type) {
    enum { COUNT = 5000 };
    uint16_t value[COUNT];
    float master[COUNT], before[COUNT];
    for (int i = 0; i < COUNT; i++) before[i] = master[i] = (float)(i - 2500) * 1.2345e-3f;
    cr_assert(iso__master_round(cpu, type, COUNT, master, value) == ISO_OK);
    for (int i = 0; i < COUNT; i++) cr_assert_eq(value[i], half_bits(type, before[i]));
    cr_assert(iso__master_take(cpu, type, COUNT, value, master) == ISO_OK);
    cr_assert_arr_eq(master, before, sizeof(before));
}
Test(master, what_was_rounded_is_kept) {
    what_was_rounded_is_kept(ISO_BF16);
    what_was_rounded_is_kept(ISO_F16);
}
