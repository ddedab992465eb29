// Kernels for batch normalisation: sums over gradients, and backward; divided as forward is.
#include "device/cuda/cuda_norm.cuh"

namespace {

// ---- Sums ---------------------------------------------------------------------------------------

template <class Real> struct backward_args {
    iso__cuda_norm_shape shape;
    bool batch, relu, accumulate_w, accumulate_b;
    double count;
    const double *sums; // NULL: of the parts, or of dy where there is but one
    double *parts, *out;
    const Real *x, *dy, *workspace;
    Real *dw, *db, *dx;
};

// Sums of dy before the activation and of that times (x - mean).
struct sums {
    double dy, product;
};

template <class Real>
__device__ iso__norm_coefficients<Real> kept(const backward_args<Real> &a,
                                             const iso__norm_place &p) {
    iso__norm_coefficients<Real> k = {0, 0, 0, 0, 0};
    int64_t channels = a.shape.channels;
    if (!p.exists) return k;
    const Real *from = a.workspace + p.channel;
    k.mean = from[0];
    k.rest = from[channels];
    k.deviation = from[2 * channels];
    k.scale = from[3 * channels];
    k.shift = from[4 * channels];
    return k;
}

// What a relu let through is seen from x as forward saw it, which saves reading y.
template <class Real>
__device__ Real through(bool relu, const iso__norm_coefficients<Real> &k, Real x, Real dy) {
    return relu && !(iso__norm_output(k, x) > 0) ? 0 : dy;
}

template <int N, class Real>
__device__ void add_gradients(const backward_args<Real> &a, const iso__norm_coefficients<Real> &k,
                              iso__norm_walk *w, sums *to) {
    Real x[N], dy[N], sum = 0, product = 0;
    for (int i = 0; i < N; i++) {
        int64_t at = iso__norm_next(w);
        x[i] = a.x[at];
        dy[i] = a.dy[at];
    }
    for (int i = 0; i < N; i++) {
        Real g = through(a.relu, k, x[i], dy[i]);
        sum += g;
        product += g * (x[i] - k.mean);
    }
    to->dy += (double)sum;
    to->product += (double)product;
}

template <class Real>
__device__ sums sums_of_part(const backward_args<Real> &a, const iso__norm_place &p, int64_t part) {
    iso__norm_coefficients<Real> k = kept(a, p);
    iso__norm_walk w = iso__norm_walk_of(a.shape, p, part);
    sums s = {0, 0};
    while (w.left >= ISO__NORM_BATCH) add_gradients<ISO__NORM_BATCH>(a, k, &w, &s);
    while (w.left > 0) add_gradients<1>(a, k, &w, &s);
    s.dy = iso__norm_sum(a.shape.lanes, s.dy);
    s.product = iso__norm_sum(a.shape.lanes, s.product) - (double)k.rest * s.dy;
    return s;
}

template <class Real> __global__ void take_sums(backward_args<Real> a) {
    iso__norm_place p = iso__norm_place_of(a.shape);
    sums s = sums_of_part(a, p, blockIdx.y);
    if (p.along != 0 || !p.exists) return;
    a.parts[iso__norm_part_at(a.shape, blockIdx.y, 0, p.channel)] = s.dy;
    a.parts[iso__norm_part_at(a.shape, blockIdx.y, 1, p.channel)] = s.product;
}

template <class Real>
__device__ sums channel_sums(const backward_args<Real> &a, const iso__norm_place &p) {
    sums s = {0, 0};
    if (a.sums) {
        if (p.exists) s.dy = a.sums[p.channel], s.product = a.sums[a.shape.channels + p.channel];
        return s;
    }
    if (a.shape.parts == 1) return sums_of_part(a, p, 0);
    for (int64_t part = p.along; p.exists && part < a.shape.parts; part += p.alongs) {
        s.dy += a.parts[iso__norm_part_at(a.shape, part, 0, p.channel)];
        s.product += a.parts[iso__norm_part_at(a.shape, part, 1, p.channel)];
    }
    s.dy = iso__norm_sum(a.shape.lanes, s.dy);
    s.product = iso__norm_sum(a.shape.lanes, s.product);
    return s;
}

template <class Real>
__device__ void add_to(Real *gradient, bool accumulate, int64_t channel, double value) {
    if (!gradient) return;
    gradient[channel] = (Real)(accumulate ? (double)gradient[channel] + value : value);
}

template <class Real>
__device__ void store_sums(const backward_args<Real> &a, int64_t channel, Real deviation,
                           const sums &s) {
    add_to(a.dw, a.accumulate_w, channel, s.product * (double)deviation);
    add_to(a.db, a.accumulate_b, channel, s.dy);
    if (!a.out) return;
    a.out[channel] = s.dy;
    a.out[a.shape.channels + channel] = s.product;
}

// dx = dy * scale + (x - mean) * slope + offset.
template <class Real> struct slopes { Real slope, offset; };

// With statistics of the batch, dx = scale (dy - mean(dy) - xhat mean(dy xhat)), else scale dy.
template <class Real>
__device__ slopes<Real> slopes_of(const backward_args<Real> &a,
                                  const iso__norm_coefficients<Real> &k, const sums &s) {
    double scale = (double)k.scale, deviation = (double)k.deviation;
    double slope = a.batch ? -scale * deviation * deviation * s.product / a.count : 0;
    slopes<Real> both;
    both.slope = (Real)slope;
    both.offset = (Real)(a.batch ? -scale * s.dy / a.count - slope * (double)k.rest : 0);
    return both;
}

template <int N, class Real>
__device__ void gradient(const backward_args<Real> &a, const iso__norm_coefficients<Real> &k,
                         const slopes<Real> &to, iso__norm_walk *w) {
    int64_t at[N];
    Real x[N], dy[N];
    for (int i = 0; i < N; i++) {
        at[i] = iso__norm_next(w);
        x[i] = a.x[at[i]];
        dy[i] = a.dy[at[i]];
    }
    for (int i = 0; i < N; i++)
        a.dx[at[i]] =
            through(a.relu, k, x[i], dy[i]) * k.scale + ((x[i] - k.mean) * to.slope + to.offset);
}

template <class Real> __global__ void gradient_parts(backward_args<Real> a) {
    __shared__ slopes<Real> shared[ISO__NORM_LANES];
    iso__norm_place p = iso__norm_place_of(a.shape);
    iso__norm_coefficients<Real> k = kept(a, p);
    sums s = channel_sums(a, p);
    if (p.along == 0 && p.exists) {
        shared[p.lane] = slopes_of(a, k, s);
        if (blockIdx.y == 0) store_sums(a, p.channel, k.deviation, s);
    }
    __syncthreads(); // all of dy was read, too, of which dx may be the memory
    if (!a.dx) return;
    slopes<Real> to = shared[p.lane];
    iso__norm_walk w = iso__norm_walk_of(a.shape, p, blockIdx.y);
    while (w.left >= ISO__NORM_BATCH) gradient<ISO__NORM_BATCH>(a, k, to, &w);
    while (w.left > 0) gradient<1>(a, k, to, &w);
}

// ---- Launchers ----------------------------------------------------------------------------------

template <class Real> iso_status backward_of(iso__cuda *cuda, const iso__cuda_norm_backward *b) {
    const iso__cuda_norm_shape *s = &b->shape;
    backward_args<Real> args = {};
    args.shape = *s;
    args.batch = b->batch, args.relu = b->relu;
    args.accumulate_w = b->accumulate_w, args.accumulate_b = b->accumulate_b;
    args.count = b->sums ? b->count : (double)s->values;
    args.sums = b->sums, args.parts = b->parts, args.out = b->out;
    args.x = (const Real *)b->x, args.dy = (const Real *)b->dy;
    args.workspace = (const Real *)b->workspace;
    args.dw = (Real *)b->dw, args.db = (Real *)b->db, args.dx = (Real *)b->dx;
    if (!b->sums && s->parts > 1) {
        iso_status status = iso__norm_submit(cuda, take_sums<Real>, s->parts, args);
        if (status < 0) return status;
    }
    return iso__norm_submit(cuda, gradient_parts<Real>, b->dx ? s->parts : 1, args);
}

} // namespace

iso_status iso__cuda_norm_backward_launch(iso__cuda *cuda, const iso__cuda_norm_backward *args) {
    if (args->shape.dtype == ISO_F64) return backward_of<double>(cuda, args);
    return backward_of<float>(cuda, args);
}
