// SPDX-License-Identifier: MIT
// Checks that all ranks have the same lines, and names those that do not.
#include "comm/same_lines.h"

#include "comm/comm_calls.h"

#include <stdio.h>
#include <string.h>

#define LINE_ROOM 320

// Copies the line at *at, cut off if it is too long, and moves *at to the next line. Returns false
// at the end.
static bool take_line(const char **at, char line[LINE_ROOM]) {
    if (!**at) return false;
    size_t length = strcspn(*at, "\n");
    snprintf(line, LINE_ROOM, "%.*s", (int)length, *at);
    *at += length;
    if (**at) ++*at;
    return true;
}

// The first rank that has the most frequent fingerprint. On a tie, the fingerprint of the lowest
// rank wins.
static int find_majority(const uint64_t *each, int size) {
    int best = 0, best_votes = 0;
    for (int r = 0; r < size; r++) {
        int votes = 0;
        for (int q = 0; q < size; q++) votes += each[q] == each[r];
        if (votes > best_votes) {
            best = r;
            best_votes = votes;
        }
    }
    return best;
}

// ---- The sentence ---------------------------------------------------------------------------------

// The lines of one rank, and the ranks with the same lines.
typedef struct side {
    const char *list, *settings;
    int rank;
    char who[64]; // "rank 2", "ranks 0, 1"
} side;

static void name_ranks(const uint64_t *each, int size, int rank, char who[64]) {
    int more = 0;
    for (int q = rank + 1; q < size; q++) more += each[q] == each[rank];
    size_t used = (size_t)snprintf(who, 64, more ? "ranks %d" : "rank %d", rank);
    for (int q = rank + 1; q < size && used < 64; q++) {
        if (each[q] != each[rank]) continue;
        bool last = used > 40; // of 64: room for one more number
        used += (size_t)snprintf(who + used, 64 - used, last ? " and others" : ", %d", q);
        if (last) return;
    }
}

static side side_of(const char *all, const size_t *sizes, const uint64_t *each, int size,
                    int rank) {
    side s = {.rank = rank};
    for (int r = 0; r < rank; r++) all += sizes[r];
    s.list = all;
    s.settings = all + strlen(all) + 1;
    name_ranks(each, size, rank, s.who);
    return s;
}

// Writes a message about the first line in which the lists differ. Returns false if they are equal.
static bool compare_lists(const iso__lines *mine, const side *odd, const side *usual, char *message,
                          size_t room) {
    const char *odd_at = odd->list, *usual_at = usual->list;
    for (bool more = true; more;) {
        char a[LINE_ROOM], b[LINE_ROOM];
        bool odd_has = take_line(&odd_at, a), usual_has = take_line(&usual_at, b);
        more = odd_has && usual_has;
        if (more ? strcmp(a, b) == 0 : odd_has == usual_has) continue;
        if (!odd_has) snprintf(a, sizeof(a), "no further %s", mine->element);
        if (!usual_has) snprintf(b, sizeof(b), "no further %s", mine->element);
        return snprintf(message, room, "ranks disagree: rank %d has %s where rank %d has %s",
                        odd->rank, a, usual->rank, b) > 0;
    }
    return false;
}

// The length of "NAME: " in a line "NAME: VALUE".
static size_t name_length(const char *line) {
    const char *end = strstr(line, ": ");
    return end ? (size_t)(end - line) + 2 : strlen(line);
}

// The value of the setting of `line` on side s; "absent" if it does not have that setting.
static const char *find_value(const side *s, const char *line, char other[LINE_ROOM]) {
    size_t name = name_length(line);
    for (const char *at = s->settings; take_line(&at, other);)
        if (strncmp(other, line, name) == 0) return other + name;
    return "absent";
}

// Lists the settings of `a` that differ in `b`; with `lacking`, only those that `b` does not have.
static int list_settings(const side *a, const side *b, bool lacking, char *list, size_t room) {
    int found = 0;
    char line[LINE_ROOM], memory[LINE_ROOM];
    for (const char *at = a->settings; take_line(&at, line);) {
        const char *other = find_value(b, line, memory);
        size_t name = name_length(line), used = strlen(list);
        bool same = strcmp(line + name, other) == 0;
        if (same || (lacking && strcmp(other, "absent") != 0)) continue;
        snprintf(list + used, room - used, "%s%.*s is %.80s on %s and %.80s on %s",
                 list[0] ? "; " : "", (int)strcspn(line, ":"), line, lacking ? other : line + name,
                 lacking ? b->who : a->who, lacking ? line + name : other,
                 lacking ? a->who : b->who);
        found++;
    }
    return found;
}

static void write_sentence(const iso__lines *mine, const side *odd, const side *usual,
                           char *message, size_t room) {
    char list[360] = "";
    if (compare_lists(mine, odd, usual, message, room)) return;
    int found = list_settings(odd, usual, false, list, sizeof(list));
    found += list_settings(usual, odd, true, list, sizeof(list));
    if (found > 0)
        snprintf(message, room, "ranks disagree: %s%s: give every rank the same settings", list,
                 strlen(list) + 1 == sizeof(list) ? "..." : "");
    else
        snprintf(message, room, "ranks disagree: %s of rank %d differ from those of rank %d",
                 mine->omitted ? mine->omitted : "settings", odd->rank, usual->rank);
}

static iso_status share_sentence(iso_comm *comm, const iso__lines *mine, const char *text,
                                 size_t bytes, const uint64_t *each) {
    char *all, message[480] = "";
    size_t *sizes;
    ISO_TRY(iso_comm_gather(comm, text, bytes, 0, &all, &sizes));
    if (iso_comm_rank(comm) == 0) {
        int size = iso_comm_size(comm), usual = find_majority(each, size), odd = 0;
        while (each[odd] == each[usual]) odd++;
        side a = side_of(all, sizes, each, size, odd), b = side_of(all, sizes, each, size, usual);
        write_sentence(mine, &a, &b, message, sizeof(message));
    }
    iso_comm_free(all);
    iso_comm_free(sizes);
    ISO_TRY(iso_comm_bcast(comm, message, sizeof(message), 0));
    return ISO_FAIL(ISO_ERR_MISMATCH, "%s", message);
}

// ---- The check ------------------------------------------------------------------------------------

// Of the lists, the settings and what the lines leave out.
static uint64_t hash_lines(const iso__lines *mine, const char *list, const char *settings) {
    uint64_t hash = iso__hash(ISO_HASH_START, list, strlen(list) + 1);
    hash = iso__hash(hash, settings, strlen(settings) + 1);
    return iso__hash(hash, &mine->further, sizeof(mine->further));
}

// Collective, of ranks that differ: here memory and messages may grow with the ranks.
static iso_status explain_difference(iso_comm *comm, const iso__lines *mine, uint64_t hash,
                                     const char *list, const char *settings) {
    size_t first = strlen(list) + 1, bytes = first + strlen(settings) + 1;
    size_t size = (size_t)iso_comm_size(comm), hashes = size * sizeof(int64_t);
    void *memory = NULL;
    ISO_TRY(iso__comm_alloc_zero(comm, hashes + bytes, &memory));
    int64_t *each = memory;
    char *text = (char *)memory + hashes;
    memcpy(text, list, first);
    memcpy(text + first, settings, bytes - first);
    each[iso_comm_rank(comm)] = (int64_t)hash; // zeros elsewhere: the sum is a gather
    iso_status status = iso_comm_allreduce_i64(comm, each, size, ISO_SUM);
    if (status == ISO_OK) status = share_sentence(comm, mine, text, bytes, (const uint64_t *)each);
    if (status != ISO_ERR_TIMEOUT && status != ISO_ERR_MPI) iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__comm_check_lines(iso_comm *comm, const iso__lines *mine) {
    const char *list = mine->list ? mine->list : "",
               *settings = mine->settings ? mine->settings : "";
    uint64_t hash = hash_lines(mine, list, settings);
    bool same = false;
    ISO_TRY(iso__comm_all_same(comm, hash, &same));
    if (!same) ISO_TRY(explain_difference(comm, mine, hash, list, settings));
    return ISO_OK;
}
