// SPDX-License-Identifier: MIT
// The table of kernels for bf16 and f16.
#include "device/cpu/half/cpu_half.h"

static iso_status round_many(iso_device *self, int count, const iso__rounding *of) {
    for (int i = 0; i < count; i++) ISO_TRY(self->ops->copy(self, of[i].from, of[i].to));
    return ISO_OK;
}

void iso__cpu_fill_half(iso_kernel_ops *ops) {
    ops->round_many = round_many;
    iso__cpu_fill_half_elementwise(ops);
    iso__cpu_fill_half_matrix(ops);
    iso__cpu_fill_half_norm(ops);
    iso__cpu_fill_half_pool(ops);
}
