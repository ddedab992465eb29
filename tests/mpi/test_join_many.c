// SPDX-License-Identifier: MIT
// Uneven inputs of several models: one join for all has the bits of a join for each.
#include "common/join_couple.h"
#include "common/mpi_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <stdlib.h>

TestSuite(np1_join_many, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_join_many, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_join_many, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_join_many, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- The bits of separate joins -----------------------------------------------------------------------

static void train_together(couple *p) {
    int steps;
    iso_status status = couple_loop(p, &steps);
    if (status < 0) iso_error_print(stderr);
    iso_assert_all(status == ISO_PENDING);
}

// A loop, some steps without a join, and a second loop.
static void train(couple *p, bool together, uint64_t hash[2]) {
    couple_create(p, test_comm);
    for (int round = 0; round < 2; round++) {
        together ? train_together(p) : couple_train_apart(p);
        for (int m = 0; m < 2; m++) {
            if (p->u[m].train.sync != ISO_SYNC_EXPLICIT)
                iso_assert_ok(trainer_train(&p->model[m], 2));
        }
    }
    for (int m = 0; m < 2; m++) hash[m] = couple_digest(&p->model[m]);
    couple_destroy(p);
}

static void compare_as(couple p, iso_sync sync, const uint64_t apart[2]) {
    uint64_t together[2];
    for (int m = 0; m < 2; m++) p.u[m].train.sync = sync;
    train(&p, true, together);
    iso_assert_all(together[0] == apart[0]);
    iso_assert_all(together[1] == apart[1]);
}

static void compare(const couple *plan) {
    uint64_t apart[2];
    couple p = *plan;
    train(&p, false, apart);
    compare_as(*plan, ISO_SYNC_LAZY, apart);
    compare_as(*plan, ISO_SYNC_BLOCKING, apart);
}

static const iso_buffer_config buffers[] = {
    {.mode = ISO_BUFFERS_AVERAGE},
    {.mode = ISO_BUFFERS_RANK0, .when = ISO_BUFFERS_BEFORE_FORWARD},
    {.mode = ISO_BUFFERS_AVERAGE, .when = ISO_BUFFERS_AFTER_BACKWARD},
    {.mode = ISO_BUFFERS_RANK0, .when = ISO_BUFFERS_AFTER_FORWARD}};

static void divisors(void) {
    for (int d = ISO_JOIN_INITIAL; d <= ISO_JOIN_SAMPLES; d++)
        for (int i = 0; i < 4; i++) {
            couple p = couple_plan();
            for (int m = 0; m < 2; m++) {
                p.u[m].join.divisor = (iso_join_divisor)d;
                p.u[m].ragged = p.u[m].train.dropout = true;
                p.u[m].train.buffers = buffers[(i + d) % 4];
            }
            if (i == 0) couple_set_lengths(&p, 5, 2, 3);
            if (i == 1) couple_set_lengths(&p, 0, 4, 1);
            if (i == 2) couple_set_lengths(&p, 3, 3, 3);
            if (i == 3) couple_set_lengths(&p, 1, 6, 4);
            compare(&p);
        }
}

Test(np1_join_many, has_the_bits_of_separate_joins) { divisors(); }
Test(np2_join_many, has_the_bits_of_separate_joins) { divisors(); }
Test(np3_join_many, has_the_bits_of_separate_joins) { divisors(); }
Test(np4_join_many, has_the_bits_of_separate_joins) { divisors(); }

// Rank 0 runs out of data between two exchanges.
Test(np3_join_many, accumulation_has_the_bits_of_separate_joins) {
    for (int d = ISO_JOIN_INITIAL; d <= ISO_JOIN_SAMPLES; d++) {
        couple p = couple_plan();
        couple_set_lengths(&p, 4, 9, 6);
        for (int m = 0; m < 2; m++) {
            p.u[m].accumulate = 3;
            p.u[m].join.divisor = (iso_join_divisor)d;
            p.u[m].train.buffers = buffers[1];
        }
        compare(&p);
    }
}

Test(np3_join_many, explicit_exchanges_have_the_bits_of_separate_joins) {
    couple p = couple_plan();
    uint64_t apart[2];
    couple_set_lengths(&p, 2, 5, 3);
    for (int m = 0; m < 2; m++) p.u[m].train.sync = ISO_SYNC_EXPLICIT;
    couple copy = p;
    train(&copy, false, apart);
    compare_as(p, ISO_SYNC_EXPLICIT, apart);
}

static void share_out(iso_data_parallel_config *dp) { dp->zero = true; }

// Ranks with data wait for new values from those that are through.
static void shared_updates(void) {
    setenv("ISO_NODE_COLLECTIVE", "shm", 1); // whose sums are in the order of the ranks
    couple p = couple_plan();
    p.looks = true;
    couple_set_lengths(&p, 6, 2, 4);
    for (int m = 0; m < 2; m++) p.u[m].train.adjust = share_out;
    compare(&p);
}

Test(np2_join_many, zero_has_the_bits_of_separate_joins) { shared_updates(); }
Test(np3_join_many, zero_has_the_bits_of_separate_joins) { shared_updates(); }

static void train_on_comms(couple *p, bool together, uint64_t hash[2]) {
    iso_comm *second;
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &second));
    couple_create(p, second);
    together ? train_together(p) : couple_train_apart(p);
    for (int m = 0; m < 2; m++) hash[m] = couple_digest(&p->model[m]);
    couple_destroy(p);
    iso_comm_destroy(&second);
}

Test(np3_join_many, models_may_have_different_communicators) {
    couple p = couple_plan(), apart = p;
    uint64_t hash[4];
    for (int m = 0; m < 2; m++) p.u[m].train.buffers = buffers[1];
    couple_set_lengths(&p, 2, 5, 3);
    apart = p;
    train_on_comms(&p, true, hash);
    train_on_comms(&apart, false, hash + 2);
    iso_assert_all(hash[0] == hash[2] && hash[1] == hash[3]);
}

// ---- Both forwards before both backwards ------------------------------------------------------------

static iso_status forwards_first(couple *p, int step) {
    iso_tensor *out[2], *grad;
    double loss;
    for (int m = 0; m < 2; m++) {
        iso_optimizer_zero_grad(p->model[m].optimizer);
        ISO_TRY(trainer_forward(&p->model[m], step, &out[m]));
    }
    for (int m = 0; m < 2; m++) {
        trainer *t = &p->model[m];
        ISO_TRY(iso_loss_compute(t->loss, out[m], t->labels, &loss, NULL, &grad));
        ISO_TRY(iso_module_backward(t->model, grad, NULL));
    }
    return couple_step(p);
}

static iso_status one_by_one(couple *p, int step) {
    for (int m = 0; m < 2; m++) {
        iso_optimizer_zero_grad(p->model[m].optimizer);
        ISO_TRY(trainer_backward(&p->model[m], step));
    }
    return couple_step(p);
}

static void train_in_order(iso_status (*make)(couple *p, int step), iso_sync sync,
                           uint64_t hash[2]) {
    couple p = couple_plan();
    iso_join *join;
    iso_status status = ISO_OK;
    for (int m = 0; m < 2; m++) {
        p.u[m].train.sync = sync;
        p.u[m].train.buffers = buffers[2];
    }
    couple_create(&p, test_comm);
    iso_assert_ok(couple_begin(&p, &p.u[0].join, &join));
    for (int step = 0; status == ISO_OK; step++) {
        status = iso_join_next(join, step < 6 - 2 * test_rank ? 4 : 0, true);
        if (status == ISO_OK) status = make(&p, step);
    }
    iso_assert_all(status == ISO_PENDING);
    iso_join_end(&join);
    for (int m = 0; m < 2; m++) hash[m] = couple_digest(&p.model[m]);
    couple_destroy(&p);
}

Test(np3_join_many, all_forwards_may_come_first) {
    uint64_t usual[2], hash[2];
    train_in_order(one_by_one, ISO_SYNC_LAZY, usual);
    for (int s = 0; s < 2; s++) {
        train_in_order(forwards_first, s ? ISO_SYNC_BLOCKING : ISO_SYNC_LAZY, hash);
        iso_assert_all(hash[0] == usual[0] && hash[1] == usual[1]);
    }
}
