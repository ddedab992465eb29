// SPDX-License-Identifier: MIT
/* What a test can ask of the emulated GPU beyond the CUDA interface: faults, and counts of what is
   alive. For C and C++.

   Where a GPU might get by, the emulator does not: default streams, streams that synchronise with
   them, copies of pageable memory in a stream, ranges outside of an allocation, destroyed handles
   and barriers that threads of a block do not share end the program with a message; the host faults
   when it touches device memory; a device runs the collectives of one NCCL communicator at a time.

   Environment, read at the first call of the emulator:
     ISO_EMULATED_GPUS       number of devices (2); 0 makes calls give cudaErrorNoDevice
     ISO_EMULATED_MEMORY_MB  memory of each device (1024)
     ISO_EMULATED_SEED       seed of the order in which streams, blocks and threads run (1)
     ISO_EMULATED_ORDER      random: any stream whose next task may run, some delayed a little;
                             late: a task runs only when somebody waits for it or asks about it;
                             eager: as soon as possible
     ISO_EMULATED_NCCL_S     seconds that ncclCommInitRank waits for the other ranks (60) */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The next call of `function` ("cudaMalloc", "cublasSgemm", "ncclAllReduce") does nothing and gives
   `error`, a value of that library's status type. Several calls queue up, also for one function. */
void emulated_fail_next(const char *function, int error);

/* The next task that is given to any stream fails when its turn comes, as a faulting kernel does:
   it does nothing, and from then on nothing runs and calls give `error` (a cudaError_t). */
void emulated_fail_task(int error);

/* Not 0: cudaMemcpyAsync's copies from a device to the host stand still when their turn comes, and
   with them what follows in their streams; 0: they go on. */
void emulated_hold_copies_out(int hold);

/* Allocated and not yet freed, in all devices of this process. */
size_t emulated_live_bytes(void);
size_t emulated_live_allocations(void);
size_t emulated_live_pinned(void);
size_t emulated_live_streams(void);
size_t emulated_live_events(void);
size_t emulated_live_graphs(void);      /* graphs and executable graphs */
size_t emulated_live_handles(void);     /* of cuBLAS, cuBLASLt and cuDNN */
size_t emulated_live_descriptors(void); /* of cuBLASLt and cuDNN */
size_t emulated_live_comms(void);       /* of NCCL */

/* Calls since the start of this process. */
size_t emulated_device_syncs(void); /* cudaDeviceSynchronize */
size_t emulated_mallocs(void);      /* cudaMalloc, cudaHostAlloc and cudaHostRegister */
size_t emulated_launches(void);     /* tasks given to streams, a graph's launch counting as one */

#ifdef __cplusplus
}
#endif

#endif
