// SPDX-License-Identifier: MIT
// Group normalisation (Wu and He, Group Normalization, 2018).
#include "nn/nn_impl.h"

typedef struct group_norm {
    iso_module base;
    iso_group_norm_config config; // with eps filled in
    iso_parameter *weight, *bias; // NULL: none
} group_norm;

static iso_tensor *value_of(const iso_parameter *p) { return p ? p->value : NULL; }
static iso_tensor *wanted_grad(const iso_parameter *p) {
    return p && p->requires_grad ? p->grad : NULL;
}

// A call keeps a copy of an input in another layout in aux[0], and statistics in aux[1].
static const iso_tensor *logical_input(const iso_call *call) {
    return call->in->layout == ISO_LAYOUT_LOGICAL ? call->in : call->aux[0];
}

static iso_status forward_group_norm(iso_module *self, iso_call *call, iso_tensor *in,
                                     iso_tensor **out) {
    const group_norm *l = iso_container_of(self, group_norm, base);
    const iso_group_norm_config *c = &l->config;
    if (in->ndim < 2 || in->shape[1] != c->num_channels)
        return iso__shape_error(self, in, "[N, %lld, ...]", (long long)c->num_channels);
    iso_tensor *x;
    ISO_TRY(iso__call_layout(self, &call->aux[0], ISO_LAYOUT_LOGICAL, in, &x));
    ISO_TRY(iso__call_tensor_of(self, iso__is_half(in->dtype) ? ISO_F32 : in->dtype, &call->aux[1],
                                2, (int64_t[]){in->shape[0] * c->num_groups, 3},
                                ISO_LAYOUT_LOGICAL));
    ISO_TRY(iso_call_tensor(self, &call->out, in->ndim, in->shape, ISO_LAYOUT_LOGICAL));
    *out = call->out;
    return iso__kernels(in)->group_norm_forward(self->device, c->num_groups, c->eps, x,
                                                value_of(l->weight), value_of(l->bias),
                                                call->aux[1], call->out);
}

static iso_status backward_params(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    const group_norm *l = iso_container_of(self, group_norm, base);
    iso_tensor *dw = wanted_grad(l->weight), *db = wanted_grad(l->bias);
    if (!dw && !db) return ISO_OK;
    return iso__kernels(call->in)->group_norm_backward_params(
        self->device, l->config.num_groups, logical_input(call), grad_out, call->aux[1], dw,
        l->weight->grad_valid, db, l->bias->grad_valid);
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    const group_norm *l = iso_container_of(self, group_norm, base);
    ISO_TRY(iso__kernels(call->in)->group_norm_backward_input(
        self->device, l->config.num_groups, logical_input(call), value_of(l->weight), grad_out,
        call->aux[1], grad_out));
    return iso__call_layout(self, &call->grad_in, call->in->layout, grad_out, grad_in);
}

static void tie_group_norm(iso_module *self) {
    group_norm *l = iso_container_of(self, group_norm, base);
    l->weight = self->parameter[0];
    l->bias = self->parameter[1];
}

static iso_status check_device(const iso_module *self, const iso_device *device) {
    return iso__check_kernel(device, device->kernels[ISO_F32]->group_norm_forward, self->ops->type);
}

static const iso_module_ops group_norm_ops = {
    .type = "GroupNorm",
    .forward = forward_group_norm,
    .backward_params = backward_params,
    .backward_input = backward_input,
    .tied = tie_group_norm,
    .runs_on = check_device,
    .takes_half = true,
    .keeps_parameters = true,
};

static iso_status check_config(const iso_group_norm_config *c) {
    ISO_CHECK(c->num_groups > 0 && c->num_channels > 0 && c->num_channels % c->num_groups == 0,
              ISO_ERR_ARG,
              "a GroupNorm of %lld channels in %lld groups: the number of channels must be a "
              "multiple of the number of groups, which is at least 1",
              (long long)c->num_channels, (long long)c->num_groups);
    ISO_CHECK(c->eps >= 0, ISO_ERR_ARG, "a GroupNorm with eps %g: it must not be negative", c->eps);
    return ISO_OK;
}

iso_status iso_group_norm_create(iso_device *device, const iso_group_norm_config *config,
                                 iso_module **out) {
    ISO_TRY(check_config(config));
    ISO_TRY(iso__check_kernel(device, device->kernels[ISO_F32]->group_norm_forward, "GroupNorm"));
    iso_module *module = NULL;
    iso_status status = ISO_OK;
    ISO_TRY_GOTO(iso__module_new(sizeof(group_norm), &group_norm_ops, device, &module));
    group_norm *l = iso_container_of(module, group_norm, base);
    l->config = *config;
    if (l->config.eps == 0) l->config.eps = 1e-5;
    if (!config->no_affine) {
        int64_t channels = config->num_channels;
        ISO_TRY_GOTO(iso_module_add_parameter(module, "weight", 1, &channels, &l->weight));
        ISO_TRY_GOTO(iso_tensor_fill(l->weight->value, 1));
        ISO_TRY_GOTO(iso_module_add_parameter(module, "bias", 1, &channels, &l->bias));
    }
    *out = module;
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    return status;
}
