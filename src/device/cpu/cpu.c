// SPDX-License-Identifier: MIT
// The CPU device: creation, and the choice of a set of kernels.
#include "device/cpu/cpu_impl.h"
#include "device/cpu/half/cpu_half.h"

#include <config.h>
#include <string.h>

static iso_status use_reference(iso__cpu *cpu) {
    snprintf(cpu->base.description, sizeof(cpu->base.description), "plain C kernels, 1 thread");
    return ISO_OK;
}

// Sets of kernels in order of preference.
static const struct {
    const char *name;
    iso_status (*use)(iso__cpu *cpu);
} kernel_sets[] = {
#ifdef ISO_HAVE_ONEDNN
    {"onednn", iso__cpu_use_onednn},
#endif
#ifdef ISO_HAVE_CBLAS
    {"cblas", iso__cpu_use_cblas},
#endif
    {"reference", use_reference},
};
#define KERNEL_SET_COUNT (sizeof(kernel_sets) / sizeof(kernel_sets[0]))

static iso_status use_kernels(iso__cpu *cpu) {
    const char *wanted = iso__env_string(ISO_ENV_CPU_KERNELS);
    for (size_t i = 0; i < KERNEL_SET_COUNT; i++) {
        if (wanted && strcmp(wanted, kernel_sets[i].name) != 0) continue;
        ISO_TRY(kernel_sets[i].use(cpu));
        return ISO_OK;
    }
    char known[64] = "";
    for (size_t i = 0; i < KERNEL_SET_COUNT; i++) {
        if (i > 0) strcat(known, ", ");
        strcat(known, kernel_sets[i].name);
    }
    return ISO_FAIL(ISO_ERR_ARG,
                    "environment variable ISO_CPU_KERNELS is \"%s\": this build has %s", wanted,
                    known);
}

static void cpu_destroy(iso_device *self) {
    iso__cpu *cpu = iso__cpu_of(self);
    if (cpu->close_set) cpu->close_set(cpu);
    iso__free(cpu->scratch);
    iso__free(cpu->wide);
    iso__free(cpu);
}

static iso_status cpu_set_threads(iso_device *self, int n) {
    self->threads = n;
    return ISO_OK;
}

static iso_status cpu_set_math(iso_device *self, const char *name) {
    ISO_CHECK(
        strcmp(name, "f32") == 0, ISO_ERR_UNSUPPORTED,
        "the CPU kernels in use here (%s) have no math %s: use math f32, oneDNN for bf16, or a "
        "GPU",
        self->description, name);
    return ISO_OK;
}

#define FILL_KERNELS(type)                                                                         \
    iso__cpu_fill_linear_##type(&cpu->type);                                                       \
    iso__cpu_fill_conv_##type(&cpu->type);                                                         \
    iso__cpu_fill_pool_##type(&cpu->type);                                                         \
    iso__cpu_fill_avg_pool_##type(&cpu->type);                                                     \
    iso__cpu_fill_elementwise_##type(&cpu->type);                                                  \
    iso__cpu_fill_activation_##type(&cpu->type);                                                   \
    iso__cpu_fill_batch_norm_##type(&cpu->type);                                                   \
    iso__cpu_fill_layer_norm_##type(&cpu->type);                                                   \
    iso__cpu_fill_attention_##type(&cpu->type);                                                    \
    iso__cpu_fill_combine_##type(&cpu->type);                                                      \
    iso__cpu_fill_loss_##type(&cpu->type);                                                         \
    iso__cpu_fill_update_##type(&cpu->type)

static void fill_kernels(iso__cpu *cpu) {
    FILL_KERNELS(f32);
    FILL_KERNELS(f64);
    cpu->gemm[ISO_F32] = iso__cpu_gemm_f32;
    cpu->gemm[ISO_F64] = iso__cpu_gemm_f64;
    cpu->base.kernels[ISO_F32] = &cpu->f32;
    cpu->base.kernels[ISO_F64] = &cpu->f64;
    iso__cpu_fill_half(&cpu->half);
    cpu->base.kernels[ISO_BF16] = cpu->base.kernels[ISO_F16] = &cpu->half;
}

int iso__device_count_cpu(void) { return 1; }

iso_status iso__device_create_cpu(const char *text, iso_device **out) {
    ISO_CHECK(!text[0], ISO_ERR_ARG, "there is one CPU device, named cpu, not cpu:%s", text);
    void *memory;
    iso_status status;
    ISO_TRY(iso__alloc_zero(sizeof(iso__cpu), &memory));
    iso__cpu *cpu = memory;
    iso_device_ops *ops = &cpu->ops;
    ops->name = "cpu";
    ops->host_memory = true;
    ops->destroy = cpu_destroy;
    ops->set_threads = cpu_set_threads;
    ops->set_math = cpu_set_math;
    iso__cpu_fill_memory(ops);
    fill_kernels(cpu);
    cpu->base.ops = ops;
    cpu->base.references = 1;
    cpu->base.threads = 1;
    cpu->block = 1;
    ISO_TRY_GOTO(use_kernels(cpu));
    *out = &cpu->base;
    return ISO_OK;
fail:
    ops->destroy(&cpu->base);
    return status;
}
