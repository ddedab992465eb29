// SPDX-License-Identifier: MIT
// Tournaments: what a config needs, the pairs of trainers, and who wins.
#include "optim/periodic/sync_plan.h"

#include <math.h>

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
