// SPDX-License-Identifier: MIT
// For tests of memory that ranks share: creation, and sums whose bits depend on the order of the
// ranks.
#ifndef ISO_TEST_SHARED_FIXTURE_H
#define ISO_TEST_SHARED_FIXTURE_H

#include <isotherm/comm.h>

// Collective: memory that is shared if possible. *memory: written on success only.
iso_status shared_alloc(iso_comm *comm, size_t bytes, void **memory);
void shared_free(iso_comm *comm, void **memory);
// Collective: memory for `count` floats; fails the test unless it is really shared.
float *shared_create(iso_comm *comm, size_t count);
void shared_destroy(iso_comm *comm, float **memory);
// The values that a rank contributes to an exchange, of many magnitudes. is_summed: whether data is
// the sum of the values of all ranks, added in the order of the ranks.
float shared_value(int rank, int exchange, size_t i);
void shared_fill(float *data, size_t count, int exchange);
bool shared_is_summed(const float *data, size_t count, int exchange);
bool shared_is_all(const float *data, size_t count, float wanted);

#endif
