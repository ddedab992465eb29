// A backward as the reducer sees it: gradients become ready, buckets leave.
#include "parallel/reducer_impl.h"

// ---- Buckets leave ----------------------------------------------------------------------------------

bool iso__bucket_travels(const iso_reducer *r, const iso__bucket *b) {
    return r->comm && iso_comm_size(r->comm) > 1 && r->sync != ISO_SYNC_NONE && !b->local &&
           !r->hook.silent;
}

static double total(const iso_reducer *r) {
    return r->total > 0 ? r->total : iso_comm_size(r->comm);
}

// What gradients are multiplied with before the sum, and the sum after it.
static double factor_before(const iso_reducer *r, bool divides) {
    if (divides || r->average == ISO_AVERAGE_PRE) return r->weight / total(r);
    return r->average == ISO_AVERAGE_SPLIT ? r->weight / r->split_factor : r->weight;
}

static double factor_after(const iso_reducer *r, bool divides) {
    if (divides || r->average == ISO_AVERAGE_PRE || r->average == ISO_AVERAGE_SUM) return 1;
    return r->average == ISO_AVERAGE_SPLIT ? r->split_factor / total(r) : 1 / total(r);
}

void iso__bucket_factors(const iso_reducer *r, const iso__bucket *b, double *before,
                         double *after) {
    bool divides = iso__bucket_converts(r, b) && r->hook.divides && r->average != ISO_AVERAGE_SUM;
    *before = factor_before(r, divides);
    *after = factor_after(r, divides);
}

// The same for a rank that is alone: nothing is summed.
static double factor_alone(const iso_reducer *r, const iso__bucket *b) {
    bool exchanged = r->comm && r->sync != ISO_SYNC_NONE && !b->local && !r->hook.silent;
    if (!exchanged || iso_comm_size(r->comm) > 1) return 1;
    return r->average == ISO_AVERAGE_SUM ? r->weight : r->weight / total(r);
}

static iso_status prepare(iso_reducer *r, iso__bucket *b) {
    double before;
    iso__bucket_factors(r, b, &before, &b->factor);
    if (r->way == ISO_WAY_SHARDS) before = 1; // that was done before the node's sum
    if (!iso__bucket_converts(r, b)) return iso__bucket_scale(r, b, before);
    iso_comm_hook_bucket what = iso__bucket_for_hook(r, b);
    b->compressed = true;
    return r->hook.compress(&what, before, r->hook.user);
}

iso_status iso__bucket_send(iso_reducer *r, iso__bucket *b) {
    b->failed = true;
    ISO_TRY(prepare(r, b));
    b->failed = false;
    b->state = ISO_BUCKET_POSTED; // of an exchange that failed to begin, parts may be under way
    ISO_TRY(iso__channel_ready(iso__bucket_channel(r, b), b->item));
    r->stats.exchanges++;
    *(r->scope == ISO_SCOPE_WORLD ? &r->stats.bytes_world : &r->stats.bytes_node) +=
        (long long)b->wire_bytes;
    iso__channel_count(iso__bucket_channel(r, b), b->item, &r->traffic);
    return ISO_OK;
}

static iso_status post_bucket(iso_reducer *r, iso__bucket *b) {
    b->factor = factor_alone(r, b);
    b->compressed = false;
    b->state = ISO_BUCKET_REDUCED;
    r->issued++;
    r->busy++;
    if (!iso__bucket_travels(r, b)) return ISO_OK;
    if (r->way != ISO_WAY_HOST)
        ISO_TRY(iso__gpus_post(r, b));
    else
        ISO_TRY(r->device ? iso__stage_out(r, b) : iso__bucket_send(r, b));
    if (r->sync != ISO_SYNC_LAZY) ISO_TRY(iso__bucket_wait(r, b));
    return ISO_OK;
}

// One small reduction tells who has used what; waited for before the first bucket is completed.
static iso_status ask_used(iso_reducer *r) {
    for (int i = 0; i < r->param_count; i++) {
        bool used = false; // any piece
        for (int k = 0; k < r->place[i].pieces; k++) used |= iso__piece_slot(r, i, k)->used;
        for (int k = 0; k < r->place[i].pieces; k++) {
            iso__grad_slot *s = iso__piece_slot(r, i, k);
            r->used[s - r->slot] = used;
            s->skipped = !used;
        }
    }
    if (!r->comm || iso_comm_size(r->comm) == 1 || r->sync == ISO_SYNC_NONE) return ISO_OK;
    return iso__comm_iallreduce_max(r->comm, r->used, r->slot_count, "used parameters",
                                    &r->used_request);
}

static iso_status list_is_out(iso_reducer *r) {
    r->fresh = true;
    for (int i = 0; i < r->slot_count; i++) r->slot[i].keep = true;
    for (int a = 0; a < r->applier_count; a++) r->applier[a].fresh = true;
    r->lists++;
    return r->unused == ISO_UNUSED_NEGOTIATE ? ask_used(r) : ISO_OK;
}

// The channels keep the order that all ranks share, however buckets become ready here. Blocking, a
// rank waits for each, so it must not begin with one that others reach later. NCCL keeps no order
// but that of its calls.
static iso_status issue_ready(iso_reducer *r) {
    bool in_order = r->sync != ISO_SYNC_LAZY || r->way != ISO_WAY_HOST;
    if (r->issued == r->bucket_count) return ISO_OK; // what is ready belongs to the next list
    for (int i = in_order ? r->issued : 0; i < r->bucket_count; i++) {
        iso__bucket *b = &r->bucket[i];
        bool ready = b->state == ISO_BUCKET_OPEN && b->missing == 0;
        if (ready) {
            iso_status status = post_bucket(r, b);
            if (status == ISO_OK && r->issued == r->bucket_count) status = list_is_out(r);
            ISO_TRY(status);
        } else if (in_order) {
            break;
        }
    }
    return ISO_OK;
}

// ---- Gradients become ready -------------------------------------------------------------------------

bool iso__reducer_is_ready(const iso_reducer *r, int i) {
    for (int k = 0; k < r->place[i].pieces; k++)
        if (!iso__piece_slot(r, i, k)->ready) return false;
    return true;
}

// True if the bucket is complete with it.
static bool mark_ready(iso_reducer *r, int i) {
    iso__bucket *b = &r->bucket[r->slot[i].bucket];
    if (r->ready_count++ == 0) iso__times_begin(r);
    r->slot[i].ready = true;
    if (--b->missing > 0) return false;
    iso__times_ready(r, b);
    return true;
}

static iso_status report(iso_reducer *r, int i, int k, bool *complete) {
    iso__grad_slot *s = iso__piece_slot(r, i, k);
    ISO_CHECK(!s->ready && r->bucket[s->bucket].state == ISO_BUCKET_OPEN, ISO_ERR_STATE,
              "the gradient of \"%s\" was reported ready twice in one backward: report it once, "
              "when nothing in this backward adds to it any more; between two backwards call "
              "iso_reducer_step or iso_reducer_finish, or run a forward",
              s->name);
    s->used = true;
    if (mark_ready(r, (int)(s - r->slot))) *complete = true;
    return ISO_OK;
}

static iso_status reported(iso_reducer *r, bool complete) {
    iso_comm_poll(r->world);
    ISO_TRY(iso__stage_advance(r));
    return complete && r->sync != ISO_SYNC_EXPLICIT ? issue_ready(r) : ISO_OK;
}

iso_status iso_reducer_piece_ready(iso_reducer *r, int i, int k) {
    bool complete = false;
    ISO_TRY(iso__reducer_check_param(r, i, k));
    ISO_TRY(report(r, i, k, &complete));
    return reported(r, complete);
}

iso_status iso_reducer_grad_ready(iso_reducer *r, int i) {
    bool complete = false;
    ISO_TRY(iso__reducer_check_param(r, i, 0));
    int pieces = r->place[i].pieces;
    for (int k = 0; k < pieces; k++)
        if (pieces == 1 || !iso__piece_slot(r, i, k)->ready) ISO_TRY(report(r, i, k, &complete));
    return reported(r, complete);
}

static iso_status missing_error(const iso_reducer *r, int first, int count) {
    const iso__grad_slot *s = &r->slot[first];
    char piece[48] = "";
    if (s->cut) snprintf(piece, sizeof(piece), "piece %d of ", s->piece);
    return ISO_FAIL(
        ISO_ERR_STATE,
        "%s\"%s\"%s got no gradient on rank %d in this backward: every parameter must take "
        "part in every step; freeze it before wrapping, or ask for unused parameters to "
        "be negotiated (find_unused_parameters, ISO_UNUSED_NEGOTIATE)",
        piece, s->name, count > 1 ? " (and others)" : "", iso_comm_rank(r->world));
}

// Zeros for what this backward did not reach, or what earlier backwards left there, if it is still
// wanted. Every rank issues the whole list, so an error here leaves nobody waiting.
static iso_status close_with(iso_reducer *r, iso_unused unused) {
    int first = ISO_NOBODY, count = 0;
    for (int i = r->slot_count - 1; i >= 0; i--) {
        iso__grad_slot *s = &r->slot[i];
        if (s->ready || r->bucket[s->bucket].state != ISO_BUCKET_OPEN) continue;
        if (!r->fresh || !s->keep)
            ISO_TRY(iso__stage_zero(r, s->offset, s->count * iso_dtype_size(s->dtype)));
        mark_ready(r, i);
        first = i;
        count++;
    }
    ISO_TRY(issue_ready(r));
    return count > 0 && unused == ISO_UNUSED_ERROR ? missing_error(r, first, count) : ISO_OK;
}

iso_status iso__reducer_close(iso_reducer *r) { return close_with(r, r->unused); }

bool iso__reducer_has_open_list(const iso_reducer *r) {
    return r->issued < r->bucket_count && r->ready_count > 0 && r->sync != ISO_SYNC_EXPLICIT;
}

iso_status iso_reducer_shadow(iso_reducer *r) {
    ISO_TRY(iso_reducer_finish(r));
    ISO_TRY(iso__stage_zero(r, 0, r->arena_bytes));
    return close_with(r, ISO_UNUSED_ZERO);
}

iso_status iso_reducer_all_reduce(iso_reducer *r) {
    ISO_CHECK(r->sync == ISO_SYNC_EXPLICIT, ISO_ERR_STATE,
              "gradients leave by themselves in this sync mode: iso_reducer_all_reduce is for "
              "ISO_SYNC_EXPLICIT");
    ISO_TRY(close_with(r, r->unused == ISO_UNUSED_ERROR ? ISO_UNUSED_ZERO : r->unused));
    return iso_reducer_finish(r);
}

iso_status iso__reducer_adopt(iso_reducer *r, const bool *used) {
    ISO_TRY(iso_reducer_finish(r));
    for (int i = 0; i < r->slot_count; i++) r->slot[i].used = used[r->slot[i].param];
    for (int i = 0; i < r->bucket_count; i++) {
        iso__bucket *b = &r->bucket[i];
        b->state = ISO_BUCKET_REDUCED;
        b->compressed = false;
        b->factor = 1;
        r->issued++;
        r->busy++;
    }
    ISO_TRY(list_is_out(r));
    return iso_reducer_finish(r);
}

// ---- Gradients are needed ---------------------------------------------------------------------------

// Waiting between updates would end what a device takes together.
static iso_status arrive(iso_reducer *r, int i) {
    for (int k = 0; r->device && k < r->place[i].pieces; k++)
        ISO_TRY(iso__bucket_arrive(r, &r->bucket[iso__piece_slot(r, i, k)->bucket]));
    return ISO_OK;
}

// Whether the backward that is open uses the parameter again before its gradient is final, to
// compute activations once more. All lists before this one are back, so its value is current. Where
// the owner closes every backward, what has been reported is current, too.
static bool is_recomputed(const iso_reducer *r, int i, int k) {
    return iso__reducer_has_open_list(r) && (r->always_closed || !iso__piece_slot(r, i, k)->ready);
}

static bool whole_is_recomputed(const iso_reducer *r, int i) {
    for (int k = 0; k < r->place[i].pieces; k++)
        if (!is_recomputed(r, i, k)) return false;
    return true;
}

static iso_status go_on(iso_reducer *r) {
    iso_comm_poll(r->world);
    ISO_TRY(iso__gpus_check(r));
    return iso__stage_advance(r);
}

static iso_status begin_forward(iso_reducer *r) {
    iso_comm_poll(r->world);
    ISO_TRY(iso__gpus_check(r));
    if (iso__reducer_has_open_list(r)) ISO_TRY(iso__reducer_close(r));
    return iso__stage_flush(r); // what runs next runs on the device after these anyway
}

iso_status iso_reducer_param_needed(iso_reducer *r, int i) {
    ISO_TRY(iso__reducer_check_param(r, i, 0));
    if (whole_is_recomputed(r, i)) return go_on(r);
    ISO_TRY(begin_forward(r));
    int pieces = r->place[i].pieces;
    for (int k = 0; k < pieces; k++)
        iso__times_need(r, &r->bucket[iso__piece_slot(r, i, k)->bucket]);
    ISO_TRY(arrive(r, i));
    for (int k = 0; k < pieces; k++)
        ISO_TRY(iso__bucket_complete(r, &r->bucket[iso__piece_slot(r, i, k)->bucket]));
    return ISO_OK;
}

iso_status iso_reducer_piece_needed(iso_reducer *r, int i, int k) {
    ISO_TRY(iso__reducer_check_param(r, i, k));
    if (is_recomputed(r, i, k)) return go_on(r);
    ISO_TRY(begin_forward(r));
    const iso__grad_slot *s = iso__piece_slot(r, i, k);
    bool whole = s->owner != ISO_NOBODY && !r->applier[s->owner].apply_piece;
    if (whole) return iso_reducer_param_needed(r, i);
    iso__times_need(r, &r->bucket[s->bucket]);
    return iso__bucket_complete(r, &r->bucket[s->bucket]);
}

iso_status iso_reducer_finish(iso_reducer *r) {
    do {
        if (iso__reducer_has_open_list(r)) ISO_TRY(iso__reducer_close(r));
        for (int b = 0; r->device && b < r->bucket_count; b++)
            ISO_TRY(iso__bucket_arrive(r, &r->bucket[b]));
        // In the order in which they were issued: the first ones are the first to be complete.
        for (int b = 0; b < r->bucket_count; b++) ISO_TRY(iso__bucket_complete(r, &r->bucket[b]));
    } while (iso__reducer_has_open_list(r)); // reported while earlier exchanges were still out
    return iso__gpus_finish(r);
}
