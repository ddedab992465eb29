// SPDX-License-Identifier: MIT
// A small GPT under DataParallel: lazy = blocking = one rank on the whole batch.
#include "common/gpt_fixture.h"
#include "common/mpi_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <isotherm/optim.h>
#include <math.h>

TestSuite(np1_gpt, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_gpt, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_gpt, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum {
    SEQUENCES = 8,
    STEPS = 12
}; // of the whole batch; sequences differ in length from step to step

typedef struct setting {
    iso_sync sync;
    iso_dtype dtype;
    bool tied, zero; // head and wte
    double dropout, piece_mb, bucket_mb;
} setting;

typedef struct run {
    iso_device *device;
    iso_comm *comm;
    iso_module *model;
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_tensor *tokens;
    int64_t rows, first; // of this rank
    double value;        // the mean loss of the latest batch, over all ranks
} run;

static iso_status create(run *r, iso_comm *comm, const setting *s) {
    iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
    iso_hyper hyper = iso_hyper_default(ISO_ADAMW);
    iso_rng rng = {.seed = 4};
    iso_module *net;
    iso_optimizer *inner;
    *r = (run){.comm = comm, .rows = SEQUENCES / iso_comm_size(comm)};
    r->first = r->rows * iso_comm_rank(comm);
    config.sync = s->sync;
    config.piece_mb = s->piece_mb;
    config.bucket_mb = s->bucket_mb;
    config.zero = s->zero;
    hyper.lr = 0.01;
    ISO_TRY(iso_device_create("cpu", &r->device));
    ISO_TRY(build_gpt(r->device, s->dropout, &rng, &net));
    ISO_TRY(iso_module_to(net, s->dtype));
    if (s->tied) ISO_TRY(iso_module_tie(net, "head.weight", net, "wte.weight"));
    ISO_TRY(iso_data_parallel_create_take(net, comm, &config, &r->model));
    ISO_TRY(iso_optimizer_create(ISO_ADAMW, r->model, &hyper, &inner));
    ISO_TRY(iso_dp_optimizer_create_take(inner, r->model, &r->optimizer));
    ISO_TRY(iso_loss_create(r->device, ISO_CROSS_ENTROPY, &r->loss));
    return iso_tensor_create(r->device, ISO_I32, 2, (int64_t[]){r->rows, GPT_LENGTH}, &r->tokens);
}

static void destroy(run *r) {
    iso_tensor_destroy(&r->tokens);
    iso_loss_destroy(&r->loss);
    iso_optimizer_destroy(&r->optimizer);
    iso_module_destroy(&r->model);
    iso_device_destroy(&r->device);
}

// Token i of a sequence, which the ones before it determine.
static int32_t token(int64_t sequence, int64_t i) {
    return (int32_t)((sequence * 5 + i * (1 + sequence % 3)) % GPT_VOCABULARY);
}

static iso_status step(run *r, int number) {
    int64_t length = number % 3 == 2 ? GPT_LENGTH - 2 : GPT_LENGTH;
    int32_t labels[SEQUENCES * GPT_LENGTH];
    iso_tensor *out, *grad;
    ISO_TRY(iso_tensor_resize(r->tokens, 2, (int64_t[]){r->rows, length}, ISO_LAYOUT_LOGICAL));
    for (int64_t k = 0; k < r->rows * length; k++) {
        int64_t sequence = number * SEQUENCES + r->first + k / length;
        ((int32_t *)r->tokens->data)[k] = token(sequence, k % length);
        labels[k] = token(sequence, k % length + 1);
    }
    iso_optimizer_zero_grad(r->optimizer);
    ISO_TRY(iso_module_forward(r->model, r->tokens, &out));
    ISO_TRY(iso_loss_compute(r->loss, out, labels, &r->value, NULL, &grad));
    ISO_TRY(iso_module_backward(r->model, grad, NULL));
    ISO_TRY(iso_optimizer_step(r->optimizer));
    ISO_TRY(iso_comm_allreduce_f64(r->comm, &r->value, 1, ISO_SUM));
    r->value /= iso_comm_size(r->comm);
    return ISO_OK;
}

static iso_status train(run *r) {
    for (int t = 0; t < STEPS; t++) ISO_TRY(step(r, t));
    return ISO_OK;
}

static uint64_t hash_of(const setting *s) {
    run r;
    uint64_t hash;
    bool equal;
    iso_assert_ok(create(&r, test_comm, s));
    iso_assert_ok(train(&r));
    iso_assert_ok(iso_parameter_hash(r.model, test_comm, &hash, &equal));
    iso_assert_all(equal);
    destroy(&r);
    return hash;
}

// ---- Lazy = blocking, bit for bit -------------------------------------------------------------------

static void lazy_equals_blocking(void) {
    for (int i = 0; i < 8; i++) {
        setting s = {.dtype = i & 1 ? ISO_F64 : ISO_F32,
                     .tied = i & 2,
                     .dropout = i & 4 ? 0.2 : 0,
                     .piece_mb = i & 4 ? 0.0005 : 0,
                     .bucket_mb = i & 1 ? 0.002 : 0};
        s.sync = ISO_SYNC_LAZY;
        uint64_t lazy = hash_of(&s);
        s.sync = ISO_SYNC_BLOCKING;
        iso_assert_all(hash_of(&s) == lazy);
    }
}
Test(np1_gpt, lazy_equals_blocking) { lazy_equals_blocking(); }
Test(np2_gpt, lazy_equals_blocking) { lazy_equals_blocking(); }
Test(np4_gpt, lazy_equals_blocking) { lazy_equals_blocking(); }

// ---- The same as one rank ---------------------------------------------------------------------------

static double difference(iso_module *a, iso_module *b) {
    iso_parameter_list x, y;
    double most = 0;
    iso_assert_ok(iso_module_parameters(a, &x));
    iso_assert_ok(iso_module_parameters(b, &y));
    for (int i = 0; i < x.count; i++) {
        iso_tensor *p, *q;
        iso_assert_ok(iso_parameter_value(x.item[i], &p));
        iso_assert_ok(iso_parameter_value(y.item[i], &q));
        for (int64_t k = 0; k < p->count; k++)
            most = fmax(most, fabs(((double *)p->data)[k] - ((double *)q->data)[k]));
    }
    iso_parameter_list_destroy(&x);
    iso_parameter_list_destroy(&y);
    return most;
}

// In f64, where only the order of sums differs; with masks of dropout that go by the global row.
static void equals_one_rank(void) {
    for (int i = 0; i < 4; i++) {
        setting s = {.dtype = ISO_F64, .tied = i & 1, .dropout = i & 2 ? 0.2 : 0};
        run r, alone;
        iso_comm *self;
        s.zero = i == 3;
        iso_assert_ok(iso_comm_create(MPI_COMM_SELF, NULL, &self));
        iso_assert_ok(create(&r, test_comm, &s));
        s.zero = false;
        iso_assert_ok(create(&alone, self, &s));
        double before = 0;
        for (int t = 0; t < STEPS; t++) {
            iso_assert_ok(step(&r, t));
            iso_assert_ok(step(&alone, t));
            iso_assert_all(fabs(r.value - alone.value) < 1e-9);
            if (t == 0) before = r.value;
        }
        iso_assert_all(r.value < before);
        iso_assert_all(difference(r.model, alone.model) < 1e-8);
        destroy(&r);
        destroy(&alone);
        iso_comm_destroy(&self);
    }
}
Test(np2_gpt, equals_one_rank_on_the_whole_batch) { equals_one_rank(); }
Test(np4_gpt, equals_one_rank_on_the_whole_batch) { equals_one_rank(); }
