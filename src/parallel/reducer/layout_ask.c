// SPDX-License-Identifier: MIT
// Queries of a layout: its parameters, its last bucket, its text.
#include "parallel/reducer/layout.h"

int iso__layout_last(const iso__layout *l) {
    for (int b = l->first_delayed - 1; b >= 0; b--)
        if (!l->bucket[b].local) return b;
    return l->bucket_count - 1; // the delayed ones travel
}

bool iso__layout_has(const iso__layout *l, int i, int k) {
    return i >= 0 && i < l->param_count && k >= 0 && k < l->place[i].pieces;
}

iso_status iso__layout_check(const iso__layout *l, int i, int k) {
    ISO_CHECK(iso__layout_has(l, i, 0), ISO_ERR_ARG,
              "the reducer has no parameter %d: they are 0 to %d", i, l->param_count - 1);
    ISO_CHECK(iso__layout_has(l, i, k), ISO_ERR_ARG,
              "parameter \"%s\" has no piece %d: they are 0 to %d",
              iso__layout_piece(l, i, 0)->name, k, l->place[i].pieces - 1);
    return ISO_OK;
}

uint64_t iso__layout_fingerprint(const iso__layout *l) {
    uint64_t hash = iso__hash(ISO_HASH_START, &l->bucket_count, sizeof(l->bucket_count));
    for (int i = 0; i < l->slot_count; i++)
        hash = iso__hash(hash, &l->slot[i].bucket, sizeof(l->slot[i].bucket));
    return hash;
}

// Writes the lines into text (NULL: nowhere) and returns their length.
static size_t write_lines(const iso__layout *l, char *text, size_t room) {
    size_t used = 0;
#define SAY(...)                                                                                   \
    used += (size_t)snprintf(text ? text + used : NULL, text ? room - used : 0, __VA_ARGS__)
    for (int b = 0; b < l->bucket_count; b++) {
        const iso__bucket *bucket = &l->bucket[b];
        char rows[48] = "";
        if (bucket->sparse_rows > 0)
            snprintf(rows, sizeof(rows), ", up to %zu rows travel", bucket->sparse_rows);
        SAY("bucket %d: %zu bytes, %s%s%s%s:", b, bucket->bytes, iso_dtype_name(bucket->dtype),
            bucket->local ? ", not exchanged" : "", b >= l->first_delayed ? ", delayed" : "", rows);
        for (int k = l->range[b].first; k <= l->range[b].last; k++) {
            const iso__grad_slot *s = &l->slot[l->order[k]];
            SAY("%s %s", k > l->range[b].first ? "," : "", s->name);
            if (s->cut) SAY(" (piece %d)", s->piece);
        }
        SAY("\n");
    }
#undef SAY
    return used;
}

iso_status iso__layout_text(const iso__layout *l, char **out) {
    size_t room = write_lines(l, NULL, 0) + 1;
    void *text;
    ISO_TRY(iso__alloc(room, &text));
    write_lines(l, text, room);
    *out = text;
    return ISO_OK;
}
