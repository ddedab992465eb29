// SPDX-License-Identifier: MIT
// Losses. The calls are local.
#ifndef ISOTHERM_LOSS_H
#define ISOTHERM_LOSS_H

#include <isotherm/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum iso_loss_kind {
    ISO_CROSS_ENTROPY, // logits[N, K]: mean over N of -log_softmax(logits)[label]
    ISO_NLL,           // log-probabilities[N, K]: mean over N of -x[label]
    // The mean over all elements of x and target of:
    ISO_MSE,             // (x - target)^2
    ISO_BCE_WITH_LOGITS, // -target log(sigmoid(x)) - (1 - target) log(1 - sigmoid(x))
    ISO_L1,              // |x - target|; its gradient is 0 where they are equal
    ISO_HUBER // (x - target)^2 / 2 if |x - target| < delta, else delta (|x - target| - delta / 2)
} iso_loss_kind;
typedef struct iso_loss iso_loss;

typedef struct iso_loss_config {
    iso_loss_kind kind;
    // s of torch.nn.CrossEntropyLoss(label_smoothing = s), 0 to 1: the target distribution is 1 - s
    // at the label, plus s / K everywhere. Must be 0 for other kinds.
    double label_smoothing;
    double delta; // ISO_HUBER: above 0; 0 means 1. Must be 0 for other kinds.
} iso_loss_config;

iso_status iso_loss_create(iso_device *device, iso_loss_kind kind, iso_loss **out);
iso_status iso_loss_create_with(iso_device *device, const iso_loss_config *config, iso_loss **out);
// Computes the loss of output[N, K] for labels, N integers in host memory. For sequences, output[N,
// L, K] has N * L rows of K, and as many labels. *value is the mean over all rows. *correct is the
// number of rows whose maximum (the first one on a tie) is at the label. Either may be NULL; with
// both NULL the call does not wait for a GPU, and iso_loss_value returns them later. *grad (NULL:
// not wanted) is the gradient of the mean; the loss owns it, and it is valid until the next call.
//
// output is f32 or f64, or bf16 or f16 from an Autocast: the computation is then in f32, and the
// gradient is rounded to the type of output. For ISO_MSE and the kinds after it, the target is 1 at
// the label and 0 elsewhere. ISO_ERR_ARG for a label outside [0, K); the message names the row.
iso_status iso_loss_compute(iso_loss *loss, iso_tensor *output, const int32_t *labels,
                            double *value, int64_t *correct, iso_tensor **grad);
// For ISO_MSE and the kinds after it: computes the loss for a target tensor of the shape and type
// of output. For output of 16 bits the target may be f32. value and grad: as in iso_loss_compute.
iso_status iso_loss_compute_tensor(iso_loss *loss, iso_tensor *output, iso_tensor *target,
                                   double *value, iso_tensor **grad);
// Waits for the last computation and returns its results. Either pointer may be NULL. ISO_ERR_STATE
// before the first computation, or for correct if that computation had no labels.
iso_status iso_loss_value(iso_loss *loss, double *value, int64_t *correct);
void iso_loss_destroy(iso_loss **loss);

#ifdef __cplusplus
}
#endif
#endif
