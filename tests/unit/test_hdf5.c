// SPDX-License-Identifier: MIT
// HDF5 files: samples that stay in the file are, bit for bit, those of arrays, in any order, by any
// number of threads and ranks.
#include "common/balance.h"
#include "common/hdf5_writer.h"
#include "common/samples_fixture.h"
#include "common/scratch.h"
#include "common/tensor_access.h"

#include <criterion/criterion.h>
#include <string.h>

static void set_up(void) {
    if (!hdf5_is_there()) cr_skip_test("this build has no HDF5");
}
static void clean_up(void) {
    scratch_remove();
    balance_check();
}
TestSuite(hdf5, .init = set_up, .fini = clean_up, .timeout = 60);
TestSuite(hdf5_without, .fini = clean_up, .timeout = 60);

static const char *const names[TENSORS] = {"x", "tokens", "labels", "y"};
static columns all;

static const char *write_samples(int64_t chunk) {
    samples_fill(&all);
    const void *const values[TENSORS] = {all.x, all.tokens, all.labels, all.y};
    hdf5_part parts[TENSORS];
    for (int t = 0; t < TENSORS; t++)
        parts[t] = (hdf5_part){names[t], samples_specs[t], COUNT, values[t]};
    return hdf5_write(chunk > 0 ? "chunks.h5" : "plain.h5", parts, TENSORS, chunk);
}

static iso_dataset *open_samples(const char *path, int64_t first, int64_t count, bool in_memory) {
    const iso_hdf5_config config = {.inputs = 2,
                                    .targets = 2,
                                    .names = names,
                                    .classes = CLASSES,
                                    .first = first,
                                    .count = count,
                                    .in_memory = in_memory};
    iso_dataset *out = NULL;
    cr_assert_eq(iso_dataset_open_hdf5(path, &config, &out), ISO_OK, "%s",
                 iso_last_error()->message);
    return out;
}

// ---- Samples ------------------------------------------------------------------------------------

static void expect_samples(iso_dataset *set, int64_t first, int64_t count) {
    iso_dataset_info info;
    iso_dataset_get_info(set, &info);
    cr_assert_eq(info.count, count);
    cr_assert_eq(info.classes, CLASSES);
    for (int64_t i = 0; i < count; i++) {
        sample got, wanted = sample_of(first + i);
        cr_assert_eq(
            iso_dataset_sample(set, i, (void *const[]){got.x, got.tokens, got.labels, &got.y}),
            ISO_OK, "%s", iso_last_error()->message);
        cr_assert_eq(memcmp(got.x, wanted.x, sizeof(got.x)), 0);
        cr_assert_eq(memcmp(got.tokens, wanted.tokens, sizeof(got.tokens)), 0);
        cr_assert_eq(memcmp(got.labels, wanted.labels, sizeof(got.labels)), 0);
        cr_assert_eq(got.y, wanted.y);
    }
}

Test(hdf5, samples_are_read_as_they_were_written) {
    const int64_t range[][4] = {
        {0, 0, 0, COUNT}, {5, 0, 5, COUNT - 5}, {5, 9, 5, 9}, {36, 1, 36, 1}};
    for (int kind = 0; kind < 4; kind++)
        for (int r = 0; r < 4; r++) {
            iso_dataset *set =
                open_samples(write_samples(kind / 2 * 4), range[r][0], range[r][1], kind % 2);
            expect_samples(set, range[r][2], range[r][3]);
            iso_dataset_destroy(&set);
        }
}

Test(hdf5, in_memory_they_have_the_checksum_and_the_statistics_of_arrays) {
    iso_dataset_info read, made;
    iso_dataset *file = open_samples(write_samples(4), 0, 0, true);
    iso_dataset *arrays = samples_create(COPIED, &all);
    iso_dataset_get_info(file, &read);
    iso_dataset_get_info(arrays, &made);
    cr_assert_eq(iso_dataset_checksum(file), iso_dataset_checksum(arrays));
    cr_assert_eq(memcmp(read.mean, made.mean, sizeof(double)), 0);
    iso_dataset_destroy(&file);
    iso_dataset_destroy(&arrays);
}

static uint64_t checksum_of(const char *path, int64_t first, int64_t count) {
    iso_dataset *set = open_samples(path, first, count, false);
    uint64_t sum = iso_dataset_checksum(set);
    iso_dataset_destroy(&set);
    return sum;
}

Test(hdf5, in_the_file_other_samples_have_another_checksum) {
    const char *path = write_samples(0);
    uint64_t sum = checksum_of(path, 0, 0);
    cr_assert_eq(sum, checksum_of(path, 0, COUNT));
    cr_assert_neq(sum, checksum_of(path, 1, 0));
    cr_assert_neq(checksum_of(path, 0, 5), checksum_of(path, 1, 5));
    cr_assert_neq(sum, checksum_of(write_samples(4), 0, 0)); // a file of another size
}

// ---- Batches ------------------------------------------------------------------------------------

static bool same_tensor(iso_tensor *a, iso_tensor *b, int64_t each, int64_t n) {
    static double x[2][1000];
    size_t bytes = (size_t)(n * each) * iso_dtype_size(iso_tensor_dtype(a));
    cr_assert_eq(tensor_get(a, x[0]), ISO_OK);
    cr_assert_eq(tensor_get(b, x[1]), ISO_OK);
    return memcmp(x[0], x[1], bytes) == 0;
}

// Both loaders give the same batches until the epoch ends.
static void compare_epoch(iso_loader *a, iso_loader *b, int64_t epoch) {
    iso_batch first, second;
    cr_assert_eq(iso_loader_start(a, epoch, 0), ISO_OK);
    cr_assert_eq(iso_loader_start(b, epoch, 0), ISO_OK);
    while (iso_loader_next(a, &first) == ISO_OK) {
        cr_assert_eq(iso_loader_next(b, &second), ISO_OK, "%s", iso_last_error()->message);
        cr_assert_eq(first.n, second.n);
        cr_assert(same_tensor(first.inputs[0], second.inputs[0], 4, first.n));
        cr_assert(same_tensor(first.inputs[1], second.inputs[1], 4, first.n));
        cr_assert(same_tensor(first.targets[1], second.targets[1], 1, first.n));
        cr_assert_eq(memcmp(first.labels, second.labels, (size_t)first.n * LABELS * 4), 0);
    }
    cr_assert_eq(iso_loader_next(b, &second), ISO_PENDING);
}

// mean NULL: the input is not normalised, so that the reader writes to the batch itself.
static void compare_loaders(iso_dataset *file, iso_dataset *arrays, const double *mean,
                            bool shuffle) {
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int rank = 0; rank < ranks; rank++) {
            const iso_sampler_config order = {
                .batch = BATCH, .rank = rank, .ranks = ranks, .seed = 3, .shuffle = shuffle};
            const double *std = mean ? mean + 4 : NULL;
            iso_loader_config config = {.mean = mean, .std = std};
            iso_loader *alone = samples_load(arrays, order, config);
            config.threads = ranks;
            config.prefetch = ranks - 1;
            iso_loader *many = samples_load(file, order, config);
            for (int epoch = 0; epoch < 2; epoch++) compare_epoch(alone, many, epoch);
            iso_loader_destroy(&alone);
            iso_loader_destroy(&many);
        }
}

Test(hdf5, batches_are_those_of_arrays) {
    static const double mean_and_std[8] = {1, 2, 3, 4, 2, 2, 3, 4};
    for (int kind = 0; kind < 4; kind++) {
        iso_dataset *file = open_samples(write_samples(kind / 2 * 4), 0, 0, false);
        iso_dataset *arrays = samples_create(COPIED, &all);
        compare_loaders(file, arrays, mean_and_std, kind % 2);
        compare_loaders(file, arrays, NULL, kind % 2);
        iso_dataset_destroy(&file);
        iso_dataset_destroy(&arrays);
    }
}

// A view keeps the file open.
Test(hdf5, a_split_has_the_samples_of_split_arrays) {
    iso_dataset *file = open_samples(write_samples(4), 0, 0, false), *parts[2];
    iso_dataset *arrays = samples_create(COPIED, &all), *wanted[2];
    cr_assert_eq(iso_dataset_split(file, 0.4, 1, &parts[0], &parts[1]), ISO_OK);
    cr_assert_eq(iso_dataset_split(arrays, 0.4, 1, &wanted[0], &wanted[1]), ISO_OK);
    iso_dataset_destroy(&file);
    iso_dataset_destroy(&arrays);
    for (int p = 0; p < 2; p++) {
        compare_loaders(parts[p], wanted[p], NULL, true);
        iso_dataset_destroy(&parts[p]);
        iso_dataset_destroy(&wanted[p]);
    }
}

// ---- Images of a program --------------------------------------------------------------------------

Test(hdf5, images_are_those_of_the_other_formats) {
    uint8_t pixels[6][12];
    const int64_t labels[6] = {0, 2, 1, 0, 2, 1};
    const int32_t same_labels[6] = {0, 2, 1, 0, 2, 1};
    for (int p = 0; p < 72; p++) pixels[p / 12][p % 12] = (uint8_t)(p * 3);
    const iso_tensor_spec shapes[] = {
        {ISO_U8, 3, {3, 2, 2}}, {ISO_U8, 2, {4, 3}}, {ISO_U8, 1, {12}}};
    const int64_t sizes[][3] = {{3, 2, 2}, {1, 4, 3}, {1, 1, 12}};
    for (int i = 0; i < 3; i++) {
        const hdf5_part parts[] = {{"x_train", shapes[i], 6, pixels},
                                   {"y_train", {.dtype = ISO_I64}, 6, labels},
                                   {"x_test", shapes[i], 3, pixels},
                                   {"y_test", {.dtype = ISO_I64}, 3, labels}};
        const char *path = hdf5_write(i ? "set.h5" : "set.hdf5", parts, 4, i);
        for (int train = 0; train < 2; train++) {
            iso_dataset *read, *made;
            cr_assert_eq(iso_dataset_open(path, train, &read), ISO_OK, "%s",
                         iso_last_error()->message);
            cr_assert_eq(iso_dataset_create(pixels[0], same_labels, train ? 6 : 3, sizes[i][0],
                                            sizes[i][1], sizes[i][2], 3, &made),
                         ISO_OK);
            cr_assert_eq(iso_dataset_checksum(read), iso_dataset_checksum(made));
            iso_dataset_destroy(&read);
            iso_dataset_destroy(&made);
        }
    }
}

// ---- Without HDF5 ---------------------------------------------------------------------------------

Test(hdf5_without, says_so) {
    iso_dataset *set = NULL;
    const iso_hdf5_config config = {.inputs = 1, .names = names};
    if (hdf5_is_there()) cr_skip_test("this build has HDF5");
    cr_assert_eq(iso_dataset_open_hdf5("x.h5", &config, &set), ISO_ERR_UNSUPPORTED);
    cr_assert(strstr(iso_last_error()->message, "x.h5 cannot be read, because this build has no "));
    cr_assert_eq(iso_dataset_open("x.h5", true, &set), ISO_ERR_UNSUPPORTED);
    cr_assert_null(set);
}
