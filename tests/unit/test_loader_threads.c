// SPDX-License-Identifier: MIT
// A loader with several threads: the batches and errors of one thread, and callbacks at the same
// time.
#include "common/balance.h"
#include "common/samples_fixture.h"
#include "common/tensor_access.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

TestSuite(loader_threads, .fini = balance_check, .timeout = 60);

static const iso_sampler_config shuffled = {.batch = BATCH, .ranks = 1, .seed = 3, .shuffle = true};
static const iso_sampler_config in_order = {.batch = BATCH, .ranks = 1};
enum { BATCHES = (COUNT + BATCH - 1) / BATCH };

// ---- Bits ---------------------------------------------------------------------------------------

enum { IMAGES = 61, SIDE = 6, PIXELS = SIDE * SIDE };

// Draws a number of its own for each pixel of the sample.
static iso_status add_noise(const iso_sample *sample, void *user) {
    float *pixel = sample->tensors[0];
    uint64_t bits = sample->random;
    (void)user;
    for (int i = 0; i < PIXELS; i++) {
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        pixel[i] += (float)(bits >> 40);
    }
    return ISO_OK;
}

static iso_status read_image(int64_t i, void *const *tensors, void *user) {
    (void)user;
    for (int p = 0; p < PIXELS; p++) ((uint8_t *)tensors[0])[p] = (uint8_t)(i * 7 + p * 5);
    *(int32_t *)tensors[1] = (int32_t)i;
    return ISO_OK;
}

// Images that are moved, mirrored, and changed by a function: all that an epoch gives.
static iso_loader *load_images(int prefetch, int threads) {
    const iso_tensor_spec tensors[] = {{ISO_U8, 3, {1, SIDE, SIDE}}, {.dtype = ISO_I32}};
    const iso_dataset_config images = {
        .count = IMAGES, .inputs = 1, .targets = 1, .tensors = tensors, .classes = IMAGES};
    iso_dataset *dataset;
    cr_assert_eq(iso_dataset_create_callback(&images, read_image, NULL, &dataset), ISO_OK);
    iso_loader *loader = samples_load(dataset, shuffled,
                                      (iso_loader_config){.prefetch = prefetch,
                                                          .threads = threads,
                                                          .shift = 2,
                                                          .flip = 0.5,
                                                          .transform = add_noise});
    iso_dataset_destroy(&dataset);
    return loader;
}

// Both loaders give the same batches until the epoch ends.
static void compare(iso_loader *a, iso_loader *b) {
    iso_batch first, second;
    while (iso_loader_next(a, &first) == ISO_OK) {
        float x[2][BATCH * PIXELS];
        cr_assert_eq(iso_loader_next(b, &second), ISO_OK, "%s", iso_last_error()->message);
        cr_assert(first.n == second.n && first.index == second.index);
        cr_assert_eq(memcmp(first.labels, second.labels, (size_t)first.n * sizeof(int32_t)), 0);
        cr_assert_eq(tensor_get(first.images, x[0]), ISO_OK);
        cr_assert_eq(tensor_get(second.images, x[1]), ISO_OK);
        cr_assert_eq(memcmp(x[0], x[1], (size_t)first.n * PIXELS * sizeof(float)), 0);
    }
    cr_assert_eq(iso_loader_next(b, &second), ISO_PENDING);
}

static const int thread_counts[] = {1, 2, 3, 7, 40};

Test(loader_threads, batches_do_not_depend_on_their_number) {
    for (int i = 0; i < 10; i++) {
        iso_loader *alone = load_images(0, 0);
        iso_loader *many = load_images(i < 5 ? 2 : 9, thread_counts[i % 5]);
        for (int epoch = 0; epoch < 3; epoch++) {
            cr_assert_eq(iso_loader_start(alone, epoch, 0), ISO_OK);
            cr_assert_eq(iso_loader_start(many, epoch, 0), ISO_OK);
            compare(alone, many);
        }
        iso_loader_destroy(&alone);
        iso_loader_destroy(&many);
    }
}

Test(loader_threads, step_path_allocates_nothing) {
    for (int i = 0; i < 5; i++) {
        iso_loader *loader = load_images(2, thread_counts[i]);
        long long before, after;
        iso_memory_balance(NULL, NULL, &before);
        for (int epoch = 0; epoch < 3; epoch++) {
            iso_batch batch;
            cr_assert_eq(iso_loader_start(loader, epoch, 0), ISO_OK);
            while (iso_loader_next(loader, &batch) == ISO_OK) {
            }
        }
        iso_memory_balance(NULL, NULL, &after);
        cr_assert_eq(after, before);
        iso_loader_destroy(&loader);
    }
}

// Near the end of an epoch there are fewer batches than threads, and at last none.
Test(loader_threads, state_is_resumed_with_another_number) {
    for (int i = 0; i < 5; i++) {
        iso_loader *first = load_images(2, thread_counts[i]);
        cr_assert_eq(iso_loader_start(first, 1, 0), ISO_OK);
        for (int64_t k = 0; k < iso_loader_batches(first); k++) {
            iso_batch batch;
            iso_loader_state state;
            iso_loader *alone = load_images(0, 0);
            iso_loader *second = load_images(3, thread_counts[(i + 1) % 5]);
            cr_assert_eq(iso_loader_next(first, &batch), ISO_OK);
            iso_loader_get_state(first, &state);
            cr_assert(state.epoch == 1 && state.next == k + 1);
            cr_assert_eq(iso_loader_set_state(second, &state), ISO_OK);
            cr_assert_eq(iso_loader_start(alone, 1, k + 1), ISO_OK);
            compare(alone, second);
            iso_loader_destroy(&alone);
            iso_loader_destroy(&second);
        }
        iso_loader_destroy(&first);
    }
}

Test(loader_threads, an_epoch_ends_early) {
    for (int round = 0; round < 50; round++) {
        iso_loader *loader = load_images(round % 3, thread_counts[round % 5]);
        iso_batch batch;
        for (int epoch = 0; epoch < 3; epoch++) {
            cr_assert_eq(iso_loader_start(loader, epoch, 0), ISO_OK);
            for (int k = 0; k < round % 7; k++)
                cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
        }
        iso_loader_destroy(&loader);
    }
}

// ---- At the same time ---------------------------------------------------------------------------

enum { THREADS = 3 };

typedef struct meeting {
    pthread_barrier_t barrier;
    atomic_int inside, most;
} meeting;

// The first sample of each of the first batches waits for those of the others.
static iso_status meet_others(int64_t i, void *const *tensors, void *user) {
    meeting *m = user;
    int inside = ++m->inside;
    if (inside > m->most) m->most = inside;
    if (i % BATCH == 0 && i < THREADS * BATCH) pthread_barrier_wait(&m->barrier);
    iso_status status = samples_read(i, tensors, NULL);
    m->inside--;
    return status;
}

static iso_loader *load_read(iso_sample_reader read, void *user, int prefetch, int threads) {
    iso_dataset *dataset;
    cr_assert_eq(iso_dataset_create_callback(&samples_usual, read, user, &dataset), ISO_OK);
    iso_loader *loader = samples_load(
        dataset, in_order, (iso_loader_config){.prefetch = prefetch, .threads = threads});
    iso_dataset_destroy(&dataset);
    return loader;
}

static void check_values(const iso_batch *batch) {
    float x[BATCH][4];
    cr_assert_eq(tensor_get(batch->inputs[0], x), ISO_OK);
    for (int64_t i = 0; i < batch->n; i++) {
        sample s = sample_of(batch->index * BATCH + i);
        cr_assert_eq(memcmp(x[i], s.x, sizeof(s.x)), 0);
        cr_assert_eq(memcmp(batch->labels + i * LABELS, s.labels, sizeof(s.labels)), 0);
    }
}

// With fewer threads it would wait for ever; more than that are never in the callback.
Test(loader_threads, callbacks_run_at_the_same_time) {
    for (int prefetch = 0; prefetch < 6; prefetch += 5) {
        meeting m = {.inside = 0};
        cr_assert_eq(pthread_barrier_init(&m.barrier, NULL, THREADS), 0);
        iso_loader *loader = load_read(meet_others, &m, prefetch, THREADS);
        iso_batch batch;
        cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
        for (int k = 0; k < BATCHES; k++) {
            cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
            cr_assert_eq(batch.index, k);
            check_values(&batch);
        }
        iso_loader_destroy(&loader);
        cr_assert_eq(m.most, THREADS);
        pthread_barrier_destroy(&m.barrier);
    }
}

// ---- Errors -------------------------------------------------------------------------------------

// Batch `late` waits until batch `late` + 1 has failed, and then fails itself if `both` is set.
typedef struct trouble {
    int64_t late;
    bool both;
    atomic_bool failed;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} trouble;

static iso_status get_in_trouble(int64_t i, void *const *tensors, void *user) {
    trouble *t = user;
    int64_t k = i / BATCH;
    bool first = i % BATCH == 0, last = i % BATCH == BATCH - 1;
    pthread_mutex_lock(&t->lock);
    while (first && k == t->late && !t->failed) pthread_cond_wait(&t->changed, &t->lock);
    if (last && k == t->late + 1) t->failed = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (last && (k == t->late + 1 || (k == t->late && t->both)))
        return iso_error_set(ISO_ERR_IO, "sample %lld is damaged", (long long)i);
    return samples_read(i, tensors, NULL);
}

// The batches before the first damaged one come, then its error, as with one thread.
static void expect_error(trouble *t, int threads) {
    int64_t damaged = t->late + !t->both;
    char words[64];
    iso_batch batch;
    iso_loader *loader = load_read(get_in_trouble, t, 4, threads);
    snprintf(words, sizeof(words), "sample %d is damaged", (int)(damaged * BATCH + BATCH - 1));
    cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
    for (int64_t k = 0; k < damaged; k++) {
        cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK, "%s", iso_last_error()->message);
        check_values(&batch);
    }
    for (int again = 0; again < 2; again++) {
        cr_assert_eq(iso_loader_next(loader, &batch), ISO_ERR_IO);
        cr_assert(strstr(iso_last_error()->message, words), "%s", iso_last_error()->message);
    }
    cr_assert_eq(iso_loader_start(loader, 1, damaged + 2), ISO_OK); // behind it, all is well
    cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK);
    check_values(&batch);
    iso_loader_destroy(&loader);
}

// Batch late + 1 is always the first to fail. Should batch `late` fail as well, its error counts.
Test(loader_threads, the_first_batch_with_an_error_reports_it) {
    for (int threads = 2; threads <= 5; threads++)
        for (int64_t late = 0; late < 4; late++)
            for (int both = 0; both < 2; both++) {
                trouble t = {.late = late, .both = both};
                pthread_mutex_init(&t.lock, NULL);
                pthread_cond_init(&t.changed, NULL);
                expect_error(&t, threads);
                pthread_cond_destroy(&t.changed);
                pthread_mutex_destroy(&t.lock);
            }
}

Test(loader_threads, refuses_impossible_numbers) {
    iso_dataset *dataset = samples_create(READ, NULL);
    iso_device *device;
    const int numbers[] = {-1, 1025};
    cr_assert_eq(iso_device_create("cpu", &device), ISO_OK);
    for (int i = 0; i < 2; i++) {
        iso_loader *loader;
        iso_loader_config config = {.prefetch = 2, .threads = numbers[i]};
        cr_assert_eq(iso_loader_create_take(device, iso_dataset_retain(dataset), &in_order, &config,
                                            &loader),
                     ISO_ERR_ARG);
        cr_assert(strstr(iso_last_error()->message, "give 0 to 1024"), "%s",
                  iso_last_error()->message);
    }
    iso_device_destroy(&device);
    iso_dataset_destroy(&dataset);
}
