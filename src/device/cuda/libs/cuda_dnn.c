// SPDX-License-Identifier: MIT
// Loads cuDNN, creates its handle and reports its errors.
#include "device/cuda/libs/cuda_dnn.h"

#include "device/cuda/libs/cuda_dnn_plan.h"

#include <string.h>

static const iso__cuda_symbol symbols[] = {ISO_DNN_FUNCTIONS(ISO_CUDA_SYMBOL)};
enum { SYMBOLS = sizeof(symbols) / sizeof(symbols[0]) };

iso_status iso__dnn_error(const iso__cuda_dnn *dnn, cudnnStatus_t error, const char *call,
                          const char *function, const char *file, int line) {
    const char *name = strstr(call, "cudnn");
    if (!name) name = call;
    return iso__error(ISO_ERR_DEVICE, function, file, line,
                      "cuDNN reports in %.*s: %s (ISO_CUDA_CONV=gemm does without it)",
                      (int)strcspn(name, "("), name, dnn->call.cudnnGetErrorString(error));
}

static iso_status set_up(iso__cuda *cuda, iso__cuda_dnn *dnn) {
    const iso__dnn_functions *call = &dnn->call;
    dnn->plans.key_bytes = sizeof(iso__dnn_key);
    ISO_TRY(iso__cuda_load("cuDNN", ISO_CUDNN_SONAME, symbols, SYMBOLS, &dnn->call));
    ISO_TRY(iso__cuda_enter(cuda));
    ISO_TRY_DNN(dnn, call->cudnnCreate(&dnn->handle));
    ISO_TRY_DNN(dnn, call->cudnnSetStream(dnn->handle, cuda->stream[ISO__QUEUE_COMPUTE]));
    ISO_TRY_DNN(dnn, call->cudnnCreateActivationDescriptor(&dnn->relu));
    ISO_TRY_DNN(dnn, call->cudnnSetActivationDescriptor(dnn->relu, CUDNN_ACTIVATION_RELU,
                                                        CUDNN_NOT_PROPAGATE_NAN, 0));
    return ISO_OK;
}

static void destroy_dnn(iso__cuda_dnn *dnn) {
    iso__cuda_entry *entry;
    while ((entry = iso__cuda_cache_take(&dnn->plans)))
        iso__dnn_plan_destroy(dnn, iso_container_of(entry, iso__dnn_plan, base));
    iso__dnn_forget_choices(dnn);
    if (dnn->relu) dnn->call.cudnnDestroyActivationDescriptor(dnn->relu);
    if (dnn->handle) dnn->call.cudnnDestroy(dnn->handle);
    iso__free(dnn);
}

iso_status iso__cuda_dnn_create(iso__cuda *cuda) {
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso__cuda_dnn), &memory));
    iso_status status = set_up(cuda, memory);
    if (status < 0) destroy_dnn(memory);
    ISO_TRY(status);
    cuda->dnn = memory;
    cuda->base.primitives_created++;
    iso__log(ISO_LOG_INFO, "convolutions use cuDNN %zu", cuda->dnn->call.cudnnGetVersion());
    return ISO_OK;
}

void iso__cuda_dnn_destroy(iso__cuda *cuda) {
    if (cuda->dnn) destroy_dnn(cuda->dnn);
    cuda->dnn = NULL;
}
