// SPDX-License-Identifier: MIT
// Private to optim: outer optimizers, checked and compared between ranks.
#ifndef ISO_OUTER_IMPL_H
#define ISO_OUTER_IMPL_H

#include "base/base.h"

#include <isotherm/outer.h>

// Whether a merge leaves the same parameters on all ranks.
static inline bool iso__outer_equalises(const iso_outer *outer) {
    return outer->replaces && outer->mix == 0;
}
// ISO_ERR_ARG names the rule, the number and its limits.
iso_status iso__outer_check(const iso_outer *outer);
// One line that is equal on ranks with the same rule. Returns its length.
int iso__outer_write(const iso_outer *outer, char *text, size_t room);

#endif
