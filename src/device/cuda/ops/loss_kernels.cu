// SPDX-License-Identifier: MIT
// Log-softmax and the losses, with double-precision sums within a row and over rows. Formulas:
// cpu_loss.c. Sums have the same order on every GPU: first each row, then the batch in one block.
#include "device/cuda/ops/loss_kernels.h"

#include "device/cuda/runtime/cuda_rows.cuh"

#include <math.h>

namespace {

// log(sum(exp(x))) without overflow, of a row that is read N at a time.
template <int N, bool block, class T> __device__ double log_sum_exp(int64_t k, const T *x) {
    typedef iso__team<block> team;
    double top = (double)team::template top<N>(k, x), sum = 0;
    for (int64_t i = team::lane(); i < k / N; i += team::lanes()) {
        iso__vector<T, N> at = iso__load_vector<true, T, N>(x + i * N);
        for (int j = 0; j < N; j++) sum += exp((double)iso__widen(at.at[j]) - top);
    }
    return top + log(team::sum(sum));
}

// What is computed in double precision, as a tensor of f32 would have it before it gets 16 bits.
template <class T> __device__ inline void put(double value, T *to) {
    iso__narrow((typename iso__real<T>::type)value, to);
}

// ---- Log-softmax ----------------------------------------------------------------------------------

template <class T> struct rows_args {
    int64_t rows, k;
    const T *a, *b; // x; or y and dy
    T *to;
};

template <class T, int N, bool block> __global__ void log_softmax_forward(rows_args<T> r) {
    typedef iso__team<block> team;
    for (int64_t n = team::first_row(); n < r.rows; n += team::row_stride()) {
        const T *x = r.a + n * r.k;
        T *y = r.to + n * r.k;
        double norm = log_sum_exp<N, block>(r.k, x);
        for (int64_t i = team::lane(); i < r.k / N; i += team::lanes()) {
            iso__vector<T, N> at = iso__load_vector<true, T, N>(x + i * N);
            for (int j = 0; j < N; j++) put((double)iso__widen(at.at[j]) - norm, &at.at[j]);
            iso__store_vector<true>(y + i * N, at);
        }
    }
}

// dx = dy - softmax(x) * sum(dy), with softmax(x) = exp(y).
template <class T, int N, bool block> __global__ void log_softmax_backward(rows_args<T> r) {
    typedef iso__team<block> team;
    for (int64_t n = team::first_row(); n < r.rows; n += team::row_stride()) {
        const T *y = r.a + n * r.k, *dy = r.b + n * r.k;
        T *dx = r.to + n * r.k;
        double sum = 0;
        for (int64_t i = team::lane(); i < r.k / N; i += team::lanes()) {
            iso__vector<T, N> b = iso__load_vector<true, T, N>(dy + i * N);
            for (int j = 0; j < N; j++) sum += (double)iso__widen(b.at[j]);
        }
        sum = team::sum(sum);
        for (int64_t i = team::lane(); i < r.k / N; i += team::lanes()) {
            iso__vector<T, N> a = iso__load_vector<true, T, N>(y + i * N);
            iso__vector<T, N> b = iso__load_vector<true, T, N>(dy + i * N);
            for (int j = 0; j < N; j++)
                put((double)iso__widen(b.at[j]) - exp((double)iso__widen(a.at[j])) * sum, &b.at[j]);
            iso__store_vector<true>(dx + i * N, b);
        }
    }
}

template <class T, int N>
iso_status log_softmax(iso__cuda *cuda, int64_t rows, int64_t k, const void *x, void *y) {
    rows_args<T> args = {rows, k, (const T *)x, NULL, (T *)y};
    return iso__cuda_submit_rows(cuda, log_softmax_forward<T, N, false>,
                                 log_softmax_forward<T, N, true>, rows, iso__row_loads<N>(k), args);
}

template <class T, int N>
iso_status log_softmax_grad(iso__cuda *cuda, int64_t rows, int64_t k, const void *y, const void *dy,
                            void *dx) {
    rows_args<T> args = {rows, k, (const T *)y, (const T *)dy, (T *)dx};
    return iso__cuda_submit_rows(cuda, log_softmax_backward<T, N, false>,
                                 log_softmax_backward<T, N, true>, rows, iso__row_loads<N>(k),
                                 args);
}

// ---- One row of a classifier: its loss, in all threads; its gradient unless that is NULL -----------

template <bool block, class T>
__device__ double cross_entropy(const iso__cuda_loss_rows &l, const T *x, int64_t label, T *grad) {
    typedef iso__team<block> team;
    double norm = log_sum_exp<1, block>(l.k, x), rest = l.smoothing / (double)l.k, sum = 0;
    if (l.smoothing > 0) {
        for (int64_t i = team::lane(); i < l.k; i += team::lanes()) sum += (double)iso__widen(x[i]);
        sum = team::sum(sum);
    }
    for (int64_t i = team::lane(); grad && i < l.k; i += team::lanes()) {
        double target = rest + (i == label ? 1 - l.smoothing : 0);
        put((exp((double)iso__widen(x[i]) - norm) - target) / (double)l.rows, &grad[i]);
    }
    return norm - (1 - l.smoothing) * (double)iso__widen(x[label]) - rest * sum;
}

template <bool block, class T>
__device__ double nll(const iso__cuda_loss_rows &l, const T *x, int64_t label, T *grad) {
    typedef iso__team<block> team;
    for (int64_t i = team::lane(); grad && i < l.k; i += team::lanes())
        put(i == label ? -1 / (double)l.rows : 0, &grad[i]);
    return -(double)iso__widen(x[label]);
}

template <bool block, class T>
__device__ double mse(const iso__cuda_loss_rows &l, const T *x, int64_t label, T *grad) {
    typedef iso__team<block> team;
    double sum = 0;
    for (int64_t i = team::lane(); i < l.k; i += team::lanes()) {
        double gap = (double)iso__widen(x[i]) - (i == label ? 1 : 0);
        sum += gap * gap;
        if (grad) put(2 * gap / ((double)l.k * (double)l.rows), &grad[i]);
    }
    return team::sum(sum) / (double)l.k;
}

// Of an element: the loss, and its derivative by x.
struct term {
    double loss, slope;
};

__device__ inline term element_term(iso__cuda_loss_kind kind, double delta, double x, double t) {
    double gap = x - t, size = fabs(gap), small = exp(-fabs(x)), near = 1 / (1 + small);
    switch (kind) {
    case ISO__CUDA_BCE_WITH_LOGITS:
        return {fmax(x, 0.0) - x * t + log1p(small), (x >= 0 ? near : small * near) - t};
    case ISO__CUDA_L1: return {size, (double)((x > t) - (x < t))};
    case ISO__CUDA_HUBER:
        if (size < delta) return {gap * gap / 2, gap};
        return {delta * (size - delta / 2), gap < 0 ? -delta : gap > 0 ? delta : gap};
    default: return {gap * gap, 2 * gap};
    }
}

template <bool block, class T>
__device__ double of_elements(const iso__cuda_loss_rows &l, const T *x, int64_t label, T *grad) {
    typedef iso__team<block> team;
    double sum = 0;
    for (int64_t i = team::lane(); i < l.k; i += team::lanes()) {
        term e = element_term(l.kind, l.delta, (double)iso__widen(x[i]), i == label ? 1 : 0);
        sum += e.loss;
        if (grad) put(e.slope / ((double)l.k * (double)l.rows), &grad[i]);
    }
    return team::sum(sum) / (double)l.k;
}

// Whether a scan from the front, which takes what is larger, ends at the label: a NaN is never
// taken, and never left where it is the first.
template <bool block, class T> __device__ bool is_largest(int64_t k, const T *x, int64_t label) {
    typedef iso__team<block> team;
    typedef typename iso__real<T>::type Real;
    const Real of_label = iso__widen(x[label]);
    bool beaten = false;
    for (int64_t i = team::lane(); i < k; i += team::lanes()) {
        Real entry = iso__widen(x[i]);
        beaten |= entry > of_label || (i < label && entry == of_label);
    }
    beaten = team::any(beaten);
    return isnan(iso__widen(x[0])) ? label == 0 : !isnan(of_label) && !beaten;
}

// ---- The batch ------------------------------------------------------------------------------------

// Called by all threads of all blocks, after their last partial sum.
__device__ void finish(const iso__cuda_loss_sum &s) {
    if (!iso__is_last_block(s.arrived, gridDim.x)) return;
    const volatile iso__cuda_loss_partial *partial = s.partial; // of other blocks: not from a cache
    double loss = 0, correct = 0;
    for (int64_t i = threadIdx.x; i < s.count; i += blockDim.x) {
        loss += partial[i].loss;
        correct += partial[i].correct;
    }
    loss = iso__block_sum(loss) / s.divisor;
    correct = iso__block_sum(correct);
    if (threadIdx.x > 0) return;
    *s.sum = {loss, correct};
}

template <class T, bool block> __global__ void losses(iso__cuda_loss_rows l) {
    typedef iso__team<block> team;
    for (int64_t n = team::first_row(); n < l.rows; n += team::row_stride()) {
        const T *x = (const T *)l.x + n * l.k;
        T *grad = l.grad ? (T *)l.grad + n * l.k : NULL;
        int64_t label = l.labels ? l.labels[n] : l.few[n];
        iso__cuda_loss_partial partial = {0, (double)is_largest<block>(l.k, x, label)};
        switch (l.kind) {
        case ISO__CUDA_NLL: partial.loss = nll<block>(l, x, label, grad); break;
        case ISO__CUDA_MSE: partial.loss = mse<block>(l, x, label, grad); break;
        case ISO__CUDA_CROSS_ENTROPY: partial.loss = cross_entropy<block>(l, x, label, grad); break;
        default: partial.loss = of_elements<block>(l, x, label, grad);
        }
        if (team::lane() == 0) l.sum.partial[n] = partial;
    }
    finish(l.sum);
}

// ---- A small batch of short rows -------------------------------------------------------------------
// One block takes it at once, so that none waits for others: a thread for each entry, in sums of
// the same order as above.

enum { FEW_THREADS = 1024, FEW_ROWS = 64 };

template <int LANES, class Real> __device__ inline Real sum_of_lanes(Real value) {
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

template <int LANES, class Real> __device__ inline Real top_of_lanes(Real value) {
    for (int offset = LANES / 2; offset > 0; offset /= 2) {
        Real other = __shfl_xor_sync(0xffffffffu, value, offset);
        value = other > value ? other : value;
    }
    return value;
}

// Entry `lane` of a row, and that of its label; `in`: there is such an entry.
template <class Real> struct few_entry {
    int lane, label;
    bool in;
    Real x, of_label;
};

// The loss of the row; the entry's gradient.
template <int LANES, class Real>
__device__ double few_cross_entropy(const iso__cuda_loss_rows &l, const few_entry<Real> &e,
                                    double *grad) {
    Real none = -(Real)INFINITY;
    double x = (double)e.x, top = (double)top_of_lanes<LANES>(e.in && e.x > none ? e.x : none);
    double norm = top + log(sum_of_lanes<LANES>(e.in ? exp(x - top) : 0));
    double rest = l.smoothing / (double)l.k, sum = 0;
    if (l.smoothing > 0) sum = sum_of_lanes<LANES>(x);
    double target = rest + (e.lane == e.label ? 1 - l.smoothing : 0);
    *grad = (exp(x - norm) - target) / (double)l.rows;
    return norm - (1 - l.smoothing) * (double)e.of_label - rest * sum;
}

template <int LANES, class Real> __device__ bool few_is_largest(const few_entry<Real> &e) {
    bool beaten = e.in && (e.x > e.of_label || (e.lane < e.label && e.x == e.of_label));
    beaten = sum_of_lanes<LANES>((int)beaten) > 0;
    Real first = __shfl_sync(0xffffffffu, e.x, 0, LANES);
    return isnan(first) ? e.label == 0 : !isnan(e.of_label) && !beaten;
}

// By the first warp, as finish() does it.
__device__ void finish_few(const iso__cuda_loss_rows &l, const iso__cuda_loss_partial *partial) {
    double loss = 0, correct = 0;
    for (int first = 0; first < FEW_ROWS; first += 32) {
        int64_t n = first + threadIdx.x;
        loss += sum_of_lanes<32>(n < l.rows ? partial[n].loss : 0);
        correct += sum_of_lanes<32>(n < l.rows ? partial[n].correct : 0);
    }
    if (threadIdx.x == 0) *l.sum.sum = {loss / l.sum.divisor, correct};
}

template <class T, int LANES>
__global__ void __launch_bounds__(FEW_THREADS) few_losses(iso__cuda_loss_rows l) {
    __shared__ iso__cuda_loss_partial partial[FEW_ROWS];
    int n = (int)threadIdx.x / LANES, k = (int)l.k;
    few_entry<typename iso__real<T>::type> e = {(int)threadIdx.x % LANES, 0, false, 0, 0};
    bool row = n < l.rows;
    e.in = row && e.lane < k;
    if (row) e.label = l.labels ? l.labels[n] : l.few[n];
    if (e.in) e.x = iso__widen(((const T *)l.x)[n * k + e.lane]);
    e.of_label = __shfl_sync(0xffffffffu, e.x, e.label, LANES);
    double grad, loss = few_cross_entropy<LANES>(l, e, &grad);
    bool correct = few_is_largest<LANES>(e);
    if (row && e.lane == 0) partial[n] = {loss, (double)correct};
    if (e.in && l.grad) put(grad, &((T *)l.grad)[n * k + e.lane]);
    __syncthreads();
    if (threadIdx.x < 32) finish_few(l, partial);
}

template <class T, int LANES> iso_status submit_few(iso__cuda *cuda, const iso__cuda_loss_rows *l) {
    unsigned threads = (unsigned)((l->rows * LANES + 31) / 32 * 32);
    return iso__cuda_submit(cuda, few_losses<T, LANES>, dim3(1), threads, *l);
}

template <class T> iso_status losses_of(iso__cuda *cuda, const iso__cuda_loss_rows *l) {
    bool few = l->kind == ISO__CUDA_CROSS_ENTROPY;
    if (few && l->k <= 16 && l->rows <= FEW_THREADS / 16) return submit_few<T, 16>(cuda, l);
    if (few && l->k <= 32 && l->rows <= FEW_THREADS / 32) return submit_few<T, 32>(cuda, l);
    return iso__cuda_submit_rows(cuda, losses<T, false>, losses<T, true>, l->rows, l->k, *l);
}

// ---- Of all elements alike ------------------------------------------------------------------------

#define PARTIAL_ELEMENTS ((int64_t)ISO_CUDA_BLOCK * 16) // whose squares a block adds up

template <class T, class Target> struct squares_args {
    int64_t count;
    const T *x;
    const Target *target;
    T *grad;
    iso__cuda_loss_sum sum;
};

template <class T, class Target> __global__ void squares(squares_args<T, Target> s) {
    const double factor = 2 / (double)s.count;
    for (int64_t p = blockIdx.x; p < s.sum.count; p += gridDim.x) {
        int64_t end = (p + 1) * PARTIAL_ELEMENTS < s.count ? (p + 1) * PARTIAL_ELEMENTS : s.count;
        double sum = 0;
        for (int64_t i = p * PARTIAL_ELEMENTS + threadIdx.x; i < end; i += blockDim.x) {
            double gap = (double)iso__widen(s.x[i]) - (double)iso__widen(s.target[i]);
            sum += gap * gap;
            if (s.grad) put(factor * gap, &s.grad[i]);
        }
        sum = iso__block_sum(sum);
        if (threadIdx.x == 0) s.sum.partial[p] = {sum, 0};
    }
    finish(s.sum);
}

// The other losses of elements.
template <class T, class Target> struct elements_args {
    iso__cuda_loss_kind kind;
    double delta;
    squares_args<T, Target> of;
};

template <class T, class Target> __global__ void losses_of_elements(elements_args<T, Target> a) {
    const squares_args<T, Target> &s = a.of;
    for (int64_t p = blockIdx.x; p < s.sum.count; p += gridDim.x) {
        int64_t end = (p + 1) * PARTIAL_ELEMENTS < s.count ? (p + 1) * PARTIAL_ELEMENTS : s.count;
        double sum = 0;
        for (int64_t i = p * PARTIAL_ELEMENTS + threadIdx.x; i < end; i += blockDim.x) {
            double x = (double)iso__widen(s.x[i]), t = (double)iso__widen(s.target[i]);
            term e = element_term(a.kind, a.delta, x, t);
            sum += e.loss;
            if (s.grad) put(e.slope / (double)s.count, &s.grad[i]);
        }
        sum = iso__block_sum(sum);
        if (threadIdx.x == 0) s.sum.partial[p] = {sum, 0};
    }
    finish(s.sum);
}

template <class T, class Target>
iso_status elements_as(iso__cuda *cuda, const iso__cuda_elements *e,
                       const iso__cuda_loss_sum *sum) {
    squares_args<T, Target> of = {e->count, (const T *)e->x, (const Target *)e->target,
                                  (T *)e->grad, *sum};
    elements_args<T, Target> args = {e->kind, e->delta, of};
    if (e->kind == ISO__CUDA_MSE)
        return iso__cuda_submit_over(cuda, squares<T, Target>, sum->count * ISO_CUDA_BLOCK, of);
    return iso__cuda_submit_over(cuda, losses_of_elements<T, Target>, sum->count * ISO_CUDA_BLOCK,
                                 args);
}

} // namespace

// ---- Launchers ------------------------------------------------------------------------------------

iso_status iso__cuda_log_softmax(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t k,
                                 const void *x, void *y) {
    enum { N = ISO_CUDA_ROW_PACK };
    bool packs = iso__rows_hold_packs(k, x, y, NULL);
    auto run = iso__for_type(dtype, log_softmax<double, 1>, log_softmax<float, 1>,
                             packs ? log_softmax<iso__bf16, N> : log_softmax<iso__bf16, 1>,
                             packs ? log_softmax<iso__f16, N> : log_softmax<iso__f16, 1>);
    return run(cuda, rows, k, x, y);
}

iso_status iso__cuda_log_softmax_grad(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t k,
                                      const void *y, const void *dy, void *dx) {
    enum { N = ISO_CUDA_ROW_PACK };
    bool packs = iso__rows_hold_packs(k, y, dy, dx);
    auto run =
        iso__for_type(dtype, log_softmax_grad<double, 1>, log_softmax_grad<float, 1>,
                      packs ? log_softmax_grad<iso__bf16, N> : log_softmax_grad<iso__bf16, 1>,
                      packs ? log_softmax_grad<iso__f16, N> : log_softmax_grad<iso__f16, 1>);
    return run(cuda, rows, k, y, dy, dx);
}

iso_status iso__cuda_losses_of_rows(iso__cuda *cuda, iso_dtype dtype,
                                    const iso__cuda_loss_rows *l) {
    auto run = iso__for_type(dtype, losses_of<double>, losses_of<float>, losses_of<iso__bf16>,
                             losses_of<iso__f16>);
    return run(cuda, l);
}

int64_t iso__cuda_element_partials(int64_t count) {
    return (count + PARTIAL_ELEMENTS - 1) / PARTIAL_ELEMENTS;
}

iso_status iso__cuda_losses_of_elements(iso__cuda *cuda, const iso__cuda_elements *e,
                                        const iso__cuda_loss_sum *sum) {
    bool wide = e->target_dtype == ISO_F32; // where outputs are narrow
    auto launch =
        iso__for_type(e->dtype, elements_as<double, double>, elements_as<float, float>,
                      wide ? elements_as<iso__bf16, float> : elements_as<iso__bf16, iso__bf16>,
                      wide ? elements_as<iso__f16, float> : elements_as<iso__f16, iso__f16>);
    return launch(cuda, e, sum);
}
