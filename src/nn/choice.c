// SPDX-License-Identifier: MIT
// A container that runs one of its children. A buffer says which one, so the choice is saved and
// sent with the model.
#include "nn/nn_impl.h"

#include <math.h>

typedef struct choice_layer {
    iso_module base;
    iso_buffer *chosen; // [1]: the number of a child
    int now;            // the child that the latest forward ran
} choice_layer;

// ---- The number ---------------------------------------------------------------------------------

static double number_at(const iso_tensor *t, const void *data) {
    return t->dtype == ISO_F64 ? *(const double *)data : (double)*(const float *)data;
}

// A mean over ranks may be off by its rounding.
static iso_status read_choice(iso_module *self, int *out) {
    char label[ISO_LABEL_ROOM];
    iso_tensor *value = iso_container_of(self, choice_layer, base)->chosen->value;
    void *data;
    ISO_TRY(iso_tensor_map(value, ISO_READ, &data));
    double number = number_at(value, data), whole = nearbyint(number);
    ISO_TRY(iso_tensor_unmap(value));
    bool fits = fabs(number - whole) < 0.01 && whole >= 0 && whole < self->child_count;
    ISO_CHECK(fits, ISO_ERR_STATE,
              "%s has the choice %g, and %d alternatives: set a whole number from 0 on, the same "
              "on all ranks whose buffers are averaged",
              iso__module_label(self, label), number, self->child_count);
    *out = (int)whole;
    return ISO_OK;
}

static iso_status write_choice(iso_module *self, int index) {
    iso_tensor *value = iso_container_of(self, choice_layer, base)->chosen->value;
    void *data;
    ISO_TRY(iso_tensor_map(value, ISO_WRITE, &data));
    if (value->dtype == ISO_F64)
        *(double *)data = index;
    else
        *(float *)data = (float)index;
    return iso_tensor_unmap(value);
}

// ---- Forward and backward -----------------------------------------------------------------------

static iso_status forward_choice(iso_module *self, iso_call *call, iso_tensor *in,
                                 iso_tensor **out) {
    choice_layer *c = iso_container_of(self, choice_layer, base);
    (void)call;
    ISO_TRY(read_choice(self, &c->now));
    iso_module *child = self->child[c->now];
    child->source = self->source;
    return iso_module_call(child, ISO_ACT_NONE, in, out);
}

static iso_status backward_choice(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                  iso_tensor **grad_in) {
    iso_module *child = self->child[iso_container_of(self, choice_layer, base)->now];
    (void)call;
    if (!grad_in && !iso__module_trains(child)) return ISO_OK;
    return iso_module_call_backward(child, grad_out, grad_in);
}

static const iso_module_ops choice_ops = {
    .type = "Choice",
    .forward = forward_choice,
    .backward = backward_choice,
    .takes_half = true,
    .keeps_parameters = true,
};

// ---- Creation -----------------------------------------------------------------------------------

iso_status iso_choice_create(iso_device *device, iso_module **out) {
    iso_module *module;
    ISO_TRY(iso__module_new(sizeof(choice_layer), &choice_ops, device, &module));
    iso_status status =
        iso_module_add_buffer(module, "choice", ISO_F32, 1, (int64_t[]){1},
                              &iso_container_of(module, choice_layer, base)->chosen);
    if (status < 0) iso_module_destroy(&module);
    ISO_TRY(status);
    *out = module;
    return ISO_OK;
}

iso_status iso_choice_add_take(iso_module *choice, const char *name, iso_module *module) {
    return iso__module_add_numbered_take(choice, &choice_ops, name, module);
}

// ---- Choosing -----------------------------------------------------------------------------------

static iso_status check_type(const iso_module *module) {
    ISO_CHECK(module->ops == &choice_ops, ISO_ERR_ARG, "a %s is not a Choice", module->ops->type);
    return ISO_OK;
}

iso_status iso_choice_get(iso_module *choice, int *index) {
    ISO_TRY(check_type(choice));
    return read_choice(choice, index);
}

iso_status iso_choice_set(iso_module *choice, int index) {
    char label[ISO_LABEL_ROOM];
    ISO_TRY(check_type(choice));
    ISO_CHECK(index >= 0 && index < choice->child_count, ISO_ERR_ARG,
              "%s has no alternative %d: it has %d, from 0 on", iso__module_label(choice, label),
              index, choice->child_count);
    return write_choice(choice, index);
}

typedef struct search {
    int wanted, seen; // seen: of the Choices that have several alternatives
    iso_module *found;
} search;

static iso_status visit_choice(iso_module *module, const char *name, void *user) {
    search *s = user;
    (void)name;
    if (module->ops != &choice_ops || module->child_count < 2) return ISO_OK;
    if (s->seen++ == s->wanted) s->found = module;
    return ISO_OK;
}

iso_status iso_choice_mutate(iso_module *model, uint64_t random, void *user) {
    search all = {.wanted = -1}, one;
    int now = 0;
    (void)user;
    ISO_TRY(iso_module_walk(model, visit_choice, &all));
    ISO_CHECK(all.seen > 0, ISO_ERR_ARG,
              "a model has no Choice with two alternatives, so none can be changed");
    one = (search){.wanted = (int)((random & 0xffffffff) * (uint64_t)all.seen >> 32)};
    ISO_TRY(iso_module_walk(model, visit_choice, &one));
    ISO_TRY(read_choice(one.found, &now));
    uint64_t others = (uint64_t)one.found->child_count - 1;
    int next = (int)((random >> 32) * others >> 32);
    return write_choice(one.found, next < now ? next : next + 1);
}
