// SPDX-License-Identifier: MIT
// Time of each device operation of the MNIST CNN, one thread: median milliseconds, JSON lines.
// Usage: bench_ops [BATCH [REPEATS]]
#include "device/device_impl.h"
#include "exchange/codec.h"

#include <isotherm/trace.h>
#include <stdio.h>
#include <stdlib.h>

static iso_device *device;
static int repeats = 31;

static void require(iso_status status) {
    if (status >= 0) return;
    iso_error_print(stderr);
    exit(1);
}

static iso_tensor *make(int ndim, const int64_t *shape) {
    iso_tensor *t;
    void *host;
    require(iso_tensor_create(device, ISO_F32, ndim, shape, &t));
    require(iso_tensor_resize(t, ndim, shape,
                              device->ops->preferred_layout(device, ISO_F32, ndim, shape)));
    require(iso_tensor_map(t, ISO_WRITE, &host));
    for (int64_t i = 0; i < iso_tensor_count(t); i++)
        ((float *)host)[i] = (float)(i * 7919 % 1009) / 1009 - 0.5f;
    require(iso_tensor_unmap(t));
    return t;
}
#define MAKE(...)                                                                                  \
    make((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

// Runs `expr` and writes its median time.
#define TIME(name, expr)                                                                           \
    do {                                                                                           \
        double *ms = malloc((size_t)repeats * sizeof(double));                                     \
        for (int i_ = -2; i_ < repeats; i_++) {                                                    \
            int64_t start_ = iso_now();                                                            \
            require(expr);                                                                         \
            if (i_ >= 0) ms[i_] = (double)(iso_now() - start_) / 1e6;                              \
        }                                                                                          \
        double middle = iso__median(ms, repeats);                                                  \
        printf("{\"op\": \"%s\", \"ms_p50\": %.3f, \"ms_min\": %.3f}\n", name, middle, ms[0]);     \
        free(ms);                                                                                  \
    } while (0)

static void time_conv(int64_t n) {
    static const iso_conv2d_config c1 = {
        .in_channels = 1, .out_channels = 32, .kernel_size = {3, 3}};
    static const iso_conv2d_config c2 = {
        .in_channels = 32, .out_channels = 64, .kernel_size = {3, 3}};
    const iso_kernel_ops *kernels = device->kernels[ISO_F32];
    iso_tensor *x = MAKE(n, 1, 28, 28), *w1 = MAKE(32, 1, 3, 3), *b1 = MAKE(32),
               *y1 = MAKE(n, 32, 26, 26);
    iso_tensor *w2 = MAKE(64, 32, 3, 3), *b2 = MAKE(64), *y2 = MAKE(n, 64, 24, 24);
    iso_tensor *dy1 = MAKE(n, 32, 26, 26), *dy2 = MAKE(n, 64, 24, 24);
    TIME("conv1 forward + relu", kernels->conv2d_forward(device, &c1, x, w1, b1, ISO_ACT_RELU, y1));
    TIME("conv1 backward weights",
         kernels->conv2d_backward_params(device, &c1, x, dy1, w1, false, b1, false));
    TIME("conv2 forward + relu",
         kernels->conv2d_forward(device, &c2, y1, w2, b2, ISO_ACT_RELU, y2));
    TIME("conv2 backward weights",
         kernels->conv2d_backward_params(device, &c2, y1, dy2, w2, false, b2, false));
    TIME("conv2 backward input", kernels->conv2d_backward_input(device, &c2, dy2, w2, dy1));
    TIME("relu backward after conv1", kernels->relu_backward(device, y1, dy1, dy1));
    TIME("relu backward after conv2", kernels->relu_backward(device, y2, dy2, dy2));
    iso_tensor *all[] = {x, w1, b1, y1, w2, b2, y2, dy1, dy2};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) iso_tensor_destroy(&all[i]);
}

static void time_pool(int64_t n) {
    const iso_kernel_ops *kernels = device->kernels[ISO_F32];
    iso_tensor *x = MAKE(n, 64, 24, 24), *y = MAKE(n, 64, 12, 12), *flat = MAKE(n, 9216);
    void *workspace;
    static const iso_pool2d_config c = {.kernel_size = {2, 2}, .stride = {2, 2}};
    iso__dropout_draw draw = {.key = iso__philox_key_make(1, ISO_RNG_DROPOUT, 0), .p = 0.25};
    require(device->ops->alloc(device, kernels->max_pool2d_workspace(device, x, y), &workspace));
    TIME("pool forward", kernels->max_pool2d_forward(device, &c, x, y, workspace));
    TIME("pool backward", kernels->max_pool2d_backward(device, &c, y, workspace, x));
    TIME("dropout", kernels->dropout(device, &draw, y, y));
    TIME("dropout on flat", kernels->dropout(device, &draw, flat, flat));
    TIME("flatten", device->ops->copy(device, y, flat));
    TIME("flatten backward", device->ops->copy(device, flat, y));
    device->ops->free(device, workspace);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&y);
    iso_tensor_destroy(&flat);
}

static void time_linear(int64_t n, int64_t in, int64_t out) {
    const iso_kernel_ops *kernels = device->kernels[ISO_F32];
    iso_tensor *x = MAKE(n, in), *w = MAKE(out, in), *b = MAKE(out), *y = MAKE(n, out);
    char name[64];
#define NAME(what) (snprintf(name, sizeof(name), "linear %d-%d %s", (int)in, (int)out, what), name)
    TIME(NAME("forward"), kernels->linear_forward(device, x, w, NULL, b, ISO_ACT_NONE, y));
    TIME(NAME("backward weights"),
         kernels->linear_backward_params(device, x, y, w, false, b, false));
    TIME(NAME("backward input"), kernels->linear_backward_input(device, y, w, x));
    iso_tensor *all[] = {x, w, b, y};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) iso_tensor_destroy(&all[i]);
}

static void time_updates(void) {
    const iso_kernel_ops *kernels = device->kernels[ISO_F32];
    iso_tensor *p = MAKE(1199882), *g = MAKE(1199882), *m = MAKE(1199882), *v = MAKE(1199882);
    iso__sgd_args sgd = {.lr = 1e-3f, .scale = 1},
                  momentum = {.lr = 1e-3f, .scale = 1, .momentum = 0.9f};
    iso__adam_args adam = {.lr = 1e-6f,
                           .beta1 = 0.9f,
                           .beta2 = 0.999f,
                           .rest1 = 0.1f,
                           .rest2 = 0.001f,
                           .eps = 1e-8f,
                           .scale = 1,
                           .correction1 = 1,
                           .correction2_sqrt = 1};
    iso__adadelta_args adadelta = {.lr = 1e-3f, .rho = 0.9f, .eps = 1e-6f, .scale = 1};
    require(iso_tensor_fill(v, 1));
    require(iso_tensor_fill(m, 0));
    TIME("sgd, 1.2 M parameters", kernels->sgd(device, p->count, &sgd, g->data, p->data, NULL));
    TIME("sgd with momentum", kernels->sgd(device, p->count, &momentum, g->data, p->data, m->data));
    TIME("adam", kernels->adam(device, p->count, &adam, g->data, p->data, m->data, v->data, NULL));
    require(iso_tensor_fill(m, 1));
    TIME("adadelta",
         kernels->adadelta(device, p->count, &adadelta, g->data, p->data, v->data, m->data));
    iso_tensor *all[] = {p, g, m, v};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) iso_tensor_destroy(&all[i]);
}

// What a rank does with a bucket of the hooks int8, fp8 and the like, and encoding without
// feedback.
static void time_codecs(void) {
    static const iso__codec *const codecs[] = {&iso__codec_int8, &iso__codec_fp8, &iso__codec_int4,
                                               &iso__codec_bf16};
    enum { COUNT = 1199882 };
    iso_tensor *x = MAKE(COUNT), *state = MAKE(COUNT), *sent = MAKE(COUNT);
    char name[64];
    for (size_t k = 0; k < sizeof(codecs) / sizeof(codecs[0]); k++) {
        const iso__codec *c = codecs[k];
        require(iso_tensor_fill(state, 0));
#define RUN(what, call)                                                                            \
    snprintf(name, sizeof(name), "%s %s, 1.2 M elements", c->name, what);                          \
    TIME(name, call ? ISO_OK : ISO_ERR_STATE)
        RUN("encode", c->encode(COUNT, x->data, 1, sent->data));
        RUN("encode with feedback", c->encode_feedback(COUNT, x->data, 1, state->data, sent->data));
        RUN("decode", c->decode_scaled(COUNT, sent->data, 0.5f, state->data));
    }
    iso_tensor *all[] = {x, state, sent};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) iso_tensor_destroy(&all[i]);
}

int main(int argc, char **argv) {
    int64_t batch = argc > 1 ? atoi(argv[1]) : 64;
    if (argc > 2) repeats = atoi(argv[2]);
    require(iso_device_create("cpu", &device));
    printf("{\"device\": \"%s\", \"batch\": %d, \"repeats\": %d}\n", iso_device_describe(device),
           (int)batch, repeats);
    time_conv(batch);
    time_pool(batch);
    time_linear(batch, 9216, 128);
    time_linear(batch, 128, 10);
    time_linear(batch, 784, 512);
    time_linear(batch, 512, 512);
    time_linear(batch, 512, 10);
    time_updates();
    time_codecs();
    iso_device_destroy(&device);
    return 0;
}
