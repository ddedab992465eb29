// SPDX-License-Identifier: MIT
// --stats and the log: which rank keeps the others waiting, and what that costs.
//
// The exchange of a bucket is complete at the same moment on all ranks. So the rank that was ready
// last is the one for which the least time passed from its own last gradient to that moment. This
// compares ranks without comparing their clocks.
#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_PART 0.1 // of a step: a straggler exceeds it in lateness and cost
#define LEAST_MS   0.5

// What a rank tells of itself; the lags of its buckets follow, in ms.
typedef struct told {
    char host[48];
    double wait_ms; // of a step, the median
} told;

// ---- Judging --------------------------------------------------------------------------------------

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The median of value[0], value[stride], ... without one rank. Of two middle values it takes the
// lower: one early rank must not make another a straggler. room: [ranks].
static double median_of_others(const double *value, int stride, int ranks, int without,
                               double *room) {
    int n = 0;
    for (int r = 0; r < ranks; r++)
        if (r != without) room[n++] = value[r * stride];
    qsort(room, (size_t)n, sizeof(*room), by_value);
    return room[(n - 1) / 2];
}

train_straggler train_find_straggler(int ranks, int buckets, const double *lag_ms,
                                     const double *wait_ms, double step_ms) {
    train_straggler s = {.rank = -1};
    double *room = ranks > 1 ? calloc((size_t)ranks, sizeof(*room)) : NULL;
    if (!room) return s;
    double least = step_ms * LEAST_PART > LEAST_MS ? step_ms * LEAST_PART : LEAST_MS, most = least;
    for (int r = 0; r < ranks; r++)
        for (int b = 0; b < buckets; b++) {
            const double *lag = lag_ms + b;
            double late = median_of_others(lag, buckets, ranks, r, room) - lag[r * buckets];
            if (late > most) most = late, s = (train_straggler){.rank = r, .late_ms = late};
        }
    for (int b = 0; b < buckets && s.rank >= 0; b++) {
        const double *lag = lag_ms + b;
        double late = median_of_others(lag, buckets, ranks, s.rank, room) - lag[s.rank * buckets];
        if (late < s.late_ms / 2) continue;
        s.bucket = b;
        break;
    }
    if (s.rank >= 0) {
        double cost = median_of_others(wait_ms, 1, ranks, s.rank, room) - wait_ms[s.rank];
        s.cost_ms = cost;
        if (!(cost > least)) s.rank = -1; // nobody waits for it, or all wait for each other
    }
    free(room);
    return s;
}

// ---- Telling --------------------------------------------------------------------------------------

static void log_rank(iso_json_log *log, int rank, const char *host, double wait_ms) {
    iso_json_begin(log, "rank");
    iso_json_int(log, "rank", rank);
    iso_json_string(log, "host", host);
    iso_json_double(log, "wait_ms", wait_ms);
    iso_json_end(log);
}

static void log_straggler(iso_json_log *log, const train_straggler *s, const char *host,
                          const char *layers, double step_ms) {
    iso_json_begin(log, "straggler");
    iso_json_int(log, "rank", s->rank);
    iso_json_string(log, "host", host);
    iso_json_string(log, "layers", layers);
    iso_json_double(log, "late_ms", s->late_ms);
    iso_json_double(log, "cost_ms", s->cost_ms);
    iso_json_double(log, "step_ms", step_ms);
    iso_json_end(log);
}

static void tell_straggler(FILE *to, const train_straggler *s, const char *host, const char *layers,
                           double step_ms) {
    if (s->rank < 0)
        fprintf(to,
                "no straggler: in the median step, the others wait for no rank for more than %.0f "
                "%% of it\n",
                100 * LEAST_PART);
    else
        fprintf(to,
                "straggler: rank %d on %s: its gradients are regularly %.2f ms later than those of "
                "the others, from %s %s on; the others wait %.2f ms of each step of %.2f ms for "
                "it\n",
                s->rank, host, s->late_ms, s->bucket == 0 ? "the first," : "layer", layers,
                s->cost_ms, step_ms);
}

// On rank 0, with what all ranks told.
static void judge_all(const train_run *run, FILE *to, const char *all, size_t each, int buckets,
                      double step_ms) {
    int ranks = run->world->ranks, least = 0, most = 0;
    double *wait = calloc((size_t)ranks, sizeof(*wait));
    double *lag = calloc((size_t)(ranks * buckets), sizeof(*lag));
    told of;
    for (int r = 0; wait && lag && r < ranks; r++) {
        memcpy(&of, all + (size_t)r * each, sizeof(of));
        memcpy(lag + r * buckets, all + (size_t)r * each + sizeof(of), each - sizeof(of));
        wait[r] = of.wait_ms;
        log_rank(run->log, r, of.host, of.wait_ms);
        if (wait[r] < wait[least]) least = r;
        if (wait[r] > wait[most]) most = r;
    }
    if (wait && lag) {
        iso_bucket_stats bucket = {.name = ""};
        train_straggler s = train_find_straggler(ranks, buckets, lag, wait, step_ms);
        if (s.rank >= 0) {
            memcpy(&of, all + (size_t)s.rank * each, sizeof(of));
            iso_reducer_get_bucket_stats(iso_data_parallel_reducer(run->model), s.bucket, &bucket);
            log_straggler(run->log, &s, of.host, bucket.name, step_ms);
        }
        if (to)
            fprintf(to, "waits a step (medians): from %.2f ms on rank %d to %.2f ms on rank %d\n",
                    wait[least], least, wait[most], most);
        if (to) tell_straggler(to, &s, of.host, bucket.name, step_ms);
    }
    free(wait);
    free(lag);
}

static double median_wait(const train_run *run) {
    int64_t count = run->timed_steps < TRAIN_STEP_TIMES ? run->timed_steps : TRAIN_STEP_TIMES;
    if (count == 0) return 0;
    qsort(run->step_wait_ms, (size_t)count, sizeof(*run->step_wait_ms), by_value);
    return run->step_wait_ms[count / 2];
}

// Writes what this rank tells. Returns false if its buckets were not exchanged.
static bool fill_told(const train_run *run, const iso_reducer_stats *stats, told *mine) {
    const iso_reducer *reducer = iso_data_parallel_reducer(run->model);
    double *lag = (double *)(void *)(mine + 1);
    char host[MPI_MAX_PROCESSOR_NAME] = "";
    int length;
    MPI_Get_processor_name(host, &length);
    snprintf(mine->host, sizeof(mine->host), "%.47s", host);
    mine->wait_ms = median_wait(run);
    for (int i = 0; i < stats->bucket_count; i++) {
        iso_bucket_stats b;
        if (iso_reducer_get_bucket_stats(reducer, i, &b) < 0 || b.exchanges == 0) return false;
        lag[i] = b.done_ms - b.ready_ms;
    }
    return true;
}

iso_status train_straggler_tell(const train_run *run, FILE *to, double step_ms) {
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(run->model), &stats);
    // Nodes of a periodic mode do not wait for each other's gradients.
    if (run->world->ranks == 1 || run->periodic || stats.bucket_count == 0) return ISO_OK;
    size_t each = sizeof(told) + (size_t)stats.bucket_count * sizeof(double), *sizes;
    told *mine = calloc(1, each);
    char *all;
    int64_t good = mine && stats.steps > 0 && fill_told(run, &stats, mine);
    iso_status status = iso_comm_allreduce_i64(run->world->comm, &good, 1, ISO_MIN);
    if (status == ISO_OK && good)
        status = iso_comm_gather(run->world->comm, mine, each, 0, &all, &sizes);
    if (status == ISO_OK && good && run->world->rank == 0) {
        judge_all(run, to, all, each, stats.bucket_count, step_ms);
        iso_comm_free(all);
        iso_comm_free(sizes);
    }
    if (status >= 0) free(mine); // after a time-out MPI may still read it
    return status;
}
