# The CUDA device: C files that know tensors, queues and libraries; kernels are in kernels/.
CUDA_INCLUDED += src/device/cuda/cuda_gather.h
CUDA_INCLUDED += src/device/cuda/cuda_launch.h
CUDA_C_FILES =
CUDA_C_FILES += src/device/cuda/cuda.c
CUDA_C_FILES += src/device/cuda/cuda_gather.c
CUDA_C_FILES += src/device/cuda/cuda_graph.c
CUDA_C_FILES += src/device/cuda/cuda_graph.h
CUDA_C_FILES += src/device/cuda/cuda_identity.c
CUDA_C_FILES += src/device/cuda/cuda_impl.h
CUDA_C_FILES += src/device/cuda/cuda_memory.c
CUDA_C_FILES += src/device/cuda/cuda_pool.c
CUDA_C_FILES += src/device/cuda/cuda_queue.c
CUDA_C_FILES += src/device/cuda/cuda_remote.c
CUDA_C_FILES += src/device/cuda/cuda_activation.c
CUDA_C_FILES += src/device/cuda/cuda_batch_norm.c
CUDA_C_FILES += src/device/cuda/cuda_blas.c
CUDA_C_FILES += src/device/cuda/cuda_blas.h
CUDA_C_FILES += src/device/cuda/cuda_cache.c
CUDA_C_FILES += src/device/cuda/cuda_cache.h
CUDA_C_FILES += src/device/cuda/cuda_clip.c
CUDA_C_FILES += src/device/cuda/cuda_conv.c
CUDA_C_FILES += src/device/cuda/cuda_copy.c
CUDA_C_FILES += src/device/cuda/cuda_copy.h
CUDA_C_FILES += src/device/cuda/cuda_dnn.h
CUDA_C_FILES += src/device/cuda/cuda_elementwise.c
CUDA_C_FILES += src/device/cuda/cuda_layer_norm.c
CUDA_C_FILES += src/device/cuda/cuda_library.c
CUDA_C_FILES += src/device/cuda/cuda_library.h
CUDA_C_FILES += src/device/cuda/cuda_linear.c
CUDA_C_FILES += src/device/cuda/cuda_linear.h
CUDA_C_FILES += src/device/cuda/cuda_loss.c
CUDA_C_FILES += src/device/cuda/cuda_lt.c
CUDA_C_FILES += src/device/cuda/cuda_lt.h
CUDA_C_FILES += src/device/cuda/cuda_pool2d.c
CUDA_C_FILES += src/device/cuda/cuda_stem.c
CUDA_C_FILES += src/device/cuda/cuda_stem.h
CUDA_C_FILES += src/device/cuda/cuda_update.c
EXTRA_DIST += $(CUDA_KERNELS) $(CUDA_INCLUDED)
if ISO_HAVE_CUDA
libiso_core_la_SOURCES += $(CUDA_C_FILES)
if ISO_HAVE_CUDNN
libiso_core_la_SOURCES += src/device/cuda/cuda_dnn.c
libiso_core_la_SOURCES += src/device/cuda/cuda_dnn_layout.c
libiso_core_la_SOURCES += src/device/cuda/cuda_dnn_layout.h
libiso_core_la_SOURCES += src/device/cuda/cuda_dnn_plan.c
libiso_core_la_SOURCES += src/device/cuda/cuda_dnn_plan.h
libiso_core_la_SOURCES += src/device/cuda/cuda_dnn_run.c
libiso_core_la_SOURCES += src/device/cuda/cuda_dnn_tune.c
endif
CUDA_OBJECTS += $(CUDA_KERNELS:.cu=.lo)
$(CUDA_OBJECTS): $(CUDA_INCLUDED)
endif
