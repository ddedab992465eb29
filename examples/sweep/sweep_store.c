// SPDX-License-Identifier: MIT
// Keeps the results of a sweep's finished runs in its folder. They are complete however the program
// ends.
#include "report_groups.h"
#include "sweep.h"

#include "support/watch.h"
#include "train/train_lock.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- Signals ------------------------------------------------------------------------------------

// Open MPI's mpirun kills its ranks a few milliseconds after it tells them to stop, so ranks cannot
// agree on anything. Finished results are on disk by then. An incomplete log is never read: it is
// removed if there is time, else when the next sweep begins the run.
static char growing[PATH_MAX], farewell[PATH_MAX + 128];
static bool stays; // the growing log: the run can be continued
static pthread_mutex_t files = PTHREAD_MUTEX_INITIALIZER; // held while results are written

// In the thread that receives signals.
static void say_farewell(int code) {
    (void)code;
    pthread_mutex_lock(&files);
    if (!stays) unlink(growing);
    fputs(farewell, stderr);
}

void sweep_store_tell_stopped(void) { fputs(farewell, stderr); }
void sweep_store_catch_signals(void) { watch_farewell(say_farewell); }

// A run that failed is not made again by this sweep.
static int left_runs(const sweep *self) {
    int count = 0;
    for (int i = 0; i < self->list.count; i++) count += !self->results[i].name;
    return count;
}

static int finished_runs(const sweep *self) {
    int count = 0;
    for (int i = 0; i < self->list.count; i++)
        count += self->results[i].name && !self->results[i].failure;
    return count;
}

static void say_farewell_later(const sweep *self) {
    int runs = self->list.count;
    snprintf(
        farewell, sizeof(farewell),
        "sweep: stopped; %s has the results of %d of %d run%s, and the same command continues\n",
        self->folder, finished_runs(self), runs, runs == 1 ? "" : "s");
}

// ---- Files --------------------------------------------------------------------------------------

// ending: ".jsonl", or ".failed" for the log of a run that failed.
static iso_status result_path(const sweep *self, int run, const char *ending, char out[PATH_MAX]) {
    int length =
        snprintf(out, PATH_MAX, "%s/%s%s", self->folder, self->list.entries[run]->file, ending);
    // What is added to it for growing files must fit, too.
    if (length < PATH_MAX - 64) return ISO_OK;
    return train_error(ISO_ERR_ARG, "the folder name is too long: %.80s...", self->folder);
}

const char *sweep_store_log(const sweep *self, int run) {
    pthread_mutex_lock(&files);
    snprintf(growing, sizeof(growing), "%s/.%s.jsonl.part", self->folder,
             self->list.entries[run]->file);
    stays = self->checkpoint_every > 0;
    pthread_mutex_unlock(&files);
    return growing;
}

const char *sweep_store_board(const sweep *self, int run) {
    static char folder[PATH_MAX];
    if (!self->tensorboard) return NULL;
    snprintf(folder, sizeof(folder), "%s/%s", self->tensorboard, self->list.entries[run]->file);
    return folder;
}

void sweep_store_begin(const sweep *self, bool continues) {
    pthread_mutex_lock(&files);
    if (!continues) unlink(growing); // of a sweep that was stopped
    say_farewell_later(self);
    pthread_mutex_unlock(&files);
}

// ---- What a run was made with -------------------------------------------------------------------

static size_t line_length(const char *text) { return strcspn(text, "\n"); }

// The line of ranks, which is the last, begins with their number.
static const char *same_line(const char *text, const char *line, char room[TRAIN_LINE_ROOM]) {
    const char *last = strrchr(text, '-');
    if (line[0] == '-')
        return train_setting_default_line(text, train_options_line(text, line), room);
    return last ? last + line_length(last) + 1 : NULL;
}

// all: the run is in the list, so all settings must be the same; for other runs, only those that
// all runs share. Lines that only one version lists do not count.
static iso_status check_settings(const sweep *self, int run, const char *path, const char *before,
                                 bool all) {
    char now[SWEEP_SETTINGS_ROOM], room[TRAIN_LINE_ROOM];
    sweep_settings(self, run, now);
    for (const char *line = now; *line; line += line_length(line) + 1) {
        size_t length = line_length(line);
        const char *old = same_line(before, line, room);
        const train_option *option = train_option_named(line);
        bool shared = option && option->scope & TRAIN_SHARED;
        bool seed = self->seeds && report_is_seed_line(line);
        if (!old || (line[0] == '-' && !all && (!shared || seed))) continue;
        if (line_length(old) != length || strncmp(old, line, length) != 0)
            return train_error(ISO_ERR_MISMATCH,
                               "%s was made with %.*s, and now it is %.*s: give the same options "
                               "or another --out",
                               path, (int)line_length(old), old, (int)length, line);
    }
    return ISO_OK;
}

// ---- Opening and finishing ----------------------------------------------------------------------

// The report shows a failed run until it is tried again.
static iso_status take_failed(sweep *self, int run) {
    char path[PATH_MAX];
    TRY(result_path(self, run, ".failed", path));
    if (access(path, F_OK) != 0 || report_run_read(path, &self->results[run]) == ISO_OK)
        return ISO_OK;
    return train_error(ISO_OK, "%s", ""); // damaged: no error, and nothing lost
}

static iso_status take_finished(sweep *self, int run) {
    char path[PATH_MAX];
    TRY(result_path(self, run, ".jsonl", path));
    if (access(path, F_OK) != 0) return take_failed(self, run);
    TRY(report_run_read(path, &self->results[run]));
    return check_settings(self, run, path, self->results[run].settings, true);
}

static bool is_listed(const sweep *self, const char *name, size_t length) {
    for (int i = 0; i < self->list.count; i++) {
        const char *listed = self->list.entries[i]->file;
        if (strlen(listed) == length && strncmp(listed, name, length) == 0) return true;
    }
    return false;
}

// A run of an earlier sweep that the list of this one does not have.
static iso_status take_earlier(sweep *self, const char *folder, const char *file, size_t length) {
    char path[PATH_MAX];
    report_run run;
    if (is_listed(self, file, length) || !sweep_folder_read(folder, file, length, &run))
        return ISO_OK;
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    iso_status status = check_settings(self, 0, path, run.settings, false);
    if (status == ISO_OK) status = sweep_add_earlier(self, &run);
    if (status < 0) report_run_free(&run);
    return status;
}

// A run made without --seeds (NAME) and one of a list of seeds (NAME-seedN) are the same if their
// seeds are equal.
static void adopt_file(sweep *self, int run) {
    sweep_entry *entry = self->list.entries[run];
    int64_t seed = self->options[run].seed;
    char path[PATH_MAX], other[sizeof(entry->file)], own[sizeof(entry->file)];
    report_run found;
    snprintf(other, sizeof(other), entry->seed < 0 ? "%s-seed%lld" : "%s", entry->name,
             (long long)seed);
    if (result_path(self, run, ".jsonl", path) < 0 || access(path, F_OK) == 0) return;
    memcpy(own, entry->file, sizeof(own));
    memcpy(entry->file, other, sizeof(other));
    bool taken = result_path(self, run, ".jsonl", path) == ISO_OK && access(path, F_OK) == 0 &&
                 report_run_read(path, &found) == ISO_OK;
    bool same = taken && found.seed == (double)seed && strcmp(found.name, entry->name) == 0;
    if (taken) report_run_free(&found);
    if (!same) memcpy(entry->file, own, sizeof(own));
    (void)train_error(ISO_OK, "%s", "");
}

// The lock is in the folder itself, because a folder can have several names.
static iso_status take_lock(const sweep *self) {
    static char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/.lock", self->folder) >= PATH_MAX)
        return train_error(ISO_ERR_ARG, "the folder name is too long: %.80s...", self->folder);
    return train_lock_take(&(train_lock){self->folder, path, "sweep", "--out"});
}

iso_status sweep_store_take_folder(const sweep *self) {
    char probe[PATH_MAX];
    struct stat info;
    if (mkdir(self->folder, 0777) != 0 && errno != EEXIST)
        return train_error(ISO_ERR_IO, "cannot make the folder %s: %s", self->folder,
                           strerror(errno));
    if (stat(self->folder, &info) == 0 && !S_ISDIR(info.st_mode))
        return train_error(ISO_ERR_IO, "%s exists and is not a folder: give another --out",
                           self->folder);
    snprintf(probe, sizeof(probe), "%s/report.html", self->folder);
    TRY(train_output_check(probe, "report"));
    TRY(take_lock(self)); // or another sweep writes while the folder is checked
    return sweep_folder_check(self->folder);
}

iso_status sweep_store_open(sweep *self) {
    TRY(sweep_store_take_folder(self));
    for (int i = 0; i < self->list.count; i++) adopt_file(self, i);
    for (int i = 0; i < self->list.count; i++) TRY(take_finished(self, i));
    TRY(sweep_folder_scan(self->folder, take_earlier, self));
    sweep_drop_outdated(self);
    return ISO_OK;
}

void sweep_store_close(void) { train_lock_release(); }

// By default the first run, whether it succeeds or not.
static const char *baseline_of(const sweep *self) {
    if (self->baseline) return self->baseline;
    if (self->list.count > 0) return self->list.entries[0]->name;
    return self->earlier_count > 0 ? self->earlier[0].name : NULL;
}

static void add_to_report(report *study, const report_run *run) {
    if (run->failure)
        study->failed[study->failed_count++] = *run;
    else if (run->name)
        study->runs[study->count++] = *run;
}

// A run of the list, made or not.
static void add_listed(report *study, const sweep *self, int run) {
    sweep_entry *entry = self->list.entries[run];
    add_to_report(study, &self->results[run]);
    if (!self->results[run].name)
        study->left[study->left_count++] = (report_run){.name = entry->name,
                                                        .options = entry->options,
                                                        .seed = (double)self->options[run].seed};
}

iso_status sweep_report(const sweep *self) {
    report study = {.title = SWEEP_TITLE,
                    .target = self->target,
                    .baseline = baseline_of(self),
                    .network = self->network,
                    .final = left_runs(self) == 0};
    size_t count = (size_t)(self->list.count + self->earlier_count);
    study.runs = calloc(count, sizeof(*study.runs));
    study.failed = calloc(count, sizeof(*study.failed));
    study.left = calloc(count, sizeof(*study.left));
    iso_status status = ISO_OK;
    if (!study.runs || !study.failed || !study.left)
        status = train_error(ISO_ERR_NOMEM, "out of memory for the report");
    for (int i = 0; i < self->list.count && status == ISO_OK; i++) add_listed(&study, self, i);
    for (int i = 0; i < self->earlier_count && status == ISO_OK; i++)
        add_to_report(&study, &self->earlier[i]);
    if (status == ISO_OK) status = report_write(&study, self->folder);
    free(study.runs);
    free(study.failed);
    free(study.left);
    return status;
}

static iso_status take_result(sweep *self, int run, const char *path) {
    report_run_free(&self->results[run]);
    TRY(report_run_read(path, &self->results[run]));
    sweep_drop_outdated(self);
    return sweep_report(self);
}

// Puts the log in its place, and what it says into the report.
static iso_status keep_log(sweep *self, int run, const char *ending) {
    char path[PATH_MAX];
    TRY(result_path(self, run, ending, path));
    if (rename(growing, path) != 0)
        return train_error(ISO_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    growing[0] = 0;
    return take_result(self, run, path);
}

static iso_status keep_finished(sweep *self, int run) {
    char failed[PATH_MAX];
    TRY(keep_log(self, run, ".jsonl"));
    TRY(result_path(self, run, ".failed", failed));
    unlink(failed); // it failed before
    return ISO_OK;
}

static iso_status end_with_reason(iso_json_log *log, const char *reason) {
    iso_json_begin(log, "failed");
    iso_json_string(log, "reason", reason);
    iso_json_end(log);
    return iso_json_log_close(&log);
}

// The log may not have been begun.
static iso_status keep_failed(sweep *self, int run, const char *reason) {
    iso_json_log *log;
    bool begun = access(growing, F_OK) == 0;
    TRY(begun ? iso_json_log_append(growing, &log) : iso_json_log_create(growing, &log));
    if (!begun) sweep_describe(self, run, log);
    TRY(end_with_reason(log, reason));
    return keep_log(self, run, ".failed");
}

// Not into the log, to which rank 0 may still write.
void sweep_store_lost(const sweep *self, int run, const char *reason) {
    char path[PATH_MAX], part[PATH_MAX + 32];
    iso_json_log *log = NULL;
    if (result_path(self, run, ".failed", path) < 0) return;
    snprintf(part, sizeof(part), "%s.tmp.%ld", path, (long)getpid());
    if (iso_json_log_create(part, &log) < 0) return;
    sweep_describe(self, run, log);
    if (end_with_reason(log, reason) < 0 || rename(part, path) != 0) unlink(part);
}

iso_status sweep_store_finish(sweep *self, int run) {
    pthread_mutex_lock(&files);
    iso_status status = keep_finished(self, run);
    say_farewell_later(self);
    pthread_mutex_unlock(&files);
    return status;
}

// The run may go on, so its log stays where it is.
static iso_status note_failed(sweep *self, int run, const char *reason) {
    char path[PATH_MAX];
    sweep_store_lost(self, run, reason);
    TRY(result_path(self, run, ".failed", path));
    return take_result(self, run, path);
}

iso_status sweep_store_fail(sweep *self, int run, const char *reason, bool goes_on) {
    pthread_mutex_lock(&files);
    iso_status status = (goes_on ? note_failed : keep_failed)(self, run, reason);
    say_farewell_later(self);
    pthread_mutex_unlock(&files);
    return status;
}
