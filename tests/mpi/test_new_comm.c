// SPDX-License-Identifier: MIT
// Training moves to another communicator, with its parameters and its optimizer state.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include "parallel/reducer/reducer_calls.h"

#include <criterion/criterion.h>
#include <isotherm/daso.h>
#include <isotherm/state_dict.h>
#include <string.h>

TestSuite(np1_new_comm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_new_comm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static trainer_config config_of(iso_optimizer_kind kind) {
    trainer_config config = trainer_default();
    config.optimizer = kind;
    config.hyper = iso_hyper_default(kind);
    config.hyper.lr = 0.01;
    return config;
}

static double piece_mb; // of what runs move to

// As the header says; the trainer's batch becomes that of the new communicator.
static void move_with(trainer *t, iso_comm *comm, const iso_comm_hook *hook, bool remembers,
                      int *buckets) {
    iso_module *module = iso_module_retain(iso_data_parallel_module(t->model));
    iso_optimizer *inner = NULL;
    iso_hook_memory *memory = NULL;
    iso_data_parallel_config dp = {.sync = ISO_SYNC_LAZY, .hook = hook, .piece_mb = piece_mb};
    if (remembers)
        iso_assert_ok(iso_reducer_get_hook_memory(iso_data_parallel_reducer(t->model), &memory));
    iso_assert_ok(iso_dp_optimizer_release(&t->optimizer, &inner));
    iso_assert_all(!t->optimizer && inner);
    iso_module_destroy(&t->model);
    iso_assert_ok(iso_data_parallel_create_take(module, comm, &dp, &t->model));
    iso_reducer *reducer = iso_data_parallel_reducer(t->model);
    if (hook) iso_assert_ok(iso_reducer_set_hook_memory(reducer, memory, buckets));
    iso_hook_memory_destroy(&memory);
    iso_assert_ok(iso_dp_optimizer_create_take(inner, t->model, &t->optimizer));
    t->comm = comm;
    t->batch_rows = 12 / iso_comm_size(comm);
    t->first_row = t->batch_rows * iso_comm_rank(comm);
    int64_t shape[4] = {t->batch_rows, TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE};
    iso_tensor_destroy(&t->batch);
    iso_assert_ok(iso_tensor_create(t->device, ISO_F32, 4, shape, &t->batch));
}

static void move_to(trainer *t, iso_comm *comm) { move_with(t, comm, NULL, false, NULL); }

static uint64_t hash_of(trainer *t) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_hash(t, &hash));
    return hash;
}

// A run that begins on comm with the parameters and the state of another.
static void begin_with(trainer *t, iso_comm *comm, const trainer_config *config, trainer *from) {
    iso_state_dict model = {0}, optimizer = {0};
    iso_assert_ok(trainer_create(t, comm, config));
    iso_assert_ok(iso_module_state_dict(from->model, &model));
    iso_assert_ok(iso_optimizer_state_dict(from->optimizer, &optimizer));
    iso_assert_ok(iso_module_load_state_dict(t->model, &model, true, NULL));
    iso_assert_ok(iso_optimizer_load_state_dict(t->optimizer, &optimizer, true, NULL));
    iso_state_dict_destroy(&model);
    iso_state_dict_destroy(&optimizer);
}

// Ranks 0 and 1, and rank 2 alone. The last update is pending when they part; a twin, which makes
// the same steps, gives the new run its state.
static void goes_on(iso_optimizer_kind kind) {
    MPI_Comm mpi;
    iso_comm *comm;
    trainer t, twin, fresh;
    trainer_config config = config_of(kind);
    MPI_Comm_split(MPI_COMM_WORLD, test_rank / 2, test_rank, &mpi);
    iso_assert_ok(iso_comm_create(mpi, NULL, &comm));
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_create(&twin, test_comm, &config));
    iso_assert_ok(trainer_go_on(&t, 0, 4));
    iso_assert_ok(trainer_go_on(&twin, 0, 4));
    begin_with(&fresh, comm, &config, &twin);
    move_to(&t, comm);
    iso_assert_all(hash_of(&t) == hash_of(&twin));
    iso_assert_ok(trainer_go_on(&t, 4, 7));
    iso_assert_ok(trainer_go_on(&fresh, 4, 7));
    iso_assert_all(hash_of(&t) == hash_of(&fresh) && hash_of(&t) != hash_of(&twin));
    trainer_destroy(&fresh);
    trainer_destroy(&twin);
    trainer_destroy(&t);
    iso_comm_destroy(&comm);
    MPI_Comm_free(&mpi);
}
Test(np1_new_comm, goes_on_with_the_bits_of_a_new_run) { goes_on(ISO_ADAM); }
Test(np3_new_comm, goes_on_with_the_bits_of_a_new_run) { goes_on(ISO_ADAM); }
Test(np3_new_comm, keeps_the_momentum_of_sgd) { goes_on(ISO_SGD); }

// A run that moves to a communicator of the same ranks, and back, equals one that stays.
Test(np3_new_comm, there_and_back_changes_nothing) {
    iso_comm *comm;
    trainer t;
    uint64_t straight = 0;
    trainer_config config = config_of(ISO_ADAM);
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    iso_assert_ok(trainer_run(test_comm, &config, 6, &straight));
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_go_on(&t, 0, 2));
    move_to(&t, comm);
    iso_assert_ok(trainer_go_on(&t, 2, 4));
    move_to(&t, test_comm);
    iso_assert_ok(trainer_go_on(&t, 4, 6));
    iso_assert_all(hash_of(&t) == straight && straight != 0);
    trainer_destroy(&t);
    iso_comm_destroy(&comm);
}

// ---- What hooks remember --------------------------------------------------------------------------

enum { FEEDBACK, RANDOMK, INT8, POWERSGD, HOOKS };

// Of hooks that convert, that count exchanges, and that begin with a later one.
static const iso_comm_hook *choose_hook(int i) {
    static const iso_randomk_config randomk = {.ratio = 0.25};
    static iso_powersgd_config powersgd = ISO_POWERSGD_DEFAULT;
    static iso_comm_hook hook[HOOKS];
    powersgd.start = 3;
    powersgd.least_saving = 1;
    hook[FEEDBACK] = iso_hook_bf16_feedback;
    hook[RANDOMK] = iso_hook_randomk(&randomk);
    hook[INT8] = iso_hook_int8;
    hook[POWERSGD] = iso_hook_powersgd(&powersgd);
    return &hook[i];
}

static uint64_t there_and_back(const trainer_config *config, iso_comm *other, bool remembers) {
    trainer t;
    int moved = -1;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    iso_assert_ok(trainer_go_on(&t, 0, 5));
    move_with(&t, other, config->hook, remembers, &moved);
    iso_assert_all(remembers ? moved > 0 : moved == 0);
    iso_assert_ok(trainer_go_on(&t, 5, 7));
    move_with(&t, test_comm, config->hook, remembers, &moved);
    iso_assert_ok(trainer_go_on(&t, 7, 10));
    uint64_t hash = hash_of(&t);
    trainer_destroy(&t);
    return hash;
}

// Without what it remembers, a hook gives other bits.
static void remembers_on_the_way(int hook, bool compares) {
    uint64_t straight = 0;
    iso_comm *other;
    trainer_config config = config_of(ISO_SGD);
    config.hook = choose_hook(hook);
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &other));
    iso_assert_ok(trainer_run(test_comm, &config, 10, &straight));
    iso_assert_all(there_and_back(&config, other, true) == straight);
    if (compares) iso_assert_all(there_and_back(&config, other, false) != straight);
    iso_comm_destroy(&other);
}
Test(np3_new_comm, a_conversion_remembers_there_and_back) { remembers_on_the_way(FEEDBACK, false); }
Test(np3_new_comm, int8_remembers_there_and_back) { remembers_on_the_way(INT8, true); }
Test(np3_new_comm, randomk_counts_on_there_and_back) { remembers_on_the_way(RANDOMK, false); }
Test(np3_new_comm, powersgd_remembers_there_and_back) { remembers_on_the_way(POWERSGD, false); }

// The pieces of a weight have one name, and most of them one size.
Test(np3_new_comm, pieces_of_a_weight_remember_each_their_own) {
    uint64_t straight = 0;
    iso_comm *other;
    trainer_config config = config_of(ISO_SGD);
    config.build = build_wide_mlp;
    config.hook = choose_hook(INT8);
    config.piece_mb = piece_mb = 0.01;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &other));
    iso_assert_ok(trainer_run(test_comm, &config, 10, &straight));
    iso_assert_all(there_and_back(&config, other, true) == straight);
    iso_comm_destroy(&other);
    piece_mb = 0;
}

// The floats of state that a run begins with, as if its hook had left them there.
static void copy_state(trainer *to, trainer *from) {
    size_t count, other;
    float *a = iso__reducer_hook_state(iso_data_parallel_reducer(to->model), &count);
    const float *b = iso__reducer_hook_state(iso_data_parallel_reducer(from->model), &other);
    iso_assert_all(count == other && count > 0);
    memcpy(a, b, count * sizeof(float));
}

// Ranks 0 and 1 go on as a pair, and rank 2 alone.
Test(np3_new_comm, hooks_remember_among_fewer_ranks) {
    MPI_Comm mpi;
    iso_comm *comm;
    MPI_Comm_split(MPI_COMM_WORLD, test_rank / 2, test_rank, &mpi);
    iso_assert_ok(iso_comm_create(mpi, NULL, &comm));
    trainer t, twin, fresh;
    int moved;
    trainer_config config = config_of(ISO_ADAM);
    config.hook = choose_hook(POWERSGD);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_create(&twin, test_comm, &config));
    iso_assert_ok(trainer_go_on(&t, 0, 5));
    iso_assert_ok(trainer_go_on(&twin, 0, 5));
    begin_with(&fresh, comm, &config, &twin);
    copy_state(&fresh, &twin);
    move_with(&t, comm, config.hook, true, &moved);
    iso_assert_ok(trainer_go_on(&t, 5, 8));
    iso_assert_ok(trainer_go_on(&fresh, 5, 8));
    iso_assert_all(moved > 0 && hash_of(&t) == hash_of(&fresh));
    trainer_destroy(&fresh);
    trainer_destroy(&twin);
    trainer_destroy(&t);
    iso_comm_destroy(&comm);
    MPI_Comm_free(&mpi);
}

// How many buckets take over what a run with one bucket for each layer remembers.
static int moved_to(iso_hook_memory *memory, const iso_comm_hook *hook, double bucket_mb) {
    trainer t;
    int moved = -1;
    trainer_config config = config_of(ISO_SGD);
    config.hook = hook;
    config.bucket_mb = bucket_mb;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_reducer *reducer = iso_data_parallel_reducer(t.model);
    iso_assert_ok(iso_reducer_set_hook_memory(reducer, memory, &moved));
    iso_assert_ok(trainer_go_on(&t, 0, 2)); // whatever has moved
    trainer_destroy(&t);
    return moved;
}

Test(np3_new_comm, hooks_remember_all_or_nothing) {
    trainer t;
    iso_hook_memory *memory, *late;
    trainer_config config = config_of(ISO_SGD);
    config.hook = &iso_hook_int8;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_reducer *reducer = iso_data_parallel_reducer(t.model);
    iso_assert_ok(trainer_go_on(&t, 0, 2));
    iso_assert_ok(iso_reducer_get_hook_memory(reducer, &memory));
    iso_assert_ok(trainer_go_on(&t, 2, 3));
    iso_assert_ok(iso_reducer_get_hook_memory(reducer, &late));
    int all = moved_to(memory, &iso_hook_int8, config.bucket_mb);
    iso_assert_all(all > 0);
    // One rank has none, or that of another step; another hook; other buckets.
    iso_hook_memory *mine = test_rank == 1 ? NULL : memory;
    iso_assert_all(moved_to(mine, &iso_hook_int8, config.bucket_mb) == 0);
    mine = test_rank == 1 ? late : memory;
    iso_assert_all(moved_to(mine, &iso_hook_int8, config.bucket_mb) == 0);
    iso_assert_all(moved_to(memory, &iso_hook_onebit, config.bucket_mb) == 0);
    iso_assert_all(moved_to(memory, &iso_hook_int8, 16) < all);
    iso_hook_memory_destroy(&memory);
    iso_hook_memory_destroy(&late);
    trainer_destroy(&t);
}

// ---- Periodic modes -------------------------------------------------------------------------------

// Ranks that trained alone go on, in pairs, with the mean of all.
Test(np3_new_comm, periodic_modes_end_with_the_mean) {
    MPI_Comm mpi;
    iso_comm *comm;
    trainer t, twin;
    trainer_config config = config_of(ISO_ADAM);
    iso_daso_config daso = iso_local_sgd_config(9, 4), rest = iso_local_sgd_config(3, 1);
    MPI_Comm_split(MPI_COMM_WORLD, test_rank / 2, test_rank, &mpi);
    iso_assert_ok(iso_comm_create(mpi, NULL, &comm));
    trainer *both[] = {&t, &twin};
    for (int i = 0; i < 2; i++) {
        iso_assert_ok(trainer_create(both[i], test_comm, &config));
        iso_assert_ok(
            iso_daso_create_take(both[i]->optimizer, both[i]->model, &daso, &both[i]->optimizer));
        iso_assert_ok(trainer_go_on(both[i], 0, 6));
    }
    iso_assert_ok(iso_daso_finish(twin.optimizer));
    uint64_t mean = hash_of(&twin); // the same on all ranks
    move_to(&t, comm);
    iso_assert_all(hash_of(&t) == mean);
    iso_assert_ok(iso_daso_create_take(t.optimizer, t.model, &rest, &t.optimizer));
    iso_assert_ok(trainer_go_on(&t, 6, 9));
    iso_assert_all(hash_of(&t) != mean);
    trainer_destroy(&twin);
    trainer_destroy(&t);
    iso_comm_destroy(&comm);
    MPI_Comm_free(&mpi);
}

static bool refused(trainer *t, iso_status expected, const char *said) {
    iso_optimizer *before = t->optimizer, *inner = NULL;
    iso_status status = iso_dp_optimizer_release(&t->optimizer, &inner);
    bool well = status == expected && strstr(iso_last_error()->message, said);
    if (!well) fprintf(stderr, "not \"%s\": %s\n", said, iso_last_error()->message);
    return well && t->optimizer == before && !inner;
}

static void share_updates(iso_data_parallel_config *dp) { dp->zero = true; }

Test(np3_new_comm, what_cannot_be_untied_is_refused) {
    trainer t;
    trainer_config config = config_of(ISO_SGD);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_go_on(&t, 0, 2));
    iso_tensor *out;
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(trainer_forward(&t, 2, &out));
    iso_assert_ok(iso_data_parallel_begin_backward(t.model));
    iso_assert_all(refused(&t, ISO_ERR_STATE, "backward"));
    trainer_destroy(&t);
    config.adjust = share_updates;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_all(refused(&t, ISO_ERR_UNSUPPORTED, "with ZeRO each rank has a share"));
    trainer_destroy(&t);
    config.adjust = NULL;
    iso_daso_config daso = iso_local_sgd_config(4, 2);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_optimizer *tied = t.optimizer;
    iso_assert_ok(iso_optimizer_create(ISO_SGD, t.model, NULL, &t.optimizer));
    iso_assert_all(refused(&t, ISO_ERR_ARG, "a sgd optimizer is not tied to a DataParallel"));
    iso_optimizer_destroy(&t.optimizer);
    t.optimizer = tied;
    iso_assert_ok(iso_daso_create_take(t.optimizer, t.model, &daso, &t.optimizer));
    iso_assert_ok(trainer_go_on(&t, 0, 1));
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(trainer_forward(&t, 1, &out));
    iso_assert_ok(iso_data_parallel_begin_backward(t.model));
    iso_assert_all(refused(&t, ISO_ERR_STATE, "backward"));
    trainer_destroy(&t);
}
