// SPDX-License-Identifier: MIT
// Watches: what ranks show to the other ranks of their host, and what can be read from it.
#include "comm/watch_impl.h"

#include <isotherm/trace.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define SILENT_NS 3000000000 // the minimum time without a beat after which a rank counts as silent

// ---- Streams --------------------------------------------------------------------------------------

void iso__stream_open(iso__watch *w, iso__stream *stream, uint64_t key) {
    iso__seat *own = w->seat[w->rank];
    stream->key = key;
    stream->seat = own;
    for (int i = 0; i < ISO_STREAMS; i++) {
        if (atomic_load_explicit(&own->stream[i].key, memory_order_relaxed)) continue;
        stream->shown = &own->stream[i].begun;
        atomic_store_explicit(stream->shown, stream->begun, memory_order_relaxed);
        atomic_store_explicit(&own->stream[i].key, key, memory_order_release);
        return;
    }
}

void iso__stream_close(iso__stream *stream) {
    for (int i = 0; stream->shown && i < ISO_STREAMS; i++)
        if (stream->shown == &stream->seat->stream[i].begun)
            atomic_store_explicit(&stream->seat->stream[i].key, 0, memory_order_release);
    stream->shown = NULL;
    stream->seat = NULL;
}

uint64_t iso__stream_count(iso__stream *stream, int64_t now_ns) {
    uint64_t number = stream->begun++;
    if (stream->shown) atomic_store_explicit(stream->shown, stream->begun, memory_order_release);
    if (stream->seat) atomic_store_explicit(&stream->seat->moved_ns, now_ns, memory_order_relaxed);
    return number;
}

// ---- Processes ------------------------------------------------------------------------------------

int64_t iso__process_born(int64_t process, char *state) {
    char path[48], text[512];
    snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)process);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[n] = 0;
    char *at = strrchr(text, ')'); // the name before it may contain anything
    if (!at || !at[1]) return -1;
    *state = at[2];
    for (int field = 3; at && field < 23; field++) at = strchr(at + 1, ' '); // to the 22nd
    return at ? atoll(at) : -1;
}

static iso__health judge_process(const iso__watch *w, const iso__seat *seat, int64_t now_ns) {
    char state = '?';
    int64_t born = iso__process_born(seat->process, &state);
    bool visible = seat->space && seat->space == w->seat[w->rank]->space; // else ids say nothing
    if (visible && (born != seat->born || state == 'Z' || state == 'X')) return ISO_HEALTH_ENDED;
    if (visible && (state == 'T' || state == 't')) return ISO_HEALTH_STOPPED;
    int64_t quiet = now_ns - atomic_load_explicit(&seat->beat_ns, memory_order_relaxed);
    int64_t most = 6 * w->period_ns > SILENT_NS ? 6 * w->period_ns : SILENT_NS;
    return seat->helped && quiet > most ? ISO_HEALTH_SILENT : ISO_HEALTH_WELL;
}

// ---- Facts ----------------------------------------------------------------------------------------

static int32_t to_ms(int64_t ns) {
    int64_t ms = ns / 1000000;
    return ms < 0 ? 0 : ms > INT32_MAX ? INT32_MAX : (int32_t)ms;
}

static uint64_t read_stream(const iso__seat *seat, uint64_t key) {
    for (int i = 0; key && i < ISO_STREAMS; i++) {
        if (atomic_load_explicit(&seat->stream[i].key, memory_order_acquire) != key) continue;
        uint64_t begun = atomic_load_explicit(&seat->stream[i].begun, memory_order_acquire);
        if (atomic_load_explicit(&seat->stream[i].key, memory_order_acquire) == key) return begun;
    }
    return UINT64_MAX;
}

iso__fact iso__seat_read(const iso__watch *w, int rank, uint64_t key, int64_t now_ns) {
    const iso__seat *seat = w->seat[rank];
    int64_t waits = atomic_load_explicit(&seat->waits_ns, memory_order_acquire);
    iso__fact fact = {.rank = rank,
                      .health = (int32_t)judge_process(w, seat, now_ns),
                      .begun = read_stream(seat, key),
                      .beat_ms = to_ms(now_ns - atomic_load(&seat->beat_ns)),
                      .moved_ms = to_ms(now_ns - atomic_load(&seat->moved_ns)),
                      .waits_ms = waits ? to_ms(now_ns - waits) : -1,
                      .same = waits && key && atomic_load(&seat->waits_key) == key};
    memcpy(fact.waits_for, seat->waits_for, sizeof(fact.waits_for) - 1);
    if (seat->helped) memcpy(fact.doing, seat->doing, sizeof(fact.doing) - 1);
    return fact;
}

// ---- Life -----------------------------------------------------------------------------------------

void iso__watch_free(iso__watch *w) {
    if (!w || w->in_use) return;
    if (w->board) munmap(w->board, w->board_bytes);
    iso__free(w->outbox);
    iso__free(w->answers);
    iso__free(w->inbox);
    iso__free(w->heard);
    iso__free(w->seat);
    iso__free(w->board_of);
    iso__free(w->lowest);
    iso__free(w->host);
    iso__free(w);
}

void iso__watch_free_all(iso__engine *engine) {
    while (engine->watches) {
        iso__watch *w = engine->watches;
        engine->watches = w->older;
        iso__watch_free(w);
    }
}
