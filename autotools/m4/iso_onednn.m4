# ISO_ONEDNN: oneDNN, the preferred kernels of the CPU device.
AC_DEFUN([ISO_ONEDNN], [
    ISO_DEPENDENCY([onednn], [ONEDNN], [oneDNN kernels for the CPU], [dnnl], [dnnl.h],
                   [#include <dnnl.h>],
                   [dnnl_engine_t e; return dnnl_engine_create(&e, dnnl_cpu, 0) != dnnl_success;],
                   [-ldnnl], [libdnnl-dev])
])
