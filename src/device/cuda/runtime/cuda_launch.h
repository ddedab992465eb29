// SPDX-License-Identifier: MIT
// Private to the CUDA device, for C and .cu files: launches kernels in the compute queue.
//
// A kernel takes one struct by value. Its launcher, in the same .cu file, is an extern "C" function
// that fills the struct and calls iso__cuda_submit (.cu) with a grid. Everything that runs in the
// compute queue goes through here, so that a step can be recorded and run again as a graph.
#ifndef ISO_CUDA_LAUNCH_H
#define ISO_CUDA_LAUNCH_H

#include <isotherm/device.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso__cuda iso__cuda;

typedef struct iso__cuda_kernel {
    const void *function;
    unsigned grid[3], block; // threads of a block, one dimension
    const void *args;        // the struct; copied
    size_t bytes;
} iso__cuda_kernel;

// Local, does not wait. Enters a kernel into the compute queue.
iso_status iso__cuda_launch(iso__cuda *cuda, const iso__cuda_kernel *kernel);
// The same for a call of a library that enters its own work into the compute queue; args are
// copied. ISO_ERR_UNSUPPORTED: the library refuses this call and launched nothing.
typedef iso_status (*iso__cuda_call)(iso__cuda *cuda, const void *args);
iso_status iso__cuda_run(iso__cuda *cuda, iso__cuda_call call, const void *args, size_t bytes);

// The number of blocks of ISO_CUDA_BLOCK threads for a kernel that walks `count` items in strides
// of the grid: enough to fill the device, and no more than the items need.
enum { ISO_CUDA_BLOCK = 256 };
unsigned iso__cuda_blocks(const iso__cuda *cuda, int64_t count);

// The number of arrival counters (iso__cuda_arrivals), which are 0 before and after each launch. If
// the blocks of a launch write partial sums, they count their arrivals, and the last block adds up
// the sums.
enum { ISO_CUDA_ARRIVALS = 256 };

#ifdef __cplusplus
}
#endif
#endif
