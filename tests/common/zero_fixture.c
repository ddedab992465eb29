// SPDX-License-Identifier: MIT
#include "common/zero_fixture.h"

#include "common/mpi_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static int stage_now;
static void put_stage(iso_data_parallel_config *dp) { dp->zero = stage_now; }

void zero_set_stage(trainer_config *config, int stage) {
    stage_now = stage;
    config->adjust = put_stage;
}

void zero_create_trainer(trainer *t, trainer_config config, int stage) {
    zero_set_stage(&config, stage);
    iso_assert_ok(trainer_create(t, test_comm, &config));
}

uint64_t zero_hash_now(trainer *t) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_hash(t, &hash));
    return hash;
}

iso_status zero_make_step(trainer *t, int step) {
    iso_optimizer_zero_grad(t->optimizer);
    ISO_TRY(trainer_backward(t, step));
    bool explicit = iso_data_parallel_all_reduce_gradients(t->model) == ISO_OK;
    (void)explicit; // ISO_ERR_STATE in the other modes
    return iso_optimizer_step(t->optimizer);
}

uint64_t zero_hash_of(trainer_config config, int stage) {
    trainer t;
    zero_create_trainer(&t, config, stage);
    for (int step = 0; step < 4; step++) iso_assert_ok(zero_make_step(&t, step));
    uint64_t hash = zero_hash_now(&t);
    trainer_destroy(&t);
    return hash;
}

void zero_equals_stage_1(int stage, int from, int by) {
    const iso_sync syncs[] = {ISO_SYNC_LAZY, ISO_SYNC_BLOCKING, ISO_SYNC_EXPLICIT};
    const iso_optimizer_kind kinds[] = {ISO_SGD, ISO_ADAMW, ISO_LAMB};
    setenv("ISO_NODE_COLLECTIVE", "shm", 1); // whose sums are in the order of the ranks
    for (int i = from; i < 9; i += by) {
        trainer_config config = trainer_default();
        config.sync = syncs[i % 3];
        config.optimizer = kinds[i / 3];
        if (i / 3 > 0) config.hyper = iso_hyper_default(kinds[i / 3]);
        uint64_t one = zero_hash_of(config, 1), all = zero_hash_of(config, stage);
        iso_assert_all(one == all);
        // LAMB adds norms over the ranks.
        iso_assert_all(kinds[i / 3] == ISO_LAMB || all == zero_hash_of(config, 0));
    }
}

// On a device, too.
static bool same_bits(iso_tensor *x, iso_tensor *y) {
    void *a, *b;
    if (iso__tensor_bytes(x) != iso__tensor_bytes(y)) return false;
    if (iso_tensor_map(x, ISO_READ, &a) < 0) return false;
    bool same = iso_tensor_map(y, ISO_READ, &b) == ISO_OK;
    if (same) same = memcmp(a, b, iso__tensor_bytes(x)) == 0 && iso_tensor_unmap(y) == ISO_OK;
    return iso_tensor_unmap(x) == ISO_OK && same;
}

bool zero_same_dicts(const iso_state_dict *a, const iso_state_dict *b) {
    if (a->count != b->count) return false;
    for (int i = 0; i < a->count; i++) {
        iso_tensor *x = a->item[i].tensor, *y = iso_state_dict_find(b, a->item[i].name);
        if (!y || !same_bits(x, y)) return false;
    }
    return true;
}
