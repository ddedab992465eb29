// SPDX-License-Identifier: MIT
// --stats and the log: when the gradients of each layer were ready, travelled, and were waited for.
#include "train.h"

#include <math.h>
#include <string.h>

static void log_bucket(iso_json_log *log, const iso_bucket_stats *b) {
    iso_json_begin(log, "bucket");
    iso_json_string(log, "layers", b->name);
    iso_json_int(log, "bytes", (int64_t)b->bytes);
    iso_json_int(log, "wire_bytes", (int64_t)b->wire_bytes);
    iso_json_int(log, "exchanges", b->exchanges);
    iso_json_double(log, "ready_ms", b->ready_ms);
    iso_json_double(log, "start_ms", b->start_ms);
    iso_json_double(log, "done_ms", b->done_ms);
    iso_json_double(log, "need_ms", b->need_ms);
    iso_json_double(log, "exposed_ms", b->wait_ms);
    iso_json_end(log);
}

static void tell_bucket(FILE *to, const iso_bucket_stats *b, bool on_device) {
    fprintf(to, "%-24.24s %9.1f %9.1f", b->name, (double)b->bytes / 1e3,
            (double)b->wire_bytes / 1e3);
    if (b->exchanges == 0)
        fprintf(to, on_device ? "   by NCCL, at times that the host does not see\n"
                              : "   nothing was exchanged\n");
    else
        fprintf(to, " %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f\n", b->ready_ms, b->start_ms, b->done_ms,
                b->need_ms, b->done_ms - b->start_ms, b->wait_ms);
}

double train_hidden(double exchange_ms, double wait_ms) {
    if (!(exchange_ms > 0 && wait_ms >= 0) || isinf(exchange_ms) || isinf(wait_ms)) return NAN;
    return wait_ms < exchange_ms ? 1 - wait_ms / exchange_ms : 0;
}

// With a GPU, the program also waits for its computation. Such waits say nothing about hidden
// exchanges.
static void tell_hidden(FILE *to, const train_result *r, bool beside) {
    double hidden = train_hidden(r->exchange_ms, r->wait_ms_per_step);
    if (beside)
        fprintf(to,
                "exchange alone %.2f ms; the program waited %.2f ms a step, also for the device\n",
                r->exchange_ms, r->wait_ms_per_step);
    else if (isnan(hidden))
        fprintf(to, "exposed %.2f ms a step; what is hidden is not measurable\n",
                r->wait_ms_per_step);
    else
        fprintf(to, "exchange alone %.2f ms, exposed %.2f ms a step: %.0f %% hidden%s\n",
                r->exchange_ms, r->wait_ms_per_step, 100 * hidden,
                r->wait_ms_per_step > r->exchange_ms ? "; ranks also waited for each other" : "");
}

static iso_status tell_times(const train_run *run, FILE *to) {
    iso_data_parallel_times t;
    TRY(iso_data_parallel_get_times(run->model, &t));
    iso_json_begin(run->log, "times");
    iso_json_double(run->log, "forward_ms", t.forward_ms);
    iso_json_double(run->log, "backward_ms", t.backward_ms);
    iso_json_double(run->log, "exchange_ms", t.exchange_ms);
    iso_json_double(run->log, "overlap_ms", t.overlap_ms);
    iso_json_end(run->log);
    if (to)
        fprintf(to,
                "forward %.2f ms, backward %.2f ms, exchange %.2f ms, of that %.2f ms during "
                "backward (means on rank 0)\n",
                t.forward_ms, t.backward_ms, t.exchange_ms, t.overlap_ms);
    return ISO_OK;
}

void train_stats_watch(train_run *run) {
    if (run->options->stats) iso_reducer_watch_gradients(iso_data_parallel_reducer(run->model));
}

// With ZeRO stages 2 and 3.
static void tell_peak(const train_run *run, FILE *to, const iso_reducer_stats *all) {
    iso_json_begin(run->log, "gradient_memory");
    iso_json_int(run->log, "peak_bytes", (int64_t)all->gradient_peak);
    iso_json_end(run->log);
    if (to)
        fprintf(to, "at most %.3f MB of gradients were in memory at once on rank 0\n",
                (double)all->gradient_peak * 1e-6);
}

iso_status train_stats_tell(const train_run *run, const train_result *result) {
    const iso_reducer *reducer = iso_data_parallel_reducer(run->model);
    FILE *to = run->world->rank == 0 ? stdout : NULL;
    iso_reducer_stats all;
    if (!run->options->stats) return ISO_OK;
    if (run->options->quiet) to = NULL;
    iso_reducer_get_stats(reducer, &all);
    if (to)
        fprintf(to,
                "gradients on rank 0: means over steps, ms since the first gradient of a backward\n"
                "%-24s %9s %9s %8s %8s %8s %8s %8s %8s\n",
                "layers", "kB", "wire kB", "ready", "start", "done", "needed", "exchange",
                "exposed");
    for (int i = 0; i < all.bucket_count; i++) {
        iso_bucket_stats b;
        TRY(iso_reducer_get_bucket_stats(reducer, i, &b));
        log_bucket(run->log, &b);
        if (to) tell_bucket(to, &b, all.nccl);
    }
    TRY(tell_times(run, to));
    if (all.gradient_peak > 0) tell_peak(run, to, &all);
    bool beside = strcmp(iso_device_name(run->world->device), "cpu") != 0;
    if (to && !run->periodic) tell_hidden(to, result, beside);
    return train_straggler_tell(run, to, result->step_ms_p50);
}
