// SPDX-License-Identifier: MIT
// Writes one report on the runs of several folders, without MPI.
#include "report_groups.h"
#include "sweep.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_same_result(const report_run *a, const report_run *b) {
    bool failed = a->failure != NULL; // both of them
    return failed || (a->test_accuracy == b->test_accuracy && a->train_loss == b->train_loss);
}

// A run that is there twice, as in a copy, is no second observation.
static iso_status take_file(sweep *self, const char *folder, const char *file, size_t length) {
    report_run run;
    if (!sweep_folder_read(folder, file, length, &run)) {
        self->omitted++;
        return ISO_OK;
    }
    for (int i = 0; i < self->earlier_count; i++) {
        const report_run *other = &self->earlier[i];
        if (!report_same_run(other, &run) || !other->failure != !run.failure) continue;
        fprintf(stderr, "sweep: %s/%s is a run of another folder, too%s\n", folder, file,
                is_same_result(other, &run)
                    ? ": the report has it once"
                    : ", with other results: the report has the first, not this one");
        report_run_free(&run);
        return ISO_OK;
    }
    iso_status status = sweep_add_earlier(self, &run);
    if (status < 0) report_run_free(&run);
    return status;
}

// Runs that were made first come first; those without a date last.
static bool is_earlier(const report_run *a, const report_run *b) {
    if (!a->date || !b->date) return a->date && !b->date;
    return strcmp(a->date, b->date) < 0;
}

static void sort_runs(sweep *self) {
    for (int i = 1; i < self->earlier_count; i++) {
        report_run run = self->earlier[i];
        int at = i;
        for (; at > 0 && is_earlier(&run, &self->earlier[at - 1]); at--)
            self->earlier[at] = self->earlier[at - 1];
        self->earlier[at] = run;
    }
}

// "NAME", or "NAME #2" where several modes have the name. Runs that failed have no mode.
static iso_status find_mode(const sweep *self, const char *name, bool *found) {
    report study = {.runs = calloc((size_t)self->earlier_count + 1, sizeof(*study.runs))};
    report_groups modes = {0};
    for (int i = 0; i < self->earlier_count && study.runs; i++)
        if (!self->earlier[i].failure) study.runs[study.count++] = self->earlier[i];
    iso_status status = study.runs
                            ? report_groups_make(&study, &modes)
                            : train_error(ISO_ERR_NOMEM, "out of memory for the list of modes");
    *found = false;
    for (int64_t i = 0; i < modes.count && status == ISO_OK; i++)
        *found |= strcmp(modes.groups[i].name, name) == 0;
    report_groups_free(&modes);
    free(study.runs);
    return status;
}

static iso_status check_runs(const sweep *self) {
    if (self->earlier_count == 0)
        return train_error(ISO_ERR_ARG, "--report: there are no results of a sweep in %s",
                           self->report);
    bool found = true;
    if (self->baseline) TRY(find_mode(self, self->baseline, &found));
    if (found) return ISO_OK;
    return train_error(ISO_ERR_ARG, "--baseline %.80s is not the name of a run, such as %s",
                       self->baseline, self->earlier[0].name);
}

static iso_status read_folders(sweep *self, char **folders, int count) {
    for (int i = 0; i < count; i++) TRY(sweep_folder_scan(folders[i], take_file, self));
    sweep_drop_outdated(self);
    TRY(check_runs(self));
    sort_runs(self);
    return ISO_OK;
}

// The lock comes first: the report of a sweep that ends meanwhile would be replaced by an older
// one. A new folder has no sweep, and is made only if there is something to report.
iso_status sweep_merge(sweep *self, char **folders, int count) {
    bool there = access(self->folder, F_OK) == 0;
    if (there) TRY(sweep_store_take_folder(self));
    TRY(read_folders(self, folders, count));
    if (!there) TRY(sweep_store_take_folder(self));
    return sweep_report(self);
}
