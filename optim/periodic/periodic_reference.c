// SPDX-License-Identifier: MIT
// What exchanges send differences from, and the anchor of the outer optimizer.
#include "optim/periodic/periodic.h"

#include "comm/comm_calls.h"
#include "comm/traffic.h"

// Gives all ranks rank 0's buffers in `values`, the flat array of an exchange. Each rank has the
// statistics of its own batches, also where parameters and optimizer state are equal.
static iso_status share_buffers(iso__periodic *p, const iso__periodic_exchange *x, float *values) {
    int first = p->parameter_count, last = first + p->buffer_count;
    if (!p->config.wire.differences || x->last <= first) return ISO_OK;
    size_t bytes = iso__periodic_flat(p, first, last).f32 * sizeof(float);
    iso_traffic moved = {0};
    if (bytes == 0) return ISO_OK;
    if (iso_comm_rank(p->comm) == 0) iso__count_blocks(&moved, p->comm, bytes);
    iso__periodic_add_traffic(p, &moved);
    return iso_comm_bcast(p->comm, values + iso__periodic_flat(p, 0, first).f32, bytes, 0);
}

iso_status iso__periodic_set_reference(iso__periodic *p) {
    for (int i = 0; i < p->exchange_count; i++) {
        iso__periodic_exchange *x = &p->exchange[i];
        float *values = p->room + x->offset;
        ISO_TRY(iso__periodic_fetch(p, x->first, x->last, values));
        iso__periodic_outer_begin(p, x, values);
        ISO_TRY(share_buffers(p, x, values));
        ISO_TRY(iso__average_set_reference(x->average, values));
        for (int k = 0; k < p->config.lower_count; k++)
            ISO_TRY(iso__average_set_reference(x->lower[k], values));
    }
    return ISO_OK;
}

// Whether all ranks have the same parameters now.
static iso_status compare_parameters(iso__periodic *p, bool *same) {
    iso__flat size = iso__periodic_flat(p, 0, p->parameter_count);
    ISO_TRY(iso__periodic_fetch(p, 0, p->parameter_count, p->room));
    uint64_t hash = iso__hash(ISO_HASH_START, p->room, size.f32 * sizeof(float));
    const char *f64 = (const char *)p->room + iso__flat_f64(size);
    return iso__comm_all_same(p->comm, iso__hash(hash, f64, size.f64 * sizeof(double)), same);
}

iso_status iso__periodic_begin(iso__periodic *p) {
    bool same = true;
    if (!p->config.outer && !p->config.wire.differences) return ISO_OK;
    if (!p->config.outer) ISO_TRY(compare_parameters(p, &same));
    return same ? iso__periodic_set_reference(p) : ISO_OK;
}
