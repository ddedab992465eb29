// SPDX-License-Identifier: MIT
// Private to optim: the library's own synchronisation strategies, and settings as text.
#ifndef ISO_STRATEGY_IMPL_H
#define ISO_STRATEGY_IMPL_H

#include <isotherm/strategy.h>

extern const iso_strategy iso__builtin_strategy[];
extern const int iso__builtin_strategy_count;

// Writes a line "KEY: VALUE" for every setting of a table; different values give different lines.
// Text that does not fit into room is cut off.
void iso__settings_write(const iso_setting *table, int count, const void *fields, char *text,
                         size_t room);

#endif
