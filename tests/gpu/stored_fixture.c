// SPDX-License-Identifier: MIT
// What tests of kernels for several types and layouts share: tensors of the GPU whose memory the
// test lays out itself, and in double precision what they hold or should hold.
#include "gpu/stored_fixture.h"

#include <math.h>
#include <string.h>

target open_gpu(void) {
    target on = {.dtype = ISO_F32};
    if (iso_device_create("cuda", &on.device) != ISO_OK)
        cr_skip_test("no GPU can be used: %s", iso_last_error()->message);
    on.kernels = on.device->kernels[ISO_F32];
    return on;
}

// ---- Numbers ------------------------------------------------------------------------------------

static double get(iso_dtype dtype, const void *host, int64_t i) {
    if (dtype == ISO_F64) return ((const double *)host)[i];
    if (dtype == ISO_F32) return (double)((const float *)host)[i];
    return half_double(dtype, *((const uint16_t *)host + i));
}

static void set(iso_dtype dtype, void *host, int64_t i, double value) {
    if (dtype == ISO_F64) ((double *)host)[i] = value;
    if (dtype == ISO_F32) ((float *)host)[i] = (float)value;
    if (iso__is_half(dtype)) ((uint16_t *)host)[i] = half_nearest(dtype, value);
}

double stored_round(iso_dtype dtype, double x) {
    double room = 0;
    set(dtype, &room, 0, x);
    return get(dtype, &room, 0);
}

// ---- Memory -------------------------------------------------------------------------------------

// Where element i of logical order lies.
static int64_t place(const iso_tensor *t, int64_t i) {
    if (t->layout == ISO_LAYOUT_LOGICAL) return i;
    int64_t channels = t->shape[1], plane = t->shape[2] * t->shape[3];
    int64_t image = i / plane / channels, channel = i / plane % channels;
    return (image * plane + i % plane) * channels + channel;
}

// The elements as they lie in memory, as a tensor of one dimension.
static iso_tensor *flat(const stored *s) {
    iso_tensor *t;
    OK(iso_tensor_borrow(s->t->device, s->t->dtype, 1, &s->t->count, s->t->data, &t));
    return t;
}

static void *host_room(const stored *s) {
    return malloc((size_t)s->t->count * iso_dtype_size(s->t->dtype));
}

void stored_put(stored *s) {
    iso_tensor *t = flat(s);
    void *host = host_room(s);
    for (int64_t i = 0; i < t->count; i++) {
        set(t->dtype, host, place(s->t, i), s->d[i]);
        s->d[i] = get(t->dtype, host, place(s->t, i));
    }
    OK(t->device->ops->from_host(t->device, host, t));
    free(host);
    iso_tensor_destroy(&t);
}

stored stored_create(iso_device *device, storing how, int ndim, const int64_t *shape, int levels) {
    static uint32_t next_value;
    stored s;
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= shape[i];
    size_t size = iso_dtype_size(how.dtype);
    OK(device->ops->alloc(device, ((size_t)count + 16) * size, &s.memory));
    OK(iso_tensor_borrow(device, how.dtype, ndim, shape,
                         (char *)s.memory + (size_t)how.shift * size, &s.t));
    s.t->layout = how.channels_last && ndim == 4 ? ISO_LAYOUT_BLOCKED : ISO_LAYOUT_LOGICAL;
    s.d = calloc((size_t)count, sizeof(double));
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits[4], counter[4] = {next_value++, 1, 0, 0};
        iso__philox(iso__philox_key_make(1, ISO_RNG_TEST, 0), counter, bits);
        s.d[i] = (double)roundf((2 * iso__uniform(bits[0]) - 1) * (float)levels) / levels;
    }
    stored_put(&s);
    return s;
}

stored stored_1d(iso_device *device, iso_dtype dtype, int64_t count) {
    return stored_create(device, (storing){.dtype = dtype}, 1, &count, 1000);
}

void stored_destroy(stored *s) {
    s->t->device->ops->free(s->t->device, s->memory);
    iso_tensor_destroy(&s->t);
    free(s->d);
}

void stored_check(stored *s, double tolerance, const char *what) {
    iso_tensor *t = flat(s);
    void *host = host_room(s);
    OK(t->device->ops->to_host(t->device, t, host));
    // bf16 has 8 significant bits.
    double largest = 1, half_ulp = iso__is_half(t->dtype) && tolerance > 0 ? 0x1p-8 : 0;
    if (t->dtype == ISO_F16) half_ulp /= 8;
    if (t->dtype == ISO_F64) tolerance *= 1e-7;
    for (int64_t i = 0; i < t->count; i++) largest = fmax(largest, fabs(s->d[i]));
    for (int64_t i = 0; i < t->count; i++) {
        double got = get(t->dtype, host, place(s->t, i)), want = s->d[i];
        if (isnan(got) && isnan(want)) continue;
        char shape[128];
        cr_assert(fabs(got - want) <= half_ulp * fabs(want) + tolerance * largest,
                  "%s: element %lld of shape %s, %s%s%s, is %.9g and not %.9g", what, (long long)i,
                  iso__shape_text(s->t->ndim, s->t->shape, shape, sizeof(shape)),
                  iso_dtype_name(t->dtype), s->t->layout ? " channels last" : "",
                  (char *)s->t->data != s->memory ? " unaligned" : "", got, want);
    }
    free(host);
    iso_tensor_destroy(&t);
}
