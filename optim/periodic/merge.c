// SPDX-License-Identifier: MIT
// Merge rules: combine the current parameters with the mean of earlier ones.
#include "optim/periodic/merge.h"

enum { BLOCK = 2048 }; // stays in the first-level cache between the two passes over it

// CoCoD-SGD (Shen et al., 2019) keeps what was learned while waiting: x = mean + (x now - x sent).
static void merge_progress(size_t count, float *now, const iso__merge_args *a) {
    for (size_t i = 0; i < count; i++) now[i] = a->mean[i] + (now[i] - a->sent[i]);
}

// HeAT, _gs_rcv_update_params: x = (2 S now + sum of sent) / (2 S + P); S = 0 counts as 1/2.
static void merge_heat(size_t count, float *now, const iso__merge_args *a) {
    double twice = a->age > 0 ? 2.0 * (double)a->age : 1.0, all = twice + a->nodes;
    float own = (float)(twice / all), theirs = (float)(a->nodes / all);
    for (size_t i = 0; i < count; i++) now[i] = own * now[i] + theirs * a->mean[i];
}

static void measure_block(size_t count, const iso__merge_args *a, double *distance, double *norm) {
    float d[8] = {0}, n[8] = {0};
    for (size_t i = 0; i < count; i++) {
        float gap = a->sent[i] - a->mean[i];
        d[i % 8] += gap * gap;
        n[i % 8] += a->mean[i] * a->mean[i];
    }
    for (int k = 0; k < 8; k++) {
        *distance += (double)d[k];
        *norm += (double)n[k];
    }
}

void iso__merge_measure(size_t count, const iso__merge_args *args, double *distance, double *norm) {
    for (size_t at = 0; at < count; at += BLOCK) {
        iso__merge_args block = {.sent = args->sent + at, .mean = args->mean + at};
        measure_block(count - at < BLOCK ? count - at : BLOCK, &block, distance, norm);
    }
}

void iso__merge(iso_merge rule, size_t count, float *now, const iso__merge_args *args,
                double *distance, double *norm) {
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        iso__merge_args block = *args;
        block.sent += at;
        block.mean += at;
        measure_block(n, &block, distance, norm);
        if (rule == ISO_MERGE_PROGRESS)
            merge_progress(n, now + at, &block);
        else
            merge_heat(n, now + at, &block);
    }
}
