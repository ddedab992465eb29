// SPDX-License-Identifier: MIT
// HDF5 files that are damaged or do not fit are refused with one sentence, and HDF5 prints nothing.
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "common/balance.h"
#include "common/hdf5_writer.h"
#include "common/scratch.h"
#include "data/hdf5_file.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef ISO_HAVE_HDF5

#include <hdf5.h>

static void set_up(void) { scratch_take_stderr(); }

static void clean_up(void) {
    if (scratch_release_stderr()) abort();
    scratch_remove();
    balance_check();
}
TestSuite(hdf5_damage, .init = set_up, .fini = clean_up, .timeout = 60);

enum { COUNT = 10 };
static const float x[COUNT][3] = {{1.25, 2.5, 77.125}};
static const int64_t y[COUNT] = {0, 3, 1, 2, 3, 0, 1, 2, 3, 0};
static const iso_tensor_spec x_spec = {ISO_F32, 1, {3}}, y_spec = {.dtype = ISO_I64};
static const char *names[] = {"x", "y"};
static iso_hdf5_config usual = {.inputs = 1, .targets = 1, .names = names};

static const char *write_file(int64_t chunk) {
    const hdf5_part parts[] = {{"x", x_spec, COUNT, x}, {"y", y_spec, COUNT, y}};
    return hdf5_write("set.h5", parts, 2, chunk);
}

static void refuse(const char *path, const iso_hdf5_config *config, iso_status code,
                   const char *words) {
    for (int in_memory = 0; in_memory < 2; in_memory++) {
        iso_dataset *dataset = NULL;
        const char *message = iso_last_error()->message;
        iso_hdf5_config each = *config;
        each.in_memory = in_memory;
        iso_status status = iso_dataset_open_hdf5(path, &each, &dataset);
        cr_assert_null(strstr(message, "no details"), "%s", message);
        cr_assert_eq(status, code, "%s: got %d: %s", words, status, message);
        cr_assert(strstr(message, words), "no \"%s\" in: %s", words, message);
        cr_assert_null(dataset);
    }
}

// ---- Files --------------------------------------------------------------------------------------

Test(hdf5_damage, files_that_are_none_are_refused) {
    refuse(scratch_path("none.h5"), &usual, ISO_ERR_IO, "none.h5: No such file");
    refuse(scratch_folder(), &usual, ISO_ERR_IO, "it is a folder");
    refuse(scratch_write("empty.h5", "", 0), &usual, ISO_ERR_FORMAT,
           "empty.h5 does not begin as an HDF5 file does");
    refuse(scratch_write("text.h5", "1,2,3\n", 6), &usual, ISO_ERR_FORMAT,
           "text.h5 does not begin as an HDF5 file does");
    for (int train = 0; train < 2; train++) {
        iso_dataset *set = NULL;
        cr_assert_eq(iso_dataset_open(scratch_path("text.h5"), train, &set), ISO_ERR_FORMAT);
    }
}

// It is not damaged.
Test(hdf5_damage, a_file_that_another_program_locks_is_refused) {
    const char *path = write_file(0);
    int other = open(path, O_RDONLY);
    cr_assert_eq(flock(other, LOCK_EX), 0);
    refuse(path, &usual, ISO_ERR_IO, "HDF5 cannot lock ");
    close(other);
}

// Wherever a file ends too early, that is an error and no crash.
Test(hdf5_damage, truncated_files_are_refused) {
    for (int64_t chunk = 0; chunk < 5; chunk += 4) {
        size_t bytes;
        char *whole = scratch_read(write_file(chunk), &bytes);
        for (size_t left = 8; left < bytes; left += left < bytes - 200 ? 97 : 1) {
            const char *path = scratch_write("short.h5", whole, left);
            refuse(path, &usual, ISO_ERR_FORMAT, "short.h5");
        }
        refuse(scratch_write("short.h5", whole, bytes - 1), &usual, ISO_ERR_FORMAT,
               "truncated file");
        free(whole);
    }
}

// The checksum of its chunk tells it when the sample is read.
Test(hdf5_damage, a_damaged_chunk_is_told_by_the_sample) {
    size_t bytes;
    iso_dataset *set = NULL;
    float got[3];
    int64_t target;
    const hdf5_part part[] = {{"x", x_spec, COUNT, x}, {"y", y_spec, COUNT, y}};
    char *whole = scratch_read(hdf5_write("set.h5", part, 2, 4), &bytes);
    for (size_t i = 0; i + 2 < bytes; i++) // where zlib begins: the first chunk of x comes first
        if (whole[i] == 0x78 && whole[i + 1] == 0x5e) {
            whole[i + 5] ^= 0x55;
            break;
        }
    const char *path = scratch_write("set.h5", whole, bytes);
    free(whole);
    refuse(path, &usual, ISO_ERR_IO, "of data set \"x\" of ");
    usual.first = 4;
    cr_assert_eq(iso_dataset_open_hdf5(path, &usual, &set), ISO_OK, "%s",
                 iso_last_error()->message);
    cr_assert_eq(iso_dataset_sample(set, 1, (void *const[]){got, &target}), ISO_OK);
    iso_dataset_destroy(&set);
}

// ---- Data sets ------------------------------------------------------------------------------------

Test(hdf5_damage, names_that_are_not_there_are_refused) {
    const char *path = write_file(0);
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    H5Gclose(H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Fclose(file);
    const char *const wrong[] = {"X", "group", "group/x", "nothing/x", ""};
    for (int i = 0; i < 5; i++) {
        names[1] = wrong[i];
        refuse(path, &usual, ISO_ERR_ARG, "has no data set \"");
        refuse(path, &usual, ISO_ERR_ARG, "\": it has group, x, y");
    }
    names[1] = NULL;
    refuse(path, &usual, ISO_ERR_ARG, "tensor 1 of the samples has no name");
    names[1] = "y";
}

// chunk: NULL, or the shape of the chunks. stored: as if zeros had been written.
static hid_t describe_storage(int rank, const hsize_t *chunk, bool stored) {
    hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    if (chunk) H5Pset_chunk(how, rank, chunk);
    if (stored) H5Pset_alloc_time(how, H5D_ALLOC_TIME_EARLY);
    return how;
}

// Takes `how`.
static void add_shape(const char *path, const char *name, hid_t type, int rank, const hsize_t *dims,
                      hid_t how) {
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t space = rank > 0 ? H5Screate_simple(rank, dims, NULL) : H5Screate(H5S_SCALAR);
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
    cr_assert_geq(set, 0, "%s", name);
    H5Dclose(set);
    H5Pclose(how);
    H5Sclose(space);
    H5Fclose(file);
}

static void add_set(const char *path, const char *name, hid_t type, int rank, const hsize_t *dims) {
    add_shape(path, name, type, rank, dims, describe_storage(rank, NULL, true));
}

Test(hdf5_damage, shapes_and_types_that_do_not_fit_are_refused) {
    const char *path = write_file(0);
    const hsize_t dims[] = {COUNT, 1, 1, 1, 1, 1, 1, 1, 1, 1}, none[] = {COUNT, 0}, fewer[] = {9};
    const hsize_t nobody[] = {0};
    add_set(path, "scalar", H5T_NATIVE_FLOAT, 0, NULL);
    add_set(path, "deep", H5T_NATIVE_FLOAT, ISO_MAX_DIMS + 1, dims);
    add_set(path, "none", H5T_NATIVE_FLOAT, 2, none);
    add_set(path, "nobody", H5T_NATIVE_FLOAT, 1, nobody);
    add_set(path, "text", H5T_C_S1, 1, dims);
    add_set(path, "large", H5T_NATIVE_UINT64, 1, dims);
    add_set(path, "fewer", H5T_NATIVE_FLOAT, 1, fewer);
    const char *const wrong[][2] = {{"scalar", "has 0 dimensions"},
                                    {"deep", "dimensions: it may have 1, the samples, to"},
                                    {"none", "is empty or too large"},
                                    {"nobody", "is empty or too large"},
                                    {"text", "holds something else than floats"},
                                    {"large", "holds something else than floats"},
                                    {"fewer", "holds 10 samples but \"fewer\" holds 9: they do"}};
    for (int i = 0; i < 7; i++) {
        names[1] = wrong[i][0];
        refuse(path, &usual, ISO_ERR_FORMAT, wrong[i][1]);
    }
    names[1] = "y";
}

// A file of a few bytes may claim any sizes.
Test(hdf5_damage, sizes_that_cannot_be_counted_are_refused) {
    const char *path = write_file(0);
    const hsize_t long_labels[] = {1, ((hsize_t)1 << 62) + 1}, many[] = {((hsize_t)1 << 62) + 1};
    const hsize_t square[] = {(hsize_t)1 << 31, (hsize_t)1 << 31}, chunk[] = {1, 1 << 20};
    add_shape(path, "long", H5T_STD_U8LE, 2, long_labels, describe_storage(2, NULL, false));
    add_shape(path, "many", H5T_STD_U8LE, 1, many, describe_storage(1, NULL, false));
    add_shape(path, "square", H5T_STD_I16LE, 2, square, describe_storage(2, chunk, false));
    const char *const wrong[] = {"long", "many", "square"};
    for (int i = 0; i < 3; i++) {
        iso_hdf5_config config = {.inputs = 1, .targets = 1, .classes = 2};
        config.names = (const char *const[]){wrong[i], wrong[i]};
        refuse(path, &config, ISO_ERR_FORMAT, "is empty or too large");
    }
}

Test(hdf5_damage, a_set_that_was_never_written_is_refused) {
    const char *path = write_file(0);
    const hsize_t dims[] = {COUNT};
    add_shape(path, "unwritten", H5T_STD_U8LE, 1, dims, describe_storage(1, NULL, false));
    names[1] = "unwritten";
    refuse(path, &usual, ISO_ERR_FORMAT, "\"unwritten\" of ");
    refuse(path, &usual, ISO_ERR_FORMAT, "it was never written");
    names[1] = "y";
}

// The smallest type that holds all values; half floats and the other byte order, too.
Test(hdf5_damage, other_types_are_converted) {
    const hid_t types[] = {H5T_STD_I8BE,  H5T_STD_U16LE,  H5T_STD_I16BE, H5T_STD_U32BE,
                           H5T_STD_I64BE, H5T_IEEE_F32BE, H5T_IEEE_F64BE};
    const iso_dtype wanted[] = {ISO_I32, ISO_I32, ISO_I32, ISO_I64, ISO_I64, ISO_F32, ISO_F64};
    const hsize_t dims[] = {COUNT};
    const char *path = write_file(0);
    for (int i = 0; i < 7; i++) {
        char name[8];
        iso_dataset *set = NULL;
        iso_dataset_info info;
        snprintf(name, sizeof(name), "t%d", i);
        add_set(path, name, types[i], 1, dims);
        names[1] = name;
        cr_assert_eq(iso_dataset_open_hdf5(path, &usual, &set), ISO_OK);
        iso_dataset_get_info(set, &info);
        cr_assert_eq(info.tensors[1].dtype, wanted[i]);
        iso_dataset_destroy(&set);
    }
    names[1] = "y";
}

// ---- Samples --------------------------------------------------------------------------------------

Test(hdf5_damage, samples_that_are_not_there_are_refused) {
    const char *path = write_file(0);
    iso_hdf5_config config = usual;
    config.first = 8, config.count = 3;
    refuse(path, &config, ISO_ERR_FORMAT,
           "holds 10 samples, and 3 from sample 8 on were asked for");
    config.first = 10, config.count = 0;
    refuse(path, &config, ISO_ERR_FORMAT, "holds 10 samples");
    config.first = -1;
    refuse(path, &config, ISO_ERR_ARG, "from sample -1 on");
    config = usual;
    config.inputs = 0;
    refuse(path, &config, ISO_ERR_ARG, "0 inputs");
    config.inputs = 2, config.targets = 0, config.classes = 2;
    refuse(path, &config, ISO_ERR_ARG, "needs labels");
}

Test(hdf5_damage, labels_outside_the_classes_are_refused) {
    const int64_t huge[COUNT] = {0, 1, (int64_t)1 << 40, 2, 0, -1};
    const hdf5_part parts[] = {{"x", x_spec, COUNT, x}, {"y", y_spec, COUNT, huge}};
    const char *path = hdf5_write("set.h5", parts, 2, 0);
    iso_hdf5_config config = usual;
    float got[3];
    int32_t label;
    iso_dataset *set = NULL;
    config.classes = 4, config.in_memory = true;
    cr_assert_eq(iso_dataset_open_hdf5(path, &config, &set), ISO_ERR_FORMAT);
    cr_assert(strstr(iso_last_error()->message, "label 2 of data set \"y\" of "));
    config.in_memory = false, config.first = 1;
    cr_assert_eq(iso_dataset_open_hdf5(path, &config, &set), ISO_OK);
    cr_assert_eq(iso_dataset_sample(set, 1, (void *const[]){got, &label}), ISO_ERR_FORMAT);
    cr_assert(strstr(iso_last_error()->message, "label 2 of data set \"y\" of "));
    cr_assert_eq(iso_dataset_sample(set, 4, (void *const[]){got, &label}), ISO_ERR_FORMAT);
    cr_assert(strstr(iso_last_error()->message, "set.h5 is -1, outside [0, 4)"));
    iso_dataset_destroy(&set);
    names[1] = "x";
    refuse(path, &config, ISO_ERR_FORMAT, "holds floats, but labels are integers");
    names[1] = "y";
}

// A chunk that the cache has no room for would be decompressed for each of its samples.
Test(hdf5_damage, long_chunks_get_a_larger_cache) {
    enum { PIXELS = 1 << 18, CHUNK = 8 };
    static uint8_t images[CHUNK][PIXELS];
    const hdf5_part part = {"x", {ISO_U8, 1, {PIXELS}}, CHUNK, images};
    const int64_t chunks[] = {1, CHUNK};
    for (int i = 0; i < 2; i++) {
        iso__hdf5 *file;
        size_t slots, bytes;
        double rule;
        cr_assert_eq(iso__hdf5_open(hdf5_write("set.h5", &part, 1, chunks[i]), names, 1, &file),
                     ISO_OK);
        hid_t access = H5Dget_access_plist((hid_t)file->sets[0].handle);
        H5Pget_chunk_cache(access, &slots, &bytes, &rule);
        H5Pclose(access);
        cr_assert(i == 0 ? bytes == 1 << 20 : bytes >= sizeof(images));
        iso__hdf5_close(&file);
    }
}

// All chunks of a sample count, in the type of the file.
Test(hdf5_damage, a_sample_of_many_chunks_gets_room_for_them_all) {
    const hsize_t dims[] = {2, 1 << 20}, chunk[] = {2, 1 << 10};
    const char *path = write_file(0);
    iso__hdf5 *file;
    size_t slots, bytes;
    double rule;
    add_shape(path, "many", H5T_STD_I8LE, 2, dims, describe_storage(2, chunk, true));
    cr_assert_eq(iso__hdf5_open(path, (const char *const[]){"many"}, 1, &file), ISO_OK);
    hid_t access = H5Dget_access_plist((hid_t)file->sets[0].handle);
    H5Pget_chunk_cache(access, &slots, &bytes, &rule);
    H5Pclose(access);
    cr_assert(slots > 1 << 10 && bytes >= 2 << 20, "%zu slots, %zu bytes", slots, bytes);
    iso__hdf5_close(&file);
}

// A program that wants HDF5 to print its errors still gets them.
Test(hdf5_damage, the_printing_of_the_program_is_put_back) {
    H5E_auto2_t before, after;
    void *data[2];
    H5Eget_auto2(H5E_DEFAULT, &before, &data[0]);
    cr_assert_not_null(before);
    refuse(write_file(0), &(iso_hdf5_config){.inputs = 1, .names = &names[1], .first = 99},
           ISO_ERR_FORMAT, "99");
    H5Eget_auto2(H5E_DEFAULT, &after, &data[1]);
    cr_assert(before == after && data[0] == data[1]);
}

#else

Test(hdf5_damage, is_refused) { cr_skip_test("this build has no HDF5"); }

#endif
