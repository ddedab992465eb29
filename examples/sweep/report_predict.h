// SPDX-License-Identifier: MIT
// What the runs of a study would take on the network of report.network.
#ifndef EXAMPLES_REPORT_PREDICT_H
#define EXAMPLES_REPORT_PREDICT_H

#include "report_groups.h"

typedef struct report_prediction {
    double target_seconds, seconds;
} report_prediction;

// Training time until the target, and of the whole run, with the same steps. Computing takes what
// it took. An exchange takes the larger of what it took and what its bytes take at network.rate,
// with headers, plus the latency; so a faster network than that of the run gains nothing. NaN: no
// network is given, the target was not reached, or the log lacks what the prediction needs.
report_prediction report_predict(const report *study, const report_run *run);
// Whether the ranks of a run were on one node: nothing is known of their exchanges over a network.
bool report_is_local(const report_run *run);

// ---- report_rhythm.c ----

// The exchanges that daso with automatic wait and period would make instead of run->syncs, which
// are fewer, if an exchange took exchange_ms and a step without waits step_ms. Writes them to out,
// which has room for run->sync_count, and returns their number. -1: the run keeps its exchanges.
int64_t report_resync(const report_run *run, double exchange_ms, double step_ms, report_sync *out);

// A table of the page, with the predicted winner of each setup; nothing without a network.
void report_write_predictions(FILE *to, const report_groups *all);
// A line for each mode: measured and predicted times, and its predicted place.
void report_write_predicted(FILE *to, const report_groups *all);

#endif
