// SPDX-License-Identifier: MIT
// Reads the list of a sweep, and expands values with commas to one run for each item.
#include "sweep_list.h"

#include "train/train_error.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\r\n"

static const char name_letters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._+-";

// ---- One run ------------------------------------------------------------------------------------

static iso_status check_name(const sweep_list *list, const char *name) {
    if (!name[0] || name[0] == '.' || name[0] == '-' || name[strspn(name, name_letters)])
        return train_error(ISO_ERR_ARG,
                           "\"%s\" is not a valid run name: use letters, digits and . _ + -", name);
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->entries[i]->name, name) == 0)
            return train_error(ISO_ERR_ARG, "two runs are called %s: give each its own name", name);
    return ISO_OK;
}

static iso_status split_words(sweep_entry *entry) {
    memcpy(entry->memory, entry->options, sizeof(entry->memory));
    char *rest = entry->memory, *word;
    while ((word = strtok_r(rest, BLANKS, &rest))) {
        if (entry->word_count == SWEEP_WORDS)
            return train_error(ISO_ERR_ARG, "run %s has more than %d words", entry->name,
                               SWEEP_WORDS);
        entry->words[entry->word_count++] = word;
    }
    return ISO_OK;
}

static iso_status add_run(sweep_list *list, const char *name, const char *options) {
    TRY(check_name(list, name));
    if (list->count == SWEEP_RUNS)
        return train_error(ISO_ERR_ARG,
                           "the list has more than %d runs, with run %s: give fewer values with "
                           "commas",
                           SWEEP_RUNS, name);
    size_t room = ((size_t)list->count + 1) * sizeof(*list->entries);
    sweep_entry **entries = realloc(list->entries, room);
    if (entries) list->entries = entries;
    sweep_entry *entry = entries ? calloc(1, sizeof(*entry)) : NULL;
    if (!entry) return train_error(ISO_ERR_NOMEM, "out of memory for the list of runs");
    list->entries[list->count++] = entry;
    snprintf(entry->name, sizeof(entry->name), "%s", name);
    snprintf(entry->file, sizeof(entry->file), "%s", name);
    entry->seed = -1;
    snprintf(entry->options, sizeof(entry->options), "%s", options);
    return split_words(entry);
}

// ---- Values with commas -------------------------------------------------------------------------

// A word whose value has commas: "--period 4,8" or "--period=4,8".
typedef struct choice {
    const char *option; // its name, without --
    const char *values;
    int option_length, values_length;
} choice;

static bool is_option(const choice *c, const char *name) {
    return (int)strlen(name) == c->option_length && strncmp(c->option, name, strlen(name)) == 0;
}

// The word in which the comma stands, and its option.
static choice choice_at(const char *options, const char *comma) {
    const char *word = comma, *end;
    while (word > options && !strchr(BLANKS, word[-1])) word--;
    const char *equals = word[0] == '-' ? memchr(word, '=', (size_t)(comma - word)) : NULL;
    const char *name = word, *value = equals ? equals + 1 : word;
    if (equals) {
        end = equals;
    } else { // the word before
        for (end = word; end > options && strchr(BLANKS, end[-1]);) end--;
        for (name = end; name > options && !strchr(BLANKS, name[-1]);) name--;
    }
    name += strspn(name, "-");
    return (choice){.option = name,
                    .option_length = name < end ? (int)(end - name) : 0,
                    .values = value,
                    .values_length = (int)strcspn(value, BLANKS)};
}

// The settings of --sync-option are one value, with its commas.
static bool find_choice(const char *options, choice *out) {
    const char *comma = strchr(options, ',');
    while (comma) {
        *out = choice_at(options, comma);
        if (!is_option(out, "sync-option")) return true;
        comma = strchr(out->values + out->values_length, ',');
    }
    return false;
}

static iso_status add_choices(sweep_list *list, const char *name, const char *options);

// The same run with one of the values.
static iso_status add_with(sweep_list *list, const char *name, const char *options, const choice *c,
                           const char *value, int length) {
    char longer[SWEEP_NAME], chosen[SWEEP_TEXT];
    int used = snprintf(longer, sizeof(longer), "%s-%.*s", name, c->option_length, c->option);
    for (int i = 0; i < length; i++, used++)
        if (used + 1 < SWEEP_NAME) longer[used] = strchr(name_letters, value[i]) ? value[i] : '_';
    longer[used < SWEEP_NAME ? used : 0] = 0;
    if (used >= SWEEP_NAME)
        return train_error(ISO_ERR_ARG, "the name of run %s becomes too long", name);
    if (length == 0)
        return train_error(ISO_ERR_ARG, "run %s has a comma without a value beside it in %.*s",
                           name, c->values_length, c->values);
    snprintf(chosen, sizeof(chosen), "%.*s%.*s%s", (int)(c->values - options), options, length,
             value, c->values + c->values_length);
    return add_choices(list, longer, chosen);
}

static iso_status add_choices(sweep_list *list, const char *name, const char *options) {
    choice c;
    if (!find_choice(options, &c)) return add_run(list, name, options);
    if (is_option(&c, "milestones"))
        return train_error(ISO_ERR_ARG,
                           "run %s: the commas of --%.*s would make several runs: give it before "
                           "the --, where they do not",
                           name, c.option_length, c.option);
    const char *value = c.values, *end = c.values + c.values_length;
    while (value <= end) {
        int length = (int)strcspn(value, "," BLANKS);
        TRY(add_with(list, name, options, &c, value, length));
        value += length + 1;
    }
    return ISO_OK;
}

// ---- Lines --------------------------------------------------------------------------------------

iso_status sweep_list_add(sweep_list *list, const char *line) {
    char name[SWEEP_NAME];
    line += strspn(line, BLANKS);
    const char *colon = strchr(line, ':');
    if (!colon)
        return train_error(ISO_ERR_ARG, "\"%.80s\" is not a run: write \"name: --sync ...\"", line);
    int length = snprintf(name, sizeof(name), "%.*s", (int)(colon - line), line);
    if (length >= SWEEP_NAME || strlen(colon) >= SWEEP_TEXT)
        return train_error(ISO_ERR_ARG, "run %.30s... is too long", line);
    colon++;
    colon += strspn(colon, BLANKS);
    return add_choices(list, name, colon);
}

// Cuts a comment and the blanks at the end.
static void trim_line(char *line) {
    for (char *hash = line; (hash = strchr(hash, '#')); hash++) {
        if (hash == line || strchr(BLANKS, hash[-1])) {
            *hash = 0;
            break;
        }
    }
    size_t length = strlen(line);
    while (length > 0 && strchr(BLANKS, line[length - 1])) line[--length] = 0;
}

iso_status sweep_list_add_lines(sweep_list *list, const char *text) {
    char *copy = strdup(text), *rest = copy, *line;
    if (!copy) return train_error(ISO_ERR_NOMEM, "out of memory for the list of runs");
    iso_status status = ISO_OK;
    while (status == ISO_OK && (line = strsep(&rest, "\n"))) {
        trim_line(line);
        if (line[0]) status = sweep_list_add(list, line);
    }
    free(copy);
    return status;
}

void sweep_list_free(sweep_list *list) {
    for (int i = 0; i < list->count; i++) free(list->entries[i]);
    free(list->entries);
    *list = (sweep_list){0};
}
