// Classifies images of an IDX file with a checkpoint: predict --checkpoint FILE IMAGES. Needs no
// MPI launcher.
#include "models.h"

#include <errno.h>
#include <isotherm.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 100 };

// What is not given stays NULL, and is what the checkpoint says where it can say it.
typedef struct options {
    const char *checkpoint, *data, *labels, *model, *classes, *mean, *std, *device, *threads;
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
    int64_t correct;
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
    {"--checkpoint", "FILE", "safetensors file that train or PyTorch has written",
     offsetof(options, checkpoint)},
    {"--labels", "FILE", "IDX file of their labels: prints the accuracy instead",
     offsetof(options, labels)},
    {"--data", "IMAGES", "another way to give IMAGES", offsetof(options, data)},
    {"--device", "cpu|cuda|cuda:N", "where kernels run; cuda: on the first GPU (default cpu)",
     offsetof(options, device)},
    {"--threads", "N", "threads of the kernels (default 1)", offsetof(options, threads)},
    {"--model", MODEL_NAMES, "network that the checkpoint is of", offsetof(options, model)},
    {"--classes", "N", "classes that it tells apart", offsetof(options, classes)},
    {"--mean", "X,X,...",
     "mean of pixels in 0 .. 1 that it was trained with, of all channels or each",
     offsetof(options, mean)},
    {"--std", "X,X,...", "deviation of pixels, likewise", offsetof(options, std)},
};
#define TOLD 5 // the first one that a checkpoint may tell
enum { OPTION_COUNT = sizeof(table) / sizeof(table[0]) };

static void print_help(void) {
    puts("Classifies images: predict --checkpoint FILE IMAGES [OPTION]...\n"
         "IMAGES is an IDX file of bytes, gzipped or not, as MNIST's t10k-images-idx3-ubyte.gz.\n"
         "Prints a line for each image: its number from 0, its class, and how probable that is.\n");
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (i == TOLD)
            puts("  --help                    prints this\n"
                 "  --version                 prints the version\n\n"
                 "What a checkpoint of train tells itself, and one of PyTorch does not:");
        int used = printf("  %s %s", table[i].name, table[i].value);
        if (used > 26) used = printf("\n") - 1;
        printf("%*s%s\n", 28 - used, "", table[i].meaning);
    }
}

// Anywhere in the line, whatever else is wrong with it.
static bool inform(char **argv) {
    for (int i = 1; argv[i]; i++) {
        bool help = strcmp(argv[i], "--help") == 0;
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
    if (i < 0) FAIL(ISO_ERR_ARG, "unknown option %.*s: see --help", (int)length, argument);
    if (!value && argv[*at + 1]) value = argv[++*at];
    if (!value || !*value) FAIL(ISO_ERR_ARG, "%s needs a value: %s", table[i].name, table[i].value);
    *(const char **)((char *)out + table[i].offset) = value;
    return ISO_OK;
}

static iso_status parse(char **argv, options *out) {
    for (int at = 1; argv[at]; at++) TRY(parse_one(argv, &at, out));
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

// The option or, without it, the checkpoint's metadata of that name.
static iso_status fact(const prediction *p, const char *option, const char *given,
                       const char **out) {
    char key[40];
    snprintf(key, sizeof(key), "isotherm.%s", option + 2);
    *out = given ? given : iso_state_dict_metadata(&p->dict, key);
    if (!*out)
        FAIL(ISO_ERR_ARG, "%s does not tell its %s, as checkpoints of train do: give %s",
             p->given.checkpoint, option + 2, option);
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
    const char *mean, *std;
    int64_t channels = p->info.channels;
    if (!p->given.mean != !p->given.std)
        FAIL(ISO_ERR_ARG, "--mean and --std belong together: give both or neither");
    p->normalisation = calloc(2 * (size_t)channels, sizeof(double));
    if (!p->normalisation)
        FAIL(ISO_ERR_NOMEM, "out of memory for %lld channels", (long long)channels);
    TRY(fact(p, "--mean", p->given.mean, &mean));
    TRY(fact(p, "--std", p->given.std, &std));
    TRY(parse_channels("--mean", mean, channels, p->normalisation));
    return parse_channels("--std", std, channels, p->normalisation + channels);
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

static iso_status build_model(prediction *p) {
    const char *name, *classes, *dtype = iso_state_dict_metadata(&p->dict, "isotherm.dtype");
    iso_dtype type = ISO_F32;
    iso_rng rng = {.seed = 1};
    int highest = p->info.classes;
    TRY(fact(p, "--model", p->given.model, &name));
    TRY(fact(p, "--classes", p->given.classes, &classes));
    TRY(parse_count("--classes", classes, 1000000, &p->info.classes));
    if (dtype) TRY(iso_dtype_parse(dtype, &type));
    if (p->given.labels && highest > p->info.classes)
        FAIL(ISO_ERR_ARG, "%s has label %d, but the network knows %d classes", p->given.labels,
             highest - 1, p->info.classes);
    if (!model_fits(name, &p->info))
        FAIL(ISO_ERR_SHAPE, "the images of %s are %lld x %lld, too small for --model %s",
             p->given.data, (long long)p->info.height, (long long)p->info.width, name);
    TRY(model_create(name, p->device, &p->info, false, &rng, &p->model));
    TRY(iso_module_to(p->model, type));
    iso_status status = iso_module_load_state_dict(p->model, &p->dict, true, NULL);
    if (status == ISO_ERR_MISMATCH) {
        char why[sizeof(iso_last_error()->message)];
        snprintf(why, sizeof(why), "%s", iso_last_error()->message);
        FAIL(status, "%s is no checkpoint of this %s: %s", p->given.checkpoint, name, why);
    }
    TRY(status);
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
    if (p->given.threads) TRY(parse_count("--threads", p->given.threads, 1024, &threads));
    TRY(iso_device_create(p->given.device ? p->given.device : "cpu", &p->device));
    TRY(iso_device_set_threads(p->device, threads));
    TRY(iso_state_dict_read(p->given.checkpoint, p->device, &p->dict));
    TRY(open_images(p));
    TRY(find_normalisation(p));
    TRY(build_model(p));
    return open_loader(p);
}

// ---- Predicting ---------------------------------------------------------------------------------

static double logit(const void *row, bool wide, int k) {
    return wide ? ((const double *)row)[k] : (double)((const float *)row)[k];
}

// The class of the largest logit and its softmax.
static int classify(const void *row, bool wide, int classes, double *probability) {
    int best = 0;
    double sum = 0;
    for (int k = 1; k < classes; k++)
        if (logit(row, wide, k) > logit(row, wide, best)) best = k;
    for (int k = 0; k < classes; k++) sum += exp(logit(row, wide, k) - logit(row, wide, best));
    *probability = 1 / sum;
    return best;
}

static iso_status predict_batch(prediction *p, const iso_batch *batch) {
    iso_tensor *output;
    void *logits;
    int classes = p->info.classes;
    TRY(iso_module_forward(p->model, batch->images, &output));
    bool wide = iso_tensor_dtype(output) == ISO_F64;
    TRY(iso_tensor_map(output, ISO_READ, &logits));
    for (int64_t i = 0; i < batch->n; i++) {
        double probability;
        const char *row = (const char *)logits + i * classes * (wide ? 8 : 4);
        int best = classify(row, wide, classes, &probability);
        if (!isfinite(probability))
            FAIL(ISO_ERR_STATE, "%s gives no numbers for image %lld: its parameters are not finite",
                 p->given.checkpoint, (long long)(batch->index * BATCH + i));
        p->correct += best == batch->labels[i];
        if (!p->given.labels)
            printf("%lld %d %.4f\n", (long long)(batch->index * BATCH + i), best, probability);
    }
    return iso_tensor_unmap(output);
}

static iso_status predict(prediction *p) {
    iso_batch batch;
    iso_status more;
    TRY(set_up(p));
    TRY(iso_loader_start(p->loader, 0, 0));
    while ((more = iso_loader_next(p->loader, &batch)) == ISO_OK) TRY(predict_batch(p, &batch));
    TRY(more);
    if (p->given.labels)
        printf("accuracy %.2f %% (%lld of %lld)\n",
               100 * (double)p->correct / (double)p->info.count, (long long)p->correct,
               (long long)p->info.count);
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
