// SPDX-License-Identifier: MIT
// Finds outliers of a number that each step has, such as the loss or the gradient norm, so that a
// program can leave out the update of such a step (llm.c: loss and gradient outlier detection):
//
//   iso_outlier_add(losses, loss, &z)       // after backward, with the mean over all ranks
//   if (z > 6) iso_optimizer_zero_grad(optimizer); else iso_optimizer_step(optimizer);
//
//   z = (value - mean) / deviation          of the last `window` values, with the value itself
//
// z is 0 if all values are equal. If the square of their deviation exceeds the range of f64, z is
// INFINITY above the mean, and -INFINITY below it.
//
// All calls are local. Ranks decide alike if they add the same numbers: reduce the loss over the
// ranks before (iso_comm_allreduce_f64). iso_grad_norm is the same on all ranks that average their
// gradients.
#ifndef ISOTHERM_OUTLIER_H
#define ISOTHERM_OUTLIER_H

#include <isotherm/status.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso_outlier iso_outlier;

// window: from 2 to 1e6 values, else ISO_ERR_ARG; llm.c uses 128. No finite z exceeds sqrt(window -
// 1).
iso_status iso_outlier_create(int64_t window, iso_outlier **out);
// Sets *outlier to NULL. NULL is allowed.
void iso_outlier_destroy(iso_outlier **outlier);
// Adds a value and returns its z: NaN for the first `window` values. An outlier joins the window
// like any other value, so a lasting change is soon none. A NaN or an infinite value does not join;
// its z is INFINITY, from the first value on.
void iso_outlier_add(iso_outlier *outlier, double value, double *z);

// The state to save for resuming: ISO_OUTLIER_STATE(window) numbers, owned by outlier. Restore it
// by writing to it.
#define ISO_OUTLIER_STATE(window) ((window) + 1)
double *iso_outlier_state(iso_outlier *outlier);

#ifdef __cplusplus
}
#endif
#endif
