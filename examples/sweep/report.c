// SPDX-License-Identifier: MIT
// Writes the tables of a study. Each file of the report replaces the old one as a whole.
#include "report_impl.h"

#include "train/train_error.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

// ---- Which run is best --------------------------------------------------------------------------

const report_point *report_reached(const report_run *run, double accuracy) {
    for (int64_t i = 0; i < run->point_count; i++)
        if (run->points[i].test_accuracy >= accuracy) return &run->points[i];
    return NULL;
}

static double seconds_to(const report_run *run, double accuracy) {
    const report_point *point = report_reached(run, accuracy);
    return point && !isnan(point->seconds) ? point->seconds : INFINITY;
}

static bool is_better(const report *study, int64_t a, int64_t b) {
    const report_run *x = &study->runs[a], *y = &study->runs[b];
    double first = seconds_to(x, study->target), second = seconds_to(y, study->target);
    return first != second ? first < second : x->test_accuracy > y->test_accuracy;
}

void report_rank(const report *study, int64_t *order) {
    for (int64_t i = 0; i < study->count; i++) {
        int64_t at = i;
        for (; at > 0 && is_better(study, i, order[at - 1]); at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

double report_share_waited(const report_run *run) {
    return run->wait_ms_per_step * run->steps / 1e3 / run->seconds;
}

// ---- CSV (RFC 4180) -----------------------------------------------------------------------------

static void text_field(FILE *to, const char *text) {
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, to);
        return;
    }
    putc('"', to);
    for (; *text; text++) {
        if (*text == '"') putc('"', to);
        putc(*text, to);
    }
    putc('"', to);
}

// An unknown number is an empty field.
static void number_fields(FILE *to, const double *numbers, int count) {
    for (int i = 0; i < count; i++) {
        if (isfinite(numbers[i]))
            fprintf(to, ",%.10g", numbers[i]);
        else
            putc(',', to);
    }
}

static void write_points(FILE *to, const report *study) {
    fputs("run,step,seconds,bytes,train_loss,test_accuracy\r\n", to);
    for (int64_t r = 0; r < study->count; r++) {
        const report_run *run = &study->runs[r];
        for (int64_t i = 0; i < run->point_count; i++) {
            const report_point *p = &run->points[i];
            double numbers[] = {p->step, p->seconds, p->bytes, p->train_loss, p->test_accuracy};
            text_field(to, run->name);
            number_fields(to, numbers, 5);
            fputs("\r\n", to);
        }
    }
}

static void write_syncs(FILE *to, const report *study) {
    fputs("run,step,divergence,wait_ms,exchange_ms\r\n", to);
    for (int64_t r = 0; r < study->count; r++) {
        const report_run *run = &study->runs[r];
        for (int64_t i = 0; i < run->sync_count; i++) {
            const report_sync *s = &run->syncs[i];
            text_field(to, run->name);
            number_fields(to, (double[]){s->step, s->divergence, s->wait_ms, s->exchange_ms}, 4);
            fputs("\r\n", to);
        }
    }
}

enum { RUN_NUMBERS = 13 };

// Without numbers, and with a reason.
static void write_failed(FILE *to, const report *study) {
    double numbers[RUN_NUMBERS];
    for (int i = 0; i < RUN_NUMBERS; i++) numbers[i] = NAN;
    for (int64_t r = 0; r < study->failed_count; r++) {
        text_field(to, study->failed[r].name);
        putc(',', to);
        text_field(to, study->failed[r].options);
        number_fields(to, numbers, RUN_NUMBERS);
        fputs(",,,,,", to);
        text_field(to, study->failed[r].failure);
        fputs("\r\n", to);
    }
}

static void write_runs(FILE *to, const report *study) {
    fputs("run,options,target,seconds_to_target,steps_to_target,bytes_to_target,test_accuracy,"
          "train_loss,steps,seconds,steps_per_second,bytes,wait_ms_per_step,share_waited,syncs,"
          "period,period_requested,wait,wait_requested,failure\r\n",
          to);
    for (int64_t r = 0; r < study->count; r++) {
        const report_run *run = &study->runs[r];
        const report_point *at = report_reached(run, study->target);
        report_point none = {.step = NAN, .seconds = NAN, .bytes = NAN};
        if (!at) at = &none;
        double numbers[RUN_NUMBERS] = {study->target,
                                       at->seconds,
                                       at->step,
                                       at->bytes,
                                       run->test_accuracy,
                                       run->train_loss,
                                       run->steps,
                                       run->seconds,
                                       run->steps / run->seconds,
                                       run->bytes,
                                       run->wait_ms_per_step,
                                       report_share_waited(run),
                                       (double)run->sync_count};
        text_field(to, run->name);
        putc(',', to);
        text_field(to, run->options);
        number_fields(to, numbers, RUN_NUMBERS);
        fprintf(to, ",%s,%s,%s,%s,\r\n", run->period, run->period_requested, run->wait,
                run->wait_requested);
    }
    write_failed(to, study);
}

// ---- Files --------------------------------------------------------------------------------------

typedef void (*writer)(FILE *to, const report *study);

static iso_status write_file(const report *study, const char *folder, const char *name,
                             writer write) {
    char path[PATH_MAX], temporary[PATH_MAX];
    int length = snprintf(path, sizeof(path), "%s/%s", folder, name);
    int longer = snprintf(temporary, sizeof(temporary), "%s/.%s.part", folder, name);
    if (length >= PATH_MAX || longer >= PATH_MAX)
        return train_error(ISO_ERR_ARG, "the folder name is too long: %.80s...", folder);
    FILE *to = fopen(temporary, "w");
    if (!to) return train_error(ISO_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    write(to, study);
    bool good = fflush(to) == 0 && !ferror(to);
    good = fclose(to) == 0 && good;
    if (good && rename(temporary, path) == 0) return ISO_OK;
    int error = errno;
    unlink(temporary);
    return train_error(ISO_ERR_IO, "cannot write %s: %s", path, strerror(error));
}

iso_status report_write(const report *study, const char *folder) {
    TRY(write_file(study, folder, "points.csv", write_points));
    TRY(write_file(study, folder, "syncs.csv", write_syncs));
    TRY(write_file(study, folder, "runs.csv", write_runs));
    return write_file(study, folder, "report.html", report_write_html);
}
