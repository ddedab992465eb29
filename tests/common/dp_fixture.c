// SPDX-License-Identifier: MIT
// For tests of data-parallel training: small models, a deterministic global batch, and a training
// loop.
#include "common/any_device.h"
#include "common/dp_fixture.h"

#include "base/base.h"

#include <math.h>

static iso_status add(iso_module *net, iso_status made, const char *name, iso_module **layer) {
    ISO_TRY(made);
    return iso_sequential_add_take(net, name, *layer);
}

iso_status build_small_cnn(iso_device *device, bool dropout, iso_module **out) {
    iso_rng rng = {.seed = 7};
    iso_module *net, *m = NULL;
    iso_conv2d_config c1 = {
        .in_channels = TRAINER_CHANNELS, .out_channels = 4, .kernel_size = {3, 3}};
    iso_conv2d_config c2 = {.in_channels = 4, .out_channels = 6, .kernel_size = {3, 3}};
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(add(net, iso_conv2d_create(device, &c1, &rng, &m), "conv1", &m));
    ISO_TRY(add(net, iso_relu_create(device, &m), "relu1", &m));
    ISO_TRY(add(net, iso_conv2d_create(device, &c2, &rng, &m), "conv2", &m));
    ISO_TRY(add(net, iso_relu_create(device, &m), "relu2", &m));
    ISO_TRY(add(net, iso_max_pool2d_create(device, 2, 2, &m), "pool", &m));
    if (dropout) ISO_TRY(add(net, iso_dropout2d_create(device, 0.25, &rng, &m), "dropout1", &m));
    ISO_TRY(add(net, iso_flatten_create(device, &m), "flatten", &m));
    ISO_TRY(add(net, iso_linear_create(device, 54, 16, true, &rng, &m), "fc1", &m));
    ISO_TRY(add(net, iso_relu_create(device, &m), "relu3", &m));
    if (dropout) ISO_TRY(add(net, iso_dropout_create(device, 0.5, &rng, &m), "dropout2", &m));
    ISO_TRY(add(net, iso_linear_create(device, 16, TRAINER_CLASSES, true, &rng, &m), "fc2", &m));
    *out = net;
    return ISO_OK;
}

iso_status build_wide_mlp(iso_device *device, bool dropout, iso_module **out) {
    enum { PIXELS = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE };
    iso_rng rng = {.seed = 7};
    iso_module *net, *m = NULL;
    (void)dropout;
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(add(net, iso_flatten_create(device, &m), "flatten", &m));
    ISO_TRY(add(net, iso_linear_create(device, PIXELS, 64, true, &rng, &m), "fc1", &m));
    ISO_TRY(add(net, iso_relu_create(device, &m), "relu", &m));
    ISO_TRY(add(net, iso_linear_create(device, 64, TRAINER_CLASSES, true, &rng, &m), "fc2", &m));
    *out = net;
    return ISO_OK;
}

trainer_config trainer_default(void) {
    trainer_config config = {.sync = ISO_SYNC_LAZY, .optimizer = ISO_SGD, .rows = 12};
    config.hyper = iso_hyper_default(ISO_SGD);
    config.hyper.lr = 0.05;
    config.hyper.momentum = 0.9;
    return config;
}

iso_status trainer_create(trainer *t, iso_comm *comm, const trainer_config *config) {
    iso_module *net;
    iso_optimizer *inner;
    iso_data_parallel_config dp = {.sync = config->sync,
                                   .bucket_mb = config->bucket_mb,
                                   .find_unused_parameters = config->find_unused,
                                   .static_unused = config->static_unused,
                                   .piece_mb = config->piece_mb,
                                   .scope = config->scope,
                                   .hook = config->hook,
                                   .buffers = config->buffers};
    if (config->adjust) config->adjust(&dp);
    *t = (trainer){.comm = comm, .batch_rows = config->rows / iso_comm_size(comm)};
    t->first_row = config->first_row + t->batch_rows * iso_comm_rank(comm);
    ISO_TRY(iso_device_create(test_device(), &t->device));
    ISO_TRY((config->build ? config->build : build_small_cnn)(t->device, config->dropout, &net));
    ISO_TRY(iso_data_parallel_create_take(net, comm, &dp, &t->model));
    ISO_TRY(iso_optimizer_create(config->optimizer, t->model, &config->hyper, &inner));
    if (config->prepare) ISO_TRY(config->prepare(inner));
    ISO_TRY(iso_dp_optimizer_create_take(inner, t->model, &t->optimizer));
    ISO_TRY(iso_loss_create(t->device, ISO_CROSS_ENTROPY, &t->loss));
    int64_t shape[4] = {t->batch_rows, TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE};
    ISO_TRY(iso_tensor_create(t->device, ISO_F32, 4, shape, &t->batch));
    return ISO_OK;
}

void trainer_destroy(trainer *t) {
    iso_tensor_destroy(&t->batch);
    iso_loss_destroy(&t->loss);
    iso_optimizer_destroy(&t->optimizer);
    iso_module_destroy(&t->model);
    iso_device_destroy(&t->device);
}

// Row r of global batch `step` is the same whichever rank holds it; its label is a property of the
// picture, so that there is something to learn.
void trainer_row(float *x, int step, int64_t row, int32_t *label) {
    iso__philox_key key = iso__philox_key_make(3, ISO_RNG_TEST, (uint64_t)step);
    *label = (int32_t)((row * 7 + step) % TRAINER_CLASSES);
    for (uint32_t i = 0; i < TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE; i++) {
        uint32_t counter[4] = {i, (uint32_t)row, 0, 0}, bits[4];
        iso__philox(key, counter, bits);
        x[i] = iso__uniform(bits[0]) - 0.5f + ((int32_t)(i % TRAINER_CLASSES) == *label ? 0.5f : 0);
    }
}

iso_status trainer_forward(trainer *t, int step, iso_tensor **out) {
    void *data;
    int64_t pixels = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE;
    ISO_TRY(iso_tensor_map(t->batch, ISO_WRITE, &data));
    for (int64_t r = 0; r < t->batch_rows; r++)
        trainer_row((float *)data + r * pixels, step, t->first_row + r, &t->labels[r]);
    ISO_TRY(iso_tensor_unmap(t->batch));
    return iso_module_forward(t->model, t->batch, out);
}

static iso_status backward(trainer *t, int step, double *loss) {
    iso_tensor *out, *grad;
    ISO_TRY(trainer_forward(t, step, &out));
    ISO_TRY(iso_loss_compute(t->loss, out, t->labels, loss, NULL, &grad));
    return iso_module_backward(t->model, grad, NULL);
}

iso_status trainer_backward(trainer *t, int step) {
    double loss;
    return backward(t, step, &loss);
}

iso_status trainer_step(trainer *t, int step, double *loss) {
    double value;
    iso_optimizer_zero_grad(t->optimizer);
    ISO_TRY(backward(t, step, &value));
    ISO_TRY(iso_optimizer_step(t->optimizer));
    if (loss) *loss = value;
    return ISO_OK;
}

iso_status trainer_go_on(trainer *t, int from, int to) {
    for (int step = from; step < to; step++) ISO_TRY(trainer_step(t, step, NULL));
    return ISO_OK;
}

iso_status trainer_train(trainer *t, int steps) { return trainer_go_on(t, 0, steps); }

iso_status trainer_run(iso_comm *comm, const trainer_config *config, int steps, uint64_t *hash) {
    trainer t;
    ISO_TRY(trainer_create(&t, comm, config));
    iso_status status = trainer_train(&t, steps);
    if (status == ISO_OK) status = trainer_hash(&t, hash);
    trainer_destroy(&t);
    return status;
}

iso_status trainer_hash(trainer *t, uint64_t *hash) {
    bool equal;
    ISO_TRY(iso_parameter_hash(t->model, t->comm, hash, &equal));
    ISO_CHECK(equal, ISO_ERR_MISMATCH, "replicas drifted apart");
    return ISO_OK;
}

static double number(const iso_tensor *t, const void *data, int64_t k) {
    return iso_tensor_dtype(t) == ISO_F64 ? ((const double *)data)[k]
                                          : (double)((const float *)data)[k];
}

iso_status trainer_difference(trainer *a, trainer *b, double *out) {
    iso_parameter_list pa, pb;
    ISO_TRY(iso_module_parameters(a->model, &pa));
    ISO_TRY(iso_module_parameters(b->model, &pb));
    *out = 0;
    for (int i = 0; i < pa.count; i++) {
        iso_tensor *x, *y;
        void *xd, *yd;
        ISO_TRY(iso_parameter_value(pa.item[i], &x));
        ISO_TRY(iso_parameter_value(pb.item[i], &y));
        ISO_TRY(iso_tensor_map(x, ISO_READ, &xd));
        ISO_TRY(iso_tensor_map(y, ISO_READ, &yd));
        for (int64_t k = 0; k < iso_tensor_count(x); k++)
            *out = fmax(*out, fabs(number(x, xd, k) - number(y, yd, k)));
        ISO_TRY(iso_tensor_unmap(x));
        ISO_TRY(iso_tensor_unmap(y));
    }
    iso_parameter_list_destroy(&pa);
    iso_parameter_list_destroy(&pb);
    return ISO_OK;
}
