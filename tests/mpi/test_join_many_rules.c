// SPDX-License-Identifier: MIT
// Uneven inputs of several models, the rules: modes, one small reduction for all, what is refused,
// and ranks that fail.
#include "common/join_couple.h"
#include "common/mpi_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <isotherm/trace.h>
#include <stdio.h>
#include <string.h>

TestSuite(np2_join_many_rules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_join_many_rules, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Reductions of whole numbers, which only joins make between steps.
static int reductions;

int MPI_Iallreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request) {
    reductions += type == MPI_INT64_T;
    return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

static bool said(const char *text) {
    bool found = strstr(iso_last_error()->message, text) != NULL;
    if (!found) fprintf(stderr, "rank %d says: %s\n", test_rank, iso_last_error()->message);
    return found;
}

// ---- Modes ------------------------------------------------------------------------------------------

Test(np3_join_many_rules, throw_stops_both_models) {
    couple p = couple_plan();
    int steps = 0;
    p.u[0].join.mode = ISO_JOIN_THROW;
    couple_set_lengths(&p, 5, 3, 5);
    couple_create(&p, test_comm);
    iso_assert_all(couple_loop(&p, &steps) == ISO_ERR_STATE && said("rank 1 ran out of data"));
    iso_assert_all(steps == 3 && p.steps == 3);
    couple_destroy(&p);
}

Test(np3_join_many_rules, equalise_ends_both_models) {
    couple p = couple_plan(), even;
    uint64_t hash[2];
    int steps = 0;
    p.u[0].join.mode = ISO_JOIN_EQUALISE;
    couple_set_lengths(&p, 6, 4, 5);
    couple_create(&p, test_comm);
    iso_assert_all(couple_loop(&p, &steps) == ISO_PENDING && steps == 4);
    even = couple_plan();
    couple_set_lengths(&even, 4, 4, 4);
    for (int m = 0; m < 2; m++) hash[m] = couple_digest(&p.model[m]);
    couple_destroy(&p);
    couple_create(&even, test_comm);
    couple_train_apart(&even);
    for (int m = 0; m < 2; m++) iso_assert_all(couple_digest(&even.model[m]) == hash[m]);
    couple_destroy(&even);
}

// ---- What it costs ------------------------------------------------------------------------------------

// One reduction before each step, one at the end with which all learn that it is, and one that
// makes the forward numbers equal. The step function is called once for each shadowed exchange.
Test(np3_join_many_rules, one_reduction_serves_all_models) {
    couple p = couple_plan();
    iso_join *join;
    iso_status status = ISO_OK;
    int step = 0;
    couple_set_lengths(&p, 7, 2, 4);
    couple_create(&p, test_comm);
    iso_assert_ok(couple_begin(&p, &p.u[0].join, &join));
    reductions = 0;
    for (; status == ISO_OK; step++) {
        status = iso_join_next(join, uneven_rows(&p.u[0], test_rank, step), true);
        if (status == ISO_OK) status = couple_batch(&p, step, true);
    }
    int made = reductions;
    iso_assert_all(status == ISO_PENDING && step == p.u[0].batches[test_rank] + 1);
    iso_assert_all(made == 7 + 1 + 1);
    iso_assert_all(p.steps == 7);
    iso_join_end(&join);
    couple_destroy(&p);
}

typedef struct watch {
    couple p;
    long long before, after;
} watch;

static iso_status step_watched(void *user) {
    watch *w = user;
    ISO_TRY(couple_step(&w->p));
    if (w->p.steps == 6) iso_memory_balance(NULL, NULL, &w->before);
    if (w->p.steps == 12) iso_memory_balance(NULL, NULL, &w->after);
    return ISO_OK;
}

// On the rank with data, and on those that shadow it.
Test(np3_join_many_rules, steps_allocate_nothing) {
    watch w = {.p = couple_plan()};
    iso_join *join;
    iso_status status = ISO_OK;
    for (int m = 0; m < 2; m++) {
        w.p.u[m].train.sync = ISO_SYNC_BLOCKING; // requests are then as many every step
        w.p.u[m].train.buffers.when = ISO_BUFFERS_AFTER_BACKWARD;
    }
    couple_set_lengths(&w.p, 12, 0, 0);
    couple_create(&w.p, test_comm);
    iso_module *models[] = {w.p.model[0].model, w.p.model[1].model};
    iso_join_config config = {.step = step_watched, .user = &w};
    iso_assert_ok(iso_join_begin_many(models, 2, &config, &join));
    for (int step = 0; status == ISO_OK; step++) {
        status = iso_join_next(join, uneven_rows(&w.p.u[0], test_rank, step), true);
        for (int m = 0; m < 2 && status == ISO_OK; m++)
            status = uneven_backward(&w.p.model[m], &w.p.u[m], step, true);
        if (status == ISO_OK) status = step_watched(&w);
    }
    iso_assert_all(status == ISO_PENDING && w.p.steps == 12);
    iso_assert_all(w.before > 0 && w.after == w.before);
    iso_join_end(&join);
    couple_destroy(&w.p);
}

// ---- Errors -------------------------------------------------------------------------------------------

static void reject(iso_module *a, iso_module *b, iso_status expected, const char *text) {
    iso_module *models[] = {a, b};
    iso_join_config config = {.step = couple_step};
    iso_join *join = NULL;
    iso_status status = iso_join_begin_many(models, 2, &config, &join);
    iso_assert_all(status == expected && !join);
    iso_assert_all(said(text));
}

// Both models are free: a join of them begins, and ends.
static void accept(couple *p) {
    iso_join *join;
    iso_assert_ok(couple_begin(p, &p->u[0].join, &join));
    iso_join_end(&join);
}

static void refusals(void) {
    couple p = couple_plan();
    iso_join *join, *none = NULL;
    iso_join_config config = {.step = couple_step};
    couple_create(&p, test_comm);
    iso_module *a = p.model[0].model, *b = p.model[1].model;
    iso_module *inner = iso_data_parallel_module(b);
    bool last = test_rank == test_size - 1;
    reject(a, a, ISO_ERR_ARG, "data_parallels[1]: the same model as data_parallels[0]");
    reject(a, last ? a : b, ISO_ERR_ARG, "data_parallels[1]: the same model");
    reject(a, inner, ISO_ERR_ARG, "data_parallels[1]: the module is a Sequential");
    reject(a, last ? inner : b, ISO_ERR_ARG, "data_parallels[1]: the module is a Sequential");
    reject(last ? inner : a, b, ISO_ERR_ARG, "data_parallels[0]: the module is a Sequential");
    reject(test_rank == 0 ? b : a, test_rank == 0 ? a : b, ISO_ERR_MISMATCH, "as model 0");
    iso_assert_ok(iso_join_begin(b, &config, &join));
    reject(a, b, ISO_ERR_STATE, "data_parallels[1]: this data_parallel is in a join already");
    iso_join_end(&join);
    iso_assert_ok(couple_begin(&p, &p.u[0].join, &join)); // both are in it
    reject(b, a, ISO_ERR_STATE, "data_parallels[0]: this data_parallel is in a join already");
    iso_assert_all(iso_join_begin(a, &config, &none) == ISO_ERR_STATE && !none);
    iso_join_end(&join);
    iso_assert_all(iso_join_begin_many(&a, 0, &config, &none) == ISO_ERR_ARG && !none);
    iso_assert_all(said("a join of 0 models"));
    iso_module *models[] = {a, b};
    iso_assert_all(iso_join_begin_many(models, 1 + last, &config, &none) == ISO_ERR_MISMATCH);
    iso_assert_all(said("no further model"));
    accept(&p);
    couple_destroy(&p);
}

Test(np2_join_many_rules, what_is_refused_is_named_by_position) { refusals(); }
Test(np3_join_many_rules, what_is_refused_is_named_by_position) { refusals(); }

static void other_ranks(int color, int key) {
    couple p = couple_plan();
    MPI_Comm mpi;
    iso_comm *second;
    MPI_Comm_split(MPI_COMM_WORLD, color, key, &mpi);
    iso_assert_ok(iso_comm_create(mpi, NULL, &second));
    couple_create(&p, second);
    reject(p.model[0].model, p.model[1].model, ISO_ERR_ARG,
           "data_parallels[1]: its communicator has other ranks");
    couple_destroy(&p);
    iso_comm_destroy(&second);
    MPI_Comm_free(&mpi);
}

Test(np3_join_many_rules, communicators_need_the_same_ranks_in_the_same_order) {
    other_ranks(0, -test_rank);
    other_ranks(test_rank, 0);
    other_ranks(test_rank > 0, 0);
}

// One rank lists the models in another order, with a communicator for each: rank 0 would wait on
// one of them and the others on the other one.
Test(np3_join_many_rules, another_order_is_told_with_the_rank) {
    for (int odd = 0; odd < test_size; odd++) {
        couple p = couple_plan();
        iso_comm *second;
        char text[64];
        iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &second));
        couple_create(&p, second);
        bool turned = test_rank == odd;
        iso_module *a = p.model[turned].model, *b = p.model[!turned].model;
        snprintf(text, sizeof(text), "rank %d has as model 0 the data_parallel", odd);
        reject(a, b, ISO_ERR_MISMATCH, text);
        accept(&p);
        couple_destroy(&p);
        iso_comm_destroy(&second);
    }
}

// Only the second model cannot be weighted.
static iso_status reduce_nothing(const iso_gradient *gradients, int count, iso_comm *comm,
                                 void *user) {
    (void)gradients, (void)count, (void)comm, (void)user;
    return ISO_OK;
}
static void with_reduce(iso_data_parallel_config *dp) { dp->reduce = reduce_nothing; }

Test(np2_join_many_rules, every_model_is_checked) {
    couple p = couple_plan();
    iso_join *join = NULL;
    iso_join_config config = {.divisor = ISO_JOIN_EFFECTIVE};
    p.u[1].train.adjust = with_reduce;
    couple_create(&p, test_comm);
    iso_assert_all(couple_begin(&p, &config, &join) == ISO_ERR_UNSUPPORTED);
    iso_assert_all(said("data_parallels[1]: join cannot weight"));
    accept(&p);
    couple_destroy(&p);
}

// A rank fails in its third step, while the last rank shadows.
static void a_rank_fails(int failing) {
    couple p = couple_plan();
    iso_join *join;
    iso_status status = ISO_OK;
    char name[32];
    couple_set_lengths(&p, 6, 6, 6);
    p.u[0].batches[test_size - 1] = p.u[1].batches[test_size - 1] = 1;
    couple_create(&p, test_comm);
    iso_assert_ok(couple_begin(&p, &p.u[0].join, &join));
    for (int step = 0; status == ISO_OK; step++) {
        bool fails = test_rank == failing && step == 2;
        int64_t samples = fails ? -1 : uneven_rows(&p.u[0], test_rank, step);
        status = iso_join_next(join, samples, true);
        if (status == ISO_OK) status = couple_batch(&p, step, true);
    }
    iso_assert_all(status == ISO_ERR_STATE);
    iso_assert_all(p.steps == 2);
    snprintf(name, sizeof(name), "rank %d reported", failing);
    iso_assert_all(said(test_rank == failing ? "this rank reported" : name));
    iso_join_end(&join);
    for (int m = 0; m < 2; m++) iso_assert_ok(trainer_train(&p.model[m], 1)); // both are in order
    for (int m = 0; m < 2; m++) couple_digest(&p.model[m]);
    couple_destroy(&p);
}

Test(np2_join_many_rules, a_rank_that_fails_is_named) { a_rank_fails(0); }
Test(np3_join_many_rules, a_rank_that_fails_is_named) { a_rank_fails(1); }

Test(np3_join_many_rules, ranks_must_agree_whether_to_synchronise) {
    couple p = couple_plan();
    iso_join *join;
    couple_create(&p, test_comm);
    iso_assert_ok(couple_begin(&p, &p.u[0].join, &join));
    iso_assert_all(iso_join_next(join, 2, test_rank != 1) == ISO_ERR_MISMATCH);
    iso_assert_all(said("2 of the 3 ranks"));
    iso_join_end(&join);
    accept(&p);
    couple_destroy(&p);
}
