// SPDX-License-Identifier: MIT
// What training moves, as iso_traffic defines it: sums over ranks, and what is not training.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"

#include "comm/traffic.h"

#include <isotherm/reducer.h>
#include <isotherm/sync_batchnorm.h>

#include <criterion/criterion.h>
#include <stdlib.h>

TestSuite(np1_traffic, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_traffic, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_traffic, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static void setup_rabenseifner(void) {
    setenv("ISO_IALLREDUCE", "3", 1);
    test_mpi_setup();
}
TestSuite(np3_traffic_rabenseifner, .init = setup_rabenseifner, .fini = test_mpi_teardown,
          .timeout = 60);

static int64_t longest; // bytes that MPI was asked to sum at once

int MPI_Iallreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request) {
    int size;
    MPI_Type_size(type, &size);
    if ((int64_t)count * size > longest) longest = (int64_t)count * size;
    return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

static int64_t longest_message;

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    int size;
    MPI_Type_size(type, &size);
    if ((int64_t)count * size > longest_message) longest_message = (int64_t)count * size;
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

enum { STEPS = 4, FEATURES = 6 };
enum { RING = 1, BINOMIAL, RABENSEIFNER, RECURSIVE_DOUBLING }; // as Open MPI counts them

// ---- Algorithms -----------------------------------------------------------------------------------

static const int64_t alone[8] = {0, 1, 2, 3, 4, 5, 6, 7};

static void expect_all(int algorithm, int size, double all) {
    iso__sum_cost cost = iso__sum_cost_of(algorithm, alone, size);
    cr_assert_float_eq(cost.all, all, 1e-12, "algorithm %d on %d ranks: %g", algorithm, size,
                       cost.all);
    cr_assert_float_eq(cost.between, all, 1e-12);
}

// Of Rabenseifner's on 3 ranks the interfaces of emulated hosts count the same, see
// tests/cluster/check_bytes.sh.
Test(np1_traffic, follows_the_messages_of_each_algorithm) {
    static const double rabenseifner[] = {2, 4.5, 6, 8.5, 11, 13.5, 14};
    static const double doubling[] = {2, 4, 8, 10, 12, 14, 24};
    for (int size = 2; size <= 8; size++) {
        expect_all(0, size, 2 * (size - 1));
        expect_all(RING, size, 2 * (size - 1));
        expect_all(BINOMIAL, size, 2 * (size - 1));
        expect_all(RABENSEIFNER, size, rabenseifner[size - 2]);
        expect_all(RECURSIVE_DOUBLING, size, doubling[size - 2]);
        expect_all(ISO_SUM_PAIRWISE, size, 2 * (size - 1));
        expect_all(ISO_SUM_HALVING, size, 2 * (size - 1));
    }
}

static void expect_between(int algorithm, int64_t a, int64_t b, int64_t c, int64_t d, double all) {
    int64_t node_of[] = {a, b, c, d};
    cr_assert_float_eq(iso__sum_cost_of(algorithm, node_of, 4).between, all, 1e-12);
}

// Halves are exchanged with the neighbour first, so that only a quarter crosses over; a ring has
// two links that do.
Test(np1_traffic, what_crosses_nodes_depends_on_where_ranks_are) {
    expect_between(RABENSEIFNER, 0, 0, 2, 2, 2);
    expect_between(RABENSEIFNER, 0, 1, 0, 1, 4);
    expect_between(RABENSEIFNER, 0, 0, 0, 0, 0);
    expect_between(RING, 0, 0, 2, 2, 3);
    expect_between(RING, 0, 1, 0, 1, 6);
    expect_between(BINOMIAL, 0, 0, 2, 2, 3);
    expect_between(RECURSIVE_DOUBLING, 0, 0, 2, 2, 4);
    expect_between(ISO_SUM_PAIRWISE, 0, 0, 2, 2, 4);
    expect_between(ISO_SUM_PAIRWISE, 0, 1, 0, 1, 4);
    expect_between(ISO_SUM_PAIRWISE, 0, 0, 0, 3, 3);
    expect_between(ISO_SUM_HALVING, 0, 0, 2, 2, 2);
    expect_between(ISO_SUM_HALVING, 0, 1, 0, 1, 4);
    const int64_t in_turn[] = {0, 1, 2, 0, 1, 2}; // where neighbours are on different nodes
    cr_assert_float_eq(iso__sum_cost_of(RABENSEIFNER, in_turn, 6).between, 10, 1e-12);
    cr_assert_float_eq(iso__sum_cost_of(ISO_SUM_HALVING, in_turn, 6).between, 9, 1e-12);
}

// ---- Training -------------------------------------------------------------------------------------

static iso_traffic of_all(iso_traffic mine) {
    int64_t sum[2] = {mine.bytes_sent, mine.bytes_between_nodes};
    iso_assert_ok(iso_comm_allreduce_i64(test_comm, sum, 2, ISO_SUM));
    return (iso_traffic){sum[0], sum[1]};
}

static iso_traffic traffic(trainer *t) {
    iso_traffic mine = {0};
    iso_assert_ok(iso_data_parallel_get_traffic(t->model, &mine));
    return of_all(mine);
}

static int64_t step_bytes(trainer *t) {
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(t->model), &stats);
    return (int64_t)stats.bytes_per_step;
}

// Evaluation and measuring do not count.
static iso_traffic trained(const trainer_config *config, bool sync_norm, int64_t *each) {
    trainer t;
    double ms;
    iso_assert_ok(trainer_create(&t, test_comm, config));
    if (sync_norm) iso_assert_ok(iso_sync_batchnorm_convert(t.model, test_comm, NULL));
    iso_assert_all(traffic(&t).bytes_sent == 0);
    iso_assert_ok(trainer_train(&t, STEPS));
    iso_assert_ok(iso_data_parallel_finish(t.model));
    iso_traffic after = traffic(&t);
    iso_assert_ok(iso_module_train(t.model, false));
    iso_tensor *out;
    iso_assert_ok(trainer_forward(&t, 0, &out));
    iso_assert_ok(iso_module_train(t.model, true));
    iso_assert_ok(iso_reducer_measure_exchange(iso_data_parallel_reducer(t.model), 2, &ms));
    iso_assert_all(traffic(&t).bytes_sent == after.bytes_sent);
    *each = step_bytes(&t);
    trainer_destroy(&t);
    return after;
}

// all, between: of a sum, in halves of its bytes.
static void sums_gradients(const char *ranks_per_node, int64_t all, int64_t between) {
    static const iso_comm_hook *const hooks[] = {NULL, &iso_hook_bf16};
    int64_t each;
    setenv("ISO_RANKS_PER_NODE", ranks_per_node, 1);
    for (int i = 0; i < 4; i++) {
        trainer_config config = trainer_default();
        config.sync = i % 2 ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY;
        config.hook = hooks[i / 2];
        iso_traffic moved = trained(&config, false, &each);
        iso_assert_all(each > 0 && 2 * moved.bytes_sent == STEPS * each * all);
        iso_assert_all(2 * moved.bytes_between_nodes == STEPS * each * between);
    }
    trainer_config config = trainer_default();
    config.hook = &iso_hook_noop;
    iso_assert_all(trained(&config, false, &each).bytes_sent == 0);
}

Test(np4_traffic, of_gradients_between_nodes) { sums_gradients("2", 12, 4); }
Test(np4_traffic, of_gradients_where_each_rank_is_a_node) { sums_gradients("1", 12, 12); }
Test(np3_traffic, of_gradients_where_each_rank_is_a_node) { sums_gradients("1", 8, 8); }

// Statistics say how gradients are summed.
static void tell_how(const char *ranks_per_node, bool two_levels, bool pairwise) {
    trainer t;
    trainer_config config = trainer_default();
    iso_reducer_stats stats;
    setenv("ISO_RANKS_PER_NODE", ranks_per_node, 1);
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_reducer_get_stats(iso_data_parallel_reducer(t.model), &stats);
    iso_assert_all(stats.two_levels == two_levels && stats.pairwise == pairwise);
    iso_assert_all(stats.shared_memory == (atoi(ranks_per_node) >= test_size));
    trainer_destroy(&t);
}

Test(np3_traffic, how_gradients_are_summed_is_told) {
    tell_how("1", false, true);
    tell_how("2", true, false); // between two nodes
    tell_how("3", false, false);
}
Test(np3_traffic_rabenseifner, how_gradients_are_summed_is_told) { tell_how("1", false, false); }

static iso_status build_norms(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 4};
    iso_module *net, *m;
    iso_conv2d_config c = {
        .in_channels = TRAINER_CHANNELS, .out_channels = FEATURES, .kernel_size = {3, 3}};
    iso_batch_norm_config b = {.num_features = FEATURES};
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(iso_conv2d_create(device, &c, &rng, &m));
    ISO_TRY(iso_sequential_add_take(net, "conv", m));
    ISO_TRY(iso_batch_norm2d_create(device, &b, &m));
    ISO_TRY(iso_sequential_add_take(net, "bn", m));
    ISO_TRY(iso_flatten_create(device, &m));
    ISO_TRY(iso_sequential_add_take(net, "flatten", m));
    ISO_TRY(iso_linear_create(device, FEATURES * 64, TRAINER_CLASSES, true, &rng, &m));
    ISO_TRY(iso_sequential_add_take(net, "fc", m));
    *out = net;
    return ISO_OK;
}

// Bytes of all ranks in a step besides gradients.
static int64_t beside(iso_buffer_mode mode, iso_buffer_when when, bool sync_norm) {
    trainer_config config = trainer_default();
    int64_t each;
    config.build = build_norms;
    config.buffers = (iso_buffer_config){.mode = mode, .when = when};
    iso_traffic moved = trained(&config, sync_norm, &each);
    iso_assert_all(moved.bytes_sent == moved.bytes_between_nodes);
    int64_t rest = moved.bytes_sent - STEPS * each * 2 * (test_size - 1);
    iso_assert_all(rest % STEPS == 0);
    return rest / STEPS;
}

// A mean of buffers travels as doubles, each rank's count of batches as two of them. A batch norm
// sums two numbers a feature and a count, forward and backward.
Test(np4_traffic, of_buffers_and_batch_norms) {
    int64_t others = test_size - 1, mean = (2 * FEATURES + 2 * test_size) * 8;
    int64_t buffers = 2 * FEATURES * 4 + 8, norm = 2 * (2 * FEATURES + 1) * 8;
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    iso_assert_all(beside(ISO_BUFFERS_AVERAGE, ISO_BUFFERS_AT_EVALUATION, false) == 0);
    iso_assert_all(beside(ISO_BUFFERS_AVERAGE, ISO_BUFFERS_AFTER_BACKWARD, false) ==
                   2 * others * mean);
    iso_assert_all(beside(ISO_BUFFERS_RANK0, ISO_BUFFERS_BEFORE_FORWARD, false) ==
                   others * buffers);
    iso_assert_all(beside(ISO_BUFFERS_AVERAGE, ISO_BUFFERS_AT_EVALUATION, true) ==
                   2 * others * norm);
}

// ---- Messages -------------------------------------------------------------------------------------

// MPI's all-reduce sends half of its values at a time, pairwise exchange a slice. Open MPI's TCP
// transport sends a message that fits into 64 KB with its header at once, and asks the receiver
// first before a longer one.
static void stays_short(iso_sync sync) {
    enum { COUNT = 9 * 32768, HEADER = 64 };
    static float value[COUNT];
    iso_reducer *r;
    iso_reducer_param param = {.name = "a", .value = value, .count = COUNT, .dtype = ISO_F32};
    iso_reducer_config config = {.sync = sync, .order = ISO_ORDER_REVERSE};
    setenv("ISO_RANKS_PER_NODE", "1", 1);
    iso_assert_ok(iso_reducer_create(test_comm, &param, 1, &config, &r));
    longest = longest_message = 0;
    iso_assert_ok(iso_reducer_grad_ready(r, 0));
    iso_assert_ok(iso_reducer_finish(r));
    int64_t most = longest / 2 > longest_message ? longest / 2 : longest_message;
    iso_assert_all(most > 4096 && most + HEADER <= 65536);
    iso_reducer_destroy(&r);
}

static void both_stay_short(void) {
    stays_short(ISO_SYNC_BLOCKING);
    stays_short(ISO_SYNC_LAZY);
}

Test(np3_traffic, of_long_gradients_leaves_without_asking) { both_stay_short(); }
Test(np4_traffic, of_long_gradients_leaves_without_asking) { both_stay_short(); }

// ---- Parameters -----------------------------------------------------------------------------------

static iso_traffic of_parameters(trainer *t) {
    iso_daso_stats stats;
    iso_assert_ok(iso_daso_get_stats(t->optimizer, &stats));
    return of_all((iso_traffic){stats.bytes_sent, stats.bytes_between_nodes});
}

static void look(trainer *t) {
    iso_assert_ok(iso_module_train(t->model, false));
    iso_assert_ok(iso_module_train(t->model, true));
}

// Ranks that work alone have parameters of their own: the mean that evaluation shows moves as much
// as an exchange, and does not count. Of n bytes, 2 n go to the node's shards, 2 n between two
// nodes, and 2 n back from the shards.
Test(np4_traffic, of_parameters_without_evaluation) {
    trainer t;
    daso_case c = daso_case_default(12);
    c.ranks_per_node = 2;
    c.daso.unit = ISO_SCOPE_RANK;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(&t, 6)); // sent after 4, merged after 5
    iso_traffic before = of_parameters(&t);
    look(&t);
    iso_traffic after = of_parameters(&t);
    iso_assert_all(after.bytes_sent == before.bytes_sent);
    iso_assert_all(after.bytes_between_nodes == before.bytes_between_nodes);
    iso_assert_all(before.bytes_sent > 0);
    iso_assert_all(3 * before.bytes_between_nodes == before.bytes_sent);
    daso_close(&t);
}

static iso_traffic of_sixteen_steps(int64_t local_skip, int64_t *count) {
    trainer t;
    daso_case c = daso_case_default(40);
    c.ranks_per_node = 2;
    c.daso.global_skip = 4;
    c.daso.local_skip = local_skip;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    free(daso_values(&t, count));
    iso_assert_ok(trainer_train(&t, 16));
    iso_assert_ok(iso_daso_complete(t.optimizer)); // the fourth mean counts whole
    iso_traffic moved = of_parameters(&t);
    daso_close(&t);
    return moved;
}

// Ranks of a node that average their gradients only every other batch average their parameters
// before each of the 4 sends: 2 (g - 1) n in each of two nodes of two ranks.
Test(np4_traffic, of_means_inside_nodes) {
    int64_t count;
    iso_traffic equal = of_sixteen_steps(1, &count), apart = of_sixteen_steps(2, &count);
    iso_assert_all(apart.bytes_between_nodes == equal.bytes_between_nodes);
    iso_assert_all(apart.bytes_sent - equal.bytes_sent == 4 * 2 * 2 * count * 4);
}
