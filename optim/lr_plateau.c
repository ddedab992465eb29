// SPDX-License-Identifier: MIT
// ReduceLROnPlateau, as in torch.optim.lr_scheduler.
#include "base/base.h"
#include "optim/plateau_impl.h"

#include <isotherm/optim.h>
#include <math.h>

const iso_lr_plateau_config iso_lr_plateau_default = ISO_LR_PLATEAU_DEFAULT;

static iso_status check_numbers(double factor, double min_lr, double eps) {
    ISO_CHECK(factor >= 0 && factor < 1, ISO_ERR_ARG,
              "reduce on plateau: factor %g: give a number from 0 to below 1", factor);
    ISO_CHECK(min_lr >= 0, ISO_ERR_ARG, "reduce on plateau: min_lr %g: give a number of at least 0",
              min_lr);
    ISO_CHECK(eps >= 0, ISO_ERR_ARG, "reduce on plateau: eps %g: give a number of at least 0", eps);
    return ISO_OK;
}

iso_status iso_lr_plateau_init(iso_lr_plateau *plateau, const iso_lr_plateau_config *config) {
    iso_lr_plateau made = {.factor = config->factor, .min_lr = config->min_lr, .eps = config->eps};
    ISO_TRY(check_numbers(made.factor, made.min_lr, made.eps));
    ISO_TRY(iso_plateau_init(&made.detector, &config->plateau));
    *plateau = made;
    return ISO_OK;
}

void iso_lr_plateau_reset(iso_lr_plateau *plateau) { iso_plateau_reset(&plateau->detector); }

iso_lr_plateau iso_lr_plateau_get_state(const iso_lr_plateau *plateau) { return *plateau; }

iso_status iso_lr_plateau_set_state(iso_lr_plateau *plateau, const iso_lr_plateau *state) {
    iso_lr_plateau made = *state;
    ISO_TRY(check_numbers(made.factor, made.min_lr, made.eps));
    ISO_TRY(iso_plateau_set_state(&made.detector, &state->detector));
    *plateau = made;
    return ISO_OK;
}

// Every comparison with NaN is false.
static bool beats_best(const iso_plateau *p, double value) {
    double sign = p->config.max ? 1 : -1;
    double limit = p->config.absolute ? p->best + sign * p->config.threshold
                                      : p->best * (1 + sign * p->config.threshold);
    return p->config.max ? value > limit : value < limit;
}

bool iso_lr_plateau_test(iso_lr_plateau *plateau, double metric) {
    return iso__plateau_take(&plateau->detector, metric, beats_best(&plateau->detector, metric));
}

double iso_lr_plateau_reduced(const iso_lr_plateau *plateau, double lr) {
    double lower = fmax(lr * plateau->factor, plateau->min_lr);
    return lr - lower > plateau->eps ? lower : lr;
}

bool iso_lr_plateau_step(iso_lr_plateau *plateau, double metric, iso_optimizer *optimizer) {
    if (!iso_lr_plateau_test(plateau, metric)) return false;
    for (int g = 0; g < iso_optimizer_groups(optimizer); g++) {
        iso_hyper *hyper = iso_optimizer_group_hyper(optimizer, g);
        hyper->lr = iso_lr_plateau_reduced(plateau, hyper->lr);
    }
    return true;
}
