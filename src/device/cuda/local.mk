# The CUDA device: C files that know tensors, and .cu files with kernels and their launchers.
CUDA_KERNELS =
CUDA_KERNELS += src/device/cuda/activation_kernels.cu
CUDA_KERNELS += src/device/cuda/batch_norm_gradients.cu
CUDA_KERNELS += src/device/cuda/batch_norm_kernels.cu
CUDA_KERNELS += src/device/cuda/conv_kernels.cu
CUDA_KERNELS += src/device/cuda/elementwise_kernels.cu
CUDA_KERNELS += src/device/cuda/fill_kernels.cu
CUDA_KERNELS += src/device/cuda/lamb_kernels.cu
CUDA_KERNELS += src/device/cuda/layer_norm_kernels.cu
CUDA_KERNELS += src/device/cuda/linear_kernels.cu
CUDA_KERNELS += src/device/cuda/loss_kernels.cu
CUDA_KERNELS += src/device/cuda/pool_kernels.cu
CUDA_KERNELS += src/device/cuda/update_kernels.cu
CUDA_INCLUDED += src/device/cuda/activation_kernels.h
CUDA_INCLUDED += src/device/cuda/batch_norm_kernels.h
CUDA_INCLUDED += src/device/cuda/conv_kernels.h
CUDA_INCLUDED += src/device/cuda/cuda_gather.h
CUDA_INCLUDED += src/device/cuda/cuda_launch.h
CUDA_INCLUDED += src/device/cuda/cuda_map.cuh
CUDA_INCLUDED += src/device/cuda/cuda_norm.cuh
CUDA_INCLUDED += src/device/cuda/cuda_norm_moments.cuh
CUDA_INCLUDED += src/device/cuda/cuda_pack.cuh
CUDA_INCLUDED += src/device/cuda/cuda_rows.cuh
CUDA_INCLUDED += src/device/cuda/cuda_submit.cuh
CUDA_INCLUDED += src/device/cuda/cuda_types.cuh
CUDA_INCLUDED += src/device/cuda/cuda_vector.cuh
CUDA_INCLUDED += src/device/cuda/cuda_windows.cuh
CUDA_INCLUDED += src/device/cuda/elementwise_kernels.h
CUDA_INCLUDED += src/device/cuda/fill_kernels.h
CUDA_INCLUDED += src/device/cuda/layer_norm_kernels.h
CUDA_INCLUDED += src/device/cuda/linear_kernels.h
CUDA_INCLUDED += src/device/cuda/loss_kernels.h
CUDA_INCLUDED += src/device/cuda/pool_kernels.h
CUDA_INCLUDED += src/device/cuda/update_kernels.h
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
CUDA_C_FILES += src/device/cuda/cuda_conv.c
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
CUDA_C_FILES += src/device/cuda/cuda_update.c
EXTRA_DIST += $(CUDA_KERNELS) $(CUDA_INCLUDED)
if ISO_HAVE_CUDA
libiso_core_la_SOURCES += $(CUDA_C_FILES)
if ISO_HAVE_CUDNN
libiso_core_la_SOURCES += src/device/cuda/cuda_dnn.c
libiso_core_la_SOURCES += src/device/cuda/cuda_dnn_plan.c
libiso_core_la_SOURCES += src/device/cuda/cuda_dnn_plan.h
libiso_core_la_SOURCES += src/device/cuda/cuda_dnn_run.c
endif
CUDA_OBJECTS += $(CUDA_KERNELS:.cu=.lo)
$(CUDA_OBJECTS): $(CUDA_INCLUDED)
endif
