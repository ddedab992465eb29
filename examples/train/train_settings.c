// SPDX-License-Identifier: MIT
// The settings that strategies publish, as options of the train program.
#include "train_options.h"

#include "train_error.h"

#include <string.h>

// ---- What there is ------------------------------------------------------------------------------

static const iso_setting *find_key(const iso_strategy *s, const char *key) {
    for (int i = 0; s && i < s->setting_count; i++)
        if (strcmp(s->setting[i].key, key) == 0) return &s->setting[i];
    return NULL;
}

// Each key once, as the first strategy has it. Grows with the strategies that plugins add.
static const iso_setting *listed[TRAIN_SETTINGS];
static int listed_count, listed_strategies;

static bool is_listed(const char *key) {
    for (int i = 0; i < listed_count; i++)
        if (strcmp(listed[i]->key, key) == 0) return true;
    return false;
}

static void list_settings(void) {
    for (; listed_strategies < iso_strategy_count(); listed_strategies++) {
        const iso_strategy *s = iso_strategy_at(listed_strategies);
        for (int k = 0; k < s->setting_count && listed_count < TRAIN_SETTINGS; k++)
            if (!is_listed(s->setting[k].key)) listed[listed_count++] = &s->setting[k];
    }
}

const iso_setting *train_setting_at(int wanted) {
    list_settings();
    return wanted < listed_count ? listed[wanted] : NULL;
}

const iso_setting *train_setting_named(const char *option) {
    const iso_setting *s;
    for (int i = 0; (s = train_setting_at(i)); i++)
        if (option_is(option, s->key, "= \n")) return s;
    return NULL;
}

const train_option *train_option_named(const char *option) {
    for (int i = 0; i < train_option_count; i++)
        if (option_is(option, train_option_table[i].setting.key, "= \n"))
            return &train_option_table[i];
    return NULL;
}

const iso_setting *train_setting_of(const char *sync, const char *key) {
    for (int i = 0; i < iso_strategy_count(); i++)
        if (strcmp(iso_strategy_at(i)->name, sync) == 0) return find_key(iso_strategy_at(i), key);
    return NULL;
}

const char *train_setting_owners(const char *key, const char *value, char *text, size_t room) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < iso_strategy_count() && used < room; i++) {
        const iso_setting *s = key ? find_key(iso_strategy_at(i), key) : NULL;
        if (!key || (s && (!value || option_set(s, value, NULL) >= 0)))
            used += (size_t)snprintf(text + used, room - used, "%s%s", used > 0 ? "|" : "",
                                     iso_strategy_at(i)->name);
    }
    return text;
}

// ---- What the chosen one has --------------------------------------------------------------------

static const char *given_text(const train_options *o, const char *key) {
    const iso_setting *s;
    for (int i = 0; (s = train_setting_at(i)); i++)
        if (strcmp(s->key, key) == 0) return o->setting[i];
    return NULL;
}

const char *train_setting_text(const train_options *o, const char *key) {
    const iso_setting *s = train_setting_of(o->sync, key);
    const char *given = given_text(o, key);
    return !s ? NULL : given ? given : s->initial;
}

iso_status train_option_belongs(const iso_setting *s, const char *chosen) {
    if (!s->of || (chosen && iso_setting_among(chosen, s->among))) return ISO_OK;
    return train_error(ISO_ERR_ARG, "--%s needs --%s %s, but --%s is %s", s->key, s->of, s->among,
                       s->of, chosen ? chosen : "not given");
}

// Adds to the message which other --sync takes this value.
static iso_status refuse_value(const char *key, const char *given) {
    char owners[400], why[500];
    snprintf(why, sizeof(why), "%s", train_error_text());
    train_setting_owners(key, given, owners, sizeof(owners));
    return train_error(ISO_ERR_ARG, "%s%s%s", why, owners[0] ? ", or --sync " : "", owners);
}

static iso_status check_setting(const train_options *o, const char *key, const char *given) {
    char owners[400];
    const iso_setting *s = train_setting_of(o->sync, key);
    if (!s)
        return train_error(ISO_ERR_ARG, "--%s needs --sync %s, but --sync is %s", key,
                           train_setting_owners(key, NULL, owners, sizeof(owners)), o->sync);
    if (train_error_of_library(option_set(s, given, NULL)) < 0) return refuse_value(key, given);
    return train_option_belongs(s, s->of ? train_setting_text(o, s->of) : NULL);
}

iso_status train_settings_check(const train_options *o) {
    const iso_setting *s;
    for (int i = 0; (s = train_setting_at(i)); i++)
        if (o->setting[i]) TRY(check_setting(o, s->key, o->setting[i]));
    return ISO_OK;
}

// ---- For the strategy ---------------------------------------------------------------------------

iso_status train_options_settings(const train_options *o, iso_settings *out) {
    const iso_setting *s;
    if (o->sync_option) TRY(iso_settings_parse(out, o->sync_option));
    for (int i = 0; (s = train_setting_at(i)); i++) {
        if (train_setting_of(o->sync, s->key) && iso_settings_has(out, s->key))
            return train_error(ISO_ERR_ARG, "--sync-option %s: give the option --%s instead",
                               s->key, s->key);
        if (o->setting[i]) TRY(iso_settings_add(out, s->key, o->setting[i]));
    }
    return ISO_OK;
}

// ---- Defaults in a text of options --------------------------------------------------------------

const char *train_options_line(const char *text, const char *line) {
    size_t name = strcspn(line, " ") + 1;
    for (; *text; text += strcspn(text, "\n"), text += *text != 0)
        if (strncmp(text, line, name) == 0) return text;
    return NULL;
}

const char *train_setting_default_line(const char *text, const char *line,
                                       char room[TRAIN_LINE_ROOM]) {
    char key[TRAIN_LINE_ROOM] = "", sync[TRAIN_LINE_ROOM] = "";
    int length = 0;
    const char *at = train_options_line(text, "--sync ");
    if (!line || !at || sscanf(at, "--sync %79s", sync) != 1) return line;
    if (sscanf(line, "--%79[^ \n] not given%n", key, &length) != 1 || length == 0) return line;
    const iso_setting *s = train_setting_of(sync, key);
    if (!s || !s->initial) return line;
    snprintf(room, TRAIN_LINE_ROOM, "--%s %s", key, s->initial);
    return room;
}
