#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs configure with options that it takes and options that it refuses, and prints the results as TAP.
# usage: check_configure.sh, in the build tree
# Not -e: what fails here is a result, not the end.
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
if [ ! -e "$root/configure" ] || [ -e "$root/config.status" ]; then
    echo "1..0 # SKIP the source tree has no configure, or was configured itself"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

results=0
result() { # what should hold, command...
    name=$1
    shift
    results=$((results + 1))
    if "$@" >>output 2>&1; then
        echo "ok - $name"
    else
        echo "not ok - $name"
        tail -n 40 output | sed 's/^/# /'
    fi
}
# What takes long and is the same for all runs is looked up once.
configure() { # argument...
    status=0
    env -u CBLAS_CFLAGS -u CBLAS_LIBS "$root/configure" CFLAGS=-O0 --cache-file="$work/cache" "$@" >output 2>&1 </dev/null ||
        status=$?
}
refuses() { # pattern of the message
    [ "$status" != 0 ] && grep -qE "^configure: error: .*$1" output && [ ! -e Makefile ]
}

# A folder with a C BLAS: its header gives the integers of the calls a name, or none, as Netlib's does not.
make_blas() { # folder, file of the library, body of the header
    mkdir -p "$1/include" "$1/lib"
    cat >"$1/include/cblas.h" <<END
enum CBLAS_ORDER { CblasRowMajor = 101 };
enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112 };
$3
END
    cat >blas.c <<END
#include <cblas.h>
void cblas_sgemm() {}
void cblas_dgemm() {}
END
    # No prototypes: whatever the header calls the integers, they are not looked at.
    sed -i 1d blas.c
    # shellcheck disable=SC2086  # a compiler may be several words
    ${CC:-cc} -shared -fPIC blas.c -o "$1/lib/$2"
}
calls='void cblas_sgemm(enum CBLAS_ORDER, enum CBLAS_TRANSPOSE, enum CBLAS_TRANSPOSE, INT, INT, INT, float,
                 const float *, INT, const float *, INT, float, float *, INT);
void cblas_dgemm(enum CBLAS_ORDER, enum CBLAS_TRANSPOSE, enum CBLAS_TRANSPOSE, INT, INT, INT, double,
                 const double *, INT, const double *, INT, double, double *, INT);'
make_blas plain libopenblas.so "$(echo "$calls" | sed 's/INT/int/g')"
make_blas other libblas.so "typedef long other_int; $(echo "$calls" | sed 's/INT/other_int/g')"
make_blas broken libopenblas.so "$(echo "$calls" | sed 's/INT/blasint/g')"

# ---- Options that it does not have ----

for option in --with-dnnl=no --disable-opnemp; do
    configure "$option"
    result "an option that there is not is refused: $option" refuses "unrecognized options: ${option%=no}"
done

# ---- BLAS and CUDA ----

# A compiler of CUDA that says when it is asked.
mkdir bin
printf '#!/bin/sh\ntouch "%s/asked"\nexit 1\n' "$work" >bin/nvcc
chmod +x bin/nvcc
PATH=$work/bin:$PATH

configure --with-cblas="$work/other"
found() { # line of the summary
    [ "$status" = 0 ] && grep -qE "^ +$1" output
}
result "the BLAS of a folder is found under another name than OpenBLAS" \
    found 'CBLAS +yes \(.*/other/lib .*-lblas\)'
left_out() {
    found 'CUDA +no \(.*/nvcc is there: --with-cuda' && [ ! -e asked ] && ! grep -q 'define ISO_HAVE_CUDA' config.h
}
result "CUDA is not built unasked, and the summary says that it could be" left_out
# The one file that calls BLAS, against a header without OpenBLAS's words.
compiles() { # folder
    flags=$(sed -n 's/^MPI_CFLAGS = //p' Makefile)
    # shellcheck disable=SC2086  # several words
    ${CC:-cc} -std=gnu11 -Wall -Wextra -Wconversion -Werror -I. -Iinclude -I"$root/include" -I"$root/src" \
        -I"$1/include" $flags -c "$root/src/device/cpu/plain/cpu_cblas.c" -o cpu_cblas.o
}
result "the kernels compile where the integers of BLAS are long" compiles other
result "the kernels compile with a header that does not name its integers" compiles plain
rm -f Makefile
configure --with-cblas="$work/broken"
result "a BLAS whose header does not compile is refused" refuses '--with-cblas=.*/broken: no C BLAS whose cblas_sgemm'
configure --with-cuda-arch=80
result "an option of CUDA without --with-cuda is refused" refuses '--with-cuda-arch and .* belong to --with-cuda'

# Headers of other versions, in front of those of the emulated CUDA, which needs a C++ compiler.
mkdir old old/cuda old/cudnn
echo '#define CUDART_VERSION 11080' >old/cuda/cuda_runtime_api.h
echo '#define CUDNN_MAJOR 8' >old/cudnn/cudnn.h
if ${CXX:-c++} --version >output 2>&1; then
    rm -f cache Makefile
    configure --with-cuda=emulated CPPFLAGS="-I$work/old/cuda"
    result "CUDA 11 is refused" refuses 'this is CUDA 11, and 12 or newer is needed'
    rm -f cache
    configure --with-cuda=emulated --with-cudnn CPPFLAGS="-I$work/old/cudnn"
    result "cuDNN 8 is refused where it is asked for" refuses 'this is cudnn 8, and 9 or newer is needed'
    rm -f cache
    configure --with-cuda=emulated CPPFLAGS="-I$work/old/cudnn"
    result "cuDNN 8 is else left out" found 'cuDNN +no'
fi

# ---- How many jobs quickstart starts ----

. "$root/tests/cores.sh"
printf '#!/bin/sh\necho "${OMP_NUM_THREADS:-${OMP_THREAD_LIMIT:-7}}"\n' >bin/nproc
chmod +x bin/nproc
mkdir two none one
echo "150000 100000" >two/cpu.max
echo "max 100000" >none/cpu.max
mkdir one/cpu
echo 20000 >one/cpu/cpu.cfs_quota_us
echo 100000 >one/cpu/cpu.cfs_period_us
jobs_are() { # number, folder of the control group
    got=$(OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1 CORES_CGROUP=$work/$2 cores)
    echo "$2: $got"
    [ "$got" = "$1" ]
}
result "the number of jobs is that of the cores, whatever OMP_NUM_THREADS" jobs_are 7 none
result "a container's share of time bounds it" jobs_are 2 two
result "a share of less than one core leaves one job" jobs_are 1 one

names_argument() { # argument, all arguments
    wrong=$1
    shift
    ! "$root/quickstart" "$@" >out 2>err && [ ! -s out ] && cat err &&
        [ "$(head -n 1 err)" = "quickstart: unexpected argument $wrong: see ./quickstart help" ] && [ "$(wc -l <err)" = 1 ]
}
result "quickstart names an argument that it does not know" names_argument foo foo
result "and one too many" names_argument foo help foo

echo "1..$results"
