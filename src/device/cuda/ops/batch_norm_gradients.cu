// SPDX-License-Identifier: MIT
// Kernels for batch normalisation: sums over gradients, and backward. The work is divided as in
// forward.
#include "device/cuda/ops/cuda_norm_beside.cuh"

namespace {

// ---- Sums ---------------------------------------------------------------------------------------

// T: of x, dy and dx; the rest is of what that is computed in.
template <class T> struct backward_args {
    typedef typename iso__real<T>::type Real;
    iso__cuda_norm_shape shape;
    bool batch, relu, accumulate_w, accumulate_b;
    double count;
    const double *sums; // NULL: of the parts, or of dy where there is but one
    double *parts, *out;
    const T *x, *dy;
    T *dx;
    const Real *workspace;
    Real *dw, *db;
    unsigned *arrived;
    Real *slopes; // of each channel, then offsets: from find_slopes to follow_slopes
};

// Of one channel: of dy before the activation and of that times (x - mean).
struct sums {
    double dy, product;
};

// The same of K channels.
template <int K> struct partial_sums {
    double dy[K], product[K];
    double odd; // how many a thread shares: see iso__norm_gather

    __device__ void add(const partial_sums &other) {
        for (int c = 0; c < K; c++) dy[c] += other.dy[c], product[c] += other.product[c];
    }
};

template <class T>
__device__ iso__norm_coefficients<typename iso__real<T>::type> kept(const backward_args<T> &a,
                                                                    int64_t channel) {
    int64_t channels = a.shape.channels;
    if (channel >= channels) return {0, 0, 0, 0, 0};
    auto from = a.workspace + channel;
    return {from[0], from[channels], from[2 * channels], from[3 * channels], from[4 * channels]};
}

// What a relu let through is seen from x as forward saw it, which saves reading y.
template <class Real>
__device__ Real through(bool relu, const iso__norm_coefficients<Real> &k, Real x, Real dy) {
    return (int)relu & (int)!(iso__norm_output(k, x) > 0) ? 0 : dy; // without a branch
}

// N times V values of x and dy, and where they lie.
template <int N, int V, class T> struct values {
    iso__vector<T, V> x[N], dy[N];
    int64_t at[N];

    template <bool aligned> __device__ void load(const backward_args<T> &a, iso__norm_walk *w) {
        for (int i = 0; i < N; i++) {
            at[i] = iso__norm_next<V>(w);
            x[i] = iso__load_vector<aligned, T, V>(a.x + at[i]);
            dy[i] = iso__load_vector<aligned, T, V>(a.dy + at[i]);
        }
    }
};

// Of each channel a batch at a time.
template <bool aligned, int N, int V, int K, class T, class Real>
__device__ void add_gradients(const backward_args<T> &a, const iso__norm_coefficients<Real> (&k)[K],
                              iso__norm_walk *w, partial_sums<K> *to) {
    const int count = N * V / K, size = count < ISO__NORM_BATCH ? count : (int)ISO__NORM_BATCH;
    values<N, V, T> v;
    v.template load<aligned>(a, w);
    for (int first = 0; first < count; first += size)
        for (int c = 0; c < K; c++) {
            Real sum = 0, product = 0;
            for (int j = 0; j < size; j++) {
                int i = (first + j) * K + c;
                Real x = iso__widen(v.x[i / V].at[i % V]), dy = iso__widen(v.dy[i / V].at[i % V]);
                Real g = through(a.relu, k[c], x, dy);
                sum += g;
                product += g * (x - k[c].mean);
            }
            to->dy[c] += (double)sum;
            to->product[c] += (double)product;
        }
}

template <bool aligned, int V, int K, class T, class Real>
__device__ void add_all(const backward_args<T> &a, const iso__norm_coefficients<Real> (&k)[K],
                        iso__norm_walk w, partial_sums<K> *to) {
    const int n = ISO__NORM_BATCH / (V > 1 ? 2 : 1);
    while (w.left >= n) add_gradients<aligned, n, V>(a, k, &w, to);
    if (V > 1 && w.left >= n / 2) add_gradients<aligned, n / 2, V>(a, k, &w, to);
    while (w.left > 0) add_gradients<aligned, 1, V>(a, k, &w, to);
}

__device__ inline void gather(int lanes, partial_sums<1> *s) {
    s->dy[0] = iso__norm_sum(lanes, s->dy[0]);
    s->product[0] = iso__norm_sum(lanes, s->product[0]);
}
template <int K> __device__ void gather(int lanes, partial_sums<K> *s) {
    iso__norm_gather(lanes, s);
}

// In the first of each channel's threads.
template <int V, int K, class T>
__device__ partial_sums<K> sums_of_part(const backward_args<T> &a, const iso__norm_place &p,
                                        int64_t part) {
    const int width = iso__norm_summed<T, V, K>::width;
    iso__norm_walk w = iso__norm_walk_of<width, K>(a.shape, p, part, a.shape.part_values);
    iso__norm_coefficients<typename iso__real<T>::type> k[K];
    for (int c = 0; c < K; c++) k[c] = kept(a, p.channel + c);
    partial_sums<K> s = {};
    if (iso__holds_vectors<T, width>(a.x) && iso__holds_vectors<T, width>(a.dy))
        add_all<true, width>(a, k, w, &s);
    else
        add_all<false, width>(a, k, w, &s);
    gather(a.shape.lanes, &s);
    // Read again: through the loop they would take registers that it has no room for.
    for (int c = 0; c < K; c++) s.product[c] -= (double)kept(a, p.channel + c).rest * s.dy[c];
    return s;
}

template <class T, int V, int K> __global__ void take_sums(backward_args<T> a) {
    iso__norm_place p = iso__norm_place_of<K>(a.shape);
    partial_sums<K> s = sums_of_part<V, K>(a, p, blockIdx.y);
    if (p.along != 0 || !p.exists) return;
    a.parts[iso__norm_part_at(a.shape, blockIdx.y, 0, p.channel)] = s.dy[0];
    a.parts[iso__norm_part_at(a.shape, blockIdx.y, 1, p.channel)] = s.product[0];
}

__device__ inline partial_sums<1> join_parts(const iso__cuda_norm_shape &shape,
                                             const iso__norm_place &p, const double *parts) {
    partial_sums<1> s = {};
    for (int64_t part = p.along; p.exists && part < shape.parts; part += p.alongs) {
        s.dy[0] += parts[iso__norm_part_at(shape, part, 0, p.channel)];
        s.product[0] += parts[iso__norm_part_at(shape, part, 1, p.channel)];
    }
    gather(shape.lanes, &s);
    return s;
}

// ---- Where sums go ------------------------------------------------------------------------------

template <class Real>
__device__ void add_to(Real *gradient, bool accumulate, int64_t channel, double value) {
    if (!gradient) return;
    gradient[channel] = (Real)(accumulate ? (double)gradient[channel] + value : value);
}

template <class T>
__device__ void store_sums(const backward_args<T> &a, int64_t channel, const sums &s) {
    double deviation = (double)kept(a, channel).deviation;
    add_to(a.dw, a.accumulate_w, channel, s.product * deviation);
    add_to(a.db, a.accumulate_b, channel, s.dy);
    if (!a.out) return;
    a.out[channel] = s.dy;
    a.out[a.shape.channels + channel] = s.product;
}

template <class T> __global__ void join_sums(backward_args<T> a) {
    iso__norm_place p = iso__norm_place_of<1>(a.shape);
    partial_sums<1> s = join_parts(a.shape, p, a.parts);
    if (p.along == 0 && p.exists) store_sums(a, p.channel, {s.dy[0], s.product[0]});
}

template <int K>
__device__ void share(const partial_sums<K> &s, const iso__norm_place &p, sums *to) {
    for (int c = 0; p.along == 0 && c < K; c++) to[p.lane * K + c] = {s.dy[c], s.product[c]};
    __syncthreads(); // and all of dy was read: dx may be the same memory
}

// Those of the block's channels, on which all of its threads work.
template <int V, int K, class T>
__device__ void find_sums(const backward_args<T> &a, const iso__norm_place &p, sums *to) {
    if (K == 1 && a.shape.parts > 1)
        share(join_parts(a.shape, p, a.parts), p, to);
    else
        share(sums_of_part<V, K>(a, p, 0), p, to);
}

// ---- Backward -----------------------------------------------------------------------------------

// dx = dy * scale + (x - mean) * slope + offset.
template <class Real> struct slopes { Real slope, offset; };

// With statistics of the batch, dx = scale (dy - mean(dy) - xhat mean(dy xhat)), else scale dy.
template <class T>
__device__ slopes<typename iso__real<T>::type> slopes_of(const backward_args<T> &a, int64_t channel,
                                                         const sums &s) {
    typedef typename iso__real<T>::type Real;
    iso__norm_coefficients<Real> k = kept(a, channel);
    double scale = (double)k.scale, deviation = (double)k.deviation;
    double slope = a.batch ? -scale * deviation * deviation * s.product / a.count : 0;
    slopes<Real> both;
    both.slope = (Real)slope;
    both.offset = (Real)(a.batch ? -scale * s.dy / a.count - slope * (double)k.rest : 0);
    return both;
}

template <class T, class Real>
__device__ T gradient_at(const backward_args<T> &a, const iso__norm_coefficients<Real> &k,
                         const slopes<Real> &to, T at, T dy) {
    Real x = iso__widen(at), g = iso__widen(dy);
    T dx;
    iso__narrow(through(a.relu, k, x, g) * k.scale + ((x - k.mean) * to.slope + to.offset), &dx);
    return dx;
}

template <bool aligned, int N, int V, int K, class T, class Real>
__device__ void gradient(const backward_args<T> &a, const iso__norm_coefficients<Real> (&k)[K],
                         const slopes<Real> (&to)[K], iso__norm_walk *w) {
    values<N, V, T> v;
    v.template load<aligned>(a, w);
    for (int i = 0; i < N; i++) {
        iso__vector<T, V> dx;
        for (int j = 0; j < V; j++)
            dx.at[j] = gradient_at(a, k[j % K], to[j % K], v.x[i].at[j], v.dy[i].at[j]);
        iso__store_vector<aligned>(a.dx + v.at[i], dx);
    }
}

template <bool aligned, int V, int K, class T, class Real>
__device__ void gradient_of_all(const backward_args<T> &a,
                                const iso__norm_coefficients<Real> (&k)[K],
                                const slopes<Real> (&to)[K], iso__norm_walk w) {
    const int n = ISO__NORM_BATCH / (V > 1 ? 2 : 1);
    while (w.left >= n) gradient<aligned, n, V>(a, k, to, &w);
    if (w.left >= n / 2) gradient<aligned, n / 2, V>(a, k, to, &w);
    while (w.left > 0) gradient<aligned, 1, V>(a, k, to, &w);
}

template <int V, int K, class T>
__device__ void gradient_of_part(const backward_args<T> &a, const iso__norm_place &p,
                                 const slopes<typename iso__real<T>::type> *shared) {
    typedef typename iso__real<T>::type Real;
    iso__norm_coefficients<Real> k[K];
    slopes<Real> to[K];
    for (int c = 0; c < K; c++) {
        k[c] = kept(a, p.channel + c);
        to[c] = shared[p.lane * K + c];
    }
    iso__norm_walk w = iso__norm_free_walk<V, K>(a.shape, p, blockIdx.y);
    if (iso__holds_vectors<T, V>(a.x) && iso__holds_vectors<T, V>(a.dy) &&
        iso__holds_vectors<T, V>(a.dx))
        gradient_of_all<true, V>(a, k, to, w);
    else
        gradient_of_all<false, V>(a, k, to, w);
}

// own: sums are not at hand yet.
template <class T, int V, int K, bool own> __global__ void gradient_parts(backward_args<T> a) {
    __shared__ sums found[ISO__NORM_LANES * K];
    __shared__ slopes<typename iso__real<T>::type> shared[ISO__NORM_LANES * K];
    iso__norm_place p = iso__norm_place_of<K>(a.shape);
    int t = (int)threadIdx.x, channels = a.shape.lanes * K;
    int64_t channel = (int64_t)blockIdx.x * channels + t;
    if (own) find_sums<V, K>(a, p, found);
    if (t < channels && channel < a.shape.channels) {
        sums s = own ? found[t] : sums{a.sums[channel], a.sums[a.shape.channels + channel]};
        shared[t] = slopes_of(a, channel, s);
        if (blockIdx.y == 0) store_sums(a, channel, s);
    }
    __syncthreads();
    if (a.dx) gradient_of_part<V, K>(a, p, shared);
}

// ---- Channels beside each other -----------------------------------------------------------------

// What is at hand of K channels where gradients are summed.
template <int K, class T, class Real>
__device__ void load_kept(const backward_args<T> &a, int64_t channel,
                          iso__norm_coefficients<Real> (&k)[K]) {
    Real mean[K], scale[K], shift[K];
    const Real *from = a.workspace + channel;
    iso__norm_load(from, mean);
    iso__norm_load(from + 3 * a.shape.channels, scale);
    iso__norm_load(from + 4 * a.shape.channels, shift);
    for (int c = 0; c < K; c++) k[c] = {mean[c], 0, 0, scale[c], shift[c]};
}

// The next N rows of x and dy; whole: there are so many.
template <int N, int K, class T> struct rows {
    iso__vector<T, K> x[N] = {}, dy[N] = {};

    template <bool aligned, bool whole>
    __device__ void load(const backward_args<T> &a, const iso__norm_rows &r) {
        for (int i = 0; i < N; i++) {
            if (!whole && !r.has(i)) continue;
            x[i] = iso__load_vector<aligned, T, K>(a.x + r.at + i * r.stride);
            dy[i] = iso__load_vector<aligned, T, K>(a.dy + r.at + i * r.stride);
        }
    }
};

template <bool aligned, int N, int K, class T, class Real>
__device__ void add_rows(const backward_args<T> &a, const iso__norm_coefficients<Real> (&k)[K],
                         const iso__norm_rows &r, double (&to)[2][K]) {
    rows<N, K, T> v;
    v.template load<aligned, true>(a, r);
    for (int c = 0; c < K; c++) {
        Real sum = 0, product = 0;
        for (int i = 0; i < N; i++) {
            Real x = iso__widen(v.x[i].at[c]);
            Real g = through(a.relu, k[c], x, (Real)iso__widen(v.dy[i].at[c]));
            sum += g;
            product += g * (x - k[c].mean);
        }
        to[0][c] += (double)sum;
        to[1][c] += (double)product;
    }
}

template <bool aligned, int K, class T>
__device__ void add_part(const backward_args<T> &a, double (&to)[2][K]) {
    const int N = ISO__NORM_BATCH;
    iso__norm_rows r = iso__norm_rows_of<K>(a.shape);
    if (r.left <= 0) return;
    iso__norm_coefficients<typename iso__real<T>::type> k[K];
    load_kept(a, r.channel, k);
    for (; r.holds<N>(); r.skip<N>()) add_rows<aligned, N>(a, k, r, to);
    if (r.holds<N / 2>()) {
        add_rows<aligned, N / 2>(a, k, r, to);
        r.skip<N / 2>();
    }
    for (; r.holds<1>(); r.skip<1>()) add_rows<aligned, 1>(a, k, r, to);
}

template <class T, int K>
__global__ void __launch_bounds__(ISO__NORM_SUM_BLOCK, iso__norm_beside<T>::blocks)
    find_slopes(backward_args<T> a) {
    __shared__ iso__norm_shared<K> shared;
    double own[2][K] = {};
    if (iso__holds_vectors<T, K>(a.x) && iso__holds_vectors<T, K>(a.dy))
        add_part<true>(a, own);
    else
        add_part<false>(a, own);
    if (!iso__norm_sum_group(a.shape, own, a.parts, a.arrived, &shared)) return;
    int t = (int)threadIdx.x, group = a.shape.lanes * K;
    int64_t channel = (int64_t)blockIdx.x * group + t;
    if (t >= group || channel >= a.shape.channels) return;
    sums s = {shared.found[t], shared.found[group + t]};
    s.product -= (double)kept(a, channel).rest * s.dy;
    store_sums(a, channel, s);
    if (!a.slopes) return;
    auto to = slopes_of(a, channel, s);
    a.slopes[channel] = to.slope;
    a.slopes[a.shape.channels + channel] = to.offset;
}

template <bool aligned, bool whole, int N, int K, class T, class Real>
__device__ void gradient_rows(const backward_args<T> &a, const iso__norm_coefficients<Real> (&k)[K],
                              const slopes<Real> (&to)[K], const iso__norm_rows &r) {
    rows<N, K, T> v;
    v.template load<aligned, whole>(a, r);
    for (int i = 0; i < N; i++) {
        for (int c = 0; c < K; c++)
            v.x[i].at[c] = gradient_at(a, k[c], to[c], v.x[i].at[c], v.dy[i].at[c]);
        if (whole || r.has(i)) iso__store_vector<aligned>(a.dx + r.at + i * r.stride, v.x[i]);
    }
}

template <bool aligned, int K, class T>
__device__ void gradient_of_rows(const backward_args<T> &a) {
    typedef typename iso__real<T>::type Real;
    const int N = ISO__NORM_BATCH / 2;
    iso__norm_rows r = iso__norm_rows_of<K>(a.shape);
    if (r.left <= 0) return;
    iso__norm_coefficients<Real> k[K];
    Real slope[K], offset[K];
    slopes<Real> to[K];
    load_kept(a, r.channel, k);
    iso__norm_load(a.slopes + r.channel, slope);
    iso__norm_load(a.slopes + a.shape.channels + r.channel, offset);
    for (int c = 0; c < K; c++) to[c] = {slope[c], offset[c]};
    for (; r.holds<N>(); r.skip<N>()) gradient_rows<aligned, true, N>(a, k, to, r);
    if (r.has(0)) gradient_rows<aligned, false, N>(a, k, to, r);
}

// With what find_slopes left: no thread waits for another.
template <class T, int K>
__global__ void __launch_bounds__(ISO_CUDA_BLOCK, sizeof(T) == 2 ? 4 : 3)
    follow_slopes(backward_args<T> a) {
    if (iso__holds_vectors<T, K>(a.x) && iso__holds_vectors<T, K>(a.dy) &&
        iso__holds_vectors<T, K>(a.dx))
        gradient_of_rows<true, K>(a);
    else
        gradient_of_rows<false, K>(a);
}

// ---- Launchers ----------------------------------------------------------------------------------

template <class T> backward_args<T> args_of(const iso__cuda_norm_backward *b) {
    typedef typename iso__real<T>::type Real;
    backward_args<T> args = {};
    args.shape = b->shape;
    args.batch = b->batch, args.relu = b->relu;
    args.accumulate_w = b->accumulate_w, args.accumulate_b = b->accumulate_b;
    args.count = b->sums ? b->count : (double)b->shape.values;
    args.sums = b->sums, args.parts = b->parts, args.out = b->out;
    args.x = (const T *)b->x, args.dy = (const T *)b->dy, args.dx = (T *)b->dx;
    args.workspace = (const Real *)b->workspace;
    args.dw = (Real *)b->dw, args.db = (Real *)b->db;
    args.arrived = b->arrived, args.slopes = b->dx ? (Real *)b->numbers : nullptr;
    return args;
}

// The sums of all parts, and what follows from them; backward then finds them in a->sums.
template <class T>
iso_status join_into(iso__cuda *cuda, backward_args<T> *a, const iso__cuda_norm_backward *b) {
    backward_args<T> joining = *a;
    joining.shape = iso__norm_joining(a->shape);
    joining.out = b->numbers;
    a->sums = b->numbers;
    a->dw = a->db = nullptr, a->out = nullptr;
    return iso__norm_submit(cuda, join_sums<T>, 1, joining);
}

template <class T> iso_status backward_beside(iso__cuda *cuda, const iso__cuda_norm_backward *b) {
    enum { WIDTH = iso__norm_beside<T>::moved };
    backward_args<T> args = args_of<T>(b);
    args.shape = b->summed;
    iso_status status = iso__norm_submit_sums(cuda, find_slopes<T, ISO__NORM_SUMMED>, args);
    if (status < 0 || !b->dx) return status;
    args.shape = iso__norm_narrower(iso__norm_finer(b->shape), WIDTH);
    return iso__norm_submit(cuda, follow_slopes<T, WIDTH>, args.shape.parts, args);
}

template <class T> iso_status backward_of(iso__cuda *cuda, const iso__cuda_norm_backward *b) {
    enum { WIDTH = iso__widest<T>::width };
    const iso__cuda_norm_shape *s = &b->shape;
    if (!b->sums && s->parts > 1 && s->owned > 1) return backward_beside<T>(cuda, b);
    backward_args<T> args = args_of<T>(b);
    if (!b->sums && s->parts > 1) {
        iso_status status = iso__norm_submit(
            cuda, s->width > 1 ? take_sums<T, WIDTH, 1> : take_sums<T, 1, 1>, s->parts, args);
        if (status == ISO_OK && iso__norm_is_joined(*s)) status = join_into(cuda, &args, b);
        if (status < 0) return status;
    }
    if (!args.sums)
        return iso__norm_submit_widest(
            cuda, gradient_parts<T, 1, 1, true>, gradient_parts<T, WIDTH, 1, true>,
            gradient_parts<T, WIDTH, WIDTH, true>, b->dx ? s->parts : 1, args);
    if (!b->dx) return ISO_OK;
    args.shape = iso__norm_finer(*s);
    return iso__norm_submit_widest(cuda, gradient_parts<T, 1, 1, false>,
                                   gradient_parts<T, WIDTH, 1, false>,
                                   gradient_parts<T, WIDTH, WIDTH, false>, args.shape.parts, args);
}

} // namespace

iso_status iso__cuda_norm_backward_launch(iso__cuda *cuda, const iso__cuda_norm_backward *args) {
    return iso__for_type(args->shape.dtype, backward_of<double>, backward_of<float>,
                         backward_of<iso__bf16>, backward_of<iso__f16>)(cuda, args);
}
