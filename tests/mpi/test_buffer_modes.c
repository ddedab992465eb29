// SPDX-License-Identifier: MIT
// What becomes of buffers under data_parallel: every mode at every time.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/nn_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <string.h>

TestSuite(np1_buffer_modes, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_buffer_modes, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_buffer_modes, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_buffer_modes, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { FLOATS = 3, DOUBLES = 2, COUNTS = 2, MOST_RANKS = 4 };

// The buffers of one rank. Each training forward of rank r changes them as `forward_changes` says.
typedef struct numbers {
    double f[FLOATS], d[DOUBLES];
    int64_t count[COUNTS];
} numbers;

// Counts beyond 2^32 and below 0.
static const numbers start = {{1, 2, 3}, {4, 5}, {20000000000, -7}};

static void forward_changes(numbers *n, int rank) {
    for (int i = 0; i < FLOATS; i++) n->f[i] = 0.5 * n->f[i] + rank + i;
    for (int i = 0; i < DOUBLES; i++) n->d[i] = 0.25 * n->d[i] - rank - 0.1 * i;
    for (int i = 0; i < COUNTS; i++) n->count[i] += 1 + rank * (i + 1);
}

// ---- A layer that hands through, with buffers of all types --------------------------------------

static iso_status keeper_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                 iso_tensor **out) {
    (void)call;
    float *f = self->buffer[0]->value->data;
    double *d = self->buffer[1]->value->data;
    int64_t *count = self->buffer[2]->value->data;
    numbers n;
    for (int i = 0; i < FLOATS; i++) n.f[i] = (double)f[i];
    memcpy(n.d, d, sizeof(n.d));
    memcpy(n.count, count, sizeof(n.count));
    if (self->training) forward_changes(&n, test_rank);
    for (int i = 0; i < FLOATS; i++) f[i] = (float)n.f[i];
    memcpy(d, n.d, sizeof(n.d));
    memcpy(count, n.count, sizeof(n.count));
    *out = in;
    return ISO_OK;
}

static iso_status keeper_backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                  iso_tensor **grad_in) {
    (void)self, (void)call;
    *grad_in = grad_out;
    return ISO_OK;
}

static const iso_module_ops keeper_ops = {
    .type = "Keeper", .forward = keeper_forward, .backward_input = keeper_backward};

static iso_status keeper_create(iso_device *device, iso_module **out) {
    iso_module *m = calloc(1, sizeof(iso_module));
    iso_buffer *f, *d, *count;
    ISO_TRY(iso_module_init(m, &keeper_ops, device));
    ISO_TRY(iso_module_add_buffer(m, "f", ISO_F32, 1, (int64_t[]){FLOATS}, &f));
    ISO_TRY(iso_module_add_buffer(m, "d", ISO_F64, 1, (int64_t[]){DOUBLES}, &d));
    ISO_TRY(iso_module_add_buffer(m, "count", ISO_I64, 1, (int64_t[]){COUNTS}, &count));
    for (int i = 0; i < FLOATS; i++) ((float *)f->value->data)[i] = (float)start.f[i];
    memcpy(d->value->data, start.d, sizeof(start.d));
    memcpy(count->value->data, start.count, sizeof(start.count));
    *out = m;
    return ISO_OK;
}

static iso_module *keeper; // of the model that was built last; borrowed

static iso_status build_kept(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 2};
    iso_module *net, *m;
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(keeper_create(device, &keeper));
    ISO_TRY(iso_sequential_add_take(net, "keeper", keeper));
    ISO_TRY(iso_flatten_create(device, &m));
    ISO_TRY(iso_sequential_add_take(net, "flatten", m));
    ISO_TRY(iso_linear_create(device, TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE,
                              TRAINER_CLASSES, true, &rng, &m));
    ISO_TRY(iso_sequential_add_take(net, "fc", m));
    *out = net;
    return ISO_OK;
}

// ---- What should be -----------------------------------------------------------------------------

typedef struct ranks {
    numbers rank[MOST_RANKS];
    iso_buffer_config config;
    bool due;
    int exchanges;
} ranks;

static void last_ranks(ranks *all) {
    for (int r = 0; r < test_size; r++) all->rank[r] = all->rank[test_size - 1];
}

static void average(ranks *all) {
    numbers mean = all->rank[0];
    for (int r = 1; r < test_size; r++) {
        for (int i = 0; i < FLOATS; i++) mean.f[i] += all->rank[r].f[i];
        for (int i = 0; i < DOUBLES; i++) mean.d[i] += all->rank[r].d[i];
        for (int i = 0; i < COUNTS; i++)
            if (all->rank[r].count[i] > mean.count[i]) mean.count[i] = all->rank[r].count[i];
    }
    for (int i = 0; i < FLOATS; i++) mean.f[i] /= test_size;
    for (int i = 0; i < DOUBLES; i++) mean.d[i] /= test_size;
    for (int r = 0; r < test_size; r++) all->rank[r] = mean;
}

static void exchange(ranks *all) {
    if (all->config.mode == ISO_BUFFERS_NONE) return;
    all->exchanges++;
    if (all->config.function)
        last_ranks(all);
    else if (all->config.mode == ISO_BUFFERS_AVERAGE)
        average(all);
    else
        for (int r = 1; r < test_size; r++) all->rank[r] = all->rank[0];
}

static void expect_step(ranks *all, bool no_sync) {
    if (all->config.when == ISO_BUFFERS_BEFORE_FORWARD && all->due) exchange(all);
    for (int r = 0; r < test_size; r++) forward_changes(&all->rank[r], r);
    if (all->config.when == ISO_BUFFERS_AFTER_FORWARD && all->due) exchange(all);
    if (all->config.when == ISO_BUFFERS_AFTER_BACKWARD && !no_sync) exchange(all);
    all->due = !no_sync;
}

static void expect_evaluation(ranks *all) {
    if (all->config.when == ISO_BUFFERS_AT_EVALUATION ||
        all->config.when == ISO_BUFFERS_BEFORE_FORWARD)
        exchange(all);
}

// Whether this rank's buffers are those that should be, but for the rounding of f32 and of sums.
static bool as_expected(const ranks *all) {
    const numbers *want = &all->rank[test_rank];
    const float *f = keeper->buffer[0]->value->data;
    const double *d = keeper->buffer[1]->value->data;
    bool well = memcmp(keeper->buffer[2]->value->data, want->count, sizeof(want->count)) == 0;
    for (int i = 0; i < FLOATS; i++) well = well && fabs((double)f[i] - want->f[i]) < 3e-6;
    for (int i = 0; i < DOUBLES; i++) well = well && fabs(d[i] - want->d[i]) < 1e-13;
    return well;
}

// ---- Every mode at every time -------------------------------------------------------------------

static int calls;

static iso_status last_ranks_buffers(const iso_buffer_list *list, iso_comm *comm, void *user) {
    calls += *(int *)user;
    for (int i = 0; i < list->count; i++) {
        iso_tensor *t = list->item[i]->value;
        ISO_TRY(iso_comm_bcast(comm, t->data, (size_t)t->count * iso_dtype_size(t->dtype),
                               iso_comm_size(comm) - 1));
    }
    return ISO_OK;
}

static void evaluate(trainer *t) {
    iso_tensor *out;
    iso_assert_ok(iso_module_train(t->model, false));
    iso_assert_ok(trainer_forward(t, 0, &out));
    iso_assert_ok(trainer_forward(t, 1, &out));
    iso_assert_ok(iso_module_train(t->model, true));
}

// F: a step; N: forward and backward inside no_sync; E: evaluation and back; C: a call.
static void act(char action, trainer *t, ranks *all) {
    switch (action) {
    case 'F':
        iso_assert_ok(trainer_step(t, 0, NULL));
        expect_step(all, false);
        break;
    case 'N':
        iso_assert_ok(iso_data_parallel_begin_no_sync(t->model));
        iso_assert_ok(trainer_backward(t, 0));
        iso_assert_ok(iso_data_parallel_end_no_sync(t->model));
        expect_step(all, true);
        break;
    case 'E':
        evaluate(t);
        expect_evaluation(all);
        break;
    default: iso_assert_ok(iso_data_parallel_sync_buffers(t->model)); exchange(all);
    }
}

static void run(iso_buffer_config buffers, iso_sync sync) {
    static const char actions[] = "FFNNFFEFNECFE";
    trainer_config config = trainer_default();
    trainer t;
    ranks all = {.config = buffers, .due = true};
    config.build = build_kept;
    config.buffers = buffers;
    config.sync = sync;
    calls = 0;
    for (int r = 0; r < MOST_RANKS; r++) all.rank[r] = start;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (const char *a = actions; *a; a++) {
        act(*a, &t, &all);
        if (buffers.when == ISO_BUFFERS_AFTER_FORWARD) {
            if ((a - actions) % 2) continue; // the next action completes the exchange
            iso_assert_ok(iso_data_parallel_finish(t.model));
        }
        bool well = as_expected(&all);
        if (!well)
            fprintf(stderr, "mode %d when %d, action %d\n", (int)buffers.mode, (int)buffers.when,
                    (int)(a - actions));
        iso_assert_all(well);
    }
    iso_assert_all(!buffers.function || calls == all.exchanges);
    trainer_destroy(&t);
}

static void every_mode(void) {
    static int one = 1;
    for (int when = 0; when <= ISO_BUFFERS_AFTER_FORWARD; when++) {
        iso_buffer_config c = {.when = (iso_buffer_when)when};
        for (int mode = 0; mode <= ISO_BUFFERS_NONE; mode++) {
            c.mode = (iso_buffer_mode)mode;
            c.function = NULL;
            run(c, ISO_SYNC_LAZY);
            c.function = last_ranks_buffers;
            c.user = &one;
            run(c, ISO_SYNC_BLOCKING);
        }
    }
}
Test(np1_buffer_modes, every_mode_at_every_time) { every_mode(); }
Test(np2_buffer_modes, every_mode_at_every_time) { every_mode(); }
Test(np3_buffer_modes, every_mode_at_every_time) { every_mode(); }
Test(np4_buffer_modes, every_mode_at_every_time) { every_mode(); }

// With ISO_SYNC_EXPLICIT a backward ends when its gradients are exchanged.
Test(np2_buffer_modes, explicit_exchange_brings_buffers_along) {
    trainer_config config = trainer_default();
    trainer t;
    ranks all = {.config = {.mode = ISO_BUFFERS_RANK0, .when = ISO_BUFFERS_AFTER_BACKWARD}};
    config.build = build_kept;
    config.sync = ISO_SYNC_EXPLICIT;
    config.buffers = all.config;
    for (int r = 0; r < MOST_RANKS; r++) all.rank[r] = start;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_backward(&t, 0));
    expect_step(&all, true); // nothing yet
    iso_assert_all(as_expected(&all));
    iso_assert_ok(iso_data_parallel_all_reduce_gradients(t.model));
    exchange(&all);
    iso_assert_all(as_expected(&all));
    trainer_destroy(&t);
}

// ---- Who communicates ---------------------------------------------------------------------------

// Otherwise a rank would wait for ever here.
static void evaluate_alone(iso_buffer_mode mode, iso_buffer_when when) {
    trainer_config config = trainer_default();
    trainer t;
    iso_tensor *out;
    config.build = build_kept;
    config.buffers = (iso_buffer_config){.mode = mode, .when = when};
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 2));
    iso_assert_ok(iso_data_parallel_finish(t.model));
    for (int i = 0; i < test_rank; i++) {
        cr_ok(iso_module_train(t.model, false));
        cr_ok(trainer_forward(&t, 0, &out));
        cr_ok(iso_module_train(t.model, true));
    }
    iso_assert_ok(iso_comm_barrier(test_comm));
    iso_assert_ok(trainer_train(&t, 1));
    trainer_destroy(&t);
}
Test(np3_buffer_modes, evaluation_communicates_nothing_with_none) {
    for (int when = 0; when <= ISO_BUFFERS_AFTER_FORWARD; when++)
        evaluate_alone(ISO_BUFFERS_NONE, (iso_buffer_when)when);
    evaluate_alone(ISO_BUFFERS_AVERAGE, ISO_BUFFERS_ON_CALL);
    evaluate_alone(ISO_BUFFERS_RANK0, ISO_BUFFERS_AFTER_BACKWARD);
}

static iso_status create_with(iso_buffer_config buffers) {
    trainer_config config = trainer_default();
    trainer t = {0};
    config.build = build_kept;
    config.buffers = buffers;
    iso_status status = trainer_create(&t, test_comm, &config);
    trainer_destroy(&t);
    return status;
}

Test(np2_buffer_modes, nonsense_and_differences_are_refused) {
    iso_status status = create_with((iso_buffer_config){.mode = (iso_buffer_mode)7});
    iso_assert_all(status == ISO_ERR_ARG && strstr(iso_last_error()->message, "mode 7"));
    status = create_with((iso_buffer_config){.when = (iso_buffer_when)9});
    iso_assert_all(status == ISO_ERR_ARG &&
                   strstr(iso_last_error()->message, "value 9 of buffers.when"));
    status = create_with(
        (iso_buffer_config){.mode = test_rank ? ISO_BUFFERS_RANK0 : ISO_BUFFERS_AVERAGE});
    iso_assert_all(status == ISO_ERR_MISMATCH &&
                   strstr(iso_last_error()->message,
                          "config.buffers.mode is rank0 on rank 1 and average on rank 0"));
}
