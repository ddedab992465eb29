// SPDX-License-Identifier: MIT
// Private to src/exchange and optim: the weighted mean of one flat array over nodes, computed while
// the program continues.
//
// start() copies the array. finish() returns the mean of all nodes' copies, with the same bits on
// every rank. In between, poll() moves the exchange from phase to phase:
//
//   NODE     only if each rank has its own array (each_rank): every rank adds up its shard of the
//            arrays of its node, in the order of the ranks, from an all-to-all inside the node
//   SCATTER  every member of the leader group sends each other its share of the array (all to all)
//            and sums what it got in the order of the nodes, in f32 (f64 elements: in f64)
//   GATHER   the summed shares travel to all members
//   SPREAD   inside the node the shards of the local ranks are put together (only with shards)
//   VERDICT  one small reduction over all ranks: whether every rank is well, and metrics. Gossip
//            has a report to the receiver instead
//
// A mean allocates its own array and wires. It does not use the store and the coder of gradients,
// which serve buckets and communication hooks.
//
// Over P nodes, the first two phases together send and receive 2 (P - 1) / P of the array, as a
// ring all-reduce does, but they support every codec and sum in f32.
//
// An array may have f64 elements behind its f32 elements. Codecs and differences are for f32 only:
// f64 elements travel as they are. Both types take part in the same phases and the same verdict.
//
// Gossip (ISO__GOSSIP): instead of the mean of all nodes, a rank gets the mean of its own array and
// that of one other rank. In SCATTER a rank sends one message and receives one. There is no GATHER
// and no SPREAD. A report with the values tells the receiver whether they are valid, so no third
// rank is involved: a late rank delays the rank that receives from it and, if the message is long,
// the rank that sends to it. If a rank fails, it and the rank that receives from it get no mean,
// and the other ranks do not notice. Exchange k goes to rank + d modulo P, with d = 2^(k mod R) and
// R = ceil(log2 P): the directed one-peer exponential graph of Stochastic Gradient Push (Assran et
// al., ICML 2019). In matrices, x becomes W x with W = (I + S) / 2, where S moves every array by d
// ranks.
//   - Every row and every column of W has two elements of 1/2, or for P = 1 one of 1: W is doubly
//     stochastic. Its columns sum to 1, so the sum over ranks stays the same. Its rows sum to 1, so
//     push-sum weights, which begin as 1 and are mixed by the same W, stay 1: they are left out.
//     Both hold for every P.
//   - If P is a power of two, R exchanges in a row multiply (I + S^1) (I + S^2) (I + S^4)... / P =
//     (I + S + S^2 + ... + S^(P - 1)) / P: every rank has the mean of all.
//   - For another P the distance to the mean shrinks: (1 + w^d) / 2, with w a P-th root of unity
//     other than 1, are the other eigenvalues, whose magnitudes are at most 1, and those of d = 1
//     are below 1.
//
// Gossip in pairs (ISO__GOSSIP_PAIRS): the two ranks of a pair send each other their arrays, and
// get the same mean. With H = ceil(P / 2), exchange k pairs rank i < H with rank H + (i + k) mod H:
// Bagua's "shift_one". If P is odd, rank P does not exist, and the rank that would be paired with
// it gets its own array, as a message from itself. W is (I + S) / 2 with a symmetric permutation S,
// so it is symmetric and doubly stochastic (D-PSGD: Lian et al., NeurIPS 2017). In H exchanges,
// every rank of the lower half meets every one of the upper half.
//
// Gossip in a ring (ISO__GOSSIP_RING): even exchanges go to rank + 1, odd ones to rank - 1, modulo
// P, so a rank has the same two peers all the time. Two exchanges in a row multiply (I + S) (I +
// S^-1) / 4 = (2 I + S + S^-1) / 4: the mixing of a ring, where a rank keeps 1/2 and gets 1/4 of
// each neighbour.
//
// Gossip with differences follows CHOCO-SGD (Koloskova, Stich, Jaggi, ICML 2019). For each of the
// turns of the peers, which are R, H in pairs, and 2 in a ring (1 of two ranks), a rank keeps a
// copy y of its own values as the receiver knows them, and a copy z of those of the sender. An
// exchange sends q = Q(x - y) and receives the sender's q', with a codec Q. Then
//
//   y = y + q,   z = z + q',   x = x + (s / 2) (z - y)   with the consensus step s
//
// The sender's y and the receiver's z have the same bits: both begin with the same values, and both
// add the same encoded differences. The sum over ranks of z - y is 0 for every Q and every s, so
// the sum of x stays the same, up to rounding. Nothing needs error feedback, because what q leaves
// out stays in x - y. With s = 1 and a Q without loss x becomes the mean of the two. A Q that
// leaves out much needs a small s. The paper proves convergence for a fixed, undirected graph, any
// Q that leaves less than it gets, and a small s. There ranks need one copy of their own and one
// sum of copies. Here the graph changes, and messages go to one rank, so each turn has copies of
// its own: 2 R or 2 H arrays, 4 in a ring. If a sender is not well, neither end changes its copy.
#ifndef ISO_AVERAGE_H
#define ISO_AVERAGE_H

#include "exchange/codec.h"
#include "exchange/routes.h"

// Every rank whose local rank is below the topology's `smallest` exchanges its shard of the array
// over its own leader group; the node then gathers the shards. So all links of a node are used,
// each for 1/smallest of the array. The array must be the same on all ranks of a node, unless
// config.each_rank.
#define ISO__SHARDS -1

enum { ISO__METRICS = 4 };

// What an exchange leaves on a rank.
typedef enum iso__average_kind {
    ISO__MEAN,         // the mean over all nodes
    ISO__GOSSIP,       // the mean with one other rank, see above
    ISO__GOSSIP_PAIRS, // likewise
    ISO__GOSSIP_RING,  // likewise
    // A node gets the array of one other node (iso__average_set_peer), which gets its own: shard by
    // shard in SCATTER, without GATHER. Values need not be finite.
    ISO__SWAP
} iso__average_kind;

static inline bool iso__is_gossip(iso__average_kind kind) {
    return kind == ISO__GOSSIP || kind == ISO__GOSSIP_PAIRS || kind == ISO__GOSSIP_RING;
}

// The elements of a flat array: those of f32 first, then, from the next multiple of 128 bytes,
// those of f64. The array is passed as a pointer to its first byte.
typedef struct iso__flat {
    size_t f32, f64;
} iso__flat;

static inline size_t iso__flat_f64(iso__flat size) { // bytes before the f64 elements
    return (size.f32 * sizeof(float) + 127) / 128 * 128;
}
static inline size_t iso__flat_bytes(iso__flat size) {
    return size.f64 ? iso__flat_f64(size) + size.f64 * sizeof(double) : size.f32 * sizeof(float);
}

typedef struct iso__average iso__average;

typedef struct iso__average_config {
    const iso__codec *wire; // what travels; required
    // true, ignored for f32: differences from the last mean travel instead of values. What the
    // codec leaves out of a rank's contribution, and of the summed share it sends back, is added to
    // its next one (error feedback: Seide et al., Interspeech 2014; both ways: DoubleSqueeze, Tang
    // et al., ICML 2019). false: values travel. Differences travel with ISO__SHARDS only. Before
    // the first mean or iso__average_set_reference, values travel in f32. Gossip: differences from
    // copies, see above, which are 0 before iso__average_set_reference.
    bool differences;
    double consensus_step; // gossip with differences: s, above 0, at most 1
    // true, ignored for f32: values are summed in the order of the nodes, and every addition and
    // the division round to the element type, as HeAT's 16-bit operations do. Must be false with
    // differences, and for a codec that is no element type.
    bool round_sums;
    // The number of elements of a chunk; the first chunk is the remainder. 0: the array travels as
    // a whole.
    size_t chunk;
    size_t f64; // f64 elements behind the f32 elements
    // All but ISO__MEAN require chunk 0; ISO__SWAP requires f32, and gossip f32 or differences. For
    // gossip, every rank must be a node of its own.
    iso__average_kind kind;
    // The ranks of a node have arrays of their own, and the mean is that of all ranks: every rank
    // first adds up its shard of its node's arrays (NODE). Requires ISO__MEAN, f32, no chunks,
    // ISO__SHARDS and at least two nodes.
    bool each_rank;
    // Ranks start exchanges at different places among their other collectives, so ISO_DEBUG=detail
    // does not compare them.
    bool unordered;
} iso__average_config;

// Collective over the comm of routes, which are retained. All memory is allocated here. count: f32
// elements; the array needs at least one element of some type. An exchange takes a route in start()
// and returns it in finish(), so as many means as there are routes can be under way at once.
iso_status iso__average_create(iso__routes *routes, size_t count, const iso__average_config *config,
                               iso__average **out);
// Waits for an exchange under way, and drops its result.
void iso__average_destroy(iso__average **average);

// Collective, does not wait. Nothing may be under way on this mean, and a route must be free
// (ISO_ERR_STATE). All ranks start and finish their means in the same order. group: ISO__SHARDS, or
// a leader group: then only its members send values and get the mean. values is a flat array; the
// caller may change it when this returns. Values that are not finite on any rank make finish()
// fail on every rank. metrics: this rank's values; metrics[0] is replaced by the ms from start
// until the data are back.
iso_status iso__average_start(iso__average *average, const float *values, int group,
                              const double metrics[ISO__METRICS]);
// Local, never waits. Starts the next phase if the last one is complete. ISO_PENDING: finish()
// would wait.
iso_status iso__average_poll(iso__average *average);
// Local. How far the exchange under way has come: 0 if there is none; 1 in NODE and SCATTER; more
// with every later phase; ISO__AVERAGE_ARRIVED if finish() would not wait.
enum { ISO__AVERAGE_ARRIVED = 5 };
int iso__average_progress(const iso__average *average);
// Waits until the exchange under way has come that far.
iso_status iso__average_reach(iso__average *average, int progress);
// Local. The number k of the next exchange of gossip, the same on every rank; begins with 0.
void iso__average_set_turn(iso__average *average, int64_t turn);
// Local. Sets the node with which this one swaps in the next exchange. That node must name this one
// in turn. A node that names itself gets its own array.
void iso__average_set_peer(iso__average *average, int node);
bool iso__average_busy(const iso__average *average); // between start and finish
// Collective. Waits for the remaining phases. *mean (a flat array, valid until the next start) is
// NULL on ranks outside the group. metrics: the maximum of each over all ranks. If any rank failed,
// no rank gets a mean, and every rank gets an error that names the lowest failing rank. With
// gossip, this holds for this rank and the one that it receives from.
iso_status iso__average_finish(iso__average *average, const float **mean,
                               double metrics[ISO__METRICS]);

// Local. The next exchange sends differences from these values (the f32 elements, copied), which
// must be equal on all ranks. Resets the error feedback. Nothing may be under way. ISO_ERR_STATE
// for values that are not finite. Does nothing if no differences travel. With gossip, sets all
// copies to these values.
iso_status iso__average_set_reference(iso__average *average, const float *values);

// Local. The same, but keeps the error feedback: what was left out is added to the next difference
// from the new reference.
iso_status iso__average_move_reference(iso__average *average, const float *values);

typedef struct iso__average_stats {
    long long exchanges;                       // without those that were dropped
    long long bytes_sent, bytes_between_nodes; // of this rank, see iso_traffic in isotherm/comm.h
    double wait_ms;                            // total time in finish()
    double work_ms; // total time in start() and poll(): converting, summing
} iso__average_stats;
void iso__average_get_stats(const iso__average *average, iso__average_stats *out);
// Collective. *ms is the median time from start to finish of `repeats` exchanges on the slowest
// rank, with no computation to hide behind. Changes neither the reference of differences nor the
// error feedback.
iso_status iso__average_measure(iso__average *average, int repeats, double *ms);

// The arrays of floats to save, so that a resumed run has the same bits. Nothing may be under way.
// Fills item[] and returns the number of arrays (at most ISO__AVERAGE_ARRAYS).
enum { ISO__AVERAGE_ARRAYS = 3 };
typedef struct iso__average_array {
    const char *name; // "reference", "residual", "share_residual"; or of copies, by kind of peers
    float *data;
    size_t count;
} iso__average_array;
int iso__average_arrays(iso__average *average, iso__average_array item[ISO__AVERAGE_ARRAYS]);

#endif
