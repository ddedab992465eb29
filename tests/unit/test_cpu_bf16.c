// SPDX-License-Identifier: MIT
// Math "bf16" on the CPU: products of operands that are rounded to bf16, summed in f32; refused
// where the processor cannot.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "common/oracle.h"
#include "device/cpu/cpu_impl.h"

#include <float.h>
#include <math.h>
#include <string.h>

TestSuite(cpu_bf16, .timeout = 120, .fini = balance_check);

#define TOLERANCE 1e-5 // of sums in f32; operands that are not rounded differ by 1e-3

static const oracle_conv convs[] = {
    {1, 1, 5, 5, 1, {3, 3}, {1, 1}, .padding = {0, 0}},     // smallest
    {2, 1, 28, 28, 32, {3, 3}, {1, 1}, .padding = {0, 0}},  // first layer of a CNN
    {3, 32, 12, 12, 64, {3, 3}, {1, 1}, .padding = {0, 0}}, // Winograd's case in f32
    {2, 3, 11, 9, 10, {5, 5}, {2, 2}, .padding = {2, 2}},   // colour image, 10 of 16 channels
    {2, 7, 8, 8, 13, {3, 3}, {1, 1}, .padding = {1, 1}},    // odd channels
    {1, 20, 6, 6, 33, {1, 1}, {1, 1}, .padding = {0, 0}},   // 1 x 1
    {4, 16, 14, 14, 48, {3, 3}, {2, 2}, .padding = {1, 1}}, // stride
    {2, 6, 7, 9, 16, {2, 3}, {1, 2}, .padding = {0, 1}},    // different in height and width
    {2, 64, 1, 1, 8, {1, 1}, {1, 1}, .padding = {0, 0}},    // planes of one pixel
    {3, 32, 8, 8, 64, {1, 1}, {2, 2}, .padding = {0, 0}},   // projection of a residual block
    {2, 16, 12, 12, 32, {3, 3}, {1, 1}, {2, 2}, .dilation = {2, 2}},
    {1, 18, 10, 13, 16, {3, 2}, {2, 1}, {1, 3}, .dilation = {3, 4}},
    {2, 32, 8, 8, 64, {3, 3}, {1, 1}, {1, 1}, .groups = 2},
    {2, 15, 6, 7, 30, {3, 3}, {2, 2}, {1, 1}, .groups = 3},
    {2, 32, 9, 8, 32, {3, 3}, {1, 1}, {1, 1}, .groups = 32}, // depthwise
};

static const int64_t linears[][3] = { // rows, inputs, outputs
    {1, 1, 1}, {1, 70, 5}, {3, 17, 33}, {16, 16, 6}, {64, 128, 10}, {65, 100, 37}};

// The oneDNN kernels with math bf16; always: whatever the sizes. Skips the test where they lack it.
static target open_bf16(bool always) {
    target on = {.dtype = ISO_F32};
    setenv("ISO_CPU_KERNELS", "onednn", 1);
    if (iso_device_create("cpu", &on.device) != ISO_OK) cr_skip_test("this build has no oneDNN");
    iso_status status = iso_device_set_math(on.device, "bf16");
    if (status != ISO_OK) iso_device_destroy(&on.device);
    if (status == ISO_ERR_UNSUPPORTED) cr_skip_test("this processor has no AVX512_BF16");
    OK(status);
    iso__cpu_of(on.device)->bf16_always = always;
    on.kernels = on.device->kernels[ISO_F32];
    return on;
}

static bool was_bf16(const target *on) { return strstr(on->device->kernel, "bf16"); }

// What a kernel that rounds multiplies.
static double *rounded(const pair *p) {
    int64_t count = iso_tensor_count(p->t);
    double *copy = malloc((size_t)count * sizeof(double));
    for (int64_t i = 0; i < count; i++) copy[i] = bf16_value(bf16_nearest(p->d[i]));
    return copy;
}

static int kernels_seen[2]; // that do not round, and that do

// The operands as the latest kernel read them, to be freed. oneDNN may lack a kernel in bf16.
static double *operand(const target *on, const pair *p) {
    kernels_seen[was_bf16(on)]++;
    if (was_bf16(on)) return rounded(p);
    double *copy = malloc((size_t)iso_tensor_count(p->t) * sizeof(double));
    return memcpy(copy, p->d, (size_t)iso_tensor_count(p->t) * sizeof(double));
}

static void nearly_all_rounded(void) {
    cr_assert(kernels_seen[1] > 10 * kernels_seen[0], "%d kernels round, %d do not",
              kernels_seen[1], kernels_seen[0]);
}

// ---- Convolutions -----------------------------------------------------------------------------------

typedef struct conv_pairs {
    iso_conv2d_config config;
    pair x, w, b, y;
} conv_pairs;

// From -4 to 4.
static void to_integers(pair *p) {
    for (int64_t i = 0; i < iso_tensor_count(p->t); i++) p->d[i] = round(p->d[i] * 4);
    pair_write(p);
}

static conv_pairs conv_create(const target *on, const oracle_conv *c, iso_layout layout) {
    int64_t groups = c->groups ? c->groups : 1;
    int64_t weights[] = {c->out, c->in / groups, c->kernel[0], c->kernel[1]};
    conv_pairs p = {
        .config = {.in_channels = c->in, .out_channels = c->out, .groups = c->groups},
        .x = pair_4d(on, c->rows, c->in, c->height, c->width, layout),
        .w = pair_create(on, 4, weights, ISO_LAYOUT_LOGICAL, 1000),
        .b = pair_1d(on, c->out),
        .y = pair_4d(on, c->rows, c->out, oracle_conv_height(c), oracle_conv_width(c), layout)};
    for (int i = 0; i < 2; i++) {
        p.config.kernel_size[i] = c->kernel[i];
        p.config.stride[i] = c->stride[i];
        p.config.padding[i] = c->padding[i];
        p.config.dilation[i] = c->dilation[i];
    }
    return p;
}

static void conv_destroy(conv_pairs *p) {
    pair_destroy(&p->x), pair_destroy(&p->w), pair_destroy(&p->b), pair_destroy(&p->y);
}

static void conv_forward(const target *on, const oracle_conv *c, conv_pairs *p, bool relu,
                         double tolerance) {
    OK(on->kernels->conv2d_forward(on->device, &p->config, p->x.t, p->w.t, p->b.t,
                                   relu ? ISO_ACT_RELU : ISO_ACT_NONE, p->y.t));
    double *x = operand(on, &p->x), *w = operand(on, &p->w);
    oracle_conv2d(c, x, w, p->b.d, relu, p->y.d);
    check_pair(on, &p->y, tolerance, "conv2d output");
    free(x), free(w);
}

static void conv_params(const target *on, const oracle_conv *c, conv_pairs *p, bool add,
                        double tolerance) {
    if (!add) zero(&p->w), zero(&p->b);
    OK(on->kernels->conv2d_backward_params(on->device, &p->config, p->x.t, p->y.t, p->w.t, add,
                                           p->b.t, add));
    double *x = operand(on, &p->x), *dy = operand(on, &p->y);
    oracle_conv2d_backward(c, x, NULL, dy, p->w.d, p->b.d, NULL);
    check_pair(on, &p->w, tolerance, "conv2d weight gradient");
    check_pair(on, &p->b, tolerance, "conv2d bias gradient");
    free(x), free(dy);
}

static void conv_input(const target *on, const oracle_conv *c, conv_pairs *p, double tolerance) {
    zero(&p->x);
    OK(on->kernels->conv2d_backward_input(on->device, &p->config, p->y.t, p->w.t, p->x.t));
    double *w = operand(on, &p->w), *dy = operand(on, &p->y);
    oracle_conv2d_backward(c, NULL, w, dy, NULL, NULL, p->x.d);
    check_pair(on, &p->x, tolerance, "conv2d input gradient");
    free(w), free(dy);
}

static void one_conv(const target *on, const oracle_conv *c, int operation, int variant) {
    conv_pairs p = conv_create(on, c, layouts[variant]);
    if (operation == 0) conv_forward(on, c, &p, variant, TOLERANCE);
    if (operation == 1) conv_params(on, c, &p, variant, TOLERANCE);
    if (operation == 2) conv_input(on, c, &p, TOLERANCE);
    conv_destroy(&p);
}

Test(cpu_bf16, convolutions_round_what_they_multiply) {
    target on = open_bf16(true);
    for (int i = 0; i < COUNT(convs); i++)
        for (int k = 0; k < 6; k++) one_conv(&on, &convs[i], k / 2, k % 2);
    nearly_all_rounded();
    iso_device_destroy(&on.device);
}

// ---- Linear layers ----------------------------------------------------------------------------------

typedef struct linear_pairs {
    int64_t rows, in, out;
    pair x, w, b, y;
} linear_pairs;

static linear_pairs linear_create(const target *on, const int64_t size[3]) {
    return (linear_pairs){size[0],
                          size[1],
                          size[2],
                          pair_2d(on, size[0], size[1]),
                          pair_2d(on, size[2], size[1]),
                          pair_1d(on, size[2]),
                          pair_2d(on, size[0], size[2])};
}

static void linear_destroy(linear_pairs *p) {
    pair_destroy(&p->x), pair_destroy(&p->w), pair_destroy(&p->b), pair_destroy(&p->y);
}

static void linear_forward(const target *on, linear_pairs *p, bool relu, double tolerance) {
    OK(on->kernels->linear_forward(on->device, p->x.t, p->w.t, NULL, p->b.t,
                                   relu ? ISO_ACT_RELU : ISO_ACT_NONE, p->y.t));
    double *x = operand(on, &p->x), *w = operand(on, &p->w);
    oracle_linear(p->rows, p->in, p->out, x, w, p->b.d, relu, p->y.d);
    check_pair(on, &p->y, tolerance, "linear output");
    free(x), free(w);
}

static void linear_params(const target *on, linear_pairs *p, bool add, double tolerance) {
    if (!add) zero(&p->w), zero(&p->b);
    OK(on->kernels->linear_backward_params(on->device, p->x.t, p->y.t, p->w.t, add, p->b.t, add));
    double *x = operand(on, &p->x), *dy = operand(on, &p->y);
    oracle_linear_backward(p->rows, p->in, p->out, x, NULL, dy, p->w.d, NULL, NULL);
    oracle_linear_backward(p->rows, p->in, p->out, x, NULL, p->y.d, NULL, p->b.d, NULL);
    check_pair(on, &p->w, tolerance, "linear weight gradient");
    check_pair(on, &p->b, tolerance, "linear bias gradient");
    free(x), free(dy);
}

static void linear_input(const target *on, linear_pairs *p, double tolerance) {
    zero(&p->x);
    OK(on->kernels->linear_backward_input(on->device, p->y.t, p->w.t, p->x.t));
    double *w = operand(on, &p->w), *dy = operand(on, &p->y);
    oracle_linear_backward(p->rows, p->in, p->out, NULL, w, dy, NULL, NULL, p->x.d);
    check_pair(on, &p->x, tolerance, "linear input gradient");
    free(w), free(dy);
}

static void one_linear(const target *on, const int64_t size[3], int operation, int variant) {
    linear_pairs p = linear_create(on, size);
    if (operation == 0) linear_forward(on, &p, variant, TOLERANCE);
    if (operation == 1) linear_params(on, &p, variant, TOLERANCE);
    if (operation == 2) linear_input(on, &p, TOLERANCE);
    linear_destroy(&p);
}

Test(cpu_bf16, linear_layers_round_what_they_multiply) {
    target on = open_bf16(true);
    for (int i = 0; i < COUNT(linears); i++)
        for (int k = 0; k < 6; k++) one_linear(&on, linears[i], k / 2, k % 2);
    nearly_all_rounded();
    iso_device_destroy(&on.device);
}

// ---- Values -----------------------------------------------------------------------------------------

Test(cpu_bf16, products_of_small_integers_are_exact) {
    target on = open_bf16(true);
    for (int i = 0; i < COUNT(convs); i++) {
        conv_pairs p = conv_create(&on, &convs[i], ISO_LAYOUT_BLOCKED);
        to_integers(&p.x), to_integers(&p.w), to_integers(&p.b), to_integers(&p.y);
        conv_input(&on, &convs[i], &p, 0);
        for (int64_t k = 0; k < iso_tensor_count(p.x.t); k++) p.x.d[k] = (double)(k % 9 - 4);
        pair_write(&p.x);
        conv_params(&on, &convs[i], &p, true, 0);
        conv_destroy(&p);
        p = conv_create(&on, &convs[i], ISO_LAYOUT_BLOCKED);
        to_integers(&p.x), to_integers(&p.w), to_integers(&p.b);
        conv_forward(&on, &convs[i], &p, false, 0);
        conv_destroy(&p);
    }
    for (int i = 0; i < COUNT(linears); i++) {
        linear_pairs p = linear_create(&on, linears[i]);
        to_integers(&p.x), to_integers(&p.w), to_integers(&p.b), to_integers(&p.y);
        linear_params(&on, &p, false, 0);
        linear_destroy(&p);
        p = linear_create(&on, linears[i]);
        to_integers(&p.x), to_integers(&p.w), to_integers(&p.b);
        linear_forward(&on, &p, true, 0);
        linear_destroy(&p);
    }
    iso_device_destroy(&on.device);
}

Test(cpu_bf16, infinities_and_nans_stay_and_large_values_overflow) {
    enum { ROWS = 40, IN = 50, OUT = 20 };
    static const double special[] = {INFINITY, -INFINITY, NAN, FLT_MAX, -FLT_MAX, 1e30, 1e-30};
    target on = open_bf16(true);
    linear_pairs p = linear_create(&on, (int64_t[]){ROWS, IN, OUT});
    for (int64_t i = 0; i < OUT * IN; i++) p.w.d[i] = 0.5 + (double)(i % 7);
    pair_write(&p.w);
    for (int i = 0; i < 7; i++) pair_set(&p.x, (2 + 3 * i) * IN + 11, special[i]);
    OK(on.kernels->linear_forward(on.device, p.x.t, p.w.t, NULL, NULL, ISO_ACT_NONE, p.y.t));
    cr_assert(was_bf16(&on));
    pair_read(&p.y);
    for (int64_t i = 0; i < ROWS * OUT; i++) {
        int64_t row = i / OUT, which = row % 3 == 2 && row < 23 ? (row - 2) / 3 : -1;
        double y = p.y.d[i];
        if (which == 0 || which == 3) cr_assert(isinf(y) && y > 0, "row %d", (int)row);
        if (which == 1 || which == 4) cr_assert(isinf(y) && y < 0, "row %d", (int)row);
        if (which == 2) cr_assert(isnan(y));
        if (which == 5) cr_assert(y > 4e29 && y < 7e30);
        if (which == -1 || which == 6) cr_assert(fabs(y) < 7 * IN);
    }
    linear_destroy(&p);
    iso_device_destroy(&on.device);
}

// ---- Switching --------------------------------------------------------------------------------------

// Every operation once, on sizes that are worth rounding; hashed.
static uint64_t all_operations(const target *on, linear_pairs *l, conv_pairs *c, bool *bf16) {
    const iso_kernel_ops *k = on->kernels;
    *bf16 = true;
    OK(k->linear_forward(on->device, l->x.t, l->w.t, NULL, l->b.t, ISO_ACT_RELU, l->y.t));
    *bf16 = *bf16 && was_bf16(on);
    uint64_t hash = iso__hash(ISO_HASH_START, l->y.t->data, (size_t)l->y.t->count * 4);
    OK(k->conv2d_forward(on->device, &c->config, c->x.t, c->w.t, c->b.t, ISO_ACT_RELU, c->y.t));
    *bf16 = *bf16 && was_bf16(on);
    return iso__hash(hash, c->y.t->data, (size_t)c->y.t->count * 4);
}

Test(cpu_bf16, math_can_be_switched_and_each_has_its_own_bits) {
    static const oracle_conv conv = {8, 32, 16, 16, 64, {3, 3}, {2, 2}, .padding = {1, 1}};
    target on = open_bf16(false);
    linear_pairs l = linear_create(&on, (int64_t[]){64, 128, 128});
    conv_pairs c = conv_create(&on, &conv, ISO_LAYOUT_BLOCKED);
    bool bf16;
    uint64_t hash[2];
    hash[1] = all_operations(&on, &l, &c, &bf16);
    cr_assert(bf16);
    OK(iso_device_set_math(on.device, "f32"));
    hash[0] = all_operations(&on, &l, &c, &bf16);
    cr_assert(!was_bf16(&on) && hash[0] != hash[1]);
    long long before, after, made = iso_device_primitives_created(on.device);
    iso_memory_balance(NULL, NULL, &before);
    for (int i = 0; i < 6; i++) {
        OK(iso_device_set_math(on.device, i % 2 ? "f32" : "bf16"));
        uint64_t again = all_operations(&on, &l, &c, &bf16);
        cr_assert(again == hash[i % 2 == 0] && bf16 == (i % 2 == 0));
    }
    iso_memory_balance(NULL, NULL, &after);
    cr_assert(after == before && iso_device_primitives_created(on.device) == made);
    // The bits of a device that was never switched.
    target other = open_bf16(false);
    OK(iso_device_set_math(other.device, "f32"));
    cr_assert(all_operations(&other, &l, &c, &bf16) == hash[0]);
    iso_device_destroy(&other.device);
    linear_destroy(&l), conv_destroy(&c);
    iso_device_destroy(&on.device);
}

Test(cpu_bf16, choices_of_one_math_do_not_rule_the_other) {
    target on = open_bf16(false);
    linear_pairs l = linear_create(&on, (int64_t[]){64, 128, 128});
    static const oracle_conv conv = {8, 32, 16, 16, 64, {3, 3}, {2, 2}, .padding = {1, 1}};
    conv_pairs c = conv_create(&on, &conv, ISO_LAYOUT_BLOCKED);
    size_t of_bf16, of_both;
    bool bf16;
    OK(iso_device_set_math(on.device, "f32"));
    const uint64_t by_rule = all_operations(&on, &l, &c, &bf16);
    OK(iso_device_set_math(on.device, "bf16"));
    OK(iso_device_tune(on.device, true));
    all_operations(&on, &l, &c, &bf16);
    cr_assert(bf16);
    iso_device_choices(on.device, &of_bf16);
    OK(iso_device_tune(on.device, false));
    OK(iso_device_set_math(on.device, "f32"));
    cr_assert(all_operations(&on, &l, &c, &bf16) == by_rule);
    OK(iso_device_tune(on.device, true));
    all_operations(&on, &l, &c, &bf16);
    iso_device_choices(on.device, &of_both);
    cr_assert(of_bf16 > 0 && of_both == 2 * of_bf16);
    linear_destroy(&l), conv_destroy(&c);
    iso_device_destroy(&on.device);
}

Test(cpu_bf16, small_layers_and_those_of_winograd_stay_f32) {
    target on = open_bf16(false);
    linear_pairs l = linear_create(&on, (int64_t[]){64, 128, 10});
    static const oracle_conv conv = {2, 64, 12, 12, 64, {3, 3}, {1, 1}, .padding = {1, 1}};
    conv_pairs c = conv_create(&on, &conv, ISO_LAYOUT_BLOCKED);
    linear_forward(&on, &l, false, TOLERANCE);
    cr_assert(!was_bf16(&on));
    conv_forward(&on, &conv, &c, false, 3e-5);
    cr_assert(!was_bf16(&on), "%s", on.device->kernel);
    linear_destroy(&l), conv_destroy(&c);
    iso_device_destroy(&on.device);
}

// Columns first .. first + dw->rows of dy, as a lazy backward takes them.
static void gradient_of_rows(const target *on, const linear_pairs *l, int64_t first, int64_t rows,
                             float *out) {
    pair dy = pair_2d(on, l->rows, rows), dw = pair_2d(on, rows, l->in);
    OK(on->kernels->take_columns(on->device, l->y.t, first, dy.t));
    OK(on->kernels->linear_backward_params(on->device, l->x.t, dy.t, dw.t, false, NULL, false));
    memcpy(out + first * l->in, dw.t->data, (size_t)(rows * l->in) * sizeof(float));
    pair_destroy(&dy), pair_destroy(&dw);
}

static void pieces_are_the_whole(const target *on, const int64_t size[3], int64_t rows) {
    linear_pairs l = linear_create(on, size);
    float *pieces = calloc((size_t)(l.in * l.out), sizeof(float));
    float *bias = calloc((size_t)l.out, sizeof(float));
    for (int64_t first = 0; first < l.out; first += rows)
        gradient_of_rows(on, &l, first, rows < l.out - first ? rows : l.out - first, pieces);
    OK(on->kernels->linear_backward_params(on->device, l.x.t, l.y.t, NULL, false, l.b.t, false));
    memcpy(bias, l.b.t->data, (size_t)l.out * sizeof(float));
    OK(on->kernels->linear_backward_params(on->device, l.x.t, l.y.t, l.w.t, false, l.b.t, false));
    cr_assert(memcmp(pieces, l.w.t->data, (size_t)(l.in * l.out) * sizeof(float)) == 0,
              "weight gradients of %lld rows at a time differ", (long long)rows);
    cr_assert(memcmp(bias, l.b.t->data, (size_t)l.out * sizeof(float)) == 0);
    free(pieces), free(bias);
    linear_destroy(&l);
}

Test(cpu_bf16, gradients_in_pieces_have_the_bits_of_the_whole) {
    static const int64_t sizes[][3] = {
        {64, 512, 300}, {17, 784, 200}, {256, 100, 130}, {8, 40, 70}};
    for (int always = 0; always < 2; always++) {
        target on = open_bf16(always);
        for (int i = 0; i < COUNT(sizes); i++) {
            pieces_are_the_whole(&on, sizes[i], 2); // of one row they may differ: see layout.c
            pieces_are_the_whole(&on, sizes[i], 16);
            pieces_are_the_whole(&on, sizes[i], 48);
            pieces_are_the_whole(&on, sizes[i], 97);
        }
        iso_device_destroy(&on.device);
    }
}

// ---- Refusals ---------------------------------------------------------------------------------------

static void refuses(const char *set, const char *math, const char *why) {
    iso_device *device;
    setenv("ISO_CPU_KERNELS", set, 1);
    if (iso_device_create("cpu", &device) != ISO_OK) return; // not in this build
    cr_assert(iso_device_set_math(device, math) == ISO_ERR_UNSUPPORTED, "%s, %s", set, math);
    cr_assert(strstr(iso_last_error()->message, why), "%s", iso_last_error()->message);
    iso_device_destroy(&device);
}

Test(cpu_bf16, a_processor_without_its_instructions_refuses) {
    setenv("DNNL_MAX_CPU_ISA", "AVX512_CORE", 1);
    refuses("onednn", "bf16", "use math f32");
}

Test(cpu_bf16, kernels_without_it_refuse) {
    refuses("cblas", "bf16", "use math f32");
    refuses("reference", "bf16", "use math f32");
    refuses("onednn", "tf32", "use f32 or bf16");
}
