dnl SPDX-License-Identifier: MIT
# ISO_OPENMP: threads inside kernels; --disable-openmp leaves them out.
AC_DEFUN([ISO_OPENMP], [
    AC_OPENMP
    have_openmp=no
    AS_IF([test "$enable_openmp" != no && test "$ac_cv_prog_c_openmp" != unsupported],
          [have_openmp=yes
           AC_DEFINE([ISO_HAVE_OPENMP], [1], [Define to 1 to build with OpenMP.])])
    AM_CONDITIONAL([ISO_HAVE_OPENMP], [test $have_openmp = yes])
])
