// SPDX-License-Identifier: MIT
// Convolutions with oneDNN: a fixed rule picks the algorithm, so that every rank and run computes
// the same bits.
#include "device/cpu/half/cpu_half.h"
#include "device/cpu/onednn/onednn_impl.h"

#include <string.h>

enum { FORWARD = 200, BACKWARD_PARAMS, BACKWARD_INPUT };

// Inputs of so few channels (images) are read as they are instead of blocked.
#define PLAIN_CHANNELS 3

// Up to these sizes Winograd gains no more than bf16, measured on Zen 4.
#define FEW_CHANNELS  32
#define WINOGRAD_TILE (4 * 4)

typedef struct problem {
    int operation;
    bool bias, accumulate_w, accumulate_b;
    iso__onednn_math math;
    iso_activation act;
    int64_t groups;
    int w_ndim; // weights are [groups, out / groups, ...] where there is more than one group
    dnnl_dims_t x, w, b, y, stride, padding;
    dnnl_dims_t dilation; // as oneDNN counts it: 0 for taps side by side
} problem;

static problem problem_of(int operation, const iso_conv2d_config *c, const iso_tensor *x,
                          const iso_tensor *y) {
    problem p = {.operation = operation};
    memcpy(p.x, x->shape, 4 * sizeof(p.x[0]));
    memcpy(p.y, y->shape, 4 * sizeof(p.y[0]));
    p.groups = c->groups ? c->groups : 1;
    p.b[0] = y->shape[1];
    if (p.groups > 1) p.w[p.w_ndim++] = p.groups;
    p.w[p.w_ndim++] = y->shape[1] / p.groups;
    p.w[p.w_ndim++] = x->shape[1] / p.groups;
    for (int i = 0; i < 2; i++) {
        p.w[p.w_ndim++] = c->kernel_size[i];
        p.stride[i] = c->stride[i] ? c->stride[i] : 1;
        p.padding[i] = c->padding[i];
        p.dilation[i] = c->dilation[i] ? c->dilation[i] - 1 : 0;
    }
    return p;
}

static iso__onednn_key key_of(const iso__cpu *cpu, const problem *p, const iso_tensor *x,
                              const iso_tensor *y) {
    int flags = (p->bias ? 1 : 0) | (p->act == ISO_ACT_RELU ? 2 : 0) | (p->accumulate_w ? 4 : 0) |
                (p->accumulate_b ? 8 : 0) | (x->layout == ISO_LAYOUT_BLOCKED ? 16 : 0) |
                (y->layout == ISO_LAYOUT_BLOCKED ? 32 : 0) |
                (p->math == ISO_ONEDNN_ROUNDED ? ISO_ONEDNN_BF16 : 0) |
                (p->math == ISO_ONEDNN_ACTIVATIONS ? ISO_ONEDNN_BF16_ACTIVATIONS : 0);
    return (iso__onednn_key){{p->operation, cpu->base.threads, flags, p->x[0], p->x[1], p->x[2],
                              p->x[3], p->y[1], p->y[2], p->y[3], p->w[p->w_ndim - 2],
                              p->w[p->w_ndim - 1], p->stride[0], p->stride[1], p->padding[0],
                              p->padding[1], p->groups, p->dilation[0], p->dilation[1]}};
}

// ---- Choice of the kernel -----------------------------------------------------------------------

typedef struct candidate {
    dnnl_alg_kind_t algorithm;
    dnnl_format_tag_t x, y;
    bool reference_too; // the last resort
} candidate;

typedef struct layouts {
    dnnl_memory_desc_t x, w, b, y;
} layouts;

static dnnl_format_tag_t blocked_tag(const iso__cpu *cpu) {
    return cpu->block == 16 ? dnnl_nChw16c : dnnl_nChw8c;
}

static dnnl_status_t layouts_of(const problem *p, const candidate *c, int result, layouts *out) {
    iso__onednn_types t = iso__onednn_types_of(p->math, result);
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&out->x, 4, p->x, t.x, c->x);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&out->w, p->w_ndim, p->w, t.w, dnnl_format_tag_any);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&out->b, 1, p->b, t.b, dnnl_a);
    if (status == dnnl_success) status = dnnl_memory_desc_init_by_tag(&out->y, 4, p->y, t.y, c->y);
    return status;
}

static dnnl_status_t forward_pd(const problem *p, const candidate *c, const layouts *l,
                                dnnl_primitive_attr_t attr, dnnl_engine_t engine,
                                dnnl_primitive_desc_t *out) {
    dnnl_convolution_desc_t desc;
    dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(
        &desc, dnnl_forward_training, c->algorithm, &l->x, &l->w, p->bias ? &l->b : NULL, &l->y,
        p->stride, p->dilation, p->padding, p->padding);
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &desc, attr, engine, NULL)
                                  : status;
}

static dnnl_status_t backward_pd(const problem *p, const candidate *c, const layouts *l,
                                 dnnl_primitive_attr_t attr, dnnl_engine_t engine,
                                 dnnl_primitive_desc_t *out) {
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t hint;
    layouts h;
    dnnl_status_t status = layouts_of(p, c, ISO_ONEDNN_NO_RESULT, &h);
    if (status != dnnl_success) return status;
    if (p->operation == BACKWARD_PARAMS)
        status = dnnl_dilated_convolution_backward_weights_desc_init(
            &desc, c->algorithm, &l->x, &l->w, p->bias ? &l->b : NULL, &l->y, p->stride,
            p->dilation, p->padding, p->padding);
    else
        status = dnnl_dilated_convolution_backward_data_desc_init(&desc, c->algorithm, &l->x, &l->w,
                                                                  &l->y, p->stride, p->dilation,
                                                                  p->padding, p->padding);
    if (status == dnnl_success) status = forward_pd(p, c, &h, attr, engine, &hint);
    if (status != dnnl_success) return status;
    status = dnnl_primitive_desc_create(out, &desc, attr, engine, hint);
    dnnl_primitive_desc_destroy(hint);
    return status;
}

static bool is_reference(const_dnnl_primitive_desc_t pd) {
    const char *name = NULL;
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    return name && strncmp(name, "ref", 3) == 0;
}

// The kernel of this candidate, if oneDNN has one worth using.
static bool try_candidate(const iso__cpu *cpu, const problem *p, const candidate *c,
                          dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out) {
    layouts l;
    dnnl_primitive_desc_t pd;
    if (layouts_of(p, c, p->operation - FORWARD, &l) != dnnl_success) return false;
    dnnl_status_t status = p->operation == FORWARD
                               ? forward_pd(p, c, &l, attr, iso__onednn_engine(cpu), &pd)
                               : backward_pd(p, c, &l, attr, iso__onednn_engine(cpu), &pd);
    if (status != dnnl_success) return false;
    if (is_reference(pd) && !(c->reference_too && p->math == ISO_ONEDNN_F32)) {
        dnnl_primitive_desc_destroy(pd);
        return false;
    }
    *out = pd;
    return true;
}

// Winograd is twice as fast as direct for 3x3 where its tiles fill the vectors.
static bool suits_winograd(const iso__cpu *cpu, const problem *p) {
    return cpu->block == 16 && p->math == ISO_ONEDNN_F32 && p->groups == 1 && p->w[2] == 3 &&
           p->w[3] == 3 && p->stride[0] == 1 && p->stride[1] == 1 && p->dilation[0] == 0 &&
           p->dilation[1] == 0 && p->x[1] % 16 == 0 && p->y[1] % 16 == 0;
}

enum { CANDIDATES = 5 };

// Finds candidate `wanted`; by rule, the first candidate that exists, Winograd only if it suits.
static iso_status find_candidate(const iso__cpu *cpu, const problem *p, int wanted, bool *found,
                                 dnnl_primitive_desc_t *out) {
    dnnl_format_tag_t blocked = blocked_tag(cpu), any = dnnl_format_tag_any;
    const candidate candidates[CANDIDATES] = {
        {dnnl_convolution_winograd, blocked, blocked, false},
        {dnnl_convolution_direct, p->x[1] <= PLAIN_CHANNELS ? dnnl_nchw : blocked, blocked, false},
        {dnnl_convolution_direct, any, any, false},
        {dnnl_convolution_auto, any, any, true},
        {dnnl_convolution_direct, dnnl_nhwc, dnnl_nhwc, false}, // brgemm; never by rule
    };
    dnnl_primitive_attr_t attr;
    ISO_TRY(iso__onednn_attributes(p->act, &attr));
    *found = false;
    int first = suits_winograd(cpu, p) ? 0 : 1, end = CANDIDATES;
    if (wanted != ISO_ONEDNN_BY_RULE) first = wanted, end = wanted + 1;
    for (int i = first; !*found && i < end; i++)
        *found = try_candidate(cpu, p, &candidates[i], attr, out);
    dnnl_primitive_attr_destroy(attr);
    return ISO_OK;
}

static iso_status choose_candidate(const iso__cpu *cpu, const problem *p, int wanted,
                                   dnnl_primitive_desc_t *out) {
    bool found;
    ISO_TRY(find_candidate(cpu, p, wanted, &found, out));
    if (!found && p->math != ISO_ONEDNN_F32 && wanted == ISO_ONEDNN_BY_RULE) {
        problem in_f32 = *p;
        in_f32.math = ISO_ONEDNN_F32;
        ISO_TRY(find_candidate(cpu, &in_f32, wanted, &found, out));
    }
    ISO_CHECK(found || wanted == ISO_ONEDNN_BY_RULE, ISO_ERR_UNSUPPORTED,
              "oneDNN has no such kernel");
    char x[128], w[128];
    ISO_CHECK(found, ISO_ERR_DEVICE, "oneDNN has no convolution for an input %s and weights %s",
              iso__shape_text(4, p->x, x, sizeof(x)),
              iso__shape_text(p->w_ndim, p->w, w, sizeof(w)));
    return ISO_OK;
}

// ---- Slots --------------------------------------------------------------------------------------

// The layouts of the caller's tensors.
static iso_status caller_layouts(const iso__cpu *cpu, const problem *p, const iso_tensor *x,
                                 const iso_tensor *y, layouts *out) {
    dnnl_format_tag_t blocked = blocked_tag(cpu);
    iso__onednn_types t = iso__onednn_caller_types(p->math, p->operation - FORWARD);
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(
        &out->x, 4, p->x, t.x, x->layout == ISO_LAYOUT_BLOCKED ? blocked : dnnl_nchw));
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(&out->w, p->w_ndim, p->w, t.w,
                                              p->groups > 1 ? dnnl_goihw : dnnl_oihw));
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(&out->b, 1, p->b, t.b, dnnl_a));
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(
        &out->y, 4, p->y, t.y, y->layout == ISO_LAYOUT_BLOCKED ? blocked : dnnl_nchw));
    return ISO_OK;
}

// A problem and its memory.
typedef struct task {
    iso__onednn_problem base;
    const problem *p;
    const iso_tensor *x, *y;
    void *const *data;
} task;

static iso_status create_kernel(iso__cpu *cpu, const task *t, int which, const iso__onednn_key *key,
                                iso__onednn_kernel **out) {
    const problem *p = t->p;
    bool forward = p->operation == FORWARD, params = p->operation == BACKWARD_PARAMS;
    bool input = p->operation == BACKWARD_INPUT;
    layouts l;
    dnnl_primitive_desc_t pd = NULL;
    ISO_TRY(caller_layouts(cpu, p, t->x, t->y, &l));
    ISO_TRY(choose_candidate(cpu, p, which, &pd));
    iso__onednn_arg args[ISO_ONEDNN_ARGS] = {
        {input ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, l.x, input, false},
        {params ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, l.w, params, p->accumulate_w},
        {!p->bias ? 0
         : params ? DNNL_ARG_DIFF_BIAS
                  : DNNL_ARG_BIAS,
         l.b, params, p->accumulate_b},
        {forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, l.y, forward, false}};
    ISO_TRY(iso__onednn_build(cpu, key, pd, args, out));
    return ISO_OK;
}

// Runs the kernel on the layouts of x and y, from the cache or new.
static iso_status run_candidate(iso__cpu *cpu, const iso__onednn_problem *base, int which) {
    const task *t = iso_container_of(base, const task, base);
    iso__onednn_key key = base->key;
    key.value[ISO_ONEDNN_RULE] = which;
    iso__onednn_kernel *kernel = iso__onednn_find(cpu, &key);
    if (!kernel) {
        int before = iso__onednn_enter(cpu); // kernels are made for a number of threads
        iso_status status = create_kernel(cpu, t, which, &key, &kernel);
        iso__onednn_leave(before);
        ISO_TRY(status);
    }
    ISO_TRY(iso__onednn_run(cpu, kernel, t->data));
    return ISO_OK;
}

static void describe_problem(const iso__onednn_problem *base, char *text, size_t room) {
    static const char *const name[] = {"forward", "backward params", "backward input"};
    const problem *p = iso_container_of(base, const task, base)->p;
    char x[128], y[128], w[128];
    snprintf(text, room, "conv2d %s %s -> %s, weights %s", name[p->operation - FORWARD],
             iso__shape_text(4, p->x, x, sizeof(x)), iso__shape_text(4, p->y, y, sizeof(y)),
             iso__shape_text(p->w_ndim, p->w, w, sizeof(w)));
}

static int64_t count_of(int ndim, const dnnl_dims_t shape) {
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= shape[i];
    return count;
}

// Winograd in f32 needs a quarter of the multiplications; bf16 halves the time of each. But
// Winograd's transforms cost more than they save if the result has few channels, or a plane is at
// most one tile.
static bool faster_in_f32(const iso__cpu *cpu, const problem *p) {
    bool params = p->operation == BACKWARD_PARAMS;
    int64_t channels = p->operation == FORWARD ? p->y[1] : p->x[1];
    if (!suits_winograd(cpu, p)) return params && p->x[1] <= PLAIN_CHANNELS;
    return params || (channels > FEW_CHANNELS && p->y[2] * p->y[3] > WINOGRAD_TILE);
}

static bool suits_rounding(const iso__cpu *cpu, const problem *p) {
    if (faster_in_f32(cpu, p) && !cpu->bf16_always) return false;
    int64_t x = count_of(4, p->x), w = count_of(p->w_ndim, p->w), y = count_of(4, p->y);
    int64_t operands = p->operation == FORWARD           ? x + w
                       : p->operation == BACKWARD_PARAMS ? x + y
                                                         : w + y;
    return iso__onednn_rounds(cpu, y * (w / p->y[1]), operands);
}

static iso_status run_problem(iso__cpu *cpu, problem *p, const iso_tensor *x, const iso_tensor *y,
                              void *const data[ISO_ONEDNN_ARGS]) {
    p->math = x->dtype == ISO_BF16     ? ISO_ONEDNN_ACTIVATIONS
              : suits_rounding(cpu, p) ? ISO_ONEDNN_ROUNDED
                                       : ISO_ONEDNN_F32;
    task t = {.base = {.key = key_of(cpu, p, x, y),
                       .candidates = CANDIDATES,
                       .run = run_candidate,
                       .describe = describe_problem},
              .p = p,
              .x = x,
              .y = y,
              .data = data};
    return iso__onednn_execute(cpu, &t.base);
}

static iso_status conv2d_forward(iso_device *self, const iso_conv2d_config *c, const iso_tensor *x,
                                 const iso_tensor *w, const iso_tensor *b, iso_activation act,
                                 iso_tensor *y) {
    problem p = problem_of(FORWARD, c, x, y);
    p.bias = b != NULL;
    p.act = act;
    return run_problem(iso__cpu_of(self), &p, x, y,
                       (void *[]){x->data, w->data, b ? b->data : NULL, y->data});
}

// dw is wanted.
static iso_status backward_params(iso_device *self, const iso_conv2d_config *c, const iso_tensor *x,
                                  const iso_tensor *dy, iso_tensor *dw, bool accumulate_w,
                                  iso_tensor *db, bool accumulate_b) {
    problem p = problem_of(BACKWARD_PARAMS, c, x, dy);
    p.bias = db != NULL;
    p.accumulate_w = accumulate_w;
    p.accumulate_b = db && accumulate_b;
    return run_problem(iso__cpu_of(self), &p, x, dy,
                       (void *[]){x->data, dw->data, db ? db->data : NULL, dy->data});
}

static iso_status conv2d_backward_params(iso_device *self, const iso_conv2d_config *c,
                                         const iso_tensor *x, const iso_tensor *dy, iso_tensor *dw,
                                         bool accumulate_w, iso_tensor *db, bool accumulate_b) {
    if (dw) return backward_params(self, c, x, dy, dw, accumulate_w, db, accumulate_b);
    return db ? iso__cpu_bias_gradient_f32(iso__cpu_of(self), dy, db, accumulate_b) : ISO_OK;
}

static iso_status conv2d_backward_input(iso_device *self, const iso_conv2d_config *c,
                                        const iso_tensor *dy, const iso_tensor *w, iso_tensor *dx) {
    problem p = problem_of(BACKWARD_INPUT, c, dx, dy);
    return run_problem(iso__cpu_of(self), &p, dx, dy,
                       (void *[]){dx->data, w->data, NULL, dy->data});
}

void iso__onednn_fill_conv(iso_kernel_ops *ops) {
    ops->conv2d_forward = conv2d_forward;
    ops->conv2d_backward_params = conv2d_backward_params;
    ops->conv2d_backward_input = conv2d_backward_input;
}

// ---- Slots for bf16 and f16 -------------------------------------------------------------------------

// Where oneDNN's kernels for bf16 are faster than widening for those of f32.
static bool suits_half(iso_device *self, int operation, const iso_conv2d_config *c,
                       const iso_tensor *x, const iso_tensor *y) {
    const iso__cpu *cpu = iso__cpu_of(self);
    problem p = problem_of(operation, c, x, y);
    return x->dtype == ISO_BF16 && iso__onednn_has_bf16() &&
           (cpu->bf16_always || !faster_in_f32(cpu, &p));
}

static iso_status half_forward(iso_device *self, const iso_conv2d_config *c, const iso_tensor *x,
                               const iso_tensor *w, const iso_tensor *b, iso_activation act,
                               iso_tensor *y) {
    return suits_half(self, FORWARD, c, x, y)
               ? conv2d_forward(self, c, x, w, b, act, y)
               : iso__cpu_half_conv2d_forward(self, c, x, w, b, act, y);
}

static iso_status half_backward_params(iso_device *self, const iso_conv2d_config *c,
                                       const iso_tensor *x, const iso_tensor *dy, iso_tensor *dw,
                                       bool accumulate_w, iso_tensor *db, bool accumulate_b) {
    return dw && suits_half(self, BACKWARD_PARAMS, c, x, dy)
               ? backward_params(self, c, x, dy, dw, accumulate_w, db, accumulate_b)
               : iso__cpu_half_conv2d_backward_params(self, c, x, dy, dw, accumulate_w, db,
                                                      accumulate_b);
}

static iso_status half_backward_input(iso_device *self, const iso_conv2d_config *c,
                                      const iso_tensor *dy, const iso_tensor *w, iso_tensor *dx) {
    return suits_half(self, BACKWARD_INPUT, c, dx, dy)
               ? conv2d_backward_input(self, c, dy, w, dx)
               : iso__cpu_half_conv2d_backward_input(self, c, dy, w, dx);
}

void iso__onednn_fill_half_conv(iso_kernel_ops *ops) {
    ops->conv2d_forward = half_forward;
    ops->conv2d_backward_params = half_backward_params;
    ops->conv2d_backward_input = half_backward_input;
}
