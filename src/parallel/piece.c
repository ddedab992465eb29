// Parameters and their pieces: large ones leave, come back and are updated in pieces of whole rows.
#include "parallel/reducer_impl.h"

// ---- Cutting ----------------------------------------------------------------------------------------

#define UNIT 16 // elements: pieces begin on cache lines, also those of f32

// So many rows are whole cache lines, however long one is; and whole units of buckets, so that
// these end where pieces do.
static size_t whole_rows(const iso_reducer *r, size_t row_bytes) {
    size_t rows = UNIT;
    while (r->bucket_unit && rows * row_bytes % r->bucket_unit != 0) rows += UNIT;
    return rows;
}

// Elements of each piece but the last; 0: it stays whole.
static size_t piece_elements(const iso_reducer *r, const iso_reducer_param *p, size_t piece_bytes) {
    size_t bytes = p->count * iso_dtype_size(p->dtype);
    if (piece_bytes == 0 || p->row == 0 || p->local || bytes / 2 < piece_bytes) return 0;
    size_t rows = p->count / p->row, pieces = bytes / piece_bytes;
    size_t unit = whole_rows(r, p->row * iso_dtype_size(p->dtype));
    size_t each = ((rows + pieces - 1) / pieces + unit - 1) / unit * unit;
    return each < rows ? each * p->row : 0;
}

static iso_status check_param(const iso_reducer_param *p, int i) {
    ISO_CHECK(p->name && p->value && p->count > 0, ISO_ERR_ARG,
              "parameter %d (counted from 0) of the reducer needs a name, a value and at least one "
              "element",
              i);
    ISO_CHECK(p->dtype == ISO_F32 || p->dtype == ISO_F64, ISO_ERR_TYPE,
              "parameter \"%s\" is %s: the reducer takes f32 and f64", p->name,
              iso_dtype_name(p->dtype));
    ISO_CHECK(p->row == 0 || p->count % p->row == 0, ISO_ERR_ARG,
              "parameter \"%s\" has %zu elements in rows of %zu: give whole rows, or 0", p->name,
              p->count, p->row);
    return ISO_OK;
}

static iso_status add_slot(iso_reducer *r, const iso_reducer_param *p, int i, int piece,
                           int layer) {
    iso__grad_slot *slot = &r->slot[r->slot_count];
    size_t each = r->place[i].each, first = (size_t)piece * each, left = p->count - first;
    *slot = (iso__grad_slot){.param = i,
                             .piece = piece,
                             .cut = each > 0,
                             .first = first,
                             .value = (char *)p->value + first * iso_dtype_size(p->dtype),
                             .count = each > 0 && each < left ? each : left,
                             .dtype = p->dtype,
                             .layer = layer,
                             .local = p->local,
                             .owner = ISO_NOBODY};
    r->piece_slot[r->place[i].start + piece] = r->slot_count++;
    return iso__strdup(p->name, &slot->name);
}

// Pieces from the last one down to number `down`, each a layer of its own.
static iso_status add_pieces(iso_reducer *r, const iso_reducer_param *p, int i, int down,
                             int *layer) {
    for (int k = r->place[i].pieces - 1; k >= down; k--) ISO_TRY(add_slot(r, p, i, k, (*layer)++));
    return ISO_OK;
}

// Parameters first to end - 1 are a layer. Buckets take slots from the last one down, whole layers
// together, and lay them out as they leave. So that the pieces of a parameter come to lie one
// behind the other, each is a layer of its own, the first one last. What is not cut leaves before
// the very first piece, and with it, so that it is back when the others are used.
static iso_status add_layer(iso_reducer *r, const iso_reducer_param *params, int first, int end,
                            int *layer) {
    int cut = first;
    while (cut < end && r->place[cut].pieces == 1) cut++;
    for (int i = end - 1; i >= cut; i--)
        if (r->place[i].pieces > 1) ISO_TRY(add_pieces(r, &params[i], i, i == cut, layer));
    for (int i = first; i < end; i++)
        if (r->place[i].pieces == 1) ISO_TRY(add_slot(r, &params[i], i, 0, *layer));
    if (cut < end) ISO_TRY(add_slot(r, &params[cut], cut, 0, *layer));
    (*layer)++;
    return ISO_OK;
}

static iso_status make_places(iso_reducer *r, const iso_reducer_param *params, int count,
                              size_t piece_bytes, int *slots) {
    *slots = 0;
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(*r->place), (void **)&r->place));
    r->param_count = count;
    for (int i = 0; i < count; i++) {
        ISO_TRY(check_param(&params[i], i));
        iso__param_place *p = &r->place[i];
        p->each = piece_elements(r, &params[i], piece_bytes);
        p->pieces = p->each == 0 ? 1 : (int)((params[i].count + p->each - 1) / p->each);
        p->start = *slots;
        *slots += p->pieces;
    }
    return ISO_OK;
}

iso_status iso__reducer_make_slots(iso_reducer *r, const iso_reducer_param *params, int count,
                                   size_t piece_bytes) {
    int slots, layer = 0;
    ISO_TRY(make_places(r, params, count, piece_bytes, &slots));
    ISO_TRY(iso__reducer_check_list(params, count));
    ISO_TRY(iso__alloc_zero((size_t)slots * sizeof(*r->slot), (void **)&r->slot));
    ISO_TRY(iso__alloc_zero((size_t)slots * sizeof(*r->piece_slot), (void **)&r->piece_slot));
    for (int first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && params[end].layer == params[first].layer;) end++;
        ISO_TRY(add_layer(r, params, first, end, &layer));
    }
    return ISO_OK;
}

void iso__reducer_free_slots(iso_reducer *r) {
    for (int i = 0; r->slot && i < r->slot_count; i++) iso__free(r->slot[i].name);
    iso__free(r->slot);
    iso__free(r->piece_slot);
    iso__free(r->place);
    r->slot = NULL;
    r->piece_slot = NULL;
    r->place = NULL;
    r->slot_count = r->param_count = 0;
}

bool iso__reducer_is_contiguous(const iso_reducer *r) {
    for (int i = 0; i < r->param_count; i++)
        for (int k = 1; k < r->place[i].pieces; k++) {
            const iso__grad_slot *before = iso__piece_slot(r, i, k - 1);
            size_t end = before->offset + before->count * iso_dtype_size(before->dtype);
            if (iso__piece_slot(r, i, k)->offset != end) return false;
        }
    return true;
}

// ---- Asking -----------------------------------------------------------------------------------------

static bool exists(const iso_reducer *r, int i, int k) {
    return i >= 0 && i < r->param_count && k >= 0 && k < r->place[i].pieces;
}

void *iso_reducer_grad(iso_reducer *r, int i) {
    return exists(r, i, 0) ? r->gradients + iso__piece_slot(r, i, 0)->offset : NULL;
}

int iso_reducer_pieces(const iso_reducer *r, int i) {
    return exists(r, i, 0) ? r->place[i].pieces : 0;
}

void iso_reducer_piece(const iso_reducer *r, int i, int k, size_t *first, size_t *count) {
    *first = exists(r, i, k) ? iso__piece_slot(r, i, k)->first : 0;
    *count = exists(r, i, k) ? iso__piece_slot(r, i, k)->count : 0;
}

iso_status iso__reducer_check_param(const iso_reducer *r, int i, int k) {
    ISO_CHECK(exists(r, i, 0), ISO_ERR_ARG, "the reducer has no parameter %d: they are 0 to %d", i,
              r->param_count - 1);
    ISO_CHECK(exists(r, i, k), ISO_ERR_ARG, "parameter \"%s\" has no piece %d: they are 0 to %d",
              iso__piece_slot(r, i, 0)->name, k, r->place[i].pieces - 1);
    return ISO_OK;
}
