// SPDX-License-Identifier: MIT
// Gradients of several GPUs, summed by NCCL: the same as through the host, in every scope and at
// every speed of the ranks.
#include "common/nccl_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>

// Of the emulated GPU, where the build has that.
__attribute__((weak)) size_t emulated_live_comms(void);

// With .timeout a rank that hangs ends the test.
TestSuite(np2_gpu_nccl, .init = nccl_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_gpu_nccl, .init = nccl_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_gpu_nccl, .init = nccl_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- One node ---------------------------------------------------------------------------------------

Test(np2_gpu_nccl, gives_what_the_cpu_gives) {
    nccl_skip();
    for (int average = 0; average <= ISO_AVERAGE_SUM; average++) {
        nccl_variant how = nccl_by_gpu;
        how.average = (iso_average_mode)average;
        nccl_is_exact(how, true);
    }
}

Test(np4_gpu_nccl, gives_what_the_cpu_gives) {
    nccl_skip();
    nccl_is_exact(nccl_by_gpu, true);
    nccl_variant how = nccl_by_gpu;
    how.sync = ISO_SYNC_BLOCKING;
    nccl_is_exact(how, true);
}

Test(np2_gpu_nccl, the_way_through_the_host_stays) {
    nccl_skip();
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    nccl_is_exact(nccl_by_gpu, false);
}

Test(np3_gpu_nccl, ranks_agree_and_the_host_nearly_does) {
    nccl_skip();
    nccl_variant how = nccl_by_gpu;
    how.exact = false;
    const nccl_result *nccl = nccl_train(&how);
    iso_assert_all(nccl->stats.nccl);
    iso_assert_all(nccl_same_on_all_ranks(nccl));
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    const nccl_result *host = nccl_train(&how);
    iso_assert_all(!host->stats.nccl && nccl_distance(nccl, host) < 1e-5);
}

static void lazy_is_blocking(nccl_variant how) {
    how.exact = false;
    how.sync = ISO_SYNC_BLOCKING;
    const nccl_result *blocking = nccl_train(&how);
    how.sync = ISO_SYNC_LAZY;
    how.slow = true;
    const nccl_result *lazy = nccl_train(&how);
    iso_assert_all(blocking->stats.nccl && lazy->stats.nccl);
    iso_assert_all(nccl_same_bits(blocking, lazy));
}

Test(np4_gpu_nccl, lazy_is_blocking_at_any_speed_and_order) {
    nccl_skip();
    lazy_is_blocking(nccl_by_gpu);
}

static bool nothing_travels(const nccl_result *r) {
    return r->stats.bytes_world == 0 && r->stats.bytes_node == 0;
}

// A hook that converts works on the host.
Test(np2_gpu_nccl, a_hook_that_converts_stays_on_the_host) {
    nccl_skip();
    nccl_variant how = nccl_by_gpu;
    how.hook = &iso_hook_bf16;
    const nccl_result *r = nccl_train(&how);
    iso_assert_all(!r->stats.nccl && !nothing_travels(r));
}

Test(np2_gpu_nccl, weights_count_before_the_sum) {
    nccl_skip();
    nccl_result got, want;
    for (int gpu = 0; gpu < 2; gpu++) {
        nccl_variant how = nccl_by_gpu;
        nccl_world w;
        how.gpu = gpu;
        iso_assert_ok(nccl_create(&w, &how));
        iso_assert_ok(iso_reducer_set_weight(w.reducer, test_rank ? 0.25 : 1.75, 2));
        iso_assert_ok(nccl_run(&w, gpu ? &got : &want));
        nccl_destroy(&w);
    }
    iso_assert_all(got.stats.nccl && nccl_same_bits(&got, &want));
}

// In one node, by shards, and by NCCL between nodes.
Test(np4_gpu_nccl, measures_an_exchange) {
    nccl_skip();
    for (int way = 0; way < 3; way++) {
        nccl_world w;
        double ms = 0;
        setenv("ISO_RANKS_PER_NODE", way == 0 ? "4" : "2", 1);
        setenv("ISO_NODE_COLLECTIVE", way == 2 ? "nccl-all" : "auto", 1);
        iso_assert_ok(nccl_create(&w, &nccl_by_gpu));
        iso_assert_ok(iso_reducer_measure_exchange(w.reducer, 3, &ms));
        iso_assert_all(ms > 0);
        iso_assert_ok(iso_reducer_measure_exchange(w.reducer, 1, &ms)); // and again
        nccl_destroy(&w);
    }
}

// ---- Several nodes ----------------------------------------------------------------------------------

Test(np4_gpu_nccl, shards_give_what_the_cpu_gives) {
    nccl_skip();
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    for (int average = 0; average <= ISO_AVERAGE_SUM; average++) {
        nccl_variant how = nccl_by_gpu;
        how.average = (iso_average_mode)average;
        nccl_is_exact(how, true);
    }
}

Test(np4_gpu_nccl, shards_are_half_of_what_goes_between_nodes) {
    nccl_skip();
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    const nccl_result *r = nccl_train(&nccl_by_gpu);
    iso_assert_all(r->stats.bytes_node == NCCL_STEPS * (long long)r->stats.bytes_per_step);
    iso_assert_all(2 * r->stats.bytes_world == r->stats.bytes_node);
}

Test(np4_gpu_nccl, shards_lazy_are_blocking_at_any_speed_and_order) {
    nccl_skip();
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    lazy_is_blocking(nccl_by_gpu);
}

// It gathers shards in the order of the buckets, the others as the forward needs them.
Test(np4_gpu_nccl, a_rank_that_finishes_alone_fits_in) {
    nccl_skip();
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    nccl_variant how = nccl_by_gpu;
    how.alone = true;
    nccl_is_exact(how, true);
}

Test(np4_gpu_nccl, a_hook_converts_shards) {
    nccl_skip();
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    nccl_variant how = nccl_by_gpu;
    how.exact = false;
    const nccl_result *plain = nccl_train(&how);
    how.hook = &iso_hook_bf16;
    const nccl_result *half = nccl_train(&how);
    iso_assert_all(half->stats.nccl && nccl_same_on_all_ranks(half));
    iso_assert_all(2 * half->stats.bytes_world < 3 * plain->stats.bytes_world / 2);
    double apart = nccl_distance(plain, half);
    iso_assert_all(apart > 0 && apart < 0.02);
}

Test(np3_gpu_nccl, nodes_of_different_sizes_take_the_host) {
    nccl_skip();
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    nccl_variant how = nccl_by_gpu;
    how.average = ISO_AVERAGE_SUM; // a third is not exact
    nccl_is_exact(how, false);
}

// ---- NCCL between nodes -----------------------------------------------------------------------------

static void span_nodes(const char *per_node) {
    setenv("ISO_RANKS_PER_NODE", per_node, 1);
    setenv("ISO_NODE_COLLECTIVE", "nccl-all", 1);
}

// MPI sums nothing.
Test(np4_gpu_nccl, between_nodes_it_gives_what_the_cpu_gives) {
    nccl_skip();
    span_nodes("2");
    for (int average = 0; average <= ISO_AVERAGE_SUM; average++) {
        nccl_variant how = nccl_by_gpu;
        how.average = (iso_average_mode)average;
        nccl_is_exact(how, true);
    }
    const nccl_result *r = nccl_train(&nccl_by_gpu);
    iso_assert_all(r->stats.bytes_node == 0);
    iso_assert_all(r->stats.bytes_world == NCCL_STEPS * (long long)r->stats.bytes_per_step);
}

Test(np4_gpu_nccl, between_nodes_lazy_is_blocking_at_any_speed_and_order) {
    nccl_skip();
    span_nodes("1");
    lazy_is_blocking(nccl_by_gpu);
}

// A ring of 3 ranks on 2 nodes leaves a node twice. In each step every link of it carries 2 * 2 / 3
// of the bytes.
Test(np3_gpu_nccl, between_nodes_of_different_sizes_too) {
    nccl_skip();
    span_nodes("2");
    nccl_variant how = nccl_by_gpu;
    how.average = ISO_AVERAGE_SUM;
    nccl_is_exact(how, true);
    const nccl_result *r = nccl_train(&how);
    int64_t between = r->stats.bytes_between_nodes;
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, &between, 1, ISO_SUM));
    int64_t bytes = NCCL_STEPS * (int64_t)r->stats.bytes_per_step;
    iso_assert_all(llabs(3 * between - 8 * bytes) <= 3 * NCCL_STEPS * NCCL_PARAMS);
}

// As without nccl-all: NCCL inside nodes, and converted shards between them.
Test(np4_gpu_nccl, a_hook_that_converts_takes_shards_between_nodes) {
    nccl_skip();
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    nccl_variant how = nccl_by_gpu;
    how.hook = &iso_hook_bf16;
    const nccl_result *shards = nccl_train(&how);
    span_nodes("2");
    const nccl_result *r = nccl_train(&how);
    iso_assert_all(r->stats.nccl && nccl_same_bits(r, shards));
    iso_assert_all(r->stats.bytes_world == shards->stats.bytes_world);
}

static iso_status train_switching(nccl_world *w, nccl_result *out) {
    static const iso_scope scopes[] = {ISO_SCOPE_WORLD, ISO_SCOPE_NODE, ISO_SCOPE_RANK,
                                       ISO_SCOPE_NODE, ISO_SCOPE_WORLD};
    for (int s = 0, step = 0; s < 5; s++) {
        ISO_TRY(iso__reducer_set_scope(w->reducer, scopes[s]));
        ISO_TRY(nccl_find_places(w));
        for (int k = 0; k < 2; k++, step++) ISO_TRY(nccl_train_step(w, step));
    }
    ISO_TRY(iso_reducer_finish(w->reducer));
    return nccl_take_values(w, out);
}

static void scopes_take_turns(iso_scope first) {
    nccl_result got, want;
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    for (int gpu = 0; gpu < 2; gpu++) {
        nccl_variant how = nccl_by_gpu;
        nccl_world w;
        how.gpu = how.slow = gpu;
        how.scope = first;
        iso_assert_ok(nccl_create(&w, &how));
        iso_assert_ok(train_switching(&w, gpu ? &got : &want));
        nccl_destroy(&w);
    }
    iso_assert_all(nccl_same_bits(&got, &want));
}

Test(np4_gpu_nccl, scopes_take_turns) {
    nccl_skip();
    scopes_take_turns(ISO_SCOPE_WORLD);
}

Test(np4_gpu_nccl, scopes_take_turns_where_nccl_spans_nodes) {
    nccl_skip();
    setenv("ISO_NODE_COLLECTIVE", "nccl-all", 1);
    scopes_take_turns(ISO_SCOPE_NODE);
}

// The host's memory is shared where it lies, after the device has come to know its pages.
Test(np4_gpu_nccl, scopes_take_turns_through_the_host) {
    nccl_skip();
    setenv("ISO_NODE_COLLECTIVE", "shm", 1);
    scopes_take_turns(ISO_SCOPE_RANK);
}

// ---- What a scope needs is made when it is chosen ---------------------------------------------------

static void makes_nccl(iso_scope scope, iso_sync sync, bool wanted) {
    nccl_world w;
    nccl_variant how = nccl_by_gpu;
    how.scope = scope;
    how.sync = sync;
    iso_assert_ok(nccl_create(&w, &how));
    iso_assert_all(emulated_live_comms() == wanted);
    nccl_destroy(&w);
}

Test(np3_gpu_nccl, only_a_scope_that_needs_nccl_makes_it) {
    nccl_skip();
    if (!emulated_live_comms) test_mpi_skip("only the emulated GPU counts");
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    makes_nccl(ISO_SCOPE_RANK, ISO_SYNC_LAZY, false);
    makes_nccl(ISO_SCOPE_WORLD, ISO_SYNC_NONE, false);
    makes_nccl(ISO_SCOPE_WORLD, ISO_SYNC_LAZY, false); // nodes of different sizes
    makes_nccl(ISO_SCOPE_NODE, ISO_SYNC_LAZY, test_rank < 2);
}

Test(np4_gpu_nccl, the_first_choice_of_a_scope_makes_it_for_all) {
    nccl_skip();
    if (!emulated_live_comms) test_mpi_skip("only the emulated GPU counts");
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    nccl_world w;
    nccl_variant how = nccl_by_gpu;
    how.scope = ISO_SCOPE_RANK;
    iso_assert_ok(nccl_create(&w, &how));
    iso_assert_all(emulated_live_comms() == 0);
    iso_assert_ok(iso__reducer_set_scope(w.reducer, ISO_SCOPE_RANK));
    iso_assert_all(emulated_live_comms() == 1);
    for (int s = 0; s < 6; s++) {
        long long before, after;
        iso_memory_balance(NULL, NULL, &before);
        iso_assert_ok(iso__reducer_set_scope(w.reducer, (iso_scope)(s % 3)));
        iso_memory_balance(NULL, NULL, &after);
        iso_assert_all(before == after && emulated_live_comms() == 1);
    }
    nccl_destroy(&w);
}

// Nodes of one rank have nobody to sum with, the others do.
Test(np3_gpu_nccl, a_node_of_one_rank_trains_alone) {
    nccl_skip();
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    nccl_variant how = nccl_by_gpu;
    how.scope = ISO_SCOPE_NODE;
    nccl_is_exact(how, test_rank < 2);
}
