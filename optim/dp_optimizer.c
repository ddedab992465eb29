// SPDX-License-Identifier: MIT
// DataParallelOptimizer: an optimizer whose step only freezes the hyperparameters; the reducer
// calls it back for each layer when the next forward reaches that layer.
#include "optim/dp_state.h"
#include "parallel/parallel_impl.h"
#include "parallel/reducer/reducer_calls.h"

typedef struct dp_optimizer {
    iso_optimizer base;
    iso_optimizer *inner; // owned
    iso__base_optimizer *core;
    iso_module *module;  // holds the parameters, e.g. a data_parallel; retained
    iso_reducer *arrays; // the reducer of a module that is no data_parallel
    int id;              // identifies this optimizer among those of the reducer
    int *place;          // [the reducer's parameters]: the index in core
    iso_hyper *now;      // [groups], for step() to hand over
} dp_optimizer;

static dp_optimizer *self_of(iso_optimizer *optimizer) {
    return iso_container_of(optimizer, dp_optimizer, base);
}

// Looks the reducer up each time, because a data_parallel may replace it after a step.
static iso_reducer *reducer_of(const dp_optimizer *self) {
    return self->arrays ? self->arrays : iso_data_parallel_reducer(self->module);
}

static iso_status apply_update(int i, void *gradient, double scale, const void *hyper, void *user) {
    const dp_optimizer *self = user;
    iso__base_optimizer *core = self->core;
    int k = self->place[i];
    const iso_hyper *frozen = (const iso_hyper *)hyper + core->slot[k].group;
    return core->base.ops->update(&core->base, k, gradient, scale, frozen);
}

static iso_status apply_piece(int i, size_t first, size_t count, void *gradient, double scale,
                              const void *hyper, void *user) {
    const dp_optimizer *self = user;
    int k = self->place[i];
    const iso_hyper *frozen = (const iso_hyper *)hyper + self->core->slot[k].group;
    return iso__update_piece(self->core, k, (int64_t)first, (int64_t)count, gradient, scale,
                             frozen);
}

static iso_status measure_piece(int i, size_t first, size_t count, const void *gradient,
                                double scale, const void *hyper, void *user, double square[2]) {
    const dp_optimizer *self = user;
    int k = self->place[i];
    const iso_hyper *frozen = (const iso_hyper *)hyper + self->core->slot[k].group;
    return iso__measure_piece(self->core, k, (int64_t)first, (int64_t)count, gradient, scale,
                              frozen, square);
}

static iso_status finish_piece(int i, size_t first, size_t count, const double square[2],
                               const void *hyper, void *user) {
    const dp_optimizer *self = user;
    int k = self->place[i];
    const iso_hyper *frozen = (const iso_hyper *)hyper + self->core->slot[k].group;
    return iso__finish_piece(self->core, k, (int64_t)first, (int64_t)count, square, frozen);
}

static iso_status collect_pieces(void *user) {
    const dp_optimizer *self = user;
    iso_device *device = self->core->module->device;
    return device->ops->remote ? device->ops->remote->collect(device) : ISO_OK;
}

static iso_status step_dp(iso_optimizer *optimizer) {
    dp_optimizer *self = self_of(optimizer);
    long long before = iso__reducer_steps(reducer_of(self));
    iso__count_step(self->core);
    for (int g = 0; g < self->core->groups; g++) self->now[g] = *iso__group_hyper(self->core, g);
    iso_status status = iso_reducer_step_of(reducer_of(self), self->id, self->now);
    bool refused = iso__reducer_steps(reducer_of(self)) == before; // it does not count
    if (refused) iso__uncount_step(self->core);
    ISO_TRY(status);
    if (!iso__reducer_shares_updates(reducer_of(self))) return ISO_OK;
    iso_module_zero_grad(self->module); // new values take the place of gradients
    iso_reducer_zero_grad(reducer_of(self));
    return ISO_OK;
}

static void zero_grad(iso_optimizer *optimizer) {
    dp_optimizer *self = self_of(optimizer);
    iso_optimizer_zero_grad(self->inner);
    iso__reducer_zero_grad_of(reducer_of(self), self->id);
}

static iso_status update_parameter(iso_optimizer *optimizer, int i, const void *gradient,
                                   double scale, const iso_hyper *hyper) {
    dp_optimizer *self = self_of(optimizer);
    return self->inner->ops->update(self->inner, i, gradient, scale, hyper);
}

static void destroy_dp(iso_optimizer *optimizer) {
    dp_optimizer *self = self_of(optimizer);
    iso_error before = *iso_last_error();
    // Completes what is pending while there is still someone to apply it.
    if (iso_reducer_remove_apply(reducer_of(self), self->id) < 0)
        iso__log_new_error(&before, "while completing pending updates");
    iso_optimizer_destroy(&self->inner);
    iso_module_destroy(&self->module);
    iso__free(self->place);
    iso__free(self->now);
    iso__free(self);
}

// An optimizer that was created from the data_parallel keeps the module inside it instead.
static void leave_wrapper(iso__base_optimizer *core) {
    iso_module *inside = iso_data_parallel_module(core->module);
    core->tied = false;
    if (!inside) return;
    iso_module *wrapper = core->module;
    core->module = iso_module_retain(inside);
    iso_module_destroy(&wrapper);
}

static iso_optimizer *inner_of(iso_optimizer *optimizer) { return self_of(optimizer)->inner; }

static const iso_optimizer_ops dp_optimizer_ops = {
    .name = "data_parallel",
    .step = step_dp,
    .zero_grad = zero_grad,
    .update = update_parameter,
    .destroy = destroy_dp,
    .inner = inner_of,
};

iso_module *iso__dp_optimizer_module(const iso_optimizer *optimizer) {
    if (optimizer->ops != &dp_optimizer_ops) return NULL;
    return iso_container_of(optimizer, dp_optimizer, base)->module;
}

static iso_status check_release(const dp_optimizer *self) {
    ISO_CHECK(!iso__reducer_shares_updates(reducer_of(self)), ISO_ERR_UNSUPPORTED,
              "with ZeRO each rank has a share of the optimizer state: move it by a state dict");
    ISO_CHECK(iso_data_parallel_module(self->module), ISO_ERR_ARG,
              "the optimizer is tied to a reducer of arrays, not to a DataParallel");
    ISO_CHECK(!iso__reducer_in_backward(reducer_of(self)), ISO_ERR_STATE,
              "an optimizer cannot be released inside a backward, whose gradients are on their "
              "way: call it after iso_data_parallel_end_backward");
    return ISO_OK;
}

// Periodic modes that wrap it end first.
static iso_status leave_modes(iso_optimizer **tied) {
    while ((*tied)->ops->release) {
        iso_optimizer *inner;
        ISO_TRY((*tied)->ops->release(*tied, &inner));
        iso_optimizer_destroy(tied);
        *tied = inner;
    }
    return ISO_OK;
}

iso_status iso_dp_optimizer_release(iso_optimizer **tied, iso_optimizer **out) {
    iso_optimizer *within = *tied;
    while (within->ops->release) within = within->ops->inner(within);
    ISO_CHECK(within->ops == &dp_optimizer_ops, ISO_ERR_ARG,
              "a %s optimizer is not tied to a DataParallel: release the one that "
              "iso_dp_optimizer_create_take made",
              within->ops->name);
    dp_optimizer *self = self_of(within);
    ISO_TRY(check_release(self));
    ISO_TRY(leave_modes(tied));
    ISO_TRY(iso_data_parallel_finish(self->module));
    *out = self->inner;
    self->inner = NULL;
    leave_wrapper(self->core);
    iso_optimizer_destroy(tied);
    return ISO_OK;
}

// An optimizer that was created before its module was wrapped lists the parameters in the order of
// this rank. Saving and gathering follow the order of all ranks.
static int by_place(const void *a, const void *b) {
    const iso__slot *x = a, *y = b;
    int64_t place[2] = {x->parameter->place, y->parameter->place};
    if (place[0] != place[1]) return place[0] < place[1] ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset); // their order so far
}

static void order_slots(iso__base_optimizer *core) {
    qsort(core->slot, (size_t)core->count, sizeof(*core->slot), by_place);
}

// Where each parameter of the optimizer stands in the reducer, and the other way round.
static iso_status find_parameters(dp_optimizer *self, const iso__tie *tie, int *mine) {
    int count = tie->count;
    ISO_TRY(iso__alloc_zero((size_t)count * sizeof(int), (void **)&self->place));
    for (int k = 0; k < self->core->count; k++) {
        const iso_parameter *p = self->core->slot[k].parameter;
        int i = p->complete_index;
        ISO_CHECK(i < count && tie->parameter[i] == p, ISO_ERR_ARG,
                  "the optimizer updates \"%s\", which data_parallel does not exchange: create "
                  "both from the same module, and freeze parameters first",
                  self->core->slot[k].name);
        self->place[i] = k;
        mine[k] = i;
    }
    return ISO_OK;
}

// With ZeRO this rank keeps the state of what it updates.
static iso_status share_state(dp_optimizer *self, const int *mine) {
    const iso__rule *rule = iso__rule_of(self->core);
    if (!iso__reducer_shares_updates(reducer_of(self))) return ISO_OK;
    ISO_CHECK(!rule->whole || rule->measure, ISO_ERR_UNSUPPORTED,
              "%s updates whole parameters, and ZeRO cuts them: use another optimizer, or no ZeRO",
              rule->ops.name);
    return iso__dp_state_create(self->core, reducer_of(self), mine);
}

// Registers how this optimizer updates a part of a parameter. A rule that needs the whole parameter
// can do so only with ZeRO, in two halves.
static iso_status set_pieces(const dp_optimizer *self) {
    static const iso__reducer_halves halves = {measure_piece, finish_piece, collect_pieces};
    if (!iso__rule_of(self->core)->whole)
        return iso_reducer_set_apply_piece(reducer_of(self), self->id, apply_piece);
    if (!iso__reducer_shares_updates(reducer_of(self))) return ISO_OK;
    return iso__reducer_set_halves(reducer_of(self), self->id, &halves);
}

static iso_status tie_parameters(dp_optimizer *self, const iso__tie *tie) {
    size_t bytes = (size_t)self->core->groups * sizeof(iso_hyper);
    int *mine = NULL;
    ISO_CHECK(self->core->count > 0, ISO_ERR_ARG, "the optimizer has nothing to update");
    ISO_TRY(iso__alloc(bytes, (void **)&self->now));
    ISO_TRY(iso__alloc((size_t)self->core->count * sizeof(int), (void **)&mine));
    order_slots(self->core);
    iso_status status = find_parameters(self, tie, mine);
    if (status == ISO_OK) status = share_state(self, mine);
    if (status == ISO_OK)
        status = iso_reducer_add_apply(reducer_of(self), mine, self->core->count, apply_update,
                                       bytes, self, &self->id);
    if (status == ISO_OK) status = set_pieces(self);
    iso__free(mine);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__optimizer_tie_take(iso_optimizer *wrapped, const iso__tie *tie,
                                   iso_optimizer **out) {
    iso_status status;
    dp_optimizer *self = NULL;
    iso__base_optimizer *core = iso__optimizer_innermost(wrapped);
    bool of_arrays = !iso_data_parallel_reducer(tie->module);
    ISO_CHECK_GOTO(core, ISO_ERR_ARG,
                   "a %s optimizer cannot update layer by layer: use one of iso_optimizer_create",
                   wrapped->ops->name);
    ISO_TRY_GOTO(iso__alloc_zero(sizeof(*self), (void **)&self));
    *self = (dp_optimizer){.base = {.ops = &dp_optimizer_ops},
                           .inner = wrapped,
                           .core = core,
                           .module = tie->module,
                           .arrays = of_arrays ? tie->reducer : NULL};
    ISO_TRY_GOTO(tie_parameters(self, tie));
    core->tied = true;
    iso_module_retain(self->module);
    *out = &self->base;
    return ISO_OK;
fail:
    iso_optimizer_destroy(&wrapped);
    if (self) {
        iso__free(self->place);
        iso__free(self->now);
    }
    iso__free(self);
    *out = NULL; // often the caller's pointer to the optimizer that is gone
    return status;
}

iso_status iso_dp_optimizer_create_take(iso_optimizer *wrapped, iso_module *data_parallel,
                                        iso_optimizer **out) {
    iso_status status;
    iso__tie tie = {.module = data_parallel, .reducer = iso_data_parallel_reducer(data_parallel)};
    ISO_CHECK_GOTO(tie.reducer, ISO_ERR_ARG,
                   "the optimizer can only be tied to a DataParallel module, not to %s: apply all "
                   "other wrappers before DataParallel",
                   data_parallel->ops->type);
    tie.count = iso__data_parallel_trainable(data_parallel, &tie.parameter);
    return iso__optimizer_tie_take(wrapped, &tie, out);
fail:
    iso_optimizer_destroy(&wrapped);
    *out = NULL;
    return status;
}
