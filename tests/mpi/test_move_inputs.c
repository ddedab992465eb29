// SPDX-License-Identifier: MIT
// Data-parallel training from inputs on another device than the module's: the bits of inputs that
// are there, and no allocation once every shape was seen. And modules that move before they are
// wrapped. Every pair of devices; two CPU devices are two.
#include "common/mpi_fixture.h"
#include "common/nn_fixture.h"

#include <isotherm/optim.h>
#include <string.h>

TestSuite(np1_move_inputs, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np2_move_inputs, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);

__attribute__((weak)) size_t emulated_mallocs(void);

static const char *const kinds[] = {"cpu", "cuda"};
static int kind_count(void) { return iso_device_count("cuda") > 0 ? 2 : 1; }

// ---- A training -----------------------------------------------------------------------------------

typedef struct run {
    iso_device *device, *other; // of the module; of its inputs, NULL: the same
    iso_module *model;
    iso_optimizer *optimizer;
    iso_tensors in[2], grad_out; // batches of two sizes
    int count;                   // of inputs and of outputs
} run;

static iso_module *new_linear(iso_device *device, int64_t in, int64_t out) {
    iso_rng rng = {.seed = (uint64_t)(in + 10 * out)};
    iso_module *m;
    cr_ok(iso_linear_create(device, in, out, true, &rng, &m));
    return m;
}

static iso_module *new_tower(iso_device *device, int64_t in) {
    iso_rng rng = {.seed = (uint64_t)in};
    iso_module *net, *m;
    cr_ok(iso_sequential_create(device, &net));
    cr_ok(iso_sequential_add_take(net, "fc1", new_linear(device, in, 8)));
    cr_ok(iso_dropout_create(device, 0.25, &rng, &m));
    cr_ok(iso_sequential_add_take(net, "drop", m));
    cr_ok(iso_sequential_add_take(net, "fc2", new_linear(device, 8, 3)));
    return net;
}

// A tower, or two side by side.
static iso_module *new_net(iso_device *device, int count) {
    iso_module *net;
    if (count == 1) return new_tower(device, 4);
    cr_ok(iso_branches_create(device, &net));
    for (int i = 0; i < count; i++)
        cr_ok(iso_branches_add_take(net, NULL, new_tower(device, 4 + i)));
    return net;
}

static void wrap_net(run *r, iso_module *net, iso_sync sync) {
    iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
    iso_optimizer *inner;
    config.sync = sync;
    iso_assert_ok(iso_data_parallel_create_take(net, test_comm, &config, &r->model));
    cr_ok(iso_optimizer_create(ISO_ADAM, r->model, NULL, &inner));
    iso_assert_ok(iso_dp_optimizer_create_take(inner, r->model, &r->optimizer));
}

// Of two inputs the second one is on the module's device.
static void make_inputs(run *r) {
    for (int b = 0; b < 2; b++) {
        r->in[b].count = r->count;
        for (int i = 0; i < r->count; i++) {
            iso_device *device = r->other && i == 0 ? r->other : r->device;
            r->in[b].item[i] = random_tensor(device, 2, (int64_t[]){3 + b, 4 + i},
                                             (uint64_t)(test_rank + 10 * b + 100 * i));
        }
    }
}

static run create_run(const char *device, const char *other, int count, iso_sync sync) {
    run r = {.count = count};
    cr_ok(iso_device_create(device, &r.device));
    if (other) cr_ok(iso_device_create(other, &r.other));
    wrap_net(&r, new_net(r.device, count), sync);
    make_inputs(&r);
    return r;
}

static void destroy_run(run *r) {
    iso_optimizer_destroy(&r->optimizer);
    iso_module_destroy(&r->model);
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < r->count; i++) iso_tensor_destroy(&r->in[b].item[i]);
    iso_device_destroy(&r->device);
    if (r->other) iso_device_destroy(&r->other);
}

// The outputs are their own gradients: copied, because backward consumes these.
static void take_gradients(iso_tensors *out, iso_tensors *grad) {
    for (int i = 0; i < out->count; i++) {
        iso_tensor *y = out->item[i], **slot = &grad->item[i];
        if (i < grad->count)
            cr_ok(iso_tensor_resize(*slot, 2, iso_tensor_shape(y), ISO_LAYOUT_LOGICAL));
        else
            cr_ok(iso_tensor_create(iso_tensor_device(y), ISO_F32, 2, iso_tensor_shape(y), slot));
        cr_ok(iso_tensor_copy(y, *slot));
    }
    grad->count = out->count;
}

static void train(run *r, int steps) {
    for (int step = 0; step < steps; step++) {
        iso_tensors out;
        iso_optimizer_zero_grad(r->optimizer);
        cr_ok(iso_module_forward_many(r->model, &r->in[step % 2], &out));
        take_gradients(&out, &r->grad_out);
        cr_ok(iso_module_backward_many(r->model, &r->grad_out, 0, NULL));
        cr_ok(iso_optimizer_step(r->optimizer));
    }
}

static uint64_t finish_run(run *r) {
    uint64_t hash = 0;
    bool equal = false;
    iso_assert_ok(iso_parameter_hash(r->model, test_comm, &hash, &equal));
    iso_assert_all(equal);
    for (int i = 0; i < r->grad_out.count; i++) iso_tensor_destroy(&r->grad_out.item[i]);
    destroy_run(r);
    return hash;
}

// ---- Inputs -----------------------------------------------------------------------------------------

static void compare_bits(int count, iso_sync sync) {
    for (int i = 0; i < kind_count(); i++) {
        run here = create_run(kinds[i], NULL, count, sync);
        train(&here, 6);
        uint64_t expected = finish_run(&here);
        for (int j = 0; j < kind_count(); j++) {
            run r = create_run(kinds[i], kinds[j], count, sync);
            train(&r, 6);
            iso_assert_all(finish_run(&r) == expected);
        }
    }
}

static void compare_all(void) {
    compare_bits(1, ISO_SYNC_LAZY);
    compare_bits(2, ISO_SYNC_LAZY);
    compare_bits(2, ISO_SYNC_BLOCKING);
}
Test(np1_move_inputs, from_elsewhere_give_the_bits_of_inputs_there) { compare_all(); }
Test(np2_move_inputs, from_elsewhere_give_the_bits_of_inputs_there) { compare_all(); }

Test(np2_move_inputs, are_moved_without_allocation) {
    for (int i = 0; i < kind_count(); i++)
        for (int j = 0; j < kind_count(); j++) {
            run r = create_run(kinds[i], kinds[j], 2, ISO_SYNC_LAZY);
            long long before, after;
            train(&r, 12); // until the order of messages was planned
            size_t blocks = emulated_mallocs ? emulated_mallocs() : 0;
            iso_memory_balance(NULL, NULL, &before);
            train(&r, 10);
            iso_memory_balance(NULL, NULL, &after);
            iso_assert_all(after == before);
            iso_assert_all(!emulated_mallocs || emulated_mallocs() == blocks);
            finish_run(&r);
        }
}

static iso_status replace_input(iso_module *model, iso_tensor **in, void *user) {
    (void)model;
    *in = user;
    return ISO_OK;
}

// Gradients of inputs are on the module's device. What a hook puts in place of one is moved, too.
Test(np1_move_inputs, have_gradients_on_the_device_of_the_module) {
    for (int i = 0; i < kind_count(); i++)
        for (int j = 0; j < kind_count(); j++) {
            run r = create_run(kinds[i], kinds[j], 1, ISO_SYNC_LAZY);
            iso_tensors out, grad_in;
            iso_tensor *first, *second;
            cr_ok(iso_module_train(r.model, false));
            cr_ok(iso_module_forward_many(r.model, &r.in[0], &out));
            cr_assert(iso_tensor_device(out.item[0]) == r.device);
            first = iso_tensor_retain(out.item[0]);
            cr_ok(iso_tensor_create(r.device, ISO_F32, 2, (int64_t[]){3, 3}, &second));
            cr_ok(iso_tensor_copy(first, second));
            cr_ok(iso_data_parallel_add_before_forward(r.model, replace_input, r.in[0].item[0],
                                                       NULL));
            cr_ok(iso_module_forward_many(r.model, &r.in[1], &out));
            cr_assert(same_values(out.item[0], second));
            cr_ok(iso_module_train(r.model, true));
            cr_ok(iso_module_forward_many(r.model, &r.in[0], &out));
            take_gradients(&out, &r.grad_out);
            cr_ok(iso_module_backward_many(r.model, &r.grad_out, ISO_WANT_ALL, &grad_in));
            cr_assert(iso_tensor_device(grad_in.item[0]) == r.device);
            iso_tensor_destroy(&first);
            iso_tensor_destroy(&second);
            finish_run(&r);
        }
}

// ---- Modules ----------------------------------------------------------------------------------------

static void move_and_wrap(const char *from, const char *to) {
    run made = create_run(to, NULL, 1, ISO_SYNC_LAZY), r = {.count = 1};
    iso_device *home;
    cr_ok(iso_device_create(from, &home));
    cr_ok(iso_device_create(to, &r.device));
    iso_module *net = new_net(home, 1);
    cr_ok(iso_module_to_device(net, r.device));
    iso_module_retain(net);
    wrap_net(&r, net, ISO_SYNC_LAZY);
    make_inputs(&r);
    train(&made, 5);
    train(&r, 5);
    cr_fails(iso_module_to_device(r.model, home), ISO_ERR_STATE, "once it is wrapped");
    cr_fails(iso_module_to_device(net, home), ISO_ERR_STATE, "once it is wrapped");
    cr_ok(iso_module_to_device(r.model, r.device)); // it is there
    iso_assert_all(finish_run(&made) == finish_run(&r));
    cr_ok(iso_module_to_device(net, home)); // it is free again
    iso_tensor *x = random_tensor(home, 2, (int64_t[]){3, 4}, 1), *y;
    cr_ok(iso_module_forward(net, x, &y));
    iso_tensor_destroy(&x);
    iso_module_destroy(&net);
    iso_device_destroy(&home);
}

static void move_all(void) {
    for (int i = 0; i < kind_count(); i++)
        for (int j = 0; j < kind_count(); j++) move_and_wrap(kinds[i], kinds[j]);
}
Test(np1_move_inputs, a_moved_module_trains_as_one_made_there) { move_all(); }
Test(np2_move_inputs, a_moved_module_trains_as_one_made_there) { move_all(); }
