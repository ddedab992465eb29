// SPDX-License-Identifier: MIT
// Dynamic loss scaling: the scale, and what a step does with gradients that overflow.
#include "base/base.h"

#include <isotherm/clip.h>
#include <isotherm/grad_scaler.h>
#include <float.h>
#include <math.h>

enum { SCALE, GROWN }; // the elements of the state

struct iso_grad_scaler {
    iso_comm *comm; // borrowed
    iso_grad_scaler_config config;
    double state[ISO_GRAD_SCALER_STATE]; // the scale; updates since it changed
    bool unscaled, finite;               // since update: gradients were unscaled; all were finite
};

static iso_status check_config(const iso_grad_scaler_config *c) {
    ISO_CHECK(c->init_scale > 0 && c->init_scale <= FLT_MAX, ISO_ERR_ARG,
              "grad scaler: init_scale %g: give a finite number above 0", c->init_scale);
    ISO_CHECK(c->growth_factor > 1 && c->growth_factor <= FLT_MAX, ISO_ERR_ARG,
              "grad scaler: growth_factor %g: give a finite number above 1", c->growth_factor);
    ISO_CHECK(c->backoff_factor > 0 && c->backoff_factor < 1, ISO_ERR_ARG,
              "grad scaler: backoff_factor %g: give a number between 0 and 1", c->backoff_factor);
    ISO_CHECK(c->growth_interval > 0, ISO_ERR_ARG,
              "grad scaler: growth_interval %lld: give at least 1", (long long)c->growth_interval);
    return ISO_OK;
}

iso_status iso_grad_scaler_create(iso_comm *comm, const iso_grad_scaler_config *config,
                                  iso_grad_scaler **out) {
    iso_grad_scaler *scaler;
    iso_grad_scaler_config c = config ? *config : ISO_GRAD_SCALER_DEFAULT;
    ISO_TRY(check_config(&c));
    ISO_TRY(iso__alloc_zero(sizeof(*scaler), (void **)&scaler));
    *scaler = (iso_grad_scaler){.comm = comm, .config = c, .state[SCALE] = c.init_scale};
    *out = scaler;
    return ISO_OK;
}

void iso_grad_scaler_destroy(iso_grad_scaler **scaler) {
    if (!scaler) return;
    iso__free(*scaler);
    *scaler = NULL;
}

double iso_grad_scaler_get_scale(const iso_grad_scaler *scaler) { return scaler->state[SCALE]; }

double *iso_grad_scaler_state(iso_grad_scaler *scaler) { return scaler->state; }

iso_status iso_grad_scaler_scale(const iso_grad_scaler *scaler, iso_tensor *gradient) {
    return iso_tensor_scale(gradient, scaler->state[SCALE]);
}

iso_status iso_grad_scaler_unscale(iso_grad_scaler *scaler, iso_module *module) {
    ISO_CHECK(!scaler->unscaled, ISO_ERR_STATE,
              "iso_grad_scaler_unscale was called already: call iso_grad_scaler_update at the end "
              "of each step");
    ISO_TRY(iso_comm_agree(scaler->comm, iso_grads_scale(module, 1 / scaler->state[SCALE])));
    ISO_TRY(iso_grads_finite(module, scaler->comm, &scaler->finite));
    scaler->unscaled = true;
    return ISO_OK;
}

iso_status iso_grad_scaler_step(iso_grad_scaler *scaler, iso_optimizer *optimizer, bool *stepped) {
    ISO_CHECK(scaler->unscaled, ISO_ERR_STATE,
              "iso_grad_scaler_step on scaled gradients: call iso_grad_scaler_unscale first");
    if (scaler->finite)
        ISO_TRY(iso_optimizer_step(optimizer));
    else
        iso_optimizer_zero_grad(optimizer);
    if (stepped) *stepped = scaler->finite;
    return ISO_OK;
}

iso_status iso_grad_scaler_update(iso_grad_scaler *scaler) {
    const iso_grad_scaler_config *c = &scaler->config;
    double *state = scaler->state, grown = state[SCALE] * c->growth_factor;
    ISO_CHECK(
        scaler->unscaled, ISO_ERR_STATE,
        "iso_grad_scaler_update before iso_grad_scaler_unscale: call it at the end of a step");
    scaler->unscaled = false;
    if (scaler->finite && ++state[GROWN] < (double)c->growth_interval) return ISO_OK;
    if (!scaler->finite)
        state[SCALE] *= c->backoff_factor;
    else if (grown <= FLT_MAX)
        state[SCALE] = grown;
    state[GROWN] = 0;
    return ISO_OK;
}
