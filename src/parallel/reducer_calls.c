// What data_parallel, join, optimizers and resuming ask of a reducer.
#include "parallel/reducer_calls.h"

#include "parallel/reducer_impl.h"

// ---- What it is -------------------------------------------------------------------------------------

const char *iso__reducer_name(const iso_reducer *r, int i) {
    return iso__piece_slot(r, i, 0)->name;
}

int iso__reducer_bucket_of(const iso_reducer *r, int i) { return iso__piece_slot(r, i, 0)->bucket; }

bool iso__reducer_awaits_pieces(const iso_reducer *r) { return !r->device; }

bool iso__reducer_negotiates(const iso_reducer *r) { return r->unused == ISO_UNUSED_NEGOTIATE; }

bool iso__reducer_keeps_ranks_equal(const iso_reducer *r) {
    bool exchanges = r->sync != ISO_SYNC_NONE && r->scope == ISO_SCOPE_WORLD && !r->hook.silent;
    return exchanges || iso_comm_size(r->world) == 1;
}

iso_traffic iso__reducer_traffic(const iso_reducer *r) { return r->traffic; }

float *iso__reducer_hook_state(const iso_reducer *r, size_t *count) {
    *count = r->hook_state_count;
    return r->hook_state;
}

iso_scope iso__reducer_scope(const iso_reducer *r) { return r->scope; }

// ---- A backward whose owner says where it begins and ends -------------------------------------------

void iso__reducer_set_owner(iso_reducer *r) { r->always_closed = true; }

void iso__reducer_enter_backward(iso_reducer *r, bool exchanged) {
    if (r->sync != ISO_SYNC_EXPLICIT) r->unsynced = exchanged ? 0 : r->unsynced + 1;
    r->in_backward = true;
}

void iso__reducer_leave_backward(iso_reducer *r) { r->in_backward = false; }

bool iso__reducer_in_backward(const iso_reducer *r) { return r->in_backward; }

// ---- After a backward -------------------------------------------------------------------------------

bool iso__reducer_was_unused(const iso_reducer *r, int i) {
    return iso__piece_slot(r, i, 0)->skipped;
}

// ---- Ranks without data -----------------------------------------------------------------------------

iso_unused iso__reducer_set_unused(iso_reducer *r, iso_unused unused) {
    iso_unused before = r->unused;
    r->unused = unused;
    return before;
}

void iso__reducer_skip_local(iso_reducer *r) {
    for (int i = 0; i < r->slot_count; i++)
        if (r->slot[i].local) r->slot[i].skipped = true;
}

void iso__reducer_end_join(iso_reducer *r) {
    r->weight = 1;
    r->total = 0;
    for (int i = 0; i < r->slot_count && r->unused != ISO_UNUSED_NEGOTIATE; i++)
        if (r->slot[i].local) r->slot[i].skipped = false; // which otherwise the next backward sets
}
