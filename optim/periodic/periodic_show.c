// SPDX-License-Identifier: MIT
// Evaluation, in which the parameters are the mean of all ranks, or the model of the best trainer.
#include "optim/periodic/periodic.h"

// Evaluation needs a mean that is not part of training: its bytes do not count.
static iso_status mean_to_show(iso__periodic *p, const float **mean) {
    iso_daso_stats before, after;
    iso__periodic_stats(p, &before);
    iso_status status = iso__periodic_exact_mean(p, ISO__PAYLOAD_EXACT, mean);
    iso__periodic_stats(p, &after);
    p->stats.bytes_sent -= after.bytes_sent - before.bytes_sent;
    p->stats.bytes_between_nodes -= after.bytes_between_nodes - before.bytes_between_nodes;
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status reserve_own(iso__periodic *p) {
    int last = iso__periodic_last(p, ISO__PAYLOAD_EXACT);
    size_t bytes = iso__flat_bytes(iso__periodic_flat(p, 0, last));
    return p->own ? ISO_OK : iso__pinned_alloc(p->device, bytes, (void **)&p->own);
}

iso_status iso__periodic_show(bool training, void *periodic) {
    iso__periodic *p = periodic;
    const float *mean;
    int last = iso__periodic_last(p, ISO__PAYLOAD_EXACT);
    p->last_step_ns = 0; // evaluation is not part of a step
    if (training == !p->shown) return ISO_OK;
    if (training) {
        ISO_TRY(iso__periodic_put(p, 0, last, p->own));
    } else {
        if (p->equal) return ISO_OK;
        ISO_TRY(iso__periodic_hold(p));
        if (p->equal) return ISO_OK; // since ranks have met
        ISO_TRY(iso_comm_agree(p->comm, reserve_own(p)));
        ISO_TRY(iso__periodic_fetch(p, 0, last, p->own));
        ISO_TRY(mean_to_show(p, &mean));
        ISO_TRY(iso__periodic_put(p, 0, last, mean));
    }
    p->shown = !training;
    return ISO_OK;
}
