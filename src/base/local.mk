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
libiso_core_la_SOURCES += src/base/recorder.c
libiso_core_la_SOURCES += src/base/recording.h
libiso_core_la_SOURCES += src/base/rng.c
libiso_core_la_SOURCES += src/base/status.c
libiso_core_la_SOURCES += src/base/trace.c
