// SPDX-License-Identifier: MIT
// Private to src/exchange: converts floats to and from the wire type, in one pass with the
// arithmetic around it. The bits depend neither on the instruction set nor on the machine.
//
// Rounding is to nearest, ties to even; NaN stays NaN; values too large for f16 become infinite.
// wire: ISO_F32, ISO_BF16 or ISO_F16. Functions that return a bool return whether everything they
// wrote is finite. Arrays do not overlap.
#ifndef ISO_WIRE_H
#define ISO_WIRE_H

#include "base/base.h"

#include <isotherm/device.h>

// Error feedback adds the previous rounding error: v = exact + residual, wire = round(v), left = v
// - wire (Seide et al., Interspeech 2014).
typedef struct iso__wire_feedback {
    const float *residual;
    float *left;
} iso__wire_feedback;

// out = x * factor
bool iso__wire_encode(iso_dtype wire, size_t count, const float *x, float factor, void *out);
// out = x * factor, with feedback from and to state; values that are not finite set state to 0
bool iso__wire_encode_feedback(iso_dtype wire, size_t count, const float *x, float factor,
                               float *state, void *out);
// out = (x - reference) * factor, with feedback
bool iso__wire_encode_difference(iso_dtype wire, size_t count, const float *x, float factor,
                                 const float *reference, const iso__wire_feedback *feedback,
                                 void *out);

// The shares of all nodes, `count` elements each, one after the other.
typedef struct iso__wire_shares {
    const void *data;
    int nodes;
    size_t count;
} iso__wire_shares;

// out = (s_0 + s_1 + ... in f32) / nodes; feedback may be NULL
bool iso__wire_mean(iso_dtype wire, const iso__wire_shares *shares,
                    const iso__wire_feedback *feedback, void *out);
// The same, rounding to the wire type after every addition and after the division.
bool iso__wire_mean_rounded(iso_dtype wire, const iso__wire_shares *shares, void *out);

// out = in
bool iso__wire_decode(iso_dtype wire, size_t count, const void *in, float *out);
// out = in * factor
bool iso__wire_decode_scaled(iso_dtype wire, size_t count, const void *in, float factor,
                             float *out);
// out = reference + in
bool iso__wire_decode_difference(iso_dtype wire, size_t count, const void *in,
                                 const float *reference, float *out);

#endif
