// SPDX-License-Identifier: MIT
// Optimizer updates: one pass over gradient, parameter and state. Formulas: cpu_update.c.
//
// A rule is a struct of its hyperparameters, without padding, with a function for one element. The
// kernel applies it to all segments of a table (cuda_multi_tensor.h). Every product that is added
// is an explicit fma. The compiler would fuse it or not depending on the surrounding code, and the
// bits of an element would then depend on the alignment of its memory.
#include "device/cuda/ops/update_kernels.h"

#include "device/cuda/ops/master_kernels.h"
#include "device/cuda/runtime/cuda_multi_tensor.h"
#include "device/cuda/runtime/cuda_pack.cuh"
#include "device/cuda/runtime/cuda_submit.cuh"
#include "device/cuda/runtime/cuda_vector.cuh"
#include "device/cuda/runtime/fill_kernels.h"

#include <math.h>
#include <string.h>

// ---- Parameters of 16 bits -------------------------------------------------------------------------

// Takes master weights from the values that are not these weights rounded, and rounds them.
template <class Half> struct halves {
    static const int arrays = 1;
    Half *value;
    bool aligned;

    __device__ explicit halves(void *memory)
        : value((Half *)memory), aligned(iso__holds_vectors<Half, 4>(memory)) {}

    static __device__ void refresh(Half told, float *master) {
        Half rounded;
        iso__narrow(*master, &rounded);
        if (rounded.bits != told.bits) *master = iso__widen(told);
    }
    __device__ void take(int64_t first, iso__pack<float> *x) const {
        iso__vector<Half, 4> told = aligned ? iso__load_vector<true, Half, 4>(value + first)
                                            : iso__load_vector<false, Half, 4>(value + first);
        for (int k = 0; k < 4; k++) refresh(told.at[k], &x->at[k]);
    }
    __device__ void put(int64_t first, const iso__pack<float> &x) const {
        iso__vector<Half, 4> rounded;
        for (int k = 0; k < 4; k++) iso__narrow(x.at[k], &rounded.at[k]);
        if (aligned)
            iso__store_vector<true, Half, 4>(value + first, rounded);
        else
            iso__store_vector<false, Half, 4>(value + first, rounded);
    }
    __device__ void take_one(int64_t i, float *x) const { refresh(value[i], x); }
    __device__ void put_one(int64_t i, float x) const { iso__narrow(x, &value[i]); }
};

// For parameters that are not rounded.
struct no_halves {
    static const int arrays = 0;
    __device__ explicit no_halves(void *) {}
    template <class Real> __device__ void take(int64_t, iso__pack<Real> *) const {}
    template <class Real> __device__ void put(int64_t, const iso__pack<Real> &) const {}
    template <class Real> __device__ void take_one(int64_t, Real *) const {}
    template <class Real> __device__ void put_one(int64_t, Real) const {}
};

// ---- The pass -------------------------------------------------------------------------------------

// Of a segment, in the blocks that are its own.
template <class Rule> struct share {
    typedef typename Rule::real real;
    Rule rule;
    int64_t count, begin, stride; // of packs
    const real *g;
    real *x[1 + Rule::states];
    void *behind; // the array behind the state, if there is one
};

template <class Rule> __device__ share<Rule> share_of(const iso__cuda_table &t) {
    share<Rule> s;
    unsigned low = 0, high = t.segments; // first[low] <= this block < first[high]
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (t.first[middle] <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    memcpy(&s.rule, &t.rule[t.rule_of[low]], sizeof(s.rule));
    s.count = t.segment[low].count;
    s.begin = (int64_t)(blockIdx.x - t.first[low]) * blockDim.x + threadIdx.x;
    s.stride = (int64_t)(t.first[low + 1] - t.first[low]) * blockDim.x;
    s.g = (const typename Rule::real *)t.segment[low].at[0];
#pragma unroll
    for (int i = 0; i < 1 + Rule::states; i++)
        s.x[i] = (typename Rule::real *)t.segment[low].at[1 + i];
    const int behind = 2 + Rule::states;
    s.behind =
        behind < ISO_CUDA_UPDATE_ARRAYS ? t.segment[low].at[behind % ISO_CUDA_UPDATE_ARRAYS] : NULL;
    return s;
}

template <class Rule, class Halves> __global__ void update(iso__cuda_table t) {
    typedef typename Rule::real real;
    const int width = iso__pack<real>::width, arrays = 1 + Rule::states;
    share<Rule> s = share_of<Rule>(t);
    const Halves rounded(s.behind);
    bool aligned_g = iso__is_aligned(s.g), aligned[arrays];
    for (int a = 0; a < arrays; a++) aligned[a] = iso__is_aligned(s.x[a]);
    int64_t packs = s.count / width;
    for (int64_t i = s.begin; i < packs; i += s.stride) {
        iso__pack<real> g = iso__load(s.g + i * width, aligned_g), x[arrays];
#pragma unroll
        for (int a = 0; a < arrays; a++) x[a] = iso__load(s.x[a] + i * width, aligned[a]);
        rounded.take(i * width, &x[0]);
#pragma unroll
        for (int k = 0; k < width; k++) {
            real element[arrays];
            for (int a = 0; a < arrays; a++) element[a] = x[a].at[k];
            s.rule.apply(g.at[k], element);
            for (int a = 0; a < arrays; a++) x[a].at[k] = element[a];
        }
#pragma unroll
        for (int a = 0; a < arrays; a++) iso__store(s.x[a] + i * width, x[a], aligned[a]);
        rounded.put(i * width, x[0]);
    }
    int64_t last = packs * width + s.begin;
    if (last >= s.count) return;
    real element[arrays];
    for (int a = 0; a < arrays; a++) element[a] = s.x[a][last];
    rounded.take_one(last, &element[0]);
    s.rule.apply(s.g[last], element);
    for (int a = 0; a < arrays; a++) s.x[a][last] = element[a];
    rounded.put_one(last, element[0]);
}

template <class Rule, class Halves>
static iso_status add_update(iso__cuda *cuda, const Rule &rule, int64_t count,
                             void *const *arrays) {
    iso__cuda_update u = {};
    static_assert(sizeof(rule) <= sizeof(u.rule), "a rule of more numbers than a table holds");
#ifdef ISO_CUDA_EMULATED
    emulated_register(update<Rule, Halves>);
#endif
    u.kernel = (const void *)update<Rule, Halves>;
    memcpy(&u.rule, &rule, sizeof(rule));
    u.arrays = 2 + Rule::states + Halves::arrays;
    u.element = sizeof(typename Rule::real);
    u.halves = Halves::arrays > 0;
    u.segment.count = count;
    for (int i = 0; i < u.arrays; i++) u.segment.at[i] = arrays[i];
    return iso__cuda_multi_tensor_add(cuda, &u);
}

// Where a segment has room for the values, in the same launch; otherwise before and after it.
template <class Rule, bool fits> struct rounded_update {
    static iso_status run(iso__cuda *cuda, const Rule &rule, int64_t count, void *const *arrays,
                          const iso__rounded_to &to) {
        void *all[ISO_CUDA_UPDATE_ARRAYS] = {};
        for (int i = 0; i < 2 + Rule::states; i++) all[i] = arrays[i];
        all[2 + Rule::states] = to.value;
        auto add = to.dtype == ISO_F16 ? add_update<Rule, halves<iso__f16>>
                                       : add_update<Rule, halves<iso__bf16>>;
        return add(cuda, rule, count, all);
    }
};
template <class Rule> struct rounded_update<Rule, false> {
    static iso_status run(iso__cuda *cuda, const Rule &rule, int64_t count, void *const *arrays,
                          const iso__rounded_to &to) {
        float *master = (float *)arrays[1];
        iso_status status = iso__cuda_take_master(cuda, to.dtype, count, to.value, master);
        if (status >= 0) status = add_update<Rule, no_halves>(cuda, rule, count, arrays);
        if (status < 0) return status;
        return iso__cuda_convert(cuda, count, ISO_F32, master, to.dtype, to.value);
    }
};

template <class Rule>
static iso_status run_rounded(iso__cuda *cuda, const Rule &rule, int64_t count, void *const *arrays,
                              const iso__rounded_to &to, float) {
    const bool fits = 2 + Rule::states < ISO_CUDA_UPDATE_ARRAYS;
    return rounded_update<Rule, fits>::run(cuda, rule, count, arrays, to);
}
template <class Rule> // master weights are f32
static iso_status run_rounded(iso__cuda *cuda, const Rule &rule, int64_t count, void *const *arrays,
                              const iso__rounded_to &, double) {
    return add_update<Rule, no_halves>(cuda, rule, count, arrays);
}

// state: as many as the rule has, from the first on.
template <class Rule>
static iso_status run_rule(iso__cuda *cuda, const Rule &rule, const iso__rounded_to &to,
                           int64_t count, const void *g, void *p, void *state0 = NULL,
                           void *state1 = NULL, void *state2 = NULL) {
    void *const given[] = {(void *)g, p, state0, state1, state2};
    if (!to.value) return add_update<Rule, no_halves>(cuda, rule, count, given);
    return run_rounded(cuda, rule, count, given, to, (typename Rule::real)0);
}

// ---- Scale, SGD -----------------------------------------------------------------------------------

template <class Real> struct scale_rule {
    typedef Real real;
    static const int states = 0;
    Real factor;
    __device__ void apply(Real, Real *x) const { x[0] *= factor; }
};

template <class Real>
static iso_status launch_scale(iso__cuda *cuda, int64_t count, double factor, void *x) {
    scale_rule<Real> rule = {(Real)factor};
    return run_rule(cuda, rule, iso__rounded_to(), count, x, x);
}

template <class Real> struct sgd_rule {
    typedef Real real;
    static const int states = 0;
    Real lr, scale, decay;
    __device__ void apply(Real grad, Real *x) const {
        x[0] = fma(-lr, fma(decay, x[0], grad * scale), x[0]);
    }
};

// The first update with momentum copies the gradient into the momentum buffer: undampened, and
// nothing is kept of it.
template <class Real> struct momentum_rule {
    typedef Real real;
    static const int states = 1;
    Real lr, scale, decay, mu, fresh;
    int first, nesterov; // not bool, which would leave padding
    __device__ void apply(Real grad, Real *x) const {
        Real g = fma(decay, x[0], grad * scale);
        Real m = first ? fresh * g : fma(mu, x[1], fresh * g);
        x[1] = m;
        x[0] = fma(-lr, nesterov ? fma(mu, m, g) : m, x[0]);
    }
};

template <class Real>
static iso_status launch_sgd(iso__cuda *cuda, int64_t count, const iso__sgd_args *a, const void *g,
                             void *p, void *momentum) {
    Real lr = (Real)a->lr, rescale = (Real)a->scale, decay = (Real)a->weight_decay;
    sgd_rule<Real> plain = {lr, rescale, decay};
    if (!momentum) return run_rule(cuda, plain, a->to, count, g, p);
    Real fresh = a->first ? 1 : 1 - (Real)a->dampening;
    momentum_rule<Real> rule = {lr,    rescale,  decay,      (Real)a->momentum,
                                fresh, a->first, a->nesterov};
    return run_rule(cuda, rule, a->to, count, g, p, momentum);
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

// State: the moments, and the largest second moment so far.
template <class Real> struct amsgrad_rule {
    typedef Real real;
    static const int states = 3;
    adam_rule<Real> a;
    __device__ void apply(Real grad, Real *x) const {
        Real g = fma(a.l2, x[0], grad * a.scale);
        x[1] = fma(a.beta1, x[1], a.rest1 * g);
        x[2] = fma(a.beta2, x[2], a.rest2 * g * g);
        x[3] = x[3] >= x[2] ? x[3] : x[2]; // a NaN of x[2] is kept
        Real move = x[1] / (sqrt(x[3]) / a.correction + a.eps);
        x[0] = fma(a.shrink, x[0], -(a.step * move));
    }
};

template <class Real>
static iso_status launch_adam(iso__cuda *cuda, int64_t count, const iso__adam_args *a,
                              const void *g, void *p, void *m, void *v, void *most) {
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
    if (!most) return run_rule(cuda, rule, a->to, count, g, p, m, v);
    amsgrad_rule<Real> with_most = {rule};
    return run_rule(cuda, with_most, a->to, count, g, p, m, v, most);
}

template <class Real> struct nadam_rule {
    typedef Real real;
    static const int states = 2;
    Real of_gradient, of_moment, scale, decay, eps, beta1, rest1, beta2, rest2, correction;
    __device__ void apply(Real grad, Real *x) const {
        Real g = fma(decay, x[0], grad * scale);
        x[1] = fma(beta1, x[1], rest1 * g);
        x[2] = fma(beta2, x[2], rest2 * g * g);
        x[0] -= fma(of_gradient, g, of_moment * x[1]) / (sqrt(x[2] / correction) + eps);
    }
};

template <class Real>
static iso_status launch_nadam(iso__cuda *cuda, int64_t count, const iso__nadam_args *a,
                               const void *g, void *p, void *m, void *v) {
    nadam_rule<Real> rule = {(Real)a->of_gradient,  (Real)a->of_moment, (Real)a->scale,
                             (Real)a->weight_decay, (Real)a->eps,       (Real)a->beta1,
                             (Real)a->rest1,        (Real)a->beta2,     (Real)a->rest2,
                             (Real)a->correction2};
    return run_rule(cuda, rule, a->to, count, g, p, m, v);
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
        x[0] = fma(-lr, delta, x[0]);
    }
};

template <class Real>
static iso_status launch_adadelta(iso__cuda *cuda, int64_t count, const iso__adadelta_args *a,
                                  const void *g, void *p, void *square_avg, void *acc_delta) {
    adadelta_rule<Real> rule = {(Real)a->lr,  (Real)a->scale,   (Real)a->weight_decay,
                                (Real)a->rho, 1 - (Real)a->rho, (Real)a->eps};
    return run_rule(cuda, rule, a->to, count, g, p, square_avg, acc_delta);
}

template <class Real> struct adagrad_rule {
    typedef Real real;
    static const int states = 1;
    Real lr, scale, decay, eps;
    __device__ void apply(Real grad, Real *x) const {
        Real g = fma(decay, x[0], grad * scale);
        x[1] = fma(g, g, x[1]);
        x[0] = fma(-lr, g / (sqrt(x[1]) + eps), x[0]);
    }
};

template <class Real>
static iso_status launch_adagrad(iso__cuda *cuda, int64_t count, const iso__adagrad_args *a,
                                 const void *g, void *p, void *sum) {
    adagrad_rule<Real> rule = {(Real)a->lr, (Real)a->scale, (Real)a->weight_decay, (Real)a->eps};
    return run_rule(cuda, rule, a->to, count, g, p, sum);
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
        x[0] = fma(-lr, step, x[0]);
    }
};

template <class Real, bool centered, bool has_momentum>
static iso_status rmsprop_with(iso__cuda *cuda, int64_t count, const iso__rmsprop_args *a,
                               const void *g, void *p, void *square_avg, void *grad_avg,
                               void *momentum) {
    rmsprop_rule<Real, centered, has_momentum> rule = {
        (Real)a->lr,   (Real)a->scale, (Real)a->weight_decay, (Real)a->alpha,
        (Real)a->rest, (Real)a->eps,   (Real)a->momentum};
    return run_rule(cuda, rule, a->to, count, g, p, square_avg, centered ? grad_avg : momentum,
                    momentum);
}

template <class Real>
static iso_status launch_rmsprop(iso__cuda *cuda, int64_t count, const iso__rmsprop_args *a,
                                 const void *g, void *p, void *square_avg, void *grad_avg,
                                 void *momentum) {
    if (grad_avg && momentum)
        return rmsprop_with<Real, true, true>(cuda, count, a, g, p, square_avg, grad_avg, momentum);
    if (grad_avg)
        return rmsprop_with<Real, true, false>(cuda, count, a, g, p, square_avg, grad_avg, NULL);
    if (momentum)
        return rmsprop_with<Real, false, true>(cuda, count, a, g, p, square_avg, NULL, momentum);
    return rmsprop_with<Real, false, false>(cuda, count, a, g, p, square_avg, NULL, NULL);
}

// ---- By element type -------------------------------------------------------------------------------

#define BY_TYPE(rule, ...)                                                                         \
    return dtype == ISO_F64 ? rule<double>(cuda, count, __VA_ARGS__)                               \
                            : rule<float>(cuda, count, __VA_ARGS__)

iso_status iso__cuda_scale(iso__cuda *cuda, iso_dtype dtype, int64_t count, double factor,
                           void *x) {
    BY_TYPE(launch_scale, factor, x);
}
iso_status iso__cuda_sgd(iso__cuda *cuda, iso_dtype dtype, int64_t count, const iso__sgd_args *args,
                         const void *g, void *p, void *momentum) {
    BY_TYPE(launch_sgd, args, g, p, momentum);
}
iso_status iso__cuda_adam(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                          const iso__adam_args *args, const void *g, void *p, void *m, void *v,
                          void *most) {
    BY_TYPE(launch_adam, args, g, p, m, v, most);
}
iso_status iso__cuda_nadam(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                           const iso__nadam_args *args, const void *g, void *p, void *m, void *v) {
    BY_TYPE(launch_nadam, args, g, p, m, v);
}
iso_status iso__cuda_adadelta(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                              const iso__adadelta_args *args, const void *g, void *p,
                              void *square_avg, void *acc_delta) {
    BY_TYPE(launch_adadelta, args, g, p, square_avg, acc_delta);
}
iso_status iso__cuda_adagrad(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                             const iso__adagrad_args *args, const void *g, void *p, void *sum) {
    BY_TYPE(launch_adagrad, args, g, p, sum);
}
iso_status iso__cuda_rmsprop(iso__cuda *cuda, iso_dtype dtype, int64_t count,
                             const iso__rmsprop_args *args, const void *g, void *p,
                             void *square_avg, void *grad_avg, void *momentum) {
    BY_TYPE(launch_rmsprop, args, g, p, square_avg, grad_avg, momentum);
}
