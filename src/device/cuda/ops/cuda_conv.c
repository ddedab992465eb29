// SPDX-License-Identifier: MIT
// Convolutions of the CUDA device: by cuDNN, as matrix products over patches (im2col), or, for very
// few input channels, by special kernels.
//
// A product covers the pixels of as many samples as fit into a limited scratch memory. Samples are
// divided in the same way in every run, and weight gradients are added up in that order.
#include "device/cuda/ops/conv_kernels.h"
#include "device/cuda/libs/cuda_dnn.h"
#include "device/cuda/ops/cuda_linear.h"
#include "device/cuda/ops/cuda_stem.h"
#include "device/cuda/ops/layout_kernels.h"
#include "device/cuda/ops/linear_kernels.h"

#include <string.h>

// ---- Geometry -----------------------------------------------------------------------------------

typedef struct geometry {
    iso__cuda_conv c; // of `step` samples, or of what is left of them
    iso_dtype dtype;
    size_t size;                   // bytes of an element
    int64_t rows;                  // samples altogether
    int64_t groups, taps;          // rows of patches of a group
    int64_t pixels, cells;         // of a plane of x and y
    int64_t in_size, out_size;     // bytes of a sample of x and y
    int64_t out_channels, weights; // of a group; elements of w
    size_t copied;                 // bytes of scratch memory before the matrices: w
    int step;                      // samples at a time
    bool y_last;                   // y has its channels last
    bool direct;                   // x is its own patches
} geometry;

static iso_status check_size(const char *what, int64_t value) {
    ISO_CHECK(value <= ISO_CUDA_CONV_SIDE, ISO_ERR_UNSUPPORTED,
              "a convolution on the GPU with %s of %lld: at most %d", what, (long long)value,
              ISO_CUDA_CONV_SIDE);
    return ISO_OK;
}

// Sides, and then planes and rows of matrices, are within what kernels count with.
static iso_status check_sides(const iso_conv2d_config *c, const iso_tensor *x,
                              const iso_tensor *y) {
    static const char *const side[] = {"", "a number of channels", "a height", "a width"};
    for (int i = 0; i < 2; i++) {
        int64_t dilation = c->dilation[i] ? c->dilation[i] : 1;
        ISO_TRY(check_size("a stride", c->stride[i]));
        ISO_TRY(check_size("a padding", c->padding[i]));
        ISO_TRY(check_size("a kernel size", c->kernel_size[i]));
        ISO_TRY(check_size("a dilation", dilation));
        ISO_TRY(check_size("a dilated kernel size", dilation * c->kernel_size[i]));
    }
    for (int i = 1; i < 4; i++) {
        ISO_TRY(check_size(side[i], x->shape[i]));
        ISO_TRY(check_size(side[i], y->shape[i]));
    }
    ISO_TRY(check_size("a kernel area", c->kernel_size[0] * c->kernel_size[1]));
    ISO_TRY(check_size("a number of input values per output value",
                       x->shape[1] * c->kernel_size[0] * c->kernel_size[1]));
    ISO_TRY(check_size("an input plane", x->shape[2] * x->shape[3]));
    ISO_TRY(check_size("an output plane", y->shape[2] * y->shape[3]));
    return ISO_OK;
}

static void set_sizes(geometry *g, const iso_conv2d_config *c, const iso_tensor *x,
                      const iso_tensor *y) {
    g->c = (iso__cuda_conv){.channels = (int)x->shape[1],
                            .height = (int)x->shape[2],
                            .width = (int)x->shape[3],
                            .out_channels = (int)y->shape[1],
                            .out_height = (int)y->shape[2],
                            .out_width = (int)y->shape[3],
                            .last = iso__cuda_channels_last(x)};
    for (int i = 0; i < 2; i++) {
        g->c.kernel[i] = (int)c->kernel_size[i];
        g->c.stride[i] = c->stride[i] ? (int)c->stride[i] : 1;
        g->c.padding[i] = (int)c->padding[i];
        g->c.dilation[i] = c->dilation[i] ? (int)c->dilation[i] : 1;
    }
    g->dtype = x->dtype;
    g->size = iso_dtype_size(x->dtype);
    g->rows = x->shape[0];
    g->groups = c->groups ? c->groups : 1;
    g->taps = x->shape[1] / g->groups * c->kernel_size[0] * c->kernel_size[1];
    g->pixels = x->shape[2] * x->shape[3];
    g->cells = y->shape[2] * y->shape[3];
    g->in_size = x->shape[1] * g->pixels * (int64_t)g->size;
    g->out_size = y->shape[1] * g->cells * (int64_t)g->size;
    g->out_channels = y->shape[1] / g->groups;
    g->weights = g->out_channels * g->taps;
    g->y_last = iso__cuda_channels_last(y);
}

// Products of one sample with fewer columns would leave most of a GPU idle.
#define DIRECT_CELLS 64

static bool is_direct(const geometry *g) {
    const iso__cuda_conv *c = &g->c;
    return g->groups == 1 && !c->last && !g->y_last && g->cells >= DIRECT_CELLS &&
           c->kernel[0] == 1 && c->kernel[1] == 1 && c->stride[0] == 1 && c->stride[1] == 1 &&
           c->padding[0] == 0 && c->padding[1] == 0;
}

// Bytes of the two matrices of n samples: patches, then rows of y, aligned.
static size_t patch_bytes(const geometry *g, int64_t n) {
    size_t bytes = (size_t)(g->groups * g->taps * g->cells * n) * g->size;
    return (bytes + 255) / 256 * 256;
}
static size_t scratch_bytes(const geometry *g, int64_t n) {
    return patch_bytes(g, n) + (size_t)(g->out_size * n);
}

#define DEFAULT_ROOM ((size_t)256 << 20)

static iso_status geometry_of(const iso__cuda *cuda, const iso_conv2d_config *c,
                              const iso_tensor *x, const iso_tensor *y, geometry *g) {
    size_t room = cuda->conv_room ? cuda->conv_room : DEFAULT_ROOM;
    ISO_TRY(check_sides(c, x, y));
    memset(g, 0, sizeof(*g));
    set_sizes(g, c, x, y);
    int64_t step = iso__smaller(g->rows, (int64_t)(room / scratch_bytes(g, 1)));
    step = iso__smaller(step, INT32_MAX / (g->pixels > g->cells ? g->pixels : g->cells));
    g->step = (int)(step > 1 ? step : 1);
    g->direct = is_direct(g);
    return ISO_OK;
}

// The part of samples that begins at `first`: sets their number, and where its matrices go.
typedef struct part {
    char *x, *y;
    void *patches, *rows;
    int64_t columns; // of patches and rows
} part;

static iso_status part_of(iso__cuda *cuda, geometry *g, int64_t first, void *x, void *y,
                          part *out) {
    void *scratch;
    g->c.samples = (int)iso__smaller(g->step, g->rows - first);
    ISO_TRY(iso__cuda_scratch(cuda, g->copied + scratch_bytes(g, g->step), &scratch));
    char *matrices = (char *)scratch + g->copied;
    *out = (part){.x = (char *)x + first * g->in_size,
                  .y = (char *)y + first * g->out_size,
                  .patches = matrices,
                  .rows = matrices + patch_bytes(g, g->c.samples),
                  .columns = g->c.samples * g->cells};
    return ISO_OK;
}

// w in logical order: itself, or a copy in front of the matrices.
static iso_status weights_of(iso__cuda *cuda, geometry *g, const iso_tensor *w, const void **out) {
    iso__cuda_matrices m = {w->shape[0], w->shape[2] * w->shape[3], w->shape[1], w->shape[1],
                            w->shape[2] * w->shape[3]};
    void *scratch;
    *out = w->data;
    if (!iso__cuda_channels_last(w) || m.rows == 1 || m.columns == 1) return ISO_OK;
    g->copied = ((size_t)w->count * g->size + 255) / 256 * 256;
    ISO_TRY(iso__cuda_scratch(cuda, g->copied + scratch_bytes(g, g->step), &scratch));
    *out = scratch;
    return iso__cuda_transpose(cuda, g->size, &m, w->data, scratch);
}

// What part of y the matrix of rows holds.
static iso__cuda_samples samples_of(const geometry *g) {
    return (iso__cuda_samples){g->c.samples, g->c.out_channels, (int)g->cells, g->y_last};
}

// ---- Forward ------------------------------------------------------------------------------------

// One product per sample.
static iso_status forward_direct(iso__cuda *cuda, const geometry *g, const void *x, const void *w,
                                 const void *b, bool relu, void *y) {
    ISO_TRY(iso__cuda_gemm(cuda, &(iso__cuda_gemm_args){.dtype = g->dtype,
                                                        .m = g->out_channels,
                                                        .n = g->cells,
                                                        .k = g->taps,
                                                        .a = w,
                                                        .b = x,
                                                        .lda = g->taps,
                                                        .ldb = g->cells,
                                                        .ldc = g->cells,
                                                        .c = y,
                                                        .batch = g->rows,
                                                        .stride_b = g->taps * g->cells,
                                                        .stride_c = g->out_channels * g->cells}));
    if (!b && !relu) return ISO_OK;
    return iso__cuda_bias_act(cuda, g->dtype, g->rows, g->out_channels, g->cells, b, relu, y);
}

// One product per group.
static iso_status forward_part(iso__cuda *cuda, const geometry *g, const part *p, const void *w,
                               const void *b, bool relu) {
    ISO_TRY(iso__cuda_patches(cuda, g->dtype, &g->c, p->x, p->patches));
    ISO_TRY(iso__cuda_gemm(cuda, &(iso__cuda_gemm_args){.dtype = g->dtype,
                                                        .m = g->out_channels,
                                                        .n = p->columns,
                                                        .k = g->taps,
                                                        .a = w,
                                                        .b = p->patches,
                                                        .lda = g->taps,
                                                        .ldb = p->columns,
                                                        .ldc = p->columns,
                                                        .c = p->rows,
                                                        .batch = g->groups,
                                                        .stride_a = g->weights,
                                                        .stride_b = g->taps * p->columns,
                                                        .stride_c = g->out_channels * p->columns}));
    iso__cuda_samples of_y = samples_of(g);
    return iso__cuda_from_rows(cuda, g->dtype, &of_y, p->rows, b, relu, p->y);
}

static iso_status conv2d_forward(iso_device *self, const iso_conv2d_config *c, const iso_tensor *x,
                                 const iso_tensor *w, const iso_tensor *b, iso_activation act,
                                 iso_tensor *y) {
    iso__cuda *cuda = iso__cuda_of(self);
    geometry g;
    bool done = false, relu = act == ISO_ACT_RELU;
    ISO_TRY(iso__cuda_conv_choose(cuda));
    ISO_TRY(iso__cuda_stem_try_forward(cuda, c, x, w, b, relu, y, &done));
    if (done) return ISO_OK;
    if (cuda->dnn) ISO_TRY(iso__cuda_dnn_forward(cuda, c, x, w, b, act, y, &done));
    if (done) return ISO_OK;
    const void *bias = b ? b->data : NULL, *weights;
    ISO_TRY(geometry_of(cuda, c, x, y, &g));
    ISO_TRY(weights_of(cuda, &g, w, &weights));
    if (g.direct) return forward_direct(cuda, &g, x->data, weights, bias, relu, y->data);
    for (int64_t first = 0; first < g.rows; first += g.step) {
        part p = {0};
        ISO_TRY(part_of(cuda, &g, first, x->data, y->data, &p));
        ISO_TRY(forward_part(cuda, &g, &p, weights, bias, relu));
    }
    return ISO_OK;
}

// ---- Backward -----------------------------------------------------------------------------------

// dw += dy patches^T, a product per group whose sum runs over all pixels of the part.
static iso_status filter_part(iso__cuda *cuda, const geometry *g, const part *p, bool accumulate,
                              void *dw) {
    ISO_TRY(iso__cuda_patches(cuda, g->dtype, &g->c, p->x, p->patches));
    iso__cuda_samples of_y = samples_of(g);
    ISO_TRY(iso__cuda_rows_of(cuda, g->dtype, &of_y, p->y, p->rows));
    return iso__cuda_gemm(cuda, &(iso__cuda_gemm_args){.dtype = g->dtype,
                                                       .transpose_b = true,
                                                       .m = g->out_channels,
                                                       .n = g->taps,
                                                       .k = p->columns,
                                                       .a = p->rows,
                                                       .b = p->patches,
                                                       .lda = p->columns,
                                                       .ldb = p->columns,
                                                       .ldc = g->taps,
                                                       .beta = accumulate ? 1 : 0,
                                                       .c = dw,
                                                       .c_f32 = iso__is_half(g->dtype),
                                                       .batch = g->groups,
                                                       .stride_a = g->out_channels * p->columns,
                                                       .stride_b = g->taps * p->columns,
                                                       .stride_c = g->weights});
}

static iso_status backward_filter(iso__cuda *cuda, const iso_conv2d_config *c, const iso_tensor *x,
                                  const iso_tensor *dy, iso_tensor *dw, bool accumulate) {
    geometry g;
    bool done = false;
    ISO_TRY(iso__cuda_conv_choose(cuda));
    ISO_TRY(iso__cuda_stem_try_filter(cuda, c, x, dy, dw, accumulate, &done));
    if (done) return ISO_OK;
    if (cuda->dnn) ISO_TRY(iso__cuda_dnn_backward_filter(cuda, c, x, dy, dw, accumulate, &done));
    if (done) return ISO_OK;
    ISO_TRY(geometry_of(cuda, c, x, dy, &g));
    for (int64_t first = 0; first < g.rows; first += g.step) {
        part p = {0};
        ISO_TRY(part_of(cuda, &g, first, x->data, dy->data, &p));
        ISO_TRY(filter_part(cuda, &g, &p, accumulate || first > 0, dw->data));
    }
    return ISO_OK;
}

static iso_status conv2d_backward_params(iso_device *self, const iso_conv2d_config *c,
                                         const iso_tensor *x, const iso_tensor *dy, iso_tensor *dw,
                                         bool accumulate_w, iso_tensor *db, bool accumulate_b) {
    iso__cuda *cuda = iso__cuda_of(self);
    if (dw) ISO_TRY(backward_filter(cuda, c, x, dy, dw, accumulate_w));
    if (db) ISO_TRY(iso__cuda_bias_gradient(cuda, dy, db, accumulate_b));
    return ISO_OK;
}

static iso_status input_direct(iso__cuda *cuda, const geometry *g, const void *dy, const void *w,
                               void *dx) {
    return iso__cuda_gemm(cuda, &(iso__cuda_gemm_args){.dtype = g->dtype,
                                                       .transpose_a = true,
                                                       .m = g->taps,
                                                       .n = g->cells,
                                                       .k = g->out_channels,
                                                       .a = w,
                                                       .b = dy,
                                                       .lda = g->taps,
                                                       .ldb = g->cells,
                                                       .ldc = g->cells,
                                                       .c = dx,
                                                       .batch = g->rows,
                                                       .stride_b = g->out_channels * g->cells,
                                                       .stride_c = g->taps * g->cells});
}

// patches = w^T dy, a product per group, and from them dx.
static iso_status input_part(iso__cuda *cuda, const geometry *g, const part *p, const void *w) {
    iso__cuda_samples of_y = samples_of(g);
    ISO_TRY(iso__cuda_rows_of(cuda, g->dtype, &of_y, p->y, p->rows));
    ISO_TRY(iso__cuda_gemm(cuda, &(iso__cuda_gemm_args){.dtype = g->dtype,
                                                        .transpose_a = true,
                                                        .m = g->taps,
                                                        .n = p->columns,
                                                        .k = g->out_channels,
                                                        .a = w,
                                                        .b = p->rows,
                                                        .lda = g->taps,
                                                        .ldb = p->columns,
                                                        .ldc = p->columns,
                                                        .c = p->patches,
                                                        .batch = g->groups,
                                                        .stride_a = g->weights,
                                                        .stride_b = g->out_channels * p->columns,
                                                        .stride_c = g->taps * p->columns}));
    return iso__cuda_patches_back(cuda, g->dtype, &g->c, p->patches, p->x);
}

static iso_status conv2d_backward_input(iso_device *self, const iso_conv2d_config *c,
                                        const iso_tensor *dy, const iso_tensor *w, iso_tensor *dx) {
    iso__cuda *cuda = iso__cuda_of(self);
    geometry g;
    bool done = false;
    ISO_TRY(iso__cuda_conv_choose(cuda));
    if (cuda->dnn) ISO_TRY(iso__cuda_dnn_backward_input(cuda, c, dy, w, dx, &done));
    if (done) return ISO_OK;
    const void *weights;
    ISO_TRY(geometry_of(cuda, c, dx, dy, &g));
    ISO_TRY(weights_of(cuda, &g, w, &weights));
    if (g.direct) return input_direct(cuda, &g, dy->data, weights, dx->data);
    for (int64_t first = 0; first < g.rows; first += g.step) {
        part p = {0};
        ISO_TRY(part_of(cuda, &g, first, dx->data, dy->data, &p));
        ISO_TRY(input_part(cuda, &g, &p, weights));
    }
    return ISO_OK;
}

void iso__cuda_fill_conv(iso_kernel_ops *ops) {
    ops->conv2d_forward = conv2d_forward;
    ops->conv2d_backward_params = conv2d_backward_params;
    ops->conv2d_backward_input = conv2d_backward_input;
}
