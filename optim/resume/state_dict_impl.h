// SPDX-License-Identifier: MIT
// Private to optim: what loading into modules and loading into optimizers share.
#ifndef ISO_STATE_DICT_IMPL_H
#define ISO_STATE_DICT_IMPL_H

#include "base/base.h"

#include <isotherm/state_dict.h>

// ISO_ERR_MISMATCH unless the tensors of dict can be copied into those of the same names in `own`,
// and, strict, the names are the same. what: "model" or "optimizer", for messages. *keys (may be
// NULL) is written on success.
iso_status iso__state_dict_match(const iso_state_dict *own, const iso_state_dict *dict,
                                 const char *what, bool strict, iso_incompatible_keys *keys);
// Copies the tensors that matched into own, and converts them.
iso_status iso__state_dict_copy(const iso_state_dict *own, const iso_state_dict *dict);

#endif
