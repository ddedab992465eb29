// SPDX-License-Identifier: MIT
// What a periodic engine must keep for a run to go on with the same bits.
#include "optim/periodic/periodic.h"
#include "parallel/parallel_impl.h"

#include <string.h>

// Order of p->saved.number.
enum {
    PENDING,
    MEMBER,
    PAYLOAD,
    SCOPE,
    EQUAL,
    NODE_EQUAL,
    STEPS,
    SYNCS,
    AGE,
    SENT,
    BETWEEN,
    NODE_STATE,
    ALL_STATE,
    DROPPED,
    COUNT
};
_Static_assert((int)COUNT <= (int)ISO__PERIODIC_NUMBERS, "room for all of them");

static void fill_saved(iso__periodic *p) {
    iso_daso_stats stats;
    iso__periodic_stats(p, &stats);
    int64_t number[COUNT] = {
        [PENDING] = p->pending,       [MEMBER] = p->member,
        [PAYLOAD] = p->payload,       [SCOPE] = p->scope,
        [EQUAL] = p->equal,           [NODE_EQUAL] = p->node_equal,
        [STEPS] = stats.steps,        [SYNCS] = stats.syncs,
        [AGE] = stats.last_age,       [NODE_STATE] = p->node_equal_state,
        [ALL_STATE] = p->equal_state, [DROPPED] = p->dropped,
        [SENT] = stats.bytes_sent,    [BETWEEN] = stats.bytes_between_nodes,
    };
    memcpy(p->saved.number, number, sizeof(number));
    memcpy(p->saved.metric, p->metrics, sizeof(p->metrics));
    p->saved.metric[ISO__METRICS] = p->last_wait_ms;
    p->saved.metric[ISO__METRICS + 1] = p->own_divergence;
    p->saved.metric[ISO__METRICS + 2] = stats.wait_ms;
    p->saved.metric[ISO__METRICS + 3] = stats.work_ms;
}

static iso_status add_own(iso_state *state, const char *name, iso_state_type type, size_t count,
                          void *data) {
    return iso_state_add(state, ISO_STATE_OWN, name, type, (int64_t)count, data);
}

iso_status iso__periodic_state(iso__periodic *p, iso_state *state) {
    ISO_CHECK(!p->shown, ISO_ERR_STATE,
              "the state was asked for in evaluation mode, where parameters are the mean of all "
              "ranks: call iso_module_train(model, true) first");
    size_t carried = iso__periodic_elements(p, ISO__PAYLOAD_WIRE);
    ISO_TRY(iso__periodic_hold(p));
    if (!p->mean) ISO_TRY(iso__alloc_zero(carried * sizeof(float), (void **)&p->mean));
    fill_saved(p);
    ISO_TRY(add_own(state, "daso/numbers", ISO_STATE_I64, ISO__PERIODIC_NUMBERS, p->saved.number));
    ISO_TRY(add_own(state, "daso/figures", ISO_STATE_F64, ISO__METRICS + 4, p->saved.metric));
    ISO_TRY(add_own(state, "daso/sent", ISO_STATE_F32, carried, p->sent));
    ISO_TRY(add_own(state, "daso/mean", ISO_STATE_F32, carried, p->mean));
    iso__average_array array[ISO__AVERAGE_ARRAYS];
    int arrays = iso__average_arrays(p->average[ISO__PAYLOAD_WIRE], array);
    for (int i = 0; i < arrays; i++) {
        char name[64];
        snprintf(name, sizeof(name), "daso/%s", array[i].name);
        ISO_TRY(add_own(state, name, ISO_STATE_F32, array[i].count, array[i].data));
    }
    return ISO_OK;
}

iso_status iso__periodic_loaded(iso__periodic *p) {
    const int64_t *number = p->saved.number;
    ISO_CHECK(number[SCOPE] >= ISO_SCOPE_WORLD && number[SCOPE] <= ISO_SCOPE_RANK &&
                  number[PAYLOAD] >= 0 && number[PAYLOAD] < ISO__PAYLOADS,
              ISO_ERR_FORMAT, "the saved state of daso is damaged: its numbers are invalid");
    p->pending = p->held = number[PENDING];
    p->queued = false;
    p->dropped = number[DROPPED];
    p->member = number[MEMBER];
    p->payload = (iso__payload)number[PAYLOAD];
    p->equal = number[EQUAL];
    p->node_equal = number[NODE_EQUAL];
    p->node_equal_state = number[NODE_STATE];
    p->equal_state = number[ALL_STATE];
    p->scope = (iso_scope)number[SCOPE];
    ISO_TRY(iso__data_parallel_set_scope(p->data_parallel, p->scope));
    memcpy(p->metrics, p->saved.metric, sizeof(p->metrics));
    p->last_wait_ms = p->saved.metric[ISO__METRICS];
    p->own_divergence = p->saved.metric[ISO__METRICS + 1];
    p->stats = (iso_daso_stats){.steps = number[STEPS],
                                .syncs = number[SYNCS],
                                .last_age = number[AGE],
                                .wait_ms = p->saved.metric[ISO__METRICS + 2],
                                .work_ms = p->saved.metric[ISO__METRICS + 3],
                                .bytes_sent = number[SENT],
                                .bytes_between_nodes = number[BETWEEN]};
    return ISO_OK;
}
