// SPDX-License-Identifier: MIT
// The gradients of a DataParallel, and their pieces, in the memory of a reducer.
#include "parallel/data_parallel_impl.h"

static iso_status make_cut(iso__data_parallel *self, const iso_reducer *reducer, int i,
                           iso__views *views) {
    iso__cut *cut = &views->cut[i];
    const iso_tensor *value = self->trainable[i]->value;
    int pieces = iso_reducer_pieces(reducer, i);
    iso_dtype type = iso__gradient_type(value->dtype);
    char *data = views->grad[i]->data;
    int64_t row = value->count / value->shape[0], shape[ISO_MAX_DIMS];
    if (pieces == 1) return ISO_OK;
    *cut = (iso__cut){.owner = self, .slot = i};
    ISO_TRY(iso__alloc_zero((size_t)pieces * sizeof(void *), (void **)&cut->grad));
    for (int d = 0; d < value->ndim; d++) shape[d] = value->shape[d];
    for (int k = 0; k < pieces; k++) {
        size_t first, count;
        iso_reducer_piece(reducer, i, k, &first, &count);
        shape[0] = (int64_t)count / row;
        if (k == 0) cut->pieces.rows = shape[0];
        ISO_TRY(iso_tensor_borrow(value->device, type, value->ndim, shape,
                                  data + first * iso_dtype_size(type), &cut->grad[k]));
        cut->pieces.count++;
    }
    cut->pieces.grad = cut->grad;
    cut->pieces.ready = iso__data_parallel_piece_ready;
    cut->pieces.other_ready = iso__data_parallel_other_ready;
    cut->pieces.needed = iso__data_parallel_piece_needed;
    return ISO_OK;
}

iso_status iso__data_parallel_make_views(iso__data_parallel *self, iso_reducer *reducer,
                                         iso__views *out) {
    size_t count = (size_t)self->trainable_count;
    *out = (iso__views){0};
    ISO_TRY(iso__alloc_zero(count * sizeof(*out->grad), (void **)&out->grad));
    ISO_TRY(iso__alloc_zero(count * sizeof(*out->cut), (void **)&out->cut));
    for (int i = 0; i < self->trainable_count; i++) {
        const iso_tensor *value = self->trainable[i]->value;
        ISO_TRY(iso_tensor_borrow(value->device, iso__gradient_type(value->dtype), value->ndim,
                                  value->shape, iso_reducer_grad(reducer, i), &out->grad[i]));
        ISO_TRY(make_cut(self, reducer, i, out));
    }
    return ISO_OK;
}

void iso__data_parallel_take_views(iso__data_parallel *self, iso__views *views) {
    iso__cut *before = self->cut;
    self->cut = views->cut;
    views->cut = before;
    for (int i = 0; i < self->trainable_count; i++) {
        iso_parameter *p = self->trainable[i];
        iso_tensor_destroy(&p->grad);
        p->grad = views->grad[i];
        views->grad[i] = NULL;
        p->pieces = self->cut[i].pieces.count > 0 ? &self->cut[i].pieces : NULL;
        self->gradient[i] = (iso_gradient){
            .name = self->param[i].name, .count = (size_t)p->value->count, .dtype = p->grad->dtype};
        p->complete = iso__data_parallel_complete;
        p->complete_user = self;
        p->complete_index = i;
    }
}
