// SPDX-License-Identifier: MIT
// Policies of DASO: choose the period and the wait from observations.
#include "optim/periodic/sync_plan.h"
#include "optim/plateau_impl.h"

#include <math.h>
#include <string.h>

// ---- Plateau --------------------------------------------------------------------------------------

enum { SKIP_REDUCTION_FACTOR = 2, LOCAL_SKIP_FACTOR = 4 };

// As in HeAT, the detector sees only losses of the cycling phase, which includes the last epoch of
// warm-up.
static bool is_cycling(const iso_daso_config *config, int64_t step) {
    int64_t warmup, cooldown;
    iso__daso_phases(config, &warmup, &cooldown);
    return step >= warmup && step < config->total_steps - cooldown;
}

// The shortest period for this wait. An automatic one leaves steps between merge and next send.
static int64_t least_skip(const iso_daso_config *config, int64_t wait) {
    int64_t spaced = iso__smaller(iso__daso_skip_for(wait), config->max_global_skip);
    return iso__larger(iso__larger(wait, config->global_skip < 0 ? spaced : 0), 1);
}

static bool decide_by_plateau(iso__policy_state *s, const iso_daso_config *config,
                              const iso_daso_observation *observed, iso_daso_decision *out) {
    if (observed->kind != ISO_OBSERVED_EPOCH || !is_cycling(config, observed->step)) return false;
    if (!iso_plateau_test(&s->plateau, observed->loss)) return false;
    iso_daso_decision before = *out;
    bool waits = config->batches_to_wait > 0; // neither blocking nor measured
    if (waits) out->batches_to_wait = iso__larger(out->batches_to_wait - 1, 1);
    int64_t least = least_skip(config, out->batches_to_wait);
    out->global_skip = iso__larger(out->global_skip / SKIP_REDUCTION_FACTOR, least);
    out->local_skip = iso__larger(out->local_skip / SKIP_REDUCTION_FACTOR, 1);
    if (before.global_skip <= least) { // nothing left to halve
        if (waits)
            out->batches_to_wait = iso__larger(config->max_global_skip / LOCAL_SKIP_FACTOR, 1);
        out->global_skip = iso__larger(config->max_global_skip, out->batches_to_wait);
        out->local_skip = config->local_skip;
    }
    if (out->global_skip == before.global_skip && out->local_skip == before.local_skip &&
        out->batches_to_wait == before.batches_to_wait)
        return false;
    snprintf(out->reason, sizeof(out->reason), "epoch loss %.4g on a plateau: wait %lld, skip %lld",
             observed->loss, (long long)out->batches_to_wait, (long long)out->global_skip);
    return true;
}

// ---- Adaptive -------------------------------------------------------------------------------------

#define NEW_VALUE  0.3 // its weight in what is smoothed
#define AIM        0.8 // of the bound, when skip shrinks
#define WELL_UNDER 0.5 // the bound: skip may grow by a half
enum { SETTLING = 3, TELLING = 2 };

static double smooth_value(double smoothed, double value) {
    if (!isfinite(value) || value <= 0) return smoothed;
    return smoothed > 0 ? smoothed + NEW_VALUE * (value - smoothed) : value;
}

static void take_observation(iso__policy_state *s, const iso_daso_observation *observed) {
    double divergence = observed->divergence;
    s->exchange_ms = smooth_value(s->exchange_ms, observed->exchange_ms);
    s->step_ms = smooth_value(s->step_ms, observed->step_ms);
    if (s->settling > 0) {
        s->settling--;
    } else if (isfinite(divergence) && divergence > 0) {
        s->observed++; // the first few values weigh the same, so that none dominates
        s->divergence += fmax(NEW_VALUE, 1 / (double)s->observed) * (divergence - s->divergence);
    }
}

static int64_t fitting_wait(const iso__policy_state *s, const iso_daso_config *config,
                            int64_t wait) {
    if (wait == 0 || s->exchange_ms <= 0 || s->step_ms <= 0) return wait;
    int64_t needed =
        iso__smaller(iso__daso_wait_for(s->exchange_ms, s->step_ms), config->max_global_skip);
    bool too_short = needed > wait, too_long = wait - needed > 1 + wait / 8;
    return too_short || too_long ? needed : wait;
}

static int64_t fitting_skip(const iso__policy_state *s, const iso_daso_config *config,
                            int64_t skip) {
    double bound = config->max_divergence;
    int64_t half = skip / 2 + skip % 2;
    if (s->observed < TELLING) return skip;
    if (s->divergence > bound) return (int64_t)((double)skip * AIM * bound / s->divergence);
    if (s->divergence >= WELL_UNDER * bound) return skip;
    return skip > config->max_global_skip - half ? config->max_global_skip : skip + half;
}

static void tell_reason(const iso__policy_state *s, const iso_daso_config *config, bool times,
                        bool drift, iso_daso_decision *out) {
    char *reason = out->reason;
    size_t room = sizeof(out->reason), used = 0; // three digits each: no sentence fills it
    if (times)
        used += (size_t)snprintf(reason, room, "exchange %.3g ms, step %.3g ms", s->exchange_ms,
                                 s->step_ms);
    if (drift)
        used += (size_t)snprintf(reason + used, room - used, "%sdivergence %.3g of at most %.3g",
                                 times ? ", " : "", s->divergence, config->max_divergence);
    if (used == 0) used += (size_t)snprintf(reason, room, "skip below 1.5 times the wait");
    snprintf(reason + used, room - used, ": wait %lld, skip %lld", (long long)out->batches_to_wait,
             (long long)out->global_skip);
}

static bool decide_by_measure(iso__policy_state *s, const iso_daso_config *config,
                              const iso_daso_observation *observed, iso_daso_decision *out) {
    if (observed->kind != ISO_OBSERVED_SYNC) return false;
    take_observation(s, observed);
    int64_t wait = fitting_wait(s, config, out->batches_to_wait);
    int64_t wanted = fitting_skip(s, config, out->global_skip);
    int64_t least = iso__larger(iso__daso_skip_for(wait), 1);
    int64_t skip = iso__smaller(iso__larger(wanted, least), config->max_global_skip);
    bool times = wait != out->batches_to_wait, skip_changed = skip != out->global_skip;
    bool drift = skip_changed && wanted != out->global_skip;
    if (!times && !skip_changed) return false;
    out->batches_to_wait = wait;
    out->global_skip = skip;
    tell_reason(s, config, times, drift, out);
    if (!skip_changed) return true;
    s->settling = SETTLING;
    s->observed = 0;
    return true;
}

// ---- Rules of the literature ----------------------------------------------------------------------

static bool change_skip(const iso_daso_config *config, double wanted, iso_daso_decision *out) {
    int64_t most = config->max_global_skip, before = out->global_skip;
    int64_t skip = wanted < (double)most ? (int64_t)wanted : most; // NaN: most
    out->global_skip = iso__larger(skip, least_skip(config, out->batches_to_wait));
    return out->global_skip != before;
}

static double base_skip(const iso_daso_config *config) {
    return (double)(config->global_skip > 0 ? config->global_skip : ISO_DASO_AUTO_SKIP);
}

static bool decide_by_qsr(const iso_daso_config *config, const iso_daso_observation *observed,
                          iso_daso_decision *out) {
    double ratio = config->qsr_alpha / observed->lr;
    if (observed->kind != ISO_OBSERVED_SYNC) return false;
    if (!change_skip(config, fmax(base_skip(config), floor(ratio * ratio)), out)) return false;
    snprintf(out->reason, sizeof(out->reason), "learning rate %.4g: skip %lld", observed->lr,
             (long long)out->global_skip);
    return true;
}

static bool decide_by_adacomm(iso__policy_state *s, const iso_daso_config *config,
                              const iso_daso_observation *observed, iso_daso_decision *out) {
    if (observed->kind != ISO_OBSERVED_EPOCH || !is_cycling(config, observed->step)) return false;
    if (!(observed->loss > 0 && observed->lr > 0)) return false;
    if (s->first_loss <= 0) {
        s->first_loss = observed->loss;
        s->first_lr = observed->lr;
    }
    double share = s->first_lr * observed->loss / (observed->lr * s->first_loss);
    if (!change_skip(config, ceil(base_skip(config) * sqrt(share) * (1 - 1e-12)), out))
        return false;
    snprintf(out->reason, sizeof(out->reason),
             "epoch loss %.4g of %.4g, learning rate %.3g of %.3g: skip %lld", observed->loss,
             s->first_loss, observed->lr, s->first_lr, (long long)out->global_skip);
    return true;
}

// ---- What the config names ------------------------------------------------------------------------

void iso__policy_init(iso__policy_state *s, const iso_daso_config *config) {
    memset(s, 0, sizeof(*s));
    iso__plateau_of_loss(&s->plateau, config->stability_level);
}

bool iso__policy_decide(iso__policy_state *s, const iso_daso_config *config,
                        const iso_daso_observation *observed, iso_daso_decision *out) {
    switch (config->policy) {
    case ISO_POLICY_PLATEAU: return decide_by_plateau(s, config, observed, out);
    case ISO_POLICY_ADAPTIVE: return decide_by_measure(s, config, observed, out);
    case ISO_POLICY_QSR: return decide_by_qsr(config, observed, out);
    case ISO_POLICY_ADACOMM: return decide_by_adacomm(s, config, observed, out);
    case ISO_POLICY_FIXED:
    case ISO_POLICY_CALLBACK: break;
    }
    return false;
}
