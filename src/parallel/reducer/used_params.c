// SPDX-License-Identifier: MIT
// Which parameters a backward used, and which ones no rank used.
#include "parallel/reducer/used_params.h"

#include "comm/comm_calls.h"

struct iso__usage {
    const iso__layout *layout;
    bool *here;    // [slots]: used by this rank's program
    bool *skipped; // [slots]: true if no rank used it, in the list that came back last
    double *any;   // [slots]: 1 where any rank has used it
    iso_request *request;
    iso_comm *asked; // the communicator of the request; retained, because MPI may still use it
};

iso_status iso__usage_create(const iso__layout *layout, iso__usage **out) {
    iso_status status;
    iso__usage *u;
    size_t slots = (size_t)layout->slot_count;
    ISO_TRY(iso__alloc_zero(sizeof(*u), (void **)&u));
    u->layout = layout;
    ISO_TRY_GOTO(iso__alloc_zero(slots * sizeof(*u->here), (void **)&u->here));
    ISO_TRY_GOTO(iso__alloc_zero(slots * sizeof(*u->skipped), (void **)&u->skipped));
    ISO_TRY_GOTO(iso__alloc_zero(slots * sizeof(*u->any), (void **)&u->any));
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
    iso__free(u);
    return true;
}

void iso__usage_mark(iso__usage *u, int slot, bool used) { u->here[slot] = used; }

// A parameter is used if any of its pieces is.
static void note_used(iso__usage *u, int param) {
    const iso__layout *l = u->layout;
    bool used = false;
    for (int k = 0; k < l->place[param].pieces; k++) used |= u->here[iso__layout_at(l, param, k)];
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
    return iso__comm_iallreduce_max(comm, u->any, u->layout->slot_count, "used parameters",
                                    &u->request);
}

iso_status iso__usage_learn(iso__usage *u) {
    const iso__layout *l = u->layout;
    if (!u->request) return ISO_OK;
    iso_status status = iso_request_wait(&u->request);
    if (!u->request) iso_comm_destroy(&u->asked);
    ISO_TRY(status);
    for (int s = 0; s < l->slot_count; s++) // each rank decides alone about local slots
        u->skipped[s] = l->slot[s].local ? !u->here[s] : u->any[s] == 0;
    return ISO_OK;
}

bool iso__usage_is_asked(const iso__usage *u) { return u->request != NULL; }

const bool *iso__usage_skipped(const iso__usage *u) { return u->skipped; }

void iso__usage_skip_local(iso__usage *u, bool skip) {
    for (int s = 0; s < u->layout->slot_count; s++)
        if (u->layout->slot[s].local) u->skipped[s] = skip;
}
