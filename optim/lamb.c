// LAMB (You et al., ICLR 2020), Algorithm 2; the formula stands in optim.h.
#include "optim/optim_impl.h"

#include <math.h>

static iso_status check(const iso_hyper *hyper) { return iso__check_moments("lamb", hyper); }

static iso_status apply(const iso__base_optimizer *self, const iso__slot *slot,
                        const void *gradient, double scale, const iso_hyper *hyper) {
    iso_tensor *value = slot->parameter->value;
    double t = (double)hyper->step;
    iso__lamb_args args = {
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
    };
    return iso__kernels(value)->lamb(value->device, value->count, &args, gradient, value->data,
                                     iso__slot_state(self, slot, 0),
                                     iso__slot_state(self, slot, 1));
}

const iso__rule iso__rule_lamb = {
    .ops = ISO_BASE_OPTIMIZER_OPS("lamb"),
    .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.01},
    .state_name = {"exp_avg", "exp_avg_sq"},
    .check = check,
    .apply = apply,
};
