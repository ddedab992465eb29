// SPDX-License-Identifier: MIT
// What several reports of a training run say in the same words.
#ifndef ISO_TRAIN_TEXT_H
#define ISO_TRAIN_TEXT_H

#include "train.h"

FILE *train_terminal(const train_run *run); // NULL: this rank tells people nothing
// The stage of ZeRO; 0: none.
int train_zero_stage(const train_options *options);
// How gradients are summed.
enum { TRAIN_ALGORITHM_ROOM = 256 };
const char *train_algorithm_text(const train_run *run, char text[TRAIN_ALGORITHM_ROOM]);
// "1 rank", "2 ranks".
const char *train_count_text(int64_t count, const char *noun, char text[48]);
// Period and wait as they are in force and as they were asked for; empty where there are none.
const char *train_rhythm_text(const iso_strategy_stats *stats, char text[160]);
double train_samples_per_second(const train_metrics *metrics);

// What to try if parameters are NaN or infinite.
const char *train_nan_advice(const train_run *run);

#endif
