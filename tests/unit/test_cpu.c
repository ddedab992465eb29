// SPDX-License-Identifier: MIT
// The CPU device around its kernels: choice of a set, caching, repeatability, threads, refusals.
#include "common/balance.h"
#include "common/half_values.h"
#include "device/cpu/half/cpu_half.h"
#include "device/device_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(cpu, .timeout = 60, .fini = balance_check);

#define OK(expr) cr_assert((expr) == ISO_OK, "%s: %s", #expr, iso_last_error()->message)

static const char *const sets[] = {"onednn", "cblas", "reference"};

// NULL if this build lacks the set.
static iso_device *open_set(const char *name) {
    iso_device *device;
    setenv("ISO_CPU_KERNELS", name, 1);
    return iso_device_create("cpu", &device) == ISO_OK ? device : NULL;
}

static iso_tensor *random_tensor(iso_device *device, int ndim, const int64_t *shape,
                                 iso_layout layout) {
    iso_tensor *t;
    void *host;
    OK(iso_tensor_create(device, ISO_F32, ndim, shape, &t));
    OK(iso_tensor_resize(t, ndim, shape, layout));
    OK(iso_tensor_map(t, ISO_WRITE, &host));
    for (int64_t i = 0; i < t->count; i++)
        ((float *)host)[i] = (float)(i * 7919 % 1009) / 1009 - 0.5f;
    OK(iso_tensor_unmap(t));
    return t;
}

// A step through a 3 x 3 convolution and a linear layer, into *hash over all results.
typedef struct small_net {
    iso_tensor *x, *w, *b, *y, *dw, *db, *dx, *flat, *lw, *ly, *ldw, *lb;
} small_net;

static void net_create(iso_device *device, int64_t rows, small_net *net) {
    iso_layout layout =
        device->ops->preferred_layout(device, ISO_F32, 4, (int64_t[]){rows, 32, 10, 10});
    net->x = random_tensor(device, 4, (int64_t[]){rows, 32, 12, 12}, layout);
    net->dx = random_tensor(device, 4, (int64_t[]){rows, 32, 12, 12}, layout);
    net->w = random_tensor(device, 4, (int64_t[]){48, 32, 3, 3}, ISO_LAYOUT_LOGICAL);
    net->dw = random_tensor(device, 4, (int64_t[]){48, 32, 3, 3}, ISO_LAYOUT_LOGICAL);
    net->b = random_tensor(device, 1, (int64_t[]){48}, ISO_LAYOUT_LOGICAL);
    net->db = random_tensor(device, 1, (int64_t[]){48}, ISO_LAYOUT_LOGICAL);
    net->y = random_tensor(device, 4, (int64_t[]){rows, 48, 10, 10}, layout);
    net->flat = random_tensor(device, 2, (int64_t[]){rows, 4800}, ISO_LAYOUT_LOGICAL);
    net->lw = random_tensor(device, 2, (int64_t[]){20, 4800}, ISO_LAYOUT_LOGICAL);
    net->ldw = random_tensor(device, 2, (int64_t[]){20, 4800}, ISO_LAYOUT_LOGICAL);
    net->lb = random_tensor(device, 1, (int64_t[]){20}, ISO_LAYOUT_LOGICAL);
    net->ly = random_tensor(device, 2, (int64_t[]){rows, 20}, ISO_LAYOUT_LOGICAL);
}

static void net_destroy(small_net *net) {
    iso_tensor **all = (iso_tensor **)net;
    for (size_t i = 0; i < sizeof(*net) / sizeof(iso_tensor *); i++) iso_tensor_destroy(&all[i]);
}

static uint64_t net_step(iso_device *device, small_net *net) {
    static const iso_conv2d_config c = {
        .in_channels = 32, .out_channels = 48, .kernel_size = {3, 3}};
    const iso_kernel_ops *kernels = device->kernels[ISO_F32];
    OK(kernels->conv2d_forward(device, &c, net->x, net->w, net->b, ISO_ACT_RELU, net->y));
    OK(device->ops->copy(device, net->y, net->flat));
    OK(kernels->linear_forward(device, net->flat, net->lw, NULL, net->lb, ISO_ACT_NONE, net->ly));
    OK(kernels->linear_backward_params(device, net->flat, net->ly, net->ldw, false, NULL, false));
    OK(kernels->conv2d_backward_params(device, &c, net->x, net->y, net->dw, false, net->db, false));
    OK(kernels->conv2d_backward_input(device, &c, net->y, net->w, net->dx));
    uint64_t hash = ISO_HASH_START;
    iso_tensor *results[] = {net->y, net->ly, net->ldw, net->dw, net->db};
    for (int i = 0; i < 5; i++)
        hash = iso__hash(hash, results[i]->data, (size_t)results[i]->count * sizeof(float));
    return iso__hash(hash, net->dx->data, (size_t)net->dx->count * sizeof(float));
}

Test(cpu, a_shape_seen_before_allocates_and_builds_nothing) {
    for (int i = 0; i < 3; i++) {
        iso_device *device = open_set(sets[i]);
        if (!device) continue;
        small_net whole, last; // of an epoch: its last batch is smaller
        net_create(device, 8, &whole);
        net_create(device, 3, &last);
        net_step(device, &whole);
        net_step(device, &last);
        long long built = iso_device_primitives_created(device), before, after;
        iso_memory_balance(NULL, NULL, &before);
        for (int step = 0; step < 3; step++) net_step(device, step == 1 ? &last : &whole);
        iso_memory_balance(NULL, NULL, &after);
        cr_assert(after == before, "%s allocated %lld times", sets[i], after - before);
        cr_assert(iso_device_primitives_created(device) == built);
        cr_assert(strcmp(sets[i], "onednn") != 0 || built > 0);
        net_destroy(&whole);
        net_destroy(&last);
        iso_device_destroy(&device);
    }
}

Test(cpu, results_repeat_bit_for_bit_on_another_device_object) {
    for (int i = 0; i < 3; i++) {
        uint64_t hash[2];
        for (int round = 0; round < 2; round++) {
            iso_device *device = open_set(sets[i]);
            if (!device) break;
            small_net net;
            net_create(device, 5, &net);
            hash[round] = net_step(device, &net);
            cr_assert(net_step(device, &net) == hash[round]);
            net_destroy(&net);
            iso_device_destroy(&device);
            if (round == 1) cr_assert(hash[0] == hash[1]);
        }
    }
}

Test(cpu, threads_change_the_result_by_rounding_only) {
    iso_device *device = open_set("onednn");
    if (!device) cr_skip_test("this build has no oneDNN");
    small_net net;
    net_create(device, 4, &net);
    net_step(device, &net);
    float *one = malloc((size_t)net.dw->count * sizeof(float));
    memcpy(one, net.dw->data, (size_t)net.dw->count * sizeof(float));
    OK(iso_device_set_threads(device, 2));
    cr_assert(strstr(iso_device_describe(device), "2 threads"));
    net_step(device, &net);
    for (int64_t i = 0; i < net.dw->count; i++)
        cr_assert_float_eq(((float *)net.dw->data)[i], one[i],
                           1e-3f * (1 + (one[i] < 0 ? -one[i] : one[i])));
    free(one);
    net_destroy(&net);
    iso_device_destroy(&device);
}

Test(cpu, no_threads_are_refused) {
    iso_device *device;
    OK(iso_device_create("cpu", &device));
    cr_assert(iso_device_set_threads(device, 0) == ISO_ERR_ARG);
    iso_device_destroy(&device);
}

Test(cpu, unknown_kernels_are_refused_with_the_choices) {
    iso_device *device = NULL;
    setenv("ISO_CPU_KERNELS", "fastest", 1);
    cr_assert(iso_device_create("cpu", &device) == ISO_ERR_ARG);
    cr_assert(device == NULL);
    cr_assert(strstr(iso_last_error()->message, "\"fastest\""));
    cr_assert(strstr(iso_last_error()->message, "reference"));
}

// One rank alone must not stumble over what iso_comm_create refuses on all of them.
Test(cpu, variables_that_are_not_of_the_device_are_left_to_communicators) {
    iso_device *device = NULL;
    setenv("ISO_TIMEOUT", "soon", 1);
    setenv("ISO_CUDA_CONV", "none", 1);
    cr_assert(iso_device_create("cpu", &device) == ISO_OK);
    iso_device_destroy(&device);
}

Test(cpu, unknown_devices_are_refused_with_the_known_ones) {
    iso_device *device = NULL;
    cr_assert(iso_device_create("gpu", &device) == ISO_ERR_ARG);
    cr_assert(strstr(iso_last_error()->message, "cpu, cuda"));
    cr_assert(iso_device_create(NULL, &device) == ISO_ERR_ARG);
    cr_assert(iso_device_create("cuda:", &device) == ISO_ERR_ARG);
    cr_assert(iso_device_create("cpu:1", &device) == ISO_ERR_ARG);
    cr_assert(device == NULL);
}

// ---- Conversions of 16 bits -------------------------------------------------------------------------

enum { HALVES = 1 << 16, SINGLES = 1 << 20 };

// As half.h does it, whatever instructions the processor has. All numbers of 16 bits, then floats
// whose bits lie 4099 apart, from the smallest to NaN, and of both signs.
static void convert_halves(iso_dtype type) {
    uint16_t *half = malloc(HALVES * sizeof(*half)), *back = malloc(SINGLES * sizeof(*back));
    float *wide = malloc(SINGLES * sizeof(*wide));
    for (uint32_t i = 0; i < HALVES; i++) half[i] = (uint16_t)i;
    iso__cpu_widen(type, HALVES, half, wide);
    for (uint32_t i = 0; i < HALVES; i++) {
        float want = half_float(type, i);
        bool same = iso__bits_of(wide[i]) == iso__bits_of(want);
        cr_assert(same || (isnan(wide[i]) && isnan(want)), "%x", i);
    }
    for (uint32_t i = 0; i < SINGLES; i++) wide[i] = iso__float_of(i * 4099u);
    iso__cpu_narrow(type, SINGLES - 3, wide, back);
    for (uint32_t i = 0; i < SINGLES - 3; i++)
        cr_assert(back[i] == half_bits(type, wide[i]), "%x gives %x", i * 4099u, back[i]);
    free(half), free(back), free(wide);
}
Test(cpu, bf16_is_converted_as_by_half_h) { convert_halves(ISO_BF16); }
Test(cpu, f16_is_converted_as_by_half_h) { convert_halves(ISO_F16); }

Test(cpu, other_element_types_are_refused_in_words) {
    for (int i = 0; i < 3; i++) {
        iso_device *device = open_set(sets[i]);
        if (!device) continue;
        iso_tensor *x;
        OK(iso_tensor_create(device, ISO_I32, 2, (int64_t[]){2, 3}, &x));
        cr_assert(device->kernels[ISO_I32] == NULL);
        cr_assert(iso__device_check_dtype(device, ISO_I32) == ISO_ERR_UNSUPPORTED);
        cr_assert(strstr(iso_last_error()->message, "i32"));
        cr_assert(iso_tensor_fill(x, 1) == ISO_ERR_UNSUPPORTED);
        cr_assert(strstr(iso_last_error()->message, "i32"));
        iso_tensor_destroy(&x);
        iso_device_destroy(&device);
    }
}

Test(cpu, updates_are_the_same_bits_in_pieces_and_whole) {
    iso_device *device;
    OK(iso_device_create("cpu", &device));
    float p[2][77], g[77], m[2][77];
    for (int i = 0; i < 77; i++) {
        g[i] = (float)i / 7 - 5;
        p[0][i] = p[1][i] = 1 / (float)(i + 1);
        m[0][i] = m[1][i] = (float)i / 11;
    }
    iso__sgd_args args = {.lr = 0.3f, .momentum = 0.9f, .weight_decay = 0.01f, .scale = 0.7f};
    OK(device->kernels[ISO_F32]->sgd(device, 77, &args, g, p[0], m[0]));
    // Buckets cut parameters anywhere: unaligned, and with other remainders.
    OK(device->kernels[ISO_F32]->sgd(device, 30, &args, g, p[1], m[1]));
    OK(device->kernels[ISO_F32]->sgd(device, 47, &args, g + 30, p[1] + 30, m[1] + 30));
    cr_assert(memcmp(p[0], p[1], sizeof(p[0])) == 0);
    cr_assert(memcmp(m[0], m[1], sizeof(m[0])) == 0);
    iso_device_destroy(&device);
}
