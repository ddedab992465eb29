// SPDX-License-Identifier: MIT
// Private to the CPU device: an activation in either layout, cut into strips of channels.
#ifndef ISO_CPU_STRIP_H
#define ISO_CPU_STRIP_H

#include "device/cpu/cpu_impl.h"

#define ISO__LANES 16 // numbers that are processed side by side

// The elements of an activation that are processed together: up to ISO__LANES adjacent channels, or
// ISO__LANES neighbours in a plane of one channel.
typedef struct iso__strip {
    int64_t first;         // its first element
    int64_t runs, step;    // runs of memory, and elements from one to the next
    int64_t cells, stride; // cells of a run, and elements from one to the next
    int lanes;             // elements of a cell
    int rest;              // single elements after the last cell of a run
    int64_t channel;       // that its first element belongs to
    int channels;          // that exist (others only fill a block)
    bool across;           // the lanes are channels
} iso__strip;

typedef struct iso__strip_plan {
    iso__cpu_view v;
    bool across;
    int64_t per_group; // strips of a group of channels
    int64_t width;     // channels, with those that fill blocks
} iso__strip_plan;

iso__strip_plan iso__strip_plan_of(const iso__cpu *cpu, const iso_tensor *x);
int64_t iso__strip_count(const iso__strip_plan *p);
iso__strip iso__strip_of(const iso__strip_plan *p, int64_t i);

#endif
