// SPDX-License-Identifier: MIT
// Which ranks have too few cores, which share one needlessly, what cures it, and who gets which
// share: on hosts that this machine is not.
#define _GNU_SOURCE // sets of processors
#include "comm/cores_impl.h"
#include "common/balance.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <string.h>

TestSuite(cores, .fini = balance_check, .timeout = 60);

// A rank on the hardware threads [first, first + width) of a host that has `reach`, each a core.
static iso__cores_record rank_on(const char *host, int first, int width, int reach, int threads) {
    iso__cores_record r = {.threads = threads, .helper = 1, .reach = reach, .cores = width};
    strcpy((char *)r.host, host);
    for (int i = first; i < first + width; i++) r.mask[i / 64] |= UINT64_C(1) << i % 64;
    memcpy(r.first, r.mask, sizeof(r.mask));
    return r;
}

static iso_cores judge(const iso__cores_record *records, int ranks, int rank) {
    iso_cores cores;
    cr_assert(iso__cores_judge(records, ranks, rank, &cores) == ISO_OK);
    return cores;
}

static void assert_text(const char *text, const char *expected) {
    cr_assert(strcmp(text, expected) == 0, "\"%s\" is not \"%s\"", text, expected);
}

Test(cores, ranks_that_share_all_cores_of_their_hosts_are_well) {
    iso__cores_record r[] = {rank_on("a", 0, 4, 4, 1), rank_on("a", 0, 4, 4, 1),
                             rank_on("b", 0, 4, 4, 2), rank_on("b", 0, 4, 4, 2)};
    iso_cores cores = judge(r, 4, 2);
    assert_text(cores.crowded, "");
    assert_text(cores.single, "");
    assert_text(cores.mine, "cores 0-3 of host b");
    assert_text(cores.all, "ranks 0-1: cores 0-3 of host a; ranks 2-3: cores 0-3 of host b");
}

Test(cores, one_core_for_the_kernel_and_the_helper_is_told_of) {
    iso__cores_record r[] = {rank_on("a", 0, 1, 4, 1), rank_on("a", 1, 1, 4, 1)};
    assert_text(judge(r, 2, 0).single,
                "ranks 0-1: bound to one core, on which 1 compute thread and the progress thread "
                "take turns: give mpirun --bind-to none, or --map-by slot:PE=2 --bind-to core");
    assert_text(judge(r, 2, 0).crowded, "");
    r[0].helper = r[1].helper = 0;
    assert_text(judge(r, 2, 0).single, "");
    r[0].threads = 2;
    assert_text(judge(r, 2, 1).single,
                "rank 0: bound to one core, on which 2 compute threads take turns: give mpirun "
                "--bind-to none, or --map-by slot:PE=2 --bind-to core");
}

Test(cores, no_flag_is_advised_that_does_not_help) {
    // Two cores are not enough to give each of two ranks two.
    iso__cores_record r[] = {rank_on("a", 0, 1, 2, 1), rank_on("a", 1, 1, 2, 1)};
    assert_text(judge(r, 2, 0).single,
                "ranks 0-1: bound to one core, on which 1 compute thread and the progress thread "
                "take turns: give mpirun --bind-to none");
    // A host of one core has nothing better to give.
    iso__cores_record alone[] = {rank_on("a", 0, 1, 1, 1), rank_on("b", 0, 1, 1, 1)};
    assert_text(judge(alone, 2, 0).single, "");
    assert_text(judge(alone, 2, 0).crowded, "");
}

Test(cores, a_host_with_more_threads_than_cores_is_told_of_however_it_is_bound) {
    const char *expected = "ranks 1-3: 6 compute threads for the 4 cores of host b: start fewer "
                           "ranks on a host (mpirun --map-by ppr:2:node), or give --threads 1";
    iso__cores_record r[] = {rank_on("a", 0, 4, 4, 2), rank_on("b", 0, 4, 4, 2),
                             rank_on("b", 0, 4, 4, 2), rank_on("b", 0, 4, 4, 2)};
    assert_text(judge(r, 4, 0).crowded, expected);
    for (int i = 1; i < 4; i++) r[i] = rank_on("b", i, 1, 4, 2);
    assert_text(judge(r, 4, 0).crowded, expected);
    assert_text(judge(r, 4, 0).single, "");
    // No number of threads lets three ranks have a core each.
    iso__cores_record three[] = {rank_on("a", 0, 2, 2, 2), rank_on("a", 0, 2, 2, 2),
                                 rank_on("a", 0, 2, 2, 2)};
    assert_text(judge(three, 3, 0).crowded,
                "ranks 0-2: 6 compute threads for the 2 cores of host a: start fewer ranks on a "
                "host (mpirun --map-by ppr:1:node)");
    iso__cores_record one = rank_on("a", 0, 2, 2, 3);
    assert_text(judge(&one, 1, 0).crowded,
                "rank 0: 3 compute threads for the 2 cores of host a: give --threads 2");
}

Test(cores, ranks_bound_to_the_same_few_cores_are_told_of) {
    iso__cores_record r[] = {rank_on("a", 0, 2, 8, 2), rank_on("a", 0, 2, 8, 2),
                             rank_on("a", 4, 4, 8, 2)};
    assert_text(judge(r, 3, 0).crowded,
                "ranks 0-1: 4 compute threads are bound to cores 0-1 of host a, which has 8: give "
                "mpirun --bind-to none, or --map-by slot:PE=2 --bind-to core");
}

Test(cores, shares_are_disjoint_and_as_large_as_the_threads) {
    iso__cores_record r[] = {rank_on("a", 62, 8, 8, 3), rank_on("a", 62, 8, 8, 2),
                             rank_on("a", 62, 8, 8, 3)};
    uint64_t all[ISO_CORES_WORDS] = {0};
    for (int rank = 0; rank < 3; rank++) {
        iso_cores cores = judge(r, 3, rank);
        int64_t bits = 0;
        for (int i = 0; i < ISO_CORES_WORDS; i++) {
            cr_assert((all[i] & cores.share[i]) == 0, "shares overlap");
            cr_assert((cores.share[i] & ~r[rank].mask[i]) == 0, "outside the mask");
            all[i] |= cores.share[i];
            bits += __builtin_popcountll(cores.share[i]);
        }
        cr_assert(bits == r[rank].threads);
    }
}

Test(cores, two_hardware_threads_of_a_core_count_once_in_a_share) {
    // Cores {0, 4}, {1, 5}, {2, 6}, {3, 7}.
    iso__cores_record r[] = {rank_on("a", 0, 8, 8, 2), rank_on("a", 0, 8, 8, 2)};
    for (int i = 0; i < 2; i++) r[i].first[0] = 0x0f, r[i].cores = 4;
    cr_assert(judge(r, 2, 0).share[0] == 0x03);
    cr_assert(judge(r, 2, 1).share[0] == 0x0c);
    r[1].threads = 3; // five threads on four cores
    cr_assert(judge(r, 2, 0).share[0] == 0);
}

Test(cores, nobody_is_bound_where_that_could_hurt) {
    iso__cores_record one = rank_on("a", 0, 8, 8, 2); // other jobs may run here
    cr_assert(judge(&one, 1, 0).share[0] == 0);
    iso__cores_record apart[] = {rank_on("a", 0, 4, 8, 2), rank_on("a", 4, 4, 8, 2)};
    cr_assert(judge(apart, 2, 0).share[0] == 0);
    iso__cores_record crossed[] = {rank_on("a", 0, 4, 8, 2), rank_on("a", 2, 4, 8, 2)};
    cr_assert(judge(crossed, 2, 0).share[0] == 0);
    iso__cores_record narrow[] = {rank_on("a", 0, 8, 8, 1), rank_on("a", 0, 8, 8, 1)};
    cr_assert(judge(narrow, 2, 0).share[0] == 0);
}

Test(cores, unknown_cores_give_no_warning) {
    iso__cores_record r[] = {rank_on("a", 0, 0, 0, 4), rank_on("a", 0, 0, 0, 4)};
    iso_cores cores = judge(r, 2, 0);
    assert_text(cores.crowded, "");
    assert_text(cores.single, "");
    assert_text(cores.mine, "unknown cores of host a");
}

Test(cores, long_lists_of_ranks_and_hosts_fit) {
    enum { RANKS = 600 };
    static iso__cores_record r[RANKS];
    for (int i = 0; i < RANKS; i++) {
        char host[16];
        snprintf(host, sizeof(host), "host-%d", i / 2);
        r[i] = rank_on(host, 0, 1, 8, i % 2 + 1);
    }
    iso_cores cores = judge(r, RANKS, 1);
    cr_assert(strlen(cores.all) < sizeof(cores.all));
    cr_assert(strstr(cores.all, "; ..."));
    cr_assert(strstr(cores.crowded, "ranks 0-599: 3 compute threads are bound to core 0 of host"));
}

Test(cores, a_thread_is_bound_to_its_share_unless_the_environment_binds) {
    cpu_set_t before, after;
    cr_assert(sched_getaffinity(0, sizeof(before), &before) == 0);
    size_t last = 0;
    for (size_t cpu = 0; cpu < 1024; cpu++)
        if (CPU_ISSET(cpu, &before)) last = cpu;
    iso_cores cores = {0};
    cr_assert(!iso_cores_bind(&cores));
    cores.share[last / 64] = UINT64_C(1) << last % 64;
    setenv("OMP_PROC_BIND", "false", 1);
    cr_assert(!iso_cores_bind(&cores));
    cr_assert(sched_getaffinity(0, sizeof(after), &after) == 0 && CPU_EQUAL(&before, &after));
    unsetenv("OMP_PROC_BIND");
    cr_assert(iso_cores_bind(&cores));
    cr_assert(sched_getaffinity(0, sizeof(after), &after) == 0);
    cr_assert(CPU_COUNT(&after) == 1 && CPU_ISSET(last, &after));
}

// ---- The progress thread ----------------------------------------------------------------------------

static void assert_pinned(const iso__cores_record *records, int ranks, int rank, uint64_t share,
                          uint64_t progress) {
    iso_cores cores = judge(records, ranks, rank);
    cr_assert(cores.share[0] == share && cores.progress[0] == progress, "%llx and %llx",
              (unsigned long long)cores.share[0], (unsigned long long)cores.progress[0]);
}

Test(cores, a_progress_thread_gets_a_core_that_is_left) {
    iso__cores_record own[] = {rank_on("a", 0, 4, 8, 2), rank_on("a", 4, 3, 8, 3),
                               rank_on("b", 0, 4, 4, 1)};
    assert_pinned(own, 3, 0, 0, 0); // not asked for
    for (int i = 0; i < 3; i++) own[i].own = 1;
    assert_pinned(own, 3, 0, 0x7, 0x8);
    assert_pinned(own, 3, 1, 0, 0); // all cores compute
    assert_pinned(own, 3, 2, 0x7, 0x8);
}

Test(cores, progress_threads_get_cores_of_a_set_that_ranks_share) {
    iso__cores_record r[] = {rank_on("a", 0, 6, 6, 2), rank_on("a", 0, 6, 6, 1)};
    r[0].own = r[1].own = 1;
    assert_pinned(r, 2, 0, 0x3, 0x4);
    assert_pinned(r, 2, 1, 0x8, 0x10);
    r[1].threads = 3; // seven are needed, and without cores of their own five
    assert_pinned(r, 2, 0, 0x3, 0);
    assert_pinned(r, 2, 1, 0x1c, 0);
    r[1].threads = 9;
    assert_pinned(r, 2, 0, 0, 0);
}

// Of each core the first hardware thread is chosen; a rank alone keeps all others.
Test(cores, a_progress_thread_gets_one_hardware_thread) {
    iso__cores_record r = rank_on("a", 0, 8, 8, 2);
    r.cores = 4;
    r.first[0] = 0x55;
    r.own = 1;
    assert_pinned(&r, 1, 0, 0xbf, 0x40);
}
