// DataParallel: a module that wraps a module and averages its gradients over a communicator.
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
// Instead of our reduction (pytorch-pfn-extras' reduce_function): called once per synchronised
// backward with all gradients, on every rank; must leave averages in place.
typedef iso_status (*iso_reduce_function)(const iso_gradient *gradients, int count, iso_comm *comm,
                                          void *user);

// How to synchronise buffers, such as the running statistics of batch norms, which differ between
// ranks during training. At the start all ranks have rank 0's.
typedef enum iso_buffer_mode {
    ISO_BUFFERS_AVERAGE, // the mean over the ranks, of counts (i64) the largest
    ISO_BUFFERS_RANK0,   // rank 0's
    ISO_BUFFERS_NONE     // each rank's own
} iso_buffer_mode;
typedef enum iso_buffer_when {
    ISO_BUFFERS_AT_EVALUATION, // on entering evaluation mode
    // PyTorch's broadcast_buffers: before each training forward, unless the backward before it was
    // inside no_sync, and on entering evaluation mode.
    ISO_BUFFERS_BEFORE_FORWARD,
    // pytorch-pfn-extras' broadcast_buffers: at the end of each backward outside no_sync, in
    // iso_data_parallel_all_reduce_gradients with ISO_SYNC_EXPLICIT.
    ISO_BUFFERS_AFTER_BACKWARD,
    ISO_BUFFERS_ON_CALL // of iso_data_parallel_sync_buffers
} iso_buffer_when;
// Instead of our exchange (pytorch-pfn-extras' broadcast_function, PyTorch's buffer communication
// hook), on every rank at the same times. Buffers that are ignored are not listed.
typedef iso_status (*iso_buffer_function)(const iso_buffer_list *buffers, iso_comm *comm,
                                          void *user);
// One blocking exchange of all buffers: every step, it adds its latency to the step and waits for
// the slowest rank. Equal on all ranks (ISO_ERR_MISMATCH).
typedef struct iso_buffer_config {
    iso_buffer_mode mode;
    iso_buffer_when when;
    iso_buffer_function function; // NULL: ours; not called with ISO_BUFFERS_NONE
    void *user;
} iso_buffer_config;

typedef struct iso_data_parallel_config {
    iso_sync sync;
    double bucket_mb; // MiB; layers are fused until a bucket holds this much; 0: strictly one per
                      // layer
    // ISO_SCOPE_NODE: gradients are averaged over the ranks of a node only (node-local data
    // parallelism, HeAT's DataParallelMultiGPU); parameters start equal on all ranks.
    iso_scope scope;
    // Of the bucket that leaves first, and of the one that leaves last; 0: bucket_mb. Or the size
    // of each bucket in the order in which they leave, the last entry for all that follow.
    double first_bucket_mb, last_bucket_mb;
    const double *bucket_list_mb;
    int bucket_list_count;
    // MiB; parameters of at least two such pieces leave, come back and are updated in pieces of
    // whole rows, Linear's as backward computes them; 0, or where there is one rank: none.
    double piece_mb;
    iso_order order;
    // Not every parameter takes part in every backward: see ISO_UNUSED_NEGOTIATE
    // (pytorch-pfn-extras calls it negotiate_grads); an older gradient that no zero_grad has
    // dropped counts as used, as in PyTorch. Otherwise a parameter that got no gradient in this
    // backward, or in those inside no_sync before it, is an error of backward.
    bool find_unused_parameters;
    iso_average_mode average;
    double split_factor;
    const iso_comm_hook *hook; // copied; NULL: gradients travel as they are
    // Names of parameters and buffers that are not synchronised after rank 0's were broadcast, as
    // experts of a mixture. An optimizer updates them with this rank's own gradient.
    const char *const *ignore;
    int ignore_count;
    iso_reduce_function reduce; // NULL: ours
    void *reduce_user;
    iso_buffer_config buffers;
} iso_data_parallel_config;
extern const iso_data_parallel_config iso_data_parallel_default; // the same, as C++ takes it
#ifdef __cplusplus
#define ISO_DATA_PARALLEL_DEFAULT iso_data_parallel_default
#else
#define ISO_DATA_PARALLEL_DEFAULT                                                                  \
    ((iso_data_parallel_config){.sync = ISO_SYNC_LAZY, .bucket_mb = 0.25, .piece_mb = 1})
#endif

// Collective over comm. Takes one reference of module, on failure too; retains comm. config NULL:
// the default. Checks that all ranks built the same model and broadcasts rank 0's parameters and
// buffers. In training each rank's buffers follow its own batches; unless config.buffers says
// otherwise they become the mean over the ranks on entering evaluation mode, so that all ranks
// evaluate one model.
// Parameters' gradients become views of the communication buffer; set requires_grad before. Tie an
// optimizer with iso_dp_optimizer_create_take. The wrapper is used like the module itself: forward
// and backward are then collective; evaluation mode, iso_parameter_value, iso_parameter_hash and
// destroying complete pending updates first. ISO_ERR_ARG if nothing requires a gradient,
// ISO_ERR_STATE if part of the module is wrapped already.
iso_status iso_data_parallel_create_take(iso_module *module, iso_comm *comm,
                                         const iso_data_parallel_config *config, iso_module **out);
// With ISO_SYNC_EXPLICIT nothing is exchanged automatically: call
// iso_data_parallel_all_reduce_gradients between backward and step. This is slower, because nothing
// is hidden, but easy to follow, and gives the same bits.

// Collective. Completes everything that is pending. ISO_ERR_STATE in the middle of a backward,
// which it would end too early.
iso_status iso_data_parallel_finish(iso_module *data_parallel);
// Collective, blocking. Synchronises buffers now as config.buffers.mode says, whatever its `when`;
// nothing with ISO_BUFFERS_NONE.
iso_status iso_data_parallel_sync_buffers(iso_module *data_parallel);
// Gradient accumulation (PyTorch: no_sync). Local. Between these two, gradients add up on each rank
// and nothing is exchanged; they nest. The next backward that begins outside adds to them too and
// exchanges the sums, each bucket once: K micro-steps cost one exchange. All ranks make the same
// number of backwards inside. Where a forward stands does not matter. Gradients are sums over
// micro-steps, as in PyTorch: divide the loss by K for the mean. ISO_ERR_STATE from step() when the
// last backward was inside, and from end without begin.
iso_status iso_data_parallel_begin_no_sync(iso_module *data_parallel);
iso_status iso_data_parallel_end_no_sync(iso_module *data_parallel);
// Collective, blocking; ISO_SYNC_EXPLICIT only (ISO_ERR_STATE). Averages all gradients in place,
// zeros for parameters without one. Nothing inside no_sync (fairseq's all_reduce_grads).
iso_status iso_data_parallel_all_reduce_gradients(iso_module *data_parallel);
// A backward that the caller drives: call iso_module_call_backward of parts of the module between
// these two. iso_module_backward of the wrapper does the same. The first completes what is pending,
// the second closes the backward; both are collective outside no_sync. Nothing else closes it:
// modules may run their forward again in between (activation recomputation), before their own
// backward. iso_parameter_value and iso_parameter_grad complete nothing in between: values are
// current, gradients are this rank's own until they leave. ISO_ERR_STATE in between from step() of
// the optimizer and from iso_module_train on entering or leaving evaluation mode.
iso_status iso_data_parallel_begin_backward(iso_module *data_parallel);
iso_status iso_data_parallel_end_backward(iso_module *data_parallel);

// Called on every rank after each synchronised backward and before gradients leave, in the order in
// which they were added; gradients are still this rank's own (look at them through
// iso_module_parameters and parameter->grad, not iso_parameter_grad). While there is one, gradients
// leave at the end of the backward and no earlier. Adding and removing are collective. handle is
// what removes it; NULL: nothing will.
typedef iso_status (*iso_pre_sync_hook)(iso_module *data_parallel, void *user);
iso_status iso_data_parallel_add_pre_sync_hook(iso_module *data_parallel, iso_pre_sync_hook hook,
                                               void *user, int *handle);
iso_status iso_data_parallel_remove_pre_sync_hook(iso_module *data_parallel, int handle);
// Called before each forward; may put another tensor, its own, in place of the batch. NULL: nobody.
typedef iso_status (*iso_before_forward)(iso_module *data_parallel, iso_tensor **in, void *user);
iso_status iso_data_parallel_set_before_forward(iso_module *data_parallel, iso_before_forward hook,
                                                void *user);

// Borrowed: the module inside; the engine (for statistics); the communicator. NULL if it is not a
// data_parallel.
iso_module *iso_data_parallel_module(iso_module *data_parallel);
iso_reducer *iso_data_parallel_reducer(iso_module *data_parallel);
iso_comm *iso_data_parallel_comm(iso_module *data_parallel);
// Local. What training has moved so far, this rank's share (see iso_traffic in isotherm/comm.h):
// gradients, buffers and the statistics of synchronised batch norms. Parameters that daso exchanges
// are in iso_daso_stats; what functions of your own exchange (config.reduce,
// config.buffers.function) is not known here.
iso_status iso_data_parallel_get_traffic(iso_module *data_parallel, iso_traffic *out);
// Local. Sets rank and ranks of a sampler's settings, so that those who average gradients share the
// samples, and leaves the rest (Lightning's distributed_sampler_kwargs).
iso_status iso_data_parallel_sampler(iso_module *data_parallel, iso_sampler_config *config);

typedef struct iso_evaluation {
    double loss, accuracy; // mean over all samples; accuracy in 0 .. 1
    int64_t samples;       // of all ranks
} iso_evaluation;
// Collective over comm. Puts the model into evaluation mode, lets every rank look at what its
// loader gives in epoch 0, and puts the model back. With a loader of ISO_SAMPLER_SHARE each sample
// counts once. An error on any rank is an error on every rank.
iso_status iso_evaluate(iso_module *model, iso_loss *loss, iso_loader *data, iso_comm *comm,
                        iso_evaluation *out);
// The same, with progress: calls `watch` on each rank after each batch of its share, when `done` of
// iso_loader_batches(data) batches are complete. user is passed to it. It must not use the model,
// the loader or comm.
typedef void (*iso_evaluate_watch)(int64_t done, void *user);
iso_status iso_evaluate_watched(iso_module *model, iso_loss *loss, iso_loader *data, iso_comm *comm,
                                iso_evaluate_watch watch, void *user, iso_evaluation *out);

// Collective. 64-bit hash over names and values of all parameters (frozen ones too; not of buffers,
// in which ranks differ while they train), completing what is pending. *equal (may be NULL):
// whether all ranks of comm have the same.
iso_status iso_parameter_hash(iso_module *module, iso_comm *comm, uint64_t *hash, bool *equal);

#ifdef __cplusplus
}
#endif
#endif
