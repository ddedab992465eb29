// SPDX-License-Identifier: MIT
// What all kinds of optimizers share: the loop over parameters, and their updates.
#include "base/profiler.h"
#include "optim/dp_state.h"

#include <isotherm/trace.h>
#include <math.h>

static iso__base_optimizer *self_of(iso_optimizer *optimizer) {
    return iso_container_of(optimizer, iso__base_optimizer, base);
}

iso__base_optimizer *iso__optimizer_innermost(iso_optimizer *optimizer) {
    optimizer = iso__innermost(optimizer);
    return optimizer->ops->update == iso__base_update ? self_of(optimizer) : NULL;
}

static iso_status check_finite(const iso__rule *rule, const iso_hyper *h) {
    const struct {
        const char *name;
        double number;
    } numbers[] = {{"learning rate", h->lr},
                   {"momentum", h->momentum},
                   {"dampening", h->dampening},
                   {"weight decay", h->weight_decay},
                   {"beta1", h->beta1},
                   {"beta2", h->beta2},
                   {"rho", h->rho},
                   {"alpha", h->alpha},
                   {"eps", h->eps},
                   {"lr_decay", h->lr_decay},
                   {"initial_accumulator_value", h->initial_accumulator_value},
                   {"momentum_decay", h->momentum_decay}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        ISO_CHECK(isfinite(numbers[i].number), ISO_ERR_ARG, "%s: %s %g: give a finite number",
                  rule->ops.name, numbers[i].name, numbers[i].number);
    return ISO_OK;
}

iso_status iso__hyper_check(const iso__rule *rule, const iso_hyper *hyper) {
    ISO_TRY(check_finite(rule, hyper));
    ISO_CHECK(hyper->lr >= 0, ISO_ERR_ARG, "%s: learning rate %g: give a number of at least 0",
              rule->ops.name, hyper->lr);
    ISO_CHECK(hyper->weight_decay >= 0, ISO_ERR_ARG,
              "%s: weight decay %g: give a number of at least 0", rule->ops.name,
              hyper->weight_decay);
    return rule->check(rule->ops.name, hyper);
}

iso_status iso__hyper_check_state(const iso__base_optimizer *self, const iso_hyper *hyper) {
    const iso__rule *rule = iso__rule_of(self);
    for (int k = 0; rule->has_state && k < ISO_STATE_MASTER && rule->state_name[k]; k++)
        ISO_CHECK(rule->has_state(k, hyper) == (self->state[k] != NULL), ISO_ERR_ARG,
                  "%s: amsgrad is %s, unlike at the creation of the optimizer: give all groups the "
                  "same, and do not change it",
                  rule->ops.name, hyper->amsgrad ? "on" : "off");
    return ISO_OK;
}

iso_status iso__slot_tensor(const iso__base_optimizer *self, const iso__slot *slot, int kind,
                            iso_tensor **out) {
    const iso_tensor *value = slot->parameter->value;
    return iso_tensor_borrow(value->device, iso__state_type(slot), value->ndim, value->shape,
                             iso__slot_state(self, slot, kind), out);
}

// A piece of a parameter's update.
typedef struct piece_update {
    iso__piece piece;
    iso_dtype type;   // of the parameter
    void *rounded;    // the elements of a parameter that has master weights; else NULL
    int64_t elements; // elements of the parameter that this rank updates
    bool begins;      // the first piece of the update
} piece_update;

static iso_status find_piece(iso__base_optimizer *self, int i, int64_t first, int64_t count,
                             piece_update *out) {
    const iso__slot *slot = &self->slot[i];
    const iso_tensor *tensor = slot->parameter->value;
    char *value = (char *)tensor->data + (size_t)first * iso_dtype_size(tensor->dtype);
    size_t state_offset =
        (size_t)slot->offset + (size_t)first * iso_dtype_size(iso__state_type(slot));
    out->elements = tensor->count;
    if (self->shards) {
        ISO_TRY(iso__dp_state_find(self, i, first, count, &out->elements, &state_offset));
        iso__dp_state_forget(self);
    }
    // A piece that is the whole parameter begins an update: one under way was abandoned.
    out->begins = slot->left == 0 || count == out->elements;
    out->piece = (iso__piece){.tensor = tensor,
                              .value = value,
                              .count = count,
                              .state_offset = state_offset,
                              .step = slot->step,
                              .product = slot->product};
    out->type = tensor->dtype;
    out->rounded = iso__has_master(out->type) ? value : NULL;
    if (!out->rounded) return ISO_OK;
    if (tensor->device->ops->rounds_updates)
        out->piece.to = (iso__rounded_to){out->rounded, out->type};
    out->piece.tensor = self->state[ISO_STATE_MASTER];
    out->piece.value = iso__piece_state(self, &out->piece, ISO_STATE_MASTER);
    return ISO_OK;
}

// Updates and rounds block by block, so that the data stay in the cache. This is for host memory,
// whose kernels do not fail in the middle of an update.
static iso_status apply_rounded(const iso__base_optimizer *self, const piece_update *u,
                                const float *gradient, double scale, const iso_hyper *hyper) {
    enum { BLOCK = 8192 };
    const iso__rule *rule = iso__rule_of(self);
    iso_device *device = self->module->device;
    iso__piece block = u->piece;
    char *rounded = u->rounded;
    for (int64_t left = u->piece.count; left > 0; left -= block.count) {
        block.count = left < BLOCK || rule->whole ? left : BLOCK;
        ISO_TRY(iso__master_take(device, u->type, block.count, rounded, block.value));
        ISO_TRY(rule->apply(self, &block, gradient, scale, hyper));
        ISO_TRY(iso__master_round(device, u->type, block.count, block.value, rounded));
        block.value = (float *)block.value + block.count;
        block.state_offset += (size_t)block.count * sizeof(float);
        gradient += block.count;
        rounded += (size_t)block.count * iso_dtype_size(u->type);
    }
    return ISO_OK;
}

static iso_status apply_piece(const iso__base_optimizer *self, const piece_update *u,
                              const void *gradient, double scale, const iso_hyper *hyper) {
    bool rounds = u->rounded && !u->piece.to.value; // else the device does it
    if (rounds) return apply_rounded(self, u, gradient, scale, hyper);
    return iso__rule_of(self)->apply(self, &u->piece, gradient, scale, hyper);
}

static iso_status measure_piece(const iso__base_optimizer *self, const piece_update *u,
                                const void *gradient, double scale, const iso_hyper *hyper,
                                double *square) {
    if (u->rounded)
        ISO_TRY(iso__master_take(self->module->device, u->type, u->piece.count, u->rounded,
                                 u->piece.value));
    return iso__rule_of(self)->measure(self, &u->piece, gradient, scale, hyper, square);
}

// square NULL: the whole update, otherwise its first half.
static iso_status run_piece(iso__base_optimizer *self, int i, piece_update *u, const void *gradient,
                            double scale, const iso_hyper *hyper, double *square) {
    iso__slot *slot = &self->slot[i];
    const iso__rule *rule = iso__rule_of(self);
    u->piece.step += u->begins && (!rule->counts || rule->counts(hyper));
    if (u->begins && rule->factor) u->piece.product *= rule->factor(hyper, u->piece.step);
    if (hyper->maximize) scale = -scale;
    int64_t start = iso__span_begin(ISO_LANE_UPDATE, slot->name);
    iso_status status = square ? measure_piece(self, u, gradient, scale, hyper, square)
                               : apply_piece(self, u, gradient, scale, hyper);
    iso__span_end(ISO_LANE_UPDATE, slot->name, start);
    ISO_TRY(status);
    slot->step = u->piece.step;
    slot->product = u->piece.product;
    slot->left = (u->begins ? u->elements : slot->left) - u->piece.count;
    return ISO_OK;
}

iso_status iso__update_piece(iso__base_optimizer *self, int i, int64_t first, int64_t count,
                             const void *gradient, double scale, const iso_hyper *hyper) {
    piece_update u;
    ISO_TRY(find_piece(self, i, first, count, &u));
    return run_piece(self, i, &u, gradient, scale, hyper, NULL);
}

iso_status iso__measure_piece(iso__base_optimizer *self, int i, int64_t first, int64_t count,
                              const void *gradient, double scale, const iso_hyper *hyper,
                              double square[2]) {
    piece_update u;
    ISO_TRY(find_piece(self, i, first, count, &u));
    return run_piece(self, i, &u, gradient, scale, hyper, square);
}

iso_status iso__finish_piece(iso__base_optimizer *self, int i, int64_t first, int64_t count,
                             const double square[2], const iso_hyper *hyper) {
    piece_update u;
    ISO_TRY(find_piece(self, i, first, count, &u));
    ISO_TRY(iso__rule_of(self)->finish(self, &u.piece, square, hyper));
    if (!u.rounded) return ISO_OK;
    return iso__master_round(self->module->device, u.type, count, u.piece.value, u.rounded);
}

iso_status iso__base_update(iso_optimizer *optimizer, int i, const void *gradient, double scale,
                            const iso_hyper *hyper) {
    iso__base_optimizer *self = self_of(optimizer);
    int64_t count = self->slot[i].parameter->value->count;
    return iso__update_piece(self, i, 0, count, gradient, scale, hyper);
}

// A layer that backward did not reach gets a gradient of zeros. So momentum and decay act on it
// alike on every rank, whichever ranks used the layer.
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
    iso__dp_state_destroy(self);
    for (int i = 0; i < ISO_OPTIMIZER_STATES; i++) iso_tensor_destroy(&self->state[i]);
    for (int g = 1; g < self->groups; g++) iso__free(self->group[g - 1]);
    iso__free(self->group);
    iso__free(self->saved_group);
    iso_parameter_list_destroy(&self->list);
    iso_module_destroy(&self->module);
    iso__free(self->slot);
    iso__free(self);
}
