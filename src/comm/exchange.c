// SPDX-License-Identifier: MIT
// Non-blocking collectives besides the all-reduce. Long ones travel in chunks, as all-reduces do.
// If they were posted as a whole, the acknowledgements of one direction would wait behind the data
// of the other.
#include "comm/comm_calls.h"
#include "comm/comm_state.h"
#include "comm/request.h"

#include <string.h>

#define UNIT       ((size_t)64) // bytes of an element
#define BLOCK_UNIT ((size_t)4)  // the same in blocks

// A type for `count` elements of every rank's block.
static int make_type(const iso_request *request, int count, MPI_Datatype *out) {
    MPI_Datatype piece;
    int rc = MPI_Type_contiguous(count * (int)request->unit, MPI_BYTE, &piece);
    if (rc != MPI_SUCCESS) return rc;
    rc = MPI_Type_create_resized(piece, 0, (MPI_Aint)request->block, out);
    MPI_Type_free(&piece);
    return rc == MPI_SUCCESS ? MPI_Type_commit(out) : rc;
}

static int post_alltoall(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out) {
    MPI_Datatype type;
    int rc = make_type(request, count, &type);
    if (rc != MPI_SUCCESS) return rc;
    rc = MPI_Ialltoall(request->send, 1, type, request->next, 1, type, mpi, out);
    MPI_Type_free(&type); // MPI keeps it until the operation is complete
    return rc;
}

int iso__mpi_scatter(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out) {
    MPI_Datatype type;
    int rc = make_type(request, count, &type);
    if (rc != MPI_SUCCESS) return rc;
    rc = MPI_Ialltoall(request->send, 1, type, request->next, count * (int)request->unit, MPI_BYTE,
                       mpi, out);
    MPI_Type_free(&type);
    return rc;
}

int iso__mpi_gather(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out) {
    MPI_Datatype type;
    int rc = make_type(request, count, &type);
    if (rc != MPI_SUCCESS) return rc;
    rc = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, request->next, 1, type, mpi, out);
    MPI_Type_free(&type);
    return rc;
}

void iso__sum_blocks(void *out, const void *blocks, size_t bytes, int count, iso_dtype dtype) {
    size_t n = bytes / iso_dtype_size(dtype);
    if (out != blocks) memcpy(out, blocks, bytes);
    for (int b = 1; b < count; b++) {
        const void *block = (const char *)blocks + (size_t)b * bytes;
        float *f = out;
        double *d = out;
        for (size_t i = 0; dtype == ISO_F32 && i < n; i++) f[i] += ((const float *)block)[i];
        for (size_t i = 0; dtype == ISO_F64 && i < n; i++) d[i] += ((const double *)block)[i];
    }
}

static int post_bcast(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out) {
    return MPI_Ibcast(request->next, count * (int)UNIT, MPI_BYTE, request->root, mpi, out);
}

// A piece of a message to or from rank request->root. Every other piece of a long message is sent
// in synchronous mode: it completes, and others follow, once the receiver takes it. So at most 15
// pieces (900 KiB) wait in the memory of a receiver that is late. And a rank that sends and
// receives never has much more than this in its connection, where what confirms the other rank's
// pieces has to wait behind it.
static int post_message(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out) {
    int bytes = count * (int)UNIT, with = request->root, tag = request->tag;
    size_t posted = (request->bytes - request->left * request->unit) / ISO_PIECE_BYTES;
    bool is_long = request->bytes > (size_t)2 * ISO_PIECES_UNDER_WAY * ISO_PIECE_BYTES;
    if (!request->send) return MPI_Irecv(request->next, bytes, MPI_BYTE, with, tag, mpi, out);
    return (is_long && posted % 2 == 0 ? MPI_Issend : MPI_Isend)(request->send, bytes, MPI_BYTE,
                                                                 with, tag, mpi, out);
}

static int post_largest(iso_request *request, int count, MPI_Comm mpi, MPI_Request *out) {
    return MPI_Iallreduce(MPI_IN_PLACE, request->next, count, MPI_DOUBLE, MPI_MAX, mpi, out);
}

static iso_status start_locked(iso_comm *comm, const iso_request *what, size_t bytes,
                               const char *name, iso_request **out) {
    iso_request *request;
    iso__stream *stream = what->tag > 0 ? &comm->messages : &comm->sums;
    ISO_TRY(iso__request_begin(comm, stream, name, bytes, &request));
    request->call = what->call;
    request->next = what->next;
    request->send = what->send;
    request->left = what->left;
    request->unit = what->unit;
    request->block = what->block;
    request->root = what->root;
    request->tag = what->tag;
    request->whole = what->whole;
    request->message = what->message;
    iso_status status = ISO_OK;
    if (request->left == 0)
        iso__request_complete(request);
    else
        status = iso__collective_mpi.post(request);
    if (status < 0) iso__request_release(comm->engine, &request);
    ISO_TRY(status);
    iso__engine_kick(comm->engine);
    *out = request;
    return ISO_OK;
}

static iso_status start_exchange(iso_comm *comm, const iso_request *what, size_t bytes,
                                 const char *name, iso_request **out) {
    ISO_CHECK(!comm->engine->finalized, ISO_ERR_STATE,
              "an exchange was started after MPI_Finalize");
    pthread_mutex_lock(&comm->engine->lock);
    iso_status status = start_locked(comm, what, bytes, name, out);
    pthread_mutex_unlock(&comm->engine->lock);
    return status;
}

iso_status iso__comm_ialltoall(iso_comm *comm, const void *send, void *recv, size_t block_bytes,
                               const char *name, iso_request **out) {
    iso_request what = {.call = post_alltoall,
                        .send = send,
                        .next = recv,
                        .left = block_bytes / BLOCK_UNIT,
                        .unit = BLOCK_UNIT,
                        .block = block_bytes};
    return start_exchange(comm, &what, block_bytes * (size_t)comm->size, name, out);
}

iso_status iso__comm_iallgather(iso_comm *comm, void *data, size_t block_bytes, const char *name,
                                iso_request **out) {
    iso_request what = {.call = iso__mpi_gather,
                        .next = data,
                        .left = block_bytes / BLOCK_UNIT,
                        .unit = BLOCK_UNIT,
                        .block = block_bytes};
    return start_exchange(comm, &what, block_bytes * (size_t)comm->size, name, out);
}

iso_status iso__comm_ibcast(iso_comm *comm, void *data, size_t bytes, int root, const char *name,
                            iso_request **out) {
    iso_request what = {
        .call = post_bcast, .next = data, .left = bytes / UNIT, .unit = UNIT, .root = root};
    return start_exchange(comm, &what, bytes, name, out);
}

iso_status iso__comm_imessages(iso_comm *comm, const iso__messages *m, const char *name,
                               iso_request **sent, iso_request **received) {
    iso_request what = {.call = post_message,
                        .next = m->recv,
                        .left = m->bytes / UNIT,
                        .unit = UNIT,
                        .root = m->from,
                        .message = true};
    *sent = *received = NULL;
    ISO_TRY(start_exchange(comm, &what, m->bytes, name, received));
    what.send = m->send;
    what.root = m->to;
    ISO_TRY(start_exchange(comm, &what, m->bytes, name, sent));
    return ISO_OK;
}

iso_status iso__comm_imessage(iso_comm *comm, const iso__message *m, const char *name,
                              iso_request **out) {
    iso_request what = {.call = post_message,
                        .send = m->send,
                        .next = m->send ? (char *)(uintptr_t)m->send : m->recv,
                        .left = m->bytes / UNIT,
                        .unit = UNIT,
                        .root = m->with,
                        .tag = m->tag,
                        .message = true};
    return start_exchange(comm, &what, m->bytes, name, out);
}

iso_status iso__comm_iallreduce_max(iso_comm *comm, double *data, int count, const char *name,
                                    iso_request **out) {
    iso_request what = {.call = post_largest,
                        .next = (char *)data,
                        .left = (size_t)count,
                        .unit = sizeof(double),
                        .whole = true};
    return start_exchange(comm, &what, (size_t)count * sizeof(double), name, out);
}
