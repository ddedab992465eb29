// SPDX-License-Identifier: MIT
// The naive double-precision reference of pooling.
#include "common/oracle.h"

int64_t oracle_pool_height(const oracle_pool *p) {
    return (p->height + 2 * p->padding[0] - p->kernel[0]) / p->stride[0] + 1;
}
int64_t oracle_pool_width(const oracle_pool *p) {
    return (p->width + 2 * p->padding[1] - p->kernel[1]) / p->stride[1] + 1;
}

// The index into x of tap k of window `o`, which is counted over all planes; -1 in the padding.
static int64_t tap(const oracle_pool *p, int64_t o, int64_t k) {
    int64_t out_width = oracle_pool_width(p), out_plane = oracle_pool_height(p) * out_width;
    int64_t y = o % out_plane / out_width * p->stride[0] - p->padding[0] + k / p->kernel[1];
    int64_t x = o % out_width * p->stride[1] - p->padding[1] + k % p->kernel[1];
    if (y < 0 || x < 0 || y >= p->height || x >= p->width) return -1;
    return (o / out_plane * p->height + y) * p->width + x;
}

static int64_t outputs(const oracle_pool *p) {
    return p->planes * oracle_pool_height(p) * oracle_pool_width(p);
}

void oracle_max_pool(const oracle_pool *p, const double *x, double *y, int64_t *winner) {
    for (int64_t i = 0; i < outputs(p); i++) {
        winner[i] = -1;
        for (int64_t k = 0; k < p->kernel[0] * p->kernel[1]; k++) {
            int64_t at = tap(p, i, k);
            if (at >= 0 && (winner[i] < 0 || x[at] > x[winner[i]])) winner[i] = at;
        }
        y[i] = x[winner[i]];
    }
}

void oracle_avg_pool(const oracle_pool *p, const double *x, double *y) {
    int64_t size = p->kernel[0] * p->kernel[1];
    for (int64_t i = 0; i < outputs(p); i++) {
        y[i] = 0;
        for (int64_t k = 0; k < size; k++)
            if (tap(p, i, k) >= 0) y[i] += x[tap(p, i, k)] / (double)size;
    }
}

void oracle_avg_pool_backward(const oracle_pool *p, const double *dy, double *dx) {
    int64_t size = p->kernel[0] * p->kernel[1];
    for (int64_t i = 0; i < outputs(p); i++)
        for (int64_t k = 0; k < size; k++)
            if (tap(p, i, k) >= 0) dx[tap(p, i, k)] += dy[i] / (double)size;
}

// ---- Adaptive -----------------------------------------------------------------------------------

// Whether row (column) `i` of `in` belongs to row (column) `o` of `out`: the two overlap when both
// are stretched to the same length.
static bool belongs(int64_t i, int64_t in, int64_t o, int64_t out) {
    return i * out < (o + 1) * in && (i + 1) * out > o * in;
}

// Whether pixel i of a plane goes into output o, which is counted over all planes.
static bool pixel_belongs(const oracle_pool *p, const int64_t out[2], int64_t i, int64_t o) {
    return belongs(i / p->width, p->height, o % (out[0] * out[1]) / out[1], out[0]) &&
           belongs(i % p->width, p->width, o % out[1], out[1]);
}

static int64_t window_size(const oracle_pool *p, const int64_t out[2], int64_t o) {
    int64_t size = 0;
    for (int64_t i = 0; i < p->height * p->width; i++) size += pixel_belongs(p, out, i, o);
    return size;
}

void oracle_adaptive_avg_pool(const oracle_pool *p, const int64_t out[2], const double *x,
                              double *y) {
    int64_t plane = p->height * p->width, out_plane = out[0] * out[1];
    for (int64_t o = 0; o < p->planes * out_plane; o++) {
        y[o] = 0;
        for (int64_t i = 0; i < plane; i++)
            if (pixel_belongs(p, out, i, o)) y[o] += x[o / out_plane * plane + i];
        y[o] /= (double)window_size(p, out, o);
    }
}

void oracle_adaptive_avg_pool_backward(const oracle_pool *p, const int64_t out[2], const double *dy,
                                       double *dx) {
    int64_t plane = p->height * p->width, out_plane = out[0] * out[1];
    for (int64_t o = 0; o < p->planes * out_plane; o++)
        for (int64_t i = 0; i < plane; i++)
            if (pixel_belongs(p, out, i, o))
                dx[o / out_plane * plane + i] += dy[o] / (double)window_size(p, out, o);
}
