// SPDX-License-Identifier: MIT
// A convolution on a GPU and in double precision, for the tests of both libraries that do it.
#include "gpu/conv_problem.h"

#include <string.h>

problem problem_in(const target *on, const oracle_conv *c, iso_layout of_x, iso_layout of_w,
                   iso_layout of_y) {
    int64_t groups = c->groups ? c->groups : 1;
    problem p = {.c = c,
                 .config = {.in_channels = c->in, .out_channels = c->out, .groups = groups}};
    memcpy(p.config.kernel_size, c->kernel, sizeof(c->kernel));
    memcpy(p.config.stride, c->stride, sizeof(c->stride));
    memcpy(p.config.padding, c->padding, sizeof(c->padding));
    memcpy(p.config.dilation, c->dilation, sizeof(c->dilation));
    p.x = pair_4d(on, c->rows, c->in, c->height, c->width, of_x);
    p.w = pair_4d(on, c->out, c->in / groups, c->kernel[0], c->kernel[1], of_w);
    p.b = pair_1d(on, c->out);
    p.y = pair_4d(on, c->rows, c->out, oracle_conv_height(c), oracle_conv_width(c), of_y);
    return p;
}

problem problem_of(const target *on, const oracle_conv *c) {
    return problem_in(on, c, ISO_LAYOUT_LOGICAL, ISO_LAYOUT_LOGICAL, ISO_LAYOUT_LOGICAL);
}

void problem_destroy(problem *p) {
    pair_destroy(&p->x), pair_destroy(&p->w), pair_destroy(&p->b), pair_destroy(&p->y);
}

void problem_check(const target *on, problem *p, double tolerance) {
    const oracle_conv *c = p->c;
    OK(on->kernels->conv2d_forward(on->device, &p->config, p->x.t, p->w.t, p->b.t, ISO_ACT_RELU,
                                   p->y.t));
    oracle_conv2d(c, p->x.d, p->w.d, p->b.d, true, p->y.d);
    check_pair(on, &p->y, tolerance, "conv2d output");
    zero(&p->x);
    OK(on->kernels->conv2d_backward_input(on->device, &p->config, p->y.t, p->w.t, p->x.t));
    oracle_conv2d_backward(c, NULL, p->w.d, p->y.d, NULL, NULL, p->x.d);
    check_pair(on, &p->x, tolerance, "conv2d input gradient");
    for (int add = 0; add < 2; add++) {
        if (!add) zero(&p->w), zero(&p->b);
        OK(on->kernels->conv2d_backward_params(on->device, &p->config, p->x.t, p->y.t, p->w.t, add,
                                               p->b.t, add));
        oracle_conv2d_backward(c, p->x.d, NULL, p->y.d, p->w.d, p->b.d, NULL);
        check_pair(on, &p->w, tolerance, "conv2d weight gradient");
        check_pair(on, &p->b, tolerance, "conv2d bias gradient");
    }
}
