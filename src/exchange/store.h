// SPDX-License-Identifier: MIT
// Private to src/exchange and src/parallel/reducer: the memory that backward writes gradients to
// and that exchanges use.
#ifndef ISO_STORE_H
#define ISO_STORE_H

#include "comm/comm_calls.h"
#include "device/device_impl.h"

// Borrowed by all transports of a reducer.
typedef struct iso__store {
    size_t bytes;
    char *arena;        // memory of the host, through which buckets travel; zero at creation
    char *gradients;    // backward writes them here: the arena, or memory of the device
    iso_device *device; // has its own memory; or NULL
    bool shareable;     // the arena is from iso__shareable_alloc
    bool pages;         // the arena is from iso__pages_alloc
    iso_comm *node;     // given to iso__store_share; NULL: not shared
    bool pinned;        // the pages of a shareable arena are pinned
} iso__store;

// Local. Gradients are in the memory of `device`, or in the arena if it is NULL or has host memory.
iso_status iso__store_create(size_t bytes, iso_device *device, iso__store *out);
// Local. Allocates the arena as private memory. shareable: the ranks of a node can share it later.
// Call it once, before anything is written.
iso_status iso__store_make_arena(iso__store *s, bool shareable);
// The same, but in private memory of the host, parts of which can be given back (iso__store_drop).
iso_status iso__store_make_pages(iso__store *s);
// Collective over node, while nothing is under way. Makes a shareable arena memory that the ranks
// share, if possible (see iso__comm_share). Its address and contents stay. A second call does
// nothing.
iso_status iso__store_share(iso__store *s, iso_comm *node);
// Waits for pending copies. Accepts a store whose creation failed.
void iso__store_destroy(iso__store *s);

// Sets bytes of the gradients to zero.
iso_status iso__store_zero(iso__store *s, size_t offset, size_t bytes);
// The program needs these bytes no more. If the arena is of pages, makes them zero and gives the
// pages back to the system; otherwise does nothing.
void iso__store_drop(const iso__store *s, size_t offset, size_t bytes);
// Copies bytes of the gradients from other memory of the same device (or of the host), or to it.
iso_status iso__store_load(const iso__store *s, size_t offset, size_t bytes, const void *from);
iso_status iso__store_save(const iso__store *s, size_t offset, size_t bytes, void *to);
// Multiply elements of the gradients, or of the arena.
iso_status iso__store_scale(iso__store *s, size_t offset, size_t bytes, iso_dtype dtype,
                            double factor);
void iso__store_scale_arena(iso__store *s, size_t offset, size_t bytes, iso_dtype dtype,
                            double factor);

static inline const iso__remote_ops *iso__store_remote(const iso__store *s) {
    return s->device->ops->remote;
}

#endif
