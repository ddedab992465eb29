## SPDX-License-Identifier: MIT
# Data sets and batches.
libiso_core_la_SOURCES += src/data/csv.c
libiso_core_la_SOURCES += src/data/csv_rows.c
libiso_core_la_SOURCES += src/data/csv_rows.h
libiso_core_la_SOURCES += src/data/data_impl.h
libiso_core_la_SOURCES += src/data/dataset.c
libiso_core_la_SOURCES += src/data/dataset_measure.c
libiso_core_la_SOURCES += src/data/digits.c
libiso_core_la_SOURCES += src/data/idx.c
libiso_core_la_SOURCES += src/data/image_set.c
libiso_core_la_SOURCES += src/data/loader.c
libiso_core_la_SOURCES += src/data/loader_upload.c
libiso_core_la_SOURCES += src/data/loader_upload.h
libiso_core_la_SOURCES += src/data/raw_files.c
libiso_core_la_SOURCES += src/data/sampler.c
libiso_core_la_SOURCES += src/data/source.c
libiso_core_la_SOURCES += src/data/transform.c
