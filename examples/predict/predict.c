// SPDX-License-Identifier: MIT
// Classifies images of an IDX file with a checkpoint: predict --checkpoint FILE IMAGES. Needs no
// MPI launcher.
#include "predict_metadata.h"
#include "support/models.h"
#include "support/option_reader.h"
#include "support/try.h"
#include "support/usage.h"

#include <isotherm.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 100, LARGEST_TOP = 1000 };

// Options without a value or default stay NULL or -1. The checkpoint's metadata then decide, where
// they can.
typedef struct options {
    const char *checkpoint, *data, *labels, *model, *activations, *mean, *std, *device;
    int64_t classes, threads, top_k;
    bool logits, help, version;
    bool has_top_k;
} options;

typedef struct prediction {
    options given;
    iso_device *device;
    iso_state_dict dict;
    iso_dataset *images;
    iso_dataset_info info; // of the images; classes are the model's
    double *normalisation; // mean, then deviation, of each channel
    iso_module *model;
    iso_loader *loader;
    int64_t correct, among_top; // images whose label is the first class, or one of top_k
    int order[LARGEST_TOP];     // of an image: its classes by falling logit
} prediction;

#define FAIL(code, ...) return iso_error_set((code), __VA_ARGS__)

// ---- Options ------------------------------------------------------------------------------------

#define OPTION(k, name, field)                                                                     \
    .key = (name), .kind = ISO_SETTING_##k, .offset = offsetof(options, field)
#define FILE_OF(name, field) OPTION(TEXT, name, field), .choices = "FILE"

#define CLASSES OPTION(INTEGER, "classes", classes), .low = 1, .high = 1e6

static const iso_setting table[] = {
    {FILE_OF("checkpoint", checkpoint), .meaning = "safetensors file written by train or PyTorch"},
    {FILE_OF("labels", labels), .meaning = "IDX file of labels: print accuracy, not classes"},
    {OPTION(INTEGER, "top-k", top_k), .low = 1, .high = LARGEST_TOP, .initial = "1",
     .meaning = "print the N most probable classes of each image"},
    {OPTION(SWITCH, "logits", logits), .meaning = "also print the logits of all classes"},
    {OPTION(TEXT, "data", data), .choices = "IMAGES", .meaning = "another way to give IMAGES"},
    {OPTION(TEXT, "device", device), .choices = "cpu|cuda|cuda:N", .initial = "cpu",
     .meaning = "device; cuda: the first GPU"},
    {OPTION(INTEGER, "threads", threads), .low = 1, .high = 1024, .initial = "1",
     .meaning = "number of threads"},
    {OPTION(SWITCH, "help", help), .meaning = "print this text"},
    {OPTION(SWITCH, "version", version), .meaning = "print the version"},
    {.meaning =
         "Only for checkpoints written by PyTorch (checkpoints of train contain these settings):"},
    {OPTION(CHOICE, "model", model), .choices = MODEL_NAMES,
     .meaning = "network of the checkpoint"},
    {OPTION(TEXT, "activations", activations), .choices = "NAME,...",
     .meaning = "functions of hidden layers, as of train (default: relu)"},
    {CLASSES, .meaning = "number of classes (default: outputs of the network's last layer)"},
    {OPTION(TEXT, "mean", mean), .choices = "X,X,...",
     .meaning = "pixel mean (0 to 1) used in training: one value, or one per channel"},
    {OPTION(TEXT, "std", std), .choices = "X,X,...",
     .meaning = "pixel standard deviation, likewise"},
};

static void print_help(const option_list *list) {
    puts(
        "Classifies images: predict --checkpoint FILE IMAGES [OPTION]...\n"
        "(installed as iso-predict)\n"
        "IMAGES is an IDX file of unsigned bytes, plain or gzip-compressed, such as MNIST's\n"
        "t10k-images-idx3-ubyte.gz; colour images have 4 dimensions (N, C, H, W). Prints one line\n"
        "per image: its number from 0, its class, and the probability of that class. --top-k\n"
        "appends more pairs of class and probability, --logits the logits of all classes.\n");
    for (int i = 0; i < list->count; i++) option_print(list->item[i], NULL, stdout);
}

// Looks for --help and --version anywhere in the line, even if the rest is wrong.
static bool print_information(const option_list *list, char **argv) {
    for (int i = 1; argv[i]; i++) {
        bool help = usage_is_help(argv[i]);
        if (help) print_help(list);
        if (!help && strcmp(argv[i], "--version") != 0) continue;
        if (!help) puts("isotherm " ISO_VERSION);
        return true;
    }
    return false;
}

static iso_status take_images(const char *path, options *out) {
    if (out->data) FAIL(ISO_ERR_ARG, "give one file of images, not also %s", path);
    out->data = path;
    return ISO_OK;
}

// Takes argv[*at], and the value after it.
static iso_status parse_one(option_list *list, int argc, char **argv, int *at, options *out) {
    const char *value;
    int place;
    if (strncmp(argv[*at], "--", 2) != 0) return take_images(argv[*at], out);
    TRY(option_take(list, 1, argc, argv, at, &place, &value));
    const iso_setting *s = list->item[place];
    if (s->offset == offsetof(options, data)) return take_images(value, out);
    out->has_top_k |= s->offset == offsetof(options, top_k);
    return option_set(s, value, out);
}

static iso_status parse_options(option_list *list, int argc, char **argv, options *out) {
    for (int i = 0; i < list->count; i++)
        if (list->item[i]->key) TRY(option_set_default(list->item[i], out));
    for (int at = 1; at < argc; at++) TRY(parse_one(list, argc, argv, &at, out));
    if (out->logits && out->labels)
        FAIL(ISO_ERR_ARG, "--labels prints the accuracy instead of one line per image, so --logits "
                          "has no effect: give one of the two");
    if (!out->checkpoint && !out->data)
        FAIL(ISO_ERR_ARG, "no checkpoint and no images were given: give --checkpoint FILE and an "
                          "IDX file of images, see --help");
    if (!out->checkpoint)
        FAIL(ISO_ERR_ARG, "no checkpoint was given: give --checkpoint FILE, see --help");
    if (!out->data) FAIL(ISO_ERR_ARG, "no images were given: give an IDX file of them, see --help");
    return ISO_OK;
}

// ---- What the checkpoint says -------------------------------------------------------------------

// The option or, without it, the checkpoint's metadata of that name; NULL: neither.
static const char *find_fact(const prediction *p, const char *option, const char *given) {
    char key[40];
    snprintf(key, sizeof(key), "isotherm.%s", option + 2);
    return given ? given : iso_state_dict_metadata(&p->dict, key);
}

// Adds an option to "--a, --b and --c"; *count are there already.
static void list_missing(char *list, size_t room, int *count, bool last, const char *option) {
    size_t used = strlen(list);
    snprintf(list + used, room - used, "%s%s", *count == 0 ? "" : last ? " and " : ", ", option);
    ++*count;
}

// Asks for all missing options at once. The number of classes is not needed: the tensors show it.
static iso_status check_facts(const prediction *p) {
    const options *given = &p->given;
    const struct {
        const char *option, *given;
    } needed[] = {{"--model", given->model}, {"--mean", given->mean}, {"--std", given->std}};
    char list[64] = "";
    int count = 0, last = -1;
    if (!given->mean != !given->std)
        FAIL(ISO_ERR_ARG, "--mean and --std belong together: give both or neither");
    for (int i = 0; i < 3; i++)
        if (!find_fact(p, needed[i].option, needed[i].given)) last = i;
    for (int i = 0; i <= last; i++)
        if (!find_fact(p, needed[i].option, needed[i].given))
            list_missing(list, sizeof(list), &count, i == last, needed[i].option);
    if (count > 0)
        FAIL(ISO_ERR_ARG, "%s has no metadata of train: give %s", given->checkpoint, list);
    return ISO_OK;
}

// Skips entries that an option replaces: they may have any value.
static iso_status check_metadata(const prediction *p) {
    const options *given = &p->given;
    const struct {
        const char *key;
        bool replaced;
    } entries[] = {{"isotherm.model", given->model},
                   {"isotherm.classes", given->classes > 0},
                   {"isotherm.mean", given->mean},
                   {"isotherm.std", given->std},
                   {"isotherm.dtype", false},
                   {"isotherm.shape", false},
                   {"isotherm.activations", given->model || given->activations}};
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
        if (!entries[i].replaced)
            TRY(predict_metadata_check(&p->dict, given->checkpoint, entries[i].key));
    return ISO_OK;
}

static iso_status find_channels(const prediction *p, const char *option, const char *given,
                                double *out) {
    const char *text = find_fact(p, option, given);
    char label[512];
    if (given) return predict_channels_parse(option, text, p->info.channels, out);
    snprintf(label, sizeof(label),
             "%s has a damaged metadata entry isotherm.%s:", p->given.checkpoint, option + 2);
    return predict_channels_parse(label, text, p->info.channels, out);
}

static iso_status find_normalisation(prediction *p) {
    int64_t channels = p->info.channels;
    p->normalisation = calloc(2 * (size_t)channels, sizeof(double));
    if (!p->normalisation) FAIL(ISO_ERR_NOMEM, "out of memory for the normalisation");
    TRY(find_channels(p, "--mean", p->given.mean, p->normalisation));
    return find_channels(p, "--std", p->given.std, p->normalisation + channels);
}

static iso_status check_shape(const prediction *p) {
    const char *shape = iso_state_dict_metadata(&p->dict, "isotherm.shape");
    long long channels = 0, height = 0, width = 0;
    if (!shape) return ISO_OK;
    sscanf(shape, "%lld %lld %lld", &channels, &height, &width);
    if (channels == p->info.channels && height == p->info.height && width == p->info.width)
        return ISO_OK;
    FAIL(ISO_ERR_SHAPE,
         "the images of %s are %lld x %lld x %lld, but %s was trained on %lld x %lld x %lld",
         p->given.data, (long long)p->info.channels, (long long)p->info.height,
         (long long)p->info.width, p->given.checkpoint, channels, height, width);
}

// ---- Setting up ---------------------------------------------------------------------------------

// Images alone: every label is 0 and means nothing.
static iso_status make_dataset(const char *path, const iso_idx *idx, iso_dataset **out) {
    const int64_t *s = idx->shape;
    if (idx->type != ISO_IDX_U8)
        FAIL(
            ISO_ERR_FORMAT,
            "%s has elements of type 0x%02x, as byte 2 of its header says, but images are unsigned "
            "bytes (0x08): convert them to 0 .. 255",
            path, (unsigned)idx->type);
    if (idx->ndim < 2 || idx->ndim > 4)
        FAIL(ISO_ERR_FORMAT,
             "%s has %d dimension%s, but images have 2 (N, features), 3 (N, H, W) or 4 (N, C, H, "
             "W): give a file of images",
             path, idx->ndim, idx->ndim == 1 ? "" : "s");
    int32_t *labels = calloc((size_t)s[0] + 1, sizeof(*labels));
    if (!labels) FAIL(ISO_ERR_NOMEM, "out of memory for the images of %s", path);
    iso_status status =
        iso_dataset_create(idx->data, labels, s[0], idx->ndim == 4 ? s[1] : 1,
                           idx->ndim == 2 ? 1 : s[idx->ndim - 2], s[idx->ndim - 1], 1, out);
    free(labels);
    return status;
}

static iso_status open_images(prediction *p) {
    if (p->given.labels) {
        TRY(iso_dataset_read_idx(p->given.data, p->given.labels, &p->images));
    } else {
        iso_idx idx;
        TRY(iso_idx_read(p->given.data, &idx));
        iso_status status = make_dataset(p->given.data, &idx, &p->images);
        iso_idx_free(&idx);
        TRY(status);
    }
    iso_dataset_get_info(p->images, &p->info);
    return check_shape(p);
}

// Checks the parameters themselves, because a relu can hide a NaN from the output.
static iso_status check_parameters(const prediction *p) {
    char name[128];
    TRY(model_find_not_finite(p->model, name, sizeof(name)));
    if (name[0])
        FAIL(ISO_ERR_STATE, "%s: %s is not finite, its training diverged: give another file",
             p->given.checkpoint, name);
    return ISO_OK;
}

// The number of outputs that the network's last layer, whatever its name, has in the checkpoint.
static iso_status count_outputs(const prediction *p, const char *model, int *out) {
    iso_dataset_info info = p->info;
    iso_module *sample = NULL;
    iso_parameter_list list;
    info.classes = 1;
    TRY(model_create(model, p->device, &info, false, &(iso_rng){.seed = 1}, &sample));
    iso_status status = iso_module_parameters(sample, &list);
    iso_tensor *bias = NULL;
    char name[128] = "";
    if (status >= 0) {
        snprintf(name, sizeof(name), "%s", list.name[list.count - 1]);
        bias = iso_state_dict_find(&p->dict, name);
        iso_parameter_list_destroy(&list);
    }
    iso_module_destroy(&sample);
    TRY(status);
    if (!bias || iso_tensor_ndim(bias) != 1)
        FAIL(ISO_ERR_MISMATCH, "%s is not a checkpoint of this %s: it has no vector %s",
             p->given.checkpoint, model, name);
    *out = (int)iso_tensor_count(bias);
    return ISO_OK;
}

static iso_status find_classes(prediction *p, const char *model) {
    const char *told = iso_state_dict_metadata(&p->dict, "isotherm.classes");
    int highest = p->info.classes;
    if (p->given.classes > 0)
        p->info.classes = (int)p->given.classes;
    else
        TRY(count_outputs(p, model, &p->info.classes));
    if (!p->given.model && p->given.classes < 0 && told && strtod(told, NULL) != p->info.classes)
        return predict_metadata_refuse(p->given.checkpoint, "isotherm.classes", told,
                                       "the number of outputs of its network");
    if (p->given.labels && highest > p->info.classes)
        FAIL(ISO_ERR_ARG, "%s has label %d, but the network knows %d class%s", p->given.labels,
             highest - 1, p->info.classes, p->info.classes == 1 ? "" : "es");
    if (p->given.top_k > p->info.classes)
        FAIL(ISO_ERR_ARG, "--top-k %d: the network has only %d class%s", (int)p->given.top_k,
             p->info.classes, p->info.classes == 1 ? "" : "es");
    return ISO_OK;
}

static iso_status load_parameters(prediction *p, const char *model) {
    iso_status status = iso_module_load_state_dict(p->model, &p->dict, true, NULL);
    if (status >= 0 && !model_choices_fit(p->model))
        FAIL(ISO_ERR_FORMAT, "%s is damaged: a layer's choice is none of its activations",
             p->given.checkpoint);
    if (status != ISO_ERR_MISMATCH) return status;
    char why[sizeof(iso_last_error()->message)];
    snprintf(why, sizeof(why), "%s", iso_last_error()->message);
    FAIL(status, "%s is not a checkpoint of this %s: %s", p->given.checkpoint, model, why);
}

// NULL: relu. The metadata's activations apply only to the metadata's model.
static const char *activations_of(const prediction *p) {
    if (p->given.activations) return p->given.activations;
    return p->given.model ? NULL : iso_state_dict_metadata(&p->dict, "isotherm.activations");
}

static iso_status build_model(prediction *p) {
    const char *name = find_fact(p, "--model", p->given.model);
    iso_rng rng = {.seed = 1};
    if (!model_fits(name, &p->info))
        FAIL(ISO_ERR_SHAPE, "the images of %s are %lld x %lld, too small for --model %s",
             p->given.data, (long long)p->info.height, (long long)p->info.width, name);
    TRY(find_classes(p, name));
    model_options wanted = {.name = name, .activations = activations_of(p)};
    TRY(model_create_with(&wanted, p->device, &p->info, &rng, &p->model));
    TRY(predict_metadata_convert(&p->dict, &p->model));
    TRY(load_parameters(p, name));
    TRY(check_parameters(p));
    return iso_module_train(p->model, false);
}

static iso_status open_loader(prediction *p) {
    iso_sampler_config order = {.batch = BATCH, .ranks = 1, .end = ISO_SAMPLER_SHARE};
    iso_loader_config config = ISO_LOADER_DEFAULT;
    config.mean = p->normalisation;
    config.std = p->normalisation + p->info.channels;
    config.dtype = p->model->dtype;
    return iso_loader_create_take(p->device, iso_dataset_retain(p->images), &order, &config,
                                  &p->loader);
}

static iso_status set_up(prediction *p) {
    TRY(iso_device_create(p->given.device, &p->device));
    TRY(iso_device_set_threads(p->device, (int)p->given.threads));
    TRY(iso_state_dict_read(p->given.checkpoint, p->device, &p->dict));
    TRY(check_metadata(p));
    TRY(check_facts(p));
    TRY(open_images(p));
    TRY(find_normalisation(p));
    TRY(build_model(p));
    return open_loader(p);
}

// ---- Predicting ---------------------------------------------------------------------------------

static double read_logit(const void *row, bool is_f64, int k) {
    return is_f64 ? ((const double *)row)[k] : (double)((const float *)row)[k];
}

// Writes to p->order the top_k classes with the largest logits; of equal ones, the lowest.
static void rank_classes(prediction *p, const void *row, bool is_f64) {
    int found = 0;
    for (int k = 0; k < p->info.classes; k++) {
        int at = found;
        while (at > 0 && read_logit(row, is_f64, k) > read_logit(row, is_f64, p->order[at - 1]))
            at--;
        if (at == p->given.top_k) continue;
        if (found < p->given.top_k) found++;
        for (int i = found - 1; i > at; i--) p->order[i] = p->order[i - 1];
        p->order[at] = k;
    }
}

// The denominator of the softmax, relative to the largest logit.
static double sum_exponentials(const prediction *p, const void *row, bool is_f64) {
    double sum = 0, largest = read_logit(row, is_f64, p->order[0]);
    for (int k = 0; k < p->info.classes; k++) sum += exp(read_logit(row, is_f64, k) - largest);
    return sum;
}

static void count_right(prediction *p, int label) {
    p->correct += p->order[0] == label;
    for (int i = 0; i < p->given.top_k; i++) p->among_top += p->order[i] == label;
}

static void print_image(const prediction *p, int64_t index, const void *row, bool is_f64,
                        double sum) {
    double largest = read_logit(row, is_f64, p->order[0]);
    printf("%lld", (long long)index);
    for (int i = 0; i < p->given.top_k; i++)
        printf(" %d %.4f", p->order[i], exp(read_logit(row, is_f64, p->order[i]) - largest) / sum);
    for (int k = 0; p->given.logits && k < p->info.classes; k++)
        printf(is_f64 ? " %.17g" : " %.9g",
               read_logit(row, is_f64, k)); // reads back as the same number
    putchar('\n');
}

static iso_status predict_batch(prediction *p, const iso_batch *batch) {
    iso_tensor *output;
    void *logits;
    int classes = p->info.classes;
    TRY(iso_module_forward(p->model, batch->images, &output));
    bool is_f64 = iso_tensor_dtype(output) == ISO_F64;
    TRY(iso_tensor_map(output, ISO_READ, &logits));
    for (int64_t i = 0; i < batch->n; i++) {
        int64_t index = batch->index * BATCH + i;
        const char *row = (const char *)logits + i * classes * (is_f64 ? 8 : 4);
        rank_classes(p, row, is_f64);
        double sum = sum_exponentials(p, row, is_f64);
        if (!isfinite(sum))
            FAIL(ISO_ERR_STATE,
                 "%s yields NaN or infinity for image %lld: its parameters are not finite",
                 p->given.checkpoint, (long long)index);
        count_right(p, batch->labels[i]);
        if (!p->given.labels) print_image(p, index, row, is_f64, sum);
    }
    return iso_tensor_unmap(output);
}

// Testing many images takes a while. Only a terminal shows the progress.
static iso_status predict_all(prediction *p) {
    iso_progress_bar *bar;
    iso_batch batch;
    iso_status status;
    bool visible = p->given.labels && isatty(STDERR_FILENO);
    TRY(iso_loader_start(p->loader, 0, 0));
    TRY(iso_progress_bar_create(visible ? stderr : NULL, "test", iso_loader_batches(p->loader),
                                "batches", &bar));
    while ((status = iso_loader_next(p->loader, &batch)) == ISO_OK) {
        status = predict_batch(p, &batch);
        if (status < 0) break;
        iso_progress_bar_update(bar, batch.index + 1, NAN);
    }
    iso_progress_bar_clear(&bar);
    return status < 0 ? status : ISO_OK;
}

static void print_accuracy(const prediction *p) {
    double count = (double)p->info.count;
    printf("accuracy %.2f %% (%lld of %lld)", 100 * (double)p->correct / count,
           (long long)p->correct, (long long)p->info.count);
    if (p->given.has_top_k)
        printf(", top-%d accuracy %.2f %% (%lld of %lld)", (int)p->given.top_k,
               100 * (double)p->among_top / count, (long long)p->among_top,
               (long long)p->info.count);
    putchar('\n');
}

static iso_status run_prediction(prediction *p) {
    TRY(set_up(p));
    TRY(predict_all(p));
    if (p->given.labels) print_accuracy(p);
    return ISO_OK;
}

static iso_status check_output(void) {
    const char *problem = usage_output_problem();
    if (problem) FAIL(ISO_ERR_IO, "cannot write to standard output: %s", problem);
    return ISO_OK;
}

static void tear_down(prediction *p) {
    iso_loader_destroy(&p->loader);
    iso_module_destroy(&p->model);
    iso_dataset_destroy(&p->images);
    iso_state_dict_destroy(&p->dict);
    iso_device_destroy(&p->device);
    free(p->normalisation);
}

int main(int argc, char **argv) {
    prediction p = {0};
    option_list list = {.count = 0};
    option_list_add(&list, table, (int)(sizeof(table) / sizeof(table[0])));
    bool informed = print_information(&list, argv);
    iso_status status = informed ? ISO_OK : parse_options(&list, argc, argv, &p.given);
    if (status >= 0 && !informed) status = run_prediction(&p);
    if (status >= 0) status = check_output();
    if (status < 0) fprintf(stderr, "predict: %s\n", iso_last_error()->message);
    tear_down(&p);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
