// SPDX-License-Identifier: MIT
// The state of a loader: another one goes on with the same samples, or says why it cannot.
#include "common/balance.h"
#include <criterion/criterion.h>
#include <isotherm/data.h>
#include <stddef.h>
#include <string.h>

enum { COUNT = 103, SIDE = 6, PIXELS = SIDE * SIDE, BATCH = 8 };

typedef struct fixture {
    iso_device *device;
    iso_dataset *dataset;
} fixture;

TestSuite(loader_state, .fini = balance_check, .timeout = 60);

static fixture create(void) {
    uint8_t images[COUNT * PIXELS];
    int32_t labels[COUNT];
    fixture f;
    for (int i = 0; i < COUNT; i++) labels[i] = i;
    for (int i = 0; i < COUNT * PIXELS; i++) images[i] = (uint8_t)(i * 7 + i / PIXELS);
    cr_assert_eq(iso_device_create("cpu", &f.device), ISO_OK);
    cr_assert_eq(iso_dataset_create(images, labels, COUNT, 1, SIDE, SIDE, COUNT, &f.dataset),
                 ISO_OK);
    return f;
}

static void destroy(fixture *f) {
    iso_dataset_destroy(&f->dataset);
    iso_device_destroy(&f->device);
}

static const iso_sampler_config usual = {
    .batch = BATCH, .rank = 1, .ranks = 2, .seed = 7, .shuffle = true};

static iso_loader *load(fixture *f, iso_sampler_config order, iso_loader_config config) {
    iso_loader *loader = NULL;
    cr_assert_eq(
        iso_loader_create_take(f->device, iso_dataset_retain(f->dataset), &order, &config, &loader),
        ISO_OK, "%s", iso_last_error()->message);
    return loader;
}

// Both loaders give the same batches until the epoch ends, and the same number of them.
static void compare(iso_loader *a, iso_loader *b, int64_t expected) {
    iso_batch first, second;
    int64_t batches = 0;
    while (iso_loader_next(a, &first) == ISO_OK) {
        void *x, *y;
        cr_assert_eq(iso_loader_next(b, &second), ISO_OK);
        cr_assert(first.n == second.n && first.index == second.index);
        cr_assert_eq(memcmp(first.labels, second.labels, (size_t)first.n * sizeof(int32_t)), 0);
        cr_assert_eq(iso_tensor_map(first.images, ISO_READ, &x), ISO_OK);
        cr_assert_eq(iso_tensor_map(second.images, ISO_READ, &y), ISO_OK);
        cr_assert_eq(memcmp(x, y, (size_t)first.n * PIXELS * sizeof(float)), 0);
        iso_tensor_unmap(first.images);
        iso_tensor_unmap(second.images);
        batches++;
    }
    cr_assert_eq(iso_loader_next(b, &second), ISO_PENDING);
    cr_assert_eq(batches, expected);
}

// At every place of an epoch, though the thread is far ahead; the state has passed through memory.
Test(loader_state, goes_on_in_the_middle_of_an_epoch) {
    fixture f = create();
    const int prefetches[] = {0, 1, 2, 40};
    for (int i = 0; i < 16; i++) {
        iso_loader_config config = {.prefetch = prefetches[i % 4], .shift = 2, .flip = 0.5};
        iso_sampler_config order = usual;
        order.end = i < 8 ? ISO_SAMPLER_PAD : ISO_SAMPLER_OVERLAP;
        iso_loader *first = load(&f, order, config);
        int64_t batches = iso_loader_batches(first);
        cr_assert_eq(iso_loader_start(first, 3, 0), ISO_OK);
        for (int64_t k = 0; k < batches; k++) {
            int64_t saved[sizeof(iso_loader_state) / 8];
            iso_loader_state state;
            iso_batch batch;
            cr_assert_eq(iso_loader_next(first, &batch), ISO_OK);
            iso_loader_get_state(first, &state);
            cr_assert(state.epoch == 3 && state.next == k + 1);
            memcpy(saved, &state, sizeof(saved));
            config.prefetch = prefetches[i / 4];
            iso_loader *second = load(&f, order, config), *third = load(&f, order, config);
            cr_assert_eq(iso_loader_set_state(second, (const iso_loader_state *)saved), ISO_OK);
            cr_assert_eq(iso_loader_start(third, 3, k + 1), ISO_OK);
            compare(third, second, batches - k - 1);
            iso_loader_destroy(&second);
            iso_loader_destroy(&third);
        }
        iso_loader_destroy(&first);
    }
    destroy(&f);
}

Test(loader_state, before_an_epoch_is_its_begin) {
    fixture f = create();
    iso_loader *first = load(&f, usual, ISO_LOADER_DEFAULT);
    iso_loader *second = load(&f, usual, ISO_LOADER_DEFAULT);
    iso_loader_state state;
    iso_loader_get_state(first, &state);
    cr_assert_eq(iso_loader_set_state(second, &state), ISO_OK);
    cr_assert_eq(iso_loader_start(first, 0, 0), ISO_OK);
    compare(first, second, iso_loader_batches(first));
    iso_loader_destroy(&first);
    iso_loader_destroy(&second);
    destroy(&f);
}

// The loader goes on with its own epoch after it has refused.
static void refuse(fixture *f, iso_sampler_config order, iso_loader_config config,
                   const char *words) {
    iso_loader *saved = load(f, usual, ISO_LOADER_DEFAULT), *other = load(f, order, config);
    iso_loader_state state;
    iso_batch batch;
    cr_assert_eq(iso_loader_start(saved, 2, 3), ISO_OK);
    iso_loader_get_state(saved, &state);
    cr_assert_eq(iso_loader_start(other, 1, 0), ISO_OK);
    cr_assert_eq(iso_loader_set_state(other, &state), ISO_ERR_MISMATCH);
    cr_assert(strstr(iso_last_error()->message, words), "no \"%s\" in: %s", words,
              iso_last_error()->message);
    iso_loader_get_state(other, &state);
    cr_assert(state.epoch == 1 && state.next == 0);
    cr_assert_eq(iso_loader_next(other, &batch), ISO_OK);
    cr_assert_eq(batch.index, 0);
    iso_loader_destroy(&saved);
    iso_loader_destroy(&other);
}

Test(loader_state, refuses_other_settings) {
    fixture f = create();
    iso_loader_config plain = ISO_LOADER_DEFAULT, changed = plain;
    iso_sampler_config order = usual;
    order.count = 100;
    refuse(&f, order, plain, "with count 103 does not fit this one with count 100");
    order = usual, order.batch = 9;
    refuse(&f, order, plain, "with batch 8 does not fit this one with batch 9");
    order = usual, order.ranks = 3;
    refuse(&f, order, plain, "with ranks 2 does not fit this one with ranks 3");
    order = usual, order.seed = 8;
    refuse(&f, order, plain, "with seed 7 does not fit this one with seed 8");
    order = usual, order.shuffle = false;
    refuse(&f, order, plain, "with shuffle 1 does not fit this one with shuffle 0");
    order = usual, order.end = ISO_SAMPLER_DROP;
    refuse(&f, order, plain, "with end 0 does not fit this one with end 1");
    changed.shift = 1;
    refuse(&f, usual, changed, "with shift 0 does not fit this one with shift 1");
    changed.shift = 0, changed.flip = 0.5;
    refuse(&f, usual, changed, "with flip 0 does not fit this one with flip 8388608");
    destroy(&f);
}

static double cost_of(int64_t sample, void *user) {
    (void)user;
    return (double)(sample % 7);
}

// It decides which samples are in a batch.
Test(loader_state, refuses_another_noise_of_costs) {
    fixture f = create();
    iso_loader_state state;
    iso_sampler_config order = usual;
    order.cost = cost_of;
    order.cost_noise = 0.1;
    iso_loader *first = load(&f, order, (iso_loader_config){0}), *same, *other;
    iso_loader_get_state(first, &state);
    same = load(&f, order, (iso_loader_config){0});
    order.cost_noise = 0.3;
    other = load(&f, order, (iso_loader_config){0});
    cr_assert_eq(iso_loader_set_state(same, &state), ISO_OK);
    cr_assert_eq(iso_loader_set_state(other, &state), ISO_ERR_MISMATCH);
    cr_assert(strstr(iso_last_error()->message, "shuffle"), "%s", iso_last_error()->message);
    iso_loader_destroy(&first);
    iso_loader_destroy(&same);
    iso_loader_destroy(&other);
    destroy(&f);
}

Test(loader_state, refuses_a_place_that_is_not_there) {
    fixture f = create();
    iso_loader *loader = load(&f, usual, ISO_LOADER_DEFAULT);
    iso_loader_state state;
    iso_loader_get_state(loader, &state);
    state.next = 1000;
    cr_assert_eq(iso_loader_set_state(loader, &state), ISO_ERR_ARG);
    state.next = 0, state.epoch = -1;
    cr_assert_eq(iso_loader_set_state(loader, &state), ISO_ERR_ARG);
    iso_loader_destroy(&loader);
    destroy(&f);
}

// ---- Another number of ranks --------------------------------------------------------------------

// The labels of the next global batch of all ranks: the samples of a batch are those of rank 0,
// then those of rank 1.
static int64_t next_labels(iso_loader **ranks, int count, int32_t *out) {
    int64_t n = 0;
    for (int r = 0; r < count; r++) {
        iso_batch batch;
        if (iso_loader_next(ranks[r], &batch) != ISO_OK) continue;
        memcpy(out + n, batch.labels, (size_t)batch.n * sizeof(*out));
        n += batch.n;
    }
    return n;
}

static void open_ranks(fixture *f, int ranks, int64_t batch, iso_sampler_end end,
                       iso_loader **out) {
    iso_sampler_config order = usual;
    order.ranks = ranks, order.batch = batch, order.end = end;
    for (order.rank = 0; order.rank < ranks; order.rank++)
        out[order.rank] = load(f, order, ISO_LOADER_DEFAULT);
}

static void close_ranks(iso_loader **loader, int ranks) {
    for (int r = 0; r < ranks; r++) iso_loader_destroy(&loader[r]);
}

// After `done` batches of the first ranks, the others bring the rest of the epoch, in batches that
// may be smaller.
static void go_on_with(fixture *f, int first, int64_t batch, int second, int64_t other,
                       iso_sampler_end end, int64_t done) {
    iso_loader *a[8], *b[8];
    iso_loader_state state;
    int32_t wanted[2 * COUNT], got[2 * COUNT];
    int64_t rest = 0, came = 0, n;
    open_ranks(f, first, batch, end, a);
    open_ranks(f, second, other, end, b);
    for (int r = 0; r < first; r++) cr_assert_eq(iso_loader_start(a[r], 3, done), ISO_OK);
    iso_loader_get_state(a[0], &state);
    cr_assert_eq(iso_loader_convert_state(b[0], &state), ISO_OK, "%s", iso_last_error()->message);
    for (int r = 0; r < second; r++) cr_assert_eq(iso_loader_set_state(b[r], &state), ISO_OK);
    while ((n = next_labels(a, first, wanted + rest)) > 0) rest += n;
    while ((n = next_labels(b, second, got + came)) > 0) came += n;
    // PAD repeats at the end what divides evenly, and DROP leaves out what does not.
    int64_t common = rest < came ? rest : came, most = end == ISO_SAMPLER_DROP ? first * batch : 8;
    cr_assert(rest + came - 2 * common < most);
    cr_assert_eq(memcmp(wanted, got, (size_t)common * sizeof(*got)), 0);
    close_ranks(a, first);
    close_ranks(b, second);
}

Test(loader_state, goes_on_on_another_number_of_ranks) {
    static const struct {
        int first, second;
        int64_t batch, other;
    } of[] = {{4, 2, 3, 6}, {2, 4, 6, 3}, {3, 1, 4, 12}, {2, 3, 6, 4}, {4, 2, 3, 3}, {1, 8, 8, 1}};
    fixture f = create();
    for (int i = 0; i < 6; i++)
        for (int drop = 0; drop < 2; drop++) {
            int64_t whole = COUNT / (of[i].first * of[i].batch);
            for (int64_t done = 0; done <= whole; done++)
                go_on_with(&f, of[i].first, of[i].batch, of[i].second, of[i].other,
                           drop ? ISO_SAMPLER_DROP : ISO_SAMPLER_PAD, done);
        }
    // At the end of the epoch.
    go_on_with(&f, 4, 3, 2, 6, ISO_SAMPLER_PAD, 9);
    go_on_with(&f, 4, 3, 2, 3, ISO_SAMPLER_PAD, 9);
    destroy(&f);
}

static void refuse_ranks(fixture *f, int ranks, int64_t batch, iso_sampler_end end,
                         const char *words) {
    iso_loader *saved, *other[8];
    iso_loader_state state;
    iso_sampler_config order = usual; // 2 ranks with 8
    order.end = end;
    saved = load(f, order, ISO_LOADER_DEFAULT);
    open_ranks(f, ranks, batch, end, other);
    cr_assert_eq(iso_loader_start(saved, 2, 3), ISO_OK);
    iso_loader_get_state(saved, &state);
    const iso_loader_state before = state;
    cr_assert_eq(iso_loader_convert_state(other[0], &state), ISO_ERR_MISMATCH);
    cr_assert(strstr(iso_last_error()->message, words), "no \"%s\" in: %s", words,
              iso_last_error()->message);
    cr_assert_eq(memcmp(&state, &before, sizeof(state)), 0);
    iso_loader_destroy(&saved);
    close_ranks(other, ranks);
}

Test(loader_state, refuses_ranks_that_cannot_go_on) {
    fixture f = create();
    refuse_ranks(&f, 4, 8, ISO_SAMPLER_PAD, "had taken 48 samples of the epoch");
    refuse_ranks(&f, 3, 3, ISO_SAMPLER_DROP, "keep ranks * batch as before, 16");
    refuse_ranks(&f, 4, 4, ISO_SAMPLER_OVERLAP, "a loader of 2 ranks does not fit 4: with this");
    refuse_ranks(&f, 4, 4, ISO_SAMPLER_SHARE, "a loader of 2 ranks does not fit 4: with this");
    destroy(&f);
}
