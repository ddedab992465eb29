// SPDX-License-Identifier: MIT
// Layer normalisation of the CUDA device: its slots, in terms of rows.
#include "device/cuda/runtime/cuda_impl.h"
#include "device/cuda/ops/layer_norm_kernels.h"

static void *data_of(const iso_tensor *t) { return t ? t->data : NULL; }

static iso_status layer_norm_forward(iso_device *self, double eps, int64_t size,
                                     const iso_tensor *x, const iso_tensor *w, const iso_tensor *b,
                                     iso_tensor *statistics, iso_tensor *y) {
    return iso__cuda_layer_norm_forward(iso__cuda_of(self), x->dtype, x->count / size, size, eps,
                                        x->data, data_of(w), data_of(b), statistics->data, y->data);
}

static iso_status layer_norm_backward_params(iso_device *self, int64_t size, const iso_tensor *x,
                                             const iso_tensor *dy, const iso_tensor *statistics,
                                             iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                             bool accumulate_b) {
    iso__cuda *cuda = iso__cuda_of(self);
    iso__cuda_layer_norm_params args = {.dtype = x->dtype,
                                        .rows = x->count / size,
                                        .size = size,
                                        .x = x->data,
                                        .dy = dy->data,
                                        .statistics = statistics->data,
                                        .dw = data_of(dw),
                                        .db = data_of(db),
                                        .accumulate_w = accumulate_w,
                                        .accumulate_b = accumulate_b};
    size_t doubles = (size_t)iso__cuda_layer_norm_parts(args.rows, size);
    void *parts;
    ISO_TRY(iso__cuda_scratch(cuda, doubles * sizeof(double), &parts));
    args.parts = parts;
    return iso__cuda_layer_norm_backward_params(cuda, &args);
}

static iso_status layer_norm_backward_input(iso_device *self, int64_t size, const iso_tensor *x,
                                            const iso_tensor *w, const iso_tensor *dy,
                                            const iso_tensor *statistics, iso_tensor *dx) {
    return iso__cuda_layer_norm_backward_input(iso__cuda_of(self), x->dtype, x->count / size, size,
                                               x->data, data_of(w), dy->data, statistics->data,
                                               dx->data);
}

void iso__cuda_fill_layer_norm(iso_kernel_ops *ops) {
    ops->layer_norm_forward = layer_norm_forward;
    ops->layer_norm_backward_params = layer_norm_backward_params;
    ops->layer_norm_backward_input = layer_norm_backward_input;
}
