// SPDX-License-Identifier: MIT
// Reports an error once, and ends the job on all ranks.
#include "train_error.h"

#include "support/usage.h"
#include "support/watch.h"
#include "support/watchdog.h"

#include <isotherm/recorder.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TEXT_ROOM 1024

static char own[TEXT_ROOM]; // empty: the last error is the library's
static iso_status own_code;
static char told[TEXT_ROOM]; // by train_all_well, last
static const char *program = "train";
static iso_comm *meeting; // all ranks; NULL: not yet, or no longer

void train_error_program(const char *name) { program = name; }
void train_error_comm(iso_comm *comm) { meeting = comm; }
const char *train_error_name(void) { return program; }

iso_status train_error(iso_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(own, sizeof(own), format, args);
    va_end(args);
    own_code = code;
    return iso_error_set(code, "%s", own); // what iso_comm_agree tells the others
}

iso_status train_error_of_library(iso_status status) {
    if (status >= 0) return status;
    snprintf(own, sizeof(own), "%s", iso_last_error()->message);
    own_code = status;
    return status;
}

iso_status train_error_of_output(void) {
    const char *problem = usage_output_problem();
    if (!problem) return ISO_OK;
    return train_error(ISO_ERR_IO, "cannot write to standard output: %s", problem);
}

const char *train_error_told(void) { return told; }

const char *train_error_text(void) { return own[0] ? own : iso_last_error()->message; }

static bool names_rank(const char *said) {
    return strncmp(said, "rank ", 5) == 0 && said[5] >= '0' && said[5] <= '9';
}

// Prints the message with its rank, unless it begins with one. rank -1: all ranks have it.
static void print_error(int rank, const char *said) {
    if (rank < 0 || names_rank(said))
        fprintf(stderr, "%s: %s\n", program, said);
    else
        fprintf(stderr, "%s: rank %d: %s\n", program, rank, said);
}

static void sleep_ns(long ns) { nanosleep(&(struct timespec){.tv_nsec = ns}, NULL); }

// Waits until the request is complete. Ends the job if that takes longer than ISO_TIMEOUT.
static void await_all(MPI_Request *request, const char *what) {
    double limit = watch_timeout(), end = MPI_Wtime() + limit;
    int rank, ranks, done = 0;
    if (meeting) {
        if (train_error_of_library(iso_comm_await(meeting, request, what)) < 0) train_abort();
        return;
    }
    iso_recorder_wait(what);
    for (MPI_Test(request, &done, MPI_STATUS_IGNORE); !done;
         MPI_Test(request, &done, MPI_STATUS_IGNORE)) {
        if (limit == 0 || MPI_Wtime() < end) {
            sleep_ns(50000);
            continue;
        }
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &ranks);
        train_error(ISO_ERR_TIMEOUT,
                    "rank %d of %d waited %g s in %s: another rank is stuck, gone or slower than "
                    "that (ISO_TIMEOUT sets the limit)",
                    rank, ranks, limit, what);
        train_abort();
    }
    iso_recorder_woke(what);
}

void train_bcast(void *data, size_t bytes, int root, const char *what) {
    MPI_Request request;
    MPI_Ibcast(data, (int)bytes, MPI_CHAR, root, MPI_COMM_WORLD, &request);
    await_all(&request, what);
}

// what: names the wait.
static bool check_ranks(iso_status mine, const char *what) {
    static int lowest; // MPI writes to it even after a time-out
    int rank, ranks;
    MPI_Request request;
    // After a time-out or an error of MPI the other ranks cannot be reached. A rank out of memory
    // or threads may have left them in the middle of a collective call.
    if (mine == ISO_ERR_TIMEOUT || mine == ISO_ERR_MPI || mine == ISO_ERR_NOMEM) train_abort();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    lowest = mine < 0 ? rank : ranks;
    MPI_Iallreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD, &request);
    await_all(&request, what);
    if (lowest == ranks) return true;
    told[0] = 0;
    if (rank == lowest) snprintf(told, sizeof(told), "%s", train_error_text());
    train_bcast(told, sizeof(told), lowest, what);
    if (rank == 0) print_error(lowest > 0 ? lowest : -1, told);
    own[0] = 0; // the next error may be the library's
    return false;
}

bool train_all_well(iso_status mine) {
    return check_ranks(mine, "the check that all ranks are well");
}

bool train_all_end(void) { return check_ranks(train_error_of_output(), "the end of the program"); }

// ---- The end of the job -------------------------------------------------------------------------
// Nothing here waits for a message that may not come: rank 0 gives the others PATIENCE seconds, and
// they give it twice that to end the job.

#define PATIENCE 1.0
#define TAG      31415 // MPI promises 32767

// Until the requests are complete, or the time is over.
static void await_requests(int count, MPI_Request *requests, double end) {
    int done = 0;
    while (MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS && !done &&
           MPI_Wtime() < end)
        sleep_ns(1000000);
}

// On rank 0: receives the errors of other ranks until PATIENCE is over. Other texts stay empty.
static void receive_errors(int ranks, char (*said)[TEXT_ROOM], MPI_Request *requests) {
    for (int r = 1; r < ranks; r++)
        if (MPI_Irecv(said[r], TEXT_ROOM, MPI_CHAR, r, TAG, MPI_COMM_WORLD, &requests[r - 1]) !=
            MPI_SUCCESS)
            requests[r - 1] = MPI_REQUEST_NULL;
    await_requests(ranks - 1, requests, MPI_Wtime() + PATIENCE);
}

// Whether another rank already reports rank r's message, as "rank R: MESSAGE".
static bool is_quoted(int ranks, char (*said)[TEXT_ROOM], int r) {
    char quote[TEXT_ROOM + 16];
    snprintf(quote, sizeof(quote), "rank %d: %s", r, said[r]);
    for (int q = 0; q < ranks; q++)
        // A quotation may be cut.
        if (q != r && names_rank(said[q]) && strncmp(said[q], quote, strlen(said[q])) == 0)
            return true;
    return false;
}

// Prints each message once; without a rank if all ranks have the same.
static void tell_all(int ranks, char (*said)[TEXT_ROOM]) {
    bool same = true;
    for (int r = 1; r < ranks; r++) same = same && strcmp(said[r], said[0]) == 0;
    for (int r = 0; r < ranks; r++) {
        bool again = !said[r][0] || is_quoted(ranks, said, r);
        for (int q = 0; q < r && !again; q++) again = strcmp(said[q], said[r]) == 0;
        if (!again) print_error(same ? -1 : r, said[r]);
    }
}

// All ranks may have the same error: rank 0 collects and prints them. False: this rank must print
// it.
static bool tell_together(int rank, int ranks) {
    static char mine[TEXT_ROOM];
    MPI_Request request = MPI_REQUEST_NULL;
    snprintf(mine, sizeof(mine), "%s", train_error_text());
    if (rank > 0) {
        MPI_Isend(mine, TEXT_ROOM, MPI_CHAR, 0, TAG, MPI_COMM_WORLD, &request);
        double end = MPI_Wtime() + 2 * PATIENCE;
        await_requests(1, &request, end);
        while (MPI_Wtime() < end) sleep_ns(1000000);
        return false;
    }
    char(*said)[TEXT_ROOM] = calloc((size_t)ranks, TEXT_ROOM);
    MPI_Request *requests = calloc((size_t)ranks, sizeof(*requests));
    if (!said || !requests) return false;
    memcpy(said[0], mine, TEXT_ROOM);
    receive_errors(ranks, said, requests);
    tell_all(ranks, said); // kept: messages may still come in
    return true;
}

// MPI_Abort may not end the launcher: Open MPI's waits for its daemon on a host that it cannot
// reach.
static void tell_of_launcher(void) {
    if ((own[0] ? own_code : iso_last_error()->code) != ISO_ERR_TIMEOUT) return;
    char outlook[200];
    watchdog_outlook(outlook, sizeof(outlook));
    fprintf(stderr, "%s: the job ends here by MPI_Abort: %s\n", program, outlook);
}

// The one way out of a job that cannot end together. Nothing is freed, and nobody finalizes: what
// was given up is still under way inside MPI, which would crash.
void train_abort(void) {
    int rank, ranks;
    watch_farewell(NULL); // no farewell besides this message
    iso_recorder_fail(own[0] ? own_code : iso_last_error()->code, train_error_text());
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); // its errors add nothing now
    if (!tell_together(rank, ranks)) print_error(rank, train_error_text());
    tell_of_launcher();
    fflush(stdout);
    watch_clean();
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    _exit(EXIT_FAILURE);
}
