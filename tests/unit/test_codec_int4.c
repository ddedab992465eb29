// SPDX-License-Identifier: MIT
// The codec int4: its passes do what they are made of, what is not finite is seen, and its codes
// are those of E3M0.
#include "common/balance.h"
#include "common/codec_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(codec_int4, .fini = balance_check, .timeout = 60);

enum { GROUP = 128, GROUP_BYTES = 68 };
static const iso__codec *const codec = &iso__codec_int4;

Test(codec_int4, encodes_whole_groups) { codec_encodes_whole_groups(codec, GROUP_BYTES); }
Test(codec_int4, feedback_keeps_what_is_left) { codec_feedback_keeps_what_is_left(codec); }
Test(codec_int4, decodes_with_what_is_around_it) { codec_decodes_with_what_is_around_it(codec); }
Test(codec_int4, mean_is_the_serial_one) { codec_mean_is_the_serial_one(codec); }

// The largest f32 still has a scale.
Test(codec_int4, one_value_that_is_not_finite_is_seen) {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    codec_sees_what_is_not_finite(codec, 3, bad);
}

// Fractions of the scale and what they become: every code, both sides of every tie, and the ties.
Test(codec_int4, has_the_values_of_e3m0) {
    static const float pairs[][2] = {{0, 0},
                                     {0x0.ffffffp-7f, 0},
                                     {0x1p-7f, 0x1p-6f},
                                     {0x1p-6f, 0x1p-6f},
                                     {0x1.7ffffep-6f, 0x1p-6f},
                                     {0x1.8p-6f, 0x1p-5f},
                                     {0x1.7ffffep-5f, 0x1p-5f},
                                     {0x1.8p-5f, 0x1p-4f},
                                     {0x1p-4f, 0x1p-4f},
                                     {0x1.8p-4f, 0x1p-3f},
                                     {0x1.7ffffep-3f, 0x1p-3f},
                                     {0x1.8p-3f, 0x1p-2f},
                                     {0x1.7ffffep-2f, 0x1p-2f},
                                     {0x1.8p-2f, 0x1p-1f},
                                     {0x1.7ffffep-1f, 0x1p-1f},
                                     {0x1.8p-1f, 1},
                                     {1, 1}};
    enum { COUNT = sizeof(pairs) / sizeof(pairs[0]) };
    static const float scales[] = {1, 0x1p-100f, 0x1p20f, 0x1p127f};
    float x[GROUP] = {0}, back[GROUP];
    _Alignas(float) char sent[GROUP_BYTES];
    for (int s = 0; s < 4; s++) {
        for (int i = 0; i < COUNT; i++) {
            x[i] = pairs[i][0] * scales[s];
            x[GROUP - 1 - i] = -x[i];
        }
        cr_assert(codec->encode(GROUP, x, 1, sent) && codec->decode(GROUP, sent, back));
        for (int i = 0; i < COUNT; i++) {
            cr_assert_eq(back[i], pairs[i][1] * scales[s], "%a: %a", x[i], back[i]);
            cr_assert_eq(back[GROUP - 1 - i], -pairs[i][1] * scales[s]);
        }
    }
}

// The scale comes first; then element i is the lower half of byte i, element 64 + i the upper one.
Test(codec_int4, has_a_fixed_layout) {
    float x[GROUP] = {0}, scale;
    unsigned char sent[GROUP_BYTES];
    _Alignas(float) char room[GROUP_BYTES];
    x[0] = 3;
    x[1] = -1.5f;
    x[64] = -3 * 0x1p-6f;
    x[65] = 3 * 0x1p-3f;
    cr_assert(codec->encode(GROUP, x, 1, room));
    memcpy(sent, room, sizeof(sent));
    memcpy(&scale, sent, sizeof(scale));
    cr_assert_eq(scale, 3);
    cr_assert_eq(sent[4], 0x97);
    cr_assert_eq(sent[5], 0x4e);
    for (int i = 6; i < GROUP_BYTES; i++) cr_assert_eq(sent[i], 0);
}

// Magnitudes so small that the smallest codes are 0: finite, and nothing gets lost.
Test(codec_int4, takes_subnormal_groups) {
    float x[GROUP] = {0}, state[GROUP] = {0}, back[GROUP];
    _Alignas(float) char sent[GROUP_BYTES];
    x[0] = 0x1p-149f;
    x[1] = 0x1p-148f;
    x[2] = -0x1p-149f;
    cr_assert(codec->encode_feedback(GROUP, x, 1, state, sent));
    cr_assert(codec->decode(GROUP, sent, back));
    for (int i = 0; i < GROUP; i++) cr_assert_eq(back[i] + state[i], x[i]);
    cr_assert_eq(back[1], 0x1p-148f);
}
