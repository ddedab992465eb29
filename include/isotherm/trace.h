// SPDX-License-Identifier: MIT
// Spans for a Chrome trace (chrome://tracing, Perfetto), and ranges for a profiler that is attached
// to the process (NVIDIA Nsight Systems, through NVTX 3). While nobody records, a call costs a
// branch or two.
#ifndef ISOTHERM_TRACE_H
#define ISOTHERM_TRACE_H

#include <isotherm/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The rows ("threads") of a rank in the trace viewer.
typedef enum iso_lane {
    ISO_LANE_COMPUTE,  // forward and backward of each layer
    ISO_LANE_QUEUE,    // from gradient ready to start of the exchange
    ISO_LANE_EXCHANGE, // from start to completion of the exchange
    ISO_LANE_WAIT,     // the program waits: exposed time
    ISO_LANE_UPDATE,   // optimizer
    ISO_LANE_DATA,     // loader
    ISO_LANE_COUNT
} iso_lane;

// Local. Nanoseconds of a monotonic clock, on which all spans are measured.
int64_t iso_now(void);

// Process-wide. Start allocates memory for `capacity` spans and begins to record; spans beyond that
// are counted and dropped. Time 0 is the moment of the call: start right after a barrier, so that
// ranks are aligned. Stop frees the spans. Only one thread at a time may call start, stop and text;
// other threads may record meanwhile. Start returns ISO_ERR_STATE if a trace is being recorded, and
// ISO_ERR_ARG for a capacity of 0.
iso_status iso_trace_start(size_t capacity);
void iso_trace_stop(void);
// Whether anyone records: a trace was started, or a profiler is attached. Ask before you make the
// name of a span.
bool iso_trace_on(void);

// Thread-safe. Records the span [start_ns, end_ns) of iso_now(). Copies the first 47 characters of
// `name`.
void iso_trace_span(iso_lane lane, const char *name, int64_t start_ns, int64_t end_ns);

// Thread-safe. Begin a span of the calling thread, and end it: what iso_trace_span records, and a
// range for the profiler, in NVTX's domain "isotherm", whose category is the lane. Spans of a
// thread must nest, and each must end. begin returns the start, or 0 if nobody records; then end
// does nothing. configure must have found NVTX's headers (nvtx3/nvToolsExt.h), else profilers see
// nothing.
int64_t iso_trace_begin(iso_lane lane, const char *name);
void iso_trace_end(iso_lane lane, const char *name, int64_t start_ns);

// Local. Returns the spans as comma-separated JSON objects with "pid" = rank, without enclosing
// brackets, in a new string that the caller frees with iso_trace_free_text. A program gathers the
// strings of all ranks into one file. Spans that other threads record during the call are lost.
iso_status iso_trace_text(int rank, char **out, size_t *out_size);
void iso_trace_free_text(char *text);

#ifdef __cplusplus
}
#endif
#endif
