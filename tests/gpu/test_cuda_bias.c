// SPDX-License-Identifier: MIT
// The gradient of a bias behind a relu, which a GPU computes on the way to the gradient before the
// relu: the same bits as one after the other.
#include "common/balance.h"
#include "common/device_fixture.h"

#include <string.h>

TestSuite(cuda_bias, .timeout = 60, .fini = balance_check);

// Memory as it is, in whatever layout.
static void *bytes_of(const iso_tensor *t) {
    iso_tensor raw = *t;
    raw.layout = ISO_LAYOUT_LOGICAL;
    void *bytes = calloc((size_t)t->count, iso_dtype_size(t->dtype));
    OK(t->device->ops->to_host(t->device, &raw, bytes));
    return bytes;
}

static void expect_same(const iso_tensor *a, const iso_tensor *b, const char *what) {
    void *one = bytes_of(a), *other = bytes_of(b);
    size_t bytes = (size_t)a->count * iso_dtype_size(a->dtype);
    cr_expect(memcmp(one, other, bytes) == 0, "%s, %s", what, iso_dtype_name(a->dtype));
    free(one);
    free(other);
}

// Both ways, from the same numbers; dy[1] is done one after the other.
typedef struct case_of {
    const target *on;
    pair y, dy[2], db[2];
} case_of;

static case_of make(const target *on, int ndim, const int64_t *shape, iso_layout layout) {
    target parameters = parameter_target(on);
    case_of c = {.on = on, .y = pair_create(on, ndim, shape, layout, 4)}; // many are 0
    for (int i = 0; i < 2; i++) {
        c.dy[i] = pair_create(on, ndim, shape, layout, 9973);
        c.db[i] = pair_1d(&parameters, shape[1]);
    }
    OK(on->device->ops->copy(on->device, c.dy[0].t, c.dy[1].t));
    OK(on->device->ops->copy(on->device, c.db[0].t, c.db[1].t));
    for (int i = 0; i < 2; i++) {
        pair_read(&c.dy[i]);
        pair_read(&c.db[i]);
    }
    return c;
}

// db[1] as it should be.
static void expect_sums(case_of *c, bool accumulate) {
    int64_t channels = c->db[1].t->count, items = c->y.t->count;
    int64_t plane = items / channels / c->y.t->shape[0];
    double *sums = c->db[1].d;
    if (!accumulate) zero(&c->db[1]);
    for (int64_t i = 0; i < items; i++)
        if (c->y.d[i] > 0) sums[i / plane % channels] += c->dy[1].d[i];
}

static void destroy(case_of *c) {
    pair_destroy(&c->y);
    for (int i = 0; i < 2; i++) {
        pair_destroy(&c->dy[i]);
        pair_destroy(&c->db[i]);
    }
}

static void sum(const case_of *c, iso_tensor *dy, iso_tensor *db, bool accumulate) {
    const iso_conv2d_config conv = {
        .in_channels = db->count, .out_channels = db->count, .kernel_size = {1, 1}};
    const iso_kernel_ops *k = c->on->kernels;
    if (dy->ndim == 2)
        OK(k->linear_backward_params(c->on->device, dy, dy, NULL, false, db, accumulate));
    else
        OK(k->conv2d_backward_params(c->on->device, &conv, dy, dy, NULL, false, db, accumulate));
}

static void check(const target *on, int ndim, const int64_t *shape, iso_layout layout,
                  bool accumulate) {
    case_of c = make(on, ndim, shape, layout);
    OK(on->kernels->relu_backward_bias(on->device, c.y.t, c.dy[0].t, c.db[0].t, accumulate));
    OK(on->kernels->relu_backward(on->device, c.y.t, c.dy[1].t, c.dy[1].t));
    sum(&c, c.dy[1].t, c.db[1].t, accumulate);
    expect_same(c.dy[0].t, c.dy[1].t, "the gradient before the relu");
    expect_same(c.db[0].t, c.db[1].t, "the bias's");
    expect_sums(&c, accumulate);
    check_pair(on, &c.db[1], 1e-5, "the bias's gradient");
    destroy(&c);
}

static void both_have_the_same_bits(const target *on) {
    static const int64_t shapes[][4] = {{1, 1, 1, 1},    {9, 5, 3, 7},   {300, 40, 1, 2},
                                        {2, 3, 40, 50},  {70, 64, 2, 2}, {3000, 9, 1, 1},
                                        {9000, 40, 1, 1}};
    if (!on->kernels->relu_backward_bias) return;
    for (int i = 0; i < COUNT(shapes) * 2; i++) {
        const int64_t *shape = shapes[i / 2];
        bool accumulate = i % 2;
        check(on, 2, (int64_t[]){shape[0] * shape[2] * shape[3], shape[1]}, ISO_LAYOUT_LOGICAL,
              accumulate);
        for (int l = 0; l < COUNT(layouts); l++) check(on, 4, shape, layouts[l], accumulate);
    }
}

Test(cuda_bias, has_the_bits_of_one_after_the_other) {
    iso_device *device;
    if (iso_device_create("cuda", &device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    cr_assert(device->kernels[ISO_F32]->relu_backward_bias, "it is there");
    iso_device_destroy(&device);
    on_each_activation_target(both_have_the_same_bits);
}
