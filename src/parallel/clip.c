// SPDX-License-Identifier: MIT
// Norms of gradients: clipping by them, and comparing them between ranks.
#include "base/base.h"
#include "device/device_impl.h"

#include <isotherm/clip.h>
#include <math.h>
#include <string.h>

// Sums that do not wait for one another; which element goes into which does not depend on the
// machine.
enum { PARTS = 8 };

// ---- Every gradient -------------------------------------------------------------------------------

// Of one device.
typedef struct gradients {
    int count;
    iso_tensor **item;
} gradients;

static iso_status take_gradients(const iso_parameter_list *list, gradients *out) {
    for (int i = 0; i < list->count; i++) {
        if (!list->item[i]->requires_grad) continue;
        // Completes what is pending.
        ISO_TRY(iso_parameter_grad(list->item[i], &out->item[out->count]));
        out->count++;
    }
    return ISO_OK;
}

// To be freed: item.
static iso_status gradients_of(iso_module *module, gradients *out) {
    iso_parameter_list list;
    ISO_TRY(iso_module_parameters(module, &list));
    *out = (gradients){0};
    size_t most = (size_t)list.count + 1;
    iso_status status = iso__alloc_zero(most * sizeof(*out->item), (void **)&out->item);
    if (status == ISO_OK) status = take_gradients(&list, out);
    iso_parameter_list_destroy(&list);
    if (status < 0) iso__free(out->item);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Norms ----------------------------------------------------------------------------------------

typedef struct power_sum {
    double p, part[PARTS], largest;
} power_sum;

static double element_magnitude(const iso_tensor *t, const void *data, int64_t i) {
    return fabs(t->dtype == ISO_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i]);
}

static void add_squares(power_sum *s, int64_t count, const float *x) {
    int64_t whole = count / PARTS * PARTS;
    for (int64_t i = 0; i < whole; i += PARTS)
        for (int k = 0; k < PARTS; k++) s->part[k] += (double)x[i + k] * (double)x[i + k];
    for (int64_t i = whole; i < count; i++) s->part[i - whole] += (double)x[i] * (double)x[i];
}

static void add_powers(power_sum *s, const iso_tensor *t, const void *data) {
    for (int64_t i = 0; i < t->count; i++) {
        double x = element_magnitude(t, data, i);
        s->part[i % PARTS] += s->p == 2 ? x * x : pow(x, s->p);
    }
}

// A NaN stays the largest.
static void note_largest(power_sum *s, const iso_tensor *t, const void *data) {
    for (int64_t i = 0; i < t->count; i++) {
        double x = element_magnitude(t, data, i);
        if (!(x <= s->largest)) s->largest = isnan(s->largest) ? s->largest : x;
    }
}

static iso_status add_gradient(iso_tensor *t, power_sum *s) {
    void *data;
    ISO_TRY(iso_tensor_map(t, ISO_READ, &data));
    if (isinf(s->p))
        note_largest(s, t, data);
    else if (s->p == 2 && t->dtype == ISO_F32)
        add_squares(s, t->count, data);
    else
        add_powers(s, t, data);
    return iso_tensor_unmap(t);
}

static iso_status norm_here(const gradients *g, double p, double *out) {
    power_sum sum = {.p = p};
    double total = 0;
    for (int i = 0; i < g->count; i++) ISO_TRY(add_gradient(g->item[i], &sum));
    for (int k = 0; k < PARTS; k++) total += sum.part[k];
    *out = isinf(p) ? sum.largest : p == 2 ? sqrt(total) : pow(total, 1 / p);
    return ISO_OK;
}

// ---- Clipping -------------------------------------------------------------------------------------

static iso_status clip_here(const gradients *g, double p, const double *max_norm, double *out) {
    double norm = 0;
    ISO_TRY(norm_here(g, p, &norm));
    double factor = max_norm ? *max_norm / (norm + 1e-6) : 1;
    for (int i = 0; i < g->count && !(factor >= 1); i++) {
        iso_tensor *t = g->item[i];
        ISO_TRY(iso__kernels(t)->scale(t->device, t->count, factor, t->data));
    }
    if (out) *out = norm;
    return ISO_OK;
}

// max_norm NULL: the norm alone. norm NULL: it is not wanted.
static iso_status clip_to_norm(iso_module *module, double p, const double *max_norm, double *norm) {
    const iso__remote_ops *remote = module->device->ops->remote;
    gradients g;
    ISO_CHECK(p > 0, ISO_ERR_ARG, "a norm of gradients of type %g: give a number above 0", p);
    ISO_TRY(gradients_of(module, &g));
    iso_status status = remote
                            ? remote->clip_norm(module->device, g.count, g.item, p, max_norm, norm)
                            : clip_here(&g, p, max_norm, norm);
    iso__free(g.item);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_grad_norm(iso_module *module, double norm_type, double *out) {
    return clip_to_norm(module, norm_type, NULL, out);
}

iso_status iso_clip_grad_norm(iso_module *module, double max_norm, double norm_type,
                              double *total_norm) {
    ISO_CHECK(max_norm >= 0, ISO_ERR_ARG,
              "gradients cannot be clipped to a norm of %g: give a number of at least 0", max_norm);
    return clip_to_norm(module, norm_type, &max_norm, total_norm);
}

static iso_status clamp_tensor(iso_tensor *t, double most) {
    void *data;
    ISO_TRY(iso_tensor_map(t, ISO_READ_WRITE, &data));
    float *f = data, limit = (float)most;
    double *d = data;
    for (int64_t i = 0; t->dtype == ISO_F64 && i < t->count; i++)
        d[i] = d[i] > most ? most : d[i] < -most ? -most : d[i];
    for (int64_t i = 0; t->dtype != ISO_F64 && i < t->count; i++)
        f[i] = f[i] > limit ? limit : f[i] < -limit ? -limit : f[i];
    return iso_tensor_unmap(t);
}

iso_status iso_clip_grad_value(iso_module *module, double clip_value) {
    ISO_CHECK(clip_value >= 0, ISO_ERR_ARG,
              "gradients cannot be clipped to values of %g: give a number of at least 0",
              clip_value);
    const iso__remote_ops *remote = module->device->ops->remote;
    gradients g;
    ISO_TRY(gradients_of(module, &g));
    iso_status status = ISO_OK;
    if (remote) status = remote->clip_value(module->device, g.count, g.item, clip_value);
    for (int i = 0; i < g.count && !remote && status == ISO_OK; i++)
        status = clamp_tensor(g.item[i], clip_value);
    iso__free(g.item);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Between ranks --------------------------------------------------------------------------------

iso_status iso_grads_finite(iso_module *module, iso_comm *comm, bool *finite) {
    double norm = NAN;
    ISO_TRY(iso_comm_agree(comm, iso_grad_norm(module, INFINITY, &norm)));
    int64_t bad = !isfinite(norm);
    ISO_TRY(iso_comm_allreduce_i64(comm, &bad, 1, ISO_MAX));
    *finite = bad == 0;
    return ISO_OK;
}

iso_status iso_grad_norm_check(iso_module *module, iso_comm *comm) {
    double norm = NAN;
    ISO_TRY(iso_comm_agree(comm, iso_grad_norm(module, 2, &norm)));
    double first = norm;
    ISO_TRY(iso_comm_bcast(comm, &first, sizeof(first), 0));
    int rank = iso_comm_rank(comm), ranks = iso_comm_size(comm);
    bool odd = memcmp(&first, &norm, sizeof(norm)) != 0;
    double lowest[2] = {odd ? rank : ranks, 0};
    ISO_TRY(iso_comm_allreduce_f64(comm, lowest, 1, ISO_MIN));
    if (lowest[0] >= ranks) return ISO_OK;
    lowest[1] = norm;
    ISO_TRY(iso_comm_bcast(comm, &lowest[1], sizeof(double), (int)lowest[0]));
    return ISO_FAIL(ISO_ERR_MISMATCH,
                    "the gradients of rank %d have norm %.17g and those of rank 0 %.17g: averages "
                    "must be the same on all ranks",
                    (int)lowest[0], lowest[1], first);
}
