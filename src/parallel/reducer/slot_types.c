// SPDX-License-Identifier: MIT
// Parameters of 16 bits: gradients between the program's type and the f32 of the store.
#include "parallel/reducer/slot_types.h"

#include "exchange/codec.h"

static float *place_of(const iso__grad_slot *s, const char *gradients, iso__own which) {
    return (float *)(gradients + s->offset) + which.first;
}

void iso__slot_widen(const iso__grad_slot *s, char *gradients, iso__own which, const void *array) {
    const uint16_t *from = (const uint16_t *)array + which.first;
    iso__codec_of(s->type)->decode(which.count, from, place_of(s, gradients, which));
}

void iso__slot_narrow(const iso__grad_slot *s, const char *gradients, iso__own which, void *array) {
    uint16_t *to = (uint16_t *)array + which.first;
    iso__codec_of(s->type)->encode(which.count, place_of(s, gradients, which), 1, to);
}

void iso__slot_round(const iso__grad_slot *s, char *gradients, iso__own which) {
    enum { TILE = 512 };
    uint16_t rounded[TILE];
    const iso__codec *codec = iso__codec_of(s->type);
    float *x = place_of(s, gradients, which);
    for (size_t done = 0; done < which.count; done += TILE) {
        size_t n = which.count - done < TILE ? which.count - done : TILE;
        codec->encode(n, x + done, 1, rounded);
        codec->decode(n, rounded, x + done);
    }
}
