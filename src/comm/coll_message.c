// SPDX-License-Identifier: MIT
// Messages between two ranks. A long message travels in pieces, a few at a time. Open MPI's TCP
// transport asks the receiver before it sends 64 KB or more, and the answer waits behind the data
// of the other direction.
//
// MPI matches messages between two ranks in the order in which they are posted. So the pieces of a
// message are posted in order, and a message waits until those of all earlier ones with the same
// rank, tag and direction have been posted. Both ranks cut alike, so piece k of one is piece k of
// the other.
#include "comm/comm_state.h"
#include "comm/request.h"

static bool same_stream(const iso_request *a, const iso_request *b) {
    return a->root == b->root && a->tag == b->tag && !a->send == !b->send;
}

// The first message of the request's stream that has pieces to post; NULL: there is none.
static iso_request *first_of_stream(const iso_request *request) {
    iso_request *first = request->comm->talks_first;
    while (first && !same_stream(first, request)) first = first->next_in_line;
    return first;
}

static void list_talk(iso_request *request) {
    iso_comm *comm = request->comm;
    request->next_in_line = NULL;
    *(comm->talks_first ? &comm->talks_last->next_in_line : &comm->talks_first) = request;
    comm->talks_last = request;
}

static void unlist_talk(iso_request *request) {
    iso_comm *comm = request->comm;
    iso_request *before = NULL;
    for (iso_request *r = comm->talks_first; r != request; r = r->next_in_line) before = r;
    *(before ? &before->next_in_line : &comm->talks_first) = request->next_in_line;
    if (comm->talks_last == request) comm->talks_last = before;
}

static int post_piece(iso_request *request, int slot) {
    return iso__request_post_part(request, ISO_PIECE_BYTES / request->unit, request->mpi, slot);
}

iso_status iso__message_post(iso_request *request) {
    iso__engine *engine = request->engine;
    ISO_CHECK(!request->comm->talks_failed, ISO_ERR_MPI,
              "\"%s\" was not sent, because an earlier message failed", request->name);
    ISO_TRY(iso__engine_reserve(engine, ISO_PIECES_UNDER_WAY));
    bool waits = first_of_stream(request) != NULL;
    for (int i = 0; !waits && request->left > 0 && i < ISO_PIECES_UNDER_WAY; i++) {
        int rc = post_piece(request, engine->in_flight);
        request->comm->talks_failed = rc != MPI_SUCCESS;
        if (rc != MPI_SUCCESS && request->under_way > 0) {
            request->mpi_error = rc;
            request->left = 0;
            break;
        }
        ISO_TRY_MPI_CODE(rc, request->send ? "MPI_Isend" : "MPI_Irecv");
        engine->in_flight++;
    }
    if (request->left > 0) list_talk(request);
    return ISO_OK;
}

// Fails all messages of the stream, because MPI would take a later piece for the missing one.
static void fail_stream(iso_request *first, int rc) {
    first->comm->talks_failed = true;
    for (iso_request *r = first; r; r = first_of_stream(first)) {
        unlist_talk(r);
        r->mpi_error = rc;
        r->left = 0;
        if (r->under_way == 0) iso__request_complete(r);
    }
}

void iso__message_continue(const iso_request *request, int slot) {
    iso_request *next = first_of_stream(request);
    if (!next) return;
    int rc = post_piece(next, slot);
    if (rc != MPI_SUCCESS)
        fail_stream(next, rc);
    else if (next->left == 0)
        unlist_talk(next);
}
