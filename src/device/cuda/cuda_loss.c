// Log-softmax and losses on the CUDA device, and the way of labels there and of results back.
#include "device/cuda/cuda_impl.h"
#include "device/cuda/loss_kernels.h"

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

// Copies labels into the next slot and sends that on its way; waits only where the copies of all
// slots are still to come. This is outside of recordings: the labels come into the queue at once,
// before a kernel that is held back, and so must not overwrite those that such a one has yet to
// read. As each loss is followed by an event, which ends what is held back, they do not.
static iso_status send_labels(iso__cuda *cuda, int64_t rows, const int32_t *labels,
                              const int32_t **out) {
    iso__cuda_labels *slot = &cuda->labels[cuda->next_labels];
    cudaStream_t stream = cuda->stream[ISO__QUEUE_COMPUTE];
    size_t bytes = (size_t)rows * sizeof(int32_t);
    ISO_TRY(iso__cuda_enter(cuda));
    ISO_TRY(iso__cuda_launch_gathered(cuda)); // these do keep their place in the queue
    ISO_TRY(make_room(cuda, rows));
    ISO_TRY_CUDA(cudaEventSynchronize(slot->free));
    memcpy(slot->host, labels, bytes);
    ISO_TRY_CUDA(cudaMemcpyAsync(slot->device, slot->host, bytes, cudaMemcpyHostToDevice, stream));
    ISO_TRY_CUDA(cudaEventRecord(slot->free, stream));
    cuda->next_labels = (cuda->next_labels + 1) % ISO_CUDA_LABEL_SLOTS;
    *out = slot->device;
    return ISO_OK;
}

void iso__cuda_labels_destroy(iso__cuda *cuda) {
    for (int i = 0; i < ISO_CUDA_LABEL_SLOTS; i++) {
        iso__cuda_labels *slot = &cuda->labels[i];
        free_slot(cuda, slot);
        if (slot->free) cudaEventDestroy(slot->free);
        slot->free = NULL;
    }
}

// ---- Results --------------------------------------------------------------------------------------

typedef struct result_args {
    const iso__cuda_loss_part *from;
    double *to;
    size_t bytes;
} result_args;

static iso_status copy_result(iso__cuda *cuda, const void *args) {
    const result_args *a = args;
    ISO_TRY_CUDA(cudaMemcpyAsync(a->to, a->from, a->bytes, cudaMemcpyDeviceToHost,
                                 cuda->stream[ISO__QUEUE_COMPUTE]));
    return ISO_OK;
}

// Sums `count` parts into the place before the first, and copies that to the host.
static iso_status give_result(iso__cuda *cuda, int64_t count, iso__cuda_loss_part *part,
                              double divisor, int numbers, double *result) {
    iso__cuda_loss_part *sum = part - 1;
    result_args args = {sum, result, (size_t)numbers * sizeof(double)};
    ISO_TRY(iso__cuda_sum_parts(cuda, count, part, divisor, sum));
    return iso__cuda_run(cuda, copy_result, &args, sizeof(args));
}

// Memory for the parts, with a place before them.
static iso_status take_parts(iso__cuda *cuda, int64_t count, iso__cuda_loss_part **out) {
    void *memory;
    ISO_TRY(iso__cuda_scratch(cuda, (size_t)(count + 1) * sizeof(iso__cuda_loss_part), &memory));
    *out = (iso__cuda_loss_part *)memory + 1;
    return ISO_OK;
}

// ---- Losses ---------------------------------------------------------------------------------------

static iso__cuda_loss_kind kind_of(const iso_loss_config *config) {
    switch (config->kind) {
    case ISO_NLL: return ISO__CUDA_NLL;
    case ISO_MSE: return ISO__CUDA_MSE;
    default: return ISO__CUDA_CROSS_ENTROPY;
    }
}

static iso_status loss(iso_device *self, const iso_loss_config *config, const iso_tensor *output,
                       const int32_t *labels, double result[2], iso_tensor *grad) {
    iso__cuda *cuda = iso__cuda_of(self);
    iso__cuda_loss_rows rows = {.kind = kind_of(config),
                                .smoothing = config->label_smoothing,
                                .rows = output->shape[0],
                                .k = output->shape[1],
                                .x = output->data,
                                .grad = grad ? grad->data : NULL};
    ISO_TRY(take_parts(cuda, rows.rows, &rows.part));
    ISO_TRY(send_labels(cuda, rows.rows, labels, &rows.labels));
    ISO_TRY(iso__cuda_losses_of_rows(cuda, output->dtype, &rows));
    return give_result(cuda, rows.rows, rows.part, (double)rows.rows, 2, result);
}

static iso_status mse(iso_device *self, const iso_tensor *output, const iso_tensor *target,
                      double result[2], iso_tensor *grad) {
    iso__cuda *cuda = iso__cuda_of(self);
    int64_t count = output->count, parts = iso__cuda_square_parts(count);
    iso__cuda_loss_part *part = NULL;
    ISO_TRY(take_parts(cuda, parts, &part));
    ISO_TRY(iso__cuda_squares(cuda, output->dtype, count, output->data, target->data, part,
                              grad ? grad->data : NULL));
    return give_result(cuda, parts, part, (double)count, 1, result);
}

void iso__cuda_fill_loss(iso_kernel_ops *ops) {
    ops->log_softmax_forward = log_softmax_forward;
    ops->log_softmax_backward = log_softmax_backward;
    ops->loss = loss;
    ops->mse = mse;
}
