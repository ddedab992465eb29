// Kernels for batch normalisation: moments and forward. Channels with many values have several
// parts: a launch takes their moments, and each block of the next puts those of its channel
// together. How it is divided depends on the shape alone, and nothing is added in an order that may
// vary.
#include "device/cuda/cuda_norm.cuh"

namespace {

// ---- Moments ------------------------------------------------------------------------------------

// Number of values, their mean and the sum of squares of their distances from it.
struct moments {
    double count, mean, squares;
};

// Puts two sets of values together (Chan, Golub, LeVeque: Updating formulae, 1979). b has values.
__device__ inline void merge(moments *a, const moments &b) {
    double delta = b.mean - a->mean, share = b.count / (a->count + b.count);
    a->squares += b.squares + delta * delta * a->count * share;
    a->mean += delta * share;
    a->count += b.count;
}

// About their rounded mean nothing cancels.
template <int N, class Real>
__device__ void add_values(const Real *x, iso__norm_walk *w, moments *m) {
    Real v[N], shift = 0, sum = 0, squares = 0;
    for (int k = 0; k < N; k++) v[k] = x[iso__norm_next(w)];
    for (int k = 0; k < N; k++) shift += v[k];
    shift /= (Real)N;
    for (int k = 0; k < N; k++) {
        Real distance = v[k] - shift;
        sum += distance;
        squares += distance * distance;
    }
    double rest = (double)sum / N;
    moments more = {N, (double)shift + rest, (double)squares - (double)sum * rest};
    merge(m, more);
}

// Those of all threads of a channel; the distances from one of them are small numbers.
__device__ inline moments join(int lanes, const iso__norm_place &p, const moments &own) {
    double near = iso__norm_sum(lanes, p.along == 0 ? own.mean : 0);
    moments all;
    all.count = iso__norm_sum(lanes, own.count);
    all.mean = near + iso__norm_sum(lanes, own.count * (own.mean - near)) / all.count;
    double distance = own.mean - all.mean;
    all.squares = iso__norm_sum(lanes, own.squares + own.count * distance * distance);
    if (all.squares < 0) all.squares = 0; // a NaN stays one
    return all;
}

template <class Real>
__device__ moments moments_of_part(const iso__cuda_norm_shape &s, const iso__norm_place &p,
                                   int64_t part, const Real *x) {
    iso__norm_walk w = iso__norm_walk_of(s, p, part);
    moments m = {0, 0, 0};
    while (w.left >= ISO__NORM_BATCH) add_values<ISO__NORM_BATCH>(x, &w, &m);
    while (w.left > 0) add_values<1>(x, &w, &m);
    return join(s.lanes, p, m);
}

__device__ inline moments join_parts(const iso__cuda_norm_shape &s, const iso__norm_place &p,
                                     const double *parts) {
    moments m = {0, 0, 0};
    for (int64_t part = p.along; p.exists && part < s.parts; part += p.alongs) {
        moments more = {(double)iso__norm_values(s, part),
                        parts[iso__norm_part_at(s, part, 0, p.channel)],
                        parts[iso__norm_part_at(s, part, 1, p.channel)]};
        merge(&m, more);
    }
    return join(s.lanes, p, m);
}

template <class Real> struct moments_args {
    iso__cuda_norm_shape shape;
    const Real *x;
    double *parts, *out;
};

template <class Real> __global__ void take_moments(moments_args<Real> a) {
    iso__norm_place p = iso__norm_place_of(a.shape);
    moments m = moments_of_part(a.shape, p, blockIdx.y, a.x);
    if (p.along != 0 || !p.exists) return;
    a.parts[iso__norm_part_at(a.shape, blockIdx.y, 0, p.channel)] = m.mean;
    a.parts[iso__norm_part_at(a.shape, blockIdx.y, 1, p.channel)] = m.squares;
}

template <class Real> __global__ void join_moments(moments_args<Real> a) {
    iso__norm_place p = iso__norm_place_of(a.shape);
    moments m = join_parts(a.shape, p, a.parts);
    if (p.along != 0 || !p.exists) return;
    a.out[p.channel] = m.mean;
    a.out[a.shape.channels + p.channel] = m.squares;
}

// ---- Forward ------------------------------------------------------------------------------------

template <class Real> struct forward_args {
    iso__cuda_norm_shape shape;
    double eps, factor, count;
    bool batch, relu;
    const double *moments, *parts; // moments NULL: of the parts, or of x where there is but one
    const Real *x, *weight, *bias;
    Real *running_mean, *running_var, *workspace, *y;
};

template <class Real>
__device__ moments statistics(const forward_args<Real> &a, const iso__norm_place &p) {
    moments m = {a.count, 0, 0};
    if (a.batch && !a.moments)
        return a.shape.parts > 1 ? join_parts(a.shape, p, a.parts)
                                 : moments_of_part(a.shape, p, 0, a.x);
    if (a.batch && p.exists) {
        m.mean = a.moments[p.channel];
        m.squares = a.moments[a.shape.channels + p.channel];
        if (m.squares < 0) m.squares = 0; // a NaN stays one
    }
    return m;
}

template <class Real>
__device__ void update_running(const forward_args<Real> &a, int64_t channel, const moments &m) {
    double mean = (double)a.running_mean[channel], variance = (double)a.running_var[channel];
    double unbiased = m.squares / (m.count - 1);
    a.running_mean[channel] = (Real)((1 - a.factor) * mean + a.factor * m.mean);
    a.running_var[channel] = (Real)((1 - a.factor) * variance + a.factor * unbiased);
}

template <class Real>
__device__ iso__norm_coefficients<Real> coefficients_of(const forward_args<Real> &a,
                                                        int64_t channel, const moments &m) {
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

template <int N, class Real>
__device__ void normalise(const forward_args<Real> &a, const iso__norm_coefficients<Real> &k,
                          iso__norm_walk *w) {
    int64_t at[N];
    Real v[N];
    for (int i = 0; i < N; i++) v[i] = a.x[at[i] = iso__norm_next(w)];
    for (int i = 0; i < N; i++) {
        Real y = iso__norm_output(k, v[i]);
        a.y[at[i]] = a.relu && y < 0 ? 0 : y; // a NaN stays one
    }
}

template <class Real> __global__ void normalise_parts(forward_args<Real> a) {
    __shared__ iso__norm_coefficients<Real> shared[ISO__NORM_LANES];
    iso__norm_place p = iso__norm_place_of(a.shape);
    moments m = statistics(a, p);
    if (p.along == 0 && p.exists) {
        shared[p.lane] = coefficients_of(a, p.channel, m);
        if (blockIdx.y == 0) {
            keep(shared[p.lane], a.shape.channels, a.workspace + p.channel);
            if (a.batch && a.running_mean) update_running(a, p.channel, m);
        }
    }
    __syncthreads();
    iso__norm_coefficients<Real> k = shared[p.lane];
    iso__norm_walk w = iso__norm_walk_of(a.shape, p, blockIdx.y);
    while (w.left >= ISO__NORM_BATCH) normalise<ISO__NORM_BATCH>(a, k, &w);
    while (w.left > 0) normalise<1>(a, k, &w);
}

// ---- Launchers ----------------------------------------------------------------------------------

template <class Real>
iso_status moments_into_parts(iso__cuda *cuda, const iso__cuda_norm_shape *shape, const void *x,
                              double *parts) {
    moments_args<Real> args = {*shape, (const Real *)x, parts, nullptr};
    return iso__norm_submit(cuda, take_moments<Real>, shape->parts, args);
}

template <class Real>
iso_status moments_of(iso__cuda *cuda, const iso__cuda_norm_shape *shape, const void *x,
                      double *parts, double *out) {
    moments_args<Real> args = {*shape, (const Real *)x, parts, out};
    iso_status status = moments_into_parts<Real>(cuda, shape, x, parts);
    return status < 0 ? status : iso__norm_submit(cuda, join_moments<Real>, 1, args);
}

template <class Real> iso_status forward_of(iso__cuda *cuda, const iso__cuda_norm_forward *f) {
    const iso__cuda_norm_shape *s = &f->shape;
    forward_args<Real> args = {};
    args.shape = *s;
    args.eps = f->eps, args.factor = f->factor;
    args.count = f->moments ? f->count : (double)s->values;
    args.batch = f->batch, args.relu = f->relu;
    args.moments = f->moments, args.parts = f->parts;
    args.x = (const Real *)f->x, args.y = (Real *)f->y;
    args.weight = (const Real *)f->weight, args.bias = (const Real *)f->bias;
    args.running_mean = (Real *)f->running_mean, args.running_var = (Real *)f->running_var;
    args.workspace = (Real *)f->workspace;
    if (f->batch && !f->moments && s->parts > 1) {
        iso_status status = moments_into_parts<Real>(cuda, s, f->x, f->parts);
        if (status < 0) return status;
    }
    return iso__norm_submit(cuda, normalise_parts<Real>, s->parts, args);
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

enum {
    SMALL_PLANE = 8, // elements: one sector of memory
    PART_VALUES = 4096,
    BLOCKS = 1024, // fill any GPU
    MAX_PARTS = 256
};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

} // namespace

iso__cuda_norm_shape iso__cuda_norm_shape_of(iso_dtype dtype, int64_t rows, int64_t channels,
                                             int64_t plane) {
    iso__cuda_norm_shape s = {dtype, channels, plane, rows * plane, 1, rows * plane, 1};
    while (plane < SMALL_PLANE && s.lanes < ISO__NORM_LANES && s.lanes < channels) s.lanes *= 2;
    int64_t parts = divide_up(s.values * s.lanes, PART_VALUES);
    int64_t wanted = divide_up(BLOCKS, divide_up(channels, s.lanes));
    if (parts > wanted) parts = wanted;
    if (parts > MAX_PARTS) parts = MAX_PARTS;
    if (parts <= 2) return s; // one launch takes less time than two
    s.part_values = divide_up(s.values, parts);
    s.parts = divide_up(s.values, s.part_values);
    return s;
}

int64_t iso__cuda_norm_part_count(const iso__cuda_norm_shape *s) {
    return 2 * s->parts * s->channels;
}

size_t iso__cuda_norm_workspace(const iso__cuda_norm_shape *s) {
    return (size_t)(ISO__NORM_ROWS * s->channels) *
           (s->dtype == ISO_F64 ? sizeof(double) : sizeof(float));
}

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
    if (args->shape.dtype == ISO_F64) return forward_of<double>(cuda, args);
    return forward_of<float>(cuda, args);
}

iso_status iso__cuda_norm_moments_launch(iso__cuda *cuda, const iso__cuda_norm_shape *shape,
                                         const void *x, double *parts, double *out) {
    if (shape->dtype == ISO_F64) return moments_of<double>(cuda, shape, x, parts, out);
    return moments_of<float>(cuda, shape, x, parts, out);
}
