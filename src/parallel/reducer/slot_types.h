// SPDX-License-Identifier: MIT
// Private to the reducer: parameters of 16 bits, whose gradients are f32 in the store. Local.
#ifndef ISO_SLOT_TYPES_H
#define ISO_SLOT_TYPES_H

#include "parallel/reducer/zero.h"

static inline bool iso__slot_converts(const iso__grad_slot *s) { return s->type != s->dtype; }

// Copies elements `which` of the slot from an array of the program to the store's f32, or back,
// rounded to nearest. array: the first element of the slot.
iso_status iso__slot_widen(const iso__grad_slot *s, const iso__store *store, iso__own which,
                           const void *array);
iso_status iso__slot_narrow(const iso__grad_slot *s, const iso__store *store, iso__own which,
                            void *array);
// Rounds these elements of the store to the slot's type.
iso_status iso__slot_round(const iso__grad_slot *s, const iso__store *store, iso__own which);

#endif
