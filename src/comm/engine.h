// SPDX-License-Identifier: MIT
// Private to src/comm: what is under way in this process, and who drives it.
#ifndef ISO_ENGINE_H
#define ISO_ENGINE_H

#include "comm/mpi_error.h"

#include <isotherm/comm.h>
#include <pthread.h>

typedef struct iso__shared iso__shared;

// One per process, attached to MPI_COMM_SELF so that MPI_Finalize stops it before MPI goes away.
typedef struct iso__engine {
    pthread_mutex_t lock; // guards everything below
    pthread_cond_t wake;  // something is in flight and nobody waits, or stop
    pthread_t thread;
    bool thread_runs, stop, finalized;
    int references;
    iso_progress mode;
    char why[96];
    char algorithm[128];  // of all-reduces, and why; chosen by the first communicator
    int algorithm_number; // Open MPI's; 0: not known
    int waiters;          // threads inside a wait: they drive progress, the helper stands back
    double sleep_us;      // of the helper between tests, adapted within [ISO_SLEEP_MIN_US,
                          // ISO_SLEEP_MAX_US]
    bool sleep_fixed;
    // Parallel arrays: what MPI_Testsome takes, and whose each entry is.
    int in_flight, capacity;
    MPI_Request *mpi;
    iso_request **owner;
    int *completed;
    MPI_Status *statuses;
    iso_request *oldest, *newest;               // everything that is not complete
    uint64_t completions;                       // of requests, so far
    iso__shared *shared;                        // all memory that is shared with other ranks
    struct iso__channel *channels;              // all that there are
    iso_request *chunks_done, *last_chunk_done; // of channels, complete and not yet taken back
    iso_request *free_list;
    int promised;             // requests that iso__request_reserve has made room for
    MPI_Op sum_bf16, sum_f16; // sum16.c
} iso__engine;

// ---- engine.c ----
// With the lock held: room for `more` further MPI requests.
iso_status iso__engine_reserve(iso__engine *engine, int more);
// Wakes the helper if there is work and nobody waits; with the lock held.
void iso__engine_kick(iso__engine *engine);
// A wait begins for what began at that time: adapts the helper's sleep. With the lock held.
void iso__engine_adapt(iso__engine *engine, int64_t began_ns, bool done);

// ---- progress.c ----
// Gives the process's engine, starting it on first use with the wanted mode. Adds a reference.
iso_status iso__engine_acquire(iso_progress wanted, iso__engine **out);
void iso__engine_release(iso__engine **engine);
// With the lock held, which may be released in between: everything that can be done without
// waiting.
void iso__engine_test_all(iso__engine *engine);
// What a thread that waits for something else does meanwhile, where no helper does it.
void iso__engine_assist(iso__engine *engine);

// What a thread waits for.
typedef struct iso__awaited {
    iso_comm *comm;
    const char *name;
    int64_t began_ns;
    const void *what;
    bool (*is_done)(const void *what);
    bool (*idle)(void *user); // as of iso__channel_wait; may be NULL
    void *user;
} iso__awaited;
// With the lock held, which is released between tests: drives progress until it is done.
iso_status iso__engine_wait(iso__engine *engine, const iso__awaited *awaited);

// ---- sum16.c ----
// The engine's sums of 16-bit elements (sum16.c); freed before MPI goes away.
iso_status iso__sum16_create(iso__engine *engine);
void iso__sum16_free(iso__engine *engine);

#endif
