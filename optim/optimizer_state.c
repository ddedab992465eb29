// SPDX-License-Identifier: MIT
// The saved state of an optimizer: hyperparameters and counters of its groups, and the state of
// each parameter. Names are "optimizer/KIND/" and the name in the state_dict.
#include "optim/dp_state.h"
#include "optim/resume/resume_impl.h"

#include <string.h>

// ---- The list ------------------------------------------------------------------------------------

static const int64_t one = 1;

// prefix: "optimizer/KIND/param_groups.N".
static iso_status add_hyper(const iso__rule *rule, iso_hyper *hyper, const char *prefix,
                            iso_state *state) {
    struct {
        const char *name;
        double *number;
    } const numbers[] = {
        {"lr", &hyper->lr},
        {"momentum", &hyper->momentum},
        {"dampening", &hyper->dampening},
        {"weight_decay", &hyper->weight_decay},
        {"beta1", &hyper->beta1},
        {"beta2", &hyper->beta2},
        {"rho", &hyper->rho},
        {"alpha", &hyper->alpha},
        {"eps", &hyper->eps},
        {"lr_decay", &hyper->lr_decay},
    };
    _Static_assert(sizeof(hyper->nesterov) == 1, "saved as one byte");
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        ISO_TRY(iso__state_add_f64(state, numbers[i].number, "%s.%s", prefix, numbers[i].name));
    ISO_TRY(iso__state_add(state, ISO_STATE_U8, 1, &one, &hyper->nesterov, "%s.nesterov", prefix));
    ISO_TRY(iso__state_add(state, ISO_STATE_U8, 1, &one, &hyper->centered, "%s.centered", prefix));
    ISO_TRY(iso__state_add_new(state, ISO_STATE_U8, &hyper->maximize, "%s.maximize", prefix));
    if (rule->factor)
        ISO_TRY(iso__state_add_f64(state, &hyper->momentum_decay, "%s.momentum_decay", prefix));
    ISO_TRY(iso__state_add_i64(state, &hyper->step, "%s.step", prefix));
    return ISO_OK;
}

static iso_status add_groups(iso__base_optimizer *self, iso_state *state) {
    const char *kind = self->base.ops->name;
    char prefix[64];
    int64_t count = self->count;
    for (int g = 0; g < self->groups; g++) {
        snprintf(prefix, sizeof(prefix), "optimizer/%s/param_groups.%d", kind, g);
        ISO_TRY(add_hyper(iso__rule_of(self), iso__group_hyper(self, g), prefix, state));
        if (g == 0) continue;
        ISO_TRY(
            iso__state_add_f64(state, &self->group[g - 1]->initial_lr, "%s.initial_lr", prefix));
    }
    if (self->groups == 1) return ISO_OK;
    for (int i = 0; i < self->count; i++) self->saved_group[i] = self->slot[i].group;
    return iso__state_add(state, ISO_STATE_I64, 1, &count, self->saved_group,
                          "optimizer/%s/param_groups.params", kind);
}

static iso_status slot_tensor(const iso__base_optimizer *self, int i, int kind, iso_tensor **out) {
    if (!self->shards) return iso__slot_tensor(self, &self->slot[i], kind, out);
    *out = iso_tensor_retain(iso__dp_state_tensor(self, i, kind));
    return ISO_OK;
}

static iso_status add_slot(const iso__base_optimizer *self, int i, int kind, iso_state *state) {
    const iso__rule *rule = iso__rule_of(self);
    const iso__slot *slot = &self->slot[i];
    iso_tensor *tensor;
    ISO_TRY(slot_tensor(self, i, kind, &tensor));
    iso_status status =
        iso__state_add_tensor(state, tensor, "optimizer/%s/state.%s.%s", rule->ops.name, slot->name,
                              iso__state_name(self, kind));
    iso_tensor_destroy(&tensor);
    return status;
}

// Adopts the values that the program has written to parameters since their last update.
static iso_status refresh_masters(iso__base_optimizer *self) {
    for (int i = 0; i < self->count; i++) {
        const iso__slot *slot = &self->slot[i];
        const iso_tensor *value = slot->parameter->value;
        if (!iso__slot_has(self, slot, ISO_STATE_MASTER)) continue;
        if (self->shards)
            ISO_TRY(iso__dp_state_take_values(self, i));
        else
            ISO_TRY(iso__master_take(value->device, value->dtype, value->count, value->data,
                                     iso__slot_state(self, slot, ISO_STATE_MASTER)));
    }
    return ISO_OK;
}

iso_status iso__base_state(iso_optimizer *optimizer, iso_state *state) {
    iso__base_optimizer *self = iso_container_of(optimizer, iso__base_optimizer, base);
    const iso__rule *rule = iso__rule_of(self);
    ISO_TRY(iso__dp_state_agree(self, refresh_masters(self)));
    if (self->shards) ISO_TRY(iso__dp_state_gather(self));
    ISO_TRY(add_groups(self, state));
    for (int k = 0; k < ISO_OPTIMIZER_STATES; k++)
        for (int i = 0; i < self->count; i++)
            if (iso__slot_has(self, &self->slot[i], k)) ISO_TRY(add_slot(self, i, k, state));
    for (int i = 0; rule->factor && i < self->count; i++)
        ISO_TRY(iso__state_add_f64(state, &self->slot[i].product, "optimizer/%s/state.%s.%s",
                                   rule->ops.name, self->slot[i].name, rule->product_name));
    for (int i = 0; i < self->count; i++)
        ISO_TRY(iso__state_add_new(state, ISO_STATE_I64, &self->slot[i].step,
                                   "optimizer/%s/state.%s.step", rule->ops.name,
                                   self->slot[i].name));
    return ISO_OK;
}

// ---- When it was loaded --------------------------------------------------------------------------

// A byte from a file may be neither 0 nor 1, which is no valid bool. Files of older versions lack
// switches that were off.
static void mend_flag(bool *flag) {
    uint8_t byte;
    memcpy(&byte, flag, 1);
    *flag = byte != 0 && byte != ISO__STATE_NO_BYTE;
}

static iso_status check_groups(iso__base_optimizer *self) {
    const iso__rule *rule = iso__rule_of(self);
    for (int g = 0; g < self->groups; g++) {
        iso_hyper *hyper = iso__group_hyper(self, g);
        mend_flag(&hyper->nesterov);
        mend_flag(&hyper->centered);
        mend_flag(&hyper->maximize);
        ISO_CHECK(hyper->step >= 0, ISO_ERR_FORMAT, "%s: the saved step is %lld: it is damaged",
                  rule->ops.name, (long long)hyper->step);
        ISO_TRY(iso__hyper_check(rule, hyper));
    }
    for (int i = 0; self->groups > 1 && i < self->count; i++)
        ISO_CHECK(self->saved_group[i] == self->slot[i].group, ISO_ERR_MISMATCH,
                  "%s: parameter %s was saved in group %lld and is in group %d here: make the same "
                  "groups",
                  rule->ops.name, self->slot[i].name, (long long)self->saved_group[i],
                  self->slot[i].group);
    return ISO_OK;
}

// A mean over the ranks of another number is that of master weights, not of rounded values.
static iso_status round_loaded(iso__base_optimizer *self) {
    for (int i = 0; i < self->count; i++) {
        const iso__slot *slot = &self->slot[i];
        const iso_tensor *value = slot->parameter->value;
        if (iso__slot_has(self, slot, ISO_STATE_MASTER))
            ISO_TRY(iso__master_round(value->device, value->dtype, value->count,
                                      iso__slot_state(self, slot, ISO_STATE_MASTER), value->data));
    }
    return ISO_OK;
}

// If the updates of each parameter were not saved (-1), takes the steps of its group.
iso_status iso__base_loaded(iso_optimizer *optimizer) {
    iso__base_optimizer *self = iso_container_of(optimizer, iso__base_optimizer, base);
    ISO_TRY(check_groups(self));
    for (int i = 0; i < self->count; i++) {
        iso__slot *slot = &self->slot[i];
        if (slot->step < 0) slot->step = iso__group_hyper(self, slot->group)->step;
        slot->left = 0;
    }
    if (self->shards) return iso__dp_state_take(self);
    return round_loaded(self);
}
