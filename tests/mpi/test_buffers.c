// SPDX-License-Identifier: MIT
// Buffers under data_parallel, and residual blocks with batch norms under lazy synchronisation.
#include "common/any_device.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np2_buffers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_buffers, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- A small ResNet -----------------------------------------------------------------------------

static iso_rng rng;

static iso_status add(iso_module *net, const char *name, iso_status made, iso_module **layer) {
    ISO_TRY(made);
    return iso_sequential_add_take(net, name, *layer);
}

static iso_status add_conv(iso_module *net, const char *name, int64_t in, int64_t out,
                           int64_t kernel, int64_t stride) {
    iso_module *m;
    iso_conv2d_config config = {.in_channels = in,
                                .out_channels = out,
                                .kernel_size = {kernel, kernel},
                                .stride = {stride, stride},
                                .padding = {kernel / 2, kernel / 2},
                                .no_bias = true};
    return add(net, name, iso_conv2d_create(net->device, &config, &rng, &m), &m);
}

static iso_status add_norm(iso_module *net, const char *name, int64_t features) {
    iso_module *m;
    iso_batch_norm_config config = {.num_features = features};
    return add(net, name, iso_batch_norm2d_create(net->device, &config, &m), &m);
}

static iso_status add_block(iso_module *net, const char *name, int64_t in, int64_t out,
                            int64_t stride) {
    iso_module *body, *shortcut = NULL, *m;
    ISO_TRY(iso_sequential_create(net->device, &body));
    ISO_TRY(add_conv(body, "conv1", in, out, 3, stride));
    ISO_TRY(add_norm(body, "bn1", out));
    ISO_TRY(add(body, "relu", iso_relu_create(net->device, &m), &m));
    ISO_TRY(add_conv(body, "conv2", out, out, 3, 1));
    ISO_TRY(add_norm(body, "bn2", out));
    if (stride != 1) {
        ISO_TRY(iso_sequential_create(net->device, &shortcut));
        ISO_TRY(add_conv(shortcut, NULL, in, out, 1, stride));
        ISO_TRY(add_norm(shortcut, NULL, out));
    }
    return add(net, name, iso_residual_create_take(net->device, body, shortcut, true, &m), &m);
}

static iso_status build_resnet(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_module *net, *m;
    rng = (iso_rng){.seed = 5};
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(add_conv(net, "conv1", TRAINER_CHANNELS, 8, 3, 1));
    ISO_TRY(add_norm(net, "bn1", 8));
    ISO_TRY(add(net, "relu", iso_relu_create(device, &m), &m));
    ISO_TRY(add_block(net, "layer1", 8, 8, 1));
    ISO_TRY(add_block(net, "layer2", 8, 12, 2));
    ISO_TRY(add(net, "flatten", iso_flatten_create(device, &m), &m));
    ISO_TRY(
        add(net, "fc", iso_linear_create(device, 12 * 25, TRAINER_CLASSES, true, &rng, &m), &m));
    *out = net;
    return ISO_OK;
}

static iso_status build_frozen_body(iso_device *device, bool dropout, iso_module **out) {
    iso_parameter_list list;
    ISO_TRY(build_resnet(device, dropout, out));
    ISO_TRY(iso_module_parameters(*out, &list));
    for (int i = 0; i < list.count; i++)
        if (strncmp(list.name[i], "layer", 5) == 0 && !strstr(list.name[i], "downsample"))
            list.item[i]->requires_grad = false;
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

static trainer_config resnet_config(void) {
    trainer_config config = trainer_default();
    config.build = build_resnet;
    return config;
}

// ---- What the tests look at ---------------------------------------------------------------------

#define ROOM 512

// All floating-point buffers of the model; returns how many numbers, and the sum of the counts.
static int get_buffers(iso_module *model, double *out, int64_t *counts) {
    iso_buffer_list list;
    int n = 0;
    *counts = 0;
    iso_assert_ok(iso_module_buffers(model, &list));
    for (int i = 0; i < list.count; i++) {
        const iso_tensor *t = list.item[i]->value;
        if (t->dtype == ISO_I64) *counts += *(int64_t *)t->data;
        for (int64_t k = 0; t->dtype == ISO_F32 && k < t->count; k++)
            out[n++] = (double)((float *)t->data)[k];
    }
    cr_assert(n > 0 && n <= ROOM);
    iso_buffer_list_destroy(&list);
    return n;
}

static bool same_on_all_ranks(const void *data, size_t bytes) {
    int64_t hash = (int64_t)(iso__hash(ISO_HASH_START, data, bytes) >> 1), extremes[2];
    extremes[0] = hash;
    extremes[1] = -hash;
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, extremes, 2, ISO_MAX));
    return extremes[0] == -extremes[1];
}

// ---- Buffers ------------------------------------------------------------------------------------

static bool is_filled(const iso_tensor *t, double x) {
    bool right = true;
    for (int64_t k = 0; k < t->count; k++)
        right = right && (t->dtype == ISO_I64 ? (double)((int64_t *)t->data)[k]
                                              : (double)((float *)t->data)[k]) == x;
    return right;
}

// The first parameter is frozen.
static void start_values(bool keep) {
    iso_device *device;
    iso_module *net;
    iso_buffer_list list;
    iso_parameter_list params;
    iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
    bool right = true;
    config.keep_values = keep;
    iso_assert_ok(iso_device_create(test_device(), &device));
    iso_assert_ok(build_resnet(device, false, &net));
    iso_assert_ok(iso_module_buffers(net, &list));
    iso_assert_ok(iso_module_parameters(net, &params));
    params.item[0]->requires_grad = false;
    for (int i = 0; i < list.count; i++)
        iso_assert_ok(iso_tensor_fill(list.item[i]->value, 10 * i + test_rank));
    for (int i = 0; i < params.count; i++)
        iso_assert_ok(iso_tensor_fill(params.item[i]->value, 10 * i + test_rank));
    iso_assert_ok(iso_data_parallel_create_take(net, test_comm, &config, &net));
    int mine = keep ? test_rank : 0;
    for (int i = 0; i < list.count; i++)
        right = right && is_filled(list.item[i]->value, 10 * i + mine);
    for (int i = 0; i < params.count; i++)
        right = right && is_filled(params.item[i]->value, 10 * i + mine);
    iso_assert_all(right);
    iso_parameter_list_destroy(&params);
    iso_buffer_list_destroy(&list);
    iso_module_destroy(&net);
    iso_device_destroy(&device);
}
Test(np2_buffers, start_as_rank_0s) { start_values(false); }
Test(np3_buffers, start_as_rank_0s) { start_values(false); }
Test(np2_buffers, start_as_they_are_if_kept) { start_values(true); }

// Ranks see different rows, so their running statistics drift apart until evaluation averages them.
static void evaluation_averages(void) {
    trainer_config config = resnet_config();
    trainer t;
    static double before[ROOM], mean[ROOM], after[ROOM];
    int64_t counts, counts_after;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 3));
    int n = get_buffers(t.model, before, &counts);
    iso_assert_all(!same_on_all_ranks(before, (size_t)n * sizeof(double)));
    memcpy(mean, before, sizeof(mean));
    iso_assert_ok(iso_comm_allreduce_f64(test_comm, mean, (size_t)n, ISO_SUM));
    iso_assert_ok(iso_module_train(t.model, false));
    get_buffers(t.model, after, &counts_after);
    double worst = 0;
    for (int i = 0; i < n; i++)
        worst = fmax(worst, fabs(after[i] - mean[i] / test_size) / (fabs(after[i]) + 1e-3));
    iso_assert_all(worst < 1e-6);
    iso_assert_all(same_on_all_ranks(after, (size_t)n * sizeof(double)));
    iso_assert_all(counts == counts_after && counts == 6 * 3);
    // What follows in evaluation changes nothing more.
    iso_assert_ok(iso_module_train(t.model, false));
    get_buffers(t.model, before, &counts);
    iso_assert_all(memcmp(before, after, (size_t)n * sizeof(double)) == 0);
    trainer_destroy(&t);
}
Test(np2_buffers, evaluation_averages_running_statistics) { evaluation_averages(); }
Test(np3_buffers, evaluation_averages_running_statistics) { evaluation_averages(); }

static void ignore_first_mean(iso_data_parallel_config *dp) {
    static const char *const name[] = {"bn1.running_mean"};
    dp->ignore = name;
    dp->ignore_count = 1;
}

static const iso_tensor *buffer_named(iso_module *model, const char *name) {
    iso_buffer_list list;
    const iso_tensor *found = NULL;
    iso_assert_ok(iso_module_buffers(model, &list));
    for (int i = 0; i < list.count; i++)
        if (strcmp(list.name[i], name) == 0) found = list.item[i]->value;
    iso_buffer_list_destroy(&list);
    cr_assert(found);
    return found;
}

// Evaluation averages all other buffers.
static void ignored_buffers_stay(iso_buffer_mode mode) {
    trainer_config config = resnet_config();
    trainer t;
    float before[8];
    config.adjust = ignore_first_mean;
    config.buffers.mode = mode;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 3));
    const iso_tensor *ignored = buffer_named(t.model, "bn1.running_mean");
    const iso_tensor *other = buffer_named(t.model, "bn1.running_var");
    cr_assert_eq(ignored->count, 8);
    memcpy(before, ignored->data, sizeof(before));
    iso_assert_all(!same_on_all_ranks(other->data, sizeof(before)));
    iso_assert_ok(iso_module_train(t.model, false));
    iso_assert_all(memcmp(before, ignored->data, sizeof(before)) == 0);
    iso_assert_all(!same_on_all_ranks(ignored->data, sizeof(before)));
    iso_assert_all(same_on_all_ranks(other->data, sizeof(before)));
    trainer_destroy(&t);
}
Test(np2_buffers, ignored_buffers_stay) { ignored_buffers_stay(ISO_BUFFERS_AVERAGE); }
Test(np3_buffers, ignored_buffers_stay) { ignored_buffers_stay(ISO_BUFFERS_RANK0); }

static void ranks_evaluate_one_model(void) {
    trainer_config config = resnet_config();
    trainer t;
    iso_tensor *out, *x;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 4));
    iso_assert_ok(iso_module_train(t.model, false));
    iso_assert_ok(iso_tensor_create(
        t.device, ISO_F32, 4, (int64_t[]){1, TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE}, &x));
    iso_assert_ok(iso_tensor_fill(x, 0.25));
    iso_assert_ok(iso_module_forward(t.model, x, &out));
    iso_assert_all(same_on_all_ranks(out->data, TRAINER_CLASSES * sizeof(float)));
    iso_tensor_destroy(&x);
    trainer_destroy(&t);
}
Test(np2_buffers, all_ranks_evaluate_one_model) { ranks_evaluate_one_model(); }
Test(np3_buffers, all_ranks_evaluate_one_model) { ranks_evaluate_one_model(); }

// A rank that skipped batches has counted fewer of them.
Test(np2_buffers, counts_become_the_largest) {
    trainer_config config = resnet_config();
    trainer t;
    static double values[ROOM];
    int64_t counts;
    iso_buffer_list list;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_module_buffers(t.model, &list));
    for (int i = 0; i < list.count; i++)
        if (list.item[i]->value->dtype == ISO_I64)
            iso_assert_ok(iso_tensor_fill(list.item[i]->value, 4 + test_rank));
    iso_buffer_list_destroy(&list);
    iso_assert_ok(iso_module_train(t.model, false));
    get_buffers(t.model, values, &counts);
    iso_assert_all(counts == 6 * 5);
    trainer_destroy(&t);
}

Test(np2_buffers, ranks_with_different_buffers_are_refused) {
    iso_device *device;
    iso_module *norm, *net;
    iso_batch_norm_config config = {.num_features = 3, .no_running_stats = test_rank == 1};
    iso_assert_ok(iso_device_create(test_device(), &device));
    iso_assert_ok(iso_batch_norm1d_create(device, &config, &norm));
    iso_status status = iso_data_parallel_create_take(norm, test_comm, NULL, &net);
    iso_assert_all(status == ISO_ERR_MISMATCH &&
                   strstr(iso_last_error()->message, "number of buffers is 0 on rank 1 and 3 on") &&
                   strstr(iso_last_error()->message,
                          "buffer 0 is absent on rank 1 and running_mean [3] f32 on rank 0"));
    iso_device_destroy(&device);
}

// ---- Lazy = blocking, bit for bit ---------------------------------------------------------------

static void lazy_equals_blocking(iso_status (*build)(iso_device *, bool, iso_module **)) {
    trainer_config config = resnet_config();
    uint64_t start = 0, lazy = 0, blocking = 0;
    config.build = build;
    iso_assert_ok(trainer_run(test_comm, &config, 0, &start));
    iso_assert_ok(trainer_run(test_comm, &config, 12, &lazy));
    config.sync = ISO_SYNC_BLOCKING;
    iso_assert_ok(trainer_run(test_comm, &config, 12, &blocking));
    iso_assert_all(lazy == blocking && lazy != start);
}
Test(np2_buffers, resnet_lazy_equals_blocking) { lazy_equals_blocking(build_resnet); }
Test(np3_buffers, resnet_lazy_equals_blocking) { lazy_equals_blocking(build_resnet); }
Test(np2_buffers, resnet_of_frozen_bodies_lazy_equals_blocking) {
    lazy_equals_blocking(build_frozen_body);
}

Test(np2_buffers, steps_of_a_resnet_allocate_nothing) {
    trainer_config config = resnet_config();
    trainer t;
    long long before, after;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 3));
    iso_memory_balance(NULL, NULL, &before);
    iso_assert_ok(trainer_train(&t, 5));
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before);
    trainer_destroy(&t);
}
