// SPDX-License-Identifier: MIT
// Parameters that take no part in a backward: found on request, as PyTorch's find_unused_parameters
// does; otherwise an error of that backward.
#include "common/any_device.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"

#include "optim/optim_impl.h"
#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <isotherm/trace.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(np1_unused, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_unused, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_unused, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_unused, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// Reductions for the largest number, by which ranks learn what was used.
static int largest;

int MPI_Iallreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request) {
    largest += op == MPI_MAX;
    return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

// ---- A model of which each forward uses a part ------------------------------------------------------

enum { FLATTEN, TRUNK, HEADS, HEAD_COUNT = 4 };
static int head_on; // by the next forward, -1: none

static iso_module *last(iso_module *self) { return self->child[HEADS + head_on]; }

static iso_status forward(iso_module *self, iso_call *call, iso_tensor *in, iso_tensor **out) {
    (void)call;
    iso_tensor *x;
    iso_status status = iso_module_call(self->child[FLATTEN], ISO_ACT_NONE, in, &x);
    if (status == ISO_OK) status = iso_module_call(self->child[TRUNK], ISO_ACT_NONE, x, &x);
    return status == ISO_OK ? iso_module_call(last(self), ISO_ACT_NONE, x, out) : status;
}

static iso_status backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                           iso_tensor **grad_in) {
    (void)call;
    (void)grad_in;
    iso_tensor *g;
    iso_status status = iso_module_call_backward(last(self), grad_out, &g);
    return status == ISO_OK ? iso_module_call_backward(self->child[TRUNK], g, NULL) : status;
}

static const iso_module_ops heads_ops = {.type = "Heads", .forward = forward, .backward = backward};

static iso_status build_heads(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_module *net = calloc(1, sizeof(*net)), *m;
    iso_status status = iso_module_init(net, &heads_ops, device);
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_module_add_child_take(net, "flatten", m);
    if (status == ISO_OK) status = iso_linear_create(device, 200, 16, true, &rng, &m);
    if (status == ISO_OK) status = iso_module_add_child_take(net, "trunk", m);
    for (int h = 0; status == ISO_OK && h < HEAD_COUNT; h++) {
        char name[16];
        snprintf(name, sizeof(name), "head%d", h);
        status = iso_linear_create(device, 16, TRAINER_CLASSES, true, &rng, &m);
        if (status == ISO_OK) status = iso_module_add_child_take(net, name, m);
    }
    *out = net;
    return status;
}

static trainer_config heads_config(void) {
    trainer_config config = trainer_default();
    config.build = build_heads;
    config.find_unused = true;
    config.hyper.weight_decay = 0.01;
    return config;
}

// Head 3 is used by nobody at first, then by one rank, then by all; others change with each step.
static int head_of(int rank, int backward_number) {
    if (backward_number >= 9) return 3;
    if (backward_number >= 6 && rank == test_size - 1) return 3;
    return (backward_number + rank / 2) % 3;
}
enum { BACKWARDS = 12 };

// ---- Against PyTorch's rules, on one rank -----------------------------------------------------------

// How gradients are dropped and exchanged.
typedef struct habit {
    int accumulate; // backwards to a step
    bool keep;      // gradients of earlier steps stay: no zero_grad
    bool called;    // ISO_SYNC_EXPLICIT
} habit;

static iso_status one_backward(trainer *t, int k, bool sync) {
    head_on = head_of(test_rank, k);
    if (sync) return trainer_backward(t, k);
    iso_status status = iso_data_parallel_begin_no_sync(t->model);
    if (status == ISO_OK) status = trainer_backward(t, k);
    return status == ISO_OK ? iso_data_parallel_end_no_sync(t->model) : status;
}

static iso_status train(trainer *t, habit h) {
    iso_status status = ISO_OK;
    for (int k = 0; status == ISO_OK && k < BACKWARDS; k++) {
        bool sync = (k + 1) % h.accumulate == 0;
        if (k % h.accumulate == 0 && !h.keep) iso_optimizer_zero_grad(t->optimizer);
        status = one_backward(t, k, sync);
        if (status == ISO_OK && sync && h.called)
            status = iso_data_parallel_all_reduce_gradients(t->model);
        if (status == ISO_OK && sync) status = iso_optimizer_step(t->optimizer);
    }
    return status;
}

// A network that is not wrapped, and what SGD keeps; a parameter without a gradient (PyTorch: None)
// is passed over.
typedef struct reference {
    iso_device *device;
    iso_module *net;
    iso_loss *loss;
    iso_tensor *batch;
    iso_parameter_list list;
    float *momentum[16];
} reference;

static void reference_create(reference *m) {
    *m = (reference){0};
    int64_t shape[4] = {12 / test_size, TRAINER_CHANNELS, TRAINER_SIZE, TRAINER_SIZE};
    iso_assert_ok(iso_device_create(test_device(), &m->device));
    iso_assert_ok(build_heads(m->device, false, &m->net));
    iso_assert_ok(iso_loss_create(m->device, ISO_CROSS_ENTROPY, &m->loss));
    iso_assert_ok(iso_tensor_create(m->device, ISO_F32, 4, shape, &m->batch));
    iso_assert_ok(iso_module_parameters(m->net, &m->list));
    for (int i = 0; i < m->list.count; i++)
        m->momentum[i] = calloc((size_t)m->list.item[i]->value->count, sizeof(float));
}

static void reference_destroy(reference *m) {
    for (int i = 0; i < m->list.count; i++) free(m->momentum[i]);
    iso_parameter_list_destroy(&m->list);
    iso_tensor_destroy(&m->batch);
    iso_loss_destroy(&m->loss);
    iso_module_destroy(&m->net);
    iso_device_destroy(&m->device);
}

// One rank's share of a backward.
static iso_status reference_backward(reference *m, int rank, int k) {
    int64_t rows = 12 / test_size, pixels = TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE;
    int32_t labels[12];
    iso_tensor *out, *grad;
    double value;
    for (int64_t r = 0; r < rows; r++)
        trainer_row((float *)m->batch->data + r * pixels, k, rank * rows + r, &labels[r]);
    head_on = head_of(rank, k);
    iso_status status = iso_module_forward(m->net, m->batch, &out);
    if (status == ISO_OK) status = iso_loss_compute(m->loss, out, labels, &value, NULL, &grad);
    for (int64_t i = 0; status == ISO_OK && i < grad->count; i++)
        ((float *)grad->data)[i] /= (float)test_size;
    return status == ISO_OK ? iso_module_backward(m->net, grad, NULL) : status;
}

static void reference_update(reference *m, const iso_hyper *h) {
    for (int i = 0; i < m->list.count; i++) {
        const iso_parameter *p = m->list.item[i];
        float *x = p->value->data, *buffer = m->momentum[i];
        const float *g = p->grad->data;
        for (int64_t n = 0; p->grad_valid && n < p->value->count; n++) {
            buffer[n] = (float)h->momentum * buffer[n] + g[n] + (float)h->weight_decay * x[n];
            x[n] -= (float)h->lr * buffer[n];
        }
    }
}

static iso_status reference_train(reference *m, const iso_hyper *hyper, habit h) {
    iso_status status = ISO_OK;
    for (int k = 0; k < BACKWARDS; k++) {
        if (k % h.accumulate == 0 && !h.keep) iso_module_zero_grad(m->net);
        for (int rank = 0; status == ISO_OK && rank < test_size; rank++)
            status = reference_backward(m, rank, k);
        if ((k + 1) % h.accumulate == 0) reference_update(m, hyper);
    }
    return status;
}

static double difference(trainer *t, const reference *m) {
    iso_parameter_list list;
    double most = 0;
    iso_tensor *value;
    iso_assert_ok(iso_module_parameters(t->model, &list));
    for (int i = 0; i < list.count; i++) {
        iso_assert_ok(iso_parameter_value(list.item[i], &value));
        const float *a = value->data, *b = m->list.item[i]->value->data;
        for (int64_t n = 0; n < value->count; n++)
            most = fmax(most, fabs((double)a[n] - (double)b[n]));
    }
    iso_parameter_list_destroy(&list);
    return most;
}

static void follows_pytorch(habit h) {
    uint64_t hash[3];
    trainer_config config = heads_config();
    reference m;
    reference_create(&m);
    iso_assert_ok(reference_train(&m, &config.hyper, h));
    for (int i = 0; i < 3; i++) {
        static const iso_sync sync[3] = {ISO_SYNC_LAZY, ISO_SYNC_BLOCKING, ISO_SYNC_EXPLICIT};
        trainer t;
        config.sync = sync[i];
        h.called = sync[i] == ISO_SYNC_EXPLICIT;
        config.bucket_mb = i == 2 ? 1 : 0; // and all in one bucket
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        iso_assert_ok(train(&t, h));
        iso_assert_ok(trainer_hash(&t, &hash[i]));
        double off = difference(&t, &m);
        if (!(off < 2e-5)) fprintf(stderr, "sync %d: off by %g\n", (int)sync[i], off);
        iso_assert_all(off < 2e-5);
        trainer_destroy(&t);
    }
    iso_assert_all(hash[0] == hash[1] && hash[0] == hash[2]);
    reference_destroy(&m);
}

Test(np1_unused, follows_pytorch) { follows_pytorch((habit){.accumulate = 1}); }
Test(np2_unused, follows_pytorch) { follows_pytorch((habit){.accumulate = 1}); }
Test(np3_unused, follows_pytorch) { follows_pytorch((habit){.accumulate = 1}); }
Test(np4_unused, follows_pytorch) { follows_pytorch((habit){.accumulate = 1}); }

// Used in an earlier backward of the step only.
Test(np2_unused, with_accumulation) { follows_pytorch((habit){.accumulate = 2}); }
Test(np3_unused, with_accumulation) { follows_pytorch((habit){.accumulate = 3}); }

Test(np2_unused, without_zero_grad) { follows_pytorch((habit){.accumulate = 1, .keep = true}); }
Test(np3_unused, without_zero_grad) { follows_pytorch((habit){.accumulate = 1, .keep = true}); }
Test(np3_unused, without_zero_grad_with_accumulation) {
    follows_pytorch((habit){.accumulate = 2, .keep = true});
}

// ---- What nobody has used stays as it is ---------------------------------------------------------------

enum { WORDS = 3 * 96 };

// Values, and both moments, of a head.
static void look(trainer *t, int head, float out[WORDS]) {
    iso__base_optimizer *core = iso__optimizer_innermost(t->optimizer);
    int words = 0;
    iso_assert_ok(iso_data_parallel_finish(t->model));
    for (int i = 2 + 2 * head; i < 4 + 2 * head; i++) {
        const iso_tensor *value = core->slot[i].parameter->value;
        size_t bytes = (size_t)value->count * sizeof(float);
        const void *from[3] = {value->data, iso__slot_state(core, &core->slot[i], 0),
                               iso__slot_state(core, &core->slot[i], 1)};
        for (int k = 0; k < 3; k++, words += (int)value->count) memcpy(out + words, from[k], bytes);
    }
}

Test(np3_unused, adam_passes_over_it) {
    trainer_config config = heads_config();
    trainer t;
    float before[WORDS] = {0}, after[WORDS] = {0};
    config.optimizer = ISO_ADAM;
    config.hyper = iso_hyper_default(ISO_ADAM);
    config.hyper.weight_decay = 0.1;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int step = 0; step < 8; step++) {
        head_on = step < 3 ? 2 : test_rank % 2;
        iso_assert_ok(trainer_step(&t, step, NULL));
        if (step == 2) look(&t, 2, before);
    }
    look(&t, 2, after);
    iso_assert_all(before[80 + 5] != 0); // a moment
    iso_assert_all(memcmp(before, after, sizeof(before)) == 0);
    look(&t, 3, after); // never used
    for (int i = 80; i < 240; i++) iso_assert_all(after[i] == 0);
    trainer_destroy(&t);
}

// ---- What it costs -------------------------------------------------------------------------------------

static int reductions_for(iso_sync sync, bool find_unused, bool no_sync) {
    trainer_config config = heads_config();
    trainer t;
    config.sync = sync;
    config.find_unused = find_unused;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    if (!find_unused) iso_optimizer_destroy(&t.optimizer);
    largest = 0;
    for (int k = 0; k < 4; k++) {
        head_on = k;
        if (!find_unused) iso_module_zero_grad(t.model);
        if (no_sync) iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
        iso_status status = trainer_backward(&t, k);
        if (no_sync) iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
        iso_assert_all(status == (find_unused ? ISO_OK : ISO_ERR_STATE));
        if (find_unused && !no_sync) iso_assert_ok(iso_optimizer_step(t.optimizer));
    }
    iso_assert_ok(iso_data_parallel_finish(t.model));
    int count = largest;
    trainer_destroy(&t);
    return count;
}

Test(np2_unused, one_small_reduction_for_each_step) {
    iso_assert_all(reductions_for(ISO_SYNC_LAZY, true, false) == 4);
    iso_assert_all(reductions_for(ISO_SYNC_BLOCKING, true, false) == 4);
    iso_assert_all(reductions_for(ISO_SYNC_LAZY, true, true) == 0);
    iso_assert_all(reductions_for(ISO_SYNC_LAZY, false, false) == 0);
}

// ---- Not asked for: an error ------------------------------------------------------------------------------

static iso_parameter *parameter_of(trainer *t, int child, int i) {
    return iso_data_parallel_module(t->model)->child[child]->parameter[i];
}

// trunk and head0 only: a model that is used whole, but for what is left out on purpose.
static bool leave_out; // the trunk, by the next forward

static iso_status whole_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                iso_tensor **out) {
    (void)call;
    iso_tensor *x;
    iso_status status = iso_module_call(self->child[0], ISO_ACT_NONE, in, &x);
    if (status == ISO_OK && !leave_out)
        status = iso_module_call(self->child[1], ISO_ACT_NONE, x, &x);
    return status == ISO_OK ? iso_module_call(self->child[2], ISO_ACT_NONE, x, out) : status;
}

static iso_status whole_backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    (void)call;
    (void)grad_in;
    iso_tensor *g;
    iso_status status = iso_module_call_backward(self->child[2], grad_out, &g);
    return status == ISO_OK && !leave_out ? iso_module_call_backward(self->child[1], g, NULL)
                                          : status;
}

static const iso_module_ops whole_ops = {
    .type = "Whole", .forward = whole_forward, .backward = whole_backward};

static iso_status build_whole(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 7};
    iso_module *net = calloc(1, sizeof(*net)), *m;
    iso_status status = iso_module_init(net, &whole_ops, device);
    if (status == ISO_OK) status = iso_flatten_create(device, &m);
    if (status == ISO_OK) status = iso_module_add_child_take(net, "flatten", m);
    if (status == ISO_OK) status = iso_linear_create(device, 200, 200, true, &rng, &m);
    if (status == ISO_OK) status = iso_module_add_child_take(net, "middle", m);
    if (status == ISO_OK) status = iso_linear_create(device, 200, TRAINER_CLASSES, true, &rng, &m);
    if (status == ISO_OK) status = iso_module_add_child_take(net, "out", m);
    *out = net;
    return status;
}

static void create_whole(trainer *t, iso_sync sync) {
    trainer_config config = trainer_default();
    config.build = build_whole;
    config.sync = sync;
    leave_out = false;
    iso_assert_ok(trainer_create(t, test_comm, &config));
}

// On the rank where it is missing; the others find nothing wrong, and need not wait.
static bool error_here(iso_status status, bool here, const char *parameter) {
    char rank[16];
    const char *said = iso_last_error()->message;
    snprintf(rank, sizeof(rank), "rank %d", test_rank);
    bool right = !here ? status == ISO_OK
                       : status == ISO_ERR_STATE && strstr(said, parameter) && strstr(said, rank) &&
                             strstr(said, "find_unused_parameters");
    if (!right) fprintf(stderr, "status %d, %s\n", (int)status, said);
    return right;
}

// After so many good steps, the last of the run; PyTorch is silent then (its issue 128949).
static void missing(iso_sync sync, int good_steps, int rank) {
    trainer t;
    create_whole(&t, sync);
    iso_assert_ok(trainer_train(&t, good_steps));
    iso_optimizer_zero_grad(t.optimizer);
    leave_out = test_rank == rank;
    iso_status status = trainer_backward(&t, good_steps);
    iso_assert_all(error_here(status, test_rank == rank, "\"middle."));
    if (test_rank != rank) status = iso_optimizer_step(t.optimizer);
    if (test_rank != rank)
        iso_assert_ok(status);
    else
        iso_assert_ok(ISO_OK);
    trainer_destroy(&t);
}

Test(np1_unused, missing_is_an_error_in_the_same_step) {
    missing(ISO_SYNC_LAZY, 0, 0);
    missing(ISO_SYNC_LAZY, 3, 0);
    missing(ISO_SYNC_BLOCKING, 3, 0);
}
Test(np2_unused, missing_is_an_error_in_the_same_step) {
    missing(ISO_SYNC_LAZY, 0, 1);
    missing(ISO_SYNC_LAZY, 3, 0);
    missing(ISO_SYNC_BLOCKING, 0, 0);
    missing(ISO_SYNC_BLOCKING, 3, 1);
}
Test(np4_unused, missing_is_an_error_in_the_same_step) {
    missing(ISO_SYNC_LAZY, 2, 2);
    missing(ISO_SYNC_BLOCKING, 2, 3);
}

// A gradient that is still there from the step before is none of this one.
static void stale(iso_sync sync) {
    trainer t;
    create_whole(&t, sync);
    iso_assert_ok(trainer_train(&t, 2));
    leave_out = true;
    iso_assert_all(error_here(trainer_backward(&t, 2), true, "\"middle."));
    trainer_destroy(&t);
}

Test(np2_unused, an_old_gradient_does_not_count) {
    stale(ISO_SYNC_LAZY);
    stale(ISO_SYNC_BLOCKING);
}

// What was accumulated for this step does.
Test(np2_unused, an_accumulated_gradient_counts) {
    trainer t;
    uint64_t hash;
    create_whole(&t, ISO_SYNC_LAZY);
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_ok(iso_data_parallel_begin_no_sync(t.model));
    iso_assert_ok(trainer_backward(&t, 0));
    iso_assert_ok(iso_data_parallel_end_no_sync(t.model));
    leave_out = test_rank == 1;
    iso_assert_ok(trainer_backward(&t, 1));
    iso_assert_ok(iso_optimizer_step(t.optimizer));
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
}

// Frozen after wrapping, whole or in part of a layer, on all ranks or one.
static void frozen(iso_sync sync, int first, int rank, const char *name) {
    trainer t;
    create_whole(&t, sync);
    iso_assert_ok(trainer_train(&t, 2));
    bool here = rank < 0 || test_rank == rank;
    for (int i = first; here && i < 2; i++) parameter_of(&t, 1, i)->requires_grad = false;
    iso_optimizer_zero_grad(t.optimizer);
    iso_assert_all(error_here(trainer_backward(&t, 2), here, name));
    trainer_destroy(&t);
}

Test(np2_unused, frozen_after_wrapping_is_an_error) {
    frozen(ISO_SYNC_LAZY, 0, -1, "\"middle.weight\"");
    frozen(ISO_SYNC_LAZY, 1, -1, "\"middle.bias\"");
    frozen(ISO_SYNC_BLOCKING, 1, 1, "\"middle.bias\"");
    frozen(ISO_SYNC_LAZY, 1, 0, "\"middle.bias\"");
}

// Where unused parameters are found, it is one of them: it stays, and the rest goes on.
Test(np2_unused, frozen_after_wrapping_is_unused) {
    trainer_config config = heads_config();
    trainer t;
    uint64_t hash;
    float before[16], after[16];
    iso_tensor *value;
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    head_on = 0;
    iso_assert_ok(trainer_train(&t, 2));
    iso_parameter *bias = parameter_of(&t, TRUNK, 1);
    bias->requires_grad = false;
    iso_assert_ok(iso_parameter_value(bias, &value));
    memcpy(before, value->data, sizeof(before));
    iso_assert_ok(trainer_train(&t, 3));
    iso_assert_ok(iso_parameter_value(bias, &value));
    memcpy(after, value->data, sizeof(after));
    iso_assert_all(memcmp(before, after, sizeof(before)) == 0);
    iso_assert_ok(trainer_hash(&t, &hash));
    trainer_destroy(&t);
}
