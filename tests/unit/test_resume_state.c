// SPDX-License-Identifier: MIT
// The list of what a run needs to go on: entries, names, and what module and optimizer add.
#include "common/balance.h"
#include "common/nn_fixture.h"
#include "optim/resume/resume_impl.h"

#include <string.h>

static iso_device *device;
static iso_state *state;

static void set_up(void) {
    device = open_cpu();
    cr_ok(iso_state_create(&state));
}

static void clean_up(void) {
    iso_state_destroy(&state);
    iso_device_destroy(&device);
    balance_check();
}
TestSuite(resume_state, .init = set_up, .fini = clean_up, .timeout = 60);

static const iso__array *find(iso_state_owner owner, const char *name) {
    for (int i = 0; i < state->count[owner]; i++)
        if (strcmp(state->array[owner][i].name, name) == 0) return &state->array[owner][i];
    return NULL;
}

// fc1 4-3, dropout, fc2 3-2.
static iso_module *create_model(void) {
    iso_rng rng = {.seed = 1};
    iso_module *net, *m;
    cr_ok(iso_sequential_create(device, &net));
    cr_ok(iso_linear_create(device, 4, 3, true, &rng, &m));
    cr_ok(iso_sequential_add_take(net, "fc1", m));
    cr_ok(iso_dropout_create(device, 0.5, &rng, &m));
    cr_ok(iso_sequential_add_take(net, "dropout", m));
    cr_ok(iso_linear_create(device, 3, 2, false, &rng, &m));
    cr_ok(iso_sequential_add_take(net, "fc2", m));
    return net;
}

// ---- Entries ------------------------------------------------------------------------------------

Test(resume_state, refuses_entries_that_cannot_be_told_apart_or_read) {
    double x = 0;
    cr_ok(iso_state_add(state, ISO_STATE_SHARED, "x", ISO_STATE_F64, 1, &x));
    cr_fails(iso_state_add(state, ISO_STATE_SHARED, "x", ISO_STATE_F64, 1, &x), ISO_ERR_ARG,
             "two entries of a state have the name x");
    cr_fails(iso_state_add(state, ISO_STATE_OWN, "x", ISO_STATE_F64, 1, &x), ISO_ERR_ARG,
             "two entries of a state have the name x");
    cr_fails(iso_state_add(state, ISO_STATE_SHARED, "", ISO_STATE_F64, 1, &x), ISO_ERR_ARG, "name");
    cr_fails(iso_state_add(state, ISO_STATE_SHARED, "__metadata__", ISO_STATE_F64, 1, &x),
             ISO_ERR_ARG, "__metadata__");
    cr_fails(iso_state_add(state, ISO_STATE_SHARED, "y", ISO_STATE_F64, 1, NULL), ISO_ERR_ARG,
             "entry y of a state has no data");
    cr_fails(iso_state_add(state, ISO_STATE_SHARED, "y", ISO_STATE_F64, -1, &x), ISO_ERR_ARG,
             "entry y of a state has -1 elements");
    cr_fails(iso_state_add(state, ISO_STATE_SHARED, "y", (iso_state_type)9, 1, &x), ISO_ERR_ARG,
             "entry y of a state has the unknown type 9");
    cr_fails(iso_state_add(state, (iso_state_owner)2, "y", ISO_STATE_F64, 1, &x), ISO_ERR_ARG,
             "entry y of a state has the unknown owner 2");
    cr_assert_eq(state->count[0] + state->count[1], 1);
}

Test(resume_state, lists_buffers_that_are_persistent) {
    iso_batch_norm_config config = {.num_features = 3};
    iso_module *norm;
    iso_optimizer *sgd;
    cr_ok(iso_batch_norm1d_create(device, &config, &norm));
    cr_ok(iso_optimizer_create(ISO_SGD, norm, NULL, &sgd));
    norm->buffer[1]->persistent = false;
    cr_ok(iso_training_state(norm, sgd, state));
    cr_assert(find(ISO_STATE_OWN, "buffer/running_mean"));
    cr_assert_null(find(ISO_STATE_OWN, "buffer/running_var"));
    iso_optimizer_destroy(&sgd);
    iso_module_destroy(&norm);
}

Test(resume_state, copies_names_and_keeps_many_entries) {
    int64_t numbers[200];
    char name[16];
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof(name), "n%d", i);
        cr_ok(iso_state_add(state, (iso_state_owner)(i % 2), name, ISO_STATE_I64, 1, &numbers[i]));
    }
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof(name), "n%d", i);
        const iso__array *entry = find((iso_state_owner)(i % 2), name);
        cr_assert(entry && entry->data == &numbers[i] && entry->shape[0] == 1);
    }
}

// ---- Module and optimizer -----------------------------------------------------------------------

static void expect_names(iso_optimizer_kind kind, const char *const *names, int count) {
    iso_module *net = create_model();
    iso_hyper hyper = iso_hyper_default(kind);
    iso_optimizer *optimizer;
    hyper.amsgrad = hyper.maximize = kind == ISO_ADAMW;
    cr_ok(iso_optimizer_create(kind, net, &hyper, &optimizer));
    cr_ok(iso_training_state(net, optimizer, state));
    for (int i = 0; i < count; i++)
        cr_assert(find(ISO_STATE_SHARED, names[i]), "no entry %s", names[i]);
    // 3 parameters and their steps, forward counters, 14 hyperparameters with the group's step.
    int expected = 3 + 3 + 1 + 14 + count + (kind == ISO_NADAM ? 1 : 0);
    cr_assert_eq(state->count[ISO_STATE_SHARED], expected, "%d", state->count[ISO_STATE_SHARED]);
    cr_assert_eq(state->count[ISO_STATE_OWN], 0);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&net);
}

// torch.optim: the keys of Optimizer.state.
Test(resume_state, names_optimizer_state_as_pytorch_does) {
    static const char *const sgd[] = {"optimizer/sgd/state.fc1.weight.momentum_buffer",
                                      "optimizer/sgd/state.fc1.bias.momentum_buffer",
                                      "optimizer/sgd/state.fc2.weight.momentum_buffer"};
    static const char *const adam[] = {
        "optimizer/adam/state.fc1.weight.exp_avg", "optimizer/adam/state.fc1.weight.exp_avg_sq",
        "optimizer/adam/state.fc1.bias.exp_avg",   "optimizer/adam/state.fc1.bias.exp_avg_sq",
        "optimizer/adam/state.fc2.weight.exp_avg", "optimizer/adam/state.fc2.weight.exp_avg_sq"};
    static const char *const adadelta[] = {"optimizer/adadelta/state.fc1.weight.square_avg",
                                           "optimizer/adadelta/state.fc1.weight.acc_delta",
                                           "optimizer/adadelta/state.fc1.bias.square_avg",
                                           "optimizer/adadelta/state.fc1.bias.acc_delta",
                                           "optimizer/adadelta/state.fc2.weight.square_avg",
                                           "optimizer/adadelta/state.fc2.weight.acc_delta"};
    static const char *const rmsprop[] = {"optimizer/rmsprop/state.fc1.weight.square_avg",
                                          "optimizer/rmsprop/state.fc1.weight.momentum_buffer",
                                          "optimizer/rmsprop/state.fc1.weight.grad_avg",
                                          "optimizer/rmsprop/state.fc1.bias.square_avg",
                                          "optimizer/rmsprop/state.fc1.bias.momentum_buffer",
                                          "optimizer/rmsprop/state.fc1.bias.grad_avg",
                                          "optimizer/rmsprop/state.fc2.weight.square_avg",
                                          "optimizer/rmsprop/state.fc2.weight.momentum_buffer",
                                          "optimizer/rmsprop/state.fc2.weight.grad_avg"};
    static const char *const adagrad[] = {"optimizer/adagrad/state.fc1.weight.sum",
                                          "optimizer/adagrad/state.fc1.bias.sum",
                                          "optimizer/adagrad/state.fc2.weight.sum"};
    static const char *const amsgrad[] = {"optimizer/adamw/state.fc1.weight.exp_avg",
                                          "optimizer/adamw/state.fc1.weight.exp_avg_sq",
                                          "optimizer/adamw/state.fc1.weight.max_exp_avg_sq",
                                          "optimizer/adamw/state.fc1.bias.exp_avg",
                                          "optimizer/adamw/state.fc1.bias.exp_avg_sq",
                                          "optimizer/adamw/state.fc1.bias.max_exp_avg_sq",
                                          "optimizer/adamw/state.fc2.weight.exp_avg",
                                          "optimizer/adamw/state.fc2.weight.exp_avg_sq",
                                          "optimizer/adamw/state.fc2.weight.max_exp_avg_sq"};
    static const char *const nadam[] = {"optimizer/nadam/state.fc1.weight.exp_avg",
                                        "optimizer/nadam/state.fc1.weight.exp_avg_sq",
                                        "optimizer/nadam/state.fc1.weight.mu_product",
                                        "optimizer/nadam/state.fc1.bias.exp_avg",
                                        "optimizer/nadam/state.fc1.bias.exp_avg_sq",
                                        "optimizer/nadam/state.fc1.bias.mu_product",
                                        "optimizer/nadam/state.fc2.weight.exp_avg",
                                        "optimizer/nadam/state.fc2.weight.exp_avg_sq",
                                        "optimizer/nadam/state.fc2.weight.mu_product"};
    expect_names(ISO_ADAMW, amsgrad, 9);
    iso_state_destroy(&state);
    cr_ok(iso_state_create(&state));
    expect_names(ISO_NADAM, nadam, 9);
    iso_state_destroy(&state);
    cr_ok(iso_state_create(&state));
    expect_names(ISO_SGD, sgd, 3);
    iso_state_destroy(&state);
    cr_ok(iso_state_create(&state));
    expect_names(ISO_RMSPROP, rmsprop, 9);
    iso_state_destroy(&state);
    cr_ok(iso_state_create(&state));
    expect_names(ISO_ADAGRAD, adagrad, 3);
    iso_state_destroy(&state);
    cr_ok(iso_state_create(&state));
    expect_names(ISO_ADAM, adam, 6);
    iso_state_destroy(&state);
    cr_ok(iso_state_create(&state));
    expect_names(ISO_ADADELTA, adadelta, 6);
}

Test(resume_state, shows_parameters_in_their_shape_and_the_step) {
    iso_module *net = create_model();
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    iso_optimizer *optimizer;
    hyper.lr = 0.125;
    hyper.momentum = 0.9;
    cr_ok(iso_optimizer_create(ISO_SGD, net, &hyper, &optimizer));
    cr_ok(iso_optimizer_step(optimizer));
    cr_ok(iso_optimizer_step(optimizer));
    cr_ok(iso_training_state(net, optimizer, state));
    const iso__array *weight = find(ISO_STATE_SHARED, "param/fc1.weight");
    const iso__array *momentum =
        find(ISO_STATE_SHARED, "optimizer/sgd/state.fc1.weight.momentum_buffer");
    cr_assert(weight->ndim == 2 && weight->shape[0] == 3 && weight->shape[1] == 4);
    cr_assert(momentum->ndim == 2 && momentum->shape[0] == 3 && momentum->shape[1] == 4);
    cr_assert_eq(*(int64_t *)find(ISO_STATE_SHARED, "optimizer/sgd/param_groups.0.step")->data, 2);
    cr_assert_eq(*(int64_t *)find(ISO_STATE_SHARED, "optimizer/sgd/state.fc1.bias.step")->data, 2);
    cr_assert_eq(*(double *)find(ISO_STATE_SHARED, "optimizer/sgd/param_groups.0.lr")->data, 0.125);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&net);
}

Test(resume_state, takes_one_module_and_optimizer) {
    iso_module *net = create_model();
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    iso_optimizer *optimizer;
    cr_ok(iso_optimizer_create(ISO_SGD, net, &hyper, &optimizer));
    cr_ok(iso_training_state(net, optimizer, state));
    cr_fails(iso_training_state(net, optimizer, state), ISO_ERR_STATE,
             "has a module and an optimizer already");
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&net);
}

// A module in two places has one counter.
Test(resume_state, counts_a_shared_module_once) {
    iso_rng rng = {.seed = 1};
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    iso_module *net, *m;
    iso_optimizer *optimizer;
    cr_ok(iso_sequential_create(device, &net));
    cr_ok(iso_linear_create(device, 3, 3, true, &rng, &m));
    cr_ok(iso_sequential_add_take(net, "a", iso_module_retain(m)));
    cr_ok(iso_sequential_add_take(net, "b", m));
    m->forward_number = 7;
    net->forward_number = 3;
    cr_ok(iso_optimizer_create(ISO_SGD, net, &hyper, &optimizer));
    cr_ok(iso_training_state(net, optimizer, state));
    const iso__array *counters = find(ISO_STATE_SHARED, "forward_counters");
    cr_assert(counters->shape[0] == 1 && counters->shape[1] == 2);
    cr_assert(((int64_t *)counters->data)[0] == 3 && ((int64_t *)counters->data)[1] == 7);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&net);
}

static const iso_optimizer_ops mute_ops = {.name = "mute"};

Test(resume_state, refuses_an_optimizer_that_cannot_say_what_it_holds) {
    iso_module *net = create_model();
    iso_optimizer mute = {.ops = &mute_ops};
    cr_fails(iso_training_state(net, &mute, state), ISO_ERR_UNSUPPORTED,
             "the state of a mute optimizer cannot be saved");
    iso_module_destroy(&net);
}

// Of bytes from a file some are no value of a bool, and some are no setting. Old files lack
// maximize, and have nothing but ones for it.
Test(resume_state, brings_loaded_settings_in_order) {
    iso_module *net = create_model();
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    iso_optimizer *optimizer;
    hyper.momentum = 0.9;
    cr_ok(iso_optimizer_create(ISO_SGD, net, &hyper, &optimizer));
    cr_ok(iso_training_state(net, optimizer, state));
    *(uint8_t *)find(ISO_STATE_SHARED, "optimizer/sgd/param_groups.0.nesterov")->data = 2;
    const iso__array *maximize = find(ISO_STATE_SHARED, "optimizer/sgd/param_groups.0.maximize");
    cr_assert(maximize->optional);
    *(uint8_t *)maximize->data = 0xff;
    cr_ok(iso_training_loaded(net, optimizer));
    cr_assert(!iso_optimizer_hyper(optimizer)->maximize);
    cr_assert_eq(*(uint8_t *)find(ISO_STATE_SHARED, "optimizer/sgd/param_groups.0.nesterov")->data,
                 1);
    *(double *)find(ISO_STATE_SHARED, "optimizer/sgd/param_groups.0.lr")->data = -1;
    cr_fails(iso_training_loaded(net, optimizer), ISO_ERR_ARG, "learning rate -1");
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&net);
}

// An optimizer around another.
typedef struct wrapper {
    iso_optimizer base;
    iso_optimizer *wrapped;
    uint8_t nesterov; // of the wrapped one, when this one was told
} wrapper;

static iso_optimizer *wrapper_inner(iso_optimizer *self) { return ((wrapper *)self)->wrapped; }
static void wrapper_zero_grad(iso_optimizer *self) { iso_optimizer_zero_grad(wrapper_inner(self)); }
static iso_status wrapper_loaded(iso_optimizer *self) {
    memcpy(&((wrapper *)self)->nesterov, &iso_optimizer_hyper(self)->nesterov, 1);
    return ISO_OK;
}
static const iso_optimizer_ops wrapper_ops = {.name = "wrapper",
                                              .zero_grad = wrapper_zero_grad,
                                              .inner = wrapper_inner,
                                              .loaded = wrapper_loaded};

Test(resume_state, tells_the_innermost_optimizer_first) {
    iso_module *net = create_model();
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    wrapper w = {.base = {.ops = &wrapper_ops}};
    hyper.momentum = 0.9;
    cr_ok(iso_optimizer_create(ISO_SGD, net, &hyper, &w.wrapped));
    cr_ok(iso_training_state(net, &w.base, state));
    *(uint8_t *)find(ISO_STATE_SHARED, "optimizer/sgd/param_groups.0.nesterov")->data = 2;
    cr_ok(iso_training_loaded(net, &w.base));
    cr_assert_eq(w.nesterov, 1);
    iso_optimizer_destroy(&w.wrapped);
    iso_module_destroy(&net);
}

Test(resume_state, loading_makes_gradients_invalid) {
    iso_module *net = create_model();
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    iso_optimizer *optimizer;
    iso_parameter_list list;
    cr_ok(iso_optimizer_create(ISO_SGD, net, &hyper, &optimizer));
    cr_ok(iso_module_parameters(net, &list));
    for (int i = 0; i < list.count; i++) list.item[i]->grad_valid = true;
    cr_ok(iso_training_loaded(net, optimizer));
    for (int i = 0; i < list.count; i++) cr_assert(!list.item[i]->grad_valid);
    iso_parameter_list_destroy(&list);
    iso_optimizer_destroy(&optimizer);
    iso_module_destroy(&net);
}

// ---- Files of version 1 -------------------------------------------------------------------------

// What version 1 called an entry, and what it is called today.
static const char *const renamed[][2] = {
    {"param/fc1.weight", "param/fc1.weight"},
    {"optimizer/adam/lr", "optimizer/adam/param_groups.0.lr"},
    {"optimizer/adam/step", "optimizer/adam/param_groups.0.step"},
    {"optimizer/adam/group12/lr", "optimizer/adam/param_groups.12.lr"},
    {"optimizer/adam/groups", "optimizer/adam/param_groups.params"},
    {"optimizer/adam/exp_avg/fc1.weight", "optimizer/adam/state.fc1.weight.exp_avg"},
    {"optimizer/adam/step/0.fc1.bias", "optimizer/adam/state.0.fc1.bias.step"},
    {"optimizer/wrapper/number", "optimizer/wrapper/number"}, // an optimizer of the caller's
};
enum { RENAMED = sizeof(renamed) / sizeof(renamed[0]) };

Test(resume_state, reads_the_names_of_version_1) {
    const char *path = "resume_state.version-1";
    const int64_t one = 1;
    int64_t number[RENAMED];
    uint64_t hash[RENAMED];
    char sums[RENAMED * ISO__SEAL_DIGITS + 1] = "";
    iso__array array[RENAMED];
    for (int i = 0; i < RENAMED; i++) {
        number[i] = i;
        array[i] = (iso__array){
            .name = renamed[i][0], .dtype = "I64", .ndim = 1, .shape = &one, .data = &number[i]};
    }
    cr_ok(iso__set_hashes(array, RENAMED, hash));
    for (int i = 0; i < RENAMED; i++) iso__seal_text(hash[i], sums + i * ISO__SEAL_DIGITS);
    const iso__note notes[] = {{"isotherm.version", "1"},   {"isotherm.step", "7"},
                               {"isotherm.ranks", "1"},     {"isotherm.rank", "shared"},
                               {"isotherm.own", "no"},      {"isotherm.set", "0123456789abcdef"},
                               {"isotherm.checksums", sums}};
    cr_ok(iso__safetensors_write(path, true, notes, 7, array, RENAMED));
    iso__safetensors file;
    iso__set_head head;
    cr_ok(iso__set_open(path, &file, &head));
    cr_ok(iso__set_load(&file));
    for (int i = 0; i < RENAMED; i++) {
        const iso__stored *stored = iso__safetensors_find(&file, renamed[i][1]);
        cr_assert(stored, "%s", renamed[i][1]);
        cr_assert_eq(*(int64_t *)((char *)file.data + stored->begin), i, "%s", renamed[i][1]);
    }
    cr_assert_eq(head.step, 7);
    iso__safetensors_close(&file);
    remove(path);
}
