// SPDX-License-Identifier: MIT
// Several inputs and outputs on a GPU: an Autocast converts each of them, and indices pass it.
#include "common/balance.h"
#include "common/autocast_fixture.h"
#include "nn/nn_impl.h"

#include <stdlib.h>

TestSuite(gpu_tuples, .timeout = 120, .fini = balance_check);

enum { ROWS = 6, IN = 8, OUT = 5 };

// A linear layer in each branch, of other values.
static iso_module *new_branches(iso_device *device, iso_module *first, iso_module *second) {
    iso_module *branches;
    OK(iso_branches_create(device, &branches));
    OK(iso_branches_add_take(branches, "first", first));
    OK(iso_branches_add_take(branches, "second", second));
    return branches;
}

static iso_tensor *copy_of(iso_tensor *x) {
    iso_tensor *copy;
    OK(iso_tensor_create(x->device, x->dtype, x->ndim, x->shape, &copy));
    OK(iso_tensor_copy(x, copy));
    return copy;
}

// Under one Autocast, each branch computes what it computes under an Autocast of its own.
Test(gpu_tuples, autocast_converts_each_tensor) {
    target on = {.device = open_cuda(), .dtype = ISO_F32};
    on.kernels = on.device->kernels[ISO_F32];
    iso_module *linear[2], *alone[2];
    pair x[2], dy[2];
    iso_tensors in = {.count = 2}, g = {.count = 2}, out, dx;
    for (int i = 0; i < 2; i++) {
        linear[i] = new_linear(on.device, IN, OUT, (uint64_t)(3 + i));
        alone[i] = with_autocast(new_linear(on.device, IN, OUT, (uint64_t)(3 + i)), ISO_BF16);
        x[i] = pair_2d(&on, ROWS, IN);
        dy[i] = pair_2d(&on, ROWS, OUT);
        in.item[i] = x[i].t;
        g.item[i] = copy_of(dy[i].t);
    }
    iso_module *net = with_autocast(new_branches(on.device, linear[0], linear[1]), ISO_BF16);
    OK(iso_module_forward_many(net, &in, &out));
    cr_assert_eq(net->child[0]->call[0]->many->in.item[1]->dtype, ISO_BF16);
    OK(iso_module_backward_many(net, &g, ISO_WANT_ALL, &dx));
    for (int i = 0; i < 2; i++) {
        iso_tensor *y, *grad_in;
        OK(iso_module_forward(alone[i], x[i].t, &y));
        cr_assert(same_bits(out.item[i], y), "output %d", i);
        OK(iso_module_backward(alone[i], dy[i].t, &grad_in));
        cr_assert(same_bits(dx.item[i], grad_in), "gradient of input %d", i);
        cr_assert(same_bits(linear[i]->parameter[0]->grad, alone[i]->child[0]->parameter[0]->grad));
    }
    for (int i = 0; i < 2; i++) {
        iso_tensor_destroy(&g.item[i]);
        pair_destroy(&x[i]), pair_destroy(&dy[i]);
        iso_module_destroy(&alone[i]);
    }
    iso_module_destroy(&net);
    iso_device_destroy(&on.device);
}

static iso_status pass_on(iso_module *self, iso_call *call, const iso_tensors *in,
                          iso_tensors *out) {
    (void)self, (void)call;
    *out = *in;
    return ISO_OK;
}
static const iso_module_ops passing_ops = {.type = "Passing",
                                           .forward_many = pass_on,
                                           .takes_half = true,
                                           .takes_indices = true,
                                           .inputs = 1};

Test(gpu_tuples, autocast_passes_indices) {
    target on = {.device = open_cuda(), .dtype = ISO_F32};
    on.kernels = on.device->kernels[ISO_F32];
    iso_module *passing = calloc(1, sizeof(*passing));
    OK(iso_module_init(passing, &passing_ops, on.device));
    iso_module *net = with_autocast(
        new_branches(on.device, passing, new_linear(on.device, IN, OUT, 3)), ISO_BF16);
    pair x = pair_2d(&on, ROWS, IN), dy = pair_2d(&on, ROWS, OUT);
    iso_tensors in = {.count = 2, .item = {NULL, x.t}}, out, dx;
    iso_tensors g = {.count = 2, .item = {NULL, dy.t}}, indices = {.count = 1};
    OK(iso_tensor_create(on.device, ISO_I64, 1, (int64_t[]){ROWS}, &in.item[0]));
    OK(iso_module_forward_many(net, &in, &out));
    cr_assert(out.item[0] == in.item[0] && out.item[1]->dtype == ISO_F32);
    OK(iso_module_backward_many(net, &g, ISO_WANT_ALL, &dx));
    cr_assert(!dx.item[0] && dx.item[1]->dtype == ISO_F32);
    indices.item[0] = in.item[0];
    cr_assert_eq(iso_module_forward_many(net, &indices, &out), ISO_ERR_TYPE); // nothing to convert
    iso_tensor_destroy(&in.item[0]);
    pair_destroy(&x), pair_destroy(&dy);
    iso_module_destroy(&net);
    iso_device_destroy(&on.device);
}
