// SPDX-License-Identifier: MIT
// A small training with arrays of a GPU for tests of several ranks.
#include "common/nccl_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void nccl_setup(void) {
    setenv("ISO_EMULATED_GPUS", "4", 1);
    test_mpi_setup();
}

static const size_t count_of[NCCL_PARAMS] = {1000, 7, 64, 3000, 130, 513};
static const iso_dtype dtype_of[NCCL_PARAMS] = {ISO_F32, ISO_F32, ISO_F64,
                                                ISO_F32, ISO_F64, ISO_F32};

static double random_of(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) * 0x1p-24;
}

static double gradient_of(const nccl_variant *v, int step, int i, size_t k) {
    unsigned seed = (unsigned)(test_rank * 7919 + step * 104729 + i * 1299709 + (int)k * 15485863);
    random_of(&seed);
    double x = 2 * random_of(&seed) - 1;
    return v->exact ? floor(x * 8) / 8 : x;
}

static void fill(iso_dtype dtype, void *memory, size_t k, double x) {
    if (dtype == ISO_F64)
        ((double *)memory)[k] = x;
    else
        ((float *)memory)[k] = (float)x;
}

static iso_status give_gradient(nccl_world *w, int step, int i) {
    double memory[NCCL_MOST];
    for (size_t k = 0; k < count_of[i]; k++)
        fill(dtype_of[i], memory, k, gradient_of(&w->how, step, i, k));
    ISO_TRY(w->device->ops->from_host(w->device, memory, w->gradient[i]));
    // Enters the compute queue, as a backward would: nobody waits for it.
    return w->device->ops->copy(w->device, w->gradient[i], w->place[i]);
}

static iso_status descend(int i, void *gradient, double scale, const void *hyper, void *user) {
    nccl_world *w = user;
    (void)hyper;
    iso__sgd_args args = {.lr = 0.25, .scale = scale};
    const iso_kernel_ops *kernels = w->device->kernels[dtype_of[i]];
    return kernels->sgd(w->device, (int64_t)count_of[i], &args, gradient, w->value[i]->data, NULL);
}

// Every rank its own GPU, or all the first one.
iso_status nccl_open_device(iso_device **out) {
    char name[16], host[16];
    bool enough = iso_device_count("cuda") >= test_size;
    snprintf(name, sizeof(name), "cuda:%d", enough ? test_rank : 0);
    snprintf(host, sizeof(host), "rank%d", test_rank);
    if (!enough) setenv("NCCL_HOSTID", host, 1);
    return iso_device_create(name, out);
}

iso_status nccl_make_tensors(nccl_world *w) {
    for (int i = 0; i < NCCL_PARAMS; i++) {
        int64_t shape = (int64_t)count_of[i];
        double start[NCCL_MOST];
        for (size_t k = 0; k < count_of[i]; k++)
            fill(dtype_of[i], start, k, test_rank == 0 ? (double)(k % 13) : -1); // rank 0's hold
        ISO_TRY(iso_tensor_create(w->device, dtype_of[i], 1, &shape, &w->value[i]));
        ISO_TRY(iso_tensor_create(w->device, dtype_of[i], 1, &shape, &w->gradient[i]));
        ISO_TRY(w->device->ops->from_host(w->device, start, w->value[i]));
    }
    return ISO_OK;
}

// Again after each change of scope.
iso_status nccl_find_places(nccl_world *w) {
    for (int i = 0; i < NCCL_PARAMS; i++) {
        int64_t shape = (int64_t)count_of[i];
        iso_tensor_destroy(&w->place[i]);
        ISO_TRY(iso_tensor_borrow(w->device, dtype_of[i], 1, &shape,
                                  iso_reducer_grad(w->reducer, i), &w->place[i]));
    }
    return ISO_OK;
}

iso_status nccl_make_reducer(nccl_world *w) {
    static const char *const name[NCCL_PARAMS] = {"a.weight", "a.bias",   "b.weight",
                                                  "c.weight", "d.weight", "e.weight"};
    iso_reducer_param param[NCCL_PARAMS];
    for (int i = 0; i < NCCL_PARAMS; i++)
        param[i] = (iso_reducer_param){.name = name[i],
                                       .value = w->value[i]->data,
                                       .count = count_of[i],
                                       .dtype = dtype_of[i],
                                       .layer = i == 0 ? 0 : i - 1};
    iso_reducer_config config = {.device = w->device,
                                 .sync = w->how.sync,
                                 .scope = w->how.scope,
                                 .average = w->how.average,
                                 .split_factor = 2,
                                 .hook = w->how.hook,
                                 .bucket_bytes = 1000};
    ISO_TRY(iso_reducer_create(test_comm, param, NCCL_PARAMS, &config, &w->reducer));
    ISO_TRY(iso_reducer_set_apply(w->reducer, descend, 0, w));
    return nccl_find_places(w);
}

iso_status nccl_create(nccl_world *w, const nccl_variant *how) {
    *w = (nccl_world){.how = *how, .seed = (unsigned)test_rank * 77 + 5};
    ISO_TRY(how->gpu ? nccl_open_device(&w->device) : iso_device_create("cpu", &w->device));
    ISO_TRY(nccl_make_tensors(w));
    return nccl_make_reducer(w);
}

void nccl_destroy(nccl_world *w) {
    iso_reducer_destroy(&w->reducer);
    for (int i = 0; i < NCCL_PARAMS; i++) {
        iso_tensor_destroy(&w->place[i]);
        iso_tensor_destroy(&w->gradient[i]);
        iso_tensor_destroy(&w->value[i]);
    }
    iso_device_destroy(&w->device);
}

static void dawdle(nccl_world *w) {
    if (w->how.slow && random_of(&w->seed) < 0.3) usleep((useconds_t)(random_of(&w->seed) * 4000));
}

static iso_status backward(nccl_world *w, int step) {
    int order[NCCL_PARAMS];
    for (int i = 0; i < NCCL_PARAMS; i++) order[i] = NCCL_PARAMS - 1 - i;
    for (int i = NCCL_PARAMS - 1; w->how.slow && i > 0; i--) {
        int k = (int)(random_of(&w->seed) * (i + 1)), swapped = order[i];
        order[i] = order[k];
        order[k] = swapped;
    }
    for (int i = 0; i < NCCL_PARAMS; i++) {
        dawdle(w);
        ISO_TRY(give_gradient(w, step, order[i]));
        ISO_TRY(iso_reducer_grad_ready(w->reducer, order[i]));
    }
    return ISO_OK;
}

iso_status nccl_train_step(nccl_world *w, int step) {
    if (w->how.alone && test_rank == 0) ISO_TRY(iso_reducer_finish(w->reducer));
    for (int i = 0; i < NCCL_PARAMS; i++) {
        dawdle(w);
        ISO_TRY(iso_reducer_param_needed(w->reducer, i));
    }
    ISO_TRY(backward(w, step));
    return iso_reducer_step(w->reducer, NULL);
}

iso_status nccl_take_values(nccl_world *w, nccl_result *out) {
    memset(out->value, 0, sizeof(out->value));
    for (int i = 0; i < NCCL_PARAMS; i++) {
        double memory[NCCL_MOST];
        ISO_TRY(w->device->ops->to_host(w->device, w->value[i], memory));
        for (size_t k = 0; k < count_of[i]; k++)
            out->value[i][k] = dtype_of[i] == ISO_F64 ? memory[k] : (double)((float *)memory)[k];
    }
    iso_reducer_get_stats(w->reducer, &out->stats);
    return ISO_OK;
}

iso_status nccl_run(nccl_world *w, nccl_result *out) {
    for (int step = 0; step < NCCL_STEPS; step++) ISO_TRY(nccl_train_step(w, step));
    ISO_TRY(iso_reducer_finish(w->reducer));
    return nccl_take_values(w, out);
}

nccl_result *nccl_train(const nccl_variant *how) {
    static nccl_result results[8];
    static int used;
    nccl_result *out = &results[used++ % 8];
    nccl_world w;
    iso_assert_ok(nccl_create(&w, how));
    iso_assert_ok(nccl_run(&w, out));
    nccl_destroy(&w);
    return out;
}

bool nccl_same_bits(const nccl_result *a, const nccl_result *b) {
    return memcmp(a->value, b->value, sizeof(a->value)) == 0;
}

double nccl_distance(const nccl_result *a, const nccl_result *b) {
    double most = 0;
    for (int i = 0; i < NCCL_PARAMS; i++)
        for (size_t k = 0; k < count_of[i]; k++)
            most = fmax(most, fabs(a->value[i][k] - b->value[i][k]));
    return most;
}

bool nccl_same_on_all_ranks(const nccl_result *mine) {
    static nccl_result first;
    first = *mine;
    MPI_Bcast(first.value, (int)sizeof(first.value), MPI_BYTE, 0, MPI_COMM_WORLD);
    return nccl_same_bits(mine, &first);
}

void nccl_skip(void) {
    if (iso_device_count("cuda") == 0) test_mpi_skip("there is no CUDA GPU here");
    iso_device *device = NULL;
    iso__nccl *nccl = NULL;
    iso_status status = nccl_open_device(&device);
    if (status == ISO_OK) status = iso__nccl_create(test_comm, device, &nccl);
    iso__nccl_destroy(&nccl);
    iso_device_destroy(&device);
    if (status == ISO_ERR_UNSUPPORTED) test_mpi_skip("%s", iso_last_error()->message);
    iso_assert_ok(status);
}

const nccl_variant nccl_by_gpu = {.gpu = true, .exact = true};

// By another way: in the host's memory from the start, on the CPU.
nccl_result *nccl_train_on_cpu(const nccl_variant *how) {
    nccl_variant cpu = *how;
    cpu.gpu = cpu.slow = cpu.alone = false;
    return nccl_train(&cpu);
}

void nccl_is_exact(nccl_variant how, bool nccl) {
    const nccl_result *gpu = nccl_train(&how), *cpu = nccl_train_on_cpu(&how);
    iso_assert_all(gpu->stats.nccl == nccl);
    iso_assert_all(nccl_same_bits(gpu, cpu));
}
