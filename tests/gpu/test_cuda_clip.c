// SPDX-License-Identifier: MIT
// Norms of many arrays on a GPU, and clipping by them, against sums in double precision.
#include "common/balance.h"
#include "common/device_fixture.h"

#include <math.h>
#include <string.h>

TestSuite(cuda_clip, .timeout = 60, .fini = balance_check);

static iso_device *open_cuda(void) {
    iso_device *device;
    if (iso_device_create("cuda", &device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    return device;
}

// More arrays than one launch takes, of both types, small ones and one of several parts; every
// third begins where no vector of numbers may be read.
enum { ARRAYS = 300, LARGE = 100001 };
typedef struct vectors {
    iso_device *device;
    pair p[ARRAYS];
    iso_tensor view[ARRAYS], *x[ARRAYS];
} vectors;

static void open_vectors(vectors *v) {
    v->device = open_cuda();
    for (int i = 0; i < ARRAYS; i++) {
        iso_dtype dtype = i % 5 == 4 ? ISO_F64 : ISO_F32;
        target on = {v->device, dtype, v->device->kernels[dtype]};
        v->p[i] = pair_1d(&on, i == 7 ? LARGE : 2 + i % 37);
        v->view[i] = *v->p[i].t;
        v->x[i] = &v->view[i];
        if (i % 3 > 0) continue;
        v->view[i].data = (char *)v->view[i].data + iso_dtype_size(dtype);
        v->view[i].count--;
    }
}

static void close_vectors(vectors *v) {
    for (int i = 0; i < ARRAYS; i++) pair_destroy(&v->p[i]);
    iso_device_destroy(&v->device);
}

static const double *numbers(const vectors *v, int i) { return v->p[i].d + (i % 3 == 0); }

static double norm_of(const vectors *v, double p) {
    double sum = 0, largest = 0;
    for (int i = 0; i < ARRAYS; i++)
        for (int64_t k = 0; k < v->x[i]->count; k++) {
            double x = fabs(numbers(v, i)[k]);
            sum += pow(x, p);
            if (!(x <= largest)) largest = isnan(largest) ? largest : x;
        }
    return isinf(p) ? largest : pow(sum, 1 / p);
}

static double norm(vectors *v, double p, const double *max_norm) {
    double norm = -1;
    OK(v->device->ops->remote->clip_norm(v->device, ARRAYS, v->x, p, max_norm, &norm));
    return norm;
}

// Every number, times factor and between -most and most, is what arrays hold.
static void expect(vectors *v, double factor, double most, const char *what) {
    for (int i = 0; i < ARRAYS; i++) {
        const double *before = v->p[i].d;
        pair after = {v->p[i].t, malloc((size_t)v->p[i].t->count * sizeof(double))};
        pair_read(&after);
        for (int64_t k = 0; k < v->p[i].t->count; k++) {
            bool outside = i % 3 == 0 && k == 0; // before the view
            double want = outside ? before[k] : fmin(fmax(before[k] * factor, -most), most);
            cr_assert(fabs(after.d[k] - want) <= 1.2e-7 * fabs(want),
                      "%s: number %lld of array %d "
                      "is %.9g, not %.9g",
                      what, (long long)k, i, after.d[k], want);
        }
        free(after.d);
    }
}

Test(cuda_clip, norms_are_those_of_one_long_vector) {
    static const double types[] = {1, 2, 3.5, INFINITY};
    static vectors v;
    open_vectors(&v);
    for (int i = 0; i < COUNT(types); i++) {
        double got = norm(&v, types[i], NULL), want = norm_of(&v, types[i]);
        cr_expect(fabs(got - want) <= 1e-12 * want, "type %g: %.17g, not %.17g", types[i], got,
                  want);
        cr_expect(norm(&v, types[i], NULL) == got, "not the same bits again");
    }
    expect(&v, 1, INFINITY, "nothing was to be clipped");
    close_vectors(&v);
}

Test(cuda_clip, larger_norms_are_brought_down_and_smaller_ones_left) {
    static vectors v;
    open_vectors(&v);
    double whole = norm(&v, 2, NULL), large = 1.01 * whole, small = 0.3 * whole;
    cr_expect(norm(&v, 2, &large) == whole);
    expect(&v, 1, INFINITY, "a norm below the limit");
    cr_expect(norm(&v, 2, &small) == whole, "the norm before");
    expect(&v, small / (whole + 1e-6), INFINITY, "a norm above the limit");
    cr_expect(fabs(norm(&v, 2, NULL) - small) < 1e-6 * whole);
    close_vectors(&v);
}

// Nothing waits, and a later kernel that takes scratch memory comes behind.
Test(cuda_clip, a_norm_that_nobody_asks_for_is_there_on_the_device) {
    static vectors v;
    setenv("ISO_EMULATED_ORDER", "late", 1); // an emulated device then does nothing unless asked
    open_vectors(&v);
    double limit = 0.5, whole = norm_of(&v, 2);
    OK(v.device->ops->remote->clip_norm(v.device, ARRAYS, v.x, 2, &limit, NULL));
    OK(v.device->ops->remote->clip_value(v.device, ARRAYS, v.x, 1e-3));
    expect(&v, limit / (whole + 1e-6), 1e-3, "both ways to clip");
    close_vectors(&v);
}

Test(cuda_clip, what_is_not_finite_is_in_every_norm) {
    static const double types[] = {2, 3, INFINITY};
    static vectors v;
    open_vectors(&v);
    for (int i = 0; i < COUNT(types); i++) {
        pair_set(&v.p[7], LARGE - 3, INFINITY);
        cr_expect(norm(&v, types[i], NULL) == INFINITY, "type %g", types[i]);
        pair_set(&v.p[7], 5, NAN);
        cr_expect(isnan(norm(&v, types[i], NULL)), "type %g", types[i]);
        pair_set(&v.p[7], 5, 0);
    }
    pair_set(&v.p[7], LARGE - 3, NAN);
    OK(v.device->ops->remote->clip_value(v.device, ARRAYS, v.x, 0.5));
    cr_expect(isnan(norm(&v, INFINITY, NULL)), "a NaN stays one");
    close_vectors(&v);
}
