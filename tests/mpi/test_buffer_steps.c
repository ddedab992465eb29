// SPDX-License-Identifier: MIT
// Training with buffers that are synchronised every step: as PyTorch's rules say, by hand on one
// process, and to the same bits however gradients are waited for.
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/nn_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <isotherm/state_dict.h>
#include <math.h>
#include <string.h>

TestSuite(np2_buffer_steps, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_buffer_steps, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_buffer_steps, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { MOST_RANKS = 4 };

// ---- PyTorch's semantics, by hand on one process ------------------------------------------------

static iso_status build_norms(iso_device *device, bool dropout, iso_module **out) {
    (void)dropout;
    iso_rng rng = {.seed = 4};
    iso_module *net, *m;
    iso_conv2d_config c = {
        .in_channels = TRAINER_CHANNELS, .out_channels = 6, .kernel_size = {3, 3}};
    iso_batch_norm_config b = {.num_features = 6, .momentum = 0.3};
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(iso_conv2d_create(device, &c, &rng, &m));
    ISO_TRY(iso_sequential_add_take(net, "conv", m));
    ISO_TRY(iso_batch_norm2d_create(device, &b, &m));
    ISO_TRY(iso_sequential_add_take(net, "bn", m));
    ISO_TRY(iso_relu_create(device, &m));
    ISO_TRY(iso_sequential_add_take(net, "relu", m));
    ISO_TRY(iso_flatten_create(device, &m));
    ISO_TRY(iso_sequential_add_take(net, "flatten", m));
    ISO_TRY(iso_linear_create(device, 6 * 64, TRAINER_CLASSES, true, &rng, &m));
    ISO_TRY(iso_sequential_add_take(net, "fc", m));
    *out = net;
    return ISO_OK;
}

// Replicas of the model on this process, rank r's at place r. `flag` is what PyTorch's
// DistributedDataParallel calls require_forward_param_sync.
typedef struct replicas {
    trainer rank[MOST_RANKS]; // each on a communicator of its own
    iso_parameter_list parameter[MOST_RANKS];
    iso_buffer_list buffer[MOST_RANKS];
    iso_comm *self;
    bool flag;
} replicas;

static void create_replicas(replicas *r, trainer_config config) {
    int64_t rows = config.rows / test_size;
    config.buffers = (iso_buffer_config){.mode = ISO_BUFFERS_NONE};
    config.sync = ISO_SYNC_BLOCKING;
    config.rows = rows;
    r->flag = true;
    cr_ok(iso_comm_create(MPI_COMM_SELF, NULL, &r->self));
    for (int i = 0; i < test_size; i++) {
        config.first_row = i * rows;
        cr_ok(trainer_create(&r->rank[i], r->self, &config));
        cr_ok(iso_module_parameters(r->rank[i].model, &r->parameter[i]));
        cr_ok(iso_module_buffers(r->rank[i].model, &r->buffer[i]));
    }
}

static void destroy_replicas(replicas *r) {
    for (int i = 0; i < test_size; i++) {
        iso_parameter_list_destroy(&r->parameter[i]);
        iso_buffer_list_destroy(&r->buffer[i]);
        trainer_destroy(&r->rank[i]);
    }
    iso_comm_destroy(&r->self);
}

// PyTorch's forward: buffers first, if the flag says so; then the flag for the next one.
static void torch_before_forward(replicas *r, bool grad_and_sync) {
    for (int i = 1; r->flag && i < test_size; i++)
        for (int k = 0; k < r->buffer[0].count; k++) {
            const iso_tensor *from = r->buffer[0].item[k]->value;
            memcpy(r->buffer[i].item[k]->value->data, from->data,
                   (size_t)from->count * iso_dtype_size(from->dtype));
        }
    r->flag = grad_and_sync;
}

static void average_gradients(replicas *r) {
    for (int k = 0; k < r->parameter[0].count; k++) {
        int64_t count = r->parameter[0].item[k]->grad->count;
        for (int64_t e = 0; e < count; e++) {
            float sum = 0;
            for (int i = 0; i < test_size; i++)
                sum += ((float *)r->parameter[i].item[k]->grad->data)[e];
            for (int i = 0; i < test_size; i++)
                ((float *)r->parameter[i].item[k]->grad->data)[e] = sum / (float)test_size;
        }
    }
}

static double replica_loss(trainer *t, int step) {
    iso_tensor *out;
    double value;
    cr_ok(trainer_forward(t, step, &out));
    cr_ok(iso_loss_compute(t->loss, out, t->labels, &value, NULL, NULL));
    return value;
}

// Losses of this rank's rows in evaluation.
static double evaluated(trainer *t, int step) {
    cr_ok(iso_module_train(t->model, false));
    double loss = replica_loss(t, step);
    cr_ok(iso_module_train(t->model, true));
    return loss;
}

static void replica_step(replicas *r, int step, bool accumulate) {
    for (int i = 0; i < test_size; i++) iso_optimizer_zero_grad(r->rank[i].optimizer);
    for (int micro = accumulate ? 0 : 2; micro < 3; micro++) {
        torch_before_forward(r, micro == 2);
        for (int i = 0; i < test_size; i++) cr_ok(trainer_backward(&r->rank[i], step + micro));
    }
    for (int i = 0; i < test_size; i++) cr_ok(iso_data_parallel_finish(r->rank[i].model));
    average_gradients(r);
    for (int i = 0; i < test_size; i++) cr_ok(iso_optimizer_step(r->rank[i].optimizer));
}

static void rank_step(trainer *t, int step, bool accumulate) {
    iso_optimizer_zero_grad(t->optimizer);
    iso_assert_ok(iso_data_parallel_begin_no_sync(t->model));
    for (int micro = 0; accumulate && micro < 2; micro++)
        iso_assert_ok(trainer_backward(t, step + micro));
    iso_assert_ok(iso_data_parallel_end_no_sync(t->model));
    iso_assert_ok(trainer_backward(t, step + 2));
    iso_assert_ok(iso_optimizer_step(t->optimizer));
}

static double buffer_difference(const replicas *r, trainer *t) {
    iso_buffer_list list;
    double worst = 0;
    cr_ok(iso_module_buffers(t->model, &list));
    for (int k = 0; k < list.count; k++) {
        const iso_tensor *a = list.item[k]->value, *b = r->buffer[test_rank].item[k]->value;
        for (int64_t i = 0; i < a->count; i++)
            worst = fmax(worst,
                         a->dtype == ISO_I64
                             ? fabs((double)(((int64_t *)a->data)[i] - ((int64_t *)b->data)[i]))
                             : fabs((double)((float *)a->data)[i] - (double)((float *)b->data)[i]));
    }
    iso_buffer_list_destroy(&list);
    return worst;
}

// Steps, some of which accumulate, and evaluations. Running statistics and the loss in evaluation,
// which depends on them, are those of PyTorch's rules.
static void as_torch(void) {
    trainer_config config = trainer_default();
    static replicas r;
    trainer t;
    double worst = 0;
    config.build = build_norms;
    config.buffers =
        (iso_buffer_config){.mode = ISO_BUFFERS_RANK0, .when = ISO_BUFFERS_BEFORE_FORWARD};
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    create_replicas(&r, config);
    for (int step = 0; step < 12; step++) {
        rank_step(&t, step, step % 4 == 2);
        replica_step(&r, step, step % 4 == 2);
        worst = fmax(worst, buffer_difference(&r, &t));
        if (step % 3 != 2) continue;
        double loss = evaluated(&t, 50 + step);
        torch_before_forward(&r, false);
        worst = fmax(worst, fabs(loss - evaluated(&r.rank[test_rank], 50 + step)));
        worst = fmax(worst, buffer_difference(&r, &t));
    }
    if (worst > 1e-5) fprintf(stderr, "rank %d: %g\n", test_rank, worst);
    iso_assert_all(worst <= 1e-5);
    destroy_replicas(&r);
    trainer_destroy(&t);
}
Test(np2_buffer_steps, rank_0s_before_forward_is_torch) { as_torch(); }
Test(np3_buffer_steps, rank_0s_before_forward_is_torch) { as_torch(); }
Test(np4_buffer_steps, rank_0s_before_forward_is_torch) { as_torch(); }

// ---- Steps --------------------------------------------------------------------------------------

static void lazy_equals_blocking(iso_buffer_mode mode, iso_buffer_when when) {
    trainer_config config = trainer_default();
    uint64_t lazy = 0, blocking = 0;
    config.build = build_norms;
    config.buffers = (iso_buffer_config){.mode = mode, .when = when};
    iso_assert_ok(trainer_run(test_comm, &config, 12, &lazy));
    config.sync = ISO_SYNC_BLOCKING;
    iso_assert_ok(trainer_run(test_comm, &config, 12, &blocking));
    iso_assert_all(lazy == blocking);
}
Test(np3_buffer_steps, lazy_equals_blocking) {
    lazy_equals_blocking(ISO_BUFFERS_AVERAGE, ISO_BUFFERS_BEFORE_FORWARD);
    lazy_equals_blocking(ISO_BUFFERS_RANK0, ISO_BUFFERS_AFTER_BACKWARD);
    lazy_equals_blocking(ISO_BUFFERS_RANK0, ISO_BUFFERS_AFTER_FORWARD);
}

// ---- After the forward, without blocking ----------------------------------------------------------

static void share_updates(iso_data_parallel_config *dp) { dp->zero = true; }

// Trains with evaluations in between; returns a hash of parameters, buffers and losses.
static uint64_t hash_of_run(iso_buffer_mode mode, iso_buffer_when when, bool zero) {
    trainer_config config = trainer_default();
    trainer t;
    uint64_t hash = 0;
    iso_buffer_list list;
    config.build = build_norms;
    if (zero) config.adjust = share_updates;
    config.buffers = (iso_buffer_config){.mode = mode, .when = when};
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    for (int step = 0; step < 9; step++) {
        iso_assert_ok(trainer_step(&t, step, NULL));
        if (step % 3 != 2) continue;
        double loss = evaluated(&t, 50 + step);
        hash = iso__hash(hash, &loss, sizeof(loss));
    }
    iso_assert_ok(iso_module_train(t.model, false));
    iso_assert_ok(iso_module_buffers(t.model, &list));
    for (int k = 0; k < list.count; k++)
        hash = iso__hash(hash, list.item[k]->value->data, iso__tensor_bytes(list.item[k]->value));
    iso_buffer_list_destroy(&list);
    uint64_t parameters = 0;
    iso_assert_ok(trainer_hash(&t, &parameters));
    trainer_destroy(&t);
    return iso__hash(hash, &parameters, sizeof(parameters));
}

static void equals_before_forward(bool zero) {
    uint64_t before = hash_of_run(ISO_BUFFERS_RANK0, ISO_BUFFERS_BEFORE_FORWARD, zero);
    uint64_t after = hash_of_run(ISO_BUFFERS_RANK0, ISO_BUFFERS_AFTER_FORWARD, zero);
    uint64_t none = hash_of_run(ISO_BUFFERS_NONE, ISO_BUFFERS_AFTER_FORWARD, zero);
    iso_assert_all(before == after);
    iso_assert_all(test_rank == 0 || before != none);
}
Test(np2_buffer_steps, after_forward_has_the_bits_of_before_forward) {
    equals_before_forward(false);
}
Test(np3_buffer_steps, after_forward_has_the_bits_of_before_forward) {
    equals_before_forward(false);
    equals_before_forward(true);
}
Test(np4_buffer_steps, after_forward_has_the_bits_of_before_forward) {
    equals_before_forward(false);
}

static float *running_mean(trainer *t) {
    iso_buffer_list list;
    cr_ok(iso_module_buffers(t->model, &list));
    float *data = list.item[0]->value->data;
    iso_buffer_list_destroy(&list);
    return data;
}

// The other ranks begin their forward once rank 0 has ended its own. Then every rank finds the
// buffers of rank 0 where it looks: in a state dict, or after finish.
static void does_not_block(bool by_state_dict) {
    iso_comm *beside; // the broadcast is under way on test_comm
    trainer_config config = trainer_default();
    trainer t;
    iso_tensor *out;
    iso_state_dict dict = {0};
    config.build = build_norms;
    config.buffers =
        (iso_buffer_config){.mode = ISO_BUFFERS_RANK0, .when = ISO_BUFFERS_AFTER_FORWARD};
    iso_assert_ok(iso_comm_create(MPI_COMM_WORLD, NULL, &beside));
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    if (test_rank == 0) cr_ok(trainer_forward(&t, 0, &out));
    iso_assert_ok(iso_comm_barrier(beside));
    if (test_rank > 0) cr_ok(trainer_forward(&t, 0, &out));
    double first = (double)running_mean(&t)[0], own = first;
    iso_assert_ok(iso_comm_bcast(beside, &first, sizeof(first), 0));
    iso_assert_all(test_rank == 0 || own != first);
    if (by_state_dict)
        iso_assert_ok(iso_module_state_dict(t.model, &dict));
    else
        iso_assert_ok(iso_data_parallel_finish(t.model));
    iso_assert_all((double)running_mean(&t)[0] == first);
    iso_state_dict_destroy(&dict);
    trainer_destroy(&t);
    iso_comm_destroy(&beside);
}
Test(np3_buffer_steps, after_forward_does_not_block) {
    does_not_block(false);
    does_not_block(true);
}

static void allocates_nothing(iso_buffer_mode mode, iso_buffer_when when) {
    trainer_config config = trainer_default();
    trainer t;
    long long before, after;
    config.build = build_norms;
    config.buffers = (iso_buffer_config){.mode = mode, .when = when};
    config.sync = ISO_SYNC_BLOCKING; // requests of gradients are then as many every step
    iso_assert_ok(trainer_create(&t, test_comm, &config));
    iso_assert_ok(trainer_train(&t, 5));
    iso_memory_balance(NULL, NULL, &before);
    iso_assert_ok(trainer_train(&t, 5));
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(after == before);
    trainer_destroy(&t);
}
Test(np2_buffer_steps, steps_allocate_nothing) {
    allocates_nothing(ISO_BUFFERS_AVERAGE, ISO_BUFFERS_AFTER_BACKWARD);
    allocates_nothing(ISO_BUFFERS_RANK0, ISO_BUFFERS_BEFORE_FORWARD);
    allocates_nothing(ISO_BUFFERS_RANK0, ISO_BUFFERS_AFTER_FORWARD);
}
