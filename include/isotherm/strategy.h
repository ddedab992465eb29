// Synchronisation strategies by name: a training program offers them (`train --sync NAME`), and its
// user can add more.
//
// A strategy wraps a module and an optimizer. The wrappers do its work from step to step, so a
// training loop reads the same under every strategy:
//
//     iso_strategy_find(name, &strategy);
//     iso_strategy_wrap_module_take(strategy, &context, module, &module);
//     iso_optimizer_create(..., module, ..., &optimizer);
//     iso_strategy_wrap_optimizer_take(strategy, &context, optimizer, module, &optimizer);
//     each step:   zero_grad, forward, loss, backward, iso_strategy_reduce_gradients, step
//     each epoch:  iso_strategy_epoch_loss
//     before an evaluation or a save:  iso_strategy_complete
//     in the end:  iso_strategy_finish
//
// Built in: blocking, lazy and explicit (iso_sync in isotherm/reducer.h); daso, daso-heat,
// localsgd and postlocal (isotherm/daso.h). Each publishes its settings, which are options of
// train: so are those of a strategy that a program registers.
#ifndef ISOTHERM_STRATEGY_H
#define ISOTHERM_STRATEGY_H

#include <isotherm/daso.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- Settings -------------------------------------------------------------------------------------

// A setting: what it is called, what it may be, and the field of a struct that takes its value. A
// strategy publishes a table of them. A trainer makes options, their help and its checks of it.
typedef enum iso_setting_kind {
    ISO_SETTING_SWITCH,  // bool: "yes" or "no"; an option without a value is "yes"
    ISO_SETTING_INTEGER, // int64_t
    ISO_SETTING_NUMBER,  // double
    ISO_SETTING_CHOICE,  // const char *, one of choices
    ISO_SETTING_INDEX,   // int: the place of the value among choices, from 0
    ISO_SETTING_TEXT     // const char *
} iso_setting_kind;
typedef struct iso_setting {
    const char *key; // the option without its dashes: letters, digits and -
    iso_setting_kind kind;
    size_t offset;          // of the field
    double low, high;       // INTEGER, NUMBER: the range, both ends included
    const char *choices;    // "keep|average|reset"; TEXT: what a help calls the value, "FILE"
    const char *word;       // INTEGER: a word that stands for -1, "auto"; NULL: none
    const char *initial;    // the default, as one gives it; NULL: the field stays as it is
    const char *meaning;    // one line, for a help
    const char *of, *among; // only where setting `of` has one of these values; NULL: everywhere
} iso_setting;

// Writes value to the setting's field of the struct at fields (NULL: only checks it). Texts are
// borrowed. ISO_ERR_ARG for a value that the setting does not take, with a sentence that says what
// it takes. label: what stands before the value there, "--period " or "setting period=".
iso_status iso_setting_set(const iso_setting *setting, const char *label, const char *value,
                           void *fields);
// Whether value is one of choices, "keep|average|reset".
bool iso_setting_among(const char *value, const char *choices);

// A list of keys and values, both texts: "period", "8". Local.
typedef struct iso_settings iso_settings;

iso_status iso_settings_create(iso_settings **out);
void iso_settings_destroy(iso_settings **settings);
// Copies. ISO_ERR_ARG for an empty key, and for one that is there already.
iso_status iso_settings_add(iso_settings *settings, const char *key, const char *value);
// Adds what a text "KEY=VALUE,KEY=VALUE" lists.
iso_status iso_settings_parse(iso_settings *settings, const char *text);
// Whether there is one.
bool iso_settings_has(const iso_settings *settings, const char *key);

// The value of a key; *out stays as it is where there is none, or where settings is NULL. A value
// that is no (whole) number from low to high, or none of choices ("keep|average|reset"), is
// ISO_ERR_ARG with a sentence that names key and value. choices NULL: any text. Texts are borrowed.
iso_status iso_settings_int(iso_settings *settings, const char *key, int64_t low, int64_t high,
                            int64_t *out);
iso_status iso_settings_number(iso_settings *settings, const char *key, double low, double high,
                               double *out);
iso_status iso_settings_text(iso_settings *settings, const char *key, const char *choices,
                             const char **out);
// Fills in the fields of a table: what there is in settings, else the defaults.
iso_status iso_settings_read(iso_settings *settings, const iso_setting *table, int count,
                             void *fields);
// The text of a value, which counts as asked for; NULL: there is none.
const char *iso_settings_get(iso_settings *settings, const char *key);
// ISO_ERR_ARG, naming the key, for a key that nobody has asked for so far. whose: for the message.
iso_status iso_settings_check_used(const iso_settings *settings, const char *whose);

// ---- What a strategy is ---------------------------------------------------------------------------

// What a strategy knows about the training. Borrowed for the call.
typedef struct iso_strategy_context {
    iso_comm *comm;
    // What the trainer wants of the data_parallel module; a strategy changes what it must.
    iso_data_parallel_config data_parallel;
    int64_t total_steps, steps_per_epoch; // updates
    iso_settings *settings;               // may be NULL
} iso_strategy_context;

// A metric of a strategy: a number under a name that the strategy chooses.
typedef struct iso_strategy_figure {
    char name[32];
    double value; // NaN: not known
} iso_strategy_figure;
#define ISO_STRATEGY_FIGURES 16

// What a strategy reports about itself, as this rank sees it. A trainer prints it, and adds the
// waits and bytes to those of gradients. Every field is optional.
typedef struct iso_strategy_stats {
    int64_t syncs;  // exchanges of parameters that are complete; -1: the strategy makes none
    int64_t period; // steps between two of them, in force; 0: it has none
    int64_t wait;   // steps from the send of one until it is merged, in force; -1: not yet known
    int64_t period_requested, wait_requested; // what was asked for; -1: automatic
    int64_t local_period; // steps between averages of gradients in a node; 0: it has none
    int64_t last_age;     // steps between send and merge of the last one
    const char *phase;    // a word; NULL: it has none
    double wait_ms;       // in waits, total
    double last_wait_ms;  // in the last exchange
    double exchange_ms;   // that the last exchange took; 0: not measured
    double divergence;    // of the replicas, relative to their mean; 0: not measured
    int64_t bytes_sent, bytes_between_nodes; // total, as iso_traffic (isotherm/comm.h) says
    char reason[128];                        // why period and wait changed last
    int figure_count;                        // what else there is to report
    iso_strategy_figure figure[ISO_STRATEGY_FIGURES];
} iso_strategy_stats;

// Any function may be NULL. user is handed to those that have it.
typedef struct iso_strategy {
    const char *name; // letters, digits and - _ . ; at most 31
    const char *text; // one line for lists of what there is, at most 119 letters; may be NULL
    // Collective. As iso_data_parallel_create_take, which it ends in: what it makes is a
    // data_parallel. NULL: iso_data_parallel_create_take(module, comm, &data_parallel, out).
    iso_status (*wrap_module)(const iso_strategy_context *context, iso_module *module,
                              iso_module **out, void *user);
    // Collective. Takes inner, on failure too; to be tied to module, which wrap_module has made,
    // and wrapped further (an optimizer of one's own has a table iso_optimizer_ops). NULL:
    // iso_dp_optimizer_create_take(inner, module, out).
    iso_status (*wrap_optimizer)(const iso_strategy_context *context, iso_optimizer *inner,
                                 iso_module *module, iso_optimizer **out, void *user);
    // Collective. After the last backward of an update, before anyone looks at gradients: averages
    // them, if backward has not.
    iso_status (*reduce_gradients)(iso_module *module, void *user);
    // As iso_daso_epoch_loss, and iso_daso_finish, after which parameters are equal on all ranks.
    iso_status (*epoch_loss)(iso_optimizer *optimizer, double loss, bool globally_averaged);
    iso_status (*finish)(iso_optimizer *optimizer);
    // Collective. As iso_daso_complete: waits until what is under way has arrived, and changes no
    // parameter.
    iso_status (*complete)(iso_optimizer *optimizer, void *user);
    // Local. Fills in what the strategy knows of itself; *out comes with syncs -1 and all else 0.
    iso_status (*stats)(iso_optimizer *optimizer, iso_strategy_stats *out, void *user);
    bool f32_only; // a trainer refuses parameters of another element type
    // What it reads from the context's settings, by iso_settings_read or one by one. Borrowed for
    // as long as the process.
    const iso_setting *setting;
    int setting_count;
    void *user;
} iso_strategy;

// ---- The list of them -----------------------------------------------------------------------------

// Local; every rank registers the same, before it looks for any, from one thread. Copies, and holds
// as long as the process. ISO_ERR_ARG for a name, text or setting that cannot be, and for a name
// that is taken; ISO_ERR_STATE when ISO_STRATEGIES_MAX are registered.
#define ISO_STRATEGIES_MAX 32
iso_status iso_strategy_register(const iso_strategy *strategy);
// ISO_ERR_ARG, with a sentence that lists all names, when there is none of that name. What is found
// lives as long as the process.
iso_status iso_strategy_find(const char *name, const iso_strategy **out);
// The library's own first, then others in the order in which they were registered.
int iso_strategy_count(void);
const iso_strategy *iso_strategy_at(int i); // NULL: there is no i

// ---- For trainers ---------------------------------------------------------------------------------

// Collective over context->comm. As the functions of the table; the second returns ISO_ERR_ARG for
// a setting that neither of them has asked for.
iso_status iso_strategy_wrap_module_take(const iso_strategy *strategy,
                                         const iso_strategy_context *context, iso_module *module,
                                         iso_module **out);
iso_status iso_strategy_wrap_optimizer_take(const iso_strategy *strategy,
                                            const iso_strategy_context *context,
                                            iso_optimizer *inner, iso_module *module,
                                            iso_optimizer **out);
// Do nothing where the strategy has no such function.
iso_status iso_strategy_reduce_gradients(const iso_strategy *strategy, iso_module *module);
iso_status iso_strategy_epoch_loss(const iso_strategy *strategy, iso_optimizer *optimizer,
                                   double loss, bool globally_averaged);
iso_status iso_strategy_finish(const iso_strategy *strategy, iso_optimizer *optimizer);
// Where time is measured: call it before the clock stops. What is under way then belongs to the
// steps before, and an evaluation or a save that found it would wait for it unnoticed.
iso_status iso_strategy_complete(const iso_strategy *strategy, iso_optimizer *optimizer);
// Local. syncs -1 and all else 0 where the strategy tells nothing.
iso_status iso_strategy_get_stats(const iso_strategy *strategy, iso_optimizer *optimizer,
                                  iso_strategy_stats *out);

#ifdef __cplusplus
}
#endif
#endif
