// SPDX-License-Identifier: MIT
// Spans recorded into memory reserved up front, and their text as Chrome-trace JSON.
#include "base/base.h"
#include "base/profiler.h"

#include <isotherm/trace.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

typedef struct span {
    int64_t start, end;
    iso_lane lane;
    char name[48];
} span;

static const char *const lane_name[ISO_LANE_COUNT] = ISO__LANE_NAMES;

static span *spans;
static size_t capacity;
static int64_t origin;
static atomic_size_t used; // may exceed capacity: the rest was dropped
atomic_bool iso__tracing;
static atomic_int writers; // threads that may be writing a span

int64_t iso_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

iso_status iso_trace_start(size_t wanted) {
    ISO_CHECK(!spans, ISO_ERR_STATE, "a trace is being recorded already");
    ISO_CHECK(wanted > 0, ISO_ERR_ARG, "a trace needs room for at least one span");
    void *memory;
    ISO_TRY(iso__alloc(wanted * sizeof(span), &memory));
    spans = memory;
    capacity = wanted;
    used = 0;
    origin = iso_now();
    iso__tracing = true;
    return ISO_OK;
}

// Stops recording, and waits for threads that are still writing a span. Afterwards no thread writes
// until iso__tracing is true again.
static void hold_span(void) {
    iso__tracing = false;
    while (writers > 0) sched_yield();
}

void iso_trace_stop(void) {
    hold_span();
    iso__free(spans);
    spans = NULL;
    capacity = 0;
}

bool iso_trace_on(void) { return iso__spans_wanted(); }

void iso_trace_span(iso_lane lane, const char *name, int64_t start_ns, int64_t end_ns) {
    if (!iso__tracing) return;
    writers++;
    if (iso__tracing) {
        size_t i = used++;
        if (i < capacity) {
            spans[i] = (span){.start = start_ns, .end = end_ns, .lane = lane};
            strncpy(spans[i].name, name, sizeof(spans[i].name) - 1);
        }
    }
    writers--;
}

int64_t iso_trace_begin(iso_lane lane, const char *name) {
    if (!iso__spans_wanted()) return 0;
    if (iso__profiler_on()) iso__profiler_push(lane, name);
    return iso_now();
}

void iso_trace_end(iso_lane lane, const char *name, int64_t start_ns) {
    if (start_ns == 0) return;
    iso_trace_span(lane, name, start_ns, iso_now());
    if (iso__profiler_on()) iso__profiler_pop();
}

static int write_name(char *to, const char *name) {
    int n = 0;
    for (; *name; name++)
        if (*name != '"' && *name != '\\' && (unsigned char)*name >= 32) to[n++] = *name;
    to[n] = 0;
    return n;
}

static size_t write_rows(char *to, size_t room, int rank) {
    size_t n = (size_t)snprintf(
        to, room,
        "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}", rank,
        rank);
    for (int lane = 0; lane < ISO_LANE_COUNT; lane++)
        n += (size_t)snprintf(to + n, room - n,
                              ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\","
                              "\"args\":{\"name\":\"%s\"}}",
                              rank, lane, lane_name[lane]);
    return n;
}

static iso_status make_text(int rank, char **out, size_t *out_size) {
    size_t count = used < capacity ? used : capacity;
    if (used > capacity)
        iso__log(ISO_LOG_WARN, "the trace is full: dropped %zu of %zu spans",
                 (size_t)used - capacity, (size_t)used);
    size_t room = (ISO_LANE_COUNT + 1) * 128 + count * 192 + 1;
    void *text;
    ISO_TRY(iso__alloc(room, &text));
    char *to = text;
    size_t n = write_rows(to, room, rank);
    for (size_t i = 0; i < count; i++) {
        char name[sizeof(spans[i].name)];
        write_name(name, spans[i].name);
        // Microseconds with three decimals: the format's unit.
        n += (size_t)snprintf(to + n, room - n,
                              ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"cat\":\"%s\",\"name\":\"%"
                              "s\",\"ts\":%.3f,\"dur\":%.3f}",
                              rank, (int)spans[i].lane, lane_name[spans[i].lane], name,
                              (double)(spans[i].start - origin) / 1e3,
                              (double)(spans[i].end - spans[i].start) / 1e3);
    }
    *out = to;
    *out_size = n;
    return ISO_OK;
}

iso_status iso_trace_text(int rank, char **out, size_t *out_size) {
    ISO_CHECK(spans, ISO_ERR_STATE, "no trace was started");
    hold_span();
    iso_status status = make_text(rank, out, out_size);
    iso__tracing = true;
    ISO_TRY(status);
    return ISO_OK;
}

void iso_trace_free_text(char *text) { iso__free(text); }
