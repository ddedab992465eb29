// Requests: issue, test, wait, and what is said when a wait takes too long.
#include "comm/comm_impl.h"

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

iso_status iso__request_begin(iso_comm *comm, const char *name, size_t bytes, iso_request **out) {
    iso__engine *engine = comm->engine;
    iso_request *request = NULL;
    ISO_TRY(take(engine, &request));
    *request = (iso_request){.engine = engine,
                             .comm = comm,
                             .name = name,
                             .bytes = bytes,
                             .posted_ns = iso_now(),
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
    request->state = request->mpi_error ? ISO_REQUEST_FAILED : ISO_REQUEST_DONE;
}

void iso__request_release(iso__engine *engine, iso_request **request) {
    if ((*request)->state == ISO_REQUEST_POSTED) iso__request_complete(*request);
    (*request)->state = ISO_REQUEST_FREE;
    (*request)->next_in_line = engine->free_list;
    engine->free_list = *request;
    *request = NULL;
}

// ---- Issue, test, wait ------------------------------------------------------------------------------

static const iso__collective_ops *choose(const iso_comm *comm, const void *data, size_t bytes,
                                         iso_dtype dtype) {
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
        iso_status status = choose(comm, data, bytes, dtype)->post(request);
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

iso_status iso__request_test(iso_request **pointer, int64_t *done_ns) {
    iso_request *request = *pointer;
    iso__engine *engine = request->engine;
    pthread_mutex_lock(&engine->lock);
    if (request->state == ISO_REQUEST_POSTED) iso__engine_test_all(engine);
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

static iso_status timed_out(const iso_request *request) {
    char pending[256];
    list_pending(request->engine, pending, sizeof(pending));
    return ISO_FAIL(ISO_ERR_TIMEOUT,
                    "rank %d of %d waited %g s for the exchange of \"%s\"; in flight: %s: another "
                    "rank is stuck, "
                    "gone or slower than that (ISO_TIMEOUT sets the limit)",
                    request->comm->rank, request->comm->size, request->comm->timeout_s,
                    request->name, pending);
}

// With the lock held, which is released between tests.
static iso_status wait_locked(iso_request *request) {
    iso__engine *engine = request->engine;
    int64_t start = iso_now(), limit = (int64_t)(request->comm->timeout_s * 1e9);
    while (request->state == ISO_REQUEST_POSTED) {
        iso__engine_test_all(engine);
        if (request->state != ISO_REQUEST_POSTED) break;
        ISO_CHECK(!engine->finalized, ISO_ERR_STATE,
                  "the exchange of \"%s\" was still out when MPI_Finalize was called",
                  request->name);
        int64_t waited = iso_now() - start;
        if (limit > 0 && waited > limit) return timed_out(request);
        pthread_mutex_unlock(&engine->lock);
        sched_yield(); // a nap here was measured to lose 1 ms of a 40 ms exchange
        pthread_mutex_lock(&engine->lock);
    }
    return verdict(request);
}

iso_status iso__request_finish(iso_request **pointer, int64_t *done_ns) {
    iso_request *request = *pointer;
    iso__engine *engine = request->engine;
    pthread_mutex_lock(&engine->lock);
    iso__engine_adapt(engine, request);
    engine->waiters++;
    iso_status status = wait_locked(request);
    engine->waiters--;
    iso__engine_kick(engine);
    if (done_ns) *done_ns = request->done_ns;
    if (request->state != ISO_REQUEST_POSTED) iso__request_release(engine, pointer);
    pthread_mutex_unlock(&engine->lock);
    return status;
}

iso_status iso_request_wait(iso_request **request) { return iso__request_finish(request, NULL); }

int64_t iso__request_posted_ns(const iso_request *request) { return request->posted_ns; }

void iso_comm_poll(iso_comm *comm) {
    iso__engine *engine = comm->engine;
    if (engine->mode != ISO_PROGRESS_POLL) return;
    pthread_mutex_lock(&engine->lock);
    iso__engine_test_all(engine);
    pthread_mutex_unlock(&engine->lock);
}
