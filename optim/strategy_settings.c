// Settings of strategies: a list of keys and values that are read as numbers or texts.
#include "base/base.h"

#include <errno.h>
#include <isotherm/strategy.h>
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
        ISO_CHECK(equals, ISO_ERR_ARG, "\"%.*s\" is no setting: write KEY=VALUE", (int)(end - at),
                  at);
        ISO_TRY(add_setting(settings, at, (size_t)(equals - at), equals + 1,
                            (size_t)(end - equals - 1)));
    }
    return ISO_OK;
}

bool iso_settings_has(const iso_settings *settings, const char *key) {
    return find_setting(settings, key, strlen(key)) != NULL;
}

// ---- Reading ------------------------------------------------------------------------------------

// The value's text, NULL where there is none.
static const char *value_of(iso_settings *settings, const char *key) {
    setting *s = find_setting(settings, key, strlen(key));
    if (!s) return NULL;
    s->used = true;
    return s->value;
}

iso_status iso_settings_int(iso_settings *settings, const char *key, int64_t low, int64_t high,
                            int64_t *out) {
    const char *text = value_of(settings, key);
    if (!text) return ISO_OK;
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    ISO_CHECK(end > text && !*end && !errno && number >= low && number <= high, ISO_ERR_ARG,
              "setting %s=%s: give a whole number from %lld to %lld", key, text, (long long)low,
              (long long)high);
    *out = number;
    return ISO_OK;
}

iso_status iso_settings_number(iso_settings *settings, const char *key, double low, double high,
                               double *out) {
    const char *text = value_of(settings, key);
    if (!text) return ISO_OK;
    char *end;
    double number = strtod(text, &end);
    ISO_CHECK(end > text && !*end && number >= low && number <= high, ISO_ERR_ARG,
              "setting %s=%s: give a number from %g to %g", key, text, low, high);
    *out = number;
    return ISO_OK;
}

static bool is_among(const char *text, const char *choices) {
    size_t length = strlen(text), one;
    for (const char *at = choices;; at += one + 1) {
        one = strcspn(at, "|");
        if (one == length && memcmp(at, text, length) == 0) return true;
        if (!at[one]) return false;
    }
}

iso_status iso_settings_text(iso_settings *settings, const char *key, const char *choices,
                             const char **out) {
    const char *text = value_of(settings, key);
    if (!text) return ISO_OK;
    ISO_CHECK(!choices || (*text && is_among(text, choices)), ISO_ERR_ARG, "setting %s=%s: give %s",
              key, text, choices);
    *out = text;
    return ISO_OK;
}

iso_status iso_settings_check_used(const iso_settings *settings, const char *whose) {
    for (int i = 0; settings && i < settings->count; i++)
        ISO_CHECK(settings->item[i].used, ISO_ERR_ARG, "%s has no setting \"%s\": remove it", whose,
                  settings->item[i].key);
    return ISO_OK;
}
