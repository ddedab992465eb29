// SPDX-License-Identifier: MIT
// The weighted mean over nodes, of ranks that have arrays of their own: inside a node, every rank
// gets its shard of the other ranks' arrays, and adds them up in the order of the ranks. So no more
// bytes cross between nodes than with one rank on each.
#include "exchange/average_impl.h"

#include "comm/comm_calls.h"

#include <string.h>

static size_t element_size(iso__average_type type) {
    return type == ISO__AVERAGE_F64 ? sizeof(double) : sizeof(float);
}

// A block for each rank of the node, also of those that have no shard.
static size_t blocks_bytes(const iso__average *a, iso__average_type type) {
    return (size_t)a->layout->local_size * a->shard[type] * element_size(type);
}

iso_status iso__average_node_open(iso__average *a) {
    if (!a->config.each_rank) return ISO_OK;
    for (int k = 0; k < ISO__AVERAGE_TYPES; k++) {
        size_t bytes = blocks_bytes(a, (iso__average_type)k);
        ISO_TRY(iso__alloc_zero(bytes, (void **)&a->own[k]));
        ISO_TRY(iso__alloc_zero(bytes, (void **)&a->others[k]));
    }
    return ISO_OK;
}

void iso__average_node_close(iso__average *a) {
    for (int k = 0; k < ISO__AVERAGE_TYPES; k++) {
        iso__free(a->own[k]);
        iso__free(a->others[k]);
    }
}

static bool take_values(iso__average *a, iso__average_type type, const float *values) {
    const void *from = (const char *)values + iso__average_at(a, type);
    if (type == ISO__AVERAGE_F64)
        return iso__f64_encode(a->size[type], from, 1, (void *)a->own[type]);
    return iso__codec_f32.encode(a->size[type], from, 1, a->own[type]);
}

void iso__average_node_send(iso__average *a, const float *values) {
    for (int k = 0; k < ISO__AVERAGE_TYPES; k++) {
        iso__average_type type = (iso__average_type)k;
        size_t block = a->shard[k] * element_size(type);
        if (block == 0) continue;
        if (!take_values(a, type, values)) { // not sent, so that this rank reports it
            iso__average_fail(a, ISO_CAUSE_VALUES);
            memset(a->own[k], 0, a->size[k] * element_size(type));
        }
        iso__average_note(a, iso__comm_ialltoall(a->route->node, a->own[k], a->others[k], block,
                                                 "mean over nodes (node)", &a->inside[k]));
        iso__average_count(a, a->route->node, block);
    }
}

// sum: this rank's shard in a flat array.
static void add_ranks(const iso__average *a, iso__average_type type, void *sum) {
    size_t shard = a->shard[type], count = a->carried[type].count;
    const float *f32 = (const void *)a->others[type];
    const double *f64 = (const void *)a->others[type];
    memcpy(sum, a->others[type], count * element_size(type));
    for (int r = 1; r < a->layout->local_size; r++) {
        f32 += shard;
        f64 += shard;
        float *x = sum;
        double *y = sum;
        for (size_t i = 0; type == ISO__AVERAGE_F32 && i < count; i++) x[i] += f32[i];
        for (size_t i = 0; type == ISO__AVERAGE_F64 && i < count; i++) y[i] += f64[i];
    }
}

iso_status iso__average_node_finish(iso__average *a, bool wait, float *sums) {
    for (; a->at < ISO__AVERAGE_TYPES; a->at++) {
        iso__average_type type = (iso__average_type)a->at;
        iso_status status = iso__average_settle(a, &a->inside[type], wait);
        if (status != ISO_OK) return status;
        size_t first = a->carried[type].first * element_size(type);
        if (a->carried[type].count > 0)
            add_ranks(a, type, (char *)sums + iso__average_at(a, type) + first);
    }
    return ISO_OK;
}
