// SPDX-License-Identifier: MIT
// What tests of device operations share: every device with each of its element types, and tensors
// that know what they should hold.
#include "common/device_fixture.h"

#include "base/half.h"
#include "common/any_device.h"

#include <math.h>
#include <string.h>

static void on_each_type(iso_device *device, bool low, void (*body)(const target *on)) {
    static const iso_dtype types[] = {ISO_F32, ISO_F64, ISO_BF16, ISO_F16};
    for (int i = 0; i < COUNT(types); i++) {
        if (iso__is_half(types[i]) && !low) continue;
        cr_assert(device->kernels[types[i]], "%s does not compute in %s",
                  iso_device_describe(device), iso_dtype_name(types[i]));
        body(&(target){device, types[i], device->kernels[types[i]]});
    }
}

static void on_targets(bool low, void (*body)(const target *on)) {
    static const char *const sets[] = {"onednn", "cblas", "reference"};
    iso_device *device;
    int tried = 0;
    bool cpu = strcmp(test_device(), "cpu") == 0; // else other builds test it
    for (int i = 0; cpu && i < COUNT(sets); i++) {
        setenv("ISO_CPU_KERNELS", sets[i], 1);
        if (iso_device_create("cpu", &device) != ISO_OK) continue;
        tried++;
        on_each_type(device, low, body);
        iso_device_destroy(&device);
    }
    cr_assert(tried >= 2 || !cpu, "a build has the reference kernels and a library's");
    bool gpu = iso_device_count("cuda") > 0;
    if (!gpu && !cpu) cr_skip_test("there is no GPU");
    if (!gpu) return;
    OK(iso_device_create("cuda", &device));
    on_each_type(device, low, body);
    iso_device_destroy(&device);
}

void on_each_target(void (*body)(const target *on)) { on_targets(false, body); }
void on_each_activation_target(void (*body)(const target *on)) { on_targets(true, body); }

target parameter_target(const target *on) {
    iso_dtype dtype = iso__is_half(on->dtype) ? ISO_F32 : on->dtype;
    return (target){on->device, dtype, on->device->kernels[dtype]};
}

// ---- bf16 ---------------------------------------------------------------------------------------

double bf16_value(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return (double)value;
}

// The one of both neighbours that is nearer, and of two that are as near the even one.
uint16_t bf16_nearest(double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof(bits));
    uint16_t below = (uint16_t)(bits >> 16), above = (uint16_t)(below + 1);
    if (isnan(value)) return 0x7fff;
    if (isinf(narrow)) return below;
    double beyond = isinf(bf16_value(above)) ? copysign(0x1p128, value) : bf16_value(above);
    double down = fabs(value - bf16_value(below)), up = fabs(beyond - value);
    if (down == up) return below % 2 ? above : below;
    return down < up ? below : above;
}

double half_double(iso_dtype half, uint16_t bits) {
    return half == ISO_BF16 ? bf16_value(bits) : (double)iso__of_f16(bits);
}

// A number of f16 is a multiple of 2^-10 of its power of two, which is at least 2^-14.
static uint16_t f16_nearest(double value) {
    int exponent;
    if (isnan(value)) return 0x7e00;
    frexp(value, &exponent); // value < 2^exponent
    double unit = ldexp(1, (exponent - 1 < -14 ? -14 : exponent - 1) - 10);
    double nearest = isinf(value) ? value : nearbyint(value / unit) * unit;
    return (uint16_t)iso__f16_of(fabs(nearest) > 65504 ? copysignf(INFINITY, (float)value)
                                                       : (float)nearest);
}

uint16_t half_nearest(iso_dtype half, double value) {
    return half == ISO_BF16 ? bf16_nearest(value) : f16_nearest(value);
}

// ---- Pairs --------------------------------------------------------------------------------------

static double number(const iso_tensor *t, const void *host, int64_t i) {
    if (iso__is_half(t->dtype)) return half_double(t->dtype, ((const uint16_t *)host)[i]);
    return t->dtype == ISO_F64 ? ((const double *)host)[i] : (double)((const float *)host)[i];
}

static void set_number(const iso_tensor *t, void *host, int64_t i, double value) {
    if (t->dtype == ISO_F64)
        ((double *)host)[i] = value;
    else if (iso__is_half(t->dtype))
        ((uint16_t *)host)[i] = half_nearest(t->dtype, value);
    else
        ((float *)host)[i] = (float)value;
}

pair pair_create(const target *on, int ndim, const int64_t *shape, iso_layout layout, int levels) {
    static uint32_t next_value;
    pair p;
    void *host;
    // On the CPU it has no other.
    if (on->dtype == ISO_F64 && on->device->ops->host_memory) layout = ISO_LAYOUT_LOGICAL;
    OK(iso_tensor_create(on->device, on->dtype, ndim, shape, &p.t));
    OK(iso_tensor_resize(p.t, ndim, shape, layout));
    int64_t count = iso_tensor_count(p.t);
    p.d = calloc((size_t)count, sizeof(double));
    OK(iso_tensor_map(p.t, ISO_WRITE, &host));
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits[4], counter[4] = {next_value++, 0, 0, 0};
        iso__philox(iso__philox_key_make(1, ISO_RNG_TEST, 0), counter, bits);
        // In f64 most of them are no floats.
        double value = (double)roundf((2 * iso__uniform(bits[0]) - 1) * (float)levels) / levels;
        set_number(p.t, host, i, value);
        p.d[i] = number(p.t, host, i);
    }
    OK(iso_tensor_unmap(p.t));
    return p;
}

pair pair_4d(const target *on, int64_t n, int64_t c, int64_t h, int64_t w, iso_layout layout) {
    return pair_create(on, 4, (int64_t[]){n, c, h, w}, layout, 1000);
}
pair pair_2d(const target *on, int64_t n, int64_t k) {
    return pair_create(on, 2, (int64_t[]){n, k}, ISO_LAYOUT_LOGICAL, 1000);
}
pair pair_1d(const target *on, int64_t k) {
    return pair_create(on, 1, &k, ISO_LAYOUT_LOGICAL, 1000);
}

void pair_destroy(pair *p) {
    iso_tensor_destroy(&p->t);
    free(p->d);
}

void zero(pair *p) { memset(p->d, 0, (size_t)iso_tensor_count(p->t) * sizeof(double)); }

void pair_set(pair *p, int64_t i, double value) {
    void *host;
    OK(iso_tensor_map(p->t, ISO_READ_WRITE, &host));
    set_number(p->t, host, i, value);
    p->d[i] = number(p->t, host, i);
    OK(iso_tensor_unmap(p->t));
}

void pair_write(pair *p) {
    void *host;
    OK(iso_tensor_map(p->t, ISO_READ_WRITE, &host));
    for (int64_t i = 0; i < p->t->count; i++) {
        set_number(p->t, host, i, p->d[i]);
        p->d[i] = number(p->t, host, i);
    }
    OK(iso_tensor_unmap(p->t));
}

void pair_read(pair *p) {
    void *host;
    OK(iso_tensor_map(p->t, ISO_READ, &host));
    for (int64_t i = 0; i < p->t->count; i++) p->d[i] = number(p->t, host, i);
    OK(iso_tensor_unmap(p->t));
}

// Channels that only fill a block are zero: as many numbers differ from zero as in logical order.
static void check_padding(iso_device *device, iso_tensor *t, const void *logical) {
    if (t->layout == ISO_LAYOUT_LOGICAL || !device->ops->host_memory) return;
    size_t bytes = device->ops->storage_bytes(device, t->dtype, t->ndim, t->shape, t->layout);
    int64_t stored = 0, wanted = 0, places = (int64_t)(bytes / iso_dtype_size(t->dtype));
    for (int64_t i = 0; i < places; i++) stored += number(t, t->data, i) != 0;
    for (int64_t i = 0; i < t->count; i++) wanted += number(t, logical, i) != 0;
    cr_assert(stored == wanted, "padding of a blocked tensor is not zero");
}

// Half of the last digit, relative to the number.
static double rounding_of(iso_dtype dtype) {
    return dtype == ISO_BF16 ? 0x1p-8 : dtype == ISO_F16 ? 0x1p-11 : 0;
}

void check_pair(const target *on, pair *p, double tolerance, const char *what) {
    void *host;
    OK(iso_tensor_map(p->t, ISO_READ, &host));
    double largest = 1, worst = 0, rounding = rounding_of(p->t->dtype);
    if (on->dtype == ISO_F64) tolerance *= 1e-7;
    tolerance *= 1 + rounding;
    for (int64_t i = 0; i < p->t->count; i++) {
        double got = number(p->t, host, i), error = fabs(got - p->d[i]);
        if (isnan(got) && isnan(p->d[i])) continue;
        double allowed = isinf(p->d[i]) ? 0 : rounding * fabs(p->d[i]);
        error = error > allowed ? error - allowed : isnan(error) ? error : 0;
        largest = fmax(largest, fabs(p->d[i]));
        worst = error > worst || isnan(error) ? error : worst;
    }
    char shape[128];
    cr_assert(worst <= tolerance * largest, "%s of shape %s in %s on %s is wrong by %g of %g", what,
              iso__shape_text(p->t->ndim, p->t->shape, shape, sizeof(shape)),
              iso_dtype_name(p->t->dtype), iso_device_describe(on->device), worst, largest);
    check_padding(on->device, p->t, host);
    OK(iso_tensor_unmap(p->t));
}
