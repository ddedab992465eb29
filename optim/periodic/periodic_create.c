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

static void add_span(iso__periodic *p, const iso_tensor *tensor) {
    p->span[p->span_count++] = (iso__span){.data = tensor->data, .count = (size_t)tensor->count};
    p->elements += (size_t)tensor->count;
}

// Floating-point buffers: a count is the same everywhere.
static iso_status list_buffers(iso__periodic *p, const iso_buffer_list *buffers) {
    for (int i = 0; i < buffers->count; i++) {
        const iso_tensor *value = buffers->item[i]->value;
        if (value->dtype == ISO_I64) continue;
        ISO_CHECK(value->dtype == ISO_F32, ISO_ERR_UNSUPPORTED,
                  "buffer \"%s\" is %s: the periodic modes exchange f32 buffers only",
                  buffers->name[i], iso_dtype_name(value->dtype));
        add_span(p, value);
        p->buffer_count++;
    }
    p->buffer_elements = p->elements - p->parameter_elements;
    if (p->buffer_count == 0) return ISO_OK;
    size_t bytes = p->buffer_elements * sizeof(float);
    ISO_TRY(iso__pinned_alloc(p->device, bytes, (void **)&p->first_buffers));
    return iso__periodic_fetch(p, p->parameter_count, p->span_count, p->first_buffers);
}

static iso_status list_spans(iso__periodic *p, const iso__base_optimizer *core,
                             const iso_buffer_list *buffers) {
    int most = core->count + buffers->count + ISO_OPTIMIZER_STATES;
    ISO_TRY(iso__alloc_zero((size_t)most * sizeof(*p->span), (void **)&p->span));
    for (int i = 0; i < core->count; i++) {
        const iso_tensor *value = core->slot[i].parameter->value;
        ISO_CHECK(value->dtype == ISO_F32, ISO_ERR_UNSUPPORTED,
                  "parameter \"%s\" is %s: the periodic modes exchange f32 parameters only",
                  core->slot[i].name, iso_dtype_name(value->dtype));
        add_span(p, value);
    }
    p->parameter_count = p->span_count;
    p->parameter_elements = p->elements;
    ISO_TRY(list_buffers(p, buffers));
    for (int k = 0; k < ISO_OPTIMIZER_STATES; k++)
        if (core->state[k]) add_span(p, core->state[k]);
    return ISO_OK;
}

static iso_status allocate_exchanges(iso__periodic *p) {
    int count = p->config.exchanges > 1 ? p->config.exchanges : 1;
    ISO_CHECK(count == 1 || p->config.state == ISO_STATE_SYNC_KEEP, ISO_ERR_UNSUPPORTED,
              "with %d exchanges, optimizer state cannot be averaged or reset", count);
    ISO_CHECK(count <= p->parameter_count, ISO_ERR_ARG,
              "%d parameter%s cannot be divided among %d exchanges", p->parameter_count,
              ISO_PLURAL(p->parameter_count), count);
    size_t bytes = (size_t)count * sizeof(*p->exchange);
    ISO_TRY(iso__alloc_zero(bytes, (void **)&p->exchange));
    p->exchange_count = count;
    return ISO_OK;
}

static iso_status allocate_memory(iso__periodic *p) {
    ISO_TRY(allocate_exchanges(p));
    size_t elements = iso__periodic_elements(p, ISO__PAYLOAD_WIRE);
    if (elements < p->buffer_elements) elements = p->buffer_elements; // a mean is made there
    size_t bytes = elements * sizeof(float);
    ISO_TRY(iso__pinned_alloc(p->device, bytes, (void **)&p->sent));
    memset(p->sent, 0, bytes);
    ISO_TRY(iso__pinned_alloc(p->device, bytes, (void **)&p->room));
    memset(p->room, 0, bytes);
    if (!iso__reducer_negotiates(iso_data_parallel_reducer(p->data_parallel))) return ISO_OK;
    size_t steps = (size_t)p->parameter_count * sizeof(*p->steps);
    return iso__alloc_zero(steps, (void **)&p->steps);
}

// Consecutive spans of nearly `share` elements, and of what is left at last.
static void choose_spans(const iso__periodic *p, iso__periodic_exchange *x, size_t share, int end,
                         bool last) {
    while (x->last < end &&
           (last || x->elements == 0 || x->elements + p->span[x->last].count / 2 < share))
        x->elements += p->span[x->last++].count;
}

static iso_status make_exchanges(iso__periodic *p) {
    size_t all = iso__periodic_elements(p, ISO__PAYLOAD_WIRE), offset = 0;
    int first = 0, end = iso__periodic_spans(p, all);
    for (int i = 0; i < p->exchange_count; i++) {
        int left = p->exchange_count - i;
        iso__periodic_exchange *x = &p->exchange[i];
        *x = (iso__periodic_exchange){.first = first, .last = first, .offset = offset};
        choose_spans(p, x, (all - offset) / (size_t)left, end - left + 1, left == 1);
        ISO_TRY(iso__average_create(p->routes, x->elements, &p->config.wire, &x->average));
        first = x->last;
        offset += x->elements;
    }
    return ISO_OK;
}

static iso_status make_averages(iso__periodic *p) {
    ISO_TRY(make_exchanges(p));
    if (p->config.full.wire != &iso__codec_f32 || p->config.full.chunk)
        ISO_TRY(iso__average_create(p->routes, p->parameter_elements, &p->config.full,
                                    &p->average[ISO__PAYLOAD_FULL]));
    return iso__periodic_set_reference(p);
}

// Averages have the routes for themselves, so the engine has a node of its own.
static iso_status make_routes(iso__periodic *p) {
    ISO_TRY(iso__routes_create(p->comm, &p->config.topology, p->exchange_count, &p->routes));
    p->layout = iso__routes_layout(p->routes);
    ISO_TRY(iso__comm_create_like(p->comm, iso_comm_mpi(p->layout->node), true, &p->node));
    return iso__comm_place_subset(p->node, p->layout->world);
}

static iso_status prepare_memory(iso__periodic *p, iso_status owner) {
    iso_buffer_list buffers;
    ISO_TRY(owner);
    p->device = p->data_parallel->device;
    ISO_TRY(iso__periodic_memory_open(p));
    ISO_TRY(iso_module_buffers(p->data_parallel, &buffers));
    iso_status status = list_spans(p, iso__optimizer_innermost(p->inner), &buffers);
    iso_buffer_list_destroy(&buffers);
    ISO_TRY(status);
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
    ISO_TRY(make_averages(p));
    iso__data_parallel_set_train_hook(p->data_parallel, iso__periodic_show, p);
    return ISO_OK;
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
    ISO_CHECK_GOTO(
        !iso__reducer_shares_updates(iso_data_parallel_reducer(data_parallel)), ISO_ERR_UNSUPPORTED,
        "a periodic mode needs the whole optimizer state on every rank: use no ZeRO with it");
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
    if (iso__periodic_drop(p) < 0)
        iso__log(ISO_LOG_ERROR, "while dropping an exchange: %s", iso_last_error()->message);
    if (p->data_parallel) iso__data_parallel_set_train_hook(p->data_parallel, NULL, NULL);
    iso_optimizer_destroy(&p->inner);
    for (int i = 0; i < p->exchange_count; i++) iso__average_destroy(&p->exchange[i].average);
    for (int i = 0; i < ISO__PAYLOADS; i++) iso__average_destroy(&p->average[i]);
    iso_comm_destroy(&p->node);
    iso__routes_destroy(&p->routes);
    iso__free(p->exchange);
    iso__free(p->span);
    iso__free(p->mean);
    iso__free(p->steps);
    float *const pinned[] = {p->first_buffers, p->sent, p->room, p->own};
    for (int i = 0; i < 4; i++)
        if (pinned[i]) iso__pinned_free(p->device, pinned[i]);
    iso__periodic_memory_close(p);
    iso_module_destroy(&p->data_parallel);
    *p = (iso__periodic){0};
}

// ---- Slots of the owner -----------------------------------------------------------------------------

iso_optimizer *iso__periodic_inner(iso_optimizer *owner) { return iso__periodic_of(owner)->inner; }

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
