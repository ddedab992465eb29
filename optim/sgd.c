// SPDX-License-Identifier: MIT
// Stochastic gradient descent with momentum, Nesterov momentum and weight decay, as
// torch.optim.SGD.
#include "optim/optim_impl.h"

static iso_status check_hyper(const char *name, const iso_hyper *hyper) {
    ISO_CHECK(hyper->momentum >= 0, ISO_ERR_ARG, "%s: momentum %g: give a number of at least 0",
              name, hyper->momentum);
    ISO_CHECK(!hyper->nesterov || (hyper->momentum > 0 && hyper->dampening == 0), ISO_ERR_ARG,
              "%s: Nesterov momentum needs momentum above 0 and dampening 0, not %g and %g", name,
              hyper->momentum, hyper->dampening);
    return ISO_OK;
}

static bool needs_state(int kind, const iso_hyper *hyper) {
    (void)kind;
    return hyper->momentum != 0;
}

static bool has_momentum(const iso_hyper *hyper) { return hyper->momentum != 0; }

// The buffer exists without momentum too, because momentum may be changed between steps. In PyTorch
// it does not exist before the first update with momentum.
static iso_status update_piece(const iso__base_optimizer *self, const iso__piece *piece,
                               const void *gradient, double scale, const iso_hyper *hyper) {
    iso__sgd_args args = {
        .lr = hyper->lr,
        .momentum = hyper->momentum,
        .dampening = hyper->dampening,
        .weight_decay = hyper->weight_decay,
        .scale = scale,
        .nesterov = hyper->nesterov,
        .first = piece->step == 1,
        .to = piece->to,
    };
    void *momentum = hyper->momentum != 0 ? iso__piece_state(self, piece, 0) : NULL;
    return iso__kernels(piece->tensor)
        ->sgd(piece->tensor->device, piece->count, &args, gradient, piece->value, momentum);
}

const iso__rule iso__rule_sgd = {
    .ops = ISO_BASE_OPTIMIZER_OPS("sgd"),
    .defaults = {.lr = 1e-3},
    .state_name = {"momentum_buffer"},
    .needs_state = needs_state,
    .counts = has_momentum,
    .check = check_hyper,
    .apply = update_piece,
};
