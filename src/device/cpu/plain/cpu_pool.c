// SPDX-License-Identifier: MIT
// Max-pooling in either layout; records the element of each window that is the maximum.
#include "device/cpu/plain/cpu_real.h"

#include <string.h>

#define MAX_INNER 16

typedef struct pool {
    int64_t kernel[2], stride[2], padding[2];
    int64_t height, width, out_height, out_width;
    bool tiles; // 2 x 2 windows that meet each pixel exactly once
} pool;

// A window: its corner, which may lie in the padding, and its taps inside the image.
typedef struct window {
    int64_t y, x;
    int32_t first_row, end_row, first_column, end_column;
} window;

static pool pool_of(const iso_pool2d_config *c, const iso__cpu_view *in, const iso__cpu_view *out) {
    pool p = {.height = in->height,
              .width = in->width,
              .out_height = out->height,
              .out_width = out->width};
    memcpy(p.kernel, c->kernel_size, sizeof(p.kernel));
    memcpy(p.stride, c->stride, sizeof(p.stride));
    memcpy(p.padding, c->padding, sizeof(p.padding));
    p.tiles = p.kernel[0] == 2 && p.kernel[1] == 2 && p.stride[0] == 2 && p.stride[1] == 2 &&
              p.height == 2 * p.out_height && p.width == 2 * p.out_width;
    return p;
}

static iso_status check_config(const iso_pool2d_config *c) {
    const int64_t most = UINT16_MAX + 1; // the place of the winner is kept in 16 bits
    ISO_CHECK(c->kernel_size[0] <= most && c->kernel_size[1] <= most / c->kernel_size[0],
              ISO_ERR_UNSUPPORTED,
              "a pooling window of %lld x %lld is too large for the CPU device: it may have 65536 "
              "elements",
              (long long)c->kernel_size[0], (long long)c->kernel_size[1]);
    return ISO_OK;
}

static size_t max_pool2d_workspace(iso_device *self, const iso_tensor *x, const iso_tensor *y) {
    (void)x;
    return (size_t)iso__cpu_view_of(iso__cpu_of(self), y).total * sizeof(uint16_t);
}

// Loops over the channels of a cell, a constant number. The loop should vectorise, not unroll.
#define EACH_CHANNEL _Pragma("GCC unroll 1") for (int c = 0; c < inner; c++)
#define INLINE       static inline __attribute__((always_inline))

static window window_at(const pool *p, int64_t oy, int64_t ox) {
    int64_t y = oy * p->stride[0] - p->padding[0], x = ox * p->stride[1] - p->padding[1];
    int64_t rows = p->height - y, columns = p->width - x;
    return (window){.y = y,
                    .x = x,
                    .first_row = (int32_t)(y < 0 ? -y : 0),
                    .first_column = (int32_t)(x < 0 ? -x : 0),
                    .end_row = (int32_t)(rows < p->kernel[0] ? rows : p->kernel[0]),
                    .end_column = (int32_t)(columns < p->kernel[1] ? columns : p->kernel[1])};
}

// One window; inlined with a constant `inner` and, for the common sizes, constant bounds.
INLINE void forward_window(const int inner, int64_t width, int32_t kernel_width, const window w,
                           const real *restrict plane, real *restrict y, uint16_t *restrict where) {
    const real *corner = plane + ((w.y + w.first_row) * width + w.x + w.first_column) * inner;
    real best[MAX_INNER];
    int32_t winner[MAX_INNER];
    EACH_CHANNEL best[c] = corner[c];
    EACH_CHANNEL winner[c] = w.first_row * kernel_width + w.first_column;
    for (int32_t i = w.first_row; i < w.end_row; i++)
        for (int32_t j = w.first_column; j < w.end_column; j++) {
            const real *at = plane + ((w.y + i) * width + w.x + j) * inner;
            EACH_CHANNEL {
                // The first of equals wins; a NaN wins over numbers.
                bool wins = at[c] > best[c] || at[c] != at[c];
                best[c] = wins ? at[c] : best[c];
                winner[c] = wins ? i * kernel_width + j : winner[c];
            }
        }
    EACH_CHANNEL y[c] = best[c];
    if (where) EACH_CHANNEL where[c] = (uint16_t)winner[c];
}

// Adds to the plane, or overwrites it (tiles).
INLINE void backward_window(const bool tiles, const int inner, int64_t width, int32_t kernel_width,
                            const window w, const real *restrict dy, const uint16_t *restrict where,
                            real *restrict plane) {
    real gradient[MAX_INNER];
    int32_t winner[MAX_INNER];
    EACH_CHANNEL gradient[c] = dy[c];
    EACH_CHANNEL winner[c] = where[c];
    for (int32_t i = w.first_row; i < w.end_row; i++)
        for (int32_t j = w.first_column; j < w.end_column; j++) {
            real *at = plane + ((w.y + i) * width + w.x + j) * inner;
            EACH_CHANNEL {
                real share = winner[c] == i * kernel_width + j ? gradient[c] : 0;
                at[c] = tiles ? share : at[c] + share;
            }
        }
}

// Whether the whole window is in the image and of `size` x `size` taps.
static bool is_whole(const window w, int size) {
    return w.first_row == 0 && w.first_column == 0 && w.end_row == size && w.end_column == size;
}

INLINE void forward_plane(const pool *p, const int inner, const int size, const real *x, real *y,
                          uint16_t *where) {
    for (int64_t oy = 0; oy < p->out_height; oy++)
        for (int64_t ox = 0; ox < p->out_width; ox++, y += inner) {
            const window w = window_at(p, oy, ox);
            if (size && is_whole(w, size))
                forward_window(inner, p->width, size, (window){w.y, w.x, 0, size, 0, size}, x, y,
                               where);
            else
                forward_window(inner, p->width, (int32_t)p->kernel[1], w, x, y, where);
            if (where) where += inner;
        }
}

INLINE void backward_plane(const pool *p, const int inner, const int size, const bool tiles,
                           const real *dy, const uint16_t *where, real *dx) {
    for (int64_t oy = 0; oy < p->out_height; oy++)
        for (int64_t ox = 0; ox < p->out_width; ox++, dy += inner, where += inner) {
            const window w = window_at(p, oy, ox);
            if (size && is_whole(w, size))
                backward_window(tiles, inner, p->width, size, (window){w.y, w.x, 0, size, 0, size},
                                dy, where, dx);
            else
                backward_window(tiles, inner, p->width, (int32_t)p->kernel[1], w, dy, where, dx);
        }
}

// The side of a square window for which there is a kernel of its own, 0 for others.
static int common_size(const pool *p) {
    return p->kernel[0] == p->kernel[1] && (p->kernel[0] == 2 || p->kernel[0] == 3)
               ? (int)p->kernel[0]
               : 0;
}

INLINE void forward_sized(const pool *p, const int inner, const real *x, real *y, uint16_t *where) {
    switch (common_size(p)) {
    case 2: forward_plane(p, inner, 2, x, y, where); break;
    case 3: forward_plane(p, inner, 3, x, y, where); break;
    default: forward_plane(p, inner, 0, x, y, where);
    }
}

INLINE void backward_sized(const pool *p, const int inner, const real *dy, const uint16_t *where,
                           real *dx) {
    size_t bytes = (size_t)(p->height * p->width * inner) * sizeof(real);
    if (p->tiles) {
        backward_plane(p, inner, 2, true, dy, where, dx);
        return;
    }
    memset(dx, 0, bytes); // and then, while it is in the cache:
    switch (common_size(p)) {
    case 2: backward_plane(p, inner, 2, false, dy, where, dx); break;
    case 3: backward_plane(p, inner, 3, false, dy, where, dx); break;
    default: backward_plane(p, inner, 0, false, dy, where, dx);
    }
}

ISO_CPU_CLONES static void forward_any(const pool *p, int64_t inner, const real *x, real *y,
                                       uint16_t *where) {
    if (inner == 16)
        forward_sized(p, 16, x, y, where);
    else if (inner == 8)
        forward_sized(p, 8, x, y, where);
    else
        forward_sized(p, 1, x, y, where);
}

ISO_CPU_CLONES static void backward_any(const pool *p, int64_t inner, const real *dy,
                                        const uint16_t *where, real *dx) {
    if (inner == 16)
        backward_sized(p, 16, dy, where, dx);
    else if (inner == 8)
        backward_sized(p, 8, dy, where, dx);
    else
        backward_sized(p, 1, dy, where, dx);
}

static iso_status max_pool2d_forward(iso_device *self, const iso_pool2d_config *c,
                                     const iso_tensor *x, iso_tensor *y, void *workspace) {
    ISO_TRY(check_config(c));
    iso__cpu_view in = iso__cpu_view_of(iso__cpu_of(self), x),
                  out = iso__cpu_view_of(iso__cpu_of(self), y);
    pool p = pool_of(c, &in, &out);
    int64_t in_plane = in.height * in.width * in.inner,
            out_plane = out.height * out.width * out.inner;
    uint16_t *where = workspace;
    for (int64_t i = 0; i < in.rows * in.groups; i++)
        forward_any(&p, in.inner, (real *)in.data + i * in_plane, (real *)out.data + i * out_plane,
                    where ? where + i * out_plane : NULL);
    return ISO_OK;
}

static iso_status max_pool2d_backward(iso_device *self, const iso_pool2d_config *c,
                                      const iso_tensor *dy, const void *workspace, iso_tensor *dx) {
    ISO_TRY(check_config(c));
    iso__cpu_view in = iso__cpu_view_of(iso__cpu_of(self), dx),
                  out = iso__cpu_view_of(iso__cpu_of(self), dy);
    pool p = pool_of(c, &in, &out);
    int64_t in_plane = in.height * in.width * in.inner,
            out_plane = out.height * out.width * out.inner;
    const uint16_t *where = workspace;
    for (int64_t i = 0; i < in.rows * in.groups; i++)
        backward_any(&p, in.inner, (real *)out.data + i * out_plane, where + i * out_plane,
                     (real *)in.data + i * in_plane);
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_pool)(iso_kernel_ops *ops) {
    ops->max_pool2d_workspace = max_pool2d_workspace;
    ops->max_pool2d_forward = max_pool2d_forward;
    ops->max_pool2d_backward = max_pool2d_backward;
}
