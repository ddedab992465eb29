// SPDX-License-Identifier: MIT
// The asynchronous gradient engine for plain arrays. It does not depend on layers, so any training
// code with arrays can use it. List parameters in the order in which the forward needs them.
//
//   backward:  iso_reducer_grad_ready(r, i) for each parameter, in any order
//   step:      iso_reducer_step(r, &hyper)            freezes hyper, exchanges nothing
//   forward:   iso_reducer_param_needed(r, i)         waits for i's bucket and applies its update
//
// The engine sums the buckets of gradients over the ranks with non-blocking all-reduces, in the
// same order on all ranks. Mathematically this is synchronous SGD: no gradient is stale.
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
    // For messages, and compared between ranks; copied. Two parameters may have the same name,
    // unless iso_reducer_config.by_name is set.
    const char *name;
    void *value;  // count elements; receives rank 0's values at creation; must not overlap
    size_t count; // > 0
    // ISO_F32, ISO_F64, ISO_BF16 or ISO_F16. Gradients of 16-bit parameters are
    // summed as f32, and iso_reducer_grad and updates have f32 gradients for them. Only your own
    // array (`gradient`) has the parameter's type: reporting it converts it, its average is rounded
    // once, to nearest, and updates get the rounded average. Each gradient travels as 4 bytes, or
    // as 2 with iso_hook_bf16 or iso_hook_f16. 16-bit and f32 parameters may share a bucket,
    // because their gradients are summed in one type.
    iso_dtype dtype;
    // Parameters of one layer are adjacent and have the same number. Those of one type travel
    // together. Exception: a layer of which no parameter is cut into pieces is divided, from its
    // last parameter backwards, into groups of adjacent parameters. Each group has at least 128
    // KiB, unless the whole layer has less. Buckets treat each group as a layer.
    int layer;
    uint64_t shape_id;      // anything else that ranks must agree on, e.g. a hash of the shape
    const char *shape_text; // for error messages, e.g. "[32, 1, 3, 3]"; may be NULL
    // > 0: the parameter is a matrix with this many elements in each row. It may be cut into pieces
    // of whole rows, see iso_reducer_config.piece_bytes, and a communication hook may make use of
    // it.
    size_t row;
    bool whole; // never cut into pieces
    // Not exchanged: the gradient stays this rank's own. Values are still broadcast at creation.
    bool local;
    // The gradient leaves after all others of the backward (PyTorch:
    // delay_all_reduce_named_params), so it delays none of them. All delayed dense parameters of
    // one type form one bucket, which ignores bucket sizes and takes no pieces. The forward waits
    // for it when it needs the first of them; with iso_reducer_config.zero, when it needs any
    // parameter. ISO_ERR_ARG together with `local`.
    bool delayed;
    // NULL: backward writes the gradient to memory of the reducer (iso_reducer_grad), in which it
    // travels. Otherwise your own array of count elements, which must not overlap others. Reporting
    // it ready copies it to that memory; you may then reuse the array. Updates get a pointer to the
    // average, with scale 1. If you wait for the exchange before step(), the average is copied back
    // to the array (with zero, only the elements that this rank updates). The copy costs one pass
    // over the gradient. Your array cannot travel in place, because the ranks of a node share the
    // memory of buckets.
    void *gradient;
    // > 1: value (and gradient) hold this many layers, as [L, ...] arrays do. Slice l has count
    // elements, starts l * stride elements after the first slice, and belongs to layer `layer + l`.
    // stride 0: count, i.e. no gaps. Each slice is a parameter of its own, named "NAME[l]". If any
    // entry has layers, entries may be in any order; the reducer sorts them by `layer`, the order
    // of the forward.
    int layers;
    size_t stride;
    void *user; // for iso_reducer_update.param_user
    // > 0: the gradient is sparse, like that of an embedding (PyTorch: sparse=True). In one
    // exchange, at most this many rows (of `row` elements) of a rank's gradient may be non-zero,
    // e.g. the number of tokens of a batch. The ranks exchange these rows and their indices instead
    // of the whole gradient. Each rank sends about (4 + bytes of a row) * sparse_rows bytes to each
    // other rank, however many rows are non-zero. The average is dense. Rows are added in rank
    // order, so f32 is bitwise identical to a sum in shared memory.
    //
    // Backward writes the whole gradient, with zeros, as without sparse_rows. If a rank has more
    // non-zero rows, every rank gets ISO_ERR_ARG, and the message names the parameter, that rank
    // and its number of rows. The limit covers the rows of all backwards of an exchange
    // (accumulation). If no step followed the previous exchange, it also covers the rows of its
    // average, which the gradient still holds. The parameter has its own bucket, is not cut into
    // pieces, and bypasses hooks. ISO_ERR_UNSUPPORTED with zero. On GPUs, all gradients then go
    // through the host. No effect if local, or on one rank.
    size_t sparse_rows;
} iso_reducer_param;

// Parameters are numbered from 0 in the order of the list. An entry with `layers` counts as that
// many parameters: slice l has the number of the first slice plus l. iso_reducer_find returns
// numbers; programs that report whole layers need none.
//
// A tied parameter, which several layers use, is listed once, in the first layer that the forward
// calls. That layer is the first to need it, and the last to add to its gradient: report it then.

typedef enum iso_sync {
    ISO_SYNC_LAZY,     // wait for a parameter when the next forward needs it
    ISO_SYNC_BLOCKING, // the same collectives; wait for each at once
    ISO_SYNC_NONE,     // no exchange, replicas diverge; only to measure the cost of the exchange
    // Blocking, but only in iso_reducer_all_reduce (fairseq's legacy DDP).
    ISO_SYNC_EXPLICIT
} iso_sync;

// The order in which buckets are sent. ISO_ORDER_NEED: buckets that the next forward needs first
// overtake the others. In the first steps, all ranks measure when gradients are ready and needed.
// From the times of the slowest rank, rank 0 plans the order once; all ranks follow the plan.
// ISO_ORDER_REVERSE: the last layers first, as backward completes them. Results are bitwise
// identical.
typedef enum iso_order { ISO_ORDER_NEED, ISO_ORDER_REVERSE } iso_order;

// What happens to a parameter without a gradient in a backward.
typedef enum iso_unused {
    // ISO_ERR_STATE on the rank that lacks the gradient; the message names the parameter. This rank
    // contributes zeros to the others.
    ISO_UNUSED_ERROR,
    ISO_UNUSED_ZERO, // the gradient is zero, and the parameter is updated
    // As PyTorch's find_unused_parameters and pytorch-pfn-extras' negotiate_grads: one more small
    // all-reduce per step determines which ranks used which parameters. A parameter that no rank
    // used keeps its gradient and is not updated. If some ranks used it, the others contribute
    // zeros.
    ISO_UNUSED_NEGOTIATE,
    // As PyTorch's static_graph: the first exchange negotiates, and later ones reuse its answer
    // without a reduction. (The first exchange over each scope negotiates, and so does the first of
    // a resumed run.) ISO_ERR_STATE on a rank that later reports a gradient of a parameter that no
    // rank had used, or lacks one that it had reported. The message names the parameter, and other
    // ranks continue. A rank may start to use parameters that only other ranks have used. In every
    // exchange, each rank decides about its local parameters.
    ISO_UNUSED_STATIC
} iso_unused;

// When the sum over P ranks is divided by P. POST: after the exchange. PRE: before it, against
// overflow. SPLIT: by split_factor before it and by P / split_factor after it. SUM: never.
typedef enum iso_average_mode {
    ISO_AVERAGE_POST,
    ISO_AVERAGE_PRE,
    ISO_AVERAGE_SPLIT,
    ISO_AVERAGE_SUM
} iso_average_mode;

// Updates parameter i. gradient has count elements; the average over ranks is gradient * scale.
// hyper is the copy made by step(). If this function fails, it describes the error with
// iso_error_set, and the call that waits for the parameter returns it. This function must not call
// the reducer.
typedef iso_status (*iso_reducer_apply)(int i, void *gradient, double scale, const void *hyper,
                                        void *user);

typedef struct iso_reducer_config {
    // The device whose memory holds gradients and values (ISO_ERR_ARG for other memory); retained.
    // NULL: host memory. An exchange sees all work that was launched on the device before its
    // gradient was reported ready. While backward continues, each bucket is copied to the host,
    // summed there, and copied back. Work launched after iso_reducer_param_needed sees the result.
    //
    // If possible, NCCL sums over the GPUs of a node instead, without the host, or over all GPUs
    // (ISO_NODE_COLLECTIVE=nccl-all). With NCCL only inside nodes of equal size, each rank
    // exchanges a shard of each bucket between nodes, through the host. Reading values after a step
    // then blocks until the other ranks of the node reach their next forward or call
    // iso_reducer_finish.
    iso_device *device;
    iso_sync sync;
    iso_scope scope; // the ranks over which gradients are averaged
    iso_order order;
    iso_unused unused;
    iso_average_mode average;
    double split_factor;       // > 0; with ISO_AVERAGE_SPLIT only
    const iso_comm_hook *hook; // copied; NULL: iso_hook_plain
    // Layers are fused into buckets of at least this many bytes, from the last layer to the first,
    // separately for each element type. 0: one bucket per layer.
    size_t bucket_bytes;
    // The same for the first bucket sent (the last layers), and for the last one (the first layers,
    // whose exchange is exposed). 0: bucket_bytes.
    size_t first_bucket_bytes, last_bucket_bytes;
    // Instead of these three, which must then be 0: the size of each bucket in sending order; the
    // last entry applies to all remaining buckets. Copied.
    const size_t *bucket_list;
    int bucket_list_count;
    // Matrices (iso_reducer_param.row) of at least two pieces of this size are exchanged and
    // updated piece by piece. Less work then remains when the last piece arrives. 0: never.
    size_t piece_bytes;
    // The number of values that the program sums over the ranks in each exchange; see
    // iso_reducer_add_sum. At most ISO_REDUCER_MAX_SUMS. ISO_ERR_ARG if all parameters are local.
    int sums;
    // The stage of ZeRO (Rajbhandari et al., SC 2020): 0 is none, true is stage 1. Stage 1 divides
    // updates and optimizer state among the ranks. Each rank gets the averages of its shard of
    // every bucket, updates the shard (iso_reducer_own), and sends the new values to the other
    // ranks. iso_reducer_param_needed waits for these. Gradients are added in the same order as f32
    // without ZeRO in shared memory or, between equal nodes, in two levels. There, elementwise
    // updates give bitwise identical results. After a step, reading values on any rank waits until
    // the other ranks reach their next forward or call iso_reducer_finish. ZeRO takes one update
    // function, and calls only its iso_reducer_apply_piece. A rank has averages of its own shards
    // only, and a step overwrites all gradients. So a second backward without a step or
    // iso_reducer_zero_grad in between is ISO_ERR_STATE.
    //
    // With a communication hook, every rank gets the hook's whole average and updates its own
    // shards. Results are bitwise identical to those without ZeRO. Exception: hooks that do not
    // treat each element separately see other pieces of cut parameters (piece_bytes).
    //
    // Stage 2 divides the gradients, too. Once the averages of a bucket's shard are here, the
    // memory of its other shards goes back to the system, and their gradients read as 0. A step
    // gives back the memory of the whole bucket. So after a backward, a rank holds only the
    // gradients of its shards. Before that it also holds buckets in flight, and later new values in
    // flight: of each at most two buckets, or 8 MiB if that is more. With ISO_SYNC_LAZY and
    // ISO_UNUSED_ERROR, a backward waits instead of holding more, at most for the time limit
    // (iso_comm_config.timeout_s). Addresses stay the same, and results are bitwise identical to
    // stage 1. Several backwards that add up before one exchange, as in no_sync, hold all gradients
    // until then, as does ISO_SYNC_EXPLICIT. A hook that changes how gradients travel holds them
    // until step() or a wait. iso_join_next holds all new values. Your own arrays
    // (iso_reducer_param.gradient) stay. The ranks of a node exchange messages, without shared
    // memory. For RDMA, see docs/cluster.md. A rank that waits in iso_reducer_grad_ready waits
    // until all ranks have reported some bucket. So a rank that leaves out a parameter by mistake
    // must not call a collective of its own before step() or iso_reducer_finish, which report the
    // mistake: the waiting ranks join that collective only after the time limit.
    // ISO_ERR_UNSUPPORTED: stage 2 on a device with its own memory; a scope that does not cover
    // zero_scope; sparse gradients; stage 3, which is for modules. ISO_ERR_ARG: no such stage.
    int zero;
    // ISO_SCOPE_NODE: the ranks of each node divide the updates, and all nodes make the same ones
    // (PyTorch FSDP: HYBRID_SHARD). New values stay inside nodes. In stage 1, each rank gets whole
    // averages over all nodes. ISO_ERR_UNSUPPORTED if nodes have different numbers of ranks.
    iso_scope zero_scope;
    // PyTorch's init_sync=False: values are not broadcast at creation. The ranks must have equal
    // values already, e.g. from one file.
    bool keep_values;
    // true: ranks may list the parameters in different orders (pytorch-pfn-extras: the order of
    // names). Parameters are matched by name, and the engine uses the order of rank 0's list.
    // Results are bitwise identical to a run in which every rank lists them in this order. Only
    // rank 0 must keep the parameters of a layer adjacent. Numbers are those of each rank's own
    // list, so do not pass them between ranks: use names (iso_reducer_find) and layers. All names
    // must be different (ISO_ERR_ARG). ISO_ERR_MISMATCH on every rank if a rank lacks a name, or
    // has another type, shape or layer under it; the message has rank and name.
    bool by_name;
    // true: each rank's gradients are sums over its tokens or samples, and the sum over ranks is
    // divided by their total number (fairseq: sample_size). No rank needs to know the total before
    // backward: each passes its own number to iso_reducer_add_weight. `average` says how much is
    // divided before the sum: ISO_AVERAGE_PRE divides by the number of ranks, ISO_AVERAGE_SPLIT by
    // split_factor. Both divide by the rest of the total after the sum. ISO_ERR_ARG with
    // ISO_AVERAGE_SUM.
    bool by_weight;
} iso_reducer_config;
#define ISO_REDUCER_MAX_SUMS 64

// Collective over comm. config NULL: all zero, i.e. lazy, one bucket per layer, and an error for
// parameters without a gradient. Checks that all ranks list the same parameters: if not,
// ISO_ERR_MISMATCH on every rank, and the message names the rank that differs and the first
// difference. Then broadcasts rank 0's values.
//
// Sums use messages, or shared memory if all ranks in scope are on one node (ISO_NODE_COLLECTIVE).
// Over several nodes sums of f32 go in two levels (docs/training.md).
// ISO_ERR_ARG if arrays overlap, an array is listed twice, or the parameters of a layer are not
// adjacent. Creates its own communicators from comm and does not keep comm.
iso_status iso_reducer_create(iso_comm *comm, const iso_reducer_param *params, int count,
                              const iso_reducer_config *config, iso_reducer **out);
// Collective. Completes pending exchanges and updates first.
void iso_reducer_destroy(iso_reducer **reducer);

// The gradient of parameter i, or NULL if there is no parameter i: your array
// (iso_reducer_param.gradient), or 64-byte aligned memory of config.device or of the communication
// buffer, owned by the reducer.
void *iso_reducer_grad(iso_reducer *reducer, int i);
// Local. The number of parameters.
int iso_reducer_param_count(const iso_reducer *reducer);
// Local. The number of the parameter with this name, the first if several have it; -1: none has.
int iso_reducer_find(const iso_reducer *reducer, const char *name);
// Sets the update function, and the size of the struct that step() copies for it. NULL removes it:
// gradients are then only averaged; read them after iso_reducer_finish. Completes pending work
// first. ISO_ERR_STATE if an update function is set already.
iso_status iso_reducer_set_apply(iso_reducer *reducer, iso_reducer_apply apply, size_t hyper_bytes,
                                 void *user);

// For an optimizer of your own: as iso_reducer_set_apply, but the function gets a struct that
// describes the elements to update, which may be any range of a parameter. So one function also
// serves parameters that are cut into pieces, and config.zero.
typedef struct iso_reducer_update {
    int param;           // its number
    const char *name;    // its name
    int slice;           // l of slice l, in an entry with `layers`; else 0
    size_t first, count; // these elements of the parameter, or of the slice
    iso_dtype dtype;     // of the value
    void *value;         // of element `first`
    // Of element `first`; the average over ranks is gradient * scale. Its type is dtype, or f32 if
    // dtype has 16 bits.
    void *gradient;
    double scale; // 1 if the gradients are in your own arrays
    const void *hyper;
    void *param_user; // iso_reducer_param.user
    void *user;       // of iso_reducer_set_update
} iso_reducer_update;
typedef iso_status (*iso_reducer_updater)(const iso_reducer_update *update);
// NULL removes it. Errors: as for iso_reducer_set_apply.
iso_status iso_reducer_set_update(iso_reducer *reducer, iso_reducer_updater update,
                                  size_t hyper_bytes, void *user);
// For several optimizers: adds an update function for the listed parameters (NULL: all), which has
// a step of its own. *id identifies it. Completes pending work first. If two functions list the
// same parameter, forward cannot know which updates are outstanding. From then on every step waits
// for all exchanges and updates immediately, and a warning names the parameter. ISO_REDUCER_ONLY
// stands for the id if there is exactly one function (else ISO_ERR_STATE).
#define ISO_REDUCER_ONLY (-1)
iso_status iso_reducer_add_apply(iso_reducer *reducer, const int *params, int count,
                                 iso_reducer_apply apply, size_t hyper_bytes, void *user, int *id);
// Sets a function that updates `count` elements of parameter i from `first` on; gradient points to
// the gradient of these elements. Parameters that are cut are then updated piece by piece. Without
// it (NULL) they are updated as a whole, when their last piece has arrived. Completes pending work
// first.
typedef iso_status (*iso_reducer_apply_piece)(int i, size_t first, size_t count, void *gradient,
                                              double scale, const void *hyper, void *user);
iso_status iso_reducer_set_apply_piece(iso_reducer *reducer, int id, iso_reducer_apply_piece apply);
// Removes an update function, also on failure. Completes pending work first.
iso_status iso_reducer_remove_apply(iso_reducer *reducer, int id);
// As iso_reducer_step, for one update function. ISO_ERR_STATE for a second step on the same
// gradients.
iso_status iso_reducer_step_of(iso_reducer *reducer, int id, const void *hyper);

// ---- Backward, step, forward ------------------------------------------------------------------------
//
// The first iso_reducer_grad_ready begins a backward. It ends when every parameter has been
// reported, or with the first of these calls:
//   - iso_reducer_step, iso_reducer_finish, and all calls that complete pending work;
//   - iso_reducer_param_needed of a parameter that this backward has reported: the next forward has
//     begun.
// Parameters not reported by then are treated as config.unused says.
//
// iso_reducer_param_needed of a parameter that this backward has not reported yet does not end it.
// So a forward may run again inside the backward (activation recomputation), as long as it runs
// before the gradients of its parameters are reported.
//
// If a backward leaves parameters unreported and another backward follows without a step in
// between, the two count as one, with one exchange. Exception: the forward between them calls
// iso_reducer_param_needed for a parameter that the first one reported. If ranks use different
// parameters, call iso_reducer_finish between such backwards: every rank must end the same number
// of backwards.

// Reports that the gradient of parameter i is final for this backward, and starts the exchanges
// that are now possible. With ISO_SYNC_BLOCKING it waits for these; with zero 2, for earlier ones
// if too many are in flight. Call it once per parameter and backward (else ISO_ERR_STATE).
iso_status iso_reducer_grad_ready(iso_reducer *reducer, int i);
// Local. The number of pieces of parameter i (1 if it is not cut). Piece k has `count` elements
// from `first` on. grad_ready reports all pieces that piece_ready has not. The parameters of a
// layer that are not cut travel with its first piece: report them before it.
int iso_reducer_pieces(const iso_reducer *reducer, int i);
void iso_reducer_piece(const iso_reducer *reducer, int i, int k, size_t *first, size_t *count);
iso_status iso_reducer_piece_ready(iso_reducer *reducer, int i, int k);
// Local. The elements of piece k of parameter i that this rank updates: `count` elements from
// element `first` of the parameter on. Without config.zero, these are all elements of the piece;
// with it, count may be 0. They never change, so this rank needs optimizer state for these elements
// only.
void iso_reducer_own(const iso_reducer *reducer, int i, int k, size_t *first, size_t *count);
// As iso_reducer_grad_ready, for all parameters of a layer (iso_reducer_param.layer) that this
// backward has not reported yet. ISO_ERR_ARG for a layer without parameters; ISO_ERR_STATE if all
// were reported.
iso_status iso_reducer_layer_ready(iso_reducer *reducer, int layer);
// Ends the backward and copies hyper for the update of this step. Every rank must call it. Same as
// iso_reducer_step_of with ISO_REDUCER_ONLY.
iso_status iso_reducer_step(iso_reducer *reducer, const void *hyper);
// Waits for the pending exchange of parameter i, if any, and applies its update if step() was
// called. Afterwards the value of i is current, and its gradient memory is free for the next
// backward. In a backward that has not reported i it does nothing, because the value is current.
iso_status iso_reducer_param_needed(iso_reducer *reducer, int i);
// The same for piece k of parameter i, or for all of i if it is not updated in pieces.
iso_status iso_reducer_piece_needed(iso_reducer *reducer, int i, int k);
// The same for all parameters of a layer.
iso_status iso_reducer_layer_needed(iso_reducer *reducer, int layer);
// The same for all parameters. Every rank must have taken part in the backward; one without any
// gradient calls iso_reducer_shadow. If step() was not called after the last backward, the
// gradients are left averaged.
iso_status iso_reducer_finish(iso_reducer *reducer);
// Collective, blocking, for ISO_SYNC_EXPLICIT. Averages all gradients in place. A gradient that was
// never reported counts as zero.
iso_status iso_reducer_all_reduce(iso_reducer *reducer);
// Tells the reducer that the next backward overwrites the gradients, so it need not keep averages
// after an update. Call it after step(). A call between backward and step() does not discard the
// gradients: step() still uses them.
void iso_reducer_zero_grad(iso_reducer *reducer);
// In poll mode, drives progress. Call it between layers.
void iso_reducer_poll(iso_reducer *reducer);

// ---- Sums that ride with the gradients ----------------------------------------------------------------
//
// A blocking reduction after a lazy step (MPI_Allreduce of a loss, iso_comm_allreduce_f64) waits
// for all gradients in flight, however short it is. The step is then no longer lazy. These sums
// instead travel with the bucket that the next forward needs first, behind its gradients, and cost
// no message. On a GPU, with a hook that has compress or run, with zero, or with sparse gradients,
// they are sent as one short message. No gradient waits for this message.

// Local. Adds this rank's value to sum k (0 to config.sums - 1) of the next exchange. Call it
// before you report the last gradient of the bucket that the next forward needs first: add a loss
// before backward, for instance. A value that is added later may travel one exchange later.
iso_status iso_reducer_add_sum(iso_reducer *reducer, int k, double value);
// Sets *sum to sum k of the latest exchange over the ranks that average gradients, the same on all
// of them; 0 before the first exchange. It is neither averaged nor weighted. It is rounded once, or
// after each addition if the sums travel in their own message. Waits for the bucket that is needed
// first; once the next forward has received its first parameter, it does not wait.
iso_status iso_reducer_get_sum(iso_reducer *reducer, int k, double *sum);

// ---- Averages over tokens or samples ----------------------------------------------------------------

// Local, for config.by_weight. Adds to this rank's weight in the next exchange: the number of
// tokens or samples, 0 or more, over which its gradients are sums. Call it for each backward,
// before its first iso_reducer_grad_ready (ISO_ERR_STATE if a gradient is reported without a
// weight). With accumulation, weights add up. They travel in a short message ahead of the
// gradients. Sums of gradients are divided by the total weight when they arrive. Where possible,
// the updates divide, which saves a pass over the memory.
//
// iso_reducer_shadow has weight 0. If the total is 0, nothing is divided, as in fairseq: the
// gradients of ranks without a token are zeros, and so is their sum. Gradients that are not
// exchanged (`local`) are divided by this rank's own weight.
//
// Averages cannot be added to sums. So a second backward after an exchange, without a step or
// iso_reducer_zero_grad in between, is ISO_ERR_STATE. With config.by_weight, iso_reducer_set_weight
// is ISO_ERR_STATE.
iso_status iso_reducer_add_weight(iso_reducer *reducer, double weight);

// ---- Uneven inputs (see join.h) ---------------------------------------------------------------------

// Local. From the next backward on, weights this rank's gradients by `weight` and divides the sums
// of gradients by `total` (0: the number of ranks). Every rank passes the same total. Nothing may
// be pending.
iso_status iso_reducer_set_weight(iso_reducer *reducer, double weight, double total);
// Collective, in place of a backward on a rank without a batch: contributes zeros. Afterwards call
// step() as the other ranks do.
iso_status iso_reducer_shadow(iso_reducer *reducer);

// ---- What a communication hook remembers ------------------------------------------------------------
//
// Error feedback, the directions of PowerSGD, the number of exchanges: what the hook of a reducer
// keeps from step to step. In PyTorch it is part of the hook's state, which outlives a process
// group. Here it can be copied from a reducer to one that is created later, for example with
// another communicator.
typedef struct iso_hook_memory iso_hook_memory;
// Collective. Completes pending exchanges, then copies what the hook of this rank remembers. Free
// *out with iso_hook_memory_destroy. ISO_ERR_STATE during a backward.
iso_status iso_reducer_get_hook_memory(iso_reducer *reducer, iso_hook_memory **out);
// Collective, before the first backward or between steps; completes pending exchanges. Copies this
// rank's memory, which must come from a hook of the same name, into the hook; NULL: this rank has
// none. A bucket takes over the memory of a bucket that has the same parameters, or pieces, in the
// same places, and as many floats of state. Other buckets keep theirs, which is 0 at first. If the
// number of ranks has changed, error feedback is not rescaled. Nothing moves on any rank if the
// ranks' memories are of different hooks, buckets or numbers of exchanges, or if some ranks have
// none. *buckets (may be NULL): the number of buckets that took over memory, the same on all ranks.
// ISO_ERR_STATE if any rank is in a backward.
iso_status iso_reducer_set_hook_memory(iso_reducer *reducer, const iso_hook_memory *memory,
                                       int *buckets);
void iso_hook_memory_destroy(iso_hook_memory **memory);

// ---- Statistics -------------------------------------------------------------------------------------

typedef struct iso_reducer_stats {
    long long steps; // step() calls
    int bucket_count;
    size_t bytes_per_step; // size of all buckets, in the type in which they travel
    // Total size of the buckets that have been summed so far: over all ranks, and over the ranks of
    // a node. Each sum of a bucket counts its size once, however many bytes it moves.
    long long bytes_world, bytes_node;
    double wait_ms;     // total time the program waited (lazy) or exchanged (blocking)
    double exchange_ms; // total time of all buckets from start to completion, on this rank
    bool shared_memory; // f32 is summed in shared memory, not by messages
    // GPUs sum by NCCL, at times that the host does not see. exchange_ms and the times of buckets
    // then cover only what goes through the host between nodes: 0 with one node, and with nccl-all.
    bool nccl;
    long long exchanges; // of buckets, so far
    bool planned;        // the order by need is in use
    // Bytes moved by gradients, this rank's share; see iso_traffic (isotherm/comm.h).
    long long bytes_sent, bytes_between_nodes;
    // With ZeRO stages 2 and 3, after iso_reducer_watch_gradients: the most bytes of the reducer's
    // gradient memory that were resident at one moment, as the system said (mincore). It is asked
    // whenever a bucket is about to leave, and whenever the new values of one are about to be put
    // in place. Otherwise 0.
    size_t gradient_peak;
    bool two_levels; // f32 is summed inside each node, and between nodes
    bool pairwise; // sums by messages use pairwise exchange (ISO_IALLREDUCE), not MPI's all-reduce
} iso_reducer_stats;
// Local. From now on gradient_peak is measured. Each bucket then costs two looks at all pages of
// gradients in every step. Does nothing without ZeRO stage 2 or 3.
void iso_reducer_watch_gradients(iso_reducer *reducer);
void iso_reducer_get_stats(const iso_reducer *reducer, iso_reducer_stats *out);
// Describes the buckets, one line each, in the order in which backward completes them, delayed ones
// last: bytes, element type, parameters. Free *out with iso_comm_free. ISO_LOG=info logs it at
// creation.
iso_status iso_reducer_bucket_text(const iso_reducer *reducer, char **out);

// Means over the `exchanges` of a bucket so far, on this rank. Times are in ms since the first
// gradient of the backward was ready. wait_ms is the exposed time, during which the program waited
// for the bucket. The hidden fraction is 1 - wait_ms / (done_ms - start_ms).
typedef struct iso_bucket_stats {
    const char *name;         // its layers; borrowed
    size_t bytes, wire_bytes; // of gradients, and as sent
    long long exchanges;
    double ready_ms, start_ms, done_ms; // last gradient ready; exchange started; exchange complete
    double need_ms;                     // the next forward reached the bucket
    double wait_ms;
} iso_bucket_stats;
// bucket: 0 to bucket_count - 1, in the order of iso_reducer_bucket_text.
iso_status iso_reducer_get_bucket_stats(const iso_reducer *reducer, int bucket,
                                        iso_bucket_stats *out);
// Collective. *ms is the median time of `repeats` exchanges of all buckets on the slowest rank,
// with no computation to hide behind. Nothing may be pending. Gradients are undefined afterwards.
iso_status iso_reducer_measure_exchange(iso_reducer *reducer, int repeats, double *ms);

#ifdef __cplusplus
}
#endif
#endif
