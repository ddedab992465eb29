// SPDX-License-Identifier: MIT
// Which parameters a backward used, and which ones no rank used.
#include "parallel/reducer/used_params.h"

#include "comm/comm_calls.h"

#include <string.h>

enum { SETS = 3 }; // a communicator for each scope

// What the first list over a communicator has shown.
typedef struct known_set {
    const iso_comm *comm; // only compared; NULL: this rank alone
    bool known;
    bool *here;    // [slots]: this rank used the parameter
    bool *skipped; // [slots]: no rank did
} known_set;

struct iso__usage {
    const iso__layout *layout;
    bool *here;    // [slots]: used by this rank's program
    bool *skipped; // [slots]: true if no rank used it, in the list that came back last
    double *any;   // [slots]: 1 where any rank has used it; zeros behind them
    known_set set[SETS];
    known_set *asking; // gets the answer to the request
    iso_request *request;
    iso_comm *asked; // the communicator of the request; retained, because MPI may still use it
};

iso_status iso__usage_create(const iso_comm *world, const iso__layout *layout, iso__usage **out) {
    iso_status status;
    iso__usage *u;
    size_t slots = (size_t)layout->slot_count, room = iso__comm_reduction_room(world, slots);
    ISO_TRY(iso__alloc_zero(sizeof(*u), (void **)&u));
    u->layout = layout;
    ISO_TRY_GOTO(iso__alloc_zero(slots * sizeof(*u->here), (void **)&u->here));
    ISO_TRY_GOTO(iso__alloc_zero(slots * sizeof(*u->skipped), (void **)&u->skipped));
    ISO_TRY_GOTO(iso__alloc_zero(room * sizeof(*u->any), (void **)&u->any));
    for (int i = 0; i < SETS; i++) {
        ISO_TRY_GOTO(iso__alloc_zero(slots * sizeof(bool), (void **)&u->set[i].here));
        ISO_TRY_GOTO(iso__alloc_zero(slots * sizeof(bool), (void **)&u->set[i].skipped));
    }
    *out = u;
    return ISO_OK;
fail:
    iso__usage_destroy(&u);
    return status;
}

bool iso__usage_destroy(iso__usage **pointer) {
    iso__usage *u = *pointer;
    *pointer = NULL;
    if (!u) return true;
    if (u->request) return false;
    iso_comm_destroy(&u->asked);
    iso__free(u->here);
    iso__free(u->skipped);
    iso__free(u->any);
    for (int i = 0; i < SETS; i++) {
        iso__free(u->set[i].here);
        iso__free(u->set[i].skipped);
    }
    iso__free(u);
    return true;
}

void iso__usage_mark(iso__usage *u, int slot, bool used) { u->here[slot] = used; }

// A parameter is used if any of its pieces is.
static bool is_used(const iso__usage *u, int param) {
    const iso__layout *l = u->layout;
    bool used = false;
    for (int k = 0; k < l->place[param].pieces; k++) used |= u->here[iso__layout_at(l, param, k)];
    return used;
}

static void note_used(iso__usage *u, int param) {
    const iso__layout *l = u->layout;
    bool used = is_used(u, param);
    for (int k = 0; k < l->place[param].pieces; k++) {
        int s = iso__layout_at(l, param, k);
        u->any[s] = used;
        u->skipped[s] = !used;
    }
}

iso_status iso__usage_ask(iso__usage *u, iso_comm *comm) {
    for (int i = 0; i < u->layout->param_count; i++) note_used(u, i);
    if (!comm || iso_comm_size(comm) == 1) return ISO_OK;
    u->asked = iso_comm_retain(comm);
    size_t room = iso__comm_reduction_room(comm, (size_t)u->layout->slot_count);
    return iso__comm_iallreduce_max(comm, u->any, (int)room, "used parameters", &u->request);
}

// ---- A set that is kept -------------------------------------------------------------------------------

static known_set *find_set(iso__usage *u, const iso_comm *comm) {
    known_set *set = u->set;
    while (set->known && set->comm != comm && set < &u->set[SETS - 1]) set++;
    return set;
}

static void keep_answer(iso__usage *u) {
    if (u->asking) memcpy(u->asking->skipped, u->skipped, (size_t)u->layout->slot_count);
    u->asking = NULL;
}

static iso_status ask_once(iso__usage *u, known_set *set, iso_comm *comm) {
    ISO_TRY(iso__usage_ask(u, comm));
    const iso__layout *l = u->layout;
    for (int s = 0; s < l->slot_count; s++) set->here[s] = is_used(u, l->slot[s].param);
    set->comm = comm;
    set->known = true;
    u->asking = set;
    if (!u->request) keep_answer(u);
    return ISO_OK;
}

static iso_status check_use(const iso__usage *u, const known_set *set, int param, int rank) {
    const iso__layout *l = u->layout;
    int s = iso__layout_at(l, param, 0);
    bool used = is_used(u, param);
    if (l->slot[s].local) return ISO_OK;
    ISO_CHECK(!used || !set->skipped[s], ISO_ERR_STATE,
              "\"%s\" got a gradient on rank %d, but no rank used it in the first backward, which "
              "decides (static_unused, ISO_UNUSED_STATIC): let ranks negotiate in every step "
              "instead (find_unused_parameters, ISO_UNUSED_NEGOTIATE)",
              l->slot[s].name, rank);
    ISO_CHECK(used || !set->here[s], ISO_ERR_STATE,
              "\"%s\" got no gradient on rank %d, which used it in the first backward, which "
              "decides (static_unused, ISO_UNUSED_STATIC): let ranks negotiate in every step "
              "instead (find_unused_parameters, ISO_UNUSED_NEGOTIATE)",
              l->slot[s].name, rank);
    return ISO_OK;
}

iso_status iso__usage_keep(iso__usage *u, iso_comm *comm, bool excused, int rank) {
    const iso__layout *l = u->layout;
    known_set *set = find_set(u, comm);
    if (!set->known) return ask_once(u, set, comm);
    for (int s = 0; s < l->slot_count; s++)
        u->skipped[s] = l->slot[s].local ? !is_used(u, l->slot[s].param) : set->skipped[s];
    for (int i = 0; i < l->param_count && !excused; i++) ISO_TRY(check_use(u, set, i, rank));
    return ISO_OK;
}

// ---- The answer ---------------------------------------------------------------------------------------

iso_status iso__usage_learn(iso__usage *u) {
    const iso__layout *l = u->layout;
    if (!u->request) return ISO_OK;
    iso_status status = iso_request_wait(&u->request);
    if (!u->request) iso_comm_destroy(&u->asked);
    ISO_TRY(status);
    for (int s = 0; s < l->slot_count; s++) // each rank decides alone about local slots
        u->skipped[s] = l->slot[s].local ? !u->here[s] : u->any[s] == 0;
    keep_answer(u);
    return ISO_OK;
}

bool iso__usage_is_asked(const iso__usage *u) { return u->request != NULL; }

const bool *iso__usage_skipped(const iso__usage *u) { return u->skipped; }

void iso__usage_skip_local(iso__usage *u, bool skip) {
    for (int s = 0; s < u->layout->slot_count; s++)
        if (u->layout->slot[s].local) u->skipped[s] = skip;
}
