// The check that all ranks built the same model, and the sentence that says who did not.
#include "parallel/reducer_impl.h"

#include <string.h>

#define LINE 320 // room for one parameter; of a longer name the end is left out

// One line per parameter, and one in front for the settings that must agree.
static iso_status describe(const iso_reducer_param *params, int count, const char *settings,
                           char **out, size_t *bytes) {
    void *memory;
    *bytes = (size_t)(count + 1) * LINE;
    ISO_TRY(iso__alloc_zero(*bytes, &memory));
    char *text = memory;
    snprintf(text, LINE, "%s", settings);
    for (int i = 0; i < count; i++) {
        const iso_reducer_param *p = &params[i];
        char size[64];
        snprintf(size, sizeof(size), "%zu elements", p->count);
        snprintf(text + (size_t)(i + 1) * LINE, LINE, "parameter \"%.192s\" %.63s %s (layer %d)",
                 p->name, p->shape_text ? p->shape_text : size, iso_dtype_name(p->dtype), p->layer);
    }
    *out = text;
    return ISO_OK;
}

static uint64_t fingerprint(const iso_reducer_param *params, int count, const char *text,
                            size_t bytes) {
    uint64_t hash = iso__hash(ISO_HASH_START, text, bytes);
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

static const char *line_of(const char *text, size_t bytes, size_t i) {
    return i * LINE < bytes ? text + i * LINE : "no further parameter";
}

static void compare(int odd, const char *a, size_t a_bytes, int usual, const char *b,
                    size_t b_bytes, char *message, size_t room) {
    size_t most = (a_bytes > b_bytes ? a_bytes : b_bytes) / LINE;
    // Line 0 holds settings; a parameter that differs says more, so look for one first.
    for (size_t k = 1; k <= most; k++) {
        size_t i = k % most;
        if (strcmp(line_of(a, a_bytes, i), line_of(b, b_bytes, i)) == 0) continue;
        snprintf(message, room, "ranks disagree: rank %d has %s where rank %d has %s", odd,
                 line_of(a, a_bytes, i), usual, line_of(b, b_bytes, i));
        return;
    }
    snprintf(message, room,
             "ranks disagree: names or shapes of rank %d differ from those of rank %d", odd, usual);
}

static const char *text_of(const char *all, const size_t *sizes, int rank) {
    for (int r = 0; r < rank; r++) all += sizes[r];
    return all;
}

static iso_status write_message(iso_comm *comm, const uint64_t *each, const char *text,
                                size_t bytes, char *message, size_t room) {
    char *all;
    size_t *sizes;
    ISO_TRY(iso_comm_gather(comm, text, bytes, 0, &all, &sizes));
    if (iso_comm_rank(comm) == 0) {
        int usual = majority(each, iso_comm_size(comm)), odd = 0;
        while (each[odd] == each[usual]) odd++;
        compare(odd, text_of(all, sizes, odd), sizes[odd], usual, text_of(all, sizes, usual),
                sizes[usual], message, room);
    }
    iso_comm_free(all);
    iso_comm_free(sizes);
    return ISO_OK;
}

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
                      const char *settings) {
    char *text = NULL;
    size_t bytes = 0;
    int64_t *each = NULL;
    iso_status status = describe(params, count, settings, &text, &bytes);
    if (status == ISO_OK)
        status = iso__alloc_zero((size_t)iso_comm_size(comm) * sizeof(*each), (void **)&each);
    if (status == ISO_OK)
        status = match(comm, fingerprint(params, count, text, bytes), text, bytes, each);
    iso__free(each);
    iso__free(text);
    ISO_TRY(status);
    return ISO_OK;
}
