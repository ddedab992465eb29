// Buckets: which gradients travel together, where they lie in the arena, and in which order they
// leave.
#include "parallel/reducer_impl.h"

#include <string.h>

#define ALIGNMENT 64

static size_t padded(const iso__grad_slot *slot) {
    return (slot->count * iso_dtype_size(slot->dtype) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int layer_first(const iso_reducer *r, int i) {
    while (i > 0 && r->slot[i - 1].layer == r->slot[i].layer) i--;
    return i;
}

// ---- Which slots ----------------------------------------------------------------------------------

enum { NO_BUCKET = -1 };

// All slots of this type from `first` on that have none yet.
static void close_bucket(iso_reducer *r, iso_dtype dtype, int first) {
    for (int i = first; i < r->slot_count; i++)
        if (r->slot[i].dtype == dtype && r->slot[i].bucket == NO_BUCKET)
            r->slot[i].bucket = r->bucket_count;
    r->bucket_count++;
}

// What did not fill a bucket: first the type of which the backward is through earlier.
static void close_rest(iso_reducer *r) {
    iso_dtype left[ISO_DTYPE_COUNT];
    bool seen[ISO_DTYPE_COUNT] = {false};
    int count = 0;
    for (int i = 0; i < r->slot_count; i++) {
        const iso__grad_slot *s = &r->slot[i];
        if (s->bucket != NO_BUCKET || seen[s->dtype]) continue;
        seen[s->dtype] = true;
        left[count++] = s->dtype;
    }
    while (count > 0) close_bucket(r, left[--count], 0);
}

// Takes whole layers, from the last one down, into a bucket of each type until it is full. So
// buckets are in the order in which a backward completes them.
static void fill_buckets(iso_reducer *r, size_t bucket_bytes) {
    size_t bytes[ISO_DTYPE_COUNT] = {0};
    for (int i = 0; i < r->slot_count; i++) r->slot[i].bucket = NO_BUCKET;
    for (int first = r->slot_count; first > 0;) {
        int last = first - 1;
        first = layer_first(r, last);
        for (int i = first; i <= last; i++) bytes[r->slot[i].dtype] += padded(&r->slot[i]);
        for (int t = 0; t < ISO_DTYPE_COUNT; t++) {
            if (bytes[t] == 0 || bytes[t] < bucket_bytes) continue;
            close_bucket(r, (iso_dtype)t, first);
            bytes[t] = 0;
        }
    }
    close_rest(r);
}

// ---- Where they lie -------------------------------------------------------------------------------

// "conv1" of "conv1.weight"; the whole name where there is no dot.
static int layer_name_length(const char *name) {
    const char *dot = strrchr(name, '.');
    return (int)(dot ? (size_t)(dot - name) : strlen(name));
}

static void make_label(const iso_reducer *r, int bucket) {
    char *label = r->bucket[bucket].label;
    size_t used = 0, room = sizeof(r->bucket[bucket].label);
    int previous = -1;
    for (int i = 0; i < r->slot_count && used < room; i++) {
        const iso__grad_slot *s = &r->slot[i];
        if (s->bucket != bucket) continue;
        if (previous < 0 || r->slot[previous].layer != s->layer)
            used += (size_t)snprintf(label + used, room - used, "%s%.*s", used ? "+" : "",
                                     layer_name_length(s->name), s->name);
        previous = i;
    }
}

// Lays out the slots of a bucket from place `first` of the order on.
static void lay_out(iso_reducer *r, int bucket, int first, size_t *offset) {
    iso__bucket *b = &r->bucket[bucket];
    *b = (iso__bucket){.first = first, .offset = *offset};
    int next = first;
    for (int layer = r->slot_count; layer > 0;) {
        int last = layer - 1;
        layer = layer_first(r, last);
        for (int i = layer; i <= last; i++) {
            if (r->slot[i].bucket != bucket) continue;
            r->order[next++] = i;
            r->slot[i].offset = *offset;
            *offset += padded(&r->slot[i]);
        }
    }
    b->last = next - 1;
    b->dtype = r->slot[r->order[first]].dtype;
    b->bytes = *offset - b->offset;
    b->missing = next - first;
    make_label(r, bucket);
}

iso_status iso__reducer_make_buckets(iso_reducer *r, size_t bucket_bytes) {
    size_t count = (size_t)r->slot_count, offset = 0;
    ISO_TRY(iso__alloc_zero(count * sizeof(*r->bucket), (void **)&r->bucket));
    ISO_TRY(iso__alloc_zero(count * sizeof(*r->order), (void **)&r->order));
    fill_buckets(r, bucket_bytes);
    for (int b = 0, next = 0; b < r->bucket_count; next = r->bucket[b++].last + 1)
        lay_out(r, b, next, &offset);
    r->arena_bytes = offset;
    // Zero, so that the padding between parameters stays zero in every sum.
    ISO_TRY(iso__alloc_zero(offset, (void **)&r->arena));
    return ISO_OK;
}
