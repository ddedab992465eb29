// SPDX-License-Identifier: MIT
// Averages over tokens: ranks whose batches have different numbers of tokens give the steps of one
// rank that has all tokens.
#include "common/mpi_fixture.h"

#include <isotherm/clip.h>
#include <isotherm/reducer.h>

#include <criterion/criterion.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void setup_nodes(void) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    test_mpi_setup();
}
TestSuite(np1_by_weight, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_by_weight, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_by_weight, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_by_weight, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_by_weight_nodes, .init = setup_nodes, .fini = test_mpi_teardown, .timeout = 60);

// MATRIX may be cut; WIDE is f64; OWN is not exchanged.
enum { MATRIX, BIAS, WIDE, OWN, PARAMS, ROW = 16, MOST = 64 * ROW, STEPS = 6, TOKENS = 11 };
static const size_t counts[PARAMS] = {MOST, 40, 33, 5};
static double value[PARAMS][MOST], array[PARAMS][MOST];
// Clipping leaves out OWN: its norm, and with it the factor, would be another one on each rank.
static int listed = PARAMS;

static void put(void *to, int i, size_t k, double x) {
    if (i == WIDE)
        ((double *)to)[k] = x;
    else
        ((float *)to)[k] = (float)x;
}
static double get(const void *from, int i, size_t k) {
    return i == WIDE ? ((const double *)from)[k] : (double)((const float *)from)[k];
}

// ---- Who has which tokens ---------------------------------------------------------------------------

// The first token of a rank among those of all; the last step has none.
static int first_token(int step, int rank, int ranks) {
    if (step == STEPS - 1 || rank == 0) return 0;
    if (rank == ranks) return TOKENS;
    int first = (int)(TOKENS * pow((double)rank / ranks, 1 + step % 3));
    bool idle = rank == 1 && step % 2; // rank 0 has no token
    return idle ? 0 : first;
}
static int end_token(int step, int rank, int ranks) {
    return step == STEPS - 1 ? 0 : first_token(step, rank + 1, ranks);
}
static double slope_of(int step, int token, int i, size_t k) {
    return sin(1.1 * step + 0.7 * token + i + 0.37 * (double)k);
}

// ---- Training ---------------------------------------------------------------------------------------

static iso_status descend(const iso_reducer_update *u) {
    const double lr = *(const double *)u->hyper;
    for (size_t k = 0; k < u->count; k++) {
        if (u->dtype == ISO_F64)
            ((double *)u->value)[k] -= lr * (((double *)u->gradient)[k] * u->scale);
        else
            ((float *)u->value)[k] -= (float)lr * (((float *)u->gradient)[k] * (float)u->scale);
    }
    return ISO_OK;
}

static iso_reducer *create(iso_comm *comm, const iso_reducer_config *config, bool own_arrays) {
    static const char *const name[PARAMS] = {"matrix", "bias", "wide", "own"};
    iso_reducer_param param[PARAMS];
    iso_reducer *r = NULL;
    for (int i = 0; i < listed; i++) {
        for (size_t k = 0; k < counts[i]; k++) put(value[i], i, k, 1 + 0.01 * (double)k);
        param[i] = (iso_reducer_param){.name = name[i],
                                       .value = value[i],
                                       .gradient = own_arrays ? array[i] : NULL,
                                       .count = counts[i],
                                       .dtype = i == WIDE ? ISO_F64 : ISO_F32,
                                       .layer = i,
                                       .row = i == MATRIX ? ROW : 0,
                                       .local = i == OWN};
    }
    iso_assert_ok(iso_reducer_create(comm, param, listed, config, &r));
    iso_assert_ok(iso_reducer_set_update(r, descend, sizeof(double), NULL));
    return r;
}

static void write_gradient(iso_reducer *r, int step, int i, int first, int end) {
    for (size_t k = 0; k < counts[i]; k++) {
        double sum = 0;
        for (int t = first; t < end; t++) sum += slope_of(step, t, i, k);
        put(iso_reducer_grad(r, i), i, k, sum);
    }
}

// In even steps the tokens are given as those of two batches.
static iso_status backward(iso_reducer *r, int step, int first, int end) {
    int half = step % 2 ? 0 : (end - first) / 2;
    if (end == first && step % 3 == 1) return iso_reducer_shadow(r);
    iso_status status = iso_reducer_add_weight(r, half);
    if (status == ISO_OK) status = iso_reducer_add_weight(r, end - first - half);
    for (int i = listed - 1; status == ISO_OK && i >= 0; i--) {
        write_gradient(r, step, i, first, end);
        status = iso_reducer_grad_ready(r, i);
    }
    return status;
}

typedef struct run {
    const iso_reducer_config *config;
    bool own_arrays, clips, zeroes; // zeroes: calls zero_grad, so that updates may divide
} run;

static double norms[STEPS];

static iso_status train_step(iso_reducer *r, const run *how, int step, int rank, int ranks) {
    const double lr = 0.25;
    iso_status status = ISO_OK;
    for (int i = 0; status == ISO_OK && i < listed; i++) status = iso_reducer_param_needed(r, i);
    int first = first_token(step, rank, ranks), end = end_token(step, rank, ranks);
    if (status == ISO_OK) status = backward(r, step, first, end);
    if (status == ISO_OK && how->config->sync == ISO_SYNC_EXPLICIT)
        status = iso_reducer_all_reduce(r);
    if (status == ISO_OK && how->clips) status = iso_reducer_clip_grad_norm(r, 3, 2, &norms[step]);
    if (status == ISO_OK) status = iso_reducer_step(r, &lr);
    if (how->zeroes) iso_reducer_zero_grad(r);
    return status;
}

static void train(iso_comm *comm, const run *how, double out[PARAMS][MOST]) {
    iso_reducer_config config = *how->config;
    config.by_weight = true;
    int rank = iso_comm_rank(comm), ranks = iso_comm_size(comm);
    iso_reducer *r = create(comm, &config, how->own_arrays);
    for (int step = 0; step < STEPS; step++) iso_assert_ok(train_step(r, how, step, rank, ranks));
    iso_assert_ok(iso_reducer_finish(r));
    iso_reducer_destroy(&r);
    memcpy(out, value, sizeof(value));
}

// As one rank does that has all tokens.
static void train_alone(bool clips, double out[PARAMS][MOST]) {
    iso_comm *alone = NULL;
    const iso_reducer_config config = {.sync = ISO_SYNC_BLOCKING};
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    train(alone, &(run){.config = &config, .clips = clips}, out);
    iso_comm_destroy(&alone);
}

// Whether no element of the exchanged parameters differs by more; a NaN does.
static bool are_near(double a[PARAMS][MOST], double b[PARAMS][MOST], double tolerance) {
    for (int i = MATRIX; i <= WIDE; i++)
        for (size_t k = 0; k < counts[i]; k++)
            if (!(fabs(get(a[i], i, k) - get(b[i], i, k)) < tolerance)) return false;
    return true;
}

static void equals_one_rank(const iso_reducer_config *config, double tolerance) {
    static double alone[PARAMS][MOST], lazy[PARAMS][MOST], other[PARAMS][MOST];
    iso_reducer_config blocking = *config;
    blocking.sync = config->zero ? ISO_SYNC_LAZY : ISO_SYNC_BLOCKING;
    for (int clips = 0; clips < 2; clips++) {
        listed = clips ? OWN : PARAMS;
        train_alone(clips, alone);
        double expected = norms[1];
        train(test_comm, &(run){.config = config, .clips = clips, .zeroes = true}, lazy);
        iso_assert_all(are_near(alone, lazy, tolerance));
        iso_assert_all(!clips || (expected > 3 && fabs(norms[1] / expected - 1) < tolerance));
        for (int n = 0; n < 3; n++) {
            const run how = {.config = n ? &blocking : config,
                             .clips = clips,
                             .own_arrays = n == 2,
                             .zeroes = n == 1};
            train(test_comm, &how, other);
            iso_assert_all(memcmp(lazy, other, sizeof(lazy)) == 0);
        }
    }
}

Test(np1_by_weight, equals_one_rank) {
    equals_one_rank(&(iso_reducer_config){.average = ISO_AVERAGE_PRE}, 1e-5);
}
Test(np2_by_weight, equals_one_rank) {
    equals_one_rank(&(iso_reducer_config){.piece_bytes = 1024}, 1e-5);
    equals_one_rank(&(iso_reducer_config){.sync = ISO_SYNC_EXPLICIT}, 1e-5);
    equals_one_rank(&(iso_reducer_config){.average = ISO_AVERAGE_PRE}, 1e-5);
}
Test(np3_by_weight, equals_one_rank) {
    equals_one_rank(&(iso_reducer_config){.bucket_bytes = 1 << 20, .sums = 1}, 1e-5);
    equals_one_rank(&(iso_reducer_config){.average = ISO_AVERAGE_SPLIT, .split_factor = 4}, 1e-5);
    equals_one_rank(&(iso_reducer_config){.unused = ISO_UNUSED_NEGOTIATE}, 1e-5);
}
Test(np4_by_weight, equals_one_rank) { equals_one_rank(&(iso_reducer_config){0}, 1e-5); }
Test(np3_by_weight_nodes, equals_one_rank) { equals_one_rank(&(iso_reducer_config){0}, 1e-5); }
Test(np3_by_weight, equals_one_rank_with_hooks) {
    equals_one_rank(&(iso_reducer_config){.hook = &iso_hook_f16}, 1e-2);
    equals_one_rank(&(iso_reducer_config){.hook = &iso_hook_int8}, 1e-1);
}
Test(np3_by_weight, equals_one_rank_with_zero) {
    equals_one_rank(&(iso_reducer_config){.zero = 1}, 1e-5);
    equals_one_rank(&(iso_reducer_config){.zero = 1, .piece_bytes = 1024}, 1e-5);
    equals_one_rank(&(iso_reducer_config){.zero = 2}, 1e-5);
}

// ---- One step at a time -----------------------------------------------------------------------------

static iso_status report_all(iso_reducer *r, double gradient) {
    iso_status status = ISO_OK;
    for (int i = PARAMS - 1; status == ISO_OK && i >= 0; i--) {
        for (size_t k = 0; k < counts[i]; k++) put(iso_reducer_grad(r, i), i, k, gradient);
        status = iso_reducer_grad_ready(r, i);
    }
    return status;
}

static bool all_are(iso_reducer *r, int first, int last, double expected) {
    for (int i = first; i <= last; i++)
        for (size_t k = 0; k < counts[i]; k++)
            if (!(fabs(get(iso_reducer_grad(r, i), i, k) - expected) < 1e-6)) return false;
    return true;
}

// Rank q has q tokens: 0 on rank 0. Each token has gradient 2, or q + 1 in OWN.
Test(np3_by_weight, a_local_gradient_is_divided_by_the_ranks_own_weight) {
    listed = PARAMS;
    iso_reducer *r = create(test_comm, &(iso_reducer_config){.by_weight = true}, false);
    iso_assert_ok(iso_reducer_add_weight(r, test_rank));
    iso_assert_ok(report_all(r, 2.0 * test_rank));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(all_are(r, MATRIX, WIDE, 2));
    iso_assert_all(all_are(r, OWN, OWN, test_rank > 0 ? 2 : 0));
    iso_reducer_destroy(&r);
}

// Without a token, sums of zeros stay zeros.
Test(np2_by_weight, no_token_at_all_gives_zeros) {
    iso_reducer *r = create(test_comm, &(iso_reducer_config){.by_weight = true}, false);
    iso_assert_ok(iso_reducer_add_weight(r, 0));
    iso_assert_ok(report_all(r, 0));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_all(all_are(r, MATRIX, OWN, 0));
    iso_reducer_destroy(&r);
}

static void expect_said(iso_status status, iso_status expected, const char *said) {
    bool told = strstr(iso_last_error()->message, said);
    if (!told) fprintf(stderr, "%s\n", iso_last_error()->message);
    iso_assert_all(status == expected && told);
}

Test(np2_by_weight, misuse_is_told) {
    const double lr = 0;
    listed = PARAMS;
    iso_reducer *r = create(test_comm, &(iso_reducer_config){.by_weight = true}, false);
    expect_said(iso_reducer_grad_ready(r, OWN), ISO_ERR_STATE, "before the weight");
    expect_said(iso_reducer_add_weight(r, -1), ISO_ERR_ARG, "a weight of -1");
    expect_said(iso_reducer_add_weight(r, NAN), ISO_ERR_ARG, "a weight of nan");
    expect_said(iso_reducer_set_weight(r, 1, 2), ISO_ERR_STATE, "iso_reducer_add_weight");
    iso_assert_ok(iso_reducer_add_weight(r, 1));
    iso_assert_ok(iso_reducer_grad_ready(r, OWN));
    expect_said(iso_reducer_add_weight(r, 1), ISO_ERR_STATE, "has left already");
    for (int i = WIDE; i >= 0; i--) iso_assert_ok(iso_reducer_grad_ready(r, i));
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_ok(
        iso_reducer_add_weight(r, 1)); // of the next backward, to which averages are added
    expect_said(iso_reducer_grad_ready(r, OWN), ISO_ERR_STATE, "by_weight takes sums");
    iso_reducer_zero_grad(r);
    iso_assert_ok(report_all(r, 1));
    iso_assert_ok(iso_reducer_step(r, &lr));
    iso_reducer_destroy(&r);
}

Test(np2_by_weight, settings_are_checked) {
    iso_reducer *r = NULL;
    float x[4] = {0};
    const iso_reducer_param p = {.name = "x", .value = x, .count = 4};
    iso_reducer_config config = {.by_weight = true, .average = ISO_AVERAGE_SUM};
    expect_said(iso_reducer_create(test_comm, &p, 1, &config, &r), ISO_ERR_ARG, "choose one");
    config = (iso_reducer_config){.by_weight = test_rank == 1};
    expect_said(iso_reducer_create(test_comm, &p, 1, &config, &r), ISO_ERR_MISMATCH, "by_weight");
    iso_assert_ok(iso_reducer_create(test_comm, &p, 1, NULL, &r));
    expect_said(iso_reducer_add_weight(r, 1), ISO_ERR_STATE, "set by_weight");
    iso_reducer_destroy(&r);
}
