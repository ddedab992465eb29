// SPDX-License-Identifier: MIT
// The codec topk: the largest elements of each group, with their places.
#include "exchange/codec_groups.h"

#include <math.h>

enum { SIZE = 256 };
#define TOO_LARGE 0x7f7f8000u // bits of the smallest magnitude that bf16 rounds to infinity

// Puts v[i] among the largest so far, `most`, in falling order of magnitude. Of equal magnitudes
// the first one stays before.
ISO_INLINE void insert_place(const float *v, size_t i, size_t kept, uint32_t *most, uint8_t *place,
                             size_t *n) {
    uint32_t bits = iso__bits_of(v[i]) & 0x7fffffff;
    size_t at;
    if (*n == kept && bits <= most[kept - 1]) return;
    if (*n < kept) ++*n;
    for (at = *n - 1; at > 0 && bits > most[at - 1]; at--) {
        most[at] = most[at - 1];
        place[at] = place[at - 1];
    }
    most[at] = bits;
    place[at] = (uint8_t)i;
}

// kept: constant where it is inlined; value and place have this many elements.
ISO_INLINE bool encode_largest(size_t n, float *restrict v, size_t kept, uint16_t *restrict value,
                               uint8_t *restrict place) {
    uint32_t most[SIZE] = {0};
    size_t found = 0;
    for (size_t i = 0; i < n; i++) insert_place(v, i, kept, most, place, &found);
    bool finite = n == 0 || most[0] < TOO_LARGE;
    for (size_t k = 0; k < found; k++) {
        float *x = &v[place[k]];
        uint32_t half = finite ? iso__bf16_of(*x) : iso__bf16_of(NAN);
        value[k] = (uint16_t)half;
        *x -= iso__of_bf16(half);
    }
    for (size_t i = 0; !finite && i < n; i++) v[i] = 0;
    for (size_t k = found; k < kept; k++) { // a group of fewer elements
        value[k] = 0;
        place[k] = (uint8_t)k;
    }
    return finite;
}

ISO_INLINE void read_largest(size_t kept, const uint16_t *restrict half,
                             const uint8_t *restrict place, float *restrict value) {
    for (size_t i = 0; i < SIZE; i++) value[i] = 0;
    for (size_t k = 0; k < kept; k++) value[place[k]] = iso__of_bf16(half[k]);
}

// A codec for each number of elements that are kept: bf16, then their places, which differ.
#define KEEP(name, kept)                                                                           \
    typedef struct group_##name {                                                                  \
        uint16_t value[kept];                                                                      \
        uint8_t place[kept];                                                                       \
    } group_##name;                                                                                \
    ISO_INLINE bool encode_group_##name(size_t n, float *restrict v, group_##name *restrict out) { \
        return encode_largest(n, v, kept, out->value, out->place);                                 \
    }                                                                                              \
    ISO_INLINE void read_group_##name(const group_##name *restrict in, float *restrict value) {    \
        read_largest(kept, in->value, in->place, value);                                           \
    }

KEEP(topk4, 4)
KEEP(topk, 8)
KEEP(topk16, 16)
KEEP(topk32, 32)
KEEP(topk64, 64)

#define CODEC        topk4
#define CODEC_WORD   "topk"
#define CODEC_GROUP  SIZE
#define CODEC_CLONES // nothing to vectorise
#include "exchange/codec_passes.h"
#define CODEC        topk
#define CODEC_WORD   "topk"
#define CODEC_GROUP  SIZE
#define CODEC_CLONES // nothing to vectorise
#include "exchange/codec_passes.h"
#define CODEC        topk16
#define CODEC_WORD   "topk"
#define CODEC_GROUP  SIZE
#define CODEC_CLONES // nothing to vectorise
#include "exchange/codec_passes.h"
#define CODEC        topk32
#define CODEC_WORD   "topk"
#define CODEC_GROUP  SIZE
#define CODEC_CLONES // nothing to vectorise
#include "exchange/codec_passes.h"
#define CODEC        topk64
#define CODEC_WORD   "topk"
#define CODEC_GROUP  SIZE
#define CODEC_CLONES // nothing to vectorise
#include "exchange/codec_passes.h"
