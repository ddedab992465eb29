// SPDX-License-Identifier: MIT
// The asynchronous parameter server: each rank pushes its changes to all ranks, each of which
// serves a shard, and merges their answers at its own steps.
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/server_fixture.h"
#include "common/tensor_access.h"
#include "common/types_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_server, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_server, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_server, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_server, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

// ---- One rank -------------------------------------------------------------------------------------

// It has nobody to share with.
Test(np1_server, one_worker_has_the_bits_of_local_training) {
    uint64_t expected, hash;
    for (int64_t warmup = 0; warmup <= 3; warmup += 3) {
        daso_case c = server_case(warmup);
        trainer_config alone = c.train;
        alone.rows = 2;
        iso_assert_ok(trainer_run(test_comm, &alone, SERVER_STEPS, &expected));
        iso_assert_ok(daso_hash(MPI_COMM_WORLD, &c, 0, &hash));
        iso_assert_all(hash == expected);
    }
}

// ---- The model ------------------------------------------------------------------------------------

static void has_its_bits(void) { server_follows_the_model(build_smooth, 0, SERVER_PERIOD, 0); }
static void of_both_types(void) { server_follows_the_model(build_smooth_mixed, 0, 1, 0); }
static void scaled(void) { server_follows_the_model(build_smooth_wide, 1, 3, 0); }
Test(np2_server, serving_in_the_order_told_gives_the_bits) { has_its_bits(); }
Test(np3_server, serving_in_the_order_told_gives_the_bits) { has_its_bits(); }
Test(np4_server, serving_in_the_order_told_gives_the_bits) { has_its_bits(); }
Test(np2_server, both_types_follow_the_model) { of_both_types(); }
Test(np3_server, both_types_follow_the_model) { of_both_types(); }
Test(np4_server, both_types_follow_the_model) { of_both_types(); }
Test(np3_server, a_scale_follows_the_model) { scaled(); }
Test(np4_server, a_scale_follows_the_model) { scaled(); }

// ---- As messages arrive ---------------------------------------------------------------------------

// The last rank makes no step before the others have made all but the last one: none of them waits,
// and they merge each other's shards all the while.
static void runs_with_a_late_rank(void) {
    trainer t;
    iso_daso_stats stats;
    daso_case c = server_case(0);
    char token = 0;
    bool late = test_rank == test_size - 1;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    for (int r = 0; late && r < test_size - 1; r++)
        MPI_Recv(&token, 1, MPI_CHAR, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    iso_status status = late ? server_try(&t, &c, 0, SERVER_STEPS - 1)
                             : server_step_with(&t, &c, 1 - test_rank, 0, SERVER_STEPS - 1);
    iso_status known = iso_daso_get_stats(t.optimizer, &stats);
    if (!late) MPI_Send(&token, 1, MPI_CHAR, test_size - 1, 0, MPI_COMM_WORLD);
    iso_assert_ok(status < 0 ? status : known);
    iso_assert_all(late || (stats.syncs >= 3 && stats.pending));
    server_train(&t, &c, SERVER_STEPS - 1, SERVER_STEPS);
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(daso_equal(&t) && !stats.pending && stats.bytes_sent > 0);
    daso_close(&t);
}

Test(np3_server, a_late_rank_holds_nobody_up) { runs_with_a_late_rank(); }
Test(np3_server, messages_do_not_disturb_the_comparison_of_collectives) {
    setenv("ISO_DEBUG", "detail", 1);
    runs_with_a_late_rank();
    unsetenv("ISO_DEBUG");
}

Test(np2_server, a_run_repeats) { server_repeats(build_smooth, 3, 0); }
Test(np3_server, a_run_repeats) { server_repeats(build_smooth_mixed, 0, 0); }
Test(np4_server, a_run_repeats) { server_repeats(build_smooth, 2, 0); }

// Once all messages have been sent in both directions.
Test(np2_server, steps_allocate_nothing) {
    trainer t;
    long long before, after;
    daso_case c = server_case(0);
    c.daso.total_steps = 200;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(server_step_with(&t, &c, 1 - test_rank, 0, 20));
    iso_memory_balance(NULL, NULL, &before);
    iso_status status = server_step_with(&t, &c, 1 - test_rank, 20, 60);
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_ok(status);
    iso_assert_all(after == before);
    daso_close(&t);
}

// ---- Other ends -----------------------------------------------------------------------------------

// After a cool-down, after a finish in the middle, and after a reset.
Test(np3_server, all_ends_are_equal) {
    trainer t;
    daso_case c = server_case(2);
    c.daso.cooldown_steps = 4;
    c.delay_us = 1000;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    server_train(&t, &c, 0, 9);
    iso_assert_ok(iso_daso_finish(t.optimizer));
    iso_assert_all(daso_equal(&t));
    server_train(&t, &c, 9, SERVER_STEPS);
    iso_assert_all(daso_equal(&t));
    iso_assert_ok(iso_daso_reset(t.optimizer));
    server_train(&t, &c, 0, 5);
    daso_close(&t); // while pushes are under way
}

// More ranks than elements of a type: some shards are empty.
static iso_status build_tiny(iso_device *device, bool dropout, iso_module **out) {
    iso_rng rng = {.seed = 3};
    iso_module *m, *net;
    (void)dropout;
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(iso_flatten_create(device, &m));
    ISO_TRY(iso_sequential_add_take(net, "flatten", m));
    ISO_TRY(iso_linear_create(device, TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE, 1, true, &rng,
                              &m));
    ISO_TRY(iso_sequential_add_take(net, "fc1", m));
    ISO_TRY(iso_linear_create(device, 1, TRAINER_CLASSES, false, &rng, &m));
    ISO_TRY(iso_sequential_add_take(net, "fc2", m));
    *out = net;
    return ISO_OK;
}
Test(np4_server, odd_sizes_follow_the_model) { server_follows_the_model(build_tiny, 0, 1, 0); }

// ---- Faults ---------------------------------------------------------------------------------------

// Whether this rank's parameters are all finite.
static bool is_finite(trainer *t) {
    int64_t count;
    bool finite = true;
    float *values = daso_values(t, &count);
    for (int64_t i = 0; values && i < count; i++) finite = finite && isfinite(values[i]);
    free(values);
    return values && finite;
}

// The rank gets the error in its next push, the others where ranks meet. None waits in vain, and
// nothing that is not finite reaches another rank.
Test(np3_server, a_rank_that_fails_is_an_error_everywhere) {
    trainer t;
    bool failed = false;
    daso_case c = server_case(0);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    server_train(&t, &c, 0, 3);
    iso_assert_ok(test_rank == 1 ? daso_drift(&t, INFINITY) : ISO_OK);
    for (int step = 3; step < SERVER_STEPS - 1; step++)
        failed = trainer_step(&t, step, NULL) == ISO_ERR_STATE || failed;
    iso_assert_all(failed == (test_rank == 1));
    iso_assert_all(iso_daso_complete(t.optimizer) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "rank 1"));
    iso_assert_all(strstr(iso_last_error()->message, "not finite"));
    iso_assert_ok(iso_daso_complete(t.optimizer)); // nothing is under way
    iso_assert_all(is_finite(&t) == (test_rank != 1));
    daso_close(&t);
}

// What is refused counts as not pushed: a parameter that is mended is pushed again.
Test(np2_server, a_refused_push_is_not_forgotten) {
    trainer t;
    daso_case c = server_case(0);
    iso_parameter_list list;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    server_train(&t, &c, 0, 4);
    iso_assert_ok(iso_data_parallel_finish(t.model));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    iso_tensor *value = list.item[0]->value;
    float healthy = test_rank == 1 ? tensor_swap(value, 0, INFINITY) : 0;
    bool failed = false;
    for (int step = 4; test_rank == 1 && step < SERVER_STEPS / 2 && !failed; step++) {
        iso_optimizer_zero_grad(t.optimizer);
        failed = trainer_step(&t, step, NULL) == ISO_ERR_STATE;
    }
    iso_assert_all(failed == (test_rank == 1));
    // Its gradients were not finite, either: all parameters become finite again.
    for (int i = 0; test_rank == 1 && i < list.count; i++)
        for (int64_t k = 0; k < iso_tensor_count(list.item[i]->value); k++)
            tensor_swap(list.item[i]->value, k, healthy);
    iso_parameter_list_destroy(&list);
    iso_assert_ok(iso_daso_complete(t.optimizer));
    iso_assert_all(is_finite(&t));
    daso_close(&t);
}

Test(np2_server, what_does_not_go_together_is_refused) {
    iso_daso_change wrong = {.step = 3, .cause = ISO_CAUSE_RANK, .rank = 1, .actions = 3};
    daso_case c = server_case(0);
    c.daso.outer = &iso_outer_slowmo;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "asynchronous needs"));
    c = server_case(0);
    c.daso.wire = ISO_WIRE_BF16;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "server needs"));
    c = server_case(0);
    c.daso.asynchronous = false;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "server needs"));
    c = server_case(0);
    c.daso.push_scale = -1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "push_scale is -1"));
    c.daso.push_scale = 1e39; // not an f32
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "push_scale is 1e+39"));
    c.daso.push_scale = 1 + test_rank;
    iso_assert_all(daso_refused(&c, ISO_ERR_MISMATCH, "server is push_scale"));
    c = server_case(0);
    c.daso.server = false;
    c.daso.global_skip = 1;
    c.daso.push_scale = 1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "without server"));
    c = server_case(0);
    c.daso.replay = &wrong;
    c.daso.replay_count = 1;
    iso_assert_all(daso_refused(&c, ISO_ERR_ARG, "which no worker"));
}

// ---- A rank that comes late -----------------------------------------------------------------------

static void setup_warning(void) {
    setenv("ISO_STALL_WARN", "0.4", 1);
    resume_setup();
}
TestSuite(np3_server_late, .init = setup_warning, .fini = resume_teardown, .timeout = 60);

Test(np3_server_late, is_named_where_ranks_meet) {
    trainer t;
    daso_case c = server_case(0);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    server_train(&t, &c, 0, 7);
    log_capture(); // a busy machine warns of other waits, too
    if (test_rank == test_size - 1) usleep(SLOW);
    iso_assert_ok(iso_daso_complete(t.optimizer));
    iso_assert_all(daso_equal(&t));
    bool said = test_rank > 0 || log_said("\"parameter server: all ranks meet\": rank 2 on ", 100);
    iso_assert_all(said);
    daso_close(&t);
}

// The rank that did not wait long enough is told so again. It neither takes its parameters for
// those of all ranks, nor trains on. No take-down: messages stay under way.
TestSuite(np2_server_lost, .init = resume_setup, .timeout = 60);

Test(np2_server_lost, a_meeting_that_failed_is_an_error_from_then_on) {
    trainer t;
    daso_case c = server_case(0);
    setenv("ISO_TIMEOUT", "1", 1);
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    server_train(&t, &c, 0, 7);
    MPI_Barrier(MPI_COMM_WORLD);
    if (test_rank == 1) usleep(SLOW);
    iso_assert_all(iso_daso_complete(t.optimizer) == ISO_ERR_TIMEOUT);
    iso_assert_all(iso_daso_complete(t.optimizer) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, "did not meet"));
    iso_assert_all(trainer_step(&t, 7, NULL) == ISO_ERR_STATE);
    daso_close(&t); // without another wait
    MPI_Finalize();
}
