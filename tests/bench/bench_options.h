// SPDX-License-Identifier: MIT
// Options of bench_step, and lists of values that one start measures in turn.
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include "bench_util.h"

#include <isotherm/reducer.h>

// Of one measurement.
typedef struct bench_options {
    const char *model, *progress, *device, *math;
    const char *autocast; // "none", "bf16", "f16"
    int batch, steps, warmup, threads;
    iso_sync sync;
    bool report_hidden, breakdown, tuned;
    double bucket_mb, piece_mb;
    const char *graphs; // "on", "off", or NULL: as the environment says
    const char *wire;   // name of a communication hook
    const char *table;  // file that --breakdown writes; NULL: none
} bench_options;

typedef struct bench_plan {
    bench_options base;
    bench_list model, batch, math, graphs, wire;
} bench_plan;

extern const char *const bench_sync_name[3]; // index: iso_sync

// Ends the program with a message if the options are wrong. Changes commas in argv to ends of text.
bench_plan bench_parse(int argc, char **argv);
// The measurement of that number, from 0: batches change fastest, then wires, graphs,
// math, models. false:
// there are no more.
bool bench_select(const bench_plan *plan, int number, bench_options *out);

#endif
