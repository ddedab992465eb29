// SPDX-License-Identifier: MIT
// The z-score of a value within a moving window.
#include "base/base.h"

#include <isotherm/outlier.h>
#include <math.h>

enum { MOST_WINDOW = 1000000 };

struct iso_outlier {
    int64_t window;
    double *state; // the number of values so far, and then a ring of the last ones
};

iso_status iso_outlier_create(int64_t window, iso_outlier **out) {
    ISO_CHECK(window >= 2 && window <= MOST_WINDOW, ISO_ERR_ARG,
              "a window of %lld value%s for outliers: give a number from 2 to %d",
              (long long)window, ISO_PLURAL(window), MOST_WINDOW);
    iso_outlier *self;
    iso_status status;
    ISO_TRY(iso__alloc_zero(sizeof(*self), (void **)&self));
    self->window = window;
    size_t bytes = (size_t)ISO_OUTLIER_STATE(window) * sizeof(double);
    ISO_TRY_GOTO(iso__alloc_zero(bytes, (void **)&self->state));
    *out = self;
    return ISO_OK;
fail:
    iso_outlier_destroy(&self);
    return status;
}

void iso_outlier_destroy(iso_outlier **outlier) {
    if (!outlier || !*outlier) return;
    iso__free((*outlier)->state);
    iso__free(*outlier);
    *outlier = NULL;
}

double *iso_outlier_state(iso_outlier *outlier) { return outlier->state; }

// Computes the sums anew for each value, so that rounding errors do not accumulate.
static double score_value(const double *ring, int64_t window, double value) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < window; i++) mean += ring[i] / (double)window;
    for (int64_t i = 0; i < window; i++)
        square += (ring[i] - mean) * (ring[i] - mean) / (double)window;
    bool equal = true; // rounding may leave equal values a spread above 0
    for (int64_t i = 1; i < window && equal; i++) equal = ring[i] == ring[0];
    if (equal) return 0;
    if (!isfinite(square)) return value > mean ? INFINITY : -INFINITY;
    return (value - mean) / sqrt(square);
}

void iso_outlier_add(iso_outlier *self, double value, double *z) {
    double count = self->state[0], *ring = self->state + 1;
    if (!(count >= 0 && isfinite(count))) count = 0; // the loaded state is damaged
    *z = INFINITY;
    if (!isfinite(value)) return;
    ring[(int64_t)fmod(count, (double)self->window)] = value;
    self->state[0] = count + 1;
    *z = count < (double)self->window ? NAN : score_value(ring, self->window, value);
}
