// SPDX-License-Identifier: MIT
// --rebuild: builds the buckets of gradients anew, once the order in which these are ready is
// known. With "tuned", also tries sizes of buckets in the first steps, and keeps the fastest.
// Results are the same whatever is chosen, so neither --replay nor --resume needs to know.
#include "train.h"

#include <string.h>

// In MiB: the default, and up to that of PyTorch's DDP.
static const double sizes[] = {0.25, 1, 4, 25};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

iso_status train_rebuild_check(const train_options *o) {
    const iso_strategy *strategy;
    const char *wire = train_setting_text(o, "wire"), *zero = train_setting_text(o, "zero");
    const char *stage = train_setting_text(o, "zero-stage");
    if (strcmp(o->rebuild, "no") == 0) return ISO_OK;
    TRY(iso_strategy_find(o->sync, &strategy));
    if (strategy->finish)
        return train_error(ISO_ERR_ARG,
                           "--rebuild cannot be combined with --sync %s, which changes the ranks "
                           "that average gradients: remove one of them",
                           o->sync);
    if (wire && !iso_setting_among(wire, "f32|bf16|f16"))
        return train_error(ISO_ERR_ARG,
                           "--rebuild cannot be combined with --wire %s, whose results depend on "
                           "which gradients share a bucket: give f32, bf16 or f16",
                           wire);
    if ((zero && strcmp(zero, "yes") == 0) || (stage && strcmp(stage, "0") != 0))
        return train_error(ISO_ERR_ARG,
                           "--rebuild cannot be combined with --zero, where each rank has the "
                           "optimizer state of its part of the buckets: remove one of them");
    if (strncmp(o->device, "cuda", 4) == 0)
        return train_error(ISO_ERR_ARG,
                           "--rebuild works in the host's memory so far: remove it or --device %s",
                           o->device);
    return ISO_OK;
}

static int count_buckets(const train_run *run) {
    iso_reducer_stats stats;
    iso_reducer_get_stats(iso_data_parallel_reducer(run->model), &stats);
    return stats.bucket_count;
}

// Logs what was done. size: index of the bucket size; -1: sizes are unchanged. ms < 0: not timed.
static void log_buckets(train_run *run, const char *what, int size, double ms) {
    iso_json_begin(run->log, "buckets");
    iso_json_int(run->log, "step", run->at.step);
    iso_json_string(run->log, "what", what);
    if (size >= 0) iso_json_double(run->log, "bucket_mb", sizes[size]);
    iso_json_int(run->log, "buckets", count_buckets(run));
    if (ms >= 0) iso_json_double(run->log, "step_ms", ms);
    iso_json_end(run->log);
}

static iso_status use_size(train_run *run, int size) {
    run->rebuild.since = 0;
    return iso_data_parallel_rebuild(run->model, &(iso_bucket_sizes){.bucket_mb = sizes[size]});
}

// The median over the timed steps, of the slowest rank; the same on all ranks.
static iso_status measure_size(train_run *run, double *out) {
    double *ms = run->rebuild.ms;
    for (int i = 1; i < TRAIN_REBUILD_TIMED; i++)
        for (int k = i; k > 0 && ms[k - 1] > ms[k]; k--) {
            double more = ms[k - 1];
            ms[k - 1] = ms[k];
            ms[k] = more;
        }
    *out = (ms[(TRAIN_REBUILD_TIMED - 1) / 2] + ms[TRAIN_REBUILD_TIMED / 2]) / 2;
    return iso_comm_allreduce_f64(run->world->comm, out, 1, ISO_MAX);
}

// The next size that changes the number of buckets; *size stays if there is none.
static iso_status try_next(train_run *run, int *size) {
    train_rebuild *b = &run->rebuild;
    while (b->trial < SIZES) {
        int before = count_buckets(run), next = b->trial++;
        TRY(use_size(run, next));
        if (next > 0 && count_buckets(run) == before) continue;
        *size = b->current = next;
        return ISO_OK;
    }
    return ISO_OK;
}

static iso_status judge_size(train_run *run) {
    train_rebuild *b = &run->rebuild;
    int size = b->current, next = size;
    double ms;
    TRY(measure_size(run, &ms));
    log_buckets(run, "trial", size, ms);
    if (size == 0 || ms < b->best_ms) {
        b->best = size;
        b->best_ms = ms;
    }
    TRY(try_next(run, &next));
    if (next != size) return ISO_OK;
    if (b->best != size) TRY(use_size(run, b->best));
    log_buckets(run, "chosen", b->best, b->best_ms);
    b->over = true;
    return ISO_OK;
}

static iso_status begin_rebuild(train_run *run) {
    train_rebuild *b = &run->rebuild;
    int first = 0;
    if (strcmp(run->options->rebuild, "tuned") == 0) return try_next(run, &first);
    TRY(iso_data_parallel_rebuild(run->model, NULL));
    log_buckets(run, "order", -1, -1);
    b->over = true;
    return ISO_OK;
}

iso_status train_rebuild_look(train_run *run) {
    train_rebuild *b = &run->rebuild;
    if (b->over || run->options->rebuild[0] == 'n') return ISO_OK;
    if (run->skipped > b->skipped) { // no update has used its gradients
        b->skipped = run->skipped;
        return ISO_OK;
    }
    if (b->trial == 0) return begin_rebuild(run);
    int64_t timed = b->since++ - TRAIN_REBUILD_WARM;
    if (timed >= 0) b->ms[timed] = run->step_ms[(run->timed_steps - 1) % TRAIN_STEP_TIMES];
    return timed + 1 < TRAIN_REBUILD_TIMED ? ISO_OK : judge_size(run);
}
