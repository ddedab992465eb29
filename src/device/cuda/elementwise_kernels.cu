// Relu, sums, dropout and columns.
#include "device/cuda/elementwise_kernels.h"

#include "device/cuda/cuda_map.cuh"

namespace {

// ---- Relu and sums --------------------------------------------------------------------------------

struct relu {
    static const bool binary = false;
    template <class Real> static __device__ Real of(Real x, Real) {
        return x < 0 ? 0 : x; // a NaN stays one
    }
};
struct relu_mask {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real y, Real dy) { return y > 0 ? dy : 0; }
};
struct sum {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real a, Real b) { return a + b; }
};
struct relu_of_sum {
    static const bool binary = true;
    template <class Real> static __device__ Real of(Real a, Real b) {
        return relu::of<Real>(a + b, 0);
    }
};

// ---- Dropout --------------------------------------------------------------------------------------

template <class Real> struct dropout_args {
    iso__cuda_mask mask;
    int64_t quads; // calls of Philox for a row: four draws each
    Real kept;
    const Real *x;
    Real *y;
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

template <class Real> __device__ inline Real factor(const dropout_args<Real> &a, uint32_t draw) {
    return draw >> 8 < a.mask.threshold ? (Real)0 : a.kept;
}

// A draw for each element: a thread makes four and uses them.
template <class Real> __global__ void drop_elements(dropout_args<Real> a) {
    int64_t items = a.mask.rows * a.quads;
    for (int64_t item = iso__first_item(); item < items; item += iso__item_stride()) {
        int64_t row = item / a.quads, quad = item % a.quads, left = a.mask.draws - 4 * quad;
        int64_t at = row * a.mask.draws + 4 * quad;
        uint32_t draw[4];
        draw_four(a.mask, row, quad, draw);
        for (int w = 0; w < 4; w++)
            if (w < left) a.y[at + w] = a.x[at + w] * factor(a, draw[w]);
    }
}

// A draw for each span: a warp takes four spans.
template <class Real> __global__ void drop_spans(dropout_args<Real> a) {
    int64_t items = a.mask.rows * a.quads, span = a.mask.span;
    for (int64_t item = iso__first_item() / 32; item < items; item += iso__item_stride() / 32) {
        int64_t row = item / a.quads, quad = item % a.quads, left = a.mask.draws - 4 * quad;
        int64_t at = (row * a.mask.draws + 4 * quad) * span;
        uint32_t draw[4];
        draw_four(a.mask, row, quad, draw);
        for (int w = 0; w < 4 && w < left; w++, at += span)
            for (int64_t i = threadIdx.x % 32; i < span; i += 32)
                a.y[at + i] = a.x[at + i] * factor(a, draw[w]);
    }
}

template <class Real>
iso_status dropout(iso__cuda *cuda, const iso__cuda_mask *mask, const void *x, void *y) {
    int64_t quads = (mask->draws + 3) / 4, items = mask->rows * quads;
    dropout_args<Real> args = {*mask, quads, (Real)mask->kept, (const Real *)x, (Real *)y};
    if (mask->span == 1) return iso__cuda_submit_over(cuda, drop_elements<Real>, items, args);
    return iso__cuda_submit_over(cuda, drop_spans<Real>, items * 32, args);
}

// ---- Columns --------------------------------------------------------------------------------------

template <class Real> struct columns_args {
    int64_t rows, width, columns;
    const Real *x; // from the first column on
    Real *part;
};

template <class Real> __global__ void take_columns(columns_args<Real> a) {
    int64_t count = a.rows * a.columns;
    for (int64_t i = iso__first_item(); i < count; i += iso__item_stride())
        a.part[i] = a.x[i / a.columns * a.width + i % a.columns];
}

template <class Real>
iso_status columns(iso__cuda *cuda, int64_t rows, int64_t width, int64_t first, int64_t columns,
                   const void *x, void *part) {
    columns_args<Real> args = {rows, width, columns, (const Real *)x + first, (Real *)part};
    return iso__cuda_submit_over(cuda, take_columns<Real>, rows * columns, args);
}

} // namespace

// ---- Launchers ------------------------------------------------------------------------------------

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
    return dtype == ISO_F64 ? dropout<double>(cuda, mask, x, y) : dropout<float>(cuda, mask, x, y);
}

iso_status iso__cuda_take_columns(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t width,
                                  int64_t first, int64_t count, const void *x, void *part) {
    if (dtype == ISO_F64) return columns<double>(cuda, rows, width, first, count, x, part);
    return columns<float>(cuda, rows, width, first, count, x, part);
}
