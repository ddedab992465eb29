dnl SPDX-License-Identifier: MIT
# ISO_ONEDNN: oneDNN 2, the preferred kernels of the CPU device (version 3 has another C API).
AC_DEFUN([ISO_ONEDNN], [
    ISO_DEPENDENCY([onednn], [ONEDNN], [oneDNN 2 kernels for the CPU], [dnnl], [dnnl.h],
                   [[#include <dnnl.h>
                     #include <dnnl_version.h>
                     #if DNNL_VERSION_MAJOR != 2
                     #error "not version 2"
                     #endif
                   ]],
                   [dnnl_engine_t e; return dnnl_engine_create(&e, dnnl_cpu, 0) != dnnl_success;],
                   [-ldnnl], [libdnnl-dev])
    AS_IF([test $have_onednn = no && test "$with_onednn" != no],
          [AC_CHECK_HEADER([dnnl_version.h],
                           [AC_MSG_WARN([the oneDNN found here is not used: version 2 is needed])])])
])
