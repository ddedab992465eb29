// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of batch normalisation kernels.
#ifndef ISO_BATCH_NORM_KERNELS_H
#define ISO_BATCH_NORM_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// x[rows, channels, plane], and how its work is divided: a block takes one part of the values of
// `lanes` times `owned` channels.
typedef struct iso__cuda_norm_shape {
    iso_dtype dtype; // of x, y and their gradients; all else is f32 where that is bf16
    int64_t channels, plane;
    int64_t values; // of a channel
    int64_t parts, part_values;
    int lanes;
    int width, owned; // values that a thread moves at once, and the channels these are of: 1 or all
} iso__cuda_norm_shape;
enum {
    ISO__NORM_LANES = 32,     // at most
    ISO__NORM_BATCH = 8,      // values of a channel that a thread adds up before it goes on in f64
    ISO__NORM_ROWS = 5,       // of a workspace: numbers of each channel
    ISO__NORM_SUM_BLOCK = 512 // threads where channels beside each other are summed
};

// Channels that a thread sums where they lie beside each other: moments, by the size of an element,
// and gradients.
#define ISO__NORM_SUMMED_MOMENTS(size) ((size) == 2 ? 4 : 2)
#define ISO__NORM_SUMMED               2

// to[i] = from[i]. The caller may reuse `from`, memory of the host, when the call returns.
iso_status iso__cuda_norm_upload(iso__cuda *cuda, int64_t count, const double *from, double *to);

typedef struct iso__cuda_norm_forward {
    iso__cuda_norm_shape shape, summed; // summed: how sums are divided where shape.owned > 1
    double eps, factor;                 // of the running statistics
    bool batch, relu;
    const double *moments;            // on the device, as in iso__batch_norm_args; NULL: those of x
    double count;                     // of values of a channel, where moments are given
    const void *x, *weight, *bias;    // weight, bias may be NULL
    void *running_mean, *running_var; // may be NULL where batch is set
    void *tracked;                    // goes up by 1 where batch is set; may be NULL
    void *workspace, *y;
    double *parts, *numbers; // scratch: of the parts; two of each channel
    unsigned *arrived;       // of iso__cuda_arrivals
} iso__cuda_norm_forward;
iso_status iso__cuda_norm_forward_launch(iso__cuda *cuda, const iso__cuda_norm_forward *args);

typedef struct iso__cuda_norm_backward {
    iso__cuda_norm_shape shape, summed; // as forward's
    bool batch, relu;
    const double *sums; // on the device; NULL: those of dy, from which dw and db follow too
    double count;       // where sums are given
    const void *x, *dy, *workspace;
    void *dw, *db, *dx; // may be NULL
    bool accumulate_w, accumulate_b;
    double *out;             // where the sums go; NULL: nowhere
    double *parts, *numbers; // scratch, as forward's; numbers may be out where dx is NULL
    unsigned *arrived;
} iso__cuda_norm_backward;
iso_status iso__cuda_norm_backward_launch(iso__cuda *cuda, const iso__cuda_norm_backward *args);

// Means, then sums of squares, into args->numbers; of args it takes only what it needs for that.
iso_status iso__cuda_norm_moments_launch(iso__cuda *cuda, const iso__cuda_norm_forward *args);

#ifdef __cplusplus
}
#endif
#endif
