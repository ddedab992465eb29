// SPDX-License-Identifier: MIT
// The codec int8: its passes do what they are made of, and what is not finite is seen.
#include "common/balance.h"
#include "exchange/codec.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

TestSuite(codec_int8, .fini = balance_check, .timeout = 60);

enum { MOST = 1024, GROUP = 256, GROUP_BYTES = 260 };
static const iso__codec *const codec = &iso__codec_int8;
static float x[MOST], reference[MOST], residual[MOST], left[MOST + 1], back[MOST + 1];
_Alignas(float) static char sent[3 * MOST / GROUP * GROUP_BYTES + 1];
static const size_t lengths[] = {0, 1, 7, 255, 256, 257, 700, MOST};

static float draw(uint32_t i, uint32_t which) {
    uint32_t counter[4] = {i, which}, bits[4];
    iso__philox(iso__philox_key_make(6, ISO_RNG_TEST, 0), counter, bits);
    return (2 * iso__uniform(bits[0]) - 1) * ldexpf(1, (int)(bits[1] % 16) - 8);
}

static void fill(void) {
    for (uint32_t i = 0; i < MOST; i++) {
        x[i] = draw(i, 0);
        reference[i] = draw(i, 1);
        residual[i] = draw(i, 2) / 256;
    }
}

// What a group of n values becomes: integers of -127 to 127 times a scale.
static void round_group(size_t n, const float *v, float *out) {
    float most = 0;
    for (size_t i = 0; i < n; i++) most = fmaxf(most, fabsf(v[i]));
    float scale = most / 127;
    for (size_t i = 0; i < n; i++) out[i] = scale > 0 ? (float)(int)rintf(v[i] / scale) * scale : 0;
}

static void check_decoded(size_t n, const float *v) {
    float expected[GROUP];
    cr_assert(codec->decode(n, sent, back));
    for (size_t at = 0; at < n; at += GROUP) {
        size_t in_group = n - at < GROUP ? n - at : GROUP;
        round_group(in_group, v + at, expected);
        cr_assert_arr_eq(back + at, expected, in_group * sizeof(float), "%zu of %zu", at, n);
    }
}

Test(codec_int8, has_260_bytes_for_each_256_elements) {
    cr_assert_eq(codec->bytes(0), 0);
    cr_assert_eq(codec->bytes(1), GROUP_BYTES);
    cr_assert_eq(codec->bytes(256), GROUP_BYTES);
    cr_assert_eq(codec->bytes(257), 2 * GROUP_BYTES);
}

// The last group is padded with zeros, and nothing behind it is written.
Test(codec_int8, encodes_whole_groups) {
    fill();
    for (int k = 0; k < 8; k++) {
        size_t n = lengths[k], bytes = codec->bytes(n);
        memset(sent, 0x55, sizeof(sent));
        cr_assert(codec->encode(n, x, 1, sent));
        check_decoded(n, x);
        cr_assert_eq(sent[bytes], 0x55);
        size_t whole = bytes / GROUP_BYTES * GROUP;
        cr_assert(codec->decode(whole, sent, back));
        for (size_t i = n; i < whole; i++) cr_assert_eq(back[i], 0);
    }
}

Test(codec_int8, feedback_keeps_what_is_left) {
    static float v[MOST], state[MOST];
    fill();
    for (int k = 0; k < 8; k++) {
        size_t n = lengths[k];
        iso__codec_feedback feedback = {residual, left};
        left[n] = 77;
        for (size_t i = 0; i < n; i++) v[i] = (x[i] - reference[i]) * 1.5f + residual[i];
        cr_assert(codec->encode_difference(n, x, 1.5f, reference, &feedback, sent));
        check_decoded(n, v);
        for (size_t i = 0; i < n; i++)
            cr_assert_eq((double)back[i] + left[i], (double)v[i], "nothing gets lost");
        cr_assert_eq(left[n], 77);
        for (size_t i = 0; i < n; i++) v[i] = x[i] * 0.7f + residual[i];
        memcpy(state, residual, sizeof(state));
        cr_assert(codec->encode_feedback(n, x, 0.7f, state, sent));
        check_decoded(n, v);
        for (size_t i = 0; i < n; i++) cr_assert_eq((double)back[i] + state[i], (double)v[i]);
    }
}

Test(codec_int8, decodes_with_what_is_around_it) {
    fill();
    cr_assert(codec->encode(MOST, x, 1, sent));
    cr_assert(codec->decode(MOST, sent, back));
    float *out = left;
    cr_assert(codec->decode_scaled(MOST, sent, 0.3f, out));
    for (size_t i = 0; i < MOST; i++) cr_assert_eq(out[i], back[i] * 0.3f);
    cr_assert(codec->decode_difference(MOST, sent, reference, out));
    for (size_t i = 0; i < MOST; i++) cr_assert_eq(out[i], reference[i] + back[i]);
    memcpy(out, residual, sizeof(residual));
    cr_assert(codec->decode_add(MOST, sent, out));
    for (size_t i = 0; i < MOST; i++) cr_assert_eq(out[i], residual[i] + back[i]);
}

Test(codec_int8, mean_is_the_serial_one) {
    static float sum[MOST], v[MOST];
    _Alignas(float) static char shares_of[3][MOST / GROUP * GROUP_BYTES];
    fill();
    for (int nodes = 1; nodes <= 3; nodes++) {
        memset(sum, 0, sizeof(sum));
        for (int k = 0; k < nodes; k++) {
            for (uint32_t i = 0; i < MOST; i++) v[i] = draw(i, 10 + (uint32_t)k);
            codec->encode(MOST, v, 1, shares_of[k]);
            codec->decode_add(MOST, shares_of[k], sum);
        }
        iso__codec_shares shares = {shares_of, nodes, MOST};
        iso__codec_feedback feedback = {residual, left};
        for (size_t i = 0; i < MOST; i++) v[i] = sum[i] / (float)nodes;
        cr_assert(codec->mean(&shares, NULL, sent));
        check_decoded(MOST, v);
        for (size_t i = 0; i < MOST; i++) v[i] = sum[i] / (float)nodes + residual[i];
        cr_assert(codec->mean(&shares, &feedback, sent));
        check_decoded(MOST, v);
        for (size_t i = 0; i < MOST; i++) cr_assert_eq((double)back[i] + left[i], (double)v[i]);
    }
}

// One value spoils its group: it is NaN, and leaves nothing behind.
Test(codec_int8, one_value_that_is_not_finite_is_seen) {
    const float bad[] = {NAN, INFINITY, -INFINITY, FLT_MAX};
    for (int b = 0; b < 4; b++) {
        iso__codec_feedback feedback = {residual, left};
        fill();
        memset(reference, 0, sizeof(reference));
        memset(residual, 0, sizeof(residual));
        x[300] = bad[b];
        cr_assert(!codec->encode(MOST, x, 1, sent));
        cr_assert(!codec->decode(MOST, sent, back));
        cr_assert(!codec->decode_difference(MOST, sent, reference, back));
        for (size_t i = 0; i < MOST; i++) cr_assert_eq(isnan(back[i]) != 0, i / GROUP == 1);
        iso__codec_shares shares = {sent, 1, MOST};
        _Alignas(float) static char mean[MOST / GROUP * GROUP_BYTES];
        cr_assert(!codec->mean(&shares, NULL, mean));
        cr_assert(!codec->mean(&shares, &feedback, mean));
        cr_assert(!codec->encode_difference(MOST, x, 1, reference, &feedback, sent));
        cr_assert(!codec->encode_feedback(MOST, x, 1, residual, sent));
        for (size_t i = GROUP; i < 2 * GROUP; i++) cr_assert_eq(residual[i], 0);
        for (size_t i = 0; i < MOST; i++) cr_assert(isfinite(residual[i]));
    }
}
