// SPDX-License-Identifier: MIT
// state_dict under data_parallel: no prefix, nothing pending, and a training that goes on.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/scratch.h"

#include <criterion/criterion.h>
#include <isotherm/state_dict.h>
#include <string.h>

TestSuite(np1_dp_state_dict, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_dp_state_dict, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static bool same_bytes(iso_tensor *a, iso_tensor *b) {
    return iso_tensor_count(a) == iso_tensor_count(b) &&
           memcmp(iso_tensor_data(a), iso_tensor_data(b),
                  (size_t)iso_tensor_count(a) * sizeof(float)) == 0;
}

// A lazy step leaves its updates to the next forward; the state_dict holds them all the same.
static void completes_what_is_pending(void) {
    trainer_config config = trainer_default();
    trainer lazy, blocking;
    iso_state_dict a = {0}, b = {0};
    iso_assert_ok(trainer_create(&lazy, test_comm, &config));
    config.sync = ISO_SYNC_BLOCKING;
    iso_assert_ok(trainer_create(&blocking, test_comm, &config));
    iso_assert_ok(trainer_train(&lazy, 3));
    iso_assert_ok(trainer_train(&blocking, 3));
    iso_assert_ok(iso_module_state_dict(lazy.model, &a));
    iso_assert_ok(iso_module_state_dict(blocking.model, &b));
    iso_assert_all(a.count == 8 && b.count == 8);
    iso_assert_all(strcmp(a.item[0].name, "conv1.weight") == 0);
    bool same = true;
    for (int i = 0; i < a.count; i++) same = same && same_bytes(a.item[i].tensor, b.item[i].tensor);
    iso_assert_all(same);
    iso_state_dict_destroy(&a);
    iso_state_dict_destroy(&b);
    trainer_destroy(&lazy);
    trainer_destroy(&blocking);
}

Test(np1_dp_state_dict, completes_what_is_pending) { completes_what_is_pending(); }
Test(np2_dp_state_dict, completes_what_is_pending) { completes_what_is_pending(); }

// Six steps equal three, saved as files of each rank, and three of another trainer.
static void goes_on(iso_optimizer_kind kind) {
    trainer_config config = trainer_default();
    config.optimizer = kind;
    config.hyper = iso_hyper_default(kind);
    trainer first, second;
    iso_state_dict model = {0}, optimizer = {0};
    uint64_t straight = 0, hash = 0;
    iso_assert_ok(trainer_run(test_comm, &config, 6, &straight));
    iso_assert_ok(trainer_create(&first, test_comm, &config));
    iso_assert_ok(trainer_train(&first, 3));
    iso_assert_ok(iso_optimizer_state_dict(first.optimizer, &optimizer));
    iso_assert_ok(iso_module_state_dict(first.model, &model));
    iso_assert_ok(iso_state_dict_save(&model, scratch_path("model")));
    iso_assert_ok(iso_state_dict_save(&optimizer, scratch_path("optimizer")));
    iso_state_dict_destroy(&model);
    iso_state_dict_destroy(&optimizer);

    iso_assert_ok(trainer_create(&second, test_comm, &config));
    iso_assert_ok(trainer_train(&second, 2)); // updates are pending when it is loaded into
    iso_assert_ok(iso_state_dict_read(scratch_path("model"), second.device, &model));
    iso_assert_ok(iso_state_dict_read(scratch_path("optimizer"), second.device, &optimizer));
    iso_assert_ok(iso_module_load_state_dict(second.model, &model, true, NULL));
    iso_assert_ok(iso_optimizer_load_state_dict(second.optimizer, &optimizer, true, NULL));
    for (int step = 3; step < 6; step++) {
        double loss;
        iso_assert_ok(trainer_step(&second, step, &loss));
    }
    iso_assert_ok(trainer_hash(&second, &hash));
    iso_assert_all(hash == straight && hash != 0);
    iso_state_dict_destroy(&model);
    iso_state_dict_destroy(&optimizer);
    trainer_destroy(&first);
    trainer_destroy(&second);
    scratch_remove();
}

Test(np1_dp_state_dict, a_lazy_training_goes_on) { goes_on(ISO_ADAM); }
Test(np2_dp_state_dict, a_lazy_training_goes_on) { goes_on(ISO_ADAM); }
Test(np2_dp_state_dict, a_lazy_training_with_momentum_goes_on) { goes_on(ISO_SGD); }
