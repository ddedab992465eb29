// SPDX-License-Identifier: MIT
// For tests of codecs that encode groups of elements.
#include "common/codec_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

// ---- Rounding, written again ----------------------------------------------------------------------
// Volatile: every operation rounds.

static float largest_of(size_t n, const float *v) {
    float most = 0;
    for (size_t i = 0; i < n; i++) most = fmaxf(most, fabsf(v[i]));
    return most;
}

// q = v / scale, to the nearest, with scale = largest magnitude / 127.
static void round_int8(size_t n, const float *v, float *out) {
    volatile float scale = largest_of(n, v) / 127;
    for (size_t i = 0; i < n; i++) {
        volatile float q = scale > 0 ? v[i] / scale : 0;
        out[i] = (float)(int)fmaxf(-127, fminf(127, rintf(q))) * scale;
    }
}

double codec_model_e4m3(int code) {
    int exponent = code >> 3 & 15, fraction = code & 7;
    double size = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
    if (exponent == 15 && fraction == 7) return NAN;
    return code & 128 ? -size : size;
}

// The nearest of the positive codes to |v| / scale, of two the even one, with scale = largest
// magnitude / 448.
static void round_fp8(size_t n, const float *v, float *out) {
    volatile float scale = largest_of(n, v) / 448;
    for (size_t i = 0; i < n; i++) {
        volatile float q = scale > 0 ? fabsf(v[i]) / scale : 0;
        int best = 0;
        for (int code = 1; code < 127; code++) {
            double off = fabs((double)q - codec_model_e4m3(code));
            double least = fabs((double)q - codec_model_e4m3(best));
            if (off < least || (off == least && code % 2 == 0)) best = code;
        }
        volatile float size = (float)codec_model_e4m3(best) * scale;
        out[i] = v[i] < 0 ? -size : size;
    }
}

// The nearest of 0, 2^-6, ..., 1 to |v| / largest magnitude; of two, the larger one.
static void round_int4(size_t n, const float *v, float *out) {
    float scale = largest_of(n, v);
    for (size_t i = 0; i < n; i++) {
        volatile float x = scale > 0 ? fabsf(v[i]) / scale : 0;
        double best = 0;
        for (int e = -6; e <= 0; e++)
            if (fabs((double)x - ldexp(1, e)) <= fabs((double)x - best)) best = ldexp(1, e);
        volatile float size = (float)best * scale;
        out[i] = v[i] < 0 && best > 0 ? -size : size;
    }
}

// The `most` largest of 256, of equal ones the first, with the upper half of their bits, rounded.
static void round_topk(size_t most, size_t n, const float *v, float *out) {
    bool kept[MOST_GROUP] = {false};
    for (size_t i = 0; i < n; i++) out[i] = 0;
    for (size_t k = 0; k < most && k < n; k++) {
        size_t best = n;
        for (size_t i = 0; i < n; i++)
            if (!kept[i] && (best == n || fabsf(v[i]) > fabsf(v[best]))) best = i;
        kept[best] = true;
        uint16_t half;
        iso__codec_bf16.encode(1, &v[best], 1, &half);
        iso__codec_bf16.decode(1, &half, &out[best]);
    }
}

void codec_model_round(const iso__codec *codec, size_t n, const float *v, float *out) {
    if (codec == &iso__codec_int8) {
        round_int8(n, v, out);
    } else if (codec == &iso__codec_fp8) {
        round_fp8(n, v, out);
    } else if (codec == &iso__codec_int4) {
        round_int4(n, v, out);
    } else if (strcmp(codec->name, "topk") == 0) {
        round_topk(codec->bytes(MOST_GROUP) / 3, n, v, out);
    } else {
        for (size_t i = 0; i < n; i++) {
            uint32_t room;
            codec->encode(1, &v[i], 1, &room);
            codec->decode(1, &room, &out[i]);
        }
    }
}

// ---- What codecs fulfil ---------------------------------------------------------------------------

enum { MOST = 1024, LENGTHS = 12 };
static float x[MOST], reference[MOST], residual[MOST], left[MOST + 1], back[MOST + 1];
_Alignas(float) static char sent[3 * MOST * sizeof(float) + 1];
static const size_t lengths[LENGTHS] = {0, 1, 7, 64, 65, 127, 128, 129, 255, 257, 700, MOST};

static float draw(uint32_t i, uint32_t which) {
    uint32_t counter[4] = {i, which}, bits[4];
    iso__philox(iso__philox_key_make(6, ISO_RNG_TEST, 0), counter, bits);
    return (2 * iso__uniform(bits[0]) - 1) * ldexpf(1, (int)(bits[1] % 16) - 8);
}

static void fill_arrays(void) {
    for (uint32_t i = 0; i < MOST; i++) {
        x[i] = draw(i, 0);
        reference[i] = draw(i, 1);
        residual[i] = draw(i, 2) / 256;
    }
}

static void check_decoded(const iso__codec *codec, size_t n, const float *v) {
    float expected[MOST_GROUP];
    cr_assert(codec->decode(n, sent, back));
    for (size_t at = 0; at < n; at += codec->group) {
        size_t in_group = n - at < codec->group ? n - at : codec->group;
        codec_model_round(codec, in_group, v + at, expected);
        for (size_t i = 0; i < in_group; i++)
            cr_assert(back[at + i] == expected[i], "%s, element %zu of %zu: %a to %a, not %a",
                      codec->name, at + i, n, v[at + i], back[at + i], expected[i]);
    }
}

// Nothing behind them is written.
void codec_encodes_whole_groups(const iso__codec *codec, size_t group) {
    fill_arrays();
    for (int k = 0; k < LENGTHS; k++) {
        size_t n = lengths[k], bytes = codec->bytes(n);
        cr_assert_eq(bytes, (n + codec->group - 1) / codec->group * group);
        memset(sent, 0x55, sizeof(sent));
        cr_assert(codec->encode(n, x, 1, sent));
        check_decoded(codec, n, x);
        cr_assert_eq(sent[bytes], 0x55);
        size_t whole = bytes / group * codec->group;
        cr_assert(codec->decode(whole, sent, back));
        for (size_t i = n; i < whole; i++) cr_assert_eq(back[i], 0);
    }
}

static void check_left(size_t n, const float *v, const float *state) {
    for (size_t i = 0; i < n; i++)
        cr_assert((double)back[i] + state[i] == (double)v[i], "nothing gets lost");
}

void codec_feedback_keeps_what_is_left(const iso__codec *codec) {
    static float v[MOST], state[MOST];
    fill_arrays();
    for (int k = 0; k < LENGTHS; k++) {
        size_t n = lengths[k];
        iso__codec_feedback feedback = {residual, left};
        left[n] = 77;
        for (size_t i = 0; i < n; i++) v[i] = (x[i] - reference[i]) * 1.5f + residual[i];
        cr_assert(codec->encode_difference(n, x, 1.5f, reference, &feedback, sent));
        check_decoded(codec, n, v);
        check_left(n, v, left);
        cr_assert_eq(left[n], 77);
        for (size_t i = 0; i < n; i++) v[i] = x[i] * 0.7f + residual[i];
        memcpy(state, residual, sizeof(state));
        cr_assert(codec->encode_feedback(n, x, 0.7f, state, sent));
        check_decoded(codec, n, v);
        check_left(n, v, state);
    }
}

void codec_decodes_with_what_is_around_it(const iso__codec *codec) {
    fill_arrays();
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

void codec_mean_is_the_serial_one(const iso__codec *codec) {
    static float sum[MOST], v[MOST];
    _Alignas(float) static char shares_of[3 * MOST * sizeof(float)];
    fill_arrays();
    for (int nodes = 1; nodes <= 3; nodes++) {
        memset(sum, 0, sizeof(sum));
        for (int k = 0; k < nodes; k++) {
            char *share = shares_of + (size_t)k * codec->bytes(MOST);
            for (uint32_t i = 0; i < MOST; i++) v[i] = draw(i, 10 + (uint32_t)k);
            codec->encode(MOST, v, 1, share);
            codec->decode_add(MOST, share, sum);
        }
        iso__codec_shares shares = {shares_of, nodes, MOST};
        iso__codec_feedback feedback = {residual, left};
        for (size_t i = 0; i < MOST; i++) v[i] = sum[i] / (float)nodes;
        cr_assert(codec->mean(&shares, NULL, sent));
        check_decoded(codec, MOST, v);
        for (size_t i = 0; i < MOST; i++) v[i] = sum[i] / (float)nodes + residual[i];
        cr_assert(codec->mean(&shares, &feedback, sent));
        check_decoded(codec, MOST, v);
        check_left(MOST, v, left);
    }
}

static void check_spoiled(const iso__codec *codec, size_t at) {
    iso__codec_feedback feedback = {residual, left};
    size_t first = at / codec->group * codec->group;
    static char mean[sizeof(sent)];
    cr_assert(!codec->encode(MOST, x, 1, sent));
    cr_assert(!codec->decode_difference(MOST, sent, reference, back));
    cr_assert(!codec->decode(MOST, sent, back));
    for (size_t i = 0; i < MOST; i++) {
        bool within = i >= first && i < first + codec->group;
        cr_assert(within ? !isfinite(back[i]) || back[i] == 0 : isfinite(back[i]));
    }
    iso__codec_shares shares = {sent, 1, MOST};
    cr_assert(!codec->mean(&shares, NULL, mean));
    cr_assert(!codec->mean(&shares, &feedback, mean));
    cr_assert(!codec->encode_difference(MOST, x, 1, reference, &feedback, sent));
    cr_assert(!codec->encode_feedback(MOST, x, 1, residual, sent));
    for (size_t i = first; i < first + codec->group; i++) cr_assert_eq(residual[i], 0);
    for (size_t i = 0; i < MOST; i++) cr_assert(isfinite(residual[i]) && isfinite(left[i]));
}

void codec_sees_what_is_not_finite(const iso__codec *codec, int count, const float *bad) {
    float least = INFINITY;
    for (int b = 0; b < count; b++) {
        fill_arrays();
        memset(reference, 0, sizeof(reference));
        memset(residual, 0, sizeof(residual));
        x[300] = bad[b];
        check_spoiled(codec, 300);
        if (fabsf(bad[b]) < least) least = fabsf(bad[b]);
    }
    x[300] = nextafterf(least, 0);
    cr_assert(codec->encode(MOST, x, 1, sent) && codec->decode(MOST, sent, back));
}
