# SPDX-License-Identifier: MIT
# Sourced by the scripts that start MPI programs: sets the environment that these need.
# Expects in $root the top of the source tree.
# shellcheck shell=sh disable=SC2154

# Open MPI refuses to be run by root unless told that this is meant, as it is in a container.
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# Containers often forbid what its single-copy transport does; it then fails instead of falling back.
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
# Shared memory and TCP. Its search for network cards takes longer than the rest of MPI_Init.
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
# What the library would set through MPI_T, whose start takes Open MPI longer than MPI_Init.
export OMPI_MCA_coll_libnbc_iallreduce_algorithm="${OMPI_MCA_coll_libnbc_iallreduce_algorithm:-3}"
# Several tests run at a time. Ranks that wait let others run, also where one test has no more ranks than there are cores.
export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"
# Ranks share the cores; threads of each that spin would only take time from the others.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# UCX, below MPICH, replaces mmap, which some tests replace by their own.
export UCX_MEM_MMAP_HOOK_MODE="${UCX_MEM_MMAP_HOOK_MODE:-none}"
# Data files of the tests.
export ISO_TEST_FIXTURES="$root/tests/fixtures"
# The real MNIST files, for the tests that need them and are skipped otherwise.
if [ -z "${ISO_TEST_MNIST:-}" ] && [ -d "$root/../shared/data/mnist" ]; then
    ISO_TEST_MNIST=$(cd "$root/../shared/data/mnist" && pwd)
    export ISO_TEST_MNIST
fi
