## SPDX-License-Identifier: MIT
# Data parallelism: buckets, the reducer, and the module that wraps a module.
libiso_core_la_SOURCES += \
    src/parallel/buffers.c \
    src/parallel/clip.c \
    src/parallel/data_parallel.c \
    src/parallel/data_parallel_calls.c \
    src/parallel/data_parallel_create.c \
    src/parallel/data_parallel_drop.c \
    src/parallel/data_parallel_hooks.c \
    src/parallel/data_parallel_impl.h \
    src/parallel/data_parallel_inputs.c \
    src/parallel/data_parallel_order.c \
    src/parallel/data_parallel_rebuild.c \
    src/parallel/data_parallel_values.c \
    src/parallel/data_parallel_views.c \
    src/parallel/dataset_shard.c \
    src/parallel/dataset_shuffle.c \
    src/parallel/evaluate.c \
    src/parallel/gradients.c \
    src/parallel/gradients.h \
    src/parallel/hash.c \
    src/parallel/join.c \
    src/parallel/noise_scale.c \
    src/parallel/parallel_impl.h \
    src/parallel/param_list.c \
    src/parallel/param_list.h \
    src/parallel/sync_batchnorm.c \
    src/parallel/tensor_batch.c

# The reducer: facade over round, over appliers, planner, layout and transports.
libiso_core_la_SOURCES += \
    src/parallel/reducer/appliers.c \
    src/parallel/reducer/appliers.h \
    src/parallel/reducer/factors.c \
    src/parallel/reducer/factors.h \
    src/parallel/reducer/hook_memory.c \
    src/parallel/reducer/layout.c \
    src/parallel/reducer/layout.h \
    src/parallel/reducer/layout_ask.c \
    src/parallel/reducer/layout_layers.c \
    src/parallel/reducer/measure.c \
    src/parallel/reducer/norms.c \
    src/parallel/reducer/norms.h \
    src/parallel/reducer/param_match.c \
    src/parallel/reducer/param_set.c \
    src/parallel/reducer/param_set.h \
    src/parallel/reducer/plan.c \
    src/parallel/reducer/plan.h \
    src/parallel/reducer/planner.c \
    src/parallel/reducer/planner.h \
    src/parallel/reducer/reducer.c \
    src/parallel/reducer/reducer_calls.h \
    src/parallel/reducer/reducer_create.c \
    src/parallel/reducer/reducer_impl.h \
    src/parallel/reducer/reducer_layers.c \
    src/parallel/reducer/reducer_wait.c \
    src/parallel/reducer/reducer_rebuild.c \
    src/parallel/reducer/reducer_update.c \
    src/parallel/reducer/reducer_values.c \
    src/parallel/reducer/round.c \
    src/parallel/reducer/round.h \
    src/parallel/reducer/round_back.c \
    src/parallel/reducer/round_impl.h \
    src/parallel/reducer/slot_types.c \
    src/parallel/reducer/slot_types.h \
    src/parallel/reducer/sums.c \
    src/parallel/reducer/sums.h \
    src/parallel/reducer/used_params.c \
    src/parallel/reducer/used_params.h \
    src/parallel/reducer/value_shards.c \
    src/parallel/reducer/value_shards.h \
    src/parallel/reducer/weights.c \
    src/parallel/reducer/weights.h \
    src/parallel/reducer/zero.c \
    src/parallel/reducer/zero.h
