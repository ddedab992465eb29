// SPDX-License-Identifier: MIT
// The list of gradients of a module or of plain arrays, complete or as this rank's backward left
// them.
#include "parallel/gradients.h"

#include "base/base.h"
#include "parallel/parallel_impl.h"
#include "parallel/reducer/reducer_calls.h"
#include "tensor/tensor_impl.h"

static void add_item(iso__gradients *g, iso_tensor *tensor, int parameter) {
    g->parameter[g->count] = parameter;
    g->item[g->count++] = tensor;
}

static bool is_spread(const iso_reducer *r, int index) {
    return r && iso__reducer_is_spread(r, index);
}

static iso_status take_whole(iso__gradients *g) {
    int index;
    for (int i = 0; i < g->list.count; i++) {
        iso_parameter *p = g->list.item[i];
        iso_reducer *r = iso__data_parallel_of_parameter(p, &index);
        iso_tensor *grad;
        if (!p->requires_grad || is_spread(r, index)) continue;
        ISO_TRY(iso_parameter_grad(p, &grad)); // completes pending work
        add_item(g, grad, i);
    }
    g->whole = g->count;
    return ISO_OK;
}

// This rank's elements of piece k of parameter i, which has number `index` in the reducer.
static iso_status take_piece(iso__gradients *g, int i, const iso_tensor *grad, const iso_reducer *r,
                             int index, int k) {
    size_t first, count;
    iso_tensor *view;
    iso_reducer_own(r, index, k, &first, &count);
    char *data = (char *)grad->data + first * iso_dtype_size(grad->dtype);
    int64_t shape = (int64_t)count;
    if (count == 0) return ISO_OK;
    ISO_TRY(iso_tensor_borrow(grad->device, grad->dtype, 1, &shape, data, &view));
    add_item(g, view, i);
    return ISO_OK;
}

static iso_status take_shards(iso__gradients *g) {
    int index;
    for (int i = 0; i < g->list.count; i++) {
        iso_reducer *r = iso__data_parallel_of_parameter(g->list.item[i], &index);
        if (!g->list.item[i]->requires_grad || !is_spread(r, index)) continue;
        iso_tensor *grad;
        g->comm = iso__reducer_owners(r);
        ISO_TRY(iso_parameter_grad(g->list.item[i], &grad));
        for (int k = 0; k < iso_reducer_pieces(r, index); k++)
            ISO_TRY(take_piece(g, i, grad, r, index, k));
    }
    return ISO_OK;
}

static void take_local(iso__gradients *g) {
    for (int i = 0; i < g->list.count; i++)
        if (g->list.item[i]->requires_grad && g->list.item[i]->grad_valid)
            add_item(g, g->list.item[i]->grad, i);
    g->whole = g->count;
}

static size_t most_items(const iso_parameter_list *list) {
    size_t most = 1;
    for (int i = 0; i < list->count; i++) {
        int index;
        iso_reducer *r = iso__data_parallel_of_parameter(list->item[i], &index);
        most += r ? (size_t)iso_reducer_pieces(r, index) : 1;
    }
    return most;
}

static iso_status take_all(iso__gradients *g, bool local) {
    size_t most = most_items(&g->list);
    ISO_TRY(iso__alloc_zero(most * sizeof(*g->item), (void **)&g->item));
    ISO_TRY(iso__alloc_zero(most * sizeof(*g->parameter), (void **)&g->parameter));
    if (local) {
        take_local(g);
        return ISO_OK;
    }
    ISO_TRY(take_whole(g));
    return take_shards(g);
}

iso_status iso__gradients_of(iso_module *module, bool local, iso__gradients *out) {
    *out = (iso__gradients){0};
    ISO_TRY(iso_module_parameters(module, &out->list));
    iso_status status = take_all(out, local);
    if (status < 0) iso__gradients_free(out);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Plain arrays ---------------------------------------------------------------------------------

static iso_status take_array(iso__gradients *g, iso_reducer *r, int i, iso_device *device) {
    const iso_reducer_param p = iso__reducer_param(r, i);
    int64_t count = (int64_t)p.count;
    iso_tensor *grad;
    iso_status status = ISO_OK;
    ISO_TRY(iso_tensor_borrow(device, iso__reducer_grad_type(r, i), 1, &count, p.gradient, &grad));
    if (!is_spread(r, i)) {
        add_item(g, grad, i);
        return ISO_OK;
    }
    g->comm = iso__reducer_owners(r);
    for (int k = 0; status == ISO_OK && k < iso_reducer_pieces(r, i); k++)
        status = take_piece(g, i, grad, r, i, k);
    iso_tensor_destroy(&grad);
    return status;
}

// In the order that all ranks share, so that sums over all of them have the same bits.
static iso_status take_those(iso__gradients *g, iso_reducer *r, bool spread, iso_device *device) {
    for (int k = 0; k < iso_reducer_param_count(r); k++) {
        int i = iso__reducer_shared(r, k);
        if (iso__reducer_was_unused(r, i)) continue; // the array may hold anything
        if (is_spread(r, i) == spread) ISO_TRY(take_array(g, r, i, device));
    }
    return ISO_OK;
}

static iso_status take_arrays(iso__gradients *g, iso_reducer *r, iso_device *device) {
    int params = iso_reducer_param_count(r);
    size_t most = 1;
    for (int i = 0; i < params; i++) most += (size_t)iso_reducer_pieces(r, i);
    ISO_TRY(iso_reducer_finish(r));
    ISO_TRY(iso__alloc_zero(most * sizeof(*g->item), (void **)&g->item));
    ISO_TRY(iso__alloc_zero(most * sizeof(*g->parameter), (void **)&g->parameter));
    ISO_TRY(take_those(g, r, false, device));
    g->whole = g->count;
    return take_those(g, r, true, device);
}

iso_status iso__gradients_of_arrays(iso_reducer *r, iso_device *device, iso__gradients *out) {
    *out = (iso__gradients){.owned = true};
    iso_status status = take_arrays(out, r, device);
    if (status < 0) iso__gradients_free(out);
    ISO_TRY(status);
    return ISO_OK;
}

void iso__gradients_free(iso__gradients *g) {
    for (int i = g->owned ? 0 : g->whole; i < g->count; i++) iso_tensor_destroy(&g->item[i]);
    iso__free(g->item);
    iso__free(g->parameter);
    iso_parameter_list_destroy(&g->list);
    *g = (iso__gradients){0};
}
