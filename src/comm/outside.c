// SPDX-License-Identifier: MIT
// Collectives of other libraries, such as NCCL: finds which ranks keep the others waiting.
#include "comm/comm_calls.h"
#include "comm/comm_state.h"

#include <isotherm/trace.h>
#include <stdio.h>

struct iso__outside {
    iso_comm *comm; // retained
    iso__stream stream;
    iso__patience patience; // of the wait that began at since_ns; 0: none
    int64_t since_ns;
    char what[128];
};

iso_status iso__outside_create(iso_comm *comm, iso__outside **out) {
    iso__outside *o;
    uint64_t from[2] = {comm->sums.key, ++comm->channels}; // as on ranks that have memory
    ISO_TRY(iso__alloc_zero(sizeof(*o), (void **)&o));
    o->comm = iso_comm_retain(comm);
    *out = o;
    if (!comm->watch) return ISO_OK;
    pthread_mutex_lock(&comm->engine->lock);
    iso__stream_open(comm->watch, &o->stream, iso__hash(ISO_HASH_START, from, sizeof(from)));
    pthread_mutex_unlock(&comm->engine->lock);
    return ISO_OK;
}

void iso__outside_destroy(iso__outside **pointer) {
    iso__outside *o = *pointer;
    *pointer = NULL;
    if (!o) return;
    iso__outside_rest(o);
    pthread_mutex_lock(&o->comm->engine->lock);
    iso__stream_close(&o->stream);
    pthread_mutex_unlock(&o->comm->engine->lock);
    iso_comm_destroy(&o->comm);
    iso__free(o);
}

void iso__outside_count(iso__outside *o) { iso__stream_count(&o->stream, iso_now()); }

void iso__outside_rest(iso__outside *o) {
    if (!o || o->since_ns == 0) return;
    iso__patience_end_unlocked(&o->patience);
    o->since_ns = 0;
}

void iso__outside_wait(iso__outside *o, const char *what, int under_way, int64_t since_ns) {
    if (o->since_ns != since_ns) {
        iso__outside_rest(o);
        snprintf(o->what, sizeof(o->what), "%s", what);
        o->patience = iso__patience_begin(o->comm, &o->stream, o->what);
        o->patience.apart = true;
        o->since_ns = since_ns;
    }
    o->patience.under_way = under_way;
    iso__patience_tick_unlocked(&o->patience, iso_now() - since_ns);
}

const char *iso__outside_verdict(const iso__outside *o, int under_way, char *text, size_t room) {
    iso__patience p = iso__patience_begin(o->comm, &o->stream, o->what);
    p.apart = true;
    p.under_way = under_way;
    return iso__patience_verdict_unlocked(&p, text, room);
}
