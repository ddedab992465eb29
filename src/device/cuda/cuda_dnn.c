// Convolutions by cuDNN.
//
// What runs is the first that its heuristics name for the shape among the algorithms that give the
// same bits in every run; never a matter of time. Descriptors are kept for each shape.
#include "device/cuda/cuda_dnn.h"

#include "device/cuda/cuda_cache.h"
#include "device/cuda/cuda_library.h"
#include "device/cuda/linear_kernels.h"

#include <cudnn.h>
#include <limits.h>
#include <string.h>

#define DNN_FUNCTIONS(X)                                                                           \
    X(cudnnConvolutionBackwardData)                                                                \
    X(cudnnConvolutionBackwardFilter)                                                              \
    X(cudnnConvolutionBiasActivationForward)                                                       \
    X(cudnnConvolutionForward)                                                                     \
    X(cudnnCreate)                                                                                 \
    X(cudnnCreateActivationDescriptor)                                                             \
    X(cudnnCreateConvolutionDescriptor)                                                            \
    X(cudnnCreateFilterDescriptor)                                                                 \
    X(cudnnCreateTensorDescriptor)                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnDestroyActivationDescriptor)                                                            \
    X(cudnnDestroyConvolutionDescriptor)                                                           \
    X(cudnnDestroyFilterDescriptor)                                                                \
    X(cudnnDestroyTensorDescriptor)                                                                \
    X(cudnnGetConvolutionBackwardDataAlgorithm_v7)                                                 \
    X(cudnnGetConvolutionBackwardFilterAlgorithm_v7)                                               \
    X(cudnnGetConvolutionBackwardDataWorkspaceSize)                                                \
    X(cudnnGetConvolutionBackwardFilterWorkspaceSize)                                              \
    X(cudnnGetConvolutionForwardAlgorithm_v7)                                                      \
    X(cudnnGetConvolutionForwardWorkspaceSize)                                                     \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnGetVersion)                                                                             \
    X(cudnnSetActivationDescriptor)                                                                \
    X(cudnnSetConvolution2dDescriptor)                                                             \
    X(cudnnSetConvolutionGroupCount)                                                               \
    X(cudnnSetConvolutionMathType)                                                                 \
    X(cudnnSetFilter4dDescriptor)                                                                  \
    X(cudnnSetStream)                                                                              \
    X(cudnnSetTensor4dDescriptor)
typedef struct functions {
    DNN_FUNCTIONS(ISO_CUDA_FIELD)
} functions;
static const iso__cuda_symbol symbols[] = {DNN_FUNCTIONS(ISO_CUDA_SYMBOL)};
enum { SYMBOLS = sizeof(symbols) / sizeof(symbols[0]) };

typedef struct iso__cuda_dnn {
    functions call;
    cudnnHandle_t handle;
    cudnnActivationDescriptor_t relu;
    iso__cuda_cache plans;
} iso__cuda_dnn;

// ---- Errors ---------------------------------------------------------------------------------------

static iso_status fail(const iso__cuda_dnn *dnn, cudnnStatus_t error, const char *call,
                       const char *function, int line) {
    const char *name = strstr(call, "cudnn");
    if (!name) name = call;
    return iso__error(ISO_ERR_DEVICE, function, __FILE__, line,
                      "cuDNN reports in %.*s: %s (ISO_CUDA_CONV=gemm does without it)",
                      (int)strcspn(name, "("), name, dnn->call.cudnnGetErrorString(error));
}
#define TRY_DNN_AS(dnn, name, expr)                                                                \
    do {                                                                                           \
        cudnnStatus_t try_error_ = (expr);                                                         \
        if (try_error_ != CUDNN_STATUS_SUCCESS)                                                    \
            return fail(dnn, try_error_, name, __func__, __LINE__);                                \
    } while (0)
#define TRY_DNN(dnn, expr) TRY_DNN_AS(dnn, #expr, expr)

// Codes of thousands are of one kind (cudnn_graph.h).
static bool is_unsupported(cudnnStatus_t status) {
    return (int)status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000;
}

// ---- Life -----------------------------------------------------------------------------------------

typedef enum direction { FORWARD, FILTER, INPUT } direction;

// All of 8 bytes, so that no padding is compared.
typedef struct plan_key {
    int64_t direction, dtype, math, rows, channels, height, width, out_channels, out_height,
        out_width, kernel[2], stride[2], padding[2], dilation[2], groups;
} plan_key;

enum { MOST_ALGORITHMS = 16 };
typedef struct plan {
    iso__cuda_entry base;
    plan_key key;
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    // Candidates in the order of the heuristics; `at` is in use, count: none is left.
    int algorithm[MOST_ALGORITHMS], count, at;
    size_t workspace[MOST_ALGORITHMS];
    bool refused;    // by cuDNN, when it was called
    bool fuses_relu; // until cuDNN refuses
    bool no_room;    // a workspace could not be had
} plan;

static void plan_destroy(const iso__cuda_dnn *dnn, plan *p) {
    if (p->x) dnn->call.cudnnDestroyTensorDescriptor(p->x);
    if (p->y) dnn->call.cudnnDestroyTensorDescriptor(p->y);
    if (p->bias) dnn->call.cudnnDestroyTensorDescriptor(p->bias);
    if (p->w) dnn->call.cudnnDestroyFilterDescriptor(p->w);
    if (p->conv) dnn->call.cudnnDestroyConvolutionDescriptor(p->conv);
    iso__free(p);
}

static iso_status set_up(iso__cuda *cuda, iso__cuda_dnn *dnn) {
    const functions *call = &dnn->call;
    dnn->plans.key_bytes = sizeof(plan_key);
    ISO_TRY(iso__cuda_load("cuDNN", ISO_CUDNN_SONAME, symbols, SYMBOLS, &dnn->call));
    ISO_TRY(iso__cuda_enter(cuda));
    TRY_DNN(dnn, call->cudnnCreate(&dnn->handle));
    TRY_DNN(dnn, call->cudnnSetStream(dnn->handle, cuda->stream[ISO__QUEUE_COMPUTE]));
    TRY_DNN(dnn, call->cudnnCreateActivationDescriptor(&dnn->relu));
    TRY_DNN(dnn, call->cudnnSetActivationDescriptor(dnn->relu, CUDNN_ACTIVATION_RELU,
                                                    CUDNN_NOT_PROPAGATE_NAN, 0));
    return ISO_OK;
}

static void destroy(iso__cuda_dnn *dnn) {
    iso__cuda_entry *entry;
    while ((entry = iso__cuda_cache_take(&dnn->plans)))
        plan_destroy(dnn, iso_container_of(entry, plan, base));
    if (dnn->relu) dnn->call.cudnnDestroyActivationDescriptor(dnn->relu);
    if (dnn->handle) dnn->call.cudnnDestroy(dnn->handle);
    iso__free(dnn);
}

iso_status iso__cuda_dnn_create(iso__cuda *cuda) {
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso__cuda_dnn), &memory));
    iso_status status = set_up(cuda, memory);
    if (status < 0) destroy(memory);
    ISO_TRY(status);
    cuda->dnn = memory;
    cuda->base.primitives_created++;
    iso__log(ISO_LOG_INFO, "convolutions go by cuDNN %zu", cuda->dnn->call.cudnnGetVersion());
    return ISO_OK;
}

void iso__cuda_dnn_destroy(iso__cuda *cuda) {
    if (cuda->dnn) destroy(cuda->dnn);
    cuda->dnn = NULL;
}

// ---- Plans ----------------------------------------------------------------------------------------

static plan_key key_of(const iso__cuda *cuda, direction way, const iso_conv2d_config *c,
                       const iso_tensor *x, const iso_tensor *y) {
    plan_key k = {.direction = way,
                  .dtype = x->dtype,
                  .math = cuda->math,
                  .rows = x->shape[0],
                  .channels = x->shape[1],
                  .height = x->shape[2],
                  .width = x->shape[3],
                  .out_channels = y->shape[1],
                  .out_height = y->shape[2],
                  .out_width = y->shape[3],
                  .groups = c->groups ? c->groups : 1};
    for (int i = 0; i < 2; i++) {
        k.kernel[i] = c->kernel_size[i];
        k.stride[i] = c->stride[i] ? c->stride[i] : 1;
        k.padding[i] = c->padding[i];
        k.dilation[i] = c->dilation[i] ? c->dilation[i] : 1;
    }
    return k;
}

static iso_status describe_tensors(const iso__cuda_dnn *dnn, plan *p, cudnnDataType_t type) {
    const functions *call = &dnn->call;
    const plan_key *k = &p->key;
    int rows = (int)k->rows, outs = (int)k->out_channels;
    TRY_DNN(dnn, call->cudnnCreateTensorDescriptor(&p->x));
    TRY_DNN(dnn, call->cudnnCreateTensorDescriptor(&p->y));
    TRY_DNN(dnn, call->cudnnCreateTensorDescriptor(&p->bias));
    TRY_DNN(dnn, call->cudnnCreateFilterDescriptor(&p->w));
    TRY_DNN(dnn, call->cudnnSetTensor4dDescriptor(p->x, CUDNN_TENSOR_NCHW, type, rows,
                                                  (int)k->channels, (int)k->height, (int)k->width));
    TRY_DNN(dnn, call->cudnnSetTensor4dDescriptor(p->y, CUDNN_TENSOR_NCHW, type, rows, outs,
                                                  (int)k->out_height, (int)k->out_width));
    TRY_DNN(dnn, call->cudnnSetTensor4dDescriptor(p->bias, CUDNN_TENSOR_NCHW, type, 1, outs, 1, 1));
    TRY_DNN(dnn, call->cudnnSetFilter4dDescriptor(p->w, type, CUDNN_TENSOR_NCHW, outs,
                                                  (int)(k->channels / k->groups), (int)k->kernel[0],
                                                  (int)k->kernel[1]));
    return ISO_OK;
}

// The default math of cuDNN rounds factors to TF32, so exact f32 asks for multiply-adds. Its math
// with smaller factors takes f16, which overflows: for bf16 there is TF32.
static iso_status describe(const iso__cuda_dnn *dnn, plan *p) {
    const functions *call = &dnn->call;
    const plan_key *k = &p->key;
    cudnnDataType_t type = k->dtype == ISO_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    cudnnMathType_t math = k->math == ISO_CUDA_MATH_F32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
    ISO_TRY(describe_tensors(dnn, p, type));
    TRY_DNN(dnn, call->cudnnCreateConvolutionDescriptor(&p->conv));
    TRY_DNN(dnn, call->cudnnSetConvolution2dDescriptor(
                     p->conv, (int)k->padding[0], (int)k->padding[1], (int)k->stride[0],
                     (int)k->stride[1], (int)k->dilation[0], (int)k->dilation[1],
                     CUDNN_CROSS_CORRELATION, type));
    TRY_DNN(dnn, call->cudnnSetConvolutionGroupCount(p->conv, (int)k->groups));
    TRY_DNN(dnn, call->cudnnSetConvolutionMathType(p->conv, math));
    return ISO_OK;
}

// More workspace than this is not worth what it is worth elsewhere.
#define MOST_WORKSPACE ((size_t)1 << 30)

static cudnnStatus_t workspace_of(const iso__cuda_dnn *dnn, const plan *p, int algorithm,
                                  size_t *out) {
    const functions *call = &dnn->call;
    switch ((direction)p->key.direction) {
    case FORWARD:
        return call->cudnnGetConvolutionForwardWorkspaceSize(
            dnn->handle, p->x, p->w, p->conv, p->y, (cudnnConvolutionFwdAlgo_t)algorithm, out);
    case FILTER:
        return call->cudnnGetConvolutionBackwardFilterWorkspaceSize(
            dnn->handle, p->x, p->y, p->conv, p->w, (cudnnConvolutionBwdFilterAlgo_t)algorithm,
            out);
    case INPUT: break;
    }
    return call->cudnnGetConvolutionBackwardDataWorkspaceSize(
        dnn->handle, p->w, p->y, p->conv, p->x, (cudnnConvolutionBwdDataAlgo_t)algorithm, out);
}

static void consider(const iso__cuda_dnn *dnn, plan *p, int algorithm, cudnnStatus_t status,
                     cudnnDeterminism_t determinism, cudnnMathType_t math) {
    bool rounds = math == CUDNN_TENSOR_OP_MATH || math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION;
    size_t workspace;
    if (status != CUDNN_STATUS_SUCCESS || determinism != CUDNN_DETERMINISTIC) return;
    if (rounds && p->key.math == ISO_CUDA_MATH_F32) return;
    for (int i = 0; i < p->count; i++)
        if (p->algorithm[i] == algorithm) return; // the same with another math
    // With the math of the descriptor, which need not be the one that was considered.
    if (workspace_of(dnn, p, algorithm, &workspace) != CUDNN_STATUS_SUCCESS) return;
    if (workspace > MOST_WORKSPACE) return;
    p->algorithm[p->count] = algorithm;
    p->workspace[p->count++] = workspace;
}

#define CONSIDER(dnn, p, perf, returned)                                                           \
    for (int i = 0; i < (returned); i++)                                                           \
    consider(dnn, p, (int)(perf)[i].algo, (perf)[i].status, (perf)[i].determinism,                 \
             (perf)[i].mathType)

// A shape that cuDNN cannot do is left without candidates.
static iso_status choose(const iso__cuda_dnn *dnn, plan *p) {
    const functions *call = &dnn->call;
    cudnnConvolutionFwdAlgoPerf_t forward[MOST_ALGORITHMS];
    cudnnConvolutionBwdFilterAlgoPerf_t filter[MOST_ALGORITHMS];
    cudnnConvolutionBwdDataAlgoPerf_t input[MOST_ALGORITHMS];
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    int returned = 0;
    switch ((direction)p->key.direction) {
    case FORWARD:
        status = call->cudnnGetConvolutionForwardAlgorithm_v7(
            dnn->handle, p->x, p->w, p->conv, p->y, MOST_ALGORITHMS, &returned, forward);
        CONSIDER(dnn, p, forward, returned);
        break;
    case FILTER:
        status = call->cudnnGetConvolutionBackwardFilterAlgorithm_v7(
            dnn->handle, p->x, p->y, p->conv, p->w, MOST_ALGORITHMS, &returned, filter);
        CONSIDER(dnn, p, filter, returned);
        break;
    case INPUT:
        status = call->cudnnGetConvolutionBackwardDataAlgorithm_v7(
            dnn->handle, p->w, p->y, p->conv, p->x, MOST_ALGORITHMS, &returned, input);
        CONSIDER(dnn, p, input, returned);
        break;
    }
    if (!is_unsupported(status)) TRY_DNN_AS(dnn, "its choice of an algorithm", status);
    return ISO_OK;
}

// cuDNN counts in int, the elements of a tensor too.
static bool fits_int(const plan_key *k) {
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

static iso_status find_plan(iso__cuda *cuda, const plan_key *key, plan **out) {
    iso__cuda_dnn *dnn = cuda->dnn;
    iso__cuda_entry *entry = iso__cuda_cache_find(&dnn->plans, key);
    void *memory;
    iso_status status;
    if (entry) {
        *out = iso_container_of(entry, plan, base);
        return ISO_OK;
    }
    ISO_TRY(iso__alloc_zero(sizeof(plan), &memory));
    plan *p = memory;
    p->key = *key;
    p->base.key = &p->key;
    p->fuses_relu = true;
    if (fits_int(key)) {
        ISO_TRY_GOTO(iso__cuda_enter(cuda));
        ISO_TRY_GOTO(describe(dnn, p));
        ISO_TRY_GOTO(choose(dnn, p));
    }
    iso__cuda_cache_add(&dnn->plans, &p->base);
    cuda->base.primitives_created++;
    *out = p;
    return ISO_OK;
fail:
    plan_destroy(dnn, p);
    return status;
}

// ---- Running --------------------------------------------------------------------------------------

// Without padding, so that calls can be compared.
typedef struct call_args {
    plan *plan;
    int64_t algorithm;
    void *x, *w, *y, *bias, *workspace; // bias: fused, with relu
    size_t workspace_bytes;
    double beta;
} call_args;

// What cuDNN refuses when it is called, although its heuristics named it, is not an error: as not
// supported, or as a bad parameter.
static iso_status take(const iso__cuda_dnn *dnn, plan *p, cudnnStatus_t status) {
    p->refused = is_unsupported(status) || (int)status / 1000 == (int)CUDNN_STATUS_BAD_PARAM / 1000;
    if (!p->refused) TRY_DNN_AS(dnn, "a convolution", status);
    return ISO_OK;
}

// Scale factors are float for float and double for double.
typedef struct factors {
    double wide[3];
    float narrow[3];
    const void *zero, *one, *beta;
} factors;

static void set_factors(factors *f, const call_args *a) {
    bool f64 = a->plan->key.dtype == ISO_F64;
    *f = (factors){.wide = {0, 1, a->beta}, .narrow = {0, 1, (float)a->beta}};
    f->zero = f64 ? (void *)&f->wide[0] : (void *)&f->narrow[0];
    f->one = f64 ? (void *)&f->wide[1] : (void *)&f->narrow[1];
    f->beta = f64 ? (void *)&f->wide[2] : (void *)&f->narrow[2];
}

static iso_status run_forward(iso__cuda *cuda, const void *args) {
    const call_args *a = args;
    const iso__cuda_dnn *dnn = cuda->dnn;
    plan *p = a->plan;
    factors f;
    set_factors(&f, a);
    return take(dnn, p,
                dnn->call.cudnnConvolutionForward(dnn->handle, f.one, p->x, a->x, p->w, a->w,
                                                  p->conv, (cudnnConvolutionFwdAlgo_t)a->algorithm,
                                                  a->workspace, a->workspace_bytes, f.zero, p->y,
                                                  a->y));
}

static iso_status run_fused(iso__cuda *cuda, const void *args) {
    const call_args *a = args;
    const iso__cuda_dnn *dnn = cuda->dnn;
    plan *p = a->plan;
    factors f;
    set_factors(&f, a);
    return take(dnn, p,
                dnn->call.cudnnConvolutionBiasActivationForward(
                    dnn->handle, f.one, p->x, a->x, p->w, a->w, p->conv,
                    (cudnnConvolutionFwdAlgo_t)a->algorithm, a->workspace, a->workspace_bytes,
                    f.zero, p->y, a->y, p->bias, a->bias, dnn->relu, p->y, a->y));
}

static iso_status run_filter(iso__cuda *cuda, const void *args) {
    const call_args *a = args;
    const iso__cuda_dnn *dnn = cuda->dnn;
    plan *p = a->plan;
    factors f;
    set_factors(&f, a);
    return take(dnn, p,
                dnn->call.cudnnConvolutionBackwardFilter(
                    dnn->handle, f.one, p->x, a->x, p->y, a->y, p->conv,
                    (cudnnConvolutionBwdFilterAlgo_t)a->algorithm, a->workspace, a->workspace_bytes,
                    f.beta, p->w, a->w));
}

static iso_status run_input(iso__cuda *cuda, const void *args) {
    const call_args *a = args;
    const iso__cuda_dnn *dnn = cuda->dnn;
    plan *p = a->plan;
    factors f;
    set_factors(&f, a);
    return take(dnn, p,
                dnn->call.cudnnConvolutionBackwardData(
                    dnn->handle, f.one, p->w, a->w, p->y, a->y, p->conv,
                    (cudnnConvolutionBwdDataAlgo_t)a->algorithm, a->workspace, a->workspace_bytes,
                    f.zero, p->x, a->x));
}

// From there on the sums of this rank are in another order.
static iso_status say_no_room(plan *p, size_t bytes) {
    if (!p->no_room)
        iso__log(
            ISO_LOG_WARN,
            "a convolution goes by a slower algorithm from now on, as the GPU has no %zu bytes "
            "left for the workspace of its own: use a smaller batch",
            bytes);
    p->no_room = true;
    return ISO_OK;
}

// Runs the candidate in use; p->refused tells whether it was. What is held back for a graph has run
// before. Without room for its workspace, a candidate is as good as refused.
static iso_status run_candidate(iso__cuda *cuda, iso__cuda_call run, call_args *a) {
    plan *p = a->plan;
    iso_status status = ISO_OK;
    a->algorithm = p->algorithm[p->at];
    a->workspace_bytes = p->workspace[p->at];
    a->workspace = NULL;
    if (a->workspace_bytes > 0) status = iso__cuda_scratch(cuda, a->workspace_bytes, &a->workspace);
    p->refused = status == ISO_ERR_NOMEM;
    if (p->refused) return say_no_room(p, a->workspace_bytes);
    ISO_TRY(status);
    return iso__cuda_run(cuda, run, a, sizeof(*a));
}

// Goes on to the next one where a candidate is refused, for good.
static iso_status run_plan(iso__cuda *cuda, iso__cuda_call run, call_args *a, bool *done) {
    plan *p = a->plan;
    for (; p->at < p->count; p->at++) {
        ISO_TRY(run_candidate(cuda, run, a));
        if (!p->refused) break;
    }
    *done = p->at < p->count;
    return ISO_OK;
}

iso_status iso__cuda_dnn_forward(iso__cuda *cuda, const iso_conv2d_config *c, const iso_tensor *x,
                                 const iso_tensor *w, const iso_tensor *b, iso_activation act,
                                 iso_tensor *y, bool *done) {
    plan_key key = key_of(cuda, FORWARD, c, x, y);
    call_args args = {.x = x->data, .w = w->data, .y = y->data, .bias = b ? b->data : NULL};
    bool relu = act == ISO_ACT_RELU;
    ISO_TRY(find_plan(cuda, &key, &args.plan));
    plan *p = args.plan;
    // Without relu it fuses with one of the algorithms only.
    if (b && relu && p->fuses_relu && p->at < p->count) {
        ISO_TRY(run_candidate(cuda, run_fused, &args));
        *done = !p->refused;
        if (*done) return ISO_OK;
        p->fuses_relu = p->no_room;
    }
    ISO_TRY(run_plan(cuda, run_forward, &args, done));
    if (!*done || (!b && !relu)) return ISO_OK;
    return iso__cuda_bias_act(cuda, x->dtype, key.rows, key.out_channels,
                              key.out_height * key.out_width, args.bias, relu, y->data);
}

iso_status iso__cuda_dnn_backward_filter(iso__cuda *cuda, const iso_conv2d_config *c,
                                         const iso_tensor *x, const iso_tensor *dy, iso_tensor *dw,
                                         bool accumulate, bool *done) {
    plan_key key = key_of(cuda, FILTER, c, x, dy);
    call_args args = {.x = x->data, .y = dy->data, .w = dw->data, .beta = accumulate ? 1 : 0};
    ISO_TRY(find_plan(cuda, &key, &args.plan));
    return run_plan(cuda, run_filter, &args, done);
}

iso_status iso__cuda_dnn_backward_input(iso__cuda *cuda, const iso_conv2d_config *c,
                                        const iso_tensor *dy, const iso_tensor *w, iso_tensor *dx,
                                        bool *done) {
    plan_key key = key_of(cuda, INPUT, c, dx, dy);
    call_args args = {.x = dx->data, .y = dy->data, .w = w->data};
    ISO_TRY(find_plan(cuda, &key, &args.plan));
    return run_plan(cuda, run_input, &args, done);
}
