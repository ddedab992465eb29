// SPDX-License-Identifier: MIT
// Pooling on a GPU in bf16 and channels last, against the double-precision oracle.
#include "common/balance.h"
#include "common/oracle.h"
#include "gpu/stored_fixture.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_pool_types, .timeout = 300, .fini = balance_check);

static const storing ways[] = {
    {ISO_F32, true, 0},  {ISO_F64, true, 0},   {ISO_BF16, false, 0}, {ISO_BF16, true, 0},
    {ISO_F32, false, 1}, {ISO_BF16, false, 1}, {ISO_BF16, true, 1},  {ISO_F32, true, 2},
    {ISO_F16, false, 0}, {ISO_F16, true, 0},   {ISO_F16, true, 1},
};

static const int64_t shapes[][4] = {
    {2, 1, 7, 9},  {3, 3, 5, 6},  {1, 5, 8, 8},   {2, 8, 7, 5},
    {2, 64, 4, 4}, {1, 24, 9, 7}, {2, 16, 33, 6}, {1, 8, 4, 4},
};

static const iso_pool2d_config windows[] = {
    {{2, 2}, {2, 2}, {0, 0}}, {{3, 3}, {2, 2}, {1, 1}}, // ResNet's
    {{3, 3}, {1, 1}, {1, 1}}, {{2, 2}, {3, 3}, {0, 0}}, // pixels between windows
    {{2, 2}, {2, 2}, {1, 1}}, {{2, 2}, {3, 2}, {1, 0}}, // windows that have one pixel
    {{4, 1}, {1, 2}, {2, 0}}, {{4, 4}, {4, 4}, {0, 0}}, // different in height and width; no overlap
};

typedef struct pool_case {
    target on;
    const iso_kernel_ops *kernels;
    oracle_pool oracle;
    stored x, y, dx, dy;
} pool_case;

// x has five values: windows full of ties.
static pool_case open_case(target on, storing how, const int64_t shape[4], const int64_t out[2]) {
    int64_t out_shape[4] = {shape[0], shape[1], out[0], out[1]};
    pool_case p = {.on = on, .kernels = on.device->kernels[how.dtype]};
    p.oracle = (oracle_pool){.planes = shape[0] * shape[1], .height = shape[2], .width = shape[3]};
    p.x = stored_create(on.device, how, 4, shape, 2);
    p.dx = stored_create(on.device, how, 4, shape, 2);
    p.y = stored_create(on.device, how, 4, out_shape, 2);
    p.dy = stored_create(on.device, how, 4, out_shape, 1000);
    memset(p.dx.d, 0, (size_t)p.dx.t->count * sizeof(double));
    return p;
}

static void close_case(pool_case *p) {
    stored_destroy(&p->x), stored_destroy(&p->y), stored_destroy(&p->dx), stored_destroy(&p->dy);
}

static void on_each_case(void (*body)(pool_case *p, const iso_pool2d_config *c)) {
    target on = open_gpu();
    for (int i = 0; i < COUNT(ways) * COUNT(shapes) * COUNT(windows); i++) {
        const int64_t *shape = shapes[i / COUNT(windows) % COUNT(shapes)];
        const iso_pool2d_config *c = &windows[i % COUNT(windows)];
        oracle_pool o = {.planes = shape[0] * shape[1], .height = shape[2], .width = shape[3]};
        memcpy(o.kernel, c->kernel_size, sizeof(o.kernel));
        memcpy(o.stride, c->stride, sizeof(o.stride));
        memcpy(o.padding, c->padding, sizeof(o.padding));
        int64_t out[2] = {oracle_pool_height(&o), oracle_pool_width(&o)};
        pool_case p = open_case(on, ways[i / COUNT(windows) / COUNT(shapes)], shape, out);
        p.oracle = o;
        body(&p, c);
        close_case(&p);
    }
    iso_device_destroy(&on.device);
}

// ---- Maxima -------------------------------------------------------------------------------------

// The first maximum wins, wherever it lies. dx is the sum of a few gradients, rounded once.
static void one_max_pool(pool_case *p, const iso_pool2d_config *c) {
    iso_device *device = p->on.device;
    int64_t *winner = calloc((size_t)p->y.t->count, sizeof(int64_t));
    void *workspace;
    OK(device->ops->alloc(device, p->kernels->max_pool2d_workspace(device, p->x.t, p->y.t),
                          &workspace));
    oracle_max_pool(&p->oracle, p->x.d, p->y.d, winner);
    OK(p->kernels->max_pool2d_forward(device, c, p->x.t, p->y.t, NULL));
    stored_check(&p->y, 0, "max pool without a workspace");
    stored_put(&p->dy);
    OK(p->kernels->max_pool2d_forward(device, c, p->x.t, p->y.t, workspace));
    stored_check(&p->y, 0, "max pool");
    for (int64_t i = 0; i < p->dy.t->count; i++) p->dx.d[winner[i]] += p->dy.d[i];
    OK(p->kernels->max_pool2d_backward(device, c, p->dy.t, workspace, p->dx.t));
    stored_check(&p->dx, 1e-6, "max pool input gradient");
    device->ops->free(device, workspace);
    free(winner);
}
Test(cuda_pool_types, the_first_maximum_wins) { on_each_case(one_max_pool); }

static void one_negative_pool(pool_case *p, const iso_pool2d_config *c) {
    for (int64_t i = 0; i < p->x.t->count; i++) p->x.d[i] = -3;
    for (int64_t i = 0; i < p->y.t->count; i++) p->y.d[i] = -3;
    stored_put(&p->x);
    OK(p->kernels->max_pool2d_forward(p->on.device, c, p->x.t, p->y.t, NULL));
    stored_check(&p->y, 0, "max pool of negative numbers");
}
Test(cuda_pool_types, padding_never_wins) { on_each_case(one_negative_pool); }

// In each window of 2 x 2 of the second channel another pixel is a NaN; its gradient goes there.
Test(cuda_pool_types, a_nan_wins_in_its_channel_only) {
    target on = open_gpu();
    for (int i = 0; i < COUNT(ways) * 2; i++) {
        pool_case p =
            open_case(on, ways[i / 2], (int64_t[]){1, i % 2 ? 3 : 16, 4, 4}, (int64_t[]){2, 2});
        int64_t winner[64], nans[] = {16, 16 + 3, 16 + 12, 16 + 15};
        void *workspace;
        p.oracle.kernel[0] = p.oracle.kernel[1] = p.oracle.stride[0] = p.oracle.stride[1] = 2;
        oracle_max_pool(&p.oracle, p.x.d, p.y.d, winner);
        for (int k = 0; k < 4; k++) {
            p.x.d[nans[k]] = p.y.d[4 + k] = NAN;
            winner[4 + k] = nans[k];
        }
        stored_put(&p.x);
        for (int k = 0; k < p.y.t->count; k++) p.dx.d[winner[k]] += p.dy.d[k];
        OK(on.device->ops->alloc(on.device, 2 * (size_t)p.y.t->count, &workspace));
        OK(p.kernels->max_pool2d_forward(on.device, &windows[0], p.x.t, p.y.t, workspace));
        stored_check(&p.y, 0, "max pool of a NaN");
        OK(p.kernels->max_pool2d_backward(on.device, &windows[0], p.dy.t, workspace, p.dx.t));
        stored_check(&p.dx, 0, "gradient of a NaN");
        on.device->ops->free(on.device, workspace);
        close_case(&p);
    }
    iso_device_destroy(&on.device);
}

// A relu on the way: the gradient of a window whose maximum it cuts goes nowhere. nan: everywhere.
static void check_relu_pool(pool_case *p, const iso_pool2d_config *c, bool nan) {
    iso_device *device = p->on.device;
    int64_t *winner = calloc((size_t)p->y.t->count, sizeof(int64_t));
    void *workspace;
    OK(device->ops->alloc(device, p->kernels->max_pool2d_workspace(device, p->x.t, p->y.t),
                          &workspace));
    oracle_max_pool(&p->oracle, p->x.d, p->y.d, winner);
    for (int64_t i = 0; i < p->dy.t->count; i++) {
        if (p->y.d[i] > 0) p->dx.d[winner[i]] += nan ? 0 : p->dy.d[i];
        p->y.d[i] = nan ? NAN : fmax(p->y.d[i], 0);
    }
    for (int64_t i = 0; nan && i < p->x.t->count; i++) p->x.d[i] = NAN;
    stored_put(&p->x);
    OK(p->kernels->max_pool2d_relu_forward(device, c, p->x.t, p->y.t, NULL));
    stored_check(&p->y, 0, "max pool and relu without a workspace");
    OK(p->kernels->max_pool2d_relu_forward(device, c, p->x.t, p->y.t, workspace));
    stored_check(&p->y, 0, "max pool and relu");
    OK(p->kernels->max_pool2d_backward(device, c, p->dy.t, workspace, p->dx.t));
    stored_check(&p->dx, 1e-6, "gradient through a relu and a max pool");
    device->ops->free(device, workspace);
    free(winner);
}
static void one_relu_pool(pool_case *p, const iso_pool2d_config *c) {
    check_relu_pool(p, c, false);
}
static void one_nan_pool(pool_case *p, const iso_pool2d_config *c) { check_relu_pool(p, c, true); }
Test(cuda_pool_types, a_relu_cuts_maxima_and_their_gradients) { on_each_case(one_relu_pool); }
Test(cuda_pool_types, a_relu_leaves_a_nan_and_gives_it_no_gradient) { on_each_case(one_nan_pool); }

// ---- Averages -----------------------------------------------------------------------------------

static void one_avg_pool(pool_case *p, const iso_pool2d_config *c) {
    oracle_avg_pool(&p->oracle, p->x.d, p->y.d);
    OK(p->kernels->avg_pool2d_forward(p->on.device, c, p->x.t, p->y.t));
    stored_check(&p->y, 1e-6, "average pool");
    oracle_avg_pool_backward(&p->oracle, p->dy.d, p->dx.d);
    OK(p->kernels->avg_pool2d_backward(p->on.device, c, p->dy.t, p->dx.t));
    stored_check(&p->dx, 1e-6, "average pool input gradient");
}
Test(cuda_pool_types, averages_match_the_oracle) { on_each_case(one_avg_pool); }

// The mean of everything, the same size, sizes that divide and that do not, larger than the input.
Test(cuda_pool_types, adaptive_averages_match_the_oracle) {
    static const int64_t outs[][2] = {{1, 1}, {8, 8}, {4, 2}, {3, 4}, {5, 1}, {9, 11}};
    target on = open_gpu();
    for (int i = 0; i < COUNT(ways) * COUNT(shapes) * COUNT(outs); i++) {
        const int64_t *out = outs[i % COUNT(outs)];
        pool_case p = open_case(on, ways[i / COUNT(outs) / COUNT(shapes)],
                                shapes[i / COUNT(outs) % COUNT(shapes)], out);
        oracle_adaptive_avg_pool(&p.oracle, out, p.x.d, p.y.d);
        OK(p.kernels->adaptive_avg_pool2d_forward(on.device, p.x.t, p.y.t));
        stored_check(&p.y, 1e-6, "adaptive average pool");
        oracle_adaptive_avg_pool_backward(&p.oracle, out, p.dy.d, p.dx.d);
        OK(p.kernels->adaptive_avg_pool2d_backward(on.device, p.dy.t, p.dx.t));
        stored_check(&p.dx, 1e-6, "adaptive average pool input gradient");
        close_case(&p);
    }
    iso_device_destroy(&on.device);
}

// More items than all threads of a launch: each does several.
Test(cuda_pool_types, many_pixels_match_the_oracle) {
    target on = open_gpu();
    for (int i = 0; i < COUNT(ways); i++) {
        static const int64_t shape[] = {3, 32, 62, 61}, out[] = {31, 30};
        pool_case p = open_case(on, ways[i], shape, out);
        p.oracle.kernel[0] = p.oracle.kernel[1] = p.oracle.stride[0] = p.oracle.stride[1] = 2;
        one_max_pool(&p, &windows[0]);
        memset(p.dx.d, 0, (size_t)p.dx.t->count * sizeof(double));
        one_avg_pool(&p, &windows[0]);
        close_case(&p);
    }
    iso_device_destroy(&on.device);
}
