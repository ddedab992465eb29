## SPDX-License-Identifier: MIT
# Checkpoints and metrics.
libiso_core_la_SOURCES += src/io/checkpoint.c
libiso_core_la_SOURCES += src/io/durable.c
libiso_core_la_SOURCES += src/io/durable.h
libiso_core_la_SOURCES += src/io/event_log.c
libiso_core_la_SOURCES += src/io/event_log.h
libiso_core_la_SOURCES += src/io/json_log.c
libiso_core_la_SOURCES += src/io/progress_bar.c
libiso_core_la_SOURCES += src/io/safetensors.c
libiso_core_la_SOURCES += src/io/safetensors.h
libiso_core_la_SOURCES += src/io/safetensors_array.c
libiso_core_la_SOURCES += src/io/safetensors_read.c
libiso_core_la_SOURCES += src/io/safetensors_write.c
libiso_core_la_SOURCES += src/io/state_dict.c
