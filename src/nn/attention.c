// SPDX-License-Identifier: MIT
// Multi-head attention: projections to queries, keys and values, attention, and a projection of its
// output.
#include "nn/nn_impl.h"

#include <math.h>

// Its child is out_proj.
typedef struct attention {
    iso_module base;
    int64_t embed, heads;
    bool causal;
    iso_parameter *weight, *bias; // of the projection to queries, keys and values; bias NULL: none
    iso__rounded rounded;         // of the latest forwards in 16 bits
} attention;

// ---- Projections ----------------------------------------------------------------------------------

// The inputs divide the rows of the projection. One input has all rows. Of two, the first has those
// of queries, the second those of keys and values. Three have a third each. A call keeps the
// projections in aux[0] and the attention weights in aux[1][0].
static int64_t rows_for(const attention *l, int count, int i) {
    return count == 1 ? 3 * l->embed : count == 2 ? (1 + i) * l->embed : l->embed;
}

// Rows first .. first + rows of a parameter, as a view for a kernel call.
static iso_tensor take_rows(const iso_tensor *x, int64_t first, int64_t rows) {
    iso_tensor part = *x;
    int64_t width = x->count / x->shape[0];
    part.shape[0] = rows;
    part.count = rows * width;
    part.data = (char *)x->data + (size_t)(first * width) * iso_dtype_size(x->dtype);
    return part;
}

// The rows of all parameters that belong to input i.
typedef struct projection {
    iso_tensor weight, bias; // or their gradients
    iso_tensor *has_bias;    // &bias; NULL: none
} projection;

static void take_projection(const attention *l, int count, int i, iso__values of, projection *out) {
    int64_t first = i == 0 ? 0 : i * l->embed, rows = rows_for(l, count, i);
    out->weight = take_rows(of.weight, first, rows);
    if (of.bias) out->bias = take_rows(of.bias, first, rows);
    out->has_bias = of.bias ? &out->bias : NULL;
}

static iso__values gradients_of(const attention *l) {
    return (iso__values){l->weight->grad, l->bias ? l->bias->grad : NULL};
}

static iso_status project_input(iso_module *self, const iso_tensors *in, int i, iso__values values,
                                iso_tensor **slot) {
    const attention *l = iso_container_of(self, attention, base);
    const iso_tensor *from = in->item[i];
    int64_t rows = rows_for(l, in->count, i);
    projection p;
    take_projection(l, in->count, i, values, &p);
    ISO_TRY(iso_call_tensor(self, slot, 3, (int64_t[]){from->shape[0], from->shape[1], rows},
                            ISO_LAYOUT_LOGICAL));
    iso_tensor x = iso__rows_of(from), y = iso__rows_of(*slot);
    return iso__kernels(from)->linear_forward(self->device, &x, &p.weight, NULL, p.has_bias,
                                              ISO_ACT_NONE, &y);
}

// Backward of input i, from the gradients of its projection.
static iso_status backward_projection(iso_module *self, iso_call_many *many, int i,
                                      iso_tensor **grad_in) {
    const attention *l = iso_container_of(self, attention, base);
    const iso_tensor *in = many->in.item[i];
    const iso_kernel_ops *kernels = iso__kernels(in);
    iso_tensor x = iso__rows_of(in), dy = iso__rows_of(many->aux[0][i]);
    projection p;
    take_projection(l, many->in.count, i, gradients_of(l), &p);
    iso_tensor *dw = l->weight->requires_grad ? &p.weight : NULL;
    iso_tensor *db = l->bias && l->bias->requires_grad ? p.has_bias : NULL;
    if (dw || db)
        ISO_TRY(kernels->linear_backward_params(self->device, &x, &dy, dw, l->weight->grad_valid,
                                                db, l->bias && l->bias->grad_valid));
    if (!grad_in) return ISO_OK;
    ISO_TRY(iso_call_tensor(self, &many->grad_in[i], 3, in->shape, ISO_LAYOUT_LOGICAL));
    *grad_in = many->grad_in[i];
    iso_tensor dx = iso__rows_of(*grad_in);
    iso_tensor *w = iso__called_weight(self, l->weight, &l->rounded);
    take_projection(l, many->in.count, i, (iso__values){.weight = w}, &p);
    return kernels->linear_backward_input(self->device, &dy, &p.weight, &dx);
}

// ---- Attention ------------------------------------------------------------------------------------

static iso__attention_args attention_args(const iso_module *self, const iso_call_many *many) {
    const attention *l = iso_container_of(self, const attention, base);
    int count = many->in.count;
    int64_t width = l->embed * (int64_t)iso_dtype_size(many->aux[0][0]->dtype); // in bytes
    char *q = many->aux[0][0]->data;
    char *k = count == 1 ? q + width : many->aux[0][1]->data;
    char *v = count == 3 ? many->aux[0][2]->data : k + width;
    return (iso__attention_args){.heads = l->heads,
                                 .keys = many->in.item[count - 1]->shape[1],
                                 .q_stride = rows_for(l, count, 0),
                                 .kv_stride = rows_for(l, count, count - 1),
                                 .causal = l->causal,
                                 .q = q,
                                 .k = k,
                                 .v = v};
}

static iso_status check_inputs(const iso_module *self, const iso_tensors *in) {
    const attention *l = iso_container_of(self, const attention, base);
    const iso_tensor *query = in->item[0], *last = in->item[in->count - 1];
    if (in->count > 3) return iso__count_error(self, in->count, "1 to 3 tensors");
    if (query->ndim != 3 || query->shape[2] != l->embed)
        return iso__shape_error(self, query, "[N, L, %lld]", (long long)l->embed);
    int64_t n = query->shape[0];
    if (in->count > 1 && (last->ndim != 3 || last->shape[0] != n || last->shape[2] != l->embed))
        return iso__shape_error(self, last, "[%lld, S, %lld] as keys and values", (long long)n,
                                (long long)l->embed);
    if (in->count == 3 && !iso__tensor_same_shape(in->item[1], last))
        return iso__shape_error(self, in->item[1], "[%lld, %lld, %lld] as keys", (long long)n,
                                (long long)last->shape[1], (long long)l->embed);
    return ISO_OK;
}

static iso_status forward_attention(iso_module *self, iso_call *call, const iso_tensors *in,
                                    iso_tensors *out) {
    attention *l = iso_container_of(self, attention, base);
    iso_call_many *many = call->many;
    const iso_tensor *query = in->item[0];
    iso__values v;
    ISO_TRY(check_inputs(self, in));
    ISO_TRY(iso__call_values(self, ISO_LAYOUT_LOGICAL, l->weight, l->bias, &l->rounded, &v));
    for (int i = 0; i < in->count; i++) ISO_TRY(project_input(self, in, i, v, &many->aux[0][i]));
    iso__attention_args args = attention_args(self, many);
    ISO_TRY(iso_call_tensor(self, &many->aux[1][0], 4,
                            (int64_t[]){query->shape[0], l->heads, query->shape[1], args.keys},
                            ISO_LAYOUT_LOGICAL));
    ISO_TRY(iso_call_tensor(self, &many->out[0], 3, query->shape, ISO_LAYOUT_LOGICAL));
    ISO_TRY(
        iso__kernels(query)->attention_forward(self->device, &args, many->aux[1][0], many->out[0]));
    out->count = 1;
    return iso_module_call(self->child[0], ISO_ACT_NONE, many->out[0], &out->item[0]);
}

static iso_status backward_attention(iso_module *self, iso_call *call, const iso_tensors *grad_out,
                                     unsigned wanted, iso_tensors *grad_in) {
    iso_call_many *many = call->many;
    bool below = wanted || iso__module_trains_own(self);
    iso_tensor *dy;
    ISO_TRY(iso_module_call_backward(self->child[0], grad_out->item[0], below ? &dy : NULL));
    if (!below) return ISO_OK;
    iso__attention_args args = attention_args(self, many);
    ISO_TRY(iso__kernels(dy)->attention_backward(self->device, &args, dy, many->aux[1][0]));
    for (int i = 0; i < many->in.count; i++)
        ISO_TRY(backward_projection(self, many, i, wanted >> i & 1 ? &grad_in->item[i] : NULL));
    return ISO_OK;
}

static void tie_attention(iso_module *self) {
    attention *l = iso_container_of(self, attention, base);
    l->weight = self->parameter[0];
    if (l->bias) l->bias = self->parameter[1];
}

static void drop_rounded(iso_module *self) {
    iso__rounded_destroy(&iso_container_of(self, attention, base)->rounded);
}

static iso_status check_device(const iso_module *self, const iso_device *device) {
    return iso__check_kernel(device, device->kernels[ISO_F32]->attention_forward, self->ops->type);
}

static const iso_module_ops attention_ops = {
    .type = "MultiheadAttention",
    .forward_many = forward_attention,
    .backward_many = backward_attention,
    .tied = tie_attention,
    .moved = drop_rounded,
    .destroy = drop_rounded,
    .takes_half = true,
    .half_parameters = true,
    .runs_on = check_device,
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
