// SPDX-License-Identifier: MIT
// Networks on a GPU whose activations have their channels last: the same training as in logical
// order, in TF32 and in bf16.
#include "common/balance.h"
#include "nn/nn_impl.h"

#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <isotherm/optim.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(gpu_channels_last, .fini = balance_check, .timeout = 600);

#define OK(expr) cr_assert((expr) >= 0, "%s: %s", #expr, iso_last_error()->message)

// Two batches, which come again and again.
enum { STEPS = 16, BATCH = 16, SAMPLES = 32, LAYERS = 10 };

// Channels that tensor cores take and others, so that layouts change on the way.
static const iso_layer convs[LAYERS] = {
    {.kind = ISO_CONV2D, .out = 8, .size = 5, .stride = 2, .relu = true, .name = "conv1"},
    {.kind = ISO_CONV2D, .out = 12, .size = 3, .relu = true, .name = "conv2"},
    {.kind = ISO_CONV2D, .out = 5, .size = 1, .name = "conv3"},
    {.kind = ISO_CONV2D, .out = 16, .size = 3, .stride = 2, .relu = true, .name = "conv4"},
    {.kind = ISO_FLATTEN, .name = "flatten"},
    {.kind = ISO_LINEAR, .out = 10, .name = "fc"},
};
static const iso_layer pools[LAYERS] = {
    {.kind = ISO_CONV2D, .out = 8, .size = 5, .relu = true, .name = "conv1"},
    {.kind = ISO_MAX_POOL2D, .size = 2, .name = "pool1"},
    {.kind = ISO_CONV2D, .out = 16, .size = 3, .name = "conv2"},
    {.kind = ISO_BATCH_NORM, .relu = true, .name = "norm"},
    {.kind = ISO_DROPOUT, .p = 0.25, .name = "dropout"},
    {.kind = ISO_AVG_POOL2D, .size = 2, .name = "pool2"},
    {.kind = ISO_ADAPTIVE_AVG_POOL2D, .size = 3, .name = "pool3"},
    {.kind = ISO_FLATTEN, .name = "flatten"},
    {.kind = ISO_LINEAR, .out = 10, .name = "fc"},
};

// How it is computed.
typedef struct way {
    const char *conv, *math;
    bool low; // under autocast
} way;
static const way exact = {"gemm", "f32", false}, logical = {"gemm", "tf32", false};
static const way last = {"cudnn", "tf32", false}, low = {"cudnn", "f32", true};
static const way low_logical = {"gemm", "f32", true};

typedef struct training {
    iso_device *device;
    iso_loader *loader;
    iso_module *net, *model; // model: net, or what wraps it
    iso_loss *loss;
    iso_optimizer *optimizer;
} training;

static void open_device(training *t, const way *w) {
    setenv("ISO_CUDA_CONV", w->conv, 1);
    if (iso_device_create("cuda", &t->device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    OK(iso_device_set_math(t->device, w->math));
}

static void create_loader(training *t) {
    iso_dataset *digits;
    iso_sampler_config order = {.batch = BATCH, .ranks = 1, .seed = 3, .shuffle = true};
    iso_loader_config config = {.prefetch = 2, .dtype = ISO_F32};
    OK(iso_dataset_create_digits(true, SAMPLES, &digits));
    OK(iso_loader_create_take(t->device, digits, &order, &config, &t->loader));
}

static training create(const way *w, const iso_layer *layers) {
    training t;
    int count = 0;
    iso_rng rng = {.seed = 5};
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    hyper.lr = 0.05;
    hyper.momentum = 0.9;
    while (layers[count].name) count++;
    open_device(&t, w);
    create_loader(&t);
    OK(iso_sequential_build(t.device, (int64_t[]){1, 28, 28}, layers, count, &rng, &t.net));
    t.model = t.net;
    if (w->low) OK(iso_autocast_create_take(t.net, ISO_BF16, &t.model));
    OK(iso_loss_create(t.device, ISO_CROSS_ENTROPY, &t.loss));
    OK(iso_optimizer_create(ISO_SGD, t.model, &hyper, &t.optimizer));
    return t;
}

static void destroy(training *t) {
    iso_optimizer_destroy(&t->optimizer);
    iso_loss_destroy(&t->loss);
    iso_module_destroy(&t->model);
    iso_loader_destroy(&t->loader);
    iso_device_destroy(&t->device);
}

static double step_once(training *t, int step) {
    iso_batch batch;
    iso_tensor *output, *gradient, *grad_in;
    double loss;
    if (step % (SAMPLES / BATCH) == 0) OK(iso_loader_start(t->loader, step * BATCH / SAMPLES, 0));
    OK(iso_loader_next(t->loader, &batch));
    iso_optimizer_zero_grad(t->optimizer);
    OK(iso_module_forward(t->model, batch.images, &output));
    OK(iso_loss_compute(t->loss, output, batch.labels, NULL, NULL, &gradient));
    OK(iso_module_backward(t->model, gradient, &grad_in));
    OK(iso_optimizer_step(t->optimizer));
    OK(iso_loss_value(t->loss, &loss, NULL));
    return loss;
}

// Whether the first convolution gave its channels last.
static bool gave_last(const training *t) {
    return t->net->child[0]->call[0]->result->layout == ISO_LAYOUT_BLOCKED;
}

static void train(const way *w, const iso_layer *layers, double *losses) {
    training t = create(w, layers);
    for (int i = 0; i < STEPS; i++) losses[i] = step_once(&t, i);
    cr_assert(losses[STEPS - 1] < losses[1] - 0.02, "nothing was learnt: %g to %g", losses[1],
              losses[STEPS - 1]);
    cr_assert(gave_last(&t) == (strcmp(w->conv, "cudnn") == 0));
    destroy(&t);
}

static void need_dnn(void) {
    training t;
    open_device(&t, &last);
    int64_t shape[4] = {1, 8, 4, 4};
    bool is_there = t.device->ops->preferred_layout(t.device, ISO_BF16, 4, shape) != 0;
    iso_device_destroy(&t.device);
    if (!is_there) cr_skip_test("convolutions go by cuBLAS here");
}

static void compare(const way *a, const way *b, const iso_layer *layers, double tolerance) {
    double x[STEPS], y[STEPS], worst = 0;
    need_dnn();
    train(a, layers, x);
    train(b, layers, y);
    for (int i = 0; i < STEPS; i++) worst = fmax(worst, fabs(x[i] - y[i]));
    cr_assert(worst <= tolerance, "losses differ by %g", worst);
    cr_assert(worst > 0, "nothing is computed in another way");
}

// Sums come in another order, and cuDNN may round the factors of a convolution in one layout and
// compute it in f32 in the other: what that changes grows from step to step. A channel in another's
// place shows in the second digit.
Test(gpu_channels_last, convolutions_in_tf32_train_as_in_logical_order) {
    compare(&logical, &last, convs, 2e-3);
}
Test(gpu_channels_last, pools_and_norms_in_tf32_train_as_in_logical_order) {
    compare(&logical, &last, pools, 2e-3);
}
// Numbers of 8 bits instead of 24; their errors cancel in the mean of a batch.
Test(gpu_channels_last, convolutions_in_bf16_train_as_in_f32) {
    compare(&exact, &low, convs, 1e-2);
    compare(&low_logical, &low, convs, 1e-2);
}
Test(gpu_channels_last, pools_and_norms_in_bf16_train_as_in_f32) {
    compare(&exact, &low, pools, 1e-2);
}
