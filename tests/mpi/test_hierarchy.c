// SPDX-License-Identifier: MIT
// Sums in two levels: in the memory of each node, and by messages between nodes.
#include "comm/comm_state.h"
#include "comm/traffic.h"
#include "common/channel_fixture.h"
#include "common/mpi_fixture.h"
#include "common/shared_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/topology.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUITE(ranks)                                                                               \
    TestSuite(np##ranks##_hierarchy, .init = test_mpi_setup, .fini = test_mpi_teardown,            \
              .timeout = 60)
SUITE(3);
SUITE(4);
SUITE(5);
SUITE(6);
// Three nodes exchange by halves, as more than 128 do.
static void setup_halving(void) {
    setenv("ISO_IALLREDUCE", "6", 1);
    test_mpi_setup();
}
TestSuite(np6_hierarchy_halving, .init = setup_halving, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_hierarchy_life, .init = test_mpi_setup_bare, .timeout = 60);

// ---- In MPI's place -------------------------------------------------------------------------------

static bool watching, failing;
static int64_t sent; // bytes that this rank gave to all-reduces over the nodes, or sent itself
static int nodes, calls;

int MPI_Iallreduce(const void *send, void *data, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request) {
    int size, ranks;
    MPI_Comm_size(comm, &ranks);
    if (watching && ranks == nodes) calls++;
    if (watching && failing && ranks == nodes) return MPI_ERR_INTERN;
    MPI_Type_size(type, &size);
    if (watching && ranks == nodes) sent += (int64_t)count * size;
    return PMPI_Iallreduce(send, data, count, type, op, comm, request);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    int size, ranks;
    MPI_Comm_size(comm, &ranks);
    MPI_Type_size(type, &size);
    if (watching && ranks == nodes) sent += (int64_t)count * size;
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

// ---- Channels over nodes --------------------------------------------------------------------------

typedef struct rig {
    iso_topology *nodes;
    float *memory;
    size_t count;
    iso__channel *channel;
} rig;

static void find_nodes(const char *ranks_per_node, iso_topology **out) {
    setenv("ISO_RANKS_PER_NODE", ranks_per_node, 1);
    iso_assert_ok(iso_topology_create(test_comm, NULL, out));
    nodes = (*out)->nodes;
}

static iso__channel_nodes nodes_of(const iso_topology *t) {
    return (iso__channel_nodes){.node = t->node,
                                .across =
                                    t->local_rank < t->smallest ? t->leaders[t->local_rank] : NULL,
                                .nodes = t->nodes,
                                .slices = t->smallest};
}

// Memory that the ranks of each node share; of a rank that is alone, its own.
static float *share(const iso_topology *t, size_t count) {
    void *memory = NULL;
    iso_assert_ok(shared_alloc(t->node, count * sizeof(float), &memory));
    iso_assert_all(t->local_size == 1 || t->node->shared);
    return memory;
}

static void unshare(const iso_topology *t, float **memory) {
    void *at = *memory;
    shared_free(t->node, &at);
    *memory = NULL;
}

static void create_channel(rig *r, size_t chunk) {
    const iso__channel_item item = {
        .data = r->memory, .bytes = r->count * sizeof(float), .dtype = ISO_F32, .label = "x"};
    iso__channel_nodes of = nodes_of(r->nodes);
    iso_assert_ok(iso__channel_create(test_comm, &item, 1, chunk, 4 * chunk, &r->channel));
    iso_assert_ok(iso__channel_use_nodes(r->channel, &of));
}

static void create_rig(rig *r, const char *ranks_per_node, size_t count, size_t chunk) {
    *r = (rig){.count = count};
    find_nodes(ranks_per_node, &r->nodes);
    iso_assert_ok(iso__comm_locate(test_comm));
    r->memory = share(r->nodes, count);
    create_channel(r, chunk);
}

static void destroy_rig(rig *r) {
    iso_assert_all(iso__channel_destroy(&r->channel));
    unshare(r->nodes, &r->memory);
    iso_topology_destroy(&r->nodes);
}

static iso_status sum(rig *r) {
    iso_status status = iso__channel_ready(r->channel, 0);
    return status == ISO_OK ? iso__channel_wait(r->channel, 0, NULL, NULL) : status;
}

// ---- Sums -----------------------------------------------------------------------------------------

// Items of several types and lengths in random order; those of f32 go in two levels.
static void random_plans(const char *ranks_per_node, int plans) {
    static iso__chunk chunk[CHANNEL_CHUNKS];
    channel_rig items;
    iso_topology *t;
    enum { ITEMS = 9, MOST = 3000 };
    void *own[ITEMS];
    find_nodes(ranks_per_node, &t);
    channel_rig_create(&items, test_comm, ITEMS, MOST, false);
    iso_assert_all(iso__channel_destroy(&items.channel));
    float *memory = share(t, MOST * ITEMS);
    for (int i = 0; i < ITEMS; i++) {
        own[i] = items.item[i].data;
        if (items.item[i].dtype == ISO_F32) items.item[i].data = memory + MOST * i;
    }
    iso__channel_nodes of = nodes_of(t);
    iso_assert_ok(iso__channel_create(test_comm, items.item, ITEMS, 400, 1000, &items.channel));
    iso_assert_ok(iso__channel_use_nodes(items.channel, &of));
    bool right = channel_random_round(&items);
    for (int p = 0; p < plans && right; p++) {
        const size_t windows[] = {1, 3000, 20000, SIZE_MAX};
        int count = channel_random_plan(&items, chunk);
        right = iso__channel_set_plan(items.channel, chunk, count, windows[p % 4]) == ISO_OK;
        for (int round = 0; round < 3 && right; round++) right = channel_random_round(&items);
    }
    iso_assert_all(right);
    iso_assert_all(iso__channel_destroy(&items.channel));
    for (int i = 0; i < ITEMS; i++) free(own[i]);
    unshare(t, &memory);
    iso_topology_destroy(&t);
}

Test(np4_hierarchy, sums_under_random_plans) { random_plans("2", 20); }
Test(np3_hierarchy, sums_under_random_plans_with_a_rank_alone) { random_plans("2", 20); }
Test(np4_hierarchy, sums_under_random_plans_with_a_rank_alone) { random_plans("3", 20); }

static float whole_value(int rank, size_t i) { return (float)((i * 7 + (size_t)rank * 3) % 101); }

static void fill_whole(rig *r) {
    for (size_t i = 0; i < r->count; i++) r->memory[i] = whole_value(test_rank, i);
}

static bool is_whole_sum(const rig *r) {
    for (size_t i = 0; i < r->count; i++) {
        float all = 0;
        for (int k = 0; k < test_size; k++) all += whole_value(k, i);
        if (r->memory[i] != all) return false;
    }
    return true;
}

// Also of fewer elements than ranks, nodes or a slice's unit, and of more than one piece of a
// slice. No more bytes leave a node than with one rank on each.
static void sums_of_every_length(const char *ranks_per_node) {
    static const size_t counts[] = {1, 2, 5, 15, 16, 17, 31, 33, 100, 1000, 61441, 300000};
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        rig r;
        create_rig(&r, ranks_per_node, counts[k], SIZE_MAX / 8);
        iso_status status = ISO_OK;
        bool right = true;
        sent = 0;
        watching = true;
        for (int round = 0; round < 5 && status == ISO_OK; round++) {
            fill_whole(&r);
            status = sum(&r);
            right = right && is_whole_sum(&r);
        }
        watching = false;
        iso_assert_ok(status);
        iso_assert_all(right);
        int64_t all = sent;
        iso_assert_ok(iso_comm_allreduce_i64(test_comm, &all, 1, ISO_SUM));
        int times = nodes == 3 ? 2 * (nodes - 1) : nodes; // three exchange in pairs
        iso_assert_all(all == (int64_t)(5 * times * (int)(counts[k] * sizeof(float))));
        destroy_rig(&r);
    }
}

Test(np3_hierarchy, sums_of_every_length) { sums_of_every_length("2"); }
Test(np4_hierarchy, sums_of_every_length) { sums_of_every_length("2"); }
Test(np5_hierarchy, sums_of_every_length) { sums_of_every_length("3"); }
Test(np6_hierarchy, sums_of_every_length_in_two_nodes) { sums_of_every_length("3"); }
Test(np6_hierarchy, sums_of_every_length_in_three_nodes) { sums_of_every_length("2"); }
Test(np6_hierarchy_halving, sums_of_every_length_in_three_nodes) { sums_of_every_length("2"); }

// So lazy steps have the bits of blocking ones, and all ranks the same.
static void bits_do_not_depend_on_chunks(const char *ranks_per_node) {
    static const size_t chunks[] = {SIZE_MAX / 8, 100000, 7000, 640};
    enum { COUNT = 40016 };
    static float first[COUNT];
    for (size_t k = 0; k < sizeof(chunks) / sizeof(chunks[0]); k++) {
        rig r;
        create_rig(&r, ranks_per_node, COUNT, chunks[k]);
        for (size_t i = 0; i < COUNT; i++) r.memory[i] = shared_value(test_rank, 3, i);
        iso_assert_ok(sum(&r));
        if (k == 0) memcpy(first, r.memory, sizeof(first));
        if (k == 0) MPI_Bcast(first, COUNT, MPI_FLOAT, 0, MPI_COMM_WORLD);
        iso_assert_all(memcmp(first, r.memory, sizeof(first)) == 0);
        destroy_rig(&r);
    }
}

Test(np4_hierarchy, bits_do_not_depend_on_chunks) { bits_do_not_depend_on_chunks("2"); }
Test(np5_hierarchy, bits_do_not_depend_on_chunks) { bits_do_not_depend_on_chunks("2"); }
Test(np6_hierarchy, bits_do_not_depend_on_chunks) { bits_do_not_depend_on_chunks("3"); }
Test(np6_hierarchy, bits_of_three_nodes_do_not_depend_on_chunks) {
    bits_do_not_depend_on_chunks("2");
}
Test(np6_hierarchy_halving, bits_of_three_nodes_do_not_depend_on_chunks) {
    bits_do_not_depend_on_chunks("2");
}

// More pieces of a slice than may be under way at once, of two channels.
static void many_pieces_in_three_nodes(void) {
    enum { COUNT = 2500007 };
    rig a, b;
    create_rig(&a, "2", COUNT, SIZE_MAX / 8);
    create_rig(&b, "2", COUNT / 3, 300000);
    for (int round = 0; round < 3; round++) {
        fill_whole(&a);
        fill_whole(&b);
        MPI_Barrier(MPI_COMM_WORLD);
        iso_status status = iso__channel_ready(a.channel, 0);
        if (status == ISO_OK) status = sum(&b);
        if (status == ISO_OK) status = iso__channel_wait(a.channel, 0, NULL, NULL);
        iso_assert_ok(status);
        iso_assert_all(is_whole_sum(&a) && is_whole_sum(&b));
    }
    destroy_rig(&b);
    destroy_rig(&a);
}
Test(np6_hierarchy, many_pieces_in_three_nodes) { many_pieces_in_three_nodes(); }
Test(np6_hierarchy_halving, many_pieces_in_three_nodes) { many_pieces_in_three_nodes(); }

// ---- Faults ---------------------------------------------------------------------------------------

// An error of MPI is told, and nothing more is posted.
Test(np4_hierarchy, an_error_of_mpi_is_told) {
    rig r;
    create_rig(&r, "2", 1000, SIZE_MAX / 8);
    fill_whole(&r);
    watching = failing = true;
    iso_status status = sum(&r);
    watching = failing = false;
    const char *said = iso_last_error()->message;
    iso_assert_all(status == ISO_ERR_MPI && strstr(said, "the exchange of \"x\" failed"));
    iso_assert_all(sum(&r) == ISO_ERR_MPI);
    destroy_rig(&r);
}

// A rank is late, the others time out and name it; then it comes.
Test(np4_hierarchy, a_late_rank_is_named_and_waited_for) {
    rig r;
    create_rig(&r, "2", 1000, SIZE_MAX / 8);
    fill_whole(&r);
    bool late = test_rank == 3;
    if (!late) test_comm->timeout_s = 0.3;
    iso_status first = late ? ISO_OK : sum(&r);
    const char *said = iso_last_error()->message;
    bool named = late || (first == ISO_ERR_TIMEOUT && strstr(said, "rank 3"));
    test_comm->timeout_s = 60;
    MPI_Barrier(MPI_COMM_WORLD);
    iso_assert_all(named);
    iso_assert_ok(late ? sum(&r) : iso__channel_wait(r.channel, 0, NULL, NULL));
    iso_assert_all(is_whole_sum(&r));
    destroy_rig(&r);
}

// A queue that a channel has left is taken by another, in two levels or in the memory of a node.
Test(np4_hierarchy, a_queue_is_used_again) {
    rig r;
    iso__channel *inside = NULL;
    create_rig(&r, "2", 300, 400);
    for (int turn = 0; turn < 3; turn++) {
        for (int round = 0; round < 3; round++) {
            fill_whole(&r);
            if (test_rank == 3) usleep(20000);
            iso_assert_ok(sum(&r));
            iso_assert_all(is_whole_sum(&r));
        }
        iso_assert_all(iso__channel_destroy(&r.channel));
        const iso__channel_item item = {
            .data = r.memory, .bytes = 1200, .dtype = ISO_F32, .label = "y"};
        iso_assert_ok(iso__channel_create(r.nodes->node, &item, 1, 400, 1000, &inside));
        for (int round = 0; round < 2; round++) {
            for (size_t i = 0; i < 300; i++) r.memory[i] = whole_value(test_rank, i);
            if (test_rank == 2) usleep(20000);
            iso_status status = iso__channel_ready(inside, 0);
            if (status == ISO_OK) status = iso__channel_wait(inside, 0, NULL, NULL);
            iso_assert_ok(status);
            int first = test_rank / 2 * 2;
            iso_assert_all(r.memory[7] == whole_value(first, 7) + whole_value(first + 1, 7));
        }
        iso_assert_all(iso__channel_destroy(&inside));
        create_channel(&r, 400);
    }
    destroy_rig(&r);
}

// What a rank could not send pairs with nothing: later slices do not leave in its place. Both ranks
// of a slice fail once, so that no exchange of MPI is left at the end.
Test(np4_hierarchy_life, after_an_error_nothing_else_leaves) {
    rig r;
    enum { HALF = 500 };
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &test_comm));
    create_rig(&r, "2", 2 * HALF, HALF * sizeof(float));
    fill_whole(&r);
    bool fails = test_rank % 2 == 0;
    watching = true;
    failing = fails;
    test_comm->timeout_s = 1;
    iso_status status = sum(&r);
    watching = false;
    iso_assert_all(status == (fails ? ISO_ERR_MPI : ISO_ERR_TIMEOUT));
    iso_assert_all(fails ? calls == 1 : calls > 1);
    MPI_Finalize(); // what has failed stays
}

// With more channels than the memory has queues, the last ones send messages between all ranks.
Test(np4_hierarchy, more_channels_than_queues) {
    enum { CHANNELS = ISO_QUEUES + 1 };
    rig r, more[CHANNELS];
    create_rig(&r, "2", 300, 400);
    for (int i = 0; i < CHANNELS; i++) {
        more[i] = r;
        create_channel(&more[i], 400);
    }
    int in_two_levels = 0;
    for (int i = 0; i < CHANNELS; i++) {
        in_two_levels += iso__channel_in_two_levels(more[i].channel, 0);
        fill_whole(&more[i]);
        MPI_Barrier(MPI_COMM_WORLD);
        iso_assert_ok(sum(&more[i]));
        iso_assert_all(is_whole_sum(&more[i]));
    }
    iso_assert_all(in_two_levels > 0 && in_two_levels < CHANNELS);
    for (int i = 0; i < CHANNELS; i++) iso_assert_all(iso__channel_destroy(&more[i].channel));
    destroy_rig(&r);
}
