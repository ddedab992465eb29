// Max-pooling in either layout; remembers which element of each window won.
#include "device/cpu/cpu_real.h"

#include <string.h>

#define MAX_INNER 16

typedef struct pool {
    int64_t window, stride, width, out_height, out_width;
} pool;

static iso_status check(int64_t window) {
    ISO_CHECK(window <= 256, ISO_ERR_UNSUPPORTED,
              "a pooling window of %lld is too large for the CPU device (256)", (long long)window);
    return ISO_OK;
}

static size_t max_pool2d_workspace(iso_device *self, const iso_tensor *x, const iso_tensor *y) {
    (void)x;
    return (size_t)iso__cpu_view_of(iso__cpu_of(self), y).total * sizeof(uint16_t);
}

// A loop over the channels of a cell: a constant number, to be made vectors of, not to be unrolled.
#define EACH_CHANNEL _Pragma("GCC unroll 1") for (int c = 0; c < inner; c++)

// One window, read or written at `corner`; inlined with a constant `inner`.
static inline __attribute__((always_inline)) void forward_window(const pool *p, const int inner,
                                                                 const real *restrict corner,
                                                                 real *restrict y,
                                                                 uint16_t *restrict where) {
    real best[MAX_INNER];
    int32_t winner[MAX_INNER], k = 0;
    EACH_CHANNEL best[c] = corner[c];
    EACH_CHANNEL winner[c] = 0;
    for (int64_t i = 0; i < p->window; i++)
        for (int64_t j = 0; j < p->window; j++, k++) {
            const real *at = corner + (i * p->width + j) * inner;
            EACH_CHANNEL {
                // The first of equals wins; a NaN wins over numbers.
                bool wins = at[c] > best[c] || at[c] != at[c];
                best[c] = wins ? at[c] : best[c];
                winner[c] = wins ? k : winner[c];
            }
        }
    EACH_CHANNEL y[c] = best[c];
    if (where) EACH_CHANNEL where[c] = (uint16_t)winner[c];
}

static inline __attribute__((always_inline)) void backward_window(const pool *p, const int inner,
                                                                  const real *restrict dy,
                                                                  const uint16_t *restrict where,
                                                                  real *restrict corner) {
    int32_t k = 0;
    for (int64_t i = 0; i < p->window; i++)
        for (int64_t j = 0; j < p->window; j++, k++) {
            real *at = corner + (i * p->width + j) * inner;
            EACH_CHANNEL at[c] += where[c] == k ? dy[c] : 0.0f;
        }
}

static inline __attribute__((always_inline)) void
forward_plane(const pool *p, const int inner, const real *x, real *y, uint16_t *where) {
    for (int64_t oy = 0; oy < p->out_height; oy++)
        for (int64_t ox = 0; ox < p->out_width; ox++, y += inner) {
            forward_window(p, inner, x + (oy * p->width + ox) * p->stride * inner, y, where);
            if (where) where += inner;
        }
}

static inline __attribute__((always_inline)) void
backward_plane(const pool *p, const int inner, const real *dy, const uint16_t *where, real *dx) {
    for (int64_t oy = 0; oy < p->out_height; oy++)
        for (int64_t ox = 0; ox < p->out_width; ox++, dy += inner, where += inner)
            backward_window(p, inner, dy, where, dx + (oy * p->width + ox) * p->stride * inner);
}

ISO_CPU_CLONES static void forward_any(const pool *p, int64_t inner, const real *x, real *y,
                                       uint16_t *where) {
    if (inner == 16)
        forward_plane(p, 16, x, y, where);
    else if (inner == 8)
        forward_plane(p, 8, x, y, where);
    else
        forward_plane(p, 1, x, y, where);
}

ISO_CPU_CLONES static void backward_any(const pool *p, int64_t inner, const real *dy,
                                        const uint16_t *where, real *dx) {
    if (inner == 16)
        backward_plane(p, 16, dy, where, dx);
    else if (inner == 8)
        backward_plane(p, 8, dy, where, dx);
    else
        backward_plane(p, 1, dy, where, dx);
}

static iso_status max_pool2d_forward(iso_device *self, int64_t window, int64_t stride,
                                     const iso_tensor *x, iso_tensor *y, void *workspace) {
    ISO_TRY(check(window));
    iso__cpu_view in = iso__cpu_view_of(iso__cpu_of(self), x),
                  out = iso__cpu_view_of(iso__cpu_of(self), y);
    pool p = {window, stride, in.width, out.height, out.width};
    int64_t in_plane = in.height * in.width * in.inner,
            out_plane = out.height * out.width * out.inner;
    uint16_t *where = workspace;
    for (int64_t i = 0; i < in.rows * in.groups; i++)
        forward_any(&p, in.inner, (real *)in.data + i * in_plane, (real *)out.data + i * out_plane,
                    where ? where + i * out_plane : NULL);
    return ISO_OK;
}

static iso_status max_pool2d_backward(iso_device *self, int64_t window, int64_t stride,
                                      const iso_tensor *dy, const void *workspace, iso_tensor *dx) {
    ISO_TRY(check(window));
    iso__cpu_view in = iso__cpu_view_of(iso__cpu_of(self), dx),
                  out = iso__cpu_view_of(iso__cpu_of(self), dy);
    pool p = {window, stride, in.width, out.height, out.width};
    int64_t in_plane = in.height * in.width * in.inner,
            out_plane = out.height * out.width * out.inner;
    const uint16_t *where = workspace;
    for (int64_t i = 0; i < in.rows * in.groups; i++) {
        real *plane = (real *)in.data + i * in_plane;
        memset(plane, 0, (size_t)in_plane * sizeof(real)); // and then, while it is in the cache:
        backward_any(&p, in.inner, (real *)out.data + i * out_plane, where + i * out_plane, plane);
    }
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_pool)(iso_kernel_ops *ops) {
    ops->max_pool2d_workspace = max_pool2d_workspace;
    ops->max_pool2d_forward = max_pool2d_forward;
    ops->max_pool2d_backward = max_pool2d_backward;
}
