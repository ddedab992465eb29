// SPDX-License-Identifier: MIT
// Pooling of every device and set of kernels against the double-precision oracle.
#include "common/balance.h"
#include "common/device_fixture.h"
#include "common/oracle.h"

#include <math.h>
#include <string.h>

TestSuite(device_pool, .timeout = 60, .fini = balance_check);

static const int64_t shapes[][4] = {
    {2, 16, 8, 8}, {1, 5, 7, 9}, {3, 33, 6, 5}, {1, 18, 5, 6}, {1, 1, 4, 4}};

static const iso_pool2d_config windows[] = {
    {{2, 2}, {2, 2}, {0, 0}}, {{3, 3}, {2, 2}, {1, 1}}, // ResNet's
    {{3, 3}, {2, 2}, {0, 0}}, {{3, 3}, {1, 1}, {1, 1}},
    {{2, 2}, {3, 3}, {0, 0}}, // pixels between windows
    {{2, 2}, {2, 2}, {1, 1}}, // windows that have one pixel
    {{2, 2}, {3, 2}, {1, 0}}, // on 4 x 4, as many as side by side
    {{2, 2}, {2, 3}, {0, 1}}, // the same
    {{1, 1}, {1, 1}, {0, 0}}, {{4, 4}, {4, 4}, {0, 0}},
    {{4, 1}, {1, 2}, {2, 0}}, // different in height and width
    {{2, 3}, {2, 1}, {0, 1}},
};

typedef struct pool_pairs {
    oracle_pool oracle;
    pair x, y, dx, dy;
} pool_pairs;

// x has five values: windows full of ties.
static pool_pairs pairs_create(const target *on, const int64_t shape[4], const int64_t out[2],
                               iso_layout layout) {
    int64_t out_shape[4] = {shape[0], shape[1], out[0], out[1]};
    pool_pairs p = {
        .oracle = {.planes = shape[0] * shape[1], .height = shape[2], .width = shape[3]}};
    p.x = pair_create(on, 4, shape, layout, 2);
    p.dx = pair_create(on, 4, shape, layout, 2);
    p.y = pair_create(on, 4, out_shape, layout, 2);
    p.dy = pair_create(on, 4, out_shape, layout, 1000);
    zero(&p.dx);
    return p;
}

static void pairs_destroy(pool_pairs *p) {
    pair_destroy(&p->x), pair_destroy(&p->dx), pair_destroy(&p->y), pair_destroy(&p->dy);
}

// The pairs of each shape, window and layout.
static void on_each_window(const target *on,
                           void (*body)(const target *, const iso_pool2d_config *, pool_pairs *)) {
    for (int i = 0; i < COUNT(shapes) * COUNT(windows) * 2; i++) {
        const int64_t *shape = shapes[i / 2 / COUNT(windows)];
        const iso_pool2d_config *c = &windows[i / 2 % COUNT(windows)];
        oracle_pool o = {.planes = shape[0] * shape[1], .height = shape[2], .width = shape[3]};
        memcpy(o.kernel, c->kernel_size, sizeof(o.kernel));
        memcpy(o.stride, c->stride, sizeof(o.stride));
        memcpy(o.padding, c->padding, sizeof(o.padding));
        pool_pairs p = pairs_create(
            on, shape, (int64_t[]){oracle_pool_height(&o), oracle_pool_width(&o)}, layouts[i % 2]);
        p.oracle = o;
        body(on, c, &p);
        pairs_destroy(&p);
    }
}

// ---- Maxima -------------------------------------------------------------------------------------

static void one_max_pool(const target *on, const iso_pool2d_config *c, pool_pairs *p) {
    int64_t *winner = calloc((size_t)p->y.t->count, sizeof(int64_t));
    size_t bytes = on->kernels->max_pool2d_workspace(on->device, p->x.t, p->y.t);
    void *workspace;
    OK(on->device->ops->alloc(on->device, bytes, &workspace));
    oracle_max_pool(&p->oracle, p->x.d, p->y.d, winner);
    OK(on->kernels->max_pool2d_forward(on->device, c, p->x.t, p->y.t, NULL));
    check_pair(on, &p->y, 0, "max pool without a workspace");
    OK(on->kernels->max_pool2d_forward(on->device, c, p->x.t, p->y.t, workspace));
    check_pair(on, &p->y, 0, "max pool");
    for (int64_t i = 0; i < p->dy.t->count; i++) p->dx.d[winner[i]] += p->dy.d[i];
    OK(on->kernels->max_pool2d_backward(on->device, c, p->dy.t, workspace, p->dx.t));
    check_pair(on, &p->dx, 1e-6, "max pool input gradient");
    on->device->ops->free(on->device, workspace);
    free(winner);
}
static void max_pools(const target *on) { on_each_window(on, one_max_pool); }
Test(device_pool, first_maximum_of_a_window_wins) { on_each_activation_target(max_pools); }

// Zeros in the padding would win.
static void one_negative_pool(const target *on, const iso_pool2d_config *c, pool_pairs *p) {
    OK(iso_tensor_fill(p->x.t, -3));
    for (int64_t i = 0; i < p->y.t->count; i++) p->y.d[i] = -3;
    OK(on->kernels->max_pool2d_forward(on->device, c, p->x.t, p->y.t, NULL));
    check_pair(on, &p->y, 0, "max pool of negative numbers");
}
static void negative_pools(const target *on) { on_each_window(on, one_negative_pool); }
Test(device_pool, padding_is_never_the_maximum) { on_each_activation_target(negative_pools); }

static void pool_of_nan(const target *on) {
    for (int l = 0; l < 2; l++)
        for (int at = 0; at < 4; at++) {
            pair x = pair_4d(on, 1, 3, 2, 2, layouts[l]), y = pair_4d(on, 1, 3, 1, 1, layouts[l]);
            pair_set(&x, 4 + at, NAN);
            for (int i = 0; i < 3; i++)
                y.d[i] =
                    fmax(fmax(x.d[4 * i], x.d[4 * i + 1]), fmax(x.d[4 * i + 2], x.d[4 * i + 3]));
            y.d[1] = NAN;
            OK(on->kernels->max_pool2d_forward(on->device, &windows[0], x.t, y.t, NULL));
            check_pair(on, &y, 0, "max pool of a NaN");
            pair_destroy(&x), pair_destroy(&y);
        }
}
Test(device_pool, pooling_does_not_hide_a_nan) { on_each_activation_target(pool_of_nan); }

// ---- Averages -----------------------------------------------------------------------------------

static void one_avg_pool(const target *on, const iso_pool2d_config *c, pool_pairs *p) {
    oracle_avg_pool(&p->oracle, p->x.d, p->y.d);
    OK(on->kernels->avg_pool2d_forward(on->device, c, p->x.t, p->y.t));
    check_pair(on, &p->y, 1e-6, "average pool");
    oracle_avg_pool_backward(&p->oracle, p->dy.d, p->dx.d);
    OK(on->kernels->avg_pool2d_backward(on->device, c, p->dy.t, p->dx.t));
    check_pair(on, &p->dx, 1e-6, "average pool input gradient");
}
static void avg_pools(const target *on) { on_each_window(on, one_avg_pool); }
Test(device_pool, averages_match_the_oracle) { on_each_activation_target(avg_pools); }

// The mean of everything, the same size, sizes that divide and that do not, larger than the input.
static void adaptive_pools(const target *on) {
    static const int64_t outs[][2] = {{1, 1}, {8, 8}, {4, 2}, {3, 4}, {5, 1}, {9, 11}};
    for (int i = 0; i < COUNT(shapes) * COUNT(outs) * 2; i++) {
        const int64_t *out = outs[i / 2 % COUNT(outs)];
        pool_pairs p = pairs_create(on, shapes[i / 2 / COUNT(outs)], out, layouts[i % 2]);
        oracle_adaptive_avg_pool(&p.oracle, out, p.x.d, p.y.d);
        OK(on->kernels->adaptive_avg_pool2d_forward(on->device, p.x.t, p.y.t));
        check_pair(on, &p.y, 1e-6, "adaptive average pool");
        oracle_adaptive_avg_pool_backward(&p.oracle, out, p.dy.d, p.dx.d);
        OK(on->kernels->adaptive_avg_pool2d_backward(on->device, p.dy.t, p.dx.t));
        check_pair(on, &p.dx, 1e-6, "adaptive average pool input gradient");
        pairs_destroy(&p);
    }
}
Test(device_pool, adaptive_averages_match_the_oracle) { on_each_activation_target(adaptive_pools); }
