// Reads the command line of the train program, and writes options as text and help.
#include "train_options.h"

#include "train_error.h"
#include "usage.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN 28

static bool among(const char *value, const char *choices) {
    size_t length = strlen(value);
    for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, value, length) == 0 && (at[length] == '|' || !at[length])) return true;
    return false;
}

static const train_option *find(const char *name, size_t length) {
    for (int i = 0; i < train_option_count; i++) {
        const train_option *o = &train_option_table[i];
        if (o->kind == TOPIC) continue;
        if (strlen(o->name) == length && strncmp(o->name, name, length) == 0) return o;
    }
    return NULL;
}

static const void *field_of(const train_option *o, const train_options *values) {
    return (const char *)values + o->offset;
}

// ---- Values -------------------------------------------------------------------------------------

static iso_status set_number(const train_option *o, const char *value, void *field) {
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

static bool is_strategy(const char *name) {
    const iso_strategy *strategy;
    return iso_strategy_find(name, &strategy) == ISO_OK;
}

static iso_status unknown_strategy(const train_option *o, const char *value) {
    char names[400] = "";
    size_t used = 0;
    for (int i = 0; i < iso_strategy_count() && used < sizeof(names); i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i > 0 ? "|" : "",
                                 iso_strategy_at(i)->name);
    return train_error(ISO_ERR_ARG, "%s %s is not supported: give %s", o->name, value, names);
}

static iso_status set(const train_option *o, const char *value, train_options *out) {
    void *field = (char *)out + o->offset;
    switch (o->kind) {
    case TOPIC: return ISO_OK;
    case SWITCH: *(bool *)field = true; return ISO_OK;
    case INTEGER:
        if (strcmp(value, "auto") != 0 || !strstr(o->value, "auto"))
            return set_number(o, value, field);
        *(int64_t *)field = -1;
        return ISO_OK;
    case NUMBER: return set_number(o, value, field);
    case CHOICE:
        if (!among(value, o->value))
            return train_error(ISO_ERR_ARG, "%s %s is not supported: give %s", o->name, value,
                               o->value);
        break;
    case STRATEGY:
        if (!is_strategy(value)) return unknown_strategy(o, value);
        break;
    case TEXT: break;
    }
    *(const char **)field = value;
    return ISO_OK;
}

static iso_status set_default(const train_option *o, train_options *out) {
    void *field = (char *)out + o->offset;
    if (o->initial) return set(o, o->initial, out);
    if (o->kind == INTEGER)
        *(int64_t *)field = -1;
    else if (o->kind == NUMBER)
        *(double *)field = NAN;
    return ISO_OK;
}

static iso_status set_defaults(train_options *out) {
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < train_option_count; i++) TRY(set_default(&train_option_table[i], out));
    return ISO_OK;
}

// ---- The command line ---------------------------------------------------------------------------

iso_status train_options_refuse(const char *name, const char *const *more, int count) {
    enum { ROOM = 128 };
    const char *names[ROOM];
    int used = 0, length = (int)strcspn(name, "=");
    for (int i = 0; i < count && used < ROOM; i++) names[used++] = more[i];
    for (int i = 0; i < train_option_count && used < ROOM; i++)
        if (train_option_table[i].kind != TOPIC) names[used++] = train_option_table[i].name;
    const char *nearest = usage_nearest(name, length, names, used);
    if (!nearest) return train_error(ISO_ERR_ARG, "unknown option %.*s: see --help", length, name);
    return train_error(ISO_ERR_ARG, "unknown option %.*s: did you mean %s? See --help", length,
                       name, nearest);
}

bool train_options_has(const char *name) { return find(name, strcspn(name, "=")) != NULL; }

// Takes argv[*i], and the value after it where it has one. part: of the command line, from 1.
static iso_status parse_one(int argc, char **argv, int *i, char part, char *given,
                            train_options *out) {
    char *argument = usage_is_help(argv[*i]) ? "--help" : argv[*i], *value = strchr(argument, '=');
    if (strncmp(argument, "--", 2) != 0)
        return train_error(ISO_ERR_ARG, "\"%s\" is no option: see --help", argument);
    size_t length = value ? (size_t)(value++ - argument) : strlen(argument);
    const train_option *o = find(argument, length);
    if (!o) return train_options_refuse(argument, NULL, 0);
    if (given[o - train_option_table] == part)
        return train_error(ISO_ERR_ARG, "%s is given twice: give it once", o->name);
    if (o->kind == SWITCH && value) return train_error(ISO_ERR_ARG, "%s takes no value", o->name);
    if (o->kind != SWITCH && !value && *i + 1 < argc && strncmp(argv[*i + 1], "--", 2) != 0)
        value = argv[++*i];
    if (o->kind != SWITCH && (!value || !*value))
        return train_error(ISO_ERR_ARG, "%s needs a value: %s", o->name, o->value);
    given[o - train_option_table] = part;
    return set(o, value, out);
}

// An option of --sync daso says nothing to --sync lazy, and a user who gives it means something.
static iso_status check_belongs(const train_option *o, const train_options *out) {
    const train_option *other = find(o->of, strlen(o->of));
    const char *chosen = *(const char *const *)field_of(other, out);
    if (among(chosen, o->among)) return ISO_OK;
    return train_error(ISO_ERR_ARG, "%s is of %s %s, and this is %s", o->name, o->of, o->among,
                       chosen);
}

static char *given_of(char *given, const char *name) {
    return &given[find(name, strlen(name)) - train_option_table];
}

// Of two options that say the same thing, the one in the later part of the command line holds.
static iso_status choose(const char *a, const char *b, char *given, train_options *out) {
    char *first = given_of(given, a), *second = given_of(given, b);
    if (!*first || !*second) return ISO_OK;
    if (*first == *second)
        return train_error(ISO_ERR_ARG, "%s and %s say the same thing: give one of them", a, b);
    char *earlier = *first < *second ? first : second;
    *earlier = 0;
    return set_default(&train_option_table[earlier - given], out);
}

static iso_status check_combined(char *given, train_options *out) {
    TRY(choose("--epochs", "--steps", given, out));
    TRY(choose("--warmup", "--warmup-steps", given, out));
    TRY(choose("--cooldown", "--cooldown-steps", given, out));
    if (*given_of(given, "--warmup") && *given_of(given, "--cooldown") &&
        out->warmup + out->cooldown > 1)
        return train_error(ISO_ERR_ARG,
                           "--warmup %g and --cooldown %g are more than the whole run: give parts "
                           "whose sum is at most 1",
                           out->warmup, out->cooldown);
    if (out->checkpoint_every > 0 && !out->checkpoint)
        return train_error(ISO_ERR_ARG, "--checkpoint-every needs a --checkpoint to write beside");
    return ISO_OK;
}

iso_status train_options_parse_over(int first, int argc, char **argv, train_options *out) {
    char *given = calloc((size_t)train_option_count, sizeof(*given));
    if (!given) return train_error(ISO_ERR_NOMEM, "out of memory for the options");
    iso_status status = set_defaults(out);
    for (int i = 1; i < argc && status == ISO_OK; i++)
        status = parse_one(i < first ? first : argc, argv, &i, i < first ? 1 : 2, given, out);
    for (int i = 0; i < train_option_count && status == ISO_OK; i++)
        if (given[i] && train_option_table[i].of)
            status = check_belongs(&train_option_table[i], out);
    if (status == ISO_OK) status = check_combined(given, out);
    free(given);
    return status;
}

iso_status train_options_parse(int argc, char **argv, train_options *out) {
    return train_options_parse_over(argc, argc, argv, out);
}

// ---- Text ---------------------------------------------------------------------------------------

static const char *value_text(const train_option *o, const train_options *values, char number[32]) {
    const void *field = field_of(o, values);
    if (o->kind == SWITCH) return *(const bool *)field ? "given" : "not given";
    if (o->kind == INTEGER) {
        snprintf(number, 32, "%lld", (long long)*(const int64_t *)field);
        return *(const int64_t *)field == -1 ? o->initial ? o->initial : "not given" : number;
    }
    if (o->kind == NUMBER) {
        snprintf(number, 32, "%.9g", *(const double *)field);
        return isnan(*(const double *)field) ? "not given" : number;
    }
    return *(const char *const *)field ? *(const char *const *)field : "not given";
}

void train_options_text(const train_options *values, bool settings, char *text, size_t room) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < train_option_count && used < room; i++) {
        const train_option *o = &train_option_table[i];
        char number[32];
        if (o->kind == TOPIC || (settings && o->outside)) continue;
        used += (size_t)snprintf(text + used, room - used, "%s %s\n", o->name,
                                 value_text(o, values, number));
    }
}

// ---- Settings of the strategy -------------------------------------------------------------------

// Whether the option is one of the chosen --sync, or of an option that is.
static bool is_setting(const train_option *o, const train_options *values) {
    if (!o->of) return false;
    const train_option *other = find(o->of, strlen(o->of));
    if (!among(*(const char *const *)field_of(other, values), o->among)) return false;
    return other->kind == STRATEGY || is_setting(other, values);
}

static iso_status add_setting(const train_option *o, const train_options *values,
                              iso_settings *out) {
    char number[32];
    const void *field = field_of(o, values);
    const char *text = value_text(o, values, number);
    if (iso_settings_has(out, o->name + 2))
        return train_error(ISO_ERR_ARG, "--sync-option %s: that is an option of its own, give %s",
                           o->name + 2, o->name);
    if (strcmp(text, "not given") == 0) return ISO_OK;
    if (o->kind == NUMBER) snprintf(number, sizeof(number), "%.17g", *(const double *)field);
    return iso_settings_add(out, o->name + 2, text);
}

iso_status train_options_settings(const train_options *values, iso_settings *out) {
    if (values->sync_option) TRY(iso_settings_parse(out, values->sync_option));
    for (int i = 0; i < train_option_count; i++)
        if (is_setting(&train_option_table[i], values))
            TRY(add_setting(&train_option_table[i], values, out));
    return ISO_OK;
}

// ---- Help ---------------------------------------------------------------------------------------

// What the option belongs to, unless the heading above it says so, and its default.
static void print_notes(const train_option *o, bool under_sync, FILE *to) {
    bool sync = o->of && strcmp(o->of, "--sync") == 0;
    const char *of = !o->of || (sync && under_sync) ? "" : sync ? o->among : o->of;
    if (!*of && !o->initial) return;
    fprintf(to, " (%s%s%s", of, *of && !sync ? " " : "", *of && !sync ? o->among : "");
    if (o->initial) fprintf(to, "%sdefault %s", *of ? ", " : "", o->initial);
    fputc(')', to);
}

// Those that the option's value does not list.
static void print_registered(const train_option *o, FILE *to) {
    for (int i = 0; i < iso_strategy_count(); i++) {
        const iso_strategy *s = iso_strategy_at(i);
        if (!among(s->name, o->value))
            fprintf(to, "%*s%s: %s\n", HELP_COLUMN, "", s->name, s->text);
    }
}

static void print_option(const train_option *o, bool under_sync, FILE *to) {
    int used = fprintf(to, "  %s %s", o->name, o->value ? o->value : "");
    // Long choices leave the line to themselves.
    if (used > HELP_COLUMN - 2) {
        fputc('\n', to);
        used = 0;
    }
    fprintf(to, "%*s%s", HELP_COLUMN - used, "", o->meaning);
    print_notes(o, under_sync, to);
    fputc('\n', to);
    if (o->kind == STRATEGY) print_registered(o, to);
}

void train_options_help(FILE *to) {
    bool under_sync = false;
    fputs("Trains a network data-parallel over MPI: mpirun -n RANKS train [OPTION]...\n", to);
    for (int i = 0; i < train_option_count; i++) {
        const train_option *o = &train_option_table[i];
        if (o->kind != TOPIC) {
            print_option(o, under_sync, to);
            continue;
        }
        fprintf(to, "\n%s\n", o->name);
        under_sync = strncmp(o->name, "--sync", 6) == 0;
    }
}
