// SPDX-License-Identifier: MIT
// Losses of labels and of target values, with their gradient.
#include "nn/nn_impl.h"

#include <math.h>

struct iso_loss {
    iso_device *device;
    iso_loss_config config;
    iso_tensor *grad;       // NULL until first wanted
    iso_tensor *logical[2]; // copies of an output and a target in another layout; NULL: none so far
    // What the device writes: value, correct rows. On a device with memory of its own, valid once
    // `done` is reached.
    double *result;
    iso__device_event *done;
    bool computed, counts; // a loss has been computed; with the number of correct rows
};

static iso_status check_config(const iso_loss_config *c) {
    ISO_CHECK((int)c->kind >= 0 && c->kind <= ISO_HUBER, ISO_ERR_ARG, "unknown kind of loss %d",
              (int)c->kind);
    ISO_CHECK(c->label_smoothing >= 0 && c->label_smoothing <= 1, ISO_ERR_ARG,
              "label smoothing %g: give a number from 0 to 1", c->label_smoothing);
    ISO_CHECK(c->label_smoothing == 0 || c->kind == ISO_CROSS_ENTROPY, ISO_ERR_ARG,
              "label smoothing %g: only the cross entropy has it", c->label_smoothing);
    ISO_CHECK(c->delta >= 0 && isfinite(c->delta), ISO_ERR_ARG,
              "delta %g of a loss: give a finite number above 0", c->delta);
    ISO_CHECK(c->delta == 0 || c->kind == ISO_HUBER, ISO_ERR_ARG,
              "delta %g of a loss: only the Huber loss has it", c->delta);
    return ISO_OK;
}

enum { RESULT_BYTES = 2 * sizeof(double) };

static iso_status make_result(iso_loss *loss) {
    const iso__remote_ops *remote = loss->device->ops->remote;
    ISO_TRY(iso__pinned_alloc(loss->device, RESULT_BYTES, (void **)&loss->result));
    return remote ? remote->event_create(loss->device, &loss->done) : ISO_OK;
}

iso_status iso_loss_create_with(iso_device *device, const iso_loss_config *config, iso_loss **out) {
    ISO_CHECK(device, ISO_ERR_ARG, "a loss needs a device");
    ISO_TRY(check_config(config));
    void *memory;
    iso_status status;
    ISO_TRY(iso__alloc_zero(sizeof(iso_loss), &memory));
    iso_loss *loss = memory;
    loss->device = iso_device_retain(device);
    loss->config = *config;
    if (config->delta == 0) loss->config.delta = 1;
    ISO_TRY_GOTO(make_result(loss));
    *out = loss;
    return ISO_OK;
fail:
    iso_loss_destroy(&loss);
    return status;
}

iso_status iso_loss_create(iso_device *device, iso_loss_kind kind, iso_loss **out) {
    return iso_loss_create_with(device, &(iso_loss_config){.kind = kind}, out);
}

// ---- Labels -------------------------------------------------------------------------------------

static iso_status check_output(const iso_loss *loss, const iso_tensor *output) {
    ISO_CHECK(output->device == loss->device, ISO_ERR_ARG,
              "the loss is on another device than its input");
    return iso__device_check_dtype(loss->device, output->dtype);
}

static iso_status check_labels(const iso_loss *loss, const iso_tensor *output,
                               const int32_t *labels) {
    char got[128];
    ISO_TRY(check_output(loss, output));
    ISO_CHECK(output->ndim == 2 || output->ndim == 3, ISO_ERR_SHAPE,
              "the loss expects [N, K] or [N, L, K] but got %s",
              iso__shape_text(output->ndim, output->shape, got, sizeof(got)));
    int64_t classes = output->shape[output->ndim - 1];
    for (int64_t i = 0; i < output->count / classes; i++)
        ISO_CHECK(labels[i] >= 0 && labels[i] < classes, ISO_ERR_ARG,
                  "the label %d in row %lld of the batch is not in [0, %lld)", (int)labels[i],
                  (long long)i, (long long)classes);
    return ISO_OK;
}

// A tensor of the loss with shape and type of `like`, in logical layout.
static iso_status prepare_tensor(iso_tensor **slot, const iso_tensor *like) {
    if (*slot && (*slot)->dtype != like->dtype) iso_tensor_destroy(slot);
    if (!*slot)
        ISO_TRY(iso_tensor_create(like->device, like->dtype, like->ndim, like->shape, slot));
    return iso_tensor_resize(*slot, like->ndim, like->shape, ISO_LAYOUT_LOGICAL);
}

// ---- Values -------------------------------------------------------------------------------------

// The kernel was launched.
static iso_status mark_launched(iso_loss *loss, bool counts) {
    loss->computed = true;
    loss->counts = counts;
    if (!loss->done) return ISO_OK;
    return loss->device->ops->remote->record(loss->device, ISO__QUEUE_COMPUTE, loss->done);
}

iso_status iso_loss_value(iso_loss *loss, double *value, int64_t *correct) {
    ISO_CHECK(loss->computed, ISO_ERR_STATE, "a loss was asked for before it was computed");
    ISO_CHECK(!correct || loss->counts, ISO_ERR_STATE,
              "only losses with labels count correct rows");
    if (loss->done) ISO_TRY(loss->device->ops->remote->wait(loss->device, loss->done));
    if (value) *value = loss->result[0];
    if (correct) *correct = (int64_t)loss->result[1];
    return ISO_OK;
}

iso_status iso_loss_compute(iso_loss *loss, iso_tensor *output, const int32_t *labels,
                            double *value, int64_t *correct, iso_tensor **grad) {
    loss->computed = false; // if this call fails, the earlier value must not pass for its result
    ISO_TRY(check_labels(loss, output, labels));
    if (grad) ISO_TRY(prepare_tensor(&loss->grad, output));
    ISO_TRY(iso__kernels(output)->loss(loss->device, &loss->config, output, labels, loss->result,
                                       grad ? loss->grad : NULL));
    ISO_TRY(mark_launched(loss, true));
    if (value || correct) ISO_TRY(iso_loss_value(loss, value, correct));
    if (grad) *grad = loss->grad;
    return ISO_OK;
}

// ---- Targets of the output's shape --------------------------------------------------------------

static iso_status check_target(const iso_loss *loss, const iso_tensor *output,
                               const iso_tensor *target) {
    char got[128], wanted[128];
    ISO_CHECK(loss->config.kind >= ISO_MSE, ISO_ERR_ARG,
              "this loss takes labels: targets of the output's shape are for ISO_MSE, "
              "ISO_BCE_WITH_LOGITS, ISO_L1 and ISO_HUBER");
    ISO_TRY(check_output(loss, output));
    ISO_CHECK(target->device == loss->device, ISO_ERR_TYPE,
              "the loss is on another device than its targets");
    bool below = iso__is_half(output->dtype) && target->dtype == ISO_F32;
    ISO_CHECK(target->dtype == output->dtype || below, ISO_ERR_TYPE,
              "the loss expects targets of %s, the type of its input, but got %s",
              iso_dtype_name(output->dtype), iso_dtype_name(target->dtype));
    ISO_CHECK(iso__tensor_same_shape(target, output), ISO_ERR_SHAPE,
              "the loss expects targets of shape %s, its input's, but got %s",
              iso__shape_text(output->ndim, output->shape, wanted, sizeof(wanted)),
              iso__shape_text(target->ndim, target->shape, got, sizeof(got)));
    return ISO_OK;
}

// Brings a tensor into logical layout.
static iso_status make_logical(iso_tensor **slot, const iso_tensor **x) {
    if ((*x)->layout == ISO_LAYOUT_LOGICAL) return ISO_OK;
    ISO_TRY(prepare_tensor(slot, *x));
    ISO_TRY(iso_tensor_copy(*x, *slot));
    *x = *slot;
    return ISO_OK;
}

iso_status iso_loss_compute_tensor(iso_loss *loss, iso_tensor *output, iso_tensor *target,
                                   double *value, iso_tensor **grad) {
    const iso_tensor *x = output, *t = target;
    loss->computed = false;
    ISO_TRY(check_target(loss, output, target));
    ISO_TRY(make_logical(&loss->logical[0], &x));
    ISO_TRY(make_logical(&loss->logical[1], &t));
    if (grad) ISO_TRY(prepare_tensor(&loss->grad, output));
    ISO_TRY(iso__kernels(x)->target_loss(loss->device, &loss->config, x, t, loss->result,
                                         grad ? loss->grad : NULL));
    ISO_TRY(mark_launched(loss, false));
    if (value) ISO_TRY(iso_loss_value(loss, value, NULL));
    if (grad) *grad = loss->grad;
    return ISO_OK;
}

void iso_loss_destroy(iso_loss **slot) {
    iso_loss *loss = *slot;
    *slot = NULL;
    if (!loss) return;
    if (loss->done) {
        const iso__remote_ops *remote = loss->device->ops->remote;
        remote->wait(loss->device, loss->done); // also where the latest call failed
        remote->event_destroy(loss->device, &loss->done);
    }
    iso__pinned_free(loss->device, loss->result);
    iso_tensor_destroy(&loss->grad);
    for (int i = 0; i < 2; i++) iso_tensor_destroy(&loss->logical[i]);
    iso_device_destroy(&loss->device);
    iso__free(loss);
}
