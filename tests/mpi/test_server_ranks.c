// SPDX-License-Identifier: MIT
// Ranks that only serve the asynchronous parameter server, behind those that train.
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/server_fixture.h"
#include "common/types_fixture.h"

#include "base/base.h"

#include <isotherm/stop.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np2_server_ranks, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_server_ranks, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_server_ranks, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

static daso_case case_of(int servers) {
    daso_case c = server_case(0);
    c.daso.servers = servers;
    return c;
}

// ---- The model ------------------------------------------------------------------------------------

Test(np2_server_ranks, serving_in_the_order_told_gives_the_bits) {
    server_follows_the_model(build_smooth, 0, SERVER_PERIOD, 1);
}
Test(np3_server_ranks, serving_in_the_order_told_gives_the_bits) {
    server_follows_the_model(build_smooth_mixed, 0, 1, 1);
}
Test(np4_server_ranks, serving_in_the_order_told_gives_the_bits) {
    server_follows_the_model(build_smooth_wide, 1, 3, 2);
}
Test(np4_server_ranks, more_of_them_than_workers_give_the_bits) {
    server_follows_the_model(build_smooth_mixed, 0, 1, 3);
}

Test(np3_server_ranks, a_run_repeats) { server_repeats(build_smooth, 0, 1); }
Test(np4_server_ranks, a_run_repeats) { server_repeats(build_smooth_mixed, 0, 2); }

// ---- While they wait ------------------------------------------------------------------------------

static iso_status meet_in_barrier(iso_comm *comm) { return iso_comm_barrier(comm); }

static iso_status meet_in_sum(iso_comm *comm) {
    double sums[8] = {1};
    iso_request *request;
    ISO_TRY(iso_comm_iallreduce(comm, sums, 8, ISO_F64, "a sum", &request));
    return iso_request_wait(&request);
}

static iso_status meet_to_stop(iso_comm *comm) {
    iso_stop *stop;
    bool stops;
    ISO_TRY(iso_stop_create(comm, &stop));
    iso_status status = iso_stop_check_now(stop, &stops);
    iso_stop_destroy(&stop);
    return status;
}

// The last rank makes one step, and waits. Meanwhile the workers merge its answers. Then it makes
// the other steps.
static void serves_while_it_waits(iso_status (*meet)(iso_comm *comm)) {
    trainer t;
    iso_daso_stats stats = {0};
    daso_case c = case_of(1);
    enum { MANY = 100000 };
    int steps = 1, merges = 0;
    bool serves = server_only(&c);
    c.daso.total_steps = MANY;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_status status = serves ? server_try(&t, &c, 0, 1) : ISO_OK;
    for (steps = 0; !serves && merges < 3 && steps < MANY / 2 && status == ISO_OK; steps++) {
        status = server_step_with(&t, &c, 1 - test_rank, steps, steps + 1);
        if (status == ISO_OK) status = iso_daso_get_stats(t.optimizer, &stats);
        int mine = (int)stats.syncs;
        MPI_Sendrecv(&mine, 1, MPI_INT, 1 - test_rank, 0, &merges, 1, MPI_INT, 1 - test_rank, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        merges = mine < merges ? mine : merges;
    }
    iso_status met = meet(t.comm);
    MPI_Bcast(&steps, 1, MPI_INT, 0, MPI_COMM_WORLD);
    iso_assert_ok(status);
    iso_assert_ok(met);
    iso_assert_all(serves || merges == 3);
    iso_assert_ok(serves ? server_try(&t, &c, 1, steps) : ISO_OK);
    iso_assert_ok(iso_daso_complete(t.optimizer));
    iso_assert_all(daso_equal(&t));
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(stats.bytes_sent > 0 && !stats.pending && (stats.syncs > 0) == !serves);
    daso_close(&t);
}
Test(np3_server_ranks, serve_in_a_barrier) { serves_while_it_waits(meet_in_barrier); }
Test(np3_server_ranks, serve_in_a_sum) { serves_while_it_waits(meet_in_sum); }
Test(np3_server_ranks, serve_where_ranks_agree_to_stop) { serves_while_it_waits(meet_to_stop); }

// An epoch takes longer than the time limits, also without a push.
static void serves_for_long(int64_t period, bool in_barrier) {
    trainer t;
    daso_case c = case_of(1);
    c.daso.global_skip = period;
    setenv("ISO_TIMEOUT", "2", 1);
    setenv("ISO_STEP_TIMEOUT", "3", 1);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_status status = ISO_OK;
    for (int step = 0; step < 18 && status == ISO_OK; step++) {
        if (!server_only(&c)) usleep(250000);
        status = server_try(&t, &c, step, step + 1);
    }
    if (in_barrier && status == ISO_OK) status = iso_comm_barrier(t.comm);
    iso_assert_ok(status < 0 ? status : iso_daso_complete(t.optimizer));
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
    unsetenv("ISO_TIMEOUT");
    unsetenv("ISO_STEP_TIMEOUT");
}
Test(np3_server_ranks, are_not_late_in_a_barrier) { serves_for_long(1, true); }
Test(np3_server_ranks, are_not_late_where_ranks_meet) { serves_for_long(1, false); }
Test(np3_server_ranks, are_not_late_without_a_push) { serves_for_long(100, false); }
Test(np3_server_ranks, are_not_late_in_a_barrier_without_a_push) { serves_for_long(100, true); }

// They know nothing of the server once it is gone.
Test(np3_server_ranks, wait_as_ever_after_the_end) {
    trainer t;
    daso_case c = case_of(1);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    server_train(&t, &c, 0, 3);
    iso_assert_ok(iso_daso_complete(t.optimizer));
    iso_comm *comm = iso_comm_retain(t.comm);
    daso_close(&t);
    iso_assert_ok(iso_comm_barrier(comm));
    iso_assert_ok(meet_in_sum(comm));
    iso_comm_destroy(&comm);
}

// ---- What they learn ------------------------------------------------------------------------------

// The loss falls as with as many ranks that do both, and a rank that only serves has the
// parameters.
Test(np4_server_ranks, train_the_model) {
    trainer t;
    double first, last;
    daso_case c = case_of(2);
    c.daso.total_steps = 60;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    bool serves = server_only(&c);
    iso_assert_ok(serves ? server_try(&t, &c, 0, 1) : trainer_step(&t, 0, &first));
    server_train(&t, &c, 1, 59);
    iso_assert_ok(serves ? server_try(&t, &c, 59, 60) : trainer_step(&t, 59, &last));
    iso_assert_all(serves || last < 0.8 * first);
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
}

// ---- Saved state ----------------------------------------------------------------------------------

static void save_run(int servers) {
    trainer t;
    daso_case c = case_of(servers);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    server_train(&t, &c, 0, 5);
    iso_assert_ok(daso_exchange_state(&t, 5, true));
    daso_close(&t);
}

static void is_refused(int servers) {
    trainer t;
    daso_case c = case_of(servers);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_all(daso_exchange_state(&t, 5, false) == ISO_ERR_MISMATCH);
    daso_close(&t);
}

Test(np3_server_ranks, another_number_of_them_cannot_go_on) {
    save_run(1);
    is_refused(0);
    is_refused(2);
}
Test(np3_server_ranks, a_state_without_them_is_not_theirs) {
    save_run(0);
    is_refused(1);
}

// ---- Faults ---------------------------------------------------------------------------------------

Test(np3_server_ranks, what_does_not_go_together_is_refused) {
    trainer t;
    daso_case c = case_of(-1);
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "servers is -1"));
    c = case_of(3);
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "at least one rank must train"));
    c = case_of(1 + test_rank / 2);
    iso_assert_all(daso_refused(&c, ISO_ERR_MISMATCH, "servers"));
    c = case_of(1);
    c.daso.warmup_steps = 2;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "no warm-up"));
    c = case_of(1);
    c.daso.cooldown_steps = 2;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "no cool-down"));
    c = case_of(1);
    c.daso.server = false;
    c.daso.global_skip = 1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "without server"));
    c = case_of(1);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_all(iso_daso_reset(t.optimizer) == ISO_ERR_UNSUPPORTED);
    daso_close(&t);
}

// Two would take each other's place while ranks wait.
Test(np3_server_ranks, another_server_needs_a_communicator_of_its_own) {
    trainer t, u;
    daso_case c = case_of(1);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    trainer_config other = c.train;
    other.rows = 2 * test_size;
    iso_assert_ok(trainer_create(&u, t.comm, &other));
    iso_status status = iso_daso_create_take(u.optimizer, u.model, &c.daso, &u.optimizer);
    iso_assert_all(status == ISO_ERR_STATE && strstr(iso_last_error()->message, "of its own"));
    trainer_destroy(&u);
    server_train(&t, &c, 0, SERVER_STEPS);
    iso_assert_all(daso_equal(&t));
    daso_close(&t);
}

Test(np3_server_ranks, what_other_ranks_served_is_not_repeated) {
    daso_case c = case_of(1);
    iso_daso_change wrong = {.step = 3, .cause = ISO_CAUSE_RANK, .rank = 1, .actions = 2};
    c.daso.replay = &wrong;
    c.daso.replay_count = 1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "which no worker")); // merged rank 0's answer
    wrong.actions = 1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "which no worker"));
}

// Workers get the error where ranks meet, and the rank that only serves does, too.
Test(np3_server_ranks, a_worker_that_fails_is_an_error_everywhere) {
    trainer t;
    daso_case c = case_of(1);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    server_train(&t, &c, 0, 3);
    // With nothing under way, the next period of rank 1 pushes, however late the servers are.
    iso_assert_ok(iso_daso_complete(t.optimizer));
    iso_assert_ok(test_rank == 1 ? daso_drift(&t, INFINITY) : ISO_OK);
    bool failed = server_try(&t, &c, 3, SERVER_STEPS - 1) == ISO_ERR_STATE;
    iso_assert_all(failed == (test_rank == 1));
    iso_assert_all(iso_daso_complete(t.optimizer) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "rank 1"));
    daso_close(&t);
}
