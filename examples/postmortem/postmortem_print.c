// SPDX-License-Identifier: MIT
// Prints what flight records say about the end of a job.
#include "postmortem.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

static double seconds_before(int64_t end_ns, int64_t ns) {
    return (double)(end_ns / 1000 - ns / 1000) * 1e-6; // whatever a damaged file says
}

static void print_time(int64_t ns, FILE *to) {
    time_t seconds = (time_t)(ns / 1000000000);
    struct tm parts;
    char text[64] = "?";
    if (localtime_r(&seconds, &parts)) strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
    fputs(text, to);
}

// ---- One rank -------------------------------------------------------------------------------------

static bool is_timeout(const process *p) { return p->file->failed_code == ISO_ERR_TIMEOUT; }
// A process that ended by a signal or an error, not because others did not come.
static bool is_dead(const process *p) { return p->file->failed_ns != 0 && !is_timeout(p); }

// A process of this host that no longer lives, and has not said why. In a job that has
// ended, somebody killed it, or the launcher did so when another process had ended.
static bool is_lost(const process *p) { return p->live == 'X' || p->live == 'Z'; }
// What the operating system says of the processes of a job that runs.
static bool is_stopped(const job *j, const process *p) {
    return j->runs && (p->live == 'T' || p->live == 't');
}
static bool is_gone(const job *j, const process *p) { return j->runs && is_lost(p); }

static void print_state(const job *j, const process *p, FILE *to) {
    if (is_stopped(j, p))
        fputs("is stopped by a signal", to);
    else if (is_gone(j, p))
        fputs("its process has ended, without a word", to);
    else if (is_dead(p))
        fprintf(to, "ended by: %.80s", p->file->reason);
    else if (p->file->ended_ns)
        fputs("ended (MPI_Finalize)", to);
    else if (p->waiting.event)
        fprintf(to, "has waited %.1f s for \"%s\"%s%s",
                seconds_before(j->end_ns, p->waiting.time_ns), p->waiting.name,
                p->file->failed_ns ? ", until its time-out" : "",
                is_lost(p) ? "; ended without a reason (killed?)" : "");
    else if (is_lost(p))
        fputs("ended without a reason (killed?)", to);
    else
        fputs("does not wait: it computed, or was stopped or killed", to);
    fputc('\n', to);
}

static void print_ranks(const job *j, FILE *to) {
    fprintf(to, "%6s  %-16s %8s %10s  %-16s  %s\n", "rank", "host", "pid", "last entry",
            "last note", "state");
    for (int r = 0; r < j->size; r++) {
        const process *p = &j->rank[r];
        char note[48] = "-";
        if (!p->file) {
            fprintf(to, "%6d  no record\n", r);
            continue;
        }
        if (p->note.event)
            snprintf(note, sizeof(note), "%s %" PRIu32, p->note.name, p->note.sequence);
        fprintf(to, "%6d  %-16s %8d %8.3f s  %-16s  ", r, p->file->host, (int)p->file->pid,
                seconds_before(j->end_ns, p->last_ns), note);
        print_state(j, p, to);
    }
}

// ---- The verdict ----------------------------------------------------------------------------------

static const char *kind_of(bool call) { return call ? "blocking collective" : "exchange"; }

static void print_divergence(const job *j, FILE *to) {
    divergence d;
    if (!job_diverges(j, &d)) return;
    fprintf(to,
            "Divergence: %s %" PRIu32 " is \"%s\" (%" PRIu64
            " bytes) on rank %d, but \"%s\" (%" PRIu64
            " bytes) on rank %d, in the group's stream %" PRIu32 ", %.3f s before the end\n",
            kind_of(d.call), d.sequence, d.of_a->name, d.of_a->bytes, d.a, d.of_b->name,
            d.of_b->bytes, d.b, d.ordinal, seconds_before(j->end_ns, d.of_a->time_ns));
}

static void print_gap(const job *j, const gap *g, FILE *to) {
    const process *p = &j->rank[g->rank];
    const iso_recorder_entry *e =
        job_find(&j->rank[g->ahead], g->stream_ahead, g->call, g->started + 1);
    fprintf(to, "Behind: rank %d (%s) has not started %s %" PRIu32, g->rank, p->file->host,
            kind_of(g->call), g->started + 1);
    if (e)
        fprintf(to, " (\"%s\"), which rank %d started %.3f s before the end", e->name, g->ahead,
                seconds_before(j->end_ns, e->time_ns));
    else
        fprintf(to, "; rank %d has started %" PRIu32, g->ahead, g->most);
    fprintf(to, "; its last entry is %.3f s before the end\n",
            seconds_before(j->end_ns, p->last_ns));
}

// Whether the rank is only a moment behind. After a crash such ranks are not to blame.
static bool is_recent(const job *j, const gap *g) {
    const iso_recorder_entry *e =
        job_find(&j->rank[g->ahead], g->stream_ahead, g->call, g->started + 1);
    return e && seconds_before(j->end_ns, e->time_ns) < 0.5;
}

static int print_gaps(const job *j, bool all, FILE *to) {
    int found = 0;
    for (int r = 0; r < j->size; r++) {
        gap g;
        if (!job_gap(j, r, &g) || (!all && is_recent(j, &g))) continue;
        print_gap(j, &g, to);
        found++;
    }
    return found;
}

static int print_dead(const job *j, FILE *to) {
    int found = 0;
    for (int r = 0; r < j->size; r++) {
        const process *p = &j->rank[r];
        if (!p->file || !is_dead(p)) continue;
        fprintf(to, "Ended: rank %d (%s), %.3f s before the end, by: %s\n", r, p->file->host,
                seconds_before(j->end_ns, p->file->failed_ns), p->file->reason);
        found++;
    }
    return found;
}

static bool is_waiting(const process *p) { return p->file && p->waiting.event; }
static bool is_busy(const process *p) {
    return p->file && !p->waiting.event && !p->file->ended_ns && !is_dead(p);
}

// Ranks that others wait for, although all have started the same operations.
static int print_busy(const job *j, FILE *to) {
    int waiting = 0, busy = 0;
    for (int r = 0; r < j->size; r++) {
        waiting += is_waiting(&j->rank[r]);
        busy += is_busy(&j->rank[r]);
    }
    if (waiting == 0) return 0;
    for (int r = 0; r < j->size; r++)
        if (is_busy(&j->rank[r]))
            fprintf(to, "Not waiting: rank %d (%s), while %d rank%s\n", r, j->rank[r].file->host,
                    waiting, waiting == 1 ? " waits" : "s wait");
    return busy;
}

static int print_stopped(const job *j, FILE *to) {
    int found = 0;
    for (int r = 0; r < j->size; r++) {
        const process *p = &j->rank[r];
        if (!p->file || (!is_stopped(j, p) && !is_gone(j, p))) continue;
        fprintf(to, "%s: rank %d (%s)\n", is_gone(j, p) ? "Gone" : "Stopped", r, p->file->host);
        found++;
    }
    return found;
}

// A rank whose reason says that rank r was stopped: with ISO_TIMEOUT, those that wait find out. -1:
// none.
static int witness_of(const job *j, int r) {
    char words[96];
    snprintf(words, sizeof(words), "rank %d on %.24s is stopped by a signal", r,
             j->rank[r].file->host);
    for (int q = 0; q < j->size; q++)
        if (j->rank[q].file && j->rank[q].file->failed_ns && strstr(j->rank[q].file->reason, words))
            return q;
    return -1;
}

// Ranks that others found stopped. The launcher wakes them in order to end them: then they, too,
// may time out.
static int print_found_stopped(const job *j, FILE *to) {
    int found = 0;
    for (int r = 0; r < j->size; r++) {
        int witness = j->rank[r].file && !is_stopped(j, &j->rank[r]) ? witness_of(j, r) : -1;
        if (witness < 0) continue;
        fprintf(to, "Stopped: rank %d (%s): rank %d found it stopped by a signal\n", r,
                j->rank[r].file->host, witness);
        found++;
    }
    return found;
}

// Ranks that waited as long as others, but did not time out as these did.
static int print_silent(const job *j, FILE *to) {
    int timed_out = 0, silent = 0;
    for (int r = 0; r < j->size; r++) timed_out += j->rank[r].file && is_timeout(&j->rank[r]);
    for (int r = 0; r < j->size && timed_out > 0; r++) {
        const process *p = &j->rank[r];
        if (!p->file || p->file->failed_ns || p->file->ended_ns) continue;
        fprintf(to, "Silent: rank %d (%s) did not time out, while %d rank%s: stopped or killed\n",
                r, p->file->host, timed_out, timed_out == 1 ? " did" : "s did");
        silent++;
    }
    return silent;
}

static void print_missing(const job *j, FILE *to) {
    int shown = 0;
    if (j->found == j->size) return;
    fprintf(to, "No record: %d of %d ranks:", j->size - j->found, j->size);
    for (int r = 0; r < j->size && shown < 16; r++)
        if (!j->rank[r].file) fprintf(to, "%s %d", shown++ ? "," : "", r);
    fprintf(to, "%s\n", j->size - j->found > shown ? ", ..." : "");
}

static bool has_ended(const job *j) {
    for (int r = 0; r < j->size; r++)
        if (!j->rank[r].file || !j->rank[r].file->ended_ns) return false;
    return true;
}

void job_print_stacks(const job *j, FILE *to) {
    int found = 0;
    for (int r = 0; r < j->size; r++) {
        if (!j->rank[r].file || !j->rank[r].stacks[0]) continue;
        fprintf(to, "%sRank %d, %s", found++ ? "\n" : "", r, j->rank[r].stacks);
    }
    if (found == 0) fputs("No rank has left a stack.\n", to);
}

void job_print(const job *j, FILE *to) {
    fprintf(to, "%d rank%s, %d record%s, %s ", j->size, j->size == 1 ? "" : "s", j->found,
            j->found == 1 ? "" : "s", j->runs ? "running at" : "ended at");
    print_time(j->end_ns, to);
    fputs(j->runs ? "\n\n" : " (first failure or last entry)\n\n", to);
    print_ranks(j, to);
    fputc('\n', to);
    print_divergence(j, to);
    int dead = print_dead(j, to) + print_stopped(j, to) + print_found_stopped(j, to);
    int behind = print_gaps(j, dead == 0, to);
    if (dead + behind == 0) behind = print_busy(j, to);
    if (dead + behind == 0) behind = print_silent(j, to);
    print_missing(j, to);
    if (dead == 0 && behind == 0 && j->found == j->size)
        fputs(has_ended(j) ? "All ranks have called MPI_Finalize.\n"
                           : "All ranks have started the same operations. A rank that was killed "
                             "leaves no reason: mpirun names it.\n",
              to);
}

// ---- Entries --------------------------------------------------------------------------------------

static const char *const event_name[] = {"",     "posted", "done",  "call", "wait",
                                         "woke", "note",   "error", "warn"};

void job_print_entries(const process *p, FILE *to) {
    uint64_t count = p->file->count;
    uint64_t first = count > ISO_RECORDER_RECORDS ? count - ISO_RECORDER_RECORDS + 1 : 1;
    fprintf(to, "%10s  %-26s  %-6s  %6s  %8s  %10s  %s\n", "number", "time", "event", "stream",
            "sequence", "bytes", "name");
    for (uint64_t n = first; n <= count; n++) {
        const iso_recorder_entry *e = job_entry(p, n);
        if (!e) continue;
        bool whole = strlen(e->name) < sizeof(e->name) - 1; // there is no room for a longer one
        fprintf(to, "%10" PRIu64 "  ", e->number);
        print_time(e->time_ns, to);
        fprintf(to, ".%06" PRId64 "  %-6s  %6d  %8" PRIu32 "  %10" PRIu64 "  %s%s\n",
                e->time_ns / 1000 % 1000000, event_name[e->event], e->stream, e->sequence, e->bytes,
                e->name, whole ? "" : "...");
    }
}
