// SPDX-License-Identifier: MIT
// Private to src/exchange/hook_*.c: hooks that send few bits of each gradient. Each rank sums one
// shard of a bucket: in phase 0 it gets the gradients of that shard from all ranks, in phase 1 it
// sends the sum to all, both in encoded groups of elements.
#ifndef ISO_HOOK_SHARDS_H
#define ISO_HOOK_SHARDS_H

#include <isotherm/comm_hook.h>
#include <stdbool.h>

// A bucket of fewer elements would hardly shrink.
enum { ISO__HOOK_SHORT = 512 };

typedef struct iso__hook_shards {
    size_t group, bytes; // elements of an encoded group, and its size
} iso__hook_shards;

typedef struct iso__hook_shard {
    size_t first, count; // elements of the bucket
} iso__hook_shard;

static inline bool iso__hook_leaves(const iso_comm_hook_bucket *b, iso_comm_hook_plan *plan) {
    plan->plain = b->dtype != ISO_F32 || b->count < ISO__HOOK_SHORT;
    return plan->plain;
}

// Whole groups; the last shards may have fewer elements, or none.
static inline size_t iso__hook_shard_groups(const iso_comm_hook_bucket *b,
                                            const iso__hook_shards *s) {
    size_t each = (b->count + (size_t)b->ranks - 1) / (size_t)b->ranks;
    return (each + s->group - 1) / s->group;
}

static inline iso__hook_shard iso__hook_shard_of(const iso_comm_hook_bucket *b,
                                                 const iso__hook_shards *s, int rank) {
    size_t each = iso__hook_shard_groups(b, s) * s->group, first = (size_t)rank * each;
    if (first >= b->count) return (iso__hook_shard){0, 0};
    return (iso__hook_shard){first, b->count - first < each ? b->count - first : each};
}

static inline void *iso__hook_shard_block(const iso_comm_hook_bucket *b, const iso__hook_shards *s,
                                          int phase, int rank) {
    return (char *)b->data[phase] + (size_t)rank * iso__hook_shard_groups(b, s) * s->bytes;
}

static inline void iso__hook_shards_declare(const iso_comm_hook_bucket *b,
                                            const iso__hook_shards *s, iso_comm_hook_plan *plan) {
    size_t bytes = iso__hook_shard_groups(b, s) * s->bytes;
    plan->phase_count = 2;
    plan->phase[0] = (iso_comm_phase){ISO_COMM_ALLTOALL, bytes, ISO_U8};
    plan->phase[1] = (iso_comm_phase){ISO_COMM_GATHER, bytes, ISO_U8};
}

#endif
