// SPDX-License-Identifier: MIT
// --resume on another number of ranks: goes on with the same global batches, or says what to
// change.
#include "train.h"

#include <stdlib.h>
#include <string.h>

static const char *plural_of(int64_t n) { return n == 1 ? "" : "s"; }

// ---- What was saved -----------------------------------------------------------------------------

// The value of an option with a number in a text of options.
static int64_t saved_number(const char *settings, const char *option) {
    const char *line = train_options_line(settings, option);
    return line ? strtoll(line + strlen(option), NULL, 10) : 0;
}

static iso_status read_shares(train_run *run, const char *settings) {
    static iso_loader_state samples;
    TRY(iso_resume_read(run->world->comm, run->options->resume, "train/samples", sizeof(samples),
                        &samples));
    run->before = (train_shares){.ranks = samples.ranks,
                                 .batch = samples.batch,
                                 .accumulate = saved_number(settings, "--accumulate ")};
    return ISO_OK;
}

// ---- What cannot go on --------------------------------------------------------------------------

// Why these options tie the run to its number of ranks; NULL: they do not.
static const char *find_obstacle(const train_run *run) {
    const train_options *o = run->options;
    if (strcmp(o->sampler, "overlap") == 0)
        return "with --sampler overlap the samples of a rank depend on the number of ranks";
    if (run->workers < run->world->ranks)
        return "with --servers a state is for the same ranks (numbers here are of those that "
               "train)";
    if (strcmp(o->average, "sum") == 0)
        return "with --average sum the gradient grows with the number of ranks";
    return NULL;
}

static int64_t global_batch(const train_shares *s) { return s->ranks * s->batch * s->accumulate; }

// How to get the global batch back.
static void advise_batch(int64_t global, const train_shares *now, char *text, size_t room) {
    int64_t each = now->ranks * now->accumulate;
    if (global % each == 0)
        snprintf(text, room, "give --batch %lld to keep it", (long long)(global / each));
    else if (global % now->ranks == 0)
        snprintf(text, room, "give --batch %lld --accumulate 1 to keep it",
                 (long long)(global / now->ranks));
    else
        snprintf(text, room, "use a number of ranks that divides it");
}

static iso_status check_batch(const train_run *run, const train_shares *now) {
    const train_shares *old = &run->before;
    int64_t global = global_batch(old);
    char advice[80];
    advise_batch(global, now, advice, sizeof(advice));
    if (global != global_batch(now))
        return train_error(
            ISO_ERR_MISMATCH,
            "%s was saved by %lld rank%s with a global batch (ranks x --batch x "
            "--accumulate) of %lld, and this run has %lld rank%s and one of %lld: %s",
            run->options->resume, (long long)old->ranks, plural_of(old->ranks), (long long)global,
            (long long)now->ranks, plural_of(now->ranks), (long long)global_batch(now), advice);
    // The samples that are dropped depend on ranks * --batch, so an epoch would have other updates.
    if (strcmp(run->options->sampler, "drop") == 0 && old->accumulate != now->accumulate)
        return train_error(
            ISO_ERR_MISMATCH,
            "%s was saved with --sampler drop and --accumulate %lld, and this run "
            "has --accumulate %lld: with another number of ranks, too, give the same",
            run->options->resume, (long long)old->accumulate, (long long)now->accumulate);
    return ISO_OK;
}

iso_status train_ranks_check(train_run *run, const char *settings) {
    const train_options *o = run->options;
    train_shares now = {run->workers, o->batch, o->accumulate};
    TRY(read_shares(run, settings));
    run->other_ranks = run->before.ranks > 0 && run->before.ranks != now.ranks;
    if (!run->other_ranks) return ISO_OK;
    const char *obstacle = find_obstacle(run);
    if (obstacle)
        return train_error(
            ISO_ERR_MISMATCH,
            "%s was saved by %lld rank%s and this run has %lld: resume with the same "
            "number, as %s",
            o->resume, (long long)run->before.ranks, plural_of(run->before.ranks),
            (long long)now.ranks, obstacle);
    return check_batch(run, &now);
}

bool train_ranks_free(const train_run *run, const char *line) {
    return run->other_ranks && (strncmp(line, "--batch ", strlen("--batch ")) == 0 ||
                                strncmp(line, "--accumulate ", strlen("--accumulate ")) == 0);
}

// ---- After loading ------------------------------------------------------------------------------

iso_status train_ranks_convert(train_run *run, iso_loader_state *samples) {
    if (run->other_ranks) {
        TRY(iso_loader_convert_state(run->train_loader, samples));
        run->at.batch = samples->next;
    } else if (!run->other_nodes) {
        return ISO_OK;
    }
    // Each sum is the total of all ranks that saved it. Times become the mean of those ranks; the
    // rest is divided among the ranks of this run.
    train_sums *s = &run->sum;
    double *shared[] = {&s->loss,      &s->samples,      &s->last_loss,  &s->last_samples,
                        &s->eval_loss, &s->eval_samples, &s->bytes_sent, &s->bytes_between};
    double *times[] = {&s->seconds, &s->epoch_seconds, &s->wait_ms};
    for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++) *shared[i] /= run->world->ranks;
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        *times[i] /= (double)run->before.ranks;
    return ISO_OK;
}
