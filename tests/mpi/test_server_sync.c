// SPDX-License-Identifier: MIT
// The synchronous parameter server: ranks push and pull together.
#include "common/gossip_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/server_fixture.h"
#include "common/types_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_server_sync, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_server_sync, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_server_sync, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_server_sync, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

static daso_case case_of(int64_t period, int servers) {
    daso_case c = server_case(0);
    c.daso.push = ISO_PUSH_SYNC;
    c.daso.global_skip = period;
    c.daso.servers = servers;
    return c;
}

// ---- The formula ----------------------------------------------------------------------------------

// y = y + sum of a (x - y), in the order of the ranks; then all have y. all: of every rank.
static void push_serially(const daso_case *c, const float *all, float *y, int64_t count) {
    int workers = test_size - c->daso.servers;
    float scale = (float)(c->daso.push_scale > 0 ? c->daso.push_scale : 1.0 / workers);
    for (int64_t i = 0; i < count; i++) {
        float known = y[i];
        for (int r = 0; r < test_size; r++) y[i] += scale * (all[r * count + i] - known);
    }
}

// What this rank sends: in each exchange a shard to each other server, and a shard to each other
// rank if it serves. A shard ends at a multiple of 64 bytes. Headers of messages do not count.
static int64_t bytes_of(const daso_case *c, int64_t count, int64_t exchanges) {
    int64_t servers = c->daso.servers > 0 ? c->daso.servers : test_size;
    int64_t shard = ((count + servers - 1) / servers * (int64_t)sizeof(float) + 63) / 64 * 64;
    bool serves = test_rank >= test_size - servers;
    int64_t messages = servers - serves + (serves ? test_size - 1 : 0);
    return exchanges * messages * shard;
}

// Without training: ranks change their parameters before each step, and exchange after every
// period. In its first step they begin with what all have, so nothing changes there.
static void follows_the_model(daso_case c) {
    trainer t;
    int64_t count;
    iso_daso_stats stats;
    c.train.hyper.lr = 0;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    float *y = daso_values(&t, &count);
    for (int step = 0; step + 1 < SERVER_STEPS; step++) {
        float amount = 0.01f * (float)((test_rank * 5 + step) % 7 - 3);
        bool begins = step % c.daso.global_skip == 0;
        iso_assert_ok(begins || server_only(&c) ? ISO_OK : daso_drift(&t, amount));
        float *before = gossip_gather(&t, &count);
        server_train(&t, &c, step, step + 1);
        float *now = gossip_gather(&t, &count);
        bool meets = (step + 1) % c.daso.global_skip == 0, right = true;
        if (meets) push_serially(&c, before, y, count);
        for (int r = 0; r < test_size; r++) {
            const float *expected = meets ? y : before + r * count;
            right = right && memcmp(now + r * count, expected, (size_t)count * sizeof(float)) == 0;
        }
        iso_assert_all(right);
        free(before);
        free(now);
    }
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    int64_t exchanges = (SERVER_STEPS - 1) / c.daso.global_skip;
    iso_assert_all(stats.syncs == (test_size > 1 ? exchanges : 0));
    iso_assert_all(stats.global_skip == c.daso.global_skip && stats.batches_to_wait == 0);
    iso_assert_all(stats.bytes_sent == (test_size > 1 ? bytes_of(&c, count, exchanges) : 0));
    free(y);
    daso_close(&t);
}

static void follow_the_model(int most) {
    for (int servers = 0; servers <= most; servers++) {
        daso_case c = case_of(2 + servers, servers);
        follows_the_model(c);
        c.daso.push_scale = 0.75;
        follows_the_model(c);
    }
}
Test(np2_server_sync, exchanges_equal_the_model) { follow_the_model(1); }
Test(np3_server_sync, exchanges_equal_the_model) { follow_the_model(2); }
Test(np4_server_sync, exchanges_equal_the_model) { follow_the_model(3); }

// ---- Training -------------------------------------------------------------------------------------

// An exchange after every step of SGD, also with momentum, is data parallelism.
static float *train_all(const daso_case *c, int64_t *count) {
    trainer t;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    server_train(&t, c, 0, SERVER_STEPS);
    iso_assert_all(daso_equal(&t));
    float *values = daso_values(&t, count);
    daso_close(&t);
    return values;
}
static void is_data_parallelism(void) {
    int64_t count;
    double largest = 0, difference = 0, moved = 0;
    daso_case c = case_of(1, 0), parallel = server_case(SERVER_STEPS), none = server_case(0);
    none.train.hyper.lr = 0;
    float *ours = train_all(&c, &count), *theirs = train_all(&parallel, &count);
    float *start = train_all(&none, &count);
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)theirs[i]));
        difference = fmax(difference, fabs((double)ours[i] - (double)theirs[i]));
        moved = fmax(moved, fabs((double)ours[i] - (double)start[i]));
    }
    iso_assert_all(difference <= DASO_ROUNDING * largest && moved > 0.01 * largest);
    free(ours);
    free(theirs);
    free(start);
}
Test(np1_server_sync, after_each_step_is_data_parallelism) { is_data_parallelism(); }
Test(np3_server_sync, after_each_step_is_data_parallelism) { is_data_parallelism(); }

// The bits do not depend on times.
Test(np4_server_sync, a_run_repeats_by_itself) {
    uint64_t hash[2];
    daso_case c = case_of(2, 1);
    for (int i = 0; i < 2; i++) {
        trainer t;
        c.delay_us = i * 3000;
        c.train.build = build_smooth_mixed;
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
        server_train(&t, &c, 0, SERVER_STEPS);
        iso_assert_all(daso_equal(&t));
        iso_assert_ok(daso_own_hash(&t, &hash[i]));
        daso_close(&t);
    }
    iso_assert_all(hash[0] == hash[1]);
}

// Saved after an exchange, it goes on with the bits of a run that was not saved.
Test(np3_server_sync, goes_on_from_a_saved_state) {
    daso_case c = case_of(3, 0);
    uint64_t expected = daso_end_of(&c, 0, SERVER_STEPS - 1);
    iso_assert_all(daso_end_of(&c, 6, SERVER_STEPS - 1) == expected);
    iso_assert_all(daso_end_of(&c, 9, SERVER_STEPS - 1) == expected);
}

// ---- Faults ---------------------------------------------------------------------------------------

// A step of the workers may take longer than the time limit of waits.
Test(np3_server_sync, ranks_that_only_serve_wait_for_a_long_step) {
    trainer t;
    daso_case c = case_of(1, 1);
    setenv("ISO_TIMEOUT", "2", 1);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    server_train(&t, &c, 0, 2);
    if (!server_only(&c)) usleep(3000000);
    server_train(&t, &c, 2, SERVER_STEPS);
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
    unsetenv("ISO_TIMEOUT");
}

// All ranks get the error in the step of the exchange, and keep their parameters.
static void is_an_error_everywhere(int servers) {
    trainer t;
    uint64_t before, now;
    daso_case c = case_of(2, servers);
    c.train.hyper.lr = 0;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    server_train(&t, &c, 0, 2);
    iso_assert_ok(daso_drift(&t, test_rank == 1 ? INFINITY : server_only(&c) ? 0 : 0.1f));
    server_train(&t, &c, 2, 3);
    iso_assert_ok(daso_own_hash(&t, &before));
    iso_assert_all(server_try(&t, &c, 3, 4) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "rank 1"));
    iso_assert_ok(daso_own_hash(&t, &now));
    iso_assert_all(before == now);
    daso_close(&t);
}
Test(np3_server_sync, a_rank_that_fails_is_an_error_everywhere) {
    is_an_error_everywhere(0);
    is_an_error_everywhere(1);
}

Test(np2_server_sync, what_does_not_go_together_is_refused) {
    iso_daso_change any = {.step = 3, .cause = ISO_CAUSE_RANK, .rank = 1, .actions = 1};
    daso_case c = case_of(1, 0);
    c.daso.push = (iso_push)3;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "push is 3: use"));
    c = case_of(1, 0);
    c.daso.replay = &any;
    c.daso.replay_count = 1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "give it none"));
    c = case_of(1, 0);
    c.daso.server = c.daso.asynchronous = false;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "push is 1 without server"));
    c = case_of(1, 0);
    c.daso.push = test_rank ? ISO_PUSH_SYNC : ISO_PUSH_ASYNC;
    iso_assert_all(daso_refused(&c, ISO_ERR_MISMATCH, "push async"));
}
