// SPDX-License-Identifier: MIT
// A training that is interrupted and resumed in new objects goes on with the same bits, whatever
// its samples come from.
#include "common/hdf5_writer.h"
#include "common/mpi_fixture.h"
#include "common/regression_fixture.h"
#include "common/resume_fixture.h"
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <isotherm/resume.h>
#include <stdio.h>
#include <string.h>

static void tear_down(void) {
    if (test_rank != 0) scratch_remove(); // files of its own
    resume_teardown();
}
TestSuite(np1_resume_data, .init = resume_setup, .fini = tear_down, .timeout = 60);
TestSuite(np2_resume_data, .init = resume_setup, .fini = tear_down, .timeout = 60);
TestSuite(np3_resume_data, .init = resume_setup, .fini = tear_down, .timeout = 60);
TestSuite(np4_resume_data, .init = resume_setup, .fini = tear_down, .timeout = 60);

enum { COUNT = 37, ARRAYS = 0, CALLBACK, CSV, RAW, HDF5, KINDS };

static iso_status read_sample(int64_t i, void *const *tensors, void *user) {
    regression_sample(*(const int *)user, i, tensors[0], tensors[1]);
    return ISO_OK;
}

static const iso_tensor_spec specs[] = {{ISO_F32, 1, {REGRESSION_IN}},
                                        {ISO_F32, 1, {REGRESSION_OUT}}};

static iso_status read_csv(int stream, int64_t count, iso_dataset **out) {
    const iso_csv_config config = {.header = true, .targets = "y0,y1"};
    const char *path = scratch_path("table.csv");
    FILE *file = fopen(path, "w");
    if (!file) return ISO_ERR_IO;
    fputs("y0,x0,x1,x2,x3,y1\n", file);
    for (int64_t i = 0; i < count; i++) {
        float x[REGRESSION_IN], y[REGRESSION_OUT];
        regression_sample(stream, i, x, y);
        fprintf(file, "%.9g,%.9g,%.9g,%.9g,%.9g,%.9g\n", (double)y[0], (double)x[0], (double)x[1],
                (double)x[2], (double)x[3], (double)y[1]);
    }
    fclose(file);
    return iso_dataset_read_csv(path, &config, out);
}

static iso_status read_raw(int stream, int64_t count, iso_dataset **out) {
    float x[100][REGRESSION_IN], y[100][REGRESSION_OUT];
    for (int64_t i = 0; i < count; i++) regression_sample(stream, i, x[i], y[i]);
    size_t n = (size_t)count;
    const iso_raw_file files[] = {{.path = scratch_write("x.bin", x, n * sizeof(x[0])), specs[0]},
                                  {.path = scratch_write("y.bin", y, n * sizeof(y[0])), specs[1]}};
    const iso_raw_config config = {.inputs = 1, .targets = 1, .files = files};
    return iso_dataset_read_raw(&config, out);
}

static iso_status open_hdf5(int stream, int64_t count, iso_dataset **out) {
    static const char *const names[] = {"x", "y"};
    float x[100][REGRESSION_IN], y[100][REGRESSION_OUT];
    for (int64_t i = 0; i < count; i++) regression_sample(stream, i, x[i], y[i]);
    const hdf5_part parts[] = {{"x", specs[0], count, x}, {"y", specs[1], count, y}};
    const iso_hdf5_config config = {.inputs = 1, .targets = 1, .names = names};
    return iso_dataset_open_hdf5(hdf5_write("set.h5", parts, 2, stream), &config, out);
}

// Of the same samples, whatever the kind. A shard has more samples on later ranks.
static iso_dataset *create(int kind, bool shard) {
    static int stream;
    int64_t count = shard ? COUNT + 5 * test_rank : COUNT;
    const iso_dataset_config config = {.count = count, .inputs = 1, .targets = 1, .tensors = specs};
    iso_dataset *out = NULL;
    iso_status status = ISO_OK;
    stream = shard ? test_rank : 0;
    switch (kind) {
    case ARRAYS: out = regression_arrays(stream, count); break;
    case CALLBACK: status = iso_dataset_create_callback(&config, read_sample, &stream, &out); break;
    case CSV: status = read_csv(stream, count, &out); break;
    case RAW: status = read_raw(stream, count, &out); break;
    default: status = open_hdf5(stream, count, &out);
    }
    iso_assert_ok(status);
    if (shard) iso_assert_ok(iso_dataset_set_shard(out, test_comm, "the training set"));
    return out;
}

static void start(regression *r, int kind, bool shard, uint64_t seed) {
    regression_create(r, test_comm, seed);
    regression_load(r, create(kind, shard), 4, true, ISO_SAMPLER_PAD);
}

static iso_state *state_of(regression *r, bool shard, iso_loader_state *samples) {
    iso_state *state;
    iso_loader_get_state(r->loader, samples);
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(r->model, r->optimizer, state));
    iso_assert_ok(iso_state_add(state, shard ? ISO_STATE_OWN : ISO_STATE_SHARED, "samples",
                                ISO_STATE_I64, sizeof(*samples) / 8, samples));
    return state;
}

// Saved after some steps, in the middle of an epoch or at its end, and gone on with by others.
static uint64_t train_in_two(int kind, bool shard, int first, int steps) {
    regression r;
    iso_loader_state samples;
    int64_t step = 0;
    start(&r, kind, shard, 1);
    regression_train(&r, first);
    iso_state *state = state_of(&r, shard, &samples);
    iso_assert_ok(iso_resume_save(test_comm, resume_path(), first, state));
    iso_state_destroy(&state);
    regression_destroy(&r);
    start(&r, kind, shard, 2);
    state = state_of(&r, shard, &samples);
    iso_assert_ok(iso_resume_load(test_comm, resume_path(), state, &step));
    iso_assert_ok(iso_loader_set_state(r.loader, &samples));
    iso_assert_ok(iso_training_loaded(r.model, r.optimizer));
    iso_state_destroy(&state);
    iso_assert_all(step == first);
    regression_train(&r, steps - first);
    uint64_t hash = regression_hash(&r);
    regression_destroy(&r);
    iso_assert_ok(iso_resume_remove(resume_path()));
    MPI_Barrier(MPI_COMM_WORLD);
    return hash;
}

static void goes_on(bool shard) {
    regression r;
    int steps = 25;
    start(&r, ARRAYS, shard, 1);
    int batches = (int)iso_loader_batches(r.loader);
    regression_train(&r, steps);
    uint64_t whole = regression_hash(&r);
    regression_destroy(&r);
    for (int kind = 0; kind < KINDS; kind++) {
        if (kind == HDF5 && !hdf5_is_there()) continue;
        iso_assert_all(train_in_two(kind, shard, batches / 2 + 1, steps) == whole);
        if (kind == HDF5) continue; // its epochs end as a callback's
        iso_assert_all(train_in_two(kind, shard, batches, steps) == whole);
        iso_assert_all(train_in_two(kind, shard, batches + 2, steps) == whole);
    }
}

Test(np1_resume_data, of_a_whole_set) { goes_on(false); }
Test(np2_resume_data, of_a_whole_set) { goes_on(false); }
Test(np3_resume_data, of_a_whole_set) { goes_on(false); }
Test(np4_resume_data, of_a_whole_set) { goes_on(false); }
Test(np1_resume_data, of_shards) { goes_on(true); }
Test(np2_resume_data, of_shards) { goes_on(true); }
Test(np3_resume_data, of_shards) { goes_on(true); }
Test(np4_resume_data, of_shards) { goes_on(true); }

// Another shard than the one that was saved, on one rank alone.
Test(np3_resume_data, another_shard_is_refused) {
    regression r;
    iso_loader_state samples;
    start(&r, ARRAYS, true, 1);
    iso_loader_get_state(r.loader, &samples);
    if (test_rank == 1) samples.count++;
    iso_status status = iso_comm_agree(test_comm, iso_loader_set_state(r.loader, &samples));
    iso_assert_all(status == ISO_ERR_MISMATCH);
    iso_assert_all(strstr(iso_last_error()->message, "with count 43 does not fit"));
    regression_destroy(&r);
}
