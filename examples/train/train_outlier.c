// SPDX-License-Identifier: MIT
// --skip-loss, --skip-norm: steps whose loss or gradient norm is an outlier make no update.
#include "train.h"

#include <math.h>
#include <string.h>

static bool is_wanted(const train_options *o) {
    return !isnan(o->skip_loss) || !isnan(o->skip_norm);
}

static iso_status check_score(const train_options *o, const char *name, double z) {
    double most = sqrt((double)o->skip_window - 1);
    if (isnan(z) || z < most) return ISO_OK;
    return train_error(ISO_ERR_ARG,
                       "--%s %g is out of reach: no value is more than %.2f deviations above the "
                       "mean of --skip-window %lld: lower it, or raise the window",
                       name, z, most, (long long)o->skip_window);
}

iso_status train_outlier_check(const train_options *o) {
    if (!is_wanted(o)) return ISO_OK;
    TRY(check_score(o, "skip-loss", o->skip_loss));
    TRY(check_score(o, "skip-norm", o->skip_norm));
    const char *name = isnan(o->skip_loss) ? "skip-norm" : "skip-loss";
    if (o->grad_scaler)
        return train_error(ISO_ERR_ARG,
                           "--%s cannot be combined with --grad-scaler, which decides itself which "
                           "updates to skip: remove one of them",
                           name);
    if (strcmp(o->sync, "daso-heat") == 0)
        return train_error(ISO_ERR_ARG,
                           "--%s cannot be combined with --sync daso-heat, which counts the "
                           "updates of an epoch: remove it, or use --sync daso",
                           name);
    return ISO_OK;
}

iso_status train_outlier_setup(train_run *run) {
    const train_options *o = run->options;
    if (!isnan(o->skip_loss)) TRY(iso_outlier_create(o->skip_window, &run->losses));
    if (!isnan(o->skip_norm)) TRY(iso_outlier_create(o->skip_window, &run->norms));
    return ISO_OK;
}

bool train_outlier_on(const train_run *run) { return run->losses || run->norms; }

bool train_outlier_found(const train_run *run) {
    const train_options *o = run->options;
    return run->outlier_z[0] > o->skip_loss || run->outlier_z[1] > o->skip_norm;
}

const char *train_outlier_reasons(const train_run *run) {
    bool skips = run->options->finite && strcmp(run->options->finite, "skip") == 0;
    if (run->scaler) return "--grad-scaler";
    if (train_outlier_on(run)) return skips ? "outliers, --finite skip" : "outliers";
    return "--finite skip";
}

// Judges the mean over all ranks, so that all decide alike even if their gradients differ.
iso_status train_outlier_look(train_run *run, double loss, double samples, bool *usual) {
    double sum[3] = {loss, samples, 0}, *z = run->outlier_z;
    if (run->norms) TRY(iso_grad_norm(run->model, 2, &sum[2]));
    TRY(iso_comm_allreduce_f64(run->world->comm, sum, 3, ISO_SUM));
    z[0] = z[1] = NAN;
    if (run->losses) iso_outlier_add(run->losses, sum[0] / sum[1], &z[0]);
    if (run->norms) iso_outlier_add(run->norms, sum[2] / run->world->ranks, &z[1]);
    *usual = !train_outlier_found(run);
    return ISO_OK;
}

iso_status train_outlier_state(train_run *run, iso_state *state) {
    int64_t count = ISO_OUTLIER_STATE(run->options->skip_window);
    if (run->losses)
        TRY(iso_state_add(state, ISO_STATE_SHARED, "train/losses", ISO_STATE_F64, count,
                          iso_outlier_state(run->losses)));
    if (run->norms)
        TRY(iso_state_add(state, ISO_STATE_SHARED, "train/norms", ISO_STATE_F64, count,
                          iso_outlier_state(run->norms)));
    return ISO_OK;
}
