// The asynchronous gradient engine: buckets leave in one agreed order, and are waited for when
// needed.
#include "parallel/reducer_impl.h"

#include "comm/traffic.h"

#include <isotherm/trace.h>
#include <string.h>

// ---- Life -----------------------------------------------------------------------------------------

static iso_status check_config(const iso_reducer_config *c) {
    ISO_CHECK((int)c->sync >= 0 && c->sync <= ISO_SYNC_EXPLICIT, ISO_ERR_ARG,
              "unknown sync mode %d", (int)c->sync);
    ISO_CHECK((int)c->order >= 0 && c->order <= ISO_ORDER_REVERSE, ISO_ERR_ARG, "unknown order %d",
              (int)c->order);
    ISO_CHECK((int)c->unused >= 0 && c->unused <= ISO_UNUSED_NEGOTIATE, ISO_ERR_ARG,
              "unknown treatment %d of unused parameters", (int)c->unused);
    ISO_CHECK((int)c->average >= 0 && c->average <= ISO_AVERAGE_SUM, ISO_ERR_ARG,
              "unknown mode %d of averaging", (int)c->average);
    ISO_CHECK(c->average != ISO_AVERAGE_SPLIT || c->split_factor > 0, ISO_ERR_ARG,
              "a split factor of %g: give a number above 0", c->split_factor);
    return iso__scope_check(c->scope);
}

static iso_status check_hook(const iso_comm_hook *hook) {
    const char *name = hook->name;
    ISO_CHECK(name, ISO_ERR_ARG, "a communication hook needs a name");
    ISO_CHECK(hook->compress || (hook->wire == ISO_F32 && hook->state_floats == 0), ISO_ERR_ARG,
              "communication hook %s has another element type or a state, but no compress", name);
    ISO_CHECK(!hook->compress == !hook->decompress, ISO_ERR_ARG,
              "communication hook %s has one of compress and decompress: it needs both or neither",
              name);
    ISO_CHECK(
        !hook->compress || hook->wire == ISO_F32 || hook->wire == ISO_BF16 || hook->wire == ISO_F16,
        ISO_ERR_TYPE, "communication hook %s: %s cannot travel", name, iso_dtype_name(hook->wire));
    ISO_CHECK(hook->state_floats >= 0, ISO_ERR_ARG,
              "communication hook %s asks for %d floats of state", name, hook->state_floats);
    return ISO_OK;
}

static iso_bucket_sizes bucket_sizes(const iso_reducer_config *config) {
    return (iso_bucket_sizes){.cap = config->bucket_bytes,
                              .first = config->first_bucket_bytes,
                              .last = config->last_bucket_bytes,
                              .list = config->bucket_list,
                              .list_count = config->bucket_list_count};
}

// Where what travels lies, and which channel takes it.
static iso_status place_buckets(iso_reducer *r) {
    size_t wire = 0, state = 0;
    for (int i = 0; i < r->bucket_count; i++) {
        iso__bucket *b = &r->bucket[i];
        size_t count = b->bytes / iso_dtype_size(b->dtype);
        b->wire_bytes = b->bytes;
        if (iso__bucket_converts(r, b)) {
            b->wire_bytes = count * iso_dtype_size(r->hook.wire);
            b->wire_offset = wire;
            b->state_offset = state;
            wire += (b->wire_bytes + 63) / 64 * 64;
            state += count * (size_t)r->hook.state_floats;
        }
        if (!b->local && !r->hook.silent) r->stats.bytes_per_step += b->wire_bytes;
    }
    if (wire > 0) ISO_TRY(iso__alloc_zero(wire, (void **)&r->wire));
    if (state > 0) ISO_TRY(iso__alloc_zero(state * sizeof(float), (void **)&r->hook_state));
    r->hook_state_count = state;
    return ISO_OK;
}

static iso_status lay_out(iso_reducer *r, const iso_reducer_param *params, int count,
                          const iso_reducer_config *config, size_t piece_bytes) {
    iso_bucket_sizes sizes = bucket_sizes(config);
    ISO_TRY(iso__reducer_make_slots(r, params, count, piece_bytes));
    return iso__reducer_make_buckets(r, &sizes);
}

static void take_down(iso_reducer *r) {
    iso__reducer_free_slots(r);
    iso__free(r->order);
    iso__free(r->bucket);
    iso__free(r->arena);
    r->order = NULL;
    r->bucket = NULL;
    r->arena = NULL;
}

static iso_status setup(iso_reducer *r, const iso_reducer_param *params, int count,
                        const iso_reducer_config *config) {
    ISO_CHECK(params && count > 0, ISO_ERR_ARG, "a reducer needs at least one parameter");
    ISO_TRY(check_config(config));
    ISO_TRY(check_hook(&r->hook));
    ISO_TRY(lay_out(r, params, count, config, config->piece_bytes));
    if (!iso__reducer_is_contiguous(r)) { // buckets of another kind came between pieces
        iso__log(ISO_LOG_INFO,
                 "parameters are not cut into pieces: others of another element type, "
                 "or not exchanged, lie between them");
        take_down(r);
        ISO_TRY(lay_out(r, params, count, config, 0));
    }
    size_t used = (size_t)r->slot_count * sizeof(*r->used);
    ISO_TRY(iso__alloc_zero(used, (void **)&r->used));
    r->stats.bucket_count = r->bucket_count;
    ISO_TRY(place_buckets(r));
    return iso__stage_create(r, config->device);
}

// Which parameters share a bucket, as it comes from all settings.
static uint64_t fingerprint(const iso_reducer *r) {
    uint64_t hash = iso__hash(ISO_HASH_START, &r->bucket_count, sizeof(r->bucket_count));
    for (int i = 0; i < r->slot_count; i++)
        hash = iso__hash(hash, &r->slot[i].bucket, sizeof(r->slot[i].bucket));
    return hash;
}

#define LIST_ROOM 240

static void write_list(const iso_reducer_config *config, char text[LIST_ROOM]) {
    size_t used = (size_t)snprintf(text, LIST_ROOM, config->bucket_list_count ? "" : "none");
    for (int i = 0; i < config->bucket_list_count && used < LIST_ROOM; i++)
        used += (size_t)snprintf(text + used, LIST_ROOM - used, "%s%zu", i ? " " : "",
                                 config->bucket_list[i]);
}

static iso_status match(iso_reducer *r, const iso_reducer_param *params, int count,
                        const iso_reducer_config *config) {
    static const char *const sync[] = {"lazy", "blocking", "none", "explicit"};
    static const char *const order[] = {"need", "reverse"};
    static const char *const unused[] = {"error", "zero", "negotiate"};
    static const char *const average[] = {"post", "pre", "split", "sum"};
    const iso_comm_hook *hook = &r->hook;
    char settings[1024], list[LIST_ROOM];
    write_list(config, list);
    snprintf(settings, sizeof(settings),
             "sync: %s\nscope: %s\norder: %s\nunused: %s\naverage: %s\nsplit_factor: %g\n"
             "hook: %.63s\nwire of the hook: %s\nstate_floats of the hook: %d\n"
             "divides of the hook: %d\nsilent of the hook: %d\nbucket_bytes: %zu\n"
             "first_bucket_bytes: %zu\nlast_bucket_bytes: %zu\nbucket_list: %s\n"
             "piece_bytes: %zu\n",
             sync[config->sync], iso__scope_name(config->scope), order[config->order],
             unused[config->unused], average[config->average], r->split_factor, hook->name,
             iso_dtype_name(hook->wire), hook->state_floats, (int)hook->divides, (int)hook->silent,
             config->bucket_bytes, config->first_bucket_bytes, config->last_bucket_bytes, list,
             config->piece_bytes);
    return iso__params_check_ranks(r->world, params, count, settings, fingerprint(r));
}

static void take_config(iso_reducer *r, const iso_reducer_config *config) {
    r->sync = config->sync;
    r->want_order = config->order;
    r->unused = config->unused;
    r->average = config->average;
    r->split_factor = config->split_factor;
    r->hook = config->hook ? *config->hook : iso_hook_plain;
    r->weight = 1;
    r->only = ISO_NOBODY;
}

iso_status iso_reducer_create(iso_comm *comm, const iso_reducer_param *params, int count,
                              const iso_reducer_config *config, iso_reducer **out) {
    static const iso_reducer_config plain = {0};
    iso_status status;
    iso_reducer *r = NULL;
    ISO_TRY(iso__alloc_zero(sizeof(*r), (void **)&r));
    if (!config) config = &plain;
    take_config(r, config);
    // A communicator of its own: no exchange of others can come between those of one list.
    ISO_TRY_GOTO(iso__comm_create_like(comm, iso_comm_mpi(comm), false, &r->world));
    ISO_TRY_GOTO(iso__comm_locate(r->world));
    ISO_TRY_GOTO(iso__gpus_layout(r, config->device));
    // A rank that failed alone would leave the others waiting in what follows.
    ISO_TRY_GOTO(iso_comm_agree(r->world, setup(r, params, count, config)));
    ISO_TRY_GOTO(match(r, params, count, config));
    ISO_TRY_GOTO(iso__reducer_choose_scope(r, config->scope));
    ISO_TRY_GOTO(iso__stage_broadcast_values(r));
    iso__reducer_log_buckets(r);
    *out = r;
    return ISO_OK;
fail:
    iso_reducer_destroy(&r);
    return status;
}

void iso_reducer_destroy(iso_reducer **pointer) {
    iso_reducer *r = *pointer;
    *pointer = NULL;
    if (!r) return;
    // Of a backward that was given up, nobody wants an error.
    if (r->unused == ISO_UNUSED_ERROR) r->unused = ISO_UNUSED_ZERO;
    if (r->arena && iso_reducer_finish(r) < 0)
        iso__log(ISO_LOG_ERROR, "while completing pending exchanges: %s",
                 iso_last_error()->message);
    iso__nccl_destroy(&r->nccl);
    // MPI may still write into what belongs to exchanges under way: it stays.
    if (r->used_request || !iso__reducer_free_channels(r)) return;
    iso__stage_free_arena(r);
    iso__stage_destroy(r);
    iso__reducer_free_slots(r);
    iso__free(r->order);
    iso__free(r->bucket);
    iso__free(r->wire);
    iso__free(r->hook_state);
    iso__free(r->used);
    iso__free(r->item);
    iso__appliers_free(r);
    iso_topology_destroy(&r->topology);
    iso_comm_destroy(&r->node);
    iso_comm_destroy(&r->world);
    iso__free(r);
}

// ---- What is asked from outside ---------------------------------------------------------------------

void iso_reducer_zero_grad(iso_reducer *r) {
    for (int i = 0; i < r->slot_count; i++) r->slot[i].keep = false;
}
void iso_reducer_poll(iso_reducer *r) {
    iso_comm_poll(r->world);
    iso__stage_advance(r); // an error comes again where it can be told
}

iso_status iso_reducer_set_weight(iso_reducer *r, double weight, double total) {
    ISO_CHECK(weight >= 0 && total >= 0, ISO_ERR_ARG,
              "a weight of %g of a total of %g: give numbers of at least 0", weight, total);
    r->weight = weight;
    r->total = total;
    return ISO_OK;
}

void iso_reducer_get_stats(const iso_reducer *r, iso_reducer_stats *out) {
    *out = r->stats;
    out->bytes_sent = r->traffic.bytes_sent;
    out->bytes_between_nodes = r->traffic.bytes_between_nodes;
    out->shared_memory = r->comm && iso__comm_is_shared(r->comm, r->arena, r->arena_bytes);
    out->nccl = r->way == ISO_WAY_GPUS || r->way == ISO_WAY_SHARDS;
}
