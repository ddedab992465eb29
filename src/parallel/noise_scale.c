// SPDX-License-Identifier: MIT
// The gradient noise scale, from the norms of the ranks' gradients and of their average.
#include "base/base.h"
#include "parallel/parallel_impl.h"
#include "parallel/reducer/reducer_calls.h"

#include <isotherm/clip.h>
#include <isotherm/noise_scale.h>
#include <math.h>

struct iso_noise_scale {
    iso_module *model; // borrowed
    iso_comm *comm;    // borrowed
    double decay;
    // The moving averages of |G|^2 and tr(S). Both start at 0, which their ratio cancels.
    double average[ISO_NOISE_SCALE_STATE];
    int hook;      // its handle; 0: not between begin and end
    bool measured; // the hook has been called since begin
    double norm;   // of this rank's gradient
};

iso_status iso_noise_scale_create(iso_module *model, double decay, iso_noise_scale **out) {
    iso_reducer *reducer = iso_data_parallel_reducer(model);
    ISO_CHECK(reducer, ISO_ERR_ARG, "a noise scale needs a module of iso_data_parallel");
    iso_comm *comm = iso_data_parallel_comm(model);
    ISO_CHECK(decay >= 0 && decay < 1, ISO_ERR_ARG,
              "a noise scale with decay %g: give a number of at least 0 and below 1", decay);
    ISO_CHECK(iso_comm_size(comm) > 1, ISO_ERR_UNSUPPORTED,
              "a noise scale compares the gradients of ranks: it needs at least 2 ranks");
    ISO_CHECK(iso__reducer_scope(reducer) == ISO_SCOPE_WORLD, ISO_ERR_UNSUPPORTED,
              "a noise scale needs gradients that are averaged over all ranks");
    ISO_CHECK(!iso__reducer_weighs(reducer), ISO_ERR_UNSUPPORTED,
              "a noise scale compares means of gradients, and with by_weight a rank has sums");
    iso_noise_scale *noise;
    ISO_TRY(iso__alloc_zero(sizeof(*noise), (void **)&noise));
    *noise = (iso_noise_scale){.model = model, .comm = comm, .decay = decay};
    *out = noise;
    return ISO_OK;
}

void iso_noise_scale_destroy(iso_noise_scale **noise) {
    if (!noise || !*noise) return;
    if ((*noise)->hook) // which is gone afterwards, whatever it returns
        (void)iso_data_parallel_remove_pre_sync_hook((*noise)->model, (*noise)->hook);
    iso__free(*noise);
    *noise = NULL;
}

double *iso_noise_scale_state(iso_noise_scale *noise) { return noise->average; }

// ---- A step -----------------------------------------------------------------------------------------

static iso_status take_norm(iso_module *model, void *user) {
    iso_noise_scale *noise = user;
    noise->measured = true;
    return iso__local_grad_norm(model, &noise->norm);
}

iso_status iso_noise_scale_begin(iso_noise_scale *noise) {
    ISO_CHECK(!noise->hook, ISO_ERR_STATE,
              "iso_noise_scale_begin was called already: call iso_noise_scale_end first");
    noise->measured = false;
    return iso_data_parallel_add_pre_sync_hook(noise->model, take_norm, noise, &noise->hook);
}

// Removes the hook, also on failure. *average: the norm of the average gradient.
static iso_status end_step(iso_noise_scale *noise, double *average) {
    int hook = noise->hook;
    ISO_CHECK(hook, ISO_ERR_STATE, "iso_noise_scale_end without iso_noise_scale_begin");
    noise->hook = 0;
    ISO_TRY(iso_data_parallel_remove_pre_sync_hook(noise->model, hook));
    ISO_CHECK(noise->measured, ISO_ERR_STATE,
              "iso_noise_scale_end without a synchronised backward after iso_noise_scale_begin");
    return iso_grad_norm(noise->model, 2, average);
}

static void add_estimate(iso_noise_scale *noise, const iso_noise_estimate *e) {
    const double now[ISO_NOISE_SCALE_STATE] = {e->gradient2, e->trace};
    for (int i = 0; i < ISO_NOISE_SCALE_STATE; i++)
        noise->average[i] = noise->decay * noise->average[i] + (1 - noise->decay) * now[i];
}

static double noise_scale_of(const iso_noise_scale *noise) {
    return noise->average[0] > 0 ? noise->average[1] / noise->average[0] : NAN;
}

iso_status iso_noise_scale_end(iso_noise_scale *noise, double samples, iso_noise_estimate *out) {
    double average = NAN, sum[2] = {0, samples};
    ISO_TRY(iso_comm_agree(noise->comm, end_step(noise, &average)));
    sum[0] = noise->norm * noise->norm;
    ISO_TRY(iso_comm_allreduce_f64(noise->comm, sum, 2, ISO_SUM));
    double ranks = iso_comm_size(noise->comm), small = sum[0] / ranks, large = average * average;
    *out = (iso_noise_estimate){.gradient2 = (ranks * large - small) / (ranks - 1),
                                .trace = (small - large) * sum[1] / (ranks - 1)};
    if (isfinite(out->gradient2) && isfinite(out->trace))
        add_estimate(noise, out);
    else
        out->gradient2 = out->trace = NAN;
    out->noise_scale = noise_scale_of(noise);
    return ISO_OK;
}
