// SPDX-License-Identifier: MIT
// Private to src/exchange and src/parallel/reducer: runs a communication hook on buckets, and holds
// its memory.
#ifndef ISO_CODER_H
#define ISO_CODER_H

#include "exchange/transport.h"

#include <isotherm/comm_hook.h>
#include <string.h>

// Where a converted bucket and the hook's state for it are.
typedef struct iso__coder_place {
    size_t wire, state; // bytes into the wire, floats into the state
    long long exchange; // the number of the exchange that is under way or was the last one
} iso__coder_place;

// Borrowed by all transports of a reducer.
typedef struct iso__coder {
    iso_comm_hook hook;
    char *user; // the copy of hook.user, or NULL
    char *wire;
    float *state;
    size_t state_count;
    iso__coder_place *place;  // [buckets]
    iso_comm_hook_plan *plan; // [buckets], over all ranks, if the hook owns its exchange, else NULL
    int last;                 // the last bucket that travels as a whole, or -1
    int ranks;                // the number of all ranks
    bool lazy;                // other buckets may be posted before a bucket is awaited
    bool off; // exchanges are measured: the hook does not run, and old contents travel
} iso__coder;

// The ranks over which a bucket is averaged.
typedef struct iso__coder_ranks {
    int rank, ranks;
    iso_comm *comm; // NULL: the hook may not use it
} iso__coder_ranks;

// ISO_ERR_ARG or ISO_ERR_TYPE if the hook cannot be used.
iso_status iso__coder_check(const iso_comm_hook *hook);
// lazy: other buckets may be posted before a bucket is awaited.
iso_status iso__coder_create(const iso_comm_hook *hook, const iso__buckets *buckets,
                             const iso__coder_ranks *ranks, bool lazy, iso__coder *out);
void iso__coder_destroy(iso__coder *c);

// ---- Hooks that convert -------------------------------------------------------------------------------

static inline bool iso__coder_converts(const iso__coder *c, const iso__bucket *b) {
    return c->hook.compress && b->dtype == ISO_F32 && iso__bucket_is_dense(b);
}
// The bytes of bucket number i that travel.
size_t iso__coder_wire_bytes(const iso__coder *c, int i, const iso__bucket *b);

// Convert the gradients of bucket number i (or this rank's shard of them) to and from the wire.
iso_status iso__coder_encode(const iso__coder *c, int i, const iso__bucket *bucket, void *gradient,
                             double factor);
iso_status iso__coder_decode(const iso__coder *c, int i, const iso__bucket *bucket, void *gradient,
                             double factor);

// ---- Hooks that own their exchange --------------------------------------------------------------------

static inline bool iso__hook_owns(const iso_comm_hook *hook) { return hook->run != NULL; }
// Whether the result is already the average.
static inline bool iso__coder_divides(const iso__coder *c, int i, const iso__bucket *b) {
    bool owns = c->plan && iso__bucket_is_dense(b) && !c->plan[i].plain;
    return c->hook.divides && (owns || iso__coder_converts(c, b));
}
// The seed of the random numbers that all ranks draw alike. It must be the same on all ranks. 0 if
// the hook draws none.
uint64_t iso__coder_seed(const iso__coder *c);
// A hash of the plans, which must be the same on all ranks.
uint64_t iso__coder_fingerprint(const iso__coder *c, int buckets);
// Asks the hook how the bucket travels between these ranks. A bucket that the hook does not handle
// gets one phase, a sum.
iso_status iso__coder_declare(const iso__coder *c, int i, const iso__bucket *bucket,
                              const iso__coder_ranks *ranks, iso_comm_hook_plan *out);
// The bytes of a block of a phase's array, and of the whole array, with elements of the given type.
size_t iso__phase_block_bytes(const iso_comm_phase *phase, iso_dtype dtype);
size_t iso__phase_bytes(const iso_comm_phase *phase, iso_dtype dtype, int ranks);
// What a rank contributes to the phases of a plan.
size_t iso__plan_bytes(const iso__coder *c, const iso_comm_hook_plan *plan, int ranks);
// The type in which a phase travels.
static inline iso_dtype iso__phase_wire(const iso__coder *c, const iso_comm_hook_plan *plan,
                                        int phase) {
    bool converts = !plan->plain && plan->phase[phase].dtype == ISO_F32;
    return converts ? c->hook.wire : plan->phase[phase].dtype;
}
iso_status iso__coder_run(const iso__coder *c, int i, const iso__bucket *bucket, void *gradient,
                          void *const *data, const iso__coder_ranks *ranks, int phase,
                          double factor);
// Whether the hook does not run yet: it begins after hook.start lists. Lists are counted for this,
// and for iso_comm_hook_bucket.exchange. The counts are equal on all ranks, whichever transport
// carries the lists, and are saved with the hook's state.
bool iso__coder_begins_later(const iso__coder *c);
void iso__coder_count(const iso__coder *c);
// The number of first floats of the state that hold these counts.
size_t iso__coder_counts(const iso__coder *c);

// Sets the padding between tensors in v to 0. For error feedback of hooks that encode the padding
// like gradients: the padding itself stays 0, so it has no error. v: [b->count].
static inline void iso__hook_clear_padding(const iso_comm_hook_bucket *b, float *v) {
    size_t at = 0;
    for (int i = 0; i < b->tensor_count; i++) {
        memset(v + at, 0, (b->tensor[i].offset - at) * sizeof(float));
        at = b->tensor[i].offset + b->tensor[i].count;
    }
    memset(v + at, 0, (b->count - at) * sizeof(float));
}

// With their default configurations.
extern const iso_comm_hook iso__hook_topk, iso__hook_randomk, iso__hook_powersgd,
    iso__hook_powersgd_bf16;

#endif
