// SPDX-License-Identifier: MIT
// Matrix products of the CUDA device, by cuBLAS.
//
// The same product has the same bits in every run on GPUs of one kind: NVIDIA guarantees it for one
// release of cuBLAS if a handle uses one stream ("Results reproducibility" in the cuBLAS guide).
// Here all products use the compute queue's stream and its workspace, and atomics remain
// disallowed, which is cuBLAS's default.
#include "device/cuda/libs/cuda_blas.h"

#include "device/cuda/libs/cuda_lt.h"

#include <config.h>
#include <limits.h>
#include <string.h>

static const iso__cuda_symbol symbols[] = {ISO_CUBLAS_FUNCTIONS(ISO_CUDA_SYMBOL)};
enum { SYMBOLS = sizeof(symbols) / sizeof(symbols[0]) };

iso_status iso__cuda_blas_error(const iso__cuda_blas *blas, cublasStatus_t error, const char *call,
                                const char *function, const char *file, int line) {
    const char *name = strstr(call, "cublas");
    int length = (int)strcspn(name ? name : call, "(");
    bool room = error == CUBLAS_STATUS_ALLOC_FAILED;
    return iso__error(room ? ISO_ERR_NOMEM : ISO_ERR_DEVICE, function, file, line,
                      "cuBLAS reports in %.*s: %s%s", length, name ? name : call,
                      blas->call.cublasGetStatusString(error),
                      room ? ": use a smaller batch or model" : "");
}

// As much as NVIDIA recommends.
static iso_status make_workspace(iso__cuda *cuda, iso__cuda_blas *blas) {
    int generation = 0;
    ISO_TRY_CUDA(
        cudaDeviceGetAttribute(&generation, cudaDevAttrComputeCapabilityMajor, cuda->ordinal));
    blas->workspace_bytes = (size_t)(generation >= 9 ? 32 : 4) << 20;
    return iso__cuda_pool_alloc(cuda, blas->workspace_bytes, &blas->workspace);
}

// Not on the step path: what is made here stays until the device goes.
static iso_status set_up(iso__cuda *cuda, iso__cuda_blas *blas) {
    ISO_TRY(iso__cuda_load("cuBLAS", ISO_CUBLAS_SONAME, symbols, SYMBOLS, &blas->call));
    ISO_TRY(iso__cuda_enter(cuda));
    ISO_TRY(make_workspace(cuda, blas));
    ISO_TRY_CUBLAS(blas, blas->call.cublasCreate_v2(&blas->handle));
    // Setting a stream takes the workspace away, so it comes first.
    ISO_TRY_CUBLAS(blas,
                   blas->call.cublasSetStream_v2(blas->handle, cuda->stream[ISO__QUEUE_COMPUTE]));
    ISO_TRY_CUBLAS(blas, blas->call.cublasSetWorkspace_v2(blas->handle, blas->workspace,
                                                          blas->workspace_bytes));
    // f32 is then f32; what rounds more is asked for product by product. Sums of 16 bits
    // that are split would otherwise be put together in that type.
    cublasMath_t mode =
        (cublasMath_t)(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    ISO_TRY_CUBLAS(blas, blas->call.cublasSetMathMode(blas->handle, mode));
    return ISO_OK;
}

static void destroy_blas(iso__cuda *cuda, iso__cuda_blas *blas) {
    if (blas->handle) blas->call.cublasDestroy_v2(blas->handle);
    if (blas->workspace) iso__cuda_pool_free(cuda, blas->workspace);
    iso__free(blas);
}

iso_status iso__cuda_blas_need(iso__cuda *cuda) {
    void *memory;
    if (cuda->blas) return ISO_OK;
    ISO_TRY(iso__alloc_zero(sizeof(iso__cuda_blas), &memory));
    iso_status status = set_up(cuda, memory);
    if (status < 0) destroy_blas(cuda, memory);
    ISO_TRY(status);
    cuda->blas = memory;
    cuda->base.primitives_created++;
    return ISO_OK;
}

void iso__cuda_blas_destroy(iso__cuda *cuda) {
    iso__cuda_lt_destroy(cuda);
    if (cuda->blas) destroy_blas(cuda, cuda->blas);
    cuda->blas = NULL;
}

cublasComputeType_t iso__cuda_compute_type(const iso__cuda *cuda, iso_dtype dtype) {
    if (dtype == ISO_F64) return CUBLAS_COMPUTE_64F;
    if (iso__is_half(dtype)) return CUBLAS_COMPUTE_32F;
    switch (cuda->math) {
    case ISO_CUDA_MATH_TF32: return CUBLAS_COMPUTE_32F_FAST_TF32;
    case ISO_CUDA_MATH_BF16: return CUBLAS_COMPUTE_32F_FAST_16BF;
    case ISO_CUDA_MATH_F32: break;
    }
    return CUBLAS_COMPUTE_32F;
}

cudaDataType iso__cuda_data_type(iso_dtype dtype) {
    if (dtype == ISO_F64) return CUDA_R_64F;
    if (iso__is_half(dtype)) return dtype == ISO_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    return CUDA_R_32F;
}

// The arguments of cuBLAS; without padding, so that calls can be compared.
typedef struct product {
    const void *a, *b;
    void *c;
    int64_t type, type_c, compute, of_a, of_b, m, n, k, lda, ldb, ldc, batch, stride_a, stride_b,
        stride_c;
    double beta;
} product;

static product product_of(const iso__cuda *cuda, const iso__cuda_gemm_args *g) {
    return (product){.a = g->a,
                     .b = g->b,
                     .c = g->c,
                     .type = (int64_t)iso__cuda_data_type(g->dtype),
                     .type_c = (int64_t)iso__cuda_data_type(g->c_f32 ? ISO_F32 : g->dtype),
                     .compute = (int64_t)iso__cuda_compute_type(cuda, g->dtype),
                     .of_a = g->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                     .of_b = g->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                     .m = g->m,
                     .n = g->n,
                     .k = g->k,
                     .lda = g->lda,
                     .ldb = g->ldb,
                     .ldc = g->ldc,
                     .batch = g->batch > 1 ? g->batch : 1,
                     .stride_a = g->stride_a,
                     .stride_b = g->stride_b,
                     .stride_c = g->stride_c,
                     .beta = g->beta};
}

// cuBLAS stores columns one after the other, so it sees every matrix transposed: C^T = op(B)^T
// op(A)^T is the same memory.
static iso_status run_product(iso__cuda *cuda, const void *args) {
    const product *p = args;
    const iso__cuda_blas *blas = cuda->blas;
    const float f32[] = {1, (float)p->beta};
    const double f64[] = {1, p->beta};
    cudaDataType type = (cudaDataType)p->type, type_c = (cudaDataType)p->type_c;
    const void *one = type == CUDA_R_64F ? (const void *)&f64[0] : (const void *)&f32[0];
    const void *beta = type == CUDA_R_64F ? (const void *)&f64[1] : (const void *)&f32[1];
    cublasComputeType_t compute = (cublasComputeType_t)p->compute;
    cublasOperation_t of_a = (cublasOperation_t)p->of_a, of_b = (cublasOperation_t)p->of_b;
    int m = (int)p->m, n = (int)p->n, k = (int)p->k;
    int lda = (int)p->lda, ldb = (int)p->ldb, ldc = (int)p->ldc;
    if (p->batch == 1)
        ISO_TRY_CUBLAS(blas, blas->call.cublasGemmEx(blas->handle, of_b, of_a, n, m, k, one, p->b,
                                                     type, ldb, p->a, type, lda, beta, p->c, type_c,
                                                     ldc, compute, CUBLAS_GEMM_DEFAULT));
    else
        ISO_TRY_CUBLAS(blas, blas->call.cublasGemmStridedBatchedEx(
                                 blas->handle, of_b, of_a, n, m, k, one, p->b, type, ldb,
                                 p->stride_b, p->a, type, lda, p->stride_a, beta, p->c, type_c, ldc,
                                 p->stride_c, (int)p->batch, compute, CUBLAS_GEMM_DEFAULT));
    return ISO_OK;
}

iso_status iso__cuda_gemm(iso__cuda *cuda, const iso__cuda_gemm_args *g) {
    int64_t largest = iso__larger(iso__larger(g->m, g->n), iso__larger(g->k, g->batch));
    largest = iso__larger(largest, iso__larger(g->lda, iso__larger(g->ldb, g->ldc)));
    ISO_CHECK(largest <= INT_MAX, ISO_ERR_UNSUPPORTED,
              "a matrix product of %lld x %lld x %lld on the GPU: a side may have at most %d: use "
              "a smaller batch",
              (long long)g->m, (long long)g->n, (long long)g->k, INT_MAX);
    if (g->m == 0 || g->n == 0) return ISO_OK;
    ISO_TRY(iso__cuda_blas_need(cuda));
    product p = product_of(cuda, g);
    return iso__cuda_run(cuda, run_product, &p, sizeof(p));
}
