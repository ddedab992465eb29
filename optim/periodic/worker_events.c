// SPDX-License-Identifier: MIT
// What workers of a parameter server did: noted, told on rank 0, and repeated.
#include "optim/periodic/worker_events.h"

// ---- Repeating --------------------------------------------------------------------------------------

static bool is_of(const iso_daso_change *c, int rank) {
    return c->cause == ISO_CAUSE_RANK && c->rank == rank;
}

// servers: so many ranks only serve.
static iso_status check_actions(const iso_daso_change *c, int ranks, int servers) {
    int kind = c->actions % ISO__EVENT_RANKS & ~ISO__EVENT_MEETING,
        with = c->actions / ISO__EVENT_RANKS;
    bool known = kind == ISO__EVENT_SERVED || kind == ISO__EVENT_MERGED;
    int server = kind == ISO__EVENT_SERVED ? c->rank : with, first = ranks - servers;
    bool apart = servers == 0 || (server >= first && c->rank + with - server < first);
    ISO_CHECK(c->actions > 0 && known && with < ranks && with != c->rank && apart, ISO_ERR_ARG,
              "a change to be repeated has the actions %d of rank %d in step %lld, which no worker "
              "of a parameter server of %d ranks can have done: repeat a run of this mode",
              c->actions, c->rank, (long long)c->step, ranks);
    return ISO_OK;
}

static iso_status read_changes(iso__events *e, const iso_daso_config *config,
                               const iso__periodic *p) {
    int rank = iso_comm_rank(p->comm), ranks = iso_comm_size(p->comm);
    size_t room = 1; // also if this rank has none
    for (int64_t i = 0; i < config->replay_count; i++) room += is_of(&config->replay[i], rank);
    ISO_TRY(iso__alloc_zero(room * sizeof(*e->again), (void **)&e->again));
    for (int64_t i = 0; i < config->replay_count; i++) {
        const iso_daso_change *c = &config->replay[i];
        if (!is_of(c, rank)) continue;
        ISO_TRY(check_actions(c, ranks, config->servers));
        e->again[e->again_count++] = (iso__event){c->step, c->actions};
    }
    return ISO_OK;
}

bool iso__events_next(iso__events *e, int64_t step, bool meets, int *rank, int *kind) {
    while (e->again_next < e->again_count && e->again[e->again_next].step < step) e->again_next++;
    if (e->again_next == e->again_count) return false;
    const iso__event *next = &e->again[e->again_next];
    bool meeting = next->actions & ISO__EVENT_MEETING;
    if (next->step != step || meeting != meets) return false;
    *rank = (int)(next->actions / ISO__EVENT_RANKS);
    *kind = (int)(next->actions % ISO__EVENT_RANKS);
    e->again_next++;
    return true;
}

void iso__events_continue(iso__events *e, int64_t step) {
    e->again_next = 0;
    while (e->again_next < e->again_count && e->again[e->again_next].step <= step) e->again_next++;
}

// ---- Telling ----------------------------------------------------------------------------------------

void iso__events_add(iso__events *e, int64_t step, int rank, int kind) {
    if (!e->noted || e->status < 0) return;
    if (e->count == e->room) {
        size_t room = e->room ? 2 * e->room : 256;
        e->status =
            iso__realloc((void **)&e->done, e->room * sizeof(*e->done), room * sizeof(*e->done));
        if (e->status < 0) return;
        e->room = room;
    }
    e->done[e->count++] = (iso__event){step, kind + ISO__EVENT_RANKS * (int64_t)rank};
}

static void tell_rank(const iso__events *e, int rank, const iso__event *done, size_t count) {
    for (size_t i = 0; i < count; i++) {
        iso_daso_change change = {.step = done[i].step,
                                  .cause = ISO_CAUSE_RANK,
                                  .rank = rank,
                                  .actions = (int)done[i].actions};
        e->changed(&change, e->changed_user);
    }
}

iso_status iso__events_tell(iso__events *e, const iso__periodic *p) {
    size_t *sizes, before = 0;
    char *all;
    if (!e->noted) return ISO_OK;
    ISO_TRY(iso_comm_agree(p->comm, e->status));
    ISO_TRY(iso_comm_gather(p->comm, e->done, e->count * sizeof(*e->done), 0, &all, &sizes));
    for (int r = 0; all && e->changed && r < iso_comm_size(p->comm); r++) {
        tell_rank(e, r, (const iso__event *)(void *)(all + before), sizes[r] / sizeof(*e->done));
        before += sizes[r];
    }
    iso_comm_free(all);
    iso_comm_free(sizes);
    e->count = 0;
    return ISO_OK;
}

// ---- Life -------------------------------------------------------------------------------------------

iso_status iso__events_open(iso__events *e, const iso_daso_config *config, const iso__periodic *p) {
    *e = (iso__events){.noted = config->changed != NULL,
                       .changed = config->changed,
                       .changed_user = config->changed_user};
    return config->replay ? read_changes(e, config, p) : ISO_OK;
}

iso_status iso__events_agree(iso__events *e, const iso__periodic *p) {
    int64_t noted = e->noted;
    ISO_TRY(iso_comm_allreduce_i64(p->comm, &noted, 1, ISO_MAX));
    e->noted = noted;
    return ISO_OK;
}

void iso__events_close(iso__events *e) {
    iso__free(e->done);
    iso__free(e->again);
    *e = (iso__events){0};
}
