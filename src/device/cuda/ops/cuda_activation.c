// SPDX-License-Identifier: MIT
// Element-wise functions and softmax on the CUDA device.
#include "device/cuda/ops/activation_kernels.h"
#include "device/cuda/runtime/cuda_impl.h"

static const struct {
    iso__cuda_function *forward;
    iso__cuda_gradient *backward;
} functions[] = {
    [ISO__TANH] = {iso__cuda_tanh, iso__cuda_tanh_grad},
    [ISO__SIGMOID] = {iso__cuda_sigmoid, iso__cuda_sigmoid_grad},
    [ISO__GELU] = {iso__cuda_gelu, iso__cuda_gelu_grad},
    [ISO__GELU_TANH] = {iso__cuda_gelu_tanh, iso__cuda_gelu_tanh_grad},
    [ISO__SILU] = {iso__cuda_silu, iso__cuda_silu_grad},
    [ISO__LEAKY_RELU] = {iso__cuda_leaky_relu, iso__cuda_leaky_relu_grad},
    [ISO__ELU] = {iso__cuda_elu, iso__cuda_elu_grad},
};

static iso_status unary_forward(iso_device *self, iso__unary function, double alpha,
                                const iso_tensor *x, iso_tensor *y) {
    return functions[function].forward(iso__cuda_of(self), x->dtype, x->count, alpha, x->data,
                                       y->data);
}

static iso_status unary_backward(iso_device *self, iso__unary function, double alpha,
                                 const iso_tensor *saved, const iso_tensor *dy, iso_tensor *dx) {
    return functions[function].backward(iso__cuda_of(self), saved->dtype, saved->count, alpha,
                                        saved->data, dy->data, dx->data);
}

static iso_status softmax_forward(iso_device *self, const iso_tensor *x, iso_tensor *y) {
    int64_t k = x->shape[x->ndim - 1];
    return iso__cuda_softmax(iso__cuda_of(self), x->dtype, x->count / k, k, x->data, y->data);
}

static iso_status softmax_backward(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                   iso_tensor *dx) {
    int64_t k = y->shape[y->ndim - 1];
    return iso__cuda_softmax_grad(iso__cuda_of(self), y->dtype, y->count / k, k, y->data, dy->data,
                                  dx->data);
}

void iso__cuda_fill_activation(iso_kernel_ops *ops) {
    ops->unary_forward = unary_forward;
    ops->unary_backward = unary_backward;
    ops->softmax_forward = softmax_forward;
    ops->softmax_backward = softmax_backward;
}
