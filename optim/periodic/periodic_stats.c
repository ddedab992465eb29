// SPDX-License-Identifier: MIT
// What periodic synchronisation tells of itself.
#include "optim/periodic/periodic.h"

iso_status iso__periodic_mean_number(iso__periodic *p, double *value) {
    ISO_TRY(iso_comm_allreduce_f64(p->comm, value, 1, ISO_SUM));
    *value /= iso_comm_size(p->comm);
    return ISO_OK;
}

static void add_stats(const iso__average *from, iso_daso_stats *to, bool work) {
    iso__average_stats average;
    if (!from) return;
    iso__average_get_stats(from, &average);
    to->bytes_sent += average.bytes_sent;
    to->bytes_between_nodes += average.bytes_between_nodes;
    to->work_ms += work ? average.work_ms : 0;
}

void iso__periodic_add_traffic(iso__periodic *p, const iso_traffic *moved) {
    p->stats.bytes_sent += moved->bytes_sent;
    p->stats.bytes_between_nodes += moved->bytes_between_nodes;
}

void iso__periodic_stats(const iso__periodic *p, iso_daso_stats *out) {
    *out = p->stats;
    out->exchange_ms = p->metrics[ISO__EXCHANGE_MS];
    out->step_ms = p->metrics[ISO__STEP_MS];
    out->divergence = p->metrics[ISO__DIVERGENCE];
    for (int i = 0; i < p->exchange_count; i++) {
        out->pending = out->pending || p->exchange[i].pending;
        add_stats(p->exchange[i].average, out, true);
        for (int k = 0; k < p->config.lower_count; k++)
            add_stats(p->exchange[i].lower[k], out, true);
    }
    for (int i = 0; i < ISO__PAYLOADS; i++) add_stats(p->average[i], out, false);
}
