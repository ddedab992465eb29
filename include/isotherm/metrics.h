// Output of a running program: JSON lines for machines, a progress bar for people.
#ifndef ISOTHERM_METRICS_H
#define ISOTHERM_METRICS_H

#include <isotherm/status.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- JSON lines: one object a line, flushed when complete -------------------------------------------

typedef struct iso_json_log iso_json_log;

// Local. Creates PATH (truncating). ISO_ERR_IO names path and reason.
iso_status iso_json_log_create(const char *path, iso_json_log **out);
// Local. Appends to the log PATH and creates it if there is none. Drops an unfinished last line.
// ISO_ERR_FORMAT, changing nothing, for a file whose unfinished last line is not the beginning of
// an event.
iso_status iso_json_log_append(const char *path, iso_json_log **out);
// ISO_ERR_IO if anything could not be written. Frees in any case; accepts a NULL log.
iso_status iso_json_log_close(iso_json_log **log);
// One object: begin with its "event", add fields, end. A NULL log makes all of these do nothing.
// Not-finite numbers are written as null. Doubles are written so that reading them back gives the
// same value.
void iso_json_begin(iso_json_log *log, const char *event);
void iso_json_string(iso_json_log *log, const char *key, const char *value);
void iso_json_double(iso_json_log *log, const char *key, double value);
void iso_json_int(iso_json_log *log, const char *key, int64_t value);
void iso_json_end(iso_json_log *log);

// ---- Progress bar ---------------------------------------------------------------------------------

typedef struct iso_progress_bar iso_progress_bar;

// Local. Writes to `to` (NULL: nothing at all). On a terminal one line that is redrawn at most 10
// times a second: label, bar, done/total, rate, loss, ETA; otherwise one plain line at about every
// tenth of the total.
iso_status iso_progress_bar_create(FILE *to, const char *label, int64_t total, const char *unit,
                                   iso_progress_bar **out);
// Sets how much was done before the bar was created, as in a resumed run: rate and ETA count only
// what comes after it. Call it before the first update.
void iso_progress_bar_begin_at(iso_progress_bar *bar, int64_t done);
// Writes a line of text as printf would, above the bar on a terminal.
void iso_progress_bar_line(iso_progress_bar *bar, const char *text, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;
// done: units so far; loss NaN: not shown.
void iso_progress_bar_update(iso_progress_bar *bar, int64_t done, double loss);
// Whether it is a line that is redrawn: who writes anything else to the terminal must end it first.
bool iso_progress_bar_is_redrawn(const iso_progress_bar *bar);
// Completes the line with a summary as printf would write it (NULL: none) and frees.
void iso_progress_bar_finish(iso_progress_bar **bar, const char *summary, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3)))
#endif
    ;

// Removes the line from a terminal, where another bar may be redrawn in its place, and frees.
void iso_progress_bar_clear(iso_progress_bar **bar);

// Peak resident memory of this process in MB (10^6 bytes), from the operating system.
double iso_peak_rss_mb(void);

#ifdef __cplusplus
}
#endif
#endif
