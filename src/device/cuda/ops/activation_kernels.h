// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of element-wise functions and softmax.
#ifndef ISO_ACTIVATION_KERNELS_H
#define ISO_ACTIVATION_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// Formulas: cpu_activation.c. The gradients start from the output of tanh and sigmoid, and from the
// input of the others. alpha: see iso__unary.
typedef iso_status iso__cuda_function(iso__cuda *cuda, iso_dtype dtype, int64_t count, double alpha,
                                      const void *x, void *y);
typedef iso_status iso__cuda_gradient(iso__cuda *cuda, iso_dtype dtype, int64_t count, double alpha,
                                      const void *saved, const void *dy, void *dx);
iso__cuda_function iso__cuda_tanh, iso__cuda_sigmoid, iso__cuda_gelu, iso__cuda_gelu_tanh,
    iso__cuda_silu, iso__cuda_leaky_relu, iso__cuda_elu;
iso__cuda_gradient iso__cuda_tanh_grad, iso__cuda_sigmoid_grad, iso__cuda_gelu_grad,
    iso__cuda_gelu_tanh_grad, iso__cuda_silu_grad, iso__cuda_leaky_relu_grad, iso__cuda_elu_grad;

// Of rows of k elements.
iso_status iso__cuda_softmax(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t k,
                             const void *x, void *y);
// dx = y (dy - sum(dy y)).
iso_status iso__cuda_softmax_grad(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t k,
                                  const void *y, const void *dy, void *dx);

#ifdef __cplusplus
}
#endif
#endif
