// Kernels for pooling. Forward has a thread, or a warp, for each window; backward a thread for each
// pixel, which looks at the windows that it lies in: nothing is added by two threads, and always in
// the same order.
#include "device/cuda/pool_kernels.h"

#include "device/cuda/cuda_submit.cuh"

namespace {

template <class Real> struct pool_args {
    iso__cuda_pool_shape shape;
    int64_t count; // of windows or of pixels
    const Real *from;
    Real *to;
    const uint16_t *won; // backward
    uint16_t *where;     // forward; NULL: nobody asks
};

// ---- Windows ------------------------------------------------------------------------------------

struct span {
    int64_t first, end;
};

// A window's start, which may lie in the padding.
__device__ inline int64_t start_of(const iso__cuda_pool_axis &a, int64_t o) {
    return o * a.stride - a.padding;
}

// What of window `o` lies in the image.
__device__ inline span pixels_of(const iso__cuda_pool_axis &a, int64_t o) {
    if (a.kernel == 0) return span{o * a.in / a.out, ((o + 1) * a.in + a.out - 1) / a.out};
    int64_t start = start_of(a, o), end = start + a.kernel;
    return span{start < 0 ? 0 : start, end > a.in ? a.in : end};
}

// The windows that pixel i lies in.
__device__ inline span windows_of(const iso__cuda_pool_axis &a, int64_t i) {
    if (a.kernel == 0) return span{i * a.out / a.in, ((i + 1) * a.out - 1) / a.in + 1};
    int64_t before = i + a.padding - a.kernel, end = (i + a.padding) / a.stride + 1;
    return span{before < 0 ? 0 : before / a.stride + 1, end > a.out ? a.out : end};
}

// Plane, row and column of item i of planes of the given size.
struct spot {
    int64_t plane, row, column;
};
__device__ inline spot spot_of(int64_t i, int64_t rows, int64_t columns) {
    int64_t line = i / columns;
    return spot{line / rows, line % rows, i % columns};
}

// ---- Maxima -------------------------------------------------------------------------------------

template <class Real> __device__ void max_window(const pool_args<Real> &a, int64_t i) {
    const iso__cuda_pool_axis &y = a.shape.y, &x = a.shape.x;
    spot o = spot_of(i, y.out, x.out);
    span rows = pixels_of(y, o.row), columns = pixels_of(x, o.column);
    const Real *plane = a.from + o.plane * y.in * x.in;
    int64_t winner = rows.first * x.in + columns.first;
    Real best = plane[winner];
    for (int64_t r = rows.first; r < rows.end; r++)
        for (int64_t c = columns.first; c < columns.end; c++) {
            Real at = plane[r * x.in + c];
            // The first of equals wins; a NaN wins over numbers.
            if (at > best || at != at) best = at, winner = r * x.in + c;
        }
    a.to[i] = best;
    if (!a.where) return;
    int64_t row = winner / x.in - start_of(y, o.row),
            column = winner % x.in - start_of(x, o.column);
    a.where[i] = (uint16_t)(row * x.kernel + column);
}

template <class Real> __global__ void max_forward(pool_args<Real> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) max_window(a, i);
}

template <class Real> __global__ void max_backward(pool_args<Real> a) {
    const iso__cuda_pool_axis &y = a.shape.y, &x = a.shape.x;
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot s = spot_of(i, y.in, x.in);
        span rows = windows_of(y, s.row), columns = windows_of(x, s.column);
        Real sum = 0;
        for (int64_t r = rows.first; r < rows.end; r++)
            for (int64_t c = columns.first; c < columns.end; c++) {
                int64_t window = (s.plane * y.out + r) * x.out + c;
                int64_t place = (s.row - start_of(y, r)) * x.kernel + s.column - start_of(x, c);
                if (a.won[window] == place) sum += a.from[window];
            }
        a.to[i] = sum;
    }
}

// ---- Averages -----------------------------------------------------------------------------------

// How many numbers a mean is over: padding counts.
template <class Real>
__device__ Real size_of(const iso__cuda_pool_shape &s, const span &rows, const span &columns) {
    if (s.y.kernel == 0) return (Real)((rows.end - rows.first) * (columns.end - columns.first));
    return (Real)(s.y.kernel * s.x.kernel);
}

template <class Real> __global__ void avg_forward(pool_args<Real> a) {
    const iso__cuda_pool_axis &y = a.shape.y, &x = a.shape.x;
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot o = spot_of(i, y.out, x.out);
        span rows = pixels_of(y, o.row), columns = pixels_of(x, o.column);
        const Real *plane = a.from + o.plane * y.in * x.in;
        Real sum = 0;
        for (int64_t r = rows.first; r < rows.end; r++)
            for (int64_t c = columns.first; c < columns.end; c++) sum += plane[r * x.in + c];
        a.to[i] = sum / size_of<Real>(a.shape, rows, columns);
    }
}

// The same with a warp for each window, whose threads read side by side.
template <class Real> __global__ void avg_forward_warp(pool_args<Real> a) {
    const iso__cuda_pool_axis &y = a.shape.y, &x = a.shape.x;
    for (int64_t i = iso__first_item() / 32; i < a.count; i += iso__item_stride() / 32) {
        spot o = spot_of(i, y.out, x.out);
        span rows = pixels_of(y, o.row), columns = pixels_of(x, o.column);
        const Real *corner = a.from + (o.plane * y.in + rows.first) * x.in + columns.first;
        int64_t width = columns.end - columns.first, pixels = width * (rows.end - rows.first);
        Real sum = 0;
        for (int64_t p = threadIdx.x % 32; p < pixels; p += 32)
            sum += corner[p / width * x.in + p % width];
        for (int offset = 16; offset > 0; offset /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (threadIdx.x % 32 == 0) a.to[i] = sum / size_of<Real>(a.shape, rows, columns);
    }
}

template <class Real> __global__ void avg_backward(pool_args<Real> a) {
    const iso__cuda_pool_axis &y = a.shape.y, &x = a.shape.x;
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot s = spot_of(i, y.in, x.in);
        span rows = windows_of(y, s.row), columns = windows_of(x, s.column);
        Real sum = 0;
        for (int64_t r = rows.first; r < rows.end; r++)
            for (int64_t c = columns.first; c < columns.end; c++)
                sum += a.from[(s.plane * y.out + r) * x.out + c] /
                       size_of<Real>(a.shape, pixels_of(y, r), pixels_of(x, c));
        a.to[i] = sum;
    }
}

// ---- Launchers ----------------------------------------------------------------------------------

int64_t windows_in(const iso__cuda_pool_shape *s) { return s->planes * s->y.out * s->x.out; }
int64_t pixels_in(const iso__cuda_pool_shape *s) { return s->planes * s->y.in * s->x.in; }

template <class Real>
pool_args<Real> args_of(const iso__cuda_pool_shape *shape, int64_t count, const void *from,
                        void *to) {
    pool_args<Real> args = {*shape, count, (const Real *)from, (Real *)to, nullptr, nullptr};
    return args;
}

template <class Real>
iso_status max_forward_of(iso__cuda *cuda, const iso__cuda_pool_shape *shape, const void *x,
                          void *y, uint16_t *where) {
    pool_args<Real> args = args_of<Real>(shape, windows_in(shape), x, y);
    args.where = where;
    return iso__cuda_submit_over(cuda, max_forward<Real>, args.count, args);
}

template <class Real>
iso_status max_backward_of(iso__cuda *cuda, const iso__cuda_pool_shape *shape, const void *dy,
                           const uint16_t *where, void *dx) {
    pool_args<Real> args = args_of<Real>(shape, pixels_in(shape), dy, dx);
    args.won = where;
    return iso__cuda_submit_over(cuda, max_backward<Real>, args.count, args);
}

// Below so many pixels of a window a warp would idle.
enum { WARP_PIXELS = 32 };

template <class Real>
iso_status avg_forward_of(iso__cuda *cuda, const iso__cuda_pool_shape *shape, const void *x,
                          void *y) {
    const iso__cuda_pool_axis *rows = &shape->y, *columns = &shape->x;
    pool_args<Real> args = args_of<Real>(shape, windows_in(shape), x, y);
    int64_t height = rows->kernel ? rows->kernel : rows->in / rows->out;
    int64_t width = columns->kernel ? columns->kernel : columns->in / columns->out;
    if (height * width >= WARP_PIXELS)
        return iso__cuda_submit_over(cuda, avg_forward_warp<Real>, 32 * args.count, args);
    return iso__cuda_submit_over(cuda, avg_forward<Real>, args.count, args);
}

template <class Real>
iso_status avg_backward_of(iso__cuda *cuda, const iso__cuda_pool_shape *shape, const void *dy,
                           void *dx) {
    pool_args<Real> args = args_of<Real>(shape, pixels_in(shape), dy, dx);
    return iso__cuda_submit_over(cuda, avg_backward<Real>, args.count, args);
}

} // namespace

iso_status iso__cuda_max_pool_forward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                      const void *x, void *y, uint16_t *where) {
    if (shape->dtype == ISO_F64) return max_forward_of<double>(cuda, shape, x, y, where);
    return max_forward_of<float>(cuda, shape, x, y, where);
}

iso_status iso__cuda_max_pool_backward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                       const void *dy, const uint16_t *where, void *dx) {
    if (shape->dtype == ISO_F64) return max_backward_of<double>(cuda, shape, dy, where, dx);
    return max_backward_of<float>(cuda, shape, dy, where, dx);
}

iso_status iso__cuda_avg_pool_forward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                      const void *x, void *y) {
    if (shape->dtype == ISO_F64) return avg_forward_of<double>(cuda, shape, x, y);
    return avg_forward_of<float>(cuda, shape, x, y);
}

iso_status iso__cuda_avg_pool_backward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                       const void *dy, void *dx) {
    if (shape->dtype == ISO_F64) return avg_backward_of<double>(cuda, shape, dy, dx);
    return avg_backward_of<float>(cuda, shape, dy, dx);
}
