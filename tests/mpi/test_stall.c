// SPDX-License-Identifier: MIT
// Tests who is named when ranks wait for long: in warnings (ISO_STALL_WARN) and in time-outs.
#include "base/recording.h"
#include "comm/channel.h"
#include "comm/comm_state.h"
#include "common/mpi_fixture.h"
#include "common/shared_fixture.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LIMIT   0.8     // seconds
#define NAP     3000000 // microseconds, which is longer
#define CULPRIT (test_size - 1)

static void setup_warning(void) {
    setenv("ISO_STALL_WARN", "0.3", 1);
    test_mpi_setup();
}

// No rank has room for a board, so that ranks of one host ask each other by messages, as those of
// several hosts do.
static void setup_apart(void) {
    struct rlimit before, none;
    getrlimit(RLIMIT_FSIZE, &before);
    none = (struct rlimit){.rlim_cur = 100, .rlim_max = before.rlim_max};
    setenv("ISO_STALL_WARN", "0.5", 1); // answers come within a tenth of that
    test_mpi_setup_bare();
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
    if (iso_comm_create(MPI_COMM_WORLD, NULL, &test_comm) < 0) iso_error_print(stderr);
    setrlimit(RLIMIT_FSIZE, &before);
}

TestSuite(np3_stall, .init = test_mpi_setup, .timeout = 60);
TestSuite(np3_stall_warn, .init = setup_warning, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_stall_apart, .init = setup_apart, .timeout = 60);

// Ways to wait for other ranks.
static iso_status meet(void) { return iso_comm_barrier(test_comm); }
static iso_status await_own(void) {
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    return iso_comm_await(test_comm, &request, "a barrier of its own");
}
static float shared_by_message[64];
static float *numbers = shared_by_message;
static iso_status sum(void) {
    iso_request *request;
    iso_status status = iso_comm_iallreduce(test_comm, numbers, 64, ISO_F32, "conv1", &request);
    return status == ISO_OK ? iso_request_wait(&request) : status;
}
static iso__channel *channel;
static iso_status exchange(void) {
    iso_status status = iso__channel_ready(channel, 0);
    if (status == ISO_OK) status = iso__channel_ready(channel, 1);
    return status == ISO_OK ? iso__channel_wait(channel, 1, NULL, NULL) : status;
}
static void open_channel(void) {
    static double data[2][100];
    const iso__channel_item items[2] = {
        {.data = data[0], .bytes = sizeof(data[0]), .dtype = ISO_F64, .label = "fc1"},
        {.data = data[1], .bytes = sizeof(data[1]), .dtype = ISO_F64, .label = "fc2"}};
    iso_assert_ok(iso__channel_create(test_comm, items, 2, 64, 64, &channel)); // many chunks
}

// All ranks but the last wait for it in vain, and tell so; it comes later.
static bool is_named(iso_status (*wait)(void), const char *how) {
    char named[64];
    snprintf(named, sizeof(named), "rank %d on ", CULPRIT);
    MPI_Barrier(MPI_COMM_WORLD);
    test_comm->timeout_s = LIMIT;
    if (test_rank == CULPRIT) usleep(NAP);
    iso_status status = wait();
    const char *said = iso_last_error()->message;
    if (test_rank == CULPRIT) return status == ISO_OK;
    fprintf(stderr, "%s\n", said);
    return status == ISO_ERR_TIMEOUT && strstr(said, named) && strstr(said, how) &&
           !strstr(said, "rank 0 on ") && !strstr(said, "rank 1 on ");
}

static const char late[] = "is late: it has computed or waited elsewhere for ";

Test(np3_stall, a_late_rank_is_named_in_an_exchange_by_messages) {
    iso_assert_all(is_named(sum, late));
    MPI_Finalize();
}

Test(np3_stall, a_late_rank_is_named_in_an_exchange_in_shared_memory) {
    numbers = shared_create(test_comm, 64);
    iso_assert_all(is_named(sum, late));
    MPI_Finalize();
}

Test(np3_stall, a_late_rank_is_named_in_a_channel) {
    open_channel();
    iso_status status = exchange(); // counts of earlier rounds do not mislead
    iso_assert_ok(status);
    iso_assert_all(is_named(exchange, late));
    MPI_Finalize();
}

Test(np3_stall, a_late_rank_is_named_in_blocking_collectives) {
    iso_assert_all(is_named(meet, late));
    MPI_Finalize();
}

// Also this rank, whatever its number among those that wait for each other.
Test(np3_stall, ranks_have_the_numbers_of_the_program_in_a_part_of_it) {
    MPI_Comm part;
    iso_comm *pair = NULL;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank > 0, test_rank, &part);
    iso_assert_ok(iso_comm_create(part, NULL, &pair));
    pair->timeout_s = LIMIT;
    MPI_Barrier(MPI_COMM_WORLD);
    if (test_rank == CULPRIT) usleep(NAP);
    iso_status status = iso_comm_barrier(pair);
    const char *said = iso_last_error()->message;
    if (test_rank == 1) fprintf(stderr, "%s\n", said);
    bool right = strncmp(said, "rank 1 of 3 waited ", 19) == 0 && strstr(said, "rank 2 on ");
    iso_assert_all(test_rank == 1 ? status == ISO_ERR_TIMEOUT && right : status == ISO_OK);
    MPI_Finalize();
}

// As a rank that saves what all ranks have, while the others wait for it.
Test(np3_stall, what_a_late_rank_began_last_is_told) {
    if (test_rank == CULPRIT) iso__alive("the writing of a checkpoint");
    iso_assert_all(is_named(meet, " s (last activity: the writing of a checkpoint)"));
    MPI_Finalize();
}

Test(np3_stall, a_late_rank_is_named_in_collectives_of_the_program) {
    iso_assert_all(is_named(await_own, late));
    MPI_Finalize();
}

// ---- A rank that is stopped -------------------------------------------------------------------------

static bool stop_is_named(const char *text) {
    int process = (int)getpid(), all[3];
    MPI_Allgather(&process, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
    test_comm->timeout_s = LIMIT;
    if (test_rank == CULPRIT) raise(SIGSTOP);
    iso_status status = iso_comm_barrier(test_comm);
    const char *said = iso_last_error()->message;
    if (test_rank == CULPRIT) return status == ISO_OK;
    fprintf(stderr, "%s\n", said);
    if (test_rank > 0) usleep(2000000); // rank 1 gives up, too, before the other goes on
    if (test_rank > 0) kill(all[CULPRIT], SIGCONT);
    return status == ISO_ERR_TIMEOUT && strstr(said, text);
}

Test(np3_stall, a_stopped_rank_is_named) {
    iso_assert_all(stop_is_named("is stopped by a signal"));
    MPI_Finalize();
}

// ---- Ranks that wait themselves ---------------------------------------------------------------------

// Rank 0 waits for rank 1, which waits for rank 2.
Test(np3_stall, who_waits_in_turn_says_what_for) {
    iso_comm *pair[2] = {NULL, NULL}; // ranks 0 and 1; ranks 1 and 2
    for (int k = 0; k < 2; k++) {
        MPI_Comm few;
        bool member = test_rank == k || test_rank == k + 1;
        MPI_Comm_split(MPI_COMM_WORLD, member ? 0 : MPI_UNDEFINED, test_rank, &few);
        bool good = !member || iso_comm_create(few, NULL, &pair[k]) == ISO_OK;
        iso_assert_all(good);
        if (member) MPI_Comm_free(&few);
    }
    if (test_rank == 0) pair[0]->timeout_s = LIMIT;
    if (test_rank == 2) usleep(NAP);
    iso_status other = test_rank > 0 ? iso_comm_barrier(pair[1]) : ISO_OK;
    iso_status mine = test_rank < 2 ? iso_comm_barrier(pair[0]) : ISO_OK;
    const char *said = iso_last_error()->message;
    iso_assert_all(other == ISO_OK && mine == (test_rank == 0 ? ISO_ERR_TIMEOUT : ISO_OK));
    iso_assert_all(test_rank > 0 || strstr(said, " is late: it has itself waited "));
    iso_assert_all(test_rank > 0 || strstr(said, "rank 1 on "));
    MPI_Finalize();
}

// ---- Without a board --------------------------------------------------------------------------------

Test(np3_stall_apart, a_late_rank_is_named_by_messages) {
    open_channel();
    iso_assert_all(is_named(exchange, late));
    MPI_Finalize();
}

Test(np3_stall_apart, a_rank_that_does_not_answer_is_named) {
    iso_assert_all(stop_is_named("does not answer (rank 2): it cannot be reached, or is stopped"));
    MPI_Finalize();
}

// ---- Warnings ---------------------------------------------------------------------------------------

static char *log_text;
static size_t log_bytes;

// How many lines of this rank's log have the text.
static int count_lines(const char *text) {
    int count = 0;
    for (const char *at = log_text; (at = strstr(at, text)) != NULL; at += strlen(text)) count++;
    return count;
}

Test(np3_stall_warn, a_long_wait_warns_again_and_again_and_goes_on) {
    FILE *log = open_memstream(&log_text, &log_bytes);
    iso_log_set_stream(log);
    MPI_Barrier(MPI_COMM_WORLD);
    if (test_rank == CULPRIT) usleep(NAP);
    iso_assert_ok(iso_comm_barrier(test_comm));
    iso_assert_ok(iso_comm_barrier(test_comm)); // which is no reason to warn
    fflush(log);
    int warned = count_lines("s for a barrier: rank 2 on "), all = 0;
    bool others = count_lines("rank 0 on ") + count_lines("rank 1 on ") > 0;
    MPI_Allreduce(&warned, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    iso_log_set_stream(stderr);
    fclose(log);
    iso_assert_all(all >= 2); // after 0.3, 0.6 and 1.2 s
    iso_assert_all(!others);
    iso_assert_all(warned == count_lines("(ISO_STALL_WARN sets when to warn)"));
    free(log_text);
}

// Rank 0 alone does something that takes longer; nobody waits for it.
Test(np3_stall_warn, nobody_warns_unless_somebody_waits) {
    FILE *log = open_memstream(&log_text, &log_bytes);
    iso_log_set_stream(log);
    MPI_Barrier(MPI_COMM_WORLD);
    usleep(test_rank == 0 ? 900000 : 1000000);
    fflush(log);
    iso_assert_all(log_bytes == 0);
    iso_log_set_stream(stderr);
    fclose(log);
    free(log_text);
}
