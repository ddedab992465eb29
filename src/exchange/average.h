// SPDX-License-Identifier: MIT
// Private to src/exchange and optim: the weighted mean of one flat array of floats over nodes,
// computed while the program goes on.
//
// start() takes a copy of the array; the mean of all nodes' copies comes back from finish(), the
// same bits on every rank. In between poll() moves it from phase to phase:
//
//   SCATTER  every member of the leader group sends each other its share of the array (all to all)
//            and sums what it got in the order of the nodes, in f32
//   GATHER   the summed shares travel to all members
//   SPREAD   inside the node the shards of the local ranks are put together (only with shards)
//   VERDICT  one small reduction over all ranks: whether every rank is well, and metrics
//
// The array and its wires are the mean's own memory. The store and the coder of gradients serve
// buckets and communication hooks, and a mean has neither.
//
// The first two phases move 2 (P - 1) / P of the array each way, as a ring all-reduce does, but in
// any element type with f32 sums.
#ifndef ISO_AVERAGE_H
#define ISO_AVERAGE_H

#include "exchange/routes.h"

// Every local rank below the topology's `smallest` carries its shard of the array over its own
// leader group, and the node puts the shards together: all links of a node are used and each
// carries 1/smallest. The array must be the same on all ranks of a node.
#define ISO__SHARDS -1

enum { ISO__METRICS = 4 };

typedef struct iso__average iso__average;

typedef struct iso__average_config {
    iso_dtype wire; // ISO_F32, ISO_BF16, ISO_F16
    // 16-bit wires: differences to the last mean travel instead of values, and what rounding cut
    // off a rank's contribution (and off the summed share it sends back) is added to its next one
    // (error feedback: Seide et al., Interspeech 2014; both ways: DoubleSqueeze, Tang et al., ICML
    // 2019). false: the values themselves travel. Differences travel with ISO__SHARDS only; as long
    // as there is no last mean and no iso__average_set_reference, values travel in f32.
    bool differences;
    // Sum and division round to the wire type after each operation, in the order of the nodes, as
    // HeAT's 16-bit operations do. Not with differences.
    bool round_sums;
    // The array travels in chunks of so many elements, the first one being the remainder; 0: whole.
    size_t chunk;
} iso__average_config;

// Collective over the comm of routes, which are retained. All memory is allocated here. An exchange
// takes a route in start() and returns it in finish(), so as many means as there are routes can be
// under way at once.
iso_status iso__average_create(iso__routes *routes, size_t count, const iso__average_config *config,
                               iso__average **out);
// Nothing may be under way (it is waited for, and the result dropped).
void iso__average_destroy(iso__average **average);

// Collective, does not wait. Nothing may be under way on this mean, and a route must be free
// (ISO_ERR_STATE). All ranks start and finish their means in the same order. group: ISO__SHARDS or
// a leader group, whose members alone send and get the mean. values (count elements) is read before
// this returns. Values that are not finite are found here and reported by finish() on every rank.
// metrics: this rank's; metrics[0] is overwritten with the ms from start until the data were back.
iso_status iso__average_start(iso__average *average, const float *values, int group,
                              const double metrics[ISO__METRICS]);
// Local, never waits: goes on to the next phase where the last one is complete. ISO_PENDING:
// finish() would wait.
iso_status iso__average_poll(iso__average *average);
bool iso__average_busy(const iso__average *average); // between start and finish
// Collective. Waits for what is left. *mean (count elements, valid until the next start) is NULL on
// ranks outside the group. metrics: the largest of each over all ranks.
// If any rank failed, every rank gets an error that names the lowest such rank, and no rank a mean.
iso_status iso__average_finish(iso__average *average, const float **mean,
                               double metrics[ISO__METRICS]);

// Local. The next exchange is of differences to these values (count elements, copied), which all
// ranks must hold alike; what rounding left is forgotten. Nothing may be under way. ISO_ERR_STATE
// for values that are not finite. Does nothing where no differences travel.
iso_status iso__average_set_reference(iso__average *average, const float *values);

typedef struct iso__average_stats {
    long long exchanges;                       // that were not dropped
    long long bytes_sent, bytes_between_nodes; // of this rank, see iso_traffic in isotherm/comm.h
    double wait_ms;                            // total time in finish()
    double work_ms; // total time in start() and poll(): converting, summing
} iso__average_stats;
void iso__average_get_stats(const iso__average *average, iso__average_stats *out);
// Collective. Median ms from start to finish over `repeats`, nothing to hide behind, max over
// ranks. Changes neither the reference of differences nor what rounding left.
iso_status iso__average_measure(iso__average *average, int repeats, double *ms);

// What must be kept for a run to go on with the same bits, nothing being under way: arrays of
// floats. Fills item[] and returns how many there are (at most ISO__AVERAGE_ARRAYS).
enum { ISO__AVERAGE_ARRAYS = 3 };
typedef struct iso__average_array {
    const char *name; // "reference", "residual", "share_residual"
    float *data;
    size_t count;
} iso__average_array;
int iso__average_arrays(iso__average *average, iso__average_array item[ISO__AVERAGE_ARRAYS]);

#endif
