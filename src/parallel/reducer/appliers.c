// SPDX-License-Identifier: MIT
// Which applier updates which parameters: callbacks, their hyperparameters, and outstanding
// updates.
#include "parallel/reducer/appliers.h"

#include "parallel/reducer/slot_types.h"

#include <string.h>

enum { NOBODY = -1 };

typedef struct applier {
    iso_reducer_apply apply; // NULL: free
    iso_reducer_apply_piece apply_piece;
    iso__reducer_halves halves; // used with ZeRO for what several ranks share; empty: none
    void *user;
    void *hyper;
    size_t hyper_bytes;
    bool *mine;   // [slots]
    bool fresh;   // it has not used the list that was issued
    bool stepped; // hyper is in use by pending updates
} applier;

typedef struct slot_state {
    int owner;        // the applier; NOBODY: the gradient is only averaged
    bool update;      // an update is outstanding until its bucket is complete
    bool made;        // it was made, but its bucket is not complete
    bool measured;    // the first half of it was made
    double square[2]; // the numbers that the first half gave
} slot_state;

struct iso__appliers {
    const iso__layout *layout;
    const iso__store *store;
    bool by_elements;      // each rank updates some elements of a parameter (ZeRO)
    const iso__zero *zero; // determines which elements; NULL: all
    applier *applier;
    int count;
    slot_state *slot; // [slots]
    int *arrived;     // [parameters]: pieces that are back, if they are updated together
    bool direct;      // two appliers share a parameter
    bool lost;        // an error came before the numbers of the first halves were there
};

// ---- Who --------------------------------------------------------------------------------------------

iso_status iso__appliers_create(const iso__layout *layout, const iso__store *store,
                                iso__appliers **out) {
    iso_status status;
    iso__appliers *a;
    size_t slots = (size_t)layout->slot_count, params = (size_t)layout->param_count;
    ISO_TRY(iso__alloc_zero(sizeof(*a), (void **)&a));
    a->layout = layout;
    a->store = store;
    ISO_TRY_GOTO(iso__alloc_zero(slots * sizeof(*a->slot), (void **)&a->slot));
    ISO_TRY_GOTO(iso__alloc_zero(params * sizeof(*a->arrived), (void **)&a->arrived));
    for (size_t s = 0; s < slots; s++) a->slot[s].owner = NOBODY;
    *out = a;
    return ISO_OK;
fail:
    iso__appliers_destroy(&a);
    return status;
}

static void clear_applier(applier *p) {
    iso__free(p->hyper);
    iso__free(p->mine);
    *p = (applier){0};
}

void iso__appliers_destroy(iso__appliers **pointer) {
    iso__appliers *a = *pointer;
    *pointer = NULL;
    if (!a) return;
    for (int id = 0; id < a->count; id++) clear_applier(&a->applier[id]);
    iso__free(a->applier);
    iso__free(a->slot);
    iso__free(a->arrived);
    iso__free(a);
}

static iso_status new_applier(iso__appliers *a, int *id) {
    for (*id = 0; *id < a->count; ++*id)
        if (!a->applier[*id].apply) return ISO_OK;
    size_t old = (size_t)a->count * sizeof(*a->applier);
    ISO_TRY(iso__realloc((void **)&a->applier, old, old + sizeof(*a->applier)));
    a->applier[a->count++] = (applier){0};
    return ISO_OK;
}

// Finds the owner of each slot. If a parameter has two, updates cannot wait for the forward that
// needs them, so the appliers become direct.
static void find_owners(iso__appliers *a) {
    bool direct = false;
    for (int s = 0; s < a->layout->slot_count; s++) {
        slot_state *slot = &a->slot[s];
        slot->owner = NOBODY;
        for (int id = 0; id < a->count; id++) {
            if (!a->applier[id].apply || !a->applier[id].mine[s]) continue;
            if (slot->owner != NOBODY && !direct && !a->direct)
                iso__log(ISO_LOG_WARN,
                         "two optimizers update \"%s\": each step now waits for all exchanges and "
                         "updates at once, so that nothing hides behind the next forward",
                         a->layout->slot[s].name);
            direct = direct || slot->owner != NOBODY;
            slot->owner = id;
        }
    }
    a->direct = direct;
}

static iso_status check_params(const iso__layout *layout, const int *params, int count) {
    ISO_CHECK(!params || count > 0, ISO_ERR_ARG, "an optimizer needs at least one parameter");
    for (int k = 0; params && k < count; k++) ISO_TRY(iso__layout_check(layout, params[k], 0));
    return ISO_OK;
}

void iso__appliers_set_zero(iso__appliers *a, const iso__zero *zero) {
    a->by_elements = true;
    a->zero = zero;
}

iso_status iso__appliers_add(iso__appliers *a, const int *params, int count,
                             iso_reducer_apply apply, size_t hyper_bytes, void *user, int *id) {
    iso_status status;
    const iso__layout *l = a->layout;
    applier p = {.apply = apply, .user = user, .hyper_bytes = hyper_bytes};
    // With several appliers, ranks could publish values in different orders.
    ISO_CHECK(!a->by_elements || iso__appliers_count(a) == 0, ISO_ERR_UNSUPPORTED,
              "with ZeRO one optimizer updates the parameters: use parameter groups "
              "(iso_optimizer_add_group) in place of a second one");
    ISO_TRY(check_params(l, params, count));
    ISO_TRY_GOTO(iso__alloc(hyper_bytes, &p.hyper));
    ISO_TRY_GOTO(iso__alloc_zero((size_t)l->slot_count * sizeof(*p.mine), (void **)&p.mine));
    ISO_TRY_GOTO(new_applier(a, id));
    for (int s = 0; s < l->slot_count; s++) p.mine[s] = !params;
    for (int k = 0; params && k < count; k++)
        for (int piece = 0; piece < l->place[params[k]].pieces; piece++)
            p.mine[iso__layout_at(l, params[k], piece)] = true;
    a->applier[*id] = p;
    find_owners(a);
    return ISO_OK;
fail:
    clear_applier(&p);
    return status;
}

static iso_status copy_applier(const iso__layout *l, applier *to, const iso__layout *old,
                               const applier *from) {
    applier p = *from;
    p.hyper = NULL;
    p.mine = NULL;
    p.fresh = p.stepped = false;
    *to = p;
    ISO_TRY(iso__alloc(p.hyper_bytes, &to->hyper));
    ISO_TRY(iso__alloc_zero((size_t)l->slot_count * sizeof(*p.mine), (void **)&to->mine));
    for (int s = 0; s < l->slot_count; s++)
        to->mine[s] = from->mine[iso__layout_at(old, l->slot[s].param, 0)];
    return ISO_OK;
}

iso_status iso__appliers_copy(iso__appliers *a, const iso__appliers *from, const void *was,
                              void *is) {
    if (from->count == 0) return ISO_OK;
    ISO_TRY(iso__alloc_zero((size_t)from->count * sizeof(*a->applier), (void **)&a->applier));
    a->count = from->count;
    for (int id = 0; id < a->count; id++) {
        if (!from->applier[id].apply) continue;
        ISO_TRY(copy_applier(a->layout, &a->applier[id], from->layout, &from->applier[id]));
        if (a->applier[id].user == was) a->applier[id].user = is;
    }
    a->direct = from->direct; // has been warned of
    find_owners(a);
    return ISO_OK;
}

void iso__appliers_remove(iso__appliers *a, int id) {
    clear_applier(&a->applier[id]);
    for (int s = 0; s < a->layout->slot_count; s++)
        if (a->slot[s].owner == id) a->slot[s].update = false;
    find_owners(a);
}

void iso__appliers_set_piece(iso__appliers *a, int id, iso_reducer_apply_piece apply) {
    a->applier[id].apply_piece = apply;
}

void iso__appliers_set_halves(iso__appliers *a, int id, const iso__reducer_halves *halves) {
    a->applier[id].halves = *halves;
}

int iso__appliers_count(const iso__appliers *a) {
    int count = 0;
    for (int id = 0; id < a->count; id++) count += a->applier[id].apply != NULL;
    return count;
}

iso_status iso__appliers_find(const iso__appliers *a, int *id) {
    int count = iso__appliers_count(a);
    ISO_CHECK(count > 0, ISO_ERR_STATE,
              "nothing updates these parameters: call iso_reducer_set_update or "
              "iso_reducer_set_apply for a function of yours, or iso_reducer_set_optimizer for one "
              "of the library's, before the first step");
    ISO_CHECK(*id != ISO_REDUCER_ONLY || count == 1, ISO_ERR_STATE,
              "%d optimizers update these parameters: say which one is meant, by the id that "
              "iso_reducer_add_apply gave (iso_reducer_step_of)",
              count);
    for (int k = 0; *id == ISO_REDUCER_ONLY && k < a->count; k++)
        if (a->applier[k].apply) *id = k;
    ISO_CHECK(*id >= 0 && *id < a->count && a->applier[*id].apply, ISO_ERR_STATE,
              "the reducer has no apply callback %d: none was set, or it was removed", *id);
    return ISO_OK;
}

bool iso__appliers_updates(const iso__appliers *a, int id, int slot) {
    return a->applier[id].mine[slot];
}

bool iso__appliers_are_direct(const iso__appliers *a) { return a->direct; }

bool iso__appliers_take_pieces(const iso__appliers *a, int slot) {
    int owner = a->slot[slot].owner;
    if (owner == NOBODY || a->applier[owner].apply_piece) return true;
    return a->zero && a->applier[owner].halves.measure;
}

// ---- Lists and steps --------------------------------------------------------------------------------

void iso__appliers_list_is_out(iso__appliers *a) {
    for (int id = 0; id < a->count; id++) a->applier[id].fresh = true;
}

bool iso__appliers_have_list(const iso__appliers *a, int id) { return a->applier[id].fresh; }

bool iso__appliers_expect_step(const iso__appliers *a, int slot) {
    int id = a->slot[slot].owner;
    return id >= 0 && a->applier[id].apply && a->applier[id].fresh;
}

bool iso__appliers_have_stepped(const iso__appliers *a, int id) { return a->applier[id].stepped; }

bool iso__appliers_can_share(const iso__appliers *a, int id) {
    return !a->by_elements || a->applier[id].apply_piece || a->applier[id].halves.measure;
}

void iso__appliers_freeze(iso__appliers *a, int id, const void *hyper) {
    applier *p = &a->applier[id];
    memcpy(p->hyper, hyper, p->hyper_bytes);
    p->fresh = false;
}

void iso__appliers_mark(iso__appliers *a, int id) {
    for (int s = 0; s < a->layout->slot_count; s++)
        if (a->slot[s].owner == id) a->slot[s].update = true;
    a->applier[id].stepped = true;
}

void iso__appliers_have_made(iso__appliers *a, int id) { a->applier[id].stepped = true; }

void iso__appliers_restart(iso__appliers *a) {
    for (int id = 0; id < a->count; id++) a->applier[id].stepped = false;
    for (int i = 0; i < a->layout->param_count; i++) a->arrived[i] = 0;
}

// ---- Updates ----------------------------------------------------------------------------------------

// For a parameter that is updated as a whole: counts a piece that is back. Returns true if it is
// the last one.
static bool is_last_to_come(iso__appliers *a, int param) {
    if (++a->arrived[param] < a->layout->place[param].pieces) return false;
    a->arrived[param] = 0;
    return true;
}

// The gradient of a slot. home: the one in the caller's array, if there is one. A 16-bit gradient
// there is first converted into the store.
static iso_status gradient_of(const iso__appliers *a, int slot, bool home, char **out) {
    const iso__grad_slot *s = &a->layout->slot[slot];
    bool converts = home && s->home && iso__slot_converts(s);
    *out = home && s->home && !converts ? s->home : a->store->gradients + s->offset;
    if (!converts) return ISO_OK;
    return iso__slot_widen(s, a->store, iso__zero_own(a->zero, a->layout, slot), s->home);
}

// Updates this rank's elements of a slot.
static iso_status apply_own(iso__appliers *a, int slot, const applier *p, char *gradient,
                            double scale) {
    const iso__grad_slot *s = &a->layout->slot[slot];
    iso__own own = iso__zero_own(a->zero, a->layout, slot);
    gradient += own.first * iso_dtype_size(s->dtype);
    if (own.count == 0) return ISO_OK;
    return p->apply_piece(s->param, s->first + own.first, own.count, gradient, scale, p->hyper,
                          p->user);
}

static iso_status call_apply(iso__appliers *a, int slot, const applier *p, bool home,
                             double scale) {
    const iso__grad_slot *s = &a->layout->slot[slot];
    char *gradient;
    ISO_TRY(gradient_of(a, slot, home, &gradient));
    if (a->by_elements && p->apply_piece) return apply_own(a, slot, p, gradient, scale);
    if (!s->cut) return p->apply(s->param, gradient, scale, p->hyper, p->user);
    if (p->apply_piece)
        return p->apply_piece(s->param, s->first, s->count, gradient, scale, p->hyper, p->user);
    if (!is_last_to_come(a, s->param)) return ISO_OK;
    iso_status status = gradient_of(a, iso__layout_at(a->layout, s->param, 0), home, &gradient);
    if (status >= 0) status = p->apply(s->param, gradient, scale, p->hyper, p->user);
    if (status < 0) a->arrived[s->param] = a->layout->place[s->param].pieces - 1; // for a retry
    return status;
}

// Writes an error record if the callback returned an error without one.
static iso_status update_slot(iso__appliers *a, int slot, const applier *p, bool home,
                              double scale) {
    iso_status status = call_apply(a, slot, p, home, scale);
    if (status < 0 && iso_last_error()->code != status)
        return ISO_FAIL(status, "the callback that updates \"%s\" failed (%s)",
                        a->layout->slot[slot].name, iso_status_string(status));
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__appliers_update_all(iso__appliers *a, int id, const bool *skipped) {
    const applier *p = &a->applier[id];
    bool halves = iso__appliers_have_halves(a);
    // An update that failed here before is not repeated.
    for (int s = 0; s < a->layout->slot_count; s++)
        if (p->mine[s]) a->arrived[a->layout->slot[s].param] = 0;
    for (int s = 0; s < a->layout->slot_count; s++) {
        if (!p->mine[s]) continue;
        if (halves && !a->layout->slot[s].local)
            a->slot[s].update = true;
        else if (!skipped[s])
            ISO_TRY(update_slot(a, s, p, true, 1.0));
    }
    return ISO_OK;
}

iso_status iso__appliers_apply(iso__appliers *a, int bucket, double scale, const bool *skipped) {
    const iso__range *range = &a->layout->range[bucket];
    for (int k = range->first; k <= range->last; k++) {
        int s = a->layout->order[k];
        slot_state *slot = &a->slot[s];
        if (!slot->update) continue;
        if (!skipped[s]) ISO_TRY(update_slot(a, s, &a->applier[slot->owner], false, scale));
        slot->update = false; // do not repeat it if a later one fails
        slot->made = true;
    }
    return ISO_OK;
}

// ---- Updates in halves ------------------------------------------------------------------------------

bool iso__appliers_have_halves(const iso__appliers *a) {
    for (int id = 0; a->zero && id < a->count; id++)
        if (a->applier[id].halves.measure) return true;
    return false;
}

static iso_status measure_slot(iso__appliers *a, int slot, bool home, double scale) {
    const iso__grad_slot *s = &a->layout->slot[slot];
    slot_state *state = &a->slot[slot];
    const applier *p = &a->applier[state->owner];
    iso__own own = iso__zero_own(a->zero, a->layout, slot);
    char *gradient;
    state->square[0] = state->square[1] = 0;
    if (own.count == 0) return ISO_OK;
    ISO_TRY(gradient_of(a, slot, home, &gradient));
    gradient += own.first * iso_dtype_size(s->dtype);
    return p->halves.measure(s->param, s->first + own.first, own.count, gradient, scale, p->hyper,
                             p->user, state->square);
}

static iso_status measure_slots(iso__appliers *a, const iso__range *range, double scale, bool home,
                                const bool *skipped) {
    for (int k = range->first; k <= range->last; k++) {
        int s = a->layout->order[k];
        slot_state *slot = &a->slot[s];
        if (!slot->update || slot->measured || skipped[s]) continue;
        ISO_TRY(measure_slot(a, s, home, scale));
        slot->measured = true; // sending the norms may fail, and then this is called again
    }
    return ISO_OK;
}

static iso_status collect_measured(iso__appliers *a, iso_status status) {
    for (int id = 0; id < a->count; id++) {
        const applier *p = &a->applier[id];
        if (!p->halves.collect) continue;
        iso_status collected = p->halves.collect(p->user);
        if (status == ISO_OK) status = collected;
    }
    return status;
}

iso_status iso__appliers_measure(iso__appliers *a, int bucket, double scale, bool home,
                                 const bool *skipped, double *square) {
    const iso__range *range = &a->layout->range[bucket];
    ISO_CHECK(!a->lost, ISO_ERR_STATE,
              "an update failed before the norms of its parameters were known: continue from a "
              "saved state");
    a->lost = true;
    ISO_TRY(collect_measured(a, measure_slots(a, range, scale, home, skipped)));
    a->lost = false;
    for (int k = range->first; k <= range->last; k++, square += 2) {
        const slot_state *slot = &a->slot[a->layout->order[k]];
        bool counts = slot->update && !skipped[a->layout->order[k]];
        square[0] = counts ? slot->square[0] : 0;
        square[1] = counts ? slot->square[1] : 0;
    }
    return ISO_OK;
}

static iso_status finish_slot(iso__appliers *a, int slot, const iso__norms *norms) {
    const iso__grad_slot *s = &a->layout->slot[slot];
    const applier *p = &a->applier[a->slot[slot].owner];
    iso__own own = iso__zero_own(a->zero, a->layout, slot);
    double total[2];
    if (own.count == 0) return ISO_OK;
    iso__norms_total(norms, slot, total);
    return p->halves.finish(s->param, s->first + own.first, own.count, total, p->hyper, p->user);
}

iso_status iso__appliers_finish(iso__appliers *a, int bucket, const bool *skipped,
                                const iso__norms *norms) {
    const iso__range *range = &a->layout->range[bucket];
    for (int k = range->first; k <= range->last; k++) {
        int s = a->layout->order[k];
        slot_state *slot = &a->slot[s];
        if (!slot->update) continue;
        if (!skipped[s]) ISO_TRY(finish_slot(a, s, norms));
        slot->update = slot->measured = false; // do not repeat it if a later one fails
        slot->made = true;
    }
    return ISO_OK;
}

// ---- Buckets ----------------------------------------------------------------------------------------

bool iso__appliers_await(const iso__appliers *a, int bucket) {
    return a->slot[a->layout->order[a->layout->range[bucket].first]].update;
}

bool iso__appliers_use(const iso__appliers *a, int slot) {
    return a->slot[slot].update || a->slot[slot].made;
}

bool iso__appliers_fold(const iso__appliers *a, int bucket) {
    const iso__range *range = &a->layout->range[bucket];
    for (int k = range->first; k <= range->last; k++) {
        int s = a->layout->order[k];
        if (!a->slot[s].update) return false;
        if (a->layout->slot[s].cut && !iso__appliers_take_pieces(a, s)) return false;
    }
    return true;
}

void iso__appliers_bucket_opens(iso__appliers *a, int bucket) {
    const iso__range *range = &a->layout->range[bucket];
    for (int k = range->first; k <= range->last; k++) {
        slot_state *slot = &a->slot[a->layout->order[k]];
        slot->update = slot->made = slot->measured = false;
    }
}
