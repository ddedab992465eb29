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

static int layer_last(const iso_reducer *r, int i) {
    while (i + 1 < r->slot_count && r->slot[i + 1].layer == r->slot[i].layer) i++;
    return i;
}

// ---- What is asked for ----------------------------------------------------------------------------

// Beyond it, sums of sizes could overflow; a negative number that was made a size is beyond it too.
#define MOST (SIZE_MAX / 4)

static iso_status check_size(size_t bytes, const char *which) {
    ISO_CHECK(bytes <= MOST, ISO_ERR_ARG,
              "%s of %zu bytes is not a size (a negative number?): give a number of bytes, or 0",
              which, bytes);
    return ISO_OK;
}

static iso_status check_list(const iso_bucket_sizes *sizes) {
    ISO_CHECK((sizes->list != NULL) == (sizes->list_count > 0) && sizes->list_count >= 0,
              ISO_ERR_ARG,
              "a list of %d bucket sizes%s: give the sizes and how many there are, or neither",
              sizes->list_count, sizes->list ? "" : " that is NULL");
    ISO_CHECK(!sizes->list || (sizes->cap == 0 && sizes->first == 0 && sizes->last == 0),
              ISO_ERR_ARG,
              "bucket sizes are given both as a list and as a cap of %zu bytes (first bucket %zu, "
              "last %zu): give one of the two and leave the other 0",
              sizes->cap, sizes->first, sizes->last);
    for (int i = 0; i < sizes->list_count; i++)
        ISO_TRY(check_size(sizes->list[i], "an entry of the list of bucket sizes"));
    return ISO_OK;
}

static iso_status check_sizes(const iso_bucket_sizes *sizes) {
    ISO_TRY(check_size(sizes->cap, "a bucket"));
    ISO_TRY(check_size(sizes->first, "a first bucket"));
    ISO_TRY(check_size(sizes->last, "a last bucket"));
    return check_list(sizes);
}

static iso_status check_slots(const iso_reducer *r) {
    size_t total = 0;
    for (int i = 0; i < r->slot_count; i++) {
        const iso__grad_slot *s = &r->slot[i];
        ISO_CHECK(s->count <= (MOST - total) / iso_dtype_size(s->dtype), ISO_ERR_ARG,
                  "parameter \"%s\" has %zu elements: gradients up to it are more than memory can "
                  "address",
                  s->name, s->count);
        total += padded(s);
    }
    return ISO_OK;
}

// At how many bytes bucket number n of its kind, counted as they leave, is full.
static size_t size_of(const iso_bucket_sizes *sizes, int n) {
    if (sizes->list) return sizes->list[n < sizes->list_count ? n : sizes->list_count - 1];
    return n == 0 && sizes->first > 0 ? sizes->first : sizes->cap;
}

// ---- Which slots ----------------------------------------------------------------------------------

enum { NO_BUCKET = -1 };

// What may share a bucket: one element type, and exchanged or not.
enum { KINDS = 2 * ISO_DTYPE_COUNT };

static int kind_of(const iso__grad_slot *slot) { return 2 * (int)slot->dtype + slot->local; }

// The buckets that are being filled, one of each kind.
typedef struct filling {
    int bucket[KINDS]; // NO_BUCKET: none
    size_t bytes[KINDS];
    int closed[KINDS]; // how many there were before it
} filling;

static filling fill_nothing(void) {
    filling f = {.closed = {0}};
    for (int k = 0; k < KINDS; k++) f.bucket[k] = NO_BUCKET;
    return f;
}

// Puts the slot into the bucket of its kind.
static void put(iso_reducer *r, filling *f, int i) {
    int kind = kind_of(&r->slot[i]);
    if (f->bucket[kind] == NO_BUCKET) f->bucket[kind] = r->bucket_count++;
    r->slot[i].bucket = f->bucket[kind];
    f->bytes[kind] += padded(&r->slot[i]);
}

// The buckets that leave last: whole layers from the first one up until `last` bytes are there.
// They come before all others, as these take what is left.
static void fill_last(iso_reducer *r, size_t last) {
    filling f = fill_nothing();
    bool full[KINDS] = {false};
    for (int first = 0; last > 0 && first < r->slot_count; first = layer_last(r, first) + 1) {
        for (int i = first; i <= layer_last(r, first); i++)
            if (!full[kind_of(&r->slot[i])]) put(r, &f, i);
        for (int k = 0; k < KINDS; k++) full[k] = f.bytes[k] >= last;
    }
}

// Whole layers, from the last one down, into a bucket of each kind until it is full.
static void fill_others(iso_reducer *r, const iso_bucket_sizes *sizes) {
    filling f = fill_nothing();
    for (int first = r->slot_count; first > 0;) {
        int last = first - 1;
        first = layer_first(r, last);
        for (int i = first; i <= last; i++)
            if (r->slot[i].bucket == NO_BUCKET) put(r, &f, i);
        for (int k = 0; k < KINDS; k++) {
            if (f.bucket[k] == NO_BUCKET || f.bytes[k] < size_of(sizes, f.closed[k])) continue;
            f.bucket[k] = NO_BUCKET;
            f.bytes[k] = 0;
            f.closed[k]++;
        }
    }
}

// Numbers buckets in the order in which a backward completes them: by their lowest slots,
// descending.
static void number_buckets(iso_reducer *r) {
    int *number = r->order; // by number so far, until lay_out writes the order
    int left = r->bucket_count;
    for (int b = 0; b < r->bucket_count; b++) number[b] = NO_BUCKET;
    for (int i = 0; i < r->slot_count; i++) {
        int *mine = &number[r->slot[i].bucket];
        if (*mine == NO_BUCKET) *mine = --left;
        r->slot[i].bucket = *mine;
    }
}

static void fill_buckets(iso_reducer *r, const iso_bucket_sizes *sizes) {
    r->bucket_count = 0;
    for (int i = 0; i < r->slot_count; i++) r->slot[i].bucket = NO_BUCKET;
    fill_last(r, sizes->last);
    fill_others(r, sizes);
    number_buckets(r);
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
        char piece[16] = "";
        if (s->cut) snprintf(piece, sizeof(piece), "[%d]", s->piece);
        if (previous < 0 || r->slot[previous].layer != s->layer)
            used += (size_t)snprintf(label + used, room - used, "%s%.*s%s", used ? "+" : "",
                                     layer_name_length(s->name), s->name, piece);
        previous = i;
    }
}

// Bytes that make the bucket a multiple of the unit in which it is shared out.
static size_t gap_of(const iso_reducer *r, int bucket) {
    size_t bytes = 0, unit = r->bucket_unit ? r->bucket_unit : ALIGNMENT;
    for (int i = 0; i < r->slot_count; i++)
        if (r->slot[i].bucket == bucket) bytes += padded(&r->slot[i]);
    return (unit - bytes % unit) % unit;
}

// Puts the slots of a bucket into the order from place `first` on; returns the place behind them.
static int put_in_order(iso_reducer *r, int bucket, int first) {
    int next = first;
    for (int layer = r->slot_count; layer > 0;) {
        int last = layer - 1;
        layer = layer_first(r, last);
        for (int i = layer; i <= last; i++)
            if (r->slot[i].bucket == bucket) r->order[next++] = i;
    }
    return next;
}

// Before which place of the order its gap comes: before the pieces with which it ends, as the next
// piece lies behind them; or behind all.
static int gap_place(const iso_reducer *r, const iso__bucket *b) {
    int place = b->last, param = r->slot[r->order[place]].param;
    if (!r->slot[r->order[place]].cut) return b->last + 1;
    while (place > b->first && r->slot[r->order[place - 1]].param == param) place--;
    return place > b->first ? place : b->last + 1;
}

// Lays out the slots of a bucket from place `first` of the order on.
static void lay_out(iso_reducer *r, int bucket, int first, size_t *offset) {
    iso__bucket *b = &r->bucket[bucket];
    *b = (iso__bucket){.first = first, .offset = *offset};
    b->last = put_in_order(r, bucket, first) - 1;
    size_t gap = gap_of(r, bucket);
    int place = gap_place(r, b);
    for (int k = first; k <= b->last; k++) {
        if (k == place) *offset += gap;
        r->slot[r->order[k]].offset = *offset;
        *offset += padded(&r->slot[r->order[k]]);
    }
    if (place > b->last) *offset += gap;
    b->dtype = r->slot[r->order[first]].dtype;
    b->local = r->slot[r->order[first]].local;
    b->bytes = *offset - b->offset;
    b->missing = b->last - first + 1;
    make_label(r, bucket);
}

iso_status iso__reducer_assign_buckets(iso_reducer *r, const iso_bucket_sizes *sizes) {
    size_t count = (size_t)r->slot_count, offset = 0;
    ISO_TRY(check_sizes(sizes));
    ISO_TRY(check_slots(r));
    ISO_TRY(iso__alloc_zero(count * sizeof(*r->bucket), (void **)&r->bucket));
    ISO_TRY(iso__alloc_zero(count * sizeof(*r->order), (void **)&r->order));
    fill_buckets(r, sizes);
    for (int b = 0, next = 0; b < r->bucket_count; next = r->bucket[b++].last + 1)
        lay_out(r, b, next, &offset);
    r->arena_bytes = offset;
    return ISO_OK;
}

iso_status iso__reducer_make_buckets(iso_reducer *r, const iso_bucket_sizes *sizes) {
    ISO_TRY(iso__reducer_assign_buckets(r, sizes));
    // Zero, so that the padding between parameters stays zero in every sum.
    ISO_TRY(iso__alloc_zero(r->arena_bytes, (void **)&r->arena));
    return ISO_OK;
}
