// SPDX-License-Identifier: MIT
// Private to src/exchange and src/parallel/reducer: what a communication hook makes of buckets, and
// the memory that it needs for that.
#ifndef ISO_CODER_H
#define ISO_CODER_H

#include "exchange/transport.h"

#include <isotherm/comm_hook.h>

// Where a converted bucket travels from, and where the hook's state of it is.
typedef struct iso__coder_place {
    size_t wire, state; // bytes into the wire, floats into the state
} iso__coder_place;

// Borrowed by all transports of a reducer.
typedef struct iso__coder {
    iso_comm_hook hook;
    char *wire;
    float *state;
    size_t state_count;
    iso__coder_place *place; // [buckets]
    bool off;                // while exchanges are measured: what travels is whatever is there
} iso__coder;

// ISO_ERR_ARG or ISO_ERR_TYPE unless it can be used.
iso_status iso__coder_check(const iso_comm_hook *hook);
iso_status iso__coder_create(const iso_comm_hook *hook, const iso__buckets *buckets,
                             iso__coder *out);
void iso__coder_destroy(iso__coder *c);

static inline bool iso__coder_converts(const iso__coder *c, const iso__bucket *b) {
    return c->hook.compress && b->dtype == ISO_F32 && !b->local;
}
// Of `bytes` of this bucket, how many travel.
static inline size_t iso__coder_wire_bytes(const iso__coder *c, const iso__bucket *b) {
    if (!iso__coder_converts(c, b)) return b->bytes;
    return b->bytes / sizeof(float) * iso_dtype_size(c->hook.wire);
}

// Between the gradients of bucket number i (or this rank's shard of them) and the wire.
iso_status iso__coder_encode(const iso__coder *c, int i, const iso__bucket *bucket, void *gradient,
                             double factor);
iso_status iso__coder_decode(const iso__coder *c, int i, const iso__bucket *bucket, void *gradient,
                             double factor);

#endif
