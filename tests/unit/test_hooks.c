// SPDX-License-Identifier: MIT
// Communication hooks, bucket by bucket without a network: what travels, what comes back, what is
// kept.
#include "base/base.h"
#include "common/balance.h"

#include <criterion/criterion.h>
#include <isotherm/comm_hook.h>
#include <math.h>
#include <string.h>

TestSuite(hooks, .fini = balance_check, .timeout = 60);

enum { COUNT = 8, MOST = 300 };

// A bucket with memory of its own.
typedef struct box {
    iso_comm_hook_bucket bucket;
    float gradient[MOST], wire[MOST], state[MOST];
} box;

static iso_comm_hook_bucket *open_box(box *b, const iso_comm_hook *hook, size_t count) {
    memset(b, 0, sizeof(*b));
    b->bucket = (iso_comm_hook_bucket){.count = count,
                                       .dtype = ISO_F32,
                                       .gradient = b->gradient,
                                       .wire = hook->compress ? b->wire : b->gradient,
                                       .state = hook->state_floats ? b->state : NULL,
                                       .name = "fc1"};
    return &b->bucket;
}

static unsigned sent_bits(const box *b, size_t i) {
    uint16_t h;
    memcpy(&h, (const char *)b->wire + 2 * i, sizeof(h));
    return h;
}

// What travels, in f32.
static float sent(box *b, const iso_comm_hook *hook, size_t i) {
    box copy = *b;
    copy.bucket.gradient = copy.gradient;
    copy.bucket.wire = copy.wire;
    cr_assert_eq(hook->decompress(&copy.bucket, 1, hook->user), ISO_OK);
    return copy.gradient[i];
}

static float uniform(uint32_t i, uint32_t step) {
    uint32_t counter[4] = {i, step}, bits[4];
    iso__philox(iso__philox_key_make(3, ISO_RNG_TEST, 0), counter, bits);
    return 2 * iso__uniform(bits[0]) - 1;
}

// ---- Rounding ---------------------------------------------------------------------------------------

// PyTorch 1.13: (x * factor).half() and .bfloat16() of f32 tensors, as int16.
static const float golden[COUNT] = {1.0f / 3, -2.5f, 1e-3f, 65504, 70000, 3e-8f, 1e38f, 0.1f};
static const unsigned golden_f16[2][COUNT] = {
    {0x3555, 0xc100, 0x1419, 0x7bff, 0x7c00, 0x0001, 0x7c00, 0x2e66},
    {0x2d55, 0xb900, 0x0c19, 0x73ff, 0x7446, 0x0000, 0x7c00, 0x2666}};
static const unsigned golden_bf16[2][COUNT] = {
    {0x3eab, 0xc020, 0x3a83, 0x4780, 0x4789, 0x3301, 0x7e96, 0x3dcd},
    {0x3dab, 0xbf20, 0x3983, 0x4680, 0x4689, 0x3201, 0x7d96, 0x3ccd}};

static void rounds_to(const iso_comm_hook *hook, double factor, const unsigned *expected) {
    box b;
    iso_comm_hook_bucket *bucket = open_box(&b, hook, COUNT);
    memcpy(b.gradient, golden, sizeof(golden));
    cr_assert_eq(hook->compress(bucket, factor, hook->user), ISO_OK);
    for (size_t i = 0; i < COUNT; i++)
        cr_assert_eq(sent_bits(&b, i), expected[i], "%s of %g * %g: %04x, not %04x", hook->name,
                     golden[i], factor, sent_bits(&b, i), expected[i]);
    cr_assert_eq(memcmp(b.gradient, golden, sizeof(golden)), 0, "the gradient stays");
}

Test(hooks, f16_gives_golden_values) {
    rounds_to(&iso_hook_f16, 1, golden_f16[0]);
    rounds_to(&iso_hook_f16, 0.25, golden_f16[1]);
}

Test(hooks, bf16_gives_golden_values) {
    rounds_to(&iso_hook_bf16, 1, golden_bf16[0]);
    rounds_to(&iso_hook_bf16, 0.25, golden_bf16[1]);
    rounds_to(&iso_hook_bf16_feedback, 1, golden_bf16[0]);
    rounds_to(&iso_hook_bf16_feedback, 0.25, golden_bf16[1]);
}

// Each factor is applied once, on its side.
Test(hooks, factors_are_applied_once) {
    const iso_comm_hook *const hooks[] = {&iso_hook_f16, &iso_hook_bf16, &iso_hook_bf16_feedback};
    for (int h = 0; h < 3; h++) {
        box b;
        iso_comm_hook_bucket *bucket = open_box(&b, hooks[h], MOST);
        for (size_t i = 0; i < MOST; i++) b.gradient[i] = (float)(i % 100); // exact in all types
        cr_assert_eq(hooks[h]->compress(bucket, 0.5, hooks[h]->user), ISO_OK);
        for (size_t i = 0; i < MOST; i++) cr_assert_eq(sent(&b, hooks[h], i), (float)(i % 100) / 2);
        cr_assert_eq(hooks[h]->decompress(bucket, 3, hooks[h]->user), ISO_OK);
        for (size_t i = 0; i < MOST; i++)
            cr_assert_eq(b.gradient[i], 1.5f * (float)(i % 100), "%s", hooks[h]->name);
    }
}

// The caller decides what to do about them; but he must see them.
Test(hooks, what_f16_cannot_hold_comes_back_infinite) {
    box b;
    iso_comm_hook_bucket *bucket = open_box(&b, &iso_hook_f16, 4);
    const float gradients[] = {70000, -1e30f, NAN, 1};
    memcpy(b.gradient, gradients, sizeof(gradients));
    cr_assert_eq(iso_hook_f16.compress(bucket, 1, NULL), ISO_OK);
    cr_assert_eq(iso_hook_f16.decompress(bucket, 1, NULL), ISO_OK);
    cr_assert(isinf(b.gradient[0]) && isinf(b.gradient[1]) && b.gradient[1] < 0);
    cr_assert(isnan(b.gradient[2]) && b.gradient[3] == 1);
    // Divided before, as for two ranks, it is representable (a multiple of 32).
    b.gradient[0] = 70016;
    cr_assert_eq(iso_hook_f16.compress(bucket, 0.5, NULL), ISO_OK);
    cr_assert_eq(sent(&b, &iso_hook_f16, 0), 35008);
}

Test(hooks, rounding_refuses_f64) {
    const iso_comm_hook *const hooks[] = {&iso_hook_f16, &iso_hook_bf16, &iso_hook_bf16_feedback};
    for (int h = 0; h < 3; h++) {
        box b;
        iso_comm_hook_bucket *bucket = open_box(&b, hooks[h], 1);
        bucket->dtype = ISO_F64;
        cr_assert_eq(hooks[h]->compress(bucket, 1, NULL), ISO_ERR_UNSUPPORTED);
        cr_assert(strstr(iso_last_error()->message, "fc1"));
        cr_assert_eq(hooks[h]->decompress(bucket, 1, NULL), ISO_ERR_UNSUPPORTED);
    }
}

// ---- Error feedback ---------------------------------------------------------------------------------

enum { STEPS = 200 };

// The largest difference, over a bucket, of what has been sent to what should have been, in units
// of the gradients' size.
static double drift(const iso_comm_hook *hook, double factor) {
    static box b;
    iso_comm_hook_bucket *bucket = open_box(&b, hook, MOST);
    static double wanted[MOST], got[MOST];
    memset(wanted, 0, sizeof(wanted));
    memset(got, 0, sizeof(got));
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < MOST; i++)
            b.gradient[i] = 1 + 0.001f * (float)i / MOST + 1e-4f * uniform(i, step);
        for (uint32_t i = 0; i < MOST; i++) wanted[i] += b.gradient[i] * factor;
        cr_assert_eq(hook->compress(bucket, factor, hook->user), ISO_OK);
        cr_assert_eq(hook->decompress(bucket, 1, hook->user), ISO_OK);
        for (uint32_t i = 0; i < MOST; i++) got[i] += b.gradient[i];
    }
    double most = 0;
    for (uint32_t i = 0; i < MOST; i++) most = fmax(most, fabs(got[i] - wanted[i]));
    return most / factor;
}

// Half a unit in the last place of bf16 at 1 is 2^-8 above and 2^-9 below: without feedback, the
// part that is rounded away is lost in every step; with it, at most one rounding is outstanding.
Test(hooks, feedback_loses_one_rounding_in_all) {
    cr_assert_gt(drift(&iso_hook_bf16, 1), STEPS * 0.0009);
    cr_assert_lt(drift(&iso_hook_bf16_feedback, 1), 0x1p-8 + 1e-4);
    cr_assert_lt(drift(&iso_hook_bf16_feedback, 0.25), 0x1p-8 + 1e-4);
}

Test(hooks, feedback_keeps_exactly_what_was_cut_off) {
    static box b;
    iso_comm_hook_bucket *bucket = open_box(&b, &iso_hook_bf16_feedback, MOST);
    for (uint32_t step = 0; step < 5; step++) {
        static float before[MOST];
        memcpy(before, b.state, sizeof(before));
        for (uint32_t i = 0; i < MOST; i++) b.gradient[i] = ldexpf(uniform(i, step), (int)i % 20);
        cr_assert_eq(iso_hook_bf16_feedback.compress(bucket, 0.5, NULL), ISO_OK);
        for (uint32_t i = 0; i < MOST; i++) {
            float v = b.gradient[i] * 0.5f + before[i];
            cr_assert_eq((double)sent(&b, &iso_hook_bf16_feedback, i) + b.state[i], (double)v);
        }
    }
}

// A step with an overflow must not poison all that follow.
Test(hooks, feedback_recovers_from_what_is_not_finite) {
    const float bad[] = {NAN, INFINITY, -INFINITY, 3.4e38f}; // the last one only once rounded
    static box b;
    iso_comm_hook_bucket *bucket = open_box(&b, &iso_hook_bf16_feedback, 5);
    for (size_t i = 0; i < 4; i++) b.gradient[i] = bad[i], b.state[i] = 1e-3f;
    b.gradient[4] = 1.001f;
    cr_assert_eq(iso_hook_bf16_feedback.compress(bucket, 1, NULL), ISO_OK);
    for (size_t i = 0; i < 4; i++) {
        cr_assert(!isfinite(sent(&b, &iso_hook_bf16_feedback, i)), "all ranks must see it");
        cr_assert_eq(b.state[i], 0);
    }
    cr_assert_eq(b.state[4], 1.001f - 1.0f, "its neighbours keep theirs");
    for (size_t i = 0; i < 4; i++) b.gradient[i] = 2;
    cr_assert_eq(iso_hook_bf16_feedback.compress(bucket, 1, NULL), ISO_OK);
    for (size_t i = 0; i < 4; i++) cr_assert_eq(sent(&b, &iso_hook_bf16_feedback, i), 2);
}

Test(hooks, feedback_without_state_is_refused) {
    box b;
    iso_comm_hook_bucket *bucket = open_box(&b, &iso_hook_bf16_feedback, 1);
    bucket->state = NULL;
    cr_assert_eq(iso_hook_bf16_feedback.compress(bucket, 1, NULL), ISO_ERR_ARG);
}

// ---- Tables -----------------------------------------------------------------------------------------

Test(hooks, names_are_parsed) {
    const struct {
        const char *name;
        const iso_comm_hook *hook;
    } known[] = {{"plain", &iso_hook_plain},
                 {"f32", &iso_hook_plain},
                 {"f16", &iso_hook_f16},
                 {"bf16", &iso_hook_bf16},
                 {"bf16-feedback", &iso_hook_bf16_feedback},
                 {"fp8", &iso_hook_fp8},
                 {"onebit", &iso_hook_onebit},
                 {"dithering", &iso_hook_dithering},
                 {"adasum", &iso_hook_adasum},
                 {"noop", &iso_hook_noop}};
    const iso_comm_hook *found = NULL;
    for (int i = 0; i < 10; i++) {
        cr_assert_eq(iso_comm_hook_parse(known[i].name, &found), ISO_OK);
        cr_assert_eq(found, known[i].hook, "%s", known[i].name);
    }
    cr_assert_eq(iso_comm_hook_parse("int7", &found), ISO_ERR_ARG);
    cr_assert_eq(found, &iso_hook_noop, "unchanged");
    cr_assert(strstr(iso_last_error()->message, "int8"));
    for (int i = 0; i < 10; i++) cr_assert(strstr(iso_last_error()->message, known[i].name));
}
