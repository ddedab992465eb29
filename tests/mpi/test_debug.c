// SPDX-License-Identifier: MIT
// ISO_DEBUG: a program whose ranks call different collectives gets a sentence, one whose ranks do
// not come gets their names, and a program that is right computes the same.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(np2_debug, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_debug, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np4_debug, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_debug_life, .init = test_mpi_setup_bare, .timeout = 60);

static iso_comm *open_detail(double timeout_s) {
    setenv("ISO_DEBUG", "detail", 1);
    return test_comm_with_limit(timeout_s);
}

static bool said(const char *text) {
    bool there = strstr(iso_last_error()->message, text) != NULL;
    if (!there) fprintf(stderr, "\"%s\" is not in: %s\n", text, iso_last_error()->message);
    return there;
}

// ---- Ranks that call something else ---------------------------------------------------------------

Test(np3_debug, another_collective_is_named_on_every_rank) {
    double x[4] = {0};
    iso_comm *comm = open_detail(0);
    iso_status status =
        test_rank == 2 ? iso_comm_barrier(comm) : iso_comm_allreduce_f64(comm, x, 4, ISO_MAX);
    iso_assert_all(status == ISO_ERR_MISMATCH);
    iso_assert_all(said("rank 0 calls collective 1, a reduction (maximum) of 4 f64 numbers where "
                        "rank 2 calls collective 1, a barrier"));
    iso_comm_destroy(&comm);
}

// Without the comparison some of these would give wrong sums instead of an error.
Test(np2_debug, counts_types_operations_roots_and_names_must_agree) {
    double x[8] = {0};
    float f[8] = {0};
    int64_t k[8] = {0};
    iso_request *request = NULL;
    iso_comm *comm = open_detail(0);
    bool odd = test_rank == 1;
    iso_assert_all(iso_comm_allreduce_f64(comm, x, odd ? 3 : 4, ISO_SUM) == ISO_ERR_MISMATCH);
    iso_assert_all(iso_comm_allreduce_f64(comm, x, 4, odd ? ISO_MIN : ISO_SUM) == ISO_ERR_MISMATCH);
    iso_assert_all((odd ? iso_comm_allreduce_i64(comm, k, 4, ISO_SUM)
                        : iso_comm_allreduce_f64(comm, x, 4, ISO_SUM)) == ISO_ERR_MISMATCH);
    iso_assert_all(iso_comm_bcast(comm, x, 8, odd) == ISO_ERR_MISMATCH);
    iso_assert_all(iso_comm_iallreduce(comm, odd ? (void *)f : (void *)x, 8,
                                       odd ? ISO_F32 : ISO_F64, "loss",
                                       &request) == ISO_ERR_MISMATCH);
    iso_assert_all(iso_comm_iallreduce(comm, x, 8, ISO_F64, odd ? "loss" : "accuracy", &request) ==
                   ISO_ERR_MISMATCH);
    cr_expect(said("\"accuracy\" of 8 f64 elements where rank 1"));
    // What agrees still works.
    x[0] = test_rank + 1;
    iso_assert_ok(iso_comm_allreduce_f64(comm, x, 1, ISO_SUM));
    iso_assert_all(x[0] == 3);
    iso_comm_destroy(&comm);
}

// ---- Ranks that do not come -----------------------------------------------------------------------

Test(np3_debug_life, missing_ranks_are_named) {
    double x = 0;
    iso_comm *comm = open_detail(0.5);
    iso_status status = ISO_ERR_TIMEOUT;
    if (test_rank != 1) status = iso_comm_allreduce_f64(comm, &x, 1, ISO_SUM);
    if (test_rank != 1) cr_expect(said("rank 1 did not come to collective 1, a reduction (sum)"));
    cr_expect_eq(status, ISO_ERR_TIMEOUT);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}

Test(np3_debug_life, the_first_barrier_names_missing_ranks) {
    iso_comm_config config = {.timeout_s = 0.5};
    iso_comm *comm = NULL;
    setenv("ISO_DEBUG", "detail", 1);
    iso_status status = ISO_ERR_TIMEOUT;
    if (test_rank != 2) status = iso_comm_create(MPI_COMM_WORLD, &config, &comm);
    cr_expect_eq(status, ISO_ERR_TIMEOUT);
    if (test_rank == 0) cr_expect(said("rank 2 did not come to iso_comm_create within 0.5 s"));
    if (test_rank == 2) { // completes what the others gave up
        MPI_Request request;
        int64_t well = 3; // as all ranks that come later say
        usleep(1500000);
        MPI_Ireduce(&well, NULL, 1, MPI_INT64_T, MPI_MIN, 0, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}

Test(np2_debug, ranks_must_have_the_same_level) {
    iso_comm *comm = NULL;
    setenv("ISO_DEBUG", test_rank == 0 ? "detail" : "info", 1);
    iso_assert_all(iso_comm_create(MPI_COMM_WORLD, NULL, &comm) == ISO_ERR_MISMATCH);
    iso_assert_all(said("ISO_DEBUG is detail on rank 0 and info on rank 1") && !comm);
}

// ---- Right programs -------------------------------------------------------------------------------

static void computes_the_same(const daso_case *c) {
    uint64_t off, detail;
    unsetenv("ISO_DEBUG");
    iso_assert_ok(daso_hash(MPI_COMM_WORLD, c, 0, &off));
    setenv("ISO_DEBUG", "detail", 1);
    iso_log_set_level(ISO_LOG_WARN);
    iso_assert_ok(daso_hash(MPI_COMM_WORLD, c, 0, &detail));
    iso_assert_all(off == detail);
}

Test(np4_debug, detail_computes_the_same) {
    daso_case c = daso_case_default(20);
    c.ranks_per_node = 2;
    c.daso.batches_to_wait = 2;
    computes_the_same(&c);
    c.daso.warmup_steps = 8;
    c.daso.wire = ISO_WIRE_BF16;
    c.delay_us = 2000;
    computes_the_same(&c);
}

// ---- What info logs -------------------------------------------------------------------------------

static long count_lines(FILE *log, const char *with) {
    char line[1024];
    long found = 0;
    rewind(log);
    while (fgets(line, sizeof(line), log)) found += strstr(line, with) != NULL;
    return found;
}

Test(np2_debug, info_logs_the_environment_buckets_and_statistics_on_rank_0) {
    FILE *log = tmpfile();
    trainer t;
    iso_comm *comm;
    trainer_config train = trainer_default();
    setenv("ISO_DEBUG", "info", 1);
    setenv("UCX_TLS", "tcp", 1);
    iso_log_set_stream(log);
    iso_log_set_level(ISO_LOG_INFO); // the fixture has read ISO_LOG before
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &comm));
    iso_assert_ok(trainer_create(&t, comm, &train));
    iso_assert_ok(trainer_train(&t, 205));
    trainer_destroy(&t);
    iso_comm_destroy(&comm);
    iso_log_set_stream(stderr);
    long each = test_rank == 0 ? 1 : 0;
    iso_assert_all(count_lines(log, "info: MPI: ") == each);
    iso_assert_all(count_lines(log, "environment: UCX_TLS=tcp") == each);
    iso_assert_all(count_lines(log, "environment: OMPI_MCA_orte") == 0);
    iso_assert_all((count_lines(log, "bucket 0: ") > 0) == (test_rank == 0));
    iso_assert_all(count_lines(log, "steps 1 to 100: ") == each);
    iso_assert_all(count_lines(log, "steps 101 to 200: ") == each);
    iso_assert_all(count_lines(log, "steps 2") == 0);
    fclose(log);
}
