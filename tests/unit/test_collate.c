// SPDX-License-Identifier: MIT
// Collate functions: sequences cut to the longest one of a batch, samples mixed, errors.
#include "common/any_device.h"
#include "common/balance.h"
#include "common/tensor_access.h"

#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <string.h>

enum { SAMPLES = 23, MOST = 9, WIDE = 2, DEEP = 3, SIZE = 4 };

TestSuite(collate, .fini = balance_check, .timeout = 60);

static const iso_sampler_config shuffled = {.batch = SIZE, .ranks = 1, .seed = 5, .shuffle = true};

// Sample i is a sequence of 1 to MOST entries: tokens [MOST], features [WIDE, MOST, DEEP], labels
// [MOST] and the length. Padding is -1, and label 0.
static const iso_tensor_spec tensors[] = {{ISO_I64, 1, {MOST}},
                                          {ISO_F32, 3, {WIDE, MOST, DEEP}},
                                          {ISO_I32, 1, {MOST}},
                                          {.dtype = ISO_I64}};

static int length_of(int64_t i) { return 1 + (int)(i * 5 % MOST); }
static int64_t token_of(int64_t i, int at) { return at < length_of(i) ? 100 * i + at : -1; }
static int32_t label_of(int64_t i, int at) { return at < length_of(i) ? (int32_t)(i + at) % 7 : 0; }
static float feature_of(int64_t i, int wide, int at, int deep) {
    return at < length_of(i) ? (float)(1000 * i + 100 * wide + 10 * at + deep) : -1;
}

static iso_status read_sequence(int64_t i, void *const *to, void *user) {
    (void)user;
    for (int at = 0; at < MOST; at++) {
        ((int64_t *)to[0])[at] = token_of(i, at);
        ((int32_t *)to[2])[at] = label_of(i, at);
        for (int w = 0; w < WIDE; w++)
            for (int d = 0; d < DEEP; d++)
                ((float *)to[1])[(w * MOST + at) * DEEP + d] = feature_of(i, w, at, d);
    }
    *(int64_t *)to[3] = length_of(i);
    return ISO_OK;
}

static iso_status create_loader(const iso_loader_config *how, iso_loader **out) {
    const iso_dataset_config config = {
        .count = SAMPLES, .inputs = 2, .targets = 2, .tensors = tensors, .classes = 7};
    iso_dataset *dataset;
    iso_device *device;
    cr_assert_eq(iso_device_create(test_device(), &device), ISO_OK);
    cr_assert_eq(iso_dataset_create_callback(&config, read_sequence, NULL, &dataset), ISO_OK);
    iso_status status = iso_loader_create_take(device, dataset, &shuffled, how, out);
    iso_device_destroy(&device);
    return status;
}

static iso_loader *load_as(const iso_loader_config *how) {
    iso_loader *out;
    cr_assert_eq(create_loader(how, &out), ISO_OK, "%s", iso_last_error()->message);
    return out;
}

static iso_loader *load(iso_collate collate, void *user, int prefetch, int threads) {
    const iso_loader_config how = {
        .prefetch = prefetch, .threads = threads, .collate = collate, .user = user};
    return load_as(&how);
}

// ---- Cut to the longest -------------------------------------------------------------------------

static iso_status cut_padding(const iso_collate_batch *batch, void *user) {
    const int64_t *lengths = batch->tensors[3];
    int64_t longest = 1;
    (void)user;
    for (int64_t i = 0; i < batch->n; i++)
        if (lengths[i] > longest) longest = lengths[i];
    iso_status status = iso_collate_trim(batch, 0, 0, longest);
    if (status >= 0) status = iso_collate_trim(batch, 1, 1, longest);
    if (status >= 0) status = iso_collate_trim(batch, 2, 0, longest);
    return status;
}

static int longest_of(const int64_t *samples, int64_t n) {
    int longest = 1;
    for (int64_t i = 0; i < n; i++)
        if (length_of(samples[i]) > longest) longest = length_of(samples[i]);
    return longest;
}

static void check_values(const iso_batch *batch, const int64_t *samples, int longest) {
    int64_t tokens[SIZE * MOST], lengths[SIZE];
    float features[SIZE * WIDE * MOST * DEEP];
    cr_assert_eq(tensor_get(batch->inputs[0], tokens), ISO_OK);
    cr_assert_eq(tensor_get(batch->inputs[1], features), ISO_OK);
    cr_assert_eq(tensor_get(batch->targets[1], lengths), ISO_OK);
    for (int64_t i = 0; i < batch->n; i++) {
        cr_assert_eq(lengths[i], length_of(samples[i]));
        for (int at = 0; at < longest; at++) {
            cr_assert_eq(tokens[i * longest + at], token_of(samples[i], at));
            cr_assert_eq(batch->labels[i * longest + at], label_of(samples[i], at));
            for (int k = 0; k < WIDE * DEEP; k++)
                cr_assert_eq(features[((i * WIDE + k / DEEP) * longest + at) * DEEP + k % DEEP],
                             feature_of(samples[i], k / DEEP, at, k % DEEP));
        }
    }
}

static void check_cut(const iso_batch *batch, const int64_t *samples) {
    int longest = longest_of(samples, batch->n);
    const int64_t *tokens = iso_tensor_shape(batch->inputs[0]);
    const int64_t *features = iso_tensor_shape(batch->inputs[1]);
    cr_assert(tokens[0] == batch->n && tokens[1] == longest);
    cr_assert(features[0] == batch->n && features[1] == WIDE && features[2] == longest &&
              features[3] == DEEP);
    cr_assert(batch->specs[0].shape[0] == longest && batch->specs[1].shape[1] == longest);
    cr_assert(batch->specs[2].shape[0] == longest && batch->specs[2].dtype == ISO_I32);
    check_values(batch, samples, longest);
}

static void check_epochs(iso_loader *loader,
                         void (*check)(const iso_batch *batch, const int64_t *samples)) {
    iso_sampler_config order = shuffled;
    iso_sampler *sampler;
    iso_batch batch;
    order.count = SAMPLES;
    cr_assert_eq(iso_sampler_create(&order, &sampler), ISO_OK);
    for (int epoch = 0; epoch < 4; epoch++) {
        const int64_t *samples;
        cr_assert_eq(iso_sampler_set_epoch(sampler, epoch), ISO_OK);
        cr_assert_eq(iso_loader_start(loader, epoch, 0), ISO_OK);
        for (int64_t k = 0; k < iso_loader_batches(loader); k++) {
            cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK, "%s", iso_last_error()->message);
            cr_assert_eq(iso_sampler_batch(sampler, k, &samples), batch.n);
            check(&batch, samples);
        }
    }
    iso_sampler_destroy(&sampler);
}

// Tensors shrink and grow from batch to batch, in the memory that they had at first.
static void count_allocations(iso_loader *loader) {
    iso_batch batch;
    long long before, after;
    iso_memory_balance(NULL, NULL, &before);
    for (int epoch = 0; epoch < 4; epoch++) {
        cr_assert_eq(iso_loader_start(loader, epoch, 0), ISO_OK);
        while (iso_loader_next(loader, &batch) == ISO_OK) {
        }
    }
    iso_memory_balance(NULL, NULL, &after);
    cr_assert_eq(before, after);
}

Test(collate, cuts_sequences_to_the_longest_of_the_batch) {
    for (int prefetch = 0; prefetch < 4; prefetch += 3)
        for (int threads = 0; threads <= 4; threads += 2) {
            iso_loader *loader = load(cut_padding, NULL, prefetch, threads);
            count_allocations(loader);
            check_epochs(loader, check_cut);
            iso_loader_destroy(&loader);
        }
}

// ---- Mixed samples ------------------------------------------------------------------------------

// Each sample becomes a mean with the next one, with a weight drawn for the batch.
static iso_status mix_samples(const iso_collate_batch *batch, void *user) {
    float *x = batch->tensors[1], weight = (float)(batch->random >> 40) / (float)(1 << 24);
    size_t each = WIDE * MOST * DEEP;
    (void)user;
    for (int64_t i = 0; i + 1 < batch->n; i++)
        for (size_t k = 0; k < each; k++) {
            float *own = &x[(size_t)i * each + k];
            *own = weight * *own + (1 - weight) * own[each];
        }
    return ISO_OK;
}

// The weight that was drawn for a batch: feature 0 of the first two samples says it.
static double weight_of(const float *mixed, const int64_t *samples) {
    double a = feature_of(samples[0], 0, 0, 0), b = feature_of(samples[1], 0, 0, 0);
    return (mixed[0] - b) / (a - b);
}

Test(collate, draws_the_same_whatever_the_number_of_threads) {
    iso_loader *alone = load(mix_samples, NULL, 0, 0), *many = load(mix_samples, NULL, 2, 3);
    iso_sampler_config order = shuffled;
    iso_sampler *sampler;
    double drawn[12];
    int count = 0;
    order.count = SAMPLES;
    cr_assert_eq(iso_sampler_create(&order, &sampler), ISO_OK);
    for (int epoch = 0; epoch < 2; epoch++) {
        iso_batch a, b;
        cr_assert_eq(iso_sampler_set_epoch(sampler, epoch), ISO_OK);
        cr_assert_eq(iso_loader_start(alone, epoch, 0), ISO_OK);
        cr_assert_eq(iso_loader_start(many, epoch, 0), ISO_OK);
        while (iso_loader_next(alone, &a) == ISO_OK) {
            float x[2][SIZE * WIDE * MOST * DEEP];
            const int64_t *samples;
            cr_assert_eq(iso_loader_next(many, &b), ISO_OK);
            cr_assert_eq(tensor_get(a.inputs[1], x[0]), ISO_OK);
            cr_assert_eq(tensor_get(b.inputs[1], x[1]), ISO_OK);
            cr_assert_eq(memcmp(x[0], x[1], tensor_bytes(a.inputs[1])), 0);
            iso_sampler_batch(sampler, a.index, &samples);
            drawn[count++] = weight_of(x[0], samples);
        }
    }
    cr_assert_eq(count, 12);
    for (int i = 0; i < count; i++) {
        cr_assert(drawn[i] > -1e-3 && drawn[i] < 1 + 1e-3, "%g", drawn[i]);
        for (int k = 0; k < i; k++) cr_assert(fabs(drawn[i] - drawn[k]) > 1e-4);
    }
    iso_sampler_destroy(&sampler);
    iso_loader_destroy(&alone);
    iso_loader_destroy(&many);
}

// ---- Tensors of their own -----------------------------------------------------------------------

// The sequences of a batch one after the other, [1, all, DEEP] of their first feature, their
// tokens padded to the longest, a mask [n, longest], labels, and where each sequence ends, [n + 1].
static const iso_tensor_spec made_tensors[] = {{ISO_F32, 2, {SIZE * MOST, DEEP}},
                                               {ISO_F64, 1, {MOST}},
                                               {ISO_U8, 1, {MOST}},
                                               {ISO_I32, 1, {MOST}},
                                               {.dtype = ISO_I64}};
enum { PACKED, PADDED, MASK, LABELS, ENDS, MADE };

static void pack_sequence(const iso_collate_batch *from, int64_t i, int64_t first, float *to) {
    const float *x = (const float *)from->tensors[1] + i * WIDE * MOST * DEEP;
    int64_t length = ((const int64_t *)from->tensors[3])[i];
    memcpy(to + first * DEEP, x, (size_t)(length * DEEP) * sizeof(float));
}

static iso_status make_sequences(const iso_collate_batch *from, const iso_made_batch *made,
                                 void *user) {
    const int64_t *lengths = from->tensors[3];
    int64_t *ends = made->tensors[ENDS], longest = 1;
    (void)user;
    ends[0] = 0;
    for (int64_t i = 0; i < from->n; i++) {
        pack_sequence(from, i, ends[i], made->tensors[PACKED]);
        ends[i + 1] = ends[i] + lengths[i];
        if (lengths[i] > longest) longest = lengths[i];
    }
    for (int64_t k = 0; k < from->n * longest; k++) {
        int64_t i = k / longest, at = k % longest, sample = i * MOST + at;
        ((double *)made->tensors[PADDED])[k] = (double)((int64_t *)from->tensors[0])[sample];
        ((uint8_t *)made->tensors[MASK])[k] = at < lengths[i];
        ((int32_t *)made->tensors[LABELS])[k] = ((int32_t *)from->tensors[2])[sample];
    }
    made->rows[PACKED] = 1;
    made->specs[PACKED].shape[0] = ends[from->n];
    for (int t = PADDED; t <= LABELS; t++) made->specs[t].shape[0] = longest;
    made->rows[ENDS] = from->n + 1;
    return ISO_OK;
}

static const iso_make_config sequences = {.inputs = 3,
                                          .targets = 2,
                                          .tensors = made_tensors,
                                          .rows = SIZE + 1,
                                          .labels = true,
                                          .make = make_sequences};

static iso_loader *load_made(const iso_make_config *make, iso_collate collate, void *user,
                             int prefetch, int threads) {
    const iso_loader_config how = {
        .prefetch = prefetch, .threads = threads, .collate = collate, .make = make, .user = user};
    return load_as(&how);
}

static void check_shape(const iso_batch *batch, int t, int64_t rows, int64_t first) {
    const iso_tensor *x = t < 3 ? batch->inputs[t] : batch->targets[t - 3];
    cr_assert(batch->rows[t] == rows && batch->specs[t].dtype == made_tensors[t].dtype);
    if (batch->specs[t].ndim > 0) cr_assert_eq(batch->specs[t].shape[0], first);
    if (t == LABELS) {
        cr_assert(!x && batch->labels);
        return;
    }
    cr_assert_eq(iso_tensor_ndim(x), made_tensors[t].ndim + 1);
    cr_assert_eq(iso_tensor_shape(x)[0], rows);
    if (batch->specs[t].ndim > 0) cr_assert_eq(iso_tensor_shape(x)[1], first);
}

static void check_packed(const iso_batch *batch, const int64_t *samples, const int64_t *ends) {
    float packed[SIZE * MOST * DEEP];
    cr_assert_eq(tensor_get(batch->inputs[PACKED], packed), ISO_OK);
    for (int64_t i = 0; i < batch->n; i++)
        for (int64_t k = 0; k < length_of(samples[i]) * DEEP; k++)
            cr_assert_eq(packed[ends[i] * DEEP + k],
                         feature_of(samples[i], 0, (int)(k / DEEP), (int)(k % DEEP)));
}

static void check_made(const iso_batch *batch, const int64_t *samples) {
    int64_t longest = longest_of(samples, batch->n), ends[SIZE + 1], end = 0;
    double padded[SIZE * MOST];
    uint8_t mask[SIZE * MOST];
    for (int t = PADDED; t <= LABELS; t++) check_shape(batch, t, batch->n, longest);
    check_shape(batch, ENDS, batch->n + 1, 0);
    cr_assert_eq(tensor_get(batch->inputs[PADDED], padded), ISO_OK);
    cr_assert_eq(tensor_get(batch->inputs[MASK], mask), ISO_OK);
    cr_assert_eq(tensor_get(batch->targets[1], ends), ISO_OK);
    for (int64_t i = 0; i < batch->n; i++) {
        cr_assert_eq(ends[i], end);
        end += length_of(samples[i]);
        for (int64_t at = 0; at < longest; at++) {
            cr_assert_eq(padded[i * longest + at], (double)token_of(samples[i], (int)at));
            cr_assert_eq(mask[i * longest + at], at < length_of(samples[i]));
            cr_assert_eq(batch->labels[i * longest + at], label_of(samples[i], (int)at));
        }
    }
    cr_assert_eq(ends[batch->n], end);
    check_shape(batch, PACKED, 1, end);
    check_packed(batch, samples, ends);
}

Test(collate, makes_tensors_of_another_shape) {
    for (int prefetch = 0; prefetch < 4; prefetch += 3)
        for (int threads = 0; threads <= 4; threads += 2) {
            iso_loader *loader = load_made(&sequences, NULL, NULL, prefetch, threads);
            count_allocations(loader);
            check_epochs(loader, check_made);
            iso_loader_destroy(&loader);
        }
}

// What a collate function makes of the samples is what they are made of.
static iso_status negate_tokens(const iso_collate_batch *batch, void *user) {
    int64_t *tokens = batch->tensors[0];
    (void)user;
    for (int64_t k = 0; k < batch->n * MOST; k++) tokens[k] = -tokens[k];
    return iso_collate_trim(batch, 0, 0, 1);
}

static iso_status keep_first(const iso_collate_batch *from, const iso_made_batch *made,
                             void *user) {
    (void)user;
    if (from->specs[0].shape[0] != 1) return iso_error_set(ISO_ERR_ARG, "not cut");
    for (int64_t i = 0; i < from->n; i++)
        ((int64_t *)made->tensors[0])[i] = ((int64_t *)from->tensors[0])[i];
    return ISO_OK;
}

Test(collate, is_called_before_tensors_are_made) {
    static const iso_tensor_spec one = {.dtype = ISO_I64};
    const iso_make_config make = {.inputs = 1, .tensors = &one, .make = keep_first};
    iso_loader *loader = load_made(&make, negate_tokens, NULL, 2, 1);
    iso_sampler_config order = shuffled;
    iso_sampler *sampler;
    iso_batch batch;
    const int64_t *samples;
    order.count = SAMPLES;
    cr_assert_eq(iso_sampler_create(&order, &sampler), ISO_OK);
    cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
    for (int64_t k = 0; iso_loader_next(loader, &batch) == ISO_OK; k++) {
        int64_t tokens[SIZE];
        cr_assert(!batch.labels && iso_tensor_ndim(batch.images) == 1);
        cr_assert_eq(tensor_get(batch.images, tokens), ISO_OK);
        iso_sampler_batch(sampler, k, &samples);
        for (int64_t i = 0; i < batch.n; i++) cr_assert_eq(tokens[i], -token_of(samples[i], 0));
    }
    iso_sampler_destroy(&sampler);
    iso_loader_destroy(&loader);
}

// ---- Errors -------------------------------------------------------------------------------------

enum { GROW, EMPTY, RETYPE, FAIL, MUTE, TRIM_MORE, TRIM_WHERE, WRONG };

static iso_status do_wrong(const iso_collate_batch *batch, void *user) {
    int64_t *size = &batch->specs[1].shape[1];
    if (batch->epoch > 0 || batch->index != 2) return ISO_OK;
    switch (*(int *)user) {
    case GROW: *size = MOST + 1; return ISO_OK;
    case EMPTY: *size = 0; return ISO_OK;
    case RETYPE: batch->specs[0].dtype = ISO_F32; return ISO_OK;
    case FAIL: return iso_error_set(ISO_ERR_IO, "no room for batch %d", (int)batch->index);
    case MUTE: return ISO_ERR_FORMAT; // without a message
    case TRIM_MORE: return iso_collate_trim(batch, 1, 1, MOST + 1);
    default: return iso_collate_trim(batch, 3, 0, 1);
    }
}

static const char *const words[WRONG] = {
    [GROW] = "made dimension 1 of tensor 1 10: it may be 1 to 9",
    [EMPTY] = "made dimension 1 of tensor 1 0: it may be 1 to 9",
    [RETYPE] = "changed type or number of dimensions of tensor 0",
    [FAIL] = "no room for batch 2",
    [MUTE] = "the collate function of a loader failed: ",
    [TRIM_MORE] = "dimension 1 of tensor 1 cannot be cut to 10: it has 9",
    [TRIM_WHERE] = "tensor 3 of a sample has 0 dimensions: dimension 0 cannot be cut"};

Test(collate, its_errors_come_with_their_batch) {
    for (int i = 0; i < 2 * WRONG; i++) {
        int wrong = i % WRONG;
        iso_loader *loader = load(do_wrong, &wrong, i < WRONG ? 0 : 3, i < WRONG ? 0 : 2);
        iso_batch batch;
        cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
        for (int k = 0; k < 2; k++) cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
        cr_assert_eq(iso_loader_next(loader, &batch), wrong == FAIL   ? ISO_ERR_IO
                                                      : wrong == MUTE ? ISO_ERR_FORMAT
                                                                      : ISO_ERR_ARG);
        cr_assert(strstr(iso_last_error()->message, words[wrong]), "%s", iso_last_error()->message);
        cr_assert_eq(iso_loader_start(loader, 1, 0), ISO_OK);
        for (int64_t k = 0; k < iso_loader_batches(loader); k++) {
            cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
            cr_assert_eq(iso_tensor_shape(batch.inputs[1])[2], MOST);
        }
        iso_loader_destroy(&loader);
    }
}

enum { ROWS, NO_ROWS, LONG, NO_SIZE, KIND, MAKE_FAIL, MAKE_MUTE, MAKE_WRONG };

static iso_status make_wrong(const iso_collate_batch *from, const iso_made_batch *made,
                             void *user) {
    iso_status status = make_sequences(from, made, NULL);
    if (from->epoch > 0 || from->index != 2) return status;
    switch (*(int *)user) {
    case ROWS: made->rows[ENDS] = SIZE + 2; return ISO_OK;
    case NO_ROWS: made->rows[MASK] = 0; return ISO_OK;
    case LONG: made->specs[PACKED].shape[0] = SIZE * MOST + 1; return ISO_OK;
    case NO_SIZE: made->specs[LABELS].shape[0] = 0; return ISO_OK;
    case KIND: made->specs[PADDED].ndim = 0; return ISO_OK;
    case MAKE_FAIL: return iso_error_set(ISO_ERR_IO, "no room for batch %d", (int)from->index);
    default: return ISO_ERR_FORMAT; // without a message
    }
}

static const char *const make_words[MAKE_WRONG] = {
    [ROWS] = "made the first dimension of tensor 4 6: it may be 1 to 5",
    [NO_ROWS] = "made the first dimension of tensor 2 0: it may be 1 to 5",
    [LONG] = "made dimension 0 of a row of tensor 0 37: it may be 1 to 36",
    [NO_SIZE] = "made dimension 0 of a row of tensor 3 0: it may be 1 to 9",
    [KIND] = "changed type or number of dimensions of tensor 1",
    [MAKE_FAIL] = "no room for batch 2",
    [MAKE_MUTE] = "the make function of a loader failed: "};

Test(collate, errors_of_what_makes_tensors_come_with_their_batch) {
    iso_make_config make = sequences;
    make.make = make_wrong;
    for (int i = 0; i < 2 * MAKE_WRONG; i++) {
        int wrong = i % MAKE_WRONG, ahead = i < MAKE_WRONG ? 0 : 2;
        iso_loader *loader = load_made(&make, NULL, &wrong, ahead, ahead);
        iso_batch batch;
        cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
        for (int k = 0; k < 2; k++) cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
        cr_assert_lt(iso_loader_next(loader, &batch), 0);
        cr_assert(strstr(iso_last_error()->message, make_words[wrong]), "%s",
                  iso_last_error()->message);
        cr_assert_eq(iso_loader_start(loader, 1, 0), ISO_OK);
        for (int64_t k = 0; k < iso_loader_batches(loader); k++)
            cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
        iso_loader_destroy(&loader);
    }
}

static void refuse_make(iso_make_config make, const char *said) {
    const iso_loader_config how = {.make = &make};
    iso_loader *loader = NULL;
    cr_assert_eq(create_loader(&how, &loader), ISO_ERR_ARG);
    cr_assert(!loader && strstr(iso_last_error()->message, said), "%s", iso_last_error()->message);
}

Test(collate, tensors_that_cannot_be_made_are_refused) {
    static const iso_tensor_spec half = {.dtype = ISO_F16}, empty = {ISO_F32, 1, {0}};
    iso_make_config make = sequences;
    make.inputs = 0;
    refuse_make(make, "at least one input");
    make = sequences;
    make.targets = 0;
    refuse_make(make, "without a target that holds them");
    make.labels = false;
    make.inputs = 1;
    make.tensors = &half;
    refuse_make(make, "has elements f16: give f32, f64, i64, i32 or u8");
    make.tensors = &empty;
    refuse_make(make, "dimension 0 of tensor 0 of the batches that a loader is to make is 0");
    make = sequences;
    make.inputs = 2;
    refuse_make(make, "tensor 2 of the batches that a loader is to make has elements u8: give i32");
}
