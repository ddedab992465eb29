// SPDX-License-Identifier: MIT
// Kernels for pooling. Forward uses a thread or a warp for each window. Backward uses a thread for
// each pixel, which reads the windows that contain it, so that one thread adds up each sum, in a
// fixed order. If channels are adjacent in memory, a thread handles V of them.
#include "device/cuda/ops/pool_kernels.h"

#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_vector.cuh"
#include "device/cuda/ops/cuda_windows.cuh"

namespace {

// Positions are counted in vectors of V elements.
template <class T, class Index> struct pool_args {
    iso__axis<Index> y, x;
    Index rows, columns, beside; // of the items: windows, pixels or squares; vectors of each
    iso__divider<Index> by_rows, by_columns, by_beside;
    int64_t count; // of items times vectors
    const T *from;
    T *to;
    const uint16_t *won; // backward
    uint16_t *where;     // forward; NULL: nobody asks
    bool relu;           // forward of maxima
};

template <class Index> struct spot { Index plane, row, column, lane; };

template <class T, class Index>
__device__ inline spot<Index> spot_of(const pool_args<T, Index> &a, int64_t item) {
    Index i = (Index)item, place = a.by_beside.of(i), line = a.by_columns.of(place);
    Index plane = a.by_rows.of(line);
    return {plane, line - plane * a.rows, place - line * a.columns, i - place * a.beside};
}

// Where a pixel, or a window, of the spot's plane lies.
template <class T, class Index>
__device__ inline Index pixel_at(const pool_args<T, Index> &a, const spot<Index> &s, Index row,
                                 Index column) {
    return ((s.plane * a.y.in + row) * a.x.in + column) * a.beside + s.lane;
}
template <class T, class Index>
__device__ inline Index window_at(const pool_args<T, Index> &a, const spot<Index> &s, Index row,
                                  Index column) {
    return ((s.plane * a.y.out + row) * a.x.out + column) * a.beside + s.lane;
}

// V numbers that are computed with.
template <class T, int V> struct numbers { typename iso__real<T>::type at[V]; };

template <int V, class T, class Index>
__device__ inline numbers<T, V> load(const T *from, Index at) {
    iso__vector<T, V> v = ((const iso__vector<T, V> *)from)[at];
    numbers<T, V> x;
    for (int k = 0; k < V; k++) x.at[k] = iso__widen(v.at[k]);
    return x;
}

template <class T, int V, class Index>
__device__ inline void store(T *to, Index at, const numbers<T, V> &x) {
    iso__vector<T, V> v;
    for (int k = 0; k < V; k++) iso__narrow(x.at[k], &v.at[k]);
    ((iso__vector<T, V> *)to)[at] = v;
}

// ---- Maxima -------------------------------------------------------------------------------------

enum { NO_PLACE = UINT16_MAX };

// The largest so far, and their places in the window.
template <class T, int V> struct winners {
    numbers<T, V> best;
    iso__vector<uint16_t, V> place;

    __device__ winners(const numbers<T, V> &x, int at) : best(x) {
        for (int k = 0; k < V; k++) place.at[k] = (uint16_t)at;
    }
    // The first of equals wins; a NaN wins over numbers.
    __device__ void meet(const numbers<T, V> &x, int at) {
        for (int k = 0; k < V; k++)
            if (x.at[k] > best.at[k] || x.at[k] != x.at[k])
                best.at[k] = x.at[k], place.at[k] = (uint16_t)at;
    }
    // A NaN stays one, and has no gradient.
    __device__ void cut() {
        for (int k = 0; k < V; k++) {
            if (!(best.at[k] > 0)) place.at[k] = NO_PLACE;
            if (best.at[k] < 0) best.at[k] = 0;
        }
    }
    template <class Index> __device__ void store_at(const pool_args<T, Index> &a, int64_t item) {
        if (a.relu) cut();
        store(a.to, item, best);
        if (a.where) ((iso__vector<uint16_t, V> *)a.where)[item] = place;
    }
};

template <class T, int V, class Index> __global__ void max_forward(pool_args<T, Index> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot<Index> o = spot_of(a, i);
        iso__span<Index> rows = iso__pixels_of(a.y, o.row);
        iso__span<Index> columns = iso__pixels_of(a.x, o.column);
        Index top = iso__start_of(a.y, o.row), left = iso__start_of(a.x, o.column);
        winners<T, V> w(load<V>(a.from, pixel_at(a, o, rows.first, columns.first)),
                        (int)((rows.first - top) * a.x.kernel + columns.first - left));
        for (Index r = rows.first; r < rows.end; r++)
            for (Index c = columns.first; c < columns.end; c++)
                w.meet(load<V>(a.from, pixel_at(a, o, r, c)),
                       (int)((r - top) * a.x.kernel + c - left));
        w.store_at(a, i);
    }
}

// The gradient of a pixel, which is number `place` in the window.
template <class T, int V>
__device__ inline void add_of_place(const numbers<T, V> &dy, const iso__vector<uint16_t, V> &won,
                                    int place, numbers<T, V> *sum) {
    for (int k = 0; k < V; k++)
        if (won.at[k] == place) sum->at[k] += dy.at[k];
}

template <class T, int V, class Index> __global__ void max_backward(pool_args<T, Index> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot<Index> s = spot_of(a, i);
        iso__span<Index> rows = iso__windows_of(a.y, s.row);
        iso__span<Index> columns = iso__windows_of(a.x, s.column);
        numbers<T, V> sum = {};
        for (Index r = rows.first; r < rows.end; r++)
            for (Index c = columns.first; c < columns.end; c++) {
                Index window = window_at(a, s, r, c);
                Index place =
                    (s.row - iso__start_of(a.y, r)) * a.x.kernel + s.column - iso__start_of(a.x, c);
                iso__vector<uint16_t, V> won = ((const iso__vector<uint16_t, V> *)a.won)[window];
                add_of_place(load<V>(a.from, window), won, (int)place, &sum);
            }
        store(a.to, i, sum);
    }
}

// ---- Maxima of squares of 2 x 2 that lie side by side -------------------------------------------

// How the two pixels of a row are moved: as two vectors of channels, or where V is 1 as a pair.
template <class T, int V, bool pair> struct row_of_two {
    template <class Index>
    static __device__ void load_both(const T *from, Index at, Index beside, numbers<T, V> (&x)[2]) {
        x[0] = load<V>(from, at), x[1] = load<V>(from, at + beside);
    }
    template <class Index>
    static __device__ void store_both(T *to, Index at, Index beside, const numbers<T, V> (&x)[2],
                                      bool second) {
        store(to, at, x[0]);
        if (second) store(to, at + beside, x[1]);
    }
};
template <class T> struct row_of_two<T, 1, true> {
    template <class Index>
    static __device__ void load_both(const T *from, Index at, Index, numbers<T, 1> (&x)[2]) {
        numbers<T, 2> both = load<2>(from, at / 2);
        x[0].at[0] = both.at[0], x[1].at[0] = both.at[1];
    }
    template <class Index>
    static __device__ void store_both(T *to, Index at, Index, const numbers<T, 1> (&x)[2], bool) {
        store(to, at / 2, numbers<T, 2>{{x[0].at[0], x[1].at[0]}});
    }
};

template <class T, int V, bool pair> __global__ void max_squares(pool_args<T, int32_t> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot<int32_t> o = spot_of(a, i);
        numbers<T, V> x[2][2];
        for (int r = 0; r < 2; r++)
            row_of_two<T, V, pair>::load_both(a.from, pixel_at(a, o, 2 * o.row + r, 2 * o.column),
                                              a.beside, x[r]);
        winners<T, V> w(x[0][0], 0);
        for (int k = 1; k < 4; k++) w.meet(x[k / 2][k % 2], k);
        w.store_at(a, i);
    }
}

// The last row and column of squares may lie over the edge, or in no window.
template <class T, int V, bool pair> __global__ void max_squares_backward(pool_args<T, int32_t> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot<int32_t> s = spot_of(a, i);
        numbers<T, V> dy = {}, dx[2][2] = {};
        iso__vector<uint16_t, V> won = {};
        if (s.row < a.y.out && s.column < a.x.out) {
            int32_t window = window_at(a, s, s.row, s.column);
            dy = load<V>(a.from, window);
            won = ((const iso__vector<uint16_t, V> *)a.won)[window];
        }
        for (int k = 0; k < 4; k++) add_of_place(dy, won, k, &dx[k / 2][k % 2]);
        for (int r = 0; r < 2; r++)
            if (2 * s.row + r < a.y.in)
                row_of_two<T, V, pair>::store_both(a.to,
                                                   pixel_at(a, s, 2 * s.row + r, 2 * s.column),
                                                   a.beside, dx[r], 2 * s.column + 1 < a.x.in);
    }
}

// ---- Averages -----------------------------------------------------------------------------------

// How many numbers a mean is over: padding counts.
template <class T, class Index>
__device__ typename iso__real<T>::type size_of(const pool_args<T, Index> &a,
                                               const iso__span<Index> &rows,
                                               const iso__span<Index> &columns) {
    typedef typename iso__real<T>::type Real;
    if (a.y.kernel == 0) return (Real)((rows.end - rows.first) * (columns.end - columns.first));
    return (Real)(a.y.kernel * a.x.kernel);
}

template <class T, int V, class Index> __global__ void avg_forward(pool_args<T, Index> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot<Index> o = spot_of(a, i);
        iso__span<Index> rows = iso__pixels_of(a.y, o.row);
        iso__span<Index> columns = iso__pixels_of(a.x, o.column);
        numbers<T, V> sum = {};
        for (Index r = rows.first; r < rows.end; r++)
            for (Index c = columns.first; c < columns.end; c++) {
                numbers<T, V> x = load<V>(a.from, pixel_at(a, o, r, c));
                for (int k = 0; k < V; k++) sum.at[k] += x.at[k];
            }
        auto size = size_of(a, rows, columns);
        for (int k = 0; k < V; k++) sum.at[k] /= size;
        store(a.to, i, sum);
    }
}

// The same in planes, with a warp for each window, whose threads read side by side.
template <class T, class Index> __global__ void avg_forward_warp(pool_args<T, Index> a) {
    for (int64_t i = iso__first_item() / 32; i < a.count; i += iso__item_stride() / 32) {
        spot<Index> o = spot_of(a, i);
        iso__span<Index> rows = iso__pixels_of(a.y, o.row);
        iso__span<Index> columns = iso__pixels_of(a.x, o.column);
        const T *corner = a.from + pixel_at(a, o, rows.first, columns.first);
        Index width = columns.end - columns.first, pixels = width * (rows.end - rows.first);
        numbers<T, 1> sum = {};
        for (Index p = (Index)threadIdx.x % 32; p < pixels; p += 32)
            sum.at[0] += iso__widen(corner[p / width * a.x.in + p % width]);
        for (int offset = 16; offset > 0; offset /= 2)
            sum.at[0] += __shfl_xor_sync(0xffffffffu, sum.at[0], offset);
        sum.at[0] /= size_of(a, rows, columns);
        if (threadIdx.x % 32 == 0) store(a.to, i, sum);
    }
}

template <class T, int V, class Index> __global__ void avg_backward(pool_args<T, Index> a) {
    for (int64_t i = iso__first_item(); i < a.count; i += iso__item_stride()) {
        spot<Index> s = spot_of(a, i);
        iso__span<Index> rows = iso__windows_of(a.y, s.row);
        iso__span<Index> columns = iso__windows_of(a.x, s.column);
        numbers<T, V> sum = {};
        for (Index r = rows.first; r < rows.end; r++)
            for (Index c = columns.first; c < columns.end; c++) {
                numbers<T, V> dy = load<V>(a.from, window_at(a, s, r, c));
                auto size = size_of(a, iso__pixels_of(a.y, r), iso__pixels_of(a.x, c));
                for (int k = 0; k < V; k++) sum.at[k] += dy.at[k] / size;
            }
        store(a.to, i, sum);
    }
}

// ---- Launchers ----------------------------------------------------------------------------------

typedef iso__cuda_pool_shape pool_shape;

int64_t windows_in(const pool_shape *s) { return s->planes * s->y.out * s->x.out * s->beside; }
int64_t pixels_in(const pool_shape *s) { return s->planes * s->y.in * s->x.in * s->beside; }

// Whether whatever a kernel works out about an axis is far below 2^31.
bool is_narrow_axis(const iso__cuda_pool_axis *a) {
    const int64_t most = INT32_MAX / 8;
    return a->in <= most && a->out <= most && a->kernel <= most && a->stride <= most &&
           a->padding <= most && (a->in + 1) * (a->out + 1) <= INT32_MAX;
}

bool is_narrow(const pool_shape *s) {
    return is_narrow_axis(&s->y) && is_narrow_axis(&s->x) &&
           s->y.kernel * s->x.kernel <= INT32_MAX && windows_in(s) <= INT32_MAX &&
           pixels_in(s) <= INT32_MAX;
}

// A tensor and what is computed from it, with the places that won, or NULL.
struct ends {
    const void *from;
    void *to;
    const uint16_t *places;
};

// Whether vectors of V elements make up the channels, and lie where they can be moved.
template <class T, int V> bool has_vectors(const pool_shape *s, const ends &e) {
    return s->beside > 1 && s->beside % V == 0 && iso__holds_vectors<T, V>(e.from) &&
           iso__holds_vectors<T, V>(e.to) && iso__holds_vectors<uint16_t, V>(e.places);
}

// Items of so many rows and columns in each plane.
template <class T, int V, class Index>
pool_args<T, Index> args_of(const pool_shape *s, int64_t rows, int64_t columns, const ends &e) {
    pool_args<T, Index> args = {};
    args.y = iso__axis<Index>(s->y), args.x = iso__axis<Index>(s->x);
    args.rows = (Index)rows, args.columns = (Index)columns, args.beside = (Index)(s->beside / V);
    args.by_rows = iso__divider<Index>(rows), args.by_columns = iso__divider<Index>(columns);
    args.by_beside = iso__divider<Index>(s->beside / V);
    args.count = s->planes * rows * columns * (s->beside / V);
    args.from = (const T *)e.from, args.to = (T *)e.to;
    return args;
}

bool is_square(const iso__cuda_pool_axis *a) {
    return a->kernel == 2 && a->stride == 2 && a->padding == 0 && a->out == a->in / 2;
}

template <class T, int V, class Index> struct max_pool {
    typedef pool_args<T, Index> args_type;
    typedef pool_args<T, int32_t> narrow_args;

    // Squares: as channels lie beside each other, or rows can be moved in pairs.
    static bool by_squares(const pool_shape *s, const void *image) {
        return sizeof(Index) == sizeof(int32_t) && is_square(&s->y) && is_square(&s->x) &&
               (s->beside > 1 || (s->x.in % 2 == 0 && iso__holds_vectors<T, 2>(image)));
    }

    static iso_status forward(iso__cuda *cuda, const pool_shape *s, const ends &e) {
        args_type args = args_of<T, V, Index>(s, s->y.out, s->x.out, e);
        args.where = (uint16_t *)e.places, args.relu = s->relu;
        if (!by_squares(s, e.from))
            return iso__cuda_submit_over(cuda, max_forward<T, V, Index>, args.count, args);
        narrow_args narrow = args_of<T, V, int32_t>(s, s->y.out, s->x.out, e);
        narrow.where = args.where, narrow.relu = s->relu;
        return iso__cuda_submit_over(
            cuda, s->beside > 1 ? max_squares<T, V, false> : max_squares<T, V, V == 1>,
            narrow.count, narrow);
    }

    static iso_status backward(iso__cuda *cuda, const pool_shape *s, const ends &e) {
        args_type args = args_of<T, V, Index>(s, s->y.in, s->x.in, e);
        args.won = e.places;
        if (!by_squares(s, e.to))
            return iso__cuda_submit_over(cuda, max_backward<T, V, Index>, args.count, args);
        int64_t rows = (s->y.in + 1) / 2, columns = (s->x.in + 1) / 2;
        narrow_args narrow = args_of<T, V, int32_t>(s, rows, columns, e);
        narrow.won = e.places;
        return iso__cuda_submit_over(cuda,
                                     s->beside > 1 ? max_squares_backward<T, V, false>
                                                   : max_squares_backward<T, V, V == 1>,
                                     narrow.count, narrow);
    }
};

// Below so many pixels of a window a warp would idle.
enum { WARP_PIXELS = 32 };

template <class T, int V, class Index> struct avg_pool {
    static iso_status forward(iso__cuda *cuda, const pool_shape *s, const ends &e) {
        const iso__cuda_pool_axis *rows = &s->y, *columns = &s->x;
        pool_args<T, Index> args = args_of<T, V, Index>(s, rows->out, columns->out, e);
        int64_t height = rows->kernel ? rows->kernel : rows->in / rows->out;
        int64_t width = columns->kernel ? columns->kernel : columns->in / columns->out;
        if (s->beside == 1 && height * width >= WARP_PIXELS)
            return iso__cuda_submit_over(cuda, avg_forward_warp<T, Index>, 32 * args.count, args);
        return iso__cuda_submit_over(cuda, avg_forward<T, V, Index>, args.count, args);
    }

    static iso_status backward(iso__cuda *cuda, const pool_shape *s, const ends &e) {
        pool_args<T, Index> args = args_of<T, V, Index>(s, s->y.in, s->x.in, e);
        return iso__cuda_submit_over(cuda, avg_backward<T, V, Index>, args.count, args);
    }
};

// Pool<T, V, Index> for the narrowest Index and the widest V that serve.
template <class T, template <class, int, class> class Pool>
iso_status by_width(iso__cuda *cuda, const pool_shape *s, const ends &e, bool forward) {
    enum { V = iso__widest<T>::width };
    typedef Pool<T, V, int32_t> vectors;
    typedef Pool<T, 1, int32_t> single;
    typedef Pool<T, 1, int64_t> huge;
    if (!is_narrow(s)) return (forward ? huge::forward : huge::backward)(cuda, s, e);
    if (has_vectors<T, V>(s, e))
        return (forward ? vectors::forward : vectors::backward)(cuda, s, e);
    return (forward ? single::forward : single::backward)(cuda, s, e);
}

template <template <class, int, class> class Pool>
iso_status by_type(iso__cuda *cuda, const pool_shape *s, const ends &e, bool forward) {
    auto run = iso__for_type(s->dtype, by_width<double, Pool>, by_width<float, Pool>,
                             by_width<iso__bf16, Pool>, by_width<iso__f16, Pool>);
    return run(cuda, s, e, forward);
}

} // namespace

iso_status iso__cuda_max_pool_forward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                      const void *x, void *y, uint16_t *where) {
    return by_type<max_pool>(cuda, shape, {x, y, where}, true);
}

iso_status iso__cuda_max_pool_backward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                       const void *dy, const uint16_t *where, void *dx) {
    return by_type<max_pool>(cuda, shape, {dy, dx, where}, false);
}

iso_status iso__cuda_avg_pool_forward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                      const void *x, void *y) {
    return by_type<avg_pool>(cuda, shape, {x, y, nullptr}, true);
}

iso_status iso__cuda_avg_pool_backward(iso__cuda *cuda, const iso__cuda_pool_shape *shape,
                                       const void *dy, void *dx) {
    return by_type<avg_pool>(cuda, shape, {dy, dx, nullptr}, false);
}
