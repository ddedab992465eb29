## SPDX-License-Identifier: MIT
# Status, log, memory, random numbers, trace: what every other folder may use.
libiso_core_la_SOURCES += src/base/base.h
libiso_core_la_SOURCES += src/base/env.c
libiso_core_la_SOURCES += src/base/folder.c
libiso_core_la_SOURCES += src/base/half.h
libiso_core_la_SOURCES += src/base/index.c
libiso_core_la_SOURCES += src/base/index.h
libiso_core_la_SOURCES += src/base/log.c
libiso_core_la_SOURCES += src/base/median.c
libiso_core_la_SOURCES += src/base/memory.c
libiso_core_la_SOURCES += src/base/profiler.h
libiso_core_la_SOURCES += src/base/recorder.c
libiso_core_la_SOURCES += src/base/recording.h
libiso_core_la_SOURCES += src/base/rng.c
libiso_core_la_SOURCES += src/base/status.c
libiso_core_la_SOURCES += src/base/trace.c

# Apart, so that no other file sees the folder of NVTX, which is the CUDA toolkit's.
if ISO_HAVE_NVTX
noinst_LTLIBRARIES += libiso_profiler.la
libiso_profiler_la_SOURCES = src/base/profiler.c
libiso_profiler_la_CPPFLAGS = $(libiso_core_la_CPPFLAGS) $(NVTX_CFLAGS)
libiso_profiler_la_CFLAGS = $(libiso_core_la_CFLAGS)
libiso_core_la_LIBADD += libiso_profiler.la
endif
