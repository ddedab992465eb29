// SPDX-License-Identifier: MIT
// Reads the log of a training run: one flat JSON object in each line, as iso_json_log writes them.
#include "report.h"

#include "train/train_error.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

// ---- A flat JSON object -------------------------------------------------------------------------

// The end of the string whose first quote is at `at`.
static const char *past_string(const char *at) {
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1]) at++;
    return *at ? at + 1 : at;
}

// Where the value of key begins; NULL: the object has none.
static const char *value_of(const char *line, const char *key) {
    size_t length = strlen(key);
    const char *at = strchr(line, '{');
    while (at && *at && *at != '}') {
        const char *name = strchr(at, '"');
        if (!name) return NULL;
        const char *colon = past_string(name);
        if (*colon != ':') return NULL;
        bool found = strncmp(name + 1, key, length) == 0 && name[1 + length] == '"';
        if (found) return colon + 1;
        at = colon[1] == '"' ? past_string(colon + 1) : colon + 1 + strcspn(colon + 1, ",}");
    }
    return NULL;
}

static double number_of(const char *line, const char *key) {
    const char *value = value_of(line, key);
    char *end;
    double number = value ? strtod(value, &end) : NAN;
    return value && end > value ? number : NAN; // also null
}

// \u00XX is what iso_json_string writes for control characters; others do not occur. Takes no more
// than past_string does, whatever a damaged log has after a backslash.
static char take_unescaped(const char **at) {
    char code[5] = "";
    char c = (*at)[1];
    if (**at != '\\' || !c) return *(*at)++;
    if (c != 'u' || strspn(*at + 2, "0123456789abcdefABCDEF") < 4) {
        *at += 2;
        return c;
    }
    memcpy(code, *at + 2, 4);
    *at += 6;
    long value = strtol(code, NULL, 16);
    return value > 0 && value < 0x80 ? (char)value : '?';
}

// A copy that the caller frees; NULL: there is none.
static char *string_of(const char *line, const char *key) {
    const char *value = value_of(line, key);
    if (!value || *value != '"') return NULL;
    const char *end = past_string(value);
    char *text = malloc((size_t)(end - value) + 1), *to = text;
    if (!text) return NULL;
    for (value++; *value && *value != '"';) *to++ = take_unescaped(&value);
    *to = 0;
    return text;
}

static bool is_event(const char *line, const char *event) {
    const char *value = value_of(line, "event");
    size_t length = strlen(event);
    return value && strncmp(value + 1, event, length) == 0 && value[1 + length] == '"';
}

// ---- Damage -------------------------------------------------------------------------------------

static bool is_string_end(const char *at, const char *end) {
    for (const char *c = at; c < end; c++)
        if ((unsigned char)*c < ' ') return false;
    return end[-1] == '"';
}

// What follows the string, number or word at `at`; NULL: it is none.
static const char *past_value(const char *at) {
    static const char *const words[] = {"null", "true", "false"};
    const char *end = at;
    if (*at == '"') {
        end = past_string(at);
        return end > at + 1 && is_string_end(at, end) ? end : NULL;
    }
    for (int i = 0; i < 3; i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0) return at + strlen(words[i]);
    if (*at == '-' || (*at >= '0' && *at <= '9')) (void)strtod(at, (char **)&end);
    return end > at ? end : NULL;
}

// Whether the line is one flat JSON object; NUL bytes end it early.
static bool is_object(const char *line, size_t length) {
    const char *at = line;
    if (strlen(line) != length || *at != '{') return false;
    do {
        if (*++at != '"' || !(at = past_value(at)) || *at != ':') return false;
        if (!(at = past_value(at + 1))) return false;
    } while (*at == ',');
    return strcmp(at, "}\n") == 0 || strcmp(at, "}") == 0;
}

// ---- Events -------------------------------------------------------------------------------------

// Room for one more at the end of an array whose room is the next power of two.
static void *grow_array(void *items, int64_t count, size_t size) {
    bool full = (count & (count - 1)) == 0;
    return full ? realloc(items, (size_t)(count ? 2 * count : 1) * size) : items;
}

static iso_status add_point(report_run *run, const char *line) {
    report_point *points = grow_array(run->points, run->point_count, sizeof(*points));
    if (!points) return train_error(ISO_ERR_NOMEM, "out of memory for the results of a run");
    run->points = points;
    points[run->point_count++] =
        (report_point){.step = number_of(line, "step"),
                       .seconds = number_of(line, "seconds"),
                       .bytes = number_of(line, "bytes_sent"),
                       .between = number_of(line, "bytes_between_nodes"),
                       .parameters = number_of(line, "parameter_bytes_between_nodes"),
                       .wait_ms_per_step = number_of(line, "wait_ms_per_step"),
                       .train_loss = number_of(line, "train_loss"),
                       .test_accuracy = number_of(line, "test_accuracy")};
    return ISO_OK;
}

static iso_status add_sync(report_run *run, const char *line) {
    report_sync *syncs = grow_array(run->syncs, run->sync_count, sizeof(*syncs));
    if (!syncs) return train_error(ISO_ERR_NOMEM, "out of memory for the results of a run");
    run->syncs = syncs;
    syncs[run->sync_count++] = (report_sync){.step = number_of(line, "step"),
                                             .divergence = number_of(line, "divergence"),
                                             .wait_ms = number_of(line, "wait_ms"),
                                             .exchange_ms = number_of(line, "exchange_ms"),
                                             .seconds = NAN,
                                             .period = number_of(line, "global_skip"),
                                             .wait = number_of(line, "batches_to_wait"),
                                             .age = number_of(line, "age"),
                                             .between = number_of(line, "bytes_between_nodes")};
    return ISO_OK;
}

// When a step was made, between two evaluations or between the start and the first one.
static double seconds_at(const report_run *run, double step) {
    report_point before = {0};
    for (int64_t i = 0; i < run->point_count; i++) {
        const report_point *after = &run->points[i];
        if (after->step >= step)
            return before.seconds + (after->seconds - before.seconds) * (step - before.step) /
                                        (after->step - before.step);
        before = *after;
    }
    return NAN;
}

// A number or a string, as it is; empty where it is missing.
static void text_of(const char *line, const char *key, char out[16]) {
    const char *value = value_of(line, key);
    if (value && *value == '"') value++;
    snprintf(out, 16, "%.*s", value ? (int)strcspn(value, "\",}") : 0, value ? value : "");
}

// Logs of older versions have some of these in the summary only.
static void take_number(double *number, const char *line, const char *key) {
    if (isnan(*number)) *number = number_of(line, key);
}

static void take_string(char **text, const char *line, const char *key) {
    if (!*text) *text = string_of(line, key);
}

static void take_place(report_run *run, const char *line) {
    take_number(&run->seed, line, "seed");
    take_number(&run->ranks, line, "ranks");
    take_number(&run->nodes, line, "nodes");
}

static void take_summary(report_run *run, const char *line) {
    text_of(line, "period", run->period);
    text_of(line, "period_requested", run->period_requested);
    text_of(line, "wait", run->wait);
    text_of(line, "wait_requested", run->wait_requested);
    run->steps = number_of(line, "steps");
    run->seconds = number_of(line, "seconds");
    run->bytes = number_of(line, "bytes_sent");
    run->train_loss = number_of(line, "train_loss");
    run->train_loss_steps = number_of(line, "train_loss_steps");
    run->test_accuracy = number_of(line, "test_accuracy");
    run->test_images = number_of(line, "test_images");
    run->wait_ms_per_step = number_of(line, "wait_ms_per_step");
    run->exchange_alone_ms = number_of(line, "exchange_alone_ms");
    run->bytes_per_step = number_of(line, "bytes_per_step");
    run->merge_ms_per_step = number_of(line, "merge_ms_per_step");
    take_place(run, line);
    take_string(&run->machine, line, "device");
}

static void take_run(report_run *run, const char *line) {
    take_string(&run->name, line, "name");
    take_string(&run->options, line, "options");
    take_string(&run->settings, line, "settings");
    take_string(&run->machine, line, "machine");
    take_string(&run->version, line, "version");
    take_string(&run->date, line, "date");
    take_place(run, line);
}

// What came after the saved state was lost, and is made again.
static void drop_lost(report_run *run, double step) {
    while (run->point_count > 0 && run->points[run->point_count - 1].step > step)
        run->point_count--;
    while (run->sync_count > 0 && run->syncs[run->sync_count - 1].step > step) run->sync_count--;
}

// whole: becomes true with the event that ends a run.
static iso_status take_event(report_run *run, const char *line, bool *whole) {
    if (is_event(line, "run")) take_run(run, line);
    if (is_event(line, "resume")) drop_lost(run, number_of(line, "step"));
    if (is_event(line, "eval")) return add_point(run, line);
    if (is_event(line, "sync")) return add_sync(run, line);
    if (is_event(line, "summary")) {
        take_summary(run, line);
        *whole = true;
    }
    if (is_event(line, "failed") && !run->failure)
        *whole = (run->failure = string_of(line, "reason")) != NULL;
    return ISO_OK;
}

static iso_status take_lines(FILE *from, const char *path, report_run *run) {
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    bool whole = false;
    iso_status status = ISO_OK;
    for (int64_t number = 1; status == ISO_OK && (length = getline(&line, &room, from)) >= 0;
         number++) {
        if (is_object(line, (size_t)length))
            status = take_event(run, line, &whole);
        else
            status = train_error(ISO_ERR_FORMAT,
                                 "line %lld of %s is damaged: remove the file to repeat the run",
                                 (long long)number, path);
    }
    free(line);
    TRY(status);
    bool counts = run->failure || (!isnan(run->steps) && !isnan(run->test_accuracy));
    if (!whole || !counts || !run->name || !run->options || !run->settings)
        return train_error(ISO_ERR_FORMAT,
                           "%s does not hold the results of a finished run: remove it to repeat "
                           "the run",
                           path);
    return ISO_OK;
}

// Opening a pipe would wait for its other end, and a device may have no end.
static FILE *open_log(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) return NULL;
    errno = EINVAL;
    return S_ISREG(info.st_mode) ? fopen(path, "r") : NULL;
}

iso_status report_run_read(const char *path, report_run *out) {
    report_run run = {.steps = NAN, .seed = NAN, .ranks = NAN, .nodes = NAN, .test_images = NAN};
    FILE *from = open_log(path);
    if (!from)
        return train_error(ISO_ERR_IO, "cannot read %s: %s", path,
                           errno == EINVAL ? "it is not a regular file" : strerror(errno));
    iso_status status = take_lines(from, path, &run);
    fclose(from);
    if (status < 0) {
        report_run_free(&run);
        return status;
    }
    for (int64_t i = 0; i < run.sync_count; i++)
        run.syncs[i].seconds = seconds_at(&run, run.syncs[i].step);
    *out = run;
    return ISO_OK;
}

char *report_log_settings(const char *path) {
    char *line = NULL, *settings = NULL;
    size_t room = 0;
    FILE *from = open_log(path);
    while (from && !settings && getline(&line, &room, from) >= 0)
        if (is_event(line, "run")) settings = string_of(line, "settings");
    free(line);
    if (from) fclose(from);
    return settings;
}

void report_run_free(report_run *run) {
    char *texts[] = {run->name,    run->options, run->settings, run->machine,
                     run->version, run->date,    run->failure};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) free(texts[i]);
    free(run->points);
    free(run->syncs);
    *run = (report_run){0};
}
