// SPDX-License-Identifier: MIT
// Math "bf16" of the oneDNN kernels: where it exists, and which products round their operands.
#include "device/cpu/onednn/onednn_impl.h"

#include <string.h>

// The number of multiplications whose speed-up by bf16 pays for rounding one operand, and for
// calling the conversions. Measured on Zen 4 with AVX512_BF16.
#define OPERAND_WORTH 12
#define CALL_WORTH    (INT64_C(1) << 18)

// Operands are bf16 unless the math is f32. A result is f32, unless it is an activation of bf16.
iso__onednn_types iso__onednn_types_of(iso__onednn_math math, int result) {
    dnnl_data_type_t operand = math == ISO_ONEDNN_F32 ? dnnl_f32 : dnnl_bf16;
    dnnl_data_type_t activation = math == ISO_ONEDNN_ACTIVATIONS ? dnnl_bf16 : dnnl_f32;
    bool gradients = result == ISO_ONEDNN_RESULT_W;
    return (iso__onednn_types){.x = result == ISO_ONEDNN_RESULT_X ? activation : operand,
                               .w = gradients ? dnnl_f32 : operand,
                               .b = gradients ? dnnl_f32 : activation,
                               .y = result == ISO_ONEDNN_RESULT_Y ? activation : operand};
}

iso__onednn_types iso__onednn_caller_types(iso__onednn_math math, int result) {
    dnnl_data_type_t activation = math == ISO_ONEDNN_ACTIVATIONS ? dnnl_bf16 : dnnl_f32;
    dnnl_data_type_t parameter = result == ISO_ONEDNN_RESULT_W ? dnnl_f32 : activation;
    return (iso__onednn_types){activation, parameter, parameter, activation};
}

bool iso__onednn_rounds(const iso__cpu *cpu, int64_t multiplications, int64_t operands) {
    return cpu->bf16 &&
           (cpu->bf16_always || multiplications >= CALL_WORTH + OPERAND_WORTH * operands);
}

bool iso__onednn_has_bf16(void) {
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
           dnnl_cpu_isa_avx512_core_bf16;
}

static iso_status set_math(iso_device *self, const char *name) {
    bool bf16 = strcmp(name, "bf16") == 0;
    ISO_CHECK(bf16 || strcmp(name, "f32") == 0, ISO_ERR_UNSUPPORTED,
              "the CPU has no math %s: use f32 or bf16, or a GPU", name);
    ISO_CHECK(
        !bf16 || iso__onednn_has_bf16(), ISO_ERR_UNSUPPORTED,
        "oneDNN finds no bf16 instructions (AVX512_BF16, AMX) on this CPU, where bf16 would be "
        "slower than f32 (%s): use math f32",
        self->description);
    iso__cpu_of(self)->bf16 = bf16;
    return ISO_OK;
}

void iso__onednn_fill_math(iso_device_ops *ops) { ops->set_math = set_math; }
