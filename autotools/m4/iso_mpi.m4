dnl SPDX-License-Identifier: MIT
# ISO_MPI: the MPI library, which is required, and how to launch programs with it.
# The flags come from the words that mpicc would add to the compiler, so that everything is
# compiled with plain CC. Sets MPI_CFLAGS, MPI_LIBS, MPIRUN and MPIRUN_FLAGS.
AC_DEFUN([ISO_MPI], [
    AC_ARG_WITH([mpi], [AS_HELP_STRING([--with-mpi@<:@=DIR@:>@], [MPI, required (default: mpicc in PATH)])],
                [], [with_mpi=auto])
    AC_ARG_VAR([MPICC], [MPI compiler that is asked for the flags])
    AC_ARG_VAR([MPI_CFLAGS], [compiler flags for MPI, instead of those found])
    AC_ARG_VAR([MPI_LIBS], [linker flags for MPI, instead of those found])
    iso_mpi_path=$PATH
    AS_CASE([$with_mpi],
        [no], [AC_MSG_ERROR([MPI is required, --without-mpi is not possible])],
        [auto|yes], [],
        [iso_mpi_path=$with_mpi/bin
         AS_IF([test ! -x "$with_mpi/bin/mpicc"],
               [AC_MSG_ERROR([--with-mpi=$with_mpi: no program $with_mpi/bin/mpicc
(Debian: apt-get install libopenmpi-dev openmpi-bin, and no directory is needed)])])])
    AS_IF([test -z "$MPICC"], [AC_PATH_PROG([MPICC], [mpicc], [], [$iso_mpi_path])])
    iso_mpi_words=
    AS_IF([test -n "$MPICC"], [iso_mpi_words=`$MPICC -show`],
          [test -n "$PKG_CONFIG"],
          [iso_mpi_words=`$PKG_CONFIG --cflags --libs ompi-c 2>/dev/null`])
    iso_cflags= iso_libs=
    for iso_word in $iso_mpi_words; do
        AS_CASE([$iso_word],
            [-I*|-D*], [iso_cflags="$iso_cflags $iso_word"],
            [-L*|-l*|-Wl,*|-pthread], [iso_libs="$iso_libs $iso_word"])
    done
    MPI_CFLAGS=${MPI_CFLAGS-$iso_cflags}
    MPI_LIBS=${MPI_LIBS-$iso_libs}
    AC_MSG_CHECKING([for MPI 3])
    ISO_LINKS([$MPI_CFLAGS], [$MPI_LIBS], [#include <mpi.h>],
              [MPI_Request r; int a = 1, b;
               return MPI_Iallreduce(&a, &b, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &r);],
              [AC_MSG_RESULT([yes])],
              [AC_MSG_RESULT([no])
               AC_MSG_ERROR([MPI was not found (Debian: apt-get install libopenmpi-dev openmpi-bin)])])
    # SimGrid's SMPI has no interface for tools.
    AC_MSG_CHECKING([for MPI_T])
    ISO_LINKS([$MPI_CFLAGS], [$MPI_LIBS], [#include <mpi.h>],
              [int count; return MPI_T_cvar_get_num(&count);],
              [AC_MSG_RESULT([yes])
               AC_DEFINE([ISO_HAVE_MPI_T], [1], [Define to 1 if MPI has MPI_T.])],
              [AC_MSG_RESULT([no])])

    AC_ARG_VAR([MPIRUN], [launches MPI programs in tests, "no" for none (default: mpirun or mpiexec)])
    AC_ARG_VAR([MPIRUN_FLAGS], [options for MPIRUN (default: those that let tests use more ranks than cores)])
    # That of the same MPI: mpicc.mpich comes with mpirun.mpich, and DIR/mpicc with DIR/mpirun.
    iso_mpi_suffix=`expr "x$MPICC" : '.*mpicc\(.*\)'`
    AS_CASE([$MPICC], [*/*], [iso_mpi_path=`AS_DIRNAME(["$MPICC"])`:$iso_mpi_path])
    AS_IF([test -z "$MPIRUN"],
          [AC_PATH_PROGS([MPIRUN], [mpirun$iso_mpi_suffix mpiexec$iso_mpi_suffix mpirun mpiexec], [no], [$iso_mpi_path])])
    AC_MSG_CHECKING([for options of $MPIRUN])
    AS_IF([test -z "${MPIRUN_FLAGS+set}"],
          [AS_CASE([`$MPIRUN --version 2>/dev/null`],
                   [*"Open MPI"*|*OpenRTE*], [MPIRUN_FLAGS="--oversubscribe --bind-to none"],
                   [*HYDRA*], [MPIRUN_FLAGS="-pmi-port"], # Criterion closes the pipe it uses else
                   [MPIRUN_FLAGS=])])
    AC_MSG_RESULT([${MPIRUN_FLAGS:-none}])
])
