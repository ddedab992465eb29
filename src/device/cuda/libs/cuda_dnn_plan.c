// SPDX-License-Identifier: MIT
// What cuDNN needs for a shape: descriptors, which are cached, and candidate algorithms.
//
// Unless tuning is on, the algorithm is the first that cuDNN's heuristics name for the shape and
// that gives the same bits in every run; the choice does not depend on measured times.
#include "device/cuda/libs/cuda_dnn_plan.h"

#include <limits.h>
#include <string.h>

void iso__dnn_plan_destroy(const iso__cuda_dnn *dnn, iso__dnn_plan *p) {
    if (p->x) dnn->call.cudnnDestroyTensorDescriptor(p->x);
    if (p->y) dnn->call.cudnnDestroyTensorDescriptor(p->y);
    if (p->bias) dnn->call.cudnnDestroyTensorDescriptor(p->bias);
    if (p->w) dnn->call.cudnnDestroyFilterDescriptor(p->w);
    if (p->conv) dnn->call.cudnnDestroyConvolutionDescriptor(p->conv);
    iso__free(p);
}

static iso_status describe_tensors(const iso__cuda_dnn *dnn, iso__dnn_plan *p,
                                   cudnnDataType_t type) {
    const iso__dnn_functions *call = &dnn->call;
    const iso__dnn_key *k = &p->key;
    cudnnTensorFormat_t format = k->last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    int rows = (int)k->rows, outs = (int)k->out_channels;
    ISO_TRY_DNN(dnn, call->cudnnCreateTensorDescriptor(&p->x));
    ISO_TRY_DNN(dnn, call->cudnnCreateTensorDescriptor(&p->y));
    ISO_TRY_DNN(dnn, call->cudnnCreateTensorDescriptor(&p->bias));
    ISO_TRY_DNN(dnn, call->cudnnCreateFilterDescriptor(&p->w));
    ISO_TRY_DNN(dnn, call->cudnnSetTensor4dDescriptor(p->x, format, type, rows, (int)k->channels,
                                                      (int)k->height, (int)k->width));
    ISO_TRY_DNN(dnn, call->cudnnSetTensor4dDescriptor(p->y, format, type, rows, outs,
                                                      (int)k->out_height, (int)k->out_width));
    ISO_TRY_DNN(dnn, call->cudnnSetTensor4dDescriptor(p->bias, format, type, 1, outs, 1, 1));
    ISO_TRY_DNN(dnn, call->cudnnSetFilter4dDescriptor(p->w, type, format, outs,
                                                      (int)(k->channels / k->groups),
                                                      (int)k->kernel[0], (int)k->kernel[1]));
    return ISO_OK;
}

static cudnnDataType_t type_of(int64_t dtype) {
    if (dtype == ISO_F64) return CUDNN_DATA_DOUBLE;
    if (dtype == ISO_F16) return CUDNN_DATA_HALF;
    return dtype == ISO_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

// The default math of cuDNN rounds factors to TF32, so exact f32 asks for multiply-adds. Its math
// with smaller factors takes f16, which overflows: for bf16 there is TF32. Products of 16
// bits are exact in any math, and their sums f32.
static cudnnMathType_t math_of(const iso__dnn_key *k) {
    if (iso__is_half((iso_dtype)k->dtype)) return CUDNN_TENSOR_OP_MATH;
    return k->math == ISO_CUDA_MATH_F32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
}

static iso_status describe_problem(const iso__cuda_dnn *dnn, iso__dnn_plan *p) {
    const iso__dnn_functions *call = &dnn->call;
    const iso__dnn_key *k = &p->key;
    cudnnDataType_t type = type_of(k->dtype);
    cudnnDataType_t sums = type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    ISO_TRY(describe_tensors(dnn, p, type));
    ISO_TRY_DNN(dnn, call->cudnnCreateConvolutionDescriptor(&p->conv));
    ISO_TRY_DNN(dnn, call->cudnnSetConvolution2dDescriptor(
                         p->conv, (int)k->padding[0], (int)k->padding[1], (int)k->stride[0],
                         (int)k->stride[1], (int)k->dilation[0], (int)k->dilation[1],
                         CUDNN_CROSS_CORRELATION, sums));
    ISO_TRY_DNN(dnn, call->cudnnSetConvolutionGroupCount(p->conv, (int)k->groups));
    ISO_TRY_DNN(dnn, call->cudnnSetConvolutionMathType(p->conv, math_of(k)));
    return ISO_OK;
}

// More workspace than this is not worth what it is worth elsewhere.
#define MOST_WORKSPACE ((size_t)1 << 30)

static cudnnStatus_t workspace_of(const iso__cuda_dnn *dnn, const iso__dnn_plan *p, int algorithm,
                                  size_t *out) {
    const iso__dnn_functions *call = &dnn->call;
    switch ((iso__dnn_direction)p->key.direction) {
    case ISO__DNN_FORWARD:
        return call->cudnnGetConvolutionForwardWorkspaceSize(
            dnn->handle, p->x, p->w, p->conv, p->y, (cudnnConvolutionFwdAlgo_t)algorithm, out);
    case ISO__DNN_FILTER:
        return call->cudnnGetConvolutionBackwardFilterWorkspaceSize(
            dnn->handle, p->x, p->y, p->conv, p->w, (cudnnConvolutionBwdFilterAlgo_t)algorithm,
            out);
    case ISO__DNN_INPUT: break;
    }
    return call->cudnnGetConvolutionBackwardDataWorkspaceSize(
        dnn->handle, p->w, p->y, p->conv, p->x, (cudnnConvolutionBwdDataAlgo_t)algorithm, out);
}

// What an algorithm is to be run with that was named with `math`. What is exact stays so, and f32
// is never made f16.
static cudnnMathType_t run_math(const iso__dnn_key *k, cudnnMathType_t math) {
    bool exact = !iso__is_half((iso_dtype)k->dtype) && k->math == ISO_CUDA_MATH_F32;
    if (exact || math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION) return math_of(k);
    return math;
}

// Winograd's and Fourier's transforms would overflow in f16.
static bool is_product(const iso__dnn_key *k, int algorithm) {
    switch ((iso__dnn_direction)k->direction) {
    case ISO__DNN_FORWARD: return algorithm <= CUDNN_CONVOLUTION_FWD_ALGO_GEMM;
    case ISO__DNN_FILTER: return algorithm <= CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
    case ISO__DNN_INPUT: break;
    }
    return algorithm <= CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
}

static void consider_algorithm(const iso__cuda_dnn *dnn, iso__dnn_plan *p, int algorithm,
                               cudnnStatus_t status, cudnnDeterminism_t determinism,
                               cudnnMathType_t math) {
    bool rounds = math == CUDNN_TENSOR_OP_MATH || math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION;
    cudnnMathType_t with = run_math(&p->key, math);
    size_t workspace;
    if (status != CUDNN_STATUS_SUCCESS || determinism != CUDNN_DETERMINISTIC) return;
    if (rounds && p->key.dtype == ISO_F32 && p->key.math == ISO_CUDA_MATH_F32) return;
    if (p->key.dtype == ISO_F16 && !is_product(&p->key, algorithm)) return;
    for (int i = 0; i < p->count; i++)
        if (p->algorithm[i] == algorithm && p->math[i] == with) return;
    if (dnn->call.cudnnSetConvolutionMathType(p->conv, with) != CUDNN_STATUS_SUCCESS) return;
    if (workspace_of(dnn, p, algorithm, &workspace) != CUDNN_STATUS_SUCCESS) return;
    if (workspace > MOST_WORKSPACE) return;
    p->algorithm[p->count] = algorithm;
    p->math[p->count] = with;
    p->workspace[p->count++] = workspace;
}

#define CONSIDER(dnn, p, perf, returned)                                                           \
    for (int i = 0; i < (returned); i++)                                                           \
    consider_algorithm(dnn, p, (int)(perf)[i].algo, (perf)[i].status, (perf)[i].determinism,       \
                       (perf)[i].mathType)

// A shape that cuDNN cannot do is left without candidates.
static iso_status choose_algorithms(const iso__cuda_dnn *dnn, iso__dnn_plan *p) {
    const iso__dnn_functions *call = &dnn->call;
    cudnnConvolutionFwdAlgoPerf_t forward[ISO__DNN_ALGORITHMS];
    cudnnConvolutionBwdFilterAlgoPerf_t filter[ISO__DNN_ALGORITHMS];
    cudnnConvolutionBwdDataAlgoPerf_t input[ISO__DNN_ALGORITHMS];
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    int returned = 0;
    switch ((iso__dnn_direction)p->key.direction) {
    case ISO__DNN_FORWARD:
        status = call->cudnnGetConvolutionForwardAlgorithm_v7(
            dnn->handle, p->x, p->w, p->conv, p->y, ISO__DNN_ALGORITHMS, &returned, forward);
        CONSIDER(dnn, p, forward, returned);
        break;
    case ISO__DNN_FILTER:
        status = call->cudnnGetConvolutionBackwardFilterAlgorithm_v7(
            dnn->handle, p->x, p->y, p->conv, p->w, ISO__DNN_ALGORITHMS, &returned, filter);
        CONSIDER(dnn, p, filter, returned);
        break;
    case ISO__DNN_INPUT:
        status = call->cudnnGetConvolutionBackwardDataAlgorithm_v7(
            dnn->handle, p->w, p->y, p->conv, p->x, ISO__DNN_ALGORITHMS, &returned, input);
        CONSIDER(dnn, p, input, returned);
        break;
    }
    if (!iso__dnn_unsupported(status)) ISO_TRY_DNN_AS(dnn, "its choice of an algorithm", status);
    return ISO_OK;
}

// cuDNN counts in int, the elements of a tensor too.
static bool fits_int(const iso__dnn_key *k) {
    int64_t size[sizeof(*k) / sizeof(int64_t)];
    memcpy(size, k, sizeof(*k));
    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++)
        if (size[i] > INT_MAX) return false;
    double x = (double)k->rows * (double)k->channels * (double)k->height * (double)k->width;
    double y =
        (double)k->rows * (double)k->out_channels * (double)k->out_height * (double)k->out_width;
    double w = (double)k->out_channels * (double)(k->channels / k->groups) * (double)k->kernel[0] *
               (double)k->kernel[1];
    return x <= INT_MAX && y <= INT_MAX && w <= INT_MAX;
}

void iso__dnn_say(iso_log_level level, const iso__dnn_plan *p, const char *what) {
    static const char *const ways[] = {"forward", "weights' gradient", "input's gradient"};
    const iso__dnn_key *k = &p->key;
    iso__log(
        level,
        "cuDNN, %s of a convolution in %s%s, [%lld, %lld, %lld, %lld] to %lld channels, kernel "
        "%lld x %lld, stride %lld, groups %lld: %s (algorithm %d, math %d, %d of %d)",
        ways[k->direction], iso_dtype_name((iso_dtype)k->dtype),
        k->last ? " with channels last" : "", (long long)k->rows, (long long)k->channels,
        (long long)k->height, (long long)k->width, (long long)k->out_channels,
        (long long)k->kernel[0], (long long)k->kernel[1], (long long)k->stride[0],
        (long long)k->groups, what, p->at < p->count ? p->algorithm[p->at] : -1,
        p->at < p->count ? (int)p->math[p->at] : -1, p->at < p->count ? p->at + 1 : 0, p->count);
}

int iso__dnn_candidate(const iso__dnn_plan *p) {
    if (p->chosen >= 0 && !p->refused[p->chosen]) return p->chosen;
    int i = 0;
    while (i < p->count && p->refused[i]) i++;
    return i;
}

static void say_choice(const iso__dnn_plan *p) {
    if (p->count == 0)
        iso__dnn_say(ISO_LOG_INFO, p, "no deterministic algorithm");
    else
        iso__dnn_say(ISO_LOG_DEBUG, p, "chosen");
}

iso_status iso__dnn_find_plan(iso__cuda *cuda, const iso__dnn_key *key, iso__dnn_plan **out) {
    iso__cuda_dnn *dnn = cuda->dnn;
    iso__cuda_entry *entry = iso__cuda_cache_find(&dnn->plans, key);
    void *memory;
    iso_status status;
    if (entry) {
        *out = iso_container_of(entry, iso__dnn_plan, base);
        return ISO_OK;
    }
    ISO_TRY(iso__alloc_zero(sizeof(iso__dnn_plan), &memory));
    iso__dnn_plan *p = memory;
    p->key = *key;
    p->base.key = &p->key;
    p->fuses_relu = true;
    p->chosen = -1;
    if (fits_int(key)) {
        ISO_TRY_GOTO(iso__cuda_enter(cuda));
        ISO_TRY_GOTO(describe_problem(dnn, p));
        ISO_TRY_GOTO(choose_algorithms(dnn, p));
    }
    iso__dnn_apply_choice(dnn, p);
    iso__cuda_cache_add(&dnn->plans, &p->base);
    cuda->base.primitives_created++;
    say_choice(p);
    *out = p;
    return ISO_OK;
fail:
    iso__dnn_plan_destroy(dnn, p);
    return status;
}
