// SPDX-License-Identifier: MIT
// The weighted mean over nodes: its memory, and what lasts between exchanges.
#include "exchange/average_impl.h"

#include "comm/comm_calls.h"

#include <math.h>
#include <string.h>

// ---- Memory ---------------------------------------------------------------------------------------

static iso_status allocate_twice(float *pair[2], size_t count) {
    for (int i = 0; i < 2; i++) ISO_TRY(iso__alloc_zero(count * sizeof(float), (void **)&pair[i]));
    return ISO_OK;
}

// Broadcasts need multiples of ISO__AVERAGE_UNIT elements.
static size_t mean_floats(const iso__average *a) {
    size_t f64 = iso__round_up(a->size[ISO__AVERAGE_F64], ISO__AVERAGE_UNIT);
    size_t f32 = iso__round_up(a->count, ISO__AVERAGE_UNIT);
    return f32 + f64 * (sizeof(double) / sizeof(float));
}

// Differences travel with ISO__SHARDS only, so their buffers are as long as this rank's shard.
static iso_status allocate_differences(iso__average *a) {
    ISO_TRY(allocate_twice(a->residual, a->residual_count));
    ISO_TRY(allocate_twice(a->share_residual, a->share_count));
    ISO_TRY(allocate_twice(a->mean, mean_floats(a)));
    a->mean[0][0] = NAN;
    return ISO_OK;
}

static iso_status allocate_mean(iso__average *a) {
    ISO_TRY(iso__alloc_zero(mean_floats(a) * sizeof(float), (void **)&a->mean[0]));
    a->mean[1] = a->mean[0];
    return ISO_OK;
}

// For gossip with differences. A single rank sends nothing, so it needs no copies.
static iso_status allocate_copies(iso__average *a) {
    size_t turns = (size_t)iso__average_turns(a);
    if (!a->with_copies || a->layout->nodes == 1) return ISO_OK;
    return iso__alloc_zero(2 * turns * a->count * sizeof(float), (void **)&a->copies);
}

static void carry_all(iso__average *a) {
    for (int k = 0; k < ISO__AVERAGE_TYPES; k++)
        a->carried[k] = (iso__average_range){0, a->size[k]};
    iso__average_lay_out(a);
}

static void carry_shard(iso__average *a) {
    const iso_topology *t = a->layout;
    for (int k = 0; k < ISO__AVERAGE_TYPES; k++) {
        a->carried[k] = (iso__average_range){0, 0};
        if (t->local_rank < t->smallest)
            a->carried[k] = iso__average_shard(a, (iso__average_type)k, t->local_rank);
    }
    iso__average_lay_out(a);
}

static iso_status allocate_buffers(iso__average *a) {
    const iso_topology *t = a->layout;
    const iso__codec *wire = a->config.differences ? &iso__codec_f32 : a->config.wire;
    carry_shard(a);
    size_t bytes = iso__average_room_bytes(a, wire); // in f32: the first exchange of differences
    if (a->config.differences) {
        a->residual_count = a->carried[ISO__AVERAGE_F32].count;
        a->share_count = a->room[ISO__AVERAGE_F32] / (size_t)t->nodes;
    } else if (!a->config.each_rank || t->smallest == 1) { // without a share, the result goes there
        carry_all(a);
        size_t whole = iso__average_room_bytes(a, wire);
        if (whole > bytes) bytes = whole;
    }
    if (t->nodes == 1) return ISO_OK;
    ISO_TRY(iso__alloc(bytes, (void **)&a->send));
    ISO_TRY(iso__alloc(bytes, (void **)&a->recv));
    return ISO_OK;
}

static iso_status allocate_all(iso__average *a) {
    size_t shards = (size_t)a->layout->smallest, chunks = 0;
    for (int k = 0; k < ISO__AVERAGE_TYPES; k++) {
        a->shard[k] = iso__round_up((a->size[k] + shards - 1) / shards, ISO__AVERAGE_UNIT);
        chunks += iso__average_chunks(a, a->size[k]);
    }
    size_t metrics = iso__comm_reduction_room(iso__routes_comm(a->routes), 1 + ISO__METRICS);
    ISO_TRY(iso__alloc_zero(metrics * sizeof(*a->metrics), (void **)&a->metrics));
    ISO_TRY(iso__alloc_zero(ISO__AVERAGE_MESSAGE, (void **)&a->report));
    ISO_TRY(iso__alloc_zero(ISO__AVERAGE_MESSAGE, (void **)&a->peer_report));
    ISO_TRY(iso__alloc_zero(shards * ISO__AVERAGE_TYPES * sizeof(*a->spread), (void **)&a->spread));
    ISO_TRY(iso__alloc_zero(chunks * sizeof(*a->chunk), (void **)&a->chunk));
    ISO_TRY(allocate_buffers(a));
    ISO_TRY(allocate_copies(a));
    ISO_TRY(iso__average_node_open(a));
    return a->config.differences ? allocate_differences(a) : allocate_mean(a);
}

static iso_status check_kind(const iso__average_config *config) {
    bool exact = config->wire == &iso__codec_f32, gossip = iso__is_gossip(config->kind);
    ISO_CHECK(!config->each_rank || (exact && config->kind == ISO__MEAN && config->chunk == 0),
              ISO_ERR_ARG, "arrays of each rank travel in f32, as a whole, to a mean");
    ISO_CHECK(config->kind == ISO__MEAN || config->chunk == 0, ISO_ERR_ARG,
              "gossip and models that are swapped travel as a whole, without chunks");
    ISO_CHECK(config->kind != ISO__SWAP || exact, ISO_ERR_ARG,
              "models that are swapped travel in f32, and not in %s", config->wire->name);
    ISO_CHECK(!gossip || exact || (config->differences && config->consensus_step > 0), ISO_ERR_ARG,
              "gossip in %s needs differences and a consensus_step above 0", config->wire->name);
    return ISO_OK;
}

static iso_status check_config(size_t count, const iso__average_config *config) {
    ISO_CHECK(count + config->f64 > 0, ISO_ERR_ARG, "a mean over nodes needs at least one element");
    ISO_CHECK(config->wire, ISO_ERR_ARG, "a mean over nodes needs a codec in which it travels");
    ISO_CHECK(!config->round_sums || !config->differences, ISO_ERR_ARG,
              "round_sums and differences cannot be combined");
    ISO_CHECK(!config->round_sums || config->wire->mean_rounded, ISO_ERR_ARG,
              "round_sums needs an element type, which %s is not", config->wire->name);
    return check_kind(config);
}

// Gossip averages single ranks, so its factor must be exactly 1.
static iso_status choose_factor(iso__average *a) {
    bool gossip = iso__is_gossip(a->config.kind);
    ISO_CHECK(!gossip || a->layout->largest == 1, ISO_ERR_ARG,
              "gossip needs nodes of one rank each, and there are nodes of %d", a->layout->largest);
    ISO_CHECK(!a->config.each_rank || a->layout->nodes > 1, ISO_ERR_ARG,
              "arrays of each rank need at least two nodes");
    a->factor = gossip ? 1 : a->layout->weight * a->layout->nodes;
    if (a->config.each_rank) a->factor = (double)a->layout->nodes / iso_comm_size(a->layout->world);
    return ISO_OK;
}

iso_status iso__average_create(iso__routes *routes, size_t count, const iso__average_config *config,
                               iso__average **out) {
    iso_status status;
    void *memory;
    ISO_TRY(check_config(count, config));
    ISO_TRY(iso__comm_alloc_zero(iso__routes_comm(routes), sizeof(iso__average), &memory));
    iso__average *a = memory;
    a->routes = iso__routes_retain(routes);
    a->layout = iso__routes_layout(routes);
    a->config = *config;
    if (count == 0) a->config.wire = &iso__codec_f32; // there is nothing to encode
    if (a->config.wire == &iso__codec_f32) a->config.differences = a->config.round_sums = false;
    a->with_copies = a->config.differences && iso__is_gossip(config->kind);
    if (a->with_copies) a->config.differences = false; // these are differences from a reference
    a->count = a->size[ISO__AVERAGE_F32] = count;
    a->size[ISO__AVERAGE_F64] = config->f64;
    ISO_TRY_GOTO(choose_factor(a)); // the same on every rank
    // A rank that failed alone would leave the others waiting in the first exchange.
    ISO_TRY_GOTO(iso_comm_agree(iso__routes_comm(routes), allocate_all(a)));
    *out = a;
    return ISO_OK;
fail:
    iso__average_destroy(&a);
    return status;
}

static void release_buffers(iso__average *a) {
    if (a->mean[1] != a->mean[0]) iso__free(a->mean[1]);
    iso__free(a->mean[0]);
    for (int i = 0; i < 2; i++) {
        iso__free(a->residual[i]);
        iso__free(a->share_residual[i]);
    }
    iso__free(a->copies);
    iso__average_node_close(a);
    iso__free(a->send);
    iso__free(a->recv);
    iso__free(a->metrics);
    iso__free(a->report);
    iso__free(a->peer_report);
    iso__free(a->chunk);
    iso__free(a->spread);
    iso__routes_destroy(&a->routes);
    iso__free(a);
}

void iso__average_destroy(iso__average **pointer) {
    iso__average *a = *pointer;
    *pointer = NULL;
    if (!a) return;
    const float *mean;
    double metrics[ISO__METRICS];
    if (iso__average_busy(a) && iso__average_finish(a, &mean, metrics) < 0)
        iso__log(ISO_LOG_WARN, "while dropping a mean over nodes: %s", iso_last_error()->message);
    if (!iso__average_busy(a))
        release_buffers(a); // else MPI may still write into its memory: it stays
}

// ---- What lasts -----------------------------------------------------------------------------------

void iso__average_set_turn(iso__average *a, int64_t turn) { a->turn = turn; }

void iso__average_set_peer(iso__average *a, int node) { a->peer = node; }

void iso__average_get_stats(const iso__average *a, iso__average_stats *out) { *out = a->stats; }

iso_status iso__average_move_reference(iso__average *a, const float *values) {
    ISO_CHECK(!iso__average_busy(a), ISO_ERR_STATE,
              "a mean over nodes is under way: finish it before setting a reference");
    if (a->copies) return iso__average_set_copies(a, values);
    if (!a->config.differences) return ISO_OK;
    float *next = a->mean[1 - a->current];
    ISO_CHECK(iso__codec_f32.encode(a->count, values, 1, next), ISO_ERR_STATE,
              "parameters are not finite: try a lower learning rate");
    a->current = 1 - a->current;
    return ISO_OK;
}

iso_status iso__average_set_reference(iso__average *a, const float *values) {
    ISO_TRY(iso__average_move_reference(a, values));
    if (!a->config.differences) return ISO_OK;
    memset(a->residual[a->current_residual], 0, a->residual_count * sizeof(float));
    memset(a->share_residual[a->current_residual], 0, a->share_count * sizeof(float));
    return ISO_OK;
}

int iso__average_arrays(iso__average *a, iso__average_array item[ISO__AVERAGE_ARRAYS]) {
    if (a->copies) {
        // Each kind of gossip needs its own name: copies of one kind are useless to another, even
        // if there are equally many.
        const char *name = a->config.kind == ISO__GOSSIP_PAIRS  ? "pair_copies"
                           : a->config.kind == ISO__GOSSIP_RING ? "ring_copies"
                                                                : "copies";
        item[0] = (iso__average_array){name, a->copies, iso__average_copy_count(a)};
        return 1;
    }
    if (!a->config.differences) return 0;
    item[0] = (iso__average_array){"reference", a->mean[a->current], a->count};
    if (a->residual_count == 0) return 1;
    item[1] = (iso__average_array){"residual", a->residual[a->current_residual], a->residual_count};
    item[2] = (iso__average_array){"share_residual", a->share_residual[a->current_residual],
                                   a->share_count};
    return 3;
}

// ---- Measuring ------------------------------------------------------------------------------------

static iso_status measure_once(iso__average *a, const float *values, double *ms) {
    const float *mean;
    double metrics[ISO__METRICS] = {0};
    ISO_TRY(iso_comm_barrier(iso__routes_comm(a->routes)));
    int64_t start = iso_now();
    ISO_TRY(iso__average_start(a, values, ISO__SHARDS, metrics));
    ISO_TRY(iso__average_finish(a, &mean, metrics));
    *ms = (double)(iso_now() - start) * 1e-6;
    return ISO_OK;
}

static iso_status measure_each(iso__average *a, const float *values, int repeats, double *each) {
    for (int i = -1; i < repeats; i++) // the first one warms up
        ISO_TRY(measure_once(a, values, &each[i < 0 ? 0 : i]));
    ISO_TRY(iso_comm_allreduce_f64(iso__routes_comm(a->routes), each, (size_t)repeats, ISO_MAX));
    return ISO_OK;
}

static iso_status measure_with(iso__average *a, float *values, int repeats, double *ms) {
    void *memory;
    ISO_TRY(iso__comm_alloc_zero(iso__routes_comm(a->routes), (size_t)repeats * sizeof(double),
                                 &memory));
    double *each = memory;
    // Measure the requested wire even before there is a reference, with differences as small
    // as those of training.
    float *reference = a->mean[a->current];
    bool none = a->config.differences && !iso__average_has_reference(a);
    if (none) reference[0] = 0;
    if (a->config.differences) memcpy(values, reference, a->count * sizeof(float));
    a->measuring = true;
    iso_status status = measure_each(a, values, repeats, each);
    a->measuring = false;
    if (none) reference[0] = NAN;
    if (status == ISO_OK) *ms = iso__median(each, repeats);
    iso__free(each);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__average_measure(iso__average *a, int repeats, double *ms) {
    ISO_CHECK(repeats > 0, ISO_ERR_ARG, "an exchange is measured at least once, not %d times",
              repeats);
    ISO_CHECK(!iso__average_busy(a), ISO_ERR_STATE,
              "a mean over nodes is under way: finish it before measuring");
    void *values;
    size_t bytes = iso__flat_bytes((iso__flat){a->count, a->size[ISO__AVERAGE_F64]});
    ISO_TRY(iso__comm_alloc_zero(iso__routes_comm(a->routes), bytes, &values));
    iso__average_stats stats = a->stats;
    iso_status status = measure_with(a, values, repeats, ms);
    a->stats = stats;
    iso__free(values);
    ISO_TRY(status);
    return ISO_OK;
}
