// SPDX-License-Identifier: MIT
// Splitting a data set: each sample is in one part, and a part has the bits of a copy.
#include "common/balance.h"
#include "common/samples_fixture.h"
#include "common/tensor_access.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(dataset_split, .fini = balance_check, .timeout = 60);

static const iso_sampler_config shuffled = {.batch = BATCH, .ranks = 1, .seed = 3, .shuffle = true};

static void split(iso_dataset *of, double fraction, uint64_t seed, iso_dataset *part[2]) {
    cr_assert_eq(iso_dataset_split(of, fraction, seed, &part[0], &part[1]), ISO_OK, "%s",
                 iso_last_error()->message);
}

static int64_t count_of(const iso_dataset *set) {
    iso_dataset_info info;
    iso_dataset_get_info(set, &info);
    return info.count;
}

// Returns the number in the whole set of a sample, whose values must be those of that number.
static int64_t number_of(const iso_dataset *set, int64_t i) {
    sample s, expected;
    cr_assert_eq(iso_dataset_sample(set, i, (void *const[]){s.x, s.tokens, s.labels, &s.y}), ISO_OK,
                 "%s", iso_last_error()->message);
    int64_t number = (int64_t)s.x[0] / 100;
    expected = sample_of(number);
    cr_assert_eq(memcmp(s.x, expected.x, sizeof(s.x)), 0);
    cr_assert_eq(memcmp(s.tokens, expected.tokens, sizeof(s.tokens)), 0);
    cr_assert_eq(memcmp(s.labels, expected.labels, sizeof(s.labels)), 0);
    cr_assert_eq(s.y, expected.y);
    return number;
}

// The numbers of a part ascend, and no other part has them.
static void mark_numbers(const iso_dataset *set, int found[COUNT]) {
    int64_t before = -1;
    for (int64_t i = 0; i < count_of(set); i++) {
        int64_t number = number_of(set, i);
        cr_assert(number > before && number < COUNT);
        found[before = number]++;
    }
}

// Of arrays that are copied or borrowed, and of a callback. The data set itself is let go of first.
Test(dataset_split, each_sample_is_in_one_set) {
    static columns c;
    samples_fill(&c);
    for (int kind = 0; kind < KINDS; kind++) {
        const double fractions[] = {0.25, 0.5, 1.0 / COUNT, 0.97};
        for (int i = 0; i < 4; i++) {
            int found[COUNT] = {0};
            iso_dataset *whole = samples_create(kind, &c), *part[2];
            split(whole, fractions[i], 1, part);
            iso_dataset_destroy(&whole);
            cr_assert_eq(count_of(part[1]), llround(fractions[i] * COUNT));
            cr_assert_eq(count_of(part[0]) + count_of(part[1]), COUNT);
            for (int p = 0; p < 2; p++) {
                mark_numbers(part[p], found);
                iso_dataset_destroy(&part[p]);
            }
            for (int n = 0; n < COUNT; n++) cr_assert_eq(found[n], 1);
        }
    }
}

Test(dataset_split, a_part_can_be_split_again) {
    static columns c;
    samples_fill(&c);
    for (int kind = 0; kind < KINDS; kind++) {
        int found[COUNT] = {0};
        iso_dataset *whole = samples_create(kind, &c), *half[2], *part[2];
        split(whole, 0.5, 1, half);
        split(half[1], 0.4, 2, part);
        iso_dataset_destroy(&whole);
        iso_dataset_destroy(&half[1]);
        mark_numbers(half[0], found);
        mark_numbers(part[0], found);
        mark_numbers(part[1], found);
        for (int n = 0; n < COUNT; n++) cr_assert_eq(found[n], 1);
        iso_dataset_destroy(&half[0]);
        iso_dataset_destroy(&part[0]);
        iso_dataset_destroy(&part[1]);
    }
}

// The samples that a sampler of this seed would draw: as iso-train has always done.
Test(dataset_split, seed_and_count_decide) {
    iso_dataset *whole = samples_create(READ, NULL);
    for (uint64_t seed = 0; seed < 20; seed++) {
        const int64_t *indices;
        int chosen[COUNT] = {0};
        iso_dataset *part[2];
        iso_sampler *sampler;
        iso_sampler_config order = {.count = COUNT,
                                    .batch = COUNT,
                                    .ranks = 1,
                                    .seed = seed ^ UINT64_C(0x9e3779b97f4a7c15),
                                    .shuffle = true};
        cr_assert_eq(iso_sampler_create(&order, &sampler), ISO_OK);
        iso_sampler_batch(sampler, 0, &indices);
        split(whole, 0.2, seed, part);
        mark_numbers(part[1], chosen);
        for (int i = 0; i < COUNT; i++) cr_assert_eq(chosen[indices[i]], i < 7);
        iso_sampler_destroy(&sampler);
        iso_dataset_destroy(&part[0]);
        iso_dataset_destroy(&part[1]);
    }
    iso_dataset_destroy(&whole);
}

// ---- Bits ---------------------------------------------------------------------------------------

enum { IMAGES = 50, SIDE = 5, PIXELS = 2 * SIDE * SIDE };

static const iso_tensor_spec kinds_of_image[2][2] = {
    {{ISO_U8, 3, {2, SIDE, SIDE}}, {.dtype = ISO_I32}},
    {{ISO_F32, 3, {2, SIDE, SIDE}}, {.dtype = ISO_I32}}};

typedef struct pictures {
    uint8_t bytes[IMAGES][PIXELS];
    float numbers[IMAGES][PIXELS];
    int32_t labels[IMAGES];
} pictures;

static iso_dataset *create_pictures(const pictures *p, int kind, int64_t count) {
    const iso_dataset_config config = {.count = count,
                                       .inputs = 1,
                                       .targets = 1,
                                       .tensors = kinds_of_image[kind],
                                       .classes = IMAGES};
    const void *const arrays[] = {kind ? (const void *)p->numbers : p->bytes, p->labels};
    iso_dataset *out;
    cr_assert_eq(iso_dataset_create_arrays(&config, arrays, true, &out), ISO_OK);
    return out;
}

static void fill_pictures(pictures *p) {
    for (int i = 0; i < IMAGES; i++) {
        p->labels[i] = i;
        for (int k = 0; k < PIXELS; k++) {
            p->bytes[i][k] = (uint8_t)(i * i + 3 * k);
            p->numbers[i][k] = (float)sin(i * 7 + k);
        }
    }
}

// The samples of a part, in arrays of their own.
static iso_dataset *copy_part(const pictures *all, int kind, const iso_dataset *part) {
    static pictures own;
    for (int64_t i = 0; i < count_of(part); i++) {
        float room[PIXELS];
        int32_t label;
        cr_assert_eq(iso_dataset_sample(part, i, (void *const[]){room, &label}), ISO_OK);
        memcpy(own.bytes[i], all->bytes[label], sizeof(own.bytes[i]));
        memcpy(own.numbers[i], all->numbers[label], sizeof(own.numbers[i]));
        own.labels[i] = label;
    }
    return create_pictures(&own, kind, count_of(part));
}

static void compare_batches(iso_dataset *a, iso_dataset *b, bool images) {
    iso_loader_config config = {
        .prefetch = 2, .threads = 2, .shift = 2 * images, .flip = 0.5 * images};
    iso_loader *first = samples_load(a, shuffled, config),
               *second = samples_load(b, shuffled, config);
    iso_batch x, y;
    cr_assert_eq(iso_loader_start(first, 1, 0), ISO_OK);
    cr_assert_eq(iso_loader_start(second, 1, 0), ISO_OK);
    while (iso_loader_next(first, &x) == ISO_OK) {
        float values[2][BATCH * PIXELS];
        cr_assert_eq(iso_loader_next(second, &y), ISO_OK);
        cr_assert_eq(x.n, y.n);
        cr_assert_eq(memcmp(x.labels, y.labels, (size_t)x.n * sizeof(int32_t)), 0);
        cr_assert_eq(tensor_get(x.images, values[0]), ISO_OK);
        cr_assert_eq(tensor_get(y.images, values[1]), ISO_OK);
        cr_assert_eq(memcmp(values[0], values[1], tensor_bytes(x.images)), 0);
    }
    iso_loader_destroy(&first);
    iso_loader_destroy(&second);
}

static void compare_sets(iso_dataset *view, iso_dataset *copy, int kind) {
    iso_dataset_info a, b;
    iso_dataset_get_info(view, &a);
    iso_dataset_get_info(copy, &b);
    cr_assert_eq(iso_dataset_checksum(view), iso_dataset_checksum(copy));
    cr_assert(a.count == b.count && a.classes == b.classes && a.channels == 2 && a.width == SIDE);
    for (int channel = 0; channel < 2; channel++)
        cr_assert(a.mean[channel] == b.mean[channel] && a.std[channel] == b.std[channel]);
    for (int64_t i = 0; i < a.count && kind == 0; i++) {
        int32_t label[2];
        const uint8_t *x = iso_dataset_image(view, i, &label[0]);
        const uint8_t *y = iso_dataset_image(copy, i, &label[1]);
        cr_assert(label[0] == label[1] && memcmp(x, y, PIXELS) == 0);
    }
    compare_batches(view, copy, kind == 0);
}

// Checksum, statistics, images and batches; also of a part of a part. Samples of 50 bytes, so that
// the checksum's words go across them.
Test(dataset_split, a_part_has_the_bits_of_a_copy) {
    static pictures all;
    fill_pictures(&all);
    for (int kind = 0; kind < 2; kind++) {
        iso_dataset *whole = create_pictures(&all, kind, IMAGES), *part[4];
        split(whole, 0.3, 4, part);
        split(part[0], 0.4, 5, part + 2);
        for (int p = 0; p < 4; p++) {
            iso_dataset *copy = copy_part(&all, kind, part[p]);
            compare_sets(part[p], copy, kind);
            iso_dataset_destroy(&copy);
        }
        iso_dataset_destroy(&whole);
        for (int p = 0; p < 4; p++) iso_dataset_destroy(&part[p]);
    }
}

// A callback is not asked for its samples: their numbers and its contents decide.
Test(dataset_split, checksums_of_callbacks_tell_parts_apart) {
    uint64_t sum[4][2];
    for (int i = 0; i < 4; i++) {
        iso_dataset_config config = samples_usual;
        iso_dataset *whole, *part[2];
        config.contents = i == 3;
        cr_assert_eq(iso_dataset_create_callback(&config, samples_read, NULL, &whole), ISO_OK);
        split(whole, 0.5, i == 2 ? 8 : 7, part);
        for (int p = 0; p < 2; p++) {
            sum[i][p] = iso_dataset_checksum(part[p]);
            iso_dataset_destroy(&part[p]);
        }
        iso_dataset_destroy(&whole);
    }
    for (int p = 0; p < 2; p++) {
        cr_assert_eq(sum[0][p], sum[1][p]);
        cr_assert(sum[0][p] != sum[2][p] && sum[0][p] != sum[3][p]);
    }
    cr_assert_neq(sum[0][0], sum[0][1]);
}

// ---- Errors -------------------------------------------------------------------------------------

static iso_status read_bad_label(int64_t i, void *const *tensors, void *user) {
    iso_status status = samples_read(i, tensors, user);
    if (i == 20) ((int32_t *)tensors[2])[1] = CLASSES;
    return status;
}

// An error names the sample as the callback knows it.
Test(dataset_split, errors_name_the_sample_of_the_data_set) {
    iso_dataset *whole, *part[2];
    int failed = 0;
    sample s;
    cr_assert_eq(iso_dataset_create_callback(&samples_usual, read_bad_label, NULL, &whole), ISO_OK);
    split(whole, 0.5, 1, part);
    for (int p = 0; p < 2; p++) {
        for (int64_t i = 0; i < count_of(part[p]); i++) {
            if (iso_dataset_sample(part[p], i, (void *const[]){s.x, s.tokens, s.labels, &s.y}) ==
                ISO_OK)
                continue;
            cr_assert(strstr(iso_last_error()->message, "label 20 is 6, outside [0, 6)"), "%s",
                      iso_last_error()->message);
            failed++;
        }
        iso_dataset_destroy(&part[p]);
    }
    cr_assert_eq(failed, 1);
    iso_dataset_destroy(&whole);
}

Test(dataset_split, refuses_fractions_that_leave_a_set_empty) {
    const double fractions[] = {0, 1, -0.5, 2, NAN, 0.01, 0.99};
    iso_dataset *whole = samples_create(READ, NULL), *part[2];
    for (int i = 0; i < 7; i++) {
        const char *words = i < 5 ? "give a number between 0 and 1" : "of 37 samples leaves one of";
        cr_assert_eq(iso_dataset_split(whole, fractions[i], 1, &part[0], &part[1]), ISO_ERR_ARG);
        cr_assert(strstr(iso_last_error()->message, words), "%s", iso_last_error()->message);
    }
    iso_dataset_destroy(&whole);
}
