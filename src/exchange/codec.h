// SPDX-License-Identifier: MIT
// Private to src/exchange, src/parallel and optim: codecs encode f32 in the bytes that travel, in
// one pass with the arithmetic around it. Gradients and the mean over nodes share them. The bits
// depend neither on the instruction set nor on the machine.
//
// Element types round to nearest, ties to even; NaN stays NaN; values too large for f16 become
// infinite.
//
// int8 has a scale in f32 for each group of 256 elements, which are integers from -127 to 127: 260
// bytes instead of 1024. scale = largest magnitude / 127, rounded to nearest. A group that contains
// a NaN or an infinity, or whose 127 * scale is infinite, is encoded as NaN.
//
// fp8 has 8-bit floats of one sign bit, four exponent bits and three bits of a fraction (E4M3 of
// the OCP 8-bit Floating Point Specification 1.0, 2023) times a scale in f32 for each group of 128
// elements: 132 bytes instead of 512. scale = largest magnitude / 448, rounded to nearest. x /
// scale rounds to nearest, ties to even; beyond 448 it becomes 448. A group that contains a NaN or
// an infinity is encoded as NaN.
//
// int4 has 4-bit floats of one sign bit and three exponent bits (E3M0), as in Streaming DiLoCo
// (Douillard et al., 2025): 0 and plus or minus 2^-6 to 1, times a scale in f32 for each group of
// 128 elements: 68 bytes instead of 512. scale = largest magnitude. x / scale rounds to nearest,
// ties away from zero. A group that contains a NaN or an infinity is encoded as NaN.
//
// onebit has the sign of each element and a scale in f32 for each group of 256 elements: 36 bytes
// instead of 1024. scale = mean magnitude of the group, summed in f64. Zero counts as positive. A
// group that contains a NaN or an infinity is encoded as NaN. Only for gradients: the padding of
// the last group does not decode to 0, so `mean` must not be used with this codec.
//
// topk keeps the 8 elements of largest magnitude of each group of 256, of equal ones the first, as
// bf16 with their places in the group: 24 bytes instead of 1024. The other elements become 0. If a
// group contains a NaN, an infinity or a magnitude that bf16 makes infinite, all 8 are NaN. topk4
// to topk64 keep as many as their names say.
#ifndef ISO_CODEC_H
#define ISO_CODEC_H

#include "base/base.h"

#include <isotherm/device.h>

// Error feedback adds the previous error: v = exact + residual, out = v, encoded, left = v - out
// (Seide et al., Interspeech 2014).
typedef struct iso__codec_feedback {
    const float *residual;
    float *left;
} iso__codec_feedback;

// The shares of all nodes, encoded, `count` elements each, one after the other.
typedef struct iso__codec_shares {
    const void *data;
    int nodes;
    size_t count; // a multiple of the group
} iso__codec_shares;

// Functions that return a bool return whether everything they wrote is finite. Arrays do not
// overlap. An encoded array ends with a whole group, padded with zeros.
typedef struct iso__codec {
    const char *name;
    size_t group; // elements; anything encoded separately must begin at a multiple of this
    // Bytes of `count` elements; the size of a group times the number of groups.
    size_t (*bytes)(size_t count);

    // out = x * factor
    bool (*encode)(size_t count, const float *x, float factor, void *out);
    // out = x * factor, with feedback from and to state. A value that is not finite sets the state
    // of its whole group to 0
    bool (*encode_feedback)(size_t count, const float *x, float factor, float *state, void *out);
    // out = (x - reference) * factor, with feedback
    bool (*encode_difference)(size_t count, const float *x, float factor, const float *reference,
                              const iso__codec_feedback *feedback, void *out);

    // out = (s_0 + s_1 + ... in f32) / nodes; feedback may be NULL
    bool (*mean)(const iso__codec_shares *shares, const iso__codec_feedback *feedback, void *out);
    // The same, rounding to the element type after every addition and after the division. NULL if
    // the codec is no element type.
    bool (*mean_rounded)(const iso__codec_shares *shares, void *out);

    // out = in
    bool (*decode)(size_t count, const void *in, float *out);
    // out = in * factor
    bool (*decode_scaled)(size_t count, const void *in, float factor, float *out);
    // out = reference + in
    bool (*decode_difference)(size_t count, const void *in, const float *reference, float *out);
    // out += in
    bool (*decode_add)(size_t count, const void *in, float *out);
} iso__codec;

extern const iso__codec iso__codec_f32, iso__codec_bf16, iso__codec_f16, iso__codec_int8,
    iso__codec_fp8, iso__codec_int4, iso__codec_onebit, iso__codec_topk4, iso__codec_topk,
    iso__codec_topk16, iso__codec_topk32, iso__codec_topk64;

// f64 elements of a mean over nodes travel as they are. Return whether everything written is
// finite.
bool iso__f64_encode(size_t count, const double *x, double factor, double *out); // x * factor
// (s_0 + s_1 + ...) / nodes
bool iso__f64_mean(const iso__codec_shares *shares, double *out);
bool iso__f64_decode(size_t count, const double *in, double *out); // copies

// The codec of an element type: ISO_F32, ISO_BF16 or ISO_F16; NULL for another.
const iso__codec *iso__codec_of(iso_dtype dtype);

#endif
