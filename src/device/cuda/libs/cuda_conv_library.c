// SPDX-License-Identifier: MIT
// Chooses the library for convolutions: cuDNN if it is available, unless ISO_CUDA_CONV says
// otherwise.
#include "device/cuda/libs/cuda_dnn.h"

#include <string.h>

static bool wants_library(const char *library) {
    const char *wanted = iso__env_string(ISO_ENV_CUDA_CONV);
    return wanted && strcmp(wanted, library) == 0;
}

iso_status iso__cuda_conv_check(void) {
    const char *wanted = iso__env_string(ISO_ENV_CUDA_CONV);
    ISO_CHECK(!wanted || wants_library("gemm") || wants_library("cudnn"), ISO_ERR_ARG,
              "environment variable ISO_CUDA_CONV is \"%s\": give cudnn or gemm", wanted);
    return ISO_OK;
}

iso_status iso__cuda_conv_choose(iso__cuda *cuda) {
    if (cuda->conv_chosen) return ISO_OK;
    bool gemm = wants_library("gemm"), dnn = wants_library("cudnn");
    ISO_TRY(iso__cuda_conv_check());
    iso_status status = gemm ? ISO_OK : iso__cuda_dnn_create(cuda);
    if ((status == ISO_ERR_UNSUPPORTED || status == ISO_ERR_DEVICE) && !dnn)
        iso__log(ISO_LOG_WARN,
                 "convolutions use cuBLAS, which is slower than cuDNN: %s (ISO_CUDA_CONV=gemm "
                 "chooses cuBLAS without this warning)",
                 iso_last_error()->message);
    else
        ISO_TRY(status);
    cuda->conv_chosen = true;
    return ISO_OK;
}
