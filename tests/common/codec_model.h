// SPDX-License-Identifier: MIT
// For tests of codecs that encode groups of elements: the same rounding, written again without
// encoding, and what every such codec must fulfil.
#ifndef ISO_TEST_CODEC_MODEL_H
#define ISO_TEST_CODEC_MODEL_H

#include "exchange/codec.h"

enum { MOST_GROUP = 256 };

// The value of an E4M3 code: OCP 8-bit Floating Point Specification 1.0, 2023, section 5.
double codec_model_e4m3(int code);

// What a group of n values, at most the codec's, becomes. For an element type: value by value.
void codec_model_round(const iso__codec *codec, size_t n, const float *v, float *out);

// Each asserts a property of the codec, with groups of a given number of bytes.
void codec_encodes_whole_groups(const iso__codec *codec, size_t bytes);
void codec_feedback_keeps_what_is_left(const iso__codec *codec);
void codec_decodes_with_what_is_around_it(const iso__codec *codec);
void codec_mean_is_the_serial_one(const iso__codec *codec);
// Values of the list, and only these, make a group not finite. One spoils its group: it is encoded
// as NaN, and leaves nothing behind.
void codec_sees_what_is_not_finite(const iso__codec *codec, int count, const float *bad);

#endif
