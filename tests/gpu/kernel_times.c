// SPDX-License-Identifier: MIT
// Times of all kernels of a program, by CUPTI: a library for CUDA_INJECTION64_PATH, without a
// change to the program, its clocks or its graphs. At the end of the program it writes one line per
// kernel to the file KERNEL_TIMES names:
//
//     start_us  duration_us  graph  stream  grid  block  registers  shared  name
//
//     cc -shared -fPIC kernel_times.c -I$CUDA/include -L$CUDA/lib64 -lcupti -o libkernel_times.so
//     KERNEL_TIMES=out.txt CUDA_INJECTION64_PATH=./libkernel_times.so program
//
// kernel_steps.py makes a table of a training step out of it.
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 kernel_record;
#else
typedef CUpti_ActivityKernel9 kernel_record;
#endif

enum { BUFFER_BYTES = 8 << 20 };
static FILE *out;
static uint64_t origin;

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *records) {
    *size = BUFFER_BYTES;
    *records = 0;
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    if (!*buffer) abort();
}

static double since(uint64_t ns) {
    if (origin == 0) origin = ns;
    return ((double)ns - (double)origin) * 1e-3;
}

static void tell(const CUpti_Activity *record) {
    if (!out) return; // CUPTI goes on while the program ends
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const kernel_record *k = (const kernel_record *)record;
        fprintf(out, "%.3f %.3f %d %u %dx%dx%d %d %d %d %s\n", since(k->start),
                (double)(k->end - k->start) * 1e-3, k->graphId != 0, k->streamId, k->gridX,
                k->gridY, k->gridZ, k->blockX * k->blockY * k->blockZ, k->registersPerThread,
                k->staticSharedMemory + k->dynamicSharedMemory, k->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *m = (const CUpti_ActivityMemcpy6 *)record;
        fprintf(out, "%.3f %.3f %d %u - - - %llu (copy kind %d)\n", since(m->start),
                (double)(m->end - m->start) * 1e-3, m->graphId != 0, m->streamId,
                (unsigned long long)m->bytes, m->copyKind);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const CUpti_ActivityMemset4 *)record;
        fprintf(out, "%.3f %.3f %d %u - - - %llu (set)\n", since(m->start),
                (double)(m->end - m->start) * 1e-3, m->graphId != 0, m->streamId,
                (unsigned long long)m->bytes);
    }
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t valid) {
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)size;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) tell(record);
    free(buffer);
}

static void finish(void) {
    cuptiActivityFlushAll(1);
    FILE *file = out;
    out = NULL;
    fclose(file);
    cuptiFinalize(); // no more calls
}

static int failed(CUptiResult result, const char *what) {
    const char *text = "unknown";
    if (result == CUPTI_SUCCESS) return 0;
    cuptiGetResultString(result, &text);
    fprintf(stderr, "kernel_times: %s: %s\n", what, text);
    return 1;
}

// CUPTI calls it when the program initialises CUDA.
int InitializeInjection(void);
int InitializeInjection(void) {
    const char *path = getenv("KERNEL_TIMES");
    out = fopen(path ? path : "kernel_times.txt", "w");
    if (!out) return 0;
    if (failed(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "callbacks") ||
        failed(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "kernels") ||
        failed(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY), "copies") ||
        failed(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET), "sets"))
        return 0;
    atexit(finish);
    return 1;
}
