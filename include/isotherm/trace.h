// Spans and counters for a Chrome trace (chrome://tracing, Perfetto). Costs one branch while off.
#ifndef ISOTHERM_TRACE_H
#define ISOTHERM_TRACE_H

#include <isotherm/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The rows ("threads") of one rank in the trace viewer.
typedef enum iso_lane {
    ISO_LANE_COMPUTE,  // forward and backward of each layer
    ISO_LANE_QUEUE,    // gradient ready, not yet issued
    ISO_LANE_EXCHANGE, // issued, not yet complete
    ISO_LANE_WAIT,     // the program waits: time that was not hidden
    ISO_LANE_UPDATE,   // optimizer
    ISO_LANE_DATA,     // loader
    ISO_LANE_COUNT
} iso_lane;

// Local. Nanoseconds of a monotonic clock; the clock of every span.
int64_t iso_now(void);

// Process-wide. Starts recording into memory reserved for `capacity` spans (later ones are counted
// and dropped); time 0 is now, so start it right after a barrier to align ranks. Stop frees what
// was recorded. Start, stop and text are called by one thread at a time; others may record beside
// them.
iso_status iso_trace_start(size_t capacity);
void iso_trace_stop(void);
bool iso_trace_on(void);

// Thread-safe. Records [start_ns, end_ns) of iso_now(). `name` is copied (first 47 characters).
void iso_trace_span(iso_lane lane, const char *name, int64_t start_ns, int64_t end_ns);

// Local. The recorded spans as comma-separated JSON objects with "pid" = rank (no enclosing
// brackets), in a new string that the caller frees with iso_trace_free_text. Programs gather these
// and write one file. Spans that other threads record meanwhile are lost.
iso_status iso_trace_text(int rank, char **out, size_t *out_size);
void iso_trace_free_text(char *text);

#ifdef __cplusplus
}
#endif
#endif
