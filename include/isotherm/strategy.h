// SPDX-License-Identifier: MIT
// Synchronisation strategies by name. A training program offers them (iso-train --sync NAME), and
// you can register your own.
//
// A strategy wraps a module and an optimizer. The wrappers do its work in each step, so the
// training loop is the same with every strategy:
//
//     iso_strategy_find(name, &strategy);
//     iso_strategy_check(strategy, &context, warning);
//     iso_strategy_wrap_module_take(strategy, &context, module, &module);
//     iso_optimizer_create(..., module, ..., &optimizer);
//     iso_strategy_wrap_optimizer_take(strategy, &context, optimizer, module, &optimizer);
//     each step:   zero_grad, forward, loss, backward, iso_strategy_reduce_gradients, step
//     each epoch:  iso_strategy_epoch_loss
//     before an evaluation or a save:  iso_strategy_complete
//     at the end:  iso_strategy_finish
//
// Built in: blocking, lazy and explicit (iso_sync in isotherm/reducer.h); daso, daso-heat, localsgd
// and postlocal (isotherm/daso.h); slowmo, diloco, streaming-diloco and overlap-localsgd, which are
// daso with an outer optimizer (isotherm/outer.h); gossip and async (isotherm/daso.h); tournament
// (isotherm/tournament.h). The settings that a strategy publishes become options of iso-train, also
// those of strategies that a plugin registers.
#ifndef ISOTHERM_STRATEGY_H
#define ISOTHERM_STRATEGY_H

#include <isotherm/daso.h>
#include <isotherm/version.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- Settings -------------------------------------------------------------------------------------

// A setting of a strategy: its name, its type and range, and the struct field for its value. A
// strategy publishes a table of settings. A trainer derives options, help and checks from it.
typedef enum iso_setting_kind {
    ISO_SETTING_SWITCH,  // bool: "yes" or "no"; an option without a value is "yes"
    ISO_SETTING_INTEGER, // int64_t
    ISO_SETTING_NUMBER,  // double
    ISO_SETTING_CHOICE,  // const char *, one of choices
    ISO_SETTING_INDEX,   // int: the index of the value in choices
    ISO_SETTING_TEXT     // const char *
} iso_setting_kind;
typedef struct iso_setting {
    const char *key; // the option without its dashes; characters as in a strategy's name
    iso_setting_kind kind;
    size_t offset;       // of the field
    double low, high;    // INTEGER, NUMBER: the range, inclusive
    const char *choices; // CHOICE, INDEX: "keep|average|reset"; TEXT: placeholder in help, "FILE"
    const char *word;    // INTEGER: a word that means -1, e.g. "auto"; NULL: none
    const char *initial; // the default, as text; NULL: the field keeps its value
    const char *meaning; // one line for help
    const char *of, *among; // applies only if setting `of` has a value in `among`; NULL: always
    const char *instead;    // another setting for the same thing: give only one of the two
} iso_setting;

// Parses value and writes it to the setting's field of the struct at fields (NULL: only checks it).
// Texts are borrowed. ISO_ERR_ARG for a value that the setting does not allow; the message names
// the allowed values. label precedes the value in the message, e.g. "--period " or "setting
// period=".
iso_status iso_setting_set(const iso_setting *setting, const char *label, const char *value,
                           void *fields);
// Whether value is one of choices, e.g. "keep|average|reset".
bool iso_setting_among(const char *value, const char *choices);

// A list of keys and values, both as text, e.g. "period" and "8". All calls are local.
typedef struct iso_settings iso_settings;

iso_status iso_settings_create(iso_settings **out);
void iso_settings_destroy(iso_settings **settings);
// Copies key and value. ISO_ERR_ARG for an empty key, or a key in use.
iso_status iso_settings_add(iso_settings *settings, const char *key, const char *value);
// Parses and adds "KEY=VALUE,KEY=VALUE".
iso_status iso_settings_parse(iso_settings *settings, const char *text);
// Whether the key is in the list.
bool iso_settings_has(const iso_settings *settings, const char *key);

// Return the value of a key and mark the key as used. Without such a key, or with settings NULL,
// *out keeps its value. ISO_ERR_ARG for a value that is not a number in [low, high] (int: a whole
// number), or not one of choices ("keep|average|reset"; NULL: any text); the message names key and
// value. Texts are borrowed.
iso_status iso_settings_int(iso_settings *settings, const char *key, int64_t low, int64_t high,
                            int64_t *out);
iso_status iso_settings_number(iso_settings *settings, const char *key, double low, double high,
                               double *out);
iso_status iso_settings_text(iso_settings *settings, const char *key, const char *choices,
                             const char **out);
// Fills the fields of a table: with the values in settings, else with the defaults.
iso_status iso_settings_read(iso_settings *settings, const iso_setting *table, int count,
                             void *fields);
// The value of a key as text, or NULL. Marks the key as used.
const char *iso_settings_get(iso_settings *settings, const char *key);
// ISO_ERR_ARG if a key has not been used; the message names the key. whose: for the message.
iso_status iso_settings_check_used(const iso_settings *settings, const char *whose);

// ---- The table of a strategy ----------------------------------------------------------------------

// The training, as seen by a strategy. Borrowed for the call.
typedef struct iso_strategy_context {
    iso_comm *comm;
    // The config that the trainer wants for data_parallel. A strategy changes what it needs to.
    iso_data_parallel_config data_parallel;
    int64_t total_steps, steps_per_epoch; // updates
    iso_settings *settings;               // may be NULL
    // As in iso_daso_config, for strategies that are daso with other settings; others ignore them.
    // The program train offers --replay for strategies that have a setting named "period"
    // or "sync-interval-ms". With the latter, ranks exchange at their own steps, so train ends the
    // job on the first rank that notices a failed exchange.
    void (*changed)(const iso_daso_change *change, void *user);
    void *changed_user;
    const iso_daso_change *replay;
    int64_t replay_count;
    bool extends;
    // For strategies with tournaments: score, told, user and seed. NULL: no samples are held out.
    const iso_tournament *tournament;
} iso_strategy_context;

// A metric that a strategy defines.
typedef struct iso_strategy_metric {
    char name[32];
    double value; // NaN: not known
} iso_strategy_metric;
#define ISO_STRATEGY_METRICS 16

// Statistics of a strategy, on this rank. A trainer prints them, and adds waits and bytes to those
// of gradients. Every field is optional.
typedef struct iso_strategy_stats {
    int64_t syncs;  // completed exchanges of parameters; -1: the strategy exchanges none
    int64_t period; // current number of steps between two exchanges; 0: none
    int64_t wait;   // current number of steps from send to merge; -1: not yet known
    int64_t period_requested, wait_requested; // as configured; -1: automatic
    int64_t local_period; // steps between averages of gradients inside a node; 0: none
    int64_t last_age;     // steps from send to merge of the last exchange
    const char *phase;    // one word; NULL: none
    double wait_ms;       // total time in waits
    double last_wait_ms;  // time in waits of the last exchange
    double work_ms;       // total time of converting, summing and merging; 0: not measured
    double exchange_ms;   // duration of the last exchange; 0: not measured
    double divergence;    // of the replicas, relative to the norm of their mean; 0: not measured
    int64_t bytes_sent, bytes_between_nodes; // total, counted as in iso_traffic (isotherm/comm.h)
    char reason[128];                        // of the last change of period or wait
    int metric_count;                        // further metrics
    iso_strategy_metric metric[ISO_STRATEGY_METRICS];
} iso_strategy_stats;

// Any function may be NULL. user is passed to those that take it.
#define ISO_STRATEGY_WARNING 300
typedef struct iso_strategy {
    const char *name; // at most 31 characters: letters, digits, '-', '_' and '.'
    const char *text; // one line for lists of strategies, at most 119 characters; may be NULL
    // Local. Checks that the settings are consistent. ISO_ERR_ARG if they conflict. Called first
    // with comm NULL and total_steps 0, before the training is known, and again with both set.
    // warning is empty on entry. Write a sentence there if a setting is allowed but has no effect.
    // Name settings as options, e.g. "--period 8".
    iso_status (*check)(const iso_strategy_context *context, char warning[ISO_STRATEGY_WARNING],
                        void *user);
    // Collective. As iso_data_parallel_create_take; the result must be a data_parallel. NULL:
    // iso_data_parallel_create_take(module, comm, &data_parallel, out).
    iso_status (*wrap_module)(const iso_strategy_context *context, iso_module *module,
                              iso_module **out, void *user);
    // Collective. Takes inner, also on failure. Ties it to module, the result of wrap_module, and
    // may wrap it further (your own optimizer needs an iso_optimizer_ops). NULL:
    // iso_dp_optimizer_create_take(inner, module, out).
    iso_status (*wrap_optimizer)(const iso_strategy_context *context, iso_optimizer *inner,
                                 iso_module *module, iso_optimizer **out, void *user);
    // Collective. Called after the last backward of an update, before gradients are used. Averages
    // them unless backward has done so.
    iso_status (*reduce_gradients)(iso_module *module, void *user);
    // As iso_daso_epoch_loss and iso_daso_finish. After finish, parameters are equal on all ranks.
    iso_status (*epoch_loss)(iso_optimizer *optimizer, double loss, bool globally_averaged);
    iso_status (*finish)(iso_optimizer *optimizer);
    // Collective. As iso_daso_complete: waits for the exchange in flight and changes no parameter.
    iso_status (*complete)(iso_optimizer *optimizer, void *user);
    // Local. Fills in the statistics; on entry syncs is -1 and all else 0.
    iso_status (*stats)(iso_optimizer *optimizer, iso_strategy_stats *out, void *user);
    // The settings that it reads from the context, by iso_settings_read or one by one. Borrowed for
    // the lifetime of the process.
    const iso_setting *setting;
    int setting_count;
    void *user;
} iso_strategy;

// ---- Registry -------------------------------------------------------------------------------------

// Local. Registers a copy for the lifetime of the process. Every rank registers the same
// strategies, from one thread, before any call of iso_strategy_find. ISO_ERR_ARG for an invalid
// name, text or setting, or a name in use. ISO_ERR_STATE if ISO_STRATEGIES_MAX are registered.
#define ISO_STRATEGIES_MAX 32
iso_status iso_strategy_register(const iso_strategy *strategy);
// Finds a strategy by name. *out is valid for the lifetime of the process. ISO_ERR_ARG for an
// unknown name; the message lists all names.
iso_status iso_strategy_find(const char *name, const iso_strategy **out);
// The strategies: built-in ones first, then others in the order of registration.
int iso_strategy_count(void);
const iso_strategy *iso_strategy_at(int i); // NULL: there is no strategy i

// ---- Plugins --------------------------------------------------------------------------------------

// A plugin is a shared object with strategies of your own, which iso-train and iso-sweep load with
// --plugin FILE.so. Write ISO_PLUGIN; in one of its files. This macro declares the function
//
//     iso_status iso_plugin_init(void);
//
// Define it: it calls iso_strategy_register, once for each strategy. The program calls it once on
// every rank, after MPI_Init and before it reads its options. If it returns an error, the program
// ends on every rank, with the message of iso_error_set. ISO_PLUGIN also defines
// iso_plugin_version, by which a program of another minor version refuses the plugin without
// calling it. Link the plugin with the shared library that the program uses.
// examples/plugin_diloco.c is a complete plugin.
#ifdef __cplusplus
#define ISO_PLUGIN_LINKAGE extern "C"
#else
#define ISO_PLUGIN_LINKAGE extern
#endif
#define ISO_PLUGIN                                                                                 \
    ISO_PLUGIN_LINKAGE iso_status iso_plugin_init(void);                                           \
    ISO_PLUGIN_LINKAGE const int iso_plugin_version[2];                                            \
    const int iso_plugin_version[2] = {ISO_VERSION_MAJOR, ISO_VERSION_MINOR}

// ---- For trainers ---------------------------------------------------------------------------------

// Local. As the function of the table. warning is empty if there is no warning.
iso_status iso_strategy_check(const iso_strategy *strategy, const iso_strategy_context *context,
                              char warning[ISO_STRATEGY_WARNING]);
// Collective over context->comm. As the functions of the table. The second one also returns
// ISO_ERR_ARG for a setting that neither function has used.
iso_status iso_strategy_wrap_module_take(const iso_strategy *strategy,
                                         const iso_strategy_context *context, iso_module *module,
                                         iso_module **out);
iso_status iso_strategy_wrap_optimizer_take(const iso_strategy *strategy,
                                            const iso_strategy_context *context,
                                            iso_optimizer *inner, iso_module *module,
                                            iso_optimizer **out);
// Call the functions of the table. They do nothing if the strategy has no such function.
iso_status iso_strategy_reduce_gradients(const iso_strategy *strategy, iso_module *module);
iso_status iso_strategy_epoch_loss(const iso_strategy *strategy, iso_optimizer *optimizer,
                                   double loss, bool globally_averaged);
iso_status iso_strategy_finish(const iso_strategy *strategy, iso_optimizer *optimizer);
// To measure time, call it before you stop the timer. Otherwise the next evaluation or save waits
// for the exchange in flight, which is part of the training time.
iso_status iso_strategy_complete(const iso_strategy *strategy, iso_optimizer *optimizer);
// Local. If the strategy has no statistics, syncs is -1 and all else 0.
iso_status iso_strategy_get_stats(const iso_strategy *strategy, iso_optimizer *optimizer,
                                  iso_strategy_stats *out);

#ifdef __cplusplus
}
#endif
#endif
