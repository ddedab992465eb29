// SPDX-License-Identifier: MIT
// Convolutions as one matrix product per image and group (im2col), on the device's gemm. Logical
// layout only.
#include "device/cpu/plain/cpu_real.h"

#include <string.h>

// Sizes of one group of channels of one image, the unit of a matrix product. Groups lie one after
// the other, image by image. `taps` is a column of the matrix of patches, `cells` the pixels of an
// output plane.
typedef struct geometry {
    int64_t groups;
    int64_t channels, height, width, out_channels, out_height, out_width;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    int64_t taps, cells;
    int64_t in_size, out_size, weights; // elements of the group in x, y and w
} geometry;

static geometry geometry_of(const iso_conv2d_config *c, const iso_tensor *x, const iso_tensor *y) {
    int64_t groups = c->groups ? c->groups : 1;
    geometry g = {.groups = groups,
                  .channels = x->shape[1] / groups,
                  .height = x->shape[2],
                  .width = x->shape[3],
                  .out_channels = y->shape[1] / groups,
                  .out_height = y->shape[2],
                  .out_width = y->shape[3]};
    for (int i = 0; i < 2; i++) {
        g.kernel[i] = c->kernel_size[i];
        g.stride[i] = c->stride[i] ? c->stride[i] : 1;
        g.padding[i] = c->padding[i];
        g.dilation[i] = c->dilation[i] ? c->dilation[i] : 1;
    }
    g.taps = g.channels * g.kernel[0] * g.kernel[1];
    g.cells = g.out_height * g.out_width;
    g.in_size = g.channels * g.height * g.width;
    g.out_size = g.out_channels * g.cells;
    g.weights = g.out_channels * g.taps;
    return g;
}

// The row of `image` that tap t meets at output row oy: output column ox meets row[ox * stride +
// *shift]; *first and *end bound the columns inside the image. NULL if the whole row is padding.
static real *tap_row(const geometry *g, real *image, int64_t t, int64_t oy, int64_t *shift,
                     int64_t *first, int64_t *end) {
    int64_t kw = t % g->kernel[1], kh = t / g->kernel[1] % g->kernel[0];
    int64_t c = t / (g->kernel[0] * g->kernel[1]), stride = g->stride[1];
    int64_t y = oy * g->stride[0] - g->padding[0] + kh * g->dilation[0];
    int64_t x = kw * g->dilation[1] - g->padding[1];
    if (y < 0 || y >= g->height) return NULL;
    *shift = x;
    *first = x < 0 ? (-x + stride - 1) / stride : 0;
    *end = x < g->width ? (g->width - x + stride - 1) / stride : 0;
    if (*end > g->out_width) *end = g->out_width;
    return image + (c * g->height + y) * g->width;
}

// patches[taps, cells] from an image, and the sum back.
static void image_to_patches(const geometry *g, real *image, real *patches) {
    memset(patches, 0, (size_t)(g->taps * g->cells) * sizeof(real));
    for (int64_t t = 0; t < g->taps; t++)
        for (int64_t oy = 0; oy < g->out_height; oy++, patches += g->out_width) {
            int64_t shift = 0, first = 0, end = 0;
            const real *row = tap_row(g, image, t, oy, &shift, &first, &end);
            for (int64_t ox = row ? first : end; ox < end; ox++)
                patches[ox] = row[ox * g->stride[1] + shift];
        }
}

static void patches_to_image(const geometry *g, const real *patches, real *image) {
    memset(image, 0, (size_t)g->in_size * sizeof(real));
    for (int64_t t = 0; t < g->taps; t++)
        for (int64_t oy = 0; oy < g->out_height; oy++, patches += g->out_width) {
            int64_t shift = 0, first = 0, end = 0;
            real *row = tap_row(g, image, t, oy, &shift, &first, &end);
            for (int64_t ox = row ? first : end; ox < end; ox++)
                row[ox * g->stride[1] + shift] += patches[ox];
        }
}

static iso_status conv2d_forward(iso_device *self, const iso_conv2d_config *config,
                                 const iso_tensor *x, const iso_tensor *w, const iso_tensor *b,
                                 iso_activation act, iso_tensor *y) {
    iso__cpu *cpu = iso__cpu_of(self);
    geometry g = geometry_of(config, x, y);
    void *patches;
    ISO_TRY(iso__cpu_scratch(cpu, (size_t)(g.taps * g.cells) * sizeof(real), &patches));
    for (int64_t i = 0; i < x->shape[0] * g.groups; i++) {
        int64_t group = i % g.groups;
        real *to = (real *)y->data + i * g.out_size;
        const real *bias = b ? (real *)b->data + group * g.out_channels : NULL;
        for (int64_t o = 0; o < g.out_channels; o++)
            for (int64_t k = 0; k < g.cells; k++) to[o * g.cells + k] = bias ? bias[o] : 0;
        image_to_patches(&g, (real *)x->data + i * g.in_size, patches);
        cpu->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.m = g.out_channels,
                                                   .n = g.cells,
                                                   .k = g.taps,
                                                   .a = (real *)w->data + group * g.weights,
                                                   .b = patches,
                                                   .lda = g.taps,
                                                   .ldb = g.cells,
                                                   .ldc = g.cells,
                                                   .beta = 1,
                                                   .c = to});
    }
    if (act == ISO_ACT_RELU) ISO_TRY(iso__kernels(y)->relu_forward(self, y, y));
    return ISO_OK;
}

static iso_status conv2d_backward_params(iso_device *self, const iso_conv2d_config *config,
                                         const iso_tensor *x, const iso_tensor *dy, iso_tensor *dw,
                                         bool accumulate_w, iso_tensor *db, bool accumulate_b) {
    iso__cpu *cpu = iso__cpu_of(self);
    geometry g = geometry_of(config, x, dy);
    void *patches;
    ISO_TRY(iso__cpu_scratch(cpu, (size_t)(g.taps * g.cells) * sizeof(real), &patches));
    for (int64_t i = 0; dw && i < x->shape[0] * g.groups; i++) {
        image_to_patches(&g, (real *)x->data + i * g.in_size, patches);
        cpu->gemm[ISO_REAL_TYPE](
            &(iso__gemm_args){.transpose_b = true,
                              .m = g.out_channels,
                              .n = g.taps,
                              .k = g.cells,
                              .a = (real *)dy->data + i * g.out_size,
                              .b = patches,
                              .lda = g.cells,
                              .ldb = g.cells,
                              .ldc = g.taps,
                              .beta = accumulate_w || i >= g.groups ? 1 : 0,
                              .c = (real *)dw->data + i % g.groups * g.weights});
    }
    if (db) ISO_TRY(ISO_REAL(iso__cpu_bias_gradient)(cpu, dy, db, accumulate_b));
    return ISO_OK;
}

static iso_status conv2d_backward_input(iso_device *self, const iso_conv2d_config *config,
                                        const iso_tensor *dy, const iso_tensor *w, iso_tensor *dx) {
    iso__cpu *cpu = iso__cpu_of(self);
    geometry g = geometry_of(config, dx, dy);
    void *patches;
    ISO_TRY(iso__cpu_scratch(cpu, (size_t)(g.taps * g.cells) * sizeof(real), &patches));
    for (int64_t i = 0; i < dy->shape[0] * g.groups; i++) {
        cpu->gemm[ISO_REAL_TYPE](&(iso__gemm_args){.transpose_a = true,
                                                   .m = g.taps,
                                                   .n = g.cells,
                                                   .k = g.out_channels,
                                                   .a = (real *)w->data + i % g.groups * g.weights,
                                                   .b = (real *)dy->data + i * g.out_size,
                                                   .lda = g.taps,
                                                   .ldb = g.cells,
                                                   .ldc = g.cells,
                                                   .c = patches});
        patches_to_image(&g, patches, (real *)dx->data + i * g.in_size);
    }
    return ISO_OK;
}

void ISO_REAL(iso__cpu_fill_conv)(iso_kernel_ops *ops) {
    ops->conv2d_forward = conv2d_forward;
    ops->conv2d_backward_params = conv2d_backward_params;
    ops->conv2d_backward_input = conv2d_backward_input;
}
