// SPDX-License-Identifier: MIT
// Private to src/comm: sums by pairwise exchange, in stages of messages between pairs of ranks.
// There are two schedules. Directly: each rank receives its slice of every other rank's data, adds
// up the slices, and sends the sum to every other rank; two stages, 2 (P - 1) messages of a rank.
// By halves: ranks exchange halves of what is left with ever more distant partners, and gather the
// sums in the same way; 2 log2(Q) + 2 stages of up to four messages, Q the power of two below P.
//
// All ranks together send 2 (P - 1) times the data, the least that a sum can take. Directly, each
// rank sends its share, 2 (P - 1) / P; by halves, at most 2 - 1 / Q. Open MPI's Rabenseifner sends
// as little only if P is a power of two; otherwise its busiest rank sends up to 5/2. Each element
// is added in the order that isotherm/comm.h gives, so the bits are those of Rabenseifner's
// algorithm, and depend neither on its place, nor on the length of the data, nor on the schedule.
#ifndef ISO_PAIRWISE_H
#define ISO_PAIRWISE_H

#include "comm/stages.h"

// The maximum number of ranks that sum directly. Each message costs a rank work, so the maximum
// length of a sum is at least ISO_PAIRWISE_SLICE bytes for each rank, and the messages of long data
// have at least half as many bytes. Measured with 24 hosts. Simulated with 96, without the cost of
// messages.
#define ISO_PAIRWISE_MOST  128
#define ISO_PAIRWISE_SLICE ((size_t)8192)
// In elements: slices and halves begin on cache lines.
#define ISO_SLICE_UNIT 16

// One sum.
typedef struct iso__pairwise_sum {
    iso__stages base;
    struct iso__pairwise *pool;
    char *data;
    size_t count; // elements
    char *blocks; // receives what this rank is to add
    int tag, stage;
} iso__pairwise_sum;

// What differs between the schedules.
typedef struct iso__pairwise_schedule {
    // Sets the number of stages of a sum, and the most messages of a stage.
    void (*shape)(struct iso__pairwise *pairwise);
    // The bytes of sum->blocks, for `bytes` of data.
    size_t (*block_bytes)(const struct iso__pairwise *pairwise, size_t bytes);
    // Begins the messages of sum->stage, and adds what they have brought. Return an MPI return
    // code.
    int (*post)(iso__pairwise_sum *sum);
    int (*add)(iso__pairwise_sum *sum);
} iso__pairwise_schedule;
extern const iso__pairwise_schedule iso__pairwise_by_halves; // coll_halving.c

// The sums that can be under way at once on one communicator. The engine's lock guards it.
typedef struct iso__pairwise {
    iso__engine *engine;
    const iso__pairwise_schedule *schedule;
    int stages, messages; // of a sum; of a stage
    int rank, size;       // in the communicator
    int count;
    bool fixed;
    iso__pairwise_sum *sum;
    char **block; // [size]; for sums made directly
    unsigned turn;
    int promised; // MPI requests of the engine
} iso__pairwise;

// How `size` ranks sum if each one is on a different node: ISO_SUM_PAIRWISE, ISO_SUM_HALVING
// (traffic.h), or 0 for MPI's all-reduce.
int iso__pairwise_choice(const iso__engine *engine, int size);
// Whether they sum by pairwise exchange.
static inline bool iso__pairwise_is_best(const iso__engine *engine, int size) {
    return iso__pairwise_choice(engine, size) != 0;
}
// The value of ISO_IALLREDUCE if it allows pairwise exchange in place of Open MPI's algorithm with
// this number, otherwise 0 (coll_mpi.c).
int iso__pairwise_allowed(int number);
// The least length at which to cut long data for them; 0: any.
size_t iso__pairwise_least_bytes(const iso__engine *engine, int size);

// Local. Makes room for `count` sums at once and their messages, so that posting allocates nothing.
// bytes[i]: the maximum length of sum i. rank, size: in the communicator of the sums.
// fixed: sum i always uses place i; otherwise a sum uses any free place.
typedef struct iso__pairwise_config {
    int rank, size, count;
    const size_t *bytes;
    bool fixed;
} iso__pairwise_config;
iso_status iso__pairwise_create(iso__engine *engine, const iso__pairwise_config *config,
                                iso__pairwise **out);
// Nothing may be in use. Accepts NULL.
void iso__pairwise_destroy(iso__pairwise **pairwise);

// All of the following with the lock held. The first two accept NULL.
bool iso__pairwise_has_room(const iso__pairwise *pairwise, int place); // place: if they are fixed
bool iso__pairwise_is_in_use(const iso__pairwise *pairwise); // so that MPI may write into it
// Begins to sum `count` elements at request->next. There must be room. All ranks must begin their
// sums in the same order. Adds one part to those that the request has under way. Returns an MPI
// return code.
int iso__pairwise_post(iso__pairwise *pairwise, int place, iso_request *request, size_t count,
                       MPI_Comm mpi);
extern const iso__collective_ops iso__collective_pairwise; // for chunks of a channel

#endif
