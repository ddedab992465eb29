// SPDX-License-Identifier: MIT
// Gossip: ranks average parameters with one other rank at a time (Stochastic Gradient Push).
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/tensor_access.h"
#include "common/types_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_gossip, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_gossip, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_gossip, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_gossip, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np5_gossip, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = 12 };

static daso_case case_of(int64_t period, int64_t wait) {
    daso_case c = daso_case_default(STEPS);
    c.daso = iso_gossip_config(STEPS, period);
    c.daso.batches_to_wait = wait;
    return c;
}

// ---- Exchanges without updates between them -------------------------------------------------------

// The parameters of all ranks, rank after rank, to be freed.
static float *gather_values(trainer *t, int64_t *count) {
    float *own = daso_values(t, count), *all = NULL;
    if (own) all = malloc((size_t)test_size * (size_t)*count * sizeof(float));
    iso_assert_all(own && all);
    MPI_Allgather(own, (int)*count, MPI_FLOAT, all, (int)*count, MPI_FLOAT, MPI_COMM_WORLD);
    free(own);
    return all;
}

// Exchange k as the paper has it.
static void mix_serially(float *all, int64_t count, int k) {
    int rounds = 0;
    size_t bytes = (size_t)test_size * (size_t)count * sizeof(float);
    float *before = malloc(bytes);
    while (1 << rounds < test_size) rounds++;
    int distance = rounds > 0 ? 1 << k % rounds : 1;
    memcpy(before, all, bytes);
    for (int to = 0; to < test_size; to++) {
        const float *mine = before + to * count;
        const float *peer = before + (to + test_size - distance % test_size) % test_size * count;
        for (int64_t i = 0; i < count; i++) all[to * count + i] = (mine[i] + peer[i]) / 2;
    }
    free(before);
}

typedef struct figures {
    double largest_sum, moved_sum; // over ranks, of any element; how far from that at the start
    double distance;               // from the mean, of all elements
} figures;

static figures compare(const float *start, const float *now, int64_t count) {
    figures f = {0};
    for (int64_t i = 0; i < count; i++) {
        double first = 0, sum = 0;
        for (int r = 0; r < test_size; r++) first += (double)start[r * count + i];
        for (int r = 0; r < test_size; r++) sum += (double)now[r * count + i];
        f.largest_sum = fmax(f.largest_sum, fabs(first));
        f.moved_sum = fmax(f.moved_sum, fabs(sum - first));
        for (int r = 0; r < test_size; r++)
            f.distance += pow((double)now[r * count + i] - sum / test_size, 2);
    }
    f.distance = sqrt(f.distance);
    return f;
}

static void open_apart(trainer *t, daso_case *c) {
    c->train.hyper.lr = 0;
    iso_assert_ok(daso_open(t, MPI_COMM_WORLD, c));
    iso_assert_ok(daso_drift(t, 0.125f * (float)(test_rank * test_rank + 1)));
}

// Every exchange changes the parameters to the bits of a serial model, after the wait. The sum over
// ranks stays the same.
static void exchanges_equal_the_model(int64_t period, int64_t wait) {
    trainer t;
    int64_t count;
    daso_case c = case_of(period, wait);
    open_apart(&t, &c);
    float *start = gather_values(&t, &count), *model = gather_values(&t, &count);
    for (int step = 1, merged = 0; step < STEPS; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        for (; (step - wait) / period > merged; merged++) mix_serially(model, count, merged);
        float *now = gather_values(&t, &count);
        size_t bytes = (size_t)test_size * (size_t)count * sizeof(float);
        iso_assert_all(memcmp(now, model, bytes) == 0);
        figures f = compare(start, now, count);
        iso_assert_all(f.moved_sum <= 1e-6 * f.largest_sum);
        free(now);
    }
    free(start);
    free(model);
    daso_close(&t);
}

static void equals_model(void) {
    exchanges_equal_the_model(1, 0);
    exchanges_equal_the_model(2, 0);
    exchanges_equal_the_model(2, 1);
    exchanges_equal_the_model(3, 3);
}
Test(np1_gossip, exchanges_equal_the_model) { equals_model(); }
Test(np3_gossip, exchanges_equal_the_model) { equals_model(); }
Test(np4_gossip, exchanges_equal_the_model) { equals_model(); }
Test(np5_gossip, exchanges_equal_the_model) { equals_model(); }

// Distances from the mean after each exchange, relative to that at the start.
static void measure_distances(daso_case *c, int exchanges, double *out) {
    trainer t;
    int64_t count;
    open_apart(&t, c);
    float *start = gather_values(&t, &count);
    double first = compare(start, start, count).distance;
    for (int k = 0; k < exchanges; k++) {
        iso_assert_ok(trainer_step(&t, k, NULL));
        float *now = gather_values(&t, &count);
        out[k] = compare(start, now, count).distance / first;
        free(now);
    }
    free(start);
    daso_close(&t);
}

static void two_exchanges_leave_the_mean(iso_status (*build)(iso_device *, bool, iso_module **)) {
    double left[3];
    daso_case c = case_of(1, 0);
    c.train.build = build;
    measure_distances(&c, 3, left);
    iso_assert_all(left[0] > 0.1 && left[1] < 1e-6 && left[2] < 1e-6);
}
Test(np4_gossip, log2_of_the_ranks_exchanges_leave_the_mean) {
    two_exchanges_leave_the_mean(build_smooth);
    two_exchanges_leave_the_mean(build_smooth_mixed); // f32 and f64
}

// The eigenvalues are (1 + w) / 2 with the third roots of unity w, so each exchange halves it.
Test(np3_gossip, every_exchange_of_three_ranks_halves_the_distance) {
    double left[8];
    daso_case c = case_of(1, 0);
    measure_distances(&c, 8, left);
    for (int k = 0; k < 8; k++) iso_assert_all(fabs(left[k] * (2 << k) - 1) < 1e-3);
}

// ---- Training -------------------------------------------------------------------------------------

static void train_on(trainer *t, int from, int to) {
    for (int step = from; step < to; step++) iso_assert_ok(trainer_step(t, step, NULL));
}

static void has_the_bits_of_local_sgd(void) {
    for (int i = 0; i < 4; i++) {
        trainer t, other;
        daso_case c = case_of(3, i % 2 ? 2 : 0), local = c;
        if (i / 2) c.train.build = local.train.build = build_smooth_mixed;
        local.daso.gossip = false;
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        iso_assert_ok(daso_open(&other, MPI_COMM_WORLD, &local));
        for (int step = 0; step < STEPS; step++) {
            uint64_t mine, its;
            train_on(&t, step, step + 1);
            train_on(&other, step, step + 1);
            iso_assert_ok(daso_own_hash(&t, &mine));
            iso_assert_ok(daso_own_hash(&other, &its));
            iso_assert_all(mine == its);
        }
        daso_close(&other);
        daso_close(&t);
    }
}
Test(np1_gossip, has_the_bits_of_local_sgd) { has_the_bits_of_local_sgd(); }
Test(np2_gossip, has_the_bits_of_local_sgd) { has_the_bits_of_local_sgd(); }

static void evaluates_the_mean(int64_t wait) {
    trainer t;
    uint64_t before, after;
    daso_case c = case_of(2, wait);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    train_on(&t, 0, 6);
    iso_assert_all(!daso_equal(&t));
    iso_assert_ok(daso_own_hash(&t, &before));
    int64_t count;
    float *all = gather_values(&t, &count);
    iso_module_train(t.model, false);
    iso_assert_all(daso_equal(&t));
    float *now = daso_values(&t, &count);
    bool near = true;
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int r = 0; r < test_size; r++) sum += (double)all[r * count + i];
        near = near && fabs((double)now[i] - sum / test_size) <= 1e-6;
    }
    iso_assert_all(near);
    iso_module_train(t.model, true);
    iso_assert_ok(daso_own_hash(&t, &after));
    iso_assert_all(before == after);
    train_on(&t, 6, STEPS);
    iso_assert_all(daso_equal(&t)); // the end is the mean
    free(now);
    free(all);
    daso_close(&t);
}
Test(np3_gossip, evaluation_and_the_end_are_the_mean_of_all) {
    evaluates_the_mean(0);
    evaluates_the_mean(1);
}

// Nothing but the array travels, to one rank.
Test(np4_gossip, an_exchange_sends_the_parameters_once) {
    trainer t;
    iso_daso_stats stats;
    int64_t count;
    daso_case c = case_of(2, 0);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    train_on(&t, 0, 6);
    float *own = daso_values(&t, &count);
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    int64_t padded = (count + 31) / 32 * 32 * (int64_t)sizeof(float);
    iso_assert_all(stats.syncs == 3 && stats.bytes_sent == 3 * padded);
    free(own);
    daso_close(&t);
}

// ---- Saved state ----------------------------------------------------------------------------------

static uint64_t end_of(const daso_case *c, int stop) {
    trainer t;
    uint64_t hash = 0;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    train_on(&t, 0, stop);
    if (stop > 0) {
        iso_assert_ok(daso_exchange_state(&t, stop, true));
        daso_close(&t);
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
        train_on(&t, 0, stop % 4); // a past of its own
        iso_assert_ok(daso_exchange_state(&t, stop, false));
    }
    train_on(&t, stop, STEPS - 1); // the last step leaves the mean
    iso_assert_ok(daso_own_hash(&t, &hash));
    daso_close(&t);
    return hash;
}

// With an exchange under way and without, after even and odd numbers of exchanges; and with ranks
// that are late.
static void goes_on(void) {
    for (int wait = 0; wait < 3; wait += 2) {
        daso_case c = case_of(2, wait);
        uint64_t expected = end_of(&c, 0);
        c.delay_us = 3000;
        iso_assert_all(end_of(&c, 0) == expected);
        for (int stop = 4; stop < 7; stop++) iso_assert_all(end_of(&c, stop) == expected);
    }
}
Test(np3_gossip, goes_on_from_a_saved_state) { goes_on(); }
Test(np4_gossip, goes_on_from_a_saved_state) { goes_on(); }

// ---- Failures and wrong use -----------------------------------------------------------------------

// Not only the rank that it sends to is told.
Test(np4_gossip, every_rank_is_told_of_a_failure) {
    trainer t;
    iso_parameter_list list;
    daso_case c = case_of(1, 0);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    train_on(&t, 0, 2);
    iso_assert_ok(iso_data_parallel_finish(t.model));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    if (test_rank == 3) tensor_swap(list.item[0]->value, 0, NAN);
    iso_status status = trainer_step(&t, 2, NULL);
    iso_assert_all(status == ISO_ERR_STATE && strstr(iso_last_error()->message, "rank 3"));
    iso_parameter_list_destroy(&list);
    daso_close(&t);
}

Test(np2_gossip, what_does_not_go_with_it_is_refused) {
    for (int i = 0; i < 8; i++) {
        daso_case c = case_of(4, 1);
        if (i == 0) c.daso.unit = ISO_SCOPE_NODE;
        if (i == 1) c.daso.wire = ISO_WIRE_INT8;
        if (i == 2) c.daso.merge = ISO_MERGE_HEAT;
        if (i == 3) c.daso.state = ISO_STATE_SYNC_AVERAGE;
        if (i == 4) c.daso.policy = ISO_POLICY_QSR, c.daso.max_global_skip = 64;
        if (i == 5) c.daso.outer = &iso_outer_slowmo;
        if (i == 6) iso_assert_ok(iso_daso_levels_parse("4:1,8:2", &c.daso));
        if (i == 7) c.daso.fragments = 2;
        iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "gossip needs unit ISO_SCOPE_RANK"));
    }
}

Test(np3_gossip, ranks_of_which_one_has_local_sgd_are_named) {
    daso_case c = case_of(2, 0);
    c.daso.gossip = test_rank != 1;
    iso_assert_all(daso_refused(&c, ISO_ERR_MISMATCH, "rank 1"));
}
