// SPDX-License-Identifier: MIT
// The emulated cuBLASLt: descriptors, a heuristic with kernels of several kinds, and products with
// an epilogue, each a task in the stream that the call names.
//
// Attributes, sizes and statuses of descriptors are what cuBLAS 13 answers; what products must
// fulfil is in its guide. Kernels differ in alignment, workspace and in how split sums are put
// together, and the one that adds them up in no fixed order is the heuristic's first choice.
// Odd rows of bf16 go to a kernel that stores the product before it adds the bias, as on an H100.
#include <cublasLt.h>
#include <string.h>

#include <algorithm>

#include "emulated_gemm.h"
#include "emulated_handles.h"
#include "emulated_types.h"

using namespace emulated;

struct cublasLtContext {
    uint32_t magic;
    int device;
};
struct cublasLtMatmulDescOpaque {
    uint32_t magic;
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t pointer_mode, transa, transb;
    uint32_t epilogue;
    void *bias;
};
struct cublasLtMatrixLayoutOpaque {
    uint32_t magic;
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
};
struct cublasLtMatmulPreferenceOpaque {
    uint32_t magic;
    uint64_t workspace;
    uint32_t schemes, alignment[4]; // of A, B, C, D
};

namespace emulated {

static const uint32_t lt_magic = 0x17b1a500;

#define LT_INJECTED()                                                                              \
    do {                                                                                           \
        int error_ = injected(__func__);                                                           \
        if (error_ != 0) return static_cast<cublasStatus_t>(error_);                               \
    } while (0)

// ---- Kernels ----

struct LtKernel {
    uint32_t scheme; // how the sums of parts of k are put together
    int parts;
    uint32_t alignment; // bytes of all addresses and columns
};
static const LtKernel kernels[] = {{CUBLASLT_REDUCTION_SCHEME_INPLACE, 4, 16}, // atomics
                                   {CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 4, 16},
                                   {CUBLASLT_REDUCTION_SCHEME_NONE, 1, 16},
                                   {CUBLASLT_REDUCTION_SCHEME_NONE, 1, 4},
                                   {CUBLASLT_REDUCTION_SCHEME_NONE, 1, 2}}; // bias in another pass
static const uint64_t kernel_count = sizeof(kernels) / sizeof(kernels[0]);
static const uint64_t algo_magic = 0xa190a190;
static const int least_to_split = 64;

struct LtProduct { // D = act(alpha op(A) op(B) + beta C + bias)
    Gemm gemm;     // c is D
    const void *c;
    int ldc;
    uint32_t epilogue;
    void *bias;
};

static bool is_bgrad(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static bool aligned(const void *p, uint32_t bytes) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

// The type of the sums.
static cudaDataType sum_type(const LtProduct &p) {
    return p.gemm.c.type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F;
}

static size_t workspace_of(const LtKernel &k, const LtProduct &p) {
    if (k.scheme != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) return 0;
    return static_cast<size_t>(k.parts) * static_cast<size_t>(p.gemm.m) *
           static_cast<size_t>(p.gemm.n) * element_size(sum_type(p));
}

// As far as it shows without the addresses of the matrices.
static bool can_do(const LtKernel &k, const LtProduct &p) {
    size_t size = element_size(p.gemm.c.type);
    for (int ld : {p.gemm.a.ld, p.gemm.b.ld, p.gemm.c.ld, p.ldc})
        if (static_cast<size_t>(ld) * size % k.alignment != 0) return false;
    if (!aligned(p.bias, k.alignment)) return false;
    return k.parts == 1 || (p.gemm.k >= least_to_split && !is_bgrad(p.epilogue));
}

// ---- Products ----

static bool known_epilogue(uint32_t e) {
    return e == CUBLASLT_EPILOGUE_DEFAULT || e == CUBLASLT_EPILOGUE_RELU ||
           e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_RELU_BIAS || is_bgrad(e);
}

static bool is_f64(cublasComputeType_t c) {
    return c == CUBLAS_COMPUTE_64F || c == CUBLAS_COMPUTE_64F_PEDANTIC;
}

// Only elements of one type here, f32, f64 or bf16; a bias is of that type. Epilogues not in f64;
// sums of bf16 in f32 as such.
static bool known_types(cublasLtMatmulDesc_t d, const cublasLtMatrixLayout_t *layouts) {
    cudaDataType scale = is_f64(d->compute) ? CUDA_R_64F : CUDA_R_32F, type = layouts[0]->type;
    for (int i = 1; i < 4; ++i)
        if (layouts[i]->type != type) return false;
    if (d->scale != scale || d->pointer_mode != CUBLAS_POINTER_MODE_HOST) return false;
    if (type == CUDA_R_16BF) return d->compute == CUBLAS_COMPUTE_32F;
    if (type != scale) return false;
    return type == CUDA_R_32F || d->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

static bool operation(int32_t value, bool *transposed) {
    *transposed = value != CUBLAS_OP_N;
    return value == CUBLAS_OP_N || value == CUBLAS_OP_T || value == CUBLAS_OP_C;
}

static Matrix matrix_of(cublasLtMatrixLayout_t x, const void *data) {
    return Matrix{data, x->type, static_cast<int>(x->ld), 0};
}

// The layouts are of A, B, C, D.
static cublasStatus_t describe(cublasLtMatmulDesc_t d, const cublasLtMatrixLayout_t *layouts,
                               LtProduct *out) {
    LtProduct p = LtProduct();
    for (int i = 0; i < 4; ++i) {
        if (layouts[i] == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
        check_alive(layouts[i]->magic, lt_magic, "cuBLASLt");
        if (layouts[i]->ld < static_cast<int64_t>(layouts[i]->rows))
            return CUBLAS_STATUS_INVALID_VALUE;
        if (layouts[i]->rows == 0 || layouts[i]->cols == 0 || layouts[i]->ld > INT32_MAX ||
            layouts[i]->cols > INT32_MAX)
            return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    const cublasLtMatrixLayoutOpaque &a = *layouts[0], &b = *layouts[1], &c = *layouts[2],
                                     &y = *layouts[3];
    if (!operation(d->transa, &p.gemm.transa) || !operation(d->transb, &p.gemm.transb) ||
        !known_epilogue(d->epilogue))
        return CUBLAS_STATUS_INVALID_VALUE;
    uint64_t k = p.gemm.transa ? a.rows : a.cols;
    if ((p.gemm.transa ? a.cols : a.rows) != y.rows ||
        (p.gemm.transb ? b.rows : b.cols) != y.cols || (p.gemm.transb ? b.cols : b.rows) != k ||
        c.rows != y.rows || c.cols != y.cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!known_types(d, layouts)) return CUBLAS_STATUS_NOT_SUPPORTED;
    p.gemm.m = static_cast<int>(y.rows);
    p.gemm.n = static_cast<int>(y.cols);
    p.gemm.k = static_cast<int>(k);
    p.gemm.batch = 1;
    p.gemm.compute = d->compute;
    p.gemm.a = matrix_of(layouts[0], nullptr);
    p.gemm.b = matrix_of(layouts[1], nullptr);
    p.gemm.c = matrix_of(layouts[3], nullptr);
    p.ldc = static_cast<int>(c.ld);
    p.epilogue = d->epilogue;
    if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.epilogue != CUBLASLT_EPILOGUE_RELU)
        p.bias = d->bias;
    *out = p;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- Running ----

// Part i of the sums over k, to [n][m].
static void multiply_part(const LtProduct &p, int part, int parts, void *to) {
    Gemm g = p.gemm;
    int first = static_cast<int>(static_cast<long long>(g.k) * part / parts);
    size_t size = element_size(g.a.type);
    size_t a = static_cast<size_t>(first) * static_cast<size_t>(g.transa ? 1 : g.a.ld);
    size_t b = static_cast<size_t>(first) * static_cast<size_t>(g.transb ? g.b.ld : 1);
    g.a.data = static_cast<const char *>(g.a.data) + a * size;
    g.b.data = static_cast<const char *>(g.b.data) + b * size;
    g.k = static_cast<int>(static_cast<long long>(g.k) * (part + 1) / parts) - first;
    g.alpha = 1;
    g.beta = 0;
    g.c = Matrix{to, sum_type(p), g.m, 0};
    run_gemm(g);
}

template <class T>
static std::vector<T> sum_parts(const LtProduct &p, const LtKernel &k, void *workspace) {
    size_t count = static_cast<size_t>(p.gemm.m) * static_cast<size_t>(p.gemm.n);
    bool atomic = k.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE;
    std::vector<T> sums(count), room(k.parts == 1 || !atomic ? 0 : count);
    if (k.parts == 1) {
        multiply_part(p, 0, 1, sums.data());
        return sums;
    }
    int start = atomic ? static_cast<int>(executor_random() % static_cast<unsigned>(k.parts)) : 0;
    for (int i = 0; i < k.parts; ++i) {
        T *part = atomic ? room.data()
                         : static_cast<T *>(real(workspace)) + static_cast<size_t>(i) * count;
        multiply_part(p, (start + i) % k.parts, k.parts, part);
        for (size_t j = 0; j < count; ++j) sums[j] += part[j];
    }
    return sums;
}

template <class T, class E> static T finish(const LtProduct &p, T value, const E *bias, int i) {
    if (p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS)
        value += load(bias[i]);
    bool relu = p.epilogue == CUBLASLT_EPILOGUE_RELU || p.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
    return relu && !(value > 0) ? T(0) : value;
}

// bias[i] = sum over k of row i of op(A), or of column i of op(B).
template <class T, class E> static void bias_gradient(const LtProduct &p, E *bias) {
    bool of_a = p.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    const Matrix &x = of_a ? p.gemm.a : p.gemm.b;
    const E *from = static_cast<const E *>(real(x.data));
    bool along = of_a ? p.gemm.transa : !p.gemm.transb; // k runs along a stored column
    int count = of_a ? p.gemm.m : p.gemm.n;
    size_t ld = static_cast<size_t>(x.ld);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        T sum = 0;
        for (size_t j = 0; j < static_cast<size_t>(p.gemm.k); ++j)
            sum += load(along ? from[j + i * ld] : from[i + j * ld]);
        store(&bias[i], sum);
    }
}

template <class T, class E>
static void run_product(const LtProduct &p, const LtKernel &k, void *workspace) {
    std::vector<T> sums = sum_parts<T>(p, k, workspace);
    E *d = static_cast<E *>(const_cast<void *>(real(p.gemm.c.data)));
    const E *c = static_cast<const E *>(real(p.c));
    E *bias = static_cast<E *>(real(p.bias));
    T alpha = static_cast<T>(p.gemm.alpha), beta = static_cast<T>(p.gemm.beta);
    E stored;
    for (int j = 0; j < p.gemm.n; ++j)
        for (int i = 0; i < p.gemm.m; ++i) {
            T value = alpha * sums[static_cast<size_t>(j) * static_cast<size_t>(p.gemm.m) +
                                   static_cast<size_t>(i)];
            if (beta != 0)
                value += beta * load(c[static_cast<size_t>(j) * static_cast<size_t>(p.ldc) +
                                       static_cast<size_t>(i)]);
            store(&stored, value);
            if (k.alignment < 4) value = load(stored);
            size_t at =
                static_cast<size_t>(j) * static_cast<size_t>(p.gemm.c.ld) + static_cast<size_t>(i);
            store(&d[at], finish(p, value, bias, i));
        }
    if (is_bgrad(p.epilogue)) bias_gradient<T>(p, bias);
}

// ---- Checks ----

static void check_memory(const LtProduct &p, const char *function) {
    size_t size = element_size(p.gemm.c.type);
    Gemm g = p.gemm;
    check_gemm(g, function); // the ranges of A, B and D
    g.c.data = p.c;
    g.c.ld = p.ldc;
    if (g.beta != 0) check_gemm(g, function);
    size_t count = static_cast<size_t>(p.epilogue == CUBLASLT_EPILOGUE_BGRADB ? g.n : g.m);
    if (p.bias != nullptr) check_device_range(p.bias, count * size, function);
}

static const LtKernel *kernel_of(const cublasLtMatmulAlgo_t *algo) {
    bool known = algo->data[0] == algo_magic && algo->data[1] < kernel_count;
    return known ? &kernels[algo->data[1]] : nullptr;
}

// Whether the kernel can be launched with these addresses.
static cublasStatus_t check_launch(const LtKernel *k, const LtProduct &p, const void *workspace,
                                   size_t bytes) {
    if (k == nullptr || !aligned(workspace, 16)) return CUBLAS_STATUS_INVALID_VALUE;
    size_t needed = workspace_of(*k, p);
    if (bytes < needed || (needed > 0 && workspace == nullptr)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!can_do(*k, p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const void *x : {p.gemm.a.data, p.gemm.b.data, p.c, p.gemm.c.data})
        if (!aligned(x, k->alignment)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set_bytes(void *to, size_t size, const void *from, size_t bytes) {
    if (from == nullptr || bytes != size) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, size);
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> static cublasStatus_t destroy(T *x) {
    if (x == nullptr) return CUBLAS_STATUS_SUCCESS;
    check_alive(x->magic, lt_magic, "cuBLASLt");
    x->magic = 0;
    delete x;
    --live_descriptors;
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> static cublasStatus_t create(T **to, const T &value) {
    *to = new T(value);
    ++live_descriptors;
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace emulated

// ---- Handles and descriptors ----

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle) {
    LT_INJECTED();
    if (settings().gpus == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
    *lightHandle = new cublasLtContext{lt_magic, current_device()};
    ++live_handles;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle) {
    LT_INJECTED();
    if (lightHandle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    check_alive(lightHandle->magic, lt_magic, __func__);
    lightHandle->magic = 0;
    delete lightHandle;
    --live_handles;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmulDesc,
                                        cublasComputeType_t computeType, cudaDataType scaleType) {
    LT_INJECTED();
    return create(matmulDesc, {lt_magic, computeType, scaleType, CUBLAS_POINTER_MODE_HOST,
                               CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc) {
    LT_INJECTED();
    return destroy(matmulDesc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                              cublasLtMatmulDescAttributes_t attr, const void *buf,
                                              size_t sizeInBytes) {
    LT_INJECTED();
    if (matmulDesc == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    cublasLtMatmulDescOpaque &d = *matmulDesc;
    check_alive(d.magic, lt_magic, __func__);
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return set_bytes(&d.compute, 4, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return set_bytes(&d.scale, 4, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return set_bytes(&d.pointer_mode, 4, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_TRANSA: return set_bytes(&d.transa, 4, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set_bytes(&d.transb, 4, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set_bytes(&d.epilogue, 4, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set_bytes(&d.bias, sizeof(d.bias), buf, sizeInBytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *matLayout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
    LT_INJECTED();
    return create(matLayout, {lt_magic, type, rows, cols, ld}); // not looked at until it is used
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout) {
    LT_INJECTED();
    return destroy(matLayout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref) {
    LT_INJECTED();
    return create(pref, {lt_magic, 0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) {
    LT_INJECTED();
    return destroy(pref);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t sizeInBytes) {
    LT_INJECTED();
    if (pref == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    check_alive(pref->magic, lt_magic, __func__);
    int side = attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (side >= 0 && side < 4) return set_bytes(&pref->alignment[side], 4, buf, sizeInBytes);
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set_bytes(&pref->workspace, 8, buf, sizeInBytes);
    if (attr == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return set_bytes(&pref->schemes, 4, buf, sizeInBytes);
    return CUBLAS_STATUS_INVALID_VALUE;
}

// ---- Heuristic and products ----

static bool preferred(const LtKernel &k, const LtProduct &p,
                      const cublasLtMatmulPreferenceOpaque &pref) {
    if ((k.scheme & pref.schemes) != k.scheme || workspace_of(k, p) > pref.workspace) return false;
    for (uint32_t alignment : pref.alignment)
        if (alignment < k.alignment || alignment % k.alignment != 0) return false;
    return can_do(k, p);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int *returnAlgoCount) {
    LT_INJECTED();
    if (lightHandle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    check_alive(lightHandle->magic, lt_magic, __func__);
    if (requestedAlgoCount <= 0 || preference == nullptr || operationDesc == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    const cublasLtMatrixLayout_t layouts[] = {Adesc, Bdesc, Cdesc, Ddesc};
    LtProduct p;
    cublasStatus_t status = describe(operationDesc, layouts, &p);
    *returnAlgoCount = 0;
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    for (uint64_t i = 0; i < kernel_count && *returnAlgoCount < requestedAlgoCount; ++i) {
        if (!preferred(kernels[i], p, *preference)) continue;
        cublasLtMatmulHeuristicResult_t r = cublasLtMatmulHeuristicResult_t();
        r.algo.data[0] = algo_magic;
        r.algo.data[1] = i;
        r.workspaceSize = workspace_of(kernels[i], p);
        heuristicResultsArray[(*returnAlgoCount)++] = r;
    }
    return *returnAlgoCount > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                              const void *alpha, const void *A, cublasLtMatrixLayout_t Adesc,
                              const void *B, cublasLtMatrixLayout_t Bdesc, const void *beta,
                              const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspaceSizeInBytes, cudaStream_t stream) {
    LT_INJECTED();
    if (lightHandle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    check_alive(lightHandle->magic, lt_magic, __func__);
    if (!alpha || !A || !B || !beta || !D || !algo || !computeDesc)
        return CUBLAS_STATUS_INVALID_VALUE;
    const cublasLtMatrixLayout_t layouts[] = {Adesc, Bdesc, Cdesc, Ddesc};
    LtProduct p;
    cublasStatus_t status = describe(computeDesc, layouts, &p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    p.gemm.a.data = A;
    p.gemm.b.data = B;
    p.gemm.c.data = D;
    p.c = C;
    p.gemm.alpha = read_scalar(alpha, p.gemm.compute);
    p.gemm.beta = read_scalar(beta, p.gemm.compute);
    bool plain = p.epilogue == CUBLASLT_EPILOGUE_DEFAULT || p.epilogue == CUBLASLT_EPILOGUE_RELU;
    if ((!plain && p.bias == nullptr) || (p.gemm.beta != 0 && C == nullptr))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (C == D && p.ldc != p.gemm.c.ld) return CUBLAS_STATUS_INVALID_VALUE;
    const LtKernel *kernel = kernel_of(algo);
    status = check_launch(kernel, p, workspace, workspaceSizeInBytes);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    check_memory(p, __func__);
    if (workspace_of(*kernel, p) > 0)
        check_device_range(workspace, workspace_of(*kernel, p), __func__);
    auto run = p.gemm.c.type == CUDA_R_64F   ? run_product<double, double>
               : p.gemm.c.type == CUDA_R_32F ? run_product<float, float>
                                             : run_product<float, bf16>;
    bool queued =
        submit_library(stream, lightHandle->device, __func__, [=] { run(p, *kernel, workspace); });
    return queued ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
