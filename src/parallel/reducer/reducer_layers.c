// SPDX-License-Identifier: MIT
// Reports gradients, one by one or those of a layer; finds and describes parameters.
#include "parallel/reducer/reducer_impl.h"

iso_status iso_reducer_grad_ready(iso_reducer *r, int i) {
    ISO_TRY(iso__layout_check(&r->layout, i, 0));
    ISO_TRY(iso__round_grad_ready(r->round, i));
    r->alone = r->sync == ISO_SYNC_EXPLICIT;
    return ISO_OK;
}

iso_status iso_reducer_piece_ready(iso_reducer *r, int i, int k) {
    ISO_TRY(iso__layout_check(&r->layout, i, k));
    ISO_TRY(iso__round_piece_ready(r->round, i, k));
    r->alone = r->sync == ISO_SYNC_EXPLICIT;
    return ISO_OK;
}

iso_status iso_reducer_layer_ready(iso_reducer *r, int layer) {
    const iso__layer *of;
    bool reported = true; // all of them
    ISO_TRY(iso__layout_find_layer(&r->layout, layer, &of));
    r->alone = r->sync == ISO_SYNC_EXPLICIT;
    for (int k = of->first; k < of->end; k++)
        reported = reported && iso__round_param_is_ready(r->round, r->layout.by_layer[k]);
    for (int k = of->end - 1; k >= of->first; k--) {
        int i = r->layout.by_layer[k];
        if (reported || !iso__round_param_is_ready(r->round, i))
            ISO_TRY(iso__round_grad_ready(r->round, i)); // if all are reported, the error
    }
    return ISO_OK;
}

int iso_reducer_find(const iso_reducer *r, const char *name) {
    return iso__layout_find(&r->layout, name);
}

int iso_reducer_param_count(const iso_reducer *r) { return r->layout.param_count; }

// ---- For optimizers and clipping --------------------------------------------------------------------

iso_reducer_param iso__reducer_param(iso_reducer *r, int i) {
    const iso__grad_slot *s = iso__layout_piece(&r->layout, i, 0);
    const iso__grad_slot *last = iso__layout_piece(&r->layout, i, r->layout.place[i].pieces - 1);
    return (iso_reducer_param){.name = s->name,
                               .value = s->value,
                               .count = last->first + last->count,
                               .dtype = s->type,
                               .row = s->row,
                               .sparse_rows = s->sparse_rows,
                               .local = s->local,
                               .gradient = iso_reducer_grad(r, i)};
}

int iso__reducer_shared(const iso_reducer *r, int k) {
    return r->layout.shared ? r->layout.shared[k] : k;
}

iso_dtype iso__reducer_grad_type(const iso_reducer *r, int i) {
    const iso__grad_slot *s = iso__layout_piece(&r->layout, i, 0);
    return s->home ? s->type : s->dtype;
}

iso_status iso__reducer_device(iso_reducer *r, iso_device **out) {
    if (!r->store.device && !r->host) ISO_TRY(iso_device_create("cpu", &r->host));
    *out = r->store.device ? r->store.device : r->host;
    return ISO_OK;
}
