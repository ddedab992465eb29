// The naive double-precision reference of every layer operation and update: written from the
// formulas, in logical order, without any care for speed. Devices are compared with it.
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
        out; // x[rows, in, height, width], w[out, in, kernel[0], kernel[1]]
    int64_t kernel[2], stride[2], padding[2];
} oracle_conv;
int64_t oracle_conv_height(const oracle_conv *c); // of the output
int64_t oracle_conv_width(const oracle_conv *c);
void oracle_conv2d(const oracle_conv *c, const double *x, const double *w, const double *b,
                   bool relu, double *y);
// Adds to dw, db and dx; any may be NULL.
void oracle_conv2d_backward(const oracle_conv *c, const double *x, const double *w,
                            const double *dy, double *dw, double *db, double *dx);

// x[planes, height, width]; winner[i] is the index into x of output i (the first of equal ones).
void oracle_max_pool(int64_t planes, int64_t height, int64_t width, int64_t window, int64_t stride,
                     const double *x, double *y, int64_t *winner);

// mask[rows, channels, plane]: 0 or 1 / (1 - p).
void oracle_dropout_mask(const iso__dropout_draw *draw, int64_t rows, int64_t channels,
                         int64_t plane, double *mask);

void oracle_log_softmax(int64_t rows, int64_t k, const double *x, double *y);
void oracle_log_softmax_backward(int64_t rows, int64_t k, const double *y, const double *dy,
                                 double *dx);
// Returns the mean loss; grad is the gradient of the mean.
double oracle_loss(iso_loss_kind kind, int64_t rows, int64_t k, const double *x,
                   const int32_t *labels, int64_t *correct, double *grad);

// torch.optim's SGD, Adam, AdamW, Adadelta on one element. State is read and written.
void oracle_sgd(const iso__sgd_args *args, double g, double *p, double *momentum);
void oracle_adam(const iso__adam_args *args, double g, double *p, double *m, double *v);
void oracle_adadelta(const iso__adadelta_args *args, double g, double *p, double *square_avg,
                     double *acc_delta);

#endif
