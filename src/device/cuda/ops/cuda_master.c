// SPDX-License-Identifier: MIT
// Master weights on the CUDA device.
#include "device/cuda/ops/master_kernels.h"
#include "device/cuda/runtime/cuda_impl.h"

static iso_status take_master(iso_device *self, iso_dtype dtype, int64_t count, const void *value,
                              float *master) {
    return iso__cuda_take_master(iso__cuda_of(self), dtype, count, value, master);
}

static iso_status round_values(iso_device *self, iso_dtype dtype, int64_t count, float *x) {
    return iso__cuda_round_values(iso__cuda_of(self), dtype, count, x);
}

void iso__cuda_fill_master(iso_device_ops *ops, iso__remote_ops *remote) {
    ops->rounds_updates = true;
    ops->take_master = take_master;
    remote->round_values = round_values;
}
