// SPDX-License-Identifier: MIT
// Waits for exchanges. The program's calls also launch what a device holds back, because kernels of
// the program would not wait for that.
#include "parallel/reducer/reducer_impl.h"

static iso_status flush_device(const iso_reducer *r) {
    return r->store.device ? iso__store_remote(&r->store)->flush(r->store.device) : ISO_OK;
}

iso_status iso__reducer_param_needed(iso_reducer *r, int i) {
    ISO_TRY(iso__layout_check(&r->layout, i, 0));
    return iso__round_param_needed(r->round, i);
}

iso_status iso_reducer_param_needed(iso_reducer *r, int i) {
    ISO_TRY(iso__reducer_param_needed(r, i));
    return flush_device(r);
}

iso_status iso__reducer_piece_needed(iso_reducer *r, int i, int k) {
    ISO_TRY(iso__layout_check(&r->layout, i, k));
    return iso__round_piece_needed(r->round, i, k);
}

iso_status iso_reducer_piece_needed(iso_reducer *r, int i, int k) {
    ISO_TRY(iso__reducer_piece_needed(r, i, k));
    return flush_device(r);
}

iso_status iso_reducer_layer_needed(iso_reducer *r, int layer) {
    const iso__layer *of;
    ISO_TRY(iso__layout_find_layer(&r->layout, layer, &of));
    for (int k = of->first; k < of->end; k++)
        ISO_TRY(iso__round_param_needed(r->round, r->layout.by_layer[k]));
    return flush_device(r);
}

iso_status iso__reducer_finish(iso_reducer *r) { return iso__round_finish(r->round); }

iso_status iso_reducer_finish(iso_reducer *r) {
    ISO_TRY(iso__reducer_finish(r));
    return flush_device(r);
}
