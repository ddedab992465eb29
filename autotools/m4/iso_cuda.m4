dnl SPDX-License-Identifier: MIT
# ISO_CUDA: the CUDA device. --with-cuda[=DIR|auto|emulated|no], default no, with a word in the summary where a toolkit
# is found; "auto" builds it where one is found. "emulated" builds against tests/cuda_emulator, which runs kernels on the CPU: for tests only. cuBLAS, cuDNN and NCCL are loaded
# when they are needed, so only their headers matter here. Sets CUDACC (the compiler of .cu files), CUDACC_FLAGS,
# CUDACC_TAG, CUDA_CFLAGS, CUDA_LIBS, have_cuda, have_cudnn and have_nccl.
AC_DEFUN([ISO_CUDA], [
    AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR|auto|emulated|no@:>@],
                                        [the CUDA device (default: no; auto: if nvcc is found)])],
                [], [with_cuda=no cuda_default=yes])
    AC_ARG_WITH([cuda-arch], [AS_HELP_STRING([--with-cuda-arch=LIST],
                                             [GPUs to compile for, and PTX of the last (default: 80,90)])],
                [], [with_cuda_arch=80,90 cuda_arch_default=yes])
    AC_ARG_ENABLE([cuda-lineinfo], [AS_HELP_STRING([--enable-cuda-lineinfo],
                                                   [kernels with line numbers, for profilers (default: no)])],
                  [], [enable_cuda_lineinfo=no])
    AC_ARG_WITH([cudnn], [AS_HELP_STRING([--with-cudnn@<:@=no@:>@], [convolutions of cuDNN (default: if found)])],
                [], [with_cudnn=auto])
    AC_ARG_WITH([nccl], [AS_HELP_STRING([--with-nccl@<:@=no@:>@], [NCCL between GPUs of a node (default: if found)])],
                [], [with_nccl=auto])
    AS_CASE([$with_cuda_arch], [*@<:@!0-9a-f,@:>@*|''|*,], [AC_MSG_ERROR([--with-cuda-arch=$with_cuda_arch: give numbers as in 80,90])])
    AS_CASE([$with_cudnn,$with_nccl], [auto,auto|auto,yes|auto,no|yes,auto|yes,yes|yes,no|no,auto|no,yes|no,no], [],
            [AC_MSG_ERROR([--with-cudnn and --with-nccl take yes or no: their headers are looked for beside the CUDA toolkit's and where CPPFLAGS says])])
    AC_ARG_VAR([NVCC], [compiler of CUDA files, instead of the one found])
    have_cuda=no have_cudnn=no have_nccl=no cuda_what=no CUDACC=false CUDACC_FLAGS= CUDACC_TAG=CC CUDA_CFLAGS= CUDA_LIBS=
    AS_CASE([$with_cuda],
            [no], [ISO_CUDA_LEFT_OUT],
            [emulated], [ISO_CUDA_USE_EMULATOR],
            [ISO_CUDA_USE_TOOLKIT])
    AS_IF([test $have_cuda = yes], [ISO_CUDA_VERSION])
    AS_IF([test $have_cuda = yes],
          [AC_DEFINE([ISO_HAVE_CUDA], [1], [Define to 1 to build the CUDA device.])
           ISO_CUDA_LIBRARIES])
    AC_SUBST([CUDACC])
    AC_SUBST([CUDACC_FLAGS])
    AC_SUBST([CUDACC_TAG])
    AC_SUBST([CUDA_CFLAGS])
    AC_SUBST([CUDA_LIBS])
    AM_CONDITIONAL([ISO_HAVE_CUDA], [test $have_cuda = yes])
    AM_CONDITIONAL([ISO_HAVE_CUDNN], [test $have_cudnn = yes])
    AM_CONDITIONAL([ISO_HAVE_NCCL], [test $have_nccl = yes])
    AM_CONDITIONAL([ISO_CUDA_EMULATED], [test "$with_cuda" = emulated])
])

# Says what there would be, and refuses options that belong to it.
AC_DEFUN([ISO_CUDA_LEFT_OUT], [
    AS_IF([test "$cuda_arch_default" != yes || test "$enable_cuda_lineinfo" != no],
          [AC_MSG_ERROR([--with-cuda-arch and --enable-cuda-lineinfo belong to --with-cuda: give that, too])])
    AS_CASE([$with_cudnn,$with_nccl], [yes,*|*,yes],
            [AC_MSG_ERROR([--with-cudnn and --with-nccl belong to --with-cuda: give that, too])])
    AS_IF([test "$cuda_default" = yes], [
        iso_nvcc=`command -v nvcc`
        for iso_dir in /usr/local/cuda /usr/lib/cuda; do
            AS_IF([test -z "$iso_nvcc" && test -x $iso_dir/bin/nvcc], [iso_nvcc=$iso_dir/bin/nvcc])
        done
        AS_IF([test -n "$iso_nvcc"], [cuda_what="no ($iso_nvcc is there: --with-cuda builds for GPUs)"])])
])

AC_DEFUN([ISO_CUDA_USE_EMULATOR], [
    AC_LANG_PUSH([C++])
    AC_LINK_IFELSE([AC_LANG_PROGRAM()], [], [AC_MSG_ERROR([--with-cuda=emulated needs a C++ compiler
(Debian: apt-get install g++)])])
    AC_LANG_POP([C++])
    CUDA_CFLAGS="-DISO_CUDA_EMULATED -I$ac_abs_confdir/tests/cuda_emulator/include"
    CUDACC="$CXX" CUDACC_TAG=CXX
    CUDACC_FLAGS="-x c++ -std=gnu++14 -O2 -g -Wall -Wextra -Wno-unknown-pragmas -pthread $CUDA_CFLAGS"
    # What a GPU refuses, a CPU bears: accesses that are not aligned. In builds with that sanitizer kernels are checked.
    AS_CASE([$CFLAGS], [*-fsanitize=*undefined*],
            [CUDACC_FLAGS="$CUDACC_FLAGS -fsanitize=alignment,bounds -fno-sanitize-recover=alignment,bounds"])
    CUDA_LIBS="-lstdc++ -ldl -lpthread"
    have_cuda=yes cuda_what="emulated on the CPU (for tests)" cuda_libdir=
])

AC_DEFUN([ISO_CUDA_USE_TOOLKIT], [
    AS_CASE([$with_cuda], [auto|yes], [cuda_dirs="/usr/local/cuda /usr/lib/cuda"], [cuda_dirs=$with_cuda])
    AS_IF([test -z "$NVCC"], [
        AS_CASE([$with_cuda], [auto|yes], [AC_PATH_PROG([NVCC], [nvcc])])
        for dir in $cuda_dirs; do
            AS_IF([test -z "$NVCC" && test -x "$dir/bin/nvcc"], [NVCC=$dir/bin/nvcc])
        done])
    AS_IF([test -n "$NVCC"], [
        # Where nvcc itself says its toolkit is.
        cuda_home=`"$NVCC" --dryrun x.cu 2>&1 | sed -n 's/^#\$ TOP=//p' | head -n 1`
        cuda_home=`cd "$cuda_home" 2>/dev/null && pwd -P`
        cuda_libdir=$cuda_home/lib64
        test -d "$cuda_libdir" || cuda_libdir=$cuda_home/lib
        CUDA_CFLAGS="-isystem $cuda_home/include"
        CUDA_LIBS="-L$cuda_libdir -lcudart_static -lstdc++ -ldl -lrt -lpthread"
        cuda_gencode=
        for arch in `echo "$with_cuda_arch" | tr , ' '`; do
            cuda_gencode="$cuda_gencode -gencode arch=compute_$arch,code=sm_$arch"
        done
        cuda_lineinfo=
        AS_IF([test "$enable_cuda_lineinfo" != no], [cuda_lineinfo=-lineinfo])
        CUDACC_FLAGS="-std=c++14 -O3 $cuda_lineinfo $cuda_gencode -gencode arch=compute_$arch,code=compute_$arch"
        CUDACC="\$(SHELL) $ac_abs_confdir/autotools/nvcc.sh $NVCC"
        AC_MSG_CHECKING([whether $NVCC compiles for $with_cuda_arch and links])
        mkdir -p conftest.dir
        AS_ECHO(['__global__ void k(int *x) { *x = 1; }
extern "C" int launch(void) { int *x = 0; return cudaMalloc(&x, 4) + (k<<<1, 1>>>(x), 0); }']) >conftest.dir/k.cu
        AS_IF([$NVCC $CUDACC_FLAGS -Xcompiler -fPIC -c conftest.dir/k.cu -o conftest.dir/k.o >&AS_MESSAGE_LOG_FD 2>&1],
              [ISO_LINKS([], [conftest.dir/k.o $CUDA_LIBS], [int launch(void);], [return launch();],
                         [have_cuda=yes])])
        rm -rf conftest.dir
        AC_MSG_RESULT([$have_cuda])
        AS_IF([test $have_cuda = yes], [cuda_what="$cuda_home, sm_$with_cuda_arch"])])
    AS_IF([test $have_cuda = no], [
        AS_CASE([$with_cuda,$cuda_arch_default], [auto,yes], [],
                [AC_MSG_ERROR([--with-cuda=$with_cuda: no CUDA toolkit that works (compiler: ${NVCC:-none found}, GPUs:
$with_cuda_arch; config.log has its messages). Debian: apt-get install nvidia-cuda-toolkit; or NVIDIA's packages, and
--with-cuda=DIR where DIR/bin/nvcc is])])
        CUDA_CFLAGS= CUDA_LIBS=])
])

# CUDA 12 changed the arguments of cudaGraphInstantiate.
AC_DEFUN([ISO_CUDA_VERSION], [
    iso_save_CPPFLAGS=$CPPFLAGS
    CPPFLAGS="$CPPFLAGS $CUDA_CFLAGS"
    AC_COMPUTE_INT([iso_version], [CUDART_VERSION / 1000], [[#include <cuda_runtime_api.h>]], [iso_version=0])
    CPPFLAGS=$iso_save_CPPFLAGS
    AC_MSG_CHECKING([for CUDA 12 or newer])
    AC_MSG_RESULT([$iso_version])
    AS_IF([test "$iso_version" -lt 12], [
        AS_IF([test "$with_cuda" != auto],
              [AC_MSG_ERROR([--with-cuda=$with_cuda: this is CUDA $iso_version, and 12 or newer is needed])])
        have_cuda=no cuda_what="no (CUDA $iso_version is there: 12 or newer is needed)" CUDA_CFLAGS= CUDA_LIBS=])
])

# ISO_CUDA_OPTIONAL(name, NAME, header, macro of its version, oldest version)
AC_DEFUN([ISO_CUDA_OPTIONAL], [
    AS_IF([test "$with_$1" != no], [
        AC_COMPUTE_INT([iso_version], [$4], [[#include <$3>]], [iso_version=0])
        AC_MSG_CHECKING([for $1 $5 or newer])
        AS_IF([test "$iso_version" -ge $5], [have_$1=yes])
        AS_IF([test $have_$1 = no && test "$iso_version" -gt 0],
              [AC_MSG_RESULT([no, it is $iso_version])
               AS_IF([test "$with_$1" = yes],
                     [AC_MSG_ERROR([--with-$1: this is $1 $iso_version, and $5 or newer is needed])])
               AC_MSG_WARN([built without $1: $5 or newer is needed])],
              [AC_MSG_RESULT([$have_$1])])
        AS_IF([test $have_$1 = yes],
              [AC_DEFINE([ISO_HAVE_$2], [1], [Define to 1 to build with $1.])
               AC_DEFINE_UNQUOTED([ISO_$2_SONAME], ["lib$1.so.$iso_version"], [The library to load for $1.])],
              [AS_CASE([$with_$1], [auto], [], [AC_MSG_ERROR([--with-$1: no $3 was found])])])])
])

AC_DEFUN([ISO_CUDA_LIBRARIES], [
    iso_save_CPPFLAGS=$CPPFLAGS
    CPPFLAGS="$CPPFLAGS $CUDA_CFLAGS"
    AC_DEFINE_UNQUOTED([ISO_CUDA_LIBDIR], ["$cuda_libdir"], [Where CUDA libraries are that the loader does not find.])
    AC_COMPUTE_INT([iso_version], [CUBLAS_VER_MAJOR], [[#include <cublas_v2.h>]], [iso_version=0])
    AS_IF([test "$iso_version" -le 0], [AC_MSG_ERROR([the CUDA toolkit has no cublas_v2.h: install cuBLAS, or say --with-cuda=no])])
    AC_DEFINE_UNQUOTED([ISO_CUBLAS_SONAME], ["libcublas.so.$iso_version"], [The library to load for cuBLAS.])
    AC_DEFINE_UNQUOTED([ISO_CUBLASLT_SONAME], ["libcublasLt.so.$iso_version"], [The library to load for cuBLASLt.])
    ISO_CUDA_OPTIONAL([cudnn], [CUDNN], [cudnn.h], [CUDNN_MAJOR], [9])
    ISO_CUDA_OPTIONAL([nccl], [NCCL], [nccl.h], [NCCL_MAJOR], [2])
    CPPFLAGS=$iso_save_CPPFLAGS
])
