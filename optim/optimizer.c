// SPDX-License-Identifier: MIT
// Optimizers: their kinds, creation, and dispatch.
#include "base/recording.h"
#include "optim/optim_impl.h"

#include <string.h>

// ---- Kinds -------------------------------------------------------------------------------------

static const iso__rule *const rules[] = {
    [ISO_SGD] = &iso__rule_sgd,         [ISO_ADAM] = &iso__rule_adam,
    [ISO_ADAMW] = &iso__rule_adamw,     [ISO_ADADELTA] = &iso__rule_adadelta,
    [ISO_ADAGRAD] = &iso__rule_adagrad, [ISO_RMSPROP] = &iso__rule_rmsprop,
    [ISO_LAMB] = &iso__rule_lamb,       [ISO_NADAM] = &iso__rule_nadam,
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
                    "unknown optimizer \"%s\": use sgd, adam, adamw, adadelta, adagrad, rmsprop, "
                    "lamb or nadam",
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
            (iso__slot){.parameter = p, .name = self->list.name[i], .offset = offset, .product = 1};
        p->optimizers++;
        offset += (int64_t)iso__slot_room(&self->slot[self->count - 1]);
    }
    return offset;
}

// Parameters without master weights leave their part of the arena untouched: in host memory it takes
// no memory.
static iso_status make_masters(iso__base_optimizer *self, int64_t words) {
    for (int i = 0; i < self->count; i++) {
        const iso__slot *slot = &self->slot[i];
        const iso_tensor *value = slot->parameter->value;
        iso_tensor **arena = &self->state[ISO_STATE_MASTER];
        if (!iso__has_master(value->dtype)) continue;
        if (!*arena) ISO_TRY(iso_tensor_create(self->module->device, ISO_F32, 1, &words, arena));
        ISO_TRY(iso__device_convert(value->device, value->count, value->dtype, value->data, ISO_F32,
                                    iso__slot_state(self, slot, ISO_STATE_MASTER)));
    }
    return ISO_OK;
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
    for (int i = 0; i < ISO_STATE_MASTER && rule->state_name[i]; i++) {
        if (rule->has_state && !rule->has_state(i, &self->base.hyper)) continue;
        ISO_TRY(iso_tensor_create(self->module->device, ISO_F32, 1, &words, &self->state[i]));
        ISO_TRY(iso_tensor_fill(self->state[i], 0));
    }
    ISO_TRY(make_masters(self, words));
    for (int i = 0; rule->start && i < self->count; i++)
        ISO_TRY(rule->start(self, &self->slot[i], &self->base.hyper));
    return ISO_OK;
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

// ---- Dispatch ----------------------------------------------------------------------------------

iso_status iso_optimizer_step(iso_optimizer *optimizer) {
    iso__base_optimizer *core = iso__optimizer_innermost(optimizer);
    iso__alive_step("an update of the parameters");
    for (int g = 0; core && g < core->groups; g++) {
        ISO_TRY(iso__hyper_check(iso__rule_of(core), iso__group_hyper(core, g)));
        ISO_TRY(iso__hyper_check_state(core, iso__group_hyper(core, g)));
    }
    ISO_TRY(optimizer->ops->step(optimizer));
    return ISO_OK;
}

void iso_optimizer_zero_grad(iso_optimizer *optimizer) { optimizer->ops->zero_grad(optimizer); }

void iso_optimizer_destroy(iso_optimizer **optimizer) {
    if (*optimizer) (*optimizer)->ops->destroy(*optimizer);
    *optimizer = NULL;
}

iso_hyper *iso_optimizer_hyper(iso_optimizer *optimizer) {
    return &iso__innermost(optimizer)->hyper;
}
