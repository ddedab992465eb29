// SPDX-License-Identifier: MIT
// The CUDA device: creation, and its tables.
#include "device/cuda/libs/cuda_dnn.h"
#include "device/cuda/ops/cuda_copy.h"
#include "device/cuda/runtime/cuda_graph.h"

#include <string.h>

// ---- Which GPU ------------------------------------------------------------------------------------

int iso__device_count_cuda(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
}

// "" or a number.
static iso_status parse_ordinal(const char *text, int *out) {
    char *end;
    long value = text[0] ? strtol(text, &end, 10) : 0;
    ISO_CHECK(!text[0] || (text[0] >= '0' && text[0] <= '9' && !*end && value < 1024), ISO_ERR_ARG,
              "unknown device \"cuda:%s\": give a number after the colon, as in cuda:0", text);
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) cudaGetLastError();
    ISO_CHECK(error == cudaSuccess && count > 0, ISO_ERR_DEVICE,
              "this host has no usable CUDA GPU (%s): use device cpu",
              error == cudaSuccess ? "none was found" : cudaGetErrorString(error));
    ISO_CHECK(value<count, ISO_ERR_DEVICE, "there is no device cuda:%ld: this host has %d GPU%s",
                    value, count, count> 1
                  ? "s, numbered from 0"
                  : ", cuda:0");
    *out = (int)value;
    return ISO_OK;
}

// ---- Life -----------------------------------------------------------------------------------------

static iso_status describe_device(iso__cuda *cuda) {
    struct cudaDeviceProp properties;
    int version = 0;
    ISO_TRY_CUDA(cudaGetDeviceProperties(&properties, cuda->ordinal));
    ISO_TRY_CUDA(cudaRuntimeGetVersion(&version));
    cuda->processors = properties.multiProcessorCount;
    cuda->same_address =
        properties.unifiedAddressing && properties.canUseHostPointerForRegisteredMem;
    snprintf(cuda->base.description, sizeof(cuda->base.description), "%.80s, CUDA %d.%d",
             properties.name, version / 1000, version % 1000 / 10);
    return ISO_OK;
}

static iso_status make_streams(iso__cuda *cuda) {
    for (int q = 0; q < ISO__QUEUES; q++)
        ISO_TRY_CUDA(cudaStreamCreateWithFlags(&cuda->stream[q], cudaStreamNonBlocking));
    return ISO_OK;
}

static void cuda_destroy(iso_device *self) {
    iso__cuda *cuda = iso__cuda_of(self);
    bool usable = iso__cuda_enter(cuda) == ISO_OK;
    if (usable && iso__cuda_flush(cuda) < 0) // memory of others may be updated
        iso__log(ISO_LOG_ERROR, "while launching updates: %s", iso_last_error()->message);
    for (int q = 0; usable && q < ISO__QUEUES; q++)
        if (cuda->stream[q]) cudaStreamSynchronize(cuda->stream[q]);
    iso__cuda_graphs_destroy(cuda);
    iso__cuda_loss_destroy(cuda);
    iso__cuda_dnn_destroy(cuda);
    iso__cuda_blas_destroy(cuda);
    for (int q = 0; usable && q < ISO__QUEUES; q++)
        if (cuda->stream[q]) cudaStreamDestroy(cuda->stream[q]);
    iso__cuda_pool_destroy(cuda);
    iso__free(cuda);
}

// Kernel threads of the host are not what computes here.
static iso_status cuda_set_threads(iso_device *self, int n) {
    self->threads = n;
    return ISO_OK;
}

static iso_status cuda_set_math(iso_device *self, const char *name) {
    static const char *const names[] = {
        [ISO_CUDA_MATH_F32] = "f32", [ISO_CUDA_MATH_TF32] = "tf32", [ISO_CUDA_MATH_BF16] = "bf16"};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) iso__cuda_of(self)->math = (iso__cuda_math)i;
    return ISO_OK;
}

static void fill_ops(iso__cuda *cuda) {
    iso_device_ops *ops = &cuda->ops;
    ops->name = "cuda";
    ops->destroy = cuda_destroy;
    ops->set_threads = cuda_set_threads;
    ops->set_math = cuda_set_math;
    iso__cuda_fill_memory(ops);
    iso__cuda_fill_remote(&cuda->remote);
    iso__cuda_fill_clip(&cuda->remote);
    iso__cuda_fill_master(ops, &cuda->remote);
    iso__cuda_dnn_fill_tune(ops);
    ops->remote = &cuda->remote;
    cuda->base.ops = ops;
}

static void fill_kernels(iso__cuda *cuda, iso_dtype dtype, iso_kernel_ops *ops) {
    iso__cuda_fill_elementwise(ops);
    iso__cuda_fill_activation(ops);
    iso__cuda_fill_loss(ops);
    iso__cuda_fill_pool2d(ops);
    iso__cuda_fill_batch_norm(ops);
    iso__cuda_fill_layer_norm(ops);
    iso__cuda_fill_linear(ops);
    iso__cuda_fill_conv(ops);
    iso__cuda_fill_update(ops, dtype);
    cuda->base.kernels[dtype] = ops;
}

static iso_status choose_graphs(iso__cuda *cuda) {
    double on;
    ISO_TRY(iso__cuda_conv_check());
    ISO_TRY(iso__env_number(ISO_ENV_CUDA_GRAPHS, 1, &on));
    if (on != 0) ISO_TRY(iso__cuda_graphs_create(cuda));
    return ISO_OK;
}

iso_status iso__device_create_cuda(const char *text, iso_device **out) {
    void *memory;
    iso_status status;
    int ordinal = 0;
    ISO_TRY(parse_ordinal(text, &ordinal));
    ISO_TRY(iso__alloc_zero(sizeof(iso__cuda), &memory));
    iso__cuda *cuda = memory;
    cuda->ordinal = ordinal;
    cuda->base.references = cuda->base.threads = 1;
    pthread_mutex_init(&cuda->pool.lock, NULL);
    fill_ops(cuda);
    fill_kernels(cuda, ISO_F32, &cuda->f32);
    fill_kernels(cuda, ISO_F64, &cuda->f64);
    fill_kernels(cuda, ISO_BF16, &cuda->bf16);
    fill_kernels(cuda, ISO_F16, &cuda->f16);
    cuda->bf16.round_many = cuda->f16.round_many = iso__cuda_round_many;
    ISO_TRY_GOTO(iso__cuda_enter(cuda));
    ISO_TRY_GOTO(describe_device(cuda));
    ISO_TRY_GOTO(make_streams(cuda));
    ISO_TRY_GOTO(choose_graphs(cuda));
    *out = &cuda->base;
    return ISO_OK;
fail:
    cuda_destroy(&cuda->base);
    return status;
}
