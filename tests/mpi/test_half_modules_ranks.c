// SPDX-License-Identifier: MIT
// Modules with parameters of bf16 and f16 on several ranks: after any exchange they are those of
// f32 under autocast, rounded.
#include "common/any_device.h"
#include "common/daso_fixture.h"
#include "common/half_values.h"
#include "common/mpi_fixture.h"
#include "common/ranks_fixture.h"
#include "common/resume_fixture.h"
#include "common/zero_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <isotherm/layers.h>
#include <isotherm/state_dict.h>
#include <math.h>
#include <string.h>

TestSuite(np1_half_modules, .init = resume_setup, .fini = resume_teardown, .timeout = 120);
TestSuite(np2_half_modules, .init = resume_setup, .fini = resume_teardown, .timeout = 120);
TestSuite(np3_half_modules, .init = resume_setup, .fini = resume_teardown, .timeout = 120);
TestSuite(np4_half_modules, .init = resume_setup, .fini = resume_teardown, .timeout = 120);

enum { STEPS = 8, PERIODIC_STEPS = 24 };

// The type of activations, and that of the parameters, whose first values are numbers of `half`.
static iso_dtype half = ISO_BF16, parameters;

static iso_status append(iso_module *net, const char *name, iso_status made, iso_module **layer) {
    return made < 0 ? made : iso_sequential_add_take(net, name, *layer);
}

// flatten, fc1, layer norm (whose parameters stay f32), relu, fc2. A piece_mb of 0.01 cuts fc1.
static iso_status fill(iso_device *device, iso_module *net) {
    enum { PIXELS = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE, HIDDEN = 64 };
    iso_rng rng = {.seed = 5};
    iso_layer_norm_config norm = {.ndim = 1, .normalized_shape = {HIDDEN}};
    iso_module *m = NULL;
    ISO_TRY(append(net, "flatten", iso_flatten_create(device, &m), &m));
    ISO_TRY(append(net, "fc1", iso_linear_create(device, PIXELS, HIDDEN, true, &rng, &m), &m));
    ISO_TRY(append(net, "norm", iso_layer_norm_create(device, &norm, &m), &m));
    ISO_TRY(append(net, "relu", iso_relu_create(device, &m), &m));
    return append(net, "fc2", iso_linear_create(device, HIDDEN, TRAINER_CLASSES, true, &rng, &m),
                  &m);
}

static iso_status convert(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    ISO_TRY(iso_sequential_create(device, out));
    iso_status status = fill(device, *out);
    if (status >= 0) status = iso_module_to(*out, half);
    if (status >= 0) status = iso_module_to(*out, parameters);
    if (status < 0) iso_module_destroy(out);
    ISO_TRY(status);
    return iso_autocast_create_take(*out, half, out);
}

// Whether the parameters of low are those of wide, rounded. Collective.
static bool is_rounded(trainer *low, trainer *wide) {
    iso_parameter_list p, q;
    int64_t wrong = 0, all = 0;
    iso_assert_ok(iso_module_parameters(low->model, &p));
    iso_assert_ok(iso_module_parameters(wide->model, &q));
    for (int i = 0; i < p.count; i++) {
        iso_tensor *x, *y;
        void *found, *wanted;
        iso_assert_ok(iso_parameter_value(p.item[i], &x));
        iso_assert_ok(iso_parameter_value(q.item[i], &y));
        bool norm = strncmp(p.name[i], "norm.", 5) == 0;
        iso_assert_all(x->dtype == (norm ? ISO_F32 : half) && y->dtype == ISO_F32);
        iso_assert_ok(iso_tensor_map(x, ISO_READ, &found));
        iso_assert_ok(iso_tensor_map(y, ISO_READ, &wanted));
        for (int64_t k = 0; k < x->count; k++) {
            float z = ((float *)wanted)[k];
            wrong += norm ? ((float *)found)[k] != z : ((uint16_t *)found)[k] != half_bits(half, z);
        }
        iso_assert_ok(iso_tensor_unmap(x));
        iso_assert_ok(iso_tensor_unmap(y));
        all += x->count;
    }
    iso_parameter_list_destroy(&p), iso_parameter_list_destroy(&q);
    if (wrong > 0) printf("# rank %d: %d of %d differ\n", test_rank, (int)wrong, (int)all);
    return wrong == 0;
}

// ---- Data parallel ----------------------------------------------------------------------------------

static trainer_config config_of(iso_sync sync, double piece_mb) {
    trainer_config config = trainer_default();
    config.build = convert;
    config.sync = sync;
    config.piece_mb = piece_mb;
    config.optimizer = ISO_ADAM;
    config.hyper = iso_hyper_default(ISO_ADAM);
    config.hyper.lr = 1e-3;
    return config;
}

static void trains_alike(iso_sync sync, double piece_mb, int stage, const iso_comm_hook *hook) {
    trainer_config config = config_of(sync, piece_mb);
    trainer wide, low;
    config.hook = hook;
    if (piece_mb == 0) config.bucket_mb = 1; // both types of values in one bucket of gradients
    parameters = ISO_F32;
    iso_assert_ok(trainer_create(&wide, test_comm, &config));
    iso_assert_ok(trainer_train(&wide, STEPS));
    parameters = half;
    zero_create_trainer(&low, config, stage);
    iso_assert_ok(trainer_train(&low, STEPS));
    iso_assert_ok(iso_data_parallel_finish(low.model));
    iso_assert_ok(iso_data_parallel_finish(wide.model));
    iso_assert_all(is_rounded(&low, &wide));
    trainer_destroy(&low);
    trainer_destroy(&wide);
}

static void all_syncs(int stage) {
    if (stage > 1 && strcmp(test_device(), "cpu") != 0)
        test_mpi_skip("stages 2 and 3 of ZeRO work in the host's memory only");
    for (int i = 0; i < 2; i++) {
        half = i ? ISO_F16 : ISO_BF16;
        trains_alike(ISO_SYNC_LAZY, 0, stage, NULL);
        trains_alike(ISO_SYNC_LAZY, 0.01, stage, NULL);
        trains_alike(ISO_SYNC_BLOCKING, 0, stage, NULL);
    }
}
Test(np1_half_modules, train_as_f32_under_autocast) { all_syncs(0); }
Test(np2_half_modules, train_as_f32_under_autocast) { all_syncs(0); }
Test(np3_half_modules, train_as_f32_under_autocast) { all_syncs(0); }
Test(np2_half_modules, the_same_with_16_bits_on_the_wire) {
    trains_alike(ISO_SYNC_LAZY, 0, 0, &iso_hook_bf16);
}
Test(np2_half_modules, the_same_with_zero_stage_1) { all_syncs(1); }
Test(np3_half_modules, the_same_with_zero_stage_2) { all_syncs(2); }
Test(np2_half_modules, the_same_with_zero_stage_3) { all_syncs(3); }
Test(np3_half_modules, the_same_with_zero_stage_3) { all_syncs(3); }

// ---- Periodic modes ---------------------------------------------------------------------------------

// Runs that between them use every path of the engine.
enum { VARIANTS = 6 };
static daso_case variant(int i) {
    daso_case c = i == 5 ? heat_case_default(6) : daso_case_default(PERIODIC_STEPS);
    c.train.build = convert;
    c.ranks_per_node = 2;
    c.heat_config.max_global_skips = 4;
    c.daso.warmup_steps = c.daso.cooldown_steps = 3;
    c.daso.global_skip = 5;
    c.daso.batches_to_wait = 3;
    c.daso.wire = i == 0 ? ISO_WIRE_BF16 : ISO_WIRE_F32;
    c.daso.merge = i == 1 ? ISO_MERGE_HEAT : ISO_MERGE_PROGRESS;
    c.daso.state = i == 1   ? ISO_STATE_SYNC_AVERAGE
                   : i == 2 ? ISO_STATE_SYNC_RESET
                            : ISO_STATE_SYNC_KEEP;
    if (i == 2) c.daso.local_skip = 3;
    if (i == 3) c.daso = iso_local_sgd_config(PERIODIC_STEPS, 5);
    if (i == 4)
        c.daso = iso_local_sgd_config(PERIODIC_STEPS, 5), c.daso.outer = &iso_outer_nesterov;
    return c;
}

static void run(trainer *t, const daso_case *c, iso_dtype type, int steps) {
    parameters = type;
    iso_assert_ok(daso_open(t, MPI_COMM_WORLD, c));
    if (c->heat) iso_assert_ok(iso_daso_heat_set_last_batch(t->optimizer, 3));
    for (int step = 0; step < steps; step++) iso_assert_ok(trainer_step(t, step, NULL));
}

static void means_are_those_of_f32(void) {
    for (int i = 0; i < VARIANTS; i++) {
        daso_case c = variant(i);
        trainer wide, low;
        half = i % 2 ? ISO_F16 : ISO_BF16;
        run(&wide, &c, ISO_F32, PERIODIC_STEPS);
        run(&low, &c, half, PERIODIC_STEPS);
        iso_assert_ok(iso_module_train(wide.model, false));
        iso_assert_ok(iso_module_train(low.model, false));
        iso_assert_all(is_rounded(&low, &wide));
        if (!c.heat) iso_assert_ok(iso_daso_finish(wide.optimizer));
        if (!c.heat) iso_assert_ok(iso_daso_finish(low.optimizer));
        iso_assert_all(is_rounded(&low, &wide));
        daso_close(&low);
        daso_close(&wide);
    }
}
Test(np2_half_modules, periodic_modes_average_master_weights) { means_are_those_of_f32(); }
Test(np3_half_modules, periodic_modes_average_master_weights) { means_are_those_of_f32(); }
Test(np4_half_modules, periodic_modes_average_master_weights) { means_are_those_of_f32(); }

// Sets the bias of fc2 to another number of 16 bits on each rank.
static void write_bias(trainer *t) {
    iso_parameter *bias;
    iso_tensor *value;
    iso_assert_ok(iso_module_get_parameter(t->model, "fc2.bias", &bias));
    iso_assert_ok(iso_parameter_value(bias, &value));
    void *host;
    iso_assert_ok(iso_tensor_map(value, ISO_WRITE, &host));
    for (int64_t k = 0; k < value->count; k++) {
        float x = 0.5f * (float)(1 + test_rank + k);
        if (value->dtype == ISO_F32)
            ((float *)host)[k] = x;
        else
            ((uint16_t *)host)[k] = half_bits(half, x);
    }
    iso_assert_ok(iso_tensor_unmap(value));
}

// Before the next update, which would take it over.
Test(np2_half_modules, an_exchange_sends_what_the_program_has_written) {
    daso_case c = variant(3);
    trainer wide, low;
    half = ISO_BF16;
    run(&wide, &c, ISO_F32, 13); // it exchanges after 10 and 15 steps
    run(&low, &c, half, 13);
    write_bias(&wide), write_bias(&low);
    iso_assert_ok(iso_module_train(wide.model, false));
    iso_assert_ok(iso_module_train(low.model, false));
    iso_assert_all(is_rounded(&low, &wide));
    daso_close(&low);
    daso_close(&wide);
}

static void goes_on(void) {
    parameters = half = ISO_BF16;
    for (int i = 0; i < VARIANTS - 1; i++) {
        daso_case c = variant(i);
        uint64_t whole = daso_end_of(&c, 0, PERIODIC_STEPS);
        iso_assert_all(daso_end_of(&c, 13, PERIODIC_STEPS) == whole);
    }
}
Test(np2_half_modules, a_saved_run_goes_on) { goes_on(); }
Test(np4_half_modules, a_saved_run_goes_on) { goes_on(); }

// Whether each parameter of 16 bits is its master weight, rounded. Adds the master weights to
// sum[], and their number to *count.
static bool add_masters(trainer *t, double *sum, int *count) {
    iso_state_dict model, optimizer;
    bool good = true;
    *count = 0;
    if (iso_module_state_dict(t->model, &model) < 0) return false;
    if (iso_optimizer_state_dict(t->optimizer, &optimizer) < 0) return false;
    for (int i = 0; i < model.count; i++) {
        char name[128];
        snprintf(name, sizeof(name), "state.%s.master_param", model.item[i].name);
        iso_tensor *value = model.item[i].tensor;
        iso_tensor *master = iso_state_dict_find(&optimizer, name);
        void *low, *wide;
        if (!master) continue;
        if (iso_tensor_map(value, ISO_READ, &low) < 0) return false;
        if (iso_tensor_map(master, ISO_READ, &wide) < 0) return false;
        for (int64_t k = 0; k < master->count; k++) {
            float x = ((float *)wide)[k];
            good = good && ((uint16_t *)low)[k] == half_bits(half, x);
            sum[(*count)++] += (double)x;
        }
        iso_tensor_unmap(value), iso_tensor_unmap(master);
    }
    iso_state_dict_destroy(&model), iso_state_dict_destroy(&optimizer);
    return good;
}

enum { MASTERS = 20000 };

// Two ranks go on with the mean of three.
Test(np3_half_modules, another_number_of_ranks_goes_on_with_the_mean_of_masters) {
    static double mean[MASTERS], now[MASTERS];
    MPI_Comm all = ranks_split(3), two = ranks_split(2);
    daso_case c = variant(3);
    trainer t;
    int count = 0, read = 0;
    bool good = true;
    parameters = half = ISO_BF16;
    iso_assert_ok(daso_open(&t, all, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 13));
    iso_assert_ok(ranks_save(&t, 13));
    iso_assert_all(add_masters(&t, mean, &count) && count > 1000);
    daso_close(&t);
    MPI_Allreduce(MPI_IN_PLACE, mean, count, MPI_DOUBLE, MPI_SUM, all);
    if (two != MPI_COMM_NULL) {
        int64_t ranks = 0;
        good = daso_open(&t, two, &c) == ISO_OK && ranks_load(&t, &ranks) == ISO_OK;
        good = good && add_masters(&t, now, &read) && read == count;
        for (int k = 0; k < count; k++) good = good && fabs(now[k] - mean[k] / 3) < 1e-6;
        good = good && trainer_go_on(&t, 13, PERIODIC_STEPS) == ISO_OK;
        daso_close(&t);
        MPI_Comm_free(&two);
    }
    iso_assert_all(good);
    MPI_Comm_free(&all);
}

// 70000 is infinite in f16.
Test(np2_half_modules, an_infinite_parameter_is_not_saved) {
    daso_case c = variant(3);
    trainer t;
    iso_parameter *bias;
    iso_tensor *value;
    parameters = half = ISO_F16;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_go_on(&t, 0, 2));
    iso_assert_ok(iso_module_get_parameter(t.model, "fc2.bias", &bias));
    iso_assert_ok(iso_parameter_value(bias, &value));
    void *host;
    iso_assert_ok(iso_tensor_map(value, ISO_READ_WRITE, &host));
    if (test_rank == 1) ((uint16_t *)host)[1] = half_bits(half, 70000);
    iso_assert_ok(iso_tensor_unmap(value));
    iso_assert_all(daso_exchange_state(&t, 2, true) == ISO_ERR_STATE);
    iso_assert_all(test_rank != 1 || strstr(iso_last_error()->message, "fc2.bias is not finite"));
    daso_close(&t);
}

static void share_in_nodes(iso_data_parallel_config *dp) {
    dp->zero = 1;
    dp->zero_scope = ISO_SCOPE_NODE;
}
Test(np2_half_modules, periodic_modes_refuse_them_with_zero) {
    daso_case c = variant(0);
    parameters = half = ISO_BF16;
    c.train.adjust = share_in_nodes;
    iso_assert_all(daso_refused(&c, ISO_ERR_UNSUPPORTED, "with ZeRO exchanges"));
}
