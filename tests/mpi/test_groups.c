// SPDX-License-Identifier: MIT
// Parameter groups and schedules under DataParallel, DASO and resuming: what step() saw of every
// group is what its update uses.
#include "common/daso_fixture.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_groups, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_groups, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_groups, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

// ---- Groups ---------------------------------------------------------------------------------------

static bool ends_with(const char *name, const char *end) {
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

static bool is_bias(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter, (void)user;
    return ends_with(name, ".bias");
}

static bool is_first_conv(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter, (void)user;
    return strcmp(name, "conv1.weight") == 0;
}

// Biases without weight decay, of the same layers as weights with it, and one weight that is slow.
static iso_status with_groups(iso_optimizer *inner) {
    iso_hyper hyper = *iso_optimizer_hyper(inner);
    hyper.weight_decay = 0;
    hyper.lr *= 2;
    iso_status status = iso_optimizer_add_group(inner, &hyper, is_bias, NULL, NULL);
    if (status < 0) return status;
    hyper.lr /= 10;
    hyper.momentum = hyper.momentum > 0 ? 0.5 : 0;
    hyper.beta1 = 0.7;
    return iso_optimizer_add_group(inner, &hyper, is_first_conv, NULL, NULL);
}

static trainer_config config_of(iso_optimizer_kind kind) {
    trainer_config config = trainer_default();
    config.optimizer = kind;
    config.hyper = iso_hyper_default(kind);
    config.hyper.lr = kind == ISO_SGD ? 0.05 : kind == ISO_ADADELTA ? 1 : 0.003;
    config.hyper.momentum = kind == ISO_SGD || kind == ISO_RMSPROP ? 0.9 : 0;
    config.hyper.centered = true;
    config.hyper.weight_decay = 0.01;
    config.prepare = with_groups;
    return config;
}

static uint64_t hash_after(const trainer_config *config, int steps) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_run(test_comm, config, steps, &hash));
    return hash;
}

static void lazy_equals_blocking(void) {
    for (int kind = ISO_SGD; kind <= ISO_NADAM; kind++) {
        trainer_config config = config_of((iso_optimizer_kind)kind);
        uint64_t lazy = hash_after(&config, 20);
        config.sync = ISO_SYNC_BLOCKING;
        iso_assert_all(hash_after(&config, 20) == lazy);
        config.prepare = NULL;
        iso_assert_all(hash_after(&config, 20) != lazy);
    }
}

Test(np1_groups, lazy_equals_blocking) { lazy_equals_blocking(); }
Test(np2_groups, lazy_equals_blocking) { lazy_equals_blocking(); }
Test(np3_groups, lazy_equals_blocking) { lazy_equals_blocking(); }

static void equals_one_rank(iso_optimizer_kind kind) {
    trainer_config config = config_of(kind);
    trainer many, one;
    iso_comm *alone;
    double difference = 1;
    config.hyper.eps = 1e-4;
    iso_assert_ok(trainer_create(&many, test_comm, &config));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(trainer_create(&one, alone, &config));
    iso_assert_ok(trainer_train(&many, 20));
    iso_assert_ok(trainer_train(&one, 20));
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    iso_assert_all(difference < 2e-5);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
}

Test(np2_groups, equals_one_rank_on_the_whole_batch) { equals_one_rank(ISO_SGD); }
Test(np3_groups, equals_one_rank_on_the_whole_batch) { equals_one_rank(ISO_ADAGRAD); }

Test(np2_groups, steps_with_groups_allocate_nothing) {
    trainer_config config = config_of(ISO_LAMB);
    trainer t;
    long long before, after;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 3));
    iso_memory_balance(NULL, NULL, &before);
    iso_assert_ok(trainer_train(&t, 10));
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before);
    trainer_destroy(&t);
}

Test(np1_groups, a_wrapped_optimizer_takes_no_more_groups) {
    trainer_config config = config_of(ISO_SGD);
    trainer t;
    config.prepare = NULL;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_optimizer *inner = t.optimizer->ops->inner(t.optimizer);
    cr_assert_eq(iso_optimizer_add_group(t.optimizer, &config.hyper, is_bias, NULL, NULL),
                 ISO_ERR_STATE);
    cr_assert_eq(iso_optimizer_add_group(inner, &config.hyper, is_bias, NULL, NULL), ISO_ERR_STATE);
    cr_assert_eq(iso_optimizer_groups(t.optimizer), 1);
    trainer_destroy(&t);
}

// ---- Schedules stepped before the lazy update -----------------------------------------------------

// PyTorch's order: step of the optimizer, then of the schedule, with updates still to come. One
// cycle moves momentum too, and a plateau of the metric strikes at every second value.
static uint64_t scheduled(const trainer_config *config, bool plateau) {
    trainer t;
    uint64_t hash = 0;
    iso_schedule schedule = iso_schedule_default(ISO_SCHEDULE_ONE_CYCLE, config->hyper.lr, 12);
    iso_lr_plateau_config reduce = ISO_LR_PLATEAU_DEFAULT;
    iso_lr_plateau on_plateau;
    reduce.plateau.patience = 1;
    reduce.factor = 0.5;
    iso_assert_ok(iso_lr_plateau_init(&on_plateau, &reduce));
    iso_assert_ok(trainer_create(&t, test_comm, config));
    if (!plateau) iso_schedule_step(&schedule, t.optimizer);
    for (int step = 0; step < 12; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        if (plateau)
            iso_lr_plateau_step(&on_plateau, 1, t.optimizer);
        else
            iso_schedule_step(&schedule, t.optimizer);
    }
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

static void a_stepped_schedule_changes_no_pending_update(void) {
    static const iso_optimizer_kind kinds[] = {ISO_SGD, ISO_ADAM, ISO_LAMB};
    for (int k = 0; k < 3; k++) {
        for (int plateau = 0; plateau < 2; plateau++) {
            trainer_config config = config_of(kinds[k]);
            uint64_t constant = hash_after(&config, 12);
            uint64_t lazy = scheduled(&config, plateau);
            config.sync = ISO_SYNC_BLOCKING;
            iso_assert_all(scheduled(&config, plateau) == lazy && lazy != constant);
        }
    }
}

Test(np1_groups, a_stepped_schedule_changes_no_pending_update) {
    a_stepped_schedule_changes_no_pending_update();
}
Test(np2_groups, a_stepped_schedule_changes_no_pending_update) {
    a_stepped_schedule_changes_no_pending_update();
}

// ---- Under DASO -----------------------------------------------------------------------------------

// Against the serial model, whose optimizers have the same groups and are told the same rates:
// HeAT's daso, which steps the schedule itself, in its blocking phase with f32.
static void daso_heat_follows(void) {
    trainer t;
    daso_model m;
    iso_schedule schedule = iso_schedule_default(ISO_SCHEDULE_COSINE, 0.02, 18);
    daso_case c = heat_case_default(4);
    double difference = INFINITY;
    c.train.prepare = with_groups;
    c.heat_config.scheduler = &schedule;
    c.heat_config.last_batch = 9;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < 10; step++) {
        for (int r = 0; r < test_size; r++) iso_schedule_step(&schedule, m.rank[r].optimizer);
        iso_assert_ok(model_batch(&m, step, ISO_SCOPE_WORLD));
        iso_assert_ok(trainer_step(&t, step, NULL));
    }
    iso_assert_all(iso_optimizer_group_hyper(t.optimizer, 2)->lr <
                   iso_optimizer_hyper(t.optimizer)->lr);
    iso_assert_ok(daso_difference(&t, &m, &difference));
    iso_assert_all(difference < DASO_ROUNDING);
    model_destroy(&m);
    daso_close(&t);
}

Test(np1_groups, daso_heat_steps_the_schedule_of_every_group) { daso_heat_follows(); }

// Averaging parameters after each plain SGD step is averaging gradients, also with groups.
Test(np2_groups, local_sgd_of_period_one_is_data_parallel) {
    trainer local, plain;
    double difference = INFINITY;
    daso_case c = daso_case_default(20);
    c.daso = iso_local_sgd_config(20, 1);
    c.train.hyper.momentum = 0;
    c.train.hyper.weight_decay = 0.05;
    c.train.rows = 12;
    c.train.prepare = with_groups;
    iso_assert_ok(daso_open(&local, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_create(&plain, test_comm, &c.train));
    for (int step = 0; step < 20; step++) {
        iso_assert_ok(trainer_step(&local, step, NULL));
        iso_assert_ok(trainer_step(&plain, step, NULL));
    }
    iso_assert_ok(trainer_difference(&local, &plain, &difference));
    iso_assert_all(difference < DASO_ROUNDING);
    daso_close(&local);
    trainer_destroy(&plain);
}

// ---- Resuming -------------------------------------------------------------------------------------

static iso_state *state_of(trainer *t) {
    iso_state *state;
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(t->model, t->optimizer, state));
    return state;
}

static void save(trainer *t, int64_t step) {
    iso_state *state = state_of(t);
    iso_assert_ok(iso_resume_save(test_comm, resume_path(), step, state));
    iso_state_destroy(&state);
}

// What loading and taking it over came to.
static iso_status load(trainer *t) {
    int64_t step = -1;
    iso_state *state = state_of(t);
    iso_status status = iso_resume_load(test_comm, resume_path(), state, &step);
    if (status >= 0) status = iso_training_loaded(t->model, t->optimizer);
    iso_state_destroy(&state);
    return status;
}

static void run(trainer *t, const iso_schedule *schedule, int from, int to) {
    for (int step = from; step < to; step++) {
        iso_schedule_step(schedule, t->optimizer);
        iso_assert_ok(trainer_step(t, step, NULL));
    }
}

static iso_status with_slower_groups(iso_optimizer *inner) {
    iso_optimizer_hyper(inner)->lr = 1e-9;
    return with_groups(inner);
}

// The rates that the groups' schedules start from are saved as well.
static void goes_on(iso_optimizer_kind kind) {
    trainer_config config = config_of(kind);
    iso_schedule schedule = iso_schedule_default(ISO_SCHEDULE_COSINE, config.hyper.lr, 30);
    trainer t;
    uint64_t straight = 0, hash = 1;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    run(&t, &schedule, 0, 20);
    iso_assert_ok(trainer_hash(&t, &straight));
    trainer_destroy(&t);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    run(&t, &schedule, 0, 10);
    save(&t, 10);
    trainer_destroy(&t);
    config.prepare = with_slower_groups;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    run(&t, &schedule, 3, 6);
    iso_assert_ok(load(&t));
    run(&t, &schedule, 10, 20);
    iso_assert_ok(trainer_hash(&t, &hash));
    iso_assert_all(hash == straight);
    trainer_destroy(&t);
}

Test(np1_groups, resuming_goes_on_with_the_same_bits) { goes_on(ISO_RMSPROP); }
Test(np2_groups, resuming_goes_on_with_the_same_bits) { goes_on(ISO_ADAGRAD); }
Test(np3_groups, resuming_goes_on_with_the_same_bits) { goes_on(ISO_LAMB); }
Test(np2_groups, nadam_goes_on_with_the_same_bits) { goes_on(ISO_NADAM); }

static bool is_fc(const char *name, const iso_parameter *parameter, void *user) {
    (void)parameter, (void)user;
    return strncmp(name, "fc", 2) == 0;
}

static iso_status with_other_groups(iso_optimizer *inner) {
    iso_hyper hyper = *iso_optimizer_hyper(inner);
    iso_status status = iso_optimizer_add_group(inner, &hyper, is_fc, NULL, NULL);
    return status < 0 ? status : iso_optimizer_add_group(inner, &hyper, is_bias, NULL, NULL);
}

Test(np2_groups, resuming_with_other_groups_is_refused) {
    trainer_config config = config_of(ISO_SGD);
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 2));
    save(&t, 2);
    trainer_destroy(&t);
    config.prepare = with_other_groups;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_all(load(&t) == ISO_ERR_MISMATCH);
    iso_assert_all(strstr(iso_last_error()->message, "make the same groups"));
    trainer_destroy(&t);
    config.prepare = NULL;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_all(load(&t) == ISO_ERR_MISMATCH);
    trainer_destroy(&t);
}
