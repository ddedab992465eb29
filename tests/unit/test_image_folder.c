// SPDX-License-Identifier: MIT
// Folders of pictures: which samples they hold, in which order; loaders give the same batches as
// arrays of these samples.
#include "common/balance.h"
#include "common/picture_writer.h"
#include "common/samples_fixture.h"
#include "common/scratch.h"
#include "common/tensor_access.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void set_up(void) {
    if (!pictures_are_there()) cr_skip_test("this build has no libjpeg or libpng");
}
static void clean_up(void) {
    scratch_remove();
    balance_check();
}
TestSuite(image_folder, .init = set_up, .fini = clean_up, .timeout = 60);

enum { SIDE = 6, ELEMENTS = 3 * SIDE * SIDE, PATH_ROOM = 1000 };

// ---- Folders ------------------------------------------------------------------------------------

// A path in the scratch folder, whose folders are made; the next call overwrites it.
static const char *make_path(const char *name) {
    static char path[PATH_ROOM];
    size_t at = strlen(scratch_folder()) + 1;
    snprintf(path, sizeof(path), "%s/%s", scratch_folder(), name);
    for (char *end; (end = strchr(path + at, '/')); *end = '/', at = (size_t)(end - path) + 1) {
        *end = 0;
        mkdir(path, 0700);
    }
    return path;
}

// A grey picture.
static void put_picture(const char *name, int value) {
    static uint8_t pixels[8 * 9];
    memset(pixels, value, sizeof(pixels));
    picture_write(make_path(name), PICTURE_PNG_GREY, 8, 9, pixels);
}

static void put_text(const char *name) {
    FILE *file = fopen(make_path(name), "w");
    fputs("a text\n", file);
    fclose(file);
}

static const char *folder_of(const char *name) {
    static char path[PATH_ROOM];
    snprintf(path, sizeof(path), "%s/%s", scratch_folder(), name);
    return path;
}

static iso_dataset *open_folder(const char *name, iso_images_part part) {
    const iso_images_config config = {.part = part, .size = SIDE};
    iso_dataset *out = NULL;
    cr_assert_eq(iso_dataset_open_images(folder_of(name), &config, &out), ISO_OK, "%s",
                 iso_last_error()->message);
    return out;
}

static void refuse(const char *name, iso_images_config config, iso_status code, const char *words) {
    iso_dataset *out = NULL;
    iso_status status = iso_dataset_open_images(folder_of(name), &config, &out);
    const char *message = iso_last_error()->message;
    cr_assert_eq(status, code, "%s: got %d: %s", words, status, message);
    cr_assert(strstr(message, words), "no \"%s\" in: %s", words, message);
    cr_assert_null(out);
}

static void expect_sample(iso_dataset *set, int64_t i, int value, int wanted_label) {
    uint8_t image[ELEMENTS];
    int32_t label;
    cr_assert_eq(iso_dataset_sample(set, i, (void *const[]){image, &label}), ISO_OK, "%s",
                 iso_last_error()->message);
    for (int e = 0; e < ELEMENTS; e++) cr_assert_eq(image[e], value, "sample %d", (int)i);
    cr_assert_eq(label, wanted_label);
}

// Upper case comes before lower case, and the name of a folder is a path as any other.
Test(image_folder, names_decide_classes_and_order) {
    put_picture("set/zebra/b 2.PNG", 10);
    put_picture("set/zebra/a.png", 20);
    put_picture("set/zebra/more/c.png", 30);
    put_picture("set/Owl/one.jpeg", 40); // what it is, its bytes say
    put_picture("set/big cat/x.JPG", 50);
    put_picture("set/big cat/.hidden.png", 60);
    put_text("set/big cat/notes.txt");
    put_text("set/list.csv");
    iso_dataset *set = open_folder("set", ISO_IMAGES_ALL);
    iso_dataset_info info;
    iso_dataset_get_info(set, &info);
    cr_assert(info.count == 5 && info.classes == 3 && info.channels == 3);
    cr_assert(info.height == SIDE && info.width == SIDE && !info.mean);
    cr_assert_str_eq(iso_dataset_class_name(set, 0), "Owl");
    cr_assert_str_eq(iso_dataset_class_name(set, 1), "big cat");
    cr_assert_str_eq(iso_dataset_class_name(set, 2), "zebra");
    cr_assert(!iso_dataset_class_name(set, 3) && !iso_dataset_class_name(set, -1));
    expect_sample(set, 0, 40, 0);
    expect_sample(set, 1, 50, 1);
    expect_sample(set, 2, 20, 2);
    expect_sample(set, 3, 10, 2);
    expect_sample(set, 4, 30, 2);
    iso_dataset_destroy(&set);
}

// Otherwise the labels of the two sets would mean different things.
Test(image_folder, train_numbers_the_classes_of_val) {
    put_picture("set/train/a/1.png", 10);
    put_picture("set/train/b/1.png", 20);
    put_picture("set/train/c/1.png", 30);
    put_picture("set/val/c/1.png", 40);
    mkdir(make_path("set/val/b"), 0700);
    iso_dataset *set = open_folder("set", ISO_IMAGES_VAL);
    iso_dataset_info info;
    iso_dataset_get_info(set, &info);
    cr_assert(info.count == 1 && info.classes == 3);
    expect_sample(set, 0, 40, 2);
    iso_dataset_destroy(&set);
    put_picture("set/val/d/1.png", 40);
    refuse("set", (iso_images_config){.part = ISO_IMAGES_VAL}, ISO_ERR_FORMAT,
           "set/val/d is none of the classes of ");
}

Test(image_folder, what_is_no_set_is_refused) {
    const iso_images_config usual = {.part = ISO_IMAGES_ALL};
    refuse("none", usual, ISO_ERR_IO, "there is no data folder ");
    put_text("set/notes.txt");
    refuse("set", usual, ISO_ERR_FORMAT, "set holds no folders");
    put_picture("set/a/1.png", 1);
    mkdir(make_path("set/b"), 0700);
    refuse("set", usual, ISO_ERR_FORMAT, "class folder ");
    refuse("set", usual, ISO_ERR_FORMAT, "set/b holds no JPEG or PNG file");
    put_text("set/b/1.webp");
    refuse("set", usual, ISO_ERR_FORMAT, "set/b/1.webp is a picture of a kind that is not read");
    refuse(
        "set", (iso_images_config){.part = ISO_IMAGES_TRAIN}, ISO_ERR_IO,
        "set/train: No such file or directory: make it a folder that you may read, with a folder "
        "of pictures for each class");
    refuse("set", (iso_images_config){.size = 9000}, ISO_ERR_ARG, "images of 9000 pixels");
    refuse("set", (iso_images_config){.size = 9, .shorter = 8}, ISO_ERR_ARG, "give 9 to 16384");
    unlink(make_path("set/b/1.webp"));
    cr_assert_eq(symlink("..", make_path("set/b/back")), 0);
    refuse("set", usual, ISO_ERR_FORMAT, "nested more than 16 deep");
}

// ---- Which data -----------------------------------------------------------------------------------

static void expect_layout(const char *name, iso_images_layout layout) {
    cr_assert_eq(iso_images_find(folder_of(name)), layout, "%s", name);
}

Test(image_folder, names_tell_the_layout) {
    put_picture("split/train/a/1.png", 1);
    put_picture("classes/a/1.png", 1);
    put_picture("vehicles/train/1.png", 1); // a class of this name
    put_text("other/folder/readme.txt");
    put_picture("mnist/figures/1.png", 1);
    put_text("mnist/train-images-idx3-ubyte");
    expect_layout("split", ISO_IMAGES_SPLIT);
    expect_layout("classes", ISO_IMAGES_CLASSES);
    expect_layout("vehicles", ISO_IMAGES_CLASSES);
    expect_layout("other", ISO_IMAGES_NONE);
    expect_layout("mnist", ISO_IMAGES_NONE);
    expect_layout("nowhere", ISO_IMAGES_NONE);
}

Test(image_folder, is_opened_as_other_data_are) {
    iso_dataset *set = NULL;
    iso_dataset_info info;
    put_picture("split/train/a/1.png", 1);
    put_picture("split/val/a/1.png", 1);
    put_picture("classes/a/1.png", 1);
    for (int i = 0; i < 3; i++) {
        const char *folder = folder_of(i < 2 ? "split" : "classes");
        cr_assert_eq(iso_dataset_open(folder, i != 1, &set), ISO_OK);
        iso_dataset_get_info(set, &info);
        cr_assert(info.count == 1 && info.height == 224);
        iso_dataset_destroy(&set);
    }
    cr_assert_eq(iso_dataset_open(folder_of("classes"), false, &set), ISO_ERR_FORMAT);
    cr_assert(strstr(iso_last_error()->message, "pictures of one set"));
}

static uint64_t checksum_of(int64_t size) {
    const iso_images_config config = {.size = size};
    iso_dataset *set = NULL;
    cr_assert_eq(iso_dataset_open_images(folder_of("set"), &config, &set), ISO_OK);
    uint64_t sum = iso_dataset_checksum(set);
    iso_dataset_destroy(&set);
    return sum;
}

Test(image_folder, another_list_or_size_has_another_checksum) {
    put_picture("set/a/1.png", 1);
    put_picture("set/b/1.png", 1);
    uint64_t sum = checksum_of(8);
    cr_assert_eq(sum, checksum_of(8));
    cr_assert_neq(sum, checksum_of(9));
    put_text("set/notes");
    cr_assert_eq(sum, checksum_of(8));
    put_picture("set/b/2.png", 1);
    cr_assert_neq(sum, checksum_of(8));
}

// ---- Batches ------------------------------------------------------------------------------------

enum { PICTURES = 23, OF_BATCH = 4 };

static void put_pictures(void) {
    static uint8_t pixels[30 * 30 * 3];
    char name[100];
    for (int i = 0; i < PICTURES; i++) {
        for (int p = 0; p < 30 * 30 * 3; p++) pixels[p] = (uint8_t)(p * (i + 3) >> 3);
        snprintf(name, sizeof(name), "set/class %d/%d.jpg", i % 3, i);
        picture_write(make_path(name), i % 2 ? PICTURE_PNG : PICTURE_JPEG, 7 + i, 30 - i, pixels);
    }
}

// The same samples in memory.
static iso_dataset *copy_samples(iso_dataset *set) {
    static uint8_t images[PICTURES][ELEMENTS];
    static int32_t labels[PICTURES];
    iso_dataset *out = NULL;
    for (int i = 0; i < PICTURES; i++)
        cr_assert_eq(iso_dataset_sample(set, i, (void *const[]){images[i], &labels[i]}), ISO_OK);
    cr_assert_eq(iso_dataset_create(images[0], labels, PICTURES, 3, SIDE, SIDE, 3, &out), ISO_OK);
    return out;
}

static void compare_epoch(iso_loader *a, iso_loader *b) {
    static float x[2][OF_BATCH * ELEMENTS];
    iso_batch first, second;
    cr_assert_eq(iso_loader_start(a, 1, 0), ISO_OK);
    cr_assert_eq(iso_loader_start(b, 1, 0), ISO_OK);
    while (iso_loader_next(a, &first) == ISO_OK) {
        cr_assert_eq(iso_loader_next(b, &second), ISO_OK, "%s", iso_last_error()->message);
        size_t n = (size_t)first.n;
        cr_assert_eq(tensor_get(first.images, x[0]), ISO_OK);
        cr_assert_eq(tensor_get(second.images, x[1]), ISO_OK);
        cr_assert_eq(first.n, second.n);
        cr_assert_eq(memcmp(x[0], x[1], n * ELEMENTS * sizeof(float)), 0);
        cr_assert_eq(memcmp(first.labels, second.labels, n * sizeof(int32_t)), 0);
    }
    cr_assert_eq(iso_loader_next(b, &second), ISO_PENDING);
}

// Also augmented, by any number of threads and ranks.
Test(image_folder, batches_are_those_of_arrays) {
    static const double mean[] = {0.4, 0.5, 0.6}, std[] = {0.2, 0.3, 0.1};
    put_pictures();
    iso_dataset *folder = open_folder("set", ISO_IMAGES_ALL), *arrays = copy_samples(folder);
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int rank = 0; rank < ranks; rank++) {
            const iso_sampler_config order = {
                .batch = OF_BATCH, .rank = rank, .ranks = ranks, .seed = 3, .shuffle = true};
            iso_loader_config config = {.mean = mean, .std = std, .shift = 1, .flip = 0.5};
            iso_loader *alone = samples_load(arrays, order, config);
            config.threads = ranks;
            config.prefetch = ranks - 1;
            iso_loader *many = samples_load(folder, order, config);
            compare_epoch(alone, many);
            iso_loader_destroy(&alone);
            iso_loader_destroy(&many);
        }
    iso_dataset_destroy(&folder);
    iso_dataset_destroy(&arrays);
}

static iso_loader *load_crops(iso_dataset *set, int rank, int ranks, int threads) {
    const iso_sampler_config order = {
        .batch = OF_BATCH / ranks, .rank = rank, .ranks = ranks, .seed = 3, .shuffle = true};
    const iso_loader_config config = {.crop = 0.2, .threads = threads, .prefetch = threads - 1};
    return samples_load(set, order, config);
}

static void take_images(iso_loader *loader, int64_t epoch, float *out) {
    iso_batch batch;
    cr_assert_eq(iso_loader_start(loader, epoch, 0), ISO_OK);
    cr_assert_eq(iso_loader_next(loader, &batch), ISO_OK, "%s", iso_last_error()->message);
    cr_assert_eq(tensor_get(batch.images, out), ISO_OK);
}

// The sample, the epoch and the seed decide, not the rank or the thread.
Test(image_folder, random_parts_are_the_same_on_any_number_of_ranks) {
    static float all[OF_BATCH * ELEMENTS], half[OF_BATCH * ELEMENTS], other[OF_BATCH * ELEMENTS];
    put_pictures();
    iso_dataset *set = open_folder("set", ISO_IMAGES_ALL);
    iso_loader *one = load_crops(set, 0, 1, 1);
    take_images(one, 2, all);
    take_images(one, 3, other);
    cr_assert_neq(memcmp(all, other, sizeof(all)), 0);
    for (int rank = 0; rank < 2; rank++) {
        iso_loader *two = load_crops(set, rank, 2, 3);
        take_images(two, 2, half);
        cr_assert_eq(memcmp(half, all + rank * OF_BATCH / 2 * ELEMENTS, sizeof(all) / 2), 0);
        iso_loader_destroy(&two);
    }
    iso_loader_destroy(&one);
    iso_dataset_destroy(&set);
}

Test(image_folder, only_pictures_are_cut_at_random) {
    iso_device *device;
    iso_loader *loader;
    iso_dataset *set;
    const iso_sampler_config order = {.batch = 1, .ranks = 1};
    cr_assert_eq(iso_device_create("cpu", &device), ISO_OK);
    for (int bad = 0; bad < 2; bad++) {
        const iso_loader_config config = {.crop = bad ? 1.5 : 0.5};
        cr_assert_eq(iso_dataset_create_digits(true, 2, &set), ISO_OK);
        cr_assert_eq(iso_loader_create_take(device, set, &order, &config, &loader), ISO_ERR_ARG);
        cr_assert(strstr(iso_last_error()->message,
                         bad ? "at least 1.5 of their area" : "only pictures in class folders"));
    }
    iso_device_destroy(&device);
}

Test(image_folder, real_images_are_bytes_over_255) {
    put_pictures();
    const iso_images_config config = {.size = SIDE, .real = true};
    iso_dataset *bytes = open_folder("set", ISO_IMAGES_ALL), *real = NULL;
    cr_assert_eq(iso_dataset_open_images(folder_of("set"), &config, &real), ISO_OK);
    for (int i = 0; i < PICTURES; i++) {
        uint8_t image[ELEMENTS];
        float numbers[ELEMENTS];
        int32_t label[2];
        cr_assert_eq(iso_dataset_sample(bytes, i, (void *const[]){image, &label[0]}), ISO_OK);
        cr_assert_eq(iso_dataset_sample(real, i, (void *const[]){numbers, &label[1]}), ISO_OK);
        for (int e = 0; e < ELEMENTS; e++) cr_assert_eq(numbers[e], (float)image[e] / 255);
        cr_assert_eq(label[0], label[1]);
    }
    iso_dataset_destroy(&bytes);
    iso_dataset_destroy(&real);
}

// The batches before it come first.
Test(image_folder, a_damaged_picture_is_told_by_its_batch) {
    put_pictures();
    iso_dataset *set = open_folder("set", ISO_IMAGES_ALL);
    put_text("set/class 2/8.jpg"); // sample 22, the last one
    const iso_sampler_config order = {.batch = OF_BATCH, .ranks = 1};
    iso_loader *loader = samples_load(set, order, (iso_loader_config){.threads = 2});
    iso_batch batch;
    iso_status status;
    int good = 0;
    cr_assert_eq(iso_loader_start(loader, 0, 0), ISO_OK);
    while ((status = iso_loader_next(loader, &batch)) == ISO_OK) good++;
    cr_assert_eq(status, ISO_ERR_FORMAT);
    cr_assert_eq(good, 5);
    cr_assert(strstr(iso_last_error()->message,
                     "set/class 2/8.jpg does not begin as a JPEG or PNG file does"));
    iso_loader_destroy(&loader);
    iso_dataset_destroy(&set);
}
