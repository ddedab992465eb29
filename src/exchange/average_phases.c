// SPDX-License-Identifier: MIT
// The weighted mean over nodes: the phases of an exchange, and what happens when a rank fails.
#include "exchange/average_impl.h"

#include "base/profiler.h"
#include "comm/comm_calls.h"
#include "comm/traffic.h"

#include <math.h>
#include <string.h>

// ---- Scatter --------------------------------------------------------------------------------------

static bool is_swap(const iso__average *a) { return a->config.kind == ISO__SWAP; }

// Whether differences from copies travel.
static bool has_copies(const iso__average *a, const iso__average_chunk *c) {
    return a->copies && c->type == ISO__AVERAGE_F32;
}

static bool in_place(const iso__average *a) { return a->result == (const float *)(void *)a->send; }

static size_t chunk_bytes(const iso__average *a, const iso__average_chunk *c, size_t count) {
    return c->type == ISO__AVERAGE_F64 ? count * sizeof(double) : a->wire->bytes(count);
}

static char *block_of(const iso__average *a, char *buffer, const iso__average_chunk *c, int node) {
    size_t element = c->offset + (size_t)node * c->block;
    if (c->type == ISO__AVERAGE_F64) buffer += iso__average_f64_base(a, a->wire);
    return buffer + chunk_bytes(a, c, element);
}

// The chunk's elements in a flat array.
static void *elements_of(const iso__average *a, const iso__average_chunk *c, const float *array) {
    size_t size = c->type == ISO__AVERAGE_F64 ? sizeof(double) : sizeof(float);
    return (char *)(uintptr_t)array + iso__average_at(a, c->type) + c->first * size;
}

static bool encode_chunk(iso__average *a, const iso__average_chunk *c, const float *values,
                         char *to) {
    const float *x = elements_of(a, c, values);
    if (is_swap(a)) {
        memcpy(to, x, chunk_bytes(a, c, c->count));
        return true;
    }
    float factor = (float)a->factor;
    if (c->type == ISO__AVERAGE_F64)
        return iso__f64_encode(c->count, (const void *)x, a->factor, (void *)to);
    if (has_copies(a, c)) return iso__average_encode_copy(a, x, to);
    if (!a->as_difference) return a->wire->encode(c->count, x, factor, to);
    const float *reference = a->mean[a->current] + c->first;
    size_t at = c->first - a->carried[ISO__AVERAGE_F32].first;
    int now = a->current_residual;
    iso__codec_feedback feedback = {a->residual[now] + at, a->residual[1 - now] + at};
    return a->wire->encode_difference(c->count, x, factor, reference, &feedback, to);
}

static bool all_finite(const iso__average *a, const iso__average_chunk *c, const float *values) {
    bool finite = true;
    const float *x = elements_of(a, c, values);
    const double *y = elements_of(a, c, values);
    if (c->type == ISO__AVERAGE_F32)
        for (size_t i = 0; i < c->count; i++) finite = finite && isfinite(x[i]);
    else
        for (size_t i = 0; i < c->count; i++) finite = finite && isfinite(y[i]);
    return finite;
}

static iso__average_peers choose_peers(const iso__average *a) {
    return is_swap(a) ? (iso__average_peers){a->peer, a->peer} : iso__average_choose_peers(a);
}

// Rounds up. The buffers have room for a whole message, also in front of the f64 blocks.
static size_t message_bytes(const iso__average *a, const iso__average_chunk *c) {
    return iso__round_up(chunk_bytes(a, c, c->block), ISO__AVERAGE_MESSAGE);
}

static void send_to_peer(iso__average *a, iso__average_chunk *c) {
    iso_traffic sent = {0};
    iso__average_peers with = choose_peers(a);
    iso__messages m = {.send = block_of(a, a->send, c, 0),
                       .recv = block_of(a, a->recv, c, 0),
                       .bytes = message_bytes(a, c),
                       .to = with.to,
                       .from = with.from};
    const char *name = is_swap(a) ? "exchange of models" : "gossip";
    iso__average_note(a, iso__comm_imessages(a->leaders, &m, name, &c->sent, &c->request));
    iso__count_message(&sent, a->leaders, m.to, m.bytes);
    a->stats.bytes_sent += sent.bytes_sent;
    a->stats.bytes_between_nodes += sent.bytes_between_nodes;
}

// Does not send values that are not finite, so that the error is reported by this rank and not by
// ranks that sum them.
static void send_chunk(iso__average *a, iso__average_chunk *c, const float *values) {
    size_t block = chunk_bytes(a, c, c->block), well = chunk_bytes(a, c, c->count);
    size_t all = iso__average_has_peer(a) ? message_bytes(a, c) : block * iso__average_blocks(a);
    char *to = block_of(a, a->send, c, 0);
    if (!encode_chunk(a, c, values, to)) {
        bool finite = all_finite(a, c, values);
        bool sums = a->config.each_rank; // then `values` are sums of finite values
        iso__average_fail(a, finite || sums ? ISO_CAUSE_RANGE : ISO_CAUSE_VALUES);
        well = 0;
    }
    memset(to + well, 0, all - well);
    if (iso__average_has_peer(a)) {
        send_to_peer(a, c);
        return;
    }
    iso__average_note(a, iso__comm_ialltoall(a->leaders, to, block_of(a, a->recv, c, 0), block,
                                             "mean over nodes (scatter)", &c->request));
    iso__average_count(a, a->leaders, block);
}

static void send_chunks(iso__average *a, const float *values) {
    for (int i = 0; i < a->chunk_count; i++) send_chunk(a, &a->chunk[i], values);
    if (iso__is_gossip(a->config.kind) && a->chunk_count > 0) iso__average_send_report(a);
}

// ---- Gather ---------------------------------------------------------------------------------------

static bool sum_chunk(iso__average *a, const iso__average_chunk *c, char *to) {
    int nodes = a->layout->nodes, now = a->current_residual;
    size_t at = c->offset / (size_t)nodes;
    iso__codec_shares shares = {block_of(a, a->recv, c, 0), nodes, c->block};
    if (c->type == ISO__AVERAGE_F64) return iso__f64_mean(&shares, (void *)to);
    if (a->config.round_sums) return a->wire->mean_rounded(&shares, to);
    if (!a->as_difference) return a->wire->mean(&shares, NULL, to);
    iso__codec_feedback feedback = {a->share_residual[now] + at, a->share_residual[1 - now] + at};
    return a->wire->mean(&shares, &feedback, to);
}

static void mix_chunk(iso__average *a, const iso__average_chunk *c) {
    char *sent = block_of(a, a->send, c, 0), *received = block_of(a, a->recv, c, 0);
    bool finite = has_copies(a, c)
                      ? iso__average_mix_copies(a, sent, received)
                      : iso__average_mix(c->type == ISO__AVERAGE_F64, c->block, sent, received);
    if (!finite) iso__average_fail(a, ISO_CAUSE_RANGE);
}

static void send_share(iso__average *a, iso__average_chunk *c) {
    size_t bytes = chunk_bytes(a, c, c->block);
    char *to = block_of(a, a->send, c, a->layout->node_index);
    if (!sum_chunk(a, c, to)) {
        iso__average_fail(a, ISO_CAUSE_RANGE);
        memset(to, 0, bytes);
    }
    iso__average_note(a, iso__comm_iallgather(a->leaders, block_of(a, a->send, c, 0), bytes,
                                              "mean over nodes (gather)", &c->request));
    iso__average_count(a, a->leaders, bytes);
}

static float *node_sums(const iso__average *a) { return a->mean[1 - a->current]; }

static iso_status finish_node(iso__average *a, bool wait) {
    return iso__average_node_finish(a, wait, node_sums(a));
}

static iso_status finish_scatter(iso__average *a, bool wait) {
    for (; a->at < a->chunk_count; a->at++) {
        iso__average_chunk *c = &a->chunk[a->at];
        iso_status status = iso__average_settle(a, &c->request, wait);
        if (status == ISO_OK) status = iso__average_settle(a, &c->sent, wait);
        if (status != ISO_OK) return status;
        if (iso__is_gossip(a->config.kind)) mix_chunk(a, c);
        if (!iso__average_has_peer(a)) send_share(a, c);
    }
    return ISO_OK;
}

static bool decode_chunk(iso__average *a, const iso__average_chunk *c) {
    const void *from = block_of(a, is_swap(a) ? a->recv : a->send, c, 0);
    void *to = elements_of(a, c, a->result);
    if (is_swap(a)) {
        memcpy(to, from, chunk_bytes(a, c, c->count));
        return true;
    }
    const float *reference = a->mean[a->current] + c->first;
    if (c->type == ISO__AVERAGE_F64) return iso__f64_decode(c->count, from, to);
    return a->as_difference ? a->wire->decode_difference(c->count, from, reference, to)
                            : a->wire->decode(c->count, from, to);
}

// The result of copies is already in its place.
static void read_chunk(iso__average *a, const iso__average_chunk *c) {
    if (!in_place(a) && !has_copies(a, c) && !decode_chunk(a, c))
        iso__average_fail(a, ISO_CAUSE_RANGE);
}

static iso_status finish_gather(iso__average *a, bool wait) {
    for (; a->at < a->chunk_count; a->at++) {
        iso_status status = iso__average_settle(a, &a->chunk[a->at].request, wait);
        if (status != ISO_OK) return status;
        read_chunk(a, &a->chunk[a->at]);
    }
    return ISO_OK;
}

// ---- Spread ---------------------------------------------------------------------------------------

static bool has_spread(const iso__average *a) {
    return a->group == ISO__SHARDS && a->layout->nodes > 1 && a->layout->local_size > 1;
}

static void spread_shard(iso__average *a, iso__average_type type, int l) {
    const iso_topology *t = a->route;
    iso__average_range shard = iso__average_shard(a, type, l);
    size_t size = type == ISO__AVERAGE_F64 ? sizeof(double) : sizeof(float);
    if (shard.count == 0) return;
    char *at = (char *)a->result + iso__average_at(a, type) + shard.first * size;
    size_t bytes = iso__round_up(shard.count, ISO__AVERAGE_UNIT) * size;
    iso__average_note(a, iso__comm_ibcast(t->node, at, bytes, l, "mean over nodes (spread)",
                                          &a->spread[l * ISO__AVERAGE_TYPES + (int)type]));
    if (l == t->local_rank) iso__average_count(a, t->node, bytes);
}

static void post_spread(iso__average *a) {
    for (int l = 0; has_spread(a) && l < a->route->smallest; l++) {
        spread_shard(a, ISO__AVERAGE_F32, l);
        spread_shard(a, ISO__AVERAGE_F64, l);
    }
}

static iso_status finish_spread(iso__average *a, bool wait) {
    for (; a->at < a->layout->smallest * ISO__AVERAGE_TYPES; a->at++) {
        iso_status status = iso__average_settle(a, &a->spread[a->at], wait);
        if (status != ISO_OK) return status;
    }
    return ISO_OK;
}

// ---- Verdict --------------------------------------------------------------------------------------

// Gossip needs no reduction: its reports travel with the values.
static void post_verdict(iso__average *a) {
    a->metrics[0] = iso__average_own_verdict(a);
    a->metrics[1] = (double)(a->back_ns - a->start_ns) * 1e-6;
    if (a->back_ns > a->start_ns)
        iso_trace_span(ISO_LANE_EXCHANGE, "mean over nodes", a->start_ns, a->back_ns);
    if (iso__is_gossip(a->config.kind)) return;
    iso_comm *all = iso__routes_all(a->routes, a->route);
    int count = (int)iso__comm_reduction_room(all, 1 + ISO__METRICS);
    iso__average_note(a, iso__comm_iallreduce_max(all, a->metrics, count,
                                                  "mean over nodes (verdict)", &a->verdict));
}

static iso_status finish_verdict(iso__average *a, bool wait) {
    iso_status status = iso__is_gossip(a->config.kind) ? iso__average_finish_report(a, wait)
                                                       : iso__average_settle(a, &a->verdict, wait);
    if (status != ISO_OK) return status;
    double own = iso__average_own_verdict(a); // the reduction itself may have failed
    if (own > a->metrics[0]) a->metrics[0] = own;
    return ISO_OK;
}

static iso_status fail_dropped(const iso__average *a) {
    const iso_comm *world = iso__routes_comm(a->routes);
    int code = (int)a->metrics[0], size = iso_comm_size(world);
    int rank = size - code / ISO_CAUSES, cause = code % ISO_CAUSES;
    bool own = rank == iso_comm_rank(world);
    const char *result = iso__is_gossip(a->config.kind)
                             ? "its exchange was dropped and changed nothing"
                             : "the exchange was dropped on all ranks and changed nothing";
    if (cause == ISO_CAUSE_VALUES)
        return ISO_FAIL(ISO_ERR_STATE,
                        "rank %d: parameters are not finite: %s: try a lower learning rate", rank,
                        result);
    if (cause == ISO_CAUSE_RANGE)
        return ISO_FAIL(ISO_ERR_STATE,
                        "rank %d: parameters or their sum are too large for %s: %s: try a lower "
                        "learning rate%s",
                        rank, a->wire->name, result, a->wire == &iso__codec_f16 ? ", or bf16" : "");
    return ISO_FAIL(ISO_ERR_MPI, "rank %d: %.300s: %s", rank,
                    own ? a->message : "an MPI call failed, see its own message", result);
}

// ---- From phase to phase --------------------------------------------------------------------------

// NODE counts as SCATTER, so that the numbers are the same with and without it.
static int progress_of(iso__average_phase phase) {
    return phase > ISO__AVERAGE_NODE ? (int)phase - 1 : (int)phase;
}
_Static_assert((int)ISO__AVERAGE_ARRIVED == (int)ISO__AVERAGE_DONE - 1, "what the header says");

// Runs phases until one is not complete. Waits for those before `awaited`.
static iso_status advance_phases(iso__average *a, iso__average_phase awaited) {
    typedef iso_status (*phase_of)(iso__average *, bool);
    static const phase_of complete[ISO__AVERAGE_PHASES] = {[ISO__AVERAGE_NODE] = finish_node,
                                                           [ISO__AVERAGE_SCATTER] = finish_scatter,
                                                           [ISO__AVERAGE_GATHER] = finish_gather,
                                                           [ISO__AVERAGE_SPREAD] = finish_spread,
                                                           [ISO__AVERAGE_VERDICT] = finish_verdict};
    while (complete[a->phase]) {
        iso_status status = complete[a->phase](a, a->phase < awaited);
        ISO_TRY(status);
        if (status != ISO_OK) return status;
        a->at = 0;
        a->phase++;
        if (a->phase == ISO__AVERAGE_SCATTER) send_chunks(a, node_sums(a));
        if (a->phase == ISO__AVERAGE_SPREAD) post_spread(a);
        if (a->phase == ISO__AVERAGE_VERDICT) post_verdict(a);
    }
    return ISO_OK;
}

static bool is_member(const iso__average *a) {
    return a->group == ISO__SHARDS || a->layout->leaders[a->group] != NULL;
}

// Chooses the elements that this rank exchanges, and the group.
static void choose_shard(iso__average *a) {
    const iso_topology *t = a->route;
    int group = a->group == ISO__SHARDS ? t->local_rank : a->group;
    for (int k = 0; k < ISO__AVERAGE_TYPES; k++) a->carried[k] = (iso__average_range){0, 0};
    a->leaders = a->group != ISO__SHARDS || group < t->smallest ? t->leaders[group] : NULL;
    if (!a->leaders) return;
    for (int k = 0; k < ISO__AVERAGE_TYPES; k++) {
        a->carried[k].count = a->size[k];
        if (a->group == ISO__SHARDS)
            a->carried[k] = iso__average_shard(a, (iso__average_type)k, group);
    }
}

static void choose_result(iso__average *a) {
    bool whole = a->group != ISO__SHARDS || a->layout->smallest == 1;
    size_t chunks = 0;
    for (int k = 0; k < ISO__AVERAGE_TYPES; k++) chunks += iso__average_chunks(a, a->size[k]);
    a->result = a->mean[1 - a->current];
    if (is_swap(a)) return;
    // `send` then holds the mean itself, so nothing is copied.
    if (whole && chunks == 1 && a->config.wire == &iso__codec_f32 && a->layout->nodes > 1)
        a->result = (float *)(void *)a->send;
}

static void begin_phases(iso__average *a, int group, const double metrics[ISO__METRICS]) {
    a->group = group;
    a->cause = ISO_CAUSE_NONE;
    a->as_difference = iso__average_has_reference(a);
    a->wire = a->config.differences && !a->as_difference ? &iso__codec_f32 : a->config.wire;
    // With a NaN among the numbers, ranks could compute different maxima.
    for (int i = 0; i < ISO__METRICS; i++)
        a->metrics[1 + i] = isnan(metrics[i]) ? INFINITY : metrics[i];
    choose_shard(a);
    choose_result(a);
    iso__average_lay_out(a);
    a->phase = a->config.each_rank ? ISO__AVERAGE_NODE : ISO__AVERAGE_SCATTER;
    a->at = 0;
    a->start_ns = a->back_ns = iso_now();
}

// With one node, the mean is the node's array.
static void copy_values(iso__average *a, const float *values) {
    size_t f64 = iso__average_at(a, ISO__AVERAGE_F64);
    const void *from = (const char *)values + f64;
    void *to = (char *)a->result + f64;
    if (is_swap(a))
        memcpy(a->result, values,
               iso__flat_bytes((iso__flat){a->count, a->size[ISO__AVERAGE_F64]}));
    else if (is_member(a) && (!iso__codec_f32.encode(a->count, values, 1, a->result) ||
                              !iso__f64_decode(a->size[ISO__AVERAGE_F64], from, to)))
        iso__average_fail(a, ISO_CAUSE_VALUES);
    a->chunk_count = 0;
}

iso_status iso__average_start(iso__average *a, const float *values, int group,
                              const double metrics[ISO__METRICS]) {
    ISO_CHECK(!iso__average_busy(a), ISO_ERR_STATE,
              "a mean over nodes is under way: finish it before starting another");
    ISO_CHECK(group >= ISO__SHARDS && group < a->layout->groups, ISO_ERR_ARG,
              "there is no leader group %d: there are %d", group, a->layout->groups);
    ISO_CHECK(!a->config.each_rank || group == ISO__SHARDS, ISO_ERR_ARG,
              "arrays of each rank travel over all leader groups, not over group %d alone", group);
    ISO_CHECK(!a->config.differences || group == ISO__SHARDS, ISO_ERR_ARG,
              "differences travel over all leader groups, not over group %d alone: its members "
              "alone would know the last mean",
              group);
    size_t elements = a->count + a->size[ISO__AVERAGE_F64];
    if (!a->config.unordered)
        ISO_TRY(iso__debug_match(iso__routes_comm(a->routes),
                                 "a mean over nodes of %zu element%s, group %d", elements,
                                 ISO_PLURAL(elements), group));
    ISO_TRY(iso__routes_take(a->routes, &a->route));
    begin_phases(a, group, metrics);
    if (iso__profiler_on()) a->range = iso__profiler_start(ISO_LANE_EXCHANGE, "mean over nodes");
    if (a->layout->nodes == 1) copy_values(a, values);
    if (a->config.each_rank)
        iso__average_node_send(a, values);
    else
        send_chunks(a, values);
    // Do not test yet: no message is complete, and in shared memory the test would copy the data.
    bool empty = a->chunk_count == 0 && !a->config.each_rank;
    iso_status status = empty ? advance_phases(a, ISO__AVERAGE_IDLE) : ISO_OK;
    a->stats.work_ms += (double)(iso_now() - a->start_ns) * 1e-6;
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__average_poll(iso__average *a) {
    int64_t start = iso_now();
    iso_status status = advance_phases(a, ISO__AVERAGE_IDLE);
    a->stats.work_ms += (double)(iso_now() - start) * 1e-6;
    ISO_TRY(status);
    return status;
}

int iso__average_progress(const iso__average *a) { return progress_of(a->phase); }

iso_status iso__average_reach(iso__average *a, int progress) {
    iso_status status = advance_phases(a, (iso__average_phase)(progress + 1));
    ISO_TRY(status);
    return ISO_OK;
}

static void commit_mean(iso__average *a) {
    if (a->measuring) return;
    a->stats.exchanges++;
    if (!a->config.differences) return;
    a->current = 1 - a->current;
    if (a->as_difference) a->current_residual = 1 - a->current_residual;
}

iso_status iso__average_finish(iso__average *a, const float **mean, double metrics[ISO__METRICS]) {
    ISO_CHECK(iso__average_busy(a), ISO_ERR_STATE, "no mean over nodes is under way");
    int64_t start = iso_now();
    iso_status status = advance_phases(a, ISO__AVERAGE_DONE);
    a->stats.wait_ms += (double)(iso_now() - start) * 1e-6;
    if (status < 0) iso__routes_hold(a->routes, a->route);
    ISO_TRY(status);
    if (iso__profiler_on()) iso__profiler_end(&a->range);
    a->phase = ISO__AVERAGE_IDLE;
    iso__routes_return(a->routes, &a->route);
    if (a->copies && !a->measuring) iso__average_commit_copies(a, a->send, a->recv);
    if (a->metrics[0] > 0) return fail_dropped(a);
    commit_mean(a);
    *mean = is_member(a) ? a->result : NULL;
    memcpy(metrics, a->metrics + 1, ISO__METRICS * sizeof(*metrics));
    return ISO_OK;
}
