// SPDX-License-Identifier: MIT
// Scaled dot-product attention (Vaswani et al., Attention Is All You Need, 2017), one head of one
// sequence at a time, on the device's gemm; and embeddings, whose rows are copied and added up.
#include "device/cpu/plain/cpu_real.h"

#include <string.h>

// ---- One head -------------------------------------------------------------------------------------

// Rows of q, k and v are 3 * embed numbers apart, rows of y `embed`, rows of weights `length`.
typedef struct head {
    int64_t length, width, embed;
    real *q, *k, *v, *weights, *y;
} head;

static head head_of(int64_t heads, int64_t i, const iso_tensor *qkv, const iso_tensor *weights,
                    const iso_tensor *y) {
    head h = {.length = y->shape[1], .embed = y->shape[2], .width = y->shape[2] / heads};
    int64_t sequence = i / heads, column = i % heads * h.width;
    h.q = (real *)qkv->data + sequence * h.length * 3 * h.embed + column;
    h.k = h.q + h.embed;
    h.v = h.k + h.embed;
    h.weights = (real *)weights->data + i * h.length * h.length;
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
    const int64_t far = 3 * h->embed;
    cpu->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.transpose_b = true,
                                               .m = h->length,
                                               .n = h->length,
                                               .k = h->width,
                                               .a = h->q,
                                               .b = h->k,
                                               .lda = far,
                                               .ldb = far,
                                               .ldc = h->length,
                                               .c = h->weights});
    for (int64_t r = 0; r < h->length; r++)
        weigh_row(h->length, causal ? r + 1 : h->length, scale_of(h), h->weights + r * h->length);
    cpu->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.m = h->length,
                                               .n = h->width,
                                               .k = h->length,
                                               .a = h->weights,
                                               .b = h->v,
                                               .lda = h->length,
                                               .ldb = far,
                                               .ldc = h->embed,
                                               .c = h->y});
}

// c [length, width] = op(a) b, with a [length, length].
static void multiply_head(iso__cpu *cpu, const head *h, bool transpose, const real *a,
                          const real *b, int64_t ldb, real *c, int64_t ldc) {
    cpu->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.transpose_a = transpose,
                                               .m = h->length,
                                               .n = h->width,
                                               .k = h->length,
                                               .a = a,
                                               .b = b,
                                               .lda = h->length,
                                               .ldb = ldb,
                                               .ldc = ldc,
                                               .c = c});
}

// h->y is the gradient of the output. q, k and v become their gradients. scratch: length x (length
// + width).
static void attend_back(iso__cpu *cpu, const head *h, real *scratch) {
    const int64_t far = 3 * h->embed;
    real *d = scratch, *dq = scratch + h->length * h->length;
    cpu->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.transpose_b = true,
                                               .m = h->length,
                                               .n = h->length,
                                               .k = h->width,
                                               .a = h->y,
                                               .b = h->v,
                                               .lda = h->embed,
                                               .ldb = far,
                                               .ldc = h->length,
                                               .c = d});
    multiply_head(cpu, h, true, h->weights, h->y, h->embed, h->v, far);
    for (int64_t r = 0; r < h->length; r++)
        unweigh_row(h->length, scale_of(h), h->weights + r * h->length, d + r * h->length);
    multiply_head(cpu, h, false, d, h->k, far, dq, h->width);
    multiply_head(cpu, h, true, d, h->q, far, h->k, far);
    for (int64_t r = 0; r < h->length; r++)
        memcpy(h->q + r * far, dq + r * h->width, (size_t)h->width * sizeof(real));
}

// ---- Attention ------------------------------------------------------------------------------------

static iso_status attention_forward(iso_device *self, int64_t heads, bool causal,
                                    const iso_tensor *qkv, iso_tensor *weights, iso_tensor *y) {
    for (int64_t i = 0; i < y->shape[0] * heads; i++) {
        head h = head_of(heads, i, qkv, weights, y);
        attend_head(iso__cpu_of(self), &h, causal);
    }
    return ISO_OK;
}

static iso_status attention_backward(iso_device *self, int64_t heads, const iso_tensor *dy,
                                     const iso_tensor *weights, iso_tensor *qkv) {
    int64_t length = dy->shape[1], width = dy->shape[2] / heads;
    void *scratch;
    ISO_TRY(iso__cpu_scratch(iso__cpu_of(self), (size_t)(length * (length + width)) * sizeof(real),
                             &scratch));
    for (int64_t i = 0; i < dy->shape[0] * heads; i++) {
        head h = head_of(heads, i, qkv, weights, dy);
        attend_back(iso__cpu_of(self), &h, scratch);
    }
    return ISO_OK;
}

// ---- Embeddings -----------------------------------------------------------------------------------

static inline int64_t index_at(const iso_tensor *indices, int64_t i) {
    return indices->dtype == ISO_I32 ? ((int32_t *)indices->data)[i]
                                     : ((int64_t *)indices->data)[i];
}

static iso_status embedding_forward(iso_device *self, const iso_tensor *indices,
                                    const iso_tensor *w, iso_tensor *y) {
    (void)self;
    int64_t width = w->shape[1];
    for (int64_t i = 0; i < indices->count; i++) {
        int64_t row = index_at(indices, i);
        ISO_CHECK(row >= 0 && row < w->shape[0], ISO_ERR_ARG,
                  "element %lld of the input of an Embedding is %lld, which is not in [0, %lld)",
                  (long long)i, (long long)row, (long long)w->shape[0]);
        memcpy((real *)y->data + i * width, (real *)w->data + row * width,
               (size_t)width * sizeof(real));
    }
    return ISO_OK;
}

ISO_CPU_CLONES static void add_row(int64_t width, const real *restrict from, real *restrict to) {
    for (int64_t i = 0; i < width; i++) to[i] += from[i];
}

static iso_status embedding_backward(iso_device *self, const iso_tensor *indices, int64_t skipped,
                                     const iso_tensor *dy, iso_tensor *dw, bool accumulate) {
    (void)self;
    int64_t width = dw->shape[1];
    if (!accumulate) memset(dw->data, 0, (size_t)dw->count * sizeof(real));
    for (int64_t i = 0; i < indices->count; i++) {
        int64_t row = index_at(indices, i);
        if (row == skipped) continue;
        add_row(width, (real *)dy->data + i * width, (real *)dw->data + row * width);
    }
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_attention)(iso_kernel_ops *ops) {
    ops->attention_forward = attention_forward;
    ops->attention_backward = attention_backward;
    ops->embedding_forward = embedding_forward;
    ops->embedding_backward = embedding_backward;
}
