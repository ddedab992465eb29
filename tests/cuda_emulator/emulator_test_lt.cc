// SPDX-License-Identifier: MIT
// The emulated GPU's own test: products of cuBLASLt with their epilogues, and what it refuses.
#include "emulator_test.h"

#include <cublasLt.h>

#include <vector>

#define LT_OK(call) CHECK((call) == CUBLAS_STATUS_SUCCESS)

static float value_at(size_t i) { return static_cast<float>((i * 7 + i / 5) % 9) - 4; }

struct Array {
    float *device;
    std::vector<float> host;
};
static Array upload(size_t count) {
    Array a = {device_array<float>(count), std::vector<float>(count)};
    for (size_t i = 0; i < count; ++i) a.host[i] = value_at(i);
    OK(cudaMemcpy(a.device, a.host.data(), count * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    return a;
}

static const size_t workspace_bytes = 1 << 20;

// A problem whose parts a test may change before it runs.
struct Problem {
    int m, n, k;
    bool ta, tb;
    int lda, ldb, ldc;
    cublasLtEpilogue_t epilogue;
    float beta;
    uint32_t alignment = 16, schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cudaStream_t stream = nullptr;
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    Array x, y, z, bias;
    void *workspace = nullptr;
};

static void make(Problem *p) {
    p->stream = make_stream();
    LT_OK(cublasLtCreate(&p->handle));
    LT_OK(cublasLtMatmulDescCreate(&p->product, p->compute, CUDA_R_32F));
    auto rows = [](int a, int b, bool t) { return static_cast<uint64_t>(t ? b : a); };
    LT_OK(cublasLtMatrixLayoutCreate(&p->a, CUDA_R_32F, rows(p->m, p->k, p->ta),
                                     rows(p->k, p->m, p->ta), p->lda));
    LT_OK(cublasLtMatrixLayoutCreate(&p->b, CUDA_R_32F, rows(p->k, p->n, p->tb),
                                     rows(p->n, p->k, p->tb), p->ldb));
    LT_OK(cublasLtMatrixLayoutCreate(&p->c, CUDA_R_32F, rows(p->m, 0, false), rows(p->n, 0, false),
                                     p->ldc));
    p->x = upload(static_cast<size_t>(p->lda * (p->ta ? p->m : p->k)));
    p->y = upload(static_cast<size_t>(p->ldb * (p->tb ? p->k : p->n)));
    p->z = upload(static_cast<size_t>(p->ldc * p->n));
    p->bias = upload(static_cast<size_t>(p->m > p->n ? p->m : p->n));
    p->workspace = device_array<char>(workspace_bytes);
    cublasOperation_t ta = p->ta ? CUBLAS_OP_T : CUBLAS_OP_N,
                      tb = p->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT_OK(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &ta, 4));
    LT_OK(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &tb, 4));
    LT_OK(
        cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, 4));
    LT_OK(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                         &p->bias.device, sizeof(void *)));
    LT_OK(cublasLtMatmulPreferenceCreate(&p->preference));
    LT_OK(cublasLtMatmulPreferenceSetAttribute(
        p->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, 8));
    LT_OK(cublasLtMatmulPreferenceSetAttribute(
        p->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &p->schemes, 4));
    for (int i = 0; i < 4; ++i)
        LT_OK(cublasLtMatmulPreferenceSetAttribute(
            p->preference,
            static_cast<cublasLtMatmulPreferenceAttributes_t>(
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
            &p->alignment, 4));
}

static void destroy(Problem *p) {
    LT_OK(cublasLtMatmulPreferenceDestroy(p->preference));
    for (cublasLtMatrixLayout_t x : {p->a, p->b, p->c}) LT_OK(cublasLtMatrixLayoutDestroy(x));
    LT_OK(cublasLtMatmulDescDestroy(p->product));
    LT_OK(cublasLtDestroy(p->handle));
    for (float *x : {p->x.device, p->y.device, p->z.device, p->bias.device}) OK(cudaFree(x));
    OK(cudaFree(p->workspace));
}

static cublasStatus_t choose(const Problem &p, cublasLtMatmulHeuristicResult_t *out, int *count) {
    return cublasLtMatmulAlgoGetHeuristic(p.handle, p.product, p.a, p.b, p.c, p.c, p.preference, 1,
                                          out, count);
}

static cublasStatus_t multiply(const Problem &p, const cublasLtMatmulAlgo_t *algo, float *z,
                               size_t workspace) {
    const float alpha = 2;
    return cublasLtMatmul(p.handle, p.product, &alpha, p.x.device, p.a, p.y.device, p.b, &p.beta, z,
                          p.c, z, p.c, algo, p.workspace, workspace, p.stream);
}

static double a_of(const Problem &p, int i, int k) {
    return static_cast<double>(p.x.host[static_cast<size_t>(p.ta ? k + i * p.lda : i + k * p.lda)]);
}
static double b_of(const Problem &p, int k, int j) {
    return static_cast<double>(p.y.host[static_cast<size_t>(p.tb ? j + k * p.ldb : k + j * p.ldb)]);
}

static double expected(const Problem &p, int i, int j) {
    double sum = 0;
    for (int k = 0; k < p.k; ++k) sum += a_of(p, i, k) * b_of(p, k, j);
    sum = 2 * sum + static_cast<double>(p.beta) *
                        static_cast<double>(p.z.host[static_cast<size_t>(i + j * p.ldc)]);
    if (p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS)
        sum += static_cast<double>(p.bias.host[static_cast<size_t>(i)]);
    bool relu = p.epilogue == CUBLASLT_EPILOGUE_RELU || p.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
    return relu && sum < 0 ? 0 : sum;
}

static void check_bias(const Problem &p) {
    bool of_a = p.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    if (!of_a && p.epilogue != CUBLASLT_EPILOGUE_BGRADB) return;
    for (int i = 0; i < (of_a ? p.m : p.n); ++i) {
        double sum = 0;
        for (int k = 0; k < p.k; ++k) sum += of_a ? a_of(p, i, k) : b_of(p, k, i);
        CHECK(static_cast<double>(read_one(p.bias.device + i)) == sum);
    }
}

static void check_one(Problem p) {
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    make(&p);
    if (p.beta == 0) { // not to be read
        OK(cudaMemsetAsync(p.z.device, 0xFF, p.z.host.size() * sizeof(float), p.stream));
        for (float &z : p.z.host) z = 0;
    }
    LT_OK(choose(p, &found, &count));
    CHECK(count == 1 && found.state == CUBLAS_STATUS_SUCCESS);
    LT_OK(multiply(p, &found.algo, p.z.device, found.workspaceSize));
    OK(cudaStreamSynchronize(p.stream));
    for (int j = 0; j < p.n; ++j)
        for (int i = 0; i < p.m; ++i)
            CHECK(static_cast<double>(read_one(p.z.device + i + j * p.ldc)) == expected(p, i, j));
    check_bias(p);
    destroy(&p);
    CHECK(emulated_live_handles() == 0 && emulated_live_descriptors() == 0);
    CHECK(emulated_live_bytes() == 0);
}

static Problem problem(bool ta, bool tb, cublasLtEpilogue_t epilogue, float beta, int k = 8) {
    Problem p;
    p.m = 5, p.n = 7, p.k = k, p.ta = ta, p.tb = tb;
    p.lda = ta ? k + 4 : 8, p.ldb = tb ? 12 : k, p.ldc = 8;
    p.epilogue = epilogue, p.beta = beta;
    return p;
}

static void epilogues(void) {
    for (int i = 0; i < 4; ++i)
        for (auto e :
             {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_BIAS,
              CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
            check_one(problem(i % 2 != 0, i > 1, e, 0));
            check_one(problem(i % 2 != 0, i > 1, e, -3));
            check_one(problem(i % 2 != 0, i > 1, e, 1, 80)); // sums in parts
        }
    Problem odd = problem(false, false, CUBLASLT_EPILOGUE_RELU_BIAS, 1);
    odd.ldc = 5, odd.alignment = 4;
    check_one(odd);
}

// The bits of a product of 4 parts with a given choice of schemes, several times.
static bool is_steady(uint32_t schemes) {
    Problem p = problem(true, false, CUBLASLT_EPILOGUE_DEFAULT, 0, 400);
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    float first = 0;
    bool same = true;
    p.schemes = schemes;
    make(&p);
    for (size_t i = 0; i < p.x.host.size(); ++i) p.x.host[i] = 1.0f / static_cast<float>(i + 1);
    OK(cudaMemcpy(p.x.device, p.x.host.data(), p.x.host.size() * 4, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    LT_OK(choose(p, &found, &count));
    for (int i = 0; i < 20; ++i) {
        LT_OK(multiply(p, &found.algo, p.z.device, workspace_bytes));
        OK(cudaStreamSynchronize(p.stream));
        float now = read_one(p.z.device);
        if (i > 0) same = same && now == first;
        first = i > 0 ? first : now;
    }
    return same;
}
static void order_of_sums(void) {
    CHECK(is_steady(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    CHECK(is_steady(CUBLASLT_REDUCTION_SCHEME_NONE));
    CHECK(!is_steady(CUBLASLT_REDUCTION_SCHEME_MASK));
}

static void refusals(void) {
    cublasLtMatmulHeuristicResult_t found;
    Problem p = problem(true, false, CUBLASLT_EPILOGUE_BIAS, 0, 80);
    int count = 0, bad = 7;
    make(&p);
    LT_OK(choose(p, &found, &count));
    CHECK(found.workspaceSize > 0); // too little of it, and an address with too little alignment
    CHECK(multiply(p, &found.algo, p.z.device, found.workspaceSize - 1) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(multiply(p, &found.algo, p.z.device + 1, workspace_bytes) == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(cublasLtMatmulDescSetAttribute(p.product, CUBLASLT_MATMUL_DESC_TRANSA, &bad, 1) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasLtMatmulDescSetAttribute(p.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bad, 4) ==
          CUBLAS_STATUS_INVALID_VALUE);
    void *none = nullptr;
    LT_OK(cublasLtMatmulDescSetAttribute(p.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &none, 8));
    CHECK(multiply(p, &found.algo, p.z.device, workspace_bytes) == CUBLAS_STATUS_INVALID_VALUE);
    LT_OK(cublasLtMatmulDescSetAttribute(p.product, CUBLASLT_MATMUL_DESC_TRANSA, &bad, 4));
    CHECK(choose(p, &found, &count) == CUBLAS_STATUS_INVALID_VALUE && count == 0);
    destroy(&p);
    p = problem(false, false, CUBLASLT_EPILOGUE_BIAS, 0);
    p.lda = 4; // fewer than m
    make(&p);
    CHECK(choose(p, &found, &count) == CUBLAS_STATUS_INVALID_VALUE);
    destroy(&p);
    p = problem(false, false, CUBLASLT_EPILOGUE_BIAS, 0);
    p.compute = CUBLAS_COMPUTE_64F;
    make(&p);
    CHECK(choose(p, &found, &count) == CUBLAS_STATUS_NOT_SUPPORTED);
    destroy(&p);
}

static void outside(void) {
    cublasLtMatmulHeuristicResult_t found;
    Problem p = problem(true, false, CUBLASLT_EPILOGUE_BIAS, 0);
    int count = 0;
    make(&p);
    LT_OK(choose(p, &found, &count));
    multiply(p, &found.algo, p.z.device + 4, workspace_bytes);
}

void lt_tests(void) {
    run_everywhere("epilogues of cuBLASLt", epilogues);
    run_test("order of sums of cuBLASLt", order_of_sums, "random");
    run_test("refusals of cuBLASLt", refusals, "random");
    expect_death("a result outside of its allocation", outside, 6, "one live allocation");
}
