// SPDX-License-Identifier: MIT
// Multi-head self-attention: a projection to queries, keys and values, attention, and a projection
// of its output.
#include "nn/nn_impl.h"

#include <math.h>

// Its child is out_proj.
typedef struct attention {
    iso_module base;
    int64_t embed, heads;
    bool causal;
    iso_parameter *weight, *bias; // of the projection to queries, keys and values; bias NULL: none
} attention;

// A call keeps queries, keys and values in aux[0], and the weights of attention in aux[1].
static iso_status forward_attention(iso_module *self, iso_call *call, iso_tensor *in,
                                    iso_tensor **out) {
    const attention *l = iso_container_of(self, attention, base);
    const iso_kernel_ops *kernels = iso__kernels(in);
    if (in->ndim != 3 || in->shape[2] != l->embed)
        return iso__shape_error(self, in, "[N, L, %lld]", (long long)l->embed);
    int64_t n = in->shape[0], length = in->shape[1];
    ISO_TRY(iso_call_tensor(self, &call->aux[0], 3, (int64_t[]){n, length, 3 * l->embed},
                            ISO_LAYOUT_LOGICAL));
    ISO_TRY(iso_call_tensor(self, &call->aux[1], 4, (int64_t[]){n, l->heads, length, length},
                            ISO_LAYOUT_LOGICAL));
    ISO_TRY(iso_call_tensor(self, &call->out, 3, in->shape, ISO_LAYOUT_LOGICAL));
    iso_tensor x = iso__rows_of(in), qkv = iso__rows_of(call->aux[0]);
    ISO_TRY(kernels->linear_forward(self->device, &x, l->weight->value, NULL,
                                    l->bias ? l->bias->value : NULL, ISO_ACT_NONE, &qkv));
    ISO_TRY(kernels->attention_forward(self->device, l->heads, l->causal, call->aux[0],
                                       call->aux[1], call->out));
    return iso_module_call(self->child[0], ISO_ACT_NONE, call->out, out);
}

static iso_status backward_projection(iso_module *self, iso_call *call, iso_tensor **grad_in) {
    const attention *l = iso_container_of(self, attention, base);
    const iso_kernel_ops *kernels = iso__kernels(call->in);
    iso_tensor x = iso__rows_of(call->in), dqkv = iso__rows_of(call->aux[0]);
    iso_tensor *dw = l->weight->requires_grad ? l->weight->grad : NULL;
    iso_tensor *db = l->bias && l->bias->requires_grad ? l->bias->grad : NULL;
    if (dw || db)
        ISO_TRY(kernels->linear_backward_params(self->device, &x, &dqkv, dw, l->weight->grad_valid,
                                                db, l->bias && l->bias->grad_valid));
    if (!grad_in) return ISO_OK;
    ISO_TRY(iso_call_tensor(self, &call->grad_in, 3, call->in->shape, ISO_LAYOUT_LOGICAL));
    *grad_in = call->grad_in;
    iso_tensor dx = iso__rows_of(call->grad_in);
    return kernels->linear_backward_input(self->device, &dqkv, l->weight->value, &dx);
}

static iso_status backward_attention(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                     iso_tensor **grad_in) {
    const attention *l = iso_container_of(self, attention, base);
    bool below = grad_in || iso__module_trains_own(self);
    iso_tensor *dy;
    ISO_TRY(iso_module_call_backward(self->child[0], grad_out, below ? &dy : NULL));
    if (!below) return ISO_OK;
    ISO_TRY(iso__kernels(call->in)->attention_backward(self->device, l->heads, dy, call->aux[1],
                                                       call->aux[0]));
    return backward_projection(self, call, grad_in);
}

static void tie_attention(iso_module *self) {
    attention *l = iso_container_of(self, attention, base);
    l->weight = self->parameter[0];
    if (l->bias) l->bias = self->parameter[1];
}

static const iso_module_ops attention_ops = {
    .type = "MultiheadAttention",
    .forward = forward_attention,
    .backward = backward_attention,
    .tied = tie_attention,
    .keeps_parameters = true,
};

// ---- Creation -------------------------------------------------------------------------------------

static iso_status check_config(const iso_attention_config *c) {
    ISO_CHECK(c->embed_dim > 0 && c->num_heads > 0 && c->embed_dim % c->num_heads == 0, ISO_ERR_ARG,
              "a MultiheadAttention of width %lld with %lld heads: the width must be a multiple of "
              "the number of heads, which is at least 1",
              (long long)c->embed_dim, (long long)c->num_heads);
    return ISO_OK;
}

// As torch.nn.MultiheadAttention: xavier_uniform_ of the whole in_proj_weight, and biases of 0.
static iso_status make_projection(iso_module *module, const iso_attention_config *c, iso_rng *rng) {
    attention *l = iso_container_of(module, attention, base);
    int64_t shape[2] = {3 * c->embed_dim, c->embed_dim};
    ISO_TRY(iso_module_add_parameter(module, "in_proj_weight", 2, shape, &l->weight));
    ISO_TRY(iso__init_within(l->weight, sqrt(6 / (double)(shape[0] + shape[1])), rng));
    if (c->no_bias) return ISO_OK;
    return iso_module_add_parameter(module, "in_proj_bias", 1, shape, &l->bias);
}

static iso_status make_output(iso_module *module, const iso_attention_config *c, iso_rng *rng) {
    iso_module *output;
    ISO_TRY(
        iso_linear_create(module->device, c->embed_dim, c->embed_dim, !c->no_bias, rng, &output));
    if (!c->no_bias) ISO_TRY(iso_tensor_fill(output->parameter[1]->value, 0));
    return iso_module_add_child_take(module, "out_proj", output);
}

iso_status iso_multihead_attention_create(iso_device *device, const iso_attention_config *config,
                                          iso_rng *rng, iso_module **out) {
    ISO_TRY(check_config(config));
    ISO_CHECK(rng, ISO_ERR_ARG,
              "a MultiheadAttention needs a source of random numbers for its initial values");
    ISO_TRY(iso__check_kernel(device, device->kernels[ISO_F32]->attention_forward,
                              "MultiheadAttention"));
    iso_module *module = NULL;
    iso_status status = ISO_OK;
    ISO_TRY_GOTO(iso__module_new(sizeof(attention), &attention_ops, device, &module));
    attention *l = iso_container_of(module, attention, base);
    l->embed = config->embed_dim;
    l->heads = config->num_heads;
    l->causal = config->causal;
    ISO_TRY_GOTO(make_projection(module, config, rng));
    ISO_TRY_GOTO(make_output(module, config, rng));
    *out = module;
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    return status;
}
