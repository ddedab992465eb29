// SPDX-License-Identifier: MIT
// Relu, sums and dropout on the CUDA device.
#include "device/cuda/runtime/cuda_impl.h"
#include "device/cuda/ops/elementwise_kernels.h"

#include <math.h>

static iso_status relu_forward(iso_device *self, const iso_tensor *x, iso_tensor *y) {
    return iso__cuda_relu(iso__cuda_of(self), x->dtype, x->count, x->data, y->data);
}

static iso_status relu_backward(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                iso_tensor *dx) {
    return iso__cuda_relu_mask(iso__cuda_of(self), y->dtype, y->count, y->data, dy->data, dx->data,
                               NULL);
}

static iso_status relu_backward_copy(iso_device *self, const iso_tensor *y, iso_tensor *dy,
                                     iso_tensor *copy) {
    return iso__cuda_relu_mask(iso__cuda_of(self), y->dtype, y->count, y->data, dy->data, dy->data,
                               copy->data);
}

static iso_status add_elements(iso_device *self, const iso_tensor *a, const iso_tensor *b,
                               iso_activation act, iso_tensor *y) {
    return iso__cuda_add(iso__cuda_of(self), a->dtype, a->count, a->data, b->data,
                         act == ISO_ACT_RELU, y->data);
}

// A draw for each element of a row, or for each of its channels.
static iso_status drop_elements(iso_device *self, const iso__dropout_draw *draw,
                                const iso_tensor *x, iso_tensor *y) {
    int64_t rows = x->ndim ? x->shape[0] : 1, row = x->count / rows;
    int64_t draws = draw->channels && x->ndim == 4 ? x->shape[1] : row;
    iso__cuda_mask mask = {.rows = rows,
                           .draws = draws,
                           .span = row / draws,
                           .channels = iso__cuda_channels_last(x) ? x->shape[1] : 0,
                           .key = {draw->key.k[0], draw->key.k[1]},
                           .number = draw->number,
                           .first_row = (uint32_t)draw->first_row,
                           .threshold = (uint32_t)ceil(draw->p * 0x1p24),
                           .kept = 1 / (1 - draw->p)};
    return iso__cuda_dropout(iso__cuda_of(self), x->dtype, &mask, x->data, y->data);
}

void iso__cuda_fill_elementwise(iso_kernel_ops *ops) {
    ops->relu_forward = relu_forward;
    ops->relu_backward = relu_backward;
    ops->relu_backward_copy = relu_backward_copy;
    ops->add = add_elements;
    ops->dropout = drop_elements;
}
