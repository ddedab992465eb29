// SPDX-License-Identifier: MIT
// What several reports of a training run say in the same words.
#include "train_text.h"

#include <stdlib.h>
#include <string.h>

FILE *train_terminal(const train_run *run) {
    return run->world->rank == 0 && !run->options->quiet ? stdout : NULL;
}

int train_zero_stage(const train_options *o) {
    const char *zero = train_setting_text(o, "zero"), *stage = train_setting_text(o, "zero-stage");
    if (zero && strcmp(zero, "yes") == 0) return 1;
    return stage ? atoi(stage) : 0;
}

static const char *zero_text(const train_run *run, char text[TRAIN_ALGORITHM_ROOM]) {
    const char *scope = train_setting_text(run->options, "zero-scope");
    bool nodes = !scope || strcmp(scope, "node") == 0; // daso has no such setting
    snprintf(text, TRAIN_ALGORITHM_ROOM, "ZeRO stage %d, divided among %s",
             train_zero_stage(run->options), nodes ? "the ranks of each node" : "all ranks");
    return text;
}

const char *train_algorithm_text(const train_run *run, char text[TRAIN_ALGORITHM_ROOM]) {
    iso_reducer_stats stats;
    if (train_zero_stage(run->options) > 0) return zero_text(run, text);
    iso_reducer_get_stats(iso_data_parallel_reducer(run->model), &stats);
    if (stats.nccl) return "by NCCL between GPUs";
    if (stats.shared_memory) return "in shared memory";
    snprintf(text, TRAIN_ALGORITHM_ROOM, "%s%s",
             stats.two_levels ? "in the shared memory of each node, and between nodes: " : "",
             stats.pairwise ? "pairwise exchange" : iso_comm_algorithm_text(run->world->comm));
    return text;
}

const char *train_nan_advice(const train_run *run) {
    const char *type = train_activations(run->options);
    bool f16 = type && strcmp(type, "f16") == 0;
    if (f16 && !run->scaler) return "try --grad-scaler, bf16 instead of f16, or a lower --lr";
    return f16 ? "try bf16 instead of f16, or a lower --lr" : "try a lower --lr";
}

const char *train_activations(const train_options *o) {
    bool half = strcmp(o->dtype, "bf16") == 0 || strcmp(o->dtype, "f16") == 0;
    if (half) return o->dtype;
    return strcmp(o->autocast, "none") == 0 ? NULL : o->autocast;
}

const char *train_count_text(int64_t count, const char *noun, char text[48]) {
    snprintf(text, 48, "%lld %s%s", (long long)count, noun, count == 1 ? "" : "s");
    return text;
}

static const char *steps_text(int64_t steps, const char *otherwise, char text[24]) {
    snprintf(text, 24, "%lld", (long long)steps);
    return steps < 0 ? otherwise : text;
}

const char *train_rhythm_text(const iso_strategy_stats *s, char text[160]) {
    char steps[4][24];
    text[0] = 0;
    if (s->period == 0 && s->period_requested == 0) return text;
    snprintf(text, 160, "period %s (requested: %s), wait %s (requested: %s)",
             steps_text(s->period, "auto", steps[0]),
             steps_text(s->period_requested, "auto", steps[1]),
             steps_text(s->wait, "to be measured", steps[2]),
             steps_text(s->wait_requested, "auto", steps[3]));
    return text;
}

double train_samples_per_second(const train_metrics *metrics) {
    return metrics->seconds > 0 ? (double)metrics->samples / metrics->seconds : 0;
}
