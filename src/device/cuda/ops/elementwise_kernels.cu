// SPDX-License-Identifier: MIT
// Relu, sums and dropout.
#include "device/cuda/ops/elementwise_kernels.h"

#include "device/cuda/runtime/cuda_map.cuh"

namespace {

// ---- Relu and sums --------------------------------------------------------------------------------

struct times {
    static const bool binary = false;
    template <class Real> static __device__ Real of(Real x, Real, Real factor) {
        return x * factor;
    }
};
struct relu {
    static const bool binary = false;
    template <class Real> static __device__ Real of(Real x, Real, Real) {
        return x < 0 ? 0 : x; // a NaN stays one
    }
};
struct relu_mask {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real y, Real dy, Real) {
        return y > 0 ? dy : 0;
    }
};
struct sum {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real a, Real b, Real) { return a + b; }
};
struct relu_of_sum {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real a, Real b, Real) {
        return relu::of<Real>(a + b, 0, 0);
    }
};

// ---- Dropout --------------------------------------------------------------------------------------

template <class T> struct dropout_args {
    typedef typename iso__real<T>::type Real;
    iso__cuda_mask mask;
    int64_t quads; // calls of Philox for a row: four draws each
    bool whole;    // four elements are moved at a time
    Real kept;
    const T *x;
    T *y;
};

// What iso__philox gives for counter {quad, first_row + row, number}.
__device__ inline void draw_four(const iso__cuda_mask &m, int64_t row, int64_t quad,
                                 uint32_t out[4]) {
    uint32_t c0 = (uint32_t)quad, c1 = m.first_row + (uint32_t)row, c2 = (uint32_t)m.number;
    uint32_t c3 = (uint32_t)(m.number >> 32), k0 = m.key[0], k1 = m.key[1];
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

template <class T> __device__ inline T dropped(const dropout_args<T> &a, T x, uint32_t draw) {
    typedef typename iso__real<T>::type Real;
    T y;
    iso__narrow(iso__widen(x) * (draw >> 8 < a.mask.threshold ? (Real)0 : a.kept), &y);
    return y;
}

template <class T> struct alignas(sizeof(T) == 8 ? 16 : 4 * sizeof(T)) quad_of { T at[4]; };

// A draw for each element: a thread makes four and uses them.
template <class T> __global__ void drop_elements(dropout_args<T> a) {
    int64_t items = a.mask.rows * a.quads;
    for (int64_t item = iso__first_item(); item < items; item += iso__item_stride()) {
        int64_t row = item / a.quads, quad = item % a.quads, left = a.mask.draws - 4 * quad;
        int64_t at = row * a.mask.draws + 4 * quad;
        uint32_t draw[4];
        draw_four(a.mask, row, quad, draw);
        if (a.whole) {
            quad_of<T> x = *(const quad_of<T> *)(a.x + at), y;
            for (int w = 0; w < 4; w++) y.at[w] = dropped(a, x.at[w], draw[w]);
            *(quad_of<T> *)(a.y + at) = y;
            continue;
        }
        for (int w = 0; w < 4; w++)
            if (w < left) a.y[at + w] = dropped(a, a.x[at + w], draw[w]);
    }
}

// A draw for each span: a warp takes four spans.
template <class T> __global__ void drop_spans(dropout_args<T> a) {
    int64_t items = a.mask.rows * a.quads, span = a.mask.span;
    for (int64_t item = iso__first_item() / 32; item < items; item += iso__item_stride() / 32) {
        int64_t row = item / a.quads, quad = item % a.quads, left = a.mask.draws - 4 * quad;
        int64_t at = (row * a.mask.draws + 4 * quad) * span;
        uint32_t draw[4];
        draw_four(a.mask, row, quad, draw);
        for (int w = 0; w < 4 && w < left; w++, at += span)
            for (int64_t i = threadIdx.x % 32; i < span; i += 32)
                a.y[at + i] = dropped(a, a.x[at + i], draw[w]);
    }
}

// Rows whose channels lie beside each other, but whose draws go by the logical order. Neighbouring
// threads take neighbouring channels.

// A draw for each element: of a channel a thread takes the places of one call of Philox, which may
// begin in the channel before or end in the next one.
template <class T> __global__ void drop_places(dropout_args<T> a) {
    int64_t channels = a.mask.channels, plane = a.mask.draws / channels;
    int64_t items = a.mask.rows * a.quads * channels;
    for (int64_t item = iso__first_item(); item < items; item += iso__item_stride()) {
        int64_t row = item / channels / a.quads, channel = item % channels;
        int64_t quad = channel * plane / 4 + item / channels % a.quads;
        int64_t place = 4 * quad - channel * plane;
        if (place >= plane) continue;
        uint32_t draw[4];
        draw_four(a.mask, row, quad, draw);
        for (int w = 0; w < 4; w++) {
            if (place + w < 0 || place + w >= plane) continue;
            int64_t at = (row * plane + place + w) * channels + channel;
            a.y[at] = dropped(a, a.x[at], draw[w]);
        }
    }
}

// A draw for each channel: a thread takes four channels, and every STEP-th place of them.
enum { STEP = 32 };
template <class T> __global__ void drop_channels(dropout_args<T> a) {
    int64_t channels = a.mask.channels, items = a.mask.rows * STEP * a.quads;
    for (int64_t item = iso__first_item(); item < items; item += iso__item_stride()) {
        int64_t row = item / a.quads / STEP, quad = item % a.quads, left = channels - 4 * quad;
        uint32_t draw[4];
        draw_four(a.mask, row, quad, draw);
        for (int64_t i = item / a.quads % STEP; i < a.mask.span; i += STEP)
            for (int w = 0; w < 4 && w < left; w++) {
                int64_t at = (row * a.mask.span + i) * channels + 4 * quad + w;
                a.y[at] = dropped(a, a.x[at], draw[w]);
            }
    }
}

template <class T>
iso_status dropout(iso__cuda *cuda, const iso__cuda_mask *mask, const void *x, void *y) {
    typedef typename iso__real<T>::type Real;
    int64_t quads = (mask->draws + 3) / 4, items = mask->rows * quads;
    bool whole = mask->draws % 4 == 0 && iso__is_aligned(x) && iso__is_aligned(y);
    dropout_args<T> args = {*mask, quads, whole, (Real)mask->kept, (const T *)x, (T *)y};
    if (mask->channels > 0 && mask->span > 1)
        return iso__cuda_submit_over(cuda, drop_channels<T>, items * STEP, args);
    if (mask->channels > 0) {
        args.quads = (mask->draws / mask->channels + 2) / 4 + 1; // that a channel may touch
        return iso__cuda_submit_over(cuda, drop_places<T>, mask->rows * args.quads * mask->channels,
                                     args);
    }
    if (mask->span == 1) return iso__cuda_submit_over(cuda, drop_elements<T>, items, args);
    return iso__cuda_submit_over(cuda, drop_spans<T>, items * 32, args);
}

} // namespace

// ---- Launchers ------------------------------------------------------------------------------------

iso_status iso__cuda_scale_half(iso__cuda *cuda, iso_dtype dtype, int64_t count, double factor,
                                void *x) {
    return iso__cuda_map<times>(cuda, dtype, count, x, NULL, x, NULL, factor);
}

iso_status iso__cuda_relu(iso__cuda *cuda, iso_dtype dtype, int64_t count, const void *x, void *y) {
    return iso__cuda_map<relu>(cuda, dtype, count, x, NULL, y, NULL);
}

iso_status iso__cuda_relu_mask(iso__cuda *cuda, iso_dtype dtype, int64_t count, const void *y,
                               const void *dy, void *dx, void *copy) {
    return iso__cuda_map<relu_mask>(cuda, dtype, count, y, dy, dx, copy);
}

iso_status iso__cuda_add(iso__cuda *cuda, iso_dtype dtype, int64_t count, const void *a,
                         const void *b, bool relu, void *y) {
    if (relu) return iso__cuda_map<relu_of_sum>(cuda, dtype, count, a, b, y, NULL);
    return iso__cuda_map<sum>(cuda, dtype, count, a, b, y, NULL);
}

iso_status iso__cuda_dropout(iso__cuda *cuda, iso_dtype dtype, const iso__cuda_mask *mask,
                             const void *x, void *y) {
    auto run = iso__for_type(dtype, dropout<double>, dropout<float>, dropout<iso__bf16>,
                             dropout<iso__f16>);
    return run(cuda, mask, x, y);
}
