// SPDX-License-Identifier: MIT
// ZeRO stage 3: the results of stage 1, what a rank holds of parameters, as the system says, and
// who may read them. test_zero.c and others, compiled for stage 3, have the rest.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/process_memory.h"
#include "common/zero_fixture.h"

#include "base/base.h"
#include "parallel/reducer/reducer_calls.h"
#include "tensor/tensor_impl.h"

#include <isotherm/layers.h>

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

TestSuite(np1_zero_values, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_zero_values, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_zero_values, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np4_zero_values, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);

// ---- The same bits ----------------------------------------------------------------------------------

Test(np2_zero_values, equals_stage_1_and_a_run_without) { zero_equals_stage_1(3, 0, 1); }
Test(np3_zero_values, equals_stage_1_and_a_run_without) { zero_equals_stage_1(3, 0, 1); }
Test(np4_zero_values, equals_stage_1_and_a_run_without) { zero_equals_stage_1(3, 0, 4); }

Test(np1_zero_values, alone_a_rank_keeps_everything) {
    iso_assert_all(zero_hash_of(trainer_default(), 3) == zero_hash_of(trainer_default(), 0));
}

// ---- What the system says ---------------------------------------------------------------------------

enum { DEEP = 8, WIDE = 512 }; // layers of 1 MiB

static size_t peak; // the most bytes of values in memory while a layer runs
static trainer *watched;

static void look_around(void) {
    if (!watched) return;
    size_t now = iso__reducer_resident_values(iso_data_parallel_reducer(watched->model));
    if (now > peak) peak = now;
}

static iso_status after_forward(iso_module *module, iso_tensor *in, iso_tensor *out, void *user) {
    (void)module, (void)in, (void)out, (void)user;
    look_around();
    return ISO_OK;
}

static iso_status before_backward(iso_module *module, iso_tensor *grad_out, void *user) {
    (void)module, (void)grad_out, (void)user;
    look_around();
    return ISO_OK;
}

static iso_status build_deep_mlp(iso_device *device, bool dropout, iso_module **out) {
    const iso_module_hooks hooks = {.after_forward = after_forward,
                                    .before_backward = before_backward};
    iso_rng rng = {.seed = 5};
    iso_module *m;
    char name[8];
    (void)dropout;
    ISO_TRY(iso_sequential_create(device, out));
    ISO_TRY(iso_flatten_create(device, &m));
    ISO_TRY(iso_sequential_add_take(*out, "flatten", m));
    for (int i = 0; i < DEEP; i++) {
        int64_t in = i == 0 ? (int64_t)TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE : WIDE;
        int64_t units = i == DEEP - 1 ? TRAINER_CLASSES : WIDE;
        ISO_TRY(iso_linear_create(device, in, units, true, &rng, &m));
        ISO_TRY(iso_module_add_hooks(m, &hooks, NULL));
        snprintf(name, sizeof(name), "fc%d", i);
        ISO_TRY(iso_sequential_add_take(*out, name, m));
    }
    return ISO_OK;
}

static trainer_config deep_config(void) {
    trainer_config config = trainer_default();
    config.build = build_deep_mlp;
    config.hyper.lr = 1e-3;
    return config;
}

static size_t bytes_of_values(trainer *t) {
    return (size_t)iso_module_parameter_count(t->model) * sizeof(float);
}

// This rank's shards and so many whole buckets; each shares its first and last page with others.
static size_t bound(trainer *t, int buckets) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes_of_values(t) / (size_t)test_size + (size_t)buckets * (WIDE + 1) * WIDE * 4 +
           6 * DEEP * page;
}

static size_t resident(trainer *t) {
    return iso__reducer_resident_values(iso_data_parallel_reducer(t->model));
}

// From the second forward on, which knows which layers repeat, only what is in use and the next
// bucket are there beside this rank's shards.
static void holds_shards(iso_sync sync) {
    trainer_config config = deep_config();
    trainer t;
    config.sync = sync;
    zero_create_trainer(&t, config, 3);
    iso_assert_all(resident(&t) <= bound(&t, 0));
    iso_assert_ok(zero_make_step(&t, 0));
    iso_assert_all(resident(&t) <= bound(&t, 0));
    watched = &t;
    for (int step = 1; step < 4; step++) {
        peak = 0;
        iso_assert_ok(zero_make_step(&t, step));
        iso_assert_all(peak > bytes_of_values(&t) / (size_t)test_size && peak <= bound(&t, 2));
        iso_assert_all(resident(&t) <= bound(&t, 0));
    }
    watched = NULL;
    zero_hash_now(&t); // reads all
    iso_assert_all(resident(&t) >= bytes_of_values(&t));
    iso_assert_ok(zero_make_step(&t, 4));
    iso_assert_all(resident(&t) <= bound(&t, 0));
    trainer_destroy(&t);
}

Test(np2_zero_values, lazy_holds_shards) { holds_shards(ISO_SYNC_LAZY); }
Test(np4_zero_values, lazy_holds_shards) { holds_shards(ISO_SYNC_LAZY); }
Test(np3_zero_values, blocking_holds_shards) { holds_shards(ISO_SYNC_BLOCKING); }

// The process grows by the shards of the other ranks when all values are read, and shrinks again.
Test(np2_zero_values, the_process_holds_shards) {
    trainer t;
    zero_create_trainer(&t, deep_config(), 3);
    for (int step = 0; step < 3; step++) iso_assert_ok(zero_make_step(&t, step));
    iso_assert_ok(iso_data_parallel_finish(t.model)); // gradients go
    size_t others = bytes_of_values(&t) / 2, before = process_bytes();
    zero_hash_now(&t);
    size_t whole = process_bytes();
    iso_assert_ok(zero_make_step(&t, 3));
    iso_assert_ok(iso_data_parallel_finish(t.model));
    size_t after = process_bytes();
    iso_assert_all(whole > before + others * 3 / 4 && whole < before + others * 3 / 2);
    iso_assert_all(after + others * 3 / 4 < whole);
    trainer_destroy(&t);
}

// ---- Reading values ---------------------------------------------------------------------------------

static iso_status read_value(trainer *t) {
    iso_parameter_list list;
    iso_tensor *value;
    ISO_TRY(iso_module_parameters(t->model, &list));
    iso_status status = iso_parameter_value(list.item[0], &value);
    iso_parameter_list_destroy(&list);
    return status;
}

// When values are read: on all ranks, or on rank 0 alone, whose read ends when the others reach
// their next forward.
typedef struct reads {
    bool after_step, alone, before_backward, evaluate;
} reads;

enum { LAST = 3 };

static iso_status read_and_step(trainer *t, int step, const reads *how) {
    iso_tensor *out, *grad;
    double loss;
    iso_optimizer_zero_grad(t->optimizer);
    ISO_TRY(trainer_forward(t, step, &out));
    if (how->before_backward) ISO_TRY(read_value(t));
    ISO_TRY(iso_loss_compute(t->loss, out, t->labels, &loss, NULL, &grad));
    ISO_TRY(iso_module_backward(t->model, grad, NULL));
    ISO_TRY(iso_optimizer_step(t->optimizer));
    bool mine = !how->alone || (test_rank == 0 && step < LAST); // another forward follows
    if (how->after_step && mine) ISO_TRY(read_value(t));
    if (!how->evaluate) return ISO_OK;
    ISO_TRY(iso_module_train(t->model, false));
    // Ranks may evaluate different numbers of batches.
    for (int k = 0; k <= test_rank; k++) ISO_TRY(trainer_forward(t, 7, &out));
    return iso_module_train(t->model, true);
}

static uint64_t hash_with_reads(int stage, iso_sync sync, const reads *how) {
    trainer_config config = trainer_default();
    iso_status status = ISO_OK;
    trainer t;
    config.sync = sync;
    zero_create_trainer(&t, config, stage);
    for (int step = 0; step <= LAST && status == ISO_OK; step++) // no verdict: one may be ahead
        status = read_and_step(&t, step, how);
    iso_assert_ok(status);
    uint64_t hash = zero_hash_now(&t);
    trainer_destroy(&t);
    return hash;
}

static void reads_change_nothing(void) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    for (int i = 0; i < 16; i++) {
        const reads how = {
            .after_step = i & 1, .alone = i & 2, .before_backward = i & 4, .evaluate = i & 8};
        iso_sync sync = i % 3 ? ISO_SYNC_LAZY : ISO_SYNC_BLOCKING;
        if (how.alone && (!how.after_step || how.evaluate)) continue;
        iso_assert_all(hash_with_reads(3, sync, &how) == hash_with_reads(0, sync, &how));
    }
}

Test(np2_zero_values, reads_change_nothing) { reads_change_nothing(); }
Test(np3_zero_values, reads_change_nothing) { reads_change_nothing(); }

// ---- The module outlives the wrapper ----------------------------------------------------------------

Test(np3_zero_values, values_return_to_the_module) {
    trainer plain, t;
    double difference = 1;
    iso_module *inside;
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    zero_create_trainer(&plain, trainer_default(), 0);
    zero_create_trainer(&t, trainer_default(), 3);
    for (int step = 0; step < 3; step++) {
        iso_assert_ok(zero_make_step(&plain, step));
        iso_assert_ok(zero_make_step(&t, step));
    }
    inside = iso_module_retain(iso_data_parallel_module(t.model));
    iso_optimizer_destroy(&t.optimizer);
    iso_module_destroy(&t.model);
    t.model = inside;
    iso_assert_ok(trainer_difference(&plain, &t, &difference));
    iso_assert_all(difference == 0);
    trainer_destroy(&t);
    trainer_destroy(&plain);
}

// ---- Ranks that fail, or are late -------------------------------------------------------------------

static bool fails_now;

static iso_status fail_forward(iso_module *module, iso_tensor *in, void *user) {
    (void)module, (void)in, (void)user;
    if (fails_now) return ISO_FAIL(ISO_ERR_IO, "a layer failed");
    return ISO_OK;
}

static iso_status build_failing(iso_device *device, bool dropout, iso_module **out) {
    const iso_module_hooks hooks = {.before_forward = fail_forward};
    iso_module *layer;
    ISO_TRY(build_small_cnn(device, dropout, out));
    ISO_TRY(iso_module_get_submodule(*out, "fc1", &layer));
    return iso_module_add_hooks(layer, &hooks, NULL);
}

// What all ranks do after it.
typedef enum sequel { NEXT_BATCH, READ, EVALUATE } sequel;

static iso_status go_on_with(trainer *t, sequel then) {
    if (then == READ) return read_value(t);
    if (then == NEXT_BATCH) return ISO_OK;
    ISO_TRY(iso_module_train(t->model, false));
    return iso_module_train(t->model, true);
}

// A layer of one rank fails. The others complete their forward; all skip the batch, and go on.
static uint64_t hash_after_failures(int stage, int failing, sequel then) {
    trainer_config config = trainer_default();
    iso_tensor *out;
    trainer t;
    config.build = build_failing;
    zero_create_trainer(&t, config, stage);
    for (int step = 0; step < 5; step++) {
        bool fails = step % 2 == 1 && (failing < 0 || failing == test_rank);
        if (step % 2 == 1) {
            fails_now = fails;
            iso_status status = trainer_forward(&t, step, &out);
            fails_now = false;
            iso_assert_all(status == (fails ? ISO_ERR_IO : ISO_OK));
            iso_assert_ok(go_on_with(&t, then));
        }
        iso_assert_ok(zero_make_step(&t, step));
    }
    uint64_t hash = zero_hash_now(&t);
    trainer_destroy(&t);
    return hash;
}

static void survives_failures(void) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    uint64_t wanted = hash_after_failures(0, -1, NEXT_BATCH);
    for (int failing = -1; failing < test_size; failing++)
        for (sequel then = NEXT_BATCH; then <= EVALUATE; then++)
            iso_assert_all(hash_after_failures(3, failing, then) == wanted);
}

Test(np2_zero_values, a_failed_forward_does_not_stop_others) { survives_failures(); }
Test(np3_zero_values, a_failed_forward_does_not_stop_others) { survives_failures(); }

// Retries each forward that times out. late: rank 1 sleeps before a forward.
static uint64_t late_hash(iso_comm *comm, bool late, bool *timed_out) {
    trainer_config config = deep_config();
    iso_status status = ISO_OK;
    uint64_t hash = 0;
    trainer t;
    zero_set_stage(&config, 3);
    iso_assert_ok(trainer_create(&t, comm, &config));
    for (int step = 0; status == ISO_OK && step < 4; step++) { // no verdict meanwhile: ranks meet
        iso_tensor *out, *grad;
        double loss;
        iso_optimizer_zero_grad(t.optimizer);
        if (late && test_rank == 1 && step == 2) usleep(SLOW);
        while ((status = trainer_forward(&t, step, &out)) == ISO_ERR_TIMEOUT) *timed_out = true;
        if (status == ISO_OK) status = iso_loss_compute(t.loss, out, t.labels, &loss, NULL, &grad);
        if (status == ISO_OK) status = iso_module_backward(t.model, grad, NULL);
        if (status == ISO_OK) status = iso_optimizer_step(t.optimizer);
    }
    iso_assert_ok(status);
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
    return hash;
}

Test(np2_zero_values, a_late_rank_does_not_change_bits) {
    bool timed_out = false;
    uint64_t wanted = late_hash(test_comm, false, &timed_out);
    iso_assert_all(!timed_out);
    iso_comm *comm = test_comm_with_limit(IMPATIENT);
    uint64_t hash = late_hash(comm, true, &timed_out);
    iso_assert_all(hash == wanted);
    iso_assert_all(timed_out || test_rank == 1);
    iso_comm_destroy(&comm);
}

// ---- What it refuses --------------------------------------------------------------------------------

Test(np2_zero_values, arrays_of_a_program_are_refused) {
    static float value[64];
    const iso_reducer_param param = {.name = "a", .value = value, .count = 64};
    const iso_reducer_config config = {.zero = 3};
    iso_reducer *r = NULL;
    iso_assert_all(iso_reducer_create(test_comm, &param, 1, &config, &r) == ISO_ERR_UNSUPPORTED);
    cr_assert(strstr(iso_last_error()->message, "stage 2"), "%s", iso_last_error()->message);
}

// Layers may have tensors over memory of the program.
static float foreign[WIDE];

static iso_status build_foreign(iso_device *device, bool dropout, iso_module **out) {
    iso_module *layer;
    ISO_TRY(build_small_cnn(device, dropout, out));
    ISO_TRY(iso_module_get_submodule(*out, "fc2", &layer));
    iso_parameter *bias = layer->parameter[1];
    iso_tensor_destroy(&bias->value);
    return iso_tensor_borrow(device, ISO_F32, 1, (int64_t[]){TRAINER_CLASSES}, foreign,
                             &bias->value);
}

Test(np2_zero_values, parameters_in_arrays_of_a_program_are_refused) {
    trainer_config config = trainer_default();
    trainer t = {0};
    config.build = build_foreign;
    zero_set_stage(&config, 3);
    iso_assert_all(trainer_create(&t, test_comm, &config) == ISO_ERR_UNSUPPORTED);
    cr_assert(strstr(iso_last_error()->message, "fc2.bias"), "%s", iso_last_error()->message);
    trainer_destroy(&t);
}

// ---- Memory -----------------------------------------------------------------------------------------

static int left = -1; // so many large mappings succeed before one fails; -1: all do

// The library's, in place of libc's.
void *mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    bool large = bytes > ((size_t)4 << 20) && (flags & MAP_ANONYMOUS) && (protection & PROT_WRITE);
    if (large && left >= 0 && left-- == 0) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, file, offset);
}

// Rank 1 has no memory for gradients, then none for values. Every rank gets the error, and the
// module can be wrapped again.
Test(np2_zero_values, memory_that_one_rank_lacks_is_the_error_of_all) {
    const iso_data_parallel_config dp = {.zero = 3};
    iso_device *device;
    iso_assert_ok(iso_device_create("cpu", &device));
    for (int calls = 0; calls < 3; calls++) {
        iso_module *net, *model = NULL;
        iso_assert_ok(build_deep_mlp(device, false, &net));
        iso_module_retain(net);
        left = test_rank == 1 ? calls : -1;
        iso_status status = iso_data_parallel_create_take(net, test_comm, &dp, &model);
        bool all = test_rank != 1 || (calls < 2 ? left < 0 : left == 0);
        left = -1;
        iso_assert_all(all && status == (calls < 2 ? ISO_ERR_NOMEM : ISO_OK));
        if (calls < 2) iso_assert_ok(iso_data_parallel_create_take(net, test_comm, &dp, &model));
        if (calls == 2) iso_module_destroy(&net);
        iso_module_destroy(&model);
    }
    iso_device_destroy(&device);
}

static bool refuses; // memory of the size of a layer

void *aligned_alloc(size_t alignment, size_t bytes) {
    void *block;
    if (refuses && bytes > (size_t)WIDE * WIDE * sizeof(float)) return NULL;
    return posix_memalign(&block, alignment, bytes) == 0 ? block : NULL;
}

// No take-down, as memory stays: values that rank 1 cannot move.
TestSuite(np2_zero_values_left, .init = test_mpi_setup, .timeout = 60);

Test(np2_zero_values_left, values_without_new_memory_stay_where_they_are) {
    trainer plain, t;
    double difference = 1;
    iso_module *inside;
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    zero_create_trainer(&plain, deep_config(), 0);
    zero_create_trainer(&t, deep_config(), 3);
    for (int step = 0; step < 2; step++) {
        iso_assert_ok(zero_make_step(&plain, step));
        iso_assert_ok(zero_make_step(&t, step));
    }
    inside = iso_module_retain(iso_data_parallel_module(t.model));
    iso_optimizer_destroy(&t.optimizer);
    refuses = test_rank == 1;
    iso_module_destroy(&t.model);
    refuses = false;
    t.model = inside;
    iso_assert_ok(trainer_difference(&plain, &t, &difference));
    iso_assert_all(difference == 0);
    trainer_destroy(&t);
    trainer_destroy(&plain);
    MPI_Finalize();
}
