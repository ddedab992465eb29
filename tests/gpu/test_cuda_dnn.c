// SPDX-License-Identifier: MIT
// Convolutions of a GPU by cuDNN: what is fused, what is refused and done otherwise, the same bits
// in every run, and how f32 is rounded.
#include "common/balance.h"
#include "device/cuda/runtime/cuda_graph.h"
#include "gpu/conv_problem.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_dnn, .timeout = 120, .fini = balance_check);

// Of the emulated GPU, where the build has that.
__attribute__((weak)) void emulated_fail_next(const char *function, int error);
__attribute__((weak)) size_t emulated_live_descriptors(void);

enum { NOT_SUPPORTED = 3000, MISALIGNED = 2003, NOT_INITIALIZED = 1001, EXECUTION_FAILED = 5000 };

// Winograd's transforms cost about a digit of float's seven.
#define TOLERANCE 3e-5

static const oracle_conv three = {2, 4, 9, 8, 6, {3, 3}, {1, 1}, .padding = {1, 1}};
static const oracle_conv five = {3, 3, 10, 9, 5, {5, 5}, {1, 1}, .padding = {2, 2}};
static const oracle_conv strided = {9, 2, 34, 34, 3, {3, 2}, {2, 3}, .padding = {0, 1}};
static const oracle_conv dilated = {
    2, 6, 9, 11, 4, {3, 2}, {1, 2}, {2, 0}, .dilation = {2, 1}, .groups = 2};

static target open_cuda(const char *conv, bool graphs) {
    target on = {.dtype = ISO_F32};
    if (conv) setenv("ISO_CUDA_CONV", conv, 1);
    setenv("ISO_CUDA_GRAPHS", graphs ? "1" : "0", 1);
    if (iso_device_create("cuda", &on.device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    on.kernels = on.device->kernels[on.dtype];
    return on;
}

static iso_status forward(const target *on, problem *p, bool bias, bool relu) {
    return on->kernels->conv2d_forward(on->device, &p->config, p->x.t, p->w.t, bias ? p->b.t : NULL,
                                       relu ? ISO_ACT_RELU : ISO_ACT_NONE, p->y.t);
}

static void check_forward(const target *on, problem *p, bool bias, bool relu) {
    OK(forward(on, p, bias, relu));
    oracle_conv2d(p->c, p->x.d, p->w.d, bias ? p->b.d : NULL, relu, p->y.d);
    check_pair(on, &p->y, TOLERANCE, "conv2d output");
}

// The device and a problem on it; skips where cuDNN is not there.
static target open_dnn(const oracle_conv *c, bool graphs, problem *p) {
    target on = open_cuda("cudnn", graphs), probe = open_cuda(NULL, false);
    const oracle_conv tiny = {1, 1, 1, 1, 1, {1, 1}, {1, 1}, .padding = {0, 0}};
    problem small = problem_of(&probe, &tiny);
    iso_status status = forward(&probe, &small, false, false);
    problem_destroy(&small);
    iso_device_destroy(&probe.device);
    if (status == ISO_ERR_UNSUPPORTED) {
        iso_device_destroy(&on.device);
        cr_skip_test("%s", iso_last_error()->message);
    }
    *p = problem_of(&on, c);
    return on;
}

static target open_emulated(const oracle_conv *c, bool graphs, problem *p) {
    if (!emulated_fail_next) cr_skip_test("only the emulated GPU can be made to refuse");
    return open_dnn(c, graphs, p);
}

static void close_problem(target *on, problem *p) {
    problem_destroy(p);
    iso_device_destroy(&on->device);
    if (emulated_live_descriptors) cr_assert(emulated_live_descriptors() == 0);
}

static long long launches(const target *on) { return (long long)on->device->launches; }

// How many launches a forward takes that was there before.
static long long cost(const target *on, problem *p, bool bias, bool relu) {
    check_forward(on, p, bias, relu);
    long long before = launches(on);
    check_forward(on, p, bias, relu);
    return launches(on) - before;
}

// ---- What is taken ------------------------------------------------------------------------------

Test(cuda_dnn, every_shape_matches_the_oracle_in_both_types) {
    static const oracle_conv *const all[] = {&three, &five, &strided, &dilated};
    for (int i = 0; i < COUNT(all); i++)
        for (iso_dtype dtype = ISO_F32; dtype <= ISO_F64; dtype++) {
            problem p;
            target on = open_dnn(all[i], false, &p);
            problem_destroy(&p);
            on.dtype = dtype;
            on.kernels = on.device->kernels[dtype];
            p = problem_of(&on, all[i]);
            problem_check(&on, &p, TOLERANCE);
            cr_assert(iso__cuda_of(on.device)->dnn, "cuDNN was asked for");
            close_problem(&on, &p);
        }
}

Test(cuda_dnn, bias_and_relu_come_in_the_same_call_where_cudnn_does_it) {
    problem p;
    target on = open_emulated(&three, false, &p); // its first algorithm fuses
    cr_expect(cost(&on, &p, true, true) == 1);
    cr_expect(cost(&on, &p, false, false) == 1);
    cr_expect(cost(&on, &p, true, false) == 2);
    cr_expect(cost(&on, &p, false, true) == 2);
    close_problem(&on, &p);
    on = open_emulated(&five, false, &p); // this one refuses, and is not asked again
    cr_expect(cost(&on, &p, true, true) == 2);
    close_problem(&on, &p);
}

Test(cuda_dnn, a_device_takes_it_unless_it_is_told_otherwise) {
    problem p;
    target on = open_dnn(&three, false, &p); // skips where there is none
    close_problem(&on, &p);
    unsetenv("ISO_CUDA_CONV");
    on = open_cuda(NULL, false);
    p = problem_of(&on, &three);
    check_forward(&on, &p, true, true);
    cr_expect(iso__cuda_of(on.device)->dnn);
    close_problem(&on, &p);
    on = open_cuda("gemm", false);
    p = problem_of(&on, &three);
    check_forward(&on, &p, true, true);
    cr_expect(!iso__cuda_of(on.device)->dnn);
    close_problem(&on, &p);
}

Test(cuda_dnn, without_cudnn_convolutions_go_by_cublas_unless_it_was_asked_for) {
    problem p;
    target on = open_emulated(&three, false, &p);
    close_problem(&on, &p);
    unsetenv("ISO_CUDA_CONV");
    on = open_cuda(NULL, false);
    p = problem_of(&on, &three);
    emulated_fail_next("cudnnCreate", NOT_INITIALIZED);
    check_forward(&on, &p, true, true);
    cr_expect(!iso__cuda_of(on.device)->dnn);
    close_problem(&on, &p);
    on = open_cuda("cudnn", false);
    p = problem_of(&on, &three);
    emulated_fail_next("cudnnCreate", NOT_INITIALIZED);
    cr_expect(forward(&on, &p, true, true) == ISO_ERR_DEVICE);
    cr_expect(strstr(iso_last_error()->message, "cudnnCreate"), "%s", iso_last_error()->message);
    close_problem(&on, &p);
}

// ---- What is refused ----------------------------------------------------------------------------

static const char *const calls[] = {"cudnnConvolutionForward", "cudnnConvolutionBackwardFilter",
                                    "cudnnConvolutionBackwardData"};

static void check_all(const target *on, problem *p) {
    check_forward(on, p, false, true);
    problem_check(on, p, TOLERANCE);
}

Test(cuda_dnn, a_refused_algorithm_makes_room_for_the_next) {
    for (int status = NOT_SUPPORTED; status > 0;
         status = status == NOT_SUPPORTED ? MISALIGNED : 0) {
        problem p;
        target on = open_emulated(&three, false, &p);
        for (int i = 0; i < COUNT(calls); i++) emulated_fail_next(calls[i], status);
        check_all(&on, &p);
        cr_expect(cost(&on, &p, false, false) == 1, "what was refused is not asked again");
        close_problem(&on, &p);
    }
}

Test(cuda_dnn, where_all_are_refused_it_goes_by_cublas) {
    problem p;
    target on = open_emulated(&three, false, &p);
    emulated_fail_next("cudnnConvolutionBiasActivationForward", NOT_SUPPORTED);
    for (int i = 0; i < COUNT(calls); i++)
        for (int k = 0; k < 7; k++) emulated_fail_next(calls[i], NOT_SUPPORTED);
    check_all(&on, &p);
    cr_expect(cost(&on, &p, false, false) == 3, "patches, product, rows");
    close_problem(&on, &p);
}

Test(cuda_dnn, a_shape_that_it_cannot_do_goes_by_cublas) {
    static const char *const choices[] = {"cudnnGetConvolutionForwardAlgorithm_v7",
                                          "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
                                          "cudnnGetConvolutionBackwardDataAlgorithm_v7"};
    problem p;
    target on = open_emulated(&three, false, &p);
    for (int i = 0; i < COUNT(choices); i++) emulated_fail_next(choices[i], NOT_SUPPORTED);
    check_all(&on, &p);
    cr_expect(cost(&on, &p, false, false) == 3, "patches, product, rows");
    close_problem(&on, &p);
}

Test(cuda_dnn, an_error_is_told_and_not_taken_for_a_refusal) {
    problem p;
    target on = open_emulated(&three, false, &p);
    emulated_fail_next("cudnnConvolutionForward", EXECUTION_FAILED);
    cr_assert(forward(&on, &p, false, false) == ISO_ERR_DEVICE);
    const char *said = iso_last_error()->message;
    cr_assert(strstr(said, "EXECUTION_FAILED") && strstr(said, "ISO_CUDA_CONV=gemm"), "%s", said);
    check_forward(&on, &p, false, false);
    close_problem(&on, &p);
}

// An address that no vector of floats may be read from: a sample has an odd number of them.
Test(cuda_dnn, odd_addresses_are_done) {
    static const oracle_conv two = {2, 1, 7, 5, 3, {3, 3}, {1, 1}, .padding = {1, 1}};
    problem p, q;
    target on = open_dnn(&two, false, &p);
    oracle_conv one = two;
    one.rows = 1;
    q = problem_of(&on, &one);
    void *whole = q.x.t->data;
    q.x.t->data = (char *)p.x.t->data + (p.x.t->count / 2) * (int64_t)sizeof(float);
    memcpy(q.x.d, p.x.d + p.x.t->count / 2, (size_t)(p.x.t->count / 2) * sizeof(double));
    check_forward(&on, &q, true, true);
    check_forward(&on, &q, true, false);
    q.x.t->data = whole;
    problem_destroy(&q);
    close_problem(&on, &p);
}

// Its first algorithm for so large a filter would take 2 GiB; the second problem's takes 200 MB.
static const oracle_conv hungry = {1, 64, 9, 9, 64, {7, 7}, {1, 1}, .padding = {3, 3}};
static const oracle_conv modest = {1, 18, 9, 9, 18, {7, 7}, {1, 1}, .padding = {3, 3}};
Test(cuda_dnn, workspaces_that_are_too_large_are_done_without) {
    problem p;
    setenv("ISO_EMULATED_MEMORY_MB", "4096", 1); // there would be room
    target on = open_emulated(&hungry, false, &p);
    check_forward(&on, &p, false, false);
    cr_expect(iso__cuda_of(on.device)->scratch_bytes < (size_t)1 << 30);
    close_problem(&on, &p);
    on = open_emulated(&modest, false, &p);
    for (int i = 0; i < 2; i++) emulated_fail_next("cudaMalloc", 2 /* cudaErrorMemoryAllocation */);
    check_forward(&on, &p, false, false);
    cr_expect(iso__cuda_of(on.device)->scratch_bytes < (size_t)100 << 20);
    close_problem(&on, &p);
}

// ---- Steps as graphs ----------------------------------------------------------------------------

static void step(const target *on, problem *p, bool refuse) {
    for (int i = 0; i < 3; i++) OK(forward(on, p, true, true));
    if (refuse) emulated_fail_next("cudnnConvolutionBiasActivationForward", NOT_SUPPORTED);
    OK(iso__cuda_wait(iso__cuda_of(on->device)));
}

Test(cuda_dnn, what_is_refused_in_a_capture_is_not_lost) {
    for (int refused = 0; refused < 2; refused++) {
        problem p;
        target on = open_emulated(&three, true, &p);
        oracle_conv2d(p.c, p.x.d, p.w.d, p.b.d, true, p.y.d);
        for (int i = 0; i < 6; i++) {
            double nothing = NAN;
            OK(on.device->ops->fill(on.device, p.y.t, nothing));
            OK(iso__cuda_wait(iso__cuda_of(on.device)));
            step(&on, &p, refused && i == 2); // when the graph is made
            check_pair(&on, &p.y, TOLERANCE, "conv2d output");
        }
        cr_expect((on.device->graph_launches > 0) == !refused);
        close_problem(&on, &p);
    }
}

// ---- Bits ---------------------------------------------------------------------------------------

// The bytes of dw and dx after a backward.
static void *gradients(const target *on, problem *p) {
    size_t w = (size_t)p->w.t->count * sizeof(float), x = (size_t)p->x.t->count * sizeof(float);
    char *out = malloc(w + x);
    OK(on->kernels->conv2d_backward_params(on->device, &p->config, p->x.t, p->y.t, p->w.t, false,
                                           NULL, false));
    OK(on->device->ops->to_host(on->device, p->w.t, out));
    OK(on->kernels->conv2d_backward_input(on->device, &p->config, p->y.t, p->w.t, p->x.t));
    OK(on->device->ops->to_host(on->device, p->x.t, out + w));
    return out;
}

// cuDNN names algorithms without a fixed order of sums first for this shape.
Test(cuda_dnn, gradients_have_the_same_bits_in_every_run) {
    problem p;
    target on = open_dnn(&strided, false, &p);
    size_t bytes = (size_t)(p.w.t->count + p.x.t->count) * sizeof(float);
    OK(forward(&on, &p, true, true));
    char *x = malloc(bytes), *first = NULL;
    OK(on.device->ops->to_host(on.device, p.x.t, x));
    for (int i = 0; i < 5; i++) {
        OK(on.device->ops->from_host(on.device, x, p.x.t));
        char *again = gradients(&on, &p);
        cr_assert(!first || memcmp(first, again, bytes) == 0, "run %d gave other bits", i);
        free(first);
        first = again;
    }
    free(first), free(x);
    close_problem(&on, &p);
}

Test(cuda_dnn, nothing_is_made_for_a_shape_that_was_seen) {
    problem p;
    target on = open_dnn(&five, false, &p);
    long long blocks, before, after;
    check_all(&on, &p);
    free(gradients(&on, &p));
    long long made = iso_device_primitives_created(on.device);
    int device_blocks = iso__cuda_of(on.device)->pool.count;
    iso_memory_balance(&blocks, NULL, &before);
    free(gradients(&on, &p));
    OK(forward(&on, &p, true, true));
    iso_memory_balance(&blocks, NULL, &after);
    cr_expect(iso_device_primitives_created(on.device) == made);
    cr_expect(iso__cuda_of(on.device)->pool.count == device_blocks);
    cr_expect(after == before);
    close_problem(&on, &p);
}

// The largest error of an output.
static double error_of(const target *on, const char *math, problem *p) {
    int64_t count = p->y.t->count;
    float *got = malloc((size_t)count * sizeof(float));
    double worst = 0;
    OK(iso_device_set_math(on->device, math));
    OK(forward(on, p, false, false));
    oracle_conv2d(p->c, p->x.d, p->w.d, NULL, false, p->y.d);
    OK(on->device->ops->to_host(on->device, p->y.t, got));
    for (int64_t i = 0; i < count; i++) worst = fmax(worst, fabs((double)got[i] - p->y.d[i]));
    free(got);
    return worst;
}

Test(cuda_dnn, f32_is_exact_until_it_is_told_to_round) {
    problem p;
    target on = open_dnn(&strided, false, &p);
    bool emulated = strstr(iso_device_describe(on.device), "emulated") != NULL;
    pair_destroy(&p.x), pair_destroy(&p.w); // factors of more bits
    p.x = pair_create(&on, 4, (int64_t[]){9, 2, 34, 34}, ISO_LAYOUT_LOGICAL, 9973);
    p.w = pair_create(&on, 4, (int64_t[]){3, 2, 3, 2}, ISO_LAYOUT_LOGICAL, 9967);
    double f32 = error_of(&on, "f32", &p), tf32 = error_of(&on, "tf32", &p);
    cr_expect(f32 < 1e-5, "f32 is off by %g", f32);
    cr_expect(tf32 < 1e-2, "tf32 is off by %g", tf32);
    cr_expect(!emulated || tf32 > 10 * f32, "%g %g", f32, tf32);
    cr_expect(error_of(&on, "bf16", &p) == tf32, "for bf16 there is TF32");
    cr_expect(error_of(&on, "f32", &p) == f32, "and back");
    close_problem(&on, &p);
}
