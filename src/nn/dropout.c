// SPDX-License-Identifier: MIT
// Dropout of elements and of channels. The mask is drawn anew in backward, which costs less than
// keeping it.
#include "nn/nn_impl.h"

typedef struct dropout {
    iso_module base;
    double p;
    bool channels;
    iso__philox_key key;
} dropout;

// Evaluation (a call without a number) and p = 0 hand the tensors through.
static bool is_identity(const dropout *l, const iso_call *call) {
    return call->number == 0 || l->p == 0;
}

static iso__dropout_draw draw_of(const dropout *l, const iso_call *call) {
    return (iso__dropout_draw){.key = l->key,
                               .number = call->number,
                               .first_row = l->base.first_row,
                               .p = l->p,
                               .channels = l->channels};
}

static iso_status forward_dropout(iso_module *self, iso_call *call, iso_tensor *in,
                                  iso_tensor **out) {
    dropout *l = iso_container_of(self, dropout, base);
    if (l->channels && in->ndim != 4) return iso__shape_error(self, in, "[N, C, H, W]");
    *out = in;
    if (is_identity(l, call)) return ISO_OK;
    iso__dropout_draw draw = draw_of(l, call);
    ISO_TRY(iso_call_tensor(self, &call->out, in->ndim, in->shape, in->layout));
    *out = call->out;
    return iso__kernels(call->in)->dropout(self->device, &draw, in, call->out);
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    dropout *l = iso_container_of(self, dropout, base);
    *grad_in = grad_out; // in place: grad_out is ours to consume
    if (is_identity(l, call)) return ISO_OK;
    iso__dropout_draw draw = draw_of(l, call);
    return iso__kernels(call->in)->dropout(self->device, &draw, grad_out, grad_out);
}

static const iso_module_ops dropout_ops = {
    .type = "Dropout",
    .forward = forward_dropout,
    .backward_input = backward_input,
    .takes_half = true,
    .keeps_parameters = true,
};
static const iso_module_ops dropout2d_ops = {
    .type = "Dropout2d",
    .forward = forward_dropout,
    .backward_input = backward_input,
    .takes_half = true,
    .keeps_parameters = true,
};

static iso_status create_dropout(iso_device *device, const iso_module_ops *ops, double p,
                                 iso_rng *rng, iso_module **out) {
    ISO_CHECK(p >= 0 && p < 1, ISO_ERR_ARG, "a %s with probability %g: it must be in [0, 1)",
              ops->type, p);
    ISO_CHECK(rng, ISO_ERR_ARG, "a %s needs a source of random numbers", ops->type);
    iso_module *module;
    ISO_TRY(iso__module_new(sizeof(dropout), ops, device, &module));
    dropout *l = iso_container_of(module, dropout, base);
    l->p = p;
    l->channels = ops == &dropout2d_ops;
    l->key = iso__philox_key_make(rng->seed, ISO_RNG_DROPOUT, rng->next_stream++);
    *out = module;
    return ISO_OK;
}

iso_status iso_dropout_create(iso_device *device, double p, iso_rng *rng, iso_module **out) {
    return create_dropout(device, &dropout_ops, p, rng, out);
}

iso_status iso_dropout2d_create(iso_device *device, double p, iso_rng *rng, iso_module **out) {
    return create_dropout(device, &dropout2d_ops, p, rng, out);
}

void *iso__dropout_key(iso_module *module) {
    if (module->ops != &dropout_ops && module->ops != &dropout2d_ops) return NULL;
    _Static_assert(sizeof(iso__philox_key) == 8, "saved as one number");
    return &iso_container_of(module, dropout, base)->key;
}
