// SPDX-License-Identifier: MIT
// ZeRO stage 2: what a rank holds of gradients, as the system says, and the same results however
// they are exchanged. test_zero.c and others, compiled for stage 2, have the rest.
#include "common/process_memory.h"
#include "common/mpi_fixture.h"

#include "base/base.h"
#include "parallel/reducer/reducer_calls.h"

#include <isotherm/clip.h>
#include <isotherm/reducer.h>
#include <isotherm/trace.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

TestSuite(np2_zero_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_zero_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np4_zero_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np6_zero_gradients, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 240);

static int node_size; // 0: all ranks divide updates; otherwise those of each node of so many ranks

static void divide_in_nodes(int ranks_per_node) {
    char text[16];
    snprintf(text, sizeof(text), "%d", ranks_per_node);
    setenv("ISO_RANKS_PER_NODE", text, 1);
    node_size = ranks_per_node;
}

// ---- Arrays that are long against a page ------------------------------------------------------------

enum { ARRAYS = 24, LENGTH = 1 << 18 }; // each of 1 MiB
static const size_t array_bytes = LENGTH * sizeof(float),
                    all_bytes = ARRAYS * LENGTH * sizeof(float);

typedef struct arrays {
    float *value[ARRAYS];
    char name[ARRAYS][8];
    iso_reducer *reducer;
    char *gradients; // their memory
} arrays;

static iso_status refuse_whole(int i, void *gradient, double scale, const void *hyper, void *user) {
    (void)i, (void)gradient, (void)scale, (void)hyper, (void)user;
    return ISO_FAIL(ISO_ERR_STATE, "a whole update");
}

static iso_status descend(int i, size_t first, size_t count, void *gradient, double scale,
                          const void *hyper, void *user) {
    float *value = ((arrays *)user)->value[i], *g = gradient;
    double lr = *(const double *)hyper;
    for (size_t k = 0; k < count; k++) value[first + k] -= (float)(lr * scale * (double)g[k]);
    return ISO_OK;
}

static void create_arrays_on(arrays *x, iso_comm *comm, const iso_reducer_config *config) {
    iso_reducer_param param[ARRAYS];
    *x = (arrays){.reducer = NULL};
    for (int i = 0; i < ARRAYS; i++) {
        iso_assert_ok(iso__alloc_zero(array_bytes, (void **)&x->value[i]));
        snprintf(x->name[i], sizeof(x->name[i]), "a%d", i);
        param[i] = (iso_reducer_param){
            .name = x->name[i], .value = x->value[i], .count = LENGTH, .layer = i};
    }
    iso_assert_ok(iso_reducer_create(comm, param, ARRAYS, config, &x->reducer));
    iso_assert_ok(iso_reducer_set_apply(x->reducer, refuse_whole, sizeof(double), x));
    iso_assert_ok(iso_reducer_set_apply_piece(x->reducer, ISO_REDUCER_ONLY, descend));
    x->gradients = iso_reducer_grad(x->reducer, 0);
    for (int i = 1; i < ARRAYS; i++) {
        char *other = iso_reducer_grad(x->reducer, i);
        if (other < x->gradients) x->gradients = other;
    }
}

static void create_arrays(arrays *x, const iso_reducer_config *config) {
    create_arrays_on(x, test_comm, config);
}

static void destroy_arrays(arrays *x) {
    iso_reducer_destroy(&x->reducer);
    for (int i = 0; i < ARRAYS; i++) iso__free(x->value[i]);
}

// The gradient of an element on one rank: whole numbers, whose sums are exact.
static float number_of(int rank, int i, size_t k, int step) {
    return (float)((size_t)(rank + 1) * (k % 7 + 1) + (size_t)i + (size_t)step);
}

static void write_gradient(arrays *x, int i, int step, bool adds) {
    float *g = iso_reducer_grad(x->reducer, i);
    for (size_t k = 0; k < LENGTH; k++) g[k] = (adds ? g[k] : 0) + number_of(test_rank, i, k, step);
}

static bool values_are(const arrays *x, int steps, int backwards) {
    for (int i = 0; i < ARRAYS; i++)
        for (size_t k = 0; k < LENGTH; k += k % 5 + 1) {
            float wanted = 0;
            for (int step = 0; step < steps; step++) {
                float sum = 0;
                for (int r = 0; r < test_size; r++) sum += number_of(r, i, k, step);
                wanted -= (float)backwards * sum;
            }
            if (x->value[i][k] != wanted) return false;
        }
    return true;
}

// ---- What the system says ---------------------------------------------------------------------------

// The bytes of gradients that are in memory.
static size_t resident_bytes(const arrays *x) {
    static unsigned char there[1 << 16];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), count = 0;
    char *from = x->gradients - (uintptr_t)x->gradients % page;
    size_t pages = (all_bytes + (size_t)(x->gradients - from) + page - 1) / page;
    cr_assert(pages <= sizeof(there));
    cr_assert(mincore(from, pages * page, there) == 0);
    for (size_t k = 0; k < pages; k++) count += there[k] & 1;
    return count * page;
}

// Shards and buckets share their first and last page with others.
static size_t bound(int whole, int shared) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE),
           shards = (size_t)(node_size ? node_size : test_size);
    return (size_t)whole * array_bytes + (size_t)shared * (array_bytes / shards) +
           4 * ARRAYS * page;
}

// Waits, at most for 30 s, until no more than `most` bytes are there.
static bool shrinks_to(arrays *x, size_t most) {
    int64_t end = iso_now() + 30000000000;
    while (resident_bytes(x) > most && iso_now() < end) {
        iso_reducer_poll(x->reducer);
        usleep(1000);
    }
    return resident_bytes(x) <= most;
}

static iso_reducer_config config_of(iso_sync sync, int stage) {
    return (iso_reducer_config){.sync = sync,
                                .zero = stage,
                                .zero_scope = node_size ? ISO_SCOPE_NODE : ISO_SCOPE_WORLD,
                                .average = ISO_AVERAGE_SUM};
}

// While a rank awaits each bucket, at most one is whole at a time.
static void blocking_holds_shards(void) {
    const iso_reducer_config config = config_of(ISO_SYNC_BLOCKING, 2);
    const double lr = 1;
    arrays x;
    size_t most = 0, before = 0, after = 0;
    iso_reducer_stats stats;
    create_arrays(&x, &config);
    iso_reducer_watch_gradients(x.reducer);
    iso_assert_all(resident_bytes(&x) <= bound(0, 0)); // nothing is written yet
    for (int step = 0; step < 3; step++) {
        bool good = true;
        before = process_bytes();
        for (int i = ARRAYS - 1; i >= 0; i--) {
            write_gradient(&x, i, step, false);
            iso_assert_ok(iso_reducer_grad_ready(x.reducer, i));
            size_t now = resident_bytes(&x);
            if (now > most) most = now;
            good = good && now <= bound(0, ARRAYS - i);
        }
        after = process_bytes();
        iso_assert_all(good);
        iso_assert_ok(iso_reducer_step(x.reducer, &lr));
        iso_assert_ok(iso_reducer_finish(x.reducer));
        iso_assert_all(values_are(&x, step + 1, 1));
        iso_assert_all(resident_bytes(&x) <= bound(0, 0));
    }
    // The process itself has not grown by more, after the first step.
    iso_assert_all(after == 0 || after - before < bound(1, ARRAYS) + ((size_t)1 << 20));
    double ms = 0;
    iso_assert_ok(iso_reducer_measure_exchange(x.reducer, 1, &ms));
    iso_assert_all(values_are(&x, 3, 1) && resident_bytes(&x) <= bound(0, 0));
    iso_reducer_get_stats(x.reducer, &stats);
    iso_assert_all(stats.gradient_peak >= most && stats.gradient_peak <= bound(6, ARRAYS));
    destroy_arrays(&x);
}

Test(np2_zero_gradients, blocking_holds_shards) { blocking_holds_shards(); }
Test(np3_zero_gradients, blocking_holds_shards) { blocking_holds_shards(); }
Test(np4_zero_gradients, blocking_holds_shards) { blocking_holds_shards(); }
Test(np4_zero_gradients, blocking_holds_shards_in_nodes) {
    divide_in_nodes(2);
    blocking_holds_shards();
}

// A backward holds few whole buckets. Once they are back, shards are left, also before a step. New
// values take the memory of few buckets, too.
static void lazy_holds_shards(void) {
    const iso_reducer_config config = config_of(ISO_SYNC_LAZY, 2);
    const double lr = 1;
    arrays x;
    create_arrays(&x, &config);
    for (int step = 0; step < 3; step++) {
        bool good = true;
        if (test_rank == 1) usleep(300000); // the others must not run ahead
        for (int i = ARRAYS - 1; i >= 0; i--) {
            write_gradient(&x, i, step, false);
            good = good && iso_reducer_grad_ready(x.reducer, i) == ISO_OK;
            good = good && resident_bytes(&x) <= bound(5, ARRAYS - i);
        }
        iso_assert_all(good);
        iso_assert_all(shrinks_to(&x, bound(0, ARRAYS)));
        iso_assert_ok(iso_reducer_step(x.reducer, &lr));
        for (int i = 0; i < ARRAYS; i++) {
            usleep(i == 0 ? 300000 : 2000); // all others could arrive meanwhile
            good = good && resident_bytes(&x) <= bound(5, ARRAYS - i);
            good = good && iso_reducer_param_needed(x.reducer, i) == ISO_OK;
            good = good && resident_bytes(&x) <= bound(5, ARRAYS - 1 - i);
        }
        iso_assert_all(good);
        iso_assert_all(values_are(&x, step + 1, 1));
        iso_assert_all(resident_bytes(&x) <= bound(0, 0));
    }
    destroy_arrays(&x);
}

Test(np2_zero_gradients, lazy_holds_shards) { lazy_holds_shards(); }
Test(np4_zero_gradients, lazy_holds_shards) { lazy_holds_shards(); }
Test(np4_zero_gradients, lazy_holds_shards_in_nodes) {
    divide_in_nodes(2);
    lazy_holds_shards();
}

// Whatever asks for values first, those of few buckets are in memory at once.
typedef enum asks { PUBLISHES, NEEDS_THE_LAST, FINISHES, ASKS } asks;

static void few_values_at_once(asks what, bool watches) {
    const iso_reducer_config config = config_of(ISO_SYNC_LAZY, 2);
    const double lr = 1;
    iso_reducer_stats stats;
    arrays x;
    create_arrays(&x, &config);
    if (watches) iso_reducer_watch_gradients(x.reducer);
    for (int step = 0; step < 2; step++) {
        iso_status status = ISO_OK;
        for (int i = ARRAYS - 1; i >= 0 && status == ISO_OK; i--) {
            write_gradient(&x, i, step, false);
            status = iso_reducer_grad_ready(x.reducer, i);
        }
        if (status == ISO_OK) status = iso_reducer_step(x.reducer, &lr);
        if (status == ISO_OK && what == PUBLISHES) status = iso__reducer_publish(x.reducer, true);
        if (status == ISO_OK && what == NEEDS_THE_LAST)
            status = iso_reducer_param_needed(x.reducer, ARRAYS - 1);
        bool few = resident_bytes(&x) <= bound(5, 0);
        iso_assert_ok(status);
        iso_assert_all(few || what == FINISHES);
        iso_assert_ok(iso_reducer_finish(x.reducer));
        iso_assert_all(values_are(&x, step + 1, 1));
    }
    iso_reducer_get_stats(x.reducer, &stats);
    if (watches)
        iso_assert_all(stats.gradient_peak > array_bytes &&
                       stats.gradient_peak <= bound(10, ARRAYS));
    else
        iso_assert_all(stats.gradient_peak == 0); // it was not asked for
    destroy_arrays(&x);
}

Test(np4_zero_gradients, few_values_at_once) {
    for (asks what = PUBLISHES; what < ASKS; what++) few_values_at_once(what, true);
}
Test(np2_zero_gradients, few_values_at_once) { few_values_at_once(PUBLISHES, false); }
Test(np4_zero_gradients, few_values_at_once_in_nodes) {
    divide_in_nodes(2);
    for (asks what = PUBLISHES; what < ASKS; what++) few_values_at_once(what, true);
}

// A control: stage 1 holds all of them.
Test(np2_zero_gradients, stage_1_holds_gradients) {
    const iso_reducer_config config = config_of(ISO_SYNC_BLOCKING, 1);
    iso_reducer_stats stats;
    arrays x;
    create_arrays(&x, &config);
    for (int i = ARRAYS - 1; i >= 0; i--) {
        write_gradient(&x, i, 0, false);
        iso_assert_ok(iso_reducer_grad_ready(x.reducer, i));
    }
    iso_assert_all(resident_bytes(&x) >= all_bytes);
    iso_reducer_get_stats(x.reducer, &stats);
    iso_assert_all(stats.gradient_peak == 0);
    iso_reducer_zero_grad(x.reducer);
    destroy_arrays(&x);
}

// A rank that was held for the time limit is held no more in this backward. It waits, and times
// out, where stage 1 does, and can go on.
Test(np2_zero_gradients, a_backward_is_held_for_the_time_limit_at_most) {
    const iso_reducer_config config = config_of(ISO_SYNC_LAZY, 2);
    const double lr = 1;
    bool good = true, late = false;
    arrays x;
    iso_comm *comm = test_comm_with_limit(IMPATIENT);
    create_arrays_on(&x, comm, &config);
    if (test_rank == 1) usleep(SLOW);
    for (int i = ARRAYS - 1; i >= 0; i--) {
        write_gradient(&x, i, 0, false);
        good = good && iso_reducer_grad_ready(x.reducer, i) == ISO_OK;
    }
    good = good && iso_reducer_step(x.reducer, &lr) == ISO_OK;
    iso_status status;
    while ((status = iso_reducer_finish(x.reducer)) == ISO_ERR_TIMEOUT) late = true;
    iso_assert_ok(status);
    iso_assert_all(good && (late || test_rank == 1));
    iso_assert_all(values_are(&x, 1, 1));
    // The next backward is held again.
    if (test_rank == 1) usleep(300000);
    for (int i = ARRAYS - 1; i >= 0; i--) {
        write_gradient(&x, i, 1, false);
        good = good && iso_reducer_grad_ready(x.reducer, i) == ISO_OK;
        good = good && resident_bytes(&x) <= bound(5, ARRAYS - i);
    }
    iso_assert_all(good);
    iso_assert_ok(iso_reducer_step(x.reducer, &lr));
    iso_assert_ok(iso_reducer_finish(x.reducer));
    iso_assert_all(values_are(&x, 2, 1));
    destroy_arrays(&x);
    iso_comm_destroy(&comm);
}

// ---- Orders of calls --------------------------------------------------------------------------------

typedef struct order {
    iso_sync sync;
    bool accumulates; // two backwards a step
    bool looks;       // completes what is pending before the step
    bool drops;       // a backward whose gradients are dropped comes first
} order;

static void backward(arrays *x, int step, const order *how) {
    for (int i = ARRAYS - 1; i >= 0; i--) {
        write_gradient(x, i, step, false);
        if (how->accumulates) write_gradient(x, i, step, true);
        iso_assert_ok(iso_reducer_grad_ready(x->reducer, i));
    }
    if (how->sync == ISO_SYNC_EXPLICIT) iso_assert_ok(iso_reducer_all_reduce(x->reducer));
}

static void trains(const order *how) {
    const iso_reducer_config config = config_of(how->sync, 2);
    const double lr = 1;
    arrays x;
    create_arrays(&x, &config);
    for (int step = 0; step < 3; step++) {
        if (how->drops) {
            backward(&x, step + 1, how);
            iso_assert_ok(iso_reducer_finish(x.reducer));
            iso_reducer_zero_grad(x.reducer);
        }
        backward(&x, step, how);
        if (how->looks) iso_assert_ok(iso_reducer_finish(x.reducer));
        iso_assert_ok(iso_reducer_step(x.reducer, &lr));
        // In the order of the forward, in another one, or all together.
        for (int k = 0; k < ARRAYS && step < 2; k++)
            iso_assert_ok(iso_reducer_param_needed(x.reducer, step ? (k * 7) % ARRAYS : k));
        iso_assert_ok(iso_reducer_finish(x.reducer));
        iso_assert_all(values_are(&x, step + 1, how->accumulates ? 2 : 1));
        iso_assert_all(resident_bytes(&x) <= bound(0, 0));
    }
    destroy_arrays(&x);
}

static void trains_in_every_order(void) {
    for (int i = 0; i < 6; i++)
        trains(&(order){(iso_sync[]){ISO_SYNC_LAZY, ISO_SYNC_BLOCKING, ISO_SYNC_EXPLICIT}[i % 3],
                        i & 1, i > 2, i == 1 || i == 3});
}

Test(np2_zero_gradients, order_of_calls_does_not_matter) { trains_in_every_order(); }
Test(np3_zero_gradients, order_of_calls_does_not_matter) { trains_in_every_order(); }
Test(np4_zero_gradients, order_of_calls_does_not_matter_in_nodes) {
    divide_in_nodes(2);
    trains_in_every_order();
}
Test(np6_zero_gradients, order_of_calls_does_not_matter_in_three_nodes) {
    divide_in_nodes(2);
    trains_in_every_order();
}

// Whoever divides, a node sends each gradient, or its sum over the node, to each other node once:
// 2 (N - 1) / N of the bytes for N nodes, with the new values or what the nodes share.
static void nodes_send_the_least(bool in_nodes) {
    const double lr = 1, nodes = test_size / 2;
    const double wanted = 2 * (nodes - 1) / nodes * (double)all_bytes / 2; // of a rank
    divide_in_nodes(2);
    if (!in_nodes) node_size = 0;
    const iso_reducer_config config = config_of(ISO_SYNC_LAZY, 2);
    iso_reducer_stats before, after;
    arrays x;
    create_arrays(&x, &config);
    iso_reducer_get_stats(x.reducer, &before);
    backward(&x, 0, &(order){ISO_SYNC_LAZY, false, false, false});
    iso_assert_ok(iso_reducer_step(x.reducer, &lr));
    iso_assert_ok(iso_reducer_finish(x.reducer));
    iso_assert_all(values_are(&x, 1, 1));
    iso_reducer_get_stats(x.reducer, &after);
    double sent = (double)(after.bytes_between_nodes - before.bytes_between_nodes);
    double summed = (double)(after.bytes_world - before.bytes_world);
    iso_assert_all(sent > 0.999 * wanted && sent < 1.001 * wanted);
    iso_assert_all(summed > 0.999 * (double)all_bytes && summed < 1.001 * (double)all_bytes);
    double waited = after.wait_ms - before.wait_ms;
    iso_assert_all(waited >= 0 && waited < 60000);
    destroy_arrays(&x);
}
Test(np4_zero_gradients, nodes_send_the_least) { nodes_send_the_least(false); }
Test(np6_zero_gradients, nodes_send_the_least) { nodes_send_the_least(false); }
Test(np4_zero_gradients, nodes_that_divide_send_the_least) { nodes_send_the_least(true); }
Test(np6_zero_gradients, nodes_that_divide_send_the_least) { nodes_send_the_least(true); }

// Other ranks' elements read as 0 once the averages are here; a rank's own are averages.
Test(np3_zero_gradients, gradients_of_other_shards_are_zero) {
    const iso_reducer_config config = config_of(ISO_SYNC_LAZY, 2);
    arrays x;
    bool good = true;
    create_arrays(&x, &config);
    backward(&x, 0, &(order){ISO_SYNC_LAZY, false, false, false});
    iso_assert_ok(iso_reducer_finish(x.reducer));
    for (int i = 0; i < ARRAYS; i++) {
        const float *g = iso_reducer_grad(x.reducer, i);
        size_t first, count;
        iso_reducer_own(x.reducer, i, 0, &first, &count);
        good = good && count < LENGTH;
        for (size_t k = 0; k < LENGTH; k++) {
            float sum = 0;
            for (int r = 0; r < test_size; r++) sum += number_of(r, i, k, 0);
            good = good && g[k] == (k >= first && k < first + count ? sum : 0);
        }
    }
    iso_assert_all(good);
    iso_reducer_zero_grad(x.reducer);
    destroy_arrays(&x);
}

// ---- Norms and finite gradients ---------------------------------------------------------------------

static double clipped_norm(int stage, bool *finite) {
    const iso_reducer_config config = config_of(ISO_SYNC_LAZY, stage);
    const double lr = 1;
    double norm = 0;
    arrays x;
    create_arrays(&x, &config);
    backward(&x, 0, &(order){ISO_SYNC_LAZY, false, false, false});
    iso_assert_ok(iso_reducer_clip_grad_norm(x.reducer, 1, 2, &norm));
    iso_assert_ok(iso_reducer_step(x.reducer, &lr));
    iso_assert_ok(iso_reducer_finish(x.reducer));
    for (int i = ARRAYS - 1; i >= 0; i--) {
        float *g = iso_reducer_grad(x.reducer, i);
        write_gradient(&x, i, 1, false);
        if (i == 3 && test_rank == 0) g[LENGTH - 1] = NAN; // an element of the last rank
        iso_assert_ok(iso_reducer_grad_ready(x.reducer, i));
    }
    iso_assert_ok(iso_reducer_grads_finite(x.reducer, finite));
    iso_reducer_zero_grad(x.reducer);
    destroy_arrays(&x);
    return norm;
}

Test(np3_zero_gradients, norms_and_nans_are_those_of_all_shards) {
    bool finite[2] = {true, true};
    double one = clipped_norm(1, &finite[0]), two = clipped_norm(2, &finite[1]);
    iso_assert_all(one > 1 && memcmp(&one, &two, sizeof(one)) == 0);
    iso_assert_all(!finite[0] && !finite[1]);
}
