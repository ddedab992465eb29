// Reactions to a metric that stops improving: HeAT's detector and PyTorch's ReduceLROnPlateau.
//
// Both take one value of the metric per epoch (or whenever it is known) and count the bad ones.
// They are local and plain values: ranks that give equal metrics get equal answers, so give a
// metric that is averaged over ranks.
#ifndef ISOTHERM_PLATEAU_H
#define ISOTHERM_PLATEAU_H

#include <isotherm/status.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- DetectMetricPlateau (HeAT, heat/optim/utils.py) ----------------------------------------------

typedef struct iso_plateau_config {
    bool max;         // mode: whether the metric should grow; false: fall
    bool absolute;    // threshold_mode "abs"; false: "rel"
    int64_t patience; // bad values that are borne: one more is a plateau
    double threshold;
    int64_t cooldown; // values after a plateau that count as neither good nor bad
} iso_plateau_config;
extern const iso_plateau_config iso_plateau_default; // the same, as C++ takes it
#ifdef __cplusplus
#define ISO_PLATEAU_DEFAULT iso_plateau_default
#else
#define ISO_PLATEAU_DEFAULT ((iso_plateau_config){.patience = 10, .threshold = 1e-4})
#endif
typedef struct iso_plateau {
    iso_plateau_config config;
    double best;
    int64_t bad, cooldown_counter, last_epoch;
} iso_plateau;

// ISO_ERR_ARG for a negative patience, cooldown or threshold.
iso_status iso_plateau_init(iso_plateau *plateau, const iso_plateau_config *config);
void iso_plateau_reset(iso_plateau *plateau); // all but last_epoch
// Takes the next value; true when it makes a plateau (HeAT: test_if_improving). NaN is bad.
bool iso_plateau_test(iso_plateau *plateau, double value);
// HeAT's get_state and set_state: settings and counters, to be saved and to go on from.
// set_state: ISO_ERR_ARG, and nothing is changed, for a state that no detector can have.
iso_plateau iso_plateau_get_state(const iso_plateau *plateau);
iso_status iso_plateau_set_state(iso_plateau *plateau, const iso_plateau *state);

// ---- ReduceLROnPlateau (torch.optim.lr_scheduler) -------------------------------------------------

typedef struct iso_optimizer iso_optimizer;

typedef struct iso_lr_plateau_config {
    iso_plateau_config plateau; // mode, threshold_mode, patience, threshold, cooldown
    double factor;              // lr = max(lr * factor, min_lr) on a plateau; below 1
    double min_lr;
    double eps; // a reduction of no more than this is not made
} iso_lr_plateau_config;
extern const iso_lr_plateau_config iso_lr_plateau_default; // the same, as C++ takes it
#ifdef __cplusplus
#define ISO_LR_PLATEAU_DEFAULT iso_lr_plateau_default
#else
#define ISO_LR_PLATEAU_DEFAULT                                                                     \
    ((iso_lr_plateau_config){                                                                      \
        .plateau = {.patience = 10, .threshold = 1e-4}, .factor = 0.1, .eps = 1e-8})
#endif
// As DetectMetricPlateau, except that, as in PyTorch, "rel" with mode min takes best * (1 -
// threshold) for a negative best too.
typedef struct iso_lr_plateau {
    iso_plateau detector;
    double factor, min_lr, eps;
} iso_lr_plateau;

// ISO_ERR_ARG for a factor that is not from 0 to below 1, or a negative number among the others.
iso_status iso_lr_plateau_init(iso_lr_plateau *plateau, const iso_lr_plateau_config *config);
void iso_lr_plateau_reset(iso_lr_plateau *plateau); // all but last_epoch
// Takes the next value of the metric; on a plateau true, and the learning rates of all groups of
// the optimizer are reduced. What step() has frozen keeps its rate. Not to be combined with an
// iso_schedule that sets the rates; for that use the two functions below on iso_schedule's lr.
bool iso_lr_plateau_step(iso_lr_plateau *plateau, double metric, iso_optimizer *optimizer);
// The two halves of it: whether to reduce, and what a rate is reduced to.
bool iso_lr_plateau_test(iso_lr_plateau *plateau, double metric);
double iso_lr_plateau_reduced(const iso_lr_plateau *plateau, double lr);
// state_dict and load_state_dict; as iso_plateau_get_state and _set_state.
iso_lr_plateau iso_lr_plateau_get_state(const iso_lr_plateau *plateau);
iso_status iso_lr_plateau_set_state(iso_lr_plateau *plateau, const iso_lr_plateau *state);

#ifdef __cplusplus
}
#endif
#endif
