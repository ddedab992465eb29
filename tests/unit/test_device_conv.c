// SPDX-License-Identifier: MIT
// Convolutions of every device and set of kernels against the double-precision oracle.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "device/cpu/cpu_impl.h"
#include "common/oracle.h"

TestSuite(device_conv, .timeout = 120, .fini = balance_check);

// Winograd's transforms cost about a digit of float's seven.
#define CONV_TOLERANCE 3e-5

static const oracle_conv convs[] = {
    {1, 1, 5, 5, 1, {3, 3}, {1, 1}, .padding = {0, 0}},     // smallest
    {2, 1, 28, 28, 32, {3, 3}, {1, 1}, .padding = {0, 0}},  // first layer of a CNN
    {3, 32, 12, 12, 64, {3, 3}, {1, 1}, .padding = {0, 0}}, // Winograd's case
    {1, 16, 9, 7, 16, {3, 3}, {1, 1}, .padding = {1, 1}},   // the same: one row, padded, not square
    {5, 48, 4, 4, 16, {3, 3}, {1, 1}, .padding = {1, 1}},   // smaller than its tiles
    {2, 3, 11, 9, 10, {5, 5}, {2, 2}, .padding = {2, 2}},   // colour image, 10 of 16 channels
    {2, 7, 8, 8, 13, {3, 3}, {1, 1}, .padding = {1, 1}},    // odd channels
    {1, 20, 6, 6, 33, {1, 1}, {1, 1}, .padding = {0, 0}},   // 1 x 1
    {4, 16, 14, 14, 48, {3, 3}, {2, 2}, .padding = {1, 1}}, // stride
    {2, 6, 7, 9, 16, {2, 3}, {1, 2}, .padding = {0, 1}},    // different in height and width
    {1, 4, 8, 8, 9, {3, 3}, {3, 3}, .padding = {0, 0}},     // pixels at the end are never read
    {2, 64, 1, 1, 8, {1, 1}, {1, 1}, .padding = {0, 0}},    // planes of one pixel
    {3, 32, 8, 8, 64, {1, 1}, {2, 2}, .padding = {0, 0}},   // projection of a residual block
    {3, 5, 9, 8, 7, {1, 1}, {1, 1}, .padding = {0, 0}},     // the same without stride
    // Dilation.
    {2, 3, 9, 11, 5, {3, 3}, {1, 1}, {0, 0}, .dilation = {2, 2}},
    {2, 16, 12, 12, 32, {3, 3}, {1, 1}, {2, 2}, .dilation = {2, 2}}, // not Winograd's case
    {1, 18, 10, 13, 16, {3, 2}, {2, 1}, {1, 3}, .dilation = {3, 4}},
    {1, 2, 5, 7, 3, {1, 3}, {1, 1}, {0, 0}, .dilation = {4, 3}}, // of a side of one tap
    {1, 4, 8, 8, 9, {3, 3}, {3, 3}, {0, 0}, .dilation = {2, 2}}, // sizes seen without it
    {1, 4, 8, 8, 9, {3, 3}, {3, 3}, {0, 0}, .dilation = {1, 2}},
    {1, 4, 8, 8, 9, {3, 3}, {3, 3}, {0, 0}, .dilation = {2, 1}},
    // Groups: filling blocks, filling half of them, across their borders, with one channel each.
    {2, 32, 8, 8, 64, {3, 3}, {1, 1}, {1, 1}, .groups = 2},
    {2, 32, 8, 8, 64, {3, 3}, {1, 1}, {1, 1}, .groups = 1}, // sizes seen in groups
    {2, 16, 7, 6, 32, {3, 3}, {1, 1}, {1, 1}, .groups = 2},
    {2, 15, 6, 7, 30, {3, 3}, {2, 2}, {1, 1}, .groups = 3},
    {2, 40, 5, 5, 20, {1, 1}, {1, 1}, {0, 0}, .groups = 4},
    {2, 32, 9, 8, 32, {3, 3}, {1, 1}, {1, 1}, .groups = 32}, // depthwise
    {2, 13, 7, 7, 13, {3, 3}, {2, 2}, {1, 1}, .groups = 13},
    {2, 6, 7, 7, 24, {3, 3}, {1, 1}, {1, 1}, .groups = 6}, // several outputs of each channel
    // Both.
    {2, 16, 11, 9, 16, {3, 3}, {1, 1}, {2, 2}, .dilation = {2, 2}, .groups = 16},
    {1, 36, 10, 10, 24, {3, 3}, {2, 1}, {2, 1}, .dilation = {2, 1}, .groups = 6},
};

static iso_conv2d_config config_of(const oracle_conv *c) {
    iso_conv2d_config config = {.in_channels = c->in, .out_channels = c->out};
    for (int i = 0; i < 2; i++) {
        config.kernel_size[i] = c->kernel[i];
        config.stride[i] = c->stride[i];
        config.padding[i] = c->padding[i];
        config.dilation[i] = c->dilation[i];
    }
    config.groups = c->groups;
    return config;
}

typedef struct conv_pairs {
    iso_conv2d_config config;
    pair x, w, b, y;
} conv_pairs;

// combination: bit 0 layout of x, bit 1 layout of y. of: the type of w and b.
static conv_pairs conv_create(const target *on, const target *of, const oracle_conv *c,
                              int combination) {
    int64_t groups = c->groups ? c->groups : 1;
    int64_t weights[] = {c->out, c->in / groups, c->kernel[0], c->kernel[1]};
    return (conv_pairs){
        .config = config_of(c),
        .x = pair_4d(on, c->rows, c->in, c->height, c->width, layouts[combination & 1]),
        .w = pair_create(of, 4, weights, ISO_LAYOUT_LOGICAL, 1000),
        .b = pair_1d(of, c->out),
        .y = pair_4d(on, c->rows, c->out, oracle_conv_height(c), oracle_conv_width(c),
                     layouts[combination >> 1])};
}

static void conv_destroy(conv_pairs *p) {
    pair_destroy(&p->x);
    pair_destroy(&p->w);
    pair_destroy(&p->b);
    pair_destroy(&p->y);
}

static void try_convs(const target *on, bool gradients,
                      void (*body)(const target *, const oracle_conv *, conv_pairs *)) {
    // All layouts in f32, none blocked in f64, and all or none of them in 16 bits.
    const int step = on->dtype == ISO_F32 ? 1 : 3, end = on->dtype == ISO_F64 ? 1 : 4;
    target parameters = parameter_target(on);
    for (int i = 0; i < COUNT(convs); i++)
        for (int combination = 0; combination < end; combination += step) {
            conv_pairs p = conv_create(on, gradients ? &parameters : on, &convs[i], combination);
            body(on, &convs[i], &p);
            conv_destroy(&p);
        }
}

// gradients: w and b are gradients of parameters. On the CPU, bf16 by the rule and wherever the
// processor has it; GPUs have tests of their own for 16 bits.
static void on_each_conv(const target *on, bool gradients,
                         void (*body)(const target *, const oracle_conv *, conv_pairs *)) {
    bool half = iso__is_half(on->dtype);
    if (half && !on->device->ops->host_memory) return;
    try_convs(on, gradients, body);
    if (on->dtype != ISO_BF16 || !iso__cpu_of(on->device)->onednn) return;
    iso__cpu_of(on->device)->bf16_always = true;
    try_convs(on, gradients, body);
    iso__cpu_of(on->device)->bf16_always = false;
}

static void one_conv_forward(const target *on, const oracle_conv *c, conv_pairs *p) {
    for (int flags = 0; flags < 4; flags++) {
        bool bias = flags & 1, relu = flags & 2;
        OK(on->kernels->conv2d_forward(on->device, &p->config, p->x.t, p->w.t, bias ? p->b.t : NULL,
                                       relu ? ISO_ACT_RELU : ISO_ACT_NONE, p->y.t));
        oracle_conv2d(c, p->x.d, p->w.d, bias ? p->b.d : NULL, relu, p->y.d);
        check_pair(on, &p->y, CONV_TOLERANCE, "conv2d output");
    }
}
static void conv_forward(const target *on) { on_each_conv(on, false, one_conv_forward); }
Test(device_conv, conv2d_forward_matches_the_oracle) { on_each_activation_target(conv_forward); }

static void one_conv_params(const target *on, const oracle_conv *c, conv_pairs *p) {
    for (int flags = 0; flags < 16; flags++) {
        bool add_w = flags & 1, add_b = flags & 2, want_w = !(flags & 4), want_b = !(flags & 8);
        if (iso__is_half(on->dtype) && add_w != add_b) continue; // f32 covers them
        if (want_w && !add_w) zero(&p->w);
        if (want_b && !add_b) zero(&p->b);
        OK(on->kernels->conv2d_backward_params(on->device, &p->config, p->x.t, p->y.t,
                                               want_w ? p->w.t : NULL, add_w,
                                               want_b ? p->b.t : NULL, add_b));
        oracle_conv2d_backward(c, p->x.d, p->w.d, p->y.d, want_w ? p->w.d : NULL,
                               want_b ? p->b.d : NULL, NULL);
        check_pair(on, &p->w, CONV_TOLERANCE, "conv2d weight gradient");
        check_pair(on, &p->b, CONV_TOLERANCE, "conv2d bias gradient");
    }
}
static void conv_params(const target *on) { on_each_conv(on, true, one_conv_params); }
Test(device_conv, conv2d_backward_params_match_the_oracle) {
    on_each_activation_target(conv_params);
}

static void one_conv_input(const target *on, const oracle_conv *c, conv_pairs *p) {
    zero(&p->x);
    OK(on->kernels->conv2d_backward_input(on->device, &p->config, p->y.t, p->w.t, p->x.t));
    oracle_conv2d_backward(c, NULL, p->w.d, p->y.d, NULL, NULL, p->x.d);
    check_pair(on, &p->x, CONV_TOLERANCE, "conv2d input gradient");
}
static void conv_input(const target *on) { on_each_conv(on, false, one_conv_input); }
Test(device_conv, conv2d_backward_input_matches_the_oracle) {
    on_each_activation_target(conv_input);
}
