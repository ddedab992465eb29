// SPDX-License-Identifier: MIT
// Private to src/parallel, optim/dp_optimizer, optim/periodic and optim/resume:
// functions of data-parallel modules that the public header does not declare.
#ifndef ISO_PARALLEL_IMPL_H
#define ISO_PARALLEL_IMPL_H

#include "base/base.h"
#include "comm/comm_calls.h"
#include "comm/traffic.h"

#include <isotherm/parallel.h>

// The trainable parameters, in the order of the reducer's indices; borrowed.
int iso__data_parallel_trainable(iso_module *data_parallel, iso_parameter *const **out);

// The reducer that averages the gradient of a parameter, and the index of the parameter in it;
// NULL: none.
iso_reducer *iso__data_parallel_of_parameter(const iso_parameter *parameter, int *index);

// Collective. Completes pending work first. From the next backward on, gradients are averaged over
// this scope. The initial scope is iso_data_parallel_config.scope.
iso_status iso__data_parallel_set_scope(iso_module *data_parallel, iso_scope scope);
// Called collectively when the module enters (false) and leaves (true) evaluation mode, after
// pending updates were completed. NULL removes it.
typedef iso_status (*iso__train_hook)(bool training, void *user);
void iso__data_parallel_set_train_hook(iso_module *data_parallel, iso__train_hook hook, void *user);

// Local. The 2-norm of this rank's own gradients, before they are exchanged: for a pre-sync hook.
iso_status iso__local_grad_norm(iso_module *data_parallel, double *out);

// ---- tensor_batch.c ----
// Gives all ranks rank 0's values of tensors, several at a time. Begins as {.comm = ...}.
enum { ISO_TENSOR_BATCH = 64 };
typedef struct iso__tensor_batch {
    iso_comm *comm; // borrowed
    iso_tensor *tensor[ISO_TENSOR_BATCH];
    iso__block block[ISO_TENSOR_BATCH];
    size_t bytes;
    int count;
} iso__tensor_batch;
// Collective: all ranks add tensors of the same shapes and types in the same order. Some tensors
// get their values only in iso__tensor_batch_end.
iso_status iso__tensor_batch_add(iso__tensor_batch *batch, iso_tensor *tensor);
iso_status iso__tensor_batch_end(iso__tensor_batch *batch);

// ---- buffers.c ----
// Settings for iso__params_check_ranks (free *out with iso__free), and a hash over complete names
// and shapes.
iso_status iso__buffers_describe(const iso_buffer_list *list, char **out);
uint64_t iso__buffers_fingerprint(const iso_buffer_list *list);
// Collective, over lists of one fingerprint. Gives all ranks rank 0's values.
iso_status iso__buffers_broadcast(iso_comm *comm, const iso_buffer_list *list);

// Synchronises the buffers of a DataParallel.
typedef struct iso__buffer_sync {
    iso_comm *comm;              // borrowed
    const iso_buffer_list *list; // borrowed
    iso_buffer_config config;
    void *packed; // the buffers as they travel; NULL: no exchange
    size_t bytes;
    bool due;             // the last backward, if any, was not inside no_sync
    double weight, total; // in the mean: of this rank, and of all ranks
    int root;             // the rank whose buffers ISO_BUFFERS_RANK0 takes
    iso_traffic traffic;  // of training, without evaluation
    // An exchange that does not block: its request, and total and root when it began.
    bool request_made;
    iso_request *request;
    double sent_total;
    int sent_root;
} iso__buffer_sync;
// Collective, over lists of one fingerprint. Destroy *out also on failure.
iso_status iso__buffer_sync_create(iso_comm *comm, const iso_buffer_list *list,
                                   const iso_buffer_config *config, iso__buffer_sync *out);
// Completes an exchange under way. Returns false if that fails; what it uses then remains, and the
// caller must keep the communicator.
bool iso__buffer_sync_destroy(iso__buffer_sync *sync);
// Local. Sets how this rank's buffers count from now on. At first all ranks count equally, and root
// is rank 0.
void iso__buffer_sync_weigh(iso__buffer_sync *sync, double weight, double total, int root);
// Collective. The first synchronises now. The second does so only if config.when is this moment;
// after a forward it only starts the exchange.
iso_status iso__buffer_sync_run(iso__buffer_sync *sync);
iso_status iso__buffer_sync_at(iso__buffer_sync *sync, iso_buffer_when now);
// Waits for the exchange that was started last, if any, and puts its result into the buffers.
iso_status iso__buffer_sync_finish(iso__buffer_sync *sync);
iso__buffer_sync *iso__data_parallel_buffers(iso_module *data_parallel); // Local.

#endif
