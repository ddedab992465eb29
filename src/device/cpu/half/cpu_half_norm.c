// SPDX-License-Identifier: MIT
// Kernels for bf16 and f16: norms. Their parameters, statistics and workspaces are f32.
#include "device/cpu/half/cpu_half.h"

// ---- Batch norm -----------------------------------------------------------------------------------

static size_t batch_norm_workspace(iso_device *self, const iso_tensor *x) {
    iso_tensor wide = iso__as_f32(x);
    return self->kernels[ISO_F32]->batch_norm_workspace(self, &wide);
}

static iso_status batch_norm_forward(iso_device *self, const iso__batch_norm_args *args,
                                     const iso_tensor *x, iso_tensor *y, void *workspace) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, x, y));
    ISO_TRY(w.ops->batch_norm_forward(self, args, w.as[0], w.as[1], workspace));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status batch_norm_backward(iso_device *self, const iso__batch_norm_args *args,
                                      const iso_tensor *x, const iso_tensor *dy, void *workspace,
                                      iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                      bool accumulate_b, iso_tensor *dx) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, x, dy, dx));
    ISO_TRY(w.ops->batch_norm_backward(self, args, w.as[0], w.as[1], workspace, dw, accumulate_w,
                                       db, accumulate_b, w.as[2]));
    iso__narrow(&w, 2);
    return ISO_OK;
}

static iso_status batch_norm_moments(iso_device *self, const iso_tensor *x, double *moments) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, x));
    return w.ops->batch_norm_moments(self, w.as[0], moments);
}

static iso_status batch_norm_sums(iso_device *self, const iso__batch_norm_args *args,
                                  const iso_tensor *x, const iso_tensor *dy, void *workspace,
                                  iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                  bool accumulate_b, double *sums) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, x, dy));
    return w.ops->batch_norm_sums(self, args, w.as[0], w.as[1], workspace, dw, accumulate_w, db,
                                  accumulate_b, sums);
}

// ---- Layer norm -----------------------------------------------------------------------------------

static iso_status layer_norm_forward(iso_device *self, double eps, int64_t size,
                                     const iso_tensor *x, const iso_tensor *weight,
                                     const iso_tensor *b, iso_tensor *statistics, iso_tensor *y) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, x, y));
    ISO_TRY(w.ops->layer_norm_forward(self, eps, size, w.as[0], weight, b, statistics, w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status layer_norm_backward_params(iso_device *self, int64_t size, const iso_tensor *x,
                                             const iso_tensor *dy, const iso_tensor *statistics,
                                             iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                             bool accumulate_b) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, x, dy));
    return w.ops->layer_norm_backward_params(self, size, w.as[0], w.as[1], statistics, dw,
                                             accumulate_w, db, accumulate_b);
}

static iso_status layer_norm_backward_input(iso_device *self, int64_t size, const iso_tensor *x,
                                            const iso_tensor *weight, const iso_tensor *dy,
                                            const iso_tensor *statistics, iso_tensor *dx) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, x, dy, dx));
    ISO_TRY(w.ops->layer_norm_backward_input(self, size, w.as[0], weight, w.as[1], statistics,
                                             w.as[2]));
    iso__narrow(&w, 2);
    return ISO_OK;
}

// ---- Group norm -----------------------------------------------------------------------------------

static iso_status group_norm_forward(iso_device *self, int64_t groups, double eps,
                                     const iso_tensor *x, const iso_tensor *weight,
                                     const iso_tensor *b, iso_tensor *statistics, iso_tensor *y) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 1, x, y));
    ISO_TRY(w.ops->group_norm_forward(self, groups, eps, w.as[0], weight, b, statistics, w.as[1]));
    iso__narrow(&w, 1);
    return ISO_OK;
}

static iso_status group_norm_backward_params(iso_device *self, int64_t groups, const iso_tensor *x,
                                             const iso_tensor *dy, const iso_tensor *statistics,
                                             iso_tensor *dw, bool accumulate_w, iso_tensor *db,
                                             bool accumulate_b) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, x, dy));
    return w.ops->group_norm_backward_params(self, groups, w.as[0], w.as[1], statistics, dw,
                                             accumulate_w, db, accumulate_b);
}

static iso_status group_norm_backward_input(iso_device *self, int64_t groups, const iso_tensor *x,
                                            const iso_tensor *weight, const iso_tensor *dy,
                                            const iso_tensor *statistics, iso_tensor *dx) {
    iso__wide w;
    ISO_TRY(ISO__WIDEN(&w, self, 2, x, dy, dx));
    ISO_TRY(w.ops->group_norm_backward_input(self, groups, w.as[0], weight, w.as[1], statistics,
                                             w.as[2]));
    iso__narrow(&w, 2);
    return ISO_OK;
}

void iso__cpu_fill_half_norm(iso_kernel_ops *ops) {
    ops->batch_norm_workspace = batch_norm_workspace;
    ops->batch_norm_forward = batch_norm_forward;
    ops->batch_norm_backward = batch_norm_backward;
    ops->batch_norm_moments = batch_norm_moments;
    ops->batch_norm_sums = batch_norm_sums;
    ops->layer_norm_forward = layer_norm_forward;
    ops->layer_norm_backward_params = layer_norm_backward_params;
    ops->layer_norm_backward_input = layer_norm_backward_input;
    ops->group_norm_forward = group_norm_forward;
    ops->group_norm_backward_params = group_norm_backward_params;
    ops->group_norm_backward_input = group_norm_backward_input;
}
