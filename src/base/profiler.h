// SPDX-License-Identifier: MIT
// Private to the library: who records spans, and ranges for a profiler that is attached to the
// process, through NVTX 3. Without NVTX there is never one. The profiler copies names.
#ifndef ISO_PROFILER_H
#define ISO_PROFILER_H

#include <config.h>

#include <isotherm/trace.h>
#include <stdatomic.h>

// In the order of iso_lane.
#define ISO__LANE_NAMES                                                                            \
    { "compute", "queue", "exchange", "wait", "update", "data" }

extern atomic_bool iso__tracing; // trace.c: a trace is being recorded

#ifdef ISO_HAVE_NVTX

enum { ISO__PROFILER_UNKNOWN, ISO__PROFILER_OFF, ISO__PROFILER_ON };
extern atomic_int iso__profiler_state;
bool iso__profiler_find(void); // looks for it
// Whether one is attached. The first call settles this for the life of the process.
static inline bool iso__profiler_on(void) {
    int state = atomic_load_explicit(&iso__profiler_state, memory_order_acquire);
    if (__builtin_expect(state == ISO__PROFILER_OFF, true)) return false;
    return state == ISO__PROFILER_ON || iso__profiler_find();
}

// Call these if one is attached. A range of this thread, from push to pop; such ranges nest.
void iso__profiler_push(iso_lane lane, const char *name);
void iso__profiler_pop(void);
// A range that any thread may end. Returns its number, which end sets to 0; a range 0 has ended.
uint64_t iso__profiler_start(iso_lane lane, const char *name);
void iso__profiler_end(uint64_t *range);

#else

static inline bool iso__profiler_on(void) { return false; }
static inline void iso__profiler_push(iso_lane lane, const char *name) { (void)lane, (void)name; }
static inline void iso__profiler_pop(void) {}
static inline uint64_t iso__profiler_start(iso_lane lane, const char *name) {
    (void)lane, (void)name;
    return 0;
}
static inline void iso__profiler_end(uint64_t *range) { (void)range; }

#endif

// iso_trace_begin and iso_trace_end, without a call where nobody records.
static inline bool iso__spans_wanted(void) { return iso__tracing || iso__profiler_on(); }
static inline int64_t iso__span_begin(iso_lane lane, const char *name) {
    return iso__spans_wanted() ? iso_trace_begin(lane, name) : 0;
}
static inline void iso__span_end(iso_lane lane, const char *name, int64_t start_ns) {
    if (start_ns != 0) iso_trace_end(lane, name, start_ns);
}

#endif
