// SPDX-License-Identifier: MIT
// The codec int8: 8-bit integers with a scale for each group.
#include "exchange/codec_groups.h"

#include <math.h>

enum { SIZE = 256, MOST = 127 };
#define LARGEST 0x7f7ffffeu // bits of the largest magnitude whose scale times 127 is finite

typedef struct group_int8 {
    float scale;
    int8_t value[SIZE];
} group_int8;

// Rounds to nearest, ties to even; x must be below 2^22 in magnitude.
ISO_INLINE float round_small(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

ISO_INLINE bool encode_group_int8(size_t n, float *restrict v, group_int8 *restrict out) {
    uint32_t most = largest_bits(n, v);
    float scale = iso__float_of(most) / (float)MOST;
    bool finite = most <= LARGEST;
    bool some = finite && scale > 0;
    float divisor = some ? scale : 1;
    out->scale = finite ? scale : NAN;
    for (size_t i = 0; i < n; i++) {
        float q = round_small(v[i] / divisor);
        // A tiny scale is rounded coarsely, and q may exceed MOST.
        q = q > (float)MOST ? (float)MOST : q < -(float)MOST ? -(float)MOST : q;
        out->value[i] = some ? (int8_t)q : 0;
        v[i] = !finite ? 0 : v[i] - (float)out->value[i] * scale;
    }
    memset(out->value + n, 0, SIZE - n);
    return finite;
}

ISO_INLINE void read_group_int8(const group_int8 *restrict in, float *restrict value) {
    for (size_t i = 0; i < SIZE; i++) value[i] = (float)in->value[i] * in->scale;
}

#define CODEC        int8
#define CODEC_WORD   "int8"
#define CODEC_GROUP  SIZE
#define CODEC_CLONES ISO_CLONES
#include "exchange/codec_passes.h"
