// SPDX-License-Identifier: MIT
// Training moves to another communicator, with its parameters and its optimizer state.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

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

// As the header says; the trainer's batch becomes that of the new communicator.
static void move_to(trainer *t, iso_comm *comm) {
    iso_module *module = iso_module_retain(iso_data_parallel_module(t->model));
    iso_optimizer *inner = NULL;
    iso_data_parallel_config dp = {.sync = ISO_SYNC_LAZY};
    iso_assert_ok(iso_dp_optimizer_release(&t->optimizer, &inner));
    iso_assert_all(!t->optimizer && inner);
    iso_module_destroy(&t->model);
    iso_assert_ok(iso_data_parallel_create_take(module, comm, &dp, &t->model));
    iso_assert_ok(iso_dp_optimizer_create_take(inner, t->model, &t->optimizer));
    t->comm = comm;
    t->batch_rows = 12 / iso_comm_size(comm);
    t->first_row = t->batch_rows * iso_comm_rank(comm);
    int64_t shape[4] = {t->batch_rows, TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE};
    iso_tensor_destroy(&t->batch);
    iso_assert_ok(iso_tensor_create(t->device, ISO_F32, 4, shape, &t->batch));
}

static void train_on(trainer *t, int from, int to) {
    for (int step = from; step < to; step++) iso_assert_ok(trainer_step(t, step, NULL));
}

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
    train_on(&t, 0, 4);
    train_on(&twin, 0, 4);
    begin_with(&fresh, comm, &config, &twin);
    move_to(&t, comm);
    iso_assert_all(hash_of(&t) == hash_of(&twin));
    train_on(&t, 4, 7);
    train_on(&fresh, 4, 7);
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
    train_on(&t, 0, 2);
    move_to(&t, comm);
    train_on(&t, 2, 4);
    move_to(&t, test_comm);
    train_on(&t, 4, 6);
    iso_assert_all(hash_of(&t) == straight && straight != 0);
    trainer_destroy(&t);
    iso_comm_destroy(&comm);
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
    train_on(&t, 0, 2);
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
    iso_assert_ok(iso_daso_create_take(t.optimizer, t.model, &daso, &t.optimizer));
    iso_assert_all(refused(&t, ISO_ERR_ARG, "a daso optimizer is not tied to a DataParallel"));
    train_on(&t, 0, 2);
    trainer_destroy(&t);
}
