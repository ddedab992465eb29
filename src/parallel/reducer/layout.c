// SPDX-License-Identifier: MIT
// Cuts parameters into pieces, fuses them into buckets, and determines their places and order.
#include "parallel/reducer/layout.h"

#include "parallel/param_list.h"

#include <string.h>

// ---- Cutting ----------------------------------------------------------------------------------------

#define UNIT 16 // elements: pieces begin on cache lines, also those of f32

// A number of rows whose size is a multiple of a cache line, whatever the length of a row, and of
// the granularity of buckets. So buckets can end where pieces end.
static size_t whole_rows(const iso__layout *l, size_t row_bytes) {
    size_t rows = UNIT;
    while (l->bucket_unit && rows * row_bytes % l->bucket_unit != 0) rows += UNIT;
    return rows;
}

// Elements of each piece except the last; 0: the parameter is not cut.
static size_t piece_elements(const iso__layout *l, const iso_reducer_param *p, size_t piece_bytes) {
    size_t size = iso_dtype_size(iso__gradient_type(p->dtype)), bytes = p->count * size;
    bool whole = p->whole || p->local || p->delayed || p->sparse_rows > 0;
    if (piece_bytes == 0 || p->row == 0 || whole || bytes / 2 < piece_bytes) return 0;
    size_t rows = p->count / p->row, pieces = bytes / piece_bytes;
    size_t unit = whole_rows(l, p->row * size);
    size_t each = ((rows + pieces - 1) / pieces + unit - 1) / unit * unit;
    while (each < rows && rows % each == 1) each += unit; // a single row may round differently
    return each < rows ? each * p->row : 0;
}

// The limit of non-zero rows, at most the number of rows. 0: dense.
static size_t sparse_rows_of(const iso_reducer_param *p) {
    if (p->sparse_rows == 0 || p->local) return 0;
    return p->sparse_rows < p->count / p->row ? p->sparse_rows : p->count / p->row;
}

static iso_status add_slot(iso__layout *l, const iso_reducer_param *p, int i, int piece,
                           int layer) {
    iso__grad_slot *slot = &l->slot[l->slot_count];
    size_t each = l->place[i].each, first = (size_t)piece * each, left = p->count - first;
    size_t skipped = first * iso_dtype_size(p->dtype);
    *slot = (iso__grad_slot){.param = i,
                             .piece = piece,
                             .cut = each > 0,
                             .first = first,
                             .value = (char *)p->value + skipped,
                             .home = p->gradient ? (char *)p->gradient + skipped : NULL,
                             .count = each > 0 && each < left ? each : left,
                             .dtype = iso__gradient_type(p->dtype),
                             .type = p->dtype,
                             .row = p->row,
                             .sparse_rows = sparse_rows_of(p),
                             .layer = layer,
                             .local = p->local,
                             .delayed = p->delayed,
                             .user = p->user};
    l->piece_slot[l->place[i].start + piece] = l->slot_count++;
    return iso__strdup(p->name, &slot->name);
}

// Adds pieces from the last one down to number `down`, each as a separate layer.
static iso_status add_pieces(iso__layout *l, const iso_reducer_param *p, int i, int down,
                             int *layer) {
    for (int k = l->place[i].pieces - 1; k >= down; k--) ISO_TRY(add_slot(l, p, i, k, (*layer)++));
    return ISO_OK;
}

// A bucket of this length is worth a separate exchange.
#define LONG_BYTES ((size_t)128 << 10)

// The bytes of a slot that count towards such a bucket, at most LONG_BYTES.
static size_t long_part(const iso__grad_slot *s) {
    size_t most = LONG_BYTES / iso_dtype_size(s->dtype);
    if (s->local || s->delayed) return 0;
    return s->count < most ? s->count * iso_dtype_size(s->dtype) : LONG_BYTES;
}

// Divides slots `first` to `end` - 1 into groups, numbered from the last slot on, and returns their
// number. A group ends when its slots are long together, unless the rest is too short for another.
static int number_groups(iso__layout *l, int first, int end) {
    size_t left = 0, bytes = 0;
    int group = 0;
    for (int s = first; s < end; s++) left += long_part(&l->slot[s]);
    for (int s = end - 1; s >= first; s--) {
        if (bytes >= LONG_BYTES && left >= LONG_BYTES) {
            group++;
            bytes = 0;
        }
        l->slot[s].layer = group;
        bytes += long_part(&l->slot[s]);
        left -= long_part(&l->slot[s]);
    }
    return group + 1;
}

// Adds a layer of which no parameter is cut. Each long parameter, with the short ones next to it,
// becomes a separate layer, because they are ready and needed at different times.
static iso_status add_groups(iso__layout *l, const iso_reducer_param *params, int first, int end,
                             int *layer) {
    int slot = l->slot_count;
    for (; first < end; first++) ISO_TRY(add_slot(l, &params[first], first, 0, 0));
    int groups = number_groups(l, slot, l->slot_count);
    for (int s = slot; s < l->slot_count; s++)
        l->slot[s].layer = *layer + groups - 1 - l->slot[s].layer;
    *layer += groups;
    return ISO_OK;
}

// Adds the layer of parameters first to end - 1. Buckets take whole layers from the last one down,
// and lay out their slots in the order in which they leave. So each piece becomes a separate layer,
// in reverse order, and the pieces of a parameter are adjacent in memory. Parameters that are not
// cut share a layer with the very first piece, so that they are back before the other pieces are
// used.
static iso_status add_layer(iso__layout *l, const iso_reducer_param *params, int first, int end,
                            int *layer) {
    int cut = first;
    while (cut < end && l->place[cut].pieces == 1) cut++;
    if (cut == end) return add_groups(l, params, first, end, layer);
    for (int i = end - 1; i >= cut; i--)
        if (l->place[i].pieces > 1) ISO_TRY(add_pieces(l, &params[i], i, i == cut, layer));
    for (int i = first; i < end; i++)
        if (l->place[i].pieces == 1) ISO_TRY(add_slot(l, &params[i], i, 0, *layer));
    ISO_TRY(add_slot(l, &params[cut], cut, 0, *layer));
    (*layer)++;
    return ISO_OK;
}

static iso_status make_places(iso__layout *l, const iso_reducer_param *params, int count,
                              size_t piece_bytes, int *slots) {
    *slots = 0;
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(*l->place), (void **)&l->place));
    l->param_count = count;
    for (int i = 0; i < count; i++) {
        iso__place *p = &l->place[i];
        p->each = piece_elements(l, &params[i], piece_bytes);
        p->pieces = p->each == 0 ? 1 : (int)((params[i].count + p->each - 1) / p->each);
        p->start = *slots;
        *slots += p->pieces;
    }
    return ISO_OK;
}

static iso_status make_slots(iso__layout *l, const iso_reducer_param *params, int count,
                             size_t piece_bytes) {
    int slots, layer = 0;
    ISO_TRY(iso__params_check(params, count));
    ISO_TRY(make_places(l, params, count, piece_bytes, &slots));
    ISO_TRY(iso__alloc_zero((size_t)slots * sizeof(*l->slot), (void **)&l->slot));
    ISO_TRY(iso__alloc_zero((size_t)slots * sizeof(*l->piece_slot), (void **)&l->piece_slot));
    for (int first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && params[end].layer == params[first].layer;) end++;
        ISO_TRY(add_layer(l, params, first, end, &layer));
    }
    return ISO_OK;
}

#define ALIGNMENT 64

static size_t padded_bytes(const iso__grad_slot *slot) {
    return (slot->count * iso_dtype_size(slot->dtype) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int layer_first(const iso__layout *l, int i) {
    while (i > 0 && l->slot[i - 1].layer == l->slot[i].layer) i--;
    return i;
}

static int layer_last(const iso__layout *l, int i) {
    while (i + 1 < l->slot_count && l->slot[i + 1].layer == l->slot[i].layer) i++;
    return i;
}

// ---- What is asked for ----------------------------------------------------------------------------

// Above this, sums of sizes could overflow. Negative numbers converted to size_t are above it, too.
#define MOST (SIZE_MAX / 4)

static iso_status check_size(size_t bytes, const char *which) {
    ISO_CHECK(bytes <= MOST, ISO_ERR_ARG,
              "%s of %zu bytes is not a size (a negative number?): give a number of bytes, or 0",
              which, bytes);
    return ISO_OK;
}

static iso_status check_list(const iso__bucket_sizes *sizes) {
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

static iso_status check_sizes(const iso__bucket_sizes *sizes) {
    ISO_TRY(check_size(sizes->cap, "a bucket"));
    ISO_TRY(check_size(sizes->first, "a first bucket"));
    ISO_TRY(check_size(sizes->last, "a last bucket"));
    return check_list(sizes);
}

static iso_status check_slots(const iso__layout *l) {
    size_t total = 0;
    for (int i = 0; i < l->slot_count; i++) {
        const iso__grad_slot *s = &l->slot[i];
        ISO_CHECK(s->count <= (MOST - total) / iso_dtype_size(s->dtype), ISO_ERR_ARG,
                  "parameter \"%s\" has %zu elements: gradients up to it are more than memory can "
                  "address",
                  s->name, s->count);
        total += padded_bytes(s);
    }
    return ISO_OK;
}

// The size at which bucket number n of its kind, in the order in which they leave, is full.
static size_t size_of(const iso__bucket_sizes *sizes, int n) {
    if (sizes->list) return sizes->list[n < sizes->list_count ? n : sizes->list_count - 1];
    return n == 0 && sizes->first > 0 ? sizes->first : sizes->cap;
}

// ---- Which slots ----------------------------------------------------------------------------------

enum { NO_BUCKET = -1 };

// Slots may share a bucket if they are of one kind: one type, and all exchanged or all local.
enum { KINDS = 2 * ISO_DTYPE_COUNT };

static int kind_of(const iso__layout *l, int i) {
    return 2 * (int)(l->by_value ? l->slot[i].type : l->slot[i].dtype) + l->slot[i].local;
}

// The buckets that are being filled, one of each kind.
typedef struct filling {
    int bucket[KINDS]; // NO_BUCKET: none
    size_t bytes[KINDS];
    int closed[KINDS]; // the number of full buckets before it
} filling;

static filling fill_nothing(void) {
    filling f = {.closed = {0}};
    for (int k = 0; k < KINDS; k++) f.bucket[k] = NO_BUCKET;
    return f;
}

// Puts the slot into the bucket of its kind; a sparse one into a bucket of its own.
static void put_slot(iso__layout *l, filling *f, int i) {
    int kind = kind_of(l, i);
    if (l->slot[i].sparse_rows > 0) {
        l->slot[i].bucket = l->bucket_count++;
        return;
    }
    if (f->bucket[kind] == NO_BUCKET) f->bucket[kind] = l->bucket_count++;
    l->slot[i].bucket = f->bucket[kind];
    f->bytes[kind] += padded_bytes(&l->slot[i]);
}

// Puts all delayed slots of one kind into one bucket.
static void fill_delayed(iso__layout *l) {
    filling f = fill_nothing();
    for (int i = 0; i < l->slot_count; i++)
        if (l->slot[i].delayed) put_slot(l, &f, i);
}

// Fills the buckets that the next forward needs first: with whole layers from the first one up,
// until they have `last` bytes. Call it before fill_others, which takes the remaining slots.
static void fill_last(iso__layout *l, size_t last) {
    filling f = fill_nothing();
    bool full[KINDS] = {false};
    for (int first = 0, end; last > 0 && first < l->slot_count; first = end) {
        end = layer_last(l, first) + 1;
        for (int i = first; i < end; i++)
            if (l->slot[i].bucket == NO_BUCKET && !full[kind_of(l, i)]) put_slot(l, &f, i);
        for (int k = 0; k < KINDS; k++) full[k] = f.bytes[k] >= last;
    }
}

// Puts whole layers, from the last one down, into a bucket of each kind until it is full.
static void fill_others(iso__layout *l, const iso__bucket_sizes *sizes) {
    filling f = fill_nothing();
    for (int first = l->slot_count; first > 0;) {
        int last = first - 1;
        first = layer_first(l, last);
        for (int i = first; i <= last; i++)
            if (l->slot[i].bucket == NO_BUCKET) put_slot(l, &f, i);
        for (int k = 0; k < KINDS; k++) {
            if (f.bucket[k] == NO_BUCKET || f.bytes[k] < size_of(sizes, f.closed[k])) continue;
            f.bucket[k] = NO_BUCKET;
            f.bytes[k] = 0;
            f.closed[k]++;
        }
    }
}

// Numbers the buckets that are delayed, or those that are not, from `end` - 1 down, by their lowest
// slots. Returns the lowest number.
static int number_those(iso__layout *l, bool delayed, int end) {
    int *number = l->order; // by provisional bucket number; lay_out overwrites it with the order
    for (int i = 0; i < l->slot_count; i++) {
        if (l->slot[i].delayed != delayed) continue;
        int *mine = &number[l->slot[i].bucket];
        if (*mine == NO_BUCKET) *mine = --end;
        l->slot[i].bucket = *mine;
    }
    return end;
}

// Numbers buckets in the order in which a backward completes them, the delayed ones last.
static void number_buckets(iso__layout *l) {
    for (int b = 0; b < l->bucket_count; b++) l->order[b] = NO_BUCKET;
    l->first_delayed = number_those(l, true, l->bucket_count);
    number_those(l, false, l->first_delayed);
}

static void fill_buckets(iso__layout *l, const iso__bucket_sizes *sizes) {
    l->bucket_count = 0;
    for (int i = 0; i < l->slot_count; i++) l->slot[i].bucket = NO_BUCKET;
    fill_delayed(l);
    fill_last(l, sizes->last);
    fill_others(l, sizes);
    number_buckets(l);
}

// ---- Where they lie -------------------------------------------------------------------------------

// "conv1" of "conv1.weight"; the whole name where there is no dot.
static int layer_name_length(const char *name) {
    const char *dot = strrchr(name, '.');
    return (int)(dot ? (size_t)(dot - name) : strlen(name));
}

// Names the layers of a bucket from the first one up: each by its first slot there.
static void make_label(const iso__layout *l, iso__range *r) {
    size_t used = 0, room = sizeof(r->label);
    for (int k = r->last; k >= r->first && used < room; k--) {
        const iso__grad_slot *s = &l->slot[l->order[k]];
        if (k > r->first && l->slot[l->order[k - 1]].layer == s->layer) continue;
        char piece[16] = "";
        if (s->cut) snprintf(piece, sizeof(piece), "[%d]", s->piece);
        used += (size_t)snprintf(r->label + used, room - used, "%s%.*s%s", used ? "+" : "",
                                 layer_name_length(s->name), s->name, piece);
    }
}

// The padding that makes the size of the bucket a multiple of bucket_unit.
static size_t gap_of(const iso__layout *l, const iso__range *r) {
    size_t bytes = 0, unit = l->bucket_unit ? l->bucket_unit : ALIGNMENT;
    for (int k = r->first; k <= r->last; k++) bytes += padded_bytes(&l->slot[l->order[k]]);
    return (unit - bytes % unit) % unit;
}

// Puts the slots of each bucket into the order: layers from the last one down.
static void put_in_order(iso__layout *l) {
    for (int b = 0; b < l->bucket_count; b++) l->range[b] = (iso__range){.last = -1};
    for (int i = 0; i < l->slot_count; i++) l->range[l->slot[i].bucket].last++;
    for (int b = 0, next = 0; b < l->bucket_count; b++) {
        int end = next + l->range[b].last + 1;
        l->range[b] = (iso__range){.first = next, .last = next - 1};
        next = end;
    }
    for (int layer = l->slot_count; layer > 0;) {
        int last = layer - 1;
        layer = layer_first(l, last);
        for (int i = layer; i <= last; i++) l->order[++l->range[l->slot[i].bucket].last] = i;
    }
}

// The place in the order before which the gap comes. If the bucket ends in pieces of a parameter,
// the gap comes before these, because the next piece must follow directly; otherwise it comes at
// the end.
static int gap_place(const iso__layout *l, const iso__range *r) {
    int place = r->last, param = l->slot[l->order[place]].param;
    if (!l->slot[l->order[place]].cut) return r->last + 1;
    while (place > r->first && l->slot[l->order[place - 1]].param == param) place--;
    return place > r->first ? place : r->last + 1;
}

static void lay_out(iso__layout *l, int bucket, size_t *offset) {
    iso__range *r = &l->range[bucket];
    size_t begin = *offset, gap = gap_of(l, r);
    int place = gap_place(l, r);
    for (int k = r->first; k <= r->last; k++) {
        if (k == place) *offset += gap;
        l->slot[l->order[k]].offset = *offset;
        *offset += padded_bytes(&l->slot[l->order[k]]);
    }
    if (place > r->last) *offset += gap;
    make_label(l, r);
    const iso__grad_slot *slot = &l->slot[l->order[r->first]];
    l->bucket[bucket] = (iso__bucket){.label = r->label,
                                      .offset = begin,
                                      .bytes = *offset - begin,
                                      .filler = place > r->last ? gap : 0,
                                      .dtype = slot->dtype,
                                      .local = slot->local,
                                      .sparse_rows = slot->sparse_rows};
}

// Adds the tail to the bucket that is needed first. No piece follows it directly: either all pieces
// of a parameter travel, or none.
static void add_tail(iso__layout *l) {
    iso__bucket *b = &l->bucket[iso__layout_last(l)];
    b->tail = l->tail * iso_dtype_size(b->dtype);
    b->tail = (b->tail + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    for (int i = 0; i < l->slot_count; i++)
        if (l->slot[i].offset >= b->offset + b->bytes) l->slot[i].offset += b->tail;
    for (iso__bucket *k = b + 1; k < l->bucket + l->bucket_count; k++) k->offset += b->tail;
    b->bytes += b->tail;
    l->bytes += b->tail;
}

// Lists the tensors of each bucket for communication hooks.
static iso_status list_tensors(iso__layout *l) {
    ISO_TRY(iso__alloc_zero((size_t)l->slot_count * sizeof(*l->tensor), (void **)&l->tensor));
    for (int b = 0; b < l->bucket_count; b++) {
        const iso__range *range = &l->range[b];
        iso__bucket *bucket = &l->bucket[b];
        bucket->tensor = &l->tensor[range->first];
        bucket->tensor_count = range->last - range->first + 1;
        for (int k = range->first; k <= range->last; k++) {
            const iso__grad_slot *s = &l->slot[l->order[k]];
            size_t offset = (s->offset - bucket->offset) / iso_dtype_size(s->dtype);
            l->tensor[k] = (iso_comm_hook_tensor){s->name, offset, s->count, s->row};
        }
    }
    return ISO_OK;
}

iso_status iso__layout_assign(iso__layout *l, const iso__bucket_sizes *sizes) {
    size_t count = (size_t)l->slot_count, offset = 0;
    ISO_TRY(check_sizes(sizes));
    ISO_TRY(check_slots(l));
    ISO_TRY(iso__alloc_zero(count * sizeof(*l->range), (void **)&l->range));
    ISO_TRY(iso__alloc_zero(count * sizeof(*l->bucket), (void **)&l->bucket));
    ISO_TRY(iso__alloc_zero(count * sizeof(*l->order), (void **)&l->order));
    fill_buckets(l, sizes);
    put_in_order(l);
    for (int b = 0; b < l->bucket_count; b++) lay_out(l, b, &offset);
    l->bytes = offset;
    if (l->tail > 0) add_tail(l);
    return list_tensors(l);
}

// ---- Life -------------------------------------------------------------------------------------------

void iso__layout_destroy(iso__layout *l) {
    for (int i = 0; l->slot && i < l->slot_count; i++) iso__free(l->slot[i].name);
    iso__free(l->slot);
    iso__free(l->piece_slot);
    iso__free(l->place);
    iso__free(l->order);
    iso__free(l->range);
    iso__free(l->tensor);
    iso__free(l->bucket);
    iso__free(l->by_layer);
    iso__free(l->shared);
    iso__free(l->layer);
    *l = (iso__layout){0};
}

// Whether the gradient of each parameter lies in one piece of memory.
static bool is_contiguous(const iso__layout *l) {
    for (int i = 0; i < l->param_count; i++)
        for (int k = 1; k < l->place[i].pieces; k++) {
            const iso__grad_slot *before = iso__layout_piece(l, i, k - 1);
            size_t end = before->offset + before->count * iso_dtype_size(before->dtype);
            if (iso__layout_piece(l, i, k)->offset != end) return false;
        }
    return true;
}

static iso_status create_with(const iso_reducer_param *params, int count,
                              const iso__bucket_sizes *sizes, size_t piece_bytes,
                              size_t bucket_unit, size_t tail, iso__layout *out) {
    *out = (iso__layout){.bucket_unit = bucket_unit, .tail = tail, .by_value = sizes->by_value};
    ISO_TRY(make_slots(out, params, count, piece_bytes));
    return iso__layout_assign(out, sizes);
}

iso_status iso__layout_create(const iso_reducer_param *params, int count,
                              const iso__bucket_sizes *sizes, size_t piece_bytes,
                              size_t bucket_unit, size_t tail, iso__layout *out) {
    iso_status status = create_with(params, count, sizes, piece_bytes, bucket_unit, tail, out);
    if (status == ISO_OK && !is_contiguous(out)) { // buckets of another kind are between pieces
        iso__log(ISO_LOG_INFO,
                 "parameters are not cut into pieces: parameters that are not exchanged, or of "
                 "another element type, lie between their pieces");
        iso__layout_destroy(out);
        status = create_with(params, count, sizes, 0, bucket_unit, tail, out);
    }
    if (status < 0) iso__layout_destroy(out);
    ISO_TRY(status);
    return ISO_OK;
}
