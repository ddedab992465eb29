// Tells of an error once, and ends the job on all ranks.
#include "train_error.h"

#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TEXT_ROOM 1024

static char own[TEXT_ROOM]; // empty: the last error is the library's
static const char *program = "train";

void train_error_program(const char *name) { program = name; }

iso_status train_error(iso_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(own, sizeof(own), format, args);
    va_end(args);
    return code;
}

const char *train_error_text(void) { return own[0] ? own : iso_last_error()->message; }

// With the rank that says it, unless the sentence begins with one; rank -1: all of them.
static void tell(int rank, const char *said) {
    bool named = strncmp(said, "rank ", 5) == 0 && said[5] >= '0' && said[5] <= '9';
    if (rank < 0 || named)
        fprintf(stderr, "%s: %s\n", program, said);
    else
        fprintf(stderr, "%s: rank %d: %s\n", program, rank, said);
}

bool train_all_well(iso_status mine) {
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int lowest = mine < 0 ? rank : ranks;
    MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (lowest == ranks) return true;
    char said[TEXT_ROOM] = "";
    if (rank == lowest) snprintf(said, sizeof(said), "%s", train_error_text());
    MPI_Bcast(said, sizeof(said), MPI_CHAR, lowest, MPI_COMM_WORLD);
    if (rank == 0) tell(lowest > 0 ? lowest : -1, said);
    own[0] = 0; // the next error may be the library's
    return false;
}

// ---- The end of the job -------------------------------------------------------------------------
// Nothing here waits for a message that may not come: rank 0 gives the others PATIENCE seconds, and
// they give it twice that to end the job.

#define PATIENCE 1.0
#define TAG      31415 // MPI promises 32767

// Until the requests are complete, or the time is over.
static void await(int count, MPI_Request *requests, double end) {
    int done = 0;
    while (MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS && !done &&
           MPI_Wtime() < end)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

// On rank 0: what other ranks say by then; empty texts of those that say nothing.
static void listen(int ranks, char (*said)[TEXT_ROOM], MPI_Request *requests) {
    for (int r = 1; r < ranks; r++)
        if (MPI_Irecv(said[r], TEXT_ROOM, MPI_CHAR, r, TAG, MPI_COMM_WORLD, &requests[r - 1]) !=
            MPI_SUCCESS)
            requests[r - 1] = MPI_REQUEST_NULL;
    await(ranks - 1, requests, MPI_Wtime() + PATIENCE);
}

// Each sentence once; without a rank if it is everybody's.
static void tell_all(int ranks, char (*said)[TEXT_ROOM]) {
    bool same = true;
    for (int r = 1; r < ranks; r++) same = same && strcmp(said[r], said[0]) == 0;
    for (int r = 0; r < ranks; r++) {
        bool again = !said[r][0];
        for (int q = 0; q < r && !again; q++) again = strcmp(said[q], said[r]) == 0;
        if (!again) tell(same ? -1 : r, said[r]);
    }
}

// Every rank may have the same error: rank 0 then tells it once. False: it is to be told here.
static bool tell_together(int rank, int ranks) {
    static char mine[TEXT_ROOM];
    MPI_Request request = MPI_REQUEST_NULL;
    snprintf(mine, sizeof(mine), "%s", train_error_text());
    if (rank > 0) {
        MPI_Isend(mine, TEXT_ROOM, MPI_CHAR, 0, TAG, MPI_COMM_WORLD, &request);
        double end = MPI_Wtime() + 2 * PATIENCE;
        await(1, &request, end);
        while (MPI_Wtime() < end) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        return false;
    }
    char(*said)[TEXT_ROOM] = calloc((size_t)ranks, TEXT_ROOM);
    MPI_Request *requests = calloc((size_t)ranks, sizeof(*requests));
    if (!said || !requests) return false;
    memcpy(said[0], mine, TEXT_ROOM);
    listen(ranks, said, requests);
    tell_all(ranks, said); // kept: messages may still come in
    return true;
}

void train_abort(void) {
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); // its own are no news now
    if (!tell_together(rank, ranks)) tell(rank, train_error_text());
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    exit(EXIT_FAILURE);
}
