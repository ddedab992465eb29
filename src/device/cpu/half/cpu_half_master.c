// SPDX-License-Identifier: MIT
// Master weights of parameters of bf16 and f16.
#include "device/cpu/half/cpu_half.h"

#include <string.h>

iso_status iso__cpu_take_master(iso_device *self, iso_dtype type, int64_t count, const void *value,
                                float *master) {
    (void)self;
    enum { TILE = 1024 };
    uint16_t rounded[TILE];
    float wide[TILE];
    for (int64_t done = 0; done < count; done += TILE) {
        int64_t n = count - done < TILE ? count - done : TILE;
        const uint16_t *told = (const uint16_t *)value + done;
        iso__cpu_narrow(type, n, master + done, rounded);
        if (memcmp(rounded, told, (size_t)n * sizeof(*told)) == 0) continue; // as it was rounded
        iso__cpu_widen(type, n, told, wide);
        for (int64_t k = 0; k < n; k++)
            if (rounded[k] != told[k]) master[done + k] = wide[k];
    }
    return ISO_OK;
}
