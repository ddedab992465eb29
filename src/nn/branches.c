// SPDX-License-Identifier: MIT
// A container of branches side by side: child i takes input i and gives output i.
#include "nn/nn_impl.h"

static iso_status forward_branches(iso_module *self, iso_call *call, const iso_tensors *in,
                                   iso_tensors *out) {
    (void)call;
    char text[32];
    if (in->count != self->child_count) {
        snprintf(text, sizeof(text), "%d tensor%s, one for each branch,", self->child_count,
                 ISO_PLURAL(self->child_count));
        return iso__count_error(self, in->count, text);
    }
    for (int i = 0; i < in->count; i++) {
        self->child[i]->source = self->source;
        ISO_TRY(iso_module_call(self->child[i], ISO_ACT_NONE, in->item[i], &out->item[i]));
    }
    out->count = in->count;
    return ISO_OK;
}

// The last child comes first: its parameters were registered last, and gradients leave in reverse
// order. A module may be in several branches, so either all its calls are undone or none.
static iso_status backward_branches(iso_module *self, iso_call *call, const iso_tensors *grad_out,
                                    unsigned wanted, iso_tensors *grad_in) {
    (void)call;
    for (int i = self->child_count - 1; i >= 0; i--) {
        iso_module *child = self->child[i];
        iso_tensor **slot = wanted >> i & 1 ? &grad_in->item[i] : NULL;
        if (wanted || iso__module_trains(child))
            ISO_TRY(iso_module_call_backward(child, grad_out->item[i], slot));
    }
    return ISO_OK;
}

static const iso_module_ops branches_ops = {
    .type = "Branches",
    .forward_many = forward_branches,
    .backward_many = backward_branches,
    .takes_half = true,
    .keeps_parameters = true,
};

iso_status iso_branches_create(iso_device *device, iso_module **out) {
    return iso__module_new(sizeof(iso_module), &branches_ops, device, out);
}

iso_status iso_branches_add_take(iso_module *branches, const char *name, iso_module *module) {
    bool full = branches->ops == &branches_ops && branches->child_count == ISO_MODULE_TENSORS;
    if (!full) return iso__module_add_numbered_take(branches, &branches_ops, name, module);
    iso_module_destroy(&module);
    return ISO_FAIL(ISO_ERR_ARG, "a Branches has at most %d branches", ISO_MODULE_TENSORS);
}
