dnl SPDX-License-Identifier: MIT
# ISO_PICTURES: libjpeg (libjpeg-turbo, or another one with jpeg_mem_src) and libpng, to read pictures.
AC_DEFUN([ISO_PICTURES], [
    ISO_DEPENDENCY([jpeg], [JPEG], [reading JPEG files], [libjpeg], [jpeglib.h],
                   [#include <stdio.h>
#include <jpeglib.h>],
                   [struct jpeg_decompress_struct info; jpeg_mem_src(&info, 0, 0);],
                   [-ljpeg], [libjpeg-dev])
    ISO_DEPENDENCY([png], [PNG], [reading PNG files], [libpng], [png.h],
                   [#include <png.h>],
                   [png_set_scale_16(0);],
                   [-lpng], [libpng-dev])
])
