// SPDX-License-Identifier: MIT
// Average pooling in either layout: over windows of a given size, or adaptive, over windows for an
// output of the given size.
#include "device/cpu/plain/cpu_real.h"

#include <string.h>

#define MAX_INNER 16

// Where the windows of one axis lie.
typedef struct axis {
    bool adaptive;
    int64_t kernel, stride, padding; // not adaptive
    int64_t in, out;
} axis;

typedef struct span {
    int64_t first, end;
} span;

typedef struct pool {
    axis y, x;
} pool;

// The part of window `o` inside the image.
static span span_of(const axis *a, int64_t o) {
    if (a->adaptive) return (span){o * a->in / a->out, ((o + 1) * a->in + a->out - 1) / a->out};
    int64_t start = o * a->stride - a->padding, end = start + a->kernel;
    return (span){start < 0 ? 0 : start, end > a->in ? a->in : end};
}

// The number of elements of a window; padding counts.
static real size_of(const pool *p, span rows, span columns) {
    if (p->y.adaptive) return (real)((rows.end - rows.first) * (columns.end - columns.first));
    return (real)(p->y.kernel * p->x.kernel);
}

// config NULL: adaptive.
static pool pool_of(const iso_pool2d_config *c, const iso__cpu_view *in, const iso__cpu_view *out) {
    pool p = {.y = {.adaptive = !c, .in = in->height, .out = out->height},
              .x = {.adaptive = !c, .in = in->width, .out = out->width}};
    if (!c) return p;
    p.y.kernel = c->kernel_size[0], p.x.kernel = c->kernel_size[1];
    p.y.stride = c->stride[0], p.x.stride = c->stride[1];
    p.y.padding = c->padding[0], p.x.padding = c->padding[1];
    return p;
}

// Loops over the channels of a cell, a constant number. The loop should vectorise, not unroll.
#define EACH_CHANNEL _Pragma("GCC unroll 1") for (int c = 0; c < inner; c++)
#define INLINE       static inline __attribute__((always_inline))

INLINE void forward_window(const pool *p, const int inner, span rows, span columns,
                           const real *restrict plane, real *restrict y) {
    real sum[MAX_INNER], size = size_of(p, rows, columns);
    EACH_CHANNEL sum[c] = 0;
    for (int64_t i = rows.first; i < rows.end; i++)
        for (int64_t j = columns.first; j < columns.end; j++) {
            const real *at = plane + (i * p->x.in + j) * inner;
            EACH_CHANNEL sum[c] += at[c];
        }
    EACH_CHANNEL y[c] = sum[c] / size;
}

INLINE void backward_window(const pool *p, const int inner, span rows, span columns,
                            const real *restrict dy, real *restrict plane) {
    real share[MAX_INNER], size = size_of(p, rows, columns);
    EACH_CHANNEL share[c] = dy[c] / size;
    for (int64_t i = rows.first; i < rows.end; i++)
        for (int64_t j = columns.first; j < columns.end; j++) {
            real *at = plane + (i * p->x.in + j) * inner;
            EACH_CHANNEL at[c] += share[c];
        }
}

INLINE void forward_plane(const pool *p, const int inner, const real *x, real *y) {
    for (int64_t oy = 0; oy < p->y.out; oy++)
        for (int64_t ox = 0; ox < p->x.out; ox++, y += inner)
            forward_window(p, inner, span_of(&p->y, oy), span_of(&p->x, ox), x, y);
}

INLINE void backward_plane(const pool *p, const int inner, const real *dy, real *dx) {
    for (int64_t oy = 0; oy < p->y.out; oy++)
        for (int64_t ox = 0; ox < p->x.out; ox++, dy += inner)
            backward_window(p, inner, span_of(&p->y, oy), span_of(&p->x, ox), dy, dx);
}

ISO_CPU_CLONES static void forward_any(const pool *p, int64_t inner, const real *x, real *y) {
    if (inner == 16)
        forward_plane(p, 16, x, y);
    else if (inner == 8)
        forward_plane(p, 8, x, y);
    else
        forward_plane(p, 1, x, y);
}

ISO_CPU_CLONES static void backward_any(const pool *p, int64_t inner, const real *dy, real *dx) {
    if (inner == 16)
        backward_plane(p, 16, dy, dx);
    else if (inner == 8)
        backward_plane(p, 8, dy, dx);
    else
        backward_plane(p, 1, dy, dx);
}

static iso_status avg_pool2d_forward(iso_device *self, const iso_pool2d_config *c,
                                     const iso_tensor *x, iso_tensor *y) {
    iso__cpu_view in = iso__cpu_view_of(iso__cpu_of(self), x),
                  out = iso__cpu_view_of(iso__cpu_of(self), y);
    pool p = pool_of(c, &in, &out);
    int64_t in_plane = in.height * in.width * in.inner,
            out_plane = out.height * out.width * out.inner;
    for (int64_t i = 0; i < in.rows * in.groups; i++)
        forward_any(&p, in.inner, (real *)in.data + i * in_plane, (real *)out.data + i * out_plane);
    return ISO_OK;
}

static iso_status avg_pool2d_backward(iso_device *self, const iso_pool2d_config *c,
                                      const iso_tensor *dy, iso_tensor *dx) {
    iso__cpu_view in = iso__cpu_view_of(iso__cpu_of(self), dx),
                  out = iso__cpu_view_of(iso__cpu_of(self), dy);
    pool p = pool_of(c, &in, &out);
    int64_t in_plane = in.height * in.width * in.inner,
            out_plane = out.height * out.width * out.inner;
    for (int64_t i = 0; i < in.rows * in.groups; i++) {
        real *plane = (real *)in.data + i * in_plane;
        memset(plane, 0, (size_t)in_plane * sizeof(real)); // backward then finds it in the cache
        backward_any(&p, in.inner, (real *)out.data + i * out_plane, plane);
    }
    return ISO_OK;
}

static iso_status adaptive_avg_pool2d_forward(iso_device *self, const iso_tensor *x,
                                              iso_tensor *y) {
    return avg_pool2d_forward(self, NULL, x, y);
}

static iso_status adaptive_avg_pool2d_backward(iso_device *self, const iso_tensor *dy,
                                               iso_tensor *dx) {
    return avg_pool2d_backward(self, NULL, dy, dx);
}

void ISO_REAL(iso__cpu_fill_avg_pool)(iso_kernel_ops *ops) {
    ops->avg_pool2d_forward = avg_pool2d_forward;
    ops->avg_pool2d_backward = avg_pool2d_backward;
    ops->adaptive_avg_pool2d_forward = adaptive_avg_pool2d_forward;
    ops->adaptive_avg_pool2d_backward = adaptive_avg_pool2d_backward;
}
