// SPDX-License-Identifier: MIT
// The weighted mean over nodes: records failures, and counts bytes.
#include "exchange/average_impl.h"

#include "comm/comm_calls.h"
#include "comm/traffic.h"

#include <string.h>

void iso__average_fail(iso__average *a, iso__average_cause cause) {
    if (a->cause != ISO_CAUSE_NONE) return;
    a->cause = cause;
    if (cause == ISO_CAUSE_MPI) memcpy(a->message, iso_last_error()->message, sizeof(a->message));
}

double iso__average_own_verdict(const iso__average *a) {
    const iso_comm *world = iso__routes_comm(a->routes);
    if (a->cause == ISO_CAUSE_NONE) return 0;
    return (double)(iso_comm_size(world) - iso_comm_rank(world)) * ISO_CAUSES + (double)a->cause;
}

void iso__average_note(iso__average *a, iso_status status) {
    if (status < 0) iso__average_fail(a, ISO_CAUSE_MPI);
}

iso_status iso__average_settle(iso__average *a, iso_request **request, bool wait) {
    if (!*request) return ISO_OK;
    int64_t done = 0;
    iso_status status =
        wait ? iso__request_finish(request, &done) : iso__request_test(request, &done);
    if (status == ISO_OK) a->back_ns = done;
    if (status >= 0 || *request) return status;
    iso__average_fail(a, ISO_CAUSE_MPI);
    return ISO_OK;
}

void iso__average_count(iso__average *a, const iso_comm *comm, size_t bytes) {
    iso_traffic sent = {0};
    iso__count_blocks(&sent, comm, bytes);
    a->stats.bytes_sent += sent.bytes_sent;
    a->stats.bytes_between_nodes += sent.bytes_between_nodes;
}
