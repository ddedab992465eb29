// SPDX-License-Identifier: MIT
// The emulated GPU's own test: convolutions of cuDNN in bf16 and with channels last, against those
// in f32 and logical order.
#include "emulator_test.h"

#include <cudnn.h>

#include <vector>

#include "emulated_types.h"

using emulated::bf16;

#define DNN_OK(call) CHECK((call) == CUDNN_STATUS_SUCCESS)

struct Sizes {
    int n, c, h, w, k, groups, oh, ow;
};
static const Sizes sizes = {2, 16, 6, 5, 32, 2, 3, 5}; // 3x3, strides 2 and 1, padding 1

// How cuDNN is given it.
struct Given {
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    cudnnMathType_t math;
};

struct Descriptors {
    cudaStream_t stream;
    cudnnHandle_t handle;
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    cudnnActivationDescriptor_t relu;
};

static Descriptors describe(const Sizes &s, const Given &g) {
    Descriptors d;
    d.stream = make_stream();
    DNN_OK(cudnnCreate(&d.handle));
    DNN_OK(cudnnSetStream(d.handle, d.stream));
    DNN_OK(cudnnCreateTensorDescriptor(&d.x));
    DNN_OK(cudnnCreateTensorDescriptor(&d.y));
    DNN_OK(cudnnCreateTensorDescriptor(&d.bias));
    DNN_OK(cudnnCreateFilterDescriptor(&d.w));
    DNN_OK(cudnnCreateConvolutionDescriptor(&d.conv));
    DNN_OK(cudnnCreateActivationDescriptor(&d.relu));
    DNN_OK(cudnnSetActivationDescriptor(d.relu, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0));
    DNN_OK(cudnnSetTensor4dDescriptor(d.x, g.format, g.type, s.n, s.c, s.h, s.w));
    DNN_OK(cudnnSetTensor4dDescriptor(d.y, g.format, g.type, s.n, s.k, s.oh, s.ow));
    DNN_OK(cudnnSetTensor4dDescriptor(d.bias, g.format, g.type, 1, s.k, 1, 1));
    DNN_OK(cudnnSetFilter4dDescriptor(d.w, g.type, g.format, s.k, s.c / s.groups, 3, 3));
    DNN_OK(cudnnSetConvolution2dDescriptor(d.conv, 1, 1, 2, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                           CUDNN_DATA_FLOAT));
    DNN_OK(cudnnSetConvolutionGroupCount(d.conv, s.groups));
    DNN_OK(cudnnSetConvolutionMathType(d.conv, g.math));
    return d;
}

static void destroy(const Descriptors &d) {
    for (cudnnTensorDescriptor_t t : {d.x, d.y, d.bias}) DNN_OK(cudnnDestroyTensorDescriptor(t));
    DNN_OK(cudnnDestroyFilterDescriptor(d.w));
    DNN_OK(cudnnDestroyConvolutionDescriptor(d.conv));
    DNN_OK(cudnnDestroyActivationDescriptor(d.relu));
    DNN_OK(cudnnDestroy(d.handle));
    CHECK(emulated_live_descriptors() == 0);
}

// An array [outer, channels, plane] in logical order on the host, and on the device as it is given.
struct Array {
    size_t outer, channels, plane;
    std::vector<float> values;
    void *device;
};

static size_t place(const Array &a, const Given &g, size_t i) {
    size_t p = i % a.plane, c = i / a.plane % a.channels, n = i / a.plane / a.channels;
    return g.format == CUDNN_TENSOR_NHWC ? (n * a.plane + p) * a.channels + c : i;
}

template <class T> static void upload(Array *a, const Given &g) {
    std::vector<T> host(a->values.size());
    for (size_t i = 0; i < host.size(); ++i) emulated::store(&host[place(*a, g, i)], a->values[i]);
    a->device = device_array<T>(host.size());
    OK(cudaMemcpy(a->device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
}

template <class T> static std::vector<float> download(const Array &a, const Given &g) {
    std::vector<T> host(a.values.size());
    std::vector<float> out(host.size());
    OK(cudaMemcpy(host.data(), a.device, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < out.size(); ++i) out[i] = emulated::load(host[place(a, g, i)]);
    return out;
}

// Small integers, so that every order of sums gives the same; results of bf16 are rounded.
static Array array(int outer, int channels, int plane) {
    Array a = {static_cast<size_t>(outer),
               static_cast<size_t>(channels),
               static_cast<size_t>(plane),
               {},
               nullptr};
    a.values.resize(a.outer * a.channels * a.plane);
    for (size_t i = 0; i < a.values.size(); ++i)
        a.values[i] = static_cast<float>((i * 7 + i / 5) % 5) - 2;
    return a;
}

struct Results {
    cudnnStatus_t status[4]; // forward, fused, filter, data
    std::vector<float> values[4];
};

template <class T> static Results run(const Given &g, int algorithm) {
    const Sizes &s = sizes;
    const float one = 1, zero = 0;
    const size_t room = 1 << 20;
    Descriptors d = describe(s, g);
    Array x = array(s.n, s.c, s.h * s.w), w = array(s.k, s.c / s.groups, 9);
    Array y = array(s.n, s.k, s.oh * s.ow), bias = array(1, s.k, 1);
    void *workspace = device_array<char>(room);
    Results r;
    for (int i = 0; i < 4; ++i) {
        for (Array *a : {&x, &w, &y, &bias}) upload<T>(a, g);
        cudnnConvolutionFwdAlgo_t fwd = static_cast<cudnnConvolutionFwdAlgo_t>(algorithm);
        if (i == 0)
            r.status[i] =
                cudnnConvolutionForward(d.handle, &one, d.x, x.device, d.w, w.device, d.conv, fwd,
                                        workspace, room, &zero, d.y, y.device);
        if (i == 1)
            r.status[i] = cudnnConvolutionBiasActivationForward(
                d.handle, &one, d.x, x.device, d.w, w.device, d.conv, fwd, workspace, room, &one,
                d.y, y.device, d.bias, bias.device, d.relu, d.y, y.device);
        if (i == 2)
            r.status[i] = cudnnConvolutionBackwardFilter(
                d.handle, &one, d.x, x.device, d.y, y.device, d.conv,
                static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm), workspace, room, &one, d.w,
                w.device);
        if (i == 3)
            r.status[i] =
                cudnnConvolutionBackwardData(d.handle, &one, d.w, w.device, d.y, y.device, d.conv,
                                             static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm),
                                             workspace, room, &one, d.x, x.device);
        OK(cudaStreamSynchronize(d.stream));
        r.values[i] = download<T>(i < 2 ? y : i == 2 ? w : x, g);
        for (Array *a : {&x, &w, &y, &bias}) OK(cudaFree(a->device));
    }
    OK(cudaFree(workspace));
    destroy(d);
    return r;
}

static const Given logical = {CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, CUDNN_FMA_MATH};
static const Given last = {CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, CUDNN_DEFAULT_MATH};
static const Given low = {CUDNN_DATA_BFLOAT16, CUDNN_TENSOR_NCHW, CUDNN_DEFAULT_MATH};
static const Given low_last = {CUDNN_DATA_BFLOAT16, CUDNN_TENSOR_NHWC, CUDNN_DEFAULT_MATH};

static float rounded(float x) {
    bf16 low;
    emulated::store(&low, x);
    return emulated::load(low);
}

// An algorithm runs with the math that it is listed with.
static void maths(void) {
    Given cores = low_last;
    cores.math = CUDNN_TENSOR_OP_MATH;
    CHECK(run<bf16>(cores, 0).status[0] == CUDNN_STATUS_NOT_SUPPORTED);
    DNN_OK(run<bf16>(cores, 1).status[0]);
}

// With the two algorithms that take channels last.
static void results(void) {
    for (int algorithm = 0; algorithm < 2; ++algorithm) {
        Results wanted = run<float>(logical, algorithm), f32 = run<float>(last, algorithm);
        Results bf = run<bf16>(low, algorithm), both = run<bf16>(low_last, algorithm);
        for (int i = 0; i < 4; ++i) {
            for (const Results *r : {&wanted, &f32, &bf, &both}) DNN_OK(r->status[i]);
            CHECK(wanted.values[i] == f32.values[i]);
            for (float &x : wanted.values[i]) x = rounded(x);
            CHECK(wanted.values[i] == bf.values[i] && wanted.values[i] == both.values[i]);
        }
    }
}

// What a forward by IMPLICIT_PRECOMP_GEMM answers before it looks at memory.
static cudnnStatus_t asked(const Sizes &s, const Given &g, int algorithm) {
    Descriptors d = describe(s, g);
    size_t bytes;
    cudnnStatus_t status = cudnnGetConvolutionForwardWorkspaceSize(
        d.handle, d.x, d.w, d.conv, d.y, static_cast<cudnnConvolutionFwdAlgo_t>(algorithm), &bytes);
    destroy(d);
    return status;
}

static void refusals(void) {
    const int precomputed = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    const int explicit_gemm = CUDNN_CONVOLUTION_FWD_ALGO_GEMM;
    Sizes narrow = sizes;
    narrow.groups = 4; // of 4 channels
    DNN_OK(asked(sizes, low_last, precomputed));
    DNN_OK(asked(sizes, low, explicit_gemm));
    CHECK(asked(sizes, low_last, explicit_gemm) == CUDNN_STATUS_NOT_SUPPORTED);
    DNN_OK(asked(narrow, last, precomputed));
    CHECK(asked(narrow, low_last, precomputed) == CUDNN_STATUS_NOT_SUPPORTED);
    Given mixed = low_last;
    mixed.math = CUDNN_FMA_MATH;
    CHECK(asked(sizes, mixed, precomputed) == CUDNN_STATUS_NOT_SUPPORTED);
    // Weights of another layout or type than tensors, and sums of bf16.
    Descriptors d = describe(sizes, low_last);
    size_t bytes;
    auto ask = [&] {
        return cudnnGetConvolutionForwardWorkspaceSize(
            d.handle, d.x, d.w, d.conv, d.y, static_cast<cudnnConvolutionFwdAlgo_t>(precomputed),
            &bytes);
    };
    DNN_OK(
        cudnnSetFilter4dDescriptor(d.w, CUDNN_DATA_BFLOAT16, CUDNN_TENSOR_NCHW, sizes.k, 8, 3, 3));
    CHECK(ask() == CUDNN_STATUS_NOT_SUPPORTED);
    DNN_OK(cudnnSetFilter4dDescriptor(d.w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, sizes.k, 8, 3, 3));
    CHECK(ask() == CUDNN_STATUS_NOT_SUPPORTED);
    DNN_OK(
        cudnnSetFilter4dDescriptor(d.w, CUDNN_DATA_BFLOAT16, CUDNN_TENSOR_NHWC, sizes.k, 8, 3, 3));
    DNN_OK(ask());
    DNN_OK(cudnnSetConvolution2dDescriptor(d.conv, 1, 1, 2, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                           CUDNN_DATA_BFLOAT16));
    DNN_OK(cudnnSetConvolutionGroupCount(d.conv, sizes.groups));
    CHECK(ask() == CUDNN_STATUS_NOT_SUPPORTED);
    destroy(d);
}

void last_tests(void) {
    run_everywhere("convolutions with channels last", results);
    run_test("refusals with channels last", refusals, "random");
    run_test("maths of bf16", maths, "random");
}
