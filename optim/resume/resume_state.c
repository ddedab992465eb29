// SPDX-License-Identifier: MIT
// Lists the state of a module and an optimizer from which a run continues with the same bits.
#include "optim/resume/resume_impl.h"

#include "comm/comm_calls.h"
#include "nn/nn_impl.h"
#include "optim/dp_state.h"
#include "optim/optim_impl.h"
#include "parallel/parallel_impl.h"
#include "parallel/reducer/reducer_calls.h"

#include <inttypes.h>
#include <string.h>

// ---- Random layers ------------------------------------------------------------------------------
// Masks depend on how often a module ran and on the key of a dropout. Ranks that do not use the
// same layers in every step count differently, so the numbers of all ranks are kept.

// Of every module once, in the order of the walk.
static iso_status collect_places(iso_state *self, iso_module *module) {
    if (iso__index_of(&self->placed, module) >= 0) return ISO_OK;
    ISO_TRY(iso__index_add(&self->placed, iso__pointer_key(module), self->places));
    _Static_assert(sizeof(module->forward_number) == 8, "saved as one number");
    ISO_TRY(iso__state_add_place(self, &module->forward_number));
    void *key = iso__dropout_key(module);
    if (key) ISO_TRY(iso__state_add_place(self, key));
    for (int i = 0; i < module->child_count; i++) ISO_TRY(collect_places(self, module->child[i]));
    return ISO_OK;
}

static iso_status check_places(iso_comm *comm, int places) {
    int64_t extremes[2] = {places, -places};
    ISO_TRY(iso_comm_allreduce_i64(comm, extremes, 2, ISO_MAX));
    ISO_CHECK(extremes[0] == -extremes[1], ISO_ERR_MISMATCH,
              "ranks disagree: their modules have from %" PRId64 " to %" PRId64
              " counters and dropout keys",
              -extremes[1], extremes[0]);
    return ISO_OK;
}

// The numbers of all ranks of comm (NULL: this one only), the same on each.
static iso_status add_table(iso_state *self, iso_comm *comm) {
    void *memory;
    if (comm) ISO_TRY(check_places(comm, self->places));
    int64_t shape[2] = {comm ? iso_comm_size(comm) : 1, self->places};
    size_t numbers = (size_t)(shape[0] * shape[1]);
    if (comm)
        ISO_TRY(iso__comm_alloc_zero(comm, numbers * sizeof(int64_t), &memory));
    else
        ISO_TRY(iso__alloc_zero(numbers * sizeof(int64_t), &memory));
    self->table = memory;
    self->row = comm ? iso_comm_rank(comm) : 0;
    int64_t *row = self->table + (int64_t)self->row * self->places;
    for (int i = 0; i < self->places; i++) memcpy(&row[i], self->place[i], sizeof(row[i]));
    // Each rank has zeros in the other rows, so the sum gathers all rows.
    if (comm) ISO_TRY(iso_comm_allreduce_i64(comm, self->table, numbers, ISO_SUM));
    iso_state_owner owner = self->owner;
    self->owner = ISO_STATE_SHARED;
    iso_status status =
        iso__state_add(self, ISO_STATE_I64, 2, shape, self->table, "forward_counters");
    self->owner = owner;
    if (comm) status = iso_comm_agree(comm, status);
    ISO_TRY(status);
    return ISO_OK;
}

void iso__state_scatter(const iso_state *self) {
    const int64_t *row = self->table + (int64_t)self->row * self->places;
    for (int i = 0; i < self->places; i++) memcpy(self->place[i], &row[i], sizeof(row[i]));
}

// ---- Module and optimizer -----------------------------------------------------------------------

static iso_optimizer *inner_of(iso_optimizer *optimizer) {
    return optimizer->ops->inner ? optimizer->ops->inner(optimizer) : NULL;
}

static iso_status add_parameters(iso_state *self, const iso_parameter_list *list) {
    for (int i = 0; i < list->count; i++) {
        iso_tensor *value;
        ISO_TRY(iso_parameter_value(list->item[i], &value)); // completes what is pending
        ISO_TRY(iso__state_add_tensor(self, value, "param/%s", list->name[i]));
    }
    return ISO_OK;
}

static iso_status add_buffer(iso_state *self, iso_tensor *value, const char *name) {
    ISO_TRY(iso__state_add_tensor(self, value, "buffer/%s", name));
    iso__state_rule(self, ISO_OWN_MEAN, 0);
    return ISO_OK;
}

// Every rank has statistics of its own.
static iso_status add_buffers(iso_state *self, iso_module *module) {
    iso_buffer_list list;
    iso_state_owner owner = self->owner;
    ISO_TRY(iso_module_buffers(module, &list));
    iso_status status = ISO_OK;
    self->owner = ISO_STATE_OWN;
    for (int i = 0; i < list.count && status >= 0; i++)
        if (list.item[i]->persistent) status = add_buffer(self, list.item[i]->value, list.name[i]);
    self->owner = owner;
    iso_buffer_list_destroy(&list);
    return status;
}

// What a communication hook keeps from step to step, each rank of its own gradients.
static iso_status add_hook_state(iso_state *self, const iso_reducer *reducer) {
    size_t count = 0;
    float *state = reducer ? iso__reducer_hook_state(reducer, &count) : NULL;
    if (!state) return ISO_OK;
    ISO_TRY(iso_state_add(self, ISO_STATE_OWN, "hook_state", ISO_STATE_F32, (int64_t)count, state));
    iso__state_rule(self, ISO_OWN_ZERO, (int64_t)iso__reducer_hook_counts(reducer));
    return ISO_OK;
}

// Whether an optimizer exchanges parameters, so that ranks that differ are replicas of one model.
static bool has_replicas(iso_optimizer *optimizer) {
    for (; optimizer; optimizer = inner_of(optimizer))
        if (optimizer->ops->ranks_differ) return true;
    return false;
}

// Whether ranks may have different parameters between steps.
static bool ranks_differ(iso_module *module, iso_optimizer *optimizer) {
    const iso_reducer *reducer = iso_data_parallel_reducer(module);
    if (reducer && !iso__reducer_keeps_ranks_equal(reducer)) return true;
    return has_replicas(optimizer);
}

static iso_status add_module(iso_state *self, iso_module *module) {
    iso_parameter_list list;
    iso_module *inner = iso_data_parallel_module(module); // the wrapper is no part of the model
    ISO_TRY(iso_module_parameters(module, &list));
    iso_status status = add_parameters(self, &list);
    iso_parameter_list_destroy(&list);
    ISO_TRY(status);
    ISO_TRY(add_buffers(self, module));
    ISO_TRY(add_hook_state(self, iso_data_parallel_reducer(module)));
    ISO_TRY(collect_places(self, inner ? inner : module));
    return ISO_OK;
}

static iso_status add_optimizer(iso_state *self, iso_optimizer *optimizer) {
    const iso_optimizer_ops *ops = optimizer->ops;
    ISO_CHECK(ops->state || ops->inner, ISO_ERR_UNSUPPORTED,
              "the state of a %s optimizer cannot be saved: its table has no state function",
              ops->name);
    return ops->state ? ops->state(optimizer, self) : ISO_OK;
}

// With ZeRO the state of the innermost optimizer is collective, so all ranks must reach it.
static iso_status add_optimizers(iso_state *self, iso_optimizer *optimizer) {
    const iso__base_optimizer *core = iso__optimizer_innermost(optimizer);
    iso_status status = ISO_OK;
    for (; optimizer; optimizer = inner_of(optimizer)) {
        if (core && optimizer == &core->base) status = iso__dp_state_agree(core, status);
        if (status == ISO_OK) status = add_optimizer(self, optimizer);
    }
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_training_state(iso_module *module, iso_optimizer *optimizer, iso_state *state) {
    bool parallel = iso_data_parallel_reducer(module) != NULL;
    iso_comm *comm = parallel ? iso_data_parallel_comm(module) : NULL;
    ISO_CHECK(!state->table, ISO_ERR_STATE, "this state has a module and an optimizer already");
    // Only one optimizer would be saved.
    int optimizers = parallel ? iso__reducer_appliers(iso_data_parallel_reducer(module)) : 1;
    ISO_CHECK(
        optimizers <= 1, ISO_ERR_UNSUPPORTED,
        "the model has %d optimizers, and the state of one can be saved: use one optimizer "
        "with parameter groups (iso_optimizer_add_group), or iso_optimizer_state_dict of each",
        optimizers);
    if (parallel) ISO_TRY(iso_data_parallel_finish(module));
    // So that nothing below waits for other ranks.
    if (parallel) ISO_TRY(iso__reducer_gather_values(iso_data_parallel_reducer(module)));
    state->owner = ranks_differ(module, optimizer) ? ISO_STATE_OWN : ISO_STATE_SHARED;
    state->averages = has_replicas(optimizer);
    iso_status status = add_module(state, module);
    // A rank that failed alone would leave the others waiting in what follows.
    if (comm) status = iso_comm_agree(comm, status);
    ISO_TRY(status);
    ISO_TRY(add_table(state, comm));
    status = add_optimizers(state, optimizer);
    if (comm) status = iso_comm_agree(comm, status);
    ISO_TRY(status);
    return ISO_OK;
}

static iso_status tell_loaded(iso_optimizer *optimizer) {
    if (inner_of(optimizer)) ISO_TRY(tell_loaded(inner_of(optimizer)));
    if (optimizer->ops->loaded) ISO_TRY(optimizer->ops->loaded(optimizer));
    return ISO_OK;
}

iso_status iso_training_loaded(iso_module *module, iso_optimizer *optimizer) {
    // Gradients belong to the parameters that were there before.
    iso_module_zero_grad(module);
    iso_optimizer_zero_grad(optimizer);
    ISO_TRY(tell_loaded(optimizer));
    return ISO_OK;
}
