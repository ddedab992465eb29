// SPDX-License-Identifier: MIT
// DataParallel: wraps a module and averages its gradients over a communicator.
#ifndef ISOTHERM_PARALLEL_H
#define ISOTHERM_PARALLEL_H

#include <isotherm/data.h>
#include <isotherm/nn.h>
#include <isotherm/reducer.h>
#include <isotherm/topology.h>

#ifdef __cplusplus
extern "C" {
#endif

// A gradient of this rank, in place.
typedef struct iso_gradient {
    const char *name;
    void *data;
    size_t count;
    iso_dtype dtype;
} iso_gradient;
// Replaces the library's reduction (pytorch-pfn-extras: reduce_function). Called on every rank,
// once per synchronised backward, with all gradients. It must leave the averages in place. A
// gradient that this rank lacks is zero, which is no error.
typedef iso_status (*iso_reduce_function)(const iso_gradient *gradients, int count, iso_comm *comm,
                                          void *user);

// How buffers, such as running statistics of batch norms, are synchronised. They differ between
// ranks during training. At creation all ranks get rank 0's.
typedef enum iso_buffer_mode {
    ISO_BUFFERS_AVERAGE, // the mean over the ranks; for counts (i64), the maximum
    ISO_BUFFERS_RANK0,   // rank 0's
    ISO_BUFFERS_NONE     // each rank keeps its own
} iso_buffer_mode;
typedef enum iso_buffer_when {
    ISO_BUFFERS_AT_EVALUATION, // on entering evaluation mode
    // As PyTorch's broadcast_buffers: before each training forward, unless the previous backward
    // was inside no_sync, and on entering evaluation mode.
    ISO_BUFFERS_BEFORE_FORWARD,
    // As pytorch-pfn-extras' broadcast_buffers: at the end of each backward outside no_sync; with
    // ISO_SYNC_EXPLICIT in iso_data_parallel_all_reduce_gradients.
    ISO_BUFFERS_AFTER_BACKWARD,
    ISO_BUFFERS_ON_CALL, // only in iso_data_parallel_sync_buffers
    // As PyTorch's _register_buffer_comm_hook with POST_FORWARD: after each training forward,
    // unless the previous backward was inside no_sync. The exchange does not block: it continues
    // during backward and step. The next forward waits for it before it uses the buffers.
    // Evaluation mode, state dicts, iso_data_parallel_finish and iso_data_parallel_sync_buffers
    // wait for it, too. Until then, the buffers are this rank's own, and the result of the exchange
    // will overwrite changes to them (with ISO_BUFFERS_RANK0, not on rank 0). With
    // ISO_BUFFERS_RANK0, results are bitwise identical to those with ISO_BUFFERS_BEFORE_FORWARD.
    // `function` is called right after the forward.
    ISO_BUFFERS_AFTER_FORWARD
} iso_buffer_when;
// Replaces the library's exchange (pytorch-pfn-extras: broadcast_function; PyTorch: buffer
// communication hook). Called on every rank at the same times. Ignored buffers are not listed.
typedef iso_status (*iso_buffer_function)(const iso_buffer_list *buffers, iso_comm *comm,
                                          void *user);
// All buffers travel in one exchange, which blocks unless `when` is ISO_BUFFERS_AFTER_FORWARD. A
// blocking exchange in every step adds its latency to each step, and waits for the slowest rank.
// The config must be equal on all ranks (else ISO_ERR_MISMATCH).
typedef struct iso_buffer_config {
    iso_buffer_mode mode;
    iso_buffer_when when;
    iso_buffer_function function; // NULL: the library's exchange; not called with ISO_BUFFERS_NONE
    void *user;
} iso_buffer_config;

typedef struct iso_data_parallel_config {
    iso_sync sync;
    double bucket_mb; // MiB; layers are fused until a bucket has this size; 0: one bucket per layer
    // ISO_SCOPE_NODE: gradients are averaged only over the ranks of a node (HeAT:
    // DataParallelMultiGPU). Parameters still start equal on all ranks.
    iso_scope scope;
    // Size of the first bucket sent, and of the last one; 0: bucket_mb. Or, with both 0, a list
    // with the size of each bucket in sending order, which replaces bucket_mb; its last entry
    // applies to all remaining buckets.
    double first_bucket_mb, last_bucket_mb;
    const double *bucket_list_mb;
    int bucket_list_count;
    // MiB. Parameters of at least two pieces of this size are exchanged and updated in pieces of
    // whole rows; Linear sends pieces while its backward computes the next ones, where these
    // have the same bits as the whole (docs/gradient-engine.md). 0, or only one rank: no pieces.
    double piece_mb;
    iso_order order;
    // true: some parameters may get no gradient in a backward, see ISO_UNUSED_NEGOTIATE
    // (pytorch-pfn-extras: negotiate_grads). A parameter that still has an older gradient, because
    // no zero_grad has discarded it, counts as used, as in PyTorch. false: backward returns an
    // error if a parameter got no gradient in it, nor in the preceding backwards inside no_sync.
    bool find_unused_parameters;
    // true: the same, but the first exchange determines the unused parameters for the whole run, so
    // later ones need no reduction for it, see ISO_UNUSED_STATIC (PyTorch: static_graph).
    bool static_unused;
    iso_average_mode average;
    double split_factor;
    const iso_comm_hook *hook; // copied; NULL: iso_hook_plain
    // Names of parameters and buffers that are not synchronised after the initial broadcast, such
    // as the experts of a mixture. An optimizer updates them with this rank's own gradient. The
    // periodic modes refuse such parameters (ISO_ERR_UNSUPPORTED), and leave such buffers alone.
    const char *const *ignore;
    int ignore_count;
    // Names of parameters whose gradients leave together, after all others of the backward
    // (PyTorch: delay_all_reduce_named_params), such as large ones that are used in several places.
    // See iso_reducer_param.delayed. ISO_ERR_ARG for unknown names, and for ignored ones. Frozen
    // parameters have no effect.
    const char *const *delay;
    int delay_count;
    iso_reduce_function reduce; // NULL: the library's reduction
    void *reduce_user;
    iso_buffer_config buffers;
    // The stage of ZeRO, see iso_reducer_config.zero. 1 (true) divides updates and optimizer state
    // among the ranks, 2 also gradients, 3 also parameters. ZeRO takes one optimizer. LAMB adds its
    // norms over the ranks, so its results differ by rounding from those without ZeRO. A rank has
    // averaged gradients of its own shards only. iso_clip_grad_norm, iso_grad_norm,
    // iso_optimizer_state_dict and iso_optimizer_load_state_dict therefore become collective, and
    // cover all shards. A step discards all gradients: for several backwards in a step, use
    // no_sync. After a step, reading parameter values on any rank waits until the other ranks reach
    // their next forward.
    //
    // With stage 3, each rank keeps only its shards of the values, in memory of the wrapper. Before
    // a layer's forward or backward, the ranks gather the values of its bucket. While the layer
    // computes, they gather those of the next bucket. When all layers of a bucket have run, the
    // memory of the other shards goes back to the system. A layer that ran several times in an
    // earlier forward, such as a tied module or one in a loop, keeps its bucket until the end of
    // the forward. The first forward keeps all buckets. Results are bitwise identical to stage 1.
    // Gradients are as in stage 2.
    //
    // - Every forward and backward is collective, also inside no_sync: all ranks must make the same
    //   ones in the same order. With find_unused_parameters, ranks may use different layers, and in
    //   different orders. Without it, ranks with ISO_SYNC_BLOCKING wait for each other if their
    //   orders differ.
    // - When a layer that ran once in each earlier forward runs several times, all values are
    //   gathered again. All ranks must reach this point in the same forward. If ranks start to
    //   repeat layers at different times, as in loops of different lengths, run these layers twice
    //   in the first forward. Afterwards each rank may choose how often they run.
    // - iso_parameter_value gathers all values of the module. They stay until the next training
    //   forward has used them, or a step updates them. So read parameter->value only after this
    //   call, and not across a forward or step. Between a step and the next forward, any rank may
    //   call it. The call waits until the other ranks read values, enter evaluation mode, or reach
    //   that forward. From the forward to the step, and in a loop of iso_join_next, all ranks must
    //   call it at the same place, or none. Inside a forward or backward, the values then stay
    //   until its end.
    // - In evaluation mode all values are in memory, so ranks may evaluate different numbers of
    //   batches.
    // - If a layer fails on some ranks, all ranks can continue with another forward. After a
    //   time-out, repeat the forward; this works unless it has already dropped values. A backward
    //   that timed out cannot be repeated.
    // - If a reference to the wrapped module, or to one below it, remains, destruction gathers the
    //   values and is collective. So keep such a reference on all ranks, or on none.
    //
    // ISO_ERR_UNSUPPORTED with 3 for parameters whose values are arrays of the program
    // (iso_tensor_borrow) or are mapped.
    int zero;
    // ISO_SCOPE_NODE: among the ranks of a node, see iso_reducer_config.zero_scope. The periodic
    // modes take ZeRO only so, and stages 1 and 2 alone.
    iso_scope zero_scope;
    // PyTorch's init_sync=False: parameters and buffers are not broadcast at creation. The ranks
    // must have equal ones already, e.g. from one file.
    bool keep_values;
    // true: the ranks' modules may register parameters and buffers in different orders
    // (pytorch-pfn-extras: the order of names). They are matched by full name, and rank 0's order
    // counts. Results are bitwise identical to a run in which every rank registers in this order.
    // Lists of parameters and buffers, of this module and of modules below it, are then in rank 0's
    // order, and so is the saved state of the optimizer. A tied parameter has the name of its first
    // place, so register the modules that share it in the same order on all ranks. Random numbers
    // of layers (dropout) follow each rank's own order. ISO_ERR_MISMATCH on every rank if a rank
    // lacks a name, or has another shape or type under it; the message has the rank and the name.
    bool by_name;
    // true: each rank's gradients are sums over its tokens or samples, and the sums over ranks are
    // divided by their total number (fairseq: sample_size), see iso_reducer_config.by_weight. Each
    // rank gives its number by iso_data_parallel_add_weight. A loss that is a mean over a batch of
    // n samples gives such sums when its gradient is multiplied by n. A backward after a step needs
    // zero_grad in between (ISO_ERR_STATE): averages cannot be added to sums. In a join, the
    // weights take the place of the divisor, and a rank without a batch has weight 0. ISO_ERR_ARG
    // with `reduce` and with ISO_AVERAGE_SUM.
    bool by_weight;
} iso_data_parallel_config;
extern const iso_data_parallel_config iso_data_parallel_default; // the default, for C++
#ifdef __cplusplus
#define ISO_DATA_PARALLEL_DEFAULT iso_data_parallel_default
#else
#define ISO_DATA_PARALLEL_DEFAULT                                                                  \
    ((iso_data_parallel_config){.sync = ISO_SYNC_LAZY, .bucket_mb = 0.25, .piece_mb = 1})
#endif

// Collective over comm. Takes one reference of module, also on failure; retains comm. config NULL:
// the default. Checks that all ranks have the same model and config (else ISO_ERR_MISMATCH on every
// rank), and broadcasts rank 0's parameters and buffers. During training each rank's buffers follow
// its own batches. By default they are averaged on entering evaluation mode, so that all ranks
// evaluate the same model.
//
// Gradients become views of the communication buffer, so set requires_grad before. Tie an optimizer
// with iso_dp_optimizer_create_take. Use the wrapper like the module. Forward and backward are
// collective. Pending updates are completed by iso_parameter_value, by iso_parameter_hash, on
// entering evaluation mode, and on destruction.
//
// Forward copies inputs that are on another device to the module's (PyTorch: DDP moves inputs to
// device_ids[0]). It waits for the copies, and keeps their memory for the next step. Outputs and
// the gradients of inputs are on the module's device.
//
// With ISO_SYNC_EXPLICIT nothing is exchanged automatically: call
// iso_data_parallel_all_reduce_gradients between backward and step. Results are bitwise identical,
// but all of the exchange is exposed.
//
// If a layer fails in a backward on some ranks, these still send the gradients that they have, and
// zeros, and the others get ISO_OK. So agree on the status after each backward (iso_comm_agree); if
// it is an error, call zero_grad on all ranks, and go on with another batch. This does not hold for
// modules with synchronised batch norms, with ISO_UNUSED_STATIC, and after a time-out or an error
// of MPI.
//
// ISO_ERR_ARG if no parameter requires a gradient, ISO_ERR_STATE if the module or one below it is
// wrapped already.
iso_status iso_data_parallel_create_take(iso_module *module, iso_comm *comm,
                                         const iso_data_parallel_config *config, iso_module **out);

// In MiB, as those of iso_data_parallel_config.
typedef struct iso_bucket_sizes {
    double bucket_mb, first_bucket_mb, last_bucket_mb;
} iso_bucket_sizes;
// Collective, between steps. Builds the buckets anew, in the order in which the gradients of rank
// 0's latest backward were ready (PyTorch's DDP does so once, after the first backward). The layers
// whose gradients were ready first then share the first bucket, and so on, whatever the order in
// which the module lists its parameters. sizes NULL: the sizes stay. Completes pending work first.
// While it runs, the buckets before and the new ones are in memory.
//
// Parameters, gradients, optimizers with their state, hooks, and the totals of the statistics stay.
// The means of each bucket start over, as do the measurements for the order by need
// (ISO_ORDER_NEED) and the decision of static_unused. Afterwards iso_data_parallel_reducer and
// iso_parameter_grad return other pointers.
//
// Results are bitwise identical to a run that never rebuilds, on two conditions. First, every
// exchange adds gradients in one order, wherever they lie in a bucket. This holds in shared memory,
// and by messages with the default of ISO_IALLREDUCE. Second, the communication hook treats each
// element separately and remembers nothing. This holds without a hook, and for iso_hook_f16 and
// iso_hook_bf16. What another hook remembers moves to buckets that are the same, see
// iso_reducer_set_hook_memory; in other buckets the hook starts over. The saved state of such a
// hook fits only a run with the same buckets: rebuild first, then load.
//
// ISO_ERR_UNSUPPORTED with zero, on a device with memory of its own, and in the periodic modes.
// ISO_ERR_STATE during a backward, between a backward and the step that uses its gradients, and
// while an iso_join exists. ISO_ERR_MISMATCH if the ranks give different sizes. After an error on
// any rank all ranks keep the buckets that they had.
iso_status iso_data_parallel_rebuild(iso_module *data_parallel, const iso_bucket_sizes *sizes);

// Collective. Completes all pending exchanges and updates. ISO_ERR_STATE during a backward, whose
// remaining gradients would be left out.
iso_status iso_data_parallel_finish(iso_module *data_parallel);
// Collective, blocking. Synchronises buffers now according to config.buffers.mode, whatever `when`
// is. Does nothing with ISO_BUFFERS_NONE.
iso_status iso_data_parallel_sync_buffers(iso_module *data_parallel);
// Local. Gradient accumulation (PyTorch: no_sync). Between begin and end, which may be nested, each
// rank accumulates gradients and exchanges nothing. The next backward that begins outside adds its
// gradients and exchanges the sums, each bucket once: K micro-steps cost one exchange. All ranks
// must make the same number of backwards inside. Forwards may run inside or outside.
//
// Gradients are sums over micro-steps, as in PyTorch: divide the loss by K for the mean. step()
// returns ISO_ERR_STATE if the last backward was inside, and so does end without begin.
iso_status iso_data_parallel_begin_no_sync(iso_module *data_parallel);
iso_status iso_data_parallel_end_no_sync(iso_module *data_parallel);
// Local, with config.by_weight only (else ISO_ERR_STATE). Adds to this rank's weight in the next
// exchange: the number of tokens or samples over which its gradients are sums, 0 or more
// (ISO_ERR_ARG). Call it before each backward, also inside no_sync: the weights of accumulated
// backwards add up, and zero_grad discards them with the gradients. Call it once there is a
// gradient to propagate: the weight of a backward that never comes stays. ISO_ERR_STATE if
// gradients of this backward have left already. A backward whose gradients leave without a weight
// is ISO_ERR_STATE.
iso_status iso_data_parallel_add_weight(iso_module *data_parallel, double weight);
// Collective, blocking, with ISO_SYNC_EXPLICIT only (else ISO_ERR_STATE). Averages all gradients in
// place; a missing one counts as zero. Does nothing inside no_sync (fairseq: all_reduce_grads).
iso_status iso_data_parallel_all_reduce_gradients(iso_module *data_parallel);
// A backward driven by the caller. Between begin and end, call iso_module_call_backward for modules
// below the wrapped one. (iso_module_backward of the wrapper does the same.) begin completes
// pending work, and end ends the backward; both are collective outside no_sync. Nothing else ends
// the backward, so in between modules may run their forward again (activation recomputation),
// before their own backward. end without begin is ISO_ERR_STATE.
//
// In between, iso_parameter_value and iso_parameter_grad complete nothing. Values are current (with
// ZeRO stage 3, iso_parameter_value gathers them, and is collective). Gradients are this rank's own
// until they are sent. step() of the optimizer returns ISO_ERR_STATE, and so does iso_module_train
// if it changes the mode.
iso_status iso_data_parallel_begin_backward(iso_module *data_parallel);
iso_status iso_data_parallel_end_backward(iso_module *data_parallel);

// Called on every rank after each synchronised backward, before gradients are sent, in the order in
// which the hooks were added. Gradients are still this rank's own: read them from
// iso_module_parameters and parameter->grad, not by iso_parameter_grad. While a hook is installed,
// all gradients are sent at the end of the backward. Adding and removing a hook are collective, and
// complete pending work. If that fails, a hook is removed all the same: its memory can be freed.
// *handle identifies the hook for removal; NULL: it stays.
typedef iso_status (*iso_pre_sync_hook)(iso_module *data_parallel, void *user);
iso_status iso_data_parallel_add_pre_sync_hook(iso_module *data_parallel, iso_pre_sync_hook hook,
                                               void *user, int *handle);
iso_status iso_data_parallel_remove_pre_sync_hook(iso_module *data_parallel, int handle);
// Called before each forward, in the order in which the hooks were added; may replace the input by
// a tensor of its own, which the next hook then receives. Of several inputs it gets and replaces
// the first one. Handles as above. Local.
typedef iso_status (*iso_before_forward)(iso_module *data_parallel, iso_tensor **in, void *user);
iso_status iso_data_parallel_add_before_forward(iso_module *data_parallel, iso_before_forward hook,
                                                void *user, int *handle);
iso_status iso_data_parallel_remove_before_forward(iso_module *data_parallel, int handle);

// The wrapped module, the gradient engine (for statistics), the communicator. Borrowed; the engine
// only until iso_data_parallel_rebuild. NULL if the argument is not a data_parallel.
iso_module *iso_data_parallel_module(iso_module *data_parallel);
iso_reducer *iso_data_parallel_reducer(iso_module *data_parallel);
iso_comm *iso_data_parallel_comm(iso_module *data_parallel);
// Local. This rank's share of the bytes that training has moved so far (see iso_traffic in
// isotherm/comm.h): gradients, buffers and statistics of synchronised batch norms. Parameters
// exchanged by daso are in iso_daso_stats. Exchanges of your own functions (config.reduce,
// config.buffers.function) are not counted.
iso_status iso_data_parallel_get_traffic(iso_module *data_parallel, iso_traffic *out);
// Means since the wrapper was created, on this rank, in ms (PyTorch: the avg_..._time of
// _get_ddp_logging_data). forward: from entry to return of training forwards, including lazy waits
// for parameters and their updates. backward: from begin to end, including what follows the last
// layer. exchange: from the start of a backward's first exchange to the end of its last one,
// computed from the mean times of the buckets; backwards without an exchange do not count. overlap:
// how much of `exchange` passed before the last gradient was ready. The last two are 0 if the host
// sees no exchange (see iso_reducer_stats). A device may still compute after forward and backward
// have returned.
typedef struct iso_data_parallel_times {
    long long forwards, backwards;
    double forward_ms, backward_ms, exchange_ms, overlap_ms; // 0 before the first one
} iso_data_parallel_times;
// Local.
iso_status iso_data_parallel_get_times(iso_module *data_parallel, iso_data_parallel_times *out);
// Local. Sets rank and ranks of a sampler's config to those of the wrapper's communicator, so that
// all of its ranks divide the samples among them (Lightning: distributed_sampler_kwargs). Leaves
// the rest unchanged.
iso_status iso_data_parallel_sampler(iso_module *data_parallel, iso_sampler_config *config);

// Collective over comm. Declares that each rank's data set is a shard of a larger data set. Call it
// before you create a loader. The loader's sampler then draws from this rank's samples only; give
// it rank and ranks of comm. Shards may have different contents and numbers of samples (see
// iso_sampler_create). Their tensors must have the same shapes and types: otherwise
// ISO_ERR_MISMATCH on every rank, with a message that names `what` ("the training set") and the
// ranks. If there are labels, the number of classes becomes the largest one of all ranks.
iso_status iso_dataset_set_shard(iso_dataset *dataset, iso_comm *comm, const char *what);

typedef struct iso_evaluation {
    double loss;     // mean over all samples
    double accuracy; // fraction of labels that are predicted, in [0, 1]; NaN without labels
    int64_t samples; // of all ranks
} iso_evaluation;
// Collective over comm. Evaluates the model on epoch 0 of each rank's loader, in evaluation mode,
// and restores the mode of every module. The model gets all inputs of the samples (see
// iso_module_forward_many) and must have one output; the loss gets the labels, one for each row of
// the output (ISO_ERR_SHAPE otherwise), or without labels the first target. With ISO_SAMPLER_SHARE
// each sample counts once. An error on any rank is an error on every rank: ISO_ERR_ARG if the model
// has several outputs, the samples have neither labels nor targets, or no rank has a sample.
iso_status iso_evaluate(iso_module *model, iso_loss *loss, iso_loader *data, iso_comm *comm,
                        iso_evaluation *out);
// The same with progress: calls `watch` on each rank after each of its batches. `done` of
// iso_loader_batches(data) batches are then complete. user is passed on. watch must not use the
// model, the loader or comm.
typedef void (*iso_evaluate_watch)(int64_t done, void *user);
iso_status iso_evaluate_watched(iso_module *model, iso_loss *loss, iso_loader *data, iso_comm *comm,
                                iso_evaluate_watch watch, void *user, iso_evaluation *out);

// Collective. A 64-bit hash of the names and values of all parameters, frozen ones included.
// Buffers are excluded, because they differ between ranks during training. Completes pending
// updates first. *equal (may be NULL): whether all ranks of comm have the same hash.
iso_status iso_parameter_hash(iso_module *module, iso_comm *comm, uint64_t *hash, bool *equal);

#ifdef __cplusplus
}
#endif
#endif
