// SPDX-License-Identifier: MIT
// Gradient clipping (PyTorch's torch.nn.utils.clip_grad), and checks of gradients over ranks.
//
// Call these between backward and step. They read every gradient, so they first complete all
// exchanges, and are collective if one is pending. Nothing is then hidden behind the next forward:
// a lazy step takes as long as a blocking one. On a GPU the host waits only if you ask for the
// norm.
//
// Gradients that are not exchanged (`ignore` of iso_data_parallel_config, `local` of
// iso_reducer_param) count with this rank's values, as in PyTorch. Norms then differ between ranks,
// and clipping to them lets the exchanged parameters drift apart. Clip such models by value.
#ifndef ISOTHERM_CLIP_H
#define ISOTHERM_CLIP_H

#include <isotherm/comm.h>
#include <isotherm/nn.h>
#include <isotherm/reducer.h>

#ifdef __cplusplus
extern "C" {
#endif

// The norm of the gradient of module, all parameters as one vector: (sum |g|^p)^(1/p) for p > 0, or
// the maximum |g| for p = INFINITY. Parameters that require no gradient count as 0. The sum is in
// double and in a fixed order, so equal gradients give bitwise identical norms.
iso_status iso_grad_norm(iso_module *module, double norm_type, double *out);
// Clips the gradient norm: multiplies all gradients by max_norm / (norm + 1e-6) if that is below 1.
// *total_norm (may be NULL) is the norm before clipping. A NaN or infinite norm makes gradients NaN
// or 0, as in PyTorch. ISO_ERR_ARG unless max_norm >= 0 and norm_type > 0.
iso_status iso_clip_grad_norm(iso_module *module, double max_norm, double norm_type,
                              double *total_norm);
// Clamps every element to [-clip_value, clip_value]; NaN stays NaN. ISO_ERR_ARG for a negative
// clip_value.
iso_status iso_clip_grad_value(iso_module *module, double clip_value);

// Multiplies all gradients by factor.
iso_status iso_grads_scale(iso_module *module, double factor);

// Collective over comm. Sets *finite to true if all gradients on all ranks are finite, else to
// false. All ranks get the same answer, so they can skip a step together (iso_optimizer_zero_grad
// instead of step).
iso_status iso_grads_finite(iso_module *module, iso_comm *comm, bool *finite);
// Collective over comm. Names the parameter that backward reaches first, on any rank, among those
// with a NaN or infinite gradient: usually the layer from which these values spread. *name is a
// copy, the same on all ranks; free it with iso_comm_free. NULL: all gradients are finite.
iso_status iso_grads_find_nonfinite(iso_module *module, iso_comm *comm, char **name);
// Collective over comm. Checks that all ranks have the same averaged gradients (fairseq: check of
// gradient norms). ISO_ERR_MISMATCH on every rank if 2-norms differ in any bit; the message names
// the first rank whose norm is not rank 0's, and both norms.
iso_status iso_grad_norm_check(iso_module *module, iso_comm *comm);

// The same for the gradients of plain arrays (reducer.h), between the last grad_ready and step. All
// are collective over the reducer's ranks, and leave the averages where iso_reducer_grad says.
iso_status iso_reducer_grad_norm(iso_reducer *reducer, double norm_type, double *out);
iso_status iso_reducer_clip_grad_norm(iso_reducer *reducer, double max_norm, double norm_type,
                                      double *total_norm);
iso_status iso_reducer_grads_finite(iso_reducer *reducer, bool *finite);

#ifdef __cplusplus
}
#endif
#endif
