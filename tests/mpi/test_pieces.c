// SPDX-License-Identifier: MIT
// Parameters that leave, come back and are updated in pieces.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "nn/nn_impl.h"

#include <criterion/criterion.h>
#include <math.h>
#include <mpi.h>
#include <string.h>

TestSuite(np1_pieces, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_pieces, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_pieces, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_pieces, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- Plain arrays -----------------------------------------------------------------------------------

// "big" and "large" are cut, the others have rows but are too small, or no rows.
enum { PARAMS = 5, MOST = 100 * 40 };
static const char *const names[PARAMS] = {"a", "b.big", "b.bias", "b.large", "c"};
static const size_t counts[PARAMS] = {70, 100 * 40, 100, 65 * 8, 33};
static const size_t rows[PARAMS] = {7, 40, 0, 8, 0};
static const int layers[PARAMS] = {0, 1, 1, 1, 2};
static float value[PARAMS][MOST];
static int calls[PARAMS]; // of the update

static iso_status whole(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)hyper, (void)user;
    for (size_t k = 0; k < counts[i]; k++) value[i][k] -= (float)scale * ((float *)gradient)[k];
    calls[i]++;
    return ISO_OK;
}

static iso_status piecewise(int i, size_t first, size_t count, void *gradient, double scale,
                            const void *hyper, void *user) {
    (void)hyper, (void)user;
    for (size_t k = 0; k < count; k++) value[i][first + k] -= (float)scale * ((float *)gradient)[k];
    calls[i]++;
    return ISO_OK;
}

static iso_reducer *make(iso_sync sync, size_t piece_bytes, bool in_pieces) {
    iso_reducer_param param[PARAMS];
    iso_reducer_config config = {.sync = sync, .piece_bytes = piece_bytes};
    iso_reducer *r = NULL;
    int id = -1;
    memset(value, 0, sizeof(value));
    memset(calls, 0, sizeof(calls));
    for (int i = 0; i < PARAMS; i++)
        param[i] = (iso_reducer_param){.name = names[i],
                                       .value = value[i],
                                       .count = counts[i],
                                       .dtype = ISO_F32,
                                       .layer = layers[i],
                                       .row = rows[i]};
    iso_assert_ok(iso_reducer_create(test_comm, param, PARAMS, &config, &r));
    iso_assert_ok(iso_reducer_add_apply(r, NULL, 0, whole, 1, NULL, &id));
    if (in_pieces) iso_assert_ok(iso_reducer_set_apply_piece(r, id, piecewise));
    return r;
}

static float gradient_of(int rank, int step, int i, size_t k) {
    return (float)(rank + 1) * (float)(step + 1) + (float)i + (float)(k % 13);
}

// Pieces in an order of their own on each rank; the last one is left to grad_ready.
static iso_status report(iso_reducer *r, int i) {
    int pieces = iso_reducer_pieces(r, i);
    iso_status status = ISO_OK;
    for (int k = 0; status == ISO_OK && k < pieces - 1; k++)
        status = iso_reducer_piece_ready(r, i, (k + test_rank) % (pieces - 1));
    return status == ISO_OK ? iso_reducer_grad_ready(r, i) : status;
}

static void train(iso_reducer *r, int steps) {
    iso_status status = ISO_OK;
    for (int step = 0; status == ISO_OK && step < steps; step++) {
        for (int i = 0; status == ISO_OK && i < PARAMS; i++)
            status = iso_reducer_param_needed(r, i);
        iso_reducer_zero_grad(r);
        for (int i = PARAMS - 1; status == ISO_OK && i >= 0; i--) {
            float *g = iso_reducer_grad(r, i);
            for (size_t k = 0; k < counts[i]; k++) g[k] = gradient_of(test_rank, step, i, k);
            status = report(r, i);
        }
        if (status == ISO_OK) status = iso_reducer_step_of(r, 0, "");
    }
    if (status == ISO_OK) status = iso_reducer_finish(r);
    iso_assert_ok(status);
}

// Sums of small whole numbers over 1, 2 or 4 ranks are exact.
static bool right(int steps) {
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < counts[i]; k++) {
            double expected = 0;
            for (int step = 0; step < steps; step++)
                for (int rank = 0; rank < test_size; rank++)
                    expected -= gradient_of(rank, step, i, k) / test_size;
            if (fabs(value[i][k] - expected) > 1e-3) return false;
        }
    return true;
}

static void values_are_right(iso_sync sync) {
    static const size_t bytes[] = {0, 1024, 3000, 1 << 20};
    static const int pieces[] = {1, 7, 4, 1}; // of 100 rows of 160 bytes, in sixteens
    for (int b = 0; b < 4; b++)
        for (int in_pieces = 0; in_pieces < 2; in_pieces++) {
            iso_reducer *r = make(sync, bytes[b], in_pieces);
            iso_assert_all(iso_reducer_pieces(r, 1) == pieces[b]);
            iso_assert_all(iso_reducer_pieces(r, 0) == 1 && iso_reducer_pieces(r, 2) == 1);
            train(r, 3);
            iso_assert_all(right(3));
            iso_assert_all(calls[1] == 3 * (in_pieces ? pieces[b] : 1) && calls[2] == 3);
            iso_reducer_destroy(&r);
        }
}

Test(np1_pieces, values_are_right) { values_are_right(ISO_SYNC_LAZY); }
Test(np2_pieces, values_are_right) { values_are_right(ISO_SYNC_LAZY); }
Test(np3_pieces, values_are_right) { values_are_right(ISO_SYNC_LAZY); }
Test(np4_pieces, values_are_right) { values_are_right(ISO_SYNC_LAZY); }
Test(np3_pieces, blocking_values_are_right) { values_are_right(ISO_SYNC_BLOCKING); }

Test(np1_pieces, cover_the_parameter_and_lie_behind_each_other) {
    iso_reducer *r = make(ISO_SYNC_LAZY, 512, false);
    for (int i = 0; i < PARAMS; i++) {
        size_t next = 0, first, count;
        for (int k = 0; k < iso_reducer_pieces(r, i); k++, next += count) {
            iso_reducer_piece(r, i, k, &first, &count);
            cr_expect_eq(first, next);
            cr_expect(rows[i] == 0 || count % rows[i] == 0);
        }
        cr_expect_eq(next, counts[i]);
    }
    cr_expect_gt(iso_reducer_pieces(r, 1), 1);
    cr_expect_gt(iso_reducer_pieces(r, 3), 1);
    iso_reducer_destroy(&r);
}

// A rank that has its last piece only when another has seen the first one updated.
static void report_last_piece_late(iso_reducer *r, bool *other_has_seen) {
    int last = iso_reducer_pieces(r, 1) - 1, word = 0;
    for (int i = PARAMS - 1; i >= 0; i--)
        if (i != 1) iso_assert_ok(iso_reducer_grad_ready(r, i));
    for (int k = 0; k < last; k++) iso_assert_ok(iso_reducer_piece_ready(r, 1, k));
    if (test_rank == 1) MPI_Recv(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    iso_status status = iso_reducer_piece_ready(r, 1, last);
    if (status == ISO_OK) status = iso_reducer_step_of(r, 0, "");
    if (test_rank == 0 && status == ISO_OK) {
        status = iso_reducer_piece_needed(r, 1, 0);
        *other_has_seen = value[1][0] == -1.5F && calls[1] >= 1 && calls[1] <= last;
        word = 1;
    }
    if (test_rank == 0) MPI_Send(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    if (status == ISO_OK) status = iso_reducer_finish(r);
    iso_assert_ok(status);
}

Test(np2_pieces, a_piece_is_there_before_the_others) {
    iso_reducer *r = make(ISO_SYNC_LAZY, 1024, true);
    bool seen = true;
    for (int i = 0; i < PARAMS; i++) {
        float *g = iso_reducer_grad(r, i);
        for (size_t k = 0; k < counts[i]; k++) g[k] = (float)(test_rank + 1);
    }
    report_last_piece_late(r, &seen);
    iso_assert_all(seen && value[1][MOST - 1] == -1.5F);
    iso_reducer_destroy(&r);
}

// Without updates in pieces, none is there before all are.
Test(np2_pieces, a_piece_needed_of_what_is_updated_as_a_whole) {
    iso_reducer *r = make(ISO_SYNC_LAZY, 1024, false);
    for (int i = PARAMS - 1; i >= 0; i--) {
        float *g = iso_reducer_grad(r, i);
        for (size_t k = 0; k < counts[i]; k++) g[k] = (float)(test_rank + 1);
        iso_assert_ok(iso_reducer_grad_ready(r, i));
    }
    iso_assert_ok(iso_reducer_step_of(r, 0, ""));
    iso_assert_ok(iso_reducer_piece_needed(r, 1, 0));
    iso_assert_all(calls[1] == 1 && value[1][0] == -1.5F && value[1][MOST - 1] == -1.5F);
    iso_assert_ok(iso_reducer_finish(r));
    iso_reducer_destroy(&r);
}

Test(np1_pieces, what_is_not_there_or_there_twice_is_refused) {
    iso_reducer *r = make(ISO_SYNC_LAZY, 1024, false);
    cr_expect_eq(iso_reducer_piece_ready(r, 1, 7), ISO_ERR_ARG);
    cr_expect_eq(iso_reducer_piece_ready(r, PARAMS, 0), ISO_ERR_ARG);
    cr_expect_eq(iso_reducer_piece_needed(r, 1, 7), ISO_ERR_ARG);
    cr_expect_eq(iso_reducer_piece_ready(r, 1, 3), ISO_OK);
    cr_expect_eq(iso_reducer_piece_ready(r, 1, 3), ISO_ERR_STATE);
    iso_reducer_destroy(&r);
}

static void fill(iso_reducer *r, int i, size_t first, size_t count) {
    float *g = (float *)iso_reducer_grad(r, i) + first;
    for (size_t k = 0; k < count; k++) g[k] = (float)(test_rank + 1);
}

// Reports all gradients but the last piece of "b.big", of which the first pieces are there already.
static iso_status report_most(iso_reducer *r, int there) {
    iso_status status = ISO_OK;
    for (int i = PARAMS - 1; i >= 0; i--) fill(r, i, 0, counts[i]);
    for (int i = PARAMS - 1; status == ISO_OK && i >= 0; i--)
        if (i != 1) status = iso_reducer_grad_ready(r, i);
    for (int k = there; status == ISO_OK && k < iso_reducer_pieces(r, 1) - 1; k++)
        status = iso_reducer_piece_ready(r, 1, k);
    return status;
}

static bool is_refused(iso_reducer *r) {
    return iso_reducer_grad_ready(r, 1) == ISO_ERR_STATE &&
           strstr(iso_last_error()->message, "before its last exchange");
}

// The first piece is back, the last one is not. Reports the first of the next backward.
static iso_status report_early(iso_reducer *r, bool *refused) {
    size_t first, count;
    iso_status status = iso_reducer_piece_needed(r, 1, 0);
    *refused = is_refused(r);
    iso_reducer_piece(r, 1, 0, &first, &count);
    fill(r, 1, first, count);
    if (status == ISO_OK) status = iso_reducer_piece_ready(r, 1, 0);
    *refused = *refused && is_refused(r);
    return status;
}

static iso_status await_all(iso_reducer *r, int from) {
    iso_status status = ISO_OK;
    for (int i = 0; status == ISO_OK && i < PARAMS; i++)
        if (i != 1) status = iso_reducer_param_needed(r, i);
    for (int k = from; status == ISO_OK && k < iso_reducer_pieces(r, 1); k++)
        status = iso_reducer_piece_needed(r, 1, k);
    return status;
}

// Rank 1 has its last piece only when rank 0 was refused. That changes nothing: the exchange ends,
// and so does the next one.
Test(np2_pieces, a_gradient_is_refused_while_pieces_of_the_last_one_travel) {
    iso_reducer *r = make(ISO_SYNC_LAZY, 1024, true);
    int last = iso_reducer_pieces(r, 1) - 1, word = 0, early = 0;
    for (int step = 0; step < 3; step++) {
        bool refused = true;
        iso_status status = report_most(r, early);
        if (test_rank == 1 && step < 2)
            MPI_Recv(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (status == ISO_OK) status = iso_reducer_piece_ready(r, 1, last);
        if (status == ISO_OK) status = iso_reducer_step_of(r, 0, "");
        early = test_rank == 0 && step < 2;
        if (early && status == ISO_OK) status = report_early(r, &refused);
        if (early) MPI_Send(&word, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        if (status == ISO_OK) status = await_all(r, early);
        iso_assert_ok(status);
        iso_assert_all(refused && value[1][0] == -1.5F * (float)(step + 1) &&
                       value[1][MOST - 1] == value[1][0]);
    }
    iso_reducer_destroy(&r);
}

// ---- What callers are told --------------------------------------------------------------------------

static bool told(const char *part) { return strstr(iso_last_error()->message, part) != NULL; }

static void report_all_but_a_piece(iso_reducer *r, int missing) {
    for (int i = PARAMS - 1; i >= 0; i--)
        for (int k = 0; k < iso_reducer_pieces(r, i); k++)
            if (i != 1 || k != missing) iso_assert_ok(iso_reducer_piece_ready(r, i, k));
}

Test(np1_pieces, a_piece_that_is_missing_is_named) {
    iso_reducer *r = make(ISO_SYNC_LAZY, 1024, true);
    report_all_but_a_piece(r, 2);
    cr_expect_eq(iso_reducer_step(r, ""), ISO_ERR_STATE);
    cr_expect(told("piece 2 of \"b.big\""), "%s", iso_last_error()->message);
    iso_reducer_destroy(&r);
}

// user: how often it has refused.
static iso_status refuse_once(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)gradient, (void)scale, (void)hyper;
    return i == 3 && (*(int *)user)++ == 0 ? ISO_ERR_UNSUPPORTED : ISO_OK;
}

// Which wrote no record of its error, as a program of one's own may not. The rest goes on.
Test(np2_pieces, a_callback_that_fails_is_named) {
    int refusals = 0;
    iso_reducer *r = make(ISO_SYNC_LAZY, 0, false);
    iso_assert_ok(iso_reducer_remove_apply(r, ISO_REDUCER_ONLY));
    iso_assert_ok(iso_reducer_set_apply(r, refuse_once, 1, &refusals));
    report_all_but_a_piece(r, ISO_REDUCER_ONLY);
    iso_assert_ok(iso_reducer_step(r, ""));
    iso_assert_all(iso_reducer_finish(r) == ISO_ERR_UNSUPPORTED && told("\"b.large\""));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(refusals == 2);
    iso_reducer_destroy(&r);
}

Test(np1_pieces, the_only_callback_needs_no_name) {
    const int params[] = {0};
    int other;
    iso_reducer *r = make(ISO_SYNC_LAZY, 1024, false);
    cr_expect_eq(iso_reducer_set_apply_piece(r, ISO_REDUCER_ONLY, piecewise), ISO_OK);
    report_all_but_a_piece(r, -1);
    cr_expect_eq(iso_reducer_step(r, ""), ISO_OK);
    iso_assert_ok(iso_reducer_add_apply(r, params, 1, whole, 1, NULL, &other));
    cr_expect_eq(iso_reducer_step(r, ""), ISO_ERR_STATE);
    cr_expect(told("2 optimizers"), "%s", iso_last_error()->message);
    iso_assert_ok(iso_reducer_remove_apply(r, other));
    iso_assert_ok(iso_reducer_remove_apply(r, ISO_REDUCER_ONLY));
    cr_expect_eq(iso_reducer_step(r, ""), ISO_ERR_STATE);
    cr_expect(told("iso_reducer_set_apply"), "%s", iso_last_error()->message);
    iso_reducer_destroy(&r);
}

// ---- Models -----------------------------------------------------------------------------------------

static iso_status build_wide(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_module *net, *m;
    iso_status status = iso_sequential_create(device, &net);
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, NULL, m);
    if (status == ISO_OK) status = iso_linear_create(device, 200, 100, true, &rng, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, "fc", m);
    if (status == ISO_OK) status = iso_relu_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, NULL, m);
    if (status == ISO_OK) status = iso_linear_create(device, 100, TRAINER_CLASSES, true, &rng, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(net, "out", m);
    *out = net;
    return status;
}

static trainer_config wide(iso_optimizer_kind kind, double piece_mb) {
    trainer_config config = trainer_default();
    config.build = build_wide;
    config.optimizer = kind;
    config.piece_mb = piece_mb;
    return config;
}

// On a GPU buckets are multiples of what the ranks of a node can share: of three, 48 rows of 800
// bytes are, and no fewer.
static void make_trainer(trainer *t, const trainer_config *config, int pieces) {
    iso_assert_ok(trainer_create(t, test_comm, config));
    int got = iso_reducer_pieces(iso_data_parallel_reducer(t->model), 0);
    bool shared = strcmp(iso_device_name(t->device), "cuda") == 0 && test_size == 3;
    iso_assert_all(got == (shared && pieces > 1 ? 3 : pieces));
}

static void equals_a_model_that_is_not_cut(iso_optimizer_kind kind) {
    trainer_config cut = wide(kind, 0.01), not_cut = wide(kind, 0);
    trainer a, b;
    double difference = 1;
    make_trainer(&a, &cut, 7);
    make_trainer(&b, &not_cut, 1);
    iso_assert_ok(trainer_train(&a, 10));
    iso_assert_ok(trainer_train(&b, 10));
    iso_assert_ok(trainer_difference(&a, &b, &difference));
    iso_assert_all(difference < 2e-5);
    trainer_destroy(&a);
    trainer_destroy(&b);
}

Test(np1_pieces, there_are_none_where_nothing_travels) {
    trainer_config config = wide(ISO_SGD, 0.01);
    trainer t;
    make_trainer(&t, &config, 1);
    iso_assert_ok(trainer_train(&t, 2));
    trainer_destroy(&t);
}
Test(np2_pieces, sgd_equals_a_model_that_is_not_cut) { equals_a_model_that_is_not_cut(ISO_SGD); }
Test(np3_pieces, sgd_equals_a_model_that_is_not_cut) { equals_a_model_that_is_not_cut(ISO_SGD); }
Test(np2_pieces, lamb_equals_a_model_that_is_not_cut) { equals_a_model_that_is_not_cut(ISO_LAMB); }

static void lazy_equals_blocking(iso_optimizer_kind kind) {
    uint64_t hash[2] = {0, 1};
    for (int i = 0; i < 2; i++) {
        trainer_config config = wide(kind, 0.01);
        config.sync = i ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
        iso_assert_ok(trainer_run(test_comm, &config, 12, &hash[i]));
    }
    iso_assert_all(hash[0] == hash[1]);
}

Test(np2_pieces, lazy_equals_blocking) { lazy_equals_blocking(ISO_SGD); }
Test(np3_pieces, lazy_equals_blocking) { lazy_equals_blocking(ISO_SGD); }
Test(np3_pieces, lamb_lazy_equals_blocking) { lazy_equals_blocking(ISO_LAMB); }

// A step of two backwards, the first of which exchanges nothing.
static void accumulate(trainer *t, int step) {
    uint64_t hash;
    iso_optimizer_zero_grad(t->optimizer);
    iso_assert_ok(iso_data_parallel_begin_no_sync(t->model));
    iso_assert_ok(trainer_backward(t, 2 * step));
    iso_assert_ok(iso_data_parallel_end_no_sync(t->model));
    iso_assert_ok(trainer_backward(t, 2 * step + 1));
    iso_assert_ok(iso_optimizer_step(t->optimizer));
    iso_assert_ok(trainer_hash(t, &hash)); // fails if replicas differ
}

// A gradient that was accumulated without an exchange is not final piece by piece, and the wrapper
// leaves nothing behind.
Test(np2_pieces, accumulation_and_unwrapping) {
    trainer_config cut = wide(ISO_SGD, 0.01), not_cut = wide(ISO_SGD, 0);
    trainer t, other;
    double difference = 1;
    make_trainer(&t, &cut, 7);
    make_trainer(&other, &not_cut, 1);
    for (int step = 0; step < 3; step++) {
        accumulate(&t, step);
        accumulate(&other, step);
    }
    iso_assert_ok(trainer_difference(&t, &other, &difference));
    iso_assert_all(difference < 2e-5);
    trainer_destroy(&other);
    iso_module *inner = iso_module_retain(iso_data_parallel_module(t.model));
    trainer_destroy(&t);
    iso_parameter_list list;
    iso_assert_ok(iso_module_parameters(inner, &list));
    for (int i = 0; i < list.count; i++) iso_assert_all(!list.item[i]->pieces);
    iso_parameter_list_destroy(&list);
    iso_module_destroy(&inner);
}
