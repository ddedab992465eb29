// Convolutions by cuDNN: running them.
#include "device/cuda/cuda_dnn.h"

#include "device/cuda/cuda_dnn_plan.h"
#include "device/cuda/linear_kernels.h"

static iso__dnn_key key_of(const iso__cuda *cuda, iso__dnn_direction way,
                           const iso_conv2d_config *c, const iso_tensor *x, const iso_tensor *y) {
    iso__dnn_key k = {.direction = way,
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

// Without padding, so that calls can be compared.
typedef struct call_args {
    iso__dnn_plan *plan;
    int64_t algorithm;
    void *x, *w, *y, *bias, *workspace; // bias: fused, with relu
    size_t workspace_bytes;
    double beta;
} call_args;

// What cuDNN refuses when it is called, although its heuristics named it, is not an error: as not
// supported, or as a bad parameter.
static iso_status take(const iso__cuda_dnn *dnn, iso__dnn_plan *p, cudnnStatus_t status) {
    p->refused =
        iso__dnn_unsupported(status) || (int)status / 1000 == (int)CUDNN_STATUS_BAD_PARAM / 1000;
    if (!p->refused) ISO_TRY_DNN_AS(dnn, "a convolution", status);
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
    iso__dnn_plan *p = a->plan;
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
    iso__dnn_plan *p = a->plan;
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
    iso__dnn_plan *p = a->plan;
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
    iso__dnn_plan *p = a->plan;
    factors f;
    set_factors(&f, a);
    return take(dnn, p,
                dnn->call.cudnnConvolutionBackwardData(
                    dnn->handle, f.one, p->w, a->w, p->y, a->y, p->conv,
                    (cudnnConvolutionBwdDataAlgo_t)a->algorithm, a->workspace, a->workspace_bytes,
                    f.zero, p->x, a->x));
}

// From there on the sums of this rank are in another order.
static iso_status say_no_room(iso__dnn_plan *p, size_t bytes) {
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
    iso__dnn_plan *p = a->plan;
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
    iso__dnn_plan *p = a->plan;
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
    iso__dnn_key key = key_of(cuda, ISO__DNN_FORWARD, c, x, y);
    call_args args = {.x = x->data, .w = w->data, .y = y->data, .bias = b ? b->data : NULL};
    bool relu = act == ISO_ACT_RELU;
    ISO_TRY(iso__dnn_find_plan(cuda, &key, &args.plan));
    iso__dnn_plan *p = args.plan;
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
    iso__dnn_key key = key_of(cuda, ISO__DNN_FILTER, c, x, dy);
    call_args args = {.x = x->data, .y = dy->data, .w = dw->data, .beta = accumulate ? 1 : 0};
    ISO_TRY(iso__dnn_find_plan(cuda, &key, &args.plan));
    return run_plan(cuda, run_filter, &args, done);
}

iso_status iso__cuda_dnn_backward_input(iso__cuda *cuda, const iso_conv2d_config *c,
                                        const iso_tensor *dy, const iso_tensor *w, iso_tensor *dx,
                                        bool *done) {
    iso__dnn_key key = key_of(cuda, ISO__DNN_INPUT, c, dx, dy);
    call_args args = {.x = dx->data, .y = dy->data, .w = w->data};
    ISO_TRY(iso__dnn_find_plan(cuda, &key, &args.plan));
    return run_plan(cuda, run_input, &args, done);
}
