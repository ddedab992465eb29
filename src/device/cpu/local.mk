# The CPU device: reference kernels, then those that a library does faster.
libiso_core_la_SOURCES += src/device/cpu/cpu_impl.h
libiso_core_la_SOURCES += src/device/cpu/cpu.c
libiso_core_la_SOURCES += src/device/cpu/cpu_conv.c
libiso_core_la_SOURCES += src/device/cpu/cpu_elementwise.c
libiso_core_la_SOURCES += src/device/cpu/cpu_linear.c
libiso_core_la_SOURCES += src/device/cpu/cpu_loss.c
libiso_core_la_SOURCES += src/device/cpu/cpu_memory.c
libiso_core_la_SOURCES += src/device/cpu/cpu_pool.c
libiso_core_la_SOURCES += src/device/cpu/cpu_update.c
if ISO_HAVE_CBLAS
libiso_core_la_SOURCES += src/device/cpu/cpu_cblas.c
endif
if ISO_HAVE_ONEDNN
libiso_core_la_SOURCES += src/device/cpu/cpu_onednn.c
libiso_core_la_SOURCES += src/device/cpu/onednn_conv.c
libiso_core_la_SOURCES += src/device/cpu/onednn_impl.h
libiso_core_la_SOURCES += src/device/cpu/onednn_linear.c
endif
