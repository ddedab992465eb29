// SPDX-License-Identifier: MIT
// Kernels for bf16 and f16: functions of one element, softmax, losses, and copies of columns.
#include "device/cpu/half/cpu_half.h"

#include <string.h>

// ---- Functions of one element ---------------------------------------------------------------------

// All tensors have one shape and layout; some may be f32. They are converted in pieces, which stay
// in the cache.
enum { PIECE = 4096 };

typedef struct operation {
    iso_status (*run)(iso_device *self, const iso_kernel_ops *f32, iso_tensor *const *x,
                      const struct operation *args);
    int reads, first_written; // of the tensors
    iso__unary function;
    double alpha;
    iso_activation act;
} operation;

static iso_tensor piece_of(const iso_tensor *x, int64_t first, int64_t count) {
    iso_tensor piece = *x;
    piece.layout = ISO_LAYOUT_LOGICAL;
    piece.ndim = 1;
    piece.shape[0] = piece.count = count;
    piece.data = (char *)x->data + (size_t)first * iso_dtype_size(x->dtype);
    return piece;
}

static iso_status run_whole(iso_device *self, const operation *o, int count,
                            const iso_tensor *const *x) {
    iso__wide w;
    ISO_TRY(iso__widen(&w, self, o->reads, count, x));
    ISO_TRY(o->run(self, w.ops, w.as, o));
    iso__narrow(&w, o->first_written);
    return ISO_OK;
}

static iso_status run_operation(iso_device *self, const operation *o, int count,
                                const iso_tensor *const *x) {
    iso__cpu_view v = iso__cpu_view_of(iso__cpu_of(self), x[0]);
    iso_tensor piece[ISO__WIDE_TENSORS];
    const iso_tensor *pieces[ISO__WIDE_TENSORS];
    // The padding of a block must stay 0, and a function of 0 need not be 0.
    if (v.channels % v.inner) return run_whole(self, o, count, x);
    for (int64_t first = 0; first < v.total; first += PIECE) {
        for (int i = 0; i < count; i++) {
            piece[i] = piece_of(x[i], first, iso__smaller(v.total - first, PIECE));
            pieces[i] = &piece[i];
        }
        ISO_TRY(run_whole(self, o, count, pieces));
    }
    return ISO_OK;
}

#define RUN(self, o, ...)                                                                          \
    run_operation(self, o, (int)(sizeof((const void *[]){__VA_ARGS__}) / sizeof(void *)),          \
                  (const iso_tensor *[]){__VA_ARGS__})

static iso_status run_relu(iso_device *self, const iso_kernel_ops *f32, iso_tensor *const *x,
                           const operation *o) {
    (void)o;
    return f32->relu_forward(self, x[0], x[1]);
}
static iso_status relu_forward(iso_device *self, const iso_tensor *x, iso_tensor *y) {
    const operation o = {.run = run_relu, .reads = 1, .first_written = 1};
    return RUN(self, &o, x, y);
}

static iso_status relu_gradient(iso_device *self, const iso_kernel_ops *f32, iso_tensor *const *x,
                                const operation *o) {
    (void)o;
    return f32->relu_backward(self, x[0], x[1], x[2]);
}
static iso_status relu_backward(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                iso_tensor *dx) {
    const operation o = {.run = relu_gradient, .reads = 2, .first_written = 2};
    return RUN(self, &o, y, dy, dx);
}

static iso_status relu_gradient_copy(iso_device *self, const iso_kernel_ops *f32,
                                     iso_tensor *const *x, const operation *o) {
    (void)o;
    return f32->relu_backward_copy(self, x[0], x[1], x[2]);
}
static iso_status relu_backward_copy(iso_device *self, const iso_tensor *y, iso_tensor *dy,
                                     iso_tensor *copy) {
    const operation o = {.run = relu_gradient_copy, .reads = 2, .first_written = 1};
    return RUN(self, &o, y, dy, copy);
}

static iso_status run_unary(iso_device *self, const iso_kernel_ops *f32, iso_tensor *const *x,
                            const operation *o) {
    return f32->unary_forward(self, o->function, o->alpha, x[0], x[1]);
}
static iso_status unary_forward(iso_device *self, iso__unary function, double alpha,
                                const iso_tensor *x, iso_tensor *y) {
    const operation o = {
        .run = run_unary, .reads = 1, .first_written = 1, .function = function, .alpha = alpha};
    return RUN(self, &o, x, y);
}

static iso_status unary_gradient(iso_device *self, const iso_kernel_ops *f32, iso_tensor *const *x,
                                 const operation *o) {
    return f32->unary_backward(self, o->function, o->alpha, x[0], x[1], x[2]);
}
static iso_status unary_backward(iso_device *self, iso__unary function, double alpha,
                                 const iso_tensor *saved, const iso_tensor *dy, iso_tensor *dx) {
    const operation o = {.run = unary_gradient,
                         .reads = 2,
                         .first_written = 2,
                         .function = function,
                         .alpha = alpha};
    return RUN(self, &o, saved, dy, dx);
}

static iso_status run_sum(iso_device *self, const iso_kernel_ops *f32, iso_tensor *const *x,
                          const operation *o) {
    return f32->add(self, x[0], x[1], o->act, x[2]);
}
static iso_status add_elements(iso_device *self, const iso_tensor *a, const iso_tensor *b,
                               iso_activation act, iso_tensor *y) {
    const operation o = {.run = run_sum, .reads = 2, .first_written = 2, .act = act};
    return RUN(self, &o, a, b, y);
}

static iso_status drop_elements(iso_device *self, const iso__dropout_draw *draw,
                                const iso_tensor *x, iso_tensor *y) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, x, y));
    ISO_TRY(w.ops->dropout(self, draw, w.as[0], w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

// ---- Softmax and losses ---------------------------------------------------------------------------

static iso_status log_softmax_forward(iso_device *self, const iso_tensor *x, iso_tensor *y) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, x, y));
    ISO_TRY(w.ops->log_softmax_forward(self, w.as[0], w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status log_softmax_backward(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                       iso_tensor *dx) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, y, dy, dx));
    ISO_TRY(w.ops->log_softmax_backward(self, w.as[0], w.as[1], w.as[2]));
    iso__narrow(&w, 2);
    return ISO_OK;
}

static iso_status softmax_forward(iso_device *self, const iso_tensor *x, iso_tensor *y) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, x, y));
    ISO_TRY(w.ops->softmax_forward(self, w.as[0], w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status softmax_backward(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                   iso_tensor *dx) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, y, dy, dx));
    ISO_TRY(w.ops->softmax_backward(self, w.as[0], w.as[1], w.as[2]));
    iso__narrow(&w, 2);
    return ISO_OK;
}

static iso_status label_loss(iso_device *self, const iso_loss_config *config,
                             const iso_tensor *output, const int32_t *labels, double result[2],
                             iso_tensor *grad) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, output, grad));
    ISO_TRY(w.ops->loss(self, config, w.as[0], labels, result, w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status target_loss(iso_device *self, const iso_loss_config *config,
                              const iso_tensor *output, const iso_tensor *target, double result[2],
                              iso_tensor *grad) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, output, target, grad));
    ISO_TRY(w.ops->target_loss(self, config, w.as[0], w.as[1], result, w.as[2]));
    iso__narrow(&w, 2);
    return ISO_OK;
}

// ---- Columns --------------------------------------------------------------------------------------

static iso_status copy_columns(iso_device *self, int64_t width, const iso_tensor *from,
                               int64_t from_first, iso_tensor *to, int64_t to_first) {
    const uint16_t *source = (const uint16_t *)from->data + from_first;
    uint16_t *target = (uint16_t *)to->data + to_first;
    (void)self;
    for (int64_t n = 0; n < from->shape[0]; n++)
        memcpy(target + n * to->shape[1], source + n * from->shape[1],
               (size_t)width * sizeof(*target));
    return ISO_OK;
}

static iso_status take_columns(iso_device *self, const iso_tensor *x, int64_t first,
                               iso_tensor *columns) {
    return copy_columns(self, columns->shape[1], x, first, columns, 0);
}

void iso__cpu_fill_half_elementwise(iso_kernel_ops *ops) {
    ops->relu_forward = relu_forward;
    ops->relu_backward = relu_backward;
    ops->dropout = drop_elements;
    ops->unary_forward = unary_forward;
    ops->unary_backward = unary_backward;
    ops->add = add_elements;
    ops->relu_backward_copy = relu_backward_copy;
    ops->log_softmax_forward = log_softmax_forward;
    ops->log_softmax_backward = log_softmax_backward;
    ops->softmax_forward = softmax_forward;
    ops->softmax_backward = softmax_backward;
    ops->loss = label_loss;
    ops->target_loss = target_loss;
    ops->copy_columns = copy_columns;
    ops->take_columns = take_columns;
}
