// SPDX-License-Identifier: MIT
// Outer optimizers of periodic synchronisation. Local SGD replaces the parameters of all ranks by
// their mean. An outer optimizer instead computes the difference between the parameters from which
// the ranks started and this mean, treats it as a gradient, and makes a step with it (SlowMo: Wang
// et al., ICLR 2020; DiLoCo: Douillard et al., 2023).
//
// In the formulas, x are a rank's parameters, m is the mean of what the ranks sent, and a is the
// anchor, i.e. the outer parameters. The anchor starts as the parameters at the start of the
// cycling phase (iso_daso_config), which are equal on all ranks. d = a - m is the outer gradient.
#ifndef ISOTHERM_OUTER_H
#define ISOTHERM_OUTER_H

#include <isotherm/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ISO_OUTER_STATES = 4 };

// A parameter, in host memory. All arrays have `count` elements of one type and do not overlap.
typedef struct iso_outer_span {
    size_t count;
    bool f64;                      // the type: f64, else f32
    void *now;                     // the parameter of this rank, or its f32 master weights
    const void *sent, *mean;       // what this rank sent, and the mean of that; NULL in `send`
    void *state[ISO_OUTER_STATES]; // the first `states` of them; saved and resumed
    int ranks;      // number of ranks (or nodes, where nodes exchange) over which the mean is taken
    int64_t age;    // steps since the send
    int64_t merges; // number of merges of this parameter so far; in `merge`, including this one
    double lr;      // learning rate of the inner optimizer for this parameter in the last step
} iso_outer_span;

// A rule. Its functions are local, must not fail, and must compute the same on every rank from the
// same arguments. All ranks must use the same name and numbers.
typedef struct iso_outer {
    const char *name;
    int states;      // arrays of state. state[0] begins as the anchor, the others as zeros.
    bool replaces;   // merge does not use `now`, except for `mix`
    double lr;       // outer learning rate, > 0
    double momentum; // 0 <= momentum < 1
    double mix;      // 0 to 1: the fraction of its own parameters that a rank keeps. With
                     // iso_outer_pull: the fraction of the way to the anchor that it moves
    double beta2, eps;
    // Writes what the rank sends; it may change now and state. NULL: it sends its parameters.
    void (*send)(const struct iso_outer *outer, const iso_outer_span *span, void *out);
    // Changes now and state.
    void (*merge)(const struct iso_outer *outer, const iso_outer_span *span);
    void *user;                  // for functions of your own
    void (*destroy)(void *user); // called when the optimizer that uses the rule is destroyed, or
                                 // could not be created; NULL: none
} iso_outer;

// Rules with their usual numbers. To change a number, change a copy.

// x = m + mix (x - m). Federated averaging (McMahan et al., AISTATS 2017) if the exchange blocks.
// Unlike ISO_MERGE_PROGRESS it discards what the rank learned since the send. mix 0.
extern const iso_outer iso_outer_mean;
// SGD with momentum, as torch.optim.SGD: u = momentum u + d;  a = a - lr u;  x = a + mix (x - a).
// lr 1, momentum 0.9, mix 0. Also BMUF with classical block momentum (Chen and Huo, ICASSP 2016):
// block_lr = lr.
extern const iso_outer iso_outer_sgd;
// The same with Nesterov momentum: a = a - lr (d + momentum u). DiLoCo: lr 0.7, momentum 0.9, mix
// 0. With mix > 0 and an exchange that does not block: Streaming DiLoCo (Douillard et al., 2025).
extern const iso_outer iso_outer_nesterov;
// SlowMo, with g = span.lr: u = momentum u + d / g;  a = a - lr g u;  x = a + mix (x - a). lr 1,
// momentum 0.5, mix 0. Where g is 0: a = m.
extern const iso_outer iso_outer_slowmo;
// Overlap-Local-SGD (Wang et al., ICASSP 2020). At a send, with g = span.lr: x = x + mix (a - x);
// u = momentum u + (a - x) / g;  the rank sends a - g u. At the merge: a = a + lr (m - a). The
// rank's parameters are pulled towards the anchor, never replaced. mix 0.6, momentum 0.7, lr 1.
// EASGD (Zhang et al., NeurIPS 2015): momentum 0, lr = P mix / (1 - mix) for P ranks. Where g is 0,
// the rank sends x.
extern const iso_outer iso_outer_pull;
// Adam with bias correction on d (FedAdam: Reddi et al., ICLR 2021): lr 0.01, momentum (beta1) 0.9,
// beta2 0.99, eps 1e-3, mix 0.
extern const iso_outer iso_outer_adam;

// "mean", "sgd", "nesterov", "slowmo", "pull", "adam". ISO_ERR_ARG for another name; the message
// lists these.
iso_status iso_outer_parse(const char *name, const iso_outer **out);

#ifdef __cplusplus
}
#endif
#endif
