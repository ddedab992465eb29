// SPDX-License-Identifier: MIT
// Uneven inputs, what they must give: divisors by their definitions on one rank, the same bits
// lazily and blocking, accumulation, buffers, random layers, parameters that not all use.
#include "common/join_fixture.h"
#include "common/mpi_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <isotherm/trace.h>
#include <math.h>
#include <stdlib.h>

TestSuite(np1_join, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_join, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_join, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_join, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// The batches of ranks: even, one less, many less, all but one through, none at all.
static const int lengths[][4] = {{5, 5, 5, 5}, {6, 5, 6, 6}, {9, 2, 4, 7},
                                 {1, 1, 8, 1}, {8, 1, 1, 1}, {0, 6, 0, 3}};
enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]) };

static void set_lengths(uneven *u, int which) {
    for (int r = 0; r < 4; r++) u->batches[r] = lengths[which][r];
}

// ---- Equal to one rank ------------------------------------------------------------------------------

static uint64_t train(const uneven *u, trainer *t) {
    uint64_t hash = 0;
    iso_assert_ok(uneven_create(t, test_comm, u));
    iso_assert_ok(uneven_train(t, u));
    iso_assert_ok(trainer_hash(t, &hash)); // fails if ranks differ
    return hash;
}

static uint64_t train_as(uneven u, iso_sync sync) {
    trainer t;
    u.train.sync = sync;
    uint64_t hash = train(&u, &t);
    trainer_destroy(&t);
    return hash;
}

static void compare_with_model(const uneven *u) {
    trainer many, one;
    iso_comm *alone;
    double difference = 1;
    uint64_t hash = train(u, &many);
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(uneven_create(&one, alone, u));
    iso_assert_ok(uneven_model(&one, u, test_size));
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    if (!(difference < 2e-5))
        fprintf(stderr, "divisor %d, %d %d %d %d batches: off by %g\n", (int)u->join.divisor,
                u->batches[0], u->batches[1], u->batches[2], u->batches[3], difference);
    iso_assert_all(difference < 2e-5);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
    iso_assert_all(train_as(*u, ISO_SYNC_BLOCKING) == hash);
    iso_assert_all(train_as(*u, ISO_SYNC_EXPLICIT) == hash);
}

static void divisors(int accumulate) {
    uneven u = uneven_default();
    u.accumulate = accumulate;
    for (int d = ISO_JOIN_INITIAL; d <= ISO_JOIN_SAMPLES; d++)
        for (int i = 0; i < LENGTHS; i++) {
            u.join.divisor = (iso_join_divisor)d;
            u.ragged = i % 2 == 1;
            set_lengths(&u, i);
            // The longest ends with an exchange.
            for (int r = 0; accumulate && r < 4; r++)
                if (u.batches[r] == uneven_longest(&u, test_size))
                    u.batches[r] = (u.batches[r] + accumulate - 1) / accumulate * accumulate;
            compare_with_model(&u);
        }
}

Test(np1_join, divisors_by_definition) { divisors(0); }
Test(np2_join, divisors_by_definition) { divisors(0); }
Test(np3_join, divisors_by_definition) { divisors(0); }
Test(np4_join, divisors_by_definition) { divisors(0); }

// A rank may run out between two exchanges: what it has accumulated counts.
Test(np2_join, accumulation) { divisors(3); }
Test(np3_join, accumulation) { divisors(3); }

// Whatever is divided when, and however gradients travel.
static void average_pre(iso_data_parallel_config *dp) { dp->average = ISO_AVERAGE_PRE; }
static void average_split(iso_data_parallel_config *dp) {
    dp->average = ISO_AVERAGE_SPLIT;
    dp->split_factor = 2;
}

Test(np3_join, modes_of_averaging) {
    uneven u = uneven_default();
    u.ragged = true;
    set_lengths(&u, 2);
    for (int d = ISO_JOIN_INITIAL; d <= ISO_JOIN_SAMPLES; d++) {
        u.join.divisor = (iso_join_divisor)d;
        u.train.adjust = average_pre;
        compare_with_model(&u);
        u.train.adjust = average_split;
        compare_with_model(&u);
    }
}

Test(np3_join, through_a_hook) {
    uneven u = uneven_default();
    trainer t, plain;
    double difference = 1;
    set_lengths(&u, 2);
    u.ragged = true;
    u.join.divisor = ISO_JOIN_SAMPLES;
    train(&u, &plain);
    u.train.hook = &iso_hook_bf16;
    train(&u, &t);
    iso_assert_ok(trainer_difference(&t, &plain, &difference));
    iso_assert_all(difference > 0 && difference < 2e-3); // bf16 keeps 8 bits
    trainer_destroy(&t);
    trainer_destroy(&plain);
}

// ---- No difference where data is even ---------------------------------------------------------------

static void even_data(void) {
    uneven u = uneven_default();
    uint64_t hash[4];
    set_lengths(&u, 0);
    for (int d = ISO_JOIN_INITIAL; d <= ISO_JOIN_SAMPLES; d++) {
        u.join.divisor = (iso_join_divisor)d;
        hash[d] = train_as(u, ISO_SYNC_LAZY);
    }
    u.join.disabled = true;
    hash[3] = train_as(u, ISO_SYNC_LAZY);
    iso_assert_all(hash[0] == hash[3] && hash[1] == hash[3] && hash[2] == hash[3]);
}

Test(np2_join, even_data_gives_the_bits_that_it_gives_without) { even_data(); }
Test(np3_join, even_data_gives_the_bits_that_it_gives_without) { even_data(); }

// ---- Large models ------------------------------------------------------------------------------------

// flatten, fc1 200-1024 (its bucket is a long one, so that a plan of the order is made), fc2.
static iso_status build_wide(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_module *m;
    iso_status status = iso_sequential_create(device, out);
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(*out, NULL, m);
    if (status == ISO_OK) status = iso_linear_create(device, 200, 1024, true, &rng, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(*out, "fc1", m);
    if (status == ISO_OK) status = iso_linear_create(device, 1024, TRAINER_CLASSES, true, &rng, &m);
    return status == ISO_OK ? iso_sequential_add_take(*out, "fc2", m) : status;
}

// All ranks make the plan in the same step, also those that are through.
Test(np3_join, the_order_is_planned_with_ranks_that_are_through) {
    uneven u = uneven_default();
    trainer t;
    iso_reducer_stats stats;
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    u.train.build = build_wide;
    u.train.hyper.lr = 1e-3;
    for (int r = 0; r < 4; r++) u.batches[r] = r == 1 ? 14 : 4 * r;
    uint64_t hash = train(&u, &t);
    iso_reducer_get_stats(iso_data_parallel_reducer(t.model), &stats);
    iso_assert_all(stats.planned);
    trainer_destroy(&t);
    iso_assert_all(train_as(u, ISO_SYNC_BLOCKING) == hash);
}

// ---- Random layers ----------------------------------------------------------------------------------

// One rank on the batches of all ranks, one after the other, as one batch.
static iso_status train_on_all(trainer *one, const uneven *u, int ranks) {
    for (int step = 0; step < uneven_longest(u, ranks); step++) {
        int64_t rows = uneven_first_row(u, ranks, step);
        iso_optimizer_zero_grad(one->optimizer);
        ISO_TRY(uneven_batch(one, step, 0, rows, 1));
        ISO_TRY(iso_optimizer_step(one->optimizer));
    }
    return ISO_OK;
}

// In the second loop ranks draw again as if all had had data in the first one.
static void masks(void) {
    uneven u = uneven_default();
    trainer many, one;
    iso_comm *alone;
    double difference = 1;
    u.train.dropout = u.ragged = true;
    u.join.divisor = ISO_JOIN_SAMPLES;
    iso_assert_ok(uneven_create(&many, test_comm, &u));
    iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
    iso_assert_ok(uneven_create(&one, alone, &u));
    for (int loop = 0; loop < 2; loop++) {
        set_lengths(&u, 1 + loop);
        iso_assert_ok(uneven_train(&many, &u));
        iso_assert_ok(train_on_all(&one, &u, test_size));
    }
    iso_assert_ok(trainer_difference(&many, &one, &difference));
    iso_assert_all(difference < 2e-5);
    trainer_destroy(&one);
    trainer_destroy(&many);
    iso_comm_destroy(&alone);
}

Test(np2_join, masks_are_those_of_one_rank) { masks(); }
Test(np4_join, masks_are_those_of_one_rank) { masks(); }

// ---- Buffers ----------------------------------------------------------------------------------------

// norm, flatten, fc: running means are those of the input.
static iso_status build_norm(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_batch_norm_config norm = {.num_features = TRAINER_CHANNELS};
    iso_module *m;
    iso_status status = iso_sequential_create(device, out);
    if (status == ISO_OK) status = iso_batch_norm2d_create(device, &norm, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(*out, "norm", m);
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_sequential_add_take(*out, NULL, m);
    if (status == ISO_OK) status = iso_linear_create(device, 200, TRAINER_CLASSES, true, &rng, &m);
    return status == ISO_OK ? iso_sequential_add_take(*out, "out", m) : status;
}

// Mean over the first channel of a rank's batch.
static double batch_mean(const uneven *u, int rank, int step) {
    float x[TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE];
    const int pixels = TRAINER_SIZE * TRAINER_SIZE;
    int32_t label;
    double sum = 0;
    int64_t rows = uneven_rows(u, rank, step), first = uneven_first_row(u, rank, step);
    for (int64_t r = first; r < first + rows; r++) {
        trainer_row(x, step, r, &label);
        for (int i = 0; i < pixels; i++) sum += (double)x[i];
    }
    return sum / (double)(rows * pixels);
}

// Running means of all ranks after the loop.
static void model_means(const uneven *u, double mean[4], int64_t batches[4]) {
    const iso_buffer_config *c = &u->train.buffers;
    for (int q = 0; q < 4; q++) mean[q] = 0, batches[q] = 0;
    for (int step = 0; step < uneven_longest(u, test_size); step++) {
        double sum = 0;
        int active = 0, first = -1;
        for (int q = 0; q < test_size; q++) {
            if (uneven_rows(u, q, step) == 0) continue;
            mean[q] = 0.9 * mean[q] + 0.1 * batch_mean(u, q, step);
            batches[q]++;
            sum += mean[q];
            active++;
            if (first < 0) first = q;
        }
        if (c->when == ISO_BUFFERS_AT_EVALUATION) continue;
        double common = c->mode == ISO_BUFFERS_RANK0 ? mean[first] : sum / active;
        for (int q = 0; q < test_size; q++) mean[q] = common, batches[q] = step + 1;
    }
}

static void get_statistics(trainer *t, double *mean, int64_t *batches) {
    iso_buffer_list list;
    iso_assert_ok(iso_module_buffers(t->model, &list));
    *mean = (double)((float *)list.item[0]->value->data)[0];
    *batches = *(int64_t *)list.item[2]->value->data;
    iso_buffer_list_destroy(&list);
}

static void check_buffers(iso_buffer_config config) {
    for (int i = 1; i < LENGTHS; i++) {
        uneven u = uneven_default();
        trainer t;
        double mean[4], got = 0;
        int64_t batches[4], counted = 0;
        u.train.build = build_norm;
        u.train.buffers = config;
        set_lengths(&u, i);
        iso_assert_ok(uneven_create(&t, test_comm, &u));
        iso_assert_ok(uneven_train(&t, &u));
        model_means(&u, mean, batches);
        get_statistics(&t, &got, &counted);
        iso_assert_all(fabs(got - mean[test_rank]) < 1e-6 && counted == batches[test_rank]);
        if (config.when == ISO_BUFFERS_AT_EVALUATION) { // all ranks' count, also of those long done
            double sum = 0;
            for (int q = 0; q < test_size; q++) sum += mean[q];
            iso_assert_ok(iso_module_train(t.model, false));
            get_statistics(&t, &got, &counted);
            iso_assert_all(fabs(got - sum / test_size) < 1e-6);
            iso_assert_all(counted == uneven_longest(&u, test_size));
        }
        trainer_destroy(&t);
    }
}

Test(np3_join, buffers_of_a_rank_that_is_through_stay) {
    check_buffers((iso_buffer_config){.mode = ISO_BUFFERS_AVERAGE});
}
Test(np3_join, buffers_averaged_after_backward) {
    check_buffers((iso_buffer_config){ISO_BUFFERS_AVERAGE, ISO_BUFFERS_AFTER_BACKWARD, NULL, NULL});
}
Test(np3_join, buffers_of_the_first_rank_after_backward) {
    check_buffers((iso_buffer_config){ISO_BUFFERS_RANK0, ISO_BUFFERS_AFTER_BACKWARD, NULL, NULL});
}

Test(np3_join, buffers_without_blocking_after_forward) {
    check_buffers((iso_buffer_config){ISO_BUFFERS_AVERAGE, ISO_BUFFERS_AFTER_FORWARD, NULL, NULL});
    check_buffers((iso_buffer_config){ISO_BUFFERS_RANK0, ISO_BUFFERS_AFTER_FORWARD, NULL, NULL});
}

// Every forward but those behind no_sync: the ranks that are through keep to it.
Test(np3_join, buffers_before_forward_with_accumulation) {
    for (int i = 0; i < LENGTHS; i++) {
        uneven u = uneven_default();
        trainer t;
        double mean = 0;
        int64_t counted = 0;
        u.train.build = build_norm;
        u.train.buffers =
            (iso_buffer_config){ISO_BUFFERS_RANK0, ISO_BUFFERS_BEFORE_FORWARD, NULL, NULL};
        u.accumulate = 2;
        set_lengths(&u, i);
        uint64_t hash = train(&u, &t);
        iso_assert_ok(iso_module_train(t.model, false));
        get_statistics(&t, &mean, &counted);
        double largest = mean;
        iso_assert_ok(iso_comm_allreduce_f64(test_comm, &largest, 1, ISO_MAX));
        iso_assert_all(mean == largest);
        trainer_destroy(&t);
        iso_assert_all(train_as(u, ISO_SYNC_BLOCKING) == hash);
    }
}

// ---- Parameters that not all use --------------------------------------------------------------------

// A container of two branches of which each rank runs one.
static iso_status branch_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                 iso_tensor **out) {
    (void)call;
    return iso_module_call(self->child[test_rank > 0], ISO_ACT_NONE, in, out);
}

static iso_status branch_backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                  iso_tensor **grad_in) {
    (void)call;
    return iso_module_call_backward(self->child[test_rank > 0], grad_out, grad_in);
}

static const iso_module_ops branch_ops = {
    .type = "Branch", .forward = branch_forward, .backward = branch_backward};

static iso_status build_branches(iso_device *device, bool dropout, iso_module **out) {
    iso_module *branch = calloc(1, sizeof(*branch)), *a, *b;
    iso_status status = iso_module_init(branch, &branch_ops, device);
    if (status == ISO_OK) status = build_small_cnn(device, dropout, &a);
    if (status == ISO_OK) status = build_small_cnn(device, dropout, &b);
    if (status == ISO_OK) status = iso_module_add_child_take(branch, "a", a);
    if (status == ISO_OK) status = iso_module_add_child_take(branch, "b", b);
    *out = branch;
    return status;
}

static uint64_t hash_of(iso_module *module) {
    uint64_t hash = ISO_HASH_START;
    iso_parameter_list list;
    iso_tensor *value;
    iso_assert_ok(iso_module_parameters(module, &list));
    for (int i = 0; i < list.count; i++) {
        iso_assert_ok(iso_parameter_value(list.item[i], &value));
        hash = iso__hash(hash, value->data, (size_t)value->count * sizeof(float));
    }
    iso_parameter_list_destroy(&list);
    return hash;
}

// The branch of rank 0 alone stands still from when rank 0 is through, despite momentum; the other
// one goes on, on rank 0 too.
Test(np3_join, a_rank_without_data_uses_nothing) {
    uneven u = uneven_default();
    trainer t;
    u.train.build = build_branches;
    u.train.find_unused = true;
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_module *branch = iso_data_parallel_module(t.model);
    set_lengths(&u, 0);
    iso_assert_ok(uneven_train(&t, &u)); // all have data
    uint64_t a = hash_of(branch->child[0]), b = hash_of(branch->child[1]);
    for (int r = 0; r < 4; r++) u.batches[r] = 4 * (r > 0);
    iso_assert_ok(uneven_train(&t, &u));
    iso_assert_all(hash_of(branch->child[0]) == a && hash_of(branch->child[1]) != b);
    iso_assert_ok(trainer_hash(&t, &a));
    trainer_destroy(&t);
}

static void ignore_last_layer(iso_data_parallel_config *dp) {
    static const char *const name[] = {"fc2.weight", "fc2.bias"};
    dp->ignore = name;
    dp->ignore_count = 2;
}

// What only this rank updates stands still without its data.
Test(np2_join, parameters_that_are_not_exchanged_stand_still) {
    uneven u = uneven_default();
    trainer t;
    u.train.adjust = ignore_last_layer;
    iso_assert_ok(uneven_create(&t, test_comm, &u));
    iso_module *net = iso_data_parallel_module(t.model);
    iso_module *last = net->child[net->child_count - 1];
    set_lengths(&u, 0);
    iso_assert_ok(uneven_train(&t, &u));
    uint64_t before = hash_of(last);
    u.batches[0] = 4;
    u.batches[1] = 0;
    iso_assert_ok(uneven_train(&t, &u));
    iso_assert_all((hash_of(last) == before) == (test_rank == 1));
    before = hash_of(last);
    u.batches[1] = 4; // and moves again with it
    iso_assert_ok(uneven_train(&t, &u));
    iso_assert_all(hash_of(last) != before);
    trainer_destroy(&t);
}
