// SPDX-License-Identifier: MIT
// Sums in two levels: creates and frees what a channel needs for them.
#include "comm/hierarchy.h"

#include "comm/comm_calls.h"
#include "comm/comm_state.h"

// Takes the engine's lock, because its threads walk the list.
static void list_hierarchy(iso__hierarchy *h, bool add) {
    iso__engine *engine = h->world->engine;
    pthread_mutex_lock(&engine->lock);
    iso__hierarchy **at = &engine->hierarchies;
    if (add) h->older = *at;
    while (!add && *at && *at != h) at = &(*at)->older;
    if (*at || add) *at = add ? h : h->older;
    pthread_mutex_unlock(&engine->lock);
}

// Counts the bytes that an exchange moves: the data of a node's other ranks go to one rank and
// back, and an all-reduce goes over the nodes.
static iso_status measure_cost(iso__hierarchy *h) {
    int64_t *node_of = NULL;
    ISO_TRY(iso__alloc((size_t)h->nodes * sizeof(*node_of), (void **)&node_of));
    for (int n = 0; n < h->nodes; n++) node_of[n] = n;
    const iso__engine *engine = h->world->engine;
    int choice = iso__pairwise_choice(engine, h->nodes);
    h->cost = iso__sum_cost_of(choice ? choice : engine->algorithm_number, node_of, h->nodes);
    h->cost.all += 2.0 * (h->world->size - h->nodes);
    iso__free(node_of);
    return ISO_OK;
}

// The number of pieces under way with pairwise exchange. If nodes sum directly, the buffers of all
// pieces take 1 MB, or more with more than 15 nodes. By halves they take 2 MB: a piece takes many
// rounds, so more pieces must be under way.
enum { PIECES_AT_ONCE = 8, PIECES_BY_HALVES = 32 };

static iso_status make_pairwise(iso__hierarchy *h, const iso_comm *across) {
    iso__engine *engine = h->world->engine;
    size_t bytes[PIECES_BY_HALVES];
    int choice = across ? iso__pairwise_choice(engine, across->size) : 0;
    if (choice == 0) return ISO_OK;
    int count = choice == ISO_SUM_HALVING ? PIECES_BY_HALVES : PIECES_AT_ONCE;
    for (int i = 0; i < count; i++) bytes[i] = h->piece * sizeof(float);
    iso__pairwise_config config = {
        .rank = across->rank, .size = across->size, .count = count, .bytes = bytes};
    return iso__pairwise_create(engine, &config, &h->pairwise);
}

static iso_status make_record(iso_comm *world, const iso__channel_nodes *nodes,
                              iso__hierarchy **out) {
    ISO_TRY(iso__alloc_zero(sizeof(**out), (void **)out));
    iso__hierarchy *h = *out;
    *h = (iso__hierarchy){.world = world,
                          .node = iso_comm_retain(nodes->node),
                          .shared = nodes->node->shared,
                          .across = MPI_COMM_NULL,
                          .nodes = nodes->nodes,
                          .slices = nodes->slices};
    size_t least = iso__pairwise_least_bytes(world->engine, h->nodes) / sizeof(float);
    h->piece = least > ISO_PIECE ? least : ISO_PIECE;
    h->queue = iso__comm_take_queue(h->node);
    ISO_TRY(make_pairwise(h, nodes->across));
    return measure_cost(h);
}

static iso_status copy_across(iso__hierarchy *h, const iso__channel_nodes *nodes) {
    if (!nodes->across) return ISO_OK;
    return iso__comm_copy(nodes->across, nodes->across->mpi,
                          &h->across); // counts as a collective of nodes->across only
}

iso_status iso__hierarchy_create(iso_comm *world, const iso__channel_nodes *nodes,
                                 iso__hierarchy **out) {
    iso__hierarchy *h = NULL;
    iso_status status;
    int64_t room;
    *out = NULL;
    ISO_TRY_GOTO(iso_comm_agree(world, make_record(world, nodes, &h)));
    room = h->queue > 0;
    ISO_TRY_GOTO(iso_comm_allreduce_i64(world, &room, 1, ISO_MIN));
    if (room) {
        ISO_TRY_GOTO(iso__comm_meet(world, "the barrier before MPI_Comm_create_group"));
        ISO_TRY_GOTO(iso_comm_agree(world, copy_across(h, nodes)));
        list_hierarchy(h, true);
        *out = h;
        return ISO_OK;
    }
    status = ISO_OK;
fail:
    iso__hierarchy_destroy(&h);
    return status;
}

void iso__hierarchy_destroy(iso__hierarchy **pointer) {
    iso__hierarchy *h = *pointer;
    int finalized = 0;
    *pointer = NULL;
    if (!h) return;
    list_hierarchy(h, false);
    iso__comm_give_queue(h->node, h->queue);
    MPI_Finalized(&finalized);
    if (!finalized && h->across != MPI_COMM_NULL) MPI_Comm_free(&h->across);
    iso__pairwise_destroy(&h->pairwise);
    iso_comm_destroy(&h->node);
    iso__free(h);
}
