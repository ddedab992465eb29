// SPDX-License-Identifier: MIT
// Estimates the gradient noise scale during data-parallel training (McCandlish, Kaplan, Amodei et
// al., An Empirical Model of Large-Batch Training, arXiv 1812.06162, appendix A.1).
//
// The noise scale is tr(S) / |G|^2, where G is the gradient of the expected loss and S the
// covariance matrix of the gradient of one sample. Global batches that are much smaller than the
// noise scale waste no samples; much larger ones hardly save steps. P ranks with b samples each
// give unbiased estimates in every step, at no further forward or backward:
//
//   |G|^2 = (P |average|^2 - mean of |g_r|^2) / (P - 1)
//   tr(S) = (mean of |g_r|^2 - |average|^2) b P / (P - 1)     g_r: the gradient of rank r
//
// A single estimate is noisy, so the noise scale is the ratio of two exponential moving averages.
#ifndef ISOTHERM_NOISE_SCALE_H
#define ISOTHERM_NOISE_SCALE_H

#include <isotherm/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso_noise_scale iso_noise_scale;

typedef struct iso_noise_estimate {
    double gradient2;   // |G|^2 of this step; may be negative
    double trace;       // tr(S) of this step
    double noise_scale; // in samples, from the moving averages; NaN unless that of |G|^2 is > 0
} iso_noise_estimate;

// Local. decay: the factor of the moving averages, 0 <= decay < 1 (else ISO_ERR_ARG); each step
// counts 1 - decay. ISO_ERR_UNSUPPORTED for a single rank or a scope other than ISO_SCOPE_WORLD.
// data_parallel must outlive *out.
iso_status iso_noise_scale_create(iso_module *data_parallel, double decay, iso_noise_scale **out);
// Local, but collective between begin and end.
void iso_noise_scale_destroy(iso_noise_scale **noise);

// Collective. Call begin before the forward of the step to measure, and end after its last
// backward, before clipping and before the optimizer's step. Both complete pending work, and the
// gradients of this step are sent at the end of its backward, so the step hides no exchange.
// Parameters stay bitwise identical to those of a run without measurements. Not inside a join
// (join.h). samples: the number of samples over which this rank's gradient is the mean; it should
// be the same on all ranks. Gradients must be averages (not ISO_AVERAGE_SUM). *out is the same on
// all ranks. ISO_ERR_STATE if begin is called twice, or end without begin or without a synchronised
// backward in between. A step with a NaN or infinite gradient leaves the averages, and so
// noise_scale, as they are; gradient2 and trace are then NaN.
iso_status iso_noise_scale_begin(iso_noise_scale *noise);
iso_status iso_noise_scale_end(iso_noise_scale *noise, double samples, iso_noise_estimate *out);

// The state to save for resuming: ISO_NOISE_SCALE_STATE numbers, the same on all ranks, owned by
// noise. Restore it by writing to it.
#define ISO_NOISE_SCALE_STATE 2
double *iso_noise_scale_state(iso_noise_scale *noise);

#ifdef __cplusplus
}
#endif
#endif
