// Gradient clipping (PyTorch's torch.nn.utils.clip_grad), and checks of gradients over ranks.
//
// Call these between backward and step. They read every gradient, so they first complete every
// exchange (and are collective if one is pending). Nothing then hides behind the next forward: a
// lazy step costs as much as a blocking one. On a GPU the host waits only if you ask for the norm.
#ifndef ISOTHERM_CLIP_H
#define ISOTHERM_CLIP_H

#include <isotherm/comm.h>
#include <isotherm/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

// The norm of all gradients of module as one vector: (sum |g|^p)^(1/p), p > 0, or the largest |g|
// for p = INFINITY. Parameters that require no gradient count as 0. Summed in double in a fixed
// order: the same bits wherever gradients are the same.
iso_status iso_grad_norm(iso_module *module, double norm_type, double *out);
// Multiplies all gradients by max_norm / (norm + 1e-6) where that is below 1; *total_norm (may be
// NULL) is the norm before. A norm that is not finite makes gradients NaN or 0, as in PyTorch.
// ISO_ERR_ARG for a max_norm that is negative or a norm_type that is not above 0.
iso_status iso_clip_grad_norm(iso_module *module, double max_norm, double norm_type,
                              double *total_norm);
// Clamps every element to [-clip_value, clip_value]; NaN stays NaN. ISO_ERR_ARG for a negative
// clip_value.
iso_status iso_clip_grad_value(iso_module *module, double clip_value);

// Collective over comm. Finds out whether all gradients of all ranks are finite. All ranks get the
// same answer and so can skip a step together (iso_optimizer_zero_grad instead of step).
iso_status iso_grads_finite(iso_module *module, iso_comm *comm, bool *finite);
// Collective over comm. ISO_ERR_MISMATCH on every rank, naming the first rank whose 2-norm is not
// rank 0's to the last bit and both norms: gradients that should be averages differ (fairseq's
// check of gradient norms).
iso_status iso_grad_norm_check(iso_module *module, iso_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
