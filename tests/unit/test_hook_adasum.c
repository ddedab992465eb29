// SPDX-License-Identifier: MIT
// The communication hook adasum, on ranks that one process plays.
#include "base/base.h"
#include "common/balance.h"
#include "common/hook_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(hook_adasum, .fini = balance_check, .timeout = 60);

enum { COUNT = 700 };

static float drawn(uint32_t rank, size_t i) {
    uint32_t counter[4] = {(uint32_t)i, rank}, bits[4];
    iso__philox(iso__philox_key_make(9, ISO_RNG_TEST, 0), counter, bits);
    return 2 * iso__uniform(bits[0]) - 1 + (i < 100 ? .5f : 0); // the first ones agree somewhat
}

// Two tensors with padding between them and behind.
static void open_bucket(played *p, int ranks) {
    *p = (played){.ranks = ranks, .count = COUNT, .hook = iso_hook_adasum, .tensor_count = 2};
    p->tensor[0] = (iso_comm_hook_tensor){"a.weight", 0, 250, 10};
    p->tensor[1] = (iso_comm_hook_tensor){"a.bias", 256, 431, 0};
    played_open(p);
}

static bool is_padding(size_t i) { return (i >= 250 && i < 256) || i >= 687; }

static void draw_gradients(played *p) {
    for (int r = 0; r < p->ranks; r++)
        for (size_t i = 0; i < COUNT; i++)
            p->gradient[r][i] = is_padding(i) ? 0 : drawn((uint32_t)r, i);
}

// ---- The formula in double precision ------------------------------------------------------------------

static void add_model(double *a, const double *b, size_t n) {
    double dot = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        dot += a[i] * b[i];
        aa += a[i] * a[i];
        bb += b[i] * b[i];
    }
    for (size_t i = 0; i < n; i++) a[i] = (1 - dot / aa / 2) * a[i] + (1 - dot / bb / 2) * b[i];
}

static double value[PLAYED_RANKS][COUNT];

static void model_pair(int a, int b) {
    add_model(value[a], value[b], 250);
    add_model(value[a] + 256, value[b] + 256, 431);
}

// pairs: of ranks, in the order in which they are added; the first of each takes the result.
static void equals_the_model(int ranks, const int (*pairs)[2]) {
    played p;
    open_bucket(&p, ranks);
    cr_assert_eq(p.plan.phase[0].operation, ISO_COMM_GATHER);
    draw_gradients(&p);
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < COUNT; i++) value[r][i] = (double)p.gradient[r][i];
    for (int k = 0; k + 1 < ranks; k++) model_pair(pairs[k][0], pairs[k][1]);
    played_exchange(&p);
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < COUNT; i++)
            cr_assert(is_padding(i) || fabs((double)p.gradient[r][i] - value[0][i]) < 2e-6,
                      "%d ranks, element %zu: %g instead of %g", ranks, i, (double)p.gradient[r][i],
                      value[0][i]);
    for (int r = 1; r < ranks; r++)
        cr_assert_arr_eq(p.gradient[r], p.gradient[0], COUNT * sizeof(float));
    played_close(&p);
}

// A tensor of hardly any gradient: its share of the other's is far beyond f32.
Test(hook_adasum, takes_the_smallest_gradients) {
    played p;
    open_bucket(&p, 2);
    draw_gradients(&p);
    for (size_t i = 0; i < COUNT; i++) p.gradient[0][i] = i == 3 ? 1e-44f : 0;
    float other = p.gradient[1][3];
    played_exchange(&p);
    for (size_t i = 0; i < COUNT; i++) cr_assert(isfinite(p.gradient[0][i]), "element %zu", i);
    cr_assert_float_eq(p.gradient[0][3], other / 2, 1e-3); // that direction counts once
    played_close(&p);
}

Test(hook_adasum, equals_the_model) {
    equals_the_model(1, NULL);
    equals_the_model(2, (const int[][2]){{0, 1}});
    equals_the_model(3, (const int[][2]){{0, 1}, {0, 2}});
    equals_the_model(4, (const int[][2]){{0, 1}, {2, 3}, {0, 2}});
    equals_the_model(5, (const int[][2]){{0, 1}, {2, 3}, {0, 2}, {0, 4}});
}

// ---- What Adasum is for -------------------------------------------------------------------------------

// Equal gradients give themselves, orthogonal ones their sum; a rank without a gradient adds
// nothing.
Test(hook_adasum, lies_between_average_and_sum) {
    played p;
    open_bucket(&p, 4);
    for (int r = 0; r < 4; r++)
        for (size_t i = 0; i < COUNT; i++) p.gradient[r][i] = is_padding(i) ? 0 : drawn(0, i);
    played_exchange(&p);
    for (size_t i = 0; i < COUNT; i++)
        cr_assert(is_padding(i) || fabsf(p.gradient[2][i] - drawn(0, i)) < 1e-6f);
    for (int r = 0; r < 4; r++)
        for (size_t i = 0; i < COUNT; i++)
            p.gradient[r][i] = (int)(i % 4) == r && !is_padding(i) ? drawn(0, i) : 0;
    played_exchange(&p);
    for (size_t i = 0; i < COUNT; i++)
        cr_assert(is_padding(i) || fabsf(p.gradient[2][i] - drawn(0, i)) < 1e-6f);
    for (int r = 0; r < 4; r++)
        for (size_t i = 0; i < COUNT; i++) p.gradient[r][i] = r == 1 && !is_padding(i) ? 3 : 0;
    played_exchange(&p);
    for (size_t i = 0; i < COUNT; i++) cr_assert(is_padding(i) || p.gradient[0][i] == 3);
    played_close(&p);
}

// Gradients that are not finite are seen by all ranks, and f64 is summed.
Test(hook_adasum, tells_of_what_is_not_finite) {
    played p;
    open_bucket(&p, 3);
    draw_gradients(&p);
    p.gradient[1][300] = INFINITY;
    played_exchange(&p);
    for (int r = 0; r < 3; r++) cr_assert(!isfinite(p.gradient[r][300]));
    played_close(&p);
    iso_comm_hook_bucket b = {.count = 1000, .dtype = ISO_F64, .ranks = 2, .name = "fc1"};
    iso_comm_hook_plan plan = {0};
    cr_assert_eq(iso_hook_adasum.declare(&b, &plan, NULL), ISO_OK);
    cr_assert(plan.plain);
}
