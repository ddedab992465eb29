// SPDX-License-Identifier: MIT
// The exchanges under way in this process: the pool of requests, those that are not complete, the
// arrays that MPI tests, and the sleep of the helper.
#include "base/recording.h"
#include "comm/comm_state.h"
#include "comm/request.h"

#include <isotherm/trace.h>

// A communication-bound step needs short sleeps, a compute-bound one long sleeps, because each test
// takes time from a computing core.
#define ISO_SLEEP_MIN_US 50.0
#define ISO_SLEEP_MAX_US 500.0

// ---- Requests ---------------------------------------------------------------------------------------

static iso_status take_request(iso__engine *engine, iso_request **out) {
    if (engine->free_list) {
        *out = engine->free_list;
        engine->free_list = (*out)->next_in_line;
        return ISO_OK;
    }
    void *memory;
    ISO_TRY(iso__alloc(sizeof(iso_request), &memory));
    *out = memory;
    return ISO_OK;
}

iso_status iso__request_reserve(iso__engine *engine, int more) {
    for (int i = 0; i < more; i++) {
        void *memory;
        ISO_TRY(iso__alloc_zero(sizeof(iso_request), &memory));
        iso_request *request = memory;
        request->next_in_line = engine->free_list;
        engine->free_list = request;
    }
    return iso__engine_promise(engine, more);
}

void iso__request_unreserve(iso__engine *engine, int count) {
    iso__engine_take_back(engine, count);
    for (; count > 0 && engine->free_list; count--) {
        iso_request *request = engine->free_list;
        engine->free_list = request->next_in_line;
        iso__free(request);
    }
}

iso_status iso__request_begin(iso_comm *comm, iso__stream *stream, const char *name, size_t bytes,
                              iso_request **out) {
    iso__engine *engine = comm->engine;
    iso_request *request = NULL;
    ISO_TRY(take_request(engine, &request));
    *request = (iso_request){.engine = engine,
                             .comm = comm,
                             .name = name,
                             .bytes = bytes,
                             .posted_ns = iso_now(),
                             .stream = stream,
                             .mpi = comm->mpi,
                             .state = ISO_REQUEST_POSTED,
                             .older = engine->newest};
    request->turn = iso__stream_count(stream, request->posted_ns);
    if (stream->recorded)
        iso__record_posted(stream->record, (uint32_t)request->turn + 1, bytes, name);
    *(engine->newest ? &engine->newest->newer : &engine->oldest) = request;
    engine->newest = request;
    *out = request;
    return ISO_OK;
}

void iso__request_complete(iso_request *request) {
    iso__engine *engine = request->engine;
    *(request->older ? &request->older->newer : &engine->oldest) = request->newer;
    *(request->newer ? &request->newer->older : &engine->newest) = request->older;
    request->done_ns = iso_now();
    engine->completions++;
    if (request->stream->recorded)
        iso__record_done(request->stream->record, (uint32_t)request->turn + 1, request->bytes,
                         request->name);
    request->state = request->mpi_error ? ISO_REQUEST_FAILED : ISO_REQUEST_DONE;
    if (!request->channel) return;
    request->next_in_line = NULL;
    *(engine->chunks_done ? &engine->last_chunk_done->next_in_line : &engine->chunks_done) =
        request;
    engine->last_chunk_done = request;
}

int iso__request_post_part(iso_request *request, size_t most, MPI_Comm mpi, int slot) {
    iso__engine *engine = request->engine;
    size_t count = most < request->left ? most : request->left;
    int rc = request->call(request, (int)count, mpi, &engine->mpi[slot]);
    if (rc != MPI_SUCCESS) return rc;
    engine->owner[slot] = (iso__owner){.request = request};
    request->next += count * request->unit;
    if (request->send) request->send += count * request->unit;
    request->left -= count;
    request->under_way++;
    return MPI_SUCCESS;
}

void iso__request_release(iso__engine *engine, iso_request **request) {
    if ((*request)->state == ISO_REQUEST_POSTED) iso__request_complete(*request);
    (*request)->state = ISO_REQUEST_FREE;
    (*request)->next_in_line = engine->free_list;
    engine->free_list = *request;
    *request = NULL;
}

// ---- What MPI tests, and the helper -----------------------------------------------------------------

iso_status iso__engine_reserve(iso__engine *engine, int more) {
    int need = engine->in_flight + more;
    if (need <= engine->capacity) return ISO_OK;
    int capacity = need * 2 > 16 ? need * 2 : 16;
    size_t old = (size_t)engine->capacity, grown = (size_t)capacity;
    ISO_TRY(iso__realloc((void **)&engine->mpi, old * sizeof(*engine->mpi),
                         grown * sizeof(*engine->mpi)));
    ISO_TRY(iso__realloc((void **)&engine->owner, old * sizeof(*engine->owner),
                         grown * sizeof(*engine->owner)));
    ISO_TRY(iso__realloc((void **)&engine->completed, 0, grown * sizeof(*engine->completed)));
    ISO_TRY(iso__realloc((void **)&engine->statuses, 0, grown * sizeof(*engine->statuses)));
    engine->capacity = capacity;
    return ISO_OK;
}

iso_status iso__engine_promise(iso__engine *engine, int more) {
    engine->promised += more;
    return iso__engine_reserve(engine, engine->promised);
}

void iso__engine_adapt(iso__engine *engine, int64_t began_ns, bool done) {
    // A wait right after the issue (the last bucket of a backward, blocking mode) finds nothing
    // complete, however short the sleep is, so it teaches nothing.
    double age_us = (double)(iso_now() - began_ns) * 1e-3;
    if (engine->sleep_fixed || age_us < 10 * engine->sleep_us) return;
    double us = engine->sleep_us * (done ? 1.1 : 0.7);
    engine->sleep_us = us < ISO_SLEEP_MIN_US   ? ISO_SLEEP_MIN_US
                       : us > ISO_SLEEP_MAX_US ? ISO_SLEEP_MAX_US
                                               : us;
}

void iso__engine_kick(iso__engine *engine) {
    bool work = engine->oldest || engine->in_flight > 0;
    if (engine->thread_runs && work && engine->waiters == 0) pthread_cond_signal(&engine->wake);
}
