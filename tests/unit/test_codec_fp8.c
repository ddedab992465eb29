// SPDX-License-Identifier: MIT
// The codec fp8: its passes do what they are made of, what is not finite is seen, and its codes are
// those of E4M3 (OCP 8-bit Floating Point Specification 1.0, 2023), as in PyTorch.
#include "base/half.h"
#include "common/balance.h"
#include "common/codec_model.h"
#include "common/fixture.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

TestSuite(codec_fp8, .fini = balance_check, .timeout = 60);

enum { GROUP = 128, GROUP_BYTES = 132, CODES = 256, SCALES = 4 };
static const iso__codec *const codec = &iso__codec_fp8;
static const float scales[SCALES] = {1, 0x1p-110f, 0x1p20f, 0x1p119f};

typedef struct group {
    float scale;
    unsigned char code[GROUP];
} group;
_Static_assert(sizeof(group) == GROUP_BYTES, "the layout that travels");

Test(codec_fp8, encodes_whole_groups) { codec_encodes_whole_groups(codec, GROUP_BYTES); }
Test(codec_fp8, feedback_keeps_what_is_left) { codec_feedback_keeps_what_is_left(codec); }
Test(codec_fp8, decodes_with_what_is_around_it) { codec_decodes_with_what_is_around_it(codec); }
Test(codec_fp8, mean_is_the_serial_one) { codec_mean_is_the_serial_one(codec); }

// The largest f32 still has a scale.
Test(codec_fp8, one_value_that_is_not_finite_is_seen) {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    codec_sees_what_is_not_finite(codec, 3, bad);
}

// Each of the 256 codes means the number of the definition, and that number becomes the code.
static void check_code(int code, float scale) {
    group sent = {.scale = scale}, again;
    float back[GROUP];
    double value = codec_model_e4m3(code);
    memset(sent.code, code, sizeof(sent.code));
    cr_assert_eq(codec->decode(GROUP, &sent, back), !isnan(value), "code %d", code);
    if (isnan(value)) {
        for (int i = 0; i < GROUP; i++) cr_assert(isnan(back[i]), "code %d", code);
        return;
    }
    for (int i = 0; i < GROUP; i++) cr_assert_eq((double)back[i], value * (double)scale);
    cr_assert_eq(signbit(back[5]) != 0, code >= 128);
    back[0] = 448 * scale;
    cr_assert(codec->encode(GROUP, back, 1, &again));
    cr_assert_eq(again.scale, scale);
    cr_assert_eq(again.code[0], 0x7e);
    for (int i = 1; i < GROUP; i++) cr_assert_eq(again.code[i], code, "code %d", code);
}

Test(codec_fp8, has_all_codes_of_e4m3) {
    for (int s = 0; s < SCALES; s++)
        for (int code = 0; code < CODES; code++) check_code(code, scales[s]);
}

// All values, all ties between two of them, the floats beside each tie, and floats at random.
Test(codec_fp8, rounds_as_pytorch) {
    fixture *f = fixture_open("fp8.txt");
    int64_t values, count, codes;
    const double *value = fixture_get(f, NULL, "values", &values);
    const double *x = fixture_get(f, NULL, "x", &count),
                 *code = fixture_get(f, NULL, "code", &codes);
    cr_assert(values == CODES - 2 && count == codes && count > 500);
    for (int c = 0; c < CODES; c++)
        if (c % 128 != 127) cr_assert_eq(codec_model_e4m3(c), value[c > 127 ? c - 1 : c]);
    for (int64_t i = 0; i < count; i++) {
        float v[GROUP] = {448, (float)x[i], -448};
        group sent;
        cr_assert(codec->encode(GROUP, v, 1, &sent));
        cr_assert_eq(sent.code[1], (int)code[i], "%.9g: %d, not %d", x[i], sent.code[1],
                     (int)code[i]);
    }
    fixture_close(&f);
}

// For every size of a group, what is nearest to 448 times the scale, or beyond, becomes that. A
// tiny scale is rounded coarsely, so the largest magnitude may be far below or beyond.
Test(codec_fp8, saturates) {
    for (uint32_t bits = 1; bits < 0x7f800000; bits += bits < 9999 ? 1 : 7919) {
        float v[GROUP] = {iso__float_of(bits), -iso__float_of(bits)}, back[GROUP];
        group sent;
        cr_assert(codec->encode(GROUP, v, 1, &sent) && codec->decode(GROUP, &sent, back));
        bool most = sent.scale > 0 && (double)v[0] >= 432 * (double)sent.scale;
        int code = sent.code[0];
        cr_assert(most ? code == 0x7e : code < 0x7e && bits < 9999, "%a: %d", (double)v[0], code);
        cr_assert_eq(sent.code[1], sent.scale > 0 ? code + 128 : 0);
    }
}

// The scale comes first, then a byte for each element.
Test(codec_fp8, has_a_fixed_layout) {
    float x[GROUP] = {896, -2, 0x1p-8f, 0};
    group sent;
    cr_assert(codec->encode(4, x, 1, &sent));
    cr_assert_eq(sent.scale, 2);
    cr_assert_eq(sent.code[0], 0x7e);
    cr_assert_eq(sent.code[1], 0xb8);
    cr_assert_eq(sent.code[2], 0x01);
    for (int i = 3; i < GROUP; i++) cr_assert_eq(sent.code[i], 0);
}

// Magnitudes so small that the scale is rounded, or 0: finite, and nothing gets lost.
Test(codec_fp8, takes_subnormal_groups) {
    // The second of them is 448 times half of the least f32.
    static const float largest[] = {0x1p-149f, 0x1.cp-142f, 0x1.dp-142f, 0x1p-135f, FLT_MIN};
    for (int k = 0; k < 5; k++) {
        float x[GROUP] = {largest[k], -largest[k] / 3, 0x1p-149f}, state[GROUP] = {0}, back[GROUP];
        group sent;
        cr_assert(codec->encode_feedback(GROUP, x, 1, state, &sent));
        cr_assert(codec->decode(GROUP, &sent, back));
        for (int i = 0; i < GROUP; i++)
            cr_assert_eq((double)back[i] + (double)state[i], (double)x[i], "%a", (double)x[i]);
        cr_assert_eq(back[0] > 0, k > 1);
    }
}
