// SPDX-License-Identifier: MIT
// Private to src/parallel, optim/dp_optimizer, optim/periodic and optim/resume:
// what of a data-parallel module its public header does not offer.
#ifndef ISO_PARALLEL_IMPL_H
#define ISO_PARALLEL_IMPL_H

#include "base/base.h"
#include "comm/traffic.h"

#include <isotherm/parallel.h>

// The trainable parameters, in the order of the reducer's indices; borrowed.
int iso__data_parallel_trainable(iso_module *data_parallel, iso_parameter *const **out);

// The reducer that averages the gradient of a parameter, and its index there; NULL: none does.
iso_reducer *iso__data_parallel_of_parameter(const iso_parameter *parameter, int *index);

// Collective. Completes what is pending; from the next backward on gradients are averaged over this
// scope. iso_data_parallel_config.scope is what it begins with.
iso_status iso__data_parallel_set_scope(iso_module *data_parallel, iso_scope scope);
// Called, collectively, when the module enters (false) and leaves (true) evaluation mode, after
// pending updates were completed. NULL: nobody.
typedef iso_status (*iso__train_hook)(bool training, void *user);
void iso__data_parallel_set_train_hook(iso_module *data_parallel, iso__train_hook hook, void *user);

// ---- buffers.c ----
// Settings for iso__params_check_ranks, to be freed with iso__free; and a hash over whole names and
// shapes.
iso_status iso__buffers_describe(const iso_buffer_list *list, char **out);
uint64_t iso__buffers_fingerprint(const iso_buffer_list *list);
// Collective, over lists of one fingerprint. Gives all ranks rank 0's values.
iso_status iso__buffers_broadcast(iso_comm *comm, const iso_buffer_list *list);

// What a DataParallel does about its buffers.
typedef struct iso__buffer_sync {
    iso_comm *comm;              // borrowed
    const iso_buffer_list *list; // borrowed
    iso_buffer_config config;
    void *packed; // what is exchanged; NULL: nothing is
    size_t bytes;
    bool due;             // the last backward, if any, was not inside no_sync
    double weight, total; // of this rank's in the mean, and of all
    int root;             // whose ISO_BUFFERS_RANK0 takes
    iso_traffic traffic;  // of training: not for evaluation
} iso__buffer_sync;
// Collective, over lists of one fingerprint. On failure, too, *out is to be destroyed.
iso_status iso__buffer_sync_create(iso_comm *comm, const iso_buffer_list *list,
                                   const iso_buffer_config *config, iso__buffer_sync *out);
void iso__buffer_sync_destroy(iso__buffer_sync *sync);
// Local: whose buffers count from now on. At first all alike, and rank 0's.
void iso__buffer_sync_weigh(iso__buffer_sync *sync, double weight, double total, int root);
// Collective: does it now / if it is to be done at this time.
iso_status iso__buffer_sync_run(iso__buffer_sync *sync);
iso_status iso__buffer_sync_at(iso__buffer_sync *sync, iso_buffer_when now);

#endif
