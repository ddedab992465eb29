// Private to src/parallel and optim/dp_optimizer.
#ifndef ISO_PARALLEL_IMPL_H
#define ISO_PARALLEL_IMPL_H

#include "base/base.h"

#include <isotherm/parallel.h>

// The trainable parameters, in the order of the reducer's indices; borrowed.
int iso__data_parallel_trainable(iso_module *data_parallel, iso_parameter *const **out);

// Collective. Completes what is pending; from the next backward on gradients are averaged over this
// scope. iso_data_parallel_config.scope is what it begins with.
iso_status iso__data_parallel_set_scope(iso_module *data_parallel, iso_scope scope);
// Called, collectively, when the module enters (false) and leaves (true) evaluation mode, after
// pending updates were completed. NULL: nobody.
typedef iso_status (*iso__train_hook)(bool training, void *user);
void iso__data_parallel_set_train_hook(iso_module *data_parallel, iso__train_hook hook, void *user);
iso_comm *iso__data_parallel_comm(iso_module *data_parallel); // borrowed

// ---- buffers.c ----
// A hash over names, types and shapes.
uint64_t iso__buffers_fingerprint(const iso_buffer_list *list);
// Collective, over lists of one fingerprint. Gives all ranks rank 0's values.
iso_status iso__buffers_broadcast(iso_comm *comm, const iso_buffer_list *list);
// Collective, over lists of one fingerprint. Gives all ranks the mean over the ranks, of counts
// (i64) the largest.
iso_status iso__buffers_average(iso_comm *comm, const iso_buffer_list *list);

#endif
