// SPDX-License-Identifier: MIT
// The saved state of a periodic engine, from which a run continues with the same bits.
#include "optim/periodic/periodic.h"
#include "optim/resume/resume_impl.h"
#include "parallel/parallel_impl.h"
#include "parallel/reducer/reducer_calls.h"

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
    MERGES,
    TURNS,
    COUNT
};
_Static_assert((int)COUNT <= (int)ISO__PERIODIC_NUMBERS, "room for all of them");

static void fill_saved(iso__periodic *p) {
    iso_daso_stats stats;
    const iso__periodic_exchange *x = &p->exchange[0];
    iso__periodic_stats(p, &stats);
    int64_t number[COUNT] = {
        [PENDING] = x->pending,       [MEMBER] = x->member,
        [PAYLOAD] = x->payload,       [SCOPE] = p->scope,
        [EQUAL] = p->equal,           [NODE_EQUAL] = p->node_equal,
        [STEPS] = stats.steps,        [SYNCS] = stats.syncs,
        [AGE] = stats.last_age,       [NODE_STATE] = p->node_equal_state,
        [ALL_STATE] = p->equal_state, [DROPPED] = x->dropped,
        [SENT] = stats.bytes_sent,    [BETWEEN] = stats.bytes_between_nodes,
        [MERGES] = x->merges,         [TURNS] = x->turns,
    };
    memcpy(p->saved.number, number, sizeof(number));
    memcpy(p->saved.metric, p->metrics, sizeof(p->metrics));
    p->saved.metric[ISO__METRICS] = p->last_wait_ms;
    p->saved.metric[ISO__METRICS + 1] = p->own_divergence;
    p->saved.metric[ISO__METRICS + 2] = stats.wait_ms;
    p->saved.metric[ISO__METRICS + 3] = stats.work_ms;
}

// Adds an own array. Another number of ranks loads rank 0's.
static iso_status add_own(iso_state *state, const char *name, iso_state_type type, size_t count,
                          void *data) {
    return iso__state_add_own(state, ISO_OWN_RANK0, name, type, (int64_t)count, data);
}

// Another number of ranks has other shares and other peers: error feedback then begins at 0, and
// begin_gossip sets the copies.
static iso_status add_array(iso_state *state, const char *name, const iso__average_array *array) {
    ISO_TRY(add_own(state, name, ISO_STATE_F32, array->count, array->data));
    if (strcmp(array->name, "reference") != 0) iso__state_rule(state, ISO_OWN_ZERO, 0);
    return ISO_OK;
}

// What the exchanges after the first save; the first one's numbers are among the engine's.
enum { X_PENDING, X_MEMBER, X_PAYLOAD, X_DROPPED, X_MERGES, X_COUNT };

static iso_status add_exchange(iso__periodic *p, int i, iso_state *state) {
    char prefix[16] = "", name[64];
    iso__periodic_exchange *x = &p->exchange[i];
    iso__average_array array[ISO__AVERAGE_ARRAYS];
    int arrays = iso__average_arrays(x->average, array);
    if (i > 0) {
        int64_t number[X_COUNT] = {x->pending, x->member, x->payload, x->dropped, x->merges};
        memcpy(x->saved, number, sizeof(number));
        snprintf(prefix, sizeof(prefix), "%d/", i);
        snprintf(name, sizeof(name), "daso/%snumbers", prefix);
        ISO_TRY(add_own(state, name, ISO_STATE_I64, X_COUNT, x->saved));
    }
    for (int k = 0; k < arrays; k++) {
        snprintf(name, sizeof(name), "daso/%s%s", prefix, array[k].name);
        ISO_TRY(add_array(state, name, &array[k]));
    }
    return ISO_OK;
}

static iso_status add_lower(iso__periodic *p, int i, int level, iso_state *state) {
    char name[64];
    iso__average_array array[ISO__AVERAGE_ARRAYS];
    int arrays = iso__average_arrays(p->exchange[i].lower[level], array);
    for (int k = 0; k < arrays; k++) {
        snprintf(name, sizeof(name), "daso/%d/level%d/%s", i, level, array[k].name);
        ISO_TRY(add_array(state, name, &array[k]));
    }
    return ISO_OK;
}

static iso_status add_levels(iso__periodic *p, int i, iso_state *state) {
    char name[64];
    iso__periodic_exchange *x = &p->exchange[i];
    if (p->config.lower_count == 0) return ISO_OK;
    x->saved_level = x->level;
    snprintf(name, sizeof(name), "daso/%d/level", i);
    ISO_TRY(add_own(state, name, ISO_STATE_I64, 1, &x->saved_level));
    for (int k = 0; k < p->config.lower_count; k++) ISO_TRY(add_lower(p, i, k, state));
    return ISO_OK;
}

// The flat arrays of the exchanges: f32, or the bytes of both types.
static iso_status add_flat(const iso__periodic *p, const char *name, float *data,
                           iso_state *state) {
    bool f64 = iso__periodic_flat(p, 0, iso__periodic_last(p, ISO__PAYLOAD_WIRE)).f64 > 0;
    return add_own(state, name, f64 ? ISO_STATE_U8 : ISO_STATE_F32,
                   p->wire_floats * (f64 ? sizeof(float) : 1), data);
}

static iso_status add_outer(const iso__periodic *p, iso_state *state) {
    char name[96];
    const iso_outer *outer = p->config.outer;
    for (int k = 0; outer && k < outer->states; k++) {
        snprintf(name, sizeof(name), "daso/outer/%.64s/%d", outer->name, k);
        ISO_TRY(add_flat(p, name, p->outer_state[k], state));
    }
    return ISO_OK;
}

static void drop_pending(int64_t *pending, int64_t *dropped) {
    *dropped = *dropped || *pending;
    *pending = 0;
}

// Another number of ranks, or another distribution over nodes, has loaded the mean of the replicas.
// Drops the exchange that was under way, and its merge. Counts bytes anew.
static void take_mean(void *user) {
    iso__periodic *p = user;
    int64_t *number = p->saved.number;
    p->moved = true;
    drop_pending(&number[PENDING], &number[DROPPED]);
    number[EQUAL] = number[NODE_EQUAL] = number[NODE_STATE] = number[ALL_STATE] = 1;
    number[SENT] = number[BETWEEN] = 0;
    for (int i = 1; i < p->exchange_count; i++)
        drop_pending(&p->exchange[i].saved[X_PENDING], &p->exchange[i].saved[X_DROPPED]);
}

// A number that tells which ranks share a node: they train one model, or share error feedback.
static iso_status find_layout(const iso__periodic *p, int64_t *out) {
    const int place[2] = {iso_comm_rank(p->comm), p->layout->node_index};
    *out = (int64_t)(iso__hash(ISO_HASH_START, place, sizeof(place)) >> 24); // so that sums fit
    return iso_comm_allreduce_i64(p->comm, out, 1, ISO_SUM);
}

iso_status iso__periodic_state(iso__periodic *p, iso_state *state) {
    ISO_CHECK(!p->shown, ISO_ERR_STATE,
              "the state was asked for in evaluation mode, where parameters are the mean of all "
              "ranks: call iso_module_train(model, true) first");
    ISO_TRY(iso__periodic_hold(p));
    if (!p->config.server) {
        ISO_TRY(iso_comm_agree(p->comm, iso__periodic_reserve_mean(p)));
        ISO_TRY(find_layout(p, &p->saved.layout));
    }
    fill_saved(p);
    p->moved = false;
    state->moved = take_mean;
    state->moved_user = p;
    ISO_TRY(add_own(state, "daso/numbers", ISO_STATE_I64, ISO__PERIODIC_NUMBERS, p->saved.number));
    ISO_TRY(add_own(state, "daso/figures", ISO_STATE_F64, ISO__METRICS + 4, p->saved.metric));
    if (p->config.server) return iso__worker_state(p, state); // servers begin with the parameters
    if (!p->config.tournament) // a tournament checks its trainers itself
        ISO_TRY(iso__state_add_layout(state, &p->saved.layout, "daso/layout"));
    ISO_TRY(add_flat(p, "daso/sent", p->sent, state));
    ISO_TRY(add_flat(p, "daso/mean", p->mean, state));
    ISO_TRY(add_outer(p, state));
    for (int i = 0; i < p->exchange_count; i++) ISO_TRY(add_exchange(p, i, state));
    for (int i = 0; i < p->exchange_count; i++) ISO_TRY(add_levels(p, i, state));
    return ISO_OK;
}

static iso_status load_exchange(iso__periodic_exchange *x, const int64_t number[X_COUNT]) {
    ISO_CHECK(number[X_PAYLOAD] >= 0 && number[X_PAYLOAD] < ISO__PAYLOADS && x->saved_level >= 0 &&
                  x->saved_level <= ISO_DASO_LEVELS && number[X_MERGES] >= 0,
              ISO_ERR_FORMAT, "the saved state of daso is damaged: its numbers are invalid");
    x->pending = x->held = number[X_PENDING];
    x->member = number[X_MEMBER];
    x->payload = (iso__payload)number[X_PAYLOAD];
    x->dropped = number[X_DROPPED];
    x->merges = number[X_MERGES];
    x->level = (int)x->saved_level;
    x->queued = false;
    x->starts = 0;
    return ISO_OK;
}

// On another number of ranks the peers are others. All ranks have the same parameters then, which
// become what peers know of each other.
static iso_status begin_gossip(iso__periodic *p) {
    bool moved = p->moved, outer = p->config.lower_count > 0;
    p->moved = false;
    if (!moved || !iso__is_gossip(p->config.wire.kind)) return ISO_OK;
    iso__periodic_exchange *x = &p->exchange[0];
    ISO_TRY(iso__periodic_fetch(p, x->first, x->last, p->room));
    return iso__average_set_reference(outer ? x->lower[0] : x->average, p->room);
}

iso_status iso__periodic_loaded(iso__periodic *p) {
    const int64_t *number = p->saved.number;
    const int64_t first[X_COUNT] = {number[PENDING], number[MEMBER], number[PAYLOAD],
                                    number[DROPPED], number[MERGES]};
    ISO_CHECK(number[SCOPE] >= ISO_SCOPE_WORLD && number[SCOPE] <= ISO_SCOPE_RANK &&
                  number[TURNS] >= 0,
              ISO_ERR_FORMAT, "the saved state of daso is damaged: its numbers are invalid");
    ISO_CHECK(number[NODE_EQUAL] ||
                  !iso__reducer_shares_updates(iso_data_parallel_reducer(p->data_parallel)),
              ISO_ERR_MISMATCH,
              "the state was saved while the ranks of a node trained apart (local_skip), and with "
              "ZeRO they train one model: continue without ZeRO");
    ISO_TRY(iso__worker_loaded(p));
    for (int i = 0; i < p->exchange_count; i++)
        ISO_TRY(load_exchange(&p->exchange[i], i == 0 ? first : p->exchange[i].saved));
    p->exchange[0].turns = number[TURNS]; // gossip has one exchange
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
    return begin_gossip(p);
}

iso_status iso__periodic_return(iso__periodic *p, iso_scope scope) {
    bool alone = scope == ISO_SCOPE_NODE && p->config.topology.unit == ISO_SCOPE_RANK;
    p->scope = alone ? ISO_SCOPE_RANK : scope;
    ISO_TRY(iso__data_parallel_set_scope(p->data_parallel, p->scope));
    return ISO_OK;
}
