// SPDX-License-Identifier: MIT
// Embeddings of indices, and of positions.
#include "nn/nn_impl.h"

// ---- Embedding ------------------------------------------------------------------------------------

typedef struct embedding {
    iso_module base;
    iso_embedding_config config;
    iso_parameter *weight;
} embedding;

static iso_status forward_embedding(iso_module *self, iso_call *call, iso_tensor *in,
                                    iso_tensor **out) {
    embedding *l = iso_container_of(self, embedding, base);
    int64_t shape[ISO_MAX_DIMS];
    if (in->ndim >= ISO_MAX_DIMS)
        return iso__shape_error(self, in, "at most %d dimensions", ISO_MAX_DIMS - 1);
    for (int i = 0; i < in->ndim; i++) shape[i] = in->shape[i];
    shape[in->ndim] = l->config.embedding_dim;
    ISO_TRY(iso_call_tensor(self, &call->out, in->ndim + 1, shape, ISO_LAYOUT_LOGICAL));
    *out = call->out;
    return iso__kernels(call->out)->embedding_forward(self->device, in, l->weight->value,
                                                      call->out);
}

static iso_status backward_embedding(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    const embedding *l = iso_container_of(self, embedding, base);
    if (!l->weight->requires_grad) return ISO_OK;
    int64_t skipped = l->config.has_padding ? l->config.padding_idx : -1;
    return iso__kernels(grad_out)->embedding_backward(self->device, call->in, skipped, grad_out,
                                                      l->weight->grad, l->weight->grad_valid);
}

static void tie_embedding(iso_module *self) {
    iso_container_of(self, embedding, base)->weight = self->parameter[0];
}

static iso_status check_device(const iso_module *self, const iso_device *device) {
    return iso__check_kernel(device, device->kernels[ISO_F32]->embedding_forward, self->ops->type);
}

static const iso_module_ops embedding_ops = {
    .type = "Embedding",
    .forward = forward_embedding,
    .backward_params = backward_embedding,
    .tied = tie_embedding,
    .takes_indices = true,
    .half_parameters = true,
    .runs_on = check_device,
    .keeps_parameters = true,
};

static iso_status check_embedding(const iso_embedding_config *c) {
    ISO_CHECK(c->num_embeddings > 0 && c->embedding_dim > 0, ISO_ERR_ARG,
              "an Embedding of %lld rows of %lld: both must be at least 1",
              (long long)c->num_embeddings, (long long)c->embedding_dim);
    ISO_CHECK(!c->has_padding || (c->padding_idx >= 0 && c->padding_idx < c->num_embeddings),
              ISO_ERR_ARG,
              "an Embedding of %lld rows with padding index %lld: give one of the rows",
              (long long)c->num_embeddings, (long long)c->padding_idx);
    ISO_CHECK(
        c->sparse_rows >= 0, ISO_ERR_ARG,
        "an Embedding with sparse_rows %lld: give the number of rows that a batch can use, or "
        "0 to exchange the whole gradient",
        (long long)c->sparse_rows);
    return ISO_OK;
}

static iso_status clear_row(iso_tensor *value, int64_t row) {
    float *memory;
    ISO_TRY(iso_tensor_map(value, ISO_READ_WRITE, (void **)&memory));
    for (int64_t i = 0; i < value->shape[1]; i++) memory[row * value->shape[1] + i] = 0;
    return iso_tensor_unmap(value);
}

iso_status iso_embedding_create(iso_device *device, const iso_embedding_config *config,
                                iso_rng *rng, iso_module **out) {
    ISO_TRY(check_embedding(config));
    ISO_CHECK(rng, ISO_ERR_ARG,
              "an Embedding needs a source of random numbers for its initial values");
    ISO_TRY(iso__check_kernel(device, device->kernels[ISO_F32]->embedding_forward, "Embedding"));
    iso_module *module = NULL;
    iso_status status = ISO_OK;
    ISO_TRY_GOTO(iso__module_new(sizeof(embedding), &embedding_ops, device, &module));
    embedding *l = iso_container_of(module, embedding, base);
    l->config = *config;
    int64_t shape[2] = {config->num_embeddings, config->embedding_dim};
    ISO_TRY_GOTO(iso_module_add_parameter(module, "weight", 2, shape, &l->weight));
    l->weight->sparse_rows = config->sparse_rows;
    ISO_TRY_GOTO(iso_init_normal(l->weight, 1, rng));
    if (config->has_padding) ISO_TRY_GOTO(clear_row(l->weight->value, config->padding_idx));
    *out = module;
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    return status;
}

// ---- PositionEmbedding ----------------------------------------------------------------------------

typedef struct position {
    iso_module base;
    iso_parameter *weight;
} position;

// Elements first .. first + count of x, as a view for a kernel call.
static iso_tensor slice_of(const iso_tensor *x, int64_t first, int64_t count) {
    iso_tensor slice = *x;
    slice.ndim = 1;
    slice.shape[0] = slice.count = count;
    slice.data = (char *)x->data + (size_t)first * iso_dtype_size(x->dtype);
    return slice;
}

static iso_status forward_position(iso_module *self, iso_call *call, iso_tensor *in,
                                   iso_tensor **out) {
    const iso_tensor *w = iso_container_of(self, position, base)->weight->value;
    if (in->ndim != 3 || in->shape[1] > w->shape[0] || in->shape[2] != w->shape[1])
        return iso__shape_error(self, in, "[N, L, %lld] with L at most %lld",
                                (long long)w->shape[1], (long long)w->shape[0]);
    ISO_CHECK(
        in->dtype == w->dtype || self->device->ops->host_memory, ISO_ERR_TYPE,
        "a PositionEmbedding of %s got %s, which device %s cannot add: put it in front of the "
        "Autocast",
        iso_dtype_name(w->dtype), iso_dtype_name(in->dtype), iso_device_name(self->device));
    ISO_TRY(iso_call_tensor(self, &call->out, 3, in->shape, ISO_LAYOUT_LOGICAL));
    *out = call->out;
    int64_t size = in->shape[1] * in->shape[2];
    iso_tensor positions = slice_of(w, 0, size);
    for (int64_t n = 0; n < in->shape[0]; n++) {
        iso_tensor x = slice_of(in, n * size, size), y = slice_of(call->out, n * size, size);
        ISO_TRY(iso__kernels(in)->add(self->device, &x, &positions, ISO_ACT_NONE, &y));
    }
    return ISO_OK;
}

// Positions beyond the length of this batch have no gradient.
static iso_status backward_position(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    iso_parameter *w = iso_container_of(self, position, base)->weight;
    int64_t size = call->in->shape[1] * call->in->shape[2];
    if (!w->requires_grad) return ISO_OK;
    if (!w->grad_valid) ISO_TRY(iso_tensor_fill(w->grad, 0));
    iso_tensor sum = slice_of(w->grad, 0, size);
    for (int64_t n = 0; n < call->in->shape[0]; n++) {
        iso_tensor dy = slice_of(grad_out, n * size, size);
        ISO_TRY(iso__kernels(grad_out)->add(self->device, &sum, &dy, ISO_ACT_NONE, &sum));
    }
    return ISO_OK;
}

static iso_status pass_gradient(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                iso_tensor **grad_in) {
    (void)self, (void)call;
    *grad_in = grad_out;
    return ISO_OK;
}

static void tie_position(iso_module *self) {
    iso_container_of(self, position, base)->weight = self->parameter[0];
}

static const iso_module_ops position_ops = {
    .type = "PositionEmbedding",
    .forward = forward_position,
    .backward_params = backward_position,
    .backward_input = pass_gradient,
    .tied = tie_position,
    .takes_half = true,
    .half_parameters = true,
    .keeps_parameters = true,
};

iso_status iso_position_embedding_create(iso_device *device, int64_t length, int64_t embedding_dim,
                                         iso_rng *rng, iso_module **out) {
    ISO_CHECK(length > 0 && embedding_dim > 0, ISO_ERR_ARG,
              "a PositionEmbedding of %lld positions of %lld: both must be at least 1",
              (long long)length, (long long)embedding_dim);
    ISO_CHECK(rng, ISO_ERR_ARG,
              "a PositionEmbedding needs a source of random numbers for its initial values");
    iso_module *module = NULL;
    iso_status status = ISO_OK;
    ISO_TRY_GOTO(iso__module_new(sizeof(position), &position_ops, device, &module));
    position *l = iso_container_of(module, position, base);
    ISO_TRY_GOTO(iso_module_add_parameter(module, "weight", 2, (int64_t[]){length, embedding_dim},
                                          &l->weight));
    ISO_TRY_GOTO(iso_init_normal(l->weight, 0.02, rng));
    *out = module;
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    return status;
}
