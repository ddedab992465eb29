// Who updates parameters, and step().
#include "parallel/reducer_impl.h"

// ---- Appliers ---------------------------------------------------------------------------------------

static iso_status new_applier(iso_reducer *r, int *id) {
    for (*id = 0; *id < r->applier_count; ++*id)
        if (!r->applier[*id].apply) return ISO_OK;
    size_t old = (size_t)r->applier_count * sizeof(*r->applier);
    ISO_TRY(iso__realloc((void **)&r->applier, old, old + sizeof(*r->applier)));
    r->applier[r->applier_count++] = (iso__applier){0};
    return ISO_OK;
}

static iso_status check_params(const iso_reducer *r, const int *params, int count) {
    ISO_CHECK(!params || count > 0, ISO_ERR_ARG, "an optimizer needs at least one parameter");
    for (int k = 0; params && k < count; k++)
        ISO_CHECK(params[k] >= 0 && params[k] < r->param_count, ISO_ERR_ARG,
                  "the reducer has no parameter %d: they are 0 to %d", params[k],
                  r->param_count - 1);
    return ISO_OK;
}

// Whose updates wait for which forward can be told only while each parameter has one owner.
static void find_owners(iso_reducer *r) {
    bool direct = false;
    for (int i = 0; i < r->slot_count; i++) {
        iso__grad_slot *s = &r->slot[i];
        s->owner = ISO_NOBODY;
        for (int a = 0; a < r->applier_count; a++) {
            if (!r->applier[a].apply || !r->applier[a].mine[i]) continue;
            if (s->owner != ISO_NOBODY && !direct && !r->direct)
                iso__log(ISO_LOG_WARN,
                         "two optimizers update \"%s\": each step now waits for all exchanges and "
                         "updates at once, so that nothing hides behind the next forward",
                         s->name);
            direct = direct || s->owner != ISO_NOBODY;
            s->owner = a;
        }
    }
    r->direct = direct;
}

static void forget(iso__applier *a) {
    iso__free(a->hyper);
    iso__free(a->mine);
    *a = (iso__applier){0};
}

iso_status iso_reducer_add_apply(iso_reducer *r, const int *params, int count,
                                 iso_reducer_apply apply, size_t hyper_bytes, void *user, int *id) {
    iso_status status;
    iso__applier a = {.apply = apply, .user = user, .hyper_bytes = hyper_bytes};
    ISO_CHECK(apply, ISO_ERR_ARG, "an optimizer needs a function that updates");
    ISO_TRY(check_params(r, params, count));
    ISO_TRY(iso_reducer_finish(r));
    ISO_TRY_GOTO(iso__alloc(hyper_bytes, &a.hyper));
    ISO_TRY_GOTO(iso__alloc_zero((size_t)r->slot_count * sizeof(*a.mine), (void **)&a.mine));
    ISO_TRY_GOTO(new_applier(r, id));
    for (int i = 0; i < r->slot_count; i++) a.mine[i] = !params;
    for (int k = 0; params && k < count; k++)
        for (int piece = 0; piece < r->place[params[k]].pieces; piece++)
            a.mine[iso__piece_slot(r, params[k], piece) - r->slot] = true;
    r->applier[*id] = a;
    find_owners(r);
    return ISO_OK;
fail:
    forget(&a);
    return status;
}

// ISO_REDUCER_ONLY becomes the id of the one there is.
static iso_status find_id(const iso_reducer *r, int *id) {
    int count = 0, last = ISO_NOBODY;
    for (int a = 0; a < r->applier_count; a++)
        if (r->applier[a].apply) count++, last = a;
    ISO_CHECK(count > 0, ISO_ERR_STATE,
              "no function updates these parameters: set one with iso_reducer_set_apply first");
    ISO_CHECK(*id != ISO_REDUCER_ONLY || count == 1, ISO_ERR_STATE,
              "%d optimizers update these parameters: say which one is meant, by the id that "
              "iso_reducer_add_apply gave (iso_reducer_step_of)",
              count);
    if (*id == ISO_REDUCER_ONLY) *id = last;
    ISO_CHECK(*id >= 0 && *id < r->applier_count && r->applier[*id].apply, ISO_ERR_STATE,
              "the reducer has no apply callback %d: none was set, or it was removed", *id);
    return ISO_OK;
}

iso_status iso_reducer_set_apply_piece(iso_reducer *r, int id, iso_reducer_apply_piece apply) {
    ISO_TRY(find_id(r, &id));
    ISO_TRY(iso_reducer_finish(r));
    r->applier[id].apply_piece = apply;
    return ISO_OK;
}

iso_status iso_reducer_remove_apply(iso_reducer *r, int id) {
    ISO_TRY(find_id(r, &id));
    iso_status status = iso_reducer_finish(r);
    forget(&r->applier[id]); // on failure too: its owner may be going away
    if (r->only == id) r->only = ISO_NOBODY;
    for (int i = 0; i < r->slot_count; i++)
        if (r->slot[i].owner == id) r->slot[i].update = false;
    find_owners(r);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_reducer_set_apply(iso_reducer *r, iso_reducer_apply apply, size_t hyper_bytes,
                                 void *user) {
    if (!apply) return r->only == ISO_NOBODY ? ISO_OK : iso_reducer_remove_apply(r, r->only);
    for (int a = 0; a < r->applier_count; a++)
        ISO_CHECK(!r->applier[a].apply, ISO_ERR_STATE,
                  "these gradients have an optimizer already: destroy it before tying another, or "
                  "list the parameters of each with iso_reducer_add_apply");
    return iso_reducer_add_apply(r, NULL, 0, apply, hyper_bytes, user, &r->only);
}

void iso__reducer_zero_grad_of(iso_reducer *r, int id) {
    for (int i = 0; i < r->slot_count; i++)
        if (r->applier[id].mine[i]) r->slot[i].keep = false;
}

void iso__appliers_free(iso_reducer *r) {
    for (int a = 0; a < r->applier_count; a++) forget(&r->applier[a]);
    iso__free(r->applier);
}

// ---- Updates ----------------------------------------------------------------------------------------

// Of a parameter that is cut, and updated as a whole: true for its last piece.
static bool is_last_to_come(iso_reducer *r, const iso__grad_slot *s) {
    iso__param_place *p = &r->place[s->param];
    if (++p->arrived < p->pieces) return false;
    p->arrived = 0;
    return true;
}

static iso_status call_apply(iso_reducer *r, const iso__grad_slot *s, const iso__applier *a,
                             double scale) {
    void *gradient = r->gradients + s->offset;
    if (r->place[s->param].pieces == 1)
        return a->apply(s->param, gradient, scale, a->hyper, a->user);
    if (a->apply_piece)
        return a->apply_piece(s->param, s->first, s->count, gradient, scale, a->hyper, a->user);
    if (!is_last_to_come(r, s)) return ISO_OK;
    return a->apply(s->param, iso_reducer_grad(r, s->param), scale, a->hyper, a->user);
}

// A callback need not have written a record of its error.
static iso_status update(iso_reducer *r, const iso__grad_slot *s, const iso__applier *a,
                         double scale) {
    if (s->skipped) return ISO_OK;
    iso_status status = call_apply(r, s, a, scale);
    if (status < 0 && iso_last_error()->code != status)
        return ISO_FAIL(status, "the callback that updates \"%s\" failed (%s)", s->name,
                        iso_status_string(status));
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__apply_bucket(iso_reducer *r, const iso__bucket *b, double scale) {
    for (int k = b->first; k <= b->last; k++) {
        iso__grad_slot *s = &r->slot[r->order[k]];
        if (!s->update) continue;
        ISO_TRY(update(r, s, &r->applier[s->owner], scale));
        s->update = false; // not again, should one of the others fail
    }
    return ISO_OK;
}

// Everything is back: the arena holds averages.
static iso_status update_now(iso_reducer *r, const iso__applier *a) {
    for (int i = 0; i < r->slot_count; i++)
        if (a->mine[i]) ISO_TRY(update(r, &r->slot[i], a, 1.0));
    return ISO_OK;
}

// ---- step() -----------------------------------------------------------------------------------------

int iso__reducer_appliers(const iso_reducer *r) {
    int count = 0;
    for (int a = 0; a < r->applier_count; a++) count += r->applier[a].apply != NULL;
    return count;
}

// There is a whole list of gradients for this step.
static iso_status have_gradients(iso_reducer *r, const iso__applier *a) {
    ISO_CHECK(r->unsynced == 0, ISO_ERR_STATE,
              "step() after %d backwards inside no_sync, whose gradients this rank has alone: make "
              "the last backward before a step outside of it",
              r->unsynced);
    if (a->fresh) return ISO_OK;
    ISO_CHECK(
        r->sync != ISO_SYNC_EXPLICIT, ISO_ERR_STATE,
        "step() before the gradients were averaged: call all_reduce_gradients after backward");
    // Plain arrays may have no gradient at all on this rank, unless that is an error anyway.
    bool may_close = r->unused != ISO_UNUSED_ERROR && !r->always_closed;
    ISO_CHECK(r->lists == 0 || iso__reducer_has_open_list(r) ||
                  (may_close && iso__reducer_appliers(r) == 1),
              ISO_ERR_STATE,
              "an optimizer made a second step on the same gradients: run a backward in between");
    return iso__reducer_close(r);
}

static void mark(iso_reducer *r, int id) {
    for (int i = 0; i < r->slot_count; i++)
        if (r->slot[i].owner == id) r->slot[i].update = true;
    r->applier[id].stepped = true;
}

// A device keeps the order of what it is given, so that updates which wait for no exchange may as
// well come at once: it then takes them together.
static bool only_waits_for_forward(const iso_reducer *r) {
    for (int i = 0; i < r->bucket_count; i++)
        if (iso__bucket_travels(r, &r->bucket[i])) return false;
    return r->device != NULL;
}

static iso_status make_step(iso_reducer *r, int id, const void *hyper) {
    iso__applier *a = &r->applier[id];
    ISO_CHECK(!r->in_backward, ISO_ERR_STATE,
              "step() inside a backward: call iso_data_parallel_end_backward first");
    // An update that no forward has asked for still needs the hyperparameters of its own step; and
    // a list of which a part is back must come back whole.
    if (a->stepped || (a->fresh && r->busy < r->bucket_count)) ISO_TRY(iso_reducer_finish(r));
    ISO_TRY(have_gradients(r, a));
    if (r->direct) ISO_TRY(iso_reducer_finish(r));
    memcpy(a->hyper, hyper, a->hyper_bytes);
    r->stats.steps++;
    r->fresh = a->fresh = false;
    if (r->busy == 0) return update_now(r, a);
    mark(r, id);
    if (r->sync != ISO_SYNC_LAZY || only_waits_for_forward(r)) return iso_reducer_finish(r);
    // Of a device: from here on nobody needs this rank's program for its gradients to travel. The
    // next forward would wait for the same.
    return iso__stage_flush(r);
}

iso_status iso_reducer_step_of(iso_reducer *r, int id, const void *hyper) {
    ISO_TRY(find_id(r, &id));
    iso_status status = make_step(r, id, hyper);
    iso_status planned = iso__reducer_plan(r, status); // the others do not know of an error here
    ISO_TRY(status);
    return planned;
}

iso_status iso_reducer_step(iso_reducer *r, const void *hyper) {
    return iso_reducer_step_of(r, ISO_REDUCER_ONLY, hyper);
}
