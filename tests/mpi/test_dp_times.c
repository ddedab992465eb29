// SPDX-License-Identifier: MIT
// The times of forward, backward and exchange that a DataParallel tells. Lower bounds only: a busy
// machine may take longer.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/parallel.h>
#include <isotherm/trace.h>

TestSuite(np1_dp_times, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_dp_times, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { STEPS = 4, FORWARD_MS = 30, BACKWARD_MS = 20 };

static void spend_ms(int64_t ms) {
    int64_t end = iso_now() + ms * 1000000;
    while (iso_now() < end) continue;
}

static iso_status delay_forward(iso_module *module, iso_tensor **in, void *user) {
    (void)module;
    (void)in;
    (void)user;
    spend_ms(FORWARD_MS);
    return ISO_OK;
}

static iso_status delay_backward(iso_module *module, void *user) {
    (void)module;
    (void)user;
    spend_ms(BACKWARD_MS);
    return ISO_OK;
}

static iso_data_parallel_times times_of(trainer *t) {
    iso_data_parallel_times times;
    iso_assert_ok(iso_data_parallel_get_times(t->model, &times));
    return times;
}

// All within the time that passed; forwards in evaluation mode do not count.
static void forward_and_backward_are_timed(void) {
    trainer t;
    trainer_config config = trainer_default();
    iso_tensor *out;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_data_parallel_times none = times_of(&t);
    iso_assert_all(none.forwards == 0 && none.backwards == 0 && none.forward_ms == 0 &&
                   none.backward_ms == 0 && none.exchange_ms == 0 && none.overlap_ms == 0);
    iso_assert_ok(iso_data_parallel_add_before_forward(t.model, delay_forward, NULL, NULL));
    iso_assert_ok(iso_data_parallel_add_pre_sync_hook(t.model, delay_backward, NULL, NULL));
    int64_t began = iso_now();
    iso_assert_ok(trainer_train(&t, STEPS));
    iso_assert_ok(iso_module_train(t.model, false));
    iso_assert_ok(trainer_forward(&t, STEPS, &out));
    iso_assert_ok(iso_module_train(t.model, true));
    double passed = (double)(iso_now() - began) * 1e-6 / STEPS;
    iso_data_parallel_times now = times_of(&t);
    iso_assert_all(now.forwards == STEPS && now.backwards == STEPS);
    iso_assert_all(now.forward_ms >= FORWARD_MS && now.backward_ms >= BACKWARD_MS);
    iso_assert_all(now.forward_ms + now.backward_ms <= passed);
    // With a pre-sync hook gradients leave at the end of the backward.
    iso_assert_all(now.overlap_ms >= 0 && now.overlap_ms <= now.exchange_ms);
    iso_assert_all((now.exchange_ms > 0) == (test_size > 1));
    trainer_destroy(&t);
}
Test(np1_dp_times, forward_and_backward_are_timed) { forward_and_backward_are_timed(); }
Test(np3_dp_times, forward_and_backward_are_timed) { forward_and_backward_are_timed(); }

// The last layer's bucket leaves before the first layer's backward, which takes its time.
static iso_status delay_first_layer(iso_module *module, iso_tensor *grad_out, void *user) {
    (void)module;
    (void)grad_out;
    (void)user;
    spend_ms(BACKWARD_MS);
    return ISO_OK;
}

Test(np3_dp_times, an_exchange_during_backward_overlaps) {
    trainer t;
    trainer_config config = trainer_default();
    iso_module_hooks hooks = {.before_backward = delay_first_layer};
    int handle;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(iso_module_add_hooks(t.model->child[0]->child[0], &hooks, &handle));
    iso_assert_ok(trainer_train(&t, STEPS));
    iso_data_parallel_times now = times_of(&t);
    iso_assert_all(now.exchange_ms >= now.overlap_ms && now.overlap_ms > 0);
    trainer_destroy(&t);
}
