// SPDX-License-Identifier: MIT
// Reads the command line of the train program, and writes options as text and help.
#include "train_options.h"

#include "train_error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- The list of options ------------------------------------------------------------------------
// Those of the table, then settings of strategies.

static void list_options(option_list *list) {
    static iso_setting sync; // with the strategies that there are now
    static char names[40 * (ISO_STRATEGIES_MAX + 16)];
    const iso_setting *s;
    memset(list, 0, sizeof(*list));
    for (int i = 0; i < train_option_count; i++) {
        s = &train_option_table[i].setting;
        bool is_sync = s->key && strcmp(s->key, "sync") == 0;
        if (is_sync) sync = *s;
        if (is_sync) sync.choices = train_setting_owners(NULL, NULL, names, sizeof(names));
        option_list_add(list, is_sync ? &sync : s, 1);
    }
    for (int i = 0; (s = train_setting_at(i)); i++) option_list_add(list, s, 1);
}

static int find_key(const option_list *list, const char *key) {
    for (int i = 0; i < list->count; i++)
        if (list->item[i]->key && strcmp(list->item[i]->key, key) == 0) return i;
    return -1;
}

static const void *field_of(const iso_setting *s, const train_options *values) {
    return (const char *)values + s->offset;
}

// ---- Values -------------------------------------------------------------------------------------

static iso_status set_default(const option_list *list, int i, train_options *out) {
    if (i < train_option_count)
        return list->item[i]->key ? train_error_of_library(option_set_default(list->item[i], out))
                                  : ISO_OK;
    out->setting[i - train_option_count] = NULL;
    return ISO_OK;
}

static iso_status set_option(const option_list *list, int i, const char *value,
                             train_options *out) {
    if (i >= train_option_count) {
        out->setting[i - train_option_count] = value; // checked once --sync is known
        return ISO_OK;
    }
    return train_error_of_library(option_set(list->item[i], value, out));
}

// ---- The command line ---------------------------------------------------------------------------

iso_status train_options_refuse(const char *name, const option_list *more) {
    option_list list;
    list_options(&list);
    for (int i = 0; i < more->count; i++) option_list_add(&list, more->item[i], 1);
    return train_error_of_library(option_refuse(&list, name));
}

// An option of --optimizer sgd has no effect with adam. The user expects one, so it is refused.
static iso_status check_belongs(const option_list *list, int i, const train_options *out) {
    const iso_setting *s = list->item[i];
    if (i >= train_option_count || !s->of) return ISO_OK;
    return train_option_belongs(
        s, *(const char *const *)field_of(list->item[find_key(list, s->of)], out));
}

// If one of two options replaces the other, the one in the later section of the command line wins.
static iso_status choose_one(option_list *list, int second, train_options *out) {
    const iso_setting *s = list->item[second];
    int first = s->instead ? find_key(list, s->instead) : -1;
    char *given = list->given;
    if (first < 0 || !given[first] || !given[second]) return ISO_OK;
    if (given[first] == given[second])
        return train_error(ISO_ERR_ARG, "--%s replaces --%s: give only one of them", s->key,
                           s->instead);
    int earlier = given[first] < given[second] ? first : second;
    given[earlier] = 0;
    return set_default(list, earlier, out);
}

static iso_status read_line(option_list *list, int first, int argc, char **argv,
                            train_options *out) {
    for (int i = 1; i < argc; i++) {
        const char *value;
        int place;
        TRY(train_error_of_library(option_take(list, i < first ? 1 : 2, i < first ? first : argc,
                                               argv, &i, &place, &value)));
        TRY(set_option(list, place, value, out));
    }
    for (int i = 0; i < list->count; i++) TRY(choose_one(list, i, out));
    for (int i = 0; i < list->count; i++)
        if (list->given[i]) TRY(check_belongs(list, i, out));
    return train_settings_check(out);
}

iso_status train_options_parse_over(int first, int argc, char **argv, train_options *out) {
    option_list list;
    list_options(&list);
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < list.count; i++) TRY(set_default(&list, i, out));
    return read_line(&list, first, argc, argv, out);
}

iso_status train_options_parse(int argc, char **argv, train_options *out) {
    return train_options_parse_over(argc, argc, argv, out);
}

// ---- Text ---------------------------------------------------------------------------------------

// text: of a choice. A number is written as it was understood.
static const char *value_text(const iso_setting *s, const void *field, char number[32]) {
    switch (s->kind) {
    case ISO_SETTING_SWITCH: return *(const bool *)field ? "given" : "not given";
    case ISO_SETTING_INTEGER:
        snprintf(number, 32, "%lld", (long long)*(const int64_t *)field);
        return *(const int64_t *)field != -1 ? number : s->word ? s->word : "not given";
    case ISO_SETTING_NUMBER:
        snprintf(number, 32, "%.9g", *(const double *)field);
        return isnan(*(const double *)field) ? "not given" : number;
    default: return *(const char *const *)field ? *(const char *const *)field : "not given";
    }
}

// The text of a setting of the chosen --sync: a number as it was parsed, a choice as it was given.
static const char *setting_text(const iso_setting *s, const train_options *values,
                                char number[32]) {
    const char *text = train_setting_text(values, s->key);
    union {
        int64_t integer;
        double real;
    } v;
    iso_setting own = *s;
    own.offset = 0;
    if (!text) return "not given";
    if (s->kind != ISO_SETTING_INTEGER && s->kind != ISO_SETTING_NUMBER) return text;
    (void)option_set(&own, text, &v); // it was checked
    return value_text(&own, &v, number);
}

void train_options_text(const train_options *values, bool settings, char *text, size_t room) {
    option_list list;
    size_t used = 0;
    list_options(&list);
    text[0] = 0;
    for (int i = 0; i < list.count && used < room; i++) {
        const iso_setting *s = list.item[i];
        char number[32];
        const char *value;
        if (i >= train_option_count) {
            s = train_setting_of(values->sync, s->key);
            if (!s) continue;
            value = setting_text(s, values, number);
        } else {
            if (!s->key || (settings && (train_option_table[i].scope & TRAIN_OUTSIDE))) continue;
            value = value_text(s, field_of(s, values), number);
        }
        used += (size_t)snprintf(text + used, room - used, "--%s %s\n", s->key, value);
    }
}

// ---- Help ---------------------------------------------------------------------------------------

// The default of strategy number i if it differs from that of the setting at large; else NULL.
static const char *own_default(const iso_setting *s, int i) {
    const iso_setting *own = train_setting_of(iso_strategy_at(i)->name, s->key);
    if (!own || !own->initial) return NULL;
    return s->initial && strcmp(own->initial, s->initial) == 0 ? NULL : own->initial;
}

// The strategies whose own default this is, from number i on, joined by |.
static size_t join_owners(const iso_setting *s, const char *value, int i, char *text, size_t room) {
    size_t used = 0;
    for (; i < iso_strategy_count() && used < room; i++) {
        const char *own = own_default(s, i);
        if (own && strcmp(own, value) == 0)
            used += (size_t)snprintf(text + used, room - used, "%s%s", used > 0 ? "|" : "",
                                     iso_strategy_at(i)->name);
    }
    return used;
}

static bool seen_before(const iso_setting *s, const char *value, int i) {
    while (i-- > 0) {
        const char *own = own_default(s, i);
        if (own && strcmp(own, value) == 0) return true;
    }
    return false;
}

// Each default once, behind all strategies that have it: ", slowmo|diloco 0".
static void list_defaults(const iso_setting *s, char *text, size_t room) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < iso_strategy_count(); i++) {
        const char *value = own_default(s, i);
        if (!value || seen_before(s, value, i)) continue;
        if (used < room) used += (size_t)snprintf(text + used, room - used, ", ");
        if (used < room) used += join_owners(s, value, i, text + used, room - used);
        if (used < room) used += (size_t)snprintf(text + used, room - used, " %s", value);
    }
}

// Prints which strategies have the setting, its default, and the strategies with another default.
static void print_setting(const iso_setting *s, FILE *to) {
    char notes[900], owners[400], defaults[400];
    list_defaults(s, defaults, sizeof(defaults));
    snprintf(notes, sizeof(notes), " (%s%s%s%s%s%s%s%s)", s->of ? "--" : "", s->of ? s->of : "",
             s->of ? " " : "", s->of ? s->among : "",
             s->of ? "" : train_setting_owners(s->key, NULL, owners, sizeof(owners)),
             s->initial ? ", default " : "", s->initial ? s->initial : "", defaults);
    option_print(s, notes, to);
}

void train_options_help(FILE *to) {
    option_list list;
    list_options(&list);
    fputs("Trains a network data-parallel over MPI: mpirun -n RANKS train [OPTION]...\n"
          "(installed as iso-train)\n",
          to);
    for (int i = 0; i < train_option_count; i++) {
        const iso_setting *s = list.item[i];
        option_print(s, NULL, to);
        for (int k = 0; s->key && strcmp(s->key, "sync") == 0 && k < iso_strategy_count(); k++)
            fprintf(to, "%*s%s: %s\n", OPTION_COLUMN, "", iso_strategy_at(k)->name,
                    iso_strategy_at(k)->text);
        bool settings = train_option_table[i].scope & TRAIN_STRATEGIES;
        for (int k = train_option_count; settings && k < list.count; k++)
            print_setting(list.item[k], to);
    }
}
