// SPDX-License-Identifier: MIT
// Private to the CUDA device, for C and for .cu files: multi-tensor updates, which are launched
// together.
//
// Optimizers update one parameter after the other, and most parameters are so small that a launch
// costs more than the work. So updates by the same rule are collected in a table, and one kernel
// makes them all. The table may have the hyperparameters of several parameter groups, because their
// parameters take turns. The updates are launched before anything else enters the compute queue,
// and before any event, copy or wait refers to that queue, so the order of the queue is as if they
// had never waited. The call that causes the launch reports its error. The updates then remain in
// the table, and a later call launches them.
#ifndef ISO_CUDA_MULTI_TENSOR_H
#define ISO_CUDA_MULTI_TENSOR_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// The table is a parameter of the kernel: every GPU accepts 4 KiB of parameters.
enum { ISO_CUDA_UPDATES = 71, ISO_CUDA_UPDATE_ARRAYS = 5 };
enum { ISO_CUDA_RULES = 4 };

// Holds the struct with the hyperparameters of a rule; the remaining bytes are zero.
typedef struct iso__cuda_rule {
    double number[10];
} iso__cuda_rule;

typedef struct iso__cuda_segment {
    int64_t count; // elements of each array
    // The gradient, only read; the parameter; the rule's state; the 16-bit values, if there are
    // any.
    void *at[ISO_CUDA_UPDATE_ARRAYS];
} iso__cuda_segment;

typedef struct iso__cuda_table {
    iso__cuda_rule rule[ISO_CUDA_RULES];
    unsigned rules, segments;
    iso__cuda_segment segment[ISO_CUDA_UPDATES];
    unsigned first[ISO_CUDA_UPDATES + 1]; // first block of each segment, then the number of blocks
    unsigned char rule_of[ISO_CUDA_UPDATES];
} iso__cuda_table;

// The update that one call of a slot requests.
typedef struct iso__cuda_update {
    const void *kernel; // takes an iso__cuda_table, and blocks of ISO_CUDA_BLOCK threads
    iso__cuda_rule rule;
    int arrays;
    size_t element; // bytes
    bool halves;    // the last array has 2 bytes for each element
    iso__cuda_segment segment;
} iso__cuda_update;

typedef struct iso__cuda_multi_tensor {
    const void *kernel; // NULL: nothing waits
    int arrays;
    size_t element;
    bool halves;
    uintptr_t lowest[ISO_CUDA_UPDATE_ARRAYS], end[ISO_CUDA_UPDATE_ARRAYS]; // of all segments
    iso__cuda_table table;
} iso__cuda_multi_tensor;

// Local, does not wait.
iso_status iso__cuda_multi_tensor_add(iso__cuda *cuda, const iso__cuda_update *update);
iso_status iso__cuda_multi_tensor_launch(iso__cuda *cuda);

#ifdef __cplusplus
}
#endif
#endif
