// SPDX-License-Identifier: MIT
// What a batch norm exchanges when its statistics are over the batches of several ranks.
#include "nn/nn_impl.h"

// Sums of x and x^2 need only one exchange. The variance is taken from them unless cancellation
// leaves less than PART: squares < PART * sum of x^2. Then sums about the mean are exchanged, too.
#define PART 1e-4

iso_status iso__norm_sync_create(int64_t channels, const iso__norm_group *group,
                                 iso__norm_sync *out) {
    void *memory;
    ISO_TRY(iso__alloc((size_t)(4 * channels + 1) * sizeof(double), &memory));
    *out = (iso__norm_sync){*group, channels, memory};
    return ISO_OK;
}

void iso__norm_sync_destroy(iso__norm_sync *sync) {
    if (sync->group.release) sync->group.release(sync->group.user);
    iso__free(sync->numbers);
    *sync = (iso__norm_sync){0};
}

static iso_status sum_numbers(iso__norm_sync *sync, int64_t count) {
    return sync->group.sum(sync->numbers, (size_t)count, sync->group.user);
}

static double values_per_channel(const iso__norm_sync *sync, const iso_tensor *x) {
    return (double)(x->count / sync->channels);
}

// Replaces sums of x and x^2 by means and sums of squares about them. Returns false if cancellation
// leaves too little of a variance.
static bool finish_moments(double *numbers, int64_t channels, double n) {
    bool well = true;
    for (int64_t i = 0; i < channels; i++) {
        double mean = numbers[i] / n, all = numbers[channels + i];
        double squares = all - numbers[i] * mean;
        well = well && !(squares < PART * all);
        numbers[i] = mean;
        numbers[channels + i] = squares;
    }
    return well;
}

// All ranks hold the same numbers bit for bit, so they agree on whether the second exchange is
// needed. The means stay as they are.
iso_status iso__norm_sync_moments(iso__norm_sync *sync, const iso_tensor *x,
                                  iso__batch_norm_args *args) {
    int64_t channels = sync->channels;
    double *all = sync->numbers, *own = all + 2 * channels + 1;
    double n = values_per_channel(sync, x);
    ISO_TRY(iso__kernels(x)->batch_norm_moments(x->device, x, own));
    for (int64_t i = 0; i < channels; i++) {
        all[i] = n * own[i];
        all[channels + i] = own[channels + i] + n * own[i] * own[i];
    }
    all[2 * channels] = n;
    ISO_TRY(sum_numbers(sync, 2 * channels + 1));
    args->count = all[2 * channels];
    args->moments = all;
    if (finish_moments(all, channels, args->count)) return ISO_OK;
    for (int64_t i = 0; i < channels; i++) {
        double distance = own[i] - all[i];
        own[i] = all[i];
        all[i] = own[channels + i] + n * distance * distance;
    }
    ISO_TRY(sum_numbers(sync, channels));
    for (int64_t i = 0; i < channels; i++) {
        all[channels + i] = all[i];
        all[i] = own[i];
    }
    return ISO_OK;
}

iso_status iso__norm_sync_sums(iso__norm_sync *sync, const iso_tensor *x,
                               iso__batch_norm_args *args) {
    int64_t channels = sync->channels;
    sync->numbers[2 * channels] = values_per_channel(sync, x);
    ISO_TRY(sum_numbers(sync, 2 * channels + 1));
    args->count = sync->numbers[2 * channels];
    args->sums = sync->numbers;
    return ISO_OK;
}
