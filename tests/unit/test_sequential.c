// SPDX-License-Identifier: MIT
// What a Sequential fuses gives the bits that the layers give one by one.
#include "common/balance.h"

#include <criterion/criterion.h>
#include <isotherm.h>
#include <string.h>

TestSuite(sequential, .timeout = 60, .fini = balance_check);

#define OK(expr) cr_assert((expr) == ISO_OK, "%s: %s", #expr, iso_last_error()->message)

// ---- A layer that does nothing, and so keeps its neighbours apart ------------------------------------

static iso_status nothing_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                  iso_tensor **out) {
    (void)self, (void)call;
    *out = in;
    return ISO_OK;
}

static iso_status nothing_backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                   iso_tensor **grad_in) {
    (void)self, (void)call;
    *grad_in = grad_out;
    return ISO_OK;
}

static const iso_module_ops nothing_ops = {
    .type = "Nothing", .forward = nothing_forward, .backward_input = nothing_backward};

static void add(iso_module *to, const char *name, iso_module *child) {
    OK(iso_sequential_add_take(to, name, child));
}

static void add_nothing(iso_module *to, const char *name, bool wanted) {
    if (!wanted) return;
    iso_module *child = calloc(1, sizeof(*child));
    OK(iso_module_init(child, &nothing_ops, to->device));
    add(to, name, child);
}

// ---- Networks ---------------------------------------------------------------------------------------

// conv, relu, max-pool, conv, relu, max-pool, flatten, linear, relu
static iso_module *build(iso_device *device, bool apart) {
    iso_module *net, *child;
    iso_rng rng = {.seed = 5};
    OK(iso_sequential_create(device, &net));
    for (int i = 0; i < 2; i++) {
        iso_conv2d_config conv = {
            .in_channels = i ? 20 : 1, .out_channels = 20, .kernel_size = {3, 3}};
        OK(iso_conv2d_create(device, &conv, &rng, &child));
        add(net, i ? "conv2" : "conv1", child);
        add_nothing(net, i ? "a2" : "a1", apart);
        OK(iso_relu_create(device, &child));
        add(net, i ? "relu2" : "relu1", child);
        add_nothing(net, i ? "b2" : "b1", apart);
        OK(iso_max_pool2d_create(device, 3, 2, &child)); // windows overlap
        add(net, i ? "pool2" : "pool1", child);
    }
    OK(iso_flatten_create(device, &child));
    add(net, "flatten", child);
    OK(iso_linear_create(device, 20 * 2 * 2, 10, true, &rng, &child));
    add(net, "fc", child);
    add_nothing(net, "c", apart);
    OK(iso_relu_create(device, &child));
    add(net, "relu3", child);
    return net;
}

static uint64_t hash_of(iso_tensor *x) {
    float *data;
    OK(iso_tensor_map(x, ISO_READ, (void **)&data));
    uint64_t hash = 1469598103934665603u; // FNV-1a
    for (int64_t i = 0; i < iso_tensor_count(x); i++) {
        uint32_t bits;
        memcpy(&bits, &data[i], 4);
        hash = (hash ^ bits) * 1099511628211u;
    }
    OK(iso_tensor_unmap(x));
    return hash;
}

// Hashes of the output, the input's gradient and the gradients of all parameters.
static int run(iso_module *net, uint64_t *hashes) {
    int64_t shape[] = {6, 1, 20, 20};
    iso_tensor *x, *out, *grad, *grad_in;
    float *data;
    int n = 0;
    OK(iso_tensor_create(net->device, ISO_F32, 4, shape, &x));
    OK(iso_tensor_map(x, ISO_WRITE, (void **)&data));
    for (int i = 0; i < 2400; i++) data[i] = (float)(i * 7919 % 1009) / 504 - 1;
    OK(iso_tensor_unmap(x));
    OK(iso_module_forward(net, x, &out));
    hashes[n++] = hash_of(out);
    OK(iso_tensor_create(net->device, ISO_F32, 2, (int64_t[]){6, 10}, &grad));
    OK(iso_tensor_map(grad, ISO_WRITE, (void **)&data));
    for (int i = 0; i < 60; i++) data[i] = (float)(i % 7) - 3;
    OK(iso_tensor_unmap(grad));
    OK(iso_module_backward(net, grad, &grad_in));
    hashes[n++] = hash_of(grad_in);
    iso_parameter_list list;
    OK(iso_module_parameters(net, &list));
    for (int i = 0; i < list.count; i++) hashes[n++] = hash_of(list.item[i]->grad);
    iso_parameter_list_destroy(&list);
    iso_tensor_destroy(&x);
    iso_tensor_destroy(&grad);
    return n;
}

Test(sequential, fusing_changes_no_bit) {
    static const char *const sets[] = {"onednn", "cblas", "reference"};
    for (int i = 0; i < 3; i++) {
        iso_device *device;
        setenv("ISO_CPU_KERNELS", sets[i], 1);
        if (iso_device_create("cpu", &device) != ISO_OK) continue;
        iso_module *fused = build(device, false), *apart = build(device, true);
        uint64_t a[16], b[16];
        int n = run(fused, a);
        cr_assert(n == 8 && run(apart, b) == n);
        for (int k = 0; k < n; k++) cr_assert(a[k] == b[k], "%s: result %d differs", sets[i], k);
        iso_module_destroy(&fused);
        iso_module_destroy(&apart);
        iso_device_destroy(&device);
    }
}
