// SPDX-License-Identifier: MIT
// Output of a training program: JSON lines for other programs, event files for TensorBoard, a
// progress bar for people.
#ifndef ISOTHERM_METRICS_H
#define ISOTHERM_METRICS_H

#include <isotherm/status.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- JSON lines: one object per line, flushed when complete ---------------------------------------

typedef struct iso_json_log iso_json_log;

// Local. Creates or truncates the file PATH. ISO_ERR_IO names path and reason. ISO_ERR_STATE if
// another log, also of another process, still writes to it (as flock(2) knows, but not on SMB): the
// file is then unchanged. PATH NULL: nothing is written, for a log that is only watched.
iso_status iso_json_log_create(const char *path, iso_json_log **out);
// Local. Opens the log PATH to append to it, or creates it. Removes an incomplete last line.
// ISO_ERR_FORMAT if that line is not the beginning of an event: the file is then unchanged.
iso_status iso_json_log_append(const char *path, iso_json_log **out);
// Waits until everything that was written is on disk, so that a loss of power leaves it: call it
// before saving a state that the log goes with. ISO_ERR_IO if any write failed. Does nothing for a
// pipe, a device or a NULL log.
iso_status iso_json_log_sync(iso_json_log *log);
// Closes and frees the log. ISO_ERR_IO if any write failed. Accepts a NULL log.
iso_status iso_json_log_close(iso_json_log **log);
// To write an object, begin it with its "event", add fields, and end it. With a NULL log these
// functions do nothing. NaN and infinite numbers become null. Doubles are written with enough
// digits to read back the same value.
void iso_json_begin(iso_json_log *log, const char *event);
void iso_json_string(iso_json_log *log, const char *key, const char *value);
void iso_json_double(iso_json_log *log, const char *key, double value);
void iso_json_int(iso_json_log *log, const char *key, int64_t value);
void iso_json_end(iso_json_log *log);
// From now on, `watch` is called for each number that is written, with its event and key, and with
// key NULL for the end of each object. So another output gets exactly the numbers of the log. NaN
// and infinite numbers are passed as they are. log NULL: does nothing.
typedef void (*iso_json_watch)(const char *event, const char *key, double value, void *user);
void iso_json_log_watch(iso_json_log *log, iso_json_watch watch, void *user);

// ---- Event files: numbers and texts for TensorBoard -------------------------------------------------
// The format is that of TensorFlow: TFRecord, with messages Event and Summary of protocol buffers.

typedef struct iso_event_log iso_event_log;

// Local. Creates a new event file in FOLDER, beside those that are there; creates FOLDER and the
// folders above it if they are missing. TensorBoard shows the files of one folder as one run.
// ISO_ERR_IO names folder and reason.
iso_status iso_event_log_create(const char *folder, iso_event_log **out);
// As iso_json_log_sync.
iso_status iso_event_log_sync(iso_event_log *log);
// Closes and frees the log. ISO_ERR_IO if any write failed. Accepts a NULL log.
iso_status iso_event_log_close(iso_event_log **log);
// Local. count: the number of event files in FOLDER; 0 if there is no such folder. remove: removes
// them; other files stay. ISO_ERR_STATE if an event log, also of another process, still writes one
// of them: all stay.
iso_status iso_event_log_count(const char *folder, int64_t *out);
iso_status iso_event_log_remove(const char *folder);
// To write an event, begin it with its step, add values, and end it: then it is flushed. An event
// without values is not written. With a NULL log these functions do nothing. Numbers are stored as
// f32; NaN and infinite numbers are left out. A text is Markdown in UTF-8. tag: such as
// "loss/test"; what is before the / names a group of figures. A tag occurs once in an event.
void iso_event_begin(iso_event_log *log, int64_t step);
void iso_event_number(iso_event_log *log, const char *tag, double value);
void iso_event_text(iso_event_log *log, const char *tag, const char *text);
void iso_event_end(iso_event_log *log);
// Writes that a resumed run goes on at this step: TensorBoard forgets what the earlier files of the
// folder have of this step and later ones.
void iso_event_restart(iso_event_log *log, int64_t step);

// ---- Progress bar ---------------------------------------------------------------------------------

typedef struct iso_progress_bar iso_progress_bar;

// Local. Creates a bar on `to` (NULL: no output). On a terminal it is one line, redrawn at most 10
// times per second: label, bar, done/total, rate, loss, ETA. Otherwise it prints a plain line
// roughly ten times in all.
iso_status iso_progress_bar_create(FILE *to, const char *label, int64_t total, const char *unit,
                                   iso_progress_bar **out);
// Sets the amount done before the bar was created, as in a resumed run: rate and ETA count only
// what follows. Call it before the first update.
void iso_progress_bar_begin_at(iso_progress_bar *bar, int64_t done);
// Prints a line of text, formatted as by printf; on a terminal above the bar.
void iso_progress_bar_line(iso_progress_bar *bar, const char *text, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;
// done: units completed so far. loss NaN: not shown.
void iso_progress_bar_update(iso_progress_bar *bar, int64_t done, double loss);
// Whether the bar is a redrawn line. If so, end it before you write anything else to the terminal.
bool iso_progress_bar_is_redrawn(const iso_progress_bar *bar);
// Ends the bar with a summary formatted as by printf (NULL: none), and frees it.
void iso_progress_bar_finish(iso_progress_bar **bar, const char *summary, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;

// Erases the bar from a terminal, so that another bar can take its place, and frees it.
void iso_progress_bar_clear(iso_progress_bar **bar);

// Peak resident memory of this process in MB (10^6 bytes), as the operating system reports it.
double iso_peak_rss_mb(void);

#ifdef __cplusplus
}
#endif
#endif
