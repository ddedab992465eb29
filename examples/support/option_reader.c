// SPDX-License-Identifier: MIT
// Reads options of a command line as a list of settings describes them.
#include "option_reader.h"

#include "try.h"
#include "usage.h"

#include <isotherm.h>
#include <math.h>
#include <string.h>

enum { NAME_ROOM = 64 }; // for the longest name of an option

#define FAIL(...) return iso_error_set(ISO_ERR_ARG, __VA_ARGS__)

// ---- The list -----------------------------------------------------------------------------------

void option_list_add(option_list *list, const iso_setting *settings, int count) {
    for (int i = 0; i < count && list->count < OPTIONS_MOST; i++)
        list->item[list->count++] = &settings[i];
}

bool option_is(const char *word, const char *key, const char *ends) {
    size_t length = key ? strlen(key) : 0;
    return length > 0 && strncmp(word, "--", 2) == 0 && strncmp(word + 2, key, length) == 0 &&
           strchr(ends, word[length + 2]);
}

int option_find(const option_list *list, const char *word) {
    for (int i = 0; i < list->count; i++)
        if (option_is(word, list->item[i]->key, "=")) return i;
    return -1;
}

// ---- Values -------------------------------------------------------------------------------------

iso_status option_set(const iso_setting *setting, const char *value, void *fields) {
    char label[NAME_ROOM];
    snprintf(label, sizeof(label), "--%s ", setting->key);
    return iso_setting_set(setting, label, value, fields);
}

iso_status option_set_default(const iso_setting *setting, void *fields) {
    void *field = (char *)fields + setting->offset;
    if (setting->initial) return option_set(setting, setting->initial, fields);
    switch (setting->kind) {
    case ISO_SETTING_SWITCH: *(bool *)field = false; break;
    case ISO_SETTING_INTEGER: *(int64_t *)field = -1; break;
    case ISO_SETTING_NUMBER: *(double *)field = NAN; break;
    case ISO_SETTING_INDEX: *(int *)field = -1; break;
    case ISO_SETTING_CHOICE:
    case ISO_SETTING_TEXT: *(const char **)field = NULL; break;
    }
    return ISO_OK;
}

// What a message and the help call the value.
static const char *value_name(const iso_setting *s, char room[NAME_ROOM]) {
    if (s->kind == ISO_SETTING_SWITCH) return "";
    if (s->choices) return s->choices;
    snprintf(room, NAME_ROOM, "%s%s%s", s->kind == ISO_SETTING_INTEGER ? "N" : "X",
             s->word ? "|" : "", s->word ? s->word : "");
    return room;
}

// ---- The command line ---------------------------------------------------------------------------

// How many letters must be added, removed or changed to make b of a.
static int count_changes(const char *a, int length, const char *b) {
    int row[NAME_ROOM], size = (int)strlen(b);
    for (int k = 0; k <= size; k++) row[k] = k;
    for (int i = 0; i < length; i++) {
        int corner = row[0]; // of the row above
        row[0] = i + 1;
        for (int k = 0; k < size; k++) {
            int least = corner + (a[i] != b[k]);
            corner = row[k + 1];
            if (corner + 1 < least) least = corner + 1;
            row[k + 1] = row[k] + 1 < least ? row[k] + 1 : least;
        }
    }
    return row[size];
}

iso_status option_refuse(const option_list *list, const char *argument) {
    const char *name = argument + 2, *nearest = NULL;
    int length = (int)strcspn(name, "="), least = 2 + length / 4;
    for (int i = 0; i < list->count; i++) {
        const char *key = list->item[i]->key;
        if (!key || strlen(key) >= NAME_ROOM || key[0] != name[0]) continue;
        int changes = count_changes(name, length, key);
        if (changes >= least) continue;
        least = changes;
        nearest = key;
    }
    if (!nearest) FAIL("unknown option --%.*s: see --help", length, name);
    FAIL("unknown option --%.*s: did you mean --%s? See --help", length, name, nearest);
}

iso_status option_take(option_list *list, char section, int argc, char **argv, int *at, int *place,
                       const char **value) {
    char room[NAME_ROOM];
    const char *argument = usage_is_help(argv[*at]) ? "--help" : argv[*at];
    const char *equals = strchr(argument, '=');
    if (strncmp(argument, "--", 2) != 0) FAIL("\"%s\" is not an option: see --help", argument);
    int i = option_find(list, argument);
    if (i < 0) return option_refuse(list, argument);
    const iso_setting *s = list->item[i];
    bool takes = s->kind != ISO_SETTING_SWITCH;
    if (list->given[i] == section) FAIL("--%s is given twice: give it once", s->key);
    if (!takes && equals) FAIL("--%s takes no value", s->key);
    *value = takes ? NULL : "yes";
    if (equals)
        *value = equals + 1;
    else if (takes && *at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0)
        *value = argv[++*at];
    if (!*value || !**value) FAIL("--%s needs a value: %s", s->key, value_name(s, room));
    list->given[i] = section;
    *place = i;
    return ISO_OK;
}

// ---- Help ---------------------------------------------------------------------------------------

void option_print(const iso_setting *s, const char *notes, FILE *to) {
    char room[NAME_ROOM], own[200] = "";
    const char *name = value_name(s, room);
    if (!s->key) {
        fprintf(to, "\n%s\n", s->meaning);
        return;
    }
    if (s->of || s->initial)
        snprintf(own, sizeof(own), " (%s%s%s%s%s%s%s)", s->of ? "--" : "", s->of ? s->of : "",
                 s->of ? " " : "", s->of ? s->among : "", s->of && s->initial ? ", " : "",
                 s->initial ? "default " : "", s->initial ? s->initial : "");
    int used = fprintf(to, "  --%s%s%s", s->key, *name ? " " : "", name);
    // Long choices leave the line to themselves.
    if (used > OPTION_COLUMN - 2) {
        fputc('\n', to);
        used = 0;
    }
    fprintf(to, "%*s%s%s\n", OPTION_COLUMN - used, "", s->meaning, notes ? notes : own);
}
