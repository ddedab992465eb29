// SPDX-License-Identifier: MIT
// Private to src/exchange/average*.c: the state of a weighted mean over nodes.
#ifndef ISO_AVERAGE_IMPL_H
#define ISO_AVERAGE_IMPL_H

#include "exchange/average.h"

#include <isotherm/trace.h>

// The number of elements of a shard is a multiple of this, so that shards are multiples of 64 bytes
// in every element type.
enum { ISO__AVERAGE_UNIT = 32 };

// A message to one node is a multiple of this, in bytes.
enum { ISO__AVERAGE_MESSAGE = 64 };

// The types of elements of the array.
typedef enum iso__average_type {
    ISO__AVERAGE_F32,
    ISO__AVERAGE_F64,
    ISO__AVERAGE_TYPES
} iso__average_type;

typedef struct iso__average_range {
    size_t first, count; // among the elements of a type
} iso__average_range;

// A chunk of the array whose shares travel together. In the buffers it is one block for each node,
// padded with zeros. The codec's groups are counted from the first element of the chunk, so chunks
// and shards may begin anywhere. Blocks hold whole groups and multiples of ISO__AVERAGE_UNIT.
typedef struct iso__average_chunk {
    iso__average_type type;
    size_t first, count; // elements of the array
    size_t block;        // elements of one node's share
    size_t offset;       // elements of its type that the buffers have before its blocks
    iso_request *request;
    iso_request *sent; // gossip and swap: the message that leaves; `request`: the one that arrives
} iso__average_chunk;

typedef enum iso__average_phase {
    ISO__AVERAGE_IDLE,
    ISO__AVERAGE_NODE, // only where each rank has its own array
    ISO__AVERAGE_SCATTER,
    ISO__AVERAGE_GATHER,
    ISO__AVERAGE_SPREAD,
    ISO__AVERAGE_VERDICT,
    ISO__AVERAGE_DONE,
    ISO__AVERAGE_PHASES
} iso__average_phase;

// Why a rank wants the exchange dropped.
typedef enum iso__average_cause {
    ISO_CAUSE_NONE,
    ISO_CAUSE_VALUES, // its values are not finite
    ISO_CAUSE_RANGE,  // they, or the mean, are too large for the wire
    ISO_CAUSE_MPI,
    ISO_CAUSES
} iso__average_cause;

struct iso__average {
    iso__routes *routes;
    const iso_topology *layout; // the routes'
    iso__average_config config;
    size_t count;                     // of f32
    size_t size[ISO__AVERAGE_TYPES];  // elements of each type
    size_t shard[ISO__AVERAGE_TYPES]; // of these, a local rank's with ISO__SHARDS
    double factor; // of this node's values in the sum; 1 if all nodes have equally many ranks

    char *send, *recv; // blocks, those of f32 first; `send` is reused to gather the sums
    // An exchange writes the new values beside the old ones. They replace the old ones only if all
    // ranks succeed. mean[current] is the last mean, the reference of differences; its first
    // element is NaN before there is one.
    float *mean[2], *residual[2], *share_residual[2];
    size_t residual_count, share_count;
    int current, current_residual;
    bool with_copies;     // gossip sends differences from copies; `config` then has no differences
    float *copies;        // see average_gossip.c; NULL: there are none
    iso_request **spread; // one for each shard and type
    // With config.each_rank: this rank's array, and this rank's shard of all arrays of its node.
    char *own[ISO__AVERAGE_TYPES], *others[ISO__AVERAGE_TYPES];
    iso_request *inside[ISO__AVERAGE_TYPES];

    // The exchange under way.
    const iso_topology *route; // its communicators
    iso__average_phase phase;
    int at; // first request of the phase that is not complete
    int group;
    int64_t turn;           // of gossip
    int peer;               // of swap
    bool measuring;         // the exchange leaves reference and error feedback unchanged
    const iso__codec *wire; // of this exchange
    bool as_difference;     // likewise
    float *result;          // the mean is gathered here
    iso_comm *leaders;      // exchanges this rank's elements; NULL: it has none to exchange
    iso__average_range carried[ISO__AVERAGE_TYPES]; // the elements that this rank exchanges
    size_t room[ISO__AVERAGE_TYPES];                // elements of the buffers that they need
    iso__average_chunk *chunk;
    int chunk_count;
    iso_request *verdict;
    double *metrics; // 1 + ISO__METRICS, the first: lowest failing rank and cause; then filling
    // Gossip: the report sent with the values, and the one received from the sender, as `metrics`.
    double *report, *peer_report;
    iso_request *report_sent, *report_came;
    iso__average_cause cause; // of this rank
    char message[sizeof(((iso_error *)0)->message)];
    int64_t start_ns, back_ns;
    uint64_t range; // for a profiler
    iso__average_stats stats;
};

// ---- average_layout.c --------------------------------------------------------------------------------

// Whether a message goes to one node, and not a share to each.
static inline bool iso__average_has_peer(const iso__average *a) {
    return a->config.kind != ISO__MEAN;
}
// The number of blocks of a chunk: one for each node; with a peer, one with all of it.
size_t iso__average_blocks(const iso__average *a);
size_t iso__average_chunks(const iso__average *a, size_t count); // of `count` elements
// Lays out the chunks of a->carried, and sets a->room.
void iso__average_lay_out(iso__average *a);
// The bytes of the buffers before the f64 blocks, and of the whole buffers, with f32 in `wire`.
size_t iso__average_f64_base(const iso__average *a, const iso__codec *wire);
size_t iso__average_room_bytes(const iso__average *a, const iso__codec *wire);
// Bytes of the result before the elements of a type.
size_t iso__average_at(const iso__average *a, iso__average_type type);
// The elements of a type in the shard of local rank l, with ISO__SHARDS.
iso__average_range iso__average_shard(const iso__average *a, iso__average_type type, int l);
bool iso__average_has_reference(const iso__average *a);

// ---- average_fail.c ----------------------------------------------------------------------------------

// A rank that has failed takes part in all phases, so that no rank waits for it. The verdict
// reports the failure. note: ISO_CAUSE_MPI if status is an error.
void iso__average_fail(iso__average *a, iso__average_cause cause);
// This rank's value of metrics[0]. The maximum over all ranks is that of the lowest failing rank.
double iso__average_own_verdict(const iso__average *a);
void iso__average_note(iso__average *a, iso_status status);
// Returns ISO_OK once the request is over. A time-out, after which the request can be waited for
// again, is returned; any other failure is left to the verdict.
iso_status iso__average_settle(iso__average *a, iso_request **request, bool wait);
// Counts `bytes` sent from this rank to each other rank of comm.
void iso__average_count(iso__average *a, const iso_comm *comm, size_t bytes);

// ---- average_node.c ----------------------------------------------------------------------------------

// For config.each_rank. Adds up this rank's shard of the node's arrays. finish puts it at its place
// in the flat array `sums`.
iso_status iso__average_node_open(iso__average *a);
void iso__average_node_close(iso__average *a);
void iso__average_node_send(iso__average *a, const float *values);
iso_status iso__average_node_finish(iso__average *a, bool wait, float *sums);

// ---- average_gossip.c --------------------------------------------------------------------------------

typedef struct iso__average_peers {
    int to, from; // ranks of a->leaders
} iso__average_peers;
// The number of exchanges after which the peers repeat.
int iso__average_turns(const iso__average *a);
iso__average_peers iso__average_choose_peers(const iso__average *a); // of this exchange
// Replaces the values that were sent, `own`, by their mean with those that arrived. The bits are
// those of a mean over two nodes. Returns whether all means are finite.
bool iso__average_mix(bool f64, size_t count, void *own, const void *peer);

// The following functions work on all f32 elements, if there are copies. For each turn of the
// peers, a rank has one copy of its own values, as the receiver knows them, and one of the sender's
// values. Both ends add the same encoded differences to a copy, so its bits stay the same on both.
size_t iso__average_copy_count(const iso__average *a); // floats of all copies; 0: there are none
// All copies become these values, the same on all ranks. ISO_ERR_STATE if they are not finite.
iso_status iso__average_set_copies(iso__average *a, const float *values);
// Encodes x minus this rank's copy, and copies x to the result. Returns whether all was finite.
bool iso__average_encode_copy(iso__average *a, const float *x, char *to);
// Adds consensus_step / 2 times the difference of the new copies to the result. Returns whether all
// of it is finite. Does not change the copies yet.
bool iso__average_mix_copies(iso__average *a, const char *sent, const char *received);
// Updates the copies. If a rank's report says that its values were not valid, neither end updates
// its copy of them.
void iso__average_commit_copies(iso__average *a, const char *sent, const char *received);
// The first sends this rank's report, and begins to receive the sender's. The second completes both
// messages, and takes the maxima of both reports, as a verdict does.
void iso__average_send_report(iso__average *a);
iso_status iso__average_finish_report(iso__average *a, bool wait);

#endif
