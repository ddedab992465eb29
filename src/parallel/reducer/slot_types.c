// SPDX-License-Identifier: MIT
// Parameters of 16 bits: gradients between the program's type and the f32 of the store.
#include "parallel/reducer/slot_types.h"

#include "exchange/codec.h"

static float *place_of(const iso__grad_slot *s, const iso__store *store, iso__own which) {
    return (float *)(void *)(store->gradients + s->offset) + which.first;
}

// The array is the program's again once the call returns.
static iso_status convert_now(const iso__store *store, size_t count, iso_dtype from_type,
                              const void *from, iso_dtype to_type, void *to) {
    ISO_TRY(iso__device_convert(store->device, (int64_t)count, from_type, from, to_type, to));
    return iso__store_remote(store)->flush(store->device);
}

iso_status iso__slot_widen(const iso__grad_slot *s, const iso__store *store, iso__own which,
                           const void *array) {
    const uint16_t *from = (const uint16_t *)array + which.first;
    float *to = place_of(s, store, which);
    if (store->device) return convert_now(store, which.count, s->type, from, ISO_F32, to);
    iso__codec_of(s->type)->decode(which.count, from, to);
    return ISO_OK;
}

iso_status iso__slot_narrow(const iso__grad_slot *s, const iso__store *store, iso__own which,
                            void *array) {
    const float *from = place_of(s, store, which);
    uint16_t *to = (uint16_t *)array + which.first;
    if (store->device) return convert_now(store, which.count, ISO_F32, from, s->type, to);
    iso__codec_of(s->type)->encode(which.count, from, 1, to);
    return ISO_OK;
}

iso_status iso__slot_round(const iso__grad_slot *s, const iso__store *store, iso__own which) {
    enum { TILE = 512 };
    uint16_t rounded[TILE];
    const iso__codec *codec = iso__codec_of(s->type);
    float *x = place_of(s, store, which);
    if (which.count == 0) return ISO_OK;
    if (store->device)
        return iso__store_remote(store)->round_values(store->device, s->type, (int64_t)which.count,
                                                      x);
    for (size_t done = 0; done < which.count; done += TILE) {
        size_t n = which.count - done < TILE ? which.count - done : TILE;
        codec->encode(n, x + done, 1, rounded);
        codec->decode(n, rounded, x + done);
    }
    return ISO_OK;
}
