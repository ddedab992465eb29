// Optimizers: creation, the walk over parameters that all kinds share, and dispatch.
#include "optim/optim_impl.h"
#include "optim/resume/resume_impl.h"

#include <isotherm/trace.h>
#include <string.h>

// ---- Kinds -------------------------------------------------------------------------------------

static const iso__rule *const rules[] = {
    [ISO_SGD] = &iso__rule_sgd,         [ISO_ADAM] = &iso__rule_adam,
    [ISO_ADAMW] = &iso__rule_adamw,     [ISO_ADADELTA] = &iso__rule_adadelta,
    [ISO_ADAGRAD] = &iso__rule_adagrad, [ISO_RMSPROP] = &iso__rule_rmsprop,
    [ISO_LAMB] = &iso__rule_lamb,
};
#define KIND_COUNT (int)(sizeof(rules) / sizeof(rules[0]))

iso_status iso_optimizer_kind_parse(const char *name, iso_optimizer_kind *out) {
    for (int i = 0; i < KIND_COUNT; i++) {
        if (strcmp(name, rules[i]->ops.name) == 0) {
            *out = (iso_optimizer_kind)i;
            return ISO_OK;
        }
    }
    return ISO_FAIL(ISO_ERR_ARG,
                    "unknown optimizer \"%s\": use sgd, adam, adamw, adadelta, adagrad, rmsprop or "
                    "lamb",
                    name);
}

const char *iso_optimizer_kind_name(iso_optimizer_kind kind) { return rules[kind]->ops.name; }

iso_hyper iso_hyper_default(iso_optimizer_kind kind) { return rules[kind]->defaults; }

// ---- Creation ----------------------------------------------------------------------------------

// Lists the parameters that require gradients and returns the bytes that a state of all needs.
static int64_t fill_slots(iso__base_optimizer *self) {
    int64_t offset = 0;
    for (int i = 0; i < self->list.count; i++) {
        iso_parameter *p = self->list.item[i];
        if (!p->requires_grad) continue;
        self->slot[self->count++] =
            (iso__slot){.parameter = p, .name = self->list.name[i], .offset = offset};
        p->optimizers++;
        int64_t bytes = p->value->count * (int64_t)iso_dtype_size(p->value->dtype);
        offset += (bytes + 63) / 64 * 64;
    }
    return offset;
}

static iso_status make_state(iso__base_optimizer *self, const iso__rule *rule) {
    void *memory;
    ISO_TRY(iso_module_parameters(self->module, &self->list));
    ISO_TRY(iso__alloc_zero((size_t)self->list.count * sizeof(iso__slot), &memory));
    self->slot = memory;
    int64_t words = fill_slots(self) / (int64_t)sizeof(float); // 0 is the same in every type
    ISO_CHECK(self->count > 0, ISO_ERR_ARG,
              "the %s optimizer was given a module in which nothing requires a gradient",
              rule->ops.name);
    for (int i = 0; i < ISO_OPTIMIZER_STATES && rule->state_name[i]; i++) {
        ISO_TRY(iso_tensor_create(self->module->device, ISO_F32, 1, &words, &self->state[i]));
        ISO_TRY(iso_tensor_fill(self->state[i], 0));
    }
    for (int i = 0; rule->start && i < self->count; i++)
        ISO_TRY(rule->start(self, &self->slot[i], &self->base.hyper));
    return ISO_OK;
}

iso_status iso__hyper_check(const iso__rule *rule, const iso_hyper *hyper) {
    ISO_CHECK(hyper->lr >= 0, ISO_ERR_ARG, "%s: learning rate %g: give a number of at least 0",
              rule->ops.name, hyper->lr);
    ISO_CHECK(hyper->weight_decay >= 0, ISO_ERR_ARG,
              "%s: weight decay %g: give a number of at least 0", rule->ops.name,
              hyper->weight_decay);
    return rule->check(rule->ops.name, hyper);
}

iso_status iso_optimizer_create(iso_optimizer_kind kind, iso_module *module, const iso_hyper *hyper,
                                iso_optimizer **out) {
    ISO_CHECK((int)kind >= 0 && (int)kind < KIND_COUNT, ISO_ERR_ARG, "unknown optimizer kind %d",
              (int)kind);
    const iso__rule *rule = rules[kind];
    if (!hyper) hyper = &rule->defaults;
    ISO_TRY(iso__hyper_check(rule, hyper));

    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso__base_optimizer), &memory));
    iso__base_optimizer *self = memory;
    self->base = (iso_optimizer){.ops = &rule->ops, .hyper = *hyper};
    self->groups = 1;
    self->base.hyper.step = 0; // the state is new, whatever the caller's copy has seen
    self->module = iso_module_retain(module);
    iso_status status;
    ISO_TRY_GOTO(make_state(self, rule));
    *out = &self->base;
    return ISO_OK;
fail:
    iso__base_destroy(&self->base);
    return status;
}

// ---- What every kind does ----------------------------------------------------------------------

static iso__base_optimizer *self_of(iso_optimizer *optimizer) {
    return iso_container_of(optimizer, iso__base_optimizer, base);
}

iso_status iso__update_piece(iso__base_optimizer *self, int i, int64_t first, int64_t count,
                             const void *gradient, double scale, const iso_hyper *hyper) {
    iso__slot *slot = &self->slot[i];
    const iso_tensor *tensor = slot->parameter->value;
    // A whole one after a piece: the update that had begun was given up.
    bool begins = slot->left == 0 || count == tensor->count;
    size_t skipped = (size_t)first * iso_dtype_size(tensor->dtype);
    iso__piece piece = {.tensor = tensor,
                        .value = (char *)tensor->data + skipped,
                        .count = count,
                        .state_offset = (size_t)slot->offset + skipped,
                        .step = slot->step + begins};
    int64_t start = iso_trace_on() ? iso_now() : 0;
    ISO_TRY(iso__rule_of(self)->apply(self, &piece, gradient, scale, hyper));
    slot->step = piece.step;
    slot->left = (begins ? tensor->count : slot->left) - count;
    if (iso_trace_on()) iso_trace_span(ISO_LANE_UPDATE, slot->name, start, iso_now());
    return ISO_OK;
}

iso_status iso__base_update(iso_optimizer *optimizer, int i, const void *gradient, double scale,
                            const iso_hyper *hyper) {
    iso__base_optimizer *self = self_of(optimizer);
    int64_t count = self->slot[i].parameter->value->count;
    return iso__update_piece(self, i, 0, count, gradient, scale, hyper);
}

// A layer that the backward did not reach has a gradient of zeros: momentum and decay go on, the
// same on every rank, whichever of them used the layer.
iso_status iso__base_step(iso_optimizer *optimizer) {
    iso__base_optimizer *self = self_of(optimizer);
    iso__count_step(self);
    for (int i = 0; i < self->count; i++) {
        iso_tensor *gradient;
        const iso_hyper *hyper = iso__group_hyper(self, self->slot[i].group);
        ISO_TRY(iso_parameter_grad(self->slot[i].parameter, &gradient));
        ISO_TRY(iso__base_update(optimizer, i, gradient->data, 1.0, hyper));
    }
    return ISO_OK;
}

void iso__base_zero_grad(iso_optimizer *optimizer) {
    iso_module_zero_grad(self_of(optimizer)->module);
}

void iso__base_destroy(iso_optimizer *optimizer) {
    iso__base_optimizer *self = self_of(optimizer);
    for (int i = 0; i < self->count; i++) self->slot[i].parameter->optimizers--;
    for (int i = 0; i < ISO_OPTIMIZER_STATES; i++) iso_tensor_destroy(&self->state[i]);
    iso__groups_destroy(self);
    iso_parameter_list_destroy(&self->list);
    iso_module_destroy(&self->module);
    iso__free(self->slot);
    iso__free(self);
}

// ---- Saved state --------------------------------------------------------------------------------

iso_status iso__slot_tensor(const iso__base_optimizer *self, const iso__slot *slot, int kind,
                            iso_tensor **out) {
    const iso_tensor *value = slot->parameter->value;
    return iso_tensor_borrow(value->device, value->dtype, value->ndim, value->shape,
                             iso__slot_state(self, slot, kind), out);
}

static iso_status add_slot(const iso__base_optimizer *self, const iso__slot *slot, int kind,
                           iso_state *state) {
    const iso__rule *rule = iso__rule_of(self);
    iso_tensor *tensor;
    ISO_TRY(iso__slot_tensor(self, slot, kind, &tensor));
    iso_status status = iso__state_add_tensor(state, tensor, "optimizer/%s/%s/%s", rule->ops.name,
                                              rule->state_name[kind], slot->name);
    iso_tensor_destroy(&tensor);
    return status;
}

iso_status iso__base_state(iso_optimizer *optimizer, iso_state *state) {
    iso__base_optimizer *self = self_of(optimizer);
    const iso__rule *rule = iso__rule_of(self);
    ISO_TRY(iso__groups_state(self, state));
    for (int k = 0; k < ISO_OPTIMIZER_STATES && rule->state_name[k]; k++)
        for (int i = 0; i < self->count; i++) ISO_TRY(add_slot(self, &self->slot[i], k, state));
    for (int i = 0; i < self->count; i++)
        ISO_TRY(iso__state_add_new_i64(state, &self->slot[i].step, "optimizer/%s/step/%s",
                                       rule->ops.name, self->slot[i].name));
    return ISO_OK;
}

// Where the updates of each parameter were not counted, all were updated in every step.
iso_status iso__base_loaded(iso_optimizer *optimizer) {
    iso__base_optimizer *self = self_of(optimizer);
    ISO_TRY(iso__groups_loaded(self));
    for (int i = 0; i < self->count; i++) {
        iso__slot *slot = &self->slot[i];
        if (slot->step < 0) slot->step = iso__group_hyper(self, slot->group)->step;
        slot->left = 0;
    }
    return ISO_OK;
}

// ---- Dispatch ----------------------------------------------------------------------------------

static iso_optimizer *innermost(iso_optimizer *optimizer) {
    while (optimizer->ops->inner) optimizer = optimizer->ops->inner(optimizer);
    return optimizer;
}

iso__base_optimizer *iso__optimizer_innermost(iso_optimizer *optimizer) {
    optimizer = innermost(optimizer);
    return optimizer->ops->update == iso__base_update ? self_of(optimizer) : NULL;
}

iso_status iso_optimizer_step(iso_optimizer *optimizer) {
    iso__base_optimizer *core = iso__optimizer_innermost(optimizer);
    for (int g = 0; core && g < core->groups; g++)
        ISO_TRY(iso__hyper_check(iso__rule_of(core), iso__group_hyper(core, g)));
    ISO_TRY(optimizer->ops->step(optimizer));
    return ISO_OK;
}

void iso_optimizer_zero_grad(iso_optimizer *optimizer) { optimizer->ops->zero_grad(optimizer); }

void iso_optimizer_destroy(iso_optimizer **optimizer) {
    if (*optimizer) (*optimizer)->ops->destroy(*optimizer);
    *optimizer = NULL;
}

iso_hyper *iso_optimizer_hyper(iso_optimizer *optimizer) { return &innermost(optimizer)->hyper; }
