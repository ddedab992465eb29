// Linear layers with oneDNN inner products. On plain layouts: blocked weights would win less than
// their conversion costs (64 x 9216 -> 128: 2.0 ms, blocked 1.3 ms and 4.7 MB to convert).
#include "device/cpu/onednn_impl.h"

enum { FORWARD = 100, BACKWARD_PARAMS, BACKWARD_INPUT };

typedef struct problem {
    int operation;
    int64_t rows, in, out;
    bool bias, accumulate_w, accumulate_b;
    iso_activation act;
} problem;

typedef struct layouts {
    dnnl_memory_desc_t x, w, b, y;
} layouts;

static iso_status layouts_of(const problem *p, layouts *out) {
    dnnl_dims_t x = {p->rows, p->in}, w = {p->out, p->in}, y = {p->rows, p->out};
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(&out->x, 2, x, dnnl_f32, dnnl_ab));
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(&out->w, 2, w, dnnl_f32, dnnl_ab));
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(&out->b, 1, w, dnnl_f32, dnnl_a));
    ISO_TRY_DNNL(dnnl_memory_desc_init_by_tag(&out->y, 2, y, dnnl_f32, dnnl_ab));
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

static dnnl_status_t backward_pd(const problem *p, const layouts *l, dnnl_primitive_attr_t attr,
                                 dnnl_engine_t engine, dnnl_primitive_desc_t *out) {
    dnnl_inner_product_desc_t desc;
    dnnl_primitive_desc_t hint;
    dnnl_status_t status;
    if (p->operation == BACKWARD_PARAMS)
        status = dnnl_inner_product_backward_weights_desc_init(&desc, &l->x, &l->w,
                                                               p->bias ? &l->b : NULL, &l->y);
    else
        status = dnnl_inner_product_backward_data_desc_init(&desc, &l->x, &l->w, &l->y);
    if (status == dnnl_success) status = forward_pd(p, l, attr, engine, &hint);
    if (status != dnnl_success) return status;
    status = dnnl_primitive_desc_create(out, &desc, attr, engine, hint);
    dnnl_primitive_desc_destroy(hint);
    return status;
}

static iso_status create(iso__cpu *cpu, const problem *p, const iso__onednn_key *key,
                         iso__onednn_kernel **out) {
    bool forward = p->operation == FORWARD, params = p->operation == BACKWARD_PARAMS;
    bool input = p->operation == BACKWARD_INPUT;
    layouts l;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t pd;
    ISO_TRY(layouts_of(p, &l));
    ISO_TRY(iso__onednn_attributes(p->act, &attr));
    dnnl_status_t status = forward ? forward_pd(p, &l, attr, iso__onednn_engine(cpu), &pd)
                                   : backward_pd(p, &l, attr, iso__onednn_engine(cpu), &pd);
    dnnl_primitive_attr_destroy(attr);
    ISO_TRY_DNNL(status);
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

// Runs the kernel for this problem, from the cache or new.
static iso_status run(iso__cpu *cpu, const problem *p, void *const data[ISO_ONEDNN_ARGS]) {
    int flags = (p->bias ? 1 : 0) | (p->act == ISO_ACT_RELU ? 2 : 0) | (p->accumulate_w ? 4 : 0) |
                (p->accumulate_b ? 8 : 0);
    iso__onednn_key key = {{p->operation, cpu->base.threads, flags, p->rows, p->in, p->out}};
    iso__onednn_kernel *kernel = iso__onednn_find(cpu, &key);
    if (!kernel) {
        int before = iso__onednn_enter(cpu); // kernels are made for a number of threads
        iso_status status = create(cpu, p, &key, &kernel);
        iso__onednn_leave(before);
        ISO_TRY(status);
    }
    ISO_TRY(iso__onednn_run(cpu, kernel, data));
    return ISO_OK;
}

static iso_status linear_forward(iso_device *self, const iso_tensor *x, const iso_tensor *w,
                                 const iso_tensor *b, iso_activation act, iso_tensor *y) {
    problem p = {.operation = FORWARD,
                 .rows = x->shape[0],
                 .in = w->shape[1],
                 .out = w->shape[0],
                 .bias = b != NULL,
                 .act = act};
    ISO_TRY(run(iso__cpu_of(self), &p, (void *[]){x->data, w->data, b ? b->data : NULL, y->data}));
    return ISO_OK;
}

static iso_status linear_backward_params(iso_device *self, const iso_tensor *x,
                                         const iso_tensor *dy, iso_tensor *dw, bool accumulate_w,
                                         iso_tensor *db, bool accumulate_b) {
    if (!dw)
        return db ? iso__cpu_bias_gradient_f32(iso__cpu_of(self), dy, db, accumulate_b) : ISO_OK;
    problem p = {.operation = BACKWARD_PARAMS,
                 .rows = x->shape[0],
                 .in = dw->shape[1],
                 .out = dw->shape[0],
                 .bias = db != NULL,
                 .accumulate_w = accumulate_w,
                 .accumulate_b = db && accumulate_b};
    ISO_TRY(
        run(iso__cpu_of(self), &p, (void *[]){x->data, dw->data, db ? db->data : NULL, dy->data}));
    return ISO_OK;
}

static iso_status linear_backward_input(iso_device *self, const iso_tensor *dy, const iso_tensor *w,
                                        iso_tensor *dx) {
    problem p = {
        .operation = BACKWARD_INPUT, .rows = dy->shape[0], .in = w->shape[1], .out = w->shape[0]};
    ISO_TRY(run(iso__cpu_of(self), &p, (void *[]){dx->data, w->data, NULL, dy->data}));
    return ISO_OK;
}

void iso__onednn_fill_linear(iso_kernel_ops *ops) {
    ops->linear_forward = linear_forward;
    ops->linear_backward_params = linear_backward_params;
    ops->linear_backward_input = linear_backward_input;
}
