// SPDX-License-Identifier: MIT
// Copies between layouts, for gradients in backward, flatten, and weights for cuDNN; rounds
// parameters to 16 bits.
#include "device/cuda/ops/cuda_copy.h"

#include "device/cuda/runtime/fill_kernels.h"
#include "device/cuda/ops/layout_kernels.h"
#include "device/cuda/ops/round_kernels.h"

#include <string.h>

static int64_t plane_of(const iso_tensor *x) { return x->shape[2] * x->shape[3]; }

bool iso__cuda_is_ordered_last(const iso_tensor *x) {
    return iso__cuda_channels_last(x) && x->shape[1] > 1 && plane_of(x) > 1;
}

static bool has_shape_of(const iso_tensor *a, const iso_tensor *b) {
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(int64_t)) == 0;
}

bool iso__cuda_reorders(const iso_tensor *from, const iso_tensor *to) {
    bool last = iso__cuda_is_ordered_last(from);
    return last != iso__cuda_is_ordered_last(to) || (last && !has_shape_of(from, to));
}

iso_status iso__cuda_to_logical(iso__cuda *cuda, const iso_tensor *x, const void *from, void *to) {
    int64_t channels = x->shape[1], plane = plane_of(x);
    iso__cuda_matrices m = {x->shape[0], plane, channels, channels, plane};
    return iso__cuda_transpose(cuda, iso_dtype_size(x->dtype), &m, from, to);
}

iso_status iso__cuda_from_logical(iso__cuda *cuda, const iso_tensor *x, const void *from,
                                  void *to) {
    int64_t channels = x->shape[1], plane = plane_of(x);
    iso__cuda_matrices m = {x->shape[0], channels, plane, plane, channels};
    return iso__cuda_transpose(cuda, iso_dtype_size(x->dtype), &m, from, to);
}

// What is left when the types agree. between: room for the tensor where neither side is logical.
static iso_status reorder_elements(iso__cuda *cuda, const iso_tensor *from, const void *data,
                                   const iso_tensor *to, void *between) {
    bool of_from = iso__cuda_is_ordered_last(from), of_to = iso__cuda_is_ordered_last(to);
    iso_tensor typed = *from;
    typed.dtype = to->dtype;
    if (!of_from) return iso__cuda_from_logical(cuda, to, data, to->data);
    if (!of_to) return iso__cuda_to_logical(cuda, &typed, data, to->data);
    ISO_TRY(iso__cuda_to_logical(cuda, &typed, data, between));
    return iso__cuda_from_logical(cuda, to, between, to->data);
}

// Weights that are rounded for a convolution: one kernel.
static bool are_weights(const iso_tensor *from, const iso_tensor *to) {
    return from->dtype == ISO_F32 && iso__is_half(to->dtype) && !iso__cuda_is_ordered_last(from) &&
           iso__cuda_is_ordered_last(to) && has_shape_of(from, to) &&
           plane_of(to) <= ISO_CUDA_ROUND_TAPS;
}

static iso__cuda_filters filters_of(const iso_tensor *w) {
    return (iso__cuda_filters){w->shape[0], w->shape[1], plane_of(w), w->shape[0], w->shape[1]};
}

static iso__cuda_rounding rounding_of(const iso__rounding *of, bool weights) {
    return (iso__cuda_rounding){.count = of->to->count,
                                .channels = weights ? of->to->shape[1] : 0,
                                .taps = weights ? plane_of(of->to) : 0,
                                .from = of->from->data,
                                .to = of->to->data};
}

iso_status iso__cuda_round_many(iso_device *self, int count, const iso__rounding *of) {
    iso__cuda *cuda = iso__cuda_of(self);
    iso__cuda_roundings r = {.count = 0};
    for (int i = 0; i < count; i++) {
        bool weights = are_weights(of[i].from, of[i].to);
        if (!weights && iso__cuda_reorders(of[i].from, of[i].to)) {
            ISO_TRY(iso__cuda_reorder(cuda, of[i].from, of[i].to));
            continue;
        }
        r.item[r.count++] = rounding_of(&of[i], weights);
        if (r.count < ISO_CUDA_ROUNDINGS) continue;
        ISO_TRY(iso__cuda_round_all(cuda, of[i].to->dtype, &r));
        memset(&r, 0, sizeof(r)); // graphs compare all of it
    }
    return r.count > 0 ? iso__cuda_round_all(cuda, of->to->dtype, &r) : ISO_OK;
}

iso_status iso__cuda_reorder(iso__cuda *cuda, const iso_tensor *from, const iso_tensor *to) {
    bool converts = from->dtype != to->dtype;
    bool twice = iso__cuda_is_ordered_last(from) && iso__cuda_is_ordered_last(to);
    size_t bytes = ((size_t)to->count * iso_dtype_size(to->dtype) + 255) / 256 * 256;
    void *scratch = NULL;
    const void *data = from->data;
    if (are_weights(from, to)) {
        iso__cuda_filters f = filters_of(to);
        return iso__cuda_filters_last(cuda, &f, ISO_F32, from->data, to->dtype, to->data);
    }
    if (converts || twice)
        ISO_TRY(iso__cuda_scratch(cuda, bytes * (size_t)(converts + twice), &scratch));
    if (converts) {
        ISO_TRY(iso__cuda_convert(cuda, to->count, from->dtype, data, to->dtype, scratch));
        data = scratch;
    }
    return reorder_elements(cuda, from, data, to, (char *)scratch + (converts ? bytes : 0));
}
