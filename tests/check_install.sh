#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs into a private folder and builds programs against it as docs/gradient-engine.md says: a TAP result for
# each step.
# usage: check_install.sh, in the build tree; uses MPICC (mpicc), MPIFC (mpif90), MPIRUN and MPIRUN_FLAGS
# Not -e: what fails here is a result, not the end.
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
launcher=${MPIRUN:-mpirun}
flags=${MPIRUN_FLAGS---oversubscribe --bind-to none}
cc=${MPICC:-mpicc}
build=$PWD
if ! command -v pkg-config >/dev/null; then
    echo "1..0 # SKIP there is no pkg-config"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

results=0
result() { # what should hold, command...
    name=$1
    shift
    results=$((results + 1))
    if "$@" >"$work/output" 2>&1; then
        echo "ok - $name"
    else
        echo "not ok - $name"
        tail -n 40 "$work/output" | sed 's/^/# /'
    fi
}
skip() { # what should hold, why it is not looked at
    results=$((results + 1))
    echo "ok - $1 # SKIP $2"
}

# What make installs under the prefix of this build is moved to $HOME/isotherm, with the prefix in isotherm.pc changed:
# what a build for that prefix installs, but for programs.
prefix=$(sed -n 's/^prefix=//p' isotherm.pc)
HOME=$work/home
export HOME
mkdir "$HOME"
unset PKG_CONFIG_PATH LD_LIBRARY_PATH
install_private() {
    env -u MAKEFLAGS -u MFLAGS make --no-print-directory DESTDIR="$work/dest" \
        install-libLTLIBRARIES install-data </dev/null && mv "$work/dest$prefix" "$HOME/isotherm" &&
        pc=$(find "$HOME/isotherm" -name isotherm.pc) && sed "s|^prefix=.*|prefix=$HOME/isotherm|" "$pc" >"$work/pc" &&
        mv "$work/pc" "$pc"
}
result "the library, its headers and isotherm.pc are installed" install_private

# The lines of the documentation, as they are written.
line_of() { # its beginning
    sed -n 's/^    \('"$1"'.*\)/\1/p' "$root/docs/gradient-engine.md" | head -n 1
}
as_written() { # beginnings of lines...
    for beginning; do
        line=$(line_of "$beginning")
        echo "$line"
        [ -n "$line" ] || return 1
        eval "$line" || return 1
    done
}
# The compilers that this build was made with, under the names that the documentation gives.
fc=${MPIFC:-$(dirname "$(command -v "$cc")")/$(basename "$cc" | sed 's/mpicc/mpif90/')}
mkdir "$work/bin"
ln -s "$(command -v "$cc")" "$work/bin/mpicc"
PATH=$work/bin:$PATH
cat >"$work/program.c" <<'END'
#include <isotherm.h>
#include <mpi.h>
int main(int argc, char **argv) {
    iso_comm *comm;
    iso_device *device;
    double sum = 1;
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (iso_comm_create(MPI_COMM_WORLD, NULL, &comm) < 0 || iso_device_create("cpu", &device) < 0 ||
        iso_device_set_threads(device, 2) < 0 || iso_comm_allreduce_f64(comm, &sum, 1, ISO_SUM) < 0)
        iso_error_print(stderr);
    printf("sum %g of %d\n", sum, iso_comm_size(comm));
    iso_device_destroy(&device);
    iso_comm_destroy(&comm);
    MPI_Finalize();
    return 0;
}
END
cd "$work" || exit 1
result "the documented line compiles a C program" as_written 'export PKG_CONFIG_PATH' 'mpicc program\.c'
eval "$(line_of 'export PKG_CONFIG_PATH')"
runs() { # program
    # shellcheck disable=SC2086  # several words
    timeout -k 5 60 "$launcher" $flags -n 2 "$1" </dev/null && [ "$(grep -c 'sum 2 of 2' "$work/output")" = 2 ]
}
if [ "$launcher" = no ]; then
    skip "the program finds the library when it runs" "configure found no MPI launcher"
elif ! grep -q rpath "$build/isotherm.pc"; then
    skip "the program finds the library when it runs" "this build is for a folder of the loader's"
else
    result "the program finds the library when it runs" runs ./program
fi

# Each with the commands of its first comment, in the folder that it is in.
compiles_alone() { # example
    cd "$(dirname "$(find "$HOME/isotherm/share" -name "$1.c")")" && lines=$(sed -n 's|^//   \(flags=.*\)|\1|p; s|^//   mpicc|mpicc|p' "$1.c") &&
        echo "$lines" && [ -n "$lines" ] && eval "$lines" && mv a.out "$work/$1"
}
examples_compile() {
    for example in mnist mnist_daso own_arrays residual_net_mpi regression char_gpt two_inputs; do
        (compiles_alone $example) || return 1
    done
}
result "the installed examples compile with the commands of their first comments" examples_compile
plugin_compiles() (
    cd "$(dirname "$(find "$HOME/isotherm/share" -name plugin_diloco.c)")" &&
        eval "$(sed -n 's|^//   \(flags=.*\)|\1|p; s|^//   mpicc|mpicc|p' plugin_diloco.c)" && rm plugin_diloco.so
)
result "the installed plugin compiles with the commands of its first comment" plugin_compiles
# In other languages: the commands that need the library.
other_compiles() { # example, beginnings of lines, compiler, the name in them
    if ! command -v "$3" >/dev/null; then return 0; fi
    ln -sf "$(command -v "$3")" "$work/bin/$4"
    cd "$(dirname "$(find "$HOME/isotherm/share" -name "$1")")" && lines=$(sed -n "s@^$2   \(flags=.*\|module=.*\|$4 .*\)@\1@p" "$1") &&
        echo "$lines" && [ -n "$lines" ] && eval "$lines" && mv a.out "$work/$1.out" && rm -f ./*.mod
}
cxx=${MPICXX:-$(echo "$cc" | sed 's/\(.*\)mpicc/\1mpicxx/')}
others_compile() {
    (other_compiles residual_net_mpi.cpp // "$cxx" mpicxx) || return 1
    if "$fc" --version >/dev/null 2>&1 && printf 'use mpi_f08\nend\n' >empty.f90 && "$fc" empty.f90 -o empty; then
        (other_compiles residual_net_mpi.f90 ! "$fc" mpif90) && (other_compiles own_arrays.f90 ! "$fc" mpif90)
    fi
}
result "those in C++ and Fortran do, too" others_compile
if [ "$launcher" = no ] || ! grep -q rpath "$build/isotherm.pc"; then
    skip "... and run" "there is no MPI launcher, or this build is for a folder of the loader's"
else
    # shellcheck disable=SC2086  # several words
    runs_example() { timeout -k 5 60 "$launcher" $flags -n 2 ./mnist --help </dev/null && grep -q '^usage:' "$work/output"; }
    result "... and run" runs_example
fi

cat >program.f90 <<'END'
program calls
    use isotherm
    implicit none
    include 'mpif.h'
    type(iso_comm) :: comm
    integer :: code
    call MPI_Init(code)
    if (iso_comm_create(MPI_COMM_WORLD, comm) == ISO_OK) print '(a, i0)', 'sum 2 of ', iso_comm_size(comm)
    call iso_comm_destroy(comm)
    call MPI_Finalize(code)
end program
END
if ! printf "program empty\ninclude 'mpif.h'\ncall MPI_Init(i)\nend program\n" >empty.f90 ||
    ! "$fc" empty.f90 -o empty >why 2>&1; then
    skip "the documented line compiles a Fortran program" "no MPI compiler for Fortran: $fc does not work"
else
    ln -sf "$fc" bin/mpif90
    rm -f program
    result "the documented line compiles a Fortran program" as_written 'mpif90 .*program\.f90'
    result "... which runs" runs ./program
fi

# Of the objects that are in the shared library a static one is made; its users link what isotherm.pc lists.
# shellcheck disable=SC2046,SC2086  # several words
link_static() {
    mkdir static && ln -s "$build/.libs/libiso_core.a" static/libisotherm.a &&
        static_libs=$(pkg-config --static --libs isotherm | sed "s|-L[^ ]*/home/isotherm/[^ ]*|-L$work/static|") &&
        echo "$static_libs" &&
        "$cc" program.c -o program-static $(pkg-config --cflags isotherm) $static_libs
}
result "pkg-config --static lists all that a static library needs" link_static
if [ "$launcher" = no ]; then
    skip "the statically linked program runs" "configure found no MPI launcher"
else
    result "the statically linked program runs" runs ./program-static
fi

echo "1..$results"
