// SPDX-License-Identifier: MIT
// One rank runs out of memory in a collective call between steps, at each of its allocations in
// turn: every rank gets the error, nobody waits, and training goes on as if nothing had happened.
#include "common/no_memory.h"
#include "common/resume_fixture.h"
#include "common/zero_fixture.h"

#include <isotherm/shuffle.h>
#include <isotherm/state_dict.h>

TestSuite(np2_no_memory_calls, .init = resume_setup, .fini = resume_teardown, .timeout = 120);
TestSuite(np3_no_memory_calls, .init = resume_setup, .fini = resume_teardown, .timeout = 120);

static trainer trained;

static iso_status save_state(void) {
    iso_state *state = NULL;
    iso_status status = iso_comm_agree(test_comm, iso_state_create(&state));
    if (status == ISO_OK) status = iso_training_state(trained.model, trained.optimizer, state);
    if (status == ISO_OK) status = iso_resume_save(test_comm, resume_path(), 2, state);
    iso_state_destroy(&state);
    return status;
}

static iso_status load_state(void) {
    iso_state *state = NULL;
    int64_t step;
    iso_status status = iso_comm_agree(test_comm, iso_state_create(&state));
    if (status == ISO_OK) status = iso_training_state(trained.model, trained.optimizer, state);
    if (status == ISO_OK) status = iso_resume_load(test_comm, resume_path(), state, &step);
    iso_state_destroy(&state);
    if (status == ISO_OK) status = iso_training_loaded(trained.model, trained.optimizer);
    return status;
}

static iso_status hash_parameters(void) {
    uint64_t hash;
    bool equal;
    return iso_parameter_hash(trained.model, test_comm, &hash, &equal);
}

static iso_status list_dicts(void) {
    iso_state_dict model = {0}, optimizer = {0};
    iso_status status = iso_module_state_dict(trained.model, &model);
    status = iso_comm_agree(test_comm, status);
    if (status == ISO_OK)
        status = iso_comm_agree(test_comm, iso_optimizer_state_dict(trained.optimizer, &optimizer));
    if (status == ISO_OK)
        status = iso_comm_agree(
            test_comm, iso_optimizer_load_state_dict(trained.optimizer, &optimizer, true, NULL));
    iso_state_dict_destroy(&model);
    iso_state_dict_destroy(&optimizer);
    return status;
}

static iso_status create_shuffle(void) {
    static float x[4];
    const iso_tensor_spec spec[] = {{.dtype = ISO_F32}};
    const void *const arrays[] = {x};
    const iso_dataset_config config = {.count = 4, .inputs = 1, .tensors = spec};
    iso_dataset *set = NULL;
    iso_shuffle *shuffle = NULL;
    TRY_WITH_MEMORY(iso_dataset_create_arrays(&config, arrays, true, &set));
    iso_status status = iso_dataset_set_shard(set, test_comm, "the numbers");
    if (status == ISO_OK) status = iso_shuffle_create(set, test_comm, 3, &shuffle);
    if (status == ISO_OK) status = iso_shuffle_start(shuffle);
    if (status == ISO_OK) status = iso_shuffle_finish(shuffle);
    iso_shuffle_destroy(&shuffle);
    iso_dataset_destroy(&set);
    return status;
}

static void try_stage(int stage) {
    trainer_config config = trainer_default();
    config.optimizer = ISO_ADAM;
    config.hyper = iso_hyper_default(ISO_ADAM);
    uint64_t straight = zero_hash_of(config, stage);
    zero_create_trainer(&trained, config, stage);
    for (int step = 0; step < 2; step++) iso_assert_ok(trainer_step(&trained, step, NULL));
    try_each_allocation("save_state", save_state);
    try_each_allocation("load_state", load_state);
    try_each_allocation("hash_parameters", hash_parameters);
    try_each_allocation("list_dicts", list_dicts);
    for (int step = 2; step < 4; step++) iso_assert_ok(trainer_step(&trained, step, NULL));
    iso_assert_all(zero_hash_now(&trained) == straight);
    trainer_destroy(&trained);
}

Test(np2_no_memory_calls, states) { try_stage(0); }
Test(np3_no_memory_calls, states) { try_stage(0); }
Test(np2_no_memory_calls, states_of_stage_1) { try_stage(1); }
Test(np3_no_memory_calls, states_of_stage_3) { try_stage(3); }

Test(np2_no_memory_calls, shards) { try_each_allocation("create_shuffle", create_shuffle); }
Test(np3_no_memory_calls, shards) { try_each_allocation("create_shuffle", create_shuffle); }
