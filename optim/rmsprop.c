// SPDX-License-Identifier: MIT
// RMSprop (Tieleman and Hinton, 2012; centered: Graves, arXiv:1308.0850), as torch.optim.RMSprop.
#include "optim/optim_impl.h"

static iso_status check_hyper(const char *name, const iso_hyper *hyper) {
    ISO_CHECK(hyper->alpha >= 0, ISO_ERR_ARG, "%s: alpha %g: give a number of at least 0", name,
              hyper->alpha);
    ISO_CHECK(hyper->momentum >= 0, ISO_ERR_ARG, "%s: momentum %g: give a number of at least 0",
              name, hyper->momentum);
    ISO_CHECK(hyper->eps >= 0, ISO_ERR_ARG, "%s: eps %g: give a number of at least 0", name,
              hyper->eps);
    return ISO_OK;
}

static bool needs_state(int kind, const iso_hyper *hyper) {
    switch (kind) {
    case 1: return hyper->momentum != 0;
    case 2: return hyper->centered;
    default: return true;
    }
}

// The buffers exist in any case, because momentum and centered may be changed between steps.
static iso_status update_piece(const iso__base_optimizer *self, const iso__piece *piece,
                               const void *gradient, double scale, const iso_hyper *hyper) {
    iso__rmsprop_args args = {
        .lr = hyper->lr,
        .alpha = hyper->alpha,
        .rest = 1 - hyper->alpha,
        .eps = hyper->eps,
        .momentum = hyper->momentum,
        .weight_decay = hyper->weight_decay,
        .scale = scale,
        .to = piece->to,
    };
    void *momentum = hyper->momentum != 0 ? iso__piece_state(self, piece, 1) : NULL;
    void *grad_avg = hyper->centered ? iso__piece_state(self, piece, 2) : NULL;
    return iso__kernels(piece->tensor)
        ->rmsprop(piece->tensor->device, piece->count, &args, gradient, piece->value,
                  iso__piece_state(self, piece, 0), grad_avg, momentum);
}

const iso__rule iso__rule_rmsprop = {
    .ops = ISO_BASE_OPTIMIZER_OPS("rmsprop"),
    .defaults = {.lr = 1e-2, .alpha = 0.99, .eps = 1e-8},
    .state_name = {"square_avg", "momentum_buffer", "grad_avg"},
    .squares = 0x1,
    .needs_state = needs_state,
    .check = check_hyper,
    .apply = update_piece,
};
