// SPDX-License-Identifier: MIT
// Private to optim: the state of an optimizer with ZeRO. Each rank has the state of the elements
// that it updates.
#ifndef ISO_DP_STATE_H
#define ISO_DP_STATE_H

#include "optim/optim_impl.h"

#include <isotherm/reducer.h>

// Local. From now on self has the state of only the elements that this rank updates. place[i] is
// the reducer's parameter that slot i updates. The reducer uses ZeRO, and must outlive all calls
// except iso__dp_state_destroy.
iso_status iso__dp_state_create(iso__base_optimizer *self, iso_reducer *reducer, const int *place);
void iso__dp_state_destroy(iso__base_optimizer *self); // does nothing without ZeRO

// Finds the state of elements [first, first + count) of slot i: *state_offset is its position,
// *elements the number of elements of slot i that this rank has. ISO_ERR_STATE if another rank has
// some of them.
iso_status iso__dp_state_find(const iso__base_optimizer *self, int i, int64_t first, int64_t count,
                              int64_t *elements, size_t *state_offset);

// Collective with ZeRO, else local. Without ZeRO it returns `mine`. With ZeRO an error on any rank
// is an error on every rank. Call it before gathering: a rank that failed alone would not join in.
iso_status iso__dp_state_agree(const iso__base_optimizer *self, iso_status mine);
// Collective. Creates tensors with the whole state, for saving or loading, and makes the steps of
// parameters equal on all ranks. The tensors exist until the next update.
iso_status iso__dp_state_gather(iso__base_optimizer *self);
iso_tensor *iso__dp_state_tensor(const iso__base_optimizer *self, int i, int kind); // borrowed
// Local. Call it after the tensors were loaded: copies this rank's elements from them.
iso_status iso__dp_state_take(iso__base_optimizer *self);
// Local. iso__master_take for this rank's elements of slot i.
iso_status iso__dp_state_take_values(const iso__base_optimizer *self, int i);
void iso__dp_state_forget(iso__base_optimizer *self); // frees the tensors

#endif
