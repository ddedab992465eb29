// SPDX-License-Identifier: MIT
// Dynamic loss scaling (PyTorch's torch.amp.GradScaler, HeAT's add_scaler; Micikevicius et al.,
// Mixed Precision Training, ICLR 2018). Gradients that are too small for a 16-bit type, on the wire
// or in a kernel, become 0. A scaler multiplies the gradient of the loss, and with it all
// gradients, by a scale, and divides them again before the update. If a gradient overflows, all
// ranks skip the update and the scale shrinks; after growth_interval updates without an overflow it
// grows.
//
//   iso_grad_scaler_scale(s, gradient)           the gradient of the loss, before backward
//   iso_grad_scaler_unscale(s, model)            afterwards clip, if at all
//   iso_grad_scaler_step(s, optimizer, &stepped)
//   iso_grad_scaler_update(s)
#ifndef ISOTHERM_GRAD_SCALER_H
#define ISOTHERM_GRAD_SCALER_H

#include <isotherm/comm.h>
#include <isotherm/nn.h>
#include <isotherm/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso_grad_scaler iso_grad_scaler;

typedef struct iso_grad_scaler_config {
    double init_scale;       // > 0
    double growth_factor;    // > 1
    double backoff_factor;   // between 0 and 1, both excluded
    int64_t growth_interval; // > 0
} iso_grad_scaler_config;
// PyTorch's defaults.
#define ISO_GRAD_SCALER_DEFAULT                                                                    \
    ((iso_grad_scaler_config){                                                                     \
        .init_scale = 65536, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 2000})

// Local. comm: of all ranks that must skip the same updates; borrowed, it must outlive *out. config
// NULL: ISO_GRAD_SCALER_DEFAULT. ISO_ERR_ARG for values outside the ranges above.
iso_status iso_grad_scaler_create(iso_comm *comm, const iso_grad_scaler_config *config,
                                  iso_grad_scaler **out);
void iso_grad_scaler_destroy(iso_grad_scaler **scaler);
double iso_grad_scaler_get_scale(const iso_grad_scaler *scaler);

// Local. Multiplies the gradient of the loss by the scale: call it before backward, once for each
// gradient (with gradient accumulation, for each micro-step). Not for gradients of 16 bits
// (iso_tensor_scale).
iso_status iso_grad_scaler_scale(const iso_grad_scaler *scaler, iso_tensor *gradient);
// Collective. Divides the gradients of module by the scale, and finds out whether one is NaN or
// infinite on any rank. Completes all exchanges first. ISO_ERR_STATE if it was called already since
// iso_grad_scaler_update.
iso_status iso_grad_scaler_unscale(iso_grad_scaler *scaler, iso_module *module);
// Collective. Calls iso_optimizer_step unless a gradient is NaN or infinite; then it clears the
// gradients instead (iso_optimizer_zero_grad). *stepped (may be NULL) says which, the same on all
// ranks. ISO_ERR_STATE unless iso_grad_scaler_unscale was called since iso_grad_scaler_update.
iso_status iso_grad_scaler_step(iso_grad_scaler *scaler, iso_optimizer *optimizer, bool *stepped);
// Local. Adapts the scale, at the end of each step. The scale grows no further than f32 reaches.
// ISO_ERR_STATE unless iso_grad_scaler_unscale was called.
iso_status iso_grad_scaler_update(iso_grad_scaler *scaler);

// The state to save for resuming, the same on all ranks: ISO_GRAD_SCALER_STATE numbers, the scale
// and the number of updates since it changed; owned by scaler. Restore it by writing to it.
#define ISO_GRAD_SCALER_STATE 2
double *iso_grad_scaler_state(iso_grad_scaler *scaler);

#ifdef __cplusplus
}
#endif
#endif
