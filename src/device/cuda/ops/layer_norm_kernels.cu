// SPDX-License-Identifier: MIT
// Kernels for layer normalisation. A warp or a block processes a row, with sums in double
// precision. The gradients of the parameters are sums of columns: first over groups of rows, then
// over the groups.
#include "device/cuda/ops/layer_norm_kernels.h"

#include "device/cuda/runtime/cuda_rows.cuh"

namespace {

// ---- Rows ---------------------------------------------------------------------------------------

template <class Real> struct row_statistics { Real mean, rest, deviation; };

template <class Real> __device__ row_statistics<Real> get(const Real *statistics, int64_t row) {
    const Real *s = statistics + 3 * row;
    return row_statistics<Real>{s[0], s[1], s[2]};
}

template <class Real> __device__ Real standardised(const row_statistics<Real> &s, Real x) {
    return ((x - s.mean) - s.rest) * s.deviation;
}

template <class T> struct row_args {
    typedef typename iso__real<T>::type Real;
    int64_t rows, size;
    double eps;
    const T *x;
    const Real *w, *b;
    const T *dy;
    const Real *kept;
    Real *statistics;
    T *to;
};

template <class Real, class Team, int N, class T>
__device__ row_statistics<Real> statistics_of(int64_t size, double eps, const T *x) {
    double sum = 0, squares = 0;
    for (int64_t i = Team::lane(); i < size / N; i += Team::lanes()) {
        iso__vector<T, N> at = iso__load_vector<true, T, N>(x + i * N);
        for (int j = 0; j < N; j++) sum += (double)iso__widen(at.at[j]);
    }
    double mean = Team::sum(sum) / (double)size;
    for (int64_t i = Team::lane(); i < size / N; i += Team::lanes()) {
        iso__vector<T, N> at = iso__load_vector<true, T, N>(x + i * N);
        for (int j = 0; j < N; j++) {
            double distance = (double)iso__widen(at.at[j]) - mean;
            squares += distance * distance;
        }
    }
    row_statistics<Real> s;
    s.mean = (Real)mean;
    s.rest = (Real)(mean - (double)s.mean);
    s.deviation = (Real)(1 / sqrt(Team::sum(squares) / (double)size + eps));
    return s;
}

// N numbers of a weight or bias, 16 bytes at a time; `without` where there is none.
template <int N, class Real>
__device__ inline void take_numbers(const Real *from, int64_t at, Real without, Real (&to)[N]) {
    const int step = N > 1 ? 16 / (int)sizeof(Real) : 1;
    for (int j = 0; !from && j < N; j++) to[j] = without;
    for (int j = 0; from && j < N; j += step) {
        iso__vector<Real, step> x = iso__load_vector<true, Real, step>(from + at + j);
        for (int k = 0; k < step; k++) to[j + k] = x.at[k];
    }
}

template <class T, int N, bool block> __global__ void normalise_rows(row_args<T> a) {
    typedef iso__team<block> team;
    typedef typename iso__real<T>::type Real;
    for (int64_t n = team::first_row(); n < a.rows; n += team::row_stride()) {
        const T *x = a.x + n * a.size;
        row_statistics<Real> s = statistics_of<Real, team, N>(a.size, a.eps, x);
        if (team::lane() == 0) {
            a.statistics[3 * n] = s.mean;
            a.statistics[3 * n + 1] = s.rest;
            a.statistics[3 * n + 2] = s.deviation;
        }
        for (int64_t i = team::lane(); i < a.size / N; i += team::lanes()) {
            iso__vector<T, N> at = iso__load_vector<true, T, N>(x + i * N);
            Real w[N], b[N];
            take_numbers(a.w, i * N, (Real)1, w);
            take_numbers(a.b, i * N, (Real)0, b);
            for (int j = 0; j < N; j++) {
                Real y = standardised(s, iso__widen(at.at[j]));
                iso__narrow((a.w ? y * w[j] : y) + b[j], &at.at[j]);
            }
            iso__store_vector<true>(a.to + n * a.size + i * N, at);
        }
    }
}

// dx = (g - mean(g) - xhat mean(g xhat)) / deviation with g = dy w.
template <class T, int N, bool block> __global__ void row_gradients(row_args<T> a) {
    typedef iso__team<block> team;
    typedef typename iso__real<T>::type Real;
    typedef iso__vector<T, N> pack;
    for (int64_t n = team::first_row(); n < a.rows; n += team::row_stride()) {
        const T *x = a.x + n * a.size, *dy = a.dy + n * a.size;
        row_statistics<Real> s = get(a.kept, n);
        double sum = 0, product = 0;
        for (int64_t i = team::lane(); i < a.size / N; i += team::lanes()) {
            pack of_x = iso__load_vector<true, T, N>(x + i * N);
            pack of_dy = iso__load_vector<true, T, N>(dy + i * N);
            Real w[N];
            take_numbers(a.w, i * N, (Real)1, w);
            for (int j = 0; j < N; j++) {
                Real slope_out = iso__widen(of_dy.at[j]), g = a.w ? slope_out * w[j] : slope_out;
                sum += (double)g;
                product += (double)(g * standardised(s, iso__widen(of_x.at[j])));
            }
        }
        Real mean = (Real)(team::sum(sum) / (double)a.size);
        Real slope = (Real)(team::sum(product) / (double)a.size);
        for (int64_t i = team::lane(); i < a.size / N; i += team::lanes()) {
            pack of_x = iso__load_vector<true, T, N>(x + i * N);
            pack of_dy = iso__load_vector<true, T, N>(dy + i * N);
            Real w[N];
            take_numbers(a.w, i * N, (Real)1, w);
            for (int j = 0; j < N; j++) {
                Real slope_out = iso__widen(of_dy.at[j]), g = a.w ? slope_out * w[j] : slope_out;
                Real xhat = standardised(s, iso__widen(of_x.at[j]));
                iso__narrow((g - mean - xhat * slope) * s.deviation, &of_dy.at[j]);
            }
            iso__store_vector<true>(a.to + n * a.size + i * N, of_dy);
        }
    }
}

// ---- Columns ------------------------------------------------------------------------------------

enum {
    COLUMNS = 32, // of a block; a warp reads them side by side
    PART_ROWS = 64,
    BLOCKS = 1024, // fill any GPU
    MAX_PARTS = 128
};

template <class T> struct column_args {
    typedef typename iso__real<T>::type Real;
    int64_t rows, size, parts, part_rows;
    const T *x, *dy;
    const Real *statistics;
    Real *dw, *db;
    bool accumulate_w, accumulate_b;
    double *sums; // [parts, 2, size]
};

// Over the threads of a column, in the first of them, else 0. All threads of the block call it.
__device__ inline double column_sum(double value) {
    __shared__ double partial[ISO_CUDA_BLOCK];
    __syncthreads(); // partial may still be read by a call before
    partial[threadIdx.x] = value;
    for (unsigned half = ISO_CUDA_BLOCK / 2; half >= COLUMNS; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    return threadIdx.x < COLUMNS ? partial[threadIdx.x] : 0; // the others may not read it yet
}

__device__ inline int64_t column_of_thread() {
    return (int64_t)blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
}

template <class T> __global__ void take_columns(column_args<T> a) {
    int64_t column = column_of_thread(), first = blockIdx.y * a.part_rows,
            end = first + a.part_rows;
    double dw = 0, db = 0;
    if (end > a.rows) end = a.rows;
    for (int64_t n = first + threadIdx.x / COLUMNS; column < a.size && n < end;
         n += ISO_CUDA_BLOCK / COLUMNS) {
        int64_t at = n * a.size + column;
        typename iso__real<T>::type dy = iso__widen(a.dy[at]);
        dw += (double)(dy * standardised(get(a.statistics, n), iso__widen(a.x[at])));
        db += (double)dy;
    }
    dw = column_sum(dw);
    db = column_sum(db);
    if (threadIdx.x >= COLUMNS || column >= a.size) return;
    a.sums[2 * blockIdx.y * a.size + column] = dw;
    a.sums[(2 * blockIdx.y + 1) * a.size + column] = db;
}

// The same, N columns beside each other in a thread.
template <class T, int N> __global__ void take_column_packs(column_args<T> a) {
    const int packs = COLUMNS / N, lanes = ISO_CUDA_BLOCK / packs;
    __shared__ double partial[2][lanes][COLUMNS];
    int at = (int)threadIdx.x % packs * N, lane = (int)threadIdx.x / packs;
    int64_t column = (int64_t)blockIdx.x * COLUMNS + at, end = (blockIdx.y + 1) * a.part_rows;
    double dw[N] = {}, db[N] = {};
    if (end > a.rows) end = a.rows;
    for (int64_t n = blockIdx.y * a.part_rows + lane; column < a.size && n < end; n += lanes) {
        iso__vector<T, N> x = iso__load_vector<true, T, N>(a.x + n * a.size + column);
        iso__vector<T, N> dy = iso__load_vector<true, T, N>(a.dy + n * a.size + column);
        auto s = get(a.statistics, n);
        for (int j = 0; j < N; j++) {
            typename iso__real<T>::type slope = iso__widen(dy.at[j]);
            dw[j] += (double)(slope * standardised(s, iso__widen(x.at[j])));
            db[j] += (double)slope;
        }
    }
    for (int j = 0; j < N; j++) partial[0][lane][at + j] = dw[j], partial[1][lane][at + j] = db[j];
    __syncthreads();
    int which = (int)threadIdx.x / COLUMNS; // a warp sums dw, another one db
    column = column_of_thread();
    if (which > 1 || column >= a.size) return;
    double sum = 0;
    for (int i = 0; i < lanes; i++) sum += partial[which][i][threadIdx.x % COLUMNS];
    a.sums[(2 * blockIdx.y + which) * a.size + column] = sum;
}

template <class Real>
__device__ void store(Real *gradient, bool accumulate, int64_t column, double sum) {
    if (!gradient) return;
    gradient[column] = (Real)(accumulate ? (double)gradient[column] + sum : sum);
}

template <class T> __global__ void join_columns(column_args<T> a) {
    int64_t column = column_of_thread();
    double dw = 0, db = 0;
    for (int64_t part = threadIdx.x / COLUMNS; column < a.size && part < a.parts;
         part += ISO_CUDA_BLOCK / COLUMNS) {
        dw += a.sums[2 * part * a.size + column];
        db += a.sums[(2 * part + 1) * a.size + column];
    }
    dw = column_sum(dw);
    db = column_sum(db);
    if (threadIdx.x >= COLUMNS || column >= a.size) return;
    store(a.dw, a.accumulate_w, column, dw);
    store(a.db, a.accumulate_b, column, db);
}

// ---- Launchers ----------------------------------------------------------------------------------

template <class T, int N> iso_status forward_of(iso__cuda *cuda, const row_args<T> &args) {
    return iso__cuda_submit_rows(cuda, normalise_rows<T, N, false>, normalise_rows<T, N, true>,
                                 args.rows, iso__row_loads<N>(args.size), args);
}

template <class T, int N> iso_status backward_of(iso__cuda *cuda, const row_args<T> &args) {
    return iso__cuda_submit_rows(cuda, row_gradients<T, N, false>, row_gradients<T, N, true>,
                                 args.rows, iso__row_loads<N>(args.size), args);
}

template <class T>
row_args<T> forward_args(int64_t rows, int64_t size, double eps, const void *x, const void *w,
                         const void *b, void *statistics, void *y) {
    typedef typename iso__real<T>::type Real;
    row_args<T> args = {};
    args.rows = rows, args.size = size, args.eps = eps;
    args.x = (const T *)x, args.w = (const Real *)w, args.b = (const Real *)b;
    args.statistics = (Real *)statistics, args.to = (T *)y;
    return args;
}

template <class T>
row_args<T> backward_args(int64_t rows, int64_t size, const void *x, const void *w, const void *dy,
                          const void *statistics, void *dx) {
    typedef typename iso__real<T>::type Real;
    row_args<T> args = {};
    args.rows = rows, args.size = size;
    args.x = (const T *)x, args.w = (const Real *)w, args.dy = (const T *)dy;
    args.kept = (const Real *)statistics, args.to = (T *)dx;
    return args;
}

template <class T> bool holds_packs(const row_args<T> &a) {
    return iso__rows_hold_packs(a.size, a.x, a.w, a.b) &&
           iso__rows_hold_packs(a.size, a.dy, a.to, NULL);
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t rows_of_part(int64_t rows, int64_t size) {
    int64_t parts = divide_up(rows, PART_ROWS),
            wanted = divide_up(BLOCKS, divide_up(size, COLUMNS));
    if (parts > wanted) parts = wanted;
    if (parts > MAX_PARTS) parts = MAX_PARTS;
    return parts > 1 ? divide_up(rows, parts) : rows;
}

template <class T> iso_status sum_columns(iso__cuda *cuda, dim3 grid, const column_args<T> &args) {
    return iso__cuda_submit(cuda, take_columns<T>, grid, ISO_CUDA_BLOCK, args);
}
template <class T>
iso_status sum_half_columns(iso__cuda *cuda, dim3 grid, const column_args<T> &args) {
    bool packs = iso__rows_hold_packs(args.size, args.x, args.dy, NULL);
    return iso__cuda_submit(cuda, packs ? take_column_packs<T, ISO_CUDA_ROW_PACK> : take_columns<T>,
                            grid, ISO_CUDA_BLOCK, args);
}
iso_status sum_columns(iso__cuda *cuda, dim3 grid, const column_args<iso__bf16> &args) {
    return sum_half_columns(cuda, grid, args);
}
iso_status sum_columns(iso__cuda *cuda, dim3 grid, const column_args<iso__f16> &args) {
    return sum_half_columns(cuda, grid, args);
}

template <class T>
iso_status backward_params_of(iso__cuda *cuda, const iso__cuda_layer_norm_params *p) {
    typedef typename iso__real<T>::type Real;
    column_args<T> args = {};
    args.rows = p->rows, args.size = p->size;
    args.part_rows = rows_of_part(p->rows, p->size);
    args.parts = args.part_rows > 0 ? divide_up(p->rows, args.part_rows) : 0;
    args.x = (const T *)p->x, args.dy = (const T *)p->dy;
    args.statistics = (const Real *)p->statistics;
    args.dw = (Real *)p->dw, args.db = (Real *)p->db;
    args.accumulate_w = p->accumulate_w, args.accumulate_b = p->accumulate_b;
    args.sums = p->parts;
    unsigned tiles = (unsigned)divide_up(p->size, COLUMNS);
    if (args.parts > 0) {
        iso_status status = sum_columns(cuda, dim3(tiles, (unsigned)args.parts), args);
        if (status < 0) return status;
    }
    return iso__cuda_submit(cuda, join_columns<T>, dim3(tiles), ISO_CUDA_BLOCK, args);
}

template <class T> iso_status forward_of_half(iso__cuda *cuda, const row_args<T> &args) {
    return holds_packs(args) ? forward_of<T, ISO_CUDA_ROW_PACK>(cuda, args)
                             : forward_of<T, 1>(cuda, args);
}

template <class T> iso_status backward_of_half(iso__cuda *cuda, const row_args<T> &args) {
    return holds_packs(args) ? backward_of<T, ISO_CUDA_ROW_PACK>(cuda, args)
                             : backward_of<T, 1>(cuda, args);
}

} // namespace

iso_status iso__cuda_layer_norm_forward(iso__cuda *cuda, iso_dtype dtype, int64_t rows,
                                        int64_t size, double eps, const void *x, const void *w,
                                        const void *b, void *statistics, void *y) {
#define ARGS(T) forward_args<T>(rows, size, eps, x, w, b, statistics, y)
    if (dtype == ISO_F64) return forward_of<double, 1>(cuda, ARGS(double));
    if (dtype == ISO_BF16) return forward_of_half(cuda, ARGS(iso__bf16));
    if (dtype == ISO_F16) return forward_of_half(cuda, ARGS(iso__f16));
    return forward_of<float, 1>(cuda, ARGS(float));
#undef ARGS
}

iso_status iso__cuda_layer_norm_backward_input(iso__cuda *cuda, iso_dtype dtype, int64_t rows,
                                               int64_t size, const void *x, const void *w,
                                               const void *dy, const void *statistics, void *dx) {
#define ARGS(T) backward_args<T>(rows, size, x, w, dy, statistics, dx)
    if (dtype == ISO_F64) return backward_of<double, 1>(cuda, ARGS(double));
    if (dtype == ISO_BF16) return backward_of_half(cuda, ARGS(iso__bf16));
    if (dtype == ISO_F16) return backward_of_half(cuda, ARGS(iso__f16));
    return backward_of<float, 1>(cuda, ARGS(float));
#undef ARGS
}

int64_t iso__cuda_layer_norm_parts(int64_t rows, int64_t size) {
    int64_t part_rows = rows_of_part(rows, size);
    return part_rows > 0 ? 2 * size * divide_up(rows, part_rows) : 0;
}

iso_status iso__cuda_layer_norm_backward_params(iso__cuda *cuda,
                                                const iso__cuda_layer_norm_params *args) {
    return iso__for_type(args->dtype, backward_params_of<double>, backward_params_of<float>,
                         backward_params_of<iso__bf16>, backward_params_of<iso__f16>)(cuda, args);
}
