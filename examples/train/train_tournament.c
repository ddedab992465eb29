// SPDX-License-Identifier: MIT
// --sync tournament: scores models on the set of --validation, and logs what trainers decide.
#include "train_tournament.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- What the strategy calls --------------------------------------------------------------------

// Scores this rank's part of its trainer's set. Every trainer uses the whole validation set. A part
// is empty if the set has fewer images than the trainer has ranks: *out then has 0 samples.
static iso_status score_model(iso_module *model, iso_evaluation *out, void *user) {
    const train_run *run = user;
    *out = (iso_evaluation){.loss = NAN, .accuracy = NAN};
    if (iso_loader_batches(run->match_loader) == 0) return ISO_OK;
    return iso_evaluate(model, run->test_loss, run->match_loader, run->self, out);
}

// The numbers of --tournament-hyper, of the first group of parameters.
static void log_numbers(iso_json_log *log, const char *names, const iso_match *match) {
    int count = names != NULL;
    char name[32];
    for (const char *at = names; at && *at; at++) count += *at == ',';
    int groups = count > 0 ? (match->hyper_count - 1) / count : 0;
    for (int i = 0; i < count; i++, names += strcspn(names, ",") + 1) {
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(names, ","), names);
        iso_json_double(log, name, match->hyper[1 + i * groups]);
    }
}

static void log_match(const iso_match *match, void *user) {
    const train_run *run = user;
    iso_json_log *log = run->log; // NULL without --log
    iso_json_begin(log, "match");
    iso_json_int(log, "step", match->step);
    iso_json_int(log, "trainer", match->trainer);
    iso_json_int(log, "partner", match->partner);
    iso_json_double(log, "own", match->own);
    iso_json_double(log, "theirs", match->theirs);
    iso_json_int(log, "took", match->took);
    iso_json_double(log, "lr", run->lr * match->hyper[0]);
    log_numbers(log, train_setting_text(run->options, "tournament-hyper"), match);
    iso_json_end(log);
}

// ---- Setting up ---------------------------------------------------------------------------------

static iso_status open_loader(train_run *run) {
    iso_topology *trainers;
    iso_topology_config config = ISO_TOPOLOGY_DEFAULT;
    const char *unit = train_setting_text(run->options, "unit");
    if (unit && strcmp(unit, "rank") == 0) config.unit = ISO_SCOPE_RANK;
    TRY(iso_topology_create(run->world->comm, &config, &trainers));
    iso_status status = train_held_out_open(run, trainers->local_rank, trainers->local_size);
    iso_topology_destroy(&trainers);
    return iso_comm_agree(run->world->comm, status);
}

iso_status train_tournament_setup(train_run *run, iso_tournament *out, iso_tournament_hyper *hyper,
                                  iso_strategy_context *context) {
    bool wanted = train_setting_of(run->options->sync, "tournament-metric") != NULL;
    if (!wanted || !run->world->validation_set) return ISO_OK;
    TRY(open_loader(run));
    TRY(iso_comm_create(MPI_COMM_SELF, NULL, &run->self));
    *hyper = (iso_tournament_hyper){.name = "factor of lr", .value = &run->lr_factor};
    *out = (iso_tournament){.score = score_model,
                            .told = log_match,
                            .user = run,
                            .seed = (uint64_t)run->options->seed,
                            .hyper = hyper,
                            .hyper_count = 1};
    context->tournament = out;
    return ISO_OK;
}

// The schedule sets the learning rate in each step, so a factor of it moves instead.
static iso_status check_numbers(const char *names) {
    for (const char *at = names; at; at = at[strcspn(at, ",")] ? at + strcspn(at, ",") + 1 : NULL)
        if (strcspn(at, ",") == 2 && strncmp(at, "lr", 2) == 0)
            return train_error(ISO_ERR_ARG,
                               "--tournament-hyper %s: the learning rate always moves: remove lr",
                               names);
    return ISO_OK;
}

static iso_status check_layers(const train_options *o) {
    const char *mutate = train_setting_text(o, "tournament-mutate");
    bool several = o->activations && strchr(o->activations, ',');
    if (!mutate || strcmp(mutate, "layers") != 0 || several) return ISO_OK;
    return train_error(ISO_ERR_ARG,
                       "--tournament-mutate layers chooses among activations: give several, e.g. "
                       "--activations relu,tanh,elu");
}

iso_status train_tournament_check(const train_options *o) {
    if (!train_setting_of(o->sync, "tournament-metric")) return ISO_OK;
    TRY(check_numbers(train_setting_text(o, "tournament-hyper")));
    TRY(check_layers(o));
    if (!isnan(o->validation)) return ISO_OK;
    return train_error(ISO_ERR_ARG,
                       "--sync %s compares models on images that are held out of training: give "
                       "--validation, e.g. --validation 0.1",
                       o->sync);
}
