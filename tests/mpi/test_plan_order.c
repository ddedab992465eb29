// SPDX-License-Identifier: MIT
// The order by need on plain arrays that travel as messages: a plan is made on the way, and neither
// it nor the speed of ranks changes a bit of the result.
#include "base/base.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/reducer.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Only messages are planned, between nodes or in one.
static void setup(void) {
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    test_mpi_setup();
}
static void setup_node(void) {
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    test_mpi_setup();
}

TestSuite(np2_plan_order, .init = setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_plan_order, .init = setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_plan_order_node, .init = setup_node, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_plan_order_shm, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Four of them are longer than 128 KiB, below which buckets are not planned, also in 16 bit, and so
// are the two pieces into which the one with rows is cut. The plan is made in step PLANNED.
enum { PARAMS = 7, MOST = 160000, STEPS = 14, PLANNED = 9, PIECE_BYTES = 300000 };
static const size_t counts[PARAMS] = {70000, 50, 80000, 7000, 30, 160000, 66000};
static const size_t rows[PARAMS] = {0, 0, 0, 0, 0, 10, 0};
static float value[PARAMS][MOST];

static iso_status descend(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)hyper, (void)user;
    const float *g = gradient;
    for (size_t k = 0; k < counts[i]; k++) value[i][k] -= 0.1f * (g[k] * (float)scale);
    return ISO_OK;
}

// How a run is made; what changes nothing of the result is drawn anew on each rank.
typedef struct mode {
    iso_reducer_config config;
    bool uneven; // ranks use different parameters, and some steps none of them a parameter
    bool block;  // all but the first parameter are one layer, of which several are long
    uint32_t drawn;
} mode;

static uint32_t draw(mode *m, uint32_t below) {
    m->drawn = m->drawn * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)m->drawn * below >> 32);
}

static void stumble(mode *m) {
    if (m->config.sync == ISO_SYNC_LAZY && draw(m, 3) == 0) usleep(draw(m, 1500));
}

static bool uses(const mode *m, int rank, int step, int i) {
    if (!m->uneven || (step + i) % 3 != 0) return true;
    return (step + i) % 2 == 0 && rank == (step + i / 2) % test_size;
}

// Small whole numbers: sums have the same bits in any order.
static float gradient_of(int rank, int step, int i, size_t k) {
    return (float)((k * 7 + (size_t)(i * 3 + step * 5 + rank * 11)) % 17) - 8;
}

static iso_status create(const iso_reducer_config *config, bool block, iso_reducer **out) {
    static const char *const name[PARAMS] = {"a", "b", "c", "d", "e", "f", "g"};
    iso_reducer_param param[PARAMS];
    for (int i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < counts[i]; k++) value[i][k] = (float)i;
        param[i] = (iso_reducer_param){.name = name[i],
                                       .value = value[i],
                                       .count = counts[i],
                                       .dtype = ISO_F32,
                                       .layer = block && i > 0 ? 1 : i,
                                       .row = rows[i]};
    }
    return iso_reducer_create(test_comm, param, PARAMS, config, out);
}

// Blocking, all ranks report in one order; otherwise each in its own.
static void shuffle(mode *m, int *order) {
    for (int i = 0; i < PARAMS; i++) order[i] = PARAMS - 1 - i;
    if (m->config.sync != ISO_SYNC_LAZY) return;
    for (int i = PARAMS - 1; i > 0; i--) {
        int k = (int)draw(m, (uint32_t)i + 1), swap = order[i];
        order[i] = order[k];
        order[k] = swap;
    }
}

static iso_status backward(iso_reducer *r, mode *m, int step) {
    int order[PARAMS];
    iso_status status = ISO_OK;
    shuffle(m, order);
    for (int n = 0; n < PARAMS && status == ISO_OK; n++) {
        int i = order[n];
        if (!uses(m, test_rank, step, i)) continue;
        float *g = iso_reducer_grad(r, i);
        for (size_t k = 0; k < counts[i]; k++) g[k] = gradient_of(test_rank, step, i, k);
        stumble(m);
        status = iso_reducer_grad_ready(r, i);
    }
    return status;
}

static iso_status train_step(iso_reducer *r, mode *m, int step) {
    iso_status status = ISO_OK;
    for (int i = 0; i < PARAMS && status == ISO_OK; i++) {
        status = iso_reducer_param_needed(r, i);
        stumble(m);
    }
    iso_reducer_zero_grad(r);
    if (status == ISO_OK) status = backward(r, m, step);
    return status == ISO_OK ? iso_reducer_step(r, "") : status;
}

static uint64_t hash_of(float (*x)[MOST]) {
    uint64_t hash = ISO_HASH_START;
    for (int i = 0; i < PARAMS; i++) hash = iso__hash(hash, x[i], counts[i] * sizeof(float));
    return hash;
}

static uint64_t run(mode m, bool expect_planned) {
    iso_reducer *r;
    iso_reducer_stats stats;
    m.drawn = (uint32_t)(test_rank * 7919 + m.config.order * 31 + 1);
    iso_assert_ok(create(&m.config, m.block, &r));
    iso_status status = iso_reducer_set_apply(r, descend, 0, NULL);
    for (int step = 0; step < STEPS && status == ISO_OK; step++) status = train_step(r, &m, step);
    if (status == ISO_OK) status = iso_reducer_finish(r);
    iso_assert_ok(status);
    iso_reducer_get_stats(r, &stats);
    iso_assert_all(stats.planned == expect_planned);
    iso_assert_all(!m.block || stats.bucket_count == 4);
    iso_assert_all(iso_reducer_pieces(r, 5) == (m.config.piece_bytes ? 2 : 1));
    iso_reducer_destroy(&r);
    return hash_of(value);
}

// The same by plain loops, on this rank alone.
static uint64_t expected_hash(const mode *m) {
    static float x[PARAMS][MOST];
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < counts[i]; k++) {
            x[i][k] = (float)i;
            for (int step = 0; step < STEPS; step++) {
                float sum = 0;
                bool used = false;
                for (int rank = 0; rank < test_size; rank++) {
                    if (!uses(m, rank, step, i)) continue;
                    used = true;
                    sum += gradient_of(rank, step, i, k);
                }
                if (used) x[i][k] -= 0.1f * (sum * (float)(1.0 / test_size));
            }
        }
    return hash_of(x);
}

static void same_bits(mode m, bool exact) {
    uint64_t planned, reverse, blocking;
    m.config.sync = ISO_SYNC_LAZY;
    m.config.order = ISO_ORDER_NEED;
    planned = run(m, true);
    m.config.order = ISO_ORDER_REVERSE;
    reverse = run(m, false);
    m.config.sync = ISO_SYNC_BLOCKING;
    m.config.order = ISO_ORDER_NEED;
    blocking = run(m, false);
    iso_assert_all(planned == blocking);
    iso_assert_all(reverse == blocking);
    if (exact) iso_assert_all(planned == expected_hash(&m)); // a hook rounds
}

static const mode plain = {.config = {.unused = ISO_UNUSED_ERROR}};
static const mode uneven = {.config = {.unused = ISO_UNUSED_NEGOTIATE}, .uneven = true};
static const mode feedback = {.config = {.hook = &iso_hook_bf16_feedback}};
static const mode in_pieces = {.config = {.piece_bytes = PIECE_BYTES}};
static const mode in_a_block = {.config = {.unused = ISO_UNUSED_ERROR}, .block = true};
static const mode everything = {.config = {.unused = ISO_UNUSED_NEGOTIATE,
                                           .hook = &iso_hook_bf16_feedback,
                                           .bucket_bytes = 100000,
                                           .piece_bytes = PIECE_BYTES},
                                .uneven = true};

Test(np2_plan_order, same_bits) { same_bits(plain, true); }
Test(np3_plan_order, same_bits) { same_bits(plain, true); }
Test(np2_plan_order_node, same_bits) { same_bits(plain, true); }
Test(np2_plan_order, ranks_use_different_parameters) { same_bits(uneven, true); }
Test(np3_plan_order, ranks_use_different_parameters) { same_bits(uneven, true); }
Test(np2_plan_order, with_error_feedback) { same_bits(feedback, false); }
Test(np3_plan_order, with_error_feedback) { same_bits(feedback, false); }
Test(np2_plan_order, in_pieces) { same_bits(in_pieces, true); }
Test(np3_plan_order, in_pieces) { same_bits(in_pieces, true); }
Test(np2_plan_order, long_parameters_of_a_layer) { same_bits(in_a_block, true); }
Test(np3_plan_order, long_parameters_of_a_layer) { same_bits(in_a_block, true); }
Test(np3_plan_order, all_of_it_together) { same_bits(everything, false); }

// Sums in shared memory have no order to plan.
Test(np2_plan_order_shm, nothing_is_planned) {
    iso_assert_all(run(plain, false) == expected_hash(&plain));
}

// ---- A gradient is missing where the plan is made -----------------------------------------------------

static long long moved; // descents of parameter 0 by exactly what all ranks gave

static iso_status watch(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)user;
    const float *g = gradient;
    int step = *(const int *)hyper;
    bool right = true;
    for (size_t k = 0; k < counts[i] && i == 0; k++) {
        float sum = 0;
        for (int rank = 0; rank < test_size; rank++) sum += gradient_of(rank, step, i, k);
        right = right && g[k] * (float)scale == sum * (float)(1.0 / test_size);
    }
    moved += i == 0 && right;
    return ISO_OK;
}

// One step; gives what it said.
static iso_status step_without(iso_reducer *r, int step, int missing) {
    iso_status status = iso_reducer_finish(r);
    iso_reducer_zero_grad(r);
    for (int i = PARAMS - 1; i >= 0 && status == ISO_OK; i--) {
        if (i == missing) continue;
        float *g = iso_reducer_grad(r, i);
        for (size_t k = 0; k < counts[i]; k++) g[k] = gradient_of(test_rank, step, i, k);
        status = iso_reducer_grad_ready(r, i);
    }
    return status == ISO_OK ? iso_reducer_step(r, &step) : status;
}

// Who waits for the rank with the error longer than this fails.
static void create_impatient(iso_comm **comm) {
    iso_comm_config config = {.timeout_s = 5};
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, &config, comm));
}

static void missing_in(int odd, int missing) {
    iso_comm *world = test_comm;
    iso_reducer *r;
    iso_reducer_stats stats;
    iso_reducer_config config = {.unused = ISO_UNUSED_ERROR};
    create_impatient(&test_comm);
    iso_assert_ok(create(&config, false, &r));
    iso_assert_ok(iso_reducer_set_apply(r, watch, sizeof(int), NULL));
    moved = 0;
    for (int step = 1; step <= STEPS; step++) {
        bool here = step == odd && test_rank == 1;
        iso_status status = step_without(r, step, here ? missing : -1);
        // The others make their step, also where all ranks meet to plan.
        iso_assert_all(status == (here ? ISO_ERR_STATE : ISO_OK));
        if (here) cr_expect(strstr(iso_last_error()->message, "rank 1"));
    }
    iso_assert_ok(iso_reducer_finish(r));
    // Rank 1 makes no update from the step that failed; all others are right on all ranks, but for
    // those of parameter 0 with zeros of rank 1.
    iso_assert_all(moved == STEPS - (test_rank == 1 || missing == 0));
    iso_reducer_get_stats(r, &stats);
    iso_assert_all(stats.planned == (odd != PLANNED));
    iso_reducer_destroy(&r);
    iso_comm_destroy(&test_comm);
    test_comm = world;
}

static void missing_around_the_plan(void) {
    for (int odd = PLANNED - 1; odd <= PLANNED + 1; odd++) {
        missing_in(odd, 0); // the bucket that leaves last
        missing_in(odd, PARAMS - 1);
    }
}

Test(np2_plan_order, a_missing_gradient_stops_nobody) { missing_around_the_plan(); }
Test(np3_plan_order, a_missing_gradient_stops_nobody) { missing_around_the_plan(); }
