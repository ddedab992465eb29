## SPDX-License-Identifier: MIT
# Tests of the CUDA device: "make check-gpu". Part of "make check" too, where they are skipped without a GPU.
GPU_TESTS =
# The rules on circles of files see NCCL's files only where they are built.
GPU_SHELL_TESTS = tests/gpu/check_gpu_train.sh tests/check_layers.sh
GPU_HELPED_BY =
if ISO_HAVE_CUDA
GPU_TESTS += tests/gpu/cuda_bias.unit
UNIT_TESTS += tests/gpu/cuda_bias.unit
tests_gpu_cuda_bias_unit_SOURCES = tests/gpu/test_cuda_bias.c
GPU_TESTS += tests/gpu/cuda_clip.unit
UNIT_TESTS += tests/gpu/cuda_clip.unit
tests_gpu_cuda_clip_unit_SOURCES = tests/gpu/test_cuda_clip.c
GPU_TESTS += tests/gpu/cuda_conv.unit
UNIT_TESTS += tests/gpu/cuda_conv.unit
tests_gpu_cuda_conv_unit_SOURCES = tests/gpu/test_cuda_conv.c tests/gpu/conv_problem.c tests/gpu/conv_problem.h
GPU_TESTS += tests/gpu/cuda_dnn.unit
UNIT_TESTS += tests/gpu/cuda_dnn.unit
tests_gpu_cuda_dnn_unit_SOURCES = tests/gpu/test_cuda_dnn.c tests/gpu/conv_problem.c tests/gpu/conv_problem.h
GPU_TESTS += tests/gpu/cuda_dnn_last.unit
UNIT_TESTS += tests/gpu/cuda_dnn_last.unit
tests_gpu_cuda_dnn_last_unit_SOURCES = tests/gpu/test_cuda_dnn_last.c tests/gpu/conv_problem.c tests/gpu/conv_problem.h
GPU_TESTS += tests/gpu/cuda_layout.unit
UNIT_TESTS += tests/gpu/cuda_layout.unit
tests_gpu_cuda_layout_unit_SOURCES = tests/gpu/test_cuda_layout.c
GPU_TESTS += tests/gpu/cuda_lt.unit
UNIT_TESTS += tests/gpu/cuda_lt.unit
tests_gpu_cuda_lt_unit_SOURCES = tests/gpu/test_cuda_lt.c
GPU_TESTS += tests/gpu/cuda_multi_tensor.unit
UNIT_TESTS += tests/gpu/cuda_multi_tensor.unit
tests_gpu_cuda_multi_tensor_unit_SOURCES = tests/gpu/test_cuda_multi_tensor.c tests/gpu/multi_tensor_fixture.c tests/gpu/multi_tensor_fixture.h
GPU_TESTS += tests/gpu/cuda_multi_tensor_order.unit
UNIT_TESTS += tests/gpu/cuda_multi_tensor_order.unit
tests_gpu_cuda_multi_tensor_order_unit_SOURCES = tests/gpu/test_cuda_multi_tensor_order.c tests/gpu/multi_tensor_fixture.c tests/gpu/multi_tensor_fixture.h
GPU_TESTS += tests/gpu/cuda_rounded_updates.unit
UNIT_TESTS += tests/gpu/cuda_rounded_updates.unit
tests_gpu_cuda_rounded_updates_unit_SOURCES = tests/gpu/test_cuda_rounded_updates.c \
    tests/gpu/multi_tensor_fixture.c tests/gpu/multi_tensor_fixture.h
GPU_TESTS += tests/gpu/cuda_tune.unit
UNIT_TESTS += tests/gpu/cuda_tune.unit
tests_gpu_cuda_tune_unit_SOURCES = tests/gpu/test_cuda_tune.c tests/gpu/conv_problem.c tests/gpu/conv_problem.h
GPU_TESTS += tests/gpu/cuda_graphs.unit
UNIT_TESTS += tests/gpu/cuda_graphs.unit
tests_gpu_cuda_graphs_unit_SOURCES = tests/gpu/test_cuda_graphs.c tests/gpu/multi_tensor_fixture.c tests/gpu/multi_tensor_fixture.h
GPU_TESTS += tests/gpu/cuda_library.unit
UNIT_TESTS += tests/gpu/cuda_library.unit
tests_gpu_cuda_library_unit_SOURCES = tests/gpu/test_cuda_library.c
GPU_TESTS += tests/gpu/cuda_pool_types.unit
UNIT_TESTS += tests/gpu/cuda_pool_types.unit
tests_gpu_cuda_pool_types_unit_SOURCES = tests/gpu/test_cuda_pool_types.c tests/gpu/stored_fixture.c \
    tests/gpu/stored_fixture.h
GPU_TESTS += tests/gpu/cuda_norm_types.unit
UNIT_TESTS += tests/gpu/cuda_norm_types.unit
tests_gpu_cuda_norm_types_unit_SOURCES = tests/gpu/test_cuda_norm_types.c tests/gpu/stored_fixture.c \
    tests/gpu/stored_fixture.h
endif
GPU_TESTS += tests/gpu/cuda_half.unit
UNIT_TESTS += tests/gpu/cuda_half.unit
tests_gpu_cuda_half_unit_SOURCES = tests/gpu/test_cuda_half.c
GPU_TESTS += tests/gpu/cuda_loss_half.unit
UNIT_TESTS += tests/gpu/cuda_loss_half.unit
tests_gpu_cuda_loss_half_unit_SOURCES = tests/gpu/test_cuda_loss_half.c
GPU_TESTS += tests/gpu/cuda_rows_half.unit
UNIT_TESTS += tests/gpu/cuda_rows_half.unit
tests_gpu_cuda_rows_half_unit_SOURCES = tests/gpu/test_cuda_rows_half.c
GPU_TESTS += tests/gpu/gpu_tuples.unit
UNIT_TESTS += tests/gpu/gpu_tuples.unit
tests_gpu_gpu_tuples_unit_SOURCES = tests/gpu/test_gpu_tuples.c
GPU_TESTS += tests/gpu/gpu_channels_last.unit
UNIT_TESTS += tests/gpu/gpu_channels_last.unit
tests_gpu_gpu_channels_last_unit_SOURCES = tests/gpu/test_gpu_channels_last.c
GPU_TESTS += tests/gpu/gpu_training.unit
UNIT_TESTS += tests/gpu/gpu_training.unit
tests_gpu_gpu_training_unit_SOURCES = tests/gpu/test_gpu_training.c
GPU_TESTS += tests/gpu/gpu_graphs.mpi
MPI_TESTS += tests/gpu/gpu_graphs.mpi
tests_gpu_gpu_graphs_mpi_SOURCES = tests/gpu/test_gpu_graphs.c
GPU_TESTS += tests/gpu/gpu_move.mpi
MPI_TESTS += tests/gpu/gpu_move.mpi
tests_gpu_gpu_move_mpi_SOURCES = tests/gpu/test_gpu_move.c
GPU_TESTS += tests/gpu/gpu_nccl.mpi
MPI_TESTS += tests/gpu/gpu_nccl.mpi
tests_gpu_gpu_nccl_mpi_SOURCES = tests/gpu/test_gpu_nccl.c
GPU_TESTS += tests/gpu/gpu_transport.mpi
MPI_TESTS += tests/gpu/gpu_transport.mpi
tests_gpu_gpu_transport_mpi_SOURCES = tests/gpu/test_gpu_transport.c
GPU_TESTS += tests/gpu/gpu_nccl_faults.mpi
MPI_TESTS += tests/gpu/gpu_nccl_faults.mpi
tests_gpu_gpu_nccl_faults_mpi_SOURCES = tests/gpu/test_gpu_nccl_faults.c
GPU_TESTS += tests/gpu/gpu_own_arrays.mpi
MPI_TESTS += tests/gpu/gpu_own_arrays.mpi
tests_gpu_gpu_own_arrays_mpi_SOURCES = tests/gpu/test_gpu_own_arrays.c
GPU_TESTS += tests/gpu/gpu_updates.mpi
MPI_TESTS += tests/gpu/gpu_updates.mpi
tests_gpu_gpu_updates_mpi_SOURCES = tests/gpu/test_gpu_updates.c
GPU_CONFORMANCE = tests/unit/autocast.unit tests/unit/autocast_kinds.unit tests/unit/autocast_layers.unit \
    tests/unit/autocast_rounding.unit \
    tests/mpi/autocast_ranks.mpi tests/unit/device.unit tests/unit/device_activation.unit tests/unit/device_conv.unit \
    tests/unit/device_loss.unit tests/unit/device_norm.unit tests/unit/device_pool.unit tests/unit/device_update.unit \
    tests/unit/half_modules.unit tests/unit/loader.unit tests/unit/module_move.unit tests/mpi/move_inputs.mpi
# Tests of training that take their device from ISO_TEST_DEVICE, which they need then.
GPU_SUITES = tests/mpi/daso.mpi tests/mpi/grad_scaler.mpi tests/mpi/half_modules_ranks.mpi tests/mpi/no_sync.mpi tests/mpi/pieces.mpi tests/mpi/zero.mpi tests/mpi/zero_lamb.mpi \
    tests/mpi/zero_nodes.mpi \
    tests/unit/choice.unit tests/unit/collate.unit tests/unit/loader_threads.unit tests/unit/samples.unit
GPU_ALL = $(GPU_TESTS) $(GPU_CONFORMANCE) $(GPU_SUITES)
if ISO_CUDA_EMULATED
HAVE_GPU = true
else
HAVE_GPU = test -e /dev/nvidiactl
endif

.PHONY: check-gpu gpu-programs
check-gpu: all gpu-programs
	tests='$(GPU_SHELL_TESTS) $(GPU_TESTS) $(GPU_CONFORMANCE)'; ! $(HAVE_GPU) || tests="$$tests $(GPU_SUITES)"; \
	before=; for t in $$tests; do case $$t in *nccl*) ;; *) before="$$before $${t%.*}.log" ;; esac; done; \
	ISO_TEST_DEVICE=cuda $(MAKE) $(AM_MAKEFLAGS) check TESTS="$$tests" check_PROGRAMS='$(GPU_ALL)' \
	    BEFORE_NCCL="$$before" BEFORE_NCCL_FAULTS="$$before tests/gpu/gpu_nccl.log"
# NCCL's tests watch for ranks that are late, so they run alone.
BEFORE_NCCL =
BEFORE_NCCL_FAULTS =
tests/gpu/gpu_nccl.log: $(BEFORE_NCCL)
tests/gpu/gpu_nccl_faults.log: $(BEFORE_NCCL_FAULTS)
# What it needs, without running it.
gpu-programs: $(GPU_HELPED_BY) $(GPU_ALL)

EXTRA_DIST += tests/gpu/check_gpu_train.sh tests/gpu/gpu_report.sh tests/gpu/gpu_resources.sh tests/gpu/gpu_train.sh \
    tests/gpu/gpu_table.awk tests/gpu/kernel_steps.py tests/gpu/kernel_times.c
