// SPDX-License-Identifier: MIT
// Opens a device by name, and counts references.
#include "device/device_impl.h"

#include <config.h>
#include <string.h>

// Backends, listed once. create NULL: known, but not part of this build.
static const struct {
    const char *name, *missing;
    iso_status (*create)(const char *text, iso_device **out);
    int (*count)(void);
    iso__env first, last; // the variables of the environment that it reads
} backends[] = {
    {"cpu", NULL, iso__device_create_cpu, iso__device_count_cpu, ISO_ENV_CPU_KERNELS,
     ISO_ENV_CPU_KERNELS},
#ifdef ISO_HAVE_CUDA
    {"cuda", NULL, iso__device_create_cuda, iso__device_count_cuda, ISO_ENV_CUDA_CONV,
     ISO_ENV_CUDA_GRAPHS},
#else
    {"cuda", "CUDA", NULL, NULL, ISO_ENV_CUDA_CONV, ISO_ENV_CUDA_GRAPHS},
#endif
};
#define BACKEND_COUNT (sizeof(backends) / sizeof(backends[0]))

// Checks only this device's variables. iso_comm_create checks the others, so that all ranks fail
// together: an error here, on one rank alone, would leave the others waiting there.
static iso_status check_environment(iso__env first, iso__env last) {
    for (int i = (int)first; i <= (int)last; i++) ISO_TRY(iso__env_check((iso__env)i));
    return ISO_OK;
}

iso_status iso_device_create(const char *name, iso_device **out) {
    for (size_t i = 0; name && i < BACKEND_COUNT; i++) {
        size_t length = strlen(backends[i].name);
        if (strncmp(name, backends[i].name, length) != 0) continue;
        if (name[length] && (name[length] != ':' || !name[length + 1])) continue;
        ISO_CHECK(backends[i].create, ISO_ERR_UNSUPPORTED,
                  "device %s: this build has no %s: use device cpu, or install a build that has it",
                  name, backends[i].missing);
        ISO_TRY(check_environment(backends[i].first, backends[i].last));
        ISO_TRY(backends[i].create(name + length + (name[length] != 0), out));
        return ISO_OK;
    }
    char known[96] = "";
    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        if (i > 0) strcat(known, ", ");
        strcat(known, backends[i].name);
        if (!backends[i].create) strcat(known, " (not in this build)");
    }
    return ISO_FAIL(ISO_ERR_ARG, "unknown device \"%s\": known devices are %s", name ? name : "",
                    known);
}

int iso_device_count(const char *kind) {
    for (size_t i = 0; kind && i < BACKEND_COUNT; i++)
        if (strcmp(kind, backends[i].name) == 0) return backends[i].count ? backends[i].count() : 0;
    return 0;
}

// Counted atomically: a loader's thread holds devices and tensors too.
iso_device *iso_device_retain(iso_device *device) {
    __atomic_add_fetch(&device->references, 1, __ATOMIC_RELAXED);
    return device;
}

void iso_device_destroy(iso_device **device) {
    iso_device *self = *device;
    *device = NULL;
    if (self && __atomic_sub_fetch(&self->references, 1, __ATOMIC_ACQ_REL) == 0)
        self->ops->destroy(self);
}

iso_status iso_device_set_threads(iso_device *device, int n) {
    ISO_CHECK(n >= 1, ISO_ERR_ARG, "a device cannot run on %d threads: give 1 or more", n);
    ISO_TRY(device->ops->set_threads(device, n));
    return ISO_OK;
}

iso_status iso_device_set_math(iso_device *device, const char *name) {
    static const char *const known[] = {"f32", "tf32", "bf16"};
    bool found = false;
    for (int i = 0; name && i < 3; i++) found = found || strcmp(name, known[i]) == 0;
    ISO_CHECK(found, ISO_ERR_ARG, "unknown math \"%s\": use f32, tf32 or bf16", name ? name : "");
    ISO_TRY(device->ops->set_math(device, name));
    return ISO_OK;
}

iso_status iso__device_check_dtype(const iso_device *device, iso_dtype dtype) {
    ISO_CHECK(device->kernels[dtype], ISO_ERR_UNSUPPORTED,
              "the %s device does not compute in %s: use f32 or f64", iso_device_name(device),
              iso_dtype_name(dtype));
    return ISO_OK;
}

static iso_tensor array_of(iso_device *device, int64_t count, iso_dtype dtype, void *data) {
    return (iso_tensor){.device = device,
                        .references = 1,
                        .dtype = dtype,
                        .layout = ISO_LAYOUT_LOGICAL,
                        .ndim = 1,
                        .shape = {count},
                        .count = count,
                        .data = data};
}

iso_status iso__device_convert(iso_device *device, int64_t count, iso_dtype from_dtype,
                               const void *from, iso_dtype to_dtype, void *to) {
    iso_tensor x = array_of(device, count, from_dtype, (void *)(uintptr_t)from);
    iso_tensor y = array_of(device, count, to_dtype, to);
    if (count == 0) return ISO_OK;
    return device->ops->copy(device, &x, &y);
}

iso_status iso_device_tune(iso_device *device, bool on) {
    if (device->ops->tune) ISO_TRY(device->ops->tune(device, on));
    return ISO_OK;
}

const void *iso_device_choices(iso_device *device, size_t *bytes) {
    *bytes = 0;
    return device->ops->choices ? device->ops->choices(device, bytes) : NULL;
}

iso_status iso_device_set_choices(iso_device *device, const void *choices, size_t bytes) {
    ISO_CHECK(device->ops->set_choices || bytes == 0, ISO_ERR_UNSUPPORTED,
              "the choices are of other kernels than those in use here (%s): ranks must run the "
              "same build",
              device->description);
    if (device->ops->set_choices) ISO_TRY(device->ops->set_choices(device, choices, bytes));
    return ISO_OK;
}

const char *iso_device_name(const iso_device *device) { return device->ops->name; }
const char *iso_device_describe(const iso_device *device) { return device->description; }
long long iso_device_primitives_created(const iso_device *device) {
    return device->primitives_created;
}

void iso_device_launches(const iso_device *device, long long *launches, long long *graphs) {
    *launches = device->launches;
    *graphs = device->graph_launches;
}
