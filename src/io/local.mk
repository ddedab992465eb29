# Checkpoints and metrics.
libiso_core_la_SOURCES +=
