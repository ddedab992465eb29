// SPDX-License-Identifier: MIT
// The same training on a GPU as on the CPU, and the same twice on a GPU.
#include "common/balance.h"

#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <isotherm/nn.h>
#include <isotherm/optim.h>
#include <math.h>
#include <string.h>

TestSuite(gpu_training, .fini = balance_check, .timeout = 600);

#define OK(expr) cr_assert((expr) >= 0, "%s: %s", #expr, iso_last_error()->message)

static void need_gpu(void) {
    iso_device *device;
    if (iso_device_create("cuda", &device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    iso_device_destroy(&device);
}

// ---- A training -----------------------------------------------------------------------------------

enum { STEPS = 100, BATCH = 16, SAMPLES = 320 };

static const iso_layer mlp[] = {
    {.kind = ISO_FLATTEN, .name = "flatten"},
    {.kind = ISO_LINEAR, .out = 48, .relu = true, .name = "fc1"},
    {.kind = ISO_LINEAR, .out = 10, .name = "fc2"},
};
static const iso_layer cnn[] = {
    {.kind = ISO_CONV2D, .out = 4, .size = 5, .stride = 2, .relu = true, .name = "conv1"},
    {.kind = ISO_CONV2D, .out = 8, .size = 3, .relu = true, .name = "conv2"},
    {.kind = ISO_MAX_POOL2D, .size = 2, .name = "pool"},
    {.kind = ISO_FLATTEN, .name = "flatten"},
    {.kind = ISO_LINEAR, .out = 24, .relu = true, .name = "fc1"},
    {.kind = ISO_DROPOUT, .p = 0.25, .name = "dropout"},
    {.kind = ISO_LINEAR, .out = 10, .name = "fc2"},
};

typedef struct network {
    const iso_layer *layer;
    int count;
} network;
static const network networks[] = {{mlp, 3}, {cnn, 7}};

typedef struct training {
    iso_device *device;
    iso_loader *loader;
    iso_module *model;
    iso_loss *loss;
    iso_optimizer *optimizer;
} training;

static void create_loader(training *t, iso_dtype dtype) {
    iso_dataset *digits;
    iso_sampler_config order = {.batch = BATCH, .ranks = 1, .seed = 3, .shuffle = true};
    iso_loader_config config = {.prefetch = 2, .dtype = dtype};
    OK(iso_dataset_create_digits(true, SAMPLES, &digits));
    OK(iso_loader_create_take(t->device, digits, &order, &config, &t->loader));
}

static training create(const char *device, const network *net, iso_dtype dtype,
                       iso_optimizer_kind kind) {
    training t;
    iso_rng rng = {.seed = 5};
    iso_hyper hyper = iso_hyper_default(kind);
    if (kind == ISO_SGD) hyper.momentum = 0.9;
    if (kind == ISO_SGD) hyper.lr = 0.02;
    if (kind == ISO_RMSPROP) hyper.momentum = 0.5;
    hyper.centered = kind == ISO_RMSPROP;
    OK(iso_device_create(device, &t.device));
    create_loader(&t, dtype);
    OK(iso_sequential_build(t.device, (int64_t[]){1, 28, 28}, net->layer, net->count, &rng,
                            &t.model));
    OK(iso_module_to(t.model, dtype));
    OK(iso_loss_create(t.device, ISO_CROSS_ENTROPY, &t.loss));
    OK(iso_optimizer_create(kind, t.model, &hyper, &t.optimizer));
    return t;
}

static void destroy(training *t) {
    iso_optimizer_destroy(&t->optimizer);
    iso_loss_destroy(&t->loss);
    iso_module_destroy(&t->model);
    iso_loader_destroy(&t->loader);
    iso_device_destroy(&t->device);
}

static void next_batch(training *t, int step, iso_batch *batch) {
    int steps = SAMPLES / BATCH; // of an epoch
    if (step % steps == 0) OK(iso_loader_start(t->loader, step / steps, 0));
    OK(iso_loader_next(t->loader, batch));
}

// As programs do it: nothing waits for the GPU but the loss, when the whole step is launched.
static void train(training *t, int steps, double *losses) {
    for (int step = 0; step < steps; step++) {
        iso_batch batch;
        iso_tensor *output, *gradient;
        next_batch(t, step, &batch);
        iso_optimizer_zero_grad(t->optimizer);
        OK(iso_module_forward(t->model, batch.images, &output));
        OK(iso_loss_compute(t->loss, output, batch.labels, NULL, NULL, &gradient));
        OK(iso_module_backward(t->model, gradient, NULL));
        OK(iso_optimizer_step(t->optimizer));
        OK(iso_loss_value(t->loss, &losses[step], NULL));
    }
}

// ---- Tests ----------------------------------------------------------------------------------------

// Sums are rounded in another order, and what that changes grows from step to step: to 1e-6 in
// these runs on the emulated GPU. An error in a kernel shows in the first digits.
#define LOSS_TOLERANCE 1e-3

static void compare_losses(const network *net) {
    double cpu[STEPS], gpu[STEPS], worst = 0;
    training a = create("cpu", net, ISO_F32, ISO_SGD), b = create("cuda", net, ISO_F32, ISO_SGD);
    train(&a, STEPS, cpu);
    train(&b, STEPS, gpu);
    for (int i = 0; i < STEPS; i++) worst = fmax(worst, fabs(cpu[i] - gpu[i]));
    cr_assert(cpu[STEPS - 1] < 0.7 * cpu[0], "nothing was learnt: %g to %g", cpu[0],
              cpu[STEPS - 1]);
    cr_assert(worst <= LOSS_TOLERANCE, "losses differ by %g", worst);
    destroy(&a), destroy(&b);
}
Test(gpu_training, an_mlp_has_the_losses_of_the_cpu) {
    need_gpu();
    compare_losses(&networks[0]);
}
Test(gpu_training, a_cnn_with_dropout_has_the_losses_of_the_cpu) {
    need_gpu();
    compare_losses(&networks[1]);
}

// The largest difference between the parameters of two trainings; -1: the bits are the same.
static double difference(training *a, training *b) {
    iso_parameter_list x, y;
    double worst = -1;
    OK(iso_module_parameters(a->model, &x));
    OK(iso_module_parameters(b->model, &y));
    for (int i = 0; i < x.count; i++) {
        iso_tensor *v, *w;
        void *p, *q;
        OK(iso_parameter_value(x.item[i], &v));
        OK(iso_parameter_value(y.item[i], &w));
        OK(iso_tensor_map(v, ISO_READ, &p));
        OK(iso_tensor_map(w, ISO_READ, &q));
        bool wide = iso_tensor_dtype(v) == ISO_F64;
        size_t bytes = (size_t)iso_tensor_count(v) * (wide ? 8 : 4);
        if (memcmp(p, q, bytes) != 0) worst = fmax(worst, 0);
        for (int64_t k = 0; k < iso_tensor_count(v); k++)
            worst = worst < 0 ? worst
                    : wide    ? fmax(worst, fabs(((double *)p)[k] - ((double *)q)[k]))
                              : fmax(worst, fabs((double)((float *)p)[k] - ((float *)q)[k]));
        OK(iso_tensor_unmap(v));
        OK(iso_tensor_unmap(w));
    }
    iso_parameter_list_destroy(&x);
    iso_parameter_list_destroy(&y);
    return worst;
}

Test(gpu_training, the_same_seed_gives_the_same_bits) {
    need_gpu();
    for (int n = 0; n < 2; n++) {
        double first[30], second[30];
        training a = create("cuda", &networks[n], ISO_F32, ISO_ADAM);
        training b = create("cuda", &networks[n], ISO_F32, ISO_ADAM);
        train(&a, 30, first);
        train(&b, 30, second);
        cr_assert(memcmp(first, second, sizeof(first)) == 0, "network %d: losses differ", n);
        cr_assert(difference(&a, &b) < 0, "network %d: parameters differ by %g", n,
                  difference(&a, &b));
        destroy(&a), destroy(&b);
    }
}

// In f64, so that no rounding of a gradient near zero matters to rules that divide by its size.
Test(gpu_training, every_optimizer_steps_as_on_the_cpu) {
    static const iso_optimizer_kind kinds[] = {ISO_SGD,     ISO_ADAM,    ISO_ADAMW, ISO_ADADELTA,
                                               ISO_ADAGRAD, ISO_RMSPROP, ISO_LAMB,  ISO_NADAM};
    need_gpu();
    for (int k = 0; k < 8; k++) {
        double cpu[2], gpu[2];
        training a = create("cpu", &networks[1], ISO_F64, kinds[k]);
        training b = create("cuda", &networks[1], ISO_F64, kinds[k]);
        for (int steps = 1; steps <= 2; steps++) {
            train(&a, steps, cpu);
            train(&b, steps, gpu);
            cr_assert(difference(&a, &b) <= 1e-9, "%s: parameters differ by %g",
                      iso_optimizer_kind_name(kinds[k]), difference(&a, &b));
        }
        cr_assert(fabs(cpu[0] - gpu[0]) <= 1e-9 && cpu[0] > 0);
        destroy(&a), destroy(&b);
    }
}

// ---- Layers that the device lacks -----------------------------------------------------------------

static void expect_refusal(iso_status status, const char *type) {
    cr_assert(status == ISO_ERR_UNSUPPORTED && strstr(iso_last_error()->message, type), "%s: %s",
              type, iso_last_error()->message);
    cr_assert(strstr(iso_last_error()->message, "the cuda device has no"));
}

Test(gpu_training, layers_without_kernels_are_refused) {
    need_gpu();
    iso_device *device;
    iso_module *m = NULL;
    iso_rng rng = {.seed = 1};
    const iso_embedding_config rows = {.num_embeddings = 3, .embedding_dim = 2};
    const iso_attention_config heads = {.embed_dim = 4, .num_heads = 2};
    const iso_group_norm_config groups = {.num_groups = 2, .num_channels = 4};
    const iso_conv_transpose2d_config conv = {
        .conv = {.in_channels = 1, .out_channels = 1, .kernel_size = {3, 3}}};
    OK(iso_device_create("cuda", &device));
    expect_refusal(iso_embedding_create(device, &rows, &rng, &m), "Embedding");
    expect_refusal(iso_multihead_attention_create(device, &heads, &rng, &m), "MultiheadAttention");
    expect_refusal(iso_bilinear_create(device, 2, 2, 2, true, &rng, &m), "Bilinear");
    expect_refusal(iso_concat_create(device, 1, &m), "Concat");
    expect_refusal(iso_split_create(device, 1, 1, (int64_t[]){2}, &m), "Split");
    expect_refusal(iso_group_norm_create(device, &groups, &m), "GroupNorm");
    expect_refusal(iso_conv_transpose2d_create(device, &conv, &rng, &m), "ConvTranspose2d");
    cr_assert_null(m);
    iso_device_destroy(&device);
}
