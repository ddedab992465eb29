// SPDX-License-Identifier: MIT
// A container that runs its children one after the other and fuses a relu into the layer before it,
// or into a max-pooling after it: the relu then has fewer elements.
#include "nn/nn_impl.h"

// Fusion depends on the position, because a layer that occurs twice may have a relu after it in one
// place and not in the other. It follows from the kinds of the layers alone, so forward and
// backward decide alike.
static bool fused_into_next(const iso_module *self, int i) {
    return i >= 0 && i + 1 < self->child_count && iso__module_is_relu(self->child[i]) &&
           self->child[i + 1]->ops->relu_commutes;
}

static bool fused_into_previous(const iso_module *self, int i) {
    return i > 0 && i < self->child_count && iso__module_is_relu(self->child[i]) &&
           self->child[i - 1]->ops->fuses_relu && !fused_into_next(self, i);
}

static bool is_fused(const iso_module *self, int i) {
    return fused_into_previous(self, i) || fused_into_next(self, i);
}

static iso_status forward_sequential(iso_module *self, iso_call *call, const iso_tensors *in,
                                     iso_tensors *out) {
    (void)call;
    iso_tensors x = *in;
    const iso_module *source = self->source;
    for (int i = 0; i < self->child_count; i++) {
        if (is_fused(self, i)) continue;
        bool relu = fused_into_previous(self, i + 1) || fused_into_next(self, i - 1);
        iso_activation activation = relu ? ISO_ACT_RELU : ISO_ACT_NONE;
        self->child[i]->source = source;
        ISO_TRY(iso_module_call_many(self->child[i], activation, &x, &x));
        source = self->child[i];
    }
    *out = x;
    return ISO_OK;
}

// The first child whose backward has a purpose. Nothing is cached: the walk ends at the first
// parameter that requires a gradient, which is nearly always in the first layer.
static int first_needed(const iso_module *self, bool input_wanted) {
    int i = 0;
    if (!input_wanted)
        while (i < self->child_count && !iso__module_trains(self->child[i])) i++;
    return i;
}

static iso_status backward_sequential(iso_module *self, iso_call *call, const iso_tensors *grad_out,
                                      unsigned wanted, iso_tensors *grad_in) {
    (void)call;
    int first = first_needed(self, wanted != 0);
    iso_tensors g = *grad_out;
    for (int i = self->child_count - 1; i >= first; i--) {
        if (is_fused(self, i)) continue;
        unsigned of = i > first ? ISO_WANT_ALL : wanted;
        ISO_TRY(iso_module_call_backward_many(self->child[i], &g, of, &g));
    }
    *grad_in = g;
    return ISO_OK;
}

static const iso_module_ops sequential_ops = {
    .type = "Sequential",
    .forward_many = forward_sequential,
    .backward_many = backward_sequential,
    .takes_half = true,
    .keeps_parameters = true,
};

iso_status iso_sequential_create(iso_device *device, iso_module **out) {
    return iso__module_new(sizeof(iso_module), &sequential_ops, device, out);
}

iso_status iso_sequential_add_take(iso_module *sequential, const char *name, iso_module *module) {
    return iso__module_add_numbered_take(sequential, &sequential_ops, name, module);
}
