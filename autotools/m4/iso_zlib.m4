dnl SPDX-License-Identifier: MIT
# ISO_ZLIB: zlib, to read compressed input files.
AC_DEFUN([ISO_ZLIB], [
    ISO_DEPENDENCY([zlib], [ZLIB], [reading .gz input files], [zlib], [zlib.h],
                   [#include <zlib.h>],
                   [return gzopen("x", "rb") != 0;],
                   [-lz], [zlib1g-dev])
])
