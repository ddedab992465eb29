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

typedef struct iso_data_parallel_config {
    iso_sync sync;
    double bucket_mb; // MiB; layers are fused until a bucket holds this much; 0: strictly one per
                      // layer
    // ISO_SCOPE_NODE: gradients are averaged over the ranks of a node only (node-local data
    // parallelism, HeAT's DataParallelMultiGPU); parameters start equal on all ranks.
    iso_scope scope;
} iso_data_parallel_config;
#define ISO_DATA_PARALLEL_DEFAULT                                                                  \
    ((iso_data_parallel_config){.sync = ISO_SYNC_LAZY, .bucket_mb = 0.25})

// Collective over comm. Takes one reference of module, on failure too; retains comm. config NULL:
// the default. Checks that all ranks built the same model and broadcasts rank 0's parameters and
// buffers. In training each rank's buffers follow its own batches; on entering evaluation mode they
// become the mean over the ranks, counts the largest, so that all ranks evaluate one model.
// (PyTorch's DistributedDataParallel broadcasts rank 0's before every forward instead.)
// Parameters' gradients become views of the communication buffer; set requires_grad before. Tie an
// optimizer with iso_dp_optimizer_create_take. The wrapper is used like the module itself: forward
// and backward are then collective; evaluation mode, iso_parameter_value, iso_parameter_hash and
// destroying complete pending updates first. ISO_ERR_ARG if nothing requires a gradient.
iso_status iso_data_parallel_create_take(iso_module *module, iso_comm *comm,
                                         const iso_data_parallel_config *config, iso_module **out);
// Collective. Completes everything that is pending.
iso_status iso_data_parallel_finish(iso_module *data_parallel);
// Gradient accumulation (PyTorch: no_sync). Local. Between these two, gradients add up on each rank
// and nothing is exchanged; they nest. The next backward that begins outside adds to them too and
// exchanges the sums, each bucket once: K micro-steps cost one exchange. All ranks make the same
// number of backwards inside. Where a forward stands does not matter. Gradients are sums over
// micro-steps, as in PyTorch: divide the loss by K for the mean. ISO_ERR_STATE from step() when the
// last backward was inside, and from end without begin.
iso_status iso_data_parallel_begin_no_sync(iso_module *data_parallel);
iso_status iso_data_parallel_end_no_sync(iso_module *data_parallel);
// Borrowed: the module inside; the engine (for statistics). NULL if it is not a data_parallel.
iso_module *iso_data_parallel_module(iso_module *data_parallel);
iso_reducer *iso_data_parallel_reducer(iso_module *data_parallel);

typedef struct iso_evaluation {
    double loss, accuracy; // mean over all samples; accuracy in 0 .. 1
    int64_t samples;       // of all ranks
} iso_evaluation;
// Collective over comm. Puts the model into evaluation mode, lets every rank look at what its
// loader gives in epoch 0, and puts the model back. With a loader of ISO_SAMPLER_SHARE each sample
// counts once. An error on any rank is an error on every rank.
iso_status iso_evaluate(iso_module *model, iso_loss *loss, iso_loader *data, iso_comm *comm,
                        iso_evaluation *out);

// Collective. 64-bit hash over names and values of all parameters (frozen ones too; not of buffers,
// in which ranks differ while they train), completing what is pending. *equal (may be NULL):
// whether all ranks of comm have the same.
iso_status iso_parameter_hash(iso_module *module, iso_comm *comm, uint64_t *hash, bool *equal);

#ifdef __cplusplus
}
#endif
#endif
