// SPDX-License-Identifier: MIT
// Long waits: who keeps this rank waiting, and when it says so.
#include "base/recording.h"
#include "comm/watch_impl.h"

#include <isotherm/trace.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TICK_NS  20000000   // between two checks of a long wait
#define FIRST_NS 50000000   // other ranks do not see a wait that is shorter than this
#define LEAD_NS  3000000000 // the maximum time before a report at which other hosts are asked
enum { ASKED_MOST = 3, SHOWN_MOST = 4 };

// ---- Judging one rank -------------------------------------------------------------------------------

typedef enum verdict { HERE, UNSURE, WAITS, LATE, SILENT, ENDED, STOPPED, UNHEARD } verdict;

// The collective that the wait is about: the first that is not complete.
static uint64_t find_open(const iso__patience *p) {
    const iso__engine *engine = p->comm->engine;
    uint64_t last = (uint64_t)p->under_way;
    if (last > 0) return p->stream->begun > last ? p->stream->begun - last : 0;
    for (const iso_request *r = engine->oldest; r; r = r->newer)
        if (r->stream == p->stream) return r->turn;
    return p->stream->begun ? p->stream->begun - 1 : 0;
}

static iso__fact read_fact(const iso__patience *p, int rank, int64_t now_ns) {
    const iso__watch *w = p->comm->watch;
    uint64_t key = p->stream ? p->stream->key : 0;
    if (w->seat[rank]) return iso__seat_read(w, rank, key, now_ns);
    iso__fact fact = {.rank = rank};
    const iso__heard *heard = w->heard ? &w->heard[rank] : NULL;
    if (p->asked == 0 || !heard || heard->at_ns < p->asked_ns) return fact;
    fact = heard->fact;
    if (heard->key != key) fact.begun = UINT64_MAX, fact.same = 0;
    return fact;
}

static verdict judge_rank(const iso__patience *p, const iso__fact *fact) {
    switch (fact->health) {
    case ISO_HEALTH_UNKNOWN: return p->apart ? UNSURE : UNHEARD;
    case ISO_HEALTH_STOPPED: return STOPPED;
    case ISO_HEALTH_ENDED: return ENDED;
    case ISO_HEALTH_SILENT: return SILENT;
    default: break;
    }
    if (!p->stream || fact->begun == UINT64_MAX) return UNSURE;
    if (fact->begun > find_open(p)) return HERE;
    return fact->waits_ms >= 0 ? WAITS : LATE;
}

// ---- The sentence -----------------------------------------------------------------------------------

typedef struct list {
    char *text;
    size_t room, used;
    int shown, more; // entries
} list;

static void add_entry(list *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_entry(list *l, const char *format, ...) {
    if (l->shown == SHOWN_MOST || l->room - l->used < 140) {
        l->more++;
        return;
    }
    if (l->shown++ > 0) l->used += (size_t)snprintf(l->text + l->used, l->room - l->used, "; ");
    va_list args;
    va_start(args, format);
    int n = vsnprintf(l->text + l->used, l->room - l->used, format, args);
    va_end(args);
    l->used = (size_t)n < l->room - l->used ? l->used + (size_t)n : l->room - 1;
}

// Adds all unheard ranks of a host as one entry, when called for the lowest of them.
static void add_host(list *l, const iso__patience *p, int rank, const bool *unheard) {
    const iso__watch *w = p->comm->watch;
    const char *host = iso__watch_host(w, rank);
    char ranks[48] = "";
    int count = 0;
    for (int r = 0; r < w->size; r++) {
        if (!unheard[r] || strcmp(iso__watch_host(w, r), host) != 0) continue;
        if (r < rank) return; // the entry of rank r lists them all
        size_t used = strlen(ranks);
        if (count++ < 4) snprintf(ranks + used, sizeof(ranks) - used, "%s%d", used ? ", " : "", r);
    }
    add_entry(l, "%.24s does not answer (rank%s %s%s): it cannot be reached, or is stopped%s", host,
              count > 1 ? "s" : "", ranks, count > 4 ? ", ..." : "",
              p->comm->engine->mode == ISO_PROGRESS_THREAD ? "" : ", or it computes");
}

static void add_rank(list *l, const iso__patience *p, const iso__fact *fact, verdict v) {
    const char *host = iso__watch_host(p->comm->watch, fact->rank);
    int rank = fact->rank;
    double late = fact->moved_ms * 1e-3, silent = fact->beat_ms * 1e-3;
    double waits = fact->waits_ms * 1e-3;
    switch (v) {
    case STOPPED: add_entry(l, "rank %d on %.24s is stopped by a signal", rank, host); break;
    case ENDED: add_entry(l, "the process of rank %d on %.24s has ended", rank, host); break;
    case SILENT:
        add_entry(l, "rank %d on %.24s has given no sign of life for %.1f s", rank, host, silent);
        break;
    case LATE:
        add_entry(l,
                  "rank %d on %.24s is late: it has computed or waited elsewhere for %.1f s%s%s%s",
                  rank, host, late, fact->doing[0] ? " (last activity: " : "", fact->doing,
                  fact->doing[0] ? ")" : "");
        break;
    case WAITS:
        add_entry(l, "rank %d on %.24s is late: it has itself waited %.1f s for %s", rank, host,
                  waits, fact->waits_for);
        break;
    default: break;
    }
}

typedef struct survey {
    iso__fact *fact; // [size of the watch]
    verdict *of;
    bool *unheard, *member; // members take part in what is waited for
} survey;

// Adds the ranks with verdicts from `low` to `high`. Returns their number.
static int add_ranks(list *l, const iso__patience *p, const survey *s, bool member, verdict low,
                     verdict high) {
    int count = 0;
    for (int r = 0; r < p->comm->watch->size; r++) {
        if (s->member[r] != member || s->of[r] < low || s->of[r] > high) continue;
        count++;
        if (s->of[r] == UNHEARD)
            add_host(l, p, r, s->unheard);
        else
            add_rank(l, p, &s->fact[r], s->of[r]);
    }
    return count;
}

static void take_survey(const iso__patience *p, survey *s) {
    const iso__watch *w = p->comm->watch;
    int64_t now = iso_now();
    for (int c = 0; c < p->comm->size; c++) s->member[p->comm->seat_of[c]] = true;
    for (int r = 0; r < w->size; r++) {
        s->fact[r] = read_fact(p, r, now);
        s->of[r] = r == w->rank ? HERE : judge_rank(p, &s->fact[r]);
        s->unheard[r] = s->of[r] == UNHEARD;
    }
}

// Writes nothing if nothing is known.
static void write_verdict(list *l, const iso__patience *p, const survey *s) {
    int down = add_ranks(l, p, s, true, SILENT, UNHEARD);
    int late = add_ranks(l, p, s, true, LATE, LATE);
    if (down + late == 0) late = add_ranks(l, p, s, true, WAITS, WAITS);
    // A rank that others wait for may itself wait for a rank that is no member here.
    if (down == 0) down = add_ranks(l, p, s, false, SILENT, UNHEARD);
    if (l->more && l->used + 16 < l->room)
        snprintf(l->text + l->used, l->room - l->used, "; and %d more", l->more);
    bool all_here = p->stream != NULL;
    for (int r = 0; r < p->comm->watch->size; r++)
        all_here = all_here && (!s->member[r] || s->of[r] == HERE);
    if (down + late == 0 && all_here)
        add_entry(l, "all ranks have begun it and are alive: the network may be stuck");
}

static bool allocate_survey(int size, survey *s) {
    void *memory[4] = {NULL};
    size_t n = (size_t)size;
    bool good = iso__alloc_zero(n * sizeof(*s->fact), &memory[0]) == ISO_OK &&
                iso__alloc_zero(n * sizeof(*s->of), &memory[1]) == ISO_OK &&
                iso__alloc_zero(n * sizeof(bool), &memory[2]) == ISO_OK &&
                iso__alloc_zero(n * sizeof(bool), &memory[3]) == ISO_OK;
    *s = (survey){memory[0], memory[1], memory[2], memory[3]};
    return good;
}

static void free_survey(survey *s) {
    iso__free(s->fact);
    iso__free(s->of);
    iso__free(s->unheard);
    iso__free(s->member);
}

const char *iso__patience_verdict(const iso__patience *p, char *text, size_t room) {
    static const char *const unknown = "another rank is stuck, gone or slower than that";
    survey s;
    list l = {.text = text, .room = room};
    text[0] = 0;
    if (!p->comm->watch || p->comm->engine->finalized) return unknown;
    if (allocate_survey(p->comm->watch->size, &s)) {
        take_survey(p, &s);
        write_verdict(&l, p, &s);
    }
    free_survey(&s);
    return text[0] ? text : unknown;
}

// ---- Waiting ----------------------------------------------------------------------------------------

iso__patience iso__patience_begin(iso_comm *comm, const iso__stream *stream, const char *what) {
    iso__patience p = {.comm = comm, .stream = stream, .what = what, .next_ns = FIRST_NS};
    if (!comm->watch) return p;
    p.warn_ns = (int64_t)(comm->engine->stall_warn_s * 1e9);
    return p;
}

static void write_what(const iso__patience *p, char *text, size_t room) {
    snprintf(text, room, p->exchange ? "the exchange of \"%.80s\"" : "%.100s", p->what);
}

static void show_wait(iso__patience *p, int64_t since_ns) {
    iso__seat *own = p->comm->watch->seat[p->comm->watch->rank];
    if (p->apart && atomic_load(&own->waits_ns) > 0) return; // another thread waits, too
    p->shown = true;
    write_what(p, own->waits_for, sizeof(own->waits_for));
    atomic_store(&own->waits_key, p->stream ? p->stream->key : 0);
    atomic_store(&own->waits_ns, since_ns);
}

// How long before a report that is due other hosts are asked.
static int64_t lead_of(int64_t due_ns) { return iso__smaller(due_ns / 2, LEAD_NS); }

static void ask_hosts(iso__patience *p, int64_t waited_ns, int64_t due_ns) {
    iso__watch *w = p->comm->watch;
    int64_t lead = lead_of(due_ns);
    int own = w->board_of[w->rank];
    if (w->mpi == MPI_COMM_NULL || p->asked == ASKED_MOST) return;
    if (waited_ns < due_ns - lead + p->asked * (lead / ASKED_MOST)) return;
    if (!iso__watch_equip(w)) return;
    if (p->asked == 0) p->asked_ns = iso_now();
    int turn = p->asked++; // ranks of a board ask different ranks of another
    for (int r = w->lowest[own]; r < w->rank; r++) turn += w->board_of[r] == own;
    for (int b = 0; b < w->boards; b++)
        if (b != own && w->heard[w->lowest[b]].at_ns < p->asked_ns)
            iso__watch_ask(w, b, turn, p->stream ? p->stream->key : 0);
}

// Whether a lower rank waits for the same collective, so that its warning is sufficient.
static bool leaves_it_to_others(const iso__patience *p) {
    int64_t now = iso_now();
    for (int c = 0; p->stream && c < p->comm->rank; c++) {
        iso__fact fact = read_fact(p, p->comm->seat_of[c], now);
        if (fact.health == ISO_HEALTH_WELL && fact.same && fact.waits_ms >= 0) return true;
    }
    return false;
}

static void warn_now(const iso__patience *p, int64_t waited_ns) {
    char text[400], what[128];
    const iso_comm *comm = p->comm;
    if (leaves_it_to_others(p)) return;
    write_what(p, what, sizeof(what));
    const char *said = iso__patience_verdict(p, text, sizeof(text));
    iso__record(ISO_RECORDER_WARN, (uint32_t)(waited_ns / 1000000000), said);
    iso__log(ISO_LOG_WARN,
             "rank %d of %d has waited %.3g s for %s: %s (ISO_STALL_WARN "
             "sets when to warn)",
             comm->rank, comm->size, (double)waited_ns * 1e-9, what, said);
}

void iso__patience_tick(iso__patience *p, int64_t waited_ns) {
    iso__engine *engine = p->comm->engine;
    int64_t now = iso_now(), limit = (int64_t)(p->comm->timeout_s * 1e9), due = p->warn_ns;
    p->next_ns = waited_ns + TICK_NS;
    iso__alive("a wait for other ranks"); // ISO_TIMEOUT limits it
    if (!p->comm->watch || engine->finalized) return;
    if (!p->shown) show_wait(p, now - waited_ns);
    if (!p->apart) iso__watch_pump(engine, now);
    if (p->endless) return;
    if (limit > 0 && (due == 0 || limit <= due)) due = limit;
    if (due == 0) return;
    if (!p->apart) ask_hosts(p, waited_ns, due);
    if (waited_ns < due || due == limit) return;
    // A rank that was held up itself has just asked: answers need a moment.
    if (p->asked > 0 && now - p->asked_ns < lead_of(due) / ASKED_MOST) return;
    warn_now(p, waited_ns);
    while (p->warn_ns <= waited_ns) p->warn_ns *= 2;
    p->asked = 0;
}

void iso__patience_end(iso__patience *p) {
    if (!p->shown) return;
    atomic_store(&p->comm->watch->seat[p->comm->watch->rank]->waits_ns, 0);
    p->shown = false;
}

// ---- Without the lock -------------------------------------------------------------------------------

void iso__patience_tick_unlocked(iso__patience *p, int64_t waited_ns) {
    if (waited_ns < p->next_ns) return;
    if (!p->comm->engine) { // the communicator is being made
        p->next_ns = waited_ns + TICK_NS;
        iso__alive("a wait for other ranks");
        return;
    }
    pthread_mutex_lock(&p->comm->engine->lock);
    iso__patience_tick(p, waited_ns);
    pthread_mutex_unlock(&p->comm->engine->lock);
}

void iso__patience_end_unlocked(iso__patience *p) {
    if (!p->shown) return;
    pthread_mutex_lock(&p->comm->engine->lock);
    iso__patience_end(p);
    pthread_mutex_unlock(&p->comm->engine->lock);
}

const char *iso__patience_verdict_unlocked(const iso__patience *p, char *text, size_t room) {
    if (!p->comm->engine) return iso__patience_verdict(p, text, room);
    pthread_mutex_lock(&p->comm->engine->lock);
    const char *said = iso__patience_verdict(p, text, room);
    pthread_mutex_unlock(&p->comm->engine->lock);
    return said;
}

const char *iso__comm_self_text(const iso_comm *comm, char text[ISO_SELF_ROOM]) {
    const iso__watch *w = comm->watch;
    snprintf(text, ISO_SELF_ROOM, "rank %d of %d", w ? w->rank : comm->rank,
             w ? w->size : comm->size);
    return text;
}
