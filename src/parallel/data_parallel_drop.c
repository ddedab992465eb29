// SPDX-License-Identifier: MIT
// Frees what data_parallel_views.c makes.
#include "parallel/data_parallel_impl.h"

void iso__data_parallel_drop_views(const iso__data_parallel *self, iso__views *views) {
    for (int i = 0; views->cut && i < self->trainable_count; i++) {
        for (int k = 0; views->cut[i].grad && k < views->cut[i].pieces.count; k++)
            iso_tensor_destroy(&views->cut[i].grad[k]);
        iso__free(views->cut[i].grad);
    }
    for (int i = 0; views->grad && i < self->trainable_count; i++)
        iso_tensor_destroy(&views->grad[i]);
    iso__free(views->cut);
    iso__free(views->grad);
    *views = (iso__views){0};
}
