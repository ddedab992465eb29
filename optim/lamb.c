// SPDX-License-Identifier: MIT
// LAMB (You et al., ICLR 2020), Algorithm 2; optim.h has the formula.
#include "optim/optim_impl.h"

#include <math.h>

static iso__lamb_args args_of(const iso__piece *piece, double scale, const iso_hyper *hyper) {
    double t = (double)piece->step;
    return (iso__lamb_args){
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
        .to = piece->to,
    };
}

static iso_status update_piece(const iso__base_optimizer *self, const iso__piece *piece,
                               const void *gradient, double scale, const iso_hyper *hyper) {
    const iso__lamb_args args = args_of(piece, scale, hyper);
    return iso__kernels(piece->tensor)
        ->lamb(piece->tensor->device, piece->count, &args, gradient, piece->value,
               iso__piece_state(self, piece, 0), iso__piece_state(self, piece, 1));
}

static iso_status measure_piece(const iso__base_optimizer *self, const iso__piece *piece,
                                const void *gradient, double scale, const iso_hyper *hyper,
                                double square[2]) {
    const iso__lamb_args args = args_of(piece, scale, hyper);
    return iso__kernels(piece->tensor)
        ->lamb_measure(piece->tensor->device, piece->count, &args, gradient, piece->value,
                       iso__piece_state(self, piece, 0), iso__piece_state(self, piece, 1), square);
}

static iso_status finish_piece(const iso__base_optimizer *self, const iso__piece *piece,
                               const double square[2], const iso_hyper *hyper) {
    const iso__lamb_args args = args_of(piece, 1, hyper);
    return iso__kernels(piece->tensor)
        ->lamb_step(piece->tensor->device, piece->count, &args, square, piece->value,
                    iso__piece_state(self, piece, 0), iso__piece_state(self, piece, 1));
}

const iso__rule iso__rule_lamb = {
    .ops = ISO_BASE_OPTIMIZER_OPS("lamb"),
    .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.01},
    .state_name = {"exp_avg", "exp_avg_sq"},
    .squares = 0x2,
    .check = iso__check_moments,
    .apply = update_piece,
    .measure = measure_piece,
    .finish = finish_piece,
    .whole = true,
};
