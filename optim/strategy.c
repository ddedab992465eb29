// SPDX-License-Identifier: MIT
// The list of synchronisation strategies, and the calls by which a trainer uses one.
#include "optim/strategy_impl.h"

#include "base/base.h"

#include <stdio.h>
#include <string.h>

enum { NAME_ROOM = 32, TEXT_ROOM = 120 };

typedef struct entry {
    iso_strategy strategy;
    char name[NAME_ROOM], text[TEXT_ROOM];
} entry;

// Of the process, as names are: filled before the first use, and never changed again.
static entry registered[ISO_STRATEGIES_MAX];
static int registered_count;

// ---- The list -----------------------------------------------------------------------------------

int iso_strategy_count(void) { return iso__builtin_strategy_count + registered_count; }

const iso_strategy *iso_strategy_at(int i) {
    if (i < 0 || i >= iso_strategy_count()) return NULL;
    return i < iso__builtin_strategy_count ? &iso__builtin_strategy[i]
                                           : &registered[i - iso__builtin_strategy_count].strategy;
}

static const iso_strategy *find_strategy(const char *name) {
    for (int i = 0; i < iso_strategy_count(); i++)
        if (strcmp(iso_strategy_at(i)->name, name) == 0) return iso_strategy_at(i);
    return NULL;
}

static void list_names(char *text, size_t room) {
    size_t used = 0;
    for (int i = 0; i < iso_strategy_count() && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%s", i > 0 ? "|" : "",
                                 iso_strategy_at(i)->name);
}

iso_status iso_strategy_find(const char *name, const iso_strategy **out) {
    char names[400];
    ISO_CHECK(name, ISO_ERR_ARG, "iso_strategy_find needs the name of a strategy");
    const iso_strategy *found = find_strategy(name);
    if (!found) list_names(names, sizeof(names));
    ISO_CHECK(found, ISO_ERR_ARG, "unknown strategy \"%s\": give %s", name, names);
    *out = found;
    return ISO_OK;
}

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";

// A default that the setting does not take would fail in every run.
static iso_status check_setting(const char *name, const iso_setting *s) {
    bool chooses = s->kind == ISO_SETTING_CHOICE || s->kind == ISO_SETTING_INDEX;
    ISO_CHECK(s->key && s->key[0] && strlen(s->key) < NAME_ROOM && !s->key[strspn(s->key, letters)],
              ISO_ERR_ARG,
              "a setting of strategy \"%s\" needs a key: at most %d letters, digits and "
              "- _ .",
              name, NAME_ROOM - 1);
    ISO_CHECK((int)s->kind >= 0 && s->kind <= ISO_SETTING_TEXT && (!chooses || s->choices),
              ISO_ERR_ARG, "setting %s of strategy \"%s\" has an unknown kind, or no choices",
              s->key, name);
    if (!s->initial) return ISO_OK;
    char label[2 * NAME_ROOM + 40];
    snprintf(label, sizeof(label), "setting %s of strategy \"%s\": the default ", s->key, name);
    return iso_setting_set(s, label, s->initial, NULL);
}

static iso_status check_strategy(const iso_strategy *strategy) {
    ISO_CHECK(strategy && strategy->name && strategy->name[0], ISO_ERR_ARG,
              "a strategy needs a name to be registered");
    const char *name = strategy->name;
    ISO_CHECK(strlen(name) < NAME_ROOM && !name[strspn(name, letters)], ISO_ERR_ARG,
              "\"%.40s\" is not a valid strategy name: use at most %d letters, digits and - _ .",
              name, NAME_ROOM - 1);
    ISO_CHECK(!strategy->text ||
                  (strlen(strategy->text) < TEXT_ROOM && !strchr(strategy->text, '\n')),
              ISO_ERR_ARG, "the text of strategy \"%s\" must be one line of at most %d characters",
              name, TEXT_ROOM - 1);
    ISO_CHECK(!find_strategy(name), ISO_ERR_ARG,
              "strategy \"%s\" exists already: register yours under another name", name);
    for (int i = 0; i < strategy->setting_count; i++)
        ISO_TRY(check_setting(name, &strategy->setting[i]));
    return ISO_OK;
}

iso_status iso_strategy_register(const iso_strategy *strategy) {
    ISO_TRY(check_strategy(strategy));
    ISO_CHECK(registered_count < ISO_STRATEGIES_MAX, ISO_ERR_STATE,
              "strategy \"%s\" is one too many: at most %d can be registered", strategy->name,
              ISO_STRATEGIES_MAX);
    entry *e = &registered[registered_count++];
    e->strategy = *strategy;
    snprintf(e->name, sizeof(e->name), "%s", strategy->name);
    snprintf(e->text, sizeof(e->text), "%s", strategy->text ? strategy->text : "");
    e->strategy.name = e->name;
    e->strategy.text = e->text;
    return ISO_OK;
}

// ---- For trainers -------------------------------------------------------------------------------

iso_status iso_strategy_check(const iso_strategy *strategy, const iso_strategy_context *context,
                              char warning[ISO_STRATEGY_WARNING]) {
    warning[0] = 0;
    if (strategy->check) ISO_TRY(strategy->check(context, warning, strategy->user));
    return ISO_OK;
}

iso_status iso_strategy_wrap_module_take(const iso_strategy *strategy,
                                         const iso_strategy_context *context, iso_module *module,
                                         iso_module **out) {
    iso_status status;
    iso_module *made = NULL;
    *out = NULL; // often the caller's pointer to the module
    if (strategy->wrap_module)
        ISO_TRY_GOTO(strategy->wrap_module(context, module, &made, strategy->user));
    else
        ISO_TRY_GOTO(
            iso_data_parallel_create_take(module, context->comm, &context->data_parallel, &made));
    ISO_CHECK_GOTO(made && iso_data_parallel_module(made), ISO_ERR_ARG,
                   "wrap_module of strategy \"%s\" returned %s: it must return a DataParallel",
                   strategy->name, made ? made->ops->type : "nothing");
    *out = made;
    return ISO_OK;
fail:
    iso_module_destroy(&made);
    return status;
}

iso_status iso_strategy_wrap_optimizer_take(const iso_strategy *strategy,
                                            const iso_strategy_context *context,
                                            iso_optimizer *inner, iso_module *module,
                                            iso_optimizer **out) {
    iso_status status;
    iso_optimizer *made = NULL;
    *out = NULL;
    if (strategy->wrap_optimizer)
        ISO_TRY_GOTO(strategy->wrap_optimizer(context, inner, module, &made, strategy->user));
    else
        ISO_TRY_GOTO(iso_dp_optimizer_create_take(inner, module, &made));
    ISO_CHECK_GOTO(made, ISO_ERR_ARG, "wrap_optimizer of strategy \"%s\" returned no optimizer",
                   strategy->name);
    ISO_TRY_GOTO(iso_settings_check_used(context->settings, strategy->name));
    *out = made;
    return ISO_OK;
fail:
    iso_optimizer_destroy(&made);
    return status;
}

iso_status iso_strategy_reduce_gradients(const iso_strategy *strategy, iso_module *module) {
    if (!strategy->reduce_gradients) return ISO_OK;
    ISO_TRY(strategy->reduce_gradients(module, strategy->user));
    return ISO_OK;
}

iso_status iso_strategy_epoch_loss(const iso_strategy *strategy, iso_optimizer *optimizer,
                                   double loss, bool globally_averaged) {
    if (!strategy->epoch_loss) return ISO_OK;
    ISO_TRY(strategy->epoch_loss(optimizer, loss, globally_averaged));
    return ISO_OK;
}

iso_status iso_strategy_finish(const iso_strategy *strategy, iso_optimizer *optimizer) {
    if (!strategy->finish) return ISO_OK;
    ISO_TRY(strategy->finish(optimizer));
    return ISO_OK;
}

iso_status iso_strategy_complete(const iso_strategy *strategy, iso_optimizer *optimizer) {
    if (!strategy->complete) return ISO_OK;
    ISO_TRY(strategy->complete(optimizer, strategy->user));
    return ISO_OK;
}

iso_status iso_strategy_get_stats(const iso_strategy *strategy, iso_optimizer *optimizer,
                                  iso_strategy_stats *out) {
    iso_strategy_stats stats = {.syncs = -1};
    if (strategy->stats) ISO_TRY(strategy->stats(optimizer, &stats, strategy->user));
    ISO_CHECK(stats.metric_count >= 0 && stats.metric_count <= ISO_STRATEGY_METRICS, ISO_ERR_ARG,
              "strategy \"%s\" reports %d metrics: report at most %d", strategy->name,
              stats.metric_count, ISO_STRATEGY_METRICS);
    *out = stats;
    return ISO_OK;
}
