// SPDX-License-Identifier: MIT
// The naive double-precision reference of normalisation and activations.
#ifndef ISO_TEST_ORACLE_NORM_H
#define ISO_TEST_ORACLE_NORM_H

#include "device/device_impl.h"

// x[rows, channels, plane].
typedef struct oracle_batch_norm {
    int64_t rows, channels, plane;
    double eps;
    bool relu;
} oracle_batch_norm;

// Mean and biased variance of each channel.
void oracle_channel_moments(const oracle_batch_norm *b, const double *x, double *mean,
                            double *variance);
// w and bias may be NULL: 1 and 0.
void oracle_batch_norm_forward(const oracle_batch_norm *b, const double *x, const double *mean,
                               const double *variance, const double *w, const double *bias,
                               double *y);
// Adds to dw and db (either may be NULL), writes dx. batch: mean and variance are those of x, so dx
// includes their gradients.
void oracle_batch_norm_backward(const oracle_batch_norm *b, bool batch, const double *x,
                                const double *mean, const double *variance, const double *w,
                                const double *bias, const double *dy, double *dw, double *db,
                                double *dx);

// x[rows, size]; w and b may be NULL.
void oracle_layer_norm(int64_t rows, int64_t size, double eps, const double *x, const double *w,
                       const double *b, double *y);
// Adds to dw and db (either may be NULL), writes dx.
void oracle_layer_norm_backward(int64_t rows, int64_t size, double eps, const double *x,
                                const double *w, const double *dy, double *dw, double *db,
                                double *dx);

void oracle_softmax(int64_t rows, int64_t k, const double *x, double *y);
void oracle_softmax_backward(int64_t rows, int64_t k, const double *y, const double *dy,
                             double *dx);

// The function and its derivative at x.
double oracle_unary(iso__unary function, double alpha, double x);
double oracle_unary_slope(iso__unary function, double alpha, double x);

#endif
