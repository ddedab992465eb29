// SPDX-License-Identifier: MIT
// Private to src/parallel: checks of lists of parameters.
#ifndef ISO_PARAM_LIST_H
#define ISO_PARAM_LIST_H

#include "base/base.h"

#include <isotherm/reducer.h>

// ISO_ERR_ARG or ISO_ERR_TYPE if a parameter is not valid, arrays overlap, or parameters of a layer
// are not adjacent.
iso_status iso__params_check(const iso_reducer_param *params, int count);

// Collective. ISO_ERR_MISMATCH on every rank unless all ranks list the same parameters and
// settings. The message names the rank that differs, and the first parameter or the settings that
// differ. settings: one line "NAME: VALUE\n" for each. further: a hash of values derived from them.
iso_status iso__params_check_ranks(iso_comm *comm, const iso_reducer_param *params, int count,
                                   const char *settings, uint64_t further);

#endif
