// SPDX-License-Identifier: MIT
// Evaluates the cores of the ranks of each host: which ranks share cores or have too few, and what
// the user can do.
#include "comm/cores_impl.h"

#include <stdarg.h>
#include <string.h>

typedef iso__cores_record record;

// ---- Masks ----------------------------------------------------------------------------------------

static int count_bits(const uint64_t *mask) {
    int n = 0;
    for (int i = 0; i < ISO_CORES_WORDS; i++) n += __builtin_popcountll(mask[i]);
    return n;
}

static bool is_within(const uint64_t *inner, const uint64_t *outer) {
    for (int i = 0; i < ISO_CORES_WORDS; i++)
        if (inner[i] & ~outer[i]) return false;
    return true;
}

static bool cores_overlap(const uint64_t *a, const uint64_t *b) {
    for (int i = 0; i < ISO_CORES_WORDS; i++)
        if (a[i] & b[i]) return true;
    return false;
}

static bool same_host(const record *a, const record *b) {
    return memcmp(a->host, b->host, sizeof(a->host)) == 0;
}

static bool same_cores(const record *a, const record *b) {
    return same_host(a, b) && memcmp(a->mask, b->mask, sizeof(a->mask)) == 0;
}

// ---- Text -----------------------------------------------------------------------------------------

typedef struct text {
    char *at;
    size_t room;
} text;

static void add_words(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_words(text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int wrote = vsnprintf(t->at, t->room, format, args);
    va_end(args);
    size_t used = wrote < 0 ? 0 : (size_t)wrote < t->room ? (size_t)wrote : t->room - 1;
    t->at += used;
    t->room -= used;
}

// Adds the numbers for which `has` holds, as "0-3, 8". A long list is cut short.
static void add_numbers(text *t, const void *set, int end, bool (*has)(const void *set, int i)) {
    int ranges = 0;
    for (int i = 0; i < end; i++) {
        if (!has(set, i)) continue;
        int last = i;
        while (last + 1 < end && has(set, last + 1)) last++;
        if (ranges == 8) {
            add_words(t, " ...");
            return;
        }
        add_words(t, "%s%d", ranges++ ? ", " : "", i);
        if (last > i) add_words(t, "-%d", last);
        i = last;
    }
}

static bool has_bit(const void *mask, int i) {
    return ((const uint64_t *)mask)[i / 64] >> i % 64 & 1;
}
static bool has_mark(const void *marks, int i) { return ((const bool *)marks)[i]; }

static void add_ranks(text *t, const bool *marks, int ranks) {
    int n = 0;
    for (int i = 0; i < ranks; i++) n += marks[i];
    add_words(t, n > 1 ? "ranks " : "rank ");
    add_numbers(t, marks, ranks, has_mark);
}

static void add_cores(text *t, const record *r) {
    int n = count_bits(r->mask);
    if (n == 0) {
        add_words(t, "unknown cores");
    } else {
        add_words(t, n > 1 ? "cores " : "core ");
        add_numbers(t, r->mask, ISO_CORES_WORDS * 64, has_bit);
    }
    add_words(t, " of host %s", (const char *)r->host);
}

// ---- What is wrong --------------------------------------------------------------------------------

// The number of ranks of a host, and of their compute threads; or only of the ranks that must run
// on the cores of one given rank.
typedef struct crowd {
    int ranks;
    int64_t threads;
} crowd;

static crowd count_crowd(const record *all, int ranks, const record *of, bool its_cores) {
    crowd c = {0};
    for (int i = 0; i < ranks; i++) {
        const record *r = &all[i];
        if (!same_host(r, of)) continue;
        if (its_cores && !(cores_overlap(r->mask, of->mask) && is_within(r->mask, of->mask)))
            continue;
        c.ranks++;
        c.threads += r->threads;
    }
    return c;
}

static bool host_is_full(const record *all, int ranks, const record *r) {
    return r->reach > 0 && count_crowd(all, ranks, r, false).threads > r->reach;
}

// Whether a rank is alone on a single core and has more than one thread to run, although the host
// has further cores.
static bool is_single(const record *all, int ranks, const record *r) {
    int here = 0, width = count_bits(r->mask);
    for (int i = 0; i < ranks; i++)
        here += same_host(&all[i], r) && cores_overlap(all[i].mask, r->mask);
    if (r->cores != 1 || here != 1 || r->reach <= width || host_is_full(all, ranks, r))
        return false;
    return r->threads > 1 || (r->helper && width == 1);
}

static bool is_crowded(const record *all, int ranks, const record *r) {
    int width = count_bits(r->mask);
    return width > 0 && !is_single(all, ranks, r) &&
           (host_is_full(all, ranks, r) || count_crowd(all, ranks, r, true).threads > width);
}

// Marks the ranks for which `holds` is true, and returns the first of them.
static const record *mark_ranks(const record *all, int ranks, bool *marks,
                                bool (*holds)(const record *all, int ranks, const record *r)) {
    const record *first = NULL;
    for (int i = 0; i < ranks; i++) {
        marks[i] = holds(all, ranks, &all[i]);
        if (marks[i] && !first) first = &all[i];
    }
    return first;
}

// Adds the option of mpirun that gives each rank of the host `cores` cores, if there are enough.
static void add_binding(text *t, const record *all, int ranks, const record *r, int64_t cores) {
    add_words(t, "give mpirun --bind-to none");
    if (count_crowd(all, ranks, r, false).ranks * cores <= r->reach)
        add_words(t, ", or --map-by slot:PE=%lld --bind-to core", (long long)cores);
}

static void judge_single(const record *all, int ranks, bool *marks, text t) {
    const record *r = mark_ranks(all, ranks, marks, is_single);
    if (!r) return;
    add_ranks(&t, marks, ranks);
    add_words(&t, ": bound to one core, on which %lld compute thread%s", (long long)r->threads,
              r->threads > 1 ? "s" : "");
    if (r->helper) add_words(&t, " and the progress thread");
    add_words(&t, " take turns: ");
    add_binding(&t, all, ranks, r, r->threads + r->helper);
}

static void add_fewer(text *t, const record *r, const crowd *host) {
    bool ranks = host->ranks > 1 && r->threads <= r->reach;
    bool threads = r->threads > 1 && host->ranks <= r->reach;
    if (ranks)
        add_words(t, "start fewer ranks on a host (mpirun --map-by ppr:%lld:node)",
                  (long long)(r->reach / r->threads));
    if (threads)
        add_words(t, "%sgive --threads %lld", ranks ? ", or " : "",
                  (long long)(r->reach / host->ranks));
    if (!ranks && !threads) add_words(t, "start fewer ranks, with fewer --threads");
}

static void judge_crowded(const record *all, int ranks, bool *marks, text t) {
    const record *r = mark_ranks(all, ranks, marks, is_crowded);
    if (!r) return;
    crowd host = count_crowd(all, ranks, r, false), here = count_crowd(all, ranks, r, true);
    add_ranks(&t, marks, ranks);
    if (host_is_full(all, ranks, r)) {
        add_words(
            &t, ": %lld compute threads for the %lld core%s of host %s: ", (long long)host.threads,
            (long long)r->reach, r->reach > 1 ? "s" : "", (const char *)r->host);
        add_fewer(&t, r, &host);
        return;
    }
    add_words(&t, ": %lld compute threads are bound to ", (long long)here.threads);
    add_cores(&t, r);
    add_words(&t, ", which has %lld: ", (long long)r->reach);
    add_binding(&t, all, ranks, r, r->threads);
}

// ---- What to do -----------------------------------------------------------------------------------

static void add_bit(uint64_t *mask, int i) { mask[i / 64] |= UINT64_C(1) << i % 64; }

// The cores that a rank needs; own: counting one for a progress thread that is to have its own.
static int64_t cores_needed(const record *r, bool own) { return r->threads + (own && r->own); }

// A rank that has its cores for itself keeps all of them but that of the progress thread.
static void keep_others(const record *self, iso_cores *out) {
    for (int i = 0; i < ISO_CORES_WORDS; i++) out->share[i] = self->mask[i] & ~out->progress[i];
}

// Divides cores that several ranks have in common among them, in rank order, and writes this rank's
// share. Returns false if there are too few.
static bool choose_share(const record *all, int ranks, int rank, bool own, iso_cores *out) {
    const record *self = &all[rank];
    int64_t before = 0, together = 0, sharers = 0, at = 0, need = cores_needed(self, own);
    bool pins = need > self->threads;
    for (int i = 0; i < ranks; i++) {
        if (!same_host(&all[i], self) || !cores_overlap(all[i].mask, self->mask)) continue;
        if (!same_cores(&all[i], self)) return true; // they overlap partly: no fair share
        if (i < rank) before += cores_needed(&all[i], own);
        together += cores_needed(&all[i], own);
        sharers++;
    }
    if (together > self->cores) return false;
    if (need < 2 || (sharers < 2 && !pins)) return true;
    if (sharers == 1) need = self->cores; // it keeps them all
    for (int cpu = 0; cpu < ISO_CORES_WORDS * 64; cpu++) {
        if (!has_bit(self->first, cpu)) continue;
        if (at >= before && at < before + need)
            add_bit(pins && at == before + need - 1 ? out->progress : out->share, cpu);
        at++;
    }
    if (sharers == 1) keep_others(self, out);
    return true;
}

// Lists all ranks and their cores; ranks with the same cores are listed together.
static void list_all(const record *all, int ranks, bool *marks, text t) {
    const char *gap = "";
    for (int i = 0; i < ranks; i++) {
        bool told = false;
        for (int k = 0; k < i; k++) told |= same_cores(&all[k], &all[i]);
        if (told) continue;
        if (t.room < 200) {
            add_words(&t, "; ...");
            return;
        }
        for (int k = 0; k < ranks; k++) marks[k] = same_cores(&all[k], &all[i]);
        add_words(&t, "%s", gap);
        add_ranks(&t, marks, ranks);
        add_words(&t, ": ");
        add_cores(&t, &all[i]);
        gap = "; ";
    }
}

iso_status iso__cores_judge(const record *all, int ranks, int rank, iso_cores *out) {
    void *memory;
    ISO_TRY(iso__alloc((size_t)ranks * sizeof(bool), &memory));
    bool *marks = memory;
    *out = (iso_cores){0};
    text mine = {out->mine, sizeof(out->mine)};
    add_cores(&mine, &all[rank]);
    list_all(all, ranks, marks, (text){out->all, sizeof(out->all)});
    judge_single(all, ranks, marks, (text){out->single, sizeof(out->single)});
    judge_crowded(all, ranks, marks, (text){out->crowded, sizeof(out->crowded)});
    if (!choose_share(all, ranks, rank, true, out)) choose_share(all, ranks, rank, false, out);
    iso__free(memory);
    return ISO_OK;
}
