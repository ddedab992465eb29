// SPDX-License-Identifier: MIT
// The emulated cuDNN: heuristics, and convolutions, each a task in the handle's stream.
//
// What convolutions must fulfil is in cuDNN's guide. Where the guide leaves it open, an algorithm
// refuses rather than not: relu is fused by some alone, and one needs addresses that are multiples
// of 16 bytes.
#include "emulated_cudnn.h"

#include "emulated_convolution.h"

using namespace emulated;

namespace emulated {

// ---- Convolutions ----

static int outputs(int side, int kernel, int i, const cudnnConvolutionStruct &c) {
    int covered = c.dilation[i] * (kernel - 1) + 1, room = side + 2 * c.padding[i] - covered;
    return room < 0 ? 0 : room / c.stride[i] + 1;
}

// Tensors and weights are of one type and one layout; sums of bf16 are f32.
static cudnnStatus_t check_types(const cudnnTensorStruct &x, const cudnnFilterStruct &w,
                                 const cudnnConvolutionStruct &conv, const cudnnTensorStruct &y) {
    bool low = x.type == CUDNN_DATA_BFLOAT16;
    bool known = x.type == CUDNN_DATA_FLOAT || x.type == CUDNN_DATA_DOUBLE || low;
    if (!known || w.type != x.type || y.type != x.type) return CUDNN_STATUS_NOT_SUPPORTED;
    if (conv.type != (low ? CUDNN_DATA_FLOAT : x.type)) return CUDNN_STATUS_NOT_SUPPORTED;
    bool known_format = x.format == CUDNN_TENSOR_NCHW || x.format == CUDNN_TENSOR_NHWC;
    return known_format && w.format == x.format && y.format == x.format
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_NOT_SUPPORTED;
}

static cudnnStatus_t check_shapes(const cudnnTensorStruct &x, const cudnnFilterStruct &w,
                                  const cudnnConvolutionStruct &conv, const cudnnTensorStruct &y) {
    if (x.n == 0 || w.k == 0 || y.n == 0 || conv.stride[0] == 0) return CUDNN_STATUS_BAD_PARAM;
    bool fits = x.c == w.c * conv.groups && w.k % conv.groups == 0 && y.n == x.n && y.c == w.k &&
                y.h == outputs(x.h, w.h, 0, conv) && y.w == outputs(x.w, w.w, 1, conv);
    return fits ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

static cudnnStatus_t describe(Direction direction, cudnnTensorDescriptor_t x,
                              cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                              cudnnTensorDescriptor_t y, Convolution *out) {
    DNN_TRY(alive(x));
    DNN_TRY(alive(w));
    DNN_TRY(alive(conv));
    DNN_TRY(alive(y));
    DNN_TRY(check_shapes(*x, *w, *conv, *y));
    DNN_TRY(check_types(*x, *w, *conv, *y));
    *out = Convolution{direction,
                       x->type,
                       x->type == CUDNN_DATA_DOUBLE,
                       x->format == CUDNN_TENSOR_NHWC,
                       conv->mode == CUDNN_CONVOLUTION,
                       conv->math,
                       x->n,
                       x->c,
                       x->h,
                       x->w,
                       w->k,
                       w->h,
                       w->w,
                       y->h,
                       y->w,
                       conv->groups,
                       {conv->padding[0], conv->padding[1]},
                       {conv->stride[0], conv->stride[1]},
                       {conv->dilation[0], conv->dilation[1]}};
    return CUDNN_STATUS_SUCCESS;
}

template <class Perf, class Algorithm>
static cudnnStatus_t fill_perf(const Convolution &c, int requested, int *returned, Perf *out) {
    if (requested <= 0 || returned == nullptr || out == nullptr) return CUDNN_STATUS_BAD_PARAM;
    *returned = 0;
    for (const Candidate &one : candidates(c)) {
        if (*returned == requested) break;
        Perf perf = Perf();
        perf.algo = static_cast<Algorithm>(one.algorithm);
        perf.status = one.supported ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
        perf.time = -1; // nothing was measured
        perf.memory = one.workspace;
        perf.determinism = one.deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
        perf.mathType = one.math;
        out[(*returned)++] = perf;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t workspace_of(const Convolution &c, int algorithm, size_t *bytes) {
    if (bytes == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    return algorithm_can_do(c, algorithm, bytes) ? CUDNN_STATUS_SUCCESS
                                                 : CUDNN_STATUS_NOT_SUPPORTED;
}

// ---- Running ----

struct Memory {
    const void *x, *w, *y;
    void *workspace;
    size_t workspace_bytes;
};

static size_t count_of(const cudnnTensorStruct &x) {
    return static_cast<size_t>(x.n) * static_cast<size_t>(x.c) * static_cast<size_t>(x.h * x.w);
}

static cudnnStatus_t check_array(const void *p, size_t count, size_t size, const char *function) {
    if (p == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (reinterpret_cast<uintptr_t>(p) % size != 0)
        return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    check_device_range(p, count * size, function);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_memory(const Convolution &c, int algorithm, const Memory &m,
                                  const char *function) {
    size_t needed, size = element_size(c);
    if (!algorithm_can_do(c, algorithm, &needed)) return CUDNN_STATUS_NOT_SUPPORTED;
    if (m.workspace_bytes < needed) return CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT;
    size_t n = static_cast<size_t>(c.n), x = n * static_cast<size_t>(c.c),
           y = n * static_cast<size_t>(c.k);
    size_t w = static_cast<size_t>(c.k) * static_cast<size_t>(c.c / c.groups * c.r * c.s);
    DNN_TRY(check_array(m.x, x * static_cast<size_t>(c.h * c.w), size, function));
    DNN_TRY(check_array(m.y, y * static_cast<size_t>(c.oh * c.ow), size, function));
    DNN_TRY(check_array(m.w, w, size, function));
    if (needed > 0) DNN_TRY(check_array(m.workspace, needed / size, size, function));
    if (algorithm_needs_16(c, algorithm))
        for (const void *p : {m.x, m.w, m.y})
            if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
                return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    return CUDNN_STATUS_SUCCESS;
}

// Factors are double for double, otherwise float.
static double read_factor(const void *p, bool f64) {
    return f64 ? *static_cast<const double *>(p)
               : static_cast<double>(*static_cast<const float *>(p));
}

// Heuristics list an algorithm once for each math that it has. What happens with another one is not
// documented, so bf16 is refused then.
static bool is_named(const Convolution &c, int algorithm) {
    for (const Candidate &one : candidates(c))
        if (one.algorithm == algorithm && one.math == c.math) return true;
    return c.type != CUDNN_DATA_BFLOAT16;
}

static cudnnStatus_t start(cudnnHandle_t handle, ConvolutionRun run, int algorithm, const Memory &m,
                           const char *function) {
    DNN_TRY(check_memory(run.conv, algorithm, m, function));
    if (!is_named(run.conv, algorithm)) return CUDNN_STATUS_NOT_SUPPORTED;
    size_t needed = 0;
    algorithm_can_do(run.conv, algorithm, &needed);
    run.deterministic = is_deterministic(run.conv.direction, algorithm);
    run.x = m.x;
    run.w = m.w;
    run.y = m.y;
    unsigned char *workspace = static_cast<unsigned char *>(m.workspace);
    bool queued = submit_library(handle->stream, handle->device, function, [=] {
        // Whoever keeps something there finds it gone.
        for (size_t i = 0; i < needed; i += 1 + needed / 4096) real(workspace)[i] = 0xDB;
        run_convolution(run);
    });
    return queued ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

static ConvolutionRun plain_run(const Convolution &c, const void *alpha, const void *beta,
                                const void *added) {
    ConvolutionRun run = ConvolutionRun();
    run.conv = c;
    run.alpha = read_factor(alpha, c.f64);
    run.beta = read_factor(beta, c.f64);
    run.added = added;
    return run;
}

// What a fused forward asks beyond a convolution.
static cudnnStatus_t check_fusion(const cudnnTensorStruct &y, int algorithm,
                                  cudnnTensorDescriptor_t z, cudnnTensorDescriptor_t bias,
                                  cudnnActivationDescriptor_t act) {
    DNN_TRY(alive(z));
    DNN_TRY(alive(bias));
    DNN_TRY(alive(act));
    if (bias->n != 1 || bias->c != y.c || bias->h != 1 || bias->w != 1)
        return CUDNN_STATUS_BAD_PARAM;
    if (z->n != y.n || z->c != y.c || z->h != y.h || z->w != y.w) return CUDNN_STATUS_BAD_PARAM;
    if (bias->type != y.type || z->type != y.type || act->nan != CUDNN_NOT_PROPAGATE_NAN)
        return CUDNN_STATUS_NOT_SUPPORTED;
    if (act->mode == CUDNN_ACTIVATION_IDENTITY)
        return algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
                   ? CUDNN_STATUS_SUCCESS
                   : CUDNN_STATUS_NOT_SUPPORTED;
    return act->mode == CUDNN_ACTIVATION_RELU && algorithm_fuses(algorithm)
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_NOT_SUPPORTED;
}

} // namespace emulated

// ---- Heuristics and workspaces ----

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t srcDesc,
    const cudnnFilterDescriptor_t filterDesc, const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t destDesc, const int requestedAlgoCount, int *returnedAlgoCount,
    cudnnConvolutionFwdAlgoPerf_t *perfResults) {
    Convolution c;
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    DNN_TRY(describe(Direction::forward, srcDesc, filterDesc, convDesc, destDesc, &c));
    return fill_perf<cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t>(
        c, requestedAlgoCount, returnedAlgoCount, perfResults);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t srcDesc,
    const cudnnTensorDescriptor_t diffDesc, const cudnnConvolutionDescriptor_t convDesc,
    const cudnnFilterDescriptor_t gradDesc, const int requestedAlgoCount, int *returnedAlgoCount,
    cudnnConvolutionBwdFilterAlgoPerf_t *perfResults) {
    Convolution c;
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    DNN_TRY(describe(Direction::filter, srcDesc, gradDesc, convDesc, diffDesc, &c));
    return fill_perf<cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t>(
        c, requestedAlgoCount, returnedAlgoCount, perfResults);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t filterDesc,
    const cudnnTensorDescriptor_t diffDesc, const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t gradDesc, const int requestedAlgoCount, int *returnedAlgoCount,
    cudnnConvolutionBwdDataAlgoPerf_t *perfResults) {
    Convolution c;
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    DNN_TRY(describe(Direction::input, gradDesc, filterDesc, convDesc, diffDesc, &c));
    return fill_perf<cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t>(
        c, requestedAlgoCount, returnedAlgoCount, perfResults);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t xDesc, const cudnnFilterDescriptor_t wDesc,
    const cudnnConvolutionDescriptor_t convDesc, const cudnnTensorDescriptor_t yDesc,
    cudnnConvolutionFwdAlgo_t algo, size_t *sizeInBytes) {
    Convolution c;
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    DNN_TRY(describe(Direction::forward, xDesc, wDesc, convDesc, yDesc, &c));
    return workspace_of(c, algo, sizeInBytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t xDesc, const cudnnTensorDescriptor_t dyDesc,
    const cudnnConvolutionDescriptor_t convDesc, const cudnnFilterDescriptor_t gradDesc,
    cudnnConvolutionBwdFilterAlgo_t algo, size_t *sizeInBytes) {
    Convolution c;
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    DNN_TRY(describe(Direction::filter, xDesc, gradDesc, convDesc, dyDesc, &c));
    return workspace_of(c, algo, sizeInBytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t wDesc, const cudnnTensorDescriptor_t dyDesc,
    const cudnnConvolutionDescriptor_t convDesc, const cudnnTensorDescriptor_t dxDesc,
    cudnnConvolutionBwdDataAlgo_t algo, size_t *sizeInBytes) {
    Convolution c;
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    DNN_TRY(describe(Direction::input, dxDesc, wDesc, convDesc, dyDesc, &c));
    return workspace_of(c, algo, sizeInBytes);
}

// ---- Convolutions ----

#define DNN_NOT_NULL(a, b)                                                                         \
    if ((a) == nullptr || (b) == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                      const cudnnTensorDescriptor_t xDesc, const void *x,
                                      const cudnnFilterDescriptor_t wDesc, const void *w,
                                      const cudnnConvolutionDescriptor_t convDesc,
                                      cudnnConvolutionFwdAlgo_t algo, void *workSpace,
                                      size_t workSpaceSizeInBytes, const void *beta,
                                      const cudnnTensorDescriptor_t yDesc, void *y) {
    Convolution c;
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    DNN_NOT_NULL(alpha, beta);
    DNN_TRY(describe(Direction::forward, xDesc, wDesc, convDesc, yDesc, &c));
    return start(handle, plain_run(c, alpha, beta, y), algo,
                 {x, w, y, workSpace, workSpaceSizeInBytes}, __func__);
}

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, const cudnnTensorDescriptor_t xDesc, const void *x,
    const cudnnFilterDescriptor_t wDesc, const void *w, const cudnnConvolutionDescriptor_t convDesc,
    cudnnConvolutionFwdAlgo_t algo, void *workSpace, size_t workSpaceSizeInBytes,
    const void *alpha2, const cudnnTensorDescriptor_t zDesc, const void *z,
    const cudnnTensorDescriptor_t biasDesc, const void *bias,
    const cudnnActivationDescriptor_t activationDesc, const cudnnTensorDescriptor_t yDesc,
    void *y) {
    Convolution c;
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    DNN_NOT_NULL(alpha1, alpha2);
    DNN_TRY(describe(Direction::forward, xDesc, wDesc, convDesc, yDesc, &c));
    DNN_TRY(check_fusion(*yDesc, algo, zDesc, biasDesc, activationDesc));
    size_t size = element_size(c);
    DNN_TRY(check_array(z, count_of(*zDesc), size, __func__));
    DNN_TRY(check_array(bias, static_cast<size_t>(c.k), size, __func__));
    ConvolutionRun run = plain_run(c, alpha1, alpha2, z);
    run.bias = bias;
    run.relu = activationDesc->mode == CUDNN_ACTIVATION_RELU;
    return start(handle, run, algo, {x, w, y, workSpace, workSpaceSizeInBytes}, __func__);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             const cudnnTensorDescriptor_t xDesc, const void *x,
                                             const cudnnTensorDescriptor_t dyDesc, const void *dy,
                                             const cudnnConvolutionDescriptor_t convDesc,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workSpace,
                                             size_t workSpaceSizeInBytes, const void *beta,
                                             const cudnnFilterDescriptor_t dwDesc, void *dw) {
    Convolution c;
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    DNN_NOT_NULL(alpha, beta);
    DNN_TRY(describe(Direction::filter, xDesc, dwDesc, convDesc, dyDesc, &c));
    return start(handle, plain_run(c, alpha, beta, dw), algo,
                 {x, dw, dy, workSpace, workSpaceSizeInBytes}, __func__);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           const cudnnFilterDescriptor_t wDesc, const void *w,
                                           const cudnnTensorDescriptor_t dyDesc, const void *dy,
                                           const cudnnConvolutionDescriptor_t convDesc,
                                           cudnnConvolutionBwdDataAlgo_t algo, void *workSpace,
                                           size_t workSpaceSizeInBytes, const void *beta,
                                           const cudnnTensorDescriptor_t dxDesc, void *dx) {
    Convolution c;
    DNN_INJECTED();
    DNN_TRY(check_handle(handle));
    DNN_NOT_NULL(alpha, beta);
    DNN_TRY(describe(Direction::input, dxDesc, wDesc, convDesc, dyDesc, &c));
    return start(handle, plain_run(c, alpha, beta, dx), algo,
                 {dx, w, dy, workSpace, workSpaceSizeInBytes}, __func__);
}
