// The asynchronous gradient engine on plain arrays. It does not know layers, so any training code
// that has arrays can use it. Parameters are listed in the order in which the forward needs them.
//
//   backward:  iso_reducer_grad_ready(r, i) for each parameter, in any order
//   step:      iso_reducer_step(r, &hyper)            freezes hyper, moves nothing
//   forward:   iso_reducer_param_needed(r, i)         waits for i's bucket and applies its update
//
// The engine sums gradients over the ranks in buckets, in an order on which all ranks agree, with
// non-blocking all-reduces. Mathematically this is synchronous SGD: nothing is stale.
#ifndef ISOTHERM_REDUCER_H
#define ISOTHERM_REDUCER_H

#include <isotherm/comm_hook.h>
#include <isotherm/device.h>
#include <isotherm/topology.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso_reducer iso_reducer;

typedef struct iso_reducer_param {
    const char *name; // for messages and the check that ranks agree; copied
    void *value;      // count elements; broadcast from rank 0 at creation. Arrays may not overlap
    size_t count;     // > 0
    iso_dtype dtype;  // ISO_F32 or ISO_F64; a bucket holds parameters of one type
    int layer;        // parameters of one layer are adjacent and share a number; those of one type
                      // travel together
    uint64_t
        shape_id; // anything that must agree across ranks besides count (e.g. a hash of the shape)
    const char *shape_text; // for the error message, e.g. "[32, 1, 3, 3]"; may be NULL
    size_t row;             // > 0: it may be cut into pieces of whole rows of so many elements, see
                            // iso_reducer_config.piece_bytes
    bool local;             // not exchanged: its gradient stays this rank's own; values are
                            // broadcast at creation all the same
} iso_reducer_param;

typedef enum iso_sync {
    ISO_SYNC_LAZY,     // wait at the next use of a parameter
    ISO_SYNC_BLOCKING, // the same collectives, each waited for at once
    ISO_SYNC_NONE,     // no exchange at all (ranks drift apart): only to measure what the exchange
                       // costs
    ISO_SYNC_EXPLICIT  // blocking, when iso_reducer_all_reduce is called and not before (fairseq's
                       // legacy DDP): no hooks, easy to follow
} iso_sync;

// The order in which buckets leave. ISO_ORDER_NEED: buckets that the next forward needs first
// overtake the others. Rank 0 plans the order once, from the times at which gradients are ready and
// needed in the first steps, and all ranks follow the plan. ISO_ORDER_REVERSE: last layers first,
// as backward completes them. The bits are the same.
typedef enum iso_order { ISO_ORDER_NEED, ISO_ORDER_REVERSE } iso_order;

// How to treat a parameter that gets no gradient in a backward.
typedef enum iso_unused {
    ISO_UNUSED_ERROR, // ISO_ERR_STATE on the rank where it is missing, naming it; the others get
                      // zeros from there
    ISO_UNUSED_ZERO,  // it contributes zeros and is updated
    // PyTorch's find_unused_parameters, pytorch-pfn-extras' negotiate_grads: one more small
    // reduction per step finds out which ranks used which parameters. A parameter that no rank used
    // keeps its gradient and is not updated; if some ranks used it, the others contribute zeros.
    ISO_UNUSED_NEGOTIATE
} iso_unused;

// When to divide the sum over P ranks: after the exchange, before it (against overflow), by
// split_factor before and P / split_factor after, or never.
typedef enum iso_average_mode {
    ISO_AVERAGE_POST,
    ISO_AVERAGE_PRE,
    ISO_AVERAGE_SPLIT,
    ISO_AVERAGE_SUM
} iso_average_mode;

// Updates parameter i. gradient: count elements; the average over ranks is gradient * scale. hyper:
// the copy frozen at step(). The waiting call reports the error; iso_error_set adds detail.
typedef iso_status (*iso_reducer_apply)(int i, void *gradient, double scale, const void *hyper,
                                        void *user);

typedef struct iso_reducer_config {
    // Whose memory holds values (ISO_ERR_ARG for others) and gradients; retained. NULL: the host's.
    // The exchange sees everything that a backward has launched on the device when it reports a
    // gradient ready. Each bucket is copied to the host beside the backward, travels from there,
    // and is back in device memory for everything launched after iso_reducer_param_needed. CUDA
    // devices of one node are summed by NCCL instead where it can be used (ISO_NODE_COLLECTIVE),
    // without the host; between nodes of equally many ranks each rank then takes one shard of a
    // bucket through the host. One rank may read the resulting values only once the other ranks of
    // its node have reached their next forward or iso_reducer_finish.
    iso_device *device;
    iso_sync sync;
    iso_scope scope; // over whom gradients are averaged
    iso_order order;
    iso_unused unused;
    iso_average_mode average;
    double split_factor;       // > 0, of ISO_AVERAGE_SPLIT
    const iso_comm_hook *hook; // copied; NULL: iso_hook_plain
    // Layers are fused from the last one on, each element type for itself, until a bucket holds at
    // least this many bytes; 0: one per layer.
    size_t bucket_bytes;
    // The same for the bucket that leaves first (the last layers), and for the one that leaves last
    // (the first layers; it is the exposed one). 0: bucket_bytes.
    size_t first_bucket_bytes, last_bucket_bytes;
    // Instead of all three: for each bucket in the order in which they leave; the last entry holds
    // for all that follow. Copied.
    const size_t *bucket_list;
    int bucket_list_count;
    // Parameters that can be cut, of at least two pieces of this size, leave, come back and are
    // updated piece by piece, so that less is left to do when the last one arrives. 0: never.
    size_t piece_bytes;
} iso_reducer_config;

// Collective over comm. config NULL: all of it zero, which is lazy, a bucket for each layer, and an
// error for parameters without a gradient. Sums go through messages or, where the ranks in scope
// are all on one node, through shared memory (ISO_NODE_COLLECTIVE). Checks that all ranks listed
// the same parameters (ISO_ERR_MISMATCH on every rank, naming the odd rank and the first
// difference), then broadcasts rank 0's values. ISO_ERR_ARG where an array is listed twice or
// overlaps another, or other parameters stand between those of a layer. Makes communicators of its
// own from comm, which it does not keep.
iso_status iso_reducer_create(iso_comm *comm, const iso_reducer_param *params, int count,
                              const iso_reducer_config *config, iso_reducer **out);
// Collective: completes what is pending.
void iso_reducer_destroy(iso_reducer **reducer);

// The gradient of parameter i (NULL: there is no i): 64-byte aligned memory of config.device, or of
// the communication buffer, owned by the reducer.
void *iso_reducer_grad(iso_reducer *reducer, int i);
// Sets the function that updates, and the size of the struct that step() freezes for it. Completes
// what is pending first. Without a function (NULL) gradients are only averaged: read them after
// iso_reducer_finish.
iso_status iso_reducer_set_apply(iso_reducer *reducer, iso_reducer_apply apply, size_t hyper_bytes,
                                 void *user);
// Several optimizers: each updates the parameters that it lists (NULL: all) and has a step of its
// own. *id names it. Completes what is pending first. If two of them list the same parameter, a
// forward cannot know which updates are still to come. From then on every step waits for all
// exchanges and updates at once; a warning names the parameter. ISO_REDUCER_ONLY stands for the
// only id; it is ISO_ERR_STATE if there is none or several.
#define ISO_REDUCER_ONLY (-1)
iso_status iso_reducer_add_apply(iso_reducer *reducer, const int *params, int count,
                                 iso_reducer_apply apply, size_t hyper_bytes, void *user, int *id);
// Completes what is pending. Parameters that are cut are updated piece by piece from now on:
// `count` elements of parameter i from `first` on; gradient points to theirs. Without it they are
// updated when their last piece has come back.
typedef iso_status (*iso_reducer_apply_piece)(int i, size_t first, size_t count, void *gradient,
                                              double scale, const void *hyper, void *user);
iso_status iso_reducer_set_apply_piece(iso_reducer *reducer, int id, iso_reducer_apply_piece apply);
iso_status iso_reducer_remove_apply(iso_reducer *reducer, int id);
// As iso_reducer_step, for one of them. ISO_ERR_STATE for a second step on the same gradients.
iso_status iso_reducer_step_of(iso_reducer *reducer, int id, const void *hyper);

// Local unless it completes the list up to here; then issues exchanges. The gradient of i is final
// for this backward. Once per parameter and backward (ISO_ERR_STATE otherwise).
iso_status iso_reducer_grad_ready(iso_reducer *reducer, int i);
// Local. Of a parameter that is cut: how many pieces it has (others: 1), and where piece k lies,
// which has `count` elements from `first` on. grad_ready reports all pieces that were not reported
// by themselves. What is not cut of a layer leaves with the first piece: report it first.
int iso_reducer_pieces(const iso_reducer *reducer, int i);
void iso_reducer_piece(const iso_reducer *reducer, int i, int k, size_t *first, size_t *count);
iso_status iso_reducer_piece_ready(iso_reducer *reducer, int i, int k);
// What closes a backward. The first grad_ready opens one, and it is closed when every parameter has
// been reported, or by the first of these calls:
//   - iso_reducer_step and iso_reducer_finish, and all calls that complete what is pending;
//   - iso_reducer_param_needed of a parameter that this backward has reported: the next forward has
//     begun.
// Parameters that were not reported until then are treated as config.unused says.
// iso_reducer_param_needed of a parameter that this backward has not reported yet does not close
// it: a forward may run again inside the backward (activation recomputation), as long as it runs
// before the gradients of its parameters are reported. So two backwards without a step between them
// are one exchange where the forward between them needs no parameter that the first one has
// reported. Where ranks use different parameters, call iso_reducer_finish between such backwards:
// all ranks must close equally many.
//
// Collective in the sense that every rank must call it. Closes the backward. Freezes a copy of
// hyper for the update of this step. As iso_reducer_step_of with ISO_REDUCER_ONLY.
iso_status iso_reducer_step(iso_reducer *reducer, const void *hyper);
// Waits for the exchange that carries parameter i, if one is pending, and applies the update if
// step() asked for it. After it the value of i is current and its gradient memory is free for the
// next backward. In a backward that has not reported i it does nothing: the value is current.
iso_status iso_reducer_param_needed(iso_reducer *reducer, int i);
// The same for piece k of it; for all of it where it is not updated in pieces.
iso_status iso_reducer_piece_needed(iso_reducer *reducer, int i, int k);
// The same for all. Every rank must have taken part in the backward (one without any gradient calls
// iso_reducer_shadow). Without a step() since the last backward, leaves averaged gradients in
// place.
iso_status iso_reducer_finish(iso_reducer *reducer);
// ISO_SYNC_EXPLICIT: sums all gradients now (those never reported are zeros) and leaves averages in
// place. Collective, blocking.
iso_status iso_reducer_all_reduce(iso_reducer *reducer);
// Gradients will be overwritten by the next backward, so averages need not be kept after an update.
// Call it after step(): between backward and step() it does not take the gradients back.
void iso_reducer_zero_grad(iso_reducer *reducer);
// Poll mode: makes progress. Call it between layers.
void iso_reducer_poll(iso_reducer *reducer);

// ---- Uneven inputs (see join.h) ---------------------------------------------------------------------

// Local. Nothing may be pending. From the next backward on, this rank's gradients are weighted by
// `weight`, and sums are divided by `total` (0: the number of ranks). Every rank passes the same
// total.
iso_status iso_reducer_set_weight(iso_reducer *reducer, double weight, double total);
// Collective, in place of a backward: this rank has no batch and contributes zeros. Then call
// step() like every other rank.
iso_status iso_reducer_shadow(iso_reducer *reducer);

// ---- What happened ----------------------------------------------------------------------------------

typedef struct iso_reducer_stats {
    long long steps; // step() calls
    int bucket_count;
    size_t bytes_per_step; // size of all buckets, in the type in which they travel
    // Sizes of the buckets that were summed so far, over all ranks and over the ranks of a node:
    // each counts once, whatever its sum moves (bytes_sent).
    long long bytes_world, bytes_node;
    double wait_ms;     // total time the program stood in waits (lazy) or in exchanges (blocking)
    double exchange_ms; // total of issue-to-completion over buckets, as seen by this rank
    bool shared_memory; // f32 is summed in memory that all ranks share, not by messages
    // Inside a node GPUs sum by NCCL, at times that the host does not see: exchange_ms and the
    // times of buckets are of what goes through the host, between nodes; of one node they are 0.
    bool nccl;
    long long exchanges; // all-reduces of buckets so far
    bool planned;        // the order by need is in force
    // This rank's share of what gradients have moved, see iso_traffic (isotherm/comm.h).
    long long bytes_sent, bytes_between_nodes;
} iso_reducer_stats;
void iso_reducer_get_stats(const iso_reducer *reducer, iso_reducer_stats *out);
// Describes what travels together: one line per bucket, in the order in which a backward completes
// them, with its bytes, element type and parameters. Free it with iso_comm_free. ISO_LOG=info logs
// it at creation.
iso_status iso_reducer_bucket_text(const iso_reducer *reducer, char **out);

// A bucket's means over `exchanges` so far, ms since the first gradient of the backward was ready,
// on this rank. It is exposed as long as the program stood still for it: wait_ms. Hidden is 1 -
// wait_ms / (done_ms - start_ms).
typedef struct iso_bucket_stats {
    const char *name;         // its layers; borrowed
    size_t bytes, wire_bytes; // of gradients; of what travels
    long long exchanges;
    double ready_ms, start_ms, done_ms; // last gradient ready; left; came back
    double need_ms;                     // the next forward reached it
    double wait_ms;
} iso_bucket_stats;
// bucket: 0 to bucket_count - 1, in the order in which a backward completes them.
iso_status iso_reducer_get_bucket_stats(const iso_reducer *reducer, int bucket,
                                        iso_bucket_stats *out);
// Collective. Median time in ms of one exchange of all buckets with nothing to hide behind, over
// `repeats`; max over ranks. Nothing may be pending; gradient contents are undefined afterwards.
iso_status iso_reducer_measure_exchange(iso_reducer *reducer, int repeats, double *ms);

#ifdef __cplusplus
}
#endif
#endif
