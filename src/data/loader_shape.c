// SPDX-License-Identifier: MIT
// Types and shapes of the batches of a loader.
#include "data/loader_impl.h"

int iso__loader_labels(const iso_loader *self) {
    const iso_dataset_info *info = &self->dataset->info;
    if (self->make.function) return self->make.labels;
    return info->classes > 0 ? info->inputs : -1;
}

iso_tensor_spec iso__loader_spec(const iso_loader *self, int t) {
    iso_tensor_spec spec = self->dataset->info.tensors[t];
    if (t == 0 && self->transform.on) spec.dtype = self->transform.dtype;
    return spec;
}

iso_tensor_spec iso__loader_output(const iso_loader *self, int t) {
    return self->make.function ? self->make.tensors[t] : iso__loader_spec(self, t);
}

int64_t iso__loader_largest(const iso_loader *self) {
    const int64_t *indices;
    if (iso_sampler_batches(self->sampler) == 0) return 1;
    return iso_sampler_batch(self->sampler, 0, &indices);
}

int64_t iso__loader_rows(const iso_loader *self) {
    return self->make.rows > 0 ? self->make.rows : iso__loader_largest(self);
}
