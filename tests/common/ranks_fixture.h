// SPDX-License-Identifier: MIT
// For tests of trainings that go on with another number of ranks.
#ifndef ISO_TEST_RANKS_FIXTURE_H
#define ISO_TEST_RANKS_FIXTURE_H

#include "common/dp_fixture.h"

// Collective. The first `size` ranks of the world; MPI_COMM_NULL on the others. To be freed.
MPI_Comm ranks_split(int size);
// Saves the trainer under resume_path. Loading sets *saved_ranks; NULL: the number of ranks must be
// the same.
iso_status ranks_save(trainer *t, int step);
iso_status ranks_load(trainer *t, int64_t *saved_ranks);
// Whether the last state that a number of ranks loaded was saved on nodes in another way.
extern bool ranks_moved;

#endif
