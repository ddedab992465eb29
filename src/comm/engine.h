// SPDX-License-Identifier: MIT
// Private to src/comm: the exchanges under way in this process, and the threads that drive them.
#ifndef ISO_ENGINE_H
#define ISO_ENGINE_H

#include "comm/idle.h"
#include "comm/mpi_error.h"

#include <isotherm/comm.h>
#include <pthread.h>

typedef struct iso__shared iso__shared;
struct iso__hierarchy;
struct iso__stages;

// Whose message or collective an MPI request is.
typedef struct iso__owner {
    iso_request *request;
    struct iso__stages *stages; // a message of this exchange; NULL: of none
} iso__owner;

// One per process, attached to MPI_COMM_SELF, so that MPI_Finalize stops it.
typedef struct iso__engine {
    pthread_mutex_t lock; // guards everything below
    pthread_cond_t wake;  // wakes the helper: something is in flight and no thread waits, or stop
    pthread_t thread;
    bool thread_runs, stop, finalized;
    int references;
    iso_progress mode;
    char why[96];
    char algorithm[128];  // of all-reduces, with the reason; chosen by the first communicator
    int algorithm_number; // Open MPI's; 0: not known
    int pairwise;         // 0, or the value of ISO_IALLREDUCE that allows it (pairwise.h)
    int waiters;          // threads inside a wait: they drive progress instead of the helper
    double sleep_us;      // of the helper between tests, adapted within [ISO_SLEEP_MIN_US,
                          // ISO_SLEEP_MAX_US]
    bool sleep_fixed;
    // Parallel arrays: the arguments of MPI_Testsome, and the owner of each entry.
    int in_flight, capacity;
    MPI_Request *mpi;
    iso__owner *owner;
    int *completed;
    MPI_Status *statuses;
    iso_request *oldest, *newest;                      // everything that is not complete
    uint64_t completions;                              // of requests, so far
    iso__shared *shared;                               // all memory that is shared with other ranks
    struct iso__channel *channels;                     // all channels
    struct iso__hierarchy *hierarchies;                // of channels, hierarchy.h
    struct iso__stages *stages_done, *last_stage_done; // stages.h: messages are complete
    iso_request *chunks_done, *last_chunk_done; // of channels: complete, but not finished yet
    iso_request *free_list;
    int promised;             // MPI requests that there is room for, whatever else is in flight
    MPI_Op sum_bf16, sum_f16; // sum16.c
    // Of stall.h: all watches, ISO_STALL_WARN, how often the helper beats (0: never), and when this
    // process last did.
    struct iso__watch *watches;
    double stall_warn_s;
    int64_t beat_ns, beaten_ns;
} iso__engine;

// ---- engine.c ----
// With the lock held: makes room for `more` further MPI requests.
iso_status iso__engine_reserve(iso__engine *engine, int more);
// With the lock held: makes room for `more` MPI requests for good, until they are taken back.
iso_status iso__engine_promise(iso__engine *engine, int more);
static inline void iso__engine_take_back(iso__engine *engine, int count) {
    engine->promised -= count;
}
// With the lock held: wakes the helper if there is work and no thread waits.
void iso__engine_kick(iso__engine *engine);
// With the lock held: adapts the helper's sleep when a wait begins for an exchange that started at
// began_ns. done: the exchange is already complete.
void iso__engine_adapt(iso__engine *engine, int64_t began_ns, bool done);

// ---- progress.c ----
// Returns the process's engine, and adds a reference. The first call starts it with the wanted
// mode.
iso_status iso__engine_acquire(iso_progress wanted, iso__engine **out);
void iso__engine_release(iso__engine **engine);
// With the lock held: makes all progress that is possible without waiting. May release the lock in
// between.
void iso__engine_test_all(iso__engine *engine);
// Drives progress while the calling thread waits for something else, if no helper thread does.
void iso__engine_assist(iso__engine *engine);

// What a thread waits for.
typedef struct iso__awaited {
    iso_comm *comm;
    const struct iso__stream *stream; // that it belongs to
    const char *name;
    int64_t began_ns;
    const void *what;
    bool (*is_done)(const void *what);
    iso__idle idle;
} iso__awaited;
// With the lock held, which is released between tests: drives progress until `awaited` is done.
iso_status iso__engine_wait(iso__engine *engine, const iso__awaited *awaited);

// ---- sum16.c ----
// The engine's operators for sums of 16-bit elements; freed before MPI is finalised.
iso_status iso__sum16_create(iso__engine *engine);
void iso__sum16_free(iso__engine *engine);

#endif
