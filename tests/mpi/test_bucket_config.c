// SPDX-License-Identifier: MIT
// Bucket sizes of all kinds on plain arrays: what leaves together, and training to the same bits.
#include "base/base.h"
#include "common/any_device.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/reducer.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_bucket_config, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_bucket_config, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_bucket_config, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_bucket_config, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- A model of arrays ------------------------------------------------------------------------------

// c.weight is longer than what travels at a time; d.gate stays on its rank.
static const struct {
    const char *name;
    size_t count;
    iso_dtype dtype;
    int layer;
    bool local;
} shape[] = {
    {"a.weight", 300, ISO_F32, 0, false},    {"a.bias", 7, ISO_F32, 0, false},
    {"b.weight", 4000, ISO_F32, 1, false},   {"b.scale", 30, ISO_F64, 1, false},
    {"c.weight", 300000, ISO_F32, 2, false}, {"d.weight", 900, ISO_F64, 3, false},
    {"d.gate", 40, ISO_F32, 3, true},        {"e.weight", 2500, ISO_F32, 4, false},
    {"e.bias", 11, ISO_F32, 4, false},       {"f.weight", 64, ISO_F32, 5, false},
};
enum { PARAMS = sizeof(shape) / sizeof(shape[0]), MOST = 300000 };
static double memory[PARAMS][MOST]; // f32 parameters use half of theirs

static double get(const void *data, iso_dtype dtype, size_t k) {
    return dtype == ISO_F64 ? ((const double *)data)[k] : (double)((const float *)data)[k];
}

static void set(void *data, iso_dtype dtype, size_t k, double x) {
    if (dtype == ISO_F64)
        ((double *)data)[k] = x;
    else
        ((float *)data)[k] = (float)x;
}

static iso_status descend(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)user;
    for (size_t k = 0; k < shape[i].count; k++)
        set(memory[i], shape[i].dtype, k,
            get(memory[i], shape[i].dtype, k) -
                *(const double *)hyper * (get(gradient, shape[i].dtype, k) * scale));
    return ISO_OK;
}

static iso_status create(const iso_reducer_config *config, iso_reducer **out) {
    iso_reducer_param params[PARAMS];
    for (int i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < shape[i].count; k++) set(memory[i], shape[i].dtype, k, i);
        params[i] = (iso_reducer_param){.name = shape[i].name,
                                        .value = memory[i],
                                        .count = shape[i].count,
                                        .dtype = shape[i].dtype,
                                        .layer = shape[i].layer,
                                        .local = shape[i].local};
    }
    return iso_reducer_create(test_comm, params, PARAMS, config, out);
}

// Any order of two terms has the same sum; of more only if no sum is rounded: whole numbers.
static double gradient_of(int rank, int step, int i, size_t k) {
    uint32_t x = (uint32_t)(k * 2654435761u + (unsigned)(rank * 31 + step * 7 + i) * 40503u);
    int32_t whole = (int32_t)(x >> 12) % 1000;
    return test_size <= 2 ? whole / 97.0 : whole;
}

static iso_status train_step(iso_reducer *r, int step) {
    double lr = 0.125;
    iso_status status = ISO_OK;
    for (int i = 0; i < PARAMS && status == ISO_OK; i++) status = iso_reducer_param_needed(r, i);
    iso_reducer_zero_grad(r);
    for (int i = PARAMS - 1; i >= 0 && status == ISO_OK; i--) {
        for (size_t k = 0; k < shape[i].count; k++)
            set(iso_reducer_grad(r, i), shape[i].dtype, k, gradient_of(test_rank, step, i, k));
        status = iso_reducer_grad_ready(r, i);
    }
    return status == ISO_OK ? iso_reducer_step(r, &lr) : status;
}

// The hash of what all ranks share after four steps; how many buckets there were.
static iso_status run(const iso_reducer_config *config, uint64_t *hash, int *buckets) {
    iso_reducer *r;
    iso_reducer_stats stats;
    ISO_TRY(create(config, &r));
    iso_status status = iso_reducer_set_apply(r, descend, sizeof(double), NULL);
    for (int step = 0; step < 4 && status == ISO_OK; step++) status = train_step(r, step);
    if (status == ISO_OK) status = iso_reducer_finish(r);
    iso_reducer_get_stats(r, &stats);
    *buckets = stats.bucket_count;
    *hash = ISO_HASH_START;
    for (int i = 0; i < PARAMS; i++)
        if (!shape[i].local)
            *hash = iso__hash(*hash, memory[i], shape[i].count * iso_dtype_size(shape[i].dtype));
    iso_reducer_destroy(&r);
    return status;
}

// ---- Training -------------------------------------------------------------------------------------

static bool sums_are_right(void) {
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < shape[i].count; k += 13) {
            double expected = i;
            for (int step = 0; step < 4; step++)
                for (int rank = 0; rank < test_size; rank++)
                    if (!shape[i].local)
                        expected -= 0.125 * gradient_of(rank, step, i, k) / test_size;
                    else if (rank == test_rank)
                        expected -= 0.125 * gradient_of(rank, step, i, k);
            double found = get(memory[i], shape[i].dtype, k), error = found - expected;
            if (error > 1e-3 || error < -1e-3) return false;
        }
    return true;
}

// f32, from the last layer: f 256, e 10048 + 64, c 1200000, b 16000, a 1216 + 64 bytes;
// f64: d 7232, b 256; and d.gate alone.
static void trains_to_the_same_bits(void) {
    static const size_t list[] = {1, 2000000, 1};
    const struct {
        iso_reducer_config config;
        int buckets;
    } cases[] = {
        {{.bucket_bytes = 0}, 8},
        {{.bucket_bytes = 4096}, 7}, // f + e, c, b, a; d, b
        {{.bucket_bytes = 1 << 30}, 3},
        {{.bucket_bytes = 1 << 30, .first_bucket_bytes = 1}, 5},                         // f | rest
        {{.bucket_bytes = 1 << 30, .last_bucket_bytes = 1}, 5},                          // rest | a
        {{.bucket_bytes = 1 << 30, .first_bucket_bytes = 1, .last_bucket_bytes = 1}, 6}, // f|ecb|a
        {{.bucket_bytes = 0, .first_bucket_bytes = 9000, .last_bucket_bytes = 9000}, 5},
        {{.bucket_list = list, .bucket_list_count = 3}, 5}, // f | e c b a; d | b
        {{.bucket_list = list, .bucket_list_count = 1}, 8},
        {{.bucket_bytes = 4096, .order = ISO_ORDER_REVERSE}, 7},
        {{.bucket_bytes = 4096, .average = ISO_AVERAGE_PRE}, 7},
    };
    uint64_t expected = 0;
    for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++)
        for (int s = 0; s < 2; s++) {
            iso_reducer_config config = cases[n].config;
            uint64_t hash = 0;
            int buckets = 0;
            config.sync = s ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
            iso_assert_ok(run(&config, &hash, &buckets));
            iso_assert_all(sums_are_right());
            if (n == 0 && s == 0) expected = hash;
            cr_expect_eq(buckets, cases[n].buckets, "case %zu has %d buckets", n, buckets);
            bool same = hash == expected;
            cr_assert(test_all(same, "the same bits"), "case %zu, sync mode %d", n, s);
        }
}

Test(np1_bucket_config, trains_to_the_same_bits) { trains_to_the_same_bits(); }
Test(np2_bucket_config, trains_to_the_same_bits) { trains_to_the_same_bits(); }
Test(np4_bucket_config, trains_to_the_same_bits) { trains_to_the_same_bits(); }

// ---- What is refused --------------------------------------------------------------------------------

static void refuse(iso_reducer_config config, iso_status expected, const char *word) {
    iso_reducer *r = NULL;
    iso_assert_all(create(&config, &r) == expected && !r);
    cr_expect(strstr(iso_last_error()->message, word), "%s", iso_last_error()->message);
}

Test(np3_bucket_config, other_sizes_on_one_rank_are_refused_on_all) {
    static const size_t list[] = {100, 2000}; // f alone or with e
    bool odd = test_rank == 1;
    refuse((iso_reducer_config){.first_bucket_bytes = odd ? 20000 : 0}, ISO_ERR_MISMATCH,
           "ranks disagree: first_bucket_bytes is 20000 on rank 1 and 0 on ranks 0, 2: give every");
    refuse((iso_reducer_config){.last_bucket_bytes = odd ? 20000 : 0,
                                .order = odd ? ISO_ORDER_REVERSE : ISO_ORDER_NEED},
           ISO_ERR_MISMATCH,
           "disagree: order is reverse on rank 1 and need on ranks 0, 2; last_bucket_bytes is "
           "20000 on "
           "rank 1 and 0 on ranks 0, 2: give every");
    refuse((iso_reducer_config){.bucket_list = odd ? list : list + 1, .bucket_list_count = 1},
           ISO_ERR_MISMATCH, "bucket_list is 100 on rank 1 and 2000 on ranks 0, 2: give every");
    refuse((iso_reducer_config){.hook = odd ? &iso_hook_bf16 : NULL}, ISO_ERR_MISMATCH,
           "disagree: hook is bf16 on rank 1 and ");
}

Test(np2_bucket_config, contradictory_sizes_on_one_rank_are_refused_on_all) {
    static const size_t list[] = {1000};
    iso_reducer_config config = {.bucket_list = list, .bucket_list_count = 1};
    if (test_rank == 1) config.bucket_bytes = 4096;
    refuse(config, ISO_ERR_ARG, "as a list and as a cap of 4096 bytes");
    if (test_rank == 1) config = (iso_reducer_config){.bucket_list_count = 1};
    refuse(config, ISO_ERR_ARG, "that is NULL");
}

// ---- DataParallel -----------------------------------------------------------------------------------

// Trains the small CNN with these sizes; fc2, fc1, conv2 and conv1 are 384, 3520, 960 and 384 bytes
// with their padding.
static void wrap(iso_data_parallel_config dp, int buckets, uint64_t *hash) {
    trainer t;
    trainer_config config = trainer_default();
    iso_module *net;
    iso_optimizer *inner;
    iso_reducer_stats stats;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_optimizer_destroy(&t.optimizer);
    iso_module_destroy(&t.model);
    iso_assert_ok(build_small_cnn(t.device, false, &net));
    iso_assert_ok(iso_data_parallel_create_take(net, test_comm, &dp, &t.model));
    iso_assert_ok(iso_optimizer_create(config.optimizer, t.model, &config.hyper, &inner));
    iso_assert_ok(iso_dp_optimizer_create_take(inner, t.model, &t.optimizer));
    iso_assert_ok(trainer_train(&t, 6));
    iso_assert_ok(trainer_hash(&t, hash));
    iso_reducer_get_stats(iso_data_parallel_reducer(t.model), &stats);
    cr_expect_eq(stats.bucket_count, buckets, "%d buckets, not %d", stats.bucket_count, buckets);
    trainer_destroy(&t);
}

static double mb(int bytes) { return bytes / 1048576.0; }

Test(np2_bucket_config, data_parallel_takes_all_sizes) {
    const double list[] = {mb(300), mb(4000)}, negative[] = {-1};
    uint64_t expected, hash[3];
    wrap((iso_data_parallel_config){0}, 4, &expected);
    wrap((iso_data_parallel_config){.bucket_mb = 1, .first_bucket_mb = mb(300)}, 2, &hash[0]);
    wrap((iso_data_parallel_config){.bucket_mb = 1, .last_bucket_mb = mb(300)}, 2, &hash[1]);
    wrap((iso_data_parallel_config){.bucket_list_mb = list, .bucket_list_count = 2}, 3, &hash[2]);
    for (int i = 0; i < 3; i++) iso_assert_all(hash[i] == expected);

    const iso_data_parallel_config wrong[] = {
        {.first_bucket_mb = -1},
        {.last_bucket_mb = -1},
        {.bucket_list_count = 1},
        {.bucket_list_mb = list, .bucket_list_count = -1},
        {.bucket_list_mb = negative, .bucket_list_count = 1},
        {.first_bucket_mb = 1, .bucket_list_mb = list, .bucket_list_count = 2}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        iso_device *device;
        iso_module *net, *model;
        iso_assert_ok(iso_device_create(test_device(), &device));
        iso_assert_ok(build_small_cnn(device, false, &net));
        iso_status status = iso_data_parallel_create_take(net, test_comm, &wrong[i], &model);
        cr_expect_eq(status, ISO_ERR_ARG, "case %zu", i);
        iso_device_destroy(&device);
    }
}
