// SPDX-License-Identifier: MIT
// Linear layers with oneDNN inner products, and with the forward kernel for AVX-512 beside them.
//
// The rule: gradients use plain layouts, on which a gemm reaches 93 % and more of a core's peak.
// The forward reads weights in place; a gemm would transpose them first, and reach only 75 to 88 %
// (60 % for 64 x 9216 -> 128). Blocked weights would be as fast as weights in place if their
// conversion were free, but it takes a fifth of the time.
#include "device/cpu/half/cpu_half.h"
#include "device/cpu/onednn/onednn_impl.h"

#include <string.h>

enum { FORWARD = 100, BACKWARD_PARAMS, BACKWARD_INPUT };

// In bf16 a matrix product takes the place of the kernel for AVX-512: it copies the weights that it
// works on into its own layout, which is faster than conversions of all weights.
enum { WIDE, PLAIN, BLOCKED, CANDIDATES, MATMUL = WIDE };

typedef struct problem {
    int operation;
    int64_t rows, in, out;
    bool bias, accumulate_w, accumulate_b;
    iso__onednn_math math;
    iso_activation act;
} problem;

// A problem and its memory. x, w, b and y may be their gradients.
typedef struct task {
    iso__onednn_problem base;
    problem p;
    void *x, *w, *b, *y;
    iso__arrival *arrival; // of w, or NULL
} task;

typedef struct layouts {
    dnnl_memory_desc_t x, w, b, y;
} layouts;

// wanted: the kernel chooses the layout of weights; else it is the caller's.
static iso_status layouts_of(const problem *p, bool wanted, iso__onednn_types t, layouts *out) {
    dnnl_dims_t x = {p->rows, p->in}, w = {p->out, p->in}, y = {p->rows, p->out};
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(&out->x, 2, x, t.x, dnnl_ab));
    ISO_TRY_DNNL(
        dnnl_memory_desc_init_by_tag(&out->w, 2, w, t.w, wanted ? dnnl_format_tag_any : dnnl_ab));
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(&out->b, 1, w, t.b, dnnl_a));
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(&out->y, 2, y, t.y, dnnl_ab));
    return ISO_OK;
}

static dnnl_status_t forward_pd(const problem *p, const layouts *l, dnnl_primitive_attr_t attr,
                                dnnl_engine_t engine, dnnl_primitive_desc_t *out) {
    dnnl_inner_product_desc_t desc;
    dnnl_status_t status = dnnl_inner_product_forward_desc_init(
        &desc, dnnl_forward_training, &l->x, &l->w, p->bias ? &l->b : NULL, &l->y);
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &desc, attr, engine, NULL)
                                  : status;
}

static dnnl_status_t backward_pd(const problem *p, const layouts *l, const layouts *h,
                                 dnnl_primitive_attr_t attr, dnnl_engine_t engine,
                                 dnnl_primitive_desc_t *out) {
    dnnl_inner_product_desc_t desc;
    dnnl_primitive_desc_t hint;
    dnnl_status_t status;
    if (p->operation == BACKWARD_PARAMS)
        status = dnnl_inner_product_backward_weights_desc_init(&desc, &l->x, &l->w,
                                                               p->bias ? &l->b : NULL, &l->y);
    else
        status = dnnl_inner_product_backward_data_desc_init(&desc, &l->x, &l->w, &l->y);
    if (status == dnnl_success) status = forward_pd(p, h, attr, engine, &hint);
    if (status != dnnl_success) return status;
    status = dnnl_primitive_desc_create(out, &desc, attr, engine, hint);
    dnnl_primitive_desc_destroy(hint);
    return status;
}

// y = x w' + b. Sets the layouts of the caller, too.
static dnnl_status_t matmul_pd(const problem *p, dnnl_primitive_attr_t attr, dnnl_engine_t engine,
                               layouts *l, dnnl_primitive_desc_t *out) {
    dnnl_dims_t x = {p->rows, p->in}, w = {p->in, p->out}, b = {1, p->out}, y = {p->rows, p->out};
    dnnl_memory_desc_t x16, w16;
    dnnl_matmul_desc_t desc;
    iso__onednn_types t = iso__onednn_caller_types(p->math, ISO_ONEDNN_RESULT_Y);
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&x16, 2, x, dnnl_bf16, dnnl_ab);
    if (!status) status = dnnl_memory_desc_init_by_tag(&w16, 2, w, dnnl_bf16, dnnl_ba);
    if (!status) status = dnnl_memory_desc_init_by_tag(&l->x, 2, x, t.x, dnnl_ab);
    if (!status) status = dnnl_memory_desc_init_by_tag(&l->w, 2, w, t.w, dnnl_ba);
    if (!status) status = dnnl_memory_desc_init_by_tag(&l->b, 2, b, t.b, dnnl_ab);
    if (!status) status = dnnl_memory_desc_init_by_tag(&l->y, 2, y, t.y, dnnl_ab);
    if (!status) status = dnnl_matmul_desc_init(&desc, &x16, &w16, p->bias ? &l->b : NULL, &l->y);
    return status ? status : dnnl_primitive_desc_create(out, &desc, attr, engine, NULL);
}

static iso_status describe_kernel(iso__cpu *cpu, const problem *p, int candidate,
                                  dnnl_primitive_attr_t attr, layouts *l,
                                  dnnl_primitive_desc_t *out) {
    dnnl_engine_t engine = iso__onednn_engine(cpu);
    if (candidate == MATMUL) {
        ISO_TRY_DNNL(matmul_pd(p, attr, engine, l, out));
        return ISO_OK;
    }
    layouts kernel, hint;
    bool blocked = candidate == BLOCKED;
    int result = p->operation - FORWARD;
    ISO_TRY(layouts_of(p, false, iso__onednn_caller_types(p->math, result), l));
    ISO_TRY(layouts_of(p, blocked, iso__onednn_types_of(p->math, result), &kernel));
    ISO_TRY(layouts_of(p, blocked, iso__onednn_types_of(p->math, ISO_ONEDNN_NO_RESULT), &hint));
    ISO_TRY_DNNL(p->operation == FORWARD ? forward_pd(p, &kernel, attr, engine, out)
                                         : backward_pd(p, &kernel, &hint, attr, engine, out));
    return ISO_OK;
}

static iso_status create_kernel(iso__cpu *cpu, const problem *p, int candidate,
                                const iso__onednn_key *key, iso__onednn_kernel **out) {
    bool forward = p->operation == FORWARD, params = p->operation == BACKWARD_PARAMS;
    bool input = p->operation == BACKWARD_INPUT;
    layouts l;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t pd;
    ISO_TRY(iso__onednn_attributes(p->act, &attr));
    iso_status status = describe_kernel(cpu, p, candidate, attr, &l, &pd);
    dnnl_primitive_attr_destroy(attr);
    ISO_TRY(status);
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

// ---- Candidates -----------------------------------------------------------------------------------

static bool suits_wide(const iso__cpu *cpu, const problem *p) {
    return cpu->block == 16 && p->math == ISO_ONEDNN_F32 && p->operation == FORWARD &&
           iso__cpu_wide_suits(p->rows, p->in, p->out);
}

static iso_status run_wide(iso__cpu *cpu, const task *t) {
    const problem *p = &t->p;
    iso__wide_args args = {.rows = p->rows,
                           .in = p->in,
                           .out = p->out,
                           .x = t->x,
                           .w = t->w,
                           .b = t->b,
                           .relu = p->act == ISO_ACT_RELU,
                           .y = t->y,
                           .arrival = t->arrival};
    return iso__cpu_wide_linear(cpu, &args);
}

static iso_status run_candidate(iso__cpu *cpu, const iso__onednn_problem *base, int candidate) {
    const task *t = iso_container_of(base, const task, base);
    bool wide = suits_wide(cpu, &t->p);
    bool matmul = t->p.math != ISO_ONEDNN_F32 && t->p.operation == FORWARD;
    if (candidate == ISO_ONEDNN_BY_RULE) candidate = matmul ? MATMUL : wide ? WIDE : PLAIN;
    if (candidate == WIDE && !matmul)
        return wide ? run_wide(cpu, t) : (iso_status)ISO_ERR_UNSUPPORTED;
    if (t->arrival) ISO_TRY(t->arrival->wait(t->arrival, t->p.out));
    iso__onednn_key key = base->key;
    key.value[ISO_ONEDNN_RULE] = candidate;
    iso__onednn_kernel *kernel = iso__onednn_find(cpu, &key);
    if (!kernel) {
        int before = iso__onednn_enter(cpu); // kernels are made for a number of threads
        iso_status status = create_kernel(cpu, &t->p, candidate, &key, &kernel);
        iso__onednn_leave(before);
        ISO_TRY(status);
    }
    ISO_TRY(iso__onednn_run(cpu, kernel, (void *[]){t->x, t->w, t->b, t->y}));
    return ISO_OK;
}

static void describe_problem(const iso__onednn_problem *base, char *text, size_t room) {
    static const char *const name[] = {"forward", "backward params", "backward input"};
    const problem *p = &iso_container_of(base, const task, base)->p;
    snprintf(text, room, "linear %s %lld x %lld -> %lld", name[p->operation - FORWARD],
             (long long)p->rows, (long long)p->in, (long long)p->out);
}

// ---- Slots ------------------------------------------------------------------------------------------

// A weight's gradient may be computed in pieces, whose number of rows may differ between runs.
// Pieces must round like the whole, so the rule assumes this number of rows for all.
enum { PIECE_ROWS = 64 };

static bool suits_rounding(const iso__cpu *cpu, const problem *p) {
    int64_t out = p->operation == BACKWARD_PARAMS ? PIECE_ROWS : p->out;
    int64_t x = p->rows * p->in, w = p->in * out, y = p->rows * out;
    int64_t operands = p->operation == FORWARD           ? x + w
                       : p->operation == BACKWARD_PARAMS ? x + y
                                                         : w + y;
    return iso__onednn_rounds(cpu, p->rows * w, operands);
}

static iso__onednn_math math_of(iso_device *self, const problem *p, const iso_tensor *x) {
    if (x->dtype == ISO_BF16) return ISO_ONEDNN_ACTIVATIONS;
    return suits_rounding(iso__cpu_of(self), p) ? ISO_ONEDNN_ROUNDED : ISO_ONEDNN_F32;
}

static iso_status run_problem(iso_device *self, const problem *p, iso__arrival *arrival,
                              void *const data[ISO_ONEDNN_ARGS]) {
    int flags = (p->bias ? 1 : 0) | (p->act == ISO_ACT_RELU ? 2 : 0) | (p->accumulate_w ? 4 : 0) |
                (p->accumulate_b ? 8 : 0) | (p->math == ISO_ONEDNN_ROUNDED ? ISO_ONEDNN_BF16 : 0) |
                (p->math == ISO_ONEDNN_ACTIVATIONS ? ISO_ONEDNN_BF16_ACTIVATIONS : 0);
    task t = {.base = {.key = {{p->operation, self->threads, flags, p->rows, p->in, p->out}},
                       .candidates = CANDIDATES,
                       .run = run_candidate,
                       .describe = describe_problem},
              .p = *p,
              .x = data[0],
              .w = data[1],
              .b = data[2],
              .y = data[3],
              .arrival = arrival};
    return iso__onednn_execute(iso__cpu_of(self), &t.base);
}

static iso_status linear_forward(iso_device *self, const iso_tensor *x, const iso_tensor *w,
                                 iso__arrival *arrival, const iso_tensor *b, iso_activation act,
                                 iso_tensor *y) {
    problem p = {.operation = FORWARD,
                 .rows = x->shape[0],
                 .in = w->shape[1],
                 .out = w->shape[0],
                 .bias = b != NULL,
                 .act = act};
    p.math = math_of(self, &p, x);
    return run_problem(self, &p, arrival,
                       (void *[]){x->data, w->data, b ? b->data : NULL, y->data});
}

static iso_status linear_backward_params(iso_device *self, const iso_tensor *x,
                                         const iso_tensor *dy, iso_tensor *dw, bool accumulate_w,
                                         iso_tensor *db, bool accumulate_b) {
    problem p = {.operation = BACKWARD_PARAMS, .rows = x->shape[0], .in = x->shape[1]};
    bool rounds;
    if (dw) {
        p.out = dw->shape[0];
        p.accumulate_w = accumulate_w;
        p.math = math_of(self, &p, x);
    }
    rounds = p.math != ISO_ONEDNN_F32;
    if (db && (rounds || !dw)) { // from dy before rounding, as for dw in pieces
        ISO_TRY(iso__kernels(dy)->bias_gradient(self, dy, db, accumulate_b));
        db = NULL;
    }
    if (!dw) return ISO_OK;
    p.bias = db != NULL;
    p.accumulate_b = db && accumulate_b;
    return run_problem(self, &p, NULL,
                       (void *[]){x->data, dw->data, db ? db->data : NULL, dy->data});
}

static iso_status linear_backward_input(iso_device *self, const iso_tensor *dy, const iso_tensor *w,
                                        iso_tensor *dx) {
    problem p = {
        .operation = BACKWARD_INPUT, .rows = dy->shape[0], .in = w->shape[1], .out = w->shape[0]};
    p.math = math_of(self, &p, dx);
    return run_problem(self, &p, NULL, (void *[]){dx->data, w->data, NULL, dy->data});
}

void iso__onednn_fill_linear(iso_kernel_ops *ops) {
    ops->linear_forward = linear_forward;
    ops->linear_backward_params = linear_backward_params;
    ops->linear_backward_input = linear_backward_input;
}

// ---- Slots for bf16 and f16 -------------------------------------------------------------------------

static bool suits_half(const iso_tensor *x) {
    return x->dtype == ISO_BF16 && iso__onednn_has_bf16();
}

static iso_status half_forward(iso_device *self, const iso_tensor *x, const iso_tensor *w,
                               iso__arrival *arrival, const iso_tensor *b, iso_activation act,
                               iso_tensor *y) {
    return suits_half(x) ? linear_forward(self, x, w, arrival, b, act, y)
                         : iso__cpu_half_linear_forward(self, x, w, arrival, b, act, y);
}

static iso_status half_backward_params(iso_device *self, const iso_tensor *x, const iso_tensor *dy,
                                       iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                       bool accumulate_b) {
    return suits_half(x) ? linear_backward_params(self, x, dy, dw, accumulate_w, db, accumulate_b)
                         : iso__cpu_half_linear_backward_params(self, x, dy, dw, accumulate_w, db,
                                                                accumulate_b);
}

static iso_status half_backward_input(iso_device *self, const iso_tensor *dy, const iso_tensor *w,
                                      iso_tensor *dx) {
    return suits_half(dx) ? linear_backward_input(self, dy, w, dx)
                          : iso__cpu_half_linear_backward_input(self, dy, w, dx);
}

void iso__onednn_fill_half_linear(iso_kernel_ops *ops) {
    ops->linear_forward = half_forward;
    ops->linear_backward_params = half_backward_params;
    ops->linear_backward_input = half_backward_input;
}
