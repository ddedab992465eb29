// SPDX-License-Identifier: MIT
// Embeddings with sparse gradients (iso_embedding_config.sparse_rows) under DataParallel: training
// with and without them gives the same bits.
#include "common/mpi_fixture.h"
#include "common/resume_fixture.h"

#include "base/base.h"
#include "tensor/tensor_impl.h"

#include <criterion/criterion.h>
#include <isotherm/optim.h>
#include <string.h>

TestSuite(np1_sparse_embedding, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np2_sparse_embedding, .init = resume_setup, .fini = resume_teardown, .timeout = 60);
TestSuite(np3_sparse_embedding, .init = resume_setup, .fini = resume_teardown, .timeout = 60);

enum {
    WORDS = 70,
    WIDTH = 6,
    LENGTH = 5,
    ROWS = 3,
    CLASSES = 4,
    STEPS = 8,
    TOKENS = ROWS * LENGTH
};

typedef struct setting {
    iso_sync sync;
    int64_t sparse_rows;
    int accumulated; // backwards of a step
    iso_dtype dtype;
    bool zero;
    uint64_t seed;
} setting;

typedef struct run {
    iso_device *device;
    iso_module *model;
    iso_optimizer *optimizer;
    iso_loss *loss;
    iso_tensor *tokens;
    int accumulated;
    iso_sync sync;
} run;

// words (Embedding), flat, top (Linear).
static iso_status build(iso_device *device, const setting *s, iso_module **out) {
    iso_embedding_config words = {
        .num_embeddings = WORDS, .embedding_dim = WIDTH, .sparse_rows = s->sparse_rows};
    iso_rng rng = {.seed = s->seed};
    iso_module *layer;
    ISO_TRY(iso_sequential_create(device, out));
    ISO_TRY(iso_embedding_create(device, &words, &rng, &layer));
    ISO_TRY(iso_sequential_add_take(*out, "words", layer));
    ISO_TRY(iso_flatten_create(device, &layer));
    ISO_TRY(iso_sequential_add_take(*out, "flat", layer));
    ISO_TRY(iso_linear_create(device, LENGTH * WIDTH, CLASSES, true, &rng, &layer));
    ISO_TRY(iso_sequential_add_take(*out, "top", layer));
    return iso_module_to(*out, s->dtype);
}

static iso_status create(run *r, const setting *s) {
    iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
    iso_hyper hyper = iso_hyper_default(ISO_ADAM);
    iso_module *net = NULL;
    iso_optimizer *inner;
    *r = (run){.accumulated = s->accumulated, .sync = s->sync};
    config.sync = s->sync;
    config.zero = s->zero;
    ISO_TRY(iso_device_create("cpu", &r->device));
    ISO_TRY(build(r->device, s, &net));
    ISO_TRY(iso_data_parallel_create_take(net, test_comm, &config, &r->model));
    ISO_TRY(iso_optimizer_create(ISO_ADAM, r->model, &hyper, &inner));
    ISO_TRY(iso_dp_optimizer_create_take(inner, r->model, &r->optimizer));
    ISO_TRY(iso_loss_create(r->device, ISO_CROSS_ENTROPY, &r->loss));
    return iso_tensor_create(r->device, ISO_I32, 2, (int64_t[]){ROWS, LENGTH}, &r->tokens);
}

static void destroy(run *r) {
    iso_tensor_destroy(&r->tokens);
    iso_loss_destroy(&r->loss);
    iso_optimizer_destroy(&r->optimizer);
    iso_module_destroy(&r->model);
    iso_device_destroy(&r->device);
}

static iso_status one_backward(run *r, int number) {
    int32_t labels[ROWS];
    iso_tensor *out, *grad;
    double value;
    for (int k = 0; k < TOKENS; k++)
        ((int32_t *)r->tokens->data)[k] = (number * 17 + test_rank * 5 + k * k) % WORDS;
    for (int k = 0; k < ROWS; k++) labels[k] = (number + test_rank + k) % CLASSES;
    ISO_TRY(iso_module_forward(r->model, r->tokens, &out));
    ISO_TRY(iso_loss_compute(r->loss, out, labels, &value, NULL, &grad));
    return iso_module_backward(r->model, grad, NULL);
}

static iso_status step(run *r, int number) {
    iso_optimizer_zero_grad(r->optimizer);
    ISO_TRY(iso_data_parallel_begin_no_sync(r->model));
    for (int k = 1; k < r->accumulated; k++) ISO_TRY(one_backward(r, number * r->accumulated + k));
    ISO_TRY(iso_data_parallel_end_no_sync(r->model));
    ISO_TRY(one_backward(r, number * r->accumulated));
    if (r->sync == ISO_SYNC_EXPLICIT) ISO_TRY(iso_data_parallel_all_reduce_gradients(r->model));
    return iso_optimizer_step(r->optimizer);
}

static iso_status train(run *r, int from, int to) {
    for (int t = from; t < to; t++) ISO_TRY(step(r, t));
    return ISO_OK;
}

static uint64_t hash_of(run *r) {
    uint64_t hash;
    bool equal;
    iso_assert_ok(iso_parameter_hash(r->model, test_comm, &hash, &equal));
    iso_assert_all(equal);
    return hash;
}

static uint64_t hash_after(const setting *s, int steps, iso_reducer_stats *stats) {
    run r;
    iso_assert_ok(create(&r, s));
    iso_assert_ok(train(&r, 0, steps));
    uint64_t hash = hash_of(&r);
    iso_reducer_get_stats(iso_data_parallel_reducer(r.model), stats);
    destroy(&r);
    return hash;
}

// Sums of f64 travel as messages, which add in an order of their own on more than two ranks.
static void gives_the_bits_of_a_dense_one(void) {
    for (int i = 0; i < 12; i++) {
        static const iso_sync modes[] = {ISO_SYNC_LAZY, ISO_SYNC_BLOCKING, ISO_SYNC_EXPLICIT};
        setting s = {.sync = modes[i % 3],
                     .accumulated = i / 3 % 2 ? 3 : 1,
                     .dtype = i / 6 && test_size < 3 ? ISO_F64 : ISO_F32,
                     .seed = 4};
        iso_reducer_stats dense, sparse;
        uint64_t expected = hash_after(&s, STEPS, &dense);
        s.sparse_rows = TOKENS * s.accumulated;
        iso_assert_all(hash_after(&s, STEPS, &sparse) == expected);
        bool fewer = sparse.bytes_sent < dense.bytes_sent;
        iso_assert_all(test_size == 1 || s.accumulated > 1 || fewer);
    }
}
Test(np1_sparse_embedding, gives_the_bits_of_a_dense_one) { gives_the_bits_of_a_dense_one(); }
Test(np2_sparse_embedding, gives_the_bits_of_a_dense_one) { gives_the_bits_of_a_dense_one(); }
Test(np3_sparse_embedding, gives_the_bits_of_a_dense_one) { gives_the_bits_of_a_dense_one(); }

// ---- Saved and resumed ----------------------------------------------------------------------------------

static iso_state *state_of(run *r) {
    iso_state *state;
    iso_assert_ok(iso_state_create(&state));
    iso_assert_ok(iso_training_state(r->model, r->optimizer, state));
    return state;
}

// Saved states do not know of sparse gradients: dense runs go on sparse.
static void resumes(setting first, setting second) {
    run r;
    int64_t reached = -1;
    iso_reducer_stats stats;
    uint64_t expected = hash_after(&first, STEPS, &stats);
    iso_assert_ok(create(&r, &first));
    iso_assert_ok(train(&r, 0, STEPS / 2));
    iso_state *state = state_of(&r);
    iso_assert_ok(iso_resume_save(test_comm, resume_path(), STEPS / 2, state));
    iso_state_destroy(&state);
    destroy(&r);
    second.seed = 9;
    iso_assert_ok(create(&r, &second));
    state = state_of(&r);
    iso_assert_ok(iso_resume_load(test_comm, resume_path(), state, &reached));
    iso_assert_ok(iso_training_loaded(r.model, r.optimizer));
    iso_state_destroy(&state);
    iso_assert_ok(train(&r, STEPS / 2, STEPS));
    iso_assert_all(reached == STEPS / 2 && hash_of(&r) == expected);
    destroy(&r);
}

static void goes_on_with_the_same_bits(void) {
    setting dense = {.accumulated = 1, .dtype = ISO_F32, .seed = 4}, sparse = dense;
    sparse.sparse_rows = TOKENS;
    resumes(sparse, sparse);
    resumes(dense, sparse);
}
Test(np2_sparse_embedding, goes_on_with_the_same_bits) { goes_on_with_the_same_bits(); }
Test(np3_sparse_embedding, goes_on_with_the_same_bits) { goes_on_with_the_same_bits(); }

// ---- What is refused ------------------------------------------------------------------------------------

static bool said(const char *text) { return strstr(iso_last_error()->message, text) != NULL; }

// Two backwards use more rows than one.
Test(np2_sparse_embedding, names_the_parameter_with_too_many_rows) {
    setting s = {.accumulated = 3, .dtype = ISO_F32, .sparse_rows = 12};
    run r;
    iso_assert_ok(create(&r, &s));
    iso_status status = train(&r, 0, 2);
    iso_assert_all(status == ISO_ERR_ARG && said("the gradient of \"words.weight\" has"));
    iso_assert_all(said("non-zero rows on rank 0, but its sparse_rows is 12"));
    log_capture();
    destroy(&r); // does not report it again
    iso_assert_all(log_said("", 0));
}

Test(np2_sparse_embedding, what_cannot_be_is_refused) {
    setting s = {.accumulated = 1, .dtype = ISO_F32, .sparse_rows = 12, .zero = true};
    run r;
    iso_assert_all(create(&r, &s) == ISO_ERR_UNSUPPORTED);
    iso_assert_all(said("parameter \"words.weight\" has sparse_rows 12"));
    destroy(&r);
    s = (setting){.accumulated = 1, .dtype = ISO_F32, .sparse_rows = test_rank == 0 ? 12 : 13};
    iso_assert_all(create(&r, &s) == ISO_ERR_MISMATCH && said("sparse_rows 13"));
    destroy(&r);
    s.sparse_rows = -1;
    iso_module *net = NULL;
    iso_device *device;
    iso_assert_ok(iso_device_create("cpu", &device));
    iso_assert_all(build(device, &s, &net) == ISO_ERR_ARG && said("sparse_rows -1"));
    iso_module_destroy(&net);
    iso_device_destroy(&device);
}

// Sets sparse_rows of a parameter of a linear layer, and lists names.
static void refuse(int which, int64_t rows, iso_data_parallel_config config, const char *text) {
    iso_device *device;
    iso_module *layer, *parallel = NULL;
    iso_rng rng = {.seed = 1};
    iso_assert_ok(iso_device_create("cpu", &device));
    iso_assert_ok(iso_linear_create(device, 4, 3, true, &rng, &layer));
    layer->parameter[which]->sparse_rows = rows;
    iso_status status = iso_data_parallel_create_take(layer, test_comm, &config, &parallel);
    if (!said(text)) fprintf(stderr, "%s\n", iso_last_error()->message);
    iso_assert_all(status == ISO_ERR_ARG && !parallel && said(text));
    iso_device_destroy(&device);
}

Test(np2_sparse_embedding, settings_of_modules_are_checked) {
    iso_data_parallel_config config = ISO_DATA_PARALLEL_DEFAULT;
    refuse(0, -3, config, "parameter \"weight\" has sparse_rows -3");
    refuse(1, 2, config, "parameter \"bias\" has sparse_rows 2, but its shape is [3]");
    config.delay_count = -1;
    refuse(0, 0, config, "-1 names of parameters to delay");
    config.delay_count = 0;
    config.ignore_count = 2;
    refuse(0, 0, config, "2 names of parameters to ignore in a list that is NULL");
}

// A limit near the number of rows costs more than the whole gradient.
Test(np2_sparse_embedding, a_limit_that_saves_nothing_is_warned_of) {
    setting s = {.accumulated = 1, .dtype = ISO_F32, .sparse_rows = TOKENS};
    run r;
    log_capture();
    iso_assert_ok(create(&r, &s));
    iso_assert_all(log_said("", 0));
    destroy(&r);
    s.sparse_rows = WORDS - 5;
    iso_assert_ok(create(&r, &s));
    const char *warning = "sparse_rows 65 of \"words.weight\" saves nothing on 2 ranks";
    iso_assert_all(log_said(test_rank == 0 ? warning : "", 1));
    destroy(&r);
}
