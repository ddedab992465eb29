// SPDX-License-Identifier: MIT
// Kernels for batch normalisation: moments and forward. Channels with many values have several
// parts. One launch computes the moments of the parts, and each block of the next launch combines
// those of its channel; if a block has many channels, a separate launch in between combines them.
// If channels are adjacent in memory, the first launch also computes the coefficients. The division
// depends on the shape alone, and the order of all additions is fixed.
#include "device/cuda/ops/cuda_norm_beside.cuh"
#include "device/cuda/ops/cuda_norm_moments.cuh"

namespace {

// ---- Moments ------------------------------------------------------------------------------------

template <class T> struct moments_args {
    iso__cuda_norm_shape shape;
    const T *x;
    double *parts;
};

template <class T, int V, int K> __global__ void take_moments(moments_args<T> a) {
    iso__norm_place p = iso__norm_place_of<K>(a.shape);
    iso__norm_moments<K> m = iso__norm_moments_of_part<V, K>(a.shape, p, blockIdx.y, a.x);
    if (p.along != 0 || !p.exists) return;
    a.parts[iso__norm_part_at(a.shape, blockIdx.y, 0, p.channel)] = m.mean[0];
    a.parts[iso__norm_part_at(a.shape, blockIdx.y, 1, p.channel)] = m.squares[0];
}

struct join_args {
    iso__cuda_norm_shape shape;
    const double *parts;
    double *out;
};

__global__ void join_moments(join_args a) {
    iso__norm_place p = iso__norm_place_of<1>(a.shape);
    iso__norm_moments<1> m = iso__norm_join_parts(a.shape, p, a.parts);
    if (p.along != 0 || !p.exists) return;
    a.out[p.channel] = m.mean[0];
    a.out[a.shape.channels + p.channel] = m.squares[0];
}

// ---- Statistics and coefficients ----------------------------------------------------------------

// T: of x and y; the rest is of what that is computed in.
template <class T> struct forward_args {
    typedef typename iso__real<T>::type Real;
    iso__cuda_norm_shape shape;
    double eps, factor, count;
    bool batch, relu;
    const double *moments; // NULL: of the parts, or of x where there is but one
    double *parts, *out;   // out: where find_coefficients leaves moments and stops; or NULL
    unsigned *arrived;
    const T *x;
    T *y;
    const Real *weight, *bias;
    Real *running_mean, *running_var, *workspace;
    long long *tracked;
};

// Of one channel.
struct statistics {
    double count, mean, squares;
};

template <class T>
__device__ void update_running(const forward_args<T> &a, int64_t channel, const statistics &m) {
    typedef typename iso__real<T>::type Real;
    double mean = (double)a.running_mean[channel], variance = (double)a.running_var[channel];
    double unbiased = m.squares / (m.count - 1);
    a.running_mean[channel] = (Real)((1 - a.factor) * mean + a.factor * m.mean);
    a.running_var[channel] = (Real)((1 - a.factor) * variance + a.factor * unbiased);
}

template <class T>
__device__ iso__norm_coefficients<typename iso__real<T>::type>
coefficients_of(const forward_args<T> &a, int64_t channel, const statistics &m) {
    typedef typename iso__real<T>::type Real;
    double mean = a.batch ? m.mean : (double)a.running_mean[channel];
    double variance = a.batch ? m.squares / m.count : (double)a.running_var[channel];
    double deviation = 1 / sqrt(variance + a.eps);
    double scale = a.weight ? deviation * (double)a.weight[channel] : deviation;
    iso__norm_coefficients<Real> k;
    k.mean = (Real)mean;
    double rest = mean - (double)k.mean;
    k.rest = (Real)rest;
    k.deviation = (Real)deviation;
    k.scale = (Real)scale;
    k.shift = (Real)((a.bias ? (double)a.bias[channel] : 0) - rest * scale);
    return k;
}

template <class Real>
__device__ void keep(const iso__norm_coefficients<Real> &k, int64_t channels, Real *workspace) {
    workspace[0] = k.mean;
    workspace[channels] = k.rest;
    workspace[2 * channels] = k.deviation;
    workspace[3 * channels] = k.scale;
    workspace[4 * channels] = k.shift;
}

template <class T> __device__ statistics given(const forward_args<T> &a, int64_t channel) {
    if (!a.batch) return {0, 0, 0};
    double squares = a.moments[a.shape.channels + channel];
    return {a.count, a.moments[channel], squares < 0 ? 0 : squares}; // a NaN stays one
}

template <int K>
__device__ void share(const iso__norm_moments<K> &m, const iso__norm_place &p, statistics *to) {
    for (int c = 0; p.along == 0 && c < K; c++)
        to[p.lane * K + c] = {m.count, m.mean[c], m.squares[c]};
    __syncthreads();
}

// Those of the block's channels, on which all of its threads work.
template <int V, int K, class T>
__device__ void find_statistics(const forward_args<T> &a, const iso__norm_place &p,
                                statistics *to) {
    if (K == 1 && a.shape.parts > 1)
        share(iso__norm_join_parts(a.shape, p, a.parts), p, to);
    else
        share(iso__norm_moments_of_part<V, K>(a.shape, p, 0, a.x), p, to);
}

// ---- Channels beside each other: moments --------------------------------------------------------

// Adds values of channel c: sums of x - near and of its square, where `near` is some value of the
// channel. About the rounded mean of the batch nothing cancels in Real, and little in f64 about
// `near`.
template <int N, int K, class Real>
__device__ inline void add_batch(const Real (&v)[N], Real near, int c, double (&to)[2][K]) {
    Real mean = 0, sum = 0, squares = 0;
    for (int k = 0; k < N; k++) mean += v[k];
    mean /= (Real)N;
    for (int k = 0; k < N; k++) {
        Real distance = v[k] - mean;
        sum += distance;
        squares += distance * distance;
    }
    double from_near = (double)mean - (double)near;
    double all = fma((double)N, from_near, (double)sum);
    to[0][c] += all;
    to[1][c] += fma(from_near, (double)sum + all, (double)squares);
}

// N rows, which are under way at once; smaller batches of them need fewer registers.
template <bool aligned, int N, int K, class T, class Real>
__device__ void add_rows(const T *x, int64_t step, const Real (&near)[K], double (&to)[2][K]) {
    const int size = N < 4 ? N : 4;
    iso__vector<T, K> v[N];
    for (int k = 0; k < N; k++) v[k] = iso__load_vector<aligned, T, K>(x + k * step);
    for (int first = 0; first < N; first += size)
        for (int c = 0; c < K; c++) {
            Real batch[size];
            for (int k = 0; k < size; k++) batch[k] = iso__widen(v[first + k].at[c]);
            add_batch(batch, near[c], c, to);
        }
}

template <bool aligned, int K, class T>
__device__ void add_part(const iso__cuda_norm_shape &s, const T *x, double (&to)[2][K]) {
    const int N = ISO__NORM_BATCH;
    iso__norm_rows r = iso__norm_rows_of<K>(s);
    if (r.left <= 0) return;
    typename iso__real<T>::type near[K];
    for (int c = 0; c < K; c++) near[c] = iso__widen(x[r.channel + c]);
    for (; r.holds<N>(); r.skip<N>()) add_rows<aligned, N>(x + r.at, r.stride, near, to);
    if (r.holds<N / 2>()) {
        add_rows<aligned, N / 2>(x + r.at, r.stride, near, to);
        r.skip<N / 2>();
    }
    for (; r.holds<1>(); r.skip<1>()) add_rows<aligned, 1>(x + r.at, r.stride, near, to);
}

// From sums about a value of the channel.
template <class T>
__device__ statistics moments_about(const forward_args<T> &a, int64_t channel, double sum,
                                    double squares) {
    double count = (double)a.shape.values, rest = sum / count;
    squares = fma(-rest, sum, squares);
    return {count, (double)iso__widen(a.x[channel]) + rest, squares < 0 ? 0 : squares};
}

template <class T>
__device__ void use_moments(const forward_args<T> &a, int64_t channel, const statistics &m) {
    if (a.out) {
        a.out[channel] = m.mean;
        a.out[a.shape.channels + channel] = m.squares;
        return;
    }
    keep(coefficients_of(a, channel, m), a.shape.channels, a.workspace + channel);
    if (a.running_mean) update_running(a, channel, m);
    if (a.tracked && channel == 0) ++*a.tracked;
}

template <class T, int K>
__global__ void __launch_bounds__(ISO__NORM_SUM_BLOCK, iso__norm_beside<T>::blocks)
    find_coefficients(forward_args<T> a) {
    __shared__ iso__norm_shared<K> shared;
    double own[2][K] = {};
    if (iso__holds_vectors<T, K>(a.x))
        add_part<true>(a.shape, a.x, own);
    else
        add_part<false>(a.shape, a.x, own);
    if (!iso__norm_sum_group(a.shape, own, a.parts, a.arrived, &shared)) return;
    int t = (int)threadIdx.x, group = a.shape.lanes * K;
    int64_t channel = (int64_t)blockIdx.x * group + t;
    if (t >= group || channel >= a.shape.channels) return;
    use_moments(a, channel, moments_about(a, channel, shared.found[t], shared.found[group + t]));
}

// ---- Forward ------------------------------------------------------------------------------------

template <bool aligned, int N, int V, int K, class T, class Real>
__device__ void normalise(const forward_args<T> &a, const iso__norm_coefficients<Real> (&k)[K],
                          iso__norm_walk *w) {
    int64_t at[N];
    iso__vector<T, V> x[N];
    for (int i = 0; i < N; i++)
        x[i] = iso__load_vector<aligned, T, V>(a.x + (at[i] = iso__norm_next<V>(w)));
    for (int i = 0; i < N; i++) {
        iso__vector<T, V> to;
        for (int v = 0; v < V; v++) {
            Real y = iso__norm_output(k[v % K], iso__widen(x[i].at[v]));
            iso__narrow(a.relu && y < 0 ? 0 : y, &to.at[v]); // a NaN stays one
        }
        iso__store_vector<aligned>(a.y + at[i], to);
    }
}

template <bool aligned, int V, int K, class T, class Real>
__device__ void normalise_all(const forward_args<T> &a, const iso__norm_coefficients<Real> (&k)[K],
                              iso__norm_walk w) {
    const int n = ISO__NORM_BATCH / (V > 1 ? 2 : 1);
    while (w.left >= n) normalise<aligned, n, V>(a, k, &w);
    if (w.left >= n / 2) normalise<aligned, n / 2, V>(a, k, &w);
    while (w.left > 0) normalise<aligned, 1, V>(a, k, &w);
}

// own: statistics of the batch are not at hand yet.
template <class T, int V, int K, bool own> __global__ void normalise_parts(forward_args<T> a) {
    typedef iso__norm_coefficients<typename iso__real<T>::type> coefficients;
    __shared__ statistics found[ISO__NORM_LANES * K];
    __shared__ coefficients shared[ISO__NORM_LANES * K];
    iso__norm_place p = iso__norm_place_of<K>(a.shape);
    int t = (int)threadIdx.x, channels = a.shape.lanes * K;
    int64_t channel = (int64_t)blockIdx.x * channels + t;
    if (own) find_statistics<V, K>(a, p, found);
    if (t < channels && channel < a.shape.channels) {
        statistics m = own ? found[t] : given(a, channel);
        coefficients mine = shared[t] = coefficients_of(a, channel, m);
        if (blockIdx.y == 0) {
            keep(mine, a.shape.channels, a.workspace + channel);
            if (a.batch && a.running_mean) update_running(a, channel, m);
            if (a.batch && a.tracked && channel == 0) ++*a.tracked;
        }
    }
    __syncthreads();
    coefficients k[K];
    for (int c = 0; c < K; c++) k[c] = shared[p.lane * K + c];
    iso__norm_walk w = iso__norm_free_walk<V, K>(a.shape, p, blockIdx.y);
    if (iso__holds_vectors<T, V>(a.x) && iso__holds_vectors<T, V>(a.y))
        normalise_all<true, V>(a, k, w);
    else
        normalise_all<false, V>(a, k, w);
}

// ---- Channels beside each other: forward --------------------------------------------------------

// The next N rows; whole: there are so many.
template <bool aligned, bool whole, int N, int K, class T, class Real>
__device__ void normalise_rows(const forward_args<T> &a, const iso__norm_coefficients<Real> (&k)[K],
                               const iso__norm_rows &r) {
    iso__vector<T, K> x[N] = {};
    for (int i = 0; i < N; i++)
        if (whole || r.has(i)) x[i] = iso__load_vector<aligned, T, K>(a.x + r.at + i * r.stride);
    for (int i = 0; i < N; i++) {
        for (int c = 0; c < K; c++) {
            Real y = iso__norm_output(k[c], (Real)iso__widen(x[i].at[c]));
            iso__narrow(a.relu && y < 0 ? 0 : y, &x[i].at[c]); // a NaN stays one
        }
        if (whole || r.has(i)) iso__store_vector<aligned>(a.y + r.at + i * r.stride, x[i]);
    }
}

template <bool aligned, int K, class T> __device__ void normalise_part(const forward_args<T> &a) {
    typedef typename iso__real<T>::type Real;
    const int N = 64 / (K * sizeof(T)); // 64 bytes under way
    iso__norm_rows r = iso__norm_rows_of<K>(a.shape);
    if (r.left <= 0) return;
    iso__norm_coefficients<Real> k[K];
    Real mean[K], scale[K], shift[K];
    const Real *from = a.workspace + r.channel;
    iso__norm_load(from, mean);
    iso__norm_load(from + 3 * a.shape.channels, scale);
    iso__norm_load(from + 4 * a.shape.channels, shift);
    for (int c = 0; c < K; c++) k[c] = {mean[c], 0, 0, scale[c], shift[c]};
    for (; r.holds<N>(); r.skip<N>()) normalise_rows<aligned, true, N>(a, k, r);
    if (r.has(0)) normalise_rows<aligned, false, N>(a, k, r);
}

// With the coefficients that find_coefficients left: no thread waits for another.
template <class T, int K>
__global__ void __launch_bounds__(ISO_CUDA_BLOCK, 4) normalise_beside(forward_args<T> a) {
    if (iso__holds_vectors<T, K>(a.x) && iso__holds_vectors<T, K>(a.y))
        normalise_part<true, K>(a);
    else
        normalise_part<false, K>(a);
}

// ---- Launchers ----------------------------------------------------------------------------------

template <class T>
iso_status moments_into_parts(iso__cuda *cuda, const iso__cuda_norm_shape *shape, const void *x,
                              double *parts) {
    enum { WIDTH = iso__widest<T>::width };
    moments_args<T> args = {*shape, (const T *)x, parts};
    return iso__norm_submit(cuda,
                            shape->width > 1 ? take_moments<T, WIDTH, 1> : take_moments<T, 1, 1>,
                            shape->parts, args);
}

iso_status join_into(iso__cuda *cuda, const iso__cuda_norm_shape *shape, const double *parts,
                     double *out) {
    join_args args = {iso__norm_joining(*shape), parts, out};
    return iso__norm_submit(cuda, join_moments, 1, args);
}

template <class T> forward_args<T> args_of(const iso__cuda_norm_forward *f) {
    typedef typename iso__real<T>::type Real;
    forward_args<T> args = {};
    args.shape = f->shape;
    args.eps = f->eps, args.factor = f->factor;
    args.count = f->moments ? f->count : (double)f->shape.values;
    args.batch = f->batch, args.relu = f->relu;
    args.moments = f->moments, args.parts = f->parts, args.arrived = f->arrived;
    args.x = (const T *)f->x, args.y = (T *)f->y;
    args.weight = (const Real *)f->weight, args.bias = (const Real *)f->bias;
    args.running_mean = (Real *)f->running_mean, args.running_var = (Real *)f->running_var;
    args.workspace = (Real *)f->workspace;
    args.tracked = (long long *)f->tracked;
    return args;
}

template <class T>
iso_status find(iso__cuda *cuda, const forward_args<T> &args, const iso__cuda_norm_shape &summed) {
    forward_args<T> finding = args;
    finding.shape = summed;
    return iso__norm_submit_sums(cuda, find_coefficients<T, iso__norm_beside<T>::moments>, finding);
}

template <class T> iso_status moments_of(iso__cuda *cuda, const iso__cuda_norm_forward *f) {
    if (f->shape.owned == 1) {
        iso_status status = moments_into_parts<T>(cuda, &f->shape, f->x, f->parts);
        return status < 0 ? status : join_into(cuda, &f->shape, f->parts, f->numbers);
    }
    forward_args<T> args = args_of<T>(f);
    args.out = f->numbers;
    return find(cuda, args, f->summed);
}

template <class T> iso_status forward_beside(iso__cuda *cuda, const iso__cuda_norm_forward *f) {
    enum { WIDTH = iso__norm_beside<T>::moved };
    forward_args<T> args = args_of<T>(f);
    iso_status status = find(cuda, args, f->summed);
    if (status < 0) return status;
    args.shape = iso__norm_narrower(iso__norm_finer(f->shape), WIDTH);
    return iso__norm_submit(cuda, normalise_beside<T, WIDTH>, args.shape.parts, args);
}

template <class T> iso_status forward_of(iso__cuda *cuda, const iso__cuda_norm_forward *f) {
    enum { WIDTH = iso__widest<T>::width };
    const iso__cuda_norm_shape *s = &f->shape;
    if (f->batch && !f->moments && s->parts > 1 && s->owned > 1) return forward_beside<T>(cuda, f);
    forward_args<T> args = args_of<T>(f);
    iso_status status = ISO_OK;
    if (f->batch && !f->moments && s->parts > 1) {
        status = moments_into_parts<T>(cuda, s, f->x, f->parts);
        if (status == ISO_OK && iso__norm_is_joined(*s)) {
            status = join_into(cuda, s, f->parts, f->numbers);
            args.moments = f->numbers;
        }
    }
    if (status < 0) return status;
    if (args.batch && !args.moments)
        return iso__norm_submit_widest(
            cuda, normalise_parts<T, 1, 1, true>, normalise_parts<T, WIDTH, 1, true>,
            normalise_parts<T, WIDTH, WIDTH, true>, args.shape.parts, args);
    args.shape = iso__norm_finer(*s);
    return iso__norm_submit_widest(cuda, normalise_parts<T, 1, 1, false>,
                                   normalise_parts<T, WIDTH, 1, false>,
                                   normalise_parts<T, WIDTH, WIDTH, false>, args.shape.parts, args);
}

// What fits into the 4 KiB of a kernel's arguments.
enum { UPLOAD = 480 };
struct upload_args {
    int64_t count;
    double *to;
    double value[UPLOAD];
};

__global__ void store_values(upload_args a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) a.to[i] = a.value[i];
}

} // namespace

iso_status iso__cuda_norm_upload(iso__cuda *cuda, int64_t count, const double *from, double *to) {
    for (int64_t first = 0; first < count; first += UPLOAD) {
        upload_args args = {
            count - first < UPLOAD ? count - first : (int64_t)UPLOAD, to + first, {0}};
        for (int64_t i = 0; i < args.count; i++) args.value[i] = from[first + i];
        iso_status status = iso__cuda_submit_over(cuda, store_values, args.count, args);
        if (status < 0) return status;
    }
    return ISO_OK;
}

iso_status iso__cuda_norm_forward_launch(iso__cuda *cuda, const iso__cuda_norm_forward *args) {
    return iso__for_type(args->shape.dtype, forward_of<double>, forward_of<float>,
                         forward_of<iso__bf16>, forward_of<iso__f16>)(cuda, args);
}

iso_status iso__cuda_norm_moments_launch(iso__cuda *cuda, const iso__cuda_norm_forward *args) {
    return iso__for_type(args->shape.dtype, moments_of<double>, moments_of<float>,
                         moments_of<iso__bf16>, moments_of<iso__f16>)(cuda, args);
}
