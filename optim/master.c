// SPDX-License-Identifier: MIT
// Master weights: between f32 values, which updates change, and the 16-bit parameter.
#include "base/half.h"
#include "optim/optim_impl.h"

// As integers, floats of one sign are in the order of their sizes. So those that round to a bf16
// number are at most half of its last place away; exactly half only if that place is even.
ISO_CLONES static void take_bf16(int64_t count, const uint16_t *value, float *master) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t now = iso__bits_of(master[i]), told = (uint32_t)value[i] << 16;
        uint32_t odd = value[i] & 1, room = 0x10000 - 2 * odd;
        bool nan = (now & 0x7fffffff) > 0x7f800000;
        bool changed = nan | (now - told + 0x8000 - odd > room);
        master[i] = iso__float_of(iso__choose(changed, told, now));
    }
}

ISO_CLONES static void take_f16(int64_t count, const uint16_t *value, float *master) {
    for (int64_t i = 0; i < count; i++) {
        bool changed = iso__f16_of(master[i]) != value[i];
        master[i] = iso__float_of(
            iso__choose(changed, iso__bits_of(iso__of_f16(value[i])), iso__bits_of(master[i])));
    }
}

ISO_CLONES static void round_bf16(int64_t count, const float *master, uint16_t *value) {
    for (int64_t i = 0; i < count; i++) value[i] = (uint16_t)iso__bf16_of(master[i]);
}

ISO_CLONES static void round_f16(int64_t count, const float *master, uint16_t *value) {
    for (int64_t i = 0; i < count; i++) value[i] = (uint16_t)iso__f16_of(master[i]);
}

void iso__master_take(iso_dtype type, int64_t count, const void *value, float *master) {
    if (type == ISO_BF16)
        take_bf16(count, value, master);
    else
        take_f16(count, value, master);
}

void iso__master_round(iso_dtype type, int64_t count, const float *master, void *value) {
    if (type == ISO_BF16)
        round_bf16(count, master, value);
    else
        round_f16(count, master, value);
}
