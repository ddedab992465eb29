# Stands in for CUDA on a machine without a GPU: "configure --with-cuda=emulated". For tests only.
EMULATOR_FILES =
EMULATOR_FILES += tests/cuda_emulator/emulated_collectives.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_cublas.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_errors.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_events.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_fibers.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_fibers.h
EMULATOR_FILES += tests/cuda_emulator/emulated_gemm.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_gemm.h
EMULATOR_FILES += tests/cuda_emulator/emulated_graphs.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_internal.h
EMULATOR_FILES += tests/cuda_emulator/emulated_kernels.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_memory.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_nccl.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_nccl.h
EMULATOR_FILES += tests/cuda_emulator/emulated_runtime.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_streams.cc
EMULATOR_FILES += tests/cuda_emulator/emulated_types.h
EMULATOR_FILES += tests/cuda_emulator/emulator.h
EMULATOR_FILES += tests/cuda_emulator/include/cublas_v2.h
EMULATOR_FILES += tests/cuda_emulator/include/cuda_runtime.h
EMULATOR_FILES += tests/cuda_emulator/include/cuda_runtime_api.h
EMULATOR_FILES += tests/cuda_emulator/include/emulated_device.h
EMULATOR_FILES += tests/cuda_emulator/include/library_types.h
EMULATOR_FILES += tests/cuda_emulator/include/nccl.h
EXTRA_DIST += $(EMULATOR_FILES)
if ISO_CUDA_EMULATED
noinst_LTLIBRARIES += libiso_cuda_emulated.la
libiso_cuda_emulated_la_SOURCES = $(EMULATOR_FILES)
libiso_cuda_emulated_la_CPPFLAGS = $(CUDA_CFLAGS) -I$(top_srcdir)/tests/cuda_emulator
libiso_cuda_emulated_la_CXXFLAGS = -std=gnu++14 -O2 -g -Wall -Wextra -pthread
CUDA_EMULATOR += libiso_cuda_emulated.la
endif
