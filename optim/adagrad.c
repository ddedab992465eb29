// SPDX-License-Identifier: MIT
// Adagrad (Duchi et al., JMLR 12, 2011), as torch.optim.Adagrad.
#include "optim/optim_impl.h"

static iso_status check_hyper(const char *name, const iso_hyper *hyper) {
    ISO_CHECK(hyper->lr_decay >= 0, ISO_ERR_ARG, "%s: lr_decay %g: give a number of at least 0",
              name, hyper->lr_decay);
    ISO_CHECK(hyper->initial_accumulator_value >= 0, ISO_ERR_ARG,
              "%s: initial_accumulator_value %g: give a number of at least 0", name,
              hyper->initial_accumulator_value);
    ISO_CHECK(hyper->eps >= 0, ISO_ERR_ARG, "%s: eps %g: give a number of at least 0", name,
              hyper->eps);
    return ISO_OK;
}

static iso_status fill_sum(const iso__base_optimizer *self, const iso__slot *slot,
                           const iso_hyper *hyper) {
    iso_tensor *sum;
    ISO_TRY(iso__slot_tensor(self, slot, 0, &sum));
    iso_status status = iso_tensor_fill(sum, hyper->initial_accumulator_value);
    iso_tensor_destroy(&sum);
    return status;
}

static iso_status update_piece(const iso__base_optimizer *self, const iso__piece *piece,
                               const void *gradient, double scale, const iso_hyper *hyper) {
    iso__adagrad_args args = {
        .lr = hyper->lr / (1 + (double)(piece->step - 1) * hyper->lr_decay),
        .eps = hyper->eps,
        .weight_decay = hyper->weight_decay,
        .scale = scale,
        .to = piece->to,
    };
    return iso__kernels(piece->tensor)
        ->adagrad(piece->tensor->device, piece->count, &args, gradient, piece->value,
                  iso__piece_state(self, piece, 0));
}

const iso__rule iso__rule_adagrad = {
    .ops = ISO_BASE_OPTIMIZER_OPS("adagrad"),
    .defaults = {.lr = 1e-2, .eps = 1e-10},
    .state_name = {"sum"},
    .squares = 0x1,
    .check = check_hyper,
    .apply = update_piece,
    .start = fill_sum,
};
