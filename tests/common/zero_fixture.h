// SPDX-License-Identifier: MIT
// Training under data_parallel with a stage of ZeRO.
#ifndef ISO_ZERO_FIXTURE_H
#define ISO_ZERO_FIXTURE_H

#include "common/dp_fixture.h"

#include <isotherm/state_dict.h>

// Trainers that are created with it, until the next call, have this stage.
void zero_set_stage(trainer_config *config, int stage);
void zero_create_trainer(trainer *t, trainer_config config, int stage);
iso_status zero_make_step(trainer *t, int step);
uint64_t zero_hash_now(trainer *t);
// After 4 steps.
uint64_t zero_hash_of(trainer_config config, int stage);
// The bits of a stage are those of stage 1 and, but for LAMB, of a run without ZeRO. Of the 9
// combinations of sync and optimizer, tries every `by`-th one, from `from` on.
void zero_equals_stage_1(int stage, int from, int by);
bool zero_same_dicts(const iso_state_dict *a, const iso_state_dict *b); // names and bits

#endif
