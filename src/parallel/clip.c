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

typedef struct visit {
    iso_status (*see)(iso_tensor *gradient, void *user);
    void *user;
} visit;

static iso_status see_all(const iso_parameter_list *list, const visit *v) {
    for (int i = 0; i < list->count; i++) {
        iso_tensor *gradient;
        if (!list->item[i]->requires_grad) continue;
        ISO_TRY(iso_parameter_grad(list->item[i], &gradient)); // completes what is pending
        ISO_TRY(v->see(gradient, v->user));
    }
    return ISO_OK;
}

static iso_status each_gradient(iso_module *module, const visit *v) {
    iso_parameter_list list;
    ISO_TRY(iso_module_parameters(module, &list));
    iso_status status = see_all(&list, v);
    iso_parameter_list_destroy(&list);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Norms ----------------------------------------------------------------------------------------

typedef struct power_sum {
    double p, part[PARTS], largest;
} power_sum;

static double element(const iso_tensor *t, const void *data, int64_t i) {
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
        double x = element(t, data, i);
        s->part[i % PARTS] += s->p == 2 ? x * x : pow(x, s->p);
    }
}

// A NaN stays the largest.
static void note_largest(power_sum *s, const iso_tensor *t, const void *data) {
    for (int64_t i = 0; i < t->count; i++) {
        double x = element(t, data, i);
        if (!(x <= s->largest)) s->largest = isnan(s->largest) ? s->largest : x;
    }
}

static iso_status add_gradient(iso_tensor *t, void *user) {
    power_sum *s = user;
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

iso_status iso_grad_norm(iso_module *module, double norm_type, double *out) {
    ISO_CHECK(norm_type > 0, ISO_ERR_ARG, "a norm of gradients of type %g: give a number above 0",
              norm_type);
    power_sum sum = {.p = norm_type};
    double total = 0;
    ISO_TRY(each_gradient(module, &(visit){add_gradient, &sum}));
    for (int k = 0; k < PARTS; k++) total += sum.part[k];
    *out = isinf(norm_type) ? sum.largest
           : norm_type == 2 ? sqrt(total)
                            : pow(total, 1 / norm_type);
    return ISO_OK;
}

// ---- Clipping -------------------------------------------------------------------------------------

static iso_status scale(iso_tensor *t, void *factor) {
    return iso__kernels(t)->scale(t->device, t->count, *(double *)factor, t->data);
}

iso_status iso_clip_grad_norm(iso_module *module, double max_norm, double norm_type,
                              double *total_norm) {
    double norm;
    ISO_CHECK(max_norm >= 0, ISO_ERR_ARG,
              "gradients cannot be clipped to a norm of %g: give a number of at least 0", max_norm);
    ISO_TRY(iso_grad_norm(module, norm_type, &norm));
    double factor = max_norm / (norm + 1e-6);
    if (!(factor >= 1)) ISO_TRY(each_gradient(module, &(visit){scale, &factor}));
    if (total_norm) *total_norm = norm;
    return ISO_OK;
}

static iso_status clamp(iso_tensor *t, void *user) {
    double most = *(double *)user;
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
    return each_gradient(module, &(visit){clamp, &clip_value});
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
