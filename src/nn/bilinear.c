// SPDX-License-Identifier: MIT
// The bilinear layer of two inputs: a linear layer of the outer product of their rows.
#include "nn/nn_impl.h"

#include <string.h>

typedef struct bilinear {
    iso_module base;
    int64_t in1, in2, out;
    iso_parameter *weight, *bias; // bias NULL: none
    iso__rounded rounded;         // of the latest forwards in 16 bits
} bilinear;

// Views weight[out, in1, in2] as the weight of the linear layer.
static iso_tensor flat_weight(const bilinear *l, const iso_tensor *weight) {
    return iso__matrix_of(weight, l->out);
}

static iso_status check_shapes(iso_module *self, const iso_tensors *in) {
    const bilinear *l = iso_container_of(self, bilinear, base);
    const iso_tensor *a = in->item[0], *b = in->item[1];
    int last = a->ndim - 1;
    char text[128];
    if (a->ndim < 2 || a->shape[last] != l->in1)
        return iso__shape_error(self, a, "[N, ..., %lld] as its first input", (long long)l->in1);
    iso_tensor expected = *a;
    expected.shape[last] = l->in2;
    if (!iso__tensor_same_shape(b, &expected))
        return iso__shape_error(self, b, "%s as its second input",
                                iso__shape_text(expected.ndim, expected.shape, text, sizeof(text)));
    return ISO_OK;
}

// A call keeps the outer product in aux[0][0], and its gradient in aux[1][0].
static iso_status forward_bilinear(iso_module *self, iso_call *call, const iso_tensors *in,
                                   iso_tensors *out) {
    bilinear *l = iso_container_of(self, bilinear, base);
    iso_call_many *many = call->many;
    const iso_tensor *a = in->item[0];
    const iso_kernel_ops *kernels = iso__kernels(a);
    int64_t rows = a->count / l->in1, shape[ISO_MAX_DIMS];
    ISO_TRY(check_shapes(self, in));
    memcpy(shape, a->shape, sizeof(shape));
    shape[a->ndim - 1] = l->out;
    ISO_TRY(iso_call_tensor(self, &many->aux[0][0], 2, (int64_t[]){rows, l->in1 * l->in2},
                            ISO_LAYOUT_LOGICAL));
    ISO_TRY(iso_call_tensor(self, &many->out[0], a->ndim, shape, ISO_LAYOUT_LOGICAL));
    iso_tensor *x[2];
    for (int i = 0; i < 2; i++)
        ISO_TRY(
            iso__call_layout(self, &many->aux[0][1 + i], ISO_LAYOUT_LOGICAL, in->item[i], &x[i]));
    iso__values v;
    ISO_TRY(iso__call_values(self, ISO_LAYOUT_LOGICAL, l->weight, l->bias, &l->rounded, &v));
    iso_tensor w = flat_weight(l, v.weight), y = iso__rows_of(many->out[0]);
    out->count = 1;
    out->item[0] = many->out[0];
    ISO_TRY(kernels->outer_forward(self->device, x[0], x[1], many->aux[0][0]));
    return kernels->linear_forward(self->device, many->aux[0][0], &w, NULL, v.bias, ISO_ACT_NONE,
                                   &y);
}

static iso_status backward_inputs(iso_module *self, iso_call_many *many, const iso_tensor *dy,
                                  unsigned wanted, iso_tensors *grad_in) {
    const bilinear *l = iso_container_of(self, bilinear, base);
    const iso_kernel_ops *kernels = iso__kernels(dy);
    const iso_tensor *x[2];
    iso_tensor *dx[2] = {NULL, NULL};
    iso_tensor w = flat_weight(l, iso__called_weight(self, l->weight, &l->rounded));
    ISO_TRY(iso_call_tensor(self, &many->aux[1][0], 2, many->aux[0][0]->shape, ISO_LAYOUT_LOGICAL));
    ISO_TRY(kernels->linear_backward_input(self->device, dy, &w, many->aux[1][0]));
    for (int i = 0; i < 2; i++) {
        const iso_tensor *in = many->in.item[i];
        x[i] = in->layout == ISO_LAYOUT_LOGICAL ? in : many->aux[0][1 + i];
        if (!(wanted >> i & 1)) continue;
        ISO_TRY(iso_call_tensor(self, &many->grad_in[i], in->ndim, in->shape, ISO_LAYOUT_LOGICAL));
        dx[i] = many->grad_in[i];
    }
    ISO_TRY(kernels->outer_backward(self->device, many->aux[1][0], x[0], x[1], dx[0], dx[1]));
    for (int i = 0; i < 2; i++)
        if (dx[i])
            ISO_TRY(iso__call_layout(self, &many->aux[1][1 + i], many->in.item[i]->layout, dx[i],
                                     &grad_in->item[i]));
    return ISO_OK;
}

static iso_status backward_bilinear(iso_module *self, iso_call *call, const iso_tensors *grad_out,
                                    unsigned wanted, iso_tensors *grad_in) {
    const bilinear *l = iso_container_of(self, bilinear, base);
    iso_parameter *w = l->weight, *b = l->bias;
    iso_tensor dy = iso__rows_of(grad_out->item[0]), flat = flat_weight(l, w->grad);
    iso_tensor *dw = w->requires_grad ? &flat : NULL, *db = b && b->requires_grad ? b->grad : NULL;
    if (dw || db)
        ISO_TRY(iso__kernels(&dy)->linear_backward_params(
            self->device, call->many->aux[0][0], &dy, dw, w->grad_valid, db, b && b->grad_valid));
    return wanted ? backward_inputs(self, call->many, &dy, wanted, grad_in) : ISO_OK;
}

static void tie_bilinear(iso_module *self) {
    bilinear *l = iso_container_of(self, bilinear, base);
    l->weight = self->parameter[0];
    if (l->bias) l->bias = self->parameter[1];
}

static void drop_rounded(iso_module *self) {
    iso__rounded_destroy(&iso_container_of(self, bilinear, base)->rounded);
}

static iso_status check_device(const iso_module *self, const iso_device *device) {
    return iso__check_kernel(device, device->kernels[ISO_F32]->outer_forward, self->ops->type);
}

static const iso_module_ops bilinear_ops = {
    .type = "Bilinear",
    .forward_many = forward_bilinear,
    .backward_many = backward_bilinear,
    .tied = tie_bilinear,
    .moved = drop_rounded,
    .destroy = drop_rounded,
    .takes_half = true,
    .half_parameters = true,
    .runs_on = check_device,
    .keeps_parameters = true,
    .inputs = 2,
};

iso_status iso_bilinear_create(iso_device *device, int64_t in1_features, int64_t in2_features,
                               int64_t out_features, bool bias, iso_rng *rng, iso_module **out) {
    ISO_CHECK(in1_features > 0 && in2_features > 0 && out_features > 0, ISO_ERR_ARG,
              "a Bilinear of %lld and %lld to %lld features: each must be at least 1",
              (long long)in1_features, (long long)in2_features, (long long)out_features);
    ISO_CHECK(rng, ISO_ERR_ARG,
              "a Bilinear needs a source of random numbers for its initial values");
    ISO_TRY(iso__check_kernel(device, device->kernels[ISO_F32]->outer_forward, "Bilinear"));
    iso_module *module = NULL;
    iso_status status = ISO_OK;
    ISO_TRY_GOTO(iso__module_new(sizeof(bilinear), &bilinear_ops, device, &module));
    bilinear *l = iso_container_of(module, bilinear, base);
    l->in1 = in1_features;
    l->in2 = in2_features;
    l->out = out_features;
    int64_t shape[3] = {l->out, l->in1, l->in2};
    ISO_TRY_GOTO(iso_module_add_parameter(module, "weight", 3, shape, &l->weight));
    ISO_TRY_GOTO(iso__init_uniform(l->weight, l->in1, rng));
    if (bias) ISO_TRY_GOTO(iso_module_add_parameter(module, "bias", 1, shape, &l->bias));
    if (bias) ISO_TRY_GOTO(iso__init_uniform(l->bias, l->in1, rng));
    *out = module;
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    return status;
}
