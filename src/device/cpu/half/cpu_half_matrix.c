// SPDX-License-Identifier: MIT
// Kernels for bf16 and f16: linear layers, convolutions, attention, embeddings and outer products.
// Gradients of parameters are f32.
#include "device/cpu/half/cpu_half.h"

// ---- Linear layers --------------------------------------------------------------------------------

iso_status iso__cpu_half_linear_forward(iso_device *self, const iso_tensor *x,
                                        const iso_tensor *weight, iso__arrival *arrival,
                                        const iso_tensor *b, iso_activation act, iso_tensor *y) {
    iso__wide w;
    ISO_TRY(iso__arrival_wait(arrival, weight));
    ISO_TRY(ISO__WIDEN(&w, self, 3, x, weight, b, y));
    ISO_TRY(w.ops->linear_forward(self, w.as[0], w.as[1], NULL, w.as[2], act, w.as[3]));
    iso__narrow(&w, 3);
    return ISO_OK;
}

iso_status iso__cpu_half_linear_backward_params(iso_device *self, const iso_tensor *x,
                                                const iso_tensor *dy, iso_tensor *dw,
                                                bool accumulate_w, iso_tensor *db,
                                                bool accumulate_b) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, x, dy));
    return w.ops->linear_backward_params(self, w.as[0], w.as[1], dw, accumulate_w, db,
                                         accumulate_b);
}

iso_status iso__cpu_half_linear_backward_input(iso_device *self, const iso_tensor *dy,
                                               const iso_tensor *weight, iso_tensor *dx) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, dy, weight, dx));
    ISO_TRY(w.ops->linear_backward_input(self, w.as[0], w.as[1], w.as[2]));
    iso__narrow(&w, 2);
    return ISO_OK;
}

// ---- Convolutions ---------------------------------------------------------------------------------

iso_status iso__cpu_half_conv2d_forward(iso_device *self, const iso_conv2d_config *c,
                                        const iso_tensor *x, const iso_tensor *weight,
                                        const iso_tensor *b, iso_activation act, iso_tensor *y) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 3, x, weight, b, y));
    ISO_TRY(w.ops->conv2d_forward(self, c, w.as[0], w.as[1], w.as[2], act, w.as[3]));
    iso__narrow(&w, 3);
    return ISO_OK;
}

iso_status iso__cpu_half_conv2d_backward_params(iso_device *self, const iso_conv2d_config *c,
                                                const iso_tensor *x, const iso_tensor *dy,
                                                iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                                bool accumulate_b) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, x, dy));
    return w.ops->conv2d_backward_params(self, c, w.as[0], w.as[1], dw, accumulate_w, db,
                                         accumulate_b);
}

iso_status iso__cpu_half_conv2d_backward_input(iso_device *self, const iso_conv2d_config *c,
                                               const iso_tensor *dy, const iso_tensor *weight,
                                               iso_tensor *dx) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, dy, weight, dx));
    ISO_TRY(w.ops->conv2d_backward_input(self, c, w.as[0], w.as[1], w.as[2]));
    iso__narrow(&w, 2);
    return ISO_OK;
}

static iso_status add_bias(iso_device *self, const iso_tensor *b, iso_tensor *y) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, b, y));
    ISO_TRY(w.ops->add_bias(self, w.as[0], w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status bias_gradient(iso_device *self, const iso_tensor *dy, iso_tensor *db,
                                bool accumulate) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, dy));
    return w.ops->bias_gradient(self, w.as[0], db, accumulate);
}

// ---- Attention ------------------------------------------------------------------------------------

// q, k and v may be columns of one tensor, so their copies are packed.
enum { Q, K, V, WEIGHTS, Y, OPERANDS };

typedef struct rows {
    uint16_t *data;
    int64_t count, width, stride;
} rows;

static rows rows_of(const iso__attention_args *args, const iso_tensor *y, int which) {
    void *const data[] = {args->q, args->k, args->v};
    return (rows){.data = data[which],
                  .count = y->shape[0] * (which == Q ? y->shape[1] : args->keys),
                  .width = y->shape[2],
                  .stride = which == Q ? args->q_stride : args->kv_stride};
}

static iso_status open_attention(iso__wide *w, iso_device *self, const iso__attention_args *args,
                                 const iso_tensor *weights, const iso_tensor *y,
                                 iso__attention_args *wide) {
    iso_tensor packed[V + 1];
    for (int i = Q; i <= V; i++) {
        rows from = rows_of(args, y, i);
        packed[i] = (iso_tensor){.dtype = y->dtype,
                                 .ndim = 2,
                                 .shape = {from.count, from.width},
                                 .count = from.count * from.width};
    }
    const iso_tensor *all[OPERANDS] = {&packed[Q], &packed[K], &packed[V], weights, y};
    ISO_TRY(iso__wide_open(w, self, OPERANDS, all));
    for (int i = Q; i <= V; i++) {
        rows from = rows_of(args, y, i);
        for (int64_t r = 0; r < from.count; r++)
            iso__cpu_widen(y->dtype, from.width, from.data + r * from.stride,
                           (float *)w->copy[i].data + r * from.width);
        w->given[i] = NULL; // write_rows writes them back
    }
    *wide = *args;
    wide->q = w->copy[Q].data, wide->k = w->copy[K].data, wide->v = w->copy[V].data;
    wide->q_stride = wide->kv_stride = y->shape[2];
    return ISO_OK;
}

static void write_rows(const iso__wide *w, const iso__attention_args *args, const iso_tensor *y) {
    for (int i = Q; i <= V; i++) {
        rows to = rows_of(args, y, i);
        for (int64_t r = 0; r < to.count; r++)
            iso__cpu_narrow(y->dtype, to.width, (float *)w->copy[i].data + r * to.width,
                            to.data + r * to.stride);
    }
}

static iso_status attention_forward(iso_device *self, const iso__attention_args *args,
                                    iso_tensor *weights, iso_tensor *y) {
    iso__wide w;
    iso__attention_args wide;
    ISO_TRY(open_attention(&w, self, args, weights, y, &wide));
    ISO_TRY(w.ops->attention_forward(self, &wide, w.as[WEIGHTS], w.as[Y]));
    iso__narrow(&w, WEIGHTS);
    return ISO_OK;
}

static iso_status attention_backward(iso_device *self, const iso__attention_args *args,
                                     const iso_tensor *dy, const iso_tensor *weights) {
    iso__wide w;
    iso__attention_args wide;
    ISO_TRY(open_attention(&w, self, args, weights, dy, &wide));
    iso__wide_read(&w, WEIGHTS);
    iso__wide_read(&w, Y);
    ISO_TRY(w.ops->attention_backward(self, &wide, w.as[Y], w.as[WEIGHTS]));
    write_rows(&w, args, dy);
    return ISO_OK;
}

// ---- Embeddings -----------------------------------------------------------------------------------

static iso_status embedding_backward(iso_device *self, const iso_tensor *indices, int64_t skipped,
                                     const iso_tensor *dy, iso_tensor *dw, bool accumulate) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, dy));
    return w.ops->embedding_backward(self, indices, skipped, w.as[0], dw, accumulate);
}

// ---- Outer products -------------------------------------------------------------------------------

static iso_status outer_forward(iso_device *self, const iso_tensor *a, const iso_tensor *b,
                                iso_tensor *z) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, a, b, z));
    ISO_TRY(w.ops->outer_forward(self, w.as[0], w.as[1], w.as[2]));
    iso__narrow(&w, 2);
    return ISO_OK;
}

static iso_status outer_backward(iso_device *self, const iso_tensor *dz, const iso_tensor *a,
                                 const iso_tensor *b, iso_tensor *da, iso_tensor *db) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 3, dz, a, b, da, db));
    ISO_TRY(w.ops->outer_backward(self, w.as[0], w.as[1], w.as[2], w.as[3], w.as[4]));
    iso__narrow(&w, 3);
    return ISO_OK;
}

void iso__cpu_fill_half_matrix(iso_kernel_ops *ops) {
    ops->linear_forward = iso__cpu_half_linear_forward;
    ops->linear_backward_params = iso__cpu_half_linear_backward_params;
    ops->linear_backward_input = iso__cpu_half_linear_backward_input;
    ops->conv2d_forward = iso__cpu_half_conv2d_forward;
    ops->conv2d_backward_params = iso__cpu_half_conv2d_backward_params;
    ops->conv2d_backward_input = iso__cpu_half_conv2d_backward_input;
    ops->add_bias = add_bias;
    ops->bias_gradient = bias_gradient;
    ops->attention_forward = attention_forward;
    ops->attention_backward = attention_backward;
    ops->embedding_forward = iso__cpu_embedding_forward;
    ops->embedding_backward = embedding_backward;
    ops->outer_forward = outer_forward;
    ops->outer_backward = outer_backward;
}
