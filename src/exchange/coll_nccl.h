// SPDX-License-Identifier: MIT
// Private to src/exchange: sums between the GPUs of a node, or of all nodes, by NCCL.
//
// Each call enters one collective into NCCL's own stream and returns; the host does not wait. The
// collective runs after the given event, and records the event again when it is complete.
//
// All ranks must make the same calls in the same order, because NCCL pairs them by their order
// alone. A call waits for another rank only through the GPU, for work that all ranks have issued.
// So a rank that issues its calls without waiting for another rank in between cannot be in a cycle
// of waits. A caller that combines these calls with other exchanges must prove the same for the
// combination (transport_shards.c does).
//
// A rank that is gone or stuck would keep the GPU of its peers busy for ever, and every wait for
// the device would hang. So a thread watches the operations in flight. If NCCL reports an error, or
// nothing completes for the communicator's time-out, it aborts the communicator. The GPU then
// continues, with invalid gradients, and every later call here returns that error.
#ifndef ISO_COLL_NCCL_H
#define ISO_COLL_NCCL_H

#include "base/base.h"
#include "device/device_impl.h"

#include <isotherm/comm.h>

typedef struct iso__nccl iso__nccl;

// Whether this build can use NCCL.
bool iso__nccl_is_built(void);
// Collective over comm; each rank must have its own CUDA device. Retains both. ISO_ERR_UNSUPPORTED
// on every rank if NCCL cannot be used; the message gives the reason: NCCL is missing, or two ranks
// share a GPU (which NCCL allows only if NCCL_HOSTID makes them look like two hosts).
iso_status iso__nccl_create(iso_comm *comm, iso_device *device, iso__nccl **out);
// Collective. Waits for missing ranks until the time-out at most. Accepts NULL.
void iso__nccl_destroy(iso__nccl **nccl);

// Sums in place, in the device's memory. label: borrowed; errors name it. event: see above.
iso_status iso__nccl_all_reduce(iso__nccl *nccl, void *data, size_t count, iso_dtype dtype,
                                const char *label, iso__device_event *event);
// data has one shard of `count` elements for each rank of comm, in the order of ranks.
// Reduce-scatter: the sum of this rank's shard is then in place. All-gather: this rank's shard goes
// to all others.
iso_status iso__nccl_reduce_scatter(iso__nccl *nccl, void *data, size_t count, iso_dtype dtype,
                                    const char *label, iso__device_event *event);
iso_status iso__nccl_all_gather(iso__nccl *nccl, void *data, size_t count, iso_dtype dtype,
                                const char *label, iso__device_event *event);

// Local, cheap. Returns the first error of any operation. Operations that completed before a call
// that returns ISO_OK are correct.
iso_status iso__nccl_check(iso__nccl *nccl);
// Waits until all operations are complete.
iso_status iso__nccl_finish(iso__nccl *nccl);

#endif
