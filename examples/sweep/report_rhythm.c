// SPDX-License-Identifier: MIT
// Predicts when daso exchanges parameters on a slower network, if it chooses wait and period
// itself.
#include "report_impl.h"
#include "report_predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// As daso chooses them: the wait is the steps that an exchange takes, and 3 more. The period is one
// and a half times the wait, at least 8 (see global_skip and batches_to_wait in isotherm/daso.h).
enum { SPARE = 3, LEAST_PERIOD = 8 };

static double max_period(const report_run *run) {
    const char *line = run->settings ? strstr(run->settings, "--max-period ") : NULL;
    double most = line ? strtod(line + strlen("--max-period "), NULL) : 0;
    return most >= 1 ? most : 64;
}

// Exchanges that are sent and merged later; others average at once, as the last one of all does.
static bool is_delayed(const report_sync *sync) { return sync->age > 0; }

static const report_sync *first_delayed(const report_run *run) {
    int64_t s = 0;
    while (s < run->sync_count && !is_delayed(&run->syncs[s])) s++;
    return s < run->sync_count ? &run->syncs[s] : NULL;
}

static bool chooses_period(const report_run *run) {
    return strcmp(run->period_requested, "auto") == 0 && strcmp(run->wait_requested, "auto") == 0 &&
           run->settings && strstr(run->settings, "--policy fixed\n");
}

// The last step of the phase in which exchanges are delayed.
static double end_of_delays(const report_run *run) {
    double end = run->steps;
    for (int64_t s = 0; s < run->sync_count; s++)
        if (!is_delayed(&run->syncs[s]) && run->syncs[s].step > first_delayed(run)->step)
            end = fmin(end, run->syncs[s].step);
    return end;
}

int64_t report_resync(const report_run *run, double exchange_ms, double step_ms, report_sync *out) {
    const report_sync *first = first_delayed(run);
    double wait = fmin(ceil(exchange_ms / step_ms) + SPARE, max_period(run));
    if (!chooses_period(run) || !first || !(wait > first->wait)) return -1;
    double period = fmax(fmin(ceil(1.5 * wait), max_period(run)), LEAST_PERIOD);
    double end = end_of_delays(run);
    double sent = first->step - first->age; // before which the wait is measured
    int64_t count = 0;
    for (; sent < end && count < run->sync_count; sent += period) {
        double age = fmin(wait, end - sent); // the end merges what is under way
        out[count] = *first;
        out[count].step = sent + age;
        out[count].age = out[count].wait = out[count].period = age; // it does not grow any more
        out[count++].wait_ms = 0;
    }
    for (int64_t s = 0; s < run->sync_count && count < run->sync_count; s++)
        if (!is_delayed(&run->syncs[s])) out[count++] = run->syncs[s];
    return count;
}
