// SPDX-License-Identifier: MIT
// Private to the reducer: the list of parameters, how they are cut, which of them travel together,
// and where they lie. Only layout.c writes it; it is immutable afterwards, except by
// iso__layout_move_value.
#ifndef ISO_LAYOUT_H
#define ISO_LAYOUT_H

#include "exchange/transport.h"
#include "parallel/reducer/param_set.h"

// A parameter, by the index that callers use.
typedef struct iso__place {
    int start, pieces; // piece k is slot piece_slot[start + k]
    size_t each;       // elements of each piece except the last; 0: it is not cut
} iso__place;

// A parameter, or a piece of one.
typedef struct iso__grad_slot {
    char *name; // the parameter's
    int param, piece, slice;
    bool cut;     // one of several pieces
    size_t first; // element of the parameter
    void *value;
    void *home;         // its gradient in the caller's array; NULL: the store has the only one
    size_t count, row;  // row: elements of a row; 0: not a matrix
    size_t sparse_rows; // see iso__bucket; such a slot has its bucket for itself
    size_t offset;      // bytes into the store
    iso_dtype dtype;    // of the gradient in the store, in which it is summed
    iso_dtype type;     // of the value, and of the gradient in the caller's array
    int layer, bucket;
    bool local;   // not exchanged
    bool delayed; // leaves after all others
    void *user;   // the program's, of the parameter
} iso__grad_slot;

// Slots of one element type, order[first] to order[last], adjacent in the store. Slots of a layer
// that have the same type are in the same range, unless some of them are delayed or sparse.
typedef struct iso__range {
    int first, last;
    char label[48]; // layer names, for traces and time-outs
} iso__range;

// A layer as the program numbers it: the parameters by_layer[first] to by_layer[end - 1].
typedef struct iso__layer {
    int number, first, end;
} iso__layer;

typedef struct iso__layout {
    iso__place *place;            // [param_count]
    int *piece_slot;              // [slot_count]
    iso__grad_slot *slot;         // [slot_count]
    int *order;                   // [slot_count]: the slots, bucket by bucket
    iso__range *range;            // [bucket_count], in the order in which they leave: as a backward
                                  // completes them, and the delayed ones last
    iso__bucket *bucket;          // [bucket_count]: the same ranges as they travel
    iso_comm_hook_tensor *tensor; // [slot_count], as order
    int param_count, slot_count, bucket_count;
    int first_delayed; // buckets from this one on leave after all others; bucket_count: none
    int *by_layer;     // [param_count]: the parameters in the order of the forward
    int *shared;       // [param_count]: the parameters in the order of rank 0's list, if the ranks
                       // match names; NULL: all lists have one order
    iso__layer *layer; // [layer_count], by their numbers
    int layer_count;
    size_t bytes;       // of all buckets
    size_t tail;        // elements behind the gradients of bucket iso__layout_last
    bool by_value;      // see iso__bucket_sizes
    size_t bucket_unit; // the size of a bucket is a multiple of this; 0: the size of its slots
} iso__layout;

// How layers are fused, see iso_reducer_config.
typedef struct iso__bucket_sizes {
    size_t cap, first, last;
    const size_t *list;
    int list_count;
    // Parameters share a bucket only if their values have one type; else if their gradients do.
    bool by_value;
} iso__bucket_sizes;

// bucket_unit, tail: see above. Parameters are cut into pieces of piece_bytes (0: never).
iso_status iso__layout_create(const iso_reducer_param *params, int count,
                              const iso__bucket_sizes *sizes, size_t piece_bytes,
                              size_t bucket_unit, size_t tail, iso__layout *out);
void iso__layout_destroy(iso__layout *l);
// The second half of iso__layout_create: computes buckets, order and offsets from l->slot.
iso_status iso__layout_assign(iso__layout *l, const iso__bucket_sizes *sizes);

static inline int iso__layout_at(const iso__layout *l, int i, int k) {
    return l->piece_slot[l->place[i].start + k];
}
static inline const iso__grad_slot *iso__layout_piece(const iso__layout *l, int i, int k) {
    return &l->slot[iso__layout_at(l, i, k)];
}
// Gives parameters and layers the numbers that the program uses. Call it once, with the set whose
// list was passed to iso__layout_create.
iso_status iso__layout_number(iso__layout *l, const iso__param_set *set);
// ISO_ERR_ARG if there is no such layer. Borrowed.
iso_status iso__layout_find_layer(const iso__layout *l, int number, const iso__layer **out);
int iso__layout_find(const iso__layout *l, const char *name); // -1: no parameter has that name
// The value of parameter i lies elsewhere from now on.
void iso__layout_move_value(iso__layout *l, int i, void *value);

// Whether parameter i exists and has a piece k. The second returns ISO_ERR_ARG if not.
bool iso__layout_has(const iso__layout *l, int i, int k);
iso_status iso__layout_check(const iso__layout *l, int i, int k);
// The last bucket that travels and is not delayed, which the next forward needs first. If there is
// none, the last one that travels; if none travels, the last bucket.
int iso__layout_last(const iso__layout *l);
// A hash of which slots share a bucket.
uint64_t iso__layout_fingerprint(const iso__layout *l);
// One line for each bucket. Free *out with iso__free.
iso_status iso__layout_text(const iso__layout *l, char **out);

#endif
