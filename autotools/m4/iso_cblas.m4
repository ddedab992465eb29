dnl SPDX-License-Identifier: MIT
# ISO_CBLAS: a C BLAS, the fallback kernels of the CPU device: OpenBLAS, BLIS, MKL, ATLAS or Netlib's. The first one
# whose header and library compile and link the calls that the kernels make is taken. Adds --with-cblas[=DIR|no],
# default auto; sets CBLAS_CFLAGS, CBLAS_LIBS, ISO_HAVE_CBLAS (config.h and conditional), have_cblas (yes or no) and
# cblas_what (for the summary).
AC_DEFUN([ISO_CBLAS], [
    AC_ARG_WITH([cblas], [AS_HELP_STRING([--with-cblas@<:@=DIR|no@:>@], [BLAS kernels for the CPU (default: if found)])],
                [], [with_cblas=auto])
    AC_ARG_VAR([CBLAS_CFLAGS], [compiler flags for the C BLAS, instead of those found])
    AC_ARG_VAR([CBLAS_LIBS], [linker flags for the C BLAS, instead of those found])
    have_cblas=no cblas_what=no cblas_mkl=no iso_cblas_cflags= iso_cblas_libs=
    AS_CASE([$with_cblas],
        [no|auto|yes], [],
        [AS_IF([test ! -d "$with_cblas/include"], [AC_MSG_ERROR([--with-cblas=$with_cblas: no folder $with_cblas/include
(Debian: apt-get install libopenblas-dev, and no directory is needed)])])
         iso_cblas_cflags="-I$with_cblas/include"
         iso_cblas_libs="-L$with_cblas/lib -Wl,-rpath,$with_cblas/lib "])
    AS_IF([test "$with_cblas" != no], [
        AC_MSG_CHECKING([for a C BLAS])
        AS_IF([test -n "${CBLAS_LIBS+set}${CBLAS_CFLAGS+set}"],
              [ISO_CBLAS_TRY([${CBLAS_CFLAGS-$iso_cblas_cflags}], [${CBLAS_LIBS-$iso_cblas_libs-lopenblas}])],
              [ISO_CBLAS_SEARCH])
        AC_MSG_RESULT([$cblas_what])
    ])
    AS_IF([test $have_cblas = yes],
          [AC_DEFINE([ISO_HAVE_CBLAS], [1], [Define to 1 to build with a C BLAS: BLAS kernels for the CPU.])
           AS_IF([test $cblas_mkl = yes],
                 [AC_DEFINE([ISO_CBLAS_MKL], [1], [Define to 1 if the header of the C BLAS is mkl_cblas.h.])])],
          [AS_CASE([$with_cblas], [no|auto], [],
                   [AC_MSG_ERROR([--with-cblas=$with_cblas: no C BLAS whose cblas_sgemm compiles and links was found
(looked for OpenBLAS, BLIS, MKL, ATLAS and Netlib's; config.log has the compiler's messages; Debian: apt-get install
libopenblas-dev)])])
           CBLAS_CFLAGS= CBLAS_LIBS=])
    AM_CONDITIONAL([ISO_HAVE_CBLAS], [test $have_cblas = yes])
])

# As pkg-config describes each (not inside DIR), then by the usual names of its libraries.
AC_DEFUN([ISO_CBLAS_SEARCH], [
    for iso_blas in openblas blis mkl atlas cblas blas; do
        AS_CASE([$iso_blas],
                [mkl], [iso_module=mkl-sdl iso_libs=-lmkl_rt],
                [atlas], [iso_module=atlas iso_libs="-lcblas -latlas"],
                [cblas], [iso_module=cblas iso_libs="-lcblas -lblas"],
                [iso_module=$iso_blas iso_libs=-l$iso_blas])
        AS_IF([test -z "$iso_cblas_cflags" && test -n "$PKG_CONFIG" && $PKG_CONFIG --exists "$iso_module"],
              [ISO_CBLAS_TRY([`$PKG_CONFIG --cflags $iso_module`], [`$PKG_CONFIG --libs $iso_module`])])
        AS_IF([test $have_cblas = no && ISO_CBLAS_IS_IN_FOLDER],
              [ISO_CBLAS_TRY([$iso_cblas_cflags], [$iso_cblas_libs$iso_libs])])
        AS_IF([test $have_cblas = yes], [break])
    done
])

# Of a folder that was given, the header must not be taken with a library of the system's that has another name.
AC_DEFUN([ISO_CBLAS_IS_IN_FOLDER], [{ iso_file=`echo "$iso_libs" | sed 's/^-l//; s/ .*//'`
            test -z "$iso_cblas_cflags" || ls "$with_cblas/lib/lib$iso_file".* >/dev/null 2>&1; }])

# ISO_CBLAS_TRY(CFLAGS, LIBS)
AC_DEFUN([ISO_CBLAS_TRY], [
    iso_try_cflags="$1" iso_try_libs="$2"
    for iso_header in cblas.h mkl_cblas.h; do
        iso_try_define=
        AS_CASE([$iso_header], [mkl_cblas.h], [iso_try_define=-DISO_CBLAS_MKL])
        ISO_LINKS([$iso_try_cflags $iso_try_define], [$iso_try_libs], [[#ifdef ISO_CBLAS_MKL
                    #include <mkl_cblas.h>
                    #else
                    #include <cblas.h>
                    #endif
                  ]], [float x = 1; double y = 1; int n = 1;
                   cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, n, n, 1, &x, n, &x, n, 0, &x, n);
                   cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, n, 1, &y, n, &y, n, 0, &y, n);],
                  [have_cblas=yes])
        AS_IF([test $have_cblas = yes], [
            AS_CASE([$iso_header], [mkl_cblas.h], [cblas_mkl=yes])
            CBLAS_CFLAGS=$iso_try_cflags CBLAS_LIBS=$iso_try_libs cblas_what="yes (`echo $iso_try_libs`)"
            break])
    done
])
