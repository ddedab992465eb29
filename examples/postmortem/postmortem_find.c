// SPDX-License-Identifier: MIT
// Compares the flight records of the ranks: which operation differs, and who has not started it.
#include "postmortem.h"

#include <stdlib.h>
#include <string.h>

// The last index stands for streams that did not fit, which cannot be compared.
enum { COMPARED = ISO_RECORDER_STREAMS - 1, KINDS = 2 };

static bool is_same(const iso_recorder_stream *a, const iso_recorder_stream *b) {
    return a->group != 0 && a->group == b->group && a->ordinal == b->ordinal;
}

// The index of the stream in the other process; -1: it has none.
static int find_stream(const process *p, const iso_recorder_stream *wanted) {
    for (int i = 0; p->file && i < COMPARED; i++)
        if (is_same(&p->file->stream[i], wanted)) return i;
    return -1;
}

static bool is_start(const process *p, const iso_recorder_entry *e) {
    return e && (e->event == ISO_RECORDER_POSTED || e->event == ISO_RECORDER_CALL) &&
           e->stream < COMPARED && job_is_of_stream(p, e);
}

// ---- Divergence -----------------------------------------------------------------------------------

// The starts of one process, by stream, kind and sequence number.
typedef const iso_recorder_entry *start_table[COMPARED][KINDS][ISO_RECORDER_RECORDS];

static const iso_recorder_entry **place_of(start_table table, int stream,
                                           const iso_recorder_entry *e) {
    return &table[stream][e->event == ISO_RECORDER_CALL][e->sequence % ISO_RECORDER_RECORDS];
}

static void fill_table(const process *p, start_table table) {
    memset(table, 0, sizeof(start_table));
    for (int i = 0; i < ISO_RECORDER_RECORDS; i++) {
        const iso_recorder_entry *e = job_entry(p, p->file->entry[i].number);
        if (is_start(p, e)) *place_of(table, e->stream, e) = e;
    }
}

static bool is_different(const iso_recorder_entry *a, const iso_recorder_entry *b) {
    return strcmp(a->name, b->name) != 0 || a->bytes != b->bytes;
}

static int64_t time_of(const divergence *d) {
    return d->of_a->time_ns < d->of_b->time_ns ? d->of_a->time_ns : d->of_b->time_ns;
}

// Compares rank b with the table of rank a, in the streams that both have.
static void compare_ranks(const job *j, int a, int b, start_table table, divergence *first) {
    const process *pa = &j->rank[a], *pb = &j->rank[b];
    int stream_a[COMPARED];
    for (int s = 0; s < COMPARED; s++) stream_a[s] = find_stream(pa, &pb->file->stream[s]);
    for (int i = 0; i < ISO_RECORDER_RECORDS; i++) {
        const iso_recorder_entry *e = job_entry(pb, pb->file->entry[i].number);
        if (!is_start(pb, e) || stream_a[e->stream] < 0) continue;
        const iso_recorder_entry *of_a = *place_of(table, stream_a[e->stream], e);
        if (!of_a || of_a->sequence != e->sequence || !is_different(of_a, e)) continue;
        divergence d = {.ordinal = pb->file->stream[e->stream].ordinal,
                        .sequence = e->sequence,
                        .call = e->event == ISO_RECORDER_CALL,
                        .a = a,
                        .b = b,
                        .of_a = of_a,
                        .of_b = e};
        if (!first->of_a || time_of(&d) < time_of(first)) *first = d;
    }
}

// Whether a is the lowest rank of a group that also has b: others are compared with the lowest.
static bool leads_group(const job *j, int a, int b) {
    for (int s = 0; s < COMPARED; s++) {
        const iso_recorder_stream *of_a = &j->rank[a].file->stream[s];
        if (of_a->group == 0) return false;
        if (find_stream(&j->rank[b], of_a) < 0) continue;
        bool lowest = true;
        for (int r = 0; r < a && lowest; r++) lowest = find_stream(&j->rank[r], of_a) < 0;
        if (lowest) return true;
    }
    return false;
}

bool job_diverges(const job *j, divergence *out) {
    *out = (divergence){0};
    const iso_recorder_entry *(*table)[KINDS][ISO_RECORDER_RECORDS] = malloc(sizeof(start_table));
    for (int a = 0; a < j->size && table; a++) {
        bool filled = false;
        for (int b = a + 1; b < j->size && j->rank[a].file; b++) {
            if (!j->rank[b].file || !leads_group(j, a, b)) continue;
            if (!filled) fill_table(&j->rank[a], table);
            filled = true;
            compare_ranks(j, a, b, table, out);
        }
    }
    free(table);
    return out->of_a != NULL;
}

// ---- Gaps -----------------------------------------------------------------------------------------

// The gap of a rank in one of its streams.
static gap gap_in(const job *j, int rank, int stream, bool call) {
    const process *p = &j->rank[rank];
    gap g = {.rank = rank, .ahead = -1, .stream = (uint16_t)stream, .call = call};
    g.started = g.most = p->started[stream][call];
    for (int r = 0; r < j->size; r++) {
        int other = find_stream(&j->rank[r], &p->file->stream[stream]);
        if (other < 0 || j->rank[r].started[other][call] <= g.most) continue;
        g.most = j->rank[r].started[other][call];
        g.ahead = r;
        g.stream_ahead = (uint16_t)other;
    }
    return g;
}

// When the rank ahead started the first operation that the other lacks; 0: no longer recorded.
static int64_t missing_since(const job *j, const gap *g) {
    const iso_recorder_entry *e =
        job_find(&j->rank[g->ahead], g->stream_ahead, g->call, g->started + 1);
    return e ? e->time_ns : 0;
}

bool job_gap(const job *j, int rank, gap *out) {
    int64_t since = INT64_MAX;
    for (int s = 0; s < COMPARED && j->rank[rank].file; s++) {
        if (j->rank[rank].file->stream[s].group == 0) break;
        for (int call = KINDS - 1; call >= 0; call--) {
            gap g = gap_in(j, rank, s, call);
            if (g.ahead < 0 || missing_since(j, &g) >= since) continue;
            since = missing_since(j, &g);
            *out = g;
        }
    }
    return since < INT64_MAX;
}
