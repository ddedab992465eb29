// SPDX-License-Identifier: MIT
// Private to optim: the library's own strategies of synchronisation.
#ifndef ISO_STRATEGY_IMPL_H
#define ISO_STRATEGY_IMPL_H

#include <isotherm/strategy.h>

extern const iso_strategy iso__builtin_strategy[];
extern const int iso__builtin_strategy_count;

#endif
