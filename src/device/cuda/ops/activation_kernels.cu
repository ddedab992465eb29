// SPDX-License-Identifier: MIT
// Functions of one element such as tanh and gelu, and softmax. f32, bf16 and f16 use the device's
// f32 functions, which are accurate to a few units in the last place; sums of rows are in double
// precision.
#include "device/cuda/ops/activation_kernels.h"

#include "device/cuda/runtime/cuda_map.cuh"
#include "device/cuda/runtime/cuda_rows.cuh"

#include <math.h>

namespace {

// ---- Functions ------------------------------------------------------------------------------------

__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float expm1_of(float x) { return expm1f(x); }
__device__ inline double expm1_of(double x) { return expm1(x); }
__device__ inline float tanh_of(float x) { return tanhf(x); }
__device__ inline double tanh_of(double x) { return tanh(x); }
__device__ inline float erfc_of(float x) { return erfcf(x); }
__device__ inline double erfc_of(double x) { return erfc(x); }

template <class Real> __device__ inline Real sigmoid_of(Real x) { return 1 / (1 + exp_of(-x)); }

// Of the normal distribution: the function, and its density.
template <class Real> __device__ inline Real normal_below(Real x) {
    return (Real)0.5 * erfc_of(x * (Real)-0.70710678118654752440);
}
template <class Real> __device__ inline Real normal_density(Real x) {
    return (Real)0.39894228040143267794 * exp_of((Real)-0.5 * x * x);
}

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): nothing cancels.
#define TWICE_ROOT ((Real)1.59576912160573071176)
#define CUBIC      ((Real)0.044715)
template <class Real> __device__ inline Real gelu_tanh_argument(Real x) {
    return TWICE_ROOT * (x + CUBIC * x * x * x);
}

struct tanh_forward {
    static const bool binary = false;
    template <class Real> static __device__ Real of(Real x, Real, Real) { return tanh_of(x); }
};
struct sigmoid_forward {
    static const bool binary = false;
    template <class Real> static __device__ Real of(Real x, Real, Real) { return sigmoid_of(x); }
};
struct gelu_forward {
    static const bool binary = false;
    template <class Real> static __device__ Real of(Real x, Real, Real) {
        return x * normal_below(x);
    }
};
struct gelu_tanh_forward {
    static const bool binary = false;
    template <class Real> static __device__ Real of(Real x, Real, Real) {
        return x * sigmoid_of(gelu_tanh_argument(x));
    }
};
struct silu_forward {
    static const bool binary = false;
    template <class Real> static __device__ Real of(Real x, Real, Real) {
        return x * sigmoid_of(x);
    }
};
struct leaky_relu_forward {
    static const bool binary = false;
    template <class Real> static __device__ Real of(Real x, Real, Real slope) {
        return x > 0 ? x : slope * x;
    }
};
struct elu_forward {
    static const bool binary = false;
    template <class Real> static __device__ Real of(Real x, Real, Real alpha) {
        return x > 0 ? x : alpha * expm1_of(x);
    }
};

struct tanh_backward {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real y, Real dy, Real) {
        return dy * (1 - y * y);
    }
};
struct sigmoid_backward {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real y, Real dy, Real) {
        return dy * y * (1 - y);
    }
};
struct gelu_backward {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real x, Real dy, Real) {
        return dy * (normal_below(x) + x * normal_density(x));
    }
};
struct gelu_tanh_backward {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real x, Real dy, Real) {
        // The sigmoid of the argument, and of its negative: what is left to 1, without cancelling.
        Real a = gelu_tanh_argument(x), e = exp_of(a < 0 ? a : -a);
        Real more = 1 / (1 + e), less = e * more;
        Real c = x > 100 ? 100 : x < -100 ? -100 : x; // beyond, the rest is 0, and x * x infinite
        Real rest = c * (less * more) * TWICE_ROOT * (1 + 3 * CUBIC * c * c);
        return dy * ((a < 0 ? less : more) + rest);
    }
};
struct silu_backward {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real x, Real dy, Real) {
        Real s = sigmoid_of(x);
        return dy * (s * (1 + x * (1 - s)));
    }
};
struct leaky_relu_backward {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real x, Real dy, Real slope) {
        return dy * (x > 0 ? 1 : slope);
    }
};
struct elu_backward {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real x, Real dy, Real alpha) {
        return dy * (x > 0 ? 1 : alpha * exp_of(x));
    }
};

// ---- Softmax --------------------------------------------------------------------------------------

template <class T> struct rows_args {
    int64_t rows, k;
    const T *a, *b; // x; or y and dy
    T *to;
};

template <class T, int N, bool block> __global__ void softmax_forward(rows_args<T> r) {
    typedef iso__team<block> team;
    typedef typename iso__real<T>::type Real;
    typedef iso__vector<T, N> pack;
    for (int64_t n = team::first_row(); n < r.rows; n += team::row_stride()) {
        const T *x = r.a + n * r.k;
        const Real top = team::template top<N>(r.k, x);
        T *y = r.to + n * r.k;
        double sum = 0;
        for (int64_t i = team::lane(); i < r.k / N; i += team::lanes()) {
            pack at = iso__load_vector<true, T, N>(x + i * N);
            for (int j = 0; j < N; j++) sum += (double)exp_of(iso__widen(at.at[j]) - top);
        }
        Real part = (Real)(1 / team::sum(sum));
        for (int64_t i = team::lane(); i < r.k / N; i += team::lanes()) {
            pack at = iso__load_vector<true, T, N>(x + i * N);
            for (int j = 0; j < N; j++)
                iso__narrow(exp_of(iso__widen(at.at[j]) - top) * part, &at.at[j]);
            iso__store_vector<true>(y + i * N, at);
        }
    }
}

template <class T, int N, bool block> __global__ void softmax_backward(rows_args<T> r) {
    typedef iso__team<block> team;
    typedef typename iso__real<T>::type Real;
    typedef iso__vector<T, N> pack;
    for (int64_t n = team::first_row(); n < r.rows; n += team::row_stride()) {
        const T *y = r.a + n * r.k, *dy = r.b + n * r.k;
        T *dx = r.to + n * r.k;
        double sum = 0;
        for (int64_t i = team::lane(); i < r.k / N; i += team::lanes()) {
            pack a = iso__load_vector<true, T, N>(y + i * N);
            pack b = iso__load_vector<true, T, N>(dy + i * N);
            for (int j = 0; j < N; j++)
                sum += (double)iso__widen(b.at[j]) * (double)iso__widen(a.at[j]);
        }
        sum = team::sum(sum);
        for (int64_t i = team::lane(); i < r.k / N; i += team::lanes()) {
            pack a = iso__load_vector<true, T, N>(y + i * N);
            pack b = iso__load_vector<true, T, N>(dy + i * N);
            for (int j = 0; j < N; j++)
                iso__narrow(iso__widen(a.at[j]) * (Real)((double)iso__widen(b.at[j]) - sum),
                            &b.at[j]);
            iso__store_vector<true>(dx + i * N, b);
        }
    }
}

template <class T, int N>
iso_status softmax(iso__cuda *cuda, int64_t rows, int64_t k, const void *x, void *y) {
    rows_args<T> args = {rows, k, (const T *)x, NULL, (T *)y};
    return iso__cuda_submit_rows(cuda, softmax_forward<T, N, false>, softmax_forward<T, N, true>,
                                 rows, iso__row_loads<N>(k), args);
}

template <class T, int N>
iso_status softmax_grad(iso__cuda *cuda, int64_t rows, int64_t k, const void *y, const void *dy,
                        void *dx) {
    rows_args<T> args = {rows, k, (const T *)y, (const T *)dy, (T *)dx};
    return iso__cuda_submit_rows(cuda, softmax_backward<T, N, false>, softmax_backward<T, N, true>,
                                 rows, iso__row_loads<N>(k), args);
}

} // namespace

// ---- Launchers ------------------------------------------------------------------------------------

#define FUNCTION(name)                                                                             \
    iso_status iso__cuda_##name(iso__cuda *cuda, iso_dtype dtype, int64_t count, double alpha,     \
                                const void *x, void *y) {                                          \
        return iso__cuda_map<name##_forward>(cuda, dtype, count, x, NULL, y, NULL, alpha);         \
    }                                                                                              \
    iso_status iso__cuda_##name##_grad(iso__cuda *cuda, iso_dtype dtype, int64_t count,            \
                                       double alpha, const void *saved, const void *dy,            \
                                       void *dx) {                                                 \
        return iso__cuda_map<name##_backward>(cuda, dtype, count, saved, dy, dx, NULL, alpha);     \
    }
FUNCTION(tanh)
FUNCTION(sigmoid)
FUNCTION(gelu)
FUNCTION(gelu_tanh)
FUNCTION(silu)
FUNCTION(leaky_relu)
FUNCTION(elu)

iso_status iso__cuda_softmax(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t k,
                             const void *x, void *y) {
    enum { N = ISO_CUDA_ROW_PACK };
    bool packs = iso__rows_hold_packs(k, x, y, NULL);
    auto run = iso__for_type(dtype, softmax<double, 1>, softmax<float, 1>,
                             packs ? softmax<iso__bf16, N> : softmax<iso__bf16, 1>,
                             packs ? softmax<iso__f16, N> : softmax<iso__f16, 1>);
    return run(cuda, rows, k, x, y);
}

iso_status iso__cuda_softmax_grad(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t k,
                                  const void *y, const void *dy, void *dx) {
    enum { N = ISO_CUDA_ROW_PACK };
    bool packs = iso__rows_hold_packs(k, y, dy, dx);
    auto run = iso__for_type(dtype, softmax_grad<double, 1>, softmax_grad<float, 1>,
                             packs ? softmax_grad<iso__bf16, N> : softmax_grad<iso__bf16, 1>,
                             packs ? softmax_grad<iso__f16, N> : softmax_grad<iso__f16, 1>);
    return run(cuda, rows, k, y, dy, dx);
}
