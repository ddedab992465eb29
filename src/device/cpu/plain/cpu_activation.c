// SPDX-License-Identifier: MIT
// Functions of one element such as tanh and gelu, softmax, and sums with a relu. f32 uses
// polynomials that vectorise, with errors of at most 2 units in the last place for exp, tanh and
// sigmoid; f64 uses the functions of libm.
#include "device/cpu/plain/cpu_real.h"

#include <string.h>

#define INLINE  static inline __attribute__((always_inline))
#define IN_LOOP ISO_CPU_IVDEP // what is written may be what is read at the same index

// ---- Functions ----------------------------------------------------------------------------------

#ifdef ISO_CPU_F64

INLINE real exp_of(real x) { return exp(x); }
INLINE real expm1_of(real x) { return expm1(x); }
INLINE real tanh_of(real x) { return tanh(x); }
// Of the normal distribution: the function, and its density.
INLINE void normal(real x, real *below, real *density) {
    *below = 0.5 * erfc(x * -0.70710678118654752440);
    *density = 0.39894228040143267794 * exp(-0.5 * x * x);
}

#else

// Coefficients: minimax fits of relative error (Lawson's iteration), at most 5e-9.

// x = n log(2) + r, exp(x) = 2^n (1 + r + r^2 q(r)). Ends at about 1e-38 and 1e38. Adding 1.5 *
// 2^23 rounds to n, which is then in the low bits of the sum. Returns r + r^2 q(r), and *power is
// 2^n.
INLINE real split_exp(real x, real *power) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x; // a NaN stays one
    const float shifter = 12582912.0f;
    float shifted = x * 1.44269504f + shifter, n = shifted - shifter;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float q = 0.49999994f +
              r * (0.16666521f + r * (0.041668389f + r * (0.0083687156f + r * 0.0013814600f)));
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 127u) << 23;
    memcpy(power, &bits, sizeof(*power));
    return r + r * r * q;
}

INLINE real exp_of(real x) {
    float power, rest = split_exp(x, &power);
    return (1.0f + rest) * power;
}

INLINE real expm1_of(real x) {
    float power, rest = split_exp(x, &power);
    return (power - 1.0f) + power * rest; // power is 1 near zero, so nothing cancels
}

// Near zero the difference of exponentials would cancel.
INLINE real tanh_of(real x) {
    float a = x < 0 ? -x : x, u = x * x;
    float small =
        x + x * u *
                (-0.33333281f +
                 u * (0.13331442f + u * (-0.053739712f + u * (0.020639079f + u * -0.0057049785f))));
    float big = 1.0f - 2.0f / (exp_of(2.0f * a) + 1.0f);
    return a < 0.625f ? small : x < 0 ? -big : big;
}

// The smaller tail is exp(-x^2 / 2) / 2 times a polynomial in 1 / (1 + |x| / 4) without constant
// term, so it is exact far out too.
INLINE void normal(real x, real *below, real *density) {
    float a = x < 0 ? -x : x, t = 1.0f / (1.0f + 0.25f * a), e = exp_of(-0.5f * x * x);
    float p = -0.42501971f + t * 0.074312224f;
    p = -0.74855691f + t * (0.86011153f + t * p);
    p = 0.24482147f + t * (-0.059952501f + t * (0.66342109f + t * p));
    p = 0.20003872f + t * (0.19082415f + t * p);
    float tail = 0.5f * e * (t * p);
    *below = x < 0 ? tail : 1.0f - tail;
    *density = 0.39894228f * e;
}

#endif

INLINE real sigmoid_of(real x) { return 1 / (1 + exp_of(-x)); }

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): nothing cancels.
#define TWICE_ROOT ((real)1.59576912160573071176)
#define CUBIC      ((real)0.044715)
INLINE real gelu_tanh_argument(real x) { return TWICE_ROOT * (x + CUBIC * x * x * x); }

// ---- Loops --------------------------------------------------------------------------------------

ISO_CPU_CLONES static void forward(iso__unary function, real alpha, int64_t count, const real *x,
                                   real *y) {
    real below, density;
    switch (function) {
    case ISO__TANH: IN_LOOP for (int64_t i = 0; i < count; i++) y[i] = tanh_of(x[i]); return;
    case ISO__SIGMOID: IN_LOOP for (int64_t i = 0; i < count; i++) y[i] = sigmoid_of(x[i]); return;
    case ISO__GELU:
        IN_LOOP for (int64_t i = 0; i < count; i++) {
            normal(x[i], &below, &density);
            y[i] = x[i] * below;
        }
        return;
    case ISO__GELU_TANH:
        IN_LOOP for (int64_t i = 0; i < count; i++) y[i] =
            x[i] * sigmoid_of(gelu_tanh_argument(x[i]));
        return;
    case ISO__SILU:
        IN_LOOP for (int64_t i = 0; i < count; i++) y[i] = x[i] * sigmoid_of(x[i]);
        return;
    case ISO__LEAKY_RELU:
        IN_LOOP for (int64_t i = 0; i < count; i++) y[i] = x[i] > 0 ? x[i] : alpha * x[i];
        return;
    case ISO__ELU:
        IN_LOOP for (int64_t i = 0; i < count; i++) y[i] = x[i] > 0 ? x[i] : alpha * expm1_of(x[i]);
    }
}

INLINE real gelu_slope(real x) {
    real below, density;
    normal(x, &below, &density);
    return below + x * density;
}

INLINE real gelu_tanh_slope(real given) {
    // From there on it is 0 or 1, and the square of x may not be finite.
    real x = given > 100 ? 100 : given < -100 ? -100 : given;
    // more and less are the sigmoids of |a| and -|a|. They add up to 1, and nothing cancels.
    real a = gelu_tanh_argument(x), e = exp_of(a < 0 ? a : -a), more = 1 / (1 + e), less = e * more;
    real s = a < 0 ? less : more;
    return s + x * (less * more) * TWICE_ROOT * (1 + 3 * CUBIC * x * x);
}

INLINE real silu_slope(real x) {
    real s = sigmoid_of(x);
    return s * (1 + x * (1 - s));
}

ISO_CPU_CLONES static void backward(iso__unary function, real alpha, int64_t count,
                                    const real *saved, const real *dy, real *dx) {
    switch (function) {
    case ISO__TANH:
        IN_LOOP for (int64_t i = 0; i < count; i++) dx[i] = dy[i] * (1 - saved[i] * saved[i]);
        return;
    case ISO__SIGMOID:
        IN_LOOP for (int64_t i = 0; i < count; i++) dx[i] = dy[i] * saved[i] * (1 - saved[i]);
        return;
    case ISO__GELU:
        IN_LOOP for (int64_t i = 0; i < count; i++) dx[i] = dy[i] * gelu_slope(saved[i]);
        return;
    case ISO__GELU_TANH:
        IN_LOOP for (int64_t i = 0; i < count; i++) dx[i] = dy[i] * gelu_tanh_slope(saved[i]);
        return;
    case ISO__SILU:
        IN_LOOP for (int64_t i = 0; i < count; i++) dx[i] = dy[i] * silu_slope(saved[i]);
        return;
    case ISO__LEAKY_RELU:
        IN_LOOP for (int64_t i = 0; i < count; i++) dx[i] = dy[i] * (saved[i] > 0 ? 1 : alpha);
        return;
    case ISO__ELU:
        IN_LOOP for (int64_t i = 0; i < count; i++) dx[i] =
            dy[i] * (saved[i] > 0 ? 1 : alpha * exp_of(saved[i]));
    }
}

// ---- Element by element -------------------------------------------------------------------------

// Channels that only fill a block stay zero.
static void clear_padding(const iso__cpu_view *v, real *y) {
    int64_t filled = v->channels % v->inner, plane = v->height * v->width;
    for (int64_t n = 0; filled && n < v->rows; n++) {
        real *cell = y + ((n + 1) * v->groups - 1) * plane * v->inner;
        for (int64_t i = 0; i < plane; i++, cell += v->inner)
            for (int64_t c = filled; c < v->inner; c++) cell[c] = 0;
    }
}

static iso_status unary_forward(iso_device *self, iso__unary function, double alpha,
                                const iso_tensor *x, iso_tensor *y) {
    iso__cpu_view v = iso__cpu_view_of(iso__cpu_of(self), x);
    forward(function, (real)alpha, v.total, x->data, y->data);
    if (function == ISO__SIGMOID) clear_padding(&v, y->data); // the others give 0 for 0
    return ISO_OK;
}

static iso_status unary_backward(iso_device *self, iso__unary function, double alpha,
                                 const iso_tensor *saved, const iso_tensor *dy, iso_tensor *dx) {
    int64_t count = iso__cpu_view_of(iso__cpu_of(self), saved).total;
    backward(function, (real)alpha, count, saved->data, dy->data, dx->data);
    return ISO_OK;
}

ISO_CPU_CLONES static void add_all(bool relu, int64_t count, const real *a, const real *b,
                                   real *y) {
    if (relu) {
        IN_LOOP for (int64_t i = 0; i < count; i++) {
            real sum = a[i] + b[i];
            y[i] = sum < 0 ? 0 : sum; // a NaN stays one
        }
    } else {
        IN_LOOP for (int64_t i = 0; i < count; i++) y[i] = a[i] + b[i];
    }
}

static iso_status add_elements(iso_device *self, const iso_tensor *a, const iso_tensor *b,
                               iso_activation act, iso_tensor *y) {
    int64_t count = iso__cpu_view_of(iso__cpu_of(self), a).total;
    add_all(act == ISO_ACT_RELU, count, a->data, b->data, y->data);
    return ISO_OK;
}

ISO_CPU_CLONES static void mask_twice(int64_t count, const real *restrict y, real *restrict dy,
                                      real *restrict copy) {
    for (int64_t i = 0; i < count; i++) dy[i] = copy[i] = y[i] > 0 ? dy[i] : 0;
}

static iso_status relu_backward_copy(iso_device *self, const iso_tensor *y, iso_tensor *dy,
                                     iso_tensor *copy) {
    mask_twice(iso__cpu_view_of(iso__cpu_of(self), y).total, y->data, dy->data, copy->data);
    return ISO_OK;
}

// ---- Softmax over rows --------------------------------------------------------------------------

ISO_CPU_CLONES static void softmax_row(int64_t k, const real *restrict x, real *restrict y) {
    real top = x[0];
    for (int64_t i = 1; i < k; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < k; i++) y[i] = exp_of(x[i] - top);
    double sum = 0;
    for (int64_t i = 0; i < k; i++) sum += (double)y[i];
    real part = (real)(1 / sum);
    for (int64_t i = 0; i < k; i++) y[i] *= part;
}

static iso_status softmax_forward(iso_device *self, const iso_tensor *x, iso_tensor *y) {
    (void)self;
    int64_t k = x->shape[x->ndim - 1];
    for (int64_t n = 0; n < x->count / k; n++)
        softmax_row(k, (const real *)x->data + n * k, (real *)y->data + n * k);
    return ISO_OK;
}

// dx = y (dy - sum(dy y)).
static iso_status softmax_backward(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                   iso_tensor *dx) {
    (void)self;
    int64_t k = y->shape[y->ndim - 1];
    for (int64_t n = 0; n < y->count / k; n++) {
        const real *out = (const real *)y->data + n * k, *g = (const real *)dy->data + n * k;
        real *to = (real *)dx->data + n * k;
        double sum = 0;
        for (int64_t i = 0; i < k; i++) sum += (double)g[i] * (double)out[i];
        for (int64_t i = 0; i < k; i++) to[i] = out[i] * (real)((double)g[i] - sum);
    }
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_activation)(iso_kernel_ops *ops) {
    ops->unary_forward = unary_forward;
    ops->unary_backward = unary_backward;
    ops->add = add_elements;
    ops->relu_backward_copy = relu_backward_copy;
    ops->softmax_forward = softmax_forward;
    ops->softmax_backward = softmax_backward;
}
