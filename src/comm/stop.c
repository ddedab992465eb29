// SPDX-License-Identifier: MIT
// Ranks agree on the step after which all of them stop. The calls at which they exchange follow
// from sums of earlier exchanges, so they are the same on all ranks without further messages.
#include "comm/comm_calls.h"

#include <isotherm/stop.h>
#include <isotherm/trace.h>
#include <stdatomic.h>

#define INTERVAL_NS 2e8

enum { GROWTH = 4, MOST_CALLS = 1 << 24 };

struct iso_stop {
    iso_comm *comm;
    atomic_bool wanted; // on this rank
    bool stops;         // on all ranks
    iso_request *request;
    int64_t calls, left; // from one exchange to the next; until then
    int64_t since;       // calls since the latest exchange
    int64_t began;       // the time of the latest exchange
    size_t room;         // of sum: see iso__comm_reduction_room
    double sum[];        // of the request: ranks that want to stop; ns from one call to the next; 0
};

iso_status iso_stop_create(iso_comm *comm, iso_stop **out) {
    void *memory;
    size_t room = iso__comm_reduction_room(comm, 2);
    ISO_TRY(iso__alloc_zero(sizeof(iso_stop) + room * sizeof(double), &memory));
    iso_stop *self = memory;
    self->comm = iso_comm_retain(comm);
    self->calls = self->left = 1;
    self->began = iso_now();
    self->room = room;
    *out = self;
    return ISO_OK;
}

// After a time-out MPI may still write to the sums, so nothing is freed.
void iso_stop_destroy(iso_stop **stop) {
    iso_stop *self = *stop;
    *stop = NULL;
    if (!self || iso_request_wait(&self->request) == ISO_ERR_TIMEOUT) return;
    iso_comm_destroy(&self->comm);
    iso__free(self);
}

void iso_stop_request(iso_stop *stop) { atomic_store(&stop->wanted, true); }

// Sums whole numbers, so that the result does not depend on the order of the additions.
static iso_status start_sum(iso_stop *self) {
    int64_t now = iso_now();
    self->sum[0] = atomic_load(&self->wanted);
    self->sum[1] = (double)((now - self->began) / self->since);
    self->began = now;
    self->since = 0;
    self->left = self->calls;
    return iso_comm_iallreduce(self->comm, self->sum, self->room, ISO_F64, "whether to stop",
                               &self->request);
}

// The number of calls between exchanges may fall at once, but grows by a factor of at most GROWTH.
static int64_t choose_calls(const iso_stop *self) {
    int64_t most = self->calls < MOST_CALLS ? GROWTH * self->calls : self->calls;
    double mean = self->sum[1] / iso_comm_size(self->comm);
    if (mean * (double)most <= INTERVAL_NS) return most;
    return mean < INTERVAL_NS ? (int64_t)(INTERVAL_NS / mean) : 1;
}

static iso_status finish_sum(iso_stop *self) {
    if (!self->request) return ISO_OK;
    ISO_TRY(iso_request_wait(&self->request));
    self->stops = self->sum[0] > 0;
    self->calls = choose_calls(self);
    return ISO_OK;
}

iso_status iso_stop_check(iso_stop *self, bool *stops) {
    self->since++;
    if (iso_comm_size(self->comm) == 1) {
        self->stops = atomic_load(&self->wanted);
    } else if (!self->stops && --self->left <= 0) {
        ISO_TRY(finish_sum(self));
        if (!self->stops) ISO_TRY(start_sum(self));
    }
    *stops = self->stops;
    return ISO_OK;
}

iso_status iso_stop_check_now(iso_stop *self, bool *stops) {
    int64_t wanted = atomic_load(&self->wanted);
    ISO_TRY(finish_sum(self));
    if (!self->stops) {
        ISO_TRY(iso_comm_allreduce_i64(self->comm, &wanted, 1, ISO_MAX));
        self->stops = wanted > 0;
    }
    self->left = 1;
    self->since = 0;
    self->began = iso_now();
    *stops = self->stops;
    return ISO_OK;
}
