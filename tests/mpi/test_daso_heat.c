// SPDX-License-Identifier: MIT
// HeAT's DASO against a serial model that follows tables of HeAT's steps, written out here: which
// group sends, merges, replaces and is copied after which batch.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/tensor_access.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_daso_heat, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_daso_heat, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_daso_heat, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_daso_heat, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_daso_heat, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- HeAT's tables --------------------------------------------------------------------------------

// One row for each batch of an epoch; see model_heat_step. Sends are numbered within the epoch, and
// their group is the number modulo the ranks of a node.
typedef struct epoch_table {
    int64_t global_skip, local_skip, batches_to_wait; // in force
    int batches;
    const char *plan[20];
} epoch_table;

static const epoch_table blocking = {0, 0, 0, 3, {"S0 F C0", "S1 F C1", "S2 F C2"}};
static const epoch_table skip_4 = {
    4, 1, 1, 10, {"S0", "M1 C0", "", "", "S1 C0", "M1 C1", "", "", "S2 C1", "S3 M1 C2 F C3"}};
// Merged two batches after the send, but weighed as one.
static const epoch_table skip_2 = {
    2, 1, 1, 8, {"S0", "", "S1 M1 C0", "", "S2 M1 C1", "", "S3 M1 C2", "S4 M1 C3 F C4"}};
static const epoch_table skip_1 = {
    1, 1, 1, 6, {"S0", "S1 M1 C0", "S2 M1 C1", "S3 M1 C2", "S4 M1 C3", "S5 M1 C4 F C5"}};
static const epoch_table skip_8 = {
    8, 2, 2, 20, {"S0",    "",  "M2 C0", "~", "", "~", "",      "~", "S1 C0", "",
                  "M2 C1", "~", "",      "~", "", "~", "S2 C1", "",  "",      "S3 M2 C2 F C3"}};
// Epochs of one batch only pass the time until the next plateau.
static const epoch_table one_of_4 = {4, 1, 1, 1, {"S0 F C0"}};
static const epoch_table one_of_2 = {2, 1, 1, 1, {"S0 F C0"}};
static const epoch_table one_of_1 = {1, 1, 1, 1, {"S0 F C0"}};

// With a constant loss, every third epoch is a plateau: skips shrink from 4 to 1, then start again
// from the maximum, 8. The last epoch is the cool-down.
enum { EPOCHS = 12 };
static const epoch_table *const epochs[EPOCHS] = {&blocking, &skip_4,   &one_of_4, &one_of_4,
                                                  &skip_2,   &one_of_2, &one_of_2, &skip_1,
                                                  &one_of_1, &one_of_1, &skip_8,   &blocking};

// ---- The whole run equals the model ---------------------------------------------------------------

static bool epoch_follows(trainer *t, const epoch_table *table, int epoch) {
    iso_daso_stats stats;
    const char *phase = epoch == 0 ? "warm-up" : epoch == EPOCHS - 1 ? "cool-down" : "cycling";
    return iso_daso_get_stats(t->optimizer, &stats) >= 0 &&
           stats.global_skip == table->global_skip && stats.local_skip == table->local_skip &&
           stats.batches_to_wait == table->batches_to_wait && strcmp(stats.phase, phase) == 0;
}

static iso_status step_both(trainer *t, daso_model *m, const char *plan, int step) {
    ISO_TRY(trainer_step(t, step, NULL));
    return model_heat_step(m, plan, step);
}

static void evaluate(trainer *t, const daso_model *m) {
    double difference = INFINITY;
    uint64_t before, after;
    iso_assert_ok(daso_own_hash(t, &before));
    iso_assert_ok(iso_module_train(t->model, false));
    iso_assert_ok(model_difference(m, -1, t->model, &difference));
    iso_assert_all(daso_equal(t) && difference < DASO_ROUNDING);
    iso_assert_ok(iso_module_train(t->model, true));
    iso_assert_ok(daso_own_hash(t, &after));
    iso_assert_all(before == after);
}

static void follow_tables(const daso_case *c, bool evaluating) {
    trainer t;
    daso_model m;
    double most = 0;
    int step = 0;
    char where[48];
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    iso_assert_ok(daso_model_open(&m, &t, c));
    for (int e = 0; e < EPOCHS; e++) {
        iso_assert_ok(iso_daso_heat_set_last_batch(t.optimizer, epochs[e]->batches - 1));
        iso_assert_all(epoch_follows(&t, epochs[e], e));
        for (int b = 0; b < epochs[e]->batches; b++, step++) {
            snprintf(where, sizeof(where), "epoch %d batch %d", e, b);
            iso_assert_ok(step_both(&t, &m, epochs[e]->plan[b], step));
            iso_assert_all(daso_follows(&t, &m, where));
            if (evaluating) evaluate(&t, &m);
            most = fmax(most, model_spread(&m));
        }
        // The loss of each rank changes, their mean does not.
        double mine = 1 + (test_rank % 2 ? 0.1 : -0.1) * e * (test_rank < test_size / 2 * 2);
        iso_assert_ok(iso_daso_epoch_loss(t.optimizer, mine, false));
    }
    iso_assert_all(most > 1e-3 || test_size == 1);
    iso_assert_ok(iso_daso_finish(t.optimizer));
    iso_assert_all(daso_equal(&t));
    model_destroy(&m);
    daso_close(&t);
}

static void equals_tables(const daso_case *c) { follow_tables(c, false); }

static void every_setting(int ranks_per_node) {
    daso_case c = heat_case_default(EPOCHS);
    c.ranks_per_node = ranks_per_node;
    equals_tables(&c);
    c.heat_config.use_mpi_groups = false;
    c.heat_config.sending_chunk_size = 1000;
    equals_tables(&c);
}

Test(np1_daso_heat, equals_tables) { every_setting(1); }
Test(np2_daso_heat, equals_tables) { every_setting(1); }
Test(np4_daso_heat, equals_tables_with_one_rank_per_node) { every_setting(1); }
Test(np4_daso_heat, equals_tables_with_two_ranks_per_node) { every_setting(2); }
Test(np4_daso_heat, equals_tables_with_one_node) { every_setting(4); }
Test(np3_daso_heat, equals_tables_with_unequal_nodes) { every_setting(2); }

// Three and two ranks: in the smaller node one of them belongs to two groups.
Test(np5_daso_heat, equals_tables_with_unequal_nodes) {
    daso_case c = heat_case_default(EPOCHS);
    c.ranks_per_node = 3;
    equals_tables(&c);
}

// ---- Settings that must not matter ----------------------------------------------------------------

static iso_status run_hash(const daso_case *c, uint64_t *hash, uint64_t *cycling) {
    trainer t;
    int step = 0;
    ISO_TRY(daso_open(&t, MPI_COMM_WORLD, c));
    iso_status status = ISO_OK;
    for (int e = 0; status >= 0 && e < EPOCHS; e++) {
        status = iso_daso_heat_set_last_batch(t.optimizer, epochs[e]->batches - 1);
        for (int b = 0; status >= 0 && b < epochs[e]->batches; b++, step++) {
            status = daso_delayed_step(&t, c, step);
            if (status >= 0 && e == 10 && b == 12) status = daso_own_hash(&t, cycling);
        }
        if (status >= 0) status = iso_daso_epoch_loss(t.optimizer, 1, true);
    }
    if (status >= 0) status = trainer_hash(&t, hash);
    daso_close(&t);
    return status;
}

static void same_as(const daso_case *c, const uint64_t first[2]) {
    uint64_t hash[2] = {0};
    iso_assert_ok(run_hash(c, &hash[0], &hash[1]));
    iso_assert_all(hash[0] == first[0] && hash[1] == first[1]);
}

// Chunks of 7 cut each parameter in several places, chunks of 1000 the largest one.
static void same_bits(iso_dtype downcast, int ranks_per_node) {
    uint64_t first[2] = {0};
    daso_case c = heat_case_default(EPOCHS);
    c.ranks_per_node = ranks_per_node;
    c.heat_config.downcast_type = downcast;
    iso_assert_ok(run_hash(&c, &first[0], &first[1]));
    same_as(&c, first);
    c.heat_config.sending_chunk_size = 1000;
    same_as(&c, first);
    c.heat_config.sending_chunk_size = 7;
    same_as(&c, first);
    c.heat_config.use_mpi_groups = false;
    same_as(&c, first);
    c.delay_us = 2000;
    same_as(&c, first);
    c.train.sync = ISO_SYNC_BLOCKING;
    c.train.scope = ISO_SCOPE_NODE;
    same_as(&c, first);
}

Test(np2_daso_heat, same_bits_in_f32) { same_bits(ISO_F32, 1); }
Test(np4_daso_heat, same_bits_in_bf16) { same_bits(ISO_BF16, 2); }
Test(np4_daso_heat, same_bits_in_f16) { same_bits(ISO_F16, 1); }
Test(np3_daso_heat, same_bits_with_unequal_nodes) { same_bits(ISO_BF16, 2); }

// ---- Rounding of blocking averages ----------------------------------------------------------------

static float bf16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u; // to nearest, ties to even
    memcpy(&x, &bits, 4);
    return x;
}

// For values below the largest of f16.
static float f16_of(float x) {
    int exponent;
    float fraction = frexpf(x, &exponent);
    int digits = exponent < -13 ? 24 + exponent : 11; // below 2^-14 the spacing stays 2^-24
    return ldexpf(rintf(ldexpf(fraction, digits)), exponent - digits);
}

static float round_to(iso_dtype type, float x) {
    return type == ISO_BF16 ? bf16_of(x) : type == ISO_F16 ? f16_of(x) : x;
}

// Every addition and the division round, in the order of the nodes, as HeAT's 16-bit operations do.
// Nothing trains (lr 0), every rank has its own offset, and the first batch averages.
static void rounds_as_heat(iso_dtype type) {
    trainer t;
    int64_t count, wrong = 0;
    daso_case c = heat_case_default(3);
    c.train.hyper.lr = 0;
    c.heat_config.downcast_type = type;
    c.heat_config.last_batch = 3;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    float *start = daso_values(&t, &count);
    iso_assert_ok(daso_drift(&t, 0.0123f * (float)test_rank));
    iso_assert_ok(trainer_step(&t, 0, NULL));
    float *now = daso_values(&t, &count);
    for (int64_t k = 0; k < count; k++) {
        float sum = round_to(type, start[k]);
        for (int r = 1; r < test_size; r++) {
            float theirs = start[k] + 0.0123f * (float)r * (float)(k % 7);
            sum = round_to(type, sum + round_to(type, theirs));
        }
        wrong += now[k] != round_to(type, sum / (float)test_size);
    }
    free(start);
    free(now);
    iso_assert_all(count > 1000 && wrong == 0);
    daso_close(&t);
}

Test(np4_daso_heat, rounds_as_heat_in_bf16) { rounds_as_heat(ISO_BF16); }
Test(np4_daso_heat, rounds_as_heat_in_f16) { rounds_as_heat(ISO_F16); }
Test(np2_daso_heat, rounds_as_heat_in_bf16) { rounds_as_heat(ISO_BF16); }
Test(np3_daso_heat, rounds_as_heat_in_f16) { rounds_as_heat(ISO_F16); }

// ---- Learning, schedules, frozen layers -----------------------------------------------------------

static void learns(iso_dtype type) {
    trainer t;
    daso_case c = heat_case_default(6);
    double first = 0, loss = 0, mean = 0;
    c.ranks_per_node = 2;
    c.train.build = NULL; // the small CNN
    c.train.hyper.lr = 0.05;
    c.heat_config.downcast_type = type;
    c.heat_config.last_batch = 9;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int step = 0; step < 60; step++) {
        iso_assert_ok(trainer_step(&t, step, &loss));
        mean += loss;
        if (step % 10 < 9) continue;
        iso_assert_ok(iso_comm_allreduce_f64(t.comm, &mean, 1, ISO_SUM));
        if (step == 9) first = mean;
        iso_assert_ok(iso_daso_epoch_loss(t.optimizer, mean, true));
        if (step < 59) mean = 0;
    }
    iso_assert_all(mean < 0.7 * first);
    daso_close(&t);
}

Test(np4_daso_heat, learns_in_bf16) { learns(ISO_BF16); }
Test(np4_daso_heat, learns_in_f16) { learns(ISO_F16); }

// Frozen in the middle and at the end: HeAT would pack what follows them in the wrong place.
static iso_status build_frozen(iso_device *device, bool dropout, iso_module **out) {
    iso_parameter_list list;
    ISO_TRY(build_smooth(device, dropout, out));
    ISO_TRY(iso_module_parameters(*out, &list));
    list.item[2]->requires_grad = false;              // conv2.weight
    list.item[list.count - 1]->requires_grad = false; // fc2.bias
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

Test(np4_daso_heat, frozen_parameters_stay) {
    trainer t;
    iso_parameter_list list, fresh;
    iso_module *net;
    daso_case c = heat_case_default(EPOCHS);
    c.ranks_per_node = 2;
    c.train.build = build_frozen;
    equals_tables(&c);
    c.heat_config.downcast_type = ISO_BF16;
    c.heat_config.last_batch = 2;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 7));
    iso_assert_ok(iso_daso_finish(t.optimizer));
    iso_assert_ok(build_frozen(t.device, false, &net));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    iso_assert_ok(iso_module_parameters(net, &fresh));
    for (int i = 0; i < list.count; i++) {
        float a[4096], b[4096];
        iso_assert_all(tensor_bytes(list.item[i]->value) <= sizeof(a));
        iso_assert_ok(tensor_get(list.item[i]->value, a));
        iso_assert_ok(tensor_get(fresh.item[i]->value, b));
        bool same = memcmp(a, b, tensor_bytes(list.item[i]->value)) == 0;
        iso_assert_all(same == !list.item[i]->requires_grad);
    }
    iso_parameter_list_destroy(&list);
    iso_parameter_list_destroy(&fresh);
    iso_module_destroy(&net);
    daso_close(&t);
}

// The schedule sets the lr of every update, counted over the whole run.
Test(np2_daso_heat, follows_the_schedule) {
    trainer t;
    daso_model m;
    iso_schedule schedule = iso_schedule_default(ISO_SCHEDULE_COSINE, 0.02, 18);
    daso_case c = heat_case_default(4);
    c.heat_config.scheduler = &schedule;
    c.heat_config.last_batch = 9;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int step = 0; step < 20; step++) {
        const char *plan = step < 10 ? "S0 F C0" : skip_4.plan[step - 10];
        for (int r = 0; r < test_size; r++)
            iso_schedule_apply(&schedule, step, iso_optimizer_hyper(m.rank[r].optimizer));
        iso_assert_ok(step_both(&t, &m, plan, step));
        if (step == 9) iso_assert_ok(iso_daso_epoch_loss(t.optimizer, 1, true));
        iso_assert_all(daso_follows(&t, &m, "a step"));
    }
    model_destroy(&m);
    daso_close(&t);
}

// ---- The log --------------------------------------------------------------------------------------

// What is logged at that level and above while the loss of the first epoch makes the skips change.
static char *log_of_change(bool verbose, iso_log_level level) {
    trainer t;
    char *text;
    size_t bytes;
    daso_case c = heat_case_default(4);
    c.heat_config.last_batch = 1;
    c.heat_config.verbose = verbose;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 2));
    FILE *to = open_memstream(&text, &bytes);
    iso_log_set_level(level);
    iso_log_set_stream(to);
    iso_status status = iso_daso_epoch_loss(t.optimizer, 1, true);
    iso_log_set_stream(stderr);
    iso_log_set_level(ISO_LOG_WARN);
    fclose(to);
    iso_assert_ok(status);
    daso_close(&t);
    return text;
}

static void check_log(bool verbose, iso_log_level level, const char *expected) {
    static const char change[] =
        ": daso-heat: epoch 1: global_skip 4, local_skip 1, batches_to_wait 1: ";
    char *text = log_of_change(verbose, level), line[200];
    snprintf(line, sizeof(line), "isotherm[0] %s%s", expected ? expected : "", change);
    bool told = expected && test_rank == 0;
    iso_assert_all(told ? strncmp(text, line, strlen(line)) == 0 : !strstr(text, "daso-heat"));
    iso_assert_all(!told || !strstr(text + strlen(line), "daso-heat")); // once
    free(text);
}

// Rank 0 warns of changes if that is wanted; else they are information.
Test(np2_daso_heat, verbose_warns_of_changes) {
    check_log(true, ISO_LOG_WARN, "warn");
    check_log(false, ISO_LOG_WARN, NULL);
    check_log(false, ISO_LOG_INFO, "info");
    check_log(true, ISO_LOG_ERROR, NULL);
}

// ---- Evaluation, finishing, starting again, faults ------------------------------------------------

// After every batch, also with an exchange under way, and without any effect on what follows.
Test(np4_daso_heat, evaluation_shows_the_mean) {
    daso_case c = heat_case_default(EPOCHS);
    c.ranks_per_node = 2;
    follow_tables(&c, true);
}
Test(np3_daso_heat, evaluation_shows_the_mean) {
    daso_case c = heat_case_default(EPOCHS);
    c.ranks_per_node = 2;
    follow_tables(&c, true);
}

// Finishing in the middle of an epoch in which the ranks of a node stepped alone.
Test(np4_daso_heat, finishing_gives_the_mean) {
    trainer t;
    daso_model m;
    double difference = INFINITY;
    int step = 0;
    daso_case c = heat_case_default(EPOCHS);
    c.ranks_per_node = 2;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_model_open(&m, &t, &c));
    for (int e = 0; e < 11; e++) {
        iso_assert_ok(iso_daso_heat_set_last_batch(t.optimizer, epochs[e]->batches - 1));
        for (int b = 0; b < (e == 10 ? 10 : epochs[e]->batches); b++, step++)
            iso_assert_ok(step_both(&t, &m, epochs[e]->plan[b], step));
        if (e < 10) iso_assert_ok(iso_daso_epoch_loss(t.optimizer, 1, true));
    }
    iso_assert_ok(iso_daso_finish(t.optimizer));
    iso_assert_ok(model_difference(&m, -1, t.model, &difference));
    iso_assert_all(daso_equal(&t) && difference < DASO_ROUNDING);
    model_destroy(&m);
    daso_close(&t);
}

// Reset in the middle of an epoch with an exchange under way: the next batch is a warm-up batch.
Test(np2_daso_heat, reset_starts_again) {
    trainer t;
    iso_daso_stats stats;
    daso_case c = heat_case_default(4);
    c.heat_config.last_batch = 9;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 10));
    iso_assert_ok(iso_daso_epoch_loss(t.optimizer, 1, true));
    iso_assert_ok(trainer_train(&t, 5)); // sent after batch 4
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(stats.pending && stats.global_skip == 4 && !daso_equal(&t));
    iso_assert_ok(iso_daso_reset(t.optimizer));
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(!stats.pending && stats.global_skip == 0 && strcmp(stats.phase, "warm-up") == 0);
    iso_assert_ok(trainer_step(&t, 0, NULL));
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
}

Test(np2_daso_heat, needs_the_last_batch) {
    trainer t;
    daso_case c = heat_case_default(4);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(trainer_backward(&t, 0));
    iso_assert_all(iso_optimizer_step(t.optimizer) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "last_batch"));
    daso_close(&t);
}

// A value that is not finite is an error on every rank, at the replacement or merge that meets it.
Test(np4_daso_heat, nan_fails_everywhere) {
    for (int i = 0; i < 6; i++) {
        static const iso_dtype type[] = {ISO_F32, ISO_BF16, ISO_F16};
        trainer t;
        daso_case c = heat_case_default(4);
        uint64_t before, after;
        c.train.hyper.lr = 0;
        c.ranks_per_node = 2;
        c.heat_config.downcast_type = type[i % 3];
        c.heat_config.last_batch = 9;
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        iso_assert_ok(trainer_train(&t, 2)); // the next group to send is 0
        iso_assert_ok(daso_own_hash(&t, &before));
        iso_optimizer_zero_grad(t.optimizer);
        iso_assert_ok(trainer_backward(&t, 2));
        int64_t count;
        iso_parameter_list list;
        iso_assert_ok(iso_data_parallel_finish(t.model));
        iso_assert_ok(iso_module_parameters(t.model, &list));
        iso_tensor *value = list.item[1]->value;
        float healthy = 0;
        bool here = test_rank == (i < 3 ? 0 : 2);
        count = list.count;
        iso_parameter_list_destroy(&list);
        if (here) healthy = tensor_swap(value, 0, NAN);
        iso_assert_all(count > 1 && iso_optimizer_step(t.optimizer) < 0);
        if (here) tensor_swap(value, 0, healthy);
        iso_assert_ok(daso_own_hash(&t, &after));
        iso_assert_all(before == after);
        daso_close(&t);
    }
}
