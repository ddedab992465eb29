// SPDX-License-Identifier: MIT
// The matrix product of the emulated cuBLAS: sums over k from first to last, in f32 or f64.
#pragma GCC optimize("O3") // the inner loop has to be vectorised
#include "emulated_gemm.h"
#include "emulated_types.h"

#include <algorithm>

namespace emulated {

size_t element_size(cudaDataType type) {
    if (type == CUDA_R_64F) return 8;
    return type == CUDA_R_32F ? 4 : 2;
}

static bool is_double(cublasComputeType_t c) {
    return c == CUBLAS_COMPUTE_64F || c == CUBLAS_COMPUTE_64F_PEDANTIC;
}

static bool is_float(cublasComputeType_t c) {
    return c == CUBLAS_COMPUTE_32F || c == CUBLAS_COMPUTE_32F_PEDANTIC ||
           c == CUBLAS_COMPUTE_32F_FAST_16F || c == CUBLAS_COMPUTE_32F_FAST_16BF ||
           c == CUBLAS_COMPUTE_32F_FAST_TF32;
}

double read_scalar(const void *scalar, cublasComputeType_t compute) {
    if (is_double(compute)) return *static_cast<const double *>(scalar);
    return static_cast<double>(*static_cast<const float *>(scalar));
}

// ---- Checks ----

static bool supported(const Gemm &g) {
    cudaDataType a = g.a.type, c = g.c.type;
    if (g.b.type != a) return false;
    if (is_double(g.compute)) return a == CUDA_R_64F && c == CUDA_R_64F;
    if (!is_float(g.compute)) return false;
    if (a == CUDA_R_32F) return c == CUDA_R_32F;
    return (a == CUDA_R_16F || a == CUDA_R_16BF) && (c == a || c == CUDA_R_32F);
}

static void check_matrix(const Matrix &x, int rows, int columns, int batch, const char *function) {
    if (rows == 0 || columns == 0 || batch == 0) return;
    long long last = (columns - 1LL) * x.ld + rows + (batch - 1LL) * x.stride;
    check_device_range(x.data, static_cast<size_t>(last) * element_size(x.type), function);
}

cublasStatus_t check_gemm(const Gemm &g, const char *function) {
    if (!supported(g)) return CUBLAS_STATUS_NOT_SUPPORTED;
    int arows = g.transa ? g.k : g.m, acolumns = g.transa ? g.m : g.k;
    int brows = g.transb ? g.n : g.k, bcolumns = g.transb ? g.k : g.n;
    if (g.m < 0 || g.n < 0 || g.k < 0 || g.batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (g.a.ld < std::max(1, arows) || g.b.ld < std::max(1, brows) || g.c.ld < std::max(1, g.m))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (g.m == 0 || g.n == 0) return CUBLAS_STATUS_SUCCESS;
    check_matrix(g.a, arows, acolumns, g.batch, function);
    check_matrix(g.b, brows, bcolumns, g.batch, function);
    check_matrix(g.c, g.m, g.n, g.batch, function);
    return CUBLAS_STATUS_SUCCESS;
}

// ---- Packing: op(A) as [k][m] and op(B) as [n][k], in the type of the sums ----

static float narrow(float x, cublasComputeType_t compute) {
    if (compute == CUBLAS_COMPUTE_32F_FAST_TF32) return from_bits(round_bits(x, 13));
    if (compute == CUBLAS_COMPUTE_32F_FAST_16BF) return from_bits(round_bits(x, 16));
    if (compute != CUBLAS_COMPUTE_32F_FAST_16F) return x;
    f16 half;
    store(&half, x);
    return load(half);
}
static double narrow(double x, cublasComputeType_t) { return x; }

// Element (i, j) of the matrix goes to to[i * istep + j * jstep].
template <class T, class E>
static void pack(const E *from, int rows, int columns, int ld, T *to, size_t istep, size_t jstep,
                 cublasComputeType_t compute) {
    for (int j = 0; j < columns; ++j)
        for (int i = 0; i < rows; ++i) {
            T x = static_cast<T>(load(
                from[static_cast<size_t>(j) * static_cast<size_t>(ld) + static_cast<size_t>(i)]));
            to[static_cast<size_t>(i) * istep + static_cast<size_t>(j) * jstep] =
                narrow(x, compute);
        }
}

template <class T>
static std::vector<T> pack_matrix(const Matrix &x, int batch, int rows, int columns,
                                  bool transposed, cublasComputeType_t compute) {
    std::vector<T> to(static_cast<size_t>(rows) * static_cast<size_t>(columns));
    size_t istep = transposed ? static_cast<size_t>(columns) : 1;
    size_t jstep = transposed ? 1 : static_cast<size_t>(rows);
    const char *from = static_cast<const char *>(real(x.data)) +
                       batch * x.stride * static_cast<long long>(element_size(x.type));
    const void *p = from;
    switch (x.type) {
    case CUDA_R_64F:
        pack(static_cast<const double *>(p), rows, columns, x.ld, to.data(), istep, jstep, compute);
        break;
    case CUDA_R_32F:
        pack(static_cast<const float *>(p), rows, columns, x.ld, to.data(), istep, jstep, compute);
        break;
    case CUDA_R_16F:
        pack(static_cast<const f16 *>(p), rows, columns, x.ld, to.data(), istep, jstep, compute);
        break;
    default:
        pack(static_cast<const bf16 *>(p), rows, columns, x.ld, to.data(), istep, jstep, compute);
    }
    return to;
}

// ---- Products ----

static const int tile_rows = 256, tile_columns = 4;

template <class T>
static void multiply_tile(const T *__restrict__ a, const T *__restrict__ b, int m, int k, int rows,
                          int columns, T *__restrict__ sums) {
    std::fill(sums, sums + tile_rows * tile_columns, T(0));
    for (int p = 0; p < k; ++p) {
        const T *row = a + static_cast<size_t>(p) * static_cast<size_t>(m);
        for (int j = 0; j < columns; ++j) {
            T factor = b[static_cast<size_t>(j) * static_cast<size_t>(k) + static_cast<size_t>(p)];
            T *sum = sums + j * tile_rows;
            for (int i = 0; i < rows; ++i) sum[i] += row[i] * factor;
        }
    }
}

template <class T, class E>
static void store_tile(const Gemm &g, E *c, const T *sums, int i0, int j0, int rows, int columns) {
    T alpha = static_cast<T>(g.alpha), beta = static_cast<T>(g.beta);
    for (int j = 0; j < columns; ++j)
        for (int i = 0; i < rows; ++i) {
            E *to = c + static_cast<size_t>(j0 + j) * static_cast<size_t>(g.c.ld) + (i0 + i);
            T value = alpha * sums[j * tile_rows + i];
            if (g.beta != 0) value += beta * static_cast<T>(load(*to));
            store(to, value);
        }
}

template <class T, class E> static void multiply(const Gemm &g, int batch, E *c) {
    std::vector<T> a =
        pack_matrix<T>(g.a, batch, g.transa ? g.k : g.m, g.transa ? g.m : g.k, g.transa, g.compute);
    // op(B) column by column is B itself, or B row by row.
    std::vector<T> b =
        pack_matrix<T>(g.b, batch, g.transb ? g.n : g.k, g.transb ? g.k : g.n, g.transb, g.compute);
    T sums[tile_rows * tile_columns];
    for (int j = 0; j < g.n; j += tile_columns)
        for (int i = 0; i < g.m; i += tile_rows) {
            int rows = std::min(tile_rows, g.m - i), columns = std::min(tile_columns, g.n - j);
            const T *columns_of_b = b.data() + static_cast<size_t>(j) * static_cast<size_t>(g.k);
            multiply_tile(a.data() + i, columns_of_b, g.m, g.k, rows, columns, sums);
            store_tile(g, c, sums, i, j, rows, columns);
        }
}

template <class T, class E> static void multiply_all(const Gemm &g) {
    E *c = static_cast<E *>(const_cast<void *>(real(g.c.data)));
    for (int i = 0; i < g.batch; ++i) multiply<T>(g, i, c + i * g.c.stride);
}

void run_gemm(const Gemm &g) {
    switch (g.c.type) {
    case CUDA_R_64F: multiply_all<double, double>(g); break;
    case CUDA_R_32F: multiply_all<float, float>(g); break;
    case CUDA_R_16F: multiply_all<float, f16>(g); break;
    default: multiply_all<float, bf16>(g);
    }
}

} // namespace emulated
