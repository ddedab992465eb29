// SPDX-License-Identifier: MIT
// Rates of a GPU's kernels: products in TFLOP/s, what memory bounds in GB/s beside a device copy.
// Bytes are the least that an operation must move, each operand read or written once; a batch norm
// needs its input twice, so that 0.67 (forward) and 0.6 (backward) of the copy is what it can get.
#include "bench_device.h"
#include "bench_util.h"
#include "device/device_impl.h"

#include <getopt.h>
#include <isotherm/trace.h>
#include <string.h>

static const char usage[] =
    "usage: bench_gpu_ops [OPTIONS]\n"
    "  --device NAME  cuda, cuda:N or cpu (cuda)\n"
    "  --math LIST    of f32, tf32, and bf16 with activations of bf16 (f32,tf32,bf16)\n"
    "  --quick        tiny shapes: tries the program, and measures nothing\n";

static bench_device on;
static iso_dtype activations = ISO_F32; // of products now
static double copy_gbs;

// ---- Timing ---------------------------------------------------------------------------------------

// Blocks of calls that take about 20 ms, between two points where the device has no work; their
// median counts. Before them one call to warm up, and one from which the length follows.
enum { BLOCKS = 5 };
typedef struct timer {
    int block, calls, left;
    int64_t start;
    double ms[BLOCKS];
} timer;

static bool timer_next(timer *t) {
    if (t->left-- > 0) return true;
    bench_device_drain(&on);
    double took = bench_ms_since(t->start);
    if (t->block == -1) t->calls = took > 20 ? 1 : took < 0.02 ? 1000 : (int)(20 / took);
    if (t->block >= 0) t->ms[t->block] = took / t->calls;
    if (++t->block == BLOCKS) return false;
    t->left = t->calls - 1;
    t->start = iso_now();
    return true;
}

static double timer_ms(timer *t) { return bench_quantile(t->ms, BLOCKS, 0.5); }

static void tell_product(const char *name, const char *math, double flops, double ms) {
    printf("{\"bench\": \"gpu_op\", \"op\": \"%s\", \"math\": \"%s\", \"ms\": %.4f, "
           "\"tflops\": %.2f}\n",
           name, math, ms, flops / ms / 1e9);
    fflush(stdout);
}

static void tell_memory(const char *name, double bytes, double ms) {
    double gbs = bytes / ms / 1e6;
    if (strcmp(name, "copy") == 0) copy_gbs = gbs;
    printf("{\"bench\": \"gpu_op\", \"op\": \"%s\", \"ms\": %.4f, \"gbs\": %.1f, "
           "\"of_copy\": %.3f}\n",
           name, ms, gbs, gbs / copy_gbs);
    fflush(stdout);
}

// `call` again and again.
#define TIME(t, call)                                                                              \
    t = (timer){.block = -3, .calls = 1};                                                          \
    while (timer_next(&t)) bench_require(call)
#define PRODUCT(name, math, flops, call)                                                           \
    do {                                                                                           \
        timer timer_;                                                                              \
        TIME(timer_, call);                                                                        \
        tell_product(name, math, flops, timer_ms(&timer_));                                        \
    } while (0)
#define MEMORY(name, bytes, call)                                                                  \
    do {                                                                                           \
        timer timer_;                                                                              \
        TIME(timer_, call);                                                                        \
        tell_memory(name, bytes, timer_ms(&timer_));                                               \
    } while (0)

// ---- Tensors --------------------------------------------------------------------------------------

// Numbers from -0.5 to 0.5: products of zeros would be faster than those of data.
static iso_tensor *make_plain(int ndim, const int64_t *shape) {
    iso_tensor *t;
    void *host;
    uint32_t state = 1;
    bench_require(iso_tensor_create(on.device, ISO_F32, ndim, shape, &t));
    bench_require(iso_tensor_map(t, ISO_WRITE, &host));
    for (int64_t i = 0; i < t->count; i++) {
        state = state * 1664525 + 1013904223;
        ((float *)host)[i] = (float)(state >> 8) / (1 << 24) - 0.5f;
    }
    bench_require(iso_tensor_unmap(t));
    return t;
}

// The same in the type of activations, and a layout.
static iso_tensor *make_as(iso_layout layout, int ndim, const int64_t *shape) {
    iso_tensor *t, *plain = make_plain(ndim, shape);
    if (activations == ISO_F32 && layout == ISO_LAYOUT_LOGICAL) return plain;
    bench_require(iso_tensor_create(on.device, activations, ndim, shape, &t));
    bench_require(iso_tensor_resize(t, ndim, shape, layout));
    bench_require(iso_tensor_copy(plain, t));
    iso_tensor_destroy(&plain);
    return t;
}

// In the layout in which a convolution gives it.
static iso_tensor *make(int ndim, const int64_t *shape) {
    return make_as(on.device->ops->preferred_layout(on.device, activations, ndim, shape), ndim,
                   shape);
}
#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }
#define MAKE(...) make(SHAPE(__VA_ARGS__))

static void destroy_all(iso_tensor **tensors, int count) {
    for (int i = 0; i < count; i++) iso_tensor_destroy(&tensors[i]);
}

static const iso_kernel_ops *kernels(void) { return on.device->kernels[activations]; }

// ---- Products -------------------------------------------------------------------------------------

static void time_linear(const char *math, int size) {
    iso_tensor *t[] = {MAKE(size, size),
                       MAKE(size, size),
                       MAKE(size),
                       MAKE(size, size),
                       make_plain(SHAPE(size, size)),
                       make_plain(SHAPE(size))};
    iso_tensor *x = t[0], *w = t[1], *b = t[2], *y = t[3], *dw = t[4], *db = t[5];
    double flops = 2.0 * size * size * size;
    char name[3][64];
    snprintf(name[0], sizeof(*name), "linear %d forward", size);
    snprintf(name[1], sizeof(*name), "linear %d backward input", size);
    snprintf(name[2], sizeof(*name), "linear %d backward parameters", size);
    PRODUCT(name[0], math, flops,
            kernels()->linear_forward(on.device, x, w, NULL, b, ISO_ACT_NONE, y));
    PRODUCT(name[1], math, flops, kernels()->linear_backward_input(on.device, y, w, x));
    PRODUCT(name[2], math, flops,
            kernels()->linear_backward_params(on.device, x, y, dw, false, db, false));
    destroy_all(t, 6);
}

typedef struct conv_case {
    int in, out, side, size, stride; // side: of the image that goes in
} conv_case;

static const char *conv_name(const conv_case *s, const char *direction) {
    static char name[128];
    snprintf(name, sizeof(name), "conv %d-%d %dx%d stride %d on %dx%d %s", s->in, s->out, s->size,
             s->size, s->stride, s->side, s->side, direction);
    return name;
}

static void time_conv(const char *math, const conv_case *s, int batch) {
    const int pad = s->size / 2, to = (s->side + 2 * pad - s->size) / s->stride + 1;
    const iso_conv2d_config c = {.in_channels = s->in,
                                 .out_channels = s->out,
                                 .kernel_size = {s->size, s->size},
                                 .stride = {s->stride, s->stride},
                                 .padding = {pad, pad},
                                 .dilation = {1, 1},
                                 .groups = 1,
                                 .no_bias = true};
    iso_tensor *x = MAKE(batch, s->in, s->side, s->side), *y = MAKE(batch, s->out, to, to);
    iso_tensor *dw = make_plain(SHAPE(s->out, s->in, s->size, s->size));
    iso_layout of_w = activations == ISO_BF16 ? y->layout : ISO_LAYOUT_LOGICAL;
    iso_tensor *w = make_as(of_w, SHAPE(s->out, s->in, s->size, s->size));
    iso_tensor *t[] = {x, w, y, dw};
    double flops = 2.0 * (double)y->count * s->in * s->size * s->size;
    PRODUCT(conv_name(s, "forward"), math, flops,
            kernels()->conv2d_forward(on.device, &c, x, w, NULL, ISO_ACT_NONE, y));
    if (s->in > 3) // of the network's first layer nobody wants it
        PRODUCT(conv_name(s, "backward input"), math, flops,
                kernels()->conv2d_backward_input(on.device, &c, y, w, x));
    PRODUCT(conv_name(s, "backward parameters"), math, flops,
            kernels()->conv2d_backward_params(on.device, &c, x, y, dw, false, NULL, false));
    destroy_all(t, 4);
}

// Every shape of resnet18 on 3x32x32, batch 256.
static void time_convs(const char *math, bool quick) {
    static const conv_case cases[] = {
        {3, 64, 32, 3, 1},    {64, 64, 32, 3, 1},   {64, 128, 32, 3, 2},  {64, 128, 32, 1, 2},
        {128, 128, 16, 3, 1}, {128, 256, 16, 3, 2}, {128, 256, 16, 1, 2}, {256, 256, 8, 3, 1},
        {256, 512, 8, 3, 2},  {256, 512, 8, 1, 2},  {512, 512, 4, 3, 1}};
    static const conv_case tiny[] = {{3, 8, 8, 3, 1}, {8, 8, 8, 1, 2}};
    const conv_case *list = quick ? tiny : cases;
    size_t count = quick ? sizeof(tiny) / sizeof(*tiny) : sizeof(cases) / sizeof(*cases);
    for (size_t i = 0; i < count; i++) time_conv(math, &list[i], quick ? 2 : 256);
}

static void time_products(const char *math, bool quick) {
    bench_require(iso_device_set_math(on.device, math));
    if (strcmp(math, "bf16") == 0) activations = ISO_BF16;
    time_linear(math, quick ? 32 : 4096);
    time_linear(math, quick ? 48 : 8192);
    time_convs(math, quick);
    activations = ISO_F32;
}

// ---- Memory ---------------------------------------------------------------------------------------

static void time_elementwise(int64_t count) {
    iso_tensor *t[] = {MAKE(count), MAKE(count), MAKE(count)};
    double bytes = 4.0 * (double)count;
    MEMORY("copy", 2 * bytes, on.device->ops->copy(on.device, t[0], t[1]));
    MEMORY("fill", bytes, on.device->ops->fill(on.device, t[2], 0));
    MEMORY("relu forward", 2 * bytes, kernels()->relu_forward(on.device, t[0], t[1]));
    MEMORY("relu backward", 3 * bytes, kernels()->relu_backward(on.device, t[0], t[1], t[2]));
    MEMORY("add", 3 * bytes, kernels()->add(on.device, t[0], t[1], ISO_ACT_NONE, t[2]));
    MEMORY("add + relu", 3 * bytes, kernels()->add(on.device, t[0], t[1], ISO_ACT_RELU, t[2]));
    destroy_all(t, 3);
}

static void time_updates(int64_t count) {
    iso_tensor *t[] = {MAKE(count), MAKE(count), MAKE(count), MAKE(count)};
    void *p = t[0]->data, *g = t[1]->data, *m = t[2]->data, *v = t[3]->data;
    iso__sgd_args sgd = {.lr = 1e-6f, .scale = 1},
                  momentum = {.lr = 1e-6f, .scale = 1, .momentum = 0.9f};
    iso__adam_args adam = {.lr = 1e-6f,
                           .beta1 = 0.9f,
                           .beta2 = 0.999f,
                           .rest1 = 0.1f,
                           .rest2 = 0.001f,
                           .eps = 1e-8f,
                           .scale = 1,
                           .correction1 = 1,
                           .correction2_sqrt = 1};
    double bytes = 4.0 * (double)count;
    MEMORY("sgd", 3 * bytes, kernels()->sgd(on.device, count, &sgd, g, p, NULL));
    MEMORY("sgd with momentum", 5 * bytes, kernels()->sgd(on.device, count, &momentum, g, p, m));
    bench_require(iso_tensor_fill(t[3], 1));
    MEMORY("adam", 7 * bytes, kernels()->adam(on.device, count, &adam, g, p, m, v, NULL));
    destroy_all(t, 4);
}

static void time_norm(int64_t batch, int64_t side) {
    iso_tensor *t[] = {MAKE(batch, 64, side, side),
                       MAKE(batch, 64, side, side),
                       MAKE(batch, 64, side, side),
                       MAKE(64),
                       MAKE(64),
                       MAKE(64),
                       MAKE(64),
                       MAKE(64),
                       MAKE(64)};
    iso__batch_norm_args args = {.eps = 1e-5,
                                 .factor = 0.1,
                                 .batch = true,
                                 .weight = t[3],
                                 .bias = t[4],
                                 .running_mean = t[5],
                                 .running_var = t[6]};
    double bytes = 4.0 * (double)t[0]->count;
    void *workspace;
    bench_require(on.device->ops->alloc(on.device, kernels()->batch_norm_workspace(on.device, t[0]),
                                        &workspace));
    MEMORY("batch norm forward", 2 * bytes,
           kernels()->batch_norm_forward(on.device, &args, t[0], t[1], workspace));
    MEMORY("batch norm backward", 3 * bytes,
           kernels()->batch_norm_backward(on.device, &args, t[0], t[1], workspace, t[7], false,
                                          t[8], false, t[2]));
    on.device->ops->free(on.device, workspace);
    destroy_all(t, 9);
}

static void time_launch(void) {
    iso_tensor *x = MAKE(256);
    timer t;
    TIME(t, kernels()->relu_forward(on.device, x, x));
    printf("{\"bench\": \"gpu_op\", \"op\": \"one kernel after the other\", \"us\": %.2f}\n",
           1e3 * timer_ms(&t));
    iso_tensor_destroy(&x);
}

static void time_memory(bool quick) {
    int64_t count = quick ? 1 << 12 : 1 << 26; // 256 MiB each: no cache holds them
    time_elementwise(count);
    time_updates(count);
    time_norm(quick ? 2 : 1024, quick ? 8 : 32);
    time_launch();
}

int main(int argc, char **argv) {
    static const struct option known[] = {{"device", required_argument, NULL, 'd'},
                                          {"math", required_argument, NULL, 'm'},
                                          {"quick", no_argument, NULL, 'q'},
                                          {NULL, 0, NULL, 0}};
    const char *name = "cuda";
    char every[] = "f32,tf32,bf16", *maths = every;
    bool quick = false;
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c == 'd')
            name = optarg;
        else if (c == 'm')
            maths = optarg;
        else if (c == 'q')
            quick = true;
        else
            bench_usage(usage, "unknown option");
    }
    if (optind < argc) bench_usage(usage, "too many arguments");
    bench_list math = bench_split(maths);
    iso_comm *comm = bench_start(&argc, &argv, "off");
    bench_device_open(&on, name, "f32", NULL, comm);
    printf("{\"bench\": \"gpu_op\", \"device\": \"%s\"}\n", iso_device_describe(on.device));
    time_memory(quick);
    for (int i = 0; i < math.count; i++) time_products(math.value[i], quick);
    bench_device_close(&on);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return 0;
}
