// SPDX-License-Identifier: MIT
// For tests of periodic training: opening real runs of daso and daso_heat, and holding them against
// the serial model.
#include "common/daso_fixture.h"
#include "common/tensor_access.h"
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include "common/resume_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static iso_status add(iso_module *net, iso_status made, const char *name, iso_module **layer) {
    ISO_TRY(made);
    return iso_sequential_add_take(net, name, *layer);
}

iso_status build_smooth(iso_device *device, bool dropout, iso_module **out) {
    iso_rng rng = {.seed = 7};
    iso_module *net, *m = NULL;
    iso_conv2d_config c1 = {
        .in_channels = TRAINER_CHANNELS, .out_channels = 4, .kernel_size = {3, 3}};
    iso_conv2d_config c2 = {
        .in_channels = 4, .out_channels = 6, .kernel_size = {3, 3}, .stride = {2, 2}};
    (void)dropout;
    ISO_TRY(iso_sequential_create(device, &net));
    ISO_TRY(add(net, iso_conv2d_create(device, &c1, &rng, &m), "conv1", &m));
    ISO_TRY(add(net, iso_conv2d_create(device, &c2, &rng, &m), "conv2", &m));
    ISO_TRY(add(net, iso_flatten_create(device, &m), "flatten", &m));
    ISO_TRY(add(net, iso_linear_create(device, 54, 16, true, &rng, &m), "fc1", &m));
    ISO_TRY(add(net, iso_linear_create(device, 16, TRAINER_CLASSES, true, &rng, &m), "fc2", &m));
    *out = net;
    return ISO_OK;
}

daso_case daso_case_default(int64_t total_steps) {
    daso_case c = {.ranks_per_node = 1, .train = trainer_default(), .daso = ISO_DASO_DEFAULT};
    c.train.build = build_smooth;
    c.train.hyper.lr = 0.01;
    c.train.bucket_mb = 1; // all gradients in one message
    c.daso.total_steps = total_steps;
    c.daso.warmup_steps = c.daso.cooldown_steps = 0;
    c.daso.global_skip = 4;
    c.daso.batches_to_wait = 1;
    c.daso.wire = ISO_WIRE_F32;
    c.train.rows = 0; // two for each rank
    return c;
}

daso_case heat_case_default(int64_t total_epochs) {
    daso_case c = daso_case_default(1);
    c.heat = true;
    c.heat_config = ISO_DASO_HEAT_DEFAULT;
    c.heat_config.total_epochs = total_epochs;
    c.heat_config.warmup_epochs = c.heat_config.cooldown_epochs = 1;
    c.heat_config.downcast_type = ISO_F32;
    return c;
}

static trainer_config sized(const daso_case *c, int ranks) {
    trainer_config train = c->train;
    if (train.rows == 0) train.rows = 2 * ranks;
    return train;
}

static void set_ranks_per_node(int n) {
    char text[16];
    snprintf(text, sizeof(text), "%d", n);
    setenv("ISO_RANKS_PER_NODE", text, 1);
}

iso_status daso_open(trainer *t, MPI_Comm mpi_comm, const daso_case *c) {
    iso_comm *comm;
    set_ranks_per_node(c->ranks_per_node);
    ISO_TRY(iso_comm_create(mpi_comm, NULL, &comm));
    trainer_config train = sized(c, iso_comm_size(comm));
    ISO_TRY(trainer_create(t, comm, &train));
    if (c->heat)
        return iso_daso_heat_create_take(t->optimizer, t->model, &c->heat_config, &t->optimizer);
    return iso_daso_create_take(t->optimizer, t->model, &c->daso, &t->optimizer);
}

void daso_close(trainer *t) {
    iso_comm *comm = t->comm;
    trainer_destroy(t);
    iso_comm_destroy(&comm);
}

bool daso_refused(const daso_case *c, iso_status expected, const char *said) {
    trainer t;
    iso_status status = daso_open(&t, MPI_COMM_WORLD, c);
    bool well = status == expected && strstr(iso_last_error()->message, said);
    if (!well) fprintf(stderr, "not \"%s\": %s\n", said, iso_last_error()->message);
    daso_close(&t);
    return well;
}

iso_status daso_exchange_state(trainer *t, int64_t step, bool save) {
    iso_state *state;
    int64_t found = step;
    ISO_TRY(iso_state_create(&state));
    iso_status status = iso_training_state(t->model, t->optimizer, state);
    if (status >= 0)
        status = save ? iso_resume_save(t->comm, resume_path(), step, state)
                      : iso_resume_load(t->comm, resume_path(), state, &found);
    iso_state_destroy(&state);
    if (status >= 0 && !save) status = iso_training_loaded(t->model, t->optimizer);
    return status;
}

iso_status daso_model_open(daso_model *m, const trainer *t, const daso_case *c) {
    int ranks = iso_comm_size(t->comm);
    model_config config = {
        .ranks = ranks, .ranks_per_node = c->ranks_per_node, .train = sized(c, ranks)};
    return model_create(m, &config);
}

iso_status daso_difference(trainer *t, const daso_model *m, double *out) {
    ISO_TRY(iso_data_parallel_finish(t->model));
    return model_difference(m, iso_comm_rank(t->comm), t->model, out);
}

bool daso_follows_within(trainer *t, const daso_model *m, double most, const char *where) {
    double difference = INFINITY;
    if (daso_difference(t, m, &difference) < 0) return false;
    if (difference >= most)
        fprintf(stderr, "rank %d, %s: difference %g\n", iso_comm_rank(t->comm), where, difference);
    return difference < most;
}

bool daso_follows(trainer *t, const daso_model *m, const char *where) {
    return daso_follows_within(t, m, DASO_ROUNDING, where);
}

// ---- Values ---------------------------------------------------------------------------------------

typedef void (*visitor)(const iso_tensor *value, void *data, void *user);

static iso_status visit(trainer *t, visitor visitor, void *user) {
    iso_parameter_list list;
    ISO_TRY(iso_data_parallel_finish(t->model));
    ISO_TRY(iso_module_parameters(t->model, &list));
    for (int i = 0; i < list.count; i++) {
        iso_tensor *value = list.item[i]->value;
        void *data;
        if (!list.item[i]->requires_grad) continue;
        ISO_TRY(iso_tensor_map(value, ISO_READ_WRITE, &data));
        visitor(value, data, user);
        ISO_TRY(iso_tensor_unmap(value));
    }
    iso_parameter_list_destroy(&list);
    return ISO_OK;
}

typedef struct drift {
    float amount;
    int64_t index;
} drift;

static void add_drift(const iso_tensor *value, void *data, void *user) {
    drift *d = user;
    for (int64_t k = 0; k < value->count; k++) {
        float step = d->amount * (float)(d->index++ % 7);
        if (value->dtype == ISO_F64)
            ((double *)data)[k] += (double)step;
        else
            ((float *)data)[k] += step;
    }
}

iso_status daso_drift(trainer *t, float amount) {
    drift d = {.amount = amount};
    return visit(t, add_drift, &d);
}

static void add_hash(const iso_tensor *value, void *data, void *user) {
    uint64_t *hash = user;
    *hash = iso__hash(*hash, data, (size_t)value->count * iso_dtype_size(value->dtype));
}

iso_status daso_own_hash(trainer *t, uint64_t *out) {
    *out = ISO_HASH_START;
    return visit(t, add_hash, out);
}

static void add_count(const iso_tensor *value, void *data, void *user) {
    (void)data;
    *(int64_t *)user += value->count;
}

static void append(const iso_tensor *value, void *data, void *user) {
    float **at = user;
    for (int64_t k = 0; k < value->count; k++)
        *(*at)++ = value->dtype == ISO_F64 ? (float)((double *)data)[k] : ((const float *)data)[k];
}

float *daso_values(trainer *t, int64_t *count) {
    *count = 0;
    if (visit(t, add_count, count) < 0) return NULL;
    float *values = calloc((size_t)*count, sizeof(float)), *at = values;
    if (values && visit(t, append, &at) >= 0) return values;
    free(values);
    return NULL;
}

bool daso_equal(trainer *t) {
    uint64_t hash;
    bool equal = false;
    return iso_parameter_hash(t->model, t->comm, &hash, &equal) >= 0 && equal;
}

// ---- Runs -----------------------------------------------------------------------------------------

iso_status daso_delayed_step(trainer *t, const daso_case *c, int step) {
    if (c->delay_us > 0) {
        uint32_t counter[4] = {(uint32_t)step, (uint32_t)iso_comm_rank(t->comm), 0, 0}, bits[4];
        iso__philox(iso__philox_key_make(9, ISO_RNG_TEST, 0), counter, bits);
        long us = (long)(bits[0] % (uint32_t)c->delay_us);
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
    }
    return trainer_step(t, step, NULL);
}

static iso_status train(trainer *t, const daso_case *c, int look, uint64_t *out) {
    uint64_t seen;
    for (int step = 0; step < (int)c->daso.total_steps; step++) {
        ISO_TRY(daso_delayed_step(t, c, step));
        if (look > 0 && step % look == 0) ISO_TRY(daso_own_hash(t, &seen));
    }
    ISO_TRY(iso_daso_finish(t->optimizer));
    return trainer_hash(t, out);
}

iso_status daso_hash(MPI_Comm mpi_comm, const daso_case *c, int look, uint64_t *out) {
    trainer t;
    ISO_TRY(daso_open(&t, mpi_comm, c));
    iso_status status = train(&t, c, look, out);
    daso_close(&t);
    return status;
}

uint64_t daso_end_of(const daso_case *c, int stop, int end) {
    trainer t;
    uint64_t hash = 0;
    iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
    iso_assert_ok(trainer_go_on(&t, 0, stop));
    if (stop > 0) {
        iso_assert_ok(daso_exchange_state(&t, stop, true));
        daso_close(&t);
        iso_assert_ok(daso_open(&t, MPI_COMM_WORLD, c));
        iso_assert_ok(trainer_go_on(&t, 0, stop % 4)); // a past of its own
        iso_assert_ok(daso_exchange_state(&t, stop, false));
    }
    iso_assert_ok(trainer_go_on(&t, stop, end));
    iso_assert_ok(daso_own_hash(&t, &hash));
    daso_close(&t);
    return hash;
}

// ---- Faults ----------------------------------------------------------------------------------------

float daso_swap_last(trainer *t, float value) {
    iso_parameter_list list;
    if (iso_data_parallel_finish(t->model) < 0) return NAN;
    if (iso_module_parameters(t->model, &list) < 0) return NAN;
    iso_tensor *last = list.item[list.count - 1]->value;
    float before = tensor_swap(last, iso_tensor_count(last) - 1, value);
    iso_parameter_list_destroy(&list);
    return before;
}

iso_status daso_poisoned_step(trainer *t, int step, bool here, float value) {
    iso_optimizer_zero_grad(t->optimizer);
    iso_status status = trainer_backward(t, step);
    float healthy = 0;
    if (status < 0 || iso_data_parallel_finish(t->model) < 0) return ISO_ERR_STATE;
    if (here) healthy = daso_swap_last(t, value);
    status = iso_optimizer_step(t->optimizer);
    if (here) daso_swap_last(t, healthy);
    return status;
}

bool daso_same_status(iso_status status) {
    int both[2] = {(int)status, -(int)status};
    MPI_Allreduce(MPI_IN_PLACE, both, 2, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return both[0] == -both[1];
}
