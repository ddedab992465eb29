// SPDX-License-Identifier: MIT
// HeAT's DetectMetricPlateau: detects when a metric has stopped improving.
#include "optim/plateau_impl.h"

#include "base/base.h"

#include <assert.h>
#include <math.h>

const iso_plateau_config iso_plateau_default = ISO_PLATEAU_DEFAULT;

static iso_status check_config(const iso_plateau_config *config) {
    ISO_CHECK(config->patience >= 0, ISO_ERR_ARG, "plateau: patience is %lld, it must be 0 or more",
              (long long)config->patience);
    ISO_CHECK(config->cooldown >= 0, ISO_ERR_ARG, "plateau: cooldown is %lld, it must be 0 or more",
              (long long)config->cooldown);
    ISO_CHECK(config->threshold >= 0, ISO_ERR_ARG, "plateau: threshold is %g, it must be 0 or more",
              config->threshold);
    return ISO_OK;
}

iso_status iso_plateau_init(iso_plateau *plateau, const iso_plateau_config *config) {
    ISO_TRY(check_config(config));
    *plateau = (iso_plateau){.config = *config};
    iso_plateau_reset(plateau);
    return ISO_OK;
}

iso_plateau iso_plateau_get_state(const iso_plateau *plateau) { return *plateau; }

iso_status iso_plateau_set_state(iso_plateau *plateau, const iso_plateau *state) {
    ISO_TRY(check_config(&state->config));
    ISO_CHECK(!isnan(state->best), ISO_ERR_ARG, "plateau: a state whose best value is NaN");
    ISO_CHECK(
        state->bad >= 0 && state->cooldown_counter >= 0 && state->last_epoch >= 0, ISO_ERR_ARG,
        "plateau: a state with %lld bad values, %lld values of cool-down left and last_epoch "
        "%lld: they cannot be negative",
        (long long)state->bad, (long long)state->cooldown_counter, (long long)state->last_epoch);
    *plateau = *state;
    return ISO_OK;
}

void iso_plateau_reset(iso_plateau *plateau) {
    plateau->best = plateau->config.max ? -INFINITY : INFINITY;
    plateau->bad = 0;
    plateau->cooldown_counter = 0;
}

// Every comparison with NaN is false.
static bool beats_best(const iso_plateau *p, double value) {
    double threshold = p->config.threshold;
    if (p->config.absolute)
        return p->config.max ? value > p->best + threshold : value < p->best - threshold;
    // In mode max HeAT uses this factor for a negative best, too: values slightly below the best
    // then count as better.
    if (p->config.max) return value > p->best * (1 + threshold);
    return value < p->best * (p->best >= 0 ? 1 - threshold : 1 + threshold);
}

bool iso__plateau_take(iso_plateau *plateau, double value, bool is_better) {
    plateau->last_epoch++;
    if (is_better) {
        plateau->best = value;
        plateau->bad = 0;
    } else {
        plateau->bad++;
    }
    if (plateau->cooldown_counter > 0) {
        plateau->cooldown_counter--;
        plateau->bad = 0;
    }
    if (plateau->bad <= plateau->config.patience) return false;
    plateau->cooldown_counter = plateau->config.cooldown;
    plateau->bad = 0;
    return true;
}

bool iso_plateau_test(iso_plateau *plateau, double value) {
    return iso__plateau_take(plateau, value, beats_best(plateau, value));
}

void iso__plateau_of_loss(iso_plateau *plateau, double threshold) {
    iso_plateau_config config = {.patience = 2, .threshold = threshold};
    iso_status status = iso_plateau_init(plateau, &config);
    assert(status == ISO_OK);
    (void)status;
}
