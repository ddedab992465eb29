// SPDX-License-Identifier: MIT
// Predicts what a run would take on a slower network. The model: what a step computes stays; an
// exchange takes at least as long as its bytes need on the wire; as much of it as before, or as
// there is to compute, stays hidden.
#include "report_predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Of TCP over Ethernet: 1448 bytes of data in a frame of 1514.
#define HEADERS (1514.0 / 1448)

// Exchanges that daso makes to choose its wait: one that warms up, and three that it times.
#define TIMED 4

// Between two evaluations.
typedef struct interval {
    double steps, compute_ms, wait_ms; // compute: of a step; wait: exposed, in all
    double gradients, parameters;      // bytes that all nodes sent to others
} interval;

static double of_number(double value, double otherwise) { return isnan(value) ? otherwise : value; }
static double left_of(double ms, double hidden) { return fmax(ms - hidden, 0); }

// Keeps what ranks waited for each other beyond the exchange. No wait becomes shorter.
static double longer_wait(double wait, double exposed, double then) {
    return fmax(wait, then + left_of(wait, exposed));
}

// All nodes send at the same time. Halving and doubling takes 2 log2(nodes) messages in turn.
static double exchange_ms(const report *study, const report_run *run, double bytes) {
    double wire = bytes * HEADERS * 8 / run->nodes / (study->network.rate * 1e3);
    return wire + study->network.latency * 2 * ceil(log2(run->nodes));
}

static bool is_periodic(const report_run *run) { return run->sync_count > 0; }

static bool is_auto(const char *requested) { return strcmp(requested, "auto") == 0; }

static bool has_sync(const report_run *run, const char *line) {
    return run->settings && strstr(run->settings, line);
}

static interval interval_of(const report_run *run, int64_t i) {
    const report_point *now = &run->points[i];
    report_point before = i > 0 ? run->points[i - 1] : (report_point){0};
    double none = is_periodic(run) ? NAN : 0; // logs of older versions do not tell them apart
    interval out = {.steps = now->step - before.step};
    double wait = of_number(now->wait_ms_per_step, run->wait_ms_per_step);
    out.wait_ms = wait * out.steps;
    out.compute_ms = left_of((now->seconds - before.seconds) * 1e3 / out.steps, wait);
    out.parameters = of_number(now->parameters, none) - of_number(before.parameters, none);
    out.gradients = now->between - before.between - out.parameters;
    return out;
}

// ---- Gradients ----------------------------------------------------------------------------------

// The number of steps that averaged gradients over nodes. In a periodic mode some phases do so, and
// send in each step what an all-reduce sends.
static double gradient_steps(const report_run *run, const interval *in) {
    double whole = 2 * (run->nodes - 1) * run->bytes_per_step;
    if (!(in->gradients > 0)) return 0;
    if (!is_periodic(run)) return in->steps;
    return whole > 0 ? fmin(fmax(round(in->gradients / whole), 1), in->steps) : in->steps;
}

// How much of an exchange a step can hide. A step that waited for the network has shown it. A step
// that hid everything may be able to hide more, up to its whole computation.
static double hideable_ms(const report_run *run, double alone, double wait, double compute) {
    if (has_sync(run, "--sync blocking\n") || has_sync(run, "--sync explicit\n")) return 0;
    if (!(alone > 0)) return compute; // a phase of a periodic mode, in which ranks average as lazy
    double shown = fmin(left_of(alone, wait), compute);
    return shown + left_of(1, wait / alone) * (compute - shown);
}

static double gradient_wait(const report *study, const report_run *run, const interval *in,
                            double wait_ms) {
    double steps = gradient_steps(run, in);
    if (steps == 0) return wait_ms;
    double alone = is_periodic(run) ? NAN : run->exchange_alone_ms, wait = wait_ms / steps;
    double hidden = hideable_ms(run, alone, wait, in->compute_ms);
    double then = left_of(exchange_ms(study, run, in->gradients / steps), hidden);
    return steps * longer_wait(wait, alone > 0 ? left_of(alone, hidden) : wait, then);
}

// ---- Parameters ---------------------------------------------------------------------------------

// The bytes that all nodes sent for each byte of rank 0.
static double bytes_scale(const report_run *run) {
    double own = 0;
    for (int64_t s = 0; s < run->sync_count; s++) own += run->syncs[s].between;
    return run->points[run->point_count - 1].parameters / own;
}

// The first evaluation from this step on; their number: there is none.
static int64_t point_from(const report_run *run, double step) {
    int64_t i = 0;
    while (i < run->point_count && !(run->points[i].step >= step)) i++;
    return i;
}

// The step in which the program waits for an exchange that it sent earlier: to merge it or, if that
// comes first, to evaluate.
static double wait_step(const report_run *run, const report_sync *sync) {
    int64_t i = point_from(run, sync->step - of_number(sync->age, 0));
    return i < run->point_count ? fmin(run->points[i].step, sync->step) : sync->step;
}

// An automatic wait grows up to the period.
static double sync_wait(const report *study, const report_run *run, const report_sync *sync,
                        double bytes, double compute) {
    double age = of_number(sync->age, 0), steps = wait_step(run, sync) - (sync->step - age);
    bool grows = age > 0 && steps == age && is_auto(run->wait_requested);
    if (grows) steps = fmax(steps, of_number(sync->period, 0));
    double hidden = steps * compute, then = left_of(exchange_ms(study, run, bytes), hidden);
    double exposed = age > 0 ? left_of(sync->exchange_ms, hidden) : sync->wait_ms;
    return longer_wait(sync->wait_ms, exposed, then);
}

// The extra time of the exchanges that daso times before its first send. Their measured time is
// part of the run's computing time.
static double timing_ms(const report *study, const report_run *run, double bytes) {
    double least = INFINITY;
    if (!is_auto(run->wait_requested)) return 0;
    for (int64_t s = 0; s < run->sync_count; s++)
        if (run->syncs[s].age > 0) least = fmin(least, run->syncs[s].exchange_ms);
    return isfinite(least) ? TIMED * left_of(exchange_ms(study, run, bytes), least) : 0;
}

// ---- The whole ----------------------------------------------------------------------------------

// Waits for exchanges of parameters in an interval, measured and predicted.
typedef struct waits {
    double was, then; // ms
} waits;

// The interval in which the program waits for an exchange; NULL: not in one that is known.
static waits *waits_for(const report_run *run, const report_sync *sync, waits *of) {
    double at = wait_step(run, sync);
    int64_t i = point_from(run, at);
    return at > 0 && i < run->point_count ? &of[i] : NULL;
}

// The computing time of a step: the least of all intervals, without waits and other work.
static double step_ms(const report_run *run) {
    double least = INFINITY;
    for (int64_t i = 0; i < run->point_count; i++)
        least = fmin(least, interval_of(run, i).compute_ms);
    return least;
}

// room: for as many exchanges as the run made.
static void add_waits(const report *study, const report_run *run, waits *of, report_sync *room) {
    double scale = bytes_scale(run), step = step_ms(run);
    for (int64_t s = 0; s < run->sync_count; s++) {
        waits *in = waits_for(run, &run->syncs[s], of);
        if (in) in->was += run->syncs[s].wait_ms;
    }
    double bytes = run->syncs[0].between * scale;
    if (waits_for(run, &run->syncs[0], of))
        waits_for(run, &run->syncs[0], of)->then += timing_ms(study, run, bytes);
    int64_t count = report_resync(run, exchange_ms(study, run, bytes), step, room);
    const report_sync *syncs = count >= 0 ? room : run->syncs;
    if (count < 0) count = run->sync_count;
    for (int64_t s = 0; s < count; s++) {
        waits *in = waits_for(run, &syncs[s], of);
        if (in) in->then += sync_wait(study, run, &syncs[s], syncs[s].between * scale, step);
    }
}

static double interval_ms(const report *study, const report_run *run, int64_t i, const waits *of) {
    interval in = interval_of(run, i);
    double then = of->then + gradient_wait(study, run, &in, left_of(in.wait_ms, of->was));
    return in.steps * in.compute_ms + then;
}

bool report_is_local(const report_run *run) { return run->nodes == 1 && run->ranks > 1; }

// Logs of older versions lack some numbers.
static bool is_predictable(const report *study, const report_run *run) {
    if (report_is_local(run) || !(study->network.rate > 0) || run->point_count == 0 ||
        isnan(run->nodes))
        return false;
    interval last = interval_of(run, run->point_count - 1);
    return !isnan(last.wait_ms) && !isnan(last.gradients);
}

static report_prediction add_intervals(const report *study, const report_run *run,
                                       const waits *of) {
    const report_point *at = report_reached(run, study->target);
    const report_point *end = &run->points[run->point_count - 1];
    report_prediction out = {NAN, NAN};
    double ms = 0;
    for (int64_t i = 0; i < run->point_count; i++) {
        ms += interval_ms(study, run, i, &of[i]);
        if (at == &run->points[i]) out.target_seconds = ms / 1e3;
    }
    out.seconds = ms / 1e3 + (end->step < run->steps ? run->seconds - end->seconds : 0);
    return out;
}

report_prediction report_predict(const report *study, const report_run *run) {
    report_prediction out = {NAN, NAN};
    if (!is_predictable(study, run)) return out;
    waits *of = calloc((size_t)run->point_count, sizeof(*of));
    report_sync *room = calloc((size_t)run->sync_count + 1, sizeof(*room));
    if (of && room) {
        if (is_periodic(run)) add_waits(study, run, of, room);
        out = add_intervals(study, run, of);
    }
    free(of);
    free(room);
    return out;
}
