// SPDX-License-Identifier: MIT
// Buffers of a module, such as the statistics of batch norms, in periodic training and in saved
// state.
#include "common/daso_fixture.h"
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"
#include "common/tensor_access.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np2_daso_buffers, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_daso_buffers, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np4_daso_buffers, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum { STEPS = 20, NUMBERS = 5 };

// ---- A layer that hands through, with a buffer of floats and a count ------------------------------

static iso_status forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)self, (void)call;
    *out = in;
    return ISO_OK;
}
static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    (void)self, (void)call;
    *grad_in = grad_out;
    return ISO_OK;
}
static const iso_module_ops keeper_ops = {
    .type = "Keeper", .forward = forward, .backward_input = backward_input};

static iso_dtype type = ISO_F32; // of the numbers
static const char *called = "numbers";

static iso_status build(iso_device *device, bool dropout, iso_module **out) {
    iso_module *net, *keeper = calloc(1, sizeof(iso_module));
    iso_buffer *numbers;
    iso_status status = build_smooth(device, dropout, &net);
    if (status < 0) return status;
    if ((status = iso_module_init(keeper, &keeper_ops, device)) < 0) return status;
    status = iso_module_add_buffer(keeper, called, type, 1, (int64_t[]){NUMBERS}, &numbers);
    if (status < 0) return status;
    if ((status = iso_tensor_fill(numbers->value, 0.25)) < 0) return status;
    if ((status = iso_module_add_buffer(keeper, "count", ISO_I64, 0, NULL, NULL)) < 0)
        return status;
    if ((status = iso_sequential_add_take(net, "keeper", keeper)) < 0) return status;
    *out = net;
    return ISO_OK;
}

static iso_tensor *buffer(trainer *t, int i) {
    iso_buffer_list list;
    iso_assert_ok(iso_module_buffers(t->model, &list));
    iso_assert_all(list.count == 2 && strcmp(list.name[0] + strlen("keeper."), called) == 0 &&
                   strcmp(list.name[1], "keeper.count") == 0);
    iso_tensor *value = list.item[i]->value;
    iso_buffer_list_destroy(&list);
    return value;
}

static void get(iso_tensor *tensor, double numbers[NUMBERS]) {
    float narrow[NUMBERS];
    if (type == ISO_F64) {
        iso_assert_ok(tensor_get(tensor, numbers));
        return;
    }
    iso_assert_ok(tensor_get(tensor, narrow));
    for (int k = 0; k < NUMBERS; k++) numbers[k] = (double)narrow[k];
}

// Whether all numbers are first + their index.
static bool are(iso_tensor *tensor, double first) {
    double numbers[NUMBERS];
    get(tensor, numbers);
    for (int k = 0; k < NUMBERS; k++)
        if (fabs(numbers[k] - first - k) > (type == ISO_F64 ? 1e-13 : 1e-6)) return false;
    return true;
}

static void set(iso_tensor *tensor, double first) {
    double numbers[NUMBERS];
    float narrow[NUMBERS];
    for (int k = 0; k < NUMBERS; k++) narrow[k] = (float)(numbers[k] = first + k);
    if (type == ISO_F64)
        iso_assert_ok(tensor_set(tensor, numbers));
    else
        iso_assert_ok(tensor_set(tensor, narrow));
}

// ---- Periodic training ----------------------------------------------------------------------------

typedef struct run {
    trainer t;
    iso_tensor *numbers;
    double own, node, all; // this rank's number, its mean over the node and over all ranks
    int nodes;
} run;

static void open_run(run *r, iso_state_sync state) {
    daso_case c = daso_case_default(STEPS);
    c.ranks_per_node = 2;
    c.train.build = build;
    c.daso.state = state;
    iso_assert_ok(daso_open(&r->t, MPI_COMM_WORLD, &c));
    r->numbers = buffer(&r->t, 0);
    r->own = 10 * test_rank;
    int first = test_rank / 2 * 2, last = first + 1 < test_size ? first + 1 : first;
    r->node = 5.0 * (first + last);
    r->all = 5.0 * (test_size - 1);
    r->nodes = (test_size + 1) / 2;
    set(r->numbers, r->own);
}

// Trains until something has been merged once, or to the end.
static void train_to_merge(run *r) {
    iso_daso_stats stats = {0};
    for (int step = 0; step < STEPS && stats.syncs == 0; step++) {
        iso_assert_ok(trainer_step(&r->t, step, NULL));
        iso_assert_ok(iso_daso_get_stats(r->t.optimizer, &stats));
    }
    iso_assert_all(stats.syncs == 1);
}

static void finish(run *r, double expected) {
    iso_assert_ok(iso_daso_finish(r->t.optimizer));
    iso_assert_all(daso_equal(&r->t));
    iso_assert_all(are(r->numbers, expected));
    daso_close(&r->t);
}

static void keeps(void) {
    run r;
    open_run(&r, ISO_STATE_SYNC_KEEP);
    train_to_merge(&r);
    iso_assert_all(are(r.numbers, r.own));
    daso_close(&r.t);
}

// The merge of state: one's own, here that of the node, counts twice the steps since the send.
static void averages(void) {
    run r;
    open_run(&r, ISO_STATE_SYNC_AVERAGE);
    train_to_merge(&r);
    iso_assert_all(are(r.numbers, (2 * r.node + r.nodes * r.all) / (2 + r.nodes)));
    daso_close(&r.t);
}

static void resets(void) {
    run r;
    open_run(&r, ISO_STATE_SYNC_RESET);
    train_to_merge(&r);
    bool all_first = true;
    double numbers[NUMBERS];
    get(r.numbers, numbers);
    for (int k = 0; k < NUMBERS; k++) all_first = all_first && numbers[k] == 0.25;
    iso_assert_all(all_first);
    daso_close(&r.t);
}

// Whatever merges do, in the end replicas are equal.
static void ends_with_the_mean(void) {
    run r;
    open_run(&r, ISO_STATE_SYNC_KEEP);
    for (int step = 0; step < STEPS; step++) iso_assert_ok(trainer_step(&r.t, step, NULL));
    finish(&r, r.all);
}

// The last rank only serves a parameter server, and has no statistics.
static void ends_without_servers(void) {
    run r;
    daso_case c = daso_case_default(STEPS);
    c.daso = iso_server_config(STEPS, 2);
    c.daso.servers = 1;
    c.train.build = build;
    iso_assert_ok(daso_open(&r.t, MPI_COMM_WORLD, &c));
    r.numbers = buffer(&r.t, 0);
    bool serves = test_rank == test_size - 1;
    for (int step = 0; step < STEPS; step++) {
        if (step % 7 == 0) set(r.numbers, serves ? 1000 : 10 * test_rank);
        iso_assert_ok(serves ? iso_optimizer_step(r.t.optimizer) : trainer_step(&r.t, step, NULL));
        if (step != 10) continue;
        iso_module_train(r.t.model, false);
        iso_assert_all(are(r.numbers, 5.0 * (test_size - 2)));
        iso_module_train(r.t.model, true);
    }
    set(r.numbers, serves ? 1000 : 10 * test_rank);
    finish(&r, 5.0 * (test_size - 2));
}

// With one rank in each node.
static void open_average(run *r, iso_wire wire, void (*adjust)(iso_data_parallel_config *)) {
    daso_case c = daso_case_default(STEPS);
    c.train.build = build;
    c.train.adjust = adjust;
    c.daso.state = ISO_STATE_SYNC_AVERAGE;
    c.daso.wire = wire;
    c.daso.warmup_steps = 3;
    c.daso.global_skip = 2;
    c.daso.batches_to_wait = 0;
    iso_assert_ok(daso_open(&r->t, MPI_COMM_WORLD, &c));
    r->numbers = buffer(&r->t, 0);
}

// After the warm-up, parameters are equal on all ranks, but statistics are not.
static void part_from_one_reference(void) {
    run r;
    double numbers[NUMBERS];
    open_average(&r, ISO_WIRE_BF16, NULL);
    for (int step = 0; step < 5; step++) {
        if (step == 2) set(r.numbers, 10 * test_rank);
        iso_assert_ok(trainer_step(&r.t, step, NULL));
    }
    get(r.numbers, numbers);
    for (int k = 0; k < NUMBERS; k++)
        iso_assert_all(fabs(numbers[k] - 5.0 * (test_size - 1) - k) < 0.1 * test_size);
    daso_close(&r.t);
}

// In bf16 the difference, -1.0044, is -1.0078.
static void vary(iso_tensor *tensor, float first) {
    float numbers[NUMBERS] = {first, 1, 1, 1, 1};
    iso_assert_ok(tensor_set(tensor, numbers));
}
static void variances_are_no_less_than_0(void) {
    run r;
    double numbers[NUMBERS];
    called = "running_var";
    open_average(&r, ISO_WIRE_BF16, NULL);
    for (int step = 0; step < 5; step++) {
        if (step == 2) vary(r.numbers, 1.0045f);
        if (step == 4) vary(r.numbers, 0.0001f);
        iso_assert_ok(trainer_step(&r.t, step, NULL));
    }
    get(r.numbers, numbers);
    iso_assert_all(numbers[0] == 0 && fabs(numbers[4] - 1) < 0.01);
    daso_close(&r.t);
}

static void ignore_numbers(iso_data_parallel_config *dp) {
    static const char *const own = "keeper.numbers";
    dp->ignore = &own;
    dp->ignore_count = 1;
}
static void stay_if_ignored(void) {
    run r;
    open_average(&r, ISO_WIRE_F32, ignore_numbers);
    set(r.numbers, 10 * test_rank);
    for (int step = 0; step < STEPS; step++) iso_assert_ok(trainer_step(&r.t, step, NULL));
    finish(&r, 10 * test_rank);
}

static void with_both_types(void (*test)(void)) {
    test();
    type = ISO_F64;
    test();
}

#define ON_RANKS(test)                                                                             \
    Test(np2_daso_buffers, test) { with_both_types(test); }                                        \
    Test(np3_daso_buffers, test) { with_both_types(test); }                                        \
    Test(np4_daso_buffers, test) { with_both_types(test); }
ON_RANKS(keeps)
ON_RANKS(averages)
ON_RANKS(resets)
ON_RANKS(ends_with_the_mean)
ON_RANKS(stay_if_ignored)
Test(np2_daso_buffers, part_from_one_reference) { part_from_one_reference(); }
Test(np3_daso_buffers, part_from_one_reference) { part_from_one_reference(); }
Test(np3_daso_buffers, variances_are_no_less_than_0) { variances_are_no_less_than_0(); }
Test(np3_daso_buffers, those_of_ranks_that_only_serve_do_not_count) {
    with_both_types(ends_without_servers);
}

// ---- Saved state ----------------------------------------------------------------------------------

static void with_state(trainer *t, bool save) {
    iso_state *state;
    int64_t step = 7;
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(t->model, t->optimizer, state));
    if (save) {
        iso_assert_ok(iso_resume_save(t->comm, resume_path(), step, state));
    } else {
        iso_assert_ok(iso_resume_load(t->comm, resume_path(), state, &step));
        iso_assert_ok(iso_training_loaded(t->model, t->optimizer));
    }
    iso_state_destroy(&state);
    iso_assert_all(step == 7);
}

// Each rank's own come back, counts too, without and with periodic training.
static void come_back(bool periodic) {
    run r;
    trainer_config plain = trainer_default();
    plain.build = build;
    plain.rows = 2 * test_size;
    if (periodic)
        open_run(&r, ISO_STATE_SYNC_KEEP);
    else
        iso_assert_ok(trainer_create(&r.t, test_comm, &plain));
    iso_tensor *numbers = buffer(&r.t, 0), *count = buffer(&r.t, 1);
    int64_t counted = 40 + test_rank;
    iso_assert_ok(trainer_step(&r.t, 0, NULL));
    set(numbers, 3 + test_rank);
    iso_assert_ok(tensor_set(count, &counted));
    with_state(&r.t, true);
    set(numbers, 0);
    iso_assert_ok(iso_tensor_fill(count, 0));
    with_state(&r.t, false);
    counted = 0;
    iso_assert_ok(tensor_get(count, &counted));
    iso_assert_all(are(numbers, 3 + test_rank) && counted == 40 + test_rank);
    if (periodic)
        daso_close(&r.t);
    else
        trainer_destroy(&r.t);
}

// A model whose parameters are no numbers any more must not take the place of what is good.
Test(np2_daso_buffers, parameters_that_are_not_finite_are_not_saved) {
    trainer t;
    iso_state *state;
    iso_parameter_list list;
    trainer_config plain = trainer_default();
    iso_assert_ok(trainer_create(&t, test_comm, &plain));
    iso_assert_ok(iso_module_parameters(t.model, &list));
    tensor_swap(list.item[list.count - 1]->value, 0, NAN);
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(t.model, t.optimizer, state));
    iso_assert_all(iso_resume_save(t.comm, resume_path(), 3, state) == ISO_ERR_STATE);
    iso_assert_all(strstr(iso_last_error()->message, list.name[list.count - 1]) != NULL);
    iso_assert_all(resume_files() == 0);
    iso_parameter_list_destroy(&list);
    iso_state_destroy(&state);
    trainer_destroy(&t);
}

Test(np2_daso_buffers, come_back_from_saved_state) { come_back(false); }
Test(np3_daso_buffers, come_back_from_saved_periodic_state) { come_back(true); }
