// SPDX-License-Identifier: MIT
// Long broadcasts by scatter and all-gather: 2 log2 P rounds, and twice the bytes through each
// rank. From 64 KB on, Open MPI's own broadcast uses a chain, which needs P - 1 hops to reach the
// last rank.
#include "comm/comm_state.h"

typedef struct tree {
    iso_comm *comm;
    char *data;
    size_t bytes;
    int root, place, power; // place: the rank counted from root; power: the largest power of two
} tree;

static size_t begin_of(const tree *t, int block) {
    return (size_t)((unsigned __int128)t->bytes * (unsigned)block / (unsigned)t->power);
}

static iso_status start_block(const tree *t, bool sends, int first, int end, int place,
                              MPI_Request *request) {
    char *at = t->data + begin_of(t, first);
    int peer = (place + t->root) % t->comm->size;
    int bytes = (int)(begin_of(t, end) - begin_of(t, first));
    int rc = sends ? MPI_Isend(at, bytes, MPI_BYTE, peer, 0, t->comm->mpi, request)
                   : MPI_Irecv(at, bytes, MPI_BYTE, peer, 0, t->comm->mpi, request);
    ISO_TRY_MPI_CODE(rc, "a broadcast");
    return ISO_OK;
}

static iso_status await_block(const tree *t, MPI_Request *request) {
    return iso__comm_await_part(t->comm, request, "a broadcast");
}

// Blocks [first, end) to or from one rank.
static iso_status move_blocks(const tree *t, bool sends, int first, int end, int place) {
    MPI_Request request;
    iso_status status = start_block(t, sends, first, end, place, &request);
    if (status < 0) iso__comm_lose(t->comm);
    ISO_TRY(status);
    return await_block(t, &request);
}

// In each round, a rank sends the upper half of its blocks to the rank in the middle of its range.
// At the end each rank has one block.
static iso_status scatter_blocks(const tree *t) {
    for (int half = t->power / 2; half > 0; half /= 2) {
        int within = t->place % (2 * half);
        if (within == 0)
            ISO_TRY(move_blocks(t, true, t->place + half, t->place + 2 * half, t->place + half));
        if (within == half)
            ISO_TRY(move_blocks(t, false, t->place, t->place + half, t->place - half));
    }
    return ISO_OK;
}

// Neighbours exchange what they have, then ranks at twice the distance.
static iso_status gather_blocks(const tree *t) {
    for (int have = 1; have < t->power; have *= 2) {
        int own = t->place / have * have, other = own ^ have, peer = t->place ^ have;
        MPI_Request in, out;
        iso_status status = start_block(t, false, other, other + have, peer, &in);
        if (status == ISO_OK) status = start_block(t, true, own, own + have, peer, &out);
        if (status < 0) iso__comm_lose(t->comm);
        ISO_TRY(status);
        ISO_TRY(await_block(t, &in));
        ISO_TRY(await_block(t, &out));
    }
    return ISO_OK;
}

iso_status iso__bcast_long(iso_comm *comm, void *data, size_t bytes, int root) {
    tree t = {.comm = comm, .data = data, .bytes = bytes, .root = root, .power = 1};
    t.place = (comm->rank - root + comm->size) % comm->size;
    while (2 * t.power <= comm->size) t.power *= 2;
    iso__comm_begin(comm);
    if (t.place >= t.power) return move_blocks(&t, false, 0, t.power, t.place - t.power);
    ISO_TRY(scatter_blocks(&t));
    ISO_TRY(gather_blocks(&t));
    if (t.place + t.power < comm->size)
        ISO_TRY(move_blocks(&t, true, 0, t.power, t.place + t.power));
    return ISO_OK;
}
