# Data sets and batches.
libiso_core_la_SOURCES +=
