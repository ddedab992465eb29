// SPDX-License-Identifier: MIT
// Runs that are interrupted, saved and resumed in new objects go on with the same bits.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/tensor_access.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(np1_resume, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_resume, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_resume, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_resume, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

// ---- A model of any seed ------------------------------------------------------------------------

static uint64_t build_seed = 1;

static iso_status add(iso_module *net, iso_status made, const char *name, iso_module **layer) {
    return made < 0 ? made : iso_sequential_add_take(net, name, *layer);
}

// conv 2-3 3x3, relu, dropout2d, flatten, fc1 192-16, relu, dropout, fc2 16-5.
static iso_status build_seeded(iso_device *device, bool dropout, iso_module **out) {
    iso_rng rng = {.seed = build_seed};
    iso_module *net, *m = NULL;
    iso_conv2d_config c = {
        .in_channels = TRAINER_CHANNELS, .out_channels = 3, .kernel_size = {3, 3}};
    iso_status s = iso_sequential_create(device, &net);
    if (s >= 0) s = add(net, iso_conv2d_create(device, &c, &rng, &m), "conv", &m);
    if (s >= 0) s = add(net, iso_relu_create(device, &m), "relu1", &m);
    if (s >= 0 && dropout)
        s = add(net, iso_dropout2d_create(device, 0.25, &rng, &m), "dropout1", &m);
    if (s >= 0) s = add(net, iso_flatten_create(device, &m), "flatten", &m);
    if (s >= 0) s = add(net, iso_linear_create(device, 192, 16, true, &rng, &m), "fc1", &m);
    if (s >= 0) s = add(net, iso_relu_create(device, &m), "relu2", &m);
    if (s >= 0 && dropout) s = add(net, iso_dropout_create(device, 0.5, &rng, &m), "dropout2", &m);
    if (s >= 0)
        s = add(net, iso_linear_create(device, 16, TRAINER_CLASSES, true, &rng, &m), "fc2", &m);
    *out = net;
    return s;
}

static trainer_config config_of(iso_optimizer_kind kind, iso_sync sync) {
    trainer_config config = trainer_default();
    config.optimizer = kind;
    config.hyper = iso_hyper_default(kind);
    config.hyper.lr = kind == ISO_SGD ? 0.05 : kind == ISO_ADADELTA ? 1 : 0.003;
    config.hyper.momentum = kind == ISO_SGD ? 0.9 : 0;
    config.hyper.weight_decay = 0.001;
    config.dropout = true;
    config.build = build_seeded;
    config.sync = sync;
    return config;
}

static uint64_t hash_after(const trainer_config *config, int steps) {
    uint64_t hash = 0;
    build_seed = 1;
    iso_assert_ok(trainer_run(test_comm, config, steps, &hash));
    return hash;
}

// The state of a trainer and the step that it has reached.
static iso_state *state_of(trainer *t, int64_t *reached) {
    iso_state *state;
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(t->model, t->optimizer, state));
    iso_assert_ok(
        iso_state_add(state, ISO_STATE_SHARED, "user/reached", ISO_STATE_I64, 1, reached));
    return state;
}

static void save(trainer *t, int64_t step) {
    int64_t reached = step;
    iso_state *state = state_of(t, &reached);
    iso_assert_ok(iso_resume_save(test_comm, resume_path(), step, state));
    iso_state_destroy(&state);
}

static void load(trainer *t, int64_t wanted) {
    int64_t reached = -1, step = -1;
    iso_state *state = state_of(t, &reached);
    iso_assert_ok(iso_resume_load(test_comm, resume_path(), state, &step));
    iso_assert_ok(iso_training_loaded(t->model, t->optimizer));
    iso_state_destroy(&state);
    iso_assert_all(step == wanted && reached == wanted);
}

static void run(trainer *t, int from, int to) {
    for (int step = from; step < to; step++) iso_assert_ok(trainer_step(t, step, NULL));
}

// ---- The same bits ------------------------------------------------------------------------------

// Ten steps, then ten more in new objects with other seeds, settings and a past of their own.
static uint64_t interrupted(const trainer_config *first, trainer_config second) {
    trainer t;
    uint64_t hash = 0;
    build_seed = 1;
    iso_assert_ok(trainer_create(&t, test_comm, first));
    run(&t, 0, 10);
    save(&t, 10);
    trainer_destroy(&t);
    build_seed = 99;
    second.hyper.lr = 0.5;
    second.hyper.weight_decay = 0;
    second.hyper.maximize = !first->hyper.maximize;
    iso_assert_ok(trainer_create(&t, test_comm, &second));
    run(&t, 3, 6);
    load(&t, 10);
    run(&t, 10, 20);
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

static void goes_on(void) {
    static const iso_optimizer_kind kinds[] = {ISO_SGD, ISO_ADAM, ISO_ADAMW, ISO_ADADELTA};
    for (int k = 0; k < 4; k++) {
        trainer_config lazy = config_of(kinds[k], ISO_SYNC_LAZY);
        trainer_config blocking = config_of(kinds[k], ISO_SYNC_BLOCKING);
        uint64_t expected = hash_after(&lazy, 20);
        iso_assert_all(interrupted(&lazy, lazy) == expected);
        iso_assert_all(interrupted(&blocking, blocking) == expected);
        iso_assert_all(interrupted(&lazy, blocking) == expected);
    }
}

Test(np1_resume, goes_on_with_the_same_bits) { goes_on(); }
Test(np2_resume, goes_on_with_the_same_bits) { goes_on(); }
Test(np3_resume, goes_on_with_the_same_bits) { goes_on(); }
Test(np4_resume, goes_on_with_the_same_bits) { goes_on(); }

// What rounding has cut off on each rank, and will go along later, is part of the state.
static void error_feedback_goes_on(void) {
    const iso_comm_hook *const hook[] = {&iso_hook_bf16_feedback, &iso_hook_fp8};
    trainer_config config = config_of(ISO_ADAM, ISO_SYNC_LAZY);
    for (int h = 0; h < 2; h++) {
        config.hook = hook[h];
        iso_assert_all(interrupted(&config, config) == hash_after(&config, 20));
    }
}

Test(np2_resume, error_feedback_goes_on) { error_feedback_goes_on(); }
Test(np3_resume, error_feedback_goes_on) { error_feedback_goes_on(); }

// Saving looks at the run without touching it.
Test(np2_resume, saving_changes_nothing) {
    trainer_config config = config_of(ISO_ADAM, ISO_SYNC_LAZY);
    uint64_t expected = hash_after(&config, 20), hash = 0;
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int step = 0; step < 20; step++) {
        run(&t, step, step + 1);
        save(&t, step + 1);
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == expected);
    trainer_destroy(&t);
}

// Frozen parameters are state too.
static iso_status build_frozen(iso_device *device, bool dropout, iso_module **out) {
    iso_parameter_list list;
    iso_status status = build_seeded(device, dropout, out);
    if (status >= 0) status = iso_module_parameters(*out, &list);
    if (status < 0) return status;
    list.item[0]->requires_grad = false;
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

Test(np2_resume, frozen_parameters_come_back) {
    trainer_config config = config_of(ISO_SGD, ISO_SYNC_LAZY);
    config.build = build_frozen;
    iso_assert_all(interrupted(&config, config) == hash_after(&config, 20));
}

// A run of one rank without the wrapper continues with it, and the other way round.
Test(np1_resume, the_wrapper_is_no_part_of_the_model) {
    trainer_config config = config_of(ISO_SGD, ISO_SYNC_LAZY);
    trainer t;
    iso_optimizer *serial;
    iso_state *state;
    int64_t step = 0;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    run(&t, 0, 3);
    iso_module *inner = iso_data_parallel_module(t.model);
    iso_assert_ok(iso_optimizer_create(ISO_SGD, inner, &config.hyper, &serial));
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(inner, serial, state));
    iso_assert_ok(iso_resume_save(test_comm, resume_path(), 3, state));
    iso_state_destroy(&state);
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(t.model, t.optimizer, state));
    iso_assert_ok(iso_resume_load(test_comm, resume_path(), state, &step));
    iso_assert_all(step == 3);
    iso_state_destroy(&state);
    iso_optimizer_destroy(&serial);
    trainer_destroy(&t);
}

// ---- Ranks that are not alike -------------------------------------------------------------------

// Runs its child on rank 0 always, on the others at every second call.
static iso_status sometimes_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                    iso_tensor **out) {
    *out = in;
    if (test_rank > 0 && call->number % 2 == 0) return ISO_OK;
    return iso_module_call(self->child[0], ISO_ACT_NONE, in, out);
}

static iso_status sometimes_backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                     iso_tensor **grad_in) {
    if (grad_in) *grad_in = grad_out;
    if (test_rank > 0 && call->number % 2 == 0) return ISO_OK;
    return iso_module_call_backward(self->child[0], grad_out, grad_in);
}

static const iso_module_ops sometimes_ops = {
    .type = "Sometimes", .forward = sometimes_forward, .backward = sometimes_backward};

// flatten, a dropout that runs sometimes, fc.
static iso_status build_sometimes(iso_device *device, bool dropout, iso_module **out) {
    iso_rng rng = {.seed = build_seed};
    iso_module *net, *m = NULL, *sometimes = calloc(1, sizeof(*sometimes));
    (void)dropout;
    iso_status s = iso_sequential_create(device, &net);
    if (s >= 0) s = add(net, iso_flatten_create(device, &m), "flatten", &m);
    if (s >= 0) s = iso_module_init(sometimes, &sometimes_ops, device);
    if (s >= 0) s = iso_dropout_create(device, 0.5, &rng, &m);
    if (s >= 0) s = iso_module_add_child_take(sometimes, "dropout", m);
    if (s >= 0) s = iso_sequential_add_take(net, "sometimes", sometimes);
    if (s >= 0)
        s = add(net, iso_linear_create(device, 200, TRAINER_CLASSES, true, &rng, &m), "fc", &m);
    *out = net;
    return s;
}

Test(np3_resume, every_rank_has_its_own_counters) {
    trainer_config config = config_of(ISO_SGD, ISO_SYNC_LAZY);
    config.build = build_sometimes;
    uint64_t expected = hash_after(&config, 20);
    iso_assert_all(interrupted(&config, config) == expected);
    iso_assert_all(resume_files() == 1);
}

// The forwards of the first dropout below a module; -1: there is none.
static int64_t dropout_forwards(const iso_module *module) {
    if (strncmp(module->ops->type, "Dropout", 7) == 0) return (int64_t)module->forward_number;
    int64_t found = -1;
    for (int i = 0; i < module->child_count && found < 0; i++)
        found = dropout_forwards(module->child[i]);
    return found;
}

// Saves a module that is not data-parallel, whose counters are those of one rank.
static void save_alone(int forwards) {
    iso_device *device;
    iso_module *net;
    iso_optimizer *sgd;
    iso_state *state;
    iso_tensor *x, *y;
    int64_t reached = 5;
    const int64_t shape[] = {2, TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE};
    iso_assert_ok(iso_device_create("cpu", &device));
    iso_assert_ok(build_seeded(device, true, &net));
    iso_assert_ok(iso_optimizer_create(ISO_SGD, net, NULL, &sgd));
    iso_assert_ok(iso_tensor_create(device, ISO_F32, 4, shape, &x));
    iso_assert_ok(iso_tensor_fill(x, 1));
    for (int i = 0; i < forwards; i++) iso_assert_ok(iso_module_forward(net, x, &y));
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(net, sgd, state));
    iso_assert_ok(
        iso_state_add(state, ISO_STATE_SHARED, "user/reached", ISO_STATE_I64, 1, &reached));
    iso_assert_ok(iso_resume_save(test_comm, resume_path(), 5, state));
    iso_state_destroy(&state);
    iso_tensor_destroy(&x);
    iso_optimizer_destroy(&sgd);
    iso_module_destroy(&net);
    iso_device_destroy(&device);
}

Test(np3_resume, counters_of_one_rank_become_those_of_all) {
    trainer_config config = config_of(ISO_SGD, ISO_SYNC_LAZY);
    trainer t;
    config.hyper = iso_hyper_default(ISO_SGD);
    save_alone(7);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    load(&t, 5);
    iso_assert_all(dropout_forwards(t.model) == 7);
    trainer_destroy(&t);
}

// The hash of this rank's parameters after a run in which ranks drift apart.
static uint64_t drifted(const trainer_config *config, bool stop) {
    trainer t;
    uint64_t hash = 0;
    build_seed = 1;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    run(&t, 0, 5);
    if (stop) {
        save(&t, 5);
        trainer_destroy(&t);
        build_seed = 99;
        iso_assert_ok(trainer_create(&t, test_comm, config));
        load(&t, 5);
    }
    run(&t, 5, 10);
    iso_assert_ok(iso_parameter_hash(t.model, test_comm, &hash, NULL));
    trainer_destroy(&t);
    return hash;
}

static void drifts(trainer_config config) {
    uint64_t straight = drifted(&config, false), lowest = straight, highest = straight;
    MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &highest, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    iso_assert_all(lowest != highest);
    iso_assert_all(drifted(&config, true) == straight);
    iso_assert_all(resume_files() == 1 + test_size);
}

Test(np3_resume, ranks_without_exchange_keep_their_own) {
    drifts(config_of(ISO_ADAM, ISO_SYNC_NONE));
}

Test(np4_resume, nodes_without_exchange_keep_their_own) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    trainer_config config = config_of(ISO_SGD, ISO_SYNC_LAZY);
    config.scope = ISO_SCOPE_NODE;
    drifts(config);
}

// ---- Wrappers -----------------------------------------------------------------------------------

// An optimizer around another that lets ranks differ and has a number of its own, as daso has.
typedef struct wrapper {
    iso_optimizer base;
    iso_optimizer *wrapped;
    int64_t number;
    double lr_when_loaded;
} wrapper;

static iso_optimizer *wrapper_inner(iso_optimizer *self) { return ((wrapper *)self)->wrapped; }

static void wrapper_zero_grad(iso_optimizer *self) { iso_optimizer_zero_grad(wrapper_inner(self)); }

static iso_status wrapper_state(iso_optimizer *self, iso_state *state) {
    return iso_state_add(state, ISO_STATE_OWN, "optimizer/wrapper/number", ISO_STATE_I64, 1,
                         &((wrapper *)self)->number);
}

static iso_status wrapper_loaded(iso_optimizer *self) {
    ((wrapper *)self)->lr_when_loaded = iso_optimizer_hyper(self)->lr;
    return ISO_OK;
}

static const iso_optimizer_ops wrapper_ops = {.name = "wrapper",
                                              .zero_grad = wrapper_zero_grad,
                                              .inner = wrapper_inner,
                                              .state = wrapper_state,
                                              .loaded = wrapper_loaded,
                                              .ranks_differ = true};

Test(np3_resume, a_wrapper_that_lets_ranks_differ_makes_all_of_them_own) {
    trainer_config config = config_of(ISO_SGD, ISO_SYNC_LAZY);
    trainer t;
    iso_state *state;
    int64_t step = 0;
    for (int pass = 0; pass < 2; pass++) {
        build_seed = 1;
        config.hyper.lr = pass == 0 ? 0.25 : 0.5;
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        wrapper w = {.base = {.ops = &wrapper_ops}, .wrapped = t.optimizer};
        iso_tensor *value;
        iso_parameter_list list;
        iso_assert_ok(iso_module_parameters(t.model, &list));
        iso_assert_ok(iso_parameter_value(list.item[0], &value));
        w.number = pass == 0 ? 7 + test_rank : -1;
        tensor_swap(value, 0, pass == 0 ? 0.5f + (float)test_rank : -1);
        iso_assert_ok(iso_state_create(&state));
        iso_assert_ok(iso_training_state(t.model, &w.base, state));
        if (pass == 0) {
            iso_assert_ok(iso_resume_save(test_comm, resume_path(), 1, state));
        } else {
            iso_assert_ok(iso_resume_load(test_comm, resume_path(), state, &step));
            iso_assert_ok(iso_training_loaded(t.model, &w.base));
            float first = tensor_swap(value, 0, 0);
            iso_assert_all(w.number == 7 + test_rank && first == 0.5f + (float)test_rank);
            iso_assert_all(w.lr_when_loaded == 0.25);
        }
        iso_state_destroy(&state);
        iso_parameter_list_destroy(&list);
        trainer_destroy(&t);
    }
}

// ---- Other models -------------------------------------------------------------------------------

static void refuses(const trainer_config *config, const char *words) {
    trainer t;
    uint64_t before = 0, after = 1;
    int64_t reached = 5, step = -1;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    iso_assert_ok(trainer_hash(&t, &before));
    iso_state *state = state_of(&t, &reached);
    iso_status status = iso_resume_load(test_comm, resume_path(), state, &step);
    iso_assert_all(status == ISO_ERR_MISMATCH && strstr(iso_last_error()->message, words));
    iso_assert_ok(trainer_hash(&t, &after));
    iso_assert_all(before == after && reached == 5 && step == -1);
    iso_state_destroy(&state);
    trainer_destroy(&t);
}

Test(np2_resume, another_model_or_optimizer_is_refused) {
    trainer_config saved = config_of(ISO_SGD, ISO_SYNC_LAZY), other = saved;
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &saved));
    save(&t, 4);
    trainer_destroy(&t);
    other.build = build_small_cnn;
    refuses(&other, "of another model");
    refuses(&other, "param/conv2.weight");
    other = saved;
    other.dropout = false;
    refuses(&other, "forward_counters has shape [2, 11] there and [2, 7] here");
    other = config_of(ISO_ADAM, ISO_SYNC_LAZY);
    refuses(&other, "optimizer/adam/param_groups.0.lr");
    other = config_of(ISO_SGD, ISO_SYNC_NONE);
    refuses(&other, "it has no entries that differ between ranks, and this run has some");
}

// ---- One entry ----------------------------------------------------------------------------------

static void save_numbers(int step) {
    numbers n;
    iso_assert_ok(numbers_create(&n, false));
    iso_assert_ok(numbers_save(&n, test_comm, step));
    numbers_destroy(&n);
}

static void expect_entry(const char *name, size_t bytes, iso_status wanted, int step) {
    numbers there = {.with_own = false};
    iso_status status = iso_resume_read(test_comm, resume_path(), name, bytes, there.shared);
    iso_assert_all(status == wanted);
    if (status >= 0) iso_assert_all(numbers_are(&there, step));
    if (status < 0) iso_assert_all(there.shared[0] == 0);
}

// Its last bytes are the entry's.
static void damage(const char *file) {
    if (test_rank != 0) return;
    FILE *stream = fopen(file, "r+b");
    if (!stream) return;
    fseek(stream, -3, SEEK_END);
    int c = fgetc(stream);
    fseek(stream, -3, SEEK_END);
    fputc(c ^ 1, stream);
    fclose(stream);
}

Test(np2_resume, one_entry_of_the_newest_sound_set_is_read_alone) {
    size_t bytes = sizeof(((numbers *)0)->shared);
    expect_entry("user/shared", bytes, ISO_ERR_IO, 0);
    save_numbers(3);
    save_numbers(7);
    expect_entry("user/shared", bytes, ISO_OK, 7);
    expect_entry("user/shared", bytes - 8, ISO_ERR_MISMATCH, 0);
    expect_entry("user/other", bytes, ISO_ERR_MISMATCH, 0);
    damage(resume_file(7, -1, ""));
    expect_entry("user/shared", bytes, ISO_OK, 3);
    damage(resume_file(3, -1, ""));
    expect_entry("user/shared", bytes, ISO_ERR_FORMAT, 0);
}
