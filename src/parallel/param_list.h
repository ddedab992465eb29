// SPDX-License-Identifier: MIT
// Private to src/parallel: parameters that all ranks list alike.
#ifndef ISO_PARAM_LIST_H
#define ISO_PARAM_LIST_H

#include "base/base.h"

#include <isotherm/reducer.h>

// ISO_ERR_ARG where arrays overlap, or parameters of a layer stand apart; each has passed for
// itself.
iso_status iso__params_check(const iso_reducer_param *params, int count);

// Collective: ISO_ERR_MISMATCH on every rank, naming the odd rank and the first parameter or the
// settings that differ, unless all ranks list the same parameters and settings. settings: a line
// "NAME: VALUE\n" for each; further: a hash of what follows from them.
iso_status iso__params_check_ranks(iso_comm *comm, const iso_reducer_param *params, int count,
                                   const char *settings, uint64_t further);

#endif
