// SPDX-License-Identifier: MIT
// Where NCCL cannot be used, and what fails: gradients take another way, or the error is told;
// nothing hangs.
#include "base/recording.h"
#include "common/nccl_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/trace.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Of the emulated GPU, where the build has that.
__attribute__((weak)) void emulated_fail_next(const char *function, int error);
__attribute__((weak)) void emulated_hold_copies_out(int hold);
__attribute__((weak)) size_t emulated_live_comms(void);
__attribute__((weak)) size_t emulated_live_streams(void);
__attribute__((weak)) size_t emulated_live_events(void);

TestSuite(np2_gpu_nccl_faults, .init = nccl_setup, .fini = test_mpi_teardown, .timeout = 60);
// What MPI was given by exchanges that are never completed stays.
static void finalize(void) {
    iso_comm_destroy(&test_comm);
    MPI_Finalize();
}
TestSuite(np4_gpu_nccl_faults, .init = nccl_setup, .fini = finalize, .timeout = 60);

// ---- Where NCCL cannot be used ----------------------------------------------------------------------

static iso_status open_shared(nccl_world *w, FILE *log, iso_scope scope) {
    iso_log_set_stream(log);
    *w = (nccl_world){.how = nccl_by_gpu};
    w->how.scope = scope;
    ISO_TRY(iso_device_create("cuda:0", &w->device));
    ISO_TRY(nccl_make_tensors(w));
    return nccl_make_reducer(w);
}

static bool says(FILE *log, const char *what) {
    char line[1024];
    bool found = false;
    rewind(log);
    while (fgets(line, sizeof(line), log)) found = found || strstr(line, what);
    return found;
}

Test(np2_gpu_nccl_faults, ranks_that_share_a_gpu_take_the_host_and_say_so) {
    nccl_skip();
    unsetenv("NCCL_HOSTID");
    static nccl_result got;
    nccl_world w;
    FILE *log = tmpfile();
    iso_assert_ok(open_shared(&w, log, ISO_SCOPE_WORLD));
    iso_assert_ok(nccl_run(&w, &got));
    iso_log_set_stream(stderr);
    nccl_destroy(&w);
    iso_assert_all(!got.stats.nccl && nccl_same_bits(&got, nccl_train_on_cpu(&nccl_by_gpu)));
    iso_assert_all(says(log, "share a GPU") == (test_rank == 0));
    fclose(log);
}

static void must_work(const char *per_node, const char *name, const char *expected) {
    nccl_skip();
    unsetenv("NCCL_HOSTID");
    setenv("ISO_RANKS_PER_NODE", per_node, 1);
    setenv("ISO_NODE_COLLECTIVE", name, 1);
    nccl_world w;
    iso_status status = open_shared(&w, stderr, ISO_SCOPE_WORLD);
    iso_assert_all(status == ISO_ERR_UNSUPPORTED && strstr(iso_last_error()->message, expected));
    nccl_destroy(&w);
}

Test(np2_gpu_nccl_faults, asked_for_by_name_it_must_work) {
    must_work("2", "nccl", "is nccl, but ranks 0 and 1 share a GPU");
}
Test(np2_gpu_nccl_faults, asked_for_between_nodes_it_must_work) {
    must_work("1", "nccl-all", "is nccl-all, but ranks 0 and 1 share a GPU");
}

Test(np2_gpu_nccl_faults, asked_for_by_name_it_must_work_where_it_is_used) {
    nccl_skip();
    unsetenv("NCCL_HOSTID");
    setenv("ISO_NODE_COLLECTIVE", "nccl", 1);
    nccl_world w;
    iso_assert_ok(open_shared(&w, stderr, ISO_SCOPE_RANK));
    iso_assert_ok(nccl_train_step(&w, 0));
    iso_status status = iso__reducer_set_scope(w.reducer, ISO_SCOPE_WORLD);
    iso_assert_all(status == ISO_ERR_UNSUPPORTED &&
                   strstr(iso_last_error()->message, "share a GPU"));
    iso_assert_ok(nccl_train_step(&w, 1)); // alone, as before
    nccl_destroy(&w);
}

// One rank's NCCL fails at once; the other's would wait for it, but nobody waits for that.
Test(np2_gpu_nccl_faults, takes_the_host_where_nccl_refuses) {
    setenv("ISO_EMULATED_NCCL_S", "5", 1);
    nccl_skip();
    if (!emulated_fail_next) test_mpi_skip("only the emulated GPU can be made to fail");
    if (test_rank == 1) emulated_fail_next("ncclCommInitRankConfig", 2 /* ncclSystemError */);
    int64_t start = iso_now();
    nccl_is_exact(nccl_by_gpu, false);
    iso_assert_all((double)(iso_now() - start) * 1e-9 < 4);
    sleep(6); // until the emulated NCCL gives up, so that nothing is left
}

// ---- Faults -----------------------------------------------------------------------------------------

// Seconds. A real GPU may be slow to start what it runs for the first time.
static double patience(void) { return emulated_fail_next ? 1.5 : 10; }

// A communicator with a short time-out in place of the one that everything uses.
static iso_comm *hurry(double seconds) {
    iso_comm *before = test_comm;
    iso_comm_config config = {.timeout_s = seconds};
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, &config, &test_comm));
    return before;
}

static void no_hurry(iso_comm *before) {
    iso_comm_destroy(&test_comm);
    test_comm = before;
}

// Rank 1 never comes to its second backward. Rank 0 has launched everything, and waits for its
// device.
static void a_rank_is_missing(bool shards) {
    if (shards) setenv("ISO_RANKS_PER_NODE", "2", 1);
    iso_comm *before = hurry(patience());
    nccl_world w;
    iso_assert_ok(nccl_create(&w, &nccl_by_gpu));
    iso_assert_ok(nccl_train_step(&w, 0));
    iso_assert_ok(iso_reducer_finish(w.reducer));
    int64_t start = iso_now();
    iso_status status = ISO_OK, later = ISO_OK;
    if (test_rank != 1) {
        status = nccl_train_step(&w, 1);
        later = w.device->ops->remote->finish(w.device); // must end, whatever has been computed
        if (status == ISO_OK) status = iso_reducer_finish(w.reducer);
    }
    double seconds = (double)(iso_now() - start) * 1e-9;
    const char *message = iso_last_error()->message;
    iso_assert_all(later == ISO_OK && seconds < patience() + 6.5);
    iso_assert_all(test_rank == 1 || status == ISO_ERR_TIMEOUT);
    char rank[24];
    snprintf(rank, sizeof(rank), "rank %d", test_rank % (shards ? 2 : test_size));
    iso_assert_all(test_rank != 0 ||
                   (strstr(message, "rank 1 on ") && strstr(message, " is late: ")));
    iso_assert_all(test_rank != 0 || (strstr(message, rank) && strstr(message, "\"e\"") &&
                                      strstr(message, shards ? "reduce-scatter" : "all-reduce")));
    iso_assert_all(test_rank == 1 || iso_reducer_param_needed(w.reducer, 0) < 0); // told again
    iso_log_set_stream(NULL);
    nccl_destroy(&w);
    iso_log_set_stream(stderr);
    no_hurry(before);
}

Test(np2_gpu_nccl_faults, a_rank_that_is_missing_is_told_of) {
    nccl_skip();
    a_rank_is_missing(false);
}

// What is missing is known before the time-out, and a wait for it leaves a mark for
// ISO_STEP_TIMEOUT.
static void setup_warning(void) {
    setenv("ISO_STALL_WARN", "0.4", 1);
    nccl_setup();
}
TestSuite(np3_gpu_nccl_stall, .init = setup_warning, .fini = test_mpi_teardown, .timeout = 60);

static bool leaves_marks(void) {
    atomic_exchange(&iso__alive_at, NULL);
    int64_t start = iso_now();
    while (iso_now() - start < 2000000000 && !atomic_load(&iso__alive_at)) usleep(1000);
    const char *mark = atomic_load(&iso__alive_at);
    return mark && strcmp(mark, "a wait for other ranks") == 0;
}

// Rank 2 comes late to its second backward; the others have launched everything.
Test(np3_gpu_nccl_stall, a_rank_that_is_late_is_named_in_a_warning) {
    nccl_skip();
    nccl_world w;
    FILE *log = tmpfile();
    iso_assert_ok(nccl_create(&w, &nccl_by_gpu));
    iso_assert_ok(nccl_train_step(&w, 0));
    iso_assert_ok(iso_reducer_finish(w.reducer));
    iso_log_set_stream(log);
    if (test_rank == 2) usleep(3000000);
    iso_status status = nccl_train_step(&w, 1);
    bool marked = test_rank == 2 || leaves_marks();
    if (status == ISO_OK) status = iso_reducer_finish(w.reducer);
    iso_log_set_stream(stderr);
    iso_assert_ok(status);
    iso_assert_all(marked);
    iso_assert_all(test_rank != 0 || says(log, " of \"e\" between 3 GPUs: rank 2 on "));
    iso_assert_all(!says(log, "rank 0 on ") && !says(log, "rank 1 on "));
    fclose(log);
    nccl_destroy(&w);
}

// Those of the other node wait for shards that never come.
Test(np4_gpu_nccl_faults, a_rank_that_is_missing_is_told_of_in_both_nodes) {
    nccl_skip();
    a_rank_is_missing(true);
}

Test(np2_gpu_nccl_faults, an_error_of_a_call_is_told) {
    nccl_skip();
    if (!emulated_fail_next) test_mpi_skip("only the emulated GPU can be made to fail");
    iso_comm *before = hurry(patience());
    nccl_world w;
    iso_assert_ok(nccl_create(&w, &nccl_by_gpu));
    if (test_rank == 0) emulated_fail_next("ncclAllReduce", 2 /* ncclSystemError */);
    iso_status status = nccl_train_step(&w, 0);
    if (status == ISO_OK) status = iso_reducer_finish(w.reducer);
    iso_assert_all(status == (test_rank == 0 ? ISO_ERR_DEVICE : ISO_ERR_TIMEOUT));
    iso_assert_all(test_rank > 0 || strstr(iso_last_error()->message, "the all-reduce of \"e\""));
    iso_log_set_stream(NULL);
    nccl_destroy(&w);
    iso_log_set_stream(stderr);
    no_hurry(before);
}

// ---- Shards that do not come to the host ------------------------------------------------------------

static iso_status train_two_steps(nccl_world *w) {
    for (int step = 0; step < 2; step++) ISO_TRY(nccl_train_step(w, step));
    return iso_reducer_finish(w->reducer);
}

static void two_steps_on_cpu(nccl_result *out) {
    nccl_world w;
    nccl_variant how = {.exact = true};
    iso_assert_ok(nccl_create(&w, &how));
    iso_assert_ok(train_two_steps(&w));
    iso_assert_ok(nccl_take_values(&w, out));
    nccl_destroy(&w);
}

// The second step of two, with copies to the host that stand still where `mine` says so.
static iso_status step_with_held_copies(nccl_world *w, bool mine) {
    iso_assert_ok(nccl_train_step(w, 0));
    iso_assert_ok(iso_reducer_finish(w->reducer));
    MPI_Barrier(MPI_COMM_WORLD);
    emulated_hold_copies_out(mine);
    iso_status status = nccl_train_step(w, 1);
    if (status == ISO_OK) status = iso_reducer_finish(w->reducer);
    return status;
}

// The node's sums are complete, so NCCL sees nothing wrong; but what the host would send on, and
// share out again, is still that of the step before.
static void copies_are_held(bool on_all_ranks) {
    static nccl_result want, got;
    nccl_world w;
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    two_steps_on_cpu(&want);
    iso_comm *before = hurry(patience());
    iso_assert_ok(nccl_create(&w, &nccl_by_gpu));
    iso_status status = step_with_held_copies(&w, on_all_ranks || test_rank == 0);
    const char *message = iso_last_error()->message;
    bool held = on_all_ranks || test_rank == 0;
    iso_assert_all(status == ISO_ERR_TIMEOUT);
    iso_assert_all(!held || strstr(message, "from device cuda"));
    emulated_hold_copies_out(0);
    MPI_Barrier(MPI_COMM_WORLD);
    // What is asked for again is an error again, or the sums that have come meanwhile.
    status = iso_reducer_finish(w.reducer);
    if (status == ISO_OK) status = nccl_take_values(&w, &got);
    iso_assert_all(status < 0 || nccl_same_bits(&want, &got));
    iso_log_set_stream(NULL);
    nccl_destroy(&w);
    iso_log_set_stream(stderr);
    no_hurry(before);
}

Test(np4_gpu_nccl_faults, shards_that_do_not_reach_the_host_are_not_gathered) {
    nccl_skip();
    if (!emulated_hold_copies_out) test_mpi_skip("only the emulated GPU can hold copies");
    copies_are_held(true);
}

Test(np4_gpu_nccl_faults, one_rank_whose_shards_do_not_reach_the_host_is_told_of) {
    nccl_skip();
    if (!emulated_hold_copies_out) test_mpi_skip("only the emulated GPU can hold copies");
    copies_are_held(false);
}

// Without NCCL, gradients are copied to the host first. ISO_STEP_TIMEOUT tells by a mark that a
// rank waits for this copy, which ISO_TIMEOUT limits.
Test(np2_gpu_nccl_faults, a_wait_for_a_copy_leaves_a_mark) {
    nccl_skip();
    if (!emulated_hold_copies_out) test_mpi_skip("only the emulated GPU can hold copies");
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    iso_comm *before = hurry(patience());
    nccl_world w;
    iso_assert_ok(nccl_create(&w, &nccl_by_gpu));
    atomic_exchange(&iso__alive_at, NULL);
    iso_status status = step_with_held_copies(&w, true);
    const char *mark = atomic_load(&iso__alive_at);
    iso_assert_all(status == ISO_ERR_TIMEOUT);
    iso_assert_all(strstr(iso_last_error()->message, "from device cuda"));
    iso_assert_all(mark && strcmp(mark, "a wait for a copy from the device") == 0);
    emulated_hold_copies_out(0);
    iso_log_set_stream(NULL);
    nccl_destroy(&w);
    iso_log_set_stream(stderr);
    no_hurry(before);
}

Test(np2_gpu_nccl_faults, nothing_is_left) {
    nccl_skip();
    if (!emulated_live_comms) test_mpi_skip("only the emulated GPU counts");
    size_t streams = emulated_live_streams(), events = emulated_live_events();
    nccl_train(&nccl_by_gpu);
    iso_assert_all(emulated_live_comms() == 0 && emulated_live_streams() == streams &&
                   emulated_live_events() == events);
}
