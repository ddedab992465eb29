// SPDX-License-Identifier: MIT
// Master weights: between f32 values, which updates change, and the 16-bit parameter.
#include "exchange/codec.h"
#include "optim/optim_impl.h"

#include <string.h>

void iso__master_take(iso_dtype type, int64_t count, const void *value, float *master) {
    enum { TILE = 1024 };
    const iso__codec *codec = iso__codec_of(type);
    uint16_t rounded[TILE];
    float wide[TILE];
    for (int64_t done = 0; done < count; done += TILE) {
        size_t n = count - done < TILE ? (size_t)(count - done) : TILE;
        const uint16_t *told = (const uint16_t *)value + done;
        codec->encode(n, master + done, 1, rounded);
        if (memcmp(rounded, told, n * sizeof(*told)) == 0) continue; // unchanged since the update
        codec->decode(n, told, wide);
        for (size_t k = 0; k < n; k++)
            if (rounded[k] != told[k]) master[done + (int64_t)k] = wide[k];
    }
}

void iso__master_round(iso_dtype type, int64_t count, const float *master, void *value) {
    iso__codec_of(type)->encode((size_t)count, master, 1, value);
}
