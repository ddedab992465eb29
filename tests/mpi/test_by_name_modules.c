// SPDX-License-Identifier: MIT
// Modules whose ranks register parameters and buffers in different orders, matched by name.
#include "base/base.h"
#include "common/any_device.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <isotherm/clip.h>
#include <isotherm/daso.h>
#include <isotherm/resume.h>
#include <isotherm/state_dict.h>

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_by_name_modules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_by_name_modules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_by_name_modules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- A module that runs its children in one order and registers them in another ---------------------

enum { STAGES = 7, STEPS = 4, WIDTH = 8 };
static bool mixed; // whether this rank registers in an order of its own

typedef struct net {
    iso_module base;
    iso_module *stage[STAGES]; // in the order of the forward
} net;

static iso_status run_forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)call;
    for (int i = 0; i < STAGES; i++)
        ISO_TRY(iso_module_call(((net *)self)->stage[i], ISO_ACT_NONE, in, &in));
    *out = in;
    return ISO_OK;
}
static iso_status run_backward(iso_module *self, iso_call *call, iso_tensor *grad,
                               iso_tensor **grad_in) {
    (void)call;
    for (int i = STAGES - 1; i >= 0; i--) {
        bool wanted = i > 0 || grad_in;
        ISO_TRY(iso_module_call_backward(((net *)self)->stage[i], grad, wanted ? &grad : NULL));
    }
    if (grad_in) *grad_in = grad;
    return ISO_OK;
}
static const iso_module_ops net_ops = {
    .type = "Net", .forward = run_forward, .backward = run_backward};

// y = gain * x + offset
typedef struct gain {
    iso_module base;
    iso_parameter *gain, *offset;
} gain;

static float *data_of(iso_tensor *t) {
    void *data = NULL;
    if (iso_tensor_map(t, ISO_READ_WRITE, &data) == ISO_OK) (void)iso_tensor_unmap(t);
    return data; // in the host's memory
}
static iso_status multiply(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    const float *factor = data_of(((gain *)self)->gain->value);
    const float *offset = data_of(((gain *)self)->offset->value);
    ISO_TRY(iso_call_tensor(self, &call->out, 2, iso_tensor_shape(in), iso_tensor_layout(in)));
    for (int64_t i = 0; i < iso_tensor_count(in); i++)
        data_of(call->out)[i] = data_of(in)[i] * factor[i % WIDTH] + offset[i % WIDTH];
    *out = call->out;
    return ISO_OK;
}
static iso_status derive(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    iso_parameter *p[2] = {((gain *)self)->gain, ((gain *)self)->offset};
    for (int k = 0; k < 2; k++)
        if (!p[k]->grad_valid) ISO_TRY(iso_tensor_fill(p[k]->grad, 0));
    for (int64_t i = 0; i < iso_tensor_count(grad_out); i++) {
        data_of(p[0]->grad)[i % WIDTH] += data_of(grad_out)[i] * data_of(call->in)[i];
        data_of(p[1]->grad)[i % WIDTH] += data_of(grad_out)[i];
    }
    return ISO_OK;
}
static iso_status derive_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                               iso_tensor **grad_in) {
    (void)call;
    for (int64_t i = 0; i < iso_tensor_count(grad_out); i++)
        data_of(grad_out)[i] *= data_of(((gain *)self)->gain->value)[i % WIDTH];
    *grad_in = grad_out;
    return ISO_OK;
}
static const iso_module_ops gain_ops = {
    .type = "Gain", .forward = multiply, .backward_params = derive, .backward_input = derive_input};

static iso_status make_gain(iso_device *device, bool reversed, iso_module **out) {
    const int64_t width = WIDTH;
    gain *g = calloc(1, sizeof(*g));
    ISO_TRY(iso_module_init(&g->base, &gain_ops, device));
    if (reversed) ISO_TRY(iso_module_add_parameter(&g->base, "offset", 1, &width, &g->offset));
    ISO_TRY(iso_module_add_parameter(&g->base, "gain", 1, &width, &g->gain));
    if (!reversed) ISO_TRY(iso_module_add_parameter(&g->base, "offset", 1, &width, &g->offset));
    *out = &g->base;
    return iso_tensor_fill(g->gain->value, 1.25);
}

// A block of two: fc and norm.
static iso_status make_block(iso_device *device, int64_t inputs, iso_module **out) {
    iso_rng rng = {.seed = 5 + (uint64_t)test_rank}; // rank 0's values count
    const iso_batch_norm_config config = {.num_features = WIDTH};
    iso_module *block, *m;
    ISO_TRY(iso_sequential_create(device, &block));
    ISO_TRY(iso_linear_create(device, inputs, WIDTH, true, &rng, &m));
    ISO_TRY(iso_sequential_add_take(block, "fc", m));
    ISO_TRY(iso_batch_norm1d_create(device, &config, &m));
    ISO_TRY(iso_sequential_add_take(block, "norm", m));
    *out = block;
    return ISO_OK;
}

static const char *names[STAGES] = {"flatten", "first", "gain", "second", "relu", "third", "head"};

static iso_status make_stages(iso_device *device, bool reversed, iso_module *stage[STAGES]) {
    iso_rng rng = {.seed = 1};
    int64_t pixels = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE;
    ISO_TRY(iso_flatten_create(device, &stage[0]));
    ISO_TRY(make_block(device, pixels, &stage[1]));
    ISO_TRY(make_gain(device, reversed, &stage[2]));
    ISO_TRY(make_block(device, WIDTH, &stage[3]));
    ISO_TRY(iso_relu_create(device, &stage[4]));
    ISO_TRY(make_block(device, WIDTH, &stage[5]));
    return iso_linear_create(device, WIDTH, TRAINER_CLASSES, true, &rng, &stage[6]);
}

// Rank 0 registers its children from the second on, other ranks from others on or backwards.
static iso_status build_net(iso_device *device, bool dropout, iso_module **out) {
    int rank = mixed ? test_rank : 0;
    net *n = calloc(1, sizeof(*n));
    (void)dropout;
    ISO_TRY(iso_module_init(&n->base, &net_ops, device));
    ISO_TRY(make_stages(device, rank % 2 == 1, n->stage));
    for (int k = 0; k < STAGES; k++) {
        int i = (1 + 2 * rank + (rank % 2 ? STAGES - k : k)) % STAGES;
        ISO_TRY(iso_module_add_child_take(&n->base, names[i], n->stage[i]));
    }
    *out = &n->base;
    return ISO_OK;
}

// ---- The bits of rank 0's order ---------------------------------------------------------------------

typedef struct result {
    uint64_t parameters, buffers, state;
    double norm;
} result;

static uint64_t hash_tensor(uint64_t hash, const char *name, iso_tensor *t) {
    hash = iso__hash(hash, name, strlen(name));
    return iso__hash(hash, data_of(t),
                     (size_t)iso_tensor_count(t) * iso_dtype_size(iso_tensor_dtype(t)));
}

static void take_result(trainer *t, result *out) {
    iso_state_dict dict = {0};
    iso_buffer_list buffers;
    out->buffers = out->state = ISO_HASH_START;
    iso_assert_ok(trainer_hash(t, &out->parameters));
    iso_assert_ok(iso_data_parallel_sync_buffers(t->model));
    iso_assert_ok(iso_module_buffers(t->model, &buffers));
    for (int i = 0; i < buffers.count; i++)
        out->buffers = hash_tensor(out->buffers, buffers.name[i], buffers.item[i]->value);
    iso_buffer_list_destroy(&buffers);
    iso_assert_ok(iso_optimizer_state_dict(t->optimizer, &dict));
    for (int i = 0; i < dict.count; i++)
        out->state = hash_tensor(out->state, dict.item[i].name, dict.item[i].tensor);
    iso_state_dict_destroy(&dict);
}

static bool match_names, early; // early: the optimizer is created before the module is wrapped
static bool periodic;           // local SGD, which averages optimizer state, too
static iso_data_parallel_config settings;

static void adjust(iso_data_parallel_config *dp) {
    iso_sync sync = dp->sync;
    *dp = settings;
    dp->sync = sync;
    dp->by_name = match_names;
}

static iso_status wrap_late(trainer *t) {
    iso_data_parallel_config dp = settings;
    iso_optimizer *inner;
    iso_module *raw;
    iso_hyper hyper = iso_hyper_default(ISO_ADAM);
    dp.by_name = match_names;
    iso_optimizer_destroy(&t->optimizer);
    iso_module_destroy(&t->model);
    ISO_TRY(build_net(t->device, false, &raw));
    ISO_TRY(iso_optimizer_create(ISO_ADAM, raw, &hyper, &inner));
    ISO_TRY(iso_data_parallel_create_take(raw, test_comm, &dp, &t->model));
    return iso_dp_optimizer_create_take(inner, t->model, &t->optimizer);
}

static iso_status make_periodic(trainer *t) {
    iso_daso_config config = iso_local_sgd_config(STEPS, 2);
    config.state = ISO_STATE_SYNC_AVERAGE;
    return iso_daso_create_take(t->optimizer, t->model, &config, &t->optimizer);
}

static void make_trainer(trainer *t, iso_sync sync) {
    trainer_config config = trainer_default();
    config.sync = sync;
    config.optimizer = ISO_ADAM;
    config.hyper = iso_hyper_default(ISO_ADAM);
    config.build = build_net;
    config.adjust = adjust;
    iso_assert_ok(trainer_create(t, test_comm, &config));
    if (early) iso_assert_ok(wrap_late(t));
    if (periodic) iso_assert_ok(make_periodic(t));
}

// Odd steps are clipped: the norm adds up all gradients in one order.
static iso_status run_steps(trainer *t, int first, int end, double *norm) {
    for (int step = first; step < end; step++) {
        iso_optimizer_zero_grad(t->optimizer);
        ISO_TRY(trainer_backward(t, step));
        if (step % 2) ISO_TRY(iso_clip_grad_norm(t->model, 0.5, 2, norm));
        ISO_TRY(iso_optimizer_step(t->optimizer));
    }
    return ISO_OK;
}

static result run(iso_sync sync, bool by_name) {
    result out = {0};
    trainer t;
    mixed = match_names = by_name;
    make_trainer(&t, sync);
    iso_assert_ok(run_steps(&t, 0, STEPS, &out.norm));
    if (periodic) iso_assert_ok(iso_daso_finish(t.optimizer));
    take_result(&t, &out);
    trainer_destroy(&t);
    return out;
}

static void give_rank_0s_bits(iso_data_parallel_config config) {
    settings = config;
    result expected = run(ISO_SYNC_LAZY, false);
    iso_assert_all(expected.norm > 0.5);
    for (int i = 0; i < 4; i++) {
        early = i & 1;
        result got = run(i & 2 ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY, true);
        early = false;
        iso_assert_all(got.parameters == expected.parameters);
        iso_assert_all(got.buffers == expected.buffers);
        iso_assert_all(got.state == expected.state);
        iso_assert_all(got.norm == expected.norm);
    }
}

Test(np1_by_name_modules, any_order_gives_the_bits_of_rank_0s) {
    give_rank_0s_bits((iso_data_parallel_config){0});
}
Test(np2_by_name_modules, any_order_gives_the_bits_of_rank_0s) {
    static const char *const own = "gain.offset", *const late = "second.fc.weight";
    give_rank_0s_bits((iso_data_parallel_config){.delay = &late, .delay_count = 1});
    give_rank_0s_bits((iso_data_parallel_config){.hook = &iso_hook_bf16_feedback});
    give_rank_0s_bits(
        (iso_data_parallel_config){.piece_mb = 0.002, .find_unused_parameters = true});
    settings = (iso_data_parallel_config){.ignore = &own, .ignore_count = 1};
    mixed = match_names = true;
    trainer t;
    make_trainer(&t, ISO_SYNC_LAZY);
    double norm;
    iso_assert_ok(run_steps(&t, 0, STEPS, &norm));
    trainer_destroy(&t);
}
Test(np3_by_name_modules, any_order_gives_the_bits_of_rank_0s) {
    give_rank_0s_bits((iso_data_parallel_config){.bucket_mb = 1});
    give_rank_0s_bits((iso_data_parallel_config){.buffers.when = ISO_BUFFERS_BEFORE_FORWARD});
}
Test(np3_by_name_modules, any_order_gives_the_bits_of_rank_0s_with_zero) {
    give_rank_0s_bits((iso_data_parallel_config){.zero = true});
}

Test(np3_by_name_modules, averages_of_optimizer_state_have_the_bits_of_rank_0s) {
    periodic = true;
    give_rank_0s_bits((iso_data_parallel_config){0});
}

// ---- Saved and resumed ------------------------------------------------------------------------------

static void save_or_load(trainer *t, const char *path, bool load) {
    iso_state *state;
    int64_t step = 0;
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(t->model, t->optimizer, state));
    iso_assert_ok(load ? iso_resume_load(test_comm, path, state, &step)
                       : iso_resume_save(test_comm, path, 2, state));
    if (load) iso_assert_ok(iso_training_loaded(t->model, t->optimizer));
    iso_state_destroy(&state);
}

// Half of the steps are made in mixed orders, the others in rank 0's.
static void goes_on(bool zero) {
    const char *path = zero ? "by_name_zero.saved" : "by_name.saved";
    trainer t;
    result out;
    double norm;
    settings = (iso_data_parallel_config){.zero = zero};
    result expected = run(ISO_SYNC_LAZY, false);
    early = mixed = match_names = true;
    make_trainer(&t, ISO_SYNC_LAZY);
    early = false;
    iso_assert_ok(run_steps(&t, 0, STEPS / 2, &norm));
    save_or_load(&t, path, false);
    trainer_destroy(&t);
    mixed = match_names = false;
    make_trainer(&t, ISO_SYNC_LAZY);
    save_or_load(&t, path, true);
    iso_assert_ok(run_steps(&t, STEPS / 2, STEPS, &norm));
    take_result(&t, &out);
    trainer_destroy(&t);
    if (test_rank == 0) (void)iso_resume_remove(path);
    iso_assert_all(out.parameters == expected.parameters && out.state == expected.state);
}

Test(np2_by_name_modules, a_saved_run_goes_on_in_another_order) { goes_on(false); }
Test(np3_by_name_modules, a_saved_run_goes_on_in_another_order) { goes_on(true); }

// Without the wrapper, lists are in the order of registration again.
Test(np2_by_name_modules, lists_have_their_own_order_again_without_the_wrapper) {
    iso_device *device;
    iso_module *raw, *model;
    iso_parameter_list list;
    const iso_data_parallel_config config = {.by_name = true};
    mixed = true;
    iso_assert_ok(iso_device_create(test_device(), &device));
    iso_assert_ok(build_net(device, false, &raw));
    iso_module_retain(raw);
    iso_assert_ok(iso_data_parallel_create_take(raw, test_comm, &config, &model));
    iso_assert_ok(iso_module_parameters(raw, &list));
    iso_assert_all(strcmp(list.name[0], "first.fc.weight") == 0);
    iso_parameter_list_destroy(&list);
    iso_module_destroy(&model);
    iso_assert_ok(iso_module_parameters(raw, &list));
    const char *first = test_rank ? "second.fc.weight" : "first.fc.weight";
    iso_assert_all(strcmp(list.name[0], first) == 0);
    iso_parameter_list_destroy(&list);
    iso_module_destroy(&raw);
    iso_device_destroy(&device);
}

// ---- Lists that do not match ------------------------------------------------------------------------

static void expect_refusal(bool by_name, const char *who, const char *what) {
    iso_device *device;
    iso_module *raw, *model = NULL;
    const iso_data_parallel_config config = {.by_name = by_name};
    iso_assert_ok(iso_device_create(test_device(), &device));
    iso_assert_ok(build_net(device, false, &raw));
    iso_status status = iso_data_parallel_create_take(raw, test_comm, &config, &model);
    const char *said = iso_last_error()->message;
    bool told = strstr(said, who) && strstr(said, what);
    if (!told) fprintf(stderr, "status %d: %s\n", (int)status, said);
    iso_assert_all(status == ISO_ERR_MISMATCH && model == NULL && told);
    iso_device_destroy(&device);
}

Test(np3_by_name_modules, a_module_that_differs_is_refused_on_every_rank) {
    mixed = true;
    if (test_rank == 1) names[3] = "other";
    expect_refusal(true, "rank 1 lists no parameter named \"second.fc.weight\"", "rank 0 does");
    names[3] = "second";
    expect_refusal(false, "ranks disagree", "parameter");
    expect_refusal(test_rank == 2, "by_name of iso_data_parallel_config", "rank 2");
}

// A layer under the name of another one, and a buffer that only one rank has.
static bool widened;
static iso_status build_wide(iso_device *device, iso_module **out) {
    iso_rng rng = {.seed = 1};
    const iso_batch_norm_config config = {.num_features = WIDTH,
                                          .no_running_stats = test_rank == 1};
    iso_module *m;
    ISO_TRY(iso_sequential_create(device, out));
    ISO_TRY(iso_linear_create(device, widened && test_rank == 2 ? 9 : 7, WIDTH, true, &rng, &m));
    ISO_TRY(iso_sequential_add_take(*out, "fc", m));
    if (widened) return ISO_OK;
    ISO_TRY(iso_batch_norm1d_create(device, &config, &m));
    return iso_sequential_add_take(*out, "norm", m);
}

Test(np3_by_name_modules, other_shapes_and_buffers_are_refused_on_every_rank) {
    const iso_data_parallel_config config = {.by_name = true};
    const char *const told[2] = {"\"norm.running_mean (a buffer)\"", "\"fc.weight\" [8, 9]"};
    for (int i = 0; i < 2; i++) {
        iso_device *device;
        iso_module *raw, *model = NULL;
        widened = i;
        iso_assert_ok(iso_device_create(test_device(), &device));
        iso_assert_ok(build_wide(device, &raw));
        iso_status status = iso_data_parallel_create_take(raw, test_comm, &config, &model);
        bool says = strstr(iso_last_error()->message, told[i]);
        if (!says) fprintf(stderr, "%s\n", iso_last_error()->message);
        iso_assert_all(status == ISO_ERR_MISMATCH && says);
        iso_device_destroy(&device);
    }
}
