// SPDX-License-Identifier: MIT
// Creates the engine of periodic synchronisation: its memory, communicators and averages, and the
// functions of the optimizer that owns it.
#include "optim/periodic/periodic.h"

#include "comm/comm_calls.h"
#include "comm/same_lines.h"
#include "parallel/parallel_impl.h"
#include "parallel/reducer/reducer_calls.h"

#include <string.h>

// ---- Life -----------------------------------------------------------------------------------------

static bool is_f64(const iso_tensor *tensor) { return tensor->dtype == ISO_F64; }

static void add_span(iso__periodic *p, void *data, size_t count, bool f64) {
    p->span[p->span_count++] = (iso__span){.data = data, .count = count, .f64 = f64};
}

// what: "buffer" or "parameter".
static iso_status add_tensor(iso__periodic *p, const iso_tensor *tensor, const char *what,
                             const char *name) {
    ISO_CHECK(tensor->dtype == ISO_F32 || is_f64(tensor), ISO_ERR_UNSUPPORTED,
              "%s \"%s\" is %s: the periodic modes do not exchange %ss of that type", what, name,
              iso_dtype_name(tensor->dtype), what);
    add_span(p, tensor->data, (size_t)tensor->count, is_f64(tensor));
    return ISO_OK;
}

// Floating-point buffers: a count is the same everywhere.
static iso_status list_buffers(iso__periodic *p, const iso_buffer_list *buffers) {
    for (int i = 0; i < buffers->count; i++) {
        const iso_tensor *value = buffers->item[i]->value;
        if (value->dtype == ISO_I64) continue;
        ISO_TRY(add_tensor(p, value, "buffer", buffers->name[i]));
        bool variance = strcmp(buffers->item[i]->name, "running_var") == 0;
        p->span[p->span_count - 1].squares = variance;
        p->buffer_count++;
    }
    if (p->buffer_count == 0) return ISO_OK;
    size_t bytes = iso__flat_bytes(iso__periodic_flat(p, p->parameter_count, p->span_count));
    ISO_TRY(iso__pinned_alloc(p->device, bytes, (void **)&p->first_buffers));
    return iso__periodic_fetch(p, p->parameter_count, p->span_count, p->first_buffers);
}

// A span for each parameter, in the order of the slots, which is the same on all ranks. Memory may
// have another order. The padding behind it belongs to it.
static void add_state(iso__periodic *p, const iso__base_optimizer *core, const iso_tensor *arena) {
    for (int i = 0; i < core->count; i++) {
        const iso__slot *slot = &core->slot[i];
        size_t size = iso_dtype_size(iso__state_type(slot));
        add_span(p, (char *)arena->data + slot->offset, iso__slot_room(slot) / size,
                 size == sizeof(double));
    }
}

// ZeRO: this rank's shards of a state of all parameters, which have one type.
static iso_status add_shards(iso__periodic *p, const iso__base_optimizer *core,
                             const iso_tensor *arena) {
    bool f64 = is_f64(core->slot[0].parameter->value);
    for (int i = 1; i < core->count; i++)
        ISO_CHECK(is_f64(core->slot[i].parameter->value) == f64, ISO_ERR_UNSUPPORTED,
                  "a periodic mode with ZeRO takes parameters of one type, and \"%s\" is %s unlike "
                  "\"%s\"",
                  core->slot[i].name, f64 ? "f32" : "f64", core->slot[0].name);
    add_span(p, arena->data, (size_t)arena->count / (f64 ? 2 : 1), f64); // its words are f32
    return ISO_OK;
}

// Of a parameter of 16 bits the master weights are exchanged.
static iso_status add_parameter(iso__periodic *p, const iso__base_optimizer *core, int i) {
    const iso__slot *slot = &core->slot[i];
    const iso_tensor *value = slot->parameter->value;
    if (!iso__has_master(value->dtype)) {
        ISO_TRY(add_tensor(p, value, "parameter", slot->name));
    } else {
        ISO_CHECK(!core->shards, ISO_ERR_UNSUPPORTED,
                  "a periodic mode with ZeRO exchanges parameters of f32 or f64, and \"%s\" is %s: "
                  "use f32, or no ZeRO",
                  slot->name, iso_dtype_name(value->dtype));
        add_span(p, iso__slot_state(core, slot, ISO_STATE_MASTER), (size_t)value->count, false);
        p->span[i].rounded = value;
    }
    p->span[i].slot = i;
    return ISO_OK;
}

static iso_status list_spans(iso__periodic *p, const iso__base_optimizer *core,
                             const iso_buffer_list *buffers) {
    int most = core->count * (1 + ISO_OPTIMIZER_STATES) + buffers->count;
    ISO_TRY(iso__alloc_zero((size_t)most * sizeof(*p->span), (void **)&p->span));
    for (int i = 0; i < core->count; i++) ISO_TRY(add_parameter(p, core, i));
    p->parameter_count = p->span_count;
    ISO_TRY(list_buffers(p, buffers));
    p->common_count = p->span_count;
    for (int k = 0; k < ISO_OPTIMIZER_STATES; k++) {
        int first = p->span_count;
        if (k == ISO_STATE_MASTER) continue; // parameters
        if (core->state[k] && core->shards)
            ISO_TRY(add_shards(p, core, core->state[k]));
        else if (core->state[k])
            add_state(p, core, core->state[k]);
        for (int i = first; i < p->span_count; i++)
            p->span[i].squares = iso__rule_of(core)->squares >> k & 1;
    }
    if (!core->shards) p->common_count = p->span_count;
    return ISO_OK;
}

static iso_status allocate_memory(iso__periodic *p) {
    int buffers_end = p->parameter_count + p->buffer_count;
    ISO_TRY(iso__periodic_divide(p));
    // A mean of buffers or of all parameters is made there, too.
    size_t bytes = p->wire_floats * sizeof(float);
    size_t buffers = iso__flat_bytes(iso__periodic_flat(p, p->parameter_count, buffers_end));
    size_t parameters = iso__flat_bytes(iso__periodic_flat(p, 0, p->parameter_count));
    if (bytes < buffers) bytes = buffers;
    if (bytes < parameters) bytes = parameters;
    // So is the model that wins.
    size_t all = iso__flat_bytes(iso__periodic_flat(p, 0, p->span_count));
    if (p->config.tournament && bytes < all) bytes = all;
    ISO_TRY(iso__pinned_alloc(p->device, bytes, (void **)&p->sent));
    memset(p->sent, 0, bytes);
    ISO_TRY(iso__pinned_alloc(p->device, bytes, (void **)&p->room));
    memset(p->room, 0, bytes);
    ISO_TRY(iso__periodic_outer_open(p));
    if (!iso__reducer_negotiates(iso_data_parallel_reducer(p->data_parallel))) return ISO_OK;
    size_t steps = 2 * (size_t)p->parameter_count * sizeof(*p->steps);
    return iso__alloc_zero(steps, (void **)&p->steps);
}

static iso_status make_exchanges(iso__periodic *p) {
    const iso__average_config *wire = &p->config.wire;
    for (int i = 0; i < p->exchange_count; i++) {
        iso__periodic_exchange *x = &p->exchange[i];
        iso__average_config all = *wire;
        all.each_rank = p->ranks != NULL;
        if (iso__periodic_outer_ends(p, p->config.lower_count) && iso__is_gossip(wire->kind))
            all.kind = ISO__MEAN, all.unordered = false;
        ISO_TRY(iso__periodic_make_average(p->routes, x->size, &all, &x->average));
        for (int k = 0; k < p->config.lower_count; k++)
            ISO_TRY(iso__periodic_make_average(p->lower[k], x->size, wire, &x->lower[k]));
    }
    return ISO_OK;
}

static iso_status make_averages(iso__periodic *p) {
    if (p->config.server) p->exchange_count = 0;
    ISO_TRY(make_exchanges(p));
    if (p->config.full.wire != &iso__codec_f32 || p->config.full.chunk)
        ISO_TRY(iso__periodic_make_average(p->routes, iso__periodic_flat(p, 0, p->parameter_count),
                                           &p->config.full, &p->average[ISO__PAYLOAD_FULL]));
    return iso__periodic_set_reference(p);
}

// Gossip and the mean of all ranks take turns on the same routes.
static iso_status make_lower(iso__periodic *p, int k) {
    if (iso__periodic_gossips(p, k)) {
        p->lower[k] = iso__routes_retain(p->routes);
        return ISO_OK;
    }
    return iso__routes_create_groups(p->comm, p->config.lower_ranks[k], &p->config.topology,
                                     p->exchange_count, &p->lower[k]);
}

// Averages use the communicators of the routes, so the engine needs one of its own for the node.
static iso_status make_node(iso__periodic *p) {
    ISO_TRY(iso__comm_create_like(p->comm, iso_comm_mpi(p->layout->node), true, &p->node));
    return iso__comm_place_subset(p->node, p->layout->world);
}

// With ZeRO all nodes have the same number of ranks, so each rank is in a leader group.
static iso_status make_across(iso__periodic *p) {
    const iso_topology *t = p->layout;
    if (p->common_count == p->span_count) return ISO_OK;
    iso_comm *leaders = t->leaders[t->local_rank];
    ISO_TRY(iso__comm_create_like(p->comm, iso_comm_mpi(leaders), true, &p->across));
    return iso__comm_place_subset(p->across, p->layout->world);
}

// Whether means are first summed inside nodes. Not if nodes have different numbers of ranks: the
// smallest would set the share of each rank. Not if exchanges are asynchronous: a replay repeats
// their phases, wherever the ranks are.
static bool adds_in_nodes(const iso__periodic *p) {
    const iso__periodic_config *c = &p->config;
    bool equal, plain = c->wire.kind == ISO__MEAN && c->wire.wire == &iso__codec_f32;
    int nodes = iso__comm_nodes(p->comm, &equal);
    bool several = nodes > 1 && nodes < iso_comm_size(p->comm) && equal;
    return several && plain && !c->wire.unordered && !c->server &&
           c->topology.unit == ISO_SCOPE_RANK;
}

static iso_status make_routes(iso__periodic *p) {
    iso_topology_config topology = p->config.topology;
    if (adds_in_nodes(p)) {
        ISO_TRY(iso_topology_create(p->comm, &topology, &p->ranks));
        topology.unit = ISO_SCOPE_NODE;
    }
    ISO_TRY(iso__routes_create(p->comm, &topology, p->exchange_count, &p->routes));
    p->layout = p->ranks ? p->ranks : iso__routes_layout(p->routes);
    for (int k = 0; k < p->config.lower_count; k++) ISO_TRY(make_lower(p, k));
    // A node may have failed alone.
    ISO_TRY(iso_comm_agree(p->comm, make_node(p)));
    return iso_comm_agree(p->comm, make_across(p));
}

// A rank has only its shards of optimizer state. Ranks in the same place of other nodes have the
// same shards.
static iso_status check_zero(const iso_reducer *r, const iso__periodic_config *c) {
    if (!iso__reducer_shares_updates(r)) return ISO_OK;
    ISO_CHECK(iso__reducer_shares_in_nodes(r), ISO_ERR_UNSUPPORTED,
              "a periodic mode lets nodes train apart, so ZeRO cannot divide updates among all "
              "ranks: set zero_scope to ISO_SCOPE_NODE");
    ISO_CHECK(!iso__reducer_divides_values(r), ISO_ERR_UNSUPPORTED,
              "a periodic mode exchanges whole parameters, which ZeRO stage 3 divides: use stage 1 "
              "or 2");
    ISO_CHECK(c->topology.unit == ISO_SCOPE_NODE && !c->ranks_part, ISO_ERR_UNSUPPORTED,
              "ZeRO divides updates among the ranks of a node, and this periodic mode lets them "
              "train apart: use daso with the unit node and local_skip 1, or no ZeRO");
    ISO_CHECK(c->state != ISO_STATE_SYNC_AVERAGE, ISO_ERR_UNSUPPORTED,
              "with ZeRO a periodic mode does not exchange optimizer state: use another state "
              "than average");
    ISO_CHECK(!c->tournament, ISO_ERR_UNSUPPORTED,
              "a tournament chooses among whole models with their optimizer state, which ZeRO "
              "divides: use no ZeRO with it");
    return ISO_OK;
}

// It exchanges all parameters of its optimizer, and changes over which ranks any are averaged.
static iso_status check_parameters(iso_reducer *r) {
    ISO_CHECK(iso__reducer_appliers(r) == 1, ISO_ERR_UNSUPPORTED,
              "the model has %d optimizers, and a periodic mode would exchange the parameters of "
              "one: use one optimizer with parameter groups",
              iso__reducer_appliers(r));
    for (int i = 0; i < iso_reducer_param_count(r); i++)
        ISO_CHECK(!iso__reducer_param(r, i).local, ISO_ERR_UNSUPPORTED,
                  "parameter \"%s\" is each rank's own (ignore), and a periodic mode would average "
                  "it: use blocking or lazy",
                  iso__reducer_name(r, i));
    return ISO_OK;
}

static iso_status prepare_memory(iso__periodic *p, iso_status owner) {
    ISO_TRY(owner);
    ISO_TRY(check_parameters(iso_data_parallel_reducer(p->data_parallel)));
    ISO_TRY(check_zero(iso_data_parallel_reducer(p->data_parallel), &p->config));
    p->device = p->data_parallel->device;
    ISO_TRY(iso__periodic_memory_open(p));
    const iso__buffer_sync *buffers = iso__data_parallel_buffers(p->data_parallel);
    ISO_TRY(list_spans(p, iso__optimizer_innermost(p->inner), buffers->list));
    return allocate_memory(p);
}

static iso_status make_engine(iso__periodic *p, iso_status owner, const char *settings) {
    p->comm = iso_data_parallel_comm(p->data_parallel);
    // A rank that failed alone, or goes by another plan, would leave the others waiting.
    ISO_TRY(iso_comm_agree(p->comm, prepare_memory(p, owner)));
    ISO_TRY(iso__comm_check_lines(p->comm, &(iso__lines){.settings = settings}));
    p->equal = p->equal_state = p->node_equal = p->node_equal_state = true;
    ISO_TRY(iso__data_parallel_set_scope(p->data_parallel, ISO_SCOPE_WORLD));
    ISO_TRY(make_routes(p));
    ISO_TRY(iso__match_open(p));
    ISO_TRY(make_averages(p));
    iso__data_parallel_set_train_hook(p->data_parallel, iso__periodic_show, p);
    return ISO_OK;
}

iso_status iso__periodic_alloc_owner(iso_module *data_parallel, size_t bytes, void **out) {
    iso_comm *comm = iso_data_parallel_comm(data_parallel);
    return comm ? iso__comm_alloc_zero(comm, bytes, out) : iso__alloc_zero(bytes, out);
}

iso_status iso__periodic_init(iso__periodic *p, iso_optimizer *inner, iso_module *data_parallel,
                              const iso__periodic_config *config, iso_status owner,
                              const char *settings) {
    iso_status status;
    *p = (iso__periodic){.base = p->base, .config = *config};
    ISO_CHECK_GOTO(
        iso__dp_optimizer_module(inner) == data_parallel && data_parallel, ISO_ERR_ARG,
        "a periodic mode needs an optimizer that iso_dp_optimizer_create_take has tied to "
        "the same data_parallel module: this %s optimizer is not",
        inner->ops->name);
    p->inner = inner;
    inner = NULL;
    p->data_parallel = iso_module_retain(data_parallel);
    ISO_TRY_GOTO(make_engine(p, owner, settings));
    return ISO_OK;
fail:
    iso_optimizer_destroy(&inner);
    iso__periodic_destroy(p);
    return status;
}

void iso__periodic_destroy(iso__periodic *p) {
    if (!p->async.apart) p->async.meet = NULL; // the ranks have met: destroy is local
    if (iso__periodic_drop(p) < 0)
        iso__log(ISO_LOG_ERROR, "while dropping an exchange: %s", iso_last_error()->message);
    if (p->data_parallel) iso__data_parallel_set_train_hook(p->data_parallel, NULL, NULL);
    iso_optimizer_destroy(&p->inner);
    for (int i = 0; i < p->exchange_count; i++) {
        iso__average_destroy(&p->exchange[i].average);
        for (int k = 0; k < p->config.lower_count; k++)
            iso__average_destroy(&p->exchange[i].lower[k]);
    }
    for (int i = 0; i < ISO__PAYLOADS; i++) iso__average_destroy(&p->average[i]);
    iso_comm_destroy(&p->across);
    iso_comm_destroy(&p->node);
    iso__routes_destroy(&p->routes);
    iso_topology_destroy(&p->ranks);
    for (int k = 0; k < p->config.lower_count; k++) iso__routes_destroy(&p->lower[k]);
    iso__free(p->exchange);
    iso__free(p->span);
    iso__free(p->mean);
    iso__free(p->steps);
    iso__worker_close(p);
    iso__async_close(p);
    iso__match_close(p);
    float *const pinned[] = {p->first_buffers, p->sent, p->room, p->own};
    for (int i = 0; i < 4; i++)
        if (pinned[i]) iso__pinned_free(p->device, pinned[i]);
    iso__periodic_outer_close(p);
    iso__periodic_memory_close(p);
    iso_module_destroy(&p->data_parallel);
    *p = (iso__periodic){0};
}

// ---- Slots of the owner -----------------------------------------------------------------------------

iso_optimizer *iso__periodic_inner(iso_optimizer *owner) { return iso__periodic_of(owner)->inner; }

// The module then averages over all ranks again, as before.
iso_status iso__periodic_release(iso_optimizer *owner, iso_optimizer **inner) {
    iso__periodic *p = iso__periodic_of(owner);
    ISO_TRY(iso__periodic_finish(p, false));
    ISO_TRY(iso__data_parallel_set_scope(p->data_parallel, ISO_SCOPE_WORLD));
    *inner = p->inner;
    p->inner = NULL;
    return ISO_OK;
}

void iso__periodic_zero_grad(iso_optimizer *owner) {
    iso_optimizer_zero_grad(iso__periodic_of(owner)->inner);
}

iso_status iso__periodic_update(iso_optimizer *owner, int i, const void *gradient, double scale,
                                const iso_hyper *hyper) {
    iso_optimizer *wrapped = iso__periodic_of(owner)->inner;
    return wrapped->ops->update(wrapped, i, gradient, scale, hyper);
}

void iso__periodic_free(iso_optimizer *owner) {
    iso__periodic_destroy(iso__periodic_of(owner));
    iso__free(iso__periodic_of(owner));
}
