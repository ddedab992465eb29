// SPDX-License-Identifier: MIT
// Reactions to a metric that stops improving: HeAT's detector and PyTorch's ReduceLROnPlateau.
//
// Both take one value of the metric per epoch (or at any interval) and count bad values. They are
// local, deterministic, and plain structs without resources. Pass a metric averaged over ranks, so
// that all ranks get the same answer.
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
    bool max;         // mode: true if larger values are better (PyTorch: "max")
    bool absolute;    // threshold_mode "abs"; false: "rel"
    int64_t patience; // bad values tolerated; the next one makes a plateau
    double threshold;
    int64_t cooldown; // number of values after a plateau that never count as bad
} iso_plateau_config;
extern const iso_plateau_config iso_plateau_default; // the default as an object, for C++
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
void iso_plateau_reset(iso_plateau *plateau); // to the initial state, except last_epoch
// Takes the next value. Returns true if it makes a plateau (HeAT: test_if_improving). NaN is bad.
bool iso_plateau_test(iso_plateau *plateau, double value);
// HeAT's get_state and set_state: settings and counters, for saving and resuming. set_state returns
// ISO_ERR_ARG for a state that no detector can have, and changes nothing.
iso_plateau iso_plateau_get_state(const iso_plateau *plateau);
iso_status iso_plateau_set_state(iso_plateau *plateau, const iso_plateau *state);

// ---- ReduceLROnPlateau (torch.optim.lr_scheduler) -------------------------------------------------

typedef struct iso_optimizer iso_optimizer;

typedef struct iso_lr_plateau_config {
    iso_plateau_config plateau; // mode, threshold_mode, patience, threshold, cooldown
    double factor;              // on a plateau: lr = max(lr * factor, min_lr); 0 <= factor < 1
    double min_lr;
    double eps; // reductions of at most this are ignored
} iso_lr_plateau_config;
extern const iso_lr_plateau_config iso_lr_plateau_default; // the default as an object, for C++
#ifdef __cplusplus
#define ISO_LR_PLATEAU_DEFAULT iso_lr_plateau_default
#else
#define ISO_LR_PLATEAU_DEFAULT                                                                     \
    ((iso_lr_plateau_config){                                                                      \
        .plateau = {.patience = 10, .threshold = 1e-4}, .factor = 0.1, .eps = 1e-8})
#endif
// Detects as iso_plateau does, with one exception, as in PyTorch: "rel" with mode min compares with
// best * (1 - threshold) even if best is negative.
typedef struct iso_lr_plateau {
    iso_plateau detector;
    double factor, min_lr, eps;
} iso_lr_plateau;

// ISO_ERR_ARG if factor is not in [0, 1) or another number is negative.
iso_status iso_lr_plateau_init(iso_lr_plateau *plateau, const iso_lr_plateau_config *config);
void iso_lr_plateau_reset(iso_lr_plateau *plateau); // to the initial state, except last_epoch
// Takes the next value of the metric. On a plateau, reduces the learning rates of all groups of the
// optimizer and returns true. An update already frozen by step() keeps its rate. Do not combine it
// with an iso_schedule, which sets the rates itself; instead apply the two functions below to the
// schedule's lr.
bool iso_lr_plateau_step(iso_lr_plateau *plateau, double metric, iso_optimizer *optimizer);
// The two parts of iso_lr_plateau_step: whether to reduce, and the reduced rate.
bool iso_lr_plateau_test(iso_lr_plateau *plateau, double metric);
double iso_lr_plateau_reduced(const iso_lr_plateau *plateau, double lr);
// PyTorch's state_dict and load_state_dict; see iso_plateau_get_state and iso_plateau_set_state.
iso_lr_plateau iso_lr_plateau_get_state(const iso_lr_plateau *plateau);
iso_status iso_lr_plateau_set_state(iso_lr_plateau *plateau, const iso_lr_plateau *state);

#ifdef __cplusplus
}
#endif
#endif
