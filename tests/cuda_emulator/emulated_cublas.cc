// SPDX-License-Identifier: MIT
// Handles and calls of the emulated cuBLAS; each product is a task in the handle's stream.
#include "emulated_gemm.h"
#include "emulated_handles.h"
#include "emulator.h"

struct cublasContext {
    uint32_t magic;
    int device;
    cudaStream_t stream;
    cublasMath_t math;
};

namespace emulated {

static const uint32_t handle_magic = 0xcb1a5000;
std::atomic<size_t> live_handles{0}, live_descriptors{0};

bool submit_library(cudaStream_t stream, int device, const char *function,
                    std::function<void()> kernel) {
    check_stream(stream, function);
    if (current_device() != device || stream->device != device)
        die("%s: the handle is of device %d, the stream of %d, and current is %d", function, device,
            stream->device, current_device());
    if (state().sticky != cudaSuccess) return false;
    Work work;
    work.make = [kernel](CUstream_st *) -> Run {
        return [kernel] {
            kernel();
            return Outcome::done;
        };
    };
    return submit(stream, std::move(work)) == cudaSuccess;
}

static cublasStatus_t enter_blas(cublasHandle_t handle, const char *function) {
    int error = injected(function);
    if (error != 0) return static_cast<cublasStatus_t>(error);
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (handle->magic != handle_magic) die("%s: the handle has been destroyed", function);
    return CUBLAS_STATUS_SUCCESS;
}

#define BLAS_ENTER(handle)                                                                         \
    do {                                                                                           \
        cublasStatus_t entered_ = emulated::enter_blas(handle, __func__);                          \
        if (entered_ != CUBLAS_STATUS_SUCCESS) return entered_;                                    \
    } while (0)

static cublasComputeType_t with_math(cublasComputeType_t compute, cublasMath_t math) {
    if (compute == CUBLAS_COMPUTE_32F && math == CUBLAS_TF32_TENSOR_OP_MATH)
        return CUBLAS_COMPUTE_32F_FAST_TF32;
    return compute;
}

static cublasStatus_t submit_gemm(cublasHandle_t handle, Gemm gemm, const char *function) {
    // Sums of 16-bit elements are not narrowed further: they are exact products already.
    if (gemm.a.type == CUDA_R_32F) gemm.compute = with_math(gemm.compute, handle->math);
    cublasStatus_t status = check_gemm(gemm, function);
    if (status != CUBLAS_STATUS_SUCCESS || gemm.m == 0 || gemm.n == 0) return status;
    bool queued =
        submit_library(handle->stream, handle->device, function, [gemm] { run_gemm(gemm); });
    return queued ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

} // namespace emulated

using namespace emulated;

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    int error = injected(__func__);
    if (error != 0) return static_cast<cublasStatus_t>(error);
    if (settings().gpus == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasContext{handle_magic, current_device(), nullptr, CUBLAS_DEFAULT_MATH};
    ++live_handles;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    BLAS_ENTER(handle);
    handle->magic = 0;
    delete handle;
    --live_handles;
    return CUBLAS_STATUS_SUCCESS;
}

size_t emulated_live_handles(void) { return live_handles; }
size_t emulated_live_descriptors(void) { return live_descriptors; }

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
    BLAS_ENTER(handle);
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t streamId) {
    BLAS_ENTER(handle);
    check_stream(streamId, __func__);
    handle->stream = streamId;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *streamId) {
    BLAS_ENTER(handle);
    *streamId = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace,
                                     size_t workspaceSizeInBytes) {
    BLAS_ENTER(handle);
    if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (workspaceSizeInBytes > 0) check_device_range(workspace, workspaceSizeInBytes, __func__);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    BLAS_ENTER(handle);
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) {
    BLAS_ENTER(handle);
    *mode = handle->math;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    BLAS_ENTER(handle);
    return mode == CUBLAS_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// ---- Products ----

static Gemm make_gemm(cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
                      const void *alpha, const void *beta, cublasComputeType_t compute) {
    Gemm g = Gemm();
    g.transa = transa != CUBLAS_OP_N;
    g.transb = transb != CUBLAS_OP_N;
    g.m = m;
    g.n = n;
    g.k = k;
    g.batch = 1;
    g.alpha = read_scalar(alpha, compute);
    g.beta = read_scalar(beta, compute);
    g.compute = compute;
    return g;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k,
                                          const void *alpha, const void *A, cudaDataType Atype,
                                          int lda, long long int strideA, const void *B,
                                          cudaDataType Btype, int ldb, long long int strideB,
                                          const void *beta, void *C, cudaDataType Ctype, int ldc,
                                          long long int strideC, int batchCount,
                                          cublasComputeType_t computeType, cublasGemmAlgo_t) {
    BLAS_ENTER(handle);
    Gemm g = make_gemm(transa, transb, m, n, k, alpha, beta, computeType);
    g.batch = batchCount;
    g.a = Matrix{A, Atype, lda, strideA};
    g.b = Matrix{B, Btype, ldb, strideB};
    g.c = Matrix{C, Ctype, ldc, strideC};
    return submit_gemm(handle, g, __func__);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *A, cudaDataType Atype, int lda, const void *B,
                            cudaDataType Btype, int ldb, const void *beta, void *C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t computeType,
                            cublasGemmAlgo_t algo) {
    BLAS_ENTER(handle);
    return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B,
                                      Btype, ldb, 0, beta, C, Ctype, ldc, 0, 1, computeType, algo);
}

#define TYPED_GEMM(plain, batched, type, element, compute)                                         \
    cublasStatus_t plain(cublasHandle_t handle, cublasOperation_t transa,                          \
                         cublasOperation_t transb, int m, int n, int k, const type *alpha,         \
                         const type *A, int lda, const type *B, int ldb, const type *beta,         \
                         type *C, int ldc) {                                                       \
        BLAS_ENTER(handle);                                                                        \
        return cublasGemmEx(handle, transa, transb, m, n, k, alpha, A, element, lda, B, element,   \
                            ldb, beta, C, element, ldc, compute, CUBLAS_GEMM_DEFAULT);             \
    }                                                                                              \
    cublasStatus_t batched(cublasHandle_t handle, cublasOperation_t transa,                        \
                           cublasOperation_t transb, int m, int n, int k, const type *alpha,       \
                           const type *A, int lda, long long int strideA, const type *B, int ldb,  \
                           long long int strideB, const type *beta, type *C, int ldc,              \
                           long long int strideC, int batchCount) {                                \
        BLAS_ENTER(handle);                                                                        \
        return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, A, element, lda, \
                                          strideA, B, element, ldb, strideB, beta, C, element,     \
                                          ldc, strideC, batchCount, compute, CUBLAS_GEMM_DEFAULT); \
    }

TYPED_GEMM(cublasSgemm_v2, cublasSgemmStridedBatched, float, CUDA_R_32F, CUBLAS_COMPUTE_32F)
TYPED_GEMM(cublasDgemm_v2, cublasDgemmStridedBatched, double, CUDA_R_64F, CUBLAS_COMPUTE_64F)

// ---- Errors ----

const char *cublasGetStatusName(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR";
    }
    return "unknown cuBLAS status";
}

const char *cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }
