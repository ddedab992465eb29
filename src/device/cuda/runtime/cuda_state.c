// SPDX-License-Identifier: MIT
// What all files of the CUDA device need: errors of the runtime, the thread's GPU, memory that
// launches share.
#include "device/cuda/runtime/cuda_impl.h"
#include "device/cuda/runtime/fill_kernels.h"

#include <string.h>

// ---- Errors ---------------------------------------------------------------------------------------

iso_status iso__cuda_error(cudaError_t error, const char *call, const char *function,
                           const char *file, int line) {
    int length = (int)strcspn(call, "(");
    iso_status code = error == cudaErrorMemoryAllocation ? ISO_ERR_NOMEM : ISO_ERR_DEVICE;
    cudaGetLastError(); // it is told here
    return iso__error(code, function, file, line, "the GPU reports in %.*s: %s (%s)", length, call,
                      cudaGetErrorString(error), cudaGetErrorName(error));
}

// ---- The thread's GPU -----------------------------------------------------------------------------

iso_status iso__cuda_enter(const iso__cuda *cuda) {
    int current = -1; // a program may have chosen another one
    if (cudaGetDevice(&current) == cudaSuccess && current == cuda->ordinal) return ISO_OK;
    ISO_TRY_CUDA(cudaSetDevice(cuda->ordinal));
    return ISO_OK;
}

// ---- Memory of the compute queue --------------------------------------------------------------------

iso_status iso__cuda_scratch(iso__cuda *cuda, size_t bytes, void **out) {
    if (bytes > cuda->scratch_bytes) {
        void *larger;
        ISO_TRY(iso__cuda_pool_alloc(cuda, bytes, &larger));
        if (cuda->scratch) iso__cuda_pool_free(cuda, cuda->scratch);
        cuda->scratch = larger;
        cuda->scratch_bytes = bytes;
    }
    *out = cuda->scratch;
    return ISO_OK;
}

iso_status iso__cuda_arrivals(iso__cuda *cuda, unsigned **out) {
    size_t bytes = ISO_CUDA_ARRIVALS * sizeof(unsigned);
    void *memory = cuda->arrived;
    if (!memory) {
        ISO_TRY(iso__cuda_pool_alloc(cuda, bytes, &memory));
        iso_status status = iso__cuda_fill_values(cuda, ISO_I64, (int64_t)(bytes / 8), 0, memory);
        if (status < 0) iso__cuda_pool_free(cuda, memory);
        ISO_TRY(status);
    }
    *out = cuda->arrived = memory;
    return ISO_OK;
}

iso_status iso__cuda_pair(iso__cuda *cuda, double target[2], double **out) {
    iso__cuda_pairs *pairs = &cuda->pairs;
    void *memory;
    if (!pairs->device) {
        ISO_TRY(iso__cuda_pool_alloc(cuda, ISO_CUDA_PAIRS * 2 * sizeof(double), &memory));
        pairs->device = memory;
    }
    if (pairs->count == ISO_CUDA_PAIRS) ISO_TRY(iso__cuda_collect(&cuda->base));
    pairs->target[pairs->count] = target;
    *out = &pairs->device[2 * pairs->count++];
    return ISO_OK;
}

iso_status iso__cuda_collect(iso_device *self) {
    iso__cuda *cuda = iso__cuda_of(self);
    iso__cuda_pairs *pairs = &cuda->pairs;
    double value[ISO_CUDA_PAIRS][2];
    int count = pairs->count;
    pairs->count = 0;
    if (count == 0) return ISO_OK;
    ISO_TRY(iso__cuda_wait(cuda));
    ISO_TRY_CUDA(
        cudaMemcpy(value, pairs->device, (size_t)count * sizeof(value[0]), cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++) memcpy(pairs->target[i], value[i], sizeof(value[i]));
    return ISO_OK;
}
