// SPDX-License-Identifier: MIT
// The outputs that follow a run: the JSON log, and the event file of TensorBoard, which gets its
// numbers from the log.
#include "train.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

// ---- What TensorBoard shows ---------------------------------------------------------------------

static bool is_one_of(const char *text, const char *const *list, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(text, list[i]) == 0) return true;
    return false;
}
#define IS_ONE_OF(text, list) is_one_of(text, list, (int)(sizeof(list) / sizeof(*(list))))

// Numbers of the course of the run and, at its end, those of the summary that are no settings.
static bool is_shown(const char *event, const char *key) {
    static const char *const events[] = {"epoch", "eval", "sync", "policy", "noise_scale"};
    static const char *const settings[] = {"ranks",       "nodes",      "parameters",
                                           "batch",       "accumulate", "lr",
                                           "test_images", "seed",       "threads"};
    if (IS_ONE_OF(event, events)) return strcmp(key, "epoch") != 0;
    return strcmp(event, "summary") == 0 && !IS_ONE_OF(key, settings);
}

// Every event has its step before its numbers. The `steps` of "resume" are those of the whole run.
static void show_number(const char *event, const char *key, double value, void *user) {
    train_board *board = user;
    char tag[128];
    if (!key) {
        iso_event_end(board->log);
        board->begun = false;
        if (strcmp(event, "resume") == 0) iso_event_restart(board->log, board->step + 1);
    } else if (strcmp(key, "step") == 0 ||
               (strcmp(key, "steps") == 0 && strcmp(event, "resume") != 0)) {
        board->step = (int64_t)value;
    } else if (is_shown(event, key)) {
        if (!board->begun) iso_event_begin(board->log, board->step);
        board->begun = true;
        snprintf(tag, sizeof(tag), "%.60s/%.60s", event, key);
        iso_event_number(board->log, tag, value);
    }
}

// A block of code in Markdown: lines behind four blanks.
static void show_settings(const train_run *run) {
    char options[TRAIN_OPTIONS_ROOM], text[2 * TRAIN_OPTIONS_ROOM];
    train_options_text(run->options, false, options, sizeof(options));
    size_t used = (size_t)snprintf(
        text, sizeof(text), "    isotherm %s\n    ranks: %d, nodes: %d, %s\n", ISO_VERSION,
        run->world->ranks, run->world->nodes, iso_device_describe(run->world->device));
    for (const char *line = options; *line && used < sizeof(text);) {
        size_t length = strcspn(line, "\n");
        used += (size_t)snprintf(text + used, sizeof(text) - used, "    %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    iso_event_begin(run->board.log, run->at.step);
    iso_event_text(run->board.log, "settings", text);
    iso_event_end(run->board.log);
}

// ---- Opening and closing ------------------------------------------------------------------------

// Whether the run may go on from an earlier one, whose outputs it then keeps.
static bool is_continued(const train_options *options) {
    return options->resume || (options->resume_auto && !options->overwrite);
}

iso_status train_log_check(const train_options *options) {
    int64_t files;
    if (!options->tensorboard || options->overwrite || is_continued(options)) return ISO_OK;
    TRY(iso_event_log_count(options->tensorboard, &files));
    if (files == 0) return ISO_OK;
    return train_error(ISO_ERR_STATE,
                       "the folder %s has the event files of another run: give another "
                       "--tensorboard, or replace them with --overwrite",
                       options->tensorboard);
}

static iso_status open_board(train_run *run) {
    const train_options *options = run->options;
    if (!options->tensorboard) return ISO_OK;
    int64_t files = 0;
    if (options->overwrite && !is_continued(options))
        TRY(iso_event_log_remove(options->tensorboard));
    if (is_continued(options)) TRY(iso_event_log_count(options->tensorboard, &files));
    run->log_continues = files > 0;
    return iso_event_log_create(options->tensorboard, &run->board.log);
}

// TensorBoard gets its numbers from the log. Without --log, creates a log that writes no file.
static iso_status open_log(train_run *run) {
    const train_options *options = run->options;
    struct stat info;
    if (options->log && is_continued(options)) {
        if (stat(options->log, &info) == 0 && info.st_size > 0) run->log_continues = true;
        return iso_json_log_append(options->log, &run->log);
    }
    return iso_json_log_create(options->log, &run->log);
}

iso_status train_log_open(train_run *run) {
    const train_options *options = run->options;
    if (run->world->rank != 0 || (!options->log && !options->tensorboard)) return ISO_OK;
    TRY(open_board(run));
    iso_status status = open_log(run);
    if (!run->board.log) return status;
    if (status < 0) { // leave no file behind that would be in the way of the next run
        (void)train_error_of_library(status);
        (void)iso_event_log_close(&run->board.log); // or it counts as a file that is being written
        if (!is_continued(options)) (void)iso_event_log_remove(options->tensorboard);
        return status;
    }
    iso_json_log_watch(run->log, show_number, &run->board);
    show_settings(run);
    return ISO_OK;
}

static iso_status sync_logs(train_run *run) {
    TRY(iso_json_log_sync(run->log));
    return iso_event_log_sync(run->board.log);
}

void train_log_sync(train_run *run) {
    if (sync_logs(run) < 0)
        fprintf(stderr, "%s: warning: %s: a state is saved without it\n", train_error_name(),
                iso_last_error()->message);
}

iso_status train_log_close(train_run *run) {
    (void)sync_logs(run); // closing reports what could not be written
    iso_status status = iso_json_log_close(&run->log);
    if (status < 0) {
        (void)train_error_of_library(status); // keep this message
        (void)iso_event_log_close(&run->board.log);
        return status;
    }
    return iso_event_log_close(&run->board.log);
}

// ---- Events -------------------------------------------------------------------------------------

void train_report_eval(train_run *run, const train_eval *eval) {
    iso_json_log *log = run->log;
    iso_json_begin(log, "eval");
    iso_json_int(log, "step", eval->step);
    iso_json_double(log, "seconds", eval->seconds);
    iso_json_int(log, "bytes_sent", eval->bytes_sent);
    iso_json_int(log, "bytes_between_nodes", eval->bytes_between_nodes);
    iso_json_int(log, "parameter_bytes_between_nodes", eval->parameter_bytes);
    iso_json_int(log, "bytes", eval->bytes_sent / run->world->ranks);
    iso_json_double(log, "train_loss", eval->train_loss);
    iso_json_double(log, "test_loss", eval->test_loss);
    iso_json_double(log, "test_accuracy", eval->test_accuracy);
    iso_json_double(log, "lr", eval->lr);
    iso_json_double(log, "step_ms", eval->step_ms);
    iso_json_double(log, "wait_ms_per_step", eval->wait_ms_per_step);
    iso_json_end(log);
}

void train_report_sync(train_run *run, const train_sync *sync) {
    iso_json_log *log = run->log;
    iso_json_begin(log, "sync");
    iso_json_int(log, "step", sync->step);
    iso_json_int(log, "age", sync->age);
    iso_json_int(log, "bytes_between_nodes", sync->bytes_between_nodes);
    iso_json_double(log, "wait_ms", sync->wait_ms);
    iso_json_double(log, "exchange_ms", sync->exchange_ms);
    iso_json_double(log, "divergence", sync->divergence);
    iso_json_int(log, "global_skip", sync->global_skip);
    iso_json_int(log, "batches_to_wait", sync->batches_to_wait);
    iso_json_string(log, "phase", sync->phase);
    iso_json_end(log);
}
