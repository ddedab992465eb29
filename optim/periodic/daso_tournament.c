// SPDX-License-Identifier: MIT
// Tournaments: what a config needs, the pairs of trainers, and who wins.
#include "optim/periodic/sync_plan.h"

#include <math.h>
#include <string.h>

static iso_status check_hyper(const iso_tournament *t) {
    ISO_CHECK(t->hyper_count >= 0 && t->hyper_count <= ISO_TOURNAMENT_HYPERS &&
                  (t->hyper || t->hyper_count == 0),
              ISO_ERR_ARG,
              "daso: a tournament has a list of %d hyperparameters%s: give 0 to %d, with the list",
              t->hyper_count, t->hyper ? "" : " without the list", ISO_TOURNAMENT_HYPERS);
    ISO_CHECK(t->perturb >= 0 && t->perturb < 1, ISO_ERR_ARG,
              "daso: perturb of a tournament is %g: give a number of at least 0 and below 1",
              t->perturb);
    ISO_CHECK(isfinite(t->spread) && t->spread >= 0, ISO_ERR_ARG,
              "daso: spread of a tournament is %g: give a number above 0, or 0 for none",
              t->spread);
    bool changes = t->perturb != 0 || t->mutate || (t->spread != 0 && t->spread != 1);
    ISO_CHECK(t->hyper_count > 0 || !changes, ISO_ERR_ARG,
              "daso: a tournament has spread, perturb or mutate, and no hyperparameters to change: "
              "list them in `hyper`");
    ISO_CHECK(t->perturb == 0 || !t->mutate, ISO_ERR_ARG,
              "daso: a tournament has both perturb and mutate: give one of them");
    for (int i = 0; i < t->hyper_count; i++) {
        const iso_tournament_hyper *h = &t->hyper[i];
        ISO_CHECK(h->name && h->value && h->least <= h->most, ISO_ERR_ARG,
                  "daso: hyperparameter %d of a tournament needs a name, a value, and limits "
                  "least <= most (both 0: none)",
                  i);
        ISO_CHECK(strlen(h->name) < ISO__HYPER_NAME, ISO_ERR_ARG,
                  "daso: the name of hyperparameter %d of a tournament has %zu characters: give "
                  "at most %d",
                  i, strlen(h->name), ISO__HYPER_NAME - 1);
    }
    return ISO_OK;
}

uint64_t iso__tournament_hyper_hash(const iso_tournament *t) {
    uint64_t hash = ISO_HASH_START;
    for (int i = 0; i < t->hyper_count; i++) {
        const iso_tournament_hyper *h = &t->hyper[i];
        hash = iso__hash(hash, h->name, strlen(h->name) + 1);
        hash = iso__hash(hash, &h->least, sizeof(h->least));
        hash = iso__hash(hash, &h->most, sizeof(h->most));
    }
    return hash;
}

uint64_t iso__tournament_weights_hash(const iso_tournament *t) {
    return t->weights ? iso__hash(ISO_HASH_START, t->weights, strlen(t->weights)) : 0;
}

iso_status iso__daso_tournament_check(const iso_daso_config *c) {
    const iso_tournament *t = c->tournament;
    if (!t) return ISO_OK;
    ISO_CHECK(t->score, ISO_ERR_ARG,
              "daso: a tournament needs `score`, which says how good a model is on samples that "
              "are held out of training: set it");
    ISO_CHECK(t->metric == ISO_TOURNAMENT_LOSS || t->metric == ISO_TOURNAMENT_ACCURACY, ISO_ERR_ARG,
              "daso: the metric of a tournament is %d, it must be ISO_TOURNAMENT_LOSS or "
              "ISO_TOURNAMENT_ACCURACY",
              (int)t->metric);
    ISO_TRY(check_hyper(t));
    ISO_CHECK(!t->moves || !t->weights, ISO_ERR_ARG,
              "daso: a tournament has both moves and weights: give one of them");
    bool warms_up = c->warmup_steps > 0 || (c->warmup_steps < 0 && c->warmup > 0);
    ISO_CHECK(!warms_up || t->spread == 0 || t->spread == 1, ISO_ERR_ARG,
              "daso: a tournament with spread has a warm-up, in which all trainers must have equal "
              "hyperparameters: set spread to 1, or warm-up to 0");
    bool cools_down = c->cooldown_steps > 0 || (c->cooldown_steps < 0 && c->cooldown > 0);
    ISO_CHECK(!cools_down || t->hyper_count == 0, ISO_ERR_ARG,
              "daso: a tournament with hyperparameters has a cool-down, in which all ranks train "
              "together, and trainers would have different ones: set cool-down to 0");
    bool plain = c->wire == ISO_WIRE_F32 && c->merge == ISO_MERGE_PROGRESS &&
                 c->state == ISO_STATE_SYNC_KEEP && c->policy == ISO_POLICY_FIXED;
    bool single =
        !c->gossip && !c->asynchronous && !c->outer && c->level_count == 0 && c->fragments <= 1;
    bool rhythm = c->global_skip >= 1 && c->batches_to_wait >= 0 && c->local_skip == 1;
    ISO_CHECK(plain && single && rhythm, ISO_ERR_ARG,
              "daso: a tournament needs ISO_WIRE_F32, ISO_MERGE_PROGRESS, ISO_STATE_SYNC_KEEP, "
              "ISO_POLICY_FIXED, a given global_skip and batches_to_wait, and local_skip 1, as "
              "iso_tournament_config sets them, and neither gossip, asynchronous, outer, levels "
              "nor fragments");
    return ISO_OK;
}

// A random order (Fisher and Yates), in which neighbours are partners. The last one of an odd
// number has none.
void iso__tournament_pairs(uint64_t seed, int64_t turn, int trainers, int *order, int *partner) {
    iso__philox_key key = iso__philox_key_make(seed, ISO_RNG_PAIRS, (uint64_t)turn);
    for (int i = 0; i < trainers; i++) order[i] = i;
    for (int i = trainers - 1; i > 0; i--) {
        int k = (int)iso__draw_below(key, 0, (uint64_t)i, (uint64_t)i + 1), kept = order[i];
        order[i] = order[k];
        order[k] = kept;
    }
    for (int i = 0; i < trainers; i++) {
        int other = i ^ 1;
        partner[order[i]] = order[other < trainers ? other : i];
    }
}

bool iso__tournament_better(iso_tournament_metric metric, double theirs, double own) {
    if (!isfinite(theirs)) return false;
    if (!isfinite(own)) return true;
    return metric == ISO_TOURNAMENT_LOSS ? theirs < own : theirs > own;
}

static uint64_t draw_bits(uint64_t seed, int64_t turn, int trainer, uint32_t draw) {
    iso__philox_key key = iso__philox_key_make(seed, ISO_RNG_MUTATION, (uint64_t)turn);
    uint32_t counter[4] = {(uint32_t)trainer, draw, 0, 1}, bits[4];
    iso__philox(key, counter, bits);
    return (uint64_t)bits[1] << 32 | bits[0];
}

uint64_t iso__tournament_random(uint64_t seed, int64_t turn, int trainer) {
    return draw_bits(seed, turn, trainer, 0);
}

uint64_t iso__tournament_random_model(uint64_t seed, int64_t turn, int trainer) {
    return draw_bits(seed, turn, trainer, 1);
}

// One bit for each of at most 64 values.
void iso__tournament_perturb(double share, uint64_t random, double *values, int count) {
    for (int i = 0; i < count; i++) values[i] *= (random >> i & 1) ? 1 + share : 1 - share;
}
