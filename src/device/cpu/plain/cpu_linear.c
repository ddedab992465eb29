// SPDX-License-Identifier: MIT
// Linear layers on the device's gemm, and bias gradients.
#include "device/cpu/plain/cpu_real.h"

#include <string.h>

iso_status ISO_REAL(iso__cpu_bias_gradient)(iso__cpu *cpu, const iso_tensor *dy, iso_tensor *db,
                                            bool accumulate) {
    real *out = db->data;
    if (!accumulate) memset(out, 0, (size_t)db->count * sizeof(real));
    if (dy->ndim == 2) {
        const real *in = dy->data;
        for (int64_t n = 0; n < dy->shape[0]; n++)
            for (int64_t c = 0; c < db->count; c++) out[c] += in[n * db->count + c];
        return ISO_OK;
    }
    iso__cpu_view v = iso__cpu_view_of(cpu, dy);
    int64_t plane = v.height * v.width;
    for (int64_t n = 0; n < v.rows; n++)
        for (int64_t c = 0; c < v.channels; c++) {
            const real *in =
                (real *)v.data + (n * v.groups + c / v.inner) * plane * v.inner + c % v.inner;
            real sum = 0;
            for (int64_t i = 0; i < plane; i++) sum += in[i * v.inner];
            out[c] += sum;
        }
    return ISO_OK;
}

static iso_status linear_forward(iso_device *self, const iso_tensor *x, const iso_tensor *w,
                                 iso__arrival *arrival, const iso_tensor *b, iso_activation act,
                                 iso_tensor *y) {
    int64_t rows = x->shape[0], in = w->shape[1], out = w->shape[0];
    real *to = y->data;
    for (int64_t n = 0; n < rows; n++)
        if (b)
            memcpy(to + n * out, b->data, (size_t)out * sizeof(real));
        else
            memset(to + n * out, 0, (size_t)out * sizeof(real));
    ISO_TRY(iso__arrival_wait(arrival, w));
    iso__cpu_of(self)->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.transpose_b = true,
                                                             .m = rows,
                                                             .n = out,
                                                             .k = in,
                                                             .a = x->data,
                                                             .b = w->data,
                                                             .lda = in,
                                                             .ldb = in,
                                                             .ldc = out,
                                                             .beta = 1,
                                                             .c = to});
    if (act == ISO_ACT_RELU) ISO_TRY(iso__kernels(y)->relu_forward(self, y, y));
    return ISO_OK;
}

static iso_status linear_backward_params(iso_device *self, const iso_tensor *x,
                                         const iso_tensor *dy, iso_tensor *dw, bool accumulate_w,
                                         iso_tensor *db, bool accumulate_b) {
    int64_t rows = x->shape[0], in = x->shape[1], out = dy->shape[1];
    if (dw)
        iso__cpu_of(self)->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.transpose_a = true,
                                                                 .m = out,
                                                                 .n = in,
                                                                 .k = rows,
                                                                 .a = dy->data,
                                                                 .b = x->data,
                                                                 .lda = out,
                                                                 .ldb = in,
                                                                 .ldc = in,
                                                                 .beta = accumulate_w ? 1 : 0,
                                                                 .c = dw->data});
    if (db) ISO_TRY(ISO_REAL(iso__cpu_bias_gradient)(iso__cpu_of(self), dy, db, accumulate_b));
    return ISO_OK;
}

static iso_status linear_backward_input(iso_device *self, const iso_tensor *dy, const iso_tensor *w,
                                        iso_tensor *dx) {
    int64_t rows = dy->shape[0], in = w->shape[1], out = w->shape[0];
    iso__cpu_of(self)->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.m = rows,
                                                             .n = in,
                                                             .k = out,
                                                             .a = dy->data,
                                                             .b = w->data,
                                                             .lda = out,
                                                             .ldb = in,
                                                             .ldc = in,
                                                             .c = dx->data});
    return ISO_OK;
}

static iso_status take_columns(iso_device *self, const iso_tensor *x, int64_t first,
                               iso_tensor *part) {
    (void)self;
    const real *from = (const real *)x->data + first;
    real *to = part->data;
    size_t bytes = (size_t)part->shape[1] * sizeof(real);
    for (int64_t n = 0; n < part->shape[0]; n++)
        memcpy(to + n * part->shape[1], from + n * x->shape[1], bytes);
    return ISO_OK;
}

static iso_status add_bias(iso_device *self, const iso_tensor *b, iso_tensor *y) {
    int64_t plane = y->shape[2] * y->shape[3];
    (void)self;
    for (int64_t k = 0; k < y->shape[0] * y->shape[1]; k++) {
        real *to = (real *)y->data + k * plane, bias = ((real *)b->data)[k % y->shape[1]];
        for (int64_t i = 0; i < plane; i++) to[i] += bias;
    }
    return ISO_OK;
}

static iso_status bias_gradient(iso_device *self, const iso_tensor *dy, iso_tensor *db,
                                bool accumulate) {
    return ISO_REAL(iso__cpu_bias_gradient)(iso__cpu_of(self), dy, db, accumulate);
}

void ISO_REAL(iso__cpu_fill_linear)(iso_kernel_ops *ops) {
    ops->add_bias = add_bias;
    ops->bias_gradient = bias_gradient;
    ops->take_columns = take_columns;
    ops->linear_forward = linear_forward;
    ops->linear_backward_params = linear_backward_params;
    ops->linear_backward_input = linear_backward_input;
}
