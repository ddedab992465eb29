// SPDX-License-Identifier: MIT
// Logs each change of period and wait, and reads those of an earlier run from its log (--replay).
#include "train.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_ROOM = 4096 };

// In the order of iso_daso_cause.
static const char *const cause_name[] = {"sync", "epoch", "measured", "rank"};

void train_replay_note(const iso_daso_change *change, void *user) {
    iso_json_log *log = ((train_run *)user)->log; // NULL on other ranks, and without --log
    iso_json_begin(log, "change");
    iso_json_int(log, "step", change->step);
    iso_json_string(log, "cause", cause_name[change->cause]);
    if (change->cause == ISO_CAUSE_RANK) {
        iso_json_int(log, "rank", change->rank);
        iso_json_int(log, "actions", change->actions);
    } else {
        iso_json_int(log, "global_skip", change->global_skip);
        iso_json_int(log, "local_skip", change->local_skip);
        iso_json_int(log, "batches_to_wait", change->batches_to_wait);
    }
    iso_json_end(log);
}

// ---- What has to be the same --------------------------------------------------------------------

// Who the ranks are, and where ranks that exchange at their own steps meet. A run that meets
// elsewhere would wait for ever.
enum { CONDITIONS = 7 };
typedef struct condition {
    const char *name; // of the option; the first one: of the launcher
    int64_t value;
} condition;

static int64_t setting_number(const train_options *o, const char *key) {
    const char *text = train_setting_text(o, key);
    return text ? strtoll(text, NULL, 10) : 0;
}

static void list_conditions(const train_run *run, condition out[CONDITIONS]) {
    const train_options *o = run->options;
    const condition all[CONDITIONS] = {{"ranks", run->world->ranks},
                                       {"servers", setting_number(o, "servers")},
                                       {"period", setting_number(o, "period")},
                                       {"batch", o->batch},
                                       {"accumulate", o->accumulate},
                                       {"eval-every", o->eval_every},
                                       {"checkpoint-every", o->checkpoint_every}};
    memcpy(out, all, sizeof(all));
}

void train_replay_begin(const train_run *run) {
    condition all[CONDITIONS];
    const char *sync = run->options->sync;
    if (!train_setting_of(sync, "push-scale") && !train_setting_of(sync, "sync-interval-ms"))
        return;
    list_conditions(run, all);
    iso_json_begin(run->log, "apart");
    for (int i = 0; i < CONDITIONS; i++) iso_json_int(run->log, all[i].name, all[i].value);
    iso_json_end(run->log);
}

static iso_status check_conditions(const train_run *run, const char *path, const char *line) {
    condition all[CONDITIONS];
    char key[32];
    list_conditions(run, all);
    for (int i = 0; i < CONDITIONS; i++) {
        long long other;
        snprintf(key, sizeof(key), "\"%s\":", all[i].name);
        const char *at = strstr(line, key);
        bool known = at && sscanf(at + strlen(key), "%lld", &other) == 1;
        if (known && other != all[i].value)
            return train_error(ISO_ERR_ARG,
                               "the log %s is of a run with %s%s %lld, and this one has %lld: "
                               "--replay repeats it with the same only (-1: not given)",
                               path, i > 0 ? "--" : "", all[i].name, other,
                               (long long)all[i].value);
    }
    return ISO_OK;
}

// ---- Reading ------------------------------------------------------------------------------------

typedef struct change_list {
    const train_run *run; // that repeats them
    iso_daso_change *at;
    int64_t count, room;
} change_list;

// What a rank did at its own step.
enum { MOST_ACTIONS = 3 + 4 * 5, SERVER_ACTIONS = 8 }; // of iso_daso_change; for each other rank

static bool parse_rank(const char *line, int ranks, iso_daso_change *out) {
    long long step;
    int rank, actions, end = 0;
    int most = SERVER_ACTIONS * ranks > MOST_ACTIONS ? SERVER_ACTIONS * ranks : MOST_ACTIONS;
    sscanf(line,
           "{\"event\":\"change\",\"step\":%lld,\"cause\":\"rank\",\"rank\":%d,\"actions\":%d}%n",
           &step, &rank, &actions, &end);
    if (end == 0 || step < 1 || rank < 0 || actions < 1 || actions > most) return false;
    *out =
        (iso_daso_change){.step = step, .cause = ISO_CAUSE_RANK, .rank = rank, .actions = actions};
    return true;
}

static bool parse_change(const char *line, iso_daso_change *out) {
    long long step, skip, local, wait;
    char cause[16];
    int end = 0;
    sscanf(line,
           "{\"event\":\"change\",\"step\":%lld,\"cause\":\"%15[a-z]\",\"global_skip\":%lld,"
           "\"local_skip\":%lld,\"batches_to_wait\":%lld}%n",
           &step, cause, &skip, &local, &wait, &end);
    if (end == 0 || step < 0 || skip < 1 || local < 1 || wait < -1) return false;
    for (int i = 0; i < ISO_CAUSE_RANK; i++) {
        if (strcmp(cause, cause_name[i]) != 0) continue;
        *out = (iso_daso_change){.step = step,
                                 .cause = (iso_daso_cause)i,
                                 .global_skip = skip,
                                 .local_skip = local,
                                 .batches_to_wait = wait};
        return true;
    }
    return false;
}

static iso_status add_change(change_list *list, iso_daso_change change) {
    if (list->count == list->room) {
        int64_t room = list->room ? 2 * list->room : 64;
        void *more = realloc(list->at, (size_t)room * sizeof(*list->at));
        if (!more) return train_error(ISO_ERR_NOMEM, "out of memory for the changes of --replay");
        list->at = more;
        list->room = room;
    }
    list->at[list->count++] = change;
    return ISO_OK;
}

// The run went on from an earlier state: what it had done after that does not count.
static void drop_after(change_list *list, const char *line) {
    long long step = -1;
    if (sscanf(line, "{\"event\":\"resume\",\"step\":%lld", &step) != 1) return;
    while (list->count > 0 && list->at[list->count - 1].step > step) list->count--;
}

// Changes of another run may be wanted, but the bits are not repeated.
static void warn_of_other(const char *path, const char *line, const char *name, int64_t own) {
    char key[32];
    long long other;
    snprintf(key, sizeof(key), "\"%s\":", name);
    const char *at = strstr(line, key);
    if (!at || sscanf(at + strlen(key), "%lld", &other) != 1 || other == own) return;
    fprintf(stderr,
            "%s: warning: the log %s is of a run with --%s %lld: --replay repeats its changes, but "
            "not its bits\n",
            train_error_name(), path, name, other);
}

// A log that has no summary, of a run that was killed, cannot be compared.
static iso_status check_summary(const change_list *list, const char *path, const char *line) {
    const char *at = strstr(line, "\"sync\":\"");
    char sync[64] = "";
    int ranks = 0;
    if (sscanf(line, "{\"event\":\"summary\",\"ranks\":%d,", &ranks) != 1 || !at) return ISO_OK;
    sscanf(at, "\"sync\":\"%63[^\"]", sync);
    const train_options *own = list->run->options;
    if (ranks != iso_comm_size(list->run->world->comm) || strcmp(sync, own->sync) != 0)
        return train_error(
            ISO_ERR_ARG,
            "the log %s is of a run on %d rank%s with --sync %s: --replay repeats it with "
            "these only",
            path, ranks, ranks == 1 ? "" : "s", sync);
    warn_of_other(path, line, "seed", own->seed);
    warn_of_other(path, line, "batch", own->batch);
    return ISO_OK;
}

static iso_status take_line(const char *path, int64_t number, const char *line, change_list *list) {
    static const char change[] = "{\"event\":\"change\",", resume[] = "{\"event\":\"resume\",";
    static const char apart[] = "{\"event\":\"apart\",";
    iso_daso_change read;
    if (strncmp(line, apart, sizeof(apart) - 1) == 0)
        return check_conditions(list->run, path, line);
    if (strncmp(line, resume, sizeof(resume) - 1) == 0) drop_after(list, line);
    if (strncmp(line, change, sizeof(change) - 1) != 0) return check_summary(list, path, line);
    int ranks = iso_comm_size(list->run->world->comm);
    if (!parse_rank(line, ranks, &read) && !parse_change(line, &read))
        return train_error(ISO_ERR_FORMAT, "the log %s is damaged in line %lld", path,
                           (long long)number);
    return add_change(list, read);
}

// Actions of single ranks are logged for all ranks where they meet, and another event follows. If
// some are missing, ranks that repeat them would wait for each other.
static iso_status check_end(const change_list *list, const char *path, bool among_changes) {
    if (list->count == 0)
        return train_error(ISO_ERR_FORMAT,
                           "the log %s has no change of period or wait: there is nothing to "
                           "--replay",
                           path);
    const iso_daso_change *last = &list->at[list->count - 1];
    if (among_changes && last->cause == ISO_CAUSE_RANK)
        return train_error(
            ISO_ERR_FORMAT,
            "the log %s ends among the changes of ranks, at step %lld of rank %d: it "
            "is incomplete, and cannot be repeated",
            path, (long long)last->step, last->rank);
    return ISO_OK;
}

static iso_status read_lines(FILE *from, const char *path, change_list *list) {
    char line[LINE_ROOM];
    int64_t number = 0, before = 0;
    bool begins = true; // a longer line is no change
    while (fgets(line, sizeof(line), from)) {
        number += begins;
        before = list->count;
        if (begins) TRY(take_line(path, number, line, list));
        begins = strchr(line, '\n') != NULL;
    }
    if (ferror(from))
        return train_error(ISO_ERR_IO, "cannot read the log %s: %s", path, strerror(errno));
    return check_end(list, path, list->count > before);
}

static iso_status read_log(const char *path, change_list *list) {
    FILE *from = fopen(path, "r");
    if (!from) return train_error(ISO_ERR_IO, "cannot read the log %s: %s", path, strerror(errno));
    iso_status status = read_lines(from, path, list);
    fclose(from);
    return status;
}

iso_status train_replay_read(train_run *run) {
    change_list list = {.run = run};
    const char *path = run->options->replay;
    if (!path || run->world->rank != 0) return ISO_OK;
    iso_status status = read_log(path, &list);
    run->replay = list.at;
    run->replay_count = list.count;
    return status;
}

// ---- For all ranks ------------------------------------------------------------------------------

iso_status train_replay_share(train_run *run) {
    static const char what[] = "the broadcast of the changes of --replay";
    iso_status status = ISO_OK;
    if (!run->options->replay) return ISO_OK;
    train_bcast(&run->replay_count, sizeof(run->replay_count), 0, what);
    if (!run->replay) run->replay = calloc((size_t)run->replay_count, sizeof(*run->replay));
    if (!run->replay) status = iso_error_set(ISO_ERR_NOMEM, "out of memory for --replay");
    TRY(iso_comm_agree(run->world->comm, status));
    train_bcast(run->replay, (size_t)run->replay_count * sizeof(*run->replay), 0, what);
    return ISO_OK;
}
