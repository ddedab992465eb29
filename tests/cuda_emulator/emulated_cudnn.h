// SPDX-License-Identifier: MIT
// What the files of the emulated cuDNN share: what handles and descriptors hold.
#ifndef EMULATED_CUDNN_PRIVATE_H
#define EMULATED_CUDNN_PRIVATE_H

#include <cudnn.h>

#include "emulated_handles.h"

struct cudnnContext {
    uint32_t magic;
    int device;
    cudaStream_t stream;
};
struct cudnnTensorStruct {
    uint32_t magic;
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    int n, c, h, w; // n is 0 until they are set
};
struct cudnnFilterStruct {
    uint32_t magic;
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    int k, c, h, w;
};
struct cudnnConvolutionStruct {
    uint32_t magic;
    cudnnDataType_t type;
    cudnnConvolutionMode_t mode;
    cudnnMathType_t math;
    int groups, padding[2], stride[2], dilation[2]; // a stride is 0 until they are set
};
struct cudnnActivationStruct {
    uint32_t magic;
    cudnnActivationMode_t mode;
    cudnnNanPropagation_t nan;
};

namespace emulated {

static const uint32_t dnn_magic = 0xcd220000;

#define DNN_INJECTED()                                                                             \
    do {                                                                                           \
        int error_ = injected(__func__);                                                           \
        if (error_ != 0) return static_cast<cudnnStatus_t>(error_);                                \
    } while (0)
#define DNN_TRY(expr)                                                                              \
    do {                                                                                           \
        cudnnStatus_t status_ = (expr);                                                            \
        if (status_ != CUDNN_STATUS_SUCCESS) return status_;                                       \
    } while (0)

template <class T> inline cudnnStatus_t alive(T *x) {
    if (x == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    check_alive(x->magic, dnn_magic, "cuDNN");
    return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t check_handle(cudnnHandle_t handle) {
    if (handle == nullptr) return CUDNN_STATUS_NOT_INITIALIZED;
    check_alive(handle->magic, dnn_magic, "cuDNN");
    return CUDNN_STATUS_SUCCESS;
}

} // namespace emulated

#endif
