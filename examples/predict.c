// Classifies images of an IDX file with a checkpoint: predict --checkpoint FILE IMAGES. Needs no
// MPI launcher.
#include "models.h"
#include "usage.h"

#include <errno.h>
#include <isotherm.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 100, LARGEST_TOP = 1000 };

// What is not given stays NULL, and is what the checkpoint says where it can say it.
typedef struct options {
    const char *checkpoint, *data, *labels, *model, *classes, *mean, *std, *device, *threads;
    const char *top_k, *logits;
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
    int top_k;                  // classes of a line
    int64_t correct, among_top; // images whose label is the first class, or one of top_k
    int order[LARGEST_TOP];     // of an image: its classes by falling logit
} prediction;

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        iso_status try_status_ = (expr);                                                           \
        if (try_status_ < 0) return try_status_;                                                   \
    } while (0)
#define FAIL(code, ...) return iso_error_set((code), __VA_ARGS__)

// ---- Options ------------------------------------------------------------------------------------

static const struct {
    const char *name, *value, *meaning;
    size_t offset;
} table[] = {
    {"--checkpoint", "FILE", "safetensors file written by train or PyTorch",
     offsetof(options, checkpoint)},
    {"--labels", "FILE", "IDX file of the labels: print the accuracy instead",
     offsetof(options, labels)},
    {"--top-k", "N", "print the N most probable classes of each image (default 1)",
     offsetof(options, top_k)},
    {"--logits", "", "also print the logits of all classes", offsetof(options, logits)},
    {"--data", "IMAGES", "another way to give IMAGES", offsetof(options, data)},
    {"--device", "cpu|cuda|cuda:N", "device; cuda: the first GPU (default cpu)",
     offsetof(options, device)},
    {"--threads", "N", "number of threads (default 1)", offsetof(options, threads)},
    {"--model", MODEL_NAMES, "network of the checkpoint", offsetof(options, model)},
    {"--classes", "N", "number of classes (default: from its last layer)",
     offsetof(options, classes)},
    {"--mean", "X,X,...", "pixel mean in 0 .. 1 it was trained with, for all channels or each",
     offsetof(options, mean)},
    {"--std", "X,X,...", "pixel standard deviation, likewise", offsetof(options, std)},
};
#define TOLD 7 // the first one that a checkpoint may tell
enum { OPTION_COUNT = sizeof(table) / sizeof(table[0]) };

static void print_help(void) {
    puts(
        "Classifies images: predict --checkpoint FILE IMAGES [OPTION]...\n"
        "IMAGES is an IDX file of unsigned bytes, plain or gzip-compressed, such as MNIST's\n"
        "t10k-images-idx3-ubyte.gz; colour images have 4 dimensions (N, C, H, W). Prints one line\n"
        "per image: its number from 0, its class, and the probability of that class. --top-k\n"
        "appends more pairs of class and probability, --logits the logits of all classes.\n");
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (i == TOLD)
            puts("  --help                    print this text\n"
                 "  --version                 print the version\n\n"
                 "Needed for a checkpoint of PyTorch only; one of train has it:");
        int used = printf("  %s%s%s", table[i].name, *table[i].value ? " " : "", table[i].value);
        if (used > 26) used = printf("\n") - 1;
        printf("%*s%s\n", 28 - used, "", table[i].meaning);
    }
}

// Anywhere in the line, whatever else is wrong with it.
static bool inform(char **argv) {
    for (int i = 1; argv[i]; i++) {
        bool help = usage_is_help(argv[i]);
        if (help) print_help();
        if (!help && strcmp(argv[i], "--version") != 0) continue;
        if (!help) puts("isotherm " ISO_VERSION);
        return true;
    }
    return false;
}

static int find_option(const char *argument, size_t length) {
    for (int i = 0; i < OPTION_COUNT; i++)
        if (strlen(table[i].name) == length && strncmp(table[i].name, argument, length) == 0)
            return i;
    return -1;
}

static iso_status refuse_unknown(const char *argument, int length) {
    const char *names[OPTION_COUNT];
    for (int i = 0; i < OPTION_COUNT; i++) names[i] = table[i].name;
    const char *nearest = usage_nearest(argument, length, names, OPTION_COUNT);
    if (!nearest) FAIL(ISO_ERR_ARG, "unknown option %.*s: see --help", length, argument);
    FAIL(ISO_ERR_ARG, "unknown option %.*s: did you mean %s? See --help", length, argument,
         nearest);
}

// Takes argv[*at], and the value after it.
static iso_status parse_one(char **argv, int *at, options *out) {
    const char *argument = argv[*at], *value = strchr(argument, '=');
    if (strncmp(argument, "--", 2) != 0) {
        if (out->data) FAIL(ISO_ERR_ARG, "one file of images, not also %s", argument);
        out->data = argument;
        return ISO_OK;
    }
    size_t length = value ? (size_t)(value++ - argument) : strlen(argument);
    int i = find_option(argument, length);
    if (i < 0) return refuse_unknown(argument, (int)length);
    bool is_switch = !*table[i].value;
    if (is_switch && value) FAIL(ISO_ERR_ARG, "%s takes no value", table[i].name);
    if (is_switch) value = table[i].name;
    if (!value && argv[*at + 1]) value = argv[++*at];
    if (!value || !*value) FAIL(ISO_ERR_ARG, "%s needs a value: %s", table[i].name, table[i].value);
    const char **taken = (const char **)((char *)out + table[i].offset);
    if (*taken && taken == &out->data) FAIL(ISO_ERR_ARG, "one file of images, not also %s", value);
    if (*taken) FAIL(ISO_ERR_ARG, "%s is given twice: give it once", table[i].name);
    *taken = value;
    return ISO_OK;
}

static iso_status parse(char **argv, options *out) {
    for (int at = 1; argv[at]; at++) TRY(parse_one(argv, &at, out));
    if (out->logits && out->labels)
        FAIL(ISO_ERR_ARG, "--logits adds to the lines of images, and --labels prints the accuracy "
                          "instead of them: give one of the two");
    if (!out->checkpoint && !out->data)
        FAIL(ISO_ERR_ARG, "no checkpoint and no images were given: give --checkpoint FILE and an "
                          "IDX file of images, see --help");
    if (!out->checkpoint)
        FAIL(ISO_ERR_ARG, "no checkpoint was given: give --checkpoint FILE, see --help");
    if (!out->data) FAIL(ISO_ERR_ARG, "no images were given: give an IDX file of them, see --help");
    return ISO_OK;
}

static iso_status parse_count(const char *option, const char *text, int most, int *out) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 1 || value > most)
        FAIL(ISO_ERR_ARG, "%s %s: give a whole number from 1 to %d", option, text, most);
    *out = (int)value;
    return ISO_OK;
}

// ---- What the checkpoint says -------------------------------------------------------------------

// The option or, without it, the checkpoint's metadata of that name; NULL: neither.
static const char *fact(const prediction *p, const char *option, const char *given) {
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

// All that is missing is asked for at once. How many classes there are the tensors show.
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
        if (!fact(p, needed[i].option, needed[i].given)) last = i;
    for (int i = 0; i <= last; i++)
        if (!fact(p, needed[i].option, needed[i].given))
            list_missing(list, sizeof(list), &count, i == last, needed[i].option);
    if (count > 0)
        FAIL(ISO_ERR_ARG, "%s lacks what checkpoints of train tell: give %s", given->checkpoint,
             list);
    return ISO_OK;
}

// One number for each channel, or one for all.
static iso_status parse_channels(const char *option, const char *text, int64_t channels,
                                 double *out) {
    int64_t count = 0;
    for (const char *at = text; *at; count++) {
        char *end;
        double value = strtod(at, &end);
        if (end == at || (*end && *end != ',' && *end != ' ') || !isfinite(value))
            FAIL(ISO_ERR_ARG, "%s %s: give numbers with commas between them", option, text);
        if (count < channels) out[count] = value;
        at = *end ? end + 1 : end;
    }
    if (count != 1 && count != channels)
        FAIL(ISO_ERR_ARG, "%s %s: these are %lld numbers for images of %lld channel%s", option,
             text, (long long)count, (long long)channels, channels == 1 ? "" : "s");
    for (int64_t c = count; c < channels; c++) out[c] = out[0];
    return ISO_OK;
}

static iso_status find_normalisation(prediction *p) {
    int64_t channels = p->info.channels;
    p->normalisation = calloc(2 * (size_t)channels, sizeof(double));
    if (!p->normalisation)
        FAIL(ISO_ERR_NOMEM, "out of memory for %lld channels", (long long)channels);
    TRY(parse_channels("--mean", fact(p, "--mean", p->given.mean), channels, p->normalisation));
    return parse_channels("--std", fact(p, "--std", p->given.std), channels,
                          p->normalisation + channels);
}

static iso_status check_shape(const prediction *p) {
    const char *shape = iso_state_dict_metadata(&p->dict, "isotherm.shape");
    long long channels, height, width;
    if (!shape || sscanf(shape, "%lld %lld %lld", &channels, &height, &width) != 3) return ISO_OK;
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
             path, idx->ndim, idx->ndim > 1 ? "s" : "");
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

// A relu can hide from the output that a number is none.
static iso_status check_parameters(const prediction *p) {
    char name[128];
    TRY(model_find_not_finite(p->model, name, sizeof(name)));
    if (name[0])
        FAIL(ISO_ERR_STATE, "%s: parameter %s is not finite: its training diverged, give another",
             p->given.checkpoint, name);
    return ISO_OK;
}

// As many as the last layer of the network, whatever it is called, has in the checkpoint.
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
        FAIL(ISO_ERR_MISMATCH, "%s is no checkpoint of this %s: it has no vector %s",
             p->given.checkpoint, model, name);
    *out = (int)iso_tensor_count(bias);
    return ISO_OK;
}

static iso_status find_classes(prediction *p, const char *model) {
    const char *text = fact(p, "--classes", p->given.classes);
    int highest = p->info.classes, top_k = p->top_k;
    if (text)
        TRY(parse_count("--classes", text, 1000000, &p->info.classes));
    else
        TRY(count_outputs(p, model, &p->info.classes));
    if (p->given.labels && highest > p->info.classes)
        FAIL(ISO_ERR_ARG, "%s has label %d, but the network knows %d classes", p->given.labels,
             highest - 1, p->info.classes);
    if (top_k > p->info.classes)
        FAIL(ISO_ERR_ARG, "--top-k %d: the network has only %d classes", top_k, p->info.classes);
    return ISO_OK;
}

static iso_status load_parameters(prediction *p, const char *model) {
    iso_status status = iso_module_load_state_dict(p->model, &p->dict, true, NULL);
    if (status != ISO_ERR_MISMATCH) return status;
    char why[sizeof(iso_last_error()->message)];
    snprintf(why, sizeof(why), "%s", iso_last_error()->message);
    FAIL(status, "%s is no checkpoint of this %s: %s", p->given.checkpoint, model, why);
}

static iso_status build_model(prediction *p) {
    const char *name = fact(p, "--model", p->given.model);
    const char *dtype = iso_state_dict_metadata(&p->dict, "isotherm.dtype");
    iso_dtype type = ISO_F32;
    iso_rng rng = {.seed = 1};
    if (dtype) TRY(iso_dtype_parse(dtype, &type));
    if (!model_fits(name, &p->info))
        FAIL(ISO_ERR_SHAPE, "the images of %s are %lld x %lld, too small for --model %s",
             p->given.data, (long long)p->info.height, (long long)p->info.width, name);
    TRY(find_classes(p, name));
    TRY(model_create(name, p->device, &p->info, false, &rng, &p->model));
    TRY(iso_module_to(p->model, type));
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
    int threads = 1;
    p->top_k = 1;
    if (p->given.top_k) TRY(parse_count("--top-k", p->given.top_k, LARGEST_TOP, &p->top_k));
    if (p->given.threads) TRY(parse_count("--threads", p->given.threads, 1024, &threads));
    TRY(iso_device_create(p->given.device ? p->given.device : "cpu", &p->device));
    TRY(iso_device_set_threads(p->device, threads));
    TRY(iso_state_dict_read(p->given.checkpoint, p->device, &p->dict));
    TRY(check_facts(p));
    TRY(open_images(p));
    TRY(find_normalisation(p));
    TRY(build_model(p));
    return open_loader(p);
}

// ---- Predicting ---------------------------------------------------------------------------------

static double logit(const void *row, bool wide, int k) {
    return wide ? ((const double *)row)[k] : (double)((const float *)row)[k];
}

// Into p->order the top_k classes of the largest logits, of equal ones the lowest.
static void rank_classes(prediction *p, const void *row, bool wide) {
    int found = 0;
    for (int k = 0; k < p->info.classes; k++) {
        int at = found;
        while (at > 0 && logit(row, wide, k) > logit(row, wide, p->order[at - 1])) at--;
        if (at == p->top_k) continue;
        if (found < p->top_k) found++;
        for (int i = found - 1; i > at; i--) p->order[i] = p->order[i - 1];
        p->order[at] = k;
    }
}

// Of the softmax, that each probability is a part of: relative to the largest.
static double sum_exponentials(const prediction *p, const void *row, bool wide) {
    double sum = 0, largest = logit(row, wide, p->order[0]);
    for (int k = 0; k < p->info.classes; k++) sum += exp(logit(row, wide, k) - largest);
    return sum;
}

static void count_right(prediction *p, int label) {
    p->correct += p->order[0] == label;
    for (int i = 0; i < p->top_k; i++) p->among_top += p->order[i] == label;
}

static void print_image(const prediction *p, int64_t index, const void *row, bool wide,
                        double sum) {
    double largest = logit(row, wide, p->order[0]);
    printf("%lld", (long long)index);
    for (int i = 0; i < p->top_k; i++)
        printf(" %d %.4f", p->order[i], exp(logit(row, wide, p->order[i]) - largest) / sum);
    for (int k = 0; p->given.logits && k < p->info.classes; k++)
        printf(wide ? " %.17g" : " %.9g", logit(row, wide, k)); // reads back as the same number
    putchar('\n');
}

static iso_status predict_batch(prediction *p, const iso_batch *batch) {
    iso_tensor *output;
    void *logits;
    int classes = p->info.classes;
    TRY(iso_module_forward(p->model, batch->images, &output));
    bool wide = iso_tensor_dtype(output) == ISO_F64;
    TRY(iso_tensor_map(output, ISO_READ, &logits));
    for (int64_t i = 0; i < batch->n; i++) {
        int64_t index = batch->index * BATCH + i;
        const char *row = (const char *)logits + i * classes * (wide ? 8 : 4);
        rank_classes(p, row, wide);
        double sum = sum_exponentials(p, row, wide);
        if (!isfinite(sum))
            FAIL(ISO_ERR_STATE, "%s gives no numbers for image %lld: its parameters are not finite",
                 p->given.checkpoint, (long long)index);
        count_right(p, batch->labels[i]);
        if (!p->given.labels) print_image(p, index, row, wide, sum);
    }
    return iso_tensor_unmap(output);
}

// Testing many images with a large network takes a while, in which only a terminal is told.
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
    if (p->given.top_k)
        printf(", top-%d accuracy %.2f %% (%lld of %lld)", p->top_k,
               100 * (double)p->among_top / count, (long long)p->among_top,
               (long long)p->info.count);
    putchar('\n');
}

static iso_status predict(prediction *p) {
    TRY(set_up(p));
    TRY(predict_all(p));
    if (p->given.labels) print_accuracy(p);
    if (fflush(stdout) != 0 || ferror(stdout))
        FAIL(ISO_ERR_IO, "cannot write the result: %s", strerror(errno));
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
    (void)argc;
    if (inform(argv)) return EXIT_SUCCESS;
    iso_status status = parse(argv, &p.given);
    if (status >= 0) status = predict(&p);
    if (status < 0) fprintf(stderr, "predict: %s\n", iso_last_error()->message);
    tear_down(&p);
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
