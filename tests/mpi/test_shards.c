// SPDX-License-Identifier: MIT
// Data sets of which each rank has a shard: what ranks agree on, and what they are trained on.
#include "common/mpi_fixture.h"
#include "common/regression_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/join.h>
#include <math.h>
#include <string.h>

TestSuite(np1_shards, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_shards, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_shards, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_shards, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Rank r has 9 + 4 r samples: 0, 1, ... of a stream of its own.
static int64_t uneven_count(int rank) { return 9 + 4 * rank; }

static iso_dataset *create_shard(int64_t count) {
    iso_dataset *out = regression_arrays(test_rank, count);
    iso_assert_ok(iso_dataset_set_shard(out, test_comm, "the training set"));
    return out;
}

static void all_ranks_have_as_many_batches(void) {
    const iso_sampler_end ends[] = {ISO_SAMPLER_PAD, ISO_SAMPLER_DROP, ISO_SAMPLER_SHARE};
    regression r;
    regression_create(&r, test_comm, 1);
    for (int i = 0; i < 3; i++)
        for (int64_t batch = 1; batch < 9; batch++) {
            regression_load(&r, create_shard(uneven_count(test_rank)), batch, true, ends[i]);
            int64_t most = uneven_count(test_size - 1), own = uneven_count(test_rank), size = 0;
            int64_t wanted[] = {(most + batch - 1) / batch, uneven_count(0) / batch,
                                (own + batch - 1) / batch};
            int64_t samples[] = {most, wanted[1] * batch, own};
            iso_batch got;
            iso_assert_all(iso_loader_batches(r.loader) == wanted[i]);
            iso_assert_ok(iso_loader_start(r.loader, 0, 0));
            while (iso_loader_next(r.loader, &got) == ISO_OK) size += got.n;
            iso_assert_all(size == samples[i]);
        }
    regression_destroy(&r);
}

Test(np1_shards, all_ranks_have_as_many_batches) { all_ranks_have_as_many_batches(); }
Test(np2_shards, all_ranks_have_as_many_batches) { all_ranks_have_as_many_batches(); }
Test(np4_shards, all_ranks_have_as_many_batches) { all_ranks_have_as_many_batches(); }

// ---- Agreement ----------------------------------------------------------------------------------

Test(np3_shards, other_shapes_are_an_error_on_every_rank) {
    const iso_tensor_spec specs[][2] = {{{ISO_F32, 1, {5}}, {ISO_F32, 1, {2}}},
                                        {{ISO_F32, 1, {4}}, {ISO_F64, 1, {2}}},
                                        {{ISO_F32, 2, {4, 1}}, {ISO_F32, 1, {2}}},
                                        {{ISO_F32, 1, {4}}, {ISO_F32, 0, {0}}}};
    static const double zeros[100];
    for (int i = 0; i < 5; i++) {
        iso_dataset_config config = {
            .count = 7, .inputs = 1, .targets = i < 4, .tensors = specs[i % 4]};
        iso_dataset *set = regression_arrays(test_rank, 9);
        if (test_rank == 1) {
            iso_dataset_destroy(&set);
            cr_assert_eq(
                iso_dataset_create_arrays(&config, (const void *const[]){zeros, zeros}, true, &set),
                ISO_OK);
        }
        iso_status status = iso_dataset_set_shard(set, test_comm, "the training set");
        iso_assert_all(status == ISO_ERR_MISMATCH);
        iso_assert_all(strstr(iso_last_error()->message,
                              "the shape of the samples of the training set is not the same on all "
                              "ranks: rank 1 has"));
        iso_dataset_destroy(&set);
    }
}

// Labels of each rank go up to another number.
Test(np4_shards, the_number_of_classes_is_the_largest) {
    const iso_tensor_spec specs[] = {{ISO_F32, 1, {1}}, {.dtype = ISO_I32}};
    const iso_dataset_config config = {
        .count = 2, .inputs = 1, .targets = 1, .tensors = specs, .classes = 2 + test_rank % 3};
    const float x[2] = {0, 1};
    const int32_t labels[2] = {0, 1};
    iso_dataset *set;
    iso_dataset_info info;
    iso_assert_ok(iso_dataset_create_arrays(&config, (const void *const[]){x, labels}, true, &set));
    iso_assert_ok(iso_dataset_set_shard(set, test_comm, "the test set"));
    iso_dataset_get_info(set, &info);
    iso_assert_all(info.classes == 4);
    iso_dataset_destroy(&set);
}

// A part of a shard would have a size that its ranks do not know. Parts can become shards.
Test(np3_shards, are_made_of_the_parts_of_a_split) {
    iso_dataset *whole = regression_arrays(test_rank, uneven_count(test_rank)), *part[2] = {NULL};
    iso_assert_ok(iso_dataset_split(whole, 0.4, 1, &part[0], &part[1]));
    iso_dataset_destroy(&whole);
    for (int p = 0; p < 2; p++) {
        iso_dataset *smaller[2];
        iso_assert_ok(iso_dataset_set_shard(part[p], test_comm, "the part"));
        iso_assert_all(iso_dataset_split(part[p], 0.5, 1, &smaller[0], &smaller[1]) ==
                       ISO_ERR_STATE);
        iso_assert_all(strstr(iso_last_error()->message, "a shard cannot be split"));
    }
    const iso_sampler_config order = {.batch = 2, .rank = test_rank, .ranks = test_size};
    iso_device *device;
    iso_assert_ok(iso_device_create("cpu", &device));
    for (int p = 0; p < 2; p++) { // of 9, 13 and 17 samples, 4, 5 and 7 in the second part
        iso_loader *loader = NULL;
        iso_assert_ok(iso_loader_create_take(device, part[p], &order, NULL, &loader));
        iso_assert_all(iso_loader_batches(loader) == (p == 0 ? 5 : 4));
        iso_loader_destroy(&loader);
    }
    iso_device_destroy(&device);
}

Test(np2_shards, a_sampler_must_fit_the_shard) {
    iso_dataset *shard = create_shard(9);
    iso_device *device;
    iso_loader *loader = NULL;
    iso_sampler_config order = {.batch = 2, .rank = 1 - test_rank, .ranks = 2};
    iso_assert_ok(iso_device_create("cpu", &device));
    iso_assert_all(iso_loader_create_take(device, iso_dataset_retain(shard), &order, NULL,
                                          &loader) == ISO_ERR_ARG);
    iso_assert_all(strstr(iso_last_error()->message, "but the sampler is that of rank"));
    order.rank = test_rank;
    order.count = 8;
    iso_assert_all(iso_loader_create_take(device, iso_dataset_retain(shard), &order, NULL,
                                          &loader) == ISO_ERR_ARG);
    iso_assert_all(strstr(iso_last_error()->message, "8 samples, but the shard has 9"));
    iso_dataset_destroy(&shard);
    iso_device_destroy(&device);
}

// ---- Training -----------------------------------------------------------------------------------

enum { BATCH = 4, BATCHES = 3, EACH = BATCH * BATCHES };

// Sample i of the whole set is what stands at its place in the global batches of the shards.
static iso_dataset *create_whole(void) {
    static float x[4 * EACH][REGRESSION_IN], y[4 * EACH][REGRESSION_OUT];
    for (int i = 0; i < test_size * EACH; i++) {
        int k = i / (test_size * BATCH), rank = i / BATCH % test_size;
        regression_sample(rank, k * BATCH + i % BATCH, x[i], y[i]);
    }
    return regression_set(test_size * EACH, x[0], y[0]);
}

static void shards_are_trained_on_as_the_whole_set(void) {
    uint64_t hash[2];
    for (int whole = 0; whole < 2; whole++) {
        regression r;
        regression_create(&r, test_comm, 1);
        regression_load(&r, whole ? create_whole() : create_shard(EACH), BATCH, false,
                        ISO_SAMPLER_PAD);
        regression_train(&r, 2 * BATCHES + 1);
        hash[whole] = regression_hash(&r);
        regression_destroy(&r);
    }
    iso_assert_all(hash[0] == hash[1]);
}

Test(np1_shards, are_trained_on_as_the_whole_set) { shards_are_trained_on_as_the_whole_set(); }
Test(np2_shards, are_trained_on_as_the_whole_set) { shards_are_trained_on_as_the_whole_set(); }
Test(np3_shards, are_trained_on_as_the_whole_set) { shards_are_trained_on_as_the_whole_set(); }
Test(np4_shards, are_trained_on_as_the_whole_set) { shards_are_trained_on_as_the_whole_set(); }

static iso_status step_again(void *user) {
    regression *r = user;
    return iso_optimizer_step(r->optimizer);
}

// Each sample once: ranks with small shards run out of batches first, and a join goes on.
static void train_joined(regression *r) {
    iso_join_config config = {.divisor = ISO_JOIN_SAMPLES, .step = step_again, .user = r};
    iso_join *join;
    iso_assert_ok(iso_join_begin(r->model, &config, &join));
    iso_status status = iso_loader_start(r->loader, 0, 0);
    while (status >= 0) {
        iso_batch batch;
        if ((status = iso_loader_next(r->loader, &batch)) < 0) break;
        if ((status = iso_join_next(join, batch.n, true)) != ISO_OK) break;
        status = regression_step(r, batch.inputs[0], batch.targets[0]);
    }
    iso_join_end(&join);
    iso_assert_all(status == ISO_PENDING);
}

// What a single rank makes of the same batches, one behind the other.
static void train_serial(regression *r, int64_t batch, int64_t steps) {
    static float x[4 * BATCH][REGRESSION_IN], y[4 * BATCH][REGRESSION_OUT];
    for (int64_t k = 0; k < steps; k++) {
        iso_tensor *input, *target;
        int64_t n = 0;
        for (int rank = 0; rank < test_size; rank++)
            for (int64_t i = k * batch; i < (k + 1) * batch && i < uneven_count(rank); i++, n++)
                regression_sample(rank, i, x[n], y[n]);
        const int64_t in[] = {n, REGRESSION_IN}, out[] = {n, REGRESSION_OUT};
        iso_assert_ok(iso_tensor_borrow(r->device, ISO_F32, 2, in, x, &input));
        iso_assert_ok(iso_tensor_borrow(r->device, ISO_F32, 2, out, y, &target));
        iso_assert_ok(regression_step(r, input, target));
        iso_tensor_destroy(&input);
        iso_tensor_destroy(&target);
    }
}

static void uneven_shards_can_be_joined(void) {
    int64_t steps = (uneven_count(test_size - 1) + BATCH - 1) / BATCH;
    regression joined, serial;
    iso_comm *self;
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &self));
    regression_create(&joined, test_comm, 1);
    regression_create(&serial, self, 1);
    regression_load(&joined, create_shard(uneven_count(test_rank)), BATCH, false,
                    ISO_SAMPLER_SHARE);
    train_joined(&joined);
    train_serial(&serial, BATCH, steps);
    regression_hash(&joined); // of which all ranks have the same
    iso_assert_all(regression_difference(&joined, &serial) < 1e-6);
    regression_destroy(&joined);
    regression_destroy(&serial);
    iso_comm_destroy(&self);
}

Test(np2_shards, uneven_ones_can_be_joined) { uneven_shards_can_be_joined(); }
Test(np4_shards, uneven_ones_can_be_joined) { uneven_shards_can_be_joined(); }

// Evaluation counts each sample of each shard once.
Test(np3_shards, are_evaluated_once) {
    regression all, one;
    iso_evaluation result = {0};
    iso_comm *self;
    double sum = 0, count = 0;
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &self));
    regression_create(&all, test_comm, 1);
    regression_create(&one, self, 1);
    for (int rank = 0; rank < test_size; rank++) {
        regression_load(&one, regression_arrays(rank, uneven_count(rank)), 5, false,
                        ISO_SAMPLER_SHARE);
        iso_assert_ok(iso_evaluate(one.model, one.loss, one.loader, self, &result));
        sum += result.loss * (double)result.samples;
        count += (double)result.samples;
    }
    regression_load(&all, create_shard(uneven_count(test_rank)), 5, false, ISO_SAMPLER_SHARE);
    iso_assert_ok(iso_evaluate(all.model, all.loss, all.loader, test_comm, &result));
    iso_assert_all((double)result.samples == count && fabs(result.loss - sum / count) < 1e-9);
    regression_destroy(&all);
    regression_destroy(&one);
    iso_comm_destroy(&self);
}
