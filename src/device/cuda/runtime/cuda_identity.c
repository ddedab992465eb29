// SPDX-License-Identifier: MIT
// Identifies the GPU, so that ranks can find out whether they share one.
#include "device/cuda/runtime/cuda_impl.h"

iso_status iso__cuda_identity(const iso__cuda *cuda, uint64_t *out) {
    struct cudaDeviceProp properties;
    ISO_TRY_CUDA(cudaGetDeviceProperties(&properties, cuda->ordinal));
    // Unlike the number on the bus it tells parts of a GPU (MIG) apart.
    *out = iso__hash(ISO_HASH_START, &properties.uuid, sizeof(properties.uuid));
    return ISO_OK;
}
