// SPDX-License-Identifier: MIT
// --extend: a run that is resumed goes on to a later end, or with another learning rate.
#include "train.h"

#include <string.h>

static bool is_among(const char *line, const char *const *options) {
    for (; *options; options++) {
        size_t length = strlen(*options);
        if (strncmp(line, *options, length) == 0 && line[length] == ' ') return true;
    }
    return false;
}

// What sets the learning rate, as a function of the step and of the end of the run.
static bool sets_rate(const char *line) {
    static const char *const options[] = {
        "--lr",         "--schedule", "--gamma",           "--step-size",
        "--milestones", "--patience", "--warmup-lr-steps", NULL};
    return is_among(line, options);
}

bool train_extend_names(const char *line) {
    static const char *const others[] = {"--epochs", "--steps", "--early-stopping", NULL};
    return sets_rate(line) || is_among(line, others);
}

bool train_extend_takes(train_run *run, const char *line, const char *old) {
    if (!run->options->extend || !train_extend_names(line)) return false;
    size_t used = strlen(run->extended);
    snprintf(run->extended + used, sizeof(run->extended) - used, "%s%.*s", used ? ", " : "",
             (int)strcspn(old, "\n"), old);
    run->other_rate = run->other_rate || sets_rate(line);
    return true;
}

// A run that ended within an epoch has left it, and goes back to it.
static void return_to_epoch(train_run *run, iso_loader_state *samples) {
    int64_t made = run->at.step % run->epoch_steps;
    if (!run->at.finished || made == 0) return;
    run->at.epoch = run->at.step / run->epoch_steps;
    run->at.batch = made * run->options->accumulate;
    samples->epoch = run->at.epoch;
    samples->next = run->at.batch;
}

iso_status train_extend_go_on(train_run *run, const iso_hyper *initial, iso_loader_state *samples) {
    iso_hyper *hyper = iso_optimizer_hyper(run->optimizer);
    if (!run->extended[0]) return ISO_OK;
    if (run->at.step >= run->steps)
        return train_error(
            ISO_ERR_ARG,
            "the run of %s has made %lld steps, and with these options it ends after "
            "%lld: --extend needs more --epochs or --steps",
            run->options->resume, (long long)run->at.step, (long long)run->steps);
    return_to_epoch(run, samples);
    run->at.finished = 0;
    run->sum.last_loss = run->sum.last_samples = 0; // of other steps
    if (!run->other_rate) return ISO_OK;
    run->lr = initial->lr;               // reductions at plateaus begin anew
    hyper->momentum = initial->momentum; // a schedule may have cycled them
    hyper->beta1 = initial->beta1;
    return ISO_OK;
}
