// SPDX-License-Identifier: MIT
// Convolutions from very few channels: recognises them, and calls their kernels.
#include "device/cuda/ops/cuda_stem.h"

#include "device/cuda/ops/stem_kernels.h"

static bool has_form(const iso__cuda *cuda, const iso_conv2d_config *c, const iso_tensor *x,
                     const iso_tensor *y) {
    int64_t side = c->kernel_size[0], filters = y->shape[1], channels = x->shape[1];
    bool rounds = cuda->math != ISO_CUDA_MATH_F32;
    if (!iso__is_half(x->dtype) && !(x->dtype == ISO_F32 && rounds)) return false;
    if (!iso__cuda_channels_last(y) || c->groups > 1 || channels > ISO_CUDA_STEM_CHANNELS)
        return false;
    if ((side != 3 && side != 5) || c->kernel_size[1] != side) return false;
    for (int i = 0; i < 2; i++)
        if (c->stride[i] > 1 || c->dilation[i] > 1) return false;
    int64_t width = iso__cuda_stem_width((int)side), owners = filters / width * channels;
    return filters % width == 0 && owners <= ISO_CUDA_BLOCK &&
           channels * side * side * filters <= ISO_CUDA_STEM_WEIGHTS && x->count <= INT32_MAX &&
           y->count <= INT32_MAX &&
           (uintptr_t)y->data % ((size_t)width * iso_dtype_size(y->dtype)) == 0;
}

static void set_steps(const iso_tensor *x, const iso_tensor *w, iso__cuda_stem *s) {
    int channels = (int)x->shape[1], plane = (int)(x->shape[2] * x->shape[3]);
    int taps = s->side * s->side;
    bool x_last = iso__cuda_channels_last(x), w_last = iso__cuda_channels_last(w);
    s->sample_step = channels * plane;
    s->channel_step = x_last ? 1 : plane;
    s->pixel_step = x_last ? channels : 1;
    s->filter_step = channels * taps;
    s->of_channel_step = w_last ? 1 : taps;
    s->tap_step = w_last ? channels : 1;
}

static iso__cuda_stem stem_of(const iso_conv2d_config *c, const iso_tensor *x, const iso_tensor *w,
                              const iso_tensor *y) {
    iso__cuda_stem s = {.samples = (int)x->shape[0],
                        .channels = (int)x->shape[1],
                        .height = (int)x->shape[2],
                        .width = (int)x->shape[3],
                        .filters = (int)y->shape[1],
                        .out_height = (int)y->shape[2],
                        .out_width = (int)y->shape[3],
                        .side = (int)c->kernel_size[0]};
    for (int i = 0; i < 2; i++) s.padding[i] = (int)c->padding[i];
    set_steps(x, w, &s);
    return s;
}

iso_status iso__cuda_stem_try_forward(iso__cuda *cuda, const iso_conv2d_config *c,
                                      const iso_tensor *x, const iso_tensor *w, const iso_tensor *b,
                                      bool relu, iso_tensor *y, bool *done) {
    *done = has_form(cuda, c, x, y) && w->dtype == x->dtype;
    if (!*done) return ISO_OK;
    iso__cuda_stem s = stem_of(c, x, w, y);
    return iso__cuda_stem_forward(cuda, x->dtype, &s, x->data, w->data, b ? b->data : NULL, relu,
                                  y->data);
}

iso_status iso__cuda_stem_try_filter(iso__cuda *cuda, const iso_conv2d_config *c,
                                     const iso_tensor *x, const iso_tensor *dy, iso_tensor *dw,
                                     bool accumulate, bool *done) {
    *done = has_form(cuda, c, x, dy) && !iso__cuda_channels_last(dw) && dw->dtype == ISO_F32;
    if (!*done) return ISO_OK;
    iso__cuda_stem s = stem_of(c, x, dw, dy);
    void *partial;
    size_t bytes = (size_t)iso__cuda_stem_parts(&s) * (size_t)dw->count * sizeof(float);
    ISO_TRY(iso__cuda_scratch(cuda, bytes, &partial));
    return iso__cuda_stem_filter(cuda, x->dtype, &s, x->data, dy->data, accumulate, partial,
                                 dw->data);
}
