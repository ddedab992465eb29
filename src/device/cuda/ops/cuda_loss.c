// SPDX-License-Identifier: MIT
// Log-softmax and losses on the CUDA device; copies labels to it and results back.
#include "device/cuda/runtime/cuda_graph.h"
#include "device/cuda/ops/loss_kernels.h"

#include <string.h>

// ---- Log-softmax ----------------------------------------------------------------------------------

static iso_status log_softmax_forward(iso_device *self, const iso_tensor *x, iso_tensor *y) {
    int64_t k = x->shape[x->ndim - 1];
    return iso__cuda_log_softmax(iso__cuda_of(self), x->dtype, x->count / k, k, x->data, y->data);
}

static iso_status log_softmax_backward(iso_device *self, const iso_tensor *y, const iso_tensor *dy,
                                       iso_tensor *dx) {
    int64_t k = y->shape[y->ndim - 1];
    return iso__cuda_log_softmax_grad(iso__cuda_of(self), y->dtype, y->count / k, k, y->data,
                                      dy->data, dx->data);
}

// ---- Labels ---------------------------------------------------------------------------------------

static void free_slot(iso__cuda *cuda, iso__cuda_labels *slot) {
    if (slot->host) cudaFreeHost(slot->host);
    if (slot->device) iso__cuda_pool_free(cuda, slot->device);
    slot->host = slot->device = NULL;
    slot->room = 0;
}

static iso_status make_slot(iso__cuda *cuda, iso__cuda_labels *slot, int64_t room) {
    size_t bytes = (size_t)room * sizeof(int32_t);
    if (!slot->free) ISO_TRY_CUDA(cudaEventCreateWithFlags(&slot->free, cudaEventDisableTiming));
    ISO_TRY_CUDA(cudaMallocHost((void **)&slot->host, bytes));
    ISO_TRY(iso__cuda_pool_alloc(cuda, bytes, (void **)&slot->device));
    slot->room = room;
    return ISO_OK;
}

// All slots at once, so that nothing is allocated later on. Waits, as freeing page-locked memory
// would anyhow; what is held back may use device memory that the new slots get.
static iso_status make_room(iso__cuda *cuda, int64_t rows) {
    if (cuda->labels[ISO_CUDA_LABEL_SLOTS - 1].room >= rows) return ISO_OK;
    ISO_TRY(iso__cuda_wait(cuda));
    for (int i = 0; i < ISO_CUDA_LABEL_SLOTS; i++) free_slot(cuda, &cuda->labels[i]);
    for (int i = 0; i < ISO_CUDA_LABEL_SLOTS; i++) ISO_TRY(make_slot(cuda, &cuda->labels[i], rows));
    return ISO_OK;
}

// Labels into the next slot, whose memory kernels read at *out; waits only where the losses of all
// slots are still to come. The copy is outside of recordings: it comes into the queue at once,
// before a kernel that is held back, and so must not overwrite what such a one has yet to read. As
// each loss ends what is held back, it does not.
static iso_status send_labels(iso__cuda *cuda, int64_t rows, const int32_t *labels,
                              iso__cuda_labels **slot, const int32_t **out) {
    size_t bytes = (size_t)rows * sizeof(int32_t);
    ISO_TRY(iso__cuda_enter(cuda));
    ISO_TRY(iso__cuda_multi_tensor_launch(cuda)); // these do keep their place in the queue
    ISO_TRY(make_room(cuda, rows));
    iso__cuda_labels *s = *slot = &cuda->labels[cuda->next_labels];
    ISO_TRY_CUDA(cudaEventSynchronize(s->free));
    memcpy(s->host, labels, bytes);
    cuda->next_labels = (cuda->next_labels + 1) % ISO_CUDA_LABEL_SLOTS;
    *out = s->device;
    ISO_TRY_CUDA(cudaMemcpyAsync(s->device, s->host, bytes, cudaMemcpyHostToDevice,
                                 cuda->stream[ISO__QUEUE_COMPUTE]));
    return ISO_OK;
}

// The loss that reads them has entered the queue.
static iso_status release_labels(iso__cuda *cuda, const iso__cuda_labels *slot) {
    ISO_TRY(iso__cuda_flush(cuda));
    ISO_TRY_CUDA(cudaEventRecord(slot->free, cuda->stream[ISO__QUEUE_COMPUTE]));
    return ISO_OK;
}

void iso__cuda_loss_destroy(iso__cuda *cuda) {
    for (int i = 0; i < ISO_CUDA_LABEL_SLOTS; i++) {
        iso__cuda_labels *slot = &cuda->labels[i];
        free_slot(cuda, slot);
        if (slot->free) cudaEventDestroy(slot->free);
        slot->free = NULL;
    }
}

// ---- Results --------------------------------------------------------------------------------------

// Page-locked memory of the host as kernels see it.
static iso_status map_pinned(const iso__cuda *cuda, void *host, void **out) {
    struct cudaPointerAttributes found;
    *out = host;
    if (cuda->same_address) return ISO_OK;
    ISO_TRY_CUDA(cudaPointerGetAttributes(&found, host));
    ISO_CHECK(found.devicePointer, ISO_ERR_DEVICE, "the GPU cannot reach memory of the host");
    *out = found.devicePointer;
    return ISO_OK;
}

// Memory for so many partial sums, whose sum the kernel writes where the host reads it.
static iso_status take_partials(iso__cuda *cuda, int64_t count, double divisor, double result[2],
                                iso__cuda_loss_sum *out) {
    void *partial, *sum = NULL;
    unsigned *arrived;
    ISO_TRY(iso__cuda_arrivals(cuda, &arrived));
    ISO_TRY(iso__cuda_scratch(cuda, (size_t)count * sizeof(iso__cuda_loss_partial), &partial));
    ISO_TRY(iso__cuda_enter(cuda));
    ISO_TRY(map_pinned(cuda, result, &sum));
    *out = (iso__cuda_loss_sum){
        .count = count, .partial = partial, .divisor = divisor, .sum = sum, .arrived = arrived};
    return ISO_OK;
}

// ---- Losses ---------------------------------------------------------------------------------------

static iso__cuda_loss_kind kind_of(const iso_loss_config *config) {
    switch (config->kind) {
    case ISO_NLL: return ISO__CUDA_NLL;
    case ISO_MSE: return ISO__CUDA_MSE;
    case ISO_BCE_WITH_LOGITS: return ISO__CUDA_BCE_WITH_LOGITS;
    case ISO_L1: return ISO__CUDA_L1;
    case ISO_HUBER: return ISO__CUDA_HUBER;
    default: return ISO__CUDA_CROSS_ENTROPY;
    }
}

// Of a batch whose labels come by a copy.
static iso_status loss_of_many(iso__cuda *cuda, iso_dtype dtype, const int32_t *labels,
                               iso__cuda_loss_rows *rows) {
    iso__cuda_labels *slot = NULL;
    ISO_TRY(send_labels(cuda, rows->rows, labels, &slot, &rows->labels));
    ISO_TRY(iso__cuda_losses_of_rows(cuda, dtype, rows));
    return release_labels(cuda, slot);
}

static iso_status label_loss(iso_device *self, const iso_loss_config *config,
                             const iso_tensor *output, const int32_t *labels, double result[2],
                             iso_tensor *grad) {
    iso__cuda *cuda = iso__cuda_of(self);
    int64_t k = output->shape[output->ndim - 1];
    iso__cuda_loss_rows rows = {.kind = kind_of(config),
                                .smoothing = config->label_smoothing,
                                .delta = config->delta,
                                .rows = output->count / k,
                                .k = k,
                                .x = output->data,
                                .grad = grad ? grad->data : NULL};
    ISO_TRY(take_partials(cuda, rows.rows, (double)rows.rows, result, &rows.sum));
    if (rows.rows > ISO_CUDA_FEW_LABELS || rows.k > UINT16_MAX)
        return loss_of_many(cuda, output->dtype, labels, &rows);
    for (int64_t n = 0; n < rows.rows; n++) rows.few[n] = (uint16_t)labels[n];
    return iso__cuda_losses_of_rows(cuda, output->dtype, &rows);
}

static iso_status target_loss(iso_device *self, const iso_loss_config *config,
                              const iso_tensor *output, const iso_tensor *target, double result[2],
                              iso_tensor *grad) {
    iso__cuda *cuda = iso__cuda_of(self);
    int64_t count = output->count;
    iso__cuda_loss_sum sum;
    ISO_TRY(take_partials(cuda, iso__cuda_element_partials(count), (double)count, result, &sum));
    iso__cuda_elements elements = {.kind = kind_of(config),
                                   .delta = config->delta,
                                   .dtype = output->dtype,
                                   .target_dtype = target->dtype,
                                   .count = count,
                                   .x = output->data,
                                   .target = target->data,
                                   .grad = grad ? grad->data : NULL};
    return iso__cuda_losses_of_elements(cuda, &elements, &sum);
}

void iso__cuda_fill_loss(iso_kernel_ops *ops) {
    ops->log_softmax_forward = log_softmax_forward;
    ops->log_softmax_backward = log_softmax_backward;
    ops->loss = label_loss;
    ops->target_loss = target_loss;
}
