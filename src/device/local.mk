## SPDX-License-Identifier: MIT
# Opening a device by name and dispatching to its kernels.
libiso_core_la_SOURCES += src/device/device_impl.h
libiso_core_la_SOURCES += src/device/device.c
libiso_core_la_SOURCES += src/device/dtype.c
libiso_core_la_SOURCES += src/device/pinned.c
