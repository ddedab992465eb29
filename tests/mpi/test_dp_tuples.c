// SPDX-License-Identifier: MIT
// Data-parallel training of modules with several inputs and outputs: lazy = blocking = explicit,
// N ranks = one rank on the whole batch, accumulation, and gradients that are missing.
#include "common/mpi_fixture.h"

#include <criterion/criterion.h>
#include <isotherm/optim.h>
#include <isotherm/parallel.h>
#include <math.h>
#include <string.h>

TestSuite(np1_dp_tuples, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_dp_tuples, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_dp_tuples, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

// ---- Models -----------------------------------------------------------------------------------------

enum { ROWS = 12, TOKENS = 7, STEPS = 6, OUTPUTS = 2 };
static bool with_dropout = true, attends;
static iso_rng rng;

// Forwards the first error.
#define TRY(call)                                                                                  \
    do {                                                                                           \
        iso_status try_ = (call);                                                                  \
        if (try_ < 0) return try_;                                                                 \
    } while (0)

static iso_status build_tower(iso_device *device, iso_module **out) {
    iso_module *m;
    TRY(iso_sequential_create(device, out));
    TRY(iso_linear_create(device, 6, 8, true, &rng, &m));
    TRY(iso_sequential_add_take(*out, "fc", m));
    TRY(iso_tanh_create(device, &m));
    return iso_sequential_add_take(*out, "act", m);
}

static iso_status build_towers(iso_device *device, iso_module **out) {
    const iso_embedding_config config = {.num_embeddings = TOKENS, .embedding_dim = 8};
    iso_module *m;
    TRY(iso_branches_create(device, out));
    TRY(build_tower(device, &m));
    TRY(iso_branches_add_take(*out, "numbers", m));
    TRY(iso_embedding_create(device, &config, &rng, &m));
    return iso_branches_add_take(*out, "tokens", m);
}

static iso_status build_heads(iso_device *device, iso_module **out) {
    iso_module *m;
    TRY(iso_branches_create(device, out));
    TRY(iso_linear_create(device, 4, 3, true, &rng, &m));
    TRY(iso_branches_add_take(*out, "first", m));
    TRY(iso_linear_create(device, 2, 2, true, &rng, &m));
    return iso_branches_add_take(*out, "second", m);
}

// Of numbers and tokens, or of two sequences; either way to rows of 6.
static iso_status build_trunk(iso_device *device, iso_module *net) {
    const iso_attention_config config = {.embed_dim = 6, .num_heads = 2};
    iso_module *m;
    if (!attends) {
        TRY(build_towers(device, &m));
        TRY(iso_sequential_add_take(net, "towers", m));
        TRY(iso_bilinear_create(device, 8, 8, 6, true, &rng, &m));
        return iso_sequential_add_take(net, "join", m);
    }
    TRY(iso_multihead_attention_create(device, &config, &rng, &m));
    TRY(iso_sequential_add_take(net, "attend", m));
    TRY(iso_flatten_create(device, &m));
    TRY(iso_sequential_add_take(net, "flatten", m));
    TRY(iso_linear_create(device, 24, 6, true, &rng, &m));
    return iso_sequential_add_take(net, "fc", m);
}

static iso_status build_net(iso_device *device, iso_module **out) {
    iso_module *m;
    rng = (iso_rng){.seed = 5};
    TRY(iso_sequential_create(device, out));
    TRY(build_trunk(device, *out));
    if (with_dropout) {
        TRY(iso_dropout_create(device, 0.3, &rng, &m));
        TRY(iso_sequential_add_take(*out, "drop", m));
    }
    TRY(iso_split_create(device, 1, 2, (int64_t[]){4, 2}, &m));
    TRY(iso_sequential_add_take(*out, "cut", m));
    TRY(build_heads(device, &m));
    return iso_sequential_add_take(*out, "heads", m);
}

// ---- Training ---------------------------------------------------------------------------------------

typedef struct run {
    iso_comm *comm;
    iso_device *device;
    iso_module *model;
    iso_optimizer *optimizer;
    iso_loss *loss[OUTPUTS];
    iso_tensors in, target;
    iso_sync sync;
    int micro;    // backwards of a step, of the same batch
    bool missing; // the second output gets no gradient
} run;

static double number(int step, int which, int64_t row, int64_t k) {
    return sin(1 + step + 7.3 * which + 1.7 * (double)row + 0.31 * (double)k);
}

// This rank's rows of a tensor of the global batch.
static iso_status fill(const run *r, iso_tensor *t, int step, int which) {
    const int64_t *shape = iso_tensor_shape(t);
    int64_t n = shape[0], width = iso_tensor_count(t) / n, first = iso_comm_rank(r->comm) * n;
    void *data;
    TRY(iso_tensor_map(t, ISO_WRITE, &data));
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < width; k++) {
            if (iso_tensor_dtype(t) == ISO_I32)
                ((int32_t *)data)[i] = (int32_t)((first + i + step) * 3 % TOKENS);
            else
                ((float *)data)[i * width + k] = (float)number(step, which, first + i, k);
        }
    return iso_tensor_unmap(t);
}

static iso_status create_tensors(run *r) {
    int64_t n = ROWS / iso_comm_size(r->comm);
    static const int64_t outputs[OUTPUTS] = {3, 2};
    r->in.count = r->target.count = 2;
    for (int i = 0; i < 2; i++)
        TRY(iso_tensor_create(r->device, ISO_F32, 2, (int64_t[]){n, outputs[i]},
                              &r->target.item[i]));
    if (attends) {
        TRY(iso_tensor_create(r->device, ISO_F32, 3, (int64_t[]){n, 4, 6}, &r->in.item[0]));
        return iso_tensor_create(r->device, ISO_F32, 3, (int64_t[]){n, 5, 6}, &r->in.item[1]);
    }
    TRY(iso_tensor_create(r->device, ISO_F32, 2, (int64_t[]){n, 6}, &r->in.item[0]));
    return iso_tensor_create(r->device, ISO_I32, 1, &n, &r->in.item[1]);
}

static iso_status create_run(run *r, iso_comm *comm, iso_sync sync) {
    iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
    iso_hyper hyper = iso_hyper_default(ISO_SGD);
    config.sync = sync;
    config.bucket_mb = 0;
    hyper.lr = 0.2;
    hyper.momentum = 0.9;
    *r = (run){.comm = comm, .sync = sync, .micro = 1};
    TRY(iso_device_create("cpu", &r->device));
    TRY(build_net(r->device, &r->model));
    TRY(iso_data_parallel_create_take(r->model, comm, &config, &r->model));
    TRY(iso_optimizer_create(ISO_SGD, r->model, &hyper, &r->optimizer));
    TRY(iso_dp_optimizer_create_take(r->optimizer, r->model, &r->optimizer));
    for (int i = 0; i < OUTPUTS; i++) TRY(iso_loss_create(r->device, ISO_MSE, &r->loss[i]));
    return create_tensors(r);
}

static void destroy_run(run *r) {
    for (int i = 0; i < 2; i++) {
        iso_tensor_destroy(&r->in.item[i]);
        iso_tensor_destroy(&r->target.item[i]);
        iso_loss_destroy(&r->loss[i]);
    }
    iso_optimizer_destroy(&r->optimizer);
    iso_module_destroy(&r->model);
    iso_device_destroy(&r->device);
}

static iso_status forward_backward(run *r) {
    iso_tensors out, g = {.count = OUTPUTS};
    TRY(iso_module_forward_many(r->model, &r->in, &out));
    for (int i = 0; i < OUTPUTS; i++) {
        TRY(iso_loss_compute_tensor(r->loss[i], out.item[i], r->target.item[i], NULL, &g.item[i]));
        TRY(iso_tensor_scale(g.item[i], 1.0 / r->micro));
    }
    if (r->missing) g.item[1] = NULL;
    return iso_module_backward_many(r->model, &g, 0, NULL);
}

static iso_status step_of(run *r, int step) {
    for (int i = 0; i < 2; i++) {
        TRY(fill(r, r->in.item[i], step, i));
        TRY(fill(r, r->target.item[i], step, 2 + i));
    }
    iso_optimizer_zero_grad(r->optimizer);
    for (int i = 1; i < r->micro; i++) {
        TRY(iso_data_parallel_begin_no_sync(r->model));
        TRY(forward_backward(r));
        TRY(iso_data_parallel_end_no_sync(r->model));
    }
    TRY(forward_backward(r));
    if (r->sync == ISO_SYNC_EXPLICIT) TRY(iso_data_parallel_all_reduce_gradients(r->model));
    return iso_optimizer_step(r->optimizer);
}

static iso_status train(run *r, int steps) {
    for (int step = 0; step < steps; step++) TRY(step_of(r, step));
    return ISO_OK;
}

static uint64_t hash_of(iso_sync sync, int micro, bool missing) {
    run r;
    uint64_t hash = 0;
    bool equal = false;
    iso_assert_ok(create_run(&r, test_comm, sync));
    r.micro = micro;
    r.missing = missing;
    iso_assert_ok(train(&r, STEPS));
    iso_assert_ok(iso_parameter_hash(r.model, test_comm, &hash, &equal));
    iso_assert_all(equal);
    destroy_run(&r);
    return hash;
}

// ---- Tests ------------------------------------------------------------------------------------------

static void every_mode_gives_the_same_bits(void) {
    for (int i = 0; i < 4; i++) {
        attends = i & 1;
        bool missing = i & 2;
        uint64_t lazy = hash_of(ISO_SYNC_LAZY, 1, missing);
        uint64_t blocking = hash_of(ISO_SYNC_BLOCKING, 1, missing);
        uint64_t by_hand = hash_of(ISO_SYNC_EXPLICIT, 1, missing);
        iso_assert_all(lazy == blocking && lazy == by_hand);
    }
}
Test(np1_dp_tuples, every_mode_gives_the_same_bits) { every_mode_gives_the_same_bits(); }
Test(np2_dp_tuples, every_mode_gives_the_same_bits) { every_mode_gives_the_same_bits(); }
Test(np3_dp_tuples, every_mode_gives_the_same_bits) { every_mode_gives_the_same_bits(); }

static double difference_of(run *a, run *b) {
    iso_parameter_list list[2];
    double largest = 0;
    iso_assert_ok(iso_module_parameters(a->model, &list[0]));
    iso_assert_ok(iso_module_parameters(b->model, &list[1]));
    for (int i = 0; i < list[0].count; i++) {
        iso_tensor *value[2];
        void *x, *y;
        iso_assert_ok(iso_parameter_value(list[0].item[i], &value[0]));
        iso_assert_ok(iso_parameter_value(list[1].item[i], &value[1]));
        iso_assert_ok(iso_tensor_map(value[0], ISO_READ, &x));
        iso_assert_ok(iso_tensor_map(value[1], ISO_READ, &y));
        for (int64_t k = 0; k < iso_tensor_count(value[0]); k++)
            largest = fmax(largest, fabs((double)(((float *)x)[k] - ((float *)y)[k])));
        iso_assert_ok(iso_tensor_unmap(value[0]));
        iso_assert_ok(iso_tensor_unmap(value[1]));
    }
    for (int i = 0; i < 2; i++) iso_parameter_list_destroy(&list[i]);
    return largest;
}

// Dropout draws by the row of the global batch, which is that of the first input.
static void equals_one_rank(void) {
    for (int i = 0; i < 2; i++) {
        run many, one, start;
        iso_comm *alone;
        attends = i;
        iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &alone));
        iso_assert_ok(create_run(&many, test_comm, ISO_SYNC_LAZY));
        iso_assert_ok(create_run(&one, alone, ISO_SYNC_LAZY));
        iso_assert_ok(create_run(&start, alone, ISO_SYNC_LAZY));
        iso_assert_ok(train(&many, STEPS));
        iso_assert_ok(train(&one, STEPS));
        double difference = difference_of(&many, &one);
        iso_assert_all(difference < 2e-5);
        iso_assert_all(difference_of(&one, &start) > 0.01);
        destroy_run(&start);
        destroy_run(&one);
        destroy_run(&many);
        iso_comm_destroy(&alone);
    }
}
Test(np2_dp_tuples, equals_one_rank_on_the_whole_batch) { equals_one_rank(); }
Test(np3_dp_tuples, equals_one_rank_on_the_whole_batch) { equals_one_rank(); }

// Halves of a gradient add up exactly.
static void accumulates(void) {
    with_dropout = false;
    uint64_t once = hash_of(ISO_SYNC_LAZY, 1, false);
    iso_assert_all(hash_of(ISO_SYNC_LAZY, 2, false) == once);
    iso_assert_all(hash_of(ISO_SYNC_EXPLICIT, 2, false) == once);
}
Test(np2_dp_tuples, accumulates) { accumulates(); }
Test(np3_dp_tuples, accumulates) { accumulates(); }

static void allocates_nothing(void) {
    run r;
    long long before, after;
    iso_assert_ok(create_run(&r, test_comm, ISO_SYNC_LAZY));
    iso_assert_ok(train(&r, STEPS));
    iso_memory_balance(NULL, NULL, &before);
    iso_assert_ok(train(&r, STEPS));
    iso_memory_balance(NULL, NULL, &after);
    iso_assert_all(before == after);
    destroy_run(&r);
}
Test(np2_dp_tuples, steps_allocate_nothing) { allocates_nothing(); }

static iso_tensor *replacement;
static iso_status replace_first(iso_module *module, iso_tensor **in, void *user) {
    (void)module, (void)user;
    *in = replacement;
    return ISO_OK;
}

// A hook of the wrapper replaces the first input; gradients of inputs are those of what it put.
Test(np2_dp_tuples, hooks_replace_the_first_input) {
    run r;
    iso_tensors out, g = {.count = OUTPUTS}, dx;
    iso_assert_ok(create_run(&r, test_comm, ISO_SYNC_LAZY));
    replacement = r.in.item[0];
    for (int i = 0; i < 2; i++) iso_assert_ok(fill(&r, r.in.item[i], 1, i));
    iso_assert_ok(
        iso_tensor_create(r.device, ISO_F32, 2, (int64_t[]){1, 1}, &r.in.item[0])); // would not fit
    iso_assert_ok(iso_data_parallel_add_before_forward(r.model, replace_first, NULL, NULL));
    iso_assert_ok(iso_module_forward_many(r.model, &r.in, &out));
    for (int i = 0; i < OUTPUTS; i++) {
        g.item[i] = r.target.item[i];
        iso_assert_all(iso_tensor_count(out.item[i]) == iso_tensor_count(g.item[i]));
    }
    iso_assert_ok(iso_module_backward_many(r.model, &g, ISO_WANT_ALL, &dx));
    iso_assert_all(dx.count == 2 && iso_tensor_count(dx.item[0]) == iso_tensor_count(replacement));
    iso_assert_all(dx.item[1] == NULL); // indices
    iso_tensor_destroy(&replacement);
    destroy_run(&r);
}

// The same outputs on all ranks, whatever was pending.
Test(np3_dp_tuples, evaluation_uses_the_updated_parameters) {
    run r;
    iso_tensors out;
    uint64_t sum = 0, hash[2];
    void *y;
    iso_assert_ok(create_run(&r, test_comm, ISO_SYNC_LAZY));
    iso_assert_ok(train(&r, STEPS));
    iso_assert_ok(iso_module_train(r.model, false));
    iso_assert_ok(iso_parameter_hash(r.model, test_comm, &hash[0], NULL));
    iso_module *inner = iso_data_parallel_module(r.model);
    for (int i = 0; i < 2; i++) { // through the wrapper, and below it
        iso_assert_ok(iso_module_forward_many(i ? inner : r.model, &r.in, &out));
        iso_assert_ok(iso_tensor_map(out.item[1], ISO_READ, &y));
        uint64_t bits = 0;
        for (int64_t k = 0; k < iso_tensor_count(out.item[1]); k++)
            bits = bits * 31 + (uint64_t)(int64_t)(((float *)y)[k] * 1e6f);
        iso_assert_ok(iso_tensor_unmap(out.item[1]));
        if (i == 0) sum = bits;
        iso_assert_all(bits == sum);
    }
    iso_assert_ok(iso_parameter_hash(r.model, test_comm, &hash[1], NULL));
    iso_assert_all(hash[0] == hash[1]);
    destroy_run(&r);
}
