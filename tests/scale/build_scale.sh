#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds bench_scale for SimGrid's SMPI, which runs all ranks in one process and in simulated time.
# usage: build_scale.sh FOLDER, which is made if needed (Debian: apt-get install libsimgrid-dev)
#
# smpicc renames main, and each rank loads a copy of the program to have variables of its own, so everything of the
# library is linked statically. The linker puts the functions of smpi_*.c in the places of those named below. SimGrid's timers need C++ and Boost.
set -eu

[ $# -eq 1 ] || {
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
}
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v smpicc >/dev/null || {
    echo "build_scale.sh: needs smpicc (Debian: apt-get install libsimgrid-dev)" >&2
    exit 77
}
mkdir -p "$1"
cd "$1"
# SMPI's macros for malloc and free would break members of that name.
[ -f config.status ] ||
    "$root/configure" --quiet --host="$(gcc -dumpmachine)" CC=smpicc MPICC=smpicc --disable-shared --enable-static \
        --without-criterion --with-cuda=no CPPFLAGS=-DSMPI_NO_OVERRIDE_MALLOC CFLAGS='-O2 -g'
make -s libiso_core.la

libs=$(sed -n 's/^ISO_LIBS = //p' Makefile)
wrapped=
for function in MPI_Test MPI_Testsome MPI_Improbe MPI_Isend MPI_Issend MPI_Irecv MPI_Comm_dup MPI_Comm_split \
    MPI_Comm_split_type MPI_Comm_create_group MPI_Comm_free MPI_Ibarrier MPI_Ibcast MPI_Iallgather MPI_Ialltoall MPI_Igather MPI_Ireduce \
    MPI_Iallreduce sched_yield smpi_nanosleep iso__alloc iso__alloc_zero iso__realloc iso__free; do
    wrapped="$wrapped -Wl,--wrap=$function"
done
objects=
for source in tests/bench/bench_breakdown.c tests/bench/bench_model.c tests/bench/bench_peak.c \
    tests/bench/bench_scale.c tests/bench/bench_util.c examples/support/models.c examples/support/models_resnet.c \
    tests/scale/smpi_collectives.c tests/scale/smpi_comms.c tests/scale/smpi_memory.c tests/scale/smpi_network.c; do
    object=scale-$(basename "$source" .c).o
    smpicc -std=gnu11 -O2 -g -DSMPI_NO_OVERRIDE_MALLOC -D_GNU_SOURCE -Wall -Wextra -I. -Iinclude -I"$root/include" \
        -I"$root/src" -I"$root" -c "$root/$source" -o "$object"
    objects="$objects $object"
done
g++ -std=c++17 -O2 -g -fPIC -c "$root/tests/scale/smpi_alarm.cpp" -o scale-smpi_alarm.o
# shellcheck disable=SC2086  # several words
smpicc -g $objects scale-smpi_alarm.o -o bench_scale_symbols $wrapped .libs/libiso_core.a .libs/libiso_kernels_f64.a $libs -fopenmp \
    -pthread -lstdc++ -lm
# SMPI makes a file of it for each rank.
strip -o bench_scale_simulated bench_scale_symbols
