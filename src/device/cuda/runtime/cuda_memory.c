// SPDX-License-Identifier: MIT
// Memory of the CUDA device for tensors. The calls that copy whole tensors to and from the host
// wait; steps do not use them.
#include "device/cuda/ops/cuda_copy.h"
#include "device/cuda/runtime/fill_kernels.h"

static iso_status memory_alloc(iso_device *self, size_t bytes, void **out) {
    return iso__cuda_pool_alloc(iso__cuda_of(self), bytes, out);
}

static void memory_free(iso_device *self, void *data) {
    iso__cuda_pool_free(iso__cuda_of(self), data);
}

static size_t storage_bytes(iso_device *self, iso_dtype dtype, int ndim, const int64_t *shape,
                            iso_layout layout) {
    (void)self, (void)layout;
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= shape[i];
    return (size_t)count * iso_dtype_size(dtype);
}

// Channels last where tensor cores take them as they are.
static iso_layout preferred_layout(iso_device *self, iso_dtype dtype, int ndim,
                                   const int64_t *shape) {
    iso__cuda *cuda = iso__cuda_of(self);
    bool rounds = iso__is_half(dtype) || (dtype == ISO_F32 && cuda->math != ISO_CUDA_MATH_F32);
    if (!rounds || ndim != 4 || shape[1] % (iso__is_half(dtype) ? 8 : 4) != 0)
        return ISO_LAYOUT_LOGICAL;
    // Where the choice fails, the convolution that comes next says so.
    if (iso__cuda_conv_choose(cuda) < 0 || !cuda->dnn) return ISO_LAYOUT_LOGICAL;
    return ISO_LAYOUT_BLOCKED;
}

static bool is_in_order(iso_device *self, const iso_tensor *x) {
    (void)self;
    return !iso__cuda_is_ordered_last(x);
}

static iso_status memory_fill(iso_device *self, iso_tensor *x, double value) {
    ISO_CHECK(iso__is_real(x->dtype) || x->dtype == ISO_I64, ISO_ERR_UNSUPPORTED,
              "the CUDA device does not fill tensors of %s", iso_dtype_name(x->dtype));
    return iso__cuda_fill_values(iso__cuda_of(self), x->dtype, x->count, value, x->data);
}

typedef struct copy_args {
    const void *from;
    void *to;
    size_t bytes;
} copy_args;

static iso_status copy_on_device(iso__cuda *cuda, const void *args) {
    const copy_args *a = args;
    ISO_TRY_CUDA(cudaMemcpyAsync(a->to, a->from, a->bytes, cudaMemcpyDeviceToDevice,
                                 cuda->stream[ISO__QUEUE_COMPUTE]));
    return ISO_OK;
}

static iso_status memory_copy(iso_device *self, const iso_tensor *from, iso_tensor *to) {
    iso__cuda *cuda = iso__cuda_of(self);
    bool converts = from->dtype != to->dtype;
    ISO_CHECK(!converts || (iso__is_real(from->dtype) && iso__is_real(to->dtype)),
              ISO_ERR_UNSUPPORTED, "the CUDA device does not convert %s to %s",
              iso_dtype_name(from->dtype), iso_dtype_name(to->dtype));
    if (iso__cuda_reorders(from, to)) return iso__cuda_reorder(cuda, from, to);
    if (converts)
        return iso__cuda_convert(cuda, from->count, from->dtype, from->data, to->dtype, to->data);
    copy_args args = {from->data, to->data, iso__tensor_bytes(from)};
    return iso__cuda_run(cuda, copy_on_device, &args, sizeof(args));
}

// Where the order is not the host's, in scratch memory on the way.
static iso_status memory_to_host(iso_device *self, const iso_tensor *from, void *host) {
    iso__cuda *cuda = iso__cuda_of(self);
    size_t bytes = iso__tensor_bytes(from);
    void *data = from->data;
    if (iso__cuda_is_ordered_last(from)) {
        ISO_TRY(iso__cuda_scratch(cuda, bytes, &data));
        ISO_TRY(iso__cuda_to_logical(cuda, from, from->data, data));
    }
    ISO_TRY(iso__cuda_wait(cuda));
    ISO_TRY_CUDA(cudaMemcpy(host, data, bytes, cudaMemcpyDeviceToHost));
    return ISO_OK;
}

// Kernels may still read what was there before. From memory that is not page-locked, cudaMemcpy
// returns before all has arrived, and our streams do not wait for its stream; a copy to the host,
// which comes after in that stream, returns when it is done.
static iso_status memory_from_host(iso_device *self, const void *host, iso_tensor *to) {
    iso__cuda *cuda = iso__cuda_of(self);
    size_t bytes = iso__tensor_bytes(to);
    bool ordered = iso__cuda_is_ordered_last(to);
    void *data = to->data;
    char last;
    if (ordered) ISO_TRY(iso__cuda_scratch(cuda, bytes, &data));
    ISO_TRY(iso__cuda_wait(cuda));
    ISO_TRY_CUDA(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice));
    ISO_TRY_CUDA(cudaMemcpy(&last, (char *)data + bytes - 1, sizeof(last), cudaMemcpyDeviceToHost));
    return ordered ? iso__cuda_from_logical(cuda, to, data, to->data) : ISO_OK;
}

void iso__cuda_fill_memory(iso_device_ops *ops) {
    ops->alloc = memory_alloc;
    ops->free = memory_free;
    ops->fill = memory_fill;
    ops->storage_bytes = storage_bytes;
    ops->preferred_layout = preferred_layout;
    ops->is_in_order = is_in_order;
    ops->copy = memory_copy;
    ops->to_host = memory_to_host;
    ops->from_host = memory_from_host;
}
