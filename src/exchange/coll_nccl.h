// SPDX-License-Identifier: MIT
// Private to src/exchange: sums between the GPUs of a node, by NCCL.
//
// Each call enters one collective into a stream of its own and returns. The collective runs after
// an event, and the event is recorded again when it is complete; the host waits for nothing.
//
// All ranks make the same calls in the same order: NCCL pairs them by their order alone. Nothing
// here waits for another rank but for the GPU's completion of what all have issued, so a rank that
// issues its calls without waiting for another's in between cannot be part of a cycle of waits; who
// mixes these calls with other exchanges must show the same for the mixture (transport_shards.c
// does).
//
// A peer that is gone or stuck would keep the GPU busy for ever, and with it whoever waits for the
// device. So a thread watches what is under way: when NCCL reports an error, or nothing has become
// complete for the communicator's time-out, it aborts the communicator. The GPU then runs on, with
// gradients that are worth nothing, and every later call here gives that error.
#ifndef ISO_COLL_NCCL_H
#define ISO_COLL_NCCL_H

#include "base/base.h"
#include "device/device_impl.h"

#include <isotherm/comm.h>

typedef struct iso__nccl iso__nccl;

// Collective over node, each rank with its own CUDA device; retains both. ISO_ERR_UNSUPPORTED, on
// every rank, with a record that says why, where NCCL cannot be used: there is none, or two ranks
// share a GPU (which NCCL allows only where NCCL_HOSTID makes them look like two hosts).
iso_status iso__nccl_create(iso_comm *node, iso_device *device, iso__nccl **out);
// Collective. Does not wait for ever for ranks that are gone. Accepts NULL.
void iso__nccl_destroy(iso__nccl **nccl);

// In place, on memory of the device. label: by reference, what an error names. event: see above.
iso_status iso__nccl_all_reduce(iso__nccl *nccl, void *data, size_t count, iso_dtype dtype,
                                const char *label, iso__device_event *event);
// data is as many shards as there are ranks, each of `count` elements; this rank's is shard number
// `rank` in the node. Scatter: its sum is in place there. Gather: it goes to all others.
iso_status iso__nccl_reduce_scatter(iso__nccl *nccl, void *data, size_t count, iso_dtype dtype,
                                    const char *label, iso__device_event *event);
iso_status iso__nccl_all_gather(iso__nccl *nccl, void *data, size_t count, iso_dtype dtype,
                                const char *label, iso__device_event *event);

// Local, cheap. The first error of anything that was issued; what became complete before a call
// that gives ISO_OK is sound.
iso_status iso__nccl_check(iso__nccl *nccl);
// Waits until all that was issued is complete.
iso_status iso__nccl_finish(iso__nccl *nccl);

#endif
