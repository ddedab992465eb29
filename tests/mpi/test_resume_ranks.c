// SPDX-License-Identifier: MIT
// A training that one number of ranks has saved goes on with another number.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/ranks_fixture.h"
#include "common/resume_fixture.h"
#include "parallel/reducer/reducer_calls.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

TestSuite(np2_resume_ranks, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_resume_ranks, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_resume_ranks, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

// ---- Some of the ranks --------------------------------------------------------------------------

// The first `size` ranks; NULL on the others.
static iso_comm *first_ranks(int size) {
    iso_comm *out = NULL;
    MPI_Comm some = ranks_split(size);
    iso_status status = some == MPI_COMM_NULL ? ISO_OK : iso_comm_create(some, NULL, &out);
    if (some != MPI_COMM_NULL) MPI_Comm_free(&some);
    iso_assert_ok(status);
    return out;
}

// ---- Runs ---------------------------------------------------------------------------------------

enum { HALF = 10, WHOLE = 20 };

static iso_status add(iso_module *net, iso_status made, const char *name, iso_module **layer) {
    return made < 0 ? made : iso_sequential_add_take(net, name, *layer);
}

// flatten, fc1 200-16, batch norm, relu, dropout, fc2 16-5.
static iso_status build_normed(iso_device *device, bool dropout, iso_module **out) {
    iso_rng rng = {.seed = 1};
    iso_module *net, *m = NULL;
    iso_batch_norm_config b = {.num_features = 16, .momentum = 0.3};
    (void)dropout;
    ISO_TRY(iso_sequential_create(device, &net));
    iso_status s = add(net, iso_flatten_create(device, &m), "flatten", &m);
    if (s >= 0) s = add(net, iso_linear_create(device, 200, 16, true, &rng, &m), "fc1", &m);
    if (s >= 0) s = add(net, iso_batch_norm1d_create(device, &b, &m), "norm", &m);
    if (s >= 0) s = add(net, iso_linear_create(device, 16, 5, true, &rng, &m), "fc2", &m);
    *out = net;
    return s;
}

static trainer_config config_of(iso_optimizer_kind kind) {
    trainer_config config = trainer_default();
    config.optimizer = kind;
    config.hyper = iso_hyper_default(kind);
    config.hyper.lr = kind == ISO_SGD ? 0.05 : 0.003;
    config.hyper.momentum = kind == ISO_SGD ? 0.9 : 0;
    config.dropout = true;
    return config;
}

static iso_status run_steps(trainer *t, int from, int to) {
    for (int step = from; step < to; step++) ISO_TRY(trainer_step(t, step, NULL));
    return ISO_OK;
}

// The first half on a communicator, saved. *hash: of the parameters.
static iso_status train_half(iso_comm *comm, const trainer_config *config, uint64_t *hash) {
    trainer t;
    if (!comm) return ISO_OK;
    ISO_TRY(trainer_create(&t, comm, config));
    iso_status status = run_steps(&t, 0, HALF);
    if (status >= 0) status = ranks_save(&t, HALF);
    if (status >= 0) status = trainer_hash(&t, hash);
    trainer_destroy(&t);
    return status;
}

// New objects with a past of their own.
static iso_status load_half(trainer *t, iso_comm *comm, const trainer_config *config, uint64_t hash,
                            int ranks) {
    uint64_t loaded;
    int64_t saved = 0;
    ISO_TRY(trainer_create(t, comm, config));
    ISO_TRY(run_steps(t, 3, 6));
    ISO_TRY(ranks_load(t, &saved));
    ISO_TRY(trainer_hash(t, &loaded));
    ISO_CHECK(saved == ranks && loaded == hash, ISO_ERR_STATE, "%d ranks, other parameters",
              (int)saved);
    return ISO_OK;
}

typedef struct verdict {
    double old, now; // from whole runs on the ranks that saved, and on those that went on
    double moved;    // how far the second half moves parameters
} verdict;

static iso_status second_half(iso_comm *comm, const trainer_config *config, uint64_t hash,
                              int ranks, trainer *old, verdict *out) {
    trainer t, straight, before;
    if (!comm) return ISO_OK;
    ISO_TRY(load_half(&t, comm, config, hash, ranks));
    ISO_TRY(run_steps(&t, HALF, WHOLE));
    ISO_TRY(trainer_create(&straight, comm, config));
    ISO_TRY(run_steps(&straight, 0, WHOLE));
    ISO_TRY(trainer_create(&before, comm, config));
    ISO_TRY(run_steps(&before, 0, HALF));
    ISO_TRY(trainer_difference(&t, &straight, &out->now));
    ISO_TRY(trainer_difference(&t, &before, &out->moved));
    if (old) ISO_TRY(trainer_difference(&t, old, &out->old));
    trainer_destroy(&before);
    trainer_destroy(&straight);
    trainer_destroy(&t);
    return ISO_OK;
}

// Nothing but the order of additions differs. Parameters are below 1, where a rounding is at most
// 6e-8, and rates are below 0.05: what 20 steps add up to stays below 2e-6, a thousandth of what
// the second half moves.
#define BOUND 2e-6

static void goes_on(int first, int second, const trainer_config *config) {
    iso_comm *a = first_ranks(first), *b = first_ranks(second);
    uint64_t hash = 0, whole;
    verdict v = {0, 0, 1};
    trainer old;
    iso_assert_ok(train_half(a, config, &hash));
    MPI_Bcast(&hash, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    iso_assert_ok(a ? trainer_create(&old, a, config) : ISO_OK);
    iso_assert_ok(a ? run_steps(&old, 0, WHOLE) : ISO_OK);
    iso_assert_ok(a ? trainer_hash(&old, &whole) : ISO_OK);
    iso_assert_ok(second_half(b, config, hash, first, a ? &old : NULL, &v));
    bool good = v.old < BOUND && v.now < BOUND && v.moved > 1000 * BOUND;
    if (!good) fprintf(stderr, "%d to %d: %g, %g of %g\n", first, second, v.old, v.now, v.moved);
    iso_assert_all(good);
    if (a) trainer_destroy(&old);
    iso_comm_destroy(&a);
    iso_comm_destroy(&b);
}

static void use_zero(iso_data_parallel_config *dp) { dp->zero = 1; }
static void use_zero2(iso_data_parallel_config *dp) { dp->zero = 2; }

static void all_modes_go_on(int first, int second) {
    static const iso_sync syncs[] = {ISO_SYNC_LAZY, ISO_SYNC_BLOCKING};
    for (int i = 0; i < 4; i++) {
        trainer_config config = config_of(i == 1 ? ISO_SGD : ISO_ADAM);
        config.sync = syncs[i % 2];
        config.adjust = i == 3 ? use_zero2 : i == 2 ? use_zero : NULL;
        goes_on(first, second, &config);
    }
}

Test(np2_resume_ranks, goes_on_on_fewer_ranks_2_1) { all_modes_go_on(2, 1); }
Test(np3_resume_ranks, goes_on_on_more_ranks_2_3) { all_modes_go_on(2, 3); }
Test(np3_resume_ranks, goes_on_on_fewer_ranks_3_1) { all_modes_go_on(3, 1); }
Test(np4_resume_ranks, goes_on_on_fewer_ranks_4_2) { all_modes_go_on(4, 2); }
Test(np4_resume_ranks, goes_on_on_more_ranks_2_4) { all_modes_go_on(2, 4); }

// ---- What each rank had -------------------------------------------------------------------------

// Of the buffers of a trainer: statistics, then counts.
static iso_status read_buffers(trainer *t, double *out) {
    iso_buffer_list list;
    ISO_TRY(iso_module_buffers(t->model, &list));
    for (int i = 0; i < list.count; i++) {
        iso_tensor *value = list.item[i]->value;
        void *data;
        ISO_TRY(iso_tensor_map(value, ISO_READ, &data));
        bool count = iso_tensor_dtype(value) == ISO_I64;
        for (int64_t k = 0; k < iso_tensor_count(value); k++)
            *out++ = count ? (double)((int64_t *)data)[k] : (double)((float *)data)[k];
        ISO_TRY(iso_tensor_unmap(value));
    }
    iso_buffer_list_destroy(&list);
    return ISO_OK;
}

enum { BUFFERS = 2 * 16 + 1 };

Test(np4_resume_ranks, running_statistics_become_their_mean) {
    trainer_config config = config_of(ISO_SGD);
    double had[BUFFERS], mean[BUFFERS], got[BUFFERS] = {0};
    trainer t;
    int64_t saved = 0;
    config.build = build_normed;
    iso_comm *three = first_ranks(3);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(run_steps(&t, 0, 4));
    iso_assert_ok(read_buffers(&t, had));
    iso_assert_ok(ranks_save(&t, 4));
    trainer_destroy(&t);
    MPI_Allreduce(had, mean, BUFFERS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    bool differ = fabs(had[0] - mean[0] / 4) > 1e-4, good = true;
    iso_assert_all(differ || test_rank > 0);
    iso_status status = ISO_OK;
    if (three) {
        status = trainer_create(&t, three, &config);
        if (status >= 0) status = ranks_load(&t, &saved);
        if (status >= 0) status = read_buffers(&t, got);
        trainer_destroy(&t);
        for (int i = 0; i < BUFFERS; i++) good = good && fabs(got[i] - mean[i] / 4) < 1e-6;
        good = good && got[BUFFERS - 1] == 4;
    }
    iso_assert_ok(status);
    iso_assert_all(good);
    iso_comm_destroy(&three);
}

// Whether what a hook keeps is all zeros but for the numbers of exchanges at its beginning: those
// up to its start and all of them, if it has an exchange of its own.
static bool is_fresh(const trainer *t, float exchanges, float lists) {
    const iso_reducer *r = iso_data_parallel_reducer(t->model);
    size_t count, counts = iso__reducer_hook_counts(r), others = 0;
    float *state = iso__reducer_hook_state(r, &count);
    for (size_t i = counts; state && i < count; i++) others += state[i] != 0;
    return state && others == 0 && (!counts || (state[0] == exchanges && state[1] == lists));
}

static void error_is_dropped(const iso_comm_hook *hook, float exchanges) {
    trainer_config config = config_of(ISO_SGD);
    iso_comm *two = first_ranks(2);
    trainer t;
    int64_t saved = 0;
    config.hook = hook;
    bool good = true;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(run_steps(&t, 0, 5));
    iso_assert_ok(ranks_save(&t, 5));
    iso_assert_all(!is_fresh(&t, exchanges, 5));
    trainer_destroy(&t);
    iso_status status = two ? trainer_create(&t, two, &config) : ISO_OK;
    if (two) {
        if (status >= 0) status = run_steps(&t, 0, 3);
        if (status >= 0) status = ranks_load(&t, &saved);
        good = status < 0 || is_fresh(&t, exchanges, 5);
        if (status >= 0) status = run_steps(&t, 5, 8);
        trainer_destroy(&t);
    }
    iso_assert_ok(status);
    iso_assert_all(good);
    iso_comm_destroy(&two);
}

Test(np3_resume_ranks, what_wires_left_out_is_dropped) {
    static const iso_powersgd_config config = {.rank = 1, .start = 4, .least_saving = 1};
    const iso_comm_hook powersgd = iso_hook_powersgd(&config);
    error_is_dropped(&iso_hook_bf16_feedback, 0);
    error_is_dropped(&iso_hook_int8, 0);
    error_is_dropped(&iso_hook_fp8, 0);
    error_is_dropped(&powersgd, 4);
}

// On one rank there is no hook at all. Exchanges count all the same.
Test(np3_resume_ranks, wires_may_vanish_and_come_back) {
    trainer_config config = config_of(ISO_SGD);
    config.hook = &iso_hook_int8;
    iso_comm *one = first_ranks(1);
    trainer t;
    int64_t saved = 0;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(run_steps(&t, 0, 2));
    iso_assert_ok(ranks_save(&t, 2));
    trainer_destroy(&t);
    iso_status status = one ? trainer_create(&t, one, &config) : ISO_OK;
    if (one && status >= 0) status = ranks_load(&t, &saved);
    if (one && status >= 0) status = run_steps(&t, 2, 4);
    if (one && status >= 0) status = ranks_save(&t, 4);
    if (one) trainer_destroy(&t);
    iso_assert_ok(status);
    iso_assert_all(!one || saved == 3);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(ranks_load(&t, &saved));
    iso_assert_all(saved == 1 && is_fresh(&t, 0, 4));
    trainer_destroy(&t);
    iso_comm_destroy(&one);
}

// ---- Entries of a program -----------------------------------------------------------------------

// Of rank r: r + 1 everywhere; and the same on all ranks.
typedef struct entries {
    double first[2], mean[2], sum[2], zero[2];
    float same[2];
    int64_t most[2], total[2];
    iso_state *state;
} entries;

static iso_status list_entries(entries *e, int rank) {
    double x = rank + 1;
    *e = (entries){{x, -x},      {x, -x},           {x, -x},   {x, -x},
                   {0.1f, 0.7f}, {rank + 1, -rank}, {rank, 7}, NULL};
    const struct {
        const char *name;
        iso_own_rule rule;
        iso_state_type type;
        void *data;
    } list[] = {{"first", ISO_OWN_RANK0, ISO_STATE_F64, e->first},
                {"mean", ISO_OWN_MEAN, ISO_STATE_F64, e->mean},
                {"sum", ISO_OWN_SUM, ISO_STATE_F64, e->sum},
                {"zero", ISO_OWN_ZERO, ISO_STATE_F64, e->zero},
                {"same", ISO_OWN_MEAN, ISO_STATE_F32, e->same},
                {"most", ISO_OWN_MEAN, ISO_STATE_I64, e->most},
                {"total", ISO_OWN_SUM, ISO_STATE_I64, e->total}};
    ISO_TRY(iso_state_create(&e->state));
    for (int i = 0; i < 7; i++) {
        ISO_TRY(
            iso_state_add(e->state, ISO_STATE_OWN, list[i].name, list[i].type, 2, list[i].data));
        ISO_TRY(iso_state_set_own_rule(e->state, list[i].name, list[i].rule));
    }
    return ISO_OK;
}

static bool are_merged(const entries *e) {
    return e->first[0] == 1 && e->first[1] == -1 && e->mean[0] == 2 && e->mean[1] == -2 &&
           e->sum[0] == 6 && e->sum[1] == -6 && e->zero[0] == 0 && e->zero[1] == 0 &&
           e->same[0] == 0.1f && e->same[1] == 0.7f && e->most[0] == 3 && e->most[1] == 0 &&
           e->total[0] == 3 && e->total[1] == 21;
}

static iso_status load_entries(iso_comm *comm, const char *unruled, entries *e, int64_t *step) {
    int64_t saved = 0;
    *step = -1;
    ISO_TRY(list_entries(e, 9));
    iso_state_accept_ranks(e->state, &saved);
    if (unruled) ISO_TRY(iso_state_set_own_rule(e->state, unruled, ISO_OWN_REFUSED));
    iso_status status = iso_resume_load(comm, resume_path(), e->state, step);
    iso_state_destroy(&e->state);
    if (status >= 0 && saved != 3) return ISO_ERR_STATE;
    return status;
}

static void save_entries(int step) {
    entries e;
    iso_assert_ok(list_entries(&e, test_rank));
    iso_assert_ok(iso_resume_save(test_comm, resume_path(), step, e.state));
    iso_state_destroy(&e.state);
}

Test(np3_resume_ranks, entries_follow_their_rules) {
    iso_comm *two = first_ranks(2);
    entries e;
    int64_t step = 5;
    save_entries(5);
    iso_status status = two ? load_entries(two, NULL, &e, &step) : ISO_OK;
    iso_assert_ok(status);
    iso_assert_all(!two || (are_merged(&e) && step == 5));
    // An entry without a rule is named, and nothing is changed.
    status = two ? load_entries(two, "sum", &e, &step) : ISO_ERR_MISMATCH;
    iso_assert_all(status == ISO_ERR_MISMATCH);
    iso_assert_all(!two || (strstr(iso_last_error()->message, "each with its own sum") &&
                            step == -1 && e.first[0] == 10));
    iso_comm_destroy(&two);
}

Test(np3_resume_ranks, a_set_without_a_file_of_a_rank_is_skipped) {
    iso_comm *two = first_ranks(2);
    entries e;
    int64_t step = 5;
    save_entries(5);
    save_entries(6);
    if (test_rank == 0) unlink(resume_file(6, 2, "")); // of a rank that is no longer there
    MPI_Barrier(MPI_COMM_WORLD);
    log_capture();
    iso_status status = two ? load_entries(two, NULL, &e, &step) : ISO_OK;
    iso_assert_ok(status);
    iso_assert_all(!two || (step == 5 && are_merged(&e)));
    iso_assert_all(test_rank != 0 || log_said("saved state of step 6 is skipped", 2));
    iso_comm_destroy(&two);
}

Test(np2_resume_ranks, rules_need_an_entry_that_has_them) {
    iso_state *state;
    uint8_t bytes[3] = {0};
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_state_add(state, ISO_STATE_OWN, "b", ISO_STATE_U8, 3, bytes));
    iso_assert_ok(iso_state_add(state, ISO_STATE_SHARED, "s", ISO_STATE_U8, 3, bytes));
    iso_assert_all(iso_state_set_own_rule(state, "b", ISO_OWN_MEAN) == ISO_ERR_ARG);
    iso_assert_all(iso_state_set_own_rule(state, "b", (iso_own_rule)7) == ISO_ERR_ARG);
    iso_assert_all(iso_state_set_own_rule(state, "s", ISO_OWN_ZERO) == ISO_ERR_ARG);
    iso_assert_ok(iso_state_set_own_rule(state, "b", ISO_OWN_RANK0));
    iso_state_destroy(&state);
}

// ---- What cannot go on --------------------------------------------------------------------------

static void refuses(bool accept, iso_sync sync, const char *words) {
    trainer_config config = config_of(ISO_SGD);
    iso_comm *two = first_ranks(2);
    trainer t;
    int64_t saved = 0;
    config.sync = sync;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(ranks_save(&t, 4));
    trainer_destroy(&t);
    iso_status made = two ? trainer_create(&t, two, &config) : ISO_OK;
    iso_assert_ok(made);
    iso_status status = two ? ranks_load(&t, accept ? &saved : NULL) : ISO_ERR_MISMATCH;
    iso_assert_all(status == ISO_ERR_MISMATCH);
    iso_assert_all(!two || strstr(iso_last_error()->message, words));
    if (two) trainer_destroy(&t);
    iso_comm_destroy(&two);
}

Test(np3_resume_ranks, is_refused_unless_it_is_accepted) {
    refuses(false, ISO_SYNC_LAZY, "was saved by 3 ranks and this run has 2");
}

Test(np3_resume_ranks, ranks_with_parameters_of_their_own_are_refused) {
    refuses(true, ISO_SYNC_NONE, "each with its own param/");
}
