// SPDX-License-Identifier: MIT
// Private to train_*.c: what --sync tournament needs of the program.
#ifndef EXAMPLES_TRAIN_TOURNAMENT_H
#define EXAMPLES_TRAIN_TOURNAMENT_H

#include "train.h"

// Local. ISO_ERR_ARG for a --sync with tournaments without --validation.
iso_status train_tournament_check(const train_options *options);
// Collective. If --sync has tournaments, fills in *out, to which the context then points, and
// *hyper, the learning rate, which moves with models.
iso_status train_tournament_setup(train_run *run, iso_tournament *out, iso_tournament_hyper *hyper,
                                  iso_strategy_context *context);

#endif
