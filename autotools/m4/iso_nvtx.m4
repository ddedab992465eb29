dnl SPDX-License-Identifier: MIT
# ISO_NVTX: the headers of NVTX 3, to show ranges to profilers. They are part of the CUDA toolkit but need nothing else of
# it, so they are used without a CUDA device, too. There is no library.
AC_DEFUN([ISO_NVTX], [
    for iso_dir in "$cuda_home" /usr/local/cuda /usr/lib/cuda; do
        AS_CASE([$with_nvtx,$NVTX_CFLAGS], [,|yes,], [
            AS_IF([test -f "$iso_dir/include/nvtx3/nvToolsExt.h"], [NVTX_CFLAGS="-isystem $iso_dir/include"])])
    done
    ISO_DEPENDENCY([nvtx], [NVTX], [ranges for profilers, NVTX 3], [], [nvtx3/nvToolsExt.h],
                   [#include <nvtx3/nvToolsExt.h>],
                   [return nvtxDomainCreateA("x") != 0;],
                   [], [nvidia-cuda-toolkit])
])
