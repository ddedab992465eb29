// SPDX-License-Identifier: MIT
// Linear layers of a GPU by cuBLASLt: what is fused, what is refused and done otherwise, the same
// bits in every run, and how f32 is rounded.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "common/oracle.h"
#include "device/cuda/runtime/cuda_graph.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_lt, .timeout = 120, .fini = balance_check);

// Of the emulated GPU, where the build has that.
__attribute__((weak)) void emulated_fail_next(const char *function, int error);
__attribute__((weak)) size_t emulated_live_descriptors(void);

enum { INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

static target open_cuda(iso_dtype dtype, bool graphs) {
    target on = {.dtype = dtype};
    setenv("ISO_CUDA_GRAPHS", graphs ? "1" : "0", 1);
    if (iso_device_create("cuda", &on.device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    on.kernels = on.device->kernels[dtype];
    return on;
}

typedef struct layer {
    target on;
    int64_t rows, in, out;
    pair x, w, b, y;
} layer;

static layer open_layer(iso_dtype dtype, bool graphs, int64_t rows, int64_t in, int64_t out) {
    layer l = {.on = open_cuda(dtype, graphs), .rows = rows, .in = in, .out = out};
    l.x = pair_create(&l.on, 2, (int64_t[]){rows, in}, ISO_LAYOUT_LOGICAL, 9973);
    l.w = pair_create(&l.on, 2, (int64_t[]){out, in}, ISO_LAYOUT_LOGICAL, 9967);
    l.b = pair_1d(&l.on, out);
    l.y = pair_2d(&l.on, rows, out);
    return l;
}

static layer open_emulated(bool graphs) {
    if (!emulated_fail_next) cr_skip_test("only the emulated GPU can be made to refuse");
    return open_layer(ISO_F32, graphs, 9, 72, 20);
}

static void close_layer(layer *l) {
    pair_destroy(&l->x), pair_destroy(&l->w), pair_destroy(&l->b), pair_destroy(&l->y);
    iso_device_destroy(&l->on.device);
    if (emulated_live_descriptors) cr_assert(emulated_live_descriptors() == 0);
}

static iso_status forward(layer *l, bool bias, bool relu) {
    return l->on.kernels->linear_forward(l->on.device, l->x.t, l->w.t, NULL, bias ? l->b.t : NULL,
                                         relu ? ISO_ACT_RELU : ISO_ACT_NONE, l->y.t);
}

static void expect(layer *l, bool bias, bool relu) {
    oracle_linear(l->rows, l->in, l->out, l->x.d, l->w.d, bias ? l->b.d : NULL, relu, l->y.d);
}

static void check(layer *l, bool bias, bool relu) {
    OK(forward(l, bias, relu));
    expect(l, bias, relu);
    check_pair(&l->on, &l->y, 1e-5, "linear output");
}

// How many launches a forward takes.
static long long cost(layer *l, bool bias, bool relu) {
    long long before = (long long)l->on.device->launches;
    check(l, bias, relu);
    return (long long)l->on.device->launches - before;
}

// ---- What is taken ------------------------------------------------------------------------------

Test(cuda_lt, every_shape_matches_the_oracle_in_every_type) {
    static const int64_t shapes[][3] = {{1, 1, 1},   {3, 5, 7},    {64, 784, 10}, {17, 33, 65},
                                        {8, 64, 24}, {2, 1000, 3}, {128, 4, 300}};
    for (iso_dtype dtype = ISO_F32; dtype <= ISO_BF16; dtype++)
        for (int i = 0; i < COUNT(shapes); i++) {
            layer l = open_layer(dtype, false, shapes[i][0], shapes[i][1], shapes[i][2]);
            for (int flags = 0; flags < 4; flags++) check(&l, flags & 1, flags & 2);
            close_layer(&l);
        }
}

Test(cuda_lt, bias_and_relu_come_in_the_same_call) {
    layer l = open_emulated(false);
    for (int flags = 0; flags < 4; flags++) cr_expect(cost(&l, flags & 1, flags & 2) == 1);
    cr_expect(iso__cuda_of(l.on.device)->lt, "cuBLASLt was not taken");
    close_layer(&l);
    l = open_layer(ISO_BF16, false, 9, 72, 20);
    for (int flags = 0; flags < 4; flags++) cr_expect(cost(&l, flags & 1, flags & 2) == 1);
    close_layer(&l);
    l = open_layer(ISO_BF16, false, 9, 7, 21); // rows that no kernel takes
    cr_expect(cost(&l, true, true) == 2, "sums, which are rounded with their bias");
    close_layer(&l);
    l = open_layer(ISO_F64, false, 9, 72, 20); // it has no epilogues for them
    cr_expect(cost(&l, true, true) == 2);
    close_layer(&l);
}

// Addresses that no vector of floats may be read from, after even ones.
Test(cuda_lt, odd_addresses_are_done) {
    layer l = open_layer(ISO_F32, false, 9, 16, 20);
    void *x = l.x.t->data, *b = l.b.t->data;
    check(&l, true, true);
    pair more = pair_2d(&l.on, 10, 16), few = pair_1d(&l.on, 24);
    l.x.t->data = (float *)more.t->data + 1;
    memcpy(l.x.d, more.d + 1, (size_t)(9 * 16) * sizeof(double));
    bool one = cost(&l, true, true) == 1;
    l.b.t->data = (float *)few.t->data + 3;
    memcpy(l.b.d, few.d + 3, 20 * sizeof(double));
    cr_expect(cost(&l, true, true) == 2, "a bias there is not its own");
    cr_expect(one || !emulated_fail_next, "the emulated GPU has a kernel for the others");
    l.x.t->data = x, l.b.t->data = b;
    pair_destroy(&more), pair_destroy(&few);
    close_layer(&l);
}

// ---- What is refused ----------------------------------------------------------------------------

Test(cuda_lt, a_product_without_a_kernel_goes_by_cublas) {
    layer l = open_emulated(false);
    emulated_fail_next("cublasLtMatmulAlgoGetHeuristic", NOT_SUPPORTED);
    cr_expect(cost(&l, true, true) == 2);
    cr_expect(cost(&l, true, true) == 2, "and it is not asked again");
    cr_expect(cost(&l, true, false) == 1, "which says nothing of others");
    close_layer(&l);
}

Test(cuda_lt, a_product_that_is_refused_when_it_is_called_goes_by_cublas) {
    static const int refusals[] = {NOT_SUPPORTED, INVALID_VALUE};
    for (int i = 0; i < COUNT(refusals); i++) {
        layer l = open_emulated(false);
        emulated_fail_next("cublasLtMatmul", refusals[i]);
        cr_expect(cost(&l, true, true) == 3);
        cr_expect(cost(&l, true, true) == 2, "it is not asked again");
        close_layer(&l);
    }
}

Test(cuda_lt, an_error_is_told_and_not_taken_for_a_refusal) {
    layer l = open_emulated(false);
    emulated_fail_next("cublasLtMatmul", EXECUTION_FAILED);
    cr_assert(forward(&l, true, true) == ISO_ERR_DEVICE);
    cr_assert(strstr(iso_last_error()->message, "cublasLtMatmul"), "%s", iso_last_error()->message);
    close_layer(&l);
}

static void step(layer *l, bool refuse) {
    for (int i = 0; i < 3; i++) OK(forward(l, true, true));
    if (refuse) emulated_fail_next("cublasLtMatmul", NOT_SUPPORTED);
    OK(iso__cuda_wait(iso__cuda_of(l->on.device)));
}

Test(cuda_lt, what_is_refused_in_a_capture_is_not_lost) {
    for (int refused = 0; refused < 2; refused++) {
        layer l = open_emulated(true);
        expect(&l, true, true);
        for (int i = 0; i < 6; i++) {
            OK(l.on.device->ops->fill(l.on.device, l.y.t, (double)NAN));
            OK(iso__cuda_wait(iso__cuda_of(l.on.device)));
            step(&l, refused && i == 2); // when the graph is made
            check_pair(&l.on, &l.y, 1e-5, "linear output");
        }
        cr_expect((l.on.device->graph_launches > 0) == !refused);
        close_layer(&l);
    }
}

// It was said to be done when it was held back.
Test(cuda_lt, what_is_refused_after_it_was_held_back_is_told) {
    layer l = open_emulated(true);
    for (int i = 0; i < 4; i++) step(&l, false);
    cr_assert(l.on.device->graph_launches > 0);
    emulated_fail_next("cublasLtMatmul", NOT_SUPPORTED);
    OK(forward(&l, true, true));
    cr_expect(forward(&l, true, false) == ISO_ERR_DEVICE, "another than the last time");
    cr_expect(strstr(iso_last_error()->message, "held back"), "%s", iso_last_error()->message);
    close_layer(&l);
}

// ---- Bits ---------------------------------------------------------------------------------------

// Sums so long that they are split: never put together in the order in which parts are ready.
static void repeat(iso_dtype dtype) {
    layer l = open_layer(dtype, false, 16, 4096, 24);
    float first[16 * 24] = {0}, again[16 * 24] = {0};
    for (int i = 0; i < 20; i++) {
        OK(forward(&l, true, true));
        OK(l.on.device->ops->to_host(l.on.device, l.y.t, i > 0 ? again : first));
        cr_assert(i == 0 || memcmp(first, again, sizeof(first)) == 0, "run %d: other bits", i);
    }
    close_layer(&l);
}
Test(cuda_lt, outputs_have_the_same_bits_in_every_run) {
    repeat(ISO_F32);
    repeat(ISO_BF16);
}

Test(cuda_lt, nothing_is_made_for_a_shape_that_was_seen) {
    layer l = open_layer(ISO_F32, false, 9, 72, 20);
    long long blocks, before, after;
    check(&l, true, true);
    long long made = iso_device_primitives_created(l.on.device);
    iso_memory_balance(&blocks, NULL, &before);
    OK(forward(&l, true, true));
    iso_memory_balance(&blocks, NULL, &after);
    cr_expect(iso_device_primitives_created(l.on.device) == made);
    cr_expect(after == before);
    close_layer(&l);
}

static double error_of(layer *l, const char *math) {
    int64_t count = l->y.t->count;
    float *got = malloc((size_t)count * sizeof(float));
    double worst = 0;
    OK(iso_device_set_math(l->on.device, math));
    OK(forward(l, true, false));
    expect(l, true, false);
    OK(l->on.device->ops->to_host(l->on.device, l->y.t, got));
    for (int64_t i = 0; i < count; i++) worst = fmax(worst, fabs((double)got[i] - l->y.d[i]));
    free(got);
    return worst;
}

Test(cuda_lt, f32_is_exact_until_it_is_told_to_round) {
    layer l = open_layer(ISO_F32, false, 8, 32, 24);
    bool emulated = strstr(iso_device_describe(l.on.device), "emulated") != NULL;
    double f32 = error_of(&l, "f32"), tf32 = error_of(&l, "tf32"), bf16 = error_of(&l, "bf16");
    cr_expect(f32 < 1e-5, "f32 is off by %g", f32);
    cr_expect(tf32 < 1e-2 && bf16 < 1e-1, "off by %g and %g", tf32, bf16);
    cr_expect(!emulated || (tf32 > 10 * f32 && bf16 > 2 * tf32), "%g %g %g", f32, tf32, bf16);
    cr_expect(error_of(&l, "f32") == f32, "and back");
    close_layer(&l);
}
