// SPDX-License-Identifier: MIT
// Sums by pairwise exchange, directly and by halves, when a message cannot be sent or a rank is
// late.
#include "comm/channel.h"
#include "comm/comm_state.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static void setup_halving(void) {
    setenv("ISO_IALLREDUCE", "6", 1);
    test_mpi_setup();
}
static void setup_halving_bare(void) {
    setenv("ISO_IALLREDUCE", "6", 1);
    test_mpi_setup_bare();
}

TestSuite(np3_pairwise_late, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_halving_late, .init = setup_halving, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_pairwise_life, .init = test_mpi_setup_bare, .timeout = 60);
TestSuite(np5_halving_life, .init = setup_halving_bare, .timeout = 60);

static bool watching;
static int messages, fails_at; // fails_at: the number of the message that fails; 0: none

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    if (watching && ++messages == fails_at) return MPI_ERR_INTERN;
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

enum { COUNT = 1000 };

typedef struct rig {
    iso__channel *channel;
    float data[COUNT];
} rig;

static void create_rig(rig *r, size_t chunk) {
    const iso__channel_item item = {
        .data = r->data, .bytes = sizeof(r->data), .dtype = ISO_F32, .label = "x"};
    iso_assert_ok(iso__channel_create(test_comm, &item, 1, chunk, 3 * chunk, &r->channel));
}

static iso_status sum(rig *r) {
    for (int i = 0; i < COUNT; i++) r->data[i] = (float)(i % 7 + test_rank);
    watching = true;
    iso_status status = iso__channel_ready(r->channel, 0);
    if (status == ISO_OK) status = iso__channel_wait(r->channel, 0, NULL, NULL);
    watching = false;
    return status;
}

static bool is_summed(const rig *r) {
    for (int i = 0; i < COUNT; i++)
        if (r->data[i] != (float)(test_size * (i % 7) + test_size * (test_size - 1) / 2))
            return false;
    return true;
}

// ---- A message fails ------------------------------------------------------------------------------

// The message of this rank with this number fails. The rank says so at once. The ranks that depend
// on it time out, and memory that MPI may still use is kept; the others have their sums. ends: "o"
// for each of these.
static void a_message_fails(int rank, int number, const char *ends) {
    static rig r;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &test_comm));
    create_rig(&r, 1 << 20);
    test_comm->timeout_s = IMPATIENT;
    bool fails = test_rank == rank, waits = ends[test_rank] != 'o' && !fails;
    fails_at = fails ? number : 0;
    iso_status status = sum(&r);
    const char *said = iso_last_error()->message;
    iso_assert_all(status == (fails ? ISO_ERR_MPI : waits ? ISO_ERR_TIMEOUT : ISO_OK));
    iso_assert_all(!fails || strstr(said, "the exchange of \"x\" failed"));
    iso_assert_all(status != ISO_OK || is_summed(&r));
    iso_assert_all(!fails || sum(&r) == ISO_ERR_MPI); // it stays so
    bool kept = !iso__channel_destroy(&r.channel);
    iso_assert_all(fails || kept == waits);
    MPI_Finalize(); // what has failed stays
}

Test(np3_pairwise_life, of_the_first_stage) { a_message_fails(1, 2, "..."); }
Test(np3_pairwise_life, of_the_second_stage) { a_message_fails(1, 3, "..."); }
Test(np3_pairwise_life, of_the_last_one) { a_message_fails(1, 4, "..o"); }

// Ranks 0 and 1 share a place, and send one message in each stage: to each other, in two levels
// down and two up, and to each other.
Test(np5_halving_life, of_neighbours_at_the_start) { a_message_fails(1, 1, "....."); }
Test(np5_halving_life, of_the_first_level) { a_message_fails(1, 2, "....."); }
Test(np5_halving_life, of_the_second_level) { a_message_fails(1, 3, "....."); }
Test(np5_halving_life, of_the_second_level_upwards) { a_message_fails(1, 4, "....."); }
Test(np5_halving_life, of_the_first_level_upwards) { a_message_fails(1, 5, "...oo"); }
Test(np5_halving_life, of_neighbours_at_the_end) { a_message_fails(1, 6, "..ooo"); }

// Rank 4 sends both halves in each level: the first one is under way when the second one fails.
Test(np5_halving_life, of_the_second_half) { a_message_fails(4, 2, "....."); }
Test(np5_halving_life, of_the_second_half_upwards) { a_message_fails(4, 6, "....."); }
Test(np5_halving_life, of_the_last_half) { a_message_fails(4, 8, "ooo.."); }

// ---- A rank is late -------------------------------------------------------------------------------

// The others time out and name it; then it comes.
static void is_named_and_waited_for(void) {
    static rig r;
    create_rig(&r, 512);
    bool late = test_rank == 2;
    if (!late) test_comm->timeout_s = 0.3;
    iso_status first = late ? ISO_OK : sum(&r);
    const char *said = iso_last_error()->message;
    bool named = late || (first == ISO_ERR_TIMEOUT && strstr(said, "rank 2"));
    test_comm->timeout_s = 60;
    MPI_Barrier(MPI_COMM_WORLD);
    iso_assert_all(named);
    iso_assert_ok(late ? sum(&r) : iso__channel_wait(r.channel, 0, NULL, NULL));
    iso_assert_all(is_summed(&r));
    iso_assert_all(iso__channel_destroy(&r.channel));
}

Test(np3_pairwise_late, is_named_and_waited_for) { is_named_and_waited_for(); }
Test(np3_halving_late, is_named_and_waited_for) { is_named_and_waited_for(); }
