// Gradients of a device with memory of its own: they go to the host's memory, from which they
// travel, and come back from there. Nobody waits for the device before the next forward does.
#include "parallel/reducer_impl.h"

#include <isotherm/trace.h>
#include <sched.h>

static const iso__remote_ops *remote(const iso_reducer *r) { return r->device->ops->remote; }

// ---- Memory -----------------------------------------------------------------------------------------

static iso_status make_events(iso_reducer *r) {
    for (int i = 0; i < r->bucket_count; i++)
        ISO_TRY(remote(r)->event_create(r->device, &r->bucket[i].event));
    return ISO_OK;
}

// An arena of its own that the device copies from and to.
static iso_status pin_arena(iso_reducer *r) {
    void *arena;
    ISO_TRY(iso__pinned_alloc(r->device, r->arena_bytes, &arena));
    memset(arena, 0, r->arena_bytes);
    iso__free(r->arena);
    r->arena = arena;
    r->pinned = true;
    return ISO_OK;
}

// A pointer to other memory would be found out by the first kernel, for all that the device does.
static iso_status check_values(const iso_reducer *r, iso_device *device) {
    for (int i = 0; i < r->slot_count; i++)
        ISO_CHECK(
            device->ops->remote->owns(device, r->slot[i].value), ISO_ERR_ARG,
            "the value of parameter \"%s\" is not in the memory of %s (%s), which the reducer "
            "was given as its device: pass memory of that device, or no device",
            r->slot[i].name, device->ops->name, device->description);
    return ISO_OK;
}

iso_status iso__stage_create(iso_reducer *r, iso_device *device) {
    void *memory;
    r->gradients = r->arena;
    if (!device || device->ops->host_memory) return ISO_OK;
    ISO_TRY(check_values(r, device));
    ISO_TRY(device->ops->alloc(device, r->arena_bytes, &memory));
    r->device = iso_device_retain(device);
    r->gradients = memory;
    ISO_TRY(remote(r)->fill_zero(device, ISO__QUEUE_COMPUTE, memory, r->arena_bytes));
    ISO_TRY(make_events(r));
    return pin_arena(r);
}

iso_status iso__stage_share_arena(iso_reducer *r, void *shared) {
    char *old = r->arena;
    if (r->device) ISO_TRY(remote(r)->finish(r->device)); // copies may be under way
    if (r->device) ISO_TRY(iso__pin_pages(r->device, shared, r->arena_bytes));
    memcpy(shared, old, r->arena_bytes);
    r->arena = shared;
    r->arena_shared = true;
    if (r->pinned)
        iso__pinned_free(r->device, old);
    else
        iso__free(old);
    if (!r->device) r->gradients = shared;
    return ISO_OK;
}

void iso__stage_free_arena(iso_reducer *r) {
    void *arena = r->arena;
    if (r->device && remote(r)->finish(r->device) < 0)
        iso__log(ISO_LOG_ERROR, "%s", iso_last_error()->message);
    if (r->device && r->arena_shared) iso__unpin_pages(r->device, arena);
    if (r->arena_shared)
        iso__comm_shared_free(r->node, &arena);
    else if (r->pinned)
        iso__pinned_free(r->device, arena);
    else
        iso__free(arena);
    r->arena = NULL;
}

void iso__stage_destroy(iso_reducer *r) {
    if (!r->device) return;
    for (int i = 0; r->bucket && i < r->bucket_count; i++)
        remote(r)->event_destroy(r->device, &r->bucket[i].event);
    r->device->ops->free(r->device, r->gradients);
    iso_device_destroy(&r->device);
}

iso_status iso__stage_zero(iso_reducer *r, size_t offset, size_t bytes) {
    if (r->device)
        return remote(r)->fill_zero(r->device, ISO__QUEUE_COMPUTE, r->gradients + offset, bytes);
    memset(r->gradients + offset, 0, bytes);
    return ISO_OK;
}

// ---- Values, once -----------------------------------------------------------------------------------

// Every slot's value has room in the arena where its gradient will lie.
static iso_status copy_values(iso_reducer *r, bool out) {
    iso__queue queue = out ? ISO__QUEUE_OUT : ISO__QUEUE_IN;
    for (int i = 0; i < r->slot_count; i++) {
        iso__grad_slot *s = &r->slot[i];
        void *host = r->arena + s->offset;
        ISO_TRY(remote(r)->copy(r->device, queue, out ? s->value : host, out ? host : s->value,
                                s->count * iso_dtype_size(s->dtype)));
    }
    return remote(r)->finish(r->device);
}

static iso_status broadcast_slots(iso_reducer *r) {
    for (int i = 0; i < r->slot_count; i++) {
        iso__grad_slot *s = &r->slot[i];
        ISO_TRY(iso_comm_bcast(r->world, r->device ? r->arena + s->offset : s->value,
                               s->count * iso_dtype_size(s->dtype), 0));
    }
    return ISO_OK;
}

iso_status iso__stage_broadcast_values(iso_reducer *r) {
    if (!r->device) return broadcast_slots(r);
    ISO_TRY(remote(r)->finish(r->device)); // the device may be writing them
    ISO_TRY(copy_values(r, true));
    ISO_TRY(broadcast_slots(r));
    ISO_TRY(copy_values(r, false));
    memset(r->arena, 0, r->arena_bytes);
    return ISO_OK;
}

// ---- Out --------------------------------------------------------------------------------------------

iso_status iso__stage_out(iso_reducer *r, iso__bucket *b) {
    b->state = ISO_BUCKET_LEAVING;
    b->staged = true;
    r->leaving++;
    ISO_TRY(remote(r)->record(r->device, ISO__QUEUE_COMPUTE, b->event));
    ISO_TRY(remote(r)->follow(r->device, ISO__QUEUE_OUT, b->event));
    ISO_TRY(remote(r)->copy(r->device, ISO__QUEUE_OUT, r->gradients + b->offset,
                            r->arena + b->offset, b->bytes));
    return remote(r)->record(r->device, ISO__QUEUE_OUT, b->event);
}

static iso_status send_arrived(iso_reducer *r, bool *any) {
    for (int i = 0; i < r->bucket_count && r->leaving > 0; i++) {
        iso__bucket *b = &r->bucket[i];
        if (b->state != ISO_BUCKET_LEAVING) continue;
        iso_status status = remote(r)->test(r->device, b->event);
        ISO_TRY(status);
        if (status == ISO_PENDING) continue;
        ISO_TRY(iso__gpus_check(r)); // or it may be no sum of the node
        r->leaving--;
        iso__times_ready(r, b); // when backward told, the device had only been asked for it
        ISO_TRY(iso__bucket_send(r, b));
        *any = true;
    }
    return ISO_OK;
}

iso_status iso__stage_advance(iso_reducer *r) {
    bool any = false;
    return r->leaving > 0 ? send_arrived(r, &any) : ISO_OK;
}

// Behind a sum of the node, NCCL gives up by itself, and says more: it gets as long again.
static double limit_of(const iso_reducer *r) {
    return (r->way == ISO_WAY_SHARDS ? 2 : 1) * iso__comm_timeout(r->world);
}

static iso_status give_up(const iso_reducer *r, double seconds) {
    const iso__bucket *b = r->bucket;
    while (b->state != ISO_BUCKET_LEAVING) b++;
    return ISO_FAIL(ISO_ERR_TIMEOUT,
                    "rank %d has waited %.0f s for the gradients of \"%s\" from device %s "
                    "(ISO_TIMEOUT)",
                    iso_comm_rank(r->world), seconds, b->label, iso_device_name(r->device));
}

iso_status iso__stage_flush(iso_reducer *r) {
    int64_t last = iso_now();
    while (r->leaving > 0) {
        bool any = false;
        ISO_TRY(send_arrived(r, &any));
        double seconds = (double)(iso_now() - last) * 1e-9;
        if (any) last = iso_now();
        if (any) continue;
        ISO_TRY(iso__gpus_check(r));
        if (iso__comm_timeout(r->world) > 0 && seconds > limit_of(r)) return give_up(r, seconds);
        iso_comm_poll(r->world);
        sched_yield();
    }
    return ISO_OK;
}

// ---- In ---------------------------------------------------------------------------------------------

iso_status iso__stage_in(iso_reducer *r, iso__bucket *b) {
    if (!b->staged) return ISO_OK;
    ISO_TRY(remote(r)->copy(r->device, ISO__QUEUE_IN, r->arena + b->offset,
                            r->gradients + b->offset, b->bytes));
    ISO_TRY(remote(r)->record(r->device, ISO__QUEUE_IN, b->event));
    ISO_TRY(remote(r)->follow(r->device, ISO__QUEUE_COMPUTE, b->event));
    b->staged = false;
    return ISO_OK;
}
