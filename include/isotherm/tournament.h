// SPDX-License-Identifier: MIT
// Tournaments between trainers (LTFB, "Let a Thousand Flowers Bloom": Jacobs et al., MLHPC 2017;
// the callback ltfb of LBANN). A trainer is a node of the periodic modes (isotherm/daso.h): its
// ranks average their gradients, and trainers exchange no gradients. Every global_skip steps the
// trainers are paired at random. Partners exchange their models, and each one scores both models on
// samples that are held out of training. It goes on with the better one.
#ifndef ISOTHERM_TOURNAMENT_H
#define ISOTHERM_TOURNAMENT_H

#include <isotherm/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

// What decides a tournament. A value that is not finite loses against one that is. If both values
// are equal, or neither is finite, a trainer keeps its own model.
typedef enum iso_tournament_metric {
    ISO_TOURNAMENT_LOSS,    // the lower `loss` wins
    ISO_TOURNAMENT_ACCURACY // the higher `accuracy` wins
} iso_tournament_metric;

// What a trainer decided.
typedef struct iso_match {
    int64_t step;         // number of updates before the tournament
    int trainer, partner; // equal if it had no partner
    double own, theirs;   // what decided: of its own model, and of its partner's
    bool took;            // it goes on with its partner's model
} iso_match;

typedef struct iso_tournament {
    // Required. Scores `model`, the module inside the DataParallel, which is in evaluation mode, on
    // this rank's part of the trainer's held-out samples. Fills in loss and accuracy, means over
    // `samples`; a metric of your own may take the place of either. Called on every rank, twice in
    // a tournament, once before each choice of one model (see iso_tournament_config). Ranks call it
    // at different times: it must not communicate with other ranks, and must not change the model.
    // Afterwards each module is in the mode in which it was before, whatever the call did.
    // The score of a trainer is the mean over its ranks, weighted by samples. A rank without
    // samples sets `samples` to 0: it adds nothing. If a trainer has no samples at all
    // (ISO_ERR_ARG), or the call fails on any rank, every rank gets an error, and no model changes.
    iso_status (*score)(iso_module *model, iso_evaluation *out, void *user);
    // Called on rank 0 for every trainer, in their order, after each tournament; NULL: not called.
    void (*told)(const iso_match *match, void *user);
    void *user;
    iso_tournament_metric metric;
    uint64_t seed; // of the pairs, the same on all ranks
    // false: a model that moves brings its optimizer state. true: optimizer state stays.
    bool keep_state;
} iso_tournament;

#ifdef __cplusplus
}
#endif
#endif
