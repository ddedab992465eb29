// SPDX-License-Identifier: MIT
// After an exchange that failed, the schedule's next ones are made.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <math.h>

TestSuite(np2_periodic_failed, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Trains from a poisoned step on, in which a value of rank 1 is no number until step() has sent it.
// Returns the steps that failed, one bit for each.
static unsigned failing_steps(trainer *t, int from, int poisoned, int to) {
    unsigned failed = 0;
    for (int step = from; step < to; step++) {
        iso_status status = step == poisoned ? daso_poisoned_step(t, step, test_rank == 1, NAN)
                                             : trainer_step(t, step, NULL);
        iso_assert_all(daso_same_status(status));
        failed |= (unsigned)(status < 0) << step;
    }
    return failed;
}

static void open_heat(trainer *t) {
    daso_case c = heat_case_default(4);
    c.train.hyper.lr = c.train.hyper.momentum = 0; // which would keep the NaN
    c.heat_config.max_global_skips = 1;
    c.heat_config.last_batch = 9;
    iso_assert_ok(daso_open(t, MPI_COMM_WORLD, &c));
    iso_assert_ok(trainer_train(t, 10));
    iso_assert_ok(iso_daso_epoch_loss(t->optimizer, 1, true));
}

// Each batch sends, and merges what the batch before it has sent. After a merge that failed, the
// next exchange is under way, as the schedule says.
Test(np2_periodic_failed, a_heat_merge_that_fails_does_not_stop_the_next_exchange) {
    trainer t;
    iso_daso_stats stats;
    open_heat(&t);
    iso_assert_all(failing_steps(&t, 0, 3, 8) == 1 << 4);
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(stats.pending);
    daso_close(&t);
}

// The same at the end of an epoch, where all ranks take the mean of what was sent last.
Test(np2_periodic_failed, a_heat_merge_that_fails_at_the_end_of_an_epoch) {
    trainer t;
    iso_daso_stats stats;
    open_heat(&t);
    iso_assert_ok(daso_drift(&t, 0.01f * (float)test_rank));
    iso_assert_all(failing_steps(&t, 0, 8, 10) == 1 << 9);
    iso_assert_ok(iso_daso_get_stats(t.optimizer, &stats));
    iso_assert_all(!stats.pending && daso_equal(&t));
    iso_assert_ok(iso_daso_epoch_loss(t.optimizer, 1, true));
    iso_assert_all(failing_steps(&t, 0, -1, 10) == 0);
    daso_close(&t);
}

// The other fragment, which is sent in the step in which this one fails, goes on, and so does this
// one.
Test(np2_periodic_failed, a_fragment_that_fails_is_sent_again) {
    trainer t;
    daso_case c = daso_case_default(30);
    c.train.hyper.lr = c.train.hyper.momentum = 0;
    c.daso.batches_to_wait = 2;
    c.daso.fragments = 2;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, &c));
    unsigned failed = failing_steps(&t, 0, 5, 29);
    iso_assert_all(failed != 0 && (failed & (failed - 1)) == 0); // one step
    daso_close(&t);
}
