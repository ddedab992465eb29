// SPDX-License-Identifier: MIT
// The memory of gradients: an arena of the host, private or shared by a node, and a device's.
#include "exchange/store.h"

#include <string.h>

// ---- Life -------------------------------------------------------------------------------------------

iso_status iso__store_create(size_t bytes, iso_device *device, iso__store *out) {
    void *memory;
    *out = (iso__store){.bytes = bytes};
    if (!device || device->ops->host_memory) return ISO_OK;
    ISO_TRY(device->ops->alloc(device, bytes, &memory));
    out->device = iso_device_retain(device);
    out->gradients = memory;
    return iso__store_remote(out)->fill_zero(device, ISO__QUEUE_COMPUTE, memory, bytes);
}

static iso_status pin_arena(iso__store *s) {
    if (!s->device) return ISO_OK;
    ISO_TRY(iso__pin_pages(s->device, s->arena, s->bytes));
    s->pinned = true;
    return ISO_OK;
}

static void unpin_arena(iso__store *s) {
    if (s->pinned) iso__unpin_pages(s->device, s->arena);
    s->pinned = false;
}

// Zero, so that the padding between parameters stays zero in every sum.
static iso_status make_private(iso__store *s, void **arena) {
    if (!s->device) return iso__alloc_zero(s->bytes, arena);
    ISO_TRY(iso__pinned_alloc(s->device, s->bytes, arena));
    memset(*arena, 0, s->bytes);
    return ISO_OK;
}

iso_status iso__store_make_arena(iso__store *s, bool shareable) {
    void *arena;
    ISO_TRY(shareable ? iso__shareable_alloc(s->bytes, &arena) : make_private(s, &arena));
    s->arena = arena;
    s->shareable = shareable;
    if (!s->device) s->gradients = s->arena;
    return shareable ? pin_arena(s) : ISO_OK;
}

iso_status iso__store_make_pages(iso__store *s) {
    void *arena;
    ISO_TRY(iso__pages_alloc(s->bytes, &arena));
    s->arena = s->gradients = arena;
    s->pages = true;
    return ISO_OK;
}

// A device may refuse to pin the shared pages on one rank, so the ranks agree on the result.
iso_status iso__store_share(iso__store *s, iso_comm *node) {
    if (!s->shareable || s->node) return ISO_OK;
    iso_status copied = s->device ? iso__store_remote(s)->finish(s->device) : ISO_OK;
    ISO_TRY(iso_comm_agree(node, copied));
    unpin_arena(s);
    iso_status shared = iso__comm_share(node, s->arena);
    if (shared == ISO_OK) s->node = iso_comm_retain(node);
    iso_status pinned = pin_arena(s);
    return iso_comm_agree(node, shared < 0 ? shared : pinned);
}

static void free_arena(iso__store *s) {
    void *arena = s->arena;
    if (!arena) return;
    unpin_arena(s);
    if (s->node) iso__comm_unshare(s->node, arena);
    if (s->pages)
        iso__pages_free(arena, s->bytes);
    else if (s->shareable)
        iso__shareable_free(&arena);
    else if (s->device)
        iso__pinned_free(s->device, arena);
    else
        iso__free(arena);
}

void iso__store_destroy(iso__store *s) {
    if (s->device && iso__store_remote(s)->finish(s->device) < 0)
        iso__log(ISO_LOG_ERROR, "%s", iso_last_error()->message);
    free_arena(s);
    if (s->device) s->device->ops->free(s->device, s->gradients);
    iso_device_destroy(&s->device);
    iso_comm_destroy(&s->node);
    *s = (iso__store){0};
}

// ---- Contents ---------------------------------------------------------------------------------------

iso_status iso__store_zero(iso__store *s, size_t offset, size_t bytes) {
    if (s->device)
        return iso__store_remote(s)->fill_zero(s->device, ISO__QUEUE_COMPUTE, s->gradients + offset,
                                               bytes);
    if (s->pages)
        iso__pages_clear(s->gradients + offset, bytes);
    else
        memset(s->gradients + offset, 0, bytes);
    return ISO_OK;
}

void iso__store_drop(const iso__store *s, size_t offset, size_t bytes) {
    if (s->pages) iso__pages_clear(s->arena + offset, bytes);
}

static iso_status copy_bytes(const iso__store *s, const void *from, void *to, size_t bytes) {
    if (s->device)
        return iso__store_remote(s)->copy(s->device, ISO__QUEUE_COMPUTE, from, to, bytes);
    memcpy(to, from, bytes);
    return ISO_OK;
}

iso_status iso__store_load(const iso__store *s, size_t offset, size_t bytes, const void *from) {
    return copy_bytes(s, from, s->gradients + offset, bytes);
}

iso_status iso__store_save(const iso__store *s, size_t offset, size_t bytes, void *to) {
    return copy_bytes(s, s->gradients + offset, to, bytes);
}

void iso__store_scale_arena(iso__store *s, size_t offset, size_t bytes, iso_dtype dtype,
                            double factor) {
    void *data = s->arena + offset;
    float *x = data;
    double *y = data;
    if (factor == 1.0) return;
    if (dtype == ISO_F64)
        for (size_t k = 0; k < bytes / sizeof(double); k++) y[k] *= factor;
    else
        for (size_t k = 0; k < bytes / sizeof(float); k++) x[k] *= (float)factor;
}

iso_status iso__store_scale(iso__store *s, size_t offset, size_t bytes, iso_dtype dtype,
                            double factor) {
    if (factor == 1.0) return ISO_OK;
    if (!s->device) {
        iso__store_scale_arena(s, offset, bytes, dtype, factor);
        return ISO_OK;
    }
    int64_t count = (int64_t)(bytes / iso_dtype_size(dtype));
    return s->device->kernels[dtype]->scale(s->device, count, factor, s->gradients + offset);
}
