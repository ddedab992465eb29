// SPDX-License-Identifier: MIT
// Private to the CUDA device: launchers of batch normalisation kernels.
#ifndef ISO_BATCH_NORM_KERNELS_H
#define ISO_BATCH_NORM_KERNELS_H

#include "device/cuda/runtime/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// The shape x[rows, channels, plane], and the division of the work: a block takes one part of the
// values of `lanes` times `owned` channels.
typedef struct iso__cuda_norm_shape {
    iso_dtype dtype; // of x, y and their gradients; if it is bf16 or f16, all else is f32
    int64_t channels, plane;
    int64_t values; // of a channel
    int64_t parts, part_values;
    int lanes;        // threads that work side by side on different channels
    int width, owned; // width: values that a thread moves at once; owned: how many channels they
                      // belong to, 1 or width
} iso__cuda_norm_shape;
enum {
    ISO__NORM_LANES = 32, // at most
    ISO__NORM_BATCH = 8,  // values of a channel that a thread adds up before it continues in f64
    ISO__NORM_ROWS = 5,   // of a workspace: numbers of each channel
    ISO__NORM_SUM_BLOCK = 512 // threads of a block that sums adjacent channels
};

// The number of adjacent channels that a thread sums: for moments, by the size of an element, and
// for gradients.
#define ISO__NORM_SUMMED_MOMENTS(size) ((size) == 2 ? 4 : 2)
#define ISO__NORM_SUMMED               2

// to[i] = from[i]. The caller may reuse `from`, memory of the host, when the call returns.
iso_status iso__cuda_norm_upload(iso__cuda *cuda, int64_t count, const double *from, double *to);

typedef struct iso__cuda_norm_forward {
    // summed: how the work of sums is divided, if shape.owned > 1.
    iso__cuda_norm_shape shape, summed;
    double eps, factor; // factor: of the running statistics
    bool batch, relu;
    const double *moments;            // on the device, as in iso__batch_norm_args; NULL: those of x
    double count;                     // of values of a channel, if moments are given
    const void *x, *weight, *bias;    // weight, bias may be NULL
    void *running_mean, *running_var; // may be NULL if batch is set
    void *tracked;                    // is incremented if batch is set; may be NULL
    void *workspace, *y;
    double *parts, *numbers; // scratch: for the parts; two numbers for each channel
    unsigned *arrived;       // of iso__cuda_arrivals
} iso__cuda_norm_forward;
iso_status iso__cuda_norm_forward_launch(iso__cuda *cuda, const iso__cuda_norm_forward *args);

typedef struct iso__cuda_norm_backward {
    iso__cuda_norm_shape shape, summed; // as forward's
    bool batch, relu;
    const double *sums; // on the device; NULL: those of dy, from which dw and db follow too
    double count;       // of values of a channel, if sums are given
    const void *x, *dy, *workspace;
    void *dw, *db, *dx; // may be NULL
    bool accumulate_w, accumulate_b;
    double *out;             // the sums are written here; NULL: nowhere
    double *parts, *numbers; // scratch, as in forward; numbers may be `out` if dx is NULL
    unsigned *arrived;
} iso__cuda_norm_backward;
iso_status iso__cuda_norm_backward_launch(iso__cuda *cuda, const iso__cuda_norm_backward *args);

// Writes means, then sums of squares, to args->numbers. Members of args that this does not need are
// ignored.
iso_status iso__cuda_norm_moments_launch(iso__cuda *cuda, const iso__cuda_norm_forward *args);

#ifdef __cplusplus
}
#endif
#endif
