// SPDX-License-Identifier: MIT
// Private to the CUDA device: convolutions by cuDNN, if this build supports it and the host has it.
#ifndef ISO_CUDA_DNN_H
#define ISO_CUDA_DNN_H

#include "device/cuda/runtime/cuda_impl.h"

#include <config.h>

#ifdef ISO_HAVE_CUDNN
// Creates cuda->dnn. ISO_ERR_UNSUPPORTED: the library is not available.
iso_status iso__cuda_dnn_create(iso__cuda *cuda);
void iso__cuda_dnn_destroy(iso__cuda *cuda);

void iso__cuda_dnn_fill_tune(iso_device_ops *ops);

// For the slots of the table; cuda->dnn must exist. *done false: cuDNN cannot compute this shape in
// a fixed order, and nothing was launched.
iso_status iso__cuda_dnn_forward(iso__cuda *cuda, const iso_conv2d_config *c, const iso_tensor *x,
                                 const iso_tensor *w, const iso_tensor *b, iso_activation act,
                                 iso_tensor *y, bool *done);
iso_status iso__cuda_dnn_backward_filter(iso__cuda *cuda, const iso_conv2d_config *c,
                                         const iso_tensor *x, const iso_tensor *dy, iso_tensor *dw,
                                         bool accumulate, bool *done);
iso_status iso__cuda_dnn_backward_input(iso__cuda *cuda, const iso_conv2d_config *c,
                                        const iso_tensor *dy, const iso_tensor *w, iso_tensor *dx,
                                        bool *done);
#else
static inline iso_status iso__cuda_dnn_create(iso__cuda *cuda) {
    (void)cuda;
    return ISO_FAIL(ISO_ERR_UNSUPPORTED, "this build has no cuDNN: use ISO_CUDA_CONV=gemm");
}
static inline void iso__cuda_dnn_destroy(iso__cuda *cuda) { (void)cuda; }
static inline void iso__cuda_dnn_fill_tune(iso_device_ops *ops) { (void)ops; }

static inline iso_status iso__cuda_dnn_forward(iso__cuda *cuda, const iso_conv2d_config *c,
                                               const iso_tensor *x, const iso_tensor *w,
                                               const iso_tensor *b, iso_activation act,
                                               iso_tensor *y, bool *done) {
    (void)cuda, (void)c, (void)x, (void)w, (void)b, (void)act, (void)y;
    *done = false;
    return ISO_OK;
}
static inline iso_status iso__cuda_dnn_backward_filter(iso__cuda *cuda, const iso_conv2d_config *c,
                                                       const iso_tensor *x, const iso_tensor *dy,
                                                       iso_tensor *dw, bool accumulate,
                                                       bool *done) {
    (void)cuda, (void)c, (void)x, (void)dy, (void)dw, (void)accumulate;
    *done = false;
    return ISO_OK;
}
static inline iso_status iso__cuda_dnn_backward_input(iso__cuda *cuda, const iso_conv2d_config *c,
                                                      const iso_tensor *dy, const iso_tensor *w,
                                                      iso_tensor *dx, bool *done) {
    (void)cuda, (void)c, (void)dy, (void)w, (void)dx;
    *done = false;
    return ISO_OK;
}
#endif

#endif
