// SPDX-License-Identifier: MIT
// --grad-scaler: scales the loss, so that small gradients survive 16-bit types, and skips updates
// with gradients that overflow.
#include "train.h"

#include <math.h>
#include <string.h>

iso_status train_scaler_check(const train_options *o) {
    if (!o->grad_scaler && (!isnan(o->init_scale) || o->growth_interval > 0))
        return train_error(ISO_ERR_ARG, "--%s needs --grad-scaler",
                           isnan(o->init_scale) ? "growth-interval" : "init-scale");
    if (!o->grad_scaler) return ISO_OK;
    if (o->finite)
        return train_error(ISO_ERR_ARG,
                           "--grad-scaler itself skips updates with gradients that are NaN or "
                           "infinite: remove it or --finite");
    if (o->noise_scale > 0)
        return train_error(ISO_ERR_ARG, "--noise-scale cannot measure the gradients that "
                                        "--grad-scaler scales: remove one of them");
    if (strcmp(o->sync, "daso-heat") == 0)
        return train_error(ISO_ERR_ARG,
                           "--grad-scaler cannot be combined with --sync daso-heat, which counts "
                           "the updates of an epoch: remove it, or use --sync daso");
    return ISO_OK;
}

iso_status train_scaler_setup(train_run *run) {
    const train_options *o = run->options;
    iso_grad_scaler_config config = ISO_GRAD_SCALER_DEFAULT;
    if (!o->grad_scaler) return ISO_OK;
    if (!isnan(o->init_scale)) config.init_scale = o->init_scale;
    if (o->growth_interval > 0) config.growth_interval = o->growth_interval;
    return iso_grad_scaler_create(run->world->comm, &config, &run->scaler);
}

iso_status train_scaler_step(train_run *run, bool *stepped) {
    *stepped = true;
    if (!run->scaler) return iso_optimizer_step(run->optimizer);
    TRY(iso_grad_scaler_step(run->scaler, run->optimizer, stepped));
    return iso_grad_scaler_update(run->scaler);
}
