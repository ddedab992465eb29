// SPDX-License-Identifier: MIT
// Reads the results of runs in a folder.
#include "sweep.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_result(const struct dirent *entry) {
    const char *name = entry->d_name;
    size_t length = strlen(name);
    return name[0] != '.' && ((length > 6 && strcmp(name + length - 6, ".jsonl") == 0) ||
                              (length > 7 && strcmp(name + length - 7, ".failed") == 0));
}

// A run that failed and succeeded later, in a sweep that was killed before it removed the first.
static bool is_outdated(const char *folder, const char *file, size_t length) {
    char path[PATH_MAX];
    if (strcmp(file + length, ".failed") != 0) return false;
    int used = snprintf(path, sizeof(path), "%s/%.*s.jsonl", folder, (int)length, file);
    return used < PATH_MAX && access(path, F_OK) == 0;
}

iso_status sweep_folder_scan(const char *folder, sweep_take_file take, sweep *self) {
    struct dirent **found = NULL;
    iso_status status = ISO_OK;
    int count = scandir(folder, &found, is_result, alphasort);
    if (count < 0)
        return train_error(ISO_ERR_IO, "cannot read the folder %s: %s", folder, strerror(errno));
    for (int i = 0; i < count; i++) {
        const char *file = found[i]->d_name;
        size_t length = (size_t)(strrchr(file, '.') - file);
        if (status == ISO_OK && !is_outdated(folder, file, length))
            status = take(self, folder, file, length);
        free(found[i]);
    }
    free(found);
    return status;
}

// ---- Folders of others --------------------------------------------------------------------------

static bool has_page(const char *folder) {
    char path[PATH_MAX], text[1024];
    if (snprintf(path, sizeof(path), "%s/report.html", folder) >= PATH_MAX) return false;
    FILE *from = fopen(path, "r");
    if (!from) return false;
    text[fread(text, 1, sizeof(text) - 1, from)] = 0;
    fclose(from);
    return strstr(text, "<title>" SWEEP_TITLE "</title>") != NULL;
}

// A log of train has no settings.
static bool has_log(const char *folder) {
    char path[PATH_MAX];
    struct dirent **found = NULL;
    int count = scandir(folder, &found, is_result, alphasort);
    bool has = false;
    for (int i = 0; i < count; i++) {
        int length = snprintf(path, sizeof(path), "%s/%s", folder, found[i]->d_name);
        char *settings = has || length >= PATH_MAX ? NULL : report_log_settings(path);
        has = has || settings;
        free(settings);
        free(found[i]);
    }
    free(found);
    return has;
}

iso_status sweep_folder_check(const char *folder) {
    char path[PATH_MAX];
    const char *name;
    for (int i = 0; (name = report_file(i)); i++) {
        int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
        if (length >= PATH_MAX || access(path, F_OK) != 0) continue;
        if (has_page(folder) || has_log(folder)) return ISO_OK;
        return train_error(ISO_ERR_STATE,
                           "%s has a file %s that no sweep has written: give another --out, or "
                           "move it away",
                           folder, name);
    }
    return ISO_OK;
}

// ---- Results ------------------------------------------------------------------------------------

// Whether a file of this name holds the run: NAME or NAME-seedN.
static bool is_file_of(const report_run *run, const char *file, size_t length) {
    char seeded[SWEEP_NAME + 32];
    snprintf(seeded, sizeof(seeded), "%.*s-seed%.0f", SWEEP_NAME, run->name, run->seed);
    const char *own[] = {run->name, seeded};
    for (int i = 0; i < 2; i++)
        if (strlen(own[i]) == length && strncmp(own[i], file, length) == 0) return true;
    return false;
}

bool sweep_folder_read(const char *folder, const char *file, size_t length, report_run *out) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/%s", folder, file) >= PATH_MAX) return false;
    iso_status status = report_run_read(path, out);
    if (status == ISO_OK && is_file_of(out, file, length)) return true;
    if (status < 0)
        fprintf(stderr, "sweep: %s; the report omits it\n", train_error_text());
    else
        fprintf(stderr, "sweep: %s holds the run %s: the report omits it\n", path, out->name);
    if (status == ISO_OK) report_run_free(out);
    (void)train_error(ISO_OK, "%s", ""); // no error
    return false;
}

iso_status sweep_add_earlier(sweep *self, const report_run *run) {
    size_t room = ((size_t)self->earlier_count + 1) * sizeof(*self->earlier);
    report_run *longer = realloc(self->earlier, room);
    if (!longer) return train_error(ISO_ERR_NOMEM, "out of memory for the list of runs");
    self->earlier = longer;
    self->earlier[self->earlier_count++] = *run;
    return ISO_OK;
}

// Whether `run` succeeded, and did not begin before `failed` as far as is known.
static bool succeeded_after(const report_run *run, const report_run *failed) {
    bool before = run->date && failed->date && strcmp(run->date, failed->date) < 0;
    return !run->failure && !before && report_same_run(run, failed);
}

// Whether the report has what came of the run: a run of the list counts as the last attempt.
static bool is_known(const sweep *self, const report_run *failed) {
    for (int i = 0; i < self->list.count; i++)
        if (self->results[i].name && report_same_run(&self->results[i], failed)) return true;
    for (int i = 0; i < self->earlier_count; i++)
        if (succeeded_after(&self->earlier[i], failed)) return true;
    return false;
}

void sweep_drop_outdated(sweep *self) {
    int kept = 0;
    for (int i = 0; i < self->earlier_count; i++) {
        report_run *run = &self->earlier[i];
        if (run->failure && is_known(self, run))
            report_run_free(run);
        else
            self->earlier[kept++] = *run;
    }
    self->earlier_count = kept;
}
