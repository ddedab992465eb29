// SPDX-License-Identifier: MIT
// What was saved on a GPU is loaded on the CPU to the same bits, and the other way.
#include "common/mpi_fixture.h"
#include "common/nn_fixture.h"
#include "common/resume_fixture.h"
#include "common/scratch.h"
#include "tensor/tensor_impl.h"

#include <isotherm/reducer.h>
#include <isotherm/state_dict.h>
#include <string.h>

TestSuite(np1_gpu_move, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

static void need_gpu(void) {
    iso_device *device;
    if (iso_device_create("cuda", &device) != ISO_OK)
        test_mpi_skip("no GPU can be used: %s", iso_last_error()->message);
    iso_device_destroy(&device);
}

static const char *const devices[] = {"cpu", "cuda"};

// ---- A training -----------------------------------------------------------------------------------

typedef struct training {
    iso_device *device;
    iso_module *model;
    iso_optimizer *optimizer;
} training;

// With buffers: statistics, and a count of another type.
static const iso_layer layers[] = {
    {.kind = ISO_CONV2D, .out = 3, .size = 3, .name = "conv"},
    {.kind = ISO_BATCH_NORM, .relu = true, .name = "bn"},
    {.kind = ISO_FLATTEN, .name = "flatten"},
    {.kind = ISO_LINEAR, .out = 5, .name = "fc"},
};

static training create(const char *device, uint64_t seed) {
    training t;
    iso_rng rng = {.seed = seed};
    cr_ok(iso_device_create(device, &t.device));
    cr_ok(iso_sequential_build(t.device, (int64_t[]){2, 6, 6}, layers, 4, &rng, &t.model));
    cr_ok(iso_optimizer_create(ISO_ADAM, t.model, NULL, &t.optimizer));
    return t;
}

static void destroy(training *t) {
    iso_optimizer_destroy(&t->optimizer);
    iso_module_destroy(&t->model);
    iso_device_destroy(&t->device);
}

static void train(training *t, int steps) {
    for (int step = 0; step < steps; step++) {
        iso_tensor *x = random_tensor(t->device, 4, (int64_t[]){4, 2, 6, 6}, (uint64_t)step), *y;
        iso_tensor *dy = random_tensor(t->device, 2, (int64_t[]){4, 5}, (uint64_t)(step + 50));
        iso_optimizer_zero_grad(t->optimizer);
        cr_ok(iso_module_forward(t->model, x, &y));
        cr_ok(iso_module_backward(t->model, dy, NULL));
        cr_ok(iso_optimizer_step(t->optimizer));
        iso_tensor_destroy(&x);
        iso_tensor_destroy(&dy);
    }
}

static bool same_bytes(iso_tensor *a, iso_tensor *b) {
    void *x, *y;
    cr_ok(iso_tensor_map(a, ISO_READ, &x));
    cr_ok(iso_tensor_map(b, ISO_READ, &y));
    size_t bytes = (size_t)iso_tensor_count(a) * iso_dtype_size(iso_tensor_dtype(a));
    bool same = iso_tensor_count(a) == iso_tensor_count(b) && memcmp(x, y, bytes) == 0;
    cr_ok(iso_tensor_unmap(a));
    cr_ok(iso_tensor_unmap(b));
    return same;
}

static int different(const iso_state_dict *a, const iso_state_dict *b) {
    int count = 0;
    cr_assert(a->count == b->count && a->count > 0);
    for (int i = 0; i < a->count; i++) {
        cr_assert_str_eq(a->item[i].name, b->item[i].name);
        count += !same_bytes(a->item[i].tensor, b->item[i].tensor);
    }
    return count;
}

// Entries of both state_dicts in which two trainings differ.
static int differences(training *a, training *b) {
    iso_state_dict x, y;
    cr_ok(iso_module_state_dict(a->model, &x));
    cr_ok(iso_module_state_dict(b->model, &y));
    int count = different(&x, &y);
    iso_state_dict_destroy(&x), iso_state_dict_destroy(&y);
    cr_ok(iso_optimizer_state_dict(a->optimizer, &x));
    cr_ok(iso_optimizer_state_dict(b->optimizer, &y));
    count += different(&x, &y);
    iso_state_dict_destroy(&x), iso_state_dict_destroy(&y);
    return count;
}

// ---- Tests ----------------------------------------------------------------------------------------

typedef void (*move)(training *from, training *to);

static void check_moves(move body) {
    need_gpu();
    for (int i = 0; i < 2; i++) {
        training from = create(devices[i], 1), to = create(devices[1 - i], 2);
        train(&from, 3);
        cr_assert_gt(differences(&from, &to), 8); // all but hyperparameters
        body(&from, &to);
        cr_assert_eq(differences(&from, &to), 0, "%s to %s", devices[i], devices[1 - i]);
        train(&to, 1); // what was loaded is what is used
        cr_assert_gt(differences(&from, &to), 8);
        destroy(&from), destroy(&to);
    }
}

static void by_file(training *from, training *to) {
    const char *path = scratch_path("model.safetensors");
    iso_state_dict dict;
    cr_ok(iso_module_state_dict(from->model, &dict));
    cr_ok(iso_state_dict_save(&dict, path));
    iso_state_dict_destroy(&dict);
    cr_ok(iso_state_dict_read(path, to->device, &dict));
    cr_ok(iso_module_load_state_dict(to->model, &dict, true, NULL));
    iso_state_dict_destroy(&dict);
    cr_ok(iso_optimizer_state_dict(from->optimizer, &dict));
    cr_ok(iso_state_dict_save(&dict, path));
    iso_state_dict_destroy(&dict);
    cr_ok(iso_state_dict_read(path, to->device, &dict));
    cr_ok(iso_optimizer_load_state_dict(to->optimizer, &dict, true, NULL));
    iso_state_dict_destroy(&dict);
}
Test(np1_gpu_move, checkpoints_move_between_cpu_and_gpu) { check_moves(by_file); }

static void by_dict(training *from, training *to) {
    iso_state_dict dict;
    cr_ok(iso_module_state_dict(from->model, &dict));
    cr_ok(iso_module_load_state_dict(to->model, &dict, true, NULL));
    iso_state_dict_destroy(&dict);
    cr_ok(iso_optimizer_state_dict(from->optimizer, &dict));
    cr_ok(iso_optimizer_load_state_dict(to->optimizer, &dict, true, NULL));
    iso_state_dict_destroy(&dict);
}
Test(np1_gpu_move, state_dicts_move_between_cpu_and_gpu) { check_moves(by_dict); }

static void by_saved_state(training *from, training *to) {
    iso_state *state;
    int64_t step;
    cr_ok(iso_state_create(&state));
    cr_ok(iso_training_state(from->model, from->optimizer, state));
    cr_ok(iso_resume_save(test_comm, resume_path(), 3, state));
    iso_state_destroy(&state);
    cr_ok(iso_state_create(&state));
    cr_ok(iso_training_state(to->model, to->optimizer, state));
    cr_ok(iso_resume_load(test_comm, resume_path(), state, &step));
    iso_state_destroy(&state);
    cr_ok(iso_training_loaded(to->model, to->optimizer));
    cr_assert_eq(step, 3);
}
Test(np1_gpu_move, saved_runs_move_between_cpu_and_gpu) { check_moves(by_saved_state); }

// ---- Memory of somebody else ------------------------------------------------------------------------

Test(np1_gpu_move, a_reducer_refuses_values_in_other_memory) {
    float here[64] = {0};
    iso_reducer *r = NULL;
    iso_tensor *there;
    iso_reducer_config config = {0};
    need_gpu();
    cr_ok(iso_device_create("cuda", &config.device));
    cr_ok(iso_tensor_create(config.device, ISO_F32, 1, (int64_t[]){64}, &there));
    iso_reducer_param param[] = {
        {.name = "there", .value = there->data, .count = 64, .dtype = ISO_F32},
        {.name = "here", .value = here, .count = 64, .dtype = ISO_F32, .layer = 1}};
    cr_fails(iso_reducer_create(test_comm, param, 2, &config, &r), ISO_ERR_ARG, "\"here\"");
    cr_ok(iso_reducer_create(test_comm, param, 1, &config, &r));
    iso_reducer_destroy(&r);
    iso_tensor_destroy(&there);
    iso_device_destroy(&config.device);
}
