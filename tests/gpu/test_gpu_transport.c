// SPDX-License-Identifier: MIT
// Transports of GPUs: each gives the sums that those of the host give.
#include "common/hook_fixture.h"
#include "common/nccl_fixture.h"
#include "common/transport_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>

// Of the emulated GPU, where the build has that.
__attribute__((weak)) void emulated_fail_next(const char *function, int error);

TestSuite(np1_gpu_transport, .init = nccl_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_gpu_transport, .init = nccl_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_gpu_transport, .init = nccl_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_gpu_transport, .init = nccl_setup, .fini = test_mpi_teardown, .timeout = 60);

static void gpus_conform(const char *name, const char *collective, const iso_comm_hook *hook) {
    iso_device *device;
    setenv("ISO_NODE_COLLECTIVE", collective, 1);
    iso_assert_ok(nccl_open_device(&device));
    transport_conforms(&(transport_case){name, ISO_SCOPE_WORLD, hook, device, false, false});
    iso_device_destroy(&device);
}

Test(np1_gpu_transport, alone_nothing_travels) {
    nccl_skip();
    gpus_conform("none", "auto", NULL);
}

static void through_the_host(void) {
    nccl_skip();
    gpus_conform("staged", "mpi", NULL);
    gpus_conform("staged", "shm", NULL);
    gpus_conform("staged", "mpi", &iso_hook_bf16);
}

Test(np2_gpu_transport, through_the_host) { through_the_host(); }
Test(np3_gpu_transport, through_the_host) { through_the_host(); }

static void hooks_own_exchanges(void) {
    hook_user user;
    nccl_skip();
    for (int way = 0; way < HOOK_WAYS; way++) {
        iso_comm_hook hook = hook_of_way(&user, (hook_way)way);
        gpus_conform("staged", "mpi", &hook);
    }
}

Test(np2_gpu_transport, hooks_own_exchanges) { hooks_own_exchanges(); }
Test(np3_gpu_transport, hooks_own_exchanges) { hooks_own_exchanges(); }

// Sparse rows rule out NCCL.
static void rows_take_the_host(void) {
    iso_device *device;
    nccl_skip();
    setenv("ISO_NODE_COLLECTIVE", "auto", 1);
    iso_assert_ok(nccl_open_device(&device));
    transport_conforms(&(transport_case){"staged", ISO_SCOPE_WORLD, NULL, device, false, true});
    iso_device_destroy(&device);
}

Test(np2_gpu_transport, rows_take_the_host) { rows_take_the_host(); }
Test(np3_gpu_transport, rows_take_the_host) { rows_take_the_host(); }

static void by_nccl(void) {
    nccl_skip();
    gpus_conform("nccl", "nccl", NULL);
}

Test(np2_gpu_transport, by_nccl) { by_nccl(); }
Test(np3_gpu_transport, by_nccl) { by_nccl(); }

Test(np3_gpu_transport, unequal_nodes_take_the_host) {
    nccl_skip();
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    gpus_conform("staged", "nccl", NULL);
}

Test(np4_gpu_transport, in_shards) {
    nccl_skip();
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    gpus_conform("shards", "nccl", NULL);
    gpus_conform("shards", "nccl", &iso_hook_bf16);
}

// ---- Asked again ------------------------------------------------------------------------------------

static const char *failing_call;
static void fail_next_call(void) { emulated_fail_next(failing_call, 2 /* out of memory */); }

// The sum is back in the host's memory when the copy, the event or the queue fails.
static void keeps_times(const char *name, const char *collective, void (*fault)(void)) {
    static const char *const calls[] = {"cudaMemcpyAsync", "cudaEventRecord",
                                        "cudaStreamWaitEvent"};
    iso_device *device;
    setenv("ISO_NODE_COLLECTIVE", collective, 1);
    iso_assert_ok(nccl_open_device(&device));
    for (int k = 0; k < (fault ? 3 : 1); k++) {
        failing_call = calls[k];
        transport_keeps_times(&(transport_case){name, ISO_SCOPE_WORLD, NULL, device, false, false},
                              TRANSPORT_LAST, fault);
    }
    iso_device_destroy(&device);
}

Test(np2_gpu_transport, a_wait_that_times_out_counts) {
    nccl_skip();
    keeps_times("staged", "mpi", NULL);
}

Test(np2_gpu_transport, times_outlive_a_copy_that_fails) {
    nccl_skip();
    if (!emulated_fail_next) test_mpi_skip("only the emulated GPU can be made to fail");
    keeps_times("staged", "mpi", fail_next_call);
}

Test(np4_gpu_transport, times_outlive_a_copy_that_fails) {
    nccl_skip();
    if (!emulated_fail_next) test_mpi_skip("only the emulated GPU can be made to fail");
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    keeps_times("shards", "nccl", fail_next_call);
}

// The transports of all ranks are then destroyed together, which is collective.
Test(np2_gpu_transport, what_one_rank_cannot_make_all_are_told_of) {
    nccl_skip();
    if (!emulated_fail_next) test_mpi_skip("only the emulated GPU can be made to fail");
    setenv("ISO_NODE_COLLECTIVE", "mpi", 1);
    nccl_world w = {.how = nccl_by_gpu};
    iso_assert_ok(nccl_open_device(&w.device));
    iso_assert_ok(nccl_make_tensors(&w));
    if (test_rank == 1) emulated_fail_next("cudaEventCreateWithFlags", 2 /* out of memory */);
    iso_status status = nccl_make_reducer(&w);
    iso_assert_all(status < 0);
    iso_assert_ok(nccl_make_reducer(&w)); // and the next one is made
    nccl_destroy(&w);
}

// NCCL would sum this rank's second bucket with the others' first.
Test(np2_gpu_transport, a_rank_that_could_not_post_posts_nothing_more) {
    nccl_skip();
    if (!emulated_fail_next) test_mpi_skip("only the emulated GPU can be made to fail");
    iso_device *device;
    setenv("ISO_NODE_COLLECTIVE", "nccl", 1);
    iso_assert_ok(nccl_open_device(&device));
    failing_call = "cudaEventRecord";
    transport_stays_in_step(&(transport_case){"nccl", ISO_SCOPE_WORLD, NULL, device, false, false},
                            fail_next_call);
    iso_device_destroy(&device);
}
