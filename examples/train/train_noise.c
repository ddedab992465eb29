// SPDX-License-Identifier: MIT
// --noise-scale: estimates the gradient noise scale every N steps.
#include "train.h"

#include <math.h>
#include <string.h>

// With this factor an estimate counts half after 7 further ones.
#define DECAY 0.9

iso_status train_noise_check(const train_options *o) {
    const iso_strategy *strategy;
    const char *wire = train_setting_text(o, "wire");
    if (o->noise_scale < 0) return ISO_OK;
    TRY(iso_strategy_find(o->sync, &strategy));
    if (strategy->finish || (wire && strcmp(wire, "noop") == 0))
        return train_error(ISO_ERR_ARG,
                           "--noise-scale compares gradients with their average over all ranks, "
                           "which --%s %s does not compute: remove one of them",
                           strategy->finish ? "sync" : "wire", strategy->finish ? o->sync : wire);
    if (strcmp(o->average, "sum") == 0)
        return train_error(ISO_ERR_ARG,
                           "--noise-scale needs averages of gradients: remove it or --average sum");
    return ISO_OK;
}

iso_status train_noise_setup(train_run *run) {
    if (run->options->noise_scale < 0) return ISO_OK;
    if (run->world->ranks < 2)
        return train_error(ISO_ERR_ARG,
                           "--noise-scale compares the gradients of ranks: start at least 2 ranks, "
                           "or remove it");
    return iso_noise_scale_create(run->model, DECAY, &run->noise);
}

static bool is_measured(const train_run *run) {
    return run->noise && (run->at.step + 1) % run->options->noise_scale == 0;
}

iso_status train_noise_begin(train_run *run) {
    return is_measured(run) ? iso_noise_scale_begin(run->noise) : ISO_OK;
}

iso_status train_noise_end(train_run *run, int64_t samples) {
    iso_noise_estimate estimate;
    if (!is_measured(run)) return ISO_OK;
    TRY(iso_noise_scale_end(run->noise, (double)samples, &estimate));
    iso_json_begin(run->log, "noise_scale");
    iso_json_int(run->log, "step", run->at.step + 1);
    iso_json_double(run->log, "gradient2", estimate.gradient2);
    iso_json_double(run->log, "trace", estimate.trace);
    iso_json_double(run->log, "noise_scale", estimate.noise_scale);
    iso_json_end(run->log);
    return ISO_OK;
}

double train_noise_scale(const train_run *run) {
    const double *average = iso_noise_scale_state(run->noise);
    return average[0] > 0 ? average[1] / average[0] : NAN;
}

void train_noise_print(const train_run *run, FILE *to) {
    if (run->noise && isfinite(train_noise_scale(run)))
        fprintf(to, "gradient noise scale %.0f samples; a global batch has %lld\n",
                train_noise_scale(run),
                (long long)(run->options->batch * run->options->accumulate * run->world->ranks));
    else if (run->noise)
        fprintf(to, "gradient noise scale: too few estimates, give --noise-scale a smaller N\n");
}
