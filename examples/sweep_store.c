// Keeps the results of a sweep's finished runs in its folder, whole, whatever ends the program.
#include "sweep.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SETTINGS_ROOM = TRAIN_OPTIONS_ROOM + 512 };

// ---- Signals ------------------------------------------------------------------------------------

// Open MPI's mpirun kills its ranks a few milliseconds after it told them to stop, so that nothing
// can be agreed on. What is finished is on disk by then, and a file that is left behind is written
// over; where there is time, it is removed.
static char growing[PATH_MAX], farewell[PATH_MAX + 128];
static volatile sig_atomic_t busy, caught;

static _Noreturn void leave(int code) {
    unlink(growing);
    ssize_t written = write(STDERR_FILENO, farewell, strlen(farewell));
    (void)written;
    _exit(128 + code);
}

static void on_signal(int code) {
    caught = code;
    if (!busy) leave(code);
}

void sweep_store_catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void set_busy(bool value) {
    busy = value;
    if (!value && caught) leave(caught);
}

static int finished_runs(const sweep *self) {
    int count = 0;
    for (int i = 0; i < self->list.count; i++) count += self->results[i].name != NULL;
    return count;
}

static void say_farewell_later(const sweep *self) {
    snprintf(farewell, sizeof(farewell),
             "sweep: stopped; %d of %d runs are finished and in %s, where the same command goes "
             "on\n",
             finished_runs(self), self->list.count, self->folder);
}

// ---- Files --------------------------------------------------------------------------------------

static iso_status result_path(const sweep *self, int run, char out[PATH_MAX]) {
    int length =
        snprintf(out, PATH_MAX, "%s/%s.jsonl", self->folder, self->list.entries[run]->name);
    // What is added to it for growing files must fit, too.
    if (length < PATH_MAX - 64) return ISO_OK;
    return train_error(ISO_ERR_ARG, "the folder's name is too long: %.80s...", self->folder);
}

const char *sweep_store_begin(const sweep *self, int run) {
    snprintf(growing, sizeof(growing), "%s/.%s.jsonl.part", self->folder,
             self->list.entries[run]->name);
    say_farewell_later(self);
    return growing;
}

void sweep_store_drop(void) {
    unlink(growing);
    growing[0] = 0;
}

// ---- What a run was made with -------------------------------------------------------------------

static void settings_of(const sweep *self, int run, char text[SETTINGS_ROOM]) {
    const train_options *options = &self->options[run];
    train_options_text(options, true, text, TRAIN_OPTIONS_ROOM);
    size_t used = strlen(text);
    snprintf(text + used, SETTINGS_ROOM - used, "--data %.256s\n--eval-every %lld\n%d ranks\n",
             options->data, (long long)options->eval_every, self->world.ranks);
}

void sweep_store_describe(const sweep *self, int run, iso_json_log *log) {
    char settings[SETTINGS_ROOM];
    settings_of(self, run, settings);
    iso_json_begin(log, "run");
    iso_json_string(log, "name", self->list.entries[run]->name);
    iso_json_string(log, "options", self->list.entries[run]->options);
    iso_json_string(log, "settings", settings);
    iso_json_end(log);
}

static iso_status check_settings(const sweep *self, int run, const char *path, const char *before) {
    char now[SETTINGS_ROOM];
    settings_of(self, run, now);
    if (strcmp(before, now) == 0) return ISO_OK;
    size_t line = train_options_difference(before, now);
    return train_error(ISO_ERR_MISMATCH,
                       "%s was made with %.*s, and now it is %.*s: give the same options or "
                       "another --out",
                       path, (int)strcspn(before + line, "\n"), before + line,
                       (int)strcspn(now + line, "\n"), now + line);
}

// ---- Opening and finishing ----------------------------------------------------------------------

static iso_status take_finished(sweep *self, int run) {
    char path[PATH_MAX], *settings;
    TRY(result_path(self, run, path));
    if (access(path, F_OK) != 0) return ISO_OK;
    TRY(report_run_read(path, &self->results[run], &settings));
    iso_status status = check_settings(self, run, path, settings);
    free(settings);
    return status;
}

iso_status sweep_store_open(sweep *self) {
    char probe[PATH_MAX];
    struct stat info;
    if (mkdir(self->folder, 0777) != 0 && errno != EEXIST)
        return train_error(ISO_ERR_IO, "cannot make the folder %s: %s", self->folder,
                           strerror(errno));
    if (stat(self->folder, &info) == 0 && !S_ISDIR(info.st_mode))
        return train_error(ISO_ERR_IO, "%s is there already and is no folder: give another --out",
                           self->folder);
    snprintf(probe, sizeof(probe), "%s/report.html", self->folder);
    TRY(train_output_check(probe, "report"));
    for (int i = 0; i < self->list.count; i++) TRY(take_finished(self, i));
    return ISO_OK;
}

iso_status sweep_report(const sweep *self) {
    char setting[1024];
    const train_options *o = &self->common;
    snprintf(
        setting, sizeof(setting),
        "Data %.256s, network %s, %d rank%s on %d node%s, %s, seed %lld; isotherm " ISO_VERSION,
        o->data, o->model, self->world.ranks, self->world.ranks == 1 ? "" : "s", self->world.nodes,
        self->world.nodes == 1 ? "" : "s", iso_device_describe(self->world.device),
        (long long)o->seed);
    report study = {.title = "Strategies of synchronisation compared",
                    .setting = setting,
                    .target = self->target};
    study.runs = calloc((size_t)self->list.count, sizeof(*study.runs));
    if (!study.runs) return train_error(ISO_ERR_NOMEM, "out of memory for the report");
    for (int i = 0; i < self->list.count; i++)
        if (self->results[i].name) study.runs[study.count++] = self->results[i];
    iso_status status = report_write(&study, self->folder);
    free(study.runs);
    return status;
}

static iso_status keep(sweep *self, int run) {
    char path[PATH_MAX];
    TRY(result_path(self, run, path));
    if (rename(growing, path) != 0)
        return train_error(ISO_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    growing[0] = 0;
    TRY(report_run_read(path, &self->results[run], NULL));
    return sweep_report(self);
}

iso_status sweep_store_finish(sweep *self, int run) {
    set_busy(true);
    iso_status status = keep(self, run);
    say_farewell_later(self);
    set_busy(false);
    return status;
}
