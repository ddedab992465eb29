// SPDX-License-Identifier: MIT
// The fully connected layer.
#include "nn/nn_impl.h"

typedef struct linear {
    iso_module base;
    int64_t in_features, out_features;
    iso_parameter *weight, *bias; // bias NULL: none
    iso__rounded rounded;         // the parameters in 16 bits, of the latest forwards in these
} linear;

// ---- Forward ----------------------------------------------------------------------------------------

// The weight, for a kernel that begins while its last pieces are under way.
typedef struct coming {
    iso__arrival arrival;
    const iso_pieces *pieces;
    int asked; // pieces that have arrived
} coming;

static iso_status await_rows(iso__arrival *arrival, int64_t rows) {
    coming *c = iso_container_of(arrival, coming, arrival);
    for (; c->asked < c->pieces->count && c->asked * c->pieces->rows < rows; c->asked++)
        ISO_TRY(c->pieces->needed(c->pieces, c->asked));
    return ISO_OK;
}

static iso_status forward_linear(iso_module *self, iso_call *call, iso_tensor *in,
                                 iso_tensor **out) {
    linear *l = iso_container_of(self, linear, base);
    if ((in->ndim != 2 && in->ndim != 3) || in->shape[in->ndim - 1] != l->in_features)
        return iso__shape_error(self, in, "[N, %lld] or [N, L, %lld]", (long long)l->in_features,
                                (long long)l->in_features);
    int64_t shape[3] = {in->shape[0], in->shape[1], l->out_features};
    shape[in->ndim - 1] = l->out_features;
    ISO_TRY(iso_call_tensor(self, &call->out, in->ndim, shape, ISO_LAYOUT_LOGICAL));
    *out = call->out;
    iso_tensor x = iso__rows_of(in), y = iso__rows_of(call->out);
    const iso_pieces *pieces = l->weight->pieces;
    coming c = {.arrival = {.wait = await_rows, .unit = pieces ? pieces->rows : 0},
                .pieces = pieces};
    iso__arrival *arrival = pieces ? &c.arrival : NULL;
    if (iso__is_half(in->dtype)) { // all rows are rounded at once
        ISO_TRY(iso__arrival_wait(arrival, l->weight->value));
        arrival = NULL;
    }
    iso__values v;
    ISO_TRY(iso__call_values(self, ISO_LAYOUT_LOGICAL, l->weight, l->bias, &l->rounded, &v));
    return iso__kernels(in)->linear_forward(self->device, &x, v.weight, arrival, v.bias,
                                            call->activation, &y);
}

// ---- Backward ---------------------------------------------------------------------------------------

// What a backward reads, as rows.
typedef struct reads {
    iso_tensor x, dy;
    iso_tensor **columns; // slot for some columns of dy
} reads;

static bool can_cut(const iso_kernel_ops *kernels) {
    return kernels->linear_backward_rows || kernels->take_columns;
}

// dw = dy^T x, so a piece with R rows of dw needs R columns of dy.
static iso_status gradient_of_piece(iso_module *self, const reads *r, int k) {
    const iso_parameter *w = iso_container_of(self, linear, base)->weight;
    const iso_kernel_ops *kernels = iso__kernels(&r->x);
    const int64_t first = k * w->pieces->rows;
    iso_tensor *dw = w->pieces->grad[k];
    if (!can_cut(kernels)) return ISO_OK; // backward_pieces has computed it
    if (kernels->linear_backward_rows)
        return kernels->linear_backward_rows(self->device, &r->x, &r->dy, first, dw, w->grad_valid);
    ISO_TRY(iso_call_tensor(self, r->columns, 2, (int64_t[]){r->dy.shape[0], dw->shape[0]},
                            ISO_LAYOUT_LOGICAL));
    ISO_TRY(kernels->take_columns(self->device, &r->dy, first, *r->columns));
    return kernels->linear_backward_params(self->device, &r->x, *r->columns, dw, w->grad_valid,
                                           NULL, false);
}

static iso_status backward_piece(iso_module *self, const reads *r, int k) {
    const iso_parameter *w = iso_container_of(self, linear, base)->weight;
    ISO_TRY(gradient_of_piece(self, r, k));
    // If this layer is used again in this backward, or another layer shares the weight, the piece
    // is not final yet.
    if (self->call_depth > 0 || w->references > 1) return ISO_OK;
    return w->pieces->ready(w->pieces, k);
}

// db NULL: it is written, or not wanted.
static iso_status backward_pieces(iso_module *self, const reads *r, iso_tensor *db) {
    linear *l = iso_container_of(self, linear, base);
    const iso_parameter *w = l->weight, *b = l->bias;
    const iso_kernel_ops *kernels = iso__kernels(&r->x);
    iso_tensor *whole = can_cut(kernels) ? NULL : w->grad;
    if (db || whole)
        ISO_TRY(kernels->linear_backward_params(self->device, &r->x, &r->dy, whole, w->grad_valid,
                                                db, b && b->grad_valid));
    if (b && b->requires_grad && self->call_depth == 0 && b->references == 1)
        ISO_TRY(w->pieces->other_ready(w->pieces, b));
    for (int k = 0; k < w->pieces->count; k++) ISO_TRY(backward_piece(self, r, k));
    return ISO_OK;
}

static iso_status backward_params(iso_module *self, iso_call *call, iso_tensor *grad_out) {
    linear *l = iso_container_of(self, linear, base);
    iso_parameter *w = l->weight, *b = l->bias;
    iso_tensor *dw = w->requires_grad ? w->grad : NULL, *db = NULL, y = iso__rows_of(call->out);
    reads r = {iso__rows_of(call->in), iso__rows_of(grad_out), &call->aux[0]};
    iso_call flat = {.in = &r.x, .out = &y, .activation = call->activation};
    ISO_TRY(iso__undo_activation_and_bias(self, &flat, &r.dy, b, &db));
    if (dw && w->pieces) return backward_pieces(self, &r, db);
    if (!dw && !db) return ISO_OK;
    return iso__kernels(call->in)->linear_backward_params(self->device, &r.x, &r.dy, dw,
                                                          w->grad_valid, db, b && b->grad_valid);
}

static iso_status backward_input(iso_module *self, iso_call *call, iso_tensor *grad_out,
                                 iso_tensor **grad_in) {
    linear *l = iso_container_of(self, linear, base);
    ISO_TRY(
        iso_call_tensor(self, &call->grad_in, call->in->ndim, call->in->shape, ISO_LAYOUT_LOGICAL));
    *grad_in = call->grad_in;
    iso_tensor dy = iso__rows_of(grad_out), dx = iso__rows_of(call->grad_in);
    const iso_tensor *w = iso__called_weight(self, l->weight, &l->rounded);
    return iso__kernels(call->in)->linear_backward_input(self->device, &dy, w, &dx);
}

// ---- Life -------------------------------------------------------------------------------------------

static void take_tied(iso_module *self) {
    linear *l = iso_container_of(self, linear, base);
    l->weight = self->parameter[0];
    if (l->bias) l->bias = self->parameter[1];
}

static void drop_rounded(iso_module *self) {
    iso__rounded_destroy(&iso_container_of(self, linear, base)->rounded);
}

static const iso_module_ops linear_ops = {
    .type = "Linear",
    .forward = forward_linear,
    .backward_params = backward_params,
    .backward_input = backward_input,
    .tied = take_tied,
    .moved = drop_rounded,
    .destroy = drop_rounded,
    .fuses_relu = true,
    .awaits_pieces = true,
    .takes_half = true,
    .half_parameters = true,
    .keeps_parameters = true,
};

iso__rounded *iso__linear_rounded(iso_module *module) {
    if (module->ops != &linear_ops) return NULL;
    return &iso_container_of(module, linear, base)->rounded;
}

iso_status iso_linear_create(iso_device *device, int64_t in_features, int64_t out_features,
                             bool bias, iso_rng *rng, iso_module **out) {
    ISO_CHECK(in_features > 0 && out_features > 0, ISO_ERR_ARG,
              "a Linear of %lld to %lld features: both must be at least 1", (long long)in_features,
              (long long)out_features);
    ISO_CHECK(rng, ISO_ERR_ARG, "a Linear needs a source of random numbers for its initial values");
    iso_module *module = NULL;
    iso_status status = ISO_OK;
    ISO_TRY_GOTO(iso__module_new(sizeof(linear), &linear_ops, device, &module));
    linear *l = iso_container_of(module, linear, base);
    l->in_features = in_features;
    l->out_features = out_features;
    ISO_TRY_GOTO(iso_module_add_parameter(module, "weight", 2,
                                          (int64_t[]){out_features, in_features}, &l->weight));
    ISO_TRY_GOTO(iso__init_uniform(l->weight, in_features, rng));
    if (bias) {
        ISO_TRY_GOTO(iso_module_add_parameter(module, "bias", 1, &out_features, &l->bias));
        ISO_TRY_GOTO(iso__init_uniform(l->bias, in_features, rng));
    }
    *out = module;
    return ISO_OK;
fail:
    iso_module_destroy(&module);
    return status;
}
