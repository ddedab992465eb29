// SPDX-License-Identifier: MIT
// Pooling of the CUDA device: its slots, in terms of planes or images, and axes.
#include "device/cuda/runtime/cuda_impl.h"
#include "device/cuda/ops/pool_kernels.h"

// config NULL: adaptive, windows for an output of the given size.
static iso__cuda_pool_shape shape_of(const iso_pool2d_config *c, const iso_tensor *x,
                                     const iso_tensor *y) {
    bool last = iso__cuda_channels_last(x);
    iso__cuda_pool_shape shape = {.dtype = x->dtype,
                                  .planes = last ? x->shape[0] : x->shape[0] * x->shape[1],
                                  .beside = last ? x->shape[1] : 1};
    iso__cuda_pool_axis *axis[] = {&shape.y, &shape.x};
    for (int i = 0; i < 2; i++) {
        *axis[i] = (iso__cuda_pool_axis){.in = x->shape[2 + i], .out = y->shape[2 + i]};
        if (!c) continue;
        axis[i]->kernel = c->kernel_size[i];
        axis[i]->stride = c->stride[i];
        axis[i]->padding = c->padding[i];
    }
    return shape;
}

// ---- Maxima -------------------------------------------------------------------------------------

// A place in a window is kept in 16 bits.
static iso_status check_config(const iso_pool2d_config *c) {
    ISO_CHECK(c->kernel_size[0] <= 256 && c->kernel_size[1] <= 256, ISO_ERR_UNSUPPORTED,
              "a pooling window of %lld x %lld is too large for the CUDA device (256 x 256)",
              (long long)c->kernel_size[0], (long long)c->kernel_size[1]);
    return ISO_OK;
}

static size_t max_pool2d_workspace(iso_device *self, const iso_tensor *x, const iso_tensor *y) {
    (void)self, (void)x;
    return (size_t)y->count * sizeof(uint16_t);
}

static iso_status max_pool2d_forward(iso_device *self, const iso_pool2d_config *c,
                                     const iso_tensor *x, iso_tensor *y, void *workspace) {
    ISO_TRY(check_config(c));
    iso__cuda_pool_shape shape = shape_of(c, x, y);
    return iso__cuda_max_pool_forward(iso__cuda_of(self), &shape, x->data, y->data, workspace);
}

static iso_status max_pool2d_relu_forward(iso_device *self, const iso_pool2d_config *c,
                                          const iso_tensor *x, iso_tensor *y, void *workspace) {
    ISO_TRY(check_config(c));
    iso__cuda_pool_shape shape = shape_of(c, x, y);
    shape.relu = true;
    return iso__cuda_max_pool_forward(iso__cuda_of(self), &shape, x->data, y->data, workspace);
}

static iso_status max_pool2d_backward(iso_device *self, const iso_pool2d_config *c,
                                      const iso_tensor *dy, const void *workspace, iso_tensor *dx) {
    ISO_TRY(check_config(c));
    iso__cuda_pool_shape shape = shape_of(c, dx, dy);
    return iso__cuda_max_pool_backward(iso__cuda_of(self), &shape, dy->data, workspace, dx->data);
}

// ---- Averages -----------------------------------------------------------------------------------

static iso_status avg_pool2d_forward(iso_device *self, const iso_pool2d_config *c,
                                     const iso_tensor *x, iso_tensor *y) {
    iso__cuda_pool_shape shape = shape_of(c, x, y);
    return iso__cuda_avg_pool_forward(iso__cuda_of(self), &shape, x->data, y->data);
}

static iso_status avg_pool2d_backward(iso_device *self, const iso_pool2d_config *c,
                                      const iso_tensor *dy, iso_tensor *dx) {
    iso__cuda_pool_shape shape = shape_of(c, dx, dy);
    return iso__cuda_avg_pool_backward(iso__cuda_of(self), &shape, dy->data, dx->data);
}

static iso_status adaptive_avg_pool2d_forward(iso_device *self, const iso_tensor *x,
                                              iso_tensor *y) {
    return avg_pool2d_forward(self, NULL, x, y);
}

static iso_status adaptive_avg_pool2d_backward(iso_device *self, const iso_tensor *dy,
                                               iso_tensor *dx) {
    return avg_pool2d_backward(self, NULL, dy, dx);
}

void iso__cuda_fill_pool2d(iso_kernel_ops *ops) {
    ops->max_pool2d_workspace = max_pool2d_workspace;
    ops->max_pool2d_forward = max_pool2d_forward;
    ops->max_pool2d_relu_forward = max_pool2d_relu_forward;
    ops->max_pool2d_backward = max_pool2d_backward;
    ops->avg_pool2d_forward = avg_pool2d_forward;
    ops->avg_pool2d_backward = avg_pool2d_backward;
    ops->adaptive_avg_pool2d_forward = adaptive_avg_pool2d_forward;
    ops->adaptive_avg_pool2d_backward = adaptive_avg_pool2d_backward;
}
