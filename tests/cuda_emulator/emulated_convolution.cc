// SPDX-License-Identifier: MIT
// The sums of the emulated cuDNN's convolutions, and which algorithm can do which of them.
//
// All algorithms sum directly, in f32 or f64, in logical order. They differ in what the guide's
// tables of supported algorithms say: shapes, types, workspace, and whether the order of their sums
// is fixed.
#pragma GCC optimize("O3") // the inner loops have to be vectorised
#include "emulated_convolution.h"

#include <algorithm>

#include "emulated_types.h"

namespace emulated {

// ---- Algorithms ----

enum class Kind { gemm, precomputed, undilated, fft, tiles, winograd, nonfused, none };

// By their numbers in cudnn.h.
static const std::vector<Kind> kinds[] = {
    {Kind::gemm, Kind::precomputed, Kind::undilated, Kind::none, Kind::fft, Kind::tiles,
     Kind::winograd, Kind::nonfused},
    {Kind::gemm, Kind::precomputed, Kind::fft, Kind::undilated, Kind::none, Kind::nonfused,
     Kind::tiles},
    {Kind::gemm, Kind::precomputed, Kind::fft, Kind::tiles, Kind::winograd, Kind::nonfused}};

static const std::vector<Kind> &kinds_of(Direction d) { return kinds[static_cast<int>(d)]; }

bool is_deterministic(Direction d, int algorithm) {
    if (d == Direction::forward) return true;
    return algorithm != 0 && !(d == Direction::filter && algorithm == 3);
}

static bool is_square(const Convolution &c, int side) { return c.r == side && c.s == side; }

static bool is_plain(const Convolution &c) {
    return c.stride[0] == 1 && c.stride[1] == 1 && c.dilation[0] == 1 && c.dilation[1] == 1;
}

// Channels last: whole packs of 16 bytes, and two algorithms.
static bool can_do_last(const Convolution &c, Kind kind) {
    int pack = c.type == CUDNN_DATA_BFLOAT16 ? 8 : 4;
    if (c.f64 || c.c / c.groups % pack != 0 || c.k / c.groups % pack != 0) return false;
    return kind == Kind::gemm || kind == Kind::precomputed;
}

static bool can_do(const Convolution &c, Kind kind) {
    bool low = c.type == CUDNN_DATA_BFLOAT16;
    if (low && c.math == CUDNN_FMA_MATH) return false; // for tensor cores alone
    if (c.last && !can_do_last(c, kind)) return false;
    if (low && (kind == Kind::fft || kind == Kind::tiles || kind == Kind::winograd)) return false;
    bool narrow_padding = c.r > c.padding[0] && c.s > c.padding[1];
    switch (kind) {
    case Kind::gemm: return true;
    case Kind::precomputed:
    case Kind::undilated: return c.dilation[0] == 1 && c.dilation[1] == 1;
    case Kind::fft:
        return !c.f64 && is_plain(c) && narrow_padding && c.h + 2 * c.padding[0] <= 256 &&
               c.w + 2 * c.padding[1] <= 256;
    case Kind::tiles:
        return is_plain(c) && narrow_padding && c.r <= 32 && c.s <= 32 &&
               (!c.f64 || c.r == 1 || c.s == 1);
    case Kind::winograd: return !c.f64 && is_plain(c) && is_square(c, 3);
    case Kind::nonfused: return !c.f64 && is_plain(c) && (is_square(c, 3) || is_square(c, 5));
    case Kind::none: break;
    }
    return false;
}

static size_t workspace_of(const Convolution &c, Kind kind) {
    size_t taps = static_cast<size_t>(c.c / c.groups) * static_cast<size_t>(c.r * c.s);
    size_t planes = static_cast<size_t>(c.n) * static_cast<size_t>(c.c) +
                    static_cast<size_t>(c.k) * static_cast<size_t>(c.c) +
                    static_cast<size_t>(c.n) * static_cast<size_t>(c.k);
    switch (kind) {
    case Kind::precomputed: return taps * sizeof(int) + 8;
    case Kind::undilated: return taps * static_cast<size_t>(c.oh * c.ow) * (c.f64 ? 8 : 4);
    case Kind::fft: return planes * 256 * 256 * 8;
    case Kind::tiles: return planes * 32 * 32 * 8;
    case Kind::nonfused: return planes * 64;
    default: return 0;
    }
}

bool algorithm_can_do(const Convolution &c, int algorithm, size_t *workspace) {
    const std::vector<Kind> &all = kinds_of(c.direction);
    if (algorithm < 0 || static_cast<size_t>(algorithm) >= all.size()) return false;
    Kind kind = all[static_cast<size_t>(algorithm)];
    *workspace = workspace_of(c, kind);
    return can_do(c, kind);
}

bool algorithm_fuses(int algorithm) {
    Kind kind = kinds_of(Direction::forward)[static_cast<size_t>(algorithm)];
    return kind == Kind::gemm || kind == Kind::precomputed || kind == Kind::winograd;
}

bool algorithm_needs_16(const Convolution &c, int algorithm) {
    Kind kind = kinds_of(c.direction)[static_cast<size_t>(algorithm)];
    return c.last || (c.direction == Direction::forward && kind == Kind::winograd);
}

// Transforms pay for large filters; otherwise the quickest sums come in any order.
static std::vector<Kind> ranking(const Convolution &c) {
    std::vector<Kind> order = {Kind::winograd,  Kind::nonfused, Kind::gemm, Kind::precomputed,
                               Kind::undilated, Kind::tiles,    Kind::fft,  Kind::none};
    if (c.direction == Direction::forward) std::swap(order[2], order[3]);
    if (c.r >= 7 && c.s >= 7) std::rotate(order.begin(), order.end() - 2, order.end() - 1);
    return order;
}

std::vector<Candidate> candidates(const Convolution &c) {
    std::vector<Candidate> good, bad;
    const std::vector<Kind> &all = kinds_of(c.direction);
    bool cores = c.math != CUDNN_FMA_MATH && !c.f64;
    for (Kind kind : ranking(c))
        for (size_t i = 0; i < all.size(); ++i) {
            if (all[i] != kind) continue;
            int algorithm = static_cast<int>(i);
            bool plain = c.type == CUDNN_DATA_BFLOAT16 && kind != Kind::precomputed;
            Candidate one = {algorithm, can_do(c, kind), is_deterministic(c.direction, algorithm),
                             workspace_of(c, kind), plain ? CUDNN_DEFAULT_MATH : c.math};
            // The same algorithm on tensor cores, and without.
            if (cores && one.supported && kind == Kind::precomputed) {
                one.math = CUDNN_TENSOR_OP_MATH;
                good.push_back(one);
                one.math = CUDNN_DEFAULT_MATH;
            }
            (one.supported ? good : bad).push_back(one);
        }
    good.insert(good.end(), bad.begin(), bad.end());
    return good;
}

// ---- Sums ----

// Factors are rounded as tensor cores do it.
static float narrow(float x, cudnnMathType_t math) {
    if (math == CUDNN_FMA_MATH) return x;
    if (math != CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION) return from_bits(round_bits(x, 13));
    f16 half;
    store(&half, x);
    return load(half);
}
static double narrow(double x, cudnnMathType_t) { return x; }

// How an array lies in memory: [outer, channels, plane], or with its channels last.
struct Arrangement {
    size_t outer, channels, plane;
    bool last;
    size_t count() const { return outer * channels * plane; }
    size_t at(size_t i) const { // in memory, of element i of logical order
        if (!last) return i;
        size_t p = i % plane, ch = i / plane % channels, n = i / plane / channels;
        return (n * plane + p) * channels + ch;
    }
};
static Arrangement arranged(int outer, int channels, int plane, bool last) {
    return Arrangement{static_cast<size_t>(outer), static_cast<size_t>(channels),
                       static_cast<size_t>(plane), last};
}
static Arrangement arranged_x(const Convolution &c) {
    return arranged(c.n, c.c, c.h * c.w, c.last);
}
static Arrangement arranged_y(const Convolution &c) {
    return arranged(c.n, c.k, c.oh * c.ow, c.last);
}
static Arrangement arranged_w(const Convolution &c) {
    return arranged(c.k, c.c / c.groups, c.r * c.s, c.last);
}

// Sums are of T, memory is of S.
template <class T, class S>
static std::vector<T> factors(const void *from, const Arrangement &order, const Convolution &c) {
    const S *p = static_cast<const S *>(real(from));
    std::vector<T> out(order.count());
    for (size_t i = 0; i < out.size(); ++i) out[i] = narrow(load(p[order.at(i)]), c.math);
    return out;
}

// A tap of the filter on a row: columns first .. end of y, and where x lies under the first.
struct Row {
    int first, end, at;
};
static Row row_of(const Convolution &c, int tap) {
    int offset = (c.flipped ? c.s - 1 - tap : tap) * c.dilation[1] - c.padding[1];
    int step = c.stride[1];
    int first = offset < 0 ? (-offset + step - 1) / step : 0;
    int end = c.w - 1 - offset < 0 ? 0 : (c.w - 1 - offset) / step + 1;
    return Row{first, std::min(end, c.ow), first * step + offset};
}
// The row of x under row oh of y, or -1.
static int line_of(const Convolution &c, int oh, int tap) {
    int at = oh * c.stride[0] - c.padding[0] + (c.flipped ? c.r - 1 - tap : tap) * c.dilation[0];
    return at < c.h ? std::max(at, -1) : -1;
}

// In eight lanes, so that it can be vectorised.
template <class T> static T dot(const T *a, const T *b, int count, int step) {
    T lane[8] = {0, 0, 0, 0, 0, 0, 0, 0}, sum = 0;
    int i = 0;
    if (step == 1)
        for (; i + 8 <= count; i += 8)
            for (int j = 0; j < 8; ++j) lane[j] += a[i + j] * b[i + j];
    for (; i < count; ++i) sum += a[i] * b[i * step];
    for (T x : lane) sum += x;
    return sum;
}

// What the three directions share: calls `visit(x row, weight, y row, count)` for all pairs of a
// plane of x and a plane of y, tap by tap, rows of y beginning at `start`.
template <class Visit> static void walk(const Convolution &c, int start, const Visit &visit) {
    for (int r = 0; r < c.r; ++r)
        for (int s = 0; s < c.s; ++s) {
            Row row = row_of(c, s);
            for (int i = 0; i < c.oh && row.first < row.end; ++i) {
                int oh = (i + start) % c.oh, line = line_of(c, oh, r);
                if (line >= 0)
                    visit(line * c.w + row.at, r * c.s + s, oh * c.ow + row.first,
                          row.end - row.first);
            }
        }
}

template <class T> struct Sums {
    const Convolution &c;
    std::vector<T> x, w, y;
    unsigned start; // of sums in no fixed order

    size_t channel(int k, int i) const { // of x, that channel i of the filters k looks at
        return static_cast<size_t>(k / (c.k / c.groups)) * static_cast<size_t>(c.c / c.groups) +
               static_cast<size_t>(i);
    }
    T *plane_x(int n, size_t channel) {
        return x.data() + (static_cast<size_t>(n) * static_cast<size_t>(c.c) + channel) *
                              static_cast<size_t>(c.h * c.w);
    }
    T *plane_y(int n, int k) {
        return y.data() +
               (static_cast<size_t>(n) * static_cast<size_t>(c.k) + static_cast<size_t>(k)) *
                   static_cast<size_t>(c.oh * c.ow);
    }
    T *taps(int k, int i) {
        return w.data() + (static_cast<size_t>(k) * static_cast<size_t>(c.c / c.groups) +
                           static_cast<size_t>(i)) *
                              static_cast<size_t>(c.r * c.s);
    }
    void pair(T *px, T *pw, T *py) {
        int step = c.stride[1];
        auto forward = [=](int ix, int iw, int iy, int count) {
            T factor = pw[iw];
            const T *from = px + ix;
            T *to = py + iy;
            if (step == 1)
                for (int i = 0; i < count; ++i) to[i] += factor * from[i];
            else
                for (int i = 0; i < count; ++i) to[i] += factor * from[i * step];
        };
        auto filter = [=](int ix, int iw, int iy, int count) {
            pw[iw] += dot(py + iy, px + ix, count, step);
        };
        auto input = [=](int ix, int iw, int iy, int count) {
            T factor = pw[iw], *to = px + ix;
            const T *from = py + iy;
            if (step == 1)
                for (int i = 0; i < count; ++i) to[i] += factor * from[i];
            else
                for (int i = 0; i < count; ++i) to[i * step] += factor * from[i];
        };
        int first = c.direction == Direction::filter
                        ? static_cast<int>(start % static_cast<unsigned>(c.oh))
                        : 0;
        if (c.direction == Direction::forward) walk(c, first, forward);
        if (c.direction == Direction::filter) walk(c, first, filter);
        if (c.direction == Direction::input) walk(c, first, input);
    }
    void run() {
        for (int i = 0; i < c.n; ++i)
            for (int j = 0; j < c.k; ++j) {
                int n = static_cast<int>((static_cast<unsigned>(i) + start) %
                                         static_cast<unsigned>(c.n));
                int k = static_cast<int>((static_cast<unsigned>(j) + start) %
                                         static_cast<unsigned>(c.k));
                for (int ch = 0; ch < c.c / c.groups; ++ch)
                    pair(plane_x(n, channel(k, ch)), taps(k, ch), plane_y(n, k));
            }
    }
};

// ---- Results ----

template <class T, class S>
static void put(const ConvolutionRun &run, const std::vector<T> &sums, const Arrangement &order,
                const void *to) {
    S *out = static_cast<S *>(const_cast<void *>(real(to)));
    const S *added = static_cast<const S *>(real(run.added));
    const S *bias = static_cast<const S *>(real(run.bias));
    T alpha = static_cast<T>(run.alpha), beta = static_cast<T>(run.beta);
    for (size_t i = 0; i < sums.size(); ++i) {
        size_t at = order.at(i);
        T value = alpha * sums[i];
        if (beta != 0) value += beta * load(added[at]);
        if (bias != nullptr) value += load(bias[i / order.plane % order.channels]);
        store(&out[at], run.relu && !(value > 0) ? T(0) : value);
    }
}

template <class T, class S> static void run_typed(const ConvolutionRun &run) {
    const Convolution &c = run.conv;
    Arrangement x = arranged_x(c), w = arranged_w(c), y = arranged_y(c);
    Direction d = c.direction;
    Sums<T> sums{c, d == Direction::input ? std::vector<T>(x.count()) : factors<T, S>(run.x, x, c),
                 d == Direction::filter ? std::vector<T>(w.count()) : factors<T, S>(run.w, w, c),
                 d == Direction::forward ? std::vector<T>(y.count()) : factors<T, S>(run.y, y, c),
                 run.deterministic ? 0 : executor_random() % 1024};
    sums.run();
    if (d == Direction::forward) put<T, S>(run, sums.y, y, run.y);
    if (d == Direction::filter) put<T, S>(run, sums.w, w, run.w);
    if (d == Direction::input) put<T, S>(run, sums.x, x, run.x);
}

void run_convolution(const ConvolutionRun &run) {
    if (run.conv.f64)
        run_typed<double, double>(run);
    else if (run.conv.type == CUDNN_DATA_BFLOAT16)
        run_typed<float, bf16>(run);
    else
        run_typed<float, float>(run);
}

} // namespace emulated
