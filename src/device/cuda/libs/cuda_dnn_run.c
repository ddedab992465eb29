// SPDX-License-Identifier: MIT
// Runs convolutions by cuDNN.
#include "device/cuda/libs/cuda_dnn.h"

#include "device/cuda/libs/cuda_dnn_layout.h"
#include "device/cuda/ops/linear_kernels.h"

// ---- What is to be done ---------------------------------------------------------------------------

// One of x, w and y is the result, or its gradient.
typedef struct job {
    iso__dnn_direction way;
    const iso_conv2d_config *config;
    const iso_tensor *x, *w, *y, *bias; // bias NULL: none
    bool relu, accumulate;
} job;

static iso__dnn_key key_of(const iso__cuda *cuda, const job *j, bool last) {
    const iso_conv2d_config *c = j->config;
    const iso_tensor *x = j->x, *y = j->y;
    int64_t groups = c->groups ? c->groups : 1;
    iso__dnn_key k = {.direction = j->way,
                      .dtype = x->dtype,
                      .math = x->dtype == ISO_F32 ? cuda->math : ISO_CUDA_MATH_F32,
                      .last = last,
                      .rows = x->shape[0],
                      .channels = last ? iso__dnn_padded(x, groups) : x->shape[1],
                      .height = x->shape[2],
                      .width = x->shape[3],
                      .out_channels = last ? iso__dnn_padded(y, groups) : y->shape[1],
                      .out_height = y->shape[2],
                      .out_width = y->shape[3],
                      .groups = groups};
    for (int i = 0; i < 2; i++) {
        k.kernel[i] = c->kernel_size[i];
        k.stride[i] = c->stride[i] ? c->stride[i] : 1;
        k.padding[i] = c->padding[i];
        k.dilation[i] = c->dilation[i] ? c->dilation[i] : 1;
    }
    return k;
}

// Tensor cores want channels last. What is f32 and in logical order throughout, cuDNN brings into
// an order of its own where that pays.
static bool wants_last(const iso__cuda *cuda, const job *j) {
    if (iso__is_half(j->x->dtype)) return true;
    bool rounds = j->x->dtype == ISO_F32 && cuda->math != ISO_CUDA_MATH_F32;
    return rounds && (iso__cuda_channels_last(j->x) || iso__cuda_channels_last(j->y));
}

// ---- Calls ----------------------------------------------------------------------------------------

// Without padding, so that calls can be compared.
typedef struct call_args {
    iso__dnn_plan *plan;
    int64_t algorithm, math;
    void *x, *w, *y, *bias, *workspace; // as cuDNN sees them; bias: fused, with relu
    size_t workspace_bytes;
    double beta;
} call_args;

// What cuDNN refuses when it is called, although its heuristics named it, is not an error: as not
// supported, or as a bad parameter.
static iso_status take_status(const iso__cuda_dnn *dnn, cudnnStatus_t status) {
    bool refused =
        iso__dnn_unsupported(status) || (int)status / 1000 == (int)CUDNN_STATUS_BAD_PARAM / 1000;
    ISO_CHECK(!refused, ISO_ERR_UNSUPPORTED, "cuDNN refuses a convolution: %s",
              dnn->call.cudnnGetErrorString(status));
    ISO_TRY_DNN_AS(dnn, "a convolution", status);
    return ISO_OK;
}

// Scale factors are float for float and double for double.
typedef struct factors {
    double f64[3];
    float f32[3];
    const void *zero, *one, *beta;
} factors;

static void set_factors(factors *f, const call_args *a) {
    bool is_f64 = a->plan->key.dtype == ISO_F64;
    *f = (factors){.f64 = {0, 1, a->beta}, .f32 = {0, 1, (float)a->beta}};
    f->zero = is_f64 ? (void *)&f->f64[0] : (void *)&f->f32[0];
    f->one = is_f64 ? (void *)&f->f64[1] : (void *)&f->f32[1];
    f->beta = is_f64 ? (void *)&f->f64[2] : (void *)&f->f32[2];
}

// Plans keep several candidates, which differ in it.
static iso_status set_math(const iso__cuda_dnn *dnn, const call_args *a) {
    return take_status(
        dnn, dnn->call.cudnnSetConvolutionMathType(a->plan->conv, (cudnnMathType_t)a->math));
}

static iso_status run_forward(iso__cuda *cuda, const void *args) {
    const call_args *a = args;
    const iso__cuda_dnn *dnn = cuda->dnn;
    iso__dnn_plan *p = a->plan;
    factors f;
    set_factors(&f, a);
    ISO_TRY(set_math(dnn, a));
    return take_status(dnn, dnn->call.cudnnConvolutionForward(
                                dnn->handle, f.one, p->x, a->x, p->w, a->w, p->conv,
                                (cudnnConvolutionFwdAlgo_t)a->algorithm, a->workspace,
                                a->workspace_bytes, f.zero, p->y, a->y));
}

static iso_status run_fused(iso__cuda *cuda, const void *args) {
    const call_args *a = args;
    const iso__cuda_dnn *dnn = cuda->dnn;
    iso__dnn_plan *p = a->plan;
    factors f;
    set_factors(&f, a);
    ISO_TRY(set_math(dnn, a));
    return take_status(dnn, dnn->call.cudnnConvolutionBiasActivationForward(
                                dnn->handle, f.one, p->x, a->x, p->w, a->w, p->conv,
                                (cudnnConvolutionFwdAlgo_t)a->algorithm, a->workspace,
                                a->workspace_bytes, f.zero, p->y, a->y, p->bias, a->bias, dnn->relu,
                                p->y, a->y));
}

static iso_status run_filter(iso__cuda *cuda, const void *args) {
    const call_args *a = args;
    const iso__cuda_dnn *dnn = cuda->dnn;
    iso__dnn_plan *p = a->plan;
    factors f;
    set_factors(&f, a);
    ISO_TRY(set_math(dnn, a));
    return take_status(dnn, dnn->call.cudnnConvolutionBackwardFilter(
                                dnn->handle, f.one, p->x, a->x, p->y, a->y, p->conv,
                                (cudnnConvolutionBwdFilterAlgo_t)a->algorithm, a->workspace,
                                a->workspace_bytes, f.beta, p->w, a->w));
}

static iso_status run_input(iso__cuda *cuda, const void *args) {
    const call_args *a = args;
    const iso__cuda_dnn *dnn = cuda->dnn;
    iso__dnn_plan *p = a->plan;
    factors f;
    set_factors(&f, a);
    ISO_TRY(set_math(dnn, a));
    return take_status(dnn, dnn->call.cudnnConvolutionBackwardData(
                                dnn->handle, f.one, p->w, a->w, p->y, a->y, p->conv,
                                (cudnnConvolutionBwdDataAlgo_t)a->algorithm, a->workspace,
                                a->workspace_bytes, f.zero, p->x, a->x));
}

// ---- Candidates -----------------------------------------------------------------------------------

// From there on the sums of this rank are in another order.
static iso_status say_no_room(iso__dnn_plan *p, size_t bytes) {
    if (!p->no_room)
        iso__log(
            ISO_LOG_WARN,
            "a convolution uses a slower algorithm from now on: the GPU has no %zu bytes left for "
            "the workspace of the faster one: use a smaller batch",
            bytes);
    p->no_room = true;
    return ISO_OK;
}

// Bytes of scratch memory for copies; 0: cuDNN takes what is there.
typedef struct copies {
    size_t x, w, y;
} copies;

static copies copies_of(const job *j, const iso__dnn_key *k) {
    return (copies){.x = iso__dnn_copy_bytes(j->x, k->last, k->channels),
                    .w = iso__dnn_weights_bytes(k, j->w),
                    .y = iso__dnn_copy_bytes(j->y, k->last, k->out_channels)};
}

static size_t align_bytes(size_t bytes) { return iso__round_up(bytes, 256); }

static void *take_scratch(char **scratch, size_t bytes) {
    void *taken = *scratch;
    *scratch += align_bytes(bytes);
    return taken;
}

static iso_status bring_inputs(iso__cuda *cuda, const job *j, const copies *copy,
                               const call_args *a) {
    const iso__dnn_key *k = &a->plan->key;
    if (copy->x && j->way != ISO__DNN_INPUT)
        ISO_TRY(iso__dnn_bring(cuda, j->x, k->last, k->channels, a->x));
    if (copy->w && j->way != ISO__DNN_FILTER) ISO_TRY(iso__dnn_bring_weights(cuda, k, j->w, a->w));
    if (copy->y && j->way != ISO__DNN_FORWARD)
        ISO_TRY(iso__dnn_bring(cuda, j->y, k->last, k->out_channels, a->y));
    return ISO_OK;
}

static iso_status bring_back(iso__cuda *cuda, const job *j, const copies *copy,
                             const call_args *a) {
    const iso__dnn_key *k = &a->plan->key;
    if (copy->x && j->way == ISO__DNN_INPUT)
        ISO_TRY(iso__dnn_return(cuda, a->x, k->last, k->channels, j->x));
    if (copy->w && j->way == ISO__DNN_FILTER)
        ISO_TRY(iso__dnn_return_weights(cuda, k, a->w, j->accumulate, j->w));
    if (copy->y && j->way == ISO__DNN_FORWARD)
        ISO_TRY(iso__dnn_return(cuda, a->y, k->last, k->out_channels, j->y));
    return ISO_OK;
}

// Runs the candidate in use, unless it is refused. Without room for its workspace, it is as good as
// refused.
static iso_status run_candidate(iso__cuda *cuda, const job *j, iso__cuda_call run, iso__dnn_plan *p,
                                bool *done) {
    copies copy = copies_of(j, &p->key);
    size_t workspace = p->workspace[p->at];
    size_t bytes =
        align_bytes(workspace) + align_bytes(copy.x) + align_bytes(copy.w) + align_bytes(copy.y);
    void *scratch = NULL;
    iso_status status = bytes > 0 ? iso__cuda_scratch(cuda, bytes, &scratch) : ISO_OK;
    *done = false;
    if (status == ISO_ERR_NOMEM) return say_no_room(p, bytes);
    ISO_TRY(status);
    char *at = scratch;
    call_args a = {.plan = p,
                   .algorithm = p->algorithm[p->at],
                   .math = p->math[p->at],
                   .workspace_bytes = workspace,
                   .bias = j->bias ? j->bias->data : NULL,
                   .beta = j->accumulate && !copy.w ? 1 : 0};
    a.workspace = workspace > 0 ? take_scratch(&at, workspace) : NULL;
    a.x = copy.x ? take_scratch(&at, copy.x) : j->x->data;
    a.w = copy.w ? take_scratch(&at, copy.w) : j->w->data;
    a.y = copy.y ? take_scratch(&at, copy.y) : j->y->data;
    ISO_TRY(bring_inputs(cuda, j, &copy, &a));
    status = iso__cuda_run(cuda, run, &a, sizeof(a));
    *done = status != ISO_ERR_UNSUPPORTED;
    if (!*done) {
        iso__dnn_say(ISO_LOG_INFO, p, iso_last_error()->message);
        return ISO_OK;
    }
    ISO_TRY(status);
    return bring_back(cuda, j, &copy, &a);
}

// A job and how it is run, for trials of candidates.
typedef struct trial {
    const job *job;
    iso__cuda_call run;
} trial;

static iso_status try_once(iso__cuda *cuda, const void *context, iso__dnn_plan *p, bool *done) {
    const trial *t = context;
    return run_candidate(cuda, t->job, t->run, p, done);
}

// A result that is added to what is there cannot be tried twice.
static iso_status tune_job(iso__cuda *cuda, const job *j, iso__cuda_call run, iso__dnn_plan *p) {
    if (!cuda->dnn->tuning || j->accumulate) return ISO_OK;
    return iso__dnn_tune(cuda, p, try_once, &(trial){j, run});
}

// Goes on to the next one where a candidate is refused, for good.
static iso_status run_plan(iso__cuda *cuda, const job *j, iso__cuda_call run, iso__dnn_plan *p,
                           bool *done) {
    *done = false;
    ISO_TRY(tune_job(cuda, j, run, p));
    while (p->at < p->count) {
        ISO_TRY(run_candidate(cuda, j, run, p, done));
        if (*done) break;
        p->refused[p->at] = true;
        p->at = iso__dnn_candidate(p);
    }
    return ISO_OK;
}

// ---- Directions -----------------------------------------------------------------------------------

static iso_status bias_act(iso__cuda *cuda, const job *j) {
    const iso_tensor *y = j->y;
    int64_t plane = y->shape[2] * y->shape[3];
    bool last = iso__cuda_channels_last(y);
    if (!j->bias && !j->relu) return ISO_OK;
    return iso__cuda_bias_act(cuda, y->dtype, last ? y->shape[0] * plane : y->shape[0], y->shape[1],
                              last ? 1 : plane, j->bias ? j->bias->data : NULL, j->relu, y->data);
}

static iso_status run_forward_job(iso__cuda *cuda, const job *j, iso__dnn_plan *p, bool *done) {
    // Without relu it fuses with one of the algorithms only.
    bool fuses = j->bias && j->relu && p->key.out_channels == j->y->shape[1];
    if (fuses && p->fuses_relu && p->at < p->count) {
        ISO_TRY(tune_job(cuda, j, run_fused, p));
        ISO_TRY(run_candidate(cuda, j, run_fused, p, done));
        if (*done) return ISO_OK;
        p->fuses_relu = p->no_room;
    }
    ISO_TRY(run_plan(cuda, j, run_forward, p, done));
    return *done ? bias_act(cuda, j) : ISO_OK;
}

// With channels last where that is wanted, else and then in logical order.
static iso_status run_job(iso__cuda *cuda, const job *j, bool *done) {
    iso__dnn_plan *p = NULL;
    *done = false;
    for (int last = wants_last(cuda, j); last >= 0 && !*done; last--) {
        iso__dnn_key key = key_of(cuda, j, last);
        ISO_TRY(iso__dnn_find_plan(cuda, &key, &p));
        switch (j->way) {
        case ISO__DNN_FORWARD: ISO_TRY(run_forward_job(cuda, j, p, done)); break;
        case ISO__DNN_FILTER: ISO_TRY(run_plan(cuda, j, run_filter, p, done)); break;
        case ISO__DNN_INPUT: ISO_TRY(run_plan(cuda, j, run_input, p, done)); break;
        }
    }
    if (*done || p->told) return ISO_OK;
    iso__dnn_say(ISO_LOG_WARN, p, "uses cuBLAS, which is slower");
    p->told = true;
    return ISO_OK;
}

iso_status iso__cuda_dnn_forward(iso__cuda *cuda, const iso_conv2d_config *c, const iso_tensor *x,
                                 const iso_tensor *w, const iso_tensor *b, iso_activation act,
                                 iso_tensor *y, bool *done) {
    job j = {ISO__DNN_FORWARD, c, x, w, y, .bias = b, .relu = act == ISO_ACT_RELU};
    return run_job(cuda, &j, done);
}

iso_status iso__cuda_dnn_backward_filter(iso__cuda *cuda, const iso_conv2d_config *c,
                                         const iso_tensor *x, const iso_tensor *dy, iso_tensor *dw,
                                         bool accumulate, bool *done) {
    job j = {ISO__DNN_FILTER, c, x, dw, dy, .accumulate = accumulate};
    return run_job(cuda, &j, done);
}

iso_status iso__cuda_dnn_backward_input(iso__cuda *cuda, const iso_conv2d_config *c,
                                        const iso_tensor *dy, const iso_tensor *w, iso_tensor *dx,
                                        bool *done) {
    job j = {ISO__DNN_INPUT, c, dx, w, dy, .relu = false};
    return run_job(cuda, &j, done);
}
