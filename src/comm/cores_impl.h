// SPDX-License-Identifier: MIT
// Private to cores.c and cores_judge.c: the record that each rank sends about the cores it may use,
// and its evaluation.
#ifndef ISO_CORES_IMPL_H
#define ISO_CORES_IMPL_H

#include "base/base.h"

#include <isotherm/topology.h>

#define ISO_CORES_WORDS 16 // 64-bit words of a mask, one bit for each hardware thread
#define ISO_CORES_HOST  8  // words of a host's name

// Numbers only, because the records of all ranks are gathered by a sum.
typedef struct iso__cores_record {
    int64_t threads; // of the kernels
    int64_t helper;  // 1: a helper thread drives progress
    int64_t own;     // 1: it is to have a core of its own
    int64_t reach;   // hardware threads that its parent process may use
    int64_t cores;   // cores in the mask
    int64_t host[ISO_CORES_HOST];
    uint64_t mask[ISO_CORES_WORDS];  // hardware threads that it may use; empty: unknown
    uint64_t first[ISO_CORES_WORDS]; // of these, the first one of each core
} iso__cores_record;

// Fills *out for `rank` from the records of all ranks.
iso_status iso__cores_judge(const iso__cores_record *records, int ranks, int rank, iso_cores *out);

#endif
