// SPDX-License-Identifier: MIT
// The codec topk: its passes do what they are made of, what is not finite is seen, and it keeps the
// largest elements.
#include "common/balance.h"
#include "common/codec_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(codec_topk, .fini = balance_check, .timeout = 60);

enum { GROUP = 256, GROUP_BYTES = 24, CODECS = 5 };
static const iso__codec *const codec = &iso__codec_topk;
static const iso__codec *const codecs[CODECS] = {&iso__codec_topk4, &iso__codec_topk,
                                                 &iso__codec_topk16, &iso__codec_topk32,
                                                 &iso__codec_topk64};

// Three bytes for each element that is kept: 4, 8, ... 64.
Test(codec_topk, encodes_whole_groups) {
    for (int k = 0; k < CODECS; k++) codec_encodes_whole_groups(codecs[k], (size_t)(12 << k));
}
Test(codec_topk, feedback_keeps_what_is_left) {
    for (int k = 0; k < CODECS; k++) codec_feedback_keeps_what_is_left(codecs[k]);
}
Test(codec_topk, decodes_with_what_is_around_it) {
    for (int k = 0; k < CODECS; k++) codec_decodes_with_what_is_around_it(codecs[k]);
}
Test(codec_topk, mean_is_the_serial_one) {
    for (int k = 0; k < CODECS; k++) codec_mean_is_the_serial_one(codecs[k]);
}

// 0x1.ffp127 is the smallest magnitude that bf16 makes infinite.
Test(codec_topk, one_value_that_is_not_finite_is_seen) {
    const float bad[] = {NAN, INFINITY, -INFINITY, 0x1.ffp127f, -0x1.ffp127f};
    for (int k = 0; k < CODECS; k++) codec_sees_what_is_not_finite(codecs[k], 5, bad);
}

// 8 values in falling order of magnitude, then their places; of equal magnitudes the first ones.
Test(codec_topk, has_a_fixed_layout) {
    static const unsigned char places[] = {200, 7, 255, 0, 1, 2, 3, 4};
    static const uint16_t values[] = {0xc100, 0x4080, 0xc040, 0x3f80,
                                      0xbf80, 0x3f80, 0xbf80, 0x3f80};
    float x[GROUP];
    uint16_t sent[GROUP_BYTES / 2];
    for (int i = 0; i < GROUP; i++) x[i] = i % 2 ? -1 : 1;
    x[200] = -8;
    x[7] = 4;
    x[255] = -3;
    cr_assert(codec->encode(GROUP, x, 1, sent));
    cr_assert_arr_eq(sent, values, sizeof(values));
    cr_assert_arr_eq(sent + 8, places, sizeof(places));
}

// What is not sent comes later: with nothing new, all 256 have been sent after 256 / kept
// exchanges, and not before.
static void all_come(const iso__codec *c, int exchanges) {
    float x[GROUP], zero[GROUP] = {0}, state[GROUP] = {0}, sum[GROUP] = {0};
    uint16_t sent[3 * 64 / 2];
    for (int i = 0; i < GROUP; i++) x[i] = (float)(i + 1) / 8; // bf16 has them
    for (int k = 0; k < exchanges; k++) {
        int left = 0;
        cr_assert(c->encode_feedback(GROUP, k == 0 ? x : zero, 1, state, sent));
        cr_assert(c->decode_add(GROUP, sent, sum));
        for (int i = 0; i < GROUP; i++) left += state[i] != 0;
        cr_assert_eq(left, GROUP - (k + 1) * GROUP / exchanges);
    }
    for (int i = 0; i < GROUP; i++) cr_assert(sum[i] == x[i] && state[i] == 0);
}
Test(codec_topk, sends_everything_in_turn) {
    for (int k = 0; k < CODECS; k++) all_come(codecs[k], GROUP / (4 << k));
}
