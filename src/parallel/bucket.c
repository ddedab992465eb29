// Buckets: which gradients travel together, where they lie in the arena, and in which order they
// leave.
#include "parallel/reducer_impl.h"

#include <string.h>

#define ALIGNMENT 64

static size_t padded(const iso__grad_slot *slot) {
    return (slot->count * iso_dtype_size(slot->dtype) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

// Of the parameters of a layer those of one element type.
static int layer_first(const iso_reducer *r, int i) {
    while (i > 0 && r->slot[i - 1].layer == r->slot[i].layer &&
           r->slot[i - 1].dtype == r->slot[i].dtype)
        i--;
    return i;
}

// "conv1" of "conv1.weight"; the whole name where there is no dot.
static int layer_name_length(const char *name) {
    const char *dot = strrchr(name, '.');
    return (int)(dot ? (size_t)(dot - name) : strlen(name));
}

static void make_label(const iso_reducer *r, iso__bucket *b) {
    size_t used = 0;
    for (int i = b->first; i <= b->last && used < sizeof(b->label); i++) {
        if (layer_first(r, i) != i) continue;
        int n = snprintf(b->label + used, sizeof(b->label) - used, "%s%.*s", used ? "+" : "",
                         layer_name_length(r->slot[i].name), r->slot[i].name);
        used += (size_t)n;
    }
}

// Takes whole layers from slot `last` downwards until the bucket is full; returns the next slot
// down.
static int fill_bucket(iso_reducer *r, int last, size_t bucket_bytes, size_t *offset) {
    iso__bucket *b = &r->bucket[r->bucket_count++];
    *b = (iso__bucket){.last = last, .offset = *offset};
    int first = last + 1;
    do {
        int layer_last = first - 1;
        first = layer_first(r, layer_last);
        for (int i = first; i <= layer_last; i++) {
            r->slot[i].bucket = r->bucket_count - 1;
            r->slot[i].offset = *offset;
            *offset += padded(&r->slot[i]);
        }
    } while (first > 0 && *offset - b->offset < bucket_bytes &&
             r->slot[first - 1].dtype == r->slot[last].dtype);
    b->first = first;
    b->bytes = *offset - b->offset;
    b->missing = last - first + 1;
    make_label(r, b);
    return first - 1;
}

iso_status iso__reducer_make_buckets(iso_reducer *r, size_t bucket_bytes) {
    ISO_TRY(iso__alloc_zero((size_t)r->slot_count * sizeof(*r->bucket), (void **)&r->bucket));
    size_t offset = 0;
    for (int i = r->slot_count - 1; i >= 0;) i = fill_bucket(r, i, bucket_bytes, &offset);
    r->arena_bytes = offset;
    // Zero, so that the padding between parameters stays zero in every sum.
    ISO_TRY(iso__alloc_zero(offset, (void **)&r->arena));
    return ISO_OK;
}
