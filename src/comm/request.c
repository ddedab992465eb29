// Requests: issue, test, wait, and what is said when a wait takes too long.
#include "comm/channel.h"

#include <isotherm/trace.h>
#include <sched.h>
#include <string.h>

// ---- The pool, and the list of what is not complete -------------------------------------------------

static iso_status take(iso__engine *engine, iso_request **out) {
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
    engine->promised += more;
    return iso__engine_reserve(engine, engine->promised);
}

void iso__request_unreserve(iso__engine *engine, int count) {
    engine->promised -= count;
    for (; count > 0 && engine->free_list; count--) {
        iso_request *request = engine->free_list;
        engine->free_list = request->next_in_line;
        iso__free(request);
    }
}

iso_status iso__request_begin(iso_comm *comm, const char *name, size_t bytes, iso_request **out) {
    iso__engine *engine = comm->engine;
    iso_request *request = NULL;
    ISO_TRY(take(engine, &request));
    *request = (iso_request){.engine = engine,
                             .comm = comm,
                             .name = name,
                             .bytes = bytes,
                             .posted_ns = iso_now(),
                             .mpi = comm->mpi,
                             .state = ISO_REQUEST_POSTED,
                             .older = engine->newest};
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
    request->state = request->mpi_error ? ISO_REQUEST_FAILED : ISO_REQUEST_DONE;
    if (request->channel) iso__channel_part_done(request);
}

void iso__request_release(iso__engine *engine, iso_request **request) {
    if ((*request)->state == ISO_REQUEST_POSTED) iso__request_complete(*request);
    (*request)->state = ISO_REQUEST_FREE;
    (*request)->next_in_line = engine->free_list;
    engine->free_list = *request;
    *request = NULL;
}

// ---- Issue, test, wait ------------------------------------------------------------------------------

const iso__collective_ops *iso__collective_choose(const iso_comm *comm, const void *data,
                                                  size_t bytes, iso_dtype dtype) {
    bool shared = dtype == ISO_F32 && iso__comm_is_shared(comm, data, bytes);
    return shared ? &iso__collective_shm : &iso__collective_mpi;
}

static iso_status post(iso_comm *comm, void *data, size_t count, iso_dtype dtype, const char *name,
                       iso_request **out) {
    size_t bytes = count * iso_dtype_size(dtype);
    iso_request *request = NULL;
    ISO_TRY(iso__request_begin(comm, name, bytes, &request));
    request->next = data;
    request->left = count;
    request->unit = iso_dtype_size(dtype);
    request->dtype = dtype;
    request->call = iso__mpi_allreduce;
    if (count == 0) {
        iso__request_complete(request);
    } else {
        iso_status status = iso__collective_choose(comm, data, bytes, dtype)->post(request);
        if (status < 0) iso__request_release(comm->engine, &request);
        ISO_TRY(status);
    }
    iso__engine_kick(comm->engine);
    *out = request;
    return ISO_OK;
}

iso_status iso_comm_iallreduce(iso_comm *comm, void *data, size_t count, iso_dtype dtype,
                               const char *name, iso_request **out) {
    ISO_CHECK(iso__mpi_type(dtype) != MPI_DATATYPE_NULL, ISO_ERR_UNSUPPORTED,
              "MPI cannot sum elements of type %s", iso_dtype_name(dtype));
    ISO_CHECK(!comm->engine->finalized, ISO_ERR_STATE,
              "an exchange was started after MPI_Finalize");
    pthread_mutex_lock(&comm->engine->lock);
    iso_status status = post(comm, data, count, dtype, name, out);
    pthread_mutex_unlock(&comm->engine->lock);
    return status;
}

static iso_status verdict(const iso_request *request) {
    if (request->state == ISO_REQUEST_DONE) return ISO_OK;
    return iso__mpi_error(request->mpi_error, request->name, __func__, __FILE__, __LINE__);
}

iso_status iso_request_test(iso_request **pointer) { return iso__request_test(pointer, NULL); }

// Who tests may be in a loop until it is complete: like a wait, it helps ranks without a helper,
// whose programs may be busy elsewhere. A helper of this rank would stand back, so it only looks.
static void look_after(iso__engine *engine) {
    int waits = engine->mode != ISO_PROGRESS_THREAD;
    engine->waiters += waits;
    iso__engine_test_all(engine);
    engine->waiters -= waits;
}

iso_status iso__request_test(iso_request **pointer, int64_t *done_ns) {
    iso_request *request = *pointer;
    iso__engine *engine = request->engine;
    pthread_mutex_lock(&engine->lock);
    if (request->state == ISO_REQUEST_POSTED) look_after(engine);
    iso_status status = ISO_PENDING;
    if (request->state != ISO_REQUEST_POSTED) {
        status = verdict(request);
        if (done_ns) *done_ns = request->done_ns;
        iso__request_release(engine, pointer);
    }
    pthread_mutex_unlock(&engine->lock);
    return status;
}

// Names what is not complete, oldest first, as far as it fits. With the lock held.
static void list_pending(const iso__engine *engine, char *text, size_t room) {
    size_t used = 0;
    text[0] = 0;
    for (const iso_request *r = engine->oldest; r && used + 1 < room; r = r->newer) {
        int n = snprintf(text + used, room - used, "%s\"%s\" (%zu bytes)", used ? ", " : "",
                         r->name, r->bytes);
        used += (size_t)n;
    }
}

static iso_status timed_out(const iso__engine *engine, const iso__awaited *awaited) {
    char pending[256];
    list_pending(engine, pending, sizeof(pending));
    return ISO_FAIL(ISO_ERR_TIMEOUT,
                    "rank %d of %d waited %g s for the exchange of \"%s\"; in flight: %s: another "
                    "rank is stuck, "
                    "gone or slower than that (ISO_TIMEOUT sets the limit)",
                    awaited->comm->rank, awaited->comm->size, awaited->comm->timeout_s,
                    awaited->name, pending);
}

// Meanwhile the helper drives progress. Gives how long it took.
static int64_t do_other_work(iso__engine *engine, const iso__awaited *awaited, bool *did) {
    int64_t start = iso_now();
    engine->waiters--;
    iso__engine_kick(engine);
    pthread_mutex_unlock(&engine->lock);
    *did = awaited->idle(awaited->user);
    pthread_mutex_lock(&engine->lock);
    engine->waiters++;
    return iso_now() - start;
}

static iso_status wait_locked(iso__engine *engine, const iso__awaited *awaited) {
    int64_t start = iso_now(), limit = (int64_t)(awaited->comm->timeout_s * 1e9);
    bool idle = awaited->idle != NULL; // there may be other work
    uint64_t seen = 0;
    while (!awaited->is_done(awaited->what)) {
        iso__engine_test_all(engine);
        if (awaited->is_done(awaited->what)) break;
        ISO_CHECK(!engine->finalized, ISO_ERR_STATE,
                  "the exchange of \"%s\" was still out when MPI_Finalize was called",
                  awaited->name);
        int64_t waited = iso_now() - start;
        if (limit > 0 && waited > limit) return timed_out(engine, awaited);
        if (awaited->idle && (idle || seen != engine->completions)) {
            seen = engine->completions;
            start += do_other_work(engine, awaited, &idle);
            continue;
        }
        pthread_mutex_unlock(&engine->lock);
        sched_yield(); // a nap here was measured to lose 1 ms of a 40 ms exchange
        pthread_mutex_lock(&engine->lock);
    }
    return ISO_OK;
}

iso_status iso__engine_wait(iso__engine *engine, const iso__awaited *awaited) {
    iso__engine_adapt(engine, awaited->began_ns, awaited->is_done(awaited->what));
    engine->waiters++;
    iso_status status = wait_locked(engine, awaited);
    engine->waiters--;
    iso__engine_kick(engine);
    return status;
}

static bool is_done(const void *what) {
    return ((const iso_request *)what)->state != ISO_REQUEST_POSTED;
}

iso_status iso__request_finish(iso_request **pointer, int64_t *done_ns) {
    iso_request *request = *pointer;
    iso__engine *engine = request->engine;
    const iso__awaited awaited = {.comm = request->comm,
                                  .name = request->name,
                                  .began_ns = request->posted_ns,
                                  .what = request,
                                  .is_done = is_done};
    pthread_mutex_lock(&engine->lock);
    iso_status status = iso__engine_wait(engine, &awaited);
    if (status == ISO_OK) status = verdict(request);
    if (done_ns) *done_ns = request->done_ns;
    if (is_done(request)) iso__request_release(engine, pointer);
    pthread_mutex_unlock(&engine->lock);
    return status;
}

iso_status iso_request_wait(iso_request **request) { return iso__request_finish(request, NULL); }

void iso_comm_poll(iso_comm *comm) {
    iso__engine *engine = comm->engine;
    if (engine->mode != ISO_PROGRESS_POLL) return;
    pthread_mutex_lock(&engine->lock);
    iso__engine_test_all(engine);
    pthread_mutex_unlock(&engine->lock);
}
