// SPDX-License-Identifier: MIT
// Scaled dot-product attention (Vaswani et al., Attention Is All You Need, 2017), one head of one
// sequence at a time, on the device's gemm; and embeddings, whose rows are copied and added up.
#include "device/cpu/plain/cpu_real.h"

#include <string.h>

// ---- One head -------------------------------------------------------------------------------------

// `length` queries, and `keys` keys and values. Rows of weights are `keys` numbers apart, rows of y
// `embed`.
typedef struct head {
    int64_t length, keys, width, embed, q_stride, kv_stride;
    real *q, *k, *v, *weights, *y;
} head;

static head head_of(const iso__attention_args *args, int64_t i, const iso_tensor *weights,
                    const iso_tensor *y) {
    head h = {.length = y->shape[1],
              .keys = args->keys,
              .embed = y->shape[2],
              .width = y->shape[2] / args->heads,
              .q_stride = args->q_stride,
              .kv_stride = args->kv_stride};
    int64_t sequence = i / args->heads, column = i % args->heads * h.width;
    h.q = (real *)args->q + sequence * h.length * h.q_stride + column;
    h.k = (real *)args->k + sequence * h.keys * h.kv_stride + column;
    h.v = (real *)args->v + sequence * h.keys * h.kv_stride + column;
    h.weights = (real *)weights->data + i * h.length * h.keys;
    h.y = (real *)y->data + sequence * h.length * h.embed + column;
    return h;
}

// The first `seen` numbers of a row become their softmax, the rest 0.
ISO_CPU_CLONES static void weigh_row(int64_t length, int64_t seen, real scale, real *row) {
    real top = row[0];
    double sum = 0;
    for (int64_t i = 1; i < seen; i++) top = row[i] > top ? row[i] : top;
    for (int64_t i = 0; i < seen; i++) {
        row[i] = exp((row[i] - top) * scale);
        sum += (double)row[i];
    }
    real inverse = (real)(1 / sum);
    for (int64_t i = 0; i < seen; i++) row[i] *= inverse;
    for (int64_t i = seen; i < length; i++) row[i] = 0;
}

// d: the gradient of the weights p, which becomes that of the products of queries and keys.
ISO_CPU_CLONES static void unweigh_row(int64_t length, real scale, const real *p, real *d) {
    double sum = 0;
    for (int64_t i = 0; i < length; i++) sum += (double)(p[i] * d[i]);
    real mean = (real)sum;
    for (int64_t i = 0; i < length; i++) d[i] = p[i] * (d[i] - mean) * scale;
}

static real scale_of(const head *h) { return 1 / sqrt((real)h->width); }

static void attend_head(iso__cpu *cpu, const head *h, bool causal) {
    cpu->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.transpose_b = true,
                                               .m = h->length,
                                               .n = h->keys,
                                               .k = h->width,
                                               .a = h->q,
                                               .b = h->k,
                                               .lda = h->q_stride,
                                               .ldb = h->kv_stride,
                                               .ldc = h->keys,
                                               .c = h->weights});
    for (int64_t r = 0; r < h->length; r++)
        weigh_row(h->keys, causal ? iso__smaller(r + 1, h->keys) : h->keys, scale_of(h),
                  h->weights + r * h->keys);
    cpu->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.m = h->length,
                                               .n = h->width,
                                               .k = h->keys,
                                               .a = h->weights,
                                               .b = h->v,
                                               .lda = h->keys,
                                               .ldb = h->kv_stride,
                                               .ldc = h->embed,
                                               .c = h->y});
}

// c [., width] = op(a) b, with a [length, keys].
static void multiply_head(iso__cpu *cpu, const head *h, bool transpose, const real *a,
                          const real *b, int64_t ldb, real *c, int64_t ldc) {
    cpu->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.transpose_a = transpose,
                                               .m = transpose ? h->keys : h->length,
                                               .n = h->width,
                                               .k = transpose ? h->length : h->keys,
                                               .a = a,
                                               .b = b,
                                               .lda = h->keys,
                                               .ldb = ldb,
                                               .ldc = ldc,
                                               .c = c});
}

// h->y is the gradient of the output. q, k and v become their gradients. scratch: length x (keys +
// width).
static void attend_back(iso__cpu *cpu, const head *h, real *scratch) {
    real *d = scratch, *dq = scratch + h->length * h->keys;
    cpu->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.transpose_b = true,
                                               .m = h->length,
                                               .n = h->keys,
                                               .k = h->width,
                                               .a = h->y,
                                               .b = h->v,
                                               .lda = h->embed,
                                               .ldb = h->kv_stride,
                                               .ldc = h->keys,
                                               .c = d});
    multiply_head(cpu, h, true, h->weights, h->y, h->embed, h->v, h->kv_stride);
    for (int64_t r = 0; r < h->length; r++)
        unweigh_row(h->keys, scale_of(h), h->weights + r * h->keys, d + r * h->keys);
    multiply_head(cpu, h, false, d, h->k, h->kv_stride, dq, h->width);
    multiply_head(cpu, h, true, d, h->q, h->q_stride, h->k, h->kv_stride);
    for (int64_t r = 0; r < h->length; r++)
        memcpy(h->q + r * h->q_stride, dq + r * h->width, (size_t)h->width * sizeof(real));
}

// ---- Attention ------------------------------------------------------------------------------------

static iso_status attention_forward(iso_device *self, const iso__attention_args *args,
                                    iso_tensor *weights, iso_tensor *y) {
    for (int64_t i = 0; i < y->shape[0] * args->heads; i++) {
        head h = head_of(args, i, weights, y);
        attend_head(iso__cpu_of(self), &h, args->causal);
    }
    return ISO_OK;
}

static iso_status attention_backward(iso_device *self, const iso__attention_args *args,
                                     const iso_tensor *dy, const iso_tensor *weights) {
    int64_t length = dy->shape[1], width = dy->shape[2] / args->heads;
    void *scratch;
    ISO_TRY(iso__cpu_scratch(iso__cpu_of(self),
                             (size_t)(length * (args->keys + width)) * sizeof(real), &scratch));
    for (int64_t i = 0; i < dy->shape[0] * args->heads; i++) {
        head h = head_of(args, i, weights, dy);
        attend_back(iso__cpu_of(self), &h, scratch);
    }
    return ISO_OK;
}

// ---- Embeddings -----------------------------------------------------------------------------------

ISO_CPU_CLONES static void add_row(int64_t width, const real *restrict from, real *restrict to) {
    for (int64_t i = 0; i < width; i++) to[i] += from[i];
}

static iso_status embedding_backward(iso_device *self, const iso_tensor *indices, int64_t skipped,
                                     const iso_tensor *dy, iso_tensor *dw, bool accumulate) {
    (void)self;
    int64_t width = dw->shape[1];
    if (!accumulate) memset(dw->data, 0, (size_t)dw->count * sizeof(real));
    for (int64_t i = 0; i < indices->count; i++) {
        int64_t row = iso__cpu_index_at(indices, i);
        if (row == skipped) continue;
        add_row(width, (real *)dy->data + i * width, (real *)dw->data + row * width);
    }
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_attention)(iso_kernel_ops *ops) {
    ops->attention_forward = attention_forward;
    ops->attention_backward = attention_backward;
    ops->embedding_forward = iso__cpu_embedding_forward;
    ops->embedding_backward = embedding_backward;
}
