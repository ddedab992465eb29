# Tests of several ranks, the number of which is in the suite name (np4_daso).
# For each: MPI_TESTS += tests/mpi/NAME.mpi, and
#   tests_mpi_NAME_mpi_SOURCES = tests/mpi/test_NAME.c
MPI_TESTS = tests/mpi/comm.mpi
tests_mpi_comm_mpi_SOURCES = tests/mpi/test_comm.c
MPI_TESTS += tests/mpi/reducer.mpi
tests_mpi_reducer_mpi_SOURCES = tests/mpi/test_reducer.c
MPI_TESTS += tests/mpi/data_parallel.mpi
tests_mpi_data_parallel_mpi_SOURCES = tests/mpi/test_data_parallel.c
MPI_TESTS += tests/mpi/gradients.mpi
tests_mpi_gradients_mpi_SOURCES = tests/mpi/test_gradients.c
MPI_TESTS += tests/mpi/used_layers.mpi
tests_mpi_used_layers_mpi_SOURCES = tests/mpi/test_used_layers.c
