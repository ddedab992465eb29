// SPDX-License-Identifier: MIT
/* The emulated CUDA runtime: its host interface, and for C++ also the language of kernels. */
#ifndef EMULATED_CUDA_RUNTIME_H
#define EMULATED_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus
#include "emulated_device.h"

// What the templates of the true header offer beyond the plain functions.
template <class T> inline cudaError_t cudaMalloc(T **pointer, size_t size) {
    return cudaMalloc(reinterpret_cast<void **>(pointer), size);
}
template <class T> inline cudaError_t cudaHostAlloc(T **pointer, size_t size, unsigned int flags) {
    return cudaHostAlloc(reinterpret_cast<void **>(pointer), size, flags);
}
template <class T> inline cudaError_t cudaMallocHost(T **pointer, size_t size) {
    return cudaMallocHost(reinterpret_cast<void **>(pointer), size);
}
template <class A>
inline cudaError_t cudaFuncSetAttribute(void (*kernel)(A), enum cudaFuncAttribute what, int value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), what, value);
}
template <class A>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void (*kernel)(A),
                                                                 int threads, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks, reinterpret_cast<const void *>(kernel), threads, shared);
}
#endif

#endif
