// SPDX-License-Identifier: MIT
// The codec onebit: signs, with a scale for each group.
#include "exchange/codec_groups.h"

#include <math.h>

enum { SIZE = 256, LANES = 8 };

typedef struct group_onebit {
    float scale;
    uint8_t sign[SIZE / 8]; // bit i % 8 of sign[i / 8]: element i is negative
} group_onebit;

// In lanes, which all machines add in the same order. f64 holds each partial sum of a group nearly
// exactly, and none overflows.
ISO_INLINE float mean_magnitude(size_t n, const float *v) {
    double lane[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++) lane[k] += (double)fabsf(v[i + k]);
    for (; i < n; i++) lane[0] += (double)fabsf(v[i]);
    for (size_t k = 0; k < LANES; k++) sum += lane[k];
    return n > 0 ? (float)(sum / (double)n) : 0;
}

ISO_INLINE bool encode_group_onebit(size_t n, float *restrict v, group_onebit *restrict out) {
    bool finite = largest_bits(n, v) < 0x7f800000u;
    float scale = finite ? mean_magnitude(n, v) : NAN;
    memset(out->sign, 0, sizeof(out->sign));
    for (size_t i = 0; i < n; i++) {
        bool below = finite && v[i] < 0;
        out->sign[i / 8] |= (uint8_t)(below << i % 8);
        v[i] = !finite ? 0 : below ? v[i] + scale : v[i] - scale;
    }
    out->scale = scale;
    return finite;
}

ISO_INLINE void read_group_onebit(const group_onebit *restrict in, float *restrict value) {
    for (size_t i = 0; i < SIZE; i++)
        value[i] = in->sign[i / 8] >> i % 8 & 1 ? -in->scale : in->scale;
}

#define CODEC        onebit
#define CODEC_WORD   "onebit"
#define CODEC_GROUP  SIZE
#define CODEC_CLONES ISO_CLONES
#include "exchange/codec_passes.h"
