// SPDX-License-Identifier: MIT
// Shuffling shards: no sample is lost or torn, the seed alone decides, and a resumed run has the
// samples of an undisturbed one.
#include "common/mpi_fixture.h"
#include "common/regression_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/shuffle.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_shuffle, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_shuffle, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_shuffle, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_shuffle, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Sample `id` of all ranks: inputs f32 [3] and u8 [5], targets i64 and f64, all functions of it.
enum { MOST = 40, ROUNDS = 6 };
static const iso_tensor_spec specs[] = {
    {ISO_F32, 1, {3}}, {ISO_U8, 1, {5}}, {.dtype = ISO_I64}, {.dtype = ISO_F64}};

typedef struct sample {
    float x[3];
    uint8_t bytes[5];
    int64_t id;
    double y;
} sample;

static sample sample_of(int64_t id) {
    sample s = {.id = id, .y = (double)id / 3};
    for (int k = 0; k < 3; k++) s.x[k] = (float)(id * 10 + k);
    for (int k = 0; k < 5; k++) s.bytes[k] = (uint8_t)(id * 7 + k);
    return s;
}

static int64_t even_count(int rank) { return (void)rank, 12; }
static int64_t uneven_count(int rank) { return 7 + 5 * ((rank + 1) % 3); }
static int64_t tiny_count(int rank) { return 1 + rank / 2; }
static int64_t (*const counts[])(int) = {even_count, uneven_count, tiny_count};

static int64_t first_of(int64_t (*count)(int), int rank) {
    int64_t first = 0;
    for (int r = 0; r < rank; r++) first += count(r);
    return first;
}

static iso_dataset *create_set(int64_t (*count)(int), bool copy) {
    static float x[MOST][3];
    static uint8_t bytes[MOST][5];
    static int64_t id[MOST];
    static double y[MOST];
    int64_t n = count(test_rank), first = first_of(count, test_rank);
    for (int64_t i = 0; i < n; i++) {
        sample s = sample_of(first + i);
        memcpy(x[i], s.x, sizeof(s.x));
        memcpy(bytes[i], s.bytes, sizeof(s.bytes));
        id[i] = s.id, y[i] = s.y;
    }
    const iso_dataset_config config = {.count = n, .inputs = 2, .targets = 2, .tensors = specs};
    iso_dataset *out = NULL;
    iso_assert_ok(
        iso_dataset_create_arrays(&config, (const void *const[]){x, bytes, id, y}, copy, &out));
    return out;
}

static iso_dataset *create_shard(int64_t (*count)(int)) {
    iso_dataset *out = create_set(count, true);
    iso_assert_ok(iso_dataset_set_shard(out, test_comm, "the training set"));
    return out;
}

// Sets ids[] to this rank's samples; returns how many. Each must be whole.
static int64_t read_ids(const iso_dataset *set, int64_t ids[MOST]) {
    iso_dataset_info info;
    bool whole = true;
    iso_dataset_get_info(set, &info);
    for (int64_t i = 0; i < info.count; i++) {
        sample got, wanted;
        iso_status status =
            iso_dataset_sample(set, i, (void *const[]){got.x, got.bytes, &got.id, &got.y});
        wanted = sample_of(got.id);
        whole = whole && status == ISO_OK && memcmp(got.x, wanted.x, sizeof(got.x)) == 0 &&
                memcmp(got.bytes, wanted.bytes, sizeof(got.bytes)) == 0 && got.y == wanted.y;
        ids[i] = got.id;
    }
    iso_assert_all(whole);
    return info.count;
}

// How many samples of this rank are not those that it began with.
static int64_t count_foreign(const int64_t *ids, int64_t n, int64_t (*count)(int)) {
    int64_t first = first_of(count, test_rank), foreign = 0;
    for (int64_t i = 0; i < n; i++) foreign += ids[i] < first || ids[i] >= first + n;
    return foreign;
}

// ---- No sample is lost ----------------------------------------------------------------------------

// All ranks together have each sample once.
static void check_whole(const int64_t *ids, int64_t n, int64_t all) {
    int64_t found[4 * MOST] = {0};
    bool once = true;
    for (int64_t i = 0; i < n; i++) found[ids[i]]++;
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, found, 4 * MOST, ISO_SUM));
    for (int64_t i = 0; i < 4 * MOST; i++) once = once && found[i] == (i < all);
    iso_assert_all(once);
}

static void samples_only_move(void) {
    for (int c = 0; c < 3; c++) {
        int64_t ids[MOST], least = INT64_MAX;
        iso_dataset *set = create_shard(counts[c]);
        iso_shuffle *shuffle = NULL;
        for (int r = 0; r < test_size; r++)
            if (counts[c](r) < least) least = counts[c](r);
        int64_t half = least > 1 ? least / 2 : 1,
                peers = test_size - 1 < half ? test_size - 1 : half;
        iso_assert_ok(iso_shuffle_create(set, test_comm, 5, &shuffle));
        for (int round = 0; round < ROUNDS; round++) {
            iso_assert_ok(iso_shuffle_start(shuffle));
            iso_assert_ok(iso_shuffle_finish(shuffle));
            int64_t n = read_ids(set, ids), foreign = count_foreign(ids, n, counts[c]);
            iso_assert_all(n == counts[c](test_rank));
            check_whole(ids, n, first_of(counts[c], test_size));
            if (round == 0) iso_assert_all(foreign == (peers > 0 ? half / peers * peers : 0));
        }
        iso_assert_all(iso_shuffle_rounds(shuffle) == ROUNDS);
        iso_shuffle_destroy(&shuffle);
        iso_dataset_destroy(&set);
    }
}

Test(np1_shuffle, samples_only_move) { samples_only_move(); }
Test(np2_shuffle, samples_only_move) { samples_only_move(); }
Test(np3_shuffle, samples_only_move) { samples_only_move(); }
Test(np4_shuffle, samples_only_move) { samples_only_move(); }

// Each sample of a rank stays or leaves by chance: after some rounds no rank has all of them, and
// ranks have samples of every other one.
Test(np4_shuffle, samples_reach_every_rank) {
    int64_t ids[MOST], from[4] = {0};
    iso_dataset *set = create_shard(even_count);
    iso_shuffle *shuffle;
    iso_assert_ok(iso_shuffle_create(set, test_comm, 1, &shuffle));
    iso_assert_ok(iso_shuffle_repeat(shuffle, 1));
    int64_t n = read_ids(set, ids);
    for (int64_t i = 0; i < n; i++) from[ids[i] / 12]++;
    for (int r = 0; r < 4; r++) iso_assert_all(from[r] == (r == test_rank ? 6 : 2));
    iso_shuffle_destroy(&shuffle);
    iso_dataset_destroy(&set);
}

// Blocks of 160 KB, which travel in chunks.
enum { LONG = 4096, LONGS = 20 };
Test(np2_shuffle, long_samples_arrive_whole) {
    static float x[LONGS][LONG], got[LONG];
    const iso_tensor_spec spec = {ISO_F32, 1, {LONG}};
    const iso_dataset_config config = {.count = LONGS, .inputs = 1, .tensors = &spec};
    iso_dataset *set = NULL;
    iso_shuffle *shuffle = NULL;
    int foreign = 0;
    bool whole = true;
    for (int i = 0; i < LONGS; i++)
        for (int k = 0; k < LONG; k++) x[i][k] = (float)(test_rank * LONGS + i) + (float)k / LONG;
    iso_assert_ok(iso_dataset_create_arrays(&config, (const void *const[]){x}, true, &set));
    iso_assert_ok(iso_dataset_set_shard(set, test_comm, "the set"));
    iso_assert_ok(iso_shuffle_create(set, test_comm, 1, &shuffle));
    iso_assert_ok(iso_shuffle_repeat(shuffle, 1));
    for (int i = 0; i < LONGS; i++) {
        whole = whole && iso_dataset_sample(set, i, (void *const[]){got}) == ISO_OK;
        for (int k = 0; k < LONG; k++) whole = whole && got[k] == got[0] + (float)k / LONG;
        foreign += (int)got[0] / LONGS != test_rank;
    }
    iso_assert_all(whole && foreign == LONGS / 2);
    iso_shuffle_destroy(&shuffle);
    iso_dataset_destroy(&set);
}

// ---- The seed decides -----------------------------------------------------------------------------

// delays: ranks are late in turn. blocking: by iso_shuffle_repeat.
static int64_t shuffle_ids(uint64_t seed, bool delays, bool blocking, int64_t ids[MOST]) {
    iso_dataset *set = create_shard(uneven_count);
    iso_shuffle *shuffle;
    iso_assert_ok(iso_shuffle_create(set, test_comm, seed, &shuffle));
    if (blocking) iso_assert_ok(iso_shuffle_repeat(shuffle, 3));
    for (int round = 0; !blocking && round < 3; round++) {
        if (delays && round % test_size == test_rank) usleep(20000);
        iso_assert_ok(iso_shuffle_start(shuffle));
        if (delays && (round + 1) % test_size == test_rank) usleep(20000);
        iso_assert_ok(iso_shuffle_finish(shuffle));
    }
    int64_t n = read_ids(set, ids);
    iso_shuffle_destroy(&shuffle);
    iso_dataset_destroy(&set);
    return n;
}

Test(np3_shuffle, seed_alone_decides) {
    int64_t ids[3][MOST], other[MOST];
    int64_t n = shuffle_ids(7, false, false, ids[0]);
    shuffle_ids(7, true, false, ids[1]);
    shuffle_ids(7, false, true, ids[2]);
    shuffle_ids(8, false, false, other);
    size_t bytes = (size_t)n * sizeof(int64_t);
    iso_assert_all(memcmp(ids[0], ids[1], bytes) == 0 && memcmp(ids[0], ids[2], bytes) == 0);
    iso_assert_all(memcmp(ids[0], other, bytes) != 0);
}

// ---- During an epoch ------------------------------------------------------------------------------

static int64_t next_ids(iso_loader *loader, int64_t *sum) {
    iso_batch batch;
    iso_status status = iso_loader_next(loader, &batch);
    if (status == ISO_PENDING) return 0;
    iso_assert_all(status == ISO_OK);
    const int64_t *ids = iso_tensor_data(batch.targets[0]);
    for (int64_t i = 0; i < batch.n; i++) *sum += ids[i];
    return batch.n;
}

// An epoch has the samples that the shard had when it began, and the next one others.
Test(np2_shuffle, an_epoch_is_not_disturbed) {
    iso_dataset *set = create_shard(even_count);
    iso_device *device;
    iso_loader *loader;
    iso_shuffle *shuffle;
    int64_t first = first_of(even_count, test_rank), sums[2] = {0}, n = 0;
    const iso_sampler_config order = {.batch = 2, .rank = test_rank, .ranks = 2, .shuffle = true};
    iso_assert_ok(iso_device_create("cpu", &device));
    iso_assert_ok(iso_loader_create_take(device, iso_dataset_retain(set), &order, NULL, &loader));
    iso_assert_ok(iso_shuffle_create(set, test_comm, 1, &shuffle));
    for (int epoch = 0; epoch < 2; epoch++) {
        iso_assert_ok(iso_shuffle_start(shuffle));
        iso_assert_ok(iso_loader_start(loader, epoch, 0));
        while ((n = next_ids(loader, &sums[epoch])) > 0) {
            iso_status status = iso_shuffle_finish(shuffle);
            iso_assert_all(status == ISO_ERR_STATE);
        }
        iso_assert_ok(iso_shuffle_finish(shuffle));
    }
    iso_assert_all(sums[0] == 12 * first + 66);
    iso_assert_all(sums[1] != sums[0]);
    iso_assert_ok(iso_shuffle_start(shuffle)); // and never finished
    iso_shuffle_destroy(&shuffle);
    iso_loader_destroy(&loader);
    iso_dataset_destroy(&set);
    iso_device_destroy(&device);
}

// The samples of the other part stay where they are.
Test(np3_shuffle, a_part_of_a_split_moves_alone) {
    int64_t before[MOST], after[MOST], ids[MOST];
    iso_dataset *whole = create_set(uneven_count, true), *train, *rest;
    iso_shuffle *shuffle;
    iso_assert_ok(iso_dataset_split(whole, 0.3, 1, &train, &rest));
    iso_dataset_destroy(&whole);
    iso_assert_ok(iso_dataset_set_shard(train, test_comm, "the training set"));
    int64_t n = read_ids(rest, before), moved = 0;
    iso_assert_ok(iso_shuffle_create(train, test_comm, 1, &shuffle));
    iso_assert_ok(iso_shuffle_repeat(shuffle, 2));
    read_ids(rest, after);
    iso_assert_all(memcmp(before, after, (size_t)n * sizeof(int64_t)) == 0);
    int64_t first = first_of(uneven_count, test_rank), left = read_ids(train, ids);
    for (int64_t i = 0; i < left; i++)
        moved += ids[i] < first || ids[i] >= first + uneven_count(test_rank);
    iso_assert_all(moved > 0);
    iso_shuffle_destroy(&shuffle);
    iso_dataset_destroy(&train);
    iso_dataset_destroy(&rest);
}

// ---- Training -------------------------------------------------------------------------------------

enum { BATCH = 4, EACH = 20, EPOCHS = 4 };

// From epoch `from` on, with the rounds before it repeated; returns the hash of the parameters.
static void train_epochs(regression *r, iso_dataset *set, int from, int to) {
    iso_shuffle *shuffle;
    iso_assert_ok(iso_shuffle_create(set, test_comm, 3, &shuffle));
    iso_assert_ok(iso_shuffle_repeat(shuffle, from));
    for (int epoch = from; epoch < to; epoch++) {
        iso_batch batch;
        iso_assert_ok(iso_shuffle_start(shuffle));
        iso_assert_ok(iso_loader_start(r->loader, epoch, 0));
        while (iso_loader_next(r->loader, &batch) == ISO_OK)
            iso_assert_ok(regression_step(r, batch.inputs[0], batch.targets[0]));
        iso_assert_ok(iso_shuffle_finish(shuffle));
    }
    iso_shuffle_destroy(&shuffle);
}

static iso_dataset *load_shard(regression *r) {
    iso_dataset *set = regression_arrays(test_rank, EACH + test_rank);
    iso_assert_ok(iso_dataset_set_shard(set, test_comm, "the training set"));
    regression_load(r, iso_dataset_retain(set), BATCH, true, ISO_SAMPLER_PAD);
    return set;
}

// In the middle, the samples are read again.
Test(np3_shuffle, repeated_rounds_go_on_with_the_same_samples) {
    uint64_t hash[2];
    for (int stop = 0; stop < 2; stop++) {
        regression r;
        regression_create(&r, test_comm, 1);
        iso_dataset *set = load_shard(&r);
        train_epochs(&r, set, 0, stop ? 2 : EPOCHS);
        if (stop) {
            iso_dataset_destroy(&set);
            set = load_shard(&r);
            train_epochs(&r, set, 2, EPOCHS);
        }
        hash[stop] = regression_hash(&r);
        regression_destroy(&r);
        iso_dataset_destroy(&set);
    }
    iso_assert_all(hash[0] == hash[1]);
}

// ---- Refusals -------------------------------------------------------------------------------------

static iso_status read_sample(int64_t i, void *const *tensors, void *user) {
    (void)i, (void)tensors, (void)user;
    return ISO_OK;
}

static void refuse(iso_dataset *set, uint64_t seed, iso_status code, const char *words) {
    iso_shuffle *shuffle = NULL;
    iso_status status = iso_shuffle_create(set, test_comm, seed, &shuffle);
    iso_assert_all(status == code && !shuffle);
    iso_assert_all(strstr(iso_last_error()->message, words));
    iso_dataset_destroy(&set);
}

// On one rank alone, too.
Test(np3_shuffle, what_cannot_move_is_refused_on_every_rank) {
    const iso_dataset_config config = {.count = 5, .inputs = 2, .targets = 2, .tensors = specs};
    iso_dataset *called, *set;
    refuse(create_set(even_count, true), 1, ISO_ERR_STATE, "call iso_dataset_set_shard first");
    iso_assert_ok(iso_dataset_create_callback(&config, read_sample, NULL, &called));
    set = create_set(even_count, true);
    iso_dataset_destroy(test_rank == 1 ? &set : &called);
    if (test_rank == 1) set = called;
    iso_assert_ok(iso_dataset_set_shard(set, test_comm, "the set"));
    refuse(set, 1, ISO_ERR_UNSUPPORTED, "samples of a callback or in a file cannot move");
    set = create_set(even_count, test_rank != 2);
    iso_assert_ok(iso_dataset_set_shard(set, test_comm, "the set"));
    refuse(set, 1, ISO_ERR_UNSUPPORTED, "samples in borrowed arrays cannot move");
    refuse(create_shard(even_count), test_rank == 1, ISO_ERR_MISMATCH,
           "the seed of iso_shuffle_create");
}

Test(np2_shuffle, calls_out_of_order_are_refused) {
    iso_dataset *set = create_shard(even_count);
    iso_shuffle *shuffle;
    iso_assert_ok(iso_shuffle_create(set, test_comm, 1, &shuffle));
    iso_assert_all(iso_shuffle_finish(shuffle) == ISO_ERR_STATE);
    iso_assert_ok(iso_shuffle_start(shuffle));
    iso_assert_all(iso_shuffle_start(shuffle) == ISO_ERR_STATE);
    iso_assert_all(iso_shuffle_repeat(shuffle, 1) == ISO_ERR_STATE);
    iso_assert_ok(iso_shuffle_finish(shuffle));
    iso_assert_all(iso_shuffle_repeat(shuffle, 0) == ISO_ERR_ARG);
    iso_shuffle_destroy(&shuffle);
    iso_dataset_destroy(&set);
}
