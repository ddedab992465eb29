// SPDX-License-Identifier: MIT
// The codec topk: the largest elements of each group, with their places.
#include "exchange/codec_groups.h"

#include <math.h>

enum { SIZE = 256, KEPT = 8 };
#define TOO_LARGE 0x7f7f8000u // bits of the smallest magnitude that bf16 rounds to infinity

typedef struct group_topk {
    uint16_t value[KEPT]; // bf16
    uint8_t place[KEPT];  // different ones, in the group
} group_topk;

// Puts v[i] among the largest so far, `most`, in falling order of magnitude. Of equal magnitudes
// the first one stays before.
ISO_INLINE void insert_place(const float *v, size_t i, uint32_t *most, uint8_t *place, size_t *n) {
    uint32_t bits = iso__bits_of(v[i]) & 0x7fffffff;
    size_t at;
    if (*n == KEPT && bits <= most[KEPT - 1]) return;
    if (*n < KEPT) ++*n;
    for (at = *n - 1; at > 0 && bits > most[at - 1]; at--) {
        most[at] = most[at - 1];
        place[at] = place[at - 1];
    }
    most[at] = bits;
    place[at] = (uint8_t)i;
}

ISO_INLINE bool encode_group_topk(size_t n, float *restrict v, group_topk *restrict out) {
    uint32_t most[KEPT] = {0};
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) insert_place(v, i, most, out->place, &kept);
    bool finite = n == 0 || most[0] < TOO_LARGE;
    for (size_t k = 0; k < kept; k++) {
        float *x = &v[out->place[k]];
        uint32_t value = finite ? iso__bf16_of(*x) : iso__bf16_of(NAN);
        out->value[k] = (uint16_t)value;
        *x -= iso__of_bf16(value);
    }
    for (size_t i = 0; !finite && i < n; i++) v[i] = 0;
    for (size_t k = kept; k < KEPT; k++) { // a group of fewer elements
        out->value[k] = 0;
        out->place[k] = (uint8_t)k;
    }
    return finite;
}

ISO_INLINE void read_group_topk(const group_topk *restrict in, float *restrict value) {
    for (size_t i = 0; i < SIZE; i++) value[i] = 0;
    for (size_t k = 0; k < KEPT; k++) value[in->place[k]] = iso__of_bf16(in->value[k]);
}

#define CODEC        topk
#define CODEC_WORD   "topk"
#define CODEC_GROUP  SIZE
#define CODEC_CLONES // nothing to vectorise
#include "exchange/codec_passes.h"
