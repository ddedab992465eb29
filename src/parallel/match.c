// The check that all ranks built the same model with the same settings, and the sentence that says
// who did not.
#include "parallel/reducer_impl.h"

#include <string.h>

#define LINE 320 // room for one parameter or setting; of what is longer the end is left out

static int count_lines(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

static void describe_param(const iso_reducer_param *p, char line[LINE]) {
    char size[64];
    snprintf(size, sizeof(size), "%zu elements", p->count);
    snprintf(line, LINE, "parameter \"%.192s\" %.63s %s (layer %d)%s", p->name,
             p->shape_text ? p->shape_text : size, iso_dtype_name(p->dtype), p->layer,
             p->local ? ", not exchanged" : "");
}

// The number of parameters, then lines: one per parameter, one per setting.
static iso_status describe(const iso_reducer_param *params, int count, const char *settings,
                           char **out, size_t *bytes) {
    void *memory;
    *bytes = (size_t)(1 + count + count_lines(settings)) * LINE;
    ISO_TRY(iso__alloc_zero(*bytes, &memory));
    char *text = memory, *line = text + LINE;
    snprintf(text, LINE, "%d", count);
    for (int i = 0; i < count; i++, line += LINE) describe_param(&params[i], line);
    for (; *settings; settings += strcspn(settings, "\n") + 1, line += LINE)
        snprintf(line, LINE, "%.*s", (int)strcspn(settings, "\n"), settings);
    *out = text;
    return ISO_OK;
}

static uint64_t fingerprint(const iso_reducer_param *params, int count, uint64_t further,
                            const char *text, size_t bytes) {
    uint64_t hash = iso__hash(ISO_HASH_START, text, bytes);
    hash = iso__hash(hash, &further, sizeof(further));
    for (int i = 0; i < count; i++) {
        uint64_t numbers[2] = {params[i].count, params[i].shape_id};
        hash = iso__hash(hash, numbers, sizeof(numbers));
        hash = iso__hash(hash, params[i].name, strlen(params[i].name));
    }
    return hash;
}

// The fingerprint most ranks have (the lowest rank's on a tie), as the first rank that has it.
static int majority(const uint64_t *each, int size) {
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

// What one rank says, and the ranks that say the same.
typedef struct side {
    const char *text;
    size_t lines, params; // lines behind the first one
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
    side s = {.rank = rank, .lines = sizes[rank] / LINE - 1};
    for (int r = 0; r < rank; r++) all += sizes[r];
    s.params = (size_t)strtoull(all, NULL, 10);
    s.text = all + LINE;
    name_ranks(each, size, rank, s.who);
    return s;
}

static const char *param_of(const side *s, size_t i) {
    return i < s->params ? s->text + i * LINE : "no further parameter";
}

// Of "NAME: VALUE" the length of the name with the ": ".
static size_t name_length(const char *line) {
    const char *end = strstr(line, ": ");
    return end ? (size_t)(end - line) + 2 : strlen(line);
}

// Where a rank has the setting of `line`, its value.
static const char *value_of(const side *s, const char *line) {
    size_t name = name_length(line);
    for (size_t i = s->params; i < s->lines; i++)
        if (strncmp(s->text + i * LINE, line, name) == 0) return s->text + i * LINE + name;
    return "absent";
}

// Lists the settings of `a` that are others in `b`; those that `a` lacks too, where `lacking`.
static int list_settings(const side *a, const side *b, bool lacking, char *list, size_t room) {
    int found = 0;
    for (size_t i = a->params; i < a->lines; i++) {
        const char *line = a->text + i * LINE, *other = value_of(b, line);
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

static void compare(const side *odd, const side *usual, char *message, size_t room) {
    char list[360] = "";
    for (size_t i = 0; i < odd->params || i < usual->params; i++) {
        if (strcmp(param_of(odd, i), param_of(usual, i)) == 0) continue;
        snprintf(message, room, "ranks disagree: rank %d has %s where rank %d has %s", odd->rank,
                 param_of(odd, i), usual->rank, param_of(usual, i));
        return;
    }
    int found = list_settings(odd, usual, false, list, sizeof(list));
    found += list_settings(usual, odd, true, list, sizeof(list));
    if (found > 0)
        snprintf(message, room, "ranks disagree: %s%s: give every rank the same settings", list,
                 strlen(list) + 1 == sizeof(list) ? "..." : "");
    else
        snprintf(message, room,
                 "ranks disagree: names, shapes or buckets of rank %d differ from those of rank %d",
                 odd->rank, usual->rank);
}

static iso_status write_message(iso_comm *comm, const uint64_t *each, const char *text,
                                size_t bytes, char *message, size_t room) {
    char *all;
    size_t *sizes;
    ISO_TRY(iso_comm_gather(comm, text, bytes, 0, &all, &sizes));
    if (iso_comm_rank(comm) == 0) {
        int size = iso_comm_size(comm), usual = majority(each, size), odd = 0;
        while (each[odd] == each[usual]) odd++;
        side a = side_of(all, sizes, each, size, odd), b = side_of(all, sizes, each, size, usual);
        compare(&a, &b, message, room);
    }
    iso_comm_free(all);
    iso_comm_free(sizes);
    return ISO_OK;
}

// ---- The check ------------------------------------------------------------------------------------

static iso_status match(iso_comm *comm, uint64_t mine, const char *text, size_t bytes,
                        int64_t *each) {
    int size = iso_comm_size(comm);
    each[iso_comm_rank(comm)] = (int64_t)mine;
    ISO_TRY(iso_comm_allreduce_i64(comm, each, (size_t)size, ISO_SUM)); // zeros elsewhere: a gather
    bool same = true;
    for (int q = 1; q < size; q++) same = same && each[q] == each[0];
    if (same) return ISO_OK;
    char message[480] = "";
    ISO_TRY(write_message(comm, (const uint64_t *)each, text, bytes, message, sizeof(message)));
    ISO_TRY(iso_comm_bcast(comm, message, sizeof(message), 0));
    return ISO_FAIL(ISO_ERR_MISMATCH, "%s", message);
}

iso_status iso__match(iso_comm *comm, const iso_reducer_param *params, int count,
                      const char *settings, uint64_t further) {
    char *text = NULL;
    size_t bytes = 0;
    int64_t *each = NULL;
    iso_status status = describe(params, count, settings, &text, &bytes);
    if (status == ISO_OK)
        status = iso__alloc_zero((size_t)iso_comm_size(comm) * sizeof(*each), (void **)&each);
    if (status == ISO_OK)
        status = match(comm, fingerprint(params, count, further, text, bytes), text, bytes, each);
    iso__free(each);
    iso__free(text);
    ISO_TRY(status);
    return ISO_OK;
}
