// SPDX-License-Identifier: MIT
// Broadcasts tensors of rank 0, several of them at a time.
#include "parallel/parallel_impl.h"

#include "tensor/tensor_impl.h"

#define MOST_BYTES ((size_t)1 << 20) // that are mapped at a time, besides the last tensor's

static iso_status map_tensors(iso__tensor_batch *batch, int *mapped) {
    for (*mapped = 0; *mapped < batch->count; ++*mapped) {
        int i = *mapped;
        ISO_TRY(iso_tensor_map(batch->tensor[i], ISO_READ_WRITE, &batch->block[i].data));
        batch->block[i].bytes = iso__tensor_bytes(batch->tensor[i]);
    }
    return ISO_OK;
}

iso_status iso__tensor_batch_end(iso__tensor_batch *batch) {
    int mapped;
    if (batch->count == 0) return ISO_OK;
    iso_status status = iso_comm_agree(batch->comm, map_tensors(batch, &mapped));
    if (status == ISO_OK) status = iso__comm_bcast_list(batch->comm, batch->block, batch->count);
    for (int i = 0; i < mapped; i++) {
        iso_status one = iso_tensor_unmap(batch->tensor[i]);
        if (status == ISO_OK) status = one;
    }
    batch->count = 0;
    batch->bytes = 0;
    ISO_TRY(status);
    return ISO_OK;
}

iso_status iso__tensor_batch_add(iso__tensor_batch *batch, iso_tensor *tensor) {
    for (int i = 0; i < batch->count; i++)
        if (batch->tensor[i] == tensor) return ISO_OK; // it would be mapped twice
    batch->tensor[batch->count++] = tensor;
    batch->bytes += iso__tensor_bytes(tensor);
    if (batch->count == ISO_TENSOR_BATCH || batch->bytes >= MOST_BYTES)
        ISO_TRY(iso__tensor_batch_end(batch));
    return ISO_OK;
}
