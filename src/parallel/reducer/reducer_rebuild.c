// SPDX-License-Identifier: MIT
// Replaces a reducer by another one with other buckets.
#include "parallel/reducer/reducer_impl.h"

#include <stdlib.h>

// ---- The order in which gradients are ready -----------------------------------------------------------

typedef struct layer_seat {
    int64_t turn;   // when its last gradient was ready
    int first, end; // of its parameters
} layer_seat;

static int last_first(const void *a, const void *b) {
    const layer_seat *x = a, *y = b;
    if (x->turn != y->turn) return x->turn > y->turn ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

iso_status iso__reducer_ready_keys(const iso_reducer *r, const iso_reducer_param *params, int count,
                                   int *key) {
    layer_seat *seat;
    int layers = 0;
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(*seat), (void **)&seat));
    for (int i = 0; i < count; i++) {
        if (i == 0 || params[i].layer != params[i - 1].layer) seat[layers++].first = i;
        layer_seat *mine = &seat[layers - 1];
        mine->turn = iso__larger(mine->turn, iso__round_turn(r->round, i));
        mine->end = i + 1;
    }
    qsort(seat, (size_t)layers, sizeof(*seat), last_first);
    for (int k = 0; k < layers; k++)
        for (int i = seat[k].first; i < seat[k].end; i++) key[i] = k;
    iso__free(seat);
    return ISO_OK;
}

// ---- Taking over --------------------------------------------------------------------------------------

static bool awaits_step(const iso_reducer *r, int i) {
    return iso__round_awaits_step(r->round, iso__layout_at(&r->layout, i, 0));
}

iso_status iso__reducer_check_place(const iso_reducer *r) {
    ISO_CHECK(!r->shares_updates, ISO_ERR_UNSUPPORTED,
              "buckets cannot be rebuilt with ZeRO: the optimizer state of a rank is that of its "
              "shards of them");
    ISO_CHECK(!r->store.device, ISO_ERR_UNSUPPORTED,
              "buckets can be rebuilt in the host's memory so far, not on a %s device",
              r->store.device->ops->name);
    ISO_CHECK(!r->scopes_made, ISO_ERR_UNSUPPORTED,
              "buckets cannot be rebuilt in a periodic mode, which changes the ranks that average "
              "gradients");
    ISO_CHECK(!r->in_backward && !iso__reducer_has_open_list(r), ISO_ERR_STATE,
              "buckets cannot be rebuilt inside a backward, which fills them: do it after the "
              "step");
    bool expected = false; // the grad scaler skips a step, and calls zero_grad
    for (int i = 0; i < r->layout.param_count; i++)
        expected = expected || awaits_step(r, i);
    ISO_CHECK(r->unsynced == 0 && !r->alone && !expected, ISO_ERR_STATE,
              "buckets cannot be rebuilt between a backward and its step, which uses the gradients "
              "in them: do it after the step");
    return ISO_OK;
}

static iso_status move_memory(iso_reducer *r, iso_reducer *from) {
    iso_hook_memory *memory = NULL;
    if (from->coder.state_count == 0) return ISO_OK;
    ISO_TRY(iso_comm_agree(r->world, iso_reducer_get_hook_memory(from, &memory)));
    iso_status status = iso_reducer_set_hook_memory(r, memory, NULL);
    iso_hook_memory_destroy(&memory);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__reducer_go_on(iso_reducer *r, iso_reducer *from) {
    ISO_TRY(iso_comm_agree(r->world, iso__appliers_copy(r->appliers, from->appliers, from, r)));
    ISO_TRY(move_memory(r, from));
    iso__round_go_on(r->round, from->round);
    iso__weights_go_on(r->weights, from->weights);
    iso__planner_go_on(r->planner, from->planner);
    if (from->owned) iso__reducer_set_owner(r);
    r->only = from->only;
    r->update = from->update;
    r->update_user = from->update_user;
    r->exchanged = from->exchanged;
    r->steps = from->steps;
    r->reported = from->reported;
    r->reported_ns = from->reported_ns;
    return ISO_OK;
}

const iso_comm_hook *iso__reducer_hook(const iso_reducer *r) { return &r->coder.hook; }
