// SPDX-License-Identifier: MIT
// A small regression, trained on several ranks.
#include "common/regression_fixture.h"

#include "base/base.h"
#include "common/any_device.h"
#include "common/mpi_fixture.h"
#include "common/tensor_access.h"

#include <criterion/criterion.h>
#include <math.h>

void regression_sample(int stream, int64_t i, float x[REGRESSION_IN], float y[REGRESSION_OUT]) {
    iso__philox_key key = iso__philox_key_make(3, ISO_RNG_TEST, (uint64_t)stream);
    uint32_t counter[4] = {(uint32_t)i, 0, 0, 0}, bits[4];
    iso__philox(key, counter, bits);
    for (int k = 0; k < REGRESSION_IN; k++) x[k] = (float)(bits[k] % 2000) / 1000 - 1;
    y[0] = (float)(bits[0] % 500) / 250 - 1;
    y[1] = (float)(bits[1] % 300) / 100;
}

iso_dataset *regression_set(int64_t count, const float *x, const float *y) {
    const iso_tensor_spec specs[] = {{ISO_F32, 1, {REGRESSION_IN}}, {ISO_F32, 1, {REGRESSION_OUT}}};
    const iso_dataset_config config = {.count = count, .inputs = 1, .targets = 1, .tensors = specs};
    iso_dataset *out = NULL;
    cr_assert_eq(iso_dataset_create_arrays(&config, (const void *const[]){x, y}, true, &out),
                 ISO_OK, "%s", iso_last_error()->message);
    return out;
}

iso_dataset *regression_arrays(int stream, int64_t count) {
    float x[100][REGRESSION_IN], y[100][REGRESSION_OUT];
    cr_assert(count <= 100);
    for (int64_t i = 0; i < count; i++) regression_sample(stream, i, x[i], y[i]);
    return regression_set(count, x[0], y[0]);
}

static iso_status add_layer(iso_module *net, iso_status made, iso_module **layer) {
    return made < 0 ? made : iso_sequential_add_take(net, NULL, *layer);
}

static iso_status build_network(iso_device *device, uint64_t seed, iso_module **out) {
    iso_rng rng = {.seed = seed};
    iso_module *net, *m = NULL;
    iso_status s = iso_sequential_create(device, &net);
    if (s >= 0) s = add_layer(net, iso_linear_create(device, REGRESSION_IN, 8, true, &rng, &m), &m);
    if (s >= 0) s = add_layer(net, iso_tanh_create(device, &m), &m);
    if (s >= 0)
        s = add_layer(net, iso_linear_create(device, 8, REGRESSION_OUT, true, &rng, &m), &m);
    *out = net;
    return s;
}

void regression_create(regression *r, iso_comm *comm, uint64_t seed) {
    iso_hyper hyper = iso_hyper_default(ISO_ADAM);
    hyper.lr = 0.01;
    *r = (regression){.comm = comm};
    iso_assert_ok(iso_device_create(test_device(), &r->device));
    iso_assert_ok(build_network(r->device, seed, &r->model));
    iso_assert_ok(iso_data_parallel_create_take(r->model, comm, NULL, &r->model));
    iso_assert_ok(iso_optimizer_create(ISO_ADAM, r->model, &hyper, &r->optimizer));
    iso_assert_ok(iso_dp_optimizer_create_take(r->optimizer, r->model, &r->optimizer));
    iso_assert_ok(iso_loss_create(r->device, ISO_MSE, &r->loss));
}

void regression_load(regression *r, iso_dataset *dataset, int64_t batch, bool shuffle,
                     iso_sampler_end end) {
    iso_sampler_config order = {.batch = batch, .seed = 4, .shuffle = shuffle, .end = end};
    iso_assert_ok(iso_data_parallel_sampler(r->model, &order));
    iso_loader_destroy(&r->loader);
    iso_assert_ok(iso_loader_create_take(r->device, dataset, &order, NULL, &r->loader));
}

void regression_destroy(regression *r) {
    iso_optimizer_destroy(&r->optimizer);
    iso_module_destroy(&r->model);
    iso_loss_destroy(&r->loss);
    iso_loader_destroy(&r->loader);
    iso_device_destroy(&r->device);
}

iso_status regression_step(regression *r, iso_tensor *input, iso_tensor *target) {
    iso_tensor *output, *gradient;
    iso_optimizer_zero_grad(r->optimizer);
    ISO_TRY(iso_module_forward(r->model, input, &output));
    ISO_TRY(iso_loss_compute_tensor(r->loss, output, target, NULL, &gradient));
    ISO_TRY(iso_module_backward(r->model, gradient, NULL));
    return iso_optimizer_step(r->optimizer);
}

static iso_status next_batch(iso_loader *loader, iso_batch *batch) {
    iso_loader_state state;
    iso_status status = iso_loader_next(loader, batch);
    if (status != ISO_PENDING) return status;
    iso_loader_get_state(loader, &state);
    ISO_TRY(iso_loader_start(loader, state.epoch + 1, 0));
    return iso_loader_next(loader, batch);
}

void regression_train(regression *r, int steps) {
    iso_loader_state state;
    iso_status status = ISO_OK;
    iso_loader_get_state(r->loader, &state);
    if (state.epoch == 0 && state.next == 0) status = iso_loader_start(r->loader, 0, 0);
    for (int s = 0; s < steps && status == ISO_OK; s++) {
        iso_batch batch;
        status = next_batch(r->loader, &batch);
        if (status == ISO_OK) status = regression_step(r, batch.inputs[0], batch.targets[0]);
    }
    iso_assert_ok(status);
}

uint64_t regression_hash(regression *r) {
    uint64_t hash = 0;
    bool equal = false;
    iso_assert_ok(iso_parameter_hash(r->model, r->comm, &hash, &equal));
    iso_assert_all(equal);
    return hash;
}

double regression_difference(regression *a, regression *b) {
    double largest = 0;
    iso_module *nets[2] = {iso_data_parallel_module(a->model), iso_data_parallel_module(b->model)};
    for (int layer = 0; layer < 3; layer += 2)
        for (int p = 0; p < 2; p++) {
            float values[2][8 * REGRESSION_IN];
            iso_tensor *value = NULL;
            for (int side = 0; side < 2; side++) {
                iso_assert_ok(iso_parameter_value(nets[side]->child[layer]->parameter[p], &value));
                iso_assert_ok(tensor_get(value, values[side]));
            }
            for (int64_t i = 0; i < iso_tensor_count(value); i++)
                largest = fmax(largest, fabs((double)values[0][i] - (double)values[1][i]));
        }
    return largest;
}
