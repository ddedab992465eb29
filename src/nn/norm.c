// SPDX-License-Identifier: MIT
// Normalisation layers: batch norm with its running statistics, and layer norm.
#include "nn/nn_impl.h"

#include <string.h>

static double or_default(double value, double otherwise) { return value != 0 ? value : otherwise; }

static iso_status add_affine(iso_module *module, int ndim, const int64_t *shape,
                             iso_parameter **weight, iso_parameter **bias) {
    ISO_TRY(iso_module_add_parameter(module, "weight", ndim, shape, weight));
    ISO_TRY(iso_tensor_fill((*weight)->value, 1));
    ISO_TRY(iso_module_add_parameter(module, "bias", ndim, shape, bias));
    return ISO_OK;
}

static iso_tensor *value_of(const iso_parameter *p) { return p ? p->value : NULL; }
static iso_tensor *wanted_grad(const iso_parameter *p) {
    return p && p->requires_grad ? p->grad : NULL;
}
static bool does_accumulate(const iso_parameter *p) { return p && p->grad_valid; }

// ---- BatchNorm ---------------------------------------------------------------------------------

typedef struct batch_norm {
    iso_module base;
    iso_batch_norm_config config;                   // with defaults filled in
    iso_parameter *weight, *bias;                   // NULL: none
    iso_buffer *running_mean, *running_var, *count; // NULL: none
    iso__norm_sync sync;                            // zero: the statistics are this rank's own
} batch_norm;

static const iso_module_ops batch_norm1d_ops, batch_norm2d_ops;

static iso_status check_input(const batch_norm *l, const iso_tensor *in, bool alone) {
    const iso_module *self = &l->base;
    long long c = (long long)l->config.num_features;
    bool two = self->ops == &batch_norm2d_ops;
    if ((two ? in->ndim != 4 : in->ndim != 2 && in->ndim != 3) || in->shape[1] != c)
        return two ? iso__shape_error(self, in, "[N, %lld, H, W]", c)
                   : iso__shape_error(self, in, "[N, %lld] or [N, %lld, L]", c, c);
    if (alone && in->count == c)
        return iso__shape_error(self, in,
                                "more than one value per channel in training (use a larger batch, "
                                "or drop the last one)");
    return ISO_OK;
}

// The kernel counts the batch, unless the host must know how many there were.
static iso_status count_batch(const batch_norm *l, iso__batch_norm_args *args) {
    void *mapped;
    args->factor = l->config.momentum;
    if (!l->count) return ISO_OK;
    if (!l->config.cumulative_average) {
        args->tracked = l->count->value;
        return ISO_OK;
    }
    ISO_TRY(iso_tensor_map(l->count->value, ISO_READ_WRITE, &mapped));
    int64_t count = ++*(int64_t *)mapped;
    ISO_TRY(iso_tensor_unmap(l->count->value));
    args->factor = 1 / (double)count;
    return ISO_OK;
}

// Forward and backward must decide alike: a call without a number was in evaluation mode.
static bool takes_batch_statistics(const batch_norm *l, const iso_call *call) {
    return call->number > 0 || !l->running_mean;
}

// In training only, so that ranks may evaluate on their own.
static bool shares_statistics(const batch_norm *l, const iso_call *call) {
    return l->sync.group.sum && call->number > 0;
}

// The record of a failed exchange gets the name of the layer.
static iso_status name_failure(const batch_norm *l, iso_status status) {
    char label[ISO_LABEL_ROOM], said[sizeof(iso_last_error()->message)];
    if (status >= 0) return status;
    memcpy(said, iso_last_error()->message, sizeof(said));
    return ISO_FAIL(status, "%s could not exchange its statistics: %s",
                    iso__module_label(&l->base, label), said);
}

static iso__batch_norm_args args_of(const batch_norm *l, const iso_call *call) {
    return (iso__batch_norm_args){.eps = l->config.eps,
                                  .batch = takes_batch_statistics(l, call),
                                  .act = call->activation,
                                  .weight = value_of(l->weight),
                                  .bias = value_of(l->bias)};
}

static iso_status batch_norm_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                     iso_tensor **out) {
    batch_norm *l = iso_container_of(self, batch_norm, base);
    iso__batch_norm_args args = args_of(l, call);
    bool shares = shares_statistics(l, call);
    ISO_TRY(check_input(l, in, args.batch && !shares));
    const iso_kernel_ops *kernels = iso__kernels(in);
    int64_t room = (int64_t)(kernels->batch_norm_workspace(self->device, in) / sizeof(float)) + 1;
    ISO_TRY(iso__call_tensor_of(self, ISO_F32, &call->aux[0], 1, &room, ISO_LAYOUT_LOGICAL));
    ISO_TRY(iso_call_tensor(self, &call->out, in->ndim, in->shape, in->layout));
    if (shares) ISO_TRY(name_failure(l, iso__norm_sync_moments(&l->sync, in, &args)));
    if (call->number > 0) ISO_TRY(count_batch(l, &args));
    if (l->running_mean) {
        args.running_mean = l->running_mean->value;
        args.running_var = l->running_var->value;
    }
    *out = call->out;
    return kernels->batch_norm_forward(self->device, &args, in, call->out, call->aux[0]->data);
}

// The gradients of the parameters, and the sums over all ranks on which that of the input depends.
static iso_status shared_sums(batch_norm *l, iso_call *call, iso_tensor *grad_out,
                              iso__batch_norm_args *args) {
    ISO_TRY(iso__kernels(call->in)->batch_norm_sums(
        l->base.device, args, call->in, grad_out, call->aux[0]->data, wanted_grad(l->weight),
        does_accumulate(l->weight), wanted_grad(l->bias), does_accumulate(l->bias),
        l->sync.numbers));
    return name_failure(l, iso__norm_sync_sums(&l->sync, call->in, args));
}

// Both gradients at once: the second reads what the first has just brought into the cache. Those of
// the parameters are too small for it to matter that they leave a little later.
static iso_status batch_norm_backward(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                      iso_tensor **grad_in) {
    batch_norm *l = iso_container_of(self, batch_norm, base);
    if (!grad_in && !iso__module_trains_own(self)) return ISO_OK;
    iso__batch_norm_args args = args_of(l, call);
    if (grad_in && shares_statistics(l, call)) ISO_TRY(shared_sums(l, call, grad_out, &args));
    if (grad_in) *grad_in = grad_out; // in place: grad_out is ours to consume
    return iso__kernels(call->in)->batch_norm_backward(
        self->device, &args, call->in, grad_out, call->aux[0]->data, wanted_grad(l->weight),
        does_accumulate(l->weight), wanted_grad(l->bias), does_accumulate(l->bias),
        grad_in ? grad_out : NULL);
}

static void batch_norm_tied(iso_module *self) {
    batch_norm *l = iso_container_of(self, batch_norm, base);
    l->weight = self->parameter[0];
    l->bias = self->parameter[1];
}

static void batch_norm_destroy(iso_module *self) {
    iso__norm_sync_destroy(&iso_container_of(self, batch_norm, base)->sync);
}

static const iso_module_ops batch_norm1d_ops = {
    .type = "BatchNorm1d",
    .forward = batch_norm_forward,
    .backward = batch_norm_backward,
    .tied = batch_norm_tied,
    .destroy = batch_norm_destroy,
    .fuses_relu = true,
    .takes_half = true,
    .keeps_parameters = true,
};
static const iso_module_ops batch_norm2d_ops = {
    .type = "BatchNorm2d",
    .forward = batch_norm_forward,
    .backward = batch_norm_backward,
    .tied = batch_norm_tied,
    .destroy = batch_norm_destroy,
    .fuses_relu = true,
    .takes_half = true,
    .keeps_parameters = true,
};

static iso_status fill_batch_norm(batch_norm *l) {
    iso_module *module = &l->base;
    const int64_t *features = &l->config.num_features;
    if (!l->config.no_affine) ISO_TRY(add_affine(module, 1, features, &l->weight, &l->bias));
    if (l->config.no_running_stats) return ISO_OK;
    ISO_TRY(iso_module_add_buffer(module, "running_mean", ISO_F32, 1, features, &l->running_mean));
    ISO_TRY(iso_module_add_buffer(module, "running_var", ISO_F32, 1, features, &l->running_var));
    ISO_TRY(iso_tensor_fill(l->running_var->value, 1));
    return iso_module_add_buffer(module, "num_batches_tracked", ISO_I64, 0, NULL, &l->count);
}

static iso_status batch_norm_create(iso_device *device, const iso_module_ops *ops,
                                    const iso_batch_norm_config *c, iso_module **out) {
    ISO_CHECK(c->num_features > 0, ISO_ERR_ARG, "a %s of %lld features: give at least 1", ops->type,
              (long long)c->num_features);
    ISO_CHECK(c->eps >= 0 && c->momentum >= 0 && c->momentum <= 1, ISO_ERR_ARG,
              "a %s with eps %g and momentum %g: eps must not be negative, momentum in [0, 1]",
              ops->type, c->eps, c->momentum);
    iso_module *module = NULL;
    ISO_TRY(iso__module_new(sizeof(batch_norm), ops, device, &module));
    batch_norm *l = iso_container_of(module, batch_norm, base);
    l->config = *c;
    l->config.eps = or_default(c->eps, 1e-5);
    l->config.momentum = or_default(c->momentum, 0.1);
    iso_status status = fill_batch_norm(l);
    if (status < 0) iso_module_destroy(&module);
    ISO_TRY(status);
    *out = module;
    return ISO_OK;
}

iso_status iso_batch_norm1d_create(iso_device *device, const iso_batch_norm_config *config,
                                   iso_module **out) {
    return batch_norm_create(device, &batch_norm1d_ops, config, out);
}

iso_status iso_batch_norm2d_create(iso_device *device, const iso_batch_norm_config *config,
                                   iso_module **out) {
    return batch_norm_create(device, &batch_norm2d_ops, config, out);
}

int64_t iso__batch_norm_features(const iso_module *module) {
    if (module->ops != &batch_norm1d_ops && module->ops != &batch_norm2d_ops) return 0;
    return iso_container_of(module, const batch_norm, base)->config.num_features;
}

iso_status iso__batch_norm_share(iso_module *module, const iso__norm_group *group) {
    batch_norm *l = iso_container_of(module, batch_norm, base);
    iso__norm_sync sync;
    ISO_TRY(iso__norm_sync_create(l->config.num_features, group, &sync));
    iso__norm_sync_destroy(&l->sync);
    l->sync = sync;
    return ISO_OK;
}

void *iso__batch_norm_user(const iso_module *module) {
    return iso_container_of(module, const batch_norm, base)->sync.group.user;
}

// ---- LayerNorm ---------------------------------------------------------------------------------

typedef struct layer_norm {
    iso_module base;
    iso_layer_norm_config config; // with eps filled in
    int64_t size;                 // elements that are normalised together
    iso_parameter *weight, *bias; // NULL: none
} layer_norm;

static iso_status layer_norm_misfit(const layer_norm *l, const iso_tensor *in) {
    char shape[128];
    iso__shape_text(l->config.ndim, l->config.normalized_shape, shape, sizeof(shape));
    return iso__shape_error(&l->base, in, "[N, ...] that ends in %s", shape);
}

static iso_status layer_norm_forward(iso_module *self, iso_call *call, iso_tensor *in,
                                     iso_tensor **out) {
    layer_norm *l = iso_container_of(self, layer_norm, base);
    int ndim = l->config.ndim;
    if (in->ndim < ndim || memcmp(in->shape + in->ndim - ndim, l->config.normalized_shape,
                                  (size_t)ndim * sizeof(in->shape[0])) != 0)
        return layer_norm_misfit(l, in);
    iso_tensor *x;
    int64_t statistics[2] = {in->count / l->size, 3};
    iso_dtype statistics_type = iso__is_half(in->dtype) ? ISO_F32 : in->dtype;
    ISO_TRY(iso__call_layout(self, &call->aux[0], ISO_LAYOUT_LOGICAL, in, &x));
    ISO_TRY(iso__call_tensor_of(self, statistics_type, &call->aux[1], 2, statistics,
                                ISO_LAYOUT_LOGICAL));
    ISO_TRY(iso_call_tensor(self, &call->out, in->ndim, in->shape, ISO_LAYOUT_LOGICAL));
    *out = call->out;
    return iso__kernels(in)->layer_norm_forward(self->device, l->config.eps, l->size, x,
                                                value_of(l->weight), value_of(l->bias),
                                                call->aux[1], call->out);
}

static iso_tensor *logical_input(const iso_call *call) {
    return call->in->layout == ISO_LAYOUT_LOGICAL ? call->in : call->aux[0];
}

static iso_status layer_norm_backward_params(iso_module *self, iso_call *call,
                                             iso_tensor *grad_out) {
    layer_norm *l = iso_container_of(self, layer_norm, base);
    iso_tensor *dw = wanted_grad(l->weight), *db = wanted_grad(l->bias);
    if (!dw && !db) return ISO_OK;
    return iso__kernels(call->in)->layer_norm_backward_params(
        self->device, l->size, logical_input(call), grad_out, call->aux[1], dw,
        does_accumulate(l->weight), db, does_accumulate(l->bias));
}

static iso_status layer_norm_backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                            iso_tensor **grad_in) {
    layer_norm *l = iso_container_of(self, layer_norm, base);
    ISO_TRY(iso__kernels(call->in)->layer_norm_backward_input(
        self->device, l->size, logical_input(call), value_of(l->weight), grad_out, call->aux[1],
        grad_out));
    return iso__call_layout(self, &call->grad_in, call->in->layout, grad_out, grad_in);
}

static void layer_norm_tied(iso_module *self) {
    layer_norm *l = iso_container_of(self, layer_norm, base);
    l->weight = self->parameter[0];
    l->bias = self->parameter[1];
}

static const iso_module_ops layer_norm_ops = {
    .type = "LayerNorm",
    .forward = layer_norm_forward,
    .backward_params = layer_norm_backward_params,
    .backward_input = layer_norm_backward_input,
    .tied = layer_norm_tied,
    .takes_half = true,
    .keeps_parameters = true,
};

static iso_status check_layer_norm(const iso_layer_norm_config *c) {
    ISO_CHECK(c->ndim >= 1 && c->ndim <= ISO_MAX_DIMS, ISO_ERR_ARG,
              "a LayerNorm over the last %d dimensions: give 1 to %d", c->ndim, ISO_MAX_DIMS);
    ISO_CHECK(c->eps >= 0, ISO_ERR_ARG, "a LayerNorm with eps %g: it must not be negative", c->eps);
    for (int i = 0; i < c->ndim; i++)
        ISO_CHECK(c->normalized_shape[i] > 0, ISO_ERR_ARG,
                  "a LayerNorm over a dimension of %lld: each must be at least 1",
                  (long long)c->normalized_shape[i]);
    return ISO_OK;
}

iso_status iso_layer_norm_create(iso_device *device, const iso_layer_norm_config *config,
                                 iso_module **out) {
    ISO_TRY(check_layer_norm(config));
    iso_module *module = NULL;
    ISO_TRY(iso__module_new(sizeof(layer_norm), &layer_norm_ops, device, &module));
    layer_norm *l = iso_container_of(module, layer_norm, base);
    l->config = *config;
    l->config.eps = or_default(config->eps, 1e-5);
    l->size = 1;
    for (int i = 0; i < config->ndim; i++) l->size *= config->normalized_shape[i];
    iso_status status = ISO_OK;
    if (!config->no_affine)
        status = add_affine(module, config->ndim, config->normalized_shape, &l->weight, &l->bias);
    if (status < 0) iso_module_destroy(&module);
    ISO_TRY(status);
    *out = module;
    return ISO_OK;
}
