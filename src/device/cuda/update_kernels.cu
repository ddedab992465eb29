// Optimizer updates: one pass over gradient, parameter and state. Formulas: cpu_update.c.
//
// A rule is a struct of its numbers with a function for one element. The kernel around it moves 16
// bytes at a time where memory is aligned to that. Sums of products name the one that is fused, so
// that an element gets the same bits wherever its memory begins.
#include "device/cuda/update_kernels.h"

#include "device/cuda/cuda_submit.cuh"

#include <math.h>

// ---- Packs of 16 bytes ----------------------------------------------------------------------------

template <class Real> struct alignas(16) pack {
    static const int width = 16 / sizeof(Real);
    Real at[width];
};

template <class Real> __device__ inline pack<Real> load(const Real *from, bool aligned) {
    pack<Real> x;
    if (aligned) return *(const pack<Real> *)from;
    for (int k = 0; k < pack<Real>::width; k++) x.at[k] = from[k];
    return x;
}

template <class Real> __device__ inline void store(Real *to, const pack<Real> &x, bool aligned) {
    if (aligned) {
        *(pack<Real> *)to = x;
        return;
    }
    for (int k = 0; k < pack<Real>::width; k++) to[k] = x.at[k];
}

static bool is_aligned(const void *memory) { return (uintptr_t)memory % 16 == 0; }

// ---- The pass -------------------------------------------------------------------------------------

// The gradient, which is only read, the parameter and the rule's state.
template <class Rule> struct update_args {
    typedef typename Rule::real real;
    Rule rule;
    int64_t count;
    const real *g;
    real *x[1 + Rule::states];
    bool aligned_g, aligned[1 + Rule::states];
};

template <class Rule> __global__ void update(update_args<Rule> a) {
    typedef typename Rule::real real;
    const int width = pack<real>::width, arrays = 1 + Rule::states;
    int64_t packs = a.count / width;
    for (int64_t i = iso__first_item(); i < packs; i += iso__item_stride()) {
        pack<real> g = load(a.g + i * width, a.aligned_g), x[arrays];
#pragma unroll
        for (int s = 0; s < arrays; s++) x[s] = load(a.x[s] + i * width, a.aligned[s]);
#pragma unroll
        for (int k = 0; k < width; k++) {
            real element[arrays];
            for (int s = 0; s < arrays; s++) element[s] = x[s].at[k];
            a.rule.apply(g.at[k], element);
            for (int s = 0; s < arrays; s++) x[s].at[k] = element[s];
        }
#pragma unroll
        for (int s = 0; s < arrays; s++) store(a.x[s] + i * width, x[s], a.aligned[s]);
    }
    int64_t last = packs * width + iso__first_item();
    if (last >= a.count) return;
    real element[arrays];
    for (int s = 0; s < arrays; s++) element[s] = a.x[s][last];
    a.rule.apply(a.g[last], element);
    for (int s = 0; s < arrays; s++) a.x[s][last] = element[s];
}

// state: as many as the rule has, from the first on.
template <class Rule>
static iso_status run(iso__cuda *cuda, const Rule &rule, int64_t count, const void *g, void *p,
                      void *state0 = NULL, void *state1 = NULL, void *state2 = NULL) {
    typedef typename Rule::real real;
    void *const given[] = {p, state0, state1, state2};
    update_args<Rule> args = {};
    args.rule = rule;
    args.count = count;
    args.g = (const real *)g;
    args.aligned_g = is_aligned(g);
    for (int s = 0; s < 1 + Rule::states; s++) {
        args.x[s] = (real *)given[s];
        args.aligned[s] = is_aligned(given[s]);
    }
    return iso__cuda_submit_over(cuda, update<Rule>, count / pack<real>::width, args);
}

// ---- Scale, SGD -----------------------------------------------------------------------------------

template <class Real> struct scale_rule {
    typedef Real real;
    static const int states = 0;
    Real factor;
    __device__ void apply(Real, Real *x) const { x[0] *= factor; }
};

template <class Real>
static iso_status scale(iso__cuda *cuda, int64_t count, double factor, void *x) {
    scale_rule<Real> rule = {(Real)factor};
    return run(cuda, rule, count, x, x);
}

template <class Real> struct sgd_rule {
    typedef Real real;
    static const int states = 0;
    Real lr, scale, decay;
    __device__ void apply(Real grad, Real *x) const { x[0] -= lr * fma(decay, x[0], grad * scale); }
};

// The first update copies the gradient into the momentum buffer: undampened, and nothing is kept of
// it.
template <class Real> struct momentum_rule {
    typedef Real real;
    static const int states = 1;
    Real lr, scale, decay, mu, fresh;
    bool first, nesterov;
    __device__ void apply(Real grad, Real *x) const {
        Real g = fma(decay, x[0], grad * scale);
        Real m = first ? fresh * g : fma(mu, x[1], fresh * g);
        x[1] = m;
        x[0] -= lr * (nesterov ? fma(mu, m, g) : m);
    }
};

template <class Real>
static iso_status sgd(iso__cuda *cuda, int64_t count, const iso__sgd_args *a, const void *g,
                      void *p, void *momentum) {
    Real lr = (Real)a->lr, rescale = (Real)a->scale, decay = (Real)a->weight_decay;
    sgd_rule<Real> plain = {lr, rescale, decay};
    if (!momentum) return run(cuda, plain, count, g, p);
    Real fresh = a->first ? 1 : 1 - (Real)a->dampening;
    momentum_rule<Real> rule = {lr,    rescale,  decay,      (Real)a->momentum,
                                fresh, a->first, a->nesterov};
    return run(cuda, rule, count, g, p, momentum);
}

// ---- Adam, Adadelta, Adagrad -----------------------------------------------------------------------

template <class Real> struct adam_rule {
    typedef Real real;
    static const int states = 2;
    Real scale, eps, step, shrink, l2, beta1, rest1, beta2, rest2, correction;
    __device__ void apply(Real grad, Real *x) const {
        Real g = fma(l2, x[0], grad * scale);
        x[1] = fma(beta1, x[1], rest1 * g);
        x[2] = fma(beta2, x[2], rest2 * g * g);
        Real move = x[1] / (sqrt(x[2]) / correction + eps);
        x[0] = fma(shrink, x[0], -(step * move));
    }
};

template <class Real>
static iso_status adam(iso__cuda *cuda, int64_t count, const iso__adam_args *a, const void *g,
                       void *p, void *m, void *v) {
    adam_rule<Real> rule;
    rule.scale = (Real)a->scale;
    rule.eps = (Real)a->eps;
    rule.step = (Real)a->lr / (Real)a->correction1;
    rule.shrink = a->decoupled ? 1 - (Real)a->lr * (Real)a->weight_decay : 1;
    rule.l2 = a->decoupled ? 0 : (Real)a->weight_decay;
    rule.beta1 = (Real)a->beta1;
    rule.rest1 = (Real)a->rest1;
    rule.beta2 = (Real)a->beta2;
    rule.rest2 = (Real)a->rest2;
    rule.correction = (Real)a->correction2_sqrt;
    return run(cuda, rule, count, g, p, m, v);
}

template <class Real> struct adadelta_rule {
    typedef Real real;
    static const int states = 2;
    Real lr, scale, decay, rho, fresh, eps;
    __device__ void apply(Real grad, Real *x) const {
        Real g = fma(decay, x[0], grad * scale);
        x[1] = fma(rho, x[1], fresh * g * g);
        Real delta = sqrt(x[2] + eps) / sqrt(x[1] + eps) * g;
        x[2] = fma(rho, x[2], fresh * delta * delta);
        x[0] -= lr * delta;
    }
};

template <class Real>
static iso_status adadelta(iso__cuda *cuda, int64_t count, const iso__adadelta_args *a,
                           const void *g, void *p, void *square_avg, void *acc_delta) {
    adadelta_rule<Real> rule = {(Real)a->lr,  (Real)a->scale,   (Real)a->weight_decay,
                                (Real)a->rho, 1 - (Real)a->rho, (Real)a->eps};
    return run(cuda, rule, count, g, p, square_avg, acc_delta);
}

template <class Real> struct adagrad_rule {
    typedef Real real;
    static const int states = 1;
    Real lr, scale, decay, eps;
    __device__ void apply(Real grad, Real *x) const {
        Real g = fma(decay, x[0], grad * scale);
        x[1] = fma(g, g, x[1]);
        x[0] -= lr * (g / (sqrt(x[1]) + eps));
    }
};

template <class Real>
static iso_status adagrad(iso__cuda *cuda, int64_t count, const iso__adagrad_args *a, const void *g,
                          void *p, void *sum) {
    adagrad_rule<Real> rule = {(Real)a->lr, (Real)a->scale, (Real)a->weight_decay, (Real)a->eps};
    return run(cuda, rule, count, g, p, sum);
}

// ---- RMSprop: a kernel for each set of buffers -----------------------------------------------------

// State: the average of squares, then that of gradients (centered), then momentum.
template <class Real, bool centered, bool has_momentum> struct rmsprop_rule {
    typedef Real real;
    static const int states = 1 + centered + has_momentum;
    Real lr, scale, decay, alpha, rest, eps, mu;
    __device__ void apply(Real grad, Real *x) const {
        Real g = fma(decay, x[0], grad * scale);
        Real square = x[1] = fma(alpha, x[1], rest * g * g);
        if (centered) {
            Real mean = x[1 + centered] = fma(alpha, x[1 + centered], rest * g);
            // A variance, which rounding may make negative where gradients hardly change.
            square = fma(-mean, mean, square);
            square = square < 0 ? 0 : square;
        }
        Real step = g / (sqrt(square) + eps);
        const int last = states; // of x
        if (has_momentum) step = x[last] = fma(mu, x[last], step);
        x[0] -= lr * step;
    }
};

template <class Real, bool centered, bool has_momentum>
static iso_status rmsprop_with(iso__cuda *cuda, int64_t count, const iso__rmsprop_args *a,
                               const void *g, void *p, void *square_avg, void *grad_avg,
                               void *momentum) {
    rmsprop_rule<Real, centered, has_momentum> rule = {
        (Real)a->lr,   (Real)a->scale, (Real)a->weight_decay, (Real)a->alpha,
        (Real)a->rest, (Real)a->eps,   (Real)a->momentum};
    return run(cuda, rule, count, g, p, square_avg, centered ? grad_avg : momentum, momentum);
}

template <class Real>
static iso_status rmsprop(iso__cuda *cuda, int64_t count, const iso__rmsprop_args *a, const void *g,
                          void *p, void *square_avg, void *grad_avg, void *momentum) {
    if (grad_avg && momentum)
        return rmsprop_with<Real, true, true>(cuda, count, a, g, p, square_avg, grad_avg, momentum);
    if (grad_avg)
        return rmsprop_with<Real, true, false>(cuda, count, a, g, p, square_avg, grad_avg, NULL);
    if (momentum)
        return rmsprop_with<Real, false, true>(cuda, count, a, g, p, square_avg, NULL, momentum);
    return rmsprop_with<Real, false, false>(cuda, count, a, g, p, square_avg, NULL, NULL);
}

// ---- LAMB: a pass for the moments and the norms, and one for the update ----------------------------
// How many blocks there are, and which elements a thread has, depends on the count alone: another
// GPU gets the same bits. Each block of the second pass adds up the sums of all blocks.

template <class Real> struct lamb_args {
    Real scale, eps, decay, beta1, rest1, beta2, rest2, correction1, correction2;
    double lr;
    int64_t count;
    int blocks; // of the first pass
    const Real *g;
    Real *p, *m, *v;
    double *sums; // of the squares of p, then of the direction: [2][blocks]
    bool aligned;
};

// The same bits in both passes.
template <class Real>
__device__ inline Real lamb_direction(const lamb_args<Real> &a, Real m, Real v, Real p) {
    return fma(a.decay, p, m / a.correction1 / (sqrt(v) / a.correction2 + a.eps));
}

template <class Real>
__device__ inline void lamb_element(const lamb_args<Real> &a, Real grad, Real p, Real *m, Real *v,
                                    double square[2]) {
    Real g = grad * a.scale;
    *m = fma(a.beta1, *m, a.rest1 * g);
    *v = fma(a.beta2, *v, a.rest2 * g * g);
    double u = (double)lamb_direction(a, *m, *v, p);
    square[0] = fma((double)p, (double)p, square[0]);
    square[1] = fma(u, u, square[1]);
}

template <class Real> __global__ void lamb_moments(lamb_args<Real> a) {
    const int width = pack<Real>::width;
    int64_t packs = a.count / width;
    double square[2] = {0, 0};
    for (int64_t i = iso__first_item(); i < packs; i += iso__item_stride()) {
        pack<Real> g = load(a.g + i * width, a.aligned), p = load(a.p + i * width, a.aligned);
        pack<Real> m = load(a.m + i * width, a.aligned), v = load(a.v + i * width, a.aligned);
#pragma unroll
        for (int k = 0; k < width; k++)
            lamb_element(a, g.at[k], p.at[k], &m.at[k], &v.at[k], square);
        store(a.m + i * width, m, a.aligned);
        store(a.v + i * width, v, a.aligned);
    }
    int64_t last = packs * width + iso__first_item();
    if (last < a.count) lamb_element(a, a.g[last], a.p[last], &a.m[last], &a.v[last], square);
    double p = iso__block_sum(square[0]), u = iso__block_sum(square[1]);
    if (threadIdx.x != 0) return;
    a.sums[blockIdx.x] = p;
    a.sums[a.blocks + blockIdx.x] = u;
}

template <class Real> __global__ void lamb_apply(lamb_args<Real> a) {
    const int width = pack<Real>::width;
    double square[2] = {0, 0};
    for (int b = (int)threadIdx.x; b < a.blocks; b += (int)blockDim.x) {
        square[0] += a.sums[b];
        square[1] += a.sums[a.blocks + b];
    }
    double p2 = iso__block_sum(square[0]), u2 = iso__block_sum(square[1]);
    Real step = (Real)(a.lr * (p2 > 0 && u2 > 0 ? sqrt(p2 / u2) : 1));
    int64_t packs = a.count / width;
    for (int64_t i = iso__first_item(); i < packs; i += iso__item_stride()) {
        pack<Real> p = load(a.p + i * width, a.aligned), m = load(a.m + i * width, a.aligned);
        pack<Real> v = load(a.v + i * width, a.aligned);
#pragma unroll
        for (int k = 0; k < width; k++)
            p.at[k] -= step * lamb_direction(a, m.at[k], v.at[k], p.at[k]);
        store(a.p + i * width, p, a.aligned);
    }
    int64_t last = packs * width + iso__first_item();
    if (last < a.count) a.p[last] -= step * lamb_direction(a, a.m[last], a.v[last], a.p[last]);
}

template <class Real>
static iso_status lamb(iso__cuda *cuda, int64_t count, const iso__lamb_args *from, const void *g,
                       void *p, void *m, void *v, double *sums) {
    lamb_args<Real> a = {};
    a.scale = (Real)from->scale, a.eps = (Real)from->eps, a.decay = (Real)from->weight_decay;
    a.beta1 = (Real)from->beta1, a.rest1 = (Real)from->rest1;
    a.beta2 = (Real)from->beta2, a.rest2 = (Real)from->rest2;
    a.correction1 = (Real)from->correction1, a.correction2 = (Real)from->correction2_sqrt;
    a.lr = from->lr;
    a.count = count;
    a.g = (const Real *)g, a.p = (Real *)p, a.m = (Real *)m, a.v = (Real *)v;
    a.sums = sums;
    a.aligned = is_aligned(g) && is_aligned(p) && is_aligned(m) && is_aligned(v);
    int64_t wanted = (count / pack<Real>::width + ISO_CUDA_BLOCK - 1) / ISO_CUDA_BLOCK;
    int64_t most = ISO_CUDA_LAMB_BLOCKS;
    a.blocks = (int)(wanted < 1 ? 1 : wanted < most ? wanted : most);
    ISO_TRY(
        iso__cuda_submit(cuda, lamb_moments<Real>, dim3((unsigned)a.blocks), ISO_CUDA_BLOCK, a));
    return iso__cuda_submit(cuda, lamb_apply<Real>, dim3((unsigned)a.blocks), ISO_CUDA_BLOCK, a);
}

// ---- By element type -------------------------------------------------------------------------------

#define BY_TYPE(rule, ...)                                                                         \
    return dtype == ISO_F64 ? rule<double>(cuda, count, __VA_ARGS__)                               \
                            : rule<float>(cuda, count, __VA_ARGS__)

iso_status iso__cuda_scale(iso__cuda *cuda, iso_dtype dtype, int64_t count, double factor,
                           void *x) {
    BY_TYPE(scale, factor, x);
}
iso_status iso__cuda_sgd(iso__cuda *cuda, iso_dtype dtype, int64_t count, const iso__sgd_args *args,
                         const void *g, void *p, void *momentum) {
    BY_TYPE(sgd, args, g, p, momentum);
}
iso_status iso__cuda_adam(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                          const iso__adam_args *args, const void *g, void *p, void *m, void *v) {
    BY_TYPE(adam, args, g, p, m, v);
}
iso_status iso__cuda_adadelta(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                              const iso__adadelta_args *args, const void *g, void *p,
                              void *square_avg, void *acc_delta) {
    BY_TYPE(adadelta, args, g, p, square_avg, acc_delta);
}
iso_status iso__cuda_adagrad(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                             const iso__adagrad_args *args, const void *g, void *p, void *sum) {
    BY_TYPE(adagrad, args, g, p, sum);
}
iso_status iso__cuda_rmsprop(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                             const iso__rmsprop_args *args, const void *g, void *p,
                             void *square_avg, void *grad_avg, void *momentum) {
    BY_TYPE(rmsprop, args, g, p, square_avg, grad_avg, momentum);
}
iso_status iso__cuda_lamb(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                          const iso__lamb_args *args, const void *g, void *p, void *m, void *v,
                          double *sums) {
    BY_TYPE(lamb, args, g, p, m, v, sums);
}
