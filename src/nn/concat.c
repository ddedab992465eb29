// SPDX-License-Identifier: MIT
// Concat joins tensors along a dimension, and Split cuts one tensor into several.
#include "nn/nn_impl.h"

typedef struct concat {
    iso_module base;
    int dim; // negative: counts from the end
    int parts;
    int64_t size[ISO_MODULE_TENSORS]; // Split: [parts], along dim
} concat;

// Negative if x has no such dimension.
static int dimension_of(const concat *l, const iso_tensor *x) {
    int dim = l->dim < 0 ? x->ndim + l->dim : l->dim;
    return dim < x->ndim ? dim : -1;
}

// The memory of x as rows that each hold everything from dimension dim on.
static iso_tensor rows_before(const iso_tensor *x, int dim) {
    int64_t rows = 1;
    for (int i = 0; i < dim; i++) rows *= x->shape[i];
    return iso__matrix_of(x, rows);
}

// Copies the parts to where they belong in the whole, or back. All are logical.
static iso_status copy_parts(const iso_module *self, int dim, iso_tensor *whole,
                             iso_tensor *const *part, int count, bool back) {
    iso_tensor all = rows_before(whole, dim);
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        iso_tensor one = rows_before(part[i], dim);
        int64_t width = one.shape[1];
        if (back)
            ISO_TRY(iso__kernels(whole)->copy_columns(self->device, width, &all, at, &one, 0));
        else
            ISO_TRY(iso__kernels(whole)->copy_columns(self->device, width, &one, 0, &all, at));
        at += width;
    }
    return ISO_OK;
}

// ---- Concat -------------------------------------------------------------------------------------

// The shape of the output.
static iso_status measure_concat(const iso_module *self, const iso_tensors *in, int dim,
                                 int64_t *shape) {
    char text[128];
    const iso_tensor *first = in->item[0];
    if (dim < 0)
        return iso__shape_error(self, first, "a tensor with a dimension %d",
                                iso_container_of(self, const concat, base)->dim);
    for (int k = 0; k < first->ndim; k++) shape[k] = first->shape[k];
    for (int i = 1; i < in->count; i++) {
        const iso_tensor *x = in->item[i];
        bool fits = x->ndim == first->ndim;
        for (int k = 0; fits && k < x->ndim; k++) fits = k == dim || x->shape[k] == shape[k];
        if (!fits)
            return iso__shape_error(self, x, "tensors that differ in dimension %d only, as %s", dim,
                                    iso__shape_text(first->ndim, first->shape, text, sizeof(text)));
        shape[dim] += x->shape[dim];
    }
    return ISO_OK;
}

static iso_status forward_concat(iso_module *self, iso_call *call, const iso_tensors *in,
                                 iso_tensors *out) {
    iso_call_many *many = call->many;
    int dim = dimension_of(iso_container_of(self, concat, base), in->item[0]);
    int64_t shape[ISO_MAX_DIMS];
    iso_tensor *part[ISO_MODULE_TENSORS];
    ISO_TRY(measure_concat(self, in, dim, shape));
    for (int i = 0; i < in->count; i++)
        ISO_TRY(
            iso__call_layout(self, &many->aux[0][i], ISO_LAYOUT_LOGICAL, in->item[i], &part[i]));
    ISO_TRY(iso_call_tensor(self, &many->out[0], in->item[0]->ndim, shape, ISO_LAYOUT_LOGICAL));
    out->count = 1;
    out->item[0] = many->out[0];
    return copy_parts(self, dim, many->out[0], part, in->count, false);
}

static iso_status backward_concat(iso_module *self, iso_call *call, const iso_tensors *grad_out,
                                  unsigned wanted, iso_tensors *grad_in) {
    iso_call_many *many = call->many;
    const iso_tensors *in = &many->in;
    int dim = dimension_of(iso_container_of(self, concat, base), in->item[0]);
    if (!wanted) return ISO_OK;
    for (int i = 0; i < in->count; i++)
        ISO_TRY(iso_call_tensor(self, &many->grad_in[i], in->item[i]->ndim, in->item[i]->shape,
                                ISO_LAYOUT_LOGICAL));
    ISO_TRY(copy_parts(self, dim, grad_out->item[0], many->grad_in, in->count, true));
    for (int i = 0; i < in->count; i++)
        ISO_TRY(iso__call_layout(self, &many->aux[1][i], in->item[i]->layout, many->grad_in[i],
                                 &grad_in->item[i]));
    return ISO_OK;
}

static iso_status check_device(const iso_module *self, const iso_device *device) {
    return iso__check_kernel(device, device->kernels[ISO_F32]->copy_columns, self->ops->type);
}

static const iso_module_ops concat_ops = {
    .type = "Concat",
    .forward_many = forward_concat,
    .backward_many = backward_concat,
    .runs_on = check_device,
    .takes_half = true,
    .keeps_parameters = true,
};

iso_status iso_concat_create(iso_device *device, int dim, iso_module **out) {
    ISO_CHECK(dim >= -ISO_MAX_DIMS && dim < ISO_MAX_DIMS, ISO_ERR_ARG,
              "a Concat along dimension %d: tensors have at most %d dimensions", dim, ISO_MAX_DIMS);
    ISO_TRY(iso__check_kernel(device, device->kernels[ISO_F32]->copy_columns, "Concat"));
    iso_module *module;
    ISO_TRY(iso__module_new(sizeof(concat), &concat_ops, device, &module));
    iso_container_of(module, concat, base)->dim = dim;
    *out = module;
    return ISO_OK;
}

// ---- Split --------------------------------------------------------------------------------------

static iso_status check_split(const iso_module *self, const iso_tensor *in, int dim) {
    const concat *l = iso_container_of(self, const concat, base);
    int64_t sum = 0;
    for (int i = 0; i < l->parts; i++) sum += l->size[i];
    if (dim < 0) return iso__shape_error(self, in, "a tensor with a dimension %d", l->dim);
    if (in->shape[dim] != sum)
        return iso__shape_error(self, in, "%lld in dimension %d", (long long)sum, dim);
    return ISO_OK;
}

static iso_status forward_split(iso_module *self, iso_call *call, const iso_tensors *in,
                                iso_tensors *out) {
    const concat *l = iso_container_of(self, concat, base);
    iso_tensor *x = in->item[0];
    int dim = dimension_of(l, x);
    int64_t shape[ISO_MAX_DIMS];
    ISO_TRY(check_split(self, x, dim));
    for (int k = 0; k < x->ndim; k++) shape[k] = x->shape[k];
    out->count = l->parts;
    for (int i = 0; i < l->parts; i++) {
        shape[dim] = l->size[i];
        ISO_TRY(iso_call_tensor(self, &call->many->out[i], x->ndim, shape, ISO_LAYOUT_LOGICAL));
        out->item[i] = call->many->out[i];
    }
    ISO_TRY(iso__call_layout(self, &call->many->aux[0][0], ISO_LAYOUT_LOGICAL, x, &x));
    return copy_parts(self, dim, x, out->item, l->parts, true);
}

static iso_status backward_split(iso_module *self, iso_call *call, const iso_tensors *grad_out,
                                 unsigned wanted, iso_tensors *grad_in) {
    const concat *l = iso_container_of(self, concat, base);
    iso_call_many *many = call->many;
    if (!wanted) return ISO_OK;
    ISO_TRY(iso_call_tensor(self, &many->grad_in[0], call->in->ndim, call->in->shape,
                            ISO_LAYOUT_LOGICAL));
    ISO_TRY(copy_parts(self, dimension_of(l, call->in), many->grad_in[0], grad_out->item, l->parts,
                       false));
    return iso__call_layout(self, &many->aux[1][0], call->in->layout, many->grad_in[0],
                            &grad_in->item[0]);
}

static const iso_module_ops split_ops = {
    .type = "Split",
    .forward_many = forward_split,
    .backward_many = backward_split,
    .runs_on = check_device,
    .takes_half = true,
    .keeps_parameters = true,
    .inputs = 1,
};

iso_status iso_split_create(iso_device *device, int dim, int parts, const int64_t *sizes,
                            iso_module **out) {
    ISO_CHECK(dim >= -ISO_MAX_DIMS && dim < ISO_MAX_DIMS, ISO_ERR_ARG,
              "a Split along dimension %d: tensors have at most %d dimensions", dim, ISO_MAX_DIMS);
    ISO_CHECK(parts >= 1 && parts <= ISO_MODULE_TENSORS, ISO_ERR_ARG,
              "a Split into %d parts: use 1 to %d", parts, ISO_MODULE_TENSORS);
    for (int i = 0; i < parts; i++)
        ISO_CHECK(sizes[i] > 0 && sizes[i] <= INT64_MAX / ISO_MODULE_TENSORS, ISO_ERR_ARG,
                  "a Split whose part %d has size %lld: give the size of a dimension", i,
                  (long long)sizes[i]);
    ISO_TRY(iso__check_kernel(device, device->kernels[ISO_F32]->copy_columns, "Split"));
    iso_module *module;
    ISO_TRY(iso__module_new(sizeof(concat), &split_ops, device, &module));
    concat *l = iso_container_of(module, concat, base);
    l->dim = dim;
    l->parts = parts;
    for (int i = 0; i < parts; i++) l->size[i] = sizes[i];
    *out = module;
    return ISO_OK;
}
