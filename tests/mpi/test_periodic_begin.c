// SPDX-License-Identifier: MIT
// Differences are counted from the parameters with which a run begins.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>

TestSuite(np2_periodic_begin, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_periodic_begin, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_periodic_begin, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 9 };

// A model that is loaded after the optimizer was created. With lr 0 all differences are 0, and no
// wire rounds 0. Those from what the parameters were at creation would be rounded.
static void stays(iso_wire wire, bool gossip) {
    trainer t;
    uint64_t loaded, after;
    daso_case c = daso_case_default(STEPS);
    if (gossip) c.daso = iso_gossip_config(STEPS, 2);
    c.daso.wire = wire;
    c.train.hyper.lr = c.train.hyper.momentum = 0;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    iso_assert_ok(daso_drift(&t, 0.371f));
    iso_assert_ok(daso_own_hash(&t, &loaded));
    iso_assert_ok(trainer_train(&t, STEPS - 1)); // the mean at the end is rounded
    iso_assert_ok(daso_own_hash(&t, &after));
    iso_assert_all(after == loaded);
    daso_close(&t);
}

Test(np2_periodic_begin, a_loaded_model_stays) {
    stays(ISO_WIRE_INT8, false);
    stays(ISO_WIRE_BF16, true);
}
Test(np3_periodic_begin, a_loaded_model_stays) {
    stays(ISO_WIRE_TOPK, false);
    stays(ISO_WIRE_INT4, true);
}
Test(np4_periodic_begin, a_loaded_model_stays) {
    stays(ISO_WIRE_BF16, false);
    stays(ISO_WIRE_FP8, false);
}
