// SPDX-License-Identifier: MIT
// Buckets built anew during a run: in the order in which rank 0's gradients are ready, and with
// other sizes. Nothing of the results changes, not even a bit.
#include "base/base.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/daso.h>
#include <isotherm/join.h>
#include <stdlib.h>
#include <string.h>

static void setup_messages(void) {
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    test_mpi_setup();
}
TestSuite(np1_rebuild, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_rebuild, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_rebuild, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_rebuild_messages, .init = setup_messages, .fini = test_mpi_teardown, .timeout = 60);

// ---- A module that runs its children in another order than it lists them -----------------------------

enum { STAGES = 4, WIDTH = 24, STEPS = 10 };
static const char *const names[STAGES] = {"flatten", "first", "second", "third"};
static bool ranks_differ; // rank 0 runs "second" after "third", and the other ranks before it

typedef struct net {
    iso_module base;
    iso_module *stage[STAGES + 1]; // in the order of the forward, and the head
} net;

static int stage_at(int i) {
    return ranks_differ && test_rank == 0 && (i == 2 || i == 3) ? 5 - i : i;
}

static iso_status run_forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)call;
    for (int i = 0; i <= STAGES; i++)
        ISO_TRY(iso_module_call(((net *)self)->stage[stage_at(i)], ISO_ACT_NONE, in, &in));
    *out = in;
    return ISO_OK;
}

static iso_status run_backward(iso_module *self, iso_call *call, iso_tensor *grad,
                               iso_tensor **grad_in) {
    (void)call;
    for (int i = STAGES; i >= 0; i--) {
        bool wanted = i > 0 || grad_in;
        iso_module *stage = ((net *)self)->stage[stage_at(i)];
        ISO_TRY(iso_module_call_backward(stage, grad, wanted ? &grad : NULL));
    }
    if (grad_in) *grad_in = grad;
    return ISO_OK;
}
static const iso_module_ops net_ops = {
    .type = "Net", .forward = run_forward, .backward = run_backward};

// Lists the head first, then first, third, second.
static iso_status build_crossed(iso_device *device, bool dropout, iso_module **out) {
    int64_t pixels = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE;
    iso_rng rng = {.seed = 5};
    net *n = calloc(1, sizeof(*n));
    (void)dropout;
    ISO_TRY(iso_module_init(&n->base, &net_ops, device));
    ISO_TRY(iso_flatten_create(device, &n->stage[0]));
    for (int i = 1; i < STAGES; i++)
        ISO_TRY(
            iso_linear_create(device, i == 1 ? pixels : WIDTH, WIDTH, true, &rng, &n->stage[i]));
    ISO_TRY(iso_linear_create(device, WIDTH, TRAINER_CLASSES, true, &rng, &n->stage[STAGES]));
    ISO_TRY(iso_module_add_child_take(&n->base, "head", n->stage[STAGES]));
    static const int listed[STAGES] = {1, 3, 2, 0};
    for (int k = 0; k < STAGES; k++)
        ISO_TRY(iso_module_add_child_take(&n->base, names[listed[k]], n->stage[listed[k]]));
    *out = &n->base;
    return ISO_OK;
}

// ---- Runs ---------------------------------------------------------------------------------------------

static trainer_config config_of(iso_sync sync) {
    trainer_config config = trainer_default();
    config.build = build_crossed;
    config.sync = sync;
    config.optimizer = ISO_ADAM;
    config.hyper = iso_hyper_default(ISO_ADAM);
    config.hyper.lr = 0.01;
    return config;
}

static uint64_t hash_of(trainer *t) {
    uint64_t hash = 0;
    iso_assert_ok(trainer_hash(t, &hash));
    return hash;
}

// Rebuilds after the first step, and with other sizes later.
static uint64_t rebuilt_run(const trainer_config *config) {
    static const iso_bucket_sizes sizes[] = {{0.002, 0, 0}, {1, 0, 0}, {0.01, 0.001, 0.003}};
    trainer t;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    iso_assert_ok(trainer_go_on(&t, 0, 1));
    iso_assert_ok(iso_data_parallel_rebuild(t.model, NULL));
    iso_assert_ok(trainer_go_on(&t, 1, 3));
    for (int k = 0; k < 3; k++) {
        iso_assert_ok(iso_data_parallel_rebuild(t.model, &sizes[k]));
        iso_assert_ok(trainer_go_on(&t, 3 + k, 4 + k));
    }
    iso_assert_ok(trainer_go_on(&t, 6, STEPS));
    uint64_t hash = hash_of(&t);
    trainer_destroy(&t);
    return hash;
}

static void has_the_bits(const trainer_config *config) {
    uint64_t straight = 0;
    iso_assert_ok(trainer_run(test_comm, config, STEPS, &straight));
    iso_assert_all(rebuilt_run(config) == straight && straight != 0);
}

static void cut_and_list(iso_data_parallel_config *dp) {
    static const double list[] = {0.001, 0.004};
    dp->piece_mb = 0.002; // cuts "first"
    dp->bucket_list_mb = list;
    dp->bucket_list_count = 2;
    dp->bucket_mb = 0;
}

static void several_modes(void) {
    static const iso_sync modes[] = {ISO_SYNC_LAZY, ISO_SYNC_BLOCKING};
    for (int k = 0; k < 2; k++) {
        trainer_config config = config_of(modes[k]);
        has_the_bits(&config);
    }
    trainer_config config = config_of(ISO_SYNC_LAZY);
    config.adjust = cut_and_list;
    has_the_bits(&config);
    config.adjust = NULL;
    config.find_unused = true;
    config.hook = &iso_hook_bf16;
    has_the_bits(&config);
}
Test(np1_rebuild, has_the_bits_of_a_run_without) { several_modes(); }
Test(np2_rebuild, has_the_bits_of_a_run_without) { several_modes(); }
Test(np3_rebuild, has_the_bits_of_a_run_without) { several_modes(); }
Test(np3_rebuild_messages, has_the_bits_of_a_run_without) {
    trainer_config config = config_of(ISO_SYNC_LAZY);
    config.adjust = cut_and_list;
    has_the_bits(&config);
}

// ---- The order ----------------------------------------------------------------------------------------

// The layers, bucket by bucket, one bucket for each.
static void list_buckets(trainer *t, char *out, size_t room) {
    iso_reducer_stats stats;
    size_t used = 0;
    iso_reducer *r = iso_data_parallel_reducer(t->model);
    iso_reducer_get_stats(r, &stats);
    for (int b = 0; b < stats.bucket_count; b++) {
        iso_bucket_stats bucket;
        iso_assert_ok(iso_reducer_get_bucket_stats(r, b, &bucket));
        used += (size_t)snprintf(out + used, room - used, "%s ", bucket.name);
    }
}

// Rank 0 has another order than the others, and its own counts on all.
Test(np3_rebuild, takes_the_order_in_which_gradients_of_rank_0_are_ready) {
    trainer t;
    char before[200], after[200];
    uint64_t straight = 0;
    trainer_config config = config_of(ISO_SYNC_LAZY);
    ranks_differ = true;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    list_buckets(&t, before, sizeof(before));
    iso_assert_ok(trainer_go_on(&t, 0, 2));
    iso_assert_ok(iso_data_parallel_rebuild(t.model, NULL));
    list_buckets(&t, after, sizeof(after));
    iso_assert_all(strcmp(before, "second third first head ") == 0);
    iso_assert_all(strcmp(after, "head second third first ") == 0);
    iso_assert_ok(trainer_go_on(&t, 2, 4));
    uint64_t hash = hash_of(&t);
    trainer_destroy(&t);
    iso_assert_ok(trainer_run(test_comm, &config, 4, &straight));
    iso_assert_all(hash == straight);
}

// ---- What survives ------------------------------------------------------------------------------------

// One bucket for each layer before and after: all of the memory moves, to other places.
static void remembers(const iso_comm_hook *hook) {
    trainer t;
    uint64_t straight = 0;
    trainer_config config = config_of(ISO_SYNC_LAZY);
    config.hook = hook;
    iso_assert_ok(trainer_run(test_comm, &config, STEPS, &straight));
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_go_on(&t, 0, 3));
    iso_assert_ok(iso_data_parallel_rebuild(t.model, NULL));
    iso_assert_ok(trainer_go_on(&t, 3, STEPS));
    iso_assert_all(hash_of(&t) == straight);
    trainer_destroy(&t);
}
Test(np3_rebuild, hooks_remember_what_is_left_out) {
    remembers(&iso_hook_int8);
    remembers(&iso_hook_bf16_feedback);
}

Test(np2_rebuild, statistics_and_gradients_stay) {
    trainer t;
    iso_reducer_stats before, after;
    iso_parameter_list list;
    iso_tensor *grad;
    trainer_config config = config_of(ISO_SYNC_LAZY);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_go_on(&t, 0, 3));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    iso_assert_ok(iso_parameter_grad(list.item[0], &grad));
    size_t bytes = (size_t)iso_tensor_count(grad) * sizeof(float);
    float *copy = malloc(bytes);
    void *data;
    iso_assert_ok(iso_tensor_map(grad, ISO_READ, &data));
    iso_assert_ok(iso_tensor_unmap(grad));
    memcpy(copy, data, bytes);
    iso_reducer_get_stats(iso_data_parallel_reducer(t.model), &before);
    iso_assert_ok(iso_data_parallel_rebuild(t.model, &(iso_bucket_sizes){1, 0, 0}));
    iso_reducer_get_stats(iso_data_parallel_reducer(t.model), &after);
    iso_assert_all(before.steps == 3 && after.steps == 3 && before.bytes_sent == after.bytes_sent);
    iso_assert_all(before.wait_ms == after.wait_ms && before.exchanges == after.exchanges);
    iso_assert_all(before.bucket_count == STAGES && after.bucket_count == 1);
    iso_assert_ok(iso_parameter_grad(list.item[0], &grad));
    iso_assert_ok(iso_tensor_map(grad, ISO_READ, &data));
    iso_assert_all(memcmp(copy, data, bytes) == 0);
    iso_assert_ok(iso_tensor_unmap(grad));
    iso_assert_all(iso_optimizer_step(t.optimizer) == ISO_ERR_STATE); // the same gradients
    free(copy);
    iso_parameter_list_destroy(&list);
    trainer_destroy(&t);
}

// As the grad scaler does when gradients overflow.
Test(np2_rebuild, a_step_may_have_been_skipped) {
    trainer t;
    trainer_config config = config_of(ISO_SYNC_LAZY);
    uint64_t hash = 0, expected = 0;
    for (int rebuilds = 0; rebuilds < 2; rebuilds++) {
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        iso_assert_ok(trainer_go_on(&t, 0, 2));
        iso_assert_ok(trainer_backward(&t, 2));
        iso_optimizer_zero_grad(t.optimizer);
        if (rebuilds) iso_assert_ok(iso_data_parallel_rebuild(t.model, NULL));
        iso_assert_ok(trainer_go_on(&t, 3, 6));
        iso_assert_ok(trainer_hash(&t, rebuilds ? &hash : &expected));
        trainer_destroy(&t);
    }
    iso_assert_all(hash == expected);
}

// ---- What is refused ----------------------------------------------------------------------------------

static bool refused(trainer *t, const iso_bucket_sizes *sizes, iso_status expected,
                    const char *said) {
    iso_reducer *before = iso_data_parallel_reducer(t->model);
    iso_status status = iso_data_parallel_rebuild(t->model, sizes);
    bool well = status == expected && strstr(iso_last_error()->message, said);
    if (!well) fprintf(stderr, "not \"%s\": %s\n", said, iso_last_error()->message);
    return well && iso_data_parallel_reducer(t->model) == before;
}

static void share_updates(iso_data_parallel_config *dp) { dp->zero = true; }

static void refuse_modes(void) {
    trainer t;
    trainer_config config = config_of(ISO_SYNC_LAZY);
    iso_daso_config daso = iso_local_sgd_config(4, 2);
    config.adjust = share_updates;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_go_on(&t, 0, 1));
    iso_assert_all(refused(&t, NULL, ISO_ERR_UNSUPPORTED, "cannot be rebuilt with ZeRO"));
    trainer_destroy(&t);
    config.adjust = NULL;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_daso_create_take(t.optimizer, t.model, &daso, &t.optimizer));
    iso_assert_ok(trainer_go_on(&t, 0, 1));
    iso_assert_all(refused(&t, NULL, ISO_ERR_UNSUPPORTED, "in a periodic mode"));
    trainer_destroy(&t);
}

Test(np2_rebuild, what_cannot_be_rebuilt_is_refused) {
    trainer t;
    iso_tensor *out;
    iso_join *join;
    const iso_join_config config_of_join = {.mode = ISO_JOIN_THROW};
    trainer_config config = config_of(ISO_SYNC_LAZY);
    refuse_modes();
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_go_on(&t, 0, 1));
    iso_assert_all(refused(&t, &(iso_bucket_sizes){-1, 0, 0}, ISO_ERR_ARG, "bucket_mb -1 MiB"));
    iso_bucket_sizes mine = {1 + test_rank, 0, 0};
    iso_assert_all(refused(&t, &mine, ISO_ERR_MISMATCH, "bucket_bytes"));
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(trainer_backward(&t, 1));
    iso_assert_all(refused(&t, NULL, ISO_ERR_STATE, "between a backward and its step"));
    iso_assert_ok(iso_optimizer_step(t.optimizer));
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(trainer_forward(&t, 2, &out));
    iso_assert_ok(iso_data_parallel_begin_backward(t.model));
    iso_assert_all(refused(&t, NULL, ISO_ERR_STATE, "inside a backward"));
    trainer_destroy(&t);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_join_begin(t.model, &config_of_join, &join));
    iso_assert_all(refused(&t, NULL, ISO_ERR_STATE, "iso_join"));
    iso_join_end(&join);
    trainer_destroy(&t);
}
