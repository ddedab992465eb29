// Non-blocking collectives besides the all-reduce: one MPI request each, driven by the same engine.
#include "comm/comm_impl.h"

// MPI counts are int: counted in units of this many bytes, blocks may have up to 128 GB.
#define UNIT ((size_t)64)

typedef struct call {
    enum { ALLTOALL, ALLGATHER, BCAST, ALLREDUCE_MAX } kind;
    const void *send;
    void *data;
    int units, root; // units: of a block; numbers for ALLREDUCE_MAX
} call;

static int post(const call *c, MPI_Comm mpi, MPI_Datatype unit, MPI_Request *request) {
    switch (c->kind) {
    case ALLTOALL:
        return MPI_Ialltoall(c->send, c->units, unit, c->data, c->units, unit, mpi, request);
    case ALLGATHER:
        return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, c->data, c->units, unit, mpi,
                              request);
    case BCAST: return MPI_Ibcast(c->data, c->units, unit, c->root, mpi, request);
    default:
        return MPI_Iallreduce(MPI_IN_PLACE, c->data, c->units, MPI_DOUBLE, MPI_MAX, mpi, request);
    }
}

static iso_status post_unit(const call *c, iso_comm *comm, MPI_Request *request) {
    if (c->kind == ALLREDUCE_MAX) {
        ISO_TRY_MPI(post(c, comm->mpi, MPI_DOUBLE, request));
        return ISO_OK;
    }
    MPI_Datatype unit;
    ISO_TRY_MPI(MPI_Type_contiguous((int)UNIT, MPI_BYTE, &unit));
    int rc = MPI_Type_commit(&unit);
    if (rc == MPI_SUCCESS) rc = post(c, comm->mpi, unit, request);
    MPI_Type_free(&unit); // lives on until the operation is complete
    ISO_TRY_MPI(rc);
    return ISO_OK;
}

static iso_status start_locked(iso_comm *comm, const call *c, size_t bytes, const char *name,
                               iso_request **out) {
    iso__engine *engine = comm->engine;
    iso_request *request;
    ISO_TRY(iso__engine_reserve(engine, 1));
    ISO_TRY(iso__request_begin(comm, name, bytes, &request));
    request->under_way = 1;
    iso_status status = post_unit(c, comm, &engine->mpi[engine->in_flight]);
    if (status < 0) iso__request_release(engine, &request);
    ISO_TRY(status);
    engine->owner[engine->in_flight++] = request;
    iso__engine_kick(engine);
    *out = request;
    return ISO_OK;
}

static iso_status start(iso_comm *comm, const call *c, size_t bytes, const char *name,
                        iso_request **out) {
    ISO_CHECK(!comm->engine->finalized, ISO_ERR_STATE,
              "an exchange was started after MPI_Finalize");
    pthread_mutex_lock(&comm->engine->lock);
    iso_status status = start_locked(comm, c, bytes, name, out);
    pthread_mutex_unlock(&comm->engine->lock);
    return status;
}

iso_status iso__comm_ialltoall(iso_comm *comm, const void *send, void *recv, size_t block_bytes,
                               const char *name, iso_request **out) {
    call c = {.kind = ALLTOALL, .send = send, .data = recv, .units = (int)(block_bytes / UNIT)};
    return start(comm, &c, block_bytes * (size_t)comm->size, name, out);
}

iso_status iso__comm_iallgather(iso_comm *comm, void *data, size_t block_bytes, const char *name,
                                iso_request **out) {
    call c = {.kind = ALLGATHER, .data = data, .units = (int)(block_bytes / UNIT)};
    return start(comm, &c, block_bytes * (size_t)comm->size, name, out);
}

iso_status iso__comm_ibcast(iso_comm *comm, void *data, size_t bytes, int root, const char *name,
                            iso_request **out) {
    call c = {.kind = BCAST, .data = data, .units = (int)(bytes / UNIT), .root = root};
    return start(comm, &c, bytes, name, out);
}

iso_status iso__comm_iallreduce_max(iso_comm *comm, double *data, int count, const char *name,
                                    iso_request **out) {
    call c = {.kind = ALLREDUCE_MAX, .data = data, .units = count};
    return start(comm, &c, (size_t)count * sizeof(double), name, out);
}
