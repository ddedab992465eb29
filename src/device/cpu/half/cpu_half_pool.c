// SPDX-License-Identifier: MIT
// Kernels for bf16 and f16: pooling.
#include "device/cpu/half/cpu_half.h"

static size_t max_pool2d_workspace(iso_device *self, const iso_tensor *x, const iso_tensor *y) {
    iso_tensor wide_x = iso__as_f32(x), wide_y = iso__as_f32(y);
    return self->kernels[ISO_F32]->max_pool2d_workspace(self, &wide_x, &wide_y);
}

static iso_status max_pool2d_forward(iso_device *self, const iso_pool2d_config *c,
                                     const iso_tensor *x, iso_tensor *y, void *workspace) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, x, y));
    ISO_TRY(w.ops->max_pool2d_forward(self, c, w.as[0], w.as[1], workspace));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status max_pool2d_backward(iso_device *self, const iso_pool2d_config *c,
                                      const iso_tensor *dy, const void *workspace, iso_tensor *dx) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, dy, dx));
    ISO_TRY(w.ops->max_pool2d_backward(self, c, w.as[0], workspace, w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status avg_pool2d_forward(iso_device *self, const iso_pool2d_config *c,
                                     const iso_tensor *x, iso_tensor *y) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, x, y));
    ISO_TRY(w.ops->avg_pool2d_forward(self, c, w.as[0], w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status avg_pool2d_backward(iso_device *self, const iso_pool2d_config *c,
                                      const iso_tensor *dy, iso_tensor *dx) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, dy, dx));
    ISO_TRY(w.ops->avg_pool2d_backward(self, c, w.as[0], w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status adaptive_avg_pool2d_forward(iso_device *self, const iso_tensor *x,
                                              iso_tensor *y) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, x, y));
    ISO_TRY(w.ops->adaptive_avg_pool2d_forward(self, w.as[0], w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status adaptive_avg_pool2d_backward(iso_device *self, const iso_tensor *dy,
                                               iso_tensor *dx) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, dy, dx));
    ISO_TRY(w.ops->adaptive_avg_pool2d_backward(self, w.as[0], w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

void iso__cpu_fill_half_pool(iso_kernel_ops *ops) {
    ops->max_pool2d_workspace = max_pool2d_workspace;
    ops->max_pool2d_forward = max_pool2d_forward;
    ops->max_pool2d_backward = max_pool2d_backward;
    ops->avg_pool2d_forward = avg_pool2d_forward;
    ops->avg_pool2d_backward = avg_pool2d_backward;
    ops->adaptive_avg_pool2d_forward = adaptive_avg_pool2d_forward;
    ops->adaptive_avg_pool2d_backward = adaptive_avg_pool2d_backward;
}
