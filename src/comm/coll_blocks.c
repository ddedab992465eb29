// SPDX-License-Identifier: MIT
// Scatters and gathers in two levels: blocks.h.
#include "comm/blocks.h"

#include "comm/channel_impl.h"
#include "comm/traffic.h"

#include <string.h>

enum { TURNS = 2 * ISO_STAGES_TURNS / ISO_STAGES_OF_BLOCKS }; // of tags

static int rank_at(const iso__blocks *b, int node, int place) {
    return b->rank_at[node * b->places + place];
}

// ---- Parts ----------------------------------------------------------------------------------------

// The part that belongs to the rank at a place of a node.
static char *part_at(const iso__block_exchange *e, int node, int place) {
    bool by_place = e->operation == ISO__NODE_SCATTER;
    int block = by_place ? place * e->pool->nodes + node : rank_at(e->pool, node, place);
    return e->data + (size_t)block * e->stride;
}

static char *own_part(const iso__block_exchange *e) {
    return part_at(e, e->pool->node, e->pool->place);
}

// sum_for: this node's sum for another node. sum_from: where the sum of another node is received.
// If this rank is alone on its node, its own parts are the node's sums. Otherwise the sums are
// adjacent in e->memory.
static bool is_alone(const iso__block_exchange *e) { return e->pool->places == 1; }
static char *sum_for(const iso__block_exchange *e, int node) {
    return is_alone(e) ? part_at(e, node, 0) : e->memory + (size_t)node * e->bytes;
}
static char *sum_from(const iso__block_exchange *e, int node) {
    return e->memory + (size_t)(is_alone(e) ? node : e->pool->nodes + node) * e->bytes;
}
// Where the parts of a rank of this node are received. Those of place 0 become the node's sums.
static char *parts_from(const iso__block_exchange *e, int place) {
    return e->memory + (size_t)(e->pool->nodes * place) * e->bytes;
}

// Copies this rank's own parts to the place where the node's parts are summed.
static void copy_parts(const iso__block_exchange *e) {
    const iso__blocks *b = e->pool;
    char *to = parts_from(e, b->place);
    for (int n = 0; n < b->nodes; n++)
        memcpy(to + (size_t)n * e->bytes, part_at(e, n, b->place), e->bytes);
}

// ---- Messages -------------------------------------------------------------------------------------

static int tag_of(const iso__block_exchange *e) { return e->tag + e->step; }

static int send_part(iso__block_exchange *e, const char *part, int to) {
    return iso__stages_send(&e->base, part, (int)e->bytes, MPI_BYTE, to, tag_of(e));
}

static int receive_part(iso__block_exchange *e, char *part, int from) {
    return iso__stages_receive(&e->base, part, (int)e->bytes, MPI_BYTE, from, tag_of(e));
}

// Makes a type that covers, from e->data on, the parts of the ranks at this place of all nodes.
static int make_type(const iso__block_exchange *e, int place, MPI_Datatype *out) {
    const iso__blocks *b = e->pool;
    for (int n = 0; n < b->nodes; n++) b->at[n] = (MPI_Aint)(part_at(e, n, place) - e->data);
    int rc = MPI_Type_create_hindexed_block(b->nodes, (int)e->bytes, b->at, MPI_BYTE, out);
    return rc == MPI_SUCCESS ? MPI_Type_commit(out) : rc;
}

static int send_parts(iso__block_exchange *e, int place, int to) {
    MPI_Datatype type;
    int rc = make_type(e, place, &type);
    if (rc != MPI_SUCCESS) return rc;
    rc = iso__stages_send(&e->base, e->data, 1, type, to, tag_of(e));
    MPI_Type_free(&type); // MPI keeps it until the message is complete
    return rc;
}

static int receive_parts(iso__block_exchange *e, int place, int from) {
    MPI_Datatype type;
    int rc = make_type(e, place, &type);
    if (rc != MPI_SUCCESS) return rc;
    rc = iso__stages_receive(&e->base, e->data, 1, type, from, tag_of(e));
    MPI_Type_free(&type);
    return rc;
}

// ---- Steps ----------------------------------------------------------------------------------------

typedef enum step { END, ADD_IN_NODE, ADD_ACROSS, GATHER_ACROSS, GATHER_IN_NODE } step;
static const step steps[][ISO_STAGES_OF_BLOCKS + 1] = {
    [ISO__SCATTER] = {ADD_IN_NODE, ADD_ACROSS, END},
    [ISO__NODE_SCATTER] = {ADD_IN_NODE, ADD_ACROSS, GATHER_ACROSS, END},
    [ISO__GATHER] = {GATHER_ACROSS, GATHER_IN_NODE, END}};

static step step_of(const iso__block_exchange *e) { return steps[e->operation][e->step]; }

// Sends to the k-th rank after this one in the node, and receives from the k-th rank before it.
static int exchange_in_node(iso__block_exchange *e, int k) {
    const iso__blocks *b = e->pool;
    int to = (b->place + k) % b->places, from = (b->place - k + b->places) % b->places;
    int to_rank = rank_at(b, b->node, to), from_rank = rank_at(b, b->node, from), rc;
    if (step_of(e) == GATHER_IN_NODE) {
        rc = receive_parts(e, from, from_rank);
        return rc == MPI_SUCCESS ? send_parts(e, b->place, to_rank) : rc;
    }
    rc = iso__stages_receive(&e->base, parts_from(e, from), b->nodes * (int)e->bytes, MPI_BYTE,
                             from_rank, tag_of(e));
    return rc == MPI_SUCCESS ? send_parts(e, to, to_rank) : rc;
}

// Sends to the rank at this place of the k-th node after this one, and receives from the rank at
// this place of the k-th node before it.
static int exchange_across(iso__block_exchange *e, int k) {
    const iso__blocks *b = e->pool;
    int to = (b->node + k) % b->nodes, from = (b->node - k + b->nodes) % b->nodes;
    int to_rank = rank_at(b, to, b->place), from_rank = rank_at(b, from, b->place), rc;
    if (step_of(e) == GATHER_ACROSS) {
        rc = receive_part(e, part_at(e, from, b->place), from_rank);
        return rc == MPI_SUCCESS ? send_part(e, own_part(e), to_rank) : rc;
    }
    rc = receive_part(e, sum_from(e, from), from_rank);
    return rc == MPI_SUCCESS ? send_part(e, sum_for(e, to), to_rank) : rc;
}

static int begin_step(iso__block_exchange *e) {
    const iso__blocks *b = e->pool;
    bool in_node = step_of(e) == ADD_IN_NODE || step_of(e) == GATHER_IN_NODE;
    int peers = (in_node ? b->places : b->nodes) - 1, rc = MPI_SUCCESS;
    if (iso__engine_reserve(b->engine, 2 * peers) < 0) return MPI_ERR_NO_MEM;
    for (int k = 1; rc == MPI_SUCCESS && k <= peers; k++)
        rc = in_node ? exchange_in_node(e, k) : exchange_across(e, k);
    return rc;
}

static int sum_across(const iso__block_exchange *e) {
    const iso__blocks *b = e->pool;
    int count = (int)(e->bytes / iso_dtype_size(e->dtype));
    for (int n = 0; n < b->nodes; n++) b->block[n] = n == b->node ? sum_for(e, n) : sum_from(e, n);
    int rc = iso__sum_in_order(b->engine, b->block, b->nodes, count, e->dtype);
    if (b->block[0] != own_part(e)) memcpy(own_part(e), b->block[0], e->bytes);
    return rc;
}

static int end_step(const iso__block_exchange *e) {
    const iso__blocks *b = e->pool;
    if (step_of(e) == ADD_IN_NODE && !is_alone(e))
        iso__sum_blocks(e->memory, e->memory, (size_t)b->nodes * e->bytes, b->places, e->dtype);
    return step_of(e) == ADD_ACROSS ? sum_across(e) : MPI_SUCCESS;
}

static void advance_exchange(iso__stages *stages) {
    iso__block_exchange *e = iso_container_of(stages, iso__block_exchange, base);
    int rc = stages->error;
    while (rc == MPI_SUCCESS && stages->messages == 0 && step_of(e) != END) {
        rc = end_step(e);
        e->step++;
        if (rc == MPI_SUCCESS && step_of(e) != END) rc = begin_step(e);
    }
    if (rc != MPI_SUCCESS || stages->messages == 0) iso__stages_end(stages, rc);
}

// ---- Post -----------------------------------------------------------------------------------------

static iso__block_exchange *free_exchange(const iso__blocks *b) {
    for (int i = 0; i < b->count; i++)
        if (!b->exchange[i].base.taken) return &b->exchange[i];
    return NULL;
}

bool iso__blocks_have_room(const iso__blocks *b) { return !b || free_exchange(b); }

bool iso__blocks_are_in_use(const iso__blocks *b) {
    for (int i = 0; b && i < b->count; i++)
        if (b->exchange[i].base.taken) return true;
    return false;
}

static void fill_exchange(iso__blocks *b, iso__block_exchange *e, const iso_request *request) {
    bool scatters = request->operation != ISO__GATHER;
    int turn = b->turn;
    b->turn = (turn + 1) % TURNS;
    *e = (iso__block_exchange){.pool = b,
                               .operation = request->operation,
                               .data = request->next,
                               .bytes = request->left * request->unit,
                               .stride = request->block,
                               .dtype = request->dtype,
                               .tag = ISO_STAGES_BLOCKS + ISO_STAGES_OF_BLOCKS * turn};
    if (!scatters) return;
    e->data = (char *)(uintptr_t)request->send;
    e->memory = request->next;
    if (!is_alone(e)) copy_parts(e);
}

static iso_status post_blocks(iso_request *request) {
    iso__blocks *b = request->channel->blocks;
    iso__block_exchange *e = free_exchange(b);
    fill_exchange(b, e, request);
    e->base = (iso__stages){.engine = b->engine,
                            .request = request,
                            .mpi = request->mpi,
                            .taken = true,
                            .advance = advance_exchange};
    int rc = iso__stages_begun(&e->base, begin_step(e));
    ISO_TRY_MPI_CODE(rc, "an exchange of blocks");
    request->left = 0;
    return ISO_OK;
}

const iso__collective_ops iso__collective_blocks = {.post = post_blocks,
                                                    .progress = iso__stages_progress};

// ---- Life -----------------------------------------------------------------------------------------

static bool is_first(const iso_comm *comm, int rank) {
    for (int r = 0; r < rank; r++)
        if (comm->node_of[r] == comm->node_of[rank]) return false;
    return true;
}

int iso__blocks_nodes(const iso_comm *comm) {
    bool equal;
    int nodes = iso__comm_nodes(comm, &equal);
    return equal && nodes > 1 ? nodes : 0;
}

// Nodes are in the order of their first ranks, and places in that of ranks.
static void seat_ranks(iso__blocks *b, const iso_comm *comm) {
    int node = 0;
    for (int first = 0; first < comm->size; first++) {
        if (!is_first(comm, first)) continue;
        int place = 0;
        for (int r = first; r < comm->size; r++) {
            if (comm->node_of[r] != comm->node_of[first]) continue;
            if (r == comm->rank) b->node = node, b->place = place;
            b->rank_at[node * b->places + place++] = r;
        }
        node++;
    }
}

static iso_status promise_messages(iso__blocks *b) {
    int most = b->places > b->nodes ? b->places : b->nodes;
    b->promised = 2 * (most - 1) * b->count;
    return iso__stages_promise(b->engine, b->promised);
}

static iso_status fill_blocks(iso__blocks *b, const iso_comm *comm) {
    ISO_TRY(iso__alloc((size_t)comm->size * sizeof(*b->rank_at), (void **)&b->rank_at));
    ISO_TRY(iso__alloc((size_t)b->nodes * sizeof(*b->at), (void **)&b->at));
    ISO_TRY(iso__alloc((size_t)b->nodes * sizeof(*b->block), (void **)&b->block));
    ISO_TRY(iso__alloc_zero((size_t)b->count * sizeof(*b->exchange), (void **)&b->exchange));
    seat_ranks(b, comm);
    return promise_messages(b);
}

iso_status iso__blocks_create(const iso_comm *comm, int count, iso__blocks **out) {
    iso__blocks *b;
    *out = NULL;
    ISO_TRY(iso__alloc_zero(sizeof(*b), (void **)&b));
    *b = (iso__blocks){.engine = comm->engine, .nodes = iso__blocks_nodes(comm), .count = count};
    b->places = comm->size / b->nodes;
    iso_status status = fill_blocks(b, comm);
    if (status < 0) iso__blocks_destroy(&b);
    ISO_TRY(status);
    *out = b;
    return ISO_OK;
}

void iso__blocks_destroy(iso__blocks **pointer) {
    iso__blocks *b = *pointer;
    *pointer = NULL;
    if (!b) return;
    iso__stages_take_back(b->engine, b->promised);
    iso__free(b->exchange);
    iso__free(b->rank_at);
    iso__free(b->at);
    iso__free(b->block);
    iso__free(b);
}
