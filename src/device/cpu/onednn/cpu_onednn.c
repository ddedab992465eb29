// SPDX-License-Identifier: MIT
// The oneDNN set of kernels.
#include "device/cpu/onednn/onednn_impl.h"

#include <string.h>

static const char *isa_name(void) {
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    if ((isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core) return "avx512_core";
    return (isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2 ? "avx2" : "below avx2";
}

static iso_status set_threads(iso_device *self, int n) {
    const dnnl_version_t *v = dnnl_version();
    self->threads = n;
    snprintf(self->description, sizeof(self->description), "oneDNN %d.%d.%d, %s, %d thread%s",
             v->major, v->minor, v->patch, isa_name(), n, n > 1 ? "s" : "");
    return ISO_OK;
}

static void close_set(iso__cpu *cpu) {
    iso__onednn_close(&cpu->onednn);
    iso__tuner_destroy(&cpu->tuner);
}

// Without AVX-512, its matrix product computes the last rows in another order than the others.
static void keep_gradients_whole(iso__cpu *cpu) {
    if (cpu->block < 16) cpu->f32.take_columns = cpu->half.take_columns = NULL;
}

iso_status iso__cpu_use_onednn(iso__cpu *cpu) {
    cpu->close_set = close_set;
    ISO_TRY(iso__tuner_create(&cpu->tuner));
    ISO_TRY(iso__onednn_open(&cpu->onednn));
    iso__onednn_fill_tune(&cpu->ops);
    cpu->block = strcmp(isa_name(), "avx512_core") == 0 ? 16 : 8;
    cpu->ops.set_threads = set_threads;
    iso__onednn_fill_math(&cpu->ops);
    iso__onednn_fill_conv(&cpu->f32);
    iso__onednn_fill_linear(&cpu->f32);
    iso__onednn_fill_half_conv(&cpu->half);
    iso__onednn_fill_half_linear(&cpu->half);
    keep_gradients_whole(cpu);
    ISO_TRY(set_threads(&cpu->base, 1));
    return ISO_OK;
}
