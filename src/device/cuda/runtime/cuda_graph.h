// SPDX-License-Identifier: MIT
// Private to the CUDA device: what enters the compute queue between two places where somebody looks
// at it (an event, a copy, a wait) is a segment. A segment that comes again is held back, compared
// with the one known, and launched as one CUDA graph; where it turns out to differ, what was held
// back is launched piece by piece.
#ifndef ISO_CUDA_GRAPH_H
#define ISO_CUDA_GRAPH_H

#include "device/cuda/runtime/cuda_impl.h"

// A kernel, or a call of a library.
typedef struct iso__cuda_command {
    iso__cuda_kernel kernel; // function NULL: a call; args and bytes of either
    iso__cuda_call call;
} iso__cuda_command;

// Segments are recorded from now on. Called once, before anything is launched.
iso_status iso__cuda_graphs_create(iso__cuda *cuda);
void iso__cuda_graphs_destroy(iso__cuda *cuda); // what is held back is dropped

// Runs it, now or with its segment. Updates that wait come before it: cuda_queue.c.
// ISO_ERR_UNSUPPORTED is of this command, never of one that was held back.
iso_status iso__cuda_submit_command(iso__cuda *cuda, const iso__cuda_command *command);
iso_status iso__cuda_execute(iso__cuda *cuda, const iso__cuda_command *command); // now
// The end of a segment: updates that wait and what was held back are launched.
iso_status iso__cuda_flush(iso__cuda *cuda);

#endif
