// Reads the command line of the train program by one table, which also makes the help text.
#include "train_options.h"

#include "train_error.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum option_kind { SWITCH, TEXT, CHOICE, INTEGER, NUMBER } option_kind;

typedef struct option {
    const char *name;
    option_kind kind;
    size_t offset; // of the field in train_options
    const char
        *value; // what the help calls the value; of a CHOICE: the values, with | between them
    const char *initial; // default value, NULL: none
    const char *meaning;
    double low, high; // of INTEGER and NUMBER
} option;

#define HELP_COLUMN 28
#define FIELD(name) offsetof(train_options, name)

static const option options[] = {
    {"--data", TEXT, FIELD(data), "DIR|digits", "digits",
     "folder of MNIST's four files, or generated digits", 0, 0},
    {"--model", CHOICE, FIELD(model), "mlp|cnn", "cnn", "network", 0, 0},
    {"--dropout", SWITCH, FIELD(dropout), NULL, NULL,
     "with the CNN's dropout layers (0.25 and 0.5)", 0, 0},
    {"--epochs", INTEGER, FIELD(epochs), "N", "3", "passes over the training set", 1, 1e6},
    {"--steps", INTEGER, FIELD(steps), "N", NULL, "updates to make, instead of --epochs", 1, 1e12},
    {"--batch", INTEGER, FIELD(batch), "N", "64", "samples of a step on each rank", 1, 1e6},
    {"--optimizer", CHOICE, FIELD(optimizer), "sgd|adam|adamw|adadelta", "adam", "update rule", 0,
     0},
    {"--lr", NUMBER, FIELD(lr), "X", NULL,
     "learning rate, one-cycle's highest (default: the optimizer's)", 1e-12, 1e6},
    {"--momentum", NUMBER, FIELD(momentum), "X", NULL, "of sgd; then one-cycle leaves it alone", 0,
     0.999999},
    {"--weight-decay", NUMBER, FIELD(weight_decay), "X", NULL, "default: the optimizer's", 0, 1e6},
    {"--schedule", CHOICE, FIELD(schedule), "constant|step|cosine|one-cycle|linear", "one-cycle",
     "of the learning rate", 0, 0},
    {"--sync", CHOICE, FIELD(sync), "blocking|lazy", "lazy", "when gradients are waited for", 0, 0},
    {"--progress", CHOICE, FIELD(progress), "auto|off|poll|thread", "auto",
     "who drives exchanges meanwhile", 0, 0},
    {"--bucket-mb", NUMBER, FIELD(bucket_mb), "X", NULL,
     "MiB that small layers are fused to, 0: never (default 0.25)", 0, 1e6},
    {"--device", CHOICE, FIELD(device), "cpu", "cpu", "where kernels run", 0, 0},
    {"--dtype", CHOICE, FIELD(dtype), "f32", "f32", "element type", 0, 0},
    {"--seed", INTEGER, FIELD(seed), "N", "1", "of initial values, order of samples, and dropout",
     0, 9e15},
    {"--threads", INTEGER, FIELD(threads), "N", "1", "of the kernels of each rank", 1, 1024},
    {"--load", TEXT, FIELD(load), "FILE", NULL, "checkpoint to take initial parameters from", 0, 0},
    {"--checkpoint", TEXT, FIELD(checkpoint), "FILE", NULL,
     "safetensors file written after each epoch", 0, 0},
    {"--log", TEXT, FIELD(log), "FILE", NULL, "JSON lines, one for each epoch and a summary", 0, 0},
    {"--trace", TEXT, FIELD(trace), "FILE", NULL,
     "Chrome trace of the first steps (ui.perfetto.dev)", 0, 0},
    {"--quiet", SWITCH, FIELD(quiet), NULL, NULL, "prints nothing but errors", 0, 0},
    {"--help", SWITCH, FIELD(help), NULL, NULL, "prints this", 0, 0},
    {"--help-env", SWITCH, FIELD(help_env), NULL, NULL,
     "prints the environment variables of the library", 0, 0},
    {"--version", SWITCH, FIELD(version), NULL, NULL, "prints the version", 0, 0},
};
#define OPTION_COUNT (sizeof(options) / sizeof(options[0]))

static bool among(const char *value, const char *choices) {
    size_t length = strlen(value);
    for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, value, length) == 0 && (at[length] == '|' || !at[length])) return true;
    return false;
}

static iso_status set_number(const option *o, const char *value, void *field) {
    char *end;
    errno = 0;
    double number = strtod(value, &end);
    bool whole = o->kind == NUMBER || (number == floor(number) && !strpbrk(value, ".eExX"));
    if (end == value || *end || !whole || !(number >= o->low && number <= o->high))
        return train_error(ISO_ERR_ARG, "%s %s: give %s from %g to %g", o->name, value,
                           o->kind == NUMBER ? "a number" : "a whole number", o->low, o->high);
    if (o->kind == INTEGER)
        *(int64_t *)field = (int64_t)number; // exact: below 2^53
    else
        *(double *)field = number;
    return ISO_OK;
}

static iso_status set(const option *o, const char *value, train_options *out) {
    void *field = (char *)out + o->offset;
    switch (o->kind) {
    case SWITCH: *(bool *)field = true; return ISO_OK;
    case INTEGER:
    case NUMBER: return set_number(o, value, field);
    case CHOICE:
        if (!among(value, o->value))
            return train_error(ISO_ERR_ARG, "%s %s is not supported: give %s", o->name, value,
                               o->value);
        break;
    case TEXT: break;
    }
    *(const char **)field = value;
    return ISO_OK;
}

static const option *find(const char *argument, size_t length) {
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (strlen(options[i].name) == length && strncmp(options[i].name, argument, length) == 0)
            return &options[i];
    return NULL;
}

// Takes argv[*i], and the value after it where it has one.
static iso_status parse_one(int argc, char **argv, int *i, train_options *out) {
    char *argument = argv[*i], *value = strchr(argument, '=');
    if (strncmp(argument, "--", 2) != 0)
        return train_error(ISO_ERR_ARG, "\"%s\" is no option: see --help", argument);
    size_t length = value ? (size_t)(value++ - argument) : strlen(argument);
    const option *o = find(argument, length);
    if (!o)
        return train_error(ISO_ERR_ARG, "unknown option %.*s: see --help", (int)length, argument);
    if (o->kind == SWITCH && value) return train_error(ISO_ERR_ARG, "%s takes no value", o->name);
    if (o->kind != SWITCH && !value && *i + 1 < argc && strncmp(argv[*i + 1], "--", 2) != 0)
        value = argv[++*i];
    if (o->kind != SWITCH && (!value || !*value))
        return train_error(ISO_ERR_ARG, "%s needs a value: %s", o->name, o->value);
    return set(o, value, out);
}

iso_status train_options_parse(int argc, char **argv, train_options *out) {
    *out = (train_options){.lr = NAN, .momentum = NAN, .weight_decay = NAN, .bucket_mb = NAN};
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (options[i].initial) TRY(set(&options[i], options[i].initial, out));
    for (int i = 1; i < argc; i++) TRY(parse_one(argc, argv, &i, out));
    if (!isnan(out->momentum) && strcmp(out->optimizer, "sgd") != 0)
        return train_error(ISO_ERR_ARG, "--momentum is of --optimizer sgd, and %s has none",
                           out->optimizer);
    if (out->dropout && strcmp(out->model, "cnn") != 0)
        return train_error(ISO_ERR_ARG, "--dropout is of --model cnn, and %s has none", out->model);
    return ISO_OK;
}

void train_options_text(const train_options *values, char *text, size_t room) {
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < OPTION_COUNT && used < room; i++) {
        const option *o = &options[i];
        const void *field = (const char *)values + o->offset;
        char number[32];
        const char *value = number;
        if (o->kind == SWITCH)
            value = *(const bool *)field ? "given" : "not given";
        else if (o->kind == INTEGER)
            snprintf(number, sizeof(number), "%lld", (long long)*(const int64_t *)field);
        else if (o->kind == NUMBER && isnan(*(const double *)field))
            value = "not given";
        else if (o->kind == NUMBER)
            snprintf(number, sizeof(number), "%.9g", *(const double *)field);
        else
            value = *(const char *const *)field ? *(const char *const *)field : "not given";
        used += (size_t)snprintf(text + used, room - used, "%s %s\n", o->name, value);
    }
}

void train_options_help(FILE *to) {
    fputs("Trains a network data-parallel over MPI: mpirun -n RANKS train [OPTION]...\n\n", to);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const option *o = &options[i];
        int used = fprintf(to, "  %s %s", o->name, o->value ? o->value : "");
        // Long choices leave the line to themselves.
        if (used > HELP_COLUMN - 2) {
            fputc('\n', to);
            used = 0;
        }
        fprintf(to, "%*s%s", HELP_COLUMN - used, "", o->meaning);
        if (o->initial) fprintf(to, " (default %s)", o->initial);
        fputc('\n', to);
    }
}
