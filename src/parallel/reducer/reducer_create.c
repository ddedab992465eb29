// SPDX-License-Identifier: MIT
// Creates a reducer, collectively, and destroys it.
#include "parallel/reducer/reducer_impl.h"

#include "comm/comm_calls.h"
#include "comm/traffic.h"
#include "parallel/param_list.h"

#include <string.h>

// ---- What was asked for -----------------------------------------------------------------------------

static iso_status check_config(const iso_reducer_config *c) {
    ISO_CHECK((int)c->sync >= 0 && c->sync <= ISO_SYNC_EXPLICIT, ISO_ERR_ARG,
              "unknown sync mode %d", (int)c->sync);
    ISO_CHECK((int)c->order >= 0 && c->order <= ISO_ORDER_REVERSE, ISO_ERR_ARG, "unknown order %d",
              (int)c->order);
    ISO_CHECK((int)c->unused >= 0 && c->unused <= ISO_UNUSED_STATIC, ISO_ERR_ARG,
              "unknown treatment %d of unused parameters", (int)c->unused);
    ISO_CHECK((int)c->average >= 0 && c->average <= ISO_AVERAGE_SUM, ISO_ERR_ARG,
              "unknown mode %d of averaging", (int)c->average);
    ISO_CHECK(c->sums >= 0 && c->sums <= ISO_REDUCER_MAX_SUMS, ISO_ERR_ARG,
              "a reducer with %d sums: give a number from 0 to %d", c->sums, ISO_REDUCER_MAX_SUMS);
    ISO_CHECK(!c->by_weight || c->average != ISO_AVERAGE_SUM, ISO_ERR_ARG,
              "by_weight divides sums of gradients by the total of the weights, and "
              "ISO_AVERAGE_SUM by nothing: choose one");
    ISO_CHECK(c->average != ISO_AVERAGE_SPLIT || c->split_factor > 0, ISO_ERR_ARG,
              "a split factor of %g: give a number above 0", c->split_factor);
    return iso__scope_check(c->scope);
}

static const iso_comm_hook *hook_of(const iso_reducer_config *config) {
    return config->hook ? config->hook : &iso_hook_plain;
}

static bool is_remote(const iso_reducer_config *config) {
    return config->device && !config->device->ops->host_memory;
}

// The first parameter with a sparse gradient that is exchanged; NULL: there is none.
static const iso_reducer_param *find_sparse(const iso_reducer_param *params, int count) {
    for (int i = 0; params && i < count; i++)
        if (params[i].sparse_rows > 0 && !params[i].local) return &params[i];
    return NULL;
}

// Sums are sent with gradients.
static iso_status check_sums(const iso_reducer_config *c, const iso__param_set *set) {
    int exchanged = 0;
    for (int i = 0; i < set->count; i++) exchanged += !set->param[i].local;
    ISO_CHECK(c->sums == 0 || exchanged > 0, ISO_ERR_ARG,
              "a reducer whose parameters are all local cannot exchange its %d sum%s: list a "
              "parameter that is exchanged, or set sums to 0",
              c->sums, ISO_PLURAL(c->sums));
    return ISO_OK;
}

enum { LAST_STAGE = 3 };

static iso_status check_zero(const iso_reducer_config *c, const iso__param_set *set) {
    ISO_CHECK(c->zero >= 0 && c->zero <= LAST_STAGE, ISO_ERR_ARG,
              "ZeRO stage %d: give 0 (no ZeRO), 1 (optimizer state is divided), 2 (gradients, too) "
              "or 3 (parameters, too)",
              c->zero);
    if (!c->zero) return ISO_OK;
    const iso_reducer_param *sparse = find_sparse(set->param, set->count);
    ISO_CHECK(!sparse, ISO_ERR_UNSUPPORTED,
              "ZeRO divides whole gradients among the ranks, but parameter \"%s\" has sparse_rows "
              "%zu: set it to 0, or use no ZeRO",
              sparse->name ? sparse->name : "", sparse->sparse_rows);
    bool node = c->zero_scope == ISO_SCOPE_NODE;
    ISO_CHECK(node || c->zero_scope == ISO_SCOPE_WORLD, ISO_ERR_ARG,
              "ZeRO divides updates among all ranks or those of a node: zero_scope is %d, give "
              "ISO_SCOPE_WORLD or ISO_SCOPE_NODE",
              (int)c->zero_scope);
    ISO_CHECK(!is_remote(c) || c->zero == 1, ISO_ERR_UNSUPPORTED,
              "ZeRO stage %d works in the host's memory so far, not on a %s device: use stage 1",
              c->zero, c->device->ops->name);
    ISO_CHECK(c->scope == ISO_SCOPE_WORLD || (node && c->scope == ISO_SCOPE_NODE),
              ISO_ERR_UNSUPPORTED,
              "ZeRO averages gradients over the ranks that divide updates, or more: use scope "
              "world with it, not %s",
              iso__scope_name(c->scope));
    return ISO_OK;
}

#define LIST_ROOM 240

static void write_list(const iso_reducer_config *config, char text[LIST_ROOM]) {
    size_t used = (size_t)snprintf(text, LIST_ROOM, config->bucket_list_count ? "" : "none");
    for (int i = 0; i < config->bucket_list_count && used < LIST_ROOM; i++)
        used += (size_t)snprintf(text + used, LIST_ROOM - used, "%s%zu", i ? " " : "",
                                 config->bucket_list[i]);
}

static iso_status match_ranks(iso_reducer *r, const iso__param_set *set,
                              const iso_reducer_config *config) {
    static const char *const sync[] = {"lazy", "blocking", "none", "explicit"};
    static const char *const order[] = {"need", "reverse"};
    static const char *const unused[] = {"error", "zero", "negotiate", "static"};
    static const char *const average[] = {"post", "pre", "split", "sum"};
    const iso_comm_hook *hook = &r->coder.hook;
    char settings[1280], list[LIST_ROOM];
    write_list(config, list);
    snprintf(settings, sizeof(settings),
             "sync: %s\nscope: %s\norder: %s\nunused: %s\naverage: %s\nsplit_factor: %g\n"
             "hook: %.63s\nwire of the hook: %s\nstate_floats of the hook: %d\n"
             "divides of the hook: %d\nsilent of the hook: %d\nbucket_bytes: %zu\n"
             "first_bucket_bytes: %zu\nlast_bucket_bytes: %zu\nbucket_list: %s\n"
             "piece_bytes: %zu\nsums: %d\nzero: %d\nzero_scope: %d\nstart of the hook: %lld\n"
             "seed of the hook: %llu\n"
             "phases of the hook: %016llx\nkeep_values: %d\nby_weight: %d\n",
             sync[config->sync], iso__scope_name(config->scope), order[config->order],
             unused[config->unused], average[config->average], config->split_factor, hook->name,
             iso_dtype_name(hook->wire), hook->state_floats, (int)hook->divides, (int)hook->silent,
             config->bucket_bytes, config->first_bucket_bytes, config->last_bucket_bytes, list,
             config->piece_bytes, config->sums, config->zero,
             config->zero ? (int)config->zero_scope : 0, hook->start,
             (unsigned long long)iso__coder_seed(&r->coder),
             (unsigned long long)iso__coder_fingerprint(&r->coder, r->layout.bucket_count),
             (int)config->keep_values, (int)config->by_weight);
    return iso__params_check_ranks(r->world, set->param, set->count, settings,
                                   iso__layout_fingerprint(&r->layout));
}

// ---- Memory and parts -------------------------------------------------------------------------------

// Checks pointers now: otherwise the first kernel that uses one would fail, and all later work of
// the device with it.
static iso_status check_values(const iso__layout *l, iso_device *device) {
    for (int s = 0; device && !device->ops->host_memory && s < l->slot_count; s++) {
        const iso__grad_slot *slot = &l->slot[s];
        bool value = device->ops->remote->owns(device, slot->value);
        bool both = value && (!slot->home || device->ops->remote->owns(device, slot->home));
        ISO_CHECK(both, ISO_ERR_ARG,
                  "the %s of parameter \"%s\" is not in the memory of %s (%s), which the reducer "
                  "was given as its device: pass memory of that device, or no device",
                  value ? "gradient" : "value", slot->name, device->ops->name, device->description);
    }
    return ISO_OK;
}

// Local; the ranks compare the results afterwards.
static iso_status make_layout(iso_reducer *r, const iso__param_set *set,
                              const iso_reducer_config *config) {
    iso__bucket_sizes sizes = {.cap = config->bucket_bytes,
                               .first = config->first_bucket_bytes,
                               .last = config->last_bucket_bytes,
                               .list = config->bucket_list,
                               .list_count = config->bucket_list_count,
                               .by_value = config->zero == 3};
    ISO_TRY(check_config(config));
    ISO_TRY(iso__coder_check(hook_of(config)));
    ISO_TRY(check_zero(config, set));
    ISO_TRY(check_sums(config, set));
    ISO_TRY(iso__layout_create(set->param, set->count, &sizes, config->piece_bytes,
                               iso__scopes_unit(r->scopes),
                               r->rides ? iso__sums_elements(config->sums) : 0, &r->layout));
    for (int b = 0; !config->zero && b < r->layout.bucket_count; b++)
        r->layout.bucket[b].filler = 0; // it pads shards of nodes, and hooks see it
    ISO_TRY(iso__layout_number(&r->layout, set));
    r->buckets = (iso__buckets){r->layout.bucket, r->layout.bucket_count};
    ISO_TRY(check_values(&r->layout, config->device));
    iso__coder_ranks all = {.rank = iso_comm_rank(r->world), .ranks = iso_comm_size(r->world)};
    ISO_TRY(iso__coder_create(hook_of(config), &r->buckets, &all, config->sync == ISO_SYNC_LAZY,
                              &r->coder));
    return iso__store_create(r->layout.bytes, config->device, &r->store);
}

// Gradients that are divided (ZeRO stage 2) are in memory of each rank alone: a rank cannot give
// back pages that others read.
static iso_status make_arena(iso_reducer *r, const iso_reducer_config *config) {
    bool divides = config->zero > 1 && r->exchanges && iso_comm_size(r->world) > 1;
    iso_status mine = divides ? iso__store_make_pages(&r->store)
                              : iso__store_make_arena(&r->store, iso__scopes_may_share(r->scopes));
    return iso_comm_agree(r->world, mine);
}

static iso_status make_parts(iso_reducer *r, const iso_reducer_config *config) {
    bool wants_plan = config->sync == ISO_SYNC_LAZY && config->order == ISO_ORDER_NEED;
    ISO_TRY(iso__appliers_create(&r->layout, &r->store, &r->appliers));
    ISO_TRY(iso__planner_create(&r->layout, r->world, wants_plan, &r->planner));
    if (config->sums > 0) ISO_TRY(iso__sums_create(r->world, config->sums, &r->sums));
    if (config->by_weight) ISO_TRY(iso__weights_create(r->world, &r->weights));
    r->setup = (iso__transport_setup){.store = &r->store,
                                      .coder = &r->coder,
                                      .buckets = &r->buckets,
                                      .stats = &r->exchanged,
                                      .world = r->world,
                                      .one_by_one = config->sync != ISO_SYNC_LAZY};
    ISO_TRY(iso__scopes_choose(r->scopes, ISO_SCOPE_RANK, &r->setup, &r->transport));
    iso__round_config round = {
        .layout = &r->layout,
        .store = &r->store,
        .coder = &r->coder,
        .appliers = r->appliers,
        .planner = r->planner,
        .sums = r->sums,
        .weights = r->weights,
        .world = r->world,
        .alone = r->transport,
        .sync = config->sync,
        .unused = config->unused,
        .average = {.mode = config->average, .split_factor = config->split_factor, .weight = 1}};
    return iso__round_create(&round, &r->round);
}

// ---- Values, once -----------------------------------------------------------------------------------

// Copies values to the places of their gradients in the arena, or back.
static iso_status copy_values(iso_reducer *r, bool out) {
    iso_device *device = r->store.device;
    iso__queue queue = out ? ISO__QUEUE_OUT : ISO__QUEUE_IN;
    for (int i = 0; i < r->layout.slot_count; i++) {
        const iso__grad_slot *s = &r->layout.slot[i];
        void *host = r->store.arena + s->offset;
        ISO_TRY(device->ops->remote->copy(device, queue, out ? s->value : host,
                                          out ? host : s->value,
                                          s->count * iso_dtype_size(s->type)));
    }
    return device->ops->remote->finish(device);
}

static iso_status broadcast_slots(iso_reducer *r) {
    void *memory;
    int count = r->layout.slot_count;
    ISO_TRY(iso__comm_alloc_zero(r->world, (size_t)count * sizeof(iso__block), &memory));
    iso__block *block = memory;
    for (int i = 0; i < count; i++) {
        const iso__grad_slot *s = &r->layout.slot[i];
        block[i].data = r->store.device ? r->store.arena + s->offset : s->value;
        block[i].bytes = s->count * iso_dtype_size(s->type);
    }
    iso_status status = iso__comm_bcast_list(r->world, block, count);
    iso__free(memory);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status broadcast_values(iso_reducer *r) {
    iso_device *device = r->store.device;
    if (!device) return broadcast_slots(r);
    ISO_TRY(device->ops->remote->finish(device)); // pending work may still write values
    ISO_TRY(copy_values(r, true));
    ISO_TRY(broadcast_slots(r));
    ISO_TRY(copy_values(r, false));
    memset(r->store.arena, 0, r->store.bytes);
    return ISO_OK;
}

// ---- Life -------------------------------------------------------------------------------------------

static void log_buckets(const iso_reducer *r) { // on rank 0
    char *text, *rest = NULL;
    if (iso__log_level() < ISO_LOG_INFO || iso_comm_rank(r->world) != 0) return;
    if (iso__layout_text(&r->layout, &text) < 0) return;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        iso__log(ISO_LOG_INFO, "%s", line);
    iso__free(text);
}

// A sum moves about twice the bytes of the bucket through each rank.
static void warn_of_rows(const iso_reducer *r, iso_scope scope) {
    const iso_comm *comm = iso__scopes_comm(r->scopes, scope);
    size_t ranks = comm ? (size_t)iso_comm_size(comm) : 1;
    for (int b = 0; ranks > 1 && iso_comm_rank(r->world) == 0 && b < r->buckets.count; b++) {
        const iso__bucket *bucket = &r->buckets.item[b];
        size_t block = iso__coder_wire_bytes(&r->coder, b, bucket);
        if (!iso__bucket_is_sparse(bucket) || ranks * block < 2 * bucket->bytes) continue;
        iso__log(
            ISO_LOG_WARN,
            "sparse_rows %zu of \"%s\" saves nothing on %zu ranks: the rows of all of them are "
            "more bytes than a sum of the whole gradient moves; set it to 0",
            bucket->sparse_rows, bucket->tensor[0].name, ranks);
        return; // once for all buckets, such as the slices of one tensor
    }
}

// Sums cannot ride if a hook converts (their digits would be rounded), with a device (the tail
// stays on the host), with ZeRO (only one rank would get the sum), or with sparse gradients (the
// last bucket may be one of them). The ranks agree, because their settings have not been compared
// yet. Whether they match names decides how their lists are compared.
static iso_status see_who_rides(iso_reducer *r, const iso_reducer_config *config, bool sparse) {
    bool changes = hook_of(config)->compress || iso__hook_owns(hook_of(config));
    bool by_name = config->by_name;
    int64_t all[3] = {!is_remote(config) && !changes && !config->zero && !sparse, by_name,
                      !by_name};
    ISO_TRY(iso_comm_allreduce_i64(r->world, all, 3, ISO_MIN));
    r->rides = all[0] && iso_comm_size(r->world) <= ISO_SUMS_MOST_RANKS;
    if (all[1] || all[2]) return ISO_OK;
    return iso__comm_check_equal(r->world, by_name, "by_name of iso_reducer_config");
}

// The reducer has its own communicator, so that no other exchange comes between those of a list.
static iso_status meet_ranks(iso_reducer *r, iso_comm *comm, const iso_reducer_config *config,
                             bool sparse) {
    r->exchanges = config->sync != ISO_SYNC_NONE && !hook_of(config)->silent;
    ISO_TRY(iso__comm_create_like(comm, iso_comm_mpi(comm), false, &r->world));
    ISO_TRY(iso__comm_locate(r->world));
    ISO_TRY(see_who_rides(r, config, sparse));
    iso__zero_among in_nodes = config->zero > 1 ? ISO__ZERO_NODE_SHARDS : ISO__ZERO_NODE;
    iso__zero_among among = config->zero == 0    ? ISO__ZERO_NONE
                            : r->shares_in_nodes ? in_nodes
                                                 : ISO__ZERO_ALL;
    return iso__scopes_create(r->world, config->device, hook_of(config), r->exchanges, among,
                              sparse, &r->scopes);
}

static void log_share(const iso_reducer *r) { // on rank 0
    if (!iso__zero_divides_gradients(r->zero) || iso_comm_rank(r->world) != 0) return;
    iso__log(ISO_LOG_INFO, "ZeRO: %.3f of %.3f MB of gradients%s stay on this rank",
             (double)r->layout.bytes / r->transport->shards * 1e-6, (double)r->layout.bytes * 1e-6,
             r->values ? ", and the same share of parameters," : "");
}

// With a single rank there are no shards, and it updates everything.
static iso_status share_updates(iso_reducer *r) {
    iso_status mine = ISO_OK;
    if (!r->shares_updates) return ISO_OK;
    if (r->transport->shards > 0)
        mine = iso__zero_create(&r->layout, &r->store, r->transport, &r->zero);
    ISO_TRY(iso_comm_agree(r->world, mine));
    if (r->zero) mine = iso__norms_create(&r->layout, iso__reducer_owners(r), &r->norms);
    ISO_TRY(iso_comm_agree(r->world, mine));
    iso__appliers_set_zero(r->appliers, r->zero);
    iso__round_set_zero(r->round, r->zero, r->norms);
    return ISO_OK;
}

// In stage 3 the reducer holds the values.
static iso_status divide_values(iso_reducer *r, const iso_reducer_config *config) {
    if (config->zero < 3 || !r->zero) return ISO_OK;
    iso__value_shards_config values = {.layout = &r->layout,
                                       .round = r->round,
                                       .planner = r->planner,
                                       .transport = r->transport,
                                       .owners = iso__reducer_owners(r),
                                       .traffic = &r->exchanged.traffic};
    ISO_TRY(iso__value_shards_create(&values, &r->values));
    iso__zero_divide_values(r->zero);
    return ISO_OK;
}

static iso_status make_set(const iso_reducer *r, const iso_reducer_param *params, int count,
                           bool by_name, iso__param_set *out) {
    iso_status status = iso__param_set_create(params, count, out);
    if (!by_name) return status;
    ISO_TRY(iso_comm_agree(r->world, status));
    return iso__param_set_match(out, r->world);
}

// The ranks agree after each local step: a rank that left alone would make the others wait.
static iso_status lay_out(iso_reducer *r, const iso_reducer_param *params, int count,
                          const iso_reducer_config *config, const int *key) {
    iso__param_set set;
    iso_status status = make_set(r, params, count, config->by_name, &set);
    if (status == ISO_OK && key) status = iso__param_set_sort(&set, key);
    if (status == ISO_OK) status = make_layout(r, &set, config);
    status = iso_comm_agree(r->world, status);
    if (status == ISO_OK) status = match_ranks(r, &set, config);
    iso__param_set_destroy(&set);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__reducer_create_sorted(iso_comm *comm, const iso_reducer_param *params, int count,
                                      const iso_reducer_config *config, const int *key,
                                      iso_reducer **out) {
    static const iso_reducer_config plain = {0};
    iso_status status;
    iso_reducer *r = NULL;
    if (!config) config = &plain;
    ISO_TRY_GOTO(iso_comm_agree(comm, iso__alloc_zero(sizeof(*r), (void **)&r)));
    r->sync = config->sync;
    r->shares_updates = config->zero > 0;
    r->shares_in_nodes = config->zero > 0 && config->zero_scope == ISO_SCOPE_NODE;
    r->only = -1;
    ISO_TRY_GOTO(meet_ranks(r, comm, config, find_sparse(params, count) != NULL));
    ISO_TRY_GOTO(lay_out(r, params, count, config, key));
    ISO_TRY_GOTO(make_arena(r, config));
    ISO_TRY_GOTO(iso_comm_agree(r->world, make_parts(r, config)));
    ISO_TRY_GOTO(iso__reducer_choose_scope(r, config->scope));
    ISO_TRY_GOTO(share_updates(r));
    ISO_TRY_GOTO(iso_comm_agree(r->world, divide_values(r, config)));
    if (!config->keep_values) ISO_TRY_GOTO(broadcast_values(r));
    log_share(r);
    log_buckets(r);
    warn_of_rows(r, config->scope);
    *out = r;
    return ISO_OK;
fail:
    iso_reducer_destroy(&r);
    return status;
}

static iso_status check_stage(const iso_reducer_config *config) {
    ISO_CHECK(!config || config->zero != LAST_STAGE, ISO_ERR_UNSUPPORTED,
              "ZeRO stage 3 divides the values of a module's parameters, and those of this reducer "
              "are arrays of the program: use stage 2, or iso_data_parallel_create_take");
    return ISO_OK;
}

iso_status iso_reducer_create(iso_comm *comm, const iso_reducer_param *params, int count,
                              const iso_reducer_config *config, iso_reducer **out) {
    ISO_TRY(iso_comm_agree(comm, check_stage(config)));
    return iso__reducer_create_sorted(comm, params, count, config, NULL, out);
}

static void finish_quietly(iso_reducer *r) {
    iso_error before = *iso_last_error();
    iso__round_excuse(r->round, true); // an abandoned backward may lack gradients
    iso_status status = iso__reducer_finish(r);
    if (r->values && status == ISO_OK) status = iso__value_shards_settle(r->values);
    if (status < 0) iso__log_new_error(&before, "while completing pending exchanges");
}

void iso_reducer_destroy(iso_reducer **pointer) {
    iso_reducer *r = *pointer;
    *pointer = NULL;
    if (!r) return;
    if (r->round) finish_quietly(r);
    // Keep what belongs to exchanges under way: MPI may still write into it.
    bool over = iso__scopes_destroy(&r->scopes);
    if (!iso__sums_destroy(&r->sums)) over = false;
    if (!iso__weights_destroy(&r->weights)) over = false;
    if (!iso__norms_destroy(&r->norms)) over = false;
    if (!iso__value_shards_destroy(&r->values)) over = false;
    if (!iso__round_destroy(&r->round) || !over) return;
    iso__zero_destroy(&r->zero);
    iso__planner_destroy(&r->planner);
    iso__appliers_destroy(&r->appliers);
    iso__store_destroy(&r->store);
    iso__coder_destroy(&r->coder);
    iso__layout_destroy(&r->layout);
    iso_device_destroy(&r->host);
    iso_comm_destroy(&r->world);
    iso__free(r);
}
