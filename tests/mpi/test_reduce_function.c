// SPDX-License-Identifier: MIT
// A reduce function of the caller's where some parameters take part on one rank, or nowhere.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np2_reduce_function, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_reduce_function, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static iso_status mean(const iso_gradient *g, int count, iso_comm *comm, void *user) {
    (void)user;
    for (int i = 0; i < count; i++) {
        float *x = g[i].data;
        iso_request *request;
        iso_status status =
            iso_comm_iallreduce(comm, x, g[i].count, g[i].dtype, g[i].name, &request);
        if (status == ISO_OK) status = iso_request_wait(&request);
        if (status < 0) return status;
        for (size_t k = 0; k < g[i].count; k++) x[k] *= 1 / (float)iso_comm_size(comm);
    }
    return ISO_OK;
}
static void with_mean(iso_data_parallel_config *dp) { dp->reduce = mean; }

static double compare(const trainer_config *a, const trainer_config *b) {
    trainer ta, tb;
    double difference = 1;
    uint64_t hash;
    iso_assert_ok(trainer_create(&ta, test_comm, a));
    iso_assert_ok(trainer_create(&tb, test_comm, b));
    iso_assert_ok(trainer_train(&ta, 6));
    iso_assert_ok(trainer_train(&tb, 6));
    iso_assert_ok(trainer_hash(&ta, &hash)); // fails if ranks differ
    iso_assert_ok(trainer_difference(&ta, &tb, &difference));
    trainer_destroy(&ta);
    trainer_destroy(&tb);
    return difference;
}

// The CNN, a layer behind it that only rank 1 uses, and one that nobody does.
static iso_status partly_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                 iso_tensor **out) {
    (void)call;
    iso_tensor *x;
    iso_status status = iso_module_call(self->child[0], ISO_ACT_NONE, in, &x);
    if (status < 0 || test_rank != 1) return *out = x, status;
    return iso_module_call(self->child[1], ISO_ACT_NONE, x, out);
}
static iso_status partly_backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                  iso_tensor **grad_in) {
    (void)call;
    iso_tensor *g = grad_out;
    iso_status status = ISO_OK;
    if (test_rank == 1) status = iso_module_call_backward(self->child[1], grad_out, &g);
    return status < 0 ? status : iso_module_call_backward(self->child[0], g, grad_in);
}
static const iso_module_ops partly_ops = {
    .type = "Partly", .forward = partly_forward, .backward = partly_backward};

static iso_status build_partly(iso_device *device, bool dropout, iso_module **out) {
    static const char *const name[] = {"some", "none"};
    iso_rng rng = {.seed = 3};
    iso_module *net = calloc(1, sizeof(*net)), *m;
    iso_status status = iso_module_init(net, &partly_ops, device);
    if (status == ISO_OK) status = build_small_cnn(device, dropout, &m);
    if (status == ISO_OK) status = iso_module_add_child_take(net, "cnn", m);
    for (int i = 0; i < 2 && status == ISO_OK; i++) {
        status = iso_linear_create(device, TRAINER_CLASSES, TRAINER_CLASSES, true, &rng, &m);
        if (status == ISO_OK) status = iso_module_add_child_take(net, name[i], m);
    }
    *out = net;
    return status;
}

// What weight decay makes of the layers "some" and "none" in four steps: whether it moved them.
static void look_for_change(const trainer_config *config, bool *some, bool *none) {
    enum { COUNT = TRAINER_CLASSES * TRAINER_CLASSES };
    float before[2][COUNT];
    bool *moved[2] = {some, none};
    iso_tensor *value;
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < 2; i++) {
            iso_module *layer = iso_data_parallel_module(t.model)->child[1 + i];
            iso_assert_ok(iso_parameter_value(layer->parameter[0], &value));
            if (pass == 0) memcpy(before[i], value->data, sizeof(before[i]));
            *moved[i] = memcmp(before[i], value->data, sizeof(before[i])) != 0;
        }
        if (pass == 0) iso_assert_ok(trainer_train(&t, 4));
    }
    trainer_destroy(&t);
}

static void with_unused_parameters(void) {
    bool some, none;
    trainer_config config = trainer_default(), ours;
    config.find_unused = true;
    config.build = build_partly;
    config.hyper.weight_decay = 0.1;
    ours = config;
    config.adjust = with_mean;
    iso_assert_all(compare(&config, &ours) < 2e-6);
    look_for_change(&config, &some, &none);
    iso_assert_all(some && !none);
}

Test(np2_reduce_function, with_unused_parameters) { with_unused_parameters(); }
Test(np3_reduce_function, with_unused_parameters) { with_unused_parameters(); }
