// SPDX-License-Identifier: MIT
// Private to src/exchange: f32 in fewer bytes than 16-bit types take, a group of elements at a
// time. The bits depend neither on the instruction set nor on the machine.
#ifndef ISO_CODEC_H
#define ISO_CODEC_H

#include "base/base.h"

typedef struct iso__codec {
    const char *name;
    size_t group; // elements; ranges that are encoded separately begin at a multiple of it
    // Bytes that `count` elements take; a multiple of 4.
    size_t (*bytes)(size_t count);
    // v = x * factor + residual; out = v, encoded; residual = v - out. A group that contains a NaN
    // or an infinity is encoded as NaN, and its residual becomes 0.
    void (*encode)(size_t count, const float *x, float factor, float *residual, void *out);
    // out = in * factor
    void (*decode)(size_t count, const void *in, float factor, float *out);
    // out += in
    void (*add)(size_t count, const void *in, float *out);
} iso__codec;

// A scale in f32 for each 256 elements, which are integers from -127 to 127: 260 bytes instead of
// 1024. scale = largest magnitude / 127, rounded to nearest.
extern const iso__codec iso__codec_int8;

#endif
