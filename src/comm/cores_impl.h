// SPDX-License-Identifier: MIT
// Private: what a rank tells the others about the cores it may use, and what follows from it.
#ifndef ISO_CORES_IMPL_H
#define ISO_CORES_IMPL_H

#include "base/base.h"

#include <isotherm/topology.h>

#define ISO_CORES_WORDS 16 // of a mask, 64 hardware threads each
#define ISO_CORES_HOST  8  // words of a host's name

// Numbers only: all ranks' are gathered by summing an array of them.
typedef struct iso__cores_record {
    int64_t threads; // of the kernels
    int64_t helper;  // 1: a thread of its own drives progress
    int64_t reach;   // hardware threads that it could be given: those of the process it came from
    int64_t cores;   // in the mask: hardware threads of one core count once
    int64_t host[ISO_CORES_HOST];
    uint64_t mask[ISO_CORES_WORDS];  // hardware threads that it may use; none: unknown
    uint64_t first[ISO_CORES_WORDS]; // of these, one of each core
} iso__cores_record;

// Fills *out for this rank from the records of all.
iso_status iso__cores_judge(const iso__cores_record *records, int ranks, int rank, iso_cores *out);

#endif
