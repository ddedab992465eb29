// SPDX-License-Identifier: MIT
// Private to optim: the state of an optimizer with ZeRO, where each rank keeps that of the elements
// which it updates.
#ifndef ISO_DP_STATE_H
#define ISO_DP_STATE_H

#include "optim/optim_impl.h"

#include <isotherm/reducer.h>

// Local. From now on self keeps the state of these elements only. place[i]: the reducer's parameter
// that self->slot[i] updates. The reducer shares updates out, and outlives all calls but the next.
iso_status iso__dp_state_create(iso__base_optimizer *self, iso_reducer *reducer, const int *place);
void iso__dp_state_destroy(iso__base_optimizer *self); // does nothing where all state is here

// Where the state of element `first` of slot i lies, and how many elements of slot i are here.
// ISO_ERR_STATE if that element is another rank's.
iso_status iso__dp_state_find(const iso__base_optimizer *self, int i, int64_t first, int64_t count,
                              int64_t *elements, size_t *state_offset);

// Collective. Makes tensors with the whole state, which are saved or loaded into, and makes the
// steps of parameters equal on all ranks. The tensors stay until the next update.
iso_status iso__dp_state_gather(iso__base_optimizer *self);
iso_tensor *iso__dp_state_tensor(const iso__base_optimizer *self, int i, int kind); // borrowed
// Local. The tensors were loaded: keeps what is this rank's.
iso_status iso__dp_state_take(iso__base_optimizer *self);
void iso__dp_state_forget(iso__base_optimizer *self); // frees the tensors

#endif
