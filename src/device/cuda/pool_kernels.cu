// Kernels for pooling. Forward has a thread, or a warp, for each window; backward a thread for each
// pixel, which looks at the windows that it lies in: nothing is added by two threads, and always in
// the same order.
#include "device/cuda/pool_kernels.h"

#include "device/cuda/cuda_submit.cuh"

namespace {

// Index: 32 bits where they reach, as divisions of 64 take several times as long.
template <class Index> struct axis { Index in, out, kernel, stride, padding; };

template <class Real, class Index> struct pool_args {
    axis<Index> y, x;
    int64_t count; // of windows or of pixels
    const Real *from;
    Real *to;
    const uint16_t *won; // backward
    uint16_t *where;     // forward; NULL: nobody asks
};

// ---- Windows ------------------------------------------------------------------------------------

template <class Index> struct span { Index first, end; };

// A window's start, which may lie in the padding.
template <class Index> __device__ inline Index start_of(const axis<Index> &a, Index o) {
    return o * a.stride - a.padding;
}

// What of window `o` lies in the image.
template <class Index> __device__ inline span<Index> pixels_of(const axis<Index> &a, Index o) {
    if (a.kernel == 0) return {o * a.in / a.out, ((o + 1) * a.in + a.out - 1) / a.out};
    Index start = start_of(a, o), end = start + a.kernel;
    return {start < 0 ? 0 : start, end > a.in ? a.in : end};
}

// The windows that pixel i lies in.
template <class Index> __device__ inline span<Index> windows_of(const axis<Index> &a, Index i) {
    if (a.kernel == 0) return {i * a.out / a.in, ((i + 1) * a.out - 1) / a.in + 1};
    Index before = i + a.padding - a.kernel, end = (i + a.padding) / a.stride + 1;
    return {before < 0 ? 0 : before / a.stride + 1, end > a.out ? a.out : end};
}

// Plane, row and column of item i of planes of the given size.
template <class Index> struct spot { Index plane, row, column; };
template <class Index>
__device__ inline spot<Index> spot_of(int64_t item, Index rows, Index columns) {
    Index i = (Index)item, line = i / columns;
    return {line / rows, line % rows, i % columns};
}

// ---- Maxima -------------------------------------------------------------------------------------

template <class Real, class Index>
__device__ void max_window(const pool_args<Real, Index> &a, int64_t i) {
    const axis<Index> &y = a.y, &x = a.x;
    spot<Index> o = spot_of(i, y.out, x.out);
    span<Index> rows = pixels_of(y, o.row), columns = pixels_of(x, o.column);
    const Real *plane = a.from + o.plane * y.in * x.in;
    Index winner = rows.first * x.in + columns.first;
    Real best = plane[winner];
    for (Index r = rows.first; r < rows.end; r++)
        for (Index c = columns.first; c < columns.end; c++) {
            Real at = plane[r * x.in + c];
            // The first of equals wins; a NaN wins over numbers.
            if (at > best || at != at) best = at, winner = r * x.in + c;
        }
    a.to[i] = best;
    if (!a.where) return;
    Index row = winner / x.in - start_of(y, o.row), column = winner % x.in - start_of(x, o.column);
    a.where[i] = (uint16_t)(row * x.kernel + column);
}

template <class Real, class Index> __global__ void max_forward(pool_args<Real, Index> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) max_window(a, i);
}

template <class Real, class Index> __global__ void max_backward(pool_args<Real, Index> a) {
    const axis<Index> &y = a.y, &x = a.x;
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot<Index> s = spot_of(i, y.in, x.in);
        span<Index> rows = windows_of(y, s.row), columns = windows_of(x, s.column);
        Real sum = 0;
        for (Index r = rows.first; r < rows.end; r++)
            for (Index c = columns.first; c < columns.end; c++) {
                Index window = (s.plane * y.out + r) * x.out + c;
                Index place = (s.row - start_of(y, r)) * x.kernel + s.column - start_of(x, c);
                if (a.won[window] == place) sum += a.from[window];
            }
        a.to[i] = sum;
    }
}

// ---- Averages -----------------------------------------------------------------------------------

// How many numbers a mean is over: padding counts.
template <class Real, class Index>
__device__ Real size_of(const pool_args<Real, Index> &a, const span<Index> &rows,
                        const span<Index> &columns) {
    if (a.y.kernel == 0) return (Real)((rows.end - rows.first) * (columns.end - columns.first));
    return (Real)(a.y.kernel * a.x.kernel);
}

template <class Real, class Index> __global__ void avg_forward(pool_args<Real, Index> a) {
    const axis<Index> &y = a.y, &x = a.x;
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot<Index> o = spot_of(i, y.out, x.out);
        span<Index> rows = pixels_of(y, o.row), columns = pixels_of(x, o.column);
        const Real *plane = a.from + o.plane * y.in * x.in;
        Real sum = 0;
        for (Index r = rows.first; r < rows.end; r++)
            for (Index c = columns.first; c < columns.end; c++) sum += plane[r * x.in + c];
        a.to[i] = sum / size_of(a, rows, columns);
    }
}

// The same with a warp for each window, whose threads read side by side.
template <class Real, class Index> __global__ void avg_forward_warp(pool_args<Real, Index> a) {
    const axis<Index> &y = a.y, &x = a.x;
    for (int64_t i = iso__first_item() / 32; i < a.count; i += iso__item_stride() / 32) {
        spot<Index> o = spot_of(i, y.out, x.out);
        span<Index> rows = pixels_of(y, o.row), columns = pixels_of(x, o.column);
        const Real *corner = a.from + (o.plane * y.in + rows.first) * x.in + columns.first;
        Index width = columns.end - columns.first, pixels = width * (rows.end - rows.first);
        Real sum = 0;
        for (Index p = (Index)threadIdx.x % 32; p < pixels; p += 32)
            sum += corner[p / width * x.in + p % width];
        for (int offset = 16; offset > 0; offset /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (threadIdx.x % 32 == 0) a.to[i] = sum / size_of(a, rows, columns);
    }
}

template <class Real, class Index> __global__ void avg_backward(pool_args<Real, Index> a) {
    const axis<Index> &y = a.y, &x = a.x;
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot<Index> s = spot_of(i, y.in, x.in);
        span<Index> rows = windows_of(y, s.row), columns = windows_of(x, s.column);
        Real sum = 0;
        for (Index r = rows.first; r < rows.end; r++)
            for (Index c = columns.first; c < columns.end; c++)
                sum += a.from[(s.plane * y.out + r) * x.out + c] /
                       size_of(a, pixels_of(y, r), pixels_of(x, c));
        a.to[i] = sum;
    }
}

// ---- Launchers ----------------------------------------------------------------------------------

int64_t windows_in(const iso__cuda_pool_shape *s) { return s->planes * s->y.out * s->x.out; }
int64_t pixels_in(const iso__cuda_pool_shape *s) { return s->planes * s->y.in * s->x.in; }

// Whether whatever a kernel works out about an axis is far below 2^31.
bool is_narrow_axis(const iso__cuda_pool_axis *a) {
    const int64_t most = INT32_MAX / 8;
    return a->in <= most && a->out <= most && a->kernel <= most && a->stride <= most &&
           a->padding <= most && (a->in + 1) * (a->out + 1) <= INT32_MAX;
}

bool is_narrow(const iso__cuda_pool_shape *s) {
    return is_narrow_axis(&s->y) && is_narrow_axis(&s->x) &&
           s->y.kernel * s->x.kernel <= INT32_MAX && windows_in(s) <= INT32_MAX &&
           pixels_in(s) <= INT32_MAX;
}

template <class Index> axis<Index> axis_of(const iso__cuda_pool_axis &a) {
    return {(Index)a.in, (Index)a.out, (Index)a.kernel, (Index)a.stride, (Index)a.padding};
}

template <class Real, class Index>
pool_args<Real, Index> args_of(const iso__cuda_pool_shape *shape, int64_t count, const void *from,
                               void *to) {
    pool_args<Real, Index> args = {};
    args.y = axis_of<Index>(shape->y), args.x = axis_of<Index>(shape->x);
    args.count = count;
    args.from = (const Real *)from, args.to = (Real *)to;
    return args;
}

template <class Real, class Index>
iso_status max_forward_of(iso__cuda *cuda, const iso__cuda_pool_shape *shape, const void *x,
                          void *y, uint16_t *where) {
    pool_args<Real, Index> args = args_of<Real, Index>(shape, windows_in(shape), x, y);
    args.where = where;
    return iso__cuda_submit_over(cuda, max_forward<Real, Index>, args.count, args);
}

template <class Real, class Index>
iso_status max_backward_of(iso__cuda *cuda, const iso__cuda_pool_shape *shape, const void *dy,
                           const uint16_t *where, void *dx) {
    pool_args<Real, Index> args = args_of<Real, Index>(shape, pixels_in(shape), dy, dx);
    args.won = where;
    return iso__cuda_submit_over(cuda, max_backward<Real, Index>, args.count, args);
}

// Below so many pixels of a window a warp would idle.
enum { WARP_PIXELS = 32 };

template <class Real, class Index>
iso_status avg_forward_of(iso__cuda *cuda, const iso__cuda_pool_shape *shape, const void *x,
                          void *y) {
    const iso__cuda_pool_axis *rows = &shape->y, *columns = &shape->x;
    pool_args<Real, Index> args = args_of<Real, Index>(shape, windows_in(shape), x, y);
    int64_t height = rows->kernel ? rows->kernel : rows->in / rows->out;
    int64_t width = columns->kernel ? columns->kernel : columns->in / columns->out;
    if (height * width >= WARP_PIXELS)
        return iso__cuda_submit_over(cuda, avg_forward_warp<Real, Index>, 32 * args.count, args);
    return iso__cuda_submit_over(cuda, avg_forward<Real, Index>, args.count, args);
}

template <class Real, class Index>
iso_status avg_backward_of(iso__cuda *cuda, const iso__cuda_pool_shape *shape, const void *dy,
                           void *dx) {
    pool_args<Real, Index> args = args_of<Real, Index>(shape, pixels_in(shape), dy, dx);
    return iso__cuda_submit_over(cuda, avg_backward<Real, Index>, args.count, args);
}

} // namespace

#define BY_TYPE(launch, ...)                                                                       \
    do {                                                                                           \
        bool narrow = is_narrow(shape);                                                            \
        if (shape->dtype == ISO_F64)                                                               \
            return narrow ? launch<double, int32_t>(cuda, shape, __VA_ARGS__)                      \
                          : launch<double, int64_t>(cuda, shape, __VA_ARGS__);                     \
        return narrow ? launch<float, int32_t>(cuda, shape, __VA_ARGS__)                           \
                      : launch<float, int64_t>(cuda, shape, __VA_ARGS__);                          \
    } while (0)

iso_status iso__cuda_max_pool_forward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                      const void *x, void *y, uint16_t *where) {
    BY_TYPE(max_forward_of, x, y, where);
}

iso_status iso__cuda_max_pool_backward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                       const void *dy, const uint16_t *where, void *dx) {
    BY_TYPE(max_backward_of, dy, where, dx);
}

iso_status iso__cuda_avg_pool_forward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                      const void *x, void *y) {
    BY_TYPE(avg_forward_of, x, y);
}

iso_status iso__cuda_avg_pool_backward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                       const void *dy, void *dx) {
    BY_TYPE(avg_backward_of, dy, dx);
}
