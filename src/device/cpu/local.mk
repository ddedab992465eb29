## SPDX-License-Identifier: MIT
# The CPU device: plain kernels, which are compiled for f32 and f64, those for bf16 and f16, which call the ones for f32,
# and those that a library does faster.
PLAIN_KERNELS =
PLAIN_KERNELS += src/device/cpu/plain/cpu_activation.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_attention.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_combine.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_avg_pool.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_batch_norm.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_conv.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_elementwise.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_gemm.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_layer_norm.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_linear.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_loss.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_pool.c
PLAIN_KERNELS += src/device/cpu/plain/cpu_update.c
libiso_core_la_SOURCES += src/device/cpu/avx512/cpu_half_wide.c
libiso_core_la_SOURCES += src/device/cpu/avx512/cpu_linear_wide.c
libiso_core_la_SOURCES += src/device/cpu/avx512/cpu_transpose.c
libiso_core_la_SOURCES += src/device/cpu/cpu.c
libiso_core_la_SOURCES += src/device/cpu/cpu_embedding.c
libiso_core_la_SOURCES += src/device/cpu/cpu_impl.h
libiso_core_la_SOURCES += src/device/cpu/cpu_memory.c
libiso_core_la_SOURCES += src/device/cpu/half/cpu_half.c
libiso_core_la_SOURCES += src/device/cpu/half/cpu_half.h
libiso_core_la_SOURCES += src/device/cpu/half/cpu_half_convert.c
libiso_core_la_SOURCES += src/device/cpu/half/cpu_half_elementwise.c
libiso_core_la_SOURCES += src/device/cpu/half/cpu_half_master.c
libiso_core_la_SOURCES += src/device/cpu/half/cpu_half_matrix.c
libiso_core_la_SOURCES += src/device/cpu/half/cpu_half_norm.c
libiso_core_la_SOURCES += src/device/cpu/half/cpu_half_pool.c
libiso_core_la_SOURCES += src/device/cpu/half/cpu_half_table.c
libiso_core_la_SOURCES += src/device/cpu/plain/cpu_real.h
libiso_core_la_SOURCES += src/device/cpu/plain/cpu_strip.c
libiso_core_la_SOURCES += src/device/cpu/plain/cpu_strip.h
libiso_core_la_SOURCES += $(PLAIN_KERNELS)
libiso_kernels_f64_la_SOURCES += $(PLAIN_KERNELS)
if ISO_HAVE_CBLAS
libiso_core_la_SOURCES += src/device/cpu/plain/cpu_cblas.c
endif
if ISO_HAVE_ONEDNN
libiso_core_la_SOURCES += src/device/cpu/onednn/cpu_onednn.c
libiso_core_la_SOURCES += src/device/cpu/onednn/onednn_conv.c
libiso_core_la_SOURCES += src/device/cpu/onednn/onednn_impl.h
libiso_core_la_SOURCES += src/device/cpu/onednn/onednn_kernel.c
libiso_core_la_SOURCES += src/device/cpu/onednn/onednn_linear.c
libiso_core_la_SOURCES += src/device/cpu/onednn/onednn_math.c
libiso_core_la_SOURCES += src/device/cpu/onednn/onednn_tune.c
endif
