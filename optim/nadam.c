// SPDX-License-Identifier: MIT
// NAdam (Dozat, Incorporating Nesterov Momentum into Adam, 2016), as torch.optim.NAdam of
// PyTorch 2. (Version 1.13 without foreach deviates from its own documentation.)
#include "optim/optim_impl.h"

#include <math.h>

static iso_status check_hyper(const char *name, const iso_hyper *hyper) {
    ISO_TRY(iso__check_moments(name, hyper));
    ISO_CHECK(hyper->momentum_decay >= 0, ISO_ERR_ARG,
              "%s: momentum_decay %g: give a number of at least 0", name, hyper->momentum_decay);
    return ISO_OK;
}

// The momentum of an update, mu_t.
static double momentum_at(const iso_hyper *hyper, int64_t step) {
    return hyper->beta1 * (1 - 0.5 * pow(0.96, (double)step * hyper->momentum_decay));
}

static iso_status update_piece(const iso__base_optimizer *self, const iso__piece *piece,
                               const void *gradient, double scale, const iso_hyper *hyper) {
    double now = momentum_at(hyper, piece->step), next = momentum_at(hyper, piece->step + 1);
    iso__nadam_args args = {
        .of_gradient = hyper->lr * (1 - now) / (1 - piece->product),
        .of_moment = hyper->lr * next / (1 - piece->product * next),
        .beta1 = hyper->beta1,
        .beta2 = hyper->beta2,
        .rest1 = 1 - hyper->beta1,
        .rest2 = 1 - hyper->beta2,
        .eps = hyper->eps,
        .weight_decay = hyper->weight_decay,
        .scale = scale,
        .correction2 = 1 - pow(hyper->beta2, (double)piece->step),
        .to = piece->to,
    };
    return iso__kernels(piece->tensor)
        ->nadam(piece->tensor->device, piece->count, &args, gradient, piece->value,
                iso__piece_state(self, piece, 0), iso__piece_state(self, piece, 1));
}

const iso__rule iso__rule_nadam = {
    .ops = ISO_BASE_OPTIMIZER_OPS("nadam"),
    .defaults = {.lr = 2e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .momentum_decay = 4e-3},
    .state_name = {"exp_avg", "exp_avg_sq"},
    .squares = 0x2,
    .factor = momentum_at,
    .product_name = "mu_product",
    .check = check_hyper,
    .apply = update_piece,
};
