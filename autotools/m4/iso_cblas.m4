# ISO_CBLAS: a C BLAS (OpenBLAS or compatible), the fallback kernels of the CPU device.
AC_DEFUN([ISO_CBLAS], [
    ISO_DEPENDENCY([cblas], [CBLAS], [BLAS kernels for the CPU], [openblas], [cblas.h],
                   [#include <cblas.h>],
                   [float x = 1; return (int)cblas_sdot(1, &x, 1, &x, 1);],
                   [-lopenblas], [libopenblas-dev])
])
