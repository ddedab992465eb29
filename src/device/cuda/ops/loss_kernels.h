// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of log-softmax and losses.
#ifndef ISO_LOSS_KERNELS_H
#define ISO_LOSS_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// Of rows of k elements.
iso_status iso__cuda_log_softmax(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t k,
                                 const void *x, void *y);
iso_status iso__cuda_log_softmax_grad(iso__cuda *cuda, iso_dtype dtype, int64_t rows, int64_t k,
                                      const void *y, const void *dy, void *dx);

// Losses and correct samples, summed over some of the batch.
typedef struct iso__cuda_loss_partial {
    double loss, correct;
} iso__cuda_loss_partial;

// Combines partial sums: the block that finishes last adds them up, in a fixed order.
typedef struct iso__cuda_loss_sum {
    int64_t count;                   // of partial sums
    iso__cuda_loss_partial *partial; // [count], scratch
    double divisor;                  // of the sum of losses
    iso__cuda_loss_partial *sum;     // may be memory of the host
    unsigned *arrived;               // of iso__cuda_arrivals
} iso__cuda_loss_sum;

typedef enum iso__cuda_loss_kind {
    ISO__CUDA_CROSS_ENTROPY,
    ISO__CUDA_NLL,
    ISO__CUDA_MSE,
    ISO__CUDA_BCE_WITH_LOGITS,
    ISO__CUDA_L1,
    ISO__CUDA_HUBER
} iso__cuda_loss_kind;

// Up to this number, labels are an argument of the kernel.
enum { ISO_CUDA_FEW_LABELS = 1024 };
typedef struct iso__cuda_loss_rows {
    iso__cuda_loss_kind kind;
    double smoothing, delta;
    int64_t rows, k;
    const void *x;
    const int32_t *labels;  // NULL: in few
    void *grad;             // of the batch mean; NULL: not wanted
    iso__cuda_loss_sum sum; // with a partial sum for each row
    uint16_t few[ISO_CUDA_FEW_LABELS];
} iso__cuda_loss_rows;
iso_status iso__cuda_losses_of_rows(iso__cuda *cuda, iso_dtype dtype,
                                    const iso__cuda_loss_rows *rows);

// Losses over elements (kinds from ISO__CUDA_MSE on) and, unless grad is NULL, the gradient of
// their mean. sum has iso__cuda_element_partials partial sums.
typedef struct iso__cuda_elements {
    iso__cuda_loss_kind kind;
    double delta;
    iso_dtype dtype, target_dtype; // the same; or bf16 or f16, and targets of f32
    int64_t count;
    const void *x, *target;
    void *grad;
} iso__cuda_elements;
iso_status iso__cuda_losses_of_elements(iso__cuda *cuda, const iso__cuda_elements *e,
                                        const iso__cuda_loss_sum *sum);
int64_t iso__cuda_element_partials(int64_t count);

#ifdef __cplusplus
}
#endif
#endif
