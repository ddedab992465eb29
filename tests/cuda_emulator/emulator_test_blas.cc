// SPDX-License-Identifier: MIT
// The emulated GPU's own test: matrix products against the definition, in double.
#include "emulator_test.h"

#include <cublas_v2.h>

#include <vector>

#include "emulated_types.h"

#define BLAS_OK(call) CHECK((call) == CUBLAS_STATUS_SUCCESS)

struct Shape {
    int m, n, k, lda, ldb, ldc;
    bool ta, tb;
};

// Small integers, so that every type and every order of sums gives the same.
static double value_at(size_t i) { return static_cast<double>((i * 7 + i / 5) % 9) - 4; }

template <class T> static T *upload(size_t count, std::vector<double> *values) {
    std::vector<T> host(count);
    values->resize(count);
    for (size_t i = 0; i < count; ++i) {
        (*values)[i] = value_at(i);
        emulated::store(&host[i], static_cast<decltype(emulated::load(T()))>((*values)[i]));
    }
    T *x = device_array<T>(count);
    OK(cudaMemcpy(x, host.data(), count * sizeof(T), cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    return x;
}

static double expected(const Shape &s, const std::vector<double> &a, const std::vector<double> &b,
                       int i, int j) {
    double sum = 0;
    for (int p = 0; p < s.k; ++p)
        sum += a[static_cast<size_t>(s.ta ? p + i * s.lda : i + p * s.lda)] *
               b[static_cast<size_t>(s.tb ? j + p * s.ldb : p + j * s.ldb)];
    return sum;
}

template <class T>
static void check_all(cublasHandle_t handle, cudaStream_t stream, Shape s, cudaDataType type,
                      cublasComputeType_t compute, double beta) {
    size_t acount = static_cast<size_t>(s.lda * (s.ta ? s.m : s.k));
    size_t bcount = static_cast<size_t>(s.ldb * (s.tb ? s.k : s.n));
    size_t ccount = static_cast<size_t>(s.ldc * s.n);
    std::vector<double> a, b, c;
    T *x = upload<T>(acount, &a), *y = upload<T>(bcount, &b), *z = upload<T>(ccount, &c);
    if (beta == 0) OK(cudaMemsetAsync(z, 0xFF, ccount * sizeof(T), stream)); // NaN: not to be read
    double scalars64[] = {2, beta};
    float scalars32[] = {2, static_cast<float>(beta)};
    bool wide = type == CUDA_R_64F;
    const void *alpha = wide ? static_cast<void *>(scalars64) : scalars32;
    const void *factor = wide ? static_cast<void *>(scalars64 + 1) : scalars32 + 1;
    BLAS_OK(cublasGemmEx(handle, s.ta ? CUBLAS_OP_T : CUBLAS_OP_N, s.tb ? CUBLAS_OP_T : CUBLAS_OP_N,
                         s.m, s.n, s.k, alpha, x, type, s.lda, y, type, s.ldb, factor, z, type,
                         s.ldc, compute, CUBLAS_GEMM_DEFAULT));
    scalars64[0] = scalars32[0] = 99; // read at the call
    OK(cudaStreamSynchronize(stream));
    std::vector<T> host(ccount);
    OK(cudaMemcpy(host.data(), z, ccount * sizeof(T), cudaMemcpyDeviceToHost));
    for (int j = 0; j < s.n; ++j)
        for (int i = 0; i < s.ldc; ++i) {
            size_t at = static_cast<size_t>(i + j * s.ldc);
            double got = static_cast<double>(emulated::load(host[at]));
            if (i >= s.m) { // between the columns
                CHECK(beta == 0 ? got != got : got == c[at]);
                continue;
            }
            CHECK(got == 2 * expected(s, a, b, i, j) + (beta == 0 ? 0 : beta * c[at]));
        }
    for (void *p : {static_cast<void *>(x), static_cast<void *>(y), static_cast<void *>(z)})
        OK(cudaFree(p));
}

static cublasHandle_t make_handle(cudaStream_t stream) {
    cublasHandle_t handle;
    BLAS_OK(cublasCreate(&handle));
    BLAS_OK(cublasSetStream(handle, stream));
    return handle;
}

static void products(void) {
    cudaStream_t s = make_stream();
    cublasHandle_t handle = make_handle(s);
    for (int ta = 0; ta < 2; ++ta)
        for (int tb = 0; tb < 2; ++tb)
            for (double beta : {0.0, 1.0, -3.0}) {
                Shape shape{7, 9, 11, 12, 13, 8, ta != 0, tb != 0};
                check_all<float>(handle, s, shape, CUDA_R_32F, CUBLAS_COMPUTE_32F, beta);
                check_all<double>(handle, s, shape, CUDA_R_64F, CUBLAS_COMPUTE_64F, beta);
                shape.k = 2; // so that bf16 holds the results
                check_all<emulated::bf16>(handle, s, shape, CUDA_R_16BF, CUBLAS_COMPUTE_32F, beta);
                check_all<emulated::f16>(handle, s, shape, CUDA_R_16F, CUBLAS_COMPUTE_32F, beta);
            }
    Shape large{300, 5, 20, 301, 20, 300, false, false}; // more rows than a tile
    check_all<float>(handle, s, large, CUDA_R_32F, CUBLAS_COMPUTE_32F, 1);
    Shape empty{4, 3, 0, 4, 1, 4, false, false}; // no sum at all: C = beta C
    check_all<float>(handle, s, empty, CUDA_R_32F, CUBLAS_COMPUTE_32F, 2);
    BLAS_OK(cublasDestroy(handle));
    CHECK(emulated_live_handles() == 0 && emulated_live_bytes() == 0);
}

static void strided_batch(void) {
    cudaStream_t s = make_stream();
    cublasHandle_t handle = make_handle(s);
    std::vector<double> a, b;
    float *x = upload<float>(3 * 10, &a), *y = upload<float>(6, &b),
          *z = device_array<float>(3 * 5);
    const float one = 1, zero = 0;
    // A is 2x3, B 3x2 and the same for all, C 2x2.
    BLAS_OK(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 3, &one, x, 2, 10, y,
                                      3, 0, &zero, z, 2, 5, 3));
    OK(cudaStreamSynchronize(s));
    for (size_t i = 0; i < 3; ++i) {
        std::vector<double> part(a.begin() + static_cast<long>(10 * i), a.end());
        Shape shape{2, 2, 3, 2, 3, 2, false, false};
        CHECK(static_cast<double>(read_one(z + 5 * i + 1)) == expected(shape, part, b, 1, 0));
        CHECK(static_cast<double>(read_one(z + 5 * i + 2)) == expected(shape, part, b, 0, 1));
        if (i < 2) CHECK(read_one(z + 5 * i + 4) != read_one(z + 5 * i + 4)); // untouched
    }
}

static void reduced_precision(void) {
    cudaStream_t s = make_stream();
    cublasHandle_t handle = make_handle(s);
    const float host = 1.0f + 1.0f / 4096, one = 1, zero = 0; // 13 bits: TF32 has 11
    float *x = device_array<float>(1), *z = device_array<float>(1);
    OK(cudaMemcpy(x, &host, sizeof(float), cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    for (cublasMath_t math : {CUBLAS_DEFAULT_MATH, CUBLAS_TF32_TENSOR_OP_MATH}) {
        BLAS_OK(cublasSetMathMode(handle, math));
        BLAS_OK(
            cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, x, 1, x, 1, &zero, z, 1));
        OK(cudaStreamSynchronize(s));
        CHECK(read_one(z) == (math == CUBLAS_DEFAULT_MATH ? host * host : 1.0f));
    }
}

static void errors(void) {
    cudaStream_t s = make_stream();
    cublasHandle_t handle = make_handle(s);
    const float one = 1;
    float *x = device_array<float>(100);
    CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, x, 3, x, 4, &one, x, 4) ==
          CUBLAS_STATUS_INVALID_VALUE);
    emulated_fail_next("cublasSgemm", CUBLAS_STATUS_EXECUTION_FAILED);
    CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, x, 4, x, 4, &one, x, 4) ==
          CUBLAS_STATUS_EXECUTION_FAILED);
    // Captured, it is a kernel that is not ours.
    cudaGraph_t graph;
    cudaGraphNode_t node;
    size_t count = 1;
    cudaKernelNodeParams params;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    BLAS_OK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, x, 4, x, 4, &one, x, 4));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphGetNodes(graph, &node, &count));
    CHECK(count == 1);
    CHECK(cudaGraphKernelNodeGetParams(node, &params) == cudaErrorInvalidDeviceFunction);
}

static void sixteen_bits(void) {
    emulated::f16 h;
    for (unsigned bits = 0; bits < 0x10000; ++bits) { // every finite f16 survives
        h.bits = static_cast<uint16_t>(bits);
        float x = emulated::load(h);
        emulated::f16 back;
        emulated::store(&back, x);
        CHECK(x != x ? emulated::load(back) != emulated::load(back) : back.bits == bits);
    }
    emulated::store(&h, 2049.0f); // halfway: to even
    CHECK(emulated::load(h) == 2048.0f);
    emulated::store(&h, 65520.0f);
    CHECK(h.bits == 0x7C00);
    emulated::bf16 b;
    emulated::store(&b, 1.0f + 3.0f / 256); // halfway: to even
    CHECK(emulated::load(b) == 1.0f + 4.0f / 256);
}

void blas_tests(void) {
    run_everywhere("products", products);
    run_everywhere("strided batch", strided_batch);
    run_test("reduced precision", reduced_precision, "random");
    run_everywhere("errors of cuBLAS", errors);
    run_test("16-bit elements", sixteen_bits, "random");
}
