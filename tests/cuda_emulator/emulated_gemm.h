// SPDX-License-Identifier: MIT
// The matrix product of the emulated cuBLAS.
#ifndef EMULATED_GEMM_H
#define EMULATED_GEMM_H

#include <cublas_v2.h>

#include "emulated_internal.h"

namespace emulated {

struct Matrix {
    const void *data;
    cudaDataType type;
    int ld;
    long long stride; // elements from one matrix of a batch to the next
};

// C = alpha op(A) op(B) + beta C, all column-major; C is not read where beta is 0.
struct Gemm {
    bool transa, transb;
    int m, n, k, batch;
    double alpha, beta;
    Matrix a, b, c;
    cublasComputeType_t compute;
};

// Says what cuBLAS would say of the arguments; ends the program if a matrix is not in an
// allocation.
cublasStatus_t check_gemm(const Gemm &gemm, const char *function);
double read_scalar(const void *scalar, cublasComputeType_t compute);
void run_gemm(const Gemm &gemm); // with device pointers
size_t element_size(cudaDataType type);

} // namespace emulated

#endif
