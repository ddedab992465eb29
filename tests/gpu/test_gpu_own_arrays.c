// SPDX-License-Identifier: MIT
// Plain arrays in the memory of a GPU: gradients in arrays of the program, and an optimizer of the
// library.
#include "common/half_values.h"
#include "common/mpi_fixture.h"
#include "device/device_impl.h"

#include <isotherm/clip.h>
#include <isotherm/optim.h>

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_gpu_own_arrays, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np2_gpu_own_arrays, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);

enum { PARAMS = 3, MOST = 900, STEPS = 4 };
static const int64_t count[PARAMS] = {70, MOST, 33};

typedef struct arrays {
    iso_device *device;
    iso_tensor *value[PARAMS], *own[PARAMS], *grad[PARAMS]; // grad: where backward writes
    iso_reducer *reducer;
    iso_optimizer *optimizer;
} arrays;

// The types of the parameters.
static const iso_dtype wide[PARAMS] = {ISO_F32, ISO_F32, ISO_F64},
                       low[PARAMS] = {ISO_BF16, ISO_F16, ISO_F64};
static const iso_dtype *types = wide;
static int zero; // stage

static void put(iso_dtype type, void *data, int64_t k, double x) {
    if (type == ISO_F64)
        ((double *)data)[k] = x;
    else if (type == ISO_F32)
        ((float *)data)[k] = (float)x;
    else
        ((uint16_t *)data)[k] = half_bits(type, (float)x);
}
static double get(iso_dtype type, const void *data, int64_t k) {
    if (type == ISO_F64) return ((const double *)data)[k];
    if (type == ISO_F32) return (double)((const float *)data)[k];
    return (double)half_float(type, ((const uint16_t *)data)[k]);
}

static void fill(iso_tensor *t, double first, double step) {
    void *data;
    iso_assert_ok(iso_tensor_map(t, ISO_WRITE, &data));
    for (int64_t k = 0; k < t->count; k++) put(t->dtype, data, k, sin(first + step * (double)k));
    iso_assert_ok(iso_tensor_unmap(t));
}

static void create(arrays *a, const char *device, bool owns, iso_sync sync) {
    static const char *const name[PARAMS] = {"a", "b", "c"};
    iso_reducer_param param[PARAMS];
    *a = (arrays){0};
    iso_assert_ok(iso_device_create(device, &a->device));
    for (int i = 0; i < PARAMS; i++) {
        iso_assert_ok(iso_tensor_create(a->device, types[i], 1, &count[i], &a->value[i]));
        iso_assert_ok(iso_tensor_create(a->device, types[i], 1, &count[i], &a->own[i]));
        fill(a->value[i], i, 0.3);
        param[i] = (iso_reducer_param){.name = name[i],
                                       .value = a->value[i]->data,
                                       .count = (size_t)count[i],
                                       .dtype = types[i],
                                       .layer = i,
                                       .gradient = owns ? a->own[i]->data : NULL};
    }
    const iso_reducer_config config = {.device = a->device, .sync = sync, .zero = zero};
    iso_assert_ok(iso_reducer_create(test_comm, param, PARAMS, &config, &a->reducer));
    for (int i = 0; i < PARAMS; i++)
        iso_assert_ok(iso_tensor_borrow(a->device, owns ? types[i] : iso__gradient_type(types[i]),
                                        1, &count[i], iso_reducer_grad(a->reducer, i),
                                        &a->grad[i]));
}

static void destroy(arrays *a) {
    iso_optimizer_destroy(&a->optimizer);
    iso_reducer_destroy(&a->reducer);
    for (int i = 0; i < PARAMS; i++) {
        iso_tensor_destroy(&a->grad[i]);
        iso_tensor_destroy(&a->own[i]);
        iso_tensor_destroy(&a->value[i]);
    }
    iso_device_destroy(&a->device);
}

static void backward(arrays *a, int step, bool spoils) {
    for (int i = PARAMS - 1; i >= 0; i--) {
        fill(a->grad[i], step + 0.7 * test_rank + i, 0.1);
        iso_assert_ok(iso_reducer_grad_ready(a->reducer, i));
        if (spoils) iso_assert_ok(iso_tensor_fill(a->own[i], NAN)); // it is the program's again
    }
}

// The first `count` values of each parameter, as doubles.
static void read_all(iso_tensor *const *tensor, double out[PARAMS][MOST]) {
    memset(out, 0, PARAMS * sizeof(out[0]));
    for (int i = 0; i < PARAMS; i++) {
        void *data;
        iso_assert_ok(iso_tensor_map(tensor[i], ISO_READ, &data));
        for (int64_t k = 0; k < count[i]; k++) out[i][k] = get(types[i], data, k);
        iso_assert_ok(iso_tensor_unmap(tensor[i]));
    }
}

static void train(const char *device, bool owns, iso_sync sync, double out[PARAMS][MOST]) {
    arrays a;
    create(&a, device, owns, sync);
    iso_assert_ok(iso_reducer_set_optimizer(a.reducer, ISO_ADAMW, NULL, NULL, 0, &a.optimizer));
    for (int step = 0; step < STEPS; step++) {
        double norm = 0;
        for (int i = 0; i < PARAMS; i++) iso_assert_ok(iso_reducer_param_needed(a.reducer, i));
        backward(&a, step, owns);
        if (step == 1) iso_assert_ok(iso_reducer_clip_grad_norm(a.reducer, 1, 2, &norm));
        iso_assert_all(step != 1 || norm > 1);
        iso_assert_ok(iso_optimizer_step(a.optimizer));
    }
    iso_assert_ok(iso_reducer_finish(a.reducer));
    read_all(a.value, out);
    destroy(&a);
}

static double distance(double a[PARAMS][MOST], double b[PARAMS][MOST]) {
    double worst = 0;
    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k < MOST; k++) worst = fmax(worst, fabs(a[i][k] - b[i][k]));
    return worst;
}

static void need_gpu(void) {
    if (iso_device_count("cuda") == 0) test_mpi_skip("there is no GPU, or no CUDA in this build");
}

static void own_gradients_give_the_same_bits(void) {
    static double plain[PARAMS][MOST], own[PARAMS][MOST], cpu[PARAMS][MOST];
    need_gpu();
    train("cuda", false, ISO_SYNC_BLOCKING, plain);
    train("cuda", true, ISO_SYNC_LAZY, own);
    iso_assert_all(memcmp(plain, own, sizeof(own)) == 0);
    train("cpu", true, ISO_SYNC_LAZY, cpu);
    iso_assert_all(distance(cpu, own) < 1e-5 && distance(cpu, own) >= 0);
}
Test(np1_gpu_own_arrays, give_the_same_bits) { own_gradients_give_the_same_bits(); }
Test(np2_gpu_own_arrays, give_the_same_bits) { own_gradients_give_the_same_bits(); }

Test(np2_gpu_own_arrays, averages_come_back) {
    static double got[PARAMS][MOST];
    arrays a;
    need_gpu();
    create(&a, "cuda", true, ISO_SYNC_LAZY);
    backward(&a, 0, true);
    iso_assert_ok(iso_reducer_finish(a.reducer));
    read_all(a.own, got);
    double worst = 0;
    for (int i = 0; i < PARAMS; i++)
        for (int64_t k = 0; k < count[i]; k++) {
            double mean = (sin(i + 0.1 * (double)k) + sin(0.7 + i + 0.1 * (double)k)) / 2;
            worst = fmax(worst, isnan(got[i][k]) ? INFINITY : fabs(got[i][k] - mean));
        }
    iso_assert_all(worst < 1e-6);
    destroy(&a);
}

// ---- 16 bits ----------------------------------------------------------------------------------------

static void averages(const char *device, double out[PARAMS][MOST]) {
    arrays a;
    create(&a, device, true, ISO_SYNC_LAZY);
    backward(&a, 0, false);
    iso_assert_ok(iso_reducer_finish(a.reducer));
    read_all(a.own, out);
    destroy(&a);
}

// Sums of f32 that are rounded once are the same on any device. Steps are near: GPUs fuse products
// and sums of updates.
static void of_16_bits_as_on_the_cpu(void) {
    static double gpu[PARAMS][MOST], lazy[PARAMS][MOST], cpu[PARAMS][MOST];
    need_gpu();
    types = low;
    averages("cuda", gpu);
    averages("cpu", cpu);
    iso_assert_all(memcmp(gpu, cpu, sizeof(cpu)) == 0);
    for (int owns = 0; owns < 2; owns++) {
        train("cuda", owns, ISO_SYNC_BLOCKING, gpu);
        train("cuda", owns, ISO_SYNC_LAZY, lazy);
        iso_assert_all(memcmp(gpu, lazy, sizeof(lazy)) == 0);
        zero = 1;
        train("cuda", owns, ISO_SYNC_LAZY, lazy);
        zero = 0;
        iso_assert_all(owns || memcmp(gpu, lazy, sizeof(lazy)) == 0);
        iso_assert_all(distance(gpu, lazy) < 0.01);
        train("cpu", owns, ISO_SYNC_LAZY, cpu);
        iso_assert_all(distance(cpu, gpu) < 0.01);
    }
}
Test(np1_gpu_own_arrays, of_16_bits_are_those_of_the_cpu) { of_16_bits_as_on_the_cpu(); }
Test(np2_gpu_own_arrays, of_16_bits_are_those_of_the_cpu) { of_16_bits_as_on_the_cpu(); }

// Writes NaN to an array as kernels of the program do: in another queue, without the library.
static void spoil_aside(arrays *a, int i, uint16_t *pinned, iso__device_event *event) {
    const iso__remote_ops *remote = a->device->ops->remote;
    size_t bytes = (size_t)count[i] * iso_dtype_size(types[i]);
    iso_status status;
    memset(pinned, 0xff, bytes);
    iso_assert_ok(remote->copy(a->device, ISO__QUEUE_IN, pinned, a->own[i]->data, bytes));
    iso_assert_ok(remote->record(a->device, ISO__QUEUE_IN, event));
    while ((status = remote->test(a->device, event)) == ISO_PENDING) continue;
    iso_assert_ok(status);
}

// Once graphs are recorded, a device holds launches back.
Test(np1_gpu_own_arrays, of_16_bits_are_taken_when_they_are_reported) {
    static double got[PARAMS][MOST];
    arrays a;
    void *pinned;
    iso__device_event *event;
    need_gpu();
    types = low;
    create(&a, "cuda", true, ISO_SYNC_LAZY);
    iso_assert_ok(iso__pinned_alloc(a.device, MOST * sizeof(double), &pinned));
    iso_assert_ok(a.device->ops->remote->event_create(a.device, &event));
    for (int step = 0; step < 12; step++) {
        for (int i = PARAMS - 1; i >= 0; i--) {
            fill(a.grad[i], i, 0.1);
            iso_assert_ok(iso_reducer_grad_ready(a.reducer, i));
            if (step > 8) spoil_aside(&a, i, pinned, event);
        }
        iso_assert_ok(iso_reducer_finish(a.reducer));
    }
    read_all(a.own, got);
    bool right = true;
    for (int i = 0; i < 2; i++)
        for (int64_t k = 0; k < count[i]; k++)
            right = right && got[i][k] == (double)half_float(
                                              types[i],
                                              half_bits(types[i], (float)sin(i + 0.1 * (double)k)));
    iso_assert_all(right);
    a.device->ops->remote->event_destroy(a.device, &event);
    iso__pinned_free(a.device, pinned);
    destroy(&a);
}

// Of gradients that the program rounded: the norm, and what it makes of them.
static void clipped(const char *device, double out[PARAMS][MOST], double *norm) {
    arrays a;
    create(&a, device, true, ISO_SYNC_LAZY);
    backward(&a, 0, false);
    iso_assert_ok(iso_reducer_finish(a.reducer));
    iso_assert_ok(iso_reducer_clip_grad_norm(a.reducer, 1, 2, norm));
    read_all(a.own, out);
    destroy(&a);
}

Test(np2_gpu_own_arrays, of_16_bits_are_clipped) {
    static double gpu[PARAMS][MOST], cpu[PARAMS][MOST];
    double of_gpu = 0, of_cpu = 0;
    need_gpu();
    types = low;
    for (zero = 0; zero < 2; zero++) {
        clipped("cuda", gpu, &of_gpu);
        clipped("cpu", cpu, &of_cpu);
        iso_assert_all(of_cpu > 10 && fabs(of_gpu / of_cpu - 1) < 1e-9);
        iso_assert_all(memcmp(gpu[0], cpu[0], sizeof(gpu[0])) == 0 &&
                       memcmp(gpu[1], cpu[1], sizeof(gpu[1])) == 0);
    }
}

// Small updates add up in the master weights, though each alone leaves the 16-bit value as it is. A
// value that the program writes is where the next update begins.
Test(np2_gpu_own_arrays, master_weights_keep_small_updates) {
    static double before[PARAMS][MOST], after[PARAMS][MOST];
    const int steps = 40;
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    arrays a;
    need_gpu();
    types = low;
    hyper.lr = 0x1p-14;
    create(&a, "cuda", false, ISO_SYNC_LAZY);
    for (int i = 0; i < PARAMS; i++) iso_assert_ok(iso_tensor_fill(a.value[i], 1));
    iso_assert_ok(iso_reducer_set_optimizer(a.reducer, ISO_SGD, &hyper, NULL, 0, &a.optimizer));
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < PARAMS; i++) iso_assert_ok(iso_reducer_param_needed(a.reducer, i));
        if (step == 1) read_all(a.value, before);
        if (step == steps / 2) iso_assert_ok(iso_tensor_fill(a.value[0], 3));
        for (int i = PARAMS - 1; i >= 0; i--) {
            iso_assert_ok(iso_tensor_fill(a.grad[i], 4)); // 2^-12 a step
            iso_assert_ok(iso_reducer_grad_ready(a.reducer, i));
        }
        iso_assert_ok(iso_optimizer_step(a.optimizer));
    }
    iso_assert_ok(iso_reducer_finish(a.reducer));
    read_all(a.value, after);
    iso_assert_all(before[0][5] == 1); // 1 - 2^-12 is no bf16
    iso_assert_all(after[0][5] ==
                   (double)half_float(ISO_BF16, half_bits(ISO_BF16, 3 - 20 * 0x1p-12f)));
    iso_assert_all(after[1][5] ==
                   (double)half_float(ISO_F16, half_bits(ISO_F16, 1 - 40 * 0x1p-12f)));
    iso_assert_all(after[2][5] == 1 - 40 * 0x1p-12);
    destroy(&a);
}

Test(np1_gpu_own_arrays, gradient_in_other_memory_is_refused) {
    static float here[64];
    iso_reducer *r = NULL;
    iso_tensor *there;
    iso_reducer_config config = {0};
    need_gpu();
    iso_assert_ok(iso_device_create("cuda", &config.device));
    iso_assert_ok(iso_tensor_create(config.device, ISO_F32, 1, (int64_t[]){64}, &there));
    const iso_reducer_param param = {
        .name = "there", .value = there->data, .count = 64, .dtype = ISO_F32, .gradient = here};
    cr_assert_eq(iso_reducer_create(test_comm, &param, 1, &config, &r), ISO_ERR_ARG);
    cr_expect(strstr(iso_last_error()->message, "the gradient of parameter \"there\""));
    iso_tensor_destroy(&there);
    iso_device_destroy(&config.device);
}
