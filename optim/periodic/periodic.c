// The engine of periodic synchronisation: carries out plans on the parameters of a data_parallel
// module and its optimizer.
#include "optim/periodic/periodic.h"

#include "comm/traffic.h"

#include "parallel/parallel_impl.h"
#include "parallel/match.h"
#include "parallel/reducer_calls.h"

#include <isotherm/trace.h>
#include <math.h>
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

static iso_status allocate_memory(iso__periodic *p) {
    size_t elements = iso__periodic_carried(p, ISO__CARRY_WIRE);
    if (elements < p->buffer_elements) elements = p->buffer_elements; // a mean is made there
    size_t bytes = elements * sizeof(float);
    ISO_TRY(iso__pinned_alloc(p->device, bytes, (void **)&p->sent));
    memset(p->sent, 0, bytes);
    ISO_TRY(iso__pinned_alloc(p->device, bytes, (void **)&p->queued_sent));
    memset(p->queued_sent, 0, bytes);
    if (!iso__reducer_negotiates(iso_data_parallel_reducer(p->data_parallel))) return ISO_OK;
    size_t steps = (size_t)p->parameter_count * sizeof(*p->steps);
    return iso__alloc_zero(steps, (void **)&p->steps);
}

// All ranks hold the same parameters: what travels from here on are differences to them.
static iso_status set_reference(iso__periodic *p) {
    iso__average *wire = p->average[ISO__CARRY_WIRE];
    ISO_TRY(iso__periodic_pack(p, iso__periodic_carried(p, ISO__CARRY_WIRE), p->queued_sent));
    ISO_TRY(iso__average_set_reference(wire, p->queued_sent));
    return ISO_OK;
}

static iso_status make_averages(iso__periodic *p) {
    ISO_TRY(iso__average_create(p->topology, iso__periodic_carried(p, ISO__CARRY_WIRE),
                                &p->config.wire, &p->average[ISO__CARRY_WIRE]));
    if (p->config.full.wire != ISO_F32 || p->config.full.chunk)
        ISO_TRY(iso__average_create(p->topology, p->parameter_elements, &p->config.full,
                                    &p->average[ISO__CARRY_FULL]));
    return set_reference(p);
}

// Averages post collectives whenever they are polled, so what the program and the engine do on
// other communicators must not come between them.
static iso_status make_topology(iso__periodic *p) {
    iso_comm *own;
    iso_comm_config same = {.progress = iso_comm_progress(p->comm),
                            .timeout_s = p->comm->timeout_s};
    ISO_TRY(iso_comm_create(iso_comm_mpi(p->comm), &same, &own));
    iso_status status = iso_topology_create(own, &p->config.topology, &p->topology);
    iso_comm_destroy(&own);
    ISO_TRY(status);
    ISO_TRY(iso_comm_create(iso_comm_mpi(p->topology->node), &same, &p->node));
    return iso__comm_place_part(p->node, p->topology->world);
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
    ISO_TRY(iso__match(p->comm, NULL, 0, settings, 0));
    p->equal = p->equal_state = p->node_equal = p->node_equal_state = true;
    ISO_TRY(iso__data_parallel_set_scope(p->data_parallel, ISO_SCOPE_WORLD));
    ISO_TRY(make_topology(p));
    ISO_TRY(make_averages(p));
    iso__data_parallel_set_train_hook(p->data_parallel, iso__periodic_show, p);
    return ISO_OK;
}

iso_status iso__periodic_init(iso__periodic *p, iso_optimizer *inner, iso_module *data_parallel,
                              const iso__periodic_config *config, iso_status owner,
                              const char *settings) {
    iso_status status;
    *p = (iso__periodic){.base = p->base, .config = *config};
    ISO_CHECK_GOTO(iso__dp_optimizer_module(inner) == data_parallel && data_parallel, ISO_ERR_ARG,
                   "a periodic optimizer wraps the optimizer of iso_dp_optimizer_create_take and "
                   "its data_parallel module, not a %s optimizer",
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
    if (p->pending && iso__periodic_drop(p) < 0)
        iso__log(ISO_LOG_ERROR, "while dropping an exchange: %s", iso_last_error()->message);
    if (p->data_parallel) iso__data_parallel_set_train_hook(p->data_parallel, NULL, NULL);
    iso_optimizer_destroy(&p->inner);
    for (int i = 0; i < ISO__CARRIERS; i++) iso__average_destroy(&p->average[i]);
    iso_comm_destroy(&p->node);
    iso_topology_destroy(&p->topology);
    iso__free(p->span);
    iso__free(p->mean);
    iso__free(p->steps);
    float *const pinned[] = {p->first_buffers, p->sent, p->queued_sent, p->own};
    for (int i = 0; i < 4; i++)
        if (pinned[i]) iso__pinned_free(p->device, pinned[i]);
    iso__periodic_memory_close(p);
    iso_module_destroy(&p->data_parallel);
    *p = (iso__periodic){0};
}

// ---- Slots of the owner -----------------------------------------------------------------------------

static iso__periodic *engine_of(iso_optimizer *owner) {
    return iso_container_of(owner, iso__periodic, base);
}

iso_optimizer *iso__periodic_inner(iso_optimizer *owner) { return engine_of(owner)->inner; }

void iso__periodic_zero_grad(iso_optimizer *owner) {
    iso_optimizer_zero_grad(engine_of(owner)->inner);
}

iso_status iso__periodic_update(iso_optimizer *owner, int i, const void *gradient, double scale,
                                const iso_hyper *hyper) {
    iso_optimizer *wrapped = engine_of(owner)->inner;
    return wrapped->ops->update(wrapped, i, gradient, scale, hyper);
}

void iso__periodic_free(iso_optimizer *owner) {
    iso__periodic_destroy(engine_of(owner));
    iso__free(engine_of(owner));
}

// ---- The exchange under way -----------------------------------------------------------------------

static iso_status start_exchange(iso__periodic *p, iso__carrier carrier, int group) {
    if (!p->average[carrier]) carrier = ISO__CARRY_EXACT; // a full average that nothing shortens
    iso__average *average;
    ISO_TRY(iso__periodic_carrier(p, carrier, &average));
    double count = (double)p->step_ms_count;
    double figures[ISO__FIGURES] = {[ISO__STEP_MS] = count > 0 ? p->step_ms_sum / count : 0,
                                    [ISO__WAIT_MS] = p->last_wait_ms,
                                    [ISO__DIVERGENCE] = p->own_divergence};
    p->step_ms_sum = 0;
    p->step_ms_count = 0;
    ISO_TRY(iso__average_start(average, p->sent, group, figures));
    p->pending = true;
    p->held = false;
    p->carrier = carrier;
    return ISO_OK;
}

// The parameters of now. While an earlier exchange is under way they wait until it is merged.
static iso_status send_parameters(iso__periodic *p, iso__carrier carrier, int group) {
    p->queued = p->pending;
    p->queued_carrier = carrier;
    p->queued_group = group;
    bool state = iso__periodic_carried(p, carrier) > p->parameter_elements;
    if (state) ISO_TRY(iso__periodic_mean_buffers(p, p->node));
    ISO_TRY(iso__periodic_pack(p, iso__periodic_carried(p, carrier),
                               p->queued ? p->queued_sent : p->sent));
    return p->queued ? ISO_OK : start_exchange(p, carrier, group);
}

static iso_status send_queued(iso__periodic *p) {
    if (!p->queued) return ISO_OK;
    float *sent = p->sent;
    p->sent = p->queued_sent;
    p->queued_sent = sent;
    p->queued = false;
    return start_exchange(p, p->queued_carrier, p->queued_group);
}

// *mean is NULL on ranks that take no part.
static iso_status collect_mean(iso__periodic *p, const float **mean) {
    ISO_CHECK(p->pending, ISO_ERR_STATE, "there is no exchange to merge");
    *mean = p->member ? p->mean : NULL;
    bool held = p->held; // it was waited for already, and that was counted
    p->pending = p->held = false;
    if (held) return ISO_OK;
    int64_t began = iso_now();
    iso_status status = iso__average_finish(p->average[p->carrier], mean, p->figures);
    p->last_wait_ms = (double)(iso_now() - began) * 1e-6;
    p->stats.wait_ms += p->last_wait_ms;
    ISO_TRY(status);
    iso_trace_span(ISO_LANE_WAIT, "global sync", began, iso_now());
    return ISO_OK;
}

iso_status iso__periodic_hold(iso__periodic *p) {
    if (!p->pending || p->held) return ISO_OK;
    const float *mean;
    size_t bytes = iso__periodic_carried(p, ISO__CARRY_WIRE) * sizeof(float);
    if (!p->mean) ISO_TRY(iso__alloc_zero(bytes, (void **)&p->mean));
    p->last_step_ns = 0; // this wait is not part of a step
    iso_status status = collect_mean(p, &mean);
    p->dropped = status < 0;
    ISO_TRY(status);
    p->member = mean != NULL;
    if (mean) memcpy(p->mean, mean, iso__periodic_carried(p, p->carrier) * sizeof(float));
    p->pending = p->held = true;
    return ISO_OK;
}

iso_status iso__periodic_drop(iso__periodic *p) {
    const float *mean;
    p->queued = p->dropped = false;
    if (p->pending) ISO_TRY(collect_mean(p, &mean));
    return ISO_OK;
}

// ---- Actions --------------------------------------------------------------------------------------

static iso_status reset_state(iso__periodic *p) {
    if (p->config.state != ISO_STATE_RESET) return ISO_OK;
    int buffers_end = p->parameter_count + p->buffer_count;
    if (p->buffer_count > 0)
        ISO_TRY(iso__periodic_put(p, p->parameter_count, buffers_end, p->first_buffers));
    ISO_TRY(iso__periodic_clear(p, buffers_end, p->span_count));
    if (p->steps) return ISO_OK; // which were not reset
    p->equal_state = p->node_equal_state = true;
    return ISO_OK;
}

static iso_status merge_mean(iso__periodic *p, const iso__action *action, const float *mean) {
    double distance = 0, norm = 0, ignored = 0;
    iso__merge_args args = {p->sent, mean, p->topology->nodes, action->weight};
    if (p->config.merge == ISO_MERGE_PROGRESS) args.age = action->age;
    int last = iso__periodic_spans(p, iso__periodic_carried(p, p->carrier));
    ISO_TRY(iso__periodic_map(p, last));
    for (int i = 0; i < last; i++) {
        bool state = i >= p->parameter_count;
        iso__merge(state ? ISO_MERGE_HEAT : p->config.merge, p->span[i].count, p->span[i].host,
                   &args, state ? &ignored : &distance, state ? &ignored : &norm);
        args.sent += p->span[i].count;
        args.mean += p->span[i].count;
    }
    ISO_TRY(iso__periodic_unmap(p, last));
    p->own_divergence = norm > 0 ? sqrt(distance / norm) : 0;
    return reset_state(p);
}

// waited: what all waits took when the sync began.
static void count_sync(iso__periodic *p, int64_t age, int64_t began, double waited) {
    p->stats.syncs++;
    p->stats.last_age = age;
    p->stats.last_wait_ms = p->last_wait_ms;
    p->stats.work_ms += (double)(iso_now() - began) * 1e-6 - (p->stats.wait_ms - waited);
}

// Of one that failed in iso__periodic_hold, which told of it, there is nothing to merge.
static iso_status merge_exchange(iso__periodic *p, const iso__action *action) {
    const float *mean;
    if (p->dropped) {
        p->dropped = false;
        return send_queued(p);
    }
    int64_t began = iso_now();
    double waited = p->stats.wait_ms;
    ISO_TRY(collect_mean(p, &mean));
    if (mean) ISO_TRY(merge_mean(p, action, mean));
    ISO_TRY(send_queued(p));
    count_sync(p, action->age, began, waited);
    return ISO_OK;
}

static void measure_divergence(iso__periodic *p, const float *mean) {
    double distance = 0, norm = 0;
    iso__merge_args args = {.sent = p->sent, .mean = mean};
    iso__merge_measure(p->parameter_elements, &args, &distance, &norm);
    p->own_divergence = norm > 0 ? sqrt(distance / norm) : 0;
}

static iso_status average_fully(iso__periodic *p, const iso__action *action, bool sent) {
    const float *mean;
    int64_t began = iso_now();
    double waited = p->stats.wait_ms;
    iso__carrier carrier = action->state ? ISO__CARRY_STATE : ISO__CARRY_EXACT;
    if (sent) {
        carrier = p->carrier;
        ISO_TRY(collect_mean(p, &mean));
    } else {
        ISO_TRY(iso__periodic_exact_mean(p, carrier, &mean));
        p->last_wait_ms = (double)(iso_now() - began) * 1e-6;
        p->stats.wait_ms += p->last_wait_ms;
    }
    if (mean) ISO_TRY(iso__periodic_unpack(p, iso__periodic_carried(p, carrier), mean));
    if (mean && sent) measure_divergence(p, mean);
    if (action->state)
        ISO_TRY(iso__periodic_agree_on_steps(p, p->comm));
    else
        ISO_TRY(reset_state(p));
    // Of a group that takes its turn the other ranks of a node know nothing yet.
    p->equal = !sent || action->group == ISO__ALL_GROUPS || p->topology->largest == 1;
    p->node_equal = p->node_equal || p->equal;
    p->equal_state = p->equal_state || action->state;
    p->node_equal_state = p->node_equal_state || action->state;
    count_sync(p, 0, began, waited);
    return ISO_OK;
}

static iso_status carry_out(iso__periodic *p, const iso__action *action, iso__carrier carrier,
                            bool *sent) {
    switch (action->kind) {
    case ISO__SEND: *sent = true; return send_parameters(p, carrier, action->group);
    case ISO__MERGE: return merge_exchange(p, action);
    case ISO__FULL: return average_fully(p, action, *sent);
    case ISO__NODE_AVERAGE: return iso__periodic_node_average(p);
    case ISO__NODE_COPY: return iso__periodic_node_copy(p, action->group);
    case ISO__MEASURE: break; // the owner's
    }
    return ISO_OK;
}

iso_status iso__periodic_run(iso__periodic *p, const iso__sync_plan *plan, iso__carrier carrier) {
    bool sent = false;
    // Merging needs the parameters of now, with the update of this step.
    if (plan->count > 0) ISO_TRY(iso_data_parallel_finish(p->data_parallel));
    for (int i = 0; i < plan->count; i++) ISO_TRY(carry_out(p, &plan->action[i], carrier, &sent));
    if (p->pending && !p->held) ISO_TRY(iso__average_poll(p->average[p->carrier]));
    ISO_TRY(iso__periodic_set_scope(p, plan->next));
    p->last_step_ns = iso_now();
    return ISO_OK;
}

iso_status iso__periodic_set_scope(iso__periodic *p, iso_scope scope) {
    if (scope == ISO_SCOPE_NODE && p->config.topology.unit == ISO_SCOPE_RANK)
        scope = ISO_SCOPE_RANK;
    if (scope == p->scope) return ISO_OK;
    ISO_TRY(iso__data_parallel_set_scope(p->data_parallel, scope));
    if (p->scope == ISO_SCOPE_WORLD && p->equal) ISO_TRY(set_reference(p));
    p->scope = scope;
    return ISO_OK;
}

// ---- Steps ----------------------------------------------------------------------------------------

static void measure_step(iso__periodic *p, int64_t now) {
    iso_reducer_stats reducer;
    iso_reducer_get_stats(iso_data_parallel_reducer(p->data_parallel), &reducer);
    double waited = reducer.wait_ms - p->reducer_wait_ms;
    p->reducer_wait_ms = reducer.wait_ms;
    if (p->last_step_ns == 0) return;
    p->step_ms_sum += (double)(now - p->last_step_ns) * 1e-6 - waited;
    p->step_ms_count++;
}

// Parameters stay equal where they are updated by the same gradients and from the same state.
static void note_update(iso__periodic *p) {
    bool alone = p->scope == ISO_SCOPE_RANK && iso_comm_size(p->node) > 1;
    p->equal_state = p->equal_state && p->scope == ISO_SCOPE_WORLD;
    p->equal = p->equal && p->equal_state;
    p->node_equal_state = p->node_equal_state && !alone;
    p->node_equal = p->node_equal && p->node_equal_state;
}

iso_status iso__periodic_check_training(const iso__periodic *p) {
    ISO_CHECK(!p->shown, ISO_ERR_STATE,
              "step() in evaluation mode, where parameters are the mean of all ranks: call "
              "iso_module_train(model, true) before the forward");
    return ISO_OK;
}

iso_status iso__periodic_step(iso__periodic *p) {
    ISO_TRY(iso__periodic_check_training(p));
    ISO_TRY(iso_optimizer_step(p->inner));
    note_update(p);
    p->stats.steps++;
    measure_step(p, iso_now());
    return ISO_OK;
}

iso_status iso__periodic_measure(iso__periodic *p, double *exchange_ms, double *step_ms) {
    double step = p->step_ms_count > 0 ? p->step_ms_sum / (double)p->step_ms_count : 0;
    ISO_TRY(iso_data_parallel_finish(p->data_parallel));
    ISO_TRY(iso__average_measure(p->average[ISO__CARRY_WIRE], 3, exchange_ms));
    ISO_TRY(iso_comm_allreduce_f64(p->comm, &step, 1, ISO_MAX));
    *step_ms = step;
    p->figures[ISO__EXCHANGE_MS] = *exchange_ms;
    p->figures[ISO__STEP_MS] = step;
    return ISO_OK;
}

iso_status iso__periodic_mean_number(iso__periodic *p, double *value) {
    ISO_TRY(iso_comm_allreduce_f64(p->comm, value, 1, ISO_SUM));
    *value /= iso_comm_size(p->comm);
    return ISO_OK;
}

iso_status iso__periodic_finish(iso__periodic *p, bool state) {
    iso__action exact = {.kind = ISO__FULL, .group = ISO__ALL_GROUPS, .state = state};
    ISO_TRY(iso_data_parallel_finish(p->data_parallel));
    ISO_TRY(iso__periodic_show(true, p));
    ISO_TRY(iso__periodic_drop(p));
    if (!state) ISO_TRY(iso__periodic_mean_buffers(p, p->comm));
    if (p->equal && !state) return ISO_OK;
    return average_fully(p, &exact, false);
}

void iso__periodic_stats(const iso__periodic *p, iso_daso_stats *out) {
    *out = p->stats;
    out->pending = p->pending;
    out->exchange_ms = p->figures[ISO__EXCHANGE_MS];
    out->step_ms = p->figures[ISO__STEP_MS];
    out->divergence = p->figures[ISO__DIVERGENCE];
    for (int i = 0; i < ISO__CARRIERS; i++) {
        iso__average_stats average;
        if (!p->average[i]) continue;
        iso__average_get_stats(p->average[i], &average);
        out->bytes_sent += average.bytes_sent;
        out->bytes_between_nodes += average.bytes_between_nodes;
        out->work_ms += i == ISO__CARRY_WIRE ? average.work_ms : 0;
    }
}
