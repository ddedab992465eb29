// SPDX-License-Identifier: MIT
// Private to src/exchange and src/parallel/reducer: the memory in which gradients are written and
// travel.
#ifndef ISO_STORE_H
#define ISO_STORE_H

#include "comm/comm_calls.h"
#include "device/device_impl.h"

// Borrowed by all transports of a reducer.
typedef struct iso__store {
    size_t bytes;
    char *arena;        // memory of the host, through which buckets travel; zero at creation
    char *gradients;    // where backward writes them: the arena, or as many bytes of the device
    iso_device *device; // with memory of its own, or NULL
    bool shareable;     // the arena is of iso__shareable_alloc, or else of iso__pinned_alloc
    iso_comm *node;     // that was asked to share the arena, or NULL
    bool pinned;        // the device knows the pages of a shareable arena
} iso__store;

// Local. Gradients in the memory of `device` (NULL or with host memory: in the arena).
iso_status iso__store_create(size_t bytes, iso_device *device, iso__store *out);
// Local. Private memory; shareable: the ranks of a node can share it later. Once, before anything
// is written.
iso_status iso__store_make_arena(iso__store *s, bool shareable);
// Collective over node, while nothing is under way: a shareable arena becomes memory that its ranks
// share, where that can be. Its address and contents stay. Does nothing when called again. As
// iso__comm_share.
iso_status iso__store_share(iso__store *s, iso_comm *node);
// Waits for copies. Accepts a store that was not created whole.
void iso__store_destroy(iso__store *s);

// Bytes of gradients become zero.
iso_status iso__store_zero(iso__store *s, size_t offset, size_t bytes);
// Elements of gradients, or of the arena, are multiplied.
iso_status iso__store_scale(iso__store *s, size_t offset, size_t bytes, iso_dtype dtype,
                            double factor);
void iso__store_scale_arena(iso__store *s, size_t offset, size_t bytes, iso_dtype dtype,
                            double factor);

static inline const iso__remote_ops *iso__store_remote(const iso__store *s) {
    return s->device->ops->remote;
}

#endif
