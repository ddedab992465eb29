// SPDX-License-Identifier: MIT
// Delayed parameters: they leave after all others, in every order of reports, and change no bit.
#include "base/base.h"
#include "common/any_device.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/reducer.h>
#include <stdlib.h>
#include <string.h>

// Only messages are planned.
static void setup_messages(void) {
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    test_mpi_setup();
}

TestSuite(np1_delayed, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_delayed, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_delayed, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_delayed_messages, .init = setup_messages, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_delayed_messages, .init = setup_messages, .fini = test_mpi_teardown, .timeout = 60);

// ---- A model of arrays ------------------------------------------------------------------------------

// All of f32 that travel are longer than 128 KiB, below which buckets are not planned, unless they
// are shrunk. c.weight may be cut into pieces, d.gate stays on its rank.
static const struct {
    const char *name;
    size_t count, row;
    iso_dtype dtype;
    int layer;
    bool local;
} shape[] = {
    {"a.weight", 80000, 100, ISO_F32, 0, false}, {"a.bias", 40000, 0, ISO_F32, 0, false},
    {"b.scale", 300, 0, ISO_F64, 1, false},      {"c.weight", 96000, 96, ISO_F32, 2, false},
    {"c.bias", 41000, 0, ISO_F32, 2, false},     {"d.gate", 40, 0, ISO_F32, 3, true},
    {"d.scale", 64, 0, ISO_F64, 3, false},       {"e.weight", 50000, 0, ISO_F32, 4, false},
};
enum { PARAMS = sizeof(shape) / sizeof(shape[0]), MOST = 96000, PLANNED = 10, STEPS = 14 };
enum { NONE = 0, FIRST = 1 << 0, SOME = FIRST | 1 << 3 | 1 << 6, LAST = 1 << 7 };
enum { ALL = (1 << PARAMS) - 1 - (1 << 5) };

static double memory[PARAMS][MOST]; // f32 parameters use half of theirs
static size_t shrunk = 1;           // lengths are divided by this

static size_t count_of(int i) { return shape[i].count / shrunk; }

static double get(const void *data, iso_dtype dtype, size_t k) {
    return dtype == ISO_F64 ? ((const double *)data)[k] : (double)((const float *)data)[k];
}

static void set(void *data, iso_dtype dtype, size_t k, double x) {
    if (dtype == ISO_F64)
        ((double *)data)[k] = x;
    else
        ((float *)data)[k] = (float)x;
}

static iso_status descend(const iso_reducer_update *u) {
    double rate = *(const double *)u->hyper * u->scale;
    for (size_t k = 0; k < u->count; k++)
        set(u->value, u->dtype, k,
            get(u->value, u->dtype, k) - rate * get(u->gradient, u->dtype, k));
    return ISO_OK;
}

static iso_status create(const iso_reducer_config *config, int delayed, iso_reducer **out) {
    iso_reducer_param params[PARAMS];
    for (int i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < count_of(i); k++) set(memory[i], shape[i].dtype, k, i);
        params[i] = (iso_reducer_param){.name = shape[i].name,
                                        .value = memory[i],
                                        .count = count_of(i),
                                        .row = shape[i].row,
                                        .dtype = shape[i].dtype,
                                        .layer = shape[i].layer,
                                        .local = shape[i].local,
                                        .delayed = delayed >> i & 1};
    }
    return iso_reducer_create(test_comm, params, PARAMS, config, out);
}

// Whole numbers: sums have the same bits in any order.
static double gradient_of(int rank, int step, int i, size_t k) {
    return (double)((k * 7 + (size_t)(i * 3 + step * 5 + rank * 11)) % 17) - 8;
}

static bool uses(const iso_reducer_config *config, int rank, int step, int i) {
    return config->unused == ISO_UNUSED_ERROR || (step + i + rank) % 3 != 0;
}

// forth: in the order of the forward, in which delayed ones are ready before the others.
static iso_status backward(iso_reducer *r, const iso_reducer_config *config, int step, bool forth) {
    iso_status status = config->sums > 0 ? iso_reducer_add_sum(r, 0, test_rank + step) : ISO_OK;
    for (int n = 0; n < PARAMS && status == ISO_OK; n++) {
        int i = forth ? n : PARAMS - 1 - n;
        if (!uses(config, test_rank, step, i)) continue;
        for (size_t k = 0; k < count_of(i); k++)
            set(iso_reducer_grad(r, i), shape[i].dtype, k, gradient_of(test_rank, step, i, k));
        status = iso_reducer_grad_ready(r, i);
    }
    return status;
}

static iso_status train_step(iso_reducer *r, const iso_reducer_config *config, int step,
                             bool forth) {
    double lr = 0.125;
    iso_status status = ISO_OK;
    for (int i = 0; i < PARAMS && status == ISO_OK; i++) status = iso_reducer_param_needed(r, i);
    iso_reducer_zero_grad(r);
    if (status == ISO_OK) status = backward(r, config, step, forth);
    return status == ISO_OK ? iso_reducer_step(r, &lr) : status;
}

// What a run showed.
typedef struct sight {
    uint64_t hash;
    int buckets, pieces; // pieces: of c.weight
    double sum;
    bool planned, last; // last: the last bucket started after all others, under the plan
} sight;

enum { BUCKETS = 64 }; // more than there are, also of pieces

// Adds the times at which buckets have started so far, or subtracts them.
static void add_starts(iso_reducer *r, double sign, double *start_ms) {
    iso_bucket_stats stats;
    for (int b = 0; b < BUCKETS && iso_reducer_get_bucket_stats(r, b, &stats) == ISO_OK; b++)
        start_ms[b] += sign * stats.start_ms * (double)stats.exchanges;
}

static bool is_last(const double *start_ms, int buckets) {
    for (int b = 0; b < buckets - 1; b++)
        if (start_ms[b] > start_ms[buckets - 1]) return false;
    return true;
}

static sight run(const iso_reducer_config *config, int delayed, bool forth) {
    sight s = {.hash = ISO_HASH_START};
    double start_ms[BUCKETS] = {0};
    iso_reducer *r;
    iso_reducer_stats stats;
    iso_assert_ok(create(config, delayed, &r));
    iso_status status = iso_reducer_set_update(r, descend, sizeof(double), NULL);
    for (int step = 0; step < STEPS && status == ISO_OK; step++) {
        status = train_step(r, config, step, forth);
        if (step == PLANNED) add_starts(r, -1, start_ms);
    }
    if (status == ISO_OK) status = iso_reducer_finish(r);
    if (status == ISO_OK && config->sums > 0) status = iso_reducer_get_sum(r, 0, &s.sum);
    iso_assert_ok(status);
    iso_reducer_get_stats(r, &stats);
    s.buckets = stats.bucket_count;
    s.planned = stats.planned;
    add_starts(r, 1, start_ms);
    s.last = is_last(start_ms, s.buckets);
    s.pieces = iso_reducer_pieces(r, 3);
    for (int i = 0; i < PARAMS; i++)
        if (!shape[i].local)
            s.hash = iso__hash(s.hash, memory[i], count_of(i) * iso_dtype_size(shape[i].dtype));
    iso_reducer_destroy(&r);
    return s;
}

// ---- The same bits ----------------------------------------------------------------------------------

static void same_bits(const iso_reducer_config *config, bool back_only) {
    static const int sets[] = {FIRST, SOME, ALL};
    shrunk = 20;
    sight expected = run(config, NONE, false);
    for (size_t n = 0; n < sizeof(sets) / sizeof(sets[0]); n++)
        for (int forth = 0; forth < 2 - back_only; forth++) {
            sight s = run(config, sets[n], forth);
            iso_assert_all(s.hash == expected.hash && s.sum == expected.sum);
            if (config->piece_bytes > 0) cr_expect_eq(s.pieces > 1, (sets[n] >> 3 & 1) == 0);
        }
}

static void every_way(void) {
    const iso_reducer_config ways[] = {
        {.sums = 1},
        {.bucket_bytes = 1 << 30, .sums = 1},
        {.bucket_bytes = 1 << 14, .last_bucket_bytes = 1, .sums = 1, .order = ISO_ORDER_REVERSE},
        {.piece_bytes = 3000, .sums = 1},
        {.unused = ISO_UNUSED_NEGOTIATE, .piece_bytes = 3000},
        {.unused = ISO_UNUSED_ZERO, .average = ISO_AVERAGE_PRE},
        {.scope = ISO_SCOPE_NODE, .sums = 1},
        {.hook = &iso_hook_bf16_feedback, .sums = 1},
        {.hook = &iso_hook_f16, .bucket_bytes = 1 << 14},
        {.zero = 1, .bucket_bytes = 1 << 14, .sums = 1},
        {.zero = 2, .sums = 1},
        {.zero = true, .piece_bytes = 3000, .unused = ISO_UNUSED_NEGOTIATE},
    };
    for (size_t n = 0; n < sizeof(ways) / sizeof(ways[0]); n++) same_bits(&ways[n], false);
    same_bits(&(iso_reducer_config){.sync = ISO_SYNC_BLOCKING, .sums = 1}, true);
    same_bits(&(iso_reducer_config){.sync = ISO_SYNC_BLOCKING, .hook = &iso_hook_bf16}, true);
}

Test(np1_delayed, changes_no_bit) { every_way(); }
Test(np2_delayed, changes_no_bit) { every_way(); }
Test(np3_delayed, changes_no_bit) { every_way(); }
Test(np2_delayed_messages, changes_no_bit) { every_way(); }
Test(np3_delayed_messages, changes_no_bit) { every_way(); }

// ---- After all others -------------------------------------------------------------------------------

// f32: a.bias, c with its two parameters, e; f64: b, d; d.gate; and one of each type that is
// delayed.
Test(np2_delayed, share_one_bucket_of_each_type) {
    const iso_reducer_config each = {0}, one = {.bucket_bytes = 1 << 30};
    cr_expect_eq(run(&each, NONE, false).buckets, 8);
    cr_expect_eq(run(&one, NONE, false).buckets, 3);
    cr_expect_eq(run(&one, FIRST, false).buckets, 4);
    cr_expect_eq(run(&one, SOME, false).buckets, 5);
    cr_expect_eq(run(&each, ALL, false).buckets, 3);
}

// What a plan by need would send first, because it is ready and needed first.
static void leave_last_under_a_plan(void) {
    const iso_reducer_config config = {.order = ISO_ORDER_NEED};
    sight s = run(&config, FIRST, true);
    iso_assert_all(s.planned && s.last);
}

Test(np2_delayed_messages, leave_last_under_a_plan) { leave_last_under_a_plan(); }
Test(np3_delayed_messages, leave_last_under_a_plan) { leave_last_under_a_plan(); }

// The numbers of buckets in the order in which they were given to a hook.
static struct { int index[PARAMS * STEPS], count; } left;

static iso_status note_bucket(const iso_comm_hook_bucket *bucket, double factor, void *user) {
    (void)user;
    for (size_t k = 0; k < bucket->count; k++)
        ((float *)bucket->wire)[k] = (float)(((const float *)bucket->gradient)[k] * factor);
    if (left.count < PARAMS * STEPS) left.index[left.count++] = bucket->index;
    return ISO_OK;
}

static iso_status read_back(const iso_comm_hook_bucket *bucket, double factor, void *user) {
    (void)user;
    for (size_t k = 0; k < bucket->count; k++)
        ((float *)bucket->gradient)[k] = (float)(((const float *)bucket->wire)[k] * factor);
    return ISO_OK;
}

// Ready first, they wait until the last of the others is ready.
Test(np2_delayed, leave_last_if_they_are_ready_first) {
    const iso_comm_hook hook = {
        .name = "notes", .wire = ISO_F32, .compress = note_bucket, .decompress = read_back};
    const iso_reducer_config config = {.hook = &hook};
    left.count = 0;
    int buckets = run(&config, FIRST, true).buckets, each = left.count / STEPS;
    iso_assert_all(each > 2 && left.count == each * STEPS);
    for (int n = 0; n < left.count; n++)
        iso_assert_all((left.index[n] == buckets - 1) == (n % each == each - 1));
}

// ---- What is refused --------------------------------------------------------------------------------

static void refuse(int delayed, iso_status expected, const char *word) {
    iso_reducer *r = NULL;
    iso_assert_all(create(NULL, delayed, &r) == expected && !r);
    cr_expect(strstr(iso_last_error()->message, word), "%s", iso_last_error()->message);
}

Test(np3_delayed, contradictions_are_refused) {
    refuse(1 << 5, ISO_ERR_ARG, "\"d.gate\" is both delayed and not exchanged (local)");
    refuse(test_rank == 1 ? LAST : NONE, ISO_ERR_MISMATCH,
           "\"e.weight\" 50000 elements f32 (layer 4)");
}

// ---- DataParallel -----------------------------------------------------------------------------------

static void wrap(iso_data_parallel_config dp, int buckets, uint64_t *hash) {
    trainer t;
    trainer_config config = trainer_default();
    iso_module *net;
    iso_optimizer *inner;
    iso_reducer_stats stats;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_optimizer_destroy(&t.optimizer);
    iso_module_destroy(&t.model);
    iso_assert_ok(build_small_cnn(t.device, false, &net));
    iso_assert_ok(iso_data_parallel_create_take(net, test_comm, &dp, &t.model));
    iso_assert_ok(iso_optimizer_create(config.optimizer, t.model, &config.hyper, &inner));
    iso_assert_ok(iso_dp_optimizer_create_take(inner, t.model, &t.optimizer));
    iso_assert_ok(trainer_train(&t, 6));
    iso_assert_ok(trainer_hash(&t, hash));
    iso_reducer_get_stats(iso_data_parallel_reducer(t.model), &stats);
    cr_expect_eq(stats.bucket_count, buckets, "%d buckets, not %d", stats.bucket_count, buckets);
    trainer_destroy(&t);
}

static void data_parallel_delays(void) {
    const char *const some[] = {"conv1.weight", "fc2.bias"};
    uint64_t expected, hash;
    wrap((iso_data_parallel_config){0}, 4, &expected);
    for (int sync = ISO_SYNC_LAZY; sync <= ISO_SYNC_BLOCKING; sync++) {
        wrap((iso_data_parallel_config){.sync = (iso_sync)sync, .delay = some, .delay_count = 2}, 5,
             &hash);
        iso_assert_all(hash == expected);
    }
}

Test(np2_delayed, data_parallel_takes_names) { data_parallel_delays(); }

static void refuse_names(iso_data_parallel_config dp, const char *word) {
    iso_device *device;
    iso_module *net, *model;
    iso_assert_ok(iso_device_create(test_device(), &device));
    iso_assert_ok(build_small_cnn(device, false, &net));
    iso_assert_all(iso_data_parallel_create_take(net, test_comm, &dp, &model) == ISO_ERR_ARG);
    cr_expect(strstr(iso_last_error()->message, word), "%s", iso_last_error()->message);
    iso_device_destroy(&device);
}

Test(np2_delayed, wrong_names_are_refused) {
    const char *const name[] = {"fc2.bias", "fc3.bias"};
    refuse_names((iso_data_parallel_config){.delay = name, .delay_count = 2},
                 "delay \"fc3.bias\", but the module has no such parameter");
    refuse_names(
        (iso_data_parallel_config){
            .delay = name, .delay_count = 1, .ignore = name, .ignore_count = 1},
        "to delay and to ignore \"fc2.bias\"");
}
