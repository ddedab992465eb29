// SPDX-License-Identifier: MIT
// Handles and descriptors of the emulated cuDNN, with the statuses that cuDNN 9.19 gives.
#include "emulated_cudnn.h"

#include <limits.h>

using namespace emulated;

namespace emulated {

template <class T> static cudnnStatus_t create(T **to) {
    if (to == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *to = new T();
    (*to)->magic = dnn_magic;
    ++live_descriptors;
    return CUDNN_STATUS_SUCCESS;
}

template <class T> static cudnnStatus_t destroy(T *x) {
    if (x == nullptr) return CUDNN_STATUS_SUCCESS;
    check_alive(x->magic, dnn_magic, "cuDNN");
    x->magic = 0;
    delete x;
    --live_descriptors;
    return CUDNN_STATUS_SUCCESS;
}

// At most INT_MAX elements.
static cudnnStatus_t check_sides(int a, int b, int c, int d) {
    if (a <= 0 || b <= 0 || c <= 0 || d <= 0) return CUDNN_STATUS_BAD_PARAM;
    double count = static_cast<double>(a) * b * c * d;
    return count > INT_MAX ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

} // namespace emulated

// ---- Handles ----

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    DNN_INJECTED();
    if (settings().gpus == 0) return CUDNN_STATUS_NOT_INITIALIZED;
    *handle = new cudnnContext{dnn_magic, current_device(), nullptr};
    ++live_handles;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    handle->magic = 0;
    delete handle;
    --live_handles;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t streamId) {
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    check_stream(streamId, __func__);
    handle->stream = streamId;
    return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
    switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_BAD_PARAM_NULL_POINTER: return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER:
        return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    case CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT:
        return "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_NOT_SUPPORTED_SHAPE: return "CUDNN_STATUS_NOT_SUPPORTED_SHAPE";
    case CUDNN_STATUS_INTERNAL_ERROR: return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    }
    return "unknown cuDNN status";
}

// ---- Descriptors ----

#define DNN_LIFE(name, type)                                                                       \
    cudnnStatus_t cudnnCreate##name(type *x) {                                                     \
        DNN_INJECTED();                                                                            \
        return create(x);                                                                          \
    }                                                                                              \
    cudnnStatus_t cudnnDestroy##name(type x) {                                                     \
        DNN_INJECTED();                                                                            \
        return destroy(x);                                                                         \
    }
DNN_LIFE(TensorDescriptor, cudnnTensorDescriptor_t)
DNN_LIFE(FilterDescriptor, cudnnFilterDescriptor_t)
DNN_LIFE(ActivationDescriptor, cudnnActivationDescriptor_t)
DNN_LIFE(ConvolutionDescriptor, cudnnConvolutionDescriptor_t)

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensorDesc,
                                         cudnnTensorFormat_t format, cudnnDataType_t dataType,
                                         int n, int c, int h, int w) {
    DNN_INJECTED();
    DNN_TRY(alive(tensorDesc));
    DNN_TRY(check_sides(n, c, h, w));
    *tensorDesc = {dnn_magic, dataType, format, n, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filterDesc,
                                         cudnnDataType_t dataType, cudnnTensorFormat_t format,
                                         int k, int c, int h, int w) {
    DNN_INJECTED();
    DNN_TRY(alive(filterDesc));
    DNN_TRY(check_sides(k, c, h, w));
    *filterDesc = {dnn_magic, dataType, format, k, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activationDesc,
                                           cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t reluNanOpt, double) {
    DNN_INJECTED();
    DNN_TRY(alive(activationDesc));
    *activationDesc = {dnn_magic, mode, reluNanOpt};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convDesc, int pad_h,
                                              int pad_w, int u, int v, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t computeType) {
    DNN_INJECTED();
    DNN_TRY(alive(convDesc));
    if (pad_h < 0 || pad_w < 0 || u <= 0 || v <= 0 || dilation_h <= 0 || dilation_w <= 0)
        return CUDNN_STATUS_BAD_PARAM;
    *convDesc = {dnn_magic, computeType,    mode,   CUDNN_DEFAULT_MATH,
                 1,         {pad_h, pad_w}, {u, v}, {dilation_h, dilation_w}};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convDesc, int groupCount) {
    DNN_INJECTED();
    DNN_TRY(alive(convDesc));
    if (groupCount <= 0) return CUDNN_STATUS_BAD_PARAM;
    convDesc->groups = groupCount;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convDesc,
                                          cudnnMathType_t mathType) {
    DNN_INJECTED();
    DNN_TRY(alive(convDesc));
    if (mathType < CUDNN_DEFAULT_MATH || mathType > CUDNN_FMA_MATH) return CUDNN_STATUS_BAD_PARAM;
    convDesc->math = mathType;
    return CUDNN_STATUS_SUCCESS;
}
