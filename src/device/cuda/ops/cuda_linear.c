// SPDX-License-Identifier: MIT
// Linear layers of the CUDA device: products by cuBLAS, or by cuBLASLt if it can apply bias and
// activation in the same call. Layers with very few output features have their own kernels.
#include "device/cuda/ops/cuda_linear.h"

#include "device/cuda/libs/cuda_lt.h"
#include "device/cuda/ops/linear_kernels.h"
#include "device/cuda/ops/thin_kernels.h"

// After a relu that gave y, unless that is NULL.
static iso_status sum_channels(iso__cuda *cuda, const iso_tensor *y, const iso_tensor *dy,
                               iso_tensor *db, bool accumulate) {
    int64_t channels = dy->shape[1], items = dy->count / channels;
    bool side_by_side = dy->ndim == 2 || iso__cuda_channels_last(dy); // values of all channels
    int64_t rows = side_by_side ? items : dy->shape[0], plane = items / rows;
    ISO_CHECK(items <= INT32_MAX, ISO_ERR_UNSUPPORTED,
              "a bias gradient of %lld numbers per channel on the GPU: use a smaller batch",
              (long long)items);
    iso__cuda_channels sums = {.dtype = dy->dtype,
                               .rows = rows,
                               .channels = channels,
                               .plane = plane,
                               .x = dy->data,
                               .y = y ? y->data : NULL,
                               .accumulate = accumulate,
                               .out = db->data};
    int parts = iso__cuda_channel_sum_parts(dy->dtype, rows, channels, plane);
    size_t bytes = (size_t)(parts * channels) * iso_dtype_size(db->dtype);
    if (parts > 1) ISO_TRY(iso__cuda_scratch(cuda, bytes, &sums.partial));
    if (parts > 1) ISO_TRY(iso__cuda_arrivals(cuda, &sums.arrived));
    return iso__cuda_channel_sums(cuda, &sums);
}

iso_status iso__cuda_bias_gradient(iso__cuda *cuda, const iso_tensor *dy, iso_tensor *db,
                                   bool accumulate) {
    return sum_channels(cuda, NULL, dy, db, accumulate);
}

static iso_status relu_backward_bias(iso_device *self, const iso_tensor *y, iso_tensor *dy,
                                     iso_tensor *db, bool accumulate) {
    return sum_channels(iso__cuda_of(self), y, dy, db, accumulate);
}

// c = x w^T, f32 where asked for.
static iso_status multiply_matrices(iso__cuda *cuda, const iso_tensor *x, const iso_tensor *w,
                                    bool c_f32, void *c) {
    int64_t in = w->shape[1], out = w->shape[0];
    return iso__cuda_gemm(cuda, &(iso__cuda_gemm_args){.dtype = x->dtype,
                                                       .transpose_b = true,
                                                       .m = x->shape[0],
                                                       .n = out,
                                                       .k = in,
                                                       .a = x->data,
                                                       .b = w->data,
                                                       .lda = in,
                                                       .ldb = in,
                                                       .ldc = out,
                                                       .c = c,
                                                       .c_f32 = c_f32});
}

// Sums of 16 bits are rounded when the bias is there.
static iso_status multiply_and_add(iso__cuda *cuda, const iso_tensor *x, const iso_tensor *w,
                                   const iso_tensor *b, bool relu, iso_tensor *y) {
    int64_t rows = y->shape[0], out = y->shape[1];
    const void *bias = b ? b->data : NULL;
    void *sums;
    if (!iso__is_half(x->dtype)) {
        ISO_TRY(multiply_matrices(cuda, x, w, false, y->data));
        return iso__cuda_bias_act(cuda, x->dtype, rows, out, 1, bias, relu, y->data);
    }
    ISO_TRY(iso__cuda_scratch(cuda, (size_t)y->count * sizeof(float), &sums));
    ISO_TRY(multiply_matrices(cuda, x, w, true, sums));
    return iso__cuda_bias_act_of_sums(cuda, y->dtype, rows, out, 1, sums, bias, relu, y->data);
}

// ---- Very few features ----------------------------------------------------------------------------

// a and b: what is loaded or stored in packs.
static bool is_thin(iso_dtype dtype, const iso__cuda_thin *t, const void *a, const void *b) {
    uintptr_t bits = (uintptr_t)a | (uintptr_t)b;
    return dtype != ISO_F64 && t->out <= ISO_CUDA_THIN_OUT && t->in % ISO_CUDA_THIN_PACK == 0 &&
           t->in < 32 * ISO_CUDA_ARRIVALS && t->rows > 0 && t->rows * t->in <= INT32_MAX &&
           bits % 16 == 0;
}

static iso_status thin_params(iso__cuda *cuda, const iso_tensor *x, const iso_tensor *dy,
                              const iso__cuda_thin *t, iso__cuda_thin_gradients *g) {
    void *partial = NULL;
    int parts = iso__cuda_thin_parts(t);
    size_t bytes = (size_t)(parts * (t->in + 1) * t->out) * sizeof(float);
    if (parts > 1) ISO_TRY(iso__cuda_scratch(cuda, bytes, &partial));
    if (parts > 1) ISO_TRY(iso__cuda_arrivals(cuda, &g->arrived));
    g->partial = partial;
    g->x = x->data;
    g->dy = dy->data;
    return iso__cuda_thin_params(cuda, x->dtype, t, g);
}

// ---- Slots ----------------------------------------------------------------------------------------

static iso_status linear_forward(iso_device *self, const iso_tensor *x, const iso_tensor *w,
                                 iso__arrival *arrival, const iso_tensor *b, iso_activation act,
                                 iso_tensor *y) {
    iso__cuda *cuda = iso__cuda_of(self);
    bool done, relu = act == ISO_ACT_RELU;
    ISO_TRY(iso__arrival_wait(arrival, w));
    iso__cuda_thin thin = {x->shape[0], w->shape[1], w->shape[0]};
    if (is_thin(x->dtype, &thin, x->data, w->data))
        return iso__cuda_thin_forward(cuda, x->dtype, &thin, x->data, w->data, b ? b->data : NULL,
                                      relu, y->data);
    ISO_TRY(iso__cuda_lt_linear(cuda, x, w, b, act, y, &done));
    if (done) return ISO_OK;
    if (!b && !relu) return multiply_matrices(cuda, x, w, false, y->data);
    return multiply_and_add(cuda, x, w, b, relu, y);
}

// Rows of dy^T x, all of them or some: dy is read where it is.
static iso_status linear_backward_rows(iso_device *self, const iso_tensor *x, const iso_tensor *dy,
                                       int64_t first, iso_tensor *dw, bool accumulate) {
    int64_t rows = x->shape[0], in = x->shape[1], out = dy->shape[1];
    const char *from = (const char *)dy->data + (size_t)first * iso_dtype_size(dy->dtype);
    return iso__cuda_gemm(iso__cuda_of(self),
                          &(iso__cuda_gemm_args){.dtype = x->dtype,
                                                 .transpose_a = true,
                                                 .m = dw->shape[0],
                                                 .n = in,
                                                 .k = rows,
                                                 .a = from,
                                                 .b = x->data,
                                                 .lda = out,
                                                 .ldb = in,
                                                 .ldc = in,
                                                 .beta = accumulate ? 1 : 0,
                                                 .c = dw->data,
                                                 .c_f32 = iso__is_half(x->dtype)});
}

static iso_status linear_backward_params(iso_device *self, const iso_tensor *x,
                                         const iso_tensor *dy, iso_tensor *dw, bool accumulate_w,
                                         iso_tensor *db, bool accumulate_b) {
    iso__cuda_thin thin = {x->shape[0], x->shape[1], dy->shape[1]};
    if (dw && is_thin(x->dtype, &thin, NULL, NULL))
        return thin_params(iso__cuda_of(self), x, dy, &thin,
                           &(iso__cuda_thin_gradients){.dw = dw->data,
                                                       .db = db ? db->data : NULL,
                                                       .accumulate_w = accumulate_w,
                                                       .accumulate_b = accumulate_b});
    if (dw) ISO_TRY(linear_backward_rows(self, x, dy, 0, dw, accumulate_w));
    if (db) ISO_TRY(iso__cuda_bias_gradient(iso__cuda_of(self), dy, db, accumulate_b));
    return ISO_OK;
}

static iso_status linear_backward_input(iso_device *self, const iso_tensor *dy, const iso_tensor *w,
                                        iso_tensor *dx) {
    int64_t rows = dy->shape[0], in = w->shape[1], out = w->shape[0];
    iso__cuda_thin thin = {rows, in, out};
    if (is_thin(dy->dtype, &thin, w->data, dx->data))
        return iso__cuda_thin_input(iso__cuda_of(self), dy->dtype, &thin, dy->data, w->data,
                                    dx->data);
    return iso__cuda_gemm(iso__cuda_of(self), &(iso__cuda_gemm_args){.dtype = dy->dtype,
                                                                     .m = rows,
                                                                     .n = in,
                                                                     .k = out,
                                                                     .a = dy->data,
                                                                     .b = w->data,
                                                                     .lda = out,
                                                                     .ldb = in,
                                                                     .ldc = in,
                                                                     .c = dx->data});
}

void iso__cuda_fill_linear(iso_kernel_ops *ops) {
    ops->relu_backward_bias = relu_backward_bias;
    ops->linear_forward = linear_forward;
    ops->linear_backward_params = linear_backward_params;
    ops->linear_backward_rows = linear_backward_rows;
    ops->linear_backward_input = linear_backward_input;
}
