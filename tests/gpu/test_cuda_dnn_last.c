// SPDX-License-Identifier: MIT
// Convolutions of a GPU in bf16 and with channels last: every direction, layout and library against
// the oracle, what is copied on the way, what is refused and done otherwise.
#include "common/balance.h"
#include "device/cuda/runtime/cuda_graph.h"
#include "gpu/conv_problem.h"

#include <string.h>

TestSuite(cuda_dnn_last, .timeout = 240, .fini = balance_check);

// Of the emulated GPU, where the build has that.
__attribute__((weak)) void emulated_fail_next(const char *function, int error);
__attribute__((weak)) size_t emulated_live_descriptors(void);

enum { NOT_SUPPORTED = 3000, MISALIGNED = 2003 };

static const iso_layout LOGICAL = ISO_LAYOUT_LOGICAL, LAST = ISO_LAYOUT_BLOCKED;

static const oracle_conv plain = {2, 8, 9, 7, 16, {3, 3}, {1, 1}, .padding = {1, 1}};
static const oracle_conv photos = {3, 3, 10, 9, 8, {5, 5}, {2, 2}, .padding = {2, 2}};
static const oracle_conv digits = {2, 1, 12, 12, 10, {5, 5}, {1, 1}, .padding = {0, 0}};
static const oracle_conv all[] = {
    {2, 8, 9, 7, 16, {3, 3}, {1, 1}, .padding = {1, 1}},
    {3, 3, 10, 9, 8, {5, 5}, {2, 2}, .padding = {2, 2}},
    {2, 1, 12, 12, 10, {5, 5}, {1, 1}, .padding = {0, 0}},
    {70, 1, 12, 12, 32, {3, 3}, {1, 1}, .padding = {0, 0}}, // few channels: stem_kernels.cu
    {5, 3, 9, 8, 16, {3, 3}, {1, 1}, .padding = {1, 2}},
    {5, 3, 9, 8, 16, {3, 3}, {2, 1}, .padding = {1, 2}, .dilation = {1, 2}},
    {4, 2, 9, 7, 6, {5, 5}, {1, 1}, .padding = {2, 1}},
    {9, 4, 11, 10, 24, {3, 3}, {1, 1}, .padding = {1, 1}},
    {2, 4, 9, 11, 5, {3, 2}, {1, 2}, .padding = {2, 0}, .dilation = {2, 1}},
    {2, 16, 9, 8, 32, {3, 3}, {1, 1}, .padding = {1, 1}, .groups = 2},
    {2, 6, 9, 8, 4, {3, 2}, {1, 2}, .padding = {1, 0}, .groups = 2},
    {2, 8, 7, 6, 8, {3, 3}, {1, 1}, .padding = {1, 1}, .groups = 8},
    {3, 16, 7, 7, 24, {1, 1}, {2, 2}, .padding = {0, 0}},
    {2, 64, 8, 9, 8, {1, 1}, {1, 1}, .padding = {0, 0}},
    {1, 300, 3, 3, 8, {3, 3}, {1, 1}, .padding = {1, 1}},   // a filter takes two blocks
    {1, 8, 50, 50, 8, {46, 46}, {1, 1}, .padding = {0, 0}}, // of more taps than are reordered fast
};

static target open_cuda(iso_dtype dtype, const char *math, const char *conv) {
    target on = {.dtype = dtype};
    setenv("ISO_CUDA_CONV", conv, 1);
    if (iso_device_create("cuda", &on.device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    on.kernels = on.device->kernels[dtype];
    OK(iso_device_set_math(on.device, math));
    return on;
}

static void close_cuda(target *on) {
    iso_device_destroy(&on->device);
    if (emulated_live_descriptors) cr_assert(emulated_live_descriptors() == 0);
}

// Skips where cuDNN is not there.
static target open_dnn(iso_dtype dtype, const char *math) {
    target on = open_cuda(dtype, math, "cudnn");
    const oracle_conv tiny = {1, 1, 1, 1, 1, {1, 1}, {1, 1}, .padding = {0, 0}};
    problem p = problem_of(&on, &tiny);
    iso_status status =
        on.kernels->conv2d_forward(on.device, &p.config, p.x.t, p.w.t, NULL, ISO_ACT_NONE, p.y.t);
    problem_destroy(&p);
    if (status != ISO_ERR_UNSUPPORTED) return on;
    iso_device_destroy(&on.device);
    cr_skip_test("%s", iso_last_error()->message);
    return on;
}

static target open_emulated(iso_dtype dtype, const char *math) {
    if (!emulated_fail_next) cr_skip_test("only the emulated GPU can be made to refuse");
    return open_dnn(dtype, math);
}

// Outputs of 16 bits are rounded up to twice; TF32 rounds factors to 11 bits.
static double tolerance_of(const target *on) {
    if (iso__is_half(on->dtype)) return on->dtype == ISO_BF16 ? 1e-2 : 1.5e-3;
    return iso__cuda_of(on->device)->math == ISO_CUDA_MATH_F32 ? 3e-5 : 3e-3;
}

// ---- All directions -----------------------------------------------------------------------------

static void check_forward(const target *on, problem *p, bool bias, bool relu) {
    OK(on->kernels->conv2d_forward(on->device, &p->config, p->x.t, p->w.t, bias ? p->b.t : NULL,
                                   relu ? ISO_ACT_RELU : ISO_ACT_NONE, p->y.t));
    oracle_conv2d(p->c, p->x.d, p->w.d, bias ? p->b.d : NULL, relu, p->y.d);
    check_pair(on, &p->y, tolerance_of(on), "conv2d output");
}

// dy: of the layout of y.
static void check_input(const target *on, problem *p, const pair *dy) {
    pair dx = pair_create(on, 4, p->x.t->shape, p->x.t->layout, 1000);
    zero(&dx);
    OK(on->kernels->conv2d_backward_input(on->device, &p->config, dy->t, p->w.t, dx.t));
    oracle_conv2d_backward(p->c, NULL, p->w.d, dy->d, NULL, NULL, dx.d);
    check_pair(on, &dx, tolerance_of(on), "conv2d input gradient");
    pair_destroy(&dx);
}

// Written, then added to. Gradients of parameters are f32 where activations have 16 bits.
static void check_filter(const target *on, problem *p, const pair *dy) {
    target of = *on;
    if (iso__is_half(of.dtype)) of.dtype = ISO_F32;
    pair dw = pair_create(&of, 4, p->w.t->shape, LOGICAL, 1000), db = pair_1d(&of, p->c->out);
    zero(&dw), zero(&db);
    for (int add = 0; add < 2; add++) {
        OK(on->kernels->conv2d_backward_params(on->device, &p->config, p->x.t, dy->t, dw.t, add,
                                               db.t, add));
        oracle_conv2d_backward(p->c, p->x.d, NULL, dy->d, dw.d, db.d, NULL);
        check_pair(&of, &dw, tolerance_of(on), "conv2d weight gradient");
        check_pair(&of, &db, tolerance_of(on), "conv2d bias gradient");
    }
    pair_destroy(&dw), pair_destroy(&db);
}

static void check_all(const target *on, problem *p) {
    pair dy = pair_create(on, 4, p->y.t->shape, p->y.t->layout, 1000);
    for (int flags = 0; flags < 4; flags++) check_forward(on, p, flags & 1, flags & 2);
    check_input(on, p, &dy);
    check_filter(on, p, &dy);
    pair_destroy(&dy);
}

static problem in_layouts(const target *on, const oracle_conv *c, int flags) {
    return problem_in(on, c, layouts[flags & 1], layouts[flags >> 1 & 1], layouts[flags >> 2 & 1]);
}

static void check_every_layout(const target *on, const oracle_conv *c) {
    for (int flags = 0; flags < 8; flags++) {
        problem p = in_layouts(on, c, flags);
        check_all(on, &p);
        problem_destroy(&p);
    }
}

static void check_shapes(iso_dtype dtype, const char *math) {
    target on = open_dnn(dtype, math);
    for (int i = 0; i < COUNT(all); i++) check_every_layout(&on, &all[i]);
    cr_assert(iso__cuda_of(on.device)->dnn, "cuDNN was asked for");
    close_cuda(&on);
}
Test(cuda_dnn_last, every_shape_and_layout_matches_the_oracle_in_bf16) {
    check_shapes(ISO_BF16, "f32");
}
Test(cuda_dnn_last, every_shape_and_layout_matches_the_oracle_in_f16) {
    check_shapes(ISO_F16, "f32");
}
Test(cuda_dnn_last, every_shape_and_layout_matches_the_oracle_in_tf32) {
    check_shapes(ISO_F32, "tf32");
}
Test(cuda_dnn_last, every_shape_and_layout_matches_the_oracle_in_f32) {
    check_shapes(ISO_F32, "f32");
}
Test(cuda_dnn_last, every_shape_and_layout_matches_the_oracle_in_f64) {
    check_shapes(ISO_F64, "bf16");
}

// Room for one sample at a time, and for all of them.
Test(cuda_dnn_last, without_cudnn_every_shape_and_layout_matches_the_oracle) {
    static const iso_dtype types[] = {ISO_BF16, ISO_F16, ISO_F32, ISO_F64};
    for (int i = 0; i < COUNT(types) * (COUNT(all) - 1); i++) {
        target on = open_cuda(types[i % COUNT(types)], "f32", "gemm");
        iso__cuda_of(on.device)->conv_room = i % 2 ? 1 : 0;
        check_every_layout(&on, &all[i / COUNT(types)]);
        close_cuda(&on);
    }
}

// ---- What it takes ------------------------------------------------------------------------------

static long long launches_of_forward(const target *on, problem *p, bool bias) {
    check_forward(on, p, bias, bias);
    long long before = (long long)on->device->launches;
    check_forward(on, p, bias, bias);
    long long reading = iso__cuda_channels_last(p->y.t) ? 1 : 0; // by the check
    return (long long)on->device->launches - before - reading;
}

static void check_cost(const target *on, const oracle_conv *c, int flags, bool bias, int launches) {
    problem p = in_layouts(on, c, flags);
    long long got = launches_of_forward(on, &p, bias);
    cr_expect(got == launches, "flags %d: %lld launches, not %d", flags, got, launches);
    problem_destroy(&p);
}

enum { X_LAST = 1, W_LAST = 2, Y_LAST = 4 };
Test(cuda_dnn_last, what_lies_right_is_not_copied) {
    static const oracle_conv one = {2, 16, 7, 7, 24, {1, 1}, {1, 1}, .padding = {0, 0}};
    static const oracle_conv few = {3, 3, 10, 9, 8, {5, 5}, {1, 1}, .padding = {2, 2}};
    static const oracle_conv five = {3, 5, 10, 9, 8, {5, 5}, {2, 2}, .padding = {2, 2}};
    if (!emulated_fail_next) cr_skip_test("another cuDNN may fuse less");
    for (int low = 0; low < 2; low++) {
        target on = low ? open_dnn(ISO_BF16, "f32") : open_dnn(ISO_F32, "tf32");
        check_cost(&on, &plain, X_LAST | W_LAST | Y_LAST, false, 1);
        check_cost(&on, &plain, X_LAST | W_LAST | Y_LAST, true, 1); // with bias and relu
        check_cost(&on, &plain, X_LAST | Y_LAST, true, 2);          // weights
        check_cost(&on, &one, X_LAST | Y_LAST, true, 1);            // of one tap: nothing to order
        check_cost(&on, &five, Y_LAST, true, 3);                    // x and weights
        check_cost(&on, &five, W_LAST | Y_LAST, true, 3);
        check_cost(&on, &few, Y_LAST, true, 1);   // few channels: by a kernel of its own
        check_cost(&on, &plain, X_LAST, true, 3); // weights and y
        // x, weights, y, which has 10 of 16 channels then, and bias; in f32 the call and bias.
        check_cost(&on, &digits, 0, true, low ? 5 : 2);
        close_cuda(&on);
    }
}

Test(cuda_dnn_last, nothing_is_made_for_a_shape_that_was_seen) {
    static const oracle_conv *const seen[] = {&plain, &photos, &digits};
    setenv("ISO_CUDA_GRAPHS", "0", 1); // they take a few steps to settle
    target on = open_dnn(ISO_BF16, "f32");
    for (int i = 0; i < COUNT(seen) * 8; i++) {
        problem p = in_layouts(&on, seen[i / 8], i % 8);
        long long blocks, before, after, made;
        check_all(&on, &p);
        made = iso_device_primitives_created(on.device);
        int device_blocks = iso__cuda_of(on.device)->pool.count;
        iso_memory_balance(&blocks, NULL, &before);
        OK(on.kernels->conv2d_forward(on.device, &p.config, p.x.t, p.w.t, p.b.t, ISO_ACT_RELU,
                                      p.y.t));
        OK(on.kernels->conv2d_backward_input(on.device, &p.config, p.y.t, p.w.t, p.x.t));
        iso_memory_balance(&blocks, NULL, &after);
        cr_expect(iso_device_primitives_created(on.device) == made);
        cr_expect(iso__cuda_of(on.device)->pool.count == device_blocks);
        cr_expect(after == before);
        problem_destroy(&p);
    }
    close_cuda(&on);
}

// ---- What is refused ----------------------------------------------------------------------------

static const char *const calls[] = {"cudnnConvolutionBiasActivationForward",
                                    "cudnnConvolutionForward", "cudnnConvolutionBackwardFilter",
                                    "cudnnConvolutionBackwardData"};

static void check_refused(int times, int error) {
    for (int i = 0; i < 16; i++) {
        target on = open_emulated(i & 1 ? ISO_BF16 : ISO_F32, "tf32");
        problem p = in_layouts(&on, &plain, i / 2);
        for (int k = 0; k < COUNT(calls) * times; k++)
            emulated_fail_next(calls[k % COUNT(calls)], error);
        check_all(&on, &p);
        problem_destroy(&p);
        close_cuda(&on);
    }
}

// An algorithm, then a layout too.
Test(cuda_dnn_last, what_is_refused_is_done_by_another_algorithm_or_layout) {
    for (int times = 1; times <= 3; times++) check_refused(times, MISALIGNED);
}

// Patches are taken from channels that lie last.
Test(cuda_dnn_last, where_all_are_refused_it_goes_by_cublas) {
    check_refused(16, NOT_SUPPORTED);
    target on = open_emulated(ISO_BF16, "f32");
    for (int k = 0; k < 64; k++) emulated_fail_next(calls[k % COUNT(calls)], NOT_SUPPORTED);
    check_cost(&on, &plain, X_LAST | Y_LAST, false, 3);          // patches, product, rows
    check_cost(&on, &plain, X_LAST | W_LAST | Y_LAST, false, 4); // weights
    close_cuda(&on);
}

// The two channels of a group are no whole pack for a tensor core.
Test(cuda_dnn_last, channels_that_it_does_not_take_last_it_is_given_in_logical_order) {
    static const oracle_conv grouped = {2, 16, 9, 8, 16, {3, 3}, {1, 1}, {1, 1}, .groups = 8};
    target on = open_emulated(ISO_BF16, "f32");
    check_cost(&on, &grouped, X_LAST | Y_LAST, false, 3); // x, call, y
    close_cuda(&on);
}

// ---- Bits ---------------------------------------------------------------------------------------

static void read_all(const target *on, problem *p, char *to) {
    iso_tensor *const tensors[] = {p->y.t, p->x.t, p->w.t};
    for (int i = 0; i < 3; i++) {
        OK(on->device->ops->to_host(on->device, tensors[i], to));
        to += (size_t)tensors[i]->count * iso_dtype_size(tensors[i]->dtype);
    }
}

// Forward, dx and dw of a problem with the same numbers, all channels last or all logical.
static char *results(target *on, const oracle_conv *c, iso_layout layout, const pair *x,
                     const pair *w, size_t *bytes) {
    problem p = problem_in(on, c, layout, LOGICAL, layout);
    OK(on->device->ops->copy(on->device, x->t, p.x.t));
    OK(on->device->ops->copy(on->device, w->t, p.w.t));
    *bytes = (size_t)(p.x.t->count + p.w.t->count + p.y.t->count) * sizeof(double);
    char *out = calloc(*bytes, 1);
    OK(on->kernels->conv2d_forward(on->device, &p.config, p.x.t, p.w.t, NULL, ISO_ACT_NONE, p.y.t));
    OK(on->kernels->conv2d_backward_input(on->device, &p.config, p.y.t, p.w.t, p.x.t));
    OK(on->device->ops->copy(on->device, x->t, p.x.t));
    OK(on->kernels->conv2d_backward_params(on->device, &p.config, p.x.t, p.y.t, p.w.t, false, NULL,
                                           false));
    read_all(on, &p, out);
    problem_destroy(&p);
    return out;
}

// Exact f32 and f64 go by the same call, whatever the layout.
Test(cuda_dnn_last, exact_results_have_the_same_bits_in_both_layouts) {
    for (iso_dtype dtype = ISO_F32; dtype <= ISO_F64; dtype++)
        for (int library = 0; library < 2; library++) {
            target on = library ? open_dnn(dtype, "f32") : open_cuda(dtype, "f32", "gemm");
            const oracle_conv *c = &plain;
            pair x = pair_create(&on, 4, (int64_t[]){c->rows, c->in, c->height, c->width}, LOGICAL,
                                 9973);
            pair w = pair_create(&on, 4, (int64_t[]){c->out, c->in, 3, 3}, LOGICAL, 9967);
            size_t bytes;
            char *logical = results(&on, c, LOGICAL, &x, &w, &bytes);
            char *last = results(&on, c, LAST, &x, &w, &bytes);
            cr_expect(memcmp(logical, last, bytes) == 0, "%s", library ? "cuDNN" : "cuBLAS");
            free(logical), free(last);
            pair_destroy(&x), pair_destroy(&w);
            close_cuda(&on);
        }
}

// ---- Steps as graphs ----------------------------------------------------------------------------

// Copies are launches of their own; a graph runs them with the call that they are for.
Test(cuda_dnn_last, steps_run_as_graphs) {
    setenv("ISO_CUDA_GRAPHS", "1", 1);
    target on = open_dnn(ISO_BF16, "f32");
    problem p = in_layouts(&on, &photos, Y_LAST);
    pair dx = pair_create(&on, 4, p.x.t->shape, LOGICAL, 1000);
    oracle_conv2d(p.c, p.x.d, p.w.d, p.b.d, true, p.y.d);
    for (int i = 0; i < 6; i++) {
        OK(on.device->ops->fill(on.device, p.y.t, 0));
        OK(on.device->ops->fill(on.device, dx.t, 0));
        OK(iso__cuda_wait(iso__cuda_of(on.device)));
        OK(on.kernels->conv2d_forward(on.device, &p.config, p.x.t, p.w.t, p.b.t, ISO_ACT_RELU,
                                      p.y.t));
        OK(on.kernels->conv2d_backward_input(on.device, &p.config, p.y.t, p.w.t, dx.t));
        OK(iso__cuda_wait(iso__cuda_of(on.device)));
        check_pair(&on, &p.y, tolerance_of(&on), "conv2d output");
        zero(&dx);
        oracle_conv2d_backward(p.c, NULL, p.w.d, p.y.d, NULL, NULL, dx.d);
        check_pair(&on, &dx, 2 * tolerance_of(&on), "conv2d input gradient"); // of a rounded y
    }
    cr_expect(on.device->graph_launches > 0);
    pair_destroy(&dx);
    problem_destroy(&p);
    close_cuda(&on);
}
