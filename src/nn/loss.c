// Losses of a classifier, with their gradient.
#include "nn/nn_impl.h"

struct iso_loss {
    iso_device *device;
    iso_loss_kind kind;
    iso_tensor *grad; // NULL until first wanted
};

iso_status iso_loss_create(iso_device *device, iso_loss_kind kind, iso_loss **out) {
    ISO_CHECK(device, ISO_ERR_ARG, "a loss needs a device");
    ISO_CHECK(kind == ISO_CROSS_ENTROPY || kind == ISO_NLL, ISO_ERR_ARG, "%d is no kind of loss",
              (int)kind);
    void *memory;
    ISO_TRY(iso__alloc_zero(sizeof(iso_loss), &memory));
    iso_loss *loss = memory;
    loss->device = iso_device_retain(device);
    loss->kind = kind;
    *out = loss;
    return ISO_OK;
}

static iso_status check(const iso_loss *loss, const iso_tensor *output, const int32_t *labels) {
    char got[128];
    ISO_CHECK(output->device == loss->device, ISO_ERR_ARG,
              "the loss is on another device than its input");
    ISO_TRY(iso__device_check_dtype(loss->device, output->dtype));
    ISO_CHECK(output->ndim == 2, ISO_ERR_SHAPE, "the loss expects [N, K] but got %s",
              iso__shape_text(output->ndim, output->shape, got, sizeof(got)));
    for (int64_t i = 0; i < output->shape[0]; i++)
        ISO_CHECK(labels[i] >= 0 && labels[i] < output->shape[1], ISO_ERR_ARG,
                  "the label %d in row %lld of the batch is not in [0, %lld)", (int)labels[i],
                  (long long)i, (long long)output->shape[1]);
    return ISO_OK;
}

static iso_status prepare_grad(iso_loss *loss, const iso_tensor *output) {
    if (loss->grad && loss->grad->dtype != output->dtype) iso_tensor_destroy(&loss->grad);
    if (!loss->grad)
        ISO_TRY(iso_tensor_create(loss->device, output->dtype, 2, output->shape, &loss->grad));
    return iso_tensor_resize(loss->grad, 2, output->shape, ISO_LAYOUT_LOGICAL);
}

iso_status iso_loss_compute(iso_loss *loss, iso_tensor *output, const int32_t *labels,
                            double *value, int64_t *correct, iso_tensor **grad) {
    double mean;
    int64_t hits;
    ISO_TRY(check(loss, output, labels));
    if (grad) ISO_TRY(prepare_grad(loss, output));
    ISO_TRY(iso__kernels(output)->loss(loss->device, loss->kind, output, labels, &mean, &hits,
                                       grad ? loss->grad : NULL));
    *value = mean;
    if (correct) *correct = hits;
    if (grad) *grad = loss->grad;
    return ISO_OK;
}

void iso_loss_destroy(iso_loss **slot) {
    iso_loss *loss = *slot;
    *slot = NULL;
    if (!loss) return;
    iso_tensor_destroy(&loss->grad);
    iso_device_destroy(&loss->device);
    iso__free(loss);
}
