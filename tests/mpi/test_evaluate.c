// SPDX-License-Identifier: MIT
// Evaluation on ranks that share a test set: each sample once, whatever the number of ranks.
#include "common/any_device.h"
#include "common/dp_fixture.h"
#include "common/mpi_fixture.h"
#include "common/tensor_access.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(np1_evaluate, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np2_evaluate, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np3_evaluate, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);
TestSuite(np4_evaluate, .init = test_mpi_setup, .fini = test_mpi_teardown, .timeout = 60);

enum { COUNT = 11, CLASSES = 4 };

typedef struct setup {
    iso_device *device;
    iso_dataset *images;
    iso_loader *loader;
    iso_module *model;
    iso_loss *loss;
} setup;

// Image i has pixel i % CLASSES alight; so has its label, but every third label is another.
static iso_dataset *create_images(int32_t bad_label) {
    uint8_t pixels[COUNT * CLASSES] = {0};
    int32_t labels[COUNT];
    iso_dataset *out = NULL;
    for (int i = 0; i < COUNT; i++) {
        pixels[i * CLASSES + i % CLASSES] = 255;
        labels[i] = (i + (i % 3 == 0)) % CLASSES;
    }
    if (bad_label) labels[COUNT - 1] = bad_label;
    iso_assert_ok(iso_dataset_create(pixels, labels, COUNT, 1, 1, CLASSES, 9, &out));
    return out;
}

// A linear layer of 2 x identity: the largest entry of the output is the pixel that is alight.
static void set_identity(iso_module *model) {
    float weight[CLASSES * CLASSES] = {0}, bias[CLASSES] = {0};
    iso_module *linear = model->child[1];
    for (int i = 0; i < CLASSES; i++) weight[i * (CLASSES + 1)] = 2;
    iso_assert_ok(tensor_set(linear->parameter[0]->value, weight));
    iso_assert_ok(tensor_set(linear->parameter[1]->value, bias));
}

static void create(setup *s, int64_t batch, int32_t bad_label) {
    const iso_layer layers[] = {{.kind = ISO_FLATTEN}, {.kind = ISO_LINEAR, .out = CLASSES}};
    const int64_t sample[3] = {1, 1, CLASSES};
    iso_rng rng = {.seed = 1};
    iso_sampler_config share = {
        .batch = batch, .rank = test_rank, .ranks = test_size, .end = ISO_SAMPLER_SHARE};
    const double zero = 0, one = 1;
    iso_loader_config plain = {&zero, &one, .prefetch = 0};
    iso_assert_ok(iso_device_create(test_device(), &s->device));
    s->images = create_images(bad_label);
    iso_assert_ok(iso_loader_create_take(s->device, iso_dataset_retain(s->images), &share, &plain,
                                         &s->loader));
    iso_assert_ok(iso_sequential_build(s->device, sample, layers, 2, &rng, &s->model));
    iso_assert_ok(iso_loss_create(s->device, ISO_CROSS_ENTROPY, &s->loss));
    set_identity(s->model);
}

static void destroy(setup *s) {
    iso_loss_destroy(&s->loss);
    iso_module_destroy(&s->model);
    iso_loader_destroy(&s->loader);
    iso_dataset_destroy(&s->images);
    iso_device_destroy(&s->device);
}

// 4 of 11 labels are wrong. Cross entropy of logits (2, 0, 0, 0): log(e^2 + 3) less 2 where the
// label is right.
static void each_sample_counts_once(void) {
    const double wrong = log(exp(2) + 3);
    for (int64_t batch = 1; batch <= 12; batch++) {
        setup s;
        iso_evaluation result = {0};
        create(&s, batch, 0);
        iso_assert_ok(iso_evaluate(s.model, s.loss, s.loader, test_comm, &result));
        iso_assert_all(result.samples == COUNT);
        iso_assert_all(result.accuracy == 7.0 / 11);
        iso_assert_all(fabs(result.loss - (wrong - 2 * 7.0 / 11)) < 1e-6);
        iso_assert_all(s.model->training);
        destroy(&s);
    }
}

Test(np1_evaluate, each_sample_counts_once) { each_sample_counts_once(); }
Test(np2_evaluate, each_sample_counts_once) { each_sample_counts_once(); }
Test(np3_evaluate, each_sample_counts_once) { each_sample_counts_once(); }
Test(np4_evaluate, each_sample_counts_once) { each_sample_counts_once(); }

// Targets that are no labels: of the input (i, 0, 0, 0) the network makes twice the target, so the
// squared error has the mean i^2 / CLASSES.
static void regression_has_a_loss_alone(void) {
    const iso_tensor_spec specs[] = {{ISO_F32, 3, {1, 1, CLASSES}}, {ISO_F32, 1, {CLASSES}}};
    const iso_dataset_config config = {.count = COUNT, .inputs = 1, .targets = 1, .tensors = specs};
    float x[COUNT][CLASSES] = {{0}};
    double wanted = 0;
    for (int i = 0; i < COUNT; i++) {
        x[i][0] = (float)i;
        wanted += (double)(i * i) / CLASSES / COUNT;
    }
    for (int64_t batch = 1; batch <= 12; batch++) {
        setup s;
        iso_evaluation result = {0};
        create(&s, batch, 0);
        iso_loss_destroy(&s.loss);
        iso_loader_destroy(&s.loader);
        iso_dataset_destroy(&s.images);
        iso_sampler_config share = {
            .batch = batch, .rank = test_rank, .ranks = test_size, .end = ISO_SAMPLER_SHARE};
        iso_assert_ok(
            iso_dataset_create_arrays(&config, (const void *const[]){x, x}, true, &s.images));
        iso_assert_ok(iso_loader_create_take(s.device, iso_dataset_retain(s.images), &share, NULL,
                                             &s.loader));
        iso_assert_ok(iso_loss_create(s.device, ISO_MSE, &s.loss));
        iso_assert_ok(iso_evaluate(s.model, s.loss, s.loader, test_comm, &result));
        iso_assert_all(result.samples == COUNT && isnan(result.accuracy));
        iso_assert_all(fabs(result.loss - wanted) < 1e-5 * wanted);
        destroy(&s);
    }
}

Test(np1_evaluate, regression_has_a_loss_alone) { regression_has_a_loss_alone(); }
Test(np3_evaluate, regression_has_a_loss_alone) { regression_has_a_loss_alone(); }

enum { PLACES = 3 };

// A sample has a label at each of its places, some of which are wrong; the relu is the network.
static void each_label_of_a_sequence_counts(void) {
    const iso_tensor_spec specs[] = {{ISO_F32, 2, {PLACES, CLASSES}}, {ISO_I32, 1, {PLACES}}};
    const iso_dataset_config config = {
        .count = COUNT, .inputs = 1, .targets = 1, .tensors = specs, .classes = CLASSES};
    float x[COUNT][PLACES][CLASSES] = {{{0}}};
    int32_t labels[COUNT][PLACES];
    int wrong = 0;
    for (int i = 0; i < COUNT; i++)
        for (int t = 0; t < PLACES; t++) {
            bool is_wrong = (i + 2 * t) % 5 == 0;
            x[i][t][(i + t) % CLASSES] = 2;
            labels[i][t] = (i + t + is_wrong) % CLASSES;
            wrong += is_wrong;
        }
    double all = COUNT * PLACES, loss = log(exp(2) + 3) - 2 * (all - wrong) / all;
    for (int64_t batch = 1; batch <= 12; batch++) {
        setup s;
        iso_evaluation result = {0};
        create(&s, batch, 0);
        iso_module_destroy(&s.model);
        iso_loader_destroy(&s.loader);
        iso_dataset_destroy(&s.images);
        iso_sampler_config share = {
            .batch = batch, .rank = test_rank, .ranks = test_size, .end = ISO_SAMPLER_SHARE};
        iso_assert_ok(iso_relu_create(s.device, &s.model));
        iso_assert_ok(
            iso_dataset_create_arrays(&config, (const void *const[]){x, labels}, true, &s.images));
        iso_assert_ok(iso_loader_create_take(s.device, iso_dataset_retain(s.images), &share, NULL,
                                             &s.loader));
        iso_assert_ok(iso_evaluate(s.model, s.loss, s.loader, test_comm, &result));
        iso_assert_all(result.samples == COUNT && result.accuracy == (all - wrong) / all);
        iso_assert_all(fabs(result.loss - loss) < 1e-6);
        destroy(&s);
    }
}

Test(np1_evaluate, each_label_of_a_sequence_counts) { each_label_of_a_sequence_counts(); }
Test(np4_evaluate, each_label_of_a_sequence_counts) { each_label_of_a_sequence_counts(); }

// A batch norm, say, that does not train.
Test(np2_evaluate, leaves_the_mode_of_every_layer) {
    setup s;
    iso_evaluation result;
    create(&s, 4, 0);
    iso_assert_ok(iso_module_train(s.model->child[0], false));
    iso_assert_ok(iso_evaluate(s.model, s.loss, s.loader, test_comm, &result));
    iso_assert_all(s.model->training && s.model->child[1]->training);
    iso_assert_all(!s.model->child[0]->training);
    destroy(&s);
}

Test(np2_evaluate, refuses_samples_without_targets) {
    const iso_tensor_spec spec = {ISO_F32, 3, {1, 1, CLASSES}};
    const iso_dataset_config config = {.count = COUNT, .inputs = 1, .tensors = &spec};
    const float x[COUNT][CLASSES] = {{0}};
    setup s;
    iso_evaluation result = {.samples = -1};
    create(&s, 2, 0);
    iso_sampler_config share = {.batch = 2, .rank = test_rank, .ranks = test_size};
    iso_loader_destroy(&s.loader);
    iso_dataset_destroy(&s.images);
    iso_assert_ok(iso_dataset_create_arrays(&config, (const void *const[]){x}, true, &s.images));
    iso_assert_ok(
        iso_loader_create_take(s.device, iso_dataset_retain(s.images), &share, NULL, &s.loader));
    iso_assert_all(iso_evaluate(s.model, s.loss, s.loader, test_comm, &result) == ISO_ERR_ARG);
    iso_assert_all(strstr(iso_last_error()->message, "the samples have no targets"));
    iso_assert_all(result.samples == -1);
    destroy(&s);
}

static void expect_in_turn(int64_t done, void *user) {
    int64_t *before = user;
    *before = done == *before + 1 ? done : -1000;
}

Test(np3_evaluate, tells_each_rank_of_its_batches) {
    for (int64_t batch = 1; batch <= 4; batch++) {
        setup s;
        iso_evaluation plain, watched;
        int64_t done = 0;
        create(&s, batch, 0);
        iso_assert_ok(iso_evaluate(s.model, s.loss, s.loader, test_comm, &plain));
        iso_assert_ok(iso_evaluate_watched(s.model, s.loss, s.loader, test_comm, expect_in_turn,
                                           &done, &watched));
        iso_assert_all(done == iso_loader_batches(s.loader));
        iso_assert_all(plain.loss == watched.loss && plain.accuracy == watched.accuracy);
        destroy(&s);
    }
}

// The last image, which one rank alone looks at, has a label that the network has no output for.
Test(np3_evaluate, an_error_of_one_rank_is_everybodys) {
    setup s;
    iso_evaluation result = {.samples = -1};
    create(&s, 2, 8);
    iso_status status = iso_evaluate(s.model, s.loss, s.loader, test_comm, &result);
    iso_assert_all(status < 0 && strstr(iso_last_error()->message, "label"));
    iso_assert_all(result.samples == -1 && s.model->training);
    destroy(&s);
}

// Evaluating in the middle of a training, dropout included, leaves its bits alone.
Test(np2_evaluate, leaves_the_training_alone) {
    trainer_config config = trainer_default();
    config.dropout = true;
    uint64_t hash[2];
    for (int looked = 0; looked < 2; looked++) {
        trainer t;
        iso_assert_ok(trainer_create(&t, test_comm, &config));
        iso_dataset *images = NULL;
        iso_loader *loader;
        iso_evaluation result;
        uint8_t pixels[6 * TRAINER_CHANNELS * TRAINER_SIZE * TRAINER_SIZE] = {1, 2, 3};
        int32_t labels[6] = {0, 1, 2, 3, 4, 0};
        iso_sampler_config share = {
            .batch = 2, .rank = test_rank, .ranks = 2, .end = ISO_SAMPLER_SHARE};
        iso_assert_ok(iso_dataset_create(pixels, labels, 6, TRAINER_CHANNELS, TRAINER_SIZE,
                                         TRAINER_SIZE, TRAINER_CLASSES, &images));
        iso_assert_ok(
            iso_loader_create_take(t.device, iso_dataset_retain(images), &share, NULL, &loader));
        for (int step = 0; step < 8; step++) {
            iso_assert_ok(trainer_step(&t, step, NULL));
            if (looked && step % 3 == 1)
                iso_assert_ok(iso_evaluate(t.model, t.loss, loader, test_comm, &result));
        }
        iso_assert_ok(trainer_hash(&t, &hash[looked]));
        iso_loader_destroy(&loader);
        iso_dataset_destroy(&images);
        trainer_destroy(&t);
    }
    iso_assert_all(hash[0] == hash[1]);
}

// ---- Sequences ------------------------------------------------------------------------------------

enum { SEQUENCES = 7, LONG = 5 };

// Sample i has i % LONG + 1 entries: one-hot vectors and labels, of which the first is wrong.
static iso_status read_entries(int64_t i, void *const *tensors, void *user) {
    int64_t length = i % LONG + 1;
    (void)user;
    memset(tensors[0], 0, LONG * CLASSES * sizeof(float));
    memset(tensors[1], 0, LONG * sizeof(int32_t));
    for (int64_t at = 0; at < length; at++) {
        ((float *)tensors[0])[at * CLASSES + (i + at) % CLASSES] = 1;
        ((int32_t *)tensors[1])[at] = (int32_t)((i + at + (at == 0)) % CLASSES);
    }
    return ISO_OK;
}

// Of batches of one sample.
static iso_status cut_entries(const iso_collate_batch *batch, void *user) {
    int64_t length = batch->samples[0] % LONG + 1;
    (void)user;
    iso_status status = iso_collate_trim(batch, 0, 0, length);
    return status < 0 ? status : iso_collate_trim(batch, 1, 0, length);
}

static bool lacks_labels; // of each batch, the last one is missing

static void evaluate_sequences(const iso_loader_config *how) {
    const iso_tensor_spec tensors[] = {{ISO_F32, 2, {LONG, CLASSES}}, {ISO_I32, 1, {LONG}}};
    const iso_dataset_config config = {
        .count = SEQUENCES, .inputs = 1, .targets = 1, .tensors = tensors, .classes = CLASSES};
    iso_sampler_config share = {
        .batch = 1, .rank = test_rank, .ranks = test_size, .end = ISO_SAMPLER_SHARE};
    float weight[CLASSES * CLASSES] = {0};
    iso_rng rng = {.seed = 1};
    iso_evaluation result;
    iso_dataset *samples;
    setup s = {0};
    for (int i = 0; i < CLASSES; i++) weight[i * (CLASSES + 1)] = 2;
    iso_assert_ok(iso_device_create("cpu", &s.device));
    iso_assert_ok(iso_dataset_create_callback(&config, read_entries, NULL, &samples));
    iso_assert_ok(iso_loader_create_take(s.device, samples, &share, how, &s.loader));
    iso_assert_ok(iso_linear_create(s.device, CLASSES, CLASSES, false, &rng, &s.model));
    iso_assert_ok(tensor_set(s.model->parameter[0]->value, weight));
    iso_assert_ok(iso_loss_create(s.device, ISO_CROSS_ENTROPY, &s.loss));
    iso_status status = iso_evaluate(s.model, s.loss, s.loader, test_comm, &result);
    iso_assert_all(status == (lacks_labels ? ISO_ERR_SHAPE : ISO_OK));
    if (lacks_labels)
        iso_assert_all(
            strstr(iso_last_error()->message, " labels: give each row of its output a "));
    // Lengths 1 2 3 4 5 1 2, 18 labels, of which 7 are wrong.
    iso_assert_all(lacks_labels || result.samples == SEQUENCES);
    iso_assert_all(lacks_labels || result.accuracy == 11.0 / 18);
    destroy(&s);
}

// Padding that a collate function has cut off does not count.
static void labels_of_collated_batches_count(void) {
    const iso_loader_config how = {.prefetch = 2, .threads = 2, .collate = cut_entries};
    evaluate_sequences(&how);
}

// Each entry of the sample becomes a row, with its label.
static iso_status make_rows(const iso_collate_batch *from, const iso_made_batch *made, void *user) {
    int64_t length = from->samples[0] % LONG + 1;
    (void)user;
    memcpy(made->tensors[0], from->tensors[0], (size_t)(length * CLASSES) * sizeof(float));
    memcpy(made->tensors[1], from->tensors[1], (size_t)length * sizeof(int32_t));
    made->rows[0] = made->rows[1] = length;
    if (lacks_labels && length > 1) made->rows[1]--;
    return ISO_OK;
}

// The model gets the inputs that a batch has, and each row's label counts.
static void what_was_made_counts(void) {
    const iso_tensor_spec made[] = {{ISO_F32, 1, {CLASSES}}, {.dtype = ISO_I32}};
    const iso_make_config make = {.inputs = 1,
                                  .targets = 1,
                                  .tensors = made,
                                  .rows = LONG,
                                  .labels = true,
                                  .make = make_rows};
    const iso_loader_config how = {.prefetch = 2, .threads = 2, .make = &make};
    evaluate_sequences(&how);
}
Test(np3_evaluate, what_was_made_counts) { what_was_made_counts(); }
Test(np3_evaluate, rows_without_a_label_are_refused) {
    lacks_labels = true;
    what_was_made_counts();
}

Test(np1_evaluate, labels_of_collated_batches_count) { labels_of_collated_batches_count(); }
Test(np3_evaluate, labels_of_collated_batches_count) { labels_of_collated_batches_count(); }
