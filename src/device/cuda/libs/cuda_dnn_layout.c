// SPDX-License-Identifier: MIT
// Copies tensors for cuDNN if it needs another order or more channels.
#include "device/cuda/libs/cuda_dnn_layout.h"

#include "device/cuda/ops/layout_kernels.h"

// ---- Activations ----------------------------------------------------------------------------------

static int64_t plane_of(const iso_tensor *t) { return t->shape[2] * t->shape[3]; }

// Both orders are the same memory.
static bool has_one_order(const iso_tensor *t) { return t->shape[1] == 1 || plane_of(t) == 1; }

static bool lies_as(const iso_tensor *t, bool last) {
    return iso__cuda_channels_last(t) == last || has_one_order(t);
}

int64_t iso__dnn_padded(const iso_tensor *t, int64_t groups) {
    int64_t pack = iso__is_half(t->dtype) ? 8 : 4, channels = t->shape[1];
    if (groups > 1 || (iso__cuda_channels_last(t) && !has_one_order(t))) return channels;
    return (channels + pack - 1) / pack * pack;
}

size_t iso__dnn_copy_bytes(const iso_tensor *t, bool last, int64_t channels) {
    if (lies_as(t, last) && channels == t->shape[1]) return 0;
    return (size_t)(t->shape[0] * channels * plane_of(t)) * iso_dtype_size(t->dtype);
}

iso_status iso__dnn_bring(iso__cuda *cuda, const iso_tensor *t, bool last, int64_t channels,
                          void *copy) {
    int64_t plane = plane_of(t), of_t = t->shape[1];
    iso__cuda_matrices to_last = {t->shape[0], of_t, plane, plane, channels};
    iso__cuda_matrices to_logical = {t->shape[0], plane, of_t, of_t, plane};
    return iso__cuda_transpose(cuda, iso_dtype_size(t->dtype), last ? &to_last : &to_logical,
                               t->data, copy);
}

iso_status iso__dnn_return(iso__cuda *cuda, const void *copy, bool last, int64_t channels,
                           const iso_tensor *t) {
    int64_t plane = plane_of(t), of_t = t->shape[1];
    iso__cuda_matrices to_logical = {t->shape[0], plane, of_t, channels, plane};
    iso__cuda_matrices to_last = {t->shape[0], of_t, plane, plane, of_t};
    return iso__cuda_transpose(cuda, iso_dtype_size(t->dtype), last ? &to_logical : &to_last, copy,
                               t->data);
}

// ---- Weights --------------------------------------------------------------------------------------

static iso__cuda_filters filters_of(const iso__dnn_key *k, const iso_tensor *w) {
    return (iso__cuda_filters){w->shape[0], w->shape[1], plane_of(w), k->out_channels,
                               k->channels / k->groups};
}

static bool is_padded(const iso__cuda_filters *f) {
    return f->padded_filters != f->filters || f->padded_channels != f->channels;
}

size_t iso__dnn_weights_bytes(const iso__dnn_key *k, const iso_tensor *w) {
    iso__cuda_filters f = filters_of(k, w);
    iso_dtype dtype = (iso_dtype)k->dtype;
    if (!is_padded(&f) && lies_as(w, k->last) && w->dtype == dtype) return 0;
    return (size_t)(f.padded_filters * f.padded_channels * f.taps) * iso_dtype_size(dtype);
}

iso_status iso__dnn_bring_weights(iso__cuda *cuda, const iso__dnn_key *k, const iso_tensor *w,
                                  void *copy) {
    iso__cuda_filters f = filters_of(k, w);
    if (!k->last) return iso__dnn_bring(cuda, w, false, w->shape[1], copy);
    if (lies_as(w, true))
        return iso__cuda_filters_pad(cuda, &f, iso_dtype_size(w->dtype), w->data, copy);
    return iso__cuda_filters_last(cuda, &f, w->dtype, w->data, w->dtype, copy);
}

iso_status iso__dnn_return_weights(iso__cuda *cuda, const iso__dnn_key *k, const void *copy,
                                   bool accumulate, const iso_tensor *dw) {
    iso__cuda_filters f = filters_of(k, dw);
    iso__cuda_filters in_order = {1, dw->count, 1, 1, dw->count};
    return iso__cuda_filters_logical(cuda, k->last ? &f : &in_order, (iso_dtype)k->dtype, copy,
                                     accumulate, dw->data);
}
