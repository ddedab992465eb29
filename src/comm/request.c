// Requests: issue, test, wait, and what is said when a wait takes too long.
#include "comm/comm_impl.h"

#include <isotherm/trace.h>
#include <sched.h>
#include <string.h>

// Of a long exchange so many bytes travel at a time, so many times over: enough to fill a link, and
// little for a short exchange to wait behind. The bits are those of the whole.
#define PART_BYTES      (512 * 1024)
#define PARTS_UNDER_WAY 2

iso_status iso__request_take(iso__engine *engine, iso_request **out) {
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

void iso__request_release(iso__engine *engine, iso_request **request) {
    (*request)->state = ISO_REQUEST_FREE;
    (*request)->next_in_line = engine->free_list;
    engine->free_list = *request;
    *request = NULL;
}

// Posts up to `most` bytes of the request into this slot; an MPI return code.
static int post_part(iso_request *request, MPI_Comm mpi, size_t most, int slot) {
    iso__engine *engine = request->engine;
    size_t size = iso_dtype_size(request->dtype);
    size_t part = request->left * size < most ? request->left : most / size;
    int rc = MPI_Iallreduce(MPI_IN_PLACE, request->next, (int)part, iso__mpi_type(request->dtype),
                            MPI_SUM, mpi, &engine->mpi[slot]);
    if (rc != MPI_SUCCESS) return rc;
    engine->owner[slot] = request;
    request->next += part * size;
    request->left -= part;
    request->under_way++;
    return MPI_SUCCESS;
}

bool iso__comm_post_part(iso_comm *comm, int slot) {
    iso_request *request = comm->bulk_first;
    if (!request) return false;
    int rc = post_part(request, comm->bulk, PART_BYTES, slot);
    if (rc != MPI_SUCCESS) { // the other ranks have posted it: nothing after it can be right
        request->mpi_error = rc;
        request->left = 0;
        if (request->under_way == 0) request->state = ISO_REQUEST_FAILED;
    }
    if (request->left == 0) comm->bulk_first = request->next_in_line;
    comm->bulk_under_way += rc == MPI_SUCCESS;
    return rc == MPI_SUCCESS;
}

// With room for the parts in the engine.
static void post_bulk(iso_request *request) {
    iso_comm *comm = request->comm;
    iso__engine *engine = request->engine;
    if (comm->bulk_first)
        comm->bulk_last->next_in_line = request;
    else
        comm->bulk_first = request;
    comm->bulk_last = request;
    while (comm->bulk_under_way < PARTS_UNDER_WAY && iso__comm_post_part(comm, engine->in_flight))
        engine->in_flight++;
}

static iso_status post_short(iso_request *request) {
    iso__engine *engine = request->engine;
    ISO_TRY_MPI(post_part(request, request->comm->mpi, PART_BYTES, engine->in_flight));
    engine->in_flight++;
    return ISO_OK;
}

static iso_status post(iso_comm *comm, void *data, size_t count, iso_dtype dtype, const char *name,
                       iso_request **out) {
    iso__engine *engine = comm->engine;
    ISO_TRY(iso__engine_reserve(engine, PARTS_UNDER_WAY));
    iso_request *request = NULL;
    ISO_TRY(iso__request_take(engine, &request));
    *request = (iso_request){.engine = engine,
                             .comm = comm,
                             .name = name,
                             .bytes = count * iso_dtype_size(dtype),
                             .next = data,
                             .left = count,
                             .dtype = dtype,
                             .posted_ns = iso_now(),
                             .state = ISO_REQUEST_POSTED};
    request->bulk = request->bytes > PART_BYTES;
    if (count == 0) {
        request->done_ns = request->posted_ns;
        request->state = ISO_REQUEST_DONE;
    } else if (request->bulk) {
        post_bulk(request);
    } else {
        iso_status status = post_short(request);
        if (status < 0) iso__request_release(engine, &request);
        ISO_TRY(status);
    }
    iso__engine_kick(engine);
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

iso_status iso_request_test(iso_request **pointer) {
    iso_request *request = *pointer;
    iso__engine *engine = request->engine;
    pthread_mutex_lock(&engine->lock);
    if (request->state == ISO_REQUEST_POSTED) iso__engine_test_all(engine);
    iso_status status = ISO_PENDING;
    if (request->state != ISO_REQUEST_POSTED) {
        status = verdict(request);
        iso__request_release(engine, pointer);
    }
    pthread_mutex_unlock(&engine->lock);
    return status;
}

// Names what is in flight, oldest first, as far as it fits. With the lock held.
static void list_pending(const iso__engine *engine, char *text, size_t room) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < engine->in_flight && used + 1 < room; i++) {
        if (i > 0 && engine->owner[i] == engine->owner[i - 1]) continue;
        int n = snprintf(text + used, room - used, "%s\"%s\" (%zu bytes)", i ? ", " : "",
                         engine->owner[i]->name, engine->owner[i]->bytes);
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
