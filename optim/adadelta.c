// SPDX-License-Identifier: MIT
// Adadelta (Zeiler, arXiv:1212.5701), as torch.optim.Adadelta.
#include "optim/optim_impl.h"

static iso_status check_hyper(const char *name, const iso_hyper *hyper) {
    ISO_CHECK(hyper->rho >= 0 && hyper->rho <= 1, ISO_ERR_ARG,
              "%s: rho %g: give a number from 0 to 1", name, hyper->rho);
    ISO_CHECK(hyper->eps >= 0, ISO_ERR_ARG, "%s: eps %g: give a number of at least 0", name,
              hyper->eps);
    return ISO_OK;
}

static iso_status update_piece(const iso__base_optimizer *self, const iso__piece *piece,
                               const void *gradient, double scale, const iso_hyper *hyper) {
    iso__adadelta_args args = {
        .lr = hyper->lr,
        .rho = hyper->rho,
        .eps = hyper->eps,
        .weight_decay = hyper->weight_decay,
        .scale = scale,
        .to = piece->to,
    };
    return iso__kernels(piece->tensor)
        ->adadelta(piece->tensor->device, piece->count, &args, gradient, piece->value,
                   iso__piece_state(self, piece, 0), iso__piece_state(self, piece, 1));
}

const iso__rule iso__rule_adadelta = {
    .ops = ISO_BASE_OPTIMIZER_OPS("adadelta"),
    .defaults = {.lr = 1.0, .rho = 0.9, .eps = 1e-6},
    .state_name = {"square_avg", "acc_delta"},
    .squares = 0x3,
    .check = check_hyper,
    .apply = update_piece,
};
