// SPDX-License-Identifier: MIT
// Sparse gradients (iso_reducer_param.sparse_rows): the bits of dense sums in the order of the
// ranks, the bytes that travel, and rows above the limit.
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"

#include "base/base.h"

#include <isotherm/reducer.h>

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_sparse_rows, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_sparse_rows, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_sparse_rows, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_sparse_rows, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- Tables and their gradients -----------------------------------------------------------------------

enum { WTE, DENSE, WPE, DENSE64, TABLE64, PARAMS, MOST = 700, STEPS = 8 };
static const char *const name[PARAMS] = {"wte", "w", "wpe", "w64", "table64"};
static const size_t rows[PARAMS] = {61, 1, 40, 1, 30};
static const size_t row[PARAMS] = {7, 300, 16, 33, 5};
static const size_t limit[PARAMS] = {12, 0, 40, 0, 12};
static double value[PARAMS][MOST]; // as f32 unless is_double

static bool is_double(int i) { return i >= DENSE64; }
static size_t count_of(int i) { return rows[i] * row[i]; }
static size_t bytes_of(int i) {
    return count_of(i) * (is_double(i) ? sizeof(double) : sizeof(float));
}

static void put(void *array, int i, size_t k, double x) {
    if (is_double(i))
        ((double *)array)[k] = x;
    else
        ((float *)array)[k] = (float)x;
}
static double get(const void *array, int i, size_t k) {
    return is_double(i) ? ((const double *)array)[k] : (double)((const float *)array)[k];
}

static void put_row(void *array, int i, size_t at, double x) {
    for (size_t k = 0; k < row[i]; k++) put(array, i, at * row[i] + k, x);
}

// Adds to a row, as the tokens of a batch do.
static void use_row(void *array, int i, size_t at, int rank, int step) {
    for (size_t k = at * row[i]; k < (at + 1) * row[i]; k++)
        put(array, i, k, get(array, i, k) + sin((double)(k + 1) * (rank + 1.3) + step));
}

// Ten tokens, some of them equal. In each step, one rank has none; in some steps, all rows of wpe
// are used. Row 3 is -0 on all ranks, row 4 on some.
static void write_gradient(void *array, int i, int rank, int step, int ranks) {
    memset(array, 0, bytes_of(i));
    if (limit[i] == 0) {
        use_row(array, i, 0, rank, step);
        return;
    }
    for (int n = 0; n < 10 && (ranks == 1 || rank != step % ranks); n++)
        use_row(array, i, (size_t)(5 * rank + 11 * step + n * n) % rows[i], rank, step);
    for (size_t k = 0; i == WPE && step % 3 == 1 && k < rows[i]; k++)
        use_row(array, i, k, rank, step);
    put_row(array, i, 3, -0.0);
    if (rank % 2 == 0) put_row(array, i, 4, -0.0);
}

typedef struct setup {
    iso_reducer_config with;
    bool dense;    // without sparse_rows
    bool weighted; // ranks have weights, and the last rank has no batch in some steps
    bool delayed;  // some parameters
} setup;

static iso_status update(int i, void *gradient, double scale, const void *lr, void *user) {
    (void)user;
    for (size_t k = 0; k < count_of(i); k++) {
        double g = get(gradient, i, k) * scale * *(const double *)lr;
        put(value[i], i, k, get(value[i], i, k) - g);
    }
    return ISO_OK;
}

static iso_status create(const setup *s, iso_reducer **out) {
    iso_reducer_param param[PARAMS];
    for (int i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < count_of(i); k++) put(value[i], i, k, i + sin((double)k));
        param[i] = (iso_reducer_param){
            .name = name[i],
            .value = value[i],
            .count = count_of(i),
            .dtype = is_double(i) ? ISO_F64 : ISO_F32,
            .layer = s->with.hook ? i : i / 2, // the same buckets without sparse_rows
            .row = limit[i] > 0 ? row[i] : 0,
            .delayed = s->delayed && i < WPE,
            .sparse_rows = s->dense ? 0 : limit[i]};
    }
    return iso_reducer_create(test_comm, param, PARAMS, &s->with, out);
}

static iso_status backward(iso_reducer *r, const setup *s, int step) {
    for (int i = PARAMS - 1; i >= 0; i--) {
        bool used =
            s->with.unused == ISO_UNUSED_ERROR || i != WTE || step % 3 > 0 || test_rank == 0;
        if (!used) continue;
        write_gradient(iso_reducer_grad(r, i), i, test_rank, step, test_size);
        ISO_TRY(iso_reducer_grad_ready(r, i));
    }
    return s->with.sync == ISO_SYNC_EXPLICIT ? iso_reducer_all_reduce(r) : ISO_OK;
}

// ---- Golden sums ----------------------------------------------------------------------------------------

// The ranks' gradients, added in the order of the ranks, in their own type.
static bool is_sum(iso_reducer *r, int i, int step) {
    static double all[MOST], more[MOST];
    write_gradient(all, i, 0, step, test_size);
    for (int rank = 1; rank < test_size; rank++) {
        write_gradient(more, i, rank, step, test_size);
        for (size_t k = 0; k < count_of(i); k++) put(all, i, k, get(all, i, k) + get(more, i, k));
    }
    return memcmp(all, iso_reducer_grad(r, i), bytes_of(i)) == 0;
}

static void adds_in_the_order_of_the_ranks(void) {
    for (int sync = ISO_SYNC_LAZY; sync <= ISO_SYNC_EXPLICIT; sync++) {
        setup s = {.with = {.sync = (iso_sync)sync, .average = ISO_AVERAGE_SUM}};
        iso_reducer *r = NULL;
        if (sync == ISO_SYNC_NONE) continue;
        iso_assert_ok(create(&s, &r));
        for (int step = 0; step < STEPS; step++) {
            iso_reducer_zero_grad(r);
            iso_assert_ok(backward(r, &s, step));
            iso_assert_ok(iso_reducer_finish(r));
            iso_assert_all(is_sum(r, WTE, step) && is_sum(r, WPE, step));
            iso_assert_all(is_sum(r, TABLE64, step));
        }
        iso_reducer_destroy(&r);
    }
}
Test(np1_sparse_rows, adds_in_the_order_of_the_ranks) { adds_in_the_order_of_the_ranks(); }
Test(np2_sparse_rows, adds_in_the_order_of_the_ranks) { adds_in_the_order_of_the_ranks(); }
Test(np3_sparse_rows, adds_in_the_order_of_the_ranks) { adds_in_the_order_of_the_ranks(); }
Test(np4_sparse_rows, adds_in_the_order_of_the_ranks) { adds_in_the_order_of_the_ranks(); }
Test(np3_sparse_rows, adds_in_the_same_order_between_nodes) {
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    adds_in_the_order_of_the_ranks();
}

// Rows that are not finite are rows, too.
Test(np3_sparse_rows, nan_and_infinity_arrive) {
    setup s = {.with = {.average = ISO_AVERAGE_SUM}};
    iso_reducer *r = NULL;
    iso_assert_ok(create(&s, &r));
    for (int i = PARAMS - 1; i >= 0; i--) {
        void *g = iso_reducer_grad(r, i);
        memset(g, 0, bytes_of(i));
        if (test_rank == 2 && limit[i] > 0) put_row(g, i, 5, NAN);
        if (test_rank == 1 && limit[i] > 0) put_row(g, i, 6, INFINITY);
        iso_assert_ok(iso_reducer_grad_ready(r, i));
    }
    iso_assert_ok(iso_reducer_finish(r));
    for (int i = 0; i < PARAMS; i++) {
        const void *g = iso_reducer_grad(r, i);
        for (size_t k = 0; limit[i] > 0 && k < row[i]; k++) {
            iso_assert_all(isnan(get(g, i, 5 * row[i] + k)) && get(g, i, 4 * row[i] + k) == 0);
            iso_assert_all(get(g, i, 6 * row[i] + k) == INFINITY);
        }
    }
    iso_reducer_destroy(&r);
}

// ---- Training: the bits of dense gradients --------------------------------------------------------------

static iso_status one_step(iso_reducer *r, const setup *s, int step) {
    const double lr = 0.1;
    bool idle = s->weighted && step % 3 == 2 && test_rank == test_size - 1;
    for (int i = 0; i < PARAMS; i++) ISO_TRY(iso_reducer_param_needed(r, i));
    iso_reducer_zero_grad(r);
    if (s->weighted) {
        ISO_TRY(iso_reducer_finish(r));
        ISO_TRY(iso_reducer_set_weight(r, idle ? 0 : 0.5 + test_rank, test_size * 0.7));
    }
    if (s->with.sums > 0) ISO_TRY(iso_reducer_add_sum(r, 0, step));
    ISO_TRY(idle ? iso_reducer_shadow(r) : backward(r, s, step));
    return iso_reducer_step(r, &lr);
}

static void train(const setup *s) {
    iso_reducer *r = NULL;
    double sum = -1, ms;
    iso_assert_ok(create(s, &r));
    iso_assert_ok(iso_reducer_set_apply(r, update, sizeof(double), NULL));
    for (int step = 0; step < STEPS; step++) {
        iso_assert_ok(one_step(r, s, step));
        if (s->with.sums > 0) iso_assert_ok(iso_reducer_get_sum(r, 0, &sum));
        if (s->with.sums > 0) iso_assert_all(sum == step * test_size);
    }
    iso_assert_ok(iso_reducer_finish(r));
    iso_assert_ok(iso_reducer_measure_exchange(r, 2, &ms)); // changes no value
    iso_reducer_destroy(&r);
}

static bool saved_are(int first, int end, double saved[PARAMS][MOST]) {
    for (int i = first; i < end; i++)
        if (memcmp(saved[i], value[i], bytes_of(i)) != 0) return false;
    return true;
}

// Sums of f64 travel as messages, which add in an order of their own on more than two ranks.
static void expect_dense_bits(setup s) {
    static double dense[PARAMS][MOST];
    s.dense = true;
    train(&s);
    memcpy(dense, value, sizeof(dense));
    s.dense = false;
    train(&s);
    iso_assert_all(saved_are(0, test_size > 2 ? TABLE64 : PARAMS, dense));
}

static void give_the_bits_of_dense_ones(void) {
    static const iso_sync modes[] = {ISO_SYNC_LAZY, ISO_SYNC_BLOCKING, ISO_SYNC_EXPLICIT};
    for (int m = 0; m < 3; m++)
        for (int average = ISO_AVERAGE_POST; average <= ISO_AVERAGE_SUM; average++)
            expect_dense_bits(
                (setup){.with = {.sync = modes[m],
                                 .average = (iso_average_mode)average,
                                 .split_factor = 1.7,
                                 .sums = modes[m] == ISO_SYNC_LAZY ? 1 : 0,
                                 .bucket_bytes = average == ISO_AVERAGE_PRE ? 9000 : 0}});
}
Test(np1_sparse_rows, give_the_bits_of_dense_ones) { give_the_bits_of_dense_ones(); }
Test(np2_sparse_rows, give_the_bits_of_dense_ones) { give_the_bits_of_dense_ones(); }
Test(np3_sparse_rows, give_the_bits_of_dense_ones) { give_the_bits_of_dense_ones(); }
Test(np4_sparse_rows, give_the_bits_of_dense_ones) { give_the_bits_of_dense_ones(); }

static void unused_and_uneven_ones_too(void) {
    for (int m = ISO_SYNC_LAZY; m <= ISO_SYNC_BLOCKING; m++)
        for (int unused = ISO_UNUSED_ERROR; unused <= ISO_UNUSED_NEGOTIATE; unused++)
            expect_dense_bits((setup){.with = {.sync = (iso_sync)m, .unused = (iso_unused)unused},
                                      .weighted = unused == ISO_UNUSED_ERROR});
}
Test(np2_sparse_rows, unused_and_uneven_ones_too) { unused_and_uneven_ones_too(); }
Test(np3_sparse_rows, unused_and_uneven_ones_too) { unused_and_uneven_ones_too(); }

Test(np4_sparse_rows, averages_of_a_node_too) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    expect_dense_bits((setup){.with = {.scope = ISO_SCOPE_NODE}});
}

static void delayed_ones_too(void) {
    for (int m = ISO_SYNC_LAZY; m <= ISO_SYNC_BLOCKING; m++)
        expect_dense_bits((setup){.with = {.sync = (iso_sync)m}, .delayed = true});
}
Test(np2_sparse_rows, delayed_ones_too) { delayed_ones_too(); }
Test(np3_sparse_rows, delayed_ones_too) { delayed_ones_too(); }

// A hook works on the other gradients, as it does without sparse ones.
static void hooks_leave_them_alone(void) {
    static double plain[PARAMS][MOST], hooked[PARAMS][MOST];
    const iso_comm_hook hooks[] = {iso_hook_bf16, iso_hook_int8, iso_hook_topk(NULL)};
    for (int sync = ISO_SYNC_LAZY; sync <= ISO_SYNC_BLOCKING; sync++)
        for (int h = 0; h < 3; h++) {
            setup s = {.with = {.sync = (iso_sync)sync}};
            train(&s);
            memcpy(plain, value, sizeof(plain));
            s.with.hook = &hooks[h];
            s.dense = true;
            train(&s);
            memcpy(hooked, value, sizeof(hooked));
            s.dense = false;
            train(&s);
            iso_assert_all(saved_are(WTE, WTE + 1, plain) && saved_are(WPE, WPE + 1, plain));
            iso_assert_all(saved_are(TABLE64, TABLE64 + 1, plain));
            iso_assert_all(saved_are(DENSE, DENSE + 1, hooked));
        }
}
Test(np2_sparse_rows, hooks_leave_them_alone) { hooks_leave_them_alone(); }
Test(np3_sparse_rows, hooks_leave_them_alone) { hooks_leave_them_alone(); }

// ---- What travels ---------------------------------------------------------------------------------------

// A head of 16 bytes, 4 for the number of each row, and the rows.
static long long block_of(int i) {
    size_t size = is_double(i) ? sizeof(double) : sizeof(float);
    return (long long)(16 + (4 * limit[i] + 7) / 8 * 8 + (limit[i] * row[i] * size + 7) / 8 * 8);
}

static void blocks_are_counted(int others) { // how many go to other nodes
    iso_reducer_stats before, after;
    setup s = {.with = {.bucket_bytes = 1 << 20}};
    iso_reducer_param param[2];
    iso_reducer *r = NULL;
    const int tables[2] = {WTE, TABLE64};
    long long bytes = block_of(WTE) + block_of(TABLE64);
    for (int k = 0; k < 2; k++) {
        int i = tables[k];
        param[k] = (iso_reducer_param){.name = name[i],
                                       .value = value[i],
                                       .count = count_of(i),
                                       .dtype = is_double(i) ? ISO_F64 : ISO_F32,
                                       .row = row[i],
                                       .sparse_rows = limit[i]};
    }
    iso_assert_ok(iso_reducer_create(test_comm, param, 2, &s.with, &r));
    for (int step = 0; step < 2; step++) { // no token in one of them
        iso_reducer_get_stats(r, &before);
        for (int k = 1; k >= 0; k--) {
            write_gradient(iso_reducer_grad(r, k), tables[k], test_rank, step, test_size);
            iso_assert_ok(iso_reducer_grad_ready(r, k));
        }
        iso_assert_ok(iso_reducer_finish(r));
        iso_reducer_get_stats(r, &after);
        iso_assert_all(after.bucket_count == 2 && (long long)after.bytes_per_step == bytes);
        iso_assert_all(after.bytes_world - before.bytes_world == bytes);
        iso_assert_all(after.bytes_sent - before.bytes_sent == bytes * (test_size - 1));
        iso_assert_all(after.bytes_between_nodes - before.bytes_between_nodes == bytes * others);
    }
    for (int k = 0; k < 2; k++) {
        iso_bucket_stats b;
        iso_assert_ok(iso_reducer_get_bucket_stats(r, k, &b));
        iso_assert_all((long long)b.wire_bytes == block_of(tables[1 - k]) && b.exchanges == 2);
    }
    iso_reducer_destroy(&r);
}
Test(np2_sparse_rows, blocks_are_counted) { blocks_are_counted(0); }
Test(np4_sparse_rows, blocks_are_counted_between_nodes) {
    setenv("ISO_RANKS_PER_NODE", "2", 1);
    blocks_are_counted(1); // to each other node once
}

static void steps_allocate_nothing(iso_sync sync) {
    setup s = {.with = {.sync = sync}};
    iso_reducer *r = NULL;
    long long before, after;
    iso_assert_ok(create(&s, &r));
    iso_assert_ok(iso_reducer_set_apply(r, update, sizeof(double), NULL));
    for (int step = 0; step < 16; step++) iso_assert_ok(one_step(r, &s, step));
    iso_memory_balance(NULL, NULL, &before);
    for (int step = 0; step < 8; step++) iso_assert_ok(one_step(r, &s, step));
    iso_assert_ok(iso_reducer_finish(r));
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(before == after);
    iso_reducer_destroy(&r);
}
Test(np2_sparse_rows, steps_allocate_nothing) { steps_allocate_nothing(ISO_SYNC_LAZY); }
Test(np3_sparse_rows, blocking_steps_allocate_nothing) {
    steps_allocate_nothing(ISO_SYNC_BLOCKING);
}

// ---- What is refused ------------------------------------------------------------------------------------

static iso_status too_many(iso_reducer *r, const setup *s) {
    for (int i = PARAMS - 1; i >= 0; i--) {
        void *g = iso_reducer_grad(r, i);
        write_gradient(g, i, test_rank, 0, test_size);
        if (i == WTE && test_rank == 1) memset(g, 0, bytes_of(i));
        for (size_t k = 0; i == WTE && test_rank == 1 && k < 20; k++) put_row(g, i, 2 * k, 1);
        ISO_TRY(iso_reducer_grad_ready(r, i));
    }
    if (s->with.sync == ISO_SYNC_EXPLICIT) ISO_TRY(iso_reducer_all_reduce(r));
    return iso_reducer_finish(r);
}

static void too_many_rows_are_named(void) {
    static const iso_sync modes[] = {ISO_SYNC_LAZY, ISO_SYNC_BLOCKING, ISO_SYNC_EXPLICIT};
    for (int m = 0; m < 3; m++) {
        setup s = {.with = {.sync = modes[m]}};
        iso_reducer *r = NULL;
        iso_assert_ok(create(&s, &r));
        iso_status status = too_many(r, &s);
        const char *said = iso_last_error()->message;
        iso_assert_all(status == ISO_ERR_ARG);
        iso_assert_all(strstr(said, "the gradient of \"wte\" has 20 non-zero rows on rank 1, but "
                                    "its sparse_rows is 12: give the largest number of rows"));
        log_capture();
        iso_reducer_destroy(&r); // does not report it again
        iso_assert_all(log_said("", 0));
    }
}
Test(np2_sparse_rows, too_many_rows_are_named) { too_many_rows_are_named(); }
Test(np3_sparse_rows, too_many_rows_are_named) { too_many_rows_are_named(); }
Test(np4_sparse_rows, ranks_are_those_of_the_world) {
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    too_many_rows_are_named();
}

static iso_status create_one(size_t of_row, size_t sparse, bool zero) {
    iso_reducer_config config = {.zero = zero};
    iso_reducer_param param = {
        .name = "wte", .value = value[WTE], .count = 60, .row = of_row, .sparse_rows = sparse};
    iso_reducer *r = NULL;
    iso_status status = iso_reducer_create(test_comm, &param, 1, &config, &r);
    iso_reducer_destroy(&r);
    return status;
}

// Of a tensor of all layers, whose slices are buckets.
Test(np2_sparse_rows, a_limit_that_saves_nothing_is_warned_of_once) {
    static float table[4][20][6];
    iso_reducer_param param = {
        .name = "tables", .value = table, .count = 120, .row = 6, .layers = 4, .sparse_rows = 19};
    iso_reducer *r = NULL;
    log_capture();
    iso_assert_ok(iso_reducer_create(test_comm, &param, 1, NULL, &r));
    iso_assert_all(log_said(test_rank == 0 ? "saves nothing on 2 ranks" : "", test_rank == 0));
    iso_reducer_destroy(&r);
}

static bool said(const char *text) { return strstr(iso_last_error()->message, text) != NULL; }

Test(np3_sparse_rows, ranks_must_agree) {
    iso_assert_all(create_one(6, test_rank == 1 ? 4 : 3, false) == ISO_ERR_MISMATCH);
    iso_assert_all(said("rank 1") && said("sparse_rows 4") && said("sparse_rows 3"));
    iso_assert_all(create_one(6, test_rank == 1 ? 4 : 0, false) == ISO_ERR_MISMATCH);
    iso_assert_all(said("sparse_rows 4"));
}

Test(np2_sparse_rows, what_cannot_be_is_refused) {
    iso_assert_all(create_one(0, 4, false) == ISO_ERR_ARG && said("\"wte\" has sparse_rows"));
    iso_assert_all(create_one(6, 4, true) == ISO_ERR_UNSUPPORTED && said("sparse_rows"));
    iso_assert_ok(create_one(6, 1000, false)); // all rows
}
