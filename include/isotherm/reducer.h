// The asynchronous gradient engine on plain arrays. It knows no layers: any training code that has
// arrays can use it. Parameters are listed in the order in which the forward needs them.
//
//   backward:  iso_reducer_grad_ready(r, i) for each parameter, in any order
//   step:      iso_reducer_step(r, &hyper)            freezes hyper, moves nothing
//   forward:   iso_reducer_param_needed(r, i)         waits for i's bucket and applies its update
//
// Gradients are summed over the ranks in buckets, in one agreed order (reverse of the list), with
// non-blocking all-reduces. Mathematically this is synchronous SGD: nothing is stale.
#ifndef ISOTHERM_REDUCER_H
#define ISOTHERM_REDUCER_H

#include <isotherm/topology.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso_reducer iso_reducer;

typedef struct iso_reducer_param {
    const char *name; // for messages and the check that ranks agree; copied
    void *value;      // host memory, count elements; broadcast from rank 0 at creation
    size_t count;     // > 0
    iso_dtype dtype;  // ISO_F32 or ISO_F64; a bucket holds parameters of one type
    int layer;        // parameters of one layer are adjacent and share a number; those of one type
                      // travel together
    uint64_t
        shape_id; // anything that must agree across ranks besides count (e.g. a hash of the shape)
    const char *shape_text; // for the error message, e.g. "[32, 1, 3, 3]"; may be NULL
} iso_reducer_param;

typedef enum iso_sync {
    ISO_SYNC_LAZY,     // wait at the next use of a parameter
    ISO_SYNC_BLOCKING, // the same collectives, each waited for at once
    ISO_SYNC_NONE // no exchange at all (ranks drift apart): only to measure what the exchange costs
} iso_sync;

// Updates parameter i. gradient: count elements; the average over ranks is gradient * scale. hyper:
// the copy frozen at step().
typedef iso_status (*iso_reducer_apply)(int i, void *gradient, double scale, const void *hyper,
                                        void *user);

typedef struct iso_reducer_config {
    iso_sync sync;
    iso_scope scope; // over whom gradients are averaged
    // Layers are fused from the last one on, each element type for itself, until a bucket holds at
    // least this many bytes; 0: one per layer.
    size_t bucket_bytes;
} iso_reducer_config;

// Collective over comm. Sums go through messages or, where the ranks in scope are all on one node,
// through shared memory (ISO_NODE_COLLECTIVE). Checks that all ranks listed the same parameters
// (ISO_ERR_MISMATCH on every rank, naming the odd rank and the first difference), then broadcasts
// rank 0's values. Retains comm.
iso_status iso_reducer_create(iso_comm *comm, const iso_reducer_param *params, int count,
                              const iso_reducer_config *config, iso_reducer **out);
// Collective: completes what is pending.
void iso_reducer_destroy(iso_reducer **reducer);

// The gradient of parameter i (NULL: there is no i): 64-byte aligned memory inside the
// communication buffer, owned by the reducer.
void *iso_reducer_grad(iso_reducer *reducer, int i);
// Who updates, and the size of the struct that step() freezes for it. Completes what is pending
// first. Without one (NULL), gradients are only averaged: read them after iso_reducer_finish.
iso_status iso_reducer_set_apply(iso_reducer *reducer, iso_reducer_apply apply, size_t hyper_bytes,
                                 void *user);

// Local unless it completes the list up to here; then issues exchanges. The gradient of i is final
// for this backward. Once per parameter and backward (ISO_ERR_STATE otherwise).
iso_status iso_reducer_grad_ready(iso_reducer *reducer, int i);
// Collective in the sense that every rank must call it. Parameters without grad_ready since the
// last step contribute zeros (their memory is zeroed). Freezes a copy of hyper for the update of
// this step.
iso_status iso_reducer_step(iso_reducer *reducer, const void *hyper);
// Waits for the exchange that carries parameter i, if one is pending, and applies the update if
// step() asked for it. After it the value of i is current and its gradient memory is free for the
// next backward.
iso_status iso_reducer_param_needed(iso_reducer *reducer, int i);
// The same for all. Without a step() since the last backward, leaves averaged gradients in place.
iso_status iso_reducer_finish(iso_reducer *reducer);
// Gradients will be overwritten by the next backward, so averages need not be kept after an update.
void iso_reducer_zero_grad(iso_reducer *reducer);
// Poll mode: a chance to progress; call it between layers.
void iso_reducer_poll(iso_reducer *reducer);

typedef struct iso_reducer_stats {
    long long steps; // step() calls
    int bucket_count;
    size_t bytes_per_step; // payload of one exchange of all buckets
    // Payload of all exchanges so far, over all ranks and over the ranks of a node; an all-reduce
    // over P ranks sends 2 (P - 1) / P of it from each.
    long long bytes_world, bytes_node;
    double wait_ms;     // total time the program stood in waits (lazy) or in exchanges (blocking)
    double exchange_ms; // total of issue-to-completion over buckets, as seen by this rank
    bool shared_memory; // f32 is summed in memory that all ranks share, not by messages
} iso_reducer_stats;
void iso_reducer_get_stats(const iso_reducer *reducer, iso_reducer_stats *out);
// Collective. Median time in ms of one exchange of all buckets with nothing to hide behind, over
// `repeats`; max over ranks. Nothing may be pending; gradient contents are undefined afterwards.
iso_status iso_reducer_measure_exchange(iso_reducer *reducer, int repeats, double *ms);

#ifdef __cplusplus
}
#endif
#endif
