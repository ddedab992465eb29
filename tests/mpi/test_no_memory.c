// SPDX-License-Identifier: MIT
// Calls in which one rank runs out of memory, at each of its allocations in turn: every rank gets
// the error, nobody waits, nothing is lost, and the next call succeeds.
#include "common/dp_fixture.h"
#include "common/no_memory.h"
#include "exchange/average.h"

#include <isotherm/topology.h>

#include <string.h>

TestSuite(np2_no_memory, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);
TestSuite(np3_no_memory, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 120);

static iso_status gather_text(void) {
    char *all;
    size_t *sizes;
    ISO_TRY(iso_comm_gather(test_comm, "text", (size_t)test_rank, 1, &all, &sizes));
    cr_assert(test_rank != 1 || (sizes[0] == 0 && sizes[1] == 1 && memcmp(all, "tt", 1) == 0));
    iso_comm_free(all);
    iso_comm_free(sizes);
    return ISO_OK;
}

static iso_status survey_cores(void) {
    iso_cores cores;
    return iso_cores_survey(test_comm, 1, &cores);
}

static iso_status create_topology(void) {
    iso_topology_config config = iso_topology_default;
    iso_topology *topology;
    config.unit = ISO_SCOPE_RANK;
    config.use_mpi_groups = true;
    ISO_TRY(iso_topology_create(test_comm, &config, &topology));
    iso_topology_destroy(&topology);
    return ISO_OK;
}

static iso__routes *routes;

static iso_status create_average(void) {
    iso__average_config config = {.wire = &iso__codec_f32};
    iso__average *average;
    ISO_TRY(iso__average_create(routes, 100, &config, &average));
    iso__average_destroy(&average);
    return ISO_OK;
}

static void try_all(void) {
    try_each_allocation("gather_text", gather_text);
    try_each_allocation("survey_cores", survey_cores);
    try_each_allocation("create_topology", create_topology);
    iso_assert_ok(iso__routes_create(test_comm, NULL, 1, &routes));
    try_each_allocation("create_average", create_average);
    iso__routes_destroy(&routes);
}

Test(np2_no_memory, of_one_rank_is_the_error_of_all) { try_all(); }
Test(np3_no_memory, of_one_rank_is_the_error_of_all) { try_all(); }

// ---- Buckets ------------------------------------------------------------------------------------------

static trainer trained;

static iso_status rebuild_buckets(void) {
    return iso_data_parallel_rebuild(trained.model, &(iso_bucket_sizes){.bucket_mb = 0.001});
}

// A rebuild that fails leaves the buckets, and the run, as they were.
Test(np2_no_memory, a_rebuild_that_fails_changes_nothing) {
    trainer_config config = trainer_default();
    uint64_t hash, straight;
    iso_assert_ok(trainer_run(test_comm, &config, 5, &straight));
    iso_assert_ok(trainer_create(&trained, test_comm, &config));
    for (int step = 0; step < 2; step++) iso_assert_ok(trainer_step(&trained, step, NULL));
    try_each_allocation("rebuild_buckets", rebuild_buckets);
    for (int step = 2; step < 5; step++) iso_assert_ok(trainer_step(&trained, step, NULL));
    iso_assert_ok(trainer_hash(&trained, &hash));
    iso_assert_all(hash == straight);
    trainer_destroy(&trained);
}
