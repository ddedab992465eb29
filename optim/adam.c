// SPDX-License-Identifier: MIT
// Adam (Kingma and Ba, ICLR 2015), AdamW (Loshchilov and Hutter, ICLR 2019) and their variant
// AMSGrad (Reddi, Kale and Kumar, ICLR 2018), as in torch.optim.
#include "optim/optim_impl.h"

#include <math.h>

iso_status iso__check_moments(const char *name, const iso_hyper *hyper) {
    ISO_CHECK(hyper->beta1 >= 0 && hyper->beta1 < 1, ISO_ERR_ARG,
              "%s: beta1 %g: give a number from 0 to below 1", name, hyper->beta1);
    ISO_CHECK(hyper->beta2 >= 0 && hyper->beta2 < 1, ISO_ERR_ARG,
              "%s: beta2 %g: give a number from 0 to below 1", name, hyper->beta2);
    ISO_CHECK(hyper->eps >= 0, ISO_ERR_ARG, "%s: eps %g: give a number of at least 0", name,
              hyper->eps);
    return ISO_OK;
}

static iso_status update_piece(const iso__base_optimizer *self, const iso__piece *piece,
                               const void *gradient, double scale, const iso_hyper *hyper) {
    double t = (double)piece->step;
    iso__adam_args args = {
        .lr = hyper->lr,
        .beta1 = hyper->beta1,
        .beta2 = hyper->beta2,
        .rest1 = 1 - hyper->beta1,
        .rest2 = 1 - hyper->beta2,
        .eps = hyper->eps,
        .weight_decay = hyper->weight_decay,
        .scale = scale,
        .correction1 = 1 - pow(hyper->beta1, t),
        .correction2_sqrt = sqrt(1 - pow(hyper->beta2, t)),
        .decoupled = self->base.ops == &iso__rule_adamw.ops,
        .to = piece->to,
    };
    return iso__kernels(piece->tensor)
        ->adam(piece->tensor->device, piece->count, &args, gradient, piece->value,
               iso__piece_state(self, piece, 0), iso__piece_state(self, piece, 1),
               hyper->amsgrad ? iso__piece_state(self, piece, 2) : NULL);
}

static bool has_state(int kind, const iso_hyper *hyper) { return kind < 2 || hyper->amsgrad; }

const iso__rule iso__rule_adam = {
    .ops = ISO_BASE_OPTIMIZER_OPS("adam"),
    .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    .state_name = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    .squares = 0x6,
    .has_state = has_state,
    .check = iso__check_moments,
    .apply = update_piece,
};

const iso__rule iso__rule_adamw = {
    .ops = ISO_BASE_OPTIMIZER_OPS("adamw"),
    .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2},
    .state_name = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    .squares = 0x6,
    .has_state = has_state,
    .check = iso__check_moments,
    .apply = update_piece,
};
