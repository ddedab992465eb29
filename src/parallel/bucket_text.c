// What travels in which bucket, in words.
#include "parallel/reducer_impl.h"

#include <string.h>

// Writes the lines into text (NULL: nowhere) and returns their length.
static size_t write_lines(const iso_reducer *r, char *text, size_t room) {
    size_t used = 0;
#define SAY(...)                                                                                   \
    used += (size_t)snprintf(text ? text + used : NULL, text ? room - used : 0, __VA_ARGS__)
    for (int b = 0; b < r->bucket_count; b++) {
        const iso__bucket *bucket = &r->bucket[b];
        SAY("bucket %d: %zu bytes, %s%s:", b, bucket->bytes, iso_dtype_name(bucket->dtype),
            bucket->local ? ", not exchanged" : "");
        for (int k = bucket->first; k <= bucket->last; k++) {
            const iso__grad_slot *s = &r->slot[r->order[k]];
            SAY("%s %s", k > bucket->first ? "," : "", s->name);
            if (s->cut) SAY(" (piece %d)", s->piece);
        }
        SAY("\n");
    }
#undef SAY
    return used;
}

iso_status iso_reducer_bucket_text(const iso_reducer *r, char **out) {
    size_t room = write_lines(r, NULL, 0) + 1;
    void *text;
    ISO_TRY(iso__alloc(room, &text));
    write_lines(r, text, room);
    *out = text;
    return ISO_OK;
}

void iso__reducer_log_buckets(const iso_reducer *r) {
    char *text, *rest = NULL;
    if (iso__log_level() < ISO_LOG_INFO || iso_comm_rank(r->world) != 0) return;
    if (iso_reducer_bucket_text(r, &text) < 0) return;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        iso__log(ISO_LOG_INFO, "%s", line);
    iso__free(text);
}
