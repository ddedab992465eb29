// Private to src/parallel and optim: whether all ranks were given the same.
#ifndef ISO_MATCH_H
#define ISO_MATCH_H

#include <isotherm/reducer.h>

// Collective: ISO_ERR_MISMATCH on every rank, naming the odd rank and the first parameter or the
// settings that differ, unless all ranks list the same parameters and settings. settings: a line
// "NAME: VALUE\n" for each; further: a hash of what follows from them.
iso_status iso__match(iso_comm *comm, const iso_reducer_param *params, int count,
                      const char *settings, uint64_t further);

#endif
