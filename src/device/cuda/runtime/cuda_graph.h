// SPDX-License-Identifier: MIT
// Private to the CUDA device: records segments of the compute queue as CUDA graphs. A segment is
// the work between two events, copies or waits that refer to the queue. While the queue repeats a
// known segment, its commands are held back, and the whole segment is launched as one CUDA graph.
// If a command differs, those held back are launched one by one.
#ifndef ISO_CUDA_GRAPH_H
#define ISO_CUDA_GRAPH_H

#include "device/cuda/runtime/cuda_impl.h"

// A kernel, or a call of a library.
typedef struct iso__cuda_command {
    iso__cuda_kernel kernel; // function NULL: a call; args and bytes of either
    iso__cuda_call call;
} iso__cuda_command;

// From now on segments are recorded. Call it once, before anything is launched.
iso_status iso__cuda_graphs_create(iso__cuda *cuda);
void iso__cuda_graphs_destroy(iso__cuda *cuda); // drops commands that are held back

// Runs a command, now or with its segment. cuda_queue.c launches waiting updates before it.
// ISO_ERR_UNSUPPORTED refers to this command, never to one that was held back.
iso_status iso__cuda_submit_command(iso__cuda *cuda, const iso__cuda_command *command);
iso_status iso__cuda_execute(iso__cuda *cuda, const iso__cuda_command *command); // now
// Ends a segment: launches waiting updates and commands that were held back.
iso_status iso__cuda_flush(iso__cuda *cuda);

#endif
