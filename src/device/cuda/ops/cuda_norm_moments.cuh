// SPDX-License-Identifier: MIT
// Moments of batch normalisation: of the values of a thread, of a block's part of a channel, and of
// all parts. The order of all additions is fixed.
#ifndef ISO_CUDA_NORM_MOMENTS_CUH
#define ISO_CUDA_NORM_MOMENTS_CUH

#include "device/cuda/ops/cuda_norm.cuh"

// For each of K channels: the number of values, their mean, and the sum of the squares of their
// distances from it.
template <int K> struct iso__norm_moments {
    double count, mean[K], squares[K];

    // Combines the moments of two sets of values (Chan, Golub, LeVeque: Updating formulae, 1979).
    __device__ void add(const iso__norm_moments &b) {
        if (b.count == 0) return;
        double share = b.count / (count + b.count);
        for (int c = 0; c < K; c++) merge(c, b.mean[c], b.squares[c], share);
        count += b.count;
    }

    // The same for one channel. share: the fraction of all values that the other set has.
    __device__ void merge(int c, double other_mean, double other_squares, double share) {
        double delta = other_mean - mean[c];
        squares[c] += other_squares + delta * delta * count * share;
        mean[c] += delta * share;
    }
};

// Adds N values of channel c. Sums their distances from their rounded mean, to avoid cancellation.
template <int N, int K, class Real>
__device__ inline void iso__norm_add_batch(const Real (&v)[N], int c, double share,
                                           iso__norm_moments<K> *m) {
    Real shift = 0, sum = 0, squares = 0;
    for (int k = 0; k < N; k++) shift += v[k];
    shift /= (Real)N;
    for (int k = 0; k < N; k++) {
        Real distance = v[k] - shift;
        sum += distance;
        squares += distance * distance;
    }
    double rest = (double)sum / N;
    m->merge(c, (double)shift + rest, (double)squares - (double)sum * rest, share);
}

// Adds the next N times V values of the walk.
template <bool aligned, int N, int V, int K, class T>
__device__ void iso__norm_add_values(const T *x, iso__norm_walk *w, iso__norm_moments<K> *m) {
    const int values = N * V / K, size = values < ISO__NORM_BATCH ? values : (int)ISO__NORM_BATCH;
    iso__vector<T, V> v[N];
    for (int k = 0; k < N; k++) v[k] = iso__load_vector<aligned, T, V>(x + iso__norm_next<V>(w));
    for (int first = 0; first < values; first += size) {
        double share = size / (m->count + size);
        for (int c = 0; c < K; c++) {
            typename iso__real<T>::type batch[size];
            for (int k = 0; k < size; k++) {
                int i = (first + k) * K + c;
                batch[k] = iso__widen(v[i / V].at[i % V]);
            }
            iso__norm_add_batch(batch, c, share, m);
        }
        m->count += size;
    }
}

template <bool aligned, int V, int K, class T>
__device__ void iso__norm_add_all(const T *x, iso__norm_walk w, iso__norm_moments<K> *m) {
    const int n = ISO__NORM_BATCH / (V > K ? 2 : 1);
    while (w.left >= n) iso__norm_add_values<aligned, n, V>(x, &w, m);
    if (V > 1 && w.left >= n / 2) iso__norm_add_values<aligned, n / 2, V>(x, &w, m);
    if (V > 1 && w.left >= n / 4) iso__norm_add_values<aligned, n / 4, V>(x, &w, m);
    while (w.left > 0) iso__norm_add_values<aligned, 1, V>(x, &w, m);
}

// Combines the moments of all threads of a channel in the first one. Subtracts one thread's mean
// first, because the remaining differences are small.
__device__ inline void iso__norm_join(int lanes, const iso__norm_place &p,
                                      iso__norm_moments<1> *m) {
    double near = iso__norm_sum(lanes, p.along == 0 ? m->mean[0] : 0);
    double count = iso__norm_sum(lanes, m->count);
    double mean = near + iso__norm_sum(lanes, m->count * (m->mean[0] - near)) / count;
    double distance = m->mean[0] - mean;
    m->squares[0] = iso__norm_sum(lanes, m->squares[0] + m->count * distance * distance);
    m->mean[0] = mean;
    m->count = count;
}

template <int K>
__device__ void iso__norm_join(int lanes, const iso__norm_place &, iso__norm_moments<K> *m) {
    iso__norm_gather(lanes, m);
}

// Sets sums of squares that are negative through rounding to 0; NaN stays NaN.
template <int K> __device__ inline void iso__norm_clip(iso__norm_moments<K> *m) {
    for (int c = 0; c < K; c++)
        if (m->squares[c] < 0) m->squares[c] = 0;
}

template <int V, int K, class T>
__device__ iso__norm_moments<K> iso__norm_moments_of_part(const iso__cuda_norm_shape &s,
                                                          const iso__norm_place &p, int64_t part,
                                                          const T *x) {
    const int width = iso__norm_summed<T, V, K>::width;
    iso__norm_walk w = iso__norm_walk_of<width, K>(s, p, part, s.part_values);
    iso__norm_moments<K> m = {};
    if (iso__holds_vectors<T, width>(x))
        iso__norm_add_all<true, width>(x, w, &m);
    else
        iso__norm_add_all<false, width>(x, w, &m);
    iso__norm_join(s.lanes, p, &m);
    iso__norm_clip(&m);
    return m;
}

__device__ inline iso__norm_moments<1>
iso__norm_join_parts(const iso__cuda_norm_shape &s, const iso__norm_place &p, const double *parts) {
    iso__norm_moments<1> m = {};
    for (int64_t part = p.along; p.exists && part < s.parts; part += p.alongs) {
        iso__norm_moments<1> more = {(double)iso__norm_values(s, part),
                                     {parts[iso__norm_part_at(s, part, 0, p.channel)]},
                                     {parts[iso__norm_part_at(s, part, 1, p.channel)]}};
        m.add(more);
    }
    iso__norm_join(s.lanes, p, &m);
    iso__norm_clip(&m);
    return m;
}

#endif
