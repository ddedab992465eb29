// SPDX-License-Identifier: MIT
// The weighted mean over nodes when a rank fails, comes late, or is used wrongly: every rank gets
// the same error, and the next exchange is what it would have been without.
#include "common/average_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

TestSuite(np1_average_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_average_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_average_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_average_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np5_average_faults, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

static mean_case c;
static float x[MOST_VALUES];
enum { COUNT = 1000, UNUSED = 100 }; // UNUSED: an exchange whose values no other has

// An exchange of x that must fail everywhere with this code and sentence.
static void expect_dropped(int group, iso_status code, const char *said) {
    const float *mean = x;
    iso_status status = mean_case_exchange(&c, group, UNUSED, x, &mean);
    bool right = status == code && strstr(iso_last_error()->message, said) && mean == x;
    if (!right) fprintf(stderr, "status %d: %s\n", (int)status, iso_last_error()->message);
    iso_assert_all(right);
    iso_assert_all(strstr(iso_last_error()->message, "dropped on all ranks and changed nothing"));
    iso_assert_all(!iso__average_busy(c.average));
}

// ---- Values that are not finite -------------------------------------------------------------------

// The rank of this node whose shard has element `at`.
static int rank_of_element(int node, size_t at) {
    int smallest = c.layout->smallest;
    size_t shard = (COUNT + (size_t)smallest - 1) / (size_t)smallest;
    return node * c.per_node + (int)(at / ((shard + 31) / 32 * 32));
}

static void drop_one(int t) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    char said[80];
    int node = t % c.nodes;
    size_t at = (size_t)(t * 397) % COUNT;
    mean_case_values(&c, ISO__SHARDS, test_rank, UNUSED, x);
    if (test_rank / c.per_node == node) x[at] = bad[t % 3];
    int rank = c.nodes == 1 ? 0 : rank_of_element(node, at);
    snprintf(said, sizeof(said), "rank %d: parameters are not finite", rank);
    expect_dropped(ISO__SHARDS, ISO_ERR_STATE, said);
}

static const iso__average_config configs[] = {
    {.wire = &iso__codec_f32},
    {.wire = &iso__codec_f32, .chunk = 130},
    {.wire = &iso__codec_bf16, .round_sums = true},
    {.wire = &iso__codec_bf16, .differences = true},
    {.wire = &iso__codec_f16, .differences = true, .chunk = 300},
    {.wire = &iso__codec_int8, .differences = true, .chunk = 300},
};

// Before the first exchange, between others, and twice running.
static void a_value_that_is_not_finite_changes_nothing(void) {
    for (int per_node = 1; per_node <= test_size; per_node++)
        for (int k = test_size > 3 ? per_node % 2 : 0; k<6; k += test_size> 3 ? 2 : 1) {
            mean_case_create(&c, per_node, COUNT, &configs[k]);
            for (int t = 0; t < 5; t++) {
                if (t != 1) drop_one(t + per_node);
                if (t == 3) drop_one(t + per_node + 1);
                iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
            }
            mean_case_destroy(&c);
        }
    mean_case_close(&c);
}

#define TEST_ON(suite, name)                                                                       \
    Test(suite, name) { name(); }
TEST_ON(np1_average_faults, a_value_that_is_not_finite_changes_nothing)
TEST_ON(np2_average_faults, a_value_that_is_not_finite_changes_nothing)
TEST_ON(np3_average_faults, a_value_that_is_not_finite_changes_nothing)
TEST_ON(np4_average_faults, a_value_that_is_not_finite_changes_nothing)
TEST_ON(np5_average_faults, a_value_that_is_not_finite_changes_nothing)

Test(np4_average_faults, the_lowest_rank_is_named) {
    iso__average_config config = {.wire = &iso__codec_bf16, .differences = true};
    mean_case_create(&c, 1, COUNT, &config);
    for (int t = 0; t < 3; t++) {
        mean_case_values(&c, ISO__SHARDS, test_rank, UNUSED, x);
        if (test_rank % 2 == 1) x[test_rank * 300] = NAN;
        expect_dropped(ISO__SHARDS, ISO_ERR_STATE, "rank 1: parameters are not finite");
        iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
    }
    mean_case_close(&c);
}

// Two nodes of two ranks: group 1 is the ranks 1 and 3.
Test(np4_average_faults, only_members_of_a_group_are_heard) {
    iso__average_config config = {.wire = &iso__codec_f32};
    mean_case_create(&c, 2, COUNT, &config);
    mean_case_values(&c, 1, test_rank, UNUSED, x);
    x[7] = test_rank == 3 ? NAN : 0;
    expect_dropped(1, ISO_ERR_STATE, "rank 3: parameters are not finite");
    const float *mean = NULL;
    x[7] = test_rank % 2 ? 1 : NAN;
    iso_assert_ok(mean_case_exchange(&c, 1, UNUSED, x, &mean));
    iso_assert_all(test_rank % 2 ? mean[7] == 1 : mean == NULL);
    mean_case_close(&c);
}

// ---- Values that do not fit -----------------------------------------------------------------------

static void too_large_for(iso__average_config config, float first, float second, const char *said) {
    mean_case_create(&c, 1, COUNT, &config);
    for (int t = 0; t < 3; t++) {
        mean_case_values(&c, ISO__SHARDS, test_rank, UNUSED, x);
        x[600] = test_rank ? second : first; // in the share of rank 1
        expect_dropped(ISO__SHARDS, ISO_ERR_STATE, said);
        iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
    }
    mean_case_close(&c);
}

Test(np2_average_faults, what_does_not_fit_into_the_wire_changes_nothing) {
    iso__average_config f16 = {.wire = &iso__codec_f16}, f32 = {.wire = &iso__codec_f32};
    iso__average_config rounded = {.wire = &iso__codec_f16, .round_sums = true};
    too_large_for(f16, 1e5f, 1, "rank 0: parameters or their sum are too large for f16");
    too_large_for(f32, 2e38f, 3e38f, "rank 1: parameters or their sum are too large for f32");
    too_large_for(rounded, 4e4f, 4e4f, "rank 1: parameters or their sum are too large for f16");
}

// The first exchange travels in f32, where it fits.
Test(np2_average_faults, a_difference_that_does_not_fit_changes_nothing) {
    iso__average_config config = {.wire = &iso__codec_f16, .differences = true};
    mean_case_create(&c, 1, COUNT, &config);
    for (int t = 0; t < 3; t++) {
        iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
        mean_case_values(&c, ISO__SHARDS, test_rank, UNUSED, x);
        if (test_rank == 1) x[0] = -1e5f;
        expect_dropped(ISO__SHARDS, ISO_ERR_STATE, "rank 1: parameters or their sum are too");
    }
    iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, 4));
    mean_case_close(&c);
}

// ---- MPI calls that fail --------------------------------------------------------------------------

// The call that says it failed is made all the same, so that the other ranks can go on.
static bool fail_next;
static MPI_Request lost = MPI_REQUEST_NULL;

int MPI_Iallgather(const void *send, int send_count, MPI_Datatype send_type, void *recv,
                   int recv_count, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request *request) {
    int rc = PMPI_Iallgather(send, send_count, send_type, recv, recv_count, recv_type, comm,
                             fail_next ? &lost : request);
    if (!fail_next) return rc;
    fail_next = false;
    return MPI_ERR_OTHER;
}

Test(np3_average_faults, a_failed_mpi_call_is_everybodys_error_and_changes_nothing) {
    char why[MPI_MAX_ERROR_STRING] = "";
    MPI_Error_string(MPI_ERR_OTHER, why, &(int){0});
    for (int k = 0; k < 6; k++) {
        mean_case_create(&c, 1, COUNT, &configs[k]);
        for (int t = 0; t < 4; t++) {
            mean_case_values(&c, ISO__SHARDS, test_rank, UNUSED, x);
            fail_next = test_rank == 1;
            expect_dropped(ISO__SHARDS, ISO_ERR_MPI, "rank 1: ");
            iso_assert_all(strstr(iso_last_error()->message, test_rank == 1 ? why : "MPI call"));
            MPI_Wait(&lost, MPI_STATUS_IGNORE);
            iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, t));
        }
        mean_case_destroy(&c);
    }
    mean_case_close(&c);
}

// ---- Ranks that come late -------------------------------------------------------------------------

static void create_with_timeout(double seconds, const iso__average_config *config) {
    iso_comm *all = test_comm;
    test_comm = test_comm_with_limit(seconds);
    mean_case_create(&c, 1, COUNT, config);
    iso_comm_destroy(&test_comm);
    test_comm = all;
}

// The late rank comes once the others have timed out: the first time-out is in the first phase, and
// a slow machine may add more of them in any phase.
static void wait_for_time_outs(void) {
    for (int i = 1; i < test_size; i++)
        MPI_Recv(NULL, 0, MPI_INT, MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

Test(np3_average_faults, a_late_rank_is_a_time_out_that_can_be_waited_out) {
    iso__average_config config = {.wire = &iso__codec_bf16, .differences = true};
    create_with_timeout(IMPATIENT, &config);
    iso_assert_all(mean_case_agrees(&c, ISO__SHARDS, 0));
    static float expected[MOST_VALUES];
    double metrics[ISO__METRICS] = {0};
    const float *mean = NULL;
    int time_outs = 0, late = test_size - 1;
    mean_case_model(&c, ISO__SHARDS, 1, expected);
    mean_case_values(&c, ISO__SHARDS, test_rank, 1, x);
    if (test_rank == late) wait_for_time_outs();
    iso_status status = iso__average_start(c.average, x, ISO__SHARDS, metrics);
    if (status >= 0) status = iso__average_finish(c.average, &mean, metrics);
    for (; status == ISO_ERR_TIMEOUT && time_outs < 100; time_outs++) {
        bool first = time_outs == 0 && test_rank != late;
        const char *where = first ? "mean over nodes (scatter)" : "mean over nodes (";
        cr_expect(strstr(iso_last_error()->message, where));
        cr_expect(iso__average_busy(c.average));
        if (first) MPI_Send(NULL, 0, MPI_INT, late, 77, MPI_COMM_WORLD);
        status = iso__average_finish(c.average, &mean, metrics);
    }
    iso_assert_ok(status);
    iso_assert_all(test_rank == late || time_outs > 0);
    iso_assert_all(memcmp(mean, expected, COUNT * sizeof(float)) == 0);
    mean_case_close(&c);
}

// The ranks that wait for a message of the late one say so.
static void late_peer_is_a_time_out(bool swap, const char *name) {
    iso__average_config config = {.wire = &iso__codec_f32, .kind = swap ? ISO__SWAP : ISO__GOSSIP};
    static float peer[MOST_VALUES];
    double metrics[ISO__METRICS] = {0};
    const float *mean = NULL;
    create_with_timeout(IMPATIENT, &config);
    iso__average_set_peer(c.average, 1 - test_rank);
    mean_case_values(&c, ISO__SHARDS, test_rank, 1, x);
    mean_case_values(&c, ISO__SHARDS, 1 - test_rank, 1, peer);
    if (swap && test_rank == 0) x[1] = NAN; // which is no error
    if (test_rank == 1) wait_for_time_outs();
    iso_status status = iso__average_start(c.average, x, ISO__SHARDS, metrics);
    if (status >= 0) status = iso__average_finish(c.average, &mean, metrics);
    bool told = status == ISO_ERR_TIMEOUT && strstr(iso_last_error()->message, name);
    if (test_rank == 0) MPI_Send(NULL, 0, MPI_INT, 1, 77, MPI_COMM_WORLD);
    for (int i = 0; status == ISO_ERR_TIMEOUT && i < 100; i++)
        status = iso__average_finish(c.average, &mean, metrics);
    iso_assert_ok(status);
    iso_assert_all(test_rank == 1 || told);
    bool right = true;
    for (int i = 0; i < COUNT; i++) {
        bool lost = swap && test_rank == 1 && i == 1;
        right =
            right && (lost ? isnan(mean[i]) : mean[i] == (swap ? peer[i] : (x[i] + peer[i]) / 2));
    }
    iso_assert_all(right);
    iso_assert_ok(iso__average_start(c.average, x, ISO__SHARDS, metrics));
    iso__average_destroy(&c.average); // under way
    cr_assert_null(c.average);
    mean_case_close(&c);
}
Test(np2_average_faults, a_late_peer_is_a_time_out_that_can_be_waited_out) {
    late_peer_is_a_time_out(false, "gossip");
}
Test(np2_average_faults, a_late_partner_is_a_time_out_that_can_be_waited_out) {
    late_peer_is_a_time_out(true, "exchange of models");
}

Test(np4_average_faults, one_that_is_under_way_can_be_destroyed) {
    for (int k = 0; k < 24; k++) {
        double metrics[ISO__METRICS] = {0};
        mean_case_create(&c, 1 + k / 6, COUNT, &configs[k % 6]);
        mean_case_values(&c, ISO__SHARDS, test_rank, 1, x);
        iso_assert_ok(iso__average_start(c.average, x, ISO__SHARDS, metrics));
        for (unsigned i = mean_case_random(4); i > 0; i--) iso__average_poll(c.average);
        iso__average_destroy(&c.average);
        cr_assert_null(c.average);
        mean_case_destroy(&c);
    }
    mean_case_close(&c);
}

// Whoever only polls gets there too, and then finish() has nothing to wait for.
Test(np4_average_faults, polling_alone_completes_it) {
    for (int per_node = 1; per_node <= 4; per_node++) {
        static float expected[MOST_VALUES];
        double metrics[ISO__METRICS] = {0};
        const float *mean = NULL;
        mean_case_create(&c, per_node, COUNT, &configs[1]);
        mean_case_model(&c, ISO__SHARDS, 1, expected);
        mean_case_values(&c, ISO__SHARDS, test_rank, 1, x);
        iso_assert_ok(iso__average_start(c.average, x, ISO__SHARDS, metrics));
        iso_status status = ISO_PENDING;
        while (status == ISO_PENDING) status = iso__average_poll(c.average);
        iso_assert_all(status == ISO_OK && iso__average_busy(c.average));
        iso_assert_ok(iso__average_finish(c.average, &mean, metrics));
        iso_assert_all(memcmp(mean, expected, COUNT * sizeof(float)) == 0);
        mean_case_destroy(&c);
    }
    mean_case_close(&c);
}

// ---- Wrong use ------------------------------------------------------------------------------------

Test(np2_average_faults, wrong_use_is_refused) {
    double metrics[ISO__METRICS] = {0};
    const float *mean = NULL;
    iso__average *none = NULL;
    mean_case_create(&c, 1, COUNT, &configs[3]);
    iso__average_config bad[] = {
        {.wire = NULL},
        {.wire = &iso__codec_bf16, .differences = true, .round_sums = true},
        {.wire = &iso__codec_bf16, .kind = ISO__SWAP},
        {.wire = &iso__codec_f32, .chunk = 8, .kind = ISO__GOSSIP},
        {.wire = &iso__codec_bf16, .kind = ISO__GOSSIP, .consensus_step = 1},
        {.wire = &iso__codec_bf16, .kind = ISO__GOSSIP, .differences = true}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        iso_assert_all(iso__average_create(c.routes, 1, &bad[i], &none) == ISO_ERR_ARG);
    iso_assert_all(iso__average_create(c.routes, 0, &configs[0], &none) == ISO_ERR_ARG);
    iso_assert_all(iso__average_start(c.average, x, 1, metrics) == ISO_ERR_ARG);
    iso_assert_all(iso__average_start(c.average, x, -2, metrics) == ISO_ERR_ARG);
    iso_assert_all(iso__average_start(c.average, x, 0, metrics) == ISO_ERR_ARG); // differences
    iso_assert_all(iso__average_finish(c.average, &mean, metrics) == ISO_ERR_STATE);
    iso_assert_all(iso__average_poll(c.average) == ISO_OK);
    iso_assert_ok(iso__average_start(c.average, x, ISO__SHARDS, metrics));
    iso_assert_all(iso__average_start(c.average, x, ISO__SHARDS, metrics) == ISO_ERR_STATE);
    iso_assert_all(iso__average_set_reference(c.average, x) == ISO_ERR_STATE);
    double ms;
    iso_assert_all(iso__average_measure(c.average, 1, &ms) == ISO_ERR_STATE);
    iso_assert_ok(iso__average_finish(c.average, &mean, metrics));
    mean_case_close(&c);
}
