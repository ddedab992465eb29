// SPDX-License-Identifier: MIT
// Scatters and gathers in two levels when a message cannot be sent, or a rank is late: four ranks
// on two nodes, 0 and 1, 2 and 3.
#include "comm/channel.h"
#include "comm/comm_state.h"
#include "comm/traffic.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

TestSuite(np4_blocks_life, .init = test_mpi_setup_bare, .timeout = 60);
TestSuite(np4_blocks_late, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static bool watching;
static int messages, fails_at; // fails_at: the number of the message that fails; 0: none

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    if (watching && ++messages == fails_at) return MPI_ERR_INTERN;
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

enum { RANKS = 4, COUNT = 300 };

typedef struct rig {
    iso__operation operation;
    iso__channel *channel;
    float data[RANKS][COUNT];
} rig;

static float value_of(int rank, int block, int k) { return (float)(rank * 7 + block * 3 + k % 5); }

static void create_rig(rig *r, iso__operation operation) {
    const int64_t node_of[RANKS] = {0, 0, 1, 1};
    *r = (rig){.operation = operation};
    iso__channel_item item = {.data = r->data,
                              .bytes = sizeof(r->data[0]),
                              .dtype = ISO_F32,
                              .label = "x",
                              .operation = operation};
    iso_assert_ok(iso__comm_place(test_comm, node_of));
    iso_assert_ok(iso__channel_create(test_comm, &item, 1, SIZE_MAX, SIZE_MAX, &r->channel));
}

static void fill(rig *r) {
    for (int b = 0; b < RANKS; b++)
        for (int k = 0; k < COUNT; k++)
            r->data[b][k] =
                r->operation != ISO__GATHER || b == test_rank ? value_of(test_rank, b, k) : -1;
}

static iso_status exchange(rig *r) {
    fill(r);
    messages = 0;
    watching = true;
    iso_status status = iso__channel_ready(r->channel, 0);
    if (status == ISO_OK) status = iso__channel_wait(r->channel, 0, NULL, NULL);
    watching = false;
    return status;
}

static float expected(const rig *r, int b, int k) {
    float sum = 0;
    if (r->operation == ISO__GATHER) return value_of(b, b, k);
    for (int rank = 0; rank < RANKS; rank++) sum += value_of(rank, b, k);
    return sum;
}

// Of a scatter in nodes, a rank gets two adjacent blocks, as there are two nodes.
static bool is_own(const rig *r, int b) {
    if (r->operation == ISO__NODE_SCATTER) return b / 2 == test_rank % 2;
    return r->operation == ISO__GATHER || b == test_rank;
}

static bool is_right(const rig *r) {
    for (int b = 0; b < RANKS; b++)
        for (int k = 0; is_own(r, b) && k < COUNT; k++)
            if (r->data[b][k] != expected(r, b, k)) return false;
    return true;
}

// ---- A message fails ------------------------------------------------------------------------------

// The message with this number of rank 1 fails. That rank says so at once. The ranks that depend on
// it time out, and memory that MPI may still use is kept; the others have their blocks. ends: "o"
// for each of these.
static void a_message_fails(iso__operation operation, int number, const char *ends) {
    static rig r;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &test_comm));
    create_rig(&r, operation);
    test_comm->timeout_s = IMPATIENT;
    fails_at = test_rank == 1 ? number : 0;
    iso_status status = exchange(&r);
    bool waits = ends[test_rank] != 'o' && test_rank != 1;
    iso_assert_all(status == (test_rank == 1 ? ISO_ERR_MPI : waits ? ISO_ERR_TIMEOUT : ISO_OK));
    iso_assert_all(test_rank != 1 ||
                   strstr(iso_last_error()->message, "the exchange of \"x\" failed"));
    iso_assert_all(status != ISO_OK || is_right(&r));
    iso_assert_all(test_rank != 1 || exchange(&r) == ISO_ERR_MPI); // it stays so
    bool kept = !iso__channel_destroy(&r.channel);
    iso_assert_all(test_rank == 1 || kept == waits);
    MPI_Finalize(); // what has failed stays
}

// To the neighbour, then to the other node.
Test(np4_blocks_life, a_scatter_fails_in_the_node) { a_message_fails(ISO__SCATTER, 1, "...."); }
Test(np4_blocks_life, a_scatter_fails_between_nodes) { a_message_fails(ISO__SCATTER, 2, "o.o."); }
Test(np4_blocks_life, a_node_scatter_fails_in_the_node) {
    a_message_fails(ISO__NODE_SCATTER, 1, "....");
}
Test(np4_blocks_life, a_node_scatter_fails_between_nodes) {
    a_message_fails(ISO__NODE_SCATTER, 2, "o.o.");
}
Test(np4_blocks_life, a_node_scatter_fails_at_its_end) {
    a_message_fails(ISO__NODE_SCATTER, 3, "o.o.");
}
// To the other node, then to the neighbour.
Test(np4_blocks_life, a_gather_fails_between_nodes) { a_message_fails(ISO__GATHER, 1, "...."); }
Test(np4_blocks_life, a_gather_fails_in_the_node) { a_message_fails(ISO__GATHER, 2, "..oo"); }

// ---- A rank is late -------------------------------------------------------------------------------

// The others time out and name it. Then it comes, and all have their blocks.
static void a_late_rank_is_waited_for(iso__operation operation) {
    static rig r;
    create_rig(&r, operation);
    bool late = test_rank == 3;
    if (!late) test_comm->timeout_s = 0.3;
    iso_status first = late ? ISO_OK : exchange(&r);
    bool named = late || (first == ISO_ERR_TIMEOUT && strstr(iso_last_error()->message, "rank 3"));
    test_comm->timeout_s = 60;
    MPI_Barrier(MPI_COMM_WORLD);
    iso_assert_all(named);
    iso_assert_ok(late ? exchange(&r) : iso__channel_wait(r.channel, 0, NULL, NULL));
    iso_assert_all(is_right(&r));
    iso_assert_ok(exchange(&r));
    iso_assert_all(is_right(&r));
    iso_assert_all(iso__channel_destroy(&r.channel));
}

Test(np4_blocks_late, of_a_scatter) { a_late_rank_is_waited_for(ISO__SCATTER); }
Test(np4_blocks_late, of_a_node_scatter) { a_late_rank_is_waited_for(ISO__NODE_SCATTER); }
Test(np4_blocks_late, of_a_gather) { a_late_rank_is_waited_for(ISO__GATHER); }

// A channel may be destroyed while its exchange waits for a rank, or after it has failed: what MPI
// may still write into is kept, and the rank that comes is not disturbed. fails: the number of the
// message of rank 1 that fails, right after a receive that cannot be complete before rank 2 comes.
static void destroyed_before_a_rank_comes(iso__operation operation, int fails) {
    static rig r;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &test_comm));
    create_rig(&r, operation);
    bool late = test_rank == 2, failed = fails > 0 && test_rank == 1;
    test_comm->timeout_s = IMPATIENT;
    fails_at = failed ? fails : 0;
    bool told = late || exchange(&r) == (failed ? ISO_ERR_MPI : ISO_ERR_TIMEOUT);
    bool kept = late || !iso__channel_destroy(&r.channel);
    MPI_Barrier(MPI_COMM_WORLD);
    iso_assert_all(told && kept);
    test_comm->timeout_s = 60;
    iso_assert_ok(late ? exchange(&r) : ISO_OK);
    iso_assert_all(!late || is_right(&r));
    MPI_Finalize();
}

Test(np4_blocks_life, a_scatter_is_destroyed_after_a_time_out) {
    destroyed_before_a_rank_comes(ISO__SCATTER, 0);
}
Test(np4_blocks_life, a_gather_is_destroyed_after_a_time_out) {
    destroyed_before_a_rank_comes(ISO__GATHER, 0);
}
Test(np4_blocks_life, a_gather_is_destroyed_after_an_error) {
    destroyed_before_a_rank_comes(ISO__GATHER, 2);
}
