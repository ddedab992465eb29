// SPDX-License-Identifier: MIT
// How channels are used, on 1 to 4 ranks: progress, what is refused, time-outs, statistics, life.
#include "common/balance.h"
#include "common/channel_fixture.h"
#include "common/mpi_fixture.h"
#include "common/shared_fixture.h"
#include "comm/comm_state.h"

#include <criterion/criterion.h>
#include <isotherm/trace.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_channel_use, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_channel_use, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_channel_use, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_channel_use, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_channel_life, .init = test_mpi_setup_bare, .timeout = 60);

static iso_status give(channel_rig *rig, int item) {
    channel_fill(rig, item);
    return iso__channel_ready(rig->channel, item);
}

static iso_status give_all(channel_rig *rig) {
    iso_status status = ISO_OK;
    for (int i = 0; i < rig->items && status >= 0; i++) status = give(rig, i);
    return status;
}

static iso_status wait_all(channel_rig *rig) {
    iso_status status = ISO_OK;
    for (int i = 0; i < rig->items && status >= 0; i++)
        status = iso__channel_wait(rig->channel, i, NULL, NULL);
    return status;
}

static bool all_summed(const channel_rig *rig) {
    for (int i = 0; i < rig->items; i++)
        if (!iso__channel_is_done(rig->channel, i) || !channel_is_summed(rig, i)) return false;
    return true;
}

static bool said(const char *text) { return strstr(iso_last_error()->message, text) != NULL; }

static bool refused(iso_status status, iso_status wanted, const char *text) {
    return status == wanted && said(text);
}

// ---- The helper's sleep -----------------------------------------------------------------------------

// A program that finds its exchanges complete can do with fewer tests: each costs the computing
// core.
Test(np2_channel_use, the_helper_sleeps_longer_when_exchanges_are_early) {
    channel_rig rig;
    channel_rig_create(&rig, test_comm, 3, 1000, false);
    double before = test_comm->engine->sleep_us;
    iso_status status = ISO_OK;
    for (int round = 0; round < 10 && status >= 0; round++) {
        status = give_all(&rig);
        usleep(100000); // enough on a machine with much else to do
        if (status >= 0) status = wait_all(&rig);
    }
    iso_assert_ok(status);
    iso_assert_all(test_comm->engine->sleep_us > 1.5 * before);
    channel_rig_destroy(&rig);
}

// ---- Bits -------------------------------------------------------------------------------------------

enum { LONG = 20001, ROUNDS = 6 };

// Numbers whose sum shows the order of the additions: whatever the chunks, the bits are those of
// one exchange of the whole.
static void bits_do_not_depend_on_the_plan(void) {
    static float data[LONG], wanted[LONG];
    static const size_t chunks[ROUNDS] = {256,  400,   1000,
                                          4096, 80000, SIZE_MAX}; // bytes; with rests
    const iso__channel_item item = {
        .data = data, .bytes = sizeof(data), .dtype = ISO_F32, .label = "long"};
    iso__channel *channel;
    iso_status status = ISO_OK;
    for (int round = 0; round < ROUNDS && status >= 0; round++) {
        iso_request *request;
        shared_fill(wanted, LONG, round);
        memcpy(data, wanted, sizeof(data));
        iso_assert_ok(iso_comm_iallreduce(test_comm, wanted, LONG, ISO_F32, "one", &request));
        iso_assert_ok(iso_request_wait(&request));
        iso_assert_ok(iso__channel_create(test_comm, &item, 1, chunks[round], 5000, &channel));
        iso_assert_ok(iso__channel_ready(channel, 0));
        iso_assert_ok(iso__channel_wait(channel, 0, NULL, NULL));
        iso_assert_all(memcmp(data, wanted, sizeof(data)) == 0);
        iso__channel_destroy(&channel);
    }
}

Test(np2_channel_use, bits_do_not_depend_on_the_plan) { bits_do_not_depend_on_the_plan(); }
Test(np3_channel_use, bits_do_not_depend_on_the_plan) { bits_do_not_depend_on_the_plan(); }
Test(np4_channel_use, bits_do_not_depend_on_the_plan) { bits_do_not_depend_on_the_plan(); }

// ---- Progress ---------------------------------------------------------------------------------------

Test(np2_channel_use, helper_sends_all_chunks_without_a_wait) {
    channel_rig rig;
    channel_rig_create(&rig, test_comm, 5, 20000, false);
    iso_assert_ok(give_all(&rig));
    bool done = false;
    for (int64_t start = iso_now(); !done && iso_now() - start < 5000000000;) {
        usleep(1000);
        done = iso__channel_is_done(rig.channel, 0);
        for (int i = 1; i < rig.items; i++) done = done && iso__channel_is_done(rig.channel, i);
    }
    iso_assert_all(done && all_summed(&rig));
    channel_rig_destroy(&rig);
}

typedef struct idler {
    channel_rig *rig;
    int calls;
    bool first_done, last_done; // as it was found
} idler;

// Blocks until item 0 is done: meanwhile only the helper can see to that.
static bool idle_until_first(void *user) {
    idler *me = user;
    for (int64_t start = iso_now();
         !iso__channel_is_done(me->rig->channel, 0) && iso_now() - start < 5000000000;)
        usleep(1000);
    me->first_done = iso__channel_is_done(me->rig->channel, 0);
    if (me->calls++ == 0) me->last_done = iso__channel_is_done(me->rig->channel, 1);
    return false;
}

// A rank that waits for an item does other work for one that is done.
Test(np2_channel_use, waiting_rank_does_other_work) {
    channel_rig rig;
    channel_rig_create(&rig, test_comm, 2, 3000, false);
    idler me = {.rig = &rig};
    iso_status status = give(&rig, 0);
    if (test_rank == 0) usleep(300000); // the slow one
    if (status >= 0) status = give(&rig, 1);
    if (status >= 0) status = iso__channel_wait(rig.channel, 1, idle_until_first, &me);
    iso_assert_ok(status);
    iso_assert_all(all_summed(&rig));
    iso_assert_all(test_rank == 0 || (me.first_done && !me.last_done));
    // Only when something new may be there: chunks are of 400 bytes.
    int chunks = (int)(iso__cut_count(rig.item[0].bytes, 64, 400) +
                       iso__cut_count(rig.item[1].bytes, 64, 400));
    iso_assert_all(me.calls <= chunks + 2);
    channel_rig_destroy(&rig);
}

// In whatever order each rank uses them.
Test(np3_channel_use, channels_and_other_exchanges_do_not_mix) {
    enum { COUNT = 3000 };
    static float data[COUNT], other[COUNT];
    channel_rig rig[2];
    channel_rig_create(&rig[0], test_comm, 5, 2000, true);
    channel_rig_create(&rig[1], test_comm, 6, 2000, false);
    for (int round = 0; round < 30; round++) {
        iso_request *request;
        int first = (test_rank + round) % 2;
        iso_status status = give_all(&rig[first]);
        shared_fill(data, COUNT, round);
        memcpy(other, data, sizeof(other));
        if (status >= 0)
            status = iso_comm_iallreduce(test_comm, data, COUNT, ISO_F32, "other", &request);
        if (status >= 0) status = give_all(&rig[!first]);
        if (status >= 0 && test_rank == 1) status = wait_all(&rig[1]);
        if (status >= 0) status = iso_request_wait(&request);
        if (status >= 0) status = wait_all(&rig[0]);
        if (status >= 0) status = wait_all(&rig[1]);
        iso_assert_ok(status);
        iso_assert_all(all_summed(&rig[0]) && all_summed(&rig[1]));
        MPI_Allreduce(MPI_IN_PLACE, other, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < COUNT; i++) cr_assert_float_eq(data[i], other[i], 0.1);
    }
    channel_rig_destroy(&rig[0]);
    channel_rig_destroy(&rig[1]);
}

// ---- What is refused ---------------------------------------------------------------------------------

// Item 1 is under way for sure: item 0 leaves before it.
Test(np2_channel_use, state_errors) {
    channel_rig rig;
    channel_rig_create(&rig, test_comm, 3, 300, false);
    iso_assert_ok(give(&rig, 1));
    iso_assert_all(!iso__channel_is_done(rig.channel, 1) && iso__channel_is_done(rig.channel, 0));
    iso_status status = iso__channel_ready(rig.channel, 1);
    iso_assert_all(refused(status, ISO_ERR_STATE, "\"item 1\" was made ready twice"));
    status = iso__channel_wait(rig.channel, 1, NULL, NULL);
    iso_assert_all(refused(status, ISO_ERR_STATE, "\"item 0\" leaves before it"));
    const iso__chunk chunk[3] = {
        {0, 0, rig.item[0].bytes}, {2, 0, rig.item[2].bytes}, {1, 0, rig.item[1].bytes}};
    status = iso__channel_set_plan(rig.channel, chunk, 3, 1000);
    iso_assert_all(refused(status, ISO_ERR_STATE, "in the middle of a round"));
    iso_assert_ok(give(&rig, 0));
    iso_assert_ok(iso__channel_wait(rig.channel, 1, NULL, NULL));
    // Nothing is under way, but item 2 has not been in this round.
    status = iso__channel_set_plan(rig.channel, chunk, 3, 1000);
    iso_assert_all(refused(status, ISO_ERR_STATE, "in the middle of a round"));
    iso_assert_ok(give(&rig, 2));
    iso_assert_ok(wait_all(&rig));
    iso_assert_all(all_summed(&rig));
    iso_assert_ok(iso__channel_set_plan(rig.channel, chunk, 3, 1000));
    channel_rig_destroy(&rig);
}

// In the next round the one that leaves last now may be ready while one of this round is not.
Test(np2_channel_use, wait_needs_the_rest_of_the_round_before) {
    channel_rig rig;
    channel_rig_create(&rig, test_comm, 3, 300, false);
    iso_assert_ok(give_all(&rig));
    iso_assert_ok(wait_all(&rig));
    iso_assert_ok(give(&rig, 0));
    iso_assert_ok(iso__channel_wait(rig.channel, 0, NULL, NULL));
    iso_assert_ok(give(&rig, 0)); // of the round after this one
    iso_status status = iso__channel_wait(rig.channel, 0, NULL, NULL);
    iso_assert_all(refused(status, ISO_ERR_STATE, "\"item 1\" leaves before it"));
    iso_assert_ok(give(&rig, 1));
    status = iso__channel_wait(rig.channel, 0, NULL, NULL);
    iso_assert_all(refused(status, ISO_ERR_STATE, "\"item 2\" leaves before it"));
    iso_assert_ok(give(&rig, 2));
    iso_assert_ok(wait_all(&rig));
    iso_assert_all(all_summed(&rig));
    channel_rig_destroy(&rig);
}

Test(np1_channel_use, plans_that_do_not_cover_every_item_once) {
    static float a[100];
    static double b[10];
    const iso__channel_item item[2] = {{.data = a, .bytes = 400, .dtype = ISO_F32, .label = "a"},
                                       {.data = b, .bytes = 80, .dtype = ISO_F64, .label = "b"}};
    iso__channel *channel;
    iso_assert_ok(iso__channel_create(test_comm, item, 2, 128, 100, &channel));
    const iso__chunk bad[][3] = {
        {{0, 0, 400}, {1, 0, 72}, {0, 400, 0}},   // an empty chunk
        {{0, 0, 200}, {1, 0, 80}, {0, 200, 196}}, // too little
        {{0, 0, 200}, {1, 0, 80}, {0, 200, 204}}, // too much
        {{0, 0, 200}, {1, 0, 80}, {0, 204, 196}}, // a gap
        {{0, 0, 200}, {1, 0, 80}, {0, 196, 204}}, // twice
        {{0, 200, 200}, {1, 0, 80}, {0, 0, 200}}, // descending
        {{0, 0, 198}, {1, 0, 80}, {0, 198, 202}}, // half an element
        {{0, 0, 400}, {1, 0, 44}, {1, 44, 36}},   // of f64
        {{0, 0, 400}, {2, 0, 80}, {1, 0, 80}},    // an item that there is not
        {{0, 0, 400}, {-1, 0, 80}, {1, 0, 80}},   // likewise
        {{0, 0, SIZE_MAX - 3}, {0, 0, 4}, {1, 0, 80}},
    };
    for (size_t n = 0; n < sizeof(bad) / sizeof(bad[0]); n++)
        cr_expect_eq(iso__channel_set_plan(channel, bad[n], 3, 100), ISO_ERR_ARG, "plan %zu", n);
    cr_expect_eq(iso__channel_set_plan(channel, bad[0], 1, 100), ISO_ERR_ARG);
    cr_expect(said("0 of the 80 bytes of \"b\""));
    const iso__chunk good[3] = {{0, 0, 200}, {1, 0, 80}, {0, 200, 200}};
    cr_expect_eq(iso__channel_set_plan(channel, good, 3, 100), ISO_OK);
    iso__channel_destroy(&channel);
}

// Item 0 is of phase 1: it leaves after item 1, which may be waited for before item 0 is ready.
Test(np2_channel_use, plans_that_mix_phases) {
    channel_rig rig;
    channel_rig_create(&rig, test_comm, 2, 300, false);
    iso__channel_destroy(&rig.channel);
    rig.item[0].phase = 1;
    iso_assert_ok(iso__channel_create(test_comm, rig.item, 2, 400, 1000, &rig.channel));
    const iso__chunk chunk[3] = {
        {1, 0, 8}, {0, 0, rig.item[0].bytes}, {1, 8, rig.item[1].bytes - 8}};
    iso_status status = iso__channel_set_plan(rig.channel, chunk, 3, 1000);
    iso_assert_all(
        refused(status, ISO_ERR_ARG, "\"item 1\" of phase 0 after \"item 0\" of phase 1"));
    for (int round = 0; round < 3; round++) {
        iso_assert_ok(give(&rig, 1));
        iso_assert_ok(iso__channel_wait(rig.channel, 1, NULL, NULL));
        iso_assert_ok(give(&rig, 0));
        iso_assert_ok(wait_all(&rig));
        iso_assert_all(all_summed(&rig));
    }
    channel_rig_destroy(&rig);
}

Test(np1_channel_use, items_that_cannot_be_summed) {
    static int64_t data[4];
    iso__channel *channel;
    iso__channel_item item = {
        .data = data, .bytes = sizeof(data), .dtype = ISO_I64, .label = "steps"};
    iso_status status = iso__channel_create(test_comm, &item, 1, 100, 100, &channel);
    cr_expect(refused(status, ISO_ERR_UNSUPPORTED, "\"steps\""));
    item = (iso__channel_item){.data = data, .bytes = 31, .dtype = ISO_F32, .label = "weights"};
    status = iso__channel_create(test_comm, &item, 1, 100, 100, &channel);
    cr_expect(refused(status, ISO_ERR_ARG, "\"weights\""));
    item.bytes = 0;
    cr_expect_eq(iso__channel_create(test_comm, &item, 1, 100, 100, &channel), ISO_ERR_ARG);
    item.bytes = 32;
    item.phase = -1;
    status = iso__channel_create(test_comm, &item, 1, 100, 100, &channel);
    cr_expect(refused(status, ISO_ERR_ARG, "phase -1"));
    item.phase = 0;
    item.operation = (iso__operation)7;
    status = iso__channel_create(test_comm, &item, 1, 100, 100, &channel);
    cr_expect(refused(status, ISO_ERR_UNSUPPORTED, "operation 7"));
}

// ---- Time-outs ---------------------------------------------------------------------------------------

static void create_impatient(channel_rig *rig, iso_comm **comm) {
    *comm = test_comm_with_limit(60);
    channel_rig_create(rig, *comm, 2, 300, false);
    (*comm)->timeout_s = IMPATIENT; // not of the channel's creation
}

Test(np2_channel_use, time_out_names_the_item_and_can_be_waited_for_again) {
    iso_comm *comm;
    channel_rig rig;
    create_impatient(&rig, &comm);
    if (test_rank == 0) usleep(SLOW); // the slow one
    iso_status status = give_all(&rig);
    if (status >= 0) status = iso__channel_wait(rig.channel, 1, NULL, NULL);
    iso_assert_all(test_rank == 0 || (refused(status, ISO_ERR_TIMEOUT, "rank 1 of 2 waited 1 s") &&
                                      said("exchange of \"item 1\"; in flight: \"item 0\" (")));
    if (test_rank == 1) status = iso__channel_wait(rig.channel, 1, NULL, NULL); // late, but whole
    iso_assert_ok(status);
    iso_assert_ok(wait_all(&rig));
    iso_assert_all(all_summed(&rig));
    channel_rig_destroy(&rig);
    iso_comm_destroy(&comm);
}

// As many as fit are named, and the others counted.
Test(np2_channel_use, time_out_counts_what_it_does_not_name) {
    enum { COUNT = 30 };
    static float values[COUNT][16];
    iso_request *request[COUNT] = {NULL};
    iso_comm *comm = test_comm_with_limit(60);
    comm->timeout_s = IMPATIENT;
    if (test_rank == 0) usleep(SLOW);
    iso_status status = ISO_OK;
    for (int i = 0; i < COUNT && status >= 0; i++)
        status = iso_comm_iallreduce(comm, values[i], 16, ISO_F32, "a sum", &request[i]);
    if (test_rank == 1 && status >= 0) {
        status = iso_request_wait(&request[COUNT - 1]);
        status = refused(status, ISO_ERR_TIMEOUT, "\"a sum\" (64 bytes), and 24 more: ")
                     ? ISO_OK
                     : ISO_ERR_STATE;
    }
    comm->timeout_s = 60;
    for (int i = 0; i < COUNT && status >= 0; i++) status = iso_request_wait(&request[i]);
    iso_assert_ok(status);
    iso_comm_destroy(&comm);
}

// The process of rank 0 stops altogether, its helper as well, and goes on when rank 1 says so.
Test(np2_channel_use, rank_that_stops_is_a_time_out) {
    iso_comm *comm;
    channel_rig rig;
    create_impatient(&rig, &comm);
    int pid = (int)getpid(), go = 1;
    MPI_Bcast(&pid, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (test_rank == 1) kill(pid, SIGSTOP);
    MPI_Bcast(&go, 1, MPI_INT, 1, MPI_COMM_WORLD);
    iso_status status = give_all(&rig);
    if (status >= 0 && test_rank == 1) {
        int64_t start = iso_now();
        status = iso__channel_wait(rig.channel, 0, NULL, NULL);
        bool right = refused(status, ISO_ERR_TIMEOUT, "\"item 0\"") && iso_now() - start < 3e9;
        kill(pid, SIGCONT);
        status = right ? wait_all(&rig) : ISO_ERR_STATE;
    } else if (status >= 0) {
        status = wait_all(&rig);
    }
    iso_assert_ok(status);
    iso_assert_all(all_summed(&rig));
    channel_rig_destroy(&rig);
    iso_comm_destroy(&comm);
}

// ---- Statistics, memory ------------------------------------------------------------------------------

Test(np2_channel_use, times_and_load) {
    enum { COUNT = 7 };
    channel_rig rig;
    channel_rig_create(&rig, test_comm, COUNT, 3000, false);
    iso__chunk chunk[COUNT];
    size_t total = 0;
    for (int i = 0; i < COUNT; i++) {
        int j = COUNT - 1 - i; // in reverse order, one at a time
        chunk[i] = (iso__chunk){.item = j, .bytes = rig.item[j].bytes};
        total += rig.item[j].bytes;
    }
    iso_assert_ok(iso__channel_set_plan(rig.channel, chunk, COUNT, 1));
    int64_t start = iso_now(), before = start;
    for (int round = 1; round <= 3; round++) {
        iso_assert_ok(give_all(&rig));
        iso_assert_ok(wait_all(&rig));
        bool ordered = true;
        for (int i = COUNT - 1; i >= 0; i--) {
            iso__channel_times t = iso__channel_times_of(rig.channel, i);
            ordered = ordered && before <= t.posted_ns && t.ready_ns <= t.posted_ns &&
                      start <= t.ready_ns && t.posted_ns < t.done_ns;
            before = t.done_ns;
        }
        iso_assert_all(ordered && before <= iso_now());
        iso__channel_load load = iso__channel_load_of(rig.channel);
        iso_assert_all(load.bytes == (int64_t)total * round);
        iso_assert_all(load.busy_ns > 0 && load.busy_ns <= iso_now() - start);
    }
    channel_rig_destroy(&rig);
}

// Waiting between the rounds does not count as busy.
Test(np2_channel_use, busy_time_is_that_of_exchanges) {
    channel_rig rig;
    channel_rig_create(&rig, test_comm, 2, 1000, false);
    iso_assert_ok(give_all(&rig));
    iso_assert_ok(wait_all(&rig));
    int64_t busy = iso__channel_load_of(rig.channel).busy_ns;
    usleep(200000);
    iso_assert_all(iso__channel_load_of(rig.channel).busy_ns == busy);
    MPI_Barrier(MPI_COMM_WORLD);
    if (test_rank == 0) usleep(200000);
    iso_assert_ok(give_all(&rig));
    iso_assert_ok(wait_all(&rig));
    int64_t more = iso__channel_load_of(rig.channel).busy_ns - busy;
    iso_assert_all(test_rank == 0 ? more < 150000000 : more > 150000000);
    channel_rig_destroy(&rig);
}

Test(np2_channel_use, steps_allocate_nothing) {
    long long before, after;
    channel_rig rig;
    channel_rig_create(&rig, test_comm, 7, 3000, false);
    for (int round = 0; round < 30; round++) {
        if (round == 2) iso_memory_balance(NULL, NULL, &before);
        if (test_rank == round) usleep(50000); // of the other one the window is full
        iso_assert_ok(give_all(&rig));
        iso_assert_ok(wait_all(&rig));
    }
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before);
    channel_rig_destroy(&rig);
}

// ---- Life ---------------------------------------------------------------------------------------------

// MPI_Finalize with a channel alive and its chunks under way must neither crash nor hang.
Test(np2_channel_life, finalize_completes_what_is_under_way) {
    iso_comm *comm;
    channel_rig rig;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    channel_rig_create(&rig, comm, 5, 20000, false);
    iso_comm_destroy(&comm); // the channel has it as well
    iso_assert_ok(give_all(&rig));
    MPI_Finalize();
    cr_expect(all_summed(&rig));
    cr_expect(refused(iso__channel_ready(rig.channel, 0), ISO_ERR_STATE, "after MPI_Finalize"));
    channel_rig_destroy(&rig);
    balance_check();
}

Test(np2_channel_life, finalize_with_an_item_that_never_left) {
    iso_comm *comm;
    channel_rig rig;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    channel_rig_create(&rig, comm, 2, 300, false);
    iso_assert_ok(give(&rig, 1)); // item 0 leaves before it
    MPI_Finalize();
    iso_status status = iso__channel_wait(rig.channel, 1, NULL, NULL);
    cr_expect(refused(status, ISO_ERR_STATE, "\"item 1\" was still in flight when MPI_Finalize"));
    channel_rig_destroy(&rig);
    iso_comm_destroy(&comm);
    balance_check();
}
