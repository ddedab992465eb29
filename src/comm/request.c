// SPDX-License-Identifier: MIT
// Non-blocking all-reduces: issue, test, wait.
#include "comm/comm_calls.h"
#include "comm/comm_state.h"
#include "comm/debug.h"
#include "comm/request.h"

static iso_status post_allreduce(iso_comm *comm, void *data, size_t count, iso_dtype dtype,
                                 const char *name, iso_request **out) {
    size_t bytes = count * iso_dtype_size(dtype);
    iso_request *request = NULL;
    ISO_TRY(iso__request_begin(comm, &comm->sums, name, bytes, &request));
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
              "a sum of elements of type %s: MPI sums f32, f64, bf16 and f16",
              iso_dtype_name(dtype));
    ISO_CHECK(!comm->engine->finalized, ISO_ERR_STATE,
              "an exchange was started after MPI_Finalize");
    ISO_TRY(iso__debug_match(comm, "a non-blocking sum \"%.80s\" of %zu %s elements", name, count,
                             iso_dtype_name(dtype)));
    pthread_mutex_lock(&comm->engine->lock);
    iso_status status = post_allreduce(comm, data, count, dtype, name, out);
    pthread_mutex_unlock(&comm->engine->lock);
    return status;
}

static iso_status request_verdict(const iso_request *request) {
    if (request->state == ISO_REQUEST_DONE) return ISO_OK;
    return iso__mpi_error(request->mpi_error, request->name, __func__, __FILE__, __LINE__);
}

iso_status iso_request_test(iso_request **pointer) { return iso__request_test(pointer, NULL); }

// A program may test in a loop until the exchange is complete. So, like a wait, a test sums for
// ranks without a helper, whose programs may be busy. If this rank has a helper thread, the test
// does not count as a waiter, for which the helper would pause.
static void look_after(iso__engine *engine) {
    int waits = engine->mode != ISO_PROGRESS_THREAD;
    engine->waiters += waits;
    iso__engine_test_all(engine);
    engine->waiters -= waits;
}

iso_status iso__request_test(iso_request **pointer, int64_t *done_ns) {
    iso_request *request = *pointer;
    if (!request) return ISO_OK;
    iso__engine *engine = request->engine;
    pthread_mutex_lock(&engine->lock);
    if (request->state == ISO_REQUEST_POSTED) look_after(engine);
    iso_status status = ISO_PENDING;
    if (request->state != ISO_REQUEST_POSTED) {
        status = request_verdict(request);
        if (done_ns) *done_ns = request->done_ns;
        iso__request_release(engine, pointer);
    }
    pthread_mutex_unlock(&engine->lock);
    return status;
}

static bool is_done(const void *what) {
    return ((const iso_request *)what)->state != ISO_REQUEST_POSTED;
}

static iso_status finish_request(iso_request **pointer, int64_t *done_ns, const iso__idle *idle) {
    iso_request *request = *pointer;
    if (!request) return ISO_OK;
    iso__engine *engine = request->engine;
    bool alike = request->stream != &request->comm->messages; // so that counts tell who is late
    const iso__awaited awaited = {.comm = request->comm,
                                  .stream = alike ? request->stream : NULL,
                                  .name = request->name,
                                  .began_ns = request->posted_ns,
                                  .what = request,
                                  .is_done = is_done,
                                  .idle = idle ? *idle : request->comm->idle};
    pthread_mutex_lock(&engine->lock);
    iso_status status = iso__engine_wait(engine, &awaited);
    if (status == ISO_OK) status = request_verdict(request);
    if (done_ns) *done_ns = request->done_ns;
    if (is_done(request)) iso__request_release(engine, pointer);
    pthread_mutex_unlock(&engine->lock);
    return status;
}

iso_status iso__request_finish(iso_request **request, int64_t *done_ns) {
    return finish_request(request, done_ns, NULL);
}

iso_status iso__request_wait_idle(iso_request **request, const iso__idle *idle) {
    return finish_request(request, NULL, idle);
}

iso_status iso_request_wait(iso_request **request) { return iso__request_finish(request, NULL); }

void iso_comm_poll(iso_comm *comm) {
    iso__engine *engine = comm->engine;
    if (engine->mode != ISO_PROGRESS_POLL) return;
    pthread_mutex_lock(&engine->lock);
    iso__engine_test_all(engine);
    iso__watch_poll(engine);
    pthread_mutex_unlock(&engine->lock);
}
