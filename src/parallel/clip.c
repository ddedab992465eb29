// SPDX-License-Identifier: MIT
// Norms of gradients: clipping by them, and comparing them between ranks.
#include "base/base.h"
#include "base/half.h"
#include "device/device_impl.h"
#include "parallel/gradients.h"
#include "parallel/parallel_impl.h"
#include "parallel/reducer/reducer_calls.h"
#include "tensor/element.h"
#include "tensor/tensor_impl.h"

#include <isotherm/clip.h>
#include <math.h>
#include <string.h>

// Independent partial sums, for speed. The assignment of elements to them does not depend on the
// machine.
enum { PARTS = 8 };

// ---- Norms ----------------------------------------------------------------------------------------

typedef struct power_sum {
    double p, part[PARTS], largest;
} power_sum;

static double element_magnitude(const iso_tensor *t, const void *data, int64_t i) {
    return fabs(iso__element_get(t->dtype, data, i));
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

// Once the maximum is NaN, it stays NaN.
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

// The sum of powers over items first to end - 1, or the maximum if p is infinite.
static iso_status add_items(const iso__gradients *g, int first, int end, double p, double *total) {
    power_sum sum = {.p = p};
    for (int i = first; i < end; i++) ISO_TRY(add_gradient(g->item[i], &sum));
    for (int k = 0; k < PARTS; k++) sum.largest += isinf(p) ? 0 : sum.part[k];
    *total = sum.largest;
    return ISO_OK;
}

// The same on a device with its own memory.
static iso_status measure_items(iso_device *device, const iso__gradients *g, int first, int end,
                                double p, double *total) {
    const iso__remote_ops *remote = device->ops->remote;
    *total = 0;
    if (!remote) return add_items(g, first, end, p, total);
    if (first == end) return ISO_OK;
    ISO_TRY(remote->clip_norm(device, end - first, g->item + first, p, NULL, total));
    if (!isinf(p)) *total = p == 2 ? *total * *total : pow(*total, p);
    return ISO_OK;
}

// Combines the totals of all ranks' elements. A NaN travels as a flag, because the maximum of NaN
// and a number is undefined.
static iso_status add_ranks(const iso__gradients *g, double p, iso_status mine, double *total) {
    double nan[2] = {isnan(*total), 0};
    ISO_TRY(iso_comm_agree(g->comm, mine));
    if (!isinf(p)) return iso_comm_allreduce_f64(g->comm, total, 1, ISO_SUM);
    nan[1] = isnan(*total) ? 0 : *total;
    ISO_TRY(iso_comm_allreduce_f64(g->comm, nan, 2, ISO_MAX));
    *total = nan[0] > 0 ? NAN : nan[1];
    return ISO_OK;
}

static iso_status norm_here(iso_device *device, const iso__gradients *g, double p, double *out) {
    double total = 0, shards = 0;
    iso_status status = measure_items(device, g, 0, g->whole, p, &total);
    if (status >= 0) status = measure_items(device, g, g->whole, g->count, p, &shards);
    if (g->comm) status = add_ranks(g, p, status, &shards);
    ISO_TRY(status);
    if (isinf(p))
        *out = isnan(shards) || shards > total ? shards : total;
    else
        *out = p == 2 ? sqrt(total + shards) : pow(total + shards, 1 / p);
    return ISO_OK;
}

// ---- Clipping -------------------------------------------------------------------------------------

// In the host's memory, which has no kernels that scale 16-bit tensors.
static void scale_half(iso_tensor *t, float factor) {
    uint16_t *x = t->data;
    for (int64_t i = 0; i < t->count; i++)
        x[i] = (uint16_t)(t->dtype == ISO_BF16 ? iso__bf16_of(iso__of_bf16(x[i]) * factor)
                                               : iso__f16_of(iso__of_f16(x[i]) * factor));
}

static iso_status scale_gradient(iso_tensor *t, double factor) {
    if (!iso__is_half(t->dtype) || !t->device->ops->host_memory)
        return iso__kernels(t)->scale(t->device, t->count, factor, t->data);
    scale_half(t, (float)factor);
    return ISO_OK;
}

static iso_status clip_here(iso_device *device, const iso__gradients *g, double p,
                            const double *max_norm, double *out) {
    double norm = 0;
    ISO_TRY(norm_here(device, g, p, &norm));
    double factor = max_norm ? *max_norm / (norm + 1e-6) : 1;
    for (int i = 0; i < g->count && !(factor >= 1); i++)
        ISO_TRY(scale_gradient(g->item[i], factor));
    if (out) *out = norm;
    return ISO_OK;
}

// max_norm NULL: only computes the norm. norm NULL: the caller does not need it. Frees *g.
static iso_status clip_all(iso_device *device, iso__gradients *g, double p, const double *max_norm,
                           double *norm) {
    const iso__remote_ops *remote = device->ops->remote;
    bool alone = remote && !g->comm; // with ZeRO each rank has a part
    iso_status status = alone ? remote->clip_norm(device, g->count, g->item, p, max_norm, norm)
                              : clip_here(device, g, p, max_norm, norm);
    iso__gradients_free(g);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__local_grad_norm(iso_module *data_parallel, double *out) {
    iso__gradients g;
    ISO_TRY(iso__gradients_of(data_parallel, true, &g));
    return clip_all(data_parallel->device, &g, 2, NULL, out);
}

static iso_status check_type(double p) {
    ISO_CHECK(p > 0, ISO_ERR_ARG, "a norm of gradients of type %g: give a number above 0", p);
    return ISO_OK;
}

static iso_status check_most(double max_norm) {
    ISO_CHECK(max_norm >= 0, ISO_ERR_ARG,
              "gradients cannot be clipped to a norm of %g: give a number of at least 0", max_norm);
    return ISO_OK;
}

static iso_status clip_to_norm(iso_module *module, double p, const double *max_norm, double *norm) {
    iso__gradients g;
    ISO_TRY(check_type(p));
    ISO_TRY(iso__gradients_of(module, false, &g));
    return clip_all(module->device, &g, p, max_norm, norm);
}

iso_status iso_grad_norm(iso_module *module, double norm_type, double *out) {
    return clip_to_norm(module, norm_type, NULL, out);
}

iso_status iso_clip_grad_norm(iso_module *module, double max_norm, double norm_type,
                              double *total_norm) {
    ISO_TRY(check_most(max_norm));
    return clip_to_norm(module, norm_type, &max_norm, total_norm);
}

static iso_status clip_arrays(iso_reducer *r, double p, const double *max_norm, double *norm) {
    iso_device *device;
    iso__gradients g;
    ISO_TRY(check_type(p));
    ISO_TRY(iso__reducer_device(r, &device));
    ISO_TRY(iso__gradients_of_arrays(r, device, &g));
    return clip_all(device, &g, p, max_norm, norm);
}

iso_status iso_reducer_grad_norm(iso_reducer *r, double norm_type, double *out) {
    return clip_arrays(r, norm_type, NULL, out);
}

iso_status iso_reducer_clip_grad_norm(iso_reducer *r, double max_norm, double norm_type,
                                      double *total_norm) {
    ISO_TRY(check_most(max_norm));
    return clip_arrays(r, norm_type, &max_norm, total_norm);
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
    iso__gradients g;
    ISO_TRY(iso__gradients_of(module, false, &g));
    iso_status status = ISO_OK;
    if (remote) status = remote->clip_value(module->device, g.count, g.item, clip_value);
    for (int i = 0; i < g.count && !remote && status == ISO_OK; i++)
        status = clamp_tensor(g.item[i], clip_value);
    iso__gradients_free(&g);
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso_grads_scale(iso_module *module, double factor) {
    iso__gradients g;
    ISO_TRY(iso__gradients_of(module, false, &g));
    iso_status status = ISO_OK;
    for (int i = 0; i < g.count && status == ISO_OK; i++)
        status = iso_tensor_scale(g.item[i], factor);
    iso__gradients_free(&g);
    ISO_TRY(status);
    return ISO_OK;
}

// ---- Between ranks --------------------------------------------------------------------------------

// norm: the largest magnitude of a gradient. mine: the status of its computation.
static iso_status agree_finite(iso_comm *comm, iso_status mine, const double *norm, bool *finite) {
    ISO_TRY(iso_comm_agree(comm, mine));
    int64_t bad = !isfinite(*norm);
    ISO_TRY(iso_comm_allreduce_i64(comm, &bad, 1, ISO_MAX));
    *finite = bad == 0;
    return ISO_OK;
}

iso_status iso_grads_finite(iso_module *module, iso_comm *comm, bool *finite) {
    double norm = NAN;
    iso_status status = iso_grad_norm(module, INFINITY, &norm);
    return agree_finite(comm, status, &norm, finite);
}

iso_status iso_reducer_grads_finite(iso_reducer *r, bool *finite) {
    double norm = NAN;
    iso_status status = iso_reducer_grad_norm(r, INFINITY, &norm);
    return agree_finite(iso__reducer_comm(r), status, &norm, finite);
}

// The last parameter with a NaN or infinite gradient: backward reaches it first. -1: none.
static iso_status find_last(const iso__gradients *g, int64_t *last) {
    *last = -1;
    for (int i = 0; i < g->count; i++) {
        double largest;
        ISO_TRY(add_items(g, i, i + 1, INFINITY, &largest));
        if (!isfinite(largest) && g->parameter[i] > *last) *last = g->parameter[i];
    }
    return ISO_OK;
}

static iso_status name_last(const iso__gradients *g, iso_comm *comm, char **name) {
    int64_t last = -1;
    ISO_TRY(iso_comm_agree(comm, find_last(g, &last)));
    ISO_TRY(iso_comm_allreduce_i64(comm, &last, 1, ISO_MAX));
    return last < 0 ? ISO_OK : iso__strdup(g->list.name[last], name);
}

iso_status iso_grads_find_nonfinite(iso_module *module, iso_comm *comm, char **name) {
    iso__gradients g;
    *name = NULL;
    iso_status status = iso_comm_agree(comm, iso__gradients_of(module, false, &g));
    if (status >= 0) status = name_last(&g, comm, name);
    iso__gradients_free(&g);
    ISO_TRY(status);
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
