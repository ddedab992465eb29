// SPDX-License-Identifier: MIT
// Reads the command line of the sweep program: its own options, those of all runs, and the list.
#include "sweep.h"

#include "support/usage.h"

#include <errno.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { EVAL_EVERY = 50, LIST_ROOM = 65536, HELP_WIDTH = 78 };

#define COUNT(array) ((int)(sizeof(array) / sizeof(*(array))))

// ---- Its own options ----------------------------------------------------------------------------

typedef struct command_line {
    char **common; // argv of train
    int common_count;
    option_list own;
} command_line;

#define SWITCH(name) .key = #name, .kind = ISO_SETTING_SWITCH, .offset = offsetof(sweep, name)
static const iso_setting own_setting[] = {
    {"out", ISO_SETTING_TEXT, offsetof(sweep, folder), .choices = "FOLDER",
     .meaning = "write results here: report.html, figures, CSV files, logs"},
    {"target", ISO_SETTING_NUMBER, offsetof(sweep, target), 0.01, 1, .initial = "0.985",
     .meaning = "target test accuracy; the report compares the time to reach it"},
    {"list", ISO_SETTING_TEXT, offsetof(sweep, file), .choices = "FILE",
     .meaning = "read runs from this file, one per line; # begins a comment"},
    {"seeds", ISO_SETTING_TEXT, offsetof(sweep, seeds), .choices = "N,N,...",
     .meaning = "make every run with each of these seeds, in place of --seed; the report then has "
                "means, 95 % intervals and paired tests"},
    {"baseline", ISO_SETTING_TEXT, offsetof(sweep, baseline), .choices = "NAME",
     .meaning = "run with which the others are compared (default: the first run)"},
    {"predict", ISO_SETTING_TEXT, offsetof(sweep, predict), .choices = "RATE[,LATENCY]",
     .meaning = "also report what each run would take on a slower network: RATE of each node in "
                "Mbit/s, LATENCY in ms more than measured (default 0)"},
    {"checkpoint-every", ISO_SETTING_INTEGER, offsetof(sweep, checkpoint_every), 1, 1e12,
     .meaning = "save the state of a run every N steps; a killed sweep then continues in the "
                "middle of the run"},
    {"shard", ISO_SETTING_TEXT, offsetof(sweep, shard), .choices = "I/N",
     .meaning = "make only the runs whose number, counted from 0, is I modulo N"},
    {"tensorboard", ISO_SETTING_TEXT, offsetof(sweep, tensorboard), .choices = "DIR",
     .meaning = "also write the numbers of each run for TensorBoard, to a folder in DIR that has "
                "the name of the run"},
    {"report", ISO_SETTING_TEXT, offsetof(sweep, report), .choices = "FOLDER...",
     .meaning = "make no runs; write one report on the runs of all these folders to --out "
                "(default: the only folder), without mpirun"},
    {SWITCH(quiet), .meaning = "print only errors and the library's warnings"},
    {SWITCH(help), .meaning = "print this text"},
    {SWITCH(version), .meaning = "print the version"},
};

static iso_status take_one(sweep *self, int argc, char **argv, int *i, command_line *line) {
    const char *value, *name = usage_is_help(argv[*i]) ? "--help" : argv[*i];
    int place;
    if (option_find(&line->own, name) < 0) {
        line->common[line->common_count++] = argv[*i];
        return ISO_OK;
    }
    TRY(train_error_of_library(option_take(&line->own, 1, argc, argv, i, &place, &value)));
    return train_error_of_library(option_set(line->own.item[place], value, self));
}

// A number from `least` on, and what follows it; NULL: it is none.
static const char *read_number(const char *text, double least, double *out) {
    char *end;
    double number = strtod(text, &end);
    if (end == text || text[0] == ' ' || !(number >= least && number <= 1e9)) return NULL;
    *out = number;
    return end;
}

static iso_status take_network(sweep *self) {
    report_network network = {0};
    if (!self->predict) return ISO_OK;
    const char *end = read_number(self->predict, 1e-3, &network.rate);
    if (end && *end == ',') end = read_number(end + 1, 0, &network.latency);
    if (!end || *end)
        return train_error(ISO_ERR_ARG,
                           "--predict %.80s: give RATE or RATE,LATENCY: Mbit/s from 0.001 to 1e9, "
                           "and ms",
                           self->predict);
    self->network = network;
    return ISO_OK;
}

// ---- Help ---------------------------------------------------------------------------------------

static void print_shared(void) {
    for (int i = 0, used = 0; i < train_option_count; i++) {
        const char *key = train_option_table[i].setting.key;
        if (!(train_option_table[i].scope & TRAIN_SHARED)) continue;
        bool full = used + (int)strlen(key) + 3 > HELP_WIDTH;
        used = (full ? 0 : used) + printf("%s--%s", full ? "\n    " : used > 0 ? " " : "    ", key);
    }
    puts("");
}

void sweep_help(void) {
    puts("Compares strategies: trains with each in turn, from the same initial parameters:\n"
         "mpirun -n RANKS sweep --out FOLDER [OPTION]... [-- \"NAME: OPTIONS\"...]\n"
         "Merges the reports of several sweeps: sweep --report FOLDER... --out FOLDER\n"
         "(installed as iso-sweep)\n");
    for (int i = 0; i < COUNT(own_setting); i++) option_print(&own_setting[i], NULL, stdout);
    printf(
        "\nOptions of train apply to all runs; --eval-every is %d unless given.\n"
        "A run is a name and options of train: \"daso: --sync daso --period 8\". A list of values\n"
        "makes several runs: daso with --period 4,8 gives daso-period4 and daso-period8.\n"
        "An interrupted sweep continues when started again with the same FOLDER: a run that has\n"
        "results there is not repeated, and stays in the report even if the list no longer has\n"
        "it.\n\n"
        "These options cannot differ between runs; give them before the --:\n",
        EVAL_EVERY);
    print_shared();
}

// ---- The list -----------------------------------------------------------------------------------

static iso_status read_list(const char *path, char text[LIST_ROOM]) {
    FILE *from = fopen(path, "r");
    if (!from) return train_error(ISO_ERR_IO, "cannot read the list %s: %s", path, strerror(errno));
    size_t size = fread(text, 1, LIST_ROOM, from);
    int error = ferror(from) ? errno : 0;
    fclose(from);
    if (error) return train_error(ISO_ERR_IO, "cannot read the list %s: %s", path, strerror(error));
    if (size == LIST_ROOM || memchr(text, 0, size))
        return train_error(ISO_ERR_FORMAT, "the list %s is not a text file of less than 64 KiB",
                           path);
    text[size] = 0;
    return ISO_OK;
}

// Collective. Rank 0 reads the list for all ranks, because others may be on other machines. Its
// command line decides whether there is one; without one, text stays empty.
static bool take_list(const char *path, char text[LIST_ROOM]) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!train_all_well(rank == 0 && path ? read_list(path, text) : ISO_OK)) return false;
    train_bcast(text, LIST_ROOM, 0, "the broadcast of the list of runs");
    return true;
}

// ---- What may be an option of a run -------------------------------------------------------------

// Whether the option is for train only, not for runs of a sweep.
static bool is_outside(const char *word) {
    const train_option *option = train_option_named(word);
    return option && option->scope == TRAIN_OUTSIDE;
}

static iso_status check_words(const command_line *line, const sweep_entry *entry) {
    for (int i = 0; i < entry->word_count; i++) {
        const char *word = entry->words[i];
        int length = (int)strcspn(word, "=");
        const train_option *option = train_option_named(word);
        if (option && option->scope & TRAIN_SHARED)
            return train_error(
                ISO_ERR_ARG,
                "run %s: %.*s is the same for all runs: give it before the --, not in the list",
                entry->name, length, word);
        if (is_outside(word) || option_find(&line->own, word) >= 0)
            return train_error(ISO_ERR_ARG, "run %s: %.*s is not an option of a run: remove it",
                               entry->name, length, word);
    }
    return ISO_OK;
}

// Whether the option belongs to another --sync than the default.
static bool is_of_other_sync(const char *word) {
    const iso_setting *s = train_setting_named(word);
    return s && !train_setting_of(train_option_named("--sync")->setting.initial, s->key);
}

static iso_status check_seed(const sweep *self, const command_line *line) {
    for (int i = 1; self->seeds && i < line->common_count; i++)
        if (option_is(line->common[i], "seed", "="))
            return train_error(ISO_ERR_ARG,
                               "--seed and --seeds say the same thing: give one of them");
    return ISO_OK;
}

// Call it before parsing, whose messages would name options that a sweep does not have.
static iso_status check_common(const command_line *line) {
    const train_option *sync = train_option_named("--sync");
    bool has_sync = false;
    for (int i = 1; i < line->common_count; i++)
        has_sync |= train_option_named(line->common[i]) == sync;
    for (int i = 1; i < line->common_count; i++) {
        const char *word = line->common[i];
        int length = (int)strcspn(word, "=");
        if (is_outside(word))
            return train_error(
                ISO_ERR_ARG, "%.*s is for train only; a sweep keeps its files in --out: remove it",
                length, word);
        bool known = train_option_named(word) || train_setting_named(word);
        if (strncmp(word, "--", 2) == 0 && !strstr(word, ": --") && !known)
            return train_options_refuse(word, &line->own);
        if (strstr(word, ": --"))
            return train_error(ISO_ERR_ARG, "\"%.80s\" is a run: give the runs after --", word);
        if (!has_sync && is_of_other_sync(word))
            return train_error(ISO_ERR_ARG,
                               "%.*s depends on --sync: give it in the list, with the runs whose "
                               "--sync has it",
                               length, word);
    }
    return ISO_OK;
}

// Options of all runs, then those of this one.
static iso_status parse_run(const sweep *self, const command_line *line, const sweep_entry *entry,
                            train_options *out) {
    TRY(check_words(line, entry));
    int count = line->common_count;
    char **words = calloc((size_t)(count + entry->word_count) + 1, sizeof(*words));
    if (!words) return train_error(ISO_ERR_NOMEM, "out of memory for the options of the runs");
    memcpy(words, line->common, (size_t)count * sizeof(*words));
    memcpy(words + count, entry->words, (size_t)entry->word_count * sizeof(*words));
    iso_status status = train_options_parse_over(count, count + entry->word_count, words, out);
    free(words);
    if (status == ISO_OK) status = train_options_check(out);
    if (status == ISO_OK) return ISO_OK;
    char why[400];
    snprintf(why, sizeof(why), "%s", train_error_text());
    // If the common options alone cause this error, the message names no run.
    if (train_options_check(&self->common) == status && strcmp(train_error_text(), why) == 0)
        return status;
    return train_error(status, "run %s: %s", entry->name, why);
}

static iso_status parse_runs(sweep *self, const command_line *line) {
    size_t count = (size_t)self->list.count;
    if (count == 0)
        return train_error(
            ISO_ERR_ARG,
            "there is nothing to compare: give runs after -- or with --list, see --help");
    self->options = calloc(count, sizeof(*self->options));
    self->results = calloc(count, sizeof(*self->results));
    if (!self->options || !self->results)
        return train_error(ISO_ERR_NOMEM, "out of memory for the options of the runs");
    for (int i = 0; i < self->list.count; i++) {
        TRY(parse_run(self, line, self->list.entries[i], &self->options[i]));
        int64_t seed = self->list.entries[i]->seed;
        if (seed >= 0) self->options[i].seed = seed;
        self->options[i].quiet = true;
        self->options[i].overwrite = true; // the log of a run that was interrupted
        if (self->options[i].eval_every <= 0) self->options[i].eval_every = EVAL_EVERY;
    }
    return ISO_OK;
}

// Collective. ISO_ERR_MISMATCH where this rank has other runs than rank 0.
static iso_status agree_on_runs(const sweep *self) {
    static char mine[LIST_ROOM], first[LIST_ROOM];
    size_t used = (size_t)snprintf(
        mine, sizeof(mine), "--out %s --target %.9g --baseline %s --checkpoint-every %lld\n",
        self->folder, self->target, self->baseline ? self->baseline : "not given",
        (long long)self->checkpoint_every);
    for (int i = 0; i < self->list.count && used < sizeof(mine); i++)
        used += (size_t)snprintf(mine + used, sizeof(mine) - used, "%s: %s\n",
                                 self->list.entries[i]->file, self->list.entries[i]->options);
    memcpy(first, mine, sizeof(first));
    train_bcast(first, sizeof(first), 0, "the broadcast of the runs");
    iso_status common = train_options_agree(&self->common); // on ranks with other runs, too
    if (strcmp(mine, first) == 0) return common;
    size_t line = train_options_difference(mine, first);
    return train_error(ISO_ERR_MISMATCH,
                       "started with \"%.*s\" where rank 0 has \"%.*s\": give every rank the same "
                       "arguments",
                       (int)strcspn(mine + line, "\n"), mine + line,
                       (int)strcspn(first + line, "\n"), first + line);
}

// ---- The whole ----------------------------------------------------------------------------------

// Takes what stands before --, and says where that is.
static iso_status take_common(sweep *self, int argc, char **argv, command_line *line, int *end) {
    int i = 1;
    line->common[line->common_count++] = argv[0];
    option_list_add(&line->own, own_setting, COUNT(own_setting));
    for (int k = 0; k < line->own.count; k++) TRY(option_set_default(line->own.item[k], self));
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) TRY(take_one(self, argc, argv, &i, line));
    *end = i;
    if (self->help || self->version) return ISO_OK;
    if (!self->folder)
        return train_error(ISO_ERR_ARG, "a sweep needs a folder for its results: --out FOLDER");
    TRY(take_network(self));
    TRY(check_seed(self, line));
    TRY(check_common(line));
    return train_options_parse(line->common_count, line->common, &self->common);
}

static iso_status check_baseline(const sweep *self) {
    for (int i = 0; self->baseline && i < self->list.count; i++)
        if (strcmp(self->list.entries[i]->name, self->baseline) == 0) return ISO_OK;
    if (!self->baseline || self->list.count == 0) return ISO_OK;
    return train_error(ISO_ERR_ARG, "--baseline %.80s is not the name of a run, such as %s",
                       self->baseline, self->list.entries[0]->name);
}

static iso_status take_runs(sweep *self, int count, char **runs, const char *listed,
                            const command_line *line) {
    TRY(sweep_list_add_lines(&self->list, listed));
    for (int i = 0; i < count; i++) TRY(sweep_list_add(&self->list, runs[i]));
    TRY(check_baseline(self));
    if (self->seeds) TRY(sweep_list_seeds(&self->list, self->seeds));
    if (self->shard) TRY(sweep_list_shard(&self->list, self->shard));
    return parse_runs(self, line);
}

static bool parse_line(sweep *self, int argc, char **argv, command_line *line) {
    static char listed[LIST_ROOM];
    int end = argc;
    if (!train_all_well(take_common(self, argc, argv, line, &end))) return false;
    if (self->help || self->version) return true;
    if (!take_list(self->file, listed)) return false;
    int runs = end < argc ? argc - end - 1 : 0;
    return train_all_well(take_runs(self, runs, argv + end + 1, listed, line)) &&
           train_all_well(agree_on_runs(self));
}

bool sweep_options_parse(sweep *self, int argc, char **argv) {
    command_line line = {.common = calloc((size_t)argc + 1, sizeof(*line.common))};
    bool good = train_all_well(
        line.common ? ISO_OK : train_error(ISO_ERR_NOMEM, "out of memory for the options"));
    good = good && parse_line(self, argc, argv, &line);
    free(line.common);
    return good;
}

// ---- Reports on several folders -----------------------------------------------------------------

bool sweep_options_wants_report(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (option_is(argv[i], "report", "=")) return true;
    return false;
}

static iso_status check_report(sweep *self, char **folders, int count) {
    const struct {
        const char *name, *value;
    } unused[] = {{"list", self->file},
                  {"seeds", self->seeds},
                  {"shard", self->shard},
                  {"tensorboard", self->tensorboard},
                  {"checkpoint-every", self->checkpoint_every > 0 ? "given" : NULL}};
    for (int i = 0; i < COUNT(unused); i++)
        if (unused[i].value)
            return train_error(ISO_ERR_ARG, "--%s is for runs, and --report makes none: remove it",
                               unused[i].name);
    if (!self->folder && count > 1)
        return train_error(ISO_ERR_ARG,
                           "a report on several folders needs one of its own: --out FOLDER");
    if (!self->folder) self->folder = folders[0];
    return take_network(self);
}

// Of a word that is no option of its own.
static iso_status take_folder(const char *word, const option_list *own) {
    if (strcmp(word, "--") == 0 || strstr(word, ": --"))
        return train_error(ISO_ERR_ARG, "--report makes no runs: remove %s", word);
    if (train_option_named(word) || train_setting_named(word))
        return train_error(ISO_ERR_ARG, "%s is for runs, and --report makes none: remove it", word);
    if (word[0] == '-') return train_error_of_library(option_refuse(own, word));
    return ISO_OK;
}

iso_status sweep_options_report(sweep *self, int argc, char **argv, char ***folders, int *count) {
    command_line line = {0};
    *count = 0;
    *folders = calloc((size_t)argc + 1, sizeof(**folders));
    if (!*folders) return train_error(ISO_ERR_NOMEM, "out of memory for the options");
    option_list_add(&line.own, own_setting, COUNT(own_setting));
    for (int k = 0; k < line.own.count; k++) TRY(option_set_default(line.own.item[k], self));
    line.common = *folders; // words that are no options of its own
    for (int i = 1; i < argc; i++) {
        bool first = option_is(argv[i], "report", "=");
        TRY(take_one(self, argc, argv, &i, &line));
        if (first) (*folders)[line.common_count++] = (char *)self->report;
    }
    *count = line.common_count;
    if (self->help || self->version) return ISO_OK;
    for (int i = 0; i < *count; i++) TRY(take_folder((*folders)[i], &line.own));
    return check_report(self, *folders, *count);
}
