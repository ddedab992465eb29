// SPDX-License-Identifier: MIT
// The naive double-precision reference of every layer operation and update: written from the
// formulas, in logical order, without optimisation. Devices are compared with it.
#ifndef ISO_TEST_ORACLE_H
#define ISO_TEST_ORACLE_H

#include "device/device_impl.h"

// y[rows, out] = x[rows, in] w[out, in]^T + b; b may be NULL; relu: max(y, 0).
void oracle_linear(int64_t rows, int64_t in, int64_t out, const double *x, const double *w,
                   const double *b, bool relu, double *y);
// Adds to dw[out, in], db[out] and dx[rows, in]; any may be NULL.
void oracle_linear_backward(int64_t rows, int64_t in, int64_t out, const double *x, const double *w,
                            const double *dy, double *dw, double *db, double *dx);

typedef struct oracle_conv {
    int64_t rows, in, height, width,
        out; // x[rows, in, height, width], w[out, in / groups, kernel[0], kernel[1]]
    int64_t kernel[2], stride[2], padding[2];
    int64_t dilation[2], groups; // 0 means 1
} oracle_conv;
int64_t oracle_conv_height(const oracle_conv *c); // of the output
int64_t oracle_conv_width(const oracle_conv *c);
void oracle_conv2d(const oracle_conv *c, const double *x, const double *w, const double *b,
                   bool relu, double *y);
// Adds to dw, db and dx; any may be NULL.
void oracle_conv2d_backward(const oracle_conv *c, const double *x, const double *w,
                            const double *dy, double *dw, double *db, double *dx);

// x[planes, height, width] -> y[planes, oracle_pool_height, oracle_pool_width]
typedef struct oracle_pool {
    int64_t planes, height, width;
    int64_t kernel[2], stride[2], padding[2];
} oracle_pool;
int64_t oracle_pool_height(const oracle_pool *p); // of the output
int64_t oracle_pool_width(const oracle_pool *p);
// winner[i] is the index into x of output i (the first of equal ones).
void oracle_max_pool(const oracle_pool *p, const double *x, double *y, int64_t *winner);
// Padding counts as zeros.
void oracle_avg_pool(const oracle_pool *p, const double *x, double *y);
void oracle_avg_pool_backward(const oracle_pool *p, const double *dy, double *dx); // adds to dx
// To out[2] rows and columns; of p only planes, height and width count.
void oracle_adaptive_avg_pool(const oracle_pool *p, const int64_t out[2], const double *x,
                              double *y);
void oracle_adaptive_avg_pool_backward(const oracle_pool *p, const int64_t out[2], const double *dy,
                                       double *dx); // adds to dx

// mask[rows, channels, plane]: 0 or 1 / (1 - p).
void oracle_dropout_mask(const iso__dropout_draw *draw, int64_t rows, int64_t channels,
                         int64_t plane, double *mask);

void oracle_log_softmax(int64_t rows, int64_t k, const double *x, double *y);
void oracle_log_softmax_backward(int64_t rows, int64_t k, const double *y, const double *dy,
                                 double *dx);
// Returns the mean loss; grad is the gradient of the mean.
double oracle_loss(const iso_loss_config *config, int64_t rows, int64_t k, const double *x,
                   const int32_t *labels, int64_t *correct, double *grad);
// Kinds from ISO_MSE on; delta is 1.
double oracle_target_loss(iso_loss_kind kind, int64_t count, const double *x, const double *target,
                          double *grad);

// torch.optim's SGD, Adam, AdamW, Adadelta on one element. State is read and written.
void oracle_sgd(const iso__sgd_args *args, double g, double *p, double *momentum);
void oracle_adam(const iso__adam_args *args, double g, double *p, double *m, double *v);
void oracle_adadelta(const iso__adadelta_args *args, double g, double *p, double *square_avg,
                     double *acc_delta);

#endif
