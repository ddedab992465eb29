// SPDX-License-Identifier: MIT
// An update function that is told all about the elements that it updates.
#include "parallel/reducer/reducer_impl.h"

static iso_status update_elements(int i, size_t first, size_t count, void *gradient, double scale,
                                  const void *hyper, void *user) {
    const iso_reducer *r = user;
    const iso__grad_slot *s = iso__layout_piece(&r->layout, i, 0);
    iso_device *device = r->store.device;
    if (device) ISO_TRY(device->ops->remote->flush(device)); // the gradient is complete then
    const iso_reducer_update update = {
        .param = i,
        .name = s->name,
        .slice = s->slice,
        .first = first,
        .count = count,
        .dtype = s->type,
        .value = (char *)s->value + first * iso_dtype_size(s->type),
        .gradient = gradient,
        .scale = scale,
        .hyper = hyper,
        .param_user = s->user,
        .user = r->update_user,
    };
    return r->update(&update);
}

static iso_status update_whole(int i, void *gradient, double scale, const void *hyper, void *user) {
    return update_elements(i, 0, iso__reducer_param(user, i).count, gradient, scale, hyper, user);
}

iso_status iso_reducer_set_update(iso_reducer *r, iso_reducer_updater update, size_t hyper_bytes,
                                  void *user) {
    if (!update) return iso_reducer_set_apply(r, NULL, 0, NULL);
    ISO_TRY(iso_reducer_set_apply(r, update_whole, hyper_bytes, r));
    r->update = update;
    r->update_user = user;
    return iso_reducer_set_apply_piece(r, r->only, update_elements);
}
