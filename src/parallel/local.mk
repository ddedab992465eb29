# Data parallelism: buckets, the reducer, and the module that wraps a module.
libiso_core_la_SOURCES += \
    src/parallel/apply.c \
    src/parallel/average.c \
    src/parallel/average.h \
    src/parallel/average_impl.h \
    src/parallel/average_phases.c \
    src/parallel/bucket.c \
    src/parallel/bucket_text.c \
    src/parallel/buffers.c \
    src/parallel/clip.c \
    src/parallel/complete.c \
    src/parallel/data_parallel.c \
    src/parallel/data_parallel_calls.c \
    src/parallel/data_parallel_create.c \
    src/parallel/data_parallel_impl.h \
    src/parallel/evaluate.c \
    src/parallel/hash.c \
    src/parallel/hooks.c \
    src/parallel/join.c \
    src/parallel/match.c \
    src/parallel/measure.c \
    src/parallel/order.c \
    src/parallel/parallel_impl.h \
    src/parallel/param_list.c \
    src/parallel/piece.c \
    src/parallel/plan.c \
    src/parallel/plan.h \
    src/parallel/reducer.c \
    src/parallel/reducer_impl.h \
    src/parallel/round.c \
    src/parallel/scope.c \
    src/parallel/stage.c \
    src/parallel/stage_nccl.c \
    src/parallel/sync_batchnorm.c \
    src/parallel/wire.c \
    src/parallel/wire.h
