// SPDX-License-Identifier: MIT
// Tournaments between trainers (LTFB, "Let a Thousand Flowers Bloom": Jacobs et al., MLHPC 2017;
// the callback ltfb of LBANN). A trainer is a node of the periodic modes (isotherm/daso.h): its
// ranks average their gradients, and trainers exchange no gradients. Every global_skip steps the
// trainers are paired at random. Partners exchange their models, and each one scores both models on
// samples that are held out of training. It goes on with the better one.
#ifndef ISOTHERM_TOURNAMENT_H
#define ISOTHERM_TOURNAMENT_H

#include <isotherm/optim.h>
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
    // The hyperparameters with which it goes on, of the tournament's list; borrowed for the call.
    const double *hyper;
    int hyper_count;
} iso_match;

// A hyperparameter that moves with models, as in population based training (PBT: Jaderberg et al.,
// "Population Based Training of Neural Networks", 2017, where taking a model with its
// hyperparameters is `exploit`, and perturbing them `explore`).
typedef struct iso_tournament_hyper {
    const char *name; // for messages and iso_match; borrowed until the optimizer is created
    // Borrowed; must outlive the optimizer. The library reads it when the optimizer is created and
    // in tournaments, and writes it in tournaments and when a state is loaded. The ranks of a
    // trainer must have the same value, trainers may have different ones. It may be a field of an
    // iso_hyper (see iso_tournament_list_hyper), the `lr` of an iso_schedule that the program
    // applies before each step, or any number that the program uses.
    //
    // A schedule that sets `lr` of an iso_hyper replaces what a tournament wrote there: let the
    // schedule's own `lr` travel instead, or a factor of your own by which you multiply it.
    double *value;
    double least, most; // a perturbed value stays within these; equal and 0: no limits
} iso_tournament_hyper;

enum { ISO_TOURNAMENT_HYPERS = 64 }; // at most

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
    // Returns whether the parameter or buffer of this name (as in iso_module_parameters) moves,
    // with its optimizer state; NULL: all move. Those that do not move are each trainer's own: a
    // trainer scores, and may take, its own model with the partner's values of those that move. All
    // ranks must make the same choice (else ISO_ERR_MISMATCH), and at least one parameter must move
    // (else ISO_ERR_ARG). Called only when the optimizer is created. All values are sent in any
    // case. Evaluations and the end of a run take the whole best model.
    bool (*moves)(const char *name, void *user);
    // Instead of `moves`: patterns of the names that move, separated by ','; NULL: none. '*' stands
    // for any characters. There are at most 64 patterns, and each must match a name (else
    // ISO_ERR_ARG). Borrowed until the optimizer is created.
    const char *weights;

    // Hyperparameters that move with a model, too; NULL: none. The list is borrowed until the
    // optimizer is created. All ranks pass lists of the same length, with the same limits. In
    // warm-up and cool-down all ranks train together. So a warm-up, also after iso_daso_reset,
    // requires equal values on all trainers (ISO_ERR_MISMATCH), and a cool-down is not allowed
    // (ISO_ERR_ARG). Evaluations and the end of a run choose a model, but leave the values of every
    // trainer unchanged.
    const iso_tournament_hyper *hyper;
    int hyper_count;
    // When the optimizer is created, trainer t of T multiplies each value by
    // spread^(2 t / (T - 1) - 1): the first trainer divides it by `spread`, the last multiplies it
    // by `spread`. Limits apply. 0 and 1: values stay as they are; otherwise spread > 0, without a
    // warm-up (ISO_ERR_ARG). With one trainer, values stay, too.
    double spread;
    // A trainer that took a model then multiplies each value by 1 - perturb or 1 + perturb, with
    // equal probability. 0: values stay as they came. 0 <= perturb < 1; PBT uses 0.2. `seed`, the
    // number of the tournament, the trainer and the place in the list determine the choice.
    double perturb;
    // Instead of `perturb`; NULL: none. Changes values[count] of a trainer that took a model.
    // Called on the first rank of the trainer; the other ranks of the trainer get its values.
    // `seed`, the tournament and the trainer determine `random`, so runs repeat. Each value must be
    // finite. If the function fails on any rank, every rank gets an error, and no model and no
    // value changes.
    iso_status (*mutate)(double *values, int count, uint64_t random, void *user);
    // Changes a model that a trainer took, before it trains this model (LBANN: mutation_algo);
    // NULL: none. iso_choice_mutate (isotherm/layers.h) is such a function, for models with a
    // Choice. Called on every rank of the trainer, with the module inside the DataParallel. All of
    // them must make the same change, and only to parameters and buffers. `random` is determined as
    // for `mutate`, but is another draw. If the function fails on any rank, every rank gets an
    // error, and no model and no value changes. ISO_ERR_ARG if the DataParallel synchronises
    // buffers at other times than at evaluation (unless it does not synchronise them at all).
    iso_status (*mutate_model)(iso_module *model, uint64_t random, void *user);
} iso_tournament;

// Local. Lists the numbers `names` ("lr", "momentum", "dampening", "weight_decay", "beta1",
// "beta2", "rho", "alpha", "eps", "lr_decay" or "momentum_decay", separated by ',') of every group
// of parameters of `optimizer`, also through wrappers, with limits that no optimizer refuses: at
// least 0, and at most 0.999 for momentum, dampening, beta1, beta2, rho and alpha. Appends to
// out[room], after the *count entries that it has. The values live as long as the optimizer.
// ISO_ERR_ARG for another name, for a number that this optimizer does not use, and if there is no
// room.
iso_status iso_tournament_list_hyper(iso_optimizer *optimizer, const char *names,
                                     iso_tournament_hyper *out, int room, int *count);

#ifdef __cplusplus
}
#endif
#endif
