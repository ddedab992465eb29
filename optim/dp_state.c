// SPDX-License-Identifier: MIT
// ZeRO stage 1: each rank keeps the optimizer state of the elements that it updates. The ranks
// gather the whole state to save or load it.
#include "optim/dp_state.h"
#include "comm/comm_calls.h"
#include "parallel/reducer/reducer_calls.h"
#include "tensor/tensor_impl.h"

#include <string.h>

// Elements of a parameter whose state is here.
typedef struct range {
    int64_t first, count;
    size_t offset; // bytes, in each kind's arena
} range;

struct iso__dp_state {
    iso_reducer *reducer; // borrowed
    int *place;           // [slots]: the reducer's parameter
    int *start;           // [slots + 1]: slot i has range[start[i]] to range[start[i + 1] - 1]
    range *range;
    // [ISO_OPTIMIZER_STATES * slots], between gathering and the next update; or NULL. In the host's
    // memory: a GPU may have no room for all state.
    iso_tensor **whole;
    iso_device *host;
};

static bool has_state(const iso__base_optimizer *self, int i, int kind) {
    return iso__slot_has(self, &self->slot[i], kind);
}

static size_t size_of(const iso__base_optimizer *self, int i) {
    return iso_dtype_size(iso__state_type(&self->slot[i]));
}

static int count_pieces(const iso__base_optimizer *self, iso_reducer *reducer, const int *place) {
    int count = 0;
    for (int i = 0; i < self->count; i++) count += iso_reducer_pieces(reducer, place[i]);
    return count;
}

// ---- Which elements ---------------------------------------------------------------------------------

// Gives the bytes that a state of all ranges needs.
static size_t list_ranges(const iso__base_optimizer *self) {
    iso__dp_state *shards = self->shards;
    size_t bytes = 0;
    int n = 0;
    for (int i = 0; i < self->count; i++) {
        shards->start[i] = n;
        for (int k = 0; k < iso_reducer_pieces(shards->reducer, shards->place[i]); k++) {
            size_t first, count;
            iso_reducer_own(shards->reducer, shards->place[i], k, &first, &count);
            if (count == 0) continue;
            range *last = n > shards->start[i] ? &shards->range[n - 1] : NULL;
            bool joins = last && last->first + last->count == (int64_t)first &&
                         last->offset + (size_t)last->count * size_of(self, i) == bytes;
            if (joins)
                last->count += (int64_t)count;
            else
                shards->range[n++] = (range){(int64_t)first, (int64_t)count, bytes};
            bytes += (count * size_of(self, i) + 63) / 64 * 64;
        }
    }
    shards->start[self->count] = n;
    return bytes;
}

static int64_t elements_of(const iso__dp_state *shards, int i) {
    int64_t elements = 0;
    for (int n = shards->start[i]; n < shards->start[i + 1]; n++)
        elements += shards->range[n].count;
    return elements;
}

iso_status iso__dp_state_find(const iso__base_optimizer *self, int i, int64_t first, int64_t count,
                              int64_t *elements, size_t *state_offset) {
    const iso__dp_state *shards = self->shards;
    *elements = elements_of(shards, i);
    for (int n = shards->start[i]; n < shards->start[i + 1]; n++) {
        const range *p = &shards->range[n];
        if (first < p->first || first + count > p->first + p->count) continue;
        *state_offset = p->offset + (size_t)(first - p->first) * size_of(self, i);
        return ISO_OK;
    }
    return ISO_FAIL(
        ISO_ERR_STATE,
        "an update of %lld elements of \"%s\" from element %lld on needs state that another "
        "rank has (ZeRO): update only what iso_reducer_own gives",
        (long long)count, self->slot[i].name, (long long)first);
}

// ---- State moves ------------------------------------------------------------------------------------

// Returns a view, which needs no allocation. Loading a state must not run out of memory on one rank
// alone: the ranks would then have different states.
static iso_tensor view_range(const iso_tensor *from, iso_dtype type, const range *p,
                             size_t offset) {
    return (iso_tensor){.device = from->device,
                        .references = 1,
                        .dtype = type,
                        .layout = ISO_LAYOUT_LOGICAL,
                        .ndim = 1,
                        .shape = {p->count},
                        .count = p->count,
                        .data = (char *)from->data + offset};
}

static iso_status copy_range(const range *p, iso_dtype type, iso_tensor *arena, iso_tensor *whole,
                             bool in) {
    size_t first = (size_t)p->first * iso_dtype_size(type);
    iso_tensor here = view_range(arena, type, p, p->offset);
    iso_tensor there = view_range(whole, type, p, first);
    return in ? iso_tensor_copy(&there, &here) : iso_tensor_copy(&here, &there);
}

// Copies this rank's elements of slot i from the whole tensor into the arena (in), or back.
static iso_status copy_ranges(const iso__base_optimizer *self, int i, iso_tensor *arena,
                              iso_tensor *whole, bool in) {
    const iso__dp_state *shards = self->shards;
    iso_dtype type = iso__state_type(&self->slot[i]);
    for (int n = shards->start[i]; n < shards->start[i + 1]; n++)
        ISO_TRY(copy_range(&shards->range[n], type, arena, whole, in));
    return ISO_OK;
}

static iso_status fill_shard(const iso__base_optimizer *self, int kind, iso_tensor *arena) {
    for (int i = 0; i < self->count; i++) {
        const iso_tensor *value = self->slot[i].parameter->value;
        iso_tensor *whole;
        if (!has_state(self, i, kind)) continue;
        ISO_TRY(iso_tensor_borrow(value->device, iso__state_type(&self->slot[i]), 1, &value->count,
                                  iso__slot_state(self, &self->slot[i], kind), &whole));
        iso_status status = copy_ranges(self, i, arena, whole, true);
        iso_tensor_destroy(&whole);
        ISO_TRY(status);
    }
    return ISO_OK;
}

// Replaces the state of all elements by that of this rank's elements.
static iso_status keep_shard(iso__base_optimizer *self, int kind, size_t bytes) {
    iso_tensor *arena;
    int64_t words = (int64_t)(bytes > 0 ? bytes / sizeof(float) : 1);
    ISO_TRY(iso_tensor_create(self->module->device, ISO_F32, 1, &words, &arena));
    iso_status status = fill_shard(self, kind, arena);
    if (status < 0) iso_tensor_destroy(&arena);
    ISO_TRY(status);
    iso_tensor_destroy(&self->state[kind]);
    self->state[kind] = arena;
    return ISO_OK;
}

static iso_status make_whole(iso__base_optimizer *self, int i, int kind) {
    const iso_tensor *value = self->slot[i].parameter->value;
    iso__dp_state *shards = self->shards;
    iso_tensor **out = &shards->whole[kind * self->count + i];
    iso_dtype type = iso__state_type(&self->slot[i]);
    if (!has_state(self, i, kind)) return ISO_OK;
    ISO_TRY(iso_tensor_create(shards->host, type, value->ndim, value->shape, out));
    return copy_ranges(self, i, self->state[kind], *out, false);
}

static iso_status make_all_whole(iso__base_optimizer *self) {
    size_t count = (size_t)ISO_OPTIMIZER_STATES * (size_t)self->count;
    ISO_TRY(iso__alloc_zero(count * sizeof(iso_tensor *), (void **)&self->shards->whole));
    for (int k = 0; k < ISO_OPTIMIZER_STATES; k++)
        for (int i = 0; i < self->count; i++) ISO_TRY(make_whole(self, i, k));
    return ISO_OK;
}

// A rank that updates nothing of a parameter has not counted its updates: all ranks take the
// maximum. They take the minimum of the products, which shrink with each update.
static iso_status agree_on_steps(iso__base_optimizer *self, iso_comm *comm) {
    size_t count = (size_t)self->count;
    void *memory;
    ISO_TRY(iso__comm_alloc_zero(comm, 2 * count * sizeof(double), &memory));
    double *number = memory; // steps, then products
    const iso__dp_state *shards = self->shards;
    for (size_t i = 0; i < count; i++) {
        bool spread = iso__reducer_is_spread(shards->reducer, shards->place[i]);
        number[i] = spread ? (double)self->slot[i].step : 0;
        number[count + i] = spread ? -self->slot[i].product : 0;
    }
    iso_status status = iso_comm_allreduce_f64(comm, number, 2 * count, ISO_MAX);
    for (size_t i = 0; status == ISO_OK && i < count; i++) {
        if (!iso__reducer_is_spread(shards->reducer, shards->place[i])) continue;
        self->slot[i].step = (int64_t)number[i];
        self->slot[i].product = -number[count + i];
    }
    iso__free(number);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__dp_state_agree(const iso__base_optimizer *self, iso_status mine) {
    return self->shards ? iso_comm_agree(iso__reducer_comm(self->shards->reducer), mine) : mine;
}

iso_status iso__dp_state_gather(iso__base_optimizer *self) {
    iso__dp_state *shards = self->shards;
    iso__dp_state_forget(self);
    ISO_TRY(iso__dp_state_agree(self, make_all_whole(self)));
    for (int k = 0; k < ISO_OPTIMIZER_STATES; k++)
        for (int i = 0; i < self->count; i++)
            if (has_state(self, i, k))
                ISO_TRY(iso__reducer_gather(shards->reducer, shards->place[i],
                                            iso__dp_state_tensor(self, i, k)->data));
    return agree_on_steps(self, iso__reducer_owners(shards->reducer));
}

iso_tensor *iso__dp_state_tensor(const iso__base_optimizer *self, int i, int kind) {
    return self->shards->whole[kind * self->count + i];
}

iso_status iso__dp_state_take(iso__base_optimizer *self) {
    if (!self->shards->whole) return ISO_OK;
    for (int k = 0; k < ISO_OPTIMIZER_STATES; k++)
        for (int i = 0; i < self->count; i++)
            if (has_state(self, i, k))
                ISO_TRY(
                    copy_ranges(self, i, self->state[k], iso__dp_state_tensor(self, i, k), true));
    return ISO_OK;
}

iso_status iso__dp_state_take_values(const iso__base_optimizer *self, int i) {
    const iso__dp_state *shards = self->shards;
    const iso_tensor *value = self->slot[i].parameter->value;
    char *arena = self->state[ISO_STATE_MASTER]->data;
    for (int n = shards->start[i]; n < shards->start[i + 1]; n++) {
        const range *p = &shards->range[n];
        const char *from = (char *)value->data + (size_t)p->first * iso_dtype_size(value->dtype);
        ISO_TRY(iso__master_take(value->device, value->dtype, p->count, from,
                                 (float *)(void *)(arena + p->offset)));
    }
    return ISO_OK;
}

void iso__dp_state_forget(iso__base_optimizer *self) {
    iso__dp_state *shards = self->shards;
    if (!shards->whole) return;
    for (int n = 0; n < ISO_OPTIMIZER_STATES * self->count; n++)
        iso_tensor_destroy(&shards->whole[n]);
    iso__free(shards->whole);
    shards->whole = NULL;
}

// ---- Life -------------------------------------------------------------------------------------------

static void log_memory(const iso__base_optimizer *self) {
    double all = 0, here = 0;
    if (iso_comm_rank(iso__reducer_comm(self->shards->reducer)) != 0) return;
    for (int k = 0; k < ISO_OPTIMIZER_STATES; k++)
        for (int i = 0; i < self->count; i++) {
            double megabytes = has_state(self, i, k) ? (double)size_of(self, i) * 1e-6 : 0;
            all += megabytes * (double)self->slot[i].parameter->value->count;
            here += megabytes * (double)elements_of(self->shards, i);
        }
    iso__log(ISO_LOG_INFO, "ZeRO: %.3f of %.3f MB of the state of %s are on this rank", here, all,
             self->base.ops->name);
}

static iso_status make_shards(iso__base_optimizer *self, const int *place) {
    iso__dp_state *shards = self->shards;
    size_t slots = (size_t)self->count;
    size_t most = (size_t)count_pieces(self, shards->reducer, place);
    iso_device *device = self->module->device;
    if (device->ops->host_memory)
        shards->host = iso_device_retain(device);
    else
        ISO_TRY(iso_device_create("cpu", &shards->host));
    ISO_TRY(iso__alloc(slots * sizeof(int), (void **)&shards->place));
    memcpy(shards->place, place, slots * sizeof(int));
    ISO_TRY(iso__alloc_zero((slots + 1) * sizeof(int), (void **)&shards->start));
    ISO_TRY(iso__alloc_zero(most * sizeof(range), (void **)&shards->range));
    size_t bytes = list_ranges(self);
    for (int k = 0; k < ISO_OPTIMIZER_STATES; k++)
        if (self->state[k]) ISO_TRY(keep_shard(self, k, bytes));
    log_memory(self);
    return ISO_OK;
}

iso_status iso__dp_state_create(iso__base_optimizer *self, iso_reducer *reducer, const int *place) {
    ISO_TRY(iso__alloc_zero(sizeof(*self->shards), (void **)&self->shards));
    self->shards->reducer = reducer;
    iso_status status = make_shards(self, place);
    if (status < 0) iso__dp_state_destroy(self); // an optimizer that is to be destroyed
    ISO_TRY(status);
    return ISO_OK;
}

void iso__dp_state_destroy(iso__base_optimizer *self) {
    iso__dp_state *shards = self->shards;
    if (!shards) return;
    iso__dp_state_forget(self);
    iso_device_destroy(&shards->host);
    iso__free(shards->place);
    iso__free(shards->start);
    iso__free(shards->range);
    iso__free(shards);
    self->shards = NULL;
}
