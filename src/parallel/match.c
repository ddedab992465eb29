// The check that all ranks built the same model, and the sentence that says who did not.
#include "parallel/reducer_impl.h"

#include <string.h>

#define LINE 192

// One fixed-length line per parameter, and one in front for the settings that must agree.
static iso_status describe(const iso_reducer *r, size_t bucket_bytes, char **out, size_t *bytes) {
    void *memory;
    *bytes = (size_t)(r->slot_count + 1) * LINE;
    ISO_TRY(iso__alloc_zero(*bytes, &memory));
    char *text = memory;
    snprintf(text, LINE, "%d parameters, buckets of %zu bytes, sync mode %d", r->slot_count, bucket_bytes, (int)r->sync);
    for (int i = 0; i < r->slot_count; i++) {
        const iso__grad_slot *s = &r->slot[i];
        snprintf(text + (size_t)(i + 1) * LINE, LINE, "parameter \"%.96s\" %.40s %s%s", s->name,
                 s->shape_text ? s->shape_text : "", iso_dtype_name(s->dtype),
                 s->shape_text ? "" : " of another size or shape");
    }
    *out = text;
    return ISO_OK;
}

static uint64_t fingerprint(const iso_reducer *r, const char *text, size_t bytes) {
    uint64_t hash = iso__hash(ISO_HASH_START, text, bytes);
    for (int i = 0; i < r->slot_count; i++) {
        const iso__grad_slot *s = &r->slot[i];
        uint64_t numbers[3] = {s->count, s->shape_id, (uint64_t)s->layer};
        hash = iso__hash(hash, numbers, sizeof(numbers));
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

static void compare(int odd, const char *a, size_t a_bytes, int usual, const char *b, size_t b_bytes, char *message,
                    size_t room) {
    size_t i = 0, most = (a_bytes > b_bytes ? a_bytes : b_bytes) / LINE;
    // Line 0 holds counts; a differing parameter says more, so look for one first.
    for (i = 1; i < most; i++)
        if (strcmp(line_of(a, a_bytes, i), line_of(b, b_bytes, i)) != 0) break;
    if (i == most) i = 0;
    snprintf(message, room, "ranks built different models: rank %d has %s where rank %d has %s", odd,
             line_of(a, a_bytes, i), usual, line_of(b, b_bytes, i));
}

static const char *text_of(const char *all, const size_t *sizes, int rank) {
    for (int r = 0; r < rank; r++) all += sizes[r];
    return all;
}

static iso_status write_message(const iso_reducer *r, const uint64_t *each, const char *text, size_t bytes,
                                char *message, size_t room) {
    char *all;
    size_t *sizes;
    ISO_TRY(iso_comm_gather(r->comm, text, bytes, 0, &all, &sizes));
    if (r->rank == 0) {
        int usual = majority(each, r->size), odd = 0;
        while (each[odd] == each[usual]) odd++;
        compare(odd, text_of(all, sizes, odd), sizes[odd], usual, text_of(all, sizes, usual), sizes[usual], message, room);
    }
    iso_comm_free(all);
    iso_comm_free(sizes);
    return ISO_OK;
}

static iso_status match(const iso_reducer *r, const char *text, size_t bytes, int64_t *each) {
    each[r->rank] = (int64_t)fingerprint(r, text, bytes);
    ISO_TRY(iso_comm_allreduce_i64(r->comm, each, (size_t)r->size, ISO_SUM)); // zeros elsewhere: a gather
    bool same = true;
    for (int q = 1; q < r->size; q++) same = same && each[q] == each[0];
    if (same) return ISO_OK;
    char message[480] = "";
    ISO_TRY(write_message(r, (const uint64_t *)each, text, bytes, message, sizeof(message)));
    ISO_TRY(iso_comm_bcast(r->comm, message, sizeof(message), 0));
    return ISO_FAIL(ISO_ERR_MISMATCH, "%s", message);
}

iso_status iso__reducer_match(const iso_reducer *r, size_t bucket_bytes) {
    char *text = NULL;
    size_t bytes;
    int64_t *each = NULL;
    iso_status status = describe(r, bucket_bytes, &text, &bytes);
    if (status == ISO_OK) status = iso__alloc_zero((size_t)r->size * sizeof(*each), (void **)&each);
    if (status == ISO_OK) status = match(r, text, bytes, each);
    iso__free(each);
    iso__free(text);
    ISO_TRY(status);
    return ISO_OK;
}
