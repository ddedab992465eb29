// SPDX-License-Identifier: MIT
// Settings of strategies: a list of keys and values, which are read as numbers or texts.
#include "base/base.h"
#include "optim/strategy_impl.h"

#include <errno.h>
#include <math.h>
#include <string.h>

typedef struct setting {
    char *key, *value; // one allocation, the key's
    bool used;
} setting;

struct iso_settings {
    setting *item;
    int count;
};

// ---- The list -----------------------------------------------------------------------------------

iso_status iso_settings_create(iso_settings **out) {
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(**out), &memory));
    *out = memory;
    return ISO_OK;
}

void iso_settings_destroy(iso_settings **pointer) {
    iso_settings *settings = *pointer;
    *pointer = NULL;
    if (!settings) return;
    for (int i = 0; i < settings->count; i++) iso__free(settings->item[i].key);
    iso__free(settings->item);
    iso__free(settings);
}

static setting *find_setting(const iso_settings *settings, const char *key, size_t length) {
    for (int i = 0; settings && i < settings->count; i++) {
        setting *s = &settings->item[i];
        if (strlen(s->key) == length && strncmp(s->key, key, length) == 0) return s;
    }
    return NULL;
}

static iso_status add_setting(iso_settings *settings, const char *key, size_t key_length,
                              const char *value, size_t value_length) {
    ISO_CHECK(key_length > 0, ISO_ERR_ARG, "a setting needs a key before its value \"%.*s\"",
              (int)value_length, value);
    ISO_CHECK(!find_setting(settings, key, key_length), ISO_ERR_ARG,
              "setting \"%.*s\" is given twice", (int)key_length, key);
    size_t old = (size_t)settings->count * sizeof(*settings->item);
    void *list = settings->item, *text;
    ISO_TRY(iso__realloc(&list, old, old + sizeof(*settings->item)));
    settings->item = list;
    ISO_TRY(iso__alloc_zero(key_length + value_length + 2, &text));
    setting s = {.key = text, .value = (char *)text + key_length + 1};
    memcpy(s.key, key, key_length);
    memcpy(s.value, value, value_length);
    settings->item[settings->count++] = s;
    return ISO_OK;
}

iso_status iso_settings_add(iso_settings *settings, const char *key, const char *value) {
    ISO_TRY(add_setting(settings, key, strlen(key), value, strlen(value)));
    return ISO_OK;
}

iso_status iso_settings_parse(iso_settings *settings, const char *text) {
    for (const char *at = text, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, ",");
        const char *equals = memchr(at, '=', (size_t)(end - at));
        ISO_CHECK(equals, ISO_ERR_ARG, "\"%.*s\" is not a setting: write KEY=VALUE",
                  (int)(end - at), at);
        ISO_TRY(add_setting(settings, at, (size_t)(equals - at), equals + 1,
                            (size_t)(end - equals - 1)));
    }
    return ISO_OK;
}

bool iso_settings_has(const iso_settings *settings, const char *key) {
    return find_setting(settings, key, strlen(key)) != NULL;
}

// ---- Values -------------------------------------------------------------------------------------

// The place of value among choices; -1: it is none.
static int find_choice(const char *value, const char *choices) {
    size_t length = strlen(value), one;
    for (int i = 0;; i++, choices += one + 1) {
        one = strcspn(choices, "|");
        if (length > 0 && one == length && memcmp(choices, value, length) == 0) return i;
        if (!choices[one]) return -1;
    }
}

bool iso_setting_among(const char *value, const char *choices) {
    return find_choice(value, choices) >= 0;
}

static iso_status set_choice(const char *label, const char *value, const char *choices, int *out) {
    *out = find_choice(value, choices);
    ISO_CHECK(*out >= 0, ISO_ERR_ARG, "%s%s is not supported: give %s", label, value, choices);
    return ISO_OK;
}

static iso_status set_integer(const iso_setting *s, const char *label, const char *value,
                              int64_t *out) {
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    bool word = s->word && strcmp(value, s->word) == 0;
    bool fits =
        end > value && !*end && !errno && (double)number >= s->low && (double)number <= s->high;
    ISO_CHECK(word || fits, ISO_ERR_ARG, "%s%s: give a whole number from %.12g to %.12g%s%s", label,
              value, s->low, s->high, s->word ? ", or " : "", s->word ? s->word : "");
    *out = word ? -1 : number;
    return ISO_OK;
}

static iso_status set_number(const iso_setting *s, const char *label, const char *value,
                             double *out) {
    char *end;
    double number = strtod(value, &end);
    ISO_CHECK(end > value && !*end && number >= s->low && number <= s->high, ISO_ERR_ARG,
              "%s%s: give a number from %.12g to %.12g", label, value, s->low, s->high);
    *out = number;
    return ISO_OK;
}

iso_status iso_setting_set(const iso_setting *s, const char *label, const char *value,
                           void *fields) {
    union {
        bool given;
        int64_t integer;
        double number;
        int place;
        const char *text;
    } v = {0};
    size_t bytes = sizeof(v.text);
    int place = 0;
    switch (s->kind) {
    case ISO_SETTING_SWITCH:
        ISO_TRY(set_choice(label, value, "no|yes", &place));
        v.given = place;
        bytes = sizeof(v.given);
        break;
    case ISO_SETTING_INTEGER:
        ISO_TRY(set_integer(s, label, value, &v.integer));
        bytes = sizeof(v.integer);
        break;
    case ISO_SETTING_NUMBER:
        ISO_TRY(set_number(s, label, value, &v.number));
        bytes = sizeof(v.number);
        break;
    case ISO_SETTING_INDEX:
        ISO_TRY(set_choice(label, value, s->choices, &v.place));
        bytes = sizeof(v.place);
        break;
    case ISO_SETTING_CHOICE: ISO_TRY(set_choice(label, value, s->choices, &place)); // fall through
    case ISO_SETTING_TEXT: v.text = value; break;
    }
    if (fields) memcpy((char *)fields + s->offset, &v, bytes);
    return ISO_OK;
}

// ---- Reading ------------------------------------------------------------------------------------

const char *iso_settings_get(iso_settings *settings, const char *key) {
    setting *s = find_setting(settings, key, strlen(key));
    if (!s) return NULL;
    s->used = true;
    return s->value;
}

static iso_status read_one(iso_settings *settings, const iso_setting *s, void *fields) {
    char label[80];
    const char *value = iso_settings_get(settings, s->key);
    if (!value) value = s->initial;
    if (!value) return ISO_OK;
    snprintf(label, sizeof(label), "setting %s=", s->key);
    ISO_TRY(iso_setting_set(s, label, value, fields));
    return ISO_OK;
}

iso_status iso_settings_read(iso_settings *settings, const iso_setting *table, int count,
                             void *fields) {
    for (int i = 0; i < count; i++) ISO_TRY(read_one(settings, &table[i], fields));
    return ISO_OK;
}

iso_status iso_settings_int(iso_settings *settings, const char *key, int64_t low, int64_t high,
                            int64_t *out) {
    iso_setting one = {.key = key, .kind = ISO_SETTING_INTEGER, .low = (double)low};
    one.high = (double)high;
    return read_one(settings, &one, out);
}

iso_status iso_settings_number(iso_settings *settings, const char *key, double low, double high,
                               double *out) {
    iso_setting one = {.key = key, .kind = ISO_SETTING_NUMBER, .low = low, .high = high};
    return read_one(settings, &one, out);
}

iso_status iso_settings_text(iso_settings *settings, const char *key, const char *choices,
                             const char **out) {
    iso_setting one = {.key = key, .kind = choices ? ISO_SETTING_CHOICE : ISO_SETTING_TEXT};
    one.choices = choices;
    return read_one(settings, &one, out);
}

iso_status iso_settings_check_used(const iso_settings *settings, const char *whose) {
    for (int i = 0; settings && i < settings->count; i++)
        ISO_CHECK(settings->item[i].used, ISO_ERR_ARG, "%s has no setting \"%s\": remove it", whose,
                  settings->item[i].key);
    return ISO_OK;
}

// ---- Writing ------------------------------------------------------------------------------------

enum { VALUE_ROOM = 64 }; // for a number, or a word among choices

// The fewest digits that are read back as the same number.
static void write_number(double value, char room[VALUE_ROOM]) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(room, VALUE_ROOM, "%.*g", digits, value);
        if (strtod(room, NULL) == value) return;
    }
}

// A choice that only programs can make, such as a callback, has no word.
static void write_choice(int place, const char *choices, char room[VALUE_ROOM]) {
    int left = place;
    for (; choices && left > 0; left--) {
        choices = strchr(choices, '|');
        if (choices) choices++;
    }
    if (choices && left == 0)
        snprintf(room, VALUE_ROOM, "%.*s", (int)strcspn(choices, "|"), choices);
    else
        snprintf(room, VALUE_ROOM, "%d", place);
}

static const char *write_value(const iso_setting *s, const void *field, char room[VALUE_ROOM]) {
    const char *text = NULL;
    switch (s->kind) {
    case ISO_SETTING_SWITCH: return *(const bool *)field ? "yes" : "no";
    case ISO_SETTING_INTEGER:
        snprintf(room, VALUE_ROOM, "%lld", (long long)*(const int64_t *)field);
        return s->word && *(const int64_t *)field == -1 ? s->word : room;
    case ISO_SETTING_NUMBER: write_number(*(const double *)field, room); return room;
    case ISO_SETTING_INDEX: write_choice(*(const int *)field, s->choices, room); return room;
    case ISO_SETTING_CHOICE:
    case ISO_SETTING_TEXT: text = *(const char *const *)field; break;
    }
    return text ? text : "not given";
}

void iso__settings_write(const iso_setting *table, int count, const void *fields, char *text,
                         size_t room) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < count && used < room; i++) {
        char value[VALUE_ROOM];
        const void *field = (const char *)fields + table[i].offset;
        used += (size_t)snprintf(text + used, room - used, "%s: %s\n", table[i].key,
                                 write_value(&table[i], field, value));
    }
}
