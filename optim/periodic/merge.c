// SPDX-License-Identifier: MIT
// Merge rules: combine the current parameters with the mean of earlier ones.
#include "optim/periodic/merge.h"

enum { BLOCK = 2048 }; // stays in the first-level cache between the two passes over it

// The rules for elements of type T. progress: CoCoD-SGD (Shen et al., 2019) keeps what was learned
// while waiting: x = mean + (x now - x sent). heat: _gs_rcv_update_params of HeAT: x = (2 S now +
// sum of sent) / (2 S + P); S = 0 counts as 1/2.
#define RULES(T, name)                                                                             \
    static void merge_progress_##name(size_t count, void *x, const iso__merge_args *a) {           \
        const T *sent = a->sent, *mean = a->mean;                                                  \
        T *now = x;                                                                                \
        for (size_t i = 0; i < count; i++) now[i] = mean[i] + (now[i] - sent[i]);                  \
    }                                                                                              \
    static void merge_heat_##name(size_t count, void *x, const iso__merge_args *a) {               \
        double twice = a->age > 0 ? 2.0 * (double)a->age : 1.0, all = twice + a->nodes;            \
        T own = (T)(twice / all), theirs = (T)(a->nodes / all);                                    \
        const T *mean = a->mean;                                                                   \
        T *now = x;                                                                                \
        for (size_t i = 0; i < count; i++) now[i] = own * now[i] + theirs * mean[i];               \
    }                                                                                              \
    static void measure_block_##name(size_t count, const iso__merge_args *a, double *distance,     \
                                     double *norm) {                                               \
        const T *sent = a->sent, *mean = a->mean;                                                  \
        T d[8] = {0}, n[8] = {0};                                                                  \
        for (size_t i = 0; i < count; i++) {                                                       \
            T gap = sent[i] - mean[i];                                                             \
            d[i % 8] += gap * gap;                                                                 \
            n[i % 8] += mean[i] * mean[i];                                                         \
        }                                                                                          \
        for (int k = 0; k < 8; k++) {                                                              \
            *distance += (double)d[k];                                                             \
            *norm += (double)n[k];                                                                 \
        }                                                                                          \
    }

RULES(float, f32)
RULES(double, f64)

static void measure_block(size_t count, const iso__merge_args *a, double *distance, double *norm) {
    (a->f64 ? measure_block_f64 : measure_block_f32)(count, a, distance, norm);
}

static iso__merge_args args_at(const iso__merge_args *args, size_t element) {
    size_t bytes = element * (args->f64 ? sizeof(double) : sizeof(float));
    iso__merge_args at = *args;
    at.sent = (const char *)args->sent + bytes;
    at.mean = (const char *)args->mean + bytes;
    return at;
}

void iso__merge_measure(size_t count, const iso__merge_args *args, double *distance, double *norm) {
    for (size_t at = 0; at < count; at += BLOCK) {
        iso__merge_args block = args_at(args, at);
        measure_block(count - at < BLOCK ? count - at : BLOCK, &block, distance, norm);
    }
}

void iso__merge(iso_merge rule, size_t count, void *now, const iso__merge_args *args,
                double *distance, double *norm) {
    void (*progress)(size_t, void *, const iso__merge_args *) =
        args->f64 ? merge_progress_f64 : merge_progress_f32;
    void (*heat)(size_t, void *, const iso__merge_args *) =
        args->f64 ? merge_heat_f64 : merge_heat_f32;
    size_t size = args->f64 ? sizeof(double) : sizeof(float);
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        iso__merge_args block = args_at(args, at);
        measure_block(n, &block, distance, norm);
        (rule == ISO_MERGE_PROGRESS ? progress : heat)(n, (char *)now + at * size, &block);
    }
}
