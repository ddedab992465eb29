// SPDX-License-Identifier: MIT
// The emulated GPU's own test: convolutions of cuDNN against the definition, and what it refuses.
#include "emulator_test.h"

#include <cudnn.h>

#include <vector>

#define DNN_OK(call) CHECK((call) == CUDNN_STATUS_SUCCESS)

struct Shape {
    int n, c, h, w, k, r, s, padding[2], stride[2], dilation[2], groups;
    cudnnConvolutionMode_t mode;
};

// Small integers, so that every order of sums gives the same.
template <class T> static T *upload(size_t count, std::vector<double> *values) {
    std::vector<T> host(count);
    values->resize(count);
    for (size_t i = 0; i < count; ++i) {
        (*values)[i] = static_cast<double>((i * 7 + i / 5) % 9) - 4;
        host[i] = static_cast<T>((*values)[i]);
    }
    T *x = device_array<T>(count);
    OK(cudaMemcpy(x, host.data(), count * sizeof(T), cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    return x;
}

template <class T> static void check_array(const T *device, const std::vector<double> &expected) {
    std::vector<T> host(expected.size());
    OK(cudaMemcpy(host.data(), device, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < host.size(); ++i) CHECK(static_cast<double>(host[i]) == expected[i]);
}

template <class T> struct Problem {
    Shape shape;
    int oh, ow;
    cudaStream_t stream;
    cudnnHandle_t handle;
    cudnnTensorDescriptor_t x_desc, y_desc, bias_desc;
    cudnnFilterDescriptor_t w_desc;
    cudnnConvolutionDescriptor_t conv;
    cudnnActivationDescriptor_t relu;
    T *x, *w, *y, *bias;
    void *workspace;
    std::vector<double> hx, hw, hy, hbias;
};
static const size_t workspace_bytes = 16 << 20;

static int outputs(const Shape &s, int side, int kernel, int i) {
    return (side + 2 * s.padding[i] - s.dilation[i] * (kernel - 1) - 1) / s.stride[i] + 1;
}

template <class T> static Problem<T> make(const Shape &s) {
    Problem<T> p;
    cudnnDataType_t type = sizeof(T) == 8 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    p.shape = s;
    p.oh = outputs(s, s.h, s.r, 0);
    p.ow = outputs(s, s.w, s.s, 1);
    p.stream = make_stream();
    DNN_OK(cudnnCreate(&p.handle));
    DNN_OK(cudnnSetStream(p.handle, p.stream));
    DNN_OK(cudnnCreateTensorDescriptor(&p.x_desc));
    DNN_OK(cudnnCreateTensorDescriptor(&p.y_desc));
    DNN_OK(cudnnCreateTensorDescriptor(&p.bias_desc));
    DNN_OK(cudnnCreateFilterDescriptor(&p.w_desc));
    DNN_OK(cudnnCreateConvolutionDescriptor(&p.conv));
    DNN_OK(cudnnCreateActivationDescriptor(&p.relu));
    DNN_OK(cudnnSetActivationDescriptor(p.relu, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0));
    DNN_OK(cudnnSetTensor4dDescriptor(p.x_desc, CUDNN_TENSOR_NCHW, type, s.n, s.c, s.h, s.w));
    DNN_OK(cudnnSetTensor4dDescriptor(p.y_desc, CUDNN_TENSOR_NCHW, type, s.n, s.k, p.oh, p.ow));
    DNN_OK(cudnnSetTensor4dDescriptor(p.bias_desc, CUDNN_TENSOR_NCHW, type, 1, s.k, 1, 1));
    DNN_OK(cudnnSetFilter4dDescriptor(p.w_desc, type, CUDNN_TENSOR_NCHW, s.k, s.c / s.groups, s.r,
                                      s.s));
    DNN_OK(cudnnSetConvolution2dDescriptor(p.conv, s.padding[0], s.padding[1], s.stride[0],
                                           s.stride[1], s.dilation[0], s.dilation[1], s.mode,
                                           type));
    DNN_OK(cudnnSetConvolutionGroupCount(p.conv, s.groups));
    DNN_OK(cudnnSetConvolutionMathType(p.conv, CUDNN_FMA_MATH));
    p.x = upload<T>(static_cast<size_t>(s.n * s.c * s.h * s.w), &p.hx);
    p.w = upload<T>(static_cast<size_t>(s.k * s.c / s.groups * s.r * s.s), &p.hw);
    p.y = upload<T>(static_cast<size_t>(s.n * s.k * p.oh * p.ow), &p.hy);
    p.bias = upload<T>(static_cast<size_t>(s.k), &p.hbias);
    p.workspace = device_array<char>(workspace_bytes);
    return p;
}

template <class T> static void destroy(Problem<T> *p) {
    for (T *x : {p->x, p->w, p->y, p->bias}) OK(cudaFree(x));
    OK(cudaFree(p->workspace));
    for (cudnnTensorDescriptor_t x : {p->x_desc, p->y_desc, p->bias_desc})
        DNN_OK(cudnnDestroyTensorDescriptor(x));
    DNN_OK(cudnnDestroyFilterDescriptor(p->w_desc));
    DNN_OK(cudnnDestroyConvolutionDescriptor(p->conv));
    DNN_OK(cudnnDestroyActivationDescriptor(p->relu));
    DNN_OK(cudnnDestroy(p->handle));
    CHECK(emulated_live_handles() == 0 && emulated_live_descriptors() == 0);
    CHECK(emulated_live_bytes() == 0);
}

// Calls visit(index of x, of w, of y) for every product of the definition.
template <class Visit> static void walk(const Shape &s, int oh, int ow, const Visit &visit) {
    int cg = s.c / s.groups, kg = s.k / s.groups;
    bool flip = s.mode == CUDNN_CONVOLUTION;
    for (int n = 0; n < s.n; ++n)
        for (int k = 0; k < s.k; ++k)
            for (int i = 0; i < oh * ow; ++i)
                for (int j = 0; j < cg * s.r * s.s; ++j) {
                    int r = j / s.s % s.r, q = j % s.s, c = j / (s.r * s.s);
                    int ih = i / ow * s.stride[0] - s.padding[0] + r * s.dilation[0];
                    int iw = i % ow * s.stride[1] - s.padding[1] + q * s.dilation[1];
                    if (ih < 0 || iw < 0 || ih >= s.h || iw >= s.w) continue;
                    int tap = flip ? (s.r - 1 - r) * s.s + s.s - 1 - q : r * s.s + q;
                    int x = ((n * s.c + k / kg * cg + c) * s.h + ih) * s.w + iw;
                    visit(static_cast<size_t>(x),
                          static_cast<size_t>((k * cg + c) * s.r * s.s + tap),
                          static_cast<size_t>((n * s.k + k) * oh * ow + i));
                }
}

// 2 * product + beta * what was there, with every algorithm that takes the shape; how many did.
template <class T> static int check_forward(const Shape &s, T beta) {
    int done = 0;
    for (int a = 0; a < 8; ++a) {
        Problem<T> p = make<T>(s);
        const T alpha = 2, one = 1;
        cudnnConvolutionFwdAlgo_t algo = static_cast<cudnnConvolutionFwdAlgo_t>(a);
        std::vector<double> y(p.hy.size()), fused;
        walk(s, p.oh, p.ow, [&](size_t x, size_t w, size_t o) { y[o] += p.hx[x] * p.hw[w]; });
        for (size_t i = 0; i < y.size(); ++i) y[i] = 2 * y[i] + static_cast<double>(beta) * p.hy[i];
        cudnnStatus_t status =
            cudnnConvolutionForward(p.handle, &alpha, p.x_desc, p.x, p.w_desc, p.w, p.conv, algo,
                                    p.workspace, workspace_bytes, &beta, p.y_desc, p.y);
        CHECK(status == CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_NOT_SUPPORTED ||
              status == CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
        OK(cudaStreamSynchronize(p.stream));
        check_array(p.y, status == CUDNN_STATUS_SUCCESS ? y : p.hy);
        done += status == CUDNN_STATUS_SUCCESS;
        if (status == CUDNN_STATUS_SUCCESS && a < 2) { // z is what y is
            size_t plane = static_cast<size_t>(p.oh * p.ow), k = static_cast<size_t>(s.k);
            walk(s, p.oh, p.ow,
                 [&](size_t x, size_t w, size_t o) { y[o] += 2 * p.hx[x] * p.hw[w]; });
            for (size_t i = 0; i < y.size(); ++i) {
                y[i] += p.hbias[i / plane % k];
                if (y[i] < 0) y[i] = 0;
            }
            DNN_OK(cudnnConvolutionBiasActivationForward(
                p.handle, &alpha, p.x_desc, p.x, p.w_desc, p.w, p.conv, algo, p.workspace,
                workspace_bytes, &one, p.y_desc, p.y, p.bias_desc, p.bias, p.relu, p.y_desc, p.y));
            OK(cudaStreamSynchronize(p.stream));
            check_array(p.y, y);
        }
        destroy(&p);
    }
    return done;
}

template <class T> static int check_backward(const Shape &s, T beta) {
    int done = 0;
    for (int a = 0; a < 7; ++a) {
        Problem<T> p = make<T>(s);
        const T alpha = 2;
        std::vector<double> w(p.hw.size()), x(p.hx.size());
        walk(s, p.oh, p.ow, [&](size_t i, size_t j, size_t o) {
            w[j] += p.hx[i] * p.hy[o];
            x[i] += p.hw[j] * p.hy[o];
        });
        for (size_t i = 0; i < w.size(); ++i) w[i] = 2 * w[i] + static_cast<double>(beta) * p.hw[i];
        for (size_t i = 0; i < x.size(); ++i) x[i] = 2 * x[i] + static_cast<double>(beta) * p.hx[i];
        cudnnStatus_t data =
            cudnnConvolutionBackwardData(p.handle, &alpha, p.w_desc, p.w, p.y_desc, p.y, p.conv,
                                         static_cast<cudnnConvolutionBwdDataAlgo_t>(a), p.workspace,
                                         workspace_bytes, &beta, p.x_desc, p.x);
        OK(cudaStreamSynchronize(p.stream));
        check_array(p.x, data == CUDNN_STATUS_SUCCESS ? x : p.hx);
        upload<T>(0, &x); // the same x again
        OK(cudaFree(p.x));
        p.x = upload<T>(p.hx.size(), &p.hx);
        cudnnStatus_t filter =
            cudnnConvolutionBackwardFilter(p.handle, &alpha, p.x_desc, p.x, p.y_desc, p.y, p.conv,
                                           static_cast<cudnnConvolutionBwdFilterAlgo_t>(a),
                                           p.workspace, workspace_bytes, &beta, p.w_desc, p.w);
        OK(cudaStreamSynchronize(p.stream));
        check_array(p.w, filter == CUDNN_STATUS_SUCCESS ? w : p.hw);
        done += (data == CUDNN_STATUS_SUCCESS) + (filter == CUDNN_STATUS_SUCCESS);
        destroy(&p);
    }
    return done;
}

static const Shape plain = {3, 4,      6,      5,      6, 3,
                            3, {1, 1}, {1, 1}, {1, 1}, 1, CUDNN_CROSS_CORRELATION};
static const Shape odd = {2, 6, 9, 7, 4, 3, 2, {2, 0}, {2, 3}, {1, 2}, 2, CUDNN_CROSS_CORRELATION};
static const Shape wide = {2, 2, 12, 11, 3, 5, 5, {0, 2}, {1, 2}, {1, 1}, 1, CUDNN_CONVOLUTION};

static void forwards(void) {
    CHECK(check_forward<float>(plain, 0) == 6); // not direct; fft has too little workspace
    CHECK(check_forward<float>(plain, -3) == 6);
    CHECK(check_forward<double>(plain, 1) == 3);
    CHECK(check_forward<float>(odd, 1) == 1);
    CHECK(check_forward<double>(wide, 0) == 3);
}
static void backwards(void) {
    CHECK(check_backward<float>(plain, 0) > 6);
    CHECK(check_backward<float>(odd, 1) == 2); // neither in a fixed order
    CHECK(check_backward<double>(wide, -3) == 5);
}

static void heuristics(void) {
    cudnnConvolutionBwdFilterAlgoPerf_t found[16];
    Problem<float> p = make<float>(wide);
    int count = 0;
    DNN_OK(cudnnGetConvolutionBackwardFilterAlgorithm_v7(p.handle, p.x_desc, p.y_desc, p.conv,
                                                         p.w_desc, 16, &count, found));
    CHECK(count == 7);
    CHECK(found[0].determinism == CUDNN_NON_DETERMINISTIC &&
          found[0].status == CUDNN_STATUS_SUCCESS);
    CHECK(found[0].mathType == CUDNN_FMA_MATH && found[6].status == CUDNN_STATUS_NOT_SUPPORTED);
    DNN_OK(cudnnSetConvolutionMathType(p.conv, CUDNN_DEFAULT_MATH));
    DNN_OK(cudnnGetConvolutionBackwardFilterAlgorithm_v7(p.handle, p.x_desc, p.y_desc, p.conv,
                                                         p.w_desc, 16, &count, found));
    CHECK(count == 8 && found[1].mathType == CUDNN_TENSOR_OP_MATH);
    DNN_OK(cudnnGetConvolutionBackwardFilterAlgorithm_v7(p.handle, p.x_desc, p.y_desc, p.conv,
                                                         p.w_desc, 2, &count, found));
    CHECK(count == 2);
    destroy(&p);
}

// One f32 factor of 13 bits: TF32 has 11.
static void rounding(void) {
    Shape one = {1, 1, 1, 1, 1, 1, 1, {0, 0}, {1, 1}, {1, 1}, 1, CUDNN_CROSS_CORRELATION};
    Problem<float> p = make<float>(one);
    const float value = 1.0f + 1.0f / 4096, alpha = 1, beta = 0;
    for (float *x : {p.x, p.w}) OK(cudaMemcpy(x, &value, 4, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
    for (cudnnMathType_t math : {CUDNN_FMA_MATH, CUDNN_DEFAULT_MATH}) {
        DNN_OK(cudnnSetConvolutionMathType(p.conv, math));
        DNN_OK(cudnnConvolutionForward(p.handle, &alpha, p.x_desc, p.x, p.w_desc, p.w, p.conv,
                                       CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, nullptr, 0, &beta,
                                       p.y_desc, p.y));
        OK(cudaStreamSynchronize(p.stream));
        CHECK(read_one(p.y) == (math == CUDNN_FMA_MATH ? value * value : 1.0f));
    }
    destroy(&p);
}

static void refusals(void) {
    Problem<float> p = make<float>(plain);
    const float alpha = 1, beta = 0;
    size_t needed = 0;
    auto forward = [&](cudnnConvolutionFwdAlgo_t algo, void *w, size_t bytes) {
        return cudnnConvolutionForward(p.handle, &alpha, p.x_desc, p.x, p.w_desc, w, p.conv, algo,
                                       p.workspace, bytes, &beta, p.y_desc, p.y);
    };
    auto fused = [&](cudnnConvolutionFwdAlgo_t algo) {
        return cudnnConvolutionBiasActivationForward(
            p.handle, &alpha, p.x_desc, p.x, p.w_desc, p.w, p.conv, algo, p.workspace,
            workspace_bytes, &beta, p.y_desc, p.y, p.bias_desc, p.bias, p.relu, p.y_desc, p.y);
    };
    const auto precomp = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    DNN_OK(cudnnGetConvolutionForwardWorkspaceSize(p.handle, p.x_desc, p.w_desc, p.conv, p.y_desc,
                                                   precomp, &needed));
    CHECK(needed > 0);
    CHECK(forward(precomp, p.w, needed - 1) == CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
    CHECK(forward(CUDNN_CONVOLUTION_FWD_ALGO_DIRECT, p.w, workspace_bytes) ==
          CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(forward(precomp, nullptr, needed) == CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    CHECK(forward(precomp, reinterpret_cast<char *>(p.w) + 2, needed) ==
          CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
    CHECK(fused(CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED) == CUDNN_STATUS_NOT_SUPPORTED);
    DNN_OK(cudnnSetActivationDescriptor(p.relu, CUDNN_ACTIVATION_IDENTITY, CUDNN_NOT_PROPAGATE_NAN,
                                        0));
    CHECK(fused(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM) == CUDNN_STATUS_NOT_SUPPORTED);
    DNN_OK(fused(precomp));
    DNN_OK(cudnnSetConvolutionGroupCount(p.conv, 2)); // of half as many channels
    CHECK(forward(precomp, p.w, needed) == CUDNN_STATUS_BAD_PARAM);
    // Descriptors, as cuDNN 9.19 answers.
    CHECK(cudnnSetTensor4dDescriptor(p.x_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 0, 2, 3, 4) ==
          CUDNN_STATUS_BAD_PARAM);
    CHECK(cudnnSetTensor4dDescriptor(p.x_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 32768, 65536, 1,
                                     1) == CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(cudnnSetConvolution2dDescriptor(p.conv, 0, 0, 0, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                          CUDNN_DATA_FLOAT) == CUDNN_STATUS_BAD_PARAM);
    CHECK(cudnnSetConvolutionGroupCount(p.conv, 0) == CUDNN_STATUS_BAD_PARAM);
    OK(cudaStreamSynchronize(p.stream));
    destroy(&p);
}

void dnn_tests(void) {
    run_everywhere("convolutions", forwards);
    run_everywhere("gradients of convolutions", backwards);
    run_test("heuristics of cuDNN", heuristics, "random");
    run_test("rounding of cuDNN", rounding, "random");
    run_test("refusals of cuDNN", refusals, "random");
}
