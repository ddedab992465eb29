// SPDX-License-Identifier: MIT
// The communication hooks onebit, dithering and randomk, on ranks that one process plays: models,
// what error feedback promises, and what is drawn at random.
#include "base/base.h"
#include "common/balance.h"
#include "common/hook_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(hook_bits, .fini = balance_check, .timeout = 60);

enum { GROUP = 256 };

enum { KEY = 8 }; // of the gradients that are drawn

static void open_bucket(played *p, const iso_comm_hook *hook, int ranks, size_t count) {
    *p = (played){.ranks = ranks, .count = count, .hook = *hook, .tensor_count = 1};
    p->tensor[0] = (iso_comm_hook_tensor){"a.weight", 0, count, 0};
    played_open(p);
}

// Sum over the steps: results + what was left out / ranks = averages.
static void nothing_is_lost(const iso_comm_hook *hook, int ranks, size_t count) {
    static double sum[PLAYED_COUNT];
    played p;
    open_bucket(&p, hook, ranks, count);
    memset(sum, 0, sizeof(sum));
    for (uint32_t step = 0; step < 12; step++) {
        played_draw(&p, KEY, step);
        played_exchange(&p);
        played_assert_equal(&p);
        for (size_t i = 0; i < count; i++)
            sum[i] += (double)p.gradient[0][i] - played_mean(&p, KEY, step, i);
    }
    for (size_t i = 0; i < count; i++) {
        double left = sum[i];
        for (int r = 0; r < ranks; r++) left += (double)p.state[r][i] / ranks;
        cr_assert(fabs(left) < 2e-5, "%s, %d ranks, element %zu: %g", hook->name, ranks, i, left);
    }
    played_close(&p);
}

// Where a NaN or an infinity was, or near it, all ranks see one, and none in the next exchange.
static void tells_of_what_is_not_finite(const iso_comm_hook *hook, float value) {
    played p;
    open_bucket(&p, hook, 3, 1500);
    for (uint32_t step = 0; step < 3; step++) {
        int bad = 0;
        played_draw(&p, KEY, step);
        if (step == 0) p.gradient[1][777] = value;
        played_exchange(&p);
        played_assert_equal(&p);
        for (size_t i = 0; i < p.count; i++) bad += !isfinite(p.gradient[0][i]);
        cr_assert((bad > 0) == (step == 0) && bad <= GROUP, "%s, step %u: %d", hook->name, step,
                  bad);
    }
    played_close(&p);
}

Test(hook_bits, what_is_left_out_comes_later) {
    iso_randomk_config config = {.ratio = .07};
    iso_comm_hook randomk = iso_hook_randomk(&config);
    nothing_is_lost(&iso_hook_onebit, 1, 700);
    nothing_is_lost(&iso_hook_onebit, 2, 2000);
    nothing_is_lost(&iso_hook_onebit, 3, 1999);
    nothing_is_lost(&iso_hook_onebit, 5, 1024); // one rank has no shard
    nothing_is_lost(&randomk, 1, 700);
    nothing_is_lost(&randomk, 3, 1999);
}

Test(hook_bits, nothing_stays_infinite) {
    iso_randomk_config config = {.ratio = .07};
    const iso_comm_hook hook[] = {iso_hook_onebit, iso_hook_dithering, iso_hook_randomk(&config)};
    for (int h = 0; h < 3; h++) {
        tells_of_what_is_not_finite(&hook[h], NAN);
        tells_of_what_is_not_finite(&hook[h], INFINITY);
    }
}

Test(hook_bits, short_buckets_and_f64_travel_as_they_are) {
    const iso_comm_hook hook[] = {iso_hook_onebit, iso_hook_dithering, iso_hook_randomk(NULL)};
    for (int h = 0; h < 3; h++) {
        iso_comm_hook_bucket b = {.count = 511, .dtype = ISO_F32, .ranks = 2, .name = "fc1"};
        iso_comm_hook_plan plan = {0};
        cr_assert_eq(hook[h].declare(&b, &plan, hook[h].user), ISO_OK);
        cr_assert(plan.plain);
        b.count = 2000;
        b.dtype = ISO_F64;
        cr_assert_eq(hook[h].declare(&b, &plan, hook[h].user), ISO_OK);
        cr_assert(plan.plain);
        b.dtype = ISO_F32;
        cr_assert_eq(hook[h].declare(&b, &plan, hook[h].user), ISO_OK);
        cr_assert(!plan.plain);
    }
}

// ---- 1 bit ----------------------------------------------------------------------------------------------

enum { MODEL_RANKS = 3, MODEL_COUNT = 1999 };

// v becomes its signs times the mean magnitude of each group from `first` on; left = v - that
static void encode_model(double *v, double *left, size_t first, size_t count) {
    for (size_t at = first; at < first + count; at += GROUP) {
        size_t end = at + GROUP < first + count ? at + GROUP : first + count;
        double scale = 0;
        for (size_t i = at; i < end; i++) scale += fabs(v[i]) / (double)(end - at);
        for (size_t i = at; i < end; i++) {
            double sent = v[i] < 0 ? -scale : scale;
            left[i] = v[i] - sent;
            v[i] = sent;
        }
    }
}

// Every rank encodes its gradients plus what it left out; the owner of a shard encodes the sum plus
// what it has just left out of that shard.
static void step_model(const played *p, double left[MODEL_RANKS][MODEL_COUNT], double *mean) {
    static double sum[MODEL_COUNT], v[MODEL_COUNT];
    size_t shard = 3 * GROUP; // 1999 elements in 8 groups: 3, 3 and 2
    memset(sum, 0, sizeof(sum));
    for (int r = 0; r < MODEL_RANKS; r++) {
        for (size_t i = 0; i < MODEL_COUNT; i++) v[i] = (double)p->gradient[r][i] + left[r][i];
        encode_model(v, left[r], 0, MODEL_COUNT); // shards begin with a group
        for (size_t i = 0; i < MODEL_COUNT; i++) sum[i] += v[i];
    }
    for (int r = 0; r < MODEL_RANKS; r++) {
        size_t first = (size_t)r * shard, end = first + shard;
        if (end > MODEL_COUNT) end = MODEL_COUNT;
        for (size_t i = first; i < end; i++) sum[i] += left[r][i];
        encode_model(sum, left[r], first, end - first);
    }
    for (size_t i = 0; i < MODEL_COUNT; i++) mean[i] = sum[i] / MODEL_RANKS;
}

Test(hook_bits, onebit_equals_the_model) {
    static double left[MODEL_RANKS][MODEL_COUNT], mean[MODEL_COUNT];
    played p;
    open_bucket(&p, &iso_hook_onebit, MODEL_RANKS, MODEL_COUNT);
    cr_assert_eq(p.plan.phase[0].count, 3 * 36);
    for (uint32_t step = 0; step < 3; step++) {
        int wrong = 0; // a sum of nearly 0 may have either sign
        played_draw(&p, KEY, step);
        step_model(&p, left, mean);
        played_exchange(&p);
        played_assert_equal(&p);
        for (size_t i = 0; i < MODEL_COUNT; i++)
            wrong += fabs((double)p.gradient[2][i] - mean[i]) > 1e-5;
        cr_assert(wrong == 0, "step %u: %d", step, wrong);
    }
    played_close(&p);
}

Test(hook_bits, onebit_takes_all_magnitudes) {
    static const float magnitude[] = {1e-45f, 1e-42f, 1e-38f, 1, 1e20f, 3e38f};
    for (size_t m = 0; m < sizeof(magnitude) / sizeof(magnitude[0]); m++) {
        played p;
        open_bucket(&p, &iso_hook_onebit, 1, 1000);
        for (size_t i = 0; i < p.count; i++) p.gradient[0][i] = magnitude[m] * (i % 3 ? 1.f : -1.f);
        played_exchange(&p);
        for (size_t i = 0; i < p.count; i++)
            cr_assert(p.gradient[0][i] == magnitude[m] * (i % 3 ? 1.f : -1.f), "%g: %g",
                      (double)magnitude[m], (double)p.gradient[0][i]);
        played_close(&p);
    }
}

// Padding between tensors is 0, and leaves out nothing, though 1 bit has no 0.
Test(hook_bits, padding_leaves_out_nothing) {
    const iso_comm_hook hook[] = {iso_hook_onebit, iso_hook_int8, iso_hook_fp8};
    for (int h = 0; h < 3; h++) {
        played p = {.ranks = 3, .count = 1216, .hook = hook[h], .tensor_count = 2};
        p.tensor[0] = (iso_comm_hook_tensor){"b.weight", 0, 600, 0};
        p.tensor[1] = (iso_comm_hook_tensor){"a.weight", 608, 600, 0};
        played_open(&p);
        for (uint32_t step = 0; step < 3; step++) {
            played_draw(&p, KEY, step);
            for (int r = 0; r < 3; r++)
                for (size_t i = 600; i < 616; i++) p.gradient[r][i < 608 ? i : i + 600] = 0;
            played_exchange(&p);
            played_assert_equal(&p);
            for (int r = 0; r < 3; r++)
                for (size_t i = 600; i < 616; i++)
                    cr_assert(p.state[r][i < 608 ? i : i + 600] == 0, "%s, rank %d, element %zu",
                              hook[h].name, r, i);
        }
        played_close(&p);
    }
}

// ---- Dithering ------------------------------------------------------------------------------------------

// Each result is off by less than a step of the gradients plus one of the sum, and the mean of many
// by hardly anything.
static void is_unbiased(int ranks, size_t count) {
    static double sum[PLAYED_COUNT];
    enum { EXCHANGES = 500 };
    played p;
    double worst = 0, all = 0;
    open_bucket(&p, &iso_hook_dithering, ranks, count);
    memset(sum, 0, sizeof(sum));
    for (int k = 0; k < EXCHANGES; k++) {
        played_draw(&p, KEY, 0);
        played_exchange(&p);
        for (size_t i = 0; i < count; i++) {
            double off = (double)p.gradient[0][i] - played_mean(&p, KEY, 0, i);
            worst = fmax(worst, fabs(off));
            sum[i] += off / EXCHANGES;
        }
    }
    cr_assert(worst < 2.2 / 7 && worst > .7 / 7, "worst %g", worst);
    for (size_t i = 0; i < count; i++) {
        // The standard deviation of each rounding is at most half a step.
        cr_assert(fabs(sum[i]) < 5 * sqrt(2) * .5 * 1.15 / 7 / sqrt(EXCHANGES), "element %zu: %g",
                  i, sum[i]);
        all += sum[i] / (double)count;
    }
    cr_assert(fabs(all) < 5 * sqrt(2) * .5 * 1.15 / 7 / sqrt(EXCHANGES * (double)count), "%g", all);
    played_close(&p);
}

Test(hook_bits, dithering_is_unbiased) {
    is_unbiased(1, 600);
    is_unbiased(3, 1999);
}

// Ranks draw for themselves, and each exchange anew; but a run draws the same when it is repeated.
Test(hook_bits, dithering_draws_anew) {
    float first[3][600];
    played p;
    for (int run = 0; run < 2; run++) {
        open_bucket(&p, &iso_hook_dithering, 2, 600);
        for (int k = 0; k < 3; k++) {
            for (size_t i = 0; i < 600; i++) p.gradient[0][i] = p.gradient[1][i] = .5f;
            p.gradient[0][0] = p.gradient[1][0] = p.gradient[0][300] = p.gradient[1][300] = 1;
            played_exchange(&p);
            if (run == 0) memcpy(first[k], p.gradient[0], sizeof(first[k]));
            cr_assert_arr_eq(first[k], p.gradient[0], sizeof(first[k]));
            const char *block = p.data[0][0]; // what both ranks sent to rank 0, of equal gradients
            cr_assert_arr_neq(block, block + p.plan.phase[0].count, p.plan.phase[0].count);
        }
        played_close(&p);
    }
    cr_assert_arr_neq(first[0], first[1], sizeof(first[0]));
    cr_assert_arr_neq(first[1], first[2], sizeof(first[0]));
    int up = 0; // 3.5 steps become 3 or 4
    for (size_t i = 1; i < 256; i++) up += first[0][i] > .5f;
    cr_assert(up > 85 && up < 170, "%d", up);
}

// Of a group, 4 bits each and a scale; zeros have no random sign.
Test(hook_bits, dithering_keeps_zeros) {
    played p;
    open_bucket(&p, &iso_hook_dithering, 2, 1100);
    cr_assert_eq(p.plan.phase[0].count, 3 * (128 + 4));
    for (int r = 0; r < 2; r++)
        for (size_t i = 0; i < p.count; i++) p.gradient[r][i] = i % 7 == 0 && i < 512 ? 1e-3f : 0;
    played_exchange(&p);
    for (size_t i = 0; i < p.count; i++)
        if (i % 7 != 0 || i >= 512) cr_assert(p.gradient[0][i] == 0, "element %zu", i);
    played_close(&p);
}

// ---- Random gradients -----------------------------------------------------------------------------------

// One element of each run is the average of what ranks have kept of it, the same place on all
// ranks; the others are 0.
Test(hook_bits, randomk_equals_the_model) {
    enum { KEPT = 143, COUNT = 1000, RANKS = 3 }; // runs of 6 and 7
    static float kept[RANKS][COUNT];
    iso_randomk_config config = {.ratio = .143, .seed = 4};
    iso_comm_hook hook = iso_hook_randomk(&config);
    played p;
    open_bucket(&p, &hook, RANKS, COUNT);
    cr_assert_eq(p.plan.phase[0].count, KEPT);
    for (uint32_t step = 0; step < 20; step++) {
        int sent = 0;
        played_draw(&p, KEY, step);
        for (int r = 0; r < RANKS; r++)
            for (size_t i = 0; i < COUNT; i++) kept[r][i] += p.gradient[r][i];
        played_exchange(&p);
        played_assert_equal(&p);
        for (size_t i = 0; i < COUNT; i++) {
            float want = (0 + kept[0][i] + kept[1][i] + kept[2][i]) * (float)(1. / RANKS);
            if (p.gradient[0][i] == 0) continue;
            cr_assert_eq(p.gradient[0][i], want, "step %u element %zu", step, i);
            for (int r = 0; r < RANKS; r++) kept[r][i] = 0;
            sent++;
        }
        cr_assert_eq(sent, KEPT);
        for (int r = 0; r < RANKS; r++)
            cr_assert_arr_eq(p.state[r], kept[r], COUNT * sizeof(float));
    }
    played_close(&p);
}

// Each element of a run is as likely as the others, in every run.
Test(hook_bits, randomk_takes_all_in_turn) {
    enum { EXCHANGES = 500, COUNT = 1003 };
    static int taken[COUNT], other[COUNT];
    iso_randomk_config config = {.ratio = .1}, config2 = {.ratio = .1, .seed = 1};
    iso_comm_hook hook = iso_hook_randomk(&config), hook2 = iso_hook_randomk(&config2);
    played p, q;
    int same = 0;
    open_bucket(&p, &hook, 1, COUNT);
    open_bucket(&q, &hook2, 1, COUNT);
    for (int k = 0; k < EXCHANGES; k++) {
        for (size_t i = 0; i < COUNT; i++) p.gradient[0][i] = q.gradient[0][i] = 1;
        played_exchange(&p);
        played_exchange(&q);
        for (size_t i = 0; i < COUNT; i++) {
            taken[i] += p.gradient[0][i] != 0;
            other[i] += q.gradient[0][i] != 0;
            same += p.gradient[0][i] != 0 && q.gradient[0][i] != 0;
        }
    }
    for (size_t i = 0; i < COUNT; i++) // a deviation is 6.8
        cr_assert(abs(taken[i] - 50) < 40 && abs(other[i] - 50) < 40, "element %zu: %d and %d", i,
                  taken[i], other[i]);
    cr_assert(same > 4000 && same < 6000, "%d of about 5000", same); // another seed
    played_close(&p);
    played_close(&q);
}

// What was drawn of a run with a NaN waits for the next exchange, as the rest of the run does.
Test(hook_bits, randomk_keeps_what_stands_beside_a_nan) {
    iso_randomk_config config = {.ratio = .001};
    iso_comm_hook hook = iso_hook_randomk(&config);
    played p;
    open_bucket(&p, &hook, 1, 600); // one run
    for (size_t i = 0; i < p.count; i++) p.gradient[0][i] = i == 7 ? NAN : 1;
    played_exchange(&p);
    for (size_t i = 0; i < p.count; i++)
        cr_assert(p.state[0][i] == (i == 7 ? 0 : 1), "element %zu: %g", i, (double)p.state[0][i]);
    played_close(&p);
}

Test(hook_bits, wrong_configurations_are_refused) {
    iso_randomk_config config[] = {{.ratio = 0}, {.ratio = 1.5}};
    iso_comm_hook_bucket b = {.count = 1000, .dtype = ISO_F32, .ranks = 2, .name = "fc1"};
    for (int k = 0; k < 2; k++) {
        iso_comm_hook hook = iso_hook_randomk(&config[k]);
        iso_comm_hook_plan plan = {0};
        cr_assert_eq(hook.declare(&b, &plan, hook.user), ISO_ERR_ARG);
        cr_assert(strstr(iso_last_error()->message, "randomk"));
    }
}
