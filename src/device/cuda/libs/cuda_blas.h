// SPDX-License-Identifier: MIT
// Private to the CUDA device: cuBLAS, which is loaded and set up for the first matrix product.
#ifndef ISO_CUDA_BLAS_H
#define ISO_CUDA_BLAS_H

#include "device/cuda/runtime/cuda_impl.h"
#include "device/cuda/runtime/cuda_library.h"

#include <cublas_v2.h>

#define ISO_CUBLAS_FUNCTIONS(X)                                                                    \
    X(cublasCreate_v2)                                                                             \
    X(cublasDestroy_v2)                                                                            \
    X(cublasGemmEx)                                                                                \
    X(cublasGemmStridedBatchedEx)                                                                  \
    X(cublasGetStatusString)                                                                       \
    X(cublasSetMathMode)                                                                           \
    X(cublasSetStream_v2)                                                                          \
    X(cublasSetWorkspace_v2)
typedef struct iso__cublas_functions {
    ISO_CUBLAS_FUNCTIONS(ISO_CUDA_FIELD)
} iso__cublas_functions;

typedef struct iso__cuda_blas {
    iso__cublas_functions call;
    cublasHandle_t handle;
    void *workspace; // of the compute queue, which runs one product at a time
    size_t workspace_bytes;
} iso__cuda_blas;

// Creates cuda->blas if it does not exist yet.
iso_status iso__cuda_blas_need(iso__cuda *cuda);
// Writes the record of a failed call of cuBLAS.
iso_status iso__cuda_blas_error(const iso__cuda_blas *blas, cublasStatus_t error, const char *call,
                                const char *function, const char *file, int line);
#define ISO_TRY_CUBLAS_AS(blas, name, expr)                                                        \
    do {                                                                                           \
        cublasStatus_t try_error_ = (expr);                                                        \
        if (try_error_ != CUBLAS_STATUS_SUCCESS)                                                   \
            return iso__cuda_blas_error(blas, try_error_, name, __func__, __FILE__, __LINE__);     \
    } while (0)
#define ISO_TRY_CUBLAS(blas, expr) ISO_TRY_CUBLAS_AS(blas, #expr, expr)

// The compute type for products of this element type, with the current math setting.
cublasComputeType_t iso__cuda_compute_type(const iso__cuda *cuda, iso_dtype dtype);
cudaDataType iso__cuda_data_type(iso_dtype dtype);

#endif
