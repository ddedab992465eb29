## SPDX-License-Identifier: MIT
# The CUDA device: C files that know tensors, queues and libraries; kernels are in kernels.mk.
CUDA_INCLUDED += src/device/cuda/runtime/cuda_multi_tensor.h
CUDA_INCLUDED += src/device/cuda/runtime/cuda_launch.h
CUDA_C_FILES =
CUDA_C_FILES += src/device/cuda/libs/cuda_blas.c
CUDA_C_FILES += src/device/cuda/libs/cuda_blas.h
CUDA_C_FILES += src/device/cuda/libs/cuda_conv_library.c
CUDA_C_FILES += src/device/cuda/libs/cuda_dnn.h
CUDA_C_FILES += src/device/cuda/libs/cuda_lt.c
CUDA_C_FILES += src/device/cuda/libs/cuda_lt.h
CUDA_C_FILES += src/device/cuda/ops/cuda_activation.c
CUDA_C_FILES += src/device/cuda/ops/cuda_batch_norm.c
CUDA_C_FILES += src/device/cuda/ops/cuda_clip.c
CUDA_C_FILES += src/device/cuda/ops/cuda_conv.c
CUDA_C_FILES += src/device/cuda/ops/cuda_copy.c
CUDA_C_FILES += src/device/cuda/ops/cuda_copy.h
CUDA_C_FILES += src/device/cuda/ops/cuda_elementwise.c
CUDA_C_FILES += src/device/cuda/ops/cuda_layer_norm.c
CUDA_C_FILES += src/device/cuda/ops/cuda_linear.c
CUDA_C_FILES += src/device/cuda/ops/cuda_linear.h
CUDA_C_FILES += src/device/cuda/ops/cuda_loss.c
CUDA_C_FILES += src/device/cuda/ops/cuda_master.c
CUDA_C_FILES += src/device/cuda/ops/cuda_pool2d.c
CUDA_C_FILES += src/device/cuda/ops/cuda_stem.c
CUDA_C_FILES += src/device/cuda/ops/cuda_stem.h
CUDA_C_FILES += src/device/cuda/ops/cuda_update.c
CUDA_C_FILES += src/device/cuda/cuda.c
CUDA_C_FILES += src/device/cuda/runtime/cuda_cache.c
CUDA_C_FILES += src/device/cuda/runtime/cuda_cache.h
CUDA_C_FILES += src/device/cuda/runtime/cuda_graph.c
CUDA_C_FILES += src/device/cuda/runtime/cuda_graph.h
CUDA_C_FILES += src/device/cuda/runtime/cuda_identity.c
CUDA_C_FILES += src/device/cuda/runtime/cuda_impl.h
CUDA_C_FILES += src/device/cuda/runtime/cuda_library.c
CUDA_C_FILES += src/device/cuda/runtime/cuda_library.h
CUDA_C_FILES += src/device/cuda/runtime/cuda_memory.c
CUDA_C_FILES += src/device/cuda/runtime/cuda_multi_tensor.c
CUDA_C_FILES += src/device/cuda/runtime/cuda_pool.c
CUDA_C_FILES += src/device/cuda/runtime/cuda_queue.c
CUDA_C_FILES += src/device/cuda/runtime/cuda_remote.c
CUDA_C_FILES += src/device/cuda/runtime/cuda_state.c
EXTRA_DIST += $(CUDA_KERNELS) $(CUDA_INCLUDED)
if ISO_HAVE_CUDA
libiso_core_la_SOURCES += $(CUDA_C_FILES)
if ISO_HAVE_CUDNN
libiso_core_la_SOURCES += src/device/cuda/libs/cuda_dnn.c
libiso_core_la_SOURCES += src/device/cuda/libs/cuda_dnn_layout.c
libiso_core_la_SOURCES += src/device/cuda/libs/cuda_dnn_layout.h
libiso_core_la_SOURCES += src/device/cuda/libs/cuda_dnn_plan.c
libiso_core_la_SOURCES += src/device/cuda/libs/cuda_dnn_plan.h
libiso_core_la_SOURCES += src/device/cuda/libs/cuda_dnn_run.c
libiso_core_la_SOURCES += src/device/cuda/libs/cuda_dnn_tune.c
endif
CUDA_OBJECTS += $(CUDA_KERNELS:.cu=.lo)
$(CUDA_OBJECTS): $(CUDA_INCLUDED)
endif
