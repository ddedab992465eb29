// SPDX-License-Identifier: MIT
// Mean and standard deviation of each channel of a data set in memory, for normalisation.
#include "data/data_impl.h"

#include <math.h>

#define SHORT_RUN 65536 // pixels whose squares have a sum below 2^32: compilers vectorise 32 bits

// Exact integer sums, so that the statistics are the same on every machine.
static void measure_bytes(const iso_dataset *self, int64_t channel, double *mean, double *std) {
    const iso_dataset_info *info = &self->info;
    int64_t pixels = info->height * info->width;
    uint64_t sum = 0, squares = 0, n = (uint64_t)(info->count * pixels);
    for (int64_t i = 0; i < info->count; i++) {
        const uint8_t *plane = (const uint8_t *)iso__dataset_place(self, 0, i) + channel * pixels;
        for (int64_t first = 0; first < pixels; first += SHORT_RUN) {
            int64_t end = first + SHORT_RUN < pixels ? first + SHORT_RUN : pixels;
            uint32_t run_sum = 0, run_squares = 0;
            for (int64_t p = first; p < end; p++) {
                uint32_t v = plane[p];
                run_sum += v;
                run_squares += v * v;
            }
            sum += run_sum;
            squares += run_squares;
        }
    }
    unsigned __int128 spread = (unsigned __int128)squares * n - (unsigned __int128)sum * sum;
    *mean = (double)sum / (double)n / 255;
    *std = sqrt((double)spread) / (double)n / 255;
}

// Element k of the first input of sample i.
static double element_at(const iso_dataset *self, int64_t i, int64_t k) {
    const void *sample = iso__dataset_place(self, 0, i);
    if (self->info.tensors[0].dtype == ISO_F64) return ((const double *)sample)[k];
    return (double)((const float *)sample)[k];
}

// Sums of (x - origin)^power over all samples.
static double sum_channel(const iso_dataset *self, int64_t channel, double origin, int power) {
    const iso_dataset_info *info = &self->info;
    int64_t plane = info->height * info->width;
    double sum = 0;
    for (int64_t i = 0; i < info->count; i++)
        for (int64_t k = 0; k < plane; k++) {
            double x = element_at(self, i, channel * plane + k) - origin;
            sum += power == 2 ? x * x : x;
        }
    return sum;
}

void iso__dataset_measure(const iso_dataset *self, double *mean, double *std) {
    const iso_dataset_info *info = &self->info;
    double n = (double)(info->count * info->height * info->width);
    for (int64_t c = 0; c < info->channels; c++) {
        if (info->tensors[0].dtype == ISO_U8) {
            measure_bytes(self, c, &mean[c], &std[c]);
            continue;
        }
        // Summing differences from an element makes the deviation of equal elements exactly 0.
        double first = element_at(self, 0, c * info->height * info->width);
        mean[c] = first + sum_channel(self, c, first, 1) / n;
        std[c] = sqrt(sum_channel(self, c, mean[c], 2) / n);
    }
}
