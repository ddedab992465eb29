// SPDX-License-Identifier: MIT
// Private to the reducer: which parameters there are, how they are cut, which of them travel
// together, and where they lie. Immutable once it is made: written by layout.c alone.
#ifndef ISO_LAYOUT_H
#define ISO_LAYOUT_H

#include "exchange/transport.h"

#include <isotherm/reducer.h>

// A parameter as those outside count them.
typedef struct iso__place {
    int start, pieces; // piece k is slot piece_slot[start + k]
    size_t each;       // elements of a piece but the last; 0: it is not cut
} iso__place;

// A parameter, or a piece of one.
typedef struct iso__grad_slot {
    char *name; // the parameter's
    int param, piece;
    bool cut;     // one of several pieces
    size_t first; // element of the parameter
    void *value;
    size_t count;
    size_t offset; // bytes into the store
    iso_dtype dtype;
    int layer, bucket;
    bool local; // not exchanged
} iso__grad_slot;

// Slots of one element type, order[first] to order[last], adjacent in the store. Of a layer it
// holds all that are of its type.
typedef struct iso__range {
    int first, last;
    char label[48]; // layer names, for traces and time-outs
} iso__range;

typedef struct iso__layout {
    iso__place *place;    // [param_count]
    int *piece_slot;      // [slot_count]
    iso__grad_slot *slot; // [slot_count]
    int *order;           // [slot_count]: the slots, bucket by bucket
    iso__range
        *range; // [bucket_count], in the agreed order: that in which a backward completes them
    iso__bucket *bucket; // [bucket_count]: the same as what travels
    int param_count, slot_count, bucket_count;
    size_t bytes;       // of all buckets
    size_t tail;        // elements behind the gradients of the last bucket that travels
    size_t bucket_unit; // buckets are multiples of so many bytes; 0: as their slots are
} iso__layout;

// How layers are fused, see iso_reducer_config.
typedef struct iso__bucket_sizes {
    size_t cap, first, last;
    const size_t *list;
    int list_count;
} iso__bucket_sizes;

// bucket_unit, tail: see above. Parameters are cut into pieces of piece_bytes (0: never) where
// pieces of all of them come to lie one behind the other.
iso_status iso__layout_create(const iso_reducer_param *params, int count,
                              const iso__bucket_sizes *sizes, size_t piece_bytes,
                              size_t bucket_unit, size_t tail, iso__layout *out);
void iso__layout_destroy(iso__layout *l);
// The second half: buckets, order and offsets from l->slot.
iso_status iso__layout_assign(iso__layout *l, const iso__bucket_sizes *sizes);

static inline int iso__layout_at(const iso__layout *l, int i, int k) {
    return l->piece_slot[l->place[i].start + k];
}
static inline const iso__grad_slot *iso__layout_piece(const iso__layout *l, int i, int k) {
    return &l->slot[iso__layout_at(l, i, k)];
}
// Whether there is a parameter i with a piece k; the second gives ISO_ERR_ARG unless there is.
bool iso__layout_has(const iso__layout *l, int i, int k);
iso_status iso__layout_check(const iso__layout *l, int i, int k);
// The last bucket that travels, which the next forward needs first; the last one if none does.
int iso__layout_last(const iso__layout *l);
// Which slots share a bucket.
uint64_t iso__layout_fingerprint(const iso__layout *l);
// A line for each bucket, to be freed with iso__free.
iso_status iso__layout_text(const iso__layout *l, char **out);

#endif
