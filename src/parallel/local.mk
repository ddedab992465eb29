# Data parallelism: buckets, the reducer, and the module that wraps a module.
libiso_core_la_SOURCES += \
    src/parallel/average.c \
    src/parallel/average.h \
    src/parallel/average_impl.h \
    src/parallel/average_phases.c \
    src/parallel/bucket.c \
    src/parallel/buffers.c \
    src/parallel/clip.c \
    src/parallel/data_parallel.c \
    src/parallel/evaluate.c \
    src/parallel/hash.c \
    src/parallel/match.c \
    src/parallel/measure.c \
    src/parallel/parallel_impl.h \
    src/parallel/reducer.c \
    src/parallel/reducer_impl.h \
    src/parallel/scope.c \
    src/parallel/wire.c \
    src/parallel/wire.h
